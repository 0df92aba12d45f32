#version 460
#extension GL_GOOGLE_include_directive : require
// Random bits and the distributions made of them. One thread makes two words, half the stream apart, or fours of such pairs.
#include "common.glsl"
#include "math.glsl"
layout(constant_id = 1) const uint OP = 0;
layout(constant_id = 2) const uint TO = 3;
layout(constant_id = 3) const uint FOURS = 0;          // a thread's fours of pairs: words, all of the stream in the binding; 0: one pair
layout(constant_id = 4) const bool PRODUCTS = false;   // sums as products with 1 and sums, which run beside shifts and not behind them
BUFFER(0, dst)
BUFFER(1, key)
ACCESS(dst)

//! enum RANDOM_: kinds
const uint BITS = 0, UNIFORM = 1, NORMAL = 2, GUMBEL = 3;

layout(push_constant) uniform random_push {
    uint words, first, count;                          // of the stream; those that the binding holds
    uint elements;                                     // in the binding
    uint offset, key[5];                               // see KEY_
    float low, high;                                   // NORMAL: loc and scale
    uint one;                                          // which the compiler must not know
};
uint factor = 1u;                                      // one for PRODUCTS; chosen once, not at each of a hundred sums
#define SUM(a, b) ((a) * factor + (b))
#include "threefry.glsl"

float rounded(const float x) { return bits_to_float(float_to_bits(x, TO), TO); }

void write_bits(const uint w, const uint bits)
{
    uint size = TO == U8 ? 4u : TO == U16 ? 2u : 1u, at = w * size, left = elements - at;
    if (size == 1u || ((offset & (size - 1u)) == 0u && left >= size)) dst32[offset / size + w] = bits;
    else
        for (uint k = 0; k < min(size, left); k++) store_dst(offset + at + k, TO, bits >> (k * (32u / size)));
}

float number_of(const uint bits)
{
    if (OP == UNIFORM) {
        precise float range = rounded(rounded(high) - rounded(low)), x = rounded(range * rounded(unit_float(bits, TO))) + rounded(low);
        return x;
    }
    if (OP == GUMBEL) return -log_of(-rounded(log_of(rounded(unit_float(bits, TO)))));
    precise float u = unit_float(bits, F32) * 2.0 + -0.999999940395355224609375;
    float z = erfinv(u);
    if (TO == C64) return z;
    precise float x = rounded(rounded(z) * rounded(rounded(1.41421356237309504880) * rounded(high))), y = x + rounded(low);
    return y;
}
void write_float(const uint w, const uint bits)
{
    float z = number_of(bits);
    if (TO == C64) {                                   // normal, as pairs of float32; loc is real
        precise float x = z * high, y = (w & 1u) == 0u ? x + low : x;
        dst32[offset + w] = floatBitsToUint(y);
    } else storef_dst(offset + w, TO, z);
}

void emit(uint w, const uint bits)
{
    w -= first;
    if (w >= count) return;
    if (OP == BITS) write_bits(w, bits);
    else write_float(w, bits);
}

void write_four(const uint w, const uvec4 bits)
{
    if (OP == BITS) dst128[(offset + w) / 4u] = bits;
    else {
        vec4 x;
        [[unroll]] for (uint k = 0u; k < 4u; k++) x[k] = number_of(bits[k]);
        storef4_dst((offset + w) / 4u, TO, x);
    }
}
void write_fours(const uvec2 k, const uint half_up)
{
    uint i = (group_index() * gl_WorkGroupSize.x * FOURS + gl_LocalInvocationID.x) * 4u;
    [[unroll]] for (uint f = 0u; f < FOURS; f++, i += gl_WorkGroupSize.x * 4u) {
        if (i >= half_up) return;
        uvec4 half_of[2];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uvec2 pair = threefry(k, uvec2(i + j, i + j + half_up));
            half_of[0][j] = pair.x;
            half_of[1][j] = pair.y;
        }
        [[unroll]] for (uint h = 0u; h < 2u; h++) write_four(i + h * half_up, half_of[h]);
    }
}

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, half_up = words / 2u + (words & 1u);
    if (PRODUCTS) factor = one;
    uvec2 k = KEY;
    if (FOURS > 0u) { write_fours(k, half_up); return; }
    if (i >= half_up) return;
    uvec2 bits = random_pair(k, i, words);
    [[unroll]] for (uint h = 0u; h < (i < words / 2u ? 2u : 1u); h++) emit(i + h * half_up, bits[h]);
}
