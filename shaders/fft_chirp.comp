#version 460
#extension GL_GOOGLE_include_directive : require
// Bluestein's chirp w[j] = exp(-pi i j^2 / n): n values, and at both ends of a row of zeros their conjugates, to convolve with.
#include "fft.glsl"
BUFFER(0, w)
BUFFER(1, b)
layout(push_constant) uniform fft_chirp_push { uint n, room, offset_w, offset_b; };

uint square(const uint j)                                    // j^2 mod 2 n
{
    uint sum = 0u, x = j;
    for (uint y = j; y != 0u; y >>= 1) {
        if ((y & 1u) != 0u) sum += x;
        if (sum >= 2u * n) sum -= 2u * n;
        x += x;
        if (x >= 2u * n) x -= 2u * n;
    }
    return sum;
}

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, j = i < n ? i : room - i;
    if (i >= room) return;
    vec2 x = j < n ? root(square(j), 2u * n) : vec2(0.0);
    if (i < n) w64[offset_w + i] = floatBitsToUint(x);
    b64[offset_b + i] = floatBitsToUint(conjugate(x));
}
