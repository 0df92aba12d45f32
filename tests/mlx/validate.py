"""The chain from a Python expression to a Vulkan dispatch and back, step by step, with the bridge's own counts and with
values. Says what to do about the first thing that is not as it should be.

    build/mlx/bin/python tests/mlx/validate.py        (make validate)
"""

import argparse
import json
import os
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

passed, failed = 0, 0


class Wrong(Exception):
    """A step that did not do what it should; `advice` says what to look at."""

    def __init__(self, text, advice=None):
        super().__init__(text)
        self.advice = advice


def step(name, function, advice):
    """Runs one step; it gives back what to print about it."""
    global passed, failed
    try:
        seen = function()
    except Wrong as wrong:
        failed += 1
        print("FAIL  %-12s %s\n      %-12s -> %s" % (name, wrong, "", wrong.advice or advice), flush=True)
        return False
    except Exception as error:
        failed += 1
        print("FAIL  %-12s %s: %s\n      %-12s -> %s" % (name, type(error).__name__, error, "", advice), flush=True)
        return False
    passed += 1
    print("ok    %-12s %s" % (name, seen), flush=True)
    return True


def need(truth, text, advice=None):
    if not truth:
        raise Wrong(text, advice)


def closing():
    print("%d passed, %d failed" % (passed, failed), flush=True)
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="the bridge, when it is not where make mlx puts it")
    options = parser.parse_args()
    if options.library:
        os.environ["MLXVK_MLX_LIBRARY"] = options.library

    # ---- before MLX
    state = {}

    def bridge():
        import mlxvk_mlx
        state["bridge"] = mlxvk_mlx
        return "%s, built for MLX %s" % (mlxvk_mlx.library(), ".".join(map(str, mlxvk_mlx.mlx_version())))

    if not step("bridge", bridge, 'build it with "make mlx"'):
        return closing()
    mlxvk_mlx = state["bridge"]
    stats = mlxvk_mlx.stats

    def found():
        need(mlxvk_mlx.is_available(), "mlxvk found no Vulkan device",
             "is a driver installed? (vulkaninfo --summary; Debian: mesa-vulkan-drivers.) MLX_VK_DEVICE may name one that is "
             "not there. What mlxvk needs of a device is in README.md")
        return "%s, driver %s" % (stats()["device"], stats().get("driver") or "unknown")

    if not step("device", found, "see README.md, Devices and limits"):
        return closing()

    import mlx.core as mx
    import numpy as np

    def default():
        need(mx.default_device() == mx.gpu, "the default device is %s" % mx.default_device(),
             "something set it: MLX itself takes the GPU when there is one")
        return "mx.default_device() is %s" % mx.default_device()

    if not step("mlx.core", default, "mlx.core was loaded before the bridge, or is another MLX than the one it is linked to"):
        return closing()

    # What one expression does to the counters.
    def since(before, *names):
        now = stats()
        return [now[name] - before[name] for name in names]

    def primitive(name, which="native", of=None):
        return (of or stats())["primitives"].get(name, {}).get(which, 0)

    broken = "the bridge did not do its part: tests/mlx/stream.cpp"

    def stream():
        before = stats()["streams"]
        state["stream"] = mx.new_stream(mx.gpu)
        mx.eval(mx.add(mx.array([1.0]), mx.array([2.0]), stream=state["stream"]))
        grown = stats()["streams"] - before
        need(grown >= 1, "mx.new_stream(mx.gpu) made no stream of mlxvk's")
        return "%s has a stream of mlxvk's behind it; there are %d" % (state["stream"], before + grown)

    step("stream", stream, broken)

    rows, columns = 64, 1000
    a, b = (np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32) for seed in (1, 2))

    def arrays():
        memory, before = mx.get_active_memory(), stats()
        state["a"], state["b"] = mx.array(a), mx.array(b)
        mx.eval(state["a"], state["b"])
        grown = mx.get_active_memory() - memory
        need(grown >= a.nbytes + b.nbytes, "two arrays of %d bytes changed the active memory by %d" % (a.nbytes, grown),
             "MLX's allocator is not the bridge's: tests/mlx/memory.cpp")
        need(since(before, "dispatches") == [0], "making arrays dispatched something")
        return "mx.array(numpy): %d bytes in mlxvk's memory (active: %d), nothing dispatched" % (grown, mx.get_active_memory())

    if not step("mx.array", arrays, "the allocator: tests/mlx/memory.cpp"):
        return closing()

    def lazy():
        before = stats()
        state["c"] = state["a"] + state["b"]
        need(since(before, "operations", "dispatches", "submissions") == [0, 0, 0], "an expression alone ran something")
        return "c = a + b made a node of MLX's graph; no operation, no dispatch, no submission"

    step("expression", lazy, "MLX evaluates only when it is asked to; is something printing arrays?")

    def evaluate():
        before = stats()
        native, fallen = primitive("Add", of=before), primitive("Add", "fallback", of=before)
        mx.eval(state["c"])
        state["before"], state["after"] = before, stats()
        reasons = state["after"]["primitives"].get("Add", {}).get("reasons")
        need(primitive("Add", "fallback") == fallen, "Add fell back to the CPU: %s" % reasons,
             "the row of Add in the table of tests/mlx/primitives.cpp, and MLX_VK_FALLBACK=error for the reason")
        need(primitive("Add") == native + 1, "mx.eval did not reach the bridge's Add")
        return "mx.eval(c) arrived at Add::eval_gpu on a GPU stream; no fallback"

    if not step("eval", evaluate, "MLX did not call the bridge: is mlx.core's libmlx.so the one that the bridge is linked to?"):
        return closing()

    def grown(name, least, what):
        def check():
            more = state["after"][name] - state["before"][name]
            need(more >= least, "%s: %d more, expected at least %d" % (name, more, least))
            return what % more
        return check

    step("operation", grown("operations", 1, "%d operation recorded on mlxvk's tape"), "tests/mlx/primitives.cpp")
    step("encoder", grown("dispatches", 1, "%d dispatch in a command buffer"), "mlxvk's lowering: mlxvk.c, >>encoder")
    step("submission", grown("submissions", 1, "%d submission to the queue by mx.eval"), broken)

    def completion():
        before = stats()
        d = mx.exp(state["c"] * 0.5)
        mx.async_eval(d)
        mx.synchronize()
        need(since(before, "submissions")[0] >= 1, "async_eval and synchronize submitted nothing")
        state["d"] = d
        return "mx.async_eval, mx.synchronize: back after %d more submissions" % since(before, "submissions")[0]

    step("completion", completion, "events and streams: tests/mlx/stream.cpp; a hang here is a lost submission")

    def same(got, want, tolerance, what):
        got = np.array(got)
        need(got.shape == want.shape, "%s: shape %s instead of %s" % (what, got.shape, want.shape))
        worst = float(np.max(np.abs(got.astype(np.float64) - want) / (1 + np.abs(want))))
        need(worst <= tolerance, "%s: off by %.3g" % (what, worst))
        return worst

    def values():
        same(state["c"], a + b, 0, "a + b")
        same(state["d"], np.exp((a + b) * 0.5), 1e-6, "exp(c / 2)")
        need(abs(state["c"][3, 7].item() - (a[3, 7] + b[3, 7])) == 0, "c[3, 7].item()")
        return "numpy sees a + b bit by bit, exp to 1e-6; item() of a view too"

    step("value", values, "the result is there but wrong: run the same with MLX_VK_FALLBACK=warn, and on mx.cpu")

    # ---- more of the same: dependence, views, streams, threads, fallback
    def dependent():
        def chain():
            x, w = mx.array(a[:, :64]), mx.array(b[:, :64])
            for _ in range(10):
                x = mx.tanh(mx.matmul(x, mx.transpose(w)) / 8)
            mx.eval(x)
            return x
        before = stats()
        x = chain()
        operations, dispatches, barriers, submissions = since(before, "operations", "dispatches", "barriers", "submissions")
        with mx.stream(mx.cpu):
            y = chain()
        same(x, np.array(y).astype(np.float64), 1e-4, "a chain of products")
        need(barriers >= 9, "%d dispatches that depend on each other, %d barriers" % (dispatches, barriers),
             "mlxvk's hazard tracking: mlxvk.c, >>encoder")
        return "10 times product, division, tanh: %d operations, %d dispatches, %d barriers, %d submissions" % (
            operations, dispatches, barriers, submissions)

    step("order", dependent, "compare with MLX_VK_MAX_OPS_PER_BUFFER=1")

    def across():
        x = mx.array(a)
        for _ in range(5):
            x = mx.add(x, 1.0, stream=mx.cpu)
            x = mx.multiply(x, 0.5, stream=mx.gpu)
            x = mx.subtract(x, 0.25, stream=state["stream"]) if "stream" in state else x - 0.25
        want = a
        for _ in range(5):
            want = (want + np.float32(1)) * np.float32(0.5) - np.float32(0.25)
        same(x, want, 1e-6, "five rounds over three streams")
        return "one computation over a CPU stream and two GPU streams, five times round"

    step("streams", across, "events and fences between streams: tests/mlx/stream.cpp")

    def threads():
        results, errors = {}, []

        def work(k):
            try:
                s = mx.new_stream(mx.gpu)
                with mx.stream(s):
                    x = mx.array(a) * k
                    for _ in range(20):
                        x = mx.abs(x) + 1
                    mx.eval(x)
                results[k] = np.array(x)
            except Exception as error:
                errors.append("%s: %s" % (type(error).__name__, error))
        many = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in many:
            thread.start()
        for thread in many:
            thread.join(120)
        need(not any(thread.is_alive() for thread in many), "a thread hangs")
        need(not errors, "; ".join(errors))
        for k in range(4):
            same(results[k], np.abs(a * np.float32(k)) + 20, 1e-6, "thread %d" % k)
        return "4 threads, a stream each, the right values"

    step("threads", threads, "locks: tests/mlx/stream.cpp")

    def fall_back():
        code = ("import mlxvk_mlx, mlx.core as mx, json; x = mx.exp(mx.array([0.0, 1.0])) + 1; mx.eval(x); "
                "print(json.dumps([x.tolist(), mlxvk_mlx.stats()['primitives']]))")
        environment = {**os.environ, "MLX_VK_FALLBACK_FOR": "Exp", "MLX_VK_FALLBACK": "warn", "PYTHONPATH": os.pathsep.join(sys.path)}
        got = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
        need(got.returncode == 0, "a process with MLX_VK_FALLBACK_FOR=Exp ended with %d: %s" % (got.returncode, got.stderr[-300:]))
        values, counts = json.loads(got.stdout)
        need(abs(values[0] - 2) + abs(values[1] - 3.7182817) < 1e-5, "exp on the CPU, + 1 on the GPU: %s" % values)
        need(counts["Exp"]["fallback"] == 1 and counts["Add"]["native"] == 1, "counted: %s" % counts)
        need("Exp" in got.stderr, "MLX_VK_FALLBACK=warn did not name it: %s" % got.stderr)
        return "told not to use its own (MLX_VK_FALLBACK_FOR=Exp), it is MLX's on the CPU, in order, counted, named: %s" % (
            list(counts["Exp"]["reasons"])[0])

    step("fallback", fall_back, "tests/mlx/fallback.cpp")

    def memory():
        for name in ("a", "b", "c", "d"):
            state.pop(name, None)
        mx.synchronize()
        mx.clear_cache()
        active, cache, peak = mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory()
        need(cache == 0, "%d bytes in the cache after mx.clear_cache()" % cache)
        need(active < peak, "%d bytes active, as at the peak" % active)
        return "given back: %d bytes active, peak %d, cache empty" % (active, peak)

    step("memory", memory, "the allocator: tests/mlx/memory.cpp")
    return closing()


if __name__ == "__main__":
    sys.exit(main())
