#version 460
#extension GL_GOOGLE_include_directive : require
// The gated delta rule along a sequence. Each row S of a head's state (value_width rows of key_width) goes its own way:
//   S = gate S;   S = S + beta (v - S k) k;   y = S q
// LANES threads have a row, in registers, and one dispatch goes through all tokens. A token needs one sum over the lanes:
// S k, S q and k q of the decayed state give y = S q + beta (v - S k) (k q) as well. Keys, queries and what belongs to them
// are staged for some tokens at once.
layout(constant_id = 1) const uint LANES = 8;          // threads of a row, a power of two
layout(constant_id = 2) const uint PARTS = 4;          // quads of elements of a thread, LANES quads apart
layout(constant_id = 3) const uint TOKENS = 8;         // staged at once
layout(constant_id = 4) const uint STEP = 1;           // elements of a load of queries and keys: 1 or 4
layout(constant_id = 5) const uint DTYPE = 10;
layout(constant_id = 6) const uint FLAGS = 0;
#include "floats.glsl"
//! enum DELTA_: flags
const uint MASK = 1u, VECTOR = 2u, STATE = 4u;         // gates of -infinity: tokens left out; a gate an element; a state to begin with

layout(push_constant) uniform gated_delta_push {
    uint batches, total, tokens, heads, group, key_width, value_width;   // tokens: of all `total` ones, that are done here
    uint y_at, state_at, q_at, k_at, v_at, gate_at, beta_at, given_at;
    uint q_stride[3], k_stride[3], v_stride[3];        // of batches, tokens, heads
};
FLOATS(0, y)
WORDS(1, state)
QUADS(2, q)
QUADS(3, k)
FLOATS(4, v)
FLOATS(5, gate)
FLOATS(6, beta)
WORDS(7, given)

const uint THREADS = gl_WorkGroupSize.x, ROWS = THREADS / LANES, WIDE = LANES * PARTS;   // WIDE: quads of a padded key
shared vec4 queries[TOKENS * WIDE], keys[TOKENS * WIDE], gates[(FLAGS & VECTOR) != 0u ? TOKENS * WIDE : TOKENS];
shared vec4 parts[2u * THREADS];                       // S k, S q and k q of a lane, of one token and the one before it
shared float values[TOKENS * ROWS], betas[TOKENS];

vec4 row_of_q(const uint at, const uint i)
{
    vec4 r = vec4(0.0);
    if (STEP == 4u) return i < key_width ? loadf4_q((at + i) / 4u, DTYPE) : r;
    [[unroll]] for (uint c = 0u; c < 4u; c++) if (i + c < key_width) r[c] = loadf_q(at + i + c, DTYPE);
    return r;
}
vec4 row_of_k(const uint at, const uint i)
{
    vec4 r = vec4(0.0);
    if (STEP == 4u) return i < key_width ? loadf4_k((at + i) / 4u, DTYPE) : r;
    [[unroll]] for (uint c = 0u; c < 4u; c++) if (i + c < key_width) r[c] = loadf_k(at + i + c, DTYPE);
    return r;
}

// Tokens from `first` on, of a batch and a head of values, and of the rows from `top` on.
void stage(const uint batch, const uint head, const uint top, const uint first, const uint count)
{
    uint me = gl_LocalInvocationID.x, key_head = head / group;
    for (uint i = me; i < count * WIDE; i += THREADS) {
        uint t = i / WIDE, c = i % WIDE * 4u;
        queries[i] = row_of_q(q_at + batch * q_stride[0] + (first + t) * q_stride[1] + key_head * q_stride[2], c);
        keys[i] = row_of_k(k_at + batch * k_stride[0] + (first + t) * k_stride[1] + key_head * k_stride[2], c);
        if ((FLAGS & VECTOR) != 0u)
            [[unroll]] for (uint e = 0u; e < 4u; e++)
                gates[i][e] = c + e < key_width
                    ? loadf_gate(gate_at + ((batch * total + first + t) * heads + head) * key_width + c + e, DTYPE) : 0.0;
    }
    for (uint i = me; i < count * ROWS; i += THREADS) {
        uint t = i / ROWS, row = top + i % ROWS;
        values[i] = row < value_width ? loadf_v(v_at + batch * v_stride[0] + (first + t) * v_stride[1] + head * v_stride[2] + row, DTYPE) : 0.0;
    }
    for (uint t = me; t < count; t += THREADS) {
        uint at = (batch * total + first + t) * heads + head;
        betas[t] = loadf_beta(beta_at + at, DTYPE);
        if ((FLAGS & VECTOR) == 0u) gates[t] = vec4(loadf_gate(gate_at + at, DTYPE));
    }
}

bool left_out(const uint t) { return floatBitsToUint(gates[(FLAGS & VECTOR) != 0u ? t * WIDE : t].x) == 0xff800000u; }

void main()
{
    uint me = gl_LocalInvocationID.x, lane = me % LANES, slot = me / LANES, blocks = (value_width + ROWS - 1u) / ROWS;
    uint group = group_index(), top = group % blocks * ROWS, head = group / blocks % heads, batch = group / blocks / heads;
    uint row = top + slot, at = ((batch * heads + head) * value_width + row) * key_width, turn = 0u;
    bool there = row < value_width;
    vec4 s[PARTS];
    if (batch >= batches) return;
    [[unroll]] for (uint j = 0u; j < PARTS; j++) {
        s[j] = vec4(0.0);
        if (there && (FLAGS & STATE) != 0u)
            [[unroll]] for (uint c = 0u; c < 4u; c++) {
                uint i = (lane + j * LANES) * 4u + c;
                if (i < key_width) s[j][c] = uintBitsToFloat(given32[given_at + at + i]);
            }
    }
    for (uint first = 0u; first < tokens; first += TOKENS) {
        uint count = min(TOKENS, tokens - first);
        barrier();
        stage(batch, head, top, first, count);
        barrier();
        for (uint t = 0u; t < count; t++) {
            uint to = y_at + ((batch * total + first + t) * heads + head) * value_width + row;
            vec4 sum = vec4(0.0);
            if ((FLAGS & MASK) != 0u && left_out(t)) {               // for all of the workgroup
                if (there && lane == 0u) storef_y(to, DTYPE, 0.0);
                continue;
            }
            [[unroll]] for (uint j = 0u; j < PARTS; j++) {
                uint i = t * WIDE + lane + j * LANES;
                s[j] *= (FLAGS & VECTOR) != 0u ? gates[i] : gates[t];
                sum.xyz += vec3(dot(s[j], keys[i]), dot(s[j], queries[i]), dot(keys[i], queries[i]));
            }
            parts[turn * THREADS + me] = sum;
            barrier();
            sum = vec4(0.0);
            [[unroll]] for (uint l = 0u; l < LANES; l++) sum += parts[turn * THREADS + slot * LANES + l];
            float delta = betas[t] * (values[t * ROWS + slot] - sum.x);
            [[unroll]] for (uint j = 0u; j < PARTS; j++) s[j] += delta * keys[t * WIDE + lane + j * LANES];
            if (there && lane == 0u) storef_y(to, DTYPE, sum.y + delta * sum.z);
            turn ^= 1u;
        }
    }
    if (!there) return;
    [[unroll]] for (uint j = 0u; j < PARTS; j++)
        [[unroll]] for (uint c = 0u; c < 4u; c++) {
            uint i = (lane + j * LANES) * 4u + c;
            if (i < key_width) state32[state_at + at + i] = floatBitsToUint(s[j][c]);
        }
}
