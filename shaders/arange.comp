#version 460
#extension GL_GOOGLE_include_directive : require
// Element i is start + i (next - start), each step in the result's dtype. WIDE: 64-bit integers.
#include "common.glsl"
#ifdef WIDE
#include "wide.glsl"
#endif
layout(constant_id = 1) const uint TO = 10;
layout(push_constant) uniform Push {
    uint n, offset;
    uvec2 start, next;                                                 // bits of the result's dtype
    uint first;                                                        // the number of the first element in the binding
};
BUFFER(0, dst)
ACCESS(dst)

float rounded(float x) { return bits_to_float(float_to_bits(x, TO), TO); }

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (i >= n) return;
    uint at = offset + i;
    i += first;
#ifdef WIDE
    dst64[at] = wide_sum(start, wide_product(uvec2(i, 0u), wide_difference(next, start)));
#else
    uint v = start.x + i * (next.x - start.x);
    if (is_float(TO)) {
        precise float a = bits_to_float(low_bits(start.x, TO), TO), step = rounded(bits_to_float(low_bits(next.x, TO), TO) - a);
        precise float along = rounded(rounded(float(i)) * step), sum = a + along;
        v = float_to_bits(sum, TO);
    }
    store_dst(at, TO, v);
#endif
}
