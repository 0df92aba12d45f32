"""Distributed work between the devices of this host: how long collectives take, and a model over several of them.

    build/mlx/bin/python tests/mlx/bench_distributed.py [--ranks 2] [--sizes 8K,2M,64M] [--model 8b] [--library FILE]

Each rank is a process with the bridge, on a device of its own where there are so many. Of each collective:

    alone      one evaluation each, waited for, with GPU work before and behind it
    in a row   one evaluation of many, each of which needs the last one's result

--model: Qwen3 of a shape (tests/mlx/model.py) with random weights of 4 bits (--bits 16: bfloat16), by one rank and by
all with model.shard(group): tokens a second of the prompt and of generation, as mlx_lm's generate_step makes them.
MLX_VK_SHARED_RANKS=0 is MLX's ring for what the ranks would do through memory that they share; 1 has the host between
them, 2 the devices exchange small parts themselves.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


# ---- in a rank ------------------------------------------------------------------------------------------------------

def same_count(mx, group, seconds, least, most):
    """How many calls all ranks make of what took one that long: they must agree."""
    wanted = min(max(int(least / max(seconds, 1e-6)), 5), most)
    return int(mx.distributed.all_max(mx.array([wanted]), group=group, stream=mx.cpu).item())


def timed(mx, group, function, least, most):
    for _ in range(3):
        function()
    before = time.perf_counter()
    function()
    count = same_count(mx, group, time.perf_counter() - before, least, most)
    times = []
    for _ in range(count):
        before = time.perf_counter()
        function()
        times.append(time.perf_counter() - before)
    return sorted(times)[len(times) // 2]


def collectives(mx, group, sizes, least):
    rows = []
    for name in ("all_sum", "all_gather"):
        call = getattr(mx.distributed, name)
        for size in sizes:
            n = max(size // 4 // (group.size() if name == "all_gather" else 1), 1)
            x = mx.ones((n,)) * 0.5
            mx.eval(x)

            def once(y):
                y = call(y * 0.5, group=group)
                return (y[:n] if name == "all_gather" else y) * 0.5
            row = 50 if size < 1 << 20 else 4

            def in_a_row():
                y = x
                for _ in range(row):
                    y = once(y)
                mx.eval(y)
            alone = timed(mx, group, lambda: mx.eval(once(x)), least, 500)
            rows.append({"name": name, "bytes": size, "alone": alone,
                         "row": timed(mx, group, in_a_row, least, 50) / row})
    return rows


def model_of(mx, shape, bits):
    import mlx.nn as nn
    from mlx.utils import tree_map
    from mlx_lm.models import qwen3
    from model import HEAD, SHAPES, VOCABULARY
    hidden, inner, layers, heads, kv, tied = SHAPES[shape]
    model = qwen3.Model(qwen3.ModelArgs(
        model_type="qwen3", hidden_size=hidden, num_hidden_layers=layers, intermediate_size=inner,
        num_attention_heads=heads, rms_norm_eps=1e-6, vocab_size=VOCABULARY, num_key_value_heads=kv,
        max_position_embeddings=40960, rope_theta=1e6, head_dim=HEAD, tie_word_embeddings=tied))
    model.update(tree_map(lambda w: w.astype(mx.bfloat16), model.parameters()))
    if bits < 16:
        nn.quantize(model, 64, bits)
    return model


def ready(mx, options, group):
    """The weights layer by layer, so that not all of the whole model is in memory at once."""
    mx.random.seed(1)
    model = model_of(mx, options.model, options.bits)
    if group:
        model.shard(group)
    for layer in model.model.layers:
        mx.eval(layer.parameters())
    mx.eval(model.parameters())
    mx.clear_cache()
    return model


def tokens_a_second(mx, model, options):
    from mlx_lm.generate import generate_step
    best = {"prompt": 0.0, "generation": 0.0}
    for _ in range(options.trials):
        mx.random.seed(2)
        prompt = mx.random.randint(0, 1000, (options.prompt,))
        mx.eval(prompt)
        start = time.perf_counter()
        for n, _ in enumerate(generate_step(prompt, model, max_tokens=options.generate + 1)):
            if n == 0:
                first = time.perf_counter()
        end = time.perf_counter()
        best["prompt"] = max(best["prompt"], options.prompt / (first - start))
        best["generation"] = max(best["generation"], options.generate / (end - first))
    return best


def rank_work(options):
    import mlxvk_mlx
    import mlx.core as mx
    meet = os.environ["BENCH_MEET"]
    open(os.path.join(meet, os.environ["MLX_RANK"]), "w").close()
    while len(os.listdir(meet)) < options.ranks:
        time.sleep(0.01)
    said = {}
    group = mx.distributed.init(strict=True, backend="ring")
    mx.eval(mx.ones(3) + 1)
    info = mx.device_info() if hasattr(mx, "device_info") else mx.metal.device_info()
    said["device"] = "%s (%s)" % (info.get("device_name", "?"), info.get("driver", "?"))
    said["shared"] = bool(mlxvk_mlx.stats().get("shared_ranks"))
    sizes = [size_of(text) for text in options.sizes.split(",") if text]
    said["collectives"] = collectives(mx, group, sizes, options.seconds)
    if options.model:
        mlxvk_mlx.reset_stats()
        model = ready(mx, options, group)
        said["sharded"] = tokens_a_second(mx, model, options)
        del model
        mx.clear_cache()
        mx.eval(mx.distributed.all_sum(mx.ones(1), group=group))
        if group.rank() == 0:
            said["whole"] = tokens_a_second(mx, ready(mx, options, None), options)
        mx.eval(mx.distributed.all_sum(mx.ones(1), group=group))   # the others' memory stays free until then
    said["exchanged"] = mlxvk_mlx.stats().get("exchanged", 0)
    print("said " + json.dumps(said), flush=True)


# ---- who starts them ------------------------------------------------------------------------------------------------

def ports(count):
    """Free ones, that somebody else may take before the ranks do: then it is to be started again."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    found = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return found


def run_ranks(options, **more):
    with tempfile.TemporaryDirectory() as folder:
        hosts, meet = os.path.join(folder, "hosts.json"), os.path.join(folder, "meet")
        os.mkdir(meet)
        with open(hosts, "w") as file:
            json.dump([["127.0.0.1:%d" % port] for port in ports(options.ranks)], file)
        command = [sys.executable, "-B", os.path.abspath(__file__), *sys.argv[1:], "--in-rank"]
        path = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
        ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={
            **os.environ, "PYTHONPATH": path, "MLX_HOSTFILE": hosts, "MLX_RANK": str(r), "BENCH_MEET": meet, **more})
            for r in range(options.ranks)]
        outputs = [p.communicate()[0] for p in ranks]
    if any(p.returncode for p in ranks):
        sys.exit("a rank ended with an error")
    return [json.loads(next(line for line in o.splitlines() if line.startswith("said "))[5:]) for o in outputs]


def table(said):
    way = "by shared memory, %d parts by the devices" % said[0]["exchanged"] if said[0]["shared"] else "by MLX's ring"
    print("%d ranks, %s: %s" % (len(said), way, "; ".join(s["device"] for s in said)))
    print("%-12s %10s %14s %14s %10s" % ("", "bytes", "alone, us", "in a row, us", "GB/s"))
    for rows in zip(*(s["collectives"] for s in said)):
        row = rows[0]
        alone, each = max(r["alone"] for r in rows), max(r["row"] for r in rows)
        print("%-12s %10d %14.1f %14.1f %10.2f" % (row["name"], row["bytes"], alone * 1e6, each * 1e6,
                                                   row["bytes"] / each / 1e9))
    if "sharded" in said[0]:
        slowest = {key: min(s["sharded"][key] for s in said) for key in said[0]["sharded"]}
        for what, speed in (("one rank", said[0]["whole"]), ("%d ranks" % len(said), slowest)):
            print("%-12s prompt %8.1f tokens/s, generation %8.1f tokens/s" %
                  (what, speed["prompt"], speed["generation"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8K,2M,64M", help="bytes of a collective's result")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement, about")
    parser.add_argument("--model", choices=("tiny", "0.6b", "4b", "8b"))
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--library", help="the bridge")
    parser.add_argument("--in-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        os.environ["MLXVK_MLX_LIBRARY"] = os.path.abspath(options.library)
    if options.in_rank:
        rank_work(options)
    else:
        table(run_ranks(options))


if __name__ == "__main__":
    main()
