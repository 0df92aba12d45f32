#version 460
#extension GL_GOOGLE_include_directive : require
// Products of one x with up to three matrices by cooperative matrices of a whole workgroup (VK_NV_cooperative_matrix2), sums in
// float32: a @ [w0 w1 w2], whose parts go to results of their own; or silu(a @ w0) * (a @ w1). The matrices lie behind each other,
// each column's K in a row. See matmul_coopmat2.comp for what decides its speed; here the host has seen to all of it: M >= BM, K
// is whole steps, each matrix has a tile's columns at least, in eights. So only the last tiles of rows, and of each matrix's
// columns, begin earlier; what two of them have in common, both compute and store alike. BF: bfloat16, else float16.
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
#define SETS
#include "matmul.glsl"
#include "nearest.glsl"
layout(constant_id = 3) const uint BM = 128;
layout(constant_id = 4) const uint BN = 128;
layout(constant_id = 5) const uint BK = 64;
layout(constant_id = 6) const uint STEPS = 0;          // K / BK, where the host has a pipeline for so many; 0: any
layout(constant_id = 7) const bool SWIGLU = false;     // tiles are of both matrices, N columns each
layout(std430, set = 0, binding = 0) writeonly buffer d_elements { T d[]; };
layout(std430, set = 0, binding = 1) readonly buffer a_elements { T a[]; };
layout(std430, set = 0, binding = 2) readonly buffer b_elements { T b[]; };
layout(std430, set = 0, binding = 3) writeonly buffer second_elements { T second[]; };
layout(std430, set = 0, binding = 4) writeonly buffer third_elements { T third[]; };

#define SUMS coopmat<float, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>
#define RESULT coopmat<T, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>
#define TILE_A coopmat<T, gl_ScopeWorkgroup, BM, BK, gl_MatrixUseA>
#define TILE_B coopmat<T, gl_ScopeWorkgroup, BK, BN, gl_MatrixUseB>

#ifdef BF
float nearest(const in uint row, const in uint column, const in float x) { return nearest_bf16(x); }
#else
float nearest(const in uint row, const in uint column, const in float x) { return float(float16_t(x)); }
#endif
// As binary.comp has it, of the rounded product.
float silu(const in uint row, const in uint column, const in float x)
{
    float y = nearest(row, column, x);
    return y * (1.0 / (1.0 + exp2(-1.44269504 * y)));
}

#define ADD(sum, first) { \
    TILE_B y; \
    coopMatLoadTensorNV(y, b, offset_b & ~7u, sliceTensorLayoutNV(layout_b, first, BN, k, BK), swap); \
    sum = coopMatMulAdd(x, y, sum); }

#define STORE(to, offset, columns, first) { \
    tensorLayoutNV<2> layout_d = createTensorLayoutNV(2); \
    layout_d = setTensorLayoutDimensionNV(layout_d, M, columns); \
    layout_d = setTensorLayoutStrideNV(layout_d, (columns) & ~7u, 1u); \
    coopMatStoreTensorNV(rounded, to, offset & ~7u, sliceTensorLayoutNV(layout_d, row, BM, first, BN)); }

void main()
{
    uvec2 at = tile();
    uint row = min(at.x * BM, M - BM), k = 0u, steps = STEPS != 0u ? STEPS : K / BK;
    uint which = 0u, before = 0u, columns = ends[0];   // the tile's matrix, and the columns of those before it
    while (at.y >= (columns + BN - 1u) / BN) {
        at.y -= (columns + BN - 1u) / BN;
        before = ends[which++];
        columns = (which == 1u ? ends[1] : N) - before;
    }
    uint inside = min(at.y * BN, columns - BN), column = before + inside;
    tensorViewNV<2, false, 1, 0> swap = createTensorViewNV(2, false, 1, 0);
    tensorLayoutNV<2> layout_a = createTensorLayoutNV(2), layout_b = createTensorLayoutNV(2);
    layout_a = setTensorLayoutDimensionNV(layout_a, M, K);
    layout_a = setTensorLayoutStrideNV(layout_a, a_row & ~7u, 1u);
    layout_b = setTensorLayoutDimensionNV(layout_b, SWIGLU ? 2u * N : N, K);
    layout_b = setTensorLayoutStrideNV(layout_b, K & ~7u, 1u);
    SUMS sum = SUMS(0.0), other = SUMS(0.0);
    for (uint i = 0u; i < steps; i++, k += BK) {
        TILE_A x;
        coopMatLoadTensorNV(x, a, offset_a & ~7u, sliceTensorLayoutNV(layout_a, row, BM, k, BK));
        ADD(sum, column)
        if (SWIGLU) ADD(other, N + column)
    }
    if (SWIGLU) {
        coopMatPerElementNV(sum, sum, silu);
        coopMatPerElementNV(other, other, nearest);
        sum = sum * other;
    }
    coopMatPerElementNV(sum, sum, nearest);
    RESULT rounded = RESULT(sum);
    if (which == 0u) STORE(d, offset_d[0], columns, inside)
    else if (which == 1u) STORE(second, offset_d[1], columns, inside)
    else STORE(third, offset_d[2], columns, inside)
}
