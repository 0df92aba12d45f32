#version 460
#extension GL_GOOGLE_include_directive : require
// Element i is start + i (next - start), each step in the result's dtype. WIDE: 64-bit integers.
#include "common.glsl"
#ifdef WIDE
#include "wide.glsl"
#endif
layout(constant_id = 1) const uint TO = 10;
layout(push_constant) uniform arange_push {
    uint n, offset;
    uvec2 start, next;                                                 // bits of the result's dtype
    uint first;                                                        // the number of the first element in the binding
};
BUFFER(0, dst)
ACCESS(dst)

float rounded(const float x) { return bits_to_float(float_to_bits(x, TO), TO); }

uint value(const uint i)
{
    if (!is_float(TO)) return start.x + i * (next.x - start.x);
    precise float a = bits_to_float(low_bits(start.x, TO), TO), step = rounded(bits_to_float(low_bits(next.x, TO), TO) - a);
    precise float along = rounded(rounded(float(i)) * step), sum = a + along;
    return float_to_bits(sum, TO);
}

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
#ifdef WIDE
    if (i >= n) return;
    dst64[offset + i] = wide_sum(start, wide_product(uvec2(i + first, 0u), wide_difference(next, start)));
#else
    i *= 4u;                                                           // four elements a thread
    if (i + 3u < n && (offset & 3u) == 0u)
        store4_dst((offset + i) / 4u, TO, uvec4(value(i + first), value(i + first + 1u), value(i + first + 2u), value(i + first + 3u)));
    else
        for (uint k = i; k < min(i + 4u, n); k++) store_dst(offset + k, TO, value(k + first));
#endif
}
