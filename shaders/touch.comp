#version 460
#extension GL_GOOGLE_include_directive : require
// Reads words that a later kernel will want, one of every 32 bytes, so that they are near then. Nothing is written: `mask` is not 0.
#include "common.glsl"
layout(push_constant) uniform Push { uint first, count, mask; };      // words
layout(std430, set = 0, binding = 0) restrict readonly buffer From { uint from32[]; };
layout(std430, set = 0, binding = 1) buffer To { uint to32[]; };
void main()
{
    uint at = group_index() * gl_WorkGroupSize.x * 32u + gl_LocalInvocationID.x * 8u, all = mask;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint w = at + i * gl_WorkGroupSize.x * 8u;
        if (w < count) all |= from32[first + w];
    }
    if (all == 0u) to32[first] = 1u;
}
