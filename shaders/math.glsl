// Functions of float32, within about two units in the last place where the built-in ones promise less. NaN, infinities
// and signed zeros come out as C's library has them. Nothing here needs a fused fma; where there is one it helps. What
// must not be rearranged is precise and without fma(), which does not carry that, or is an fma() with a number of its own: Mesa makes
// one product of fma(j, a, fma(j, b, x)), but not where the one factor is j and the other i, which is -j.
#ifndef MATH_GLSL
#define MATH_GLSL

// copysign for x >= 0. (Masking x too would be a select of bits, which Mesa 26 can get wrong.)
float with_sign(float x, float s) { return uintBitsToFloat(floatBitsToUint(x) ^ (floatBitsToUint(s) & 0x80000000u)); }
// -1, 0 or 1. By bits: a compiler may take comparisons for its own sign function, whose zeros have signs.
float sign_of(float x)
{
    uint u = floatBitsToUint(x) & 0x7fffffffu;
    return u == 0u || u > 0x7f800000u ? 0.0 : with_sign(1.0, x);
}
bool is_finite(float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }
float power_of_two(int i) { return uintBitsToFloat(uint(i + 127) << 23); }               // -126 <= i <= 127
float scale(float x, int i) { return x * power_of_two(i >> 1) * power_of_two(i - (i >> 1)); }   // -252 <= i <= 254

// Quotient and root to the last bit or next to it: one correction of what the device computes.
float divide(float a, float b)
{
    float m = abs(b), s = m > 7.9228163e28 ? 2.3283064365386963e-10 : m < 1.2621774e-29 ? 4294967296.0 : 1.0;
    precise float x = a * s, y = b * s, q = x / y;
    if (q == 0.0) return q;
    precise float r = fma(-q, y, x), c = q + r / y;
    return is_finite(c) ? c : q;
}
float sqrt_of(float x)
{
    if (x == 0.0 || !is_finite(x)) return x < 0.0 ? NOT_A_NUMBER : x;
    if (x < 0.0) return NOT_A_NUMBER;
    precise float r = sqrt(x), e = fma(-r, r, x), c = r + e * (0.5 / r);
    return is_finite(c) ? c : r;
}

float rsqrt_of(float x)
{
    if (!(x > 1.17549435e-38 && x < INFINITY)) return divide(1.0, sqrt_of(x));
    float r = inversesqrt(x), s = x * r;                               // s: next to the root
    return fma(fma(-s, r, 1.0), 0.5 * r, r);
}
// The same for numbers from 2^-100 to 2^100, and the root of 0
float inverse_of(float x) { float r = 1.0 / x; return fma(fma(-x, r, 1.0), r, r); }
float root_of(float x)
{
    float i = inversesqrt(max(x, 7.8886091e-31)), r = x * i;
    return fma(fma(-r, r, x), 0.5 * i, r);
}

// e^f, |f| <= log(2) / 2
float exp_small(float f)
{
    float r = 1.37805939e-3;
    r = fma(r, f, 8.37312452e-3);
    r = fma(r, f, 4.16695364e-2);
    r = fma(r, f, 1.66664720e-1);
    r = fma(r, f, 4.99999851e-1);
    r = fma(r, f, 1.0);
    return fma(r, f, 1.0);
}
// 2^k e^x, |k| <= 1; usual: |x| < 86. j: in the lowest bits of u, and added to the exponent
float exp_usual(float x, int k)
{
    precise float u = x * 1.44269502 + 12582912.0, j = u - 12582912.0, i = 12582912.0 - u;
    float f = fma(i, 1.42860677e-6, fma(j, -0.693145752, x));          // the first product is exact; see top about i
    return uintBitsToFloat(floatBitsToUint(exp_small(f)) + ((floatBitsToUint(u) + uint(k)) << 23));
}
float exp_scaled(float x, int k)
{
    if (abs(x) < 86.0) return exp_usual(x, k);
    float t = clamp(x, -104.0, 90.0);
    precise float j = roundEven(t * 1.44269502), f = t - j * 0.693145752 - j * 1.42860677e-6;
    return is_nan(x) ? x : scale(exp_small(f), int(j) + k);
}
float exp_of(float x) { return exp_scaled(x, 0); }

float expm1(float x)
{
    float c = clamp(x, -17.5, 89.0);
    precise float u = c * 1.44269502 + 12582912.0, j = u - 12582912.0, i = 12582912.0 - u;
    float f = fma(i, 1.42860677e-6, fma(j, -0.693145752, c));
    float r = 1.97350979e-4;                                           // e^f - 1 = f + f^2 r
    r = fma(r, f, 1.39309070e-3);
    r = fma(r, f, 8.33343994e-3);
    r = fma(r, f, 4.16668020e-2);
    r = fma(r, f, 1.66666716e-1);
    r = fma(r, f, 4.99999970e-1);
    float v = fma(r, f * f, j == 1.0 ? f + 0.5 : f), t = uintBitsToFloat((floatBitsToUint(u) + 126u) << 23);   // 2^(j - 1)
    precise float y = t - 0.5, e = (t - y) - 0.5;
    precise float h = fma(v, t, e) + (j == 1.0 ? 0.0 : y);
    return is_nan(x) || abs(x) < 2.9802322e-8 ? x : h + h;
}

const uint TWO_THIRDS = 0x3f2aaaabu;
// log(1 + m), -1/3 <= m <= 1/3
float log1p_small(float m)
{
    float s = m * m, r = -0.130310059, t = 0.140869141;
    r = fma(r, s, -0.121484190);
    t = fma(t, s, 0.139814854);
    r = fma(r, s, -0.166846052);
    t = fma(t, s, 0.200120345);
    r = fma(r, s, -0.249996200);
    r = fma(t, m, r);
    r = fma(r, m, 0.333331972);
    r = fma(r, m, -0.5);
    return fma(r, s, m);
}
// x = 2^i (1 + m), 1 + m from the float with the bits `least` to twice that; x positive and finite
float split_exponent(float x, uint least, out float m)
{
    uint u = floatBitsToUint(x);
    float i = 0.0;
    if (u < 0x00800000u) { u = floatBitsToUint(float(u)); i = -149.0; }                  // denormal: u 2^-149
    int e = int(u - least) & int(0xff800000u);
    m = uintBitsToFloat(u - uint(e)) - 1.0;
    return i + float(e >> 23);
}
// What the logarithms of other numbers are
bool has_log(float x) { return floatBitsToUint(x) - 1u < 0x7f7fffffu; }
float log_beyond(float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0u ? -INFINITY : x == INFINITY || is_nan(x) ? x : NOT_A_NUMBER; }
float log_of(float x)
{
    if (!has_log(x)) return log_beyond(x);
    float m, i = split_exponent(x, TWO_THIRDS, m);
    return fma(i, 0.693147182, log1p_small(m));
}
float log2_of(float x)
{
    if (!has_log(x)) return log_beyond(x);
    float m, i = split_exponent(x, TWO_THIRDS, m), r = log1p_small(m);
    return i + fma(r, 1.44269502, r * 1.92596303e-8);
}
float log10_of(float x)
{
    if (!has_log(x)) return log_beyond(x);
    float m, i = split_exponent(x, TWO_THIRDS, m), r = log1p_small(m);
    return fma(i, 0.301025391, fma(r, 0.434294492, i * 4.60503811e-6));
}
float log1p(float x)
{
    if (!(x > -1.0 && x < 1e10)) return x == -1.0 ? -INFINITY : log_of(x);
    precise float u = 1.0 + x;
    int e = int(floatBitsToUint(u) - TWO_THIRDS) >> 23;
    precise float s = power_of_two(-e), m = x * s + (s - 1.0);         // 1 + x = 2^e (1 + m)
    return abs(x) < 2.9802322e-8 ? x : fma(float(e), 0.693147182, log1p_small(m));
}

float sigmoid(float x)
{
    float e = exp_of(-abs(x)), r = inverse_of(1.0 + e);
    return x < 0.0 ? e * r : r;
}
float sinh_of(float x)
{
    float t = abs(x), s = x * x, h = exp_scaled(t, -1), r = 2.81695111e-6;
    r = fma(r, s, 1.98361595e-4);
    r = fma(r, s, 8.3333496e-3);
    r = fma(r, s, 0.166666672);
    return t < 1.0 ? fma(r * s, x, x) : with_sign(t > 10.0 ? h : h - 0.25 / h, x);
}
float cosh_of(float x)
{
    float h = exp_scaled(abs(x), -1);
    return abs(x) > 10.0 ? h : h + 0.25 / h;
}
float tanh_of(float x)
{
    float t = min(abs(x), 9.02), s = t * t, r = -0.00570497848;
    r = fma(r, s, 0.0206390787);
    r = fma(r, s, -0.0537397116);
    r = fma(r, s, 0.133314416);
    r = fma(r, s, -0.333332807);
    return with_sign(t < 0.625 ? fma(r * s, t, t) : 1.0 - 2.0 / (1.0 + exp_usual(t + t, 0)), x);
}
float asinh_of(float x)
{
    float t = abs(x), s = t * t;
    return with_sign(t > 1e9 ? log_of(t) + 0.693147182 : log1p(t + s * inverse_of(1.0 + root_of(1.0 + s))), x);
}
float acosh_of(float x)
{
    float t = x - 1.0;
    return x < 1.0 ? NOT_A_NUMBER : x > 1e9 ? log_of(x) + 0.693147182 : log1p(t + root_of(fma(t, t, t + t)));
}
float atanh_of(float x)
{
    float t = abs(x), r = t == 1.0 ? INFINITY : 0.5 * log1p((t + t) * inverse_of(1.0 - t));
    return t > 1.0 ? NOT_A_NUMBER : with_sign(r, x);
}

// x >= 0 less quadrant * pi / 2; the rest is in [-pi/4, pi/4]
float reduce_angle(float x, out uint quadrant)
{
    if (x < 8192.0) {                                                  // pi / 2 in parts whose products are exact
        precise float u = x * 0.636619772 + 12582912.0, j = u - 12582912.0, i = 12582912.0 - u;
        float r = fma(i, 4.837512969970703e-4, fma(j, -1.5703125, x));
        quadrant = floatBitsToUint(u);
        return fma(i, 2.5633440682570896e-12, fma(j, -7.549533620476723e-8, r));
    }
    quadrant = 0u;
    if (!is_finite(x)) return NOT_A_NUMBER;
    // x / 2 pi in fixed point, without its whole turns (Payne, Hanek)
    const uint inverse[7] = { 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau };
    uint u = floatBitsToUint(x), e = (u >> 23) - 126u, i = e >> 5;
    uint high = i > 0u ? inverse[i - 1u] : 0u, mid = inverse[i], low = inverse[i + 1u], next = inverse[min(i + 2u, 6u)];
    e &= 31u;
    if (e != 0u) {
        high = (high << e) | (mid >> (32u - e));
        mid = (mid << e) | (low >> (32u - e));
        low = (low << e) | (next >> (32u - e));
    }
    uint a, b, c, d, carry;
    u = (u << 8) | 0x80000000u;
    umulExtended(u, low, a, b);
    umulExtended(u, mid, c, d);
    d = uaddCarry(d, a, carry);
    c += u * high + carry;                                             // (c, d): 2 bits of quadrant, 62 of fraction
    quadrant = c >> 30;
    c &= 0x3fffffffu;
    bool above = c >= 0x20000000u;
    if (above) {
        quadrant++;
        c = 0x40000000u - c - (d != 0u ? 1u : 0u);
        d = 0u - d;
    }
    int shift = -30;
    if (c == 0u) { c = d; d = 0u; shift -= 32; }
    if (c == 0u) return 0.0;
    int k = 31 - findMSB(c);
    if (k > 0) c = (c << k) | (d >> (32 - k));
    float s = power_of_two(shift - k), f = float(c >> 8) * 256.0 * s, g = float(c & 255u) * s;
    float r = fma(f, 1.57079637, fma(f, -4.37113883e-8, g * 1.57079637));
    return above ? -r : r;
}
vec2 cos_sin(float x)
{
    uint q;
    float r = reduce_angle(abs(x), q), s = r * r, p = 2.86567956e-6, c = 2.44677067e-5;
    p = fma(p, s, -1.98559923e-4);
    p = fma(p, s, 8.33338592e-3);
    p = fma(p, s, -1.66666672e-1);
    p = fma(p * s, r, r);
    c = fma(c, s, -1.38877297e-3);
    c = fma(c, s, 4.16666567e-2);
    c = fma(c, s, -0.5);
    c = fma(c, s, 1.0);
    vec2 unit = (q & 1u) == 0u ? vec2(c, p) : vec2(p, c);
    return uintBitsToFloat(floatBitsToUint(unit) ^ uvec2(((q + 1u) & 2u) << 30, ((q & 2u) << 30) ^ (floatBitsToUint(x) & 0x80000000u)));
}
float cos_of(float x) { return cos_sin(x).x; }
float sin_of(float x) { return cos_sin(x).y; }
float tan_of(float x)
{
    vec2 unit = cos_sin(x);
    float r = 1.0 / unit.x, q = unit.y * r;
    return q == 0.0 ? unit.y : fma(fma(-q, unit.x, unit.y), r, q);
}

// asin(x) = x + x asin_tail(x^2), |x| <= 1/2
float asin_tail(float s)
{
    float r = 0.042166166;
    r = fma(r, s, 0.0241796039);
    r = fma(r, s, 0.0454703569);
    r = fma(r, s, 0.0749529749);
    return fma(r, s, 0.166667521) * s;
}
float asin_of(float x)
{
    float t = abs(x);
    if (t > 1.0) return NOT_A_NUMBER;
    if (t <= 0.5) return fma(asin_tail(x * x), x, x);
    float z = 0.5 - 0.5 * t, s = root_of(z), r = fma(asin_tail(z), s, s);
    return with_sign(1.57079637 - (r + r) - 4.37113883e-8, x);
}
float acos_of(float x)
{
    float t = abs(x);
    if (t > 1.0) return NOT_A_NUMBER;
    if (t <= 0.5) return 1.57079637 - (x - (-4.37113883e-8 - x * asin_tail(x * x)));
    float z = 0.5 - 0.5 * t, s = root_of(z), r = fma(asin_tail(z), s, s);
    return x > 0.0 ? r + r : 3.14159274 - (r + r + 8.74227766e-8);
}
// atan(x), 0 <= x <= 1
float atan_unit(float x)
{
    float s = x * x, r = -0.00179361599;
    r = fma(r, s, 0.0109145809);
    r = fma(r, s, -0.0311778039);
    r = fma(r, s, 0.0579575561);
    r = fma(r, s, -0.0840344802);
    r = fma(r, s, 0.109521851);
    r = fma(r, s, -0.142642409);
    r = fma(r, s, 0.199985489);
    r = fma(r, s, -0.333332986);
    return fma(r * s, x, x);
}
float atan_of(float x)
{
    float t = abs(x), r = atan_unit(t > 1.0 ? inverse_of(min(t, 1e30)) : t);
    return with_sign(t > 1.0 ? 1.57079637 - (r + 4.37113883e-8) : r, x);
}
float atan2_of(float y, float x)
{
    float a = abs(x), b = abs(y), high = b > a ? b : a, low = b > a ? a : b;
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    float q = high == 0.0 ? 0.0 : is_inf(low) ? 1.0 : divide(low, high), r = atan_unit(q);
    if (b > a) r = 1.57079637 - (r + 4.37113883e-8);
    if ((floatBitsToUint(x) & 0x80000000u) != 0u) r = 3.14159274 - (r + 8.74227766e-8);
    return with_sign(r, y);
}

float erf(float x)
{
    float t = min(abs(x), 4.0), s = t * t, c = -5.96761703e-4;
    float r = fma(fma(-1.72853470e-5, t, 3.83197126e-4), s, fma(-3.88396438e-3, t, 2.42546219e-2));
    r = fma(r, t, -1.06777877e-1);
    r = fma(r, t, -6.34846687e-1);
    r = fma(r, t, -1.28717512e-1);
    r = fma(r, t, -t);
    c = fma(c, s, 4.99119423e-3);
    c = fma(c, s, -2.67681349e-2);
    c = fma(c, s, 1.12819925e-1);
    c = fma(c, s, -3.76125336e-1);
    c = fma(c, s, 1.28379166e-1);
    return t > 0.927734375 ? with_sign(1.0 - exp_usual(r, 0), x) : fma(c, x, x);
}
float erfinv(float x)
{
    float m, i = split_exponent((1.0 - x) * (1.0 + x), TWO_THIRDS, m), t = fma(i, 0.693147182, log1p_small(m)), p;
    if (!(abs(x) < 1.0)) return abs(x) == 1.0 ? with_sign(INFINITY, x) : NOT_A_NUMBER;
    if (abs(t) > 6.125) {
        p = 3.03697567e-10;
        p = fma(p, t, 2.93243101e-8);
        p = fma(p, t, 1.22150334e-6);
        p = fma(p, t, 2.84108955e-5);
        p = fma(p, t, 3.93552968e-4);
        p = fma(p, t, 3.02698812e-3);
        p = fma(p, t, 4.83185798e-3);
        p = fma(p, t, -2.64646143e-1);
        p = fma(p, t, 8.40016484e-1);
    } else {
        p = 5.43877832e-9;
        p = fma(p, t, 1.43285448e-7);
        p = fma(p, t, 1.22774793e-6);
        p = fma(p, t, 1.12963626e-7);
        p = fma(p, t, -5.61530760e-5);
        p = fma(p, t, -1.47697632e-4);
        p = fma(p, t, 2.31468678e-3);
        p = fma(p, t, 1.15392581e-2);
        p = fma(p, t, -2.32015476e-1);
        p = fma(p, t, 8.86226892e-1);
    }
    return x * p;
}

// NaN if either is; an infinite maximum is the result
float logaddexp(float a, float b)
{
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    float high = a > b ? a : b, low = a > b ? b : a;
    return is_inf(high) || low == -INFINITY ? high : high + log1p(exp_of(low - high));
}

// C's fmod, exactly: the remainder of whole numbers, a few bits of the quotient at a time
float fmod_of(float x, float y)
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
float remainder_of(float x, float y)                                   // with the sign of y
{
    float r = fmod_of(x, y);
    return r != 0.0 && (r < 0.0) != (y < 0.0) ? r + y : r;
}

// a b less its rounded product
float product_error(float a, float b, float product)
{
    precise float ah = uintBitsToFloat(floatBitsToUint(a) & 0xfffff000u), al = a - ah;
    precise float bh = uintBitsToFloat(floatBitsToUint(b) & 0xfffff000u), bl = b - bh;
    precise float e = ah * bh - product;
    e = e + ah * bl;
    e = e + al * bh;
    return e + al * bl;
}
// x^y for x > 0 and finite: the logarithm in two floats
float pow_positive(float x, float y)
{
    float d, i = split_exponent(x, 0x3f3504f3u, d);
    precise float q = d / (d + 2.0), m = d - (q + q), p = q * d;
    m = m - p;
    m = m - product_error(q, d, p);                                    // d - q (d + 2)
    float tail = m / (d + 2.0), s = q * q, r = 0.120517425;            // log(1 + d) = 2 atanh(q + tail)
    r = fma(r, s, 0.142533973);
    r = fma(r, s, 0.200004339);
    r = fma(r, s, 0.333333313);
    precise float high = i * 0.693145752, top = high + (q + q), low = (high - top) + (q + q);
    low = low + (i * 1.42860677e-6 + 2.0 * (tail + r * s * q));
    precise float l = top + low, error = (top - l) + low;
    precise float e = l * y;
    if (!(abs(e) < 110.0)) return e > 0.0 ? INFINITY : 0.0;
    error = product_error(l, y, e) + error * y;
    float z = exp_of(e);
    return is_finite(z) ? fma(z, error, z) : z;
}
// C's pow, of what |x|^y is where x is no zero and finite
float pow_signed(float x, float y, float positive)
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
float pow_of(float x, float y) { return pow_signed(x, y, pow_positive(abs(x), y)); }

#endif
