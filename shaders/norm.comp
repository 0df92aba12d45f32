#version 460
#extension GL_GOOGLE_include_directive : require
// RMS and layer normalisation of rows, by elements or (BY_EIGHTS) by aligned eights that threads hold, with an optional
// addition in front:
//   h = x + residual, stored rounded;  y = (h - mean) * rsqrt(mean square + eps) * weight + bias, rounded once
//   (MLX rounds before the weight too)
// where RMS takes no mean. LANES threads a row; the rows of a workgroup are independent.
//
// A row's sums depend on its elements and their order alone, by this tree: eight elements in a row are added by pairs;
// the eights are dealt to LANES * SLOTS places (a power of two that the row's length gives, up to 512), place by place,
// and each place adds its own in order; then the upper half of the places is added to the lower half, until 64 are left,
// which row_sum() adds up. A thread has SLOTS places, LANES apart.
layout(constant_id = 1) const uint LANES = 32;
layout(constant_id = 2) const uint HELD = 1;           // eights that a thread holds; places of which it has none add 0
layout(constant_id = 3) const uint DTYPE = 10;
layout(constant_id = 4) const uint KIND = 0;           // flags
layout(constant_id = 5) const uint SLOTS = 1;          // at most 16
layout(constant_id = 6) const uint LOOSE = 0;          // BY_EIGHTS, no ADD: 1: rows begin and end anywhere; 2: x by steps
layout(constant_id = 7) const uint BESIDES = 0;        // LOOSE: bits: weights and biases begin at multiples of PER_WORD; rows of y do, and n is whole eights
layout(constant_id = 8) const uint STAGED = 0;         // LOOSE: 1: rows of y that begin anywhere go through shared memory
#define HALF_ID 9                                      // see half.glsl
#include "rows.glsl"
BUFFER(0, y)
BUFFER(1, x)
BUFFER(2, residual)
BUFFER(3, h)
BUFFER(4, weight)
BUFFER(5, bias)
ACCESS(y)
ACCESS(x)
ACCESS(residual)
ACCESS(h)
ACCESS(weight)
ACCESS(bias)
#ifdef BY_EIGHTS
EIGHTS(residual)
#include "loose.glsl"
LOOSE_STORE(y)
const uint ROW_WORDS = HELD * LANES * (DTYPE == F32 ? 2u : 1u);
shared uvec4 staged[STAGED != 0u ? gl_WorkGroupSize.x / LANES * ROW_WORDS : 1u];
LOOSE_ROW(y)
uvec4 loose_quad(const uint which, const uint i) { return which == 0u ? x128[i] : which == WEIGHT ? weight128[i] : bias128[i]; }
#endif

layout(push_constant) uniform norm_push {
    uint rows, n, ndim;
    float eps;
    uint weight_at, bias_at, weight_step, bias_step;
    uint shape[3];
    uint offset[4];                                     // of y, x, residual, h
    uint stride[4][3];                                  // [operand][dimension of the rows]
    uint x_step, residual_step;                         // along a row; 1 for y and h
};
bool has(const uint flag) { return (KIND & flag) != 0u; }

uvec4 locate(uint row)
{
    uvec4 at = uvec4(offset[0], offset[1], offset[2], offset[3]);
    [[unroll]] for (int d = 2; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = d > 0 ? row / shape[d] : 0u, c = row - q * shape[d];
            at += c * uvec4(stride[0][d], stride[1][d], stride[2][d], stride[3][d]);
            row = q;
        }
    return at;
}

float sum_of(const eight v)
{
    precise float a = (v.a.x + v.a.y) + (v.a.z + v.a.w), b = (v.b.x + v.b.y) + (v.b.z + v.b.w), sum = a + b;
    return sum;
}
float squares_of(const eight v)                         // RMS's by steps, as normed.glsl's have them
{
    precise vec4 a = v.a * v.a, b = v.b * v.b;
    if (has(MEAN)) {
        a.xy = fma(v.a.zw, v.a.zw, a.xy);
        a.zw = fma(v.b.zw, v.b.zw, b.xy);
        precise float sum = (a.x + a.y) + (a.z + a.w);
        return sum;
    }
    return sum_of(eight(a, b));
}
eight minus(const eight v, const float mean) { return eight(v.a - mean, v.b - mean); }

// This thread's places, halved until the row has 64, or each thread one; then those of all threads. Where a thread has several
// they are added up as row_sum() adds those of as many threads.
const uint MOST_KEPT = LANES >= 64u ? 1u : 64u / LANES, KEPT = SLOTS < MOST_KEPT ? SLOTS : MOST_KEPT, ROWS = gl_WorkGroupSize.x / LANES;
shared vec4 kept_parts[KEPT > 1u ? ROWS * KEPT * LANES / 4u + 1u : 1u], kept_sums[KEPT > 1u ? 4u * ROWS : 1u];
float place[16];
float row_total()
{
    const uint all = KEPT * LANES;
    uint lane = gl_LocalInvocationID.x % LANES, row = gl_LocalInvocationID.x / LANES, first = row * all;
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint k = 1u; k <= 4u; k++)         // upwards: not all drivers unroll what is halved
        [[unroll]] for (uint s = 0u; s < SLOTS >> k; s++) if (SLOTS >> k >= KEPT) place[s] += place[s + (SLOTS >> k)];
    if (KEPT == 1u) return row_sum(place[0]);
    barrier();
    [[unroll]] for (uint s = 0u; s < KEPT; s++) kept_parts[(first + lane + s * LANES) / 4u][(first + lane + s * LANES) % 4u] = place[s];
    barrier();
    if (all == 2u) return kept_parts[first / 4u][first % 4u] + kept_parts[first / 4u][first % 4u + 1u];
    if (all <= 32u) {
        for (uint i = 0u; i < all / 4u; i++) sum += kept_parts[first / 4u + i];
        return added(sum);
    }
    for (uint i = lane; i < 16u; i += LANES) kept_sums[4u * row + i / 4u][i % 4u] = added(kept_parts[first / 4u + i]);
    barrier();
    for (uint i = 0u; i < 4u; i++) sum += kept_sums[4u * row + i];
    return added(sum);
}
void clear_places() { [[unroll]] for (uint s = 0u; s < SLOTS; s++) place[s] = 0.0; }

// (x - mean) * factor * w + b. shifted(): as x * factor - mean * factor, for as many of halves' bits as mean is large are gone
// already. Without variance factor has so few bits that both are exact and what is the mean becomes 0.
bool shifted() { return has(MEAN) && has(LONG); }
float factor_of(const float total)
{
    float factor = norm_factor(total, n, eps);
    return shifted() && total == 0.0 ? rounded(factor, BF16) : factor;
}
vec4 scaled(const vec4 x, const float mean, const float factor, const vec4 w, const vec4 b)
{
    precise float shift = -mean * factor;
    precise vec4 apart = x - mean, r = apart * factor;
    if (shifted()) r = fma(x, vec4(factor), vec4(shift));
    if (has(WEIGHT) && has(BIAS)) r = fma(r, w, b);
    else if (has(WEIGHT)) r = r * w;
    else if (has(BIAS)) r = r + b;
    return r;
}

bool by_floats(const uint i) { return DTYPE == BF16 && has(LONG) && (has(MEAN) || (i & 4u) != 0u); }   // element i's result

// What is normalised, from h once it is stored there.
float value(const uvec4 at, const uint i) { return has(ADD) ? loadf_h(at.w + i, DTYPE) : loadf_x(at.y + i * x_step, DTYPE); }

// The result at element i, by itself.
float result(const uvec4 at, const uint i, const float mean, const float factor)
{
    float w = has(WEIGHT) ? loadf_weight(weight_at + i * weight_step, DTYPE) : 1.0;
    float b = has(BIAS) ? loadf_bias(bias_at + i * bias_step, DTYPE) : 0.0;
    float y = scaled(vec4(value(at, i)), mean, factor, vec4(w), vec4(b)).x;
    return by_floats(i) ? cut(y) : y;
}
// The results from element `first` on, eight or as many as there are.
void finish(const uvec4 at, const uint first, const float mean, const float factor)
{
    for (uint i = first; i < min(first + 8u, n); i++) storef_y(at.x + i, DTYPE, result(at, i, mean, factor));
}

#ifdef BY_EIGHTS
// The eights that a thread holds, as they are in memory.
const uint WORDS = DTYPE == F32 ? 2u : 1u, PER_WORD = 8u / WORDS;      // rows begin at any multiple of PER_WORD
uvec4 words[HELD * WORDS];
eight held(const uint i)
{
    if (DTYPE == F32) return eight(uintBitsToFloat(words[2u * i]), uintBitsToFloat(words[2u * i + 1u]));
    return eight(four_halves(words[i].xy, DTYPE), four_halves(words[i].zw, DTYPE));
}
void hold(const uint i, const eight v)
{
    if (DTYPE == F32) { words[2u * i] = floatBitsToUint(v.a); words[2u * i + 1u] = floatBitsToUint(v.b); }
    else words[i] = eight_rounded(v.a, v.b, DTYPE);
}

// Is there one test of all results of a thread? Of few, each has its own for NaN, which is less code. LONG: half of these are
// rounded by floats, of layer_norm all (an H200, bfloat16 16384 x 8192: rms_norm 140.5 us by integers alone, 138.7 by half,
// 140.5 by floats alone; layer_norm 144 to 147, 145, and 142 to 145, but 156 once).
const bool TESTED = DTYPE == BF16 && HELD > 2u;
float nought;
vec4 check = vec4(0.0);                                // no number, once a result is none, or too large for floats
void hold_result(const uint i, const eight v)
{
    if (!TESTED) {
        hold(i, eight(by_floats(0u) ? cut(v.a) : v.a, by_floats(4u) ? cut(v.b) : v.b));
        return;
    }
    vec4 a = by_floats(0u) ? nearest_floats(v.a, nought) : v.a, b = by_floats(4u) ? nearest_floats(v.b, nought) : v.b;
    check = fma(a, b, check);
    words[i] = join_uppers(by_floats(0u) ? floatBitsToUint(a) : nearest_uppers(a),
                           by_floats(4u) ? floatBitsToUint(b) : nearest_uppers(b));
}
bool all_numbers() { float sum = added(check); return !is_nan(sum) && !is_inf(sum); }

// Of rows that begin and end anywhere (LOOSE). What is behind a row's end is made 0 once where no mean is subtracted from it, by who
// holds the end; else it is masked in both sums. (An H200, bfloat16 16384 x 4095: rms_norm 103 us masked and 91, layer_norm 109 and
// 162.)
bool ends_once() { return LOOSE != 0u && (BESIDES & 2u) == 0u && !has(MEAN); }
Loose loose_words(const uint i)
{
    if (DTYPE == F32) return Loose(words[2u * i], words[2u * i + 1u]);
    return Loose(words[i], uvec4(0u));
}
void load_loose(const uvec4 at, const uint lane)
{
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        uint first = 8u * (lane + i * LANES);
        if (LOOSE == 2u)
            [[unroll]] for (uint k = 0u; k < 8u; k++) {
                uint raw = load_x(at.y + min(first + k, n - 1u) * x_step, DTYPE);
                if (DTYPE == F32) words[2u * i + k / 4u][k % 4u] = raw;
                else words[i][k / 2u] = k % 2u == 0u ? raw : words[i][k / 2u] | raw << 16;
            }
        else {
            Loose w = loose_load(0u, at.y + first, at.y + n - 1u, DTYPE);
            words[i * WORDS] = w.a;
            if (DTYPE == F32) words[i * WORDS + 1u] = w.b;
        }
    }
    if (!ends_once()) return;
    uvec4 four = uvec4(0u, 1u, 2u, 3u);
    [[unroll]] for (uint i = 0u; i < HELD; i++) {      // 0 behind the row's end
        uint first = 8u * (lane + i * LANES);
        if (first + 8u <= n) continue;
        uvec4 a = words[i * WORDS];
        if (DTYPE == F32) {
            words[2u * i] = mix(a, uvec4(0u), greaterThanEqual(first + four, uvec4(n)));
            words[2u * i + 1u] = mix(words[2u * i + 1u], uvec4(0u), greaterThanEqual(first + 4u + four, uvec4(n)));
        } else {
            a = mix(a, a & 0xffffu, greaterThanEqual(first + 2u * four + 1u, uvec4(n)));
            words[i] = mix(a, uvec4(0u), greaterThanEqual(first + 2u * four, uvec4(n)));
        }
    }
}
// 0 behind the row's end, whatever was there.
eight within(eight v, const uint i, const uint lane)
{
    if (LOOSE == 0u || !has(MEAN) || (BESIDES & 2u) != 0u) return v;
    uvec4 k = 8u * (lane + i * LANES) + uvec4(0u, 1u, 2u, 3u);
    v.a = mix(v.a, vec4(0.0), greaterThanEqual(k, uvec4(n)));
    v.b = mix(v.b, vec4(0.0), greaterThanEqual(k + 4u, uvec4(n)));
    return v;
}
// Is a thread's eight of the row? Asked where results are staged: of rows a little longer than a power of two many are not (an
// H200, bfloat16 16384 x 4097, layer_norm 140 us without and 119; rows that begin at odd places 101 without and 158).
bool is_there(const uint i, const uint lane, const uint groups) { return STAGED == 0u || lane + i * LANES < groups; }
// x + residual, rounded, to the words and to h.
void add_residual(const uvec4 at, const uint lane, const uint groups)
{
    uint last = n / 8u - 1u;
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        uint g = lane + i * LANES;
        eight v = held(i), r = load8_residual(at.z + 8u * min(g, last), DTYPE);
        hold(i, eight(v.a + r.a, v.b + r.b));
        if (g >= groups) continue;
        [[unroll]] for (uint k = 0u; k < WORDS; k++) h128[at.w / PER_WORD + g * WORDS + k] = words[i * WORDS + k];
    }
}
// An eight of weights and biases, as they are in memory, when it is needed. One ahead of what is computed is slower: an H200 takes
// 153 and 173 us so for rms_norm and layer_norm of bfloat16 16384 x 8192, and 143 and 158 in this way (an H100 194.1 and 194.0,
// and 195.3 and 195.9).
uvec4 own_weight[2], own_bias[2];                 // halves: the first alone
void ask(const uint g)
{
    if (LOOSE != 0u && (BESIDES & 1u) == 0u) return;
    [[unroll]] for (uint k = 0u; k < WORDS; k++) {
        uint i = LOOSE != 0u ? min(g * WORDS + k, (n - 1u) / PER_WORD) : g * WORDS + k;
        if (has(WEIGHT)) own_weight[k] = weight128[weight_at / PER_WORD + i];
        if (has(BIAS)) own_bias[k] = bias128[bias_at / PER_WORD + i];
    }
}
eight eight_of(const uint which, const uint from, const uint first)
{
    if (LOOSE != 0u && (BESIDES & 1u) == 0u) return loose_eight(loose_load(which, from + first, from + n - 1u, DTYPE), DTYPE);
    uvec4 a = which == WEIGHT ? own_weight[0] : own_bias[0];
    if (DTYPE == F32) return eight(uintBitsToFloat(a), uintBitsToFloat(which == WEIGHT ? own_weight[1] : own_bias[1]));
    return eight(four_halves(a.xy, DTYPE), four_halves(a.zw, DTYPE));
}
// Stores all whole eights, then the last of the row, if it is none: one thread's.
void store_loose(const uvec4 at, const uint lane, const uint groups)
{
    Loose rest;
    uint count = 0u, first = at.x + n / 8u * 8u;
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        uint g = lane + i * LANES;
        if (g < n / 8u && g < groups) loose_y(at.x + 8u * g, DTYPE, loose_words(i));
        if (g == n / 8u && g < groups) {
            rest = loose_words(i);
            count = n % 8u;
        }
    }
    loose_few_y(first, count, DTYPE, rest);
}
// The same through shared memory; `numbers`: the words are results.
void store_staged(const uvec4 at, const uint lane, const uint groups, const bool numbers, const float mean, const float factor)
{
    uint row = gl_LocalInvocationID.x / LANES * ROW_WORDS;
    [[unroll]] for (uint i = 0u; i < HELD; i++)
        [[unroll]] for (uint k = 0u; k < WORDS; k++)
            if (numbers && lane + i * LANES < groups) staged[row + (lane + i * LANES) * WORDS + k] = words[i * WORDS + k];
    if (TESTED && !numbers)                            // halves
        for (uint g = lane; g < groups; g += LANES)
            for (uint k = 0u; k < 4u; k++) {
                uint i = 8u * g + 2u * k, low = float_to_bits(result(at, min(i, n - 1u), mean, factor), DTYPE);
                staged[row + g][k] = low | float_to_bits(result(at, min(i + 1u, n - 1u), mean, factor), DTYPE) << 16;
            }
    barrier();
    if (groups > 0u) loose_row_y(row, at.x, n, DTYPE, lane, LANES);
}

void by_eights(const uvec4 at, const uint lane, const bool inside)
{
    uint all = LOOSE != 0u ? (n + 7u) / 8u : n / 8u, groups = inside ? all : 0u;
    float mean = 0.0;
    nought = uintBitsToFloat(n >> 31);
    uint last = all - 1u;                              // beyond a row its end is read again, so that no load waits for a branch
    if (LOOSE != 0u) load_loose(at, lane);
    else [[unroll]] for (uint i = 0u; i < HELD; i++)
        [[unroll]] for (uint k = 0u; k < WORDS; k++)
            words[i * WORDS + k] = x128[at.y / PER_WORD + min(lane + i * LANES, last) * WORDS + k];
    if (has(ADD)) add_residual(at, lane, groups);
    if (groups < HELD * LANES && (!ends_once() || !inside))
        [[unroll]] for (uint i = 0u; i < HELD * WORDS; i++)
            if (lane + i / WORDS * LANES >= groups) words[i] = uvec4(0u);
    if (has(MEAN)) {
        clear_places();
        [[unroll]] for (uint i = 0u; i < HELD; i++) if (is_there(i, lane, groups)) place[i % SLOTS] += sum_of(within(held(i), i, lane));
        mean = row_total() / float(n);
    }
    clear_places();
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        if (!is_there(i, lane, groups)) continue;
        float squares = squares_of(within(minus(held(i), mean), i, lane));
        place[i % SLOTS] += !has(MEAN) || lane + i * LANES < groups ? squares : 0.0;
    }
    float factor = factor_of(row_total());
    [[unroll]] for (uint i = 0u; i < HELD; i++) {
        uint g = min(lane + i * LANES, last);
        if (!is_there(i, lane, groups)) continue;
        eight v = held(i), w = eight(vec4(1.0), vec4(1.0)), b = eight(vec4(0.0), vec4(0.0));
        ask(g);
        if (has(WEIGHT)) w = eight_of(WEIGHT, weight_at, 8u * g);
        if (has(BIAS)) b = eight_of(BIAS, bias_at, 8u * g);
        v = eight(scaled(v.a, mean, factor, w.a, b.a), scaled(v.b, mean, factor, w.b, b.b));
        hold_result(i, v);
    }
    bool numbers = !TESTED || all_numbers();           // nothing is stored yet, so that what is not can be made again
    if (STAGED != 0u) {
        store_staged(at, lane, groups, numbers, mean, factor);
        return;
    }
    if (LOOSE != 0u && (BESIDES & 2u) == 0u) store_loose(at, lane, numbers ? groups : 0u);
    else [[unroll]] for (uint i = 0u; i < HELD; i++)
        if (numbers && lane + i * LANES < groups)
            [[unroll]] for (uint k = 0u; k < WORDS; k++)
                y128[at.x / PER_WORD + (lane + i * LANES) * WORDS + k] = words[i * WORDS + k];
    if (TESTED) for (uint g = numbers ? groups : lane; g < groups; g += LANES) finish(at, 8u * g, mean, factor);
}

#else
// The eight from element i on, less the mean; 0 behind the row's end.
eight values(const uvec4 at, const uint i, const float mean)
{
    eight v = eight(vec4(0.0), vec4(0.0));
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        if (i + k < n) v.a[k] = value(at, i + k) - mean;
        if (i + k + 4u < n) v.b[k] = value(at, i + k + 4u) - mean;
    }
    return v;
}
float total_of(const uvec4 at, const uint lane, const uint count, const float mean, const bool squares)
{
    clear_places();
    for (uint first = 8u * lane; first < count; first += 8u * LANES * SLOTS)
        [[unroll]] for (uint s = 0u; s < SLOTS; s++)
            if (first + 8u * s * LANES < count) {
                eight v = values(at, first + 8u * s * LANES, mean);
                place[s] += squares ? squares_of(v) : sum_of(v);
            }
    return row_total();
}

void by_elements(const uvec4 at, const uint lane, const bool inside)
{
    uint count = inside ? n : 0u;
    float mean = 0.0;
    if (has(ADD)) {                                    // by those who read it
        for (uint first = 8u * lane; first < count; first += 8u * LANES)
            for (uint i = first; i < min(first + 8u, count); i++)
                storef_h(at.w + i, DTYPE,
                         loadf_x(at.y + i * x_step, DTYPE) + loadf_residual(at.z + i * residual_step, DTYPE));
    }
    if (has(MEAN)) mean = total_of(at, lane, count, 0.0, false) / float(n);
    float factor = factor_of(total_of(at, lane, count, mean, true));
    for (uint first = 8u * lane; first < count; first += 8u * LANES) finish(at, first, mean, factor);
}
#endif

void main()
{
    uint thread = gl_LocalInvocationID.x, lane = thread & (LANES - 1u);
    uint row = group_index() * (gl_WorkGroupSize.x / LANES) + thread / LANES;
    uvec4 at = locate(min(row, rows - 1u));
#ifdef BY_EIGHTS
    by_eights(at, lane, row < rows);
#else
    by_elements(at, lane, row < rows);
#endif
}
