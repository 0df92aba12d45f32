#version 460
#extension GL_GOOGLE_include_directive : require
// Attention whose sums have one order however many queries come together, by cooperative matrices of a subgroup. Keys go in
// chunks of CHUNK, each with a softmax of its own, and chunks' results are added up one after the other. A subgroup has SIZE
// rows. It goes through all their chunks, alone (WALK); or, where rows are few, those of a workgroup have a chunk each of the
// same rows and meet in shared memory, or, where several workgroups do (PARTS), in `part`, where the last one to finish adds
// them up. All ways have the same bits. FRESH: the newest key and value come with the query, see attention_fresh.glsl.
// BF: bfloat16.
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
layout(constant_id = 2) const uint WIDTH = 128;        // of keys: the next one of values; multiples of SIZE
layout(constant_id = 3) const uint VALUE_WIDTH = 128;
layout(constant_id = 4) const uint SUBGROUPS = 8;
layout(constant_id = 5) const uint LANES = 32;         // of a subgroup, at least SIZE
layout(constant_id = 6) const uint EVEN = 0;           // 1: all subgroups take the same steps (where their barriers are the workgroup's)
layout(constant_id = 7) const bool PARTS = false;      // workgroups share rows
layout(constant_id = 8) const uint ROWS = 16;          // of a subgroup that there are, up to SIZE
#ifdef FRESH
layout(constant_id = 9) const uint NORM = 0;          // 1: query and key are RMS-normalised first, 2: with weights
layout(constant_id = 10) const uint TWOS = 1;          // a quarter of a row, by a subgroup's lanes
const bool WALK = false;
#else
layout(constant_id = 9) const bool WALK = false;
#endif
uint keys_counted;                                      // key_count, or what a recorded dispatch finds in memory
#define KEY_COUNT keys_counted
#include "common.glsl"
#ifdef BF
uvec2 four_bits(const vec4 x) { return bf16_of_four(x); }
#else
uvec2 four_bits(const vec4 x) { return uvec2(packHalf2x16(x.xy), packHalf2x16(x.zw)); }
#endif
//! enum ATTENTION_: keys of a chunk, up to NEAR of them, and behind these
const uint CHUNK = 32, NEAR = 512, FAR_CHUNK = 128;

const uint SIZE = 16u, STEP = 2u * SIZE;                // of a cooperative matrix; keys of a step: two tiles, written out, for
                                                        // a loop with barriers stays one, and what it indexes goes to memory then
const uint K8 = WIDTH / 8u, V8 = VALUE_WIDTH / 8u, K_PITCH = K8 + 1u, V_PITCH = V8 + 1u;        // in groups of eight
const uint FETCH_K = (SIZE * K8 + LANES - 1u) / LANES, FETCH_V = (SIZE * V8 + LANES - 1u) / LANES, THREADS = SUBGROUPS * LANES;
// Lanes have scores of SPREAD rows: a lane FOURS times four of one row.
const uint LEAST = LANES / 8u, SPREAD = ROWS <= LEAST ? LEAST : ROWS <= 2u * LEAST ? 2u * LEAST : SIZE;
const uint PITCH = STEP / 4u + 1u, P_PITCH = STEP / 8u + 1u, PER_ROW = LANES / SPREAD, FOURS = STEP / 4u / PER_ROW;
const uint BLOCK = WALK ? SUBGROUPS * SIZE : ROWS;      // rows of a workgroup
const uint PATCH = SIZE * SIZE / 4u, WIDE = VALUE_WIDTH / SIZE, AT_ONCE = (WIDE + 1u) / 2u;      // tiles of results, half of them
const uint WIDER = K_PITCH > V_PITCH ? K_PITCH : V_PITCH, ROW = WIDER > PITCH ? WIDER : PITCH;
const uint ROOM = SIZE * ROW > PATCH * AT_ONCE ? SIZE * ROW : PATCH * AT_ONCE;
const uint WIDE_MOST = 8u;                              // WIDE is up to that: 128 features
shared uvec4 queries[(WALK ? SUBGROUPS : 1u) * SIZE * K_PITCH];
shared uvec4 tiles[SUBGROUPS * ROOM];                   // of each subgroup: keys, scores, weights, values, results
shared vec2 figures[SUBGROUPS * SIZE];                  // largest score and sum of weights
#ifdef FRESH
#define CHUNKED
#endif
#include "attention.glsl"
layout(std430, set = 0, binding = 6) coherent buffer part_twos { vec2 part_two[]; };
layout(std430, set = 0, binding = 6) coherent buffer part_fours { vec4 part_four[]; };
layout(std430, set = 0, binding = 7) coherent buffer finished_words { uint finished[]; };
#define MATRIX_A coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA>
#define MATRIX_B coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB>
#define MATRIX_SUM coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor

const uint FETCH = FETCH_K > FETCH_V ? FETCH_K : FETCH_V;
uvec4 next[(WALK ? 1u : 2u) * FETCH];                   // keys, or values, on their way: of a tile, of a step's
MATRIX_SUM os[WIDE];                                       // of a chunk, as high and total
float high, total;
uint mine, lane, row, share, k_base, v_base, last_key;  // row: the lane's, one of PER_ROW that have it; bases by eights

// A subgroup's lanes see what others of them wrote to shared memory.
void meet() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }

// A tile's keys (values), of which those behind the last one repeat it. `slot`: of two, but for WALK.
#define AT(i, eights) (LANES % eights == 0u ? i * (LANES / eights) + lane / eights : (i * LANES + lane) / eights)
#define EIGHT(i, eights) (LANES % eights == 0u ? lane % eights : (i * LANES + lane) % eights)
void fetch_k(const uint slot, const uint first)
{
    [[unroll]] for (uint i = 0u; i < FETCH_K; i++)
        next[slot * FETCH + i] = k128[k_base + min(first + AT(i, K8), last_key) * (K_STEP / 8u) + EIGHT(i, K8)];
}
void fetch_v(const uint slot, const uint first)
{
    [[unroll]] for (uint i = 0u; i < FETCH_V; i++)
        next[slot * FETCH + i] = v128[v_base + min(first + AT(i, V8), last_key) * (V_STEP / 8u) + EIGHT(i, V8)];
}
void stage_k(const uint slot, const uint first)
{
    meet();
    [[unroll]] for (uint i = 0u; i < FETCH_K; i++)
        if (SIZE * K8 % LANES == 0u || i * LANES + lane < SIZE * K8)
            tiles[mine + AT(i, K8) * K_PITCH + EIGHT(i, K8)] = next[slot * FETCH + i];
#ifdef FRESH
    if (newest_key - first < SIZE) {
        meet();
        if (lane < K8) tiles[mine + (newest_key - first) * K_PITCH + lane] = newest_k_at(lane);
    }
#endif
    meet();
}
void stage_v(const uint slot, const uint first)
{
    meet();
    [[unroll]] for (uint i = 0u; i < FETCH_V; i++)
        if (SIZE * V8 % LANES == 0u || i * LANES + lane < SIZE * V8)
            tiles[mine + AT(i, V8) * V_PITCH + EIGHT(i, V8)] = next[slot * FETCH + i];
#ifdef FRESH
    if (newest_key - first < SIZE) {
        meet();
        if (lane < V8) tiles[mine + (newest_key - first) * V_PITCH + lane] = newest_v[lane];
    }
#endif
    meet();
}

// SIZE x SIZE of a number each row, as an accumulator.
MATRIX_SUM across_rows(const float x)
{
    MATRIX_SUM m;
    meet();
    for (uint j = share; j < SIZE / 4u; j += PER_ROW) tiles[mine + row * (SIZE / 4u + 1u) + j] = floatBitsToUint(vec4(x));
    meet();
    coopMatLoad(m, tiles, mine, SIZE / 4u + 1u, ROW_MAJOR);
    return m;
}

// Scores of a step's keys, to where lanes find them. Its values are asked for in the meantime.
MATRIX_SUM score_tile(const uint j, const uint first)
{
    MATRIX_SUM even = MATRIX_SUM(0.0), odd = MATRIX_SUM(0.0);               // so that a product need not wait for the one before
    stage_k(WALK ? 0u : j, first + j * SIZE);
    if (WALK && j == 0u) fetch_k(0u, first + SIZE);
    else if (WALK) fetch_v(0u, first);
    else fetch_v(j, first + j * SIZE);
    [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++) {
        MATRIX_A q;
        MATRIX_B k;
        coopMatLoad(q, queries, (WALK ? gl_SubgroupID * SIZE * K_PITCH : 0u) + i * (SIZE / 8u), K_PITCH, ROW_MAJOR);
        coopMatLoad(k, tiles, mine + i * (SIZE / 8u), K_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        if (i % 2u == 0u) even = coopMatMulAdd(q, k, even);
        else odd = coopMatMulAdd(q, k, odd);
    }
    return even + odd;
}
void score_keys(const uint first)
{
    MATRIX_SUM a = score_tile(0u, first), b = score_tile(1u, first);
    meet();
    coopMatStore(a, tiles, mine, PITCH, ROW_MAJOR);
    coopMatStore(b, tiles, mine + SIZE / 4u, PITCH, ROW_MAJOR);
    meet();
}

// Of a step whose scores are there: weights in their place, and what these make of the chunk's results so far.
void weigh_keys(const row_place place, const uint first, const bool follows)
{
    vec4 score[FOURS];
    float best = high;
    bool plain = !has(MASK_BOOL | MASK_ADDS) && subgroupBallot(first + STEP > place.keys) == uvec4(0u);
    [[unroll]] for (uint j = 0u; j < FOURS; j++) {
        uint four = share * FOURS + j;
        score[j] = uintBitsToFloat(tiles[mine + row * PITCH + four]) * scale;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            if (!plain) score[j][i] = masked(score[j][i], place, first + 4u * four + i);
            if (score[j][i] > best) best = score[j][i];
        }
    }
    [[unroll]] for (uint d = 1u; d < PER_ROW; d *= 2u) best = max(best, subgroupShuffleXor(best, d));
    float shrink = exp2(high - best);
    if (follows && (EVEN == 1u || subgroupBallot(best > high) != uvec4(0u))) {
        MATRIX_SUM factor = across_rows(shrink);
        [[unroll]] for (uint i = 0u; i < WIDE; i++) os[i] = os[i] * factor;
    }
    high = best;
    meet();
    float sums[FOURS];
    [[unroll]] for (uint j = 0u; j < FOURS; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) score[j][i] = score[j][i] <= LOWEST ? 0.0 : exp2(score[j][i] - high);
        sums[j] = (score[j].x + score[j].y) + (score[j].z + score[j].w);
        uint at = mine + row * P_PITCH + (share * FOURS + j) / 2u;
        if (j % 2u == 1u) tiles[at] = uvec4(four_bits(score[j - 1u]), four_bits(score[j]));
        else if (FOURS == 1u && share % 2u == 0u) tiles[at].xy = four_bits(score[j]);
        else if (FOURS == 1u) tiles[at].zw = four_bits(score[j]);
    }
    // By halves, whoever has them: neighbours first.
    [[unroll]] for (uint d = 1u; d < FOURS; d *= 2u)
        [[unroll]] for (uint j = 0u; j + d < FOURS; j += 2u * d) sums[j] += sums[j + d];
    [[unroll]] for (uint d = 1u; d < PER_ROW; d *= 2u) sums[0] += subgroupShuffleXor(sums[0], d);
    precise float own = total * shrink;
    total = own + sums[0];
    meet();
}

// more: the next step's keys are asked for.
void add_tile(const uint j, const uint first, const bool more, const MATRIX_A p)
{
    stage_v(WALK ? 0u : j, first + j * SIZE);
    if (WALK && j == 0u) fetch_v(0u, first + SIZE);
    else if (more) fetch_k(WALK ? 0u : j, first + STEP + (WALK ? 0u : j) * SIZE);
    [[unroll]] for (uint i = 0u; i < WIDE; i++) {
        MATRIX_B v;
        coopMatLoad(v, tiles, mine + i * (SIZE / 8u), V_PITCH, ROW_MAJOR);
        os[i] = coopMatMulAdd(p, v, os[i]);
    }
}
void add_values(const uint first, const bool more)
{
    MATRIX_A a, b;
    coopMatLoad(a, tiles, mine, P_PITCH, ROW_MAJOR);
    coopMatLoad(b, tiles, mine + SIZE / 8u, P_PITCH, ROW_MAJOR);
    add_tile(0u, first, more, a);
    add_tile(1u, first, more, b);
}

// Chunks: where one begins, how many keys one that begins there has, how many there are of so many keys.
uint chunk_from(const uint n) { return n * CHUNK <= NEAR ? n * CHUNK : NEAR + (n - NEAR / CHUNK) * FAR_CHUNK; }
uint chunk_at(const uint first) { return first < NEAR ? CHUNK : FAR_CHUNK; }
uint chunks_of(const uint keys)
{
    return keys <= NEAR ? (keys + CHUNK - 1u) / CHUNK : NEAR / CHUNK + (keys - NEAR + FAR_CHUNK - 1u) / FAR_CHUNK;
}

// A chunk's results. Steps from `most` on no subgroup has; of the keys from `end` on none is asked for.
void attend_chunk(const row_place place, const uint first, const uint most, const uint end)
{
    high = LOWEST;
    total = 0.0;
    [[unroll]] for (uint i = 0u; i < WIDE; i++) os[i] = MATRIX_SUM(0.0);
    for (uint s = 0u; s < most; s += STEP) {
        bool more = WALK ? first + s + STEP < end : s + STEP < most;
        score_keys(first + s);
        weigh_keys(place, first + s, s > 0u);
        add_values(first + s, more);
    }
}

// Two results of a row as one: what each is multiplied by; `most` and `sum` become the two's.
vec2 join(inout float most, inout float sum, const float other, const float others)
{
    float best = max(most, other);
    vec2 f = vec2(exp2(most - best), exp2(other - best));
    precise float own = sum * f.x;
    most = best;
    sum = fma(others, f.y, own);
    return f;
}
vec4 joined(const vec4 x, const vec4 y, const vec2 f)
{
    precise vec4 own = x * f.x;
    return fma(y, vec4(f.y), own);
}

void store_four(const row_place place, const uint f, const vec4 x)
{
    o64[(place.o + f) / 4u] = four_bits(x);
}

// What a row begins with.
float first_high(const uint head) { return has(SINKS) ? sink_of(head) : LOWEST; }
float first_sum() { return has(SINKS) ? 1.0 : 0.0; }

#ifndef FRESH
void store_tile(const row_place place, const bool inside, const uint i, const MATRIX_SUM m, const float factor)
{
    meet();
    coopMatStore(m, tiles, mine, SIZE / 4u + 1u, ROW_MAJOR);
    meet();
    [[unroll]] for (uint j = share; j < SIZE / 4u; j += PER_ROW)
        if (inside) store_four(place, i * SIZE + 4u * j, uintBitsToFloat(tiles[mine + row * (SIZE / 4u + 1u) + j]) * factor);
}

// All chunks of the subgroup's rows, one after the other.
void walk(const row_place place, const bool inside, const uint end)
{
    MATRIX_SUM all[WIDE_MOST];
    float most = inside ? first_high(place.head) : LOWEST, sum = inside ? first_sum() : 0.0, factor;
    [[unroll]] for (uint i = 0u; i < WIDE; i++) all[i] = MATRIX_SUM(0.0);
    for (uint first = 0u, next_one; first < end; first = next_one) {
        next_one = first + chunk_at(first);
        attend_chunk(place, first, min(next_one, end) - first, end);
        vec2 f = join(most, sum, high, total);
        MATRIX_SUM x = across_rows(f.x), y = across_rows(f.y);
        [[unroll]] for (uint i = 0u; i < WIDE; i++)
            [[unroll]] for (uint e = 0u; e < x.length(); e++) {
                precise float own = all[i][e] * x[e];
                all[i][e] = fma(os[i][e], y[e], own);
            }
    }
    factor = sum == 0.0 ? 0.0 : 1.0 / sum;
#define STORE(i) if (i < WIDE) store_tile(place, inside, i, all[i], factor);
    STORE(0u) STORE(1u) STORE(2u) STORE(3u) STORE(4u) STORE(5u) STORE(6u) STORE(7u)
}
#endif

uint parts() { return batches * query_heads * query_count * splits * SUBGROUPS; }

// The workgroup's chunks of `rows` rows, AT_ONCE tiles after AT_ONCE: added up, or where other workgroups see them, row after
// row from `at` on. A macro: as a function it takes NVIDIA's driver (580.159) 253 registers instead of 225 (an H200, a step of
// Qwen3-0.6B 905 and 971 tokens/s).
#define JOIN(from) \
    meet(); \
    [[unroll]] for (uint i = 0u; i < AT_ONCE; i++) \
        if (from + i < WIDE) coopMatStore(os[from + i], tiles, mine + i * PATCH, SIZE / 4u, ROW_MAJOR); \
    barrier(); \
    fours = min(AT_ONCE, WIDE - from) * (SIZE / 4u); \
    for (uint u = gl_SubgroupID * LANES + lane; u < count * fours; u += THREADS) { \
        uint r = u / fours, f = u % fours, spot = f / (SIZE / 4u) * PATCH + f % (SIZE / 4u); \
        if (PARTS) { \
            uint s = r % SUBGROUPS; \
            r /= SUBGROUPS; \
            part_four[((at + r) * splits * SUBGROUPS + split * SUBGROUPS + s) * (VALUE_WIDTH / 4u) + from * (SIZE / 4u) + f] = \
                uintBitsToFloat(tiles[s * ROOM + r * (SIZE / 4u) + spot]); \
        } else { \
            row_place place = place_of(batch, head, first_row + r); \
            float most = first_high(place.head), sum = first_sum(); \
            vec4 x = vec4(0.0); \
            for (uint s = 0u; s < SUBGROUPS; s++) { \
                vec2 f2 = join(most, sum, figures[s * SIZE + r].x, figures[s * SIZE + r].y); \
                x = joined(x, uintBitsToFloat(tiles[s * ROOM + r * (SIZE / 4u) + spot]), f2); \
            } \
            store_four(place, (from * (SIZE / 4u) + f) * 4u, x * (sum == 0.0 ? 0.0 : 1.0 / sum)); \
        } \
    } \
    if (from + AT_ONCE < WIDE) barrier();
void join_subgroups(const uint batch, const uint head, const uint first_row, const uint rows, const uint at, const uint split)
{
    const uint count = PARTS ? rows * SUBGROUPS : rows;
    uint fours;
    if (share == 0u) figures[gl_SubgroupID * SIZE + row] = vec2(high, total);
    JOIN(0u)
    if (AT_ONCE < WIDE) { JOIN(AT_ONCE) }
    for (uint u = gl_SubgroupID * LANES + lane; PARTS && u < rows * SUBGROUPS; u += THREADS)
        part_two[parts() * (VALUE_WIDTH / 2u) + (at + u / SUBGROUPS) * splits * SUBGROUPS + split * SUBGROUPS + u % SUBGROUPS] =
            figures[u % SUBGROUPS * SIZE + u / SUBGROUPS];
}

// All chunks of `rows` rows, by the last workgroup; a thread asks for BATCH of them at once.
void join_parts(const uint batch, const uint head, const uint first_row, const uint rows, const uint at, const uint chunks)
{
    const uint BATCH = 8u, FOURS_OF = VALUE_WIDTH / 4u, thread = gl_SubgroupID * LANES + lane;
    for (uint u = thread; u < rows * FOURS_OF; u += THREADS) {
        uint r = u / FOURS_OF, f = u % FOURS_OF, from = (at + r) * splits * SUBGROUPS;
        row_place place = place_of(batch, head, first_row + r);
        float most = first_high(place.head), sum = first_sum();
        vec4 x = vec4(0.0);
        for (uint c = 0u; c < chunks; c += BATCH) {
            vec4 y[BATCH];
            vec2 own[BATCH];
            [[unroll]] for (uint i = 0u; i < BATCH; i++) {
                uint n = from + min(c + i, chunks - 1u);
                y[i] = part_four[n * FOURS_OF + f];
                own[i] = part_two[parts() * (VALUE_WIDTH / 2u) + n];
            }
            [[unroll]] for (uint i = 0u; i < BATCH; i++)
                if (c + i < chunks) x = joined(x, y[i], join(most, sum, own[i].x, own[i].y));
        }
        store_four(place, 4u * f, x * (sum == 0.0 ? 0.0 : 1.0 / sum));
    }
}

// counter: of the parts of these rows.
void attend(const uint batch, const uint kv, const uint head, const uint first_row, const uint split, const uint counter)
{
    const uint rows = query_count * block_heads(), thread = gl_SubgroupID * LANES + lane;
    uint begin = WALK ? 0u : chunk_from(split * SUBGROUPS), first = begin + (WALK ? 0u : gl_SubgroupID * chunk_at(begin)), end;
#ifdef FRESH
    uvec4 late = uvec4(0u);
    if (has(LATE)) late = uvec4(mask32[mask_at], mask32[mask_at + 1u], mask32[mask_at + 2u], mask32[mask_at + 3u]);
    uint k_row = k_at + kv * k_stride[0] + late.x, v_row = v_at + kv * v_stride[0] + late.y;
    newest_key = keys_counted = key_count + late.z;
    end = newest_key + 1u;
#else
    uint k_row = k_row_of(batch, kv), v_row = v_row_of(batch, kv);
    keys_counted = key_count;
    if (has(LATE)) {
        k_row += mask32[mask_at];
        v_row += mask32[mask_at + 1u];
        keys_counted += mask32[mask_at + 2u];
    }
    end = key_end(first_row, min(first_row + BLOCK, rows) - 1u);
#endif
    last_key = max(keys_counted, 1u) - 1u;
    k_base = k_row / 8u;
    v_base = v_row / 8u;
    if (begin < end) {
        fetch_k(0u, first);
        if (!WALK) fetch_k(1u, first + SIZE);
    }
#ifdef FRESH
    bool newest = (chunks_of(end) - 1u) / SUBGROUPS == split, keep = newest && first_row == 0u;
    read_weights(min(gl_SubgroupID, ROWS), lane);
    find_angles(offset + int(late.w), lane);
    prepare_rows(kv, head, first_row, rows, k_row + newest_key * K_STEP, keep, lane);
    if (newest && thread < V8) read_newest_v(new_v_at + kv * new_v_stride, v_row + newest_key * V_STEP, keep, thread);
#else
    for (uint g = thread; g < BLOCK * K8; g += THREADS) {
        uint r = g / K8, n = first_row + r;
        queries[r * K_PITCH + g % K8] = n < rows ? q128[place_of(batch, head, n).q / 8u + g % K8] : uvec4(0u);
    }
#endif
    barrier();
    uint own_row = (WALK ? gl_SubgroupID * SIZE : 0u) + row;
    bool inside = row < ROWS && first_row + own_row < rows;
    row_place place = place_of(batch, head, inside ? first_row + own_row : 0u);
    if (!inside) place.keys = 0u;
#ifndef FRESH
    if (WALK) { walk(place, inside, end); return; }
#endif
    const uint count = min(BLOCK, rows - first_row), at = (batch * query_heads + head) * query_count + first_row;
    attend_chunk(place, first, begin < end ? min(chunk_at(begin), end - begin) : 0u, end);
    join_subgroups(batch, head, first_row, count, at, split);
    if (!PARTS) return;
    memoryBarrierBuffer();
    barrier();
    if (thread == 0u) {
        bool last = atomicAdd(finished[counter], 1u) == splits - 1u;
        if (last) finished[counter] = 0u;                // as it was found
        figures[0].x = last ? 1.0 : 0.0;                 // they were kept; no variable of its own: see attention_parts.glsl
    }
    barrier();
    if (figures[0].x == 0.0) return;
    memoryBarrierBuffer();
    join_parts(batch, head, first_row, count, at, chunks_of(end));
}

void main()
{
    lane = gl_SubgroupInvocationID;
    row = lane / PER_ROW;
    share = lane % PER_ROW;
    mine = gl_SubgroupID * ROOM;
#ifdef FRESH
    uint kv = gl_WorkGroupID.z, block = gl_WorkGroupID.y;
    attend(0u, kv, kv * group_size, block * ROWS, gl_WorkGroupID.x, kv * gl_NumWorkGroups.y + block);
#else
    uint group = group_index(), blocks = query_heads / block_heads(), row_blocks = (query_count * block_heads() + BLOCK - 1u) / BLOCK;
    if (group >= splits * row_blocks * blocks * batches) return;
    uint counter = group / splits, block = counter / row_blocks, head = block % blocks * block_heads();
    uint own = row_blocks - 1u - counter % row_blocks;                      // those with the most keys first
    attend(block / blocks, head / group_size, head, own * BLOCK, group % splits, counter);
#endif
}
