"""mx.fast.metal_kernel: its whole interface on the bridge, and what else MLX does once mx.metal.is_available() says yes."""

import mlx.core as mx
import numpy as np
import pytest

import support

DOUBLE = "uint i = thread_position_in_grid.x; out[i] = inp[i] + inp[i];"


def make(source=DOUBLE, name="test", inputs=("inp",), outputs=("out",), **more):
    return mx.fast.metal_kernel(name=name, input_names=list(inputs), output_names=list(outputs), source=source, **more)


def call(kernel, *inputs, shape=None, dtype=None, grid=None, group=(32, 1, 1), **more):
    first = inputs[0] if inputs else None
    return kernel(inputs=list(inputs), grid=grid or (first.size, 1, 1), threadgroup=group, output_shapes=[shape or first.shape],
                  output_dtypes=[dtype or first.dtype], **more)[0]


# ---- the interface ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [d for d in support.REAL if d != mx.bool_], ids=support.name_of)
def test_dtypes(dtype):
    x = support.values(support.seeded("kernel", dtype), dtype, (7, 5), "small")
    support.assert_bits(call(make(), x), x + x)


def test_bool_and_complex():
    x = mx.array([True, False, True])
    assert call(make("uint i = thread_position_in_grid.x; out[i] = !inp[i];"), x).tolist() == [False, True, False]
    z = mx.array([1 + 2j, -3j], mx.complex64)
    got = call(make("uint i = thread_position_in_grid.x; out[i] = inp[i] * inp[i];"), z)
    assert got.tolist() == (z * z).tolist()


def test_template_and_header():
    kernel = make("uint i = thread_position_in_grid.x; if (Twice) out[i] = twice<T>(inp[i]) + N; else out[i] = T(inp[i]);",
                  header="template <typename U> U twice(U x) { return x + x; }\n")
    x = mx.array([1.5, -2.0])
    assert call(kernel, x, template=[("T", mx.float16), ("N", -3), ("Twice", True)], dtype=mx.float16).tolist() == [0, -7]
    assert call(kernel, x, template=[("T", mx.int32), ("N", 3), ("Twice", False)]).tolist() == [1, -2]
    with pytest.raises(ValueError, match="template"):
        call(kernel, x, template=[("T", "float")])


def test_several_outputs_and_numbers():
    kernel = make("uint i = thread_position_in_grid.x; a[i] = x[i] * s; b[i] = x[i] + k; for (int n = 0; n < 3; n++) c[3 * i + n] = n;",
                  inputs=("x", "s", "k"), outputs=("a", "b", "c"))
    x = mx.arange(6.0)
    a, b, c = kernel(inputs=[x, 2.5, 7], grid=(6, 1, 1), threadgroup=(4, 1, 1), output_shapes=[(6,), (2, 3), (6, 3)],
                     output_dtypes=[mx.float32, mx.float32, mx.int8])
    assert a.tolist() == (x * 2.5).tolist() and b.tolist() == (x.reshape(2, 3) + 7).tolist() and c.tolist() == [[0, 1, 2]] * 6


def test_init_value_and_atomics():
    kernel = make("atomic_fetch_add_explicit(&out[inp[thread_position_in_grid.x]], 1, memory_order_relaxed);", atomic_outputs=True)
    x = mx.array(np.random.default_rng(1).integers(0, 4, 1000).astype(np.int32))
    assert call(kernel, x, shape=(6,), init_value=10).tolist() == [10 + n for n in np.bincount(np.array(x), minlength=6)]
    few = make("out[0] = 1;")
    assert call(few, x, shape=(3,), grid=(1, 1, 1), dtype=mx.float16, init_value=-0.5).tolist() == [1, -0.5, -0.5]


def test_grids():
    """A grid that is no multiple of the threadgroup, one smaller than it, three dimensions."""
    kernel = make("""
        uint3 p = thread_position_in_grid, n = threads_per_grid;
        uint sides = threads_per_threadgroup.x + 10 * threadgroups_per_grid.y;
        out[(p.z * n.y + p.y) * n.x + p.x] = p.x + 100 * p.y + 10000 * p.z + sides * 1000000;
    """, inputs=())
    for grid, group in (((5, 3, 2), (4, 2, 1)), ((7, 1, 1), (256, 1, 1)), ((8, 4, 4), (2, 2, 2))):
        got = np.array(call(kernel, shape=grid[::-1], dtype=mx.int32, grid=grid, group=group))
        z, y, x = np.indices(grid[::-1])
        side = min(group[0], grid[0])
        more = np.minimum(side, grid[0] - x // side * side) + 10 * -(-grid[1] // min(group[1], grid[1]))   # at the end fewer
        assert (got == x + 100 * y + 10000 * z + more * 1000000).all()


@pytest.mark.parametrize("contiguous", [True, False])
def test_views(contiguous):
    kernel = make("""uint i = thread_position_in_grid.x;
        out[i] = %s;""" % ("inp[i] + inp_ndim + inp_shape[0]" if contiguous else
                           "inp[elem_to_loc(i, inp_shape, inp_strides, inp_ndim)] + inp_ndim + inp_shape[0]"),
                  ensure_row_contiguous=contiguous)
    x = mx.arange(240.0).reshape(8, 6, 5)
    for view in (x, x.T, x[::2, 1:, ::-1], mx.broadcast_to(x[:, :1], (8, 4, 5)), x[3:, 2], x[1:2], x.reshape(-1)[7:30]):
        assert call(kernel, view).tolist() == (view + view.ndim + view.shape[0]).tolist()


def test_strides_are_those_of_what_is_read():
    """With a copy, of the copy."""
    x = mx.arange(12.0).reshape(3, 4).T
    for contiguous, want in ((True, [3, 1]), (False, [1, 4])):
        kernel = make("uint i = thread_position_in_grid.x; out[i] = inp_strides[i];", ensure_row_contiguous=contiguous)
        assert call(kernel, x, shape=(2,), dtype=mx.int64, grid=(2, 1, 1)).tolist() == want


def test_empty_and_large():
    assert call(make("out[0] = inp_shape[0];"), mx.zeros((0, 3)), shape=(1,), grid=(1, 1, 1)).tolist() == [0]
    x = mx.arange(1 << 20, dtype=mx.float32)
    assert mx.array_equal(call(make(), x, group=(256, 1, 1)), x * 2)


def test_verbose():
    got = support.run("""
import mlx.core as mx
k = mx.fast.metal_kernel(name="shown", input_names=["a"], output_names=["out"], source="out[0] = a[0];")
print(k(inputs=[mx.ones(1)], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)], output_dtypes=[mx.float32], verbose=True))""")
    assert got.returncode == 0 and "Generated source code for `shown`" in got.stdout and "[[kernel]]" in got.stdout, got.stderr


def test_streams():
    x, s = mx.ones(4), mx.new_stream(mx.gpu)
    with mx.stream(s):
        y = x * 3
        z = call(make(), y, stream=s)
    assert (call(make(), z) + 1).tolist() == [13] * 4
    assert call(make(), x, stream=mx.gpu).tolist() == [2] * 4
    if support.MLX >= (0, 32):                             # unsaid is the GPU's
        with mx.stream(mx.cpu):
            assert call(make(), x).tolist() == [2] * 4
    with pytest.raises(ValueError, match="Only supports the GPU"):
        call(make(), x, stream=mx.cpu)


def test_cached():
    """By the whole source: a name alone means nothing."""
    x = mx.arange(8.0)
    a, b = (make("uint i = thread_position_in_grid.x; out[i] = inp[i] + %d;" % k, name="same") for k in (1, 2))
    got = [call(a, x), call(b, x), call(a, x.astype(mx.int32)), call(a, x, group=(3, 1, 1)), call(a, x[:7])]
    mx.eval(got)
    assert [g.tolist() for g in got] == [(x + 1).tolist(), (x + 2).tolist(), (x + 1).tolist(), (x + 1).tolist(), (x[:7] + 1).tolist()]


# ---- errors ----------------------------------------------------------------------------------------------------------

def test_an_error_in_the_source():
    y = call(make("float x = inp[0];\n  out[0] = x +* 1;"), mx.ones(1))
    with pytest.raises(RuntimeError, match=r"\[metal_kernel\] (?s:.)*error: (?s:.)*out\[0\] = x \+\* 1;\n *\^"):
        mx.eval(y)
    assert call(make(), mx.ones(1)).item() == 2            # and all goes on


def test_other_errors():
    x = mx.ones(4)
    with pytest.raises(ValueError, match="threads per threadgroup"):
        mx.eval(call(make(), mx.ones(1 << 17), group=(1 << 16, 1, 1)))
    for grid, group in (((0, 1, 1), (1, 1, 1)), ((4, 1, 1), (0, 1, 1)), ((4, -1, 1), (1, 1, 1))):
        with pytest.raises(ValueError, match="at least 1"):
            mx.eval(call(make(), x, grid=grid, group=group))
    with pytest.raises(ValueError, match="inputs"):
        call(make(), x, x)
    for name, value in (("output_shapes", [(4,), (4,)]), ("output_dtypes", [])):
        with pytest.raises(ValueError, match=name):
            make()(**{**dict(inputs=[x], grid=(4, 1, 1), threadgroup=(4, 1, 1), output_shapes=[(4,)], output_dtypes=[x.dtype]), name: value})
    with pytest.raises(ValueError, match="output"):
        make(outputs=())
    many = make("out[0] = a0[0];", inputs=["a%d" % i for i in range(31)])
    with pytest.raises(RuntimeError, match="31 arrays"):
        mx.eval(call(many, *[x] * 31))


@pytest.mark.parametrize("inputs, outputs, shapes", [(15, 1, False), (16, 1, False), (30, 1, False), (17, 13, True), (1, 30, False)])
def test_many_arrays(inputs, outputs, shapes):
    """As many as a kernel of Metal's takes; each of the results has all operands in it. A grid of whole threadgroups, or one
    array more says how many threads there are."""
    ins, outs = ["a%d" % i for i in range(inputs)], ["o%d" % i for i in range(outputs)]
    source = "uint i = thread_position_in_grid.x; float t = %s;" % ("a%d_shape[0]" % (inputs - 1) if shapes else "0")
    source += "".join("t += %d * a%d[i];" % (k + 1, k) for k in range(inputs)) + "".join("o%d[i] = t + %d;" % (k, k) for k in range(outputs))
    operands = [mx.arange(96, dtype=mx.float32) + 7 * k for k in range(inputs)]
    for _ in range(2):
        results = make(source, "many", ins, outs)(inputs=operands, grid=(96, 1, 1), threadgroup=(32, 1, 1),
                                                  output_shapes=[(96,)] * outputs, output_dtypes=[mx.float32] * outputs)
        total = sum(((k + 1) * np.array(a) for k, a in enumerate(operands)), np.zeros(96, np.float32)) + (96 if shapes else 0)
        for k, result in enumerate(results):
            assert result.tolist() == (total + k).tolist()


APPEND = """
    uint i = thread_position_in_grid.x;
    device T* row = (device T*)cache + at * line_shape[0];
    row[i] = line[i];
    out[i] = row[i] + %s;
"""


@pytest.mark.parametrize("dtype", support.FLOATS + (mx.int32, mx.int8), ids=support.name_of)
def test_an_input_that_is_written(dtype):
    """A cast takes from an input that it is constant: rows are put into a cache in place, and all see them who have it."""
    kernel = mx.fast.metal_kernel(name="append", input_names=["cache", "line", "at"], output_names=["out"],
                                  source=APPEND % "cache[at * line_shape[0]]")
    cache = mx.full((6, 48), 5, dtype=dtype)
    mx.eval(cache)
    view, before = cache.T, cache + 1
    mx.async_eval(before)
    for row in range(4):
        line = mx.arange(48).astype(dtype) + row
        out, = kernel(inputs=[cache, line, mx.array(row, mx.uint32)], template=[("T", dtype)], grid=(48, 1, 1),
                      threadgroup=(48, 1, 1), output_shapes=[(48,)], output_dtypes=[dtype])
        mx.eval(out)
        assert out.tolist()[1:] == [i + 2 * row for i in range(1, 48)]
    want = [[float(i + row if row < 4 else 5) for i in range(48)] for row in range(6)]
    assert cache.tolist() == want and np.array(cache.astype(mx.float32)).tolist() == want
    assert (view.T * 1).tolist() == want
    assert before.tolist() == [[6] * 48] * 6


def test_an_input_that_the_host_had_is_written():
    kernel = mx.fast.metal_kernel(name="add", input_names=["x"], output_names=["out"],
                                  source="uint i = thread_position_in_grid.x; ((device float*)x)[i] += 1; out[i] = 0;")
    for size in (9, 5000):
        x = mx.array(np.arange(size, dtype=np.float32))
        for count in range(1, 4):
            mx.eval(kernel(inputs=[x], grid=(size, 1, 1), threadgroup=(32, 1, 1), output_shapes=[(size,)], output_dtypes=[mx.float32]))
            assert np.array(x).tolist() == [i + count for i in range(size)]
            assert (x * 2).tolist() == [2 * (i + count) for i in range(size)]


@pytest.mark.parametrize("source, says", [("x[0] = 1;", "constant"), ("((device float*)n)[0] = 1;", "constant"),
                                          ("((device int*)x_shape)[0] = 1;", "constant")])
def test_what_is_constant_is_not_written(source, says):
    kernel = mx.fast.metal_kernel(name="bad", input_names=["x", "n"], output_names=["out"], source=source + "out[0] = 1;")
    with pytest.raises(RuntimeError, match=says):
        mx.eval(kernel(inputs=[mx.ones(9), mx.ones(2)], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)],
                       output_dtypes=[mx.float32]))


LONG = """
    uint i = thread_position_in_grid.x;
    out[i] = i + threadgroup_position_in_grid.x * 3 + thread_position_in_threadgroup.x + thread_position_in_grid.y;
    if (i == 5) out[5] = threadgroups_per_grid.x + 2 * threadgroups_per_grid.y + threads_per_grid.x;
    if (i == at) out[i] = threads_per_threadgroup.x + 1000 * threadgroup_position_in_grid.x;
"""


@pytest.mark.parametrize("size, group", [(65535, 1), (65536, 1), (200001, 1), (70000 * 4 + 3, 4), (70000 * 32, 32)])
def test_more_groups_than_a_device_takes(size, group):
    out = call(make(LONG, inputs=("at",)), mx.array(size - 1, mx.uint32), shape=(size + 5,), dtype=mx.uint32, grid=(size, 1, 1),
               group=(group, 1, 1), init_value=7)
    i, groups = np.arange(size, dtype=np.uint32), (size + group - 1) // group
    want = i + i // group * 3 + i % group
    want[5] = groups + 2 + size
    want[-1] = ((size - 1) % group + 1) + 1000 * (groups - 1)
    assert np.array_equal(np.array(out), np.concatenate([want, np.full(5, 7, np.uint32)]))


def test_outside_is_not_reached():
    """Indices out of range read and write nothing that is another's."""
    before, x, after = mx.full((64,), 5.0), mx.ones(64), mx.full((64,), 6.0)
    mx.eval(before, x, after)
    y = call(make("uint i = thread_position_in_grid.x; out[i + 1000000000] = inp[i + 1000000000]; out[i] = 1;"), x)
    assert y.tolist() == [1] * 64 and before.tolist() == [5] * 64 and after.tolist() == [6] * 64


# ---- transformations -------------------------------------------------------------------------------------------------

def test_compile():
    f = mx.compile(lambda x: mx.exp(call(make(), x + 1) * 0.5) - 1)
    x = mx.arange(10.0) / 10
    for n in (10, 7, 10):
        assert mx.allclose(f(x[:n]), mx.exp(x[:n] + 1) - 1, rtol=1e-5)


def test_gradient_and_vmap_of_a_custom_function():
    @mx.custom_function
    def square(x):
        return call(make("uint i = thread_position_in_grid.x; out[i] = inp[i] * inp[i];"), x)

    @square.vjp
    def square_vjp(x, up, _):
        return call(make("uint i = thread_position_in_grid.x; out[i] = 2 * inp[i] * up[i];", inputs=("inp", "up")), x, up)

    @mx.custom_function
    def tripled(x):
        return x * 3

    @tripled.vmap
    def tripled_vmap(x, axis):
        return call(make("uint i = thread_position_in_grid.x; out[i] = 3 * inp[i];"), x), axis

    x = mx.array([[1.0, -2.0], [3.0, 0.5]])
    assert mx.grad(lambda v: (square(v) * 3).sum())(x).tolist() == (6 * x).tolist()
    assert mx.vmap(tripled)(x).tolist() == (x * 3).tolist()
    assert mx.compile(mx.grad(lambda v: square(v).sum()))(x).tolist() == (2 * x).tolist()
    for transform in (lambda f: mx.grad(lambda v: f(v).sum()), mx.vmap):   # as on a Mac
        with pytest.raises(ValueError, match="[Nn]ot implemented"):
            mx.eval(transform(lambda v: call(make(), v))(x))


def test_export(tmp_path):
    def f(x):
        return call(make("uint i = thread_position_in_grid.x; out[i] = inp[i] * N;"), x, template=[("N", 3)]) + 1

    x, path = mx.arange(5.0), str(tmp_path / "kernel.mlxfn")
    mx.export_function(path, f, x)
    assert mx.import_function(path)(x)[0].tolist() == f(x).tolist()
    got = support.run("import mlx.core as mx\nprint(mx.import_function(%r)(mx.arange(5.0))[0].tolist())" % path)
    assert got.stdout == "%s\n" % f(x).tolist(), got.stderr


def test_no_fallback():
    support.reset_stats()
    mx.eval(call(make(), mx.ones(3)))
    assert support.stats()["primitives"]["CustomKernel"]["native"] == 1 and not support.fallbacks()


# ---- what else changes where Metal is said to be there ---------------------------------------------------------------

ASK = """
import mlx.core as mx, numpy as np
x = mx.arange(3.0)
print(mx.metal.is_available(), x.__dlpack_device__(), np.from_dlpack(x).tolist())
try:
    k = mx.fast.metal_kernel(name="k", input_names=["a"], output_names=["out"], source="out[0] = a[0];")
    print(k(inputs=[mx.ones(1)], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)], output_dtypes=[mx.float32])[0].item())
except RuntimeError as error:
    print(error)
"""


def test_gate():
    for gate, first, last in (("1", "True", "1.0"), ("0", "False", "[metal_kernel] No Metal back-end.")):
        got = support.run(ASK, MLX_VK_METAL_KERNELS=gate)
        assert got.stdout == "%s (1, 0) [0.0, 1.0, 2.0]\n%s\n" % (first, last), got.stderr


def test_without_a_device():
    got = support.run(ASK, VK_DRIVER_FILES="/nowhere.json", VK_ICD_FILENAMES="/nowhere.json")
    assert got.stdout == "False (1, 0) [0.0, 1.0, 2.0]\n[metal_kernel] No Metal back-end.\n", got.stderr


def test_what_programs_ask_of_metal(capfd):
    assert mx.metal.is_available()
    info = mx.metal.device_info()
    assert info == support.device_info() and info["max_recommended_working_set_size"] <= info["memory_size"]
    mx.metal.start_capture("trace.gputrace")
    mx.metal.stop_capture()
    old = mx.set_wired_limit(info["max_recommended_working_set_size"])
    assert mx.set_wired_limit(old) == info["max_recommended_working_set_size"]
    with pytest.raises(ValueError):
        mx.set_wired_limit(info["max_recommended_working_set_size"] + 1)


def test_arrays_of_others():
    """A library that takes arrays gets the CPU's memory, and what it gives is copied."""
    x = mx.arange(6, dtype=mx.int32).reshape(2, 3)
    assert x.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(x).tolist() == x.tolist() and np.from_dlpack(x.T).tolist() == x.T.tolist()
    if support.MLX < (0, 32):                              # gives what dies with the array, and takes nothing
        return
    assert np.from_dlpack(mx.arange(4.0) * 2).tolist() == [0, 2, 4, 6]
    given = np.arange(5.0, dtype=np.float32)
    taken = mx.from_dlpack(given) + 0
    given += 1
    assert taken.tolist() == [0, 1, 2, 3, 4] and mx.array(given).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.skipif(support.MLX < (0, 32, 3), reason="MLX might overwrite such memory")
def test_memory_of_others():
    """copy=False: the array is the caller's memory, whose changes it has; the GPU takes a copy for each use."""
    given = np.arange(600, dtype=np.float32).reshape(20, 30)[:, 1:]
    x, copied = mx.asarray(given[2:], copy=False), mx.asarray(given[2:])
    for value in (3, 4):
        given[5, 7] = value
        assert x[3, 7].item() == value and np.array(x, copy=False)[3, 7] == value
        for got in (x * 2, mx.compile(lambda a: a + a)(x), x @ (2 * mx.eye(29)), mx.add(x, x, stream=mx.cpu)):
            assert mx.array_equal(got, mx.array(given[2:] * 2)).item()
    assert copied[3, 7].item() == 158
    before = given.copy()
    x += 1
    x[0] = 5
    mx.eval(x)
    assert np.array_equal(given, before)
    for refused in (lambda: mx.asarray(given, mx.int32, copy=False), lambda: mx.asarray([1.0], copy=False)):
        with pytest.raises(ValueError):
            refused()
    assert mx.asarray.__doc__.startswith("asarray(a")


@pytest.mark.skipif(support.MLX < (0, 32, 3), reason="MLX might overwrite such memory")
def test_memory_of_others_lives_as_long():
    code = """
import gc, sys, weakref, numpy as np, mlx.core as mx
class Bytes(np.ndarray): pass
given = np.arange(1000, dtype=np.float32).view(Bytes)
gone = []
weakref.finalize(given, gone.append, 1)
x = mx.asarray(given, copy=False)      # MLX's first call of all
del given
gc.collect()
y = x[10:] + 1
assert not gone and y[0].item() == 11 and x.shape == (1000,)
y = x[10:] + 1
del x
mx.eval(y)
del y
gc.collect()
assert gone
print("fine")
"""
    got = support.run(code)
    assert got.stdout == "fine\n", got.stderr
