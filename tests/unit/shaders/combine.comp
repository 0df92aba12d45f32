#version 450
// res[i] = factor * a[i] + b[i], for the tests of the public encoder.
// glslangValidator -V -g0 --target-env vulkan1.2 --vn combine_spv -o combine_spv.h combine.comp
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint factor = 1;
layout(set = 0, binding = 0) readonly buffer A { uint a[]; };
layout(set = 0, binding = 1) readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) writeonly buffer Res { uint res[]; };
layout(push_constant) uniform Push { uint count, a_shift, b_shift, res_shift; };

void main()
{
    uint i = gl_GlobalInvocationID.x;
    if (i < count) res[i + res_shift] = factor * a[i + a_shift] + b[i + b_shift];
}
