"""Hybrid models of mlx-lm, with random weights of such models' shapes: a prompt and generation by the Metal kernels that mlx-lm
brings, and (MLX_VK_METAL_KERNELS=0) by what it has in their place where there is no Metal.

    build/mlx/bin/python tests/mlx/bench_hybrid.py [-p 512] [-g 64] [--layers N] [MODEL ...]

Each is a process of its own. In it everything runs twice, and the second run counts.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time

# After Qwen3.5 of 0.8 billion weights, Mamba 2 of 1.3 and RWKV 7 of 1.5; not compared with their own files.
MODELS = {
    "qwen3_5": dict(hidden_size=1024, num_hidden_layers=24, intermediate_size=3584, num_attention_heads=8, num_key_value_heads=2,
                    head_dim=256, vocab_size=248320, rms_norm_eps=1e-6, tie_word_embeddings=True, linear_num_value_heads=16,
                    linear_num_key_heads=16, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
                    max_position_embeddings=262144),
    "mamba2": dict(hidden_size=2048, num_hidden_layers=48, intermediate_size=4096, num_heads=64, head_dim=64, state_size=128,
                   vocab_size=50288, layer_norm_epsilon=1e-5, conv_kernel=4, n_groups=1, use_bias=False, use_conv_bias=True,
                   tie_word_embeddings=True, time_step_limit=(0.0, float("inf")), time_step_rank="auto"),
    "rwkv7": dict(hidden_size=2048, num_hidden_layers=24, intermediate_size=8192, head_dim=64, vocab_size=65536, norm_eps=1e-5,
                  a_low_rank_dim=96, v_low_rank_dim=64, gate_low_rank_dim=256, decay_low_rank_dim=96),
}


def make(name, layers):
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map
    module = importlib.import_module("mlx_lm.models." + name)
    shape = dict(MODELS[name], model_type=name)
    if layers:
        shape["num_hidden_layers"] = layers
    mx.random.seed(3)
    model = module.Model(module.ModelArgs.from_dict(dict(shape, text_config=shape)))
    model.update(tree_map(lambda w: w.astype(mx.bfloat16) if mx.issubdtype(w.dtype, mx.floating) else w, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model, sum(w.size for _, w in tree_flatten(model.parameters()))


def measure(options):
    """In a process of its own: tokens a second of the prompt and of what follows."""
    import mlxvk_mlx as bridge
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    model, parameters = make(options.model[0], options.layers)
    prompt = mx.random.randint(0, 50000, (options.prompt,))
    for _ in range(2):
        start = time.perf_counter()
        steps = generate_step(prompt, model, max_tokens=options.generate + 1)
        next(steps)
        first = time.perf_counter()
        tokens = sum(1 for _ in steps)
        last = time.perf_counter()
    stats = bridge.stats()
    print(json.dumps({"parameters": parameters, "prompt": options.prompt / (first - start), "generate": tokens / (last - first),
                      "kernels": stats["primitives"].get("CustomKernel", {}).get("native", 0), "device": stats["device"],
                      "driver": stats["driver"]}))


def run(name, gate, options):
    words = [sys.executable, os.path.abspath(__file__), "--measure", "-p", str(options.prompt), "-g", str(options.generate),
             "--layers", str(options.layers), name]
    got = subprocess.run(words, env={**os.environ, "MLX_VK_METAL_KERNELS": gate}, stdout=subprocess.PIPE, text=True)
    if got.returncode:
        sys.exit("%s with MLX_VK_METAL_KERNELS=%s: exit status %d" % (name, gate, got.returncode))
    figures = json.loads(got.stdout.splitlines()[-1])
    if bool(figures["kernels"]) != (gate == "1"):
        sys.exit("%s with MLX_VK_METAL_KERNELS=%s ran %d kernels" % (name, gate, figures["kernels"]))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-g", "--generate", type=int, default=64)
    parser.add_argument("--layers", type=int, default=0, help="fewer than the model has, for slow devices")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options)
    print("| model, bf16 | prompt of %d, tokens/s: kernels | without | times | generation, tokens/s: kernels | without | times |\n"
          "|---|---|---|---|---|---|---|" % options.prompt, flush=True)
    for name in options.model:
        with_kernels, without = run(name, "1", options), run(name, "0", options)
        row = ["%s, %.2f billion weights" % (name, with_kernels["parameters"] * 1e-9)]
        for what in ("prompt", "generate"):
            row += ["%.1f" % with_kernels[what], "%.1f" % without[what], "%.1f" % (with_kernels[what] / without[what])]
        print("| %s |" % " | ".join(row), flush=True)
    print("%s, driver %s" % (with_kernels["device"], with_kernels["driver"]))


if __name__ == "__main__":
    sys.exit(main())
