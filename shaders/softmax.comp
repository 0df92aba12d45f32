#version 460
#extension GL_GOOGLE_include_directive : require
// Softmax in float32 of `outer` rows (up to 4 strided dimensions) of n elements side by side; the result is row-major.
//   HELD: a row fits the registers of WIDTH threads, 4 * HOLD elements each, and is read once.
//   LOOPED: two passes over the row.
//   APPLY: maximum and sum of exponentials are given for each row and each of `inner` columns; operand row-major.
#include "common.glsl"
#include "eights.glsl"
const uint HELD = 0, LOOPED = 1, APPLY = 2;
layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint T = 10;
layout(constant_id = 3) const uint STEP = 1;           // elements of one load: 1, 4, or (HELD, two bytes each) 8
layout(constant_id = 4) const uint WIDTH = 256;
layout(constant_id = 5) const uint HOLD = 4;

layout(push_constant) uniform softmax_push {
    uint n, outer, inner, from, to, pairs;             // the first element of operand, result and pairs
    uint ndim, shape[4], stride[4];                    // of the outer dimensions
};
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, pair)
ACCESS(dst)
ACCESS(src)
EIGHTS(dst)
EIGHTS(src)

const float LOWEST = -3.402823466e+38;                 // a row of nothing but -infinity gives NaN, as 0 / 0
const uint TOPS = WIDTH / 16u;
shared float board[gl_WorkGroupSize.x], tops[gl_WorkGroupSize.x / 16u + 1u];

float join(bool sums, float a, float b) { return sums ? a + b : max(a, b); }
// The sum or maximum over the WIDTH threads of a row; every one gets it.
float gather(bool sums, float v, uint me, uint first)
{
    board[first + me] = v;
    barrier();
    if (WIDTH <= 16u) {
        v = board[first];
        [[unroll]] for (uint i = 1u; i < WIDTH; i++) v = join(sums, v, board[first + i]);
        barrier();
        return v;
    }
    if (me < TOPS) {
        [[unroll]] for (uint i = 1u; i < 16u; i++) v = join(sums, v, board[first + me + i * TOPS]);
        tops[first / 16u + me] = v;
    }
    barrier();
    v = tops[first / 16u];
    [[unroll]] for (uint i = 1u; i < TOPS; i++) v = join(sums, v, tops[first / 16u + i]);
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

// Elements of one slot of this thread: four in a row, or one from each of four rounds. Beyond the row: -infinity.
vec4 load(uint base, uint slot, uint lane)
{
    if (STEP == 4u) {
        uint v = lane + slot * WIDTH;
        return 4u * v < n ? loadf4_src(base / 4u + v, T) : vec4(-INFINITY);
    }
    vec4 r;
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint i = lane + (4u * slot + k) * WIDTH;
        r[k] = i < n ? loadf_src(base + i, T) : -INFINITY;
    }
    return r;
}
void store(uint base, uint slot, uint lane, vec4 x)
{
    if (STEP == 4u) {
        uint v = lane + slot * WIDTH;
        if (4u * v < n) storef4_dst(base / 4u + v, T, x);
        return;
    }
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint i = lane + (4u * slot + k) * WIDTH;
        if (i < n) storef_dst(base + i, T, x[k]);
    }
}
float most(vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }
float total(vec4 x) { return (x.x + x.y) + (x.z + x.w); }

// Whole vectors of all slots: what is beyond the row is read again from its end, so that no load waits for a branch.
void load_all(uint base, uint lane, out vec4 x[HOLD])
{
    const uint slots = STEP == 8u ? HOLD / 2u : HOLD;
    uint last = n / STEP - 1u;
    [[unroll]] for (uint k = 0u; k < slots; k++) {
        uint v = min(lane + k * WIDTH, last);
        if (STEP == 8u) {
            eight r = load8_src(base + 8u * v, T);
            x[2u * k] = r.a;
            x[2u * k + 1u] = r.b;
        } else x[k] = loadf4_src(base / 4u + v, T);
    }
    if (last + 1u == slots * WIDTH) return;
    [[unroll]] for (uint k = 0u; k < HOLD; k++)
        if (lane + (STEP == 8u ? k / 2u : k) * WIDTH > last) x[k] = vec4(-INFINITY);
}

void held(uint row, uint lane, uint first)
{
    bool there = row < outer;
    uint base = locate(there ? row : 0u), at = to + row * n;
    vec4 x[HOLD];
    float m = LOWEST, s = 0.0;
    if (STEP >= 4u) load_all(base, lane, x);
    else [[unroll]] for (uint k = 0u; k < HOLD; k++) x[k] = load(base, k, lane);
    [[unroll]] for (uint k = 0u; k < HOLD; k++) m = max(m, most(x[k]));
    m = gather(false, m, lane, first);
    [[unroll]] for (uint k = 0u; k < HOLD; k++) {
        x[k] = exp(x[k] - m);
        s += total(x[k]);
    }
    s = 1.0 / gather(true, s, lane, first);
    if (!there) return;
    if (STEP == 8u) {
        [[unroll]] for (uint k = 0u; k < HOLD / 2u; k++) {
            uint v = lane + k * WIDTH;
            if (8u * v < n) store8_dst(at + 8u * v, T, eight(x[2u * k] * s, x[2u * k + 1u] * s));
        }
    } else
        [[unroll]] for (uint k = 0u; k < HOLD; k++) store(at, k, lane, x[k] * s);
}

void looped(uint row, uint lane, uint first)
{
    bool there = row < outer;
    uint base = locate(there ? row : 0u), slots = (n + 4u * WIDTH - 1u) / (4u * WIDTH);
    vec2 a = vec2(LOWEST, 0.0);
    for (uint k = 0u; k < slots; k += HOLD) {
        vec4 x[HOLD];
        float m = a.x;
        [[unroll]] for (uint j = 0u; j < HOLD; j++) x[j] = load(base, k + j, lane);
        [[unroll]] for (uint j = 0u; j < HOLD; j++) m = max(m, most(x[j]));
        a = vec2(m, a.y * exp(a.x - m));
        [[unroll]] for (uint j = 0u; j < HOLD; j++) a.y += total(exp(x[j] - m));
    }
    float m = gather(false, a.x, lane, first);
    a = vec2(m, 1.0 / gather(true, a.y * exp(a.x - m), lane, first));
    if (!there) return;
    for (uint k = 0u; k < slots; k++) store(to + row * n, k, lane, exp(load(base, k, lane) - a.x) * a.y);
}

vec2 given(uint i)
{
    vec2 p = uintBitsToFloat(pair64[pairs + i]);
    return vec2(p.x, p.x == INFINITY ? NOT_A_NUMBER : 1.0 / p.y);
}
void apply()                                           // n: of the whole row, inner * what is reduced
{
    uint v = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, i = v * STEP, row = i / n;
    if (row >= outer) return;
    uint p = row * inner + (i - row * n) % inner;
    if (STEP == 1u) {
        vec2 a = given(p);
        storef_dst(to + i, T, exp(loadf_src(from + i, T) - a.x) * a.y);
        return;
    }
    vec4 x = loadf4_src(from / 4u + v, T);
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        vec2 a = given(inner == 1u ? p : p + k);
        x[k] = exp(x[k] - a.x) * a.y;
    }
    storef4_dst(to / 4u + v, T, x);
}

void main()
{
    uint lane = gl_LocalInvocationID.x % WIDTH, slot = gl_LocalInvocationID.x / WIDTH;
    uint row = group_index() * (gl_WorkGroupSize.x / WIDTH) + slot;
    if (MODE == APPLY) apply();
    else if (MODE == HELD) held(row, lane, slot * WIDTH);
    else looped(row, lane, slot * WIDTH);
}
