// Operations on float32 by name: what kernels choose from by a constant, and what chains of operations call one by one.
#ifndef FUNCTIONS_GLSL
#define FUNCTIONS_GLSL
#include "halves.glsl"

// x, y: the operands; type: the result's dtype
#define FUNCTIONS_OF_ONE(X) \
    X(SQUARE, x * x) X(FLOOR, floor(x)) X(CEIL, ceil(x)) X(ROUND, roundEven(x)) \
    X(SQRT, type == F32 ? sqrt_of(x) : sqrt(x)) X(RSQRT, type == F32 ? rsqrt_of(x) : inversesqrt(x)) \
    X(RECIPROCAL, type == F32 ? divide(1.0, x) : quotient_half(1.0, x)) \
    X(EXP, type == F32 ? exp_of(x) : exp_half(x)) X(EXPM1, type == F32 ? expm1(x) : expm1_half(x)) \
    X(LOG, type == F32 ? log_of(x) : type == BF16 ? log_bf16(x) : log_half(x, LN2)) \
    X(LOG2, type == F32 ? log2_of(x) : type == BF16 ? log2_bf16(x) : log_half(x, 1.0)) \
    X(LOG10, type == F32 ? log10_of(x) : type == BF16 ? log2_bf16(x) * 0.301029996 : log_half(x, 0.301029996)) \
    X(LOG1P, type == F32 ? log1p(x) : type == BF16 ? log1p_bf16(x) : log1p_half(x)) \
    X(SIN, type == F32 ? sin_of(x) : sin_half(x)) X(COS, type == F32 ? cos_of(x) : cos_half(x)) \
    X(TAN, type == F32 ? tan_of(x) : tan_half(x)) X(SINH, type == F32 ? sinh_of(x) : sinh_half(x)) \
    X(COSH, type == F32 ? cosh_of(x) : cosh_half(x)) X(TANH, type == F32 ? tanh_of(x) : tanh_half(x)) \
    X(ARCSIN, type == F32 ? asin_of(x) : asin_half(x)) X(ARCCOS, type == F32 ? acos_of(x) : acos_half(x)) \
    X(ARCTAN, type == F32 ? atan_of(x) : atan_half(x)) X(ARCSINH, type == F32 ? asinh_of(x) : asinh_half(x)) \
    X(ARCCOSH, type == F32 ? acosh_of(x) : acosh_half(x)) X(ARCTANH, type == F32 ? atanh_of(x) : atanh_half(x)) \
    X(ERF, type == F32 ? erf(x) : erf_half(x)) X(ERFINV, erfinv(x)) \
    X(SIGMOID, type == F32 ? sigmoid(x) : sigmoid_half(x)) \
    X(DEGREES, x * 57.2957795) X(RADIANS, x * 0.0174532925)

// MLX rounds a quotient to its dtype first: one next to a whole number becomes that.
float floored(const float x, const uint type) { return floor(type == F32 ? x : bits_to_float(float_to_bits(x, type), type)); }

#define FUNCTIONS_OF_TWO(X) \
    X(ADD, x + y) X(SUBTRACT, x - y) X(MULTIPLY, x * y) X(DIVIDE, type == F32 ? divide(x, y) : quotient_half(x, y)) \
    X(FLOOR_DIVIDE, floored(divide(x, y), type)) \
    X(FLOOR_QUOTIENT, floored(divide(x, y), type)) X(REMAINDER, remainder_of(x, y)) \
    X(POWER, type == F32 ? pow_of(x, y) : pow_signed(x, y, pow_half_positive(abs(x), y, type))) \
    X(LOGADDEXP, type == F32 ? logaddexp(x, y) : logaddexp_half(x, y)) X(ARCTAN2, type == F32 ? atan2_of(x, y) : atan2_half(x, y))

#endif
