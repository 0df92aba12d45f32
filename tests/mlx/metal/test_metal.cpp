/* Kernels of the kind that MLX's users write, against what C++ computes.              SPDX-License-Identifier: MIT */
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "test_support.h"

using namespace metal_test;

namespace {

const mlxvk_dtype F32 = MLXVK_FLOAT32, F16 = MLXVK_FLOAT16, BF16 = MLXVK_BFLOAT16, I32 = MLXVK_INT32,
                  U32 = MLXVK_UINT32;

/* The same numbers in every run, between -1 and 1. */
Numbers numbers(size_t n, uint32_t seed, double scale = 1) {
  Numbers v;
  for (size_t i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    v.push_back(scale * (static_cast<double>(seed >> 8) / 8388608.0 - 1));
  }
  return v;
}
Numbers integers(size_t n, uint32_t seed, int below) {
  Numbers v = numbers(n, seed);
  for (double& x : v) x = std::floor((x + 1) / 2 * below);
  return v;
}
Numbers as(Numbers v, mlxvk_dtype d) {
  for (double& x : v) x = rounded(x, d);
  return v;
}

int failures = 0, tests = 0;
void expect(const char* what, const Numbers& got, const Numbers& want, double rtol, double atol) {
  if (got.size() != want.size()) throw std::runtime_error(std::string(what) + ": another size");
  for (size_t i = 0; i < got.size(); i++) {
    bool same = got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]));
    if (same || std::fabs(got[i] - want[i]) <= atol + rtol * std::fabs(want[i])) continue;
    char text[160];
    snprintf(text, sizeof text, "%s: element %zu is %.9g, not %.9g", what, i, got[i], want[i]);
    throw std::runtime_error(text);
  }
}

struct Test { const char* name; std::function<void()> body; };

Kernel elementwise(const std::string& source, mlxvk_dtype dtype, int n, const Numbers& x) {
  Kernel k;
  k.source = source;
  k.in = {{"inp", dtype, {n}, x}};
  k.out = {{"out", dtype, {n}}};
  k.templates = {{"T", "typename", metal_name(dtype)}};
  k.grid[0] = n;
  k.group[0] = 64;
  return k;
}

/* ---- the tests ---- */

void exponential() {
  for (mlxvk_dtype d : {F32, F16, BF16}) {
    Numbers x = as(numbers(1000, 1, 4), d), want;
    for (double v : x) want.push_back(rounded(std::exp(v), d));
    Kernel k = elementwise("uint elem = thread_position_in_grid.x;\nT tmp = inp[elem];\nout[elem] = metal::exp(tmp);",
                           d, 1000, x);
    expect("exp", run(k)[0], want, d == F32 ? 1e-5 : d == F16 ? 1e-3 : 8e-3, 0);
  }
}

/* Sums and products in a type round after each operation. */
void roundings() {
  for (mlxvk_dtype d : {F16, BF16}) {
    Numbers x = as(numbers(2000, 2, 100), d), want;
    for (size_t i = 0; i < x.size(); i++) want.push_back(rounded(rounded(x[i] * x[(i * 7 + 1) % 2000], d) + x[i], d));
    Kernel k = elementwise("uint i = thread_position_in_grid.x; out[i] = inp[i] * inp[(i * 7 + 1) % 2000] + inp[i];", d,
                           2000, x);
    expect("a * b + c", run(k)[0], want, 0, 0);
  }
}

void small_integers() {
  Numbers x = integers(256, 3, 256), want;
  for (double v : x) {
    uint8_t a = static_cast<uint8_t>(v), b = static_cast<uint8_t>(a * 3 + 250);
    int8_t c = static_cast<int8_t>(b);
    want.push_back(static_cast<uint8_t>((c >> 2) ^ (b << 1) ^ (a / 3) ^ (c % 7)));
  }
  Kernel k = elementwise("uint i = thread_position_in_grid.x; T a = inp[i]; T b = a * 3 + 250; int8_t c = b;"
                         "out[i] = (c >> 2) ^ (b << 1) ^ (a / 3) ^ (c % 7);", MLXVK_UINT8, 256, x);
  expect("uint8", run(k)[0], want, 0, 0);
  /* The least one's absolute value is itself. */
  x = {-128, -127, -1, 0, 127};
  want = {-128 - 32768, 127 + 32767, 2, 0, 254};
  k = elementwise("uint i = thread_position_in_grid.x; char a = inp[i]; short b = a < -1 ? a * 256 - (a & 1) * 255 : a;"
                  "char2 c = abs(char2(a)); short d = abs(b); out[i] = c.y + d;", MLXVK_INT32, 5, x);
  expect("abs", run(k)[0], want, 0, 0);
}

void long_integers() {
  Numbers x = integers(100, 4, 1 << 20), want;
  for (double v : x) {
    int64_t a = static_cast<int64_t>(v) * 1000003, b = a ^ (a << 7);
    want.push_back(
        static_cast<double>((b % 1000000007) - (b >> 3) % 1013 + static_cast<int64_t>(static_cast<uint64_t>(a) / 77u)));
  }
  Kernel k = elementwise("uint i = thread_position_in_grid.x; int64_t a = inp[i] * 1000003; int64_t b = a ^ (a << 7);"
                         "out[i] = (b % 1000000007) - (b >> 3) % 1013 + (long)((ulong)a / 77ul);", MLXVK_INT64, 100, x);
  expect("int64", run(k)[0], want, 0, 0);
}

void simd_functions() {
  Numbers x = integers(256, 5, 1000), want;
  for (int i = 0; i < 256; i++) {
    int base = i / 32 * 32, lane = i % 32;
    double sum = 0, most = 0, least = 1e9, prefix = 0, before = 0;
    uint32_t bits = 0;
    for (int j = 0; j < 32; j++) {
      double v = x[static_cast<size_t>(base + j)];
      sum += v;
      most = std::max(most, v);
      least = std::min(least, v);
      if (j <= lane) prefix += v;
      if (j < lane) before += v;
      if (v > 500) bits |= 1u << j;
    }
    double swapped = x[static_cast<size_t>(base + (lane ^ 5))], up = x[static_cast<size_t>(lane >= 3 ? i - 3 : i)];
    double down = x[static_cast<size_t>(lane < 30 ? i + 2 : i)], third = x[static_cast<size_t>(base + 3)];
    for (double v : {sum, most, least, prefix, before, swapped, up, down, third, static_cast<double>(bits & 0xffff),
                     static_cast<double>(bits != 0)})
      want.push_back(v);
  }
  Kernel k;
  k.source = "uint i = thread_position_in_grid.x; int v = x[i]; device int* o = out + i * 11;"
             "o[0] = simd_sum(v); o[1] = simd_max(v); o[2] = simd_min(v); o[3] = simd_prefix_inclusive_sum(v);"
             "o[4] = simd_prefix_exclusive_sum(v); o[5] = simd_shuffle_xor(v, 5); o[6] = simd_shuffle_up(v, 3);"
             "o[7] = simd_shuffle_down(v, 2); o[8] = simd_broadcast(v, 3);"
             "o[9] = uint64_t(simd_ballot(v > 500)) & 0xffff; o[10] = simd_any(v > 500);";
  k.in = {{"x", I32, {256}, x}};
  k.out = {{"out", I32, {256, 11}}};
  k.grid[0] = 256;
  k.group[0] = 128;
  expect("simd", run(k)[0], want, 0, 0);
}

/* Threads part before a sum: those that are not there count nothing. */
void parted_sums() {
  Numbers x = integers(200, 6, 100), want;
  for (int i = 0; i < 200; i++) {
    int base = i / 32 * 32;
    double sum = 0, turns = 0;
    for (int j = base; j < base + 32 && j < 200; j++) {
      if (x[static_cast<size_t>(j)] >= 50) sum += x[static_cast<size_t>(j)];
    }
    for (int n = 0; n < 5; n++)
      for (int j = base; j < base + 32 && j < 200; j++)
        if (n < x[static_cast<size_t>(j)] / 20) turns += n < x[static_cast<size_t>(i)] / 20 ? 1 : 0;
    want.push_back(x[static_cast<size_t>(i)] >= 50 ? sum : -1);
    want.push_back(turns);
  }
  Kernel k;
  k.source =
      "uint i = thread_position_in_grid.x; int v = x[i]; int s = -1; if (v >= 50) { s = simd_sum(v); } out[2 * i] = s;"
      "int turns = 0; for (int n = 0; n < 5; n++) { if (n * 20 >= v) break; turns += simd_sum(1); } out[2 * i + 1] = "
      "turns;";
  k.in = {{"x", I32, {200}, x}};
  k.out = {{"out", I32, {200, 2}}};
  k.grid[0] = 200;
  k.group[0] = 128;
  expect("parted", run(k)[0], want, 0, 0);
}

void softmax_rows() {
  const int rows = 5, n = 700;
  Numbers x = numbers(rows * n, 7, 5), want;
  for (int r = 0; r < rows; r++) {
    double most = -1e30, sum = 0;
    for (int i = 0; i < n; i++) most = std::max(most, x[static_cast<size_t>(r * n + i)]);
    for (int i = 0; i < n; i++) sum += std::exp(x[static_cast<size_t>(r * n + i)] - most);
    for (int i = 0; i < n; i++) want.push_back(std::exp(x[static_cast<size_t>(r * n + i)] - most) / sum);
  }
  Kernel k;
  k.source = R"(
    threadgroup float shared[32];
    uint row = threadgroup_position_in_grid.x, t = thread_position_in_threadgroup.x;
    uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
    auto r = x + row * N;
    float most = -INFINITY;
    for (uint i = t; i < N; i += threads_per_threadgroup.x) most = max(most, r[i]);
    most = simd_max(most);
    if (lane == 0) shared[sg] = most;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    most = simd_max(lane < simdgroups_per_threadgroup ? shared[lane] : -INFINITY);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0;
    for (uint i = t; i < N; i += threads_per_threadgroup.x) sum += fast::exp(r[i] - most);
    sum = simd_sum(sum);
    if (lane == 0) shared[sg] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = simd_sum(lane < simdgroups_per_threadgroup ? shared[lane] : 0.0f);
    for (uint i = t; i < N; i += threads_per_threadgroup.x) out[row * N + i] = precise::exp(r[i] - most) / sum;
  )";
  k.in = {{"x", F32, {rows, n}, x}};
  k.out = {{"out", F32, {rows, n}}};
  k.templates = {{"N", "int", std::to_string(n)}};
  k.grid[0] = rows * 128;
  k.group[0] = 128;
  expect("softmax", run(k)[0], want, 1e-4, 1e-7);
}

void histogram() {
  Numbers x = integers(5000, 8, 37), want(37, 0);
  for (double v : x) want[static_cast<size_t>(v)]++;
  Kernel k;
  k.source = "uint i = thread_position_in_grid.x; atomic_fetch_add_explicit(&out[x[i]], 1u, memory_order_relaxed);";
  k.in = {{"x", MLXVK_UINT8, {5000}, x}};
  k.out = {{"out", U32, {37}}};
  k.atomic = true;
  k.grid[0] = 5000;
  k.group[0] = 256;
  expect("histogram", run(k)[0], want, 0, 0);
}

void shared_histogram() {
  Numbers x = integers(1000, 9, 16), want(16, 0);
  for (double v : x) want[static_cast<size_t>(v)]++;
  Kernel k;
  k.source = R"(
    threadgroup atomic_uint bins[16];
    uint t = thread_index_in_threadgroup;
    if (t < 16) atomic_store_explicit(&bins[t], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&bins[x[thread_position_in_grid.x]], 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint n = t < 16 ? atomic_load_explicit(&bins[t], memory_order_relaxed) : 0;
    if (t < 16) atomic_fetch_add_explicit(&out[t], n, memory_order_relaxed);
  )";
  k.in = {{"x", I32, {1000}, x}};
  k.out = {{"out", U32, {16}}};
  k.atomic = true;
  k.grid[0] = 1000;                            // the last threadgroup is not full
  k.group[0] = 64;
  expect("shared histogram", run(k)[0], want, 0, 0);
}

void float_atomics() {
  Numbers x = numbers(512, 10), want(4, 0);
  for (size_t i = 0; i < 512; i++) want[i % 4] += x[i];
  Kernel k;
  k.source = "uint i = thread_position_in_grid.x; atomic_fetch_add_explicit(&out[i % 4], x[i], memory_order_relaxed);";
  k.in = {{"x", F32, {512}, x}};
  k.out = {{"out", F32, {4}}};
  k.atomic = true;
  k.grid[0] = 512;
  k.group[0] = 64;
  expect("float atomics", run(k)[0], want, 1e-4, 1e-4);
}

void unpacking() {
  Numbers x = integers(64, 11, 1 << 30), want;
  for (double v : x)
    for (int b = 0; b < 32; b++) want.push_back((static_cast<uint32_t>(v) >> b & 1) ? 1 : -1);
  Kernel k;
  k.source = "uint i = thread_position_in_grid.x; uint8_t b = ((const device uint8_t*)packed)[i / 8];"
             "out[i] = (b >> (i % 8)) & 1 ? half(1) : half(-1);";
  k.in = {{"packed", U32, {64}, x}};
  k.out = {{"out", F16, {2048}}};
  k.grid[0] = 2048;
  k.group[0] = 256;
  expect("unpack", run(k)[0], want, 0, 0);
}

void vectors() {
  const int n = 64;
  Numbers x = numbers(4 * n, 12), want;
  for (int i = 0; i < n; i++) {
    const double* v = &x[static_cast<size_t>(4 * i)];
    double dot = v[0] * v[1] + v[1] * v[2] + v[2] * v[0];
    double out[4] = {v[3] + dot, v[2] * 2, v[1] * 2 + v[0], v[0]};
    for (double o : out) want.push_back(static_cast<float>(o));
  }
  Kernel k;
  k.source = R"(
    uint i = thread_position_in_grid.x;
    const device float4* rows = (const device float4*)x;
    float4 v = rows[i];
    float3 a = v.xyz, b(v.yz, v.x);
    float4 r;
    r.wzyx = v;
    r.x += dot(a, b);
    r.yz *= 2.0f;
    r[2] += v[0];
    *(device float4*)(out + 4 * i) = r;
  )";
  k.in = {{"x", F32, {n, 4}, x}};
  k.out = {{"out", F32, {n, 4}}};
  k.grid[0] = n;
  k.group[0] = 16;
  expect("vectors", run(k)[0], want, 1e-5, 1e-6);
}

void templates() {
  Numbers x = numbers(100, 13, 3), want;
  for (double v : x) {
    double s = 0;
    for (int i = 0; i < 4; i++) s += std::max(v * i, 0.0) * (i == 2 ? 10 : 1);
    want.push_back(s + 4 + 24);
  }
  Kernel k = elementwise(R"(
    uint i = thread_position_in_grid.x;
    Stack<T, 4> s;
    for (int j = 0; j < 4; j++) s.push(scaled<Relu>(inp[i], j));
    s[2] *= 10;
    out[i] = s.sum() + Stack<T, 4>::capacity + factorial(4);
  )", F32, 100, x);
  k.header = R"(
    struct Relu { template <typename T> T operator()(T x) const { return x > 0 ? x : T(0); } };
    template <typename Op, typename T> T scaled(T x, int by) { return Op()(x * by); }
    template <typename T, int N> struct Stack {
      static constexpr constant int capacity = N;
      T items[N];
      int count = 0;
      void push(T x) { items[count++] = x; }
      thread T& operator[](int i) { return items[i]; }
      T sum() const { T s = 0; for (int i = 0; i < count; i++) s += items[i]; return s; }
    };
    constexpr int factorial(int n) { if (n < 2) return 1; int r = n; while (--n > 1) r *= n; return r; }
    static_assert(factorial(5) == 120, "factorial");
  )";
  expect("templates", run(k)[0], want, 1e-5, 1e-5);
}

void control_flow() {
  Numbers x = integers(300, 14, 100), want;
  for (double d : x) {
    int v = static_cast<int>(d), r = 0;
    for (int i = 0; i < 20; i++) {
      if (i == v) break;
      if (i % 3 == 0) continue;
      for (int j = 0; j < 5; j++) {
        if (j * i > v) break;
        r += j;
      }
    }
    do { r += 2; v /= 2; } while (v > 3);
    switch (v) {
      case 0: r += 100; [[fallthrough]];
      case 1: r += 200; break;
      case 2: { r -= 7; break; }
      default: r ^= 5;
    }
    while (true) { if (r > 150) break; r += 31; }
    want.push_back(r);
  }
  Kernel k = elementwise(R"(
    int v = inp[thread_position_in_grid.x], r = 0;
    for (int i = 0; i < 20; i++) {
      if (i == v) break;
      if (i % 3 == 0) continue;
      for (int j = 0; j < 5; j++) {
        if (j * i > v) break;
        r += j;
      }
    }
    do { r += 2; v /= 2; } while (v > 3);
    switch (v) {
      case 0: r += 100;
      case 1: r += 200; break;
      case 2: { r -= 7; break; }
      default: r ^= 5;
    }
    while (true) { if (r > 150) break; r += 31; }
    out[thread_position_in_grid.x] = r;
  )", I32, 300, x);
  expect("control flow", run(k)[0], want, 0, 0);
}

/* Returns from within loops of functions that are called in others. */
void early_returns() {
  Numbers x = integers(300, 15, 1000), want;
  auto find = [](int v) {
    for (int i = 2; i < 40; i++) {
      for (int j = 0; j < 3; j++)
        if ((v + j) % i == 0 && i > 4) return i * 10 + j;
    }
    return -1;
  };
  for (double v : x) want.push_back(find(static_cast<int>(v)) + find(static_cast<int>(v) + 1));
  Kernel k = elementwise("uint i = thread_position_in_grid.x; out[i] = find(inp[i]) + find(inp[i] + 1);", I32, 300, x);
  k.header =
      "int find(int v) { for (int i = 2; i < 40; i++) { for (int j = 0; j < 3; j++) if ((v + j) % i == 0 && i > 4) "
      "return i * 10 + j; } return -1; }";
  expect("early returns", run(k)[0], want, 0, 0);
}

void pointers() {
  Numbers x = numbers(200, 16), y = numbers(200, 17), want;
  for (size_t i = 0; i < 200; i++) {
    const Numbers& a = i % 2 ? x : y;
    double s = 0;
    for (size_t j = i; j < 200; j += 50) s += a[j];
    want.push_back(s + x[(i + 1) % 200]);
  }
  Kernel k;
  k.source = R"(
    uint i = thread_position_in_grid.x;
    const device float* p = i % 2 ? x : y;
    const device float* end = x + 200;
    p += i;
    float s = 0;
    for (uint j = i; j < 200; j += 50) { s += *p; p += 50; }
    auto q = x + (i + 1) % 200;
    if (q < end && end - q <= 200) s += q[0];
    thread float* t = &s;
    *t += 0;
    out[i] = s;
  )";
  k.in = {{"x", F32, {200}, x}, {"y", F32, {200}, y}};
  k.out = {{"out", F32, {200}}};
  k.grid[0] = 200;
  k.group[0] = 50;
  expect("pointers", run(k)[0], want, 1e-5, 1e-6);
}

void shapes() {
  const int a = 3, b = 4, c = 5;
  Numbers x = numbers(a * b * c, 18), want = x;
  for (double& v : want) v = v + a * 100 + b * 10 + c + 3;
  Kernel k;
  k.source = "uint i = thread_position_in_grid.x; size_t loc = elem_to_loc(i, x_shape, x_strides, x_ndim);"
             "out[i] = x[loc] + x_shape[0] * 100 + x_shape[1] * 10 + x_shape[2] + x_ndim;";
  k.in = {{"x", F32, {a, b, c}, x}};
  k.out = {{"out", F32, {a, b, c}}};
  k.grid[0] = a * b * c;
  k.group[0] = 64;
  expect("shapes", run(k)[0], want, 1e-6, 1e-6);
}

void grids() {
  const int w = 10, h = 6, d = 3;
  Numbers want;
  for (int z = 0; z < d; z++)
    for (int y = 0; y < h; y++)
      for (int x = 0; x < w; x++) want.push_back(x + 10 * y + 60 * z + 1000 * (x / 4 + y / 4) + 100 * 0 + w * h * d);
  Kernel k;
  k.source =
      "uint3 p = thread_position_in_grid, g = threads_per_grid;"
      "out[p.x + g.x * (p.y + g.y * p.z)] = p.x + 10 * p.y + 60 * p.z + 1000 * (threadgroup_position_in_grid.x + "
      "threadgroup_position_in_grid.y) + g.x * g.y * g.z;";
  k.out = {{"out", I32, {d, h, w}}};
  k.grid[0] = w;
  k.grid[1] = h;
  k.grid[2] = d;
  k.group[0] = k.group[1] = 4;
  expect("grids", run(k)[0], want, 0, 0);
}

void mandelbrot() {
  const int n = 32;
  Numbers want;
  for (int i = 0; i < n * n; i++) {
    float cr = static_cast<float>(i % n) / 16 - 1.5f, ci = static_cast<float>(i / n) / 16 - 1.0f, zr = 0, zi = 0;
    int turns = 0;
    while (turns < 50 && zr * zr + zi * zi <= 4) {
      float t = zr * zr - zi * zi + cr;
      zi = 2 * zr * zi + ci;
      zr = t;
      turns++;
    }
    want.push_back(turns);
  }
  Kernel k;
  k.source = R"(
    uint i = thread_position_in_grid.x;
    complex64_t c(float(i % 32) / 16 - 1.5f, float(i / 32) / 16 - 1.0f), z;
    int turns = 0;
    while (turns < 50 && z.real * z.real + z.imag * z.imag <= 4) { z = z * z + c; turns++; }
    out[i] = turns;
  )";
  k.out = {{"out", I32, {n * n}}};
  k.grid[0] = n * n;
  k.group[0] = 64;
  k.exact = true;
  expect("mandelbrot", run(k)[0], want, 0, 0);
}

void matrix_product() {
  const int n = 33, tile = 8;
  Numbers a = numbers(n * n, 19), b = numbers(n * n, 20), want;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      double s = 0;
      for (int l = 0; l < n; l++) s += a[static_cast<size_t>(i * n + l)] * b[static_cast<size_t>(l * n + j)];
      want.push_back(s);
    }
  Kernel k;
  k.source = R"(
    constexpr int TILE = 8;
    threadgroup float sa[TILE][TILE], sb[TILE][TILE + 1];
    uint2 t = thread_position_in_threadgroup.xy, p = thread_position_in_grid.xy;
    float sum = 0;
    for (int l = 0; l < N; l += TILE) {
      sa[t.y][t.x] = p.y < N && l + t.x < N ? a[p.y * N + l + t.x] : 0.0f;
      sb[t.y][t.x] = l + t.y < N && p.x < N ? b[(l + t.y) * N + p.x] : 0.0f;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      #pragma unroll
      for (int j = 0; j < TILE; j++) sum += sa[t.y][j] * sb[j][t.x];
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (p.x < N && p.y < N) out[p.y * N + p.x] = sum;
  )";
  k.in = {{"a", F32, {n, n}, a}, {"b", F32, {n, n}, b}};
  k.out = {{"out", F32, {n, n}}};
  k.templates = {{"N", "int", std::to_string(n)}};
  k.grid[0] = k.grid[1] = (n + tile - 1) / tile * tile;
  k.group[0] = k.group[1] = tile;
  expect("matrix product", run(k)[0], want, 1e-4, 1e-5);
}

void preprocessor() {
  Numbers x = numbers(10, 21), want;
  for (double v : x) want.push_back(static_cast<float>(v) * 3 + 7);
  Kernel k = elementwise("uint i = thread_position_in_grid.x; out[i] = SCALE(inp[i], 3) + CAT(SE, VEN);", F32, 10, x);
  k.header =
      "#include <metal_stdlib>\nusing namespace metal;\n#define SCALE(x, n) ((x) * (n))\n#define CAT(a, b) a##b\n#if "
      "defined(SCALE) && \\\n    __METAL_VERSION__ >= 300\n"
      "#define SEVEN 7\n#else\n#error not here\n#endif\n";
  expect("preprocessor", run(k)[0], want, 1e-6, 1e-6);
}

void lambdas() {
  Numbers x = numbers(50, 22), want;
  for (double v : x) want.push_back(3 * (v + 1) + (v + 2));
  Kernel k = elementwise(
      "uint i = thread_position_in_grid.x; T total = 0; auto add = [&](T by) { total += by; return by; };"
      "T a = add(inp[i] + 1); add(inp[i] + 2); out[i] = total + 2 * a;",
      F32, 50, x);
  expect("lambdas", run(k)[0], want, 1e-5, 1e-6);
}

void constants() {
  Numbers x = integers(64, 23, 16), want;
  const double lut[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
  for (double v : x) want.push_back(lut[static_cast<size_t>(v)]);
  Kernel k;
  k.header =
      "constant float lut[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, "
      "-3.0f, -4.0f, -6.0f};";
  k.source = "uint i = thread_position_in_grid.x; out[i] = lut[x[i]];";
  k.in = {{"x", MLXVK_UINT8, {64}, x}};
  k.out = {{"out", F32, {64}}};
  k.grid[0] = 64;
  k.group[0] = 32;
  expect("constants", run(k)[0], want, 0, 0);
}

void casts() {
  Numbers x = numbers(100, 24, 10), want;
  for (double d : x) {
    float v = static_cast<float>(d);
    uint32_t u;
    memcpy(&u, &v, 4);
    want.push_back(static_cast<double>((u >> 16) ^ (u & 0xffff)) + static_cast<int>(v) +
                   static_cast<uint8_t>(static_cast<int>(v) & 255) + (v > 0));
  }
  Kernel k = elementwise(
      "uint i = thread_position_in_grid.x; T v = inp[i]; ushort2 h = as_type<ushort2>(v);"
      "out[i] = (h.x ^ h.y) + static_cast<int>(v) + (uint8_t)(int(v) & 255) + (v > 0);",
      F32, 100, x);
  expect("casts", run(k)[0], want, 0, 0);
}

void integer_functions() {
  Numbers x = integers(200, 25, 1 << 28), want;
  for (double d : x) {
    uint32_t v = static_cast<uint32_t>(d) | 1;
    uint32_t r = static_cast<uint32_t>(__builtin_popcount(v)) + static_cast<uint32_t>(__builtin_clz(v)) * 100 +
                 static_cast<uint32_t>(__builtin_ctz(v << 3)) * 10000;
    want.push_back(r + static_cast<double>(static_cast<uint64_t>(v) * v >> 32) + std::min(std::max(v, 7u), 1000u) +
                   ((v << 5 | v >> 27) & 255));
  }
  Kernel k = elementwise(
      "uint i = thread_position_in_grid.x; uint v = inp[i] | 1;"
      "out[i] = popcount(v) + clz(v) * 100 + ctz(v << 3) * 10000 + mulhi(v, v) + clamp(v, 7u, 1000u) + (rotate(v, 5u) "
      "& 255);",
      U32, 200, x);
  expect("integer functions", run(k)[0], want, 0, 0);
}

void float_functions() {
  Numbers x = numbers(500, 26, 3), want;
  for (double d : x) {
    double v = static_cast<float>(d);
    want.push_back(std::sin(v) + std::cos(v) + std::tanh(v) + std::atan2(v, 2) + std::pow(std::fabs(v), 1.5) +
                   std::fmod(v, 0.7) + std::round(v) + std::log(std::fabs(v) + 1) + std::erf(v) + std::floor(v) +
                   (v > 1   ? 1
                    : v < 0 ? 0
                            : v));
  }
  Kernel k = elementwise(
      "uint i = thread_position_in_grid.x; T v = inp[i];"
      "out[i] = sin(v) + cos(v) + tanh(v) + atan2(v, 2.0f) + pow(fabs(v), 1.5f) + fmod(v, 0.7f) + round(v) + "
      "log(fabs(v) + 1)"
      " + erf(v) + floor(v) + saturate(v);",
      F32, 500, x);
  expect("float functions", run(k)[0], want, 1e-4, 2e-4);
}

/* Those that drivers have roughly: within some units of the last place, at any angle. */
struct Exact { const char* call; double (*of)(double); double low, high; };
const Exact exacts[] = {{"sin(v)", std::sin, -7, 7},           {"cos(v)", std::cos, -7, 7},
                        {"tan(v)", std::tan, -1.5, 1.5},       {"precise::sin(v)", std::sin, -6000, 6000},
                        {"fast::cos(v)", std::cos, 6000, 1e9}, {"sin(v)", std::sin, -1e16, 1e16},
                        {"asin(v)", std::asin, -1, 1},         {"acos(v)", std::acos, -1, 1},
                        {"atan(v)", std::atan, -20, 20},       {"sinh(v)", std::sinh, -5, 5},
                        {"cosh(v)", std::cosh, -5, 5},         {"asinh(v)", std::asinh, -1e3, 1e3},
                        {"acosh(v)", std::acosh, 1, 1e3},      {"atanh(v)", std::atanh, -1, 1},
                        {"atan2(v, -v)", [](double v) { return std::atan2(v, -v); }, -9, 9}};

void exact_functions() {
  for (const Exact& e : exacts) {
    Numbers x = numbers(300, 27, 1), want;
    for (double& d : x) {
      d = static_cast<float>(e.low + (e.high - e.low) * std::fabs(std::remainder(d, 1)) * 2);
      want.push_back(e.of(d));
    }
    Kernel k = elementwise(std::string("uint i = thread_position_in_grid.x; T v = inp[i]; out[i] = ") + e.call + ";",
                           F32, 300, x);
    expect(e.call, run(k)[0], want, 1e-6, 3e-7);
  }
}

/* Two arrays of a threadgroup that change places each round, as a Fourier transform's halves do, and what of a thread's
   own variables and structures a pointer comes to only in a loop. */
void pointers_to_variables() {
  Numbers x = numbers(64, 33, 3), want;
  for (size_t i = 0; i < 64; i++) {
    double s = 0;
    for (size_t j = 0; j < 8; j++) s += x[i / 8 * 8 + j];
    double own = x[i], other = 1;
    for (int r = 0; r < 4; r++) (r % 2 ? other : own) += r;
    want.push_back(s + own - other + x[i / 8 * 8 + (i + 3) % 8] + (i % 2 ? 3 : 2));
  }
  Kernel k = elementwise(R"(
    uint i = thread_position_in_grid.x, t = i % 8;
    threadgroup float2 first[8], second[8];
    threadgroup float2* from; threadgroup float2* to = second;
    from = first;
    from[t] = float2(inp[i], inp[(i / 8) * 8 + (t + 3) % 8]);
    for (uint step = 1; step < 8; step *= 2) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      to[t] = from[t];
      (to + t)->x += from[(t + step) % 8].x;
      threadgroup float2* kept = from; from = to; to = kept;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    T own = inp[i], other[3] = {0, 1, 0};
    thread T* p = &own;
    for (int r = 0; r < 4; r++) { *p += r; if (r % 2) p = &own; else p = other + 1; }
    Pair pairs[2] = {{2, 0}, {0, 3}};
    thread float* q = &pairs[0].a;
    for (uint r = 0; r < i % 2; r++) q = &pairs[1].b;
    out[i] = from[t].x + own - other[1] + from[t].y + *q;
  )", F32, 64, x);
  k.header = "struct Pair { float a, b; };";
  k.group[0] = 8;
  expect("pointers to variables", run(k)[0], want, 1e-5, 1e-5);
}

/* Null while the kernel runs, or one of several variables: set in loops and in branches, passed on, compared. */
void pointers_that_may_be_null() {
  Numbers x = numbers(64, 36, 3), want;
  for (size_t i = 0; i < 64; i++) {
    size_t t = i % 8;
    double s = 0, own = x[i], other = 1;
    for (size_t r = 0, from = 0; r < 6; r++) {
      double there = x[i / 8 * 8 + (t + r) % 8];
      s += from == 0 ? 100 : from == 1 ? there : 2 * there;
      from = (t + r) % 3;
    }
    bool null = (t + 5) % 3 == 0;
    double q = t == 1 ? -3 : own, again = t > 4 ? q : t > 2 ? other : -3;
    want.push_back(s + (null ? 1 : 2) + q + again + (t == 2 ? 10 : 20) + (t > 5 ? 1 : 2));
  }
  Kernel k = elementwise(R"(
    uint i = thread_position_in_grid.x, t = i % 8;
    threadgroup float first[8], second[8];
    first[t] = inp[i];
    second[t] = 2 * inp[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* p = nullptr;
    float s = 0;
    for (uint r = 0; r < 6; r++) {
      if (p) s += p[(t + r) % 8];
      else s += 100;
      p = (t + r) % 3 == 0 ? nullptr : (t + r) % 3 == 1 ? first : second;
    }
    float own = inp[i], other = 1;
    thread float* q = &own;
    if (t == 1) q = nullptr;
    thread float* r = nullptr;
    if (t == 2) r = &own;
    thread float* l = nullptr;
    int kind = 0;
    for (uint j = 5; j < t; j++) { kind = l ? 1 : 2; l = &own; }
    out[i] = s + (p == nullptr ? 1 : 2) + held(q) + held(t > 4 ? q : t > 2 ? &other : nullptr) +
             (r != nullptr ? 10 : 20) + (kind ? 1 : 2);
  )", F32, 64, x);
  k.header = "float held(thread float* q) { return q ? *q : -3; }";
  k.group[0] = 8;
  expect("pointers that may be null", run(k)[0], want, 1e-5, 1e-5);
}

/* Vectors of three numbers take the place of four, but packed ones, whatever they are seen as. */
void vectors_of_three() {
  Numbers x = numbers(64, 35, 3), want;
  for (size_t i = 0; i < 64; i++) {
    size_t g = i / 8 * 8, t = i % 8, u = (t + 3) % 8, c = i % 3;
    auto a = [&](size_t k, size_t part) { return x[g + k] + 10.0 * static_cast<double>(part); };
    want.push_back(a(u, 1) + 2 * a(u, c) + 3 * a(t, 2) + 5 * a(u, 2) + 7 * a(u, c) + 11 * a(u, 0) + 13 * a(t, c) +
                   17 * (x[g + 2] + 1) + 19 * (x[g + c] - 1) + 23 * a(u, 1));
  }
  Kernel k = elementwise(R"(
    uint i = thread_position_in_grid.x, t = i % 8, u = (t + 3) % 8, c = i % 3;
    threadgroup float3 wide[8];
    threadgroup packed_float3 narrow[8];
    threadgroup float numbers[32];
    float3 v = float3(inp[i], inp[i] + 10, inp[i] + 20);
    wide[t] = v;
    narrow[t] = v;
    threadgroup float3* seen = (threadgroup float3*)numbers;
    seen[t] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* w = (threadgroup float*)wide;
    threadgroup float* n = (threadgroup float*)narrow;
    threadgroup float* last = &wide[t].z;
    out[i] = w[4 * u + 1] + 2 * wide[u][c] + 3 * *last + 5 * n[3 * u + 2] + 7 * narrow[u][c] + 11 * numbers[4 * u] +
             13 * seen[t][c];
    packed_float3 own[3];
    for (uint j = 0; j < 3; j++) own[j] = packed_float3(inp[i - t + j]);
    thread float* numbers_of = (thread float*)own; thread float* third = &own[2].z;
    numbers_of[3 * c + 1] -= 1; *third += 1;
    out[i] += 17 * numbers_of[8] + 19 * own[c].y + 23 * *(&seen[u].y);
  )", F32, 64, x);
  k.group[0] = 8;
  expect("vectors of three", run(k)[0], want, 1e-5, 1e-4);
}

/* Packed vectors begin at any number of a variable, and a pointer to a number of one of several vectors. */
void views_of_variables() {
  Numbers x = numbers(64, 37, 3), want;
  for (size_t i = 0; i < 64; i++) {
    size_t t = i % 8;
    auto n = [](size_t number) { return static_cast<double>(number); };
    double own = n(3 * t + 5) + 2 * n(3 * t + 6) + 3 * x[i - t + (t + 3) % 8] + 5 + 7 * n(t + 5) + 11 * n(t % 3 * 4 + 5);
    want.push_back(own + (i % 2 ? 2 + 100 * 3 + 1000 * 32 + 10000 * 43 : 32 + 100 * 43 + 1000 * 2 + 10000 * 3));
  }
  Kernel k = elementwise(R"(
    uint i = thread_position_in_grid.x, t = i % 8;
    float own[40]; uchar bytes[40]; float4 wide[5];
    for (uint j = 0; j < 40; j++) { own[j] = j; bytes[j] = j; if (j < 20) wide[j / 4][j % 4] = j; }
    thread packed_float3* p = (thread packed_float3*)(own + 1) + t, *q = p + 1;
    thread float* y = &q->y;
    thread packed_uchar3* b = (thread packed_uchar3*)(bytes + t);
    thread packed_float3* n = (thread packed_float3*)(wide + t % 3);
    threadgroup float shared[26];
    threadgroup packed_float3* w = (threadgroup packed_float3*)(shared + 2);
    w[t] = packed_float3(0, inp[i], 0);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = *y + 2 * p[1].z + 3 * shared[3 + 3 * ((t + 3) % 8)] + 5 * (q - p) + 7 * b[1].z + 11 * n[1].z;
    float4 one[2] = {float4(1, 2, 3, 4), float4(1, 2, 3, 4)}, two[2] = {one[0], one[0]};
    thread float4* of = i % 2 ? two : one;
    of++;
    thread float* second = &of->y;
    *second += 30; second[1] += 40;
    out[i] += one[1].y + 100 * one[1].z + 1000 * two[1].y + 10000 * two[1].z;
  )", F32, 64, x);
  k.group[0] = 8;
  expect("views of variables", run(k)[0], want, 1e-5, 1e-4);
}

/* What never changes is a value, until somebody wants its address. */
void addresses_of_constants() {
  Numbers x = numbers(64, 39, 3), want;
  for (size_t i = 0; i < 64; i++) {
    double squares = 0, third = static_cast<double>(i % 3);
    for (int r = 0; r < 3; r++) squares += (x[i] + r) * (x[i] + r);
    want.push_back(squares + third + 1 + 3 * (third + 2) + 5 * (i % 2 ? 3 : 2) + 7 * (i % 2 ? 5 : 2));
  }
  Kernel k = elementwise(R"(
    uint i = thread_position_in_grid.x;
    float sum = 0;
    for (int r = 0; r < 3; r++) {
      const float v = inp[i] + r;
      const thread float* p = &v;
      sum += *p * v;
    }
    constant float* q = &table[i % 3];
    const float own[3] = {1, 2, 3};
    const thread float* o = own;
    if (i % 2) o = &own[1];
    constant Pair* pair = &pairs[i % 2];
    out[i] = sum + *q + 3 * second_of(&table[0], i % 3) + 5 * o[1] + 7 * pair->b;
  )", F32, 64, x);
  k.header = "constant float table[4] = {1, 2, 3, 4}; float second_of(constant float* p, uint i) { return p[i + 1]; }"
             "struct Pair { float a, b; }; constant Pair pairs[2] = {{1, 2}, {4, 5}};";
  expect("addresses of constants", run(k)[0], want, 1e-5, 1e-4);
}

/* By value, an array is a pointer to its first element, whatever the parameter's type is called. */
void arrays_as_arguments() {
  Numbers x = numbers(64, 31, 3), want;
  for (size_t i = 0; i < 64; i++) {
    double last = x[32 + i % 32];
    want.push_back(x[i] + (x[i] + 1) + 2 * (x[i] + 2) + 2 + last);
  }
  Kernel k = elementwise(R"(
    uint i = thread_position_in_grid.x, t = i % 32;
    threadgroup T rows[2][32];
    T own[3], grid[2][2];
    fill(rows[i / 32], t, inp[i]);
    fill(own, 0, inp[i]); move(own + 1, inp[i] + 1); move(&own[2], inp[i] + 2);
    fill(grid[1], 1, T(2)); T kept = first(own); replace(own, T(7));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const T steps[2] = {1, 2};
    out[i] = kept + own[1] * first(steps) + own[2] * steps[1] + grid[1][1] + last<32>(rows[1], t) + (own[0] - 7);
  )", F32, 64, x);
  k.header = R"(
    typedef thread float* Own;
    template <typename P, typename T> void fill(P to, uint i, T x) { to[i] = x; }
    template <typename P> void move(P to, float x) { *to = x; }
    template <typename P> float first(const P from) { return from[0]; }
    template <int N, typename P> float last(P from, uint i) { return from[i % N]; }
    void replace(Own to, float x) { to[0] = x; }
  )";
  k.group[0] = 64;
  expect("arrays as arguments", run(k)[0], want, 1e-5, 1e-5);
}

/* A product of 24 x 16 and 16 x 8 by simdgroup_matrix, with a part transposed, and what a thread holds. */
void simdgroup_matrices() {
  Numbers a = numbers(24 * 16, 28, 1), b = numbers(8 * 16, 29, 1), want(24 * 8), held;
  for (double& v : a) v = rounded(v, F16);
  for (double& v : b) v = rounded(v, F16);
  for (size_t i = 0; i < 24; i++)
    for (size_t j = 0; j < 8; j++)
      for (size_t k = 0; k < 16; k++) want[8 * i + j] += a[16 * i + k] * b[16 * j + k];
  for (uint32_t t = 0; t < 32; t++) {
    uint32_t row = (t >> 2 & 4) | (t >> 1 & 3), column = (t >> 1 & 4) | (t << 1 & 2);
    held.push_back(want[8 * row + column + 1] + 2);
  }
  Kernel k;
  k.source =
      "uint row = threadgroup_position_in_grid.y; threadgroup float kept[2][72];"
      "simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);"
      "for (uint k = 0; k < 16; k += 8) {"
      "  simdgroup_half8x8 x, y;"
      "  simdgroup_load(x, a + row * 128, 16, ulong2(k, 0)); simdgroup_load(y, b + k, 16, 0, true);"
      "  simdgroup_multiply_accumulate(sum, x, y, sum); }"
      "simdgroup_store(sum, kept[1], 9); threadgroup_barrier(mem_flags::mem_threadgroup);"
      "simdgroup_load(sum, &kept[1][0], 9); simdgroup_float8x8 twice(2); simdgroup_multiply(twice, sum, twice);"
      "simdgroup_store(twice, out + row * 64); sum.thread_elements() += float2(1, 2);"
      "if (row == 0) held[thread_index_in_simdgroup] = sum.thread_elements()[1];";
  k.in = {{"a", F16, {24, 16}, a}, {"b", F16, {8, 16}, b}};
  k.out = {{"out", F32, {24, 8}}, {"held", F32, {32}}};
  k.grid[0] = 32;
  k.grid[1] = 3;
  k.group[0] = 32;
  for (double& v : want) v *= 2;
  std::vector<Numbers> got = run(k);
  expect("products", got[0], want, 1e-5, 1e-5);
  expect("elements", got[1], held, 1e-5, 1e-5);
}

/* Where arcs have corners: zeros with signs, infinities, what is none. */
void corners_of_arcs() {
  const double inf = INFINITY, values[] = {0.0, -0.0, 1.0, -1.0, inf, -inf, NAN, 2e-38, -1e38};
  Numbers y, x, want, sines;
  for (double b : values)
    for (double a : values) {
      y.push_back(b);
      x.push_back(a);
      want.push_back(std::atan2(static_cast<float>(b), static_cast<float>(a)));
      sines.push_back(std::isinf(a) ? NAN : std::sin(static_cast<double>(static_cast<float>(a))));
    }
  Kernel k = elementwise("uint i = thread_position_in_grid.x; T v = inp[i]; out[i] = atan2(y[i], v);"
                         "if (fabs(v) < 1e30f || !isfinite(v)) sines[i] = sin(v);", F32, 81, x);
  k.in.push_back({"y", F32, {81}, y});
  k.out.push_back({"sines", F32, {81}});
  std::vector<Numbers> got = run(k);
  for (size_t i = 0; i < x.size(); i++) if (std::fabs(x[i]) == 1e38) sines[i] = got[1][i];
  expect("atan2", got[0], want, 1e-6, 1e-30);
  expect("sin", got[1], sines, 1e-6, 1e-30);
}

/* ---- errors ---- */

struct Wrong { const char* source; const char* says; };
const Wrong wrongs[] = {{"out[0] = foo;", "'foo' is not known here"},
                        {"out[0] = 1.0f", "expected ';'"},
                        {"int x = 1; x.y = 2;", "has no members"},
                        {"inp[0] = 1.0f;", "constant"},
                        {"goto end;", "outside the language"},
                        {"out[0] = f(1);", "no function"},
                        {"int a[2]; a[5] = 1; out[0] = \"text\";", "strings are outside"},
                        {"for (;;) { out[0] = 1; ", "expected"},
                        {"constexpr int n = inp[0];", "constant"},
                        {"#if 1\nout[0] = 1;", "#endif"},
                        {"out[0] = 08;", "no number"},
                        {"struct S { S s; }; S s;", "within itself"},
                        {"break;", "outside of a loop"},
                        {"out[0] = simd_sum();", "argument"},
                        {"using X = Y<3>; X x;", "Y"},
                        {"int x[-1];", "array"},
                        {"float x[1000000000];", "array"},
                        {"constexpr int n = loop(); out[0] = n;", "loop"},
                        {"float a; thread float* p = nullptr; out[0] = *p; p = &a;", "a null pointer is dereferenced"},
                        {"thread float* p = nullptr; for (int i = 0; i < 2; i++) out[0] = p[i];", "null pointer"}};

void errors() {
  for (const Wrong& w : wrongs) {
    Kernel k = elementwise(w.source, F32, 4, {1});
    std::string text;
    try {
      run(k);
    } catch (const std::runtime_error& e) {
      text = e.what();
    }
    if (text.empty()) throw std::runtime_error(std::string("compiles: ") + w.source);
    if (text.find(w.says) == std::string::npos) throw std::runtime_error(std::string(w.source) + ": " + text);
  }
}

/* How many results of a kernel have NoContraction: drivers may contract, so that no kernel's numbers can show it. */
size_t uncontracted(const std::string& pragma) {
  const std::string source = "[[kernel]] void k(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]])\n{\n" + pragma +
                             "\n float a = o[i]; o[i] = a * o[i + 1] + a; }";
  const metal::Program p = metal::compile(source, "k", metal::Options());
  if (p.words.empty()) throw std::runtime_error(p.error);
  size_t count = 0;
  for (size_t i = 5; i < p.words.size(); i += p.words[i] >> 16) count += p.words[i] == (3 << 16 | 71) && p.words[i + 2] == 42;
  return count;
}

void contraction() {
  for (const char* pragma : {"#pragma clang fp contract(off)", "#pragma METAL fp contract( off )", "#pragma STDC FP_CONTRACT OFF"})
    if (uncontracted(pragma) != 2) throw std::runtime_error(pragma);
  for (const char* pragma : {"", "#pragma clang fp contract(fast)", "#if 0\n#pragma clang fp contract(off)\n#endif"})
    if (uncontracted(pragma)) throw std::runtime_error(std::string("not contracted: ") + pragma);
}

const Test all[] = {{"exponential", exponential},
                    {"roundings", roundings},
                    {"small_integers", small_integers},
                    {"long_integers", long_integers},
                    {"simd_functions", simd_functions},
                    {"parted_sums", parted_sums},
                    {"softmax_rows", softmax_rows},
                    {"histogram", histogram},
                    {"shared_histogram", shared_histogram},
                    {"float_atomics", float_atomics},
                    {"unpacking", unpacking},
                    {"vectors", vectors},
                    {"templates", templates},
                    {"control_flow", control_flow},
                    {"early_returns", early_returns},
                    {"pointers", pointers},
                    {"pointers_to_variables", pointers_to_variables},
                    {"pointers_that_may_be_null", pointers_that_may_be_null},
                    {"vectors_of_three", vectors_of_three},
                    {"views_of_variables", views_of_variables},
                    {"addresses_of_constants", addresses_of_constants},
                    {"shapes", shapes},
                    {"grids", grids},
                    {"mandelbrot", mandelbrot},
                    {"matrix_product", matrix_product},
                    {"preprocessor", preprocessor},
                    {"lambdas", lambdas},
                    {"constants", constants},
                    {"casts", casts},
                    {"integer_functions", integer_functions},
                    {"float_functions", float_functions},
                    {"exact_functions", exact_functions},
                    {"arrays_as_arguments", arrays_as_arguments},
                    {"simdgroup_matrices", simdgroup_matrices},
                    {"corners_of_arcs", corners_of_arcs},
                    {"contraction", contraction},
                    {"errors", errors}};

}  // namespace

int main(int argc, char** argv) {
  for (const Test& t : all) {
    if (argc > 1 && strcmp(argv[1], t.name)) continue;
    tests++;
    try {
      t.body();
      printf("ok    %s\n", t.name);
    } catch (const std::exception& e) {
      failures++;
      printf("FAIL  %s: %s\n", t.name, e.what());
    }
  }
  printf("%d passed, %d failed\n", tests - failures, failures);
  finish();
  return failures != 0;
}
