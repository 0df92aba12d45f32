"""Random programs on the stock MLX wheel: lazily on mx.gpu, which is mlxvk, and statement by statement on mx.cpu,
MLX's own.

A program is lines of Python. The reference runs each on the CPU, evaluated at once, and in float32 where the operands
are halves, as MLX's CPU rounds each step of a sum in the half type; its result is then rounded to the dtype that the
line gives. The same lines run on the GPU, evaluated only where a line says so. What only moves numbers must be equal;
else the two may differ by some times what noise of a rounding's size does to the reference. A failure is cut to the
few lines that fail.

    build/mlx/bin/python tests/mlx/fuzz.py [--seconds 60] [--seed N] [--count N] [--keep-going] [--verbose]

What MLX's CPU leaves undefined is not asked for: order of equal values, of NaN, several values scattered to one
place, numbers outside a dtype, x.at[::-1]. Ends with "N passed, N failed".
"""
import argparse
import faulthandler
import os
import random
import re
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import mlxvk_mlx  # noqa: E402  (before mlx.core)
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

HALVES = (mx.float16, mx.bfloat16)
FLOATS = (mx.float32,) + HALVES
LARGEST = {mx.float32: 1000, mx.float16: 100, mx.bfloat16: 1000}
UNIT = {mx.float32: 2.0 ** -22, mx.float16: 2.0 ** -10, mx.bfloat16: 2.0 ** -7}
MOST, NOISY_RUNS, NOISE_FACTOR = 1 << 15, 8, 6
MOVE, ROUND, JUMP, OTHER = "move", "round", "jump", "other"


def numbers(x):
    """The elements, as numpy can hold them."""
    mx.eval(x)
    return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x)


def data(dtype, shape, kind="uniform", seed=0, below=1):
    """Every number is one of float16 and of bfloat16, too."""
    rng = np.random.default_rng(seed)
    if kind == "bits":
        x = rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32)
    elif kind == "index":
        x = rng.integers(0, below, shape)
    elif kind == "distinct":
        x = np.stack([rng.permutation(below)[:shape[-1]] for _ in range(int(np.prod(shape[:-1])))]).reshape(shape)
    elif dtype == mx.bool_:
        x = rng.integers(0, 2, shape)
    elif dtype in FLOATS:
        x = rng.integers(-128, 128, shape) / (1024 if kind == "small" else 64)
    else:
        x = rng.integers(-9, 10, shape)
    return mx.array(x.astype(np.uint32 if kind == "bits" else np.float32)).astype(dtype)


class Line:
    """`text` sets `name` (None: it says what happens to it), reading the names in it."""

    def __init__(self, text, name=None, kind=OTHER):
        self.text, self.name, self.kind = text, name, kind

    def reads(self):
        return [n for n in re.findall(r"\bx\d+\b", self.text.split("=", 1)[-1] if self.fresh() else self.text)]

    def fresh(self):
        return self.name is not None and self.text.startswith(self.name + " = ")


# ---- the reference ---------------------------------------------------------------------------------------------------

class Refused(Exception):
    pass


def widened(x, line=None):
    """What the reference computes with. A variance of float32 is off by 2e-5 on MLX's CPU where mlxvk's is right."""
    if line and x.dtype == mx.float32:
        return x.astype(mx.float64) if "mx.var(" in line.text else mx.array(x)
    return x.astype(mx.float32) if x.dtype in HALVES else x


def with_noise(x, rng):
    if x.dtype not in FLOATS:
        return x
    v = numbers(x).astype(np.float32)
    return mx.array(v * (1 + UNIT[x.dtype] * rng.uniform(-2, 2, v.shape).astype(np.float32))).astype(x.dtype)


class Reference:
    """What each name holds after each line, on the CPU."""

    def __init__(self, noise=None):
        self.value, self.exact, self.noise, self.lines = {}, {}, noise, []

    def scope(self, line, wide):
        scope = {"mx": mx, "data": data, "float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
        for name in set(line.reads()):
            if name not in self.value:
                raise Refused(name)
            x = self.value[name]
            if wide and self.noise is not None and line.kind == ROUND and self.exact[name]:
                x = with_noise(x, self.noise)
            scope[name] = widened(x, line) if wide and x.dtype in FLOATS else mx.array(x)       # a line may write in it
        return scope

    def step(self, line):
        """Runs a line, or raises Refused and leaves all as it was."""
        if line.name is None:
            if any(n not in self.value for n in line.reads()):
                raise Refused()
            for name in re.findall(r"x\d+", line.text) if line.text.startswith("del") else ():
                del self.value[name]
            return
        try:
            with mx.stream(mx.cpu):
                wide, plain = self.scope(line, True), self.scope(line, False)
                exec(line.text, wide)
                exec(line.text, plain)
                x = wide[line.name].astype(plain[line.name].dtype)
                mx.eval(x)
                x = mx.array(numbers(x)).astype(x.dtype)      # row-major: MLX's CPU goes wrong with some views
                mx.eval(x)
        except Exception as error:                            # whatever MLX or Python has against it
            raise Refused(str(error))
        self.keep(line, x)

    def keep(self, line, x):
        if not 0 < x.size <= MOST or x.ndim > 6:
            raise Refused("size")
        if x.dtype in FLOATS and not float(mx.max(mx.abs(widened(x)), stream=mx.cpu)) <= LARGEST[x.dtype]:
            raise Refused("too large")
        reads = [n for n in line.reads() if n in self.value]
        exact = all(self.exact[n] for n in reads)
        floating = x.dtype in FLOATS or any(self.value[n].dtype in FLOATS for n in reads)
        if line.kind == JUMP and not exact:
            raise Refused("a jump")
        if line.kind == MOVE and not exact and x.dtype not in FLOATS and floating:
            raise Refused("a jump")
        exact = exact and (not floating or line.kind != ROUND)
        if self.noise is not None and line.kind == ROUND and not exact:
            x = with_noise(x, self.noise)
        self.value[line.name], self.exact[line.name] = x, exact


def referred(lines, noise=None):
    """A reference of those lines that can be run, and these."""
    r, good = Reference(noise), []
    for line in lines:
        try:
            r.step(line)
            good.append(line)
        except Refused:
            pass
    return r, good


# ---- the GPU, and the comparison -------------------------------------------------------------------------------------

def spread(lines, name, want):
    """The most that noise changes it."""
    most = 0
    for run in range(NOISY_RUNS):
        r, _ = referred(lines, np.random.default_rng(run))
        if name in r.value and r.value[name].size == want.size:
            most = max(most, float(np.abs(numbers(r.value[name]).astype(np.float64) - want).max()))
    return most


def difference(lines, name, got, r):
    """What is wrong with it, or None."""
    want = r.value[name]
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{name}: got {got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
    a, b = (np.atleast_1d(numbers(x)).astype(np.float64) for x in (got, want))
    off = np.abs(a - b)
    off[np.isnan(off)] = np.inf
    allowed = 0
    if want.dtype in FLOATS and not r.exact[name]:
        unit = UNIT[want.dtype]
        allowed = 4 * unit * np.abs(b) + (16 if want.dtype == mx.float32 else 2) * unit * np.abs(b).max() + 1e-6
        if (off > allowed).any():
            allowed = allowed + NOISE_FACTOR * spread(lines, name, b)
    wrong = off > allowed
    if not wrong.any():
        return None
    at = np.unravel_index(int(np.argmax(off - allowed)), off.shape)
    place, count = [int(i) for i in at], f"{int(wrong.sum())} of {wrong.size}"
    return f"{name}{place}: got {a[at]:.6g}, expected {b[at]:.6g}; {count} differ"


def failure(lines):
    """How the lines fail on the GPU, or None."""
    scope = {"mx": mx, "data": data, "float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
    r = Reference()
    try:
        with mx.stream(mx.gpu):
            for i, line in enumerate(lines):
                try:
                    r.step(line)
                except Refused:
                    continue
                exec(line.text, scope)
                if line.text.startswith("mx.eval(x"):
                    name = line.text[8:-1]
                    problem = difference(lines[:i + 1], name, scope[name], r)
                    if problem:
                        return problem
            for name in list(r.value):
                problem = difference(lines, name, scope[name], r)
                if problem:
                    return problem
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return None


# ---- making programs -------------------------------------------------------------------------------------------------

class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.ref, self.lines, self.count = Reference(), [], 0
        self.dtype = self.r.choice((mx.float32, mx.float32, mx.float32, mx.bfloat16, mx.float16))

    def chance(self, percent):
        return self.r.random() * 100 < percent

    def add(self, text, kind=MOVE, name=None):
        """A line `xN = text` (or, with a name, the text itself, which changes that name); the name, or None."""
        new = name or f"x{self.count}"
        line = Line(text if name else f"{new} = {text}", new, kind)
        try:
            self.ref.step(line)
        except Refused:
            return None
        self.count += name is None
        self.lines.append(line)
        return new

    @staticmethod
    def given(name):
        if name is None:
            raise Refused
        return name

    def note(self, text):
        line = Line(text)
        try:
            self.ref.step(line)
            self.lines.append(line)
        except Refused:
            pass

    def drop(self, *names):
        for name in names:
            if name and name in self.ref.value and self.chance(80):
                self.note(f"del {name}")

    def of(self, name):
        if name not in self.ref.value:
            raise Refused(name)
        return self.ref.value[name]

    def fresh(self, dtype, shape, kind="uniform", below=1):
        extra = f", below={below}" if kind in ("index", "distinct") else ""
        return self.add(f"data({dtype_text(dtype)}, {tuple(shape)}, {kind!r}, {self.r.randrange(1000)}{extra})")

    def existing(self, fits):
        names = [n for n in self.ref.value if fits(self.ref.value[n])]
        return self.r.choice(names[-6:]) if names else None

    def any(self, floating=True):
        name = self.existing(lambda x: x.dtype in FLOATS or not floating) if self.chance(85) else None
        if name is None:
            whole = self.r.choice((mx.int32, mx.bool_, mx.int8, mx.uint8))
            dtype = self.dtype if floating or self.chance(60) else whole
            return self.given(self.fresh(dtype, self.shape()))
        return self.given(self.view(name)) if self.chance(30) else name

    def shape(self):
        return [self.r.choice((1, 2, 3, 4, 5, 8, 8, 16, 32)) for _ in range(self.r.choice((1, 2, 2, 2, 3, 3, 4)))][:4]

    def shaped(self, dtype, shape):
        """An array of that shape. Refused where there can be none."""
        shape, kind = tuple(shape), self.r.randrange(10)
        if kind < 5:
            found = self.existing(lambda x: x.dtype == dtype and x.shape == shape)
            if found:
                return self.same_shape(found) if self.chance(15) else found
        size = int(np.prod(shape))
        found = self.existing(lambda x: x.dtype == dtype and x.size >= size) if kind < 7 else None
        if found:
            at = self.r.randint(0, self.of(found).size - size)
            return self.given(self.add(f"{found}.flatten()[{at}:{at + size}].reshape({shape})"))
        return self.given(self.fresh(dtype, shape))

    # -- views

    def part(self, n, whole, forward):
        """A slice of an axis, and its length."""
        kind = self.r.randrange(100)
        if kind < whole:
            text = ":"
        elif kind < whole + 15 and not forward:
            text = "::-1"
        else:
            a, b = self.r.randrange(n), self.r.randint(1, n)
            step = self.r.choice((1, 1, 2, 3) if forward else (1, 1, 2, 3, -1, -2))
            a, b = min(a, b - 1), max(a + 1, b)
            text = f"{a}:{b}:{step}" if step > 0 else f"{b - 1}:{a - 1 if a else ''}:{step}"
        return text, len(range(n)[slice(*[int(t) if t else None for t in text.split(":")])])

    def region(self, shape, whole=50, forward=False):
        """forward: no negative steps, which the front end of x.at[...] takes for others."""
        parts = [self.part(n, whole, forward) for n in shape]
        return ", ".join(p[0] for p in parts) or "...", [p[1] for p in parts]

    def view(self, v):
        x, kind = self.of(v), self.r.randrange(9)
        axes = list(range(x.ndim))
        self.r.shuffle(axes)
        if kind < 3:
            text = f"{v}[{self.region(x.shape)[0]}]"
        elif kind < 5:
            if not x.ndim:
                return v                                          # another name of it would be written in with it
            text = f"{v}.transpose({axes})"
        elif kind == 5:
            text = f"{v}.reshape({self.r.choice(('-1', '2, -1', '-1, 4', '1, -1'))})"
        elif kind == 6:
            text = f"mx.broadcast_to({v}, {(self.r.randint(1, 3), *x.shape)})"
        elif kind == 7:
            n = self.r.randint(1, max(1, x.size // 2))
            text = f"mx.as_strided({v}, {(2, n)}, {(self.r.randint(0, x.size - n), 1)}, 0)"
        else:
            text = f"mx.expand_dims({v}, {self.r.choice((0, -1))})"
        return self.add(text) or v

    def same_shape(self, v):
        """Other elements of the same memory, in the same shape."""
        x, kind = self.of(v), self.r.randrange(4)
        if kind == 0 and x.ndim > 1 and x.shape[-1] == x.shape[-2]:
            text = f"{v}.swapaxes(-1, -2)"
        elif kind == 1 and x.ndim and x.shape[0] > 1:
            n, block = x.size // x.shape[0], (1, *x.shape[1:])
            at = self.r.randint(0, x.size - n)
            text = f"mx.broadcast_to({v}.flatten()[{at}:{at + n}].reshape({block}), {x.shape})"
        else:
            axis = self.r.randrange(max(1, x.ndim))
            text = f"{v}[{', '.join('::-1' if i == axis else ':' for i in range(x.ndim)) or '...'}]"
        return self.add(text) or v

    def maybe(self, v, percent):
        if v is None or not self.chance(percent):
            return v
        w = self.same_shape(v)
        if w != v:
            self.drop(v)
        return w

    # -- operations

    def elementwise(self):
        a = self.any()
        kind = self.r.randrange(10)
        if kind < 3:
            op = self.r.choice(("mx.sigmoid", "mx.tanh", "mx.abs", "mx.negative", "mx.square", "mx.cos", "mx.exp"))
            return self.add(f"{op}({a})", ROUND)
        b = self.shaped(self.of(a).dtype, self.of(a).shape if self.chance(80) else self.of(a).shape[-1:])
        if kind == 3:
            c = self.shaped(mx.bool_, self.of(a).shape)
            return self.add(f"mx.where({c}, {a}, {b})")
        if kind == 4:
            return self.add(f"{self.r.choice(('mx.less', 'mx.equal', 'mx.greater'))}({a}, {b})", JUMP)
        if kind == 5:
            f = self.r.choice(("mx.sigmoid(a) * a * b", "(a + b) * a - b", "mx.tanh(a * 2) + mx.abs(b)",
                               "mx.maximum(a, b) * mx.cos(a)"))
            return self.add(f"mx.compile(lambda a, b: {f})({a}, {b})", ROUND)
        op = self.r.choice(("mx.add", "mx.add", "mx.multiply", "mx.multiply", "mx.subtract", "mx.maximum"))
        return self.add(f"{op}({a}, {b})", ROUND)

    def reduction(self):
        a = self.any()
        n = self.of(a).ndim
        axis = self.r.randrange(n) if n and self.chance(80) else None
        keep = ", keepdims=True" if self.chance(50) else ""
        op = self.r.choice(("sum", "sum", "mean", "max", "min", "logsumexp", "all", "softmax", "var", "linalg.norm"))
        if op in ("var", "linalg.norm") and self.of(a).dtype != mx.float32:
            op = "sum"                                        # their squares are halves, too, and beyond float16
        if op == "softmax":
            return self.add(f"mx.softmax({a}, axis={axis or 0})", ROUND)
        if op == "all":
            return self.add(f"mx.all({a} > 0, axis={axis}{keep})", JUMP)
        return self.add(f"mx.{op}({a}, axis={axis}{keep})", ROUND)

    def ordered(self):
        a = self.any()
        if not self.of(a).ndim:
            return None
        axis = self.r.randrange(self.of(a).ndim)
        kind = self.r.randrange(5)
        if kind == 0:
            return self.add(f"mx.sort({a}, axis={axis})")
        if kind == 1:
            n = self.r.choice((8, 33, 64))
            d = self.fresh(mx.float32, (self.r.randint(1, 4), n), "distinct", n)
            return self.add(f"mx.{self.r.choice(('argsort', 'argmax', 'argmin'))}({d}, axis=-1)", JUMP)
        op = self.r.choice(("cumsum", "cumsum", "cummax", "cummin", "logcumsumexp", "cumprod"))
        flags = f", reverse={self.chance(50)}, inclusive={self.chance(70)}"
        return self.add(f"mx.{op}({a}, axis={axis}{flags})", ROUND)

    def gathered(self):
        a = self.any()
        x = self.of(a)
        if not x.ndim:
            return None
        axis, n = self.r.randrange(x.ndim), self.r.randint(1, 6)
        if self.chance(50):
            i = self.fresh(mx.int32, (n,) if self.chance(70) else (2, n), "index", x.shape[axis])
            return self.add(f"mx.take({a}, {i}, axis={axis})")
        shape = [n if k == axis else d for k, d in enumerate(x.shape)]
        i = self.fresh(mx.int32, shape, "index", x.shape[axis])
        return self.add(f"mx.take_along_axis({a}, {i}, axis={axis})")

    def scattered(self):
        """Places by an index: distinct where a value is put, any where it is added."""
        a = self.any()
        x = self.of(a)
        if not x.ndim:
            return None
        put = self.chance(40)
        n = self.r.randint(1, x.shape[0])
        i = self.fresh(mx.int32, (n,), "distinct" if put else "index", x.shape[0])
        b = self.shaped(x.dtype, (n, *x.shape[1:]))
        if put:
            return self.assign(a, f"{i}", b)
        op = self.r.choice(("add", "add", "maximum", "minimum", "multiply"))
        return self.add(f"{a}.at[{i}].{op}({b})", ROUND)

    def assign(self, a, index, b):
        return self.add(f"{a}[{index}] = {b}", MOVE, name=a)

    def updated(self):
        a = self.any(self.chance(85))
        put = self.chance(60)
        text, shape = self.region(self.of(a).shape, forward=not put)
        seen = self.view(a) if self.chance(40) else None
        b = self.shaped(self.of(a).dtype, shape if self.chance(85) else shape[-1:])
        if put:
            self.assign(a, text, b)
        else:
            op = self.r.choice(("add", "add", "multiply", "maximum", "subtract"))
            result = self.add(f"{a}.at[{text}].{op}({b})", ROUND)
            if result and self.chance(50):
                self.drop(a)
        if seen and self.chance(30):
            self.note(f"mx.eval({seen})")
        return a

    def joined(self):
        a = self.any(self.chance(85))
        x = self.of(a)
        if not x.ndim:
            return None
        axis = self.r.randrange(x.ndim)
        b = self.shaped(x.dtype, x.shape)
        kind = self.r.randrange(5)
        if kind == 0:
            return self.add(f"mx.pad({a}, {[(self.r.randint(0, 2), self.r.randint(0, 2)) for _ in x.shape]})")
        if kind == 1:
            return self.add(f"mx.roll({a}, {self.r.randint(-3, 5)}, axis={axis})")
        if kind == 2:
            return self.add(f"mx.contiguous({a})")
        return self.add(f"mx.{'concatenate' if kind == 3 else 'stack'}([{a}, {b}], axis={axis})")

    def product(self):
        a = self.any()
        x = self.of(a)
        if not x.ndim:
            return None
        k, n = x.shape[-1], self.r.choice((1, 3, 8, 16, 33, 64))
        b = self.shaped(x.dtype, (k, n)) if self.chance(50) else self.shaped(x.dtype, (n, k)) + ".T"
        if self.chance(30):
            return self.add(f"mx.addmm({self.shaped(x.dtype, (n,))}, {a}, {b})", ROUND)
        return self.add(f"{a} @ {b}", ROUND)

    def cast(self):
        a = self.any(False)
        return self.add(f"{a}.astype({dtype_text(self.r.choice(FLOATS))})")

    # -- what models do

    def weight(self, rows, columns):
        bits, group = self.r.choice((4, 4, 8, 2, 3, 6)), self.r.choice((32, 64))
        if columns % group:
            group = 32
        w = self.fresh(mx.uint32, (rows, columns * bits // 32), "bits")
        s = self.fresh(self.dtype, (rows, columns // group), "small")
        b = self.fresh(self.dtype, (rows, columns // group))
        return f"{w}, {s}, {b}, group_size={group}, bits={bits}"

    def rows(self, columns):
        n = self.r.choice((1, 1, 2, 5, 9, 33))
        return self.shaped(self.dtype, (n, columns) if self.chance(60) else (1, n, columns))

    def quantized(self):
        columns = 32 * self.r.randint(1, 4)
        x = self.rows(columns)
        y = self.add(f"mx.quantized_matmul({self.maybe(x, 20)}, {self.weight(columns, columns)})", ROUND)
        if y is None or x not in self.ref.value or self.chance(40):
            return
        if self.chance(50):
            self.add(f"{x} + {y}", ROUND)
        else:
            self.add(f"{x}.at[...].add({y})", ROUND)
            self.drop(x)
        self.drop(y)

    def norm(self, x):
        width = (self.of(x).shape[-1],)
        if self.chance(15):
            return self.add(f"mx.fast.layer_norm({x}, {self.shaped(self.of(x).dtype, width)}, None, 0.01)", ROUND)
        w = self.shaped(self.of(x).dtype, width) if self.chance(85) else None
        return self.add(f"mx.fast.rms_norm({x}, {w}, 0.01)", ROUND)

    def sum_to_norm(self):
        shape = (self.r.randint(1, 8), self.r.choice((8, 16, 64, 128)))
        a = self.shaped(self.dtype, shape)
        if self.chance(50):
            text, part = self.region(shape, forward=True)
            b = self.shaped(self.dtype, part)
            h = self.add(f"{a}.at[{text}].add({b})", ROUND)
            self.drop(a)
            v = h and self.add(f"{h}[{text}]")
        else:
            h = self.add(f"{a} + {self.shaped(self.dtype, shape)}", ROUND)
            v = h and (self.same_shape(h) if self.chance(35) else h)
        if v:
            self.norm(v)

    def rope(self, x):
        width = self.of(x).shape[-1]
        offset = self.r.choice((0, 3, 17))
        if self.chance(40):
            offset = self.fresh(mx.int32, self.of(x).shape[:1], "index", 20)
        how = f"traditional={self.chance(30)}, base=10000.0, scale=1.0, offset={offset}"
        return self.add(f"mx.fast.rope({x}, {width}, {how})", ROUND)

    def rope_to_cache(self):
        batch, heads, keys = self.r.randint(1, 2), self.r.randint(1, 3), self.r.randint(1, 16)
        width = self.r.choice((8, 16, 64))
        room = keys + self.r.randint(0, 6)
        cache = self.shaped(self.dtype, (batch, heads, room, width))
        at = self.r.randint(0, room - keys)
        if self.chance(30):
            x = self.add(f"{cache}[..., {room - keys}:, :]")
        elif self.chance(50):
            flat = self.shaped(self.dtype, (batch, keys, heads * width))
            x = self.add(f"{flat}.reshape({(batch, keys, heads, width)})")
            x = self.norm(x) if x and self.chance(60) else x
            x = self.maybe(x, 30)
            x = x and self.add(f"{x}.transpose(0, 2, 1, 3)")
        else:
            x = self.shaped(self.dtype, (batch, heads, keys, width))
            x = self.norm(x) if self.chance(60) else x
            x = self.maybe(x, 40)
        if x is None:
            return
        r = self.rope(x)
        self.drop(x)
        r = self.maybe(r, 10)
        if r is None:
            return
        index = f"..., {at}:{at + keys}, :" if self.chance(70) or at else f"..., {keys - 1}::-1, :"
        self.assign(cache, index, r)
        if self.chance(50):
            self.attention(cache, (batch, heads, keys, width))
        self.drop(r)

    def attention(self, keys=None, shape=None):
        any_shape = (self.r.randint(1, 2), self.r.randint(1, 2), self.r.randint(1, 12), self.r.choice((8, 64, 80, 128)))
        batch, heads, n, width = shape or any_shape
        queries = 1 if self.chance(50) else self.r.randint(2, 12)
        q = self.shaped(self.dtype, (batch, heads * self.r.randint(1, 2), queries, width))
        k = keys or self.shaped(self.dtype, (batch, heads, n, width))
        v = keys or self.shaped(self.dtype, (batch, heads, n, width))
        mask = self.r.choice(("", "", ', mask="causal"', ", mask="))
        if "causal" in mask and queries > n and tuple(map(int, mx.__version__.split(".")[:2])) >= (0, 32):
            mask = ""                                      # a query before all keys: undefined since then
        if mask == ", mask=":
            mask += str(self.shaped(self.dtype, (queries, self.of(k).shape[2])))
        return self.add(f"mx.fast.scaled_dot_product_attention({q}, {k}, {v}, scale=0.25{mask})", ROUND)

    def swiglu(self):
        shape = self.r.choice(((8, 8), (1, 64), (5, 32), (16, 16)))
        x = self.shaped(self.dtype, shape)
        gate = self.same_shape(x) if self.chance(40) else x
        s = self.add(f"mx.sigmoid({gate})", ROUND)
        m = s and self.add(f"{s} * {gate}", ROUND)
        self.drop(s)
        m = self.maybe(m, 40)
        if m is None:
            return
        if self.chance(25):
            self.add(f"{x}.at[...].multiply({m})", ROUND)
            self.drop(x)
        else:
            self.add(f"{m} * {self.shaped(self.dtype, shape)}", ROUND)
        self.drop(m)

    def gradient_of_attention(self):
        """Of more than one key, of which none has all of the weight: else it is nothing but the rounding of what cancels."""
        batch, heads, n, more = (self.r.randint(*range_) for range_ in ((1, 2), (1, 2), (2, 12), (1, 3)))
        width = self.r.choice((8, 20, 64))
        q = self.shaped(self.dtype, (batch, heads * more, self.r.randint(1, n), width))
        k, v = (self.shaped(self.dtype, (batch, heads, n, width)) for _ in range(2))
        mask = self.r.choice(("", ', mask="causal"'))
        call = f"mx.fast.scaled_dot_product_attention({q}, k, {v}, scale={2 / width:.3g}{mask})"
        return self.add(f"mx.grad(lambda k: mx.square({call}).sum())({k})", ROUND)

    def gradient(self):
        a = self.shaped(self.dtype, self.r.choice(((4, 16), (2, 3, 8), (1, 64))))
        w = self.shaped(self.dtype, self.of(a).shape[-1:])
        f = self.r.choice((f"mx.fast.rms_norm(a, {w}, 0.01)", f"mx.softmax(a, axis=-1) * {w}",
                           f"mx.sigmoid(a) * a * {w}", f"mx.fast.layer_norm(a, {w}, None, 0.01)", "attention", "attention"))
        if f == "attention":
            return self.gradient_of_attention()
        return self.add(f"mx.grad(lambda a: mx.square({f}).sum())({a})", ROUND)

    def event(self):
        name = self.existing(lambda x: True)
        if name is None:
            return
        kind = self.r.randrange(10)
        if kind < 4:
            self.note(f"del {name}")
        elif kind < 7:
            self.note(f"mx.eval({name})")
        else:
            self.note(f"mx.async_eval({name})")

    def make(self):
        operations = [self.elementwise] * 6 + [self.reduction] * 3 + [self.ordered] * 3 + [self.gathered] * 2 + \
            [self.scattered] * 2 + [self.updated] * 4 + [self.joined] * 2 + [self.product] * 2 + \
            [self.cast, self.attention, self.gradient]
        motifs = [self.quantized, self.sum_to_norm, self.rope_to_cache, self.rope_to_cache, self.swiglu]
        favourites = self.r.sample(operations, 4)
        for _ in range(self.r.randint(3, 10)):
            operation = self.r.choice(motifs if self.chance(35) else favourites if self.chance(60) else operations)
            try:
                operation()
            except Refused:                                   # something that it needs is gone
                pass
            if self.chance(25):
                self.event()
        return self.lines


def dtype_text(dtype):
    return "mx." + str(dtype).split(".")[-1]


# ---- shrinking -------------------------------------------------------------------------------------------------------

def without(lines, first, count):
    return lines[:first] + lines[first + count:]


def deleted(lines, check):
    size = max(1, len(lines) // 2)
    while size:
        for at in range(len(lines) - size, -1, -size):
            shorter = without(lines, at, size)
            if check(shorter):
                lines = shorter
        size //= 2
    return lines


def cut_off(lines, check):
    """Data in place of what was computed."""
    for i in range(len(lines) - 1, -1, -1):
        line = lines[i]
        if not line.fresh() or "data(" in line.text:
            continue
        r, _ = referred(lines[:i + 1])
        if line.name not in r.value:
            continue
        x = r.value[line.name]
        text = f"{line.name} = data({dtype_text(x.dtype)}, {tuple(x.shape)}, 'uniform', {i})"
        changed = lines[:i] + [Line(text, line.name, MOVE)] + lines[i + 1:]
        if check(changed):
            lines = changed
    return lines


def smaller(lines, check):
    """A number becomes a smaller one wherever it stands."""
    found = sorted({int(n) for line in lines for n in re.findall(r"(?<![\w.])\d+(?![\w.])", line.text)}, reverse=True)
    for n in found:
        for less in (1, n // 2, n - 1):
            if not 0 < less < n:
                continue
            number = rf"(?<![\w.]){n}(?![\w.])"
            changed = [Line(re.sub(number, str(less), line.text), line.name, line.kind) for line in lines]
            if check(changed):
                lines = changed
                break
    return lines


def shrunk(lines, seconds=40):
    end = time.monotonic() + seconds

    def check(candidate):
        return time.monotonic() < end and any(failure(candidate) for _ in range(2))

    before = None
    while before != [line.text for line in lines]:
        before = [line.text for line in lines]
        lines = smaller(cut_off(deleted(lines, check), check), check)
    return referred(lines)[1]


# ---- running ---------------------------------------------------------------------------------------------------------

def one(seed, options, last):
    """Whether program `seed` agrees."""
    with open(last, "w") as file:                             # what remains where the process dies
        file.write(f"# --seed {seed} --count 1 while it was made\n")
    lines = Maker(seed).make()
    with open(last, "w") as file:
        file.write(f"# --seed {seed} --count 1\n" + "\n".join(line.text for line in lines) + "\n")
    if options.verbose:
        print(f"program {seed}\n    " + "\n    ".join(line.text for line in lines))
    problem = failure(lines)
    if not problem:
        return True
    print(f"FAIL program {seed}: {problem}", flush=True)
    lines = shrunk(lines)
    text = [line.text for line in lines] + [f"# {failure(lines) or problem}", f"# --seed {seed} --count 1"]
    print("    " + "\n    ".join(text), flush=True)
    return False


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if not mlxvk_mlx.is_available():
        print("no Vulkan device: nothing to run\n0 passed, 1 failed")
        return 1
    start, seed, passed, failed = time.monotonic(), options.seed, 0, 0
    last = os.path.join(sys.prefix, "fuzz-last.txt")
    while seed - options.seed < options.count if options.count else time.monotonic() - start < options.seconds:
        good = one(seed, options, last)
        passed, failed, seed = passed + good, failed + (not good), seed + 1
        if not good and not options.keep_going:
            break
    print(f"{passed} passed, {failed} failed", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
