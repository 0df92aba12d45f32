"""Kernels of the kind that MLX's documentation and its users write, each against NumPy.

They run on whatever device there is, so that small subgroups have their turn, too (the last test: SwiftShader's of 4)."""

import os
import sys

import mlx.core as mx
import numpy as np
import pytest

import support

CASES = []


def case(function):
    CASES.append(function)
    return function


def run(source, inputs, shapes, dtypes, grid, group, **more):
    """inputs: NumPy arrays, MLX's or numbers by name. The results as NumPy has them."""
    made = {key: more.pop(key) for key in ("header", "atomic_outputs", "ensure_row_contiguous") if key in more}
    outputs = ["out"] + ["out%d" % i for i in range(1, len(shapes))]
    kernel = mx.fast.metal_kernel(name=sys._getframe(1).f_code.co_name, input_names=list(inputs), output_names=outputs,
                                  source=source, **made)
    arrays = [mx.array(x) if isinstance(x, np.ndarray) else x for x in inputs.values()]
    results = kernel(inputs=arrays, output_shapes=shapes, output_dtypes=dtypes, grid=grid, threadgroup=group, **more)
    return [support.as_numpy(r) for r in results]


def same(got, want):
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def near(got, want, relative=1e-5, absolute=1e-5):
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, relative, absolute)


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def integers(high, *shape, dtype=np.uint32, seed=0):
    return np.random.default_rng(seed + sum(shape)).integers(0, high, shape).astype(dtype)


# ---- images ----------------------------------------------------------------------------------------------------------

SAMPLE = """
    const uint C = image_shape[3], H = image_shape[1], W = image_shape[2], N = grid_shape[1] * grid_shape[2];
    const uint c = thread_position_in_grid.x, at = thread_position_in_grid.y;
    const float2 place = float2(grid[2 * at], grid[2 * at + 1]);
    const float2 p = ((place + 1) * float2(W, H) - 1) / 2;
    const int2 low = int2(floor(p));
    const float2 f = p - float2(low);
    const float weights[4] = {(1 - f.x) * (1 - f.y), f.x * (1 - f.y), (1 - f.x) * f.y, f.x * f.y};
"""


def sampled(image, grid):
    """(corner, weight, where it is) of each place of the grid, for the four corners."""
    n, h, w, _ = image.shape
    p = ((grid.astype(np.float64) + 1) * (w, h) - 1) / 2
    low = np.floor(p).astype(int)
    f = p - low
    for dy in (0, 1):
        for dx in (0, 1):
            x, y = low[..., 0] + dx, low[..., 1] + dy
            inside = (x >= 0) & (x < w) & (y >= 0) & (y < h)
            weight = np.where(dx, f[..., 0], 1 - f[..., 0]) * np.where(dy, f[..., 1], 1 - f[..., 1])
            yield np.arange(n)[:, None, None], np.clip(y, 0, h - 1), np.clip(x, 0, w - 1), weight * inside


@case
def grid_sample():
    image, grid = numbers(2, 9, 11, 5), np.tanh(numbers(2, 6, 7, 2)) * 1.2
    got, = run(SAMPLE + """
    float sum = 0;
    for (int k = 0; k < 4; k++) {
        const int x = low.x + k % 2, y = low.y + k / 2;
        if (x < 0 || y < 0 || x >= int(W) || y >= int(H)) continue;
        sum += weights[k] * image[((at / N * H + y) * W + x) * C + c];
    }
    out[at * C + c] = sum;""", {"image": image, "grid": grid}, [(2, 6, 7, 5)], [mx.float32], (5, 84, 1), (5, 8, 1))
    near(got, sum(w[..., None] * image[n, y, x] for n, y, x, w in sampled(image, grid)), 1e-4, 1e-4)


@case
def grid_sample_gradient():
    """Many threads add to one pixel; the gradient of the places is summed over a simdgroup's channels."""
    image, grid, up = numbers(2, 7, 6, 32), np.tanh(numbers(2, 8, 9, 2)), numbers(2, 8, 9, 32)
    got, got_grid = run(SAMPLE + """
    const float g = up[at * C + c];
    const float along_x[4] = {f.y - 1, 1 - f.y, -f.y, f.y}, along_y[4] = {f.x - 1, -f.x, 1 - f.x, f.x};
    float2 slope = 0;
    for (int k = 0; k < 4; k++) {
        const int x = low.x + k % 2, y = low.y + k / 2;
        if (x < 0 || y < 0 || x >= int(W) || y >= int(H)) continue;
        const uint pixel = ((at / N * H + y) * W + x) * C + c;
        atomic_fetch_add_explicit(&out[pixel], weights[k] * g, memory_order_relaxed);
        slope += image[pixel] * g * float2(along_x[k], along_y[k]);
    }
    slope = float2(simd_sum(slope.x), simd_sum(slope.y)) * float2(W, H) / 2;
    if (thread_index_in_simdgroup < 2)
        atomic_store_explicit(&out1[2 * at + thread_index_in_simdgroup], slope[thread_index_in_simdgroup], memory_order_relaxed);
    """, {"image": image, "grid": grid, "up": up}, [image.shape, grid.shape], [mx.float32] * 2, (32, 144, 1), (32, 4, 1),
        init_value=0, atomic_outputs=True)
    want, want_grid = np.zeros(image.shape), np.zeros(grid.shape)
    for k, (n, y, x, w) in enumerate(sampled(image, grid)):
        np.add.at(want, (n, y, x), w[..., None] * up)
    step = 1e-4
    for axis in (0, 1):
        ends = [sum((w[..., None] * image[n, y, x] * up).sum(-1) for n, y, x, w in sampled(image, grid + move))
                for move in (step * np.eye(2)[axis], -step * np.eye(2)[axis])]
        want_grid[..., axis] = (ends[0] - ends[1]) / (2 * step)
    near(got, want, 1e-4, 1e-4)
    assert np.median(np.abs(got_grid - want_grid)) < 1e-3    # at a pixel's border the two differ rightly


@case
def gaussian_blur():
    image, radius = numbers(37, 41), 3
    weights = np.exp(-np.arange(-radius, radius + 1) ** 2 / 4.0).astype(np.float32)
    got, = run("""
    const int x = thread_position_in_grid.x, y = thread_position_in_grid.y, W = image_shape[1], H = image_shape[0];
    float sum = 0, all = 0;
    for (int dy = -R; dy <= R; dy++)
        for (int dx = -R; dx <= R; dx++) {
            const float w = weights[dy + R] * weights[dx + R];
            sum = fma(w, image[clamp(y + dy, 0, H - 1) * W + clamp(x + dx, 0, W - 1)], sum);
            all += w;
        }
    out[y * W + x] = sum / all;""", {"image": image, "weights": weights}, [image.shape], [mx.float32], (41, 37, 1), (16, 8, 1),
        template=[("R", radius)])
    padded = np.pad(image.astype(np.float64), radius, mode="edge")
    want = sum(weights[i] * weights[j] * padded[i:i + 37, j:j + 41] for i in range(7) for j in range(7)) / weights.sum() ** 2
    near(got, want)


@case
def gaussians_in_space():
    """The sum of some soft balls at each cell of a lattice."""
    balls = np.concatenate([numbers(12, 3), np.abs(numbers(12, 1)) + 0.3, numbers(12, 1)], axis=1)
    got, = run("""
    struct Ball { packed_float3 middle; float width, weight; float at(float3 p) const {
        const float3 d = (p - float3(middle)) / width;
        return weight * exp(-dot(d, d) / 2);
    } };
    const float3 p = float3(thread_position_in_grid) / 4 - 1;
    float sum = 0;
    for (uint i = 0; i < uint(balls_shape[0]); i++) {
        const auto b = balls + 5 * i;
        sum += Ball{packed_float3(b[0], b[1], b[2]), b[3], b[4]}.at(p);
    }
    const uint3 size = threads_per_grid;
    out[(thread_position_in_grid.z * size.y + thread_position_in_grid.y) * size.x + thread_position_in_grid.x] = sum;
    """, {"balls": balls}, [(7, 8, 9)], [mx.float32], (9, 8, 7), (4, 4, 4))
    z, y, x = np.meshgrid(*(np.arange(n) / 4 - 1 for n in (7, 8, 9)), indexing="ij")
    want = sum(b[4] * np.exp(-((x - b[0]) ** 2 + (y - b[1]) ** 2 + (z - b[2]) ** 2) / b[3] ** 2 / 2) for b in balls.astype(np.float64))
    near(got, want, 1e-4, 1e-5)


@case
def mandelbrot():
    got, = run("""
    const uint2 size = threads_per_grid.xy, at = thread_position_in_grid.xy;
    const float2 c = float2(at) / float2(size) * float2(3, 2) - float2(2, 1);
    float2 z = 0;
    int n = 0;
    while (n < LIMIT && dot(z, z) <= 4) { z = float2(z.x * z.x - z.y * z.y, 2 * z.x * z.y) + c; n++; }
    out[at.y * size.x + at.x] = n;""", {}, [(40, 64)], [mx.int32], (64, 40, 1), (8, 8, 1), template=[("LIMIT", 30)])
    y, x = np.meshgrid(np.arange(40) / 40 * 2 - 1, np.arange(64) / 64 * 3 - 2, indexing="ij")
    c, z, want = x + 1j * y, np.zeros((40, 64), complex), np.zeros((40, 64), int)
    for _ in range(30):
        go = np.abs(z) <= 2
        z[go] = z[go] ** 2 + c[go]
        want += go
    assert np.mean(got != want) < 0.02                     # on the border a rounding decides


@case
def julia():
    got, = run("""
    auto square = [](float2 z) { return float2(z.x * z.x - z.y * z.y, 2 * z.x * z.y); };
    const uint i = thread_position_in_grid.x;
    float2 z = float2(i % 32, i / 32) / 16.0f - 1;
    int n = 0;
    do { z = square(z) + float2(cx, cy); } while (++n < 20 && length_squared(z) < 4);
    out[i] = n;""", {"cx": -0.4, "cy": 0.6}, [(1024,)], [mx.int32], (1024, 1, 1), (128, 1, 1))
    i = np.arange(1024)
    z, want, go = (i % 32) / 16 - 1 + 1j * ((i // 32) / 16 - 1), np.zeros(1024, int), np.ones(1024, bool)
    for _ in range(20):
        z[go] = z[go] ** 2 + (-0.4 + 0.6j)
        want += go
        go &= np.abs(z) < 2
    assert np.mean(got != want) < 0.02


@case
def median_of_nine():
    """A sorting network on the neighbours."""
    image = numbers(30, 33)
    got, = run("""
    const int x = thread_position_in_grid.x, y = thread_position_in_grid.y, W = image_shape[1], H = image_shape[0];
    float v[9];
    for (int k = 0; k < 9; k++) v[k] = image[clamp(y + k / 3 - 1, 0, H - 1) * W + clamp(x + k % 3 - 1, 0, W - 1)];
    for (int round = 0; round < 9; round++)
        for (int k = round % 2; k + 1 < 9; k += 2) {
            const float low = min(v[k], v[k + 1]), high = max(v[k], v[k + 1]);
            v[k] = low;
            v[k + 1] = high;
        }
    out[y * W + x] = v[4];""", {"image": image}, [image.shape], [mx.float32], (33, 30, 1), (16, 4, 1))
    padded = np.pad(image, 1, mode="edge")
    same(got, np.median([padded[i:i + 30, j:j + 33] for i in range(3) for j in range(3)], axis=0).astype(np.float32))


@case
def game_of_life():
    board = integers(2, 24, 40, dtype=np.uint8)
    got, = run("""
    const uint H = board_shape[0], W = board_shape[1];
    const uint2 p = thread_position_in_grid.xy;
    int around = 0;
    for (uint dy = 0; dy < 3; dy++)
        for (uint dx = 0; dx < 3; dx++)
            if (dx != 1 || dy != 1) around += board[(p.y + H + dy - 1) % H * W + (p.x + W + dx - 1) % W];
    switch (around) {
        case 3: out[p.y * W + p.x] = 1; break;
        case 2: out[p.y * W + p.x] = board[p.y * W + p.x]; break;
        default: out[p.y * W + p.x] = 0;
    }""", {"board": board}, [board.shape], [mx.uint8], (40, 24, 1), (8, 8, 1))
    around = sum(np.roll(board, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - board
    same(got, ((around == 3) | ((around == 2) & (board == 1))).astype(np.uint8))


# ---- rows ------------------------------------------------------------------------------------------------------------

BLOCK = """
template <typename T, typename Op>
T over_block(T value, threadgroup T* shared, uint lane, uint group, uint groups, Op op, T first) {
    for (ushort step = 16; step > 0; step /= 2) value = op(value, simd_shuffle_xor(value, step));
    if (lane == 0) shared[group] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    T all = first;
    for (uint i = 0; i < groups; i++) all = op(all, shared[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return all;
}
"""


@case
def softmax():
    x = numbers(9, 1000) * 3
    got, = run("""
    threadgroup float shared[32];
    const uint row = threadgroup_position_in_grid.x, n = x_shape[1], t = thread_position_in_threadgroup.x;
    float high = -INFINITY, sum = 0;
    for (uint i = t; i < n; i += threads_per_threadgroup.x) high = max(high, x[row * n + i]);
    high = over_block(high, shared, thread_index_in_simdgroup, simdgroup_index_in_threadgroup, simdgroups_per_threadgroup,
                      [](float a, float b) { return max(a, b); }, -INFINITY);
    for (uint i = t; i < n; i += threads_per_threadgroup.x) sum += exp(x[row * n + i] - high);
    sum = over_block(sum, shared, thread_index_in_simdgroup, simdgroup_index_in_threadgroup, simdgroups_per_threadgroup,
                     [](float a, float b) { return a + b; }, 0.0f);
    for (uint i = t; i < n; i += threads_per_threadgroup.x) out[row * n + i] = exp(x[row * n + i] - high) / sum;
    """, {"x": x}, [x.shape], [mx.float32], (9 * 128, 1, 1), (128, 1, 1), header=BLOCK)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    near(got, e / e.sum(1, keepdims=True), 1e-4, 1e-7)


@case
def layer_norm():
    x, w = numbers(6, 96), numbers(96)
    got, = run("""
    const uint row = thread_position_in_grid.y, lane = thread_index_in_simdgroup;
    float v[N / 32], sum = 0, squares = 0;
    #pragma unroll
    for (int i = 0; i < N / 32; i++) sum += v[i] = x[row * N + lane + 32 * i];
    const float mean = simd_sum(sum) / N;
    for (auto i = 0; i < N / 32; ++i) squares += pow(v[i] - mean, 2.0f);
    const float scale = metal::precise::rsqrt(simd_sum(squares) / N + 1e-5f);
    for (int i = 0; i < N / 32; i++) out[row * N + lane + 32 * i] = T((v[i] - mean) * scale * w[lane + 32 * i]);
    """, {"x": x, "w": w}, [x.shape], [mx.float16], (32, 6, 1), (32, 2, 1), template=[("T", mx.float16), ("N", 96)])
    y = x.astype(np.float64)
    near(got, (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5) * w, 2e-3, 2e-3)


@case
def sum_of_all():
    x = integers(1000, 5001, dtype=np.int32)
    got, = run("""
    threadgroup int part[256];
    const uint t = thread_position_in_threadgroup.x, n = x_shape[0];
    int sum = 0;
    for (uint i = thread_position_in_grid.x; i < n; i += threads_per_grid.x) sum += x[i];
    part[t] = sum;
    for (uint half_of = threads_per_threadgroup.x / 2; half_of > 0; half_of >>= 1) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (t < half_of) part[t] += part[t + half_of];
    }
    if (t == 0) atomic_fetch_add_explicit(&out[0], part[0], memory_order_relaxed);""",
               {"x": x}, [(1,)], [mx.int32], (1024, 1, 1), (256, 1, 1), init_value=0, atomic_outputs=True)
    same(got, np.array([x.sum()], np.int32))


@case
def largest_of_rows():
    x = numbers(13, 77)
    got, where = run("""
    const uint row = thread_position_in_grid.y, lane = thread_index_in_simdgroup, n = x_shape[1];
    float best = -INFINITY;
    uint at = 0;
    for (uint i = lane; i < n; i += 32) if (x[row * n + i] > best) { best = x[row * n + i]; at = i; }
    const float top = simd_max(best);
    const uint first = simd_min(best == top ? at : 0xffffffffu);
    if (simd_is_first()) { out[row] = top; out1[row] = first; }""",
                     {"x": x}, [(13,), (13,)], [mx.float32, mx.uint32], (32, 13, 1), (32, 1, 1))
    same(got, x.max(1))
    same(where, x.argmax(1).astype(np.uint32))


@case
def top_five():
    x = numbers(5, 64)
    got, = run("""
    const uint row = thread_position_in_grid.y, lane = thread_index_in_simdgroup;
    float v[2] = {x[row * 64 + lane], x[row * 64 + lane + 32]};
    for (int k = 0; k < 5; k++) {
        const float top = simd_max(max(v[0], v[1]));
        const bool mine = v[0] == top || v[1] == top;
        const uint owner = ctz(uint(simd_vote::vote_t(simd_ballot(mine))));
        if (lane == owner) v[v[0] == top ? 0 : 1] = -INFINITY;
        if (lane == 0) out[row * 5 + k] = top;
    }""", {"x": x}, [(5, 5)], [mx.float32], (32, 5, 1), (32, 1, 1))
    same(got, -np.sort(-x, 1)[:, :5])


@case
def linear_recurrence():
    """h = a h + x along a sequence, a thread for each channel, reading views as they are."""
    a, x = np.tanh(numbers(50, 24)), numbers(50, 24)
    views = {"a": mx.array(np.ascontiguousarray(a.T)).T, "x": mx.array(np.repeat(x, 2, axis=1))[:, ::2]}
    got, = run("""
    const uint c = thread_position_in_grid.x;
    auto pa = a + c * a_strides[1];
    auto px = x + c * x_strides[1];
    float h = 0;
    for (int t = 0; t < a_shape[0]; t++, pa += a_strides[0], px += x_strides[0]) {
        h = *pa * h + *px;
        out[t * a_shape[1] + c] = h;
    }""", views, [(50, 24)], [mx.float32], (24, 1, 1), (8, 1, 1), ensure_row_contiguous=False)
    h, want = np.zeros(24), []
    for t in range(50):
        h = a[t] * h + x[t]
        want.append(h)
    near(got, np.array(want), 1e-4, 1e-5)


@case
def logsumexp_online():
    x = numbers(40, 70) * 4
    got, = run("""
    const uint row = thread_position_in_grid.x;
    if (row >= uint(x_shape[0])) return;
    float high = -INFINITY, sum = 0;
    for (int i = 0; i < x_shape[1]; i++) {
        const float v = x[row * x_shape[1] + i], next = fmax(high, v);
        sum = sum * exp(high - next) + exp(v - next);
        high = next;
    }
    out[row] = high + log(sum);""", {"x": x}, [(40,)], [mx.float32], (64, 1, 1), (64, 1, 1))
    near(got, np.log(np.exp(x.astype(np.float64)).sum(1)), 1e-5, 1e-5)


# ---- counting, scans, sorting ----------------------------------------------------------------------------------------

@case
def histogram():
    x = integers(256, 3001, dtype=np.uint8)
    got, = run("""
    const uint i = thread_position_in_grid.x;
    atomic_fetch_add_explicit(&out[x[i]], 1u, memory_order_relaxed);""",
               {"x": x}, [(256,)], [mx.uint32], (3001, 1, 1), (256, 1, 1), init_value=0, atomic_outputs=True)
    same(got, np.bincount(x, minlength=256).astype(np.uint32))


@case
def histogram_in_parts():
    x = integers(64, 4000, dtype=np.int32)
    got, = run("""
    threadgroup atomic_uint bins[64];
    const uint t = thread_position_in_threadgroup.x;
    if (t < 64) atomic_store_explicit(&bins[t], 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_position_in_grid.x; i < uint(x_shape[0]); i += threads_per_grid.x)
        atomic_fetch_add_explicit(&bins[x[i] & 63], 1, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < 64) atomic_fetch_add_explicit(&out[t], atomic_load_explicit(&bins[t], memory_order_relaxed), memory_order_relaxed);
    """, {"x": x}, [(64,)], [mx.uint32], (512, 1, 1), (128, 1, 1), init_value=0, atomic_outputs=True)
    same(got, np.bincount(x, minlength=64).astype(np.uint32))


@case
def prefix_sum_by_doubling():
    x = integers(100, 6, 256, dtype=np.int32)
    got, = run("""
    threadgroup int a[2][256];
    const uint t = thread_position_in_threadgroup.x, row = threadgroup_position_in_grid.x;
    int now = 0;
    a[0][t] = x[row * 256 + t];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 1; step < 256; step <<= 1) {
        a[1 - now][t] = a[now][t] + (t >= step ? a[now][t - step] : 0);
        now = 1 - now;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[row * 256 + t] = a[now][t] - x[row * 256 + t];""", {"x": x}, [x.shape], [mx.int32], (6 * 256, 1, 1), (256, 1, 1))
    same(got, (np.cumsum(x, 1) - x).astype(np.int32))


@case
def prefix_sum_by_simdgroups():
    x = integers(9, 3, 256, dtype=np.uint32)
    got, = run("""
    threadgroup uint totals[8];
    const uint t = thread_position_in_threadgroup.x, row = threadgroup_position_in_grid.x, sg = simdgroup_index_in_threadgroup;
    const uint v = x[row * 256 + t], inclusive = simd_prefix_inclusive_sum(v);
    if (thread_index_in_simdgroup == 31) totals[sg] = inclusive;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint before = 0;
    for (uint i = 0; i < sg; i++) before += totals[i];
    out[row * 256 + t] = before + inclusive;""", {"x": x}, [x.shape], [mx.uint32], (3 * 256, 1, 1), (256, 1, 1))
    same(got, np.cumsum(x, 1).astype(np.uint32))


@case
def bitonic_sort():
    x = numbers(4, 256)
    got, = run("""
    threadgroup T a[256];
    const uint t = thread_position_in_threadgroup.x, row = threadgroup_position_in_grid.x;
    a[t] = x[row * 256 + t];
    for (uint k = 2; k <= 256; k *= 2)
        for (uint j = k / 2; j > 0; j /= 2) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            const uint other = t ^ j;
            if (other > t && (a[t] > a[other]) == ((t & k) == 0)) {
                const T kept = a[t];
                a[t] = a[other];
                a[other] = kept;
            }
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[row * 256 + t] = a[t];""", {"x": x}, [x.shape], [mx.float32], (4 * 256, 1, 1), (256, 1, 1), template=[("T", mx.float32)])
    same(got, np.sort(x, 1))


@case
def sort_by_rank():
    x = integers(20, 90, dtype=np.int16)
    got, = run("""
    const uint i = thread_position_in_grid.x, n = x_shape[0];
    uint rank = 0;
    for (uint j = 0; j < n; j++) rank += x[j] < x[i] || (x[j] == x[i] && j < i);
    out[rank] = i;""", {"x": x}, [x.shape], [mx.uint32], (90, 1, 1), (32, 1, 1))
    same(got, np.argsort(x, kind="stable").astype(np.uint32))


@case
def simdgroup_sort():
    """A bitonic network in registers."""
    x = integers(1000, 7, 32, dtype=np.int32)
    got, = run("""
    const uint lane = thread_index_in_simdgroup, at = thread_position_in_grid.x;
    int v = x[at];
    for (ushort k = 2; k <= 32; k <<= 1)
        for (ushort j = k >> 1; j; j >>= 1) {
            const int w = simd_shuffle_xor(v, j);
            const bool up = (lane & k) == 0, lower = (lane & j) == 0;
            v = up == lower ? min(v, w) : max(v, w);
        }
    out[at] = v;""", {"x": x}, [x.shape], [mx.int32], (7 * 32, 1, 1), (32, 1, 1))
    same(got, np.sort(x, 1))


# ---- bits ------------------------------------------------------------------------------------------------------------

@case
def unpack_four_bits():
    packed, scales, biases = integers(2 ** 32, 8, 16), numbers(8, 4), numbers(8, 4)
    got, = run("""
    const uint w = thread_position_in_grid.x, row = thread_position_in_grid.y, group = w / 4;
    const half s = half(scales[row * 4 + group]), b = half(biases[row * 4 + group]);
    const uint word = packed[row * 16 + w];
    for (uint k = 0; k < 8; k++) out[row * 128 + 8 * w + k] = half((word >> (4 * k)) & 0xf) * s + b;
    """, {"packed": packed, "scales": scales, "biases": biases}, [(8, 128)], [mx.float16], (16, 8, 1), (16, 2, 1))
    q = (packed[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).reshape(8, 128)
    s, b = (np.repeat(v.astype(np.float16), 32, axis=1).astype(np.float64) for v in (scales, biases))
    near(got, q * s + b, 4e-3, 4e-3)


@case
def unpack_three_bits():
    values = integers(8, 320, dtype=np.uint8)
    bits = np.unpackbits(values[:, None], axis=1, bitorder="little")[:, :3].reshape(-1)
    got, = run("""
    const uint i = thread_position_in_grid.x, bit = 3 * i;
    const ushort pair = ushort(packed[bit / 8]) | ushort(ushort(bit / 8 + 1 < uint(packed_shape[0]) ? packed[bit / 8 + 1] : 0) << 8);
    out[i] = static_cast<uint8_t>(extract_bits(uint(pair), bit % 8, 3));""",
               {"packed": np.packbits(bits, bitorder="little")}, [(320,)], [mx.uint8], (320, 1, 1), (64, 1, 1))
    same(got, values)


@case
def ternary_product():
    w, x = integers(3, 20, 64, dtype=np.int8) - np.int8(1), numbers(64)
    packed = np.zeros((20, 16), np.uint8)
    for k in range(4):
        packed |= ((w[:, k::4] + 1) << (2 * k)).astype(np.uint8)
    got, = run("""
    const uint row = thread_position_in_grid.y, lane = thread_index_in_simdgroup;
    float sum = 0;
    for (uint i = lane; i < 16; i += 32)
        for (uint k = 0; k < 4; k++) {
            const int8_t digit = int8_t((packed[row * 16 + i] >> (2 * k)) & 3) - 1;
            sum += digit > 0 ? x[4 * i + k] : digit < 0 ? -x[4 * i + k] : 0.0f;
        }
    sum = simd_sum(sum);
    if (lane == 0) out[row] = sum;""", {"packed": packed, "x": x}, [(20,)], [mx.float32], (32, 20, 1), (32, 4, 1))
    near(got, w.astype(np.float64) @ x)


@case
def random_bits():
    """A generator of our own, of integer operations that wrap around."""
    got, = run("""
    uint s = thread_position_in_grid.x * 2654435761u + seed;
    for (int k = 0; k < 4; k++) {
        s ^= s << 13;
        s ^= s >> 17;
        s ^= s << 5;
        s = rotate(s, 7u) + mulhi(s, 0x9e3779b9u) - popcount(s) + clz(s) * reverse_bits(s);
    }
    out[thread_position_in_grid.x] = s;""", {"seed": mx.array(12345, mx.uint32)}, [(500,)], [mx.uint32], (500, 1, 1), (100, 1, 1))
    with np.errstate(over="ignore"):
        s = np.arange(500, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(12345)
        for _ in range(4):
            s ^= s << np.uint32(13)
            s ^= s >> np.uint32(17)
            s ^= s << np.uint32(5)
            text = [format(int(v), "032b") for v in s]
            ones, clear, back = (np.array(v, np.uint32) for v in ([t.count("1") for t in text], [(t + "1").index("1") for t in text],
                                                                  [int(t[::-1], 2) for t in text]))
            high = (s.astype(np.uint64) * np.uint64(0x9e3779b9) >> np.uint64(32)).astype(np.uint32)
            s = (s << np.uint32(7) | s >> np.uint32(25)) + high - ones + clear * back
    same(got, s)


@case
def hamming_distances():
    a = integers(2 ** 63, 17, dtype=np.uint64)
    got, = run("""
    const uint2 p = thread_position_in_grid.xy;
    const ulong different = a[p.x] ^ a[p.y];
    out[p.y * 17 + p.x] = popcount(uint(different)) + popcount(uint(different >> 32));""",
               {"a": a}, [(17, 17)], [mx.int32], (17, 17, 1), (17, 1, 1))
    same(got, np.array([[bin(int(x ^ y)).count("1") for x in a] for y in a], np.int32))


# ---- matrices, signals, others ---------------------------------------------------------------------------------------

@case
def transpose_by_tiles():
    x = numbers(70, 45)
    got, = run("""
    threadgroup float tile[32][33];
    const uint2 g = threadgroup_position_in_grid.xy, t = thread_position_in_threadgroup.xy;
    const uint H = x_shape[0], W = x_shape[1];
    for (uint i = t.y; i < 32; i += 8)
        if (g.y * 32 + i < H && g.x * 32 + t.x < W) tile[i][t.x] = x[(g.y * 32 + i) * W + g.x * 32 + t.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = t.y; i < 32; i += 8)
        if (g.x * 32 + i < W && g.y * 32 + t.x < H) out[(g.x * 32 + i) * H + g.y * 32 + t.x] = tile[t.x][i];
    """, {"x": x}, [(45, 70)], [mx.float32], (64, 24, 1), (32, 8, 1))
    same(got, np.ascontiguousarray(x.T))


@case
def product_by_tiles():
    a, b = numbers(40, 50), numbers(50, 36)
    got, = run("""
    threadgroup float left[16][16], right[16][16];
    const uint2 g = threadgroup_position_in_grid.xy, t = thread_position_in_threadgroup.xy;
    const uint M = a_shape[0], K = a_shape[1], N = b_shape[1], row = g.y * 16 + t.y, column = g.x * 16 + t.x;
    float sum = 0;
    for (uint k = 0; k < K; k += 16) {
        left[t.y][t.x] = row < M && k + t.x < K ? a[row * K + k + t.x] : 0;
        right[t.y][t.x] = k + t.y < K && column < N ? b[(k + t.y) * N + column] : 0;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < 16; i++) sum = fma(left[t.y][i], right[i][t.x], sum);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (row < M && column < N) out[row * N + column] = sum;""",
               {"a": a, "b": b}, [(40, 36)], [mx.float32], (48, 48, 1), (16, 16, 1))
    near(got, a.astype(np.float64) @ b, 1e-4, 1e-4)


@case
def sparse_product():
    dense, x = numbers(33, 29) * (numbers(33, 29, seed=1) > 0.7), numbers(29)
    starts, columns = np.concatenate([[0], np.cumsum((dense != 0).sum(1))]), np.nonzero(dense)[1]
    got, = run("""
    const uint row = thread_position_in_grid.x / 32, lane = thread_index_in_simdgroup;
    float sum = 0;
    for (int64_t i = starts[row] + lane; i < starts[row + 1]; i += 32) sum += values[i] * x[columns[i]];
    sum = simd_sum(sum);
    if (lane == 0) out[row] = sum;""",
               {"starts": starts.astype(np.int64), "columns": columns.astype(np.uint16), "values": dense[dense != 0], "x": x},
               [(33,)], [mx.float32], (33 * 32, 1, 1), (64, 1, 1))
    near(got, dense.astype(np.float64) @ x)


@case
def fourier_transform():
    x = numbers(3, 64) + 1j * numbers(3, 64, seed=1)
    got, = run("""
    threadgroup float2 a[64];
    const uint t = thread_position_in_threadgroup.x, row = threadgroup_position_in_grid.x;
    a[reverse_bits(t) >> 26] = float2(x[row * 64 + t].real, x[row * 64 + t].imag);
    for (uint n = 2; n <= 64; n *= 2) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint k = t % n, other = t ^ (n / 2);
        const float2 mine = a[t], theirs = a[other];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const bool low = k < n / 2;
        const float angle = -2 * M_PI_F * (k % (n / 2)) / n;
        const float2 w = float2(cos(angle), sin(angle)), odd = low ? theirs : mine, even = low ? mine : theirs;
        const float2 turned = float2(odd.x * w.x - odd.y * w.y, odd.x * w.y + odd.y * w.x);
        a[t] = low ? even + turned : even - turned;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[row * 64 + t] = complex64_t{a[t].x, a[t].y};""",
               {"x": x.astype(np.complex64)}, [(3, 64)], [mx.complex64], (3 * 64, 1, 1), (64, 1, 1))
    near(got, np.fft.fft(x), 1e-4, 1e-4)


@case
def causal_convolution():
    x, w = numbers(2, 30, 12), numbers(12, 4)
    got, = run("""
    const uint c = thread_position_in_grid.x, t = thread_position_in_grid.y, b = thread_position_in_grid.z;
    const int C = x_shape[2], L = x_shape[1];
    float sum = 0;
    for (int k = 0; k < K; k++) if (int(t) >= K - 1 - k) sum += w[c * K + k] * x[(b * L + t + k - K + 1) * C + c];
    out[(b * L + t) * C + c] = static_cast<T>(sum / (1 + exp(-sum)));""",
               {"x": x, "w": w}, [x.shape], [mx.bfloat16], (12, 30, 2), (12, 5, 1), template=[("T", mx.bfloat16), ("K", 4)])
    padded = np.pad(x.astype(np.float64), ((0, 0), (3, 0), (0, 0)))
    y = sum(w[:, k] * padded[:, k:k + 30] for k in range(4))
    near(got, y / (1 + np.exp(-y)), 1e-2, 1e-2)


@case
def rotary_embedding():
    x = numbers(5, 3, 16, dtype=np.float16)
    got, = run("""
    const uint pair = thread_position_in_grid.x, head = thread_position_in_grid.y, t = thread_position_in_grid.z;
    const auto at = (device const half2*)x + (t * 3 + head) * 8 + pair;
    float c;
    const float s = sincos(float(t) * powr(10000.0f, -float(pair) / 8), c);
    const float2 v = float2(*at);
    ((device half2*)out)[(t * 3 + head) * 8 + pair] = half2(v.x * c - v.y * s, v.x * s + v.y * c);""",
               {"x": x}, [x.shape], [mx.float16], (8, 3, 5), (8, 3, 1))
    angle = np.arange(5)[:, None] * 10000.0 ** (-np.arange(8) / 8)
    y, c, s = x.astype(np.float64), np.cos(angle)[:, None], np.sin(angle)[:, None]
    want = np.stack([y[..., ::2] * c - y[..., 1::2] * s, y[..., ::2] * s + y[..., 1::2] * c], -1).reshape(x.shape)
    near(got, want, 2e-3, 2e-3)


@case
def overlaps_of_boxes():
    boxes = np.sort(np.abs(numbers(23, 2, 2)), axis=1).reshape(23, 4)
    got, = run("""
    const uint2 p = thread_position_in_grid.xy;
    const float4 a = ((const device float4*)boxes)[p.x], b = ((const device float4*)boxes)[p.y];
    const float2 side = max(min(a.zw, b.zw) - max(a.xy, b.xy), 0.0f), da = a.zw - a.xy, db = b.zw - b.xy;
    const float common = side.x * side.y;
    out[p.y * 23 + p.x] = common / (da.x * da.y + db.x * db.y - common);""",
               {"boxes": boxes}, [(23, 23)], [mx.float32], (23, 23, 1), (23, 4, 1))
    a, b = boxes[None].astype(np.float64), boxes[:, None].astype(np.float64)
    side = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0).prod(-1)
    near(got, side / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - side), 1e-4, 1e-5)


@case
def rotations():
    """Structures with operators, as a header has them."""
    q, v = numbers(50, 4), numbers(50, 3)
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    header = """
    template <typename T> struct Quaternion {
        float3 v;
        T w;
        Quaternion operator*(Quaternion o) const { return {w * o.v + o.w * v + cross(v, o.v), w * o.w - dot(v, o.v)}; }
        Quaternion turned() const { return {-v, w}; }
    };
    """
    got, = run("""
    const uint i = thread_position_in_grid.x;
    const Quaternion<float> a{float3(q[4 * i], q[4 * i + 1], q[4 * i + 2]), q[4 * i + 3]};
    const Quaternion<float> p{float3(v[3 * i], v[3 * i + 1], v[3 * i + 2]), 0};
    const auto r = a * p * a.turned();
    for (int k = 0; k < 3; k++) out[3 * i + k] = r.v[k];""",
               {"q": q, "v": v}, [(50, 3)], [mx.float32], (50, 1, 1), (32, 1, 1), header=header)
    t = 2 * np.cross(q[:, :3], v)
    near(got, v + q[:, 3:] * t + np.cross(q[:, :3], t), 1e-4, 1e-5)


@case
def edit_distances():
    words, other = integers(4, 30, 12, dtype=np.uint8), integers(4, 12, dtype=np.uint8, seed=5)
    got, = run("""
    const uint i = thread_position_in_grid.x;
    uchar row[N + 1];
    for (int j = 0; j <= N; j++) row[j] = j;
    for (int k = 0; k < N; k++) {
        uchar corner = row[0];
        row[0] = k + 1;
        for (int j = 0; j < N; j++) {
            const uchar kept = row[j + 1];
            row[j + 1] = min(min(row[j], row[j + 1]) + 1, corner + (words[i * N + k] == other[j] ? 0 : 1));
            corner = kept;
        }
    }
    out[i] = row[N];""", {"words": words, "other": other}, [(30,)], [mx.uint8], (30, 1, 1), (30, 1, 1), template=[("N", 12)])

    def distance(a, b):
        row = list(range(len(b) + 1))
        for k, x in enumerate(a):
            new = [k + 1]
            for j, y in enumerate(b):
                new.append(min(new[j] + 1, row[j + 1] + 1, row[j] + int(x != y)))
            row = new
        return row[-1]
    same(got, np.array([distance(w, other) for w in words], np.uint8))


@case
def nearest_points():
    points, seeds = numbers(200, 3), numbers(17, 3)
    got, = run("""
    threadgroup float3 near[17];
    const uint t = thread_index_in_threadgroup, i = thread_position_in_grid.x;
    if (t < 17) near[t] = float3(seeds[3 * t], seeds[3 * t + 1], seeds[3 * t + 2]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i >= uint(points_shape[0])) return;
    const float3 p = float3(points[3 * i], points[3 * i + 1], points[3 * i + 2]);
    uint best = 0;
    for (uint k = 1; k < 17; k++) if (distance_squared(p, near[k]) < distance_squared(p, near[best])) best = k;
    out[i] = best;""", {"points": points, "seeds": seeds}, [(200,)], [mx.uint32], (256, 1, 1), (64, 1, 1))
    d = ((points[:, None].astype(np.float64) - seeds) ** 2).sum(-1)
    assert np.mean(got != d.argmin(1)) < 0.01


@case
def gelu_of_any_view():
    x = numbers(6, 10, 8)
    view = mx.array(x).transpose(2, 0, 1)[::2]
    got, = run("""
    const uint i = thread_position_in_grid.x;
    const float v = x[elem_to_loc(i, x_shape, x_strides, x_ndim)];
    out[i] = static_cast<T>(v / 2 * (1 + precise::tanh(0.7978845608f * (v + 0.044715f * v * v * v))));""",
               {"x": view}, [(4, 6, 10)], [mx.float16], (240, 1, 1), (48, 1, 1), template=[("T", mx.float16)],
               ensure_row_contiguous=False)
    y = x.transpose(2, 0, 1)[::2].astype(np.float64)
    near(got, y / 2 * (1 + np.tanh(0.7978845608 * (y + 0.044715 * y ** 3))), 2e-3, 1e-3)


@pytest.mark.parametrize("name", [c.__name__ for c in CASES])
def test_kernel(name):
    next(c for c in CASES if c.__name__ == name)()


def test_a_device_unlike_apples():
    code = "import mlx.core as mx, support; print(mx.metal.is_available(), support.device_info()['device_name'])"
    if os.path.exists(SWIFTSHADER):
        for gate, said in (("", "False Swift"), ("1", "True Swift"), ("0", "False Swift")):
            got = support.run(code, VK_DRIVER_FILES=SWIFTSHADER, VK_ICD_FILENAMES=SWIFTSHADER, MLX_VK_METAL_KERNELS=gate)
            assert got.stdout.startswith(said), got.stdout + got.stderr


SWIFTSHADER = "/usr/lib/chromium/vk_swiftshader_icd.json"


@pytest.mark.skipif(not os.path.exists(SWIFTSHADER), reason="SwiftShader (Debian's chromium-common) is not here")
def test_on_subgroups_of_four():
    code = """
import mlx.core as mx, support, test_kernels_own
for case in test_kernels_own.CASES:
    try: case.__name__ == "hamming_distances" or case()   # there are no 64-bit integers: LANGUAGE.md
    except Exception as e: print(case.__name__, type(e).__name__, e)
print(support.device_info()["device_name"], len(test_kernels_own.CASES), "done")"""
    got = support.run(code, timeout=600, VK_DRIVER_FILES=SWIFTSHADER, VK_ICD_FILENAMES=SWIFTSHADER, MLX_VK_METAL_KERNELS="1")
    assert got.returncode == 0, got.stderr
    lines = got.stdout.splitlines()
    assert len(lines) == 1 and "SwiftShader" in lines[0] and lines[0].endswith("%d done" % len(CASES)), got.stdout
