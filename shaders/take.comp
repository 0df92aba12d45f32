#version 460
#extension GL_GOOGLE_include_directive : require
// Elements at computed positions of one axis, by raw bits: TO is U8, U16, U32 or U64 by item size, FROM the indices' dtype.
// Operands: 0 the result, 1 the source (take) or the values (put), 2 the indices. The one that is indexed has a stride of
// 0 along the axis here, the real one in stride[3], with the axis' length and the part of it that this dispatch serves.
#include "elementwise.glsl"
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, index)
BUFFER(3, table)
ACCESS(dst)
ACCESS(src)
ACCESS(index)
LOCATE_TABLE(table)

const uint ROWS = 0;                                  // MODE: whole rows, by units of 4 bytes (TO U32) or 16 (TO C64)
const uint PUT = 1;                                   // OP
const uint NOWHERE = 0xffffffffu;

// Where index i points, counted from the part's start. Negative indices wrap once; what is outside of the axis is
// clamped on reading, and nowhere on writing.
uint position(uint i)
{
    uint size = stride[3][0], v;
    bool negative = false, beyond = false;
    if (FROM == U64 || FROM == I64) {
        uvec2 w = index64[i];
        v = w.x;
        negative = FROM == I64 && int(w.y) < 0;
        beyond = negative ? w.y != 0xffffffffu || int(w.x) >= 0 : w.y != 0u;
    } else {
        v = sign_extend(load_index(i, FROM), FROM);
        negative = is_signed(FROM) && int(v) < 0;
    }
    if (negative) v += size;
    if (beyond || v >= size) {
        if (OP == PUT) return NOWHERE;
        v = negative ? 0u : size - 1u;
    }
    v -= stride[3][2];
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
        if (at != NOWHERE) from[k] = offset[1] + outer * stride[1][0] + at * stride[1][1] + (unit - row * shape[0]);
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
    if (p == NOWHERE) return;
    if (OP == PUT) at.x += p * stride[3][1];
    else at.y += p * stride[3][1];
    if (TO == U64) dst64[at.x] = src64[at.y];
    else store_dst(at.x, TO, load_src(at.y, TO));
}
