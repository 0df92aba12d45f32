"""What the tests of the bridge to MLX share: seeded data, views, both devices, comparing, the bridge's figures.

The same computation runs on mx.cpu, which is MLX's own code, and on mx.gpu, which is the bridge. Float16 and bfloat16
are compared with the CPU's float32 on the same values, because MLX's CPU adds and multiplies in the half type.
"""
import ctypes
import json
import os
import random
import subprocess
import sys
import zlib

import mlx.core as mx
import numpy as np

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
HALVES = (mx.float16, mx.bfloat16)
SIGNED = (mx.int8, mx.int16, mx.int32, mx.int64)
UNSIGNED = (mx.uint8, mx.uint16, mx.uint32, mx.uint64)
INTS = SIGNED + UNSIGNED
REAL = (mx.bool_,) + INTS + FLOATS
ALL = REAL + (mx.complex64,)

MLX = tuple(int(part) for part in mx.__version__.split(".")[:3])

# How far a float result may be off: this much of its size, and this much absolutely (times the case's own scale).
TOLERANCE = {mx.float32: 2e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2, mx.complex64: 3e-5}


def name_of(dtype):
    return str(dtype).split(".")[-1]


# ---- data ----------------------------------------------------------------------------------------------------------

def seeded(*names):
    """A generator of its own for each case, the same in every run."""
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def is_inexact(dtype):
    return mx.issubdtype(dtype, mx.inexact)


def limits(dtype, kind):
    low, high = {"small": (-3, 4), "nonzero": (1, 12), "positive": (1, 12), "bits": (0, 7)}.get(kind, (-100, 101))
    return (0 if mx.issubdtype(dtype, mx.unsignedinteger) else low), high


def reals(rng, shape, kind):
    x = rng.standard_normal(shape) * 2
    if kind == "unit":
        x = np.tanh(x) * 0.95
    elif kind == "positive":
        x = np.abs(x) + 0.1
    elif kind == "above one":
        x = np.abs(x) + 1.01
    elif kind == "nonzero":
        x = np.where(x < 0, x - 0.5, x + 0.5)
    elif kind == "near one":
        x = 1 + np.tanh(x) / 8
    elif kind == "small":
        x = np.tanh(x)
    elif kind == "special" and x.size:
        flat = x.reshape(-1)
        for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
            flat[rng.integers(0, flat.size)] = value
    return x


def values(rng, dtype, shape, kind="any"):
    """An array of MLX with random elements; kind narrows them to what an operation is defined for."""
    if dtype == mx.bool_:
        return mx.array(rng.integers(0, 2, shape).astype(bool))
    if not is_inexact(dtype):
        low, high = limits(dtype, kind)
        x = rng.integers(low, high, shape)
        if kind == "nonzero":
            x = np.where(x == 0, 1, x)
        return mx.array(x.astype(name_of(dtype)))
    if dtype == mx.complex64:
        parts = np.stack([reals(rng, shape, kind), reals(rng, shape, kind)], axis=-1).astype(np.float32)
        return mx.array(parts.view(np.complex64)[..., 0])
    x = mx.array(reals(rng, shape, kind).astype(np.float32))
    return x.astype(dtype, stream=mx.cpu)


# ---- views: how an operand of a shape is cut out of a larger or otherwise ordered one -------------------------------

def plain(rng, shape):
    return shape, lambda x: x


def transposed(rng, shape):
    axes = rng.permutation(len(shape)).tolist()
    return tuple(shape[axes.index(i)] for i in range(len(shape))), lambda x: mx.transpose(x, axes)


def stepped(rng, shape):
    axis, step = int(rng.integers(0, len(shape))), int(rng.integers(2, 4))
    base = tuple(n * step + 1 if i == axis else n for i, n in enumerate(shape))
    cut = tuple(slice(1, None, step) if i == axis else slice(None) for i in range(len(shape)))
    return base, lambda x: x[cut]


def backwards(rng, shape):
    cut = tuple(slice(None, None, -1) if rng.integers(0, 2) else slice(None) for _ in shape[1:])
    return shape, lambda x: x[(slice(None, None, -1),) + cut]


def shifted(rng, shape):
    skip, size = int(rng.integers(1, 6)), int(np.prod(shape))
    return (size + skip,), lambda x: x[skip:].reshape(shape)


def broadcast(rng, shape):
    base = tuple(1 if n and rng.integers(0, 2) else n for n in shape)
    return base, lambda x: mx.broadcast_to(x, shape)


def overlapping(rng, shape):
    strides = [int(rng.integers(1, 4)) for _ in shape]
    size = 2 + sum((max(n, 1) - 1) * s for n, s in zip(shape, strides))
    return (size,), lambda x: mx.as_strided(x, shape, strides, 1)


VIEWS = (plain, transposed, stepped, backwards, shifted, broadcast, overlapping)


def operand(rng, dtype, shape, kind="any", views=VIEWS):
    """(base array, function that makes the operand out of it) by one of the views."""
    shape = tuple(shape)
    view = views[rng.integers(0, len(views))]
    base, cut = (shifted if view is shifted else plain)(rng, shape) if not shape else view(rng, shape)
    return values(rng, dtype, base, kind), cut


# ---- both devices ---------------------------------------------------------------------------------------------------

def flatten(result):
    if isinstance(result, mx.array):
        return [result]
    if isinstance(result, dict):
        return [leaf for key in sorted(result) for leaf in flatten(result[key])]
    return [leaf for part in result or () for leaf in flatten(part)]


def on(device, function, *arguments):
    """The results of a function on a device, evaluated."""
    with mx.stream(device):
        results = flatten(function(*arguments))
        mx.eval(results)
    return results


def widened(x):
    return x.astype(mx.float32, stream=mx.cpu) if isinstance(x, mx.array) and x.dtype in HALVES else x


def as_numpy(x):
    return np.array(widened(x))


def assert_close(got, want, tolerance=1.0, scale=1.0, what=""):
    """tolerance multiplies TOLERANCE; scale is the size of what was added up (None: the mean size of the result)."""
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    dtype, g, w = got.dtype, as_numpy(got), as_numpy(want)
    if not is_inexact(dtype):
        equal = g == w
    else:
        finite = np.isfinite(w)
        if scale is None:
            scale = float(np.mean(np.abs(w[finite]))) if finite.any() else 1.0
        limit = TOLERANCE[dtype] * tolerance
        with np.errstate(all="ignore"):
            near = finite & (np.abs(g - w) <= limit * (np.abs(w) + scale))
            equal = near | (g == w) | (np.isnan(g) & np.isnan(w))
    if not np.all(equal):
        at = tuple(int(i) for i in np.argwhere(~equal)[0])
        raise AssertionError(f"{what}: {np.sum(~equal)} of {equal.size} differ, first at {at}: "
                             f"{g[at]!r}, not {w[at]!r} ({name_of(dtype)}, shape {got.shape})")


def assert_bits(got, want, what=""):
    assert got.dtype == want.dtype and got.shape == want.shape, f"{what}: {got.dtype} {got.shape}, not {want.dtype} {want.shape}"
    assert bytes(memoryview(as_numpy(got))) == bytes(memoryview(as_numpy(want))), f"{what}: other bits"


def check(function, *arguments, tolerance=1.0, scale=1.0, own=False, bits=False, what=""):
    """Runs a function on both devices and compares; own: the CPU computes halves in the half type too."""
    got = on(mx.gpu, function, *arguments)
    want = on(mx.cpu, function, *(arguments if own or bits else map(widened, arguments)))
    with mx.stream(mx.cpu):
        shaped = flatten(function(*arguments))
    assert len(got) == len(want)
    for g, w, s in zip(got, want, shaped):
        assert g.dtype == s.dtype and g.shape == s.shape, f"{what}: {g.dtype} {g.shape}, not {s.dtype} {s.shape}"
        w = w if w.dtype == g.dtype else w.astype(g.dtype, stream=mx.cpu)
        if bits:
            assert_bits(g, w, what)
        else:
            assert_close(g, w, tolerance, scale, what)
    return got


# ---- the bridge -----------------------------------------------------------------------------------------------------

def bridge():
    """The bridge's own functions, found among what the process has loaded."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mlxvk_mlx_stats"):
        raise RuntimeError("the bridge is not loaded: run through python -m mlxvk_mlx, or with LD_PRELOAD")
    return library


def device_info():
    return mx.device_info() if hasattr(mx, "device_info") else mx.metal.device_info()


def stats():
    text = ctypes.create_string_buffer(1 << 20)
    bridge().mlxvk_mlx_stats(text, ctypes.c_size_t(len(text)))
    return json.loads(text.value)


def reset_stats():
    bridge().mlxvk_mlx_reset_stats()


def fallbacks():
    return {name: row for name, row in stats()["primitives"].items() if row["fallback"]}


def run(code, timeout=120, **environment):
    """A program of its own, with the bridge as this one has it: preloaded or imported."""
    if "mlxvk_mlx" in sys.modules:
        code = "import mlxvk_mlx\n" + code
    path = os.pathsep.join(filter(None, (os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH"))))
    return subprocess.run([sys.executable, "-B", "-c", code], env={**os.environ, "PYTHONPATH": path, **environment}, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sample(items, count, *names):
    items = list(items)
    return random.Random(repr(names)).sample(items, min(count, len(items)))
