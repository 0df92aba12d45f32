"""The bridge's walk over a graph: what it is for, what it leaves to MLX's, and that both give the same."""
import gc
import os
import subprocess
import sys
import threading
import weakref

import mlx.core as mx
import numpy as np
import pytest

os.environ.setdefault("MLX_VK_WALK", "2")                   # read at the first evaluation: the thread is tested, too

import mlxvk_mlx
from support import *


class Walked:
    """How many graphs the bridge walked in a block."""

    def __enter__(self):
        self.before = mlxvk_mlx.stats()["walks"]
        return self

    def __exit__(self, *_):
        self.count = mlxvk_mlx.stats()["walks"] - self.before


def wide(x, branches):
    """Many branches that share what is below and above them."""
    base = mx.sin(x) * 0.5
    parts = [mx.cos(base + i / branches) for i in range(branches)]
    return sum(parts[1:], parts[0]) + base


def wide_numpy(x, branches):
    base = np.sin(np.float64(x)) * 0.5
    return sum(np.cos(base + i / branches) for i in range(branches)) + base


@pytest.mark.parametrize("branches", [1, 2, 19, 20, 21, 22, 150])
@pytest.mark.parametrize("evaluate", [mx.eval, mx.async_eval])
def test_shapes_of_graphs(branches, evaluate):
    x = mx.array(seeded("walk", branches).standard_normal(37).astype(np.float32))
    with Walked() as w:
        y = wide(x, branches)
        evaluate(y)
    assert w.count == 1
    assert np.allclose(np.array(y), wide_numpy(np.array(x), branches), atol=1e-4 * branches)


def test_deep_graph():
    x = mx.zeros(3)
    for _ in range(20000):
        x = x + 1
    with Walked() as w:
        mx.eval(x)
    assert w.count == 1 and x.tolist() == [20000] * 3


@pytest.mark.parametrize("evaluate", [mx.eval, mx.async_eval])
def test_several_results_of_one_primitive(evaluate):
    x = mx.array(seeded("siblings").standard_normal((6, 10)).astype(np.float32))
    with Walked() as w:
        a, b, c = mx.split(mx.exp(x), 3, axis=0)
        q, r = mx.divmod(b, c + 1)
        y = a * q
        evaluate(y, r)                                      # c's, q's and b's other readers are gone
        evaluate(a + q, c)
    assert w.count == 2
    e = np.exp(np.array(x, dtype=np.float64))
    A, B, C = e[:2], e[2:4], e[4:]
    assert np.allclose(np.array(y), A * np.floor(B / (C + 1)), rtol=1e-4)
    assert np.allclose(np.array(r), np.mod(B, C + 1), rtol=1e-3, atol=1e-4)
    assert np.allclose(np.array(c), C, rtol=1e-5)


def test_results_that_are_there_or_the_same():
    x = mx.arange(5) + 1
    mx.eval(x)
    y = x * 2
    with Walked() as w:
        mx.eval(x, y, y, [y, {"z": y + x}])
        mx.eval(y)                                          # nothing to do: not asked
    assert w.count == 1 and y.tolist() == [2, 4, 6, 8, 10]
    mx.async_eval(z := y * y)
    with Walked() as w:
        t = z + 1
        mx.async_eval(t)                                    # on what is still being computed
    assert w.count == 1 and t.tolist() == [5, 17, 37, 65, 101] and z.tolist() == [4, 16, 36, 64, 100]


def test_part_of_a_graph_first():
    x = mx.array([1.0, 2.0, 3.0])
    a = mx.exp(x)
    b = a * 2
    c = b + a
    mx.async_eval(b)
    mx.async_eval(c)
    assert np.allclose(np.array(c), 3 * np.exp([1, 2, 3]), rtol=1e-5) and np.allclose(np.array(b), 2 * np.exp([1, 2, 3]), rtol=1e-5)


@pytest.mark.parametrize("evaluate", [mx.eval, mx.async_eval])
def test_what_is_for_mlx(evaluate):
    x = mx.array([1.0, 2.0])
    other = mx.new_stream(mx.gpu)
    with Walked() as w:
        a = mx.exp(x, stream=mx.cpu) + 1
        evaluate(a)
        b = mx.exp(x, stream=other) * x
        evaluate(b)
        c = mx.exp(x, stream=mx.cpu)
        evaluate(c)
    assert w.count == 0
    e = np.exp([1.0, 2.0])
    assert np.allclose(np.array(a), e + 1) and np.allclose(np.array(b), e * [1, 2]) and np.allclose(np.array(c), e)
    with Walked() as w:
        with mx.stream(other):
            evaluate(d := mx.exp(x))
    assert w.count == 1 and np.allclose(np.array(d), e)


def test_results_of_other_streams_as_inputs():
    x, other = mx.array([1.0, 2.0]), mx.new_stream(mx.gpu)
    for _ in range(30):
        a, b = mx.exp(x, stream=other), mx.exp(x, stream=mx.cpu)
        mx.async_eval(a, b)
        y = (a + b) * 2
        mx.async_eval(y)
        assert np.allclose(np.array(y), 4 * np.exp([1.0, 2.0]), rtol=1e-5)


def test_transformations():
    def f(x):
        y = mx.sin(x) * x
        mx.eval(y)                                          # within: the graph stays
        return y.sum()

    x = mx.array([0.5, 1.5])
    g = mx.grad(f)(x)
    assert np.allclose(np.array(g), np.cos([0.5, 1.5]) * [0.5, 1.5] + np.sin([0.5, 1.5]), rtol=1e-5)

    def wrong(x):
        mx.async_eval(x * 2)
        return x.sum()
    with pytest.raises(ValueError, match="async_eval"):
        mx.grad(wrong)(x)
    with pytest.raises(ValueError, match="transformations"):
        mx.vmap(lambda a: mx.array(a.tolist()))(x)
    with Walked() as w:
        mx.eval(mx.exp(x))                                  # and after it as before
    assert w.count == 1


def test_an_error_in_the_middle():
    x = mx.array([2.0, 1.0])
    mx.eval(x)
    good = x + 1
    bad = mx.contiguous(mx.broadcast_to(good[0], (1 << 15, 1 << 15, 1 << 12)))       # 16 TiB
    for evaluate in (mx.eval, mx.async_eval):
        with Walked() as w:
            with pytest.raises(RuntimeError):
                evaluate(good, bad)
                mx.eval(bad)                                # told here where a thread recorded it
        assert w.count >= 1
    assert (good + 1).tolist() == [4, 3] and (x * 2).tolist() == [4, 2]


def test_memory_is_given_back_on_the_way():
    """A chain of large arrays in which each is dropped as soon as the next is there."""
    x = mx.zeros((1 << 14,))
    mx.eval(x)
    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    y = x
    for i in range(32):
        y = mx.sort(y + i)
    mx.eval(y)
    del y
    assert mx.get_peak_memory() - before < 16 * x.nbytes


def test_in_place():
    """The cache of a language model: written in place, token by token."""
    cache, memory = mx.zeros((1, 2, 64, 8)), []
    for i in range(40):
        cache[:, :, i:i + 1, :] = mx.full((1, 2, 1, 8), float(i))
        total = cache[:, :, :i + 1, :].sum()
        mx.async_eval(cache, total)
        assert total.item() == 16 * i * (i + 1) / 2
        memory.append(mx.get_active_memory())
    assert max(memory[10:]) <= memory[9] + 8192


def in_threads(work):
    """work(0) to work(3), each in a thread of its own: what one raises is raised here."""
    errors = []

    def one(i):
        try:
            work(i)
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive()
    assert not errors, errors[0]


def test_threads():
    x = mx.array([1.0, 2.0])
    mx.eval(x)
    def work(i):
        with mx.stream(mx.new_stream(mx.gpu)):
            for k in (3, 4, 3, 4, 3):
                y = wide(x + i, k)
                mx.eval(y)
                assert np.allclose(np.array(y), wide_numpy(np.array([1.0, 2.0]) + i, k), atol=1e-3)
    in_threads(work)


NEW = MLX >= (0, 32)                                        # see walk.cpp

# ---- large graphs are recorded by a thread of the bridge's: what async_eval() returns before it has data ----

def long_graph(x, length=400):
    """More primitives than a graph must have for that, in an order that no two of them may change."""
    for i in range(length // 2):
        x = mx.abs(x - 1 / (i + 2))
    return x


def long_numpy(x, length=400):
    x = np.float32(x)
    for i in range(length // 2):
        x = np.abs(x - np.float32(1 / (i + 2)))
    return x


def test_recorded_elsewhere():
    x = mx.array(seeded("long").standard_normal(33).astype(np.float32))
    want = long_numpy(np.array(x))
    for _ in range(20):
        before = mlxvk_mlx.stats()["handed_over"]
        y = long_graph(x)
        mx.async_eval(y)
        z = long_graph(y)                                   # of what has no data yet
        mx.async_eval(z)
        assert mlxvk_mlx.stats()["handed_over"] - before == (2 if NEW else 0)
        assert np.array_equal(np.array(y), want) and np.array_equal(np.array(z), long_numpy(want))


def test_recorded_while_others_are_used():
    """The thread that called goes on with the same arrays: reads, drops, traces, evaluates on other streams."""
    other = mx.new_stream(mx.gpu)
    x = mx.array(seeded("used").standard_normal(33).astype(np.float32))
    want = long_numpy(np.array(x))
    compiled = mx.compile(lambda a: mx.sin(a) + a)
    for use in (lambda y: np.array(y), lambda y: np.array(mx.add(y, 0, stream=other)),
                lambda y: np.array(mx.add(y, 0, stream=mx.cpu)), lambda y: np.array(compiled(y) - mx.sin(y)),
                lambda y: np.array(mx.grad(lambda a: (a * y).sum())(x)),
                lambda y: np.array(mx.compile(lambda a: a + y)(mx.zeros(33))), lambda y: (mx.synchronize(), np.array(y))[1]):
        y = long_graph(x)
        mx.async_eval(y)
        assert np.allclose(use(y), want, atol=1e-6)
        y = long_graph(x)
        parts = mx.split(y, 3)
        mx.async_eval(parts)
        last = use(mx.concatenate(parts))
        del y, parts
        assert np.allclose(last, want, atol=1e-6)
    mx.async_eval(long_graph(x))                            # nobody wants it
    del x
    gc.collect()


def test_recorded_in_place():
    """A cache of which nobody but the graph knows is written where it lies, as when the caller records."""
    cache, memory = mx.zeros((64, 8)), []
    for i in range(40):
        cache[i:i + 1] = mx.full((1, 8), float(i)) + 0 * long_graph(cache[:1])
        total = cache[:i + 1].sum()
        mx.async_eval(cache, total)
        assert total.item() == 4 * i * (i + 1)
        memory.append(mx.get_active_memory())
    assert max(memory[10:]) <= memory[9] + 8192


def test_recorded_with_an_error():
    """Who waits for it is told, once for each try; what was computed before is there, and the rest is as it was."""
    x = mx.array([2.0, 1.0])
    good = long_graph(x)
    bad = mx.contiguous(mx.broadcast_to(good[0], (1 << 15, 1 << 15, 1 << 12)))       # 16 TiB
    last = long_graph(bad[0, 0, :1])
    for _ in range(2):
        with pytest.raises(RuntimeError):
            mx.async_eval(last)                             # raises by itself in older versions alone
            last.tolist()
    with pytest.raises(RuntimeError):
        mx.eval(last)
    with pytest.raises(RuntimeError):
        mx.async_eval(last)
        mx.eval(last + 1)                                   # what it waits for is recorded anew, by who calls
    assert np.array_equal(np.array(good), long_numpy([2.0, 1.0])) and (x * 2).tolist() == [4, 2]


def test_memory_of_what_is_still_recorded():
    """What users let go of is not counted, also where a graph has it that nobody waits for: mx.synchronize() does not."""
    other = mx.new_stream(mx.gpu)

    def dropped():
        with mx.stream(other):
            x = mx.zeros(1 << 18)
            mx.eval(x)
            mx.async_eval(long_graph(mx.zeros(8), 6000) + x[:8])    # the thread needs longer than who calls
    dropped()
    mx.synchronize(other)
    before = mx.get_active_memory()
    for ask in (lambda: None, mx.synchronize, mx.clear_cache, mx.get_cache_memory, mx.reset_peak_memory):
        dropped()
        ask()
        assert mx.get_active_memory() == before
        dropped()
        mx.reset_peak_memory()
        assert mx.get_peak_memory() <= before               # of what comes from now on


def test_recorded_with_functions_of_python():
    """They are let go of, by who may; what else a graph had goes with it."""
    class Held:
        pass
    x = mx.array(seeded("functions").standard_normal(33).astype(np.float32))
    want = long_numpy(long_numpy(np.array(x)) + 1)
    seen = []
    for _ in range(20):
        held = Held()
        seen.append(weakref.ref(held))
        add = mx.custom_function(lambda a: a + 1)
        add.vjp(lambda primals, cotangent, output, held=held: cotangent)
        y = long_graph(add(long_graph(x)))
        mx.async_eval(y)
        del held, add
        gc.collect()
        assert np.array_equal(np.array(y), want)
    mx.async_eval(long_graph(x))
    mx.synchronize()
    mx.get_active_memory()                                  # what is left of a graph goes
    gc.collect()
    assert not any(s() for s in seen)


def test_recorded_for_threads():
    def work(i):
        with mx.stream(mx.new_stream(mx.gpu)):
            x = mx.array(seeded("threads", i).standard_normal(9).astype(np.float32))
            want = long_numpy(np.array(x))
            for _ in range(10):
                y = long_graph(x)
                mx.async_eval(y)
                mx.async_eval(z := long_graph(x) + 1)
                assert np.array_equal(np.array(y), want) and np.allclose(np.array(z), want + 1)
            mx.async_eval(long_graph(x))                # the thread and its streams go meanwhile
    in_threads(work)


def test_recorded_for_threads_that_do_all_of_it():
    """Threads that evaluate on their streams, fail, free what others made, and ask for memory meanwhile."""
    shared, lock = [], threading.Lock()
    huge = lambda a: mx.contiguous(mx.broadcast_to(a[0], (1 << 15, 1 << 15, 1 << 12)))
    compiled = mx.compile(lambda a: mx.abs(mx.sin(a) * 2 - a) + 1)

    def work(i):
        with mx.stream(mx.new_stream(mx.gpu)):
            for k in range(8):
                x = mx.array(seeded("all", i, k).standard_normal(9).astype(np.float32))
                want = long_numpy(np.array(x))
                y = long_graph(x)
                mx.async_eval(y)
                with lock:
                    shared.append(y)
                    gone = shared.pop(0) if len(shared) > 3 else None
                del gone                                    # of another thread, perhaps still being recorded
                if k % 4 == i:
                    with pytest.raises(RuntimeError):
                        bad = long_graph(huge(y)[0, 0, :1])
                        mx.async_eval(bad)
                        bad.tolist()
                z = compiled(long_graph(y, 200))
                mx.async_eval(z)
                (mx.clear_cache, mx.get_active_memory, mx.reset_peak_memory, mx.get_cache_memory)[k % 4]()
                assert np.array_equal(np.array(y), want)
                y = long_numpy(want, 200)
                assert np.allclose(np.array(z), np.abs(np.sin(y) * 2 - y) + 1, atol=1e-5)
    in_threads(work)
    shared.clear()


BORROWED = """
import io, sys, threading, time
import mlxvk_mlx, numpy as np, mlx.core as mx
given = np.ones(8, np.float32)
class Slow:
    def __del__(self, sleep=time.sleep): sleep(%r)
def work(x):
    y = mx.zeros(8)
    for _ in range(6000): y = mx.abs(y - 1)
    mx.async_eval(y + x)
"""


@pytest.mark.skipif(MLX < (0, 32, 3), reason="MLX might overwrite such memory")
@pytest.mark.parametrize("ask", ["mx.get_active_memory", "mx.clear_cache", "mx.reset_peak_memory", "mx.clear_streams", "mx.synchronize"])
def test_recorded_with_a_callers_memory(ask):
    """The thread lets go of it, for which it needs Python's lock: who waits for the thread has that."""
    code = BORROWED % 0 + "x = mx.asarray(given, copy=False)\nwork(x)\ndel x\n%s()\nprint('done')" % ask
    assert run("import ctypes\n" + code).stdout == "done\n"


@pytest.mark.skipif(not NEW, reason="no thread records")
def test_recorded_with_a_file_of_python():
    code = BORROWED % 0 + """
np.save(file := io.BytesIO(), given)
file.seek(0)
work(mx.load(file, format="npy", stream=mx.gpu))
mx.get_active_memory()
print('done')"""
    assert run(code).stdout == "done\n"


def test_recorded_when_python_goes():
    """While it goes, threads that want its lock are ended, in the middle of what they do."""
    borrowed = "mx.asarray(given, copy=False)" if MLX >= (0, 32, 3) else "mx.array(given)"
    out = run(BORROWED % 1.0 + f"work({borrowed})\nslow = Slow()\ndel given")
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")
    late = "class Late:\n    def __del__(self, work=work, one=mx.ones(8)): work(one)\nlate = Late()\n"
    out = run(BORROWED % 0 + late)                          # a graph of one that goes with it
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


def test_recorded_when_the_process_forks():
    """A child cannot use the GPU, which it is told, but goes as it likes."""
    refused = "\n    try: print((x + 2).tolist())\n    except RuntimeError as e: sys.exit(3 if 'forked' in str(e) else str(e))"
    for end in (refused, "sys.exit(3)", "os._exit(3)", "del x; gc.collect(); sys.exit(3)"):
        out = run(BORROWED % 0 + f"""
import gc, os
x = mx.ones(8)
work(x)
child = os.fork()
if not child: {end}
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (x + 1).tolist()[0])""")
        assert out.stdout == "3 2.0\n", (end, out.stderr)


@pytest.mark.parametrize("before", ["", "mx.eval(x)", "mx.async_eval(y)", "work(x)"])
def test_computing_in_a_forked_process(before):
    """A child would wait for the GPU without end: it is told so instead, each time, and may compute on the CPU."""
    out = run(BORROWED % 0 + f"""
import os
x = mx.ones(8)
y = x + 2
{before}
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), y.tolist()[0])
    sys.exit()
told = 0
for ask in (y.tolist, lambda: mx.eval(mx.zeros(3) + 1), mx.synchronize, lambda: mx.async_eval(mx.arange(3) * 2), y.tolist):
    try: ask()
    except RuntimeError as e: told += "forked" in str(e)
if not {bool(before)}: told += mx.add(mx.array([2]), 1, stream=mx.cpu).item()
os._exit(told)""")
    assert out.stdout == ("5 3.0\n" if before else "8 3.0\n"), (out.stdout, out.stderr)


def test_recorded_at_the_end_of_the_process():
    code = ("import mlxvk_mlx, mlx.core as mx\nx = mx.ones((64, 64))\n"
            "for i in range(600): x = mx.sort(x + i)\nmx.async_eval(x)\n%s")
    for end in ("", "import os, sys; sys.exit(3)", "mx.clear_streams()" if NEW else ""):
        out = subprocess.run([sys.executable, "-c", code % end], capture_output=True, text=True, timeout=120)
        assert out.returncode == (3 if "exit" in end else 0), out.stderr
        assert not out.stderr


PROGRAM = """
import mlxvk_mlx as bridge, mlx.core as mx, mlx.nn as nn
mx.random.seed(3)
layer = nn.TransformerEncoderLayer(32, 4, 64)
x = mx.random.normal((2, 7, 32))
y = layer(x, None)
for _ in range(60):
    y = y * 1 + 0
mx.async_eval(y)
print(bridge.stats()["walks"] > 0, [v.hex() for v in y.flatten().tolist()])
"""


def test_gate():
    """The same bits by MLX's walk, by the bridge's, and by its thread."""
    lines = []
    for value in ("0", "1", "2", "3"):
        out = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "MLX_VK_WALK": value}, capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
        lines.append(out.stdout.split(" ", 1))
    assert [line[0] for line in lines] == ["False", "True", "True", "True"] and len({line[1] for line in lines}) == 1


LAYERS = """
import copy, pickle, sys, traceback
import mlxvk_mlx, mlx.core as mx, mlx.nn as nn

class Part(nn.Module):
    kind = "a class's"
    def __init__(self):
        super().__init__()
        self.weight = mx.ones(3)
        self.inner = nn.Linear(3, 2)
        self.number = 4
        self["nothing"] = None
        self["kind"] = "hidden"
    @property
    def half(self):
        return self.number / 2
    @property
    def broken(self):
        return self.no_such_part
    @property
    def counted(self):
        asked.append("counted")
        return self.no_such_part
class Slots(Part):
    __slots__ = ("slot", "weight", "empty")
    def __init__(self):
        super().__init__()
        self.slot = "a slot's"
class Descriptor:
    def __get__(self, x, type): return "a descriptor's" if x is not None else self
    def __set__(self, x, value): raise AttributeError("read only")
class Weak:
    def __get__(self, x, type): raise AttributeError("a weak one's")
class Described(Part):
    made, other = Descriptor(), Weak()
    def __init__(self):
        super().__init__()
        dict.__setitem__(self, "made", 1)
        dict.__setitem__(self, "other", 2)
class Fails(Part):
    @property
    def broken(self): raise KeyError("another error")
class Mixin:
    def __getattribute__(self, name):
        return "mixed" if name == "everything" else super().__getattribute__(name)
class Mixed(Mixin, Part): pass
class MixedBehind(Part, Mixin): pass
class Own(Part):
    def __getattr__(self, name):
        return "own " + name if name == "everything" else super().__getattr__(name)
class Whole(Part):
    def __getattribute__(self, name):
        return "all" if name == "everything" else super().__getattribute__(name)
class Later(Part):
    pass

asked = []
def tell(x):
    for name in ("weight", "inner", "number", "kind", "nothing", "half", "broken", "no_such_part", "everything", "items", "counted",
                 "slot", "empty", "made", "other", "get", "__dict__", "__class__", "training", ""):
        try:
            value = getattr(x, name)
            value = sorted(value) if type(value) is dict else value
            print(type(x).__name__, name, value.tolist() if isinstance(value, mx.array) else type(value) if callable(value) else value)
        except Exception as e:
            print(type(x).__name__, name, type(e), e, [f.name for f in traceback.extract_tb(e.__traceback__)], e.__context__)
    print(len(asked), getattr(x, "none", 7))
    asked.clear()
    try:
        getattr(x, 5)
    except TypeError as e:
        print(e)

def step(x, count=[0]):
    for _ in range(60):
        x = x * 1 + 0
    mx.async_eval(x)
    return mx.fast.rms_norm(x, None, 1e-5)

def by_python():
    calls = []
    sys.setprofile(lambda frame, event, _: event == "call" and calls.append(frame.f_code.co_name))
    part.weight
    sys.setprofile(None)
    return "__getattr__" in calls

part, later = Part(), Later()
first = by_python()
mx.eval(step(mx.ones(8)), step(mx.ones(8)))
print(first, by_python(), file=sys.stderr)
for x in (part, Own(), Whole(), later, copy.deepcopy(part), Slots(), Described(), Fails(), Mixed(), MixedBehind()):
    tell(x)
class New(Part):
    def __getattr__(self, name): return "new " + name if name == "everything" else super().__getattr__(name)
for x in (New(), type("Newer", (Part,), {})()):
    tell(x)
gone = Part()
del gone.weight, gone.number, gone["kind"]
tell(gone)
gone.weight = 1                                             # an attribute, not an item
gone["weight"] = 2
gone.get = lambda key, default=None: "an instance's " + key if key != "broken" else default
tell(gone)
del vars(gone)["get"]
tell(gone)
gone.__class__ = Own
tell(gone)
Later.__bases__ = (Own,)
tell(later)
Later.__bases__ = (Part,)
tell(later)
print([k for k in pickle.loads(pickle.dumps(nn.Linear(2, 2).state))])
Later.__getattr__ = lambda self, name: "later " + name
tell(later)
Part.get = lambda self, key, default=None: "anew"
tell(part)
del Part.get
nn.Module.__getattr__ = lambda self, name: "by nobody"
tell(part)
"""


def test_attributes_of_layers():
    """What mlx.nn's layers say of their parts is what Python's own functions say; without those being called."""
    said, how = [], []
    for value in ("0", "1"):
        out = subprocess.run([sys.executable, "-c", LAYERS], env={**os.environ, "MLX_VK_MODULES": value}, capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
        said.append(out.stdout)
        how.append(out.stderr.split())
    assert said[0] == said[1] and "by nobody" in said[0] and "anew" in said[0] and "later half" not in said[0]
    assert how == [["True", "True"], ["True", "False"]]
