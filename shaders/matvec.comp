#version 460
#extension GL_GOOGLE_include_directive : require
// Products of few rows (at most FEW, of a) with a matrix b that is contiguous along K: a workgroup computes WIDE columns of the
// result, its threads share K. 16 bytes a load where VECTOR says that a and b allow it.
#include "matmul.glsl"
#ifdef SUBGROUP
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
layout(constant_id = 3) const uint FEW = 1;
layout(constant_id = 4) const uint WIDE = 4;
layout(constant_id = 5) const uint VECTOR = 0;
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
BUFFER(3, c)
ACCESS(d)
OPERAND(a)
OPERAND(b)
OPERAND(c)

const uint SUMS = FEW * WIDE;
#ifdef SUBGROUP
shared float partial[gl_WorkGroupSize.x / 4 * SUMS];   // a subgroup has four invocations or more
#else
shared float partial[gl_WorkGroupSize.x * SUMS];
#endif

#if !defined(SUBGROUP) && !defined(GATHER)
#define LOOSE
// Rows that begin anywhere (VECTOR 2): a thread takes four chunks side by side, by the aligned 16 bytes that hold them, of which
// there may be one more.
const uint WORDS = 16u, SPAN = WORDS / 4u * CHUNK;
uint words[WORDS + 4u];                                // as they are in memory, then from element `from` on
void line_up(const bool of_b, const uint from)
{
    uint s = from / (CHUNK / 4u);
    [[unroll]] for (uint q = 0u; q <= WORDS / 4u; q++) {
        uint i = min(from / CHUNK + q, (from + SPAN - 1u) / CHUNK);
        uvec4 v;
        if (of_b) v = b128[i];
        else v = a128[i];
        [[unroll]] for (uint l = 0u; l < 4u; l++) words[4u * q + l] = v[l];
    }
    [[unroll]] for (uint i = 0u; i < WORDS + 2u; i++) words[i] = (s & 2u) != 0u ? words[i + 2u] : words[i];
    [[unroll]] for (uint i = 0u; i < WORDS + 1u; i++) words[i] = (s & 1u) != 0u ? words[i + 1u] : words[i];
    if (TYPE != F32)
        [[unroll]] for (uint i = 0u; i < WORDS; i++)
            words[i] = (from & 1u) != 0u ? words[i] >> 16 | words[i + 1u] << 16 : words[i];
}
vec2 pair(const uint w) { return TYPE == F32 ? vec2(uintBitsToFloat(w)) : halves(w); }
#endif

float[8] unpack(const uvec4 w)
{
    vec2 x = halves(w.x), y = halves(w.y), z = halves(w.z), u = halves(w.w);
    return float[8](x.x, x.y, y.x, y.y, z.x, z.y, u.x, u.y);
}

void main()
{
    const uint size = gl_WorkGroupSize.x;
    uint t = gl_LocalInvocationID.x, first = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * WIDE, k = 0u;
    Place p = place(gl_WorkGroupID.z);
    SKIP_OTHERS(p)
    float sum[SUMS];
    uint from_b[WIDE], from_a[FEW];
    if (first >= N) return;
    [[unroll]] for (uint i = 0; i < SUMS; i++) sum[i] = 0.0;
    [[unroll]] for (uint j = 0; j < WIDE; j++) from_b[j] = p.b + min(first + j, N - 1u) * b_col;      // repeated at the edges
    [[unroll]] for (uint i = 0; i < FEW; i++) from_a[i] = p.a + min(i, M - 1u) * a_row;

    k = p.low + t;
#ifdef LOOSE
    if (VECTOR == 2u) {
        for (k = p.low + t * SPAN; k + SPAN <= p.high; k += size * SPAN) {
            uint x[FEW][WORDS];
            [[unroll]] for (uint i = 0; i < FEW; i++) {
                line_up(false, from_a[i] + k);
                [[unroll]] for (uint l = 0u; l < WORDS; l++) x[i][l] = words[l];
            }
            [[unroll]] for (uint j = 0; j < WIDE; j++) {
                line_up(true, from_b[j] + k);
                [[unroll]] for (uint i = 0; i < FEW; i++)
                    [[unroll]] for (uint l = 0u; l < WORDS; l++) {
                        vec2 u = pair(x[i][l]), v = pair(words[l]);
                        sum[i * WIDE + j] = fma(u.x, v.x, sum[i * WIDE + j]);
                        if (TYPE != F32) sum[i * WIDE + j] = fma(u.y, v.y, sum[i * WIDE + j]);
                    }
            }
        }
        k = p.low + (p.high - p.low) / SPAN * SPAN + t;
    } else
#endif
    if (VECTOR != 0u) {
        for (k = p.low + t * CHUNK; k + CHUNK <= p.high; k += size * CHUNK) {
            uvec4 w[WIDE];
            [[unroll]] for (uint j = 0; j < WIDE; j++) w[j] = b128[(from_b[j] + k) / CHUNK];
            if (TYPE == F32) {
                [[unroll]] for (uint i = 0; i < FEW; i++) {
                    vec4 x = uintBitsToFloat(a128[(from_a[i] + k) / CHUNK]);
                    [[unroll]] for (uint j = 0; j < WIDE; j++) sum[i * WIDE + j] += dot(x, uintBitsToFloat(w[j]));
                }
            } else {
                float x[FEW][8];
                [[unroll]] for (uint i = 0; i < FEW; i++) x[i] = unpack(a128[(from_a[i] + k) / CHUNK]);
                [[unroll]] for (uint j = 0; j < WIDE; j++) {
                    float y[8] = unpack(w[j]);
                    [[unroll]] for (uint i = 0; i < FEW; i++)
                        [[unroll]] for (uint l = 0; l < 8; l++) sum[i * WIDE + j] = fma(x[i][l], y[l], sum[i * WIDE + j]);
                }
            }
        }
        k = p.low + (p.high - p.low) / CHUNK * CHUNK + t;
    }
    for (; k < p.high; k += size) {
        float y[WIDE];
        [[unroll]] for (uint j = 0; j < WIDE; j++) y[j] = get_b(from_b[j] + k * b_k);
        [[unroll]] for (uint i = 0; i < FEW; i++) {
            float x = get_a(from_a[i] + k * a_k);
            [[unroll]] for (uint j = 0; j < WIDE; j++) sum[i * WIDE + j] = fma(x, y[j], sum[i * WIDE + j]);
        }
    }

#ifdef SUBGROUP
    uint groups = gl_NumSubgroups;
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        float all = subgroupAdd(sum[i]);
        if (subgroupElect()) partial[gl_SubgroupID * SUMS + i] = all;
    }
#else
    uint groups = size;
    [[unroll]] for (uint i = 0; i < SUMS; i++) partial[t * SUMS + i] = sum[i];
#endif
    barrier();
    for (uint i = t; i < SUMS; i += size) {
        uint row = i / WIDE, column = first + i % WIDE;
        float v = 0.0;
        if (row >= M || column >= N) continue;
        for (uint g = 0u; g < groups; g++) v += partial[g * SUMS + i];
        if (EPILOGUE == SCALE) v = SCALED(v, get_c(p.c + row * c_row + column * c_col));
        storef_d(p.d + row * out_row + column * out_col, TO, v);
    }
}
