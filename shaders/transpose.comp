#version 460
#extension GL_GOOGLE_include_directive : require
// Copies, with conversion, of matrices whose rows lie side by side in the operand and whose columns do in the result: tiles
// go through shared memory, so that neighbours read neighbours and write neighbours.
#include "common.glsl"
layout(constant_id = 1) const uint TILE = 64;
layout(constant_id = 2) const uint TO = 10;            // dtypes of the result and the operand; WIDE ones are equal
layout(constant_id = 3) const uint FROM = 10;
layout(constant_id = 4) const bool BLOCKS = false;     // words, 16 bytes a load and a store: a thread turns 4 x 4 of them, in no shared memory
BUFFER(0, dst)
BUFFER(1, src)
ACCESS(dst)
ACCESS(src)

layout(push_constant) uniform transpose_push {
    uint rows, columns, to, from;                      // the operand's elements are 1 apart along rows, the result's along columns
    uint row_out, column_in;                           // steps
    uint tiles_down, tiles_across, matrices;
    uint shape[3], in_stride[3], out_stride[3];        // of the matrices; 1 where there are fewer dimensions
};

const bool WIDE = FROM == U64 || FROM == I64 || FROM == C64;
const uint HIGH = gl_WorkGroupSize.x / TILE, EACH = TILE / HIGH, PLANE = TILE * (TILE + 1u);
shared uint board[WIDE ? 2u * PLANE : PLANE];          // one column more than a tile has: no bank is met twice

void main()
{
    uint g = group_index(), across = g % tiles_across, down = g / tiles_across % tiles_down, matrix = g / tiles_across / tiles_down;
    uint x = gl_LocalInvocationID.x % TILE, y = gl_LocalInvocationID.x / TILE, at = from, out_at = to;
    uvec2 v[EACH];
    if (matrix >= matrices) return;
    [[unroll]] for (int d = 2; d >= 0; d--) {
        uint q = matrix / shape[d], c = matrix - q * shape[d];
        at += c * in_stride[d];
        out_at += c * out_stride[d];
        matrix = q;
    }
    if (BLOCKS) {
        uint i = down * TILE + gl_LocalInvocationID.x % (TILE / 4u) * 4u, j = across * TILE + gl_LocalInvocationID.x / (TILE / 4u) * 4u;
        uvec4 w[4];
        if (i >= rows || j >= columns) return;
        [[unroll]] for (uint k = 0u; k < 4u; k++) w[k] = src128[(at + i + (j + k) * column_in) / 4u];
        [[unroll]] for (uint k = 0u; k < 4u; k++)
            dst128[(out_at + (i + k) * row_out + j) / 4u] = uvec4(w[0][k], w[1][k], w[2][k], w[3][k]);
        return;
    }
    uint row = min(down * TILE + x, rows - 1u), column = across * TILE + y;
    [[unroll]] for (uint k = 0u; k < EACH; k++) {      // all loads before the first use; beyond the edge the last one again
        uint i = at + row + min(column + k * HIGH, columns - 1u) * column_in;
        v[k] = WIDE ? src64[i] : uvec2(load_src(i, FROM), 0u);
    }
    [[unroll]] for (uint k = 0u; k < EACH; k++) {
        uint i = (y + k * HIGH) * (TILE + 1u) + x;
        board[i] = v[k].x;
        if (WIDE) board[PLANE + i] = v[k].y;
    }
    barrier();
    row = down * TILE + y;
    column = across * TILE + x;
    if (column >= columns) return;
    [[unroll]] for (uint k = 0u; k < EACH; k++) {
        uint i = x * (TILE + 1u) + y + k * HIGH, j = out_at + (row + k * HIGH) * row_out + column;
        if (row + k * HIGH >= rows) break;
        if (WIDE) dst64[j] = uvec2(board[i], board[PLANE + i]);
        else store_dst(j, TO, convert(board[i], FROM, TO));
    }
}
