#version 460
#extension GL_GOOGLE_include_directive : require
// Matrix products of half types by cooperative matrices of a whole workgroup (VK_NV_cooperative_matrix2), sums in float32. The
// compiler stages and pipelines the loads. What decides: rows that it can see to be multiples of 16 bytes, which those of all
// operands must be; a loop that counts its steps, whose number it then knows; loads without bounds checks; the shape of the tile.
// So that tiles lie inside the matrix, the last ones begin earlier: what two tiles have in common, both compute and store alike.
// BF: bfloat16, else float16.
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
#include "matmul.glsl"
#include "nearest.glsl"
layout(constant_id = 3) const uint BM = 128;
layout(constant_id = 4) const uint BN = 128;
layout(constant_id = 5) const uint BK = 64;
layout(constant_id = 6) const uint ALONG = 0;         // bit 0: a is read along its columns, not its rows; bit 1: b along its columns
layout(constant_id = 7) const uint INSIDE = 0;        // bits: ROWS: BM <= M, which is in eights where a is read along its columns
layout(constant_id = 8) const uint COUNT = 0;         // of steps, where the host has a pipeline for so many; 0: any
layout(constant_id = 9) const uint CHAIN = 0;         // steps whose sums begin at 0 and are added up in order: all tiles inside, whole chains; 0: all steps
layout(constant_id = 10) const uint HAS_C = 0;         // of EPILOGUE SCALE: c is as the result is, or one row, elsewhere, and beta not 0
const bool ROWS = (INSIDE & 1u) != 0u, COLUMNS = (INSIDE & 2u) != 0u, STEPS = (INSIDE & 4u) != 0u;    // BN <= N; K in whole BK
layout(std430, set = 0, binding = 0) writeonly buffer d_elements { T d[]; };
layout(std430, set = 0, binding = 0) writeonly buffer d_floats { float parts[]; };
layout(std430, set = 0, binding = 1) readonly buffer a_elements { T a[]; };
layout(std430, set = 0, binding = 2) readonly buffer b_elements { T b[]; };
#ifndef GATHER
layout(std430, set = 0, binding = 3) readonly buffer c_elements { T c[]; };
#endif

#define EDGE tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV>    // zeros beyond the matrix
#define SUMS coopmat<float, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>
#define RESULT coopmat<T, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>
#define TILE_A coopmat<T, gl_ScopeWorkgroup, BM, BK, gl_MatrixUseA>
#define TILE_B coopmat<T, gl_ScopeWorkgroup, BK, BN, gl_MatrixUseB>

// One step along K, with tensor layouts that check bounds or do not.
#define STEP(layout_a, layout_b) { \
    TILE_A x; \
    TILE_B y; \
    if ((ALONG & 1u) == 0u) coopMatLoadTensorNV(x, a, first_a, sliceTensorLayoutNV(layout_a, row, BM, k, BK)); \
    else coopMatLoadTensorNV(x, a, first_a, sliceTensorLayoutNV(layout_a, k, BK, row, BM), swap); \
    if ((ALONG & 2u) == 0u) coopMatLoadTensorNV(y, b, first_b, sliceTensorLayoutNV(layout_b, k, BK, column, BN)); \
    else coopMatLoadTensorNV(y, b, first_b, sliceTensorLayoutNV(layout_b, column, BN, k, BK), swap); \
    sum = coopMatMulAdd(x, y, sum); }

#define DIMENSIONS(layout_a, layout_b) \
    if ((ALONG & 1u) == 0u) layout_a = setTensorLayoutDimensionNV(layout_a, M, p.high); \
    else layout_a = setTensorLayoutDimensionNV(layout_a, p.high, M); \
    layout_a = setTensorLayoutStrideNV(layout_a, lead_a, 1u); \
    if ((ALONG & 2u) == 0u) layout_b = setTensorLayoutDimensionNV(layout_b, p.high, N); \
    else layout_b = setTensorLayoutDimensionNV(layout_b, N, p.high); \
    layout_b = setTensorLayoutStrideNV(layout_b, lead_b, 1u);

#ifdef BF
float nearest(const in uint row, const in uint column, const in float x) { return nearest_bf16(x); }
#endif

#define SHAPE(layout_d, lead) \
    layout_d = setTensorLayoutDimensionNV(layout_d, M, N); \
    layout_d = setTensorLayoutStrideNV(layout_d, (lead) & ~7u, 1u);

void main()
{
    uvec2 at = tile();
    uint row = at.x * BM, column = at.y * BN;
    Place p = place(gl_WorkGroupID.z);
    SKIP_OTHERS(p)
    uint lead_a = ((ALONG & 1u) == 0u ? a_row : a_k) & ~7u, lead_b = ((ALONG & 2u) == 0u ? b_k : b_col) & ~7u;
    uint first_a = p.a & ~7u, first_b = p.b & ~7u, first_d = p.d & ~7u;
    if (ROWS) row = min(row, M - BM) & ((ALONG & 1u) == 0u ? ~0u : ~7u);
    if (COLUMNS) column = min(column, N - BN) & ~7u;

    tensorViewNV<2, false, 1, 0> swap = createTensorViewNV(2, false, 1, 0);
    tensorLayoutNV<2> inner_a = createTensorLayoutNV(2), inner_b = createTensorLayoutNV(2), inner_d = createTensorLayoutNV(2);
    DIMENSIONS(inner_a, inner_b)
    SUMS sum = SUMS(0.0);
    uint k = p.low & ~15u, steps = COUNT != 0u ? COUNT : (p.high - k) / BK;        // K is cut at multiples of BK
#ifdef GATHER
#define END_CHAIN
#else
    SUMS total = SUMS(0.0);
#define END_CHAIN if (CHAIN != 0u && i % CHAIN == CHAIN - 1u) { total = total + sum; sum = SUMS(0.0); }
#endif
    if (ROWS && COLUMNS) for (uint i = 0u; i < steps; i++, k += BK) {
        STEP(inner_a, inner_b)
        END_CHAIN
    }
#ifndef GATHER
    if (CHAIN != 0u) sum = total;
#endif
    if (INSIDE != 7u) {
        EDGE edge_a = createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
        EDGE edge_b = createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
        DIMENSIONS(edge_a, edge_b)
        if (COLUMNS && !ROWS) for (uint i = 0u; i < steps; i++, k += BK) STEP(edge_a, inner_b)
        if (!COLUMNS || !STEPS) for (; k < p.high; k += BK) STEP(edge_a, edge_b)
    }

    EDGE edge_d = createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
    SHAPE(inner_d, out_row)
    SHAPE(edge_d, out_row)
    if (EPILOGUE == PART) {
        if (ROWS && COLUMNS) coopMatStoreTensorNV(sum, parts, first_d, sliceTensorLayoutNV(inner_d, row, BM, column, BN));
        else coopMatStoreTensorNV(sum, parts, first_d, sliceTensorLayoutNV(edge_d, row, BM, column, BN));
        return;
    }
    if (EPILOGUE == SCALE) sum = sum * alpha;
#ifndef GATHER
    if (EPILOGUE == SCALE && HAS_C != 0u) {
        RESULT addend;
        tensorLayoutNV<2> inner_c = createTensorLayoutNV(2);
        EDGE edge_c = createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
        SHAPE(inner_c, c_row)
        SHAPE(edge_c, c_row)
        if (ROWS && COLUMNS) coopMatLoadTensorNV(addend, c, p.c & ~7u, sliceTensorLayoutNV(inner_c, row, BM, column, BN));
        else coopMatLoadTensorNV(addend, c, p.c & ~7u, sliceTensorLayoutNV(edge_c, row, BM, column, BN));
        sum = sum + SUMS(addend) * beta;
    }
#endif
#ifdef BF
    coopMatPerElementNV(sum, sum, nearest);
#endif
    RESULT rounded = RESULT(sum);
    if (ROWS && COLUMNS)
        coopMatStoreTensorNV(rounded, d, first_d, sliceTensorLayoutNV(inner_d, row, BM, column, BN));
    else coopMatStoreTensorNV(rounded, d, first_d, sliceTensorLayoutNV(edge_d, row, BM, column, BN));
}
