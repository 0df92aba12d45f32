// Groups of eight elements, loaded and stored by 16 bytes; rounding to a dtype.
#ifndef EIGHTS_GLSL
#define EIGHTS_GLSL
#include "common.glsl"

float rounded(float x, uint t) { return bits_to_float(float_to_bits(x, t), t); }
vec4 rounded(vec4 x, uint t) { return vec4(rounded(x.x, t), rounded(x.y, t), rounded(x.z, t), rounded(x.w, t)); }

// Eight elements from index i on, which is a multiple of 16 bytes.
struct eight { vec4 a, b; };
vec4 four_halves(uvec2 w, uint t)
{
    return vec4(bits_to_float(w.x & 0xffffu, t), bits_to_float(w.x >> 16, t), bits_to_float(w.y & 0xffffu, t), bits_to_float(w.y >> 16, t));
}
uvec2 halves_of(vec4 x, uint t)
{
    if (t == BF16) return bf16_of_four(x);
    return uvec2(float_to_bits(x.x, t) | (float_to_bits(x.y, t) << 16), float_to_bits(x.z, t) | (float_to_bits(x.w, t) << 16));
}
// Numbers, and no NaN, which bfloat16's test for costs as much as its rounding.
uvec4 eight_numbers(vec4 a, vec4 b, uint t)
{
    if (t != BF16) return uvec4(halves_of(a, t), halves_of(b, t));
    uvec4 u = floatBitsToUint(a), v = floatBitsToUint(b);
    u += 0x7fffu + ((u >> 16) & 1u);
    v += 0x7fffu + ((v >> 16) & 1u);
    return uvec4((u.x >> 16) | (u.y & 0xffff0000u), (u.z >> 16) | (u.w & 0xffff0000u),
                 (v.x >> 16) | (v.y & 0xffff0000u), (v.z >> 16) | (v.w & 0xffff0000u));
}
uvec4 eight_halves(vec4 a, vec4 b, uint t)                             // with one test for NaN
{
    vec4 sum = a + b;
    if (t != BF16 || is_nan((sum.x + sum.y) + (sum.z + sum.w))) return uvec4(halves_of(a, t), halves_of(b, t));
    return eight_numbers(a, b, t);
}
// Each tested by itself, without branches.
uvec4 eight_rounded(vec4 a, vec4 b, uint t)
{
    return uvec4(float_to_bits(a.x, t) | (float_to_bits(a.y, t) << 16), float_to_bits(a.z, t) | (float_to_bits(a.w, t) << 16),
                 float_to_bits(b.x, t) | (float_to_bits(b.y, t) << 16), float_to_bits(b.z, t) | (float_to_bits(b.w, t) << 16));
}
#define EIGHTS(name) \
    eight load8_##name(uint i, uint t) { \
        if (t == F32) return eight(uintBitsToFloat(name##128[i / 4u]), uintBitsToFloat(name##128[i / 4u + 1u])); \
        uvec4 w = name##128[i / 8u]; \
        return eight(four_halves(w.xy, t), four_halves(w.zw, t)); } \
    void store8_##name(uint i, uint t, eight x) { \
        if (t == F32) { name##128[i / 4u] = floatBitsToUint(x.a); name##128[i / 4u + 1u] = floatBitsToUint(x.b); } \
        else name##128[i / 8u] = eight_halves(x.a, x.b, t); }

#endif
