#version 460
#extension GL_GOOGLE_include_directive : require
// condition ? x : y for operands of one dtype of any size: bits move, nothing is converted.
#include "elementwise.glsl"
BUFFER(0, dst)
BUFFER(1, condition)
BUFFER(2, x)
BUFFER(3, y)
BUFFER(4, table)
ACCESS(dst)
ACCESS(condition)
ACCESS(x)
ACCESS(y)
LOCATE_TABLE(table)

void write(uint to, uint c, uint i, uint j)
{
    bool first = load_condition(c, BOOL) != 0u;
    if (FROM == U64 || FROM == I64 || FROM == C64) {
        if (first) dst64[to] = x64[i];
        else dst64[to] = y64[j];
    } else if (first) store_dst(to, TO, load_x(i, FROM));
    else store_dst(to, TO, load_y(j, FROM));
}

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    bool four = MODE == 1u && i < n / 4u;
    if (MODE == 1u && !four) i += n / 4u * 3u;                         // the leftover elements, one a thread
    if (i >= n) return;
    uvec4 at = MODE >= 2u ? uvec4(0u) : uvec4(flat_at(i, 0u), flat_at(i, 1u), flat_at(i, 2u), flat_at(i, 3u));
    if (MODE == 2u) at = locate(i);
    if (MODE == 3u) at = locate_table(i);
    if (!four) { write(at.x, at.y, at.z, at.w); return; }
    uvec4 c, p, q;
    if ((SCALARS & 2u) == 0u) c = load4_condition(offset[1] / 4u + i, BOOL);
    else c = uvec4(load_condition(offset[1], BOOL));
    if ((SCALARS & 4u) == 0u) p = load4_x(offset[2] / 4u + i, FROM);
    else p = uvec4(load_x(offset[2], FROM));
    if ((SCALARS & 8u) == 0u) q = load4_y(offset[3] / 4u + i, FROM);
    else q = uvec4(load_y(offset[3], FROM));
    store4_dst(offset[0] / 4u + i, TO, mix(q, p, notEqual(c, uvec4(0u))));
}
