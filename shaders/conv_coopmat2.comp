#version 460
#extension GL_GOOGLE_include_directive : require
// Convolutions of half types in steps of 1 by cooperative matrices of a whole workgroup (VK_NV_cooperative_matrix2), sums in
// float32, nothing unfolded: where every tap of every position lies inside the input (the host writes a copy with the padding),
// the rows that the positions of an image meet under one tap are rows of the input that follow each other, if those of taps
// beyond the edge are computed, too, which nobody stores. So tiles of the first matrix are what matmul_coopmat2.comp has, in
// two dimensions: layouts of four made all of it twelve times slower on an H100 (580.159). The last tiles begin earlier; what
// two of them have in common, both compute and store alike. Here M is the rows of an image, invalid ones included.
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF
#extension GL_EXT_bfloat16 : require
#define T bfloat16_t
#else
#define T float16_t
#endif
#define CONV
#include "matmul.glsl"
#include "nearest.glsl"
layout(constant_id = 3) const uint BM = 128;
layout(constant_id = 4) const uint BN = 128;
layout(constant_id = 5) const uint BK = 64;            // divides C, the channels
layout(constant_id = 6) const uint GAPS = 0;           // 0: all rows are positions of the result, which follow each other
layout(constant_id = 7) const uint STEPS = 0;          // C / BK, to have all steps written out; 0: loops
layout(constant_id = 8) const uint TAPS = 1;           // with STEPS: all
layout(std430, set = 0, binding = 0) writeonly buffer d_elements { T d[]; };
layout(std430, set = 0, binding = 1) readonly buffer a_elements { T a[]; };
layout(std430, set = 0, binding = 2) readonly buffer b_elements { T b[]; };
#define SUMS coopmat<float, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>
#define RESULT coopmat<T, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>

shared uint places[BM];                                // of a tile's rows in the result; none: NOWHERE
const uint NOWHERE = 0xffffffffu;

#ifdef BF
float nearest(const in uint row, const in uint column, const in float x) { return nearest_bf16(x); }
#endif

float put(const in uint row, const in uint column, const in float x, const in uint first)
{
    uint place = places[row];
#ifdef BF
    if (place != NOWHERE) d[place + first + column] = T(nearest_bf16(x));
#else
    if (place != NOWHERE) d[place + first + column] = T(x);
#endif
    return x;
}

Reach tap_reach(const uint t)
{
    uint y = t / taps[2];
    return reach(Tap(uvec3(y / taps[1], y % taps[1], t % taps[2]), 0u));
}

#define MULTIPLY(c) { \
    coopmat<T, gl_ScopeWorkgroup, BM, BK, gl_MatrixUseA> x; \
    coopmat<T, gl_ScopeWorkgroup, BK, BN, gl_MatrixUseB> w; \
    coopMatLoadTensorNV(x, a, (first_a + r.a) & ~7u, sliceTensorLayoutNV(layout_a, row, BM, c, BK)); \
    coopMatLoadTensorNV(w, b, (first_b + r.b) & ~7u, sliceTensorLayoutNV(layout_b, column, BN, c, BK), swap); \
    sum = coopMatMulAdd(x, w, sum); }

void main()
{
    uvec2 at = tile();
    Place p = place(gl_WorkGroupID.z);
    uint tiles = (M - 1u) / BM + 1u, image = at.x / tiles, row = min(at.x % tiles * BM, M - BM), column = min(at.y * BN, N - BN) & ~7u;
    uint first_a = p.a + image * (in_size[0] * in_size[1] * in_size[2] * channels), first_b = p.b;
    uint first_d = p.d + image * out_batch;
    if (GAPS != 0u) {
        for (uint i = gl_LocalInvocationID.x; i < BM; i += gl_WorkGroupSize.x) {
            uint m = row + i, x = m % in_size[2], y = m / in_size[2] % in_size[1], z = m / in_size[2] / in_size[1];
            bool there = x < out_size[2] && y < out_size[1];
            places[i] = there ? first_d + z * out_step[0] + y * out_step[1] + x * out_step[2] : NOWHERE;
        }
        barrier();
    }
    tensorLayoutNV<2> layout_a = createTensorLayoutNV(2), layout_b = createTensorLayoutNV(2), layout_d = createTensorLayoutNV(2);
    tensorViewNV<2, false, 1, 0> swap = createTensorViewNV(2, false, 1, 0);
    layout_a = setTensorLayoutDimensionNV(layout_a, M, C);
    layout_a = setTensorLayoutStrideNV(layout_a, channels & ~7u, 1u);
    layout_b = setTensorLayoutDimensionNV(layout_b, N, C);
    layout_b = setTensorLayoutStrideNV(layout_b, b_row & ~7u, 1u);
    SUMS sum = SUMS(0.0);
    if (STEPS != 0u) {
        [[unroll]] for (uint t = 0u; t < TAPS; t++) {
            Reach r = tap_reach(t);
            [[unroll]] for (uint i = 0u; i < STEPS; i++) MULTIPLY(i * BK)
        }
    } else {                                           // nested: one loop that selects taps takes 1.1 to 5.5 times as long
        uint count = C / BK, all = taps[0] * taps[1] * taps[2];
        for (uint t = 0u; t < all; t++) {
            Reach r = tap_reach(t);
            uint c = 0u;
            for (uint i = 0u; i < count; i++, c += BK) MULTIPLY(c)
        }
    }
    if (GAPS != 0u) {
        coopMatPerElementNV(sum, sum, put, column);
        return;
    }
#ifdef BF
    coopMatPerElementNV(sum, sum, nearest);
#endif
    RESULT rounded = RESULT(sum);
    layout_d = setTensorLayoutDimensionNV(layout_d, M, N);
    layout_d = setTensorLayoutStrideNV(layout_d, out_step[2] & ~7u, 1u);
    coopMatStoreTensorNV(rounded, d, first_d & ~7u, sliceTensorLayoutNV(layout_d, row, BM, column, BN));
}
