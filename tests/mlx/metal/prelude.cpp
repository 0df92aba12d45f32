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
#define MAXFLOAT FLT_MAX
#define MAXHALF HALF_MAX
#define HUGE_VALF __builtin_inf
#define HUGE_VALH half(__builtin_inf)
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
/* What simd_ballot answers with, for those who name it; here it is its number at once. */
struct simd_vote {
  using vote_t = ulong;
  vote_t bits;
  simd_vote(ulong v) : bits(v) {}
  operator vote_t() const { return bits; }
  bool all() const { return (bits & 0xffffffffu) == 0xffffffffu; }
  bool any() const { return bits != 0; }
};

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

inline uint builtin_mulhi(uint a, uint b) {
  uint al = a & 0xffffu, ah = a >> 16, bl = b & 0xffffu, bh = b >> 16;
  uint m = ah * bl + ((al * bl) >> 16), n = al * bh + (m & 0xffffu);
  return ah * bh + (m >> 16) + (n >> 16);
}
inline int builtin_mulhi(int a, int b) {
  return int(builtin_mulhi(uint(a), uint(b)) - (a < 0 ? uint(b) : 0u) - (b < 0 ? uint(a) : 0u));
}
inline ulong builtin_mulhi(ulong a, ulong b) {
  ulong al = a & 0xfffffffful, ah = a >> 32, bl = b & 0xfffffffful, bh = b >> 32;
  ulong m = ah * bl + ((al * bl) >> 32), n = al * bh + (m & 0xfffffffful);
  return ah * bh + (m >> 32) + (n >> 32);
}
inline long builtin_mulhi(long a, long b) {
  return long(builtin_mulhi(ulong(a), ulong(b)) - (a < 0 ? ulong(b) : 0ul) - (b < 0 ? ulong(a) : 0ul));
}

/* What is left of an angle at or above 0 without its quarter turns, which are counted. Small: the turns and the parts
 * of pi / 2 have 12 bits each, so that products are exact. Large, below 2^55: by 96 bits of 2 / pi. */
inline float builtin_rest(float x, thread uint& quarters) {
  if (x < 6400.0f) {
    float j = rint(x * M_2_PI_F);
    quarters = uint(j);
    return fma(-j, 2.563344e-12f, fma(-j, 1.5890691e-8f, fma(j, 4.4703484e-6f, fma(-j, 1.5708008f, x))));
  }
  uint bits = as_type<uint>(x), m = (bits & 0x7fffffu) | 0x800000u;
  int e = min(int(bits >> 23) - 150, 31);
  uint l0 = m * 0xa2f9836eu, l1 = m * 0x4e441529u, low = builtin_mulhi(m, 0xfc2757d1u) + l1, carry = low < l1 ? 1u : 0u;
  uint middle = builtin_mulhi(m, 0x4e441529u) + l0, high = builtin_mulhi(m, 0xa2f9836eu) + (middle < l0 ? 1u : 0u);
  middle += carry;
  high += middle < carry ? 1u : 0u;
  if (e < 0) {
    middle = (middle >> uint(-e)) | (high << uint(32 + e));
    high >>= uint(-e);
  }
  if (e > 0) {
    high = (high << uint(e)) | (middle >> uint(32 - e));
    middle = (middle << uint(e)) | (low >> uint(32 - e));
  }
  quarters = high + (middle >> 31);
  return float(int(middle)) * 3.6572952e-10f;
}
inline float builtin_sin_of(float r) {
  float s = r * r;
  return fma(fma(fma(fma(2.8325396e-6f, s, -0.00019853064f), s, 0.008333379f), s, -0.16666667f) * s, r, r);
}
inline float builtin_cos_of(float r) {
  float s = r * r;
  return fma(fma(fma(fma(2.4430672e-5f, s, -0.0013887301f), s, 0.041666646f), s, -0.5f), s, 1.0f);
}
inline float builtin_turned(float x, uint more) {
  uint q;
  float a = fabs(x), r = builtin_rest(a, q);
  q += more;
  float y = (q & 1u) == 0u ? builtin_sin_of(r) : builtin_cos_of(r);
  return a < __builtin_inf ? ((q & 2u) == 0u ? y : -y) : __builtin_nan;
}
inline float builtin_cos(float x) { return builtin_turned(x, 1u); }
inline float builtin_sin(float x) {
  float y = builtin_turned(x, 0u);
  return x == 0.0f ? x : x < 0.0f ? -y : y;
}
inline float builtin_tan(float x) {
  uint q;
  float a = fabs(x), r = builtin_rest(a, q), s = builtin_sin_of(r), c = builtin_cos_of(r);
  float y = (q & 1u) == 0u ? s / c : -c / s;
  return !(a < __builtin_inf) ? __builtin_nan : x == 0.0f ? x : x < 0.0f ? -y : y;
}
inline float builtin_asin_tail(float s) {
  return fma(fma(fma(fma(0.042156126f, s, 0.024185738f), s, 0.045469046f), s, 0.074953094f), s, 0.16666752f);
}
inline float builtin_asin(float x) {
  float t = fabs(x), z = 0.5f - 0.5f * t, s = sqrt(z), y = 1.57079637f - 2.0f * fma(builtin_asin_tail(z) * z, s, s);
  if (t <= 0.5f) return fma(builtin_asin_tail(x * x) * (x * x), x, x);
  return t <= 1.0f ? (x < 0.0f ? -y : y) : __builtin_nan;
}
inline float builtin_acos(float x) {
  float t = fabs(x), z = 0.5f - 0.5f * t, s = sqrt(z), y = 2.0f * fma(builtin_asin_tail(z) * z, s, s);
  if (t <= 0.5f) return 1.57079637f - fma(builtin_asin_tail(x * x) * (x * x), x, x);
  return t <= 1.0f ? (x < 0.0f ? 3.14159274f - y : y) : __builtin_nan;
}
inline float builtin_atan_unit(float x) {
  float s = x * x, r = fma(-0.0017848244f, s, 0.010877406f);
  r = fma(fma(fma(r, s, -0.031112054f), s, 0.057894472f), s, -0.08399896f);
  r = fma(fma(fma(r, s, 0.109510064f), s, -0.14264025f), s, 0.1999853f);
  return fma(fma(r, s, -0.333333f) * s, x, x);
}
inline float builtin_atan(float x) {
  float t = fabs(x), r = builtin_atan_unit(t > 1.0f ? 1.0f / min(t, 1e30f) : t), y = t > 1.0f ? 1.57079637f - r : r;
  return isnan(x) || x == 0.0f ? x : x < 0.0f ? -y : y;
}
inline float builtin_atan2(float y, float x) {
  float a = fabs(x), b = fabs(y), high = max(a, b), scale = high > 1e28f ? 0x1p-32f : high < 1e-28f ? 0x1p32f : 1.0f;
  float part = high == 0.0f || high == __builtin_inf ? (a == b ? high : 0.0f) : (min(a, b) * scale) / (high * scale);
  part = min(part, 1.0f);
  float r = builtin_atan_unit(part);
  if (b > a) r = 1.57079637f - r;
  if (signbit(x)) r = 3.14159274f - r;
  return isnan(x) || isnan(y) ? x + y : signbit(y) ? -r : r;
}
inline float builtin_sinh(float x) {
  float t = fabs(x), s = x * x, e = exp(0.5f * t), y = t > 10.0f ? 0.5f * e * e : 0.5f * e * e - 0.5f / (e * e);
  float r = fma(fma(fma(2.8934103e-6f, s, 0.00019815777f), s, 0.008333516f), s, 0.16666663f);
  return t < 1.5f ? fma(r * s, x, x) : x < 0.0f ? -y : y;
}
inline float builtin_cosh(float x) {
  float e = exp(0.5f * fabs(x));
  return 0.5f * e * e + 0.5f / (e * e);
}
inline float builtin_asinh(float x) {
  float t = fabs(x), s = t * t, y = t > 1e9f ? log(t) + M_LN2_F : log1p(t + s / (1.0f + sqrt(1.0f + s)));
  return x == 0.0f || isnan(x) ? x : x < 0.0f ? -y : y;
}
inline float builtin_acosh(float x) {
  float t = x - 1.0f;
  return x < 1.0f ? __builtin_nan : x > 1e9f ? log(x) + M_LN2_F : log1p(t + sqrt(fma(t, t, t + t)));
}
inline float builtin_atanh(float x) {
  float t = fabs(x), y = t == 1.0f ? __builtin_inf : 0.5f * log1p(fma((t + t) * t, 1.0f / (1.0f - t), t + t));
  return t > 1.0f ? __builtin_nan : x == 0.0f || isnan(x) ? x : x < 0.0f ? -y : y;
}

inline float builtin_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f; }

template <typename T> T copysign(T x, T s) { return select(x, -x, signbit(s) != signbit(x)); }
template <typename T> T round(T x) { T t = trunc(x); return select(t, t + copysign(T(1), x), fabs(x - t) >= T(0.5f)); }
template <typename T> T fract(T x) { return min(x - floor(x), T(0.999999940395355224609375f)); }
template <typename T> T log10(T x) { return log2(x) * T(0.301029995663981195214f); }
template <typename T> T exp10(T x) { return exp2(x * T(3.32192809488736234787f)); }
template <typename T> T tanh(T x) { return builtin_tanh(clamp(x, T(-20.0f), T(20.0f))) + (x - x); }
/* Exact, as the remainder of the digits: eight binary ones a turn. */
inline float builtin_fmod(float x, float y) {
  uint a = as_type<uint>(x) & 0x7fffffffu, b = as_type<uint>(y) & 0x7fffffffu, sign = as_type<uint>(x) & 0x80000000u;
  if (b == 0u || a >= 0x7f800000u || b > 0x7f800000u) return __builtin_nan;
  if (a < b) return x;
  int power = max(int(b >> 23), 1), more = max(int(a >> 23), 1) - power;
  uint m = a < 0x00800000u ? a : (a & 0x007fffffu) | 0x00800000u;
  uint n = b < 0x00800000u ? b : (b & 0x007fffffu) | 0x00800000u;
  for (m %= n; more > 0; more -= 8) m = (m << uint(min(more, 8))) % n;
  if (m == 0u) return as_type<float>(sign);
  int up = min(int(clz(m)) - 8, power - 1);
  m <<= uint(up);
  return as_type<float>(sign | (m < 0x00800000u ? m : (uint(power - up) << 23) | (m & 0x007fffffu)));
}
template <typename T> T fmod(T x, T y) { return T(builtin_fmod(x, y)); }
template <typename T> T fdim(T x, T y) { return select(x - y, T(0), x <= y); }
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
inline half nextafter(half x, half y) {
  if (isnan(x) || isnan(y)) return x + y;
  if (x == y) return y;
  if (x == 0.0h) return as_type<half>(ushort(y > 0.0h ? 1 : 0x8001));
  ushort u = as_type<ushort>(x);
  return as_type<half>(ushort((x < y) == (x > 0.0h) ? u + 1 : u - 1));
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
template <typename T> make_unsigned_t<T> absdiff(T a, T b) {
  make_unsigned_t<T> u = a, v = b;
  return a > b ? u - v : v - u;
}
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
template <typename T> T addsat(T a, T b) {
  T s = a + b;
  if (b < T(0)) return s > a ? numeric_limits<T>::min() : s;
  return s < a ? numeric_limits<T>::max() : s;
}
template <typename T> T subsat(T a, T b) {
  T s = a - b;
  if (b < T(0)) return s < a ? numeric_limits<T>::max() : s;
  return s > a ? numeric_limits<T>::min() : s;
}
template <typename T> T madsat(T a, T b, T c) {
  make_unsigned_t<T> low = a, sum = c;
  low *= b;
  sum += low;
  T high = mulhi(a, b) + (sum < low ? 1 : 0) - (c < T(0) ? 1 : 0), r = sum;
  if (high == (r < T(0) ? T(-1) : T(0))) return r;
  return high < T(0) ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
template <typename T> T extract_bits(T v, uint o, uint n) {
  constexpr uint w = sizeof(T) * 8;
  T high = T(make_unsigned_t<T>(v) << ((w - n - o) & (w - 1u)));
  return n == 0u ? T(0) : T(high >> (w - n));
}
template <typename T> T insert_bits(T v, T x, uint o, uint n) {
  constexpr uint w = sizeof(T) * 8;
  make_unsigned_t<T> ones = ~make_unsigned_t<T>(0), mask = n == 0u ? 0 : (ones >> (w - n)) << o;
  return T((v & ~mask) | ((x << o) & mask));
}

/* Of vectors by their components. */
#define METAL_VECTORS(R, f, parameters, arguments) \
template <typename T, int N> vec<R, N> f parameters { \
  vec<R, N> r; \
  for (int i = 0; i < N; i++) r[i] = f arguments; \
  return r; }
METAL_VECTORS(T, pow, (vec<T, N> a, vec<T, N> b), (a[i], b[i]))
METAL_VECTORS(T, pow, (vec<T, N> a, T b), (a[i], b))
METAL_VECTORS(T, fmod, (vec<T, N> a, vec<T, N> b), (a[i], b[i]))
METAL_VECTORS(T, nextafter, (vec<T, N> a, vec<T, N> b), (a[i], b[i]))
METAL_VECTORS(T, ldexp, (vec<T, N> a, vec<int, N> b), (a[i], b[i]))
METAL_VECTORS(T, frexp, (vec<T, N> a, thread vec<int, N>& b), (a[i], b[i]))
METAL_VECTORS(int, ilogb, (vec<T, N> a), (a[i]))
METAL_VECTORS(make_unsigned_t<T>, absdiff, (vec<T, N> a, vec<T, N> b), (a[i], b[i]))
METAL_VECTORS(T, rotate, (vec<T, N> a, vec<T, N> b), (a[i], b[i]))
METAL_VECTORS(T, addsat, (vec<T, N> a, vec<T, N> b), (a[i], b[i]))
METAL_VECTORS(T, subsat, (vec<T, N> a, vec<T, N> b), (a[i], b[i]))
METAL_VECTORS(T, madsat, (vec<T, N> a, vec<T, N> b, vec<T, N> c), (a[i], b[i], c[i]))
METAL_VECTORS(T, extract_bits, (vec<T, N> v, uint o, uint n), (v[i], o, n))
METAL_VECTORS(T, insert_bits, (vec<T, N> v, vec<T, N> x, uint o, uint n), (v[i], x[i], o, n))

template <typename T> auto isunordered(T a, T b) { return isnan(a) || isnan(b); }
template <typename T> auto isordered(T a, T b) { return !isunordered(a, b); }
template <typename T, int N> T length_squared(vec<T, N> v) { return dot(v, v); }
template <typename T, int N> T length(vec<T, N> v) { return sqrt(dot(v, v)); }
template <typename T, int N> T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <typename T, int N> T distance_squared(vec<T, N> a, vec<T, N> b) { return dot(a - b, a - b); }
template <typename T, int N> vec<T, N> normalize(vec<T, N> v) { return v * rsqrt(dot(v, v)); }
template <typename T> vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) { return a.yzx * b.zxy - a.zxy * b.yzx; }
template <typename T, int N> vec<T, N> reflect(vec<T, N> i, vec<T, N> n) { return i - T(2) * dot(n, i) * n; }
template <typename T, int N> vec<T, N> refract(vec<T, N> i, vec<T, N> n, T eta) {
  T d = dot(n, i), k = T(1) - eta * eta * (T(1) - d * d);
  return k < T(0) ? vec<T, N>(T(0)) : eta * i - (eta * d + sqrt(k)) * n;
}
template <typename T, int N> vec<T, N> faceforward(vec<T, N> n, vec<T, N> i, vec<T, N> reference) {
  return dot(reference, i) < T(0) ? n : -n;
}

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

/* 8 x 8 numbers among the 32 threads of a simdgroup, two side by side in each, as Apple's devices have them. */
inline uint builtin_row() { return (builtin_lane() >> 2 & 4u) | (builtin_lane() >> 1 & 3u); }
inline uint builtin_column() { return (builtin_lane() >> 1 & 4u) | (builtin_lane() << 1 & 2u); }
inline ushort builtin_thread_of(uint row, uint column) {
  return ushort((row & 4u) << 2 | (column & 4u) << 1 | (row & 3u) << 1 | (column >> 1 & 1u));
}
template <typename T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "a simdgroup_matrix is 8 x 8");
  vec<T, 2> elements;
  simdgroup_matrix() {}
  simdgroup_matrix(T diagonal) {
    elements[0] = builtin_row() == builtin_column() ? diagonal : T(0);
    elements[1] = builtin_row() == builtin_column() + 1u ? diagonal : T(0);
  }
  thread vec<T, 2>& thread_elements() { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <typename T, int Columns, int Rows> simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> m;
  m.elements = vec<T, 2>(value);
  return m;
}
template <typename T, int Columns, int Rows>
simdgroup_matrix<T, Columns, Rows> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Columns, Rows>(value);
}
template <typename T, typename P>
void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& m, P from, ulong stride = 8, ulong2 origin = ulong2(0),
                    bool turned = false) {
  for (uint i = 0; i < 2; i++) {
    uint row = turned ? builtin_column() + i : builtin_row(), column = turned ? builtin_row() : builtin_column() + i;
    m.elements[i] = T(from[(uint(origin.y) + row) * uint(stride) + uint(origin.x) + column]);
  }
}
template <typename T, typename P>
void simdgroup_store(simdgroup_matrix<T, 8, 8> m, P to, ulong stride = 8, ulong2 origin = ulong2(0),
                     bool turned = false) {
  for (uint i = 0; i < 2; i++) {
    uint row = turned ? builtin_column() + i : builtin_row(), column = turned ? builtin_row() : builtin_column() + i;
    to[(uint(origin.y) + row) * uint(stride) + uint(origin.x) + column] = m.elements[i];
  }
}
template <typename T, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
  float2 left = float2(a.elements), right = float2(b.elements), sum = float2(c.elements);
  for (uint k = 0; k < 8; k += 2) {
    float2 x = simd_shuffle(left, builtin_thread_of(builtin_row(), k));
    float2 y = simd_shuffle(right, builtin_thread_of(k, builtin_column()));
    float2 z = simd_shuffle(right, builtin_thread_of(k + 1u, builtin_column()));
    sum += x[0] * y + x[1] * z;
  }
  d.elements = vec<T, 2>(sum);
}
template <typename T, typename A, typename B>
void simdgroup_multiply(thread simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f));
}
template <typename T> simdgroup_matrix<T, 8, 8> operator*(simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}

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
