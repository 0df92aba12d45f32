// The access shapes of element-by-element kernels. Element i of the result, in row-major order, is at
// flat:    operand[i], or operand[0] for those marked scalar; four at a time, eight of two bytes, sixteen of one
// strided: offset + sum of coordinates times strides, up to 4 dimensions in push constants, more in a table; by vectors too, where
//          the last dimension is whole vectors: those marked scalar count elements and stay along it, others count vectors
// each:    as strided, but several neighbours of a row a thread, loaded and stored one by one; those marked WHOLE are flat, by vectors
#ifndef ELEMENTWISE_GLSL
#define ELEMENTWISE_GLSL
#include "common.glsl"
//! enum MODE_: flat walks and strided ones, by elements or vectors; TABLE: strided, by elements; EACH: strided, several a thread
const uint FLAT = 0, FLAT_4 = 1, STRIDES = 2, TABLE = 3, FLAT_8 = 4, STRIDES_4 = 5, STRIDES_8 = 6, FLAT_16 = 7, STRIDES_16 = 8,
    EACH_4 = 9, EACH_8 = 10, EACH_16 = 11;

layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint SCALARS = 0;       // bit k: operand k is one element (flat modes), or one for a vector; more below
layout(constant_id = 3) const uint OP = 0;
layout(constant_id = 4) const uint TO = 10;           // the result's dtype
layout(constant_id = 5) const uint FROM = 10;         // the operands' dtype

//! enum SCALARS_: the bits from which on
const uint WHOLE = 4;                                 // operands are flat, in whole vectors (modes EACH)
const uint SHIFTED = 8;                               // they are flat, and begin within a vector (modes EACH)
const uint NDIM = 12;                                 // the number of dimensions is (modes EACH; else 0: it is `ndim`)
const uint EVEN = 15;                                 // rows are whole vectors (modes EACH)
const uint FOURS = 16;                                // a thread has four rows, which are one in the last dimension but one (modes STRIDES)
const uint STAYS = 17;                                // operands are the same in these four (FOURS)
const uint TURNED = 21;                               // they lie along that dimension, and are counted by fours (FOURS)

const uint DIMS = SCALARS >> NDIM & 7u;

const bool EIGHTS = MODE == FLAT_8 || MODE == STRIDES_8 || MODE == EACH_8;
const bool SIXTEENS = MODE == FLAT_16 || MODE == STRIDES_16 || MODE == EACH_16, EACH = MODE >= EACH_4;
const bool BY_VECTORS = MODE == STRIDES_4 || MODE == STRIDES_8 || MODE == STRIDES_16, STRIDED = MODE == STRIDES || BY_VECTORS;
const uint FOUR_ROWS = SCALARS >> FOURS & 1u;
const uint LANES = SIXTEENS ? 16u : EIGHTS ? 8u : MODE == FLAT_4 || MODE == STRIDES_4 || MODE == EACH_4 ? 4u : 1u;   // elements a thread

// Kernels that say more have a block of their own, which begins as this one: WALK its name, WALKED arrays, and
// BESIDES, what follows; they have no conversions by the device.
#ifndef WALK
#define WALK elementwise_push
#define WALKED 4
#define BESIDES
#define HALF_ID 6                                      // behind common.glsl, whose own conversions keep all of NaN's bits for copies
#include "half.glsl"
#else
const uint HALF = 0;
#endif
layout(push_constant) uniform WALK {
    uint n, ndim;
    uint shape[4];
    uint offset[4];                                    // of the result and the operands
    uint divisor[3], divisor_shifts;                   // of dimensions but the first
    uint stride[WALKED][4];                              // [operand][dimension]
    BESIDES
};

// i / shape[d] for d > 0, without a division (Granlund, Montgomery)
uint quotient_of(const uint i, const uint d)
{
    uint high, low, shifts = divisor_shifts >> (8u * d - 8u);
    umulExtended(divisor[d - 1u], i, high, low);
    return (high + ((i - high) >> (shifts & 1u))) >> ((shifts >> 1) & 31u);
}
#if WALKED == 4
#define STEPS(d) uvec4(stride[0][d], stride[1][d], stride[2][d], stride[3][d])
#else
#define STEPS(d) uvec4(stride[0][d], stride[1][d], stride[2][d], 0u)
#endif
// One element index for each of the result and three operands.
uvec4 locate(uint i)
{
    uvec4 at = uvec4(offset[0], offset[1], offset[2], offset[3]);
    [[unroll]] for (uint k = 0u; k < 3u; k++) {        // upwards: not all drivers unroll what counts down
        uint d = 3u - k;
        if (DIMS != 0u ? d < DIMS : d < ndim) {
            uint q = quotient_of(i, d), c = i - q * shape[d];
            at += c * STEPS(d);
            i = q;
        }
    }
    return at + i * STEPS(0u);
}
uint flat_at(const uint i, const uint operand) { return offset[operand] + ((SCALARS >> operand & 1u) != 0u ? 0u : i); }

// Where a thread's neighbours of its first element are: a step from one to the next, and a jump at the end of a row, of which
// there is one at most, because no row is shorter than LANES. The jump leads on to the next row of all dimensions that end, too.
uvec4 step_each, jump_each;
uint left_each;                                        // elements before the jump
uvec4 locate_each(uint i)
{
    uvec4 at = uvec4(offset[0], offset[1], offset[2], offset[3]);
    bool ends = true;
    step_each = STEPS(DIMS - 1u);
    jump_each = uvec4(0u);
    left_each = ~0u;
    [[unroll]] for (uint k = 0u; k < 3u; k++) {
        uint d = 3u - k;
        if (d < DIMS) {
            uint q = quotient_of(i, d), c = i - q * shape[d];
            if ((SCALARS >> EVEN & 1u) != 0u) ends = false;
            else if (d == DIMS - 1u) left_each = shape[d] - c;
            else ends = ends && c == shape[d] - 1u;
            if (ends) jump_each += STEPS(d - 1u) - shape[d] * STEPS(d);
            at += c * STEPS(d);
            i = q;
        }
    }
    return at + i * STEPS(0u);
}
uint beside(const uint k, const uint operand)
{
    uint at = k * step_each[operand];
    return (SCALARS >> EVEN & 1u) != 0u || k < left_each ? at : at + jump_each[operand];
}
#define LOCATE_TABLE(table) \
    uvec4 locate_table(uint i) { \
        uvec4 at = uvec4(offset[0], offset[1], offset[2], offset[3]); \
        for (int d = int(ndim) - 1; d >= 0; d--) { \
            uint s = table##32[d], q = i / s, c = i - q * s, k = ndim + uint(d); \
            at += c * uvec4(table##32[k], table##32[k + ndim], table##32[k + 2u * ndim], table##32[k + 3u * ndim]); \
            i = q; \
        } \
        return at; } \
    uvec4 places_of(const bool whole, const uint i) { \
        if (EACH) return locate_each(whole ? i * LANES : i); \
        if (STRIDED) return locate(i); \
        return MODE == TABLE ? locate_table(i) : uvec4(flat_at(i, 0u), flat_at(i, 1u), flat_at(i, 2u), flat_at(i, 3u)); }

// A thread's elements, in words: one in each, by eights two or four bytes, by sixteens four. `whole`: not one of the leftover
// elements, which is at `at`.
uint in_word(const uint type) { return SIXTEENS || (EIGHTS && is_small(type)) ? 4u : EIGHTS ? 2u : 1u; }
uint vector_at(const uint i, const uint at, const uint operand) { return BY_VECTORS ? at : offset[operand] / LANES + i; }
uvec4 repeated(const uint raw, const uint type)
{
    return uvec4(low_bits(raw, type) * (in_word(type) == 4u ? 0x1010101u : in_word(type) == 2u ? 0x10001u : 1u));
}
void put_raw(inout uvec4 w, const uint k, const uint raw, const uint type)
{
    if (in_word(type) == 4u) {
        if ((k & 3u) == 0u) w[k >> 2] = raw & 0xffu;
        else w[k >> 2] |= (raw & 0xffu) << (8u * (k & 3u));
    } else if (in_word(type) == 1u) w[k & 3u] = raw;
    else if ((k & 1u) == 0u) w[k >> 1 & 3u] = raw & 0xffffu;
    else w[k >> 1 & 3u] |= raw << 16;
}
uint element(const uvec4 w, const uint k, const uint type)
{
    if (in_word(type) == 4u) return (w[k >> 2] >> (8u * (k & 3u))) & 0xffu;
    return in_word(type) == 1u ? w[k & 3u] : (k & 1u) == 0u ? w[k >> 1 & 3u] & 0xffffu : w[k >> 1 & 3u] >> 16;
}
bool by_elements(const uint operand) { return EACH && (SCALARS >> (WHOLE + operand) & 1u) == 0u; }
// Are they smaller than words, of which they are read, one more than they fill?
bool is_shifted(const uint operand, const uint type) { return EACH && in_word(type) > 1u && (SCALARS >> (SHIFTED + operand) & 1u) != 0u; }
#define VECTORS(name, operand, type) \
    uvec4 fetch_##name(const bool whole, const uint i, uint at) { \
        if (!whole || (SCALARS >> operand & 1u) != 0u) return repeated(load_##name(at, type), type); \
        uvec4 w = uvec4(0u); \
        if (is_shifted(operand, type)) { \
            uint byte = at * (4u / in_word(type)), bits = byte % 4u * 8u, low = name##32[byte / 4u]; \
            for (uint k = 0u; k < LANES / in_word(type); k++) { \
                uint high = name##32[byte / 4u + k + 1u]; \
                w[k & 3u] = (low >> bits) | (high << 1 << (31u - bits)); \
                low = high; \
            } \
            return w; \
        } \
        if (by_elements(operand)) { \
            for (uint k = 0u; k < LANES; k++) put_raw(w, k, load_##name(at + beside(k, operand), type), type); \
            return w; \
        } \
        at = vector_at(i, at, operand); \
        if (EIGHTS && in_word(type) == 4u) return uvec4(name##64[at], 0u, 0u); \
        return in_word(type) > 1u ? name##128[at] : load4_##name(at, type); }
#define ROWS_OF(name, operand, type) \
    void rows_##name(const uint at, out uvec4 w[4]) { \
        uint down = STEPS(DIMS - 2u)[operand] / 4u, across = STEPS(DIMS - 1u)[operand] / LANES; \
        if ((SCALARS >> (TURNED + operand) & 1u) == 0u) { \
            [[unroll]] for (uint r = 0u; r < 4u; r++) \
                if (r == 0u || (SCALARS >> (STAYS + operand) & 1u) == 0u) w[r] = fetch_##name(true, 0u, at + r * down); \
                else w[r] = w[0]; \
            return; \
        } \
        [[unroll]] for (uint r = 0u; r < 4u; r++) w[r] = uvec4(0u); \
        [[unroll]] for (uint k = 0u; k < LANES; k++) { \
            uvec4 x = load4_##name(at + k * across, type); \
            [[unroll]] for (uint r = 0u; r < 4u; r++) put_raw(w[r], k, x[r], type); \
        } }
#define PUT(name, type) \
    void put_##name(const bool whole, const uint i, uint at, const uvec4 v) { \
        if (!whole) { store_##name(at, type, v.x); return; } \
        if (by_elements(0u)) { \
            for (uint k = 0u; k < LANES; k++) store_##name(at + beside(k, 0u), type, element(v, k, type)); \
            return; \
        } \
        at = vector_at(i, at, 0u); \
        if (EIGHTS && in_word(type) == 4u) name##64[at] = v.xy; \
        else if (in_word(type) > 1u) name##128[at] = v; \
        else store4_##name(at, type, v); }
float number(const uvec4 w, const uint k)
{
    if (EIGHTS && FROM == BF16) return uintBitsToFloat((k & 1u) == 0u ? w[k >> 1 & 3u] << 16 : w[k >> 1 & 3u] & 0xffff0000u);
    if (EIGHTS && HALF != 0u && FROM == F16) return unpackHalf2x16(w[k >> 1 & 3u])[k & 1u];
    return bits_to_float(element(w, k, FROM), FROM);
}
void put_element(inout uvec4 w, const uint k, const uint raw) { put_raw(w, k, raw, TO); }
// Eight numbers to 16 bits, with one test for NaN: was there none? Else, and where only bits can do it, nothing is put.
bool put_numbers(out uvec4 w, const float r[8])
{
    w = uvec4(0u);
    const bool packed = HALF != 0u && TO == F16;
    if (!EIGHTS || (!packed && TO != BF16) || is_nan(((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7])))) return false;
    for (uint k = 0u; k < 4u; k++) {
        if (packed) {
            w[k] = packHalf2x16(vec2(r[2u * k], r[2u * k + 1u]));
            continue;
        }
        uint a = floatBitsToUint(r[2u * k]), b = floatBitsToUint(r[2u * k + 1u]);
        a += 0x7fffu + ((a >> 16) & 1u);
        b += 0x7fffu + ((b >> 16) & 1u);
        w[k] = (a >> 16) | (b & 0xffff0000u);
    }
    return true;
}
#endif
