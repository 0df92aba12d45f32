#version 460
#extension GL_GOOGLE_include_directive : require
// Adds up the float32 parts of products whose K was split: one thread an element of the result. Here `part` counts parts.
#include "matmul.glsl"
BUFFER(0, d)
BUFFER(1, a)
BUFFER(3, c)
ACCESS(d)
ACCESS(c)
layout(constant_id = 3) const uint HAS_C = 0;

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, column = i % N, row = i / N % M, z = i / N / M;
    if (z >= K) return;                                // K: how many matrices
    Place p = place(z);
    uint from = offset_a + z * part * M * N + row * N + column;
    float sum = 0.0;
    for (uint j = 0u; j < part; j++) sum += uintBitsToFloat(a32[from + j * M * N]);
    sum *= alpha;
    if (HAS_C != 0u) sum += beta * loadf_c(p.c + row * c_row + column * c_col, TYPE);
    storef_d(p.d + row * out_row + column * out_col, TYPE, sum);
}
