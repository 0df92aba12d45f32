#version 460
#extension GL_GOOGLE_include_directive : require
// Eight values at a time: scale * code (+ bias) rounded to TX, then to TY; times the tensor's scale where there is one. A thread
// takes some eights, a workgroup's threads apart, whose codes it asks for before it needs the first.
// ROWS: those rows of a matrix that an array of indices says.
#include "quant.glsl"
#ifdef ROWS
#include "position.glsl"
#endif
SOURCE(0, w)
SOURCE(1, s)
SOURCE(2, b)
TARGET(3, y)
layout(constant_id = 5) const bool VECTOR = false;     // the result is aligned to eight elements
#ifdef ROWS
BUFFER(4, index)
ACCESS(index)
layout(push_constant) uniform dequantize_rows_push {
    uint count, group_shift, w_at, s_at, b_at, y_at;   // count: of the result's eights
    uint eights, rows, index_at, index_step;           // eights of a row; rows of the matrix
};
layout(constant_id = 6) const uint FROM = 7;           // the indices' dtype
const bool SCALED = false;
uint source_of(const uint i)
{
    uint at = index_at + i / eights * index_step;
    uvec2 raw = FROM == U64 || FROM == I64 ? index64[at] : uvec2(load_index(at, FROM), 0u);
    return position_of(raw, FROM, rows, rows, false) * eights + i % eights;
}
#define TENSOR_SCALE 1.0
#else
SOURCE(4, g)
layout(push_constant) uniform dequantize_push { uint count, group_shift, w_at, s_at, b_at, y_at, g_at; };     // count: of eights
layout(constant_id = 6) const bool SCALED = false;
layout(constant_id = 7) const uint CLASS = 0;          // in the order of qmv_matrix.comp, whose lanes have so many codes of a group
uint source_of(const uint i) { return i; }
#define TENSOR_SCALE (uintBitsToFloat(g32[g_at]) * (1.0 / 2688.0))
#endif
EIGHT_CODES(eight_codes, w32)

#ifndef ROWS
// Eight i in that order: of each of four classes two codes, of the lower and the upper half of a word.
uvec2 four_pairs(const uint i)
{
    uint eight = i % (CLASS / 2u), at = w_at + i / (CLASS / 2u) * (CLASS * BITS / 8u) + eight * BITS / 16u;
    uvec2 codes = uvec2(0u);
    for (uint bit = 0u; bit < 8u * BITS; bit += 2u * BITS, at += CLASS * BITS / 32u) {
        uint w = w32[at] >> eight * BITS % 16u;
        codes[bit / 32u] |= (w & MASK | (w >> 16 & MASK) << BITS) << bit % 32u;
    }
    return codes;
}
#endif

//! enum DEQUANTIZE_: eights of a thread
const uint EACH = 2;

void put(const uint i, const uvec2 codes, const float scale, const float bias)
{
    uint to = y_at + 8u * i, raw[8];
    float value[8];
    [[unroll]] for (uint k = 0u; k < 8u; k++)
        value[k] = FP ? scale * code_number(code_of(codes, k)) : scale * float(code_of(codes, k)) + bias;
#ifndef ROWS
    if (CLASS != 0u) {
        uint place = chain_place(i % (CLASS / 2u) * BITS % 16u);         // of all eight: they are of one bit of half words
        vec2 f = chain_factors(scale, bias);
        if (place != 8u) f = chain_factors_high(f);
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            value[k] = chain_value(code_of(codes, k) << place, place, CHAIN_MAGIC, f);
            if (TX == BF16) value[k] = uintBitsToFloat(floatBitsToUint(value[k]) & 0xffff0000u);
        }
    }
#endif
    if (VECTOR && TX == BF16 && TY == BF16) {
        y128[to / 8u] = uvec4(bf16_of_four(vec4(value[0], value[1], value[2], value[3])),
                              bf16_of_four(vec4(value[4], value[5], value[6], value[7])));
        return;
    }
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        raw[k] = float_to_bits(value[k], TX);
        if (TX != TY) raw[k] = float_to_bits(bits_to_float(raw[k], TX), TY);
    }
    if (VECTOR && TY != F32)
        y128[to / 8u] = uvec4(raw[0] | raw[1] << 16, raw[2] | raw[3] << 16, raw[4] | raw[5] << 16, raw[6] | raw[7] << 16);
    else if (VECTOR) {
        y128[to / 4u] = uvec4(raw[0], raw[1], raw[2], raw[3]);
        y128[to / 4u + 1u] = uvec4(raw[4], raw[5], raw[6], raw[7]);
    } else
        [[unroll]] for (uint k = 0u; k < 8u; k++) PUT(y, to + k, TY, raw[k]);
}

void main()
{
    uint first = group_index() * gl_WorkGroupSize.x * EACH + gl_LocalInvocationID.x, scale[EACH], bias[EACH];
    uvec2 codes[EACH];
    float all = SCALED ? TENSOR_SCALE : 1.0;
    [[unroll]] for (uint e = 0u; e < EACH; e++) {
        uint i = source_of(min(first + e * gl_WorkGroupSize.x, count - 1u)), block = i >> 2, group = i >> 1 >> group_shift;
#ifndef ROWS
        if (CLASS != 0u) codes[e] = four_pairs(i);
        else
#endif
            codes[e] = eight_codes(w_at + block * BITS, i & 3u);
        scale[e] = RAW(s, s_at + group, TS);
        bias[e] = FP ? 0u : RAW(b, b_at + group, TS);
    }
    [[unroll]] for (uint e = 0u; e < EACH; e++) {
        uint i = first + e * gl_WorkGroupSize.x;
        float by = number(scale[e], TS);
        if (i < count) put(i, codes[e], SCALED ? by * all : by, FP ? 0.0 : number(bias[e], TS));
    }
}
