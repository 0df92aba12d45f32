#version 460
#extension GL_GOOGLE_include_directive : require
// Rows of the first matrix of a convolution, written out: a thread copies 16 bytes of channels under each tap of a position.
// Here `part` is the first row and N counts rows.
#define CONV
#include "matmul.glsl"
BUFFER(0, d)
BUFFER(1, a)

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, chunks = C / CHUNK, c = i % chunks * CHUNK, m = i / chunks;
    if (m >= N) return;
    Row row = row_at(offset_a, part + m);
    uint to = (offset_out + m * K + c) / CHUNK;
    for (uint x = 0u; x < taps[0]; x++)
        for (uint y = 0u; y < taps[1]; y++)
            for (uint z = 0u; z < taps[2]; z++, to += chunks) {
                Reach r = reach(Tap(uvec3(x, y, z), c));
                d128[to] = inside(row, r) ? a128[(row.at + r.a) / CHUNK] : uvec4(0u);
            }
}
