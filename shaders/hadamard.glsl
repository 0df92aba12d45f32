// Hadamard transforms of M * 2^K elements, M of 1, 12, 20, 28: element i * 2^K + j; over j by Sylvester's matrix, in steps of up
// to four bits held in registers, over i by a matrix of M rows whose signs are these bits (column 0 lowest, 1: minus).
#ifndef HADAMARD_GLSL
#define HADAMARD_GLSL
#include "common.glsl"
layout(constant_id = 1) const uint FROM = 10;          // dtypes
layout(constant_id = 2) const uint TO = 10;
layout(constant_id = 3) const uint M = 1;
layout(constant_id = 4) const uint K = 0;
BUFFER(0, dst)
BUFFER(1, src)
ACCESS(dst)
ACCESS(src)

const uint SIGNS_12[12] = uint[](0x002u, 0xaabu, 0x3c8u, 0x96eu, 0xf20u, 0x5bau, 0xc8cu, 0x6e6u, 0x23cu, 0xb96u, 0x8f0u, 0xe5au);
const uint SIGNS_20[20] = uint[](0x933deu, 0x2e3bdu, 0x5477bu, 0xa0ef7u, 0x499efu, 0x637c1u, 0xc6ba2u, 0x8d764u, 0x1aee8u, 0x359f0u,
    0x0fa53u, 0x174a7u, 0x26d4eu, 0x45e9cu, 0x83d39u, 0xf7a6du, 0xef4fau, 0xdedd5u, 0xbdf8bu, 0x7bf36u);
const uint SIGNS_28[28] = uint[](0xcd69e7eu, 0x9ad7c7du, 0x37ab8fbu, 0x6d571f7u, 0xd8ae3efu, 0xb3587dfu, 0x66b4f3fu, 0xb467f43u,
    0x6acbe87u, 0xd593d8eu, 0xab27b9cu, 0x564f7b8u, 0xac9aff0u, 0x5b31fe1u, 0x87fb325u, 0x0ff66cau, 0x1decd95u, 0x39ddb2au, 0x71bf654u,
    0xe17eca9u, 0xc2fd9d2u, 0xfcf1299u, 0xfbe2532u, 0xf7c4ae4u, 0xef8d549u, 0xdf1ea13u, 0xbe3d4a6u, 0x7e7a94cu);

// Row i of the matrix times v.
float signed_sum(const uint i, const float v[28])
{
    uint signs = M == 12u ? SIGNS_12[i] : M == 20u ? SIGNS_20[i] : SIGNS_28[i];
    float sum = 0.0;
    [[unroll]] for (uint j = 0u; j < 28u; j++)
        if (j < M) sum += uintBitsToFloat(floatBitsToUint(v[j]) ^ (signs >> j & 1u) << 31);
    return sum;
}

// Sylvester's transform of the first 2^bits of v.
void butterflies(inout float v[16], const uint bits)
{
    [[unroll]] for (uint b = 0u; b < 4u; b++)
        if (b < bits)
            [[unroll]] for (uint j = 0u; j < 16u; j++)
                if ((j >> b & 1u) == 0u && j < 1u << bits) {
                    float x = v[j], y = v[j + (1u << b)];
                    v[j] = x + y;
                    v[j + (1u << b)] = x - y;
                }
}
#endif
