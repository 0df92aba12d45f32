// What the kernels of attention's gradient share: see attention_vjp.comp. They have MODE, DTYPE and TILE, the rows of a workgroup.
#ifndef ATTENTION_VJP_GLSL
#define ATTENTION_VJP_GLSL
#include "floats.glsl"
#include "math.glsl"
//! enum ATTEND_VJP_: modes
const uint KEYS = 0, QUERIES = 1, ROWS = 2;
//! enum ATTEND_VJP_: flags
const uint CAUSAL = 1u, MASK_BOOL = 2u, MASK_ADDS = 4u, SINKS = 8u, SUMS = 16u, DOTS = 32u;   // ROWS: logsumexp; D
layout(push_constant) uniform attention_vjp_push {
    uint batches, heads, group, query_count, key_count, key_width, value_width, flags;       // heads: of queries
    float scale;
    uint first_at, second_at, q_at, k_at, v_at, g_at, mask_at, stats_at;
    uint q_stride[3], k_stride[3], v_stride[3], mask_stride[4];                              // g has no gaps
};
QUADS(0, first)                                        // dk or dq; ROWS: stats, two numbers a query: logsumexp and D
QUADS(1, second)                                       // dv; ROWS: logsumexp, where that is given
QUADS(2, q)
QUADS(3, k)
QUADS(4, v)                                            // ROWS: o
QUADS(5, g)
FLOATS(6, mask)
layout(std430, set = 0, binding = 6) buffer mask_bytes { uint8_t mask8[]; };
FLOATS(7, stats)                                       // ROWS: sinks

// A score that is none: finite, for compilers may take it that there are no infinities.
const float UNSEEN = -1e30, LOWEST = -3.402823466e+38;

uint me, batch, own_head;
const bool OWN_KEYS = MODE == KEYS;

// The score of a query and a key, from their product; UNSEEN where the query does not see it. NaN stays.
float score_of(const float product, const uint head, const uint query, const uint key)
{
    uint at = mask_at + batch * mask_stride[0] + head * mask_stride[1] + query * mask_stride[2] + key * mask_stride[3];
    if (query >= query_count || key >= key_count) return UNSEEN;
    if ((flags & CAUSAL) != 0u && key + query_count > query + key_count) return UNSEEN;
    if ((flags & MASK_BOOL) != 0u && uint(mask8[at]) == 0u) return UNSEEN;
    float score = product * scale + ((flags & MASK_ADDS) != 0u ? loadf_mask(at, DTYPE) : 0.0);
    return score < UNSEEN ? UNSEEN : score;
}

// Keys that none of these queries sees begin there.
uint keys_end(const uint row)
{
    uint last = min(row + TILE, query_count) + key_count;
    return (flags & CAUSAL) == 0u ? key_count : last <= query_count ? 0u : min(key_count, last - query_count);
}

// Queries from this row of keys on see it.
uint queries_begin(const uint row)
{
    return (flags & CAUSAL) != 0u && row + query_count > key_count ? row + query_count - key_count : 0u;
}

// A weight, and the gradient of its score; all: the query's logsumexp, d: its D, product: of its cotangent and the value.
// A query that sees no key has weights of 0.
float weight_of(const float score, const float all) { return score != UNSEEN && (all > LOWEST || is_nan(all)) ? exp(score - all) : 0.0; }
float slope_of(const float p, const float product, const float d) { return p == 0.0 ? 0.0 : p * (product - d) * scale; }

// The next score of a sum of exponentials in units of its largest one; two of them.
void add_score(inout float most, inout float all, const float s)
{
    if (s == UNSEEN) return;
    float m = max(most, s);
    all = is_nan(s) ? s : all * exp(most - m) + exp(s - m);
    most = m;
}
void add_scores(inout float most, inout float all, const float its_most, const float its_all)
{
    float m = max(most, its_most);
    all = all * exp(most - m) + its_all * exp(its_most - m);
    most = m;
}

// What ROWS found of a query.
void put_row(const uint query, float most, float all, const float d)
{
    uint to = (batch * heads + own_head) * query_count + query;
    if ((flags & SINKS) != 0u) add_scores(most, all, loadf_stats(stats_at + own_head, DTYPE), 1.0);
    float result = all == 0.0 ? -INFINITY : is_nan(all) ? all : most + log_of(all);
    if ((flags & SUMS) == 0u) result = uintBitsToFloat(second32[second_at + to]);
    if ((flags & DOTS) == 0u) first32[first_at + to] = floatBitsToUint(result);
    else {
        first32[first_at + 2u * to] = floatBitsToUint(result);
        first32[first_at + 2u * to + 1u] = floatBitsToUint(d);
    }
}
#endif
