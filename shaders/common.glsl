// What all kernels share: dtypes, typed views of one binding, loads and stores with conversion, the group index.
//
// The host sees what a shader declares, by name, in gen/kernels.h: the block of push constants, NAME_push; constants, numbered
// from 1 without gaps; buffers, whose blocks are called after the binding and a view of it (BUFFER does); and constants that
// follow a line "//! enum PREFIX_: text". tests/tools/kernel-header says more.
// Parameters are const unless they change: glslang passes those by value, and spends a variable, a store and loads on others.
#ifndef COMMON_GLSL
#define COMMON_GLSL
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x_id = 0) in;

//! enum DTYPE_: as mlxvk_dtype has them
const uint BOOL = 0, U8 = 1, U16 = 2, U32 = 3, U64 = 4, I8 = 5, I16 = 6, I32 = 7, I64 = 8, F16 = 9, F32 = 10, BF16 = 12, C64 = 13;

bool is_float(const uint t) { return t == F16 || t == F32 || t == BF16; }
bool is_signed(const uint t) { return t >= I8 && t <= I64; }
bool is_small(const uint t) { return t <= U8 || t == I8; }                  // one byte
bool is_half(const uint t) { return t == U16 || t == I16 || t == F16 || t == BF16; }   // two bytes

// Views of one binding by element size. Only those that a variant uses remain in its pipeline.
#define BUFFER(slot, name) \
    layout(std430, set = 0, binding = slot) buffer name##_bytes { uint8_t name##8[]; }; \
    layout(std430, set = 0, binding = slot) buffer name##_halves { uint16_t name##16[]; }; \
    layout(std430, set = 0, binding = slot) buffer name##_words { uint name##32[]; }; \
    layout(std430, set = 0, binding = slot) buffer name##_pairs { uvec2 name##64[]; }; \
    layout(std430, set = 0, binding = slot) buffer name##_quads { uvec4 name##128[]; };

// What a kernel only reads, and no binding of it writes: loads may be moved, and behind barriers as well.
#define BUFFER_READ(slot, name) \
    layout(std430, set = 0, binding = slot) restrict readonly buffer name##_bytes { uint8_t name##8[]; }; \
    layout(std430, set = 0, binding = slot) restrict readonly buffer name##_halves { uint16_t name##16[]; }; \
    layout(std430, set = 0, binding = slot) restrict readonly buffer name##_words { uint name##32[]; }; \
    layout(std430, set = 0, binding = slot) restrict readonly buffer name##_pairs { uvec2 name##64[]; }; \
    layout(std430, set = 0, binding = slot) restrict readonly buffer name##_quads { uvec4 name##128[]; };

#define INFINITY uintBitsToFloat(0x7f800000u)
#define NOT_A_NUMBER uintBitsToFloat(0x7fc00000u)
bool is_nan(const float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }    // no fast math can fold it
bool is_inf(const float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u; }

float bf16_to_float(const uint bits) { return uintBitsToFloat(bits << 16); }
uint float_to_bf16(const float x)                                            // to nearest even; NaN stays NaN
{
    uint u = floatBitsToUint(x);
    return is_nan(x) ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}
uvec2 bf16_of_four(const vec4 x)                                             // the same, of four with one test for NaN
{
    uvec4 u = floatBitsToUint(x);
    if (is_nan((x.x + x.y) + (x.z + x.w)))
        return uvec2(float_to_bf16(x.x) | (float_to_bf16(x.y) << 16), float_to_bf16(x.z) | (float_to_bf16(x.w) << 16));
    u += 0x7fffu + ((u >> 16) & 1u);
    return uvec2((u.x >> 16) | (u.y & 0xffff0000u), (u.z >> 16) | (u.w & 0xffff0000u));
}
#ifdef HALF_ID                                                              // of a constant that says who converts f16
#include "half.glsl"
#endif
float f16_to_float(const uint bits)                                          // denormals too, whatever the device flushes
{
#ifdef HALF_ID
    if (HALF != 0u) return unpackHalf2x16(bits).x;
#endif
    uint e = (bits >> 10) & 31u, m = bits & 1023u, s = (bits & 0x8000u) << 16;
    if (e == 31u) return uintBitsToFloat(s | 0x7f800000u | (m << 13));
    if (e == 0u) return uintBitsToFloat(s | floatBitsToUint(float(m) * 5.9604644775390625e-8));
    return uintBitsToFloat(s | ((e + 112u) << 23) | (m << 13));
}
uint float_to_f16(const float x)                                             // to nearest even
{
    uint u = floatBitsToUint(x), s = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return s | 0x7e00u;
#ifdef HALF_ID
    if (HALF != 0u) return packHalf2x16(vec2(x, 0.0));
#endif
    if (a >= 0x477ff000u) return s | 0x7c00u;                          // 65520 and above
    if (a < 0x38800000u) return s | uint(roundEven(uintBitsToFloat(a) * 16777216.0));
    return s | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13);
}

// Raw bits of an element, not extended.
uint low_bits(const uint raw, const uint t) { return is_small(t) ? raw & 0xffu : is_half(t) ? raw & 0xffffu : raw; }
uint sign_extend(const uint raw, const uint t)
{
    return t == I8 ? uint(bitfieldExtract(int(raw), 0, 8)) : t == I16 ? uint(bitfieldExtract(int(raw), 0, 16)) : raw;
}
float bits_to_float(const uint raw, const uint t) { return t == F32 ? uintBitsToFloat(raw) : t == BF16 ? bf16_to_float(raw) : f16_to_float(raw); }
uint float_to_bits(const float x, const uint t) { return t == F32 ? floatBitsToUint(x) : t == BF16 ? float_to_bf16(x) : float_to_f16(x); }

// The value of raw bits of dtype t as a float (integers converted), as a 32-bit integer (floats truncated).
float as_float(const uint raw, const uint t)
{
    if (is_float(t)) return bits_to_float(raw, t);
    return is_signed(t) ? float(int(sign_extend(raw, t))) : float(raw);
}
uint float_to_integer(const float x, const uint t)                                 // truncates; out of range saturates in 32 bits
{
    if (t == BOOL) return (floatBitsToUint(x) & 0x7fffffffu) != 0u ? 1u : 0u;
    if (x < 0.0) return uint(x <= -2147483648.0 ? int(0x80000000) : int(x));
    return x >= 4294967296.0 ? 0xffffffffu : is_signed(t) && x >= 2147483648.0 ? 0x7fffffffu : uint(x);
}
uint convert(const uint raw, const uint from, const uint to)
{
    if (from == to) return raw;
    if (is_float(from)) {
        float x = bits_to_float(raw, from);
        return is_float(to) ? float_to_bits(x, to) : float_to_integer(x, to);
    }
    if (is_float(to)) return float_to_bits(as_float(raw, from), to);
    if (to == BOOL) return raw != 0u ? 1u : 0u;
    return sign_extend(raw, from);
}

// Scalar and four-wide access; the four-wide index counts groups of four elements.
#define ACCESS(name) \
    uint load_##name(const uint i, const uint t) { return is_small(t) ? uint(name##8[i]) : is_half(t) ? uint(name##16[i]) : name##32[i]; } \
    void store_##name(const uint i, const uint t, const uint raw) { \
        if (is_small(t)) name##8[i] = uint8_t(raw); else if (is_half(t)) name##16[i] = uint16_t(raw); else name##32[i] = raw; } \
    uvec4 load4_##name(const uint i, const uint t) { \
        if (is_small(t)) { uint w = name##32[i]; return uvec4(w & 255u, (w >> 8) & 255u, (w >> 16) & 255u, w >> 24); } \
        if (is_half(t)) { uvec2 w = name##64[i]; return uvec4(w.x & 0xffffu, w.x >> 16, w.y & 0xffffu, w.y >> 16); } \
        return name##128[i]; } \
    void store4_##name(const uint i, const uint t, const uvec4 v) { \
        if (is_small(t)) name##32[i] = (v.x & 255u) | ((v.y & 255u) << 8) | ((v.z & 255u) << 16) | (v.w << 24); \
        else if (is_half(t)) name##64[i] = uvec2((v.x & 0xffffu) | (v.y << 16), (v.z & 0xffffu) | (v.w << 16)); \
        else name##128[i] = v; } \
    float loadf_##name(const uint i, const uint t) { return bits_to_float(load_##name(i, t), t); } \
    void storef_##name(const uint i, const uint t, const float x) { store_##name(i, t, float_to_bits(x, t)); } \
    vec4 loadf4_##name(const uint i, const uint t) { \
        uvec4 r = load4_##name(i, t); \
        return vec4(bits_to_float(r.x, t), bits_to_float(r.y, t), bits_to_float(r.z, t), bits_to_float(r.w, t)); } \
    void storef4_##name(const uint i, const uint t, const vec4 x) { \
        if (t == BF16) name##64[i] = bf16_of_four(x); \
        else store4_##name(i, t, uvec4(float_to_bits(x.x, t), float_to_bits(x.y, t), float_to_bits(x.z, t), float_to_bits(x.w, t))); }

// dispatch_groups() spreads groups over three dimensions; kernels check this against their count.
uint group_index() { return gl_WorkGroupID.x + gl_NumWorkGroups.x * (gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z); }

#endif
