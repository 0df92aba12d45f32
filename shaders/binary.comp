#version 460
#extension GL_GOOGLE_include_directive : require
// Functions of two operands of one dtype, OP by OP: MLXVK_BINARY_FUNCTIONS in order, then the quotient of divmod and
// equality with NaN equal to NaN. Comparisons give bool. WIDE: 64-bit integers. COMPLEX: complex64.
#include "elementwise.glsl"
#ifdef COMPLEX
#include "complex.glsl"
#else
#include "math.glsl"
#endif
BUFFER(0, dst)
BUFFER(1, a)
BUFFER(2, b)
BUFFER(3, table)
ACCESS(dst)
ACCESS(a)
ACCESS(b)
LOCATE_TABLE(table)

const uint ADD = 0, SUBTRACT = 1, MULTIPLY = 2, DIVIDE = 3, FLOOR_DIVIDE = 4, REMAINDER = 5, POWER = 6, MAXIMUM = 7,
    MINIMUM = 8, LOGADDEXP = 9, ARCTAN2 = 10, BITWISE_AND = 11, BITWISE_OR = 12, BITWISE_XOR = 13, LEFT_SHIFT = 14,
    RIGHT_SHIFT = 15, EQUAL = 16, NOT_EQUAL = 17, GREATER = 18, GREATER_EQUAL = 19, LESS = 20, LESS_EQUAL = 21,
    LOGICAL_AND = 22, LOGICAL_OR = 23, FLOOR_QUOTIENT = 24, NAN_EQUAL = 25, SILU_PRODUCT = 26;
bool is_test() { return (OP >= EQUAL && OP <= LOGICAL_OR) || OP == NAN_EQUAL; }

// By what the operands are to each other; false, false where one is NaN.
bool decide(bool less, bool equal, bool unordered)
{
    switch (OP) {
    case EQUAL: return equal && !unordered;
    case NOT_EQUAL: return !equal || unordered;
    case GREATER: return !less && !equal && !unordered;
    case GREATER_EQUAL: return !less && !unordered;
    case LESS: return less && !unordered;
    case LESS_EQUAL: return (less || equal) && !unordered;
    }
    return equal;
}

#ifndef COMPLEX
#ifdef WIDE
#define SIGNED int64_t
#define UNSIGNED uint64_t
const uint WIDTH = 64;
#else
#define SIGNED int
#define UNSIGNED uint
uint width_of(uint t) { return is_small(t) ? 8u : is_half(t) ? 16u : 32u; }
#define WIDTH width_of(FROM)
#endif
bool is_negative(UNSIGNED x) { return is_signed(FROM) && SIGNED(x) < SIGNED(0); }
UNSIGNED magnitude(UNSIGNED x) { return is_negative(x) ? UNSIGNED(0) - x : x; }
// Rounded down, the remainder with the divisor's sign; both 0 where the divisor is 0.
UNSIGNED floor_quotient(UNSIGNED x, UNSIGNED y)
{
    if (y == UNSIGNED(0)) return y;
    UNSIGNED m = magnitude(x), d = magnitude(y), q = m / d;
    if (is_negative(x) == is_negative(y)) return q;
    return UNSIGNED(0) - (q * d == m ? q : q + UNSIGNED(1));
}
UNSIGNED integer_power(UNSIGNED x, UNSIGNED y)
{
    if (is_negative(y)) return UNSIGNED(0);
    UNSIGNED r = UNSIGNED(1);
    for (; y != UNSIGNED(0); y >>= 1) {
        if ((uint(y) & 1u) != 0u) r *= x;
        x *= x;
    }
    return r;
}
// Counts that are negative, or not below the width: 0, or all copies of the sign.
UNSIGNED shift_right(UNSIGNED x, UNSIGNED y)
{
    bool beyond = y >= UNSIGNED(WIDTH);
    if (is_negative(x)) return UNSIGNED(SIGNED(x) >> (beyond ? int(WIDTH) - 1 : int(y)));
    return beyond ? UNSIGNED(0) : x >> int(y);
}
UNSIGNED integer(UNSIGNED x, UNSIGNED y)                               // extended by sign or zeros
{
    bool less = is_signed(FROM) ? SIGNED(x) < SIGNED(y) : x < y;
    switch (OP) {
    case ADD: return x + y;
    case SUBTRACT: return x - y;
    case MULTIPLY: return x * y;
    case DIVIDE: case FLOOR_DIVIDE: case FLOOR_QUOTIENT: return floor_quotient(x, y);
    case REMAINDER: return y == UNSIGNED(0) ? y : x - y * floor_quotient(x, y);
    case POWER: return integer_power(x, y);
    case MAXIMUM: return less ? y : x;
    case MINIMUM: return less ? x : y;
    case BITWISE_AND: case LOGICAL_AND: return x & y;
    case BITWISE_OR: case LOGICAL_OR: return x | y;
    case BITWISE_XOR: return x ^ y;
    case LEFT_SHIFT: return y >= UNSIGNED(WIDTH) ? UNSIGNED(0) : x << int(y);
    case RIGHT_SHIFT: return shift_right(x, y);
    }
    return UNSIGNED(decide(less, x == y, false) ? 1u : 0u);
}
#endif

#if defined(COMPLEX)
bool pair_equal(float x, float y) { return is_nan(x) ? is_nan(y) : x == y; }
vec2 value(vec2 x, vec2 y)
{
    switch (OP) {
    case ADD: return x + y;
    case SUBTRACT: return x - y;
    case MULTIPLY: return complex_multiply(x, y);
    case DIVIDE: return complex_divide(x, y);
    case POWER: return complex_pow(x, y);
    case MAXIMUM: return is_nan(x) || complex_less(y, x) ? x : y;
    case MINIMUM: return is_nan(x) || complex_less(x, y) ? x : y;
    case LOGADDEXP: return complex_logaddexp(x, y);
    }
    return vec2(NOT_A_NUMBER);
}
void write(uint to, uint at_a, uint at_b)
{
    uvec2 p = a64[at_a], q = b64[at_b];
    vec2 x = vec2(uintBitsToFloat(p.x), uintBitsToFloat(p.y)), y = vec2(uintBitsToFloat(q.x), uintBitsToFloat(q.y));
    if (OP == NAN_EQUAL) store_dst(to, TO, pair_equal(x.x, y.x) && pair_equal(x.y, y.y) ? 1u : 0u);
    else if (is_test()) store_dst(to, TO, decide(complex_less(x, y), x == y, is_nan(x) || is_nan(y)) ? 1u : 0u);
    else {
        vec2 z = value(x, y);
        dst64[to] = uvec2(floatBitsToUint(z.x), floatBitsToUint(z.y));
    }
}

#elif defined(WIDE)
void write(uint to, uint at_a, uint at_b)
{
    uint64_t v = integer(packUint2x32(a64[at_a]), packUint2x32(b64[at_b]));
    if (is_test()) store_dst(to, TO, uint(v));
    else dst64[to] = unpackUint2x32(v);
}

#else
float rounded(float x) { return bits_to_float(float_to_bits(x, TO), TO); }
float value(float x, float y)
{
    switch (OP) {
    case SILU_PRODUCT: return rounded(x * rounded(sigmoid(x))) * y;     // as the three operations that it stands for
    case ADD: return x + y;
    case SUBTRACT: return x - y;
    case MULTIPLY: return x * y;
    case DIVIDE: return divide(x, y);
    case FLOOR_DIVIDE: case FLOOR_QUOTIENT: return floor(divide(x, y));
    case REMAINDER: return remainder_of(x, y);
    case POWER: return pow_of(x, y);
    case LOGADDEXP: return logaddexp(x, y);
    case ARCTAN2: return atan2_of(x, y);
    }
    return NOT_A_NUMBER;
}
uint apply(uint p, uint q)
{
    if (!is_float(FROM)) {
        uint v = integer(sign_extend(p, FROM), sign_extend(q, FROM));
        return TO == BOOL && v != 0u ? 1u : v;
    }
    float x = bits_to_float(p, FROM), y = bits_to_float(q, FROM);
    bool x_nan = is_nan(x), y_nan = is_nan(y);
    if (OP == MAXIMUM) return x_nan || (x > y && !y_nan) ? p : q;
    if (OP == MINIMUM) return x_nan || (x < y && !y_nan) ? p : q;
    if (OP == NAN_EQUAL) return x_nan ? uint(y_nan) : uint(x == y && !y_nan);
    if (is_test()) return decide(x < y, x == y, x_nan || y_nan) ? 1u : 0u;
    return float_to_bits(value(x, y), TO);
}
void write(uint to, uint at_a, uint at_b) { store_dst(to, TO, apply(load_a(at_a, FROM), load_b(at_b, FROM))); }
#endif

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
#if !defined(WIDE) && !defined(COMPLEX)
    if (MODE == 1u) {
        bool four = i < n / 4u;
        uint k = four ? 0u : i - n / 4u + (n & ~3u);                   // of a thread that takes one leftover element
        if (k >= n) return;
        uvec4 p, q;
        if (four && (SCALARS & 2u) == 0u) p = load4_a(offset[1] / 4u + i, FROM);
        else p = uvec4(load_a(flat_at(k, 1u), FROM));
        if (four && (SCALARS & 4u) == 0u) q = load4_b(offset[2] / 4u + i, FROM);
        else q = uvec4(load_b(flat_at(k, 2u), FROM));
        [[unroll]] for (int c = 0; c < 4; c++) p[c] = apply(p[c], q[c]);
        if (four) store4_dst(offset[0] / 4u + i, TO, p);
        else store_dst(flat_at(k, 0u), TO, p.x);
        return;
    }
#endif
    if (i >= n) return;
    if (MODE == 0u) write(flat_at(i, 0u), flat_at(i, 1u), flat_at(i, 2u));
    else {
        uvec4 at = MODE == 2u ? locate(i) : locate_table(i);
        write(at.x, at.y, at.z);
    }
}
