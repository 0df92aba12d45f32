#version 460
#extension GL_GOOGLE_include_directive : require
// Convolutions of one channel a group: a thread computes RUN neighbouring positions of the last axis, four channels of each.
// Here N is the number of channels. STAGE: a workgroup has `part` fours of channels side by side, and their kernel in shared
// memory, tap by tap. WIDE: that many taps lie along the last axis as far apart as positions; what they read is read once.
#define CONV
#include "matmul.glsl"
BUFFER(0, d)
BUFFER(1, a)
BUFFER(2, b)
ACCESS(d)
OPERAND(a)
OPERAND(b)
layout(constant_id = 3) const uint RUN = 4;
layout(constant_id = 4) const uint VECTOR = 0;        // bits: a, the result can be accessed by fours
layout(constant_id = 5) const uint STAGE = 0;         // fours of the kernel that there is room for
layout(constant_id = 6) const uint WIDE = 0;
shared float kernel[STAGE > 0u ? 4u * STAGE : 1u];           // [tap][channel]

vec4 load_a(const uint at, const uint valid)
{
    if ((VECTOR & 1u) != 0u) return get4_a(at);
    return vec4(get_a(at), valid > 1u ? get_a(at + 1u) : 0.0, valid > 2u ? get_a(at + 2u) : 0.0, valid > 3u ? get_a(at + 3u) : 0.0);
}

uint fours() { return (N + 3u) / 4u; }

void stage_kernel(const uint first)
{
    for (uint i = gl_LocalInvocationID.x; i < 4u * part * K; i += gl_WorkGroupSize.x) {      // K: taps, for C is 1
        uint c = i / K, tap = i % K;
        if (4u * first + c < N) kernel[tap * 4u * part + c] = get_b(offset_b + (4u * first + c) * b_row + reach(tap_at(tap)).b);
    }
    barrier();
}

// Of the channels from four f on, the first of which is c.
vec4 weights(const uint f, const uint c, const uint x, const uint y, const uint z)
{
    if (STAGE > 0u) {
        uint at = (((x * taps[1] + y) * taps[2] + z) * part + f % part) * 4u;
        return vec4(kernel[at], kernel[at + 1u], kernel[at + 2u], kernel[at + 3u]);
    }
    uint from = offset_b + c * b_row + reach(Tap(uvec3(x, y, z), 0u)).b, valid = min(N - c, 4u);
    return vec4(get_b(from), valid > 1u ? get_b(from + b_row) : 0.0, valid > 2u ? get_b(from + 2u * b_row) : 0.0,
                valid > 3u ? get_b(from + 3u * b_row) : 0.0);
}

vec4 sum[RUN];

// One line of taps.
void add_line(const Row row, const uint f, const uint c, const uint x, const uint y)
{
    uint valid = min(N - c, 4u), from = row.at + reach(Tap(uvec3(x, y, 0u), c)).a;
    int step = int(steps[2] & 0xffffu), apart = int(steps[2] >> 16);
    if (WIDE > 0u) {
        vec4 v[RUN + WIDE];
        [[unroll]] for (uint i = 0u; i < RUN + WIDE - 1u; i++) {   // no branches: all loads are under way at once
            int z = row.from.z + int(i) * apart, near = clamp(z, 0, int(in_size[2]) - 1);
            vec4 x = load_a(from + uint(near - row.from.z) * channels, valid);
            v[i] = z == near ? x : vec4(0.0);
        }
        [[unroll]] for (uint z = 0u; z < WIDE; z++) {
            vec4 w = weights(f, c, x, y, z);
            [[unroll]] for (uint r = 0u; r < RUN; r++) sum[r] = fma(v[r + z], w, sum[r]);
        }
        return;
    }
    for (uint z = 0u; z < taps[2]; z++) {
        vec4 w = weights(f, c, x, y, z);
        [[unroll]] for (uint r = 0u; r < RUN; r++)
            if (uint(row.from.z + int(z) * apart + int(r) * step) < in_size[2])
                sum[r] = fma(load_a(from + (z * uint(apart) + r * uint(step)) * channels, valid), w, sum[r]);
    }
}

void main()
{
    uint t = gl_LocalInvocationID.x, i = group_index() * gl_WorkGroupSize.x + t, f = i % fours(), run = i / fours();
    uint runs = (out_size[2] + RUN - 1u) / RUN, first, line, c;
    if (STAGE > 0u) {
        uint blocks = (fours() + part - 1u) / part, block = group_index() % blocks, high = gl_WorkGroupSize.x / part;
        stage_kernel(block * part);
        if (t / part >= high || block * part + t % part >= fours()) return;
        f = block * part + t % part;
        run = group_index() / blocks * high + t / part;
    }
    c = 4u * f;
    first = run % runs * RUN;
    line = run / runs;
    if (line * out_size[2] >= M) return;
    Row row = row_at(offset_a, line * out_size[2] + first);
    [[unroll]] for (uint r = 0u; r < RUN; r++) sum[r] = vec4(0.0);
    for (uint x = 0u; x < taps[0]; x++)
        for (uint y = 0u; y < taps[1]; y++) {
            uvec2 q = uvec2(row.from.xy + ivec2(x * (steps[0] >> 16), y * (steps[1] >> 16)));
            if (q.x < in_size[0] && q.y < in_size[1]) add_line(row, f, c, x, y);
        }
    [[unroll]] for (uint r = 0u; r < RUN; r++) {       // a loop would have all sums in memory on CPU drivers
        if (first + r >= out_size[2]) continue;
        uint to = out_at(offset_out, line * out_size[2] + first + r) + c;
        if ((VECTOR & 2u) != 0u) storef4_d(to / 4u, TYPE, sum[r]);
        else for (uint j = 0u; j < min(N - c, 4u); j++) storef_d(to + j, TYPE, sum[r][j]);
    }
}
