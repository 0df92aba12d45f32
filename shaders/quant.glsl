// What kernels over quantized weights share. Codes of BITS bits lie in a little-endian bit stream of 32-bit words along
// a row; 32 codes are a block of BITS words, and a group is a half, 1, 2 or 4 blocks. Codes are integers, and a value is
// scale * code + bias; or they are small floats with a scale of one byte and no bias (FP).
#ifndef QUANT_GLSL
#define QUANT_GLSL
#include "fp8.glsl"
layout(constant_id = 1) const uint BITS = 4;
layout(constant_id = 2) const uint TX = 12;            // dtypes: of x (or of what is quantized), of scales and biases,
layout(constant_id = 3) const uint TS = 12;            // of the result
layout(constant_id = 4) const uint TY = 12;
//! enum QUANT_: codes of a block; TS where codes are small floats; what can be read or written 16 bytes at a time
const uint BLOCK = 32;
const uint E8M0 = 32, E4M3 = 33;                       // powers of two; groups of 16 codes
const uint EVEN_X = 1, EVEN_W = 2, EVEN_Y = 4;         // W of 2 and 6 bits: 8 bytes

const bool FP = TS >= E8M0;

#if defined(GATHER) || defined(GROUPED)
layout(push_constant) uniform quant_gather_push {                   // of matrices of x and weights that index arrays choose
    uint m, k, group_shift, rounds;
    uint x_at, x_row, x_batch, w_batch, s_batch, y_batch, r_at;
    uint rows[1], w_at[1], s_at[1], b_at[1], y_at[1], y_row[1];
    uint first_entry, every, lhs_at, lhs_last, rhs_at, rhs_last, tiles_at, order_at;   // every: entries a matrix of x, 0: lhs
    uint first_weight, weights;                        // those that are bound; entries of others are left alone
};
#define X_MATRIX(entry) min(every != 0u ? (entry) / every : lhs32[lhs_at + (entry)], lhs_last)
#define W_MATRIX(entry) min(rhs32[rhs_at + (entry)], rhs_last) - first_weight
#elif defined(PRODUCT)
layout(push_constant) uniform quant_push {                   // of up to three matrices with the same x
    uint m, k, group_shift, rounds;                    // a group is 16 << group_shift codes
    uint x_at, x_row, x_batch, w_batch, s_batch, y_batch, r_at;
    uint rows[3], w_at[3], s_at[3], b_at[3], y_at[3], y_row[3];
    uint weight_at;                                    // of a norm of x, see qmv_held.comp
    float eps;
    uint link;                                         // see links.glsl
};
#endif

const uint MASK = (1u << BITS) - 1u;

// Readable views of one binding; `with`: how else they are qualified.
#define SOURCE_OF(with, slot, name) \
    layout(std430, set = 0, binding = slot) with readonly buffer name##_bytes { uint8_t name##8[]; }; \
    layout(std430, set = 0, binding = slot) with readonly buffer name##_halves { uint16_t name##16[]; }; \
    layout(std430, set = 0, binding = slot) with readonly buffer name##_words { uint name##32[]; }; \
    layout(std430, set = 0, binding = slot) with readonly buffer name##_pairs { uvec2 name##64[]; }; \
    layout(std430, set = 0, binding = slot) with readonly buffer name##_quads { uvec4 name##128[]; };
#define TARGET_OF(with, slot, name) \
    layout(std430, set = 0, binding = slot) with buffer name##_halves { uint16_t name##16[]; }; \
    layout(std430, set = 0, binding = slot) with buffer name##_words { uint name##32[]; }; \
    layout(std430, set = 0, binding = slot) with buffer name##_pairs { uvec2 name##64[]; }; \
    layout(std430, set = 0, binding = slot) with buffer name##_quads { uvec4 name##128[]; };
#define SOURCE(slot, name) SOURCE_OF(restrict, slot, name)
#define TARGET(slot, name) TARGET_OF(restrict, slot, name)
#define RAW(name, i, t) ((t) == F32 ? name##32[i] : (t) >= E8M0 ? uint(name##8[i]) : uint(name##16[i]))
#define PUT(name, i, t, raw) { if ((t) == F32) name##32[i] = raw; else name##16[i] = uint16_t(raw); }

float number(const uint raw, const uint t)
{
    if (t == E8M0) return uintBitsToFloat(raw == 0u ? 0x400000u : raw << 23);
    return t == F32 ? uintBitsToFloat(raw) : t == BF16 ? bf16_to_float(raw) : t == E4M3 ? e4m3(raw) : unpackHalf2x16(raw).x;
}
float code_number(const uint c) { return !FP ? float(c) : BITS == 4u ? e2m1(c) : e4m3(c); }
vec2 two_numbers(const uint raw, const uint t)                     // of one word with two halves
{
    return t == BF16 ? vec2(uintBitsToFloat(raw << 16), uintBitsToFloat(raw & 0xffff0000u)) : unpackHalf2x16(raw);
}
// Also right where a division is a product with a reciprocal: one step of Newton's.
float quotient(const float a, const float b)
{
    float q = a / b, r = fma(-q, b, a);
    return is_inf(q) || is_nan(q) || is_nan(r) || is_inf(r) ? q : q + r / b;
}

// Values that meet x in chains, see qmv_matrix.comp. A code is moved within its word to one of two places, so that few words make
// them all, and is there the mantissa of 256 and a little more, which needs no conversion and which the bias makes up for. Of
// bfloat16 the upper half is taken as it is, which is less code than rounding: factors are larger by what that takes away on
// average, half of the last bit. That is less than a bit for all, so that what bfloat16 holds stays what it is. What is not finite
// gives infinity, for what is no number would not outlast that.
const uint CHAIN_MAGIC = 0x43800000u;
const float CHAIN_MORE = TX == BF16 ? 1.0027 : 1.0;
uint chain_place(const uint bit) { return 8u + (bit & 4u); }            // of the code that begins at a word's bit
// For codes at place 8; for those at place 12.
vec2 chain_factors(const float scale, const float bias)
{
    float s = scale * (128.0 * CHAIN_MORE), b = fma(-256.0, s, bias * CHAIN_MORE);
    return is_nan(b) || is_inf(b) ? vec2(0.0, uintBitsToFloat(0x7f800000u)) : vec2(s, b);
}
vec2 chain_factors_high(const vec2 low) { return vec2(0.0625 * low.x, fma(240.0, low.x, low.y)); }
float chain_value(const uint moved, const uint place, const uint magic, const vec2 factors)
{
    return fma(uintBitsToFloat(moved & MASK << place | magic), factors.x, factors.y);
}
float rounded(const float x, const uint t) { return t == F32 ? x : number(float_to_bits(x, t), t); }

// Codes of 2, 4 and 8 bits as floats without a conversion: their byte is moved to bits 15 to 22, the mantissa's upper ones,
// which gives packed_offset(c) + code for code c of a byte.
const bool WHOLE = BITS == 2u || BITS == 4u || BITS == 8u, PACKED = WHOLE && !FP;   // WHOLE: no code lies in two words
const uint CLASSES = PACKED ? 8u / BITS : 1u;          // codes a byte
float packed_offset(const uint c) { return float(1u << (8u - c * BITS)); }
float packed_code(uint w, const uint bit)
{
    uint inner = bit & 7u, byte = bit >> 3;
    w = byte == 0u ? w << 15 : byte == 1u ? w << 7 : byte == 2u ? w >> 1 : w >> 9;
    return uintBitsToFloat(w & (MASK << (15u + inner)) | (135u - inner) << 23);
}

// Code i of the eight codes in the low 8 * BITS bits of v.
uint code_of(const uvec2 v, const uint i)
{
    uint bit = i * BITS;
    if (bit >= 32u) return v.y >> (bit - 32u) & MASK;
    return (bit + BITS <= 32u ? v.x >> bit : v.x >> bit | v.y << (32u - bit)) & MASK;
}
// The eight codes of quarter c of the block whose first word is w[base], for code_of.
#define EIGHT_CODES(name, w) \
    uvec2 name(const uint base, const uint c) \
    { \
        uint first = BITS * c >> 2, shift = 8u * (BITS * c & 3u); \
        uvec3 s = uvec3(w[base + first], 0u, 0u); \
        if (BITS > 2u && BITS != 4u) s.y = w[base + min(first + 1u, BITS - 1u)]; \
        if (BITS > 4u && BITS != 8u) s.z = w[base + min(first + 2u, BITS - 1u)]; \
        if (shift != 0u) s.xy = s.xy >> shift | s.yz << (32u - shift); \
        return s.xy; \
    }
#endif
