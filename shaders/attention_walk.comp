#version 460
#extension GL_GOOGLE_include_directive : require
// Attention by chunks of keys (see attention_chunks.comp, whose bits this has) where rows are many: each subgroup of a workgroup
// has SIZE of them and goes through all their chunks, one after the other. Keys and values of a step are in shared memory once for
// all subgroups; the next step's are on their way in the meantime (in shared memory, too, they cost more than the barrier that
// they save: an H200, prompts of 4096, 32 heads on 8, 1,347 us for 1,248). Queries stay in registers. BF: bfloat16.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF
#extension GL_EXT_bfloat16 : require
#define T bfloat16_t
#else
#define T float16_t
#endif
layout(constant_id = 1) const uint DTYPE = 9;
layout(constant_id = 2) const uint WIDTH = 128;        // of keys: the next one of values; multiples of SIZE
layout(constant_id = 3) const uint VALUE_WIDTH = 128;
layout(constant_id = 4) const uint SUBGROUPS = 8;
layout(constant_id = 5) const uint LANES = 32;         // of a subgroup, at least SIZE
layout(constant_id = 6) const uint EVEN = 0;           // 1: all subgroups take the same steps (where their barriers are the workgroup's)
const uint ROWS = 16u;                                  // of a subgroup
#define ROOM (SIZE * PITCH)
#include "attention_chunks.glsl"
const uint BLOCK = SUBGROUPS * SIZE;                    // rows of a workgroup
const uint DEEP = WIDTH / SIZE, WIDE_MOST = 8u;         // tiles of queries; WIDE is up to that: 128 features
const uint KEYS = STEP * K_PITCH, VALUES = STEP * V_PITCH;
const uint STAGED = (KEYS + VALUES) / (SIZE * K_PITCH);                   // subgroups' queries that are staged at once
const uint FETCH_K = (STEP * K8 + THREADS - 1u) / THREADS, FETCH_V = (STEP * V8 + THREADS - 1u) / THREADS;
shared uvec4 both[KEYS + VALUES];                       // a step's keys, then its values; queries first
uvec4 next_k[FETCH_K], next_v[FETCH_V];                 // the next step's, on their way
MATRIX_A queries[DEEP];

// A step's keys and values, of which those behind the last one repeat it.
void fetch(const uint k_base, const uint v_base, const uint first)
{
    uint thread = gl_SubgroupID * LANES + lane;
    [[unroll]] for (uint i = 0u; i < FETCH_K; i++) {
        uint g = i * THREADS + thread;
        next_k[i] = k128[k_base + min(first + g / K8, last_key) * (K_STEP / 8u) + g % K8];
    }
    [[unroll]] for (uint i = 0u; i < FETCH_V; i++) {
        uint g = i * THREADS + thread;
        next_v[i] = v128[v_base + min(first + g / V8, last_key) * (V_STEP / 8u) + g % V8];
    }
}
void stage()
{
    uint thread = gl_SubgroupID * LANES + lane;
    barrier();
    [[unroll]] for (uint i = 0u; i < FETCH_K; i++) {
        uint g = i * THREADS + thread;
        if (STEP * K8 % THREADS == 0u || g < STEP * K8) both[g / K8 * K_PITCH + g % K8] = next_k[i];
    }
    [[unroll]] for (uint i = 0u; i < FETCH_V; i++) {
        uint g = i * THREADS + thread;
        if (STEP * V8 % THREADS == 0u || g < STEP * V8) both[KEYS + g / V8 * V_PITCH + g % V8] = next_v[i];
    }
    barrier();
}

// The workgroup's queries, by way of shared memory, STAGED subgroups' at a time.
void read_queries(const uint batch, const uint head, const uint first_row, const uint rows)
{
    for (uint from = 0u; from < SUBGROUPS; from += STAGED) {
        if (from > 0u) barrier();
        for (uint g = gl_SubgroupID * LANES + lane; g < min(STAGED, SUBGROUPS - from) * SIZE * K8; g += THREADS) {
            uint r = g / K8, n = first_row + from * SIZE + r;
            both[r * K_PITCH + g % K8] = n < rows ? q128[place_of(batch, head, n).q / 8u + g % K8] : uvec4(0u);
        }
        barrier();
        if (gl_SubgroupID - from < STAGED)
            [[unroll]] for (uint i = 0u; i < DEEP; i++)
                coopMatLoad(queries[i], both, (gl_SubgroupID - from) * SIZE * K_PITCH + i * (SIZE / 8u), K_PITCH, ROW_MAJOR);
    }
}

// Of one of a step's two tiles.
MATRIX_SUM score_tile(const uint j)
{
    MATRIX_SUM even = MATRIX_SUM(0.0), odd = MATRIX_SUM(0.0);               // so that a product need not wait for the one before
    [[unroll]] for (uint i = 0u; i < DEEP; i++) {
        MATRIX_B k;
        coopMatLoad(k, both, j * SIZE * K_PITCH + i * (SIZE / 8u), K_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        if (i % 2u == 0u) even = coopMatMulAdd(queries[i], k, even);
        else odd = coopMatMulAdd(queries[i], k, odd);
    }
    return even + odd;
}
void add_tile(const uint j)
{
    MATRIX_A p;
    coopMatLoad(p, tiles, mine + j * (SIZE / 8u), P_PITCH, ROW_MAJOR);
    [[unroll]] for (uint i = 0u; i < WIDE; i++) {
        MATRIX_B v;
        coopMatLoad(v, both, KEYS + j * SIZE * V_PITCH + i * (SIZE / 8u), V_PITCH, ROW_MAJOR);
        os[i] = coopMatMulAdd(p, v, os[i]);
    }
}

void store_tile(const row_place place, const bool inside, const uint i, const MATRIX_SUM m, const float factor)
{
    meet();
    coopMatStore(m, tiles, mine, SIZE / 4u + 1u, ROW_MAJOR);
    meet();
    [[unroll]] for (uint j = share; j < SIZE / 4u; j += PER_ROW)
        if (inside) store_four(place, i * SIZE + 4u * j, uintBitsToFloat(tiles[mine + row * (SIZE / 4u + 1u) + j]) * factor);
}

// All chunks of the subgroup's rows. `end`: behind the last key of the workgroup's.
void walk(const row_place place, const bool inside, const uint k_base, const uint v_base, const uint end)
{
    MATRIX_SUM all[WIDE_MOST];
    float most = inside ? first_high(place.head) : LOWEST, sum = inside ? first_sum() : 0.0, factor;
    [[unroll]] for (uint i = 0u; i < WIDE; i++) all[i] = MATRIX_SUM(0.0);
    begin_chunk();
    for (uint first = 0u, chunk = 0u; first < end; first += STEP) {
        bool more = first + STEP < end;
        stage();
        if (more) fetch(k_base, v_base, first + STEP);
        if (EVEN == 1u || subgroupBallot(place.keys > first) != uvec4(0u)) {       // else they would add nothing
            give_scores(score_tile(0u), score_tile(1u));
            weigh_keys(place, first, first > chunk);
            add_tile(0u);
            add_tile(1u);
        }
        if (more && first + STEP < chunk + chunk_at(chunk)) continue;
        if (EVEN == 1u || subgroupBallot(place.keys > chunk) != uvec4(0u)) {
            vec2 f = join(most, sum, high, total);
            MATRIX_SUM x = across_rows(f.x), y = across_rows(f.y);
            [[unroll]] for (uint i = 0u; i < WIDE; i++)
                [[unroll]] for (uint e = 0u; e < x.length(); e++) {
                    precise float own = all[i][e] * x[e];
                    all[i][e] = fma(os[i][e], y[e], own);
                }
            begin_chunk();
        }
        chunk = first + STEP;
    }
    factor = sum == 0.0 ? 0.0 : 1.0 / sum;
#define STORE(i) if (i < WIDE) store_tile(place, inside, i, all[i], factor);
    STORE(0u) STORE(1u) STORE(2u) STORE(3u) STORE(4u) STORE(5u) STORE(6u) STORE(7u)
}

void main()
{
    uint block = group_index(), blocks = query_heads / block_heads(), rows = query_count * block_heads();
    uint row_blocks = (rows + BLOCK - 1u) / BLOCK;
    if (block >= row_blocks * blocks * batches) return;
    uint own = row_blocks - 1u - block % row_blocks, first_row = own * BLOCK;     // those with the most keys first
    block /= row_blocks;
    uint batch = block / blocks, head = block % blocks * block_heads(), kv = head / group_size;
    uint k_row = k_row_of(batch, kv), v_row = v_row_of(batch, kv);
    find_lane();
    keys_counted = key_count;
    if (has(LATE)) {
        k_row += mask32[mask_at];
        v_row += mask32[mask_at + 1u];
        keys_counted += mask32[mask_at + 2u];
    }
    last_key = max(keys_counted, 1u) - 1u;
    uint end = key_end(first_row, min(first_row + BLOCK, rows) - 1u), own_row = first_row + gl_SubgroupID * SIZE + row;
    if (end > 0u) fetch(k_row / 8u, v_row / 8u, 0u);
    read_queries(batch, head, first_row, rows);
    row_place place = place_of(batch, head, own_row < rows ? own_row : 0u);
    if (own_row >= rows) place.keys = 0u;
    walk(place, own_row < rows, k_row / 8u, v_row / 8u, end);
}
