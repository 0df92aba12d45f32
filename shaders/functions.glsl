// Operations on float32 by name: what kernels choose from by a constant, and what chains of operations call one by one.
#ifndef FUNCTIONS_GLSL
#define FUNCTIONS_GLSL
#include "halves.glsl"

// x, y: the operands; type: the result's dtype
#define FUNCTIONS_OF_ONE(X) \
    X(SQUARE, x * x) X(FLOOR, floor(x)) X(CEIL, ceil(x)) X(ROUND, roundEven(x)) \
    X(SQRT, type == F32 ? sqrt_of(x) : sqrt(x)) X(RSQRT, type == F32 ? divide(1.0, sqrt_of(x)) : inversesqrt(x)) \
    X(RECIPROCAL, type == F32 ? divide(1.0, x) : quotient_half(1.0, x)) \
    X(EXP, type == F32 ? exp_of(x) : exp_half(x)) X(EXPM1, type == F32 ? expm1(x) : expm1_half(x)) \
    X(LOG, type != BF16 ? log_of(x) : log_bf16(x)) X(LOG2, type != BF16 ? log2_of(x) : log2_bf16(x)) \
    X(LOG10, type != BF16 ? log10_of(x) : log2_bf16(x) * 0.301029996) X(LOG1P, type != BF16 ? log1p(x) : log1p_bf16(x)) \
    X(SIN, type == F32 ? sin_of(x) : cos_sin_half(x).y) X(COS, type == F32 ? cos_of(x) : cos_sin_half(x).x) \
    X(TAN, type == F32 ? tan_of(x) : tan_half(x)) X(SINH, type == F32 ? sinh_of(x) : sinh_half(x)) \
    X(COSH, type == F32 ? cosh_of(x) : cosh_half(x)) X(TANH, type == F32 ? tanh_of(x) : tanh_half(x)) \
    X(ARCSIN, asin_of(x)) X(ARCCOS, acos_of(x)) X(ARCTAN, atan_of(x)) X(ARCSINH, asinh_of(x)) X(ARCCOSH, acosh_of(x)) \
    X(ARCTANH, atanh_of(x)) X(ERF, type == F32 ? erf(x) : erf_half(x)) X(ERFINV, erfinv(x)) \
    X(SIGMOID, type == F32 ? sigmoid(x) : sigmoid_half(x)) \
    X(DEGREES, x * 57.2957795) X(RADIANS, x * 0.0174532925)

#define FUNCTIONS_OF_TWO(X) \
    X(ADD, x + y) X(SUBTRACT, x - y) X(MULTIPLY, x * y) X(DIVIDE, type == F32 ? divide(x, y) : quotient_half(x, y)) \
    X(FLOOR_DIVIDE, floor(divide(x, y))) \
    X(FLOOR_QUOTIENT, floor(divide(x, y))) X(REMAINDER, remainder_of(x, y)) X(POWER, pow_of(x, y)) \
    X(LOGADDEXP, logaddexp(x, y)) X(ARCTAN2, atan2_of(x, y))

#endif
