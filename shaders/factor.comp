#version 460
#extension GL_KHR_memory_scope_semantics : require
// The steps of factorisations that are no matrix products, on blocks of at most BLOCK columns; a workgroup a matrix.
// float32. `a` is worked on in place, but by INVERSE, which reads it and writes b.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 0;
//! enum FACTOR_: operations; columns of a block; flags
const uint CHOLESKY = 0, INVERSE = 1, PANEL = 2, SWAP = 3, REFLECT = 4, BLOCK = 32;
const uint UNIT = 1, HALF = 2;                           // INVERSE: ones on the diagonal; half of it, where it is 0 ones

const uint THREADS = 256;                                // most of a workgroup

layout(set = 0, binding = 0, std430) coherent buffer a_floats { float a[]; };
layout(set = 0, binding = 1, std430) coherent buffer b_floats { float b[]; };      // PANEL, SWAP: pivots; REFLECT: the vectors
layout(set = 0, binding = 2, std430) coherent buffer order_words { uint order[]; };   // SWAP: the rows' numbers

layout(push_constant) uniform factor_push {
    uint matrices, rows, columns, first, count;          // `count` columns from `first` on; CHOLESKY, INVERSE: the whole block
    uint a_at, a_matrix, a_row, a_column;
    uint b_at, b_matrix, b_row, b_column;
    uint order_at, flags;
};

shared float block[BLOCK][BLOCK + 1], parts[THREADS], line[BLOCK];
shared uint places[THREADS];
uint thread, matrix;

uint at_a(const uint i, const uint j) { return a_at + matrix * a_matrix + i * a_row + j * a_column; }
uint at_b(const uint i, const uint j) { return b_at + matrix * b_matrix + i * b_row + j * b_column; }
void together() { controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }

// The lower triangle of a block becomes its Cholesky factor, what is above it 0. A row a thread.
void cholesky()
{
    for (uint i = thread; i < rows; i += gl_WorkGroupSize.x)
        for (uint j = 0u; j < rows; j++) block[i][j] = j <= i ? a[at_a(i, j)] : 0.0;
    barrier();
    for (uint j = 0u; j < rows; j++) {
        float d = block[j][j];
        d = d > 0.0 ? sqrt(d) : uintBitsToFloat(0x7fc00000u);
        barrier();
        for (uint i = thread; i < rows; i += gl_WorkGroupSize.x)
            if (i >= j) block[i][j] = i == j ? d : block[i][j] / d;
        barrier();
        for (uint i = thread; i < rows; i += gl_WorkGroupSize.x)
            for (uint c = j + 1u; c <= i && i > j; c++) block[i][c] -= block[i][j] * block[c][j];
        barrier();
    }
    for (uint i = thread; i < rows; i += gl_WorkGroupSize.x)
        for (uint j = 0u; j < rows; j++) a[at_a(i, j)] = block[i][j];
}

// The inverse of a lower triangle by forward substitution. A column a thread.
void inverse()
{
    for (uint i = thread; i < rows; i += gl_WorkGroupSize.x)
        for (uint j = 0u; j <= i; j++) block[i][j] = a[at_a(i, j)];
    barrier();
    for (uint i = thread; i < rows; i += gl_WorkGroupSize.x)
        if ((flags & UNIT) != 0u) block[i][i] = 1.0;
        else if ((flags & HALF) != 0u) block[i][i] = block[i][i] == 0.0 ? 1.0 : 0.5 * block[i][i];
    barrier();
    for (uint c = thread; c < rows; c += gl_WorkGroupSize.x) {
        float x[BLOCK];
        for (uint i = 0u; i < rows; i++) {
            float sum = i == c ? 1.0 : 0.0;
            for (uint k = c; k < i; k++) sum -= block[i][k] * x[k];
            x[i] = i < c ? 0.0 : sum / block[i][i];
            b[at_b(i, c)] = x[i];
        }
    }
}

// Gaussian elimination of columns first .. first + count - 1 with the largest pivot of each column (the first of equal ones).
void panel()
{
    for (uint j = first; j < first + count; j++) {
        float most = -1.0;
        uint place = j;
        for (uint i = j + thread; i < rows; i += gl_WorkGroupSize.x) {
            float v = abs(a[at_a(i, j)]);
            if (v > most) { most = v; place = i; }
        }
        parts[thread] = most;
        places[thread] = place;
        barrier();
        for (uint half_ = gl_WorkGroupSize.x / 2u; half_ > 0u; half_ /= 2u) {
            if (thread < half_) {
                float other = parts[thread + half_];
                if (other > parts[thread] || (other == parts[thread] && places[thread + half_] < places[thread])) {
                    parts[thread] = other;
                    places[thread] = places[thread + half_];
                }
            }
            barrier();
        }
        place = places[0];
        for (uint c = thread; c < count; c += gl_WorkGroupSize.x) {
            uint from = at_a(place, first + c), to = at_a(j, first + c);
            float v = a[from];
            a[from] = a[to];
            a[to] = v;
            line[c] = v;
        }
        if (thread == 0u) b[at_b(j, 0u)] = uintBitsToFloat(place);
        together();
        float pivot = line[j - first];
        for (uint i = j + 1u + thread; i < rows; i += gl_WorkGroupSize.x) {
            float factor = a[at_a(i, j)] / pivot;
            a[at_a(i, j)] = factor;
            for (uint c = j + 1u - first; c < count; c++) a[at_a(i, first + c)] -= factor * line[c];
        }
        together();
    }
}

// The panel's exchanges of rows in the other columns, a column a thread, and in the rows' numbers.
void swap_rows()
{
    uint c = gl_GlobalInvocationID.x;
    if (c > columns) return;
    bool numbers = c == columns;
    if (!numbers && c >= first && c < first + count) return;
    for (uint j = first; j < first + count; j++) {
        uint place = floatBitsToUint(b[at_b(j, 0u)]);
        if (place == j) continue;
        if (numbers) {
            uint at = order_at + matrix * rows, v = order[at + j];
            order[at + j] = order[at + place];
            order[at + place] = v;
        } else {
            float v = a[at_a(j, c)];
            a[at_a(j, c)] = a[at_a(place, c)];
            a[at_a(place, c)] = v;
        }
    }
}

// The sum over the workgroup of what each thread gives.
float total(const float v)
{
    barrier();
    parts[thread] = v;
    barrier();
    for (uint half_ = gl_WorkGroupSize.x / 2u; half_ > 0u; half_ /= 2u) {
        if (thread < half_) parts[thread] += parts[thread + half_];
        barrier();
    }
    return parts[0];
}

// Householder reflections of columns first .. first + count - 1, applied to those columns; vectors into b, from row `first` on.
void reflect_columns()
{
    uint lane = thread % BLOCK, step = gl_WorkGroupSize.x / BLOCK;        // a column of the panel, and rows apart
    for (uint j = 0u; j < count; j++) {
        uint top = first + j;
        float squares = 0.0, alpha, beta, tau, sum = 0.0;
        for (uint i = top + 1u + thread; i < rows; i += gl_WorkGroupSize.x) {
            float v = a[at_a(i, top)];
            squares += v * v;
        }
        squares = total(squares);
        alpha = a[at_a(top, top)];
        beta = alpha < 0.0 ? sqrt(alpha * alpha + squares) : -sqrt(alpha * alpha + squares);
        tau = squares == 0.0 ? 0.0 : (beta - alpha) / beta;
        for (uint i = first + thread; i < rows; i += gl_WorkGroupSize.x)
            b[at_b(i - first, j)] = tau == 0.0 || i < top ? 0.0 : i == top ? 1.0 : a[at_a(i, top)] / (alpha - beta);
        together();
        if (tau == 0.0) continue;
        if (lane > j && lane < count)
            for (uint i = top + thread / BLOCK; i < rows; i += step) sum += b[at_b(i - first, j)] * a[at_a(i, first + lane)];
        parts[thread] = sum;
        barrier();
        sum = 0.0;
        for (uint k = 0u; k < step; k++) sum += parts[lane + k * BLOCK];
        if (lane > j && lane < count)
            for (uint i = top + thread / BLOCK; i < rows; i += step) a[at_a(i, first + lane)] -= tau * sum * b[at_b(i - first, j)];
        for (uint i = top + thread; i < rows; i += gl_WorkGroupSize.x) a[at_a(i, top)] = i == top ? beta : 0.0;
        together();
    }
}

void main()
{
    thread = gl_LocalInvocationID.x;
    matrix = OP == SWAP ? gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z
                        : gl_WorkGroupID.x + gl_NumWorkGroups.x * (gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z);
    if (matrix >= matrices) return;
    if (OP == CHOLESKY) cholesky();
    if (OP == INVERSE) inverse();
    if (OP == PANEL) panel();
    if (OP == SWAP) swap_rows();
    if (OP == REFLECT) reflect_columns();
}
