#version 460
#extension GL_GOOGLE_include_directive : require
// One pass of a radix sort of long rows, least significant digit first, in three steps: count digits by tile, sum the
// counts up along the tiles (of few tiles, the last step does it), move. Stable: the k-th of a digit in a tile goes to
// the k-th place of that digit and tile.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "sort.glsl"
layout(constant_id = 1) const uint STEP = 0;
layout(constant_id = 2) const uint FROM = 10;
layout(constant_id = 3) const uint FLAGS = 0;
layout(constant_id = 4) const uint EACH = 16;          // elements a thread; MOST at most
layout(constant_id = 5) const uint SUBGROUPS = 8;      // in a workgroup, at most; even
layout(constant_id = 6) const bool SUMMED = true;      // there was a step 1
BUFFER(0, dst)
BUFFER_READ(1, src)
layout(std430, set = 0, binding = 2) restrict readonly buffer place_words { uint place32[]; };
layout(std430, set = 0, binding = 3) restrict writeonly buffer dst_place_words { uint dst_place32[]; };
layout(std430, set = 0, binding = 4) restrict buffer counts_words { uint counts32[]; };    // [row][digit][tile], then totals [row][digit]
ACCESS(dst)

layout(push_constant) uniform radix_push { uint rows, n, tiles, shift, dst_at, src_at, place_at, dst_place_at, counts_at; };

//! enum RADIX_: values of a digit, and threads; most elements of a thread; most subgroups for which a count is a whole word
const uint DIGITS = 256, MOST = 16, WHOLE = 8;

const uint TILE = DIGITS * EACH;

bool pairs() { return (FLAGS & RAW) != 0u && (FROM == U64 || FROM == I64 || FROM == C64); }

const bool NARROW = SUBGROUPS > WHOLE;

uint digit_of(const uint key) { return (key >> shift) & (DIGITS - 1u); }
uint own_number() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }

// Raw bits, and keys behind all of them: a thread's loads are on their way at once.
uvec2 raw_at(const uint from)
{
    if (pairs()) return src64[from];
    if ((FLAGS & RAW) != 0u && is_small(FROM)) return uvec2(src8[from], 0u);
    return uvec2((FLAGS & RAW) != 0u && is_half(FROM) ? uint(src16[from]) : src32[from], 0u);
}
uint key_of_raw(const uvec2 raw)
{
    if (pairs()) return key_of_pair(raw, FROM, (FLAGS & HIGH) != 0u);
    return (FLAGS & RAW) != 0u ? key_of(raw.x, FROM, (FLAGS & INDEX_OUT) != 0u) : raw.x;
}
// Every step-th element. whole: none is behind the row's end; else the largest key stands for what is missing.
void fetch(const uint row, const uint first, const uint step, const bool whole, out uint key[EACH], out uint place[EACH])
{
    uvec2 raw[EACH];
    uint from = row * n;
    [[unroll]] for (uint j = 0; j < EACH; j++) {
        uint i = first + j * step;
        if (!whole) i = min(i, n - 1u);
        place[j] = (FLAGS & INDEX_IN) != 0u ? place32[place_at + from + i] : i;
        raw[j] = raw_at(src_at + from + ((FLAGS & GATHER) != 0u ? min(place[j], n - 1u) : i));
    }
    [[unroll]] for (uint j = 0; j < EACH; j++)
        key[j] = whole || first + j * step < n ? key_of_raw(raw[j]) : 0xffffffffu;
}
void fetch_tile(const uint row, const uint tile, const uint run, const uint step, out uint key[EACH], out uint place[EACH])
{
    if (n - tile * TILE >= TILE) fetch(row, tile * TILE + run, step, true, key, place);
    else fetch(row, tile * TILE + run, step, false, key, place);
}

shared uvec2 parts[SUBGROUPS];

// Sums of what the subgroups before this one bring, and of what all bring.
void sum_parts(const uvec2 own, out uvec2 before, out uvec2 all)
{
    barrier();
    if (subgroupElect()) parts[gl_SubgroupID] = own;
    barrier();
    before = all = uvec2(0u);
    for (uint s = 0u; s < gl_NumSubgroups; s++) {
        if (s < gl_SubgroupID) before += parts[s];
        all += parts[s];
    }
}

shared uint digits[DIGITS];

void count_tile(const uint row, const uint tile)
{
    uint t = own_number(), key[EACH], place[EACH];
    digits[t] = 0u;
    fetch_tile(row, tile, t, DIGITS, key, place);
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) atomicAdd(digits[digit_of(key[j])], 1u);
    barrier();
    uint missing = t == DIGITS - 1u ? TILE - min(TILE, n - tile * TILE) : 0u;
    counts32[counts_at + (row * DIGITS + t) * tiles + tile] = digits[t] - missing;
}

// One digit of one row: what is before each tile. By the workgroup, or, where subgroups are narrow, by a thread.
void scan_alone(const uint line)
{
    uint at = counts_at + line * tiles, sum = 0u;
    for (uint i = 0u; i < tiles; i++) {
        uint c = counts32[at + i];
        counts32[at + i] = sum;
        sum += c;
    }
    counts32[counts_at + rows * DIGITS * tiles + line] = sum;
}
void scan_tiles(const uint line)
{
    uint at = counts_at + line * tiles, sum = 0u, run = gl_SubgroupID * gl_SubgroupSize * EACH + gl_SubgroupInvocationID;
    for (uint first = 0u; first < tiles; first += TILE) {
        uint c[EACH], own = 0u, from = first + run;
        uvec2 before, all;
        [[unroll]] for (uint j = 0; j < EACH; j++) c[j] = counts32[at + min(from + j * gl_SubgroupSize, tiles - 1u)];
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            uint x = from + j * gl_SubgroupSize < tiles ? c[j] : 0u;
            c[j] = own + subgroupExclusiveAdd(x);
            own += subgroupAdd(x);
        }
        sum_parts(uvec2(own, 0u), before, all);
        [[unroll]] for (uint j = 0; j < EACH; j++)
            if (from + j * gl_SubgroupSize < tiles) counts32[at + from + j * gl_SubgroupSize] = sum + before.x + c[j];
        sum += all.x;
    }
    if (own_number() == 0u) counts32[counts_at + rows * DIGITS * tiles + line] = sum;
}

// Of this thread's digit: how many there are in the row, and before this tile.
uvec2 counts_of(const uint row, const uint tile, const uint digit)
{
    uint at = counts_at + (row * DIGITS + digit) * tiles;
    if (SUMMED) return uvec2(counts32[counts_at + (rows * tiles + row) * DIGITS + digit], counts32[at + tile]);
    uvec2 sum = uvec2(0u);
    for (uint i = 0u; i < tiles; i++) {
        uint c = counts32[at + i];
        sum += uvec2(c, i < tile ? c : 0u);
    }
    return sum;
}

void write_key(const uint at, const uint key)
{
    if ((FLAGS & KEYS_OUT) != 0u) dst32[dst_at + at] = key;
    if ((FLAGS & VALUES_OUT) != 0u) store_dst(dst_at + at, FROM, raw_of(key, FROM));
}

// By subgroup and digit, two in a word where there are many subgroups: counts, and then places. By places: keys, and their
// positions.
const bool MOVES = STEP == 2u;
const uint LINE = NARROW ? DIGITS / 2u : DIGITS, TABLE = MOVES ? SUBGROUPS * LINE : 1u, POOL = MOVES ? TILE : 1u;
shared uint table[TABLE], pool[POOL], positions[(FLAGS & INDEX_OUT) != 0u ? POOL : 1u];

uint slot_of(const uint digit) { return gl_SubgroupID * LINE + (NARROW ? digit / 2u : digit); }
uint half_at(const uint digit) { return NARROW ? (digit & 1u) * 16u : 0u; }

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

// The next place of a digit in this subgroup's line for a lane, those of earlier lanes behind each other; the last lane of
// each digit moves it on.
uint next_place(const uint digit)
{
    uvec4 same = same_digit(digit);
    uint slot = slot_of(digit), before = subgroupBallotExclusiveBitCount(same);
    uint place = (NARROW ? table[slot] >> half_at(digit) & 0xffffu : table[slot]) + before;
    subgroupBarrier();
    if ((same & gl_SubgroupGtMask) == uvec4(0u)) {
        if (NARROW) atomicAdd(table[slot], before + 1u << half_at(digit));
        else table[slot] = place + 1u;
    }
    subgroupBarrier();
    return place;
}

void move_to_pool(const uint key, const uint place)
{
    uint at = next_place(digit_of(key));
    pool[at] = key;
    if ((FLAGS & INDEX_OUT) != 0u) positions[at] = place;
}

// Counts become places in the tile; digits: where each digit begins in the row, less where it begins in the tile.
void place_digits(const uint row, const uint tile)
{
    uint t = own_number(), line = NARROW ? t / 2u : t, own = 0u;
    uvec2 counts = counts_of(row, tile, t), before, all;
    for (uint s = 0u; s < gl_NumSubgroups; s++) own += table[s * LINE + line];
    uint mine = NARROW ? own >> half_at(t) & 0xffffu : own;
    uvec2 start = subgroupExclusiveAdd(uvec2(counts.x, mine));
    sum_parts(subgroupAdd(uvec2(counts.x, mine)), before, all);
    start += before;
    digits[t] = start.x + counts.y - start.y;
    if (NARROW && (t & 1u) != 0u) return;              // both halves of a word by one thread
    uint sum = NARROW ? start.y | (start.y + mine) << 16u : start.y;
    for (uint s = 0u; s < gl_NumSubgroups; s++) {
        uint c = table[s * LINE + line];
        table[s * LINE + line] = sum;
        sum += c;
    }
}

void move_tile(const uint row, const uint tile)
{
    uint t = own_number(), valid = min(TILE, n - tile * TILE), key[EACH], place[EACH];
    fetch_tile(row, tile, gl_SubgroupID * gl_SubgroupSize * EACH + gl_SubgroupInvocationID, gl_SubgroupSize, key, place);
    for (uint i = t; i < TABLE; i += DIGITS) table[i] = 0u;
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) atomicAdd(table[slot_of(digit_of(key[j]))], 1u << half_at(digit_of(key[j])));
    barrier();
    place_digits(row, tile);
    barrier();
    // Written out: NVIDIA's compiler leaves a loop of 14 as it is, and the keys in memory (325 us a step become 470).
#define MOVE(j) if (j < EACH) move_to_pool(key[j], place[j]);
    MOVE(0u) MOVE(1u) MOVE(2u) MOVE(3u) MOVE(4u) MOVE(5u) MOVE(6u) MOVE(7u)
    MOVE(8u) MOVE(9u) MOVE(10u) MOVE(11u) MOVE(12u) MOVE(13u) MOVE(14u) MOVE(15u)
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) {       // in order of digits: neighbours write to neighbours
        uint p = j * DIGITS + t, k = pool[p], to = row * n + min(digits[digit_of(k)] + p, n - 1u);
        if (p >= valid) continue;
        write_key(to, k);
        if ((FLAGS & INDEX_OUT) != 0u) dst_place32[dst_place_at + to] = positions[p];
    }
}

void main()
{
    uint g = group_index();
    if (STEP == 1u) {
        if (!NARROW && g < rows * DIGITS) scan_tiles(g);
        if (NARROW && g < rows) scan_alone(g * DIGITS + gl_LocalInvocationID.x);
        return;
    }
    if (g >= rows * tiles) return;
    uint row = g / tiles, tile = g - row * tiles;
    if (STEP == 0u) count_tile(row, tile);
    else move_tile(row, tile);
}
