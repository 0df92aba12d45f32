#version 460
#extension GL_GOOGLE_include_directive : require
// Matrix products of any layout, by tiles of 16 x 16 with one element a thread. COMPLEX: complex64.
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
T multiply_add(T x, T y, T s) { return vec2(fma(x.x, y.x, fma(-x.y, y.y, s.x)), fma(x.x, y.y, fma(x.y, y.x, s.y))); }
#else
#define T float
#define LOAD(name, i) loadf_##name(i, TYPE)
#define STORE(i, x) storef_d(i, TYPE, x)
T multiply_add(T x, T y, T s) { return fma(x, y, s); }
#endif

shared T tile_a[16][17], tile_b[16][17];

void main()
{
    uint x = gl_LocalInvocationID.x % 16u, y = gl_LocalInvocationID.x / 16u;
    uint row = gl_WorkGroupID.y * 16u, column = gl_WorkGroupID.x * 16u;
    Place p = place(gl_WorkGroupID.z);
    T sum = T(0.0);
    // neighbouring threads read along the shorter stride
    uint am = a_k == 1u ? y : x, ak = a_k == 1u ? x : y, bk = b_k == 1u ? x : y, bn = b_k == 1u ? y : x;
    for (uint k = 0u; k < K; k += 16u) {
        tile_a[am][ak] = row + am < M && k + ak < K ? LOAD(a, p.a + (row + am) * a_row + (k + ak) * a_k) : T(0.0);
        tile_b[bk][bn] = column + bn < N && k + bk < K ? LOAD(b, p.b + (k + bk) * b_k + (column + bn) * b_col) : T(0.0);
        barrier();
        for (uint i = 0u; i < 16u; i++) sum = multiply_add(tile_a[y][i], tile_b[i][x], sum);
        barrier();
    }
    row += y;
    column += x;
    if (row >= M || column >= N) return;
    if (EPILOGUE == SCALE) sum = SCALED(sum, LOAD(c, p.c + row * c_row + column * c_col));
    STORE(p.d + row * out_row + column * out_col, sum);
}
