/* Operations on all values of the 16-bit floating-point types: each result is the nearest number to what the C library says in
 * double, or next to it; NaN and infinities where it has them; and the same bits however the elements lie. Where float32 has
 * denormal numbers, operands and results may be zeros. */
#define _DEFAULT_SOURCE
#include "support.h"

enum { N = 1 << 16, OFF = 3 };                       /* OFF: elements before the others, so that they are not aligned */

typedef int (*unary_function)(mlxvk_array *, mlxvk_array, mlxvk_stream);
typedef int (*binary_function)(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream);

static double rsqrt_of(double x) { return 1 / sqrt(x); }
static double reciprocal_of(double x) { return 1 / x; }
static double sigmoid_of(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double square_of(double x) { return x * x; }
static double degrees_of(double x) { return x * 57.295779513082320877; }
static double radians_of(double x) { return x * 0.017453292519943295769; }
static double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
static double negative_of(double x) { return -x; }

/* off: how many results may be the neighbour of the nearest number, of 65536 */
static const struct { const char *name; unary_function function; double (*want)(double); int off; } unary[] = {
    { "abs", mlxvk_abs, fabs, 0 }, { "negative", mlxvk_negative, negative_of, 0 }, { "sign", mlxvk_sign, sign_of, 0 },
    { "square", mlxvk_square, square_of, 0 }, { "floor", mlxvk_floor, floor, 0 }, { "ceil", mlxvk_ceil, ceil, 0 },
    { "sqrt", mlxvk_sqrt, sqrt, 64 }, { "rsqrt", mlxvk_rsqrt, rsqrt_of, 64 }, { "reciprocal", mlxvk_reciprocal, reciprocal_of, 64 },
    { "exp", mlxvk_exp, exp, 64 }, { "expm1", mlxvk_expm1, expm1, 64 }, { "log", mlxvk_log, log, 64 }, { "log2", mlxvk_log2, log2, 64 },
    { "log10", mlxvk_log10, log10, 64 }, { "log1p", mlxvk_log1p, log1p, 64 }, { "sin", mlxvk_sin, sin, 64 }, { "cos", mlxvk_cos, cos, 64 },
    { "tan", mlxvk_tan, tan, 64 }, { "sinh", mlxvk_sinh, sinh, 64 }, { "cosh", mlxvk_cosh, cosh, 64 }, { "tanh", mlxvk_tanh, tanh, 64 },
    { "arcsin", mlxvk_arcsin, asin, 64 }, { "arccos", mlxvk_arccos, acos, 64 }, { "arctan", mlxvk_arctan, atan, 64 },
    { "arcsinh", mlxvk_arcsinh, asinh, 64 }, { "arccosh", mlxvk_arccosh, acosh, 64 }, { "arctanh", mlxvk_arctanh, atanh, 64 },
    { "erf", mlxvk_erf, erf, 64 }, { "sigmoid", mlxvk_sigmoid, sigmoid_of, 64 }, { "degrees", mlxvk_degrees, degrees_of, 4 },
    { "radians", mlxvk_radians, radians_of, 4 },
};

static float number_of(uint16_t h, mlxvk_dtype t) { return t == MLXVK_BFLOAT16 ? bf16_to_float(h) : half_to_float(h); }
static bool is_nan_half(uint16_t h, mlxvk_dtype t) { return (h & 0x7fff) > (t == MLXVK_BFLOAT16 ? 0x7f80 : 0x7c00); }
static int order(uint16_t h) { return h & 0x8000 ? -(h & 0x7fff) : h; }

/* The nearest of all numbers: the rounding to float32 before is to odd, so that it does not count. */
static uint16_t nearest(double x, mlxvk_dtype t)
{
    float f = (float)x;
    if (!isnan(x) && !isinf(f) && (double)f != x && !(bits_of_float(f) & 1)) f = nextafterf(f, x > (double)f ? INFINITY : -INFINITY);
    return t == MLXVK_BFLOAT16 ? float_to_bf16(f) : float_to_half(f);
}

static mlxvk_array halves(const uint16_t *values, int n, mlxvk_dtype t)
{
    mlxvk_array a = mlxvk_array_new();
    OK_DEVICE(mlxvk_array_new_data_device(&a, values, &n, 1, t, device), device);
    return a;
}

static void part(mlxvk_array *res, mlxvk_array a, int from, int to)
{
    OK(mlxvk_slice(res, a, (int[]){ from }, 1, (int[]){ to }, 1, (int[]){ 1 }, 1, stream), stream);
}

/* One NaN for all: which of two a processor hands on depends on the order in which a driver puts the operands. */
static void read_halves(mlxvk_array a, uint16_t *to, int n)
{
    OK(mlxvk_array_read(a, to, (size_t)n * 2, stream), stream);
    for (int i = 0; i < n; i++)
        if (is_nan_half(to[i], mlxvk_array_dtype(a))) to[i] = 0x7fff;
}

/* How many steps a result is off what is wanted; N: it is no such result. */
static int distance(uint16_t got, double want, mlxvk_dtype t)
{
    if (isnan(want) || is_nan_half(got, t)) return isnan(want) && is_nan_half(got, t) ? 0 : N;
    if (want == 0 && !(got & 0x7fff)) return !(got >> 15) == !signbit(want) ? 0 : N;
    return fabs(want) < 0x1p-126 && !(got & 0x7fff) ? 0 : abs(order(got) - order(nearest(want, t)));
}

static double flushed(double x) { return fabs(x) < 0x1p-126 ? copysign(0, x) : x; }

static int failures;

/* want: of the numbers; flushed_want: of zeros in the place of denormal ones. */
static void compare(const char *name, const uint16_t *got, const double *want, const double *flushed_want, const uint16_t *x, mlxvk_dtype t, int most)
{
    int off = 0;
    for (int i = 0; i < N; i++) {
        int far = distance(got[i], want[i], t), other = distance(got[i], flushed_want[i], t);
        if (other < far) far = other;
        off += far == 1;
        if (far <= 1) continue;
        print_error("%s of %g (%s %04x): %g, not %g\n", name, (double)number_of(x[i], t), mlxvk_dtype_name(t), x[i], (double)number_of(got[i], t), want[i]);
        failures++;
        return;
    }
    if (getenv("HALVES")) print_message("%s %s: %d off\n", name, mlxvk_dtype_name(t), off);
    if (off <= most) return;
    print_error("%s of %s: %d results are not the nearest\n", name, mlxvk_dtype_name(t), off);
    failures++;
}

static void test_unary(void **state)
{
    static uint16_t x[OFF + N], got[N], again[N];
    static double want[N], flushed_want[N];
    (void)state;
    failures = 0;
    for (int i = 0; i < OFF + N; i++) x[i] = (uint16_t)(i - OFF);
    for (int d = 0; d < 2; d++) {
        mlxvk_dtype t = d ? MLXVK_FLOAT16 : MLXVK_BFLOAT16;
        mlxvk_array all = halves(x, OFF + N, t), whole = halves(x + OFF, N, t), shifted = mlxvk_array_new(), y = mlxvk_array_new();
        part(&shifted, all, OFF, OFF + N);
        for (size_t k = 0; k < COUNT(unary); k++) {
#ifdef _WIN32                                        /* whose sin and cos take pi to be a number of 66 bits */
            if (unary[k].want == sin || unary[k].want == cos) continue;
#endif
            for (int i = 0; i < N; i++) {
                double number = (double)number_of(x[OFF + i], t);
                want[i] = isnan(number) && unary[k].want == sign_of ? 0 : unary[k].want(number);
                flushed_want[i] = isnan(number) ? want[i] : unary[k].want(flushed(number));
            }
            OK(unary[k].function(&y, whole, stream), stream);
            read_halves(y, got, N);
            compare(unary[k].name, got, want, flushed_want, x + OFF, t, unary[k].off);
            if (k % 4) continue;                     /* pipelines take time */
            OK(unary[k].function(&y, shifted, stream), stream);
            read_halves(y, again, N);
            assert_memory_equal(got, again, sizeof got);
        }
        mlxvk_array_free(all);
        mlxvk_array_free(whole);
        mlxvk_array_free(shifted);
        mlxvk_array_free(y);
    }
    assert_int_equal(failures, 0);
}

static double sum(double x, double y) { return x + y; }
static double difference(double x, double y) { return x - y; }
static double product(double x, double y) { return x * y; }
static double quotient(double x, double y) { return x / y; }
static const struct { const char *name; binary_function function; double (*want)(double, double); int off; } binary[] = {
    { "add", mlxvk_add, sum, 0 }, { "subtract", mlxvk_subtract, difference, 0 }, { "multiply", mlxvk_multiply, product, 0 },
    { "divide", mlxvk_divide, quotient, 4 }, { "power", mlxvk_power, pow, 256 },
    { "arctan2", mlxvk_arctan2, atan2, 64 },
};

static void wanted(size_t k, float x, float y, double *want, double *flushed_want)
{
    *want = binary[k].want((double)x, (double)y);
    *flushed_want = binary[k].want(flushed((double)x), flushed((double)y));
}

/* Each value with one other, and with one number, at lengths that are no multiple of eight. */
static void test_binary(void **state)
{
    static uint16_t x[N], y[N], got[N], again[N];
    static double want[N], flushed_want[N];
    (void)state;
    failures = 0;
    for (int i = 0; i < N; i++) x[i] = (uint16_t)i;
    for (int i = 0; i < N; i++) y[i] = (uint16_t)((unsigned)i * 40503u + 12345u);
    for (int d = 0; d < 2; d++) {
        mlxvk_dtype t = d ? MLXVK_FLOAT16 : MLXVK_BFLOAT16;
        mlxvk_array a = halves(x, N, t), b = halves(y, N, t), one = halves(y + 7, 1, t);
        mlxvk_array p = mlxvk_array_new(), q = mlxvk_array_new(), r = mlxvk_array_new();
        for (size_t k = 0; k < COUNT(binary); k++) {
            for (int i = 0; i < N; i++) wanted(k, number_of(x[i], t), number_of(y[i], t), &want[i], &flushed_want[i]);
            OK(binary[k].function(&r, a, b, stream), stream);
            read_halves(r, got, N);
            compare(binary[k].name, got, want, flushed_want, x, t, binary[k].off);
            part(&p, a, 1, N);
            part(&q, b, 1, N);
            OK(binary[k].function(&r, p, q, stream), stream);
            read_halves(r, again, N - 1);
            assert_memory_equal(got + 1, again, 2 * (N - 1));
            part(&p, a, 0, N - 3);
            OK(binary[k].function(&r, p, one, stream), stream);
            for (int i = 0; i < N; i++) wanted(k, number_of(x[i], t), number_of(y[7], t), &want[i], &flushed_want[i]);
            read_halves(r, got, N - 3);
            for (int i = N - 3; i < N; i++) got[i] = nearest(want[i], t);
            compare(binary[k].name, got, want, flushed_want, x, t, binary[k].off);
        }
        mlxvk_array *const all[] = { &a, &b, &one, &p, &q, &r };
        for (size_t i = 0; i < COUNT(all); i++) mlxvk_array_free(*all[i]);
    }
    assert_int_equal(failures, 0);
}

/* ---- the device's own conversions give the bits that mlxvk's give ---- */

enum { CONVERSIONS = 15, LONG = 4096, ODD = 2047, HALVES = 2 * N };
#define LESS "MLX_VK_ENABLE_SUBTRACT_ARGREDUCE=2"                 /* in the kernel of the argmax */

/* Every number; behind them as many that are small, or not far apart, and few others, so that most rows have none. */
static void fill_rows(uint16_t *h, struct rng *random)
{
    for (int i = 0; i < N; i++) h[i] = (uint16_t)i;
    for (int i = N; i < HALVES; i++) {
        int kind = random_int(random, 0, 40000);
        h[i] = (uint16_t)(kind < 2 ? 0x7c00 | random_int(random, 0, 1) << 15                                   /* infinities */
                          : kind < 4 ? 0x7c01 + random_int(random, 0, 1022) + (random_int(random, 0, 1) << 15) /* NaN */
                          : kind < 20000 ? random_int(random, 0, 1023) | random_int(random, 0, 1) << 15         /* denormals */
                          : random_int(random, 0x3000, 0x4800) | random_int(random, 0, 1) << 15);
    }
}

/* What operation `k` gives of rows of `width`, from element `from` on, as so many halves. */
static size_t convert_rows(const struct setting *on, int k, const uint16_t *h, int width, int from, uint16_t *out)
{
    mlxvk_stream s = on->stream;
    mlxvk_array x = { NULL }, y = { NULL }, none = { NULL }, w = { NULL };
    int rows = (HALVES - from) / width;
    size_t n;
    OK_DEVICE(mlxvk_array_new_data_device(&x, h, (int[]){ HALVES }, 1, MLXVK_FLOAT16, on->device), on->device);
    OK(mlxvk_slice(&w, x, (int[]){ N / 4 }, 1, (int[]){ N / 4 + width }, 1, (int[]){ 1 }, 1, s), s);
    OK(mlxvk_slice(&x, x, (int[]){ from }, 1, (int[]){ from + rows * width }, 1, (int[]){ 1 }, 1, s), s);
    OK(mlxvk_reshape(&x, x, (int[]){ rows, width }, 2, s), s);
    switch (k) {
    case 0: OK(mlxvk_softmax_axis(&y, x, 1, true, s), s); break;
    case 1: OK(mlxvk_softmax_axis(&y, x, 0, true, s), s); break;
    case 2: OK(mlxvk_fast_rms_norm(&y, x, w, 1e-5f, s), s); break;
    case 3: OK(mlxvk_fast_rms_norm(&y, x, none, 1e-5f, s), s); break;
    case 4: OK(mlxvk_fast_layer_norm(&y, x, w, w, 1e-5f, s), s); break;
    case 5: OK(mlxvk_max_axis(&y, x, 1, false, s), s); break;
    case 6: OK(mlxvk_min_axis(&y, x, 0, false, s), s); break;
    case 7: OK(mlxvk_sum_axis(&y, x, 1, false, s), s); break;
    case 8: OK(mlxvk_argmax_axis(&y, x, 1, false, s), s); break;
    case 9: OK(mlxvk_argmin_axis(&y, x, 0, false, s), s); break;
    case 10: OK(mlxvk_logsumexp_axis(&y, x, 1, false, s), s); break;
    case 11: OK(mlxvk_max_axis(&y, x, 0, false, s), s); break;
    case 12: OK(mlxvk_max(&y, x, false, s), s); break;
    case 13: OK(mlxvk_astype(&y, x, MLXVK_BFLOAT16, s), s); break;
    default:
        OK(mlxvk_max_axis(&w, x, 1, true, s), s);
        OK(mlxvk_subtract(&y, x, w, s), s);
        OK(mlxvk_argmax_axis(&y, y, 1, false, s), s);
    }
    n = mlxvk_array_nbytes(y);
    OK(mlxvk_array_read(y, out, n, s), s);
    for (mlxvk_array **p = (mlxvk_array *[]){ &x, &y, &w, NULL }; *p; p++) mlxvk_array_free(**p);
    return n / 2;
}

/* NaN is NaN, but of the largest, the smallest, and the copy, which are elements: of others the sign is the driver's. */
static bool same_half(uint16_t a, uint16_t b, int k)
{
    bool arithmetic = k < 5 || k == 7 || k == 10;
    return a == b || (arithmetic && is_nan_half(a, MLXVK_FLOAT16) && is_nan_half(b, MLXVK_FLOAT16));
}

/* Of devices that say that they keep every bit, and Mesa's driver for CPUs, which does so and does not say it. */
static void test_conversions(void **state)
{
    static uint16_t h[HALVES], own[HALVES], ours[HALVES];
    const char *driver = "";
    struct rng random = { 41 };
    size_t has = 0;
    (void)state;
    OK_DEVICE(mlxvk_device_info_get_string(&driver, device, "driver"), device);
    struct setting with = start(strncmp(driver, "llvmpipe", 8) ? LESS : LESS " MLX_VK_ENABLE_HALF_CONVERSION=2");
    struct setting without = start(LESS " MLX_VK_ENABLE_HALF_CONVERSION=0");
    OK_DEVICE(mlxvk_device_info_get_size(&has, with.device, "half_conversion"), with.device);
    fill_rows(h, &random);
    for (int k = 0; k < CONVERSIONS * 4 && has; k++) {
        const int width = (const int[]){ LONG, 24, ODD, 512 }[k % 4], from = k % 4 == 3 ? 3 : 0, op = k / 4;
        size_t n = convert_rows(&with, op, h, width, from, own);
        assert_int_equal(n, convert_rows(&without, op, h, width, from, ours));
        for (size_t i = 0; i < n; i++)
            if (!same_half(own[i], ours[i], op))
                fail_msg("operation %d of rows of %d: %zu is 0x%04x, and 0x%04x by bits", op, width, i, own[i], ours[i]);
    }
    finish(&without);
    finish(&with);
    if (!has) skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_unary), cmocka_unit_test(test_binary),
                                        cmocka_unit_test(test_conversions) };
    return run_group("halves", tests, set_up, tear_down);
}
