#version 460
#extension GL_GOOGLE_include_directive : require
// The gradient of gated_delta.comp's recurrence. With dS, the gradient of a row S of the state behind a token, and o that of
// the token's result y:
//   dS = dS + o q;   w = dS k;   u = v - gate S k, of the state in front of the token
//   dq = sum over rows of o (gate S + beta u k),   dk = sum over rows of beta (u dS - w gate S),   dv = beta w
//   dbeta = sum over rows of w u;   dS = dS - beta w k;   dgate = sum over rows of dS S;   dS = gate dS
// A workgroup has a block of rows of one head, a thread 8 of them by 8 columns, in registers. What it needs of states is
// computed twice: FORWARD leaves one in front of each segment of EVERY tokens; BACKWARD goes through the segments from the
// last one on, computes a segment's states again, leaves them in memory, and then goes back. A state in memory is only ever
// read by the thread that wrote it. Sums over rows of other blocks, and over heads with the same keys, are left to reductions.
//! enum DELTA_VJP_: modes
const uint FORWARD = 0, BACKWARD = 1;
layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint COLUMNS = 16;       // groups of eight columns, a power of two
layout(constant_id = 3) const uint TOKENS = 4;         // staged at once
layout(constant_id = 4) const uint EVERY = 16;         // tokens of a segment, a multiple of TOKENS
layout(constant_id = 5) const uint DTYPE = 10;
layout(constant_id = 6) const bool VECTOR = false;      // a gate a column
#include "floats.glsl"

layout(push_constant) uniform gated_delta_vjp_push {
    uint item, items, total, tokens, segment, segments, heads, group, blocks, key_width, value_width, state;   // state: there is one, or a gradient of it, to begin with
    uint parts_at, dv_at, dstate_at, q_at, k_at, values_at, gates_at, replay_at;
};
WORDS(0, parts)                                        // of each token, head and block: KINDS rows of key_width, dbeta, dgate
FLOATS(1, dv)
WORDS(2, dstate)                                       // FORWARD: the first state
FLOATS(3, q)
FLOATS(4, k)
FLOATS(5, v)                                           // of each token and head: a value and y's cotangent
FLOATS(6, gate)                                        // gates and beta
layout(std430, set = 0, binding = 7) buffer saved_quads { uvec4 saved128[]; };

const uint THREADS = gl_WorkGroupSize.x, GROUPS = THREADS / COLUMNS, ROWS = 8u * GROUPS, WIDE = 2u * COLUMNS, TILE = 16u;
const uint PITCH = COLUMNS > 1u ? COLUMNS + 1u : 1u, KINDS = VECTOR ? 3u : 2u;
shared vec4 keys[TOKENS * WIDE], queries[TOKENS * WIDE], gates[VECTOR ? TOKENS * WIDE : TOKENS];
shared vec4 board[6u * THREADS];                       // parts of sums over columns, then of those over rows
shared float values[TOKENS * ROWS], cotangents[TOKENS * ROWS], betas[TOKENS], of_beta[TOKENS * ROWS], of_gate[TOKENS * WIDE];
shared vec2 seen[ROWS];                                // gate S k and dS k of a row

uint me, column, rows_at, batch, head, block, top;
vec4 s[TILE], d[TILE];                                 // the state and its gradient: row i / 2, quads `column` and COLUMNS further

uint state_place(const uint i, const uint c)           // ~0: outside
{
    uint row = top + rows_at + i / 2u, x = (column + i % 2u * COLUMNS) * 4u + c;
    return row < value_width && x < key_width ? ((batch * heads + head) * value_width + row) * key_width + x : ~0u;
}
uint token_of(const uint t) { return (batch * total + t) * heads + head; }
uint part_place(const uint t) { return parts_at + (token_of(t) * blocks + block) * (KINDS * key_width + 2u); }

void stage(const uint first, const uint count)
{
    for (uint i = me; i < count * WIDE * 4u; i += THREADS) {
        uint t = i / (WIDE * 4u), x = i % (WIDE * 4u), at = ((batch * total + first + t) * (heads / group) + head / group) * key_width + x;
        bool there = x < key_width;
        keys[i / 4u][i % 4u] = there ? loadf_k(k_at + at, DTYPE) : 0.0;
        if (MODE == BACKWARD) queries[i / 4u][i % 4u] = there ? loadf_q(q_at + at, DTYPE) : 0.0;
        if (VECTOR)
            gates[i / 4u][i % 4u] = there ? loadf_gate(gates_at + token_of(first + t) * (key_width + 1u) + x, DTYPE) : 0.0;
    }
    for (uint i = me; i < count * ROWS; i += THREADS) {
        uint row = top + i % ROWS, at = values_at + token_of(first + i / ROWS) * 2u * value_width + row;
        values[i] = row < value_width ? loadf_v(at, DTYPE) : 0.0;
        if (MODE == BACKWARD) cotangents[i] = row < value_width ? loadf_v(at + value_width, DTYPE) : 0.0;
    }
    for (uint t = me; t < count; t += THREADS) {
        uint count = VECTOR ? key_width : 1u, at = gates_at + token_of(first + t) * (count + 1u);
        betas[t] = loadf_gate(at + count, DTYPE);
        if (!VECTOR) gates[t] = vec4(loadf_gate(at, DTYPE));
    }
}

vec4 key_of(const uint t, const uint j) { return keys[t * WIDE + column + j * COLUMNS]; }
vec4 gate_of(const uint t, const uint j) { return VECTOR ? gates[t * WIDE + column + j * COLUMNS] : gates[t]; }

// Sums over columns of the numbers that threads have for their eight rows; `kinds` of them, of which the board has parts.
void put_part(const uint kind, const uint row, const float x)
{
    uint at = (kind * ROWS + rows_at + row) * PITCH + column;
    board[at / 4u][at % 4u] = x;
}
void add_columns(const uint kinds)
{
    barrier();
    for (uint i = me; i < kinds * ROWS; i += THREADS) {
        float sum = 0.0;
        for (uint l = 0u; l < COLUMNS; l++) sum += board[(i * PITCH + l) / 4u][(i * PITCH + l) % 4u];
        seen[i % ROWS][i / ROWS] = sum;
    }
    barrier();
}

// The state behind token t of those staged.
void step_forward(const uint t)
{
    [[unroll]] for (uint i = 0u; i < TILE; i += 2u) {
        s[i] *= gate_of(t, 0u);
        s[i + 1u] *= gate_of(t, 1u);
        put_part(0u, i / 2u, dot(s[i], key_of(t, 0u)) + dot(s[i + 1u], key_of(t, 1u)));
    }
    add_columns(1u);
    [[unroll]] for (uint i = 0u; i < TILE; i++) {
        uint row = rows_at + i / 2u;
        s[i] += betas[t] * (values[t * ROWS + row] - seen[row].x) * key_of(t, i % 2u);
    }
}

void put_state(const uint at) { [[unroll]] for (uint i = 0u; i < TILE; i++) saved128[(at * TILE + i) * THREADS + me] = floatBitsToUint(s[i]); }
void get_state(const uint at) { [[unroll]] for (uint i = 0u; i < TILE; i++) s[i] = uintBitsToFloat(saved128[(at * TILE + i) * THREADS + me]); }
uint checkpoint(const uint index) { return group_index() * segments + index; }
uint replayed(const uint t) { return replay_at / (4u * TILE * THREADS) + group_index() * EVERY + t; }

// Token t of those staged, the first of which is `first`; s: the state in front of it.
void step_back(const uint first, const uint t)
{
    vec4 dq[2], dk[2], dg[2];
    [[unroll]] for (uint i = 0u; i < TILE; i += 2u) {
        uint row = rows_at + i / 2u;
        float o = cotangents[t * ROWS + row];
        [[unroll]] for (uint j = 0u; j < 2u; j++) d[i + j] += o * queries[t * WIDE + column + j * COLUMNS];
        put_part(0u, i / 2u, dot(s[i] * gate_of(t, 0u), key_of(t, 0u)) + dot(s[i + 1u] * gate_of(t, 1u), key_of(t, 1u)));
        put_part(1u, i / 2u, dot(d[i], key_of(t, 0u)) + dot(d[i + 1u], key_of(t, 1u)));
    }
    add_columns(2u);
    [[unroll]] for (uint j = 0u; j < 2u; j++) dq[j] = dk[j] = dg[j] = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < TILE; i++) {
        const uint j = i % 2u;
        uint row = rows_at + i / 2u;
        float w = seen[row].y, u = values[t * ROWS + row] - seen[row].x;
        vec4 decayed = s[i] * gate_of(t, j), key = key_of(t, j);
        dq[j] += cotangents[t * ROWS + row] * (decayed + betas[t] * u * key);
        dk[j] += betas[t] * (u * d[i] - w * decayed);
        d[i] -= betas[t] * w * key;
        dg[j] += d[i] * s[i];
        d[i] *= gate_of(t, j);
    }
    for (uint i = me; i < ROWS; i += THREADS) {
        uint at = token_of(first + t) * value_width + top + i;
        of_beta[t * ROWS + i] = seen[i].y * (values[t * ROWS + i] - seen[i].x);
        if (top + i < value_width) storef_dv(dv_at + at, DTYPE, betas[t] * seen[i].y);
    }
    [[unroll]] for (uint j = 0u; j < 2u; j++) {
        uint at = rows_at / 8u * 3u * WIDE + column + j * COLUMNS;
        board[at] = dq[j];
        board[at + WIDE] = dk[j];
        board[at + 2u * WIDE] = dg[j];
    }
    barrier();
    for (uint i = me; i < 3u * WIDE; i += THREADS) {
        vec4 sum = vec4(0.0);
        uint kind = i / WIDE, x = i % WIDE * 4u, at = part_place(first + t) + kind * key_width + x;
        for (uint g = 0u; g < GROUPS; g++) sum += board[g * 3u * WIDE + i];
        if (kind == 2u) of_gate[t * WIDE + i % WIDE] = (sum.x + sum.y) + (sum.z + sum.w);
        if (kind < KINDS)
            [[unroll]] for (uint c = 0u; c < 4u; c++) if (x + c < key_width) parts32[at + c] = floatBitsToUint(sum[c]);
    }
    barrier();
}

// What is one number a token: the gradients of beta and of a gate for all columns, of this block of rows.
void add_tokens(const uint first, const uint count)
{
    for (uint i = me; i < 2u * count; i += THREADS) {
        uint t = i / 2u;
        float sum = 0.0;
        if (i % 2u == 0u) for (uint l = 0u; l < ROWS; l++) sum += of_beta[t * ROWS + l];
        else for (uint l = 0u; l < WIDE; l++) sum += of_gate[t * WIDE + l];
        parts32[part_place(first + t) + KINDS * key_width + i % 2u] = floatBitsToUint(sum);
    }
}

// The tokens of a segment, of those here; their states where `keep`.
void go_forward(const uint from, const uint to, const bool keep)
{
    for (uint first = from; first < to; first += TOKENS) {
        uint count = min(TOKENS, to - first);
        barrier();
        stage(first, count);
        barrier();
        for (uint t = 0u; t < count; t++) {
            if (keep) put_state(replayed(first - from + t));
            step_forward(t);
        }
    }
}

void go_back(const uint from, const uint to)
{
    for (uint first = from + (to - from - 1u) / TOKENS * TOKENS; ; first -= TOKENS) {
        uint count = min(TOKENS, to - first);
        barrier();
        stage(first, count);
        barrier();
        for (uint t = count; t-- > 0u;) {
            get_state(replayed(first - from + t));
            step_back(first, t);
        }
        add_tokens(first, count);
        if (first == from) break;
    }
}

void main()
{
    uint at = item + group_index(), count = (tokens + EVERY - 1u) / EVERY;
    me = gl_LocalInvocationID.x;
    column = me % COLUMNS;
    rows_at = me / COLUMNS * 8u;
    if (group_index() >= items) return;
    block = at % blocks;
    top = block * ROWS;
    head = at / blocks % heads;
    batch = at / blocks / heads;
    [[unroll]] for (uint i = 0u; i < TILE; i++) {
        s[i] = vec4(0.0);
        [[unroll]] for (uint c = 0u; c < 4u; c++) {
            uint place = state_place(i, c);
            if (state != 0u && place != ~0u) s[i][c] = uintBitsToFloat(dstate32[dstate_at + place]);
        }
        d[i] = s[i];
    }
    if (MODE == FORWARD) {
        if (segment > 0u) get_state(checkpoint(segment));
        else put_state(checkpoint(0u));
        for (uint i = 0u; i < count; i++) {
            go_forward(i * EVERY, min((i + 1u) * EVERY, tokens), false);
            if (segment + i + 1u < segments) put_state(checkpoint(segment + i + 1u));
        }
        return;
    }
    for (uint i = count; i-- > 0u;) {
        uint to = min((i + 1u) * EVERY, tokens);
        get_state(checkpoint(segment + i));
        go_forward(i * EVERY, to, true);
        go_back(i * EVERY, to);
    }
    [[unroll]] for (uint i = 0u; i < TILE; i++)
        [[unroll]] for (uint c = 0u; c < 4u; c++) {
            uint place = state_place(i, c);
            if (place != ~0u) dstate32[dstate_at + place] = floatBitsToUint(d[i][c]);
        }
}
