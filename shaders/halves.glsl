// Functions for results of 16 bits, by what the device computes itself: right to 2^-14 of the result, as far as Vulkan's promises
// for exp2, log2 and quotients go. Where those promise less, near zeros of the result, a short series takes their place.
#ifndef HALVES_GLSL
#define HALVES_GLSL
#include "math.glsl"

const float LOG2_E = 1.44269502, LOG_2 = 0.693147182;

float exp_half(float x) { return exp2(x * LOG2_E); }
float quotient_half(float a, float b)                                  // where 1 / b would be beyond what floats are, scaled
{
    float m = abs(b), s = m > 7.9228163e28 ? 2.3283064365386963e-10 : m < 1.2621774e-29 ? 4294967296.0 : 1.0;
    return (a * s) / (b * s);
}
float sigmoid_half(float x) { return 1.0 / (1.0 + exp_half(-x)); }
float expm1_half(float x)
{
    precise float r = exp_half(x) - 1.0;
    return abs(x) < 0.0625 ? fma(x * x, fma(fma(x, 4.16666667e-2, 1.66666667e-1), x, 0.5), x) : r;
}
float tanh_half(float x)
{
    float t = abs(x);
    precise float r = 1.0 - 2.0 / (1.0 + exp_half(t + t));
    return t < 0.03125 ? fma(x * t, t * -0.333333333, x) : with_sign(r, x);
}
float sinh_half(float x)
{
    float t = abs(x), s = x * x;
    precise float h = exp2(t * LOG2_E - 1.0), r = h - 0.25 / h;
    return t < 0.25 ? fma(s * x, fma(s, 8.33333333e-3, 1.66666667e-1), x) : with_sign(r, x);
}
float cosh_half(float x)
{
    precise float h = exp2(abs(x) * LOG2_E - 1.0), r = h + 0.25 / h;
    return r;
}
float erf_half(float x)
{
    float t = abs(x), s = x * x;
    float r = fma(fma(-1.72853470e-5, t, 3.83197126e-4), s, fma(-3.88396438e-3, t, 2.42546219e-2)), c = -5.96761703e-4;
    r = fma(r, t, -1.06777877e-1);
    r = fma(r, t, -6.34846687e-1);
    r = fma(r, t, -1.28717512e-1);
    r = fma(r, t, -t);
    c = fma(c, s, 4.99119423e-3);
    c = fma(c, s, -2.67681349e-2);
    c = fma(c, s, 1.12819925e-1);
    c = fma(c, s, -3.76125336e-1);
    c = fma(c, s, 1.28379166e-1);
    precise float e = 1.0 - exp_half(r);
    return t > 0.927734375 ? with_sign(t > 4.0 ? 1.0 : e, x) : fma(c, x, x);
}
// Quarter turns of |x| < 8192 in parts whose products are exact, then short series; larger ones by math.glsl.
vec2 cos_sin_half(float x)
{
    float t = abs(x);
    if (!(t < 8192.0)) return cos_sin(x);
    precise float u = t * 0.636619772 + 12582912.0, j = u - 12582912.0, r = t - j * 1.5703125;
    r = r - j * 4.837512969970703e-4;
    r = r - j * 7.549533620476723e-8;
    uint q = floatBitsToUint(u);
    float s = r * r, c = fma(fma(fma(s, -1.38877297e-3, 4.16666567e-2), s, -0.5), s, 1.0);
    float p = fma(fma(fma(s, -1.98559923e-4, 8.33338592e-3), s, -1.66666672e-1) * s, r, r);
    vec2 unit = (q & 1u) == 0u ? vec2(c, p) : vec2(p, c);
    return uintBitsToFloat(floatBitsToUint(unit) ^ uvec2(((q + 1u) & 2u) << 30, ((q & 2u) << 30) ^ (floatBitsToUint(x) & 0x80000000u)));
}
float tan_half(float x)
{
    vec2 unit = cos_sin_half(x);
    return unit.y / unit.x;
}
// bf16 only: next to 1, log2 is not good enough for f16.
float log2_bf16(float x)
{
    bool tiny = x < 1.17549435e-38;                                    // denormal, which devices take for what they like
    return log2(tiny ? x * 1.84467441e19 : x) - (tiny ? 64.0 : 0.0);
}
float log_bf16(float x) { return log2_bf16(x) * LOG_2; }
float log1p_bf16(float x)
{
    precise float u = 1.0 + x;
    return abs(x) < 0.015625 ? fma(x * x, fma(x, 0.333333333, -0.5), x) : log_bf16(u);
}
#endif
