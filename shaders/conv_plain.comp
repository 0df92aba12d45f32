#version 460
#extension GL_GOOGLE_include_directive : require
// Convolutions of any kind, an element of the result a thread: what is too small for tiles. Here `part` counts groups.
#define CONV
#include "matmul.glsl"
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
ACCESS(d)
OPERAND(a)
OPERAND(b)
layout(constant_id = 3) const uint VECTOR = 0;        // 3: a and b can be read by fours

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint n = i % N, g = i / N % part, m = i / N / part;
    if (m >= M) return;
    Place p = place(g);
    Row row = row_at(p.a, m);
    float sum = 0.0;
    for (uint x = 0u; x < taps[0]; x++)
        for (uint y = 0u; y < taps[1]; y++)
            for (uint z = 0u; z < taps[2]; z++) {
                Reach r = reach(Tap(uvec3(x, y, z), 0u));
                uint at = row.at + r.a, from = p.b + n * b_row + r.b, c = 0u;
                if (!inside(row, r)) continue;
                if (VECTOR == 3u) for (; c < C; c += 4u) {
                    vec4 u = get4_a(at + c), v = get4_b(from + c);
                    sum = fma(u.x, v.x, fma(u.y, v.y, fma(u.z, v.z, fma(u.w, v.w, sum))));
                }
                else for (; c < C; c++) sum = fma(get_a(at + c), get_b(from + c), sum);
            }
    storef_d(out_at(p.d, m) + n, TYPE, sum);
}
