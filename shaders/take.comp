#version 460
#extension GL_GOOGLE_include_directive : require
// Elements at computed positions, by raw bits: TO is U8, U16, U32, U64 or, for 16 bytes, C64; FROM the indices' dtype.
// Operands: 0 the result, 1 the source (take) or the values (put), 2 the indices. The one that is indexed has a stride of
// 0 along the axis here; the real one, the axis' length and the part of it that this dispatch serves are told besides.
#define WALK take_push
#define WALKED 3
#define BESIDES uint axis_size, axis_stride, part_first, part_size, room; int shift;
#include "elementwise.glsl"
#include "position.glsl"
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, index)
BUFFER(3, table)
ACCESS(dst)
ACCESS(src)
ACCESS(index)
LOCATE_TABLE(table)

//! enum TAKE_: what the indices say
const uint AT = 0;                                    // positions; below `room` the allowed ones
const uint PUT = 1;                                   // positions that are written
const uint STARTS = 2;                                // offsets, to be shifted left, or where `shift` is negative right
const uint MASKED = 3;                                // how many were taken so far, of at most `room`

// What index i adds to the source's offset, counted from the part's start (put: to the result's).
uint position(const uint i)
{
    if (OP == STARTS) return shift < 0 ? index32[i] >> -shift : index32[i] << shift;
    if (OP == MASKED) {
        uint count = index32[i];
        return count != (i == offset[2] ? 0u : index32[i - 1u]) && count <= room ? count - 1u : NOWHERE;
    }
    uvec2 raw = FROM == U64 || FROM == I64 ? index64[i] : uvec2(load_index(i, FROM), 0u);
    uint v = position_of(raw, FROM, axis_size, room, OP == PUT) - part_first;
    return v < part_size ? v : NOWHERE;
}

// MODE FLAT: whole rows, by units of the size of TO. shape: units a row, rows an outer step; stride[1]: of the outer dimension and the axis; stride[2][0]: of the indices.
void copy_rows()
{
    uint first = group_index() * gl_WorkGroupSize.x * 4u + gl_LocalInvocationID.x;
    uint from[4];
    uvec4 v[4];
    [[unroll]] for (uint k = 0; k < 4; k++) {
        uint unit = first + k * gl_WorkGroupSize.x, row = unit / shape[0], outer = row / shape[1];
        from[k] = NOWHERE;
        if (unit >= n) continue;
        uint at = position(offset[2] + (row - outer * shape[1]) * stride[2][0]);
        if (OP == STARTS || at != NOWHERE) from[k] = offset[1] + outer * stride[1][0] + at * stride[1][1] + (unit - row * shape[0]);
    }
    [[unroll]] for (uint k = 0; k < 4; k++)
        if (from[k] != NOWHERE) {
            if (TO == C64) v[k] = src128[from[k]];
            else v[k].x = load_src(from[k], TO);
        }
    [[unroll]] for (uint k = 0; k < 4; k++)
        if (from[k] != NOWHERE) {
            uint to = offset[0] + first + k * gl_WorkGroupSize.x;
            if (TO == C64) dst128[to] = v[k];
            else store_dst(to, TO, v[k].x);
        }
}

// The same, SCALARS neighbours a thread, of units of at most 4 bytes: no row is shorter, so they are of two rows at most. Stored
// together, where all are there.
void copy_runs()
{
    const uint PER_WORD = TO == U32 ? 1u : TO == U16 ? 2u : 4u, WORDS = SCALARS / PER_WORD, RUN = max(SCALARS, 1u);
    uint first = (group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x) * SCALARS, to = offset[0] + first;
    uint row = first / shape[0], in_row = first - row * shape[0], from[2], w[8];
    bool there[2];
    for (uint k = 0u; k < 2u; k++) {
        uint r = min(row + k, n / shape[0] - 1u), outer = r / shape[1];
        uint at = position(offset[2] + (r - outer * shape[1]) * stride[2][0]);
        there[k] = OP == STARTS || at != NOWHERE;
        from[k] = offset[1] + outer * stride[1][0] + at * stride[1][1] + in_row - k * shape[0];
    }
    if (first + SCALARS <= n && there[0] && there[1] && offset[0] % RUN == 0u) {
        [[unroll]] for (uint k = 0u; k < SCALARS; k++) {
            uint raw = load_src(in_row + k < shape[0] ? from[0] + k : from[1] + k, TO) << 32u / PER_WORD * (k % PER_WORD);
            w[k / PER_WORD & 7u] = k % PER_WORD == 0u ? raw : w[k / PER_WORD & 7u] | raw;
        }
        if (WORDS == 1u) dst32[to / 4u] = w[0];
        else if (WORDS == 2u) dst64[to / RUN] = uvec2(w[0], w[1]);
        else [[unroll]] for (uint k = 0u; k < WORDS; k += 4u)
            dst128[to / (4u * PER_WORD) + k / 4u] = uvec4(w[k & 7u], w[k + 1u & 7u], w[k + 2u & 7u], w[k + 3u & 7u]);
        return;
    }
    for (uint k = 0u; k < SCALARS; k++) {
        bool same = in_row + k < shape[0];
        if (first + k < n && (same ? there[0] : there[1])) store_dst(to + k, TO, load_src((same ? from[0] : from[1]) + k, TO));
    }
}

// The same of short rows, of SCALARS - ROWS_FROM words: four rows a thread, stored by aligned fours.
//! enum TAKE_: SCALARS from which on
const uint ROWS_FROM = 16;

const uint SHORT = SCALARS > ROWS_FROM ? SCALARS - ROWS_FROM : 1u;
void copy_short()
{
    uint first = 4u * (group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x), rows = n / SHORT;
    uint outer = first / shape[1], in_outer = first - outer * shape[1], from[4], v[4u * SHORT];
    bool whole = first + 4u <= rows;
    if (first >= rows) return;
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint at = position(offset[2] + in_outer * stride[2][0]);
        from[k] = OP == STARTS || at != NOWHERE ? offset[1] + outer * stride[1][0] + at * stride[1][1] : NOWHERE;
        whole = whole && from[k] != NOWHERE;
        [[unroll]] for (uint j = 0u; j < SHORT; j++) v[k * SHORT + j] = src32[(from[k] == NOWHERE ? offset[1] : from[k]) + j];
        if (first + k + 1u < rows && ++in_outer == shape[1]) {
            in_outer = 0u;
            outer++;
        }
    }
    if (whole)
        [[unroll]] for (uint j = 0u; j < SHORT; j++)
            dst128[offset[0] / 4u + first / 4u * SHORT + j] = uvec4(v[4u * j], v[4u * j + 1u], v[4u * j + 2u], v[4u * j + 3u]);
    for (uint i = whole ? 4u * SHORT : 0u; i < min(rows - first, 4u) * SHORT; i++) {
        uint k = i / SHORT;
        if (from[k] != NOWHERE) dst32[offset[0] + first * SHORT + i] = src32[from[k] + i - k * SHORT];
    }
}

void main()
{
    if (MODE == FLAT && SCALARS > ROWS_FROM) { copy_short(); return; }
    if (MODE == FLAT && SCALARS != 0u) { copy_runs(); return; }
    if (MODE == FLAT) { copy_rows(); return; }
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (i >= n) return;
    uvec4 at = MODE == STRIDES ? locate(i) : locate_table(i);
    uint p = position(at.z);
    if (OP != STARTS && p == NOWHERE) return;
    if (OP == STARTS) at.y += p;
    else if (OP == PUT) at.x += p * axis_stride;
    else at.y += p * axis_stride;
    if (TO == C64) dst128[at.x] = src128[at.y];
    else if (TO == U64) dst64[at.x] = src64[at.y];
    else store_dst(at.x, TO, load_src(at.y, TO));
}
