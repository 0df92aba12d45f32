#version 460
#extension GL_GOOGLE_include_directive : require
// A block of 32 values a thread; the 1, 2 or 4 threads of a group share its extremes. As MLX on the CPU: the true largest
// value, ties to the even code.
#include "quant.glsl"
SOURCE(0, x)
TARGET(1, w)
TARGET(2, s)
TARGET(3, b)
layout(push_constant) uniform quantize_push { uint blocks, group_shift, x_at, w_at, s_at, b_at; };
shared vec2 extremes[gl_WorkGroupSize.x];

void main()
{
    uint me = gl_LocalInvocationID.x, block = group_index() * gl_WorkGroupSize.x + me, per = 1u << group_shift;
    bool inside = block < blocks;
    uint from = x_at + 32u * min(block, blocks - 1u);
    vec2 e = vec2(INFINITY, -INFINITY);                // smallest, largest
    for (uint i = 0u; i < 32u; i++) {
        float v = bits_to_float(RAW(x, from + i, TX), TX);
        e = vec2(v < e.x ? v : e.x, v > e.y ? v : e.y);
    }
    extremes[me] = e;
    barrier();
    for (uint i = 0u; i < per; i++) {
        vec2 other = extremes[(me & ~(per - 1u)) + i];
        e = vec2(min(e.x, other.x), max(e.y, other.y));
    }
    if (!inside) return;
    bool low = abs(e.x) > abs(e.y);
    float scale = max(quotient(e.y - e.x, float(MASK)), 1e-7), edge = low ? e.x : e.y, bias = 0.0;
    if (!low) scale = -scale;
    float q0 = roundEven(quotient(edge, scale));
    if (q0 != 0.0) {
        scale = quotient(edge, q0);
        bias = edge;
    }
    uint word = 0u, filled = 0u, to = w_at + block * BITS;
    for (uint i = 0u; i < 32u; i++) {
        float v = bits_to_float(RAW(x, from + i, TX), TX);
        uint code = uint(clamp(roundEven(quotient(v - bias, scale)), 0.0, float(MASK)));
        word |= code << filled;
        filled += BITS;
        if (filled >= 32u) {
            w32[to++] = word;
            filled -= 32u;
            word = filled > 0u ? code >> (BITS - filled) : 0u;
        }
    }
    if ((block & (per - 1u)) == 0u) {
        uint group = block >> group_shift;
        PUT(s, s_at + group, TX, float_to_bits(scale, TX))
        PUT(b, b_at + group, TX, float_to_bits(bias, TX))
    }
}
