#version 460
#extension GL_GOOGLE_include_directive : require
// Fourier transforms whose length has no prime factor beyond 13 and whose elements fit into shared memory, by Stockham passes
// of radix 2 to 16; or one step of longer ones. A workgroup transforms some lines; a step's line is one of several that a row
// of the whole transform is cut into (subs), with its elements a_step apart, and the result's b_step. What is around a
// transform (packing of reals, chirps, the twiddles between steps, scaling) happens while loading and storing.
// FIXED: length, radices and flags are constants, elements stay in registers between passes, and the first and the last pass
// work on memory; else one pipeline serves all lengths, and passes go from one half of the shared memory to the other.
#include "fft_passes.glsl"

vec2 element(const uint at, const uint e) { return e < valid ? uintBitsToFloat(a64[at + e * step_a]) : vec2(0.0); }
float real(const uint at, const uint e) { return e < valid ? uintBitsToFloat(a32[at + e * step_a]) : 0.0; }

vec2 load(const uint at, const uint e)
{
    uint how = flags & LOAD;
    vec2 x;
    if (!has(ALL_IN) && e >= len + uint(how == LOAD_SPLIT)) return vec2(0.0);
    if (has(ALL_IN)) x = uintBitsToFloat(a64[at + (has(LINES_IN) ? e * step_a : e)]);
    else if (how == LOAD_COMPLEX) x = element(at, e);
    else if (how == LOAD_REAL) x = vec2(real(at, e), 0.0);
    else if (how == LOAD_PAIRS) x = vec2(real(at, 2u * e), real(at, 2u * e + 1u));
    else if (how == LOAD_HALF) x = 2u * e > len ? conjugate(bin(at, len - e, len)) : bin(at, e, len);
    else if (how == LOAD_MERGE) {
        vec2 y = bin(at, e, 2u * len), z = conjugate(bin(at, len - e, 2u * len)), odd = multiply(conjugate(root(e, 2u * len)), y - z);
        x = y + z + vec2(-odd.y, odd.x);
    } else x = split(element(at, e < len ? e : 0u), element(at, e > 0u ? len - e : 0u), e);
    if (has(SWAP_IN)) x = x.yx;
    if (has(TABLE_IN)) x = multiply(x, uintBitsToFloat(first64[offset_first + e]));
    return x;
}

void store(const uint at, const uint e, vec2 x)
{
    uint how = flags & STORE;
    if (!has(ALL_OUT) && e >= limit) return;
    if (has(SWAP_OUT)) x = x.yx;
    if (has(TABLE_OUT)) x = multiply(x, uintBitsToFloat(last64[offset_last + e]));
    if (has(SWAP_LAST)) x = x.yx;
    x *= scale;
    if (how == STORE_REAL) d32[at + e * step_d] = floatBitsToUint(x.x);
    else if (how == STORE_PAIRS) {
        d32[at + 2u * e * step_d] = floatBitsToUint(x.x);
        d32[at + (2u * e + 1u) * step_d] = floatBitsToUint(x.y);
    } else d64[at + (has(LINES_OUT) ? e * step_d : e)] = floatBitsToUint(x);
}

// Element e of line l of this workgroup.
vec2 fetch(const uint l, const uint e)
{
    uint id = group_index() * lines + l;
    if (has(ALL_IN)) id = min(id, ids - 1u);
    else if (id >= ids) return vec2(0.0);
    return load(place_in(id), number_in(sub_of(id), e));
}

void put(const uint l, const uint e, const vec2 x)
{
    uint id = group_index() * lines + l;
    if (id < ids) store(place_out(id), number_out(sub_of(id), e), x);
}

// The root whose powers a line's elements are multiplied with before they are stored.
vec2 turn_of(const uint l, const uint e) { return root(sub_of(group_index() * lines + l) % inner * e, turn); }

// The line of number q among all lines' `many` each, and which of that line's it is.
uvec2 line_and_rest(const uint q, const uint many, const bool by_line)
{
    if (lines == 1u) return uvec2(0u, q);
    return by_line ? uvec2(q % lines, q / lines) : uvec2(q / many, q % many);
}

// All of this workgroup's elements from shared memory to the result.
void put_all(const uint base)
{
    bool halves = (flags & STORE) == STORE_SPLIT;
    uint many = halves ? size / 2u + 1u : size, total = many * lines;
    for (uint i = gl_LocalInvocationID.x; i < total; i += gl_WorkGroupSize.x) {
        uvec2 at = line_and_rest(i, many, has(LINES_OUT));
        uint l = at.x, e = at.y;
        vec2 x = staged[base + slot(l, e)], y, odd;
        if (!halves) { put(l, e, has(TURN) ? multiply(x, turn_of(l, e)) : x); continue; }
        y = staged[base + slot(l, e > 0u ? size - e : 0u)];      // two elements of the half spectrum from these
        odd = 0.5 * (x - conjugate(y));
        odd = multiply(root(e, 2u * size), vec2(odd.y, -odd.x));
        x = 0.5 * (x + conjugate(y));
        put(l, e, x + odd);
        if (2u * e != size) put(l, size - e, conjugate(x - odd));
    }
}

#ifdef FIXED
const bool STAGED_OUT = (FLAGS & STORE) == STORE_SPLIT ? true : (FLAGS & SHORT) != 0u ? R1 == 1u : false;

// The workgroup's group that this thread holds at v[o]; by_line: neighbours are those of other lines. z: there is one.
uvec3 group_at(const uint o, const uint r, const bool by_line)
{
    uint q = gl_LocalInvocationID.x + o / r * gl_WorkGroupSize.x, many = size / r;
    return uvec3(line_and_rest(q, many, by_line), EXACT || q < many * lines ? 1u : 0u);
}

// From groups of `before` to those of r elements, through shared memory.
void exchange(const uint before, const uint r, const uint done, const bool from_line, const bool by_line)
{
    if (done > 1u) barrier();
    if ((FLAGS & HALVES) == 0u) {
        to_shared(before, done, from_line);
        barrier();
        from_shared(r, done * before, by_line);
        return;
    }
    [[unroll]] for (uint y = 0; y < 2u; y++) {
        if (y > 0u) barrier();
        [[unroll]] for (uint o = 0; o < HELD; o += before) {
            uvec3 g = group_at(o, before, from_line);
            uint to = slot(g.x, target(before, done, g.y));
            if (g.z != 0u) [[unroll]] for (uint i = 0; i < before; i++) parts[to + beyond(i * done)] = v[o + order(before, i)][y];
        }
        barrier();
        [[unroll]] for (uint o = 0; o < HELD; o += r) {
            uvec3 g = group_at(o, r, by_line);
            if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) v[o + i][y] = parts[slot(g.x, g.y) + beyond(i * (size / r))];
        }
    }
    [[unroll]] for (uint o = 0; o < HELD; o += r) turn_group(o, r, done * before, group_at(o, r, by_line).y);
}

// Pairs' elements from a half spectrum, two at a time, to shared memory: the reverse of what put_all does.
void merge_all()
{
    const uint many = SIZE / 2u + 1u, total = many * LINES;
    [[unroll]] for (uint k = 0; k <= HELD / 2u; k++) {
        uvec2 g = line_and_rest(min(gl_LocalInvocationID.x + k * gl_WorkGroupSize.x, total - 1u), many, has(LINES_IN));
        uint at = place_in(min(group_index() * LINES + g.x, ids - 1u));
        v[2u * k] = bin(at, g.y, 2u * SIZE);
        v[2u * k + 1u] = conjugate(bin(at, SIZE - g.y, 2u * SIZE));
    }
    [[unroll]] for (uint k = 0; k <= HELD / 2u; k++) {
        uint i = gl_LocalInvocationID.x + k * gl_WorkGroupSize.x;
        uvec2 g = line_and_rest(i, many, has(LINES_IN));
        vec2 x = v[2u * k] + v[2u * k + 1u], odd = multiply(conjugate(root(g.y, 2u * SIZE)), v[2u * k] - v[2u * k + 1u]);
        vec2 y = vec2(x.x + odd.y, odd.x - x.y);
        x += vec2(-odd.y, odd.x);
        if (i >= total) break;
        staged[slot(g.x, g.y)] = has(SWAP_IN) ? x.yx : x;
        if (g.y > 0u) staged[slot(g.x, SIZE - g.y)] = has(SWAP_IN) ? y.yx : y;
    }
}

void first_pass(const bool by_line)
{
    if (has(MERGED) || has(SHORT)) {
        if (has(MERGED)) merge_all();
        else load_all();
        barrier();
        from_shared(R0, 1u, by_line);
        butterflies(R0);
        if (R1 > 1u) barrier();
        return;
    }
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        if (g.z == 0u) continue;
        [[unroll]] for (uint i = 0; i < R0; i++) v[o + i] = fetch(g.x, g.y + i * (size / R0));
    }
    butterflies(R0);
}

// The last pass, of radix r: results are complete in registers.
void finish(const uint r, const uint done, const bool by_line)
{
    if (STAGED_OUT) {
        if (done > 1u || has(SHORT)) barrier();
        to_shared(r, done, by_line);
        barrier();
        put_all(0u);
        return;
    }
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        uint to = target(r, done, g.y);
        if (g.z == 0u) continue;
        if (has(TURN)) twiddle(o, r, turn_of(g.x, to), turn_of(g.x, done), true, true);
        [[unroll]] for (uint i = 0; i < r; i++) put(g.x, to + i * done, v[o + order(r, i)]);
    }
}

// One more pass, of radix r, of what radix `before` left; `after`: the next radix, 1 where there is none.
#define NEXT(before, done, r, after) { \
    const bool by_line = after == 1u && has(LINES_OUT) && !STAGED_OUT; \
    exchange(before, r, done, done == 1u && has(LINES_IN), by_line); \
    butterflies(r); \
    if (after == 1u) { finish(r, done * before, by_line); return; } }

void main()
{
    first_pass(has(LINES_IN));
    if (R1 == 1u) { finish(R0, 1u, has(LINES_IN)); return; }
    NEXT(R0, 1u, R1, R2)
    NEXT(R1, R0, R2, R3)
    NEXT(R2, R0 * R1, R3, R4)
    NEXT(R3, R0 * R1 * R2, R4, R5)
    NEXT(R4, R0 * R1 * R2 * R3, R5, R6)
    NEXT(R5, R0 * R1 * R2 * R3 * R4, R6, R7)
    NEXT(R6, R0 * R1 * R2 * R3 * R4 * R5, R7, 1u)
}
#else
#define GROUP(R) case R: \
    get(0u, R, done, g, base); \
    butterfly##R(0u); \
    set(0u, R, done, g, ROOM - base); \
    break;

void main()
{
    uint total = size * lines, done = 1u, base = 0u;
    bool moves = radices_ == 0u && (flags & STORE) != STORE_SPLIT;     // what is around a transform without one
    for (uint i = gl_LocalInvocationID.x; i < total; i += gl_WorkGroupSize.x) {
        uint l = has(LINES_IN) ? i % lines : i / size, e = has(LINES_IN) ? i / lines : i % size;
        if (moves) put(l, e, fetch(l, e));
        else staged[slot(l, e)] = fetch(l, e);
    }
    if (moves) return;
    for (uint list = radices_; list != 0u; list >>= 4) {
        uint r = (list & 15u) + 1u, many = size / r;
        barrier();
        for (uint q = gl_LocalInvocationID.x; q < many * lines; q += gl_WorkGroupSize.x) {
            uvec2 g = uvec2(q / many, q % many);
            switch (r) { GROUP(2) GROUP(3) GROUP(4) GROUP(5) GROUP(7) GROUP(8) GROUP(9) GROUP(10) GROUP(11) GROUP(13) GROUP(16) }
        }
        base = ROOM - base;
        done *= r;
    }
    barrier();
    put_all(base);
}
#endif
