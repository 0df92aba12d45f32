#version 450
// y = a * x + y, for custom_kernel.c. Made into saxpy_spv.h by:
//   glslangValidator -V --target-env vulkan1.2 -g0 -o saxpy.spv saxpy.comp
//   xxd -e -g4 -c32 saxpy.spv | ... (tests/tools/build-shaders does the same for shaders/)
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Push { uint n, x_shift, y_shift; float a; };

void main()
{
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[y_shift + i] = a * x[x_shift + i] + y[y_shift + i];
}
