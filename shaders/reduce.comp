#version 460
#extension GL_GOOGLE_include_directive : require
// Reductions of one axis: `outer` rows (up to 4 strided dimensions) of `n` elements for each of `inner` columns.
//
// The tree. What a row gives depends on its elements and their order alone: not on how many rows there are, where their
// elements lie, or which threads take them. Everything here, softmax.comp, and what cuts rows in mlxvk.c keeps to it.
//   quad     four elements in a row, (a + b) + (c + d); those behind the end are the identity
//   lane     four quads, 16 quads apart, in order: lane l of a block has the quads l, l + 16, l + 32 and l + 48
//   block    256 elements: its 16 lanes in order
//   piece    16 blocks in order; 16 pieces in order are the next piece, and so on until one is left
// "In order" starts from the identity; a lane, block or piece that is not there adds none or the identity, which is the same.
// So a row can be cut into pieces of 256 * 16^k elements whose results the next dispatch goes on with (LATER).
#include "accumulate.glsl"
const uint FOURS = 0, ANYWHERE = 1, STRIDED = 2, COLUMNS = 3, FOUR_COLUMNS = 4;
layout(constant_id = 4) const uint LAYOUT = FOURS;     // rows: aligned, side by side, or with gaps; columns, or four to a thread
layout(constant_id = 5) const uint WIDTH = 256;        // threads of a row; threads side by side on columns
layout(constant_id = 6) const uint LATER = 0;          // 1: the elements are results of pieces: a lane is 16 of them in order

layout(push_constant) uniform Push {
    uint n, outer, inner;
    uint stride, inner_stride, inner_out;              // between reduced elements, between columns, between their results
    uint parts, chunk, part_out;                       // pieces of a row, their length, the distance of their results
    uint from, to, place;                              // the first element and result; the position of the first element
    uint most;                                         // EXPSUM: the first of the rows' largest elements
    float scale;                                       // of a mean
    uint ndim, shape[4], in_stride[4], out_stride[4];  // of the outer dimensions
};
#if defined(PAIR)
#define HELD 1u                                        // columns of a thread: exponentials are long enough once
#else
#define HELD 4u
#endif
// Lanes of a thread: rounds of a long row, or those of a row too short for a thread each. Columns of a thread.
const uint EACH = LAYOUT == FOUR_COLUMNS ? 4u : LAYOUT == COLUMNS ? 1u : WIDTH == 256u ? 4u : LATER == 1u ? 1u : WIDTH > 4u ? 1u : 4u;
const uint BOARD = gl_WorkGroupSize.x * EACH;
shared ACC board[BOARD + BOARD / 16u + 1u], tops[gl_WorkGroupSize.x / 2u + gl_WorkGroupSize.x / 32u + 1u], last[4];

float shift[HELD];                                     // what exponentials of sums are relative to, a column
#if defined(PAIR) || defined(INDEX)
ACC element(uvec2 raw, uint at, uint k) { return value(raw, place + at); }
void find_shift(uint k, uint i) {}
#else
BUFFER(2, largest)
ACC element(uvec2 raw, uint at, uint k)
{
    if (OP != EXPSUM || LATER != 0u) return value(raw, place + at);
    return floatBitsToUint(exp(as_float(raw.x, FROM) - shift[k]));
}
void find_shift(uint k, uint i) { if (OP == EXPSUM && LATER == 0u) shift[k] = max(uintBitsToFloat(largest32[most + i]), LOWEST); }
#endif
ACC quad(ACC a, ACC b, ACC c, ACC d) { return combine(combine(a, b), combine(c, d)); }
void store(uint i, ACC a) { store_one(i, OP == MEAN ? scaled(a, scale) : a); }

// ---- results in order: sixteens of the board's on the way to one ----

uint padded(uint i) { return i + i / 16u; }            // threads that walk sixteens meet in no bank
ACC sixteen_of_board(uint me, uint count, uint at, uint step)
{
    ACC a = identity();
    for (uint i = 16u * me; i < min(16u * me + 16u, count); i++) a = combine(a, board[padded(at + i * step)]);
    return a;
}
void to_tops(uint me, uint count, uint at, uint step, uint top)
{
    if (16u * me < count) tops[padded(top)] = sixteen_of_board(me, count, at, step);
}

// Results of one level, one after the other: up to 256.
ACC pushed[2u * HELD];
uint pushes = 0u;
void push(uint k, ACC a)                               // for k = 0 last
{
    pushed[k] = combine(pushed[k], a);
    if (pushes % 16u == 15u) {
        pushed[HELD + k] = combine(pushed[HELD + k], pushed[k]);
        pushed[k] = identity();
    }
    if (k == 0u) pushes++;
}
ACC total(uint k) { return combine(pushed[HELD + k], pushed[k]); }

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

// Four elements side by side from anywhere: one load, or two that hold them.
Four fetch(uint i)
{
    uint s = LAYOUT == ANYWHERE ? i & 3u : 0u;
    Four a = load_four(i / 4u);
    if (s == 0u) return a;
    uvec4 b = load_four(i / 4u + 1u).low;
    if (s == 1u) return Four(uvec4(a.low.yzw, b.x), uvec4(0u));
    return Four(s == 2u ? uvec4(a.low.zw, b.xy) : uvec4(a.low.w, b.xyz), uvec4(0u));
}
// Is the quad at `at` whole, and what is loaded for it inside the row?
bool loadable(uint row, uint at, uint end)
{
    uint s = LAYOUT == ANYWHERE ? (row + at) & 3u : 0u;
    return LAYOUT < STRIDED && at + (s == 0u ? 4u : 8u - s) <= end;
}
ACC quad_of(Four v, uint first, uint at)
{
    at += first;
    return quad(element(of_four(v, 0u), at, 0u), element(of_four(v, 1u), at + 1u, 0u),
                element(of_four(v, 2u), at + 2u, 0u), element(of_four(v, 3u), at + 3u, 0u));
}
ACC loose_quad(uint row, uint first, uint at, uint end)
{
    ACC x[4];
    for (uint k = 0u; k < 4u; k++) {
        x[k] = identity();
        if (at + k < end) x[k] = element(load_one(row + (at + k) * stride), first + at + k, 0u);
    }
    return quad(x[0], x[1], x[2], x[3]);
}
// A lane of a row of `end` elements, or of the piece of it that begins at element `first`.
ACC row_lane(uint row, uint first, uint lane, uint end)
{
    ACC a = identity();
    if (LATER != 0u) {
        for (uint i = 16u * lane; i < min(16u * lane + 16u, end); i++) a = combine(a, element(load_one(row + i * stride), first + i, 0u));
        return a;
    }
    uint at = 256u * (lane / 16u) + 4u * (lane % 16u);
    Four x[4];
    bool whole = loadable(row, at + 192u, end);
    if (whole)
        [[unroll]] for (uint j = 0u; j < 4u; j++) x[j] = fetch(row + at + 64u * j);
    for (uint j = 0u; j < 4u && at < end; j++, at += 64u) {
        bool one = !whole && loadable(row, at, end);
        Four v = x[0];
        if (one) v = fetch(row + at);
        else if (j == 1u) v = x[1];
        else if (j == 2u) v = x[2];
        else if (j == 3u) v = x[3];
        ACC q;
        if (whole || one) q = quad_of(v, first, at);
        else q = loose_quad(row, first, at, end);
        a = combine(a, q);
    }
    return a;
}

void rows()
{
    const uint lanes = WIDTH * EACH;
    uint me = gl_LocalInvocationID.x % WIDTH, slot = gl_LocalInvocationID.x / WIDTH;
    uint task = group_index() * (gl_WorkGroupSize.x / WIDTH) + slot, row = task / parts, part = task - row * parts;
    bool there = row < outer;
    uvec2 at = locate(there ? row : 0u);
    uint first = part * chunk, count = there ? min(chunk, n - first) : 0u, base = at.x + first * stride;
    uint rounds = WIDTH == 256u ? (min(chunk, n) - 1u) / (16u * lanes) + 1u : 1u;
    find_shift(0u, there ? row : 0u);
    if (WIDTH == 1u) {
        ACC a = row_lane(base, first, 0u, count);
        for (uint k = 1u; k < EACH; k++) a = combine(a, row_lane(base, first, k, count));
        if (there) store(at.y + part * part_out, a);
        return;
    }
    for (uint round = 0u; round < rounds; round++) {
        for (uint k = 0u; k < EACH; k++)
            board[padded(slot * lanes + k * WIDTH + me)] = row_lane(base, first, round * lanes + k * WIDTH + me, count);
        barrier();
        if (lanes == 1024u && me == 0u && round > 0u) for (uint k = 0u; k < 4u; k++) push(0u, last[k]);
        to_tops(me, lanes, slot * lanes, 1u, slot * max(lanes / 16u, 1u) + me);
        barrier();
        if (lanes == 1024u && me < 4u) {
            ACC a = identity();
            for (uint i = 0u; i < 16u; i++) a = combine(a, tops[padded(16u * me + i)]);
            last[me] = a;
        }
    }
    if (lanes == 1024u) barrier();
    if (me > 0u || !there) return;
    for (uint k = 0u; k < (lanes == 1024u ? 4u : max(lanes / 16u, 1u)); k++)
        if (lanes == 1024u) push(0u, last[k]);
        else pushed[0] = combine(pushed[0], tops[padded(slot * max(lanes / 16u, 1u) + k)]);
    store(at.y + part * part_out, total(0u));
}

// ---- columns ----

Four load_column(uint i)
{
    if (LAYOUT == FOUR_COLUMNS) return load_four(i / 4u);
    uvec2 x = load_one(i);
    return Four(uvec4(x, 0u, 0u), uvec4(0u));
}
uvec2 of_column(Four v, uint k) { return LAYOUT == FOUR_COLUMNS ? of_four(v, k) : v.low.xy; }

// Adds a lane's results from the quads at position `at` on: to `a`, a column each.
ACC sums[HELD];
void column_lane(uint base, uint at, uint end)
{
    for (uint k = 0u; k < EACH; k++) sums[k] = identity();
    if (LATER != 0u) {
        uint block = at & ~255u;                       // where a lane has 16 in order
        at = block + 4u * (at - block);
        for (uint r = at; r < min(at + 16u, end); r++) {
            Four v = load_column(base + r * stride);
            [[unroll]] for (uint k = 0u; k < EACH; k++) sums[k] = combine(sums[k], element(of_column(v, k), r, k));
        }
        return;
    }
    for (uint j = 0u; j < 4u && at < end; j++, at += 64u) {
        Four v[4];
        [[unroll]] for (uint r = 0u; r < 4u; r++) v[r] = load_column(base + min(at + r, end - 1u) * stride);
        [[unroll]] for (uint k = 0u; k < EACH; k++) {
            ACC x[4];
            [[unroll]] for (uint r = 0u; r < 4u; r++) {
                x[r] = identity();
                if (at + r < end) x[r] = element(of_column(v[r], k), at + r, k);
            }
            sums[k] = combine(sums[k], quad(x[0], x[1], x[2], x[3]));
        }
    }
}
// A column's block by one thread.
void whole_block(uint base, uint first, uint end)
{
    ACC block[HELD];
    for (uint k = 0u; k < EACH; k++) block[k] = identity();
    for (uint lane = 0u; lane < 16u && first + 4u * lane < end; lane++) {
        column_lane(base, first + 4u * lane, end);
        for (uint k = 0u; k < EACH; k++) block[k] = combine(block[k], sums[k]);
    }
    for (uint k = EACH; k-- > 0u;) push(k, block[k]);
}
// Blocks by a lane of them each of a column's threads; of columns shorter than a block only those lanes that it has.
void blocks_by_lanes(uint base, uint x, uint y, uint first, uint end)
{
    const uint height = gl_WorkGroupSize.x / WIDTH, blocks = max(height / 16u, 1u);
    column_lane(base, first + 256u * (y / 16u) + 4u * (y % 16u), end);
    for (uint k = 0u; k < EACH; k++) board[padded((k * height + y) * WIDTH + x)] = sums[k];
    barrier();
    if (height > 16u)
        for (uint k = 0u; k < EACH; k++) to_tops(y, height, k * height * WIDTH + x, WIDTH, (k * blocks + y) * WIDTH + x);
    else if (y == 0u)
        for (uint k = EACH; k-- > 0u;) push(k, sixteen_of_board(0u, height, k * height * WIDTH + x, WIDTH));
    barrier();
    if (y == 0u && height > 16u)
        for (uint b = 0u; b < blocks; b++)
            for (uint k = EACH; k-- > 0u;) push(k, tops[padded((k * blocks + b) * WIDTH + x)]);
}

void columns()
{
    const uint height = gl_WorkGroupSize.x / WIDTH, step = 256u * max(height / 16u, 1u);
    uint x = gl_LocalInvocationID.x % WIDTH, y = gl_LocalInvocationID.x / WIDTH;
    uint units = inner / EACH, all = outer * units, tiles = (all + WIDTH - 1u) / WIDTH;
    uint group = group_index(), part = group / tiles, q = (group - part * tiles) * WIDTH + x;
    bool there = q < all && part < parts;
    uint row = there ? q / units : 0u, column = there ? (q - row * units) * EACH : 0u;
    uvec2 at = locate(row);
    uint base = at.x + column * inner_stride, first = part * chunk, end = there ? min(n, first + chunk) : 0u;
    for (uint k = 0u; k < EACH; k++) find_shift(k, row * inner + column + k);
    for (uint done = 0u; done < min(chunk, n); done += step)
        if (height == 1u) whole_block(base, first + done, end);
        else blocks_by_lanes(base, x, y, first + done, end);
    if (!there || y > 0u) return;
    for (uint k = 0u; k < EACH; k++) store(at.y + part * part_out + (column + k) * inner_out, total(k));
}

void main()
{
    for (uint k = 0u; k < 2u * HELD; k++) pushed[k] = identity();
    if (LAYOUT < COLUMNS) rows();
    else columns();
}
