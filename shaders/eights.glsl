// Groups of eight elements, loaded and stored by 16 bytes; rounding to a dtype.
#ifndef EIGHTS_GLSL
#define EIGHTS_GLSL
#include "common.glsl"

float rounded(const float x, const uint t) { return bits_to_float(float_to_bits(x, t), t); }
vec4 rounded(const vec4 x, const uint t) { return vec4(rounded(x.x, t), rounded(x.y, t), rounded(x.z, t), rounded(x.w, t)); }

// Eight elements from index i on, which is a multiple of 16 bytes.
struct eight { vec4 a, b; };
// What common.glsl does with one number, with four and without branches: compilers take functions that return early apart
// once for each number, before they know the dtype.
vec4 four_halves(const uvec2 w, const uint t)
{
    uvec4 high = uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u);
    if (t == BF16) return uintBitsToFloat(high);
#ifdef HALF_ID
    if (HALF != 0u) return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
#endif
    uvec4 s = high & 0x80000000u, e = (high >> 26) & 31u, m = (high >> 16) & 1023u;
    uvec4 number = mix(e + 112u, uvec4(255u), equal(e, uvec4(31u))) << 23 | m << 13;
    return uintBitsToFloat(s | mix(number, floatBitsToUint(vec4(m) * 5.9604644775390625e-8), equal(e, uvec4(0u))));
}
uvec4 four_bits(const vec4 x, const uint t)                                        // of halves, to nearest even
{
    uvec4 u = floatBitsToUint(x), a = u & 0x7fffffffu;
    if (t == BF16) return mix(u + 0x7fffu + ((u >> 16) & 1u), u | 0x400000u, greaterThan(a, uvec4(0x7f800000u))) >> 16;
    uvec4 small = uvec4(roundEven(uintBitsToFloat(min(a, 0x38800000u)) * 16777216.0));
    uvec4 half_bits = mix((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13, small, lessThan(a, uvec4(0x38800000u)));
    half_bits = mix(half_bits, uvec4(0x7c00u), greaterThanEqual(a, uvec4(0x477ff000u)));           // 65520 and above
    return (u >> 16 & 0x8000u) | mix(half_bits, uvec4(0x7e00u), greaterThan(a, uvec4(0x7f800000u)));
}
#ifdef HALF_ID
// Two of f16 by the device. NaN becomes what it becomes elsewhere, with its sign.
uint two_packed(const vec2 x)
{
    uint w = packHalf2x16(x);
    uvec2 nan = floatBitsToUint(x) >> 16 & 0x8000u | 0x7e00u;
    if (is_nan(x.x)) w = w & 0xffff0000u | nan.x;
    return is_nan(x.y) ? w & 0xffffu | nan.y << 16 : w;
}
uvec4 eight_packed(const vec4 a, const vec4 b)                                     // with one test for NaN
{
    vec4 sum = a + b;
    if (is_nan((sum.x + sum.y) + (sum.z + sum.w)))
        return uvec4(two_packed(a.xy), two_packed(a.zw), two_packed(b.xy), two_packed(b.zw));
    return uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));
}
#endif
// Eight of them, each tested for NaN.
uvec4 eight_rounded(const vec4 a, const vec4 b, const uint t)
{
#ifdef HALF_ID
    if (HALF != 0u && t == F16) return eight_packed(a, b);
#endif
    uvec4 p = four_bits(a, t), q = four_bits(b, t);
    return uvec4(p.x | p.y << 16, p.z | p.w << 16, q.x | q.y << 16, q.z | q.w << 16);
}
// Numbers, and no NaN, which bfloat16's test for costs as much as its rounding: words whose upper halves are the nearest bfloat16.
uvec4 nearest_uppers(const vec4 x) { uvec4 u = floatBitsToUint(x); return u + 0x7fffu + ((u >> 16) & 1u); }
uvec4 join_uppers(const uvec4 u, const uvec4 v)
{
    return uvec4((u.x >> 16) | (u.y & 0xffff0000u), (u.z >> 16) | (u.w & 0xffff0000u),
                 (v.x >> 16) | (v.y & 0xffff0000u), (v.z >> 16) | (v.w & 0xffff0000u));
}
// The same by floats, which GPUs have more units for: 65536 x - 65535 x, whose second product has the bits of x that bfloat16
// has not as its own last ones, and is rounded to nearest even, as products are on all devices seen. From 2^112 on there is
// an infinity or NaN instead. What is below 2^-126 keeps bits that bfloat16 has not there, and is cut by who takes the upper
// half alone. nought: 0, which the compiler must not know to be it: a product of -0 becomes 0 so, and the result -0.
vec4 nearest_floats(const vec4 x, const float nought)
{
    precise vec4 p = fma(x, vec4(65535.0), vec4(nought)), nearest = fma(x, vec4(65536.0), -p);
    return nearest;
}
uvec4 eight_numbers(const vec4 a, const vec4 b, const uint t)
{
    return t == BF16 ? join_uppers(nearest_uppers(a), nearest_uppers(b)) : eight_rounded(a, b, t);
}
uvec4 eight_halves(const vec4 a, const vec4 b, const uint t)                             // with one test for NaN
{
    vec4 sum = a + b;
    if (t != BF16 || is_nan((sum.x + sum.y) + (sum.z + sum.w))) return eight_rounded(a, b, t);
    return eight_numbers(a, b, t);
}
#define EIGHTS(name) \
    eight load8_##name(uint i, uint t) { \
        if (t == F32) return eight(uintBitsToFloat(name##128[i / 4u]), uintBitsToFloat(name##128[i / 4u + 1u])); \
        uvec4 w = name##128[i / 8u]; \
        return eight(four_halves(w.xy, t), four_halves(w.zw, t)); } \
    void store8_##name(const uint i, const uint t, const eight x) { \
        if (t == F32) { name##128[i / 4u] = floatBitsToUint(x.a); name##128[i / 4u + 1u] = floatBitsToUint(x.b); } \
        else name##128[i / 8u] = eight_halves(x.a, x.b, t); }

#endif
