#version 460
#extension GL_GOOGLE_include_directive : require
// Attention of many queries in half types by cooperative matrices of a subgroup that are converted, reduced and masked in
// registers (VK_NV_cooperative_matrix2). A subgroup has 16 rows; all of a workgroup share tiles of keys and values in shared
// memory, two of each: while one is used the next is written, and the one after that is on its way in registers. Scores of
// the next keys are computed with the results of these, so that loads, exponentials and products overlap; one barrier a
// tile. A row's results are scaled anew only once its largest score has grown by more than 2^8: no reduction otherwise. Where
// rows are few, PARTS subgroups have the same 16, each some of a tile's keys; where workgroups are few, several have the same
// rows and keys of their own (SPREAD). Scores and sums are float32. BF: bfloat16.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF
#extension GL_EXT_bfloat16 : require
#define T bfloat16_t
#else
#define T float16_t
#endif
layout(constant_id = 1) const uint DTYPE = 9;
layout(constant_id = 2) const uint WIDTH = 128;        // of keys, a multiple of 16: the next one to theirs
layout(constant_id = 3) const uint VALUE_WIDTH = 128;
layout(constant_id = 4) const uint KEYS = 32;          // of a tile, a part's: a multiple of 16
layout(constant_id = 5) const uint SUBGROUPS = 8;
layout(constant_id = 6) const uint PARTS = 1;          // 1 or 2
layout(constant_id = 7) const bool SPREAD = false;     // results are of split_keys keys, added up by the last workgroup of the rows
#include "attention.glsl"
const uint SIZE = 16u, LANES = 32u;                    // of a matrix, of a subgroup
#define MATRIX_A coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA>
#define MATRIX_B coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB>
#define MATRIX_SUM coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor

const uint THREADS = SUBGROUPS * LANES, TEAMS = SUBGROUPS / PARTS, ROWS = TEAMS * SIZE, ALL_KEYS = KEYS * PARTS;
const uint K_PITCH = WIDTH / 8u + 1u, V_PITCH = VALUE_WIDTH / 8u + 1u;         // in groups of eight, as all that follows
const uint K_TILE = ALL_KEYS * K_PITCH, V_TILE = ALL_KEYS * V_PITCH, V_AT = 2u * K_TILE, RING = 2u * (K_TILE + V_TILE);
const uint PATCH = SIZE * SIZE / 4u, WIDE = VALUE_WIDTH / SIZE, LAST = PARTS > 1u ? TEAMS * PATCH * (WIDE + 2u) : 0u;
const uint PITCH = SIZE / 4u + 1u, OUT = SUBGROUPS * SIZE * PITCH, MORE = LAST > OUT ? LAST : OUT;
const uint QUERIES = ROWS * K_PITCH > RING ? ROWS * K_PITCH : RING;
shared uvec4 tiles[QUERIES > MORE ? QUERIES : MORE];    // first queries, then the rings, then results

// Threads of a row: a power of two, some of them idle.
const uint K_LANES = WIDTH <= 64u ? 8u : WIDTH <= 128u ? 16u : 32u, V_LANES = VALUE_WIDTH <= 64u ? 8u : VALUE_WIDTH <= 128u ? 16u : 32u;
const uint K_ROWS = THREADS / K_LANES, V_ROWS = THREADS / V_LANES, Q_STEPS = (ROWS + K_ROWS - 1u) / K_ROWS;
const uint K_STEPS = (ALL_KEYS + K_ROWS - 1u) / K_ROWS, V_STEPS = (ALL_KEYS + V_ROWS - 1u) / V_ROWS;
uvec4 next_k[K_STEPS], next_v[V_STEPS];
uint k_first, v_first, k_step, v_step, last_key;       // this thread's part of key 0, from a key to the next

// Rows behind the last key repeat it: their weights are 0.
void fetch_keys(const uint first)
{
    uint key = first + gl_LocalInvocationID.x / K_LANES;
    [[unroll]] for (uint i = 0u; i < K_STEPS; i++) next_k[i] = k128[k_first + min(key + i * K_ROWS, last_key) * k_step];
}

void fetch_values(const uint first)
{
    uint key = first + gl_LocalInvocationID.x / V_LANES;
    [[unroll]] for (uint i = 0u; i < V_STEPS; i++) next_v[i] = v128[v_first + min(key + i * V_ROWS, last_key) * v_step];
}

void stage_keys(const uint to)
{
    uint row = gl_LocalInvocationID.x / K_LANES, f = gl_LocalInvocationID.x % K_LANES;
    [[unroll]] for (uint i = 0u; i < K_STEPS; i++)
        if (f < WIDTH / 8u && (ALL_KEYS % K_ROWS == 0u || row + i * K_ROWS < ALL_KEYS))
            tiles[to + (row + i * K_ROWS) * K_PITCH + f] = 8u * f < key_width ? next_k[i] : uvec4(0u);
}

void stage_values(const uint to)
{
    uint row = gl_LocalInvocationID.x / V_LANES, f = gl_LocalInvocationID.x % V_LANES;
    [[unroll]] for (uint i = 0u; i < V_STEPS; i++)
        if (f < VALUE_WIDTH / 8u && (ALL_KEYS % V_ROWS == 0u || row + i * V_ROWS < ALL_KEYS))
            tiles[V_AT + to + (row + i * V_ROWS) * V_PITCH + f] = next_v[i];
}

// Which of the heads that share keys a row is of: not computed where a block has rows of one only.
uint head_of(const uint n) { return has(FOLDED) ? n / query_count : 0u; }

// Features behind the last are zeros, of keys too; rows behind the last repeat it.
void stage_queries(const uint at, const uint head, const uint first_row, const uint rows)
{
    uint row = gl_LocalInvocationID.x / K_LANES, f = gl_LocalInvocationID.x % K_LANES;
    uvec4 x[Q_STEPS];
    [[unroll]] for (uint i = 0u; i < Q_STEPS; i++) {
        uint n = min(first_row + row + i * K_ROWS, rows - 1u), h = head_of(n);
        x[i] = 8u * f < key_width ? q128[(at + (head + h) * q_stride[1] + (n - h * query_count) * q_stride[2]) / 8u + f] : uvec4(0u);
    }
    [[unroll]] for (uint i = 0u; i < Q_STEPS; i++)
        if (f < WIDTH / 8u && (ROWS % K_ROWS == 0u || row + i * K_ROWS < ROWS)) tiles[(row + i * K_ROWS) * K_PITCH + f] = x[i];
}

float larger(const in float a, const in float b) { return max(a, b); }

// A score times the scale as its mask has it: -inf where a key is not attended to.
float seen(const in uint row, const in uint column, const in float x, const in uint batch, const in uint head, const in uint first_row,
           const in uint first)
{
    const float none = uintBitsToFloat(0xff800000u);
    uint n = first_row + row, key = first + column, h = head_of(n), i = n - h * query_count, keys = key_count;
    float score = x * scale;
    if (has(CAUSAL)) keys = uint(clamp(int(i + 1u + key_count) - int(query_count), 0, int(key_count)));
    if (key >= keys || h >= block_heads() || i >= query_count) return none;
    if (has(MASK_BOOL | MASK_ADDS)) {
        uint at = mask_at + batch * mask_stride[0] + (head + h) * mask_stride[1] + i * mask_stride[2] + key * mask_stride[3];
        if (has(MASK_ADDS)) score += number_mask(at) * LOG2E;
        else if (uint(mask8[at]) == 0u) return none;
    }
    return score <= LOWEST ? none : score;              // NaN stays
}

#include "two_bits.glsl"
#include "attention_parts.glsl"

// What converts a weight to bfloat16 truncates it (see nearest.glsl): to nearest, ties up. NaN may become 0: the sum has it.
float rounded(const float weight)
{
#ifdef BF
    return uintBitsToFloat(floatBitsToUint(weight) + 0x8000u);
#else
    return weight;
#endif
}

MATRIX_A qs[WIDTH / SIZE];
MATRIX_SUM scores[KEYS / SIZE], os[WIDE], total, high;

void multiply_keys(const uint at)
{
    [[unroll]] for (uint j = 0u; j < KEYS / SIZE; j++) scores[j] = MATRIX_SUM(0.0);
    [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++)
        [[unroll]] for (uint j = 0u; j < KEYS / SIZE; j++) {
            MATRIX_B k;
            coopMatLoad(k, tiles, at + j * SIZE * K_PITCH + i * (SIZE / 8u), K_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            scores[j] = coopMatMulAdd(qs[i], k, scores[j]);
        }
}

// Keeps the weights below 2^8. What scores are to be multiplied by: `unit`.
void follow_scores(const float unit)
{
    MATRIX_SUM best = scores[0], factor;
    bool grows = false;
    [[unroll]] for (uint e = 0u; e < best.length(); e++) {
        [[unroll]] for (uint j = 1u; j < KEYS / SIZE; j++) best[e] = max(best[e], scores[j][e]);
        grows = grows || best[e] * unit > high[e] + 8.0;
    }
    if (!subgroupAny(grows)) return;
    coopMatReduceNV(best, best, gl_CooperativeMatrixReduceRowNV, larger);
    [[unroll]] for (uint e = 0u; e < best.length(); e++) {
        float now = max(high[e], best[e] * unit);
        factor[e] = exp2(high[e] - now);
        high[e] = now;
    }
    total = total * factor;
    [[unroll]] for (uint i = 0u; i < WIDE; i++) os[i] = os[i] * factor;
}

// Two subgroups of the same rows: the second one's sums, added to the first one's.
void join_parts()
{
    uint at = gl_SubgroupID / PARTS * PATCH * (WIDE + 2u);
    if (gl_SubgroupID % PARTS == 1u) {
        coopMatStore(high, tiles, at, SIZE / 4u, ROW_MAJOR);
        coopMatStore(total, tiles, at + PATCH, SIZE / 4u, ROW_MAJOR);
        [[unroll]] for (uint i = 0u; i < WIDE; i++) coopMatStore(os[i], tiles, at + (2u + i) * PATCH, SIZE / 4u, ROW_MAJOR);
    }
    barrier();
    if (gl_SubgroupID % PARTS == 0u) {
        MATRIX_SUM x, own, others;
        coopMatLoad(x, tiles, at, SIZE / 4u, ROW_MAJOR);
        [[unroll]] for (uint e = 0u; e < x.length(); e++) {
            float most = max(high[e], x[e]);
            own[e] = exp2(high[e] - most);
            others[e] = exp2(x[e] - most);
            high[e] = most;
        }
        coopMatLoad(x, tiles, at + PATCH, SIZE / 4u, ROW_MAJOR);
        total = total * own + x * others;
        [[unroll]] for (uint i = 0u; i < WIDE; i++) {
            coopMatLoad(x, tiles, at + (2u + i) * PATCH, SIZE / 4u, ROW_MAJOR);
            os[i] = os[i] * own + x * others;
        }
    }
    barrier();
}

// Through shared memory, where rows and columns are known: results, or a part of the keys'.
void store_rows(const uint batch, const uint head, const uint first_row, const uint rows, const uint split)
{
    uint mine = gl_SubgroupID * SIZE * PITCH, row = gl_SubgroupInvocationID / 2u, part = gl_SubgroupInvocationID % 2u * 2u;
    uint at = mine + row * PITCH + part, n = first_row + row;
    row_place place = place_of(batch, head, n);
    coopMatStore(total, tiles, mine, PITCH, ROW_MAJOR);
    subgroupBarrier();
    vec4 sums = uintBitsToFloat(tiles[at]) + uintBitsToFloat(tiles[at + 1u]);
    float sum = sums.x + sums.y + (sums.z + sums.w);
    sum += subgroupShuffleXor(sum, 1u);
    subgroupBarrier();
    coopMatStore(high, tiles, mine, PITCH, ROW_MAJOR);
    subgroupBarrier();
    float most = uintBitsToFloat(tiles[mine + row * PITCH].x);
    if (!SPREAD && has(SINKS) && n < rows) sum += exp2(sink_of(place.head) - most);
    float factor = SPREAD ? 1.0 : sum == 0.0 ? 0.0 : 1.0 / sum;
    uint own = part_of(batch, head, n, split);
    if (SPREAD && n < rows && part == 0u) part_two[figures_at() + own] = vec2(most, sum);
    [[unroll]] for (uint i = 0u; i < WIDE; i++) {
        subgroupBarrier();
        coopMatStore(os[i], tiles, mine, PITCH, ROW_MAJOR);
        subgroupBarrier();
        vec4 a = uintBitsToFloat(tiles[at]) * factor, b = uintBitsToFloat(tiles[at + 1u]) * factor;
        uint f = i * SIZE + 4u * part;
        if (SPREAD && n < rows) {
            part_four[(own * VALUE_WIDTH + f) / 4u] = a;
            part_four[(own * VALUE_WIDTH + f) / 4u + 1u] = b;
        } else if (n < rows && f < value_width)
            o128[(place.o + f) / 8u] = uvec4(two_bits(a.xy), two_bits(a.zw), two_bits(b.xy), two_bits(b.zw));
    }
}

void main()
{
    uint blocks = query_heads / block_heads() * batches, rows = query_count * block_heads(), group = group_index();
    uint row_blocks = (rows + ROWS - 1u) / ROWS, counter = group, split = 0u, begin = 0u;
    if (SPREAD) {
        split = group % splits;
        counter = group /= splits;
        begin = split * split_keys;
    }
    if (group >= row_blocks * blocks) return;
    uint first_row = (row_blocks - 1u - group / blocks) * ROWS;             // those with the most keys first
    uint batch = group % blocks / (query_heads / block_heads()), head = group % blocks % (query_heads / block_heads()) * block_heads();
    uint own = first_row + gl_SubgroupID / PARTS * SIZE, part = gl_SubgroupID % PARTS * KEYS, kv = head / group_size;
    uint end = key_end(first_row, min(first_row + ROWS, rows) - 1u), plain = key_count, even = 0u;
    if (SPREAD) end = min(end, begin + split_keys);
    if (has(CAUSAL)) plain = uint(max(int((has(FOLDED) ? 0u : own) + 1u + key_count) - int(query_count), 0));
    plain = has(MASK_BOOL | MASK_ADDS) ? 0u : min(plain, key_count);        // keys that all rows of the subgroup attend to
    last_key = max(key_count, 1u) - 1u;
    k_step = k_stride[2] / 8u;
    v_step = v_stride[2] / 8u;
    k_first = (k_at + batch * k_stride[0] + kv * k_stride[1]) / 8u + min(gl_LocalInvocationID.x % K_LANES, key_width / 8u - 1u);
    v_first = (v_at + batch * v_stride[0] + kv * v_stride[1]) / 8u + min(gl_LocalInvocationID.x % V_LANES, value_width / 8u - 1u);

    fetch_keys(begin);
    fetch_values(begin);
    stage_queries(q_at + batch * q_stride[0], head, first_row, rows);
    barrier();
    [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++)
        coopMatLoad(qs[i], tiles, (own - first_row) * K_PITCH + i * (SIZE / 8u), K_PITCH, ROW_MAJOR);
    barrier();
    stage_keys(0u);
    stage_values(0u);
    fetch_keys(begin + ALL_KEYS);
    [[unroll]] for (uint i = 0u; i < WIDE; i++) os[i] = MATRIX_SUM(0.0);
    total = MATRIX_SUM(0.0);
    high = MATRIX_SUM(LOWEST);
    barrier();
    multiply_keys(part * K_PITCH);
    stage_keys(K_TILE);
    fetch_keys(begin + 2u * ALL_KEYS);
    fetch_values(begin + ALL_KEYS);

    for (uint first = begin; first < end; first += ALL_KEYS) {
        float unit = scale;
        MATRIX_A p[KEYS / SIZE];
        barrier();                                      // the next keys and these values are there; nobody reads those before
        stage_values((1u - even) * V_TILE);
        fetch_values(first + 2u * ALL_KEYS);
        stage_keys(even * K_TILE);
        fetch_keys(first + 3u * ALL_KEYS);
        if (first + part + KEYS > plain) {
            [[unroll]] for (uint j = 0u; j < KEYS / SIZE; j++)
                coopMatPerElementNV(scores[j], scores[j], seen, batch, head, own, first + part + j * SIZE);
            unit = 1.0;
        }
        follow_scores(unit);
        [[unroll]] for (uint j = 0u; j < KEYS / SIZE; j++) {
            [[unroll]] for (uint e = 0u; e < total.length(); e++) {
                float weight = exp2(fma(scores[j][e], unit, -high[e]));
                total[e] += weight;
                scores[j][e] = rounded(weight);
            }
            p[j] = MATRIX_A(scores[j]);
        }
        multiply_keys((1u - even) * K_TILE + part * K_PITCH);
        [[unroll]] for (uint j = 0u; j < KEYS / SIZE; j++)
            [[unroll]] for (uint i = 0u; i < WIDE; i++) {
                MATRIX_B v;
                coopMatLoad(v, tiles, V_AT + even * V_TILE + (part + j * SIZE) * V_PITCH + i * (SIZE / 8u), V_PITCH, ROW_MAJOR);
                os[i] = coopMatMulAdd(p[j], v, os[i]);
            }
        even = 1u - even;
    }
    barrier();
    if (PARTS > 1u) join_parts();
    if (gl_SubgroupID % PARTS == 0u) store_rows(batch, head, own, rows, split);
    if (SPREAD && is_last(counter)) join_splits(batch, head, first_row, min(ROWS, rows - first_row));
}
