// Functions of complex64, as vec2(real, imaginary). Branch cuts and signed zeros as in C99.
#ifndef COMPLEX_GLSL
#define COMPLEX_GLSL
#include "math.glsl"

bool is_nan(const vec2 z) { return is_nan(z.x) || is_nan(z.y); }
bool complex_less(const vec2 a, const vec2 b) { return a.x < b.x || (a.x == b.x && a.y < b.y); }   // by the real part, then the other

// Products, quotients and the absolute value by the textbook formulas, as MLX has them: no scaling, no recovery.
vec2 complex_multiply(const vec2 a, const vec2 b) { return vec2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
vec2 complex_divide(const vec2 a, const vec2 b)
{
    float d = b.x * b.x + b.y * b.y;
    return vec2(divide(a.x * b.x + a.y * b.y, d), divide(a.y * b.x - a.x * b.y, d));
}
float complex_abs(const vec2 z) { return sqrt_of(z.x * z.x + z.y * z.y); }

vec2 complex_exp(const vec2 z)
{
    if (z.y == 0.0) return vec2(exp_of(z.x), z.y);
    if (z.x == -INFINITY && !is_finite(z.y)) return vec2(0.0);
    if (z.x == INFINITY && !is_finite(z.y)) return vec2(INFINITY, NOT_A_NUMBER);
    vec2 unit = cos_sin(z.y);
    bool large = z.x > 88.0 && z.x < 192.0;                            // the parts may be finite where e^x is not
    float e = exp_of(large ? 0.5 * z.x : z.x);
    return large ? e * unit * e : e * unit;
}
float log_abs(const vec2 z)
{
    float a = abs(z.x), b = abs(z.y), high = a < b ? b : a, low = a < b ? a : b;
    if (is_inf(a) || is_inf(b)) return INFINITY;
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    if (high == 0.0) return -INFINITY;
    if (high > 0.7 && high < 1.5) return 0.5 * log1p(fma(low, low, (high - 1.0) * (high + 1.0)));
    float q = divide(low, high);
    return log_of(high) + 0.5 * log1p(q * q);
}
vec2 complex_log(const vec2 z) { return vec2(log_abs(z), atan2_of(z.y, z.x)); }
vec2 complex_log1p(const vec2 z)
{
    float u = 1.0 + z.x, d = fma(z.y, z.y, z.x * (2.0 + z.x));
    return vec2(abs(d) < 0.5 ? 0.5 * log1p(d) : log_abs(vec2(u, z.y)), atan2_of(z.y, u));
}
vec2 complex_sqrt(const vec2 z)
{
    float a = abs(z.x), b = abs(z.y), high = a < b ? b : a, low = a < b ? a : b;
    if (is_inf(z.y)) return vec2(INFINITY, z.y);
    if (high == 0.0) return vec2(0.0, z.y);
    float q = is_inf(high) ? 0.0 : divide(low, high), r = high * sqrt_of(1.0 + q * q);
    float t = sqrt_of(0.5 * a + 0.5 * r), u = is_inf(t) ? 0.0 * b : divide(b, t + t);
    return floatBitsToUint(z.x) < 0x80000000u ? vec2(t, with_sign(u, z.y)) : vec2(u, with_sign(t, z.y));
}
vec2 complex_sinh_cosh(const vec2 z, const bool cosine)                            // cosh z, or sinh z
{
    vec2 h = vec2(cosh_of(z.x), sinh_of(z.x)), unit = z.y == 0.0 ? vec2(1.0, z.y) : cos_sin(z.y);
    return (cosine ? h : h.yx) * unit;
}
vec2 complex_tanh(const vec2 z)                                              // Kahan
{
    vec2 unit = cos_sin(z.y);
    if (abs(z.x) > 11.0) {
        float e = exp_of(-abs(z.x));
        return vec2(with_sign(1.0, z.x), is_finite(z.y) ? 4.0 * unit.x * unit.y * e * e : 0.0);
    }
    float t = divide(unit.y, unit.x), b = 1.0 + t * t, s = sinh_of(z.x), r = sqrt_of(1.0 + s * s), d = 1.0 + b * s * s;
    return vec2(divide(b * r * s, d), divide(t, d));
}
vec2 complex_asin_acos(const vec2 z, const bool cosine)                            // Kahan; acos z, or asin z
{
    vec2 a = complex_sqrt(vec2(1.0 - z.x, -z.y)), b = complex_sqrt(vec2(1.0 + z.x, z.y));
    float real = atan2_of(cosine ? a.x : z.x, cosine ? b.x : a.x * b.x - a.y * b.y);
    float imaginary = asinh_of(cosine ? b.x * a.y - b.y * a.x : a.x * b.y - a.y * b.x);
    return vec2(cosine ? 2.0 * real : real, imaginary);
}
vec2 complex_atan(const vec2 z)
{
    float x = abs(z.x), y = abs(z.y), d = 1.0 - y, m = max(abs(d), x), q = divide(min(abs(d), x), m);
    if (is_inf(x + y)) return vec2(with_sign(1.57079637, z.x), with_sign(0.0, z.y));
    float high = m < 1e-9 ? 0.5 * log_of(divide(2.0, m)) : 0.25 * log1p(divide(4.0 * divide(y, m), m + m * q * q));
    float real = 0.5 * atan2_of(z.x, 0.5 * (d * (1.0 + y) - x * x));
    return vec2(real, is_nan(real) ? real : with_sign(high, z.y));
}
vec2 complex_pow(const vec2 z, const vec2 w)                                       // polar; a base of 0 gives 0
{
    if (z == vec2(0.0)) return is_nan(w) ? vec2(NOT_A_NUMBER) : vec2(0.0);
    return complex_exp(complex_multiply(complex_log(z), w));
}
vec2 complex_logaddexp(const vec2 a, const vec2 b)
{
    if (is_nan(a) || is_nan(b)) return vec2(NOT_A_NUMBER);
    bool less = complex_less(a, b);
    vec2 high = less ? b : a, low = less ? a : b;
    if (low.x == -INFINITY || high.x == INFINITY) return high;
    return high + complex_log1p(complex_exp(low - high));
}

#endif
