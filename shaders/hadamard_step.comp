#version 460
#extension GL_GOOGLE_include_directive : require
// One step of rows too long for shared memory: over K bits, or over the M of a row, of elements `stride` apart. In place.
#include "hadamard.glsl"
layout(push_constant) uniform hadamard_step_push { uint count, dst_at, src_at; float scale; uint stride; };      // count: of threads

void main()
{
    const uint size = M > 1u ? M : 1u << K;
    uint u = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (u >= count) return;
    uint base = u / stride * stride * size + u % stride;
    if (M > 1u) {
        float v[28];
        [[unroll]] for (uint j = 0u; j < 28u; j++) if (j < M) v[j] = loadf_src(src_at + base + j * stride, FROM);
        for (uint i = 0u; i < M; i++) storef_dst(dst_at + base + i * stride, TO, signed_sum(i, v) * scale);
    } else {
        float v[16];
        [[unroll]] for (uint j = 0u; j < 16u; j++) if (j < 1u << K) v[j] = loadf_src(src_at + base + j * stride, FROM);
        butterflies(v, K);
        [[unroll]] for (uint j = 0u; j < 16u; j++) if (j < 1u << K) storef_dst(dst_at + base + j * stride, TO, v[j] * scale);
    }
}
