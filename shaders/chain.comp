#version 460
#extension GL_GOOGLE_include_directive : require
// No kernel, but the functions that chains of element-by-element operations are made of: mlxvk.c (>>chains) writes a main of
// its own and copies from here what that calls. It knows the functions by their order in main below. They take and give an
// element's bits, and the dtypes it comes from and goes to; what they compute is what the kernels of one operation compute.
#include "common.glsl"
#include "functions.glsl"
#define ROUNDS_LOOPED
#include "threefry.glsl"

uint thread_index() { return group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x; }
uint convert_bits(const uint p, const uint from, const uint to) { return low_bits(convert(p, from, to), to); }
uint choose(const uint c, const uint p, const uint q, const uint from, const uint to) { return c != 0u ? p : q; }

// The only word of a stream, by the two words of its key
uint random_first(const uint p, const uint q, const uint from, const uint to) { return random_pair(uvec2(p, q), 0u, 1u).x; }

// Bytes and halves of words
uint byte_of(const uint word, const uint k) { return word >> (8u * k) & 0xffu; }
uint half_of(const uint word, const uint k) { return word >> (16u * k) & 0xffffu; }
uint join_bytes(const uint a, const uint b, const uint c, const uint d)
{
    return (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | d << 24;
}
uint join_halves(const uint a, const uint b) { return (a & 0xffffu) | b << 16; }

#define X(op, result) \
    uint real_##op(const uint p, const uint from, const uint to) { \
        float x = bits_to_float(p, from); \
        const uint type = to; \
        return is_nan(x) ? p : float_to_bits(result, to); }
FUNCTIONS_OF_ONE(X)
#undef X
uint sign_bit(const uint t) { return t == F32 ? 0x80000000u : 0x8000u; }
uint real_ABS(const uint p, const uint from, const uint to) { return p & ~sign_bit(from); }
uint real_NEGATIVE(const uint p, const uint from, const uint to) { return p ^ sign_bit(from); }
uint real_SIGN(const uint p, const uint from, const uint to) { return float_to_bits(sign_of(bits_to_float(p, from)), to); }

#define TESTS(X) \
    X(ISNAN, is_nan(x)) X(ISINF, is_inf(x)) X(ISFINITE, is_finite(x)) X(ISPOSINF, floatBitsToUint(x) == 0x7f800000u) \
    X(ISNEGINF, floatBitsToUint(x) == 0xff800000u)
#define X(op, result) \
    uint real_##op(const uint p, const uint from, const uint to) { float x = bits_to_float(p, from); return result ? 1u : 0u; }
TESTS(X)
#undef X

#define X(op, result) \
    uint real_##op(const uint p, const uint q, const uint from, const uint to) { \
        float x = bits_to_float(p, from), y = bits_to_float(q, from); \
        const uint type = to; \
        return float_to_bits(result, to); }
FUNCTIONS_OF_TWO(X)
#undef X

// ordered: none is NaN
#define COMPARISONS(X) \
    X(MAXIMUM, is_nan(x) || (x > y && !is_nan(y)) ? p : q) X(MINIMUM, is_nan(x) || (x < y && !is_nan(y)) ? p : q) \
    X(EQUAL, ordered && x == y ? 1u : 0u) X(NOT_EQUAL, ordered && x == y ? 0u : 1u) \
    X(GREATER, ordered && x > y ? 1u : 0u) X(GREATER_EQUAL, ordered && x >= y ? 1u : 0u) \
    X(LESS, ordered && x < y ? 1u : 0u) X(LESS_EQUAL, ordered && x <= y ? 1u : 0u) \
    X(NAN_EQUAL, (ordered && x == y) || (is_nan(x) && is_nan(y)) ? 1u : 0u)
#define X(op, result) \
    uint real_##op(const uint p, const uint q, const uint from, const uint to) { \
        float x = bits_to_float(p, from), y = bits_to_float(q, from); \
        bool ordered = !is_nan(x) && !is_nan(y); \
        return result; }
COMPARISONS(X)
#undef X

#define INTEGERS_OF_ONE(X) \
    X(ABS, negative ? 0u - x : x) X(NEGATIVE, 0u - x) X(SIGN, x == 0u ? 0u : negative ? 0xffffffffu : 1u) X(SQUARE, x * x) \
    X(LOGICAL_NOT, x == 0u ? 1u : 0u) X(BITWISE_INVERT, ~x)
#define X(op, result) \
    uint integer_##op(const uint p, const uint from, const uint to) { \
        uint x = sign_extend(p, from); \
        bool negative = is_signed(from) && int(x) < 0; \
        return low_bits(result, to); }
INTEGERS_OF_ONE(X)
#undef X

#define INTEGERS_OF_TWO(X) \
    X(ADD, x + y) X(SUBTRACT, x - y) X(MULTIPLY, x * y) X(MAXIMUM, less ? y : x) X(MINIMUM, less ? x : y) \
    X(BITWISE_AND, x & y) X(BITWISE_OR, x | y) X(BITWISE_XOR, x ^ y) X(LOGICAL_AND, x & y) X(LOGICAL_OR, x | y) \
    X(EQUAL, x == y ? 1u : 0u) X(NOT_EQUAL, x == y ? 0u : 1u) X(GREATER, less || x == y ? 0u : 1u) \
    X(GREATER_EQUAL, less ? 0u : 1u) X(LESS, less ? 1u : 0u) X(LESS_EQUAL, less || x == y ? 1u : 0u) \
    X(NAN_EQUAL, x == y ? 1u : 0u)
#define X(op, result) \
    uint integer_##op(const uint p, const uint q, const uint from, const uint to) { \
        uint x = sign_extend(p, from), y = sign_extend(q, from); \
        bool less = is_signed(from) ? int(x) < int(y) : x < y; \
        uint r = result; \
        return to == BOOL ? (r != 0u ? 1u : 0u) : low_bits(r, to); }
INTEGERS_OF_TWO(X)
#undef X

void main()
{
    uint u = thread_index();
    u = convert_bits(u, u, u);
    u = choose(u, u, u, u, u);
    u = byte_of(u, u);
    u = half_of(u, u);
    u = join_bytes(u, u, u, u);
    u = join_halves(u, u);
    u = random_first(u, u, u, u);
#define X(op, result) u = real_##op(u, u, u);
    FUNCTIONS_OF_ONE(X)
    TESTS(X)
    X(ABS, )
    X(NEGATIVE, )
    X(SIGN, )
#undef X
#define X(op, result) u = real_##op(u, u, u, u);
    FUNCTIONS_OF_TWO(X)
    COMPARISONS(X)
#undef X
#define X(op, result) u = integer_##op(u, u, u);
    INTEGERS_OF_ONE(X)
#undef X
#define X(op, result) u = integer_##op(u, u, u, u);
    INTEGERS_OF_TWO(X)
#undef X
}
