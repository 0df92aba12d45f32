"""mlx_lm's programs on a small model with random weights, as their command lines call them.

What is run, and how (TOOLS below; what test_lm.py has by its functions is not run again here):

| program | run |
|---|---|
| generate | from a prompt cache's file, with a quantized and with a rotating cache, with a draft model |
| cache_prompt | as it is, and with a quantized cache |
| chat | two turns and a reset, from standard input |
| server | as it is, with a draft model, with a quantized cache: four requests at once, one of them streamed, and one \
that repeats a prompt, which is in the server's cache |
| convert | to 4 bits, to mxfp4, and back |
| lora | LoRA, DoRA and all weights; LoRA on 4 bits with checkpoints of the gradient; the test's loss |
| fuse | the adapters, and dequantized |
| awq, gptq, dwq, dynamic_quant | with calibration data of ours |
| perplexity, benchmark | with data of ours; one and two sequences |
| evaluate | choices, likelihood of text and answers, by data of ours; where lm_eval is, which mlx_lm does not bring |

share, upload and manage need the net.
"""
import contextlib
import importlib
import io
import json
import os
import re
import shutil
import socket
import sys
import threading
import time
import urllib.request

import mlx.core as mx
import pytest

from support import *

pytest.importorskip("mlx_lm")
pytestmark = pytest.mark.skipif(MLX < (0, 32), reason="the command lines are those of mlx_lm 0.32")
TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "tiny-qwen3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models and data: "plain" of bfloat16, "data" of lines of text."""
    from mlx.utils import tree_flatten
    from mlx_lm.models.qwen3 import Model, ModelArgs
    root = tmp_path_factory.mktemp("tools")
    plain = root / "plain"
    plain.mkdir()
    with open(os.path.join(TINY, "config.json")) as file:
        config = {k: v for k, v in json.load(file).items() if not k.startswith("quantization")}
    config |= {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
               "head_dim": 64, "num_key_value_heads": 1}
    mx.random.seed(3)
    model = Model(ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    mx.save_safetensors(str(plain / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    (plain / "config.json").write_text(json.dumps(config))
    for name in os.listdir(TINY):
        if "token" in name or "merges" in name or "vocab" in name:
            shutil.copy(os.path.join(TINY, name), plain)
    (plain / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    (root / "data").mkdir()
    for split, count in (("train", 8), ("valid", 4), ("test", 4)):
        lines = [json.dumps({"text": f"The function {i} returns a value, or sets errno. " * 3}) for i in range(count)]
        (root / "data" / f"{split}.jsonl").write_text("\n".join(lines))
    call("convert", "--hf-path", plain, "--mlx-path", root / "four", "-q", "--q-bits", 4, "--q-group-size", 32)
    return root


def call(program, *words):
    """The program's main() with these words; its output."""
    module = importlib.import_module("mlx_lm." + program)
    keep, output = (sys.argv, sys.stdout), io.StringIO()
    sys.argv, sys.stdout = [program, *map(str, words)], output
    try:
        module.main()
    finally:
        sys.argv, sys.stdout = keep
    return re.sub("\x1b\\[[0-9;]*m", "", output.getvalue())    # without colours


def generates(model, *words):
    text = call("generate", "--model", model, "--prompt", "The function", "--max-tokens", 8, "--ignore-chat-template",
                *words)
    assert "Generation: 8 tokens" in text, text
    return text.split("==========")[1]


def logits(model, **options):
    import mlx_lm
    return mlx_lm.load(str(model), **options)[0](mx.array([[5, 9, 200, 7, 31]]))[0].astype(mx.float32)


def test_convert(folder):
    want, size = logits(folder / "plain"), lambda name: (folder / name / "model.safetensors").stat().st_size
    call("convert", "--hf-path", folder / "plain", "--mlx-path", folder / "mx", "-q", "--q-mode", "mxfp4")
    call("convert", "--hf-path", folder / "four", "--mlx-path", folder / "back", "-d")
    assert size("mx") < size("four") < size("plain") / 2 < size("back") / 1.5
    for name in ("four", "mx", "back"):
        assert mx.abs(logits(folder / name) - want).mean() < 0.5 * mx.abs(want).mean(), name
    assert mx.abs(logits(folder / "back") - logits(folder / "four")).mean() < 0.03 * mx.abs(want).mean()


TUNINGS = {
    "lora": ("plain", "--fine-tune-type", "lora"), "dora": ("plain", "--fine-tune-type", "dora"),
    "full": ("plain", "--fine-tune-type", "full"),
    "lora on 4 bits": ("four", "--fine-tune-type", "lora", "--grad-checkpoint"),
}


@pytest.mark.parametrize("name", TUNINGS)
def test_fine_tuning_and_fuse(folder, name):
    model, *how = TUNINGS[name]
    adapters = folder / name.replace(" ", "_")
    # A rate of 2e-3 is chaotic here: dora's losses then go from 6 to 8 and back with the last bits, on the CPU too.
    text = call("lora", "--model", folder / model, "--train", "--test", "--data", folder / "data",
                "--adapter-path", adapters, "--iters", 8, "--batch-size", 2, "--learning-rate", 5e-4, "--steps-per-eval", 8,
                "--num-layers", 2, "--max-seq-length", 64, "--val-batches", 1, "--test-batches", 1, *how)
    losses = [float(x) for x in re.findall(r"(?:val|Test loss) +([\d.]+)", text)]
    assert len(losses) == 3 and max(losses[1:]) < 2, text        # 8.9, then 0.8 (full) to 1.3, on MLX's CPU, too
    if name == "full":
        return
    fused = folder / (adapters.name + "_fused")
    plainly = ["--dequantize"] if model == "four" else []
    call("fuse", "--model", folder / model, "--adapter-path", adapters, "--save-path", fused, *plainly)
    want = logits(folder / model, adapter_path=str(adapters))
    assert mx.abs(logits(fused) - want).mean() < 0.05 * mx.abs(want).mean()


def calibration(tokenizer, num_samples, sequence_length):
    return mx.random.randint(0, 4000, (8 if num_samples < 0 else num_samples, min(sequence_length, 64)))


TOOLS = {  # program: its words
    "quant.awq": ("--num-samples", 4, "--sequence-length", 32, "--n-grid", 2),
    "quant.gptq": ("--num-samples", 4, "--sequence-length", 32),
    "quant.dwq": ("--num-samples", 8, "--max-seq-length", 33, "--batch-size", 2),
    "quant.dynamic_quant": ("--target-bpw", 5.2, "--low-bits", 4, "--high-bits", 8),
}


@pytest.mark.parametrize("program", TOOLS)
def test_learned_quantization(folder, program, monkeypatch):
    module = importlib.import_module("mlx_lm." + program)

    def pairs(*_, **__):
        rows = [(row, 0) for row in calibration(None, 8, 33).tolist()]
        return rows, rows[:2]
    monkeypatch.setattr(module, "load_data", pairs if program == "quant.dwq" else calibration)
    monkeypatch.chdir(folder)
    path = folder / program
    model = folder / "plain"
    if program == "quant.gptq":                            # on MLX's CPU, too, sums of bfloat16 have no root here
        model = folder / "wide"
        call("convert", "--hf-path", folder / "plain", "--mlx-path", model, "--dtype", "float32")
    call(program, "--model", model, "--mlx-path", path, *TOOLS[program])
    want = logits(model)
    assert mx.abs(logits(path) - want).mean() < 0.5 * mx.abs(want).mean()
    assert (path / "model.safetensors").stat().st_size < (folder / "plain" / "model.safetensors").stat().st_size / 2
    generates(path)


def test_perplexity_and_benchmark(folder, monkeypatch):
    from mlx_lm import perplexity
    monkeypatch.setattr(perplexity, "load_data", lambda tokenizer, *_, **__: calibration(tokenizer, 4, 32))
    text = call("perplexity", "--model", folder / "four", "--batch-size", 2, "--sequence-length", 32)
    value = float(re.search(r"Perplexity: ([\d.]+)", text)[1])
    assert 2000 < value < 20000, text                      # of 4096 that are as likely as each other
    for batch in (1, 2):
        text = call("benchmark", "--model", folder / "four", "-p", 40, "-g", 8, "-b", batch, "-n", 1)
        assert float(re.search(r"Averages:.*generation_tps=([\d.]+)", text)[1]) > 0, text


def test_generate_and_cache_prompt(folder):
    model, words = folder / "four", ("--kv-bits", 8, "--kv-group-size", 32, "--quantized-kv-start", 0)
    plain = generates(model)
    assert plain == generates(model, "--draft-model", folder / "back" if (folder / "back").exists() else model)
    generates(model, *words)
    generates(model, "--max-kv-size", 8)
    for more in ((), words):
        file = folder / f"cache{len(more)}.safetensors"
        call("cache_prompt", "--model", model, "--prompt", "RETURN VALUE", "--prompt-cache-file", file, *more)
        generates(model, "--prompt-cache-file", file, *more)


def test_chat(folder):
    code = f"""
import sys, runpy
sys.argv = ["mlx_lm", "chat", "--model", {str(folder / "four")!r}, "--max-tokens", "6"]
runpy.run_module("mlx_lm", run_name="__main__")
"""
    path = folder / "turns"
    path.write_text("NAME\nand then\nr\nSYNOPSIS\nq\n")
    with open(path) as turns:
        got = subprocess.run([sys.executable, "-c", "import mlxvk_mlx\n" + code], stdin=turns, capture_output=True,
                             text=True, timeout=300)
    assert got.returncode == 0 and len(got.stdout) > 80, got.stdout + got.stderr


def ask(port, prompt, stream=False):
    """The text, and how many tokens of the prompt the server had in its cache."""
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": stream}).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, kind)
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read().decode()
    if not stream:
        answer = json.loads(text)
        return answer["choices"][0]["text"], answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(e["choices"][0]["text"] for e in events), 0


@contextlib.contextmanager
def server(*words):
    """Its port, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import mlxvk_mlx, sys\nfrom mlx_lm.server import main\nmain()"
    process = subprocess.Popen([sys.executable, "-c", program, "--port", str(port), *map(str, words)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.5)
        yield port
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(60)


SERVERS = {"plain": (), "draft": ("--draft-model", "back", "--num-draft-tokens", 3),
           "quantized": ("--kv-bits", 8, "--kv-group-size", 32, "--quantized-kv-start", 0)}


@pytest.mark.parametrize("name", SERVERS)
def test_server(folder, name):
    if not (folder / "back").exists():
        call("convert", "--hf-path", folder / "four", "--mlx-path", folder / "back", "-d")
    words = [folder / w if w == "back" else w for w in SERVERS[name]]
    with server("--model", folder / "four", *words) as port:
        prompts = ["NAME", "The function returns a value, or", "RETURN VALUE", "The mutex is locked"]
        answers = [None] * len(prompts)

        def work(i):
            answers[i] = ask(port, prompts[i], stream=i == 2)[0]
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert all(answers), answers
        text, cached = ask(port, prompts[1])
        assert text and cached > 0


TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - metric: acc
""",
    "likelihood": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - metric: word_perplexity
""",
    "answer": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6}
metric_list:
  - metric: exact_match
""",
}


def test_evaluate(folder, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval")
    tasks = folder / "tasks"
    tasks.mkdir()
    rows = [{"question": f"The function {i} returns", "choices": [" a value", " errno"], "answer": i % 2}
            for i in range(6)]
    (tasks / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, text in TASKS.items():
        (tasks / f"{name}.yaml").write_text(f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
                                            f"    test: {tasks / 'rows.jsonl'}\ntest_split: test{text}")
    from lm_eval.tasks import TaskManager
    manager, whole = TaskManager(include_path=str(tasks), include_defaults=False), lm_eval.simple_evaluate
    monkeypatch.setattr(lm_eval, "simple_evaluate",
                        lambda **words: whole(task_manager=manager, bootstrap_iters=0, **words))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "datasets"))
    text = call("evaluate", "--model", folder / "four", "--tasks", *TASKS, "--output-dir", folder / "results",
                "--batch-size", 4, "--no-apply-chat-template")
    figures = {task: next(v for k, v in row.items() if k.split(",")[0] in ("acc", "word_perplexity", "exact_match"))
               for path in (folder / "results").iterdir() for task, row in json.loads(path.read_text()).items()}
    assert set(figures) == set(TASKS) and 0 <= figures["choice"] <= 1 and figures["likelihood"] > 100, text
