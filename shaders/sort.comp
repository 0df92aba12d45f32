#version 460
#extension GL_GOOGLE_include_directive : require
// Sorts rows that fit in shared memory, or blocks of longer ones: eight elements a thread in registers, then merges of
// twice the length each. A workgroup takes several short rows.
#include "sort.glsl"
layout(constant_id = 1) const bool INDEXED = false;    // with positions
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, place)
BUFFER(3, dst_place)
ACCESS(dst)
ACCESS(src)

layout(push_constant) uniform sort_push {
    uint rows, n, blocks;                              // blocks a row: where there are more than one, each of a workgroup
    uint row_threads;                                  // eight elements each; a power of two where a row has several blocks
    uint dst_at, src_at, place_at, dst_place_at;
    uint dtype, flags;                                 // not constants: one pipeline for all
};

//! enum SORT_: elements of a thread
const uint EACH = 8;

const uint SLOTS = gl_WorkGroupSize.x * EACH + gl_WorkGroupSize.x * EACH / 32;
shared uint keys[SLOTS];
shared uint places[INDEXED ? SLOTS : 1];

uint slot(const uint i) { return i + i / 32u; }              // no bank conflicts when each thread reads its own run

// The workgroup's part: elements first to first + count of the array, rows of `length` in it; the first one starts at
// element `skipped` of its row.
uint first, count, length, skipped;
void find_part()
{
    uint g = group_index(), span = row_threads * EACH;
    if (blocks > 1u) {
        uint row = g / blocks;
        skipped = (g - row * blocks) * span;
        first = row * n + skipped;
        count = row < rows ? min(span, n - skipped) : 0u;
        length = max(count, 1u);
    } else {
        uint each_group = gl_WorkGroupSize.x / row_threads, row = min(g * each_group, rows);
        skipped = 0u;
        first = row * n;
        count = min(each_group, rows - row) * n;
        length = n;
    }
}

void load_part()
{
    uint t = gl_LocalInvocationID.x;
    for (uint i = t; i < gl_WorkGroupSize.x * EACH; i += gl_WorkGroupSize.x) keys[slot(i)] = 0xffffffffu;
    barrier();
    for (uint i = t; i < count; i += gl_WorkGroupSize.x) {
        uint row = i / length, e = i - row * length, to = slot(row * row_threads * EACH + e);
        uint p = (flags & INDEX_IN) != 0u ? place32[place_at + first + i] : skipped + e;
        uint from = src_at + ((flags & GATHER) != 0u ? first - skipped + row * length + min(p, n - 1u) : first + i);
        if (dtype == U64 || dtype == I64 || dtype == C64) keys[to] = key_of_pair(src64[from], dtype, (flags & HIGH) != 0u);
        else keys[to] = key_of(load_src(from, dtype), dtype, INDEXED);
        if (INDEXED) places[to] = p;
    }
    barrier();
}

void store_part()
{
    for (uint i = gl_LocalInvocationID.x; i < count; i += gl_WorkGroupSize.x) {
        uint row = i / length, from = slot(row * row_threads * EACH + i - row * length);
        if (INDEXED) dst_place32[dst_place_at + first + i] = places[from];
        if ((flags & KEYS_OUT) != 0u) dst32[dst_at + first + i] = keys[from];
        if ((flags & VALUES_OUT) != 0u) store_dst(dst_at + first + i, dtype, raw_of(keys[from], dtype));
    }
}

void main()
{
    uint t = gl_LocalInvocationID.x, lane = t % row_threads, base = (t - lane) * EACH;
    uint k[EACH], p[EACH];
    find_part();
    if (count == 0u) return;
    load_part();
    [[unroll]] for (uint j = 0; j < EACH; j++) {
        k[j] = keys[slot(t * EACH + j)];
        p[j] = INDEXED ? places[slot(t * EACH + j)] : 0u;
    }
    [[unroll]] for (uint round = 0; round < EACH; round++)
        [[unroll]] for (uint j = round & 1u; j + 1u < EACH; j += 2u)
            if (k[j] > k[j + 1u]) {
                uint x = k[j], y = p[j];
                k[j] = k[j + 1u]; k[j + 1u] = x;
                p[j] = p[j + 1u]; p[j + 1u] = y;
            }
    for (uint w = 1u;; w *= 2u) {                      // runs of w threads are sorted
        barrier();
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            keys[slot(t * EACH + j)] = k[j];
            if (INDEXED) places[slot(t * EACH + j)] = p[j];
        }
        barrier();
        if (w >= row_threads) break;
        uint from = lane & ~(2u * w - 1u), diagonal = (lane - from) * EACH, left = base + from * EACH;
        uint run = min(w, row_threads - from) * EACH, right = left + run, other = min(w * EACH, (row_threads - from) * EACH - run);
        uint low = diagonal > other ? diagonal - other : 0u, high = min(diagonal, run);
        while (low < high) {                           // how many of the first `diagonal` come from the left
            uint middle = (low + high) / 2u;
            if (keys[slot(right + diagonal - 1u - middle)] < keys[slot(left + middle)]) high = middle;
            else low = middle + 1u;
        }
        uint a = low, b = diagonal - low;
        uint ka = a < run ? keys[slot(left + a)] : 0u, kb = b < other ? keys[slot(right + b)] : 0u;
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            bool take_left = b >= other || (a < run && ka <= kb);
            k[j] = take_left ? ka : kb;
            if (INDEXED) p[j] = places[slot(take_left ? left + a : right + b)];
            if (take_left) { a++; ka = a < run ? keys[slot(left + a)] : 0u; }
            else { b++; kb = b < other ? keys[slot(right + b)] : 0u; }
        }
    }
    store_part();
}
