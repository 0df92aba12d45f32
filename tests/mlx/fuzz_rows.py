"""What fuzz_calls.py calls: one row an operation, which draws options and operands and gives what is called with these."""
import random

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from support import ALL, FLOATS, HALVES, INTS, REAL, UNSIGNED, is_inexact, name_of, widened

COMPLEX_TOO = FLOATS + (mx.complex64,)
SUMMED = (mx.int32, mx.uint32) + FLOATS                       # what MLX's GPUs scatter with an operation
MOST = 1 << 15


# ---- views: (base, what cuts the operand out of it, the operand's elements) ------------------------------------------

def plain(rng, x):
    return x, lambda y: y, x


def transposed(rng, x):
    axes = rng.permutation(x.ndim)
    return x.transpose(axes), lambda y: y.transpose(np.argsort(axes).tolist()), x


def stepped(rng, x):
    steps = rng.integers(1, 4, x.ndim) * rng.choice((-1, 1, 1), x.ndim)
    base = np.resize(x, [n * abs(s) + 1 for n, s in zip(x.shape, steps)])
    cut = tuple(slice(1, None, int(s)) if s > 0 else slice(n * -int(s), 0, int(s)) for n, s in zip(x.shape, steps))
    base[cut] = x
    return base, lambda y: y[cut], x


def backwards(rng, x):
    cut = tuple(slice(None, None, -1 if rng.integers(0, 2) else 1) for _ in x.shape)
    return x[cut], lambda y: y[cut], x


def shifted(rng, x):
    skip = int(rng.integers(1, 6))
    return np.concatenate([np.resize(x, skip), x.reshape(-1)]), lambda y: y[skip:].reshape(x.shape), x


def broadcast(rng, x):
    base = x[tuple(slice(0, 1 if rng.integers(0, 2) else n) for n in x.shape)]
    return base, lambda y: mx.broadcast_to(y, x.shape), np.broadcast_to(base, x.shape)


def overlapping(rng, x):
    strides = [int(s) for s in rng.integers(1, 4, x.ndim)]
    base = np.resize(x, 2 + sum((max(n, 1) - 1) * s for n, s in zip(x.shape, strides)))
    seen = np.lib.stride_tricks.as_strided(base[1:], x.shape, [s * base.itemsize for s in strides])
    return base, lambda y: mx.as_strided(y, x.shape, strides, 1), seen


def twice(rng, x):
    base, outer, _ = transposed(rng, x)
    base, inner, _ = stepped(rng, base)
    return base, lambda y: outer(inner(y)), x


ONE_TO_ONE = (plain, plain, transposed, stepped, backwards, shifted, twice)
VIEWS = ONE_TO_ONE + (broadcast, overlapping)


class Operand:
    def __init__(self, draw, content, dtype, views):
        self.view = draw.r.choice(views if content.size else (plain,))
        base, self.cut, content = self.view(draw.rng, content)
        self.dtype, self.lazy = dtype, draw.chance(30) and dtype not in (mx.bool_, mx.complex64)
        self.base, self.content = made(base, dtype), made(content, dtype)

    def take(self, held):
        """Its elements are those of an earlier result, on each device: as many as are needed, small, and in its dtype."""
        shape, gpu = self.base.shape, held.gpu
        self.content = self.cut(fitted(held.cpu, shape, self.dtype, mx.cpu))
        mx.eval(self.content)
        self.content, self.lazy = made(np.array(widened(self.content)), self.dtype), False
        self.base = fitted(gpu, shape, self.dtype, mx.gpu)

    def seen(self, base):
        return self.cut(base * 1 if self.lazy else base)

    def __str__(self):
        return f"{name_of(self.dtype)} {self.content.shape} {'lazy ' * self.lazy}{self.view.__name__}"


def fitted(x, shape, dtype, device):
    with mx.stream(device):
        size = int(np.prod(shape))
        x = mx.tile(x.reshape(-1), -(-size // x.size))[:size] if size > x.size else x.reshape(-1)[x.size - size:]
        if dtype != x.dtype:
            x = x if x.dtype in (mx.bool_, mx.float32) and dtype == mx.bool_ else x & 7 if x.dtype not in FLOATS + (mx.bool_,) else x
            x = x.astype(dtype)
        return x.reshape(shape)


def made(x, dtype):
    y = mx.array(np.array(x, order="C")).astype(dtype, stream=mx.cpu)
    mx.eval(y)
    return y


# ---- drawing ---------------------------------------------------------------------------------------------------------

def reals(rng, shape, kind):
    """Every number is one of float16 and of bfloat16, too."""
    x = rng.integers(-128, 128, shape) / (1024 if kind == "small" else 64)
    if kind in ("positive", "above one"):
        x = np.abs(x) + (1 if kind == "above one" else 1 / 64)
        x = np.floor(x * 64) / 64 if kind == "positive" else np.floor(np.minimum(x, 3) * 32) / 32 + 1 / 32
    elif kind == "unit":
        x = x / 2.0078125
        x = np.round(x * 128) / 128
        x = np.clip(x, -0.96875, 0.96875)
    elif kind == "nonzero":
        x = np.where(x == 0, 1.5, x)
    elif kind == "near one":
        x = 1 + np.round(x * 8) / 64
    elif kind == "special" and x.size:
        x.reshape(-1)[rng.integers(0, x.size, 5)] = (np.nan, np.inf, -np.inf, 0.0, -0.0)
    return x.astype(np.float32)


def paired(real, imaginary):
    return np.stack([real, imaginary], axis=-1).view(np.complex64)[..., 0]


def wholes(rng, shape, dtype, kind):
    info = np.iinfo(name_of(dtype))
    if kind == "wide":
        return rng.integers(info.min, info.max, shape, dtype=name_of(dtype), endpoint=True)
    low, high = {"small": (-3, 4), "bits": (0, 7), "positive": (1, 12), "nonzero": (1, 12), "near one": (1, 3)}.get(kind, (-100, 101))
    x = rng.integers(max(low, info.min), high, shape)
    if kind == "nonzero" and info.min:
        x *= rng.choice((-1, 1), shape)
    return x.astype(name_of(dtype))


class Refused(Exception):
    pass


class Draw:
    """What a row's function asks: numbers, shapes, and the operands, which are kept in order."""

    def __init__(self, seed, row, alone=True):
        self.r, self.rng, self.row = random.Random(seed), np.random.default_rng(seed), row
        self.dtype = self.r.choice(row.dtypes)
        self.operands, self.axes, self.said, self.constant = [], [], [], []     # constant: without a gradient
        self.fixed = []                                       # operands with elements that others may not replace
        self.mapped = self.r.randint(1, 3) if alone and row.vmap and self.chance(20) else 0

    def chance(self, percent):
        return self.r.random() * 100 < percent

    def pick(self, *items):
        return self.r.choice(items)

    def of(self, low, high):
        return self.r.randint(low, high)

    def say(self, **options):
        self.said += [f"{key}={value}" for key, value in options.items()]
        return options

    def flags(self, *names):
        return self.say(**{name: True for name in names if self.chance(50)})

    def dim(self, most=40):
        return min(most, self.pick(1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 40, 64, 65))

    def shape(self, least=0, most=4, empty=4):
        if self.chance(10) and most >= 4:
            shape = [self.of(1, 3) for _ in range(self.of(max(least, 5), 8))]
        elif self.chance(4) and least < 3:
            shape = [self.of(1, 3) for _ in range(max(least, 1))]
            shape[self.r.randrange(len(shape))] = self.pick(8193, 20011, 65537)
        elif self.chance(10) and least < 3:
            shape = [self.of(1, 3) for _ in range(max(least, self.of(1, 2)) - 1)] + [self.pick(127, 255, 257, 1031, 2050, 4099)]
            self.r.shuffle(shape)
        else:
            shape = [self.dim(33) for _ in range(self.of(least, most))]
        while np.prod(shape) > MOST and max(shape) < MOST // 4:
            shape[shape.index(max(shape))] //= 3
        if shape and self.chance(empty):
            shape[self.r.randrange(len(shape))] = 0
        return tuple(shape)

    def axis(self, shape):
        if not shape:
            raise Refused
        axis = self.r.randrange(len(shape))
        return axis - len(shape) if self.chance(30) else axis

    def some_axes(self, shape):
        if not shape or self.chance(15):
            return None
        axes = self.r.sample(range(len(shape)), self.of(1, len(shape)))
        return axes[0] if len(axes) == 1 else tuple(axes)

    def broadcastable(self, shape):
        """A shape that broadcasts with this one."""
        shape = tuple(1 if self.chance(25) else n for n in shape)
        return shape[self.of(0, len(shape)):] if self.chance(30) else shape

    # -- operands

    def give(self, content, dtype, views):
        """content makes elements of the shape that it is called for; under vmap most operands have an axis more."""
        axis = None
        if self.mapped and self.chance(75):
            parts = [content() for _ in range(self.mapped)]
            axis = self.of(0, parts[0].ndim)
            x = np.stack(parts, axis)
        else:
            x = content()
        self.axes.append(axis)
        self.operands.append(Operand(self, x, dtype, views if self.row.views else (plain,)))
        return True

    def x(self, shape, dtype=None, kind=None, views=VIEWS, constant=False):
        dtype, kind, shape = dtype or self.dtype, kind or self.row.kind, tuple(shape)
        self.constant += [len(self.operands)] if constant else []
        self.fixed += [len(self.operands)] if kind in ("nonzero", "bits", "positive", "near one") else []
        if dtype == mx.bool_:
            return self.give(lambda: self.rng.integers(0, 2, shape).astype(bool), dtype, views)
        if dtype == mx.complex64:
            return self.give(lambda: paired(reals(self.rng, shape, kind), reals(self.rng, shape, kind)), dtype, views)
        if is_inexact(dtype):
            return self.give(lambda: reals(self.rng, shape, kind), dtype, views)
        kind = "wide" if kind == "any" and self.row.wide and self.chance(40) else kind
        return self.give(lambda: wholes(self.rng, shape, dtype, kind), dtype, views)

    def index(self, shape, below, dtype=None, distinct=False, ordered=False, negative=True):
        dtype = dtype or self.pick(mx.int32, mx.uint32, mx.int64, mx.int16, mx.uint8)
        low = -below if negative and not ordered and mx.issubdtype(dtype, mx.signedinteger) and self.chance(30) else 0

        def content():
            if distinct:
                last = shape[-1]
                x = np.stack([self.rng.permutation(below)[:last] for _ in range(int(np.prod(shape[:-1])))]).reshape(shape)
            else:
                x = self.rng.integers(low, below, shape)
            return (np.sort(x, axis=None).reshape(shape) if ordered else x).astype(name_of(dtype))
        self.fixed.append(len(self.operands))
        return self.give(content, dtype, ONE_TO_ONE)

    def exact(self, x, dtype=None, views=ONE_TO_ONE):
        """These elements (an array of MLX, of the CPU's)."""
        self.fixed.append(len(self.operands))
        return self.give(lambda: np.array(widened(x)), dtype or x.dtype, views)


class Row:
    def __init__(self, name, make, dtypes, kind="any", tolerance=1.0, own=False, exact=False, views=True, wide=True,
                 vmap=True, grad=True, compiled=True, stream=True):
        self.name, self.make, self.dtypes, self.kind, self.tolerance = name, make, dtypes, kind, tolerance
        self.own, self.exact, self.views, self.wide = own or exact, exact, views, wide
        self.vmap, self.grad, self.compiled, self.stream = vmap, grad, compiled, stream


ROWS = {}


def row(name, dtypes=FLOATS, **options):
    """Adds an operation: its function draws options and operands and returns what is called with these."""
    def add(make):
        ROWS[name] = Row(name, make, dtypes, **options)
        return make
    return add


# ---- element by element ----------------------------------------------------------------------------------------------

ANALYTIC = COMPLEX_TOO + (mx.int32, mx.bool_, mx.uint8, mx.int64)
UNARY = {  # name: (dtypes, kind of data, options)
    "abs": (ALL, "special", {}), "negative": (ALL[1:], "special", {}), "sign": (ALL, "any", {}), "square": (ALL, "special", {}),
    "sqrt": (ANALYTIC, "positive", {}), "rsqrt": (ANALYTIC, "positive", {}), "reciprocal": (FLOATS, "nonzero", {}),
    "exp": (ANALYTIC, "small", {}), "expm1": (ANALYTIC, "small", {}), "log": (ANALYTIC, "positive", {}),
    "log2": (ANALYTIC, "positive", {}), "log10": (ANALYTIC, "positive", {}), "log1p": (ANALYTIC, "positive", {}),
    "sin": (ANALYTIC, "any", {}), "cos": (ANALYTIC, "any", {}), "tan": (ANALYTIC, "small", {}), "sinh": (ANALYTIC, "small", {}),
    "cosh": (ANALYTIC, "small", {}), "tanh": (ANALYTIC, "any", {}), "arcsin": (COMPLEX_TOO, "unit", {"tolerance": 4}),
    "arccos": (COMPLEX_TOO, "unit", {"tolerance": 4}), "arctan": (ANALYTIC, "any", {}), "arcsinh": (ANALYTIC, "any", {}),
    "arccosh": (COMPLEX_TOO, "above one", {"tolerance": 4}), "arctanh": (COMPLEX_TOO, "unit", {"tolerance": 8}),
    "erf": (FLOATS, "any", {}), "erfinv": (FLOATS, "unit", {"tolerance": 4}), "sigmoid": (FLOATS + (mx.int32,), "any", {}),
    "floor": (REAL, "special", {}), "ceil": (REAL, "special", {}), "round": (ALL[1:], "any", {"own": True}), "trunc": (REAL, "special", {}),
    "logical_not": (ALL, "small", {}), "bitwise_invert": ((mx.bool_,) + INTS, "any", {}), "conjugate": (ALL, "any", {}),
    "real": (ALL, "special", {}), "imag": (ALL, "special", {}), "isnan": (ALL, "special", {}), "isinf": (ALL, "special", {}),
    "isfinite": (ALL, "special", {}), "isposinf": (REAL, "special", {}), "isneginf": (REAL, "special", {}),
    "nan_to_num": (FLOATS + (mx.int32,), "special", {"own": True, "grad": False}), "degrees": (FLOATS, "any", {"tolerance": 4}),
    "radians": (FLOATS, "any", {"tolerance": 2}), "stop_gradient": (ALL, "special", {}), "zeros_like": (ALL, "any", {}),
    "ones_like": (ALL, "any", {}), "to_fp8": (FLOATS, "any", {"own": True}),
}
for name, (dtypes, kind, options) in UNARY.items():
    if hasattr(mx, name):
        row(name, dtypes, kind=kind, **options)(lambda g, f=getattr(mx, name): g.x(g.shape()) and f)

BINARY = {
    "add": (ALL, "any", {}), "subtract": (ALL[1:], "any", {}), "multiply": (ALL, "any", {}),
    "divide": (COMPLEX_TOO + (mx.int32, mx.uint8, mx.int64), "nonzero", {}), "maximum": (ALL, "special", {}),
    "minimum": (ALL, "special", {}), "power": (INTS[2:4] + UNSIGNED[1:3] + FLOATS, "near one", {"tolerance": 4}),
    "floor_divide": (INTS + FLOATS, "nonzero", {"own": True}), "remainder": (INTS + (mx.float32,), "nonzero", {"own": True}),
    "divmod": (INTS + (mx.float32,), "nonzero", {"own": True}), "arctan2": (FLOATS, "nonzero", {}), "logaddexp": (FLOATS, "any", {}),
    "logical_and": (ALL, "small", {}), "logical_or": (ALL, "small", {}), "logical_xor": (ALL, "small", {}),
    "left_shift": (INTS, "bits", {}), "right_shift": (INTS, "bits", {}), "isclose": (FLOATS, "small", {"own": True}),
    "bitwise_and": ((mx.bool_,) + INTS, "any", {}), "bitwise_or": ((mx.bool_,) + INTS, "any", {}),
    "bitwise_xor": ((mx.bool_,) + INTS, "any", {}),
    **{name: (ALL, "special", {}) for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")},
}


def two(g):
    shape = g.shape(most=5)
    return g.x(g.broadcastable(shape)) and g.x(g.broadcastable(shape))


for name, (dtypes, kind, options) in BINARY.items():
    if hasattr(mx, name):
        row(name, dtypes, kind=kind, **options)(lambda g, f=getattr(mx, name): two(g) and f)


@row("mixed dtypes", ALL)
def _(g):
    shape = g.shape()
    g.x(g.broadcastable(shape), kind="small"), g.x(g.broadcastable(shape), g.pick(*ALL), kind="small")
    return g.pick(mx.add, mx.multiply, mx.maximum, mx.equal, lambda a, b: mx.where(a == b, a, b), lambda a, b: a + 1 - b * 2)


@row("where", ALL, kind="special", exact=True)
def _(g):
    shape = g.shape(most=6)
    g.x(g.broadcastable(shape), mx.bool_), g.x(g.broadcastable(shape)), g.x(g.broadcastable(shape))
    return mx.where


@row("clip", REAL[1:])
def _(g):
    shape = g.shape()
    g.x(shape)
    if g.chance(50):
        low = g.of(0, 5)
        return lambda x: mx.clip(x, low, low + 3)
    g.x(g.broadcastable(shape)), g.x(g.broadcastable(shape))
    return mx.clip


@row("astype", ALL, kind="small", own=True)
def _(g):
    to = g.pick(*(ALL if g.dtype != mx.complex64 else (mx.complex64,)))
    unsigned = mx.issubdtype(to, mx.unsignedinteger) and is_inexact(g.dtype)   # negative floats: undefined
    g.say(to=to)
    g.x(g.shape(), kind="positive" if unsigned else "small")
    return lambda x: x.astype(to)


@row("wide astype", INTS, own=True)
def _(g):
    to = g.pick(mx.bool_, *INTS, mx.float32)
    g.say(to=to)
    g.x(g.shape(), kind="wide")
    return lambda x: x.astype(to)


@row("view", (mx.float32, mx.int32, mx.uint32, mx.int16, mx.uint8, mx.int64, mx.float16), exact=True, grad=False)
def _(g):
    shape, to = g.shape(1), g.pick(mx.uint8, mx.float16, mx.int16, mx.uint32, mx.int64, mx.int8, mx.uint16, mx.bfloat16)
    g.x((*shape[:-1], shape[-1] * 8))
    g.say(to=to)
    return lambda x: x.view(to).view(mx.uint8)


row("pairs of reals", (mx.complex64,), exact=True, grad=False)(lambda g: g.x(g.shape(1)) and (lambda x: x.view(mx.float32)))


OF_ONE = {
    "bool": ("~{a}", "mx.logical_not({a})"), "int": ("-{a}", "mx.abs({a})", "~{a}", "{a} * {a}", "mx.sign({a})", "{a} - 3", "2 * {a}"),
    "float": ("-{a}", "mx.abs({a})", "mx.square({a})", "{a} * 0.5", "1 - {a}", "mx.sign({a})"),
    "single": ("mx.sin({a})", "mx.tanh({a})", "mx.sigmoid({a})", "mx.sqrt(mx.abs({a}) + 1)", "mx.exp(-mx.abs({a}))", "mx.log1p(mx.abs({a}))",
               "mx.erf({a})", "mx.arctan({a})", "1 / (mx.abs({a}) + 1)", "mx.cos({a})"),
}
OF_TWO = {
    "bool": ("{a} & {b}", "{a} | {b}", "{a} == {b}", "{a} ^ {b}"),
    "int": ("{a} + {b}", "{a} - {b}", "{a} * {b}", "mx.maximum({a}, {b})", "mx.minimum({a}, {b})", "{a} & {b}", "{a} | {b}", "{a} ^ {b}",
            "{a} << ({b} & 3)", "{a} >> ({b} & 3)", "mx.where({a} > {b}, {a}, {b} + 1)", "({a} == {b}) + {a}"),
    "float": ("{a} + {b}", "{a} - {b}", "{a} * {b}", "mx.maximum({a}, {b})", "mx.minimum({a}, {b})"),
    "single": ("mx.arctan2({a}, mx.abs({b}) + 1)", "mx.logaddexp({a}, {b})", "{a} / (mx.abs({b}) + 1)"),
}
EXACT = ("mx.floor({a})", "mx.round({a})", "{a}.astype(mx.int32)", "mx.where({a} > 0, {a}, 0)", "mx.ceil({a}).astype(mx.int8)", "{a} >= 0.5",
         "{a}.astype(mx.bfloat16).astype(mx.float32)", "{a}.astype(mx.int64)")


@row("expression", ALL[:-1], tolerance=32, own=True)
def _(g):
    """Elementwise steps, compiled on the GPU."""
    shape = g.shape(0, 4)
    types = [g.pick(*ALL[:-1]) if g.chance(40) else g.dtype for _ in range(g.of(1, 4))]
    scope = {"mx": mx}
    kinds, lines = {}, []
    for i, dtype in enumerate(types):
        g.x(g.broadcastable(shape), dtype, kind="small")
        kinds[f"x{i}"] = "bool" if dtype == mx.bool_ else "int" if dtype in INTS else "half" if dtype in HALVES else "single"
    given = list(kinds)
    for i in range(g.of(2, 14)):
        a, b, c = (g.pick(*kinds) for _ in range(3))
        kind = {"half": "float", "single": g.pick("float", "single")}.get(kinds[a], kinds[a])
        if a in given and kind in ("float", "single") and g.chance(40):
            text = g.pick(*EXACT).format(a=a)
        elif g.chance(15):
            bools = [n for n in kinds if kinds[n] == "bool"]
            text = f"mx.where({g.pick(*bools)}, {a}, {b})" if bools else f"{a}.astype(mx.float32)"
        elif g.chance(15):
            text = f"{a}.astype(mx.{g.pick('float32', 'int32') if kinds[a] in ('bool', 'int') else 'float32'})"
        elif kinds[b] == kinds[a] and g.chance(70):
            text = g.pick(*OF_TWO[kind]).format(a=a, b=b)
        else:
            text = g.pick(*OF_ONE[kind]).format(a=a)
        trial = dict(scope, **{n: mx.zeros((1,), t) for n, t in zip(given, types)})
        try:
            exec("\n".join(lines + [f"y{i} = {text}"]), trial)
        except (ValueError, RuntimeError):                    # shifts of what is promoted to floats
            continue
        lines.append(f"y{i} = {text}")
        dtype = trial[f"y{i}"].dtype
        kinds[f"y{i}"] = "bool" if dtype == mx.bool_ else "int" if dtype in INTS else "half" if dtype in HALVES else "single"
    if not lines:
        raise Refused
    out = [lines[-1].split()[0]] + [n for n in kinds if n[0] == "y" and g.chance(20)]
    text = f"def f({', '.join(given)}):\n    " + "\n    ".join(lines) + f"\n    return [{', '.join(out)}]"
    g.say(text=text)
    exec(text, scope)
    compiled = mx.compile(scope["f"], shapeless=g.chance(30) and 0 not in shape)      # where MLX takes 0 and 1 together for 1
    end = g.pick(None, None, mx.sum, mx.max) if 0 not in shape else None

    def run(*x):
        ys = compiled(*x) if mx.default_device() == mx.gpu else scope["f"](*x)
        return [end(y.astype(mx.float32), axis=-1) if end and y.ndim else y for y in ys]
    return run


# ---- reductions, scans, order ----------------------------------------------------------------------------------------

def reduced(name, dtypes, **row_options):
    @row(name, dtypes, **row_options)
    def _(g):
        shape = g.shape(most=5, empty=0)
        options = g.say(axis=g.some_axes(shape), keepdims=g.chance(40))
        if name in ("var", "std"):
            options |= g.say(ddof=g.of(0, 1))
        g.x(shape)
        function = getattr(mx, name)
        return lambda x: function(x, **options)


for name in ("sum", "max", "min", "all", "any", "count_nonzero", "minmax"):
    reduced(name, ALL if name != "minmax" else REAL)
reduced("prod", INTS + COMPLEX_TOO, kind="near one", tolerance=16)
reduced("mean", COMPLEX_TOO + (mx.int32, mx.bool_, mx.uint8), tolerance=2)
for name in ("var", "std"):
    reduced(name, FLOATS, tolerance=16, own=False)
reduced("logsumexp", FLOATS + (mx.int32,), tolerance=2, wide=False)


@row("reduce special", FLOATS, kind="special", grad=False)
def _(g):
    shape = g.shape(1, 5, empty=0)
    f, options = g.pick(mx.max, mx.min, mx.sum, mx.all, mx.any, mx.logsumexp), g.say(axis=g.some_axes(shape), keepdims=g.chance(40))
    g.say(f=f)
    g.x(shape)
    return lambda x: f(x, **options)


@row("median", FLOATS + (mx.int32,), wide=False, grad=False)
def _(g):
    shape = g.shape(1, 3, empty=0)
    options = g.say(axis=g.some_axes(shape), keepdims=g.chance(40))
    g.x(shape)
    return lambda x: mx.median(x, **options)


@row("argreduce", REAL, grad=False)
def _(g):
    shape = g.shape(1, 4, empty=0)
    options = g.say(axis=g.pick(None, g.axis(shape)), keepdims=g.chance(40))
    g.x(shape)
    f = g.pick(mx.argmax, mx.argmin)
    return lambda x: f(x, **options)


@row("softmax", tolerance=4)
def _(g):
    shape = g.shape(1, 4, empty=0)
    options = g.say(axis=g.some_axes(shape), precise=g.chance(30))
    g.x(shape)
    return lambda x: mx.softmax(x, **options)


def scanned(name, dtypes, **row_options):
    @row(name, dtypes, **row_options)
    def _(g):
        shape = g.shape(1, 4)
        options = g.say(axis=g.axis(shape), reverse=g.chance(50), inclusive=g.chance(50))
        g.x(shape)
        function = getattr(mx, name)
        return lambda x: function(x, **options)


scanned("cumsum", ALL, tolerance=4)
scanned("cummax", REAL)
scanned("cummin", REAL)
scanned("cumprod", INTS + FLOATS, kind="near one", tolerance=32, grad=False)
scanned("logcumsumexp", FLOATS, tolerance=4)


@row("sort", REAL, exact=True)
def _(g):
    shape = g.shape(1, 4)
    axis = g.pick(None, g.axis(shape))
    g.say(axis=axis)
    g.x(shape, kind="special" if g.chance(20) else None)
    return lambda x: mx.sort(x, axis=axis)


@row("argsort", REAL, exact=True, grad=False)
def _(g):
    shape = g.shape(1, 4)
    axis = g.axis(shape)
    g.say(axis=axis)
    g.x(shape)
    return lambda x: mx.argsort(x, axis=axis)


@row("partition", REAL[1:], exact=True, grad=False)
def _(g):
    shape = g.shape(1, 3, empty=0)
    axis = g.axis(shape)
    k = g.of(0, shape[axis] - 1)
    g.say(axis=axis, k=k, by=(by := g.pick("partition", "argpartition", "topk")))
    g.x(shape)
    if by == "topk":
        return lambda x: mx.sort(mx.topk(x, k + 1, axis=axis), axis=axis)

    def parts(x):
        x = mx.partition(x, k, axis=axis) if by == "partition" else mx.take_along_axis(x, mx.argpartition(x, k, axis=axis), axis=axis)
        return [mx.sort(part, axis=axis) for part in mx.split(x, [k, k + 1], axis=axis)]
    return parts


@row("searchsorted", REAL[1:], own=True, grad=False)
def _(g):
    side = g.pick("left", "right")
    g.x((g.of(1, 300),)), g.x(g.shape())
    return lambda a, v: mx.searchsorted(mx.sort(a), v, side=side)


@row("unique", REAL, exact=True, vmap=False, grad=False)
def _(g):
    size, options = g.of(1, 40), g.flags("return_index", "return_inverse", "return_counts")
    g.say(size=size)
    g.x(g.shape(empty=0), kind="small")
    return lambda x: mx.unique(x, size, **options)


@row("diff", ALL[1:])
def _(g):
    shape = g.shape(1, 4)
    axis = g.axis(shape)
    n = g.of(0, min(3, shape[axis]))
    g.say(axis=axis, n=n)
    g.x(shape)
    return lambda x: mx.diff(x, n=n, axis=axis)


@row("linalg.norm", tolerance=8, own=False)
def _(g):
    shape = g.shape(1, 3, empty=0)
    axis = g.axis(shape)
    order = g.pick(None, 1, 2, 3, np.inf, -np.inf)
    g.say(axis=axis, order=order)
    g.x(shape, mx.float32, kind="nonzero")
    return lambda x: mx.linalg.norm(x, order, axis=axis)


# ---- what only moves numbers -----------------------------------------------------------------------------------------

MOVES = {"exact": True, "kind": "special"}


def padded(g):
    shape = g.shape(1, 4, empty=0)
    mode = g.pick("constant", "edge", "reflect", "symmetric")
    most = [3 if mode in ("constant", "edge") else n - (mode == "reflect") for n in shape]
    widths = [(g.of(0, min(3, m)), g.of(0, min(3, m))) for m in most]
    g.say(mode=mode, widths=widths)
    g.x(shape)
    more = g.pick({}, {"constant_values": 1}) if mode == "constant" else {}
    return lambda x: mx.pad(x, widths, mode=mode, **more)


def rolled(g):
    shape = g.shape(1, 4)
    axes = g.some_axes(shape)
    shift = g.of(-9, 9) if not isinstance(axes, tuple) else tuple(g.of(-9, 9) for _ in axes)
    g.say(shift=shift, axes=axes)
    g.x(shape)
    return lambda x: mx.roll(x, shift, axes)


def repeated(g):
    shape = g.shape(1, 3)
    axis, n = g.pick(None, g.axis(shape)), g.of(1, 4)
    g.x(shape)
    times = [g.of(1, 3) for _ in range(g.of(1, 4))]
    return g.pick(lambda x: mx.repeat(x, n, axis=axis), lambda x: mx.tile(x, times))


def concatenated(g):
    shape = list(g.shape(1, 4))
    axis = g.r.randrange(len(shape))
    count = g.pick(1, 2, 3, 5, 17)
    for _ in range(count):
        g.x(shape[:axis] + [g.pick(0, 1, 2, 3, 5) if count > 3 else g.dim(20)] + shape[axis + 1:])
    g.say(axis=axis)
    return lambda *x: mx.concatenate(x, axis=axis)


def stacked(g):
    shape = g.shape(0, 3)
    axis = g.of(0, len(shape))
    for _ in range(g.of(1, 5)):
        g.x(shape)
    return lambda *x: mx.stack(x, axis=axis)


def parted(g):
    shape = g.shape(1, 4, empty=0)
    axis = g.axis(shape)
    places = sorted(g.of(0, shape[axis]) for _ in range(g.of(1, 4)))
    g.say(axis=axis, places=places)
    g.x(shape)
    return g.pick(lambda x: mx.split(x, places, axis=axis), lambda x: [y + y for y in mx.split(x, places, axis=axis)],
                  lambda x: list(mx.unstack(x, axis=axis)))


def cut(r, n):
    step = r.choice((1, 1, 1, 2, 3, -1, -2, -3))
    a, b = sorted((r.randint(0, n), r.randint(0, n)))
    return slice(a, b, step) if step > 0 else slice(b - 1 if b else None, a - 1 if a else None, step)


def index_of(g, shape, forward=False):
    """A basic index of some axes."""
    kinds = [g.r.randrange(6) for _ in shape][:g.of(0, len(shape))]
    parts = []
    for kind, n in zip(kinds, shape):
        part = g.r.randrange(-n, n) if kind == 0 and n else slice(None) if kind == 1 else cut(g.r, n)
        if forward and isinstance(part, slice) and part.step and part.step < 0:
            part = slice(None)
        parts.append(part)
    if g.chance(30) and not forward:
        parts.insert(g.of(0, len(parts)), None)
    if g.chance(20):
        parts.append(Ellipsis)
    g.say(index=parts)
    return tuple(parts)


def sliced(g):
    shape = g.shape(1, 5)
    first = index_of(g, shape)
    second = index_of(g, np.empty(shape, bool)[first].shape)
    g.x(shape)
    return g.pick(lambda x: x[first], lambda x: x[first][second], lambda x: mx.contiguous(x[first][second]), lambda x: x[first] + x[first])


def strided(g):
    shape = g.shape(1, 3)
    new = tuple(g.of(1, 5) for _ in range(g.of(1, 4)))
    strides = tuple(g.of(-2, 5) for _ in new)
    low = sum((n - 1) * s for n, s in zip(new, strides) if s < 0)
    high = sum((n - 1) * s for n, s in zip(new, strides) if s > 0)
    size = int(np.prod(shape)) + high - low + 1
    offset = g.of(-low, size - 1 - high)
    g.say(new=new, strides=strides, offset=offset)
    g.x((size,))
    return lambda x: mx.as_strided(x, new, strides, offset)


def reshaped(g):
    shape = g.shape(1, 5)
    size, new = int(np.prod(shape)), []
    while size > 1 and len(new) < 7:
        n = g.pick(*[n for n in range(1, min(size, 40) + 1) if size % n == 0])
        new.append(n)
        size //= n
    new.append(size)
    if 0 in shape:
        new = [0, 3]
    g.r.shuffle(new)
    g.say(new=new)
    g.x(shape)
    a, b = sorted((g.of(0, len(shape) - 1), g.of(0, len(shape) - 1)))
    return g.pick(lambda x: x.reshape(new), lambda x: x.flatten(a, b), lambda x: x.T.reshape(new), lambda x: x.reshape(new).T.reshape(-1),
                  lambda x: mx.unflatten(x.reshape(-1), 0, new))


def turned(g):
    shape = g.shape(1, 6)
    a, b = g.axis(shape), g.axis(shape)
    axes = g.r.sample(range(len(shape)), len(shape))
    g.x(shape)
    return g.pick(lambda x: mx.moveaxis(x, a, b), lambda x: mx.swapaxes(x, a, b), lambda x: x.transpose(axes), lambda x: mx.flip(x, axis=a),
                  lambda x: mx.contiguous(x.transpose(axes)), lambda x: mx.flip(x.transpose(axes)), lambda x: mx.expand_dims(x, (0, 2)))


def triangle(g):
    g.x((*g.shape(0, 2), g.dim(), g.dim()))
    k = g.of(-5, 5)
    g.say(k=k)
    return g.pick(lambda x: mx.tril(x, k), lambda x: mx.triu(x, k), lambda x: mx.diagonal(x, k, -2, -1), lambda x: mx.diagonal(x, k, 1, 0))


def spread(g):
    shape = g.shape(0, 3)
    g.x(tuple(1 if g.chance(40) else n for n in shape))
    new = (g.of(1, 3), *shape)
    return g.pick(lambda x: mx.broadcast_to(x, new), lambda x: mx.contiguous(mx.broadcast_to(x, new)), lambda x: mx.broadcast_to(x, new) + x)


for name, make in {"pad": padded, "roll": rolled, "repeat": repeated, "concatenate": concatenated, "stack": stacked, "split": parted,
                   "slice": sliced, "as_strided": strided, "reshape": reshaped, "axes": turned, "triangle": triangle,
                   "broadcast": spread}.items():
    row(name, ALL, **MOVES)(make)
row("diag", ALL[:-1], exact=True)(lambda g: g.x(g.pick((g.dim(),), (g.dim(), g.dim()))) and (lambda x, k=g.of(-3, 3): mx.diag(x, k)))
row("meshgrid", ALL, exact=True)(lambda g: [g.x((g.of(1, 9),)) for _ in range(g.of(1, 4))] and
    (lambda *x, i=g.pick("xy", "ij"): mx.meshgrid(*x, indexing=i)))


# ---- indices ---------------------------------------------------------------------------------------------------------

@row("take", ALL, exact=True)
def _(g):
    shape = g.shape(1, 4, empty=0)
    axis = g.axis(shape)
    g.say(axis=axis)
    g.x(shape), g.index(g.shape(0, 2), shape[axis])
    return lambda x, i: mx.take(x, i, axis=axis)


@row("take_along_axis", ALL, exact=True)
def _(g):
    shape = g.shape(1, 4, empty=0)
    axis = g.r.randrange(len(shape))
    g.say(axis=axis)
    g.x(shape), g.index([g.of(1, 6) if i == axis else 1 if g.chance(20) else n for i, n in enumerate(shape)], shape[axis])
    return lambda x, i: mx.take_along_axis(x, i, axis=axis)


@row("gather", ALL, exact=True)
def _(g):
    """Arrays at some axes, slices at the others."""
    shape = g.shape(2, 4, empty=0)
    at = sorted(g.r.sample(range(len(shape)), g.of(1, 2)))
    places = g.shape(0, 2, empty=0)
    while np.prod(places) * np.prod(shape) > MOST:
        places = tuple(n // 2 + n % 2 for n in places[:1])
        shape = tuple(min(n, 30) for n in shape)
    parts = [cut(g.r, n) if g.chance(30) else slice(None) for n in shape]
    g.say(at=at, parts=parts)
    g.x(shape)
    for axis in at:
        g.index(places if g.chance(60) else g.broadcastable(places), shape[axis])

    def gather(x, *indices):
        index = list(parts)
        for axis, i in zip(at, indices):
            index[axis] = i
        return x[tuple(index)]
    return gather


def scattered(name, dtypes, **row_options):
    @row(f"scatter {name}", dtypes, **row_options)
    def _(g):
        """Distinct places where the order would tell."""
        put = name in ("put", "divide")
        shape = g.shape(1, 3, empty=0)
        shape = (min(shape[0], 60), *shape[1:])
        count = g.of(1, shape[0]) if put else g.of(1, 2 * shape[0])
        g.x(shape), g.index((count,), shape[0], distinct=put, negative=not put)
        g.x((count, *shape[1:]) if g.chance(80) else shape[1:])

        def scatter(x, i, y):
            if name != "put":
                return getattr(x.at[i], name)(y)
            x = mx.array(x)
            x[i] = y
            return x
        return scatter


scattered("put", (mx.bool_, mx.int8, mx.uint16, mx.int32, mx.uint32) + FLOATS, exact=True)
for name in ("add", "subtract", "maximum", "minimum"):
    scattered(name, SUMMED, tolerance=4)
scattered("multiply", SUMMED, kind="near one", tolerance=8)
scattered("divide", FLOATS, kind="near one", tolerance=4)


@row("scatter elements", SUMMED, tolerance=4)
def _(g):
    """Arrays at two axes, a slice at the third, or none there."""
    shape = (g.of(1, 20), g.of(1, 20), g.of(1, 9))
    count = g.of(1, 40)
    last = slice(0, g.of(1, shape[2]), g.of(1, 3)) if g.chance(50) else slice(None)
    name = g.pick("add", "maximum", "minimum")
    g.say(name=name, last=last)
    g.x(shape), g.index((count,), shape[0]), g.index((count,), shape[1])
    g.x((count, len(range(shape[2])[last])))
    return lambda x, i, j, y: getattr(x.at[i, j, last], name)(y)


@row("put_along_axis", (mx.int8, mx.int32) + FLOATS, exact=True)
def _(g):
    shape = g.shape(1, 3, empty=0)
    axis = g.r.randrange(len(shape))
    count = g.of(1, shape[axis])
    order = list(range(len(shape)))
    order[axis], order[-1] = order[-1], order[axis]
    g.say(axis=axis)
    g.x(shape), g.index([count if i == len(shape) - 1 else shape[order[i]] for i in range(len(shape))], shape[axis], distinct=True,
                        negative=False)
    g.x([count if i == axis else n for i, n in enumerate(shape)])
    return lambda x, i, y: mx.put_along_axis(x, i.transpose(order), y, axis=axis)


@row("set slices", ALL, exact=True)
def _(g):
    shape = g.shape(1, 4)
    index = index_of(g, shape)
    g.x(shape), g.x(g.broadcastable(np.empty(shape, bool)[index].shape))

    def put(x, y):
        x = mx.array(x)
        x[index] = y
        return x
    return put


@row("update slices", SUMMED + (mx.int64,), kind="near one", tolerance=2)
def _(g):
    shape = g.shape(1, 4)
    index, name = index_of(g, shape, forward=True), g.pick("add", "multiply", "maximum", "minimum", "subtract")
    g.say(name=name)
    g.x(shape), g.x(g.broadcastable(np.empty(shape, bool)[index].shape))
    return lambda x, y: getattr(x.at[index], name)(y)


@row("dynamic slices", ALL, exact=True)
def _(g):
    shape = g.shape(1, 4, empty=0)
    axes = g.r.sample(range(len(shape)), g.of(1, len(shape)))
    size = [g.of(1, n) if i in axes else n for i, n in enumerate(shape)]
    start = mx.array([g.of(0, shape[a] - size[a]) for a in axes], dtype=g.pick(mx.int32, mx.int64, mx.uint32))
    g.say(axes=axes, size=size)
    g.x(shape), g.exact(start)
    if g.chance(50):
        return lambda x, i: mx.slice(x, i, axes, size)
    g.x(size)
    return lambda x, i, y: mx.slice_update(x, y, i, axes)


@row("masked put", (mx.bool_, mx.uint8, mx.int16, mx.int64) + FLOATS, exact=True, vmap=False, grad=False)
def _(g):
    shape = g.shape(1, 3, empty=0)
    rows = shape[:g.of(1, len(shape))]
    g.x(shape), g.x(rows, mx.bool_), g.x((int(np.prod(rows)), *shape[len(rows):]))

    def put(x, m, y):
        x = mx.array(x)
        x[m] = y
        return x
    return put


# ---- products --------------------------------------------------------------------------------------------------------

@row("matmul", COMPLEX_TOO)
def _(g):
    m, n, k = (g.pick(1, 1, 2, 3, 7, 16, 33, 65, 130, 257, 600) for _ in range(3))
    k = 0 if g.chance(3) else k
    lead = tuple(g.of(1, 3) for _ in range(g.of(0, 3)))
    a = (*g.broadcastable(lead), m, k) if g.chance(85) else (k,)
    b = (*g.broadcastable(lead), k, n) if g.chance(85) else (k,)
    g.x(a), g.x(b)
    return mx.matmul


@row("addmm")
def _(g):
    m, n, k = (g.pick(1, 1, 2, 3, 7, 16, 33, 65, 130) for _ in range(3))
    lead = tuple(g.of(1, 3) for _ in range(g.of(0, 2)))
    options = g.say(alpha=g.pick(1.0, 0.5, -2.0), beta=g.pick(1.0, 0.0, 0.25))
    g.x(g.broadcastable((*lead, m, n))), g.x((*lead, m, k)), g.x((*(lead if g.chance(50) else ()), k, n))
    return lambda c, a, b: mx.addmm(c, a, b, **options)


@row("einsum", COMPLEX_TOO, tolerance=2)
def _(g):
    sizes = {c: g.of(1, 6) for c in "abcdef"}
    terms = ["".join(g.pick(*sizes) for _ in range(g.of(1, 4))) for _ in range(g.of(1, 3))]
    letters = sorted(set("".join(terms)))
    text = ",".join(terms) + "->" + "".join(g.r.sample(letters, g.of(0, min(4, len(letters)))))
    g.say(text=text)
    for term in terms:
        g.x([sizes[c] for c in term])
    return lambda *x: mx.einsum(text, *x)


@row("tensordot")
def _(g):
    common = [g.of(1, 6) for _ in range(g.of(0, 2))]
    a, b = [g.of(1, 7) for _ in range(g.of(0, 2))], [g.of(1, 7) for _ in range(g.of(0, 2))]
    order = g.r.sample(range(len(common)), len(common))
    g.x(a + common), g.x([common[i] for i in order] + b)
    axes = [[len(a) + i for i in order], list(range(len(common)))]
    return lambda x, y: mx.tensordot(x, y, axes)


@row("kron", COMPLEX_TOO + (mx.int32,))
def _(g):
    return g.x([g.of(1, 4) for _ in range(g.of(1, 3))]) and g.x([g.of(1, 4) for _ in range(g.of(1, 3))]) and mx.kron


@row("dots", COMPLEX_TOO)
def _(g):
    n, f = g.dim(), g.pick("inner", "outer", "vecdot", "trace")
    g.say(f=f)
    g.x((g.dim(), n) if f == "trace" else (g.of(1, 5), n))
    if f == "trace":
        return lambda x, k=g.of(-2, 2): mx.trace(x, k)
    g.x((1, n) if f == "vecdot" else (g.of(1, 5), n))
    return getattr(mx, f)


@row("gather_mm")
def _(g):
    m, n, k, places = g.pick(1, 1, 3, 17), g.pick(1, 5, 16, 33), g.pick(1, 8, 17, 64), g.of(1, 9)
    p, q = g.of(1, 5), g.of(1, 5)
    left, ordered = g.chance(50), g.chance(40)
    g.say(left=left, ordered=ordered)
    lead = (places,) if ordered or g.chance(60) else (2, places)
    g.x((p if left else places, m, k)), g.x((q, k, n) if g.chance(50) else (q, n, k)), g.index(lead, q, mx.uint32, ordered=ordered)
    turn = g.operands[1].content.shape[-2:] == (n, k) and (n, k) != (k, n) and not g.axes[1]
    if left:
        g.index(lead, p, mx.uint32)
    if not left and len(lead) == 2:
        raise Refused
    turned = (lambda b: b.swapaxes(-1, -2)) if turn else (lambda b: b)
    if left:
        return lambda a, b, j, i: mx.gather_mm(a, turned(b), i, j, sorted_indices=ordered)
    return lambda a, b, j: mx.gather_mm(a, turned(b), None, j, sorted_indices=ordered)


@row("block_masked_mm", FLOATS, vmap=False)
def _(g):
    block = g.pick(32, 64)
    m, n, k = g.pick(1, 31, 64, 100), g.pick(3, 32, 70), g.pick(16, 32, 97)
    lead = tuple(g.of(1, 2) for _ in range(g.of(0, 1)))
    blocks = [-(-d // block) for d in (m, n, k)]
    which = [g.chance(60) for _ in range(3)]
    g.say(block=block, which=which)
    g.x((*lead, m, k)), g.x((*lead, k, n))
    kind = mx.bool_ if g.chance(60) else None
    for given, mask in zip(which, ((0, 1), (0, 2), (2, 1))):
        if given:
            g.x((*lead, *(blocks[i] for i in mask)), kind)

    def product(a, b, *masks):
        masks = list(masks)
        return mx.block_masked_mm(a, b, block, *(masks.pop(0) if given else None for given in which))
    return product


@row("segmented_mm", FLOATS, vmap=False)
def _(g):
    m, n, k = g.of(1, 40), g.of(1, 40), g.of(1, 70)
    places = sorted(g.of(0, k) for _ in range(g.of(2, 6)))
    segments = list(zip(places, places[1:])) if g.chance(50) else [sorted((g.of(0, k), g.of(0, k))) for _ in range(g.of(1, 5))]
    g.say(segments=segments)
    g.x((m, k)), g.x((k, n)), g.exact(mx.array(segments, dtype=mx.uint32))
    return mx.segmented_mm


@row("hadamard", FLOATS, tolerance=4)
def _(g):
    n = g.pick(1, 12, 20, 28) * 2 ** g.of(0, 7)
    g.x((*(g.of(1, 4) for _ in range(g.of(0, 2))), n))
    return lambda x, s=g.pick(None, 1.0, 0.25): mx.hadamard_transform(x, s)


# ---- convolutions ----------------------------------------------------------------------------------------------------

def convolution(g, transposed):
    axes, groups = g.of(1, 3), g.pick(1, 1, 1, 2, 3, 4)
    inner = groups * g.pick(1, 1, 2, 3, 8, 16 // groups or 1)
    outer = groups * g.pick(1, 2, 3, 8)
    kernel = [g.of(1, (5, 4, 3)[axes - 1]) for _ in range(axes)]
    stride, dilation, input_dilation, low, high = ([g.pick(1, 1, 2, 3) for _ in range(axes)] for _ in range(5))
    low, high = [p - 1 for p in low], [p - 1 for p in high]
    if g.chance(50):
        input_dilation = [1] * axes
    sizes = [g.of(1, (40, 13, 7)[axes - 1]) for _ in range(axes)]
    if not transposed and any((n - 1) * e + 1 + a + b < (k - 1) * d + 1
                              for n, e, a, b, k, d in zip(sizes, input_dilation, low, high, kernel, dilation)):
        raise Refused
    flip = g.chance(30)
    g.say(groups=groups, stride=stride, dilation=dilation, input_dilation=input_dilation, low=low, high=high, flip=flip)
    g.x((g.of(1, 3), *sizes, inner)), g.x((outer, *kernel, inner // groups))
    if not transposed:
        return lambda x, w: mx.conv_general(x, w, stride, (low, high), dilation, input_dilation, groups, flip)
    extra = [g.of(0, s - 1) for s in stride]
    function = (mx.conv_transpose1d, mx.conv_transpose2d, mx.conv_transpose3d)[axes - 1]
    options = dict(stride=stride, padding=low, dilation=dilation, output_padding=extra)
    if axes == 1:
        options = {name: value[0] for name, value in options.items()}
    g.say(extra=extra)
    return lambda x, w: function(x, w, **options, groups=groups)


row("conv", FLOATS, tolerance=4)(lambda g: convolution(g, False))
row("conv_transpose", FLOATS, tolerance=4)(lambda g: convolution(g, True))
row("convolve", (mx.float32,), tolerance=2)(lambda g: g.x((g.of(1, 200),)) and g.x((g.of(1, 30),)) and
    (lambda a, v, m=g.pick("full", "same", "valid"): mx.convolve(a, v, m)))


# ---- Fourier ---------------------------------------------------------------------------------------------------------

@row("fft", (mx.float32, mx.complex64, mx.complex64, mx.float16, mx.int32), tolerance=8, wide=False)
def _(g):
    name = g.pick("fft", "ifft", "rfft", "irfft", "fftn", "ifftn", "rfftn", "irfftn", "fft2", "rfft2")
    shape = [g.of(2, 6) if i else g.pick(2, 3, 7, 8, 13, 16, 31, 60, 64, 97, 128, 210) for i in range(g.of(2 if name[-1] == "2" else 1, 3))]
    g.r.shuffle(shape)
    options = g.say(norm=g.pick("backward", "ortho", "forward"), name=name)
    del options["name"]
    many = name[-1] in "n2"
    if many and name[-1] == "n":
        axes = g.r.sample(range(len(shape)), g.of(1, len(shape)))
        options |= g.say(axes=axes)
        if g.chance(40):
            options |= g.say(s=[g.of(2, 20) for _ in axes])
    elif not many:
        options |= g.say(axis=g.axis(shape))
        if g.chance(40):
            options |= g.say(n=g.of(2, 70))
    g.x(shape, mx.float32 if name[0] == "r" and g.dtype == mx.complex64 else None)
    return lambda x: getattr(mx.fft, name)(x, **options)


@row("stft", (mx.float32,), tolerance=8)
def _(g):
    n = g.pick(8, 16, 20, 64)
    g.x((g.of(n, 300),))
    hop = g.of(1, n // 2)
    return g.pick(lambda x: mx.fft.stft(x, n, hop), lambda x: mx.fft.stft(x, n, hop, center=False))


row("fftshift", ALL, exact=True)(lambda g: g.x(g.shape(1, 3)) and g.pick(mx.fft.fftshift, mx.fft.ifftshift))


# ---- the fast ones ---------------------------------------------------------------------------------------------------

@row("rms_norm", tolerance=4)
def _(g):
    shape = g.shape(1, 4, empty=0)
    g.x(shape)
    if g.chance(30):
        return lambda x: mx.fast.rms_norm(x, None, 1e-2)
    g.x(shape[-1:])
    return lambda x, w: mx.fast.rms_norm(x, w, 1e-2)


@row("layer_norm", tolerance=8)
def _(g):
    shape = g.shape(1, 4, empty=0)
    if shape[-1] < 3:
        raise Refused
    g.x(shape)
    w, b = g.chance(70), g.chance(60)
    [g.x(shape[-1:]) for given in (w, b) if given]
    return lambda x, *p: mx.fast.layer_norm(x, p[0] if w else None, p[-1] if b else None, 1e-2)


@row("rope", tolerance=4)
def _(g):
    width = g.pick(2, 4, 8, 16, 64, 80)
    batch = g.of(1, 3)
    shape = (batch, *[g.of(1, 5) for _ in range(g.of(0, 2))], g.pick(1, 1, 3, 9, 33), width)
    dims = width if g.chance(60) else g.of(1, width // 2) * 2
    options = g.say(traditional=g.chance(50), scale=g.pick(1.0, 0.5, -1.0), dims=dims)
    g.x(shape)
    by_array, freqs = g.chance(50), g.chance(40)
    if by_array:
        g.index((batch,) if g.chance(50) else (), 40, g.pick(mx.int32, mx.int64, mx.uint32), negative=False)
    if freqs:
        g.x((dims // 2,), mx.float32, kind="positive", constant=True)
    base = None if freqs else g.pick(10000.0, 500.0)
    offset = g.of(0, 50)

    def rotate(x, *more):
        return mx.fast.rope(x, base=base, offset=more[0] if by_array else offset, freqs=more[-1] if freqs else None, **options)
    return rotate


@row("attention", tolerance=6)
def _(g):
    batch, heads, groups = g.of(1, 3), g.of(1, 3), g.pick(1, 1, 2, 4)
    queries, keys = g.pick(1, 1, 2, 5, 8, 9, 17, 33, 65, 130), g.pick(1, 3, 8, 16, 33, 70, 130, 513, 1100)
    width = g.pick(8, 24, 64, 80, 96, 128, 256)
    value = width if g.chance(85) else g.pick(16, 64, 128)
    causal = g.chance(25) and queries <= keys
    g.x((batch, heads * groups, queries, width), kind="small" if g.chance(50) else None)
    g.x((batch, heads, keys, width)), g.x((batch, heads, keys, value))
    masked, sinks = not causal and g.chance(60), g.chance(25)
    kind = g.pick(mx.bool_, g.dtype)
    g.say(causal=causal, masked=masked and kind, sinks=sinks)
    if masked:
        g.x(g.broadcastable((batch, heads * groups, queries, keys)), kind)
    if sinks:
        g.x((heads * groups,))
    scale = 1 / width

    def attend(q, k, v, *more):
        mask = "causal" if causal else more[0] if masked else None
        if masked and mask.dtype == mx.bool_:
            mask = mask | (mx.arange(keys) == 0)                  # a query that sees nothing is undefined
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=more[-1] if sinks else None)
    return attend


@row("cross_entropy", tolerance=4)
def _(g):
    shape, classes = g.shape(0, 2, empty=0), g.pick(1, 2, 33, 1031)
    shape = tuple(min(n, 20) for n in shape)
    g.x((*shape, classes)), g.index(shape, classes, g.pick(mx.int32, mx.uint32, mx.int64), negative=False)
    return mx.fast.cross_entropy


@row("gated_delta_update", (mx.float32,), tolerance=16, kind="small", vmap=False)
def _(g):
    batch, t, heads, more, dk, dv = g.of(1, 2), g.pick(1, 2, 7, 17, 65), g.of(1, 2), g.of(1, 2), g.pick(32, 64), g.pick(8, 32, 48)
    for shape in ((heads, dk), (heads, dk), (heads * more, dv), (heads * more,), (heads * more,)):
        g.x((batch, t, *shape))
    return lambda q, k, v, a, b: mx.fast.gated_delta_update(q, k, v, mx.sigmoid(a), mx.sigmoid(b))


# ---- quantized -------------------------------------------------------------------------------------------------------

MODES = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
MODES += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)] * 2


def weights(g, lead, rows, columns, mode, bits, group):
    """A quantized matrix's parts as operands."""
    w = made(reals(g.rng, (*lead, rows, columns), "small"), g.dtype)
    with mx.stream(mx.cpu):
        parts = mx.quantize(w, group_size=group, bits=bits, mode=mode)
        mx.eval(parts)
    for part in parts:
        g.exact(part)


def of_mode(g):
    mode, bits, group = g.pick(*MODES)
    return g.say(mode=mode, bits=bits, group_size=group), group


def biases(parts):
    return parts[:2] + (parts[2] if len(parts) > 2 else None,)


@row("quantized_matmul", tolerance=4, grad=False)
def _(g):
    options, group = of_mode(g)
    columns, rows = group * g.pick(1, 2, 3, 4, 9, 16), g.pick(8, 32, 40, 64, 100, 264)
    transpose = g.chance(60)
    if not transpose:
        rows, columns = g.pick(8, 32, 96), group * g.of(1, 3)
    lead = tuple(g.of(1, 3) for _ in range(g.of(0, 2)))
    batch = lead if lead and g.chance(30) else ()
    m = g.pick(1, 1, 2, 3, 7, 9, 17, 40, 70)
    g.x((*lead, m, columns if transpose else rows) if lead or g.chance(80) else (columns if transpose else rows,))
    g.say(transpose=transpose)
    weights(g, batch, rows, columns, *(options[k] for k in ("mode", "bits", "group_size")))
    return lambda x, *parts: mx.quantized_matmul(x, *biases(parts), transpose=transpose, **options)


@row("dequantize", tolerance=2, own=True, grad=False)
def _(g):
    options, group = of_mode(g)
    weights(g, tuple(g.of(1, 3) for _ in range(g.of(0, 1))), g.dim(), group * g.of(1, 4), *(options[k] for k in ("mode", "bits", "group_size")))
    return lambda *parts: mx.dequantize(*parts, **options)


@row("gather_qmm", tolerance=4, grad=False)
def _(g):
    options, group = of_mode(g)
    columns, rows, experts = group * g.of(1, 3), g.pick(8, 32, 40, 64), g.of(1, 6)
    transpose, ordered, left = g.chance(60), g.chance(40), g.chance(40)
    m, places = g.pick(1, 1, 1, 3, 9), g.pick(1, 2, 5, 8, 17, 40)
    g.say(transpose=transpose, ordered=ordered, left=left)
    g.x((g.of(1, 4) if left else places, m, columns if transpose else rows))
    weights(g, (experts,), rows, columns, *(options[k] for k in ("mode", "bits", "group_size")))
    g.index((places,), experts, mx.uint32, ordered=ordered)
    if left:
        g.index((places,), g.operands[0].content.shape[0] if g.axes[0] is None else 1, mx.uint32)

    def product(x, *more):
        parts, (j, *i) = more[:-1 - left], more[-1 - left:]
        return mx.gather_qmm(x, *biases(parts), lhs_indices=i[0] if left else None, rhs_indices=j, transpose=transpose,
                             sorted_indices=ordered, **options)
    return product


@row("gradient of quantized_matmul", FLOATS, tolerance=8, vmap=False)
def _(g):
    options, group = of_mode(g)
    columns, rows = group * g.of(1, 3), g.pick(32, 64, 128)
    g.x((g.pick(1, 3, 9), columns))
    weights(g, (), rows, columns, *(options[k] for k in ("mode", "bits", "group_size")))
    return lambda x, *parts: mx.grad(lambda x: mx.square(mx.quantized_matmul(x, *biases(parts), **options)).sum())(x)


# ---- random numbers --------------------------------------------------------------------------------------------------

RANDOM = {
    "bits": lambda s, t: lambda k: mx.random.randint(-(1 << 31), (1 << 31) - 1, s, mx.int32, key=k),
    "randint": lambda s, t: lambda k: mx.random.randint(-5, 90, s, t, key=k),
    "permutation": lambda s, t: lambda k: mx.random.permutation(max(1, int(np.prod(s))), key=k),
    "split": lambda s, t: lambda k: mx.random.split(k, 1 + len(s)),
    "bernoulli": lambda s, t: lambda k: mx.random.bernoulli(0.375, s, key=k),
}
for name, make in RANDOM.items():
    row(f"random {name}", (mx.int32, mx.uint32, mx.int64, mx.int16, mx.uint8), exact=True, grad=False)(
        lambda g, make=make: g.x((2,), mx.uint32, "wide") and make(g.shape(0, 3), g.dtype))
row("random uniform", FLOATS, own=True, exact=True, grad=False)(
    lambda g: g.x((2,), mx.uint32, "wide") and (lambda k, s=g.shape(0, 3), t=g.dtype: mx.random.uniform(shape=s, dtype=t, key=k)))
for name in ("normal", "gumbel", "laplace"):
    row(f"random {name}", FLOATS, own=True, grad=False, tolerance=8)(
        lambda g, f=getattr(mx.random, name): g.x((2,), mx.uint32, "wide") and (lambda k, s=g.shape(0, 3), t=g.dtype: f(s, t, key=k)))


# ---- layers ----------------------------------------------------------------------------------------------------------

ACTIVATIONS = {name: getattr(nn, name) for name in (
    "celu", "elu", "gelu", "gelu_approx", "gelu_fast_approx", "hard_shrink", "hard_tanh", "hardswish", "leaky_relu", "log_sigmoid",
    "log_softmax", "mish", "relu", "relu2", "relu6", "selu", "silu", "softmax", "softmin", "softplus", "softshrink", "softsign", "step")}


@row("activation", tolerance=8)
def _(g):
    name = g.pick(*ACTIVATIONS)
    g.say(name=name)
    g.x(g.shape(1, 4, empty=0))
    return ACTIVATIONS[name]


@row("pool", FLOATS, tolerance=2, vmap=False)
def _(g):
    axes = g.of(1, 3)
    kernel, stride = [g.of(1, 3) for _ in range(axes)], [g.of(1, 3) for _ in range(axes)]
    padding = [g.of(0, k // 2) for k in kernel]
    name = f"{g.pick('Max', 'Avg')}Pool{axes}d"
    g.say(name=name, kernel=kernel, stride=stride, padding=padding)
    g.x((g.of(1, 2), *(g.of(3, (30, 12, 6)[axes - 1]) for _ in range(axes)), g.of(1, 5)))
    options = [o if axes > 1 else o[0] for o in (kernel, stride, padding)]
    return getattr(nn, name)(*options)


@row("upsample", FLOATS, tolerance=8, vmap=False)
def _(g):
    axes = g.of(1, 2)
    mode = g.pick("nearest", "linear", "cubic")
    factors = tuple(g.pick(1.0, 1.5, 2.0, 3.0) for _ in range(axes))
    options = g.say(scale_factor=factors, mode=mode, align_corners=g.chance(40))
    g.x((g.of(1, 2), *(g.of(2, 8) for _ in range(axes)), g.of(1, 4)))
    return nn.Upsample(**options)


@row("layers' norms", FLOATS, tolerance=16, vmap=False)
def _(g):
    channels = g.pick(4, 8, 12)
    g.x((g.of(2, 3), g.of(2, 6), g.of(2, 6), channels), views=ONE_TO_ONE)
    layers = (lambda: nn.GroupNorm(g.pick(1, 2, 4), channels, pytorch_compatible=g.chance(50)), lambda: nn.InstanceNorm(channels, affine=True),
              lambda: nn.BatchNorm(channels, affine=g.chance(50)))
    layer = g.pick(*layers)()
    return lambda x: layer(x)


LOSSES = {  # of two arrays of one shape
    "mse": nn.losses.mse_loss, "l1": nn.losses.l1_loss, "smooth_l1": nn.losses.smooth_l1_loss, "huber": nn.losses.huber_loss,
    "log_cosh": nn.losses.log_cosh_loss, "hinge": nn.losses.hinge_loss, "kl_div": nn.losses.kl_div_loss,
    "cosine": lambda a, b, **o: nn.losses.cosine_similarity_loss(a, b, axis=-1, **o),
    "gaussian_nll": lambda a, b, **o: nn.losses.gaussian_nll_loss(a, b, mx.abs(a) + 1, **o),
    "binary_cross_entropy": lambda a, b, **o: nn.losses.binary_cross_entropy(a, mx.sigmoid(b), **o),
    "triplet": lambda a, b, **o: nn.losses.triplet_loss(a, b, a + b + 1, **o),
    "cross_entropy": lambda a, b, **o: nn.losses.cross_entropy(a, mx.softmax(b, axis=-1), label_smoothing=0.25, **o),
}


@row("loss", (mx.float32,), tolerance=16)
def _(g):
    name, shape = g.pick(*LOSSES), g.shape(1, 3, empty=0)
    reduction = g.pick("none", "mean", "sum")
    g.say(name=name, reduction=reduction)
    g.x(shape), g.x(shape)
    return lambda a, b: LOSSES[name](a, b, reduction=reduction)


@row("loss of classes", FLOATS, tolerance=8)
def _(g):
    shape, classes = g.shape(0, 2, empty=0), g.pick(2, 10, 33, 1031)
    shape = tuple(min(n, 20) for n in shape)
    options = g.say(reduction=g.pick("none", "mean", "sum"), label_smoothing=g.pick(0.0, 0.0, 0.25))
    g.x((*shape, classes)), g.index(shape, classes, g.pick(mx.int32, mx.uint32, mx.int64), negative=False)
    return lambda x, t: nn.losses.cross_entropy(x, t, **options)


def parameters(g, layer):
    """The layer with numbers of the dtype that it is called with."""
    flat = {name: reals(g.rng, p.shape, "small") for name, p in tree_flatten(layer.parameters()) if p.dtype == mx.float32}

    def call(*x):
        dtype = next(y.dtype for y in x if is_inexact(y.dtype))
        layer.update(tree_unflatten([(name, mx.array(p).astype(dtype)) for name, p in flat.items()]))
        return layer(*x)
    return call


LAYERS = {  # (shape of an operand, layer)
    "Linear": lambda g: ((g.of(1, 9), 33), nn.Linear(33, g.pick(1, 7, 64), bias=g.chance(50))),
    "Bilinear": lambda g: ((g.of(1, 5), 9), nn.Bilinear(9, 9, 5)), "PReLU": lambda g: (g.shape(1, 3, empty=0), nn.PReLU()),
    "MultiHeadAttention": lambda g: ((2, g.of(1, 9), 32), nn.MultiHeadAttention(32, g.pick(1, 4), bias=g.chance(50))),
    "TransformerEncoderLayer": lambda g: ((2, g.of(2, 9), 32), nn.TransformerEncoderLayer(32, 4, 48, norm_first=g.chance(50))),
    "GRU": lambda g: ((2, g.of(1, 5), 8), nn.GRU(8, 16)), "LSTM": lambda g: ((2, g.of(1, 5), 8), nn.LSTM(8, 16)),
    "RNN": lambda g: ((g.of(1, 5), 8), nn.RNN(8, 5)), "RoPE": lambda g: ((2, g.of(1, 9), 16), nn.RoPE(16, traditional=g.chance(50))),
    "ALiBi": lambda g: ((2, 4, g.of(1, 9), 9), nn.ALiBi()), "LayerNorm": lambda g: ((3, 33), nn.LayerNorm(33)),
    "Conv2d": lambda g: ((2, 7, 8, 4), nn.Conv2d(4, 6, 3, padding=1, groups=g.pick(1, 2))), "Dropout": lambda g: ((3, 4), nn.Dropout(0.0)),
    "ConvTranspose2d": lambda g: ((2, 5, 4, 4), nn.ConvTranspose2d(4, 6, 3, stride=2)), "GLU": lambda g: ((3, 8), nn.GLU(g.pick(0, -1) or -1)),
}


@row("layer", FLOATS, tolerance=32, vmap=False)
def _(g):
    name = g.pick(*LAYERS)
    shape, layer = LAYERS[name](g)
    g.say(name=name)
    for _ in range({"Bilinear": 2, "ALiBi": 1, "TransformerEncoderLayer": 1}.get(name, 1)):
        g.x(shape)
    call = parameters(g, layer)
    if name == "MultiHeadAttention":
        return lambda x: call(x, x, x)
    return (lambda x: call(x, None)) if name == "TransformerEncoderLayer" else call


OPTIMIZERS = {"SGD": dict(learning_rate=0.25, momentum=0.5, nesterov=True, dampening=0), "Adam": dict(learning_rate=0.25, bias_correction=True),
              "AdamW": dict(learning_rate=0.25), "Lion": dict(learning_rate=0.25), "RMSprop": dict(learning_rate=0.25),
              "Adagrad": dict(learning_rate=0.25), "AdaDelta": dict(learning_rate=0.25), "Adamax": dict(learning_rate=0.25),
              "Adafactor": dict(learning_rate=0.25, relative_step=False, scale_parameter=False)}


@row("optimizer", (mx.float32,), tolerance=64, vmap=False, grad=False, kind="nonzero")
def _(g):
    name, shape = g.pick(*OPTIMIZERS), (g.dim(), g.dim())
    g.say(name=name)
    [g.x(shape) for _ in range(3)]

    def steps(w, *gradients):
        optimizer = getattr(optimizers, name)(**OPTIMIZERS[name])
        for gradient in gradients:
            w = optimizer.apply_gradients({"w": gradient}, {"w": w})["w"]
        return w
    return steps


# ---- NaN and infinities where sums are computed ------------------------------------------------------------------------

SPECIAL = {
    "matmul": lambda g: (((g.dim(), 33), (33, g.dim())), lambda a, b: a @ b), "softmax": lambda g: (((g.dim(), g.pick(9, 300, 5000)),),
        lambda x: mx.softmax(x, axis=-1)), "cumsum": lambda g: (((5, g.pick(9, 300, 5000)),), lambda x: mx.cumsum(x, axis=-1)),
    "rms_norm": lambda g: (((5, g.pick(9, 300, 5000)),), lambda x: mx.fast.rms_norm(x, None, 1e-2)),
    "layer_norm": lambda g: (((5, g.pick(9, 300, 5000)),), lambda x: mx.fast.layer_norm(x, None, None, 1e-2)),
    "logcumsumexp": lambda g: (((5, g.dim()),), lambda x: mx.logcumsumexp(x, axis=-1)),
    "conv": lambda g: (((1, 30, 3), (4, 3, 3)), mx.conv1d), "prod": lambda g: (((5, 60),), lambda x: mx.prod(x, axis=-1)),
    "mean": lambda g: (((5, 60),), lambda x: mx.mean(x, axis=0)), "var": lambda g: (((5, 60),), lambda x: mx.var(x, axis=0)),
    "median": lambda g: (((5, 60),), lambda x: mx.median(x, axis=1)), "logsumexp": lambda g: (((5, 600),), lambda x: mx.logsumexp(x, axis=1)),
    "argsort": lambda g: (((5, 6),), lambda x: mx.sort(mx.argsort(x, axis=1))),
    "topk": lambda g: (((5, 600),), lambda x: mx.sort(mx.topk(x, 60))), "scatter": lambda g: (((9, 5), (9, 5)), lambda x, y: x.at[::2].add(y[::2])),
    "rope": lambda g: (((1, 2, 5, 64),), lambda x: mx.fast.rope(x, 64, traditional=False, base=1e4, scale=1.0, offset=3)),
    "cross_entropy": lambda g: (((9, 300),), lambda x: mx.fast.cross_entropy(x, mx.arange(9))),
    "norm": lambda g: (((9, 300),), lambda x: mx.linalg.norm(x, axis=1)), "clip": lambda g: (((9, 300),), lambda x: mx.clip(x, -1, 1)),
    "power": lambda g: (((9, 1), (9,)), mx.power), "remainder": lambda g: (((9, 1), (9,)), lambda a, b: mx.isnan(mx.remainder(a, b))),
    "logaddexp": lambda g: (((9, 1), (9,)), mx.logaddexp), "arctan2": lambda g: (((9, 1), (9,)), mx.arctan2),
    "divide": lambda g: (((9, 1), (9,)), mx.divide), "sigmoid": lambda g: (((9, 9),), lambda x: mx.sigmoid(x) * x),
    "gelu": lambda g: (((9, 9),), nn.gelu), "softplus": lambda g: (((9, 9),), nn.softplus), "tanh": lambda g: (((9, 9),), mx.tanh),
}


@row("special numbers", FLOATS, tolerance=8, kind="special", grad=False)
def _(g):
    name = g.pick(*SPECIAL)
    g.say(name=name)
    shapes, function = SPECIAL[name](g)
    [g.x(shape) for shape in shapes]
    return function
