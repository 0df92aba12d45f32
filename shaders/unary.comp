#version 460
#extension GL_GOOGLE_include_directive : require
// Functions of one operand, OP by OP; round: half to even.
// WIDE: 64-bit integers. COMPLEX: complex64, whose parts go to float32 and whose tests go to bool.
#include "elementwise.glsl"
#ifdef COMPLEX
#include "complex.glsl"
#else
#include "functions.glsl"
#endif
#ifdef WIDE
#include "wide.glsl"
#endif
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, table)
ACCESS(dst)
ACCESS(src)
LOCATE_TABLE(table)
VECTORS(src, 1u, FROM)
#if !defined(WIDE) && !defined(COMPLEX)
ROWS_OF(src, 1u, FROM)
#endif
PUT(dst, TO)

//! enum UNARY_: functions of one operand
const uint ABS = 0, NEGATIVE = 1, SIGN = 2, SQUARE = 3, LOGICAL_NOT = 4, BITWISE_INVERT = 5, FLOOR = 6, CEIL = 7,
    CONJUGATE = 8, REAL = 9, IMAG = 10, SQRT = 11, RSQRT = 12, RECIPROCAL = 13, EXP = 14, EXPM1 = 15, LOG = 16, LOG2 = 17,
    LOG10 = 18, LOG1P = 19, SIN = 20, COS = 21, TAN = 22, SINH = 23, COSH = 24, TANH = 25, ARCSIN = 26, ARCCOS = 27,
    ARCTAN = 28, ARCSINH = 29, ARCCOSH = 30, ARCTANH = 31, ERF = 32, ERFINV = 33, SIGMOID = 34, ISNAN = 35, ISINF = 36,
    ISFINITE = 37, ISPOSINF = 38, ISNEGINF = 39, DEGREES = 40, RADIANS = 41, ROUND = 42;

#if defined(COMPLEX)
bool test(const vec2 z)
{
    if (OP == ISNAN) return is_nan(z);
    if (OP == ISINF) return is_inf(z.x) || is_inf(z.y);
    if (OP == ISFINITE) return is_finite(z.x) && is_finite(z.y);
    return z.y == 0.0 && z.x == (OP == ISPOSINF ? INFINITY : -INFINITY);
}
vec2 value(const vec2 z)
{
    bool turned = OP == SIN || OP == COS || OP == TAN || OP == ARCSINH || OP == ARCTANH;
    vec2 r = turned ? vec2(-z.y, z.x) : z;                             // sin z = -i sinh iz, cos z = cosh iz, asinh z = -i asin iz
    if (OP == SQUARE) r = complex_multiply(z, z);
    if (OP == EXP) r = complex_exp(z);
    if (OP == LOG || OP == LOG2 || OP == LOG10) r = complex_log(z);
    if (OP == LOG2) r *= 1.44269502;
    if (OP == LOG10) r *= 0.434294492;
    if (OP == LOG1P) r = complex_log1p(z);
    if (OP >= SIN && OP <= TANH) {
        if (OP == TAN || OP == TANH) r = complex_tanh(r);
        else r = complex_sinh_cosh(r, OP == COS || OP == COSH);
    }
    if (OP == ARCSIN || OP == ARCSINH || OP == ARCCOS || OP == ARCCOSH) r = complex_asin_acos(r, OP == ARCCOS || OP == ARCCOSH);
    if (OP == ARCTAN || OP == ARCTANH) r = complex_atan(r);
    if (turned && OP != COS) r = vec2(r.y, -r.x);
    if (OP == ARCCOSH) r = (floatBitsToUint(z.y) & 0x80000000u) != 0u ? vec2(r.y, -r.x) : vec2(-r.y, r.x);
    if (OP == DEGREES) r = z * 57.2957795;
    if (OP == RADIANS) r = z * 0.0174532925;
    if (OP == ROUND) r = roundEven(z);
    if (OP == SQRT || OP == RSQRT) r = complex_sqrt(z);
    bool length = OP == SIGN && z != vec2(0.0);
    if (length) r = vec2(complex_abs(z), 0.0);
    if (length || OP == RSQRT || OP == RECIPROCAL) r = complex_divide(length ? z : vec2(1.0, 0.0), r);
    return r;
}
uvec2 apply(const uvec2 raw)
{
    uvec2 r = raw;
    vec2 z = vec2(uintBitsToFloat(raw.x), uintBitsToFloat(raw.y));
    if (OP == NEGATIVE) r = raw ^ uvec2(0x80000000u);
    else if (OP == CONJUGATE) r.y = raw.y ^ 0x80000000u;
    else if (OP == IMAG) r.x = raw.y;
    else if (OP == ABS) r.x = floatBitsToUint(complex_abs(z));
    else if (TO == BOOL) r.x = test(z) ? 1u : 0u;
    else if (OP != REAL) {
        z = value(z);
        r = uvec2(floatBitsToUint(z.x), floatBitsToUint(z.y));
    }
    return r;
}
void write(const uint to, const uint from)
{
    uvec2 v = apply(src64[from]);
    if (TO == C64) dst64[to] = v;
    else store_dst(to, TO, v.x);
}

#elif defined(WIDE)
uvec2 apply(const uvec2 x)
{
    bool negative = FROM == I64 && int(x.y) < 0;
    uvec2 r = x;
    if (OP == ABS && negative || OP == NEGATIVE) r = wide_negative(x);
    if (OP == SIGN) r = wide(x == ZERO ? 0 : negative ? -1 : 1);
    if (OP == SQUARE) r = wide_product(x, x);
    if (OP == BITWISE_INVERT) r = ~x;
    return r;
}
void write(const uint to, const uint from) { dst64[to] = apply(src64[from]); }

#else
uint integer(const uint x)
{
    bool negative = is_signed(FROM) && int(x) < 0;
    uint r = x;
    if (OP == ABS && negative || OP == NEGATIVE) r = 0u - x;
    if (OP == SIGN) r = x == 0u ? 0u : negative ? 0xffffffffu : 1u;
    if (OP == SQUARE) r = x * x;
    if (OP == LOGICAL_NOT) r = x == 0u ? 1u : 0u;
    if (OP == BITWISE_INVERT) r = ~x;
    return r;
}
bool test(const float x)
{
    if (OP == ISNAN) return is_nan(x);
    if (OP == ISINF) return is_inf(x);
    if (OP == ISFINITE) return is_finite(x);
    return floatBitsToUint(x) == (OP == ISPOSINF ? 0x7f800000u : 0xff800000u);
}
float value(const float x)
{
    const uint type = TO;
    float r = x;
    if (OP == SIGN) r = sign_of(x);
#define X(op, result) if (OP == op) r = result;
    FUNCTIONS_OF_ONE(X)
#undef X
    return r;
}
bool has_value() { return is_float(FROM) && TO != BOOL && OP != ABS && OP != NEGATIVE; }
// Eight angles with one test: two halves of a word below 6400 do not reach their highest bits.
bool are_usual(const uvec4 w)
{
    if (!EIGHTS || OP < SIN || OP > TAN) return false;
    uvec4 u = (w & 0x7fff7fffu) + (FROM == BF16 ? 0x3a383a38u : 0x11c011c0u);
    return ((u.x | u.y | u.z | u.w) & 0x80008000u) == 0u;
}
float usual_value(const float x) { return OP == SIN ? sin_usual(x) : OP == COS ? cos_usual(x) : tan_usual(x); }
uvec4 values(const uvec4 w)
{
    float r[8];
    uvec4 v;
    if (are_usual(w)) for (uint k = 0u; k < LANES; k++) r[k] = usual_value(number(w, k));
    else for (uint k = 0u; k < LANES; k++) r[k] = value(number(w, k));
    if (!put_numbers(v, r))
        for (uint k = 0u; k < LANES; k++)
            put_element(v, k, !is_nan(number(w, k)) ? float_to_bits(r[k], TO) : OP == SIGN ? 0u : element(w, k, FROM));
    return v;
}
uint apply(const uint raw, const float x)                                          // x: the number whose bits raw is
{
    uint sign = FROM == F32 ? 0x80000000u : 0x8000u;
    if (!is_float(FROM)) return integer(sign_extend(raw, FROM));
    return OP == ABS ? raw & ~sign : OP == NEGATIVE ? raw ^ sign : test(x) ? 1u : 0u;
}
uvec4 result(const uvec4 w)
{
    uvec4 v = uvec4(0u);
    if (has_value()) return values(w);
    for (uint k = 0u; k < LANES; k++) put_element(v, k, apply(element(w, k, FROM), number(w, k)));
    return v;
}
#endif

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    bool whole = LANES > 1u && i < n / LANES;
    if (!whole) i += n / LANES * (LANES - 1u);                         // the leftover elements, one a thread
    if (i >= n) return;
    uvec4 at = places_of(whole, i);
#if defined(WIDE) || defined(COMPLEX)
    write(at.x, at.y);
#else
    if (FOUR_ROWS != 0u) {
        uvec4 w[4];
        rows_src(at.y, w);
        [[dont_unroll]] for (uint r = 0u; r < 4u; r++) put_dst(true, i, at.x + r * (STEPS(DIMS - 2u).x / 4u), result(w[r]));
        return;
    }
    put_dst(whole, i, at.x, result(fetch_src(whole, i, at.y)));
#endif
}
