#version 460
#extension GL_GOOGLE_include_directive : require
// y = x W^T or x W in tiles of BM x BN: 32 steps of k at a time are decoded into shared memory; TM x TN results a thread.
// GROUPED: rows by the weight that index arrays say they meet (grouped.glsl).
// FEW: so many rows of x meet W, not transposed, without tiles: a thread has eight columns of some rows of W.
#define PRODUCT
#include "quant.glsl"
layout(constant_id = 5) const bool TRANSPOSED = true;  // W is N x K, with groups along K; else K x N, with groups along N
layout(constant_id = 6) const uint BM = 32;
layout(constant_id = 7) const uint BN = 32;
layout(constant_id = 8) const uint TM = 4;
layout(constant_id = 9) const uint TN = 4;
layout(constant_id = 10) const bool ROUNDED = false;   // W, to bfloat16
layout(constant_id = 11) const uint FEW = 0;           // up to 8; 4 BM threads; no ROUNDED

SOURCE(0, x)
SOURCE(1, w)
SOURCE(2, s)
SOURCE(3, b)
TARGET(4, y)
EIGHT_CODES(eight_codes, w32)
#define GROUP_SLOT 5
#define ENTRY_ROWS m
#define X_PLACE(entry, i) x_at + X_MATRIX(entry) * x_batch + (i) * x_row
#define Y_PLACE(row) y_at[0] + (row) * y_row[0]
#include "grouped.glsl"
#ifndef GROUPED
#define w_matrix gl_WorkGroupID.z
#endif

const uint BK = 32;
shared float xs[BK * (BM + 1)], ws[BK * (BN + 1)];

void stage_x(const uint m0, const uint k0)
{
    for (uint i = gl_LocalInvocationIndex; i < BM * BK; i += gl_WorkGroupSize.x) {
        uint row = i / BK, c = i % BK;
#ifdef GROUPED
        xs[c * (BM + 1u) + row] = k0 + c < k ? number(RAW(x, place_x[row] + k0 + c, TX), TX) : 0.0;
#else
        bool inside = m0 + row < m && k0 + c < k;
        xs[c * (BM + 1u) + row] = inside
            ? number(RAW(x, x_at + gl_WorkGroupID.z * x_batch + (m0 + row) * x_row + k0 + c, TX), TX) : 0.0;
#endif
    }
}

// Eight codes of a row of W, from column 8 `octet` on, with their group's scale and bias.
uvec2 octet_of(const uint w_row, const uint octet, const uint along, out float scale, out float bias)
{
    uint block = octet >> 2, group = w_matrix * s_batch + (w_row * (2u * along) + (octet >> 1) >> group_shift);
    scale = number(RAW(s, s_at[0] + group, TS), TS);
    bias = FP ? 0.0 : number(RAW(b, b_at[0] + group, TS), TS);
    return eight_codes(w_at[0] + w_matrix * w_batch + (w_row * along + block) * BITS, octet & 3u);
}

// Eight codes at a time: along k where W is transposed, else along n.
void stage_w(const uint n0, const uint k0)
{
    uint n = rows[0], along = (TRANSPOSED ? k : n) >> 5;               // blocks a row of W
    for (uint i = gl_LocalInvocationIndex; i < BN * BK / 8u; i += gl_WorkGroupSize.x) {
        uint width = TRANSPOSED ? 4u : BN / 8u, row = i / width, c = i % width;
        uint w_row = (TRANSPOSED ? n0 : k0) + row, octet = ((TRANSPOSED ? k0 : n0) >> 3) + c;
        bool inside = w_row < (TRANSPOSED ? n : k) && octet >> 2 < along;
        float value[8], scale, bias;
        if (inside) {
            uvec2 codes = octet_of(w_row, octet, along, scale, bias);
            [[unroll]] for (uint e = 0u; e < 8u; e++) value[e] = fma(scale, code_number(code_of(codes, e)), bias);
            if (ROUNDED) [[unroll]] for (uint e = 0u; e < 8u; e++) value[e] = rounded(value[e], TY);
        }
        [[unroll]] for (uint e = 0u; e < 8u; e++)
            ws[TRANSPOSED ? (8u * c + e) * (BN + 1u) + row : row * (BN + 1u) + 8u * c + e] = inside ? value[e] : 0.0;
    }
}

#ifndef GROUPED
//! enum QMM_FEW_: columns of a workgroup
const uint COLUMNS = 64;

void multiply_few()
{
    const uint AHEAD = 4u, lanes = COLUMNS / 8u, parts = gl_WorkGroupSize.x / lanes, me = gl_LocalInvocationIndex;
    uint n = rows[0], n0 = gl_WorkGroupID.x * COLUMNS, m0 = gl_WorkGroupID.y * FEW, part = me / lanes;
    uint octet = min((n0 >> 3) + me % lanes, (n >> 3) - 1u);
    float sum[64], biases[8];
    [[unroll]] for (uint i = 0u; i < 8u * FEW; i++) sum[i] = 0.0;
    [[unroll]] for (uint r = 0u; r < FEW; r++) biases[r] = 0.0;
    for (uint k0 = part; k0 < k; k0 += AHEAD * parts)
        [[unroll]] for (uint u = 0u; u < AHEAD; u++) {
            uint row = min(k0 + u * parts, k - 1u);    // the last one, when there is none: it counts in no sum
            float scale, bias;
            uvec2 codes = octet_of(row, octet, n >> 5, scale, bias);
            [[unroll]] for (uint r = 0u; r < FEW; r++) {
                uint at = x_at + gl_WorkGroupID.z * x_batch + min(m0 + r, m - 1u) * x_row + row;
                float xv = number(RAW(x, at, TX), TX);
                bool counts = k0 + u * parts < k;
                float factor = counts ? xv * scale : 0.0;
                biases[r] += counts ? xv * bias : 0.0;
                [[unroll]] for (uint e = 0u; e < 8u; e++) sum[8u * r + e] = fma(factor, code_number(code_of(codes, e)), sum[8u * r + e]);
            }
        }
    [[unroll]] for (uint r = 0u; r < FEW; r++) {
        barrier();
        [[unroll]] for (uint e = 0u; e < 8u; e++) xs[8u * me + e] = sum[8u * r + e] + biases[r];
        barrier();
        for (uint c = me; c < min(COLUMNS, n - n0) && m0 + r < m; c += gl_WorkGroupSize.x) {
            float total = 0.0;
            for (uint p = 0u; p < parts; p++) total += xs[COLUMNS * p + c];
            PUT(y, y_at[0] + gl_WorkGroupID.z * y_batch + (m0 + r) * y_row[0] + n0 + c, TY, float_to_bits(total, TY))
        }
    }
}
#endif

void main()
{
#ifndef GROUPED
    if (FEW > 0u) { multiply_few(); return; }
#endif
    uint m0 = gl_WorkGroupID.y * BM, n0 = gl_WorkGroupID.x * BN;
    uint tm = gl_LocalInvocationIndex / (BN / TN), tn = gl_LocalInvocationIndex % (BN / TN);
    float sum[64];
#ifdef GROUPED
    find_rows(gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z);
    if (tile_rows == 0u) return;
    m0 = 0u;
#endif
    [[unroll]] for (uint i = 0u; i < TM * TN; i++) sum[i] = 0.0;
    for (uint k0 = 0u; k0 < k; k0 += BK) {
        barrier();
        stage_x(m0, k0);
        stage_w(n0, k0);
        barrier();
        for (uint c = 0u; c < BK; c++) {
            float xv[8], wv[8];
            [[unroll]] for (uint i = 0u; i < TM; i++) xv[i] = xs[c * (BM + 1u) + tm + i * (BM / TM)];
            [[unroll]] for (uint j = 0u; j < TN; j++) wv[j] = ws[c * (BN + 1u) + tn + j * (BN / TN)];
            [[unroll]] for (uint i = 0u; i < TM; i++)
                [[unroll]] for (uint j = 0u; j < TN; j++) sum[i * TN + j] = fma(xv[i], wv[j], sum[i * TN + j]);
        }
    }
    [[unroll]] for (uint i = 0u; i < TM; i++)
        [[unroll]] for (uint j = 0u; j < TN; j++) {
            uint row = m0 + tm + i * (BM / TM), n = n0 + tn + j * (BN / TN);
#ifdef GROUPED
            if (row < tile_rows && n < rows[0]) PUT(y, place_y[row] + n, TY, float_to_bits(sum[i * TN + j], TY))
#else
            if (row < m && n < rows[0])
                PUT(y, y_at[0] + gl_WorkGroupID.z * y_batch + row * y_row[0] + n, TY, float_to_bits(sum[i * TN + j], TY))
#endif
        }
}
