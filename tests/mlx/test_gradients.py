"""Gradients, vmap, jvp and the other transformations of functions: the same on both devices, to 1e-4."""
import mlx.core as mx
import mlx.nn as nn
import pytest

from support import *

# 1e-4 of a gradient's mean size.
GRADIENT = {"tolerance": 5, "scale": None}


def arrays(name, *shapes, kind="any", dtype=mx.float32):
    rng = seeded("gradients", name)
    return [values(rng, dtype, shape, kind) for shape in shapes]


def gradients(function, count):
    """The value of a sum weighted by cosines (so that no two elements matter the same), and its gradients."""
    def weighed(*x):
        return sum((mx.cos(mx.arange(y.size)).reshape(y.shape) * y.astype(mx.float32)).sum() for y in flatten(function(*x)))
    return lambda *x: mx.value_and_grad(weighed, argnums=tuple(range(count)))(*x)


def mlp(x, w1, b1, w2, b2):
    return mx.tanh(nn.gelu(x @ w1 + b1) @ w2 + b2)


def attention_block(x, wq, wk, wv, wo):
    def heads(y):
        return y.reshape(2, 7, 4, 8).transpose(0, 2, 1, 3)
    q, k, v = (heads(x @ w) for w in (wq, wk, wv))
    y = mx.softmax((q @ k.swapaxes(-1, -2)) * 8 ** -0.5 + mx.triu(mx.full((7, 7), -1e9), 1), axis=-1) @ v
    return x + y.transpose(0, 2, 1, 3).reshape(2, 7, 32) @ wo


def sdpa(mask):
    return lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.35, mask=mask)


def with_sinks(mask):
    """The last operand: sinks; a mask is one more behind them where it is asked for."""
    return lambda q, k, v, sinks, *m: mx.fast.scaled_dot_product_attention(
        q, k, v, scale=0.3, mask=m[0] if m else mask, sinks=sinks)


def of_queries(q, k, v):
    """Attention whose operands are views."""
    return mx.fast.scaled_dot_product_attention(
        q.transpose(0, 2, 1, 3)[:, ::-1], k[..., 1:].swapaxes(1, 2), v[:, :, 2:], scale=0.4)


def rope(**options):
    common = dict(dims=8, traditional=False, base=10000.0, scale=1.0, offset=3)
    return lambda x: mx.fast.rope(x, **{**common, **options})


I = mx.array([3, 0, -1, 3])
W = [(2, 7, 32)] + [(32, 32)] * 4
FUNCTIONS = {  # name: (function, shapes of the operands, kind of data)
    "mlp": (mlp, [(5, 9), (9, 33), (33,), (33, 4), (4,)], "small"),
    "attention block": (attention_block, W, "small"),
    "conv1d": (lambda x, w: mx.conv1d(x, w, stride=2, padding=1), [(2, 11, 3), (4, 3, 3)], "any"),
    "conv2d": (lambda x, w: mx.conv2d(x, w, stride=(1, 2), padding=1, dilation=(2, 1)), [(2, 7, 8, 4), (6, 3, 3, 4)], "any"),
    "conv2d in groups": (lambda x, w: mx.conv2d(x, w, groups=2), [(1, 6, 6, 4), (6, 3, 3, 2)], "any"),
    "conv_transpose2d": (lambda x, w: mx.conv_transpose2d(x, w, stride=2), [(1, 4, 5, 3), (2, 3, 3, 3)], "any"),
    "rms_norm": (lambda x, w: mx.fast.rms_norm(x, w, 1e-5), [(3, 5, 70), (70,)], "any"),
    "rms_norm without weight": (lambda x: mx.fast.rms_norm(x, None, 1e-5), [(3, 33)], "any"),
    "layer_norm": (lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5), [(3, 5, 70), (70,), (70,)], "any"),
    "layer_norm without bias": (lambda x, w: mx.fast.layer_norm(x, w, None, 1e-5), [(3, 33), (33,)], "any"),
    "layer_norm alone": (lambda x: mx.fast.layer_norm(x, None, None, 1e-5), [(3, 33)], "any"),
    "norms of many rows": (lambda x, w: [mx.fast.layer_norm(x, w, w, 1e-5), mx.fast.rms_norm(x, w, 1e-5)], [(300, 17), (17,)], "any"),
    "rope": (rope(), [(2, 3, 5, 8)], "any"), "rope traditional": (rope(traditional=True), [(2, 3, 5, 8)], "any"),
    "rope in part": (rope(dims=4, scale=0.5), [(2, 3, 5, 8)], "any"),
    "sdpa": (sdpa(None), [(1, 4, 6, 8), (1, 2, 9, 8), (1, 2, 9, 8)], "any"),
    "sdpa causal": (sdpa("causal"), [(1, 4, 9, 64), (1, 4, 9, 64), (1, 4, 9, 64)], "small"),
    "sdpa masked": (sdpa(mx.array([[0.0, -1.0, -2.0]])), [(1, 2, 4, 16), (1, 2, 3, 16), (1, 2, 3, 16)], "any"),
    "sdpa of bool mask": (sdpa(mx.arange(54).reshape(6, 9) % 4 != 1),
        [(2, 4, 6, 20), (2, 2, 9, 20), (2, 2, 9, 12)], "any"),
    "sdpa sinks": (with_sinks("causal"), [(2, 4, 7, 16), (2, 2, 11, 16), (2, 2, 11, 8), (4,)], "any"),
    "sdpa sinks and mask": (with_sinks(None), [(1, 6, 5, 33), (1, 2, 13, 33), (1, 2, 13, 70), (6,), (5, 13)], "small"),
    "sdpa of views": (of_queries, [(2, 5, 3, 16), (2, 7, 3, 17), (2, 3, 9, 8)], "any"),
    "gather": (lambda x: [x[I], x[:, I], x[I, I], mx.take(x, I, axis=1), x[1, 2:4]], [(5, 6)], "any"),
    "take_along_axis": (lambda x: mx.take_along_axis(x, mx.stop_gradient(mx.argsort(x, axis=1)), axis=1), [(5, 6)], "any"),
    "scatter add": (lambda x, y: x.at[I].add(y), [(5, 6), (4, 6)], "any"),
    "slices": (lambda x, y: [mx.slice_update(x, y, mx.array([1, 2]), (0, 1)), x[::2, ::-1], mx.slice(x, mx.array([2]), (1,), (5, 3))],
        [(5, 6), (2, 3)], "any"),
    "reductions": (lambda x: [x.sum(0), x.mean(1), mx.logsumexp(x, 1), mx.var(x, axis=0), x.max(1), mx.prod(x, axis=1)], [(5, 6)],
        "nonzero"),
    "scans": (lambda x: [mx.cumsum(x, axis=1), mx.cumprod(x, axis=0), mx.logcumsumexp(x, axis=1)], [(5, 6)], "nonzero"),
    "softmax": (lambda x: [mx.softmax(x, axis=-1), mx.softmax(x, axis=0), nn.log_softmax(x)], [(5, 33)], "any"),
    "sort": (lambda x: [mx.sort(x, axis=1), mx.topk(x, 3, axis=0).sum(0), mx.partition(x, 2).sum(-1)], [(5, 6)], "any"),
    "elements": (lambda x, y: [mx.exp(x) / y, mx.power(mx.abs(x), y), mx.arctan2(x, y), mx.logaddexp(x, y), mx.maximum(x, y),
        mx.where(x > 0, x, y),
                               mx.erf(x), mx.sigmoid(x), mx.log1p(mx.square(x)), mx.rsqrt(mx.square(y))], [(4, 5), (5,)], "nonzero"),
    "matmul": (lambda a, b, c: [a @ b, mx.addmm(c, a, b, alpha=0.5, beta=2.0), mx.einsum("bij,jk->bk", a, b)], [(2, 5, 7), (7, 4), (4,)],
        "any"),
    "shapes": (lambda x: [x.T.reshape(3, 10), mx.pad(x, 1), mx.tile(x, (2, 1)), mx.concatenate([x, x[:2]]), mx.roll(x, 1, 0), mx.tril(x),
        mx.repeat(x, 2, 0)], [(5, 6)], "any"),
    "fft": (lambda x: mx.abs(mx.fft.rfft(x)), [(3, 12)], "any"),
    "hadamard": (mx.hadamard_transform, [(3, 32)], "any"),
    "gather_mm": (lambda a, b: mx.gather_mm(a, b, mx.array([0, 2]), mx.array([1, 1])), [(3, 4, 8), (2, 8, 5)], "any"),
}


def delta(q, k, v, g, b, *state, **options):
    return mx.fast.gated_delta_update(q / 8, k / 8, v, mx.sigmoid(g), mx.sigmoid(b), *state, **options)


def delta_of_views(q, k, v, g, b):
    return delta(q.swapaxes(1, 2), k[:, ::-1], v[..., 3:], g.T[None], b[:, 1:])


if MLX >= (0, 32):
    CLASSES = mx.arange(21).reshape(3, 7) * 5 % 33
    FUNCTIONS |= {
        "cross_entropy": (lambda x: mx.fast.cross_entropy(x, CLASSES), [(3, 7, 33)], "any"),
        "cross_entropy of views": (lambda x: mx.fast.cross_entropy(x.swapaxes(0, 1)[..., ::3], CLASSES[::-1] // 3),
            [(7, 3, 33)], "any"),
        "gated_delta": (delta, [(2, 7, 2, 32), (2, 7, 2, 32), (2, 7, 4, 40), (2, 7, 4), (2, 7, 4)], "any"),
        "gated_delta from a state": (delta,
            [(1, 5, 2, 33), (1, 5, 2, 33), (1, 5, 2, 7), (1, 5, 2), (1, 5, 2), (1, 2, 7, 33)], "any"),
        "gated_delta by columns": (delta,
            [(2, 4, 1, 16), (2, 4, 1, 16), (2, 4, 3, 9), (2, 4, 3, 16), (2, 4, 3)], "any"),
        "gated_delta masked": (lambda *x: delta(*x, mask=mx.arange(7)[None] < mx.array([[5], [7]])),
            [(2, 7, 2, 32), (2, 7, 2, 32), (2, 7, 4, 40), (2, 7, 4), (2, 7, 4), (2, 4, 40, 32)], "any"),
        "gated_delta of views": (delta_of_views,
            [(1, 2, 6, 32), (1, 6, 2, 32), (1, 6, 2, 35), (2, 6), (1, 7, 2)], "any"),
    }
FUSED = ("sdpa sinks", "sdpa sinks and mask")
if MLX >= (0, 32):
    FUSED += ("cross_entropy", "gated_delta from a state")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient(name):
    function, shapes, kind = FUNCTIONS[name]
    check(gradients(function, len(shapes)), *arrays(name, *shapes, kind=kind), **GRADIENT, what=name)


@pytest.mark.parametrize("name", ("mlp", "attention block", "rms_norm", "layer_norm", "rope", "sdpa", *FUSED))
def test_gradient_of_halves(name):
    function, shapes, kind = FUNCTIONS[name]
    for dtype in HALVES:
        check(lambda *x: gradients(function, len(x))(*x)[1], *arrays(name, *shapes, kind=kind, dtype=dtype), tolerance=12, scale=None,
            what=f"{name} {name_of(dtype)}")


@pytest.mark.parametrize("bits, mode", ((4, "affine"), (8, "affine"), (4, "mxfp4")))
def test_gradient_of_quantized_matmul(bits, mode):
    x, w = arrays("quantized", (5, 128), (96, 128), kind="small")
    parts = on(mx.cpu, lambda: mx.quantize(w, bits=bits, group_size=32, mode=mode))

    def function(x, w, *rows):
        return mx.quantized_matmul(x, w, *rows, transpose=True, bits=bits, group_size=32, mode=mode)

    def gradient(x, *p):
        wanted = (0, 2, 3) if mode == "affine" else (0,)
        return mx.grad(lambda *a: mx.square(function(*a)).sum(), argnums=wanted)(x, *p)
    check(gradient, x, *parts, **GRADIENT, what=mode)


def test_gradient_of_gather_qmm():
    x, w = arrays("gather_qmm", (4, 1, 64), (3, 32, 64), kind="small")
    parts = on(mx.cpu, lambda: mx.quantize(w, bits=4, group_size=32))
    i = mx.array([2, 0, 0, 1])
    check(lambda x, *p: mx.grad(lambda x: mx.square(mx.gather_qmm(x, *p, rhs_indices=i, bits=4, group_size=32)).sum())(x), x, *parts,
        **GRADIENT)


@pytest.mark.parametrize("name", FUSED)
def test_second_order_of_fused(name):
    function, shapes, kind = FUNCTIONS[name]
    first = gradients(function, len(shapes))
    check(gradients(lambda *x: first(*x)[1][0], len(shapes)), *arrays(name, *shapes, kind=kind), **GRADIENT, what=name)


@pytest.mark.parametrize("name", FUSED)
def test_transformed_gradient_of_fused(name):
    function, shapes, kind = FUNCTIONS[name]
    some = tuple(range(len(shapes)))[::-1][:2]             # not in order, and not all
    operands = arrays(name, *shapes, kind=kind)

    def gradient(*x):
        return mx.grad(lambda *y: sum(mx.cos(z).sum() for z in flatten(function(*y))), argnums=some)(*x)
    if MLX >= (0, 32):                                     # before, MLX's jvp of where() reads behind its operands
        check(lambda *x: mx.jvp(lambda *y: list(gradient(*y)), list(x), [mx.cos(y) for y in x])[1], *operands, **GRADIENT,
              what=name)
    check(mx.vmap(gradient), *(mx.stack([x, x + 1]) for x in operands), **GRADIENT, what=name)
    check(mx.compile(gradient), *operands, **GRADIENT, what=name)


def test_second_order():
    (x,) = arrays("second order", (7,))
    check(lambda x: mx.grad(lambda x: mx.grad(lambda y: (mx.sin(y) * y).sum())(x).sum())(x), x, **GRADIENT)


JVP = ("mlp", "attention block", "reductions", "elements", "matmul", "softmax", "gather", "rms_norm", "layer_norm", "rope", "sdpa",
    "slices") + (FUSED if MLX >= (0, 32) else ())


@pytest.mark.parametrize("name", JVP)
def test_jvp(name):
    function, shapes, kind = FUNCTIONS[name]
    primals, tangents = arrays(name, *shapes, kind=kind), arrays(name + " tangents", *shapes)
    if name == "reductions":  # the others have no jvp
        def function(x): return [x.sum(0), x.mean(1)]
    check(lambda *x: mx.jvp(lambda *y: flatten(function(*y)), list(x[:len(shapes)]), list(x[len(shapes):])), *primals, *tangents,
        **GRADIENT, what=name)


def test_vjp_of_several_outputs():
    x, y = arrays("vjp", (3, 4), (4,))
    check(lambda x, y: mx.vjp(lambda x, y: [x * y, mx.exp(y)], [x, y], [mx.cos(x), mx.sin(y)]), x, y, **GRADIENT)


def masked(x, y):
    x = mx.array(x)
    x[mx.arange(20).reshape(4, 5) % 3 == 1] = y.reshape(-1)[:7]
    return x


VMAPS = {
    "unary": (lambda x: mx.exp(x) + mx.softmax(x), [(3, 5)], 0, 0),
    "binary over different axes": (lambda x, y: x * y + y, [(3, 5), (5, 3)], (0, 1), 1),
    "one operand only": (lambda x, y: x @ y, [(4, 3, 5), (5, 2)], (0, None), 0),
    "matmul": (lambda x, y: x @ y, [(4, 3, 5), (5, 6, 4)], (0, 2), 0),
    "reductions": (lambda x: [x.sum(0), x.max(-1), mx.logsumexp(x, -1), mx.argmax(x)], [(3, 4, 5)], 1, 0),
    "scans and sorts": (lambda x: [mx.cumsum(x, 0), mx.sort(x, 0), mx.argsort(x, -1), mx.cummax(x, 1)], [(3, 4, 5)], 2, 1),
    "gather": (lambda x, i: [x[i.astype(mx.int32) % 4], mx.take_along_axis(x, mx.argsort(x, axis=0), axis=0)], [(3, 4, 5), (3, 2)], 0, 0),
    "scatter": (lambda x, y: x.at[mx.array([1, 0])].add(y), [(3, 4, 5), (3, 2, 5)], 0, 0),
    "slices": (lambda x, y: [mx.slice_update(x, y, mx.array([1]), (0,)), x[::2]], [(3, 4, 5), (3, 2, 5)], 0, 0),
    "masked": (masked, [(3, 4, 5), (3, 4, 5)], (0, 0), 0), "masked alike": (masked, [(4, 3, 5), (4, 5)], (1, None), 1),
    "shapes": (lambda x: [mx.concatenate([x, x]), x.reshape(-1), mx.split(x, 2)[1], mx.broadcast_to(x, (2, 4, 5)), mx.expand_dims(x, 0)],
        [(3, 4, 5)], 0, 0),
    "conv": (lambda x, w: mx.conv1d(x, w), [(3, 2, 9, 4), (5, 2, 4)], (0, None), 0),
    "norms": (lambda x, w: [mx.fast.rms_norm(x, w, 1e-5), mx.fast.layer_norm(x, w, w, 1e-5)], [(3, 4, 6), (6,)], (0, None), 0),
    "sdpa": (lambda q: mx.fast.scaled_dot_product_attention(q, q, q, scale=0.5), [(3, 1, 2, 5, 8)], 0, 0),
    "rope": (lambda x: mx.fast.rope(x, 8, traditional=False, base=1000.0, scale=1.0, offset=1), [(3, 1, 2, 5, 8)], 0, 0),
    "select": (lambda x, y: mx.where(x > y, x, y), [(3, 4), (3, 4)], (0, 0), 1),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap(name):
    function, shapes, ins, outs = VMAPS[name]
    check(mx.vmap(function, ins, outs), *arrays(name, *shapes), tolerance=4, scale=2, what=name)


def test_vmap_of_gradient():
    x, w = arrays("vmap of gradient", (4, 6), (6, 3))
    check(lambda x, w: mx.vmap(mx.grad(lambda w, x: mx.tanh(x @ w).sum()), (None, 0))(w, x), x, w, **GRADIENT)


def test_checkpoint():
    operands = arrays("mlp", *FUNCTIONS["mlp"][1], kind="small")
    plain = on(mx.gpu, gradients(mlp, 5), *operands)
    again = check(gradients(mx.checkpoint(mlp), 5), *operands, **GRADIENT)
    for a, b in zip(plain, again):
        assert_close(a, b, scale=None)


def test_custom_function():
    @mx.custom_function
    def function(x, y):
        return x * mx.sin(y)

    @function.vjp
    def vjp(primals, cotangent, output):
        return cotangent * 2, cotangent + output

    @function.jvp
    def jvp(primals, tangents):
        return tangents[0] * 3 + tangents[1]

    @function.vmap
    def vmap(inputs, axes):
        return function(*inputs) + 1, axes[0]

    x, y = arrays("custom", (3, 4), (3, 4))
    check(lambda x, y: [function(x, y), mx.grad(lambda *a: function(*a).sum(), (0, 1))(x, y), mx.jvp(function, [x, y], [y, x]),
                        mx.vmap(function)(x, y)], x, y, **GRADIENT)


def test_eval_inside_a_gradient():
    def function(x):
        y = 3 * x
        mx.eval(y)
        return (2 * y * x).sum()
    check(mx.grad(function), *arrays("inside", (5,)), **GRADIENT)


def test_gradient_through_both_devices():
    def function(x):
        return mx.sin(mx.exp(x, stream=mx.cpu) * 2, stream=mx.gpu).sum(stream=mx.cpu)
    check(mx.grad(function), *arrays("both", (9,)), **GRADIENT)
