#version 460
#extension GL_GOOGLE_include_directive : require
// Functions of two operands of one dtype, OP by OP: MLX's, the quotient of divmod, equality with NaN equal to
// NaN, x sigmoid(x) y and the quotient rounded towards 0. Comparisons give bool. WIDE: 64-bit integers. COMPLEX: complex64.
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
BUFFER(1, a)
BUFFER(2, b)
BUFFER(3, table)
ACCESS(dst)
ACCESS(a)
ACCESS(b)
LOCATE_TABLE(table)
VECTORS(a, 1u, FROM)
VECTORS(b, 2u, FROM)
#if !defined(WIDE) && !defined(COMPLEX)
ROWS_OF(a, 1u, FROM)
ROWS_OF(b, 2u, FROM)
#endif
PUT(dst, TO)

//! enum BINARY_: functions of two operands
const uint ADD = 0, SUBTRACT = 1, MULTIPLY = 2, DIVIDE = 3, FLOOR_DIVIDE = 4, REMAINDER = 5, POWER = 6, MAXIMUM = 7,
    MINIMUM = 8, LOGADDEXP = 9, ARCTAN2 = 10, BITWISE_AND = 11, BITWISE_OR = 12, BITWISE_XOR = 13, LEFT_SHIFT = 14,
    RIGHT_SHIFT = 15, EQUAL = 16, NOT_EQUAL = 17, GREATER = 18, GREATER_EQUAL = 19, LESS = 20, LESS_EQUAL = 21,
    LOGICAL_AND = 22, LOGICAL_OR = 23, FLOOR_QUOTIENT = 24, NAN_EQUAL = 25, SILU_PRODUCT = 26, TRUNCATED_QUOTIENT = 27;

bool is_test() { return (OP >= EQUAL && OP <= LOGICAL_OR) || OP == NAN_EQUAL; }

// By what the operands are to each other; unordered: one is NaN.
bool decide(const bool less, const bool equal, const bool unordered)
{
    bool r = equal;
    if (OP == GREATER) r = !less && !equal;
    if (OP == GREATER_EQUAL) r = !less;
    if (OP == LESS) r = less;
    if (OP == LESS_EQUAL) r = less || equal;
    return OP == NOT_EQUAL ? !equal || unordered : r && !unordered;
}

#ifndef COMPLEX
#ifdef WIDE
#define INTEGER uvec2
const uint WIDTH = 64;
uvec2 sum(const uvec2 x, const uvec2 y) { return wide_sum(x, y); }
uvec2 difference(const uvec2 x, const uvec2 y) { return wide_difference(x, y); }
uvec2 product(const uvec2 x, const uvec2 y) { return wide_product(x, y); }
uvec2 quotient(const uvec2 x, const uvec2 y) { return wide_quotient(x, y); }
uvec2 left(const uvec2 x, const uint n) { return wide_left(x, n); }
uvec2 right(const uvec2 x, const uint n) { return wide_right(x, n, FROM == I64); }
bool is_less(const uvec2 x, const uvec2 y) { return wide_less(x, y, FROM == I64); }
bool is_negative(const uvec2 x) { return FROM == I64 && int(x.y) < 0; }
bool is_beyond(const uvec2 n) { return n.y != 0u || n.x >= WIDTH; }
uint low_word(const uvec2 x) { return x.x; }
#else
#define INTEGER uint
const uint ZERO = 0, ONE = 1;
uint width_of(const uint t) { return is_small(t) ? 8u : is_half(t) ? 16u : 32u; }
#define WIDTH width_of(FROM)
uint sum(const uint x, const uint y) { return x + y; }
uint difference(const uint x, const uint y) { return x - y; }
uint product(const uint x, const uint y) { return x * y; }
uint quotient(const uint x, const uint y) { return y == 0u ? 0u : x / y; }
uint left(const uint x, const uint n) { return x << n; }
uint right(const uint x, const uint n) { return is_signed(FROM) ? uint(int(x) >> n) : x >> n; }
bool is_less(const uint x, const uint y) { return is_signed(FROM) ? int(x) < int(y) : x < y; }
bool is_negative(const uint x) { return is_signed(FROM) && int(x) < 0; }
bool is_beyond(const uint n) { return n >= WIDTH; }
uint low_word(const uint x) { return x; }
#endif
INTEGER negative(const INTEGER x) { return difference(ZERO, x); }
INTEGER magnitude(const INTEGER x) { return is_negative(x) ? negative(x) : x; }
INTEGER truncated_quotient(const INTEGER x, const INTEGER y)
{
    INTEGER q = quotient(magnitude(x), magnitude(y));
    return is_negative(x) != is_negative(y) ? negative(q) : q;
}
// Rounded down, 0 where the divisor is 0, so that the remainder, which has the divisor's sign, is x there.
INTEGER floor_quotient(const INTEGER x, const INTEGER y)
{
    INTEGER m = magnitude(x), d = magnitude(y), q = quotient(m, d);
    if (is_negative(x) != is_negative(y)) q = negative(product(q, d) == m ? q : sum(q, ONE));
    return d == ZERO ? d : q;
}
INTEGER integer_power(INTEGER x, INTEGER y)
{
    INTEGER r = is_negative(y) ? ZERO : ONE;
    if (is_negative(y)) y = ZERO;
    for (uint bits = 0; bits < WIDTH && y != ZERO; bits++) {
        if ((low_word(y) & 1u) != 0u) r = product(r, x);
        x = product(x, x);
        y = right(y, 1u);
    }
    return r;
}
INTEGER integer(const INTEGER x, const INTEGER y)                                  // extended by sign or zeros
{
    bool less = is_less(x, y), beyond = is_beyond(y);                  // beyond: counts of shifts, negative or too large
    uint count = beyond ? WIDTH - 1u : low_word(y);
    INTEGER r = ZERO;
    if (OP == ADD) r = sum(x, y);
    if (OP == SUBTRACT) r = difference(x, y);
    if (OP == MULTIPLY) r = product(x, y);
    if (OP == FLOOR_DIVIDE || OP == FLOOR_QUOTIENT || OP == REMAINDER) r = floor_quotient(x, y);
    if (OP == REMAINDER) r = difference(x, product(y, r));
    if (OP == TRUNCATED_QUOTIENT) r = truncated_quotient(x, y);
    if (OP == POWER) r = integer_power(x, y);
    if (OP == MAXIMUM) r = less ? y : x;
    if (OP == MINIMUM) r = less ? x : y;
    if (OP == BITWISE_AND || OP == LOGICAL_AND) r = x & y;
    if (OP == BITWISE_OR || OP == LOGICAL_OR) r = x | y;
    if (OP == BITWISE_XOR) r = x ^ y;
    if (OP == LEFT_SHIFT && !beyond) r = left(x, count);
    if (OP == RIGHT_SHIFT && (is_negative(x) || !beyond)) r = right(x, count);
    if ((OP >= EQUAL && OP <= LESS_EQUAL) || OP == NAN_EQUAL) r = decide(less, x == y, false) ? ONE : ZERO;
    return r;
}
#endif

#if defined(COMPLEX)
bool pair_equal(const float x, const float y) { return is_nan(x) ? is_nan(y) : x == y; }
// The real parts decide unless they are equal: the other parts may be NaN then, and neither is less than the other nor equal.
bool decide(const vec2 x, const vec2 y)
{
    bool reals = !is_nan(x.x) && !is_nan(y.x), others = !is_nan(x.y) && !is_nan(y.y), tie = reals && others && x.x == y.x;
    bool less = reals && x.x < y.x || tie && x.y < y.y, greater = reals && x.x > y.x || tie && x.y > y.y;
    bool equal = tie && x.y == y.y;
    return decide(less, equal, !less && !equal && !greater);
}
vec2 value(const vec2 x, const vec2 y)
{
    vec2 r = x;
    if (OP == ADD) r = x + y;
    if (OP == SUBTRACT) r = x - y;
    if (OP == MULTIPLY) r = complex_multiply(x, y);
    if (OP == DIVIDE) r = complex_divide(x, y);
    if (OP == POWER) r = complex_pow(x, y);
    if (OP == MAXIMUM && !is_nan(x) && !complex_less(y, x)) r = y;
    if (OP == MINIMUM && !is_nan(x) && !complex_less(x, y)) r = y;
    if (OP == LOGADDEXP) r = complex_logaddexp(x, y);
    return r;
}
void write(const uint to, const uint at_a, const uint at_b)
{
    uvec2 p = a64[at_a], q = b64[at_b];
    vec2 x = vec2(uintBitsToFloat(p.x), uintBitsToFloat(p.y)), y = vec2(uintBitsToFloat(q.x), uintBitsToFloat(q.y));
    if (is_test()) {
        bool same = OP == NAN_EQUAL && pair_equal(x.x, y.x) && pair_equal(x.y, y.y);
        store_dst(to, TO, same || decide(x, y) ? 1u : 0u);
    } else {
        vec2 z = value(x, y);
        dst64[to] = uvec2(floatBitsToUint(z.x), floatBitsToUint(z.y));
    }
}

#elif defined(WIDE)
void write(const uint to, const uint at_a, const uint at_b)
{
    uvec2 v = integer(a64[at_a], b64[at_b]);
    if (is_test()) store_dst(to, TO, v.x);
    else dst64[to] = v;
}

#else
float rounded(const float x) { return bits_to_float(float_to_bits(x, TO), TO); }
float value(const float x, const float y)
{
    const uint type = TO;
    float r = x;
#define X(op, result) if (OP == op) r = result;
    FUNCTIONS_OF_TWO(X)
#undef X
    if (OP == SILU_PRODUCT) r = rounded(x * rounded(type == F32 ? sigmoid(x) : sigmoid_half(x))) * y;  // as three operations
    return r;
}
bool has_value() { return is_float(FROM) && OP != MAXIMUM && OP != MINIMUM && !is_test(); }
uvec4 values(const uvec4 p, const uvec4 q)
{
    float r[8];
    uvec4 v;
    for (uint k = 0u; k < LANES; k++) r[k] = value(number(p, k), number(q, k));
    if (!put_numbers(v, r)) for (uint k = 0u; k < LANES; k++) put_element(v, k, float_to_bits(r[k], TO));
    return v;
}
uint integers(const uint p, const uint q)
{
    uint r = integer(sign_extend(p, FROM), sign_extend(q, FROM));
    return TO == BOOL && r != 0u ? 1u : r;
}
uint choice(const uint p, const uint q, const float x, const float y)                          // x and y: the numbers whose bits p and q are
{
    bool x_nan = is_nan(x), y_nan = is_nan(y);
    if (OP == MAXIMUM) return x_nan || (x > y && !y_nan) ? p : q;
    if (OP == MINIMUM) return x_nan || (x < y && !y_nan) ? p : q;
    return decide(x < y, x == y, x_nan || y_nan) || (OP == NAN_EQUAL && x_nan && y_nan) ? 1u : 0u;
}
uvec4 choices(const uvec4 p, const uvec4 q)
{
    uvec4 v = uvec4(0u);
    for (uint k = 0u; k < LANES; k++) {
        uint a = element(p, k, FROM), b = element(q, k, FROM);
        put_element(v, k, is_float(FROM) ? choice(a, b, number(p, k), number(q, k)) : integers(a, b));
    }
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
    write(at.x, at.y, at.z);
#else
    if (FOUR_ROWS != 0u) {
        uvec4 p[4], q[4];
        rows_a(at.y, p);
        rows_b(at.z, q);
        [[unroll]] for (uint r = 0u; r < 4u; r++)
            put_dst(true, i, at.x + r * (STEPS(DIMS - 2u).x / 4u), has_value() ? values(p[r], q[r]) : choices(p[r], q[r]));
        return;
    }
    uvec4 p = fetch_a(whole, i, at.y), q = fetch_b(whole, i, at.z), v = uvec4(0u);
    if (has_value()) v = values(p, q);
    else v = choices(p, q);
    put_dst(whole, i, at.x, v);
#endif
}
