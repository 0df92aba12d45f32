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
using namespace std;
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
"""
# Floats stay where what is done with them has one result: neither large nor tiny, and no numbers that are none.
GUARD = "inline float G(float x) { float t = fabs(x); return t < 1e6f && t > 1e-6f ? x : 0.0f; }\n"


class Program:
    def __init__(self, seed):
        self.r = random.Random(seed)

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
                 (1, f"({self.real(depth - 1, names)} {r.choice(['<', '>', '=='])} {self.real(depth - 1, names)})")]
        return r.choices([f for _, f in forms], [w for w, _ in forms])[0]

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
    flags = ["-O0", "-w", "-fwrapv", "-fsigned-char", "-ffp-contract=off"]
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
    files = {"header": functions, "source": "uint i = thread_position_in_grid.x; long r;\n" + body,
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
        functions = GUARD + "".join(program.function(f) for f in range(FUNCTIONS))
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
