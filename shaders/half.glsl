// Constant HALF, of number HALF_ID: 1: the device itself converts between f16 and float32, with denormals and to nearest even.
// Where it cannot, the library takes these modes out of the module. What NaN becomes is the device's own.
#extension GL_EXT_spirv_intrinsics : require
spirv_execution_mode(capabilities = [4464], 4459, 16);                 // DenormPreserve
spirv_execution_mode(capabilities = [4467], 4462, 16);                 // RoundingModeRTE
layout(constant_id = HALF_ID) const uint HALF = 0;
