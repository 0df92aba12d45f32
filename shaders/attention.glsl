// What the attention kernels share: operands, push constants, masks. Scores are in units of log2.
#ifndef ATTENTION_GLSL
#define ATTENTION_GLSL
#include "common.glsl"
#include "eights.glsl"
const uint CAUSAL = 1u, MASK_BOOL = 2u, MASK_ADDS = 4u, SINKS = 8u, EIGHTS_ALIGNED = 16u;
bool has(uint flag) { return (FLAGS & flag) != 0u; }
const float LOWEST = -1e30, LOG2E = 1.44269504088896341;
BUFFER(0, o)
BUFFER(1, q)
BUFFER(2, k)
BUFFER(3, v)
BUFFER(4, mask)
BUFFER(5, sinks)
ACCESS(o)
ACCESS(q)
ACCESS(k)
ACCESS(v)
ACCESS(mask)
ACCESS(sinks)
EIGHTS(q)
EIGHTS(k)
EIGHTS(v)

layout(push_constant) uniform Push {
    uint o_at, q_at, k_at, v_at, mask_at, sinks_at;
    uint o_stride[3], q_stride[3], k_stride[3], v_stride[3];    // batch, head, position
    uint mask_stride[4];                                // batch, head, query, key
    uint batches, query_heads, query_count, key_count, group_size, row_heads, tiles;
    float scale;                                        // times log2(e)
};

// Row n of a block of rows that begins at `head`: its head is head + n / query_count, its position n % query_count.
uint query_at(uint batch, uint head, uint n)
{
    uint h = n / query_count;
    return q_at + batch * q_stride[0] + (head + h) * q_stride[1] + (n - h * query_count) * q_stride[2];
}
uint result_at(uint batch, uint head, uint n)
{
    uint h = n / query_count;
    return o_at + batch * o_stride[0] + (head + h) * o_stride[1] + (n - h * query_count) * o_stride[2];
}
float sink_of(uint head) { return loadf_sinks(sinks_at + head, DTYPE) * LOG2E; }

// The first key that no row from `first` to `last` attends to: bottom-right aligned.
uint key_end(uint first, uint last)
{
    if (!has(CAUSAL)) return key_count;
    uint most = first / query_count == last / query_count ? last % query_count : query_count - 1u;
    return uint(clamp(int(most + 1u + key_count) - int(query_count), 0, int(key_count)));
}

float masked(float score, uint batch, uint head, uint n, uint key, uint rows)
{
    if (n >= rows || key >= key_count) return LOWEST;
    if (FLAGS % 8u == 0u) return score < LOWEST ? LOWEST : score;
    uint h = n / query_count, i = n - h * query_count;
    if (has(CAUSAL) && int(key) > int(i + key_count) - int(query_count)) return LOWEST;
    if (has(MASK_BOOL) || has(MASK_ADDS)) {
        uint at = mask_at + batch * mask_stride[0] + (head + h) * mask_stride[1] + i * mask_stride[2] + key * mask_stride[3];
        if (has(MASK_ADDS)) score += loadf_mask(at, DTYPE) * LOG2E;
        else if (uint(mask8[at]) == 0u) return LOWEST;
    }
    return score < LOWEST ? LOWEST : score;              // NaN stays
}
#endif
