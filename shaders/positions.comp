#version 460
#extension GL_GOOGLE_include_directive : require
// Where windows start: sums of indices times the step of their axis, for up to two index arrays a dispatch, and of the
// walk's own coordinates times a base. All is told by push constants: one pipeline.
#include "position.glsl"
BUFFER(0, dst)
BUFFER(1, a)
BUFFER(2, b)
BUFFER(3, table)
ACCESS(a)
ACCESS(b)

layout(push_constant) uniform positions_push {
    uint n, ndim, flags, dtype;                        // of the index arrays, 0 to 2 of them
    uint none, from, dst_at;                           // what stands for a window that is nowhere; the first position's base
    uint at[2];
    uint shape[4];
    uint stride[3][4];                                 // of the base and the index arrays
    uint size[2], room[2], step[2];
};

//! enum POSITIONS_: flags; the two lowest bits count the index arrays
const uint COUNT = 3, STRICT = 4, ADD = 8, TABLE = 16;  // ADD: to the sums that are there

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, left = i;
    if (i >= n) return;
    uvec3 where = uvec3(from, at[0], at[1]);
    for (int d = int(ndim) - 1; d >= 0; d--) {
        bool far = (flags & TABLE) != 0u;
        uint k = ndim + uint(d), s = far ? table32[d] : shape[d], q = left / s, c = left - q * s;
        where += c * (far ? uvec3(table32[k], table32[k + ndim], table32[k + 2u * ndim])
                          : uvec3(stride[0][d], stride[1][d], stride[2][d]));
        left = q;
    }
    bool wide = dtype == U64 || dtype == I64, strict = (flags & STRICT) != 0u, nowhere = false;
    uint sum = where.x;
    for (uint k = 0; k < (flags & COUNT); k++) {
        uvec2 raw;
        if (k == 0u) raw = wide ? a64[where.y] : uvec2(load_a(where.y, dtype), 0u);
        else raw = wide ? b64[where.z] : uvec2(load_b(where.z, dtype), 0u);
        uint p = position_of(raw, dtype, size[k], room[k], strict);
        if (p == NOWHERE) nowhere = true;
        else sum += p * step[k];
    }
    if ((flags & ADD) != 0u) {
        uint before = dst32[dst_at + i];
        nowhere = nowhere || (strict && before == none);
        sum += before;
    }
    dst32[dst_at + i] = nowhere ? none : sum;
}
