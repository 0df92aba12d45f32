#version 460
#extension GL_GOOGLE_include_directive : require
// Adds up the float32 parts of products whose K was split, with alpha, beta and c: one thread an element of the result.
#include "common.glsl"
layout(constant_id = 1) const uint TYPE = 10;
layout(constant_id = 2) const uint HAS_C = 0;
layout(push_constant) uniform matmul_sum_push {
    uint M, N, matrices, parts;
    uint sums_at, offset_c, offset_out;                // sums: [matrix][part][row][column]
    uint c_row, c_col, out_row, out_col;
    uint inner, middle, batch_c[3], batch_out[3];      // as in matmul.glsl
    float alpha, beta;
};
BUFFER(0, d)
BUFFER(1, a)
BUFFER(3, c)
ACCESS(d)
ACCESS(c)

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, column = i % N, row = i / N % M, z = i / N / M;
    if (z >= matrices) return;
    uint from = sums_at + z * parts * M * N + row * N + column, x = z % inner, y = z / inner % middle, w = z / inner / middle;
    float sum = 0.0;
    for (uint j = 0u; j < parts; j++) sum += uintBitsToFloat(a32[from + j * M * N]);
    sum *= alpha;
    if (HAS_C != 0u) {
        uint c_first = offset_c + x * batch_c[0] + y * batch_c[1] + w * batch_c[2];
        sum += beta * loadf_c(c_first + row * c_row + column * c_col, TYPE);
    }
    storef_d(offset_out + x * batch_out[0] + y * batch_out[1] + w * batch_out[2] + row * out_row + column * out_col, TYPE, sum);
}
