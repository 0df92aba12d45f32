// FRESH: attention of the one query of a decoding step, with what models do in front of it: its key and value are not in the
// cache yet, and neither the query nor the key has been normalised and turned. The workgroup that has the last keys of a head
// writes both to where they belong, behind the other keys, and meets them first.
NUMBERS(5, new_k)
NUMBERS(8, new_v)
NUMBERS(9, q_weight)
NUMBERS(10, k_weight)
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
};
const uint batches = 1u, query_count = 1u;
#define key_width value_width                           // there is one
bool has(const uint flag) { return (flags & flag & ~SINKS) != 0u; }
#include "rope.glsl"
uint block_heads() { return group_size; }
float sink_of(const uint head) { return LOWEST; }
uint k_row_of(const uint batch, const uint head) { return k_at + head * k_stride[0]; }
uint v_row_of(const uint batch, const uint head) { return v_at + head * v_stride[0]; }
#define K_STEP k_stride[1]
#define V_STEP v_stride[1]

row_place place_of(const uint batch, const uint head, const uint n)
{
    return row_place(0u, o_at + (head + n) * value_width, 0u, head + n, n >= group_size ? 0u : KEY_COUNT);
}
uint key_end(const uint first, const uint last) { return KEY_COUNT; }
float masked(const float score, const row_place p, const uint key) { return key >= p.keys || score < LOWEST ? LOWEST : score; }

// A row, of queries or the newest key's (row ROWS): PAIRS pairs a lane, and the weights of its norm. What is held at once, from pair
// `from` on, is asked for at once, the first ones before anything that depends on what other loads bring.
const uint HELD_PAIRS = PAIRS < 2u ? PAIRS : 2u;
float first[HELD_PAIRS], second[HELD_PAIRS], first_weight[HELD_PAIRS], second_weight[HELD_PAIRS];
vec2 angles[HELD_PAIRS];                                // cosine and sine
uint pair_of(const uint n, const uint lane) { return min(n * gl_SubgroupSize + lane, value_width / 2u - 1u); }
void read_row(const uint head, const uint r, const uint from, const uint lane)
{
    bool key = r == ROWS;
    uint row = key ? new_k_at + head / group_size * new_k_stride : q_at + (head + r) * q_stride;
    [[unroll]] for (uint n = 0u; n < HELD_PAIRS; n++) {
        uint i = pair_of(from + n, lane), j = i + value_width / 2u;
        first[n] = key ? number_new_k(row + i) : number_q(row + i);
        second[n] = key ? number_new_k(row + j) : number_q(row + j);
        if (NORM != 2u) continue;
        first_weight[n] = key ? number_k_weight(k_weight_at + i) : number_q_weight(q_weight_at + i);
        second_weight[n] = key ? number_k_weight(k_weight_at + j) : number_q_weight(q_weight_at + j);
    }
}
void find_angles(const uint from, const uint lane)
{
    for (uint n = 0u; n < HELD_PAIRS; n++)
        angles[n] = cos_sin(rope_scale * float(position) * inverse_frequency(pair_of(from + n, lane)));
}

// The newest value, as lanes that share a key have values.
uvec4 newest_v[VALUE_CHUNKS * WORDS];
void read_newest_v(const uint from, const uint share)
{
    [[unroll]] for (uint c = 0u; c < VALUE_CHUNKS; c++) {
        uint f = 8u * (c * LANES + share), at = (f < value_width ? from + f : from) / (8u / WORDS);
        [[unroll]] for (uint w = 0u; w < WORDS; w++) newest_v[c * WORDS + w] = new_v128[at + w];
    }
}

// The rows as they count, rounded, each WIDTH numbers in `results`; beside them the key goes to the cache.
float turned(const float x, const bool keep, const uint to)
{
    uint bits = float_to_bits(x, DTYPE);
    if (keep && DTYPE == F32) k32[to] = bits;
    else if (keep) k16[to] = uint16_t(bits);
    return bits_to_float(bits, DTYPE);
}
#define PREPARED(r, i) results[((r) * WIDTH + (i)) / 4u][((r) * WIDTH + (i)) % 4u]
void prepare_row(const uint head, const uint r, const bool keep, const uint to, const uint lane)
{
    float factor = 1.0, sum = 0.0;
    for (uint from = 0u; NORM != 0u && from < PAIRS; from += HELD_PAIRS) {
        if (from != 0u) read_row(head, r, from, lane);
        [[unroll]] for (uint n = 0u; n < HELD_PAIRS; n++)
            if ((from + n) * gl_SubgroupSize + lane < value_width / 2u) sum += first[n] * first[n] + second[n] * second[n];
    }
    if (NORM != 0u) factor = inversesqrt(subgroupAdd(sum) / float(value_width) + eps);
    for (uint from = 0u; from < PAIRS; from += HELD_PAIRS) {
        if (PAIRS > HELD_PAIRS) {
            read_row(head, r, from, lane);
            find_angles(from, lane);
        }
        [[unroll]] for (uint n = 0u; n < HELD_PAIRS; n++) {
            uint i = (from + n) * gl_SubgroupSize + lane, j = i + value_width / 2u;
            float a = first[n] * factor, b = second[n] * factor;
            if (i >= value_width / 2u) continue;
            if (NORM == 2u) {
                a *= first_weight[n];
                b *= second_weight[n];
            }
            PREPARED(r, i) = turned(a * angles[n].x - b * angles[n].y, keep, to + i);
            PREPARED(r, j) = turned(a * angles[n].y + b * angles[n].x, keep, to + j);
        }
    }
}

// A subgroup for each row; the first one's has been read, as much of it as is held.
void prepare(const uint head, const uint count, const uint k_row, const bool newest, const bool keep, const uint lane)
{
    if (PAIRS <= HELD_PAIRS) find_angles(0u, lane);
    for (uint r = gl_SubgroupID; r <= ROWS; r += gl_NumSubgroups) {
        bool key = r == ROWS;
        if (r >= gl_NumSubgroups) read_row(head, r, 0u, lane);
        if (key ? newest : r < count) prepare_row(head, r, key && keep, k_row + keys_counted * K_STEP, lane);
    }
}
