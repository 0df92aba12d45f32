#version 460
#extension GL_GOOGLE_include_directive : require
// Elements at computed positions, by raw bits: TO is U8, U16, U32, U64 or, for 16 bytes, C64; FROM the indices' dtype.
// Operands: 0 the result, 1 the source (take) or the values (put), 2 the indices. The one that is indexed has a stride of
// 0 along the axis here, the real one in stride[3], with the axis' length and the part of it that this dispatch serves.
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

const uint ROWS = 0;                                  // MODE: whole rows, by units of 4 bytes (TO U32) or 16 (TO C64)
const uint PUT = 1;                                   // OP: written where the indices say
const uint STARTS = 2;                                // OP: the indices are offsets, to be scaled by extra
const uint MASKED = 3;                                // OP: they count what is taken, in order

// What index i adds to the source's offset, counted from the part's start (put: to the result's).
uint position(uint i)
{
    if (OP == STARTS) return (index32[i] * extra[0]) >> extra[1];
    if (OP == MASKED) {
        uint count = index32[i];
        return count != (i == offset[2] ? 0u : index32[i - 1u]) && count <= extra[0] ? count - 1u : NOWHERE;
    }
    uvec2 raw = FROM == U64 || FROM == I64 ? index64[i] : uvec2(load_index(i, FROM), 0u);
    uint v = position_of(raw, FROM, stride[3][0], extra[0], OP == PUT) - stride[3][2];
    return v < stride[3][3] ? v : NOWHERE;
}

// shape: units a row, rows an outer step; stride[1]: of the outer dimension and the axis; stride[2][0]: of the indices.
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
            else v[k].x = src32[from[k]];
        }
    [[unroll]] for (uint k = 0; k < 4; k++)
        if (from[k] != NOWHERE) {
            uint to = offset[0] + first + k * gl_WorkGroupSize.x;
            if (TO == C64) dst128[to] = v[k];
            else dst32[to] = v[k].x;
        }
}

void main()
{
    if (MODE == ROWS) { copy_rows(); return; }
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (i >= n) return;
    uvec4 at = MODE == 2u ? locate(i) : locate_table(i);
    uint p = position(at.z);
    if (OP != STARTS && p == NOWHERE) return;
    if (OP == STARTS) at.y += p;
    else if (OP == PUT) at.x += p * stride[3][1];
    else at.y += p * stride[3][1];
    if (TO == C64) dst128[at.x] = src128[at.y];
    else if (TO == U64) dst64[at.x] = src64[at.y];
    else store_dst(at.x, TO, load_src(at.y, TO));
}
