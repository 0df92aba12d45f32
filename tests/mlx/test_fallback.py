"""What mlxvk does not have: MLX_VK_FALLBACK, MLX_VK_STATS, and the statistics by call."""
import json
import re

import mlx.core as mx
import pytest

from support import *

PRELUDE = "import mlx.core as mx\n"
# Sent to the CPU in programs of their own (MLX_VK_FALLBACK_FOR), so that there is always something that falls back.
NAME, CODE = "Sinh", "mx.sinh(mx.ones((3, 4)))"


def falling(code, **environment):
    return run(PRELUDE + code, **{"MLX_VK_FALLBACK_FOR": NAME, **environment})


def test_counts():
    reset_stats()
    x = mx.exp(mx.ones((3, 4))) + 1
    mx.eval(x)
    now = stats()
    assert now["device"] and now["driver"] and now["streams"] >= 1
    assert now["primitives"]["Exp"]["native"] == 1 and now["primitives"]["Add"]["native"] == 1
    assert now["native"] >= 2 and now["fallback"] == 0 and now["dispatches"] >= 1 and now["submissions"] >= 1 and now["operations"] >= 2
    reset_stats()
    assert stats()["primitives"] == {} and stats()["native"] == 0


def test_cpu_streams_are_not_counted():
    reset_stats()
    mx.eval(mx.exp(mx.ones((3, 4), stream=mx.cpu), stream=mx.cpu))
    assert "Exp" not in stats()["primitives"]


def test_fallback_is_counted():
    got = falling(f"import json, support\nmx.eval({CODE}, mx.exp(mx.ones(2)))\nprint(json.dumps(support.stats()))")
    now = json.loads(got.stdout)
    assert now["fallback"] == 1 and now["primitives"]["Exp"] == {"native": 1, "fallback": 0, "reasons": {}}
    row = now["primitives"][NAME]
    assert row["native"] == 0 and row["fallback"] == sum(row["reasons"].values()) == 1
    assert re.match(r"float32\[3,4\] \(.+\)$", *row["reasons"]), row  # signature and reason


def test_fallback_between_native_operations_and_streams():
    got = falling("""
other, cpu = mx.new_stream(mx.gpu), mx.new_stream(mx.cpu)
for n in (3, 1000):
    for i in range(5):
        x = mx.sinh(mx.negative(mx.arange(n) / n, stream=cpu))
        y = mx.sinh(mx.abs(x) * 2, stream=other)
        z = mx.sinh(mx.negative(y, stream=mx.cpu) + 1)
        mx.async_eval(z)
        del y
        w = mx.arange(n, stream=mx.cpu) / n
        print(mx.allclose(z, mx.sinh(1 - mx.sinh(2 * mx.sinh(w))), atol=1e-4).item())
""")
    assert got.stdout.split() == ["True"] * 10 and got.returncode == 0, got


def test_silent_by_default():
    for value in ({}, {"MLX_VK_FALLBACK": "silent"}):
        got = falling(f"mx.eval({CODE})", **{"MLX_VK_STATS": "0", **value})
        assert (got.returncode, got.stdout, got.stderr) == (0, "", "")


def test_results_are_the_same():
    code = """
x = mx.exp(mx.arange(6) / 3)
y = mx.sinh(x)[::-1] * mx.sinh(x, stream=mx.new_stream(mx.gpu)) + mx.exp(mx.sinh(x / 9, stream=mx.cpu))
print(mx.sinh(mx.log(y)[:, None] / 2 + x[::-1] / 9).tolist())
"""
    want = eval(run(PRELUDE + code).stdout)
    for names in ("Sinh", "Sinh,Exp", "Log,Multiply,Add,Divide", "Arange,Slice,Exp"):
        assert np.allclose(eval(falling(code, MLX_VK_FALLBACK_FOR=names).stdout), want, rtol=1e-4), names


def test_a_name_that_is_none():
    got = falling("mx.eval(mx.exp(mx.ones(2)))", MLX_VK_FALLBACK_FOR="Exp,exp,Sinh")
    assert got.stderr == "mlxvk: MLX_VK_FALLBACK_FOR: exp is none of mlxvk_mlx.primitives()\n", got.stderr


def test_warn_once_for_each_signature():
    got = falling(f"mx.eval({CODE})\nmx.eval({CODE})\nmx.eval(mx.sinh(mx.ones(2)))", MLX_VK_FALLBACK="warn")
    lines = [line for line in got.stderr.splitlines() if NAME in line]
    assert got.returncode == 0 and len(lines) == 2 and "float32[3,4]" in lines[0] and "float32[2]" in lines[1], got.stderr


def test_error_is_an_exception_and_the_process_goes_on():
    got = falling(f"""
before = mx.exp(mx.zeros(3))
mx.async_eval(before)
for _ in range(2):
    try:
        mx.eval(mx.ones(2) + 1, {CODE})
        print("no exception")
    except RuntimeError as e:
        print(e)
print(before.tolist(), (mx.ones(3) * 2).tolist())
x = mx.array([1.0, 4.0]) * 2
try: mx.async_eval(x, {CODE})
except RuntimeError: pass
print(mx.sqrt(x * 2).tolist())
""", MLX_VK_FALLBACK="error")
    lines = got.stdout.splitlines()
    assert got.returncode == 0 and got.stderr == "" and len(lines) == 4, got
    assert NAME in lines[0] and "float32[3,4]" in lines[0] and lines[0] == lines[1]
    assert lines[2] == "[1.0, 1.0, 1.0] [2.0, 2.0, 2.0]" and lines[3] == "[2.0, 4.0]"


def test_error_reaches_the_top_as_a_traceback():
    got = falling(f"mx.eval({CODE})", MLX_VK_FALLBACK="error")
    assert got.returncode == 1 and "Traceback" in got.stderr and "RuntimeError" in got.stderr and NAME in got.stderr


def test_unknown_value_is_named():
    got = falling(f"mx.eval({CODE})", MLX_VK_FALLBACK="perhaps")
    assert got.returncode == 0 and "perhaps" in got.stderr


def test_table_at_exit():
    got = falling(f"mx.eval(mx.exp(mx.ones(3)), {CODE}); print('done')", MLX_VK_STATS="1")
    assert got.returncode == 0 and got.stdout == "done\n"
    rows = {line.split()[0]: line.split()[1:] for line in got.stderr.splitlines() if re.match(r"\w+\s+\d+\s+\d+$", line)}
    assert rows["Exp"] == ["1", "0"] and rows[NAME] == ["0", "1"], got.stderr
    assert "float32[3,4]" in got.stderr and stats()["device"] in got.stderr


def test_no_table_when_not_asked():
    for value in ({}, {"MLX_VK_STATS": "0"}, {"MLX_VK_STATS": ""}):
        got = run(PRELUDE + "mx.eval(mx.exp(mx.ones(3)))", **value)
        assert (got.returncode, got.stderr) == (0, "")


def test_statistics_without_any_work():
    got = run("import mlx.core, json, support\nprint(json.dumps(support.stats()))")
    assert got.returncode == 0 and json.loads(got.stdout)["primitives"] == {}, got.stderr


def test_gates_give_the_same_results():
    """Each switch of mlxvk that a language model's operations look at: off, the general kernels must agree."""
    code = PRELUDE + """
import mlx.nn as nn
mx.random.seed(3)
x = mx.random.normal((2, 3, 256), key=mx.random.key(1)).astype(mx.bfloat16)
w = mx.random.normal((512, 256), key=mx.random.key(2)).astype(mx.bfloat16)
q, s, b = mx.quantize(w, bits=4, group_size=64)
y = mx.quantized_matmul(x, q, s, b, bits=4, group_size=64)
n = mx.fast.rms_norm(x + x, mx.ones(256, mx.bfloat16), 1e-6)
h = x.reshape(2, 3, 2, 128).transpose(0, 2, 1, 3)
r = mx.fast.rope(h, 128, traditional=False, base=10000.0, scale=1.0, offset=4)
a = [mx.fast.scaled_dot_product_attention(r[:, :, :n], r, h, scale=0.1, mask="causal" if n > 1 else None) for n in (1, 3)]
m = mx.compile(lambda x, y: nn.silu(x) * y)(x, n)
d = mx.dequantize(q, s, b, bits=4, group_size=64)
out = [y, y[:1, :1], n, r, *a, m, d, mx.argmax(x, axis=-1), x[mx.array([1, 0, 1])]]
print([z.astype(mx.float32).reshape(-1)[::7].tolist() for z in out])
"""
    names = ("QMM_NATIVE", "QMM_NATIVE_M1", "QMM_NATIVE_M1_REDUCE", "QMM_NATIVE_M1_REDUCE_SUBGROUP", "RMSNORM_NATIVE",
        "ADD_RMSNORM_NATIVE", "ROPE_NATIVE",
             "SDPA_NATIVE", "SDPA_DECODE_D128", "ARGREDUCE_ARGMAX_LASTDIM", "COMPILED_SIGMOID_MUL_MUL_BF16", "ADD_BF16",
             "MUL_BF16", "FAST_QUANTIZE_DEQ_AFFINE_B4", "GATHER_ROWS_WORDS")
    want = eval(run(code).stdout)
    for chosen in (names, names[:4], names[4:9], names[9:]):
        got = run(code, **{f"MLX_VK_ENABLE_{name}": "0" for name in chosen})
        assert got.returncode == 0 and got.stderr == "", got.stderr
        for i, (g, w) in enumerate(zip(eval(got.stdout), want)):     # a product may round its weights, 256 of them, or not
            atol = 4 * 256 ** 0.5 * 2 ** -8 if i < 2 else 0.03
            assert np.allclose(g, w, rtol=0.02, atol=atol), (chosen, i, np.abs(np.subtract(g, w)).max())
