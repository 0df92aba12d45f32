// Rows of numbers, each reduced by LANES threads of a workgroup (a power of two); groups of eight elements.
#ifndef ROWS_GLSL
#define ROWS_GLSL
#include "common.glsl"
#ifdef SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
shared float row_parts[256];
uint thread_index() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }
#else
shared float row_parts[1024];
uint thread_index() { return gl_LocalInvocationID.x; }
#endif

// The sum of v over the threads of a row, in the same order for each of them. All threads of the workgroup call it.
float row_sum(float v)
{
    uint thread = thread_index(), lane = thread & (LANES - 1u);
    float sum = 0.0;
#ifdef SUBGROUP
    for (uint d = 1u; d < LANES && d < gl_SubgroupSize; d *= 2u) v += subgroupShuffleXor(v, d);
    if (LANES <= gl_SubgroupSize) return v;
    uint parts = LANES / gl_SubgroupSize, first = (thread - lane) / gl_SubgroupSize;
    barrier();
    if (gl_SubgroupInvocationID == 0u) row_parts[gl_SubgroupID] = v;
    barrier();
    for (uint i = 0u; i < parts; i++) sum += row_parts[first + i];
#else
    barrier();
    row_parts[thread] = v;
    for (uint d = LANES / 2u; d > 0u; d /= 2u) {
        barrier();
        if (lane < d) row_parts[thread] += row_parts[thread + d];
    }
    barrier();
    sum = row_parts[thread - lane];
#endif
    return sum;
}

float rounded(float x, uint t) { return bits_to_float(float_to_bits(x, t), t); }
vec4 rounded(vec4 x, uint t) { return vec4(rounded(x.x, t), rounded(x.y, t), rounded(x.z, t), rounded(x.w, t)); }

// Eight elements from index i on, which is a multiple of 16 bytes.
struct eight { vec4 a, b; };
vec4 four_halves(uvec2 w, uint t)
{
    return vec4(bits_to_float(w.x & 0xffffu, t), bits_to_float(w.x >> 16, t), bits_to_float(w.y & 0xffffu, t), bits_to_float(w.y >> 16, t));
}
uvec2 halves_of(vec4 x, uint t)
{
    return uvec2(float_to_bits(x.x, t) | (float_to_bits(x.y, t) << 16), float_to_bits(x.z, t) | (float_to_bits(x.w, t) << 16));
}
#define EIGHTS(name) \
    eight load8_##name(uint i, uint t) { \
        if (t == F32) return eight(uintBitsToFloat(name##128[i / 4u]), uintBitsToFloat(name##128[i / 4u + 1u])); \
        uvec4 w = name##128[i / 8u]; \
        return eight(four_halves(w.xy, t), four_halves(w.zw, t)); } \
    void store8_##name(uint i, uint t, eight x) { \
        if (t == F32) { name##128[i / 4u] = floatBitsToUint(x.a); name##128[i / 4u + 1u] = floatBitsToUint(x.b); } \
        else name##128[i / 8u] = uvec4(halves_of(x.a, t), halves_of(x.b, t)); }

#endif
