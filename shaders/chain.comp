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

// Word `w` of a stream of `words`, by the two words of its key
uint random_at(const uint p, const uint q, const uint w, const uint words)
{
    uint half_up = words / 2u + (words & 1u);
    uvec2 both = random_pair(uvec2(p, q), w < half_up ? w : w - half_up, words);
    return w < half_up ? both.x : both.y;
}

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

// ---- rows of what a chain comes to, reduced by the tree that reduce.comp tells of ----

uvec4 chain_four(const uint i) { return uvec4(i); }    // the i-th four elements; mlxvk.c writes this one's body and two more

//! enum FOLD_: as accumulate.glsl has them, but for COUNT, a sum of bool
const uint MAX = 2, MIN = 3, MEAN = 4, COUNT = 5, ARGMAX = 8, ARGMIN = 9;
// Words of all workgroups: a counter for each row, which is zero before and behind; from COUNTED on two for each piece.
const uint COUNTED = 128;
uint joined_add(const uint i, const uint v) { return i ^ v; }          // atomically; give what was there
uint joined_swap(const uint i, const uint v) { return i & v; }

shared uvec2 board[1104 + 1104 / 16];                  // of lanes, or of all pieces; from 1024 on of sixteens of them, and so on
shared bool ends_row;
uint row_index;
uvec2 row_value;                                       // a float32 value's bits; or a key that orders as values do, and a place

uvec2 fold_none(const uint op)
{
    return uvec2(op >= ARGMAX ? 0x007fffffu : op == MAX ? 0xff800000u : op == MIN ? 0x7f800000u : 0u, 0u);
}
uvec2 fold_both(const uvec2 a, const uvec2 b, const uint op)
{
    if (op >= ARGMAX) return b.x > a.x || (b.x == a.x && b.y < a.y) ? b : a;
    float x = uintBitsToFloat(a.x), y = uintBitsToFloat(b.x);
    if (op != MAX && op != MIN) return uvec2(op == COUNT ? a.x + b.x : floatBitsToUint(x + y), 0u);
    if (is_nan(x) || is_nan(y)) return uvec2(is_nan(x) && is_nan(y) ? max(a.x, b.x) : is_nan(x) ? a.x : b.x, 0u);
    if (x == y) return uvec2(op == MAX ? a.x & b.x : a.x | b.x, 0u);
    return (op == MAX) == (x > y) ? a : b;
}
uvec2 fold_value(const uint bits, const uint at, const uint op, const uint from)
{
    float x = bits_to_float(bits, from);
    if (op < ARGMAX) return uvec2(op == COUNT ? bits : floatBitsToUint(x), 0u);
    uint u = x == 0.0 ? 0u : floatBitsToUint(x);
    u = (u & 0x80000000u) != 0u ? ~u : u | 0x80000000u;
    return is_nan(x) ? fold_none(op) : uvec2(op == ARGMIN ? ~u : u, at);
}
uvec2 fold_pair(const uvec2 v, const uint at, const uint op, const uint from)
{
    return fold_both(fold_value(v.x, at, op, from), fold_value(v.y, at + 1u, op, from), op);
}
uint padded(const uint i) { return i + i / 16u; }

// The first `count` values on the board: sixteen in order, sixteen of those, ... until thread 0 has one.
uvec2 fold_board(uint count, const uint op)
{
    uint me = gl_LocalInvocationID.x, at = 0u, to = 1024u;
    [[dont_unroll]] while (true) {
        uvec2 a = fold_none(op);
        barrier();
        [[dont_unroll]] for (uint i = 16u * me; i < min(count, 16u * me + 16u); i++)
            a = fold_both(a, board[padded(at + i)], op);
        count = (count + 15u) / 16u;
        if (count == 1u) return a;
        if (me < count) board[padded(to + me)] = a;
        at = to;
        to = 1088u;
    }
}

// Reduces a piece of a row of `fours`. Has this thread a row's result now?
bool fold(const uint fours, const uint rows, const uint op, const uint from)
{
    uint me = gl_LocalInvocationID.x, parts = (fours + 1023u) / 1024u, task = group_index();
    uint at = task % parts * 1024u + me / 16u * 64u + me % 16u;
    row_index = task / parts;
    if (row_index >= rows) return false;               // all of the workgroup
    uvec2 a = fold_none(op);
    [[dont_unroll]] for (uint j = 0u; j < 4u && at < fours; j++, at += 16u) {
        uvec4 v = chain_four(row_index * fours + at);
        a = fold_both(a, fold_both(fold_pair(v.xy, 4u * at, op, from), fold_pair(v.zw, 4u * at + 2u, op, from), op), op);
    }
    board[padded(me)] = a;
    row_value = fold_board(256u, op);
    if (parts > 1u) {                                  // each stores, then counts; who ends last goes on, and nobody waits
        if (me == 0u) {
            joined_swap(COUNTED + 2u * task, row_value.x);
            joined_swap(COUNTED + 2u * task + 1u, row_value.y);
            memoryBarrierBuffer();
            ends_row = joined_add(row_index, 1u) == parts - 1u;
            if (ends_row) joined_swap(row_index, 0u);
            memoryBarrierBuffer();
        }
        barrier();
        if (!ends_row) return false;
        memoryBarrierBuffer();
        [[dont_unroll]] for (uint i = me; i < parts; i += 256u) {
            uint piece = COUNTED + 2u * (row_index * parts + i);
            board[padded(i)] = uvec2(joined_add(piece, 0u), joined_add(piece + 1u, 0u));
        }
        row_value = fold_board(parts, op);
    }
    return me == 0u;
}
uint fold_row() { return row_index; }
uint fold_result(const uint scale, const uint op, const uint to)
{
    if (op >= COUNT) return op == COUNT ? row_value.x : row_value.y;
    float x = uintBitsToFloat(row_value.x);
    return float_to_bits(op == MEAN ? x * uintBitsToFloat(scale) : x, to);
}

void main()
{
    const uint u = 0u;
    thread_index();
    convert_bits(u, u, u);
    choose(u, u, u, u, u);
    byte_of(u, u);
    half_of(u, u);
    join_bytes(u, u, u, u);
    join_halves(u, u);
    random_at(u, u, u, u);
    chain_four(u);
    joined_add(u, u);
    joined_swap(u, u);
    fold(u, u, u, u);
    fold_row();
    fold_result(u, u, u);
#define X(op, result) real_##op(u, u, u);
    FUNCTIONS_OF_ONE(X)
    TESTS(X)
    X(ABS, )
    X(NEGATIVE, )
    X(SIGN, )
#undef X
#define X(op, result) real_##op(u, u, u, u);
    FUNCTIONS_OF_TWO(X)
    COMPARISONS(X)
#undef X
#define X(op, result) integer_##op(u, u, u);
    INTEGERS_OF_ONE(X)
#undef X
#define X(op, result) integer_##op(u, u, u, u);
    INTEGERS_OF_TWO(X)
#undef X
}
