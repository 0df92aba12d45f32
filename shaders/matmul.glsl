// What the kernels of matrix products share: out = alpha * a @ b + beta * c for each matrix of a batch. Element (m, k) of a is
// at offset + m * a_row + k * a_k, and so on; strides may be 0 or negative (indices wrap). A workgroup's z counts matrices,
// or, where K is split, parts of each. Push constants and place() say where an entry's matrices are:
//   (none)   in a batch of up to three dimensions
//   GATHER   where index arrays say, or all in one place, over a range of K of its own
//   GROUPED  rows by the matrix of b that they meet (grouped.glsl)
//   MASKED   in a batch, with masks of blocks
//   CONV     conv.glsl
//   SETS     b is several matrices, matmul_sets.comp
#ifndef MATMUL_GLSL
#define MATMUL_GLSL
#include "common.glsl"
layout(constant_id = 1) const uint TYPE = 10;
layout(constant_id = 2) const uint EPILOGUE = 0;
//! enum EPILOGUE_: a @ b; with alpha, beta and c; float32 parts, to be added up
const uint NONE = 0, SCALE = 1, PART = 2;

// Of EPILOGUE SCALE. Where beta is 0 there need not be a c, and what is bound for it may hold NaN.
#define SCALED(x, element_of_c) (beta != 0.0 ? alpha * (x) + beta * (element_of_c) : alpha * (x))

#define X_MATRIX(entry) min(every != 0u ? (entry) / every : lhs32[lhs_at + (entry)], lhs_last)
#ifdef CONV
#include "conv.glsl"
#elif defined(SETS)
layout(push_constant) uniform matmul_sets_push {
    uint M, N, K;                                      // N: columns of all matrices; of one, where results are silu(x) * y
    uint offset_a, offset_b, a_row;
    uint ends[2], offset_d[3];                         // the columns where one matrix ends and the next begins
};
#else
struct Place { uint a, b, c, d, low, high; };        // first elements, and the range of K
#ifdef GROUPED
layout(push_constant) uniform matmul_grouped_push {
    uint M, N, K;                                      // M: rows of an entry
    uint offset_a, offset_b, offset_out;
    uint a_row, a_k, b_k, b_col, out_row, out_col;
    uint a_matrix, b_matrix;                           // from one matrix to the next
    uint every, lhs_at, lhs_last;                      // entries a matrix of a, 0: lhs says which
    uint tiles_at, order_at;                           // grouped.glsl
};
Place place(const uint w_matrix) { return Place(0u, offset_b + w_matrix * b_matrix, 0u, 0u, 0u, K); }
#else
#ifdef MASKED
layout(push_constant) uniform matmul_masked_push {
    uint M, N, K;
    uint offset_a, offset_b, offset_out;
    uint a_row, a_k, b_k, b_col, out_row, out_col;
    uint inner, middle;
    uint batch_a[3], batch_b[3], batch_out[3];
    uint part;
    uint block;                                        // rows and columns that one value of a mask is for; multiples of BK
    uint masks;                                        // bits: of the result, a, b; row-major for all matrices, a byte a block
    uint mask_at, a_mask_at, b_mask_at;
};
#elif defined(GATHER)
layout(push_constant) uniform matmul_gather_push {
    uint M, N, K;
    uint offset_a, offset_b, offset_c, offset_out;
    uint a_row, a_k, b_k, b_col, c_row, c_col, out_row, out_col;
    uint a_matrix, b_matrix, c_matrix, out_matrix;     // from one matrix to the next; of a and b 0: all entries take one
    uint every, lhs_at, lhs_last, rhs_at, rhs_last;    // entries a matrix of a, 0: lhs says which
    uint a_first, a_count, b_first, b_count;           // matrices that are bound: entries of others are left alone
    uint ranges, ranges_at, k_first;                   // 1: entries have ranges of K; which element of it is the first here
    uint part;                                         // how much of K one workgroup takes
};
layout(std430, set = 0, binding = 4) restrict readonly buffer lhs_words { uint lhs32[]; };
layout(std430, set = 0, binding = 5) restrict readonly buffer rhs_words { uint rhs32[]; };
layout(std430, set = 0, binding = 6) restrict readonly buffer ranges_words { uint ranges32[]; };
const float alpha = 1.0, beta = 1.0;
#else
layout(push_constant) uniform matmul_push {
    uint M, N, K;
    uint offset_a, offset_b, offset_c, offset_out;
    uint a_row, a_k, b_k, b_col, c_row, c_col, out_row, out_col;
    uint inner, middle;                                // the two inner sizes of up to three batch dimensions
    uint batch_a[3], batch_b[3], batch_c[3], batch_out[3];
    float alpha, beta;
    uint part;                                         // how much of K one workgroup takes
};
#endif

Place place(const uint z)
{
    uint parts = EPILOGUE == PART ? (K + part - 1u) / part : 1u, which = z % parts, entry = z / parts;
    Place p = Place(offset_a, offset_b, 0u, offset_out, 0u, K);
#ifdef GATHER
    uint x = a_matrix == 0u ? 0u : X_MATRIX(entry), w = b_matrix == 0u ? 0u : min(rhs32[rhs_at + entry], rhs_last);
    uint out_first = entry * out_matrix;
    if (ranges != 0u) {
        p.low = clamp(ranges32[ranges_at + 2u * entry], k_first, k_first + K) - k_first;
        p.high = max(clamp(ranges32[ranges_at + 2u * entry + 1u], k_first, k_first + K) - k_first, p.low);
    }
    p.a += (x - a_first) * a_matrix;
    p.b += (w - b_first) * b_matrix;
    p.c = offset_c + entry * c_matrix;
    if (x - a_first >= a_count || w - b_first >= b_count) p.low = p.high + 1u;
#else
    uint one = max(inner, 1u), two = max(middle, 1u), i = entry % one, j = entry / one % two, k = entry / one / two;
#define BATCH(of) (i * of[0] + j * of[1] + k * of[2])
    uint out_first = BATCH(batch_out);
    p.a += BATCH(batch_a);
    p.b += BATCH(batch_b);
#ifndef MASKED
    p.c = offset_c + BATCH(batch_c);
#endif
#endif
    if (EPILOGUE == PART) {
        p.d += z * M * N;
        p.low = which * part;
        p.high = min(K, p.low + part);
    } else p.d += out_first;
    return p;
}
#endif
#endif

// Leaves the kernel where the entry's matrices are not bound.
#ifdef GATHER
#define SKIP_OTHERS(p) if (p.low > p.high) return;
#else
#define SKIP_OTHERS(p)
#endif

// The row and column of this workgroup's tile: eight rows of tiles are walked together, which keeps their operands in caches.
uvec2 tile()
{
    uint columns = gl_NumWorkGroups.x, id = gl_WorkGroupID.y * columns + gl_WorkGroupID.x, first = id / (8u * columns) * 8u;
    uint rows = min(gl_NumWorkGroups.y - first, 8u), rest = id - first * columns;
    return uvec2(first + rest % rows, rest / rows);
}

const uint TO = EPILOGUE == PART ? F32 : TYPE;            // the result's dtype
const uint CHUNK = TYPE == F32 ? 4u : 8u;               // elements in 16 bytes

// Two elements of a half type.
vec2 halves(const uint w)
{
    return TYPE == BF16 ? vec2(uintBitsToFloat(w << 16), uintBitsToFloat(w & 0xffff0000u)) : unpackHalf2x16(w);
}

// One element; four elements whose first has an index that four divides.
#define OPERAND(name) \
    float get_##name(const uint i) { return TYPE == F32 ? uintBitsToFloat(name##32[i]) : halves(uint(name##16[i])).x; } \
    vec4 get4_##name(const uint i) { \
        if (TYPE == F32) return uintBitsToFloat(name##128[i / 4u]); \
        uvec2 w = name##64[i / 4u]; \
        return vec4(halves(w.x), halves(w.y)); }
#endif
