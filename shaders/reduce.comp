#version 460
#extension GL_GOOGLE_include_directive : require
// Reductions of one axis: `outer` rows (up to 4 strided dimensions) of `n` elements for each of `inner` columns.
//
// The tree. What a row gives depends on its elements and their order alone: not on how many rows there are, where their
// elements lie, or which threads take them. Everything here, softmax.comp, and what cuts rows in mlxvk.c keeps to it.
//   quad     four elements in a row, (a + b) + (c + d); those behind the end are the identity
//   lane     four quads, 16 quads apart, in order: lane l of a block has the quads l, l + 16, l + 32 and l + 48; sums of
//            exponentials are relative to the largest element of a lane
//   block    256 elements: its 16 lanes in order
//   piece    16 blocks in order; 16 pieces in order are the next piece, and so on until one is left
// "In order" starts from the identity; a lane, block or piece that is not there adds none or the identity: the same.
// So a row can be cut into pieces of 256 * 16^k elements whose results the next dispatch goes on with (LATER), or the
// workgroup that ends last (JOINED): it takes all pieces of the row in order, so bits do not depend on which it is.
//
// With LESS (and INDEX) a number is subtracted from the elements of each row first, and rounded as binary.comp does.
#define HALF_ID 12                                     // see half.glsl
#include "accumulate.glsl"
#include "words.glsl"
//! enum REDUCE_: layouts
const uint FOURS = 0, ANYWHERE = 1, STRIDED = 2, COLUMNS = 3, FOUR_COLUMNS = 4;
layout(constant_id = 4) const uint LAYOUT = FOURS;     // rows: aligned, side by side, with gaps; columns, by fours
layout(constant_id = 5) const uint WIDTH = 256;        // threads of a row; threads side by side on columns
layout(constant_id = 6) const uint LATER = 0;          // 1: of results of pieces: a lane is 16 of them in order
layout(constant_id = 7) const uint JOINED = 0;         // 1: of rows of at most 1024 pieces, a workgroup each
layout(constant_id = 8) const uint KEPT = 0;           // LESS: 1: the difference is written, too
layout(constant_id = 9) const uint TIMES = 0;          // 1: float32 sums are multiplied by the number at `most`
layout(constant_id = 10) const uint LANES_EACH = 4;    // WIDTH 256: lanes of a thread; 1, 2 where there are no more
layout(constant_id = 13) const uint FREE = 0;          // 1: rows whose elements may meet in any order, see free_row()
layout(constant_id = 11) const uint DEALT = 0;         // no JOINED: INDEX: a thread has every WIDTH-th four, in order, by no tree;
                                                        // else a thread has rows of up to 16 pieces, WIDTH 1, or columns of one: 1 to
                                                        // 4: the fours that a lane of a part has at most

layout(push_constant) uniform reduce_push {
    uint n, outer, inner;
    uint stride, inner_stride, inner_out;              // between elements of a row, columns, their results
    uint parts, chunk, part_out;                       // pieces of a row, their length, the distance of their results
    uint from, to, place;                              // the first element and result; the first position
    uint most;                                         // EXPSUM, LESS: the first of the rows' largest elements, numbers; TIMES: one
    uint kept;                                         // the first difference
    float scale;                                       // of a mean
    uint ndim, shape[4], in_stride[4], out_stride[4];  // of the outer dimensions
};
// Columns of a thread; code that repeats where an operation is short: exponentials are long enough once.
#if defined(PAIR)
#define HELD 1u
#define SHORT_UNROLL [[dont_unroll]]
#else
#define HELD 4u
#define SHORT_UNROLL [[unroll]]
#endif
#if defined(INDEX)                                     // the first of the best, however found
const bool ANY_ORDER = true;
#else
const bool ANY_ORDER = false;
#endif
// Lanes of a thread: rounds of a long row, or those of a row too short for a thread each. Columns of a thread.
const uint EACH = LAYOUT == FOUR_COLUMNS ? 4u : LAYOUT == COLUMNS ? 1u :
                  WIDTH == 256u ? LANES_EACH : LATER == 1u ? 1u : WIDTH > 4u ? 1u : 4u;
const uint BOARD = gl_WorkGroupSize.x * (JOINED == 1u ? 4u : EACH), TOPS = BOARD, LAST = TOPS + gl_WorkGroupSize.x / 2u;
const uint SIZE = LAST + 16u;
shared ACC board[SIZE + SIZE / 16u];                    // of lanes, or of all pieces; from TOPS on of blocks, from LAST
                                                        // on of pieces

float shift[HELD];                                     // what exponentials of sums are relative to, a column
#define less_number(v, at, count) (v)
#define FACTOR scale                                   // of results
#if defined(LESS)
BUFFER(3, number)
BUFFER(4, kept)
ACCESS(number)
ACCESS(kept)
#undef less_number
uint kept_row;
ACC element(const uvec2 raw, const uint at, const uint k) { return value(raw, place + at); }
void find_shift(const uint k, const uint i)
{
    shift[k] = loadf_number(most + i, FROM);
    kept_row = kept + i * n;
}
// The first `count` of four elements, which are at position `at`, less the row's number.
Four less_number(Four v, const uint at, const uint count)
{
    [[unroll]] for (uint k = 0u; k < 4u; k++) v.low[k] = float_to_bits(bits_to_float(v.low[k], FROM) - shift[0], FROM);
    if (KEPT == 0u) return v;
    if (LAYOUT == FOURS && count >= 4u) store4_kept((kept_row + at) / 4u, FROM, v.low);
    else [[unroll]] for (uint k = 0u; k < 4u; k++) if (k < count) store_kept(kept_row + at + k, FROM, v.low[k]);
    return v;
}
#elif defined(PAIR) || defined(INDEX)
ACC element(const uvec2 raw, const uint at, const uint k) { return value(raw, place + at); }
void find_shift(const uint k, const uint i) {}
#else
BUFFER(3, largest)
#undef FACTOR
#define FACTOR (TIMES == 1u ? uintBitsToFloat(largest32[most]) : scale)
ACC element(const uvec2 raw, const uint at, const uint k)
{
    if (OP != EXPSUM || LATER != 0u) return value(raw, place + at);
    return floatBitsToUint(exp(as_float(raw.x, FROM) - shift[k]));
}
void find_shift(const uint k, const uint i)
{
    if (OP == EXPSUM && LATER == 0u) shift[k] = max(uintBitsToFloat(largest32[most + i]), LOWEST);
}
#endif
// Adds four elements to what a lane has: as a quad, or in order.
ACC with_four(ACC a, ACC x[4])
{
#if defined(INDEX)
    [[unroll]] for (uint k = 0u; k < 4u; k++) a = combine_behind(a, x[k]);
    return a;
#endif
    if (LATER == 0u) {
        [[unroll]] for (uint k = 0u; k < 4u; k += 2u) x[k] = combine(x[k], x[k + 1u]);
        x[0] = combine(x[0], x[2]);
    }
    SHORT_UNROLL for (uint k = 0u; k < (LATER == 0u ? 1u : 4u); k++) a = combine(a, x[k]);
    return a;
}
// Where lane `lane` begins, and how far its fours are apart.
uint start_of(const uint lane) { return lane / 16u * 256u + lane % 16u * (LATER == 0u ? 4u : 16u); }
const uint STEP = LATER == 0u ? 64u : 4u;
void store(const uint i, const ACC a) { store_one(i, OP == MEAN || TIMES == 1u ? scaled(a, FACTOR) : a); }

// ---- results in order ----

uint padded(const uint i) { return i + i / 16u; }            // threads that walk sixteens meet in no bank twice
ACC sixteen(const uint me, const uint count, const uint at, const uint step)   // the sixteen number `me` of `count` values on the board
{
    ACC a = identity();
    SHORT_UNROLL for (uint i = 0u; i < 16u; i++)       // a count is a power of two: of less than 16 there is one
        if (i < count) a = combine(a, board[padded(at + (16u * me + i) * step)]);
    return a;
}

// Results of one level, one after the other: up to 256.
ACC pushed[2u * HELD];
uint pushes = 0u;
void push(const uint k, const ACC a)                               // for k = 0 last
{
    pushed[k] = combine(pushed[k], a);
    if (pushes % 16u == 15u) {
        pushed[HELD + k] = combine(pushed[HELD + k], pushed[k]);
        pushed[k] = identity();
    }
    if (k == 0u) pushes++;
}
ACC total(const uint k) { return combine(pushed[HELD + k], pushed[k]); }

uvec2 locate(uint row)
{
    uvec2 at = uvec2(from, to);
    [[unroll]] for (int d = 3; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = row / shape[d], c = row - q * shape[d];
            at += c * uvec2(in_stride[d], out_stride[d]);
            row = q;
        }
    return at;
}

// ---- rows ----

// Four elements side by side from anywhere: one load, or two that hold them, and none in a branch, so that all of a thread's are
// on their way at once.
Four fetch(const uint i)
{
    Four v = load_four(i / 4u);
    if (LAYOUT != ANYWHERE) return v;
    return Four(words_from(i & 3u, v.low, load_four((i + 3u) / 4u).low), uvec4(0u));
}
// Is the quad at `at` whole, and what is loaded for it inside the row?
bool loadable(const uint row, const uint at, const uint end)
{
    uint s = LAYOUT == ANYWHERE ? (row + at) & 3u : 0u;
    return LAYOUT < STRIDED && at + (s == 0u ? 4u : 8u - s) <= end;
}
Four fetch_apart(const uint i)
{
    uvec2 x[4];
    [[unroll]] for (uint k = 0u; k < 4u; k++) x[k] = load_one(i + k * stride);
    if (eight()) return Four(uvec4(x[0], x[1]), uvec4(x[2], x[3]));
    return Four(uvec4(x[0].x, x[1].x, x[2].x, x[3].x), uvec4(0u));
}
Four fetch_loose(const uint i, const uint count)
{
    Four v = Four(uvec4(0u), uvec4(0u));
    uvec2 x[4];
    [[unroll]] for (uint k = 0u; k < 4u; k++) x[k] = load_one(i + min(k, count - 1u) * stride);
    if (eight()) return Four(uvec4(x[0], x[1]), uvec4(x[2], x[3]));
    return Four(uvec4(x[0].x, x[1].x, x[2].x, x[3].x), uvec4(0u));
}
// Adds the first `count` elements of v, which are at position `at`.
ACC with_elements(const ACC a, const Four v, const uint at, const uint count)
{
    ACC x[4];
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        x[k] = element(of_four(v, k), at + k, 0u);
        if (k >= count) x[k] = identity();
    }
    return with_four(a, x);
}
#if defined(PAIR)
// A lane of exponentials: relative to its largest element, each once. What is not there is -infinity, which adds nothing.
bool exponentials() { return OP == LSE && LATER == 0u && FROM != C64; }
ACC lane_of(const float x[16], const uint fours)
{
    float most = -INFINITY;
    precise float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < 16u; i++) if (i < 4u * fours) most = max(most, x[i]);
    float base = clamp(most, LOWEST, -LOWEST);         // of infinities the sum is 0 or infinity, of NaN it is NaN
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        if (j >= fours) break;
        precise float a = exp(x[4u * j] - base) + exp(x[4u * j + 1u] - base);
        precise float b = exp(x[4u * j + 2u] - base) + exp(x[4u * j + 3u] - base), quad = a + b;
        sum = sum + quad;
    }
    return pack(vec2(most, sum));
}
// Those of v that are before `end`, of which v's first is number `at`.
void set_four(inout float x[16], const uint j, const Four v, const uint at, const uint end)
{
    [[unroll]] for (uint k = 0u; k < 4u; k++) x[4u * j + k] = at + k < end ? as_float(of_four(v, k).x, FROM) : -INFINITY;
}
ACC exponentials_lane(const uint row, const uint at, const uint end)
{
    float x[16];
    Four v[4];
    if (at >= end) return identity();
    if (loadable(row, at + 3u * STEP, end)) {
        [[unroll]] for (uint j = 0u; j < 4u; j++) v[j] = fetch(row + at + STEP * j);
    } else [[unroll]] for (uint j = 0u; j < 4u; j++) {
        uint i = at + STEP * j;
        v[j] = Four(uvec4(0u), uvec4(0u));
        if (loadable(row, i, end)) v[j] = fetch(row + i);
        else if (i < end) v[j] = fetch_loose(row + i * stride, end - i);
    }
    [[unroll]] for (uint j = 0u; j < 4u; j++) set_four(x, j, v[j], at + STEP * j, end);
    return lane_of(x, min((end - at - 1u) / STEP + 1u, 4u));
}
#endif
// A lane of a row of `end` elements, or of the piece of it that begins at element `first`.
ACC row_lane(const uint row, const uint first, const uint lane, const uint end)
{
    ACC a = identity();
    uint at = start_of(lane);
#if defined(PAIR)
    if (exponentials()) return exponentials_lane(row, at, end);
#else
    const bool apart = DEALT != 0u && LAYOUT == STRIDED;                   // a CPU loads one by one anyway
    if (apart ? at + 3u * STEP + 4u <= end : loadable(row, at + 3u * STEP, end)) {
        Four x[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            if (apart) x[j] = fetch_apart(row + (at + STEP * j) * stride);
            else x[j] = fetch(row + at + STEP * j);
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint place_of = first + at + STEP * j;
            a = with_elements(a, less_number(x[j], place_of, 4u), place_of, 4u);
        }
        return a;
    }
#endif
    [[dont_unroll]] for (uint j = 0u; j < 4u && at < end; j++, at += STEP) {
        Four v;
        if (loadable(row, at, end)) v = fetch(row + at);
        else v = fetch_loose(row + at * stride, end - at);
        a = with_elements(a, less_number(v, first + at, end - at), first + at, end - at);
    }
    return a;
}

#if !defined(PAIR)
// The four lanes of a thread of a row of at most 64 elements: each has one quad.
void four_lanes(const uint row, const uint first, const uint me, const uint to)
{
    Four x[4];
    [[unroll]] for (uint k = 0u; k < 4u; k++) x[k] = fetch(row + 4u * (k * WIDTH + me));
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint at = first + 4u * (k * WIDTH + me);
        board[padded(to + k * WIDTH + me)] = with_elements(identity(), less_number(x[k], at, 4u), at, 4u);
    }
}
#endif

// ---- pieces that are joined ----

#if defined(PAIR)
#define WORDS_OF(a) (a)
#define OF_WORDS(w) (w)
#elif defined(INDEX)                                   // keys of one word: rows of those of two are not cut
#define WORDS_OF(a) (a).xz
#define OF_WORDS(w) uvec3((w).x, 0u, (w).y)
#else
#define WORDS_OF(a) uvec2(a, 0u)
#define OF_WORDS(w) (w).x
#endif
#define JOINED_SLOT 2
#include "joined.glsl"
void store_piece(const uint i, const ACC a) { store_words(i, WORDS_OF(a)); }
ACC load_piece(const uint i) { return OF_WORDS(load_words(i)); }

// All pieces of a row by the tree, for thread 0: sixteen in order, sixteen of those, ...
ACC join_row(const uint row, const uint me)
{
    uint count = parts, from_board = 0u, to_board = TOPS;
    memoryBarrierBuffer();
    [[dont_unroll]] for (uint i = me; i < parts; i += 256u) board[padded(i)] = load_piece(row * parts + i);
    [[dont_unroll]] while (true) {
        ACC a = identity();
        barrier();
        [[dont_unroll]] for (uint i = 16u * me; i < min(count, 16u * me + 16u); i++)
            a = combine(a, board[padded(from_board + i)]);
        count = (count + 15u) / 16u;
        if (count == 1u) return a;
        if (me < count) board[padded(to_board + me)] = a;
        from_board = to_board;
        to_board = LAST;
    }
}

#if !defined(PAIR) && !defined(LESS)
// ---- rows whose elements may meet in any order ----
//
// Of numbers of up to four bytes side by side: the best one's position, the largest, the smallest, sums of integers. WIDTH
// threads take the aligned 16 bytes in a row, packs, wherever it begins; those that it has in part are read one by one.
// Numbers are compared as signed words that have the number on top and others of its word below.
const uint BITS = FROM <= U8 || FROM == I8 ? 8u :
                  FROM == U16 || FROM == I16 || FROM == F16 || FROM == BF16 ? 16u : 32u;
const uint IN_PACK = 128u / BITS, TOP = ~0u << (32u - BITS);
const bool FLOATS = FROM == F16 || FROM == F32 || FROM == BF16, SIGNED = FROM == I8 || FROM == I16 || FROM == I32;
const uint SIGNS = BITS == 8u ? 0x80808080u : BITS == 16u ? 0x80008000u : 0x80000000u;
const uint TURN = OP == MIN || OP == ARGMIN ? ~0u : 0u;            // the smallest is the largest complement
const int BEYOND = FROM == F16 ? 0x7c000000 : 0x7f800000;          // infinity's key: larger are NaN
const int WORST_KEY = FLOATS ? int(~uint(BEYOND) & TOP) : int(0x80000000u);

uint float_key(const uint u) { return u ^ uint(int(u) >> 31) >> 1; }            // and back
uint of_top(const int key)                                         // the bits of the number that has this key
{
    uint u = uint(key) ^ TURN;
    return (FLOATS ? float_key(u) : SIGNED ? u : u ^ 0x80000000u) >> (32u - BITS);
}
void keys_of(const uvec4 v, inout int high, inout int low)
{
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint w = FLOATS ? v[k] : v[k] ^ TURN ^ (SIGNED ? 0u : SIGNS);
        [[unroll]] for (uint s = 0u; s < 32u; s += BITS) {
            int key = int(FLOATS ? float_key(w << s) ^ TURN : w << s);
            high = max(high, key);
            if (FLOATS && !ANY_ORDER) low = min(low, key);
        }
    }
}
int alone(const int key) { return int(uint(key) & TOP); }          // a key without what is below it
int one_zero(const int key) { return FLOATS && key == int(TOP) ? 0 : key; }      // -0 as 0
uint pack_sum(const uvec4 v)
{
    if (BITS == 32u) return (v.x + v.y) + (v.z + v.w);
    uvec4 w = SIGNED ? v ^ SIGNS : v;                              // from the least on
    const uint ODD = BITS == 8u ? 0x00ff00ffu : 0x0000ffffu;
    uvec4 x = (w & ODD) + (w >> BITS & ODD);
    uint sum = (x.x + x.y) + (x.z + x.w);
    if (BITS == 8u) sum = (sum & 0xffffu) + (sum >> 16);
    return SIGNED ? sum - (IN_PACK << (BITS - 1u)) : sum;
}
ACC one_by_one(ACC a, const uint from, const uint to, const uint at)       // elements, of which the first is at position `at`
{
    [[dont_unroll]] for (uint i = from; i < to; i++) a = combine(a, value(load_one(i), at + (i - from)));
    return a;
}
#if defined(INDEX)
// The first of the four packs from q on that has the key, and where in it.
ACC find_key(const int key, uint q, const uint behind, const uint row, const uint first)
{
    uvec4 v;
    [[dont_unroll]] for (uint j = 0u; j < 4u; j++, q += WIDTH) {
        int high = WORST_KEY, low = 0;
        v = src128[q = min(q, behind - 1u)];
        keys_of(v, high, low);
        if (one_zero(alone(high)) == key) break;
    }
    uint raw = 0u, at = 0u;
    [[unroll]] for (uint k = 4u; k > 0u; k--)
        [[unroll]] for (uint s = 32u; s > 0u; s -= BITS) {
            uint bits = v[k - 1u] << (32u - s) >> (32u - BITS), top = bits << (32u - BITS);
            int other = int((FLOATS ? float_key(top) : SIGNED ? top : top ^ 0x80000000u) ^ TURN);
            if (one_zero(alone(other)) != key) continue;
            raw = bits;
            at = (32u * (k - 1u) + s) / BITS - 1u;
        }
    return value(uvec2(raw, 0u), first + (q * IN_PACK + at - row));
}
#endif
// A thread's part of a row of elements [row, end), whose first is at position `first`; whole packs are [full, behind).
ACC free_packs(ACC a, const uint full, const uint behind, const uint row, const uint first)
{
    int high = ANY_ORDER ? WORST_KEY : int(0x80000000u), low = 0x7fffffff;
    uint sum = 0u, best = 0u, me = gl_LocalInvocationID.x % WIDTH;
    [[dont_unroll]] for (uint q = full + me; q < behind; q += 4u * WIDTH) {
        uvec4 v[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) v[j] = src128[min(q + j * WIDTH, behind - 1u)];
        if (OP == SUM) {
            [[unroll]] for (uint j = 0u; j < 4u; j++) sum += q + j * WIDTH < behind ? pack_sum(v[j]) : 0u;
            continue;
        }
#if defined(INDEX)
        int here = int(0x80000000u);
        [[unroll]] for (uint j = 0u; j < 4u; j++) keys_of(v[j], here, low);
        here = one_zero(alone(here));
        if (FLOATS && here > BEYOND)                               // there is a NaN among them, which is never the best
            [[dont_unroll]] for (uint p = q; p < min(behind, q + 4u * WIDTH); p += WIDTH)
                a = one_by_one(a, p * IN_PACK, p * IN_PACK + IN_PACK, first + (p * IN_PACK - row));
        else if (here > high) {
            high = here;
            best = q;
        }
#else
        [[unroll]] for (uint j = 0u; j < 4u; j++) keys_of(v[j], high, low);
#endif
    }
#if defined(INDEX)
    return high > WORST_KEY ? combine(a, find_key(high, best, behind, row, first)) : a;
#else
    if (full + me >= behind) return a;
    if (OP == SUM) return a + sum;
    if (!FLOATS || (alone(high) <= BEYOND && alone(low) >= WORST_KEY)) return combine(a, value(uvec2(of_top(alone(high)), 0u), 0u));
    [[dont_unroll]] for (uint p = full + me; p < behind; p += WIDTH)     // NaN is the result
        a = one_by_one(a, p * IN_PACK, p * IN_PACK + IN_PACK, 0u);
    return a;
#endif
}
void free_row(const uint row, const uint first, const uint count, const uint to, const bool there)
{
    const uint tops = WIDTH / 16u;
    uint me = gl_LocalInvocationID.x % WIDTH, slot = gl_LocalInvocationID.x / WIDTH;
    uint end = row + count, full = (row + IN_PACK - 1u) / IN_PACK, behind = end / IN_PACK;
    ACC a = free_packs(identity(), full, behind, row, first);
    if (me == 0u) a = one_by_one(a, row, min(full * IN_PACK, end), first);       // of lines that were read by now
    if (me == WIDTH - 1u && behind >= full) a = one_by_one(a, behind * IN_PACK, end, first + (behind * IN_PACK - row));
    if (WIDTH > 1u) {
        board[padded(gl_LocalInvocationID.x)] = a;
        barrier();
        if (tops > 1u) {
            if (me < tops) board[padded(TOPS + slot * tops + me)] = sixteen(me, WIDTH, slot * WIDTH, 1u);
            barrier();
        }
        if (me == 0u) a = tops > 1u ? sixteen(0u, tops, TOPS + slot * tops, 1u) : sixteen(0u, WIDTH, slot * WIDTH, 1u);
    }
    if (me == 0u && there) store(to, a);
}
#endif

#if defined(INDEX)
// The best of this thread's fours, on the board for the row's first thread, which looks through them.
void deal(const uint row, const uint first, const uint me, const uint count, const uint to, const bool there)
{
    ACC best = identity();
    for (uint at = 4u * me; at < count; at += 4u * WIDTH) {
        Four v;
        if (loadable(row, at, count)) v = fetch(row + at);
        else v = fetch_loose(row + at * stride, count - at);
        v = less_number(v, first + at, count - at);
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            ACC x = element(of_four(v, k), first + at + k, 0u);
            if (at + k < count) best = combine_behind(best, x);
        }
    }
    board[gl_LocalInvocationID.x] = best;
    barrier();
    if (me != 0u || !there) return;
    [[dont_unroll]] for (uint i = 1u; i < WIDTH; i++) best = combine(best, board[gl_LocalInvocationID.x + i]);
    store(to, best);
}
#else
// A row, or a piece of it, by a thread alone: the tree's lanes one after the other. Nothing branches, for a CPU driver takes both
// ways: fours are read by the aligned ones that hold them (where there is one of the row's elements in them, else the last
// again), and what is no element of the row counts as the identity. Rows that begin anywhere go from one to the next.
uvec4 held[4];
uint last_four;
ACC quads(const uint row, const uint first, const uint at, const uint end)
{
    ACC a = identity();
#if defined(PAIR)
    float x[16];
#endif
    [[unroll]] for (uint j = 0u; j < DEALT; j++) {
        uint i = at + 64u * j;
        Four v;
        if (LAYOUT == STRIDED) v = fetch_loose(row + min(i, end - 1u) * stride, min(end - min(i, end - 1u), 4u));
        else v = load_four(min((row + i) / 4u + (LAYOUT == ANYWHERE ? 1u : 0u), last_four));
        if (LAYOUT == ANYWHERE) {
            uvec4 next = v.low;
            v.low = words_from(row & 3u, held[j], next);
            held[j] = next;
        }
#if defined(PAIR)
        if (exponentials()) {
            set_four(x, j, v, i, end);
            continue;
        }
#endif
        a = with_elements(a, v, first + i, max(end, i) - i);
    }
#if defined(PAIR)
    if (exponentials()) return lane_of(x, DEALT);
#endif
    return a;
}
void hold(const uint from)
{
    if (LAYOUT == ANYWHERE) [[unroll]] for (uint j = 0u; j < DEALT; j++) held[j] = load_four(min(from / 4u + 16u * j, last_four)).low;
}
void deal(const uint row, const uint first, const uint length, const uint to, const bool there)
{
    ACC all = identity();
    uint count = max(length, 1u);                      // where there is no row nothing is stored
    last_four = (row + count - 1u) / 4u;
    if (DEALT == 1u) {                                 // one block
        hold(row);
        [[dont_unroll]] for (uint at = 0u; at < count; at += 4u) all = combine(all, quads(row, first, at, count));
    } else [[dont_unroll]] for (uint at = 0u; at < count; at += 4096u) {
        [[dont_unroll]] for (uint block = at; block < min(count, at + 4096u); block += 256u) {
            uint end = min(block + 64u, count);        // lanes that are not there need not be pushed
            hold(row + block);
            [[dont_unroll]] for (uint i = block; i < end; i += 4u) push(0u, quads(row, first, i, count));
        }
        all = combine(all, total(0u));
        pushed[0] = pushed[HELD] = identity();
        pushes = 0u;
    }
    if (there) store(to, all);
}
#endif

void rows()
{
    const uint lanes = WIDTH * EACH, tops = max(lanes / 16u, 1u), stages = lanes == 1024u ? 2u : 1u;
    uint me = gl_LocalInvocationID.x % WIDTH, slot = gl_LocalInvocationID.x / WIDTH;
    uint task = group_index() * (gl_WorkGroupSize.x / WIDTH) + slot, row = task / parts, part = task - row * parts;
#if !defined(INDEX)
    if (DEALT != 0u) {                                 // threads side by side have parts of one length
        part = task / outer;
        row = part < parts ? task - part * outer : outer;
    }
#endif
    bool there = row < outer;
    uvec2 at = locate(there ? row : 0u);
    uint first = part * chunk, count = there ? min(chunk, n - first) : 0u, base = at.x + first * stride;
    uint rounds = WIDTH == 256u ? (min(chunk, n) - 1u) / (16u * lanes) + 1u : 1u;
    find_shift(0u, there ? row : 0u);
#if !defined(PAIR) && !defined(LESS)
    if (FREE != 0u) {
        free_row(base, place + first, count, at.y + part * part_out, there);
        return;
    }
#endif
#if defined(INDEX)
    if (DEALT != 0u) {
        deal(base, first, me, count, at.y + part * part_out, there);
        return;
    }
#else
    if (DEALT != 0u) {
        deal(base, first, count, at.y + part * part_out, there);
        return;
    }
#endif
    for (uint round = 0u; round <= rounds; round++) {
        uint lanes_left = round < rounds ? EACH : 0u;
#if !defined(PAIR)
        if (WIDTH == 4u && LATER == 0u && round == 0u && loadable(base, 4u * (3u * WIDTH + me), count)) {
            four_lanes(base, first, me, slot * lanes);
            lanes_left = 0u;
        }
#endif
        [[dont_unroll]] for (uint k = 0u; k < lanes_left; k++) {
            ACC a = row_lane(base, first, round * lanes + k * WIDTH + me, count);
            if (WIDTH == 1u) push(0u, a);
            else board[padded(slot * lanes + k * WIDTH + me)] = a;
        }
        if (WIDTH == 1u) break;
        if (lanes == 1024u || round < rounds) barrier();
        if (me == 0u && round > 0u)                    // what the round before gave
            [[dont_unroll]] for (uint k = 0u; k < (lanes == 1024u ? 4u : tops); k++)
                push(0u, board[padded(lanes == 1024u ? LAST + k : TOPS + slot * tops + k)]);
        if (round == rounds) break;
        [[dont_unroll]] for (uint stage = 0u; stage < stages; stage++) {
            uint left = stage == 0u ? lanes : tops, from = stage == 0u ? slot * lanes : TOPS;
            uint to = stage == 0u ? TOPS + slot * tops : LAST;
            if (16u * me < left) board[padded(to + me)] = sixteen(me, left, from, 1u);
            if (stage == 0u) barrier();
        }
    }
    if (JOINED == 0u) {
        if (me == 0u && there) store(at.y + part * part_out, total(0u));
        return;
    }
    if (!there) return;                                // all of the workgroup, which has one piece
    if (me == 0u) store_piece(task, total(0u));
    if (!count_piece(row, parts, me)) return;
    ACC all = join_row(row, me);
    if (me == 0u) store(at.y, all);
}

#if defined(LESS)
void columns() {}
#else
// ---- columns ----

Four load_column(const uint i)
{
    if (LAYOUT == FOUR_COLUMNS) return load_four(i / 4u);
    uvec2 x = load_one(i);
    return Four(uvec4(x, 0u, 0u), uvec4(0u));
}
uvec2 of_column(const Four v, const uint k) { return LAYOUT == FOUR_COLUMNS ? of_four(v, k) : v.low.xy; }

// Adds a lane of each column, which begins at position `at`.
ACC sums[HELD];
void column_four(const uint base, const uint at, const uint end)
{
    Four v[4];
    bool whole = DEALT == 0u && at + 4u <= end;        // else the last element stands for those behind the end
    uint first = base + at * stride, last = base + (end - 1u) * stride;
    [[unroll]] for (uint r = 0u; r < 4u; r++) v[r] = load_column(whole || at + r < end ? first + r * stride : last);
    [[unroll]] for (uint k = 0u; k < EACH; k++) {
        ACC x[4];
        [[unroll]] for (uint r = 0u; r < 4u; r++) x[r] = element(of_column(v[r], k), at + r, k);
        if (!whole) [[unroll]] for (uint r = 0u; r < 4u; r++) if (at + r >= end) x[r] = identity();
        sums[k] = with_four(sums[k], x);
    }
}
void column_lane(const uint base, uint at, const uint end)
{
#if defined(PAIR)
    if (exponentials()) {
        float x[16];
        const uint fours = DEALT != 0u ? DEALT : 4u;
        if (DEALT == 0u && at >= end) return;
        [[unroll]] for (uint r = 0u; r < 4u * fours; r++) {
            uint i = at + r / 4u * STEP + r % 4u;
            float y = as_float(load_one(base + min(i, max(end, 1u) - 1u) * stride).x, FROM);
            x[r] = i < end ? y : -INFINITY;
        }
        sums[0] = combine(sums[0], lane_of(x, DEALT != 0u ? DEALT : min((end - at - 1u) / STEP + 1u, 4u)));
        return;
    }
#endif
#if !defined(INDEX)
    if (DEALT != 0u) {                                 // nothing branches: see deal()
        [[unroll]] for (uint j = 0u; j < DEALT; j++) column_four(base, at + j * STEP, end);
        return;
    }
#endif
#if !defined(PAIR)
    if (LAYOUT == COLUMNS && !eight() && at + 3u * STEP + 4u <= end) {       // all of a lane are on their way at once
        uint raw[16];
        [[unroll]] for (uint r = 0u; r < 16u; r++) raw[r] = load_one(base + (at + r / 4u * STEP + r % 4u) * stride).x;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            ACC x[4];
            [[unroll]] for (uint r = 0u; r < 4u; r++) x[r] = element(uvec2(raw[4u * j + r], 0u), at + j * STEP + r, 0u);
            sums[0] = with_four(sums[0], x);
        }
        return;
    }
#endif
    [[dont_unroll]] for (uint j = 0u; j < 4u && at < end; j++, at += STEP) column_four(base, at, end);
}

// Pushes the blocks of which each thread of a column has a lane in sums, in order; of columns shorter than a block only
// those lanes that it has. The threads share the columns: thread y has OWN of the EACH, from column y * OWN on.
const uint HEIGHT = gl_WorkGroupSize.x / WIDTH, BLOCKS = HEIGHT < 16u ? 1u : HEIGHT / 16u;
const uint OWN = EACH > HEIGHT ? EACH / HEIGHT : 1u;
void gather(const uint x, const uint y)
{
    if (HEIGHT > 1u) {
        barrier();
        [[unroll]] for (uint k = 0u; k < EACH; k++) board[padded((k * HEIGHT + y) * WIDTH + x)] = sums[k];
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
        uint k = OWN - 1u - i, block = y * OWN + k, column = block / BLOCKS;
        if (HEIGHT == 1u) push(k, sums[k]);
        else if (block < EACH * BLOCKS) {
            ACC a = sixteen(block % BLOCKS, HEIGHT, column * HEIGHT * WIDTH + x, WIDTH);
            if (BLOCKS == 1u) push(k, a);
            else board[padded(TOPS + block * WIDTH + x)] = a;
        }
    }
    if (BLOCKS == 1u) return;
    barrier();
    if (y < EACH)
        [[dont_unroll]] for (uint b = 0u; b < BLOCKS; b++) push(0u, board[padded(TOPS + (y * BLOCKS + b) * WIDTH + x)]);
}

void columns()
{
    uint x = gl_LocalInvocationID.x % WIDTH, y = gl_LocalInvocationID.x / WIDTH;
    uint units = inner / EACH, all = outer * units, tiles = (all + WIDTH - 1u) / WIDTH;
    uint group = group_index(), part = group / tiles, q = (group - part * tiles) * WIDTH + x;
    bool there = q < all && part < parts;
    uint row = there ? q / units : 0u, column = there ? (q - row * units) * EACH : 0u;
    uvec2 at = locate(row);
    uint base = at.x + column * inner_stride, first = part * chunk, end = there ? min(n, first + chunk) : 0u;
    uint length = (min(chunk, n) - 1u) / (256u * BLOCKS) + 1u;         // a thread alone takes one block, or DEALT up to 16, by lanes
    uint rounds = HEIGHT > 1u ? length : DEALT != 0u ? min(16u * length, (min(chunk, n) + 3u) / 4u) : 16u;
    [[unroll]] for (uint k = 0u; k < EACH; k++) find_shift(k, row * inner + column + k);
#if defined(INDEX)
    if (DEALT != 0u) {
        [[unroll]] for (uint k = 0u; k < EACH; k++) sums[k] = identity();
        for (uint four = first + 4u * y; four < end; four += 4u * HEIGHT) column_four(base, four, end);
        [[unroll]] for (uint k = 0u; k < EACH; k++) board[(k * HEIGHT + y) * WIDTH + x] = sums[k];
        barrier();
        if (!there || y != 0u) return;
        [[unroll]] for (uint k = 0u; k < EACH; k++) {
            [[dont_unroll]] for (uint i = 1u; i < HEIGHT; i++) sums[k] = combine(sums[k], board[(k * HEIGHT + i) * WIDTH + x]);
            store(at.y + part * part_out + (column + k) * inner_out, sums[k]);
        }
        return;
    }
#endif
    [[dont_unroll]] for (uint round = 0u; round < rounds; round++) {
        if (!ANY_ORDER || round == 0u)
            [[unroll]] for (uint k = 0u; k < EACH; k++) sums[k] = identity();
        column_lane(base, first + start_of(HEIGHT == 1u ? round : 16u * BLOCKS * round + y), end);
        if (ANY_ORDER && round + 1u < rounds) continue;
        gather(x, y);
    }
    if (!there || y * OWN >= EACH) return;
    [[unroll]] for (uint k = 0u; k < OWN; k++) store(at.y + part * part_out + (column + y * OWN + k) * inner_out, total(k));
}
#endif

void main()
{
    [[unroll]] for (uint k = 0u; k < 2u * HELD; k++) pushed[k] = identity();
    if (LAYOUT < COLUMNS) rows();
    else columns();
}
