"""Makes a model folder for mlx_lm: Qwen3's architecture with seeded random weights, in MLX's 4-bit format. Such a model
writes nonsense at the speed of a real one.

    python tests/mlx/model.py [--shape 0.6b] FOLDER
"""

import argparse
import json
import pathlib
import shutil
import struct
import sys

import numpy as np

SHAPES = {
    #        hidden, intermediate, layers, heads, kv heads, tied
    "0.6b": (1024, 3072, 28, 16, 8, True),
    "4b": (2560, 9728, 36, 32, 8, True),
    "8b": (4096, 12288, 36, 32, 8, False),
    "tiny": (256, 768, 2, 4, 2, True),
}
HEAD, VOCABULARY, BITS, GROUP = 128, 151936, 4, 64
TOKENIZER = pathlib.Path(__file__).resolve().parents[1] / "models" / "tiny-qwen3" / "tokenizer.json"


def bfloat16(values):
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def tensors(shape):
    """Name, what it is, its shape; nothing is made yet."""
    hidden, inner, layers, heads, kv, tied = SHAPES[shape]

    def linear(name, rows, columns):
        yield name + ".weight", "codes", (rows, columns * BITS // 32)
        yield name + ".scales", "scales", (rows, columns // GROUP)
        yield name + ".biases", "biases", (rows, columns // GROUP)

    yield from linear("model.embed_tokens", VOCABULARY, hidden)
    for n in range(layers):
        layer = "model.layers.%d." % n
        yield from linear(layer + "self_attn.q_proj", heads * HEAD, hidden)
        yield from linear(layer + "self_attn.k_proj", kv * HEAD, hidden)
        yield from linear(layer + "self_attn.v_proj", kv * HEAD, hidden)
        yield from linear(layer + "self_attn.o_proj", hidden, heads * HEAD)
        yield from linear(layer + "mlp.gate_proj", inner, hidden)
        yield from linear(layer + "mlp.up_proj", inner, hidden)
        yield from linear(layer + "mlp.down_proj", hidden, inner)
        for name, size in (("self_attn.q_norm", HEAD), ("self_attn.k_norm", HEAD),
                           ("input_layernorm", hidden), ("post_attention_layernorm", hidden)):
            yield layer + name + ".weight", "ones", (size,)
    yield "model.norm.weight", "ones", (hidden,)
    if not tied:
        yield from linear("lm_head", VOCABULARY, hidden)


def fill(kind, shape, random):
    """Weights evenly between -w and w, w = 1.7 / sqrt(columns) about, as after an initialisation."""
    size = int(np.prod(shape))
    if kind == "codes":
        return random.integers(0, 1 << 32, size, np.uint32)
    width = 1.7 / np.sqrt(shape[-1] * GROUP)
    if kind == "scales":
        return bfloat16(np.full(size, 2 * width / 15))
    if kind == "biases":
        return bfloat16(np.full(size, -width))
    return bfloat16(np.ones(size))


def write(folder, shape="0.6b", seed=0):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    hidden, inner, layers, heads, kv, tied = SHAPES[shape]
    quantization = {"group_size": GROUP, "bits": BITS}
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": HEAD,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": None,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": tied, "vocab_size": VOCABULARY,
        "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": VOCABULARY - 1,
        "quantization": quantization, "quantization_config": quantization}, indent=2) + "\n")
    shutil.copyfile(TOKENIZER, folder / "tokenizer.json")
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, kind, dims in tensors(shape):
        size = int(np.prod(dims)) * (4 if kind == "codes" else 2)
        header[name] = {"dtype": "U32" if kind == "codes" else "BF16", "shape": list(dims),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(seed)
    part = folder / "model.safetensors.part"
    with open(part, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, kind, dims in tensors(shape):
            fill(kind, dims, random).tofile(file)
    part.rename(folder / "model.safetensors")
    return offset


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("folder")
    options = parser.parse_args()
    print("%s: %.3f GB of weights" % (options.folder, write(options.folder, options.shape, options.seed) / 1e9))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
