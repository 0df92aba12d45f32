"""Training, the modules of mlx.nn, optimizers, saving and loading."""
import gc

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from support import *


def built(make):
    """A module whose parameters are the same on both devices."""
    mx.random.seed(11)
    with mx.stream(mx.cpu):
        module = make()
        mx.eval(module.parameters())
    return module


def x_of(*shape, kind="any", dtype=mx.float32):
    return values(seeded("training", shape), dtype, shape, kind)


# ---- modules --------------------------------------------------------------------------------------------------------

I = mx.array([[3, 0, 2], [1, 1, 9]])
ACTIVATIONS = ("GLU Sigmoid Mish ReLU ReLU2 ReLU6 LeakyReLU ELU Softmax Softplus Softsign Softshrink CELU SiLU "
               "LogSoftmax LogSigmoid PReLU GELU Tanh Hardswish Step SELU HardTanh HardShrink Softmin").split()
MODULES = {
    **{name: (getattr(nn, name), [x_of(3, 8)]) for name in ACTIVATIONS},
    "GELU by tanh": (lambda: nn.GELU("tanh"), [x_of(3, 8)]), "GELU fast": (lambda: nn.GELU("fast"), [x_of(3, 8)]),
    "Linear": (lambda: nn.Linear(9, 5), [x_of(2, 3, 9)]), "Linear without bias": (lambda: nn.Linear(9, 5, bias=False), [x_of(9)]),
    "Bilinear": (lambda: nn.Bilinear(4, 5, 6), [x_of(3, 4), x_of(3, 5)]), "Embedding": (lambda: nn.Embedding(10, 7), [I]),
    "Embedding as linear": (lambda: nn.Embedding(10, 7).as_linear, [x_of(2, 7)]), "Identity": (nn.Identity, [x_of(2, 3)]),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), [x_of(2, 9, 4)]),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), [x_of(2, 7, 8, 4)]),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), [x_of(1, 4, 5, 6, 2)]),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 3, 3, stride=2), [x_of(2, 5, 4)]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1), [x_of(1, 4, 5, 4)]),
    "LayerNorm": (lambda: nn.LayerNorm(12), [x_of(3, 12)]), "RMSNorm": (lambda: nn.RMSNorm(12), [x_of(3, 12)]),
    "GroupNorm": (lambda: nn.GroupNorm(3, 12), [x_of(2, 5, 12)]),
    "GroupNorm as PyTorch": (lambda: nn.GroupNorm(3, 12, pytorch_compatible=True), [x_of(2, 4, 5, 12)]),
    "InstanceNorm": (lambda: nn.InstanceNorm(6, affine=True), [x_of(2, 5, 6)]), "BatchNorm": (lambda: nn.BatchNorm(6), [x_of(4, 5, 6)]),
    "BatchNorm, not training": (lambda: nn.BatchNorm(6).eval(), [x_of(4, 6)]),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(16, 4, bias=True), [x_of(2, 5, 16)] * 3),
    "Transformer": (lambda: nn.Transformer(16, 2, 1, 1, 32),
        [x_of(2, 5, 16), x_of(2, 4, 16), None, nn.MultiHeadAttention.create_additive_causal_mask(4), None]),
    "TransformerEncoder": (lambda: nn.TransformerEncoder(2, 16, 2, 24, norm_first=True),
        [x_of(2, 5, 16), nn.MultiHeadAttention.create_additive_causal_mask(5)]),
    "RNN": (lambda: nn.RNN(5, 7), [x_of(2, 6, 5)]), "GRU": (lambda: nn.GRU(5, 7), [x_of(2, 6, 5)]),
    "LSTM": (lambda: nn.LSTM(5, 7), [x_of(2, 6, 5)]),
    "Dropout": (lambda: nn.Dropout(0.4), [x_of(30, 5)]), "Dropout2d": (lambda: nn.Dropout2d(0.4), [x_of(3, 4, 5, 6)]),
    "Dropout3d": (lambda: nn.Dropout3d(0.4), [x_of(2, 3, 4, 5, 6)]),
    "MaxPool1d": (lambda: nn.MaxPool1d(3, 2, padding=1), [x_of(2, 9, 4)]), "AvgPool2d": (lambda: nn.AvgPool2d(2, 2), [x_of(2, 7, 8, 3)]),
    "MaxPool2d": (lambda: nn.MaxPool2d((2, 3), (1, 2)), [x_of(2, 7, 8, 3)]),
    "AvgPool3d": (lambda: nn.AvgPool3d(2, 1), [x_of(1, 3, 4, 5, 2)]),
    "RoPE": (lambda: nn.RoPE(8), [x_of(2, 3, 5, 8)]),
    "SinusoidalPositionalEncoding": (lambda: nn.SinusoidalPositionalEncoding(10), [mx.arange(7)]),
    "ALiBi": (nn.ALiBi, [x_of(2, 4, 5, 6)]), "Upsample nearest": (lambda: nn.Upsample(2, "nearest"), [x_of(2, 3, 4, 5)]),
    "Upsample linear": (lambda: nn.Upsample((1.5, 2), "linear", align_corners=True), [x_of(2, 4, 4, 5)]),
    "Upsample cubic": (lambda: nn.Upsample(2, "cubic"), [x_of(1, 4, 5, 2)]),
    "Sequential": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.LayerNorm(9), nn.Linear(9, 2)), [x_of(4, 6)]),
    "QuantizedLinear": (lambda: nn.QuantizedLinear(64, 33, group_size=32, bits=4), [x_of(5, 64)]),
    "QuantizedEmbedding": (lambda: nn.QuantizedEmbedding(10, 64, group_size=32, bits=8), [I]),
}


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    make, operands = MODULES[name]
    module = built(make) if name != "Embedding as linear" else built(lambda: nn.Embedding(10, 7)).as_linear

    def call(*x):
        mx.random.seed(4)  # of dropout
        return module(*x)
    check(call, *operands, tolerance=10, what=name)


QUANTIZED = [(4, 32, "affine"), (8, 64, "affine"), (3, 64, "affine"), (4, 32, "mxfp4"), (4, 16, "nvfp4"), (8, 32, "mxfp8")]


@pytest.mark.parametrize("bits, group, mode", QUANTIZED)
def test_quantized_layers(bits, group, mode):
    def make():
        model = nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.RMSNorm(64))
        with mx.stream(mx.cpu):
            nn.quantize(model, group_size=group, bits=bits, mode=mode)
        return model
    model = built(make)
    assert isinstance(model.layers[1], nn.QuantizedLinear) and isinstance(model.layers[0], nn.QuantizedEmbedding)
    check(model, I, tolerance=20 if mode == "affine" else 400, scale=2, what=mode)  # the others are bfloat16 inside


def test_quantized_on_the_gpu():
    """Quantized by the gpu itself, and near what was not quantized."""
    model = built(lambda: nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)))
    x = x_of(9, 128)
    before = on(mx.gpu, model, x)[0]
    nn.quantize(model, group_size=64, bits=8)
    assert mx.abs(model(x) - before).max().item() < 0.05 * mx.abs(before).max().item()


# ---- losses and optimizers ------------------------------------------------------------------------------------------

P, Q = x_of(6, 5), x_of(5, 6).T
T = mx.array([0, 4, 2, 2, 1, 3])
LOSSES = {
    "cross_entropy": lambda m: [m.cross_entropy(P, T), m.cross_entropy(P, T, label_smoothing=0.2, reduction="mean"),
        m.cross_entropy(P, mx.softmax(Q, axis=-1)), m.cross_entropy(P, T, weights=mx.arange(6.0))],
    "binary_cross_entropy": lambda m: [m.binary_cross_entropy(P, (Q > 0).astype(mx.float32)),
        m.binary_cross_entropy(mx.sigmoid(P), (Q > 0).astype(mx.float32), with_logits=False, reduction="sum")],
    "regression": lambda m: [m.l1_loss(P, Q), m.mse_loss(P, Q, reduction="sum"), m.smooth_l1_loss(P, Q), m.huber_loss(P, Q, delta=0.7),
        m.log_cosh_loss(P, Q)],
    "likelihoods": lambda m: [m.nll_loss(nn.log_softmax(P), T), m.gaussian_nll_loss(P, Q, mx.abs(P) + 0.1),
        m.kl_div_loss(nn.log_softmax(P), nn.log_softmax(Q))],
    "margins": lambda m: [m.hinge_loss(P, mx.sign(Q)), m.triplet_loss(P, Q, P[::-1]),
        m.margin_ranking_loss(P[:, 0], Q[:, 0], mx.sign(Q[:, 1])), m.cosine_similarity_loss(P, Q)],
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    check(lambda: LOSSES[name](nn.losses), tolerance=10, what=name)


OPTIMIZERS = {
    "SGD": lambda: optim.SGD(0.1), "SGD with momentum": lambda: optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": lambda: optim.RMSprop(0.01),
    "Adagrad": lambda: optim.Adagrad(0.1), "AdaDelta": lambda: optim.AdaDelta(0.5),
    "Adam": lambda: optim.Adam(0.01, bias_correction=True), "AdamW": lambda: optim.AdamW(0.01),
    "Adamax": lambda: optim.Adamax(0.01), "Lion": lambda: optim.Lion(0.001), "Adafactor": lambda: optim.Adafactor(),
    "Muon": lambda: optim.Muon(0.01),
    "scheduled": lambda: optim.Adam(optim.join_schedules([optim.linear_schedule(0, 0.01, 3), optim.cosine_decay(0.01, 10)], [3])),
}


def loss_of(model, x, y):
    return nn.losses.mse_loss(model(x), y)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    def train():
        model = built(lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)))
        optimizer = OPTIMIZERS[name]()
        x, y = x_of(20, 6), x_of(20, 3)
        for _ in range(5):
            loss, gradients = nn.value_and_grad(model, loss_of)(model, x, y)
            gradients, norm = optim.clip_grad_norm(gradients, 1.0)
            optimizer.update(model, gradients)
            mx.eval(model.parameters(), optimizer.state, loss, norm)
        return [loss, norm, *(p for _, p in tree_flatten(model.parameters()))]
    check(train, tolerance=100, scale=0.1, what=name)


# ---- training -------------------------------------------------------------------------------------------------------

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.first, self.norm, self.last = nn.Embedding(32, 16), nn.Linear(48, 32), nn.LayerNorm(32), nn.Linear(32, 3)

    def __call__(self, x):
        return self.last(self.norm(nn.gelu(self.first(self.embed(x).flatten(1)))))


def curve(device, steps, memory=None):
    """The losses of training to tell which of three numbers is the largest."""
    with mx.stream(device):
        model, optimizer = built(Classifier), optim.Adam(3e-3)
        rng = seeded("curve")

        def step(x, y):
            loss, gradients = nn.value_and_grad(model, lambda m, x, y: nn.losses.cross_entropy(m(x), y, reduction="mean"))(model, x, y)
            optimizer.update(model, gradients)
            return loss
        losses = []
        for i in range(steps):
            x = mx.array(rng.integers(0, 32, (32, 3)))
            loss = step(x, mx.argmax(x, axis=1))
            mx.eval(model.state, optimizer.state, loss)
            losses.append(loss.item())
            if memory is not None and i % 100 == 99:
                memory.append(mx.get_active_memory())
        return np.array(losses)


def test_thousand_steps():
    memory = []
    got, want = curve(mx.gpu, 1000, memory), curve(mx.cpu, 1000)
    assert np.allclose(got[:20], want[:20], rtol=1e-3), (got[:20], want[:20])
    means = [x.reshape(10, 100).mean(1) for x in (got, want)]
    assert np.allclose(*means, rtol=0.15, atol=0.05), means
    assert want[-50:].mean() < 0.8 * want[:50].mean() and got[-50:].mean() < 0.8 * got[:50].mean()
    assert max(memory[1:]) - min(memory[1:]) < 64 << 10, memory


def test_convolutional_network_trains():
    def train():
        model = built(lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(8, 8, 3),
            nn.BatchNorm(8), nn.ReLU(),
                                            lambda x: x.mean((1, 2)), nn.Linear(8, 3)))
        optimizer, x, y = optim.SGD(0.1), x_of(12, 8, 8, 1), mx.arange(12) % 3
        losses = []
        for _ in range(6):
            loss, gradients = nn.value_and_grad(model, lambda m, x, y: nn.losses.cross_entropy(m(x), y, reduction="mean"))(model, x, y)
            optimizer.update(model, gradients)
            mx.eval(model.state, optimizer.state, loss)
            losses.append(loss)
        return losses
    check(train, tolerance=100)


def test_low_rank_training_of_a_quantized_model():
    def train():
        base = built(lambda: nn.QuantizedLinear(64, 32, group_size=32, bits=4))
        a, b = x_of(64, 4, kind="small") * 0.1, mx.zeros((4, 32))
        x, y = x_of(16, 64), x_of(16, 32)

        def loss(a, b):
            return mx.square(base(x) + x @ a @ b - y).mean()
        for _ in range(5):
            value, (da, db) = mx.value_and_grad(loss, (0, 1))(a, b)
            a, b = a - 0.05 * da, b - 0.05 * db
            mx.eval(a, b, value)
        return [value, a, b]
    check(train, tolerance=50, scale=0.1)


def test_half_precision_training():
    def train():
        model = built(lambda: nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1)))
        model.set_dtype(mx.bfloat16)
        x = x_of(32, 8, dtype=mx.bfloat16)
        optimizer, losses = optim.AdamW(0.01), []
        for _ in range(30):
            loss, gradients = nn.value_and_grad(model, loss_of)(model, x, x.sum(1, keepdims=True) / 4)
            optimizer.update(model, gradients)
            mx.eval(model.parameters(), optimizer.state, loss)
            losses.append(loss.astype(mx.float32))
        return losses
    losses = [x.item() for x in on(mx.gpu, train)]
    assert losses[-1] < losses[0] / 2


# ---- saving and loading ---------------------------------------------------------------------------------------------



def saved_arrays(dtypes):
    return {f"of {name_of(t)}": on(mx.gpu, lambda: values(seeded("saved", name_of(t)), t, (3, 5)).T + mx.zeros((1,), t))[0] for t in dtypes}


FORMATS = {
    "npz": (lambda f, a: mx.savez(f, **a), [t for t in ALL if t != mx.bfloat16]),
    "compressed.npz": (lambda f, a: mx.savez_compressed(f, **a), [t for t in ALL if t != mx.bfloat16]),
    "safetensors": (lambda f, a: mx.save_safetensors(f, a, {"by": "a test"}), ALL),
    "gguf": (lambda f, a: mx.save_gguf(f, a, {"by": "a test"}), (mx.float32, mx.float16, mx.int8, mx.int16, mx.int32)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_saved_and_loaded(name, tmp_path):
    save, dtypes = FORMATS[name]
    arrays, path = saved_arrays(dtypes), str(tmp_path / ("x." + name))
    save(path, arrays)
    for device in (mx.gpu, mx.cpu):
        with mx.stream(device):
            back = mx.load(path)
            assert back.keys() == arrays.keys()
            for key, x in arrays.items():
                assert_bits(back[key], x, f"{name} {key}")
                if x.dtype != mx.bool_:
                    assert_close(back[key][1:, ::2] * 2, on(mx.cpu, lambda: x[1:, ::2] * 2)[0], what=key)


def test_npy_and_metadata(tmp_path):
    x = mx.arange(12).reshape(3, 4) * 2.0
    mx.save(str(tmp_path / "x.npy"), x)
    assert_bits(mx.load(str(tmp_path / "x.npy")), x)
    assert np.array_equal(np.load(tmp_path / "x.npy"), np.array(x))
    with open(tmp_path / "y.npy", "wb") as f:
        mx.save(f, x.T)
    with open(tmp_path / "y.npy", "rb") as f:
        assert_bits(mx.contiguous(mx.load(f)), mx.contiguous(x.T))
    mx.save_safetensors(str(tmp_path / "x.safetensors"), {"x": x}, {"a": "b"})
    assert mx.load(str(tmp_path / "x.safetensors"), return_metadata=True)[1]["a"] == "b"


def test_loading_in_a_stream_of_the_gpu(tmp_path):
    """In a process of its own, because MLX's CPU code waits in the stream that it is given."""
    got = run(f"""
import mlx.core as mx
path, other = {str(tmp_path)!r}, mx.new_stream(mx.gpu)
x = mx.arange(1000) / 8
mx.save(path + "/x.npy", x)
mx.save_safetensors(path + "/x.safetensors", {{"x": x}})
for stream in (mx.gpu, other, mx.cpu):
    a = mx.load(path + "/x.npy", stream=stream) * 2
    b = mx.load(path + "/x.safetensors", stream=stream)["x"]
    mx.async_eval(a)
    print(mx.array_equal(a, mx.add(b, x, stream=other)).item())
""")
    assert (got.returncode, got.stdout.split(), got.stderr) == (0, ["True"] * 3, "")


def test_large_file_is_loaded_when_wanted(tmp_path):
    x = mx.random.uniform(shape=(1024, 1024))
    mx.save_safetensors(str(tmp_path / "x.safetensors"), {"x": x, "y": x + 1})
    gc.collect()
    mx.synchronize()
    start = mx.get_active_memory()
    back = mx.load(str(tmp_path / "x.safetensors"))
    assert mx.get_active_memory() - start < 1 << 20
    assert mx.array_equal(back["y"], x + 1).item()
    mx.synchronize()
    assert mx.get_active_memory() - start < 5 << 20


def test_module_and_optimizer_are_restored(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm(8), nn.Linear(8, 1))
    model, optimizer, x, y = built(make), optim.Adam(0.01), x_of(9, 4), x_of(9, 1)

    def step(model, optimizer):
        loss, gradients = nn.value_and_grad(model, loss_of)(model, x, y)
        optimizer.update(model, gradients)
        mx.eval(model.state, optimizer.state, loss)
        return loss
    step(model, optimizer)
    for kind in ("safetensors", "npz"):
        model.save_weights(str(tmp_path / f"w.{kind}"))
    mx.save_safetensors(str(tmp_path / "o.safetensors"), dict(tree_flatten(optimizer.state)))
    other, again = make(), optim.Adam(0.01)
    other.load_weights(str(tmp_path / "w.npz"))
    for (_, a), (_, b) in zip(tree_flatten(model.parameters()), tree_flatten(other.parameters())):
        assert_bits(a, b)
    again.init(other.trainable_parameters())
    state = mx.load(str(tmp_path / "o.safetensors"))
    again.state = tree_unflatten(list(state.items()))
    assert step(model, optimizer).item() == step(other, again).item()
