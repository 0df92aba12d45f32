#version 460
#extension GL_GOOGLE_include_directive : require
// Products of few rows (at most FEW, of a) whose results have the bits of matmul_tiled.comp: a thread adds up a column's K, or
// a part of it, one element after the other, as a tile does. 16 bytes along K a load where VECTOR says that a and b allow it.
#include "matmul.glsl"
layout(constant_id = 3) const uint FEW = 1;
layout(constant_id = 4) const uint VECTOR = 0;
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
ACCESS(d)
OPERAND(a)
OPERAND(b)

float[8] unpack(const uvec4 w)
{
    vec2 x = halves(w.x), y = halves(w.y), z = halves(w.z), u = halves(w.w);
    if (TYPE == F32) return float[8](uintBitsToFloat(w.x), uintBitsToFloat(w.y), uintBitsToFloat(w.z), uintBitsToFloat(w.w),
                                     0.0, 0.0, 0.0, 0.0);
    return float[8](x.x, x.y, y.x, y.y, z.x, z.y, u.x, u.y);
}

void main()
{
    const uint AHEAD = 4;                              // loads of b on their way
    uint column = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    Place p = place(gl_WorkGroupID.z);
    SKIP_OTHERS(p)
    float sum[FEW];
    uint from_b = p.b + column * b_col, from_a[FEW], k = p.low;
    if (column >= N) return;
    [[unroll]] for (uint i = 0; i < FEW; i++) {
        sum[i] = 0.0;
        from_a[i] = p.a + min(i, M - 1u) * a_row;
    }
    if (VECTOR != 0u)
        for (; k + AHEAD * CHUNK <= p.high; k += AHEAD * CHUNK) {
            uvec4 w[AHEAD];
            [[unroll]] for (uint u = 0; u < AHEAD; u++) w[u] = b128[(from_b + k) / CHUNK + u];
            [[unroll]] for (uint u = 0; u < AHEAD; u++) {
                float y[8] = unpack(w[u]);
                [[unroll]] for (uint i = 0; i < FEW; i++) {
                    float x[8] = unpack(a128[(from_a[i] + k) / CHUNK + u]);
                    [[unroll]] for (uint l = 0; l < CHUNK; l++) sum[i] = fma(x[l], y[l], sum[i]);
                }
            }
        }
    for (; k < p.high; k++) {
        float y = get_b(from_b + k * b_k);
        [[unroll]] for (uint i = 0; i < FEW; i++) sum[i] = fma(get_a(from_a[i] + k * a_k), y, sum[i]);
    }
    [[unroll]] for (uint i = 0; i < FEW; i++) {
        if (i >= M) break;
        // A tile's last step adds zeros, which make -0, what underflow may leave, 0.
        if ((p.high - p.low) % 16u != 0u && floatBitsToUint(sum[i]) == 0x80000000u) sum[i] = 0.0;
        storef_d(p.d + i * out_row + column * out_col, TO, sum[i]);
    }
}
