// Complex arithmetic and roots of unity for the kernels of Fourier transforms.
#ifndef FFT_GLSL
#define FFT_GLSL
#include "common.glsl"

vec2 multiply(const vec2 x, const vec2 y) { return vec2(fma(x.x, y.x, -x.y * y.y), fma(x.x, y.y, x.y * y.x)); }
vec2 conjugate(const vec2 x) { return vec2(x.x, -x.y); }

// exp(-2 pi i m / n) for m < n < 2^28. The angle's eighth and the rest are found in integers, the rest is at most pi / 4.
vec2 root(const uint m, const uint n)
{
    uint m8 = 8u * m, eighth = min(uint(float(m8) / float(n)), 7u);
    int rest = int(m8 - eighth * n);
    if (rest < 0) { eighth--; rest += int(n); }
    else if (rest >= int(n)) { eighth++; rest -= int(n); }
    float x = float((eighth & 1u) != 0u ? int(n) - rest : rest) / float(n) * 0.78539816339744831, y = x * x;
    float s = fma(fma(fma(fma(2.7557319e-6, y, -1.9841270e-4), y, 8.3333333e-3), y, -0.16666667) * y, x, x);
    float c = fma(fma(fma(fma(fma(-2.7557319e-7, y, 2.4801587e-5), y, -1.3888889e-3), y, 4.1666667e-2), y, -0.5), y, 1.0);
    vec2 w = ((eighth + 1u) & 2u) != 0u ? vec2(s, c) : vec2(c, s);
    return vec2(((eighth + 2u) & 4u) != 0u ? -w.x : w.x, eighth >= 4u ? w.y : -w.y);
}

// The same for 8 m <= n.
vec2 near_root(const uint m, const uint n)
{
    float x = float(m) * (6.2831853071795865 / float(n)), y = x * x;
    float s = fma(fma(fma(fma(2.7557319e-6, y, -1.9841270e-4), y, 8.3333333e-3), y, -0.16666667) * y, x, x);
    float c = fma(fma(fma(fma(fma(-2.7557319e-7, y, 2.4801587e-5), y, -1.3888889e-3), y, 4.1666667e-2), y, -0.5), y, 1.0);
    return vec2(c, -s);
}
#endif
