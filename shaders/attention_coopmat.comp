#version 460
#extension GL_GOOGLE_include_directive : require
// Attention of many queries in half types by cooperative matrices of a subgroup: a subgroup has SIZE rows, a workgroup four
// of them, which share tiles of KEYS keys and values in shared memory; the next tile is on its way in registers. Scores and
// sums are float32. A row's results are scaled anew only once its largest score has grown by more than 2^8. BF: bfloat16.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF
#extension GL_EXT_bfloat16 : require
#define T bfloat16_t
#else
#define T float16_t
#endif
layout(constant_id = 1) const uint DTYPE = 9;
layout(constant_id = 2) const uint WIDTH = 128;        // of keys, a multiple of SIZE: the next one to theirs
layout(constant_id = 3) const uint VALUE_WIDTH = 128;
layout(constant_id = 4) const uint KEYS = 32;
layout(constant_id = 5) const uint SIZE = 16;          // of a cooperative matrix: SIZE x SIZE x SIZE
layout(constant_id = 6) const uint LANES = 32;         // of a subgroup, at least SIZE
layout(constant_id = 7) const uint EVEN = 0;           // 1: all subgroups take the same steps (where their barriers are the workgroup's)
layout(constant_id = 8) const bool SPREAD = false;     // results are of split_keys keys, see attention_parts.glsl
#include "attention.glsl"
#define MATRIX_A coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA>
#define MATRIX_B coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB>
#define MATRIX_SUM coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>

const bool AHEAD = WIDTH + VALUE_WIDTH <= 256u;          // wider heads leave no registers for the next tile
const uint SUBGROUPS = 4u, THREADS = SUBGROUPS * LANES, ROWS = SUBGROUPS * SIZE, PARTS = LANES / SIZE;   // threads a row
const uint K_PITCH = WIDTH / 8u + 1u, V_PITCH = VALUE_WIDTH / 8u + 1u, V_TILE = KEYS * K_PITCH;          // in groups of eight
const uint TILE = KEYS * (K_PITCH + V_PITCH) > ROWS * K_PITCH ? KEYS * (K_PITCH + V_PITCH) : ROWS * K_PITCH;
const uint PITCH = KEYS / 4u + 1u, P_PITCH = KEYS / 8u + 1u, PATCH = SIZE * PITCH, FOURS = KEYS / 4u / PARTS;
const uint FETCH_K = (KEYS * WIDTH / 8u + THREADS - 1u) / THREADS, FETCH_V = (KEYS * VALUE_WIDTH / 8u + THREADS - 1u) / THREADS;
shared uvec4 tiles[TILE];                               // first the queries, then keys and values
shared vec4 patches[SUBGROUPS * PATCH];                 // a subgroup's scores, weights (as bits), factors, results

uvec4 next_k[FETCH_K], next_v[FETCH_V];

void fetch(const uint k_row, const uint v_row, const uint first)
{
    [[unroll]] for (uint i = 0u; i < FETCH_K; i++) {
        uint g = gl_LocalInvocationID.x + i * THREADS, key = first + g / (WIDTH / 8u), f = g % (WIDTH / 8u) * 8u;
        bool inside = key < key_count && f < key_width && g < KEYS * WIDTH / 8u;
        next_k[i] = inside ? k128[(k_row + key * k_stride[2] + f) / 8u] : uvec4(0u);
    }
    [[unroll]] for (uint i = 0u; i < FETCH_V; i++) {
        uint g = gl_LocalInvocationID.x + i * THREADS, key = first + g / (VALUE_WIDTH / 8u), f = g % (VALUE_WIDTH / 8u) * 8u;
        bool inside = key < key_count && f < value_width && g < KEYS * VALUE_WIDTH / 8u;
        next_v[i] = inside ? v128[(v_row + key * v_stride[2] + f) / 8u] : uvec4(0u);
    }
}

void stage()
{
    [[unroll]] for (uint i = 0u; i < FETCH_K; i++) {
        uint g = gl_LocalInvocationID.x + i * THREADS;
        if (g < KEYS * WIDTH / 8u) tiles[g / (WIDTH / 8u) * K_PITCH + g % (WIDTH / 8u)] = next_k[i];
    }
    [[unroll]] for (uint i = 0u; i < FETCH_V; i++) {
        uint g = gl_LocalInvocationID.x + i * THREADS;
        if (g < KEYS * VALUE_WIDTH / 8u) tiles[V_TILE + g / (VALUE_WIDTH / 8u) * V_PITCH + g % (VALUE_WIDTH / 8u)] = next_v[i];
    }
}

void stage_queries(const uint batch, const uint head, const uint first_row, const uint rows)
{
    for (uint g = gl_LocalInvocationID.x; g < ROWS * WIDTH / 8u; g += THREADS) {
        uint r = g / (WIDTH / 8u), f = g % (WIDTH / 8u) * 8u;
        bool inside = first_row + r < rows && f < key_width;
        tiles[r * K_PITCH + f / 8u] = inside ? q128[(place_of(batch, head, first_row + r).q + f) / 8u] : uvec4(0u);
    }
}

#include "two_bits.glsl"
#include "attention_parts.glsl"

// SIZE x SIZE of a number each row, as an accumulator.
MATRIX_SUM across_rows(const float x, const uint row, const uint part, const uint mine)
{
    MATRIX_SUM m;
    subgroupBarrier();
    for (uint j = part; j < SIZE / 4u; j += PARTS) patches[mine + row * PITCH + j] = vec4(x);
    subgroupBarrier();
    coopMatLoad(m, patches, mine, PITCH, gl_CooperativeMatrixLayoutRowMajor);
    return m;
}

void main()
{
    uint group = group_index(), blocks = query_heads / block_heads(), rows = query_count * block_heads();
    uint row_blocks = (rows + ROWS - 1u) / ROWS, counter = group, split = 0u, begin = 0u;
    if (SPREAD) {
        split = group % splits;
        counter = group /= splits;
        begin = split * split_keys;
    }
    if (group >= row_blocks * blocks * batches) return;
    uint first_row = (row_blocks - 1u - group % row_blocks) * ROWS, head = group / row_blocks % blocks * block_heads();
    uint batch = group / row_blocks / blocks, kv = head / group_size;
    uint k_row = k_at + batch * k_stride[0] + kv * k_stride[1], v_row = v_at + batch * v_stride[0] + kv * v_stride[1];
    uint lane = gl_SubgroupInvocationID, row = lane / PARTS, part = lane % PARTS, mine = gl_SubgroupID * PATCH;
    uint own = first_row + gl_SubgroupID * SIZE + row;
    row_place place = place_of(batch, head, own);
    bool inside = own < rows;
    bool sinks = !SPREAD && has(SINKS) && inside;
    float high = sinks ? sink_of(place.head) : LOWEST, total = sinks && part == 0u ? 1.0 : 0.0;
    if (!inside) place.keys = 0u;

    MATRIX_A qs[WIDTH / SIZE];
    MATRIX_SUM os[VALUE_WIDTH / SIZE];
    uint end = key_end(first_row, min(first_row + ROWS, rows) - 1u);
    if (SPREAD) end = min(end, begin + split_keys);
    if (AHEAD) fetch(k_row, v_row, begin);
    stage_queries(batch, head, first_row, rows);
    barrier();
    [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++)
        coopMatLoad(qs[i], tiles, gl_SubgroupID * SIZE * K_PITCH + i * (SIZE / 8u), K_PITCH, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE; i++) os[i] = MATRIX_SUM(0.0);

    for (uint first = begin; first < end; first += KEYS) {
        barrier();
        if (!AHEAD) fetch(k_row, v_row, first);
        stage();
        barrier();
        if (AHEAD && first + KEYS < end) fetch(k_row, v_row, first + KEYS);
        [[unroll]] for (uint j = 0u; j < KEYS / SIZE; j++) {
            MATRIX_SUM s = MATRIX_SUM(0.0);
            [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++) {
                MATRIX_B k;
                coopMatLoad(k, tiles, j * SIZE * K_PITCH + i * (SIZE / 8u), K_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                s = coopMatMulAdd(qs[i], k, s);
            }
            coopMatStore(s, patches, mine + j * (SIZE / 4u), PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();

        vec4 score[FOURS];
        float best = LOWEST;
        bool plain = !has(MASK_BOOL | MASK_ADDS) && subgroupBallot(first + KEYS > place.keys) == uvec4(0u);
        [[unroll]] for (uint j = 0u; j < FOURS; j++) {
            uint four = part * FOURS + j;
            score[j] = patches[mine + row * PITCH + four] * scale;
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                if (!plain) score[j][i] = masked(score[j][i], place, first + 4u * four + i);
                if (score[j][i] > best) best = score[j][i];
            }
        }
        [[unroll]] for (uint d = 1u; d < PARTS; d *= 2u) best = max(best, subgroupShuffleXor(best, d));
        bool grows = best > high + 8.0;
        if (EVEN == 1u || subgroupBallot(grows) != uvec4(0u)) {
            float shrink = grows ? exp2(high - best) : 1.0;
            high = grows ? best : high;
            total *= shrink;
            MATRIX_SUM factor = across_rows(shrink, row, part, mine);
            [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE; i++) os[i] = os[i] * factor;
        }
        subgroupBarrier();
        [[unroll]] for (uint j = 0u; j < FOURS; j++) {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                float p = score[j][i] <= LOWEST ? 0.0 : exp2(score[j][i] - high);
                score[j][i] = p;
                total += p;
            }
            if (j % 2u == 1u)
                patches[mine + row * P_PITCH + (part * FOURS + j) / 2u] = uintBitsToFloat(uvec4(
                    two_bits(score[j - 1u].xy), two_bits(score[j - 1u].zw), two_bits(score[j].xy), two_bits(score[j].zw)));
        }
        subgroupBarrier();
        [[unroll]] for (uint j = 0u; j < KEYS / SIZE; j++) {
            MATRIX_A p;
            coopMatLoad(p, patches, mine + j * (SIZE / 8u), P_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE; i++) {
                MATRIX_B v;
                coopMatLoad(v, tiles, V_TILE + j * SIZE * V_PITCH + i * (SIZE / 8u), V_PITCH, gl_CooperativeMatrixLayoutRowMajor);
                os[i] = coopMatMulAdd(p, v, os[i]);
            }
        }
    }

    [[unroll]] for (uint d = 1u; d < PARTS; d *= 2u) total += subgroupShuffleXor(total, d);
    float factor = SPREAD ? 1.0 : total == 0.0 ? 0.0 : 1.0 / total;
    uint parted = part_of(batch, head, own, split);
    if (SPREAD && inside && part == 0u) part_two[figures_at() + parted] = vec2(high, total);
    [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE; i++) {
        subgroupBarrier();
        coopMatStore(os[i], patches, mine, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        for (uint j = part; j < SIZE / 4u; j += PARTS) {
            vec4 x = patches[mine + row * PITCH + j] * factor;
            uint f = i * SIZE + 4u * j;
            if (SPREAD && inside) part_four[(parted * VALUE_WIDTH + f) / 4u] = x;
            else if (inside && f < value_width) o64[(place.o + f) / 4u] = uvec2(two_bits(x.xy), two_bits(x.zw));
        }
    }
    if (SPREAD && is_last(counter)) join_splits(batch, head, first_row, min(ROWS, rows - first_row));
}
