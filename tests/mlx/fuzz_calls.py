"""Random calls of MLX's operations, of the table in fuzz_rows.py: on mx.gpu, which is mlxvk, and on mx.cpu, MLX's own.

The operands are views on the GPU (transposed, reversed, stepped, broadcast, overlapping, of lazily computed arrays) and
row-major on the CPU, which goes wrong with some views; halves are float32 there, for it adds up in the half type. The call
may be under mx.vmap, in a gradient, in mx.compile, on another stream, or come again with operands elsewhere in memory.
Integers, and what only moves numbers, must be equal; the operands must be what they were. With --chains a program is some
calls of which one may read what others gave, all of whole numbers.

    build/mlx/bin/python tests/mlx/fuzz_calls.py [--seconds 60] [--seed N] [--count N] [--rows conv,sort] [--chains] [--verbose]

What MLX's CPU leaves undefined or has wrong is not asked for. Ends with "N passed, N failed".
"""
import argparse
import faulthandler
import os
import random
import sys
import time
import warnings

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

if __name__ == "__main__":
    import mlxvk_mlx  # noqa: F401  (before mlx.core)

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

from fuzz_rows import *  # noqa: E402, F403
from support import FLOATS, HALVES, INTS, flatten, is_inexact, name_of, widened  # noqa: E402

UNIT = {mx.float32: 2.0 ** -22, mx.float16: 2.0 ** -10, mx.bfloat16: 2.0 ** -7, mx.complex64: 2.0 ** -21}


# ---- running a case --------------------------------------------------------------------------------------------------

def pattern(y):
    """Exact numbers in any float, for cotangents and tangents."""
    return ((mx.arange(y.size) * 5 % 7 - 3).reshape(y.shape) / 2).astype(y.dtype)


def of_floats(function, xs, constant):
    """Which operands and results have gradients: the function of these operands that gives these results."""
    which = [i for i, x in enumerate(xs) if x.dtype in COMPLEX_TOO and i not in constant]

    def inner(*some):
        all_of = list(xs)
        for i, x in zip(which, some):
            all_of[i] = x
        return [y for y in flatten(function(*all_of)) if y.dtype in COMPLEX_TOO]
    return inner, [xs[i] for i in which]


def backward(function, constant, checkpointed):
    def gradients(*xs):
        inner, some = of_floats(function, xs, constant)
        if not some or not inner(*some):
            raise Refused
        inner = mx.checkpoint(inner) if checkpointed else inner

        def loss(*some):
            ys = [y.real if y.dtype == mx.complex64 else y for y in inner(*some)]
            return sum((y * pattern(y)).astype(mx.float32).sum() for y in ys)
        return flatten(mx.vjp(loss, some, [mx.array(1.0)])[1])
    return gradients


def forward(function, constant):
    def tangents(*xs):
        inner, some = of_floats(function, xs, constant)
        if not some or not inner(*some):
            raise Refused
        return flatten(mx.jvp(inner, some, [pattern(x) for x in some])[1])
    return tangents


# ---- chains: operations on what others gave, evaluated later --------------------------------------------------------------

# Whole numbers are exact in these, too.
SUMS = ("matmul", "addmm", "einsum", "tensordot", "kron", "dots", "gather_mm", "conv", "conv_transpose", "block_masked_mm", "segmented_mm",
        "sum", "cumsum", "add", "subtract", "multiply", "max", "min", "negative", "abs", "square", "floor", "scatter add", "update slices",
        "cummax", "mixed dtypes", "expression", "diff")


class Held:
    def __init__(self, gpu, cpu):
        self.gpu, self.cpu = gpu, cpu


def is_whole(x):
    if not is_inexact(x.dtype):
        return True
    y = np.array(widened(x))
    return x.dtype == mx.float32 and bool(np.all(np.abs(y) < 1 << 12)) and bool(np.all(y == np.floor(y)))


class Chain:
    """Some calls, each of which may read what those before it gave."""

    def __init__(self, seed, names):
        self.r, self.names, self.text, self.held = random.Random(seed), [n for n in names if n in SUMS or ROWS[n].exact or
            any(t in INTS + (mx.bool_,) for t in ROWS[n].dtypes)], [], []

    def __str__(self):
        return "\n    ".join(self.text)

    def case(self):
        """A call whose results are exact."""
        while True:
            try:
                case = Case(self.r.getrandbits(30), self.names, alone=False)
            except (Refused, ValueError, AttributeError):
                continue
            if case.draw.dtype in INTS + (mx.bool_,) or \
               (case.draw.dtype == mx.float32 and (case.row.exact or case.row.name in SUMS)):
                return case

    def step(self):
        case = self.case()
        g = case.draw
        taken = []
        for i, operand in enumerate(g.operands):
            fits = [h for h in self.held if h.cpu.size and (h.cpu.dtype == operand.dtype or
                    (operand.dtype in INTS + (mx.float32,) and h.cpu.dtype in INTS + (mx.bool_,)))]
            if i not in g.fixed and fits and operand.base.size and self.r.random() < 0.8:
                held = self.r.choice(fits)
                operand.take(held)
                taken.append(i)
                if self.r.random() < 0.5:
                    self.held.remove(held)
        self.text.append(f"{case} reads {taken}")
        want, shaped = case.wanted()
        bases = [o.base for o in g.operands]
        for o in g.operands:
            o.base = None
        with mx.stream(mx.new_stream(mx.gpu) if case.stream else mx.gpu):
            run = lambda *bases: case.results([o.seen(b) for o, b in zip(g.operands, bases)])
            got = (mx.compile(run) if case.compiled else run)(*bases)
        del bases
        return case, got, want, shaped

    def failure(self):
        checked = []
        for _ in range(self.r.randint(4, 16)):
            try:
                case, got, want, shaped = self.step()
            except (Refused, *ERRORS):
                continue
            for i, (g, w, s) in enumerate(zip(got, want, shaped)):
                if g.dtype != s.dtype or g.shape != w.shape:
                    return f"{g.dtype} {g.shape}, expected {s.dtype} {w.shape}"
                w = w if w.dtype == s.dtype else w.astype(s.dtype, stream=mx.cpu)
                checked.append((case, len(self.text), i, g if self.r.random() < 0.3 else None, w))
                if is_whole(w):
                    self.held.append(Held(g, w))
                    if self.r.random() < 0.2:
                        self.r.choice((mx.eval, mx.async_eval))(g)
                else:
                    checked[-1] = (case, len(self.text), i, g, w)
            del got, g
            while len(self.held) > 5:
                self.held.pop(self.r.randrange(len(self.held)))
        for case, at, i, g, w in checked:
            problem = g is not None and difference(case, g, w, w.dtype)
            if problem:
                return f"call {at}, result {i}: {problem}"
        for h in self.held:
            if not np.array_equal(np.array(widened(h.gpu)), np.array(widened(h.cpu)), equal_nan=True):
                return f"held {h.cpu.dtype} {h.cpu.shape}: {h.gpu}, expected {h.cpu}"
        return None


AFTER = {
    "": lambda y: y, "reversed": lambda y: y[..., ::-1] if y.ndim else y, "turned": lambda y: mx.contiguous(y.T), "turned view": lambda y: y.T,
    "negated": lambda y: -y if y.dtype != mx.bool_ else ~y, "where": lambda y: mx.where(y == y, y, mx.zeros_like(y)),
    "twice": lambda y: [y, y[:1] if y.ndim else y],
    "joined": lambda y: mx.concatenate([y.reshape(-1), y.reshape(-1)[:1]]),
}


class Case:
    def __init__(self, seed, names, alone=True):
        r = random.Random(seed)
        self.row = ROWS[r.choice(names)]
        self.draw = g = Draw(seed, self.row, alone)
        self.function = self.row.make(g)
        how = r.random() if alone else 1
        self.how = []
        if self.row.grad and not self.row.exact and how < 0.3:
            self.function = forward(self.function, g.constant) if how < 0.07 else backward(self.function, g.constant, how < 0.12)
            self.how.append("jvp" if how < 0.07 else "vjp")
        if g.mapped:
            if all(axis is None for axis in g.axes):
                raise Refused
            out = r.choice((0, 0, -1))
            self.function = mx.vmap(self.function, in_axes=tuple(g.axes) if len(g.axes) > 1 else g.axes[0], out_axes=out)
            self.how.append(f"vmap {g.axes} {out}")
        after = r.choice([""] * 5 + list(AFTER))
        self.after = AFTER[after]
        self.compiled = self.row.compiled and r.random() < 0.2
        self.stream = self.row.stream and r.random() < 0.1
        self.places = [p for p in r.sample((0, 1, 2, 3, 4, 6, 8, 16, 17), 4) for _ in range(r.choice((1, 1, 3)))] if r.random() < 0.3 else []
        self.places *= alone
        self.how += [after] * bool(after) + ["compiled"] * self.compiled + ["another stream"] * self.stream

    def __str__(self):
        return f"{self.row.name}({', '.join(map(str, self.draw.operands))}; {', '.join(self.draw.said)}) {' '.join(self.how)}"

    def results(self, xs):
        return [z for y in flatten(self.function(*xs)) for z in flatten(self.after(y))]

    def wanted(self, double=False):
        """On the CPU, and what dtype each result has. double: as float64, for float32's long sums are not exact there."""
        xs = [o.content for o in self.draw.operands]
        with mx.stream(mx.cpu), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shaped = self.results([mx.array(x) for x in xs])
            wide = [x.astype(mx.float64) if double and x.dtype == mx.float32 else widened(x) for x in xs]
            results = self.results(xs if self.row.own and not double else wide)
            mx.eval(results)
        return results, shaped

    def run(self, *bases):
        return self.results([o.seen(b) for o, b in zip(self.draw.operands, bases)])

    def again(self):
        """Results of the same call some more times, whose operands begin where they did, or elsewhere: plans are used again."""
        results = []
        with mx.stream(mx.gpu):
            for at in self.places:
                bases = [elsewhere(o.base, at) for o in self.draw.operands]
                results.append(self.run(*bases))
                mx.eval(results[-1])
        return results

    def got(self):
        run = mx.compile(self.run) if self.compiled else self.run
        bases = [o.base for o in self.draw.operands]
        with mx.stream(mx.new_stream(mx.gpu) if self.stream else mx.gpu):
            results = run(*bases)
            mx.eval(results)
            if self.compiled:
                results += run(*bases)
                mx.eval(results)
        return results


def elsewhere(x, at):
    """The same elements, some of others behind the begin of their memory."""
    if not x.size:
        return x
    whole = mx.concatenate([x.reshape(-1)[:1]] * at + [x.reshape(-1)])
    mx.eval(whole)
    return whole[at:].reshape(x.shape)


def elements(x):
    return np.atleast_1d(np.array(widened(x)))


def difference(case, got, want, dtype):
    if got.dtype != dtype or got.shape != want.shape:
        return f"{got.dtype} {got.shape}, expected {dtype} {want.shape}"
    want = want if want.dtype == dtype else want.astype(dtype, stream=mx.cpu)
    a, b = elements(got), elements(want)
    if case.row.exact or not is_inexact(dtype):
        same = (a == b) | ((a != a) & (b != b))
        if case.row.exact and dtype in FLOATS:
            same &= (np.signbit(a) == np.signbit(b)) | (a != a)
        allowed = None
    else:
        unit, half = UNIT[dtype], case.draw.dtype in HALVES
        unit = max(unit, UNIT[case.draw.dtype] if half else 0)
        if dtype == mx.float16 and a.size and max(o.content.size for o in case.draw.operands) > 1 << 13:
            b = np.where(np.isfinite(a), b, a)                # sums in the half type overflow on MLX's CPU, too
        finite = np.abs(b[np.isfinite(b)])
        most = float(finite.max()) if finite.size else 0.0
        factor = case.row.tolerance * (4 if case.how else 1)
        summed = 0.5 * max(o.content.size for o in case.draw.operands) ** 0.5 if "vjp" in case.how else 0.01
        with np.errstate(all="ignore"):
            allowed = unit * factor * (np.abs(b) + (1 if half else 4) * most + (summed if case.how else 0)) + 1e-6
            same = (np.abs(a - b) <= allowed) | (a == b) | ((a != a) & (b != b))
    if same.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{int((~same).sum())} of {same.size} differ, first {list(at)}: got {a[at]}, expected {b[at]} ({name_of(dtype)} {got.shape})"


ERRORS = (ValueError, RuntimeError, TypeError, IndexError, AttributeError)           # the last: of what an older MLX has not got


def first_difference(case, got, double):
    try:
        want, shaped = case.wanted(double)
    except ERRORS as error:
        raise Refused(f"{type(error).__name__}: {error}")
    if len(got) % max(len(want), 1) or (want and not got):
        return f"{len(got)} results, expected {len(want)}"
    for i, g in enumerate(got):
        problem = difference(case, g, want[i % len(want)], shaped[i % len(want)].dtype)
        if problem:
            return f"result {i}: {problem}"
    return None


def failure(case):                                            # of one call
    """What is wrong, or None; Refused where MLX's CPU refuses it."""
    before = [bytes(np.array(widened(o.base)).data) for o in case.draw.operands]
    try:
        got, error = case.got(), None
    except ERRORS as raised:
        got, error = [], raised
    problem = first_difference(case, got, False)
    if error:
        return f"{type(error).__name__}: {error}"
    for at, results in zip(case.places, case.again() if not problem else ()):
        for i, (x, y) in enumerate(zip(results, got)):
            again = difference(case, x, y, y.dtype)
            if again:
                return f"again, {at} behind ({case.places}), result {i}: {again}"
    if problem and case.draw.dtype == mx.float32 and not case.row.exact:
        try:
            problem = first_difference(case, got, True)
        except Refused:
            pass
    for i, (o, bits) in enumerate(zip(case.draw.operands, before)):
        if bytes(np.array(widened(o.base)).data) != bits:
            return f"operand {i} was written to"
    return problem


def drawn(seed, kind=Case, names=tuple(ROWS)):
    """A case or a chain; None where what was drawn does not fit together."""
    try:
        return kind(seed, names)
    except (Refused, ValueError, AttributeError):
        return None


def one(seed, names, options):
    """Whether case `seed` agrees; None where there is none."""
    case = drawn(seed, Chain if options.chains else Case, names)
    if not case:
        return None
    last = os.path.join(sys.prefix, f"fuzz-calls-{os.getpid()}.txt") if options.last is None else options.last
    with open(last, "w") as file:                             # what remains where the process dies
        file.write(f"--seed {seed} --count 1: {case}\n")
    if options.verbose:
        print(seed, case, flush=True)
    try:
        problem = case.failure() if options.chains else failure(case)
    except Refused as why:
        if options.verbose:
            print("    refused:", why)
        return None
    if problem:
        print(f"FAIL --seed {seed}: {case}\n    {problem}", flush=True)
    return not problem


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--rows", default="", help="only rows whose names have one of these in them")
    parser.add_argument("--chains", action="store_true", help="several calls, each of which may read what those before it gave")
    parser.add_argument("--last", help="the file for the case that is running")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    names = [name for name in ROWS if any(part in name for part in options.rows.split(","))]
    start, seed, passed, failed, refused = time.monotonic(), options.seed, 0, 0, 0
    while seed - options.seed < options.count if options.count else time.monotonic() - start < options.seconds:
        good = one(seed, names, options)
        passed, failed, refused, seed = passed + (good is True), failed + (good is False), refused + (good is None), seed + 1
    print(f"{passed} passed, {failed} failed ({refused} that MLX refuses)", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
