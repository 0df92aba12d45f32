/* What the language can say of its own library, in the language.                      SPDX-License-Identifier: MIT */
#include "lower.h"

namespace metal {

const char* const prelude = R"metal(
#define METAL_FUNC inline
#define __METAL__ 1
#define __METAL_VERSION__ 320
#define MLX_MTL_CONST constant constexpr
#define MLX_MTL_PRAGMA_UNROLL
#define MLX_MTL_LOOP_UNROLL
#define INFINITY (__builtin_inf)
#define HUGE_VALF (__builtin_inf)
#define NAN (__builtin_nan)
#define FLT_MAX 3.40282346638528859811704183484516925e+38f
#define FLT_MIN 1.17549435082228750796873653722224568e-38f
#define FLT_EPSILON 1.19209289550781250e-07f
#define HALF_MAX 65504.0h
#define HALF_MIN 6.103515625e-05h
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define CHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define LONG_MAX 9223372036854775807l
#define ULONG_MAX 18446744073709551615ul
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.785398163397448309616f
#define M_1_PI_F 0.318309886183790671538f
#define M_2_PI_F 0.636619772367581343076f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.707106781186547524401f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.434294481903251827651f
#define M_LN2_F 0.693147180559945309417f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_H 3.14159265358979323846h
#define assert(x)

constant float __builtin_inf = 1e39f;
constant float __builtin_nan = 1e39f - 1e39f;

typedef half float16_t;
typedef bfloat bfloat16_t;
typedef float float32_t;
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
enum memory_order { memory_order_relaxed };

template <typename T> struct numeric_limits {};
#define METAL_INTEGER_LIMITS(T, low, high, size) \
template <> struct numeric_limits<T> { \
  static constexpr T min() { return T(low); } \
  static constexpr T max() { return T(high); } \
  static constexpr T lowest() { return T(low); } \
  static constexpr bool is_integer = true; \
  static constexpr int digits = size; };
METAL_INTEGER_LIMITS(bool, 0, 1, 1)
METAL_INTEGER_LIMITS(char, -128, 127, 7)
METAL_INTEGER_LIMITS(uchar, 0, 255, 8)
METAL_INTEGER_LIMITS(short, -32768, 32767, 15)
METAL_INTEGER_LIMITS(ushort, 0, 65535, 16)
METAL_INTEGER_LIMITS(int, INT_MIN, INT_MAX, 31)
METAL_INTEGER_LIMITS(uint, 0, UINT_MAX, 32)
METAL_INTEGER_LIMITS(long, -9223372036854775807l - 1l, LONG_MAX, 63)
METAL_INTEGER_LIMITS(ulong, 0, ULONG_MAX, 64)
#define METAL_FLOAT_LIMITS(T, least, most, step) \
template <> struct numeric_limits<T> { \
  static constexpr T min() { return T(least); } \
  static constexpr T max() { return T(most); } \
  static constexpr T lowest() { return T(-most); } \
  static constexpr T infinity() { return T(__builtin_inf); } \
  static constexpr T quiet_NaN() { return T(__builtin_nan); } \
  static constexpr T epsilon() { return T(step); } \
  static constexpr bool is_integer = false; \
  static constexpr bool has_infinity = true; };
METAL_FLOAT_LIMITS(float, FLT_MIN, FLT_MAX, FLT_EPSILON)
METAL_FLOAT_LIMITS(half, 6.103515625e-05f, 65504.0f, 0.0009765625f)
METAL_FLOAT_LIMITS(bfloat, FLT_MIN, 3.3895313892515355e38f, 0.0078125f)

template <typename U> struct Limits {
  static constexpr U max = numeric_limits<U>::max();
  static constexpr U min = numeric_limits<U>::min();
  static constexpr U finite_max = numeric_limits<U>::max();
  static constexpr U finite_min = numeric_limits<U>::min();
};
#define METAL_FLOAT_BOUNDS(T) \
template <> struct Limits<T> { \
  static constexpr T max = numeric_limits<T>::infinity(); \
  static constexpr T min = -numeric_limits<T>::infinity(); \
  static constexpr T finite_max = numeric_limits<T>::max(); \
  static constexpr T finite_min = -numeric_limits<T>::max(); };
METAL_FLOAT_BOUNDS(float)
METAL_FLOAT_BOUNDS(half)
METAL_FLOAT_BOUNDS(bfloat)

template <typename T> T copysign(T x, T s) { return signbit(s) != signbit(x) ? -x : x; }
template <typename T> T round(T x) { T t = trunc(x); return select(t, t + copysign(T(1), x), fabs(x - t) >= T(0.5f)); }
template <typename T> T fract(T x) { return min(x - floor(x), T(0.999999940395355224609375f)); }
template <typename T> T log10(T x) { return log2(x) * T(0.301029995663981195214f); }
template <typename T> T exp10(T x) { return exp2(x * T(3.32192809488736234787f)); }
template <typename T> T tanh(T x) { return builtin_tanh(clamp(x, T(-20.0f), T(20.0f))) + (x - x); }
template <typename T> T fmod(T x, T y) { return x - y * trunc(x / y); }
template <typename T> T fdim(T x, T y) { return x > y ? x - y : T(0); }
template <typename T> T divide(T x, T y) { return x / y; }
template <typename T> T sinpi(T x) { T r = x - T(2) * rint(x * T(0.5f)); return sin(r * T(M_PI_F)); }
template <typename T> T cospi(T x) { T r = x - T(2) * rint(x * T(0.5f)); return cos(r * T(M_PI_F)); }
template <typename T> T tanpi(T x) { T r = x - rint(x); return tan(r * T(M_PI_F)); }
template <typename T> T pow(T x, T y) {
  T a = powr(fabs(x), y);
  T h = y * T(0.5f);
  bool whole = trunc(y) == y, odd = whole && trunc(h) != h;
  T r = x < T(0) ? (whole ? (odd ? -a : a) : T(__builtin_nan)) : a;
  if (x == T(0)) r = y > T(0) ? (odd ? x : T(0)) : T(__builtin_inf);
  return y == T(0) || x == T(1) ? T(1) : isnan(x) || isnan(y) ? x + y : r;
}
template <typename T, int N> vec<T, N> pow(vec<T, N> x, vec<T, N> y) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = pow(x[i], y[i]);
  return r;
}
template <typename T> T sincos(T x, thread T& c) { c = cos(x); return sin(x); }
template <typename T> T modf(T x, thread T& whole) { whole = trunc(x); return x - whole; }
inline float ldexp(float x, int e) { int h = e / 2; return x * exp2(float(h)) * exp2(float(e - h)); }
inline int ilogb(float x) { return int((as_type<uint>(x) >> 23) & 255u) - 127; }
inline float frexp(float x, thread int& e) {
  uint u = as_type<uint>(x);
  uint b = (u >> 23) & 255u;
  if (b == 0u || b == 255u) { e = 0; return x; }
  e = int(b) - 126;
  return as_type<float>((u & 0x807fffffu) | 0x3f000000u);
}
inline float nextafter(float x, float y) {
  if (isnan(x) || isnan(y)) return x + y;
  if (x == y) return y;
  if (x == 0.0f) return as_type<float>(y > 0.0f ? 1u : 0x80000001u);
  uint u = as_type<uint>(x);
  return as_type<float>((x < y) == (x > 0.0f) ? u + 1u : u - 1u);
}
inline float erf(float a) {
  float t = fabs(a), s = a * a, r;
  if (t > 0.927734375f) {
    r = fma(-1.72853470e-5f, t, 3.83197126e-4f);
    float u = fma(-3.88396438e-3f, t, 2.42546219e-2f);
    r = fma(r, s, u);
    r = fma(r, t, -1.06777877e-1f);
    r = fma(r, t, -6.34846687e-1f);
    r = fma(r, t, -1.28717512e-1f);
    r = fma(r, t, -t);
    return copysign(1.0f - exp(r), a);
  }
  r = -5.96761703e-4f;
  r = fma(r, s, 4.99119423e-3f);
  r = fma(r, s, -2.67681349e-2f);
  r = fma(r, s, 1.12819925e-1f);
  r = fma(r, s, -3.76125336e-1f);
  r = fma(r, s, 1.28379166e-1f);
  return fma(r, a, a);
}
inline float expm1(float x) {
  if (fabs(x) > 0.5f) return exp(x) - 1.0f;
  float r = fma(x, 1.0f / 5040.0f, 1.0f / 720.0f);
  r = fma(x, r, 1.0f / 120.0f);
  r = fma(x, r, 1.0f / 24.0f);
  r = fma(x, r, 1.0f / 6.0f);
  r = fma(x, r, 0.5f);
  return fma(x * x, r, x);
}
inline float log1p(float x) {
  float y = 1.0f + x;
  if (isinf(y)) return y;
  return y == 1.0f ? x : x * (log(y) / (y - 1.0f));
}

template <typename T> T mix(T x, T y, T a) { return x + (y - x) * a; }
template <typename T, int N> vec<T, N> mix(vec<T, N> x, vec<T, N> y, T a) { return x + (y - x) * a; }
template <typename T> T saturate(T x) { return clamp(x, T(0), T(1)); }
template <typename T> T max3(T a, T b, T c) { return max(a, max(b, c)); }
template <typename T> T min3(T a, T b, T c) { return min(a, min(b, c)); }
template <typename T> T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }
template <typename T> T fmax3(T a, T b, T c) { return fmax(a, fmax(b, c)); }
template <typename T> T fmin3(T a, T b, T c) { return fmin(a, fmin(b, c)); }
template <typename T> T fmedian3(T a, T b, T c) { return fmax(fmin(a, b), fmin(fmax(a, b), c)); }
template <typename T> T absdiff(T a, T b) { return a > b ? a - b : b - a; }
template <typename T> T hadd(T a, T b) { return (a >> 1) + (b >> 1) + (a & b & 1); }
template <typename T> T rhadd(T a, T b) { return (a >> 1) + (b >> 1) + ((a | b) & 1); }
template <typename T> T mad24(T a, T b, T c) { return a * b + c; }
template <typename T> T mul24(T a, T b) { return a * b; }
template <typename T> T madhi(T a, T b, T c) { return mulhi(a, b) + c; }
template <typename T> T rotate(T v, T n) {
  constexpr int w = sizeof(T) * 8;
  make_unsigned_t<T> u = v;
  int k = int(n) & (w - 1);
  return T((u << k) | (u >> ((w - k) & (w - 1))));
}
inline uint addsat(uint a, uint b) { uint s = a + b; return s < a ? 0xffffffffu : s; }
inline uint subsat(uint a, uint b) { return a > b ? a - b : 0u; }
inline int addsat(int a, int b) {
  int s = int(uint(a) + uint(b));
  return ((a ^ s) & (b ^ s)) < 0 ? (a < 0 ? INT_MIN : INT_MAX) : s;
}
inline int subsat(int a, int b) {
  int s = int(uint(a) - uint(b));
  return ((a ^ b) & (a ^ s)) < 0 ? (a < 0 ? INT_MIN : INT_MAX) : s;
}
inline uint extract_bits(uint v, uint o, uint n) { return n == 0u ? 0u : (v >> o) & (0xffffffffu >> (32u - n)); }
inline int extract_bits(int v, uint o, uint n) { return n == 0u ? 0 : (v << (32u - n - o)) >> (32u - n); }
inline uint insert_bits(uint v, uint x, uint o, uint n) {
  uint mask = n == 0u ? 0u : (0xffffffffu >> (32u - n)) << o;
  return (v & ~mask) | ((x << o) & mask);
}

template <typename T> T isordered(T a, T b) { return !isnan(a) && !isnan(b); }
template <typename T, int N> T length_squared(vec<T, N> v) { return dot(v, v); }
template <typename T, int N> T length(vec<T, N> v) { return sqrt(dot(v, v)); }
template <typename T, int N> T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <typename T, int N> T distance_squared(vec<T, N> a, vec<T, N> b) { return dot(a - b, a - b); }
template <typename T, int N> vec<T, N> normalize(vec<T, N> v) { return v * rsqrt(dot(v, v)); }
template <typename T> vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) { return a.yzx * b.zxy - a.zxy * b.yzx; }
template <typename T, int N> vec<T, N> reflect(vec<T, N> i, vec<T, N> n) { return i - T(2) * dot(n, i) * n; }

inline uint pack_float_to_unorm4x8(float4 v) {
  uint4 u = uint4(rint(clamp(v, 0.0f, 1.0f) * 255.0f));
  return u.x | (u.y << 8) | (u.z << 16) | (u.w << 24);
}
inline float4 unpack_unorm4x8_to_float(uint u) {
  return float4(u & 255u, (u >> 8) & 255u, (u >> 16) & 255u, u >> 24) / 255.0f;
}

template <typename T, typename U> T ceildiv(T n, U m) { return (n + m - 1) / m; }

template <typename T> struct pair_of { T first; T second; };

template <typename T> struct complex_t {
  T real;
  T imag;
  complex_t(T r, T i) : real(r), imag(i) {}
  complex_t(T r) : real(r), imag(0) {}
  complex_t() : real(0), imag(0) {}
};
typedef complex_t<float> complex64_t;
template <typename T> complex_t<T> operator-(complex_t<T> a) { return complex_t<T>(-a.real, -a.imag); }
template <typename T> complex_t<T> operator+(complex_t<T> a, complex_t<T> b) {
  return complex_t<T>(a.real + b.real, a.imag + b.imag);
}
template <typename T> complex_t<T> operator-(complex_t<T> a, complex_t<T> b) {
  return complex_t<T>(a.real - b.real, a.imag - b.imag);
}
template <typename T> complex_t<T> operator*(complex_t<T> a, complex_t<T> b) {
  return complex_t<T>(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real);
}
template <typename T> complex_t<T> operator/(complex_t<T> a, complex_t<T> b) {
  T d = b.real * b.real + b.imag * b.imag;
  return complex_t<T>((a.real * b.real + a.imag * b.imag) / d, (a.imag * b.real - a.real * b.imag) / d);
}
template <typename T> bool operator==(complex_t<T> a, complex_t<T> b) { return a.real == b.real && a.imag == b.imag; }
template <typename T> bool operator!=(complex_t<T> a, complex_t<T> b) { return a.real != b.real || a.imag != b.imag; }

/* Where element i of an array of this shape and these strides lies. */
template <typename IdxT = long>
IdxT elem_to_loc(IdxT elem, constant const int* shape, constant const long* strides, int ndim) {
  IdxT at = 0;
  for (int d = ndim - 1; d >= 0; d--) {
    IdxT side = IdxT(shape[d]);
    at += (elem % side) * IdxT(strides[d]);
    elem /= side;
  }
  return at;
}
template <typename IdxT = long>
IdxT elem_to_loc(uint3 elem, constant const int* shape, constant const long* strides, int ndim) {
  IdxT at = IdxT(elem.x) * IdxT(strides[ndim - 1]) + IdxT(elem.y) * IdxT(strides[ndim - 2]);
  for (int d = ndim - 3; d >= 0; d--) {
    at += IdxT(elem.z % uint(shape[d])) * IdxT(strides[d]);
    elem.z /= uint(shape[d]);
  }
  return at;
}
template <typename IdxT = long>
IdxT elem_to_loc_1(uint elem, constant const long& stride) { return IdxT(elem) * IdxT(stride); }
template <typename IdxT = long> IdxT elem_to_loc_2(uint2 elem, constant const long* strides) {
  return IdxT(elem.x) * IdxT(strides[1]) + IdxT(elem.y) * IdxT(strides[0]);
}
template <typename IdxT = long> IdxT elem_to_loc_3(uint3 elem, constant const long* strides) {
  return IdxT(elem.x) * IdxT(strides[2]) + IdxT(elem.y) * IdxT(strides[1]) + IdxT(elem.z) * IdxT(strides[0]);
}
)metal";

}  // namespace metal
