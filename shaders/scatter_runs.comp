#version 460
#extension GL_GOOGLE_include_directive : require
// Windows combined in the order of their keys, which are sorted: a thread takes one unit (WIDTH elements) of `each`
// entries. A run of up to in_order() entries is served by the thread where it begins, one after the other on top of what the
// result holds, as if there were no other order. Of longer runs, the parts are combined first, by level: each thread leaves
// what reaches over its edges in two slots, as float32 or integers, which are the next level's entries (key, is it filled).
layout(constant_id = 1) const uint OP = 0;
layout(constant_id = 2) const uint TO = 10;
layout(constant_id = 3) const uint WIDTH = 1;         // 1, or as many elements as are 16 bytes
layout(constant_id = 4) const bool UPPER = false;     // not the first level
layout(constant_id = 5) const uint BATCH = 4;         // entries that are loaded at once
layout(constant_id = 6) const bool LOOSE = false;     // windows of shape[0] elements side by side, from anywhere: units are the 16 bytes
                                                       // of the result that hold them, so there may be one more; strides count elements
#include "combine.glsl"
#include "words.glsl"
BUFFER(0, dst)
BUFFER(1, src)
BUFFER(2, key)
BUFFER(3, place)
BUFFER(4, part)
BUFFER(5, slot)
ACCESS(dst)
ACCESS(src)

layout(push_constant) uniform scatter_push {
    uint n, units, each, flags, none, scale;           // entries; units of a window; a key counts `scale` units
    uint key_first, key_count;                         // the keys of the windows that begin in what is bound of the result
    uint dst_at, src_at, key_at, place_at;
    uint ndim, shape[4], stride[4];                    // of a window in the result, in units
};

//! enum SCATTER_: a flag: entry i is window i
const uint IN_ORDER = 2;

const uint SHORT = 64, FEW = 256;                      // SHORT: at least `each` of the first level

uint unit_at, chunk;                                   // of this thread
uvec2 sums[WIDTH];

uint key_of(const uint i) { return i >= n ? none : UPPER ? key64[key_at + i].x : key32[key_at + i]; }

uint in_window(uint u)
{
    uint at = 0u;
    [[unroll]] for (int d = 3; d >= 0; d--)
        if (d < int(ndim)) {
            uint q = u / shape[d];
            at += (u - q * shape[d]) * stride[d];
            u = q;
        }
    return at;
}

// Element k of 16 bytes, or the only one.
uvec2 element(const uvec4 unit, const uint k)
{
    if (is_wide(TO)) return WIDTH == 1u || k == 0u ? unit.xy : unit.zw;
    if (WIDTH == 1u) return uvec2(unit.x, 0u);
    return uvec2(is_small(TO) ? unit[k / 4u] >> (k % 4u * 8u) & 0xffu : is_half(TO) ? unit[k / 2u] >> (k % 2u * 16u) & 0xffffu : unit[k], 0u);
}
void place_element(inout uvec4 unit, const uint k, const uvec2 raw)
{
    if (is_wide(TO)) {
        if (WIDTH == 1u || k == 0u) unit.xy = raw;
        else unit.zw = raw;
    } else if (WIDTH == 1u) unit.x = raw.x;
    else if (is_small(TO)) unit[k / 4u] |= raw.x << (k % 4u * 8u);
    else if (is_half(TO)) unit[k / 2u] |= raw.x << (k % 2u * 16u);
    else unit[k] = raw.x;
}

// The first element or unit of the window of a key, and where this thread's is; of one that is bound, whatever the key is.
uint window_of(const uint key) { return dst_at + min(key - key_first, key_count - 1u) * scale; }
uint place_of(const uint key, const uint window)
{
    uint first = window_of(key);
    return LOOSE ? first - first % WIDTH + unit_at * WIDTH : first + window;
}
// LOOSE: elements from the window's first to this thread's, below 0 where its unit begins in front of the window. Of windows that are
// not bound, too: their parts are left for whom they are.
int into_window(const uint key) { return int(unit_at * WIDTH) - int((dst_at + (key - key_first) * scale) % WIDTH); }

// As many elements of window i as a unit of the result has, from two of the source.
uvec4 load_loose(const uint i, const uint key)
{
    int from = into_window(key);
    uint first = src_at + i * shape[0], at = first + uint(from), last = (src_at + n * shape[0] - 1u) / WIDTH;
    bool in_front = from < 0 && first < uint(-from);   // of the source's first: then `at` wraps around, as multiples of WIDTH do
    uint q = in_front ? 0u : at / WIDTH, next = in_front ? 0u : q + 1u;
    return elements_from(WIDTH, at % WIDTH, src128[min(q, last)], src128[min(next, last)]);
}
uvec4 load_unit(const uint i, const uint key)
{
    uint at = src_at + i * units + unit_at;
    if (LOOSE) return load_loose(i, key);
    if (WIDTH > 1u) return src128[at];
    return is_wide(TO) ? uvec4(src64[at], 0u, 0u) : uvec4(load_src(at, TO), 0u, 0u, 0u);
}
uvec4 load_result(const uint at)
{
    if (LOOSE) return dst128[min(at, dst_at + (key_count - 1u) * scale + shape[0] - 1u) / WIDTH];
    if (WIDTH > 1u) return dst128[at];
    return is_wide(TO) ? uvec4(dst64[at], 0u, 0u) : uvec4(load_dst(at, TO), 0u, 0u, 0u);
}
void store_result(const uint at, const uint key, const uvec4 unit)
{
    if (LOOSE) {
        int from = into_window(key);
        if (from >= 0 && from + int(WIDTH) <= int(shape[0])) dst128[at / WIDTH] = unit;
        else [[unroll]] for (uint k = 0; k < WIDTH; k++) if (uint(from + int(k)) < shape[0]) store_dst(at + k, TO, element(unit, k).x);
        return;
    }
    if (WIDTH > 1u) dst128[at] = unit;
    else if (is_wide(TO)) dst64[at] = unit.xy;
    else store_dst(at, TO, unit.x);
}

// Values of entry i of an upper level.
uvec2 part_value(const uint i, const uint k)
{
    uint at = (i * units + unit_at) * WIDTH + k;
    return is_wide(TO) ? src64[src_at + at] : uvec2(src32[src_at + at], 0u);
}

// Sets `old`, combined with the sums or overwritten by them.
void write_result(const uint at, const uint key, const uvec4 old, const bool combined)
{
    uvec4 unit = uvec4(0u);
    [[unroll]] for (uint k = 0; k < WIDTH; k++)
        place_element(unit, k, raw_value(combined ? combine(value_of(element(old, k)), sums[k], false) : sums[k]));
    store_result(at, key, unit);
}
void write_part(const uint which)
{
    uint to = ((2u * chunk + which) * units + unit_at) * WIDTH;
    [[unroll]] for (uint k = 0; k < WIDTH; k++) {
        if (is_wide(TO)) part64[to + k] = sums[k];
        else part32[to + k] = sums[k].x;
    }
}

// Of few entries in all, the longest run is not worth a second level.
uint in_order() { return n > FEW ? SHORT : FEW; }

// Where the run that entry i belongs to begins, but not more than that before it.
uint run_start(const uint i)
{
    uint key = key_of(i), low = i > in_order() ? i - in_order() : 0u, high = i;
    while (low < high) {
        uint middle = (low + high) / 2u;
        if (key_of(middle) == key) high = middle;
        else low = middle + 1u;
    }
    return low;
}
uint run_end(const uint i, const uint start)                       // of a short run
{
    uint key = key_of(i), low = i + 1u, high = start + in_order();
    while (low < high) {
        uint middle = (low + high) / 2u;
        if (key_of(middle) == key) low = middle + 1u;
        else high = middle;
    }
    return low;
}
bool is_long(const uint start, const uint i) { return UPPER || i - start >= in_order() || key_of(start + in_order()) == key_of(i); }

void main()
{
    uint g = group_index() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    chunk = g / units;
    unit_at = g - chunk * units;
    uint first = chunk * each, last = min(first + each, n), window = LOOSE ? 0u : in_window(unit_at);
    if (first >= n) return;
    uint begin = first, end = last, open_left = none, open_right = none;  // keys of long runs that reach over the edges
    if (first > 0u && key_of(first - 1u) == key_of(first)) {
        uint start = run_start(first);
        if (is_long(start, first)) open_left = key_of(first);
        else begin = run_end(first, start);                             // another thread's
    }
    if (begin < last && last < n && key_of(last - 1u) == key_of(last)) {
        uint start = run_start(last - 1u);
        if (is_long(start, last - 1u)) open_right = key_of(last);
        else end = run_end(last, start);
    }
    bool filled = false, full_left = false, full_right = false;
    uint previous = none;
    for (uint from = begin; from < end && begin < last; from += BATCH) {
        uint key[BATCH + 1u];
        bool there[BATCH], direct[BATCH];
        uvec4 unit[BATCH], old[BATCH];
        [[unroll]] for (uint j = 0; j <= BATCH; j++) key[j] = key_of(from + j);
        [[unroll]] for (uint j = 0; j < BATCH; j++) {                   // no branches: all loads are under way at once
            uint i = min(from + j, n - 1u);
            there[j] = key[j] != none && from + j < end;
            direct[j] = !UPPER && key[j] != open_left && key[j] != open_right;
            if (UPPER) there[j] = there[j] && key64[key_at + i].y != 0u;
            else {
                if ((flags & IN_ORDER) == 0u) i = place32[place_at + i];
                unit[j] = load_unit(i, key[j]);
                if (OP != NONE) old[j] = load_result(place_of(key[j], window));
            }
        }
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            if (from + j >= end || key[j] == none) continue;
            if (key[j] != previous) {
                filled = OP != NONE && direct[j];
                [[unroll]] for (uint k = 0; k < WIDTH; k++) if (filled) sums[k] = value_of(element(old[j], k));
                previous = key[j];
            }
            if (there[j]) {
                [[unroll]] for (uint k = 0; k < WIDTH; k++) {
                    uvec2 v = UPPER ? part_value(from + j, k) : value_of(element(unit[j], k));
                    sums[k] = filled ? combine(sums[k], v, !direct[j]) : v;
                }
                filled = true;
            }
            if (!filled || (key[j] == key[j + 1u] && from + j + 1u < end)) continue;
            uint at = place_of(key[j], window);
            if (key[j] == open_left || key[j] == open_right) {
                bool left = key[j] == open_left;
                write_part(left ? 0u : 1u);
                full_left = full_left || left;
                full_right = full_right || !left;
            } else if (key[j] - key_first < key_count) {
                if (direct[j] || OP == NONE) write_result(at, key[j], uvec4(0u), false);
                else write_result(at, key[j], load_result(at), true);
            }
        }
    }
    if (unit_at != 0u || n <= each) return;
    slot64[2u * chunk] = uvec2(key_of(first), full_left ? 1u : 0u);
    slot64[2u * chunk + 1u] = uvec2(key_of(last - 1u), full_right ? 1u : 0u);
}
