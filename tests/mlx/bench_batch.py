"""mlx_lm's batches and fine-tuning on the bridge, with random weights of a Qwen3's shape.

    build/mlx/bin/python tests/mlx/bench_batch.py [--shape 0.6b] [--batch 1,8,32] [--library FILE] [--torch]

batch_generate: tokens a second of all sequences together, prompts of --prompt tokens, and the most memory over that of the
weights and caches. LoRA as "mlx_lm lora" does it (its train(), rank 8 in all linear layers of the last 16 blocks), --sequences
times --length tokens a step. --torch: the same step by PyTorch and transformers, where both are installed, in bfloat16.
"""

import argparse
import os
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
RANK, SCALE, LAYERS = 8, 20.0, 16                          # mlx_lm lora's own


class Tokenizer:
    """What batch_generate asks of one: here no token ends a text, and no text is looked at."""
    eos_token_ids = ()

    @staticmethod
    def decode(tokens):
        return ""


def batches(mx, options):
    from bench_distributed import model_of
    from mlx_lm import batch_generate
    from model import HEAD, SHAPES, VOCABULARY
    mx.random.seed(1)
    model = model_of(mx, options.shape, options.bits)
    mx.eval(model.parameters())
    weights = mx.get_active_memory()
    layers, kv = SHAPES[options.shape][2], SHAPES[options.shape][4]
    first = None
    for count in options.batch:
        prompts = mx.random.randint(0, VOCABULARY, (count, options.prompt)).tolist()
        best = 0.0
        for _ in range(options.trials):
            mx.clear_cache()
            mx.reset_peak_memory()
            said = batch_generate(model, Tokenizer(), prompts, max_tokens=options.generate)
            best = max(best, said.stats.generation_tps)
        cache = 4 * layers * kv * HEAD * count * (options.prompt + options.generate)
        first = first or best / count
        print("| batch_generate, %d sequences | %.0f tokens/s, %.1f times one; prompts %.0f; memory %.3f GB, %.0f %% over weights and cache |"
              % (count, best, best / first, said.stats.prompt_tps, mx.get_peak_memory() * 1e-9,
                 100 * (mx.get_peak_memory() / (weights + cache) - 1)), flush=True)


class Tokens:
    """Random texts, as mlx_lm's trainer takes them."""

    def __init__(self, mx, options):
        from model import VOCABULARY
        self.texts = mx.random.randint(0, VOCABULARY, (4 * options.sequences, options.length)).tolist()

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], 0


def lora(mx, options, bits):
    import mlx.optimizers
    from bench_distributed import model_of
    from mlx_lm.tuner.trainer import TrainingArgs, TrainingCallback, train
    from mlx_lm.tuner.utils import linear_to_lora_layers
    mx.random.seed(2)
    model = model_of(mx, options.shape, bits)
    model.freeze()
    linear_to_lora_layers(model, LAYERS, {"rank": RANK, "scale": SCALE, "dropout": 0.0})
    mx.eval(model.parameters())
    reports = []

    class Reports(TrainingCallback):
        def on_train_loss_report(self, info):
            reports.append(info)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArgs(batch_size=options.sequences, iters=options.steps * 3, steps_per_report=options.steps,
                                 steps_per_save=10 ** 9, max_seq_length=options.length, adapter_file=os.path.join(folder, "a.safetensors"))
        train(model, mlx.optimizers.Adam(learning_rate=1e-5), Tokens(mx, options), args=arguments, training_callback=Reports())
    best = max(reports, key=lambda r: r["iterations_per_second"])
    print("| lora, %d x %d tokens, %d bits | %.1f ms a step, %.0f tokens/s, memory %.2f GB |"
          % (options.sequences, options.length, bits, 1e3 / best["iterations_per_second"],
             best["iterations_per_second"] * options.sequences * options.length, best["peak_memory"]), flush=True)


def lora_by_torch(options):
    import torch
    import transformers
    from model import HEAD, SHAPES, VOCABULARY
    hidden, inner, layers, heads, kv, tied = SHAPES[options.shape]
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, head_dim=HEAD, max_position_embeddings=40960, rope_theta=1e6, tie_word_embeddings=tied,
        attn_implementation="sdpa")).to("cuda", torch.bfloat16).requires_grad_(False)

    class LoRA(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            make = {"device": "cuda", "dtype": torch.bfloat16}
            self.linear = linear
            self.a = torch.nn.Parameter(torch.rand(linear.in_features, RANK, **make) / linear.in_features ** 0.5)
            self.b = torch.nn.Parameter(torch.zeros(RANK, linear.out_features, **make))

        def forward(self, x):
            return self.linear(x) + SCALE * (x @ self.a @ self.b)

    for layer in model.model.layers[-LAYERS:]:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    setattr(part, name, LoRA(linear))
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    tokens = torch.randint(0, VOCABULARY, (options.sequences, options.length + 1), device="cuda")

    def step():
        logits = model(tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(options.steps):
            step()
        best = min(best, (time.perf_counter() - start) / options.steps)
    print("| the same by PyTorch %s, bfloat16 | %.1f ms a step, %.0f tokens/s, memory %.2f GB |"
          % (torch.__version__, 1e3 * best, options.sequences * options.length / best, torch.cuda.max_memory_allocated() * 1e-9), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6b", choices=("tiny", "0.6b", "4b", "8b"))
    parser.add_argument("--bits", type=int, default=4, help="of the weights of batch_generate")
    parser.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-g", "--generate", type=int, default=128)
    parser.add_argument("-n", "--trials", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=4, help="of a step of training")
    parser.add_argument("--length", type=int, default=512, help="tokens of each")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--library", help="the bridge, when it is not where make mlx puts it")
    parser.add_argument("--torch", action="store_true", help="PyTorch's step alone")
    options = parser.parse_args()
    if options.torch:
        return lora_by_torch(options)
    if options.library:
        os.environ["MLXVK_MLX_LIBRARY"] = options.library
    import mlxvk_mlx as bridge
    if not bridge.is_available():
        return 1
    import mlx.core as mx
    print("| %s, driver %s, Qwen3-%s | |\n|---|---|" % (bridge.stats()["device"], bridge.stats()["driver"], options.shape))
    batches(mx, options)
    for bits in (4, 16):
        lora(mx, options, bits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
