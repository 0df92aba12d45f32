// What the kernels of Fourier transforms share (fft.comp, fft_more.comp): constants, flags, where elements are.
#ifndef FFT_LINES_GLSL
#define FFT_LINES_GLSL
#include "fft.glsl"
layout(constant_id = 1) const uint ROOM = 2048;       // elements of a workgroup; FIXED: places of a line in shared memory
layout(constant_id = 2) const uint SIZE = 1;
layout(constant_id = 3) const uint RADICES = 0;
layout(constant_id = 4) const uint LINES = 1;
layout(constant_id = 5) const uint FLAGS = 0;
layout(constant_id = 6) const uint SUBS = 1;
layout(constant_id = 7) const uint INNER = 1;
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, first)
BUFFER(3, last)

layout(push_constant) uniform fft_push {
    uint size_, radices_, ids, lines_, flags_;         // radices: less one, four bits each; see CODE_25
    uint offset_a, offset_d, offset_first, offset_last;
    uint len, valid, limit;                            // of a row's transform; elements of its operand; results to store
    uint subs_, inner_;                                // lines a row is cut into; of which `inner` follow each other
    uint a1, a2, a_step, b1, b2, b_step;               // a line's first element: a1 * (sub / inner) + a2 * (sub % inner)
    uint turn;                                         // twiddles: roots of this order
    uint c1, c2;                                       // the two inner sizes of up to three dimensions of rows
    uint row_a[3], step_a, row_d[3], step_d;           // their distances in memory, those of a row's elements
    float scale;
};

#ifdef FIXED
#define size SIZE
#define lines LINES
#define flags FLAGS
#define subs SUBS
#define inner INNER
#else
#define size size_
#define lines lines_
#define flags flags_
#define subs subs_
#define inner inner_
#endif

//! enum FFT_: flags; elements of a thread of FIXED kernels, but whole groups
// How elements are loaded: complex; real; pairs of reals as complex numbers; the half of a symmetric spectrum, its
// transform being real; that of a real row twice as long, whose even and odd elements become pairs; pairs' spectrum as a half.
const uint LOAD = 7u, LOAD_COMPLEX = 0u, LOAD_REAL = 1u, LOAD_PAIRS = 2u, LOAD_HALF = 3u, LOAD_MERGE = 4u, LOAD_SPLIT = 5u;
// How they are stored: complex; the real part; pairs; as a half, from shared memory.
const uint STORE = 7u << 3, STORE_COMPLEX = 0u << 3, STORE_REAL = 1u << 3, STORE_PAIRS = 2u << 3, STORE_SPLIT = 3u << 3;
// Exchanges of real and imaginary parts (which make an inverse transform), products with tables, orders of access; rows are of
// one dimension; neighbouring lines are those of neighbouring rows, which have one dimension then; a workgroup's lines are t, ...
// of a row and, after these, subs - t, ..., which together hold each element e beside len - e. FIXED only: a spectrum is merged to
// pairs in shared memory before the first pass; real and imaginary parts are exchanged one after the other, in half the shared
// memory; lines are short, and loaded as one; the transform is multiplied with the last table, exchanged and transformed again, and
// the first table is that of results too.
const uint SWAP_IN = 1u << 6, TABLE_IN = 1u << 7, TURN = 1u << 8, SWAP_OUT = 1u << 9, TABLE_OUT = 1u << 10, SWAP_LAST = 1u << 11,
           LINES_IN = 1u << 12, LINES_OUT = 1u << 13, FLAT = 1u << 14, MERGED = 1u << 15, ACROSS = 1u << 18,
           HALVES = 1u << 19, SHORT = 1u << 20, PAIRED = 1u << 21, CONVOLVED = 1u << 22, AHEAD = 1u << 23,
           STRAIGHT = 1u << 24;
// All elements that are asked for are there, and complex: loads need no branches.
const uint ALL_IN = 1u << 16, ALL_OUT = 1u << 17;
const uint HELD = 16, CODE_25 = 14;                     // what stands for a radix of 25 (FIXED)

bool has(const uint flag) { return (flags & flag) != 0u; }

// Places in shared memory: of element e of line l; beyond an element's that of the one c further on, which for powers of two has
// no bits in common with it, and is known to the compiler. Neither steps of a power of two nor neighbouring lines collide.
#ifdef FIXED
const bool BINARY = (SIZE & (SIZE - 1u)) == 0u;
shared vec2 staged[(FLAGS & HALVES) != 0u ? 1u : LINES * ROOM];
shared float parts[(FLAGS & HALVES) != 0u ? LINES * ROOM : 1u];
uint beyond(const uint c) { return BINARY ? c + (c >> 4) : c; }
uint slot(const uint l, const uint e) { return l * ROOM + beyond(e); }
#else
shared vec2 staged[2 * ROOM];
uint beyond(const uint c) { return c; }
uint slot(const uint l, const uint e) { return l * size + e; }
#endif

vec2 element(const uint at, const uint e);                         // of the row at `at`; zero behind its operand's

vec2 bin(const uint at, const uint e, const uint n)                      // of a real row of n: the first and the middle one are real
{
    vec2 x = element(at, e);
    return e == 0u || 2u * e == n ? vec2(x.x, 0.0) : x;
}

// The half of a real row's spectrum, from that of its pairs at e and len - e.
vec2 split(const vec2 x, const vec2 y, const uint e)
{
    vec2 even = 0.5 * (x + conjugate(y)), odd = 0.5 * (x - conjugate(y));
    return even + multiply(e < len ? root(e, 2u * len) : vec2(-1.0, 0.0), vec2(odd.y, -odd.x));
}

uint row_at(const uint row, const uint far, const uint middle, const uint near) { return row / c2 / c1 * far + row / c2 % c1 * middle + row % c2 * near; }

uint row_of(const uint id) { return has(ACROSS) ? id % c2 : id / subs; }
uint sub_of(const uint id) { return has(ACROSS) ? id / c2 : id % subs; }

// Where the row begins that line `id` is of; an element's number in it.
uint place_in(const uint id) { return offset_a + (has(FLAT) ? row_of(id) * row_a[2] : row_at(row_of(id), row_a[0], row_a[1], row_a[2])); }
uint place_out(const uint id) { return offset_d + (has(FLAT) ? row_of(id) * row_d[2] : row_at(row_of(id), row_d[0], row_d[1], row_d[2])); }
uint number_in(const uint sub, const uint e) { return sub / inner * a1 + sub % inner * a2 + (has(LINES_IN) ? e * a_step : e); }
uint number_out(const uint sub, const uint e) { return sub / inner * b1 + sub % inner * b2 + (has(LINES_OUT) ? e * b_step : e); }
#endif
