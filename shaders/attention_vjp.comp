#version 460
#extension GL_GOOGLE_include_directive : require
// The gradient of attention in tiles, without the scores in memory. With the weights P = exp(scale q k + mask - logsumexp), the
// cotangent g of the result o, and the row sums D of g o:
//   dv = sum over queries of P g;   dS = P (g v - D);   dk = scale sum over queries of dS q;   dq = scale sum over keys of dS k
// KEYS: a workgroup has TILE keys of a head and goes through all queries that read them, of all heads that do; QUERIES: TILE
// queries, and goes through the keys: one code for both, from the side that is its own and the other one. ROWS: what
// the others need of each query, its logsumexp and D, or one of them.
layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint TILE = 32;          // a multiple of 16; TILE * TILE / 8 threads
layout(constant_id = 3) const uint SLICES = 4;         // of 32 features of queries and keys
layout(constant_id = 4) const uint VALUE_SLICES = 4;
layout(constant_id = 5) const uint STEP = 1;           // elements of a load, 1 or 4
layout(constant_id = 6) const uint DTYPE = 10;

#include "attention_vjp.glsl"

const uint THREADS = gl_WorkGroupSize.x, EIGHT = 8u, PITCH = 9u, PER = THREADS / TILE;
shared vec4 own[TILE * PITCH], other[TILE * PITCH];    // a slice of each side's rows
shared vec4 weights[TILE * (TILE / 4u + 1u)], slopes[TILE * (TILE / 4u + 1u)];   // own row by row: P and dS
const uint WEIGHTS = TILE / 4u + 1u;                   // quads of their rows

#define LOADER(name, start, width) \
    vec4 row_of_##name(const uint head, const uint row, const uint x) { \
        uint place = start + x; \
        vec4 r = vec4(0.0); \
        if (STEP == 4u) return x < width ? loadf4_##name(place / 4u, DTYPE) : r; \
        [[unroll]] for (uint c = 0u; c < 4u; c++) if (x + c < width) r[c] = loadf_##name(place + c, DTYPE); \
        return r; }
#define STRIDED(name) name##_at + batch * name##_stride[0] + head * name##_stride[1] + row * name##_stride[2]
LOADER(q, STRIDED(q), key_width)
LOADER(k, STRIDED(k), key_width)
LOADER(v, STRIDED(v), value_width)
LOADER(g, g_at + ((batch * heads + head) * query_count + row) * value_width, value_width)

// Of keys, or of queries, the features for scores (q, k) or those for values (g, v); rows outside are zeros.
vec4 row_of(const bool keys, const bool values, const uint head, const uint row, const uint x)
{
    if (row >= (keys ? key_count : query_count)) return vec4(0.0);
    if (keys) return values ? row_of_v(head / group, row, x) : row_of_k(head / group, row, x);
    return values ? row_of_g(head, row, x) : row_of_q(head, row, x);
}

// A slice of both sides, or of the other one alone.
void load_slice(const bool values, const uint slice, const uint head, const uint own_row, const uint other_row, const bool both)
{
    barrier();
    for (uint i = me; i < TILE * EIGHT; i += THREADS) {
        uint row = i / EIGHT, x = 4u * (slice * EIGHT + i % EIGHT), to = row * PITCH + i % EIGHT;
        if (both) own[to] = row_of(OWN_KEYS, values, head, own_row + row, x);
        other[to] = row_of(!OWN_KEYS, values, head, other_row + row, x);
    }
    barrier();
}

// Each thread has 2 own rows, TILE / 2 apart, by 4 others, TILE / 4 apart.
void multiply(inout vec4 sum[2])
{
    uint row = me / (TILE / 4u), column = me % (TILE / 4u);
    for (uint x = 0u; x < EIGHT; x++) {
        vec4 a = own[row * PITCH + x], b = own[(row + TILE / 2u) * PITCH + x];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            vec4 y = other[(column + j * (TILE / 4u)) * PITCH + x];
            sum[0][j] += dot(a, y);
            sum[1][j] += dot(b, y);
        }
    }
}

// Products for scores of a tile and, but in ROWS, what comes of them: weights and their gradients, in shared memory.
void score_tile(const uint head, const uint own_row, const uint other_row)
{
    vec4 s[2], d[2];
    s[0] = s[1] = d[0] = d[1] = vec4(0.0);
    for (uint i = 0u; i < SLICES; i++) { load_slice(false, i, head, own_row, other_row, true); multiply(s); }
    if (MODE != ROWS)
        for (uint i = 0u; i < VALUE_SLICES; i++) { load_slice(true, i, head, own_row, other_row, true); multiply(d); }
    uint row = me / (TILE / 4u), column = me % (TILE / 4u);
    [[unroll]] for (uint i = 0u; i < 2u; i++)
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint mine = row + i * (TILE / 2u), its = column + j * (TILE / 4u), to = mine * WEIGHTS + its / 4u;
            uint query = OWN_KEYS ? other_row + its : own_row + mine, key = OWN_KEYS ? own_row + mine : other_row + its;
            float score = score_of(s[i][j], head, query, key), p = 0.0;
            uint place = stats_at + 2u * ((batch * heads + head) * query_count + min(query, query_count - 1u));
            if (MODE == ROWS) { weights[to][its % 4u] = score; continue; }
            p = weight_of(score, uintBitsToFloat(stats32[place]));
            weights[to][its % 4u] = p;
            slopes[to][its % 4u] = slope_of(p, d[i][j], uintBitsToFloat(stats32[place + 1u]));
        }
    barrier();
}

// The results: of each slice of features, those of queries and keys first, what a thread has of 2 own rows, TILE / 2 apart.
const uint HELD = TILE * EIGHT / THREADS / 2u;         // quads of a row
vec4 sum[(SLICES + VALUE_SLICES) * 2u * HELD];

// Adds to a slice, from `to` on, what the other rows have there.
void gather(const uint to, const bool values)
{
    uint row = me / (THREADS / (TILE / 2u)), x = me % (THREADS / (TILE / 2u));
    for (uint i = 0u; i < TILE / 4u; i++) {
        uint at = row * WEIGHTS + i;
        vec4 a = values ? weights[at] : slopes[at];
        at += TILE / 2u * WEIGHTS;
        vec4 b = values ? weights[at] : slopes[at];
        [[unroll]] for (uint c = 0u; c < 4u; c++)
            [[unroll]] for (uint j = 0u; j < HELD; j++) {
                vec4 y = other[(4u * i + c) * PITCH + x + j * (THREADS / (TILE / 2u))];
                sum[to + 2u * j] += a[c] * y;
                sum[to + 2u * j + 1u] += b[c] * y;
            }
    }
}

void one_tile(const uint head, const uint own_row, const uint other_row)
{
    score_tile(head, own_row, other_row);
    [[unroll]] for (uint i = 0u; i < SLICES; i++) { load_slice(false, i, head, own_row, other_row, false); gather(2u * HELD * i, false); }
    if (MODE == KEYS)
        [[unroll]] for (uint i = 0u; i < VALUE_SLICES; i++) { load_slice(true, i, head, own_row, other_row, false); gather(2u * HELD * (SLICES + i), true); }
}

void put(const uint at, const uint width, const bool values, const uint slice, const uint row, const uint from)
{
    uint mine = me / (THREADS / (TILE / 2u)), count = OWN_KEYS ? key_count : query_count;
    [[unroll]] for (uint j = 0u; j < HELD; j++)
        [[unroll]] for (uint i = 0u; i < 2u; i++) {
            uint r = row + mine + i * (TILE / 2u), x = 4u * (slice * EIGHT + me % (THREADS / (TILE / 2u)) + j * (THREADS / (TILE / 2u)));
            uint to = at + ((batch * (OWN_KEYS ? heads / group : heads) + own_head) * count + r) * width + x;
            [[unroll]] for (uint c = 0u; c < 4u; c++)
                if (r < count && x + c < width) {
                    if (values) storef_second(to + c, DTYPE, sum[from + 2u * j + i][c]);
                    else storef_first(to + c, DTYPE, sum[from + 2u * j + i][c]);
                }
        }
}

void gradients(const uint row)
{
    [[unroll]] for (uint i = 0u; i < (SLICES + VALUE_SLICES) * 2u * HELD; i++) sum[i] = vec4(0.0);
    if (MODE == KEYS) {
        uint begin = queries_begin(row) / TILE * TILE;
        for (uint h = 0u; h < group; h++)
            for (uint i = begin; i < query_count; i += TILE) one_tile(own_head * group + h, row, i);
    } else {
        uint end = keys_end(row);
        for (uint i = 0u; i < end; i += TILE) one_tile(own_head, row, i);
    }
    [[unroll]] for (uint i = 0u; i < SLICES; i++) put(first_at, key_width, false, i, row, 2u * HELD * i);
    if (MODE == KEYS)
        [[unroll]] for (uint i = 0u; i < VALUE_SLICES; i++) put(second_at, value_width, true, i, row, 2u * HELD * (SLICES + i));
}

// PER threads have a query, each its part of the keys of a tile, and of the features of g and o.
void rows(const uint row)
{
    uint mine = me / PER, part = me % PER, query = row + mine;
    uint end = (flags & SUMS) != 0u ? keys_end(row) : 0u;
    float most = UNSEEN, all = 0.0, d = 0.0;
    bool there = query < query_count;
    for (uint i = 0u; i < end; i += TILE) {
        score_tile(own_head, row, i);
        for (uint c = part; c < TILE; c += PER) add_score(most, all, weights[mine * WEIGHTS + c / 4u][c % 4u]);
    }
    if (there && (flags & DOTS) != 0u)
        for (uint x = 4u * part; x < value_width; x += 4u * PER) d += dot(row_of_g(own_head, query, x), row_of_v(own_head, query, x));
    barrier();
    own[me] = vec4(most, all, d, 0.0);
    barrier();
    if (!there || part > 0u) return;
    for (uint i = 1u; i < PER; i++) {
        vec4 more = own[me + i];
        add_scores(most, all, more.x, more.y);
        d += more.z;
    }
    put_row(query, most, all, d);
}

void main()
{
    uint count = MODE == KEYS ? key_count : query_count, owners = MODE == KEYS ? heads / group : heads;
    uint tiles = (count + TILE - 1u) / TILE, at = group_index();
    me = gl_LocalInvocationID.x;
    own_head = at / tiles % owners;
    batch = at / tiles / owners;
    if (batch >= batches) return;
    if (MODE == ROWS) rows(at % tiles * TILE);
    else gradients(at % tiles * TILE);
}
