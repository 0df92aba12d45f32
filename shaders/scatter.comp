#version 460
#extension GL_GOOGLE_include_directive : require
// Windows written where keys say, in any order: what comes out does not depend on it. Either the last of those with the
// same key is found first (two steps with `winner`), or OP is one for which atomics give the same in every order.
layout(constant_id = 1) const uint STEP = 0;
layout(constant_id = 2) const uint OP = 0;
layout(constant_id = 3) const uint TO = 10;           // PUT: raw bits, C64 stands for 16 bytes
#include "combine.glsl"
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, key)
BUFFER(3, winner)
ACCESS(dst)
ACCESS(src)
layout(std430, set = 0, binding = 0) buffer dst_signed { int dst_int[]; };

layout(push_constant) uniform scatter_push {
    uint n, units, each, flags, none, scale;           // windows, units of each; a key counts `scale` units of the result
    uint key_first, key_count;                         // the keys of the windows that begin in what is bound of the result
    uint dst_at, src_at, key_at, place_at;
    uint ndim, shape[4], stride[4];                    // of a window in the result, in units
};

//! enum SCATTER_: steps
const uint CLEAR = 0, MARK = 1, PUT = 2, ATOMIC = 3;

//! enum SCATTER_: flags: the last ones are known; are to be found here
const uint WINNERS = 1, SEARCH = 4;

uint in_window(uint u)
{
    uint at = 0u;
    [[unroll]] for (int d = 3; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = u / shape[d];
            at += (u - q * shape[d]) * stride[d];
            u = q;
        }
    return at;
}

// Does window w stay, of those with its key?
bool stays(const uint w, const uint p)
{
    if ((flags & WINNERS) != 0u) return winner32[p] == w + 1u;
    if ((flags & SEARCH) != 0u)
        for (uint i = w + 1u; i < n; i++) if (key32[key_at + i] == p) return false;
    return true;
}

void put()
{
    const uint NOWHERE = 0xffffffffu;
    uint first = group_index() * gl_WorkGroupSize.x * 4u + gl_LocalInvocationID.x, window[4], p[4], to[4];
    uvec4 v[4];
    [[unroll]] for (uint k = 0; k < 4; k++) {
        window[k] = (first + k * gl_WorkGroupSize.x) / units;
        p[k] = window[k] < n ? key32[key_at + window[k]] : none;
    }
    [[unroll]] for (uint k = 0; k < 4; k++) {
        uint i = first + k * gl_WorkGroupSize.x;
        bool here = p[k] - key_first < key_count && stays(window[k], p[k]);
        to[k] = here ? dst_at + (p[k] - key_first) * scale + in_window(i - window[k] * units) : NOWHERE;
    }
    [[unroll]] for (uint k = 0; k < 4; k++) {
        uint i = first + k * gl_WorkGroupSize.x;
        if (to[k] == NOWHERE) continue;
        if (TO == C64) v[k] = src128[src_at + i];
        else if (TO == U64) v[k].xy = src64[src_at + i];
        else v[k].x = load_src(src_at + i, TO);
    }
    [[unroll]] for (uint k = 0; k < 4; k++) {
        if (to[k] == NOWHERE) continue;
        if (TO == C64) dst128[to[k]] = v[k];
        else if (TO == U64) dst64[to[k]] = v[k].xy;
        else store_dst(to[k], TO, v[k].x);
    }
}

void swap_in(const uint at, const uint v)                          // part of a word, or what no atomic does
{
    uint part = is_small(TO) ? 2u : is_half(TO) ? 1u : 0u, word = at >> part, shift = (at & ((1u << part) - 1u)) * (32u >> part);
    uint mask = low_bits(0xffffffffu, TO) << shift, old = dst32[word];
    for (;;) {
        uint was = sign_extend(low_bits(old >> shift, TO), TO);
        uint want = (old & ~mask) | (low_bits(combine(uvec2(was, 0u), uvec2(v, 0u), false).x, TO) << shift);
        if (want == old) return;
        uint seen = atomicCompSwap(dst32[word], old, want);
        if (seen == old) return;
        old = seen;
    }
}

void update(const uint i)
{
    uint w = i / units, p = key32[key_at + w] - key_first, at = dst_at + p * scale + in_window(i - w * units);
    if (p >= key_count) return;
    uint v = sign_extend(load_src(src_at + i, TO), TO);
    bool word = TO == U32 || TO == I32;
    if (word && OP == SUM) atomicAdd(dst32[at], v);
    else if (TO == U32 && OP == MAX) atomicMax(dst32[at], v);
    else if (TO == U32 && OP == MIN) atomicMin(dst32[at], v);
    else if (TO == I32 && OP == MAX) atomicMax(dst_int[at], int(v));
    else if (TO == I32 && OP == MIN) atomicMin(dst_int[at], int(v));
    else swap_in(at, v);
}

void main()
{
    if (STEP == PUT) { put(); return; }
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (STEP == ATOMIC) {
        if (i / units < n) update(i);
        return;
    }
    if (i >= n) return;
    uint p = key32[key_at + i];
    if (p == none) return;
    if (STEP == CLEAR) winner32[p] = 0u;
    else atomicMax(winner32[p], i + 1u);
}
