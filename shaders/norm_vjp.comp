#version 460
#extension GL_GOOGLE_include_directive : require
// Gradients of RMS and layer normalisation y = (x - mean) * factor * weight + bias, for the cotangent g of y:
//   dx = factor * (w g - mean(w g) - (x - mean) * factor^2 * mean(w g (x - mean))), without the means for RMS
//   dweight = sum over rows of g (x - mean) * factor, dbias = sum over rows of g
// A workgroup takes `each` rows in turn and leaves its part of the sums over rows in a row of float32.
layout(constant_id = 1) const uint LANES = 256;        // all threads of the workgroup
layout(constant_id = 2) const uint HELD = 0;           // elements of a row that a thread holds; 0: they are read again
layout(constant_id = 3) const uint DTYPE = 10;
layout(constant_id = 4) const uint FLAGS = 0;
#include "rows.glsl"
BUFFER(0, dx)
BUFFER(1, x)
BUFFER(2, g)
BUFFER(3, weight)
BUFFER(4, dweight)
BUFFER(5, dbias)
ACCESS(dx)
ACCESS(x)
ACCESS(g)
ACCESS(weight)

layout(push_constant) uniform norm_vjp_push {
    uint rows, n, each;
    float eps;
    uint dx_at, x_at, g_at, weight_at, dweight_at, dbias_at;
};

const uint ROOM = HELD == 0u ? 1u : HELD;
float held_x[ROOM], held_g[ROOM], held_w[ROOM], sum_w[ROOM], sum_b[ROOM];
#define EACH(k, i) for (uint k = 0u, i = gl_LocalInvocationID.x; HELD == 0u ? i < n : k < HELD; k++, i += LANES) if (i < n)

float value(const uint k, const uint i, const uint row) { return HELD == 0u ? loadf_x(x_at + row * n + i, DTYPE) : held_x[k]; }
float cotangent(const uint k, const uint i, const uint row) { return HELD == 0u ? loadf_g(g_at + row * n + i, DTYPE) : held_g[k]; }
float scale(const uint k, const uint i) { return (FLAGS & WEIGHT) == 0u ? 1.0 : HELD == 0u ? loadf_weight(weight_at + i, DTYPE) : held_w[k]; }

void add_sums(const uint k, const uint i, const float w, const float b, const bool first)
{
    uint at = group_index() * n + i;
    if (HELD != 0u) { sum_w[k] += w; sum_b[k] += b; return; }
    dweight32[dweight_at + at] = floatBitsToUint(first ? w : uintBitsToFloat(dweight32[dweight_at + at]) + w);
    if ((FLAGS & MEAN) != 0u) dbias32[dbias_at + at] = floatBitsToUint(first ? b : uintBitsToFloat(dbias32[dbias_at + at]) + b);
}

void one_row(const uint row, const bool first)
{
    float sum = 0.0, squares = 0.0, mean = 0.0, mean_g = 0.0, slope = 0.0;
    if (HELD != 0u)
        EACH(k, i) {
            held_x[k] = loadf_x(x_at + row * n + i, DTYPE);
            held_g[k] = loadf_g(g_at + row * n + i, DTYPE);
        }
    if ((FLAGS & MEAN) != 0u) {
        EACH(k, i) sum += value(k, i, row);
        mean = row_sum(sum) / float(n);
        sum = 0.0;
    }
    EACH(k, i) {
        float v = value(k, i, row) - mean, w = cotangent(k, i, row) * scale(k, i);
        squares += v * v;
        sum += w;
        slope += w * v;
    }
    float factor = inversesqrt(row_sum(squares) / float(n) + eps);
    slope = row_sum(slope) / float(n) * factor * factor;
    if ((FLAGS & MEAN) != 0u) mean_g = row_sum(sum) / float(n);
    EACH(k, i) {
        float v = value(k, i, row) - mean, g = cotangent(k, i, row);
        storef_dx(dx_at + row * n + i, DTYPE, factor * (g * scale(k, i) - mean_g - v * slope));
        if ((FLAGS & WEIGHT) != 0u) add_sums(k, i, g * v * factor, g, first);
    }
}

void main()
{
    uint first = group_index() * each, last = min(first + each, rows);
    if (first >= rows) return;
    for (uint k = 0u; k < ROOM; k++) { sum_w[k] = 0.0; sum_b[k] = 0.0; }
    if (HELD != 0u && (FLAGS & WEIGHT) != 0u)
        EACH(k, i) held_w[k] = loadf_weight(weight_at + i, DTYPE);
    for (uint row = first; row < last; row++) one_row(row, row == first);
    if (HELD != 0u && (FLAGS & WEIGHT) != 0u)
        EACH(k, i) {
            dweight32[dweight_at + group_index() * n + i] = floatBitsToUint(sum_w[k]);
            if ((FLAGS & MEAN) != 0u) dbias32[dbias_at + group_index() * n + i] = floatBitsToUint(sum_b[k]);
        }
}
