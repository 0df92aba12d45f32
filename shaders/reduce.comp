#version 460
#extension GL_GOOGLE_include_directive : require
// Reductions of one axis: `outer` rows (up to 4 strided dimensions) of `n` elements for each of `inner` columns. A group
// reduces rows whose elements lie side by side (WIDTH threads a row), or columns (WIDTH threads side by side, the others
// down the column). A long reduction is cut into `parts`, whose results the next dispatch reduces.
// One source, by what a thread accumulates:
//   (none)  a 32-bit value: float32, int32, uint32, bool
//   -DPAIR  two words: 64-bit integers, complex64, or maximum and sum of exponentials (logsumexp)
//   -DINDEX a key that orders as the values do (two words) and the position of the first best one (argmax, argmin)
#include "common.glsl"
const uint SUM = 0, PROD = 1, MAX = 2, MIN = 3, MEAN = 4, ALL = 5, ANY = 6, LSE = 7, ARGMAX = 8, ARGMIN = 9;
layout(constant_id = 1) const uint OP = 0;
layout(constant_id = 2) const uint FROM = 10;          // operand's dtype; complex64 for LSE, ARGMAX and ARGMIN: results of parts
layout(constant_id = 3) const uint TO = 10;            // result's dtype; complex64 likewise
layout(constant_id = 4) const uint COLUMNS = 0;        // 0: rows, 1: columns, 4: columns by fours
layout(constant_id = 5) const uint WIDTH = 256;

layout(push_constant) uniform Push {
    uint n, outer, inner;
    uint stride, inner_stride, inner_out;              // between reduced elements, between columns, between their results
    uint parts, chunk;
    uint from, to;                                     // the first element and result
    float scale;                                       // of a mean
    uint ndim, shape[4], in_stride[4], out_stride[4];  // of the outer dimensions
};
BUFFER(0, dst)
BUFFER(1, src)
ACCESS(dst)
ACCESS(src)

bool eight() { return FROM == U64 || FROM == I64 || FROM == C64; }

#if defined(PAIR)
#define ACC uvec2
#elif defined(INDEX)
#define ACC uvec3
#else
#define ACC uint
#endif

#if defined(PAIR)
uvec2 pack(vec2 x) { return floatBitsToUint(x); }
vec2 unpack(uvec2 a) { return uintBitsToFloat(a); }
bool is_nan2(uvec2 a) { return is_nan(uintBitsToFloat(a.x)) || is_nan(uintBitsToFloat(a.y)); }
bool less(uvec2 a, uvec2 b)                            // 64-bit integers, the high word last; complex numbers, real first
{
    if (FROM == C64) {
        vec2 x = unpack(a), y = unpack(b);
        return x.x < y.x || (x.x == y.x && x.y < y.y);
    }
    uint flip = FROM == I64 ? 0x80000000u : 0u, p = a.y ^ flip, q = b.y ^ flip;
    return p < q || (p == q && a.x < b.x);
}
uvec2 multiply(uvec2 a, uvec2 b)
{
    if (FROM == C64) {
        vec2 x = unpack(a), y = unpack(b);
        return pack(vec2(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x));
    }
    uvec2 r;
    umulExtended(a.x, b.x, r.y, r.x);
    r.y += a.x * b.y + a.y * b.x;
    return r;
}
uvec2 add(uvec2 a, uvec2 b)
{
    if (FROM == C64) return pack(unpack(a) + unpack(b));
    uint carry;
    uvec2 r;
    r.x = uaddCarry(a.x, b.x, carry);
    r.y = a.y + b.y + carry;
    return r;
}
// The maximum of both, and the sums of exponentials relative to it.
uvec2 join(uvec2 a, uvec2 b)
{
    vec2 x = unpack(a), y = unpack(b);
    bool first = x.x >= y.x;
    vec2 high = first ? x : y, low = first ? y : x;
    float e = x.x == y.x ? 1.0 : exp(low.x - high.x);
    return pack(vec2(high.x, high.y + low.y * e));
}
ACC identity()
{
    if (OP == LSE) return pack(vec2(-INFINITY, 0.0));
    if (OP == PROD) return uvec2(FROM == C64 ? 0x3f800000u : 1u, 0u);
    if (FROM == C64) {
        if (OP == MAX) return uvec2(0xff800000u);
        if (OP == MIN) return uvec2(0x7f800000u);
    } else {                                           // no choice between constant vectors: some drivers get it wrong
        if (OP == MAX) return uvec2(0u, FROM == I64 ? 0x80000000u : 0u);
        if (OP == MIN) return uvec2(~0u, FROM == I64 ? 0x7fffffffu : ~0u);
    }
    return uvec2(0u);
}
ACC combine(ACC a, ACC b)
{
    if (OP == LSE) return join(a, b);
    if (OP == PROD) return multiply(a, b);
    if (OP == MAX || OP == MIN) {
        if (FROM == C64 && is_nan2(a)) return a;
        if (FROM == C64 && is_nan2(b)) return b;
        return (OP == MAX ? less(a, b) : less(b, a)) ? b : a;
    }
    return add(a, b);
}
ACC value(uvec2 raw, uint at)
{
    if (OP == LSE && FROM != C64) return pack(vec2(as_float(raw.x, FROM), 1.0));
    return raw;
}
void store(uint i, ACC a)
{
    if (OP == LSE && TO != C64) {
        vec2 x = unpack(a);
        storef_dst(i, TO, is_inf(x.x) && !is_nan(x.y) ? x.x : x.x + log(x.y));
    } else dst64[i] = OP == MEAN ? pack(unpack(a) * scale) : a;
}
#elif defined(INDEX)
// Keys grow with the value (argmax) or against it (argmin). What a key starts from, at index 0, is the infinity that no
// element is beyond, so that NaN is never chosen, and 0 where there is nothing else.
const uint WORST = 0x007fffffu;
ACC identity() { return uvec3(is_float(FROM) ? WORST : 0u, 0u, 0u); }
ACC combine(ACC a, ACC b)
{
    bool wide = FROM == U64 || FROM == I64;
    bool tie = a.x == b.x && (!wide || a.y == b.y);
    bool better = b.x > a.x || (wide && a.x == b.x && b.y > a.y) || (tie && b.z < a.z);
    return better ? b : a;
}
ACC value(uvec2 raw, uint at)
{
    if (FROM == C64) return uvec3(raw.x, 0u, raw.y);
    uint flip = OP == ARGMIN ? ~0u : 0u;
    if (eight()) return uvec3((FROM == I64 ? raw.y ^ 0x80000000u : raw.y) ^ flip, raw.x ^ flip, at);
    if (!is_float(FROM)) return uvec3((is_signed(FROM) ? sign_extend(raw.x, FROM) ^ 0x80000000u : raw.x) ^ flip, 0u, at);
    float x = bits_to_float(raw.x, FROM);
    uint u = x == 0.0 ? 0u : floatBitsToUint(x);
    u = (u & 0x80000000u) != 0u ? ~u : u | 0x80000000u;
    return is_nan(x) ? identity() : uvec3(u ^ flip, 0u, at);
}
void store(uint i, ACC a)
{
    if (TO == C64) dst64[i] = a.xz;
    else dst32[i] = a.z;
}
#else
bool floats() { return is_float(FROM) || OP == MEAN; }
ACC identity()
{
    if (OP == ALL) return 1u;
    if (OP == PROD) return floats() ? 0x3f800000u : 1u;
    if (OP == MAX) return floats() ? 0xff800000u : is_signed(FROM) ? 0x80000000u : 0u;
    if (OP == MIN) return floats() ? 0x7f800000u : is_signed(FROM) ? 0x7fffffffu : ~0u;
    return 0u;
}
ACC combine(ACC a, ACC b)
{
    if (OP == ALL) return a & b;
    if (OP == ANY) return a | b;
    if (floats()) {
        float x = uintBitsToFloat(a), y = uintBitsToFloat(b);
        if (OP == PROD) return floatBitsToUint(x * y);
        if (OP == MAX) return x >= y || is_nan(x) ? a : b;
        if (OP == MIN) return x <= y || is_nan(x) ? a : b;
        return floatBitsToUint(x + y);
    }
    if (OP == PROD) return a * b;
    if (OP == MAX) return is_signed(FROM) ? uint(max(int(a), int(b))) : max(a, b);
    if (OP == MIN) return is_signed(FROM) ? uint(min(int(a), int(b))) : min(a, b);
    return a + b;
}
ACC value(uvec2 raw, uint at)
{
    if (OP == ALL || OP == ANY) {
        uint bits = raw.x | raw.y;
        return (FROM == F32 ? bits & 0x7fffffffu : FROM == F16 || FROM == BF16 ? bits & 0x7fffu : bits) != 0u ? 1u : 0u;
    }
    return floats() ? floatBitsToUint(as_float(raw.x, FROM)) : sign_extend(raw.x, FROM);
}
void store(uint i, ACC a)
{
    if (OP == ALL || OP == ANY || !floats()) store_dst(i, TO, a);
    else storef_dst(i, TO, OP == MEAN ? uintBitsToFloat(a) * scale : uintBitsToFloat(a));
}
#endif

// ---- elements, one and four at a time ----

struct Four { uvec4 low, high; };
Four load_four(uint i)
{
    if (eight()) return Four(src128[2u * i], src128[2u * i + 1u]);
    return Four(load4_src(i, FROM), uvec4(0u));
}
uvec2 load_one(uint i) { return eight() ? src64[i] : uvec2(load_src(i, FROM), 0u); }

ACC part[4];                                           // this thread's values, one a column or all of one row
void take(uint k, uvec2 raw, uint at) { part[k] = combine(part[k], value(raw, at)); }
void take_four(Four v, uint at, uint step)             // positions `step` apart
{
    if (eight()) {
        take(0u, v.low.xy, at); take(1u, v.low.zw, at + step);
        take(2u, v.high.xy, at + 2u * step); take(3u, v.high.zw, at + 3u * step);
    } else {
        [[unroll]] for (uint k = 0u; k < 4u; k++) take(k, uvec2(v.low[k], 0u), at + k * step);
    }
}

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
