#version 460
#extension GL_GOOGLE_include_directive : require
// Where values belong in a sorted sequence: how many of its elements are less, or not greater, in the order of sorts.
#define WALK search_push
#define WALKED 3
#define BESIDES uint length, step, dtype, right, number_at;   /* of the sequence; right: behind what is equal */
#include "elementwise.glsl"
#include "sort.glsl"
layout(constant_id = 6) const bool TOGETHER = false;   // a workgroup for each value, whose threads are a power of two; else a thread
layout(constant_id = 7) const uint NUMBER = 0;         // TOGETHER: 1: a number is added, 2: subtracted
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

bool goes_right(const uint middle, const uvec2 key)
{
    uvec2 k = seq_key(offset[2] + middle * step, dtype);
    return k.x < key.x || (k.x == key.x && (k.y < key.y || (right != 0u && k.y == key.y)));
}

// A step of a search by halves: what is left of a range.
void halve(inout uint low, inout uint high, const bool to_right)
{
    uint middle = low + (high - low) / 2u;
    if (to_right) low = middle + 1u;
    else high = middle;
}

shared bool turn[gl_WorkGroupSize.x];
// The same search by a workgroup: each round its threads compare at all places that the next steps may come to, thread t at
// that which the bits of t behind the first lead to, and all go the way that the answers say.
uint search_together(const uvec2 key)
{
    uint t = gl_LocalInvocationID.x, low = 0u, high = length, levels = uint(findMSB(gl_WorkGroupSize.x));
    while (low < high) {
        uint l = low, h = high;
        for (int b = findMSB(t) - 1; b >= 0 && l < h; b--) halve(l, h, (t >> b & 1u) != 0u);
        turn[t] = t > 0u && l < h && goes_right(l + (h - l) / 2u, key);
        barrier();
        for (uint at = 1u, b = 0u; b < levels && low < high; b++) {
            bool to_right = turn[at];
            halve(low, high, to_right);
            at = at * 2u + (to_right ? 1u : 0u);
        }
        barrier();
    }
    return low;
}

// A number added to the place or, NUMBER 2, subtracted from it lies where tables do else.
uint with_number(const uint place)
{
    if (NUMBER == 0u) return place;
    return NUMBER == 1u ? place + table32[number_at] : place - table32[number_at];
}

void main()
{
    if (TOGETHER) {
        uint i = group_index();
        if (i >= n) return;
        uvec4 at = locate(i);
        uint place = search_together(src_key(at.y, dtype));
        if (gl_LocalInvocationID.x == 0u) dst32[at.x] = with_number(place);
        return;
    }
    uint i = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (i >= n) return;
    uint low = 0u, high = length;
    uvec4 at = MODE == STRIDES ? locate(i) : locate_table(i);
    uvec2 key = src_key(at.y, dtype);
    while (low < high) halve(low, high, goes_right(low + (high - low) / 2u, key));
    dst32[at.x] = low;
}
