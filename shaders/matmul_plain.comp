#version 460
#extension GL_GOOGLE_include_directive : require
// Matrix products of any layout, by tiles of 16 x 16: a thread takes EACH elements of a column. COMPLEX: complex64.
#include "matmul.glsl"
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
BUFFER(3, c)
ACCESS(d)
ACCESS(a)
ACCESS(b)
ACCESS(c)

#ifdef COMPLEX
#define T vec2
#define LOAD(name, i) uintBitsToFloat(name##64[i])
#define STORE(i, x) d64[i] = floatBitsToUint(x)
T multiply_add(const T x, const T y, const T s) { return vec2(fma(x.x, y.x, fma(-x.y, y.y, s.x)), fma(x.x, y.y, fma(x.y, y.x, s.y))); }
#else
#define T float
#define LOAD(name, i) loadf_##name(i, TYPE)
#define STORE(i, x) storef_d(i, TYPE, x)
T multiply_add(const T x, const T y, const T s) { return fma(x, y, s); }
#endif

const uint DOWN = gl_WorkGroupSize.x / 16u, EACH = 16u / DOWN;
shared T tile_a[16][17], tile_b[16][17];

void main()
{
    uint x = gl_LocalInvocationID.x % 16u, y = gl_LocalInvocationID.x / 16u;
    uint row = gl_WorkGroupID.y * 16u, column = gl_WorkGroupID.x * 16u;
    Place p = place(gl_WorkGroupID.z);
    T sum[EACH];
    [[unroll]] for (uint i = 0u; i < EACH; i++) sum[i] = T(0.0);
    for (uint k = 0u; k < K; k += 16u) {
        [[unroll]] for (uint i = 0u; i < EACH; i++) {
            // neighbouring threads read along the shorter stride
            uint z = y + i * DOWN, am = a_k == 1u ? z : x, ak = a_k == 1u ? x : z, bk = b_k == 1u ? x : z, bn = b_k == 1u ? z : x;
            tile_a[am][ak] = row + am < M && k + ak < K ? LOAD(a, p.a + (row + am) * a_row + (k + ak) * a_k) : T(0.0);
            tile_b[bk][bn] = column + bn < N && k + bk < K ? LOAD(b, p.b + (k + bk) * b_k + (column + bn) * b_col) : T(0.0);
        }
        barrier();
        for (uint l = 0u; l < 16u; l++)
            [[unroll]] for (uint i = 0u; i < EACH; i++) sum[i] = multiply_add(tile_a[y + i * DOWN][l], tile_b[l][x], sum[i]);
        barrier();
    }
    column += x;
    [[unroll]] for (uint i = 0u; i < EACH; i++) {
        uint m = row + y + i * DOWN;
        if (m >= M || column >= N) continue;
        if (EPILOGUE == SCALE) sum[i] = SCALED(sum[i], LOAD(c, p.c + m * c_row + column * c_col));
        STORE(p.d + m * out_row + column * out_col, sum[i]);
    }
}
