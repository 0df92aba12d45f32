// Rows of numbers, each reduced by LANES threads of a workgroup (a power of two, at most 512).
#ifndef ROWS_GLSL
#define ROWS_GLSL
#include "common.glsl"
#include "eights.glsl"
shared vec4 row_parts[256], row_sums[16];

// The sum of v over the threads of a row, in the same order for each of them. All threads of the workgroup call it.
// Two steps through shared memory cost what shuffles do, and every device has them.
float row_sum(float v)
{
    uint thread = gl_LocalInvocationID.x, first = thread & ~(LANES - 1u);
    vec4 sum = vec4(0.0);
    if (LANES == 1u) return v;
    barrier();
    row_parts[thread / 4u][thread % 4u] = v;
    barrier();
    if (LANES <= 32u) {
        if (LANES == 2u) return row_parts[first / 4u][first % 4u] + row_parts[first / 4u][first % 4u + 1u];
        for (uint i = 0u; i < LANES / 4u; i++) sum += row_parts[first / 4u + i];
        return dot(sum, vec4(1.0));
    }
    if (thread % 16u == 0u) {
        for (uint i = 0u; i < 4u; i++) sum += row_parts[thread / 4u + i];
        row_sums[thread / 64u][thread / 16u % 4u] = dot(sum, vec4(1.0));
        sum = vec4(0.0);
    }
    barrier();
    for (uint i = 0u; i < LANES / 64u; i++) sum += row_sums[first / 64u + i];
    return dot(sum, vec4(1.0));
}

#endif
