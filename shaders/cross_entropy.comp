#version 460
#extension GL_GOOGLE_include_directive : require
// Cross entropy in float32 of rows of n logits x, each with its class t, and its gradient for the cotangent g of the loss:
//   LOSS: loss = log(sum over i of exp(x[i] - largest)) + (largest - x[t])
//   GRADIENT: dx[i] = g * (exp((x[i] - x[t]) - loss) - (i == t ? 1 : 0))
// x[t] is subtracted first, for it and the largest are of one size; where they are not, for what is masked was the class, the
// row's largest and sum are found again. A class below 0 counts from the end; others outside the row are taken as its first or
// last.
#include "floats.glsl"
#include "math.glsl"
//! enum CROSS_ENTROPY_: modes
const uint LOSS = 0, GRADIENT = 1;
layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint LANES = 256;        // threads of a row, a power of two
layout(constant_id = 3) const uint STEP = 1;           // elements of a load: 1 or 4
layout(constant_id = 4) const uint DTYPE = 10;

layout(push_constant) uniform cross_entropy_push { uint rows, n, y_at, x_at, classes_at, loss_at, g_at; };
QUADS(0, y)
QUADS(1, x)
WORDS(2, classes)
WORDS(3, loss)
WORDS(4, g)

const float LOWEST = -3.402823466e+38;
const float FAR = 64.0;                                // losses from which on they are too coarse to tell the sum
shared vec2 board[gl_WorkGroupSize.x];
shared bool again;

uint class_of(const uint row)
{
    int t = int(classes32[classes_at + row]);
    return uint(clamp(t < 0 ? t + int(n) : t, 0, int(n) - 1));
}

vec4 load(const uint base, const uint i)
{
    if (STEP == 4u) return loadf4_x((base + i) / 4u, DTYPE);
    return vec4(loadf_x(base + i, DTYPE), -INFINITY, -INFINITY, -INFINITY);
}

// The largest and the sum of exponentials relative to it, of two parts of a row. A sum below 0: there is a NaN.
vec2 joined(const vec2 a, const vec2 b)
{
    float most = max(a.x, b.x);
    if (a.y < 0.0 || b.y < 0.0) return vec2(most, -1.0);
    return vec2(most, a.y * exp(a.x - most) + b.y * exp(b.x - most));
}
vec2 with_four(const vec2 a, const vec4 v)
{
    if (a.y < 0.0 || is_nan(v.x) || is_nan(v.y) || is_nan(v.z) || is_nan(v.w)) return vec2(a.x, -1.0);
    float most = max(a.x, max(max(v.x, v.y), max(v.z, v.w)));
    vec4 e = exp(v - most);
    return vec2(most, a.y * exp(a.x - most) + ((e.x + e.y) + (e.z + e.w)));
}

// A row's largest and sum; all threads of the workgroup call it, and lane 0's place has the answer.
void add_row(const uint base, const uint lane, const bool there)
{
    vec2 v = vec2(LOWEST, 0.0);
    if (there)
        for (uint i = lane * STEP; i < n; i += LANES * STEP) v = with_four(v, load(base, i));
    board[gl_LocalInvocationID.x] = v;
    barrier();
    for (uint d = LANES / 2u; d > 0u; d /= 2u) {
        if (lane < d) board[gl_LocalInvocationID.x] = joined(board[gl_LocalInvocationID.x], board[gl_LocalInvocationID.x + d]);
        barrier();
    }
}

void row_loss(const uint row, const uint lane, const bool there)
{
    uint base = x_at + row * n;
    vec2 v;
    add_row(base, lane, there);
    if (!there || lane > 0u) return;
    v = board[gl_LocalInvocationID.x];
    float gap = v.x - loadf_x(base + class_of(row), DTYPE), all = log_of(v.y) + gap;
    y32[y_at + row] = floatBitsToUint(v.y < 0.0 || (v.x == LOWEST && v.y == 0.0) ? NOT_A_NUMBER : is_inf(v.x) ? gap : all);
}

// The result may lie where x does: x[t] is read by all before any of them writes.
void row_gradient(const uint row, const uint lane, const bool there)
{
    uint base = x_at + row * n, t = there ? class_of(row) : 0u;
    float x_t = there ? loadf_x(base + t, DTYPE) : 0.0, part = there ? uintBitsToFloat(loss32[loss_at + row]) : 0.0;
    float scale = there ? uintBitsToFloat(g32[g_at + row]) : 0.0;
    bool far = there && !(part < FAR);
    if (gl_LocalInvocationID.x == 0u) again = false;
    barrier();
    if (far) again = true;
    barrier();
    if (again) {                                         // the same for the whole workgroup
        add_row(base, lane, there);
        vec2 v = board[gl_LocalInvocationID.x - lane];
        if (far) x_t = v.x;
        if (far) part = v.y <= 0.0 ? NOT_A_NUMBER : is_inf(v.x) ? 0.0 : log_of(v.y);
        barrier();                                       // before results lie where rows were read
    }
    if (!there) return;
    for (uint i = lane * STEP; i < n; i += LANES * STEP) {
        vec4 v = load(base, i);
        [[unroll]] for (uint k = 0u; k < STEP; k++) {
            float d = (v[k] - x_t) - part;
            v[k] = scale * ((is_nan(d) ? d : exp(d)) - (i + k == t ? 1.0 : 0.0));
        }
        if (STEP == 4u) storef4_y((y_at + row * n + i) / 4u, DTYPE, v);
        else storef_y(y_at + row * n + i, DTYPE, v.x);
    }
}

void main()
{
    uint lane = gl_LocalInvocationID.x % LANES, row = group_index() * (gl_WorkGroupSize.x / LANES) + gl_LocalInvocationID.x / LANES;
    if (MODE == LOSS) row_loss(row, lane, row < rows);
    else row_gradient(row, lane, row < rows);
}
