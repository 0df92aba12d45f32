#version 460
#extension GL_GOOGLE_include_directive : require
// Lists the tiles of a product by index arrays: { weight, first entry of `order`, first row, rows } each, where an entry has
// ROWS rows. GROUPED: one workgroup sorts the entries by weight; tiles that are left over have no rows. Else an entry keeps to
// itself. Where an entry stands among those of its weight does not matter to any result. Of `weights`, `part` from `first` on
// are counted, from 0; entries of others are in no tile.
#include "common.glsl"
layout(constant_id = 1) const bool GROUPED = false;
layout(constant_id = 2) const uint MOST = 4096;        // weights that are counted
layout(std430, set = 0, binding = 0) restrict buffer tiles_words { uvec4 tiles[]; };
layout(std430, set = 0, binding = 1) restrict buffer order_words { uint order[]; };
layout(std430, set = 0, binding = 2) restrict readonly buffer rhs_words { uint rhs[]; };
layout(push_constant) uniform group_rows_push { 
    uint entries, weights, first, part, each, tile_rows, tile_count, tiles_at, order_at, rhs_at;
};
shared uint count[MOST];
shared uvec2 sums[gl_WorkGroupSize.x];

uint weight_of(const uint entry) { return min(rhs[rhs_at + entry], weights - 1u) - first; }
uint tiles_of(const uint rows) { return (rows + tile_rows - 1u) / tile_rows; }

void main()
{
    uint me = gl_LocalInvocationIndex, all = gl_WorkGroupSize.x, i = group_index() * all + me;
    if (!GROUPED) {
        uint per = tiles_of(each);
        if (i < entries) order[order_at + i] = i;
        if (i >= tile_count) return;
        uint w = i / per < entries ? weight_of(i / per) : part;
        tiles[tiles_at + i] = w < part ? uvec4(w, i / per, i % per * tile_rows, each) : uvec4(0u);
        return;
    }
    uint per = (part + all - 1u) / all, until = min((me + 1u) * per, part);
    uvec2 at = uvec2(0u);                              // entries and tiles up to this thread's weights
    for (uint w = me; w < part; w += all) count[w] = 0u;
    barrier();
    for (uint e = me; e < entries; e += all) {
        uint w = weight_of(e);
        if (w < part) atomicAdd(count[w], 1u);
    }
    barrier();
    for (uint w = me * per; w < until; w++) at += uvec2(count[w], tiles_of(count[w] * each));
    sums[me] = at;
    for (uint step = 1u; step < all; step *= 2u) {
        barrier();
        uvec2 before = me >= step ? sums[me - step] : uvec2(0u);
        barrier();
        sums[me] += before;
    }
    at = sums[me] - at;
    for (uint w = me * per; w < until; w++) {
        uint entries_here = count[w], rows = entries_here * each;
        for (uint row = 0u; row < rows; row += tile_rows) tiles[tiles_at + at.y++] = uvec4(w, at.x, row, rows);
        count[w] = at.x;
        at.x += entries_here;
    }
    barrier();
    for (uint t = sums[all - 1u].y + me; t < tile_count; t += all) tiles[tiles_at + t] = uvec4(0u);
    for (uint e = me; e < entries; e += all) {
        uint w = weight_of(e);
        if (w < part) order[order_at + atomicAdd(count[w], 1u)] = e;
    }
}
