#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
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
layout(constant_id = 8) const uint SUBGROUPS = 8;      // at most so many are dispatched
layout(constant_id = 9) const bool SPREAD = false;     // AHEAD * ROWS is LANES: each has one score
layout(constant_id = 10) const uint BUFFERS = 1;       // times AHEAD keys that are on their way
layout(constant_id = 11) const bool FULL = false;       // queries and values are WIDTH wide
layout(constant_id = 12) const bool IN_ORDER = false;   // parts are added up one by one, however many rows and subgroups there are
#ifdef FRESH
layout(constant_id = 13) const uint NORM = 0;           // 1: query and key are RMS-normalised first, 2: with weights
layout(constant_id = 14) const uint TWOS = 1;          // a quarter of a row, by a subgroup's lanes
#else
layout(constant_id = 13) const bool ONE_QUERY = false;  // see attention.glsl
#define ONE_QUERY ONE_QUERY
#endif
uint keys_counted;                                      // key_count, or what a recorded dispatch finds in memory
#define KEY_COUNT keys_counted
#include "common.glsl"
const uint WIDTH = 8u * LANES * VALUE_CHUNKS, WORDS = DTYPE == F32 ? 2u : 1u;          // of 16 bytes, for eight features
const uint ROOM = 1024u, ROW_ROOM = SUBGROUPS * WIDTH / 4u;
const uint AT_ONCE = ROWS * ROW_ROOM <= ROOM ? ROWS : ROOM / ROW_ROOM;                  // rows that are joined at once
shared vec4 results[ROOM];                              // [row][subgroup][WIDTH]
#include "attention.glsl"
#ifndef FRESH
uint k_width() { return FULL ? WIDTH : key_width; }
uint v_width() { return FULL ? WIDTH : value_width; }
#endif
shared vec2 highs[8u * SUBGROUPS];
shared bool last_one;
layout(std430, set = 0, binding = 6) coherent buffer part_floats { float part[]; };          // results, then two figures each
layout(std430, set = 0, binding = 6) coherent buffer part_fours { vec4 part_four[]; };
layout(std430, set = 0, binding = 7) coherent buffer finished_words { uint finished[]; };

vec4 qs[ROWS * CHUNKS * 2u], os[ROWS * VALUE_CHUNKS * 2u];
uvec4 ks[BUFFERS * AHEAD * CHUNKS * WORDS], vs[BUFFERS * AHEAD * VALUE_CHUNKS * WORDS];     // as they are in memory: half as many registers
float high[ROWS], total[AHEAD * ROWS], score[AHEAD * ROWS];                                 // totals: of each of the keys at once
row_place place[ROWS];

// SPREAD: of the scores of AHEAD keys and ROWS rows a lane has one, and what belongs to its row.
const uint SCORES = SPREAD ? AHEAD * ROWS : 1u;
float own_high, own_total;
row_place own;

void load_queries(const uint batch, const uint head, const uint first_row, const uint share)
{
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        place[r] = place_of(batch, head, first_row + r);
        high[r] = LOWEST;
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            uint f = 8u * (c * LANES + share);
            bool there = f < k_width() && first_row + r < query_count * block_heads();
            vec4 a, b;
#ifdef FRESH
            a = results[(r * WIDTH + f) / 4u];
            b = results[(r * WIDTH + f) / 4u + 1u];
#else
            eight_q(there ? place[r].q + f : place[0].q, a, b);    // all at once: none waits behind a branch
            a *= scale;
            b *= scale;
#endif
            qs[(r * CHUNKS + c) * 2u] = there ? a : vec4(0.0);
            qs[(r * CHUNKS + c) * 2u + 1u] = there ? b : vec4(0.0);
        }
        [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++) os[r * VALUE_CHUNKS * 2u + c] = vec4(0.0);
    }
    [[unroll]] for (uint i = 0u; i < AHEAD * ROWS; i++) total[i] = 0.0;
    if (SPREAD) own = place_of(batch, head, first_row + share % ROWS);
    own_high = LOWEST;
    own_total = 0.0;
}

// The keys (values) of `first` and of those `step` apart. Beyond the end, which is past the first key, the last one stands for
// them: their scores say that they do not count.
void load_keys(const uint buf, const uint first, const uint step, const uint end, const uint row, const uint share)
{
    [[unroll]] for (uint u = 0u; u < AHEAD; u++)
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            uint f = 8u * (c * LANES + share), at = row + min(first + u * step, end - 1u) * K_STEP;
            bool there = f < k_width();
            at = (there ? at + f : at) / (8u / WORDS);
            [[unroll]] for (uint w = 0u; w < WORDS; w++) {
                uvec4 x = k128[at + w];
                ks[((buf * AHEAD + u) * CHUNKS + c) * WORDS + w] = there ? x : uvec4(0u);
            }
        }
}
void load_values(const uint buf, const uint first, const uint step, const uint end, const uint row, const uint share)
{
    [[unroll]] for (uint u = 0u; u < AHEAD; u++)
        [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
            uint f = 8u * (c * LANES + share), at = row + min(first + u * step, end - 1u) * V_STEP;
            at = (f < v_width() ? at + f : at) / (8u / WORDS);
            [[unroll]] for (uint w = 0u; w < WORDS; w++) vs[((buf * AHEAD + u) * VALUE_CHUNKS + c) * WORDS + w] = v128[at + w];
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

#ifdef FRESH
// The newest key and value are not in memory yet: chunk c of them in the place of what was read there, also where they stand for
// keys beyond the end, for what memory holds instead may be NaN, which no weight of 0 takes away.
void meet_newest(const uint buf, const uint u, const uint c, const uint share)
{
    uint f = 8u * (c * LANES + share), from = f * WORDS / 2u;
    [[unroll]] for (uint w = 0u; w < WORDS && f < v_width(); w++) {
        uint at = from + 4u * w;
        ks[((buf * AHEAD + u) * CHUNKS + c) * WORDS + w] = uvec4(newest_k[at], newest_k[at + 1u], newest_k[at + 2u], newest_k[at + 3u]);
        vs[((buf * AHEAD + u) * VALUE_CHUNKS + c) * WORDS + w] = newest_v[at / 4u];
    }
}
#endif

// NVIDIA's driver unrolls loops that count by ones to a constant. Others it may leave as they are, [[unroll]] or not, and then it
// keeps what they index in local memory, or finds it by comparing: four rows of a step at 8192 keys took an H200 56 to 72 us so, and
// 18 without. So steps that double or halve and index registers are written out here; see --inline in tests/tools/strip.c, too.
float sum_of_lanes(float s)                              // that share a key
{
    if (LANES > 1u) s += subgroupShuffleXor(s, 1u);
    if (LANES > 2u) s += subgroupShuffleXor(s, 2u);
    if (LANES > 4u) s += subgroupShuffleXor(s, 4u);
    if (LANES > 8u) s += subgroupShuffleXor(s, 8u);
    if (LANES > 16u) s += subgroupShuffleXor(s, 16u);
    if (LANES > 32u) s += subgroupShuffleXor(s, 32u);
    return s;
}
// Of two scores that two lanes have parts of, each lane keeps one.
void halve_scores(const uint d, const uint share)
{
    bool up = (share & d) != 0u;
    [[unroll]] for (uint i = 0u; i < SCORES / (2u * d); i++) {
        float send = up ? score[2u * i] : score[2u * i + 1u], keep = up ? score[2u * i + 1u] : score[2u * i];
        score[i] = keep + subgroupShuffleXor(send, d);
    }
}

void score_keys(const uint buf, const uint first, const uint step, const uint end, const uint share)
{
    [[unroll]] for (uint u = 0u; u < AHEAD; u++) {
        uint key = first + u * step;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) score[u * ROWS + r] = 0.0;
        [[unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            vec4 a, b;
            uint at = ((buf * AHEAD + u) * CHUNKS + c) * WORDS;
#ifdef FRESH
            if (IN_ORDER && key >= newest_key) meet_newest(buf, u, c, share);
#endif
            unpacked(ks[at], ks[at + WORDS - 1u], a, b);
            [[unroll]] for (uint r = 0u; r < ROWS; r++)
                score[u * ROWS + r] += dot(qs[(r * CHUNKS + c) * 2u], a) + dot(qs[(r * CHUNKS + c) * 2u + 1u], b);
        }
        [[unroll]] for (uint r = 0u; r < ROWS && !SPREAD; r++) {
            float s = sum_of_lanes(score[u * ROWS + r]);
            score[u * ROWS + r] = key < end ? masked(s, place[r], key) : LOWEST;
        }
    }
    if (!SPREAD) return;
    if (SCORES > 1u) halve_scores(1u, share);            // lane `share` ends with score `share`
    if (SCORES > 2u) halve_scores(2u, share);
    if (SCORES > 4u) halve_scores(4u, share);
    if (SCORES > 8u) halve_scores(8u, share);
    if (SCORES > 16u) halve_scores(16u, share);
    if (SCORES > 32u) halve_scores(32u, share);
    uint key = first + share % SCORES / ROWS * step;
    score[0] = key < end ? masked(score[0], own, key) : LOWEST;
}

// The lanes' scores as weights, of all that share a key by all; rows' earlier results get what the largest score makes of them.
void spread_weights(const uint share)
{
    float best = score[0], s = score[0], shrink;
    [[unroll]] for (uint d = ROWS; d < SCORES; d *= 2u) best = max(best, subgroupShuffleXor(best, d));
    best = max(best, own_high);
    shrink = exp2(own_high - best);
    own_high = best;
    s = s <= LOWEST ? 0.0 : exp2(s - best);
    own_total = fma(own_total, shrink, s);
    // By shuffles: by shared memory, with its barriers, 32768 keys took an H100 55.7 us for 53.5.
    const uint base = gl_SubgroupInvocationID - share;
    [[unroll]] for (uint i = 0u; i < SCORES; i++) score[i] = subgroupShuffle(s, base + i);
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        float shrunk = subgroupShuffle(shrink, base + r);
        [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++) os[r * VALUE_CHUNKS * 2u + c] *= shrunk;
    }
}

void halve_totals(const uint d)
{
    [[unroll]] for (uint i = 0u; i < AHEAD / (2u * d); i++)
        [[unroll]] for (uint r = 0u; r < ROWS; r++) total[2u * d * i * ROWS + r] += total[(2u * i + 1u) * d * ROWS + r];
}

// One total of each row: of all its keys at once, or of what the lanes have.
void join_totals(const uint lane, const uint share)
{
    if (!SPREAD) {
        if (AHEAD > 1u) halve_totals(1u);
        if (AHEAD > 2u) halve_totals(2u);
        if (AHEAD > 4u) halve_totals(4u);
        return;
    }
    [[unroll]] for (uint d = ROWS; d < SCORES; d *= 2u) own_total += subgroupShuffleXor(own_total, d);
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        high[r] = subgroupShuffle(own_high, lane - share + r);
        total[r] = subgroupShuffle(own_total, lane - share + r);
    }
}

void add_values(const uint buf, const uint share)
{
    if (SPREAD) spread_weights(share);
    [[unroll]] for (uint r = 0u; r < ROWS && !SPREAD; r++) {
        float best = high[r];
        [[unroll]] for (uint u = 0u; u < AHEAD; u++)
            if (score[u * ROWS + r] > best) best = score[u * ROWS + r];
        float shrink = exp2(high[r] - best);
        high[r] = best;
        [[unroll]] for (uint c = 0u; c < 2u * VALUE_CHUNKS; c++) os[r * VALUE_CHUNKS * 2u + c] *= shrink;
        [[unroll]] for (uint u = 0u; u < AHEAD; u++) {
            float s = score[u * ROWS + r];
            score[u * ROWS + r] = s <= LOWEST ? 0.0 : exp2(s - best);
            total[u * ROWS + r] = fma(total[u * ROWS + r], shrink, score[u * ROWS + r]);
        }
    }
    [[unroll]] for (uint u = 0u; u < AHEAD; u++)
        [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
            vec4 a, b;
            uint at = ((buf * AHEAD + u) * VALUE_CHUNKS + c) * WORDS;
            unpacked(vs[at], vs[at + WORDS - 1u], a, b);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                os[(r * VALUE_CHUNKS + c) * 2u] += score[u * ROWS + r] * a;
                os[(r * VALUE_CHUNKS + c) * 2u + 1u] += score[u * ROWS + r] * b;
            }
        }
}

// One softmax for all keys of a subgroup.
void join_lanes()
{
    for (uint d = LANES; d < gl_SubgroupSize; d *= 2u)
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
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

// What the results of a row's parts, whose figures begin at `at`, are multiplied by: exp2(their largest scores - x) * y.
vec2 weigh_parts(const uint at, const uint row_head, const uint lane)
{
    float best = has(SINKS) ? sink_of(row_head) : LOWEST, sum = has(SINKS) ? 1.0 : 0.0;
    for (uint from = 0u; from < splits; from += gl_SubgroupSize) {
        uint s = from + lane;
        float high = s < splits ? part[at + 2u * s] : LOWEST, own = s < splits ? part[at + 2u * s + 1u] : 0.0;
        float more = max(best, subgroupMax(high));
        sum = sum * exp2(best - more) + subgroupAdd(own * exp2(high - more));
        best = more;
    }
    return vec2(best, sum == 0.0 ? 0.0 : 1.0 / sum);
}

// Adds up the parts of `count` rows. A subgroup has as many fours of a row's features as it has lanes, and every shares-th of
// the row's parts; it asks for BATCH of them at once, for the first before it knows what they weigh.
void join_parts(const uint batch, const uint head, const uint first_row, const uint count, const uint thread, const uint lane)
{
    const uint BATCH = 8u;
    uint first = ((batch * query_heads + head) * query_count + first_row) * splits, fours = v_width() / 4u;
    uint chunks = (fours + gl_SubgroupSize - 1u) / gl_SubgroupSize, units = ROWS * chunks;
    uint shares = IN_ORDER ? 1u : max(gl_NumSubgroups / units, 1u), share = shares > 1u ? gl_SubgroupID / units : 0u;
    for (uint unit = gl_SubgroupID - share * units; unit < units; unit += gl_NumSubgroups) {
        uint r = unit / chunks, column = (unit - r * chunks) * gl_SubgroupSize + lane;
        row_place spot = place_of(batch, head, first_row + min(r, count - 1u));
        uint at = first + min(r, count - 1u) * splits, from = at * fours + min(column, fours - 1u);
        vec4 x = vec4(0.0);
        vec2 weight;
        at = parts() * v_width() + 2u * at;
        for (uint s = share; s < splits; s += BATCH * shares) {
            vec4 p[BATCH];
            float h[BATCH];
            [[unroll]] for (uint b = 0u; b < BATCH; b++) {
                uint i = min(s + b * shares, splits - 1u);
                p[b] = part_four[from + i * fours];
                h[b] = part[at + 2u * i];
            }
            if (s == share) weight = weigh_parts(at, spot.head, lane);
            [[unroll]] for (uint b = 0u; b < BATCH; b++)
                x += (s + b * shares < splits ? exp2(h[b] - weight.x) * weight.y : 0.0) * p[b];
        }
        if (shares > 1u) {                               // then one round does, for all subgroups; some may be too many
            results[thread] = x;
            barrier();
            for (uint s = 1u; s < shares && share == 0u; s++) x += results[thread + s * units * gl_SubgroupSize];
        }
        if (share == 0u && r < count && column < fours)
            for (uint i = 0u; i < 4u; i++) store_result(spot.o + 4u * column + i, x[i]);
    }
}

// The subgroups' results of rows `from` .. from + count - 1 as one: a thread has two features. apart: and the newest key's.
void join_subgroups(const uint batch, const uint head, const uint first_row, const uint from, const uint count, const uint split, const uint thread, const bool apart)
{
    uint twos = v_width() / 2u;
    for (uint c = thread; c < count * twos; c += gl_WorkGroupSize.x) {
        uint i = c / twos, column = c - i * twos, row = first_row + from + i;
        row_place p = place_of(batch, head, row);
        bool sink = PARTS == 0u && has(SINKS);
        float best = sink ? sink_of(p.head) : LOWEST, sum = 0.0;
        vec2 x = vec2(0.0);
        [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) if (s < gl_NumSubgroups) best = max(best, highs[i * SUBGROUPS + s].x);
#ifdef FRESH
        if (apart) {
            float score = newest_score[from + i];
            best = max(best, score);
            sum = score <= LOWEST ? 0.0 : exp2(score - best);
            x = sum * newest_two(column);
        }
#endif
        if (sink) sum = exp2(sink_of(p.head) - best);
        [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) {
            if (s >= gl_NumSubgroups) continue;
            vec4 four = results[i * ROW_ROOM + s * (WIDTH / 4u) + column / 2u];
            float weight = exp2(highs[i * SUBGROUPS + s].x - best);
            sum += highs[i * SUBGROUPS + s].y * weight;
            x += (column % 2u == 0u ? four.xy : four.zw) * weight;
        }
        if (PARTS == 1u) {
            uint index = ((batch * query_heads + head) * query_count + row) * splits + split, at = parts() * v_width() + 2u * index;
            part[index * v_width() + 2u * column] = x.x;
            part[index * v_width() + 2u * column + 1u] = x.y;
            if (column == 0u) {
                part[at] = best;
                part[at + 1u] = sum;
            }
        } else {
            x *= sum == 0.0 ? 0.0 : 1.0 / sum;
            store_result(p.o + 2u * column, x.x);
            store_result(p.o + 2u * column + 1u, x.y);
        }
    }
}

// Rows of a block that begins at `head`, from first_row on, with part `split` of the keys; counter: of the parts of these rows.
void attend(const uint batch, const uint kv, const uint head, const uint first_row, const uint split, const uint counter)
{
    uint lane = gl_SubgroupInvocationID, share = lane % LANES, keys_each = gl_SubgroupSize / LANES, rows = query_count * block_heads();
    uint thread = gl_SubgroupID * gl_SubgroupSize + lane, step = gl_NumSubgroups * keys_each;
    uint mine = split * split_keys + gl_SubgroupID * keys_each + lane / LANES, first = split * split_keys;
#ifdef FRESH
    uvec4 late = uvec4(0u);
    if (has(LATE)) late = uvec4(mask32[mask_at], mask32[mask_at + 1u], mask32[mask_at + 2u], mask32[mask_at + 3u]);
    uint k_row = k_at + kv * k_stride[0] + late.x, v_row = v_at + kv * v_stride[0] + late.y;
    bool newest = split == splits - 1u, keep = newest && first_row == 0u;
    keys_counted = key_count + late.z;
    newest_key = newest ? keys_counted : ~0u;
    const bool apart = newest && !IN_ORDER;
    uint end = newest ? keys_counted + (IN_ORDER ? 1u : 0u) : first + split_keys;
#else
    uint k_row = k_row_of(batch, kv), v_row = v_row_of(batch, kv);
    keys_counted = key_count;
    if (has(LATE)) {
        k_row += mask32[mask_at];
        v_row += mask32[mask_at + 1u];
        keys_counted += mask32[mask_at + 2u];
    }
    const bool apart = false;
    uint end = min((split + 1u) * split_keys, key_end(first_row, min(first_row + ROWS, rows) - 1u));
#endif
    if (first < end) {
        [[unroll]] for (uint buf = 0u; buf < BUFFERS; buf++) {
            load_keys(buf, mine + buf * AHEAD * step, step, end, k_row, share);
            load_values(buf, mine + buf * AHEAD * step, step, end, v_row, share);
        }
    }
#ifdef FRESH
    read_weights(min(gl_SubgroupID, ROWS), lane);
    find_angles(offset + int(late.w), lane);
    if (is_linked()) wait_for_link(thread);            // the rows are not there yet
    prepare_rows(kv, head, first_row, rows, k_row + keys_counted * K_STEP, keep, lane);
    if (newest) read_newest_v(((link & HEARS_X) != 0u ? 0u : new_v_at) + kv * new_v_stride, v_row + keys_counted * V_STEP, keep, thread);
    barrier();
    for (uint from = 0u; apart && from < ROWS; from += gl_NumSubgroups)
        score_newest(min(from + gl_SubgroupID, ROWS - 1u), from + gl_SubgroupID < ROWS, lane);
#endif
    load_queries(batch, head, first_row, share);
#ifdef FRESH
    barrier();                                           // what was prepared makes room for results
#endif
    while (first < end) {
        [[unroll]] for (uint buf = 0u; buf < BUFFERS; buf++) {
            if (buf > 0u && first >= end) break;
            uint next = mine + BUFFERS * AHEAD * step;
            score_keys(buf, mine, step, end, share);
            load_keys(buf, next, step, end, k_row, share);
            add_values(buf, share);
            load_values(buf, next, step, end, v_row, share);
            mine += AHEAD * step;
            first += AHEAD * step;
        }
    }
    join_totals(lane, share);
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
        if (first_row + from < rows) join_subgroups(batch, head, first_row, from, min(min(AT_ONCE, ROWS - from), rows - first_row - from), split, thread, apart);
        if (PARTS == 1u || from + AT_ONCE < ROWS) barrier();
    }
    if (PARTS == 0u) return;
    memoryBarrierBuffer();
    barrier();
    if (thread == 0u) {
        last_one = atomicAdd(finished[counter], 1u) == splits - 1u;
        if (last_one) finished[counter] = 0u;            // as it was found
    }
    barrier();
    if (!last_one) return;
    memoryBarrierBuffer();
    join_parts(batch, head, first_row, min(ROWS, rows - first_row), thread, lane);
}

void main()
{
#ifdef FRESH
    uint kv = gl_WorkGroupID.z, block = gl_WorkGroupID.y;
    attend(0u, kv, kv * group_size, block * ROWS, gl_WorkGroupID.x, kv * gl_NumWorkGroups.y + block);
    count_for_link(gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID);
#else
    uint group = group_index(), blocks = query_heads / block_heads(), row_blocks = (query_count * block_heads() + ROWS - 1u) / ROWS;
    if (group >= splits * row_blocks * blocks * batches) return;
    uint counter = group / splits, block = counter / row_blocks, head = block % blocks * block_heads();
    attend(block / blocks, head / group_size, head, counter % row_blocks * ROWS, group % splits, counter);
#endif
}
