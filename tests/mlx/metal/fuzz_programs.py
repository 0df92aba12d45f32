"""Random functions of integers and floats, by this folder's compiler and by the host's C++ compiler: the same results.

    fuzz_programs.py --runner build/metal/fuzz_run [--seconds 600] [--seed 1] [--cxx g++]
"""
import argparse
import array
import os
import random
import subprocess
import sys
import tempfile
import time

FUNCTIONS, THREADS = 25, 16
TYPES = ["int", "uint", "char", "uchar", "short", "ushort", "long", "ulong"]
UINT32, INT32 = 3, 7                           # mlxvk's dtypes
HOST = """#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
using namespace std;
#define thread
typedef unsigned uint; typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned long ulong;
struct half {
  float v;
  half(float f) {
    const int e = f == 0 || !isfinite(f) ? 0 : max(ilogb(f), -14);
    v = f == 0 || !isfinite(f) ? f : (float)ldexp(nearbyint(ldexp((double)f, 10 - e)), e - 10);
    if (fabs(v) > 65504) v = copysign(INFINITY, v);
  }
  operator float() const { return v; }
};
struct bfloat {
  float v;
  bfloat(float f) {
    uint u;
    memcpy(&u, &f, 4);
    u = f == f ? (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u : u;
    memcpy(&v, &u, 4);
  }
  operator float() const { return v; }
};
/* The library's functions of integers, by wider ones. */
typedef __int128 wide;
#define UNSIGNED(x) wide(make_unsigned_t<T>(x))
#define WIDTH (8 * (int)sizeof(T))
#define OF_ONE(name, value) template <typename T> T m_##name(T x) { wide r = 0; value; return T(r); }
#define OF_TWO(name, value) template <typename T> T m_##name(T x, T y) { return T(value); }
template <typename T> T sat(wide x) {
  wide low = numeric_limits<T>::min(), high = numeric_limits<T>::max();
  return T(x < low ? low : x > high ? high : x);
}
OF_ONE(popcount, for (int i = 0; i < WIDTH; i++) r += UNSIGNED(x) >> i & 1)
OF_ONE(clz, for (int i = WIDTH; i-- && !(UNSIGNED(x) >> i & 1);) r++)
OF_ONE(ctz, for (int i = 0; i < WIDTH && !(UNSIGNED(x) >> i & 1); i++) r++)
OF_ONE(reverse_bits, for (int i = 0; i < WIDTH; i++) r |= (UNSIGNED(x) >> i & 1) << (WIDTH - 1 - i))
OF_ONE(abs, r = x < T(0) ? -wide(x) : wide(x))
OF_TWO(mulhi, wide(x) * wide(y) >> WIDTH)
OF_TWO(min, x < y ? x : y)
OF_TWO(max, x > y ? x : y)
OF_TWO(hadd, wide(x) + y >> 1)
OF_TWO(rhadd, wide(x) + y + 1 >> 1)
OF_TWO(addsat, sat<T>(wide(x) + y))
OF_TWO(subsat, sat<T>(wide(x) - y))
OF_TWO(rotate, UNSIGNED(x) << (UNSIGNED(y) & WIDTH - 1) | UNSIGNED(x) >> (WIDTH - (UNSIGNED(y) & WIDTH - 1)))
template <typename T> make_unsigned_t<T> m_absdiff(T x, T y) { return x < y ? wide(y) - x : wide(x) - y; }
template <typename T> T m_madhi(T x, T y, T z) { return T((wide(x) * y >> WIDTH) + z); }
template <typename T> T m_madsat(T x, T y, T z) {
  if (T(-1) < T(0)) return sat<T>(wide(x) * y + z);
  unsigned __int128 r = (unsigned __int128)x * y + z;
  return r > numeric_limits<T>::max() ? numeric_limits<T>::max() : T(r);
}
template <typename T> T m_clamp(T x, T y, T z) { return m_min(m_max(x, y), z); }
template <typename T> T m_extract_bits(T x, uint at, uint n) {
  wide r = UNSIGNED(x) >> at & (wide(1) << n) - 1;
  return T(T(-1) < T(0) && n && r >> (n - 1) & 1 ? r - (wide(1) << n) : r);
}
template <typename T> T m_insert_bits(T x, T y, uint at, uint n) {
  wide mask = (wide(1) << n) - 1 << at;
  return T((UNSIGNED(x) & ~mask) | (UNSIGNED(y) << at & mask));
}
"""
ONE = ["popcount", "clz", "ctz", "reverse_bits", "abs"]
TWO = ["mulhi", "min", "max", "hadd", "rhadd", "addsat", "subsat", "rotate", "absdiff"]
THREE = ["madhi", "madsat", "clamp"]
DEVICE = "".join(f"#define m_{name} {name}\n" for name in ONE + TWO + THREE + ["extract_bits", "insert_bits"])
POINTED = """struct Two { int first; int second[4]; };
inline int number_at(const thread int* p, int k) { return p ? p[k] : -7; }
inline int first_of(const thread Two* w) { if (w == nullptr) return 11; return w->first + w->second[2]; }
inline thread int* pick(thread int* a, thread int* b, bool c) { return c ? a : b; }
inline thread int* none_if(thread int* a, bool c) { if (c) return nullptr; return a; }
inline void put(thread int* p, int v) { if (p) *p += v; }
inline void move_on(thread int*& p, bool c) { if (p && c) p++; }
"""
# Floats stay where what is done with them has one result: neither large nor tiny, and no numbers that are none.
GUARD = "inline float G(float x) { float t = fabs(x); return t < 1e6f && t > 1e-6f ? x : 0.0f; }\n"


class Program:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.pointed = False

    def literal(self):
        r = self.r
        return r.choice([str(r.randint(-100, 100)), str(r.randint(0, 2**31 - 1)), f"{r.randint(0, 2**32 - 1)}u",
                         f"{r.randint(-2**40, 2**40)}l"])

    def expression(self, depth, names):
        r = self.r
        if depth == 0 or r.random() < 0.15:
            return r.choice(names) if r.random() < 0.7 else self.literal()
        a, b, c, d = (self.expression(depth - 1, names) for _ in range(4))
        forms = [(9, f"({a} {r.choice('+-*&|^')} {b})"),
                 (2, f"({a} {r.choice('/%')} {r.choice([3, 7, 10, 255, 1000, -5])})"),
                 (2, f"({a} {r.choice(['<<', '>>'])} {r.randint(0, 30)})"),
                 (2, f"({a} {r.choice(['<', '>', '<=', '>=', '==', '!='])} {b} ? {c} : {d})"),
                 (2, f"(({r.choice(TYPES)}){a})"), (1, f"({r.choice('-~!')}({a}))"),
                 (1, f"({a} {r.choice(['&&', '||'])} {b})"), (1, f"((int){self.real(depth - 1, names)})"),
                 (1, f"({self.real(depth - 1, names)} {r.choice(['<', '>', '=='])} {self.real(depth - 1, names)})"),
                 (2, self.library(r.choice(TYPES), a, b, c))]
        return r.choices([f for _, f in forms], [w for w, _ in forms])[0]

    def library(self, t, a, b, c):
        """A function of integers, all of one type."""
        r, of = self.r, lambda *list: ", ".join(f"({t})({x})" for x in list)
        kind = r.random()
        if kind < 0.4:
            return f"m_{r.choice(ONE)}({of(a)})"
        if kind < 0.8:
            return f"m_{r.choice(TWO)}({of(a, b)})"
        if kind < 0.9:
            low, high = f"m_min({of(b, c)})", f"m_max({of(b, c)})"
            name = r.choice(THREE)
            return f"m_{name}({of(a, low, high)})" if name == "clamp" else f"m_{name}({of(a, b, c)})"
        bits = {"char": 8, "short": 16, "int": 32, "long": 64}[t.lstrip("u") if t != "uint" else "int"]
        at = r.randint(0, bits - 1)
        place = f"{at}u, {r.randint(0, bits - at)}u"
        return f"m_{'extract_bits' if kind < 0.95 else 'insert_bits'}({of(a) if kind < 0.95 else of(a, b)}, {place})"

    def pointer(self, kind, names):
        """What pointers of three kinds may point to: of q four numbers and more follow, of p one, of w a structure."""
        r, e, c = self.r, self.expression(1, names), self.expression(1, names)
        q = r.choice(["q0", "q1", "q2"])
        if kind == "w":
            return r.choice(["&T", "&U", "w0", "w1", "nullptr", f"({c}) ? &T : &U", f"({c}) ? w0 : w1",
                             f"({c}) ? nullptr : w1"])
        places = [f"A + (uint)({e}) % 4u", f"&B[(uint)({e}) % 4u]", "A", "B", "D", q, "nullptr", f"({c}) ? A : B",
                  "q1", f"({c}) ? {q} : q0", f"({c}) ? nullptr : {q}", f"({c}) ? D + 1 : nullptr", f"pick({q}, A, {c})",
                  f"pick({q}, q1, {c})", f"none_if({q}, {c})"]
        if kind == "p":
            places += ["&s", "&t", "p0", "&T.first", "&U.second[3]", f"&U.second[(uint)({e}) % 4u]",
                       f"({c}) ? &s : &t", f"({c}) ? p0 : &s", f"pick(&s, p1, {c})", f"none_if(&t, {c})",
                       f"pick(nullptr, &A[7], {c})"]
        return r.choice(places)

    def points(self, depth, names, in_loop):
        """A statement with pointers."""
        r, v = self.r, self.r.choice(names)
        kind, e, c, k = r.random(), self.expression(2, names), self.expression(1, names), r.randint(0, 3)
        p, q, w = r.choice(["p0", "p1"]), r.choice(["q0", "q1", "q2"]), r.choice(["w0", "w1"])
        if kind < 0.3:
            to = r.choice([p, q, q, w])
            return f"{to} = {self.pointer(to[0], names)};\n"
        if kind < 0.4:
            there = r.choice([q, q + " != nullptr", "nullptr != " + q])
            return f"if ({there}) {q}[{k}] {r.choice(['=', '+=', '^='])} {e};\n"
        if kind < 0.5:
            return r.choice([f"{v} += {q} ? {q}[{k}] : {e};\n", f"{v} ^= {p} == nullptr ? 5 : *{p};\n",
                             f"{v} += !{w} ? 3 : {w}->second[(uint)({e}) % 4u];\n",
                             f"{v} += ({p} && *{p} > 4) || !{q};\n"])
        if kind < 0.6:
            return r.choice([f"{v} += number_at({q}, {k});\n", f"put({p}, {e});\n", f"put({q}, {e});\n",
                             f"{v} -= first_of({w});\n", f"put(pick({q}, {p}, {c}), 3);\n",
                             f"{v} += number_at(({c}) ? {q} : nullptr, {k});\n", f"if ({w}) put(&{w}->first, {e});\n"])
        if kind < 0.66:
            one, other = self.pointer("p", names), self.pointer("p", names)
            return f"if ({p}) {{ *{p} -= {e}; {p} = {one}; }} else {p} = {other};\n"
        if kind < 0.72:
            return f"if ({w}) {{ {w}->first += {e}; {w}->second[{k}] ^= {v}; }}\n"
        if kind < 0.78:
            if r.random() < 0.5:
                return f"if ({q}) {{ {q} += {k}; {v} += *{q}; {q} -= {k}; }}\n"
            return (f"{{ thread int* z = {self.pointer('q', names)};\n"
                    f"for (int i = 0; i < 3; i++) move_on(z, i < ({c})); put(z, 1); }}\n")
        if kind < 0.86 and depth:
            n = f"n{r.randint(0, 10**6)}"
            return (f"for (int {n} = 0; {n} < {r.randint(2, 5)} && {r.choice([p, q, w, '1'])}; {n}++) {{\n"
                    f"{self.block(depth - 1, 3, names, True)}}}\n")
        if kind < 0.94:
            t, many = r.choice([("uchar", 16), ("char", 16), ("short", 8), ("ushort", 8), ("uint", 4)])
            i, z = f"(uint)({e}) % {many}u", f"z{r.randint(0, 10**6)}"
            change = f"{z}[{i}] {r.choice(['=', '+=', '^='])} ({t})({c}); " if r.random() < 0.5 else ""
            return (f"{{ thread {t}* {z} = (thread {t}*){q};\n"
                    f"if ({z}) {{ {change}{v} += {z}[{r.randint(0, many - 1)}]; }} }}\n")
        return f"if ({self.expression(1, names)}) {{\n{self.block(max(depth - 1, 0), 2, names, in_loop)}}}\n"

    def pointing(self, number):
        """A function that is mostly of pointers."""
        self.pointed, names = True, ["a", "b", "v0", "v1", "s"]
        body = ("float x0 = (float)(short)a / 16.0f, x1 = (float)(short)b * 0.25f, x2 = 1.5f;\n"
                "half h0 = half(x0);\nbfloat b0 = bfloat(x1);\nint v0 = a, v1 = (int)b, s = 3, t = a ^ 77;\n"
                "int arr[5] = {1, 2, 3, 4, 5}, A[8] = {1, 2, 3, 4, 5, 6, 7, 8};\n"
                "int B[8] = {-1, -2, a, 4, (int)b, 6, 7, -8}, D[12] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, -1, -2};\n"
                "Two T = {4, {5, 6, 7, a}}, U = {a, {-5, -6, -7, 9}};\n"
                "thread int *q0 = A, *q1 = B, *q2 = D, *p0 = &s, *p1 = &t;\nthread Two *w0 = &T, *w1 = &U;\n")
        body += self.block(3, 14, names, False)
        self.pointed = False
        arrays = (("A", 8), ("B", 8), ("D", 12), ("T.second", 4), ("U.second", 4))
        sums = " + ".join(f"{x}[{i}] * {i + 3}l" for x, n in arrays for i in range(n))
        end = (f"return {sums} + v0 + v1 * 7l + s * 5l + t * 11l + T.first + U.first * 13l + (q0 ? 1 : 2) + "
               f"(w1 ? 4 : 8);\n")
        return f"inline long f{number}(int a, uint b) {{\n{body}{end}}}\n"

    def real(self, depth, names):
        """A float; every rounding of a smaller one is said, since the host knows no arithmetic of them."""
        r = self.r
        if depth <= 0 or r.random() < 0.15:
            return r.choice(["x0", "x1", "x2", "G((float)h0)", "G((float)b0)", f"{r.uniform(-100, 100):.4f}f",
                             f"(float)(short){r.choice(names)}"])
        a, b, c, d = (self.real(depth - 1, names) for _ in range(4))
        small = r.choice(["half", "bfloat"])
        forms = [(6, f"G({a} {r.choice('+-*')} {b})"), (2, f"({a} {r.choice(['<', '>', '<=', '!='])} {b} ? {c} : {d})"),
                 (2, f"G((float){small}({a} {r.choice('+-*')} {b}))"), (1, f"(-({a}))"),
                 (1, f"{r.choice(['floor', 'ceil', 'trunc', 'rint', 'fabs'])}({a})"),
                 (1, f"{r.choice(['fmin', 'fmax'])}({a}, {b})"), (1, f"G((float)half(h0 {r.choice('+-*')} h0))"),
                 (1, f"G({a} * (float)(uchar){r.choice(names)})")]
        return r.choices([f for _, f in forms], [w for w, _ in forms])[0]

    def statement(self, depth, names, in_loop):
        r, v = self.r, self.r.choice(names)
        kind = r.random()
        if self.pointed and r.random() < 0.7:
            return self.points(depth, names, in_loop)
        if kind < 0.15:
            to, value = r.choice([("x0", "{}"), ("x1", "{}"), ("x2", "G(x0 * {})"), ("h0", "half({})"),
                                  ("b0", "bfloat({})")])
            return f"{to} = {value.format(self.real(3, names))};\n"
        if depth == 0 or kind < 0.4:
            return f"{v} {r.choice(['=', '+=', '-=', '*=', '^=', '|=', '&='])} {self.expression(3, names)};\n"
        if kind < 0.6:
            other = f" else {{\n{self.block(depth - 1, 2, names, in_loop)}}}" if r.random() < 0.5 else ""
            return f"if ({self.expression(2, names)}) {{\n{self.block(depth - 1, 2, names, in_loop)}}}{other}\n"
        if kind < 0.75:
            i = f"i{r.randint(0, 10**6)}"
            return f"for (int {i} = 0; {i} < {r.randint(1, 6)}; {i}++) {{\n{self.block(depth - 1, 2, names, True)}}}\n"
        if kind < 0.82 and in_loop:
            return f"if ({self.expression(2, names)}) {r.choice(['break', 'continue'])};\n"
        if kind < 0.9:
            return f"arr[(uint)({self.expression(1, names)}) % 5u] = {self.expression(2, names)};\n"
        if kind < 0.96:
            return (f"switch ((int)((uint)({self.expression(1, names)}) % 4u)) {{\n"
                    f"case 0: {v}++; case 1: {v} ^= 3; break;"
                    f" case 2: {v} -= 5; break; default: {v} = {self.expression(2, names)}; }}\n")
        return f"if ({self.expression(1, names)}) return (long)({self.expression(2, names)});\n"

    def block(self, depth, count, names, in_loop):
        return "".join(self.statement(depth, names, in_loop) for _ in range(count))

    def function(self, number):
        names = ["a", "b"]
        body = ("float x0 = (float)(short)a / 16.0f, x1 = (float)(short)b * 0.25f, x2 = 1.5f;\n"
                "half h0 = half(x0);\nbfloat b0 = bfloat(x1);\n")
        for j in range(5):
            body += f"{self.r.choice(TYPES)} v{j} = {self.expression(2, names)};\n"
            names.append(f"v{j}")
        names += ["arr[2]", "arr[4]"]
        body += "int arr[5] = {1, 2, 3, 4, 5};\n" + self.block(3, 6, names, False)
        end = (f"return (long)({self.expression(3, names)}) + arr[0] * 3 + arr[1] + arr[3] + (long)(G(x0) * 256.0f) + "
               f"(long)(G(x1 + x2) * 16.0f) + (long)(G((float)h0) * 64.0f) + (long)G((float)b0);\n")
        return f"inline long f{number}(int a, uint b) {{\n{body}{end}}}\n"

    def numbers(self, low, high):
        return [self.r.randint(*((low, high) if self.r.random() < 0.5 else (0, 10))) for _ in range(THREADS)]


def on_host(cxx, folder, functions, a, b):
    calls = ", ".join(f"f{f}(A[i], B[i])" for f in range(FUNCTIONS))
    main = (f"int main() {{ int A[] = {{{', '.join(map(str, a))}}}; uint B[] = {{{', '.join(f'{x}u' for x in b)}}};\n"
            f"for (int i = 0; i < {THREADS}; i++) {{ long r[] = {{{calls}}};\n"
            f"for (long x : r) printf(\"%ld\\n\", x); }} }}\n")
    with open(f"{folder}/host.cpp", "w") as f:
        f.write(HOST + functions + main)
    flags = ["-O0", "-w", "-fwrapv", "-fsigned-char", "-ffp-contract=off", "-fno-strict-aliasing"]
    subprocess.run([cxx, *flags, f"{folder}/host.cpp", "-o", f"{folder}/host"], check=True)
    said = subprocess.run([f"{folder}/host"], capture_output=True, text=True, check=True).stdout
    return [int(x) & (2**64 - 1) for x in said.split()]


def doubles(path):
    values = array.array("d")
    with open(path, "rb") as f:
        values.frombytes(f.read())
    return values


def on_device(runner, folder, functions, a, b):
    body = "".join(f"r = f{f}(a[i], b[i]); lo[i * {FUNCTIONS} + {f}] = (uint)r;\n"
                   f"hi[i * {FUNCTIONS} + {f}] = (uint)(r >> 32);\n" for f in range(FUNCTIONS))
    count = FUNCTIONS * THREADS
    files = {"header": DEVICE + functions, "source": "uint i = thread_position_in_grid.x; long r;\n" + body,
             "spec": f"exact\ngrid {THREADS} {THREADS}\nin a {INT32} {THREADS}\nin b {UINT32} {THREADS}\n"
                     f"out lo {UINT32} {count}\nout hi {UINT32} {count}\n"}
    for name, text in files.items():
        with open(f"{folder}/{name}", "w") as f:
            f.write(text)
    for name, values in (("a", a), ("b", b)):
        with open(f"{folder}/{name}.bin", "wb") as f:
            f.write(array.array("d", values).tobytes())
    # lavapipe without LLVM's optimisations: with them stores to arrays of a thread, at places that are computed, go wrong
    # behind a branch (of Mesa 22.3 and 26 with LLVM 15); other drivers do not look at this.
    done = subprocess.run([runner, folder], capture_output=True, text=True, env={**os.environ, "GALLIVM_PERF": "nopt"})
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return [int(h) << 32 | int(l) for h, l in zip(doubles(f"{folder}/hi.out"), doubles(f"{folder}/lo.out"))]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--runner", required=True)
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--cxx", default="g++")
    o = p.parse_args()
    begin, seed = time.time(), o.seed
    while time.time() - begin < o.seconds:
        program = Program(seed)
        functions = GUARD + POINTED + "".join((program.pointing if f % 3 == 2 else program.function)(f)
                                              for f in range(FUNCTIONS))
        a, b = program.numbers(-2**31, 2**31 - 1), program.numbers(0, 2**32 - 1)
        with tempfile.TemporaryDirectory() as folder:
            want = on_host(o.cxx, folder, functions, a, b)
            got = on_device(os.path.abspath(o.runner), folder, functions, a, b)
        wrong = sorted({i % FUNCTIONS for i in range(len(want)) if got[i] != want[i]})
        if wrong:
            print(functions)
            sys.exit(f"seed {seed}: {', '.join(f'f{f}' for f in wrong)} differ")
        seed += 1
    print(f"{(seed - o.seed) * FUNCTIONS} functions, the same on host and device")


main()
