"""Every metal_kernel of mlx-lm 0.32.2, through mlx-lm's own functions, against its fallback, or against plain operations;
with an older mlx-lm those that it has.

    build/mlx/bin/python tests/mlx/test_kernels_lm.py        a table of them, with the times of both
"""

import importlib
import pathlib
import sys
import time

if __name__ == "__main__":
    import mlxvk_mlx  # noqa: F401  (before mlx.core)
import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx_lm.models import bitlinear_layers, gated_delta, rwkv7, ssm
from mlx_lm.tuner import losses

import support


def part(name):
    """A module of mlx-lm; None where that is older."""
    try:
        return importlib.import_module("mlx_lm." + name)
    except ImportError:
        return None


kernels, deepseek_v41, kimi_k3 = part("kernels"), part("models.deepseek_v41"), part("models.kimi_k3")
packed_delta, xtree_delta = (getattr(gated_delta, name, None) for name in ("_gated_delta_kernel_packed", "gated_delta_kernel_xtree"))
CASES = {}


def case(name, tolerance=1e-4, dtypes=(mx.float32, mx.bfloat16), of=mlx_lm):
    """A function of a dtype that returns the kernel's call and the fallback's; of: None where mlx-lm has no such kernel."""
    def add(function):
        CASES[name] = (function, tolerance, dtypes, of is not None)
        return function
    return add


def random(*shape, dtype=mx.float32, scale=1.0):
    return (mx.random.normal(shape) * scale).astype(dtype)


def normed(x, eps=1e-5):
    x = x.astype(mx.float32)
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)


# ---- kernels/ --------------------------------------------------------------------------------------------------------

def heads(x, n_heads, n_kv_heads, dim, scale, dtype):
    """qk_norm's rounding: the norm in the dtype, and the scale on that."""
    q, k = x[..., : n_heads * dim], x[..., n_heads * dim : (n_heads + n_kv_heads) * dim]
    q, k = (normed(v.reshape(*v.shape[:-1], -1, dim)).astype(dtype) for v in (q, k))
    return (q.astype(mx.float32) * scale).astype(dtype), k


@case("qk_norm", of=kernels)
def qk_norm(dtype):
    x = random(2, 5, 2 * (4 + 2) * 64, dtype=dtype)
    return (lambda: kernels.qk_norm(x, n_heads=4, n_kv_heads=2, head_dim=64, eps=1e-5, query_scale=0.125),
            lambda: heads(x, 4, 2, 64, 0.125, dtype))


@case("qk_norm_rope", of=kernels)
def qk_norm_rope(dtype):
    x = random(2, 5, 2 * (4 + 2) * 64, dtype=dtype)

    def plain():
        q, k = heads(x, 4, 2, 64, 0.125, dtype)
        return [mx.fast.rope(v.swapaxes(1, 2), 64, traditional=True, base=10000.0, scale=1.0, offset=37).swapaxes(1, 2) for v in (q, k)]
    return lambda: kernels.qk_norm_rope(x, n_heads=4, n_kv_heads=2, head_dim=64, eps=1e-5, query_scale=0.125, rope_base=10000.0,
                                        offset=37), plain


@case("expert_routing", dtypes=(mx.float32,), of=kernels)
def expert_routing(dtype):
    logits, bias = random(9, 72), random(72, scale=0.1)

    def plain():
        score = mx.sigmoid(logits * 1.5)
        inds = mx.argsort(-(score + bias), axis=-1)[:, :6].astype(mx.uint32)
        w = mx.take_along_axis(score, inds, axis=-1)
        return inds, w / (w.sum(-1, keepdims=True) + 1e-6) * 2.5
    return lambda: kernels.expert_routing(logits, bias, top_k=6, multiplier=1.5, score_eps=1e-6, route_scale=2.5), plain


@case("post_expert_norm_combine", of=kernels)
def post_expert_norm_combine(dtype):
    x, w, norm = random(7, 4, 640, dtype=dtype), mx.softmax(random(7, 4)), random(640)
    return (lambda: kernels.post_expert_norm_combine(x, w, norm_weight=norm, eps=1e-5),
            lambda: (normed(x.astype(mx.float32) * norm) * w[..., None]).sum(-2).astype(dtype))


@case("rms_norm_sigmoid_gate", of=kernels)
def rms_norm_sigmoid_gate(dtype):
    x, gate = random(2, 6, 5, 80, dtype=dtype).swapaxes(1, 2), random(2, 6, 400, dtype=dtype)

    def plain():
        y = normed(x).swapaxes(1, 2).reshape(2, 6, 400)
        return (y * mx.sigmoid(gate.astype(mx.float32))).astype(dtype)
    return lambda: kernels.rms_norm_sigmoid_gate(x, gate, eps=1e-5), plain


def stream_of(dtype, with_next):
    branch, stream, alpha, beta, post = random(6, 512, dtype=dtype), random(6, 512), random(512), random(512), random(512)
    norm = nn.RMSNorm(512, eps=1e-5)
    norm.weight = random(512)

    def plain():
        v = (branch * post.astype(dtype)).astype(dtype)
        s = alpha * stream + beta * normed(v).astype(dtype).astype(mx.float32)
        return [s] + ([(normed(s) * norm.weight).astype(dtype)] if with_next else [])

    def fused():
        return [x for x in kernels.norm_add_norm(branch, stream, alpha=alpha, beta=beta, post_weight=post, post_eps=1e-5,
                                                 next_norm=norm if with_next else None) if x is not None]
    return fused, plain


@case("norm_add_norm", of=kernels)
def norm_add_norm(dtype):
    return stream_of(dtype, True)


@case("norm_add", of=kernels)
def norm_add(dtype):
    return stream_of(dtype, False)


@case("norm_add_norm_pre_norm", of=kernels)
def pre_norm(dtype):
    stream, norm = random(6, 512), nn.RMSNorm(512, eps=1e-5)
    norm.weight = random(512)
    return lambda: kernels.pre_norm(stream, norm, dtype=dtype), lambda: (normed(stream) * norm.weight).astype(dtype)


# ---- models/ ---------------------------------------------------------------------------------------------------------

def delta(dtype, mask=False, vectors=False, heads=(2, 4), dims=(64, 48), T=11):
    (hk, hv), (dk, dv) = heads, dims
    q, k = (mx.fast.rms_norm(random(2, T, hk, dk, dtype=dtype), None, 1e-8) * scale for scale in (dk ** -1, dk ** -0.5))
    g = mx.random.uniform(0.7, 1, (2, T, hv, dk) if vectors else (2, T, hv))
    more = (mx.arange(T) < mx.array([[T], [T - 4]]),) if mask else ()
    return q, k, random(2, T, hv, dv, dtype=dtype), g, mx.random.uniform(0, 1, (2, T, hv)).astype(dtype), random(2, hv, dv, dk), *more


def check_delta(a, kernel=None):
    """Where the mask hides a token, the kernel's result is 0, and the fallback's anything."""
    seen = a[6][..., None, None] if len(a) > 6 else mx.array(True)

    def run(f):
        y, state = f(*a)
        return mx.where(seen, y, 0), state

    def ops(*a):                                           # mlx-lm 0.30.2 takes no mask of two dimensions
        return gated_delta.gated_delta_ops(*a[:6], *(m[..., None, None] if support.MLX < (0, 31) else m for m in a[6:]))
    return lambda: run(kernel or gated_delta.gated_delta_kernel), lambda: run(ops)


@case("gated_delta_step", tolerance=1e-3)
def gated_delta_step(dtype):
    return check_delta(delta(dtype))


@case("gated_delta_step_mask", tolerance=1e-3)
def gated_delta_step_mask(dtype):
    return check_delta(delta(dtype, mask=True))


@case("gated_delta_step_vec", tolerance=1e-3)
def gated_delta_step_vec(dtype):
    return check_delta(delta(dtype, vectors=True))


@case("gated_delta_step_vec_mask", tolerance=1e-3)
def gated_delta_step_vec_mask(dtype):
    return check_delta(delta(dtype, mask=True, vectors=True))


@case("gated_delta_step_packed_btree", tolerance=1e-3, of=packed_delta)
def gated_delta_step_packed(dtype):
    return check_delta(delta(dtype, dims=(128, 64)))


@case("gated_delta_step_xtree", tolerance=1e-3, of=xtree_delta)
def gated_delta_step_xtree(dtype):
    return check_delta(delta(dtype, dims=(128, 64)), xtree_delta)


@case("ssm_kernel", tolerance=1e-3)
def ssm_kernel(dtype):
    a = (random(2, 1, 8, 16, dtype=dtype), random(8), random(2, 1, 2, 64, dtype=dtype), random(2, 1, 2, 64, dtype=dtype),
         random(8, dtype=dtype), random(2, 1, 8, dtype=dtype), random(8), random(2, 8, 16, 64))
    return lambda: ssm.ssm_update_kernel(*a, (0.001, 100.0)), lambda: ssm.ssm_attn(*a, (0.001, 100.0))


@case("wkv7_kernel", tolerance=1e-3, dtypes=(mx.float32,))
def wkv7_kernel(dtype):
    r, k, v, a, b = (random(2, 9, 3, 64, scale=0.3) for _ in range(5))
    w, state = mx.random.uniform(0.8, 1, (2, 9, 3, 64)), random(2, 3, 64, 64)

    def plain():
        s, ys = state, []
        for t in range(9):
            y, s = rwkv7._wkv7_step_ops(r[:, t], w[:, t], k[:, t], v[:, t], a[:, t], b[:, t], s)
            ys.append(y[..., 0])
        return mx.stack(ys, axis=1), s
    return lambda: rwkv7.wkv7_kernel(r, w, k, v, a, b, state), plain


@case("attnres_mix", of=kimi_k3)
def attnres_mix(dtype):
    blocks = kimi_k3.ResidualBlocks(1e-5)
    blocks.raw, w, partial = random(3, 5, 700, dtype=dtype), random(700, scale=0.05), random(5, 700, dtype=dtype)
    blocks.inv_rms = mx.rsqrt(mx.mean(mx.square(blocks.raw.astype(mx.float32)), axis=-1) + 1e-5)
    return tuple(lambda k=k: kimi_k3._attn_res_mix(blocks, partial, w, 1e-5, use_kernel=k) for k in (True, False))


@case("deepseek_v41_sinkhorn", dtypes=(mx.float32,), of=deepseek_v41)
def sinkhorn(dtype):
    comb, eps = mx.softmax(random(300, 4, 4), axis=-1), mx.array([1e-6])

    def plain():
        kept, deepseek_v41._sinkhorn_kernel = deepseek_v41._sinkhorn_kernel, None
        try:
            return deepseek_v41._sinkhorn(comb, iters=20, eps=eps)
        finally:
            deepseek_v41._sinkhorn_kernel = kept
    return lambda: deepseek_v41._sinkhorn(comb, iters=20, eps=eps), plain


@case("bitlinear_matmul")
def bitlinear_matmul(dtype):
    layer = bitlinear_layers.BitLinear(512, 96, bias=True, invert_weight_scales=True)
    layer.weight = mx.random.randint(0, 256, (24, 512)).astype(mx.uint8)
    layer.weight_scale, layer.bias, x = mx.array([1.7]).astype(dtype), random(96, dtype=dtype), random(2, 3, 512, dtype=dtype)

    def plain():
        w = mx.concatenate([((layer.weight >> (2 * k)) & 3).astype(mx.float32) - 1 for k in range(4)])
        return ((x.astype(mx.float32) @ w.T / layer.weight_scale.astype(mx.float32)).astype(dtype) + layer.bias)
    return lambda: layer(x), plain


# ---- tuner/losses.py: forwards and backwards -------------------------------------------------------------------------

def divergence(name, backwards):
    def make(dtype):
        q, p, up = random(3, 5000, dtype=dtype, scale=2), random(3, 5000, dtype=dtype, scale=2), random(3)

        def run(allowed):
            kept, losses.can_run_metal = losses.can_run_metal, lambda: allowed
            try:
                x, y = (q, p) if allowed else (q.astype(mx.float32), p.astype(mx.float32))
                f = getattr(losses, name)
                return mx.grad(lambda x: (f(x, y) * up).sum())(x) if backwards else f(x, y)
            finally:
                losses.can_run_metal = kept
        return lambda: run(True), lambda: run(False)
    return make


for loss in ("kl", "js"):
    for way in ("forward", "backward"):
        case("%s_%s" % (loss, way), tolerance=1e-3)(divergence(loss + "_div_loss", way == "backward"))


# ---- the tests, and the table ----------------------------------------------------------------------------------------

def difference(got, want):
    """The largest, by the size of what is wanted there and on the whole."""
    got, want = ([x.astype(mx.float32) for x in support.flatten(r)] for r in (got, want))
    assert [g.shape for g in got] == [w.shape for w in want]
    return max((mx.abs(g - w) / (mx.abs(w) + mx.abs(w).mean() + 1e-9)).max().item() for g, w in zip(got, want))


def test_all_are_here():
    """As many as the sources make."""
    folder = pathlib.Path(mlx_lm.__file__).parent
    calls = sum(file.read_text().count("fast.metal_kernel(") for file in folder.rglob("*.py"))
    assert sum(there for *_, there in CASES.values()) == calls + 3         # one call makes four gated_delta_step
    assert calls == {"0.32.2": 20, "0.30.2": 8}.get(mlx_lm.__version__, calls)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=support.name_of)
@pytest.mark.parametrize("name", CASES)
def test_kernel(name, dtype):
    make, tolerance, dtypes, there = CASES[name]
    if not there:
        pytest.skip("mlx-lm %s has no such kernel" % mlx_lm.__version__)
    if dtype not in dtypes:
        pytest.skip("it is of float32")
    support.reset_stats()
    kernel, plain = make(dtype)
    got = kernel()
    mx.eval(got)
    assert support.stats()["primitives"]["CustomKernel"]["native"]
    assert difference(got, plain()) < (tolerance if dtype == mx.float32 else 0.05)


SIZES = dict(hidden_size=128, num_hidden_layers=4, intermediate_size=128, num_attention_heads=8, num_key_value_heads=4,
             vocab_size=500, rms_norm_eps=1e-5, head_dim=64, rope_theta=1000.0, max_position_embeddings=1000)
GATED = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_value_head_dim=32, linear_conv_kernel_dim=3,
             partial_rotary_factor=0.5)
MODELS = {
    "qwen3_next": dict(SIZES, **GATED, linear_key_head_dim=32, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1,
                       shared_expert_intermediate_size=128, mlp_only_layers=[0], moe_intermediate_size=128),
    "qwen3_5": dict(SIZES, **GATED, linear_key_head_dim=128),
    "mamba2": dict(SIZES, num_heads=8, head_dim=16, state_size=32, layer_norm_epsilon=1e-4, conv_kernel=3, n_groups=4,
                   use_bias=False, use_conv_bias=False, tie_word_embeddings=True, time_step_limit=(0.01, 10), time_step_rank="auto"),
    "rwkv7": dict(SIZES, head_dim=32, norm_eps=1e-5, a_low_rank_dim=16, v_low_rank_dim=16, gate_low_rank_dim=16,
                  decay_low_rank_dim=16),
}
RUN_MODEL = """
import importlib, sys, mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
mx.random.seed(3)
m = importlib.import_module("mlx_lm.models." + sys.argv[1])
model = m.Model(m.ModelArgs.from_dict(dict(eval(sys.argv[2]), model_type=sys.argv[1])))
model.update(tree_map(lambda w: w + 0.02 * mx.random.normal(w.shape) if mx.issubdtype(w.dtype, mx.floating) else w, model.parameters()))
model.eval()
cache = make_prompt_cache(model)
said = [model(mx.array([[5, 9, 200, 41, 7, 7, 301, 12, 88]]), cache=cache)]
for token in (3, 77, 410):
    said.append(model(mx.array([[token]]), cache=cache))
mx.save(sys.argv[3], mx.concatenate(said, axis=1).astype(mx.float32))
import mlxvk_mlx
print(mlxvk_mlx.stats()["primitives"].get("CustomKernel", {}).get("native", 0))
"""


@pytest.mark.parametrize("name", MODELS)
def test_hybrid_model(name, tmp_path):
    """A prompt and some steps behind it: what the model says with kernels, and without."""
    if not part("models." + name):
        pytest.skip("mlx-lm %s has no such model" % mlx_lm.__version__)
    logits = []
    for gate in "10":
        path = str(tmp_path / (gate + ".npy"))
        code = "import sys\nsys.argv = %r\n" % (["-c", name, repr(MODELS[name]), path],) + RUN_MODEL
        got = support.run(code, MLX_VK_METAL_KERNELS=gate)
        assert got.returncode == 0, got.stderr
        assert (int(got.stdout) > 0) == (gate == "1")
        logits.append(mx.load(path))
    assert difference(*logits) < 1e-3


def milliseconds(call, least=0.3):
    mx.eval(call())
    count, start = 0, time.perf_counter()
    while count < 3 or time.perf_counter() - start < least:
        mx.eval(call())
        count += 1
    return (time.perf_counter() - start) / count * 1e3


def table():
    print("| kernel of mlx-lm | largest difference | kernel, ms | fallback, ms |\n|---|---|---|---|")
    for name, (make, *_, there) in CASES.items():
        if not there:
            continue
        mx.random.seed(1)
        kernel, plain = make(mx.float32)
        print("| %s | %.1e | %.2f | %.2f |" % (name, difference(kernel(), plain()), milliseconds(kernel), milliseconds(plain)), flush=True)


if __name__ == "__main__":
    sys.exit(table())
