// Pieces of rows that the workgroup goes on with which ends last: a counter for each row, which is zero before and behind,
// and two words for each piece.
#ifndef JOINED_GLSL
#define JOINED_GLSL
//! enum JOINED_: rows and pieces of all of them
const uint MOST_ROWS = 128, MOST_PIECES = 1024;
layout(std430, set = 0, binding = JOINED_SLOT) coherent buffer joined_words { uint joined[]; };
shared bool ends_row;

void store_words(const uint i, const uvec2 w)
{
    joined[MOST_ROWS + 2u * i] = w.x;
    joined[MOST_ROWS + 2u * i + 1u] = w.y;
}
uvec2 load_words(const uint i) { return uvec2(joined[MOST_ROWS + 2u * i], joined[MOST_ROWS + 2u * i + 1u]); }

// Counts a piece that thread 0 has stored. Was it the last of its row's `parts`? Who ends last sees what the others have
// stored: each stores, then counts, with a barrier between. Nobody waits.
bool count_piece(const uint row, const uint parts, const uint me)
{
    if (me == 0u) {
        memoryBarrierBuffer();
        ends_row = atomicAdd(joined[row], 1u) == parts - 1u;
        if (ends_row) joined[row] = 0u;
        memoryBarrierBuffer();
    }
    barrier();
    return ends_row;
}
#endif
