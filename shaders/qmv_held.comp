#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_integer_dot_product : require
// y = x W^T for a few rows of x in half types, 2, 4 or 8 bits, everything aligned. Each lane holds its part of x in registers,
// BL blocks of 32 elements, and meets row after row of W: SPLIT teams of LANES lanes span K; a workgroup takes `rounds` times
// R rows, and adds up its teams' sums once at the end. The next round's codes are on their way while one is computed.
// INTEGER: x is held as 16-bit fixed point of its block's largest value, in two planes of signed bytes, and multiplied by
// integer dot products, whose sums are exact. Else codes become floats (packed_code).
// Small floats of 4 bits (FP) are integers too: halves of -12 to 12.
// GATHER: index arrays say which matrix of x meets which weight.
// SETS: up to three matrices with the same x, their rounds one after another, or the first two interleaved for SwiGLU.
#define PRODUCT
#define HELD
#include "quant.glsl"
layout(constant_id = 5) const uint M = 1;              // rows of x a workgroup: 1, 2, 4
layout(constant_id = 6) const uint R = 4;              // rows of W a round: 1, 2, 4, 8
layout(constant_id = 7) const uint SPLIT = 1;
layout(constant_id = 8) const uint LANES = 32;
layout(constant_id = 9) const uint BL = 1;
layout(constant_id = 10) const uint BLOCKS = 32;       // K / 32
layout(constant_id = 11) const uint SHIFT = 1;         // a group is 1 << SHIFT blocks
layout(constant_id = 12) const uint EPILOGUE = 0;      // 1: + residual; 2: silu(first) * second
layout(constant_id = 13) const bool INTEGER = true;
layout(constant_id = 14) const uint PARTS = 256;       // rounds * M * R * SPLIT
layout(constant_id = 15) const bool NORM = false;      // x is normalised first: times rsqrt(mean square + eps) times a weight
layout(constant_id = 16) const uint TRIAL = 0;

#include "qmv.glsl"

const uint SCALES = TS == E4M3 ? 2 : 1;                // of a block
const uint GROUPS = SCALES * BLOCKS >> SHIFT;
const uint PER_BYTE = 8u / BITS;
shared float part[PARTS];

// What a lane holds of x: byte planes of word p of a block, or elements; the block's unit, sum of elements, of offsets.
int high[M * BL * 8], low[M * BL * 8];
float held[M * BL * 32], unit[M * BL], sum[M * BL * SCALES], offset[M * BL];
// Codes, scales and biases of a round's rows, the next ones on their way, and a round's results.
uint code[R * BL * BITS], scale[R * BL * SCALES], bias[R * BL], next_code[R * BL * BITS], next_scale[R * BL * SCALES], next_bias[R * BL];
float total[M * R];

// Byte b of plane word p belongs to this code of the block: the same class of each byte of a word of codes.
uint element_of(uint p, uint b) { return p / PER_BYTE * 4u * PER_BYTE + b * PER_BYTE + p % PER_BYTE; }

void hold_integers(uint h, float v[32])
{
    const uint even = 0x00ff00ffu;
    uint top = 0x0da24260u;                            // 1e-30; NaN and infinity compare greater than all numbers
    [[unroll]] for (uint e = 0u; e < 32u; e++) top = max(top, floatBitsToUint(v[e]) & 0x7fffffffu);
    float largest = uintBitsToFloat(top), to_unit = 32512.0 / largest;
    int uppers = 0, lowers = 0;
    [[unroll]] for (uint p = 0u; p < 8u; p++) {
        uint a[4];                                     // 1.5 * 2^23 + 128 + integer: its low half is 256 * high + 128 + low
        [[unroll]] for (uint b = 0u; b < 4u; b++) a[b] = floatBitsToUint(fma(v[element_of(p, b)], to_unit, 12583040.0));
        uint q = a[0] & 0xffffu | a[2] << 16, r = a[1] & 0xffffu | a[3] << 16;
        low[h * 8u + p] = int((q & even | r << 8 & ~even) ^ 0x80808080u);
        high[h * 8u + p] = int(q >> 8 & even | r & ~even);
        if (p == 4u && SCALES == 2u) {
            sum[h * SCALES] = float((uppers << 8) + lowers);
            uppers = lowers = 0;
        }
        uppers += dotPacked4x8EXT(high[h * 8u + p], 0x01010101);
        lowers += dotPacked4x8EXT(low[h * 8u + p], 0x01010101);
    }
    sum[h * SCALES + SCALES - 1u] = float((uppers << 8) + lowers);
    unit[h] = top >= 0x7f800000u ? NOT_A_NUMBER : largest / 32512.0;
}

void hold_floats(uint h, float v[32])
{
    float c[4];
    [[unroll]] for (uint e = 0u; e < 4u; e++) c[e] = 0.0;
    [[unroll]] for (uint e = 0u; e < 32u; e++) {
        held[h * 32u + e] = v[e];
        c[e % CLASSES] += v[e];
    }
    sum[h] = 0.0;
    offset[h] = 0.0;
    [[unroll]] for (uint e = 0u; e < CLASSES; e++) {
        sum[h] += c[e];
        offset[h] = fma(c[e], packed_offset(e), offset[h]);
    }
}

// What a lane reads of x, and of the norm's weight.
uvec4 raw_x[M * BL * 4], raw_weight[BL * 4];

void fetch(uint h, uint at) { [[unroll]] for (uint i = 0u; i < 4u; i++) raw_x[h * 4u + i] = x128[(at >> 3) + i]; }

// Holds block h, which is lane block l, times `factor`. Lanes without a block hold zeros.
void hold(uint h, uint l, float factor, bool inside)
{
    float v[32];
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        [[unroll]] for (uint e = 0u; e < 4u; e++) {
            vec2 two = inside ? two_numbers(raw_x[h * 4u + i][e], TX) : vec2(0.0);
            if (NORM) {
                two *= factor * two_numbers(raw_weight[l * 4u + i][e], TX);
                if ((TRIAL & 4u) == 0u) two = vec2(rounded(two.x, TX), rounded(two.y, TX));
            }
            v[8u * i + 2u * e] = two.x;
            v[8u * i + 2u * e + 1u] = two.y;
        }
    if ((TRIAL & 1u) != 0u) {
        [[unroll]] for (uint p = 0u; p < 8u; p++) { low[h * 8u + p] = floatBitsToInt(v[p] + v[p + 8u]); high[h * 8u + p] = floatBitsToInt(v[p + 16u] + v[p + 24u]); }
        unit[h] = v[0]; sum[h] = v[1];
    } else if (INTEGER) hold_integers(h, v);
    else hold_floats(h, v);
}

// SHARE: the workgroup prepares x together, EACH elements a thread, in shared memory.
const bool SHARE = (TRIAL & 16u) != 0u;
const uint EACH = BITS == 2u ? 16u : 8u, PIECES = 32u / EACH;
shared uvec4 plane[SHARE ? 4u * BLOCKS : 1u];          // words 0-3, 4-7 of the high plane, then of the low one
shared float plane_unit[SHARE ? BLOCKS : 1u], plane_sum[SHARE ? BLOCKS * SCALES : 1u];

void read_piece(uint at, out uvec4 q[2]) { [[unroll]] for (uint i = 0u; i < EACH / 8u; i++) q[i] = x128[(at >> 3) + i]; }

void share_piece(uint t, uvec4 q[2], uvec4 w[2], float factor)
{
    const uint even = 0x00ff00ffu;
    uint block = t / PIECES, piece = t % PIECES, top = 0x0da24260u;
    float v[16];
    [[unroll]] for (uint e = 0u; e < EACH / 2u; e++) {
        vec2 two = two_numbers(q[e / 4u][e % 4u], TX);
        if (NORM) {
            two *= factor * two_numbers(w[e / 4u][e % 4u], TX);
            if ((TRIAL & 4u) == 0u) two = vec2(rounded(two.x, TX), rounded(two.y, TX));
        }
        v[2u * e] = two.x;
        v[2u * e + 1u] = two.y;
        top = max(top, max(floatBitsToUint(two.x) & 0x7fffffffu, floatBitsToUint(two.y) & 0x7fffffffu));
    }
    [[unroll]] for (uint d = 1u; d < PIECES; d *= 2u) top = max(top, subgroupShuffleXor(top, d));
    float largest = uintBitsToFloat(top), to_unit = 32512.0 / largest;
    int uppers = 0, lowers = 0;
    bool inside = block < BLOCKS;
    [[unroll]] for (uint p = 0u; p < EACH / 4u; p++) {
        uint a[4], to = piece * (EACH / 4u) + p;
        [[unroll]] for (uint b = 0u; b < 4u; b++) a[b] = floatBitsToUint(fma(v[element_of(p, b)], to_unit, 12583040.0));
        uint c = a[0] & 0xffffu | a[2] << 16, d = a[1] & 0xffffu | a[3] << 16;
        uint l = (c & even | d << 8 & ~even) ^ 0x80808080u, h = c >> 8 & even | d & ~even;
        uppers += dotPacked4x8EXT(int(h), 0x01010101);
        lowers += dotPacked4x8EXT(int(l), 0x01010101);
        if (inside) {
            plane[to / 4u * BLOCKS + block][to % 4u] = h;
            plane[(2u + to / 4u) * BLOCKS + block][to % 4u] = l;
        }
    }
    int total_units = (uppers << 8) + lowers;
    [[unroll]] for (uint d = 1u; d < PIECES / SCALES; d *= 2u) total_units += subgroupShuffleXor(total_units, d);
    if (inside && piece == 0u) plane_unit[block] = top >= 0x7f800000u ? NOT_A_NUMBER : largest / 32512.0;
    if (inside && piece % (PIECES / SCALES) == 0u) plane_sum[block * SCALES + piece / (PIECES / SCALES)] = float(total_units);
}

#ifndef GATHER
shared float squares[(gl_WorkGroupSize.x / LANES) * M];
// The factor of row i's norm from what all its teams have read.
float squares_of(uint i, uint first)
{
    float y = 0.0;
    [[unroll]] for (uint l = 0u; l < BL; l++)
        [[unroll]] for (uint q = 0u; q < 4u; q++)
            [[unroll]] for (uint e = 0u; e < 4u; e++) {
                vec2 two = two_numbers(raw_x[(i * BL + l) * 4u + q][e], TX);
                if (first + l * (SPLIT * LANES) < BLOCKS) y += dot(two, two);
            }
    [[unroll]] for (uint d = LANES / 2u; d != 0u; d /= 2u) y += subgroupShuffleXor(y, d);
    return y;
}
#endif

// Row i of x, from element `at`, into shared memory.
void share(uint at, uint thread)
{
    const uint count = BLOCKS * PIECES, last = count - 1u;
    uvec4 q[2], w[2], next_q[2];
    float factor = 1.0;
    read_piece(at + EACH * min(thread, last), q);
#ifndef GATHER
    if (NORM) {
        float y = 0.0;
        [[unroll]] for (uint i = 0u; i < EACH / 8u; i++) w[i] = weight128[(weight_at + EACH * min(thread, last) >> 3) + i];
        for (uint from = 0u; from < count; from += gl_WorkGroupSize.x) {
            read_piece(at + EACH * min(thread + from, last), next_q);
            if (from == 0u) next_q = q;
            [[unroll]] for (uint e = 0u; e < EACH / 2u; e++) {
                vec2 two = two_numbers(next_q[e / 4u][e % 4u], TX);
                if (thread + from < count) y += dot(two, two);
            }
        }
        [[unroll]] for (uint d = LANES / 2u; d != 0u; d /= 2u) y += subgroupShuffleXor(y, d);
        if (gl_SubgroupInvocationID == 0u) squares[gl_SubgroupID] = y;
        barrier();
        y = 0.0;
        [[unroll]] for (uint i = 0u; i < gl_WorkGroupSize.x / LANES; i++) y += squares[i];
        factor = inversesqrt(y / float(k) + eps);
    }
#endif
    for (uint from = 0u; from < count; from += gl_WorkGroupSize.x) {
        if (from != 0u) {
            read_piece(at + EACH * min(thread + from, last), q);
#ifndef GATHER
            if (NORM) [[unroll]] for (uint i = 0u; i < EACH / 8u; i++) w[i] = weight128[(weight_at + EACH * min(thread + from, last) >> 3) + i];
#endif
        }
        share_piece(thread + from, q, w, factor);
    }
    barrier();
}

// Block h, which is lane block l, from there.
void take(uint h, uint block, bool inside)
{
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        uvec4 g = plane[i * BLOCKS + block], l = plane[(2u + i) * BLOCKS + block];
        [[unroll]] for (uint c = 0u; c < 4u; c++) {
            high[h * 8u + 4u * i + c] = int(g[c]);
            low[h * 8u + 4u * i + c] = int(l[c]);
        }
    }
    unit[h] = inside ? plane_unit[block] : 0.0;
    [[unroll]] for (uint i = 0u; i < SCALES; i++) sum[h * SCALES + i] = plane_sum[block * SCALES + i];
}

// The first of a round's rows: the last round's are moved back into the matrix.
uint first_row(uint set, uint row) { return min(row, rows[set] - R / STEP); }

#define LOAD_ROWS(name, set, slot, w, s, b) \
    void name(uint row, uint first) \
    { \
        uint n = first_row(set, row), at = w_matrix * w_batch + w_at[set] + n * (BLOCKS * BITS), group = w_matrix * s_batch + n * GROUPS; \
        [[unroll]] for (uint l = 0u; l < BL; l++) { \
            uint block = min(first + l * (SPLIT * LANES), BLOCKS - 1u), from = at + block * BITS; \
            uint s_from = s_at[set] + group + (SCALES * block >> SHIFT), b_from = b_at[set] + group + (block >> SHIFT); \
            [[unroll]] for (uint j = slot; j < R; j += STEP) { \
                uint to = j * BL + l, apart = j / STEP; \
                if (BITS == 2u) { \
                    uvec2 q = w##64[(from >> 1) + apart * BLOCKS]; \
                    next_code[to * BITS] = q.x; \
                    next_code[to * BITS + 1u] = q.y; \
                } else \
                    [[unroll]] for (uint i = 0u; i < BITS; i += 4u) { \
                        uvec4 q = w##128[(from >> 2) + (apart * (BLOCKS * BITS) + i >> 2)]; \
                        [[unroll]] for (uint c = 0u; c < 4u; c++) next_code[to * BITS + i + c] = q[c]; \
                    } \
                [[unroll]] for (uint h = 0u; h < SCALES; h++) next_scale[to * SCALES + h] = RAW(s, s_from + apart * GROUPS + h, TS); \
                if (!FP) next_bias[to] = RAW(b, b_from + apart * GROUPS, TS); \
            } \
        } \
    }
LOAD_ROWS(load_a, 0, 0u, wa, sa, ba)
#ifdef SETS
LOAD_ROWS(load_b, 1, STEP - 1u, wb, sb, bb)
LOAD_ROWS(load_c, 2, 0u, wc, sc, bc)
#endif

uint round_count()
{
    const uint per = R / STEP;
    uint count = (rows[0] + per - 1u) / per;
#ifdef SETS
    if (EPILOGUE != 2u) count += (rows[1] + per - 1u) / per + (rows[2] + per - 1u) / per;
#endif
    return count;
}

// Round r of all: its matrix, and the first of its rows.
uvec2 place_of(uint r)
{
    const uint per = R / STEP;
    uint set = 0u;
#ifdef SETS
    if (EPILOGUE != 2u)
        while (set < 2u && r >= (rows[set] + per - 1u) / per) r -= (rows[set++] + per - 1u) / per;
#endif
    return uvec2(set, r * per);
}

void load_round(uint r, uint first)
{
    uvec2 at = place_of(r);
#ifdef SETS
    if (EPILOGUE == 2u) { load_a(at.y, first); load_b(at.y, first); }
    else if (at.x == 1u) load_b(at.y, first);
    else if (at.x == 2u) load_c(at.y, first);
    else
#endif
        load_a(at.y, first);
}

// Four codes of 4 bits, one in each byte, as twice their value, and 12 more: 0 to 24.
int doubled(uint c)
{
    uint m = c & 0x07070707u, two = c >> 2u & c & 0x01010101u, three = c >> 2u & c >> 1u & 0x01010101u;
    uint v = m + two + 2u * three + 2u * (three & c);                  // 0, 1, 2, 3, 4, 6, 8, 12
    return int(0x0c0c0c0cu + v - 2u * (v & (c >> 3u & 0x01010101u) * 255u));
}

float small_product(uint i, uint j, uint l)
{
    uint h = i * BL + l, w = (j * BL + l) * BITS;
    float y = 0.0;
    [[unroll]] for (uint half_block = 0u; half_block < SCALES; half_block++) {
        int upper = 0, lower = 0;
        [[unroll]] for (uint q = 0u; q < 8u / SCALES; q++) {
            uint p = half_block * 4u + q;
            int four = doubled(code[w + p / 2u] >> p % 2u * 4u & 0x0f0f0f0fu);
            upper += dotPacked4x8EXT(four, high[h * 8u + p]);
            lower += dotPacked4x8EXT(four, low[h * 8u + p]);
        }
        float dot = fma(-12.0, sum[h * SCALES + half_block], float((upper << 8) + lower));
        y = fma(number(scale[(j * BL + l) * SCALES + half_block], TS), dot, y);
    }
    return 0.5 * unit[h] * y;
}

// Row j's codes of block l times what is held of row i of x.
float product(uint i, uint j, uint l)
{
    if (FP) return small_product(i, j, l);
    uint h = i * BL + l, w = (j * BL + l) * BITS;
    float s = number(scale[j * BL + l], TS), b = number(bias[j * BL + l], TS);
    if ((TRIAL & 2u) != 0u) return uintBitsToFloat((code[w] ^ code[w + 1u] ^ code[w + 2u] ^ code[w + 3u] ^ high[h * 8u + j]) & 0x3fffffffu) + s + b;
    if (INTEGER) {
        int upper = 0, lower = 0;
        [[unroll]] for (uint p = 0u; p < 8u; p++) {
            uint c = code[w + p / PER_BYTE];
            int four = BITS == 8u ? int(c ^ 0x80808080u) : int(c >> p % PER_BYTE * BITS & MASK * 0x01010101u);
            upper += dotPacked4x8EXT(four, high[h * 8u + p]);
            lower += dotPacked4x8EXT(four, low[h * 8u + p]);
        }
        if (BITS == 8u) b = fma(s, 128.0, b);
        return unit[h] * fma(s, float((upper << 8) + lower), b * sum[h]);
    }
    float dot = -offset[h];
    [[unroll]] for (uint e = 0u; e < 32u; e++) dot = fma(packed_code(code[w + e * BITS / 32u], e * BITS % 32u), held[h * 32u + e], dot);
    return fma(s, dot, b * sum[h]);
}

// Adds up over the lanes; the number of the sum that total[0] then is. Each step halves the sums that a lane looks after.
uint add_lanes(uint lane)
{
    uint which = 0u, n = M * R, d = LANES / 2u;
    [[unroll]] for (uint l = 0u; l < 7u; l++, d /= 2u) {
        if (d == 0u) break;
        bool upper = (lane & d) != 0u;
        if (n == 1u) {
            total[0] += subgroupShuffleXor(total[0], d);
            continue;
        }
        n /= 2u;
        which += upper ? n : 0u;
        [[unroll]] for (uint v = 0u; v < n; v++) {
            float away = upper ? total[v] : total[v + n];
            total[v] = (upper ? total[v + n] : total[v]) + subgroupShuffleXor(away, d);
        }
    }
    return which;
}

float sum_of(uint v)
{
    float y = 0.0;
    [[unroll]] for (uint t = 0u; t < SPLIT; t++) y += part[v * SPLIT + t];
    return y;
}

void main()
{
#ifdef GATHER
    y_matrix = first_entry + gl_WorkGroupID.z;
    x_matrix = X_MATRIX(y_matrix);
    w_matrix = min(rhs32[rhs_at + y_matrix], rhs_last);
#endif
    uint lane = gl_SubgroupInvocationID, team = gl_SubgroupID % SPLIT, apart = gl_WorkGroupSize.x / LANES / SPLIT;
    uint first = team * LANES + lane, m0 = gl_WorkGroupID.y * M, from = gl_WorkGroupID.x * rounds, count = round_count();
    uint until = min(rounds, count - min(from, count)), r = gl_SubgroupID / SPLIT;
    if (r < until) load_round(from + r, first);
    if (SHARE && INTEGER)
        [[unroll]] for (uint i = 0u; i < M; i++) {
            if (i != 0u) barrier();
            share(x_at + x_matrix * x_batch + min(m0 + i, m - 1u) * x_row, gl_SubgroupID * LANES + lane);
            [[unroll]] for (uint l = 0u; l < BL; l++) {
                uint block = first + l * (SPLIT * LANES);
                take(i * BL + l, min(block, BLOCKS - 1u), block < BLOCKS);
            }
        }
    else {
        [[unroll]] for (uint l = 0u; l < BL; l++) {
            uint block = min(first + l * (SPLIT * LANES), BLOCKS - 1u);
            [[unroll]] for (uint i = 0u; i < M; i++)
                fetch(i * BL + l, x_at + x_matrix * x_batch + min(m0 + i, m - 1u) * x_row + 32u * block);
#ifndef GATHER
            if (NORM) [[unroll]] for (uint i = 0u; i < 4u; i++) raw_weight[l * 4u + i] = weight128[(weight_at >> 3) + 4u * block + i];
#endif
        }
        float factor[M];
        [[unroll]] for (uint i = 0u; i < M; i++) factor[i] = 1.0;
#ifndef GATHER
        if (NORM) {
            [[unroll]] for (uint i = 0u; i < M; i++) {
                float y = squares_of(i, first);
                if (lane == 0u) squares[gl_SubgroupID * M + i] = y;
            }
            barrier();
            [[unroll]] for (uint i = 0u; i < M; i++) {
                float y = 0.0;
                [[unroll]] for (uint t = 0u; t < SPLIT; t++) y += squares[(gl_SubgroupID - team + t) * M + i];
                factor[i] = inversesqrt(y / float(k) + eps);
            }
        }
#endif
        [[unroll]] for (uint i = 0u; i < M; i++)
            [[unroll]] for (uint l = 0u; l < BL; l++) hold(i * BL + l, l, factor[i], first + l * (SPLIT * LANES) < BLOCKS);
    }
    for (; r < until; r += apart) {
        [[unroll]] for (uint i = 0u; i < R * BL * BITS; i++) code[i] = next_code[i];
        [[unroll]] for (uint i = 0u; i < R * BL; i++) bias[i] = next_bias[i];
        [[unroll]] for (uint i = 0u; i < R * BL * SCALES; i++) scale[i] = next_scale[i];
        if (r + apart < until) load_round(from + r + apart, first);
        [[unroll]] for (uint i = 0u; i < M; i++)
            [[unroll]] for (uint j = 0u; j < R; j++) {
                total[i * R + j] = product(i, j, 0u);
                [[unroll]] for (uint l = 1u; l < BL; l++) total[i * R + j] += product(i, j, l);
            }
        uint which = add_lanes(lane);
        if ((lane & (LANES / (M * R) - 1u)) == 0u) part[(r * M * R + which) * SPLIT + team] = total[0];
    }
    barrier();
    for (uint t = gl_LocalInvocationIndex; t < until * (R / STEP) * M; t += gl_WorkGroupSize.x) {
        uint i = t / (until * (R / STEP)), j = t % (until * (R / STEP)), v = j / (R / STEP) * M * R + i * R + j % (R / STEP) * STEP;
        uvec2 at = place_of(from + j / (R / STEP));
        uint n = first_row(at.x, at.y) + j % (R / STEP);
        if (m0 + i < m && n >= at.y) store(at.x, m0 + i, n, STEP == 2u ? swiglu(sum_of(v), sum_of(v + 1u)) : sum_of(v));
    }
}
