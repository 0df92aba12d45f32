#version 460
#extension GL_GOOGLE_include_directive : require
// A group a thread, GROUP values: the scale is the largest magnitude over that of the codes, as the next power of two (E8M0),
// or as the nearest small float (E4M3), relative to the tensor's scale where there is one. Codes saturate.
#include "quant.glsl"
layout(constant_id = 5) const bool SCALED = false;
layout(constant_id = 6) const bool BACK = false;       // codes become numbers of TY again, times h where TIMES
layout(constant_id = 7) const bool TIMES = false;
layout(constant_id = 8) const bool NEAREST = false;    // powers of two are the nearest by their logarithm, and codes saturate
SOURCE(0, x)
TARGET(1, w)
SOURCE(3, g)
SOURCE(4, h)
layout(std430, set = 0, binding = 2) restrict buffer s_bytes { uint8_t s8[]; };
layout(push_constant) uniform quantize_fp_push { uint groups, x_at, w_at, s_at, g_at, h_at; };

const uint GROUP = TS == E4M3 ? 16 : 32;

void main()
{
    uint group = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, from = x_at + GROUP * group;
    if (group >= groups) return;
    float top = 0.0, encode = SCALED ? quotient(2688.0, uintBitsToFloat(g32[g_at])) : 1.0;
    for (uint i = 0u; i < GROUP; i++) {
        float v = abs(bits_to_float(RAW(x, from + i, TX), TX));
        if (v > top) top = v;
    }
    top = quotient(top, BITS == 4u ? 6.0 : 448.0) * encode;
    uint byte = TS == E4M3 ? to_e4m3(top) : to_e8m0(top, NEAREST);
    float scale = number(byte, TS), factor = scale == 0.0 ? 0.0 : quotient(encode, scale);
    if (BACK) {
        if (SCALED) scale *= uintBitsToFloat(g32[g_at]) * (1.0 / 2688.0);
        if (TIMES) scale *= uintBitsToFloat(h32[h_at]) * (1.0 / 2688.0);
        for (uint i = 0u; i < GROUP; i++) {
            float v = bits_to_float(RAW(x, from + i, TX), TX) * factor;
            v = code_number(BITS == 4u ? to_e2m1(v) : to_e4m3(v)) * scale;
            PUT(w, w_at + GROUP * group + i, TY, float_to_bits(v, TY))
        }
        return;
    }
    s8[s_at + group] = uint8_t(byte);
    for (uint i = 0u; i < GROUP * BITS / 32u; i++) {
        uint word = 0u;
        for (uint c = 0u; c < 32u / BITS; c++) {
            float v = bits_to_float(RAW(x, from + i * (32u / BITS) + c, TX), TX) * factor;
            word |= (BITS == 4u ? to_e2m1(v) : to_e4m3(v)) << BITS * c;
        }
        w32[w_at + group * (GROUP * BITS / 32u) + i] = word;
    }
}
