#version 460
#extension GL_GOOGLE_include_directive : require
// Whole rows in shared memory, LENGTH elements a workgroup.
#include "hadamard.glsl"
layout(constant_id = 5) const uint LENGTH = 2048;      // a multiple of M * 2^K
layout(constant_id = 6) const bool VECTOR = false;     // operand and result can be accessed by fours
layout(push_constant) uniform hadamard_push { uint count, dst_at, src_at; float scale; };       // elements
shared float data[LENGTH + LENGTH / 32];

uint place(const uint i) { return i + (i >> 5); }            // no two lanes of a step meet in a bank

// `bits` bits of the index, from bit `done` on.
void step_over(const uint done, const uint bits)
{
    barrier();
    for (uint u = gl_LocalInvocationIndex; u < LENGTH >> bits; u += gl_WorkGroupSize.x) {
        uint base = (u >> done << done + bits) + (u & (1u << done) - 1u);
        float v[16];
        [[unroll]] for (uint j = 0u; j < 16u; j++) if (j < 1u << bits) v[j] = data[place(base + (j << done))];
        butterflies(v, bits);
        [[unroll]] for (uint j = 0u; j < 16u; j++) if (j < 1u << bits) data[place(base + (j << done))] = v[j];
    }
}

void main()
{
    uint me = gl_LocalInvocationIndex, all = gl_WorkGroupSize.x, first = group_index() * LENGTH;
    if (first >= count) return;
    uint here = min(LENGTH, count - first);
    if (VECTOR) {
        for (uint i = 4u * me; i < LENGTH; i += 4u * all) {
            vec4 v = vec4(0.0);
            if (i + 4u <= here) v = loadf4_src((src_at + first + i) / 4u, FROM);
            else [[unroll]] for (uint e = 0u; e < 4u; e++) if (i + e < here) v[e] = loadf_src(src_at + first + i + e, FROM);
            [[unroll]] for (uint e = 0u; e < 4u; e++) data[place(i + e)] = v[e];
        }
    } else for (uint i = me; i < LENGTH; i += all) data[place(i)] = i < here ? loadf_src(src_at + first + i, FROM) : 0.0;
    for (uint done = 0u; done + 4u <= K; done += 4u) step_over(done, 4u);
    if (K % 4u != 0u) step_over(K / 4u * 4u, K % 4u);
    if (M > 1u) {
        barrier();
        for (uint u = me; u < LENGTH / M; u += all) {
            uint base = (u >> K) * (M << K) + (u & (1u << K) - 1u);
            float v[28];
            [[unroll]] for (uint j = 0u; j < 28u; j++) if (j < M) v[j] = data[place(base + (j << K))];
            for (uint i = 0u; i < M; i++) data[place(base + (i << K))] = signed_sum(i, v);
        }
    }
    barrier();
    if (VECTOR) {
        for (uint i = 4u * me; i < here; i += 4u * all) {
            vec4 v;
            [[unroll]] for (uint e = 0u; e < 4u; e++) v[e] = data[place(i + e)] * scale;
            if (i + 4u <= here) storef4_dst((dst_at + first + i) / 4u, TO, v);
            else [[unroll]] for (uint e = 0u; e < 4u; e++) if (i + e < here) storef_dst(dst_at + first + i + e, TO, v[e]);
        }
    } else for (uint i = me; i < here; i += all) storef_dst(dst_at + first + i, TO, data[place(i)] * scale);
}
