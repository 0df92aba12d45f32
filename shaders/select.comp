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
VECTORS(condition, 1u, BOOL)
VECTORS(x, 2u, FROM)
VECTORS(y, 3u, FROM)
PUT(dst, TO)

void write(const uint to, const uint c, const uint i, const uint j)
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
    bool whole = LANES > 1u && i < n / LANES;
    if (!whole) i += n / LANES * (LANES - 1u);                         // the leftover elements, one a thread
    if (i >= n) return;
    uvec4 at = places_of(whole, i);
    if (!whole) { write(at.x, at.y, at.z, at.w); return; }
    uvec4 c = fetch_condition(whole, i, at.y), p = fetch_x(whole, i, at.z), q = fetch_y(whole, i, at.w);
    uvec4 v = uvec4(0u);
    for (uint k = 0u; k < LANES; k++) put_element(v, k, element(c, k, BOOL) != 0u ? element(p, k, FROM) : element(q, k, FROM));
    put_dst(whole, i, at.x, v);
}
