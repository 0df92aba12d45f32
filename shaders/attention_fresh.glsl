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
    uint width, freqs_step, flags;
    uint group_size;                                    // query heads of one key head
    int offset;                                         // the newest key's position
    float scale, eps, rope_scale, base_high, base_low;  // scale: times log2(e); base: as in rope.comp
};
const uint batches = 1u, query_count = 1u;
#define key_width width
#define value_width width
bool has(uint flag) { return (flags & flag & ~SINKS) != 0u; }
#include "rope.glsl"
uint block_heads() { return group_size; }
float sink_of(uint head) { return LOWEST; }
uint k_row_of(uint batch, uint head) { return k_at + head * k_stride[0]; }
uint v_row_of(uint batch, uint head) { return v_at + head * v_stride[0]; }
#define K_STEP k_stride[1]
#define V_STEP v_stride[1]

row_place place_of(uint batch, uint head, uint n)
{
    return row_place(0u, o_at + (head + n) * width, 0u, head + n, n >= group_size ? 0u : KEY_COUNT);
}
uint key_end(uint first, uint last) { return KEY_COUNT; }
float masked(float score, row_place p, uint key) { return key >= p.keys || score < LOWEST ? LOWEST : score; }

// Queries and the newest key as they count, rounded, each WIDTH numbers in `results`; beside them the key goes to the cache.
#define PREPARED(r, i) results[((r) * WIDTH + (i)) / 4u][((r) * WIDTH + (i)) % 4u]
float number_from(bool key, uint i) { return key ? number_new_k(i) : number_q(i); }
float turned(float x, bool key, uint i, bool keep, uint to)
{
    uint bits = float_to_bits(x, DTYPE);
    if (keep && DTYPE == F32) k32[to] = bits;
    else if (keep) k16[to] = uint16_t(bits);
    return bits_to_float(bits, DTYPE);
}
void prepare(uint head, uint count, uint k_row, bool newest, bool keep, uint lane)
{
    for (uint r = gl_SubgroupID; r <= ROWS; r += gl_NumSubgroups) {
        bool key = r == ROWS;
        if (key ? !newest : r >= count) continue;
        uint from = key ? new_k_at + head / group_size * new_k_stride : q_at + (head + r) * q_stride;
        uint to = k_row + keys_counted * K_STEP;
        float factor = 1.0, sum = 0.0;
        if (NORM != 0u) {
            for (uint i = lane; i < width; i += gl_SubgroupSize) {
                float x = number_from(key, from + i);
                sum += x * x;
            }
            factor = inversesqrt(subgroupAdd(sum) / float(width) + eps);
        }
        for (uint i = lane; i < width / 2u; i += gl_SubgroupSize) {
            uint j = i + width / 2u;
            vec2 cs = cos_sin(rope_scale * float(position) * inverse_frequency(i));
            float a = number_from(key, from + i) * factor, b = number_from(key, from + j) * factor;
            if (NORM == 2u) {
                a *= key ? number_k_weight(k_weight_at + i) : number_q_weight(q_weight_at + i);
                b *= key ? number_k_weight(k_weight_at + j) : number_q_weight(q_weight_at + j);
            }
            PREPARED(r, i) = turned(a * cs.x - b * cs.y, key, i, key && keep, to + i);
            PREPARED(r, j) = turned(a * cs.y + b * cs.x, key, j, key && keep, to + j);
        }
    }
}
