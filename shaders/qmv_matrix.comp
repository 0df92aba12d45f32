#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// y = x W^T for a few rows of x in a half type (BF: bfloat16, else float16), 2, 4 or 8 bits with scales and biases of x's
// type, by cooperative matrices: SIZE rows of W at a time, a round, meet SIZE rows of x.
// Codes are small integers, which x's type holds exactly: they go into the matrices as they are, offset by a power of two
// that takes no conversion (OFFSET), and each group's sum, in float32, gets its scale, its bias times the sum of the group's
// x, and what the offset added. The workgroup's subgroups span K, CHUNK groups each, whose x they hold in registers while
// round after round passes; the sums meet in shared memory, those of up to four rows of x when as many rounds have passed as there is
// room for: who adds them up holds up the others (with 8 rows, two rounds at once, 24576 x 4096 took 24.4 us instead of 23.3
// on an H200). A longer K is passed in several goes.
// The order of k within a group is chosen so that a lane's elements are the codes of words that it reads itself. Which
// elements a lane has, Vulkan does not say. KNOWN: they are those seen with NVIDIA's driver, and words go straight from
// memory into matrices; else element by element, each lane asking for its places.
#ifdef BF
#extension GL_EXT_bfloat16 : require
#endif
#define PRODUCT
#define PREPARED
#define MATRICES
#include "quant.glsl"
#include "halves.glsl"
#include "normed.glsl"
layout(constant_id = 5) const uint SIZE = 16;          // of a cooperative matrix: SIZE x SIZE x SIZE; 8 or 16
layout(constant_id = 6) const bool KNOWN = false;      // 16, of 32 lanes
layout(constant_id = 7) const uint LANES = 32;
layout(constant_id = 8) const uint GROUP = 64;         // codes of a group
layout(constant_id = 9) const uint CHUNK = 4;
layout(constant_id = 10) const uint GROUPS = 64;       // K / GROUP
layout(constant_id = 11) const uint EPILOGUE = 0;      // of QMV_
layout(constant_id = 12) const uint KEPT = 1;          // rounds of a workgroup whose sums are kept between goes
layout(constant_id = 13) const bool ROUNDED = false;   // KNOWN; codes meet x as values in x's type, a chunk's in one sum: chains
layout(constant_id = 14) const bool NARROW = false;    // KNOWN; up to 8 rows of x: those of the matrices' second half are not there
layout(constant_id = 15) const uint PREPARE = 0;       // NARROW; one row of x, of PREPARE_, a chunk in eights of the lanes
layout(constant_id = 16) const bool PAIRED = false;    // scales and biases begin at even elements: two of a row are a word
//! enum PREPARE_: what meets W: x as it is; rms_norm(x, weight), K in one go; silu(x) * weight. With the bits of norm.comp, binary.comp
const uint AS_IS = 0, NORMED = 1, GATED = 2;
#include "qmv.glsl"

const bool DIGITS_OFF = ROUNDED;
#include "codes.glsl"

const uint STEPS = GROUP / SIZE, WARPS = gl_WorkGroupSize.x / LANES, AREA = SIZE * SIZE;
const uint EACH = AREA / LANES;                        // elements of a lane
const uint ROW = GROUP / 8 + 1;                        // uvec4s of a staged row of x, padded
shared uvec4 stage[KNOWN ? 1 : WARPS * SIZE * ROW];
shared vec2 factor[WARPS * CHUNK * SIZE];              // of a group of a row of W: scale, and bias less the offset
shared float part[2 * WARPS * AREA], kept[KEPT * AREA];
shared vec4 square_sums[4];

#define MATRIX_A coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA>
#define MATRIX_B coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>
MATRIX_B held[CHUNK * STEPS];
uvec2 magics;                                          // in registers: an instruction has one constant, the mask
const uint SUMS_X = KNOWN ? EACH / 2 : EACH;           // known: the same for a lane's first and second row
float sum_x[CHUNK * SUMS_X];
SUMS row_of;
MATRIX_A place_of_element;
const bool FULL = GROUPS % CHUNK == 0u;                // a chunk's groups are all there, and lie side by side
const uint TOGETHER = PAIRED ? FULL ? CHUNK % 2 == 0 ? 2 : 1 : 1 : 1, FACTORS = (CHUNK * SIZE / TOGETHER + LANES - 1) / LANES;
uint code[2 * CHUNK * WORDS], scale_word[FACTORS], bias_word[FACTORS], odd_word[FACTORS];

// Round n of this workgroup's: the first of its rows of W, and the first of them that is read: the last round's are moved
// back. All workgroups go through the rounds side by side.
uvec2 place_of(const uint n)
{
    uint row = (n * gl_NumWorkGroups.x + gl_WorkGroupID.x) * SIZE;
    return uvec2(row, min(row, rows[0] - SIZE));
}

// ---- x ----

// Column `column` of step j of a group, as an element of the group, where places are not known.
uint element_of(const uint j, const uint column)
{
    uint t = j * (SIZE / 8u) + column / 8u, pair = column & 1u;
    return column % 8u / 2u * CLASS + t / HALF * 2u * HALF + t % HALF + pair * HALF;
}

// A piece is 16 elements of a group; its pair v of elements, and where in a staged row their word lies.
uint staged_word(const uint p, const uint v)
{
    uint at = p * 16u + low_of_pair(v), in_class = at % CLASS, t = in_class / (2u * HALF) * HALF + in_class % HALF;
    return (t / (SIZE / 8u) * SIZE + t % (SIZE / 8u) * 8u) / 2u + at / CLASS;
}

float gated(const float x, const float y) { return rounded(x * rounded(sigmoid_half(x), TX), TX) * y; }
vec2 two_numbers(const uint w) { return vec2(number(w & 0xffffu, TX), number(w >> 16, TX)); }
float added(const vec4 v) { return (v.x + v.y) + (v.z + v.w); }

// The sum of the row's squares, of which this thread has eight, by norm.comp's tree: an eight has a place, what is above 64 of
// them is added to what is below, half by half, and those by row_sum()'s steps. Places lie where parts will.
#define PLACES(i) vec4(part[4u * (i)], part[4u * (i) + 1u], part[4u * (i) + 2u], part[4u * (i) + 3u])
float row_squares(const uvec4 x, const uint thread)
{
    vec4 sum = vec4(0.0);
    float half_sum[2];
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        vec4 v = vec4(two_numbers(x[2u * i]), two_numbers(x[2u * i + 1u]));
        precise vec4 s = v * v;
        half_sum[i] = added(s);
    }
    part[thread] = half_sum[0] + half_sum[1];
    for (uint i = gl_WorkGroupSize.x + thread; i < 512u; i += gl_WorkGroupSize.x) part[i] = 0.0;
    barrier();
    if (thread < 16u) {
        vec4 part_of[8];
        [[unroll]] for (uint i = 0u; i < 8u; i++) part_of[i] = PLACES(thread + 16u * i);
        [[unroll]] for (uint d = 4u; d > 0u; d /= 2u)
            [[unroll]] for (uint i = 0u; i < d; i++) part_of[i] += part_of[i + d];
        square_sums[thread / 4u][thread % 4u] = added(part_of[0]);
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < 4u; i++) sum += square_sums[i];
    return added(sum);
}

// The eight of the row that is a lane's of the chunk from group `first` on.
uint own_eight(const uint first, const uint lane) { return min(first * GROUP + 8u * lane, GROUPS * GROUP - 8u) / 8u; }

// That eight as it meets W, for all lanes of the subgroup, which find it where its part `to` will be.
uint prepared_at;
void prepare_eight(const uint first, const uint x_first, const float factor, const uint to, const uint lane)
{
    uint at = own_eight(first, lane);
    uvec4 x = x128[(x_first >> 3) + at], w = weight128[(weight_at >> 3) + at];
    [[unroll]] for (uint c = 0u; c < 4u; c++) {
        vec2 a = two_numbers(x[c]), b = two_numbers(w[c]);
        precise vec2 r;
        if (PREPARE == NORMED) {
            r = a * factor;
            r = r * b;
            if (TX == BF16 && GROUPS * GROUP > SHORT && c >= 2u) r = vec2(cut(r.x), cut(r.y));
        } else r = vec2(gated(a.x, b.x), gated(a.y, b.y));
        x[c] = float_to_bits(r.x, TX) | float_to_bits(r.y, TX) << 16;
    }
    prepared_at = (to * WARPS + gl_SubgroupID) * AREA;
    subgroupBarrier();
    [[unroll]] for (uint c = 0u; c < 4u; c++) part[prepared_at + 4u * lane + c] = uintBitsToFloat(x[c]);
    subgroupBarrier();
}

// Group g's x, by way of shared memory; behind K there are zeros.
void hold_any(const uint g, const uint group, const uint x_first, const uint count, const uint lane)
{
    const uint base = gl_SubgroupID * SIZE * ROW, pieces = GROUP / 16u;
    subgroupBarrier();
    for (uint i = lane; i < count * pieces; i += LANES) {
        uint row = i / pieces, p = i % pieces, at = x_first + row * x_row + min(group, GROUPS - 1u) * GROUP + p * 16u;
        uint word[8];
        [[unroll]] for (uint c = 0u; c < 8u; c++) word[c] = group < GROUPS ? x128[(at >> 3) + c / 4u][c % 4u] : 0u;
        [[unroll]] for (uint v = 0u; v < 8u; v++) {
            uint low = low_of_pair(v), high = low + HALF, to = staged_word(p, v);
            stage[base + row * ROW + to / 4u][to % 4u] = two_of(word[low / 2u], word[high / 2u], low, high);
        }
    }
    subgroupBarrier();
    [[unroll]] for (uint j = 0u; j < STEPS; j++)
        coopMatLoad(held[g * STEPS + j], stage, base + j * SIZE / 8u, ROW, gl_CooperativeMatrixLayoutColumnMajor);
}

// The same straight from memory: a lane has a class of two rows of x.
void hold_known(const uint g, const uint group, const uint x_first, const uint count, const uint lane)
{
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        uint row = lane / 4u + 8u * h, word[CLASS / 2u];
        uint at = x_first + min(row, count - 1u) * x_row + min(group, GROUPS - 1u) * GROUP + lane % 4u * CLASS;
        [[unroll]] for (uint i = 0u; i < CLASS / 8u; i++) {
            uvec4 q = NARROW && h > 0u ? uvec4(0u) : PREPARE == AS_IS ? x128[(at >> 3) + i]
                    : floatBitsToUint(PLACES(prepared_at / 4u + (g * GROUP + lane % 4u * CLASS) / 8u + i));
            [[unroll]] for (uint c = 0u; c < 4u; c++) word[4u * i + c] = row < count && group < GROUPS ? q[c] : 0u;
        }
        [[unroll]] for (uint v = 0u; v < CLASS / 2u; v++) {
            uint low = low_of_pair(v), high = low + HALF, two = two_of(word[low / 2u], word[high / 2u], low, high);
            held[g * STEPS + v / 2u][4u * h + v % 2u * 2u] = ELEMENT(two);
            held[g * STEPS + v / 2u][4u * h + v % 2u * 2u + 1u] = ELEMENT(two >> 16);
        }
    }
}

// Holds the chunk's groups from `first` on.
void hold(const uint first, const uint x_first, const uint count, const uint lane)
{
    MATRIX_A one = MATRIX_A(T(1.0));
    [[unroll]] for (uint g = 0u; g < CHUNK; g++) {
        SUMS sum = SUMS(0.0);
        if (KNOWN) hold_known(g, first + g, x_first, count, lane);
        else hold_any(g, first + g, x_first, count, lane);
        [[unroll]] for (uint j = 0u; j < STEPS; j++) sum = coopMatMulAdd(one, held[g * STEPS + j], sum);
        [[unroll]] for (uint i = 0u; i < SUMS_X; i++) sum_x[g * SUMS_X + i] = sum[i];
    }
}

// Where places are not known: matrices of them. Rows of x that are not there are zeros.
void prepare(const uint lane)
{
    uint base = gl_SubgroupID * SIZE * ROW;
    for (uint i = lane; i < AREA / 8u; i += LANES) {
        uvec4 words;
        [[unroll]] for (uint c = 0u; c < 4u; c++) {
            float at = float(i * 8u + 2u * c);
            words[c] = float_to_bits(at, TX) | float_to_bits(at + 1.0, TX) << 16;
        }
        stage[base + i] = words;
    }
    subgroupBarrier();
    coopMatLoad(place_of_element, stage, base, SIZE / 8u, gl_CooperativeMatrixLayoutRowMajor);
    subgroupBarrier();
    for (uint i = lane; i < SIZE * ROW; i += LANES) stage[base + i] = uvec4(0u);
    if (gl_SubgroupID == 0u)
        for (uint i = lane; i < AREA; i += LANES) part[i] = float(i / SIZE);
    barrier();
    coopMatLoad(row_of, part, 0u, SIZE, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
}

// ---- W ----

// Group `first` + g, or another one where that is behind K; full chunks go there as a whole.
uint group_of(const uint first, const uint g) { return FULL ? min(first, GROUPS - CHUNK) + g : min(first + g, GROUPS - 1u); }

// Of the rows of W from n on: the words of group `first` + g that hold a lane's elements, of two rows. Full chunks' lie at
// constant distances, which take no arithmetic.
void load_codes(const uint n, const uint first, const uint g, const uint lane)
{
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        uint apart = (8u * h * GROUPS + (FULL ? g : 0u)) * (4u * WORDS), to = (g * 2u + h) * WORDS;
        uint group = (n + lane / 4u) * GROUPS + group_of(first, FULL ? 0u : g);
        uint at = w_matrix * w_batch + w_at[0] + group * (4u * WORDS) + lane % 4u * WORDS;
        if (WORDS == 1u) code[to] = wa32[at + apart];
        else if (WORDS == 2u) {
            uvec2 q = wa64[(at >> 1) + apart / 2u];
            code[to] = q.x;
            code[to + 1u] = q.y;
        } else
            [[unroll]] for (uint i = 0u; i < WORDS / 4u; i++) {
                uvec4 q = wa128[(at >> 2) + apart / 4u + i];
                [[unroll]] for (uint c = 0u; c < 4u; c++) code[to + 4u * i + c] = q[c];
            }
    }
}

// Scales and biases of a chunk's groups from `first` on, of 16 bits, as the words that they lie in.
void load_factors(const uint n, const uint first, const uint lane)
{
    [[unroll]] for (uint i = 0u; i < FACTORS; i++) {
        uint f = min((i * LANES + lane) * TOGETHER, CHUNK * SIZE - TOGETHER);
        uint at = w_matrix * s_batch + (n + f / CHUNK) * GROUPS + group_of(first, f % CHUNK);
        scale_word[i] = sa32[s_at[0] + at >> 1];
        bias_word[i] = ba32[b_at[0] + at >> 1];
        odd_word[i] = (s_at[0] + at & 1u) | (b_at[0] + at & 1u) << 1;
    }
}

// What has been loaded, for all lanes of the subgroup: scales, and biases less what the offset adds.
void put_factors(const uint lane)
{
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < FACTORS; i++)
        [[unroll]] for (uint t = 0u; t < TOGETHER; t++) {
            uint f = (i * LANES + lane) * TOGETHER + t;
            float s = number(scale_word[i] >> (TOGETHER > 1u ? t : odd_word[i] & 1u) * 16u & 0xffffu, TX);
            float b = number(bias_word[i] >> (TOGETHER > 1u ? t : odd_word[i] >> 1) * 16u & 0xffffu, TX);
            vec2 v = ROUNDED ? chain_factors(s, b) : vec2(s, fma(-OFFSET, s, b));
            if (f < CHUNK * SIZE) factor[gl_SubgroupID * CHUNK * SIZE + f] = v;
        }
    subgroupBarrier();
}

// The matrix of step j of group g in `code`; high: of upper digits. ROUNDED: of values, of two rows with these factors.
MATRIX_A known_matrix(const uint g, const uint j, const bool high, const vec4 factors)
{
    MATRIX_A a;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint t = 2u * j + i % 2u, w = (g * 2u + i / 2u) * WORDS + t / HALF, two = code_pair(code[w], t, high, magics);
        if (ROUNDED) {
            const uint bit = t % HALF * BITS, place = chain_place(bit);
            vec2 f = i < 2u ? factors.xy : factors.zw;
            if (place != 8u) f = chain_factors_high(f);
            float lower = chain_value(bit < place ? code[w] << place - bit : code[w] >> bit - place, place, magics.x, f);
            float upper = chain_value(code[w] >> bit + 16u - place, place, magics.x, f);
#ifdef BF
            a[2u * i] = uintBitsToBFloat16EXT(unpack16(floatBitsToUint(lower)).y);
            a[2u * i + 1u] = uintBitsToBFloat16EXT(unpack16(floatBitsToUint(upper)).y);
#else
            a[2u * i] = T(lower);
            a[2u * i + 1u] = T(upper);
#endif
            continue;
        }
#ifdef BF
        a[2u * i] = ELEMENT(two);
        a[2u * i + 1u] = ELEMENT(two >> 16);
#else
        f16vec2 v = unpackFloat2x16(two) - f16vec2(1024.0);
        a[2u * i] = v.x;
        a[2u * i + 1u] = v.y;
#endif
    }
    return a;
}

// The same where a lane's elements are any.
MATRIX_A any_matrix(const uint row, const uint g, const uint j, const bool high)
{
    MATRIX_A a;
    for (uint i = 0u; i < a.length(); i++) {
        uint place = uint(place_of_element[i]), k = min(g, GROUPS - 1u) * GROUP + element_of(j, place % SIZE), n = row + place / SIZE;
        uint c = wa32[w_matrix * w_batch + w_at[0] + n * (4u * WORDS * GROUPS) + k * BITS / 32u] >> k * BITS % 32u & MASK;
        if (DIGITS) c = high ? c & 0xf0u : c & 0xfu;
        a[i] = T(float(c) + (high ? 2048.0 : OFFSET != 0.0 ? 128.0 : 0.0));
    }
    return a;
}

// Groups `first` and on of those rows of W with what is held of x, into a slot of `to` of the parts; next: what is read after
// them, each group's words where this one's have been used. There they stay for the barriers: NVIDIA's driver asks for all of
// them at once else, where it likes (at a round's end 24576 x 4096 took 30.9 us on an H200, so 26.1).
void meet(const uint row, const uint first, const uint next, const uint next_first, const uint to, const uint slot, const uint lane)
{
    SUMS y = SUMS(0.0);
    put_factors(lane);
    load_factors(next, next_first, lane);
    [[unroll]] for (uint g = 0u; g < CHUNK; g++) {
        SUMS sum = SUMS(0.0);
        vec4 f = vec4(0.0);
        if (ROUNDED) {
            uint at = (gl_SubgroupID * SIZE + lane / 4u) * CHUNK + g;
            f = vec4(factor[at], factor[at + 8u * CHUNK]);
            sum = y;
        }
        [[unroll]] for (uint j = 0u; j < STEPS; j++)
            [[unroll]] for (uint high = 0u; high < (DIGITS ? 2u : 1u); high++) {
                if (KNOWN) sum = coopMatMulAdd(known_matrix(g, j, high != 0u, f), held[g * STEPS + j], sum);
                else sum = coopMatMulAdd(any_matrix(row, first + g, j, high != 0u), held[g * STEPS + j], sum);
            }
        if (KNOWN) {
            load_codes(next, next_first, g, lane);
            if (g % 2u == 1u) subgroupBarrier();
        }
        if (ROUNDED) {
            y = sum;
            continue;
        }
        [[unroll]] for (uint i = 0u; i < EACH; i++) {
            uint r = KNOWN ? lane / 4u + i / 4u * 8u : uint(row_of[i]);
            vec2 f = factor[gl_SubgroupID * CHUNK * SIZE + r * CHUNK + g];
            y[i] = fma(f.x, sum[i], fma(f.y, sum_x[g * SUMS_X + i % SUMS_X], y[i]));
        }
    }
    const uint at = (to * WARPS + gl_SubgroupID) * AREA;
    if (NARROW)                                        // nothing asks for the second half, and the compiler leaves it out
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint column = lane % 4u * 2u + i % 2u;
            if (column < m) part[at + (slot * m + column) * SIZE + lane / 4u + i / 2u * 8u] = y[i / 2u * 4u + i % 2u];
        }
    else coopMatStore(y, part, at, SIZE, gl_CooperativeMatrixLayoutColumnMajor);
}

// What a thread's first result is added to is asked for with x, as the word it lies in; most threads have no other.
uint added_first(const uint rounds, const uint each, const uint m0, const uint thread)
{
    uint e = thread % each;
    if (EPILOGUE != ADD || thread >= rounds * each) return 0u;
    return residual_word(0u, m0 + e / SIZE, place_of(thread / each).y + e % SIZE);
}

// Adds up the parts `from` of `count` rounds from round n on. A thread has the same elements in all goes.
void finish(const uint n, const uint count, const uint from, const bool started, const bool last, const uint m0, const uint thread, const uint first)
{
    const uint each = min(m - m0, SIZE) * SIZE;
    for (uint t = thread; t < count * each; t += gl_WorkGroupSize.x) {
        uint round = n + t / each, e = t % each;
        uvec2 at = place_of(round);
        float y = started ? kept[round * AREA + e] : 0.0;
        [[unroll]] for (uint i = 0u; i < WARPS; i++) y += part[(from * WARPS + i) * AREA + t];
        uint row = at.y + e % SIZE;
        if (!last) kept[round * AREA + e] = y;
        else if (row >= at.x) {                                                // those before are another round's
            uint i = m0 + e / SIZE, added = n == 0u && t == thread || EPILOGUE != ADD ? first : residual_word(0u, i, row);
            store_added(0u, i, row, y, residual_in(added, 0u, i, row));
        }
    }
}

void main()
{
    const uint goes = (GROUPS + CHUNK * WARPS - 1u) / (CHUNK * WARPS);
    float factor = 1.0;
    uint lane = gl_SubgroupInvocationID, thread = gl_SubgroupID * LANES + lane, first = gl_SubgroupID * CHUNK;
    uint m0 = gl_WorkGroupID.y * SIZE, x_first = x_at + x_matrix * x_batch + m0 * x_row, to = 0u;
    uint slots = NARROW && m <= 4u ? SIZE / m : 1u, slot = 0u;                  // rounds whose parts there is room for
    uint count = (rows[0] + SIZE - 1u) / SIZE, mine = (count - gl_WorkGroupID.x + gl_NumWorkGroups.x - 1u) / gl_NumWorkGroups.x;
    uvec2 at = place_of(0u);
    magics = uvec2(ROUNDED ? CHAIN_MAGIC : MAGIC, MAGIC_HIGH) + (m >> 31);         // no constants: + 0, which the compiler cannot know
    if (!KNOWN) prepare(lane);
    load_factors(at.y, first, lane);
    if (KNOWN)
        [[unroll]] for (uint g = 0u; g < CHUNK; g++) load_codes(at.y, first, g, lane);
    if (is_linked()) wait_for_link(thread);            // x is not there yet, nor what it is multiplied by; the weights are
    uint added = added_first(min(slots, mine), min(m - m0, SIZE) * SIZE, m0, thread);
    if (PREPARE == NORMED) factor = norm_factor(row_squares(x128[(x_first >> 3) + own_eight(first, lane)], thread), k, eps);
    for (uint c = 0u; c < goes; c++) {
        if (PREPARE != AS_IS) prepare_eight(first, x_first, factor, to, lane);
        hold(first, x_first, min(m - m0, SIZE), lane);
        for (uint n = 0u; n < mine; n++) {
            bool last = n + 1u == mine;
            uint next_first = last ? first + WARPS * CHUNK : first;
            uvec2 next = place_of(last ? 0u : n + 1u);
            meet(at.y, first, next.y, next_first, to, slot, lane);
            if (++slot == slots || last) {
                barrier();
                finish(n + 1u - slot, slot, to, c != 0u, c + 1u == goes, m0, thread, added);
                slot = 0u;
                to ^= 1u;
            }
            first = next_first;
            at = next;
        }
    }
    count_for_link(thread);
}
