#version 460
#extension GL_GOOGLE_include_directive : require
// Products of few rows (at most FEW, of a) with a matrix b that is contiguous along its rows: a thread takes 16 bytes of
// columns, LANES threads lie beside each other, the others share K.
#include "matmul.glsl"
layout(constant_id = 3) const uint FEW = 1;
layout(constant_id = 4) const uint LANES = 16;
layout(constant_id = 5) const uint VECTOR = 0;
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
BUFFER(3, c)
ACCESS(d)
OPERAND(a)
OPERAND(b)
OPERAND(c)

shared float partial[gl_WorkGroupSize.x * CHUNK];

void main()
{
    const uint size = gl_WorkGroupSize.x, deep = size / LANES;
    uint t = gl_LocalInvocationID.x, x = t % LANES, y = t / LANES;
    uint first = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * LANES * CHUNK, column = first + x * CHUNK;
    Place p = place(gl_WorkGroupID.z);
    SKIP_OTHERS(p)
    float sum[FEW][CHUNK];
    if (first >= N) return;
    [[unroll]] for (uint i = 0; i < FEW; i++) [[unroll]] for (uint l = 0; l < CHUNK; l++) sum[i][l] = 0.0;

    if (VECTOR != 0u && column + CHUNK <= N) {
        for (uint k = p.low + y; k < p.high; k += 4u * deep) {
            uvec4 w[4];
            [[unroll]] for (uint u = 0; u < 4; u++)    // beyond the end: the last row again, times zero
                w[u] = b128[(p.b + min(k + u * deep, p.high - 1u) * b_k + column) / CHUNK];
            [[unroll]] for (uint u = 0; u < 4; u++) {
                bool inside = k + u * deep < p.high;
                float v[8];
                if (TYPE == F32) {
                    v[0] = uintBitsToFloat(w[u].x); v[1] = uintBitsToFloat(w[u].y);
                    v[2] = uintBitsToFloat(w[u].z); v[3] = uintBitsToFloat(w[u].w);
                } else {
                    vec4 low = vec4(halves(w[u].x), halves(w[u].y)), high = vec4(halves(w[u].z), halves(w[u].w));
                    v = float[8](low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
                }
                if (inside)
                    [[unroll]] for (uint i = 0; i < FEW; i++) {
                        float s = get_a(p.a + min(i, M - 1u) * a_row + (k + u * deep) * a_k);
                        [[unroll]] for (uint l = 0; l < CHUNK; l++) sum[i][l] = fma(s, v[l], sum[i][l]);
                    }
            }
        }
    } else
        for (uint k = p.low + y; k < p.high; k += deep)
            [[unroll]] for (uint l = 0; l < CHUNK; l++) {
                float v = column + l < N ? get_b(p.b + k * b_k + (column + l) * b_col) : 0.0;
                if (column + l < N)
                    [[unroll]] for (uint i = 0; i < FEW; i++)
                        sum[i][l] = fma(get_a(p.a + min(i, M - 1u) * a_row + k * a_k), v, sum[i][l]);
            }

    [[unroll]] for (uint i = 0; i < FEW; i++) {
        if (i >= M) break;
        barrier();
        [[unroll]] for (uint l = 0; l < CHUNK; l++) partial[t * CHUNK + l] = sum[i][l];
        barrier();
        for (uint j = t; j < LANES * CHUNK && first + j < N; j += size) {
            float v = 0.0;
            for (uint g = 0u; g < deep; g++) v += partial[g * LANES * CHUNK + j];
            if (EPILOGUE == SCALE) v = SCALED(v, get_c(p.c + i * c_row + (first + j) * c_col));
            storef_d(p.d + i * out_row + (first + j) * out_col, TO, v);
        }
    }
}
