#version 460
#extension GL_GOOGLE_include_directive : require
// Scans along one axis: `outer` rows (up to 4 strided dimensions) of `n` elements for each of `inner` columns; the result
// is row-major. A row is scanned by WIDTH threads, tile by tile; a column, or each part of it, by one thread. What is cut
// into `parts` has what came before each in `carry`.
#define SCAN
#include "accumulate.glsl"
#include "words.glsl"
layout(constant_id = 4) const uint COLUMNS = 0;        // 0: rows, 1: columns, 4: columns by fours, 2: columns, fours of each
layout(constant_id = 5) const uint WIDTH = 256;        // 1, 4, 8, or a multiple of 16
layout(constant_id = 6) const uint HOLD = 1;           // fours a thread has in a tile
layout(constant_id = 7) const uint LEVELS = 0;         // of columns: see climb()
layout(constant_id = 8) const uint TOTALS = 0;         // 1: of columns, no more than what each part comes to
layout(constant_id = 9) const uint ANYWHERE = 0;       // rows: 1: the operand's begin anywhere; 2, no PAIR, WIDTH > 1: results do, stored side by side
//! enum SCAN_: flags
const uint REVERSE = 1, EXCLUSIVE = 2, CARRY = 4;

layout(push_constant) uniform scan_push {
    uint n, outer, inner;
    uint stride, inner_stride;                         // of the operand: along the axis, between columns
    uint parts, chunk;
    uint from, to, before;                             // the first element of operand, result and carry
    uint flags;
    uint ndim, shape[4], in_stride[4];                 // of the outer dimensions
};
BUFFER(2, carry)

uint locate(uint row)
{
    uint at = from;
    [[unroll]] for (int d = 3; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = row / shape[d];
            at += (row - q * shape[d]) * in_stride[d];
            row = q;
        }
    return at;
}
ACC carried(const uint i)
{
    if ((flags & CARRY) == 0u) return identity();
#ifdef PAIR
    return carry64[before + i];
#else
    if (floats()) return of_float(carry32[before + i]);
    return combine(identity(), carry32[before + i]);         // which may be of a wider type there
#endif
}

// ---- rows ----

const uint SIZE = gl_WorkGroupSize.x * HOLD, SEGMENT = WIDTH < 16u ? WIDTH : 16u, SEGMENTS = WIDTH / SEGMENT;
shared ACC board[SIZE + SIZE / 16u + 1u], tops[SIZE / 16u + 1u];      // of threads, of segments of 16 of them
ACC ahead[HOLD], sums[HOLD];                           // of the fours before this thread's in its round; of the whole round

uint place(const uint i) { return i + i / 16u; }             // so that threads which walk segments meet no bank twice

// Scans a segment by each of the first threads: four at a time, and no work at all for the others.
void walk(const uint me, const uint segments)
{
    ACC a = identity(), b[4];
    for (uint k = me < segments ? 0u : SEGMENT; k < SEGMENT; k += 4u) {
        uint at = place(me * SEGMENT + k);                             // segments of 16 are whole in there
        [[unroll]] for (uint i = 0u; i < 4u; i++) b[i] = board[at + i];
        [[unroll]] for (uint i = 0u; i < 4u; i++) board[at + i] = a = combine(a, b[i]);
    }
    if (WIDTH > SEGMENT && me < segments) tops[me] = a;
}

// From each thread's totals, `ahead` holding them on entry. All threads of the group take part.
void spread(const uint lane, const uint first)
{
    uint me = gl_LocalInvocationID.x;
    if (WIDTH == 1u) {
        [[unroll]] for (uint v = 0u; v < HOLD; v++) { sums[v] = ahead[v]; ahead[v] = identity(); }
        return;
    }
    [[unroll]] for (uint v = 0u; v < HOLD; v++) board[place(v * gl_WorkGroupSize.x + first + lane)] = ahead[v];
    barrier();
    walk(me, SIZE / SEGMENT);
    barrier();
    if (WIDTH > SEGMENT) {
        if (me < SIZE / WIDTH) {                       // read before the first is written: reads do not wait for each other
            ACC a = identity(), top[SEGMENTS];
            [[unroll]] for (uint k = 0u; k < SEGMENTS; k++) top[k] = tops[me * SEGMENTS + k];
            [[unroll]] for (uint k = 0u; k < SEGMENTS; k++) tops[me * SEGMENTS + k] = a = combine(a, top[k]);
        }
        barrier();
    }
    [[unroll]] for (uint v = 0u; v < HOLD; v++) {
        uint start = v * gl_WorkGroupSize.x + first, i = start + lane, segment = i / SEGMENT, round = start / SEGMENT;
        ahead[v] = lane % SEGMENT > 0u ? board[place(i - 1u)] : identity();
        if (WIDTH > SEGMENT && segment > round) ahead[v] = combine(tops[segment - 1u], ahead[v]);
        sums[v] = WIDTH > SEGMENT ? tops[round + SEGMENTS - 1u] : board[place(start + WIDTH - 1u)];
    }
    barrier();
}

// Results of a tile, which begin anywhere: threads side by side store elements side by side.
#ifndef PAIR
shared uvec4 staged[(ANYWHERE & 2u) != 0u ? SIZE : 1u];
#endif
void write_four(const uint at, const uint skip, const uint count, const uvec2 v[4])   // elements at .. at + 3, which are `skip` .. of `count`
{
    if (at % 4u == 0u && skip + 4u <= count && skip < count) {
        if (eight_out()) {
            dst128[at / 2u] = uvec4(v[0], v[1]);
            dst128[at / 2u + 1u] = uvec4(v[2], v[3]);
        } else store4_dst(at / 4u, TO, uvec4(v[0].x, v[1].x, v[2].x, v[3].x));
        return;
    }
    [[unroll]] for (uint k = 0u; k < 4u; k++)
        if (skip + k < count) {
            if (eight_out()) dst64[at + k] = v[k];
            else store_dst(at + k, TO, v[k].x);
        }
}

// The bits of four results; of bfloat16 with one test for NaN.
void finish_four(const ACC a[4], out uvec2 y[4])
{
    [[unroll]] for (uint k = 0u; k < 4u; k++) y[k] = uvec2(0u);
#ifndef PAIR
    if (TO == BF16 && floats() && !ordered()) {
        uvec2 w = bf16_of_four(uintBitsToFloat(uvec4(a[0], a[1], a[2], a[3])));
        y[0].x = w.x & 0xffffu; y[1].x = w.x >> 16;
        y[2].x = w.y & 0xffffu; y[3].x = w.y >> 16;
        return;
    }
#endif
    [[unroll]] for (uint k = 0u; k < 4u; k++) y[k] = finish(a[k]);
}

// Four from element i on, and from no fours behind number `last`; of eight bytes each aligned ones. Who walks a row alone holds
// the aligned ones that it read last.
uvec4 held;
Four fetch(const uint i, const uint last, const bool reverse)
{
    if (eight() || (ANYWHERE & 1u) == 0u) return load_four(i / 4u);
    uint low = i / 4u, high = min((i + 3u) / 4u, last);
    if (WIDTH > 1u) return Four(words_from(i & 3u, load4_src(low, FROM), load4_src(high, FROM)), uvec4(0u));
    uvec4 a = held;
    held = load4_src(reverse ? low : min(low + 1u, last), FROM);
    bvec4 turned = bvec4(reverse);
    return Four(words_from(i & 3u, mix(a, held, turned), mix(held, a, turned)), uvec4(0u));
}

// The i-th of a row's fours from where it begins; the last one beyond them.
uint four_at(const uint i, const uint fours, const bool reverse) { return reverse ? fours - 1u - min(i, fours - 1u) : min(i, fours - 1u); }

// Fours count from where the row begins, so that its bits do not depend on where that is.
void rows()
{
    uint lane = gl_LocalInvocationID.x % WIDTH, slot = gl_LocalInvocationID.x / WIDTH;
    uint task = group_index() * (gl_WorkGroupSize.x / WIDTH) + slot, row = task / parts, first = (task - row * parts) * chunk;
    bool there = row < outer, reverse = (flags & REVERSE) != 0u, exclusive = (flags & EXCLUSIVE) != 0u;
    uint base = locate(there ? row : 0u) + first, count = there ? min(chunk, n - first) : 0u, out_at = to + row * n + first;
    uint fours = (count + 3u) / 4u, rounds = (min(chunk, n) + 3u) / 4u;
    const bool anywhere = (ANYWHERE & 2u) != 0u;
    ACC before_tile = there ? carried(task) : identity();
    // Loaded before the tile before them is scanned, and not in branches; what is not of the row counts for nothing.
    bool ahead_of = count > 0u && (base % 4u == 0u || !eight());
    uint last = (base + max(count, 1u) - 1u) / 4u;
    Four next[HOLD];
    if (WIDTH == 1u && (ANYWHERE & 1u) != 0u) held = load4_src(min(base / 4u + (reverse ? fours : 0u), last), FROM);
    if (ahead_of)
        [[unroll]] for (uint v = 0u; v < HOLD; v++) next[v] = fetch(base + 4u * four_at(v * WIDTH + lane, fours, reverse), last, reverse);
    for (uint tile = 0u; tile < rounds; tile += WIDTH * HOLD) {        // i counts fours
        ACC x[HOLD * 4u];
        bool whole = 4u * (tile + WIDTH * HOLD) <= count && (!reverse || count % 4u == 0u);
        [[unroll]] for (uint v = 0u; v < HOLD; v++)
            [[unroll]] for (uint k = 0u; k < 4u; k++) x[4u * v + k] = ahead_of ? value(of_four(next[v], k), 0u) : identity();
        if (!whole)
            [[unroll]] for (uint v = 0u; v < HOLD; v++) {
                uint i = tile + v * WIDTH + lane, g = reverse ? fours - 1u - i : i;
                [[unroll]] for (uint k = 0u; k < 4u; k++)
                    if (i >= fours || 4u * g + k >= count) x[4u * v + k] = identity();
            }
        if (ahead_of)
            [[unroll]] for (uint v = 0u; v < HOLD; v++)
                next[v] = fetch(base + 4u * four_at(tile + (HOLD + v) * WIDTH + lane, fours, reverse), last, reverse);
        else
            [[unroll]] for (uint v = 0u; v < HOLD; v++) {
                uint i = tile + v * WIDTH + lane, g = reverse ? fours - 1u - i : i;
                [[unroll]] for (uint k = 0u; k < 4u; k++)
                    if (i < fours && 4u * g + k < count) x[4u * v + k] = value(load_one(base + 4u * g + k), 0u);
            }
        if (reverse)
            [[unroll]] for (uint v = 0u; v < HOLD; v++) {
                ACC a = x[4u * v], b = x[4u * v + 1u];
                x[4u * v] = x[4u * v + 3u]; x[4u * v + 1u] = x[4u * v + 2u];
                x[4u * v + 2u] = b; x[4u * v + 3u] = a;
            }
        [[unroll]] for (uint v = 0u; v < HOLD; v++)
            ahead[v] = combine(combine(combine(x[4u * v], x[4u * v + 1u]), x[4u * v + 2u]), x[4u * v + 3u]);
        spread(lane, slot * WIDTH);
        [[unroll]] for (uint v = 0u; v < HOLD; v++) {
            uint i = tile + v * WIDTH + lane, g = reverse ? fours - 1u - i : i;
            ACC a = combine(before_tile, ahead[v]), four[4];
            uvec2 y[4];
            [[unroll]] for (uint k = 0u; k < 4u; k++) {
                ACC b = combine(a, x[4u * v + k]);
                four[k] = exclusive ? a : b;
                a = b;
            }
            finish_four(four, y);
            if (reverse) { uvec2 p = y[0], q = y[1]; y[0] = y[3]; y[1] = y[2]; y[2] = q; y[3] = p; }
            before_tile = combine(before_tile, sums[v]);
#ifndef PAIR
            uint l = v * WIDTH + lane;
            if (anywhere) staged[slot * WIDTH * HOLD + (reverse ? WIDTH * HOLD - 1u - l : l)] = uvec4(y[0].x, y[1].x, y[2].x, y[3].x);
#endif
            if (!anywhere && i < fours) write_four(out_at + 4u * g, 4u * g, count, y);
        }
#ifndef PAIR
        if (!anywhere) continue;
        barrier();                                     // the next one is spread()'s
        int start = 4 * int(reverse ? fours - tile - WIDTH * HOLD : tile);
        [[unroll]] for (uint k = 0u; k < 4u * HOLD; k++) {
            uint l = k * WIDTH + lane, j = uint(start + int(l));
            if (j < count) store_dst(out_at + j, TO, staged[slot * WIDTH * HOLD + l / 4u][l % 4u]);
        }
#endif
    }
}

// ---- columns ----

// Where the order of additions changes bits, each column's is one of its length alone, however it is cut: sums within
// chunks of CHUNK elements, counted in the scan's order, and in front of these what the chunks before them come to, which is the
// exclusive scan of the chunks' totals in the same order, chunk of chunks by chunk. LEVELS: 0 where there is one chunk, or no
// order that matters; else how often n is to be divided by CHUNK until one is left, or 1 where `carry` tells what is before a chunk.
const uint CHUNK = 64, EACH = COLUMNS == 4u ? 4u : 1u, RUN = COLUMNS == 2u ? 4u : 1u;   // columns of a thread; elements it reads at once
ACC within[4], behind[4], level[LEVELS + 1u][4];       // sums: in the chunk; before it; of each level, in its chunk there

// From chunk to chunk, of which `ended` have been.
void climb(const uint ended)
{
    [[unroll]] for (uint k = 0u; k < EACH; k++) {
        uint chunks = ended;
        bool ends = true;
        ACC sum = within[k];
        [[unroll]] for (uint l = 1u; l <= LEVELS; l++)
            if (ends) {
                sum = combine(level[l][k], sum);
                ends = chunks % CHUNK == 0u && l < LEVELS;
                chunks /= CHUNK;
                level[l][k] = ends ? identity() : sum;
            }
        within[k] = identity();
        behind[k] = level[LEVELS][k];
        [[unroll]] for (uint l = 1u; l < LEVELS; l++) behind[k] = combine(behind[k], level[LEVELS - l][k]);
    }
}

void write_few(const uint at, const uint count, const uvec2 y[4])                     // one or four
{
    if (count == 4u) write_four(at, 0u, 4u, y);
    else if (eight_out()) dst64[at] = y[0];
    else store_dst(at, TO, y[0].x);
}

Four backwards(const Four f) { return eight() ? Four(f.high.zwxy, f.low.zwxy) : Four(f.low.wzyx, f.high); }

void columns()
{
    uint units = inner / EACH, total = outer * units;
    uint task = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint piece = task / total, q = task - piece * total, row = q / units, column = (q - row * units) * EACH;
    if (piece >= parts) return;
    bool reverse = (flags & REVERSE) != 0u, exclusive = (flags & EXCLUSIVE) != 0u;
    uint first = piece * chunk, count = min(chunk, n - first), step = reverse ? ~0u : 1u;
    uint r = reverse ? n - 1u - first : first, part_at = (row * parts + piece) * inner + column;
    uint base = locate(row) + column * inner_stride, out_at = to + row * n * inner + column;
    uvec2 y[4];
    [[unroll]] for (uint k = 0u; k < EACH; k++) {
        behind[k] = carried(part_at + k);
        within[k] = LEVELS > 0u ? identity() : behind[k];
        [[unroll]] for (uint l = 1u; l <= LEVELS; l++) level[l][k] = identity();
    }
    for (uint i = 0u; i < count; i += 4u * RUN) {
        Four f[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            if (i + j * RUN < count) {
                uint at = base + (r + j * RUN * step) * stride;        // of fours of a column backwards the last one
                if (COLUMNS == 1u) f[j].low.xy = load_one(at);
                else f[j] = load_four(at / 4u);
            }
        if (LEVELS > 0u && i > 0u && i % CHUNK == 0u) climb(i / CHUNK);
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            if (i + j * RUN < count) {
                if (RUN == 4u && reverse) f[j] = backwards(f[j]);
                [[unroll]] for (uint k = 0u; k < EACH * RUN; k++) {
                    const uint c = k / RUN;
                    ACC a = within[c], b = combine(a, value(COLUMNS == 1u ? f[j].low.xy : of_four(f[j], k), 0u));
                    within[c] = b;
                    if (exclusive) b = a;
                    y[k] = finish(LEVELS > 0u ? combine(behind[c], b) : b);
                }
                uint at = out_at + (r + j * RUN * step) * inner;
                if (RUN == 4u && reverse) {
                    uvec2 p = y[0], q = y[1];
                    y[0] = y[3]; y[1] = y[2]; y[2] = q; y[3] = p;
                    at -= 3u;
                }
                if (TOTALS == 0u) write_few(at, EACH * RUN, y);
            }
        r += 4u * RUN * step;
    }
    if (TOTALS == 0u) return;
    [[unroll]] for (uint k = 0u; k < EACH; k++) y[k] = finish(within[k]);
    write_few(to + part_at, EACH, y);
}

void main()
{
    if (COLUMNS == 0u) rows();
    else columns();
}
