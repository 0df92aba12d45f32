#version 460
#extension GL_GOOGLE_include_directive : require
// One round of Jacobi rotations: all pairs of rows and columns that a round of a tournament brings together. float32.
//   EIGEN      a becomes J^T a J, from one buffer into the other, and v becomes v J: four elements of a, or two of v, a thread
//   SINGULAR   rows p and q of w are made orthogonal, and rows p and q of v turned the same way: a workgroup a pair
layout(constant_id = 1) const uint LANES = 64;           // SINGULAR: all threads of the workgroup
layout(constant_id = 2) const uint OP = 0;
#include "rows.glsl"
//! enum JACOBI_: operations
const uint EIGEN = 0, SINGULAR = 1;

layout(set = 0, binding = 0, std430) buffer a_floats { float a[]; };      // EIGEN: read; SINGULAR: w
layout(set = 0, binding = 1, std430) buffer b_floats { float b[]; };      // EIGEN: written
layout(set = 0, binding = 2, std430) buffer v_floats { float v[]; };
layout(set = 0, binding = 3, std430) buffer go_floats { float go[]; };     // 0 for matrices that are finished

layout(push_constant) uniform jacobi_push {
    uint matrices, n, length, round;                     // length: of the rows of w
    uint a_at, b_at, v_at, go_at, checked;
};

bool finished(const uint matrix) { return checked != 0u && go[go_at + matrix] == 0.0; }

uint half_up() { return (n + 1u) / 2u; }

// Who meets whom: one stands still, the others move on a circle. Of an odd number one meets n and rests.
uvec2 pair_of(const uint i)
{
    uint circle = 2u * half_up() - 1u;
    uint p = i == 0u ? 0u : (i - 1u + round) % circle + 1u, q = (circle - 1u - i + round) % circle + 1u;
    return uvec2(min(p, q), max(p, q));
}

// Cosine and sine that make the pair's product 0, for its squares (or diagonal elements) x and y.
vec2 rotation(const float x, const float y, const float product)
{
    float theta = (y - x) / (2.0 * product), t = 1.0 / (abs(theta) + sqrt(theta * theta + 1.0));
    if (product == 0.0) return vec2(1.0, 0.0);
    if (theta < 0.0) t = -t;
    float c = inversesqrt(t * t + 1.0);
    c *= 1.5 - 0.5 * (t * t + 1.0) * c * c;          // hundreds of rotations follow each other: c^2 + s^2 must be 1 without bias
    return vec2(c, t * c);
}

vec2 rotation_of(const uint base, const uvec2 p)
{
    return p.y >= n ? vec2(1.0, 0.0) : rotation(a[base + p.x * n + p.x], a[base + p.y * n + p.y], a[base + p.x * n + p.y]);
}

void eigen()
{
    uint h = half_up(), each = h * h + n * h, t = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint matrix = t / each, base = a_at + matrix * n * n;
    if (matrix >= matrices || finished(matrix)) return;
    t -= matrix * each;
    uvec2 q = pair_of(t % h);
    vec2 right = rotation_of(base, q);
    if (t >= h * h) {
        uint row = v_at + matrix * n * n + (t / h - h) * n;
        if (q.y >= n) return;
        vec2 x = vec2(v[row + q.x], v[row + q.y]);
        v[row + q.x] = right.x * x.x - right.y * x.y;
        v[row + q.y] = right.y * x.x + right.x * x.y;
        return;
    }
    uvec2 p = pair_of(t / h);
    vec2 left = rotation_of(base, p);
    bool two = p.y < n, wide = q.y < n;
    uint r0 = base + p.x * n, r1 = base + p.y * n, to = b_at + matrix * n * n;
    float x00 = a[r0 + q.x], x01 = wide ? a[r0 + q.y] : 0.0, x10 = two ? a[r1 + q.x] : 0.0, x11 = two && wide ? a[r1 + q.y] : 0.0;
    float y00 = right.x * x00 - right.y * x01, y01 = right.y * x00 + right.x * x01;
    float y10 = right.x * x10 - right.y * x11, y11 = right.y * x10 + right.x * x11;
    bool diagonal = p == q;                              // what the rotation makes 0 is 0
    b[to + p.x * n + q.x] = left.x * y00 - left.y * y10;
    if (wide) b[to + p.x * n + q.y] = diagonal ? 0.0 : left.x * y01 - left.y * y11;
    if (two) b[to + p.y * n + q.x] = diagonal ? 0.0 : left.y * y00 + left.x * y10;
    if (two && wide) b[to + p.y * n + q.y] = left.y * y01 + left.x * y11;
}

void turn(inout float x, inout float y, const vec2 r)
{
    float z = r.x * x - r.y * y;
    y = r.y * x + r.x * y;
    x = z;
}

void singular()
{
    uint h = half_up(), group = group_index(), matrix = group / h, lane = gl_LocalInvocationID.x;
    uvec2 p = pair_of(group % h);
    if (matrix >= matrices || p.y >= n || finished(matrix)) return;
    uint x = a_at + (matrix * n + p.x) * length, y = a_at + (matrix * n + p.y) * length;
    float xx = 0.0, yy = 0.0, xy = 0.0;
    for (uint i = lane; i < length; i += LANES) {
        float s = a[x + i], t = a[y + i];
        xx += s * s;
        yy += t * t;
        xy += s * t;
    }
    xx = row_sum(xx);
    yy = row_sum(yy);
    xy = row_sum(xy);
    if (abs(xy) <= 1e-8 * sqrt(xx) * sqrt(yy)) return;   // orthogonal as far as float32 can tell
    vec2 r = rotation(xx, yy, xy);
    for (uint i = lane; i < length; i += LANES) {
        float s = a[x + i], t = a[y + i];
        turn(s, t, r);
        a[x + i] = s;
        a[y + i] = t;
    }
    x = v_at + (matrix * n + p.x) * n;
    y = v_at + (matrix * n + p.y) * n;
    for (uint i = lane; i < n; i += LANES) {
        float s = v[x + i], t = v[y + i];
        turn(s, t, r);
        v[x + i] = s;
        v[y + i] = t;
    }
}

void main()
{
    if (OP == EIGEN) eigen();
    else singular();
}
