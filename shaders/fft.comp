#version 460
#extension GL_GOOGLE_include_directive : require
// Fourier transforms whose length has no prime factor beyond 13 and whose elements fit into shared memory, by Stockham passes
// of radix 2 to 16; or one step of longer ones. A workgroup transforms some lines; a step's line is one of several that a row
// of the whole transform is cut into (subs), with its elements a_step apart, and the result's b_step. What is around a
// transform (packing of reals, chirps, the twiddles between steps, scaling) happens while loading and storing.
// FIXED: length, radices and flags are constants, elements stay in registers between passes, and the first and the last pass
// work on memory; else one pipeline serves all lengths, and passes go from one half of the shared memory to the other.
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

layout(push_constant) uniform Push {
    uint size_, radices_, ids, lines_, flags_;         // radices: less one, four bits each
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

// Flags. How elements are loaded: complex; real; pairs of reals as complex numbers; the half of a symmetric spectrum, its
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
bool has(uint flag) { return (flags & flag) != 0u; }

// Places in shared memory: of element e of line l; beyond an element's that of the one c further on, which for powers of two has
// no bits in common with it, and is known to the compiler. Neither steps of a power of two nor neighbouring lines collide.
#ifdef FIXED
const uint HELD = 16;                                  // elements of a thread, but whole groups
const bool BINARY = (SIZE & (SIZE - 1u)) == 0u;
shared vec2 staged[(FLAGS & HALVES) != 0u ? 1u : LINES * ROOM];
shared float parts[(FLAGS & HALVES) != 0u ? LINES * ROOM : 1u];
uint beyond(uint c) { return BINARY ? c + (c >> 4) : c; }
uint slot(uint l, uint e) { return l * ROOM + beyond(e); }
#else
shared vec2 staged[2 * ROOM];
uint beyond(uint c) { return c; }
uint slot(uint l, uint e) { return l * size + e; }
#endif

#ifndef MORE
vec2 element(uint at, uint e) { return e < valid ? uintBitsToFloat(a64[at + e * step_a]) : vec2(0.0); }
float real(uint at, uint e) { return e < valid ? uintBitsToFloat(a32[at + e * step_a]) : 0.0; }
#else /* MORE */
uint step_in(uint e) { return has(LINES_IN) ? e * step_a : e; }

// Without branches: there is an element.
vec2 element(uint at, uint e)
{
    vec2 x = uintBitsToFloat(a64[at + step_in(has(ALL_IN) ? e : min(e, valid - 1u))]);
    return has(ALL_IN) || e < valid ? x : vec2(0.0);
}
float real(uint at, uint e)
{
    float x = uintBitsToFloat(a32[at + step_in(min(e, valid - 1u))]);
    return e < valid ? x : 0.0;
}
#endif /* MORE */
vec2 bin(uint at, uint e, uint n)                      // of a real row of n: the first and the middle one are real
{
    vec2 x = element(at, e);
    return e == 0u || 2u * e == n ? vec2(x.x, 0.0) : x;
}

// The half of a real row's spectrum, from that of its pairs at e and len - e.
vec2 split(vec2 x, vec2 y, uint e)
{
    vec2 even = 0.5 * (x + conjugate(y)), odd = 0.5 * (x - conjugate(y));
    return even + multiply(e < len ? root(e, 2u * len) : vec2(-1.0, 0.0), vec2(odd.y, -odd.x));
}

#ifndef MORE
vec2 load(uint at, uint e)
#else /* MORE */
vec2 load(uint at, uint number)
#endif /* MORE */
{
#ifndef MORE
    uint how = flags & LOAD;
#else /* MORE */
    uint how = flags & LOAD, e = has(ALL_IN) ? number : min(number, how == LOAD_SPLIT ? len : len - 1u);
#endif /* MORE */
    vec2 x;
#ifndef MORE
    if (!has(ALL_IN) && e >= len + uint(how == LOAD_SPLIT)) return vec2(0.0);
    if (has(ALL_IN)) x = uintBitsToFloat(a64[at + (has(LINES_IN) ? e * step_a : e)]);
    else if (how == LOAD_COMPLEX) x = element(at, e);
#else /* MORE */
    if (how == LOAD_COMPLEX) x = element(at, e);
#endif /* MORE */
    else if (how == LOAD_REAL) x = vec2(real(at, e), 0.0);
    else if (how == LOAD_PAIRS) x = vec2(real(at, 2u * e), real(at, 2u * e + 1u));
    else if (how == LOAD_HALF) x = 2u * e > len ? conjugate(bin(at, len - e, len)) : bin(at, e, len);
    else if (how == LOAD_MERGE) {
        vec2 y = bin(at, e, 2u * len), z = conjugate(bin(at, len - e, 2u * len)), odd = multiply(conjugate(root(e, 2u * len)), y - z);
        x = y + z + vec2(-odd.y, odd.x);
    } else x = split(element(at, e < len ? e : 0u), element(at, e > 0u ? len - e : 0u), e);
    if (has(SWAP_IN)) x = x.yx;
    if (has(TABLE_IN)) x = multiply(x, uintBitsToFloat(first64[offset_first + e]));
#ifndef MORE
    return x;
#else /* MORE */
    return e == number ? x : vec2(0.0);
}

// What is stored of element e, but for what is beyond the limit.
vec2 complete(uint e, vec2 x)
{
    if (has(SWAP_OUT)) x = x.yx;
    if (has(TABLE_OUT)) {
        e = has(ALL_OUT) ? e : min(e, limit - 1u);
        x = multiply(x, uintBitsToFloat(has(CONVOLVED) ? first64[offset_first + e] : last64[offset_last + e]));
    }
    return (has(SWAP_LAST) ? x.yx : x) * scale;
#endif /* MORE */
}

void store(uint at, uint e, vec2 x)
{
    uint how = flags & STORE;
    if (!has(ALL_OUT) && e >= limit) return;
#ifndef MORE
    if (has(SWAP_OUT)) x = x.yx;
    if (has(TABLE_OUT)) x = multiply(x, uintBitsToFloat(last64[offset_last + e]));
    if (has(SWAP_LAST)) x = x.yx;
    x *= scale;
#endif /* ! MORE */
    if (how == STORE_REAL) d32[at + e * step_d] = floatBitsToUint(x.x);
    else if (how == STORE_PAIRS) {
        d32[at + 2u * e * step_d] = floatBitsToUint(x.x);
        d32[at + (2u * e + 1u) * step_d] = floatBitsToUint(x.y);
    } else d64[at + (has(LINES_OUT) ? e * step_d : e)] = floatBitsToUint(x);
}

uint row_at(uint row, uint far, uint middle, uint near) { return row / c2 / c1 * far + row / c2 % c1 * middle + row % c2 * near; }

uint row_of(uint id) { return has(ACROSS) ? id % c2 : id / subs; }
uint sub_of(uint id) { return has(ACROSS) ? id / c2 : id % subs; }

// Where the row begins that line `id` is of; an element's number in it.
uint place_in(uint id) { return offset_a + (has(FLAT) ? row_of(id) * row_a[2] : row_at(row_of(id), row_a[0], row_a[1], row_a[2])); }
uint place_out(uint id) { return offset_d + (has(FLAT) ? row_of(id) * row_d[2] : row_at(row_of(id), row_d[0], row_d[1], row_d[2])); }
uint number_in(uint sub, uint e) { return sub / inner * a1 + sub % inner * a2 + (has(LINES_IN) ? e * a_step : e); }
uint number_out(uint sub, uint e) { return sub / inner * b1 + sub % inner * b2 + (has(LINES_OUT) ? e * b_step : e); }

#ifdef MORE
uint group;                                            // of lines: the workgroup's number, with AHEAD one after the other

// The number of this workgroup's line l among all lines; not below ids: there is none. Of pairs of lines, the first of a row is
// that of two which are their own partners.
uint line_id(uint l)
{
    uint pairs = (subs + 1u) / 2u, half_of = lines / 2u, p, t, row, sub;
    if (!has(PAIRED)) return group * lines + l;
    p = group * half_of + l % half_of;
    t = has(ACROSS) ? p / c2 : p % pairs;
    row = has(ACROSS) ? p % c2 : p / pairs;
    sub = l < half_of ? t : t > 0u ? subs - t : subs / 2u;
    if (has(ACROSS) && t >= pairs || l >= half_of && t == 0u && subs % 2u > 0u) return ids;
    return has(ACROSS) ? sub * c2 + row : row * subs + sub;
}

// Item k of pair l: two elements' places in shared memory, the first one's number e in its row (the other's is len - e), and that
// of a line of the row; not below ids: there is none. Without PAIRED both elements are of line l.
uvec4 pair_at(uint l, uint k)
{
    uint id = line_id(l), other = l + lines / 2u, sub = has(PAIRED) && id < ids ? sub_of(id) : 0u;
    if (sub > 0u) return uvec4(slot(l, k), slot(other, size - 1u - k), sub + subs * k, k < size ? id : ids);
    if (!has(PAIRED) || 2u * k <= size) return uvec4(slot(l, k), slot(l, k > 0u ? size - k : 0u), subs * k, id);
    k -= size / 2u + 1u;
    return uvec4(slot(other, k), slot(other, size - 1u - k), subs / 2u + subs * k, subs % 2u > 0u ? ids : id);
}
uint pairs_of_lines() { return has(PAIRED) ? lines / 2u : lines; }
uint items_of_pair() { return has(PAIRED) ? size + 1u : size / 2u + 1u; }

#endif /* MORE */
// Element e of line l of this workgroup.
vec2 fetch(uint l, uint e)
{
#ifndef MORE
    uint id = group_index() * lines + l;
#else /* MORE */
    uint id = line_id(l);
#endif /* MORE */
    if (has(ALL_IN)) id = min(id, ids - 1u);
    else if (id >= ids) return vec2(0.0);
    return load(place_in(id), number_in(sub_of(id), e));
}

#ifdef MORE
// Result e of line l, complete.
#endif /* MORE */
void put(uint l, uint e, vec2 x)
{
#ifndef MORE
    uint id = group_index() * lines + l;
#else /* MORE */
    uint id = line_id(l);
#endif /* MORE */
    if (id < ids) store(place_out(id), number_out(sub_of(id), e), x);
}

#ifdef MORE
vec2 complete(uint l, uint e, vec2 x) { return complete(number_out(sub_of(line_id(l)), e), x); }

#endif /* MORE */
// The root whose powers a line's elements are multiplied with before they are stored.
#ifndef MORE
vec2 turn_of(uint l, uint e) { return root(sub_of(group_index() * lines + l) % inner * e, turn); }
#else /* MORE */
vec2 turn_of(uint l, uint e) { return root(sub_of(line_id(l)) % inner * e, turn); }
#endif /* MORE */

// ---- transforms of a few elements, in v[o], v[o + 1], ... of a thread ----

#ifdef FIXED
vec2 v[26];
#else
vec2 v[16];
#endif

#define FOUR(a, b, c, d) { \
    vec2 p = a + c, q = a - c, r = b + d, s = (b - d).yx * vec2(1.0, -1.0); \
    a = p + r; b = q + s; c = p - r; d = q - s; }

const float C8 = 0.70710678118654752, C16 = 0.92387953251128674, S16 = 0.38268343236508977;
const vec2 ROOT16[10] = { vec2(1, 0), vec2(C16, -S16), vec2(C8, -C8), vec2(S16, -C16), vec2(0, -1), vec2(-S16, -C16), vec2(-C8, -C8),
                          vec2(-C16, -S16), vec2(-1, 0), vec2(-C16, S16) };

void butterfly2(uint o) { vec2 x = v[o]; v[o] += v[o + 1]; v[o + 1] = x - v[o + 1]; }
void butterfly4(uint o) FOUR(v[o], v[o + 1], v[o + 2], v[o + 3])
void butterfly8(uint o)                                // leaves element k at (k % 4) * 2 + k / 4
{
    FOUR(v[o], v[o + 2], v[o + 4], v[o + 6])
    FOUR(v[o + 1], v[o + 3], v[o + 5], v[o + 7])
    [[unroll]] for (uint i = 0; i < 4; i++) {
        vec2 x = v[o + 2 * i], y = multiply(v[o + 2 * i + 1], ROOT16[2 * i]);
        v[o + 2 * i] = x + y;
        v[o + 2 * i + 1] = x - y;
    }
}
void butterfly16(uint o)                               // leaves element k at (k % 4) * 4 + k / 4
{
    [[unroll]] for (uint i = 0; i < 4; i++) FOUR(v[o + i], v[o + i + 4], v[o + i + 8], v[o + i + 12])
    [[unroll]] for (uint i = 1; i < 4; i++)
        [[unroll]] for (uint k = 1; k < 4; k++) v[o + i + 4 * k] = multiply(v[o + i + 4 * k], ROOT16[i * k]);
    [[unroll]] for (uint k = 0; k < 16; k += 4) FOUR(v[o + k], v[o + k + 1], v[o + k + 2], v[o + k + 3])
}

// cos and sin of 2 pi k / R
const vec2 TURN3[3] = { vec2(1, 0), vec2(-0.5, 0.86602540378443865), vec2(-0.5, -0.86602540378443865) };
const vec2 TURN5[5] = { vec2(1, 0), vec2(0.30901699437494742, 0.95105651629515357), vec2(-0.80901699437494742, 0.58778525229247313),
    vec2(-0.80901699437494742, -0.58778525229247313), vec2(0.30901699437494742, -0.95105651629515357) };
const vec2 TURN7[7] = { vec2(1, 0), vec2(0.62348980185873353, 0.78183148246802981), vec2(-0.22252093395631440, 0.97492791218182361),
    vec2(-0.90096886790241913, 0.43388373911755812), vec2(-0.90096886790241913, -0.43388373911755812),
    vec2(-0.22252093395631440, -0.97492791218182361), vec2(0.62348980185873353, -0.78183148246802981) };
const vec2 TURN11[11] = { vec2(1, 0), vec2(0.84125353283118117, 0.54064081745559758), vec2(0.41541501300188643, 0.90963199535451837),
    vec2(-0.14231483827328514, 0.98982144188093273), vec2(-0.65486073394528506, 0.75574957435425828),
    vec2(-0.95949297361449739, 0.28173255684142970), vec2(-0.95949297361449739, -0.28173255684142970),
    vec2(-0.65486073394528506, -0.75574957435425828), vec2(-0.14231483827328514, -0.98982144188093273),
    vec2(0.41541501300188643, -0.90963199535451837), vec2(0.84125353283118117, -0.54064081745559758) };
const vec2 TURN13[13] = { vec2(1, 0), vec2(0.88545602565320989, 0.46472317204376854), vec2(0.56806474673115581, 0.82298386589365640),
    vec2(0.12053668025532305, 0.99270887409805400), vec2(-0.35460488704253562, 0.93501624268541482),
    vec2(-0.74851074817110109, 0.66312265824079520), vec2(-0.97094181742605203, 0.23931566428755777),
    vec2(-0.97094181742605203, -0.23931566428755777), vec2(-0.74851074817110109, -0.66312265824079520),
    vec2(-0.35460488704253562, -0.93501624268541482), vec2(0.12053668025532305, -0.99270887409805400),
    vec2(0.56806474673115581, -0.82298386589365640), vec2(0.88545602565320989, -0.46472317204376854) };

#define ODD(R) \
    void butterfly##R(uint o, uint step) \
    { \
        vec2 sum[R / 2], dif[R / 2], start = v[o]; \
        [[unroll]] for (uint k = 0; k < R / 2; k++) { \
            sum[k] = v[o + (k + 1) * step] + v[o + (R - 1 - k) * step]; \
            dif[k] = v[o + (k + 1) * step] - v[o + (R - 1 - k) * step]; \
            v[o] += sum[k]; \
        } \
        [[unroll]] for (uint m = 1; m <= R / 2; m++) { \
            vec2 p = start, q = vec2(0.0); \
            [[unroll]] for (uint k = 0; k < R / 2; k++) { \
                vec2 w = TURN##R[(k + 1) * m % R]; \
                p = fma(sum[k], vec2(w.x), p); \
                q = fma(dif[k], vec2(w.y), q); \
            } \
            v[o + m * step] = p + vec2(q.y, -q.x); \
            v[o + (R - m) * step] = p - vec2(q.y, -q.x); \
        } \
    } \
    void butterfly##R(uint o) { butterfly##R(o, 1u); }
ODD(3) ODD(5) ODD(7) ODD(11) ODD(13)

const vec2 ROOT9[5] = { vec2(1, 0), vec2(0.76604444311897804, -0.64278760968653933), vec2(0.17364817766693035, -0.98480775301220806),
                        vec2(-0.5, -0.86602540378443865), vec2(-0.93969262078590838, -0.34202014332566873) };
const vec2 ROOT10[5] = { vec2(1, 0), vec2(0.80901699437494742, -0.58778525229247313), vec2(0.30901699437494742, -0.95105651629515357),
                         vec2(-0.30901699437494742, -0.95105651629515357), vec2(-0.80901699437494742, -0.58778525229247313) };

void butterfly9(uint o)                                // leaves element k at (k % 3) * 3 + k / 3
{
    [[unroll]] for (uint i = 0; i < 3; i++) butterfly3(o + i, 3u);
    [[unroll]] for (uint i = 1; i < 3; i++)
        [[unroll]] for (uint k = 1; k < 3; k++) v[o + i + 3 * k] = multiply(v[o + i + 3 * k], ROOT9[i * k]);
    [[unroll]] for (uint k = 0; k < 3; k++) butterfly3(o + 3 * k);
}
void butterfly10(uint o)                               // leaves element k at (k % 5) * 2 + k / 5
{
    butterfly5(o, 2u);
    butterfly5(o + 1u, 2u);
    [[unroll]] for (uint k = 0; k < 5; k++) {
        v[o + 2 * k + 1] = multiply(v[o + 2 * k + 1], ROOT10[k]);
        butterfly2(o + 2 * k);
    }
}

// Where a group of r leaves its element i.
uint order(uint r, uint i)
{
    return r == 16u ? i % 4u * 4u + i / 4u : r == 8u ? i % 4u * 2u + i / 4u : r == 9u ? i % 3u * 3u + i / 3u : r == 10u ? i % 5u * 2u + i / 5u : i;
}

// ---- passes: of radix r, after passes that together transformed `done` elements ----

// Multiplies element i of a group of r, with start * root^i; of a result they are out of order.
void twiddle(uint o, uint r, vec2 start, vec2 root, bool ordered, bool starts)
{
    vec2 w[16];
    w[0] = start;
    w[1] = root;
    if (r == 16u) {                                    // two products each, but few powers to keep
        w[2] = multiply(w[1], w[1]);
        w[3] = multiply(w[2], w[1]);
        w[4] = multiply(w[2], w[2]);
        w[8] = multiply(w[4], w[4]);
        w[12] = multiply(w[8], w[4]);
        if (starts) [[unroll]] for (uint i = 4; i < 16u; i += 4u) w[i] = multiply(w[i], start);
        [[unroll]] for (uint i = 0; i < 16u; i++) {
            uint at = o + (ordered ? order(r, i) : i);
            if (i % 4u > 0u) v[at] = multiply(v[at], w[i % 4u]);
            if (i / 4u > 0u || starts) v[at] = multiply(v[at], w[i / 4u * 4u]);
        }
        return;
    }
    [[unroll]] for (uint i = 0; i < r; i++) {
        uint at = o + (ordered ? order(r, i) : i);
        if (i > 1u) w[i] = multiply(w[i / 2u], w[i - i / 2u]);
        if (i > 0u) v[at] = multiply(v[at], w[i]);
        if (starts) v[at] = multiply(v[at], start);
    }
}

// Of the group number j of a pass.
void turn_group(uint o, uint r, uint done, uint j)
{
    if (done > 1u) twiddle(o, r, vec2(0.0), r >= 8u ? near_root(j % done, done * r) : root(j % done, done * r), false, false);
}

// A group of r elements, of line g.x the one number g.y, from shared memory to v[o], v[o + 1], ... and back.
void get(uint o, uint r, uint done, uvec2 g, uint base)
{
    [[unroll]] for (uint i = 0; i < r; i++) v[o + i] = staged[base + slot(g.x, g.y) + beyond(i * (size / r))];
    turn_group(o, r, done, g.y);
}

uint target(uint r, uint done, uint j) { return j / done * done * r + j % done; }   // of a group's first result

void set(uint o, uint r, uint done, uvec2 g, uint base)
{
    uint to = slot(g.x, target(r, done, g.y));
    [[unroll]] for (uint i = 0; i < r; i++) staged[base + to + beyond(i * done)] = v[o + order(r, i)];
}

#ifndef MORE
// The line of number q among all lines' `many` each, and which of that line's it is.
uvec2 line_and_rest(uint q, uint many, bool by_line)
#else /* MORE */
// The line of number q among `count` lines' `many` each, and which of that line's it is.
uvec2 line_and_rest(uint q, uint count, uint many, bool by_line)
{
    if (count == 1u) return uvec2(0u, q);
    return by_line ? uvec2(q % count, q / count) : uvec2(q / many, q % many);
}

// All of this workgroup's elements from shared memory to the result; two of a half spectrum from two each.
void split_all(uint base)
#endif /* MORE */
{
#ifndef MORE
    if (lines == 1u) return uvec2(0u, q);
    return by_line ? uvec2(q % lines, q / lines) : uvec2(q / many, q % many);
#else /* MORE */
    uint count = pairs_of_lines(), many = items_of_pair(), total = count * many, n = size * subs;
    for (uint i = gl_LocalInvocationID.x; i < total; i += gl_WorkGroupSize.x) {
        uvec2 g = line_and_rest(i, count, many, has(LINES_OUT));
        uvec4 p = pair_at(g.x, g.y);
        vec2 x, y, odd;
        uint at;
        if (p.w >= ids) continue;
        x = staged[base + p.x];
        y = conjugate(staged[base + p.y]);
        odd = 0.5 * vec2(x.y - y.y, y.x - x.x);
        x = 0.5 * (x + y);
        at = place_out(p.w);
        odd = multiply(root(p.z, 2u * n), odd);
        store(at, p.z, (x + odd) * scale);
        if (2u * p.z != n) store(at, n - p.z, conjugate(x - odd) * scale);
    }
#endif /* MORE */
}

#ifndef MORE
// All of this workgroup's elements from shared memory to the result.
#endif /* ! MORE */
void put_all(uint base)
{
#ifndef MORE
    bool halves = (flags & STORE) == STORE_SPLIT;
    uint many = halves ? size / 2u + 1u : size, total = many * lines;
#else /* MORE */
    uint total = size * lines;
    if ((flags & STORE) == STORE_SPLIT) { split_all(base); return; }
#endif /* MORE */
    for (uint i = gl_LocalInvocationID.x; i < total; i += gl_WorkGroupSize.x) {
#ifndef MORE
        uvec2 at = line_and_rest(i, many, has(LINES_OUT));
        uint l = at.x, e = at.y;
        vec2 x = staged[base + slot(l, e)], y, odd;
        if (!halves) { put(l, e, has(TURN) ? multiply(x, turn_of(l, e)) : x); continue; }
        y = staged[base + slot(l, e > 0u ? size - e : 0u)];      // two elements of the half spectrum from these
        odd = 0.5 * (x - conjugate(y));
        odd = multiply(root(e, 2u * size), vec2(odd.y, -odd.x));
        x = 0.5 * (x + conjugate(y));
        put(l, e, x + odd);
        if (2u * e != size) put(l, size - e, conjugate(x - odd));
#else /* MORE */
        uvec2 g = line_and_rest(i, lines, size, has(LINES_OUT));
        vec2 x = staged[base + slot(g.x, g.y)];
        put(g.x, g.y, complete(g.x, g.y, has(TURN) ? multiply(x, turn_of(g.x, g.y)) : x));
#endif /* MORE */
    }
}

#ifdef FIXED
const uint R0 = (RADICES & 15u) + 1u, R1 = (RADICES >> 4 & 15u) + 1u, R2 = (RADICES >> 8 & 15u) + 1u, R3 = (RADICES >> 12 & 15u) + 1u,
           R4 = (RADICES >> 16 & 15u) + 1u, R5 = (RADICES >> 20 & 15u) + 1u, R6 = (RADICES >> 24 & 15u) + 1u, R7 = (RADICES >> 28) + 1u;
#ifndef MORE
const bool STAGED_OUT = (FLAGS & STORE) == STORE_SPLIT ? true : (FLAGS & SHORT) != 0u ? R1 == 1u : false;
#else /* MORE */
const bool STAGED_OUT = (FLAGS & STORE) == STORE_SPLIT ? (FLAGS & HALVES) == 0u
                      : (FLAGS & SHORT) != 0u ? R1 == 1u : false;
#endif /* MORE */

const bool EXACT = gl_WorkGroupSize.x * HELD == SIZE * LINES && BINARY;

// The workgroup's group that this thread holds at v[o]; by_line: neighbours are those of other lines. z: there is one.
uvec3 group_at(uint o, uint r, bool by_line)
{
    uint q = gl_LocalInvocationID.x + o / r * gl_WorkGroupSize.x, many = size / r;
#ifndef MORE
    return uvec3(line_and_rest(q, many, by_line), EXACT || q < many * lines ? 1u : 0u);
#else /* MORE */
    return uvec3(line_and_rest(q, lines, many, by_line), EXACT || q < many * lines ? 1u : 0u);
#endif /* MORE */
}

void butterflies(uint r)
{
    [[unroll]] for (uint o = 0; o < HELD; o += r)
        switch (r) {
        case 2u: butterfly2(o); break;
        case 3u: butterfly3(o); break;
        case 4u: butterfly4(o); break;
        case 5u: butterfly5(o); break;
        case 7u: butterfly7(o); break;
        case 8u: butterfly8(o); break;
        case 9u: butterfly9(o); break;
        case 10u: butterfly10(o); break;
        case 11u: butterfly11(o); break;
        case 13u: butterfly13(o); break;
        default: butterfly16(o);
        }
}

void from_shared(uint r, uint done, bool by_line)
{
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        if (g.z != 0u) get(o, r, done, g.xy, 0u);
    }
}

void to_shared(uint r, uint done, bool by_line)
{
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        if (g.z != 0u) set(o, r, done, g.xy, 0u);
    }
}

#ifndef MORE
// From groups of `before` to those of r elements, through shared memory.
#else /* MORE */
// From groups of `before` to those of r elements, through shared memory; one part of them after the other through half of it.
#define EXCHANGE_PART(c) \
    [[unroll]] for (uint o = 0; o < HELD; o += before) { \
        uvec3 g = group_at(o, before, from_line); \
        uint to = slot(g.x, target(before, done, g.y)); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < before; i++) parts[to + beyond(i * done)] = v[o + order(before, i)].c; \
    } \
    barrier(); \
    [[unroll]] for (uint o = 0; o < HELD; o += r) { \
        uvec3 g = group_at(o, r, by_line); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) v[o + i].c = parts[slot(g.x, g.y) + beyond(i * (size / r))]; \
    }

#endif /* MORE */
void exchange(uint before, uint r, uint done, bool from_line, bool by_line)
{
#ifndef MORE
    if (done > 1u) barrier();
#else /* MORE */
    uint turned = done * before < SIZE ? done * before : 1u;       // at the beginning of another transform nothing
    if (done > 1u || has(CONVOLVED) || has(AHEAD)) barrier();
#endif /* MORE */
    if ((FLAGS & HALVES) == 0u) {
        to_shared(before, done, from_line);
        barrier();
#ifndef MORE
        from_shared(r, done * before, by_line);
#else /* MORE */
        from_shared(r, turned, by_line);
#endif /* MORE */
        return;
    }
#ifndef MORE
    [[unroll]] for (uint y = 0; y < 2u; y++) {
        if (y > 0u) barrier();
        [[unroll]] for (uint o = 0; o < HELD; o += before) {
            uvec3 g = group_at(o, before, from_line);
            uint to = slot(g.x, target(before, done, g.y));
            if (g.z != 0u) [[unroll]] for (uint i = 0; i < before; i++) parts[to + beyond(i * done)] = v[o + order(before, i)][y];
        }
        barrier();
        [[unroll]] for (uint o = 0; o < HELD; o += r) {
            uvec3 g = group_at(o, r, by_line);
            if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) v[o + i][y] = parts[slot(g.x, g.y) + beyond(i * (size / r))];
#else /* MORE */
    EXCHANGE_PART(x)
    barrier();
    EXCHANGE_PART(y)
    [[unroll]] for (uint o = 0; o < HELD; o += r) turn_group(o, r, turned, group_at(o, r, by_line).y);
}

// Loads for the first pass of the next lines, while these are transformed; what load makes of them.
vec2 ahead[26], last_bin;

vec2 raw(uint at, uint e)
{
    e = step_in(has(ALL_IN) ? e : min(e, valid - 1u));
    return (flags & LOAD) == LOAD_REAL ? vec2(uintBitsToFloat(a32[at + e]), 0.0) : uintBitsToFloat(a64[at + e]);
}

void look_ahead(bool by_line)
{
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        uint at = place_in(min(line_id(g.x), ids - 1u));
        if (g.z == 0u) continue;
        [[unroll]] for (uint i = 0; i < R0; i++) ahead[o + i] = raw(at, g.y + i * (SIZE / R0));
        if (has(MERGED) && g.y == 0u) last_bin = raw(at, SIZE);
    }
}

void take(bool by_line)
{
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        if (g.z == 0u) continue;
        [[unroll]] for (uint i = 0; i < R0; i++) {
            uint e = g.y + i * (SIZE / R0);
            vec2 x = has(ALL_IN) || e < min(valid, len) ? ahead[o + i] : vec2(0.0);
            if (has(MERGED) && e == 0u) x.y = 0.0;
            if (has(SWAP_IN) && !has(MERGED)) x = x.yx;
            if (has(TABLE_IN)) x = multiply(x, uintBitsToFloat(first64[offset_first + (has(ALL_IN) ? e : min(e, len - 1u))]));
            v[o + i] = x;
#endif /* MORE */
        }
    }
#ifndef MORE
    [[unroll]] for (uint o = 0; o < HELD; o += r) turn_group(o, r, done * before, group_at(o, r, by_line).y);
#else /* MORE */
    last_bin = has(ALL_IN) || SIZE < valid ? last_bin : vec2(0.0);
#endif /* MORE */
}

#ifndef MORE
// Pairs' elements from a half spectrum, two at a time, to shared memory: the reverse of what put_all does.
void merge_all()
#else /* MORE */
// Pairs' elements from a half spectrum, for the first pass; the partners of what a thread loads come by way of shared memory.
uint partner(uint l, uint e)                           // whose number is that of the row less e's; e > 0 in the row
{
    uint sub = has(PAIRED) ? sub_of(line_id(l)) : 0u;
    if (sub > 0u && 2u * sub != SUBS) l = l < LINES / 2u ? l + LINES / 2u : l - LINES / 2u;
    return slot(l, sub > 0u ? SIZE - 1u - e : SIZE - e);
}

#define SEND(to, part) \
    [[unroll]] for (uint o = 0; o < HELD; o += R0) { \
        uvec3 g = group_at(o, R0, by_line); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < R0; i++) to[slot(g.x, g.y) + beyond(i * (SIZE / R0))] = v[o + i]part; \
    } \
    barrier(); \
    [[unroll]] for (uint o = 0; o < HELD; o += R0) { \
        uvec3 g = group_at(o, R0, by_line); \
        bool first = g.y == 0u && sub_of(min(line_id(g.x), ids)) == 0u; \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < R0; i++) \
            if (i > 0u || !first) u[o + i]part = to[partner(g.x, g.y + i * (SIZE / R0))]; \
    } \
    barrier();

void merge(bool by_line, vec2 last_bin)
#endif /* MORE */
{
#ifndef MORE
    const uint many = SIZE / 2u + 1u, total = many * LINES;
    [[unroll]] for (uint k = 0; k <= HELD / 2u; k++) {
        uvec2 g = line_and_rest(min(gl_LocalInvocationID.x + k * gl_WorkGroupSize.x, total - 1u), many, has(LINES_IN));
        uint at = place_in(min(group_index() * LINES + g.x, ids - 1u));
        v[2u * k] = bin(at, g.y, 2u * SIZE);
        v[2u * k + 1u] = conjugate(bin(at, SIZE - g.y, 2u * SIZE));
#else /* MORE */
    const uint n = SIZE * SUBS;
    vec2 u[26];
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        uint id = min(line_id(g.x), ids - 1u), sub = sub_of(id), at = place_in(id);
        if (g.z == 0u) continue;
        if (!has(AHEAD)) [[unroll]] for (uint i = 0; i < R0; i++) v[o + i] = bin(at, sub + SUBS * (g.y + i * (SIZE / R0)), 2u * n);
        u[o] = has(AHEAD) ? vec2(last_bin.x, 0.0) : sub == 0u && g.y == 0u ? bin(at, n, 2u * n) : vec2(0.0);
#endif /* MORE */
    }
#ifndef MORE
    [[unroll]] for (uint k = 0; k <= HELD / 2u; k++) {
        uint i = gl_LocalInvocationID.x + k * gl_WorkGroupSize.x;
        uvec2 g = line_and_rest(i, many, has(LINES_IN));
        vec2 x = v[2u * k] + v[2u * k + 1u], odd = multiply(conjugate(root(g.y, 2u * SIZE)), v[2u * k] - v[2u * k + 1u]);
        vec2 y = vec2(x.x + odd.y, odd.x - x.y);
        x += vec2(-odd.y, odd.x);
        if (i >= total) break;
        staged[slot(g.x, g.y)] = has(SWAP_IN) ? x.yx : x;
        if (g.y > 0u) staged[slot(g.x, SIZE - g.y)] = has(SWAP_IN) ? y.yx : y;
#else /* MORE */
    if (has(AHEAD)) barrier();
    if ((FLAGS & HALVES) == 0u) { SEND(staged, ) }
    else {
        SEND(parts, .x)
        SEND(parts, .y)
    }
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        if (g.z == 0u) continue;
        [[unroll]] for (uint i = o; i < o + R0; i++) {
            vec2 x = v[i], y = conjugate(u[i]);
            v[i] = vec2(y.y - x.y, x.x - y.x);
            u[i] = x + y;
        }
        twiddle(o, R0, conjugate(root(sub_of(min(line_id(g.x), ids)) + SUBS * g.y, 2u * n)), conjugate(root(1u, 2u * R0)), false, true);
        [[unroll]] for (uint i = o; i < o + R0; i++) v[i] = has(SWAP_IN) ? (u[i] + v[i]).yx : u[i] + v[i];
#endif /* MORE */
    }
}

// Neighbouring threads load neighbouring elements, where groups of a line are too few for that.
void load_all()
{
    const uint total = SIZE * LINES;
    [[unroll]] for (uint k = 0; k < HELD; k++) {
        uint i = min(gl_LocalInvocationID.x + k * gl_WorkGroupSize.x, total - 1u);
        v[k] = fetch(i / SIZE, i % SIZE);
    }
    [[unroll]] for (uint k = 0; k < HELD; k++) {
        uint i = gl_LocalInvocationID.x + k * gl_WorkGroupSize.x;
        if (i < total) staged[slot(i / SIZE, i % SIZE)] = v[k];
    }
}

#ifdef MORE
uint groups() { return gl_NumWorkGroups.x * gl_NumWorkGroups.y * gl_NumWorkGroups.z; }

#endif /* MORE */
void first_pass(bool by_line)
{
#ifndef MORE
    if (has(MERGED) || has(SHORT)) {
        if (has(MERGED)) merge_all();
        else load_all();
#else /* MORE */
    if (has(AHEAD)) {
        uint here = group, more = groups();
        take(by_line);
        vec2 bin = last_bin;
        if ((group + more) * LINES < ids) {
            group += more;
            look_ahead(by_line);
            group = here;
        }
        if (has(MERGED)) merge(by_line, bin);
        butterflies(R0);
        return;
    }
    if (has(MERGED)) {
        merge(by_line, vec2(0.0));
        butterflies(R0);
        return;
    }
    if (has(SHORT)) {
        load_all();
#endif /* MORE */
        barrier();
        from_shared(R0, 1u, by_line);
        butterflies(R0);
        if (R1 > 1u) barrier();
        return;
    }
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        if (g.z == 0u) continue;
        [[unroll]] for (uint i = 0; i < R0; i++) v[o + i] = fetch(g.x, g.y + i * (size / R0));
    }
    butterflies(R0);
}

#ifdef MORE
// What split_all does, of elements in registers whose partners come by way of half the shared memory.
#define PARTNERS(c) \
    [[unroll]] for (uint o = 0; o < HELD; o += r) { \
        uvec3 g = group_at(o, r, by_line); \
        uint to = slot(g.x, target(r, done, g.y)); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) parts[to + beyond(i * done)] = v[o + order(r, i)].c; \
    } \
    barrier(); \
    [[unroll]] for (uint o = 0; o < HELD; o += r) { \
        uvec3 g = group_at(o, r, by_line); \
        uint to = target(r, done, g.y); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) \
            u[o + order(r, i)].c = parts[slot(g.x, to + i * done > 0u ? size - to - i * done : 0u)]; \
    }

void split_held(uint r, uint done, bool by_line)
{
    vec2 u[26];
    barrier();
    PARTNERS(x)
    barrier();
    PARTNERS(y)
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        uint to = target(r, done, g.y);
        if (g.z == 0u) continue;
        if (to == 0u) put(g.x, size, vec2(v[o].x - v[o].y, 0.0) * scale);
        [[unroll]] for (uint i = o; i < o + r; i++) {
            vec2 x = v[i], y = conjugate(u[i]);
            v[i] = 0.5 * vec2(x.y - y.y, y.x - x.x);
            u[i] = 0.5 * (x + y);
        }
        twiddle(o, r, root(to, 2u * size), root(done, 2u * size), true, true);
        [[unroll]] for (uint i = 0; i < r; i++) put(g.x, to + i * done, (u[o + order(r, i)] + v[o + order(r, i)]) * scale);
    }
}

#endif /* MORE */
// The last pass, of radix r: results are complete in registers.
void finish(uint r, uint done, bool by_line)
{
    if (STAGED_OUT) {
        if (done > 1u || has(SHORT)) barrier();
        to_shared(r, done, by_line);
        barrier();
        put_all(0u);
        return;
    }
#ifndef MORE
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
#else /* MORE */
    if ((FLAGS & STORE) == STORE_SPLIT) { split_held(r, done, by_line); return; }
    [[unroll]] for (uint o = 0; o < HELD; o += r) {    // tables are read before anything is written
#endif /* MORE */
        uvec3 g = group_at(o, r, by_line);
        uint to = target(r, done, g.y);
#ifndef MORE
        if (g.z == 0u) continue;
        if (has(TURN)) twiddle(o, r, turn_of(g.x, to), turn_of(g.x, done), true, true);
        [[unroll]] for (uint i = 0; i < r; i++) put(g.x, to + i * done, v[o + order(r, i)]);
#else /* MORE */
        if (g.z != 0u && has(TURN)) twiddle(o, r, turn_of(g.x, to), turn_of(g.x, done), true, true);
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) v[o + order(r, i)] = complete(g.x, to + i * done, v[o + order(r, i)]);
    }
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) put(g.x, target(r, done, g.y) + i * done, v[o + order(r, i)]);
#endif /* MORE */
    }
}

#ifdef MORE
const uint LAST = R1 == 1u ? R0 : R2 == 1u ? R1 : R3 == 1u ? R2 : R4 == 1u ? R3 : R5 == 1u ? R4 : R6 == 1u ? R5 : R7 == 1u ? R6 : R7;
const bool LAST_BY_LINE = R1 == 1u ? (FLAGS & LINES_IN) != 0u : (FLAGS & LINES_OUT) != 0u && !STAGED_OUT;

// The second transform's beginning: the first one times a table, exchanged.
void begin_again()
{
    [[unroll]] for (uint o = 0; o < HELD; o += LAST) {
        uvec3 g = group_at(o, LAST, LAST_BY_LINE);
        uint to = offset_last + g.y;
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < LAST; i++) {
            uint at = o + order(LAST, i);
            v[at] = multiply(v[at], uintBitsToFloat(last64[to + i * (SIZE / LAST)])).yx;
        }
    }
    exchange(LAST, R0, SIZE / LAST, LAST_BY_LINE, has(LINES_IN));
    butterflies(R0);
}

#endif /* MORE */
// One more pass, of radix r, of what radix `before` left; `after`: the next radix, 1 where there is none.
#ifndef MORE
#define NEXT(before, done, r, after) { \
    const bool by_line = after == 1u && has(LINES_OUT) && !STAGED_OUT; \
    exchange(before, r, done, done == 1u && has(LINES_IN), by_line); \
    butterflies(r); \
    if (after == 1u) { finish(r, done * before, by_line); return; } }
#else /* MORE */
#define NEXT(before, done, r, after) if (r > 1u) { \
    exchange(before, r, done, done == 1u && has(LINES_IN), after == 1u && LAST_BY_LINE); \
    butterflies(r); }
#endif /* MORE */

#ifndef MORE
void main()
#else /* MORE */
void passes()
#endif /* MORE */
{
#ifndef MORE
    first_pass(has(LINES_IN));
    if (R1 == 1u) { finish(R0, 1u, has(LINES_IN)); return; }
#endif /* ! MORE */
    NEXT(R0, 1u, R1, R2)
    NEXT(R1, R0, R2, R3)
    NEXT(R2, R0 * R1, R3, R4)
    NEXT(R3, R0 * R1 * R2, R4, R5)
    NEXT(R4, R0 * R1 * R2 * R3, R5, R6)
    NEXT(R5, R0 * R1 * R2 * R3 * R4, R6, R7)
    NEXT(R6, R0 * R1 * R2 * R3 * R4 * R5, R7, 1u)
#ifdef MORE
}

void main()
{
    bool again = false;
    group = group_index();
    if (has(STRAIGHT)) {                               // no loop around all: some compilers do not find out that it has none
        first_pass(has(LINES_IN));
        passes();
        finish(LAST, SIZE / LAST, LAST_BY_LINE);
        return;
    }
    if (has(AHEAD)) look_ahead(has(LINES_IN));
    do {
        first_pass(has(LINES_IN));
        do {
            passes();
            again = has(CONVOLVED) && !again;
            if (again) begin_again();
        } while (again);
        finish(LAST, SIZE / LAST, LAST_BY_LINE);
        group += groups();
    } while (has(AHEAD) && group * LINES < ids);
#endif /* MORE */
}
#else
#define GROUP(R) case R: \
    get(0u, R, done, g, base); \
    butterfly##R(0u); \
    set(0u, R, done, g, ROOM - base); \
    break;

void main()
{
    uint total = size * lines, done = 1u, base = 0u;
    bool moves = radices_ == 0u && (flags & STORE) != STORE_SPLIT;     // what is around a transform without one
    for (uint i = gl_LocalInvocationID.x; i < total; i += gl_WorkGroupSize.x) {
        uint l = has(LINES_IN) ? i % lines : i / size, e = has(LINES_IN) ? i / lines : i % size;
        if (moves) put(l, e, fetch(l, e));
        else staged[slot(l, e)] = fetch(l, e);
    }
    if (moves) return;
    for (uint list = radices_; list != 0u; list >>= 4) {
        uint r = (list & 15u) + 1u, many = size / r;
        barrier();
        for (uint q = gl_LocalInvocationID.x; q < many * lines; q += gl_WorkGroupSize.x) {
            uvec2 g = uvec2(q / many, q % many);
            switch (r) { GROUP(2) GROUP(3) GROUP(4) GROUP(5) GROUP(7) GROUP(8) GROUP(9) GROUP(10) GROUP(11) GROUP(13) GROUP(16) }
        }
        base = ROOM - base;
        done *= r;
    }
    barrier();
    put_all(base);
}
#endif
