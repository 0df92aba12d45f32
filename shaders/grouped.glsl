// Products whose rows are grouped by the weight they meet: a tile of at most BM rows, all of one weight, as group_rows.comp
// lists them. Rows are spread over operand and result: where each begins is kept in shared memory. Whoever includes it defines
// GROUP_SLOT (the first of three bindings), X_PLACE(entry, row), Y_PLACE(row), and ENTRY_ROWS.
#ifdef GROUPED
layout(std430, set = 0, binding = GROUP_SLOT) restrict readonly buffer tiles_words { uint tiles32[]; };
layout(std430, set = 0, binding = GROUP_SLOT + 1) restrict readonly buffer order_words { uint order32[]; };
layout(std430, set = 0, binding = GROUP_SLOT + 2) restrict readonly buffer lhs_words { uint lhs32[]; };
shared uint place_x[BM], place_y[BM];
uint w_matrix, tile_rows;

void find_rows(const uint tile)
{
    uint at = tiles_at + 4u * tile, first = tiles32[at + 1u], row = tiles32[at + 2u], until = tiles32[at + 3u];
    w_matrix = tiles32[at];
    tile_rows = min(until - row, BM);
    for (uint r = gl_LocalInvocationIndex; r < BM && tile_rows > 0u; r += gl_WorkGroupSize.x) {
        uint j = row + min(r, tile_rows - 1u), entry = order32[order_at + first + j / ENTRY_ROWS], i = j % ENTRY_ROWS;
        place_x[r] = X_PLACE(entry, i);
        place_y[r] = Y_PLACE(entry * ENTRY_ROWS + i);
    }
    barrier();
}
#endif
