"""Random programs: views of views, updates in place, values dropped and evaluated in any order, streams changed on the way.

Integers only, so that both devices must agree bit by bit. MLX_TEST_PROGRAMS=n runs n programs from another seed on. And some
of the calls, chains, loops and threads of fuzz_calls.py, fuzz_loops.py and fuzz_threads.py, which have no end when they are run
as programs.
"""
import os
import random
import subprocess
import sys

import mlx.core as mx
import pytest

import fuzz_calls
import fuzz_loops
from support import *

DTYPES = (mx.int32, mx.int16, mx.uint8, mx.int64, mx.uint32, mx.bool_)
COUNT = int(os.environ.get("MLX_TEST_PROGRAMS", 40))
FIRST = int(os.environ.get("MLX_TEST_FIRST", 1000)) if "MLX_TEST_PROGRAMS" in os.environ else 0


def any_slice(r, n):
    step = r.choice([1, 1, 1, 2, 3, -1, -2])
    a, b = sorted((r.randint(0, n), r.randint(0, n)))
    return slice(a, b, step) if step > 0 else slice(b - 1 if b else None, a - 1 if a else None, step)


def view(r, x):
    kind = r.randrange(7)
    if kind == 0 and x.ndim:
        return x[tuple(any_slice(r, n) for n in x.shape)]
    if kind == 1:
        return x.transpose(r.sample(range(x.ndim), x.ndim))
    if kind == 2:
        return x.reshape(-1)
    if kind == 3 and x.ndim < 5:
        return mx.expand_dims(x, r.randint(0, x.ndim))
    if kind == 4 and x.ndim and x.size < 500:
        return mx.broadcast_to(x, (r.randint(1, 3), *x.shape)) if x.ndim < 5 else x
    if kind == 5 and x.ndim:
        axis = r.randrange(x.ndim)
        return mx.split(mx.contiguous(x), [r.randint(0, x.shape[axis])], axis=axis)[r.randrange(2)]  # see test_primitives
    sizes = [d for d in range(1, x.size + 1) if x.size % d == 0]
    return x.reshape(r.choice(sizes), -1) if x.size else x


def elementwise(r, x):
    kind = r.randrange(8)
    if kind == 0:
        return x.astype(r.choice(DTYPES))
    if kind == 1:
        return x + r.randint(0, 9)
    if kind == 2:
        return x * x
    if kind == 3:
        return mx.abs(x) if x.dtype != mx.bool_ else ~x
    if kind == 4:
        return mx.where(x > 3, x, mx.ones_like(x))
    if kind == 5:
        return (x ^ (x + 1)) & 31
    if kind == 6:
        return mx.compile(lambda x: (x + 2) * x - (x > 5))(x)
    return mx.maximum(x, x.astype(mx.int32) // 3)


def reduction(r, x):
    if not x.ndim or not x.size:
        return x
    axis = r.randrange(x.ndim)
    kind = r.randrange(7)
    if kind == 0:
        return x.sum(axis=axis, keepdims=r.random() < 0.5)
    if kind == 1:
        return x.max(axis=axis)
    if kind == 2:
        x = mx.contiguous(x) if x.shape[axis] > 1 else mx.repeat(x, 2, axis=axis)  # MLX's CPU divides by a stride of 0
        return mx.cumsum(x, axis=axis, reverse=r.random() < 0.5)
    if kind == 3:
        return mx.sort(x, axis=axis)
    if kind == 4:
        return mx.argsort(x, axis=axis)
    if kind == 5:
        return mx.argmin(x, axis=axis)
    return x.any(axis=axis)


def indexed(r, x):
    if not x.ndim or not x.size:
        return x
    n = x.shape[0]
    index = mx.array([r.randrange(-n, n) for _ in range(r.randint(1, 4))])
    kind = r.randrange(5) if n > 1 else 3  # MLX's CPU gathers from transposed arrays of one row wrongly
    if kind == 0:
        return x[index]
    if kind == 1:
        return mx.take(x, index, axis=0)
    if kind == 2 and x.dtype.size <= 4 and x.dtype != mx.bool_:
        return x.at[index].add(r.randint(0, 5))
    if kind == 3:
        y = mx.array(x)
        y[tuple(any_slice(r, m) for m in x.shape[:2])] = r.randint(0, 9)
        return y
    x[r.randrange(n)] = r.randint(0, 1)  # in place: others that hold the array's old value must keep it
    return x


def product(r, x):
    """Small whole numbers, which floats multiply and add up exactly."""
    n = r.choice([k for k in (1, 2, 3, 5, 8) if k <= max(x.size, 1)])
    a = (x.astype(mx.int32) & 7).astype(r.choice(FLOATS[:2])).reshape(-1)[:x.size // n * n].reshape(-1, n)
    kind = r.randrange(4)
    if kind == 0:
        a = a[:50] @ a[:50].T
    elif kind == 1:
        a = mx.addmm(a[:1], mx.ones((min(a.shape[0], 9), min(a.shape[0], 30)), a.dtype), a[:30], alpha=2.0) if a.shape[0] else a
    elif kind == 2:
        a = mx.einsum("ij,ij->j", a[:40], a[-40:] * 2)
    else:
        a = mx.maximum(a, 3) - mx.stop_gradient(a.T[::-1].T)
    return a.astype(mx.int32)


def joined(r, x, y):
    if r.random() < 0.3:
        return mx.concatenate([x.reshape(-1), y.reshape(-1)])
    if r.random() < 0.3 and x.ndim:
        return mx.concatenate([x, x[:r.randint(0, 2)], x], axis=0)
    try:
        shape = mx.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return x.sum() + y
    if np.prod(shape) > 20000:
        return x
    return r.choice((mx.add, mx.subtract, mx.multiply, mx.minimum, mx.not_equal))(x, y)


def program(seed, device):
    """What the last few values are; the steps depend on the seed and on shapes only."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    streams = [device, device, mx.cpu] + ([mx.new_stream(mx.gpu)] if device == mx.gpu else [mx.cpu])
    with mx.stream(device):
        held = [mx.array(rng.integers(0, 9, shape)).astype(r.choice(DTYPES)) for shape in ((4, 5), (3, 1, 6), (30,), ())]
        for _ in range(40):
            with mx.stream(r.choice(streams)):
                x, y = r.choice(held), r.choice(held)
                step = r.choice((view, view, elementwise, elementwise, reduction, indexed, joined, product))
                x = step(r, x, y) if step is joined else step(r, x)
            if x.size > 20000:
                x = x.reshape(-1)[:100]
            held.append(x)
            del y
            chance = r.random()
            if chance < 0.1:
                mx.eval(x)
            elif chance < 0.3:
                mx.async_eval(x)
            if len(held) > 6:
                held.pop(r.randrange(len(held)))
            del x
        mx.eval(held)
    return held


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_program(seed):
    got, want = program(seed, mx.gpu), program(seed, mx.cpu)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.dtype == w.dtype and g.shape == w.shape
        assert mx.array_equal(g, w, stream=mx.cpu).item(), f"seed {seed}: {g}, not {w}"


# ---- of the other fuzzers --------------------------------------------------------------------------------------------

now = pytest.mark.skipif(MLX < (0, 32), reason="what older MLX has wrong is not left out there")


@now
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_calls(first):
    for seed in range(first, first + 25):
        case = fuzz_calls.drawn(seed)
        try:
            problem = case and fuzz_calls.failure(case)
        except fuzz_calls.Refused:
            continue
        assert not problem, f"seed {seed}: {case}: {problem}"


@now
@pytest.mark.parametrize("seed", range(6))
def test_chain(seed):
    chain = fuzz_calls.drawn(seed, fuzz_calls.Chain)
    problem = chain.failure()
    assert not problem, f"seed {seed}: {chain}: {problem}"


@now
@pytest.mark.parametrize("seed", range(8))
def test_loop(seed):
    loop = fuzz_loops.Loop(seed, list(fuzz_loops.PARTS))
    problem = fuzz_loops.failure(loop)
    assert not problem, f"seed {seed}: {loop}: {problem}"


@now
def test_threads():
    """In a process that is watched."""
    fuzzer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_threads.py")
    got = subprocess.run([sys.executable, "-B", fuzzer, "--seed", "1", "--count", "8"], stdout=subprocess.PIPE, text=True)
    assert (got.returncode, got.stdout) == (0, "8 passed, 0 failed\n"), got.stdout
