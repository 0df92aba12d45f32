#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// Attention of few queries: one workgroup for ROWS of the queries that share keys and for one part of the keys. LANES
// threads share a key, each with CHUNKS groups of eight of its features, and go through the keys with a softmax of their
// own; keys and values are read once, straight into registers. Where there are several parts, each writes its result
// unscaled, with its largest score and its sum, and the last one to finish adds them up.
layout(constant_id = 1) const uint DTYPE = 10;
layout(constant_id = 2) const uint ROWS = 4;           // 1 to 8
layout(constant_id = 3) const uint LANES = 8;          // a power of two, at most the subgroup's size
layout(constant_id = 4) const uint CHUNKS = 2;         // of keys: 8 * LANES * CHUNKS features at most
layout(constant_id = 5) const uint VALUE_CHUNKS = 2;
layout(constant_id = 6) const uint AHEAD = 2;          // keys a thread loads at once
layout(constant_id = 7) const uint PARTS = 0;          // 1: several parts
#include "attention.glsl"
const uint WIDTH = 8u * LANES * VALUE_CHUNKS, SUBGROUPS = 64u;
const uint JOIN = 512u;                                 // where sums begin; before them, results or the parts' figures
shared vec4 results[JOIN + 256u];                       // of one row: [subgroup][WIDTH]
shared vec2 highs[SUBGROUPS];
shared bool last_one;
layout(std430, set = 0, binding = 6) coherent buffer Parts { float part[]; };          // results, then two figures each
layout(std430, set = 0, binding = 6) coherent buffer PartFours { vec4 part_four[]; };
layout(std430, set = 0, binding = 7) coherent buffer Counters { uint finished[]; };

vec4 qs[ROWS * CHUNKS * 2u], os[ROWS * VALUE_CHUNKS * 2u];
float high[ROWS], total[ROWS];
row_place place[ROWS];

void load_queries(uint batch, uint head, uint first_row, uint share)
{
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        place[r] = place_of(batch, head, first_row + r);
        high[r] = LOWEST;
        total[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            uint f = 8u * (c * LANES + share);
            vec4 a = vec4(0.0), b = vec4(0.0);
            if (f < key_width() && first_row + r < query_count * block_heads()) eight_q(place[r].q + f, a, b);
            qs[(r * CHUNKS + c) * 2u] = a * scale;
            qs[(r * CHUNKS + c) * 2u + 1u] = b * scale;
        }
        [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++) os[r * VALUE_CHUNKS * 2u + c] = vec4(0.0);
    }
}

// The next keys: `first` and those `step` apart.
void attend(uint first, uint step, uint end, uint k_row, uint v_row, uint share)
{
    vec4 ks[AHEAD * CHUNKS * 2u], vs[AHEAD * VALUE_CHUNKS * 2u];
    float score[AHEAD * ROWS];
    [[unroll]] for (uint u = 0u; u < AHEAD; u++) {
        uint key = first + u * step;
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            uint f = 8u * (c * LANES + share), at = (u * CHUNKS + c) * 2u;
            ks[at] = ks[at + 1u] = vec4(0.0);
            if (key < end && f < key_width()) eight_k(k_row + key * k_stride[2] + f, ks[at], ks[at + 1u]);
        }
        [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
            uint f = 8u * (c * LANES + share), at = (u * VALUE_CHUNKS + c) * 2u;
            vs[at] = vs[at + 1u] = vec4(0.0);
            if (key < end && f < value_width()) eight_v(v_row + key * v_stride[2] + f, vs[at], vs[at + 1u]);
        }
    }
    [[unroll]] for (uint u = 0u; u < AHEAD; u++)
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            float s = 0.0;
            [[unroll]] for (uint c = 0u; c < 2u * CHUNKS; c++) s += dot(qs[r * CHUNKS * 2u + c], ks[u * CHUNKS * 2u + c]);
            [[unroll]] for (uint d = 1u; d < LANES; d *= 2u) s += subgroupShuffleXor(s, d);
            uint key = first + u * step;
            score[u * ROWS + r] = key < end ? masked(s, place[r], key) : LOWEST;
        }
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        float best = high[r];
        [[unroll]] for (uint u = 0u; u < AHEAD; u++)
            if (score[u * ROWS + r] > best) best = score[u * ROWS + r];
        float shrink = exp2(high[r] - best);
        high[r] = best;
        total[r] *= shrink;
        [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++) os[r * VALUE_CHUNKS * 2u + c] *= shrink;
        [[unroll]] for (uint u = 0u; u < AHEAD; u++) {
            float s = score[u * ROWS + r], p = s <= LOWEST ? 0.0 : exp2(s - best);
            total[r] += p;
            [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++)
                os[r * VALUE_CHUNKS * 2u + c] += p * vs[u * VALUE_CHUNKS * 2u + c];
        }
    }
}

// One softmax for all keys of a subgroup.
void join_lanes()
{
    [[unroll]] for (uint r = 0u; r < ROWS; r++)
        for (uint d = LANES; d < gl_SubgroupSize; d *= 2u) {
            float other = subgroupShuffleXor(high[r], d), best = max(high[r], other);
            float mine = exp2(high[r] - best), theirs = exp2(other - best);
            total[r] = total[r] * mine + subgroupShuffleXor(total[r], d) * theirs;
            [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++) {
                uint at = r * VALUE_CHUNKS * 2u + c;
                os[at] = os[at] * mine + subgroupShuffleXor(os[at], d) * theirs;
            }
            high[r] = best;
        }
}

uint parts() { return batches * query_heads * query_count * splits; }
vec2 figures(uint i) { return i % 2u == 0u ? results[i / 2u].xy : results[i / 2u].zw; }    // a part's largest score, and sum

// Adds up the parts of `count` rows: a thread has four features of some parts.
void join_parts(uint batch, uint head, uint first_row, uint count, uint thread)
{
    uint first = ((batch * query_heads + head) * query_count + first_row) * splits, fours = value_width() / 4u;
    uint columns = count * fours, shares = 1u;
    while (2u * shares * columns <= gl_WorkGroupSize.x) shares *= 2u;
    uint width = gl_WorkGroupSize.x / shares;
    for (uint i = thread; i < count * splits; i += gl_WorkGroupSize.x) {
        uint at = parts() * value_width() + 2u * (first + i);
        results[i / 2u][i % 2u * 2u] = part[at];
        results[i / 2u][i % 2u * 2u + 1u] = part[at + 1u];
    }
    barrier();
    for (uint c = thread % width; c < (columns + width - 1u) / width * width; c += width) {
        uint r = min(c / fours, count - 1u), at = r * splits;
        row_place p = place_of(batch, head, first_row + r);
        float best = has(SINKS) ? sink_of(p.head) : LOWEST, sum = 0.0;
        for (uint s = 0u; s < splits; s++) best = max(best, figures(at + s).x);
        if (has(SINKS)) sum = exp2(sink_of(p.head) - best);
        vec4 x = vec4(0.0);
        for (uint s = 0u; s < splits; s++) sum += figures(at + s).y * exp2(figures(at + s).x - best);
        if (c < columns)
            for (uint s = thread / width; s < splits; s += shares)
                x += exp2(figures(at + s).x - best) * part_four[(first + at + s) * fours + c % fours];
        if (shares > 1u) {                               // then one round does
            results[JOIN + thread] = x;
            barrier();
            for (uint s = thread + width; s < gl_WorkGroupSize.x && thread < width; s += width) x += results[JOIN + s];
        }
        x *= sum == 0.0 ? 0.0 : 1.0 / sum;
        if (c < columns && thread < width)
            for (uint i = 0u; i < 4u; i++) store_result(p.o + 4u * (c % fours) + i, x[i]);
    }
}

void main()
{
    uint lane = gl_SubgroupInvocationID, share = lane % LANES, keys_each = gl_SubgroupSize / LANES;
    uint group = group_index(), blocks = query_heads / block_heads(), rows = query_count * block_heads();
    if (group >= splits * row_blocks * blocks * batches) return;
    uint split = group % splits, first_row = group / splits % row_blocks * ROWS;
    uint block = group / splits / row_blocks, head = block % blocks * block_heads(), batch = block / blocks, kv = head / group_size();
    uint k_row = k_at + batch * k_stride[0] + kv * k_stride[1], v_row = v_at + batch * v_stride[0] + kv * v_stride[1];
    uint end = min((split + 1u) * split_keys, key_end(first_row, min(first_row + ROWS, rows) - 1u));
    uint step = gl_NumSubgroups * keys_each, thread = gl_SubgroupID * gl_SubgroupSize + lane;

    load_queries(batch, head, first_row, share);
    for (uint first = split * split_keys; first < end; first += AHEAD * step)
        attend(first + gl_SubgroupID * keys_each + lane / LANES, step, end, k_row, v_row, share);
    join_lanes();
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        if (lane < LANES)
            [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
                uint at = gl_SubgroupID * (WIDTH / 4u) + 2u * (c * LANES + share);
                results[at] = os[(r * VALUE_CHUNKS + c) * 2u];
                results[at + 1u] = os[(r * VALUE_CHUNKS + c) * 2u + 1u];
            }
        if (lane == 0u) highs[gl_SubgroupID] = vec2(high[r], total[r]);
        barrier();
        float best = LOWEST, sum = 0.0;
        bool sink = PARTS == 0u && has(SINKS) && first_row + r < rows;
        if (sink) best = sink_of(place[r].head);
        for (uint s = 0u; s < gl_NumSubgroups; s++) best = max(best, highs[s].x);
        if (sink) sum = exp2(sink_of(place[r].head) - best);
        for (uint s = 0u; s < gl_NumSubgroups; s++) sum += highs[s].y * exp2(highs[s].x - best);
        float factor = PARTS == 1u ? 1.0 : sum == 0.0 ? 0.0 : 1.0 / sum;
        uint index = ((batch * query_heads + head) * query_count + first_row + r) * splits + split;
        for (uint f = thread; f < value_width() && first_row + r < rows; f += gl_WorkGroupSize.x) {
            float x = 0.0;
            for (uint s = 0u; s < gl_NumSubgroups; s++) x += results[s * (WIDTH / 4u) + f / 4u][f % 4u] * exp2(highs[s].x - best);
            if (PARTS == 1u) part[index * value_width() + f] = x;
            else store_result(place[r].o + f, x * factor);
        }
        if (PARTS == 1u && thread == 0u && first_row + r < rows) {
            uint at = parts() * value_width() + 2u * index;
            part[at] = best;
            part[at + 1u] = sum;
        }
        barrier();
    }
    if (PARTS == 0u) return;
    memoryBarrierBuffer();
    barrier();
    if (thread == 0u) {
        last_one = atomicAdd(finished[group / splits], 1u) == splits - 1u;
        if (last_one) finished[group / splits] = 0u;     // as it was found
    }
    barrier();
    if (!last_one) return;
    memoryBarrierBuffer();
    join_parts(batch, head, first_row, min(ROWS, rows - first_row), thread);
}
