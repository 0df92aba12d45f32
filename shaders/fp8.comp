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

uint apply(uint raw) { return OP == 0u ? to_e4m3(bits_to_float(raw, FROM)) : float_to_bits(e4m3(raw), TO); }

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    bool four = MODE == 1u && i < n / 4u;
    if (MODE == 1u && !four) i += n / 4u * 3u;                         // the leftover elements, one a thread
    if (i >= n) return;
    uvec4 at = MODE >= 2u ? uvec4(0u) : uvec4(flat_at(i, 0u), flat_at(i, 1u), 0u, 0u);
    if (MODE == 2u) at = locate(i);
    if (MODE == 3u) at = locate_table(i);
    uvec4 v;
    if (four && (SCALARS & 2u) == 0u) v = load4_src(offset[1] / 4u + i, FROM);
    else v = uvec4(load_src(at.y, FROM));
    for (int k = 0; k < (MODE == 1u ? 4 : 1); k++) v[k] = apply(v[k]);
    if (four) store4_dst(offset[0] / 4u + i, TO, v);
    else store_dst(at.x, TO, v.x);
}
