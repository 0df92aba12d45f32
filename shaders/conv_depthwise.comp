#version 460
#extension GL_GOOGLE_include_directive : require
// Convolutions of one channel a group: a thread computes RUN neighbouring positions of the last axis, four channels of each.
// Here N is the number of channels.
#define CONV
#include "matmul.glsl"
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
ACCESS(d)
OPERAND(a)
OPERAND(b)
layout(constant_id = 3) const uint RUN = 4;
layout(constant_id = 4) const uint VECTOR = 0;        // bits: a, the result can be accessed by fours

vec4 load_a(const uint at, const uint valid)
{
    if ((VECTOR & 1u) != 0u) return get4_a(at);
    return vec4(get_a(at), valid > 1u ? get_a(at + 1u) : 0.0, valid > 2u ? get_a(at + 2u) : 0.0, valid > 3u ? get_a(at + 3u) : 0.0);
}

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, fours = (N + 3u) / 4u, runs = (out_size[2] + RUN - 1u) / RUN;
    uint c = i % fours * 4u, valid = min(N - c, 4u), run = i / fours, first = run % runs * RUN, line = run / runs;
    if (line * out_size[2] >= M) return;
    Row row = row_at(offset_a, line * out_size[2] + first);
    int step = int(steps[2] & 0xffffu);
    vec4 sum[RUN];
    [[unroll]] for (uint r = 0; r < RUN; r++) sum[r] = vec4(0.0);
    for (uint x = 0u; x < taps[0]; x++)
        for (uint y = 0u; y < taps[1]; y++) {
            uvec2 q = uvec2(row.from.xy + ivec2(x * (steps[0] >> 16), y * (steps[1] >> 16)));
            if (q.x >= in_size[0] || q.y >= in_size[1]) continue;
            for (uint z = 0u; z < taps[2]; z++) {
                Reach e = reach(Tap(uvec3(x, y, z), c));
                uint from = offset_b + c * b_row + e.b - c;
                vec4 w = vec4(get_b(from), valid > 1u ? get_b(from + b_row) : 0.0, valid > 2u ? get_b(from + 2u * b_row) : 0.0,
                              valid > 3u ? get_b(from + 3u * b_row) : 0.0);
                [[unroll]] for (uint r = 0; r < RUN; r++)
                    if (uint(row.from.z + e.by.z + int(r) * step) < in_size[2])
                        sum[r] = fma(load_a(row.at + e.a + r * uint(step) * channels, valid), w, sum[r]);
            }
        }
    for (uint r = 0; r < RUN && first + r < out_size[2]; r++) {
        uint to = out_at(offset_out, line * out_size[2] + first + r) + c;
        if ((VECTOR & 2u) != 0u) storef4_d(to / 4u, TYPE, sum[r]);
        else for (uint j = 0u; j < valid; j++) storef_d(to + j, TYPE, sum[r][j]);
    }
}
