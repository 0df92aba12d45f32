#version 460
#extension GL_GOOGLE_include_directive : require
// Samples of one categorical distribution by the inverse of its cumulative sum.
// STEP 0: a workgroup a tile of logits: its largest, and the sum of exp(x - largest). STEP 1: a workgroup a sample, which is
// drawn where the tile that it falls into is one of those whose logits are bound, `bound` from `first_tile` on. JOINED: the
// workgroup of step 0 that ends last draws one sample.
// LESS: a number is subtracted from floating logits first; TIMES: then they are multiplied by one. Both round as binary.comp.
#include "common.glsl"
#define ROUNDS_LOOPED
#include "threefry.glsl"
#include "math.glsl"
layout(constant_id = 1) const uint STEP = 0;
layout(constant_id = 2) const uint FROM = 10;
layout(constant_id = 3) const uint JOINED = 0;         // at most MOST_PIECES tiles
layout(constant_id = 4) const uint LESS = 0;           // the key is pushed
layout(constant_id = 5) const uint TIMES = 0;
BUFFER(0, dst)                                         // samples
BUFFER(1, src)
BUFFER(2, key)                                         // LESS: the number
ACCESS(src)
ACCESS(key)
#define JOINED_SLOT 3                                  // (largest, sum) of each tile; no JOINED: behind MOST_ROWS words
#include "joined.glsl"

//! enum CATEGORICAL_: elements a thread
const uint EACH = 8;

layout(push_constant) uniform categorical_push {
    uint n, tiles, samples, first_tile, bound;
    uint first_sample, drawn;                          // those that the binding holds, `drawn` of all
    uint dst_at, src_at, stride;
    uint key[5];                                       // see KEY_
    uint tile_at;
    float times;
};

shared float part[gl_WorkGroupSize.x];
shared float run_sum[gl_WorkGroupSize.x / 16u];
shared uint chosen;

float largest_of(const float x)                              // of the workgroup; NaN stays behind
{
    uint t = gl_LocalInvocationID.x;
    part[t] = x;
    barrier();
    for (uint s = gl_WorkGroupSize.x / 2u; s > 0u; s /= 2u) {
        if (t < s) part[t] = max(part[t], part[t + s]);
        barrier();
    }
    float r = part[0];
    barrier();
    return r;
}
// The sums of what is before each thread, so that no thread's is less than the one before it.
float sum_before(const float x, out float total)
{
    const uint run = 16u, runs = gl_WorkGroupSize.x / run;
    uint t = gl_LocalInvocationID.x;
    part[t] = x;
    barrier();
    if (t < runs) {
        float sum = 0.0;
        for (uint i = t * run; i < t * run + run; i++) { float y = part[i]; part[i] = sum; sum += y; }
        run_sum[t] = sum;
    }
    barrier();
    float before = 0.0;
    total = 0.0;
    for (uint i = 0; i < runs; i++) {
        if (i < t / run) before += run_sum[i];
        total += run_sum[i];
    }
    before += part[t];
    barrier();
    return before;
}
uint latest_of(const uint x)
{
    if (gl_LocalInvocationID.x == 0u) chosen = 0u;
    barrier();
    atomicMax(chosen, x);
    barrier();
    uint r = chosen;
    barrier();
    return r;
}

const uint TILE = gl_WorkGroupSize.x * EACH;
float rounded(const float x) { return bits_to_float(float_to_bits(x, FROM), FROM); }
float logit(const uint i)
{
    precise float x = as_float(load_src(src_at + (i - first_tile * TILE) * stride, FROM), FROM);
    if (LESS == 1u) x = rounded(x - loadf_key(key[AT], FROM));
    if (TIMES == 1u) x = rounded(x * times);
    return x;
}
float weight(const float x, const float largest) { float e = exp_of(x - largest); return e >= 0.0 ? e : 0.0; }

void measure_tile(const uint first)
{
    float x[EACH], high = -INFINITY, sum = 0.0, total;
    [[unroll]] for (uint k = 0; k < EACH; k++) {
        uint i = first + k * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
        x[k] = i < n ? logit(i) : -INFINITY;
        if (x[k] > high) high = x[k];
    }
    high = largest_of(high);
    [[unroll]] for (uint k = 0; k < EACH; k++) sum += weight(x[k], high);
    part[gl_LocalInvocationID.x] = sum;
    barrier();
    for (uint s = gl_WorkGroupSize.x / 2u; s > 0u; s /= 2u) {
        if (gl_LocalInvocationID.x < s) part[gl_LocalInvocationID.x] += part[gl_LocalInvocationID.x + s];
        barrier();
    }
    if (gl_LocalInvocationID.x == 0u) store_words(tile_at + first / TILE, floatBitsToUint(vec2(high, part[0])));
}

vec2 tile_stats(const uint i) { return uintBitsToFloat(load_words(tile_at + i)); }

void draw(const uint sample_index)
{
    uint t = gl_LocalInvocationID.x, each = (tiles + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x;
    uint from = min(t * each, tiles), until = min(from + each, tiles), best = 0u;
    float high = -INFINITY, sum = 0.0, total, before, run;
    for (uint i = from; i < until; i++) high = max(high, tile_stats(i).x);
    high = largest_of(high);
    for (uint i = from; i < until; i++) sum += tile_stats(i).y * weight(tile_stats(i).x, high);
    before = sum_before(sum, total);
    uvec2 k = KEY;
    float target = unit_float(random_word(k, sample_index, samples), F32) * total;
    run = 0.0;
    for (uint i = from; i < until; i++) {              // the last tile that begins at or before the target
        if (before + run <= target) best = i;
        run += tile_stats(i).y * weight(tile_stats(i).x, high);
    }
    uint chosen_tile = latest_of(best);
    if (chosen_tile >= from && chosen_tile < until) {
        run = 0.0;
        for (uint i = from; i < chosen_tile; i++) run += tile_stats(i).y * weight(tile_stats(i).x, high);
        part[0] = before + run;
    }
    barrier();
    if (chosen_tile - first_tile >= bound) return;
    target -= part[0];
    barrier();
    float e[EACH];
    sum = 0.0;
    uint first = chosen_tile * TILE + t * EACH;
    [[unroll]] for (uint i = 0; i < EACH; i++) {
        e[i] = first + i < n ? weight(logit(first + i), high) : 0.0;
        sum += e[i];
    }
    before = sum_before(sum, total);
    best = chosen_tile * TILE;
    run = 0.0;
    [[unroll]] for (uint i = 0; i < EACH; i++) {       // the last element with a weight that begins there
        if (e[i] > 0.0 && before + run <= target) best = first + i;
        run += e[i];
    }
    best = latest_of(best);
    if (t == 0u) dst32[dst_at + sample_index - first_sample] = min(best, n - 1u);
}

void main()
{
    uint g = group_index();
    if (STEP == 0u) {
        if (g >= bound) return;
        measure_tile((first_tile + g) * TILE);
        if (JOINED == 1u && count_piece(0u, tiles, gl_LocalInvocationID.x)) draw(0u);
    } else if (g < drawn) draw(first_sample + g);
}
