"""mlx_lm, unchanged, on the bridge: how fast it is, and where the rest of the time goes.

    build/mlx/bin/python tests/mlx/bench.py [--model FOLDER] [-p 512] [-g 128] [--library libmlxvk_mlx.so]

First "mlx_lm benchmark" as it is. Then the same generation once more with a clock around MLX's calls in it:

    model()      Python, and MLX making its graph: nothing is computed
    async_eval   MLX walking that graph, and in it the bridge: mlxvk recording, submitting
    the rest     waiting for the GPU (item()), sampling, the detokenizer, the loop itself

And once more, in a process of its own, with the GPU's clock around each kernel (which makes the whole slower).

Where the model folder does not exist it is made, with random weights (tests/mlx/model.py).
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


class Clock:
    """Adds up the time in functions that it is put around; a call inside a call counts once."""

    def __init__(self):
        self.seconds, self.calls, self.open = {}, {}, 0

    def around(self, name, function):
        def timed(*arguments, **named):
            if self.open:
                return function(*arguments, **named)
            self.open += 1
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.open -= 1
                self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - start
                self.calls[name] = self.calls.get(name, 0) + 1
        return timed


class Tee(io.StringIO):
    """What is printed, seen as it comes and kept."""

    def write(self, text):
        sys.__stdout__.write(text)
        sys.__stdout__.flush()
        return super().write(text)


def benchmark(options):
    """mlx_lm's own program, in this process; its averages."""
    sys.argv = ["mlx_lm benchmark", "--model", options.model, "-p", str(options.prompt), "-g", str(options.generate),
                "-n", str(options.trials)]
    seen = Tee()
    with contextlib.redirect_stdout(seen):
        runpy.run_module("mlx_lm.benchmark", run_name="__main__")
    line = [line for line in seen.getvalue().splitlines() if line.startswith("Averages:")][-1]
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", line)}


def numbers(stats):
    return {name: value for name, value in stats.items() if isinstance(value, (int, float))}


def ready(options):
    """Model, tokenizer, prompt; warm."""
    import mlx.core as mx
    from mlx_lm import load, stream_generate
    model, tokenizer = load(options.model)
    tokenizer._eos_token_ids = {}
    mx.random.seed(0)
    prompt = mx.random.randint(0, model.args.vocab_size, (options.prompt,)).tolist()
    for _ in stream_generate(model, tokenizer, prompt, max_tokens=options.generate):
        pass
    return model, tokenizer, prompt


def generation(options, bridge):
    """One generation with a clock: seconds by part, and what the bridge counted, for the generated tokens alone."""
    import mlx.core as mx
    import mlx_lm.generate  # noqa: F401  (the name mlx_lm.generate is also a function's)
    from mlx_lm import stream_generate
    module = sys.modules["mlx_lm.generate"]

    model, tokenizer, prompt = ready(options)
    clock = Clock()

    class Timed:
        """mlx.core as mlx_lm.generate sees it."""
        async_eval = staticmethod(clock.around("async_eval", mx.async_eval))

        def __getattr__(self, name):
            return getattr(mx, name)

    call = type(model).__call__
    type(model).__call__ = clock.around("model()", call)
    module.mx = Timed()
    try:
        before = start = None
        tokens = 0
        for response in stream_generate(model, tokenizer, prompt, max_tokens=options.generate):
            if start is None:            # the first token has come: the prompt is done
                clock.seconds.clear()
                clock.calls.clear()
                before, start = numbers(bridge.stats()) if bridge else {}, time.perf_counter()
            else:
                tokens += 1
        seconds = time.perf_counter() - start
    finally:
        module.mx = mx
        type(model).__call__ = call
    after = numbers(bridge.stats()) if bridge else {}
    counted = {name: after[name] - before.get(name, 0) for name in after}
    return {"tokens": tokens, "seconds": seconds, "parts": dict(clock.seconds), "counted": counted}


def kernels(options, bridge):
    """The GPU's own clock: what the kernels of the prompt took, and those of each token."""
    from mlx_lm import stream_generate
    model, tokenizer, prompt = ready(options)

    def now():
        return {k["kernel"]: (k["count"], k["ns"]) for k in bridge.kernels()}

    start, middle = now(), None
    for _ in stream_generate(model, tokenizer, prompt, max_tokens=options.generate):
        middle = middle or now()
    rows = {"prompt and the first token": (start, middle, 1), "next tokens, each": (middle, now(), options.generate - 1)}
    for what, (before, after, times) in rows.items():
        spent = sorted(((after[k][1] - before.get(k, (0, 0))[1], after[k][0] - before.get(k, (0, 0))[0], k) for k in after),
                       reverse=True)
        total = sum(ns for ns, _, _ in spent)
        print("\n| GPU time of the %s | %.3f ms, %.1f dispatches |\n|---|---|" % (
            what, total * 1e-6 / times, sum(count for _, count, _ in spent) / times))
        for ns, count, kernel in spent[:10]:
            if ns:
                print("| %s | %.3f ms, %.1f of them |" % (kernel, ns * 1e-6 / times, count / times))


def in_a_process_of_its_own(options):
    words = [sys.executable, os.path.abspath(__file__), "--kernels", "--model", options.model, "-p", str(options.prompt),
             "-g", str(options.generate)]
    sys.stdout.flush()
    return subprocess.run(words, env={**os.environ, "MLX_VK_PROFILE": "1"}).returncode


def milliseconds(seconds, tokens):
    return "%8.3f ms" % (1e3 * seconds / max(tokens, 1))


def print_table(figures, profile, bridge):
    stats = bridge.stats() if bridge else {}
    print("\n| what | figure |\n|---|---|")
    print("| device | %s%s |" % (stats.get("device") or "MLX's CPU", ", driver " + stats["driver"] if stats.get("driver") else ""))
    print("| prompt | %.1f tokens/s |" % figures["prompt_tps"])
    print("| generation | %.1f tokens/s |" % figures["generation_tps"])
    print("| peak memory | %.3f GB |" % figures["peak_memory"])
    if not profile:
        return
    tokens, seconds, parts = profile["tokens"], profile["seconds"], profile["parts"]
    print("| a token, with a clock in it | %s |" % milliseconds(seconds, tokens))
    print("| ... model(): Python, and MLX making its graph | %s |" % milliseconds(parts.get("model()", 0), tokens))
    print("| ... async_eval: MLX walks the graph, the bridge records | %s |" % milliseconds(parts.get("async_eval", 0), tokens))
    rest = seconds - sum(parts.values())
    print("| ... the rest: waiting for the GPU, sampling, detokenizer | %s |" % milliseconds(rest, tokens))
    counted = profile["counted"]
    for name, what in (("eval_ns", "in the bridge's gpu::eval"), ("lowering_ns", "mlxvk's lowering and recording"),
                       ("submit_ns", "mlxvk's submissions")):
        if name in counted:
            print("| ... of these, %s | %s |" % (what, milliseconds(counted[name] * 1e-9, tokens)))
    for name in ("operations", "fused", "dropped", "replayed", "dispatches", "recorded", "barriers", "submissions", "native", "fallback"):
        if name in counted:
            print("| %s a token | %.1f |" % (name, counted[name] / max(tokens, 1)))


def print_fallbacks(bridge):
    fallen = {name: p for name, p in bridge.stats().get("primitives", {}).items() if p.get("fallback")}
    for name, p in sorted(fallen.items(), key=lambda item: -item[1]["fallback"]):
        print("fallback: %s, %d times: %s" % (name, p["fallback"], ", ".join(p.get("reasons", {}))[:200]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="build/mlx/qwen3-0.6b-random")
    parser.add_argument("--shape", default="0.6b", help="of the model that is made where the folder has none")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-g", "--generate", type=int, default=128)
    parser.add_argument("-n", "--trials", type=int, default=3)
    parser.add_argument("--library", help="the bridge, when it is not where make mlx puts it")
    parser.add_argument("--cpu", action="store_true", help="MLX alone, on its CPU")
    parser.add_argument("--no-profile", action="store_true", help="mlx_lm benchmark alone")
    parser.add_argument("--kernels", action="store_true", help="the GPU's time by kernel alone (with MLX_VK_PROFILE=1)")
    parser.add_argument("--json", help="write the figures there, too")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not (pathlib.Path(options.model) / "model.safetensors").exists():
        import model
        print("making %s" % options.model, flush=True)
        model.write(options.model, options.shape)
    if options.library:
        os.environ["MLXVK_MLX_LIBRARY"] = options.library
    bridge = None
    if not options.cpu:
        import mlxvk_mlx as bridge
        if not bridge.is_available():
            return 1
    if options.kernels and bridge:
        return kernels(options, bridge)
    figures = benchmark(options)
    profile = None if options.no_profile else generation(options, bridge)
    print_table(figures, profile, bridge)
    if bridge:
        print_fallbacks(bridge)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"figures": figures, "profile": profile,
                                                          "stats": bridge.stats() if bridge else {}}, indent=1) + "\n")
    return in_a_process_of_its_own(options) if profile and bridge else 0


if __name__ == "__main__":
    sys.exit(main())
