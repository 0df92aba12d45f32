#version 460
#extension GL_GOOGLE_include_directive : require
// Copies with conversion between any dtypes and any layouts. WIDE: one side is a 64-bit integer or complex64. LATE: the table
// says, at offset[2], how many elements further dst is. ROWS: bits of rows that lie anywhere.
#include "elementwise.glsl"
#include "words.glsl"
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, table)
ACCESS(dst)
ACCESS(src)
LOCATE_TABLE(table)
VECTORS(src, 1u, FROM)
PUT(dst, TO)

#ifdef WIDE
#include "wide.glsl"
// Complex64 counts as its real part, which is what MLX converts.
bool eight(const uint t) { return t == U64 || t == I64 || t == C64; }
uvec2 load_any(const uint i) { return eight(FROM) ? src64[i] : uvec2(load_src(i, FROM), 0u); }
// Rounded to nearest even, as the conversion of a C compiler is: two halves, with the sticky bit of the low one.
float wide_to_float(const uvec2 raw)
{
    bool negative = FROM == I64 && int(raw.y) < 0;
    uvec2 p = negative ? wide_negative(raw) : raw;
    float r;
    if (p.y == 0u) r = float(p.x);
    else {
        int shift = findMSB(p.y) + 1;                                  // the top 32 bits, odd if any bit is lost
        uint top = wide_right(p, uint(shift), false).x, lost = shift == 32 ? p.x : p.x & ((1u << shift) - 1u);
        top |= lost != 0u ? 1u : 0u;
        r = float(top) * uintBitsToFloat(uint(127 + shift) << 23);
    }
    return negative ? -r : r;
}
uvec2 float_to_wide(const float x)
{
    float a = min(abs(x), 18446742974197923840.0);
    uint high = uint(a * 2.3283064365386963e-10);                      // 2^-32
    uint low = uint(a - float(high) * 4294967296.0);
    return x < 0.0 ? wide_negative(uvec2(low, high)) : uvec2(low, high);
}
uvec2 convert_any(const uvec2 raw)
{
    if (FROM == TO) return raw;
    if (FROM == C64) {
        if (TO == BOOL) return uvec2((raw.x & 0x7fffffffu) != 0u || (raw.y & 0x7fffffffu) != 0u ? 1u : 0u, 0u);
        float x = uintBitsToFloat(raw.x);
        if (TO == U64 || TO == I64) return float_to_wide(x);
        return uvec2(is_float(TO) ? float_to_bits(x, TO) : float_to_integer(x, TO), 0u);
    }
    if (TO == C64) {
        float x = FROM == U64 || FROM == I64 ? wide_to_float(raw) : as_float(raw.x, FROM);
        return uvec2(floatBitsToUint(x), 0u);
    }
    if (FROM == U64 || FROM == I64) {
        if (is_float(TO)) return uvec2(float_to_bits(wide_to_float(raw), TO), 0u);
        if (TO == BOOL) return uvec2((raw.x | raw.y) != 0u ? 1u : 0u, 0u);
        return raw;
    }
    if (is_float(FROM)) return float_to_wide(bits_to_float(raw.x, FROM));
    return is_signed(FROM) ? wide(int(sign_extend(raw.x, FROM))) : uvec2(raw.x, 0u);
}
void move(const uint to, const uint from)
{
    uvec2 v = convert_any(load_any(from));
    if (eight(TO)) dst64[to] = v;
    else store_dst(to, TO, v.x);
}
#else
void move(const uint to, const uint from)
{
    if (FROM == TO && (FROM == U64 || FROM == I64 || FROM == C64)) dst64[to] = src64[from];
    else store_dst(to, TO, convert(load_src(from, FROM), FROM, TO));
}
uvec4 converted(const uvec4 w)
{
    float r[8];
    uvec4 v = uvec4(0u);
    if (EIGHTS && is_half(TO) && is_float(TO)) {                       // one test for NaN
        for (uint k = 0u; k < 8u; k++) r[k] = is_float(FROM) ? number(w, k) : as_float(element(w, k, FROM), FROM);
        if (put_numbers(v, r)) return v;
    }
    vec4 x = uintBitsToFloat(w);
    if (HALF != 0u && FROM == F32 && TO == F16 && !is_nan((x.x + x.y) + (x.z + x.w))) {
        uvec2 p = uvec2(packHalf2x16(x.xy), packHalf2x16(x.zw));
        return uvec4(p.x & 0xffffu, p.x >> 16, p.y & 0xffffu, p.y >> 16);
    }
    for (uint k = 0u; k < LANES; k++) put_element(v, k, convert(element(w, k, FROM), FROM, TO));
    return v;
}

// `count` elements of src, of at most a vector, from no other 16 bytes than they lie in; behind them anything.
uvec4 row_part(const uint at, const uint count)
{
    return elements_from(LANES, at % LANES, src128[at / LANES], src128[(at + count - 1u) / LANES]);
}
// The first `count` of a, at least one and not all, with b behind them.
uvec4 joined(const uvec4 a, const uint count, const uvec4 b)
{
    return elements_from(LANES, LANES - count, elements_from(LANES, count, uvec4(0u), a), b);
}
// OP ROWS: LANES elements are 16 bytes; dst begins at a multiple of them, and src has stride[2][0] elements a row. Of dst
// shape[DIMS - 1] are walked a row: as many, where its rows are flat, else whole vectors. stride[2][1]: then those behind a row's
// elements belong to dst, and become 0.
void copy_rows(const uint i, const uint late)
{
    uint first = i * LANES, row = shape[DIMS - 1u], width = stride[2][0];
    if (first >= n) return;
    uint column = DIMS > 1u ? first - quotient_of(first, DIMS - 1u) * row : first;
    uint there = column < width ? min(width - column, LANES) : 0u;
    uvec4 at = locate(first) + uvec4(late, 0u, 0u, 0u), w = uvec4(0u);
    if (there != 0u) w = row_part(at.y, there);
    if (there != 0u && there < LANES) {
        uvec4 behind = uvec4(0u);
        if (row == width && n - first >= LANES) behind = row_part(locate(first + there).y, LANES - there);
        else if (stride[2][1] == 0u) {
            for (uint k = 0u; k < there; k++) store_dst(at.x + k, TO, element(w, k, TO));
            return;
        }
        w = joined(w, there, behind);
    }
    dst128[at.x / LANES] = w;
}
#endif

//! enum COPY_: OP
const uint ROWS = 1;

//! enum COPY_: flag in divisor_shifts
const uint LATE = 0x40000000u;

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint late = (divisor_shifts & LATE) != 0u ? table32[offset[2]] : 0u;
#ifndef WIDE
    if (OP == ROWS) { copy_rows(i, late); return; }
#endif
    bool whole = LANES > 1u && i < n / LANES;
    if (!whole) i += n / LANES * (LANES - 1u);                         // the leftover elements, one a thread
    if (i >= n) return;
    uvec4 at = places_of(whole, i);
#ifndef WIDE
    if (whole) {
        uvec4 v = (SCALARS & 2u) != 0u ? repeated(convert(load_src(at.y, FROM), FROM, TO), TO)
                : FROM == TO ? fetch_src(whole, i, at.y) : converted(fetch_src(whole, i, at.y));
        put_dst(whole, i + late / LANES, at.x + (by_elements(0u) ? late : late / LANES), v);
        return;
    }
#endif
    move(at.x + late, at.y);
}
