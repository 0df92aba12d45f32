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
    # a name of the outermost scope
    ("int f = 3; out[0] = ::f(f) + ::metal::abs(-20) + ::space::f(1) + ::S::v; ::g(out, 1000);",
     "int f(int x) { return x * 100; } namespace space { int f(int x) { return 1 + ::f(x); } } struct S { static constexpr constant int v = 7; };"
     "void g(device float* o, int x) { o[0] += x; }", 300 + 20 + 101 + 7 + 1000),
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


HEADER = """
struct S { const device float* p; int n; };
float f(const device float* p, uint i) { return p ? p[i] : 10; }
float either(const device float* p, const device float* q, uint i) { if (!p) p = q; return p ? p[i] : -1; }
const device float* chosen(const device float* p, uint i) { if (i == 2) return nullptr; return i ? p + 1 : p; }
float add(thread float* p, float by) { if (p == nullptr) return by; *p += by; return *p; }
thread float* one(thread float* p, thread float* q, uint k) { return k == 0 ? nullptr : k == 1 ? p : q; }
void move(thread float*& p, thread float* to) { p = p ? nullptr : to; }
"""
POINTER = "const device float* p = nullptr; "
NULLS = [                                      # what the host's C++ compiler gives, too
    (POINTER + "if (i > 1) p = x; out[i] = p ? 1 : 2;", [2, 2, 1, 1]),
    (POINTER + "if (i > 1) p = x; if (p != nullptr) out[i] = p[i]; else out[i] = -1;", [-1, -1, 2, 3]),
    (POINTER + "if (i > 0) p = x + 1; out[i] = p && p[i] > 2.5f;", [0, 0, 1, 1]),
    (POINTER + "if (!p) p = x; out[i] = p[i];", [0, 1, 2, 3]),
    (POINTER + "if (i == 1) p = x; if (i == 2) p = y; out[i] = p ? p[i] : -1; if (!p) out[i] -= 1; if (p == "
     "nullptr) out[i] -= 1;", [-3, 1, 7, -3]),
    (POINTER + "float s = 0; for (int j = 0; j < 3; j++) { if (p) s += p[i]; else s += 100; p = x; } out[i] = s;",
     [100, 102, 104, 106]),
    (POINTER + "float s = 0; for (uint j = 0; j < 4; j++) { if (j > i) s += p[i]; p = j % 2 ? y : x; } out[i] = "
     "s;", [5, 7, 2, 0]),
    ("const device float* p = x; float s = 0; for (int j = 0; j < 3; j++) { s += p ? p[i] : 100; if (j "
     "== int(i)) p = nullptr; } out[i] = s;", [200, 102, 6, 9]),
    ("const device float* p = i == 0 ? nullptr : i == 1 ? x : y; auto q = p; out[i] = (p ? p[i] : 7) + "
     "(q ? 100 : 0);", [7, 101, 107, 108]),
    ("out[i] = f(i == 1 ? x : nullptr, i) + f(nullptr, i) + f(x, i);", [20, 12, 22, 23]),
    ("out[i] = either(nullptr, i < 2 ? x : nullptr, i) + 10 * either(i % 2 ? y : nullptr, x, i) + "
     "either(nullptr, nullptr, i);", [-1, 60, 18, 78]),
    ("auto p = chosen(i < 3 ? x : y, i); out[i] = p ? p[i] : 50; auto q = chosen(nullptr, 2); out[i] "
     "+= q ? 1 : 2;", [2, 4, 52, 11]),
    ("float a = 3; thread float* p = nullptr; if (i) p = &a; if (p) *p = i + 10; out[i] = a;", [3, 11, 12, 13]),
    ("device float* p = nullptr; out[i] = 9; if (i < 2) p = out + i; if (p) *p = i + 1;", [1, 2, 9, 9]),
    ("S s{}; if (i) s.p = x; S t = s; out[i] = t.p ? t.p[i] : s.n + 5;", [5, 1, 2, 3]),
    ("S s{}, t{x, 2}; for (uint j = 0; j < 3; j++) { if (j == i) { S u = s; s = t; t = u; } } out[i] = "
     "(s.p ? s.p[i] : 20) + (t.p ? t.p[i] : 40) + s.n;", [42, 43, 44, 23]),
    ("float a = 1, b[2] = {2, 3}; thread float* p = nullptr; float s = 0; for (uint j = 0; j < 5; j++) "
     "{ if (p) { *p += 10; s += *p; } else s += 1000; p = (j + i) % 3 == 0 ? nullptr : (j + i) % 3 == "
     "1 ? &a : b + 1; } out[i] = s + a + b[1];", [3048, 2079, 2081, 3048]),
    ("float a = 1, b = 2; thread float* p = &a; thread float* q = nullptr; for (uint j = 0; j < i + 2; "
     "j++) { if (p) *p += 3; if (q) *q += 50; thread float* t = p; p = q; q = t; if (j == 2) q = &b; } "
     "out[i] = a + 1000 * b;", [2054, 2057, 52057, 55057]),
    ("float a = 1, b = 2; float s = add(i ? &a : nullptr, 5) + add(i > 1 ? &b : i ? &a : nullptr, 7) + "
     "add(nullptr, 1); out[i] = s + 100 * a + 1000 * b;", [2113, 3320, 9616, 9616]),
    ("float a = 1, b = 2; for (uint k = 0; k < 3; k++) add(one(&a, &b, (i + k) % 4), 4); out[i] = a + "
     "100 * b;", [605, 1005, 1001, 605]),
    ("float a = 1, b = 2; thread float* p = nullptr; for (uint k = 0; k < i + 1; k++) { move(p, k % 4 "
     "== 0 ? &a : &b); if (p) *p += 1; } out[i] = a + 10 * b + (p ? 100 : 0);", [122, 22, 132, 32]),
    ("float a = 1; thread float* p = nullptr; for (int j = 0; j < 2; j++) { out[i] = p ? 1 : 2; p = "
     "&a; }", [1, 1, 1, 1]),
    ("float a = 1, b = 4; thread float* p = i < 3 ? &a : &b; if (i == 1) p = nullptr; thread float* q "
     "= p; if (i == 2) q = nullptr; out[i] = (p == nullptr) + 2 * (q != nullptr) + (q ? *q : 10);",
     [3, 11, 10, 6]),
    ("thread float* p = nullptr; bool none = p == nullptr; float a = 5, b = 6; if (i) p = &a; if (i > "
     "1) p = &b; out[i] = none + (p ? *p : 0);", [1, 6, 7, 7]),
    ("float a = 1; thread float* p = i % 2 ? &a : nullptr; thread float* q = i > 1 ? &a : nullptr; "
     "out[i] = (p == q) + 2 * (p != q);", [1, 2, 2, 1]),
    ("float4 v = {1, 2, 3, 4}; thread float4* w = i ? &v : nullptr; thread float* p = (thread "
     "float*)w; out[i] = p ? p[i] : 9;", [9, 2, 3, 4]),
    ("const device float2* p = i ? (const device float2*)x : nullptr; if (p) p += 1; auto q = (const "
     "device float*)p; out[i] = q ? q[i] : -4;", [-4, 3, 4, 5]),
    ("const device float* p = x - 1; for (uint j = 0; j < i; j++) p = p ? nullptr : x; out[i] = p ? "
     "p[1] : 30;", [0, 30, 1, 30]),
    ("thread float4* p = nullptr; float4 v = {1, 2, 3, 4}; float s = 0; for (int j = 0; j < 2; j++) { "
     "thread float* q = (thread float*)p; s += q ? q[i] : 10; p = &v; } out[i] = s;", [11, 12, 13, 14]),
    ("thread float* p = nullptr; float4 v = {1, 2, 3, 4}; float s = 0; for (int j = 0; j < 2; j++) { s "
     "+= p ? p[i] : 10; p = (thread float*)&v; } out[i] = s;", [11, 12, 13, 14]),
    ("float a = 1, s = 0; thread float* p = nullptr; for (uint j = 0; j < 3; j++) { if (p) { float "
     "t[2] = {1, 2}; thread float* q = j > 1 ? t + 1 : p; s += 10 * *q; add(q, 100); s += t[1]; } "
     "float u = j + 4, w = 7; thread float* v = &u; if (i == 1) v = &a; for (uint k = 0; k < i; k++) v "
     "= k % 2 ? &u : &w; s += *v; p = &a; } out[i] = s + 1000 * a;", [101149, 101155, 101149, 101155]),
    ("float a = 2, b = 3, s = 0; thread float *p = nullptr, *q = nullptr, *r = nullptr; for (uint j = "
     "0; j < 4 + i; j++) { if (r) s += *r; if (q) s += 10 * *q; if (p) s += 100 * *p; r = q; q = p; p "
     "= j % 2 ? &a : &b; if (j == 4) p = nullptr; } out[i] = s;", [853, 1085, 1108, 1310]),
    (POINTER + "for (uint j = 0; j < i; j++) { if (j) out[i] = either(p, y, j) + either(nullptr, p, j); else "
     "out[i] = 3; p = p ? p + 1 : x; } if (!p) out[i] = p == nullptr;", [1, 3, 2, 6]),
    ("const device float* p = i ? x : nullptr; auto q = &p[0]; out[i] = (q ? 1 : 2) + (&*p ? 10 : 20);",
     [22, 11, 11, 11]),
    ("float a[2] = {1, 2}, b[2] = {3, 4}; thread float* p = i == 0 ? nullptr : i == 1 ? a : b; thread "
     "float* q = &p[0]; out[i] = q ? q[1] : 7;", [7, 2, 4, 4]),
]


@pytest.mark.parametrize("case", range(len(NULLS)))
def test_pointers_that_may_be_null(case):
    source, want = NULLS[case]
    x = np.arange(20, dtype=np.float32)
    assert run(source, HEADER, (4,), x=x, y=x + 5).tolist() == want


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


@pytest.mark.parametrize("pragma", ["clang fp contract(off)", "METAL fp contract ( off )", "STDC FP_CONTRACT OFF"])
@pytest.mark.parametrize("source", ["{\n#pragma %s\nout[i] = a[i] * b[i] + c[i]; }",
                                    "\n#pragma %s\nfloat s = c[i]; s += a[i] * b[i]; out[i] = s;"])
def test_products_that_are_not_contracted(source, pragma):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(4096).astype(np.float32) for _ in range(2))
    c = -a * b
    assert not run(source % pragma, shape=(4096,), a=a, b=b, c=c).any()
    assert (run(source % pragma, shape=(4096,), a=a, b=b, c=c * 3) == a * b + c * 3).all()


def test_too_much_threadgroup_memory():
    source = "threadgroup float a[%d]; for (uint j = i; j < %d; j += 32) a[j] = j; out[i] = a[i];"
    assert run(source % (4096, 4096), shape=(32,)).tolist() == list(range(32))
    with pytest.raises(RuntimeError, match="240000 bytes of threadgroup memory"):
        run(source % (60000, 60000), shape=(32,))


@pytest.mark.parametrize("source, says", [("const device float* p = nullptr; out[0] = p[0];", "null pointer"),
                                          ("out[0] = '\\q';", "no character"), ("out[0] = 'ab';", "single character"),
                                          ("out[0] = '';", "single character"), ("out[0] = '\\x';", "no character"),
                                          ("out[0] = '\\x123';", "no character"),
                                          ("typedef struct { int z; } *P;", "without a name"),
                                          ("out[0] = ::nowhere(1);", "'nowhere'"), ("out[0] = ::;", "expected a name"),
                                          ("float2x2 m(1, 2, 3, 4);", "'float2x2' is no type")])
def test_error(source, says):
    with pytest.raises(RuntimeError, match=says):
        run(source)
