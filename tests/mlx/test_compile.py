"""mx.compile: on the gpu, compiled, as on the cpu, not compiled (whose compiler is a C++ compiler at run time)."""
import math

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest

from support import *


def check_compiled(function, *x, tolerance=2.0, scale=1.0, calls=2, what="", **options):
    """Compiled on the gpu twice (traced, then from the cache), against the function itself on the cpu and on the gpu."""
    compiled = mx.compile(function, **options)
    want = on(mx.cpu, function, *map(widened, x))
    for _ in range(calls):
        got = on(mx.gpu, compiled, *x)
        for g, w, p in zip(got, want, on(mx.gpu, function, *x)):
            assert g.dtype == p.dtype and g.shape == p.shape, what
            assert_close(g, w if w.dtype == g.dtype else w.astype(g.dtype, stream=mx.cpu), tolerance, scale, what)


def operands(name, dtype, *shapes, kind="any"):
    rng = seeded("compile", name, name_of(dtype))
    return [values(rng, dtype, shape, kind) for shape in shapes]


FUNCTIONS = {
    "chain": (lambda x: mx.exp(-mx.abs(x)) * 2 + 1, [(3, 5)], FLOATS),
    "swiglu": (lambda x, y: nn.silu(x) * y, [(3, 40), (3, 40)], FLOATS),
    "gelu": (nn.gelu, [(7, 9)], FLOATS),
    "gelu_approx": (nn.gelu_approx, [(7, 9)], FLOATS),
    "broadcast": (lambda x, y, z: (x + y) * z - y, [(4, 1, 5), (3, 5), ()], FLOATS + (mx.int32,)),
    "several results": (lambda x, y: [x + y, (x + y) * x, mx.sqrt(mx.abs(x + y))], [(6,), (6,)], FLOATS),
    "integers": (lambda x, y: [(x + y) * 3 - x, mx.maximum(x, y) & 7, (x << 1) ^ y], [(9,), (9,)],
        (mx.int32, mx.uint8, mx.int64, mx.uint16)),
    "comparisons": (lambda x, y: [mx.where((x > y) | (x == 0), x, y), (x <= y) & (y != 1)], [(5, 3), (3,)], FLOATS + (mx.int32, mx.bool_)),
    "casts": (lambda x: [x.astype(mx.int32).astype(mx.float32) * 0.5, (x > 0).astype(mx.uint8) + 1], [(11,)], FLOATS),
    "constants": (lambda x: x * mx.array([1.0, 2.0, 3.0]) + math.pi - mx.array(2), [(4, 3)], (mx.float32,)),
    "infinities": (lambda x: mx.where(x > 0, math.inf, -math.inf) * mx.abs(x) + mx.where(x == 5, math.nan, 0.0), [(9,)], FLOATS[:1]),
    "between products": (lambda x, w: mx.tanh(x @ w + 1) * mx.sigmoid(x @ w), [(5, 7), (7, 6)], FLOATS),
    "reductions": (lambda x: mx.exp(x - x.max(axis=-1, keepdims=True)) / mx.exp(x - x.max(axis=-1, keepdims=True)).sum(-1, keepdims=True),
        [(4, 33)], FLOATS),
    "layer norm": (lambda x: (x - x.mean(-1, keepdims=True)) * mx.rsqrt(x.var(-1, keepdims=True) + 1e-5), [(4, 33)], FLOATS),
    "transposed": (lambda x, y: mx.sin(x.T) + mx.cos(y)[::-1] * 2, [(5, 7), (7, 5)], FLOATS),
    "unused and repeated": (lambda x, y: [x, x + 1, x + 1, y * 0], [(3,), (2,)], (mx.float32,)),
    "complex": (lambda x: mx.exp(x) * 2 - x, [(7,)], (mx.complex64,)),
    "zero size": (lambda x: mx.exp(x) + 1, [(0, 4)], FLOATS),
    "scalars": (lambda x, y: mx.exp(x) * y - 1, [(), ()], FLOATS),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled(name):
    function, shapes, dtypes = FUNCTIONS[name]
    for dtype in dtypes:
        check_compiled(function, *operands(name, dtype, *shapes, kind="small"), tolerance=6, what=f"{name} {name_of(dtype)}")


def test_views_as_operands():
    def function(x, y):
        return mx.exp(x * 0.5) + y * x
    rng = seeded("compiled views")
    for n, view in enumerate(VIEWS):
        (a, cut_a), (b, cut_b) = (operand(rng, mx.float32, (4, 6), "small", views) for views in ((view,), (plain, VIEWS[n - 1])))
        got = on(mx.gpu, lambda: mx.compile(function)(cut_a(a), cut_b(b)))[0]
        assert_close(got, on(mx.cpu, lambda: function(cut_a(a), cut_b(b)))[0], what=view.__name__)


def test_many_operands_and_results():
    def function(*x):
        return [a * b + c for a, b, c in zip(x, x[1:], x[2:])]
    check_compiled(function, *operands("many", mx.float32, *[(7,)] * 40))
    check_compiled(lambda *x: sum(x), *operands("sum", mx.float32, *[(5, 3)] * 70), scale=9)


def test_long_chain():
    def function(x):
        for i in range(60):
            x = mx.sin(x) * 0.9 + 0.1 * i / 60
        return x
    check_compiled(function, *operands("long", mx.float32, (33,)), tolerance=20)


def test_shapeless():
    def function(x, y):
        return mx.tanh(x + y) * mx.mean(x, axis=-1, keepdims=True)
    compiled = mx.compile(function, shapeless=True)
    for shape in ((3, 4), (5, 9), (1, 2), (7, 33)):
        x, y = operands("shapeless", mx.float32, shape, (shape[-1],))
        assert_close(on(mx.gpu, compiled, x, y)[0], on(mx.cpu, function, x, y)[0], 2, what=shape)


def test_retraced_for_other_shapes_and_dtypes():
    traces = []

    def function(x):
        traces.append(x.shape)
        return mx.exp(x) + 1
    compiled = mx.compile(function)
    for shape, dtype in (((3,), mx.float32), ((4,), mx.float32), ((3,), mx.float16), ((3,), mx.float32), ((1, 3), mx.float32)):
        mx.eval(compiled(mx.zeros(shape, dtype)))
    assert len(traces) == 4


def test_switched_off():
    function = lambda x: mx.exp(x) * 2
    x = mx.arange(5) / 3
    mx.disable_compile()
    try:
        off = on(mx.gpu, mx.compile(function), x)[0]
    finally:
        mx.enable_compile()
    assert_close(on(mx.gpu, mx.compile(function), x)[0], off)


def test_state():
    state = {"sum": mx.zeros(3), "calls": mx.array(0)}

    def function(x):
        state["sum"] = state["sum"] + x
        state["calls"] = state["calls"] + 1
        return state["sum"] * 2
    compiled = mx.compile(function, inputs=state, outputs=state)
    for i in range(1, 4):
        assert compiled(mx.array([1.0, 2.0, 3.0])).tolist() == [2.0 * i, 4.0 * i, 6.0 * i]
    assert state["calls"].item() == 3 and state["sum"].tolist() == [3, 6, 9]


def test_random_state():
    compiled = mx.compile(lambda: mx.random.uniform(shape=(4,)) + 1, inputs=mx.random.state, outputs=mx.random.state)
    mx.random.seed(3)
    first, second = compiled(), compiled()
    mx.eval(first, second)
    assert not mx.array_equal(first, second).item()
    mx.random.seed(3)
    assert mx.array_equal(compiled(), first).item()


def test_gradients():
    def loss(w, x):
        return mx.square(mx.tanh(x @ w) - 1).mean()
    w, x = operands("gradients", mx.float32, (7, 3), (5, 7))
    check_compiled(mx.value_and_grad(loss), w, x, tolerance=5)
    check_compiled(mx.grad(mx.compile(loss)), w, x, tolerance=5)
    check_compiled(lambda w, x: mx.vmap(loss, (None, 0))(w, x[:, None]), w, x, tolerance=5)


def test_inside_each_other():
    inner = mx.compile(lambda x: mx.exp(x) + 1)
    check_compiled(lambda x: inner(x) * inner(x + 1), *operands("inside", mx.float32, (9,)), tolerance=4)


def test_training_step():
    def train(device, compiled):
        with mx.stream(device):
            mx.random.seed(2)
            model, optimizer = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)), optim.Adam(0.01)
            mx.eval(model.parameters())
            x = values(seeded("step"), mx.float32, (20, 5))
            state = [model.state, optimizer.state]

            def step(x):
                loss, gradient = nn.value_and_grad(model, lambda m, x: mx.square(m(x)[:, 0] - x.sum(1)).mean())(model, x)
                optimizer.update(model, gradient)
                return loss
            step = mx.compile(step, inputs=state, outputs=state) if compiled else step
            losses = []
            for _ in range(20):
                losses.append(step(x))
                mx.eval(state, losses[-1])
            return mx.stack(losses)
    want = train(mx.cpu, False)
    assert_close(train(mx.gpu, True), want, 20)
    assert_close(train(mx.gpu, False), want, 20)


def test_results_that_are_operands():
    compiled = mx.compile(lambda x, y: (y, x, x + y))
    x, y = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
    a, b, c = compiled(x, y)
    assert (a.tolist(), b.tolist(), c.tolist()) == ([3, 4], [1, 2], [4, 6])


def test_donated_operands_stay_correct():
    compiled = mx.compile(lambda x, y: (mx.exp(x) - y, x * y))
    x = mx.arange(1000) / 1000.0
    want = on(mx.cpu, lambda: [mx.exp(x + 1) - x, (x + 1) * x])
    for _ in range(3):
        for g, w in zip(compiled(x + 1, x), want):
            assert_close(g, w)


def test_results_that_are_one_array_are_not_overwritten():
    """What works in place on MLX's CPU takes memory that has one owner."""
    def twice(x):
        y = mx.exp(x)
        return y, mx.array(y), mx.stop_gradient(y)
    x = mx.arange(64) / 64.0
    want = on(mx.cpu, mx.exp, x)[0]
    results = list(mx.compile(twice)(x))
    mx.eval(results)
    while len(results) > 1:
        last = results.pop()
        last = mx.negative(last, stream=mx.cpu)
        mx.eval(last)
        for left in results:
            assert_close(left, want)


def test_export_and_import(tmp_path):
    path = str(tmp_path / "function.mlxfn")
    w = mx.arange(6.0).reshape(3, 2)
    mx.export_function(path, lambda x: mx.tanh(x @ w) + 1, mx.zeros((4, 3)))
    x = operands("export", mx.float32, (4, 3))[0]
    got = mx.import_function(path)(x)[0]
    assert_close(got, on(mx.cpu, lambda: mx.tanh(x @ w) + 1)[0], 4)


def test_error_while_tracing_leaves_nothing_behind():
    def function(x):
        if x.ndim == 2:
            raise ValueError("no matrices")
        return x + 1
    compiled = mx.compile(function)
    with pytest.raises(ValueError, match="no matrices"):
        compiled(mx.ones((2, 2)))
    assert compiled(mx.ones(2)).tolist() == [2, 2]
