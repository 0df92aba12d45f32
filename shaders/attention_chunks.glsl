// What attention by chunks of keys has in attention_chunks.comp and in attention_walk.comp: a step's weights, the chunk's results
// that they make, and how chunks are added up. Whoever includes this says ROWS, and how wide a subgroup's part of `tiles` is: ROOM.
#ifndef ATTENTION_CHUNKS_GLSL
#define ATTENTION_CHUNKS_GLSL
uint keys_counted;                                      // key_count, or what a recorded dispatch finds in memory
#define KEY_COUNT keys_counted
#include "common.glsl"
#ifdef BF
uvec2 four_bits(const vec4 x) { return bf16_of_four(x); }
uvec2 weight_bits(const vec4 x)                         // of what is not less than 0: NaN has the most bits of all
{
    uvec4 u = min(floatBitsToUint(x), uvec4(0x7fc00000u));
    u += 0x7fffu + ((u >> 16) & 1u);
    return uvec2((u.x >> 16) | (u.y & 0xffff0000u), (u.z >> 16) | (u.w & 0xffff0000u));
}
#else
uvec2 four_bits(const vec4 x) { return uvec2(packHalf2x16(x.xy), packHalf2x16(x.zw)); }
#define weight_bits four_bits
#endif
//! enum ATTENTION_: keys of a chunk, up to NEAR of them, and behind these
const uint CHUNK = 32, NEAR = 512, FAR_CHUNK = 128;

const uint SIZE = 16u, STEP = 2u * SIZE;                // of a cooperative matrix; keys of a step: two tiles, written out, for
                                                        // a loop with barriers stays one, and what it indexes goes to memory then
const uint K8 = WIDTH / 8u, V8 = VALUE_WIDTH / 8u, K_PITCH = K8 + 1u, V_PITCH = V8 + 1u;        // in groups of eight
const uint WIDE = VALUE_WIDTH / SIZE, THREADS = SUBGROUPS * LANES;
const uint PATCH = SIZE * SIZE / 4u, AT_ONCE = (WIDE + 1u) / 2u;          // tiles of results, half of them
// Lanes have scores of SPREAD rows: a lane FOURS times four of one row.
const uint LEAST = LANES / 8u, SPREAD = ROWS <= LEAST ? LEAST : ROWS <= 2u * LEAST ? 2u * LEAST : SIZE;
const uint PITCH = STEP / 4u + 1u, P_PITCH = STEP / 8u + 1u, PER_ROW = LANES / SPREAD, FOURS = STEP / 4u / PER_ROW;
const uint WIDER = K_PITCH > V_PITCH ? K_PITCH : V_PITCH, ROW = WIDER > PITCH ? WIDER : PITCH;
#include "attention.glsl"
#define MATRIX_A coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA>
#define MATRIX_B coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB>
#define MATRIX_SUM coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor

shared uvec4 tiles[SUBGROUPS * ROOM];                   // of each subgroup: scores, weights, results, and what else it has
MATRIX_SUM os[WIDE];                                    // of a chunk, as high and total
float high, total;
uint mine, lane, row, share, last_key;                  // row: the lane's, one of PER_ROW that have it

void find_lane()
{
    lane = gl_SubgroupInvocationID;
    row = lane / PER_ROW;
    share = lane % PER_ROW;
    mine = gl_SubgroupID * ROOM;
}

// A subgroup's lanes see what others of them wrote to shared memory.
void meet() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }

// SIZE x SIZE of a number each row, as an accumulator.
MATRIX_SUM across_rows(const float x)
{
    MATRIX_SUM m;
    meet();
    for (uint j = share; j < SIZE / 4u; j += PER_ROW) tiles[mine + row * (SIZE / 4u + 1u) + j] = floatBitsToUint(vec4(x));
    meet();
    coopMatLoad(m, tiles, mine, SIZE / 4u + 1u, ROW_MAJOR);
    return m;
}

// Scores of a step's keys to where lanes find them.
void give_scores(const MATRIX_SUM a, const MATRIX_SUM b)
{
    meet();
    coopMatStore(a, tiles, mine, PITCH, ROW_MAJOR);
    coopMatStore(b, tiles, mine + SIZE / 4u, PITCH, ROW_MAJOR);
    meet();
}

// Of a step whose scores are there: weights in their place, and what these make of the chunk's results so far.
void weigh_keys(const row_place place, const uint first, const bool follows)
{
    vec4 score[FOURS], most = vec4(high);
    bool plain = !has(MASK_BOOL | MASK_ADDS) && subgroupBallot(first + STEP > place.keys) == uvec4(0u);
    [[unroll]] for (uint j = 0u; j < FOURS; j++) score[j] = uintBitsToFloat(tiles[mine + row * PITCH + share * FOURS + j]) * scale;
    if (!plain)                                        // a branch for all, not one each
        [[unroll]] for (uint j = 0u; j < FOURS; j++)
            [[unroll]] for (uint i = 0u; i < 4u; i++) score[j][i] = masked(score[j][i], place, first + 4u * (share * FOURS + j) + i);
    [[unroll]] for (uint j = 0u; j < FOURS; j++)
        [[unroll]] for (uint i = 0u; i < 4u; i++) if (score[j][i] > most[i]) most[i] = score[j][i];
    float best = max(max(most.x, most.y), max(most.z, most.w));
    [[unroll]] for (uint d = 1u; d < PER_ROW; d *= 2u) best = max(best, subgroupShuffleXor(best, d));
    float shrink = exp2(high - best);
    if (follows && (EVEN == 1u || subgroupBallot(best > high) != uvec4(0u))) {
        MATRIX_SUM factor = across_rows(shrink);
        [[unroll]] for (uint i = 0u; i < WIDE; i++) os[i] = os[i] * factor;
    }
    high = best;
    meet();
    float sums[FOURS];
    [[unroll]] for (uint j = 0u; j < FOURS; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) score[j][i] = score[j][i] <= LOWEST ? 0.0 : exp2(score[j][i] - high);
        sums[j] = (score[j].x + score[j].y) + (score[j].z + score[j].w);
        uint at = mine + row * P_PITCH + (share * FOURS + j) / 2u;
        if (j % 2u == 1u) tiles[at] = uvec4(weight_bits(score[j - 1u]), weight_bits(score[j]));
        else if (FOURS == 1u && share % 2u == 0u) tiles[at].xy = weight_bits(score[j]);
        else if (FOURS == 1u) tiles[at].zw = weight_bits(score[j]);
    }
    // By halves, whoever has them: neighbours first.
    [[unroll]] for (uint d = 1u; d < FOURS; d *= 2u)
        [[unroll]] for (uint j = 0u; j + d < FOURS; j += 2u * d) sums[j] += sums[j + d];
    [[unroll]] for (uint d = 1u; d < PER_ROW; d *= 2u) sums[0] += subgroupShuffleXor(sums[0], d);
    precise float own = total * shrink;
    total = own + sums[0];
    meet();
}

// Nothing yet of a chunk.
void begin_chunk()
{
    high = LOWEST;
    total = 0.0;
    [[unroll]] for (uint i = 0u; i < WIDE; i++) os[i] = MATRIX_SUM(0.0);
}

// How many keys a chunk has that begins there.
uint chunk_at(const uint first) { return first < NEAR ? CHUNK : FAR_CHUNK; }

// Two results of a row as one: what each is multiplied by; `most` and `sum` become the two's.
vec2 join(inout float most, inout float sum, const float other, const float others)
{
    float best = max(most, other);
    vec2 f = vec2(exp2(most - best), exp2(other - best));
    precise float own = sum * f.x;
    most = best;
    sum = fma(others, f.y, own);
    return f;
}
vec4 joined(const vec4 x, const vec4 y, const vec2 f)
{
    precise vec4 own = x * f.x;
    return fma(y, vec4(f.y), own);
}

void store_four(const row_place place, const uint f, const vec4 x)
{
    o64[(place.o + f) / 4u] = four_bits(x);
}

// What a row begins with.
float first_high(const uint head) { return has(SINKS) ? sink_of(head) : LOWEST; }
float first_sum() { return has(SINKS) ? 1.0 : 0.0; }
#endif
