#version 460
#extension GL_GOOGLE_include_directive : require
// Matrix products by tiles in shared memory, in float32 arithmetic: a workgroup computes BM x BN elements of the result, a
// thread TM x TN of them, as patches of 4 x 4 that lie a patch of all threads apart. The next tile is on its way from memory
// while one is multiplied. Threads = BM / TM * BN / TN, with BN / TN a multiple of 8 and BM / TM one of 4.
// GROUPED: rows by the matrix that index arrays say they meet (grouped.glsl); a is read along its rows.
// MASKED: masks of blocks say what is zero, and steps of K are left out in which one of a's or b's tile is nothing else.
#include "matmul.glsl"
layout(constant_id = 3) const uint BM = 64;
layout(constant_id = 4) const uint BN = 64;
layout(constant_id = 5) const uint BK = 16;
layout(constant_id = 6) const uint TM = 4;
layout(constant_id = 7) const uint TN = 4;
layout(constant_id = 8) const uint ALONG = 0;         // bit 0: a is read along its columns, not its rows; bit 1: b along its columns
layout(constant_id = 9) const uint VECTOR = 0;        // bits: a, b, the result can be accessed by fours
layout(constant_id = 10) const uint UNROLL = 1;       // steps of K that are written out
#if !defined(CONV) && !defined(GROUPED) && !defined(MASKED)
#define PLAIN
layout(constant_id = 11) const uint TWO = 0;          // 1: two of each tile, by turns: one barrier a step
layout(constant_id = 12) const uint WHOLE = 0;        // 1: all tiles lie inside the matrices, which are read by fours
layout(constant_id = 13) const uint PAIRS = 0;        // 1: lanes beside each other share columns by twos: see main()
#else
const uint TWO = 0, PAIRS = 0;
#endif
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
ACCESS(d)
OPERAND(a)
OPERAND(b)
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

const bool A_ALONG_K = (ALONG & 1u) == 0u, B_ALONG_K = (ALONG & 2u) != 0u;
const uint ROWS = BM / TM, COLUMNS = BN / TN, THREADS = ROWS * COLUMNS;       // of threads
const uint FETCH_A = BM * BK / 4 / THREADS, FETCH_B = BN * BK / 4 / THREADS;  // fours a thread reads of a tile
const uint STEP_A = BM / 4 + 1, STEP_B = BN / 4 + 1, TILES = 1 + TWO;
shared vec4 tile_a[TILES * BK * STEP_A], tile_b[TILES * BK * STEP_B];         // [k][row or column], padded

uint count(const uint from, const uint to) { return from < to ? min(to - from, 4u) : 0u; }

// Where group g of four lies in a tile: x along K, y along rows or columns.
uvec2 spot(const uint g, const bool along_k, const uint size)
{
    return along_k ? uvec2(g % (BK / 4) * 4, g / (BK / 4)) : uvec2(g / (size / 4), g % (size / 4) * 4);
}

vec4 next_a[FETCH_A], next_b[FETCH_B];

#ifdef CONV
Row rows[FETCH_A];
Tap tap;                                               // of this thread's columns of K, the same in all its fours

void start(const Place p, const uvec2 at)
{
    uint t = gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0; i < FETCH_A; i++) rows[i] = row_at(p.a, at.x + (t + i * THREADS) / (BK / 4));
    tap = tap_at(p.low + t % (BK / 4) * 4);
}

// The next fours of both tiles. Unless VECTOR says that fours do not straddle taps, each element has a tap of its own.
void fetch(const Place p, const uvec2 at, const uint k)
{
    const bool whole = (VECTOR & 3u) == 3u;
    uint t = gl_LocalInvocationID.x, first = k + t % (BK / 4) * 4;
    [[unroll]] for (uint j = 0; j < (whole ? 1u : 4u); j++) {
        Reach x = reach(whole ? tap : tap_at(first + j));
        bool valid = first + j < p.high;
        [[unroll]] for (uint i = 0; i < FETCH_A; i++) {
            bool there = valid && inside(rows[i], x);
            if (whole) next_a[i] = there ? get4_a(rows[i].at + x.a) : vec4(0.0);
            else next_a[i][j] = there ? get_a(rows[i].at + x.a) : 0.0;
        }
        [[unroll]] for (uint i = 0; i < FETCH_B; i++) {
            uint column = at.y + (t + i * THREADS) / (BK / 4), from = p.b + column * b_row + x.b;
            bool there = valid && column < N;
            if (whole) next_b[i] = there ? get4_b(from) : vec4(0.0);
            else next_b[i][j] = there ? get_b(from) : 0.0;
        }
    }
    if (whole) advance(tap, BK);
}
#else
// Four elements, `step` apart, of which `valid` lie in the matrix; zeros for the others.
#define FETCH(name, bit) \
    vec4 fetch_##name(const uint at, const uint step, const uint valid) { \
        if ((VECTOR & bit) != 0u && valid == 4u) return get4_##name(at); \
        return vec4(valid > 0u ? get_##name(at) : 0.0, valid > 1u ? get_##name(at + step) : 0.0, \
                    valid > 2u ? get_##name(at + 2u * step) : 0.0, valid > 3u ? get_##name(at + 3u * step) : 0.0); }
FETCH(a, 1u)
FETCH(b, 2u)

void start(const Place p, const uvec2 at) { }

void fetch(const Place p, const uvec2 at, const uint k)
{
    uint t = gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0; i < FETCH_A; i++) {
        uvec2 s = spot(t + i * THREADS, A_ALONG_K, BM);
        uint row = at.x + s.y, column = k + s.x;
#ifdef PLAIN
        if (WHOLE != 0u) next_a[i] = get4_a(FIRST_A(p, row) + column * a_k); else
#endif
        next_a[i] = fetch_a(FIRST_A(p, row) + column * a_k, A_ALONG_K ? a_k : a_row,
                            A_ALONG_K ? row < LAST_ROW ? count(column, p.high) : 0u : column < p.high ? count(row, M) : 0u);
    }
    [[unroll]] for (uint i = 0; i < FETCH_B; i++) {
        uvec2 s = spot(t + i * THREADS, B_ALONG_K, BN);
        uint row = k + s.x, column = at.y + s.y;
#ifdef PLAIN
        if (WHOLE != 0u) next_b[i] = get4_b(p.b + row * b_k + column * b_col); else
#endif
        next_b[i] = fetch_b(p.b + row * b_k + column * b_col, B_ALONG_K ? b_k : b_col,
                            B_ALONG_K ? column < N ? count(row, p.high) : 0u : row < p.high ? count(column, N) : 0u);
    }
}
#endif

#ifdef MASKED
const uint STEPS = 4096;                               // of K; what is beyond them is not left out
shared uint live[STEPS / 32];

BUFFER(4, of_a)
BUFFER(5, of_b)

void find_live(const Place p, const uvec2 at)
{
    uint t = gl_LocalInvocationID.x, matrix = gl_WorkGroupID.z / (EPILOGUE == PART ? (K + part - 1u) / part : 1u);
    uint down = (M - 1u) / block + 1u, across = (N - 1u) / block + 1u, deep = (K - 1u) / block + 1u;
    uvec2 first = at / block, last = (min(at + uvec2(BM, BN), uvec2(M, N)) - 1u) / block;
    bool wanted = (masks & 1u) == 0u;
    for (uint i = first.x; i <= last.x; i++)
        for (uint j = first.y; j <= last.y && !wanted; j++) wanted = uint(c8[mask_at + (matrix * down + i) * across + j]) != 0u;
    for (uint i = t; i < STEPS / 32; i += THREADS) live[i] = 0u;
    barrier();
    for (uint s = t; wanted && s < STEPS && p.low + s * BK < p.high; s += THREADS) {
        uint k = (p.low + s * BK) / block;
        bool a = (masks & 2u) == 0u, b = (masks & 4u) == 0u;
        for (uint i = first.x; i <= last.x && !a; i++) a = uint(of_a8[a_mask_at + (matrix * down + i) * deep + k]) != 0u;
        for (uint j = first.y; j <= last.y && !b; j++) b = uint(of_b8[b_mask_at + (matrix * deep + k) * across + j]) != 0u;
        if (a && b) atomicOr(live[s / 32u], 1u << s % 32u);
    }
    barrier();
}

uint next_live(const Place p, uint k)
{
    for (; k < p.high; k += BK) {
        uint s = (k - p.low) / BK;
        if (s >= STEPS || (live[s / 32u] >> s % 32u & 1u) != 0u) return k;
    }
    return p.high;
}
#define FIRST_STEP next_live(p, p.low)
#define NEXT_STEP(k) k < p.high ? next_live(p, k + BK) : k + BK
#else
#define FIRST_STEP p.low
#define NEXT_STEP(k) k + BK
#endif

void stage(const uint to)
{
    uint t = gl_LocalInvocationID.x, first_a = to * BK * STEP_A, first_b = to * BK * STEP_B;
    [[unroll]] for (uint i = 0; i < FETCH_A; i++) {
        uvec2 s = spot(t + i * THREADS, A_ALONG_K, BM);
        if (!A_ALONG_K) tile_a[first_a + s.x * STEP_A + s.y / 4u] = next_a[i];
        else [[unroll]] for (uint j = 0; j < 4; j++) tile_a[first_a + (s.x + j) * STEP_A + s.y / 4u][s.y % 4u] = next_a[i][j];
    }
    [[unroll]] for (uint i = 0; i < FETCH_B; i++) {
        uvec2 s = spot(t + i * THREADS, B_ALONG_K, BN);
        if (!B_ALONG_K) tile_b[first_b + s.x * STEP_B + s.y / 4u] = next_b[i];
        else [[unroll]] for (uint j = 0; j < 4; j++) tile_b[first_b + (s.x + j) * STEP_B + s.y / 4u][s.y % 4u] = next_b[i][j];
    }
}

vec4 sum[TM * TN / 4];

void multiply(const uint from, const uint ty, const uint tx)
{
    uint first_a = from * BK * STEP_A + ty, first_b = from * BK * STEP_B + tx;
    for (uint i = 0; i < BK; i += UNROLL) [[unroll]] for (uint u = 0; u < UNROLL; u++) {
        vec4 x[TM / 4], y[TN / 4];
        [[unroll]] for (uint j = 0; j < TM / 4; j++) x[j] = tile_a[first_a + (i + u) * STEP_A + j * ROWS];
        [[unroll]] for (uint j = 0; j < TN / 4; j++) y[j] = tile_b[first_b + (i + u) * STEP_B + j * COLUMNS];
        [[unroll]] for (uint j = 0; j < TM; j++)
            [[unroll]] for (uint l = 0; l < TN / 4; l++)
                sum[j * (TN / 4) + l] = fma(vec4(x[j / 4][j % 4]), y[l], sum[j * (TN / 4) + l]);
    }
}

void main()
{
    uint t = gl_LocalInvocationID.x, lane = t % 32u, warp = t / 32u;
    uint tx = (PAIRS != 0u ? lane / 2u % 8u : lane % 8u) + warp % (COLUMNS / 8u) * 8u;
    uint ty = (PAIRS != 0u ? lane % 2u + lane / 16u * 2u : lane / 8u) + warp / (COLUMNS / 8u) * 4u;
    uvec2 at = tile() * uvec2(BM, BN);
#ifdef GROUPED
    find_rows(at.x / BM);
    if (tile_rows == 0u) return;
    at.x = 0u;
    Place p = place(w_matrix);
#else
    Place p = place(gl_WorkGroupID.z);
    SKIP_OTHERS(p)
#endif
    [[unroll]] for (uint i = 0; i < TM * TN / 4; i++) sum[i] = vec4(0.0);
    start(p, at);
#ifdef MASKED
    find_live(p, at);
#endif
    uint begin = FIRST_STEP;
#ifdef PLAIN
    if (TWO != 0u && begin < p.high) {
        uint from = 0u;
        fetch(p, at, begin);
        stage(0u);
        barrier();
        for (uint k = begin; k < p.high; from ^= 1u) {
            uint next = NEXT_STEP(k);
            if (next < p.high) fetch(p, at, next);
            multiply(from, ty, tx);
            if (next < p.high) stage(from ^ 1u);
            barrier();
            k = next;
        }
    } else
#endif
    for (uint k = begin; k < p.high + BK; k = NEXT_STEP(k)) {
        if (k > begin) {
            barrier();
            stage(0u);
            barrier();
        }
        if (k < p.high) fetch(p, at, k);
        if (k > begin) multiply(0u, ty, tx);
    }

    [[unroll]] for (uint j = 0; j < TM; j++) {
        uint row = at.x + (j / 4 * ROWS + ty) * 4u + j % 4;
        if (row >= LAST_ROW) continue;
#ifdef CONV
        uint first = out_at(p.d, row);
        const uint step = 1u;
#else
        uint first = FIRST_D(p, row), step = out_col;
#endif
        [[unroll]] for (uint l = 0; l < TN / 4; l++) {
            uint column = at.y + (l * COLUMNS + tx) * 4u, valid = count(column, N), to = first + column * step;
            vec4 v = sum[j * (TN / 4) + l];
#ifdef PLAIN
            if (EPILOGUE == SCALE)
                [[unroll]] for (uint i = 0; i < 4; i++)
                    if (i < valid) v[i] = SCALED(v[i], get_c(p.c + row * c_row + (column + i) * c_col));
#endif
            if ((VECTOR & 4u) != 0u && valid == 4u) storef4_d(to / 4u, TO, v);
            else [[unroll]] for (uint i = 0; i < 4; i++) if (i < valid) storef_d(to + i * step, TO, v[i]);
        }
    }
}
