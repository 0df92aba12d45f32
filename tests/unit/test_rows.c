/* What a row gives has the same bits whatever the number of rows, where their elements lie, and the kernel that both
 * chose: reductions, softmax and norms of random rows, all at once in several layouts, beside each row on its own. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "numbers.h"
#include "support.h"

enum op { SUM, PROD, MEAN, MAX, MIN, LSE, NORM, VAR, ARGMAX, SOFTMAX, RMS, LAYER, OPS };
static const char *const names[OPS] = { "sum", "prod", "mean", "max", "min", "logsumexp", "norm", "var", "argmax",
                                        "softmax", "rms_norm", "layer_norm" };
enum layout { ROWS, COLUMNS, TRANSPOSED, MIDDLE, GAPS, SHIFTED, FOURS, REVERSED, REPEATED, LAYOUTS };
static const char *const places[LAYOUTS] = { "rows", "columns", "a transposed view", "a middle axis", "rows with gaps",
                                             "unaligned rows", "rows some fours apart", "reversed rows", "repeated rows" };

/* ---- layouts: the rows of x along *axis of the result, which the caller frees ---- */

static void own(mlxvk_array *a) { OK(mlxvk_contiguous(a, *a, false, stream), stream); }

static mlxvk_array twice(mlxvk_array x, bool side_by_side)
{
    mlxvk_array r = { NULL };
    mlxvk_vector_array pair = mlxvk_vector_array_new_data((mlxvk_array[]){ x, x }, 2);
    OK(side_by_side ? mlxvk_stack_axis(&r, pair, 2, stream) : mlxvk_concatenate_axis(&r, pair, 1, stream), stream);
    mlxvk_vector_array_free(pair);
    return r;
}

static mlxvk_array laid_out(mlxvk_array x, enum layout layout, int *axis)
{
    int rows = mlxvk_array_dim(x, 0), n = mlxvk_array_dim(x, 1), shift;
    mlxvk_array a = { NULL };
    *axis = layout == COLUMNS ? 0 : layout == REPEATED ? 2 : 1;
    OK(mlxvk_array_set(&a, x), stream);
    switch (layout) {
    case COLUMNS: case TRANSPOSED:
        OK(mlxvk_transpose(&a, a, stream), stream);
        own(&a);
        if (layout == TRANSPOSED) OK(mlxvk_transpose(&a, a, stream), stream);
        break;
    case MIDDLE:
        OK(mlxvk_reshape(&a, a, (int[]){ rows % 2 ? 1 : 2, rows % 2 ? rows : rows / 2, n }, 3, stream), stream);
        OK(mlxvk_swapaxes(&a, a, 1, 2, stream), stream);
        own(&a);
        break;
    case GAPS:
        mlxvk_array_free(a);
        a = twice(x, true);
        take_slice(&a, 2, 0, 1, 1);
        break;
    case SHIFTED: case FOURS:                        /* 1 or 4 elements in front of each */
        shift = layout == SHIFTED ? 1 : n < 4 ? n : 4;
        mlxvk_array_free(a);
        a = twice(x, false);
        take_slice(&a, 1, n - shift, 2 * n, 1);
        own(&a);
        take_slice(&a, 1, shift, n + shift, 1);
        break;
    case REVERSED:
        take_slice(&a, 1, n - 1, -n - 1, -1);
        own(&a);
        take_slice(&a, 1, n - 1, -n - 1, -1);
        break;
    case REPEATED: OK(mlxvk_broadcast_to(&a, a, (int[]){ 3, rows, n }, 3, stream), stream); break;
    default: break;
    }
    return a;
}

/* ---- operations ---- */

/* What a last axis of x, is weighted and moved by. */
static mlxvk_array vector_of(int n, mlxvk_dtype dtype, float value)
{
    mlxvk_array a = { NULL }, one = floats(device, &value, NULL, 0);
    OK(mlxvk_full(&a, &n, 1, one, dtype, stream), stream);
    mlxvk_array_free(one);
    return a;
}

/* The results, row after row, contiguous. */
static mlxvk_array apply(enum op op, mlxvk_array a, int axis)
{
    mlxvk_array r = { NULL }, weight, bias;
    int n = mlxvk_array_dim(a, axis);
    switch (op) {
    case SUM: OK(mlxvk_sum_axis(&r, a, axis, false, stream), stream); break;
    case PROD: OK(mlxvk_prod_axis(&r, a, axis, false, stream), stream); break;
    case MEAN: OK(mlxvk_mean_axis(&r, a, axis, false, stream), stream); break;
    case MAX: OK(mlxvk_max_axis(&r, a, axis, false, stream), stream); break;
    case MIN: OK(mlxvk_min_axis(&r, a, axis, false, stream), stream); break;
    case LSE: OK(mlxvk_logsumexp_axis(&r, a, axis, false, stream), stream); break;
    case NORM: OK(mlxvk_linalg_norm_l2(&r, a, &axis, 1, false, stream), stream); break;
    case VAR: OK(mlxvk_var_axis(&r, a, axis, false, 0, stream), stream); break;
    case ARGMAX: OK(mlxvk_argmax_axis(&r, a, axis, false, stream), stream); break;
    case SOFTMAX:
        OK(mlxvk_softmax_axis(&r, a, axis, true, stream), stream);
        OK(mlxvk_moveaxis(&r, r, axis, -1, stream), stream);
        break;
    default:
        weight = vector_of(n, mlxvk_array_dtype(a), 1.25f);
        bias = vector_of(n, mlxvk_array_dtype(a), -0.375f);
        OK(mlxvk_moveaxis(&r, a, axis, -1, stream), stream);
        if (op == RMS) OK(mlxvk_fast_rms_norm(&r, r, weight, 1e-5f, stream), stream);
        else OK(mlxvk_fast_layer_norm(&r, r, weight, bias, 1e-5f, stream), stream);
        mlxvk_array_free(weight);
        mlxvk_array_free(bias);
    }
    own(&r);
    return r;
}

static unsigned char *bytes_of_array(mlxvk_array a)
{
    unsigned char *data = malloc(mlxvk_array_nbytes(a) + 1);
    assert_non_null(data);
    OK(mlxvk_array_read(a, data, mlxvk_array_nbytes(a), stream), stream);
    return data;
}

/* ---- tests ---- */

static mlxvk_array random_rows(struct rng *r, int rows, int n, mlxvk_dtype dtype, bool tame)
{
    float *values = malloc((size_t)rows * (size_t)n * sizeof *values);
    mlxvk_array a;
    assert_non_null(values);
    for (size_t i = 0; i < (size_t)rows * (size_t)n; i++) {
        float u = (float)random_int(r, -8000000, 8000000) / 8e6f;
        values[i] = tame ? 1 + u / 16 : u * (float)(1 << random_int(r, 0, 6)) / 16;
        if (random_chance(r, 2)) values[i] = random_chance(r, 50) ? 0.0f : -0.0f;
    }
    a = floats(device, values, (int[]){ rows, n }, 2);
    OK(mlxvk_astype(&a, a, dtype, stream), stream);
    free(values);
    return a;
}

/* Results of `rows` rows against that of row `row`, which is `size` bytes. */
static void expect_row(const unsigned char *all, const unsigned char *one, size_t size, int row, const char *what)
{
    for (size_t i = 0; i < size; i++)
        if (all[(size_t)row * size + i] != one[i]) {
            print_error("%s: byte %zu of %zu of row %d is %02x and not %02x\n", what, i, size, row,
                        all[(size_t)row * size + i], one[i]);
            fail();
        }
}

static void check(enum op op, mlxvk_array x, const char *type)
{
    int rows = mlxvk_array_dim(x, 0), n = mlxvk_array_dim(x, 1), some[] = { 0, rows / 2, rows - 1 };
    unsigned char *one[3];
    size_t size = 0;
    char text[128];
    for (int k = 0; k < 3; k++) {
        mlxvk_array row = { NULL }, r;
        OK(mlxvk_array_set(&row, x), stream);
        take_slice(&row, 0, some[k], some[k] + 1, 1);
        OK(mlxvk_reshape(&row, row, &n, 1, stream), stream);
        own(&row);
        r = apply(op, row, 0);
        one[k] = bytes_of_array(r);
        size = mlxvk_array_nbytes(r);
        mlxvk_array_free(row);
        mlxvk_array_free(r);
    }
    for (int layout = 0; layout < LAYOUTS; layout++) {
        int axis;
        mlxvk_array a = laid_out(x, (enum layout)layout, &axis), r = apply(op, a, axis);
        unsigned char *all = bytes_of_array(r);
        snprintf(text, sizeof text, "%s of %d %s rows of %d in %s", names[op], rows, type, n, places[layout]);
        for (int k = 0; k < 3; k++) expect_row(all, one[k], size, some[k], text);
        free(all);
        mlxvk_array_free(a);
        mlxvk_array_free(r);
    }
    for (int k = 0; k < 3; k++) free(one[k]);
}

static void same_bits(void **state)
{
    static const int sizes[][2] = {
        { 3, 1 }, { 7, 2 }, { 64, 3 }, { 2, 5 }, { 1000, 7 }, { 5, 16 }, { 300, 17 }, { 3, 31 }, { 1000, 32 }, { 2, 33 },
        { 7, 63 }, { 64, 64 }, { 3, 65 }, { 260, 100 }, { 33, 255 }, { 3, 256 }, { 7, 257 }, { 64, 300 }, { 5, 520 },
        { 2, 1000 }, { 64, 1024 }, { 3, 2047 }, { 7, 4096 }, { 3, 4097 }, { 40, 5001 }, { 2, 8200 }, { 3, 20000 },
        { 70, 4200 }, { 2, 40001 }, { 3, 70000 },
        { 2, 100003 } };
    static const mlxvk_dtype types[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_FLOAT16 };
    static const char *const type_names[] = { "float32", "bfloat16", "float16" };
    struct rng r = { 51 };
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int op = (int)i % 3; op < OPS; op += 3) {                 /* each operation meets all kinds of sizes */
            size_t t = (size_t)(op / 3) % 2 ? 0 : i % 2 ? 1 : i % 4 / 2 ? 2 : 0;
            mlxvk_array x = random_rows(&r, sizes[i][0], sizes[i][1], types[t], op == PROD);
            check((enum op)op, x, type_names[t]);
            mlxvk_array_free(x);
        }
}

/* Many rows, which one kernel takes whole where few are cut. */
static void many_rows(void **state)
{
    static const enum op ops[] = { SUM, LSE, SOFTMAX };
    struct rng r = { 52 };
    (void)state;
    for (size_t k = 0; k < COUNT(ops); k++) {
        mlxvk_array x = random_rows(&r, 520, 4500, MLXVK_BFLOAT16, false);
        check(ops[k], x, "bfloat16");
        mlxvk_array_free(x);
    }
}

/* Softmax of so many long rows that a thread has twice as much, beside that of fewer of them; with one of nothing but
 * -infinity, and one with NaN. */
static void many_long_rows(void **state)
{
    enum { MANY = 1030, FEWER = 1000, N = 4504 };
    static const mlxvk_dtype types[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16 };
    struct rng r = { 54 };
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++) {
        mlxvk_array x = random_rows(&r, MANY, N, MLXVK_FLOAT32, false), parts[2], all = { NULL };
        mlxvk_array low = floats(device, (float[]){ -INFINITY }, (int[]){ 1 }, 1), nan = floats(device, (float[]){ NAN }, (int[]){ 1 }, 1);
        unsigned char *whole, *part;
        OK(mlxvk_slice_update(&x, x, low, (int[]){ 3, 0 }, 2, (int[]){ 4, N }, 2, (int[]){ 1, 1 }, 2, stream), stream);
        OK(mlxvk_slice_update(&x, x, nan, (int[]){ 5, 4500 }, 2, (int[]){ 6, 4501 }, 2, (int[]){ 1, 1 }, 2, stream), stream);
        OK(mlxvk_astype(&x, x, types[t], stream), stream);
        OK(mlxvk_softmax_axis(&all, x, 1, true, stream), stream);
        whole = bytes_of_array(all);
        for (int i = 0; i < 2; i++) {
            parts[i] = (mlxvk_array){ NULL };
            OK(mlxvk_array_set(&parts[i], x), stream);
            take_slice(&parts[i], 0, i ? FEWER : 0, i ? MANY : FEWER, 1);
            OK(mlxvk_softmax_axis(&parts[i], parts[i], 1, true, stream), stream);
            part = bytes_of_array(parts[i]);
            expect_row(part, whole + (i ? 2 * (size_t)FEWER * N : 0), mlxvk_array_nbytes(parts[i]), 0, "softmax of fewer rows");
            free(part);
            mlxvk_array_free(parts[i]);
        }
        free(whole);
        for (mlxvk_array **p = (mlxvk_array *[]){ &x, &low, &nan, &all, NULL }; *p; p++) mlxvk_array_free(**p);
    }
}

/* Several axes: a row is what they name in order, however it lies. */
static void several_axes(void **state)
{
    static const int shape[] = { 6, 50, 7, 90 }, turns[][4] = { { 3, 2, 1, 0 }, { 1, 3, 0, 2 }, { 2, 0, 3, 1 } };
    static const int axes[][2] = { { 0, 1 }, { 2, 3 }, { 0, 2 }, { 1, 3 }, { 0, 3 } };
    struct rng r = { 53 };
    mlxvk_array x = random_rows(&r, 6 * 50, 7 * 90, MLXVK_FLOAT32, false);
    (void)state;
    OK(mlxvk_reshape(&x, x, shape, 4, stream), stream);
    for (size_t k = 0; k < COUNT(axes); k++) {
        mlxvk_array want = { NULL };
        unsigned char *one;
        OK(mlxvk_sum_axes(&want, x, axes[k], 2, false, stream), stream);
        one = bytes_of_array(want);
        for (size_t t = 0; t < COUNT(turns); t++) {
            int back[4];
            mlxvk_array a = { NULL };
            unsigned char *got;
            for (int i = 0; i < 4; i++) back[turns[t][i]] = i;
            OK(mlxvk_transpose_axes(&a, x, turns[t], 4, stream), stream);
            own(&a);
            OK(mlxvk_transpose_axes(&a, a, back, 4, stream), stream);
            OK(mlxvk_sum_axes(&a, a, axes[k], 2, false, stream), stream);
            got = bytes_of_array(a);
            expect_row(got, one, mlxvk_array_nbytes(want), 0, "a sum over two axes, transposed");
            free(got);
            mlxvk_array_free(a);
        }
        free(one);
        mlxvk_array_free(want);
    }
    mlxvk_array_free(x);
}

/* A row that no binding holds is read in ranges of whole pieces: the same bits as on a device that binds it whole. */
static void bound_in_ranges(void **state)
{
    static const enum op ops[] = { SUM, LSE, NORM };
    mlxvk_device whole_device = device;
    mlxvk_stream whole_stream = stream;
    struct setting s = start("MLX_VK_MAX_BINDING_RANGE=65536");
    (void)state;
    for (size_t k = 0; k < 2 * COUNT(ops); k++) {
        unsigned char *got[2];
        size_t size = 0;
        for (int small = 0; small < 2; small++) {
            struct rng r = { 54 };
            mlxvk_array x, y;
            device = small ? s.device : whole_device;
            stream = small ? s.stream : whole_stream;
            x = random_rows(&r, k % 2 ? 30011 : 1, k % 2 ? 4 : 100003, MLXVK_FLOAT32, false);
            y = apply(ops[k / 2], x, k % 2 ? 0 : 1);
            size = mlxvk_array_nbytes(y);
            got[small] = bytes_of_array(y);
            mlxvk_array_free(x);
            mlxvk_array_free(y);
        }
        device = whole_device;
        stream = whole_stream;
        expect_row(got[1], got[0], size, 0, names[ops[k / 2]]);
        free(got[0]);
        free(got[1]);
    }
    finish(&s);
}

/* The first of the best of 64-bit integers, whose rows are never cut. */
static void long_wide_arguments(void **state)
{
    enum { N = 1200000 };
    int64_t *values = calloc(N, sizeof *values);
    uint32_t got[2];
    (void)state;
    assert_non_null(values);
    for (size_t columns = 1; columns < 3; columns++) {
        mlxvk_array a, r = { NULL };
        values[N - 1] = values[N - 1 - columns] = 5;
        values[N - 2] = values[N - 2 - columns] = 5;
        a = array_of(device, MLXVK_INT64, values, (int[]){ N / (int)columns, (int)columns }, 2);
        OK(mlxvk_argmax_axis(&r, a, 0, false, stream), stream);
        OK(mlxvk_array_read(r, got, 4 * columns, stream), stream);
        for (size_t k = 0; k < columns; k++) assert_int_equal(got[k], columns == 1 ? N - 3 : N / 2 - 2);
        mlxvk_array_free(a);
        mlxvk_array_free(r);
        memset(values, 0, N * sizeof *values);
    }
    free(values);
}

/* The same where no binding holds such a row: the first of the best of its parts. Each column has few values, so that
 * equal ones lie in several parts, and large ones, whose low words say nothing. */
static void wide_arguments_in_parts(void **state)
{
    enum { N = 30011, COLUMNS = 3 };
    typedef int (*arg_function)(mlxvk_array *, mlxvk_array, int, bool, mlxvk_stream);
    static const arg_function functions[] = { mlxvk_argmax_axis, mlxvk_argmin_axis };
    struct setting small = start("MLX_VK_MAX_BINDING_RANGE=65536");
    struct rng random = { 55 };
    int64_t *values = malloc(sizeof *values * N * COLUMNS);
    (void)state;
    assert_non_null(values);
    for (size_t i = 0; i < N * COLUMNS; i++) values[i] = random_int(&random, -9, 9) * ((int64_t)1 << 40) + 1;
    for (size_t run = 0; run < 8; run++) {
        bool least = run & 1, along = run & 2, is_signed = run & 4;
        mlxvk_array a, r = { NULL };
        uint32_t got[COLUMNS], want[COLUMNS] = { 0 };
        for (size_t k = 0; k < COLUMNS; k++)
            for (size_t i = 1; i < N; i++) {
                size_t step = along ? 1 : COLUMNS, column = along ? k * N : k;
                int64_t x = values[column + i * step], best = values[column + want[k] * step];
                bool more = is_signed ? x > best : (uint64_t)x > (uint64_t)best;
                if (least ? !more && x != best : more) want[k] = (uint32_t)i;
            }
        a = array_of(small.device, is_signed ? MLXVK_INT64 : MLXVK_UINT64, values,
                     along ? (int[]){ COLUMNS, N } : (int[]){ N, COLUMNS }, 2);
        memset(got, 0xff, sizeof got);
        OK(functions[least](&r, a, along, false, small.stream), small.stream);
        OK(mlxvk_array_read(r, got, sizeof got, small.stream), small.stream);
        for (size_t k = 0; k < COLUMNS; k++) assert_int_equal(got[k], want[k]);
        mlxvk_array_free(a);
        mlxvk_array_free(r);
    }
    free(values);
    finish(&small);
}

/* A product of finite complex numbers is what it is rounded, also where both of its parts' terms are beyond float32. */
static void complex_products(void **state)
{
    static const float pairs[][4] = { { 3e19f, 2.9e19f, 3e19f, 2.5e19f }, { 3e19f, 2.9e19f, -3e19f, -2.5e19f }, { 1e30f, 1e30f, 1e30f, 1e30f },
                                      { 2e38f, -1e38f, -1e38f, 3e38f } };
    (void)state;
    for (size_t k = 0; k < COUNT(pairs); k++) {
        const float *p = pairs[k];
        double re = (double)p[0] * p[2] - (double)p[1] * p[3], im = (double)p[0] * p[3] + (double)p[1] * p[2];
        float want[2] = { (float)re, (float)im }, got[4];
        mlxvk_array a = array_of(device, MLXVK_COMPLEX64, p, (int[]){ 2 }, 1), y = { NULL };
        for (int scan = 0; scan < 2; scan++) {
            memset(got, 0xff, sizeof got);
            if (scan) OK(mlxvk_cumprod(&y, a, 0, false, true, stream), stream);
            else OK(mlxvk_prod(&y, a, false, stream), stream);
            OK(mlxvk_array_read(y, got, scan ? 16 : 8, stream), stream);
            for (int i = 0; i < 2; i++) {
                float x = got[2 * scan + i];
                if (!(x == want[i] || fabsf(x - want[i]) <= 1e-6f * fabsf(want[i]) || (want[i] == 0 && fabsf(x) < 1e33f)))
                    fail_msg("part %d of product %zu is %.9g, not %.9g", i, k, x, want[i]);
            }
        }
        mlxvk_array_free(a);
        mlxvk_array_free(y);
    }
}

/* ---- operations that take rows whole, on rows that no binding holds ---- */

enum { SCANS = 5, WHOLE_ROWS = 4 * SCANS + 3 };

static void apply_to_rows(int what, mlxvk_array *y, mlxvk_array x, int axis, mlxvk_stream s)
{
    typedef int (*scan_function)(mlxvk_array *, mlxvk_array, int, bool, bool, mlxvk_stream);
    static const scan_function scans[SCANS] = { mlxvk_cumsum, mlxvk_cumprod, mlxvk_cummax, mlxvk_cummin, mlxvk_logcumsumexp };
    const mlxvk_array none = { NULL };
    if (what < 4 * SCANS) OK(scans[what / 4](y, x, axis, what & 1, what & 2, s), s);
    else if (what == 4 * SCANS) OK(mlxvk_softmax_axis(y, x, axis, true, s), s);
    else if (what == 4 * SCANS + 1) OK(mlxvk_fast_rms_norm(y, x, none, 1e-5f, s), s);
    else OK(mlxvk_fast_layer_norm(y, x, none, none, 1e-5f, s), s);
    OK(mlxvk_astype(y, *y, MLXVK_FLOAT32, s), s);
}

/* They are made of what can be bound: near to what a device gives that binds them, and equal where it is exact. */
static void rows_beyond_a_binding(void **state)
{
    enum { N = 33003, COLUMNS = 2 };
    static const mlxvk_dtype types[] = { MLXVK_FLOAT32, MLXVK_INT32, MLXVK_BOOL, MLXVK_BFLOAT16 };
    struct setting small = start("MLX_VK_MAX_BINDING_RANGE=65536");
    struct rng random = { 56 };
    static float values[N * COLUMNS], got[2][N * COLUMNS];
    (void)state;
    for (int i = 0; i < N * COLUMNS; i++) values[i] = (float)random_int(&random, -1, 1) * (i % 97 ? 1e-3f : 1);
    for (int k = 0; k < 2 * WHOLE_ROWS * (int)COUNT(types); k++) {
        int what = k / 2 % WHOLE_ROWS, axis = k & 1;
        mlxvk_dtype t = types[k / 2 / WHOLE_ROWS];
        bool exact = t == MLXVK_INT32 || t == MLXVK_BOOL, norm = what > 4 * SCANS;
        if ((norm && (!axis || exact)) || (t == MLXVK_BFLOAT16 && what < 4 * SCANS)) continue;
        if ((t == MLXVK_BOOL && what >= 8) || (t == MLXVK_INT32 && what >= 4 * (SCANS - 1))) continue;
        memset(got, 0xff, sizeof got);
        for (int which = 0; which < 2; which++) {
            mlxvk_device d = which ? small.device : device;
            mlxvk_stream s = which ? small.stream : stream;
            mlxvk_array y = { NULL }, x = array_of(d, MLXVK_FLOAT32, values, axis ? (int[]){ COLUMNS, N } : (int[]){ N, COLUMNS }, 2);
            OK(mlxvk_astype(&x, x, t, s), s);
            apply_to_rows(what, &y, x, axis, s);
            OK(mlxvk_array_read(y, got[which], sizeof got[which], s), s);
            mlxvk_array_free(x);
            mlxvk_array_free(y);
        }
        for (int i = 0; i < N * COLUMNS; i++) {
            float a = got[0][i], b = got[1][i], bound = (t == MLXVK_BFLOAT16 ? 1e-2f : 2e-4f) * (fabsf(a) + (what < 4 ? 1 : 1e-6f));
            if (exact ? a != b : !(fabsf(a - b) <= bound) && !(isinf(a) && a == b))
                fail_msg("%d of %s along %d: element %d is %.9g in parts and %.9g whole", what, mlxvk_dtype_name(t), axis, i, b, a);
        }
    }
    finish(&small);
}

/* ---- rows, weights and biases that are not only numbers ---- */

enum { ODD_ROWS = 5, ODD_MOST = 2050 };

static void fill_odd(float x[ODD_ROWS][ODD_MOST], float *weight, float *bias, int n, struct rng *random)
{
    for (int r = 0; r < ODD_ROWS; r++)
        for (int i = 0; i < n; i++) x[r][i] = r == 3 ? -INFINITY : (float)random_int(random, -64, 64) / 16;
    x[1][n / 2] = NAN;
    x[2][n - 1] = INFINITY;
    x[4][17] = -INFINITY;
    for (int i = 0; i < n; i++) { weight[i] = (float)random_int(random, 1, 32) / 16; bias[i] = (float)random_int(random, -16, 16) / 16; }
    weight[5] = bias[9] = NAN;
    weight[n - 9] = weight[n - 10] = INFINITY;
    bias[n - 10] = -INFINITY;
}

/* One row in double, as what is computed says: the mean, the rest's mean square, what is scaled and moved. */
static void norm_of(const float *x, const float *weight, const float *bias, int n, bool layer, double *y)
{
    double mean = 0, square = 0;
    for (int i = 0; i < n && layer; i++) mean += (double)x[i] / n;
    for (int i = 0; i < n; i++) square += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
    for (int i = 0; i < n; i++)
        y[i] = ((double)x[i] - mean) * (1 / sqrt(square + 1e-5)) * (double)weight[i] + (layer ? (double)bias[i] : 0);
}

static void softmax_of(const float *x, int n, double *y)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) most = x[i] > most || isnan(x[i]) ? (double)x[i] : most;
    for (int i = 0; i < n; i++) sum += y[i] = exp((double)x[i] - most);
    for (int i = 0; i < n; i++) y[i] /= sum;
}

/* A NaN whose bits carry into the sign when they are rounded as a number's are. */
static void a_nan_of_ones(void)
{
    static float x[2 * ODD_MOST], got[2 * ODD_MOST];
    const uint32_t ones = 0x7fffffffu;
    float eps;
    memcpy(&eps, &ones, sizeof eps);
    for (int i = 0; i < 2 * ODD_MOST; i++) x[i] = (float)(i % 7 - 3);
    for (int k = 0; k < 6; k++) {
        int n = (const int[]){ 512, 2048, ODD_MOST }[k / 2];
        mlxvk_array y = { NULL }, none = { NULL }, a = array_of(device, MLXVK_FLOAT32, x, (int[]){ 2, n }, 2);
        OK(mlxvk_astype(&a, a, MLXVK_BFLOAT16, stream), stream);
        if (k % 2) OK(mlxvk_fast_layer_norm(&y, a, none, none, eps, stream), stream);
        else OK(mlxvk_fast_rms_norm(&y, a, none, eps, stream), stream);
        OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, stream), stream);
        OK(mlxvk_array_read(y, got, sizeof *got * (size_t)(2 * n), stream), stream);
        for (int i = 0; i < 2 * n; i++) if (!isnan(got[i])) fail_msg("rows of %d: element %d is %g", n, i, (double)got[i]);
        mlxvk_array_free(a);
        mlxvk_array_free(y);
    }
}

/* Results are NaN where they must be, and nowhere else: by a test of each, by one for all of a thread (of rows of 2048, on
 * lavapipe), by elements; of what a residual was added to. */
static void not_only_numbers(void **state)
{
    static const mlxvk_dtype types[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32 };
    static const int sizes[] = { 512, 2048, ODD_MOST };
    static float x[ODD_ROWS][ODD_MOST], packed[ODD_ROWS * ODD_MOST], got[ODD_ROWS * ODD_MOST], weight[ODD_MOST], bias[ODD_MOST];
    struct rng random = { 5 };
    (void)state;
    a_nan_of_ones();
    for (int k = 0; k < 3 * 3 * 4; k++) {              /* rms_norm, layer_norm, rms_norm of a sum, softmax */
        int n = sizes[k % 3], what = k / 9;
        if (k / 3 % 3 && n != 2048) continue;
        double want[ODD_MOST];
        fill_odd(x, weight, bias, n, &random);
        for (int r = 0; r < ODD_ROWS; r++) memcpy(packed + r * n, x[r], (size_t)n * sizeof *packed);
        mlxvk_array y = { NULL }, a = array_of(device, MLXVK_FLOAT32, packed, (int[]){ ODD_ROWS, n }, 2);
        mlxvk_array w = array_of(device, MLXVK_FLOAT32, weight, &n, 1), b = array_of(device, MLXVK_FLOAT32, bias, &n, 1), zero = { NULL };
        OK(mlxvk_zeros_like(&zero, a, stream), stream);
        for (mlxvk_array **p = (mlxvk_array *[]){ &a, &w, &b, &zero, NULL }; *p; p++)
            OK(mlxvk_astype(*p, **p, types[k / 3 % 3], stream), stream);
        if (what == 2) OK(mlxvk_add(&a, a, zero, stream), stream);
        if (what == 3) OK(mlxvk_softmax_axis(&y, a, 1, true, stream), stream);
        else if (what == 1) OK(mlxvk_fast_layer_norm(&y, a, w, b, 1e-5f, stream), stream);
        else OK(mlxvk_fast_rms_norm(&y, a, w, 1e-5f, stream), stream);
        OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, stream), stream);
        OK(mlxvk_array_read(y, got, sizeof *got * (size_t)(ODD_ROWS * n), stream), stream);
        for (int i = 0; i < ODD_ROWS * n; i++) {
            if (i % n == 0 && what == 3) softmax_of(x[i / n], n, want);
            else if (i % n == 0) norm_of(x[i / n], weight, bias, n, what == 1, want);
            double v = want[i % n];
            if (isnan(v) ? !isnan(got[i]) : isinf(v) ? (double)got[i] != v : !(fabs(v - (double)got[i]) <= 2e-2 * (fabs(v) + 0.01)))
                fail_msg("%d of rows of %d in %s: element %d is %g, not %g", what, n, mlxvk_dtype_name(types[k / 3 % 3]), i,
                         (double)got[i], v);
        }
        for (mlxvk_array **p = (mlxvk_array *[]){ &a, &w, &b, &zero, &y, NULL }; *p; p++) mlxvk_array_free(**p);
    }
}

/* layer_norm of elements that lie close together, far from 0: the mean is what most of their bits are. */
static void far_from_zero(void **state)
{
    static const struct { mlxvk_dtype dtype; float centre; double within; } kinds[] = {
        { MLXVK_BFLOAT16, 192, 0x1p-7 }, { MLXVK_FLOAT16, 1536, 0x1p-9 }, { MLXVK_FLOAT32, 10000, 2e-3 } };
    static const int sizes[] = { 512, 2048, ODD_MOST };
    static float x[ODD_ROWS * ODD_MOST], got[ODD_ROWS * ODD_MOST], weight[ODD_MOST], bias[ODD_MOST];
    static double want[ODD_MOST];
    struct rng random = { 35 };
    (void)state;
    for (int i = 0; i < ODD_MOST; i++) weight[i] = 1 + (float)(i % 5) / 4, bias[i] = (float)(i % 3) / 2;
    for (int k = 0; k < (int)COUNT(kinds) * (int)COUNT(sizes); k++) {
        const int n = sizes[k % 3], type = k / 3;
        for (int i = 0; i < ODD_ROWS * n; i++) x[i] = kinds[type].centre + (float)random_int(&random, -3, 3);
        mlxvk_array y = { NULL }, a = array_of(device, MLXVK_FLOAT32, x, (int[]){ ODD_ROWS, n }, 2);
        mlxvk_array w = array_of(device, MLXVK_FLOAT32, weight, &n, 1), b = array_of(device, MLXVK_FLOAT32, bias, &n, 1);
        for (mlxvk_array **p = (mlxvk_array *[]){ &a, &w, &b, NULL }; *p; p++)
            OK(mlxvk_astype(*p, **p, kinds[type].dtype, stream), stream);
        OK(mlxvk_fast_layer_norm(&y, a, w, b, 1e-5f, stream), stream);
        OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, stream), stream);
        OK(mlxvk_array_read(y, got, sizeof *got * (size_t)(ODD_ROWS * n), stream), stream);
        for (int i = 0; i < ODD_ROWS * n; i++) {
            if (i % n == 0) norm_of(x + i, weight, bias, n, true, want);
            double v = want[i % n];
            if (!(fabs(v - (double)got[i]) <= kinds[type].within * (fabs(v) + 0.5)))
                fail_msg("rows of %d in %s: element %d is %g, not %g", n, mlxvk_dtype_name(kinds[type].dtype), i, (double)got[i], v);
        }
        for (mlxvk_array **p = (mlxvk_array *[]){ &a, &w, &b, &y, NULL }; *p; p++) mlxvk_array_free(**p);
    }
}

/* layer_norm of what is all the same is 0, and so is in short rows what equals the mean, where the mean is exact. */
static void at_the_mean(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32 };
    static const int sizes[] = { 1, 2, 64, 1024, 2048, 8192 };
    static float x[ODD_ROWS * 8192], got[ODD_ROWS * 8192];
    (void)state;
    for (int k = 0; k < (int)COUNT(dtypes) * (int)COUNT(sizes); k++) {
        const int n = sizes[k % (int)COUNT(sizes)];
        const mlxvk_dtype dtype = dtypes[k / (int)COUNT(sizes)];
        mlxvk_array y = { NULL }, a, none = { NULL };
        for (int i = 0; i < ODD_ROWS * n; i++)          /* the last row: 1 to 3 around 2, in pairs */
            x[i] = i / n < ODD_ROWS - 1 || n < 4 ? -1.7109375f * (float)(i / n) : (float)(i % 4 ? i % 4 : 2);
        a = array_of(device, MLXVK_FLOAT32, x, (int[]){ ODD_ROWS, n }, 2);
        OK(mlxvk_astype(&a, a, dtype, stream), stream);
        OK(mlxvk_fast_layer_norm(&y, a, none, none, 1e-5f, stream), stream);
        OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, stream), stream);
        OK(mlxvk_array_read(y, got, sizeof *got * (size_t)(ODD_ROWS * n), stream), stream);
        for (int i = 0; i < ODD_ROWS * n; i++) {
            bool mean = i / n < ODD_ROWS - 1 || n < 4 || (i % 2 == 0 && n <= 1024);
            if (mean && got[i] != 0)
                fail_msg("row %d of %d in %s: element %d is %g", i / n, n, mlxvk_dtype_name(dtype), i % n, (double)got[i]);
        }
        mlxvk_array_free(a);
        mlxvk_array_free(y);
    }
}

/* Reads y in `dtype` into `values` and frees it. */
static void read_as(mlxvk_array y, mlxvk_dtype dtype, void *values, size_t size)
{
    OK(mlxvk_astype(&y, y, dtype, stream), stream);
    OK(mlxvk_array_read(y, values, size, stream), stream);
    mlxvk_array_free(y);
}

/* Norms' results in bfloat16 are those in float32, rounded once, but for some of long rows below 2^-126, which are cut: zeros
 * of both signs, what is too large for being rounded by floats, infinities. Rows of pairs that add up to 0, so that
 * layer_norm has no mean to take away. */
static void rounded_once(void **state)
{
    static const float special[] = { 0, -0.0f, 0x1p120f, -0x1p113f, 0x1p-100f, 0x1.8p-127f, -0x1p-129f, INFINITY };
    static const int sizes[] = { 512, 2048, 8192 };
    static float x[ODD_ROWS * 8192], weight[8192], bias[8192], exact[ODD_ROWS * 8192];
    static uint16_t got[ODD_ROWS * 8192];
    struct rng random = { 37 };
    (void)state;
    for (int k = 0; k < 2 * 2 * (int)COUNT(sizes); k++) {
        const int n = sizes[k / 4];
        const bool layer = k & 1, odd = k & 2;          /* odd: with numbers that are not rounded as others are */
        mlxvk_array exact_y = { NULL }, y = { NULL }, a, w, b;
        for (int i = 0; i < ODD_ROWS * n; i += 2) x[i] = (float)random_int(&random, 1, 255) / 64, x[i + 1] = -x[i];
        for (int i = 0; i < n; i++) {
            weight[i] = (float)random_int(&random, -255, 255) / 128;
            bias[i] = i % 3 ? (float)random_int(&random, -255, 255) / 128 : 0;
            if (odd && random_int(&random, 0, n / 4) == 0) weight[i] = special[random_int(&random, 0, (int)COUNT(special) - 1)];
            else if (random_int(&random, 0, 9) == 0) weight[i] = special[i % 2];
        }
        a = array_of(device, MLXVK_FLOAT32, x, (int[]){ ODD_ROWS, n }, 2);
        w = array_of(device, MLXVK_FLOAT32, weight, &n, 1), b = array_of(device, MLXVK_FLOAT32, bias, &n, 1);
        for (int half = 0; half < 2; half++) {
            mlxvk_array *res = half ? &y : &exact_y;
            for (mlxvk_array **p = (mlxvk_array *[]){ &a, &w, &b, NULL }; *p && half; p++)
                OK(mlxvk_astype(*p, **p, MLXVK_BFLOAT16, stream), stream);
            if (layer) OK(mlxvk_fast_layer_norm(res, a, w, b, 1e-5f, stream), stream);
            else OK(mlxvk_fast_rms_norm(res, a, w, 1e-5f, stream), stream);
        }
        read_as(exact_y, MLXVK_FLOAT32, exact, sizeof *exact * (size_t)(ODD_ROWS * n));
        read_as(y, MLXVK_BFLOAT16, got, sizeof *got * (size_t)(ODD_ROWS * n));
        for (int i = 0; i < ODD_ROWS * n; i++)
            if (got[i] != (n > 1024 && (layer || i & 4) && fabsf(exact[i]) < 0x1p-126f ? (uint16_t)(bits_of_float(exact[i]) >> 16) : float_to_bf16(exact[i])))
                fail_msg("%s of %d: element %d, %.9g, is 0x%04x", layer ? "layer_norm" : "rms_norm", n, i, (double)exact[i], got[i]);
        for (mlxvk_array **p = (mlxvk_array *[]){ &a, &w, &b, NULL }; *p; p++) mlxvk_array_free(**p);
    }
}

/* Rows of bfloat16 give the same bits one by one and in every layout, where most results are too small to be normal numbers. */
static void small_shares(void **state)
{
    enum { ROWS_ALL = 3 };                              /* as many as check() looks at */
    static const int sizes[] = { 96, 512, 8192 };
    static float x[ROWS_ALL * 8192];
    struct rng random = { 39 };
    (void)state;
    for (int k = 0; k < (int)COUNT(sizes); k++) {
        const int n = sizes[k];
        mlxvk_array a;
        for (int i = 0; i < ROWS_ALL * n; i++) x[i] = i % n ? (float)random_int(&random, -96 * 64, -80 * 64) / 64 : 0;
        a = array_of(device, MLXVK_FLOAT32, x, (int[]){ ROWS_ALL, n }, 2);
        OK(mlxvk_astype(&a, a, MLXVK_BFLOAT16, stream), stream);
        check(SOFTMAX, a, "bfloat16");
        mlxvk_array_free(a);
    }
}

/* Within 0.51 of a unit of bfloat16's last place. */
static bool is_nearest(double want, float got)
{
    int exponent;
    frexp(want, &exponent);
    return fabs(want - (double)got) <= ldexp(0.51, exponent - 8);
}

/* Softmax's results in bfloat16 are the nearest ones. */
static void nearest_shares(void **state)
{
    static const int sizes[] = { 512, 2048, ODD_MOST };
    static float x[ODD_ROWS * ODD_MOST], got[ODD_ROWS * ODD_MOST];
    static double want[ODD_MOST];
    struct rng random = { 38 };
    (void)state;
    for (int k = 0; k < (int)COUNT(sizes); k++) {
        const int n = sizes[k];
        mlxvk_array y = { NULL }, a;
        for (int i = 0; i < ODD_ROWS * n; i++) x[i] = (float)random_int(&random, -128, 128) / 32;
        a = array_of(device, MLXVK_FLOAT32, x, (int[]){ ODD_ROWS, n }, 2);
        OK(mlxvk_astype(&a, a, MLXVK_BFLOAT16, stream), stream);
        OK(mlxvk_softmax_axis(&y, a, 1, true, stream), stream);
        read_as(y, MLXVK_FLOAT32, got, sizeof *got * (size_t)(ODD_ROWS * n));
        for (int i = 0; i < ODD_ROWS * n; i++) {
            if (i % n == 0) softmax_of(x + i, n, want);
            if (!is_nearest(want[i % n], got[i]))
                fail_msg("rows of %d: element %d is %.9g, not %.9g", n, i, (double)got[i], want[i % n]);
        }
        mlxvk_array_free(a);
    }
}

/* Softmax along an axis that is not the last has the bits of the same rows side by side: columns that are fours and others, at
 * even and odd places, of rows below each other that are no whole rounds of a thread's. */
static void shares_of_columns(void **state)
{
    static const int depths[] = { 1, 2, 7, 8, 9, 17, 300 }, widths[] = { 2, 4, 7, 8, 12, 260 };
    static const mlxvk_dtype types[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    (void)state;
    for (int i = 0; i < 3 * 2 * (int)COUNT(depths) * (int)COUNT(widths); i++) {
        const int depth = depths[i / 6 % (int)COUNT(depths)], width = widths[i / 6 / (int)COUNT(depths)], from = i / 3 % 2;
        const int size = 3 * depth * width;
        bool same = false;
        mlxvk_array pool = normals((int[]){ size + 1 }, 1, types[i % 3], (uint32_t)i + 1, stream), x = { NULL }, y = { NULL }, z = { NULL };
        OK(mlxvk_slice(&x, pool, (int[]){ from }, 1, (int[]){ from + size }, 1, (int[]){ 1 }, 1, stream), stream);
        OK(mlxvk_reshape(&x, x, (int[]){ 3, depth, width }, 3, stream), stream);
        OK(mlxvk_softmax_axis(&y, x, 1, true, stream), stream);
        OK(mlxvk_swapaxes(&z, x, 1, 2, stream), stream);
        own(&z);
        OK(mlxvk_softmax_axis(&z, z, 2, true, stream) || mlxvk_swapaxes(&z, z, 1, 2, stream), stream);
        OK(mlxvk_array_equal(&z, y, z, false, stream) || mlxvk_array_read(z, &same, 1, stream), stream);
        if (!same) fail_msg("3 x %d x %d %s from element %d on", depth, width, mlxvk_dtype_name(types[i % 3]), from);
        mlxvk_array_free(pool);
        mlxvk_array_free(x);
        mlxvk_array_free(y);
        mlxvk_array_free(z);
    }
}

/* ---- a CPU driver's ways and a GPU's give the same bits, wherever rows begin and end ---- */

enum way { WAY_SOFTMAX, WAY_RMS, WAY_LAYER, WAY_MAX, WAY_ARGMAX, WAY_CUMMAX, WAY_CUMSUM, WAY_EXP, WAY_BIAS, WAY_TAKE, WAYS };
static const char *const way_names[WAYS] = { "softmax", "rms_norm", "layer_norm", "max", "argmax", "cummax", "cumsum of integers",
                                             "exp", "adding a row", "take" };
enum { WAY_MOST = 1024 * 8193 + 8, WAY_WIDEST = 70001 };

static size_t by_way(const struct setting *on, enum way way, mlxvk_dtype dtype, const float *values, int rows, int width, int from,
                     uint8_t *out)
{
    mlxvk_stream s = on->stream;
    mlxvk_array x = array_of(on->device, MLXVK_FLOAT32, values, (int[]){ from + rows * width }, 1), y = { NULL }, w = { NULL };
    mlxvk_array at = array_of(on->device, MLXVK_INT32, (int[]){ rows - 1, 0, 1, 1, rows / 2 }, (int[]){ 5 }, 1);
    size_t n;
    OK(mlxvk_astype(&x, x, way == WAY_CUMSUM ? MLXVK_INT32 : dtype, s), s);
    OK(mlxvk_slice(&w, x, (int[]){ 0 }, 1, (int[]){ width }, 1, (int[]){ 1 }, 1, s), s);
    OK(mlxvk_slice(&x, x, (int[]){ from }, 1, (int[]){ from + rows * width }, 1, (int[]){ 1 }, 1, s), s);
    OK(mlxvk_reshape(&x, x, (int[]){ rows, width }, 2, s), s);
    switch (way) {
    case WAY_SOFTMAX: OK(mlxvk_softmax_axis(&y, x, 1, true, s), s); break;
    case WAY_RMS: OK(mlxvk_fast_rms_norm(&y, x, w, 1e-5f, s), s); break;
    case WAY_LAYER: OK(mlxvk_fast_layer_norm(&y, x, w, w, 1e-5f, s), s); break;
    case WAY_MAX: OK(mlxvk_max_axis(&y, x, 1, false, s), s); break;
    case WAY_ARGMAX: OK(mlxvk_argmax_axis(&y, x, 1, false, s), s); break;
    case WAY_CUMMAX: OK(mlxvk_cummax(&y, x, 1, true, true, s), s); break;
    case WAY_CUMSUM: OK(mlxvk_cumsum(&y, x, 1, false, true, s), s); break;
    case WAY_EXP: OK(mlxvk_exp(&y, x, s), s); break;
    case WAY_BIAS: OK(mlxvk_add(&y, x, w, s), s); break;
    default: OK(mlxvk_take_axis(&y, x, at, 0, s), s);
    }
    n = mlxvk_array_nbytes(y);
    OK(mlxvk_array_read(y, out, n, s), s);
    for (mlxvk_array **p = (mlxvk_array *[]){ &x, &y, &w, &at, NULL }; *p; p++) mlxvk_array_free(**p);
    return n;
}

/* Are a row's shares in bfloat16 the nearest ones? */
static bool all_nearest(const float *values, const uint16_t *got, int n)
{
    static float x[WAY_WIDEST];
    static double want[WAY_WIDEST];
    int far = 0;
    for (int i = 0; i < n; i++) x[i] = bf16_to_float(float_to_bf16(values[i]));
    softmax_of(x, n, want);
    for (int i = 0; i < n; i++) far += !is_nearest(want[i], bf16_to_float(got[i]));
    if (far) print_error("%d of %d results are not the nearest\n", far, n);
    return !far;
}

static bool same_bytes(const uint8_t *want, const uint8_t *got, size_t n)
{
    size_t first = 0, count = 0;
    for (size_t i = n; i-- > 0;) if (want[i] != got[i]) { first = i; count++; }
    if (count) print_error("%zu bytes of %zu differ, byte %zu first: 0x%02x, not 0x%02x\n", count, n, first, got[first], want[first]);
    return !count;
}

static void by_any_ways(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16 };
    /* What is longer than workgroups have threads for, if each held as much as of others, is held by more: of softmax alone. */
    static const struct { int rows, width, ways; } sizes[] = {
        { 5, 1, WAYS }, { 5, 7, WAYS }, { 33, 63, WAYS }, { 35, 127, WAYS }, { 35, 129, WAYS }, { 5, 257, WAYS }, { 1100, 1025, WAYS },
        { 5, 2049, WAYS }, { 3, 4095, WAYS }, { 3, 4097, WAYS }, { 3, 8193, WAYS }, { 2, 32767, WAY_SOFTMAX + 1 },
        { 64, 32769, WAY_SOFTMAX + 1 }, { 64, 32772, WAY_SOFTMAX + 1 }, { 64, 65536, WAY_SOFTMAX + 1 },
        { 64, 70001, WAY_SOFTMAX + 1 },
        { 1024, 8193, WAY_SOFTMAX + 1 } };
    static float x[WAY_MOST];
    static _Alignas(4) uint8_t cpu[4 * WAY_MOST], gpu[4 * WAY_MOST];
    struct setting one = start("MLX_VK_TUNING=1"), other = start("MLX_VK_TUNING=3");
    struct rng random = { 43 };
    int failed = 0;
    (void)state;
    for (int i = 0; i < WAY_MOST; i++) x[i] = (float)random_int(&random, -1000, 1000) / 128;
    for (int k = 0; k < WAYS * (int)COUNT(dtypes) * (int)COUNT(sizes); k++) {
        const enum way way = (enum way)(k % WAYS);
        const mlxvk_dtype dtype = dtypes[k / WAYS % (int)COUNT(dtypes)];
        const int size = k / WAYS / (int)COUNT(dtypes), rows = sizes[size].rows, width = sizes[size].width;
        if ((int)way >= sizes[size].ways) continue;
        for (int from = 0; from < 6; from += 5) {
            size_t n = by_way(&one, way, dtype, x, rows, width, from, cpu);
            memset(gpu, 0xa5, n);
            assert_int_equal(by_way(&other, way, dtype, x, rows, width, from, gpu), n);
            bool good = same_bytes(cpu, gpu, n);
            if (way == WAY_SOFTMAX && dtype == MLXVK_BFLOAT16) {
                const int last = (rows - 1) * width;
                good &= all_nearest(x + from + last, (const uint16_t *)(const void *)cpu + last, width);
                good &= all_nearest(x + from + last, (const uint16_t *)(const void *)gpu + last, width);
            }
            if (good) continue;
            failed++;
            print_error("%s of %d x %d in %s, from element %d on\n", way_names[way], rows, width, mlxvk_dtype_name(dtype), from);
        }
    }
    finish(&other);
    finish(&one);
    assert_int_equal(failed, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(same_bits), cmocka_unit_test(many_rows), cmocka_unit_test(many_long_rows),
                                        cmocka_unit_test(several_axes),
                                        cmocka_unit_test(bound_in_ranges), cmocka_unit_test(long_wide_arguments),
                                        cmocka_unit_test(wide_arguments_in_parts), cmocka_unit_test(rows_beyond_a_binding),
                                        cmocka_unit_test(complex_products), cmocka_unit_test(not_only_numbers),
                                        cmocka_unit_test(far_from_zero), cmocka_unit_test(at_the_mean), cmocka_unit_test(rounded_once),
                                        cmocka_unit_test(nearest_shares), cmocka_unit_test(small_shares),
                                        cmocka_unit_test(shares_of_columns),
                                        cmocka_unit_test(by_any_ways) };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_group("rows", tests, set_up_poisoned, tear_down);
}
