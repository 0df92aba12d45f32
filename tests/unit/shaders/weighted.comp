#version 450
// result[i] = FACTOR * x[i] + (NEGATIVE ? -y[i] : y[i]) + TYPE, and how often it was written; for the tests of kernels in mlx-c's shape.
// glslangValidator -V --target-env vulkan1.2 --vn weighted_spv -o weighted_spv.h weighted.comp
layout(local_size_x_id = 7, local_size_y = 2) in;
layout(constant_id = 3) const int FACTOR = 2;
layout(constant_id = 1) const bool NEGATIVE = false;
layout(constant_id = 5) const uint TYPE = 0;
layout(constant_id = 9) const int SIZE = 0;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Y { float y[]; };
layout(set = 0, binding = 2) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 3) buffer Written { uint written[]; };
layout(push_constant) uniform Push { uint x_shift, y_shift, result_shift, written_shift; };

void main()
{
    uint width = gl_NumWorkGroups.x * gl_WorkGroupSize.x, i = gl_GlobalInvocationID.y * width + gl_GlobalInvocationID.x;
    if (i >= SIZE) return;
    result[result_shift + i] = float(FACTOR) * x[x_shift + i] + (NEGATIVE ? -y[y_shift + i] : y[y_shift + i]) + float(TYPE);
    atomicAdd(written[written_shift + i], 1);
}
