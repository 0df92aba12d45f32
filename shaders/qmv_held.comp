#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_integer_dot_product : require
// y = x W^T for a few rows of x in half types, 2, 4 or 8 bits, everything aligned. Each lane holds its part of x in registers,
// BL blocks of 32 elements, and meets row after row of W: SPLIT teams of LANES lanes span K; a workgroup takes `rounds` times
// R rows, and adds up its teams' sums once at the end. The next round's codes are asked for, into the same registers, before
// one's sums are added up over the lanes. That loop is there once: where a layer's steps together are more code than the
// instruction cache holds, all of them are slower (held_tunings in mlxvk.c).
// x is held as 16-bit fixed point of its block's largest value, in two planes of signed bytes, and multiplied by integer dot
// products, whose sums are exact. Small floats of 4 bits (FP) are integers too: halves of -12 to 12.
// NORM: x is normalised first, times rsqrt(mean square + eps) and a weight, by each workgroup for itself.
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
layout(constant_id = 12) const uint EPILOGUE = 0;     // of QMV_
layout(constant_id = 13) const bool NORM = false;
layout(constant_id = 14) const uint PARTS = 256;       // rounds * M * R * SPLIT

#include "qmv.glsl"

const uint SCALES = TS == E4M3 ? 2 : 1;                // of a block
const uint GROUPS = SCALES * BLOCKS >> SHIFT;
const uint PER_BYTE = 8u / BITS;
shared float part[PARTS];

// What a lane holds of x: byte planes of word p of a block; the block's unit and sum of elements.
int high[M * BL * 8], low[M * BL * 8];
float unit[M * BL], sum[M * BL * SCALES];
// Codes, scales and biases of a round's rows, and its results. Scales and biases of 16 bits are held as the words that they
// lie in, which are taken apart where they are used: a load of 16 bits would be waited for where it stands.
const bool WORDS = TS == BF16 || TS == F16;
uint code[R * BL * BITS], scale[R * BL * SCALES], bias[R * BL], scale_odd[STEP * BL], bias_odd[STEP * BL];
const uint MOST = 32;                                  // of M * R
float total[MOST];

// x is prepared by the workgroup together, EACH elements a thread, in shared memory, as many blocks at a time as its teams have lanes.
const uint CHUNK = SPLIT * LANES, EACH = BITS == 2u ? 16u : 8u, PIECES = 32u / EACH;
const uint OWN = (CHUNK * PIECES + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x;      // pieces of a thread
const bool ALL_HAVE = OWN * gl_WorkGroupSize.x == CHUNK * PIECES;     // else whole subgroups have none, and do nothing for them
shared uvec4 plane[4u * CHUNK];                        // words 0 to 3 and 4 to 7 of the high plane, then of the low one
shared float plane_unit[CHUNK], plane_sum[CHUNK * SCALES], squares[gl_WorkGroupSize.x / LANES];

// A thread's pieces of x, and of the norm's weight.
uvec4 piece[OWN * EACH / 8u], piece_weight[NORM ? OWN * EACH / 8u : 1u];

// A thread's pieces of chunk l of the row of x that begins at `at`; beyond the row its last one.
void read_pieces(const uint at, const uint l, const uint thread)
{
    [[unroll]] for (uint n = 0u; n < OWN; n++) {
        uint t = EACH * min(l * CHUNK * PIECES + n * gl_WorkGroupSize.x + thread, BLOCKS * PIECES - 1u);
        [[unroll]] for (uint i = 0u; i < EACH / 8u; i++) {
            piece[n * EACH / 8u + i] = x128[(at + t >> 3) + i];
#ifndef GATHER
            if (NORM) piece_weight[n * EACH / 8u + i] = weight128[(weight_at + t >> 3) + i];
#endif
        }
    }
}

// Byte b of plane word p belongs to this code of the block: the same class of each byte of a word of codes.
uint element_of(const uint p, const uint b) { return p / PER_BYTE * 4u * PER_BYTE + b * PER_BYTE + p % PER_BYTE; }

// A thread's piece n, which is the chunk's piece t, into the planes. A block's pieces lie in neighbouring lanes; behind the
// row's end there are zeros.
void prepare_piece(const uint n, const uint t, const float factor, const bool inside)
{
    const uint even = 0x00ff00ffu;
    uint block = t / PIECES, p0 = t % PIECES * (EACH / 4u), top = 0x0da24260u;     // 1e-30; NaN and infinity are greater than all numbers
    float v[16];
    [[unroll]] for (uint e = 0u; e < EACH / 2u; e++) {
        vec2 two = inside ? two_numbers(piece[n * EACH / 8u + e / 4u][e % 4u], TX) : vec2(0.0);
        if (NORM) {
            two = two * factor * two_numbers(piece_weight[n * EACH / 8u + e / 4u][e % 4u], TX);
            two = vec2(rounded(two.x, TX), rounded(two.y, TX));
        }
        v[2u * e] = two.x;
        v[2u * e + 1u] = two.y;
        top = max(top, max(floatBitsToUint(two.x) & 0x7fffffffu, floatBitsToUint(two.y) & 0x7fffffffu));
    }
    [[unroll]] for (uint d = 1u; d < PIECES; d *= 2u) top = max(top, subgroupShuffleXor(top, d));
    float largest = uintBitsToFloat(top), to_unit = 32512.0 / largest;
    int uppers = 0, lowers = 0;
    bool fits = block < CHUNK;
    [[unroll]] for (uint p = 0u; p < EACH / 4u; p++) {
        uint a[4], to = p0 + p;                        // 1.5 * 2^23 + 128 + integer: the low half is 256 * high + 128 + low
        [[unroll]] for (uint b = 0u; b < 4u; b++) a[b] = floatBitsToUint(fma(v[element_of(p, b)], to_unit, 12583040.0));
        uint c = a[0] & 0xffffu | a[2] << 16, d = a[1] & 0xffffu | a[3] << 16;
        uint l = (c & even | d << 8 & ~even) ^ 0x80808080u, h = c >> 8 & even | d & ~even;
        uppers += dotPacked4x8EXT(int(h), 0x01010101);
        lowers += dotPacked4x8EXT(int(l), 0x01010101);
        if (fits) {
            plane[to / 4u * CHUNK + block][to % 4u] = h;
            plane[(2u + to / 4u) * CHUNK + block][to % 4u] = l;
        }
    }
    int units = (uppers << 8) + lowers;
    [[unroll]] for (uint d = 1u; d < PIECES / SCALES; d *= 2u) units += subgroupShuffleXor(units, d);
    if (fits && p0 == 0u) plane_unit[block] = top >= 0x7f800000u ? NOT_A_NUMBER : largest / 32512.0;
    if (fits && p0 % (8u / SCALES) == 0u) plane_sum[block * SCALES + p0 * SCALES / 8u] = float(units);
}

#ifndef GATHER
// The factor of the norm of the row at `at`, whose first chunk has been read.
float norm_factor(const uint at, const uint thread)
{
    float y = 0.0;
    [[unroll]] for (uint l = 0u; l < BL; l++) {
        if (l != 0u) read_pieces(at, l, thread);
        [[unroll]] for (uint n = 0u; n < OWN; n++) {
            uint t = n * gl_WorkGroupSize.x + thread;
            bool inside = t < CHUNK * PIECES && l * CHUNK * PIECES + t < BLOCKS * PIECES;
            [[unroll]] for (uint e = 0u; e < EACH / 2u; e++) {
                vec2 two = two_numbers(piece[n * EACH / 8u + e / 4u][e % 4u], TX);
                if (inside) y += dot(two, two);
            }
        }
    }
    [[unroll]] for (uint d = LANES / 2u; d != 0u; d /= 2u) y += subgroupShuffleXor(y, d);
    if (gl_SubgroupInvocationID == 0u) squares[gl_SubgroupID] = y;
    barrier();
    y = 0.0;
    [[unroll]] for (uint i = 0u; i < gl_WorkGroupSize.x / LANES; i++) y += squares[i];
    if (BL > 1u) read_pieces(at, 0u, thread);
    return inversesqrt(y / float(k) + eps);
}
#endif

// Holds the row of x that begins at element `at`, whose first chunk has been read, as row i.
void hold(const uint i, const uint at, const uint thread, const uint first)
{
    float factor = 1.0;
#ifndef GATHER
    if (NORM) factor = norm_factor(at, thread);
#endif
    [[unroll]] for (uint l = 0u; l < BL; l++) {
        uint h = i * BL + l;
        if (l != 0u) read_pieces(at, l, thread);
        if (h != 0u) barrier();
        [[unroll]] for (uint n = 0u; n < OWN; n++) {
            uint t = n * gl_WorkGroupSize.x + thread;
            if (ALL_HAVE || t - gl_SubgroupInvocationID < CHUNK * PIECES)
                prepare_piece(n, t, factor, l * CHUNK * PIECES + t < BLOCKS * PIECES);
        }
        barrier();
        [[unroll]] for (uint p = 0u; p < 2u; p++) {
            uvec4 upper = plane[p * CHUNK + first], lower = plane[(2u + p) * CHUNK + first];
            [[unroll]] for (uint c = 0u; c < 4u; c++) {
                high[h * 8u + 4u * p + c] = int(upper[c]);
                low[h * 8u + 4u * p + c] = int(lower[c]);
            }
        }
        unit[h] = plane_unit[first];
        [[unroll]] for (uint c = 0u; c < SCALES; c++) sum[h * SCALES + c] = plane_sum[first * SCALES + c];
    }
}

// The first of a round's rows: the last round's are moved back into the matrix.
uint first_row(const uint set, const uint row) { return min(row, rows[set] - R / STEP); }

#define SCALE_WORD(name, i) (WORDS ? name##32[(i) >> 1] : RAW(name, i, TS))
#define LOAD_ROWS(name, set, slot, w, s, b) \
    void name(const uint row, const uint first) \
    { \
        uint n = first_row(set, row), at = w_matrix * w_batch + w_at[set] + n * (BLOCKS * BITS), group = w_matrix * s_batch + n * GROUPS; \
        [[unroll]] for (uint l = 0u; l < BL; l++) { \
            uint block = min(first + l * (SPLIT * LANES), BLOCKS - 1u), from = at + block * BITS; \
            uint s_from = s_at[set] + group + (SCALES * block >> SHIFT), b_from = b_at[set] + group + (block >> SHIFT); \
            scale_odd[slot * BL + l] = s_from; \
            bias_odd[slot * BL + l] = b_from; \
            [[unroll]] for (uint j = slot; j < R; j += STEP) { \
                uint to = j * BL + l, apart = j / STEP; \
                if (BITS == 2u) { \
                    uvec2 q = w##64[(from >> 1) + apart * BLOCKS]; \
                    code[to * BITS] = q.x; \
                    code[to * BITS + 1u] = q.y; \
                } else \
                    [[unroll]] for (uint i = 0u; i < BITS; i += 4u) { \
                        uvec4 q = w##128[(from >> 2) + (apart * (BLOCKS * BITS) + i >> 2)]; \
                        [[unroll]] for (uint c = 0u; c < 4u; c++) code[to * BITS + i + c] = q[c]; \
                    } \
                [[unroll]] for (uint h = 0u; h < SCALES; h++) scale[to * SCALES + h] = SCALE_WORD(s, s_from + apart * GROUPS + h); \
                if (!FP) bias[to] = SCALE_WORD(b, b_from + apart * GROUPS); \
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
    if (EPILOGUE != SWIGLU) count += (rows[1] + per - 1u) / per + (rows[2] + per - 1u) / per;
#endif
    return count;
}

// Round r of all: its matrix, and the first of its rows.
uvec2 place_of(uint r)
{
    const uint per = R / STEP;
    uint set = 0u;
#ifdef SETS
    if (EPILOGUE != SWIGLU)
        while (set < 2u && r >= (rows[set] + per - 1u) / per) r -= (rows[set++] + per - 1u) / per;
#endif
    return uvec2(set, r * per);
}

void load_round(const uint r, const uint first)
{
    uvec2 at = place_of(r);
#ifdef SETS
    if (EPILOGUE == SWIGLU) { load_a(at.y, first); load_b(at.y, first); }
    else if (at.x == 1u) load_b(at.y, first);
    else if (at.x == 2u) load_c(at.y, first);
    else
#endif
        load_a(at.y, first);
}

// Four codes of 4 bits, one in each byte, as twice their value, and 12 more: 0 to 24.
int doubled(const uint c)
{
    uint m = c & 0x07070707u, two = c >> 2u & c & 0x01010101u, three = c >> 2u & c >> 1u & 0x01010101u;
    uint v = m + two + 2u * three + 2u * (three & c);                  // 0, 1, 2, 3, 4, 6, 8, 12
    return int(0x0c0c0c0cu + v - 2u * (v & (c >> 3u & 0x01010101u) * 255u));
}

float small_product(const uint i, const uint j, const uint l)
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

// What is in `word` for row j, whose slot's first row has element `odd` of the scales or biases.
float scale_of(const uint word, const uint odd, const uint j) { return number(WORDS ? word >> (odd + j / STEP * GROUPS & 1u) * 16u & 0xffffu : word, TS); }

// Row j's codes of block l times what is held of row i of x.
float product(const uint i, const uint j, const uint l)
{
    if (FP) return small_product(i, j, l);
    uint h = i * BL + l, w = (j * BL + l) * BITS;
    float s = scale_of(scale[j * BL + l], scale_odd[j % STEP * BL + l], j), b = scale_of(bias[j * BL + l], bias_odd[j % STEP * BL + l], j);
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

// Adds up over the lanes; the number of the sum that total[0] then is. Each step halves the sums that a lane looks after.
// Written out: bounds that depend on a loop around them would cost an index into registers.
#define HALVE(n) \
    if (M * R >= n) { \
        const uint d = LANES * n / (2u * M * R); \
        bool upper = (lane & d) != 0u; \
        which += upper ? n / 2u : 0u; \
        [[unroll]] for (uint v = 0u; v < n / 2u; v++) { \
            float away = upper ? total[v] : total[v + n / 2u]; \
            total[v] = (upper ? total[v + n / 2u] : total[v]) + subgroupShuffleXor(away, d); \
        } \
    }
uint add_lanes(const uint lane)
{
    uint which = 0u;
    HALVE(32u)
    HALVE(16u)
    HALVE(8u)
    HALVE(4u)
    HALVE(2u)
    [[unroll]] for (uint d = LANES / (2u * M * R); d != 0u; d /= 2u) total[0] += subgroupShuffleXor(total[0], d);
    return which;
}

float sum_of(const uint v)
{
    float y = 0.0;
    [[unroll]] for (uint t = 0u; t < SPLIT; t++) y += part[v * SPLIT + t];
    return y;
}

// Which of all rounds a workgroup's round r is: all workgroups go through the rows side by side.
uint round_of(const uint r, const uint apart)
{
    return (r / apart * gl_NumWorkGroups.x + gl_WorkGroupID.x) * apart + r % apart;
}

// Result t of a workgroup: its set, its rows of x and of W, and which sum it is. False where there is none.
bool result_of(const uint t, const uint apart, const uint count, out uvec4 at)
{
    uint i = t / (rounds * (R / STEP)), j = t % (rounds * (R / STEP)), round = round_of(j / (R / STEP), apart);
    uvec2 place = place_of(min(round, count - 1u));
    uint n = first_row(place.x, place.y) + j % (R / STEP);
    at = uvec4(place.x, gl_WorkGroupID.y * M + i, n, j / (R / STEP) * M * R + i * R + j % (R / STEP) * STEP);
    return i < M && round < count && at.y < m && n >= place.y;
}

// Of one row of x, a thread's first result, of mostly one, is found while x is waited for, and what it is added to is asked for
// with x. More rows leave no registers for that: two of them took 15 % longer.
const bool EARLY = M == 1u;

void main()
{
#ifdef GATHER
    y_matrix = first_entry + gl_WorkGroupID.z;
    x_matrix = X_MATRIX(y_matrix);
    w_matrix = W_MATRIX(y_matrix);
    if (w_matrix >= weights) return;                   // the same for the whole workgroup
#endif
    const uint apart = gl_WorkGroupSize.x / LANES / SPLIT;                      // rounds at a time
    uint lane = gl_SubgroupInvocationID, team = gl_SubgroupID % SPLIT, thread = gl_SubgroupID * LANES + lane, first = team * LANES + lane;
    uint m0 = gl_WorkGroupID.y * M, count = round_count(), x_first = x_at + x_matrix * x_batch, r = gl_SubgroupID / SPLIT;
    uint at_once = gl_NumWorkGroups.x * apart, round = round_of(r, apart), mine = rounds / apart;   // rounds of this team
    mine = round < count ? min(mine, (count - round + at_once - 1u) / at_once) : 0u;
    if (mine != 0u) load_round(round, first);
    uvec4 result;
    bool has_result = EARLY && result_of(thread, apart, count, result);
#ifdef LINKED
    if (is_linked()) wait_for_link(thread);            // x is not there yet; the weights are
#endif
    read_pieces(x_first + m0 * x_row, 0u, thread);
    uint added = has_result && EPILOGUE == ADD ? residual_word(result.x, result.y, result.z) : 0u;
    [[unroll]] for (uint i = 0u; i < M; i++) {
        uint at = x_first + min(m0 + i, m - 1u) * x_row;
        if (i != 0u) read_pieces(at, 0u, thread);
        hold(i, at, thread, first);
    }
    for (uint n = 1u; n <= mine; n++, r += apart) {
        [[unroll]] for (uint i = 0u; i < M; i++)
            [[unroll]] for (uint j = 0u; j < R; j++) {
                total[i * R + j] = product(i, j, 0u);
                [[unroll]] for (uint l = 1u; l < BL; l++) total[i * R + j] += product(i, j, l);
            }
        if (n < mine) load_round(round + n * at_once, first);
        uint which = add_lanes(lane);
        if ((lane & (LANES / (M * R) - 1u)) == 0u) part[(r * M * R + which) * SPLIT + team] = total[0];
    }
    barrier();
    for (uint t = thread; t < rounds * (R / STEP) * M; t += gl_WorkGroupSize.x) {
        if (!EARLY || t != thread) {
            has_result = result_of(t, apart, count, result);
            if (EPILOGUE == ADD && has_result) added = residual_word(result.x, result.y, result.z);
        }
        if (!has_result) continue;
        float y = STEP == 2u ? swiglu(sum_of(result.w), sum_of(result.w + 1u)) : sum_of(result.w);
        store_added(result.x, result.y, result.z, y, residual_in(added, result.x, result.y, result.z));
    }
#ifdef LINKED
    count_for_link(thread);
#endif
}
