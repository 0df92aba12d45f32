#version 460
#extension GL_GOOGLE_include_directive : require
// Numbers to e4m3 bytes (OP 0) and back (OP 1), element by element.
#include "elementwise.glsl"
#include "fp8.glsl"
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, table)
ACCESS(dst)
ACCESS(src)
LOCATE_TABLE(table)
VECTORS(src, 1u, FROM)
PUT(dst, TO)

uint apply(const uint raw) { return OP == 0u ? to_e4m3(bits_to_float(raw, FROM)) : float_to_bits(e4m3(raw), TO); }

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    bool whole = LANES > 1u && i < n / LANES;
    if (!whole) i += n / LANES * (LANES - 1u);                         // the leftover elements, one a thread
    if (i >= n) return;
    uvec4 at = places_of(whole, i);
    uvec4 v = fetch_src(whole, i, at.y);
    for (uint k = 0u; k < LANES; k++) v[k & 3u] = apply(v[k & 3u]);
    put_dst(whole, i, at.x, v);
}
