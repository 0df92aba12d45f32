// The access shapes of element-by-element kernels. Element i of the result, in row-major order, is at
// flat:    operand[i], or operand[0] for those marked scalar; four at a time where VECTOR
// strided: offset + sum of coordinates times strides, up to 4 dimensions in push constants, more in a table
#ifndef ELEMENTWISE_GLSL
#define ELEMENTWISE_GLSL
#include "common.glsl"
layout(constant_id = 1) const uint MODE = 0;          // 0 flat, 1 flat by fours, 2 strided, 3 strided by table
layout(constant_id = 2) const uint SCALARS = 0;       // bit k: operand k is one element (flat modes)
layout(constant_id = 3) const uint OP = 0;
layout(constant_id = 4) const uint TO = 10;           // the result's dtype
layout(constant_id = 5) const uint FROM = 10;         // the operands' dtype

layout(push_constant) uniform Push {
    uint n, ndim;
    uint shape[4];
    uint offset[4];                                    // of the result and the operands
    uint stride[4][4];                                 // [operand][dimension]
    uint extra[2];
};

// One element index for each of the result and three operands.
uvec4 locate(uint i)
{
    uvec4 at = uvec4(offset[0], offset[1], offset[2], offset[3]);
    [[unroll]] for (int d = 3; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = i / shape[d], c = i - q * shape[d];
            at += c * uvec4(stride[0][d], stride[1][d], stride[2][d], stride[3][d]);
            i = q;
        }
    return at;
}
#define LOCATE_TABLE(table) \
    uvec4 locate_table(uint i) { \
        uvec4 at = uvec4(offset[0], offset[1], offset[2], offset[3]); \
        for (int d = int(ndim) - 1; d >= 0; d--) { \
            uint s = table##32[d], q = i / s, c = i - q * s, k = ndim + uint(d); \
            at += c * uvec4(table##32[k], table##32[k + ndim], table##32[k + 2u * ndim], table##32[k + 3u * ndim]); \
            i = q; \
        } \
        return at; }
uint flat_at(uint i, uint operand) { return offset[operand] + ((SCALARS >> operand & 1u) != 0u ? 0u : i); }
#endif
