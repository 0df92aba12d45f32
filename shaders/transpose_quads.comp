#version 460
#extension GL_GOOGLE_include_directive : require
// Copies of matrices as in transpose.comp, of elements of 1 and 2 bytes, where rows and columns of both sides are whole groups of
// 16 bytes: elements become words of neighbours in registers, words lie in shared memory so that no bank is met twice, and all
// loads and stores are of 16 bytes. LOOSE: rows and columns are any, and begin anywhere; what a row has in front of and behind
// the aligned 16 bytes of a tile is stored by elements.
#include "common.glsl"
#include "words.glsl"
layout(constant_id = 1) const uint TILE = 64;          // elements; at least 128 bytes
layout(constant_id = 2) const uint SIZE = 2;           // bytes of an element
layout(constant_id = 3) const bool LOOSE = false;      // no steps between matrices are below 0
BUFFER(0, dst)
BUFFER(1, src)
ACCESS(dst)

layout(push_constant) uniform transpose_push {
    uint rows, columns, to, from;                      // the operand's elements are 1 apart along rows, the result's along columns
    uint row_out, column_in;                           // steps
    uint tiles_down, tiles_across, matrices;
    uint shape[3], in_stride[3], out_stride[3];        // of the matrices; 1 where there are fewer dimensions
};

const uint PER = 4u / SIZE, V = 16u / SIZE;            // elements in a word, and in a group
const uint CHUNKS = TILE / V, UNITS = CHUNKS * TILE / PER / gl_WorkGroupSize.x, READS = CHUNKS * TILE / gl_WorkGroupSize.x;
shared uvec4 board[TILE * CHUNKS];

// Word m of PER neighbours: V words of rows one after the other, each with the elements of all neighbours.
void spread(const uvec4 w[PER], out uint word[V])
{
    [[unroll]] for (uint m = 0u; m < 4u; m++) {
        if (SIZE == 2u) {
            uint a = w[0][m], b = w[1u % PER][m];
            word[2u * m % V] = (a & 0xffffu) | (b << 16);
            word[(2u * m + 1u) % V] = (a >> 16) | (b & 0xffff0000u);
        } else {
            uint a = w[0][m], b = w[1u % PER][m], c = w[2u % PER][m], d = w[3u % PER][m];
            uint even = (a & 0xff00ffu) | ((b & 0xff00ffu) << 8), odd = ((a >> 8) & 0xff00ffu) | (b & 0xff00ff00u);
            uint more_even = (c & 0xff00ffu) | ((d & 0xff00ffu) << 8), more_odd = ((c >> 8) & 0xff00ffu) | (d & 0xff00ff00u);
            word[4u * m % V] = (even & 0xffffu) | (more_even << 16);
            word[(4u * m + 1u) % V] = (odd & 0xffffu) | (more_odd << 16);
            word[(4u * m + 2u) % V] = (even >> 16) | (more_even & 0xffff0000u);
            word[(4u * m + 3u) % V] = (odd >> 16) | (more_odd & 0xffff0000u);
        }
    }
}

uint last_group() { return (from + (columns - 1u) * column_in + rows - 1u + (shape[0] - 1u) * in_stride[0] +
                            (shape[1] - 1u) * in_stride[1] + (shape[2] - 1u) * in_stride[2]) / V; }
uvec4 load_group(const uint i)
{
    if (!LOOSE) return src128[i / V];
    uint last = last_group();
    return elements_from(V, i % V, src128[min(i / V, last)], src128[min(i / V + 1u, last)]);
}

// Group `chunk` of row r of the tile; beyond the first and the last any.
uvec4 tile_group(const uint r, const uint chunk) { return board[r * CHUNKS + (min(chunk, CHUNKS - 1u) ^ (r / V & 7u))]; }
uint tile_element(const uint r, const uint e)
{
    uint word = tile_group(r, e / V)[e % V / PER];
    return word >> (e % PER * 8u * SIZE) & (SIZE == 2u ? 0xffffu : 0xffu);
}

// A tile's row from element `at` of the result on is `front` elements, aligned groups, and `back` elements.
struct segment { uint at, front, groups, back; };
segment segment_of(const uint at, const uint count)
{
    uint front = min((V - at % V) % V, count), groups = (count - front) / V;
    return segment(at, front, groups, count - front - groups * V);
}

// What rows have in front of and behind their groups, `alone` elements of each at most.
void store_alone(const uint alone, const uint at, const uint count, const uint high)
{
    for (uint u = gl_LocalInvocationID.x; u < alone * high; u += gl_WorkGroupSize.x) {
        uint k = u % alone, r = u / alone;
        segment g = segment_of(at + r * row_out, count);
        uint e = k < g.front ? k : g.groups * V + k;
        if (k < g.front + g.back) store_dst(g.at + e, SIZE == 2u ? U16 : U8, tile_element(r, e));
    }
}

// The tile to rows that begin anywhere, of which the first is at element `at`: `high` of `count` elements.
void store_loose(const uint at, const uint count, const uint high)
{
    for (uint u = gl_LocalInvocationID.x; u < CHUNKS * high; u += gl_WorkGroupSize.x) {
        uint chunk = u % CHUNKS, r = u / CHUNKS;
        segment g = segment_of(at + r * row_out, count);
        uint e = g.front + chunk * V;
        if (chunk < g.groups) dst128[(g.at + e) / V] = elements_from(V, e % V, tile_group(r, e / V), tile_group(r, e / V + 1u));
    }
    if (count % V == 0u) store_alone(V, at, count, high);
    else store_alone(2u * V, at, count, high);
}

void main()
{
    uint g = group_index(), across = g % tiles_across, down = g / tiles_across % tiles_down, matrix = g / tiles_across / tiles_down;
    uint at = from, out_at = to;
    uvec4 w[UNITS][PER];
    if (matrix >= matrices) return;
    [[unroll]] for (int d = 2; d >= 0; d--) {
        uint q = matrix / shape[d], c = matrix - q * shape[d];
        at += c * in_stride[d];
        out_at += c * out_stride[d];
        matrix = q;
    }
    [[unroll]] for (uint k = 0u; k < UNITS; k++) {     // all loads before the first use; beyond the edge the last ones again
        uint u = gl_LocalInvocationID.x + k * gl_WorkGroupSize.x, group = u % 8u + u / (2u * TILE * SIZE) * 8u, pair = u / 8u % (TILE / PER);
        uint row = down * TILE + group * V, column = across * TILE + pair * PER;
        if (!LOOSE) row = min(row, rows - V);
        [[unroll]] for (uint j = 0u; j < PER; j++)
            w[k][j] = load_group(at + row + (LOOSE ? min(column + j, columns - 1u) : min(column, columns - PER) + j) * column_in);
    }
    [[unroll]] for (uint k = 0u; k < UNITS; k++) {
        uint u = gl_LocalInvocationID.x + k * gl_WorkGroupSize.x, group = u % 8u + u / (2u * TILE * SIZE) * 8u, pair = u / 8u % (TILE / PER);
        uint word[V];
        spread(w[k], word);
        [[unroll]] for (uint j = 0u; j < V; j++) board[(group * V + j) * CHUNKS + (pair / 4u ^ (group & 7u))][pair & 3u] = word[j];
    }
    barrier();
    if (LOOSE) {
        store_loose(out_at + down * TILE * row_out + across * TILE, min(columns - across * TILE, TILE), min(rows - down * TILE, TILE));
        return;
    }
    [[unroll]] for (uint k = 0u; k < READS; k++) {
        uint u = gl_LocalInvocationID.x + k * gl_WorkGroupSize.x, chunk = u % CHUNKS, r = u / CHUNKS;
        uint row = down * TILE + r, column = across * TILE + chunk * V;
        if (row < rows && column < columns) dst128[(out_at + row * row_out + column) / V] = tile_group(r, chunk);
    }
}
