"""Every architecture of mlx_lm.models, small and with random weights: the logits and the greedy tokens of MLX's CPU.

A prompt that is longer than windows and chunks, then single tokens, through whatever caches the model makes for itself
(of keys and values, rotating, chunked, of states, and lists of them). Nothing but what LEFT_OUT says is left out;
MLX_TEST_MODELS=n runs a sample of n.
"""
import importlib
import os
import pkgutil

import mlx.core as mx
import pytest

from support import *

mlx_lm = pytest.importorskip("mlx_lm")
from mlx.utils import tree_flatten, tree_unflatten  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402

pytestmark = pytest.mark.skipif(MLX < (0, 32), reason="the architectures are those of mlx_lm 0.32")

# What configurations call things, in general; those of a name that means something else to somebody are below.
SMALL = {
    "hidden_size": 64, "dim": 64, "n_embd": 64, "d_model": 64, "model_dim": 64, "hidden_dim": 64, "block_dim": 64,
    "intermediate_size": 96, "n_inner": 96, "ffn_hidden_size": 96, "moe_intermediate_size": 48,
    "expert_ffn_hidden_size": 48, "shared_expert_intermediate_size": 48, "shared_intermediate_size": 48,
    "intermediate_size_mlp": 96, "ff_intermediate_size": 96, "moe_shared_expert_intermediate_size": 48,
    "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.0, "num_hidden_layers": 4, "num_layers": 4, "n_layer": 4,
    "n_layers": 4, "num_attention_heads": 4, "num_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2,
    "num_kv_heads": 2, "n_kv_heads": 2, "head_dim": 16, "rotary_dim": 8, "partial_rotary_factor": 0.5,
    "rope_theta": 1000.0, "rotary_pct": 0.5, "rotary_emb_base": 1000, "vocab_size": 200,
    "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256, "block_size": 256, "model_max_length": 256,
    "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5,
    "layernorm_epsilon": 1e-5, "attention_bias": False, "mlp_bias": False, "use_bias": False, "use_conv_bias": True,
    "conv_bias": True, "use_qkv_bias": True, "tie_word_embeddings": False, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2,
    "num_shared_experts": 1, "n_shared_experts": 1, "num_shared_expert": 1, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1,
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "sliding_window": 8, "sliding_window_size": 8, "sliding_window_pattern": 2, "attention_window_size": 8,
    "attention_chunk_size": 8, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8, "conv_kernel": 4,
    "conv_L_cache": 3, "conv_window": 2, "conv1d_width": 4, "state_size": 32, "ssm_state_size": 32,
    "time_step_rank": 4, "n_groups": 1, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "layer_group_size": 2,
    "group_norm_size": 1, "attention_multiplier": 0.25, "embedding_multiplier": 2.0, "residual_multiplier": 0.5,
    "logits_scaling": 2.0, "mamba_d_conv": 4, "mamba_d_state": 32, "mamba_expand": 2, "mamba_num_heads": 4,
    "mamba_head_dim": 32, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_ssm": 128,
    "mamba_proj_bias": False, "mamba_chunk_size": 16, "time_step_limit": (0.001, 100.0), "attn_layer_offset": 1,
    "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2, "use_qk_norm": True, "qk_norm": True,
    "post_norm": True, "num_dense_layers": 1, "use_expert_bias": True, "zero_expert_num": 2,
    "zero_expert_type": "identity", "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "attention_method": "MLA",
    "rope_scaling": None, "scale_depth": 1.4, "scale_emb": 12, "dim_model_base": 32, "a_low_rank_dim": 8,
    "v_low_rank_dim": 8, "gate_low_rank_dim": 8, "decay_low_rank_dim": 8, "interleave_moe_layer_step": 2,
    "no_rope_layers": [1, 1, 1, 0], "final_logit_softcapping": 20.0, "num_kv_shared_layers": 0,
    "rope_local_base_freq": 500.0, "num_kv_reuse_layers": 1,
}
WINDOWS = ["sliding_attention", "full_attention"] * 2
ROPE = {"rope_theta": 1000.0, "rope_type": "default"}
YARN = {"rope_theta": 1000.0, "type": "yarn", "rope_type": "yarn", "factor": 2.0, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 128, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
KIMI = {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4}
GEMMA = {"vocab_size_per_layer_input": 200, "hidden_size_per_layer_input": 16}
OWN = {
    "afmoe": {"layer_types": WINDOWS},
    "baichuan_m1": {"sliding_window_layers": [0, 2]},
    "dbrx": {"ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1000.0}},
    "deepseek_v2": {"rope_scaling": YARN, "topk_method": "gready"},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"layer_types": WINDOWS, "is_moe_layer": [False, True] * 2},
    "gear": {"layer_types": ["sliding_attention", "conv_mixer", "full_attention", "conv_mixer"]},
    "gemma3n": GEMMA | {
        "layer_types": WINDOWS, "activation_sparsity_pattern": [0.5, 0.0] * 2, "altup_num_inputs": 2,
        "altup_coef_clip": 10.0, "altup_correct_scale": True, "altup_active_idx": 0, "laurel_rank": 8,
        "intermediate_size": [96] * 4},
    "gemma4": GEMMA | {"global_head_dim": 32},
    "gemma4_text": GEMMA | {"global_head_dim": 32, "num_kv_shared_layers": 2},
    "glm_moe_dsa": {"rope_parameters": ROPE},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "hunyuan": {"use_mixed_mlp_moe": True, "use_cla": True, "cla_share_factor": 2,
                "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}},
    "kimi_linear": {"linear_attn_config": KIMI},
    "kimi_k3": {"num_experts_per_token": 2, "linear_attn_config": KIMI},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": True},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4": {"num_experts_per_tok": 1},
    "llama4_text": {"num_experts_per_tok": 1},
    "mellum": {"layer_types": WINDOWS, "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE}},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0] * 2, "moe_layer_freq": [0, 1] * 2, "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "swa_rope_theta": 500.0, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "swa_head_dim": 16, "swa_v_head_dim": 16},
    "minicpm3": {"rope_scaling": {"original_max_position_embeddings": 128}},
    "minimax_m3_vl": {"moe_layer_freq": [0, 1] * 2, "index_block_size": 4, "index_topk_blocks": 2},
    "ministral3": {"rope_parameters": YARN},
    "mistral4": {"rope_parameters": YARN},
    "muse_spark": {"post_norm_eps": 1e-5, "rope_parameters": ROPE, "layer_rope_theta": [1000.0, 0] * 2,
                   "layer_types": WINDOWS, "output_multiplier": 1.0, "moe_hidden_size": 64, "num_shared_experts": 0},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {"block_configs": [
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"replace_with_linear": True}}]},
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "-", "E"]},
    "olmo_hybrid": {"linear_allow_neg_eigval": True, "layer_types": ["linear_attention", "full_attention"] * 2},
    "openelm": {"num_transformer_layers": 4, "ffn_dim_divisor": 16, "num_query_heads": [4] * 4, "num_kv_heads": [2] * 4,
                "ffn_multipliers": [1.0, 1.5, 2.0, 2.0]},
    "phi3small": {"dense_attention_every_n_layers": 2, "gegelu_limit": 20.0, "blocksparse_num_local_blocks": 2,
                  "blocksparse_vert_stride": 2},
    "plamo": {"n_shared_head": 2},
    "qwen": {"kv_channels": 16},
    "recurrent_gemma": {"logits_soft_cap": 20.0, "block_types": ["recurrent", "attention"] * 2},
    "rwkv7": {"head_dim": 32},
    "spark2_5": {"layer_types": WINDOWS, "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE}},
    "step3p5": {"num_attention_groups": 2, "moe_top_k": 2},
}
OWN["lfm2-vl"] = OWN["lfm2"]
LEFT_OUT = {  # what is in mlx_lm.models and is no architecture of a text's, or cannot be made of random weights
    "olmo": "needs ai2-olmo, and ends the process without",
    "prism_hadamard_qwen35": "is made of a manifest of packed weights",
}
PARTS = {"activations", "base", "bitlinear_layers", "cache", "gated_delta", "mla", "pipeline", "rope_utils", "ssm",
         "switch_layers"}


def architectures():
    import mlx_lm.models
    names = sorted(m.name for m in pkgutil.iter_modules(mlx_lm.models.__path__))
    names = [n for n in names if n not in PARTS and n not in LEFT_OUT]
    count = int(os.environ.get("MLX_TEST_MODELS", len(names)))
    return sorted(sample(names, count, "architectures"))


def small(name):
    """A model of float32 whose weights are all random: also those that begin as zeros or ones."""
    module = importlib.import_module("mlx_lm.models." + name)
    text = SMALL | {"model_type": name} | OWN.get(name, {})
    model = module.Model(module.ModelArgs.from_dict({"text_config": text} | text))
    rng = seeded("architecture", name)

    def moved(weight):
        if not mx.issubdtype(weight.dtype, mx.floating):
            return weight
        noise = mx.array(rng.standard_normal(weight.shape).astype(np.float32))
        return weight.astype(mx.float32) + (0.1 if weight.size > 1 and mx.var(weight).item() == 0 else 0) * noise
    with mx.stream(mx.cpu):
        mx.random.seed(7)
        model.update(tree_unflatten([(name, moved(w)) for name, w in tree_flatten(model.parameters())]))
        mx.eval(model.parameters())
    model.eval()
    return model


def logits(model, prompt, tokens):
    """Those behind the prompt, and behind each of the tokens; None for a token: the likeliest."""
    cache, last, rows, taken = make_prompt_cache(model), prompt, [], []
    for token in tokens:
        row = model(mx.array([last]), cache=cache)
        row = (row[0] if isinstance(row, tuple) else row)[0, -1].astype(mx.float32)
        mx.eval(row, [c.state for c in cache if not c.empty()])
        rows.append(row)
        taken.append(mx.argmax(row).item() if token is None else token)
        last = taken[-1:]
    return rows, taken, cache


@pytest.mark.parametrize("name", architectures())
def test_architecture(name):
    model, rng = small(name), seeded("prompt", name)
    prompt = rng.integers(1, 150, 21).tolist()
    with mx.stream(mx.gpu):
        got, tokens, cache = logits(model, prompt, [None] * 6)
    with mx.stream(mx.cpu):
        want, _, other = logits(model, prompt, tokens)
    assert [type(c) for c in cache] == [type(c) for c in other]
    for step, (g, w, token) in enumerate(zip(got, want, tokens)):
        off, spread = mx.abs(g - w).max().item(), mx.std(w).item()
        assert off <= 2e-3 * spread, f"token {step}: off by {off}, logits of a deviation of {spread}"
        below, best = mx.sort(w)[-2:].tolist()
        assert token == mx.argmax(w).item() or best - below <= 2 * off, f"token {step}"
