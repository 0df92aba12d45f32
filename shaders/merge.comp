#version 460
#extension GL_GOOGLE_include_directive : require
// Merges sorted runs of rows pairwise: a thread finds where its eight results begin in both runs, and writes them.
#include "sort.glsl"
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, place)
BUFFER(3, dst_place)
ACCESS(dst)

layout(push_constant) uniform merge_push { uint rows, n, run, parts, dst_at, src_at, place_at, dst_place_at, dtype, flags; };

//! enum MERGE_: results of a thread
const uint EACH = 8;

void main()
{
    uint g = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = g / parts, first = (g - row * parts) * EACH;
    if (row >= rows) return;
    uint pair = first / (2u * run) * 2u * run, left = row * n + pair, right = row * n + min(pair + run, n), end = row * n + min(pair + 2u * run, n);
    uint diagonal = first - pair, low = diagonal > end - right ? diagonal - (end - right) : 0u, high = min(diagonal, right - left);
    while (low < high) {                               // how many of the first `diagonal` come from the left
        uint middle = (low + high) / 2u;
        if (src32[src_at + right + diagonal - 1u - middle] < src32[src_at + left + middle]) high = middle;
        else low = middle + 1u;
    }
    uint a = left + low, b = right + diagonal - low, last = min(row * n + first + EACH, end);
    uint ka = a < right ? src32[src_at + a] : 0u, kb = b < end ? src32[src_at + b] : 0u;
    for (uint to = row * n + first; to < last; to++) {
        bool take_left = b >= end || (a < right && ka <= kb);
        uint key = take_left ? ka : kb;
        if ((flags & INDEX_OUT) != 0u) dst_place32[dst_place_at + to] = place32[place_at + (take_left ? a : b)];
        if ((flags & KEYS_OUT) != 0u) dst32[dst_at + to] = key;
        if ((flags & VALUES_OUT) != 0u) store_dst(dst_at + to, dtype, raw_of(key, dtype));
        if (take_left) { a++; ka = a < right ? src32[src_at + a] : 0u; }
        else { b++; kb = b < end ? src32[src_at + b] : 0u; }
    }
}
