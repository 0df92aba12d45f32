#version 460
#extension GL_GOOGLE_include_directive : require
// Adds up the parts of attention_decode: one workgroup a row; LANES threads each have four features, others have other parts.
layout(constant_id = 1) const uint DTYPE = 10;
layout(constant_id = 2) const uint LANES = 32;         // at least a quarter of the values' width
#include "attention.glsl"
const uint MOST = 256u;                                 // parts
shared vec2 stats[MOST];                               // largest score, then its factor; sum
shared vec4 sums[gl_WorkGroupSize.x];

void main()
{
    uint thread = gl_LocalInvocationID.x, row = group_index(), lane = thread % LANES, dv = value_width();
    uint rows = batches * query_heads * query_count;
    if (row >= rows) return;
    uint head = row / query_count % query_heads, batch = row / query_count / query_heads;
    row_place place = place_of(batch, head, row % query_count);
    uint from = q_at + rows * splits * dv + 2u * row * splits, at = q_at + row * splits * dv;
    float best = has(SINKS) ? sink_of(head) : LOWEST, sum = 0.0;
    for (uint s = thread; s < splits; s += gl_WorkGroupSize.x)
        stats[s] = vec2(uintBitsToFloat(q32[from + 2u * s]), uintBitsToFloat(q32[from + 2u * s + 1u]));
    barrier();
    for (uint s = 0u; s < splits; s++) best = max(best, stats[s].x);
    if (has(SINKS)) sum = exp2(sink_of(head) - best);
    for (uint s = 0u; s < splits; s++) sum += stats[s].y * exp2(stats[s].x - best);
    vec4 x = vec4(0.0);
    if (4u * lane < dv)
        for (uint s = thread / LANES; s < splits; s += gl_WorkGroupSize.x / LANES)
            x += exp2(stats[s].x - best) * uintBitsToFloat(q128[(at + s * dv) / 4u + lane]);
    sums[thread] = x;
    barrier();
    if (thread >= LANES || 4u * lane >= dv) return;
    for (uint s = thread + LANES; s < gl_WorkGroupSize.x; s += LANES) x += sums[s];
    x *= sum == 0.0 ? 0.0 : 1.0 / sum;
    for (uint i = 0u; i < 4u; i++)
        if (4u * lane + i < dv) store_result(place.o + 4u * lane + i, x[i]);
}
