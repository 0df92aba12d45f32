// FRESH: attention of the one query of a decoding step, with what models do in front of it: its key and value are not in the
// cache yet, and neither the query nor the key has been normalised and turned. The workgroup that has the last keys of a head
// writes both to where they belong, behind the other keys, and meets them as the last ones of its part.
// The step may be linked, see links.glsl: the cache, the norms' weights and the angles are there before the rows are.
// A grid of parts, blocks of ROWS heads, heads of keys.
BUFFER_OF(PASSED, 5, new_k)
BUFFER_OF(PASSED, 8, new_v)
BUFFER(9, q_weight)
BUFFER(10, k_weight)
BUFFER(11, freqs)

layout(push_constant) uniform attention_rope_push {
    uint o_at, q_at, k_at, v_at, mask_at, new_k_at, new_v_at, q_weight_at, k_weight_at, freqs_at;
    uint q_stride, new_k_stride, new_v_stride;          // of heads
    uint k_stride[2], v_stride[2];                      // head, position
    uint query_heads, key_count, splits, split_keys;    // key_count: without the newest
    uint value_width, freqs_step, flags;
    uint group_size;                                    // query heads of one key head
    int offset;                                         // the newest key's position
    float scale, eps, rope_scale, base_high, base_low;  // scale: times log2(e); base: as in rope.comp
    uint link;                                          // see links.glsl
};
const uint batches = 1u, query_count = 1u;
uint newest_key;                                        // its number, in the part that it belongs to
#define k_width v_width                                 // there is one
bool has(const uint flag) { return (flags & flag & ~SINKS) != 0u; }
#include "normed.glsl"
#include "rope.glsl"
#define LINKS 12
#include "links.glsl"
#ifndef CHUNKED
#define TOLD                                            // value_width, where a row is WIDTH wide, says where to
// Eight numbers, from a multiple of eight on, of what is told: waited for.
uvec4 hear_eight(const uint told, const uint i)
{
    uint spins = 0u;
    uvec4 a, b, others;
    do {
        a = told4[told_at(told, i) / 4u];
        b = told4[told_at(told, i) / 4u + 1u];
        others = (a ^ told) | (b ^ told);
    } while (((others.x | others.y | others.z | others.w) & 0xffff0000u) != 0u && ++spins < SPINS);
    if (spins == SPINS) counted[GAVE_UP * STEP_APART] = 1u;
    return uvec4(a.xz & 0xffffu | a.yw << 16, b.xz & 0xffffu | b.yw << 16);
}
#endif
uint block_heads() { return group_size; }
float sink_of(const uint head) { return LOWEST; }
#ifdef CHUNKED
uint v_width() { return WIDTH; }
#else
uint v_width() { return FULL ? WIDTH : value_width; }
#endif
#define K_STEP k_stride[1]
#define V_STEP v_stride[1]

row_place place_of(const uint batch, const uint head, const uint n)
{
    return row_place(0u, o_at + (head + n) * v_width(), 0u, head + n, n >= group_size ? 0u : keys_counted + 1u);
}
float masked(const float score, const row_place p, const uint key) { return key >= p.keys || score < LOWEST ? LOWEST : score; }

// A row, of queries or the newest key's (row ROWS), belongs to a subgroup: a lane has TWOS times two neighbours of its first half
// and what they are turned with, the same two of the second half; and the weights of the norm, and the angles.
vec2 low[TWOS], high_half[TWOS], low_weight[TWOS], high_weight[TWOS];
vec4 angles[TWOS];                                      // cosine and sine of the one, of the other
uint two_of(const uint n, const uint lane) { return 2u * min(n * gl_SubgroupSize + lane, v_width() / 4u - 1u); }
#define TWO(name, i) (DTYPE == F32 ? uintBitsToFloat(uvec2(name##32[i], name##32[(i) + 1u])) : two_numbers(name##32[(i) / 2u]))
void read_weights(const uint r, const uint lane)
{
    const uint half_row = v_width() / 2u;
    [[unroll]] for (uint n = 0u; NORM == 2u && n < TWOS; n++) {
        uint i = two_of(n, lane);
        if (r == ROWS) {
            low_weight[n] = TWO(k_weight, k_weight_at + i);
            high_weight[n] = TWO(k_weight, k_weight_at + half_row + i);
        } else {
            low_weight[n] = TWO(q_weight, q_weight_at + i);
            high_weight[n] = TWO(q_weight, q_weight_at + half_row + i);
        }
    }
}
#ifdef TOLD
void hear_row(const uint told, const uint from, const uint lane)
{
    uint spins = 0u, missing;
    do {
        missing = 0u;
        [[unroll]] for (uint n = 0u; n < TWOS; n++) {
            uint i = from + two_of(n, lane);
            uvec2 a = told2[told_at(told, i) / 2u], b = told2[told_at(told, i + v_width() / 2u) / 2u], others = (a ^ told) | (b ^ told);
            missing |= others.x | others.y;
            low[n] = two_numbers(a.x & 0xffffu | a.y << 16);
            high_half[n] = two_numbers(b.x & 0xffffu | b.y << 16);
        }
    } while ((missing & 0xffff0000u) != 0u && ++spins < SPINS);
    if (spins == SPINS) counted[GAVE_UP * STEP_APART] = 1u;
}
#endif
void read_row(const uint kv, const uint head, const uint r, const uint lane)
{
    const uint half_row = v_width() / 2u;
#ifdef TOLD
    if ((link & HEARS_X) != 0u) {
        hear_row(r == ROWS ? new_k_at : q_at, r == ROWS ? kv * new_k_stride : head * q_stride, lane);
        return;
    }
#endif
    [[unroll]] for (uint n = 0u; n < TWOS; n++) {
        uint i = two_of(n, lane) + (r == ROWS ? new_k_at + kv * new_k_stride : q_at + head * q_stride);
        if (r == ROWS) {
            low[n] = TWO(new_k, i);
            high_half[n] = TWO(new_k, i + half_row);
        } else {
            low[n] = TWO(q, i);
            high_half[n] = TWO(q, i + half_row);
        }
    }
}
void find_angles(const int position, const uint lane)
{
    [[unroll]] for (uint n = 0u; n < TWOS; n++) {
        uint i = two_of(n, lane);
        angles[n].xy = cos_sin(rope_scale * float(position) * inverse_frequency(i));
        angles[n].zw = cos_sin(rope_scale * float(position) * inverse_frequency(i + 1u));
    }
}

#ifdef CHUNKED
// The newest value; the newest key and the queries once they are prepared: all as they are in memory.
shared uvec4 newest_v[V8];
void read_newest_v(const uint from, const uint to, const bool keep, const uint i)
{
    newest_v[i] = new_v128[from / 8u + i];
    if (keep) v128[to / 8u + i] = newest_v[i];
}
shared uint newest_k[WIDTH / 2u];
uvec4 newest_k_at(const uint i) { return uvec4(newest_k[4u * i], newest_k[4u * i + 1u], newest_k[4u * i + 2u], newest_k[4u * i + 3u]); }
void prepare_two(const vec2 x, const uint r, const uint i)
{
    queries[r * K_PITCH + i / 8u][i % 8u / 2u] = float_to_bits(x.x, DTYPE) | float_to_bits(x.y, DTYPE) << 16;
}
float rounded(const float x) { return bits_to_float(float_to_bits(x, DTYPE), DTYPE); }
#else
// The newest value, as it is in memory, where it goes as well.
shared uvec4 newest_v[WIDTH * WORDS / 8u];
void read_newest_v(const uint from, const uint to, const bool keep, const uint thread)
{
    for (uint i = thread; i < v_width() * WORDS / 8u; i += gl_WorkGroupSize.x) {
        newest_v[i] = (link & HEARS_X) != 0u ? hear_eight(new_v_at, from + 8u * i) : new_v128[from * WORDS / 8u + i];
        if (keep) v128[to * WORDS / 8u + i] = newest_v[i];
    }
}

// What is prepared, rounded: queries as numbers, WIDTH each, in `results`; the key as it is in memory, where it goes as well.
shared uint newest_k[WIDTH * WORDS / 2u];
#define PREPARED(r, i) results[((r) * WIDTH + (i)) / 4u][((r) * WIDTH + (i)) % 4u]
float rounded(const float x) { return bits_to_float(float_to_bits(x, DTYPE), DTYPE); }
void prepare_two(const vec2 x, const uint r, const uint i)
{
    PREPARED(r, i) = rounded(x.x) * scale;
    PREPARED(r, i + 1u) = rounded(x.y) * scale;
}

// The newest key by itself, a softmax of one key beside those of the subgroups. (A test for it in the loop over the others held
// up the loads behind it: 6 % of a step of Qwen3-0.6B at 8192 keys on an H100.)
shared float newest_score[8];                            // of rows
void score_newest(const uint r, const bool own, const uint lane)
{
    float sum = 0.0;
    for (uint i = 2u * lane; i < v_width(); i += 2u * gl_SubgroupSize) {
        vec2 k = DTYPE == F32 ? uintBitsToFloat(uvec2(newest_k[i], newest_k[i + 1u])) : two_numbers(newest_k[i / 2u]);
        sum += PREPARED(r, i) * k.x + PREPARED(r, i + 1u) * k.y;
    }
    sum = subgroupAdd(sum);
    if (own && lane == 0u) newest_score[r] = sum;
}
vec2 newest_two(const uint i)
{
    if (DTYPE == F32) return uintBitsToFloat(i % 2u == 0u ? newest_v[i / 2u].xy : newest_v[i / 2u].zw);
    return two_numbers(newest_v[i / 4u][i % 4u]);
}
#endif
void keep_two(const vec2 x, const uint i, const uint to, const bool keep)
{
    uint a = float_to_bits(x.x, DTYPE), b = float_to_bits(x.y, DTYPE);
    if (DTYPE == F32) {
        newest_k[i] = a;
        newest_k[i + 1u] = b;
        if (keep) k64[(to + i) / 2u] = uvec2(a, b);
    } else {
        newest_k[i / 2u] = a | b << 16;
        if (keep) k32[(to + i) / 2u] = a | b << 16;
    }
}
vec2 normed(const vec2 v, const float factor, const vec2 weight)
{
    precise vec2 r = v * factor;
    if (NORM == 2u) r = r * weight;
    return vec2(rounded(r.x), rounded(r.y));
}
// The sum of a row's squares by norm.comp's tree: four neighbours have an eight of each half, and each of the four adds up every
// fourth eight of the row. The row is in sixteens.
float row_squares(const uint lane)
{
    const uint eights = v_width() / 16u, each = gl_SubgroupSize / 4u;       // of a half; of it in a subgroup at once
    float sum = 0.0;
    [[unroll]] for (uint n = 0u; n < 2u * TWOS; n++) {
        precise vec2 squares = n < TWOS ? low[n] * low[n] : high_half[n - TWOS] * high_half[n - TWOS];
        uint before = n % TWOS * each, first = (lane - n / TWOS * eights - before) % 4u;
        float s = squares.x + squares.y;
        s += subgroupShuffleXor(s, 1u);
        s += subgroupShuffleXor(s, 2u);
        for (uint i = 0u; i < each; i += 4u) {
            float eight = subgroupShuffle(s, min(4u * (first + i), gl_SubgroupSize - 1u));
            sum += first + i < each && before + first + i < eights ? eight : 0.0;
        }
    }
    sum += subgroupShuffleXor(sum, 1u);
    return sum + subgroupShuffleXor(sum, 2u);
}
// A subgroup that has no row of its own, but another's, only goes along with it (`own`).
void prepare_row(const uint r, const uint to, const bool keep, const bool own, const uint lane)
{
    const uint half_row = v_width() / 2u;
    float factor = 1.0;
    if (NORM != 0u) factor = norm_factor(row_squares(lane), v_width(), eps);
    [[unroll]] for (uint n = 0u; n < TWOS; n++) {
        uint i = 2u * (n * gl_SubgroupSize + lane);
        vec2 a = low[n], b = high_half[n], c = angles[n].xz, s = angles[n].yw;
        if (i >= half_row || !own) continue;
        if (NORM != 0u) {
            a = normed(a, factor, low_weight[n]);
            b = normed(b, factor, high_weight[n]);
        }
        vec2 x = turned_first(a, b, c, s), y = turned_second(a, b, c, s);
        if (r == ROWS) {
            keep_two(x, i, to, keep);
            keep_two(y, i + half_row, to, keep);
        } else {
            prepare_two(x, r, i);
            prepare_two(y, r, i + half_row);
        }
    }
}
// Rows first_row .. first_row + ROWS - 1 of a block of `rows`, and the newest key, which goes to `to` where it is to be kept. All
// subgroups go all the way, those that have no row of their own as well: see sum_of_lanes.
#ifdef CHUNKED
#define TEAMS SUBGROUPS
#else
#define TEAMS gl_NumSubgroups
#endif
void prepare_rows(const uint kv, const uint head, const uint first_row, const uint rows, const uint to, const bool keep, const uint lane)
{
    for (uint from = 0u; from <= ROWS; from += TEAMS) {
        uint r = min(from + gl_SubgroupID, ROWS);
        if (from > 0u) read_weights(r, lane);
        read_row(kv, r == ROWS ? head : head + min(first_row + r, rows - 1u), r, lane);
        prepare_row(r, to, keep, from + gl_SubgroupID <= ROWS, lane);
    }
}
