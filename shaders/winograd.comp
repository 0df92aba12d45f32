#version 460
#extension GL_GOOGLE_include_directive : require
// Winograd's way of convolving by DOWN x ACROSS, from 2 to 5 each: as many positions of the result as 6 x 6 of the input have
// (4 x 4 by 3 x 3, 2 x 2 by 5 x 5), with 36 multiplications a channel in place of 144 or 100. A thread transforms one channel of a
// kernel (STEP KERNEL) or of a tile of the input (INPUT) to the values of its polynomial at pairs of the points 0, 3/4, -3/4, 3/2,
// -3/2 and infinity, or the products of those to a tile of the result (RESULT).
// These points double the error of plain sums, in the mean; 1, -1, 2, -2 are four times worse.
// The 36 values of a channel lie in 36 matrices. Here M counts tiles, and `part` is the first one.
#define CONV
#include "matmul.glsl"
BUFFER(0, d)
BUFFER(1, a)
ACCESS(d)
OPERAND(a)
layout(constant_id = 3) const uint STEP = 0;
layout(constant_id = 4) const uint DOWN = 3;                 // taps of the kernel
layout(constant_id = 5) const uint ACROSS = 3;
//! enum WINOGRAD_: steps
const uint KERNEL = 0, INPUT = 1, RESULT = 2;

const uint HIGH = 7u - DOWN, WIDE = 7u - ACROSS;             // of a tile of the result
const float P = 0.75, Q = 1.5, P2 = 0.5625, Q2 = 2.25;

// taps: those behind are zeros
float[6] kernel_at_points(const float[5] x, const uint taps)
{
    float p = fma(P2, fma(P2, x[4], x[2]), x[0]) * (-128.0 / 243.0), q = fma(Q2, fma(Q2, x[4], x[2]), x[0]) * (32.0 / 243.0);
    float p1 = fma(P2, x[3], x[1]) * (-96.0 / 243.0), q1 = fma(Q2, x[3], x[1]) * (48.0 / 243.0);
    return float[6](x[0] * (64.0 / 81.0), p + p1, p - p1, q + q1, q - q1, x[taps - 1u]);
}

float[6] input_at_points(float[6] x)
{
    float p = fma(-Q2, x[2], x[4]), q = fma(-P2, x[2], x[4]), p1 = fma(-Q2, x[1], x[3]) * P, q1 = fma(-P2, x[1], x[3]) * Q;
    float first = fma(-P2 - Q2, x[2], fma(P2 * Q2, x[0], x[4])), last = fma(-P2 - Q2, x[3], fma(P2 * Q2, x[1], x[5]));
    return float[6](first, p + p1, p - p1, q + q1, q - q1, last);
}

// count: of positions, the last of which the point at infinity adds to
float[5] result_of_points(const float[6] x, const uint count)
{
    float p = x[1] + x[2], p1 = x[1] - x[2], q = x[3] + x[4], q1 = x[3] - x[4];
    return float[5](x[0] + p + q, fma(P, p1, fma(Q, q1, count == 2u ? x[5] : 0.0)), fma(P2, p, fma(Q2, q, count == 3u ? x[5] : 0.0)),
                    fma(P * P2, p1, fma(Q * Q2, q1, count == 4u ? x[5] : 0.0)), fma(P2 * P2, p, fma(Q2 * Q2, q, x[5])));
}

uvec3 tile_at(const uint t)                                  // batch, row, column of a tile
{
    uint across = (out_size[2] + WIDE - 1u) / WIDE, down = (out_size[1] + HIGH - 1u) / HIGH, line = t / across;
    return uvec3(line / down, line % down * HIGH, t % across * WIDE);
}

void transform_kernel(const uint n, const uint c)
{
    float rows[5][6];
    [[unroll]] for (uint j = 0u; j < 5u; j++) {
        float x[5];
        [[unroll]] for (uint k = 0u; k < 5u; k++)
            x[k] = j < DOWN && k < ACROSS ? get_a(offset_a + n * b_row + uint(int(j) * b_tap[1] + int(k) * b_tap[2]) + c) : 0.0;
        rows[j] = kernel_at_points(x, ACROSS);
    }
    [[unroll]] for (uint k = 0u; k < 6u; k++) {
        float[6] y = kernel_at_points(float[5](rows[0][k], rows[1][k], rows[2][k], rows[3][k], rows[4][k]), DOWN);
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
    float rows[6][5], x[6];
    [[unroll]] for (uint j = 0u; j < 6u; j++) {
        [[unroll]] for (uint k = 0u; k < 6u; k++) x[k] = uintBitsToFloat(a32[offset_a + ((j * 6u + k) * M + t) * N + n]);
        rows[j] = result_of_points(x, WIDE);
    }
    [[unroll]] for (uint k = 0u; k < 5u; k++) {
        if (k >= WIDE) continue;
        float[5] y = result_of_points(float[6](rows[0][k], rows[1][k], rows[2][k], rows[3][k], rows[4][k], rows[5][k]), HIGH);
        [[unroll]] for (uint j = 0u; j < 5u; j++)
            if (j < HIGH && o.y + j < out_size[1] && o.z + k < out_size[2])
                storef_d(to + j * out_step[1] + k * out_step[2], TYPE, y[j]);
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
