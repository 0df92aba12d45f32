#version 460
#extension GL_GOOGLE_include_directive : require
// y = x W^T of half types by cooperative matrices of a subgroup, sums in float32: tiles of x and of decoded, rounded weights
// are staged in shared memory, the next ones on their way in registers. A subgroup computes WM x WN of BM x BN results.
// BF: bfloat16, else float16. GROUPED: rows by the weight that index arrays say they meet (grouped.glsl).
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
#define PRODUCT
#include "quant.glsl"
layout(constant_id = 5) const uint BM = 128;
layout(constant_id = 6) const uint BN = 128;
layout(constant_id = 7) const uint WM = 64;
layout(constant_id = 8) const uint WN = 32;
layout(constant_id = 9) const uint SIZE = 16;          // of a cooperative matrix: SIZE x SIZE x SIZE
layout(constant_id = 10) const uint LANES = 32;        // of a subgroup
layout(constant_id = 11) const uint DEPTH = 1;         // blocks of codes at a time
layout(constant_id = 12) const uint ALIGNED = 0;       // QUANT_EVEN_W (2 bits: any), QUANT_EVEN_Y
layout(constant_id = 13) const bool PARTS = false;     // K is cut into parts of `rounds` blocks, whose float32 sums are stored

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

const uint BK = 32 * DEPTH;
const uint THREADS = BM / WM * (BN / WN) * LANES;
const uint FETCH_X = (BM * BK / 8 + THREADS - 1) / THREADS, FETCH_W = (BN * BK / 16 + THREADS - 1) / THREADS;
const uint STEP = BK / 8 + 1, PATCH = SIZE + 4;        // of a tile's rows, padded
shared uvec4 tile_x[BM * STEP], tile_w[BN * STEP];
shared float patches[THREADS / LANES * SIZE * PATCH];

// To nearest even, which drivers' conversions to bfloat16 are not. Where there is no number, NOT_A_NUMBER must be given.
uint pack(const float low, const float high)
{
#ifdef BF
    uint u = floatBitsToUint(low), v = floatBitsToUint(high);
    return ((u + 0x7fffu + ((u >> 16) & 1u)) >> 16) | ((v + 0x7fffu + ((v >> 16) & 1u)) & 0xffff0000u);
#else
    return packHalf2x16(vec2(low, high));
#endif
}

float tame(const float x) { return is_nan(x) ? NOT_A_NUMBER : x; }

// A thread's share of the next tiles: eight elements of x, and half a block of codes with scale and bias.
uvec4 next_x[FETCH_X], next_w[FETCH_W];
uint next_scale[FETCH_W], next_bias[FETCH_W];

void fetch(const uint m0, const uint n0, const uint first, const uint until)
{
    uint t = gl_LocalInvocationIndex, blocks = k / 32u, groups = 2u * blocks >> group_shift, batch = PARTS ? 0u : gl_WorkGroupID.z;
#ifdef GROUPED
    batch = w_matrix;
#endif
    [[unroll]] for (uint i = 0u; i < FETCH_X; i++) {
        uint g = min(t + i * THREADS, BM * BK / 8u - 1u), row = min(m0 + g / (BK / 8u), m - 1u), at = first * 32u + g % (BK / 8u) * 8u;
#ifdef GROUPED
        next_x[i] = x128[place_x[g / (BK / 8u)] + min(at, until * 32u - 8u) >> 3];
#else
        next_x[i] = x128[x_at + batch * x_batch + row * x_row + min(at, until * 32u - 8u) >> 3];
#endif
        if (DEPTH > 1u && at >= until * 32u) next_x[i] = uvec4(0u);
    }
    [[unroll]] for (uint i = 0u; i < FETCH_W; i++) {
        uint g = min(t + i * THREADS, BN * BK / 16u - 1u), n = min(n0 + g / (BK / 16u), rows[0] - 1u), part = g & 1u;
        uint block = min(first + g / 2u % DEPTH, until - 1u), at = w_at[0] + batch * w_batch + (n * blocks + block) * BITS;
        uint group = batch * s_batch + n * groups + (2u * block + part >> group_shift);
        if ((ALIGNED & EVEN_W) != 0u && BITS == 4u) next_w[i].xy = w64[(at >> 1) + part];
        else if ((ALIGNED & EVEN_W) != 0u && BITS == 8u) next_w[i] = w128[(at >> 2) + part];
        else if (WHOLE) {
            [[unroll]] for (uint l = 0u; l < BITS / 2u; l++) next_w[i][l] = w32[at + BITS / 2u * part + l];
        } else next_w[i] = uvec4(eight_codes(at, 2u * part), eight_codes(at, 2u * part + 1u));
        next_scale[i] = RAW(s, s_at[0] + group, TS);
        if (!FP) next_bias[i] = RAW(b, b_at[0] + group, TS);
    }
}

void stage()
{
    uint t = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0u; i < FETCH_X; i++) {
        uint g = t + i * THREADS;
        if (g < BM * BK / 8u) tile_x[g / (BK / 8u) * STEP + g % (BK / 8u)] = next_x[i];
    }
    [[unroll]] for (uint i = 0u; i < FETCH_W; i++) {
        uint g = t + i * THREADS, halves[8];
        float scale = number(next_scale[i], TS), bias = FP ? 0.0 : number(next_bias[i], TS), value[16];
        [[unroll]] for (uint e = 0u; e < 16u; e++)
            if (PACKED)
                value[e] = fma(scale, packed_code(next_w[i][e * BITS / 32u], e * BITS % 32u),
                               fma(-scale, packed_offset(e % CLASSES), bias));
            else if (WHOLE) value[e] = scale * code_number(next_w[i][e * BITS / 32u] >> e * BITS % 32u & MASK);
            else value[e] = fma(scale, float(code_of(e < 8u ? next_w[i].xy : next_w[i].zw, e % 8u)), bias);
        if (max(floatBitsToUint(scale) & 0x7fffffffu, floatBitsToUint(bias) & 0x7fffffffu) > 0x71000000u)    // 2^99: or it may overflow
            [[unroll]] for (uint e = 0u; e < 16u; e++) value[e] = tame(value[e]);
        [[unroll]] for (uint e = 0u; e < 8u; e++) halves[e] = pack(value[2u * e], value[2u * e + 1u]);
        if (g < BN * BK / 16u) {
            uint at = g / (BK / 16u) * STEP + g % (BK / 16u) * 2u;
            tile_w[at] = uvec4(halves[0], halves[1], halves[2], halves[3]);
            tile_w[at + 1u] = uvec4(halves[4], halves[5], halves[6], halves[7]);
        }
    }
}

// Eight results from column n on.
void store(const uint row, const uint n, const float v[8])
{
    if (PARTS) {
        uint at = y_at[0] + (gl_WorkGroupID.z * m + row) * rows[0] + n;
        for (uint e = 0u; e < 8u; e++)
            if (n + e < rows[0]) y32[at + e] = floatBitsToUint(v[e]);
        return;
    }
#ifdef GROUPED
    uint at = place_y[row] + n, halves[4];
#else
    uint at = y_at[0] + gl_WorkGroupID.z * y_batch + row * y_row[0] + n, halves[4];
#endif
    [[unroll]] for (uint e = 0u; e < 4u; e++) halves[e] = pack(tame(v[2u * e]), tame(v[2u * e + 1u]));
    if ((ALIGNED & EVEN_Y) != 0u && n + 8u <= rows[0]) y128[at >> 3] = uvec4(halves[0], halves[1], halves[2], halves[3]);
    else
        for (uint e = 0u; e < 8u; e++)
            if (n + e < rows[0]) y16[at + e] = uint16_t(halves[e / 2u] >> e % 2u * 16u);
}

void main()
{
    uint m0 = gl_WorkGroupID.x * BM, n0 = gl_WorkGroupID.y * BN, warp = gl_SubgroupID;
    uint first = PARTS ? gl_WorkGroupID.z * rounds : 0u, until = PARTS ? min(first + rounds, k / 32u) : k / 32u;
    uint wm = warp / (BN / WN) * WM, wn = warp % (BN / WN) * WN;
    coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator> sum[WM / SIZE * (WN / SIZE)];
    [[unroll]] for (uint i = 0u; i < WM / SIZE * (WN / SIZE); i++)
        sum[i] = coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>(0.0);

#ifdef GROUPED
    find_rows(gl_WorkGroupID.x);
    if (tile_rows == 0u) return;
    m0 = 0u;
#else
    uint tile_rows = m;
#endif
    if (first < until) fetch(m0, n0, first, until);
    for (; first < until; first += DEPTH) {
        barrier();
        stage();
        barrier();
        if (first + DEPTH < until) fetch(m0, n0, first + DEPTH, until);
        [[unroll]] for (uint l = 0u; l < BK; l += SIZE) {
            coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA> a[WM / SIZE];
            [[unroll]] for (uint i = 0u; i < WM / SIZE; i++)
                coopMatLoad(a[i], tile_x, (wm + i * SIZE) * STEP + l / 8u, STEP, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0u; j < WN / SIZE; j++) {
                coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB> c;
                coopMatLoad(c, tile_w, (wn + j * SIZE) * STEP + l / 8u, STEP, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint i = 0u; i < WM / SIZE; i++)
                    sum[i * (WN / SIZE) + j] = coopMatMulAdd(a[i], c, sum[i * (WN / SIZE) + j]);
            }
        }
    }

    [[unroll]] for (uint i = 0u; i < WM / SIZE; i++)
        [[unroll]] for (uint j = 0u; j < WN / SIZE; j++) {
            uint corner = warp * SIZE * PATCH;
            coopMatStore(sum[i * (WN / SIZE) + j], patches, corner, PATCH, gl_CooperativeMatrixLayoutRowMajor);
            subgroupBarrier();
            for (uint u = gl_SubgroupInvocationID; u < SIZE * SIZE / 8u; u += LANES) {
                uint r = u * 8u / SIZE, c = u * 8u % SIZE, row = m0 + wm + i * SIZE + r, n = n0 + wn + j * SIZE + c;
                float v[8];
                [[unroll]] for (uint e = 0u; e < 8u; e++) v[e] = patches[corner + r * PATCH + c + e];
                if (row < tile_rows) store(row, n, v);
            }
            subgroupBarrier();
        }
}
