#version 460
#extension GL_GOOGLE_include_directive : require
// Adds up the float32 parts of products whose K was split, with alpha, beta and c: one thread an element of the result, or
// four side by side (EACH), where rows are whole fours and begin at them, those of c as well.
#include "common.glsl"
layout(constant_id = 1) const uint TYPE = 10;
layout(constant_id = 2) const uint HAS_C = 0;
layout(constant_id = 3) const uint EACH = 1;
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

void add_up(const uint from, const uint at_c, const uint to)
{
    precise float sum = 0.0;
    for (uint j = 0u; j < parts; j++) sum += uintBitsToFloat(a32[from + j * M * N]);
    sum *= alpha;
    if (HAS_C != 0u) sum += beta * loadf_c(at_c, TYPE);
    storef_d(to, TYPE, sum);
}

void add_up_four(const uint from, const uint at_c, const uint to)
{
    precise vec4 sum = vec4(0.0);
    for (uint j = 0u; j < parts; j++) sum += uintBitsToFloat(a128[from + j * (M * N / 4u)]);
    sum *= alpha;
    if (HAS_C != 0u) sum += beta * loadf4_c(at_c, TYPE);
    storef4_d(to, TYPE, sum);
}

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, across = N / EACH, column = i % across * EACH;
    uint row = i / across % M, z = i / across / M, x = z % inner, y = z / inner % middle, w = z / inner / middle;
    if (z >= matrices) return;
    uint from = sums_at + z * parts * M * N + row * N + column;
    uint at_c = offset_c + x * batch_c[0] + y * batch_c[1] + w * batch_c[2] + row * c_row + column * c_col;
    uint to = offset_out + x * batch_out[0] + y * batch_out[1] + w * batch_out[2] + row * out_row + column * out_col;
    if (EACH == 4u) add_up_four(from / 4u, at_c / 4u, to / 4u);
    else add_up(from, at_c, to);
}
