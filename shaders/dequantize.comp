#version 460
#extension GL_GOOGLE_include_directive : require
// Eight values a thread: scale * code (+ bias) rounded to TX, then to TY; times the tensor's scale where there is one.
#include "quant.glsl"
SOURCE(0, w)
SOURCE(1, s)
SOURCE(2, b)
TARGET(3, y)
SOURCE(4, g)
layout(push_constant) uniform dequantize_push { uint count, group_shift, w_at, s_at, b_at, y_at, g_at; };     // count: of eights
layout(constant_id = 5) const bool VECTOR = false;     // the result is aligned to eight elements
layout(constant_id = 6) const bool SCALED = false;
EIGHT_CODES(eight_codes, w32)

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (i >= count) return;
    uint block = i >> 2, group = i >> 1 >> group_shift, to = y_at + 8u * i, raw[8];
    uvec2 codes = eight_codes(w_at + block * BITS, i & 3u);
    float scale = number(RAW(s, s_at + group, TS), TS), bias = FP ? 0.0 : number(RAW(b, b_at + group, TS), TS);
    if (SCALED) scale *= uintBitsToFloat(g32[g_at]) * (1.0 / 2688.0);
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        raw[k] = float_to_bits(FP ? scale * code_number(code_of(codes, k)) : scale * float(code_of(codes, k)) + bias, TX);
        if (TX != TY) raw[k] = float_to_bits(bits_to_float(raw[k], TX), TY);
    }
    if (VECTOR && TY != F32)
        y128[to / 8u] = uvec4(raw[0] | raw[1] << 16, raw[2] | raw[3] << 16, raw[4] | raw[5] << 16, raw[6] | raw[7] << 16);
    else if (VECTOR) {
        y128[to / 4u] = uvec4(raw[0], raw[1], raw[2], raw[3]);
        y128[to / 4u + 1u] = uvec4(raw[4], raw[5], raw[6], raw[7]);
    } else
        [[unroll]] for (uint k = 0u; k < 8u; k++) PUT(y, to + k, TY, raw[k]);
}
