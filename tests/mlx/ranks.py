"""What each rank of test_distributed.py runs: python ranks.py NAME, with MLX_RANK and MLX_HOSTFILE set.

A check that fails raises, and the rank ends with a traceback. Every rank makes every rank's data, so each can say by
NumPy what the result must be. Values are small whole numbers, whose sums no order of adding rounds.
"""
import importlib
import json
import os
import signal
import sys
import time

if os.environ.get("RANKS_IMPORT"):
    import mlxvk_mlx  # noqa: F401  (before mlx.core)
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.nn.layers.distributed import shard_linear
from mlx.utils import tree_flatten, tree_map

from support import ALL, MLX, as_numpy, name_of, seeded


def meet():
    """Waits until all are here: MLX's ring tries for some seconds to connect, and a rank may take longer to start."""
    folder = os.environ.get("RANKS_MEET")
    if folder:
        open(os.path.join(folder, os.environ["MLX_RANK"]), "w").close()
        with open(os.environ["MLX_HOSTFILE"]) as file:
            count = len(json.load(file))
        while len(os.listdir(folder)) < count:
            time.sleep(0.01)


meet()
D = mx.distributed
BACKEND = os.environ.get("RANKS_BACKEND", "ring")
GROUP = D.init(strict=True, backend=BACKEND)
RANK, SIZE = GROUP.rank(), GROUP.size()
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def same(got, want, what):
    got = as_numpy(got)
    assert got.shape == want.shape, f"rank {RANK}, {what}: shape {got.shape}, not {want.shape}"
    assert np.array_equal(got, want), f"rank {RANK}, {what}: {got.reshape(-1)[:9]}, not {want.reshape(-1)[:9]}"


def raises(text, function):
    try:
        mx.eval(function())
    except (RuntimeError, ValueError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"rank {RANK}: no error with {text!r}")


# ---- collectives ----------------------------------------------------------------------------------------------------

SHAPES = ((), (1,), (0,), (0, 3), (SIZE,), (7,), (2 * SIZE, 3), (3, 5, 2), (1031,))


def whole(dtype, shape, rank, what):
    """A rank's operand, as NumPy has it."""
    rng = seeded(name_of(dtype), shape, rank, what)
    if dtype == mx.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    x = rng.integers(0 if mx.issubdtype(dtype, mx.unsignedinteger) else -8, 9, shape)
    if dtype == mx.complex64:
        return (x + 1j * rng.integers(-8, 9, shape)).astype(np.complex64)
    return x.astype(np.float32 if dtype in (mx.float16, mx.bfloat16) else name_of(dtype))


def spread(x):
    wide = np.ones(x.shape[:-1] + (2 * x.shape[-1] + 1,), x.dtype)
    wide[..., 1::2] = x
    return wide


# What x is cut out of, and how.
CUTS = (
    (lambda x: x, lambda b, shape: b),
    (lambda x: x.T, lambda b, shape: b.T),
    (lambda x: x[::-1], lambda b, shape: b[::-1]),
    (spread, lambda b, shape: b[..., 1::2]),
    (lambda x: np.concatenate([np.ones(3, x.dtype), x.reshape(-1)]), lambda b, shape: b[3:].reshape(shape)),
)


def on_gpu(x, dtype, i):
    """An operand that the GPU is still to compute, seen through one of the cuts."""
    base, cut = CUTS[i % len(CUTS)] if x.ndim else CUTS[0]
    y = mx.array(base(x).copy()).astype(dtype)
    return cut(mx.logical_not(mx.logical_not(y)) if dtype == mx.bool_ else y + y - y, x.shape)


def used(x):
    """By the GPU at once, before anybody has waited for it."""
    return mx.logical_not(mx.logical_not(x)) if x.dtype == mx.bool_ else x + x - x


WANTED = {
    "all_sum": lambda parts: np.sum(parts, axis=0, dtype=parts[0].dtype),
    "all_max": np.maximum.reduce,
    "all_min": np.minimum.reduce,
    "all_gather": lambda parts: np.concatenate(parts) if parts[0].ndim else np.stack(parts),
}


def reductions(dtype):
    """Lazy results and what they must be. Open MPI adds up and compares no bools."""
    wanted_here = {k: v for k, v in WANTED.items() if BACKEND == "ring" or dtype != mx.bool_ or k == "all_gather"}
    for i, shape in enumerate(SHAPES):
        for j, (name, wanted) in enumerate(wanted_here.items()):
            parts = [whole(dtype, shape, r, name) for r in range(SIZE)]
            x = on_gpu(parts[RANK], dtype, i + j)
            yield used(getattr(D, name)(x, group=GROUP)), wanted(parts), f"{name} {name_of(dtype)} {shape}"


def neighbours(dtype):
    """What is sent to the right comes from the left, and goes back changed."""
    for i, shape in enumerate(SHAPES):
        mine, theirs = (whole(dtype, shape, r, "sent") for r in (RANK, LEFT))
        x = on_gpu(mine, dtype, i)
        sent = D.send(x, RIGHT, group=GROUP)
        got = D.recv(shape, dtype, LEFT, group=GROUP) if i % 2 else D.recv_like(x, LEFT, group=GROUP)
        mx.eval([sent, got] if RANK % 2 else [got, sent])
        same(sent, mine, f"sent {name_of(dtype)} {shape}")
        same(used(got), theirs, f"received {name_of(dtype)} {shape}")


def check_all(cases, at_once):
    cases = list(cases)
    if at_once:
        mx.eval([got for got, _, _ in cases])
    for got, want, what in cases:
        same(got, want, what)


def large():
    """More than a packet, both ways round the ring; results in memory of their own and in the operand's."""
    for n in (300001, 65537, 2 ** 18):
        parts = [whole(mx.float32, (n,), r, "large") for r in range(SIZE)]
        x = mx.array(parts[RANK]) + 0
        kept = D.all_sum(x, group=GROUP)
        same(kept * 2, sum(parts) * 2, f"all_sum of {n}")
        same(x, parts[RANK], "the operand")
        once = D.all_sum(mx.array(parts[RANK]) + 1, group=GROUP)
        same(once + 1, sum(parts) + SIZE + 1, f"all_sum in place of {n}")
        same(D.all_gather(x[None], group=GROUP)[:, ::-1] + 0, np.stack(parts)[:, ::-1], f"all_gather of {n}")


def chained():
    """From stream to stream and back many times in one evaluation, by several ways of starting it."""
    other = mx.new_stream(mx.gpu)

    def chain(x, steps=8):
        for i in range(steps):
            x = D.all_sum(x * 0.5, group=GROUP) * (1 / SIZE) + i
            x = mx.add(x, x, stream=other if i % 3 else mx.default_stream(mx.gpu))
        return x
    x, want = mx.arange(999, dtype=mx.float32) % 64, np.arange(999) % 64
    for i in range(8):
        want = (want * 0.5 + i) * 2
    same(chain(x), want, "a chain")
    ways = [chain(x), mx.compile(lambda y: y + 0)(chain(x))]
    mx.async_eval(ways)
    mx.async_eval(chain(x))                                # nobody takes it
    for y in ways:
        same(y, want, "a chain, not waited for")
    mx.synchronize(mx.default_stream(mx.cpu))              # a ring is for one stream at a time
    for where in (mx.new_stream(mx.cpu), mx.gpu):
        same(D.all_sum(x, group=GROUP, stream=where) + 0, np.arange(999) % 64 * SIZE, f"all_sum on {where}")


def transforms():
    x = mx.arange(6.0) + RANK
    total, slope = mx.value_and_grad(lambda v: D.all_sum(v * v, group=GROUP).sum())(x)
    assert total.item() == sum(((np.arange(6.0) + r) ** 2).sum() for r in range(SIZE))
    same(slope, 2 * (np.arange(6.0) + RANK), "the gradient of all_sum")
    mine = mx.grad(lambda v: D.all_gather(v, group=GROUP)[0])(x[:1])
    same(mine, np.array([float(RANK == 0)]), "the gradient of all_gather")
    rows = mx.vmap(lambda v: D.all_sum(v, group=GROUP) + 1)(x.reshape(2, 3))
    same(rows, (SIZE * np.arange(6.0) + sum(range(SIZE))).reshape(2, 3) + 1, "vmap of all_sum")


def doubles():
    """Which no GPU has: between a CPU's operations."""
    with mx.stream(mx.cpu):
        parts = [np.arange(7.0) / 3 + r for r in range(SIZE)]
        x = mx.array(parts[RANK].tolist(), dtype=mx.float64)
        same(D.all_max(x * 1, group=GROUP), np.maximum.reduce(parts), "all_max of float64")
        same(D.all_gather(x * 1, group=GROUP), np.concatenate(parts), "all_gather of float64")


def refused():
    """Errors of the stream's thread and of the call itself; then it goes on."""
    raises("catter", lambda: D.sum_scatter(mx.ones(2 * SIZE) + 1, group=GROUP))
    if SIZE > 3 and BACKEND == "ring" and MLX >= (0, 32):  # before, an error of a stream's thread ended the process
        raises("neighbors", lambda: D.send(mx.ones(3) + 1, (RANK + 2) % SIZE, group=GROUP))
        raises("neighbors", lambda: D.recv((3,), mx.float32, (RANK + 2) % SIZE, group=GROUP) * 2)
    same(D.all_sum(mx.ones(3) + 1, group=GROUP) * 2, np.full(3, 4 * SIZE), "all_sum after an error")


def collectives():
    for i, dtype in enumerate(ALL):
        check_all(reductions(dtype), at_once=i % 2)
        neighbours(dtype)
    large()
    chained()
    transforms()
    doubles()
    refused()


def few_collectives():
    """The same of some dtypes: for more ranks, and for other memory."""
    for dtype in (mx.float32, mx.bool_, mx.bfloat16):
        check_all(reductions(dtype), at_once=dtype == mx.float32)
        neighbours(dtype)
    large()
    chained()
    refused()


# ---- through memory that the ranks share ----------------------------------------------------------------------------

def shared():
    """Do they share it, as RANKS_SHARED says?"""
    import mlxvk_mlx
    is_shared = bool(mlxvk_mlx.stats()["shared_ranks"])
    assert is_shared == (os.environ["RANKS_SHARED"] == "1"), is_shared


def exchanged():
    """Do the devices exchange small parts themselves, where MLX_VK_SHARED_RANKS asks for it, and no large ones?"""
    import mlxvk_mlx
    before = mlxvk_mlx.stats()["exchanged"]
    for n in (1, MOST // 4, MOST // 4 + 1):
        mx.eval(D.all_sum(mx.ones(n) * 2, group=GROUP), D.all_gather(mx.ones(n) * 2, group=GROUP))
    count = mlxvk_mlx.stats()["exchanged"] - before
    assert count == (4 if os.environ.get("MLX_VK_SHARED_RANKS") == "2" else 0), count


MOST = 1 << 16                                             # bytes of a part that devices exchange
JOINED = {"all_sum": mx.add, "all_max": mx.maximum, "all_min": mx.minimum}


def bits():
    """What the operation makes of the parts in the order of ranks, bit for bit, of numbers that every sum rounds."""
    dtypes, lengths = (ALL, (1, 3, 1000)) if SIZE == 2 else ((mx.bfloat16, mx.int64, mx.bool_), (3, 1000))
    around = ((mx.bfloat16, MOST // 2), (mx.float32, MOST // 4 + 1), (mx.uint8, MOST - 1), (mx.complex64, MOST // 8))
    for dtype, n in [(d, n) for d in dtypes for n in lengths] + list(around):
        parts = [mx.random.normal((n,), key=mx.random.key(100 * n + r)) * 50 for r in range(SIZE)]
        if dtype == mx.complex64:
            parts = [p + 1j * p[::-1] for p in parts]
        parts = [(p if mx.issubdtype(dtype, mx.inexact) else mx.abs(p)).astype(dtype) for p in parts]
        for name, join in JOINED.items():
            want = parts[0]
            for p in parts[1:]:
                want = join(want, p)
            got = getattr(D, name)(parts[RANK], group=GROUP)
            assert mx.array_equal(got, want).item(), f"rank {RANK}: {name} of {n} {dtype}"
        got, want = D.all_gather(parts[RANK], group=GROUP), mx.concatenate(parts)
        assert mx.array_equal(got, want).item(), f"rank {RANK}: all_gather of {n} {dtype}"


def in_a_row():
    """A hundred in one evaluation, of the same and of changing sizes, and the same evaluations again and again."""
    x = mx.arange(2048, dtype=mx.float32) % 8
    for _ in range(8 // SIZE):
        y = x
        for i in range(100):
            y = D.all_sum(y * 0.5, group=GROUP) * (2 / SIZE)
        same(y, np.arange(2048, dtype=np.float32) % 8, "a hundred sums in a row")
    for i in range(100):
        n = 1 + i * 331 % 20000                            # on both sides of what is small
        y = D.all_max(mx.full((n,), RANK + i), group=GROUP)
        x = mx.concatenate([y.astype(mx.float32)[:1], x[1:]])
        if i % 9 == 0:
            mx.async_eval(x)
    same(x[:1], np.array([SIZE + 98], np.float32), "a hundred sizes in a row")


SLOT, BOX = 8 << 20, 4 * (2 << 20)                         # bytes: of a part of a collective, of all packets on the way


def in_parts():
    """More than a part at a time, and just as much."""
    just, more = ((mx.uint8, SLOT), (mx.complex64, SLOT // 8 - 1)), ((mx.uint8, SLOT + 1), (mx.float32, SLOT // 2 + 5))
    for dtype, n in just + more:
        parts = [np.arange(n) % (50 + r) for r in range(SIZE)]
        x = mx.array(parts[RANK]).astype(dtype)
        same(used(D.all_sum(x + 0, group=GROUP)), sum(parts).astype(name_of(dtype)), f"all_sum of {n} {dtype}")
        same(used(D.all_gather(x + 0, group=GROUP)), np.concatenate(parts).astype(name_of(dtype)), f"all_gather of {n}")
    wide = mx.broadcast_to(mx.arange(3) + RANK, (700001, 3))
    want = np.broadcast_to(np.arange(3) * SIZE + sum(range(SIZE)), (700001, 3))
    same(D.all_sum(wide, group=GROUP) + 0, want.astype(np.int32), "all_sum of a broadcast array")


def packets():
    """What fits on the way is sent before anybody takes it; of what does not fit one sends while the other takes."""
    small, large = BOX // 4 - 3, BOX + 1000001
    for n in (small, large):
        x = mx.arange(n, dtype=mx.int32) + RANK
        if n == small or RANK % 2 == 0:
            mx.eval(D.send(x, RIGHT, group=GROUP))
            got = D.recv_like(x, LEFT, group=GROUP)
        else:
            got = D.recv_like(x, LEFT, group=GROUP)
            mx.eval(got)
            mx.eval(D.send(x, RIGHT, group=GROUP))
        same(got + 1, np.arange(n, dtype=np.int32) + LEFT + 1, f"{n} received")
    for i in range(40):                                    # both ways at once, and through all packets' places
        x = mx.arange(i * 1000 + 1) * (RANK + 1)
        mx.eval(D.send(x, RIGHT, group=GROUP), D.send(x + 1, LEFT, group=GROUP))
        from_left, from_right = D.recv_like(x, LEFT, group=GROUP), D.recv_like(x, RIGHT, group=GROUP)
        if SIZE == 2:                                      # one neighbour: what was sent first comes first
            first, second = (LEFT, 0), (LEFT, 1)
        else:
            first, second = (LEFT, 0), (RIGHT, 1)
        mx.eval(from_left, from_right)
        for got, (who, more) in ((from_left, first), (from_right, second)):
            same(got, np.arange(i * 1000 + 1, dtype=np.int32) * (who + 1) + more, f"packet {i}")


def many():
    """Hundreds under way, of changing sizes, mixed with work of the GPU and the CPU, and read in between."""
    x, want, checks = mx.ones((257,)), np.ones(257), []
    for i in range(300):
        n = (i * 37) % 257 + 1
        y = D.all_sum(mx.sin(x[:n]) * 0 + x[:n], group=GROUP) / SIZE
        x = mx.concatenate([y + 1, x[n:]])
        want[:n] += 1
        if i % 7 == 0:
            x = mx.add(x, 0, stream=mx.cpu)
        if i % 3 == 0:
            mx.async_eval(x)
        if i % 50 == 0:
            checks.append((x[:5] + 0, want[:5].copy()))
            assert x[0].item() == want[0]
    same(x, want.astype(np.float32), "after 300")
    for got, w in checks:
        same(got, w.astype(np.float32), "in between")


def streams():
    """From stream to stream, and on two threads in turn."""
    import threading
    all_streams = [mx.default_stream(mx.gpu), mx.new_stream(mx.gpu), mx.new_stream(mx.gpu)]
    x = mx.arange(1000, dtype=mx.float32)
    for i in range(30):
        x = D.all_sum(x / SIZE, group=GROUP, stream=all_streams[i % 3]) + 1
    same(x, np.arange(1000) + 30, "a chain over streams")

    def work():
        same(D.all_sum(mx.ones(70001) * 2, group=GROUP) + 0, np.full(70001, 2 * SIZE), "all_sum in a thread")
    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        work()


def by_shared_memory():
    for check in (shared, in_parts, packets, many, streams, exchanged, bits, in_a_row, shared):
        check()


def sent_and_left():
    """What a rank has sent is there when it is gone."""
    x = mx.arange(100003) * 3
    if RANK:
        mx.eval(D.send(x, 0, group=GROUP))
        return
    time.sleep(2)
    same(D.recv_like(x, 1, group=GROUP) + 0, np.arange(100003) * 3, "received of one who is gone")
    raises("[ring] connection", lambda: D.recv_like(x, 1, group=GROUP) + 0)


# ---- a rank that goes -----------------------------------------------------------------------------------------------

def steps_ahead(x):
    """Collectives of several steps under way, as in a language model that is some tokens ahead; one rank is killed."""
    for i in range(10000):
        if i == 5 and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        y = D.all_sum(x * 2, group=GROUP) / (2 * SIZE)
        z = D.all_gather(y[:1000] * 2, group=GROUP)
        mx.async_eval(y, z)
        x = D.all_sum(y * 2, group=GROUP) / (2 * SIZE)
        mx.async_eval(x)
        mx.eval(z)


def killed():
    """The others get an exception that nobody catches."""
    steps_ahead(mx.random.normal((100003,)))


def killed_small():
    """The same of small parts."""
    steps_ahead(mx.random.normal((1003,)))


def killed_waited_for():
    """One takes part in the first collective of an evaluation, and is killed while the others wait for the second."""
    x = mx.arange(1000) * 2
    y = D.all_sum(x, group=GROUP)
    if RANK == 1:
        mx.eval(y)
        time.sleep(3)
        os.kill(os.getpid(), signal.SIGKILL)
    z = D.all_sum(y + 1, group=GROUP)
    raises("[ring] connection", lambda: z + 1)
    raises("[ring] connection", lambda: D.all_sum(x, group=GROUP))
    same(mx.arange(5) * 2, np.arange(5) * 2, "after the connection was lost")


def late():
    """One comes seconds later than the others, to an evaluation and in the middle of one."""
    for _ in range(2):
        x = mx.arange(1000) + RANK
        y = D.all_sum(x * 2, group=GROUP)
        if RANK == 1:
            time.sleep(1)
            mx.eval(y)
            time.sleep(2)
        z = D.all_sum(y + 1, group=GROUP)
        want = SIZE * (2 * (SIZE * np.arange(1000) + sum(range(SIZE))) + 1)
        same(z + 1, want.astype(np.int32) + 1, "all_sum of one who is late")


def killed_and_caught():
    """And one who catches it gets it again from each further collective, and has his GPU."""
    raises("[ring] connection", lambda: steps_ahead(mx.random.normal((100003,))))
    for function in (D.all_sum, D.all_gather, lambda x, group: D.recv_like(x, LEFT, group=group)):
        raises("[ring] connection", lambda: function(mx.ones(5) + 1, group=GROUP) * 2)
    same(mx.arange(5) * 2, np.arange(5) * 2, "after the connection was lost")


def left():
    """Each goes while it waits for what the other will never send."""
    mx.async_eval(D.recv((5,), mx.float32, LEFT, group=GROUP) * 2)
    raise SystemExit(5)


def left_alone():
    """All but the first go, which waits for what they will never put."""
    y = D.all_sum(mx.ones(5) * 2, group=GROUP)
    mx.eval(y)
    if RANK == 0:
        mx.async_eval(D.all_sum(D.all_sum(y, group=GROUP) * 2, group=GROUP))
    raise SystemExit(5)


# ---- training and layers --------------------------------------------------------------------------------------------

def near(got, want, limit, what):
    got, want = as_numpy(got), as_numpy(want)
    far = np.abs(got - want).max() if got.shape == want.shape else "another shape"
    assert got.shape == want.shape and far <= limit, f"rank {RANK}, {what}: {far} off"


def share(x, axis=0):
    """This rank's part."""
    return mx.split(x, SIZE, axis)[RANK]


def curve(rows, averaged):
    """The losses of five steps, and the weights then."""
    mx.random.seed(5)
    model = nn.Sequential(nn.Linear(12, 24), nn.gelu, nn.Linear(24, 16), nn.tanh, nn.Linear(16, 3))
    x, y = mx.random.normal((8 * SIZE, 12)), mx.random.normal((8 * SIZE, 3))
    optimizer, losses = optim.AdamW(0.02), []
    step = nn.value_and_grad(model, lambda m, a, b: nn.losses.mse_loss(m(a), b))
    for _ in range(5):
        loss, gradients = step(model, rows(x), rows(y))
        optimizer.update(model, averaged(gradients))
        mx.async_eval(loss, model.parameters(), optimizer.state)
        losses.append(loss)
    return mx.stack(losses), model


def training():
    """A part of the batch in each rank is as good as the whole batch in one."""
    want, alone = curve(lambda x: x, lambda g: g)
    assert want[-1].item() < 0.95 * want[0].item(), want
    for size in (32 << 20, 200, 0):                        # bytes that are averaged at a time
        losses, model = curve(share, lambda g: nn.average_gradients(g, GROUP, all_reduce_size=size))
        near(D.all_sum(losses, group=GROUP) / SIZE, want, 2e-5, f"losses, {size}")
        for (name, w), (_, w_alone) in zip(tree_flatten(model.parameters()), tree_flatten(alone.parameters())):
            near(w, w_alone, 1e-4, f"{name}, {size}")


def linear_layers():
    """A layer of which each rank has a part, against the layer, and its gradient."""
    mx.random.seed(6)
    x = mx.random.normal((5, 64 * SIZE))
    plain = nn.Linear(64 * SIZE, 32 * SIZE)
    plain.bias = mx.random.normal(plain.bias.shape)
    for layer in (plain, nn.QuantizedLinear.from_linear(plain, 32, 4), nn.QuantizedLinear.from_linear(plain, 64, 8)):
        def total(f, a):
            return mx.sin(f(a)).sum()
        what, y, slope = type(layer).__name__, layer(x), mx.grad(lambda a: total(layer, a))(x)
        out = shard_linear(layer, "all-to-sharded", group=GROUP)
        near(out(x), share(y, -1), 2e-5, what + ", all to sharded")
        near(mx.grad(lambda a: total(out, a))(x), slope, 2e-5, what + ", gradient of all to sharded")
        back = shard_linear(layer, "sharded-to-all", group=GROUP)
        near(back(share(x, -1)), y, 2e-5, what + ", sharded to all")
        near(mx.grad(lambda a: total(back, a))(share(x, -1)), share(slope, -1), 2e-5, what + ", gradient")


# ---- mlx_lm ---------------------------------------------------------------------------------------------------------

COMMON = {"vocab_size": 160, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "rms_norm_eps": 1e-6,
          "num_attention_heads": 4, "num_key_value_heads": 4, "rope_theta": 10000.0, "max_position_embeddings": 512}
CONFIGS = {
    "llama": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "deepseek_v3": {"moe_intermediate_size": 64, "n_shared_experts": 1, "n_routed_experts": 4, "kv_lora_rank": 32,
                    "q_lora_rank": 48, "qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 16,
                    "num_experts_per_tok": 2, "first_k_dense_replace": 1},
}


def model_of(kind, bits):
    """The same random weights in every rank."""
    module = importlib.import_module("mlx_lm.models." + kind)
    mx.random.seed(8)
    model = module.Model(module.ModelArgs.from_dict({"model_type": kind, **COMMON, **CONFIGS[kind]}))
    model.update(tree_map(lambda w: w * 3 if w.ndim > 1 else w, model.parameters()))
    if bits:
        nn.quantize(model, 32, bits)
    return model


def written(model, count=12):
    """Greedy tokens, and by how much each was the best."""
    from mlx_lm.generate import generate_step
    found = list(generate_step(mx.array([7, 3, 99, 12, 54]), model, max_tokens=count))
    best = [mx.sort(p)[-2:] for _, p in found]
    return [int(t) for t, _ in found], [(b[1] - b[0]).item() for b in best]


def same_text(model, tokens, margins, what):
    for i, (got, want, margin) in enumerate(zip(written(model)[0], tokens, margins)):
        assert got == want or margin < 1e-3, f"rank {RANK}, {what}: token {i} is {got}, not {want}, by {margin}"
        if got != want:
            return


def language_models():
    """A model of which each rank has a part of every layer, or some of the layers, writes what one process writes."""
    for kind, bits, way in (("llama", 0, "shard"), ("qwen3", 0, "shard"), ("qwen3", 4, "shard"),
                            ("deepseek_v3", 0, "shard"), ("deepseek_v3", 0, "pipeline")):
        tokens, margins = written(model_of(kind, bits))
        assert len(set(tokens)) > 4, tokens
        model = model_of(kind, bits)
        if way == "shard":
            model.shard(GROUP)
        else:
            model.model.pipeline(GROUP)
        same_text(model, tokens, margins, f"{kind} of {bits} bits, {way}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
    print(f"rank {RANK} of {SIZE} on {mx.default_device()}: {' '.join(sys.argv[1:])}")
