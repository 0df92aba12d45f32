#version 460
#extension GL_GOOGLE_include_directive : require
// Rotary position embedding of (batch, heads, tokens, width), any strides on both sides. LANES threads share one token of
// one batch for some heads, so that an angle is computed once for all of them. NORM: RMS-normalises each row first
// (then width = dims, and one thread's elements are all it needs: LANES * 8 >= dims), with the bits that norm.comp gives.
layout(constant_id = 1) const uint LANES = 16;
layout(constant_id = 2) const uint BY_FOUR = 0;        // four pairs a thread and step, aligned; else one
layout(constant_id = 3) const uint DTYPE = 10;
layout(constant_id = 4) const uint NORM = 0;           // 1: RMS norm in front, 2: with a weight
#include "rows.glsl"
//! enum ROPE_: flags
const uint TRADITIONAL = 1u;                            // pairs (2j, 2j + 1), else (j, j + dims / 2)
const uint FREQS = 2u, OFFSETS = 4u;                    // frequencies, offsets from arrays
const uint LATE = 8u;                                   // instead of offsets: what is added to y_at and offset
BUFFER(0, y)
BUFFER(1, x)
BUFFER(2, offsets)
BUFFER(3, freqs)
BUFFER(4, weight)
ACCESS(y)
ACCESS(x)
ACCESS(weight)

layout(push_constant) uniform rope_push {
    uint batches, heads, tokens, width, dims, heads_each;
    uint y_at, x_at, offsets_at, freqs_at, weight_at;
    uint y_stride[4], x_stride[4];                      // batch, head, token, feature
    uint offsets_step, freqs_step, flags;
    int offset;
    float scale, base_high, base_low, eps;              // base_high + base_low: -log2(base) / (dims / 2)
};
bool has(const uint flag) { return (flags & flag) != 0u; }

#include "rope.glsl"

vec4 normed(const vec4 v, const float factor, const uint feature)
{
    precise vec4 r = v * factor;
    if (NORM == 2u) r = r * loadf4_weight((weight_at + feature) / 4u, DTYPE);
    [[unroll]] for (uint i = 0u; i < 4u; i++) r[i] = bits_to_float(float_to_bits(r[i], DTYPE), DTYPE);
    return r;
}

// The sum of a row's squares by norm.comp's tree, whose places are eights: where a thread's fours are not neighbours, two
// threads' make one. All threads of the workgroup call it.
shared vec4 fours[gl_WorkGroupSize.x / 2u + 1u];
float four_squares(const vec4 v)
{
    precise vec4 r = v * v;
    precise float sum = (r.x + r.y) + (r.z + r.w);
    return sum;
}
float row_squares(const vec4 a, const vec4 b)
{
    uint thread = gl_LocalInvocationID.x, lane = thread & (LANES - 1u), first = 2u * (thread - lane);
    bool apart = !has(TRADITIONAL) && 8u * lane < dims;
    uint i = first + (apart ? lane : 2u * lane), j = first + (apart ? dims / 8u + lane : 2u * lane + 1u);
    vec4 sum = vec4(0.0);
    barrier();
    fours[i / 4u][i % 4u] = four_squares(a);
    fours[j / 4u][j % 4u] = four_squares(b);
    barrier();
    if (LANES < 4u || LANES > 32u) {
        uint at = first + 2u * lane;
        return row_sum(fours[at / 4u][at % 4u] + fours[at / 4u][at % 4u + 1u]);
    }
    for (uint n = 0u; n < LANES / 4u; n++) {           // as row_sum() adds them up
        vec4 v = fours[first / 4u + 2u * n], w = fours[first / 4u + 2u * n + 1u];
        sum += vec4(v.x + v.y, v.z + v.w, w.x + w.y, w.z + w.w);
    }
    return added(sum);
}

// Four pairs in each of `count` heads, of which `real` are there: all threads of a workgroup take as many steps.
void rotate_fours(const uint pair, uint y_row, uint x_row, const uint count, const uint real, const float position)
{
    uint first = has(TRADITIONAL) ? 2u * pair : pair, second = has(TRADITIONAL) ? first + 4u : first + dims / 2u;
    vec4 c, s;
    for (uint i = 0u; i < 4u; i++) {
        vec2 cs = cos_sin(position * inverse_frequency(pair + i));
        c[i] = cs.x;
        s[i] = cs.y;
    }
    for (uint k = 0u; k < count; k++, y_row += y_stride[1], x_row += x_stride[1]) {
        vec4 a = vec4(0.0), b = vec4(0.0), p, q;
        bool inside = k < real;
        if (inside) {
            a = loadf4_x((x_row + first) / 4u, DTYPE);
            b = loadf4_x((x_row + second) / 4u, DTYPE);
        }
        if (NORM != 0u) {
            float factor = norm_factor(row_squares(a, b), width, eps);
            if (inside) {
                a = normed(a, factor, first);
                b = normed(b, factor, second);
            }
        }
        if (has(TRADITIONAL)) {
            vec4 u = vec4(a.xz, b.xz), v = vec4(a.yw, b.yw), ru = turned_first(u, v, c, s), rv = turned_second(u, v, c, s);
            p = vec4(ru.x, rv.x, ru.y, rv.y);
            q = vec4(ru.z, rv.z, ru.w, rv.w);
        } else {
            p = turned_first(a, b, c, s);
            q = turned_second(a, b, c, s);
        }
        if (inside) {
            storef4_y((y_row + first) / 4u, DTYPE, p);
            storef4_y((y_row + second) / 4u, DTYPE, q);
        }
    }
}

void rotate_pair(const uint pair, uint y_row, uint x_row, const uint count, const float position)
{
    uint first = has(TRADITIONAL) ? 2u * pair : pair, second = has(TRADITIONAL) ? first + 1u : first + dims / 2u;
    vec2 cs = cos_sin(position * inverse_frequency(pair));
    vec4 c = vec4(cs.x), s = vec4(cs.y);
    for (uint k = 0u; k < count; k++, y_row += y_stride[1], x_row += x_stride[1]) {
        vec4 a = vec4(loadf_x(x_row + first * x_stride[3], DTYPE)), b = vec4(loadf_x(x_row + second * x_stride[3], DTYPE));
        storef_y(y_row + first * y_stride[3], DTYPE, turned_first(a, b, c, s).x);
        storef_y(y_row + second * y_stride[3], DTYPE, turned_second(a, b, c, s).x);
    }
}

void main()
{
    uint thread = gl_LocalInvocationID.x, lane = thread & (LANES - 1u);
    uint item = group_index() * (gl_WorkGroupSize.x / LANES) + thread / LANES;
    uint parts = (heads + heads_each - 1u) / heads_each, items = batches * tokens * parts;
    bool inside = item < items;
    item = min(item, items - 1u);
    uint head = item % parts * heads_each, token = item / parts % tokens, batch = item / parts / tokens;
    uint count = min(heads_each, heads - head);
    int at = offset + (has(OFFSETS) ? int(offsets32[offsets_at + batch * offsets_step]) : 0);
    uint y_from = y_at;
    if (has(LATE)) {
        y_from += offsets32[offsets_at];
        at += int(offsets32[offsets_at + 1u]);
    }
    float position = scale * float(int(token) + at);
    uint y_row = y_from + batch * y_stride[0] + head * y_stride[1] + token * y_stride[2];
    uint x_row = x_at + batch * x_stride[0] + head * x_stride[1] + token * x_stride[2];
    if (NORM != 0u) {
        rotate_fours(4u * lane, y_row, x_row, heads_each, inside && 8u * lane < dims ? count : 0u, position);
        return;
    }
    if (!inside) return;
    if (BY_FOUR == 1u)
        for (uint pair = 4u * lane; pair < dims / 2u; pair += 4u * LANES) rotate_fours(pair, y_row, x_row, count, count, position);
    else
        for (uint pair = lane; pair < dims / 2u; pair += LANES) rotate_pair(pair, y_row, x_row, count, position);
    for (uint i = dims + lane; i < width; i += LANES)
        for (uint k = 0u; k < count; k++)
            store_y(y_row + k * y_stride[1] + i * y_stride[3], DTYPE, load_x(x_row + k * x_stride[1] + i * x_stride[3], DTYPE));
}
