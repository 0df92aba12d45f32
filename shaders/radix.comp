#version 460
#extension GL_GOOGLE_include_directive : require
// One pass of a radix sort of long rows, least significant digit first, in three steps: count digits by tile, sum the
// counts up along the tiles (of few tiles, the last step does it), move. Stable: the k-th of a digit in a tile goes to
// the k-th place of that digit and tile.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "sort.glsl"
layout(constant_id = 1) const uint STEP = 0;
layout(constant_id = 2) const uint FROM = 10;
layout(constant_id = 3) const uint FLAGS = 0;
layout(constant_id = 4) const uint EACH = 16;          // elements a thread
layout(constant_id = 5) const uint SUBGROUPS = 8;      // in a workgroup, at most; even
layout(constant_id = 6) const bool SUMMED = true;      // there was a step 1
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, place)
BUFFER(3, dst_place)
BUFFER(4, counts)                                      // [row][digit][tile], then totals [row][digit]
ACCESS(dst)
ACCESS(src)

layout(push_constant) uniform radix_push { uint rows, n, tiles, shift, dst_at, src_at, place_at, dst_place_at, counts_at; };

//! enum RADIX_: values of a digit
const uint DIGITS = 256;                               // and threads: each looks after one

const uint TILE = DIGITS * EACH;

uint place_of(const uint row, const uint i) { return (FLAGS & INDEX_IN) != 0u ? place32[place_at + row * n + i] : i; }
uint key_at(const uint row, const uint i, const uint place)
{
    uint from = src_at + row * n + ((FLAGS & GATHER) != 0u ? min(place, n - 1u) : i);
    if ((FLAGS & RAW) == 0u) return src32[from];
    if (FROM == U64 || FROM == I64 || FROM == C64) return key_of_pair(src64[from], FROM, (FLAGS & HIGH) != 0u);
    return key_of(load_src(from, FROM), FROM, (FLAGS & INDEX_OUT) != 0u);
}
uint digit_of(const uint key) { return (key >> shift) & (DIGITS - 1u); }

shared uint sums[DIGITS];

// Sum of what the threads before this one bring.
uint sum_before(const uint x)
{
    uint t = gl_LocalInvocationID.x;
    sums[t] = x;
    barrier();
    for (uint s = 1u; s < DIGITS; s *= 2u) {
        uint y = t >= s ? sums[t - s] : 0u;
        barrier();
        sums[t] += y;
        barrier();
    }
    return sums[t] - x;
}

shared uint digits[DIGITS];

void count_tile(const uint row, const uint tile)
{
    uint t = gl_LocalInvocationID.x, key[EACH];
    digits[t] = 0u;
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) {
        uint i = tile * TILE + j * DIGITS + t;
        if (i < n) key[j] = key_at(row, i, (FLAGS & GATHER) != 0u ? place_of(row, i) : 0u);
    }
    [[unroll]] for (uint j = 0; j < EACH; j++)
        if (tile * TILE + j * DIGITS + t < n) atomicAdd(digits[digit_of(key[j])], 1u);
    barrier();
    counts32[counts_at + (row * DIGITS + t) * tiles + tile] = digits[t];
}

// One digit of one row: what is before each tile.
void scan_tiles(const uint line)
{
    uint t = gl_LocalInvocationID.x, at = counts_at + line * tiles, sum = 0u;
    for (uint first = 0u; first < tiles; first += DIGITS * EACH) {
        uint c[EACH], own = 0u, from = first + t * EACH;
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            c[j] = from + j < tiles ? counts32[at + from + j] : 0u;
            own += c[j];
        }
        uint before = sum + sum_before(own);
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            if (from + j < tiles) counts32[at + from + j] = before;
            before += c[j];
        }
        sum += sums[DIGITS - 1u];
        barrier();
    }
    if (t == 0u) counts32[counts_at + rows * DIGITS * tiles + line] = sum;
}

// Where each digit of this tile begins in the row, less where it begins in the tile.
void find_offsets(const uint row, const uint tile, const uint own, out uint start)
{
    uint t = gl_LocalInvocationID.x, at = counts_at + (row * DIGITS + t) * tiles, total = 0u, before = 0u;
    if (SUMMED) {
        total = counts32[counts_at + (rows * tiles + row) * DIGITS + t];
        before = counts32[at + tile];
    } else
        for (uint i = 0; i < tiles; i++) {
            uint c = counts32[at + i];
            total += c;
            if (i < tile) before += c;
        }
    uint begins = sum_before(total) + before;
    barrier();
    start = sum_before(own);
    digits[t] = begins - start;
}

void write_key(const uint row, const uint to, const uint key)
{
    if ((FLAGS & KEYS_OUT) != 0u) dst32[dst_at + row * n + to] = key;
    if ((FLAGS & VALUES_OUT) != 0u) store_dst(dst_at + row * n + to, FROM, raw_of(key, FROM));
}

const uint TABLE = SUBGROUPS * DIGITS / 2u;            // counts by subgroup and digit, two in a word
shared uint pool[TILE > TABLE ? TILE : TABLE];

// The lanes whose digit is this lane's.
uvec4 same_digit(const uint digit)
{
    uvec4 same = subgroupBallot(true);
    [[unroll]] for (uint bit = 0u; bit < 8u; bit++) {
        bool one = (digit >> bit & 1u) != 0u;
        uvec4 ones = subgroupBallot(one);
        same &= one ? ones : ~ones;
    }
    return same;
}

void move_tile(const uint row, const uint tile)
{
    uint t = gl_LocalInvocationID.x, first = tile * TILE, valid = min(TILE, n - first);
    uint key[EACH], place[EACH], at[EACH], own = 0u, start;
    uint run = gl_SubgroupID * gl_SubgroupSize * EACH + gl_SubgroupInvocationID, table = gl_SubgroupID * (DIGITS / 2u);
    [[unroll]] for (uint j = 0; j < EACH; j++) {
        uint i = first + run + j * gl_SubgroupSize;
        place[j] = i < n && (FLAGS & INDEX_OUT) != 0u ? place_of(row, i) : 0u;
        key[j] = i < n ? key_at(row, i, place[j]) : 0xffffffffu;
    }
    for (uint i = t; i < TABLE; i += DIGITS) pool[i] = 0u;
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) {       // the rank among this digit's in the subgroup
        uint digit = digit_of(key[j]), word = table + digit / 2u, half_at = (digit & 1u) * 16u;
        uvec4 same = same_digit(digit);
        uint before = subgroupBallotExclusiveBitCount(same);
        at[j] = (pool[word] >> half_at & 0xffffu) + before;
        subgroupBarrier();
        if (before == 0u) atomicAdd(pool[word], subgroupBallotBitCount(same) << half_at);
        subgroupBarrier();
    }
    barrier();
    if ((t & 1u) == 0u)                                // both halves of a word by one thread
        for (uint s = 0u, sum = 0u; s < gl_NumSubgroups; s++) {
            uint c = pool[s * (DIGITS / 2u) + t / 2u];
            pool[s * (DIGITS / 2u) + t / 2u] = sum;
            sum += c;
            sums[t / 2u] = sum;
        }
    barrier();
    own = sums[t / 2u] >> ((t & 1u) * 16u) & 0xffffu;
    barrier();
    find_offsets(row, tile, own, start);
    sums[t] = start;
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) {
        uint digit = digit_of(key[j]);
        at[j] += sums[digit] + (pool[table + digit / 2u] >> ((digit & 1u) * 16u) & 0xffffu);
    }
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) pool[at[j]] = key[j];
    barrier();
    uint to[EACH];
    [[unroll]] for (uint j = 0; j < EACH; j++) {       // in order of digits: neighbours write to neighbours
        uint p = j * DIGITS + t, k = pool[p];
        to[j] = digits[digit_of(k)] + p;
        if (p < valid) write_key(row, to[j], k);
    }
    if ((FLAGS & INDEX_OUT) == 0u) return;
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) pool[at[j]] = place[j];
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++)
        if (j * DIGITS + t < valid) dst_place32[dst_place_at + row * n + to[j]] = pool[j * DIGITS + t];
}

void main()
{
    uint g = group_index();
    if (STEP == 1u) {
        if (g < rows * DIGITS) scan_tiles(g);
        return;
    }
    if (g >= rows * tiles) return;
    uint row = g / tiles, tile = g - row * tiles;
    if (STEP == 0u) count_tile(row, tile);
    else move_tile(row, tile);
}
