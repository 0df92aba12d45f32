// Functions for results of 16 bits, by what the device computes itself: right to 2^-14 of the result, as far as Vulkan's promises
// for exp2, log2 and quotients go. Where those promise less, near zeros of the result, a short series takes their place.
#ifndef HALVES_GLSL
#define HALVES_GLSL
#include "math.glsl"

float exp_half(const float x) { return exp2(x * LOG2_E); }
float quotient_half(const float a, const float b)                                  // where 1 / b would be beyond what floats are, scaled
{
    float m = abs(b), s = m > 7.9228163e28 ? 2.3283064365386963e-10 : m < 1.2621774e-29 ? 4294967296.0 : 1.0;
    return (a * s) / (b * s);
}
float sigmoid_half(const float x) { return 1.0 / (1.0 + exp_half(-x)); }
float expm1_half(const float x)
{
    precise float r = exp_half(x) - 1.0;
    return abs(x) < 0.0625 ? x * fma(fma(fma(x, 4.16666667e-2, 1.66666667e-1), x, 0.5), x, 1.0) : r;
}
float tanh_half(const float x)
{
    precise float r = 1.0 - 2.0 / (1.0 + exp2(x * 2.88539008));
    return abs(x) < 0.03125 ? x * fma(x * x, -0.333333333, 1.0) : r;
}
float sinh_half(const float x)
{
    float t = abs(x), s = x * x;
    precise float h = exp2(t * LOG2_E - 1.0), r = h - 0.25 / h;
    return t < 0.25 ? fma(s * x, fma(s, 8.33333333e-3, 1.66666667e-1), x) : with_sign(r, x);
}
float cosh_half(const float x)
{
    precise float h = exp2(abs(x) * LOG2_E - 1.0), r = h + 0.25 / h;
    return r;
}
float erf_half(const float x)                                                // by powers of the square, which goes from -1 to 1
{
    return abs(x) > 2.75 ? with_sign(1.0, x) : x * erf_ratio_half(fma(x, x * 0.25, -1.0));
}

// Angles below 6400 less half turns, or quarters, whose parts' products are exact; larger ones by math.glsl. All parts are positive,
// so that each product of a zero has the sign that keeps -0.
float opposite(const float j) { return uintBitsToFloat(floatBitsToUint(j) ^ 0x80000000u); }   // 0 with the other sign, too
bool is_usual_angle(const float x) { return abs(x) < 6400.0; }
float sin_series(const float r, const uint turns)
{
    float s = r * r, p = fma(sin_tail_half(s), s, 1.0) * r;
    return uintBitsToFloat(floatBitsToUint(p) ^ (turns << 31));
}
float less_half_turns(const float x, const float j, const float i) { return fma(j, -POSITIVE_HALF_3, fma(i, POSITIVE_HALF_2, fma(j, -POSITIVE_HALF_1, x))); }
float sin_usual(const float x)
{
    precise float u = x * ONE_BY_PI + 12582912.0, j = u - 12582912.0;
    return sin_series(less_half_turns(x, j, opposite(j)), floatBitsToUint(u));
}
float cos_usual(const float x)
{
    precise float h = x * ONE_BY_PI + 0.5, u = h + 12582912.0, k = u - 12582912.0, j = k - 0.5, i = 0.5 - k;
    return sin_series(less_half_turns(x, j, i), floatBitsToUint(u));
}
float tan_usual(const float x)
{
    precise float u = x * TWO_BY_PI + 12582912.0, j = u - 12582912.0;
    float i = opposite(j), r = fma(j, -POSITIVE_QUARTER_3, fma(i, POSITIVE_QUARTER_2, fma(j, -POSITIVE_QUARTER_1, x)));
    float s = r * r, p = fma(tan_tail_half(s), s, 1.0) * r;
    return (floatBitsToUint(u) & 1u) == 0u ? p : -1.0 / p;
}
float sin_half(const float x) { return is_usual_angle(x) ? sin_usual(x) : cos_sin(x).y; }
float cos_half(const float x) { return is_usual_angle(x) ? cos_usual(x) : cos_sin(x).x; }
float tan_half(const float x)
{
    if (is_usual_angle(x)) return tan_usual(x);
    vec2 unit = cos_sin(x);
    return unit.y / unit.x;
}

float asin_part(const float t, const bool large)                                   // large: half the angle to 1
{
    float z = large ? 0.5 - 0.5 * t : t * t;
    return (large ? sqrt(z) : t) * fma(asin_tail_half(z), z, 1.0);
}
float asin_half(const float x)
{
    float t = abs(x), r = asin_part(t, t > 0.5);
    return with_sign(t > 0.5 ? 1.57079637 - (r + r) : r, x);
}
float acos_half(const float x)
{
    float t = abs(x), r = asin_part(t, t > 0.5);
    return t > 0.5 ? (x > 0.0 ? r + r : 3.14159274 - (r + r)) : 1.57079637 - with_sign(r, x);
}
float atan_part(const float u)                                               // 0 <= u <= 1
{
    float s = u * u;
    return fma(atan_tail_half(s), s, 1.0) * u;
}
float atan_half(const float x)
{
    float t = abs(x), r = atan_part(t > 1.0 ? 1.0 / t : t);
    return with_sign(t > 1.0 ? 1.57079637 - r : r, x);
}

// k log2(x); next to 1, where log2 is not good enough, by a series. Not for denormal numbers, which devices take for what they like.
float log_series(const float t) { return fma(t * t, log_tail_half(t), t); }
float log_half(const float x, const float k)
{
    precise float t = x - 1.0;
    return abs(t) < 0.0625 ? log_series(t) * (k * LOG2_E) : log2(x) * k;
}
float log1p_half(const float x)
{
    precise float u = 1.0 + x;
    return abs(x) < 0.0625 ? log_series(x) : log2(u) * LN2;
}
float asinh_half(const float x)
{
    float t = abs(x), s = x * x;
    bool large = t > 8192.0;
    float l = (log2(large ? t : t + sqrt(fma(t, t, 1.0))) + (large ? 1.0 : 0.0)) * LN2;
    return t < 0.25 ? x * fma(asinh_tail_half(s), s, 1.0) : with_sign(l, x);
}
float acosh_half(const float x)
{
    float d = x - 1.0, l = x > 8192.0 ? (log2(x) + 1.0) * LN2 : log1p_half(d + sqrt(d * (x + 1.0)));
    return x < 1.0 ? NOT_A_NUMBER : l;
}
float atanh_half(const float x)
{
    float t = abs(x), s = x * x, l = (log2(1.0 + t) - log2(1.0 - t)) * (0.5 * LN2);
    if (t >= 1.0) return t == 1.0 ? with_sign(INFINITY, x) : NOT_A_NUMBER;       // the logarithm of 0 is what a device likes
    return t < 0.25 ? x * fma(atanh_tail_half(s), s, 1.0) : with_sign(l, x);
}
// bf16, whose numbers next to 1 are far enough from it.
float log2_bf16(const float x)
{
    bool tiny = x < 1.17549435e-38;                                    // denormal, which devices take for what they like
    return log2(tiny ? x * 1.84467441e19 : x) - (tiny ? 64.0 : 0.0);
}
float log_bf16(const float x) { return log2_bf16(x) * LN2; }
float log1p_bf16(const float x)
{
    precise float u = 1.0 + x;
    return abs(x) < 0.015625 ? fma(x * x, fma(x, 0.333333333, -0.5), x) : log_bf16(u);
}
// x^y for x > 0 and finite. Next to 1, y may be large.
float pow_half_positive(const float x, const float y, const uint type)
{
    precise float t = x - 1.0;
    float l = abs(t) < 0.0625 ? log_series(t) * LOG2_E : type == BF16 ? log2_bf16(x) : log2(x);
    return exp2(clamp(l * y, -160.0, 160.0));
}
float logaddexp_half(const float a, const float b)
{
    float high = a > b ? a : b, low = a > b ? b : a;
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    return is_inf(high) || low == -INFINITY ? high : high + log1p_half(exp_half(low - high));
}
float atan2_half(const float y, const float x)
{
    float a = abs(x), b = abs(y), high = b > a ? b : a, low = b > a ? a : b;
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    float r = atan_part(high == 0.0 ? 0.0 : is_inf(low) ? 1.0 : quotient_half(low, high));
    if (b > a) r = 1.57079637 - r;
    if ((floatBitsToUint(x) & 0x80000000u) != 0u) r = 3.14159274 - r;
    return with_sign(r, y);
}
#endif
