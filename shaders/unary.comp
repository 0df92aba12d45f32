#version 460
#extension GL_GOOGLE_include_directive : require
// Functions of one operand, OP by OP: MLXVK_UNARY_FUNCTIONS in order, then round (half to even).
// WIDE: 64-bit integers. COMPLEX: complex64, whose parts go to float32 and whose tests go to bool.
#include "elementwise.glsl"
#ifdef COMPLEX
#include "complex.glsl"
#else
#include "math.glsl"
#endif
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, table)
ACCESS(dst)
ACCESS(src)
LOCATE_TABLE(table)

const uint ABS = 0, NEGATIVE = 1, SIGN = 2, SQUARE = 3, LOGICAL_NOT = 4, BITWISE_INVERT = 5, FLOOR = 6, CEIL = 7,
    CONJUGATE = 8, REAL = 9, IMAG = 10, SQRT = 11, RSQRT = 12, RECIPROCAL = 13, EXP = 14, EXPM1 = 15, LOG = 16, LOG2 = 17,
    LOG10 = 18, LOG1P = 19, SIN = 20, COS = 21, TAN = 22, SINH = 23, COSH = 24, TANH = 25, ARCSIN = 26, ARCCOS = 27,
    ARCTAN = 28, ARCSINH = 29, ARCCOSH = 30, ARCTANH = 31, ERF = 32, ERFINV = 33, SIGMOID = 34, ISNAN = 35, ISINF = 36,
    ISFINITE = 37, ISPOSINF = 38, ISNEGINF = 39, DEGREES = 40, RADIANS = 41, ROUND = 42;

#if defined(COMPLEX)
uvec2 bits(vec2 z) { return uvec2(floatBitsToUint(z.x), floatBitsToUint(z.y)); }
bool test(vec2 z)
{
    if (OP == ISNAN) return is_nan(z);
    if (OP == ISINF) return is_inf(z.x) || is_inf(z.y);
    if (OP == ISFINITE) return is_finite(z.x) && is_finite(z.y);
    return z.y == 0.0 && z.x == (OP == ISPOSINF ? INFINITY : -INFINITY);
}
vec2 value(vec2 z)
{
    switch (OP) {
    case SIGN: return z == vec2(0.0) ? z : vec2(divide(z.x, complex_abs(z)), divide(z.y, complex_abs(z)));
    case SQUARE: return complex_multiply(z, z);
    case SQRT: return complex_sqrt(z);
    case RSQRT: return complex_divide(vec2(1.0, 0.0), complex_sqrt(z));
    case RECIPROCAL: return complex_divide(vec2(1.0, 0.0), z);
    case EXP: return complex_exp(z);
    case LOG: return complex_log(z);
    case LOG2: return complex_log(z) * 1.44269502;
    case LOG10: return complex_log(z) * 0.434294492;
    case LOG1P: return complex_log1p(z);
    case SIN: return complex_sin(z);
    case COS: return complex_cos(z);
    case TAN: return complex_tan(z);
    case SINH: return complex_sinh(z);
    case COSH: return complex_cosh(z);
    case TANH: return complex_tanh(z);
    case ARCSIN: return complex_asin(z);
    case ARCCOS: return complex_acos(z);
    case ARCTAN: return complex_atan(z);
    case ROUND: return roundEven(z);
    }
    return vec2(NOT_A_NUMBER);
}
uvec2 apply(uvec2 raw)
{
    if (OP == NEGATIVE) return raw ^ uvec2(0x80000000u);
    if (OP == CONJUGATE) return uvec2(raw.x, raw.y ^ 0x80000000u);
    if (OP == REAL) return uvec2(raw.x, 0u);
    if (OP == IMAG) return uvec2(raw.y, 0u);
    vec2 z = vec2(uintBitsToFloat(raw.x), uintBitsToFloat(raw.y));
    if (OP == ABS) return uvec2(floatBitsToUint(complex_abs(z)), 0u);
    return TO == BOOL ? uvec2(test(z) ? 1u : 0u, 0u) : bits(value(z));
}
void write(uint to, uint from)
{
    uvec2 v = apply(src64[from]);
    if (TO == C64) dst64[to] = v;
    else store_dst(to, TO, v.x);
}

#elif defined(WIDE)
int64_t apply(int64_t x)
{
    switch (OP) {
    case ABS: return FROM == I64 && x < int64_t(0) ? -x : x;
    case NEGATIVE: return -x;
    case SIGN: return int64_t(x == int64_t(0) ? 0 : FROM == I64 && x < int64_t(0) ? -1 : 1);
    case SQUARE: return x * x;
    case BITWISE_INVERT: return ~x;
    }
    return x;
}
void write(uint to, uint from)
{
    dst64[to] = unpackUint2x32(uint64_t(apply(int64_t(packUint2x32(src64[from])))));
}

#else
uint integer(uint x)
{
    bool negative = is_signed(FROM) && int(x) < 0;
    switch (OP) {
    case ABS: return negative ? 0u - x : x;
    case NEGATIVE: return 0u - x;
    case SIGN: return x == 0u ? 0u : negative ? 0xffffffffu : 1u;
    case SQUARE: return x * x;
    case LOGICAL_NOT: return x == 0u ? 1u : 0u;
    case BITWISE_INVERT: return ~x;
    }
    return x;
}
bool test(float x)
{
    if (OP == ISNAN) return is_nan(x);
    if (OP == ISINF) return is_inf(x);
    if (OP == ISFINITE) return is_finite(x);
    return floatBitsToUint(x) == (OP == ISPOSINF ? 0x7f800000u : 0xff800000u);
}
float value(float x)
{
    switch (OP) {
    case SIGN: return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0;
    case SQUARE: return x * x;
    case FLOOR: return floor(x);
    case CEIL: return ceil(x);
    case SQRT: return sqrt_of(x);
    case RSQRT: return divide(1.0, sqrt_of(x));
    case RECIPROCAL: return divide(1.0, x);
    case EXP: return exp_of(x);
    case EXPM1: return expm1(x);
    case LOG: return log_of(x);
    case LOG2: return log2_of(x);
    case LOG10: return log10_of(x);
    case LOG1P: return log1p(x);
    case SIN: return sin_of(x);
    case COS: return cos_of(x);
    case TAN: return tan_of(x);
    case SINH: return sinh_of(x);
    case COSH: return cosh_of(x);
    case TANH: return tanh_of(x);
    case ARCSIN: return asin_of(x);
    case ARCCOS: return acos_of(x);
    case ARCTAN: return atan_of(x);
    case ARCSINH: return asinh_of(x);
    case ARCCOSH: return acosh_of(x);
    case ARCTANH: return atanh_of(x);
    case ERF: return erf(x);
    case ERFINV: return erfinv(x);
    case SIGMOID: return sigmoid(x);
    case DEGREES: return x * 57.2957795;
    case RADIANS: return x * 0.0174532925;
    case ROUND: return roundEven(x);
    }
    return x;
}
uint apply(uint raw)
{
    if (!is_float(FROM)) return integer(sign_extend(raw, FROM));
    uint sign = FROM == F32 ? 0x80000000u : 0x8000u;
    if (OP == ABS) return raw & ~sign;
    if (OP == NEGATIVE) return raw ^ sign;
    float x = bits_to_float(raw, FROM);
    if (TO == BOOL) return test(x) ? 1u : 0u;
    if (is_nan(x)) return OP == SIGN ? 0u : raw;
    return float_to_bits(value(x), TO);
}
void write(uint to, uint from) { store_dst(to, TO, apply(load_src(from, FROM))); }
#endif

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
#if !defined(WIDE) && !defined(COMPLEX)
    if (MODE == 1u) {
        bool four = i < n / 4u;
        uint k = four ? 0u : i - n / 4u + (n & ~3u);                   // of a thread that takes one leftover element
        if (k >= n) return;
        uvec4 v;
        if (four && (SCALARS & 2u) == 0u) v = load4_src(offset[1] / 4u + i, FROM);
        else v = uvec4(load_src(flat_at(k, 1u), FROM));
        [[unroll]] for (int c = 0; c < 4; c++) v[c] = apply(v[c]);
        if (four) store4_dst(offset[0] / 4u + i, TO, v);
        else store_dst(flat_at(k, 0u), TO, v.x);
        return;
    }
#endif
    if (i >= n) return;
    if (MODE == 0u) write(flat_at(i, 0u), flat_at(i, 1u));
    else {
        uvec4 at = MODE == 2u ? locate(i) : locate_table(i);
        write(at.x, at.y);
    }
}
