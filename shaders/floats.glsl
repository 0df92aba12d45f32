// Bindings of floating numbers alone: fewer views and smaller functions than common.glsl's BUFFER and ACCESS.
#ifndef FLOATS_GLSL
#define FLOATS_GLSL
#include "eights.glsl"

// Of float32.
#define WORDS(slot, name) layout(std430, set = 0, binding = slot) buffer name##_words { uint name##32[]; };

// Of a dtype; QUADS: four at once as well, the index counts groups of four.
#define FLOATS(slot, name) \
    WORDS(slot, name) \
    layout(std430, set = 0, binding = slot) buffer name##_halves { uint16_t name##16[]; }; \
    float loadf_##name(const uint i, const uint t) { return t == F32 ? uintBitsToFloat(name##32[i]) : bits_to_float(uint(name##16[i]), t); } \
    void storef_##name(const uint i, const uint t, const float x) { \
        if (t == F32) name##32[i] = floatBitsToUint(x); else name##16[i] = uint16_t(float_to_bits(x, t)); }
#define QUADS(slot, name) \
    FLOATS(slot, name) \
    layout(std430, set = 0, binding = slot) buffer name##_pairs { uvec2 name##64[]; }; \
    layout(std430, set = 0, binding = slot) buffer name##_quads { uvec4 name##128[]; }; \
    vec4 loadf4_##name(const uint i, const uint t) { return t == F32 ? uintBitsToFloat(name##128[i]) : four_halves(name##64[i], t); } \
    void storef4_##name(const uint i, const uint t, const vec4 x) { \
        uvec4 h = four_bits(x, t); \
        if (t == F32) name##128[i] = floatBitsToUint(x); else name##64[i] = uvec2(h.x | h.y << 16, h.z | h.w << 16); }

#endif
