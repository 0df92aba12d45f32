#version 460
#extension GL_GOOGLE_include_directive : require
// fft.comp's transforms of a fixed length, in more ways: rows that are longer than half the shared memory holds, those of reals
// whose spectra are split and merged on the way, the next rows loaded while these are transformed, and whole convolutions.
#include "fft_passes.glsl"

uint step_in(const uint e) { return has(LINES_IN) ? e * step_a : e; }

// Without branches: there is an element.
vec2 element(const uint at, const uint e)
{
    vec2 x = uintBitsToFloat(a64[at + step_in(has(ALL_IN) ? e : min(e, valid - 1u))]);
    return has(ALL_IN) || e < valid ? x : vec2(0.0);
}
float real(const uint at, const uint e)
{
    float x = uintBitsToFloat(a32[at + step_in(min(e, valid - 1u))]);
    return e < valid ? x : 0.0;
}

vec2 load(const uint at, const uint number)
{
    uint how = flags & LOAD, e = has(ALL_IN) ? number : min(number, how == LOAD_SPLIT ? len : len - 1u);
    vec2 x;
    if (how == LOAD_COMPLEX) x = element(at, e);
    else if (how == LOAD_REAL) x = vec2(real(at, e), 0.0);
    else if (how == LOAD_PAIRS) x = vec2(real(at, 2u * e), real(at, 2u * e + 1u));
    else if (how == LOAD_HALF) x = 2u * e > len ? conjugate(bin(at, len - e, len)) : bin(at, e, len);
    else if (how == LOAD_MERGE) {
        vec2 y = bin(at, e, 2u * len), z = conjugate(bin(at, len - e, 2u * len)), odd = multiply(conjugate(root(e, 2u * len)), y - z);
        x = y + z + vec2(-odd.y, odd.x);
    } else x = split(element(at, e < len ? e : 0u), element(at, e > 0u ? len - e : 0u), e);
    if (has(SWAP_IN)) x = x.yx;
    if (has(TABLE_IN)) x = multiply(x, uintBitsToFloat(first64[offset_first + e]));
    return e == number ? x : vec2(0.0);
}

// What is stored of element e, but for what is beyond the limit.
vec2 complete(uint e, vec2 x)
{
    if (has(SWAP_OUT)) x = x.yx;
    if (has(TABLE_OUT)) {
        e = has(ALL_OUT) ? e : min(e, limit - 1u);
        x = multiply(x, uintBitsToFloat(has(CONVOLVED) ? first64[offset_first + e] : last64[offset_last + e]));
    }
    return (has(SWAP_LAST) ? x.yx : x) * scale;
}

void store(const uint at, const uint e, const vec2 x)
{
    uint how = flags & STORE;
    if (!has(ALL_OUT) && e >= limit) return;
    if (how == STORE_REAL) d32[at + e * step_d] = floatBitsToUint(x.x);
    else if (how == STORE_PAIRS) {
        d32[at + 2u * e * step_d] = floatBitsToUint(x.x);
        d32[at + (2u * e + 1u) * step_d] = floatBitsToUint(x.y);
    } else d64[at + (has(LINES_OUT) ? e * step_d : e)] = floatBitsToUint(x);
}

uint group;                                            // of lines: the workgroup's number, with AHEAD one after the other

// The number of this workgroup's line l among all lines; not below ids: there is none. Of pairs of lines, the first of a row is
// that of two which are their own partners.
uint line_id(const uint l)
{
    uint pairs = (subs + 1u) / 2u, half_of = lines / 2u, p, t, row, sub;
    if (!has(PAIRED)) return group * lines + l;
    p = group * half_of + l % half_of;
    t = has(ACROSS) ? p / c2 : p % pairs;
    row = has(ACROSS) ? p % c2 : p / pairs;
    sub = l < half_of ? t : t > 0u ? subs - t : subs / 2u;
    if (has(ACROSS) && t >= pairs || l >= half_of && t == 0u && subs % 2u > 0u) return ids;
    return has(ACROSS) ? sub * c2 + row : row * subs + sub;
}

// Item k of pair l: two elements' places in shared memory, the first one's number e in its row (the other's is len - e), and that
// of a line of the row; not below ids: there is none. Without PAIRED both elements are of line l.
uvec4 pair_at(const uint l, uint k)
{
    uint id = line_id(l), other = l + lines / 2u, sub = has(PAIRED) && id < ids ? sub_of(id) : 0u;
    if (sub > 0u) return uvec4(slot(l, k), slot(other, size - 1u - k), sub + subs * k, k < size ? id : ids);
    if (!has(PAIRED) || 2u * k <= size) return uvec4(slot(l, k), slot(l, k > 0u ? size - k : 0u), subs * k, id);
    k -= size / 2u + 1u;
    return uvec4(slot(other, k), slot(other, size - 1u - k), subs / 2u + subs * k, subs % 2u > 0u ? ids : id);
}
uint pairs_of_lines() { return has(PAIRED) ? lines / 2u : lines; }
uint items_of_pair() { return has(PAIRED) ? size + 1u : size / 2u + 1u; }

// Element e of line l of this workgroup.
vec2 fetch(const uint l, const uint e)
{
    uint id = line_id(l);
    if (has(ALL_IN)) id = min(id, ids - 1u);
    else if (id >= ids) return vec2(0.0);
    return load(place_in(id), number_in(sub_of(id), e));
}

// Result e of line l, complete.
void put(const uint l, const uint e, const vec2 x)
{
    uint id = line_id(l);
    if (id < ids) store(place_out(id), number_out(sub_of(id), e), x);
}

vec2 complete(const uint l, const uint e, const vec2 x) { return complete(number_out(sub_of(line_id(l)), e), x); }

// The root whose powers a line's elements are multiplied with before they are stored.
vec2 turn_of(const uint l, const uint e) { return root(sub_of(line_id(l)) % inner * e, turn); }

// The line of number q among `count` lines' `many` each, and which of that line's it is.
uvec2 line_and_rest(const uint q, const uint count, const uint many, const bool by_line)
{
    if (count == 1u) return uvec2(0u, q);
    return by_line ? uvec2(q % count, q / count) : uvec2(q / many, q % many);
}

// All of this workgroup's elements from shared memory to the result; two of a half spectrum from two each.
void split_all(const uint base)
{
    uint count = pairs_of_lines(), many = items_of_pair(), total = count * many, n = size * subs;
    for (uint i = gl_LocalInvocationID.x; i < total; i += gl_WorkGroupSize.x) {
        uvec2 g = line_and_rest(i, count, many, has(LINES_OUT));
        uvec4 p = pair_at(g.x, g.y);
        vec2 x, y, odd;
        uint at;
        if (p.w >= ids) continue;
        x = staged[base + p.x];
        y = conjugate(staged[base + p.y]);
        odd = 0.5 * vec2(x.y - y.y, y.x - x.x);
        x = 0.5 * (x + y);
        at = place_out(p.w);
        odd = multiply(root(p.z, 2u * n), odd);
        store(at, p.z, (x + odd) * scale);
        if (2u * p.z != n) store(at, n - p.z, conjugate(x - odd) * scale);
    }
}

void put_all(const uint base)
{
    uint total = size * lines;
    if ((flags & STORE) == STORE_SPLIT) { split_all(base); return; }
    for (uint i = gl_LocalInvocationID.x; i < total; i += gl_WorkGroupSize.x) {
        uvec2 g = line_and_rest(i, lines, size, has(LINES_OUT));
        vec2 x = staged[base + slot(g.x, g.y)];
        put(g.x, g.y, complete(g.x, g.y, has(TURN) ? multiply(x, turn_of(g.x, g.y)) : x));
    }
}

const bool STAGED_OUT = (FLAGS & STORE) == STORE_SPLIT ? (FLAGS & HALVES) == 0u
                      : (FLAGS & SHORT) != 0u ? R1 == 1u : false;

// The workgroup's group that this thread holds at v[o]; by_line: neighbours are those of other lines. z: there is one.
uvec3 group_at(const uint o, const uint r, const bool by_line)
{
    uint q = gl_LocalInvocationID.x + o / r * gl_WorkGroupSize.x, many = size / r;
    return uvec3(line_and_rest(q, lines, many, by_line), EXACT || q < many * lines ? 1u : 0u);
}

// From groups of `before` to those of r elements, through shared memory; one part of them after the other through half of it.
#define EXCHANGE_PART(c) \
    [[unroll]] for (uint o = 0; o < HELD; o += before) { \
        uvec3 g = group_at(o, before, from_line); \
        uint to = slot(g.x, target(before, done, g.y)); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < before; i++) parts[to + beyond(i * done)] = v[o + order(before, i)].c; \
    } \
    barrier(); \
    [[unroll]] for (uint o = 0; o < HELD; o += r) { \
        uvec3 g = group_at(o, r, by_line); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) v[o + i].c = parts[slot(g.x, g.y) + beyond(i * (size / r))]; \
    }

void exchange(const uint before, const uint r, const uint done, const bool from_line, const bool by_line)
{
    uint turned = done * before < SIZE ? done * before : 1u;       // at the beginning of another transform nothing
    if (done > 1u || has(CONVOLVED) || has(AHEAD)) barrier();
    if ((FLAGS & HALVES) == 0u) {
        to_shared(before, done, from_line);
        barrier();
        from_shared(r, turned, by_line);
        return;
    }
    EXCHANGE_PART(x)
    barrier();
    EXCHANGE_PART(y)
    [[unroll]] for (uint o = 0; o < HELD; o += r) turn_group(o, r, turned, group_at(o, r, by_line).y);
}

// Loads for the first pass of the next lines, while these are transformed; what load makes of them.
vec2 ahead[26], last_bin;

vec2 raw(const uint at, uint e)
{
    e = step_in(has(ALL_IN) ? e : min(e, valid - 1u));
    return (flags & LOAD) == LOAD_REAL ? vec2(uintBitsToFloat(a32[at + e]), 0.0) : uintBitsToFloat(a64[at + e]);
}

void look_ahead(const bool by_line)
{
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        uint at = place_in(min(line_id(g.x), ids - 1u));
        if (g.z == 0u) continue;
        [[unroll]] for (uint i = 0; i < R0; i++) ahead[o + i] = raw(at, g.y + i * (SIZE / R0));
        if (has(MERGED) && g.y == 0u) last_bin = raw(at, SIZE);
    }
}

void take(const bool by_line)
{
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        if (g.z == 0u) continue;
        [[unroll]] for (uint i = 0; i < R0; i++) {
            uint e = g.y + i * (SIZE / R0);
            vec2 x = has(ALL_IN) || e < min(valid, len) ? ahead[o + i] : vec2(0.0);
            if (has(MERGED) && e == 0u) x.y = 0.0;
            if (has(SWAP_IN) && !has(MERGED)) x = x.yx;
            if (has(TABLE_IN)) x = multiply(x, uintBitsToFloat(first64[offset_first + (has(ALL_IN) ? e : min(e, len - 1u))]));
            v[o + i] = x;
        }
    }
    last_bin = has(ALL_IN) || SIZE < valid ? last_bin : vec2(0.0);
}

// Pairs' elements from a half spectrum, for the first pass; the partners of what a thread loads come by way of shared memory.
uint partner(uint l, const uint e)                           // whose number is that of the row less e's; e > 0 in the row
{
    uint sub = has(PAIRED) ? sub_of(line_id(l)) : 0u;
    if (sub > 0u && 2u * sub != SUBS) l = l < LINES / 2u ? l + LINES / 2u : l - LINES / 2u;
    return slot(l, sub > 0u ? SIZE - 1u - e : SIZE - e);
}

#define SEND(to, part) \
    [[unroll]] for (uint o = 0; o < HELD; o += R0) { \
        uvec3 g = group_at(o, R0, by_line); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < R0; i++) to[slot(g.x, g.y) + beyond(i * (SIZE / R0))] = v[o + i]part; \
    } \
    barrier(); \
    [[unroll]] for (uint o = 0; o < HELD; o += R0) { \
        uvec3 g = group_at(o, R0, by_line); \
        bool first = g.y == 0u && sub_of(min(line_id(g.x), ids)) == 0u; \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < R0; i++) \
            if (i > 0u || !first) u[o + i]part = to[partner(g.x, g.y + i * (SIZE / R0))]; \
    } \
    barrier();

void merge(const bool by_line, const vec2 last_bin)
{
    const uint n = SIZE * SUBS;
    vec2 u[26];
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        uint id = min(line_id(g.x), ids - 1u), sub = sub_of(id), at = place_in(id);
        if (g.z == 0u) continue;
        if (!has(AHEAD)) [[unroll]] for (uint i = 0; i < R0; i++) v[o + i] = bin(at, sub + SUBS * (g.y + i * (SIZE / R0)), 2u * n);
        u[o] = has(AHEAD) ? vec2(last_bin.x, 0.0) : sub == 0u && g.y == 0u ? bin(at, n, 2u * n) : vec2(0.0);
    }
    if (has(AHEAD)) barrier();
    if ((FLAGS & HALVES) == 0u) { SEND(staged, ) }
    else {
        SEND(parts, .x)
        SEND(parts, .y)
    }
    [[unroll]] for (uint o = 0; o < HELD; o += R0) {
        uvec3 g = group_at(o, R0, by_line);
        if (g.z == 0u) continue;
        [[unroll]] for (uint i = o; i < o + R0; i++) {
            vec2 x = v[i], y = conjugate(u[i]);
            v[i] = vec2(y.y - x.y, x.x - y.x);
            u[i] = x + y;
        }
        twiddle(o, R0, conjugate(root(sub_of(min(line_id(g.x), ids)) + SUBS * g.y, 2u * n)), conjugate(root(1u, 2u * R0)), false, true);
        [[unroll]] for (uint i = o; i < o + R0; i++) v[i] = has(SWAP_IN) ? (u[i] + v[i]).yx : u[i] + v[i];
    }
}

uint groups() { return gl_NumWorkGroups.x * gl_NumWorkGroups.y * gl_NumWorkGroups.z; }

void first_pass(const bool by_line)
{
    if (has(AHEAD)) {
        uint here = group, more = groups();
        take(by_line);
        vec2 bin = last_bin;
        if ((group + more) * LINES < ids) {
            group += more;
            look_ahead(by_line);
            group = here;
        }
        if (has(MERGED)) merge(by_line, bin);
        butterflies(R0);
        return;
    }
    if (has(MERGED)) {
        merge(by_line, vec2(0.0));
        butterflies(R0);
        return;
    }
    if (has(SHORT)) {
        load_all();
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

// What split_all does, of elements in registers whose partners come by way of half the shared memory.
#define PARTNERS(c) \
    [[unroll]] for (uint o = 0; o < HELD; o += r) { \
        uvec3 g = group_at(o, r, by_line); \
        uint to = slot(g.x, target(r, done, g.y)); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) parts[to + beyond(i * done)] = v[o + order(r, i)].c; \
    } \
    barrier(); \
    [[unroll]] for (uint o = 0; o < HELD; o += r) { \
        uvec3 g = group_at(o, r, by_line); \
        uint to = target(r, done, g.y); \
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) \
            u[o + order(r, i)].c = parts[slot(g.x, to + i * done > 0u ? size - to - i * done : 0u)]; \
    }

void split_held(const uint r, const uint done, const bool by_line)
{
    vec2 u[26];
    barrier();
    PARTNERS(x)
    barrier();
    PARTNERS(y)
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        uint to = target(r, done, g.y);
        if (g.z == 0u) continue;
        if (to == 0u) put(g.x, size, vec2(v[o].x - v[o].y, 0.0) * scale);
        [[unroll]] for (uint i = o; i < o + r; i++) {
            vec2 x = v[i], y = conjugate(u[i]);
            v[i] = 0.5 * vec2(x.y - y.y, y.x - x.x);
            u[i] = 0.5 * (x + y);
        }
        twiddle(o, r, root(to, 2u * size), root(done, 2u * size), true, true);
        [[unroll]] for (uint i = 0; i < r; i++) put(g.x, to + i * done, (u[o + order(r, i)] + v[o + order(r, i)]) * scale);
    }
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
    if ((FLAGS & STORE) == STORE_SPLIT) { split_held(r, done, by_line); return; }
    [[unroll]] for (uint o = 0; o < HELD; o += r) {    // tables are read before anything is written
        uvec3 g = group_at(o, r, by_line);
        uint to = target(r, done, g.y);
        if (g.z != 0u && has(TURN)) twiddle(o, r, turn_of(g.x, to), turn_of(g.x, done), true, true);
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) v[o + order(r, i)] = complete(g.x, to + i * done, v[o + order(r, i)]);
    }
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < r; i++) put(g.x, target(r, done, g.y) + i * done, v[o + order(r, i)]);
    }
}

const uint LAST = R1 == 1u ? R0 : R2 == 1u ? R1 : R3 == 1u ? R2 : R4 == 1u ? R3 : R5 == 1u ? R4 : R6 == 1u ? R5 : R7 == 1u ? R6 : R7;
const bool LAST_BY_LINE = R1 == 1u ? (FLAGS & LINES_IN) != 0u : (FLAGS & LINES_OUT) != 0u && !STAGED_OUT;

// The second transform's beginning: the first one times a table, exchanged.
void begin_again()
{
    [[unroll]] for (uint o = 0; o < HELD; o += LAST) {
        uvec3 g = group_at(o, LAST, LAST_BY_LINE);
        uint to = offset_last + g.y;
        if (g.z != 0u) [[unroll]] for (uint i = 0; i < LAST; i++) {
            uint at = o + order(LAST, i);
            v[at] = multiply(v[at], uintBitsToFloat(last64[to + i * (SIZE / LAST)])).yx;
        }
    }
    exchange(LAST, R0, SIZE / LAST, LAST_BY_LINE, has(LINES_IN));
    butterflies(R0);
}

// One more pass, of radix r, of what radix `before` left; `after`: the next radix, 1 where there is none.
#define NEXT(before, done, r, after) if (r > 1u) { \
    exchange(before, r, done, done == 1u && has(LINES_IN), after == 1u && LAST_BY_LINE); \
    butterflies(r); }

void passes()
{
    NEXT(R0, 1u, R1, R2)
    NEXT(R1, R0, R2, R3)
    NEXT(R2, R0 * R1, R3, R4)
    NEXT(R3, R0 * R1 * R2, R4, R5)
    NEXT(R4, R0 * R1 * R2 * R3, R5, R6)
    NEXT(R5, R0 * R1 * R2 * R3 * R4, R6, R7)
    NEXT(R6, R0 * R1 * R2 * R3 * R4 * R5, R7, 1u)
}

void main()
{
    bool again = false;
    group = group_index();
    if (has(STRAIGHT)) {                               // nothing is done twice: no loop around it
        first_pass(has(LINES_IN));
        passes();
        finish(LAST, SIZE / LAST, LAST_BY_LINE);
        return;
    }
    if (has(AHEAD)) look_ahead(has(LINES_IN));
    do {
        first_pass(has(LINES_IN));
        do {
            passes();
            again = has(CONVOLVED) && !again;
            if (again) begin_again();
        } while (again);
        finish(LAST, SIZE / LAST, LAST_BY_LINE);
        group += groups();
    } while (has(AHEAD) && group * LINES < ids);
}
