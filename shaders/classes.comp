#version 460
#extension GL_GOOGLE_include_directive : require
// Rows of elements of 2 bytes with those of each group in the order in which qmv_matrix.comp's lanes have codes: of each of four
// classes two, HALF apart, are beside each other.
#include "common.glsl"
layout(constant_id = 1) const uint GROUP = 64;
layout(constant_id = 2) const uint HALF = 4;           // codes of half a word
BUFFER(0, y)
BUFFER(1, x)

layout(push_constant) uniform classes_push {
    uint count, eights, x_at, x_row, y_at;              // count: of the result's eights; eights of a row
};

void main()
{
    const uint each = GROUP / 8u;                      // eights of a group
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, e = i % eights, t = e % each;
    uint from = x_at + i / eights * x_row + e / each * GROUP + t / HALF * 2u * HALF + t % HALF;
    uvec4 v;
    if (i >= count) return;
    [[unroll]] for (uint q = 0u; q < 4u; q++, from += GROUP / 4u) v[q] = uint(x16[from]) | uint(x16[from + HALF]) << 16;
    y128[y_at / 8u + i] = v;
}
