#version 460
#extension GL_GOOGLE_include_directive : require
// The gradient of attention in half types by cooperative matrices of a subgroup: modes and names as in attention_vjp.comp. A
// subgroup has SIZE rows of its own side in registers, a workgroup four of them, which share tiles of OTHERS rows of the
// other side in shared memory; the next tile is on its way in registers. Scores and sums are float32; weights and slopes are
// rounded to the half type, as the other factors of their products are. BF: bfloat16.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF
#extension GL_EXT_bfloat16 : require
#define T bfloat16_t
#else
#define T float16_t
#endif
layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint WIDTH = 128;        // of queries and keys, a multiple of SIZE: the next one to theirs
layout(constant_id = 3) const uint VALUE_WIDTH = 128;
layout(constant_id = 4) const uint OTHERS = 32;
layout(constant_id = 5) const uint SIZE = 16;          // of a cooperative matrix: SIZE x SIZE x SIZE
layout(constant_id = 6) const uint LANES = 32;         // of a subgroup, at least SIZE
#include "floats.glsl"
#ifdef BF
const uint DTYPE = BF16;
#else
const uint DTYPE = F16;
#endif
const uint SUBGROUPS = 4u, THREADS = SUBGROUPS * LANES, TILE = SUBGROUPS * SIZE, PARTS = LANES / SIZE;   // threads a row
#include "attention_vjp.glsl"
#define MATRIX_A coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA>
#define MATRIX_B coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB>
#define MATRIX_SUM coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

// In groups of eight. A tile of the other side, first the features for scores; before them the own side's, one after the other.
const uint X_PITCH = WIDTH / 8u + 1u, V_PITCH = VALUE_WIDTH / 8u + 1u, V_TILE = OTHERS * X_PITCH;
const uint BOTH = OTHERS * (X_PITCH + V_PITCH), OWN = TILE * (X_PITCH > V_PITCH ? X_PITCH : V_PITCH);
// In groups of four: a subgroup's scores, later weights, and its products of cotangents and values, later slopes.
const uint PITCH = OTHERS / 4u + 1u, P_PITCH = OTHERS / 8u + 1u, PATCH = SIZE * PITCH, FOURS = OTHERS / 4u / PARTS;
const uint FETCH_X = (OTHERS * WIDTH / 8u + THREADS - 1u) / THREADS, FETCH_V = (OTHERS * VALUE_WIDTH / 8u + THREADS - 1u) / THREADS;
shared uvec4 tiles[BOTH > OWN ? BOTH : OWN];
shared vec4 patches[SUBGROUPS * 2u * PATCH];
shared vec2 other_stats[OTHERS];                        // KEYS: of the tile's queries

uvec4 next_x[FETCH_X], next_v[MODE == ROWS ? 1u : FETCH_V];
vec2 next_stats;
MATRIX_A own_x[WIDTH / SIZE], own_v[MODE == ROWS ? 1u : VALUE_WIDTH / SIZE];
MATRIX_SUM first[MODE == ROWS ? 1u : WIDTH / SIZE], second[MODE == KEYS ? VALUE_WIDTH / SIZE : 1u];
uint row, part, mine;                                   // this thread's row of its subgroup, its part of it; the patch

// Eight features of a row of keys, or of queries: those for scores (q, k) or those for values (g, v); rows outside are zeros.
uvec4 eight_of(const bool keys, const bool values, const uint head, const uint n, const uint f)
{
    if (n >= (keys ? key_count : query_count) || f >= (values ? value_width : key_width)) return uvec4(0u);
    if (keys && values) return v128[(v_at + batch * v_stride[0] + head / group * v_stride[1] + n * v_stride[2] + f) / 8u];
    if (keys) return k128[(k_at + batch * k_stride[0] + head / group * k_stride[1] + n * k_stride[2] + f) / 8u];
    if (values) return g128[(g_at + ((batch * heads + head) * query_count + n) * value_width + f) / 8u];
    return q128[(q_at + batch * q_stride[0] + head * q_stride[1] + n * q_stride[2] + f) / 8u];
}

vec2 stats_of(const uint head, const uint query)
{
    uint at = stats_at + 2u * ((batch * heads + head) * query_count + min(query, query_count - 1u));
    return vec2(uintBitsToFloat(stats32[at]), uintBitsToFloat(stats32[at + 1u]));
}

void fetch(const uint head, const uint from)
{
    [[unroll]] for (uint i = 0u; i < FETCH_X; i++) {
        uint g = me + i * THREADS;
        next_x[i] = eight_of(!OWN_KEYS, false, head, from + g / (WIDTH / 8u), g % (WIDTH / 8u) * 8u);
    }
    [[unroll]] for (uint i = 0u; i < FETCH_V && MODE != ROWS; i++) {
        uint g = me + i * THREADS;
        next_v[i] = eight_of(!OWN_KEYS, true, head, from + g / (VALUE_WIDTH / 8u), g % (VALUE_WIDTH / 8u) * 8u);
    }
    if (MODE == KEYS) next_stats = stats_of(head, from + me % OTHERS);
}

void stage()
{
    [[unroll]] for (uint i = 0u; i < FETCH_X; i++) {
        uint g = me + i * THREADS;
        if (g < OTHERS * WIDTH / 8u) tiles[g / (WIDTH / 8u) * X_PITCH + g % (WIDTH / 8u)] = next_x[i];
    }
    [[unroll]] for (uint i = 0u; i < FETCH_V && MODE != ROWS; i++) {
        uint g = me + i * THREADS;
        if (g < OTHERS * VALUE_WIDTH / 8u) tiles[V_TILE + g / (VALUE_WIDTH / 8u) * V_PITCH + g % (VALUE_WIDTH / 8u)] = next_v[i];
    }
    if (MODE == KEYS) for (uint i = me; i < OTHERS; i += THREADS) other_stats[i] = next_stats;
}

// The workgroup's own rows, through the tiles.
void stage_own(const bool values, const uint from)
{
    const uint eights = (values ? VALUE_WIDTH : WIDTH) / 8u, pitch = values ? V_PITCH : X_PITCH;
    barrier();
    for (uint g = me; g < TILE * eights; g += THREADS)
        tiles[g / eights * pitch + g % eights] = eight_of(OWN_KEYS, values, OWN_KEYS ? own_head * group : own_head, from + g / eights, g % eights * 8u);
    barrier();
}

void load_own(const uint from)
{
    stage_own(false, from);
    [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++)
        coopMatLoad(own_x[i], tiles, gl_SubgroupID * SIZE * X_PITCH + i * (SIZE / 8u), X_PITCH, ROW_MAJOR);
    if (MODE == ROWS) return;
    stage_own(true, from);
    [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE; i++)
        coopMatLoad(own_v[i], tiles, gl_SubgroupID * SIZE * V_PITCH + i * (SIZE / 8u), V_PITCH, ROW_MAJOR);
}

// Products for scores of the tile, and of cotangents and values, into the patches.
void multiply()
{
    [[unroll]] for (uint j = 0u; j < OTHERS / SIZE; j++) {
        MATRIX_SUM s = MATRIX_SUM(0.0), d = MATRIX_SUM(0.0);
        MATRIX_B b;
        [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++) {
            coopMatLoad(b, tiles, j * SIZE * X_PITCH + i * (SIZE / 8u), X_PITCH, COLUMN_MAJOR);
            s = coopMatMulAdd(own_x[i], b, s);
        }
        coopMatStore(s, patches, mine + j * (SIZE / 4u), PITCH, ROW_MAJOR);
        if (MODE == ROWS) continue;
        [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE; i++) {
            coopMatLoad(b, tiles, V_TILE + j * SIZE * V_PITCH + i * (SIZE / 8u), V_PITCH, COLUMN_MAJOR);
            d = coopMatMulAdd(own_v[i], b, d);
        }
        coopMatStore(d, patches, mine + PATCH + j * (SIZE / 4u), PITCH, ROW_MAJOR);
    }
    subgroupBarrier();
}

#include "two_bits.glsl"

vec4 bits_of(const vec4 a, const vec4 b) { return uintBitsToFloat(uvec4(two_bits(a.xy), two_bits(a.zw), two_bits(b.xy), two_bits(b.zw))); }

// Weights and slopes in the place of what they come of.
void weigh(const uint head, const uint own, const vec2 own_stats, const uint other)
{
    vec4 p[FOURS], slope[FOURS];
    [[unroll]] for (uint j = 0u; j < FOURS; j++) {
        uint four = part * FOURS + j, at = mine + row * PITCH + four;
        p[j] = patches[at];
        slope[j] = patches[PATCH + at];
        [[unroll]] for (uint c = 0u; c < 4u; c++) {
            uint its = other + 4u * four + c;
            vec2 stats = OWN_KEYS ? other_stats[4u * four + c] : own_stats;
            p[j][c] = weight_of(score_of(p[j][c], head, OWN_KEYS ? its : own, OWN_KEYS ? own : its), stats.x);
            slope[j][c] = slope_of(p[j][c], slope[j][c], stats.y);
        }
    }
    subgroupBarrier();
    [[unroll]] for (uint j = 0u; j < FOURS; j += 2u) {
        uint at = mine + row * P_PITCH + (part * FOURS + j) / 2u;
        if (MODE == KEYS) patches[at] = bits_of(p[j], p[j + 1u]);
        patches[PATCH + at] = bits_of(slope[j], slope[j + 1u]);
    }
    subgroupBarrier();
}

void gather()
{
    [[unroll]] for (uint j = 0u; j < OTHERS / SIZE; j++) {
        MATRIX_A a;
        MATRIX_B b;
        coopMatLoad(a, patches, mine + PATCH + j * (SIZE / 8u), P_PITCH, ROW_MAJOR);
        [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++) {
            coopMatLoad(b, tiles, j * SIZE * X_PITCH + i * (SIZE / 8u), X_PITCH, ROW_MAJOR);
            first[i] = coopMatMulAdd(a, b, first[i]);
        }
        if (MODE != KEYS) continue;
        coopMatLoad(a, patches, mine + j * (SIZE / 8u), P_PITCH, ROW_MAJOR);
        [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE; i++) {
            coopMatLoad(b, tiles, V_TILE + j * SIZE * V_PITCH + i * (SIZE / 8u), V_PITCH, ROW_MAJOR);
            second[i] = coopMatMulAdd(a, b, second[i]);
        }
    }
}

// All heads that read these keys, or the one of these queries, tile by tile of the other side's rows from `begin` on.
void gradients(const uint from, const uint begin, const uint end)
{
    uint own = from + gl_SubgroupID * SIZE + row, head = OWN_KEYS ? own_head * group : own_head, last = OWN_KEYS ? head + group : head + 1u;
    vec2 own_stats = OWN_KEYS ? vec2(0.0) : stats_of(head, own);
    [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++) first[i] = MATRIX_SUM(0.0);
    [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE && MODE == KEYS; i++) second[i] = MATRIX_SUM(0.0);
    if (begin >= end) return;
    for (uint other = begin; head < last; ) {
        barrier();
        stage();
        barrier();
        uint now = other, its_head = head;
        other += OTHERS;
        if (other >= end) { other = begin; head++; }
        if (head < last) fetch(head, other);
        multiply();
        weigh(its_head, own, own_stats, now);
        gather();
    }
}

void put(const bool values, const uint i, const uint own)
{
    const uint width = values ? value_width : key_width, count = OWN_KEYS ? key_count : query_count;
    uint at = ((batch * (OWN_KEYS ? heads / group : heads) + own_head) * count + own) * width;
    subgroupBarrier();
    for (uint j = part; j < SIZE / 4u; j += PARTS) {
        vec4 x = patches[mine + row * PITCH + j];
        uint f = i * SIZE + 4u * j;
        if (own >= count || f >= width) continue;
        if (values) second64[(second_at + at + f) / 4u] = uvec2(two_bits(x.xy), two_bits(x.zw));
        else first64[(first_at + at + f) / 4u] = uvec2(two_bits(x.xy), two_bits(x.zw));
    }
    subgroupBarrier();
}

void put_gradients(const uint own)
{
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++) {
        coopMatStore(first[i], patches, mine, PITCH, ROW_MAJOR);
        put(false, i, own);
    }
    [[unroll]] for (uint i = 0u; i < VALUE_WIDTH / SIZE && MODE == KEYS; i++) {
        coopMatStore(second[i], patches, mine, PITCH, ROW_MAJOR);
        put(true, i, own);
    }
}

vec4 four_of(const uint a, const uint b)
{
#ifdef BF
    return uintBitsToFloat(uvec4(a << 16, a & 0xffff0000u, b << 16, b & 0xffff0000u));
#else
    return vec4(unpackHalf2x16(a), unpackHalf2x16(b));
#endif
}

// PARTS threads have a query.
void rows(const uint own, const uint end)
{
    float most = UNSEEN, all = 0.0, d = 0.0;
    for (uint other = 0u; other < end; other += OTHERS) {
        barrier();
        stage();
        barrier();
        if (other + OTHERS < end) fetch(own_head, other + OTHERS);
        multiply();
        [[unroll]] for (uint j = 0u; j < FOURS; j++) {
            uint four = part * FOURS + j;
            vec4 s = patches[mine + row * PITCH + four];
            [[unroll]] for (uint c = 0u; c < 4u; c++) add_score(most, all, score_of(s[c], own_head, own, other + 4u * four + c));
        }
    }
    for (uint f = 8u * part; f < value_width && own < query_count && (flags & DOTS) != 0u; f += 8u * PARTS) {
        uvec4 g = eight_of(false, true, own_head, own, f);
        uvec4 o = v128[(v_at + batch * v_stride[0] + own_head * v_stride[1] + own * v_stride[2] + f) / 8u];
        d += dot(four_of(g.x, g.y), four_of(o.x, o.y)) + dot(four_of(g.z, g.w), four_of(o.z, o.w));
    }
    [[unroll]] for (uint n = 1u; n < PARTS; n *= 2u) {
        float its_most = subgroupShuffleXor(most, n), its_all = subgroupShuffleXor(all, n);
        add_scores(most, all, its_most, its_all);
        d += subgroupShuffleXor(d, n);
    }
    if (own < query_count && part == 0u) put_row(own, most, all, d);
}

void main()
{
    uint count = MODE == KEYS ? key_count : query_count, owners = MODE == KEYS ? heads / group : heads;
    uint groups = (count + TILE - 1u) / TILE, at = group_index(), from = at % groups * TILE;
    uint begin = MODE == KEYS ? queries_begin(from) / OTHERS * OTHERS : 0u, end = MODE == KEYS ? query_count : keys_end(from);
    me = gl_LocalInvocationID.x;
    own_head = at / groups % owners;
    batch = at / groups / owners;
    row = gl_SubgroupInvocationID / PARTS;
    part = gl_SubgroupInvocationID % PARTS;
    mine = gl_SubgroupID * 2u * PATCH;
    if (batch >= batches) return;
    if (MODE == ROWS && (flags & SUMS) == 0u) end = 0u;
    if (begin < end) fetch(OWN_KEYS ? own_head * group : own_head, begin);
    load_own(from);
    uint own = from + gl_SubgroupID * SIZE + row;
    if (MODE == ROWS) rows(own, end);
    else {
        gradients(from, begin, end);
        put_gradients(own);
    }
}
