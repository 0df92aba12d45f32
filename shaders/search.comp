#version 460
#extension GL_GOOGLE_include_directive : require
// Where values belong in a sorted sequence: how many of its elements are less, or not greater, in the order of sorts.
#define WALK search_push
#define WALKED 3
#define BESIDES uint length, step, dtype, right;       /* of the sequence; right: behind what is equal */
#include "elementwise.glsl"
#include "sort.glsl"
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, seq)
BUFFER(3, table)
ACCESS(src)
ACCESS(seq)
LOCATE_TABLE(table)

// High word first; of 32 bits and less, the low word is 0.
uvec2 src_key(const uint i, const uint t)
{
    if (t == U64 || t == I64 || t == C64) return uvec2(key_of_pair(src64[i], t, true), key_of_pair(src64[i], t, false));
    return uvec2(key_of(load_src(i, t), t, true), 0u);
}
uvec2 seq_key(const uint i, const uint t)
{
    if (t == U64 || t == I64 || t == C64) return uvec2(key_of_pair(seq64[i], t, true), key_of_pair(seq64[i], t, false));
    return uvec2(key_of(load_seq(i, t), t, true), 0u);
}

void main()
{
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (i >= n) return;
    uint low = 0u, high = length, t = dtype;
    uvec4 at = MODE == STRIDES ? locate(i) : locate_table(i);
    uvec2 key = src_key(at.y, t);
    while (low < high) {
        uint middle = low + (high - low) / 2u;
        uvec2 k = seq_key(offset[2] + middle * step, t);
        bool less = k.x < key.x || (k.x == key.x && k.y < key.y);
        if (less || (right != 0u && k == key)) low = middle + 1u;
        else high = middle;
    }
    dst32[at.x] = low;
}
