/* What golden data does not have of operations made of others: the extras, errors, empty arrays. */
#include "support.h"

/* ---- MLX's primitive Divide, and equality of NaN ---- */

static void quotients_towards_zero(void **state)
{
    const double x[] = { 7, -7, 7, -7, 0, 5, -128, 100 }, y[] = { 2, 2, -2, -2, 3, 0, -1, 7 }, want[] = { 3, -3, -3, 3, 0, 0, 128, 14 };
    (void)state;
    for (int t = MLXVK_UINT8; t <= MLXVK_INT64; t++) {
        unsigned char a[64], b[64], got[64], expected[64];
        mlxvk_dtype dtype = (mlxvk_dtype)t;
        mlxvk_array p, q, r = { NULL };
        for (size_t i = 0; i < 8; i++) {
            bool plain = dtype_is_signed(dtype) || (x[i] >= 0 && y[i] >= 0);
            store_number(dtype, a, i, plain ? x[i] : 8);
            store_number(dtype, b, i, plain ? y[i] : 3);
            store_number(dtype, expected, i, plain ? want[i] : 2);
        }
        p = array_of(device, dtype, a, (int[]){ 8 }, 1);
        q = array_of(device, dtype, b, (int[]){ 8 }, 1);
        OK(mlxvk_divide_truncate(&r, p, q, stream), stream);
        assert_int_equal(mlxvk_array_dtype(r), dtype);
        OK(mlxvk_array_read(r, got, 8 * bytes_of(dtype), stream), stream);
        assert_memory_equal(got, expected, 8 * bytes_of(dtype));
        mlxvk_array_free(p);
        mlxvk_array_free(q);
        mlxvk_array_free(r);
    }
    mlxvk_array p = floats(device, (float[]){ 7, NAN, NAN, 1 }, (int[]){ 4 }, 1), q = floats(device, (float[]){ 2, NAN, 1, 1 }, (int[]){ 4 }, 1);
    mlxvk_array r = { NULL };
    unsigned char same[4];
    OK(mlxvk_equal_nan(&r, p, q, stream), stream);
    OK(mlxvk_array_read(r, same, 4, stream), stream);
    assert_memory_equal(same, ((unsigned char[]){ 0, 1, 0, 1 }), 4);
    OK(mlxvk_array_set(&p, q), stream);
    OK(mlxvk_divide_truncate(&r, p, q, stream), stream);
    assert_int_equal(mlxvk_array_dtype(r), MLXVK_FLOAT32);
    mlxvk_array_free(p);
    mlxvk_array_free(q);
    mlxvk_array_free(r);
}

/* ---- complex numbers where MLX's GPU backends have none, its CPU does ---- */

static void complex_functions(void **state)
{
    static int (*const functions[])(mlxvk_array *, mlxvk_array, mlxvk_stream) = { mlxvk_arcsinh, mlxvk_arccosh, mlxvk_arctanh };
    static const float x[][2] = { { 0.3f, 0.4f }, { -0.8f, 0.2f }, { 1.5f, -2 }, { -0.25f, -3 }, { 2, 0.f }, { -2, -0.f }, { 0.5f, -0.f } };
    enum { N = sizeof x / sizeof *x };
    mlxvk_array a = array_of(device, MLXVK_COMPLEX64, x, (int[]){ N }, 1), res = { NULL };
    float got[N][2];
    unsigned char tests[N];
    (void)state;
    for (int f = 0; f < 3; f++) {
        OK(functions[f](&res, a, stream), stream);
        OK(mlxvk_array_read(res, got, sizeof got, stream), stream);
        for (int i = 0; i < N; i++) {                /* by what they are the inverses of: the right value is the one in the main strip */
            double re = got[i][0], im = got[i][1], back[2] = { sinh(re) * cos(im), cosh(re) * sin(im) };
            if (f == 1) back[0] = cosh(re) * cos(im), back[1] = sinh(re) * sin(im);
            if (f == 2) {
                double d = cosh(2 * re) + cos(2 * im);
                back[0] = sinh(2 * re) / d;
                back[1] = sin(2 * im) / d;
            }
            for (int k = 0; k < 2; k++) assert_true(fabs(back[k] - x[i][k]) < 2e-6);
            assert_true(fabs(im) <= (f == 1 ? 3.1415928 : 1.5707964));
            assert_true(f == 1 ? re >= 0 && !signbit(im) == !signbit(x[i][1]) : !signbit(re) == !signbit(x[i][0]));
        }
    }
    OK(mlxvk_degrees(&res, a, stream), stream);
    OK(mlxvk_radians(&res, res, stream), stream);
    OK(mlxvk_floor_divide(&res, res, a, stream), stream);      /* a quotient that is not rounded */
    assert_int_equal(mlxvk_array_dtype(res), MLXVK_COMPLEX64);
    OK(mlxvk_array_read(res, got, sizeof got, stream), stream);
    for (int i = 0; i < N; i++) assert_true(fabsf(got[i][0] - 1) < 1e-6f && fabsf(got[i][1]) < 1e-6f);
    mlxvk_array_free(a);
    a = array_of(device, MLXVK_COMPLEX64, (float[][2]){ { INFINITY, 0 }, { -INFINITY, 0 }, { INFINITY, 1 } }, (int[]){ 3 }, 1);
    OK(mlxvk_isposinf(&res, a, stream), stream);
    OK(mlxvk_array_read(res, tests, 3, stream), stream);
    assert_memory_equal(tests, ((unsigned char[]){ 1, 0, 0 }), 3);
    OK(mlxvk_isneginf(&res, a, stream), stream);
    OK(mlxvk_array_read(res, tests, 3, stream), stream);
    assert_memory_equal(tests, ((unsigned char[]){ 0, 1, 0 }), 3);
    mlxvk_array_free(a);
    mlxvk_array_free(res);
}

/* Where squares are infinite or 0: arctan's, and arctanh's of the number turned by a quarter. */
static void complex_far_and_near(void **state)
{
    static const float half = 1.57079637f;
    static const float x[][4] = {                                      /* a number, its arctan */
        { 2e38f, 0, half, 0 }, { 0, 2e38f, half, 5e-39f }, { 1e25f, -1e25f, half, -5e-26f }, { -1e12f, 0, -half, 0 },
        { 0, 1e12f, half, 1e-12f }, { 1, 3e10f, half, 3.3333334e-11f }, { -3e38f, 3e38f, -half, 1.6666667e-39f },
        { INFINITY, 0, half, 0 }, { 0, -INFINITY, half, -0.f }, { -INFINITY, INFINITY, -half, 0 }, { 3, -INFINITY, half, -0.f },
        { NAN, 1, NAN, NAN }, { 0, NAN, NAN, NAN }, { NAN, NAN, NAN, NAN },
        { 1e-30f, 1, 0.5f * half, 34.885349f }, { -1e-12f, -1, -0.5f * half, -14.162084f }, { 0, 1, 0, INFINITY },
    };
    enum { N = sizeof x / sizeof *x };
    float z[2][N][2], got[2][N][2];
    mlxvk_array r = { NULL };
    (void)state;
    for (int i = 0; i < N; i++) z[0][i][0] = z[1][i][1] = x[i][0], z[0][i][1] = x[i][1], z[1][i][0] = -x[i][1];
    for (int f = 0; f < 2; f++) {                                      /* arctanh iz = i arctan z */
        mlxvk_array a = array_of(device, MLXVK_COMPLEX64, z[f], (int[]){ N }, 1);
        OK((f ? mlxvk_arctanh : mlxvk_arctan)(&r, a, stream), stream);
        OK(mlxvk_array_read(r, got[f], sizeof got[f], stream), stream);
        mlxvk_array_free(a);
    }
    for (int i = 0; i < N; i++) {
        const float *t = got[0][i], *h = got[1][i];
        if (isnan(x[i][2]) && isnan(t[0]) && isnan(t[1]) && isnan(h[0]) && isnan(h[1])) continue;
        bool real = isinf(x[i][3]) || (fabsf(t[0] - x[i][2]) < 1e-6f && fabsf(h[1] - x[i][2]) < 1e-6f);
        float far = 1e-6f * fabsf(x[i][3]) + 1e-37f;
        bool other = t[1] == x[i][3] ? h[0] == -x[i][3] : fabsf(t[1] - x[i][3]) <= far && fabsf(h[0] + x[i][3]) <= far;
        if (!real || !other || !signbit(t[1]) != !signbit(x[i][3]))
            fail_msg("arctan of %g, %g: %g, %g and not %g, %g; turned %g, %g", x[i][0], x[i][1], t[0], t[1], x[i][2], x[i][3], h[0], h[1]);
    }
    mlxvk_array_free(r);
}

/* By the real parts, and by the others where these are equal: as MLX, whatever is NaN. */
static void complex_order(void **state)
{
    static const struct { int (*test)(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream); bool less, equal, greater; } tests[] = {
        { mlxvk_less, .less = true }, { mlxvk_less_equal, .less = true, .equal = true }, { mlxvk_greater, .greater = true },
        { mlxvk_greater_equal, .equal = true, .greater = true }, { mlxvk_equal, .equal = true },
    };
    static const float parts[] = { 0, 1, INFINITY, NAN };
    enum { P = sizeof parts / sizeof *parts, N = P * P };
    float x[N][2];
    unsigned char got[N][N];
    (void)state;
    for (int i = 0; i < N; i++) x[i][0] = parts[i / P], x[i][1] = parts[i % P];
    mlxvk_array a = array_of(device, MLXVK_COMPLEX64, x, (int[]){ N, 1 }, 2), b = array_of(device, MLXVK_COMPLEX64, x, (int[]){ N }, 1);
    mlxvk_array r = { NULL };
    for (size_t t = 0; t < sizeof tests / sizeof *tests; t++) {
        OK(tests[t].test(&r, a, b, stream), stream);
        OK(mlxvk_array_read(r, got, sizeof got, stream), stream);
        for (int i = 0; i < N * N; i++) {
            const float *p = x[i / N], *q = x[i % N];
            bool tie = p[0] == q[0], less = p[0] < q[0] || (tie && p[1] < q[1]), greater = p[0] > q[0] || (tie && p[1] > q[1]);
            bool want = (tests[t].less && less) || (tests[t].greater && greater) || (tests[t].equal && tie && p[1] == q[1]);
            assert_int_equal(got[i / N][i % N], want);
        }
    }
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(r);
}

/* ---- gradients of the norms ---- */

struct norm_case { int rows, n; mlxvk_dtype dtype; bool mean, weight, bias; };

static double *random_numbers(struct rng *r, mlxvk_dtype dtype, unsigned char *bytes, size_t count)
{
    double *x = malloc(count * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < count; i++) {
        store_number(dtype, bytes, i, random_int(r, -1000, 1000) / 500.0);
        x[i] = load_number(dtype, bytes, i).re;
    }
    return x;
}

static void reference(const struct norm_case *k, const double *x, const double *g, const double *w, double *dx, double *dw, double *db)
{
    for (int i = 0; i < k->n; i++) dw[i] = db[i] = 0;
    for (int r = 0; r < k->rows; r++, x += k->n, g += k->n, dx += k->n) {
        double mean = 0, square = 0, mean_g = 0, slope = 0, factor;
        for (int i = 0; i < k->n && k->mean; i++) mean += x[i] / k->n;
        for (int i = 0; i < k->n; i++) {
            double wg = g[i] * (k->weight ? w[i] : 1);
            square += (x[i] - mean) * (x[i] - mean) / k->n;
            mean_g += wg / k->n;
            slope += wg * (x[i] - mean) / k->n;
        }
        factor = 1 / sqrt(square + 1e-5);
        for (int i = 0; i < k->n; i++) {
            double wg = g[i] * (k->weight ? w[i] : 1);
            dx[i] = factor * (wg - (k->mean ? mean_g : 0) - (x[i] - mean) * factor * factor * slope);
            dw[i] += g[i] * (x[i] - mean) * factor;
            db[i] += g[i];
        }
    }
}

static void expect_close(mlxvk_array got, mlxvk_dtype dtype, const double *want, size_t count, double scale, const char *what)
{
    double tolerance = dtype == MLXVK_FLOAT32 ? 2e-5 : dtype == MLXVK_FLOAT16 ? 2e-3 : 1.6e-2;
    unsigned char *data = malloc(count * bytes_of(dtype) + 1);
    assert_non_null(data);
    assert_int_equal(mlxvk_array_dtype(got), dtype);
    assert_int_equal(mlxvk_array_size(got), count);
    OK(mlxvk_array_read(got, data, count * bytes_of(dtype), stream), stream);
    for (size_t i = 0; i < count; i++) {
        double g = load_number(dtype, data, i).re;
        if (fabs(g - want[i]) <= tolerance * fmax(scale, fabs(want[i]))) continue;
        print_error("%s: element %zu of %zu is %g and not %g\n", what, i, count, g, want[i]);
        fail();
    }
    free(data);
}

static void one_norm(struct rng *r, const struct norm_case *k)
{
    size_t size = (size_t)k->rows * (size_t)k->n, row = (size_t)k->n;
    unsigned char *bytes = malloc(size * 4), *again = malloc(size * 4), *first = malloc(size * 4);
    double *x, *g, *w, *want = malloc((size + 2 * row) * sizeof *want);
    mlxvk_array a[4], out = { NULL };
    mlxvk_vector_array res = mlxvk_vector_array_new();
    size_t count = k->weight ? k->mean && k->bias ? 3 : 2 : 1;
    x = random_numbers(r, k->dtype, bytes, size);
    a[0] = array_of(device, k->dtype, bytes, (int[]){ k->rows, k->n }, 2);
    g = random_numbers(r, k->dtype, bytes, size);
    a[1] = array_of(device, k->dtype, bytes, (int[]){ k->rows, k->n }, 2);
    w = random_numbers(r, k->dtype, bytes, row);
    a[2] = k->weight ? array_of(device, k->dtype, bytes, (int[]){ k->n }, 1) : mlxvk_array_new();
    a[3] = k->bias ? array_of(device, k->dtype, bytes, (int[]){ k->n }, 1) : mlxvk_array_new();
    reference(k, x, g, w, want, want + size, want + size + row);
    for (int round = 0; round < 2; round++) {
        if (k->mean) OK(mlxvk_fast_layer_norm_vjp(&res, a[0], a[2], a[3], a[1], 1e-5f, stream), stream);
        else OK(mlxvk_fast_rms_norm_vjp(&res, a[0], a[2], a[1], 1e-5f, stream), stream);
        assert_int_equal(mlxvk_vector_array_size(res), count);
        OK(mlxvk_vector_array_get(&out, res, count - 1), stream);
        OK(mlxvk_array_read(out, round ? again : first, mlxvk_array_nbytes(out), stream), stream);
    }
    assert_memory_equal(first, again, mlxvk_array_nbytes(out));             /* the same from run to run */
    for (size_t i = 0; i < count; i++) {
        OK(mlxvk_vector_array_get(&out, res, i), stream);
        expect_close(out, k->dtype, i ? want + size + (i - 1) * row : want, i ? row : size, i ? sqrt(k->rows) : 1,
                     i == 0 ? "dx" : i == 1 ? "dweight" : "dbias");
    }
    for (int i = 0; i < 4; i++) mlxvk_array_free(a[i]);
    mlxvk_array_free(out);
    mlxvk_vector_array_free(res);
    free(bytes); free(again); free(first); free(x); free(g); free(w); free(want);
}

static void gradients_of_norms(void **state)
{
    static const struct norm_case cases[] = {
        { 1, 1, MLXVK_FLOAT32, false, true, false },   { 5, 7, MLXVK_FLOAT32, true, true, true },
        { 37, 64, MLXVK_BFLOAT16, false, true, false }, { 3, 1500, MLXVK_FLOAT32, true, true, true },
        { 19, 1500, MLXVK_FLOAT32, false, true, false }, { 33, 96, MLXVK_FLOAT16, true, true, false },
        { 6, 40, MLXVK_FLOAT32, true, false, false },  { 6, 40, MLXVK_FLOAT32, false, false, false },
    };
    struct rng r = { 11 };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) one_norm(&r, &cases[i]);
}

/* Rows whose mean is far from 0, some after one number that is farther: where sums of squares would cancel. */
static void means_far_away(void **state)
{
    static const int shapes[][2] = { { 3, 5 }, { 3, 8 }, { 5, 40 }, { 3, 256 }, { 2, 4104 }, { 2, 16384 }, { 1030, 2048 } };
    struct rng r = { 12 };
    (void)state;
    for (size_t k = 0; k < COUNT(shapes); k++) {
        int rows = shapes[k][0], n = shapes[k][1];
        size_t size = (size_t)rows * (size_t)n;
        float *x = malloc(size * sizeof *x);
        double *want = malloc(size * sizeof *want);
        mlxvk_array a, y = { NULL }, none = { NULL };
        for (int row = 0; row < rows; row++) {
            double mean = 0, square = 0;
            float *v = x + (size_t)row * (size_t)n;
            for (int i = 0; i < n; i++) v[i] = 1000 + (float)random_int(&r, -100, 100) / 64;
            if (row % 2) v[0] = -3000;
            for (int i = 0; i < n; i++) mean += (double)v[i] / n;
            for (int i = 0; i < n; i++) square += (v[i] - mean) * (v[i] - mean) / n;
            for (int i = 0; i < n; i++) want[(size_t)row * (size_t)n + (size_t)i] = (v[i] - mean) / sqrt(square + 1e-5);
        }
        a = floats(device, x, shapes[k], 2);
        OK(mlxvk_fast_layer_norm(&y, a, none, none, 1e-5f, stream), stream);
        expect_close(y, MLXVK_FLOAT32, want, size, 20, "layer_norm");       /* the mean itself has 2^-14 of an error */
        mlxvk_array_free(a);
        mlxvk_array_free(y);
        free(x);
        free(want);
    }
}

static void norms_refuse(void **state)
{
    mlxvk_array x = floats(device, (float[6]){ 0 }, (int[]){ 2, 3 }, 2), w = floats(device, (float[3]){ 0 }, (int[]){ 3 }, 1), none = { NULL };
    mlxvk_array empty = floats(device, NULL, (int[]){ 0, 3 }, 2), i = counting(device, 3), out = { NULL };
    mlxvk_vector_array res = { NULL };
    (void)state;
    REFUSED(mlxvk_fast_rms_norm_vjp(&res, x, w, w, 1e-5f, stream), MLXVK_ERROR_SHAPE, stream, "(2, 3)", "(3)");
    REFUSED(mlxvk_fast_rms_norm_vjp(&res, x, x, x, 1e-5f, stream), MLXVK_ERROR_SHAPE, stream, "weight");
    REFUSED(mlxvk_fast_layer_norm_vjp(&res, x, w, x, x, 1e-5f, stream), MLXVK_ERROR_SHAPE, stream, "bias");
    REFUSED(mlxvk_fast_rms_norm_vjp(&res, i, none, i, 1e-5f, stream), MLXVK_ERROR_DTYPE, stream, "int32");
    REFUSED(mlxvk_fast_rms_norm_vjp(&res, x, w, none, 1e-5f, stream), MLXVK_ERROR_ARGUMENT, stream, "cotangent");
    assert_null(res.ctx);
    OK(mlxvk_fast_layer_norm_vjp(&res, empty, w, w, empty, 1e-5f, stream), stream);     /* no rows: sums are 0 */
    for (size_t k = 1; k < 3; k++) {
        OK(mlxvk_vector_array_get(&out, res, k), stream);
        expect_floats(out, (float[3]){ 0 }, 3, 0, 0, stream);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    mlxvk_array_free(i);
    mlxvk_array_free(empty);
    mlxvk_array_free(out);
    mlxvk_vector_array_free(res);
}

/* A scale of the other sign undoes the rotation. */
static void rope_backwards(void **state)
{
    float x[2 * 3 * 20];
    mlxvk_array a, y = { NULL }, none = { NULL };
    (void)state;
    for (size_t i = 0; i < COUNT(x); i++) x[i] = (float)(i % 13) - 6;
    a = floats(device, x, (int[]){ 2, 3, 20 }, 3);
    for (int traditional = 0; traditional < 2; traditional++) {
        mlxvk_optional_float base = { 10000, true };
        OK(mlxvk_fast_rope(&y, a, 16, traditional, base, 0.5f, 7, none, stream), stream);
        OK(mlxvk_fast_rope(&y, y, 16, traditional, base, -0.5f, 7, none, stream), stream);
        expect_floats(y, x, COUNT(x), 1e-5, 1e-5, stream);
    }
    mlxvk_array_free(a);
    mlxvk_array_free(y);
}

/* ---- wrong arguments and empty arrays ---- */

static void refusals(void **state)
{
    mlxvk_array a = counting(device, 6), m = ints(device, (int32_t[4]){ 0 }, (int[]){ 2, 2 }, 2), none = { NULL }, r = { NULL };
    mlxvk_array z = array_of(device, MLXVK_COMPLEX64, (float[2]){ 0 }, NULL, 0);
    mlxvk_vector_array v = mlxvk_vector_array_new_value(a), res = { NULL };
    const int one = 1, two[2] = { 1, 1 }, minus = -1;
    (void)state;
    REFUSED(mlxvk_eye(&r, -1, 2, 0, MLXVK_FLOAT32, stream), MLXVK_ERROR_SHAPE, stream, "eye");
    REFUSED(mlxvk_eye(&r, 2, 2, 0, MLXVK_FLOAT64, stream), MLXVK_ERROR_DTYPE, stream, "float64");
    REFUSED(mlxvk_tri(&r, 2, -3, 0, MLXVK_FLOAT32, stream), MLXVK_ERROR_SHAPE, stream, "tri");
    REFUSED(mlxvk_tril(&r, a, 0, stream), MLXVK_ERROR_SHAPE, stream, "(6)");
    REFUSED(mlxvk_linspace(&r, 0, 1, -1, MLXVK_FLOAT32, stream), MLXVK_ERROR_SHAPE, stream, "-1");
    REFUSED(mlxvk_meshgrid(&res, v, false, "zz", stream), MLXVK_ERROR_ARGUMENT, stream, "indexing");
    REFUSED(mlxvk_meshgrid(&res, (mlxvk_vector_array){ NULL }, false, "ij", stream), MLXVK_ERROR_ARGUMENT, stream, "arrays");
    REFUSED(mlxvk_pad(&r, a, &one, 1, &one, 1, &one, 1, none, "constant", stream), MLXVK_ERROR_AXIS, stream, "axis 1");
    REFUSED(mlxvk_pad_symmetric(&r, a, -1, none, "edge", stream), MLXVK_ERROR_ARGUMENT, stream, "-1");
    REFUSED(mlxvk_pad_symmetric(&r, a, 1, none, "around", stream), MLXVK_ERROR_ARGUMENT, stream, "mode", "around");
    REFUSED(mlxvk_pad_symmetric(&r, a, 1, m, "constant", stream), MLXVK_ERROR_SHAPE, stream, "pad_value");
    REFUSED(mlxvk_roll_axes(&r, m, &one, 1, two, 2, stream), MLXVK_ERROR_ARGUMENT, stream, "1 shifts", "2 axes");
    REFUSED(mlxvk_roll_axis(&r, m, &one, 1, 2, stream), MLXVK_ERROR_AXIS, stream, "axis 2");
    REFUSED(mlxvk_repeat(&r, a, -1, stream), MLXVK_ERROR_ARGUMENT, stream, "-1");
    REFUSED(mlxvk_tile(&r, a, &minus, 1, stream), MLXVK_ERROR_SHAPE, stream, "-1");
    REFUSED(mlxvk_nan_to_num(&r, z, 0, (mlxvk_optional_float){ 0 }, (mlxvk_optional_float){ 0 }, stream), MLXVK_ERROR_DTYPE, stream, "complex64");
    REFUSED(mlxvk_divmod(&res, z, z, stream), MLXVK_ERROR_DTYPE, stream, "complex64");
    REFUSED(mlxvk_median(&r, a, NULL, 0, false, stream), MLXVK_ERROR_AXIS, stream, "(6)");
    REFUSED(mlxvk_var_axis(&r, a, 1, false, 0, stream), MLXVK_ERROR_AXIS, stream, "axis 1");
    assert_int_equal(mlxvk_depends(&res, v, (mlxvk_vector_array){ NULL }), MLXVK_ERROR_ARGUMENT);
    assert_null(r.ctx);
    assert_null(res.ctx);
    mlxvk_array_free(a);
    mlxvk_array_free(m);
    mlxvk_array_free(z);
    mlxvk_vector_array_free(v);
}

static void expect_shape(mlxvk_array a, int ndim, const int *shape)
{
    assert_int_equal(mlxvk_array_ndim(a), ndim);
    for (int i = 0; i < ndim; i++) assert_int_equal(mlxvk_array_shape(a)[i], shape[i]);
}

static void empty_arrays(void **state)
{
    mlxvk_array e = floats(device, NULL, (int[]){ 0, 3 }, 2), r = { NULL }, none = { NULL };
    const int shift = 5, reps[] = { 2, 0, 4 };
    (void)state;
    OK(mlxvk_roll(&r, e, &shift, 1, stream), stream);
    expect_shape(r, 2, (int[]){ 0, 3 });
    OK(mlxvk_tile(&r, e, reps, 3, stream), stream);
    expect_shape(r, 3, (int[]){ 2, 0, 12 });
    OK(mlxvk_repeat_axis(&r, e, 3, 1, stream), stream);
    expect_shape(r, 2, (int[]){ 0, 9 });
    for (int i = 0; i < 2; i++)                                /* of what is not there; MLX refuses it */
        REFUSED(mlxvk_pad_symmetric(&r, e, 1, none, i ? "symmetric" : "reflect", stream), MLXVK_ERROR_SHAPE, stream, "axis 0", "(0, 3)");
    OK(mlxvk_pad(&r, e, (int[]){ 1 }, 1, (int[]){ 2 }, 1, (int[]){ 1 }, 1, none, "reflect", stream), stream);
    expect_shape(r, 2, (int[]){ 0, 6 });
    OK(mlxvk_pad_symmetric(&r, e, 1, none, "constant", stream), stream);
    expect_floats(r, (float[10]){ 0 }, 10, 0, 0, stream);
    OK(mlxvk_eye(&r, 0, 3, 1, MLXVK_INT32, stream), stream);
    expect_shape(r, 2, (int[]){ 0, 3 });
    OK(mlxvk_eye(&r, 2, 3, 9, MLXVK_INT32, stream), stream);
    expect_ints(r, (int32_t[6]){ 0 }, 6, stream);
    OK(mlxvk_linspace(&r, 0, 1, 0, MLXVK_FLOAT32, stream), stream);
    expect_shape(r, 1, (int[]){ 0 });
    OK(mlxvk_hanning(&r, -2, stream), stream);
    expect_shape(r, 1, (int[]){ 0 });
    OK(mlxvk_array_equal(&r, e, e, false, stream), stream);
    mlxvk_array zero = floats(device, (float[]){ 5 }, NULL, 0);
    mlxvk_vector_array one = mlxvk_vector_array_new_value(zero);
    OK(mlxvk_concatenate(&zero, one, stream), stream);         /* one array: itself */
    expect_floats(zero, (float[]){ 5 }, 1, 0, 0, stream);
    mlxvk_vector_array_free(one);
    mlxvk_array_free(zero);
    bool same = false;
    OK(mlxvk_array_item_bool(&same, r), stream);
    assert_true(same);
    mlxvk_array_free(e);
    mlxvk_array_free(r);
}

/* ---- random integers: MLX's answers for key 3 ---- */

static mlxvk_array bound(double value)
{
    bool whole = value == floor(value) && fabs(value) < 2147483648.0;
    return whole ? ints(device, (int32_t[]){ (int32_t)value }, NULL, 0) : floats(device, (float[]){ (float)value }, NULL, 0);
}

static void random_integers(void **state)
{
    static const struct { double low, high; mlxvk_dtype dtype; double want[6]; } cases[] = {
        { 0, 2, MLXVK_BOOL, { 0, 0, 0, 1, 1, 1 } },
        { 1, 2, MLXVK_BOOL, { 1, 1, 1, 1, 1, 1 } },
        { 0, 0, MLXVK_UINT8, { 0, 0, 0, 0, 0, 0 } },
        { 3, 0, MLXVK_UINT32, { 3, 3, 3, 3, 3, 3 } },
        { 16777216, 16777219, MLXVK_UINT32, { 16777216, 16777218, 16777218, 16777218, 16777218, 16777218 } },
        { -1.5, 1.5, MLXVK_INT32, { -1, -1, -1, 0, 0, 0 } },
        { 0, 4294967296.0, MLXVK_INT64, { 877192960, 1614509696, 1950127104, 3448417024.0, 2823528448.0, 3529024768.0 } },
    };
    mlxvk_array key = { NULL }, low, high, r = { NULL };
    (void)state;
    key = array_of(device, MLXVK_UINT32, (uint32_t[]){ 0, 3 }, (int[]){ 2 }, 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        unsigned char got[48];
        low = bound(cases[i].low);
        high = bound(cases[i].high);
        OK(mlxvk_random_randint(&r, low, high, (int[]){ 2, 3 }, 2, cases[i].dtype, key, stream), stream);
        OK(mlxvk_array_read(r, got, 6 * bytes_of(cases[i].dtype), stream), stream);
        for (size_t k = 0; k < 6; k++) {
            double g = load_number(cases[i].dtype, got, k).re;
            if (g != cases[i].want[k]) print_error("case %zu: element %zu is %g and not %g\n", i, k, g, cases[i].want[k]);
            assert_true(g == cases[i].want[k]);
        }
        mlxvk_array_free(low);
        mlxvk_array_free(high);
    }
    REFUSED(mlxvk_random_randint(&r, key, key, (int[]){ 2 }, 1, MLXVK_FLOAT32, key, stream), MLXVK_ERROR_DTYPE, stream, "float32");
    REFUSED(mlxvk_random_bernoulli(&r, key, (int[]){ 2 }, 1, key, stream), MLXVK_ERROR_DTYPE, stream, "uint32");
    REFUSED(mlxvk_random_laplace(&r, (int[]){ 2 }, 1, MLXVK_INT32, 0, 1, key, stream), MLXVK_ERROR_DTYPE, stream, "int32");
    REFUSED(mlxvk_random_permutation_arange(&r, -3, key, stream), MLXVK_ERROR_SHAPE, stream, "-3");
    mlxvk_array_free(key);
    mlxvk_array_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotients_towards_zero), cmocka_unit_test(complex_functions), cmocka_unit_test(complex_far_and_near), cmocka_unit_test(complex_order),
        cmocka_unit_test(gradients_of_norms), cmocka_unit_test(means_far_away), cmocka_unit_test(norms_refuse),
        cmocka_unit_test(rope_backwards), cmocka_unit_test(refusals), cmocka_unit_test(empty_arrays),
        cmocka_unit_test(random_integers),
    };
    return run_group("composites", tests, set_up_poisoned, tear_down);
}
