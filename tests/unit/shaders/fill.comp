#version 450
// data[i] = value + gl_GlobalInvocationID.x for i in a grid of any shape, for the tests of the public encoder.
// glslangValidator -V -g0 --target-env vulkan1.2 --vn fill_spv -o fill_spv.h fill.comp
layout(local_size_x = 8, local_size_y = 4) in;
layout(set = 0, binding = 0) writeonly buffer Data { uint data[]; };
layout(push_constant) uniform Push { uint value, width, height, shift; };

void main()
{
    uvec3 id = gl_GlobalInvocationID;
    if (id.x < width && id.y < height) data[shift + (id.z * height + id.y) * width + id.x] = value + id.x;
}
