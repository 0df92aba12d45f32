// What the attention kernels share: operands, push constants, masks. Scores are in units of log2.
#ifndef ATTENTION_GLSL
#define ATTENTION_GLSL
#include "common.glsl"
#ifndef KEY_COUNT
#define KEY_COUNT key_count
#endif
#ifndef ONE_QUERY
#define ONE_QUERY false                                 // one query, which no array masks: most of decoding, in less code
#endif
//! enum ATTEND_: flags of the attention kernels
const uint CAUSAL = 1, MASK_BOOL = 2, MASK_ADDS = 4, SINKS = 8;
const uint FOLDED = 16;                                 // a block's rows are those of all heads that share keys, not of one
const uint LATE = 32;                                   // instead of a mask: what is added to k_at, v_at, key_count, offset
const uint FREQS = 64;                                  // FRESH: rope's frequencies are in an array

const float LOWEST = -1e30, LOG2E = 1.44269504088896341;

// Numbers of the operands' dtype; the device's conversion may flush float16 denormals, which attention can bear.
float number(const uint bits) { return DTYPE == BF16 ? uintBitsToFloat(bits << 16) : unpackHalf2x16(bits).x; }
vec2 two_numbers(const uint w)
{
    return DTYPE == BF16 ? vec2(uintBitsToFloat(w << 16), uintBitsToFloat(w & 0xffff0000u)) : unpackHalf2x16(w);
}
// PASSED: what linked steps give each other, see links.glsl.
#ifdef FRESH
#define PASSED coherent
#else
#define PASSED
#endif
#define BUFFER_OF(qualifier, slot, name) \
    layout(std430, set = 0, binding = slot) qualifier buffer name##_halves { uint16_t name##16[]; }; \
    layout(std430, set = 0, binding = slot) qualifier buffer name##_words { uint name##32[]; }; \
    layout(std430, set = 0, binding = slot) qualifier buffer name##_pairs { uvec2 name##64[]; }; \
    layout(std430, set = 0, binding = slot) qualifier buffer name##_quads { uvec4 name##128[]; };
#define NUMBERS(slot, name) BUFFER(slot, name) READ_NUMBERS(name)
#define NUMBERS_OF(qualifier, slot, name) BUFFER_OF(qualifier, slot, name) READ_NUMBERS(name)
#define READ_NUMBERS(name) \
    float number_##name(const uint i) { return DTYPE == F32 ? uintBitsToFloat(name##32[i]) : number(uint(name##16[i])); } \
    void eight_##name(const uint i, out vec4 a, out vec4 b) { \
        if (DTYPE == F32) { a = uintBitsToFloat(name##128[i / 4u]); b = uintBitsToFloat(name##128[i / 4u + 1u]); } \
        else { \
            uvec4 w = name##128[i / 8u]; \
            a = vec4(two_numbers(w.x), two_numbers(w.y)); \
            b = vec4(two_numbers(w.z), two_numbers(w.w)); \
        } \
    }
BUFFER_OF(PASSED, 0, o)
NUMBERS_OF(PASSED, 1, q)
NUMBERS(2, k)
NUMBERS(3, v)
NUMBERS(4, mask)
// One row of a block that begins at `head`: where its operands are, and the keys it attends to.
struct row_place { uint q, o, mask, head, keys; };
#ifdef FRESH
#include "attention_fresh.glsl"
#else
NUMBERS(5, sinks)

layout(push_constant) uniform attention_push {
    uint o_at, q_at, k_at, v_at, mask_at, sinks_at;
    uint o_stride[2];                                   // batch, position; heads lie side by side
    uint q_stride[3], k_stride[3], v_stride[3];         // batch, head, position
    uint mask_stride[4];                                // batch, head, query, key
    uint batches, query_heads, query_count, key_count, splits, split_keys;
    uint key_width, value_width, flags;
    uint group_size;                                    // query heads of one key head
    float scale;                                        // times log2(e)
};
bool has(const uint flag) { return (flags & flag) != 0u; }
uint block_heads() { return has(FOLDED) ? group_size : 1u; }
float sink_of(const uint head) { return number_sinks(sinks_at + head) * LOG2E; }
uint k_row_of(const uint batch, const uint head) { return k_at + batch * k_stride[0] + head * k_stride[1]; }
uint v_row_of(const uint batch, const uint head) { return v_at + batch * v_stride[0] + head * v_stride[1]; }
#define K_STEP k_stride[2]
#define V_STEP v_stride[2]

row_place place_of(const uint batch, uint head, const uint n)
{
    row_place p;
    uint h = ONE_QUERY ? n : n / query_count, i = ONE_QUERY ? 0u : n - h * query_count;
    p.head = head + h;
    p.q = q_at + batch * q_stride[0] + p.head * q_stride[1] + i * q_stride[2];
    p.o = o_at + batch * o_stride[0] + p.head * value_width + i * o_stride[1];
    p.mask = mask_at + batch * mask_stride[0] + p.head * mask_stride[1] + i * mask_stride[2];
    p.keys = h >= block_heads() ? 0u                    // bottom-right aligned
           : !ONE_QUERY && has(CAUSAL) ? uint(clamp(int(i + 1u + KEY_COUNT) - int(query_count), 0, int(KEY_COUNT))) : KEY_COUNT;
    return p;
}

// The first key that no row from `first` to `last` attends to.
uint key_end(const uint first, const uint last)
{
    if (ONE_QUERY || !has(CAUSAL)) return KEY_COUNT;
    uint most = first / query_count == last / query_count ? last % query_count : query_count - 1u;
    return uint(clamp(int(most + 1u + KEY_COUNT) - int(query_count), 0, int(KEY_COUNT)));
}

float masked(float score, const row_place p, const uint key)
{
    if (key >= p.keys) return LOWEST;
    if (!ONE_QUERY && has(MASK_ADDS)) score += number_mask(p.mask + key * mask_stride[3]) * LOG2E;
    else if (!ONE_QUERY && has(MASK_BOOL) && uint(mask8[p.mask + key * mask_stride[3]]) == 0u) return LOWEST;
    return score < LOWEST ? LOWEST : score;              // NaN stays
}
#endif
void store_result(const uint i, const float x)
{
    if (DTYPE == F32) { o32[i] = floatBitsToUint(x); return; }
    uint raw = float_to_bits(x, DTYPE);
#ifdef TOLD
    if ((link & TELLS_Y) != 0u) counted[told_at(value_width, i - o_at)] = raw | (value_width & 0xffff0000u);
#endif
    o16[i] = uint16_t(raw);
}
#endif
