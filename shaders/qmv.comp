#version 460
#extension GL_GOOGLE_include_directive : require
#ifdef SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
// y = x W^T for a few rows of x. A team of LANES lanes (a subgroup) takes R rows of W, a lane one block of 32 codes at a
// time; SPLIT teams share a row's blocks. A block adds scale * dot(codes, x) + bias * sum(x), all in float32; where the
// result is float32, it adds dot(scale * codes + bias, x), in which nothing cancels. Small floats have no bias.
// GATHER: index arrays say which matrix of x meets which weight.
// SETS: up to three matrices with the same x, their rows one after another, or the first two interleaved for SwiGLU.
#define PRODUCT
#include "quant.glsl"
layout(constant_id = 5) const uint M = 1;              // rows of x a workgroup
layout(constant_id = 6) const uint R = 4;
layout(constant_id = 7) const uint SPLIT = 1;
layout(constant_id = 8) const uint LANES = 32;
layout(constant_id = 9) const uint ALIGNED = 0;        // QUANT_EVEN_X, QUANT_EVEN_W
layout(constant_id = 10) const uint EPILOGUE = 0;     // of QMV_

#include "qmv.glsl"

const bool EXACT = TY == F32 && !FP;                   // else codes are built as floats with an offset
const uint SCALES = TS == E4M3 ? 2 : 1;                // of a block

// What a lane holds: blocks of R rows with their scales and biases, the next ones on their way; sums for M x R results.
uint code[8 * 8], scale[16], bias[8], next_code[8 * 8], next_scale[16], next_bias[8];
float total[64], dots[64], sums[8 * 4];

// Code e of row j's block: offset_of(e % CLASSES) + code, or its value where EXACT.
float code_value(const uint j, const uint e)
{
    uint bit = e * BITS & 31u, i = j * 8u + (e * BITS >> 5), w = code[i];
    if (!EXACT && PACKED) return packed_code(w, bit);
    w >>= bit;
    if (bit + BITS > 32u) w |= code[i + 1u] << (32u - bit);
    w &= MASK;
    if (FP) return code_number(w);
    if (EXACT) return fma(number(scale[j], TS), float(w), number(bias[j], TS));
    return uintBitsToFloat(w << (23u - BITS) | (127u + BITS) << 23);
}
float offset_of(const uint c) { return PACKED ? packed_offset(c) : float(1u << BITS); }

// Eight values of row i of x, from element `at` of the row on.
void load_x(const uint i, const uint at, inout float v[64])
{
    if ((ALIGNED & EVEN_X) == 0u) {
        [[unroll]] for (uint e = 0u; e < 8u; e++) v[8u * i + e] = number(RAW(x, at + e, TX), TX);
    } else if (TX == F32) {
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            uvec4 a = x128[(at >> 2) + h];
            [[unroll]] for (uint e = 0u; e < 4u; e++) v[8u * i + 4u * h + e] = uintBitsToFloat(a[e]);
        }
    } else {
        uvec4 a = x128[at >> 3];
        [[unroll]] for (uint e = 0u; e < 4u; e++) {
            vec2 two = two_numbers(a[e], TX);
            v[8u * i + 2u * e] = two.x;
            v[8u * i + 2u * e + 1u] = two.y;
        }
    }
}

// Adds the block that `code` holds. x_first: element 0 of the first row of x.
void add_block(const uint block, const uint x_first, const uint last)
{
    [[unroll]] for (uint i = 0u; i < M * R; i++) dots[i] = 0.0;
    [[unroll]] for (uint i = 0u; i < M * CLASSES; i++) sums[i] = 0.0;
    [[unroll]] for (uint c = 0u; c < 4u; c++) {
        float v[64];
        [[unroll]] for (uint i = 0u; i < M; i++) {
            load_x(i, x_first + min(i, last) * x_row + 32u * block + 8u * c, v);
            [[unroll]] for (uint e = 0u; e < 8u; e++) sums[i * CLASSES + e % CLASSES] += v[8u * i + e];
        }
        [[unroll]] for (uint j = 0u; j < R; j++)
            [[unroll]] for (uint e = 0u; e < 8u; e++) {
                float q = code_value(j, 8u * c + e);
                [[unroll]] for (uint i = 0u; i < M; i++) dots[i * R + j] = fma(q, v[8u * i + e], dots[i * R + j]);
            }
        if (FP && (c == 3u || SCALES * c == 2u))
            [[unroll]] for (uint v = 0u; v < M * R; v++) {
                total[v] = fma(number(scale[SCALES * (v % R) + (SCALES - 1u) * (c >> 1)], TS), dots[v], total[v]);
                dots[v] = 0.0;
            }
    }
    if (FP) return;
    [[unroll]] for (uint i = 0u; i < M; i++) {
        float sum = 0.0, offset = 0.0;
        [[unroll]] for (uint c = 0u; c < CLASSES; c++) {
            sum += sums[i * CLASSES + c];
            offset = fma(sums[i * CLASSES + c], offset_of(c), offset);
        }
        [[unroll]] for (uint j = 0u; j < R; j++)
            total[i * R + j] += EXACT ? dots[i * R + j] : fma(number(scale[j], TS), dots[i * R + j] - offset, number(bias[j], TS) * sum);
    }
}

#define LOAD_ROWS(name, set, slot, w, s, b) \
    void name(const uint row, const uint block) \
    { \
        uint blocks = k >> 5, groups = 2u * blocks >> group_shift; \
        [[unroll]] for (uint j = slot; j < R; j += STEP) { \
            uint n = min(row + j / STEP, rows[set] - 1u); \
            uint at = w_matrix * w_batch + w_at[set] + (n * blocks + block) * BITS; \
            uint group = w_matrix * s_batch + n * groups + (2u * block >> group_shift); \
            if ((ALIGNED & EVEN_W) != 0u && (BITS & 3u) == 0u) \
                [[unroll]] for (uint i = 0u; i < BITS; i += 4u) { \
                    uvec4 q = w##128[at + i >> 2]; \
                    [[unroll]] for (uint l = 0u; l < 4u; l++) next_code[8u * j + i + l] = q[l]; \
                } \
            else if ((ALIGNED & EVEN_W) != 0u && (BITS & 1u) == 0u) \
                [[unroll]] for (uint i = 0u; i < BITS; i += 2u) { \
                    uvec2 q = w##64[at + i >> 1]; \
                    next_code[8u * j + i] = q.x; \
                    next_code[8u * j + i + 1u] = q.y; \
                } \
            else \
                [[unroll]] for (uint i = 0u; i < BITS; i++) next_code[8u * j + i] = w##32[at + i]; \
            [[unroll]] for (uint h = 0u; h < SCALES; h++) next_scale[SCALES * j + h] = RAW(s, s_at[set] + group + h, TS); \
            if (!FP) next_bias[j] = RAW(b, b_at[set] + group, TS); \
        } \
    }
LOAD_ROWS(load_a, 0, 0u, wa, sa, ba)
#ifdef SETS
LOAD_ROWS(load_b, 1, STEP - 1u, wb, sb, bb)
LOAD_ROWS(load_c, 2, 0u, wc, sc, bc)
#endif
void load_rows(const uint set, const uint row, const uint block)
{
#ifdef SETS
    if (EPILOGUE == SWIGLU) { load_a(row, block); load_b(row, block); }
    else if (set == 1u) load_b(row, block);
    else if (set == 2u) load_c(row, block);
    else
#endif
        load_a(row, block);
}

// The sum over lanes and over the teams that share rows, for the lanes that store it.
#ifdef SUBGROUP
shared float part[gl_WorkGroupSize.x / LANES * M * R];
void add_lanes(const uint lane, const uint team)
{
    [[unroll]] for (uint v = 0u; v < M * R; v++) total[v] = subgroupAdd(total[v]);
    if (SPLIT == 1u) return;
    if (lane == 0u)
        [[unroll]] for (uint v = 0u; v < M * R; v++) part[team * M * R + v] = total[v];
    barrier();
    [[unroll]] for (uint v = 0u; v < M * R; v++) {
        total[v] = 0.0;
        for (uint t = 0u; t < SPLIT; t++) total[v] += part[(team / SPLIT * SPLIT + t) * M * R + v];
    }
}
#else
shared float part[gl_WorkGroupSize.x];
void add_lanes(const uint lane, const uint team)
{
    for (uint v = 0u; v < M * R; v++) {
        barrier();
        part[gl_LocalInvocationIndex] = total[v];
        barrier();
        float sum = 0.0;
        if (v % LANES == lane && team % SPLIT == 0u)
            for (uint t = 0u; t < SPLIT * LANES; t++) sum += part[team * LANES + t];
        total[v] = sum;
    }
}
#endif

void main()
{
#ifdef GATHER
    y_matrix = first_entry + gl_WorkGroupID.z;
    x_matrix = X_MATRIX(y_matrix);
    w_matrix = W_MATRIX(y_matrix);
    if (w_matrix >= weights) return;                   // the same for the whole workgroup
#endif
#ifdef SUBGROUP
    uint lane = gl_SubgroupInvocationID, team = gl_SubgroupID;
#else
    uint lane = gl_LocalInvocationIndex % LANES, team = gl_LocalInvocationIndex / LANES;
#endif
    uint per = gl_WorkGroupSize.x / LANES / SPLIT * (R / STEP), group = gl_WorkGroupID.x, set = 0u;
#ifdef SETS
    if (EPILOGUE != SWIGLU)                                // workgroups of the first matrix, of the second, of the third
        while (set < 2u && group >= (rows[set] + per - 1u) / per) group -= (rows[set++] + per - 1u) / per;
#endif
    uint row = group * per + team / SPLIT * (R / STEP), first = gl_WorkGroupID.y * M, blocks = k >> 5;
    uint x_first = x_at + x_matrix * x_batch + first * x_row, start = team % SPLIT * LANES + lane;
    [[unroll]] for (uint v = 0u; v < M * R; v++) total[v] = 0.0;
    if (start < blocks) load_rows(set, row, start);
    for (uint block = start; block < blocks; block += SPLIT * LANES) {
        code = next_code;
        scale = next_scale;
        bias = next_bias;
        if (block + SPLIT * LANES < blocks) load_rows(set, row, block + SPLIT * LANES);
        add_block(block, x_first, m - 1u - first);
    }
    add_lanes(lane, team);
    if (team % SPLIT != 0u) return;
    [[unroll]] for (uint i = 0u; i < M; i++)
        [[unroll]] for (uint j = 0u; j < R; j += STEP)
            if ((i * R + j) / STEP % LANES == lane && first + i < m && row + j / STEP < rows[set])
                store(set, first + i, row + j / STEP, STEP == 2u ? swiglu(total[i * R + j], total[i * R + j + 1u]) : total[i * R + j]);
}
