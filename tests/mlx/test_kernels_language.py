"""Metal's language in kernels: what LANGUAGE.md says there is, in the small. One line of numbers each, that C++ gives."""

import mlx.core as mx
import numpy as np
import pytest

import support


def run(source, header="", shape=(1,), dtype=mx.float32, **inputs):
    kernel = mx.fast.metal_kernel(name="language", input_names=list(inputs), output_names=["out"], header=header,
                                  source="uint i = thread_position_in_grid.x;" + source)
    return support.as_numpy(kernel(inputs=[mx.array(x) for x in inputs.values()], grid=(shape[0], 1, 1), threadgroup=(32, 1, 1),
                                   output_shapes=[shape], output_dtypes=[dtype])[0])


TRAITS = """
struct S { static constexpr constant int v = 3; using U = float; };
namespace a { struct S { static constexpr constant int v = 9; typedef int U; }; }
template <int n> int number() { return n; }
template <typename T> T as(float x) { return T(x); }
template <typename T, int n> struct Array { T items[n]; };
template <typename Q> float both() { Array<typename Q::U, Q::v> x; x.items[0] = number<Q::v>(); return x.items[0] + sizeof(x); }
template <int n = S::v> int preset() { return n; }
template <int n> struct Kind { static constexpr constant int w = 1; };
template <> struct Kind<S::v> { static constexpr constant int w = 7; };
"""
ENUMS = """
enum class Mode : uint { none, some, all = 5 };
enum Old { first, second };
struct Holder { enum { one = 1, two }; enum class Own { p = 2, q }; Own own = Own::p; int is() { return own == Own::p; } };
namespace space { enum class Way { up, down }; int sign(Way w) { return w == Way::down ? -1 : 1; } }
template <Mode m> int chosen() { if constexpr (m == Mode::all) return 50; else return 1; }
int taken(Mode m) { switch (m) { case Mode::none: return 10; case Mode::some: return 20; default: return int(m); } }
"""
ROW = "typedef struct%s { half d; uint8_t q[6]; } %s;"

NUMBERS = [
    # a comment or a line goes on behind a backslash; comments in macros
    ("// one \\\n two out[0] = 9;\n out[0] = 1; // end", "", 1),
    ("\n#define A 1 // one \\\n two\n#define B(x) /* c */ (x /* d\n */ + A)\nout[0] = B(3);", "", 4),
    # characters
    ("out[0] = 'A' + '\\n' + '\\0' + '\\x10' + '\\'' + '\\\\' + '\\t' + '\\101' + ' ';", "", 65 + 10 + 16 + 39 + 92 + 9 + 65 + 32),
    ("out[0] = '\\xff';", "", -1),
    # words for operators
    ("out[0] = (i < 1 and not (i == 5) or i == 2) + 2 * (5 bitand 4 xor 1) + (1 not_eq 2) + (compl 5 bitor 1);", "", 12 - 5),
    ("\n#if defined(X) or not defined(Y) and 1\nout[0] = 1;\n#endif", "", 1),
    # what a structure has, as a template's argument
    ("out[0] = number<S::v>() + 10 * number<S::v + 1>() + 100 * number<a::S::v>() + 1000 * number<numeric_limits<char>::digits>();",
     TRAITS, 7943),
    ("Array<S::U, S::v> x; x.items[2] = 4; out[0] = x.items[2] + sizeof(x) + as<a::S::U>(2.7f) + as<S::U>(0.5f);", TRAITS, 18.5),
    ("out[0] = both<S>() + 100 * preset() + 1000 * preset<5>() + 10000 * Kind<3>::w + 100000 * Kind<4>::w;", TRAITS, 15 + 300 + 5000 + 170000),
    # enumerations with a scope
    ("Mode m = static_cast<Mode>(i + 1), n = Mode::some; out[0] = (m == n) + taken(m) + int(Mode::all) + taken(Mode::all);", ENUMS, 31),
    ("out[0] = chosen<Mode::all>() + 100 * chosen<Mode::some>() + Old::second + first;", ENUMS, 151),
    ("Holder h; out[0] = h.is() + 10 * Holder::two + 100 * int(Holder::Own::q) + 1000 * space::sign(space::Way::down);", ENUMS, -679),
    # a function that the library has, too, is the source's, but for the library itself
    ("out[0] = erf(1.0f) + erf(half(2)) + (log1p(0.5f) == 9) + (fabs(asinh(1.0f) - 0.8813736f) < 1e-6f);",
     "inline float erf(float x) { return 7 * x; } half erf(half x) { return 8 * x; } template <typename T> T log1p(T x) { return 9; }", 25),
    # structures that a typedef names
    ("typedef struct { int a; float b; } Q; Q q = {1, 2.5f}; typedef struct R { int z; } *P; R r{4}; P p = &r; p->z++; out[0] = q.a + q.b + r.z;",
     "", 8.5),
]


@pytest.mark.parametrize("case", range(len(NUMBERS)))
def test_number(case):
    source, header, want = NUMBERS[case]
    assert run(source, header).tolist() == [want]


@pytest.mark.parametrize("header", [ROW % ("", "Row"), ROW % (" Row", "Row"), ROW % (" Row_", "Row"),
                                    "namespace a { %s } using namespace a;" % (ROW % ("", "Row")),
                                    "struct N { %s Own x; }; typedef N::Own Row;" % (ROW % ("", "Own"))])
def test_rows_of_a_named_structure(header):
    """As quantized weights have them, laid over bytes."""
    x = np.concatenate([np.frombuffer(np.float16(j + 1).tobytes() + bytes([j, 1, 2, 3, 4, 5]), np.uint8) for j in range(4)])
    got = run("const device Row* rows = (const device Row*)x; Row r = rows[i]; r.q[0] += 1;"
              "out[i] = float(r.d) + r.q[0] * 10 + rows[i].q[5] * 1000 + sizeof(Row);", header, (4,), x=x)
    assert got.tolist() == [(j + 1) * 11 + 5008 for j in range(4)]


def test_depths():
    """What LANGUAGE.md says of nesting, of parentheses and calls, too; more is an error."""
    for deep in ("(" * 95 + "1" + ")" * 95, "abs(" * 90 + "1" + ")" * 90, "1 + (" * 90 + "-89" + ")" * 90,
                 "".join("i == %d ? 0 : " % (k + 1) for k in range(60)) + "1"):
        assert run("out[0] = %s;" % deep).tolist() == [1]
    turn = lambda n, k: "if (i == %d) r = %d; " % (n - 1 - k, n - k)
    chain = lambda n: "int r = 5;" + "else ".join(turn(n, k) for k in range(n)) + "out[i] = r;"
    assert run(chain(70), shape=(70,)).tolist() == list(range(1, 71))
    with pytest.raises(RuntimeError, match="72 ifs"):
        run(chain(100), shape=(100,))
    for deep in ("(" * 9000 + "1" + ")" * 9000, "-~" * 9000 + "1", "[&] { return " * 500 + "1" + "; }()" * 500):
        with pytest.raises(RuntimeError, match="too deeply"):
            run("out[0] = %s;" % deep)


def test_too_much_threadgroup_memory():
    source = "threadgroup float a[%d]; for (uint j = i; j < %d; j += 32) a[j] = j; out[i] = a[i];"
    assert run(source % (4096, 4096), shape=(32,)).tolist() == list(range(32))
    with pytest.raises(RuntimeError, match="240000 bytes of threadgroup memory"):
        run(source % (60000, 60000), shape=(32,))


@pytest.mark.parametrize("source, says", [("out[0] = '\\q';", "no character"), ("out[0] = 'ab';", "single character"),
                                          ("out[0] = '';", "single character"), ("out[0] = '\\x';", "no character"),
                                          ("out[0] = '\\x123';", "no character"),
                                          ("typedef struct { int z; } *P;", "without a name"),
                                          ("float2x2 m(1, 2, 3, 4);", "'float2x2' is no type")])
def test_error(source, says):
    with pytest.raises(RuntimeError, match=says):
        run(source)
