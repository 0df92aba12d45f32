#version 460
#extension GL_GOOGLE_include_directive : require
// Reductions of one axis: `outer` rows (up to 4 strided dimensions) of `n` elements for each of `inner` columns. A group
// reduces rows whose elements lie side by side (WIDTH threads a row), or columns (WIDTH threads side by side, the others
// down the column). A long reduction is cut into `parts`, whose results the next dispatch reduces.
#include "accumulate.glsl"
layout(constant_id = 4) const uint COLUMNS = 0;        // 0: rows, 1: columns, 4: columns by fours
layout(constant_id = 5) const uint WIDTH = 256;

layout(push_constant) uniform reduce_push {
    uint n, outer, inner;
    uint stride, inner_stride, inner_out;              // between reduced elements, between columns, between their results
    uint parts, chunk;
    uint from, to, place;                              // the first element and result; the position of the first element
    float scale;                                       // of a mean
    uint ndim, shape[4], in_stride[4], out_stride[4];  // of the outer dimensions
};

ACC part[4];                                           // this thread's values, one a column or all of one row
void take(uint k, uvec2 raw, uint at) { part[k] = combine(part[k], value(raw, place + at)); }
void take_four(Four v, uint at, uint step)             // positions `step` apart
{
    [[unroll]] for (uint k = 0u; k < 4u; k++) take(k, of_four(v, k), at + k * step);
}
void store(uint i, ACC a) { store_one(i, OP == MEAN ? scaled(a, scale) : a); }

// ---- across threads ----

const uint LANES = COLUMNS == 4u ? 4u : 1u;            // columns a thread has
shared ACC board[gl_WorkGroupSize.x * LANES];

// Reduces part[0 .. LANES-1] of `count` threads, a power of two, which are `step` apart from thread `first` on; the
// result is at the first one. Sixteen at a time, so that few barriers are needed.
void gather(uint me, uint count, uint first, uint step)
{
    uint left = count;
    if (count == 1u) return;
    for (uint k = 0u; k < LANES; k++) board[k * gl_WorkGroupSize.x + first + me * step] = part[k];
    while (left > 1u) {
        uint to = left > 16u ? left / 16u : 1u;
        barrier();
        if (me < to)
            for (uint k = 0u; k < LANES; k++) {
                uint base = k * gl_WorkGroupSize.x + first;
                for (uint i = me + to; i < left; i += to) part[k] = combine(part[k], board[base + i * step]);
                board[base + me * step] = part[k];
            }
        left = to;
    }
}

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

void rows()
{
    uint lane = gl_LocalInvocationID.x % WIDTH, slot = gl_LocalInvocationID.x / WIDTH;
    uint task = group_index() * (gl_WorkGroupSize.x / WIDTH) + slot, row = task / parts, piece = task - row * parts;
    bool there = row < outer;
    uvec2 at = locate(there ? row : 0u);
    uint first = piece * chunk, base = at.x + first, count = there ? min(chunk, n - first) : 0u;
    uint lead = min((0u - base) & 3u, count), fours = (count - lead) / 4u, tail = count - lead - 4u * fours;
    for (uint i = lane; i < lead; i += WIDTH) take(0u, load_one(base + i), first + i);
    for (uint i = count - tail + lane; i < count; i += WIDTH) take(1u, load_one(base + i), first + i);
    uint v = lane, aligned = (base + lead) / 4u;
    for (; v + 3u * WIDTH < fours; v += 4u * WIDTH) {
        Four x[4];
        [[unroll]] for (uint k = 0u; k < 4u; k++) x[k] = load_four(aligned + v + k * WIDTH);
        [[unroll]] for (uint k = 0u; k < 4u; k++) take_four(x[k], first + lead + 4u * (v + k * WIDTH), 1u);
    }
    for (; v < fours; v += WIDTH) take_four(load_four(aligned + v), first + lead + 4u * v, 1u);
    part[0] = combine(combine(part[0], part[1]), combine(part[2], part[3]));
    gather(lane, WIDTH, slot * WIDTH, 1u);
    if (there && lane == 0u) store(parts > 1u ? to + task : at.y, part[0]);
}

void columns()
{
    const uint height = gl_WorkGroupSize.x / WIDTH;
    uint x = gl_LocalInvocationID.x % WIDTH, y = gl_LocalInvocationID.x / WIDTH;
    uint units = inner / COLUMNS, total = outer * units, tiles = (total + WIDTH - 1u) / WIDTH;
    uint group = group_index(), piece = group / tiles, q = (group - piece * tiles) * WIDTH + x;
    bool there = q < total && piece < parts;
    uint row = there ? q / units : 0u, column = there ? (q - row * units) * COLUMNS : 0u;
    uvec2 at = locate(row);
    uint base = at.x + column * inner_stride, first = there ? piece * chunk : 0u, last = there ? min(n, first + chunk) : 0u;
    uint r = first + y;
    if (COLUMNS == 4u) {
        for (; r + 3u * height < last; r += 4u * height) {
            Four v[4];
            [[unroll]] for (uint k = 0u; k < 4u; k++) v[k] = load_four((base + (r + k * height) * stride) / 4u);
            [[unroll]] for (uint k = 0u; k < 4u; k++) take_four(v[k], r + k * height, 0u);
        }
        for (; r < last; r += height) take_four(load_four((base + r * stride) / 4u), r, 0u);
    } else {
        for (; r + 3u * height < last; r += 4u * height) {
            uvec2 v[4];
            [[unroll]] for (uint k = 0u; k < 4u; k++) v[k] = load_one(base + (r + k * height) * stride);
            [[unroll]] for (uint k = 0u; k < 4u; k++) take(0u, v[k], r + k * height);
        }
        for (; r < last; r += height) take(0u, load_one(base + r * stride), r);
    }
    gather(y, height, x, WIDTH);
    if (!there || y > 0u) return;
    for (uint k = 0u; k < LANES; k++)
        store(parts > 1u ? to + (row * parts + piece) * inner + column + k : at.y + (column + k) * inner_out, part[k]);
}

void main()
{
    for (uint k = 0u; k < 4u; k++) part[k] = identity();
    if (COLUMNS == 0u) rows();
    else columns();
}
