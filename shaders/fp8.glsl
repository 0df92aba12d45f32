// Small floats: of 8 bits (e4m3, e8m0: a power of two) and of 4 (e2m1). To codes: the nearest, of e4m3
// with ties to even, of e2m1 with ties to zero; saturating.
#ifndef FP8_GLSL
#define FP8_GLSL
#include "common.glsl"

float e4m3(const uint c)                                     // no NaN and no infinity: up to 480
{
    uint a = c & 127u;
    float v = a < 8u ? float(a) * 0.001953125 : uintBitsToFloat((a << 20) + (120u << 23));
    return c < 128u ? v : -v;
}
float e2m1(const uint c)                                     // 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives
{
    float v = 0.5 * float(0xc8643210u >> 4u * (c & 7u) & 15u);
    return c < 8u ? v : -v;
}

// 448 and more, infinity and NaN give 448.
uint to_e4m3(const float x)
{
    uint u = floatBitsToUint(x), sign = u >> 24 & 128u, a = u & 0x7fffffffu;
    if (a >= 543u << 21) return sign | 126u;
    if (a < 121u << 23) return sign | uint(roundEven(uintBitsToFloat(a) * 512.0));
    return sign | (a - (120u << 23) + 0x7ffffu + (a >> 20 & 1u)) >> 20;
}

uint to_e2m1(const float x)
{
    float a = abs(x);
    if (is_nan(x)) return 7u;
    uint code = a > 5.0 ? 7u : a > 3.5 ? 6u : a > 2.5 ? 5u : a > 1.75 ? 4u : a > 1.25 ? 3u : a > 0.75 ? 2u : a > 0.25 ? 1u : 0u;
    return code == 0u ? 0u : code | floatBitsToUint(x) >> 28 & 8u;     // zero has no sign
}

// The next power of two, of a number that is not negative: what is divided by it stays in range; or the nearest by its
// logarithm.
uint to_e8m0(const float x, const bool nearest)
{
    uint u = floatBitsToUint(x), e = u >> 23 & 255u, past = nearest ? 0x3504f3u : 0u;
    if (x == 0.0 || e == 255u) return x == 0.0 ? 127u : 255u;
    return e == 0u ? (u > (nearest ? 0x5a827au : 0x400000u) ? 1u : 0u) : min(e + ((u & 0x7fffffu) > past ? 1u : 0u), 254u);
}
#endif
