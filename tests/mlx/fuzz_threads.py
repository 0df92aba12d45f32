"""Random programs of several Python threads at once on mx.gpu, which is mlxvk: arrays go from thread to thread, streams and threads
come and go, and the device's memory is cleared meanwhile.

A program is two to six threads in rounds. In each round a thread computes, posts some of its arrays to others and takes in what
was posted to it, so that its numbers are the same whoever is quicker: small whole ones, equal on every device. The reference is
the same threads by turns in a single one on mx.cpu, MLX's own. Threads also run the loops of fuzz_loops.py.

    build/mlx/bin/python tests/mlx/fuzz_threads.py [--seconds 60] [--seed N] [--count N] [--repeat N] [--cpu] [--verbose]

What MLX leaves to its users is kept: an array that is not evaluated goes with a stream for all threads, and what that computes
goes by turns; an array whose event is still to come is used by one thread at a time. (--cpu: the threads on mx.cpu, too, to see
what MLX itself allows. It needs no bridge.) The programs run in a process of their own: when it hangs or ends, that is a
failure of the program, and the next one has a new process. Ends with "N passed, N failed".
"""
import argparse
import contextlib
import faulthandler
import gc
import os
import queue
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

if __name__ == "__main__" and "--cpu" not in sys.argv:
    import mlxvk_mlx  # noqa: F401  (before mlx.core)

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

import fuzz_loops  # noqa: E402

MODULUS = 64
PER_PROCESS = 60                                              # programs: MLX's threads of CPU streams stay until its end
SHARED = 2                                                    # streams that several threads use, by turns
BRIDGE = "mlxvk_mlx" in sys.modules
LENT = False if BRIDGE else None                              # MLX's CPU copies
HANG = 120                                                    # seconds without a program's end


class Stopped(Exception):
    """Another thread has failed."""


# ---- what a thread computes: from arrays of whole numbers, all of one square shape, another one ------------------------

def small(x):
    """Again numbers below the modulus, which is a power of two."""
    return mx.remainder(x, mx.array(MODULUS, x.dtype))


def chain(x, y, steps):
    """A graph so large that another thread records it."""
    for i in range(steps):
        x = small(x * (i % 3 + 1) + y)
    return x


def written(x, y, at):
    """In place, where nobody else has x."""
    x[at:] = y[at:]
    return x


def seeded(seed, shape):
    """By the random state, of which each thread has one."""
    mx.random.seed(seed)
    return mx.random.randint(0, 9, shape)


def own_kernel(x, y):
    """A kernel in Metal's language, which MLX's CPU does not take."""
    if mx.default_device() == mx.cpu:
        return small(x * 5 + y)
    kernel = mx.fast.metal_kernel(name="weighed", input_names=["x", "y"], output_names=["out"],
                                  source="uint i = thread_position_in_grid.x; out[i] = T(int(x[i]) * 5 + int(y[i]) & 63);")
    return kernel(inputs=[x, y], template=[("T", x.dtype)], grid=(x.size, 1, 1), threadgroup=(32, 1, 1), output_shapes=[x.shape],
                  output_dtypes=[x.dtype])[0]


def gradient(x, y):
    return small(mx.grad(lambda a: (a * a * y).sum())(x))


STEPS = {
    "sum": lambda w, x, y: small(x + y),
    "product": lambda w, x, y: small(x.astype(mx.float32) @ y.astype(mx.float32)).astype(x.dtype),
    "parts": lambda w, x, y: mx.concatenate([x[1:], y[:1]]),
    "turned": lambda w, x, y: x.T,
    "reversed": lambda w, x, y: x[::-1] + mx.zeros_like(y),
    "chosen": lambda w, x, y: mx.where(x > y, x, y),
    "rows": lambda w, x, y: x[mx.remainder(y[0].astype(mx.int32), len(x))],
    "sorted": lambda w, x, y: mx.sort(x, axis=0),
    "running": lambda w, x, y: small(mx.cumsum(x, axis=1)),
    "reduced": lambda w, x, y: small(x + y.sum(axis=0, keepdims=True)),
    "in place": lambda w, x, y: written(mx.array(x), y, w.r.randrange(len(x))),
    "update": lambda w, x, y: mx.slice_update(x, y[:1], mx.array([w.r.randrange(len(x))]), (0,)),
    "scattered": lambda w, x, y: small(x.at[mx.array([0, len(x) - 1, 0])].add(y[0])),
    "gradient": lambda w, x, y: gradient(x.astype(mx.float32), y.astype(mx.float32)).astype(x.dtype),
    "mapped": lambda w, x, y: mx.vmap(lambda a, b: small(a * b + 1))(x, y),
    "compiled": lambda w, x, y: w.program.compiled[w.r.randrange(len(w.program.compiled))](x, y),
    "on the CPU": lambda w, x, y: small(mx.add(x, y, stream=w.place.cpu)),
    "there and back": lambda w, x, y: small(mx.add(mx.sort(x, axis=1, stream=w.place.cpu), y) + mx.negative(y, stream=w.place.cpu)),
    "weights": lambda w, x, y: small(x + w.weight()),
    "weights on the CPU": lambda w, x, y: small(mx.add(w.weight(), y, stream=w.place.cpu) + mx.sort(w.weight())),
    "long": lambda w, x, y: chain(x, y, w.r.choice((3, 12, 50))),
    "random": lambda w, x, y: small(x + mx.random.randint(0, 9, x.shape, key=mx.random.key(w.r.randrange(99))).astype(x.dtype)),
    "seeded": lambda w, x, y: small(x + seeded(w.r.randrange(99), x.shape).astype(x.dtype)),
    "from a file": lambda w, x, y: small(mx.load(w.program.file).astype(x.dtype) + x[:1, :1]) + mx.zeros_like(x),
    "lent": lambda w, x, y: small(x + mx.asarray(np.full(x.shape, w.r.randrange(9), np.float32), copy=LENT).astype(x.dtype)),
    "kernel": lambda w, x, y: own_kernel(x, y),
}


class Failing:
    """What raises, on any device, and leaves its thread and the others as they were."""

    @staticmethod
    def shapes(w, x, run):
        x @ mx.ones((len(x) + 1, 2))

    @staticmethod
    def primitive(w, x, run):
        y = mx.linalg.inv(mx.zeros((2, 2)), stream=w.place.cpu) + x[:1, :1].astype(mx.float32)
        try:
            run(y)
            y.tolist()
        finally:
            w.calm()

    @staticmethod
    def recorded(w, x, run):
        """In the middle of a large graph, when it is recorded; what comes before it can be had all the same."""
        kernel = mx.fast.metal_kernel(name="wrong", input_names=["x"], output_names=["out"], source="out[0] = nothing;")
        before = chain(x, x, 40)
        y = kernel(inputs=[before], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[x.shape], output_dtypes=[x.dtype])[0]
        after = chain(y, before, 20)
        try:
            run(after)
            after.tolist()
        finally:
            assert np.array_equal(before.tolist(), small(before + 0).tolist())

    @staticmethod
    def traced(w, x, run):
        def inner(a):
            raise ValueError("on purpose")
        mx.compile(inner)(x)

    @staticmethod
    def lost(w, x, run):
        run(chain(x, x, 40))
        raise ValueError("on purpose")

    ALL = (shapes, primitive, recorded, traced, lost)
    OF_GPU = ("primitive", "recorded")


def wanted(w, how, times):
    """Of what all threads have: its numbers, or something computed of it."""
    for _ in range(times):
        for x, y in zip(w.program.weights, w.program.known):
            if how == 0:
                assert np.array_equal(np.array(x), y)
            else:
                mx.eval(mx.sort(x) if how == 1 else x + x)


def meanwhile(w):
    """What changes no number."""
    kind = 9 if w.program.hot else w.r.randrange(11)
    if kind == 0:
        mx.clear_cache()
    elif kind > 8:
        wanted(w, w.r.randrange(3), 60 if w.program.hot else 1)
    elif kind == 1:
        mx.set_cache_limit(w.r.choice((0, 1 << 16, 1 << 30)))
    elif kind == 2:
        mx.set_memory_limit(w.r.choice((1 << 16, 1 << 30)))
    elif kind == 3:
        mx.get_active_memory(), mx.get_peak_memory(), mx.get_cache_memory()
    elif kind == 4:
        mx.reset_peak_memory()
    elif kind == 5:
        gc.collect()
    elif kind == 6:
        mx.synchronize(w.place.cpu)
    else:
        mx.synchronize(w.place.own if kind == 7 else None)


# ---- a thread --------------------------------------------------------------------------------------------------------

class Place:
    """Where a worker computes: its own streams, and those for all, with a lock each."""

    def __init__(self, kind, program):
        gpu = program.device
        self.own = {"default": lambda: mx.default_stream(gpu), "new": lambda: mx.new_stream(gpu), "local": lambda: program.local,
                    "for all": lambda: program.spare[program.next_spare()]}[kind]()
        self.cpu = mx.default_stream(mx.cpu)


class Worker:
    """One of a program's threads; run() is a generator that stops where it has posted what it posts in a round."""

    def __init__(self, program, number):
        self.program, self.number = program, number
        self.r = random.Random(program.seed * 100 + number)
        self.kind = self.r.choice(("default", "default", "new", "local", "for all"))
        self.results, self.views, self.loops = [], [], []

    def fresh(self):
        p, rng = self.program, np.random.default_rng(self.r.randrange(1 << 30))
        return mx.array(rng.integers(0, MODULUS, (p.size, p.size)).astype(np.float32)).astype(p.dtype)

    def weight(self):
        """One of the arrays that all threads have."""
        return self.r.choice(self.program.weights)

    def step(self, xs):
        x, y = self.r.choice(xs), self.r.choice(xs)
        return STEPS[self.r.choice(self.program.steps)](self, x, y)

    def settle(self, x):
        """x is computed now, or soon, or stays as it is."""
        self.r.choice((mx.eval, mx.async_eval, mx.async_eval, lambda x: None, lambda x: None))(x)

    def keep(self, x):
        """As a result, which is compared at the end: itself, a copy, or a view of its memory."""
        kind = self.r.randrange(4)
        if kind == 0:
            self.results.append(np.array(x.astype(mx.float32)))
        elif kind == 1:
            self.results.append(np.array(x.astype(mx.float32), copy=False))
        elif kind == 2:
            y = x.astype(mx.float32) + 0
            mx.eval(y)
            self.results.append(memoryview(y))
        else:
            self.results.append(x)

    def compute(self, xs):
        for _ in range(self.r.randint(5, 15) if self.program.hot else self.r.randint(1, 8)):
            xs[self.r.randrange(len(xs))] = x = self.step(xs)
            self.settle(x)
            if self.r.random() < 0.3:
                self.keep(x)
            if self.r.random() < (0.5 if self.program.hot else 0.15):
                meanwhile(self)
            if self.r.random() < 0.08:
                self.fail(xs)
            if self.r.random() < 0.08:
                xs[0] = self.child(xs[0], xs[-1])

    def fail(self, xs):
        """(MLX's main thread counts work that it refuses while there is an error, and waits for that without end.)"""
        way, run = self.r.choice(Failing.ALL), self.r.choice((mx.eval, mx.async_eval))
        if not self.program.threaded or (way.__name__ in Failing.OF_GPU and not BRIDGE):
            return                                            # (and gives errors of its CPU to whoever comes first)
        try:
            way(self, xs[0], run)
        except (ValueError, RuntimeError):
            return
        raise AssertionError("no error arrived")

    def calm(self):
        """An error of the CPU's stays in each stream that has waited for it, until that is asked."""
        for stream in (self.place.cpu, self.place.own):
            try:
                mx.synchronize(stream)
            except RuntimeError:
                pass

    def child(self, x, y):
        """By a thread that ends with its work under way, and perhaps its streams before it."""
        mx.eval(x, y)
        steps, clear, result = self.r.choice((2, 20, 60)), self.r.random() < 0.3, []

        def work():
            with mx.stream(self.program.device):
                z = chain(x, y, steps)
                result.append(z)
                mx.async_eval(z)
                if clear:
                    mx.clear_streams()
        if self.program.threaded:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        else:
            with mx.stream(self.program.device):
                result.append(chain(x, y, steps))
        return result.pop()

    # -- posting: `xs` loses what it posts

    def post(self, to, xs):
        at, kind = self.r.randrange(len(xs)), self.r.randrange(5)
        if kind == 0:                                         # not evaluated, of a stream that its taker may use
            index = self.r.randrange(SHARED)
            x, y = xs[at], self.r.choice(xs)
            mx.eval(x, y)
            with self.program.locks[index], mx.stream(self.program.shared[index]):
                item = (chain(x, y, self.r.choice((1, 5, 40))), index)
                if self.r.random() < 0.3:
                    mx.async_eval(item[0])
        else:
            x = xs[at]
            (mx.eval if kind < 3 else mx.async_eval)(*xs)     # all that uses it, too
            if kind == 2:
                x = np.array(x.astype(mx.float32), copy=False)
            item = (x, None)
            if kind != 1 or self.r.random() < 0.5:
                xs[at] = self.fresh()                         # or both have it
                if self.r.random() < 0.5:                     # what was just posted is still read here
                    mx.async_eval(xs)
        self.program.send(self.number, to, item)

    def take(self, source, xs):
        x, index = self.program.receive(source, self.number)
        if isinstance(x, np.ndarray):
            x = mx.array(x).astype(self.program.dtype)
        elif index is not None:
            with self.program.locks[index]:
                self.r.choice((mx.eval, mx.async_eval))(x)
        if self.r.random() < 0.3:
            x = small(x + 1)                                  # perhaps in its place
            mx.async_eval(x)
        xs[self.r.randrange(len(xs))] = x
        return x

    def loop(self):
        loop = fuzz_loops.Loop(self.r.randrange(1 << 20), self.program.parts)
        loop.names, loop.copies, loop.steps = loop.names[:2], 1, 5
        halves = loop.dtype in fuzz_loops.HALVES and self.program.device == mx.cpu
        self.loops.append((loop, loop.run(self.place.own, mx.float32 if halves else loop.dtype)))

    def run(self):
        p = self.program
        mx.set_default_device(p.device)
        self.place = Place(self.kind if p.threaded else "default", p)
        with mx.stream(self.place.own):
            xs = [self.fresh() for _ in range(self.r.randint(2, 5))]
            for posts in p.posts:
                if self.r.random() < 0.15:
                    self.loop()
                self.compute(xs)
                for _, to in (post for post in posts if post[0] == self.number):
                    self.post(to, xs)
                yield
                for source, _ in (post for post in posts if post[1] == self.number):
                    self.take(source, xs)
            mx.eval(xs)
            self.results += xs
            mx.eval([x for x in self.results if isinstance(x, mx.array)])
        if self.r.random() < 0.3 and p.threaded:
            mx.clear_streams()


# ---- a program -------------------------------------------------------------------------------------------------------

def file_of(process):
    return os.path.join(tempfile.gettempdir(), f"fuzz_threads_{process}.npy")


@contextlib.contextmanager
def left_file(process):
    """Gone when the process is left, however it ended."""
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(file_of(process))


class Program:
    shared = spare = local = None                             # streams, which stay

    def __init__(self, seed, device, threaded, verbose=False):
        r, self.verbose = random.Random(seed), verbose
        self.seed, self.device, self.threaded = seed, device, threaded
        self.size, self.dtype = r.choice((1, 3, 8, 33, 64, 200)), r.choice((mx.float32, mx.float32, mx.int32))
        self.hot = r.random() < 0.2                           # all want the same arrays, on the device and on the host
        self.steps = ["weights", "weights on the CPU"] if self.hot else r.sample(list(STEPS), r.randint(3, len(STEPS)))
        self.parts = list(fuzz_loops.PARTS)
        self.count = r.choice((2, 2, 3, 4, 6))
        everyone = range(self.count)
        self.posts = [[(a, b) for a in everyone for b in everyone if a != b and r.random() < 0.4] for _ in range(r.randint(2, 8))]
        if threaded:
            self.make_streams()
        else:
            self.shared = [mx.default_stream(device)] * SHARED
        self.locks = [threading.Lock() for _ in range(SHARED)]
        self.mail = {(a, b): queue.Queue() for a in everyone for b in everyone}
        self.compiled = [mx.compile(lambda x, y: small(x * 3 + y)), mx.compile(lambda x, y: small(mx.sort(x) + y.T), shapeless=False)]
        self.file = file_of(os.getpid())
        self.known = [np.random.default_rng(i).integers(0, MODULUS, (self.size, self.size)).astype(np.float32) for i in range(2)]
        self.weights = []
        self.stop, self.errors, self.used = threading.Event(), [], 0

    def make_streams(self):
        cls = Program
        if not cls.shared:
            cls.shared = [mx.new_thread_unsafe_stream(self.device) for _ in range(SHARED)]
            cls.spare = [mx.new_thread_unsafe_stream(self.device) for _ in range(6)]
            cls.local = mx.new_thread_local_stream(self.device)

    def next_spare(self):
        self.used += 1                                        # under Python's lock
        return self.used - 1

    def __str__(self):
        return f"{self.count} threads, {len(self.posts)} rounds, {self.size} x {self.size} {fuzz_loops.name_of(self.dtype)}, {self.steps}"

    def send(self, source, to, item):
        self.mail[source, to].put(item)

    def receive(self, source, to):
        while not self.stop.is_set():
            try:
                return self.mail[source, to].get(timeout=0.2 if self.threaded else 0)
            except queue.Empty:
                assert self.threaded
        raise Stopped

    def guarded(self, worker):
        try:
            for _ in worker.run():
                pass
        except Stopped:
            pass
        except BaseException as error:                        # of whatever kind
            self.errors.append(f"thread {worker.number}: {type(error).__name__}: {error}")
            if self.verbose:
                traceback.print_exc()
            self.stop.set()

    def run(self):
        """The workers, done."""
        np.save(self.file, np.ones((1, 1), np.float32))
        with mx.stream(self.device):
            self.weights = [mx.array(x).astype(self.dtype) * 1 for x in self.known]
            mx.eval(self.weights)
        assert all(np.array_equal(np.array(x), y) for x, y in zip(self.weights, self.known))
        workers = [Worker(self, i) for i in range(self.count)]
        if self.threaded:
            threads = [threading.Thread(target=self.guarded, args=(w,)) for w in workers]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        else:
            runs = [w.run() for w in workers]
            while runs:                                       # as many rounds in each
                runs = [run for run in runs if next(run, self) is not self]
        return workers


def numbers(x):
    return np.array(x.astype(mx.float32)) if isinstance(x, mx.array) else np.array(x)


def difference(got, want):
    """What is wrong with a worker's results, or None."""
    if len(got.results) != len(want.results) or len(got.loops) != len(want.loops):
        return f"{len(got.results)} results, expected {len(want.results)}"
    for i, (a, b) in enumerate(zip(got.results, want.results)):
        a, b = numbers(a), numbers(b)
        if a.shape != b.shape:
            return f"result {i}: {a.shape}, expected {b.shape}"
        if not np.array_equal(a, b):
            at = tuple(int(k) for k in np.argwhere(a != b)[0])
            return f"result {i} of {len(want.results)}: {int((a != b).sum())} of {a.size} differ, first {list(at)}: got {a[at]}, expected {b[at]}"
    for (loop, a), (_, b) in zip(got.loops, want.loops):
        for i, (g, w) in enumerate(zip(a, b)):
            problem = fuzz_loops.difference(loop, g, w, f"loop {loop}: result {i}")
            if problem:
                return problem
    return None


def failure(seed, device, verbose=False):
    with mx.stream(mx.cpu):
        want = Program(seed, mx.cpu, False).run()
    program = Program(seed, device, True, verbose)
    got = program.run()
    if program.errors:
        return "; ".join(program.errors)
    mx.set_default_device(mx.cpu)                             # the numbers are there: they are only compared
    problems = [f"thread {g.number}: {d}" for g, w in zip(got, want) if (d := difference(g, w))]
    mx.set_default_device(device)
    return "; ".join(problems) or None


# ---- the process that runs them, and the one that watches it -----------------------------------------------------------

def inside(options):
    """Programs from a seed on: a line for each that begins, and one for how it ended."""
    faulthandler.enable()
    limits = mx.set_cache_limit(1 << 30), mx.set_memory_limit(1 << 30)
    device = mx.cpu if options.cpu else mx.gpu
    for seed in range(options.seed, options.seed + options.count):
        for _ in range(options.repeat):
            print(f"begin {seed} {Program(seed, mx.cpu, False) if options.verbose else ''}", flush=True)
            problem = failure(seed, device, options.verbose)
            print(f"end {seed} {problem}".replace("\n", " ") if problem else "ok", flush=True)
            mx.set_cache_limit(limits[0])
            mx.set_memory_limit(limits[1])


class Watch:
    """Runs programs in a process until one of them does not end as it should."""

    def __init__(self, options):
        self.options, self.passed, self.failed = options, 0, 0

    def fail(self, seed, text):
        self.failed += 1
        print(f"FAIL --seed {seed}: {text}", flush=True)

    def run(self, seed, count, end):
        """The seed to go on with."""
        more = [arg for flag in ("cpu", "verbose") if getattr(self.options, flag) for arg in (f"--{flag}",)]
        command = [sys.executable, "-B", os.path.abspath(__file__), "--inside", "--seed", str(seed), "--count", str(count),
                   "--repeat", str(self.options.repeat), *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process, left_file(process.pid):
            lines, now = LinesOf(process.stdout), seed
            while (line := lines.next(HANG)) is not None:
                if line.startswith("begin "):
                    now = int(line.split()[1])
                    if self.options.verbose:
                        print(line[6:], flush=True)
                    continue
                self.passed += line == "ok"
                if line != "ok":
                    self.fail(now, line.split(" ", 2)[-1])
                if time.monotonic() > end:
                    process.kill()
                    return now + 1
            if not lines.ended:
                self.fail(now, f"nothing for {HANG} seconds")
                process.send_signal(signal.SIGABRT)           # faulthandler says where each thread is
            status = process.wait()
            if lines.ended and status:
                self.fail(now, f"the process ended with {status}")
            return now + 1 if status else seed + count


class LinesOf:
    def __init__(self, pipe):
        self.pipe, self.ended, self.text, self.ready = pipe, False, b"", selectors.DefaultSelector()
        self.ready.register(pipe, selectors.EVENT_READ)

    def next(self, seconds):
        """A line; None where there is none for so long, or no more."""
        while b"\n" not in self.text:
            if not self.ready.select(seconds):
                return None
            more = os.read(self.pipe.fileno(), 1 << 16)
            if not more:
                self.ended = True
                return None
            self.text += more
        line, self.text = self.text.split(b"\n", 1)
        return line.decode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=1, help="each so often: who is quicker differs")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options)
    watch, seed = Watch(options), options.seed
    end = time.monotonic() + (options.seconds if not options.count else 1e9)
    while seed - options.seed < options.count if options.count else time.monotonic() < end:
        left = options.seed + options.count - seed if options.count else PER_PROCESS
        seed = watch.run(seed, min(left, PER_PROCESS), end)
    print(f"{watch.passed} passed, {watch.failed} failed", flush=True)
    return watch.failed != 0


if __name__ == "__main__":
    sys.exit(main())
