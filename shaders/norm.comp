#version 460
#extension GL_GOOGLE_include_directive : require
// RMS and layer normalisation of rows, with an optional addition in front:
//   h = x + residual, stored rounded;  y = (h - mean) * rsqrt(mean square + eps) * weight + bias, rounded once
//   (MLX rounds before the weight too)
// where RMS takes no mean. LANES threads a row; the rows of a workgroup are independent.
layout(constant_id = 1) const uint LANES = 32;
layout(constant_id = 2) const uint HELD = 0;           // groups of eight that a thread holds; 0: element by element
layout(constant_id = 3) const uint DTYPE = 10;
layout(constant_id = 4) const uint KIND = 0;           // MEAN and ADD of the flags
#include "rows.glsl"
const uint MEAN = 1u, WEIGHT = 2u, BIAS = 4u, ADD = 8u;
BUFFER(0, y)
BUFFER(1, x)
BUFFER(2, residual)
BUFFER(3, h)
BUFFER(4, weight)
BUFFER(5, bias)
ACCESS(y)
ACCESS(x)
ACCESS(residual)
ACCESS(h)
ACCESS(weight)
ACCESS(bias)
EIGHTS(y)
EIGHTS(x)
EIGHTS(residual)
EIGHTS(h)
EIGHTS(weight)
EIGHTS(bias)

layout(push_constant) uniform norm_push {
    uint rows, n, ndim;
    float eps;
    uint weight_at, bias_at, weight_step, bias_step;
    uint shape[3];
    uint offset[4];                                     // of y, x, residual, h
    uint stride[4][3];                                  // [operand][dimension of the rows]
    uint x_step, residual_step;                         // along a row; 1 for y and h
    uint flags;
};
bool has(uint flag) { return ((flag & (MEAN | ADD)) != 0u ? KIND & flag : flags & flag) != 0u; }

uvec4 locate(uint row)
{
    uvec4 at = uvec4(offset[0], offset[1], offset[2], offset[3]);
    [[unroll]] for (int d = 2; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = row / shape[d], c = row - q * shape[d];
            at += c * uvec4(stride[0][d], stride[1][d], stride[2][d], stride[3][d]);
            row = q;
        }
    return at;
}

void by_eights(uvec4 at, uint lane, bool inside)
{
    eight v[HELD == 0u ? 1u : HELD];
    uint groups = inside ? n / 8u : 0u;
    float sum = 0.0, squares = 0.0, mean = 0.0;
    uint last = n / 8u - 1u;                           // beyond a row its end is read again, so that no load waits for a branch
    [[unroll]] for (uint i = 0u; i < HELD; i++) v[i] = load8_x(at.y + 8u * min(lane + i * LANES, last), DTYPE);
    if (has(ADD))
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            uint g = lane + i * LANES;
            eight r = load8_residual(at.z + 8u * min(g, last), DTYPE);
            v[i] = eight(rounded(v[i].a + r.a, DTYPE), rounded(v[i].b + r.b, DTYPE));
            if (g < groups) store8_h(at.w + 8u * g, DTYPE, v[i]);
        }
    if (groups < HELD * LANES)
        [[unroll]] for (uint i = 0u; i < HELD; i++)
            if (lane + i * LANES >= groups) v[i] = eight(vec4(0.0), vec4(0.0));
    [[unroll]] for (uint i = 0u; i < HELD; i++) sum += dot(v[i].a, vec4(1.0)) + dot(v[i].b, vec4(1.0));
    if (has(MEAN)) mean = row_sum(sum) / float(n);
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        if (has(MEAN)) {
            bool held = lane + i * LANES < groups;
            v[i].a = held ? v[i].a - mean : vec4(0.0);
            v[i].b = held ? v[i].b - mean : vec4(0.0);
        }
        squares += dot(v[i].a, v[i].a) + dot(v[i].b, v[i].b);
    }
    float factor = inversesqrt(row_sum(squares) / float(n) + eps);
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        uint g = lane + i * LANES;
        if (g >= groups) continue;
        eight r = eight(v[i].a * factor, v[i].b * factor);
        if (has(WEIGHT)) {
            eight w = load8_weight(weight_at + 8u * g, DTYPE);
            r = eight(r.a * w.a, r.b * w.b);
        }
        if (has(BIAS)) {
            eight b = load8_bias(bias_at + 8u * g, DTYPE);
            r = eight(r.a + b.a, r.b + b.b);
        }
        store8_y(at.x + 8u * g, DTYPE, r);
    }
}

// What is normalised, from h once it is stored there.
float value(uvec4 at, uint i) { return has(ADD) ? loadf_h(at.w + i, DTYPE) : loadf_x(at.y + i * x_step, DTYPE); }

void by_elements(uvec4 at, uint lane, bool inside)
{
    uint count = inside ? n : 0u;
    float sum = 0.0, mean = 0.0;
    if (has(ADD))
        for (uint i = lane; i < count; i += LANES)
            storef_h(at.w + i, DTYPE, loadf_x(at.y + i * x_step, DTYPE) + loadf_residual(at.z + i * residual_step, DTYPE));
    if (has(MEAN)) {
        for (uint i = lane; i < count; i += LANES) sum += value(at, i);
        mean = row_sum(sum) / float(n);
    }
    sum = 0.0;
    for (uint i = lane; i < count; i += LANES) {
        float v = value(at, i) - mean;
        sum += v * v;
    }
    float factor = inversesqrt(row_sum(sum) / float(n) + eps);
    for (uint i = lane; i < count; i += LANES) {
        float r = (value(at, i) - mean) * factor;
        if (has(WEIGHT)) r *= loadf_weight(weight_at + i * weight_step, DTYPE);
        if (has(BIAS)) r += loadf_bias(bias_at + i * bias_step, DTYPE);
        storef_y(at.x + i, DTYPE, r);
    }
}

void main()
{
    uint thread = gl_LocalInvocationID.x, lane = thread & (LANES - 1u);
    uint row = group_index() * (gl_WorkGroupSize.x / LANES) + thread / LANES;
    uvec4 at = locate(min(row, rows - 1u));
    if (HELD == 0u) by_elements(at, lane, row < rows);
    else by_eights(at, lane, row < rows);
}
