"""Metal's library in kernels, function by function, of every width that it is there for, against Python's integers and NumPy."""

import mlx.core as mx
import numpy as np
import pytest

import support

INTEGERS = {"char": mx.int8, "uchar": mx.uint8, "short": mx.int16, "ushort": mx.uint16, "int": mx.int32, "uint": mx.uint32,
            "long": mx.int64, "ulong": mx.uint64}


def run(source, inputs, dtype, shape, header=""):
    """What out holds after a thread for each of its rows: `source` has the thread's number in i."""
    kernel = mx.fast.metal_kernel(name="library", input_names=list(inputs), output_names=["out"], header=header,
                                  source="uint i = thread_position_in_grid.x;" + source)
    return support.as_numpy(kernel(inputs=[mx.array(x) for x in inputs.values()], grid=(shape[0], 1, 1), threadgroup=(32, 1, 1),
                                   output_shapes=[shape], output_dtypes=[dtype])[0])


def value(expression, dtype=mx.float32, header=""):
    return run("out[0] = %s;" % expression, {}, dtype, (1,), header)[0].item()


# ---- integers --------------------------------------------------------------------------------------------------------

def saturated(x, low, high):
    return min(max(x, low), high)


def field(x, at, n, width, signed):
    bits = x >> at & ((1 << n) - 1)
    return bits - (1 << n) if signed and n and bits >> (n - 1) else bits


def insertion(x, y, at, n):
    mask = ((1 << n) - 1) << at
    return x & ~mask | y << at & mask


def turned(x, n, width):
    x &= (1 << width) - 1
    n %= width
    return x << n | x >> (width - n)


def reversed_bits(x, width):
    return int(format(x & ((1 << width) - 1), "0%db" % width)[::-1], 2)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    """Saturated, halved, of the upper half: none of them in a wider type than the arguments'. Vectors as numbers."""
    width, signed = 8 * INTEGERS[name].size, name[0] != "u"
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    corners = [low, low + 1, low // 2, -1 if signed else 1, 0, 1, 2, 77, high // 3, high // 2 + 1, high - 1, high]
    a, b, c = (np.array(x, support.as_numpy(mx.zeros(1, INTEGERS[name])).dtype)
               for x in zip(*((x, y, corners[(5 * k + j) % 12]) for k, x in enumerate(corners) for j, y in enumerate(corners))))
    calls = {"addsat(x, y)": lambda x, y, z: saturated(x + y, low, high), "subsat(x, y)": lambda x, y, z: saturated(x - y, low, high),
             "madsat(x, y, z)": lambda x, y, z: saturated(x * y + z, low, high), "mulhi(x, y)": lambda x, y, z: x * y >> width,
             "madhi(x, y, z)": lambda x, y, z: (x * y >> width) + z, "hadd(x, y)": lambda x, y, z: x + y >> 1,
             "rhadd(x, y)": lambda x, y, z: x + y + 1 >> 1, "absdiff(x, y)": lambda x, y, z: abs(x - y),
             "extract_bits(x, 2u, 5u)": lambda x, y, z: field(x, 2, 5, width, signed),
             "extract_bits(x, 0u, %du)" % width: lambda x, y, z: x, "extract_bits(x, 3u, 0u)": lambda x, y, z: 0,
             "insert_bits(x, y, 3u, 4u)": lambda x, y, z: insertion(x, y, 3, 4), "rotate(x, y)": lambda x, y, z: turned(x, y, width),
             "popcount(x)": lambda x, y, z: format(x & ((1 << width) - 1), "b").count("1"),
             "clz(x)": lambda x, y, z: width - (x & ((1 << width) - 1)).bit_length(),
             "ctz(x)": lambda x, y, z: (format(x & ((1 << width) - 1), "0%db" % width)[::-1] + "1").index("1") if x else width,
             "reverse_bits(x)": lambda x, y, z: reversed_bits(x, width)}
    body = "%s x = a[i], y = b[i], z = c[i];" % name + "".join("out[%d * i + %d] = %s;" % (len(calls), k, call)
                                                              for k, call in enumerate(calls))
    pairs = ("%s2 x(a[i], b[i]), y(b[i], c[i]), z(c[i], a[i]);" % name +
             "".join("out[%d * i + %d] = (%s).x; out[%d * i + %d] = (%s).y;" % (2 * len(calls), 2 * k, call, 2 * len(calls), 2 * k + 1, call)
                     for k, call in enumerate(calls)))
    wide = {"a": a, "b": b, "c": c}
    got = run(body, wide, INTEGERS[name], (len(a), len(calls)))
    both = run(pairs, wide, INTEGERS[name], (len(a), len(calls), 2))
    for k, (call, rule) in enumerate(calls.items()):
        for i, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist())):
            for have, args in ((got[i, k], (x, y, z)), (both[i, k, 0], (x, y, z)), (both[i, k, 1], (y, z, x))):
                want = rule(*args) & ((1 << width) - 1)
                assert int(have) & ((1 << width) - 1) == want, (call, args, int(have), want)


def test_integers_of_other_types():
    """absdiff is unsigned; a shift counts modulo the width of a vector's component."""
    assert value("int(absdiff(char(100), char(-100)))", mx.int32) == 200
    assert value("(uchar4(3) << uchar4(9)).x + 100 * (short2(-512) >> short2(17)).y", mx.int32) == 6 - 25600
    assert value("(ushort3(5) << 17).z", mx.int32) == 10


# ---- floats ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [mx.float32, mx.float16], ids=support.name_of)
def test_fmod_is_exact(dtype):
    g = np.random.default_rng(3)
    kind, powers = (np.float32, 30) if dtype == mx.float32 else (np.float16, 3)
    with np.errstate(all="ignore"):
        x, y = ((g.standard_normal(2000) * 10.0 ** g.integers(-powers, powers + 1, 2000)).astype(kind) for _ in range(2))
        x[:8], y[:8] = [1, -1, 5.5, -0.0, 7, 6, np.inf, 1], [0.1, 0.1, np.inf, 2, -2.5, -3, 1, 0]
        np.testing.assert_array_equal(run("out[i] = fmod(x[i], y[i]);", {"x": x, "y": y}, dtype, x.shape), np.fmod(x, y))


def test_small_functions():
    assert value("nextafter(half(1), half(2)) - half(1)") == 2.0 ** -10 and value("nextafter(half(0), half(-1))") == -2.0 ** -24
    assert value("sign(NAN)") == 0
    got = run("out[i] = sign(x[i]);", {"x": np.array([-0.0, 0.0, -3, 4, np.nan], np.float32)}, mx.float32, (5,))
    assert got.tolist() == [0, 0, -1, 1, 0] and np.signbit(got).tolist() == [True, False, True, False, False]
    assert value("isordered(1.0f, NAN) + 2 * isunordered(1.0f, NAN) + 4 * isordered(1.0f, 2.0f)", mx.int32) == 6
    assert np.isnan(value("fdim(NAN, 1.0f)")) and value("fdim(INFINITY, INFINITY)") == 0 and value("fdim(3.0f, 1.0f)") == 2
    assert value("HUGE_VALF > MAXFLOAT && MAXHALF == 65504.0h", mx.int32) == 1


@pytest.mark.parametrize("type_", ["float", "half"])
def test_vectors_as_numbers(type_):
    """What a function gives for a vector is what it gives for each component."""
    calls = ["round(a)", "copysign(a, b)", "fdim(a, b)", "fmod(a, b)", "nextafter(a, b)", "sign(a)", "fract(a)", "ilogb(a)",
             "isordered(a, b)", "isunordered(a, b)", "fmedian3(a, b, a)", "divide(a, b)"]
    x, y = np.array([2.5, 0.49, -1.5, 7], np.float32), np.array([-1.5, 2, np.nan, 0.3], np.float32)
    body = "%s4 p(x[0], x[1], x[2], x[3]), q(y[0], y[1], y[2], y[3]);" % type_
    for k, call in enumerate(calls):
        body += "{ auto a = p; auto b = q; auto r = %s; for (int j = 0; j < 4; j++) out[%d + j] = r[j]; }" % (call, 8 * k)
        body += "for (int j = 0; j < 4; j++) { auto a = p[j]; auto b = q[j]; out[%d + j] = %s; }" % (8 * k + 4, call)
    got = run(body, {"x": x, "y": y}, mx.float32, (1, len(calls), 2, 4))[0]
    for call, (vector, numbers) in zip(calls, got):
        np.testing.assert_allclose(vector, numbers, 1e-6, err_msg=call)
    np.testing.assert_array_equal(got[0, 0], [3, 0, -2, 7])


def test_vectors_with_parts():
    got = run("int3 e; float3 w, m = frexp(float3(4, 5, -6), e), f = modf(float3(1.5f, 2.5f, -3.5f), w), p = ldexp(m, e);"
              "out[i] = i < 3 ? m[i] : i < 6 ? e[i - 3] : i < 9 ? f[i - 6] : i < 12 ? w[i - 9] : p[i - 12];", {}, mx.float32, (15,))
    assert got.tolist() == [0.5, 0.625, -0.75, 3, 3, 3, 0.5, 0.5, -0.5, 1, 2, -3, 4, 5, -6]
    got = run("float3 r = refract(normalize(float3(1, -1, 0)), float3(0, 1, 0), 0.5f), n = faceforward(float3(0, 1, 0), float3(1, -1, 0),"
              "float3(0, 1, 0)); out[i] = i < 3 ? r[i] : n[i - 3];", {}, mx.float32, (6,))
    np.testing.assert_allclose(got, [0.5 ** 1.5, -(1 - 0.125) ** 0.5, 0, 0, 1, 0], 1e-6)


# ---- threads together ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("modulo", [2, 4, 8, 16, 32])
def test_shuffle_and_fill(modulo):
    """Of the simdgroup's parts."""
    x, y = np.arange(64) * 3 + 1, np.arange(64) * -5
    lane, begin = np.arange(64) % modulo, np.arange(64) // modulo * modulo
    for way, source, inside in (("up", lane - 1, lane >= 1), ("down", lane + 1, lane + 1 < modulo)):
        for more in (", (ushort)%d" % modulo, "")[: 1 + (modulo == 32)]:
            got = run("out[i] = simd_shuffle_and_fill_%s(x[i], y[i], (ushort)1%s);" % (way, more),
                      {"x": x.astype(np.int32), "y": y.astype(np.int32)}, mx.int32, (64,))
            at = begin + source % modulo
            np.testing.assert_array_equal(got, np.where(inside, x[at], y[at]))
