"""Streams, threads, events and the end of the process."""
import gc
import threading

import mlx.core as mx
import numpy as np
import pytest

from support import *


def chain(x, stream, steps=8):
    for i in range(steps):
        x = mx.sin(x, stream=stream) + mx.array(i / 8, mx.float32)
    return x


def expected(x, steps=8):
    x = np.asarray(x, dtype=np.float64)
    for i in range(steps):
        x = np.sin(x) + i / 8
    return x


def close(x, want, limit=1e-4):
    assert np.allclose(np.array(x), want, atol=limit), f"{np.array(x)}, not {want}"


def in_threads(count, work):
    """Runs work(i) in threads; what one raises is raised here."""
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_devices_and_streams():
    assert mx.default_device() == mx.gpu and str(mx.default_device()) == "Device(gpu, 0)" and mx.is_available(mx.gpu)
    a, b = mx.default_stream(mx.gpu), mx.new_stream(mx.gpu)
    assert a.device == mx.gpu and b.device == mx.gpu and a != b and mx.default_stream(mx.cpu).device == mx.cpu
    x = mx.array(1.0)
    for where in (None, mx.gpu, mx.cpu, a, b, mx.new_stream(mx.cpu)):
        assert mx.add(x, x, stream=where).item() == 2
    with mx.stream(b):
        assert mx.default_stream(mx.gpu) == b and (x + x).item() == 2
    with mx.stream(mx.cpu):
        assert mx.default_device() == mx.cpu
    assert mx.default_stream(mx.gpu) == a and mx.default_device() == mx.gpu


def test_default_stream_can_be_set():
    old, new = mx.default_stream(mx.gpu), mx.new_stream(mx.gpu)
    try:
        mx.set_default_stream(new)
        assert mx.default_stream(mx.gpu) == new and mx.exp(mx.zeros(3)).tolist() == [1, 1, 1]
        mx.synchronize()
    finally:
        mx.set_default_stream(old)


def test_several_gpu_streams_at_once():
    streams = [mx.new_stream(mx.gpu) for _ in range(4)]
    x = mx.arange(1000) / 1000.0
    results = [chain(x + i, s) for i, s in enumerate(streams)]
    mx.eval(results)
    for i, r in enumerate(results):
        close(r, expected(np.arange(1000) / 1000 + i))


WAYS = {"gpu to cpu": (mx.gpu, mx.cpu), "cpu to gpu": (mx.cpu, mx.gpu), "gpu to gpu": (mx.gpu, mx.gpu), "cpu to cpu": (mx.cpu, mx.cpu)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("between", ("one eval", "async_eval", "eval"))
def test_results_go_from_stream_to_stream(way, between):
    first, second = map(mx.new_stream, WAYS[way])
    x = mx.arange(500) / 500.0
    for _ in range(3):
        y = chain(x, first)
        if between == "async_eval":
            mx.async_eval(y)
        elif between == "eval":
            mx.eval(y)
        z = chain(y, second)
        close(z, expected(expected(np.arange(500) / 500)))


def test_back_and_forth_in_one_eval():
    streams = [mx.new_stream(d) for d in (mx.gpu, mx.cpu, mx.gpu, mx.cpu)]
    x = mx.zeros(64)
    for i in range(40):
        x = mx.add(x, i, stream=streams[i % 4])
    assert x.tolist() == [sum(range(40))] * 64


def test_diamond_over_streams():
    s1, s2, s3 = mx.new_stream(mx.gpu), mx.new_stream(mx.cpu), mx.new_stream(mx.gpu)
    for n in (1, 33, 5000):
        x = mx.exp(mx.arange(n) / float(n), stream=s1)
        a, b = mx.sin(x, stream=s2), mx.cos(x, stream=s3)
        want = np.exp(np.arange(n) / n)
        close(mx.add(mx.square(a, stream=s3), mx.square(b, stream=s2), stream=s1), np.ones(n))
        close(mx.multiply(a, b, stream=s2), np.sin(want) * np.cos(want))


def test_operand_that_a_later_stream_overwrites():
    """What one stream still reads must not be given to another as memory."""
    s1, s2 = mx.new_stream(mx.gpu), mx.new_stream(mx.gpu)
    for i in range(20):
        x = mx.full((4096,), i, dtype=mx.float32, stream=s1)
        y = mx.sum(chain(x, s1, 4) * 0 + x, stream=s2)
        del x
        z = mx.full((4096,), 999.0, stream=s2) + 1
        mx.eval(y, z)
        assert y.item() == i * 4096


def test_async_eval():
    x = mx.arange(100) / 100.0
    want = np.arange(100) / 100
    results = []
    for i in range(30):
        x = mx.sin(x) + 0.5
        want = np.sin(want) + 0.5
        mx.async_eval(x)
        results.append((x, want))
    for y, w in results[::-3]:
        close(y, w)
    mx.async_eval(results[0][0])
    y = mx.exp(x)
    mx.async_eval(y, [y + 1], {"z": y + 2})
    assert y.shape == (100,)


def test_async_eval_of_each_step_of_a_cache():
    cache = mx.zeros((1, 64, 8))
    for i in range(64):
        cache[:, i] = mx.full((8,), i) + cache[:, i - 1, 0] * 0
        mx.async_eval(cache)
    assert cache[0, :, 3].tolist() == list(range(64))


def test_events_in_both_orders():
    g, c = mx.new_stream(mx.gpu), mx.new_stream(mx.cpu)
    for first, second in ((g, c), (c, g)):
        a = mx.exp(mx.arange(9) / 9.0, stream=first)
        mx.async_eval(a)
        mx.synchronize(first)
        close(mx.log(a, stream=second), np.arange(9) / 9)  # already signalled
        b = chain(mx.arange(9) / 9.0, first, 30)
        mx.async_eval(b)
        close(mx.negative(b, stream=second), -expected(np.arange(9) / 9, 30))  # not yet signalled


def test_synchronize():
    for stream in (None, mx.default_stream(mx.gpu), mx.default_stream(mx.cpu), mx.new_stream(mx.gpu)):
        if stream is None:
            mx.synchronize()
        else:
            x = chain(mx.zeros(10), stream)
            mx.async_eval(x)
            mx.synchronize(stream)
            close(x, expected(np.zeros(10)))


def test_more_work_than_fits_in_flight():
    x = mx.zeros(100)
    for _ in range(3000):
        x = x + 1
    assert x[7].item() == 3000
    y = [mx.full((10,), i) * 2 for i in range(500)]
    mx.async_eval(y)
    assert [a[3].item() for a in y] == [2 * i for i in range(500)]


def test_threads_with_a_stream_each():
    def work(i):
        with mx.stream(mx.new_stream(mx.gpu)):
            x = mx.arange(300) / 300.0 + i
            for _ in range(5):
                close(chain(x, None), expected(np.arange(300) / 300 + i))
    in_threads(4, work)


def test_threads_with_a_cpu_stream_each():
    def work(i):
        stream = mx.new_stream(mx.cpu)
        for _ in range(5):
            close(chain(chain(mx.full((20,), i / 4), stream), mx.default_stream(mx.gpu)), expected(expected(np.full(20, i / 4))))
    in_threads(2, work)


def test_threads_that_share_the_default_stream():
    """MLX asks its users to evaluate from one thread at a time; building and reading may happen in several."""
    lock = threading.Lock()

    def work(i):
        for _ in range(10):
            x = chain(mx.arange(50) / 50.0 + i, None)
            with lock:
                mx.eval(x)
            close(x, expected(np.arange(50) / 50 + i))
    in_threads(4, work)


def test_threads_that_make_and_drop_streams():
    def work(i):
        for _ in range(5):
            assert mx.add(mx.ones(3), i, stream=mx.new_stream(mx.gpu)).tolist() == [i + 1] * 3
    in_threads(3, work)


def test_results_dropped_while_they_are_computed():
    for i in range(50):
        mx.async_eval(chain(mx.full((2000,), i / 50), mx.new_stream(mx.gpu) if i % 10 == 0 else mx.gpu, 3))
    gc.collect()
    assert (mx.ones(3) * 2).tolist() == [2, 2, 2]


def test_error_in_the_middle_leaves_the_rest_readable():
    x = mx.ones(5) * 3
    mx.async_eval(x)
    with pytest.raises(ValueError):
        mx.eval(x + 1, mx.linalg.inv(mx.ones((3, 3)), stream=mx.gpu))
    with pytest.raises(ValueError):
        mx.eval(mx.ones((2, 3)) @ mx.ones((2, 3)))
    assert x.tolist() == [3] * 5 and (x + 1).tolist() == [4] * 5


def test_cpu_error_reaches_python_or_later_work_runs():
    """A singular matrix fails while the CPU stream computes it."""
    got = run("import mlx.core as mx\n"
              "try:\n    mx.eval(mx.linalg.cholesky(mx.zeros((3, 3)) - 1, stream=mx.cpu) + 1)\nexcept Exception: pass\n"
              "print((mx.ones(3) + 1).tolist())")
    assert "[2.0, 2.0, 2.0]" in got.stdout or got.returncode < 0  # MLX itself may terminate, on every device


# ---- the end of the process ------------------------------------------------------------------------------------------

BUSY = """
import mlx.core as mx, threading, sys, os, atexit, gc
for_all = getattr(mx, "new_thread_unsafe_stream", mx.new_stream)
def work(stream=None, steps=100):  # threads must not share the graph of the random state
    x = mx.random.uniform(shape=(128, 128), key=mx.random.key(7), stream=stream)
    for _ in range(steps):
        x = mx.sin(mx.matmul(x, x, stream=stream) / 100, stream=stream)
    mx.async_eval(x)
    return x
"""
EXITS = {
    "nothing done": "",
    "work in flight": "x = work()",
    "result dropped": "work()",
    "evaluated": "mx.eval(work())",
    "lazy only": "x = mx.ones(3) + 1",
    "several streams": "xs = [work(mx.new_stream(mx.gpu), 50) for _ in range(3)] + [work(mx.cpu, 20)]",
    "cpu waits for the gpu": "x = mx.exp(work(), stream=mx.cpu); mx.async_eval(x)",
    "gpu waits for the cpu": "x = mx.exp(work(mx.cpu, 50), stream=mx.gpu); mx.async_eval(x)",
    "a stream for each thread": "ts = [threading.Thread(target=lambda: mx.eval(work(mx.new_stream(mx.gpu), 50))) for _ in range(3)]\n"
                                "[t.start() for t in ts]",
    "threads that leave work": "ts = [threading.Thread(target=work, args=(for_all(mx.gpu), 100)) for _ in range(3)]\n"
                               "[t.start() for t in ts]; [t.join() for t in ts]",
    # (Python ends a daemon thread that is inside of MLX by unwinding it, and the process aborts, on every device.)
    "idle daemon threads": "e, r = threading.Event(), [threading.Event() for _ in range(3)]\n"
                           "for i in r: threading.Thread(target=lambda i=i: (work(), i.set(), e.wait()), daemon=True).start()\n"
                           "[i.wait() for i in r]",
    "sys.exit": "x = work(); sys.exit(0)",
    "at exit": "x = work(); atexit.register(lambda: (mx.eval(x), print(x.shape)))",
    "cycle": "a = []; a.append((a, work())); del a",
    "module global of numpy": "import numpy as np; x = work(steps=2); v = np.array(x, copy=False); del x",
    "compiled function": "f = mx.compile(lambda x: mx.exp(x) + 1); x = f(work()); mx.async_eval(x)",
    "many small arrays": "xs = [mx.full((i,), 1) + 1 for i in range(300)]; mx.async_eval(xs)",
    "exit after clear_cache": "x = work(); del x; mx.clear_cache()",
    "other default device": "mx.set_default_device(mx.cpu); x = work(None, 30)",
}


@pytest.mark.parametrize("name", EXITS)
def test_exit(name):
    got = run(BUSY + EXITS[name])
    assert (got.returncode, got.stderr) == (0, ""), f"{name}: {got.returncode} {got.stderr}"


def test_exit_after_an_exception():
    got = run(BUSY + "x = work()\nraise SystemError('on purpose')")
    assert got.returncode == 1 and got.stderr.rstrip().endswith("SystemError: on purpose") and got.stderr.count("Traceback") == 1


def test_exit_without_cleaning_up():
    got = run(BUSY + "x = work(); sys.stdout.flush(); os._exit(3)")
    assert (got.returncode, got.stderr) == (3, "")


def test_interrupted():
    got = run(BUSY + "import signal\nx = work()\ntry:\n    signal.raise_signal(signal.SIGINT)\n"
                     "except KeyboardInterrupt: print((mx.ones(2) + 1).tolist())")
    assert (got.returncode, got.stdout.strip(), got.stderr) == (0, "[2.0, 2.0]", "")


ROPE_OFFSETS = {
    "a number": lambda: 5,
    "an array": lambda: mx.array(5),
    "of one dimension": lambda: mx.array([5]),
    "a part of an array": lambda: mx.array([3, 5, 9])[1],
    "computed on the GPU": lambda: mx.array(2) + 3,
    "computed and known": lambda: computed(mx.array(2) + 3),
    "computed on the CPU": lambda: mx.add(mx.array(2), 3, stream=mx.cpu),
    "of another dtype": lambda: mx.array(5, mx.int64),
    "one for each": lambda: mx.array([5, 11]),
}


def computed(x):
    mx.eval(x)
    return x


@pytest.mark.parametrize("kind", ROPE_OFFSETS)
def test_rope_by_offsets_of_all_kinds(kind):
    """What the host knows is passed as a number, what it does not is read on the GPU: the same rotation."""
    x = mx.random.normal((2, 3, 4, 64), key=mx.random.key(3))
    first = 5 if kind != "one for each" else None
    for _ in range(3):
        got = mx.fast.rope(x, 64, traditional=False, base=10000.0, scale=1.0, offset=ROPE_OFFSETS[kind]())
        mx.eval(got)
        for i, at in enumerate((first, first) if first else (5, 11)):
            want = mx.fast.rope(x[i:i + 1], 64, traditional=False, base=10000.0, scale=1.0, offset=at, stream=mx.cpu)
            close(got[i:i + 1], want, 1e-5)


def test_operands_read_by_other_threads_meanwhile():
    """A thread reads what others compute with: what is lent to a call stays until the call is over."""
    w = mx.random.normal((64, 64), key=mx.random.key(4))
    mx.eval(w)
    want = np.array(w)
    gpu = [getattr(mx, "new_thread_unsafe_stream", mx.new_stream)(mx.gpu) for _ in range(2)]

    def work(i):
        for _ in range(40):
            if i < 2:
                y = mx.add(w, w, stream=gpu[i])
                mx.eval(mx.multiply(y, w, stream=gpu[i]))
            else:
                assert np.array_equal(np.array(w), want)
    in_threads(4, work)


FIRST_USE = """
import sys
sys.setswitchinterval(1e-6)
import threading
import mlx.core as mx
at_once, results = threading.Barrier(4), []
def work():
    at_once.wait()
    results.append(mx.add(mx.ones(3), 1).tolist())
threads = [threading.Thread(target=work) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(results == [[2] * 3] * 4)
"""


def test_first_use_by_several_threads_at_once():
    """MLX makes its default device then: who waits for that has Python's lock."""
    for _ in range(12):
        got = run(FIRST_USE, timeout=60)
        assert (got.returncode, got.stdout) == (0, "True\n"), got.stdout + got.stderr


WAITED_FOR = """
import mlx.core as mx, numpy as np, threading, time
w = mx.random.normal((2, 64), key=mx.random.key(4)); mx.eval(w)
want, wrong, end = np.array(w), [], time.time() + 3
def work(i):
    stream = None if hasattr(mx, "clear_streams") else mx.new_stream(mx.gpu)
    while time.time() < end:
        if i == 2: wrong.append(not np.array_equal(np.array(w), want)); time.sleep(1e-4)
        else: mx.eval(mx.sort(w, stream=stream) if i < 2 else mx.add(w, w, stream=stream))
threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
for t in threads: t.start()
for t in threads: t.join()
print(len(wrong) > 4, any(wrong))
"""


def test_operands_waited_for_while_others_want_them_on_the_host():
    """A discrete GPU's copy goes when the host wants the memory, whoever waits for it to be computed; what is freed is garbage."""
    got = run(WAITED_FOR, MLX_VK_FORCE_STAGING="1", MLX_VK_FALLBACK_FOR="Sort", MLX_VK_POISON="1", MALLOC_PERTURB_="165")
    assert (got.returncode, got.stdout) == (0, "True False\n"), got.stdout + got.stderr


@pytest.mark.skipif(MLX < (0, 32), reason="streams were for all threads")
def test_streams_belong_to_threads():
    mine, shared = mx.new_stream(mx.gpu), mx.new_thread_unsafe_stream(mx.gpu)

    def work(i):
        with pytest.raises(RuntimeError, match="no Stream"):
            mx.eval(mx.add(mx.ones(3), i, stream=mine))
        assert mx.add(mx.ones(3), i, stream=shared).tolist() == [i + 1] * 3
        assert mx.add(mx.ones(3), i).tolist() == [i + 1] * 3
        mx.clear_streams()
    in_threads(4, work)
    assert mx.add(mx.ones(3), 1, stream=mine).tolist() == [2] * 3


@pytest.mark.skipif(MLX < (0, 32), reason="there was nothing to clear")
def test_threads_that_come_and_go_leave_no_streams():
    def count(_):
        mx.eval(mx.exp(mx.ones(9)) + mx.linalg.inv(mx.eye(2), stream=mx.cpu).sum())
        counts.append(stats()["streams"])
    counts = []
    for _ in range(20):
        in_threads(1, count)
    assert max(counts) <= min(counts) + 2, counts          # a thread ends a moment after Python says so


@pytest.mark.skipif(MLX < (0, 32), reason="clear_streams is new")
def test_clear_streams():
    """In a program of its own: the main thread's default streams are gone then."""
    got = run("""
import mlx.core as mx, threading
x = mx.exp(mx.ones(3)); mx.eval(x)
def work():
    mx.clear_streams()
    print("cleared")
t = threading.Thread(target=work); t.start(); t.join()
print((x * 0 + mx.linalg.inv(mx.eye(3), stream=mx.cpu).sum()).tolist())
mx.clear_streams()
try: mx.eval(mx.exp(x))
except RuntimeError as error: print("no Stream" in str(error))
with mx.stream(mx.new_stream(mx.gpu)): print((mx.ones(2) + 1).tolist(), mx.linalg.qr(mx.eye(2), stream=mx.new_stream(mx.cpu))[1].shape)
""")
    assert got.returncode == 0 and got.stdout == "cleared\n[3.0, 3.0, 3.0]\nTrue\n[2.0, 2.0] (2, 2)\n", got.stdout + got.stderr


@pytest.mark.skipif(MLX < (0, 32), reason="such an error ended the process")
@pytest.mark.parametrize("way", ("eval", "async_eval", "other stream"))
def test_errors_of_the_cpu_arrive(way):
    """A task fails in the CPU stream's thread, a GPU stream goes on with its result: who waits for that is told."""
    stream = mx.new_stream(mx.gpu) if way == "other stream" else mx.default_stream(mx.gpu)
    for _ in range(5):
        with pytest.raises(RuntimeError, match="LU factorization"):
            bad = mx.linalg.inv(mx.array([[1.0, 2.0], [2.0, 4.0]]), stream=mx.cpu)
            y = mx.exp(bad, stream=stream) + 1
            if way == "eval":
                mx.eval(y)
            else:
                mx.async_eval(y)
                y.tolist()
        assert mx.exp(mx.zeros(3), stream=stream).tolist() == [1, 1, 1]


@pytest.mark.skipif(MLX < (0, 32), reason="such an error ended the process")
def test_errors_of_the_cpu_wait_for_who_waits():
    """Not for whoever gives that stream more to do: who may be quicker than the error, or not."""
    for _ in range(300):
        mx.async_eval(mx.linalg.inv(mx.array([[1.0, 2.0], [2.0, 4.0]]), stream=mx.cpu))
        mx.async_eval(mx.array(1.0) + mx.add(mx.array(1.0), 2.0, stream=mx.cpu))
        with pytest.raises(RuntimeError, match="LU factorization"):
            mx.synchronize(mx.cpu)
        assert mx.add(mx.array(1.0), 2.0, stream=mx.cpu).item() == 3


def test_products_without_rows_on_the_cpu():
    """MLX's CPU lets go of the copies of their operands, which its thread is still to make."""
    with mx.stream(mx.cpu):
        rows, matrix = mx.array(np.zeros((0, 4), np.float32)), mx.ones((4, 3))
        mx.eval(rows, matrix)
        for _ in range(20):
            for right in (matrix, matrix[::-1], mx.broadcast_to(matrix[:, :1], (4, 300))):
                product = rows @ right
                mx.eval(product)
                assert product.shape == (0, right.shape[1])
        mx.synchronize()


def test_graphs_in_place_of_operations_in_large_graphs():
    """What mlxvk refuses is computed by its graph, by the thread that records: on the stream that it was for."""
    code = """import mlx.core as mx
x, b = mx.random.normal((4, 16)), mx.ones(16)
def loss(x, b):
    for _ in range(120):
        x = x + 0.001
    return mx.square(mx.fast.layer_norm(x, None, b, 1e-5)).sum()
results = mx.grad(loss, argnums=(0, 1))(x, b)
mx.async_eval(results)
mx.eval(results)
with mx.stream(mx.cpu):
    want = mx.grad(loss, argnums=(0, 1))(x, b)
print(all(mx.allclose(r, w, atol=1e-4).item() for r, w in zip(results, want)))"""
    for walk in "123":
        result = run(code, timeout=60, MLX_VK_WALK=walk)
        assert result.stdout.split() == ["True"], result.stderr
