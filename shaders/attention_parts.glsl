// SPREAD: workgroups that have the same rows and split_keys keys each, in attention by cooperative matrices. Each leaves its
// results and, of each row, the largest score and the sum of weights; the last one to finish adds them up.
// After attention.glsl, THREADS, tiles and two_bits.glsl.
layout(std430, set = 0, binding = 6) coherent buffer part_twos { vec2 part_two[]; };         // results, then two figures each
layout(std430, set = 0, binding = 6) coherent buffer part_fours { vec4 part_four[]; };
layout(std430, set = 0, binding = 7) coherent buffer finished_words { uint finished[]; };

// Where a row's part is, in parts.
uint part_of(const uint batch, const uint head, const uint row, const uint split)
{
    return ((batch * query_heads + head) * query_count + row) * splits + split;
}
uint figures_at() { return batches * query_heads * query_count * splits * (VALUE_WIDTH / 2u); }

// counter: of the workgroups of these rows. `tiles` has the answer: a word of shared memory more made prompts 14 % slower on
// an H100, the code being the same.
bool is_last(const uint counter)
{
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0u) {
        bool last = atomicAdd(finished[counter], 1u) == splits - 1u;
        if (last) finished[counter] = 0u;                // as it was found
        tiles[0].x = last ? 1u : 0u;
    }
    barrier();
    return tiles[0].x != 0u;
}

// What all workgroups of `count` rows left: a thread has four features of a row, and asks for BATCH parts at once.
void join_splits(const uint batch, const uint head, const uint first_row, const uint count)
{
    const uint BATCH = 8u, FOURS_OF = VALUE_WIDTH / 4u;
    memoryBarrierBuffer();
    for (uint u = gl_LocalInvocationID.x; u < count * FOURS_OF; u += THREADS) {
        uint n = first_row + u / FOURS_OF, f = u % FOURS_OF, from = part_of(batch, head, n, 0u);
        row_place place = place_of(batch, head, n);
        float most = has(SINKS) ? sink_of(place.head) : LOWEST, sum = has(SINKS) ? 1.0 : 0.0;
        vec4 all = vec4(0.0), x[BATCH];
        vec2 figures[BATCH];
        for (uint s = 0u; s < splits; s += BATCH) {
            [[unroll]] for (uint i = 0u; i < BATCH; i++) {
                uint own = from + min(s + i, splits - 1u);
                figures[i] = part_two[figures_at() + own];
                x[i] = part_four[own * FOURS_OF + f];
            }
            [[unroll]] for (uint i = 0u; i < BATCH; i++) {
                vec2 own = s + i < splits ? figures[i] : vec2(LOWEST, 0.0);
                float best = max(most, own.x), before = exp2(most - best), now = own.y == 0.0 ? 0.0 : exp2(own.x - best);
                most = best;
                sum = fma(own.y, now, sum * before);
                all = fma(x[i], vec4(now), all * before);
            }
        }
        all *= sum == 0.0 ? 0.0 : 1.0 / sum;
        if (4u * f < value_width) o64[(place.o + 4u * f) / 4u] = uvec2(two_bits(all.xy), two_bits(all.zw));
    }
}
