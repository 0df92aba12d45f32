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
#extension GL_KHR_shader_subgroup_shuffle_relative : require
#define SCAN
#include "accumulate.glsl"
layout(constant_id = 4) const uint HOLD = 8;           // fours a thread has
layout(constant_id = 5) const uint FAN = 32;           // tiles of a group, groups of a block
layout(constant_id = 6) const uint FLAGS = 0;
//! enum SCAN_ONCE_: flags; SILENT: no tile tells anything, so that all scan what they need; CLEAR: zeros for `parts`, no more
const uint REVERSE = 1, EXCLUSIVE = 2, SILENT = 8, CLEAR = 16;

layout(push_constant) uniform scan_once_push {
    uint n, outer, tiles, groups, blocks;              // of a row, of which there are `outer`
    uint from, to, parts_at;                           // the first element of operand, result and parts
    uint looks;
    uint ndim, shape[4], in_stride[4];                 // of the outer dimensions
};
// What the row's tiles come to, then its groups, then its blocks: halves of a word, each with a bit that says it is there.
layout(std430, set = 0, binding = 2) coherent volatile buffer parts_pairs { uvec2 parts64[]; };

bool has(const uint flag) { return (FLAGS & flag) != 0u; }

// Floats as integers that order as they do, NaN at the end that wins: one instruction finds the larger.
bool ordered() { return (OP == MAX || OP == MIN) && is_float(FROM); }
uint nan_key() { return OP == MAX ? ~0u : 0u; }

ACC join_parts(const ACC a, const ACC b)
{
    if (ordered()) return OP == MAX ? max(a, b) : min(a, b);
    return combine(a, b);
}
ACC part_of(const ACC a)
{
    if (!ordered()) return a;
    return is_nan(uintBitsToFloat(a)) ? nan_key() : a ^ ((a & 0x80000000u) != 0u ? ~0u : 0x80000000u);
}
ACC nothing() { return part_of(identity()); }
uint result_of(const ACC a)
{
    if (!ordered()) return finish(a).x;
    return finish(a == nan_key() ? 0x7fc00000u : a ^ ((a & 0x80000000u) != 0u ? 0x80000000u : ~0u)).x;
}

const uint THERE = 0x10000u, NONE = ~0u;

void tell(const uint at, const ACC a) { parts64[at] = uvec2(THERE | (a & 0xffffu), THERE | a >> 16); }

uint lane() { return gl_SubgroupInvocationID; }
ACC last_of(const ACC a) { return subgroupShuffle(a, gl_SubgroupSize - 1u); }

// Of the subgroup's lanes, in a tree of one shape.
ACC all_lanes(ACC a)
{
    for (uint d = 1u; d < gl_SubgroupSize; d *= 2u) {
        ACC b = subgroupShuffleUp(a, d);
        if (lane() >= d) a = join_parts(b, a);
    }
    return last_of(a);
}

// ---- what lies before a tile, by one subgroup ----

// This lane's share of parts at .. at + count - 1; missing: the first that is not there, count where all are.
ACC share(const uint at, const uint count, const uint most, out uint missing)
{
    ACC a = nothing();
    uint first = count;
    for (uint i = lane(); i < count; i += gl_SubgroupSize) {
        uvec2 w = parts64[at + i];
        for (uint k = 0u; (w.x & w.y & THERE) == 0u && k < most; k++) w = parts64[at + i];
        if ((w.x & w.y & THERE) == 0u) first = min(first, i);
        a = join_parts(a, (w.x & 0xffffu) | w.y << 16);
    }
    missing = subgroupMin(first);
    return a;
}

// With what the last of FAN comes to, that of all.
ACC with_last(const ACC a, const ACC last)
{
    return all_lanes(lane() == (FAN - 1u) % gl_SubgroupSize ? join_parts(a, last) : a);
}

void tell_once(const uint at, const ACC a)
{
    if (lane() == 0u) tell(at, a);
    subgroupMemoryBarrierBuffer();
    subgroupBarrier();
}

// Of groups of a block; missing: a tile that is, or NONE. Groups whose tiles are all there are told of here.
ACC share_groups(const uint row_at, const uint block, const uint count, uint most, out uint missing)
{
    uint at = row_at + tiles + block * FAN, k, m = 0u;
    ACC a = nothing();
    for (;;) {
        a = share(at, count, most, k);
        missing = NONE;
        if (k >= count) break;
        uint first = (block * FAN + k) * FAN;
        ACC b = all_lanes(share(row_at + first, FAN, 0u, m));
        missing = first + m;
        if (m < FAN) break;
        tell_once(at + k, b);
        most = 0u;
    }
    return a;
}

ACC share_blocks(const uint row_at, const uint count, uint most, out uint missing)
{
    uint at = row_at + tiles + groups, k;
    ACC a = nothing();
    for (;;) {
        a = share(at, count, most, k);
        missing = NONE;
        if (k >= count) break;
        ACC b = all_lanes(share_groups(row_at, k, FAN, 0u, missing));
        if (missing != NONE) break;
        tell_once(at + k, b);
        most = 0u;
    }
    return a;
}

shared ACC behind[3];                                  // blocks, groups and tiles before this one
shared uint lost;                                      // a tile that is missing; NONE

void look_back(const uint row_at, const uint tile, const ACC own, const uint most)
{
    uint group = tile / FAN, block = group / FAN;
    for (uint level = gl_SubgroupID; level < 3u; level += gl_NumSubgroups) {
        uint missing;
        ACC a;
        if (level == 0u) {
            a = share(row_at + group * FAN, tile % FAN, most, missing);
            missing = missing < tile % FAN ? group * FAN + missing : NONE;
            if (missing == NONE && tile % FAN == FAN - 1u && !has(SILENT)) {
                uint none;
                ACC b = with_last(a, own);
                tell_once(row_at + tiles + group, b);
                if (group % FAN == FAN - 1u) {
                    b = with_last(share_groups(row_at, block, FAN - 1u, most, none), b);
                    if (none == NONE) tell_once(row_at + tiles + groups + block, b);
                }
            }
        } else if (level == 1u) a = share_groups(row_at, block, group % FAN, most, missing);
        else a = share_blocks(row_at, block, most, missing);
        a = all_lanes(a);
        if (lane() == 0u) {
            behind[level] = a;
            if (missing != NONE) atomicMin(lost, missing);
        }
    }
}

// ---- a tile ----

uint locate(uint row)
{
    uint at = from;
    [[unroll]] for (int d = 3; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = row / shape[d];
            at += (row - q * shape[d]) * in_stride[d];
            row = q;
        }
    return at;
}

const uint TILE = gl_WorkGroupSize.x * HOLD;           // in fours
ACC x[4u * HOLD], ahead[HOLD];                         // scanned within fours; what is before each of these in the subgroup
shared ACC tops[64];                                   // of subgroups

uint four_of(const uint tile) { return tile * TILE + gl_SubgroupID * gl_SubgroupSize * HOLD + lane(); }

// Scanned within fours, in the order of the scan; beyond the row are identities.
void load_tile(const uint tile, const uint base, const uint lead, const uint fours)
{
    bool whole = lead == 0u && (n & 3u) == 0u && (tile + 1u) * TILE <= fours;
    uint first = four_of(tile);
    uvec4 f[HOLD];
    if (whole)
        [[unroll]] for (uint v = 0u; v < HOLD; v++) {
            uint i = first + v * gl_SubgroupSize;
            f[v] = load4_src(base / 4u + (has(REVERSE) ? fours - 1u - i : i), FROM);
        }
    else
        [[unroll]] for (uint v = 0u; v < HOLD; v++) {
            uint i = first + v * gl_SubgroupSize, j = 4u * (has(REVERSE) ? fours - 1u - i : i) - lead;
            f[v] = uvec4(finish(identity()).x);
            [[unroll]] for (uint k = 0u; k < 4u; k++)  // j + k wraps where it is before the row
                if (i < fours && j + k < n) f[v][k] = load_src(base + j + k, FROM);
        }
    [[unroll]] for (uint v = 0u; v < HOLD; v++) {
        ACC sum = nothing();
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            ACC a = part_of(value(uvec2(has(REVERSE) ? f[v][3u - k] : f[v][k], 0u), 0u));
            x[4u * v + k] = sum = k == 0u ? a : join_parts(sum, a);
        }
        ahead[v] = sum;
    }
}

// From what fours come to to what is before them; what the tile comes to, and what the subgroups before this one do.
ACC scan_tile(out ACC before)
{
    ACC sum = nothing();
    for (uint d = 1u; d < gl_SubgroupSize; d *= 2u)
        [[unroll]] for (uint v = 0u; v < HOLD; v++) {
            ACC b = subgroupShuffleUp(ahead[v], d);
            if (lane() >= d) ahead[v] = join_parts(b, ahead[v]);
        }
    [[unroll]] for (uint v = 0u; v < HOLD; v++) {
        ACC all = last_of(ahead[v]), b = subgroupShuffleUp(ahead[v], 1u);
        ahead[v] = join_parts(sum, lane() > 0u ? b : nothing());
        sum = join_parts(sum, all);
    }
    if (lane() == 0u) tops[gl_SubgroupID] = sum;
    if (gl_LocalInvocationID.x == 0u) lost = NONE;
    barrier();
    sum = before = nothing();
    for (uint s = 0u; s < gl_NumSubgroups; s++) {
        if (s == gl_SubgroupID) before = sum;
        sum = join_parts(sum, tops[s]);
    }
    return sum;
}

void write_four(const uint at, const uint skip, const uvec4 y)          // elements at .. at + 3, which are `skip` .. of a row
{
    if (at % 4u == 0u && skip < n && n - skip >= 4u) store4_dst(at / 4u, TO, y);
    else
        [[unroll]] for (uint k = 0u; k < 4u; k++) if (skip + k < n) store_dst(at + k, TO, y[k]);
}

void write_tile(const uint tile, const uint row, const uint lead, const uint fours, const ACC before)
{
    uint first = four_of(tile);
    [[unroll]] for (uint v = 0u; v < HOLD; v++) {
        uint i = first + v * gl_SubgroupSize, g = has(REVERSE) ? fours - 1u - i : i, skip = 4u * g - lead;
        ACC a = join_parts(before, ahead[v]);
        uvec4 y;
        [[unroll]] for (uint k = 0u; k < 4u; k++) {    // no index that depends on a flag: arrays would leave the registers
            if (has(EXCLUSIVE)) y[k] = result_of(k > 0u ? join_parts(a, x[4u * v + k - 1u]) : a);
            else y[k] = result_of(join_parts(a, x[4u * v + k]));
        }
        if (i < fours) write_four(to + row * n + skip, skip, has(REVERSE) ? y.wzyx : y);
    }
}

void main()
{
    uint g = group_index(), each = tiles + groups + blocks, row = g / tiles, tile = g - row * tiles;
    if (has(CLEAR)) {
        g = g * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
        if (g < outer * each) parts64[parts_at + g] = uvec2(0u);
        return;
    }
    if (row >= outer) return;
    uint base = locate(row), lead = base & 3u, fours = (lead + n + 3u) / 4u, row_at = parts_at + row * each, at = tile;
    uint patience = has(SILENT) ? 0u : looks;
    ACC before;
    for (;;) {                                         // once, but where what it needs is missing
        load_tile(at, base, lead, fours);
        ACC all = scan_tile(before);
        uint next = tile;
        if (gl_LocalInvocationID.x == 0u && (at != tile || !has(SILENT))) tell(row_at + at, all);
        if (at == tile) {
            look_back(row_at, tile, all, patience);
            patience = 0u;
            barrier();
            next = lost;
        }
        if (next == NONE) break;
        at = next;
        memoryBarrierBuffer();
        barrier();
    }
    before = join_parts(join_parts(join_parts(behind[2], behind[1]), behind[0]), before);
    write_tile(tile, row, lead, fours, before);
}
