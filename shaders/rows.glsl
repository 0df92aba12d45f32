// Rows of numbers, each reduced by LANES threads of a workgroup (a power of two, at most 512).
#ifndef ROWS_GLSL
#define ROWS_GLSL
#include "common.glsl"
#include "eights.glsl"
#include "normed.glsl"
//! enum NORM_: flags of the kernels of norms; LONG: rows of more than NORM_ROW_SHORT elements of 16 bits
const uint MEAN = 1u, WEIGHT = 2u, BIAS = 4u, ADD = 8u, LONG = 16u;

shared vec4 row_parts[256], row_sums[gl_WorkGroupSize.x / 16u + 1u];

float added(const vec4 v) { return (v.x + v.y) + (v.z + v.w); }

// The sum of v over the threads of a row, in the same order for each of them. All threads of the workgroup call it.
// Of more than 64 the upper half is added to the lower half until 64 are left: rows by more threads that have less each
// give the same bits. Two steps through shared memory cost what shuffles do, and every device has them.
float row_sum(const float v)
{
    uint thread = gl_LocalInvocationID.x, first = thread & ~(LANES - 1u), lane = thread - first;
    vec4 sum = vec4(0.0);
    if (LANES == 1u) return v;
    if (LANES <= 32u) barrier();                       // of more all have read the parts where they read the sums
    row_parts[thread / 4u][thread % 4u] = v;
    barrier();
    if (LANES <= 32u) {
        if (LANES == 2u) return row_parts[first / 4u][first % 4u] + row_parts[first / 4u][first % 4u + 1u];
        for (uint i = 0u; i < LANES / 4u; i++) sum += row_parts[first / 4u + i];
        return added(sum);
    }
    if (lane < 16u) {
        vec4 part[8];
        [[unroll]] for (uint i = 0u; i < LANES / 64u; i++) part[i] = row_parts[first / 4u + lane + 16u * i];
        [[unroll]] for (uint d = LANES / 128u; d > 0u; d /= 2u)
            [[unroll]] for (uint i = 0u; i < d; i++) part[i] += part[i + d];
        row_sums[first / 16u + lane / 4u][lane % 4u] = added(part[0]);
    }
    barrier();
    for (uint i = 0u; i < 4u; i++) sum += row_sums[first / 16u + i];
    return added(sum);
}

#endif
