#version 460
#extension GL_GOOGLE_include_directive : require
// Products of few rows of a half type with rows of b, by cooperative matrices: a workgroup has SIZE columns of the result,
// its subgroups span K, SPAN of it each, and stage what they need of both for themselves, STRETCH elements at a time, the next two
// on their way in registers. A part's sum begins at 0 and goes along K; parts are added in order: the bits that
// matmul_coopmat.comp gives by parts, whatever number of rows. BF: bfloat16, else float16.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF
#extension GL_EXT_bfloat16 : require
#define T bfloat16_t
#else
#define T float16_t
#endif
#include "matmul.glsl"
#include "words.glsl"
layout(constant_id = 3) const uint SUBGROUPS = 4;
layout(constant_id = 4) const uint SIZE = 16;          // of a cooperative matrix: SIZE x SIZE x SIZE
layout(constant_id = 5) const uint LANES = 32;         // of a subgroup
layout(constant_id = 6) const uint ROWS = 16;          // of a that a workgroup has at most; where more than SIZE, it has several matrices of the result
layout(constant_id = 7) const uint SPAN = 512;         // 0: `part` says it
layout(constant_id = 8) const uint STRETCH = 128;        // an even number of them makes a part
layout(constant_id = 9) const uint LOOSE = 0;          // 1: rows begin anywhere, and are as long as they are; 0: in whole eights
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
ACCESS(d)

const uint EIGHTS = STRETCH / 8u, PITCH = EIGHTS + 1u, THREADS = SUBGROUPS * LANES;
const uint MATRICES = (ROWS + SIZE - 1u) / SIZE, AREA = MATRICES * SIZE * SIZE;
const uint FETCH_A = (ROWS * EIGHTS + LANES - 1u) / LANES, FETCH_B = (SIZE * EIGHTS + LANES - 1u) / LANES;
const uint EACH = (AREA + THREADS - 1u) / THREADS;     // elements of the result that a thread adds up
// Of each subgroup: ROWS of a, SIZE rows of b. Where ROWS are fewer than matrices have, they have some of b's for the others, whose
// results are not stored.
const uint OWN = (ROWS + SIZE) * PITCH;
shared uvec4 stage[SUBGROUPS * OWN];
shared float sums[2u * SUBGROUPS * AREA];
// LOOSE: and `more` the 16 bytes that their last elements are in; they are put together when they are staged, so that nothing
// waits for them before.
uvec4 next_a[2u * FETCH_A], next_b[2u * FETCH_B], more_a[LOOSE != 0u ? 2u * FETCH_A : 1u], more_b[LOOSE != 0u ? 2u * FETCH_B : 1u];

// Where the row begins that group g of a, or of b, is of; rows that are not there repeat the last.
uint begin_a(const Place p, const uint row, const uint g) { return p.a + min(row + g / EIGHTS % ROWS, M - 1u) * a_row; }
uint begin_b(const Place p, const uint column, const uint g) { return p.b + min(column + g / EIGHTS % SIZE, N - 1u) * b_col; }

// Zeros behind K.
void fetch(const uint set, const Place p, const uint row, const uint column, const uint k, const uint lane)
{
    const uint last = LOOSE != 0u ? K - 1u & ~7u : K - 8u;             // where the last eight begins
    [[unroll]] for (uint i = 0u; i < FETCH_A; i++) {
        uint g = i * LANES + lane, begin = begin_a(p, row, g), l = k + g % EIGHTS * 8u;
        uvec4 q = a128[(begin + min(l, last)) / 8u];
        next_a[set * FETCH_A + i] = LOOSE != 0u || l < K ? q : uvec4(0u);
        if (LOOSE != 0u) more_a[set * FETCH_A + i] = a128[(begin + min(l + 7u, K - 1u)) / 8u];
    }
    [[unroll]] for (uint i = 0u; i < FETCH_B; i++) {
        uint g = i * LANES + lane, begin = begin_b(p, column, g), l = k + g % EIGHTS * 8u;
        uvec4 q = b128[(begin + min(l, last)) / 8u];
        next_b[set * FETCH_B + i] = LOOSE != 0u || l < K ? q : uvec4(0u);
        if (LOOSE != 0u) more_b[set * FETCH_B + i] = b128[(begin + min(l + 7u, K - 1u)) / 8u];
    }
}

// The eight from element l of K on, whose row begins at s.
uvec4 eight_of(const uvec4 a, const uvec4 b, const uint s, const uint l)
{
    uvec4 w = halves_from(s & 7u, a, b), pair = uvec4(l, l + 2u, l + 4u, l + 6u);
    return mix(uvec4(0u), mix(w & 0xffffu, w, lessThan(pair + 1u, uvec4(K))), lessThan(pair, uvec4(K)));
}
void put(const uint set, const uint at, const Place p, const uint row, const uint column, const uint k, const uint lane)
{
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < FETCH_A; i++) {
        uint g = i * LANES + lane;
        uvec4 w = next_a[set * FETCH_A + i];
        if (LOOSE != 0u) w = eight_of(w, more_a[set * FETCH_A + i], begin_a(p, row, g), k + g % EIGHTS * 8u);
        if (g < ROWS * EIGHTS) stage[at + g / EIGHTS * PITCH + g % EIGHTS] = w;
    }
    [[unroll]] for (uint i = 0u; i < FETCH_B; i++) {
        uint g = i * LANES + lane;
        uvec4 w = next_b[set * FETCH_B + i];
        if (LOOSE != 0u) w = eight_of(w, more_b[set * FETCH_B + i], begin_b(p, column, g), k + g % EIGHTS * 8u);
        if (g < SIZE * EIGHTS) stage[at + (ROWS + g / EIGHTS) * PITCH + g % EIGHTS] = w;
    }
    subgroupBarrier();
}

void main()
{
    uint warp = gl_SubgroupID, lane = gl_SubgroupInvocationID, thread = warp * LANES + lane, to = 0u;
    uint column = gl_WorkGroupID.x * SIZE, row = gl_WorkGroupID.y * ROWS, at = warp * OWN;
    uint span = SPAN != 0u ? SPAN : part, parts = (K + span - 1u) / span, goes = (parts + SUBGROUPS - 1u) / SUBGROUPS;
    Place p = place(gl_WorkGroupID.z);
    float total[EACH];
    [[unroll]] for (uint e = 0u; e < EACH; e++) total[e] = 0.0;
    fetch(0u, p, row, column, warp * span, lane);
    fetch(1u, p, row, column, warp * span + STRETCH, lane);
    for (uint go = 0u; go < goes; go++) {
        coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator> sum[MATRICES];
        [[unroll]] for (uint i = 0u; i < MATRICES; i++)
            sum[i] = coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>(0.0);
        uint first = (go * SUBGROUPS + warp) * span;
        for (uint c = 0u; c < span; c += 2u * STRETCH)
            [[unroll]] for (uint set = 0u; set < 2u; set++) {
                uint k = c + (2u + set) * STRETCH;       // of the part, the next one's where that lies behind it
                put(set, at, p, row, column, first + c + set * STRETCH, lane);
                fetch(set, p, row, column, first + (k < span ? k : k + (SUBGROUPS - 1u) * span), lane);
                [[unroll]] for (uint l = 0u; l < EIGHTS; l += SIZE / 8u) {
                    coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA> x;
                    coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB> y;
                    coopMatLoad(y, stage, at + ROWS * PITCH + l, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint i = 0u; i < MATRICES; i++) {
                        coopMatLoad(x, stage, at + i * SIZE * PITCH + l, PITCH, gl_CooperativeMatrixLayoutRowMajor);
                        sum[i] = coopMatMulAdd(x, y, sum[i]);
                    }
                }
            }
        [[unroll]] for (uint i = 0u; i < MATRICES; i++)
            coopMatStore(sum[i], sums, (to * SUBGROUPS + warp) * AREA + i * SIZE * SIZE, SIZE,
                         gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        [[unroll]] for (uint e = 0u; e < EACH; e++)
            for (uint i = 0u; i < min(SUBGROUPS, parts - go * SUBGROUPS); i++)
                total[e] += sums[(to * SUBGROUPS + i) * AREA + min(thread + e * THREADS, AREA - 1u)];
        to ^= 1u;
    }
    [[unroll]] for (uint e = 0u; e < EACH; e++) {
        uint i = thread + e * THREADS, m = i / SIZE, n = column + i % SIZE;
        if (m < ROWS && row + m < M && n < N) storef_d(p.d + (row + m) * out_row + n * out_col, TO, total[e]);
    }
}
