#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// y = x W^T for some dozens of rows of x in a half type (BF: bfloat16, else float16), 2, 4 or 8 bits with scales and biases of x's
// type. As in qmv_matrix.comp codes go into cooperative matrices as they are (codes.glsl), and each group's sum gets its scale and
// bias; but here they do so once for all rows: a subgroup has BANDS times 16 rows of W, and TILES times 16 of x, which the workgroup stages in
// shared memory as lanes need them. Which elements of a matrix a lane has must be as seen with NVIDIA's driver: matrices of
// 16 x 16 x 16, of 32 lanes. K may be cut into parts, whose sums are stored.
#ifdef BF
#extension GL_EXT_bfloat16 : require
#endif
#define PRODUCT
#include "quant.glsl"
layout(constant_id = 5) const uint GROUP = 64;         // codes of a group
layout(constant_id = 6) const uint CHUNK = 2;          // groups that are staged at a time
layout(constant_id = 7) const uint TILES = 4;          // of 16 rows of x
layout(constant_id = 8) const bool FULL = true;        // a chunk's groups are all there
layout(constant_id = 9) const uint BANDS = 2;          // of 16 rows of W
layout(constant_id = 10) const bool PARTS = false;     // K is cut into parts of `rounds` groups, whole chunks: float32 sums are stored
const bool DIGITS_OFF = false;
#include "codes.glsl"

SOURCE(0, x)
SOURCE(1, w)
SOURCE(2, s)
SOURCE(3, b)
TARGET(4, y)

const uint SIZE = 16, LANES = 32, STEPS = GROUP / SIZE, WARPS = gl_WorkGroupSize.x / LANES;
const uint AHEAD = 2;                                  // chunks whose codes are on their way
const uint FACTORS = (CHUNK * BANDS * SIZE + LANES - 1) / LANES;
const uint PIECES = (TILES * SIZE * CHUNK * 4 + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x;     // of x that a thread stages
#define MATRIX_A coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA>
#define MATRIX_B coopmat<T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>

const uint ROW = CHUNK * GROUP / 8 + 1;                // uvec4s of a staged row of x, padded
// Two chunks of x, by turns, in the order of codes; the sums of groups by rows.
shared uvec4 tile_x[2 * TILES * SIZE * ROW];
shared float tile_sum[2 * TILES * CHUNK * SIZE];
shared vec2 factor[WARPS * BANDS * SIZE * CHUNK];              // of a group of a row of W: scale, and bias less the offset

uvec2 magics;                                          // in registers: an instruction has one constant, the mask
uvec4 next_x[PIECES * CLASS / 8];
uint code[AHEAD * CHUNK * BANDS * 2 * WORDS], scale_of[AHEAD * FACTORS], bias_of[AHEAD * FACTORS];
float y[BANDS * TILES * 8];

// Group `first` + g, or another one where that is not this part's; full chunks go there as a whole.
uint group_of(const uint first, const uint g, const uint until) { return FULL ? min(first, until - CHUNK) + g : min(first + g, until - 1u); }

// A piece: a class of a group of the chunk, of a row of x. Threads behind the last row stage nothing.
struct place { uint row, group, part; };
place place_of(const uint piece) { return place(piece / 4u % SIZE + piece / (64u * CHUNK) * SIZE, piece / 64u % CHUNK, piece % 4u); }

void fetch(const uint first, const uint until, const uint m0, const uint thread)
{
    [[unroll]] for (uint q = 0u; q < PIECES; q++) {
        place p = place_of(thread + q * gl_WorkGroupSize.x);
        uint row = min(m0 + min(p.row, TILES * SIZE - 1u), m - 1u);
        uint at = x_at + row * x_row + min(first + p.group, until - 1u) * GROUP + p.part * CLASS;
        [[unroll]] for (uint i = 0u; i < CLASS / 8u; i++) next_x[q * (CLASS / 8u) + i] = x128[(at >> 3) + i];
    }
}

uint fetched(const uint piece, const uint word) { return next_x[piece * (CLASS / 8u) + word / 4u][word % 4u]; }

void stage(const uint turn, const uint thread)
{
    [[unroll]] for (uint q = 0u; q < PIECES; q++) {
        place p = place_of(thread + q * gl_WorkGroupSize.x);
        uint to = (turn * TILES * SIZE + p.row) * ROW + p.group * (GROUP / 8u);
        float sum = 0.0;
        [[unroll]] for (uint v = 0u; v < CLASS / 2u; v++) {
            uint low = low_of_pair(v), high = low + HALF;
            if (p.row < TILES * SIZE) tile_x[to + v][p.part] = two_of(fetched(q, low / 2u), fetched(q, high / 2u), low, high);
            vec2 both = two_numbers(fetched(q, v), TX);
            sum += both.x + both.y;
        }
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        if (p.part == 0u && p.row < TILES * SIZE) tile_sum[(turn * CHUNK + p.group) * (TILES * SIZE) + p.row] = sum;
    }
}

// Of the rows of W from n on: the words of group `first` + g that hold a lane's elements, of two rows of each band.
void load_codes(const uint a, const uint n, const uint first, const uint g, const uint until, const uint lane)
{
    const uint groups = k / GROUP;
    [[unroll]] for (uint h = 0u; h < 2u * BANDS; h++) {
        uint to = ((a * CHUNK + g) * 2u * BANDS + h) * WORDS, group = (n + lane / 4u + 8u * h) * groups + group_of(first, g, until);
        uint at = w_at[0] + group * (4u * WORDS) + lane % 4u * WORDS;
        if (WORDS == 1u) code[to] = w32[at];
        else if (WORDS == 2u) {
            uvec2 q = w64[at >> 1];
            code[to] = q.x;
            code[to + 1u] = q.y;
        } else
            [[unroll]] for (uint i = 0u; i < WORDS / 4u; i++) {
                uvec4 q = w128[(at >> 2) + i];
                [[unroll]] for (uint c = 0u; c < 4u; c++) code[to + 4u * i + c] = q[c];
            }
    }
}

void load_factors(const uint a, const uint n, const uint first, const uint until, const uint lane)
{
    const uint groups = k / GROUP;
    [[unroll]] for (uint i = 0u; i < FACTORS; i++) {
        uint f = min(i * LANES + lane, CHUNK * BANDS * SIZE - 1u);
        uint at = (n + f / CHUNK) * groups + group_of(first, f % CHUNK, until);
        scale_of[a * FACTORS + i] = s16[s_at[0] + at];
        bias_of[a * FACTORS + i] = b16[b_at[0] + at];
    }
}

void put_factors(const uint a, const uint lane)
{
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < FACTORS; i++) {
        uint f = i * LANES + lane;
        float scale = number(scale_of[a * FACTORS + i], TX), bias = number(bias_of[a * FACTORS + i], TX);
        if (f < CHUNK * BANDS * SIZE) factor[gl_SubgroupID * CHUNK * BANDS * SIZE + f] = vec2(scale, fma(-OFFSET, scale, bias));
    }
    subgroupBarrier();
}

MATRIX_A codes_matrix(const uint a, const uint g, const uint band, const uint j, const bool high)
{
    MATRIX_A c;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint t = 2u * j + i % 2u, h = 2u * band + i / 2u;
        uint two = code_pair(code[((a * CHUNK + g) * 2u * BANDS + h) * WORDS + t / HALF], t, high, magics);
#ifdef BF
        c[2u * i] = ELEMENT(two);
        c[2u * i + 1u] = ELEMENT(two >> 16);
#else
        f16vec2 v = unpackFloat2x16(two) - f16vec2(1024.0);
        c[2u * i] = v.x;
        c[2u * i + 1u] = v.y;
#endif
    }
    return c;
}

// Group g of the chunk that is staged: the sums of codes times x, with scale and bias.
void meet(const uint turn, const uint a, const uint g, const uint lane)
{
    SUMS sum[BANDS * TILES];
    [[unroll]] for (uint i = 0u; i < BANDS * TILES; i++) sum[i] = SUMS(0.0);
    [[unroll]] for (uint j = 0u; j < STEPS; j++)
        [[unroll]] for (uint high = 0u; high < (DIGITS ? 2u : 1u); high++) {
            MATRIX_A c[BANDS];
            [[unroll]] for (uint band = 0u; band < BANDS; band++) c[band] = codes_matrix(a, g, band, j, high != 0u);
            [[unroll]] for (uint t = 0u; t < TILES; t++) {
                MATRIX_B x;
                coopMatLoad(x, tile_x, (turn * TILES + t) * SIZE * ROW + g * (GROUP / 8u) + j * (SIZE / 8u), ROW, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint band = 0u; band < BANDS; band++) sum[band * TILES + t] = coopMatMulAdd(c[band], x, sum[band * TILES + t]);
            }
        }
    [[unroll]] for (uint t = 0u; t < TILES; t++) {
        float x_sum[4];
        uint at = ((turn * CHUNK + g) * TILES + t) * SIZE + lane % 4u * 2u;
        [[unroll]] for (uint i = 0u; i < 4u; i++) x_sum[i] = tile_sum[at + i % 2u + i / 2u * 8u];
        [[unroll]] for (uint band = 0u; band < BANDS; band++)
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                vec2 f = factor[((gl_SubgroupID * BANDS + band) * SIZE + lane / 4u + i / 4u * 8u) * CHUNK + g];
                uint to = (band * TILES + t) * 8u + i;
                y[to] = fma(f.x, sum[band * TILES + t][i], fma(f.y, x_sum[i % 4u], y[to]));
            }
    }
}

// A chunk of K, whose codes are those of turn a; the next one's x is staged meanwhile, and codes are asked for two chunks ahead.
void step_of(const uint chunk, const uint a, const uint n, const uint until, const uint m0, inout uint turn, const uint lane, const uint thread)
{
    fetch(chunk + CHUNK, until, m0, thread);
    put_factors(a, lane);
    load_factors(a, n, chunk + AHEAD * CHUNK, until, lane);
    [[unroll]] for (uint g = 0u; g < CHUNK; g++) {
        if (FULL || chunk + g < until) meet(turn, a, g, lane);
        load_codes(a, n, chunk + AHEAD * CHUNK, g, until, lane);
    }
    turn ^= 1u;
    stage(turn, thread);
    barrier();
}

void store(const uint m0, const uint n, const uint least, const uint lane)
{
    [[unroll]] for (uint i = 0u; i < BANDS * TILES * 8u; i++) {
        uint row = n + i / (8u * TILES) * SIZE + lane / 4u + i % 8u / 4u * 8u;
        uint column = m0 + i / 8u % TILES * SIZE + lane % 4u * 2u + i % 2u + i % 4u / 2u * 8u;
        if (column >= m || row < least) continue;      // those before are another subgroup's
        if (PARTS) y32[y_at[0] + (gl_WorkGroupID.z * m + column) * rows[0] + row] = floatBitsToUint(y[i]);
        else PUT(y, y_at[0] + column * y_row[0] + row, TY, float_to_bits(y[i], TY))
    }
}

void main()
{
    uint lane = gl_SubgroupInvocationID, thread = gl_SubgroupID * LANES + lane, m0 = gl_WorkGroupID.y * (TILES * SIZE), turn = 0u;
    uint least = (gl_WorkGroupID.x * WARPS + gl_SubgroupID) * (BANDS * SIZE), n = min(least, rows[0] - BANDS * SIZE);
    uint first = PARTS ? gl_WorkGroupID.z * rounds : 0u, until = PARTS ? min(first + rounds, k / GROUP) : k / GROUP;
    magics = uvec2(MAGIC, MAGIC_HIGH) + (m >> 31);     // no constants: + 0, which the compiler cannot know
    [[unroll]] for (uint i = 0u; i < BANDS * TILES * 8u; i++) y[i] = 0.0;
    fetch(first, until, m0, thread);
    [[unroll]] for (uint a = 0u; a < AHEAD; a++) {
        load_factors(a, n, first + a * CHUNK, until, lane);
        [[unroll]] for (uint g = 0u; g < CHUNK; g++) load_codes(a, n, first + a * CHUNK, g, until, lane);
    }
    stage(turn, thread);
    barrier();
    for (; first < until; first += AHEAD * CHUNK) {
        step_of(first, 0u, n, until, m0, turn, lane, thread);
        if (first + CHUNK >= until) break;
        step_of(first + CHUNK, 1u, n, until, m0, turn, lane, thread);
    }
    store(m0, n, least, lane);
}
