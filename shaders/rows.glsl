// Rows of numbers, each reduced by LANES threads of a workgroup (a power of two).
#ifndef ROWS_GLSL
#define ROWS_GLSL
#include "common.glsl"
#include "eights.glsl"
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

#endif
