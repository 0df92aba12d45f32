"""mlx_lm on the small model of tests/models: the text of the reference, nothing of it on the CPU."""
import contextlib
import copy
import io
import json
import os
import sys

import mlx.core as mx
import pytest

from support import *

mlx_lm = pytest.importorskip("mlx_lm")
from mlx_lm.generate import BatchGenerator, batch_generate, generate_step  # noqa: E402
from mlx_lm.models.cache import QuantizedKVCache, RotatingKVCache, make_prompt_cache  # noqa: E402
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache, trim_prompt_cache  # noqa: E402
from mlx_lm.sample_utils import make_logits_processors, make_sampler  # noqa: E402

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "tiny-qwen3")
MARGIN = 0.25  # of the best logit over the second: below, rounding may decide

with open(os.path.join(MODEL, "reference.json")) as file:
    CASES = json.load(file)["cases"]


@pytest.fixture(scope="module")
def loaded():
    with contextlib.redirect_stderr(io.StringIO()):
        return mlx_lm.load(MODEL)


@pytest.fixture(autouse=True)
def nothing_falls_back():
    reset_stats()
    yield
    assert fallbacks() == {}


def agree(tokens, case):
    """How many tokens are the reference's: up to the first that it chose by a small margin only."""
    for i, (got, want, margin) in enumerate(zip(tokens, case["tokens"], case["margins"])):
        if got != want:
            assert margin < MARGIN, f"token {i}: {got}, not {want}, at a margin of {margin}"
            return i
    return len(tokens)


def greedy(model, prompt, count, **options):
    return [int(t) for t, _ in generate_step(mx.array(prompt), model, max_tokens=count, sampler=lambda x: mx.argmax(x, axis=-1), **options)]


def on_cpu(model, prompt, count, cache):
    """Greedy tokens with their margins as a case of the reference has them: in float32 by MLX's own code."""
    wide, tokens, margins = copy.deepcopy(model), [], []
    with mx.stream(mx.cpu):
        wide.set_dtype(mx.float32)
        wide(mx.array([prompt[:-1]]), cache=cache)
        last = prompt[-1]
        for _ in range(count):
            logits = wide(mx.array([[last]]), cache=cache)[0, -1]
            last = mx.argmax(logits).item()
            below, best = mx.sort(logits)[-2:].tolist()
            tokens.append(last)
            margins.append(best - below)
    return {"tokens": tokens, "margins": margins}


@pytest.mark.parametrize("i", range(len(CASES)))
def test_greedy_text(loaded, i):
    case, (model, _) = CASES[i], loaded
    tokens = greedy(model, case["prompt_ids"], 40)
    assert agree(tokens, case) >= 4 and len(tokens) == 40


@pytest.mark.parametrize("i", range(0, len(CASES), 2))
def test_logits_with_the_answer_in_the_prompt(loaded, i):
    case, (model, _) = CASES[i], loaded
    ids = case["prompt_ids"] + case["tokens"]
    logits = model(mx.array([ids[:-1]]))[0, len(case["prompt_ids"]) - 1:].astype(mx.float32)
    for step, (best, want, margin) in enumerate(zip(mx.argmax(logits, axis=-1).tolist(), case["tokens"], case["margins"])):
        assert best == want or margin < MARGIN, f"token {step}: {best}, not {want}, at a margin of {margin}"
    reference = np.array(case["logits_after_prompt"], np.float32)
    limit = 3 / 256 * 2 * max(np.abs(reference).max(), 1)
    assert np.abs(np.array(logits[0]) - reference).max() <= limit


def test_logits_as_on_the_cpu(loaded):
    """In float32 on the CPU, from the same quantized weights: it adds bfloat16 up in bfloat16."""
    model, ids = loaded[0], mx.array([CASES[0]["prompt_ids"] + CASES[0]["tokens"][:9]])
    wide = copy.deepcopy(model)
    wide.set_dtype(mx.float32)
    got, want = on(mx.gpu, model, ids)[0], on(mx.cpu, wide, ids)[0]
    assert mx.abs(got - want).max().item() < 0.02 * mx.abs(want).max().item()
    assert_close(on(mx.gpu, wide, ids)[0], want, tolerance=20, scale=None)


def test_generate_and_its_figures(loaded):
    model, tokenizer = loaded
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        text = mlx_lm.generate(model, tokenizer, CASES[0]["prompt"], max_tokens=16, verbose=True)
    assert text and text in output.getvalue() and "tokens-per-sec" in output.getvalue() and "Peak memory" in output.getvalue()
    for response in mlx_lm.stream_generate(model, tokenizer, CASES[0]["prompt"], max_tokens=8):
        pass
    assert response.generation_tokens == 8 and response.generation_tps > 0 and response.peak_memory > 0.002


def test_long_prompt_in_steps(loaded):
    model = loaded[0]
    ids = [t for case in CASES for t in case["prompt_ids"] + case["tokens"]][:600]
    assert greedy(model, ids, 12, prefill_step_size=128) == greedy(model, ids, 12, prefill_step_size=600)


def test_prompt_cache(loaded, tmp_path):
    model, case = loaded[0], CASES[1]
    ids = case["prompt_ids"]
    cache = make_prompt_cache(model)
    first = greedy(model, ids, 20, prompt_cache=cache)
    trim_prompt_cache(cache, cache[0].offset - len(ids) - 12)
    second = greedy(model, first[12:13], 20, prompt_cache=cache)
    assert agree(first[:13] + second, case) >= 12

    cache = make_prompt_cache(model)
    model(mx.array([ids[:-1]]), cache=cache)
    mx.eval([c.state for c in cache])
    save_prompt_cache(str(tmp_path / "cache.safetensors"), cache, {"for": "a test"})
    back, metadata = load_prompt_cache(str(tmp_path / "cache.safetensors"), return_metadata=True)
    assert metadata == {"for": "a test"}
    for c in (cache, back):
        agree(greedy(model, ids[-1:], 20, prompt_cache=c), case)
    trim_prompt_cache(cache, cache[0].offset - len(ids) + 1)
    assert agree(greedy(model, ids[-1:], 20, prompt_cache=cache), case) >= 4


def test_caches_of_other_kinds(loaded):
    model, case = loaded[0], CASES[0]
    rotating = [RotatingKVCache(max_size=16, keep=4) for _ in model.layers]
    want = on_cpu(model, case["prompt_ids"], 40, [RotatingKVCache(max_size=16, keep=4) for _ in model.layers])
    tokens = greedy(model, case["prompt_ids"], 40, prompt_cache=rotating)
    assert agree(tokens, want) >= 8 and len(tokens) == 40
    assert tokens != greedy(model, case["prompt_ids"], 40)  # what it forgot matters
    assert agree(greedy(model, case["prompt_ids"], 20, kv_bits=8, kv_group_size=64, quantized_kv_start=0), case) >= 1
    quantized = [QuantizedKVCache(group_size=64, bits=8) for _ in model.layers]
    assert agree(greedy(model, case["prompt_ids"], 20, prompt_cache=quantized), case) >= 1


def assert_greedy(model, prompt, tokens):
    """Each token is the likeliest behind those before it, or as good as that."""
    logits = model(mx.array([prompt + tokens[:-1]]))[0, len(prompt) - 1:].astype(mx.float32)
    short = (logits.max(axis=-1) - mx.take_along_axis(logits, mx.array(tokens)[:, None], axis=-1)[:, 0]).tolist()
    assert max(short) < MARGIN, (tokens, short)


def test_batch(loaded):
    model, tokenizer = loaded
    prompts, counts = [case["prompt_ids"] for case in CASES[:5]], [12, 8, 12, 3, 12]
    generator = BatchGenerator(model, stop_tokens=tokenizer.eos_token_ids)
    uids = generator.insert(prompts, counts)
    tokens = {uid: [] for uid in uids}
    following = getattr(generator, "next_generated", generator.next)   # since 0.31 the other one tells of prompts, too
    while responses := following():
        for response in responses:
            tokens[response.uid].append(response.token)
    generator.close()
    assert [len(tokens[uid]) for uid in uids] == counts
    for uid, prompt in zip(uids, prompts):
        assert_greedy(model, prompt, tokens[uid])
    texts = batch_generate(model, tokenizer, prompts, max_tokens=counts).texts
    assert texts == [tokenizer.decode(tokens[uid]) for uid in uids]


def test_chat_of_several_turns(loaded):
    model, tokenizer = loaded
    cache, history = make_prompt_cache(model), []
    for turn in ("The mutex is", " and the printf() function", "\nRETURN VALUE\n", " in all other cases"):
        ids = tokenizer.encode(turn)
        answer = greedy(model, ids, 10, prompt_cache=cache)
        history += ids
        whole = greedy(model, history, 10)
        logits = model(mx.array([history]))[0, -1].astype(mx.float32)
        best = mx.sort(logits)[-2:].tolist()
        assert answer[0] == whole[0] or best[1] - best[0] < MARGIN, (turn, answer, whole)
        trim_prompt_cache(cache, cache[0].offset - len(history))
        history += answer[:5]
        model(mx.array([answer[:5]]), cache=cache)
    assert cache[0].offset == len(history)


def test_sampling(loaded):
    model, ids = loaded[0], CASES[2]["prompt_ids"]

    def sampled(seed, **options):
        mx.random.seed(seed)
        return [int(t) for t, _ in generate_step(mx.array(ids), model, max_tokens=12, sampler=make_sampler(**options),
                                                 logits_processors=make_logits_processors(repetition_penalty=1.1, logit_bias={3: -5.0}))]
    for options in ({"temp": 0.8}, {"temp": 1.0, "top_p": 0.9}, {"temp": 0.7, "top_k": 20}, {"temp": 1.0, "min_p": 0.05}):
        first = sampled(1, **options)
        assert first == sampled(1, **options) and all(0 <= t < 4096 for t in first)
    assert sampled(1, temp=1.5) != sampled(2, temp=1.5)


def test_memory_is_flat_over_a_generation(loaded):
    model, ids = loaded[0], CASES[0]["prompt_ids"]
    greedy(model, ids, 4)
    mx.synchronize()
    start = mx.get_active_memory()
    for _ in range(3):
        greedy(model, ids, 30)
        mx.synchronize()
        assert mx.get_active_memory() <= start + 65536


def test_other_quantizations_and_none(loaded):
    import mlx.nn as nn
    from mlx_lm.models.qwen3 import Model, ModelArgs
    with open(os.path.join(MODEL, "config.json")) as file:
        args = ModelArgs.from_dict(json.load(file))
    mx.random.seed(0)
    plain = Model(args)
    plain.set_dtype(mx.bfloat16)
    mx.eval(plain.parameters())
    ids = mx.array([CASES[0]["prompt_ids"]])
    for quantization in (None, dict(bits=8, group_size=64), dict(bits=3, group_size=32)):
        model = copy.deepcopy(plain)
        if quantization:
            nn.quantize(model, **quantization)
        wide = copy.deepcopy(model)
        wide.set_dtype(mx.float32)
        got, want = on(mx.gpu, model, ids)[0], on(mx.cpu, wide, ids)[0]
        assert mx.abs(got - want).max().item() < 0.03 * mx.abs(want).max().item(), quantization
        assert len(greedy(model, ids[0].tolist(), 6)) == 6


def test_command_line():
    code = f"""
import sys, runpy
sys.argv = ["mlx_lm", "generate", "--model", {MODEL!r}, "--prompt", "NAME", "--max-tokens", "20", "--ignore-chat-template"]
runpy.run_module("mlx_lm", run_name="__main__")
"""
    got = run(code, MLX_VK_FALLBACK="error")
    assert got.returncode == 0 and "Generation: 20 tokens" in got.stdout, got.stdout + got.stderr
