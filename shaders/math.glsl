// Functions of float32, within about two units in the last place where the built-in ones promise less. NaN, infinities
// and signed zeros come out as C's library has them. Nothing here needs a fused fma; where there is one it helps. What
// must not be rearranged is precise and without fma(), which does not carry that, or is an fma() with a number of its own: Mesa makes
// one product of fma(j, a, fma(j, b, x)), but not where the one factor is j and the other i, which is -j.
// Beside a function: the worst error over all floats that are normal and have normal results, in units of the last place, without
// and with a fused fma (build/bench/bench_ulp measures it on a device).
// Measured on an NVIDIA H200 (driver 580.159) over all 2^32 arguments, of arctan2 over as many pairs: sqrt 0.94, rsqrt 1.00,
// reciprocal 0.97, exp 0.90, expm1 1.01, log 0.91, log2 1.62, log10 2.04, log1p 1.38, sin 2.34, cos 2.32, tan 3.30, arcsin
// 2.90, arccos 2.12, arctan 1.40, sinh 1.52, cosh 1.35, tanh 1.45, arcsinh 1.82, arccosh 2.50, arctanh 1.84, erf 1.01, sigmoid
// 2.78, arctan2 2.08 (when its quotient had two divisions). The worst of erfinv and power there are results next to denormal
// numbers, which this GPU takes for zero, that of logaddexp results next to 0.
#ifndef MATH_GLSL
#define MATH_GLSL
#include "polynomials.glsl"

// copysign for x >= 0. (Masking x too would be a select of bits, which Mesa 26 can get wrong.)
float with_sign(const float x, const float s) { return uintBitsToFloat(floatBitsToUint(x) ^ (floatBitsToUint(s) & 0x80000000u)); }
// -1, 0 or 1. By bits: a compiler may take comparisons for its own sign function, whose zeros have signs.
float sign_of(const float x)
{
    uint u = floatBitsToUint(x) & 0x7fffffffu;
    return u == 0u || u > 0x7f800000u ? 0.0 : with_sign(1.0, x);
}
bool is_finite(const float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }
float power_of_two(const int i) { return uintBitsToFloat(uint(i + 127) << 23); }               // -126 <= i <= 127
float scale(const float x, const int i) { return x * power_of_two(i >> 1) * power_of_two(i - (i >> 1)); }   // -252 <= i <= 254

// Quotient and root to the last bit or next to it: one correction of what the device computes.
float divide(const float a, const float b)
{
    float m = abs(b), s = m > 7.9228163e28 ? 2.3283064365386963e-10 : m < 1.2621774e-29 ? 4294967296.0 : 1.0;
    precise float x = a * s, y = b * s, q = x / y;
    if (abs(q) < 1.17549435e-38) return q;                             // some operations take what is denormal for zero
    precise float r = fma(-q, y, x), c = q + r / y;
    return is_finite(c) ? c : q;
}
float sqrt_of(const float x)
{
    if (x == 0.0 || !is_finite(x)) return x < 0.0 ? NOT_A_NUMBER : x;
    if (x < 0.0) return NOT_A_NUMBER;
    precise float r = sqrt(x), e = fma(-r, r, x), c = r + e * (0.5 / r);
    return is_finite(c) ? c : r;
}

float rsqrt_of(const float x)
{
    if (!(x > 1.17549435e-38 && x < INFINITY)) return divide(1.0, sqrt_of(x));
    float r = inversesqrt(x), s = x * r;                               // s: next to the root
    return fma(fma(-s, r, 1.0), 0.5 * r, r);
}
// The same for numbers from 2^-100 to 2^100, and the root of 0
float inverse_of(const float x) { float r = 1.0 / x; return fma(fma(-x, r, 1.0), r, r); }
float root_of(const float x)
{
    float i = inversesqrt(max(x, 7.8886091e-31)), r = x * i;
    return fma(fma(-r, r, x), 0.5 * i, r);
}

// e^f, |f| <= log(2) / 2
float exp_small(const float f) { return fma(fma(exp_tail(f), f, 1.0), f, 1.0); }
// 2^k e^x, |k| <= 1; usual: |x| < 86. j: in the lowest bits of u, and added to the exponent
float exp_usual(const float x, const int k)
{
    precise float u = x * LOG2_E + 12582912.0, j = u - 12582912.0, i = 12582912.0 - u;
    float f = fma(i, LN2_2, fma(j, -LN2_1, x));                        // the first product is exact; see top about i
    return uintBitsToFloat(floatBitsToUint(exp_small(f)) + ((floatBitsToUint(u) + uint(k)) << 23));
}
float exp_scaled(const float x, const int k)
{
    if (abs(x) < 86.0) return exp_usual(x, k);
    float t = clamp(x, -104.0, 90.0);
    precise float j = roundEven(t * LOG2_E), f = t - j * LN2_1 - j * LN2_2;
    return is_nan(x) ? x : scale(exp_small(f), int(j) + k);
}
float exp_of(const float x) { return exp_scaled(x, 0); }

// Half of 2^j (1 + f) - 1. Next to j = 1, where it may be less than its terms, no error of theirs remains: g is f less what its
// second product takes, which goes to the tail.
float expm1(const float x)
{
    float c = clamp(x, -17.5, 89.0);
    precise float u = c * LOG2_E + 12582912.0, j = u - 12582912.0, i = 12582912.0 - u;
    float g = fma(j, -LN2_1, c), f = fma(i, LN2_2, g), tail = fma(i, LN2_2, expm1_tail(f) * (f * f));
    float t = uintBitsToFloat((floatBitsToUint(u) + 126u) << 23);      // 2^(j - 1)
    precise float v = (j == 1.0 ? g + 0.5 : g) + tail, y = t - 0.5, e = (t - y) - 0.5, h = fma(t, v, e) + (j == 1.0 ? 0.0 : y);
    return is_nan(x) || abs(x) < 2.9802322e-8 ? x : h + h;
}

const uint LEAST = 0x3f3504f3u;                                        // the root of 1/2
// log(1 + m), 1 + m from there to the root of 2
float log1p_small(const float m) { return fma(fma(log_tail(m), m, -0.5), m * m, m); }
// x = 2^i (1 + m), 1 + m from the float with the bits `least` to twice that; x positive and finite
float split_exponent(const float x, const uint least, out float m)
{
    uint u = floatBitsToUint(x);
    float i = 0.0;
    if (u < 0x00800000u) { u = floatBitsToUint(float(u)); i = -149.0; }                  // denormal: u 2^-149
    int e = int(u - least) & int(0xff800000u);
    m = uintBitsToFloat(u - uint(e)) - 1.0;
    return i + float(e >> 23);
}
// What the logarithms of other numbers are
bool has_log(const float x) { return floatBitsToUint(x) - 1u < 0x7f7fffffu; }
float log_beyond(const float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0u ? -INFINITY : x == INFINITY || is_nan(x) ? x : NOT_A_NUMBER; }
float log_of(const float x)
{
    if (!has_log(x)) return log_beyond(x);
    float m, i = split_exponent(x, LEAST, m);
    return fma(i, LN2, log1p_small(m));
}
float log2_of(const float x)
{
    if (!has_log(x)) return log_beyond(x);
    float m, i = split_exponent(x, LEAST, m), r = log1p_small(m);
    return i + fma(r, LOG2_E, r * LOG2_E_LOW);
}
float log10_of(const float x)
{
    if (!has_log(x)) return log_beyond(x);
    float m, i = split_exponent(x, LEAST, m), r = log1p_small(m);
    return fma(i, LG2_1, fma(r, LOG10_E, i * LG2_2));
}
float log1p(const float x)
{
    if (!(x > -1.0 && x < 1e10)) return x == -1.0 ? -INFINITY : log_of(x);
    precise float u = 1.0 + x;
    int e = int(floatBitsToUint(u) - LEAST) >> 23;
    precise float s = power_of_two(-e), m = x * s + (s - 1.0);         // 1 + x = 2^e (1 + m)
    return abs(x) < 2.9802322e-8 ? x : fma(float(e), LN2, log1p_small(m));
}

float sigmoid(const float x)
{
    float e = exp_of(-abs(x)), r = inverse_of(1.0 + e);
    return x < 0.0 ? e * r : r;
}
float sinh_of(const float x)
{
    float t = abs(x), s = x * x, h = exp_scaled(t, -1);
    return t < 1.5 ? fma(sinh_tail(s) * s, x, x) : with_sign(t > 10.0 ? h : h - 0.25 / h, x);
}
float cosh_of(const float x)
{
    float h = exp_scaled(abs(x), -1);
    return abs(x) > 10.0 ? h : h + 0.25 / h;
}
float tanh_of(const float x)
{
    float t = min(abs(x), 9.02), s = t * t;
    return with_sign(t < 0.65 ? fma(tanh_tail(s) * s, t, t) : 1.0 - 2.0 / (1.0 + exp_usual(t + t, 0)), x);
}
float asinh_of(const float x)
{
    float t = abs(x), s = t * t;
    return with_sign(t > 1e9 ? log_of(t) + LN2 : log1p(t + s * inverse_of(1.0 + root_of(1.0 + s))), x);
}
float acosh_of(const float x)
{
    float t = x - 1.0;
    return x < 1.0 ? NOT_A_NUMBER : x > 1e9 ? log_of(x) + LN2 : log1p(t + root_of(fma(t, t, t + t)));
}
float atanh_of(const float x)
{
    float t = abs(x), r = t == 1.0 ? INFINITY : 0.5 * log1p(fma((t + t) * t, inverse_of(1.0 - t), t + t));
    return t > 1.0 ? NOT_A_NUMBER : with_sign(r, x);
}

// x >= 0 less the nearest multiple of pi / 2, whose number is the quadrant.
// Usual angles: multiples and the parts of pi / 2 but the last have 12 bits each, so that products are exact.
float usual_rest(const float x, out uint quadrant)
{
    precise float u = x * TWO_BY_PI + 12582912.0, j = u - 12582912.0, i = 12582912.0 - u;
    quadrant = floatBitsToUint(u);
    return fma(i, QUARTER_4, fma(j, -QUARTER_3, fma(i, QUARTER_2, fma(j, -QUARTER_1, x))));
}
// Others: x is m 2^e, and m is multiplied with those 96 bits of 2^e / pi that stand for no whole turns. Of the product's bits the
// first two are the quadrant, and those behind them a part of the next, or of this one with a sign.
float unusual_rest(const float x, out uint quadrant)
{
    uint u = floatBitsToUint(x), e = (u >> 23) - 134u, k = e >> 3, m = (u & 0x7fffffu | 0x800000u) << (e & 7u);
    uint high, low, next, carry;
    uvec3 inverse_pi = words_of_inverse_pi(k);
    umulExtended(m, inverse_pi.z, next, low);
    umulExtended(m, inverse_pi.y, high, low);
    low = uaddCarry(low, next, carry);
    high += m * inverse_pi.x + carry;
    quadrant = high + 0x20000000u >> 30;
    high = high << 2 | low >> 30;
    uint flip = 0u - (high >> 31);                                     // all bits: the number but one unit of 2^-62
    high ^= flip;
    low = low << 2 ^ flip;
    const float unit = 1.57079637 / 16777216.0, unit_low = -4.37113883e-8 / 16777216.0;
    float r = fma(float(high >> 9), 2.0 * unit_low, float(high << 24 | low >> 8) * (unit / 4294967296.0));
    r = fma(float(high >> 8), unit, r);                                // see top about factors
    return !is_finite(x) ? NOT_A_NUMBER : flip != 0u ? -r : r;
}
float angle_rest(const float x, out uint quadrant) { return x < 6400.0 ? usual_rest(x, quadrant) : unusual_rest(x, quadrant); }
vec2 cos_sin(const float x)
{
    uint q;
    float r = angle_rest(abs(x), q), s = r * r, p = fma(sin_tail(s) * s, r, r), c = fma(fma(cos_tail(s), s, -0.5), s, 1.0);
    vec2 unit = (q & 1u) == 0u ? vec2(c, p) : vec2(p, c);
    return uintBitsToFloat(floatBitsToUint(unit) ^ uvec2((q + 1u & 2u) << 30, (q & 2u) << 30 ^ floatBitsToUint(x) & 0x80000000u));
}
float cos_of(const float x) { return cos_sin(x).x; }
float sin_of(const float x) { return cos_sin(x).y; }
float tan_of(const float x)
{
    uint q;
    float r = angle_rest(abs(x), q), s = r * r, t = fma(tan_tail(s) * s, r, r);
    if ((q & 1u) != 0u) t = -inverse_of(t);
    return uintBitsToFloat(floatBitsToUint(t) ^ floatBitsToUint(x) & 0x80000000u);
}

float asin_of(const float x)
{
    float t = abs(x);
    if (t > 1.0) return NOT_A_NUMBER;
    if (t <= 0.5) return fma(asin_tail(x * x) * (x * x), x, x);
    float z = 0.5 - 0.5 * t, s = root_of(z), r = fma(asin_tail(z) * z, s, s);
    precise float y = 1.57079637 - (r + r) - 4.37113883e-8;
    return with_sign(y, x);
}
float acos_of(const float x)
{
    float t = abs(x);
    bool large = t > 0.5;
    if (t > 1.0) return NOT_A_NUMBER;
    float z = large ? 0.5 - 0.5 * t : x * x, s = large ? root_of(z) : x, q = asin_tail(z) * z, e = q * s, r = fma(q, s, s);
    precise float y = 1.57079637 - (x - (-4.37113883e-8 - e)), beyond = 3.14159274 - (r + r + 8.74227766e-8);
    return !large ? y : x > 0.0 ? r + r : beyond;
}
// atan(x), 0 <= x <= 1
float atan_unit(const float x) { return fma(atan_tail(x * x) * (x * x), x, x); }
float atan_of(const float x)
{
    float t = abs(x), r = atan_unit(t > 1.0 ? inverse_of(min(t, 1e30)) : t);
    precise float y = 1.57079637 - (r + 4.37113883e-8);
    return with_sign(t > 1.0 ? y : r, x);
}
// low / high for 0 <= low <= high: one correction of what the device computes, where no size of either takes out of range.
float part_of(const float low, const float high)
{
    float s = high > 7.9228163e28 ? 2.3283064365386963e-10 : high < 1.2621774e-29 ? 4294967296.0 : 1.0;
    float x = low * s, y = high * s, q = x / y;
    if (high == 0.0) return 0.0;
    if (!is_finite(high)) return is_inf(low) ? 1.0 : 0.0;
    return q < 1.17549435e-38 ? q : fma(fma(-q, y, x), 1.0 / y, q);
}
float atan2_of(const float y, const float x)
{
    float a = abs(x), b = abs(y), r = atan_unit(part_of(b > a ? a : b, b > a ? b : a));
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    precise float upper = 1.57079637 - (r + 4.37113883e-8);
    if (b > a) r = upper;
    if ((floatBitsToUint(x) & 0x80000000u) != 0u) r = 3.14159274 - (r + 8.74227766e-8);
    return with_sign(r, y);
}

float erf(const float x)
{
    float t = abs(x);
    precise float r = 1.0 - erfc_series(t - 2.5);
    return t > 1.125 ? with_sign(t > 3.92 ? 1.0 : r, x) : fma(erf_tail(fma(x, x, -0.5)), x, x);
}
// By the logarithm of 1 - x^2, whose factors have no denormal products.
float erfinv(const float x)
{
    float a = abs(x);
    if (!(a < 1.0)) return a == 1.0 ? with_sign(INFINITY, x) : NOT_A_NUMBER;
    precise float y = (1.0 - x) * (1.0 + x);
    int e = int(floatBitsToUint(y) - LEAST) & int(0xff800000u);
    float t = fma(float(e >> 23), LN2, log1p_small(uintBitsToFloat(floatBitsToUint(y) - uint(e)) - 1.0));
    return x * (t > -5.5 ? erfinv_near(t + 2.625) : erfinv_far(t + 10.625));
}

// NaN if either is; an infinite maximum is the result
float logaddexp(const float a, const float b)
{
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    float high = a > b ? a : b, low = a > b ? b : a;
    return is_inf(high) || low == -INFINITY ? high : high + log1p(exp_of(low - high));
}

// C's fmod, exactly: the remainder of whole numbers, a few bits of the quotient at a time
float fmod_of(const float x, const float y)
{
    uint a = floatBitsToUint(x) & 0x7fffffffu, b = floatBitsToUint(y) & 0x7fffffffu;
    if (b == 0u || a >= 0x7f800000u || b > 0x7f800000u) return NOT_A_NUMBER;
    if (a < b) return x;
    int ea = max(int(a >> 23), 1), eb = max(int(b >> 23), 1);
    uint p = (a & 0x7fffffu) | (a >= 0x800000u ? 0x800000u : 0u), q = (b & 0x7fffffu) | (b >= 0x800000u ? 0x800000u : 0u);
    p %= q;
    for (int n = ea - eb; n > 0 && p != 0u; n -= 8) p = (p << min(n, 8)) % q;
    return with_sign(scale(float(p), eb - 150), x);
}
float remainder_of(const float x, const float y)                                   // with the sign of y
{
    float r = fmod_of(x, y);
    return r != 0.0 && (r < 0.0) != (y < 0.0) ? r + y : r;
}

// a b less its rounded product
float product_error(const float a, const float b, const float product)
{
    precise float ah = uintBitsToFloat(floatBitsToUint(a) & 0xfffff000u), al = a - ah;
    precise float bh = uintBitsToFloat(floatBitsToUint(b) & 0xfffff000u), bl = b - bh;
    precise float e = ah * bh - product;
    e = e + ah * bl;
    e = e + al * bh;
    return e + al * bl;
}
// x^y for x > 0 and finite: the logarithm in two floats
float pow_positive(const float x, const float y)
{
    float d, i = split_exponent(x, LEAST, d);
    precise float q = d / (d + 2.0), m = d - (q + q), p = q * d;
    m = m - p;
    m = m - product_error(q, d, p);                                    // d - q (d + 2)
    float tail = m / (d + 2.0), s = q * q, r = atanh_tail(s);          // log(1 + d) = 2 atanh(q + tail)
    precise float high = i * LN2_1, top = high + (q + q), low = (high - top) + (q + q);
    low = low + (i * LN2_2 + 2.0 * (tail + r * s * q));
    precise float l = top + low, error = (top - l) + low;
    precise float e = l * y;
    if (!(abs(e) < 110.0)) return e > 0.0 ? INFINITY : 0.0;
    error = product_error(l, y, e) + error * y;
    float z = exp_of(e);
    return is_finite(z) ? fma(z, error, z) : z;
}
// C's pow, of what |x|^y is where x is no zero and finite
float pow_signed(const float x, const float y, const float positive)
{
    float a = abs(x), b = abs(y), r = positive;
    if (y == 0.0 || x == 1.0) return 1.0;
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    bool whole = b >= 8388608.0 || floor(b) == b, odd = whole && b < 16777216.0 && (uint(b) & 1u) != 0u;
    if (is_inf(y)) r = a == 1.0 ? 1.0 : (a > 1.0) == (y > 0.0) ? INFINITY : 0.0;
    else if (a == 0.0 || is_inf(a)) r = (a == 0.0) == (y < 0.0) ? INFINITY : 0.0;
    else if (x < 0.0 && !whole) return NOT_A_NUMBER;
    return odd ? with_sign(r, x) : r;
}
// What people write mostly is as exact as a product.
float pow_of(const float x, const float y)
{
    if (y == 1.0 || y == 2.0) return y == 1.0 ? x : x * x;
    return pow_signed(x, y, pow_positive(abs(x), y));
}

#endif
