#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
// This rank's part of a collective into memory that the devices of all ranks share, and what comes of all parts,
// without the host: the OP of them in the order of ranks, or all of them in a row.
//
// Parts lie there in units of 8 bytes, two words, and with each word the number of the part. A word and its number go
// and come as one load or store of 64 bits: so who finds the number has the word, in whatever order stores of another
// device arrive, and nothing has to be made visible before it is announced. A rank has two slots. Who has all of part n
// knows that all others have read part n - 1, so part n + 1 may go where n - 1 was.
//
// The number is in this device's memory, and counted here: the dispatch is the same each time.
layout(constant_id = 1) const uint STEP = 0;
layout(constant_id = 2) const uint OP = 0;
layout(constant_id = 3) const uint TO = 10;
layout(constant_id = 4) const uint SPINS = 0;          // so often an invocation looks whether parts are there
#include "combine.glsl"
BUFFER(0, dst)
BUFFER(1, src)
ACCESS(dst)
ACCESS(src)
layout(std430, set = 0, binding = 2) coherent volatile buffer memory_words { uint memory32[]; };
layout(std430, set = 0, binding = 2) coherent volatile buffer memory_units { u64vec2 memory128[]; };
layout(std430, set = 0, binding = 3) coherent volatile buffer count_words { uint count[]; };

layout(push_constant) uniform exchange_push {
    uint n, rank, ranks;                               // elements of a part
    uint dst_at, src_at, memory_at, count_at;          // words
};

// All groups do the same, and those behind one that has all parts nothing.
//! enum EXCHANGE_: steps, of one dispatch or two
const uint PUT = 1, TAKE = 2;
//! enum EXCHANGE_: in words: behind all ranks' CONTROL are two slots of each, for so many units; count
const uint CONTROL = 32, UNITS = 8192, SLOT = 4 * UNITS, COUNTED = 32;
//! enum EXCHANGE_: words of control: parts that the rank has put; its host says that no more come; one did not come
const uint DONE = 0, STOP = 1, MISSED = 2;

const bool SMALL = TO <= U8 || TO == I8, HALF = TO == U16 || TO == I16 || TO == F16 || TO == BF16;
const uint SIZE = SMALL ? 1u : HALF ? 2u : TO == U64 || TO == I64 || TO == C64 ? 8u : 4u;
const uint EACH = 8u / SIZE, LANES = SMALL ? 4u : HALF ? 2u : 1u;   // elements of a unit, of a word
shared uint state;
uint spins = 0u;

uint control(const uint word) { return memory_at + rank * CONTROL + word; }
uint slot(const uint r, const uint number)
{
    return (memory_at + ranks * CONTROL + (2u * r + (number & 1u)) * SLOT) / 4u;
}

uvec2 fetch(const uint u)
{
    uvec2 v = uvec2(0u);
    if ((u + 1u) * EACH <= n) return uvec2(src32[src_at + 2u * u], src32[src_at + 2u * u + 1u]);
    for (uint k = 0u; u * EACH + k < n; k++)
        v[k / LANES & 1u] |= load_src((src_at * 4u) / SIZE + u * EACH + k, TO) << 8u * SIZE * (k % LANES);
    return v;
}
void put(const uint first, const uint u, const uvec2 v)
{
    const uint at = (dst_at * 4u) / SIZE + first + u * EACH;
    if ((u + 1u) * EACH <= n && (at * SIZE & 3u) == 0u) {
        dst32[at * SIZE / 4u] = v.x;
        dst32[at * SIZE / 4u + 1u] = v.y;
        return;
    }
    for (uint k = 0u; k < EACH && u * EACH + k < n; k++)
        store_dst(at + k, TO, v[k / LANES & 1u] >> 8u * SIZE * (k % LANES));
}

// As binary.comp: the same bits.
uvec2 both(const uvec2 a, const uvec2 b)
{
    if (OP == SUM) return sum(a, b);
    return value_nan(a) || (OP == MAX ? less(b, a) : less(a, b)) ? a : b;
}
uvec2 joined(const uvec2 a, const uvec2 b)
{
    if (is_wide(TO)) return raw_value(both(value_of(a), value_of(b)));
    uvec2 v = uvec2(0u);
    for (uint k = 0u; k < EACH; k++) {
        const uint w = k / LANES & 1u, by = 8u * SIZE * (k % LANES);
        uvec2 x = uvec2(low_bits(a[w] >> by, TO), 0u), y = uvec2(low_bits(b[w] >> by, TO), 0u);
        v[w] |= low_bits(raw_value(both(value_of(x), value_of(y))).x, TO) << by;
    }
    return v;
}

// What rank r has put there. false: it does not come.
bool find(const uint r, const uint u, const uint number, out uvec2 v)
{
    const uint at = slot(r, number) + u;
    v = uvec2(0u);
    for (; spins < SPINS; spins++) {
        u64vec2 w = memory128[at];
        v = uvec2(w);
        if (uvec2(w >> 32) == uvec2(number)) return true;
        if ((spins & 15u) == 15u && memory32[control(STOP)] != 0u) return false;
    }
    return false;
}
bool take(const uint u, const uint number)
{
    uvec2 mine = fetch(u), v;
    for (uint r = 0u; r < ranks; r++) {
        uvec2 p = mine;
        if (r != rank && !find(r, u, number, p)) return false;
        if (OP == NONE) put(r * n, u, p);
        else v = r == 0u ? p : joined(v, p);
    }
    if (OP != NONE) put(0u, u, v);
    return true;
}

void main()
{
    const uint thread = gl_LocalInvocationID.x, threads = gl_WorkGroupSize.x, units = (n + EACH - 1u) / EACH;
    const bool puts = (STEP & PUT) != 0u;
    const uint number = count[count_at] + (puts ? 1u : 0u);
    if (puts)
        for (uint u = thread; u < units; u += threads) {
            uvec2 v = fetch(u);
            memory128[slot(rank, number) + u] = u64vec2(v) | u64vec2(uint64_t(number) << 32);
        }
    if (thread == 0u) state = !puts && count[count_at + 1u] == number ? 1u : 0u;
    barrier();
    if (puts && thread == 0u) {
        count[count_at] = number;
        memory32[control(DONE)] = number;
    }
    if ((STEP & TAKE) == 0u || state != 0u) return;
    bool all = true;
    for (uint u = thread; u < units; u += threads) all = take(u, number) && all;
    barrier();
    if (!all) state = 1u;
    barrier();
    if (thread > 0u) return;
    if (state == 0u) count[count_at + 1u] = number;
    else if (gl_WorkGroupID.x + 1u == gl_NumWorkGroups.x) memory32[control(MISSED)] = 1u;
}
