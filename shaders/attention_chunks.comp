#version 460
#extension GL_GOOGLE_include_directive : require
// Attention whose sums have one order however many queries come together, by cooperative matrices of a subgroup. Keys go in
// chunks of CHUNK, each with a softmax of its own, and chunks' results are added up one after the other. A subgroup has SIZE
// rows: those of a workgroup have a chunk each of the same rows and meet in shared memory, or, where several workgroups do
// (PARTS), in `part`, where the last one to finish adds them up. Where rows are many, attention_walk.comp is for them. All ways
// have the same bits. FRESH: the newest key and value come with the query, see attention_fresh.glsl.
// BF: bfloat16.
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
layout(constant_id = 7) const bool PARTS = false;      // workgroups share rows
layout(constant_id = 8) const uint ROWS = 16;          // of a subgroup that there are, up to SIZE
#ifdef FRESH
layout(constant_id = 9) const uint NORM = 0;          // 1: query and key are RMS-normalised first, 2: with weights
layout(constant_id = 10) const uint TWOS = 1;          // a quarter of a row, by a subgroup's lanes
#define CHUNKED
#endif
#define ROOM (SIZE * ROW > PATCH * AT_ONCE ? SIZE * ROW : PATCH * AT_ONCE)
shared uvec4 queries[16u * (WIDTH / 8u + 1u)];
#define MATRICES
#include "attention_chunks.glsl"
shared vec2 figures[SUBGROUPS * SIZE];                  // largest score and sum of weights
layout(std430, set = 0, binding = 6) coherent buffer part_twos { vec2 part_two[]; };
layout(std430, set = 0, binding = 6) coherent buffer part_fours { vec4 part_four[]; };
layout(std430, set = 0, binding = 7) coherent buffer finished_words { uint finished[]; };

const uint FETCH_K = (SIZE * K8 + LANES - 1u) / LANES, FETCH_V = (SIZE * V8 + LANES - 1u) / LANES;
const uint FETCH = FETCH_K > FETCH_V ? FETCH_K : FETCH_V;
uvec4 next[2u * FETCH];                                 // keys, or values, on their way: of a step's two tiles
uint k_base, v_base;                                    // by eights

// A tile's keys (values), of which those behind the last one repeat it. `slot`: of two.
#define AT(i, eights) (LANES % eights == 0u ? i * (LANES / eights) + lane / eights : (i * LANES + lane) / eights)
#define EIGHT(i, eights) (LANES % eights == 0u ? lane % eights : (i * LANES + lane) % eights)
void fetch_k(const uint slot, const uint first)
{
    [[unroll]] for (uint i = 0u; i < FETCH_K; i++)
        next[slot * FETCH + i] = k128[k_base + min(first + AT(i, K8), last_key) * (K_STEP / 8u) + EIGHT(i, K8)];
}
void fetch_v(const uint slot, const uint first)
{
    [[unroll]] for (uint i = 0u; i < FETCH_V; i++)
        next[slot * FETCH + i] = v128[v_base + min(first + AT(i, V8), last_key) * (V_STEP / 8u) + EIGHT(i, V8)];
}
void stage_k(const uint slot, const uint first)
{
    meet();
    [[unroll]] for (uint i = 0u; i < FETCH_K; i++)
        if (SIZE * K8 % LANES == 0u || i * LANES + lane < SIZE * K8)
            tiles[mine + AT(i, K8) * K_PITCH + EIGHT(i, K8)] = next[slot * FETCH + i];
#ifdef FRESH
    if (newest_key - first < SIZE) {
        meet();
        if (lane < K8) tiles[mine + (newest_key - first) * K_PITCH + lane] = newest_k_at(lane);
    }
#endif
    meet();
}
void stage_v(const uint slot, const uint first)
{
    meet();
    [[unroll]] for (uint i = 0u; i < FETCH_V; i++)
        if (SIZE * V8 % LANES == 0u || i * LANES + lane < SIZE * V8)
            tiles[mine + AT(i, V8) * V_PITCH + EIGHT(i, V8)] = next[slot * FETCH + i];
#ifdef FRESH
    if (newest_key - first < SIZE) {
        meet();
        if (lane < V8) tiles[mine + (newest_key - first) * V_PITCH + lane] = newest_v[lane];
    }
#endif
    meet();
}

// Scores of a step's keys, to where lanes find them. Its values are asked for in the meantime.
MATRIX_SUM score_tile(const uint j, const uint first)
{
    MATRIX_SUM even = MATRIX_SUM(0.0), odd = MATRIX_SUM(0.0);               // so that a product need not wait for the one before
    stage_k(j, first + j * SIZE);
    fetch_v(j, first + j * SIZE);
    [[unroll]] for (uint i = 0u; i < WIDTH / SIZE; i++) {
        MATRIX_A q;
        MATRIX_B k;
        coopMatLoad(q, queries, i * (SIZE / 8u), K_PITCH, ROW_MAJOR);
        coopMatLoad(k, tiles, mine + i * (SIZE / 8u), K_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        if (i % 2u == 0u) even = coopMatMulAdd(q, k, even);
        else odd = coopMatMulAdd(q, k, odd);
    }
    return even + odd;
}
void score_keys(const uint first)
{
    MATRIX_SUM a = score_tile(0u, first), b = score_tile(1u, first);
    give_scores(a, b);
}

// more: the next step's keys are asked for.
void add_tile(const uint j, const uint first, const bool more, const MATRIX_A p)
{
    stage_v(j, first + j * SIZE);
    if (more) fetch_k(j, first + STEP + j * SIZE);
    [[unroll]] for (uint i = 0u; i < WIDE; i++) {
        MATRIX_B v;
        coopMatLoad(v, tiles, mine + i * (SIZE / 8u), V_PITCH, ROW_MAJOR);
        os[i] = coopMatMulAdd(p, v, os[i]);
    }
}
void add_values(const uint first, const bool more)
{
    MATRIX_A a, b;
    coopMatLoad(a, tiles, mine, P_PITCH, ROW_MAJOR);
    coopMatLoad(b, tiles, mine + SIZE / 8u, P_PITCH, ROW_MAJOR);
    add_tile(0u, first, more, a);
    add_tile(1u, first, more, b);
}

// Chunks: where one begins, how many keys one that begins there has, how many there are of so many keys.
uint chunk_from(const uint n) { return n * CHUNK <= NEAR ? n * CHUNK : NEAR + (n - NEAR / CHUNK) * FAR_CHUNK; }
uint chunks_of(const uint keys)
{
    return keys <= NEAR ? (keys + CHUNK - 1u) / CHUNK : NEAR / CHUNK + (keys - NEAR + FAR_CHUNK - 1u) / FAR_CHUNK;
}

// A chunk's results. Steps from `most` on no subgroup has.
void attend_chunk(const row_place place, const uint first, const uint most)
{
    begin_chunk();
    for (uint s = 0u; s < most; s += STEP) {
        score_keys(first + s);
        weigh_keys(place, first + s, s > 0u);
        add_values(first + s, s + STEP < most);
    }
}

uint parts() { return batches * query_heads * query_count * splits * SUBGROUPS; }

// The workgroup's chunks of `rows` rows, AT_ONCE tiles after AT_ONCE: added up, or where other workgroups see them, row after
// row from `at` on. A macro: as a function it takes NVIDIA's driver (580.159) 253 registers instead of 225 (an H200, a step of
// Qwen3-0.6B 905 and 971 tokens/s).
#define JOIN(from) \
    meet(); \
    [[unroll]] for (uint i = 0u; i < AT_ONCE; i++) \
        if (from + i < WIDE) coopMatStore(os[from + i], tiles, mine + i * PATCH, SIZE / 4u, ROW_MAJOR); \
    barrier(); \
    fours = min(AT_ONCE, WIDE - from) * (SIZE / 4u); \
    for (uint u = gl_SubgroupID * LANES + lane; u < count * fours; u += THREADS) { \
        uint r = u / fours, f = u % fours, spot = f / (SIZE / 4u) * PATCH + f % (SIZE / 4u); \
        if (PARTS) { \
            uint s = r % SUBGROUPS; \
            r /= SUBGROUPS; \
            part_four[((at + r) * splits * SUBGROUPS + split * SUBGROUPS + s) * (VALUE_WIDTH / 4u) + from * (SIZE / 4u) + f] = \
                uintBitsToFloat(tiles[s * ROOM + r * (SIZE / 4u) + spot]); \
        } else { \
            row_place place = place_of(batch, head, first_row + r); \
            float most = first_high(place.head), sum = first_sum(); \
            vec4 x = vec4(0.0); \
            for (uint s = 0u; s < SUBGROUPS; s++) { \
                vec2 f2 = join(most, sum, figures[s * SIZE + r].x, figures[s * SIZE + r].y); \
                x = joined(x, uintBitsToFloat(tiles[s * ROOM + r * (SIZE / 4u) + spot]), f2); \
            } \
            store_four(place, (from * (SIZE / 4u) + f) * 4u, x * (sum == 0.0 ? 0.0 : 1.0 / sum)); \
        } \
    } \
    if (from + AT_ONCE < WIDE) barrier();
void join_subgroups(const uint batch, const uint head, const uint first_row, const uint rows, const uint at, const uint split)
{
    const uint count = PARTS ? rows * SUBGROUPS : rows;
    uint fours;
    if (share == 0u) figures[gl_SubgroupID * SIZE + row] = vec2(high, total);
    JOIN(0u)
    if (AT_ONCE < WIDE) { JOIN(AT_ONCE) }
    for (uint u = gl_SubgroupID * LANES + lane; PARTS && u < rows * SUBGROUPS; u += THREADS)
        part_two[parts() * (VALUE_WIDTH / 2u) + (at + u / SUBGROUPS) * splits * SUBGROUPS + split * SUBGROUPS + u % SUBGROUPS] =
            figures[u % SUBGROUPS * SIZE + u / SUBGROUPS];
}

// All chunks of `rows` rows, by the last workgroup; a thread asks for BATCH of them at once.
void join_parts(const uint batch, const uint head, const uint first_row, const uint rows, const uint at, const uint chunks)
{
    const uint BATCH = 8u, FOURS_OF = VALUE_WIDTH / 4u, thread = gl_SubgroupID * LANES + lane;
    for (uint u = thread; u < rows * FOURS_OF; u += THREADS) {
        uint r = u / FOURS_OF, f = u % FOURS_OF, from = (at + r) * splits * SUBGROUPS;
        row_place place = place_of(batch, head, first_row + r);
        float most = first_high(place.head), sum = first_sum();
        vec4 x = vec4(0.0);
        for (uint c = 0u; c < chunks; c += BATCH) {
            vec4 y[BATCH];
            vec2 own[BATCH];
            [[unroll]] for (uint i = 0u; i < BATCH; i++) {
                uint n = from + min(c + i, chunks - 1u);
                y[i] = part_four[n * FOURS_OF + f];
                own[i] = part_two[parts() * (VALUE_WIDTH / 2u) + n];
            }
            [[unroll]] for (uint i = 0u; i < BATCH; i++)
                if (c + i < chunks) x = joined(x, y[i], join(most, sum, own[i].x, own[i].y));
        }
        store_four(place, 4u * f, x * (sum == 0.0 ? 0.0 : 1.0 / sum));
    }
}

// counter: of the parts of these rows.
void attend(const uint batch, const uint kv, const uint head, const uint first_row, const uint split, const uint counter)
{
    const uint rows = query_count * block_heads(), thread = gl_SubgroupID * LANES + lane;
    uint begin = chunk_from(split * SUBGROUPS), first = begin + gl_SubgroupID * chunk_at(begin), end;
#ifdef FRESH
    uvec4 late = uvec4(0u);
    if (has(LATE)) late = uvec4(mask32[mask_at], mask32[mask_at + 1u], mask32[mask_at + 2u], mask32[mask_at + 3u]);
    uint k_row = k_at + kv * k_stride[0] + late.x, v_row = v_at + kv * v_stride[0] + late.y;
    newest_key = keys_counted = key_count + late.z;
    end = newest_key + 1u;
#else
    uint k_row = k_row_of(batch, kv), v_row = v_row_of(batch, kv);
    keys_counted = key_count;
    if (has(LATE)) {
        k_row += mask32[mask_at];
        v_row += mask32[mask_at + 1u];
        keys_counted += mask32[mask_at + 2u];
    }
    end = key_end(first_row, min(first_row + ROWS, rows) - 1u);
#endif
    last_key = max(keys_counted, 1u) - 1u;
    k_base = k_row / 8u;
    v_base = v_row / 8u;
    if (begin < end) {
        fetch_k(0u, first);
        fetch_k(1u, first + SIZE);
    }
#ifdef FRESH
    bool newest = (chunks_of(end) - 1u) / SUBGROUPS == split, keep = newest && first_row == 0u;
    read_weights(min(gl_SubgroupID, ROWS), lane);
    find_angles(offset + int(late.w), lane);
    if (is_linked()) wait_for_link(thread);            // the rows are not there yet
    prepare_rows(kv, head, first_row, rows, k_row + newest_key * K_STEP, keep, lane);
    if (newest && thread < V8) read_newest_v(new_v_at + kv * new_v_stride, v_row + newest_key * V_STEP, keep, thread);
#else
    for (uint g = thread; g < ROWS * K8; g += THREADS) {
        uint r = g / K8, n = first_row + r;
        queries[r * K_PITCH + g % K8] = n < rows ? q128[place_of(batch, head, n).q / 8u + g % K8] : uvec4(0u);
    }
#endif
    barrier();
    bool inside = row < ROWS && first_row + row < rows;
    row_place place = place_of(batch, head, inside ? first_row + row : 0u);
    if (!inside) place.keys = 0u;
    const uint count = min(ROWS, rows - first_row), at = (batch * query_heads + head) * query_count + first_row;
    attend_chunk(place, first, begin < end ? min(chunk_at(begin), end - begin) : 0u);
    join_subgroups(batch, head, first_row, count, at, split);
    if (!PARTS) return;
    memoryBarrierBuffer();
    barrier();
    if (thread == 0u) {
        bool last = atomicAdd(finished[counter], 1u) == splits - 1u;
        if (last) finished[counter] = 0u;                // as it was found
        figures[0].x = last ? 1.0 : 0.0;                 // they were kept; no variable of its own: see attention_parts.glsl
    }
    barrier();
    if (figures[0].x == 0.0) return;
    memoryBarrierBuffer();
    join_parts(batch, head, first_row, count, at, chunks_of(end));
}

void main()
{
    find_lane();
#ifdef FRESH
    uint kv = gl_WorkGroupID.z, block = gl_WorkGroupID.y;
    attend(0u, kv, kv * group_size, block * ROWS, gl_WorkGroupID.x, kv * gl_NumWorkGroups.y + block);
    count_for_link(gl_SubgroupID * LANES + lane);
#else
    uint group = group_index(), blocks = query_heads / block_heads(), row_blocks = (query_count * block_heads() + ROWS - 1u) / ROWS;
    if (group >= splits * row_blocks * blocks * batches) return;
    uint counter = group / splits, block = counter / row_blocks, head = block % blocks * block_heads();
    uint own = row_blocks - 1u - counter % row_blocks;                      // those with the most keys first
    attend(block / blocks, head / group_size, head, own * ROWS, group % splits, counter);
#endif
}
