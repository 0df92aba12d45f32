"""What mlx_lm's samplers cost behind the logits: dispatches, time, and which kernels.

    build/mlx/bin/python tests/mlx/bench_sampling.py [--vocabulary 151936] [--rows 1] [--tokens 256] [NAME ...]

Logits lie in memory; a token is what generate_step makes of them: log-probabilities, which are wanted, too, and the sampler's
choice. With MLX_VK_PROFILE=1 the GPU's time by its own clock stands there as well. Kernels of chains are made when a chain was
seen a few times, so the first tokens are not counted.
"""

import argparse
import sys
import time

import mlxvk_mlx as bridge
import mlx.core as mx
from mlx_lm.sample_utils import make_sampler

SAMPLERS = {
    "greedy": {"temp": 0},
    "temperature": {"temp": 0.8},
    "top-k": {"temp": 0.8, "top_k": 20},
    "top-p": {"temp": 0.8, "top_p": 0.9},
    "min-p": {"temp": 0.8, "min_p": 0.05},
}
WARM = 24


def kernels():
    return {k["kernel"]: (k["count"], k.get("ns", 0)) for k in bridge.kernels()}


def measure(sampler, logits, tokens):
    """Seconds a token, dispatches and nanoseconds by kernel, and the last choice."""
    before, start, choice = None, None, None
    for i in range(WARM + tokens):
        if i == WARM:
            mx.synchronize()
            before, start = kernels(), time.perf_counter()
        x = logits[i % len(logits)]
        logprobs = x - mx.logsumexp(x, axis=-1, keepdims=True)
        following = sampler(logprobs)
        mx.async_eval(following, logprobs)
        if choice is not None:
            choice.tolist()
        choice = following
    mx.synchronize()
    seconds = (time.perf_counter() - start) / tokens
    spent = {k: (n - before.get(k, (0, 0))[0], ns - before.get(k, (0, 0))[1]) for k, (n, ns) in kernels().items()}
    return seconds, {k: v for k, v in spent.items() if v[0]}, choice.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SAMPLERS))
    options = parser.parse_args()
    mx.random.seed(3)
    logits = [mx.random.normal((options.rows, options.vocabulary)).astype(getattr(mx, options.dtype)) for _ in range(4)]
    mx.eval(logits)
    print("| sampler | dispatches a token | us a token | of it the GPU | kernels |\n|---|---|---|---|---|")
    for name in options.names or SAMPLERS:
        mx.random.seed(1)
        seconds, spent, choice = measure(make_sampler(**SAMPLERS[name]), logits, options.tokens)
        count = sum(n for n, _ in spent.values()) / options.tokens
        gpu = sum(ns for _, ns in spent.values()) / options.tokens / 1e3
        listed = ", ".join("%s %.3g" % (k, n / options.tokens) for k, (n, _) in sorted(spent.items()))
        print("| %s | %.4g | %.1f | %s | %s |" % (name, count, seconds * 1e6, "%.1f" % gpu if gpu else "", listed), flush=True)
        print("last choice:", choice[:8], file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
