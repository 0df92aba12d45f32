#version 460
#extension GL_GOOGLE_include_directive : require
// Softmax in float32 of `outer` rows (up to 4 strided dimensions) of n elements side by side; the result is row-major.
// The sum of exponentials follows the tree of reduce.comp, so that all ways give a row the same bits.
//   HELD: a row fits the registers of WIDTH threads, 4 * HOLD elements each, and is read once.
//   LOOPED: three passes over the row: maximum, sum, results.
//   APPLY: maximum and sum of exponentials are given for each row and each of `inner` columns; operand row-major; HOLD loads.
#define HALF_ID 9                                      // see half.glsl
#include "common.glsl"
#include "eights.glsl"
//! enum SOFTMAX_: modes
const uint HELD = 0, LOOPED = 1, APPLY = 2;
layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint T = 10;
layout(constant_id = 3) const uint STEP = 1;           // elements of one load: 1, 4, or (HELD, two bytes each) 8
layout(constant_id = 4) const uint WIDTH = 256;
layout(constant_id = 5) const uint HOLD = 4;
layout(constant_id = 6) const uint LOOSE = 0;          // HELD, STEP 8: 1: rows begin and end anywhere; 2: the operand's begin anywhere
layout(constant_id = 7) const uint FOURS = 0;          // APPLY, STEP 4: 1: of four columns, HOLD rows below each other
layout(constant_id = 8) const uint STAGED = 0;         // LOOSE: no load in a branch; 1: results go through shared memory, in so many rounds

layout(push_constant) uniform softmax_push {
    uint n, outer, inner, from, to, most_at, sums_at;        // the first element of operand, result, maxima and sums
    uint ndim, shape[4], stride[4];                    // of the outer dimensions
};
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, largest)
BUFFER(3, total)
ACCESS(dst)
ACCESS(src)
#include "loose.glsl"
LOOSE_STORE(dst)
const bool THROUGH = STAGED != 0u && LOOSE == 1u;
const uint ROUND = STAGED == 0u ? 8u : (WIDTH * HOLD / 2u + STAGED - 1u) / STAGED * 8u, ROW_WORDS = T == F32 ? ROUND / 4u : ROUND / 8u;
shared uvec4 staged[THROUGH ? gl_WorkGroupSize.x / WIDTH * ROW_WORDS : 1u];
LOOSE_ROW(dst)
uvec4 loose_quad(const uint which, const uint i) { return src128[i]; }

const float LOWEST = -3.402823466e+38;
// What exponentials are multiplied by: NaN in a row of nothing but -infinity, or with NaN or infinity in it, whatever a device
// says that 1 / 0 and exp(NaN) are. Other sums are from 1 to n.
float share_of(const float sum) { return sum > 0.0 && sum < INFINITY ? 1.0 / sum : NOT_A_NUMBER; }
const uint THREADS = gl_WorkGroupSize.x;
// Lanes of a thread: of one quad in short rows, or of four, or as many as there are in a row of one block (256 elements).
const uint EACH = WIDTH <= 4u ? HOLD : STEP == 8u ? (HOLD + 7u) / 8u * 2u : (HOLD + 3u) / 4u;
const uint LANES = WIDTH * EACH;                       // of a row, or of one round of it: up to 32, or a multiple of 64
const uint TOPS = LANES <= 16u ? 1u : LANES / 16u, PIECES = (TOPS + 15u) / 16u;
const uint RUNS = WIDTH / 16u, RUN_QUADS = (RUNS + 3u) / 4u, MAXIMA = THREADS / WIDTH * RUN_QUADS, SUMS = THREADS * EACH / 64u + 1u;
shared float board[THREADS * EACH + THREADS * EACH / 16u + 1u];
shared vec4 tops[MAXIMA > SUMS ? MAXIMA : SUMS];       // what sixteen on the board give, read by all threads of a row

uint padded(const uint i) { return i + i / 16u; }

// Results, from 0 to 1. Of bfloat16 the nearest one, and below 2^-126 what that has of them: all ways give the same bits.
vec4 share_floats(const vec4 x) { return T == BF16 ? nearest_floats(x, 0.0) : x; }
vec4 share_numbers(const vec4 x)
{
    return T == BF16 ? uintBitsToFloat(floatBitsToUint(share_floats(x)) & 0xffff0000u) : x;
}
uvec4 eight_shares(const vec4 a, const vec4 b)
{
    if (T != BF16) return eight_rounded(a, b, T);
    return join_uppers(floatBitsToUint(share_floats(a)), floatBitsToUint(share_floats(b)));
}

float most(const vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }
float quad(const vec4 x) { return (x.x + x.y) + (x.z + x.w); }

// The maximum over the WIDTH threads of a row; every one gets it. Behind it the board may be written, tops after a barrier.
float largest_of(float v, const uint me, const uint slot)
{
    uint first = slot * WIDTH, top = slot * RUN_QUADS;
    board[first + me] = v;
    barrier();
    if (WIDTH <= 16u) {
        [[unroll]] for (uint i = 0u; i < WIDTH; i++) v = max(v, board[first + i]);
        barrier();
        return v;
    }
    if (me < 4u * RUN_QUADS) {                         // the last ones may be the same
        [[unroll]] for (uint i = 0u; i < 16u; i++) v = max(v, board[first + min(me, RUNS - 1u) + i * RUNS]);
        tops[top + me / 4u][me % 4u] = v;
    }
    barrier();
    vec4 all = tops[top];
    [[unroll]] for (uint i = 1u; i < RUN_QUADS; i++) all = max(all, tops[top + i]);
    return most(all);
}

// What every thread of a row gets of the sums of lanes on the board: piece `piece` of them, or all that are no more.
float sixteen(const uint from, const uint count)                   // count is 16, or fewer that end before the next sixteen
{
    float v = 0.0;
    uint at = padded(from);
    [[unroll]] for (uint i = 0u; i < count; i++) v += board[at + i];
    return v;
}
void fold(const uint me, const uint slot)
{
    barrier();
    if (LANES <= 16u) return;
    for (uint i = me, at = slot * TOPS + me; i < TOPS; i += WIDTH, at += WIDTH) tops[at / 4u][at % 4u] = sixteen(16u * at, 16u);
    barrier();
}
float piece_sum(const uint slot, const uint piece)
{
    float v = 0.0;
    uint at = slot * TOPS;
    if (LANES <= 16u) return sixteen(slot * LANES, LANES);
    if (TOPS < 4u) return tops[at / 4u][at % 4u] + tops[at / 4u][at % 4u + 1u];
    [[unroll]] for (uint i = 0u; i < (TOPS < 16u ? TOPS : 16u) / 4u; i++) {
        if (TOPS % 16u != 0u && 4u * piece + i >= TOPS / 4u) continue;
        vec4 t = tops[at / 4u + 4u * piece + i];
        v = (((v + t.x) + t.y) + t.z) + t.w;
    }
    return v;
}

uint locate(uint row)
{
    uint at = from;
    [[unroll]] for (int d = 3; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = row / shape[d];
            at += (row - q * shape[d]) * stride[d];
            row = q;
        }
    return at;
}

// Quad k of this thread, in its lane: the lane's number, and where the quad begins.
uint lane_of(const uint k, const uint me)
{
    if (WIDTH <= 4u) return STEP == 8u ? 2u * (me + k / 2u * WIDTH) + k % 2u : me + k * WIDTH;
    return STEP == 8u ? 2u * (me + k / 8u * WIDTH) + k % 2u : me + k / 4u * WIDTH;
}
uint spot_of(const uint k, const uint me)
{
    uint lane = lane_of(k, me);
    if (WIDTH <= 4u) return 4u * lane;
    return 256u * (lane / 16u) + 4u * (lane % 16u) + 64u * (STEP == 8u ? k % 8u / 2u : k % 4u);
}

// Four elements; beyond the row: -infinity.
vec4 load(const uint base, const uint at)
{
    if (STEP >= 4u) return at < n ? loadf4_src((base + at) / 4u, T) : vec4(-INFINITY);
    vec4 r;
    [[unroll]] for (uint k = 0u; k < 4u; k++) r[k] = at + k < n ? loadf_src(base + at + k, T) : -INFINITY;
    return r;
}
void store(const uint base, const uint at, const vec4 results)
{
    vec4 x = share_numbers(results);
    if (STEP >= 4u) {
        if (at < n) storef4_dst((base + at) / 4u, T, x);
        return;
    }
    [[unroll]] for (uint k = 0u; k < 4u; k++)
        if (at + k < n) storef_dst(base + at + k, T, x[k]);
}

// All quads of this thread: what is beyond the row is read again from its end, so that no load waits for a branch.
void load_all(const uint base, const uint me, out vec4 x[HOLD])
{
    if (STEP == 1u) {
        [[unroll]] for (uint k = 0u; k < HOLD; k++) x[k] = load(base, spot_of(k, me));
        return;
    }
    if (LOOSE != 0u) {
        uvec4 four = uvec4(0u, 1u, 2u, 3u);
        [[unroll]] for (uint k = 0u; k < HOLD; k += 2u) {
            uint i = spot_of(k, me);
            x[k] = x[k + 1u] = vec4(-INFINITY);
            if (STAGED == 0u && i >= n) continue;
            eight r = loose_eight(loose_load(0u, base + i, base + n - 1u, T), T);
            x[k] = r.a;
            x[k + 1u] = r.b;
        }
        [[unroll]] for (uint k = 0u; k < HOLD; k += 2u) {
            uint i = spot_of(k, me);
            if (STAGED != 0u && i + 8u <= n) continue;
            x[k] = mix(x[k], vec4(-INFINITY), greaterThanEqual(i + four, uvec4(n)));
            x[k + 1u] = mix(x[k + 1u], vec4(-INFINITY), greaterThanEqual(i + 4u + four, uvec4(n)));
        }
        return;
    }
    [[unroll]] for (uint k = 0u; k < HOLD; k++) x[k] = loadf4_src((base + min(spot_of(k, me), n - 4u)) / 4u, T);
    if (n == 4u * HOLD * WIDTH) return;
    [[unroll]] for (uint k = 0u; k < HOLD; k++)
        if (spot_of(k, me) >= n) x[k] = vec4(-INFINITY);
}

// Stores whole eights, then those at the row's end that are none: one thread's.
void store_loose(const uint at, const uint me, const vec4 x[HOLD], const float s, const bool nowhere)
{
    Loose rest;
    uint count = 0u, first = n / 8u * 8u;
    [[unroll]] for (uint k = 0u; k < HOLD; k += 2u) {
        uint i = spot_of(k, me);
        vec4 a = x[k] * s, b = x[k + 1u] * s;
        Loose w = Loose(floatBitsToUint(a), floatBitsToUint(b));
        if (T != F32) w.a = nowhere ? eight_shares(a, b) : uvec4(0x7fff7fffu);
        if (i < first) loose_dst(at + i, T, w);
        if (i == first) {
            rest = w;
            count = n - first;
        }
    }
    loose_few_dst(at + first, count, T, rest);
}

// The same through shared memory, ROUND elements after the other. All threads take part; a row that is not there has no elements.
void store_staged(const uint at, const uint me, const uint slot, const vec4 x[HOLD], const float s, const bool nowhere, const bool there)
{
    uint row = slot * ROW_WORDS;
    [[dont_unroll]] for (uint start = 0u; start < n; start += ROUND) {
        if (start > 0u) barrier();
        [[unroll]] for (uint k = 0u; k < HOLD; k += 2u) {
            uint i = spot_of(k, me), j = i - start;
            vec4 a = x[k] * s, b = x[k + 1u] * s;
            if (i >= n || (STAGED > 1u && j >= ROUND)) continue;
            if (T == F32) {
                staged[row + j / 4u] = floatBitsToUint(a);
                staged[row + j / 4u + 1u] = floatBitsToUint(b);
            } else staged[row + j / 8u] = nowhere ? eight_shares(a, b) : uvec4(0x7fff7fffu);
        }
        barrier();
        if (there) loose_row_dst(row, at + start, min(n - start, ROUND), T, me, WIDTH);
        if (STAGED == 1u) return;
    }
}

// Of halves the words themselves: what is beyond the row is filled in by twos, and 16384 rows of 8192 take an H200 139 us, not 140.
const bool WORDS = STEP == 8u && T != F32 && LOOSE == 0u;
uvec4 words[HOLD < 2u ? 1u : HOLD / 2u];
vec4 quad_of(const uint k) { uvec4 w = words[k / 2u]; return four_halves(k % 2u == 0u ? w.xy : w.zw, T); }
void load_words(const uint base, const uint me)
{
    const uint none = T == BF16 ? 0xff80ff80u : 0xfc00fc00u;       // -infinity twice
    [[unroll]] for (uint k = 0u; k < HOLD; k += 2u) words[k / 2u] = src128[(base + min(spot_of(k, me), n - 8u)) / 8u];
    if (n == 4u * HOLD * WIDTH) return;
    [[unroll]] for (uint k = 0u; k < HOLD; k += 2u) if (spot_of(k, me) >= n) words[k / 2u] = uvec4(none);
}

// Of more elements than registers have room for the words alone are held, and exponentials made once more.
const bool AGAIN = WORDS && WIDTH * HOLD > 8192u;
vec4 again(const uint k, const float m) { return exp(quad_of(k) - (m + uintBitsToFloat(n >> 31))); }   // + 0, unknown to compilers

void held(const uint row, const uint me, const uint slot)
{
    bool there = row < outer;
    uint base = locate(there ? row : 0u), at = to + row * n;
    vec4 x[HOLD];
    float m = LOWEST, s = 0.0, lane[EACH];
    if (WORDS) load_words(base, me);
    else load_all(base, me, x);
    [[unroll]] for (uint k = 0u; k < HOLD; k++) m = max(m, most(WORDS ? quad_of(k) : x[k]));
    m = largest_of(m, me, slot);
    [[unroll]] for (uint k = 0u; k < EACH; k++) lane[k] = 0.0;
    [[unroll]] for (uint k = 0u; k < HOLD; k++) {
        x[k] = exp((WORDS ? quad_of(k) : x[k]) - m);
        lane[WIDTH <= 4u ? k : STEP == 8u ? k / 8u * 2u + k % 2u : k / 4u] += quad(x[k]);
    }
    [[unroll]] for (uint k = 0u; k < EACH; k++) {
        uint first = WIDTH <= 4u ? k : STEP == 8u ? k / 2u * 8u + k % 2u : 4u * k;
        board[padded(slot * LANES + lane_of(first, me))] = lane[k];
    }
    fold(me, slot);
    [[unroll]] for (uint i = 0u; i < PIECES; i++) s += piece_sum(slot, i);
    s = share_of(s);
    bool nowhere = !is_nan(s);                         // NaN is in all of the row, or nowhere: no result needs a test
    if (THROUGH) store_staged(at, me, slot, x, s, nowhere, there);
    if (THROUGH || !there) return;
    if (LOOSE == 1u) store_loose(at, me, x, s, nowhere);
    else if (STEP == 8u && T != F32)
        [[unroll]] for (uint k = 0u; k < HOLD; k += 2u) {
            uint i = spot_of(k, me);
            vec4 a = AGAIN ? again(k, m) : x[k], b = AGAIN ? again(k + 1u, m) : x[k + 1u];
            uvec4 y = nowhere ? eight_shares(a * s, b * s) : uvec4(0x7fff7fffu);
            if (i < n) dst128[(at + i) / 8u] = y;
        }
    else
        [[unroll]] for (uint k = 0u; k < HOLD; k++) store(at, spot_of(k, me), x[k] * s);
}

// Sums of pieces in order, as those of reduce.comp: level by level.
float level[6];
void push(float v, uint piece)
{
    for (uint i = 0u; i < 6u; i++, piece /= 16u) {
        v = level[i] += v;
        if (piece % 16u != 15u) return;
        level[i] = 0.0;
    }
}

void looped(const uint row, const uint me, const uint slot)
{
    const uint round = 16u * LANES;
    bool there = row < outer;
    uint base = locate(there ? row : 0u);
    float m = LOWEST, s = 0.0;
    for (uint first = 0u; first < n; first += round)
        [[unroll]] for (uint k = 0u; k < HOLD; k++) m = max(m, most(load(base, first + spot_of(k, me))));
    m = largest_of(m, me, slot);
    for (uint i = 0u; i < 6u; i++) level[i] = 0.0;
    for (uint first = 0u; first < n; first += round) {
        float lane = 0.0;
        vec4 x[4];
        [[unroll]] for (uint k = 0u; k < 4u; k++) x[k] = load(base, first + spot_of(k, me));
        [[unroll]] for (uint k = 0u; k < 4u; k++) lane += quad(exp(x[k] - m));
        board[padded(slot * LANES + me)] = lane;
        fold(me, slot);
        for (uint i = 0u; i < PIECES; i++) push(piece_sum(slot, i), first / 4096u + i);
    }
    for (uint i = 0u; i < 6u; i++) s = level[i] + s;
    s = share_of(s);
    if (!there) return;
    for (uint first = 0u; first < n; first += round)
        [[unroll]] for (uint k = 0u; k < HOLD; k++) {
            uint i = first + spot_of(k, me);
            store(to + row * n, i, exp(load(base, i) - m) * s);
        }
}

vec2 given(const uint i)
{
    return vec2(max(uintBitsToFloat(largest32[most_at + i]), LOWEST), share_of(uintBitsToFloat(total32[sums_at + i])));
}
// Of four columns, whose maxima and sums are read once.
void apply_fours()
{
    uint fours = inner / 4u, deep = n / inner, blocks = (deep + HOLD - 1u) / HOLD;
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, block = i / fours, column = 4u * (i - block * fours);
    uint slab = block / blocks, first = (block - slab * blocks) * HOLD, p = slab * inner + column, at = slab * n + column;
    if (slab >= outer) return;
    vec4 x[HOLD], m, s;
    [[unroll]] for (uint l = 0u; l < 4u; l++) {
        vec2 one = given(p + l);
        m[l] = one.x;
        s[l] = one.y;
    }
    [[unroll]] for (uint k = 0u; k < HOLD; k++) x[k] = loadf4_src((from + at + min(first + k, deep - 1u) * inner) / 4u, T);
    [[unroll]] for (uint k = 0u; k < HOLD; k++)
        if (first + k < deep) storef4_dst((to + at + (first + k) * inner) / 4u, T, share_numbers(exp(x[k] - m) * s));
}
// HOLD * STEP elements side by side; of rows side by side (inner 1) of two at most, whose end and beginning a load may hold.
void apply()                                           // n: of the whole row, inner * what is reduced
{
    uint i = (group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x) * HOLD * STEP, all = outer * n;
    uint row = i / n, in_row = i - row * n, column = in_row % inner, whole = all / STEP * STEP, end = min(i + HOLD * STEP, all);
    if (i >= all) return;
    vec2 one = given(row * inner + column), two = one;
    if (inner == 1u && HOLD * STEP > 1u) two = given(min(row + 1u, outer - 1u));
    [[dont_unroll]] for (uint k = 0u; k < HOLD && i < whole; k++) {
        if (inner != 1u) one = given(row * inner + column);
        bvec4 next = greaterThanEqual(in_row + uvec4(0u, 1u, 2u, 3u), uvec4(n));
        vec4 m = mix(vec4(one.x), vec4(two.x), next), s = mix(vec4(one.y), vec4(two.y), next);
        if (STEP == 1u) storef_dst(to + i, T, share_numbers(vec4(exp(loadf_src(from + i, T) - m.x) * s.x)).x);
        else storef4_dst((to + i) / 4u, T, share_numbers(exp(loadf4_src((from + i) / 4u, T) - m) * s));
        i += STEP;
        in_row += STEP;
        column += STEP;
        if (column >= inner) column -= inner;
        if (inner != 1u && in_row >= n) {
            in_row -= n;
            row++;
        }
    }
    for (; STEP == 4u && i >= whole && i < end; i++, in_row++) {                // fewer than four, of the last row; once, where dst is src
        vec2 a = given(outer - 1u);
        storef_dst(to + i, T, share_numbers(vec4(exp(loadf_src(from + i, T) - a.x) * a.y)).x);
    }
}

void main()
{
    uint lane = gl_LocalInvocationID.x % WIDTH, slot = gl_LocalInvocationID.x / WIDTH;
    uint row = group_index() * (gl_WorkGroupSize.x / WIDTH) + slot;
    if (FOURS != 0u) apply_fours();
    else if (MODE == APPLY) apply();
    else if (MODE == HELD) held(row, lane, slot);
    else looped(row, lane, slot);
}
