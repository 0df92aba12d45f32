#version 460
#extension GL_GOOGLE_include_directive : require
// Winograd's way of convolving by 3 x 3: 4 x 4 positions of the result from 6 x 6 of the input, with 36 multiplications a channel
// in place of 144. A thread transforms one channel of a kernel (STEP KERNEL) or of a tile of the input (INPUT) to the values of its
// polynomial at pairs of the points 0, 3/4, -3/4, 3/2, -3/2 and infinity, or the products of those to a tile of the result (RESULT).
// These points double the error of plain sums, in the mean; 1, -1, 2, -2 are four times worse.
// The 36 values of a channel lie in 36 matrices. Here M counts tiles, and `part` is the first one.
#define CONV
#include "matmul.glsl"
BUFFER(0, d)
BUFFER(1, a)
ACCESS(d)
OPERAND(a)
layout(constant_id = 3) const uint STEP = 0;
//! enum WINOGRAD_: steps
const uint KERNEL = 0, INPUT = 1, RESULT = 2;

const float P = 0.75, Q = 1.5, P2 = 0.5625, Q2 = 2.25;

float[6] kernel_at_points(const float x, const float y, const float z)
{
    float p = fma(P2, z, x) * (-128.0 / 243.0), q = fma(Q2, z, x) * (32.0 / 243.0);
    float p1 = y * (-96.0 / 243.0), q1 = y * (48.0 / 243.0);
    return float[6](x * (64.0 / 81.0), p + p1, p - p1, q + q1, q - q1, z);
}

float[6] input_at_points(float[6] x)
{
    float p = fma(-Q2, x[2], x[4]), q = fma(-P2, x[2], x[4]), p1 = fma(-Q2, x[1], x[3]) * P, q1 = fma(-P2, x[1], x[3]) * Q;
    float first = fma(-P2 - Q2, x[2], fma(P2 * Q2, x[0], x[4])), last = fma(-P2 - Q2, x[3], fma(P2 * Q2, x[1], x[5]));
    return float[6](first, p + p1, p - p1, q + q1, q - q1, last);
}

float[4] result_of_points(float[6] x)
{
    float p = x[1] + x[2], p1 = x[1] - x[2], q = x[3] + x[4], q1 = x[3] - x[4];
    return float[4](x[0] + p + q, fma(P, p1, Q * q1), fma(P2, p, Q2 * q), fma(P * P2, p1, fma(Q * Q2, q1, x[5])));
}

uvec3 tile_at(const uint t)                                  // batch, row, column of a tile
{
    uint across = (out_size[2] + 3u) / 4u, down = (out_size[1] + 3u) / 4u, line = t / across;
    return uvec3(line / down, line % down * 4u, t % across * 4u);
}

void transform_kernel(const uint n, const uint c)
{
    float rows[3][6], x[3];
    for (uint j = 0u; j < 3u; j++) {
        for (uint k = 0u; k < 3u; k++) x[k] = get_a(offset_a + n * b_row + uint(int(j) * b_tap[1] + int(k) * b_tap[2]) + c);
        rows[j] = kernel_at_points(x[0], x[1], x[2]);
    }
    [[unroll]] for (uint k = 0u; k < 6u; k++) {
        float[6] y = kernel_at_points(rows[0][k], rows[1][k], rows[2][k]);
        [[unroll]] for (uint j = 0u; j < 6u; j++) d32[offset_out + ((j * 6u + k) * N + n) * C + c] = floatBitsToUint(y[j]);
    }
}

void transform_input(const uint t, const uint c)
{
    uvec3 o = tile_at(part + t);
    uvec2 from = o.yz + uvec2(base[1], base[2]);                    // wraps: what lies before the first is far behind the last
    uint at = offset_a + ((o.x * in_size[1] + from.x) * in_size[2] + from.y) * channels + c;
    float rows[6][6];
    [[unroll]] for (uint j = 0u; j < 6u; j++)
        [[unroll]] for (uint k = 0u; k < 6u; k++)
            rows[j][k] = from.x + j < in_size[1] && from.y + k < in_size[2] ? get_a(at + (j * in_size[2] + k) * channels) : 0.0;
    [[unroll]] for (uint j = 0u; j < 6u; j++) rows[j] = input_at_points(rows[j]);
    [[unroll]] for (uint k = 0u; k < 6u; k++) {
        float[6] y = input_at_points(float[6](rows[0][k], rows[1][k], rows[2][k], rows[3][k], rows[4][k], rows[5][k]));
        [[unroll]] for (uint j = 0u; j < 6u; j++) d32[offset_out + ((j * 6u + k) * M + t) * C + c] = floatBitsToUint(y[j]);
    }
}

void transform_result(const uint t, const uint n)
{
    uvec3 o = tile_at(part + t);
    uint to = offset_out + o.x * out_batch + o.y * out_step[1] + o.z * out_step[2] + n;
    float rows[6][4], x[6];
    [[unroll]] for (uint j = 0u; j < 6u; j++) {
        [[unroll]] for (uint k = 0u; k < 6u; k++) x[k] = uintBitsToFloat(a32[offset_a + ((j * 6u + k) * M + t) * N + n]);
        rows[j] = result_of_points(x);
    }
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        float[4] y = result_of_points(float[6](rows[0][k], rows[1][k], rows[2][k], rows[3][k], rows[4][k], rows[5][k]));
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            if (o.y + j < out_size[1] && o.z + k < out_size[2]) storef_d(to + j * out_step[1] + k * out_step[2], TYPE, y[j]);
    }
}

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, width = STEP == RESULT ? N : C, c = i % width, row = i / width;
    if (row >= (STEP == KERNEL ? N : M)) return;
    if (STEP == KERNEL) transform_kernel(row, c);
    else if (STEP == INPUT) transform_input(row, c);
    else transform_result(row, c);
}
