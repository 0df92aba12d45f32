#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_arithmetic : require
// Attention of few queries: one workgroup for ROWS of the queries that share keys and for one part of the keys. LANES
// threads share a key, each with CHUNKS groups of eight of its features, and go through the keys with a softmax of their
// own; keys and values are read once, straight into registers, the next ones while these are computed with. Where there are
// several parts, each writes its result unscaled, with its largest score and its sum, and the last one to finish adds them up.
// FRESH: the newest key and value come with the query, see attention_fresh.glsl.
layout(constant_id = 1) const uint DTYPE = 10;
layout(constant_id = 2) const uint ROWS = 4;           // 1 to 8
layout(constant_id = 3) const uint LANES = 8;          // a power of two, at most the subgroup's size
layout(constant_id = 4) const uint CHUNKS = 2;         // of keys: 8 * LANES * CHUNKS features at most
layout(constant_id = 5) const uint VALUE_CHUNKS = 2;
layout(constant_id = 6) const uint AHEAD = 2;          // keys a thread loads at once
layout(constant_id = 7) const uint PARTS = 0;          // 1: several parts
#ifdef FRESH
layout(constant_id = 8) const uint NORM = 0;           // 1: query and key are RMS-normalised first, 2: with weights
layout(constant_id = 9) const uint PAIRS = 2;          // half a row, by a subgroup's lanes
int position;                                           // offset, or what a recorded dispatch finds in memory
#else
layout(constant_id = 8) const bool ONE_QUERY = false;  // see attention.glsl
#define ONE_QUERY ONE_QUERY
#endif
uint keys_counted;                                      // key_count, or what a recorded dispatch finds in memory
#define KEY_COUNT keys_counted
#include "common.glsl"
const uint WIDTH = 8u * LANES * VALUE_CHUNKS, WORDS = DTYPE == F32 ? 2u : 1u;          // of 16 bytes, for eight features
const uint SUBGROUPS = 8u, ROOM = 1024u, ROW_ROOM = SUBGROUPS * WIDTH / 4u;             // at most 8 are dispatched
const uint AT_ONCE = ROWS * ROW_ROOM <= ROOM ? ROWS : ROOM / ROW_ROOM;                  // rows that are joined at once
const uint JOIN = 512u;                                 // where sums begin; before them, the parts' figures
shared vec4 results[ROOM];                              // [row][subgroup][WIDTH]
#include "attention.glsl"
shared vec2 highs[8u * SUBGROUPS];
shared bool last_one;
layout(std430, set = 0, binding = 6) coherent buffer part_floats { float part[]; };          // results, then two figures each
layout(std430, set = 0, binding = 6) coherent buffer part_fours { vec4 part_four[]; };
layout(std430, set = 0, binding = 7) coherent buffer finished_words { uint finished[]; };

vec4 qs[ROWS * CHUNKS * 2u], os[ROWS * VALUE_CHUNKS * 2u];
uvec4 ks[AHEAD * CHUNKS * WORDS], vs[AHEAD * VALUE_CHUNKS * WORDS];     // as they are in memory: half as many registers
float high[ROWS], total[ROWS], score[AHEAD * ROWS];
row_place place[ROWS];

void load_queries(const uint batch, const uint head, const uint first_row, const uint share)
{
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        place[r] = place_of(batch, head, first_row + r);
        high[r] = LOWEST;
        total[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            uint f = 8u * (c * LANES + share);
            vec4 a = vec4(0.0), b = vec4(0.0);
            if (f < key_width && first_row + r < query_count * block_heads()) {
#ifdef FRESH
                a = results[(r * WIDTH + f) / 4u];
                b = results[(r * WIDTH + f) / 4u + 1u];
#else
                eight_q(place[r].q + f, a, b);
#endif
            }
            qs[(r * CHUNKS + c) * 2u] = a * scale;
            qs[(r * CHUNKS + c) * 2u + 1u] = b * scale;
        }
        [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++) os[r * VALUE_CHUNKS * 2u + c] = vec4(0.0);
    }
}

// The keys (values) of `first` and of those `step` apart. Beyond the end, which is past the first key, the last one stands for
// them: their scores say that they do not count.
void load_keys(const uint first, const uint step, const uint end, const uint row, const uint share)
{
    [[unroll]] for (uint u = 0u; u < AHEAD; u++)
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            uint f = 8u * (c * LANES + share), at = row + min(first + u * step, end - 1u) * K_STEP;
            bool there = f < key_width;
            at = (there ? at + f : at) / (8u / WORDS);
            [[unroll]] for (uint w = 0u; w < WORDS; w++) {
                uvec4 x = k128[at + w];
                ks[(u * CHUNKS + c) * WORDS + w] = there ? x : uvec4(0u);
            }
        }
}
void load_values(const uint first, const uint step, const uint end, const uint row, const uint share)
{
    [[unroll]] for (uint u = 0u; u < AHEAD; u++)
        [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
            uint f = 8u * (c * LANES + share), at = row + min(first + u * step, end - 1u) * V_STEP;
            at = (f < value_width ? at + f : at) / (8u / WORDS);
            [[unroll]] for (uint w = 0u; w < WORDS; w++) vs[(u * VALUE_CHUNKS + c) * WORDS + w] = v128[at + w];
        }
}
void unpacked(const uvec4 first, const uvec4 second, out vec4 a, out vec4 b)
{
    if (DTYPE == F32) { a = uintBitsToFloat(first); b = uintBitsToFloat(second); }
    else {
        a = vec4(two_numbers(first.x), two_numbers(first.y));
        b = vec4(two_numbers(first.z), two_numbers(first.w));
    }
}

void score_keys(const uint first, const uint step, const uint end)
{
    [[unroll]] for (uint u = 0u; u < AHEAD; u++) {
        uint key = first + u * step;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) score[u * ROWS + r] = 0.0;
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            vec4 a, b;
            uint at = (u * CHUNKS + c) * WORDS;
            unpacked(ks[at], ks[at + WORDS - 1u], a, b);
            [[unroll]] for (uint r = 0u; r < ROWS; r++)
                score[u * ROWS + r] += dot(qs[(r * CHUNKS + c) * 2u], a) + dot(qs[(r * CHUNKS + c) * 2u + 1u], b);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            float s = score[u * ROWS + r];
            [[unroll]] for (uint d = 1u; d < LANES; d *= 2u) s += subgroupShuffleXor(s, d);
            score[u * ROWS + r] = key < end ? masked(s, place[r], key) : LOWEST;
        }
    }
}

void add_values()
{
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        float best = high[r];
        [[unroll]] for (uint u = 0u; u < AHEAD; u++)
            if (score[u * ROWS + r] > best) best = score[u * ROWS + r];
        float shrink = exp2(high[r] - best);
        high[r] = best;
        total[r] *= shrink;
        [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++) os[r * VALUE_CHUNKS * 2u + c] *= shrink;
        [[unroll]] for (uint u = 0u; u < AHEAD; u++) {
            float s = score[u * ROWS + r];
            score[u * ROWS + r] = s <= LOWEST ? 0.0 : exp2(s - best);
            total[r] += score[u * ROWS + r];
        }
    }
    [[unroll]] for (uint u = 0u; u < AHEAD; u++)
        [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
            vec4 a, b;
            uint at = (u * VALUE_CHUNKS + c) * WORDS;
            unpacked(vs[at], vs[at + WORDS - 1u], a, b);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                os[(r * VALUE_CHUNKS + c) * 2u] += score[u * ROWS + r] * a;
                os[(r * VALUE_CHUNKS + c) * 2u + 1u] += score[u * ROWS + r] * b;
            }
        }
}

#ifdef FRESH
// The newest key comes first, with the lanes that have `first`; keep: its value goes to the cache.
void meet_newest(const uint head, const uint v_row, const uint thread, const uint lane, const uint share, const bool keep)
{
    uint from = new_v_at + head / group_size * new_v_stride, to = v_row + keys_counted * V_STEP;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        float s = 0.0;
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            uint f = 8u * (c * LANES + share), at = (ROWS * WIDTH + f) / 4u, q = (r * CHUNKS + c) * 2u;
            if (f < value_width) s += dot(qs[q], results[at]) + dot(qs[q + 1u], results[at + 1u]);
        }
        [[unroll]] for (uint d = 1u; d < LANES; d *= 2u) s += subgroupShuffleXor(s, d);
        if (thread >= LANES) continue;
        high[r] = s < LOWEST ? LOWEST : s;
        total[r] = s <= LOWEST ? 0.0 : 1.0;
        [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
            uint o = (r * VALUE_CHUNKS + c) * 2u;
            if (s > LOWEST) unpacked(newest_v[c * WORDS], newest_v[c * WORDS + WORDS - 1u], os[o], os[o + 1u]);
        }
    }
    for (uint i = thread; i < value_width && keep; i += gl_WorkGroupSize.x) {
        if (DTYPE == F32) v32[to + i] = new_v32[from + i];
        else v16[to + i] = new_v16[from + i];
    }
}
#endif

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

// A part's largest score and its sum; after weigh_parts, the weight of its result in place of the score.
vec2 figures(const uint i) { return i % 2u == 0u ? results[i / 2u].xy : results[i / 2u].zw; }

// By row, a subgroup each: what the parts' results are multiplied by.
void weigh_parts(const uint batch, const uint head, const uint first_row, const uint count, const uint lane)
{
    for (uint r = gl_SubgroupID; r < count; r += gl_NumSubgroups) {
        float sink = has(SINKS) ? sink_of(place_of(batch, head, first_row + r).head) : LOWEST, best = sink, sum = 0.0;
        for (uint s = lane; s < splits; s += gl_SubgroupSize) best = max(best, figures(r * splits + s).x);
        best = subgroupMax(best);
        for (uint s = lane; s < splits; s += gl_SubgroupSize) sum += figures(r * splits + s).y * exp2(figures(r * splits + s).x - best);
        sum = subgroupAdd(sum) + (has(SINKS) ? exp2(sink - best) : 0.0);
        for (uint s = lane; s < splits; s += gl_SubgroupSize) {
            uint i = r * splits + s;
            results[i / 2u][i % 2u * 2u] = exp2(figures(i).x - best) * (sum == 0.0 ? 0.0 : 1.0 / sum);
        }
    }
}

// Adds up the parts of `count` rows: a thread has four features of some parts, BATCH of which it loads at once.
void join_parts(const uint batch, const uint head, const uint first_row, const uint count, const uint thread, const uint lane)
{
    const uint BATCH = 8u;
    uint first = ((batch * query_heads + head) * query_count + first_row) * splits, fours = value_width / 4u;
    uint columns = count * fours, shares = 1u;
    while (2u * shares * ROWS * fours <= gl_WorkGroupSize.x) shares *= 2u;              // not by count: the order of additions
    uint width = gl_WorkGroupSize.x / shares;
    for (uint i = thread; i < count * splits; i += gl_WorkGroupSize.x) {
        uint at = parts() * value_width + 2u * (first + i);
        vec2 figure = vec2(part[at], part[at + 1u]);
        results[i / 2u][i % 2u * 2u] = figure.x;
        results[i / 2u][i % 2u * 2u + 1u] = figure.y;
    }
    barrier();
    weigh_parts(batch, head, first_row, count, lane);
    barrier();
    for (uint c = thread % width; c < (columns + width - 1u) / width * width; c += width) {
        uint r = min(c / fours, count - 1u), at = r * splits, from = (first + at) * fours + c % fours;
        vec4 x = vec4(0.0);
        if (c < columns)
            for (uint s = thread / width; s < splits; s += BATCH * shares) {
                vec4 p[BATCH];
                [[unroll]] for (uint b = 0u; b < BATCH; b++) {
                    p[b] = vec4(0.0);
                    if (s + b * shares < splits) p[b] = part_four[from + (s + b * shares) * fours];
                }
                [[unroll]] for (uint b = 0u; b < BATCH; b++)
                    if (s + b * shares < splits) x += figures(at + s + b * shares).x * p[b];
            }
        if (shares > 1u) {                               // then one round does
            results[JOIN + thread] = x;
            barrier();
            for (uint s = thread + width; s < gl_WorkGroupSize.x && thread < width; s += width) x += results[JOIN + s];
        }
        if (c < columns && thread < width) {
            uint o = place_of(batch, head, first_row + r).o + 4u * (c % fours);
            for (uint i = 0u; i < 4u; i++) store_result(o + i, x[i]);
        }
    }
}

// The subgroups' results of rows `from` .. from + count - 1 as one: a thread has four features.
void join_subgroups(const uint batch, const uint head, const uint first_row, const uint from, const uint count, const uint split, const uint thread)
{
    uint fours = value_width / 4u;
    for (uint c = thread; c < count * fours; c += gl_WorkGroupSize.x) {
        uint i = c / fours, column = c - i * fours, row = first_row + from + i;
        row_place p = place_of(batch, head, row);
        bool sink = PARTS == 0u && has(SINKS);
        float best = sink ? sink_of(p.head) : LOWEST, sum = 0.0;
        vec4 x = vec4(0.0);
        for (uint s = 0u; s < gl_NumSubgroups; s++) best = max(best, highs[i * SUBGROUPS + s].x);
        if (sink) sum = exp2(sink_of(p.head) - best);
        for (uint s = 0u; s < gl_NumSubgroups; s++) {
            float weight = exp2(highs[i * SUBGROUPS + s].x - best);
            sum += highs[i * SUBGROUPS + s].y * weight;
            x += results[i * ROW_ROOM + s * (WIDTH / 4u) + column] * weight;
        }
        if (PARTS == 1u) {
            uint index = ((batch * query_heads + head) * query_count + row) * splits + split, at = parts() * value_width + 2u * index;
            part_four[index * fours + column] = x;
            if (column == 0u) {
                part[at] = best;
                part[at + 1u] = sum;
            }
        } else {
            x *= sum == 0.0 ? 0.0 : 1.0 / sum;
            for (uint k = 0u; k < 4u; k++) store_result(p.o + 4u * column + k, x[k]);
        }
    }
}

void main()
{
    uint lane = gl_SubgroupInvocationID, share = lane % LANES, keys_each = gl_SubgroupSize / LANES;
    uint group = group_index(), blocks = query_heads / block_heads(), rows = query_count * block_heads();
    uint row_blocks = (rows + ROWS - 1u) / ROWS;
    if (group >= splits * row_blocks * blocks * batches) return;
    uint split = group % splits, first_row = group / splits % row_blocks * ROWS;
    uint block = group / splits / row_blocks, head = block % blocks * block_heads(), batch = block / blocks, kv = head / group_size;
    uint k_row = k_row_of(batch, kv), v_row = v_row_of(batch, kv);
#ifdef FRESH
    read_row(head + first_row, min(gl_SubgroupID, ROWS), 0u, lane);
    read_newest_v(new_v_at + kv * new_v_stride, share);
#endif
    keys_counted = key_count;
#ifdef FRESH
    position = offset + (has(LATE) ? int(mask32[mask_at + 3u]) : 0);
#endif
    if (has(LATE)) {
        k_row += mask32[mask_at];
        v_row += mask32[mask_at + 1u];
        keys_counted += mask32[mask_at + 2u];
    }
    uint end = min((split + 1u) * split_keys, key_end(first_row, min(first_row + ROWS, rows) - 1u));
    uint step = gl_NumSubgroups * keys_each, thread = gl_SubgroupID * gl_SubgroupSize + lane;
    uint mine = split * split_keys + gl_SubgroupID * keys_each + lane / LANES;

    uint first = split * split_keys;
    if (first < end) {
        load_keys(mine, step, end, k_row, share);
        load_values(mine, step, end, v_row, share);
    }
#ifdef FRESH
    bool newest = split == splits - 1u, keep = newest && first_row == 0u;
    prepare(head + first_row, min(ROWS, rows - first_row), k_row, newest, keep, lane);
    barrier();
#endif
    load_queries(batch, head, first_row, share);
#ifdef FRESH
    if (newest) meet_newest(head, v_row, thread, lane, share, keep);
    barrier();                                           // what was prepared makes room for results
#endif
    for (; first < end; first += AHEAD * step) {
        score_keys(mine, step, end);
        mine += AHEAD * step;
        load_keys(mine, step, end, k_row, share);
        add_values();
        load_values(mine, step, end, v_row, share);
    }
    join_lanes();
    [[unroll]] for (uint from = 0u; from < ROWS; from += AT_ONCE) {
        [[unroll]] for (uint i = 0u; i < AT_ONCE; i++) {
            uint r = from + i;
            if (r >= ROWS) continue;
            if (lane < LANES)
                [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
                    uint at = i * ROW_ROOM + gl_SubgroupID * (WIDTH / 4u) + 2u * (c * LANES + share);
                    results[at] = os[(r * VALUE_CHUNKS + c) * 2u];
                    results[at + 1u] = os[(r * VALUE_CHUNKS + c) * 2u + 1u];
                }
            if (lane == 0u) highs[i * SUBGROUPS + gl_SubgroupID] = vec2(high[r], total[r]);
        }
        barrier();
        if (first_row + from < rows) join_subgroups(batch, head, first_row, from, min(min(AT_ONCE, ROWS - from), rows - first_row - from), split, thread);
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
    join_parts(batch, head, first_row, min(ROWS, rows - first_row), thread, lane);
}
