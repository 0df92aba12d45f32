#version 460
#extension GL_GOOGLE_include_directive : require
// Scans of long rows in one pass: a workgroup holds a tile of a row, tells what it comes to, and waits until it knows what
// all before it come to: FAN tiles make a group, FAN groups a block, and the last tile of one tells what that comes to.
// Sums are formed in one order, whoever forms them and whenever.
//
// Nothing here relies on other workgroups: one that has looked `looks` times for what a tile comes to scans that tile
// itself, and then its own again. So the operand must not lie where the result is written.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "common.glsl"
layout(constant_id = 1) const uint OP = 0;
layout(constant_id = 2) const uint FROM = 10;          // operand's dtype, of 32 bits at most; result's
layout(constant_id = 3) const uint TO = 10;
layout(constant_id = 4) const uint HOLD = 8;           // fours a thread has
layout(constant_id = 5) const uint FAN = 32;           // tiles of a group, groups of a block
layout(constant_id = 6) const uint FLAGS = 0;
layout(constant_id = 7) const uint FAR = 0;            // of its fours that a thread keeps in shared memory, the first
//! enum SCAN_ONCE_: flags; CLEAR: zeros for `parts`, no more; JOINED: they are zeros before and behind; SEARCH: with that, see below
const uint REVERSE = 1, EXCLUSIVE = 2, CLEAR = 4, JOINED = 8, SEARCH = 16, RIGHT = 32, LESS = 64, MORE = 128;
//! enum SCAN_JOINED_: parts that there are at most where they are zeros before and behind
const uint MOST = 63;
const bool BACKWARDS = (FLAGS & REVERSE) != 0u, WITHOUT = (FLAGS & EXCLUSIVE) != 0u;

layout(push_constant) uniform scan_once_push {
    uint n, outer, tiles, groups, blocks;              // of a row, of which there are `outer`
    uint apart, from, to, parts_at;                    // from row to row of the operand; the first element of it, of result and parts
    uint looks;                                        // 0: no tile tells anything, so that all scan what they need
    uint value_at, place_at, number_at;                // SEARCH
};
BUFFER(0, dst)
BUFFER(1, src)
ACCESS(dst)
ACCESS(src)
// What the row's tiles come to, then its groups, then its blocks: halves of a word, each with a bit that says it is there.
layout(std430, set = 0, binding = 2) coherent volatile buffer parts_pairs { uvec2 parts64[]; };

// ---- what is accumulated: numbers; of extrema unsigned integers that order as the values do, NaN at the end that wins ----

const uint SUM = 0, PROD = 1, MAX = 2, MIN = 3;        // as accumulate.glsl has them
const bool FLOATS = FROM == F16 || FROM == F32 || FROM == BF16, SIGNED = FROM >= I8 && FROM <= I64, KEYS = OP >= MAX;
const uint SIGN = 0x80000000u, NAN_KEY = OP == MAX ? ~0u : 0u, FLIP = KEYS && SIGNED ? SIGN : 0u;
const uint TOP = FROM == BOOL ? 1u : FROM == U8 || FROM == I8 ? 0xffu : FROM == U16 || FROM == I16 ? 0xffffu : ~0u;
const uint LEAST = FLOATS ? 0x007fffffu : SIGNED ? SIGN - 1u - TOP / 2u : 0u;               // infinities of floats
const uint HIGHEST = FLOATS ? 0xff800000u : SIGNED ? SIGN + TOP / 2u : TOP;
const uint NOTHING = OP == SUM ? 0u : OP == PROD ? (FLOATS ? 0x3f800000u : 1u) : OP == MAX ? LEAST : HIGHEST;

uint combine(const uint a, const uint b)
{
    if (OP == MAX) return max(a, b);
    if (OP == MIN) return min(a, b);
    if (!FLOATS) return OP == SUM ? a + b : a * b;
    float x = uintBitsToFloat(a), y = uintBitsToFloat(b);
    return floatBitsToUint(OP == SUM ? x + y : x * y);
}
uint value(const uint raw)
{
    if (!FLOATS) return sign_extend(raw, FROM) ^ FLIP;
    uint a = floatBitsToUint(bits_to_float(raw, FROM));
    if (!KEYS) return a;
    return is_nan(uintBitsToFloat(a)) ? NAN_KEY : a ^ ((a & SIGN) != 0u ? ~0u : SIGN);
}
uint finish(uint a)                                    // the bits of a result
{
    if (!FLOATS) return a ^ FLIP;
    if (KEYS) a = a == NAN_KEY ? 0x7fc00000u : a ^ ((a & SIGN) != 0u ? SIGN : ~0u);
    return float_to_bits(uintBitsToFloat(a), TO);
}

const uint THERE = 0x10000u, NONE = ~0u;

uint lane() { return gl_SubgroupInvocationID; }
uint before_by(const uint a, const uint d)             // what the lane d before this one has; of those that have none, any
{
    return subgroupShuffle(a, (lane() - d) & (gl_SubgroupSize - 1u));
}
uint last_of(const uint a) { return subgroupShuffle(a, gl_SubgroupSize - 1u); }

// Of the subgroup's lanes, in a tree of one shape.
uint all_lanes(uint a)
{
    for (uint d = 1u; d < gl_SubgroupSize; d *= 2u) {
        uint b = before_by(a, d);
        if (lane() >= d) a = combine(b, a);
    }
    return last_of(a);
}

void tell(const uint at, const uint a) { parts64[at] = uvec2(THERE | (a & 0xffffu), THERE | a >> 16); }

// ---- what lies before a tile, by one subgroup ----

// This lane's share of parts at .. at + count - 1; missing: the first that is not there, count where all are.
uint share(const uint at, const uint count, const uint most, out uint missing)
{
    uint a = NOTHING, first = count;
    for (uint i = lane(); i < count; i += gl_SubgroupSize) {
        uvec2 w = parts64[at + i];
        for (uint k = 0u; (w.x & w.y & THERE) == 0u && k < most; k++) w = parts64[at + i];
        if ((w.x & w.y & THERE) == 0u) first = min(first, i);
        a = combine(a, (w.x & 0xffffu) | w.y << 16);
    }
    missing = subgroupMin(first);
    return a;
}

// Where a row's tiles (level 0), groups (1) or blocks (2) begin.
uint level_at(const uint level) { return min(level, 1u) * tiles + level / 2u * groups; }

// Of a level's parts first .. first + count - 1, as lanes have them; missing: a tile that is, or NONE. What is not told of,
// but all of whose own parts are there, is told of here.
uint share_level(const uint row_at, const uint level, const uint first, const uint count, uint most, out uint missing)
{
    for (;;) {
        uint k, a = share(row_at + level_at(level) + first, count, most, k), b, down = level;
        missing = NONE;
        if (k >= count) return a;
        for (k += first; down > 0u; down--) {
            uint lacks;
            b = all_lanes(share(row_at + level_at(down - 1u) + k * FAN, FAN, 0u, lacks));
            if (lacks >= FAN) break;
            k = k * FAN + lacks;
        }
        missing = k;
        if (down == 0u) return a;
        if (lane() == 0u) tell(row_at + level_at(down) + k, b);
        subgroupMemoryBarrierBuffer();
        most = 0u;
    }
}

shared uint behind[3];                                 // tiles of this one's group, groups of its block, and blocks before it
shared uint lost;                                      // a tile that is missing; NONE

// The last tile of a group tells of that, and of the block that ends with it. Lanes meet in shuffles alone: to Mesa 26's
// lavapipe subgroupBarrier() is one of the workgroup, which not all subgroups come to.
void look_back(const uint row_at, const uint tile, const uint most)
{
    subgroupMemoryBarrierBuffer();                     // this tile is told of
    for (uint level = gl_SubgroupID; level < 3u; level += gl_NumSubgroups) {
        uint i = level == 0u ? tile : level == 1u ? tile / FAN : tile / FAN / FAN, missing;
        uint count = level == 2u ? i : i % FAN, first = i - count;
        uint a = share_level(row_at, level, first, count, most, missing), lacks;
        if (level == 0u && looks > 0u && missing == NONE && count == FAN - 1u) {
            share_level(row_at, 1u, tile / FAN, 1u, 0u, lacks);
            if ((tile + 1u) % (FAN * FAN) == 0u) {
                share_level(row_at, 1u, tile / FAN - (FAN - 1u), FAN, most, lacks);
                share_level(row_at, 2u, tile / FAN / FAN, 1u, 0u, lacks);
            }
        }
        a = all_lanes(a);
        if (lane() == 0u) {
            behind[level] = a;
            atomicMin(lost, missing);
        }
    }
}

// ---- a tile ----

const uint TILE = gl_WorkGroupSize.x * HOLD;           // in fours
uvec4 near[HOLD - FAR];                                // scanned within fours
shared uvec4 far[FAR > 0u ? FAR * gl_WorkGroupSize.x : 1u];
uint ahead[HOLD];                                      // what is before each four in the subgroup
shared uint tops[gl_WorkGroupSize.x / 4u];             // of subgroups

uint four_of(const uint tile) { return tile * TILE + gl_SubgroupID * gl_SubgroupSize * HOLD + lane(); }
uint place_of(const uint i, const uint fours) { return BACKWARDS ? fours - 1u - i : i; }

// Four v of this thread as it is scanned within itself, where that belongs, and what all of it comes to.
void keep(const uint v, const uvec4 f)
{
    uint sum = NOTHING;
    uvec4 x;
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint a = combine(sum, value(f[BACKWARDS ? 3u - k : k]));
        x[k] = WITHOUT ? sum : a;
        sum = a;
    }
    ahead[v] = sum;
    if (v < FAR) far[v * gl_WorkGroupSize.x + gl_LocalInvocationID.x] = x;
    else near[v - FAR] = x;
}

// Scanned within fours, in the order of the scan; beyond the row is nothing. Fours count from where the row begins, so that its
// bits do not depend on where that is.
void load_tile(const uint tile, const uint base, const uint fours)
{
    uint first = four_of(tile);
    bool whole = ((base | n) & 3u) == 0u && (tile + 1u) * TILE <= fours;
    if (whole) {
        uvec4 f[HOLD];
        [[unroll]] for (uint v = 0u; v < HOLD; v++) f[v] = load4_src(base / 4u + place_of(first + v * gl_SubgroupSize, fours), FROM);
        [[unroll]] for (uint v = 0u; v < HOLD; v++) keep(v, f[v]);
        return;
    }
    [[unroll]] for (uint v = 0u; v < HOLD; v++) {
        uint i = first + v * gl_SubgroupSize, j = 4u * place_of(i, fours);
        uvec4 f = uvec4(finish(NOTHING));
        [[unroll]] for (uint k = 0u; k < 4u; k++)
            if (i < fours && j + k < n) f[k] = load_src(base + j + k, FROM);
        keep(v, f);
    }
}

// From what fours come to to what is before them; what the tile comes to, and what the subgroups before this one do.
uint scan_tile(out uint before)
{
    uint sum = NOTHING;
    for (uint d = 1u; d < gl_SubgroupSize; d *= 2u)
        [[unroll]] for (uint v = 0u; v < HOLD; v++) {
            uint b = before_by(ahead[v], d);
            if (lane() >= d) ahead[v] = combine(b, ahead[v]);
        }
    [[unroll]] for (uint v = 0u; v < HOLD; v++) {
        uint all = last_of(ahead[v]), b = before_by(ahead[v], 1u);
        ahead[v] = combine(sum, lane() > 0u ? b : NOTHING);
        sum = combine(sum, all);
    }
    if (lane() == 0u) tops[gl_SubgroupID] = sum;
    if (gl_LocalInvocationID.x == 0u) lost = NONE;
    barrier();
    sum = before = NOTHING;
    for (uint s = 0u; s < gl_NumSubgroups; s++) {
        if (s == gl_SubgroupID) before = sum;
        sum = combine(sum, tops[s]);
    }
    return sum;
}

void write_tile(const uint tile, const uint at, const uint fours, const uint before)
{
    uint first = four_of(tile);
    [[unroll]] for (uint v = 0u; v < HOLD; v++) {
        uint i = first + v * gl_SubgroupSize, skip = 4u * place_of(i, fours), a = combine(before, ahead[v]);
        uvec4 y, x;
        if (v < FAR) x = far[v * gl_WorkGroupSize.x + gl_LocalInvocationID.x];
        else x = near[v - FAR];
        [[unroll]] for (uint k = 0u; k < 4u; k++) y[k] = finish(combine(a, x[k]));
        if (BACKWARDS) y = y.wzyx;
        if (i < fours) {                               // these are elements skip .. skip + 3 of a row
            if ((at + skip) % 4u == 0u && n - skip >= 4u) store4_dst((at + skip) / 4u, TO, y);
            else
                [[unroll]] for (uint k = 0u; k < 4u; k++) if (skip + k < n) store_dst(at + skip + k, TO, y[k]);
        }
    }
}

// ---- who ends last ----

// Where a value belongs in what one row was scanned to, float32, as search.comp has it: halves, by the same steps, many at a
// time; a number is added or subtracted there. See search_together().
layout(std430, set = 0, binding = 3) buffer value_words { uint value32[]; };
layout(std430, set = 0, binding = 4) buffer place_words { uint place32[]; };
layout(std430, set = 0, binding = 5) buffer number_words { uint number32[]; };
layout(std430, set = 0, binding = 0) coherent buffer dst_scanned { uint scanned32[]; };
shared bool turn[gl_WorkGroupSize.x];
shared bool last;

void halve(inout uint low, inout uint high, const bool to_right)
{
    uint middle = low + (high - low) / 2u;
    if (to_right) low = middle + 1u;
    else high = middle;
}
uint key_of(const uint raw)                            // as sort.glsl has those of float32
{
    uint magnitude = raw & ~SIGN;
    return magnitude > 0x7f800000u ? ~0u : magnitude == 0u ? SIGN : raw ^ ((raw & SIGN) != 0u ? ~0u : SIGN);
}
void search()
{
    uint t = gl_LocalInvocationID.x, low = 0u, high = n, key = key_of(value32[value_at]);
    while (low < high) {
        uint l = low, h = high, k;
        for (int b = findMSB(t) - 1; b >= 0 && l < h; b--) halve(l, h, (t >> b & 1u) != 0u);
        k = t > 0u && l < h ? key_of(scanned32[to + l + (h - l) / 2u]) : key;
        turn[t] = k < key || ((FLAGS & RIGHT) != 0u && k == key);
        barrier();
        for (uint at = 1u; at < gl_WorkGroupSize.x && low < high;) {
            bool to_right = turn[at];
            halve(low, high, to_right);
            at = at * 2u + (to_right ? 1u : 0u);
        }
        barrier();
    }
    if (t > 0u) return;
    if ((FLAGS & LESS) != 0u) low -= number32[number_at];
    else if ((FLAGS & MORE) != 0u) low += number32[number_at];
    place32[place_at] = low;
}

// All have told and looked when each has counted.
void end_tile()
{
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0u) last = atomicAdd(parts64[parts_at + MOST].x, 1u) == outer * tiles - 1u;
    barrier();
    if (!last) return;
    memoryBarrierBuffer();
    if (gl_LocalInvocationID.x <= MOST) parts64[parts_at + gl_LocalInvocationID.x] = uvec2(0u);
    if ((FLAGS & SEARCH) != 0u) search();
}

void main()
{
    uint g = group_index(), each = tiles + groups + blocks, row = g / tiles, tile = g - row * tiles;
    if ((FLAGS & CLEAR) != 0u) {
        g = g * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
        if (g < outer * each) parts64[parts_at + g] = uvec2(0u);
        return;
    }
    if (row >= outer) return;
    uint base = from + row * apart, fours = (n + 3u) / 4u, row_at = parts_at + row * each, at = tile;
    uint patience = looks, before;
    for (;;) {                                         // once, but where what it needs is missing
        load_tile(at, base, fours);
        uint all = scan_tile(before), next = tile;
        if (gl_LocalInvocationID.x == 0u && (looks > 0u || at != tile)) tell(row_at + at, all);
        if (at == tile) {
            look_back(row_at, tile, patience);
            patience = 0u;
            barrier();
            next = lost;
        }
        if (next == NONE) break;
        at = next;
        memoryBarrierBuffer();
        barrier();
    }
    write_tile(tile, to + row * n, fours, combine(combine(combine(behind[2], behind[1]), behind[0]), before));
    if ((FLAGS & JOINED) != 0u) end_tile();
}
