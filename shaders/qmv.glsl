// What the kernels for few rows of x share: bindings, and how a result is stored. SETS: up to three matrices.
#ifndef QMV_GLSL
#define QMV_GLSL
//! enum QMV_: what is stored: products; + residual; silu(first) * second
const uint STORE = 0, ADD = 1, SWIGLU = 2;

// Kernels that may be linked read what steps in front of them wrote, and write for those behind.
#if (defined(HELD) && !defined(GATHER)) || defined(PREPARED)
#define LINKED
#define PASSED restrict coherent
#else
#define PASSED restrict
#endif
SOURCE_OF(PASSED, 0, x)
#ifdef PREPARED
SOURCE_OF(restrict coherent, 1, wa)                    // asked for between the barriers where it says so: qmv_matrix.comp, meet()
#else
SOURCE(1, wa)
#endif
SOURCE(2, sa)
SOURCE(3, ba)
#ifdef SETS
SOURCE(4, wb)
SOURCE(5, sb)
SOURCE(6, bb)
SOURCE(7, wc)
SOURCE(8, sc)
SOURCE(9, bc)
TARGET_OF(PASSED, 10, ya)
TARGET_OF(PASSED, 11, yb)
TARGET_OF(PASSED, 12, yc)
SOURCE_OF(PASSED, 13, res)
#ifdef HELD
SOURCE(14, weight)
#define LINKS 15
#endif
#else
TARGET_OF(PASSED, 4, ya)
SOURCE_OF(PASSED, 5, res)
#ifdef LINKED
#define LINKS 7
#endif
#ifdef PREPARED
SOURCE_OF(PASSED, 6, weight)
#elif defined(LINKED)
SOURCE(6, weight)
#endif
#endif
#ifdef LINKED
#include "links.glsl"
#endif
#ifdef GATHER                                          // which matrices this workgroup takes: of x, of the weights, of y
SOURCE(6, lhs)
SOURCE(7, rhs)
uint x_matrix, w_matrix, y_matrix;
#else
#define x_matrix gl_WorkGroupID.z
#define w_matrix gl_WorkGroupID.z
#define y_matrix gl_WorkGroupID.z
#endif
const uint STEP = EPILOGUE == SWIGLU ? 2u : 1u;        // rows of this many matrices alternate

uint residual(const uint set, const uint i, const uint n) { return RAW(res, r_at + i * y_row[set] + n, TY); }
// The same of 16 bits early: as the word that it lies in, for one of 16 bits would be waited for where it is asked for.
uint residual_word(const uint set, const uint i, const uint n) { return res32[r_at + i * y_row[set] + n >> 1]; }
uint residual_in(const uint word, const uint set, const uint i, const uint n)
{
    return word >> (r_at + i * y_row[set] + n & 1u) * 16u & 0xffffu;
}
void store_added(const uint set, const uint i, const uint n, float y, const uint residual)
{
    uint at = y_matrix * y_batch + y_at[set] + i * y_row[set] + n;
    if (EPILOGUE == ADD) y = rounded(y, TY) + number(residual, TY);
    uint raw = float_to_bits(y, TY);
#ifdef SETS
    if (set == 1u) PUT(yb, at, TY, raw)
    else if (set == 2u) PUT(yc, at, TY, raw)
    else
#endif
        PUT(ya, at, TY, raw)
}
void store(const uint set, const uint i, const uint n, const float y)
{
    store_added(set, i, n, y, EPILOGUE == ADD ? residual(set, i, n) : 0u);
}

float swiglu(const float g, const float u) { return g / (1.0 + exp(-g)) * u; }     // silu(g) * u, not rounded in between
#endif
