#version 450
// The plain copy that bandwidths are compared with: 16 bytes a thread and step.
layout(local_size_x = 256) in;
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uvec4 y[]; };
layout(push_constant) uniform Push { uint n; };

void main()
{
    uint i = gl_WorkGroupID.x * 1024u + gl_LocalInvocationID.x;
    for (uint k = 0u; k < 4u; k++, i += 256u)
        if (i < n) y[i] = x[i];
}
