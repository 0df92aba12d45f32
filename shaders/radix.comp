#version 460
#extension GL_GOOGLE_include_directive : require
// One pass of a radix sort of long rows, least significant digit first, in three steps: count digits by tile, sum the
// counts up along the tiles (of few tiles, the last step does it), move. Stable: the k-th of a digit in a tile goes to
// the k-th place of that digit and tile.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "sort.glsl"
layout(constant_id = 1) const uint STEP = 0;
layout(constant_id = 2) const uint FROM = 10;
layout(constant_id = 3) const uint FLAGS = 0;
layout(constant_id = 4) const uint EACH = 16;          // elements a thread
layout(constant_id = 5) const uint SUBGROUPS = 8;      // in a workgroup, at most; even
layout(constant_id = 6) const bool SUMMED = true;      // there was a step 1
layout(constant_id = 7) const uint VARIANT = 0;
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, place)
BUFFER(3, dst_place)
BUFFER(4, counts)                                      // [row][digit][tile], then totals [row][digit]
// Of steps 3 to 5: [row][round][digit] in all, then [row][tile][digit], what the tile or all up to it have: see `tagged`.
layout(std430, set = 0, binding = 4) coherent volatile buffer counts_told { uint told[]; };
ACCESS(dst)
ACCESS(src)

layout(push_constant) uniform radix_push { uint rows, n, tiles, shift, dst_at, src_at, place_at, dst_place_at, counts_at, parts, looks; };

//! enum RADIX_: rounds that steps 3 to 5 know
const uint ROUNDS = 4;
//! enum RADIX_: a flag: no tile tells what it has, so that all count what they need
const uint SILENT = 128;
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

// Where a digit's number is in shared memory: digits that are multiples of some power of two lie in other banks.
uint slot(const uint digit) { return (VARIANT & 2u) != 0u ? digit + digit / 32u : digit; }
const uint SLOTS = DIGITS + DIGITS / 32u;

shared uint sums[SLOTS], tops[DIGITS / 4u];            // tops: of subgroups

// Sum of what the threads before this one bring; all: of all of them. A barrier is in there, and one has to be before the next.
uint sum_before(const uint x, out uint all)
{
    uint sum = subgroupInclusiveAdd(x), before = 0u;
    if (gl_SubgroupInvocationID == gl_SubgroupSize - 1u) tops[gl_SubgroupID] = sum;
    barrier();
    all = 0u;
    for (uint s = 0u; s < gl_NumSubgroups; s++) {
        if (s == gl_SubgroupID) before = all;
        all += tops[s];
    }
    return before + sum - x;
}

const uint TABLE = SUBGROUPS * DIGITS / 2u;            // counts by subgroup and digit, two in a word
const uint TOTALS = ROUNDS * SLOTS * 4u;               // four of each, by lane: in some rounds many keys have one digit
shared uint pool[STEP == 4u ? TOTALS : TILE > TABLE ? TILE : TABLE];
shared uint digits[SLOTS];

// Into `digits`.
void count_digits(const uint row, const uint tile)
{
    uint t = gl_LocalInvocationID.x, key[EACH];
    digits[slot(t)] = 0u;
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) {
        uint i = tile * TILE + j * DIGITS + t;
        if (i < n) key[j] = key_at(row, i, (FLAGS & GATHER) != 0u ? place_of(row, i) : 0u);
    }
    [[unroll]] for (uint j = 0; j < EACH; j++)
        if (tile * TILE + j * DIGITS + t < n) atomicAdd(digits[slot(digit_of(key[j]))], 1u);
    barrier();
}
void count_tile(const uint row, const uint tile)
{
    count_digits(row, tile);
    counts32[counts_at + (row * DIGITS + gl_LocalInvocationID.x) * tiles + tile] = digits[slot(gl_LocalInvocationID.x)];
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
        uint all, before = sum + sum_before(own, all);
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            if (from + j < tiles) counts32[at + from + j] = before;
            before += c[j];
        }
        sum += all;
        barrier();
    }
    if (t == 0u) counts32[counts_at + rows * DIGITS * tiles + line] = sum;
}

// Where each digit of this tile begins in the row.
uint begin_of(const uint row, const uint tile)
{
    uint t = gl_LocalInvocationID.x, at = counts_at + (row * DIGITS + t) * tiles, total = 0u, before = 0u, all;
    if (SUMMED) {
        total = counts32[counts_at + (rows * tiles + row) * DIGITS + t];
        before = counts32[at + tile];
    } else
        for (uint i = 0; i < tiles; i++) {
            uint c = counts32[at + i];
            total += c;
            if (i < tile) before += c;
        }
    return sum_before(total, all) + before;
}

// ---- steps 3 to 5: the digits of all rounds are counted at once, and tiles wait for those before them ----

// A number below 2^28, what it is (1: of all tiles up to this one, 0: of this one) and the round it belongs to.
const uint NUMBER = 0xfffffffu;
uint tagged(const uint number, const uint all) { return number | (1u + shift / 4u + all) << 28; }
void tell(const uint row, const uint tile, const uint number, const uint all)
{
    if ((FLAGS & SILENT) == 0u)
        told[counts_at + (rows * ROUNDS + row * tiles + tile) * DIGITS + gl_LocalInvocationID.x] = tagged(number, all);
}

void count_rounds(const uint row, const uint part)
{
    uint t = gl_LocalInvocationID.x, rounds = shift;
    for (uint i = t; i < TOTALS; i += DIGITS) pool[i] = 0u;
    barrier();
    for (uint tile = part; tile < tiles; tile += parts) {
        uint key[EACH];
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            uint i = tile * TILE + j * DIGITS + t;
            if (i < n) key[j] = key_at(row, i, 0u);
        }
        [[unroll]] for (uint j = 0; j < EACH; j++)
            if (tile * TILE + j * DIGITS + t < n)
                for (uint r = 0u; r < rounds; r++)
                    atomicAdd(pool[(r * SLOTS + slot(key[j] >> 8u * r & 255u)) * 4u + (t & 3u)], 1u);
    }
    barrier();
    for (uint r = 0u; r < rounds; r++) {
        uint i = (r * SLOTS + slot(t)) * 4u;
        atomicAdd(counts32[counts_at + (row * ROUNDS + r) * DIGITS + t],
                  pool[i] + pool[i + 1u] + pool[i + 2u] + pool[i + 3u]);
    }
}

shared uint stuck;

// How many of this thread's digit the tiles before this one have. Where a tile does not tell, its digits are counted here.
uint look_back(const uint row, const uint tile)
{
    const uint AT_ONCE = 8;
    uint t = gl_LocalInvocationID.x, at = counts_at + (rows * ROUNDS + row * tiles) * DIGITS + t, i = tile, before = 0u;
    uint own_tag = 1u + shift / 4u, patience = (FLAGS & SILENT) != 0u ? 0u : looks;
    for (;;) {
        for (uint k = 0u; i > 0u && k <= patience; k++) {
            uint w[AT_ONCE];
            [[unroll]] for (uint j = 0u; j < AT_ONCE; j++) w[j] = told[at + (max(i, j + 1u) - j - 1u) * DIGITS];
            bool go = true;
            [[unroll]] for (uint j = 0u; j < AT_ONCE; j++) {
                uint tag = w[j] >> 28;
                go = go && i > 0u && (tag == own_tag || tag == own_tag + 1u);
                if (go) {
                    before += w[j] & NUMBER;
                    i = tag == own_tag ? i - 1u : 0u;
                    k = ~0u;
                }
            }
        }
        if (t == 0u) stuck = 0u;
        barrier();
        if (i > 0u) atomicMax(stuck, i);
        barrier();
        uint missing = stuck;
        if (missing == 0u) break;
        count_digits(row, missing - 1u);
        if (i == missing) {
            before += digits[slot(t)];
            i--;
        }
        patience = 0u;
        barrier();
    }
    return before;
}

void write_key(const uint row, const uint to, const uint key)
{
    if ((FLAGS & KEYS_OUT) != 0u) dst32[dst_at + row * n + to] = key;
    if ((FLAGS & VALUES_OUT) != 0u) store_dst(dst_at + row * n + to, FROM, raw_of(key, FROM));
}

// How many lanes have this lane's digit, and how many of those are before it.
uint same_digit(const uint digit, out uint before)
{
    if (gl_SubgroupSize <= 32u && (VARIANT & 1u) != 0u) {
        uint same = ~0u;
        [[unroll]] for (int bit = 0; bit < 8; bit++) {
            int one = bitfieldExtract(int(digit), bit, 1);             // all bits are this one
            same &= subgroupBallot(one != 0).x ^ uint(~one);
        }
        same &= subgroupBallot(true).x;
        before = bitCount(same & gl_SubgroupLtMask.x);
        return bitCount(same);
    }
    uvec4 same = subgroupBallot(true);
    [[unroll]] for (uint bit = 0u; bit < 8u; bit++) {
        bool one = (digit >> bit & 1u) != 0u;
        uvec4 ones = subgroupBallot(one);
        same &= one ? ones : ~ones;
    }
    before = subgroupBallotExclusiveBitCount(same);
    return subgroupBallotBitCount(same);
}

void move_tile(const uint row, const uint tile)
{
    uint t = gl_LocalInvocationID.x, first = tile * TILE, valid = min(TILE, n - first);
    uint key[EACH], place[EACH], at[EACH], own = 0u, start, begins, all;
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
        uint before, same = same_digit(digit, before);
        at[j] = (pool[word] >> half_at & 0xffffu) + before;
        subgroupBarrier();
        if (before == 0u) atomicAdd(pool[word], same << half_at);
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
    if (STEP == 5u) {
        tell(row, tile, own, tile == 0u ? 1u : 0u);
        start = sum_before(own, all);
    } else {
        begins = begin_of(row, tile);
        barrier();
        start = sum_before(own, all);
        digits[slot(t)] = begins - start;
    }
    sums[slot(t)] = start;
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) {
        uint digit = digit_of(key[j]);
        at[j] += sums[slot(digit)] + (pool[table + digit / 2u] >> ((digit & 1u) * 16u) & 0xffffu);
    }
    barrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) pool[at[j]] = key[j];
    if (STEP == 5u) {
        uint before = look_back(row, tile), total = counts32[counts_at + (row * ROUNDS + shift / 8u) * DIGITS + t];
        if (tile > 0u) tell(row, tile, before + own, 1u);
        digits[slot(t)] = sum_before(total, all) + before - start;
    }
    barrier();
    uint to[EACH];
    [[unroll]] for (uint j = 0; j < EACH; j++) {       // in order of digits: neighbours write to neighbours
        uint p = j * DIGITS + t, k = pool[p];
        to[j] = digits[slot(digit_of(k))] + p;
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
    if (STEP == 3u) {
        if (g < rows * (ROUNDS + tiles)) counts32[counts_at + g * DIGITS + gl_LocalInvocationID.x] = 0u;
        return;
    }
    if (STEP == 4u) {
        if (g < rows * parts) count_rounds(g / parts, g % parts);
        return;
    }
    if (g >= rows * tiles) return;
    uint row = g / tiles, tile = g - row * tiles;
    if (STEP == 0u) count_tile(row, tile);
    else move_tile(row, tile);
}
