#version 460
#extension GL_GOOGLE_include_directive : require
// softmax(scale * q k^T + mask) v, one workgroup for ROWS queries that share keys: tiles of 32 keys in shared memory,
// softmax as it goes, in float32. Needs nothing of the device. A thread has two rows, every eighth key of the tile and
// every eighth feature of the result.
layout(constant_id = 1) const uint DTYPE = 10;
layout(constant_id = 2) const uint ROWS = 32;          // 4 threads a row
layout(constant_id = 3) const uint WIDTH = 128;        // features of keys and values at most: 64, 128 or 256
layout(constant_id = 4) const uint ALIGNED = 0;        // 1: keys and values are read by 16 bytes
#include "attention.glsl"

const uint KEYS = 32u, SLICE = 64u, THREADS = 4u * ROWS, PARTS = WIDTH / SLICE, PITCH = SLICE + 1u;
shared float queries[ROWS * (WIDTH + 1u)];
shared float tile[KEYS * PITCH];
shared float weights[ROWS * (KEYS + 1u)];
shared float parts[ROWS * 8u];

// Features [from, from + SLICE) of KEYS rows of keys or values into shared memory; zero where there are none.
#define STAGE(name) \
    void stage_##name(const uint base, const uint stride, const uint from, const uint width, const uint first) { \
        if (ALIGNED == 1u) { \
            for (uint i = gl_LocalInvocationID.x; i < KEYS * SLICE / 8u; i += THREADS) { \
                uint row = i / (SLICE / 8u), at = i % (SLICE / 8u) * 8u, to = row * PITCH + at; \
                vec4 a = vec4(0.0), b = vec4(0.0); \
                if (first + row < key_count && from + at < width) eight_##name(base + (first + row) * stride + from + at, a, b); \
                tile[to] = a.x; tile[to + 1u] = a.y; tile[to + 2u] = a.z; tile[to + 3u] = a.w; \
                tile[to + 4u] = b.x; tile[to + 5u] = b.y; tile[to + 6u] = b.z; tile[to + 7u] = b.w; \
            } \
        } else \
            for (uint i = gl_LocalInvocationID.x; i < KEYS * SLICE; i += THREADS) { \
                uint row = i / SLICE, at = i % SLICE; \
                bool inside = first + row < key_count && from + at < width; \
                tile[row * PITCH + at] = inside ? number_##name(base + (first + row) * stride + from + at) : 0.0; \
            } \
    }
STAGE(k)
STAGE(v)

void main()
{
    uint thread = gl_LocalInvocationID.x, row = thread / 8u * 2u, column = thread % 8u, d = key_width, dv = value_width;
    uint group = group_index(), blocks = query_heads / block_heads(), rows = query_count * block_heads();
    uint row_blocks = (rows + ROWS - 1u) / ROWS;
    if (group >= row_blocks * blocks * batches) return;       // the same for the whole workgroup
    uint first_row = (row_blocks - 1u - group % row_blocks) * ROWS, head = group / row_blocks % blocks * block_heads();
    uint batch = group / row_blocks / blocks, kv = head / group_size;
    uint k_base = k_at + batch * k_stride[0] + kv * k_stride[1], v_base = v_at + batch * v_stride[0] + kv * v_stride[1];

    for (uint r = 0u; r < ROWS; r++) {
        row_place p = place_of(batch, head, first_row + r);
        for (uint f = thread; f < d; f += THREADS)
            queries[r * (WIDTH + 1u) + f] = first_row + r < rows ? scale * number_q(p.q + f) : 0.0;
    }
    float high[2], total[2], result[PARTS][2][8];
    row_place place[2];
    for (uint r = 0u; r < 2u; r++) {
        place[r] = place_of(batch, head, first_row + row + r);
        bool sink = has(SINKS) && first_row + row + r < rows;
        high[r] = sink ? sink_of(place[r].head) : LOWEST;
        total[r] = sink && column == 0u ? 1.0 : 0.0;
        for (uint p = 0u; p < PARTS; p++)
            for (uint j = 0u; j < 8u; j++) result[p][r][j] = 0.0;
    }
    uint end = key_end(first_row, min(first_row + ROWS, rows) - 1u);
    for (uint first = 0u; first < end; first += KEYS) {
        float score[2][4];
        for (uint r = 0u; r < 2u; r++)
            for (uint j = 0u; j < 4u; j++) score[r][j] = 0.0;
        for (uint from = 0u; from < d; from += SLICE) {
            barrier();
            stage_k(k_base, k_stride[2], from, d, first);
            barrier();
            uint width = min(SLICE, d - from);
            for (uint f = 0u; f < width; f++) {
                float a = queries[row * (WIDTH + 1u) + from + f], b = queries[(row + 1u) * (WIDTH + 1u) + from + f];
                for (uint j = 0u; j < 4u; j++) {
                    float x = tile[(column + 8u * j) * PITCH + f];
                    score[0][j] += a * x;
                    score[1][j] += b * x;
                }
            }
        }
        for (uint r = 0u; r < 2u; r++) {
            float best = LOWEST;
            for (uint j = 0u; j < 4u; j++) {
                score[r][j] = masked(score[r][j], place[r], first + column + 8u * j);
                if (score[r][j] > best) best = score[r][j];
            }
            parts[(row + r) * 8u + column] = best;
        }
        barrier();
        for (uint r = 0u; r < 2u; r++) {
            float best = high[r], shrink;
            for (uint j = 0u; j < 8u; j++) best = max(best, parts[(row + r) * 8u + j]);
            shrink = exp2(high[r] - best);
            high[r] = best;
            total[r] *= shrink;
            for (uint j = 0u; j < 4u; j++) {
                float p = score[r][j] <= LOWEST ? 0.0 : exp2(score[r][j] - best);
                weights[(row + r) * (KEYS + 1u) + column + 8u * j] = p;
                total[r] += p;
            }
            for (uint p = 0u; p < PARTS; p++)
                for (uint j = 0u; j < 8u; j++) result[p][r][j] *= shrink;
        }
        for (uint p = 0u; p < PARTS; p++) {
            barrier();
            stage_v(v_base, v_stride[2], p * SLICE, dv, first);
            barrier();
            for (uint key = 0u; key < KEYS; key++) {
                float a = weights[row * (KEYS + 1u) + key], b = weights[(row + 1u) * (KEYS + 1u) + key];
                for (uint j = 0u; j < 8u; j++) {
                    float x = tile[key * PITCH + column + 8u * j];
                    result[p][0][j] += a * x;
                    result[p][1][j] += b * x;
                }
            }
        }
    }
    barrier();
    for (uint r = 0u; r < 2u; r++) parts[(row + r) * 8u + column] = total[r];
    barrier();
    for (uint r = 0u; r < 2u; r++) {
        float sum = 0.0;
        for (uint j = 0u; j < 8u; j++) sum += parts[(row + r) * 8u + j];
        float factor = sum == 0.0 ? 0.0 : 1.0 / sum;     // a row with every key masked is zero
        for (uint p = 0u; p < PARTS; p++)
            for (uint j = 0u; j < 8u; j++) {
                uint f = p * SLICE + column + 8u * j;
                if (first_row + row + r < rows && f < dv) store_result(place[r].o + f, result[p][r][j] * factor);
            }
    }
}
