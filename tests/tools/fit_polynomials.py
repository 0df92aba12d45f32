#!/usr/bin/env python3
"""The polynomials of shaders/polynomials.glsl, fitted here: pip install mpmath; tests/tools/fit_polynomials.py [--check]

Each is the one of its shape whose largest weighted error over an interval is least (Remez's exchange, on a fine grid of Chebyshev
points). Coefficients become floats one after another, the one that weighs most first, and those left are fitted again, so that
they make good what rounding took. The table at the end says what is fitted, over which interval, and with which weight: most are
tails, f(x) = what is known + x^n tail(x), weighted as the tail's error shows in the result's last place.

Without an option the file is written; --check says whether it is what would be written."""
import os
import struct
import sys

from mpmath import mp, mpf

mp.dps = 50
GRID = 400
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "shaders", "polynomials.glsl")


def to_float(x):
    """The nearest float, as an exact number."""
    return mpf(struct.unpack("f", struct.pack("f", float(x)))[0])


def text(x):
    """The shortest decimal number that is this float."""
    for digits in range(1, 18):
        short = "%.*g" % (digits, float(x))
        if to_float(mpf(short)) == x:
            break
    mantissa, _, exponent = short.partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + ("e" + str(int(exponent)) if exponent else "")


def value(terms, powers):
    return sum(c * p for c, p in zip(terms, powers))


def extremes(errors, count):
    """Places of `count` errors of alternating signs, the largest among them."""
    places = []
    for i, e in enumerate(errors):
        if places and (e > 0) == (errors[places[-1]] > 0):
            if abs(e) > abs(errors[places[-1]]):
                places[-1] = i
        else:
            places.append(i)
    while len(places) > count:
        if len(places) == count + 1:
            places.pop(0 if abs(errors[places[0]]) < abs(errors[places[-1]]) else -1)
            continue
        k = min(range(len(places) - 1), key=lambda i: max(abs(errors[places[i]]), abs(errors[places[i + 1]])))
        del places[k:k + 2]
    return places


def remez(rows, wanted, weights):
    """Coefficients c of the least largest |weight (wanted - c . row)| over the grid, and that error."""
    n, last = len(rows[0]), len(rows) - 1
    places = [round((1 - mp.cos(mp.pi * i / n)) / 2 * last) for i in range(n + 1)]
    best = None
    for _ in range(20):
        system = mp.matrix(n + 1, n + 1)
        for i, place in enumerate(places):
            for k in range(n):
                system[i, k] = weights[place] * rows[place][k]
            system[i, n] = (-1) ** i
        solution = mp.lu_solve(system, mp.matrix([weights[place] * wanted[place] for place in places]))
        terms = [solution[k] for k in range(n)]
        errors = [w * (y - value(terms, row)) for row, y, w in zip(rows, wanted, weights)]
        largest, found = max(abs(e) for e in errors), extremes(errors, n + 1)
        if best is None or largest < best[1]:
            best = terms, largest
        if largest <= abs(solution[n]) * mpf("1.001") or len(found) < n + 1:
            break
        places = found
    return best


def fit(function, weight, low, high, degree):
    """Floats c[0..degree] and the largest weighted error of sum c[k] x^k."""
    low, high = mpf(low), mpf(high)
    points = [low + (high - low) * (1 - mp.cos(mp.pi * (i + mpf(1) / 2) / GRID)) / 2 for i in range(GRID)]
    wanted, weights = [function(x) for x in points], [weight(x) for x in points]
    powers = [[x ** k for k in range(degree + 1)] for x in points]
    known = []
    for k in range(degree + 1):                        # what is left is x^k times a polynomial with no such factor
        rest = [(y - value(known, row)) / row[k] for y, row in zip(wanted, powers)]
        terms, _ = remez([row[:degree + 1 - k] for row in powers], rest, [w * abs(row[k]) for w, row in zip(weights, powers)])
        known.append(to_float(terms[0]))
    return known, max(abs(w * (y - value(known, row))) for row, y, w in zip(powers, wanted, weights))


def horner(c, x):
    lines = ["    float r = %s;" % text(c[-1])]
    lines += ["    r = fma(r, %s, %s);" % (x, text(a)) for a in reversed(c[1:-1])]
    return lines + ["    return fma(r, %s, %s);" % (x, text(c[0]))]


def two_rows(c, x):
    """Even and odd powers beside each other: half as long a way from x to the result."""
    even, odd = c[0::2], c[1::2]
    lines = ["    float s = %s * %s, r = %s, t = %s;" % (x, x, text(even[-1]), text(odd[-1]))]
    for k in range(max(len(even), len(odd)) - 2, -1, -1):
        if k < len(odd) - 1:
            lines.append("    t = fma(t, s, %s);" % text(odd[k]))
        if k < len(even) - 1:
            lines.append("    r = fma(r, s, %s);" % text(even[k]))
    return lines + ["    return fma(t, %s, r);" % x]


def constant(name, x):
    return "const float %s = %s;" % (name, text(x))


def parts(name, x, *places, nearest=mp.nint):
    """x as a sum of floats: multiples of 2^-places[k] of 12 bits, whose products with whole numbers of as many are exact, and the
    rest."""
    lines = []
    for place in places:
        part = mp.ldexp(nearest(mp.ldexp(x, place)), -place)
        assert abs(mp.ldexp(part, place)) <= 4096
        lines.append(constant("%s_%d" % (name, len(lines) + 1), part))
        x -= part
    return lines + [constant("%s_%d" % (name, len(lines) + 1), to_float(x))]


def words_of_inverse_pi():
    """The 96 bits of 2^(8 k - 16) / pi from that of 1 on, k < 16: chosen from seven words, not from a table with an index, of
    which some compilers make a copy for each call."""
    with mp.workdps(100):
        words = ["0x%08xu" % (int(mp.floor(mp.ldexp(1 / mp.pi, 32 * k - 16 + 31))) & 0xffffffff) for k in range(7)]
    return ["uvec3 words_of_inverse_pi(const uint k)", "{",
            "    uint shift = 8u * (k & 3u), last = (k & 8u) == 0u ? %s : %s;" % (words[4], words[6]),
            "    uvec4 far = (k & 8u) == 0u ? uvec4(%s)" % ", ".join(words[:4]),
            "        : uvec4(%s);" % ", ".join(words[2:6]),
            "    uvec4 w = (k & 4u) == 0u ? far : uvec4(far.yzw, last);",
            "    return w.xyz << shift | w.yzw >> 1u >> 31u - shift;", "}"]


def relative(f):
    return lambda x: 1 / abs(f(x))


def root(f):
    return lambda s: f(mp.sqrt(s))


def odd_ratio(f):
    """f(x) / x by the square of x, and what an error of it is beside the ratio."""
    return root(lambda x: f(x) / x), root(lambda x: x / f(x))


def odd_tail(f):
    """(f(x) / x - 1) / x^2 by the square of x, and what an error of it is beside f(x)."""
    return root(lambda x: (f(x) / x - 1) / x ** 2), root(lambda x: x ** 3 / f(x))


def exp_tail(x):
    return (mp.expm1(x) - x) / x ** 2


def log_tail(x):
    """A little more than it should be: that goes against how far the float LN2 is beyond log(2), where both are added."""
    return (mp.log1p(x) - x + x * x / 2) / x ** 3 + mpf("6e-8")


def erfinv_ratio(centre):
    """erfinv(x) / x by u, where log(1 - x^2) is u - centre: by Newton's steps."""
    known = {}

    def f(u):
        if u in known:
            return known[u]
        w = centre - u
        x = mp.sqrt(-mp.expm1(-w)) if w > 0 else mpf(10) ** -15
        y, step = mp.sqrt(w / 2) if w > 1 else x * mpf("0.8"), mpf(1)
        while abs(step) > mpf(10) ** -30:
            step = (mp.erfc(y) - mp.exp(-w) / (1 + x)) * mp.exp(y * y) * mp.sqrt(mp.pi) / 2
            y += step
        known[u] = y / x
        return known[u]
    return f


def fits():
    """name, argument, comment, function, weight, interval, degree, way of writing it"""
    e, turn, quarter, half = mpf("1.001"), mp.pi / 2, mp.pi / 4, mpf("0.5")
    near, far = erfinv_ratio(mpf("2.625")), erfinv_ratio(mpf("10.625"))
    yield "exp_tail", "x", "e^x = 1 + x + x^2 tail, |x| <= log(2) / 2", exp_tail, lambda x: x * x if x < 0 else x * x / 2, \
        (-e * mp.log(2) / 2, e * mp.log(2) / 2), 4, horner
    yield "expm1_tail", "x", "the same, beside e^x - 1", exp_tail, lambda x: abs(x * x / mp.expm1(x)), \
        (-e * mp.log(2) / 2, e * mp.log(2) / 2), 5, horner
    yield "log_tail", "x", "log(1 + x) = x - x^2 / 2 + x^3 tail, sqrt(1/2) <= 1 + x <= sqrt(2)", log_tail, \
        lambda x: abs(x ** 3 / mp.log1p(x)), (mp.sqrt(mpf("0.5")) - 1, mp.sqrt(2) - 1), 8, two_rows
    yield ("sin_tail", "s", "sin(x) = x + x s tail, s = x^2, |x| <= pi / 4", *odd_tail(mp.sin), (0, (e * quarter) ** 2), 3, horner)
    yield ("tan_tail", "s", "tan(x) = x + x s tail, s = x^2, |x| <= pi / 4", *odd_tail(mp.tan), (0, (e * quarter) ** 2), 6, horner)
    yield ("asin_tail", "s", "asin(x) = x + x s tail, s = x^2 <= 1/4", *odd_tail(mp.asin), (0, mpf("0.25")), 4, horner)
    yield ("atan_tail", "s", "atan(x) = x + x s tail, s = x^2 <= 1", *odd_tail(mp.atan), (0, 1), 8, horner)
    yield ("atanh_tail", "s", "atanh(x) = x + x s tail, s = x^2, |x| <= 0.1716", *odd_tail(mp.atanh), (0, mpf("0.1717") ** 2), 3, horner)
    yield ("sinh_tail", "s", "sinh(x) = x + x s tail, s = x^2, |x| <= 1.5", *odd_tail(mp.sinh), (0, mpf("1.5") ** 2), 3, horner)
    yield ("tanh_tail", "s", "tanh(x) = x + x s tail, s = x^2, |x| <= 0.65", *odd_tail(mp.tanh), (0, mpf("0.65") ** 2), 4, horner)
    yield "erf_tail", "x", "erf(a) = a + a tail, x = a^2 - 1/2, |a| <= 1.125", lambda x: mp.erf(mp.sqrt(x + half)) / mp.sqrt(x + half) - 1, \
        lambda x: mp.sqrt(x + half) / mp.erf(mp.sqrt(x + half)), (-half, mpf("1.125") ** 2 - half), 6, horner
    yield "erfc_series", "x", "erfc(x + 2.5), 1.125 <= x + 2.5 <= 3.92", lambda x: mp.erfc(x + mpf("2.5")), \
        lambda x: mpf(1), (mpf("1.125") - mpf("2.5"), mpf("3.92") - mpf("2.5")), 13, horner
    yield "erfinv_near", "x", "erfinv(a) / a, x = log(1 - a^2) + 2.625, -5.5 <= x - 2.625 <= 0", near, relative(near), \
        (mpf("2.625") - mpf("5.5"), mpf("2.625")), 9, horner
    yield "erfinv_far", "x", "erfinv(a) / a, x = log(1 - a^2) + 10.625, -16.7 <= x - 10.625 <= -5.5", far, relative(far), \
        (mpf("10.625") - mpf("16.7"), mpf("10.625") - mpf("5.5")), 9, horner

    yield "exp2_tail", "x", "2^x = 1 + x tail, |x| <= 1/2", lambda x: (2 ** x - 1) / x, lambda x: abs(x), \
        (-e / 2, e / 2), 5, horner
    yield ("sin_tail_short", "s", "the same, with one term less", *odd_tail(mp.sin), (0, (e * quarter) ** 2), 2, horner)
    yield ("sin_tail_half", "s", "as sin_tail, |x| <= pi / 2, for 16 bits", *odd_tail(mp.sin), (0, (e * turn) ** 2), 3, horner)
    yield "cos_tail", "s", "cos(x) = 1 - s / 2 + s^2 tail, s = x^2, |x| <= pi / 4", root(lambda x: (mp.cos(x) - 1 + x * x / 2) / x ** 4), \
        root(lambda x: x ** 4), (0, (e * quarter) ** 2), 2, horner

    yield ("tan_tail_half", "s", "as tan_tail, for 16 bits", *odd_tail(mp.tan), (0, (e * quarter) ** 2), 4, horner)
    yield ("asin_tail_half", "s", "as asin_tail, for 16 bits", *odd_tail(mp.asin), (0, mpf("0.25")), 3, horner)
    yield ("atan_tail_half", "s", "as atan_tail, for 16 bits", *odd_tail(mp.atan), (0, 1), 5, horner)
    yield "log_tail_half", "x", "log(1 + x) = x + x^2 tail, |x| <= 1/16", lambda x: (mp.log1p(x) - x) / x ** 2, \
        lambda x: abs(x * x / mp.log1p(x)), (-mpf(1) / 16, mpf(1) / 16), 3, horner
    yield ("asinh_tail_half", "s", "asinh(x) = x + x s tail, s = x^2, |x| <= 1/4", *odd_tail(mp.asinh), (0, mpf(1) / 16), 2, horner)
    yield ("atanh_tail_half", "s", "atanh(x) = x + x s tail, s = x^2, |x| <= 1/4", *odd_tail(mp.atanh), (0, mpf(1) / 16), 2, horner)
    yield "erf_ratio_half", "x", "erf(a) / a, x = a^2 / 4 - 1, |a| <= 2.75", lambda x: mp.erf(2 * mp.sqrt(x + 1)) / mp.sqrt(4 * (x + 1)), \
        lambda x: mp.sqrt(4 * (x + 1)) / mp.erf(2 * mp.sqrt(x + 1)), (-1, mpf("2.75") ** 2 / 4 - 1), 10, horner


def contents():
    lines = ["// Written by tests/tools/fit_polynomials.py, which says how: polynomials of least largest error, with floats for coefficients.",
             "// Beside each, what of its error shows in the function's value, relative to it, in units of 2^-24: a half is a unit of the",
             "// last place at most.",
             "#ifndef POLYNOMIALS_GLSL", "#define POLYNOMIALS_GLSL", ""]
    lines += parts("QUARTER", mp.pi / 2, 11, 24, 37)
    lines += parts("POSITIVE_HALF", mp.pi, 10, 20, nearest=mp.floor) + parts("POSITIVE_QUARTER", mp.pi / 2, 11, 21, nearest=mp.floor)
    lines += parts("LN2", mp.log(2), 12) + parts("LG2", mp.log10(2), 12)
    lines += [constant("TWO_BY_PI", to_float(2 / mp.pi)), constant("ONE_BY_PI", to_float(1 / mp.pi)),
              constant("LN2", to_float(mp.log(2)))]
    lines += [constant("LOG2_E", to_float(1 / mp.log(2))), constant("LOG2_E_LOW", to_float(1 / mp.log(2) - to_float(1 / mp.log(2)))),
              constant("LOG10_E", to_float(1 / mp.log(10))), ""]
    lines += ["// The 96 bits of 2^(8 k - 16) / pi from that of 1 on; k < 16"] + words_of_inverse_pi() + [""]
    for name, x, comment, function, weight, interval, degree, write in fits():
        c, error = fit(function, weight, *interval, degree)
        lines += ["// %s; %.3f" % (comment, float(error * 2 ** 24)), "float %s(const float %s)" % (name, x), "{"] + write(c, x) + ["}"]
    return "\n".join(lines + ["", "#endif", ""])


def main():
    check, written = sys.argv[1:] == ["--check"], contents()
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    if not check:
        with open(PATH, "w") as f:
            f.write(written)
        return
    with open(PATH) as f:
        if f.read() != written:
            sys.exit("shaders/polynomials.glsl is not what this program writes")


main()
