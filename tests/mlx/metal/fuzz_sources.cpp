/* Damaged sources: whatever comes in, the compiler ends soon, with words or an error.    SPDX-License-Identifier: MIT
 *
 *     fuzz_sources SECONDS [SEED] [FOLDER for the modules that came out]
 */
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "metal.h"

namespace {

/* A body and its header; they have two arrays, x and out, and a type T. */
struct Seed { const char *header, *body; };
const Seed seeds[] = {
    {"",
     "uint i = thread_position_in_grid.x; T v = x[i]; out[i] = metal::exp(v) + fast::log(v) * select(1.0f, 2.0f, v > "
     "T(0));"},
    {"template <typename U, int N> struct Box { static constexpr int size = N; U items[N]; thread U& operator[](int i) "
     "{ return items[i]; }\n"
     "  U sum() const { U s = 0; for (int i = 0; i < N; ++i) s += items[i]; return s; } };\n"
     "template <typename U> struct Box<U, 1> { U item; U sum() const { return item; } };",
     "Box<T, 4> b; for (int i = 0; i < 4; i++) b[i] = x[i]; Box<T, 1> c; c.item = b.sum(); out[0] = c.sum() + Box<T, "
     "4>::size;"},
    {"#define F(a, b) ((a) * (b) + a##b)\n#if defined(F) && __METAL_VERSION__ > 100\nconstant int ab = "
     "3;\n#else\n#error no\n#endif",
     "const int a = 1, b = 2; out[0] = F(a, b); switch (int(x[0])) { case 1: out[1] = 1; break; default: out[2] = 2; "
     "}"},
    {"constexpr int fact(int n) { return n < 2 ? 1 : n * fact(n - 1); }\nenum class Kind : int { one = 1, two };",
     "threadgroup float s[fact(4)]; uint t = thread_index_in_threadgroup; s[t % 24] = x[t]; "
     "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
     "float r = simd_sum(s[0]); if (r > 1) { r = simd_max(r); } while (r < 10) { r += simd_shuffle_xor(r, 1); if (r != "
     "r) break; } out[t] = r;"},
    {"",
     "const device uchar* p = (const device uchar*)x; auto q = p + 3; uint3 g = threads_per_grid; half4 h = "
     "half4(q[0], 1, 2, 3);\n"
     "h.xy = h.zw * 2.0h; device float* o = (device float*)out; o[g.x] = h.x + as_type<float>(0x3f800000u) + "
     "dot(float2(h.xy), float2(1, 2));"},
    {"struct P { float a; int b[3]; P(float v) : a(v) { b[0] = 1; } };\nP operator+(P l, P r) { return P(l.a + r.a); }",
     "P p = P(1.0f) + P(x[0]); auto f = [&](int i) { return p.a * i; }; do { p.a -= 1; } while (p.a > 0); long n = "
     "x_shape[0];\n"
     "out[0] = f(3) + n + elem_to_loc(uint(n), x_shape, x_strides, x_ndim) + (n > 3 ? p.b[0] : -1) + sizeof(P);"},
    {"#include <metal_simdgroup_matrix>\nusing M = simdgroup_matrix<float, 8, 8>;",
     "M a, b(2); simdgroup_load(a, (const device float*)x, 8, ulong2(0, 1), true);\n"
     "simdgroup_multiply_accumulate(b, a, a, b);\n"
     "a.thread_elements()[0] += 1; simdgroup_store(a * b, (device float*)out); out[64] = T(sin(float(x[0])) + "
     "atan2(float(x[1]), 2.0f) + uint(simd_vote::vote_t(simd_ballot(x[2] > T(0)))));"},
};
const char* const words[] = {"(",
                             ")",
                             "{",
                             "}",
                             "[",
                             "]",
                             "<",
                             ">",
                             ";",
                             ",",
                             "+",
                             "-",
                             "*",
                             "/",
                             "%",
                             "&",
                             "|",
                             "=",
                             "==",
                             "::",
                             ".",
                             "->",
                             "template",
                             "typename",
                             "struct",
                             "int",
                             "float",
                             "half",
                             "uint64_t",
                             "const",
                             "constexpr",
                             "device",
                             "threadgroup",
                             "thread",
                             "auto",
                             "for (;;)",
                             "while (1)",
                             "if (",
                             "else",
                             "return",
                             "break",
                             "continue",
                             "0",
                             "1",
                             "-1",
                             "4294967295",
                             "9223372036854775807",
                             "1e38f",
                             "x",
                             "out",
                             "T",
                             "simd_sum(",
                             "atomic_fetch_add_explicit(",
                             "sizeof(",
                             "static_cast<int>(",
                             "operator",
                             "[[",
                             "]]",
                             "#define A A A\n",
                             "\n#if 1\n",
                             "\n#endif\n",
                             "vec<T, 4>",
                             "float4",
                             "\"",
                             "/*",
                             "using",
                             "enum",
                             "this",
                             "[&](int a) { return a; }",
                             "\\\n",
                             "##",
                             "...",
                             "x_shape",
                             "x_strides",
                             "threadgroup_barrier(mem_flags::mem_none);",
                             "int a[65536];",
                             "switch (i) {",
                             "case 3:",
                             "default:"};

using Random = std::mt19937;
size_t below(Random& r, size_t n) { return n ? r() % n : 0; }

void damage(std::string& s, Random& r) {
  size_t at = below(r, s.size() + 1), n = 1 + below(r, below(r, 8) ? 6 : 60);
  switch (below(r, 7)) {
    case 0: s.erase(at, n); break;
    case 1: s.insert(at, words[below(r, sizeof words / sizeof *words)]); break;
    case 2: s.insert(at, s.substr(below(r, s.size() + 1), n)); break;
    case 3: if (at < s.size()) s[at] = static_cast<char>(r()); break;
    case 4: {
      size_t from = below(r, s.size() + 1);
      std::string piece = s.substr(from, n);
      s.erase(from, n);
      s.insert(below(r, s.size() + 1), piece);
      break;
    }
    case 5: s.insert(at, std::string(" ") + words[below(r, sizeof words / sizeof *words)] + " "); break;
    default: {
      const char* w = words[below(r, sizeof words / sizeof *words)];
      for (size_t k = 1 + below(r, below(r, 20) ? 3 : 5000); k; k--) s.insert(at, w);
      break;
    }
  }
}

void keep(const char* folder, uint64_t number, const metal::Program& p, const std::string& text) {
  std::string name = std::string(folder) + "/" + std::to_string(number);
  if (FILE* f = fopen((name + ".spv").c_str(), "wb")) {
    fwrite(p.words.data(), 4, p.words.size(), f);
    fclose(f);
  }
  if (FILE* f = fopen((name + ".metal").c_str(), "wb")) {
    fwrite(text.data(), 1, text.size(), f);
    fclose(f);
  }
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 10, slowest = 0;
  uint32_t seed = argc > 2 ? static_cast<uint32_t>(atoll(argv[2])) : 1;
  Random r(seed);
  auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  uint64_t runs = 0, good = 0;
  for (double begin = now(); now() - begin < seconds; runs++) {
    const Seed& s = seeds[below(r, sizeof seeds / sizeof *seeds)];
    metal::Description d;
    d.name = "fuzzed";
    d.header = s.header;
    d.source = s.body;
    for (size_t n = below(r, 6); n; n--) damage(below(r, 3) ? d.source : d.header, r);
    d.inputs = {{"x", below(r, 2) ? "float" : "bfloat16_t", 2, 100}};
    d.outputs = {{"out", "float", 1, 100}};
    d.templates = {{"T", "typename", below(r, 2) ? "float" : "half"}};
    metal::Options o;
    o.subgroup = below(r, 2) ? 8 : 32;
    o.threads[0] = 64;
    for (bool& w : o.whole) w = below(r, 2);
    o.int64 = below(r, 4) != 0;
    std::string text = metal::write_kernel(d, o.bytes);
    if (FILE* f = argc > 4 ? fopen(argv[4], "wb") : nullptr) {         // what it died of
      fwrite(text.data(), 1, text.size(), f);
      fclose(f);
    }
    double start = now();
    metal::Program p = metal::compile(text, d.name, o);
    double took = now() - start;
    slowest = took > slowest ? took : slowest;
    if (took > 20) {
      printf("%.1f s for this (seed %u):\n%s\n", took, seed, text.c_str());
      return 1;
    }
    if (!p.words.empty()) {
      good++;
      if (argc > 3 && *argv[3]) keep(argv[3], runs, p, text);
    }
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  printf("%llu sources, %llu of them good, the slowest %.2f s, %ld MB at most\n", static_cast<unsigned long long>(runs),
         static_cast<unsigned long long>(good), slowest, usage.ru_maxrss / 1024);
  return 0;
}
