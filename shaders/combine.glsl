// What a scatter does where something is already: OP on values of dtype TO (constants of the shader that includes this).
// A value is two words: a float's bits, an integer extended to 32 bits, or the words of a 64-bit dtype.
#ifndef COMBINE_GLSL
#define COMBINE_GLSL
#include "common.glsl"
//! enum SCATTER_: what is done
const uint NONE = 0, SUM = 1, PROD = 2, MAX = 3, MIN = 4;

bool is_wide(const uint t) { return t == U64 || t == I64 || t == C64; }

bool value_nan(const uvec2 v)
{
    if (TO == C64) return is_nan(uintBitsToFloat(v.x)) || is_nan(uintBitsToFloat(v.y));
    return is_float(TO) && is_nan(uintBitsToFloat(v.x));
}
bool less(const uvec2 a, const uvec2 b)                            // complex numbers by the real part first
{
    if (TO == C64) {
        vec2 x = uintBitsToFloat(a), y = uintBitsToFloat(b);
        return x.x < y.x || (x.x == y.x && x.y < y.y);
    }
    if (is_float(TO)) return uintBitsToFloat(a.x) < uintBitsToFloat(b.x);
    if (TO == I64) return int(a.y) < int(b.y) || (a.y == b.y && a.x < b.x);
    if (TO == U64) return a.y < b.y || (a.y == b.y && a.x < b.x);
    return is_signed(TO) ? int(a.x) < int(b.x) : a.x < b.x;
}
uvec2 sum(const uvec2 a, const uvec2 b)
{
    if (TO == C64) return floatBitsToUint(uintBitsToFloat(a) + uintBitsToFloat(b));
    if (is_float(TO)) return uvec2(floatBitsToUint(uintBitsToFloat(a.x) + uintBitsToFloat(b.x)), 0u);
    if (TO == BOOL) return a | b;
    uint carry, low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, is_wide(TO) ? a.y + b.y + carry : 0u);
}
uvec2 product(const uvec2 a, const uvec2 b)
{
    if (TO == C64) {
        vec2 x = uintBitsToFloat(a), y = uintBitsToFloat(b);
        return floatBitsToUint(vec2(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x));
    }
    if (is_float(TO)) return uvec2(floatBitsToUint(uintBitsToFloat(a.x) * uintBitsToFloat(b.x)), 0u);
    if (TO == BOOL) return a & b;
    if (!is_wide(TO)) return uvec2(a.x * b.x, 0u);
    uint high, low;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}
// NaN among the updates does not count for max and min, as in MLX's Metal backend; where it is already, it stays.
uvec2 combine(const uvec2 old, const uvec2 v, const bool update)
{
    if (OP == NONE) return v;
    if (OP == SUM) return sum(old, v);
    if (OP == PROD) return product(old, v);
    if (value_nan(v)) return old;
    if (value_nan(old)) return update ? v : old;
    return (OP == MAX ? less(old, v) : less(v, old)) ? v : old;
}

// From and to an element's raw bits.
uvec2 value_of(const uvec2 raw) { return is_float(TO) ? uvec2(floatBitsToUint(bits_to_float(raw.x, TO)), 0u) : uvec2(sign_extend(raw.x, TO), raw.y); }
uvec2 raw_value(const uvec2 v) { return is_float(TO) ? uvec2(float_to_bits(uintBitsToFloat(v.x), TO), 0u) : uvec2(low_bits(v.x, TO), v.y); }
#endif
