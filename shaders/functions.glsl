// Operations on float32 by name: what kernels choose from by a constant, and what chains of operations call one by one.
#ifndef FUNCTIONS_GLSL
#define FUNCTIONS_GLSL
#include "math.glsl"

#define FUNCTIONS_OF_ONE(X) \
    X(SQUARE, x * x) X(FLOOR, floor(x)) X(CEIL, ceil(x)) X(ROUND, roundEven(x)) \
    X(SQRT, sqrt_of(x)) X(RSQRT, divide(1.0, sqrt_of(x))) X(RECIPROCAL, divide(1.0, x)) \
    X(EXP, exp_of(x)) X(EXPM1, expm1(x)) X(LOG, log_of(x)) X(LOG2, log2_of(x)) X(LOG10, log10_of(x)) X(LOG1P, log1p(x)) \
    X(SIN, sin_of(x)) X(COS, cos_of(x)) X(TAN, tan_of(x)) X(SINH, sinh_of(x)) X(COSH, cosh_of(x)) X(TANH, tanh_of(x)) \
    X(ARCSIN, asin_of(x)) X(ARCCOS, acos_of(x)) X(ARCTAN, atan_of(x)) X(ARCSINH, asinh_of(x)) X(ARCCOSH, acosh_of(x)) \
    X(ARCTANH, atanh_of(x)) X(ERF, erf(x)) X(ERFINV, erfinv(x)) X(SIGMOID, sigmoid(x)) \
    X(DEGREES, x * 57.2957795) X(RADIANS, x * 0.0174532925)

#define FUNCTIONS_OF_TWO(X) \
    X(ADD, x + y) X(SUBTRACT, x - y) X(MULTIPLY, x * y) X(DIVIDE, divide(x, y)) X(FLOOR_DIVIDE, floor(divide(x, y))) \
    X(FLOOR_QUOTIENT, floor(divide(x, y))) X(REMAINDER, remainder_of(x, y)) X(POWER, pow_of(x, y)) \
    X(LOGADDEXP, logaddexp(x, y)) X(ARCTAN2, atan2_of(x, y))

#endif
