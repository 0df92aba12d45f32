#version 460
#extension GL_GOOGLE_include_directive : require
// softmax(scale * q k^T + mask) v, one workgroup for ROWS queries of one key/value head: tiles of 32 keys in shared memory,
// softmax as it goes, in float32. Needs nothing of the device. The queries of the heads that share keys may count as rows
// of one (row_heads > 1). A thread has two rows, every eighth key of the tile and every eighth feature of the result.
layout(constant_id = 1) const uint DTYPE = 10;
layout(constant_id = 2) const uint ROWS = 32;          // 4 threads a row
layout(constant_id = 3) const uint D = 128;            // of queries and keys
layout(constant_id = 4) const uint DV = 128;           // of values, up to 256
layout(constant_id = 5) const uint FLAGS = 0;
#include "attention.glsl"

const uint KEYS = 32u, SLICE = 64u, THREADS = 4u * ROWS, PARTS = (DV + SLICE - 1u) / SLICE;
shared float queries[ROWS * (D + 1u)];
shared float tile[KEYS * (SLICE + 1u)];
shared float weights[ROWS * (KEYS + 1u)];
shared float parts[ROWS * 8u];

// Features [from, from + SLICE) of KEYS rows of keys or values into shared memory; zero where there are none.
#define STAGE(name) \
    void stage_##name(uint base, uint stride, uint from, uint width, uint first) { \
        if (has(EIGHTS_ALIGNED)) { \
            for (uint i = gl_LocalInvocationID.x; i < KEYS * SLICE / 8u; i += THREADS) { \
                uint row = i / (SLICE / 8u), at = i % (SLICE / 8u) * 8u; \
                eight x = eight(vec4(0.0), vec4(0.0)); \
                if (first + row < key_count && from + at < width) x = load8_##name(base + (first + row) * stride + from + at, DTYPE); \
                for (uint k = 0u; k < 4u; k++) { \
                    tile[row * (SLICE + 1u) + at + k] = x.a[k]; \
                    tile[row * (SLICE + 1u) + at + 4u + k] = x.b[k]; \
                } \
            } \
        } else \
            for (uint i = gl_LocalInvocationID.x; i < KEYS * SLICE; i += THREADS) { \
                uint row = i / SLICE, at = i % SLICE; \
                bool inside = first + row < key_count && from + at < width; \
                tile[row * (SLICE + 1u) + at] = inside ? loadf_##name(base + (first + row) * stride + from + at, DTYPE) : 0.0; \
            } \
    }
STAGE(k)
STAGE(v)

void main()
{
    uint thread = gl_LocalInvocationID.x, row = thread / 8u * 2u, column = thread % 8u;
    uint group = group_index(), blocks = query_heads / row_heads;
    if (group >= tiles * blocks * batches) return;       // the same for the whole workgroup
    uint block = tiles - 1u - group % tiles, head = group / tiles % blocks * row_heads, batch = group / tiles / blocks;
    uint kv = head / group_size, rows = query_count * row_heads, first_row = block * ROWS;
    uint k_base = k_at + batch * k_stride[0] + kv * k_stride[1], v_base = v_at + batch * v_stride[0] + kv * v_stride[1];

    for (uint i = thread; i < ROWS * D; i += THREADS) {
        uint r = i / D, f = i % D, n = first_row + r;
        queries[r * (D + 1u) + f] = n < rows ? scale * loadf_q(query_at(batch, head, n) + f, DTYPE) : 0.0;
    }
    float high[2], total[2], result[PARTS][2][8];
    for (uint r = 0u; r < 2u; r++) {
        uint n = first_row + row + r;
        high[r] = LOWEST;
        total[r] = 0.0;
        if (has(SINKS) && n < rows) {
            high[r] = sink_of(head + n / query_count);
            total[r] = column == 0u ? 1.0 : 0.0;
        }
        for (uint p = 0u; p < PARTS; p++)
            for (uint j = 0u; j < 8u; j++) result[p][r][j] = 0.0;
    }
    uint end = key_end(first_row, min(first_row + ROWS, rows) - 1u);
    for (uint first = 0u; first < end; first += KEYS) {
        float score[2][4];
        for (uint r = 0u; r < 2u; r++)
            for (uint j = 0u; j < 4u; j++) score[r][j] = 0.0;
        for (uint from = 0u; from < D; from += SLICE) {
            barrier();
            stage_k(k_base, k_stride[2], from, D, first);
            barrier();
            uint width = min(SLICE, D - from);
            for (uint f = 0u; f < width; f++) {
                float a = queries[row * (D + 1u) + from + f], b = queries[(row + 1u) * (D + 1u) + from + f];
                for (uint j = 0u; j < 4u; j++) {
                    float x = tile[(column + 8u * j) * (SLICE + 1u) + f];
                    score[0][j] += a * x;
                    score[1][j] += b * x;
                }
            }
        }
        for (uint r = 0u; r < 2u; r++) {
            float best = LOWEST;
            for (uint j = 0u; j < 4u; j++) {
                score[r][j] = masked(score[r][j], batch, head, first_row + row + r, first + column + 8u * j, rows);
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
            stage_v(v_base, v_stride[2], p * SLICE, DV, first);
            barrier();
            for (uint key = 0u; key < KEYS; key++) {
                float a = weights[row * (KEYS + 1u) + key], b = weights[(row + 1u) * (KEYS + 1u) + key];
                for (uint j = 0u; j < 8u; j++) {
                    float x = tile[key * (SLICE + 1u) + column + 8u * j];
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
        uint n = first_row + row + r;
        float sum = 0.0;
        for (uint j = 0u; j < 8u; j++) sum += parts[(row + r) * 8u + j];
        float factor = sum == 0.0 ? 0.0 : 1.0 / sum;     // a row with every key masked is zero
        for (uint p = 0u; p < PARTS; p++)
            for (uint j = 0u; j < 8u; j++) {
                uint f = p * SLICE + column + 8u * j;
                if (n < rows && f < DV) storef_o(result_at(batch, head, n) + f, DTYPE, result[p][r][j] * factor);
            }
    }
}
