#version 460
#extension GL_GOOGLE_include_directive : require
// Matrix products of half types by cooperative matrices of a subgroup (VK_KHR_cooperative_matrix), sums in float32: tiles are
// staged in shared memory as they lie in memory, the next one on its way in registers. A subgroup computes WM x WN of the
// BM x BN elements. BF: bfloat16, else float16.
// GROUPED: rows by the matrix that index arrays say they meet (grouped.glsl); a is read along its rows.
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
#include "nearest.glsl"
layout(constant_id = 3) const uint BM = 128;
layout(constant_id = 4) const uint BN = 128;
layout(constant_id = 5) const uint BK = 32;
layout(constant_id = 6) const uint WM = 64;
layout(constant_id = 7) const uint WN = 64;
layout(constant_id = 8) const uint SIZE = 16;         // of a cooperative matrix: SIZE x SIZE x SIZE
layout(constant_id = 9) const uint LANES = 32;        // of a subgroup
layout(constant_id = 10) const uint ALONG = 0;        // bit 0: a is read along its columns, not its rows; bit 1: b along its columns
layout(constant_id = 11) const uint ALIGNED = 0;      // bits: a, b, the result: first element and rows are multiples of 16 bytes
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
ACCESS(d)
#ifdef CONV
#define LAST_ROW M
#elif defined(GROUPED)
#define GROUP_SLOT 3
#define ENTRY_ROWS M
#define X_PLACE(entry, i) offset_a + X_MATRIX(entry) * a_matrix + (i) * a_row
#define Y_PLACE(row) offset_out + (row) * out_row
#include "grouped.glsl"
#define FIRST_A(p, row) place_x[row]
#define FIRST_D(p, row) place_y[row]
#define LAST_ROW tile_rows
#else
BUFFER(3, c)
OPERAND(c)
#define FIRST_A(p, row) (p.a + (row) * a_row)
#define FIRST_D(p, row) (p.d + (row) * out_row)
#define LAST_ROW M
#endif
layout(std430, set = 0, binding = 0) writeonly buffer d_elements { T d[]; };

const bool A_ALONG_K = (ALONG & 1u) == 0u, B_ALONG_K = (ALONG & 2u) != 0u;
const uint THREADS = BM / WM * (BN / WN) * LANES;
const uint FETCH_A = BM * BK / 8 / THREADS, FETCH_B = BN * BK / 8 / THREADS;           // uvec4 that a thread reads of a tile
const uint STEP_A = (A_ALONG_K ? BK : BM) / 8 + 1, STEP_B = (B_ALONG_K ? BK : BN) / 8 + 1;   // of tile rows, padded
const uint PATCH = SIZE + 4;
shared uvec4 tile_a[(A_ALONG_K ? BM : BK) * STEP_A], tile_b[(B_ALONG_K ? BN : BK) * STEP_B];
shared float patches[THREADS / LANES * SIZE * PATCH];

uvec4 next_a[FETCH_A], next_b[FETCH_B];

#ifdef CONV
Row rows[FETCH_A];
Tap tap;                                               // of this thread's columns of K, the same in all its eights

void start(const Place p, const uint row)
{
    uint t = gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0; i < FETCH_A; i++) rows[i] = row_at(p.a, row + (t + i * THREADS) / (BK / 8));
    tap = tap_at(p.low + t % (BK / 8) * 8);
}

// Channels are a multiple of eight.
void fetch(const Place p, const uint row, const uint column, const uint k)
{
    uint t = gl_LocalInvocationID.x;
    Reach x = reach(tap);
    bool valid = k + t % (BK / 8) * 8 < p.high;
    [[unroll]] for (uint i = 0; i < FETCH_A; i++)
        next_a[i] = valid && inside(rows[i], x) ? a128[(rows[i].at + x.a) / 8u] : uvec4(0u);
    [[unroll]] for (uint i = 0; i < FETCH_B; i++) {
        uint n = column + (t + i * THREADS) / (BK / 8);
        next_b[i] = valid && n < N ? b128[(p.b + n * b_row + x.b) / 8u] : uvec4(0u);
    }
    advance(tap, BK);
}
#else
// Eight elements that follow each other in memory, of which `valid` lie in the matrix; zeros for the others.
#define FETCH(name, bit) \
    uvec4 fetch_##name(const uint at, const uint valid) { \
        if ((ALIGNED & bit) != 0u && valid == 8u) return name##128[at / 8u]; \
        uvec4 w = uvec4(0u); \
        for (uint i = 0u; i < valid; i++) w[i / 2u] |= uint(name##16[at + i]) << (i % 2u * 16u); \
        return w; }
FETCH(a, 1u)
FETCH(b, 2u)

uint count(const uint from, const uint to) { return from < to ? min(to - from, 8u) : 0u; }

void start(const Place p, const uint row) { }

void fetch(const Place p, const uint row, const uint column, const uint k)
{
    uint t = gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0; i < FETCH_A; i++) {
        uint g = t + i * THREADS, per = (A_ALONG_K ? BK : BM) / 8, line = g / per, at = g % per * 8;
        uint m = row + (A_ALONG_K ? line : at), l = k + (A_ALONG_K ? at : line);
        next_a[i] = fetch_a(FIRST_A(p, m) + l * a_k, A_ALONG_K ? m < LAST_ROW ? count(l, p.high) : 0u : l < p.high ? count(m, M) : 0u);
    }
    [[unroll]] for (uint i = 0; i < FETCH_B; i++) {
        uint g = t + i * THREADS, per = (B_ALONG_K ? BK : BN) / 8, line = g / per, at = g % per * 8;
        uint n = column + (B_ALONG_K ? line : at), l = k + (B_ALONG_K ? at : line);
        next_b[i] = fetch_b(p.b + l * b_k + n * b_col, B_ALONG_K ? n < N ? count(l, p.high) : 0u : l < p.high ? count(n, N) : 0u);
    }
}
#endif

void stage()
{
    uint t = gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0; i < FETCH_A; i++) {
        uint g = t + i * THREADS, per = (A_ALONG_K ? BK : BM) / 8;
        tile_a[g / per * STEP_A + g % per] = next_a[i];
    }
    [[unroll]] for (uint i = 0; i < FETCH_B; i++) {
        uint g = t + i * THREADS, per = (B_ALONG_K ? BK : BN) / 8;
        tile_b[g / per * STEP_B + g % per] = next_b[i];
    }
}

void main()
{
    uvec2 at = tile();
    uint row = at.x * BM, column = at.y * BN;
    uint warp = gl_SubgroupID, lane = gl_SubgroupInvocationID, wm = warp / (BN / WN) * WM, wn = warp % (BN / WN) * WN;
#ifdef GROUPED
    find_rows(at.x);
    if (tile_rows == 0u) return;
    row = 0u;
    Place p = place(w_matrix);
#else
    Place p = place(gl_WorkGroupID.z);
    SKIP_OTHERS(p)
#endif
    coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator> sum[WM / SIZE * (WN / SIZE)];
    [[unroll]] for (uint i = 0; i < WM / SIZE * (WN / SIZE); i++)
        sum[i] = coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>(0.0);

    start(p, row);
    if (p.low < p.high) fetch(p, row, column, p.low);
    for (uint k = p.low; k < p.high; k += BK) {
        barrier();
        stage();
        barrier();
        if (k + BK < p.high) fetch(p, row, column, k + BK);
        [[unroll]] for (uint l = 0; l < BK; l += SIZE) {
            coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA> x[WM / SIZE];
            [[unroll]] for (uint i = 0; i < WM / SIZE; i++) {
                uint m = wm + i * SIZE;
                if (A_ALONG_K) coopMatLoad(x[i], tile_a, m * STEP_A + l / 8, STEP_A, gl_CooperativeMatrixLayoutRowMajor);
                else coopMatLoad(x[i], tile_a, l * STEP_A + m / 8, STEP_A, gl_CooperativeMatrixLayoutColumnMajor);
            }
            [[unroll]] for (uint j = 0; j < WN / SIZE; j++) {
                coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB> y;
                uint n = wn + j * SIZE;
                if (B_ALONG_K) coopMatLoad(y, tile_b, n * STEP_B + l / 8, STEP_B, gl_CooperativeMatrixLayoutColumnMajor);
                else coopMatLoad(y, tile_b, l * STEP_B + n / 8, STEP_B, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint i = 0; i < WM / SIZE; i++)
                    sum[i * (WN / SIZE) + j] = coopMatMulAdd(x[i], y, sum[i * (WN / SIZE) + j]);
            }
        }
    }

    // The short way out, where no subgroup's part is cut: the same for all of them, whose barriers are the workgroup's on
    // some drivers. Subgroups beyond the result have none of it.
    bool whole = EPILOGUE == 0u && (row + BM <= M || (M - row) % WM == 0) && (column + BN <= N || (N - column) % WN == 0);
#ifdef CONV
    uint out_row = out_step[2];                        // of results whose rows follow each other, which ALIGNED's bit 3 says
    whole = whole && (ALIGNED & 12u) == 12u;
#elif defined(GROUPED)
    whole = false;
#else
    whole = whole && (ALIGNED & 4u) != 0u;
#endif
    row += wm;
    column += wn;
    if (whole && (row >= M || column >= N)) return;
    [[unroll]] for (uint i = 0; i < WM / SIZE; i++)
        [[unroll]] for (uint j = 0; j < WN / SIZE; j++) {
            uint r = row + i * SIZE, s = column + j * SIZE, corner = warp * SIZE * PATCH;
            if (whole) {
                // In a matrix of its own: NVIDIA's driver (580.159) keeps an array, whose elements' elements are written, in
                // memory, which made all of it five times slower.
                coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator> v = sum[i * (WN / SIZE) + j];
#ifdef BF
                [[unroll]] for (int e = 0; e < v.length(); e++) v[e] = nearest_bf16(v[e]);
#endif
                coopMatStore(coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>(v), d,
                             p.d + r * out_row + s, out_row, gl_CooperativeMatrixLayoutRowMajor);
                continue;
            }
            coopMatStore(sum[i * (WN / SIZE) + j], patches, corner, PATCH, gl_CooperativeMatrixLayoutRowMajor);
            subgroupBarrier();
#ifdef CONV
            for (uint e = lane; e < SIZE * SIZE / 4; e += LANES) {
                uint m = r + e / (SIZE / 4), n = s + e % (SIZE / 4) * 4, from = corner + e / (SIZE / 4) * PATCH + e % (SIZE / 4) * 4;
                if (m >= M || n >= N) continue;
                vec4 v = vec4(patches[from], patches[from + 1], patches[from + 2], patches[from + 3]);
                uint to = out_at(p.d, m) + n;
                if ((ALIGNED & 4u) != 0u && n + 4 <= N) storef4_d(to / 4u, TO, v);
                else [[unroll]] for (uint i = 0; i < 4; i++) if (n + i < N) storef_d(to + i, TO, v[i]);
            }
#else
            for (uint e = lane; e < SIZE * SIZE; e += LANES) {
                uint m = r + e / SIZE, n = s + e % SIZE;
                float v = patches[corner + e / SIZE * PATCH + e % SIZE];
                if (m >= LAST_ROW || n >= N) continue;
#ifndef GROUPED
                if (EPILOGUE == SCALE) v = SCALED(v, get_c(p.c + m * c_row + n * c_col));
#endif
                storef_d(FIRST_D(p, m) + n * out_col, TO, v);
            }
#endif
            subgroupBarrier();
        }
}
