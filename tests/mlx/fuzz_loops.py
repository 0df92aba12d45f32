"""Random loops, as of decoding or of training: the same steps over new numbers, with state that is updated in place, on mx.gpu,
which is mlxvk, and on mx.cpu, MLX's own.

A loop is a few parts, one row of a table each: what state it begins with, and a step from state, new numbers and a place to results
and the next state. What a step records is the same each time, or nearly, so that windows and plans of earlier steps are used
again; results are evaluated now, later, or by another thread; older states are held now and then, so that they may not be
written to. Errors do not add up: what is inexact is computed of new numbers, and kept as it is.

    build/mlx/bin/python tests/mlx/fuzz_loops.py [--seconds 60] [--seed N] [--count N] [--parts cache,moe] [--verbose]

Ends with "N passed, N failed".
"""
import argparse
import faulthandler
import os
import random
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

if __name__ == "__main__":
    import mlxvk_mlx  # noqa: F401  (before mlx.core)

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import numpy as np  # noqa: E402

from support import FLOATS, HALVES, flatten, is_inexact, name_of, widened  # noqa: E402

UNIT = {mx.float32: 2.0 ** -16, mx.float16: 2.0 ** -7, mx.bfloat16: 2.0 ** -4}
PARTS = {}


def part(name):
    """Adds a part: a function of the sizes that it may choose, which gives (state, step)."""
    def add(make):
        PARTS[name] = make
        return make
    return add


class Sizes:
    """What a part is made of, the same on both devices."""

    def __init__(self, seed, dtype):
        self.r, self.rng, self.dtype = random.Random(seed), np.random.default_rng(seed), dtype
        self.batch = self.r.choice((1, 1, 2))
        self.tokens = self.r.choice((1, 1, 1, 2, 5))

    def pick(self, *items):
        return self.r.choice(items)

    def chance(self, percent):
        return self.r.random() * 100 < percent

    def data(self, shape, dtype=None, scale=64):
        return exact(self.rng, shape, dtype or self.dtype, scale)


def exact(rng, shape, dtype, scale=64):
    """Every number is one of float16 and of bfloat16, too."""
    return mx.array((rng.integers(-128, 128, shape) / scale).astype(np.float32)).astype(dtype)


# ---- parts -----------------------------------------------------------------------------------------------------------

def projected(s, width, out):
    """x @ w as some kind of layer; (parameters, function of x and these)."""
    kind = s.pick("plain", "turned", "bias", "quantized", "quantized", "quantized")
    if kind == "quantized" and width % 32 == 0:
        bits, mode = s.pick((4, "affine"), (8, "affine"), (4, "mxfp4"), (3, "affine"))
        w = s.data((out, width), mx.float32, 1024)
        parts = mx.quantize(w.astype(s.dtype), group_size=32, bits=bits, mode=mode, stream=mx.cpu)
        options = dict(group_size=32, bits=bits, mode=mode)
        return list(parts), lambda x, w, sc, b=None: mx.quantized_matmul(x, w, sc, b, transpose=True, **options)
    if kind == "turned":
        return [s.data((out, width), scale=1024)], lambda x, w: x @ w.T
    if kind == "bias":
        return [s.data((width, out), scale=1024), s.data((out,))], lambda x, w, b: mx.addmm(b, x, w)
    return [s.data((width, out), scale=1024)], lambda x, w: x @ w


@part("cache by slices")
def _(s):
    heads, more, width, room = s.pick(1, 2), s.pick(1, 2), s.pick(8, 64, 128), s.pick(16, 40)
    zeros = [mx.zeros((s.batch, heads, room, width), s.dtype) for _ in range(2)]
    weight = s.data((width,), scale=128)
    normed, ropes, traditional, whole = s.chance(50), s.chance(70), s.chance(20), s.chance(30)

    def step(state, new, i):
        k, v = state
        n = s.tokens
        at = i * n % (room - n)
        q, x, y = (new(s.batch, n, h * width).reshape(s.batch, n, h, width) for h in (heads * more, heads, heads))
        if normed:
            q, x = (mx.fast.rms_norm(t, weight, 1e-2) for t in (q, x))
        q, x, y = (t.transpose(0, 2, 1, 3) for t in (q, x, y))
        if ropes:
            q, x = (mx.fast.rope(t, width, traditional=traditional, base=1e4, scale=1.0, offset=at) for t in (q, x))
        k[..., at:at + n, :] = x
        v[..., at:at + n, :] = y
        end = room if whole else at + n
        out = mx.fast.scaled_dot_product_attention(q, k[..., :end, :], v[..., :end, :], scale=1 / width,
                                                   mask="causal" if n > 1 and not whole else None)
        return out.transpose(0, 2, 1, 3).reshape(s.batch, n, -1), [k, v]
    return zeros, step


@part("cache that grows")
def _(s):
    heads, width = s.pick(1, 2, 3), s.pick(8, 64)
    start = [s.data((s.batch, heads, 3, width)) for _ in range(2)]
    keep = s.pick(100, 6)

    def step(state, new, i):
        k, v = (mx.concatenate([old, new(s.batch, heads, s.tokens, width)], axis=2)[:, :, -keep:] for old in state)
        q = new(s.batch, heads * 2, s.tokens, width)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=1 / width), [k, v]
    return start, step


@part("cache at arrays")
def _(s):
    heads, width, room = s.pick(1, 2), s.pick(8, 64), 24
    zeros = [mx.zeros((s.batch, heads, room, width), s.dtype), mx.array(0)]
    compiled = s.chance(60)

    def inner(k, at, x, q):
        x = mx.fast.rope(x, width, traditional=False, base=1e4, scale=1.0, offset=at)
        k = mx.slice_update(k, x, at.reshape(1), (2,))
        mask = mx.arange(room) < at + s.tokens
        return mx.fast.scaled_dot_product_attention(q, k, k, scale=1 / width, mask=mask.reshape(1, 1, 1, room)), k, \
            (at + s.tokens) % (room - s.tokens)
    call = mx.compile(inner) if compiled else inner

    def step(state, new, i):
        x, q = new(s.batch, heads, s.tokens, width), new(s.batch, heads * 2, s.tokens, width)
        out, *state = call(*state, x, q)
        return out, state
    return zeros, step


@part("quantized cache")
def _(s):
    heads, width, room = s.pick(1, 2), s.pick(64, 128), 16
    k = mx.quantize(s.data((s.batch, heads, room, width)), group_size=32, bits=8, stream=mx.cpu)

    def step(state, new, i):
        at = i * s.tokens % (room - s.tokens)
        fresh = new(s.batch, heads, s.tokens, width)
        for old, x in zip(state, mx.quantize(fresh, group_size=32, bits=8)):
            old[..., at:at + s.tokens, :] = x
        q = new(s.batch, heads, s.tokens, width)
        scores = mx.quantized_matmul(q, *state, transpose=True, group_size=32, bits=8) / width
        return mx.quantized_matmul(mx.softmax(scores, axis=-1, precise=True), *state, transpose=False, group_size=32, bits=8), state
    return list(k), step


@part("layers")
def _(s):
    width, hidden = s.pick(32, 64, 96), s.pick(64, 128)
    up, gate, down = projected(s, width, hidden), projected(s, width, hidden), projected(s, hidden, width)
    weight, residual = s.data((width,), scale=128), s.chance(70)

    def step(state, new, i):
        x = new(s.batch, s.tokens, width)
        h = mx.fast.rms_norm(x, weight, 1e-2)
        y = down[1](nn.silu(gate[1](h, *gate[0])) * up[1](h, *up[0]), *down[0])
        h = x + y if residual else y
        return [h, mx.fast.layer_norm(h, weight, None, 1e-2)], state
    return [], step


@part("mixture of experts")
def _(s):
    width, hidden, experts, k = 32, s.pick(32, 64), s.pick(3, 8), s.pick(1, 2)
    coded = s.chance(60)
    w = s.data((experts, hidden, width), scale=1024)
    parts = mx.quantize(w, group_size=32, bits=4, stream=mx.cpu) if coded else [w]
    ordered = s.chance(50)

    def step(state, new, i):
        x = new(s.batch * s.tokens, width)
        scores = (mx.arange(x.shape[0])[:, None] * 3 + mx.arange(experts) * 5 + i) % experts         # distinct, exact
        places = mx.argpartition(-scores, k - 1, axis=-1)[..., :k]
        y = mx.expand_dims(x, (-2, -3))
        if ordered:
            order = mx.argsort(places.flatten() * 64 + mx.arange(places.size))
            y, places_of = x[order // k][:, None], places.flatten()[order]
        else:
            places_of = places
        if coded:
            y = mx.gather_qmm(y, *parts, rhs_indices=places_of, transpose=True, group_size=32, bits=4, sorted_indices=ordered)
        else:
            y = mx.gather_mm(y, parts[0].swapaxes(-1, -2), rhs_indices=places_of, sorted_indices=ordered)
        if ordered:
            y = mx.unflatten(y[mx.argsort(order)], 0, places.shape)
        return y.squeeze(-2).sum(axis=-2), state
    return [], step


@part("convolution")
def _(s):
    channels, kernel = s.pick(4, 16), s.pick(2, 4)
    depthwise = s.chance(60)
    w = s.data((channels, kernel, 1 if depthwise else channels), scale=128)

    def step(state, new, i):
        x = mx.concatenate([state[0], new(s.batch, s.tokens, channels)], axis=1)
        return nn.silu(mx.conv1d(x, w, groups=channels if depthwise else 1)), [x[:, 1 - kernel:]]
    return [mx.zeros((s.batch, kernel - 1, channels), s.dtype)], step


@part("random keys")
def _(s):
    def step(state, new, i):
        key, use = mx.random.split(state[0])
        return [mx.random.randint(0, 1000, (7,), key=use), mx.random.bernoulli(0.5, (3, 5), key=use)], [key]
    return [mx.random.key(s.pick(1, 2, 3))], step


@part("sampling")
def _(s):
    classes, top, temperature = s.pick(50, 1000), s.pick(1, 5, 20), s.pick(1.0, 0.5)
    kind = s.pick("greedy", "top k", "top p", "min p")

    def step(state, new, i):
        order = mx.random.permutation(classes, key=mx.random.key(i))
        logits = (order[None] - classes // 2).astype(mx.float32) / 8                # distinct
        if kind == "greedy":
            return mx.argmax(logits, axis=-1), state
        logits = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if kind == "top k":
            rest = mx.argpartition(-logits, top - 1, axis=-1)[..., top:]
            logits = mx.put_along_axis(logits, rest, mx.array(-np.inf, logits.dtype), axis=-1)
        elif kind == "top p":
            by = mx.argsort(logits, axis=-1)
            total = mx.cumsum(mx.exp(mx.take_along_axis(logits, by, axis=-1)), axis=-1)
            back = mx.put_along_axis(mx.zeros_like(by), by, mx.arange(classes, dtype=by.dtype)[None], axis=-1)
            logits = mx.where(mx.take_along_axis(total, back, axis=-1) > 0.2, logits, -np.inf)
        else:
            logits = mx.where(logits > logits.max(axis=-1, keepdims=True) - 1.9, logits, -np.inf)
        return [mx.isinf(logits).sum(), mx.random.categorical(logits / temperature, key=mx.random.key(1)) * 0 + 1], state
    return [], step


@part("rows written")
def _(s):
    """Caches of all dtypes and widths, also with several axes and through views."""
    dtypes = [s.pick(mx.uint8, mx.int16, mx.float16, mx.bfloat16, mx.float32, mx.int64, mx.bool_) for _ in range(s.pick(1, 2, 3))]
    widths, room, axis, heads = [s.pick(1, 2, 3, 4, 7, 8, 16, 33) for _ in dtypes], s.pick(9, 16, 30), s.pick(0, 1, 2), s.pick(1, 2)
    zeros = [mx.zeros([room if a == axis else heads if a < 2 else w for a in range(3)], t) for t, w in zip(dtypes, widths)]
    add, wide = s.chance(30), s.pick(1, 1, 2, 3)

    def step(state, new, i):
        at, out = i % (room - wide + 1), []
        index = (slice(None),) * axis + (slice(at, at + wide),)
        for k, old in enumerate(state):
            x = mx.round(new(*old[index].shape).astype(mx.float32)).astype(mx.int32).astype(old.dtype)
            if add and old.dtype in (mx.float32, mx.int16):
                state[k] = mx.where(mx.abs(y := old.at[index].add(x)) > 50, 1, y)
            else:
                old[index] = x
            out += [old[index], old.sum(axis=axis)] if k else [mx.flip(old, axis) if old.dtype != mx.bool_ else ~old]
        return out, state
    return zeros, step


@part("counters")
def _(s):
    n = s.pick(5, 33)
    dtype = s.pick(mx.int32, mx.float32, mx.uint32)

    def step(state, new, i):
        c, m = state
        c[i % n] = c[i % n] + 1
        c = c.at[mx.array([i % n, 0, 0])].add(2)
        m[::2] = m[::2] * 2 - m[::-1][::2]
        m = mx.where(mx.abs(m) > 100, 1, m)
        return [c + 0, (c[::-1] * 1)[:2], m.sum()], [c, m]
    return [mx.zeros((n,), dtype), mx.arange(n).astype(mx.int32)], step


@part("descent")
def _(s):
    rows, columns = s.pick(3, 16), s.pick(4, 33)

    def step(state, new, i):
        """Powers of two, so that all is exact for some steps."""
        w, m = state
        x = mx.round(new(2, rows).astype(mx.float32))
        g = mx.grad(lambda w: (mx.round(x) @ w * pattern).sum())(w)
        m = m * 0.5 + g
        w = w - 0.25 * m
        return [w[0], m.sum(axis=0)], [w, m]
    pattern = mx.array((np.arange(2 * columns) % 3 - 1).reshape(2, columns).astype(np.float32))
    return [mx.zeros((rows, columns)), mx.zeros((rows, columns))], step


@part("recurrent")
def _(s):
    layer, hidden = s.pick(nn.GRU, nn.LSTM, nn.RNN), s.pick(8, 32)
    cell = layer(16, hidden)
    cell.update({k: exact(s.rng, v.shape, mx.float32, 512) for k, v in cell.parameters().items()})

    def step(state, new, i):
        out = cell(new(s.batch, 3, 16).astype(mx.float32))
        return list(out) if isinstance(out, tuple) else out, state
    return [], step


@part("delta rule")
def _(s):
    heads, dk, dv = 2, 32, s.pick(8, 32)

    def step(state, new, i):
        q, k = (new(1, s.tokens, heads, dk).astype(mx.float32) / 16 for _ in range(2))
        v, b = new(1, s.tokens, heads, dv).astype(mx.float32), new(1, s.tokens, heads).astype(mx.float32)
        return list(mx.fast.gated_delta_update(q, k, v, mx.sigmoid(b), mx.sigmoid(-b))), state
    return [], step


# ---- running ---------------------------------------------------------------------------------------------------------

class Loop:
    def __init__(self, seed, names):
        r = random.Random(seed)
        self.seed, self.dtype = seed, r.choice(FLOATS)
        self.names = [r.choice(names) for _ in range(r.randint(1, 5))]
        self.copies, self.steps = r.choice((1, 1, 1, 4)), r.choice((5, 12, 24))
        self.stays = r.choice((0, 60, 85))
        self.held, self.late = r.choice((0, 0, 20, 50)), r.choice((0, 0, 30, 100))
        self.linked = r.random() < 0.4

    def __str__(self):
        return f"{name_of(self.dtype)} {self.names} x {self.copies}, {self.steps} steps, held {self.held}, late {self.late}, " \
               f"linked {self.linked}, stays {self.stays}"

    def run(self, device, dtype):
        """What each step gave, evaluated. dtype: of the data, which are numbers of self.dtype."""
        r, rng, results, held = random.Random(self.seed + 1), np.random.default_rng(self.seed), [], []
        with mx.stream(device):
            made = [PARTS[name](Sizes(self.seed * 100 + i, dtype)) for i, name in enumerate(self.names * self.copies)]
            states, steps = [list(state) for state, _ in made], [step for _, step in made]
            i = 0
            for _ in range(self.steps):
                i += 0 if r.random() * 100 < self.stays else r.choice((1, 1, 1, 2, 7))          # another place, or the same
                def new(*shape):
                    x = exact(rng, shape, dtype)
                    return mx.concatenate([x, x], axis=0)[:shape[0]] if self.linked else x
                outputs = []
                for p, step in enumerate(steps):
                    if r.random() * 100 < self.held:
                        held.append((i, [mx.array(x) if r.random() < 0.5 or not x.ndim else x[..., :] for x in states[p]]))
                    out, states[p] = step(states[p], new, i)
                    outputs += flatten(out)
                if r.random() * 100 >= self.late:
                    r.choice((mx.eval, mx.async_eval, mx.async_eval))(outputs, *states)
                results.append(outputs)
            mx.eval(results, states, [state for _, state in held])
        return flatten(results) + flatten(states) + flatten([state for _, state in held])


def difference(loop, got, want, name):
    if got.shape != want.shape:
        return f"{name}: {got.shape}, expected {want.shape}"
    a, b = np.atleast_1d(np.array(widened(got))), np.atleast_1d(np.array(widened(want)))
    if is_inexact(got.dtype):
        unit = max(UNIT[got.dtype], UNIT[loop.dtype]) * (128 if "quantized cache" in loop.names else 1)   # another code here and there
        with np.errstate(all="ignore"):
            same = (np.abs(a - b) <= unit * (np.abs(b) + max(1.0, float(np.abs(b).max(initial=0))))) | (a == b)
    elif "quantized cache" in loop.names and got.dtype == mx.uint32:
        return None                                           # codes: rounding of ties
    else:
        same = a == b
    if same.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{name}: {int((~same).sum())} of {same.size} differ, first {list(at)}: got {a[at]}, expected {b[at]} ({name_of(got.dtype)} {got.shape})"


def failure(loop):
    try:
        want = loop.run(mx.cpu, mx.float32 if loop.dtype in HALVES else loop.dtype)
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        return f"MLX's CPU: {type(error).__name__}: {error}"
    try:
        got = loop.run(mx.gpu, loop.dtype)
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    for i, (g, w) in enumerate(zip(got, want)):
        problem = difference(loop, g, w, f"result {i} of {len(want)}")
        if problem:
            return problem
    return None


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--parts", default="", help="only parts whose names have one of these in them")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    names = [name for name in PARTS if any(piece in name for piece in options.parts.split(","))]
    start, seed, passed, failed = time.monotonic(), options.seed, 0, 0
    while seed - options.seed < options.count if options.count else time.monotonic() - start < options.seconds:
        loop = Loop(seed, names)
        if options.verbose:
            print(seed, loop, flush=True)
        problem = failure(loop)
        if problem:
            print(f"FAIL --seed {seed}: {loop}\n    {problem}", flush=True)
        passed, failed, seed = passed + (not problem), failed + bool(problem), seed + 1
    print(f"{passed} passed, {failed} failed", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
