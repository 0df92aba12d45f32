/* Functions of float32 beside what the C library says in double: how far off they are at most, and NaN, infinities and zeros
 * with their signs where it has them. Denormal numbers may be zeros, and so may what is added to a number next to them. */
#define _DEFAULT_SOURCE
#include <math.h>
#include "support.h"

enum { N = 1 << 16 };

static double rsqrt_of(double x) { return 1 / sqrt(x); }
static double reciprocal_of(double x) { return 1 / x; }
static double quotient_of(double x, double y) { return x / y; }
static double sigmoid_of(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

/* most: in units of the last place */
static const struct { const char *name; int (*run)(mlxvk_array *, mlxvk_array, mlxvk_stream); double (*want)(double); double most; } table[] = {
    { "sqrt", mlxvk_sqrt, sqrt, 1.5 }, { "rsqrt", mlxvk_rsqrt, rsqrt_of, 2.5 }, { "reciprocal", mlxvk_reciprocal, reciprocal_of, 1.5 },
    { "exp", mlxvk_exp, exp, 2 }, { "expm1", mlxvk_expm1, expm1, 2 }, { "log", mlxvk_log, log, 2 }, { "log2", mlxvk_log2, log2, 2.5 },
    { "log10", mlxvk_log10, log10, 2.5 }, { "log1p", mlxvk_log1p, log1p, 2.5 }, { "sin", mlxvk_sin, sin, 3 }, { "cos", mlxvk_cos, cos, 3 },
    { "tan", mlxvk_tan, tan, 5 }, { "sinh", mlxvk_sinh, sinh, 3 }, { "cosh", mlxvk_cosh, cosh, 3 }, { "tanh", mlxvk_tanh, tanh, 3 },
    { "arcsin", mlxvk_arcsin, asin, 3.5 }, { "arccos", mlxvk_arccos, acos, 3.5 }, { "arctan", mlxvk_arctan, atan, 2.5 },
    { "arcsinh", mlxvk_arcsinh, asinh, 3.5 }, { "arccosh", mlxvk_arccosh, acosh, 3.5 }, { "arctanh", mlxvk_arctanh, atanh, 3.5 },
    { "erf", mlxvk_erf, erf, 2 }, { "sigmoid", mlxvk_sigmoid, sigmoid_of, 3 },
};

/* Some of all floats, and more of those that functions are used with. */
static void fill(float *x)
{
    static const float special[] = { 0, -0.0f, INFINITY, -INFINITY, NAN, 1, -1, 0.5f, -0.5f, 88.7f, 89, -88, -104, 1e-30f, -1e-30f, 3.4e38f, -3.4e38f };
    struct rng r = { 5 };
    for (int i = 0; i < N; i++) {
        double unit = (double)(random_bits(&r) >> 11) / 9007199254740992.0;
        uint32_t bits = (uint32_t)(random_bits(&r) >> 20);
        x[i] = i % 4 == 1 ? (float)(20 * unit - 10) : i % 4 == 2 ? (float)(2 * unit - 1) : i % 4 == 3 ? (float)(180 * unit - 90) : float_of_bits(bits);
        if (fabsf(x[i]) < 0x1p-126f) x[i] = 0;
#ifdef _WIN32                                        /* whose sin and cos take pi to be a number of 66 bits */
        if (fabsf(x[i]) > 0x1p30f) x[i] = 1;
#endif
    }
    memcpy(x, special, sizeof special);
}

/* In units of the last place; infinite where it is another kind of number. */
static double distance(float got, double want)
{
    int e;
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (want == 0) return got == 0 && !signbit(got) == !signbit(want) ? 0 : INFINITY;
    if (fabs(want) < 0x1.00001p-126) return fabs((double)got) < 0x1.0001p-126 ? 0 : INFINITY;
    if (fabs(want) < 0x1p-122 && fabs((double)got - want) < 0x1p-126) return 0;
    if (fabs(want) > 0x1.fffff8p127) return fabs((double)got) > 0x1.fffff0p127 && (got > 0) == (want > 0) ? 0 : INFINITY;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, e - 24);
}

static void test_floats(void **state)
{
    static float x[N], y[N];
    mlxvk_array a, res = { NULL };
    int shape = N, failures = 0;
    (void)state;
    fill(x);
    a = floats(device, x, &shape, 1);
    for (size_t k = 0; k < COUNT(table); k++) {
        double worst = 0;
        int at = 0;
        OK(table[k].run(&res, a, stream), stream);
        OK(mlxvk_array_read(res, y, sizeof y, stream), stream);
        for (int i = 0; i < N; i++) {
            double off = distance(y[i], table[k].want((double)x[i]));
            if (off > worst) { worst = off; at = i; }
        }
        if (getenv("FUNCTIONS")) print_message("%s: %.2f at %.9g\n", table[k].name, worst, (double)x[at]);
        if (worst <= table[k].most) continue;
        print_error("%s of %.9g: %.9g, not %.9g: off by %.2f\n", table[k].name, (double)x[at], (double)y[at], table[k].want((double)x[at]), worst);
        failures++;
    }
    mlxvk_array_free(a);
    mlxvk_array_free(res);
    assert_int_equal(failures, 0);
}

/* Denormal numbers, which a device may take for zeros or not, each operation by itself: what a function makes of them is
 * what it makes of the number or of zero. */
static void test_denormal_arguments(void **state)
{
    static float x[N], y[N];
    struct rng r = { 6 };
    mlxvk_array a, res = { NULL };
    int shape = N, failures = 0;
    (void)state;
    for (int i = 0; i < N; i++) x[i] = float_of_bits((uint32_t)(random_bits(&r) >> 41) | (i % 2 ? 0x80000000u : 0));
    a = floats(device, x, &shape, 1);
    for (size_t k = 0; k < COUNT(table); k++) {
        int wrong = 0, at = 0;
        OK(table[k].run(&res, a, stream), stream);
        OK(mlxvk_array_read(res, y, sizeof y, stream), stream);
        for (int i = 0; i < N; i++) {
            double zero = table[k].want(x[i] < 0 ? -0.0 : 0.0), off = distance(y[i], table[k].want((double)x[i]));
            double flushed = zero ? distance(y[i], zero) : fabs((double)y[i]) < 0x1p-126 ? 0 : INFINITY;
            if (fmin(off, flushed) > table[k].most && !wrong++) at = i;
        }
        if (!wrong) continue;
        print_error("%s of %.9g: %.9g, not %.9g (%d of %d)\n", table[k].name, (double)x[at], (double)y[at], table[k].want((double)x[at]), wrong, N);
        failures++;
    }
    mlxvk_array_free(a);
    mlxvk_array_free(res);
    assert_int_equal(failures, 0);
}

/* Quotients and angles that are denormal, or little more, of all sizes of operands: right to a unit of the least normal number's. */
static void test_denormal_results(void **state)
{
    static const struct { const char *name; int (*run)(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream); double (*want)(double, double); double most; } pairs[] = {
        { "divide", mlxvk_divide, quotient_of, 1.5 }, { "arctan2", mlxvk_arctan2, atan2, 3.5 },
    };
    static float x[N], y[N], z[N];
    struct rng r = { 7 };
    mlxvk_array a, b, res = { NULL };
    int shape = N, failures = 0;
    (void)state;
    for (int i = 0; i < N; i++) {
        int size = (int)(random_bits(&r) % 125), less = 122 + (int)(random_bits(&r) % 8);
        x[i] = ldexpf(1 + (float)(random_bits(&r) >> 41) * 0x1p-23f, size - less);
        y[i] = ldexpf(1 + (float)(random_bits(&r) >> 41) * 0x1p-23f, size);
        if (i % 2) x[i] = -x[i];
    }
    a = floats(device, x, &shape, 1);
    b = floats(device, y, &shape, 1);
    for (size_t k = 0; k < COUNT(pairs); k++) {
        OK(pairs[k].run(&res, a, b, stream), stream);
        OK(mlxvk_array_read(res, z, sizeof z, stream), stream);
        for (int i = 0; i < N; i++) {
            double want = pairs[k].want((double)x[i], (double)y[i]), unit = ldexp(1, -149) * pairs[k].most;
            bool zero = z[i] == 0 && fabs(want) < 0x1.00001p-126;
            if (zero || fabs((double)z[i] - want) <= fmax(unit, fabs(want) * pairs[k].most * 0x1p-23)) continue;
            print_error("%s of %.9g, %.9g: %.9g, not %.9g\n", pairs[k].name, (double)x[i], (double)y[i], (double)z[i], want);
            failures++;
            break;
        }
    }
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(res);
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats), cmocka_unit_test(test_denormal_arguments), cmocka_unit_test(test_denormal_results),
    };
    return run_group("functions", tests, set_up, tear_down);
}
