/* Reductions, arg reductions, softmax and scans against plain loops: random shapes, axes, dtypes and views, and the sizes
 * at which the library cuts a reduction into parts. Values are small whole numbers, so that sums are exact. */
#include <math.h>
#include <stdio.h>
#include "support.h"

enum op { SUM, PROD, MAX, MIN, MEAN, ALL, ANY, LSE, ARGMAX, ARGMIN, SOFTMAX, CUMSUM, CUMPROD, CUMMAX, CUMMIN, LOGCUMSUMEXP, OPS };
static const char *const names[OPS] = { "sum", "prod", "max", "min", "mean", "all", "any", "logsumexp", "argmax", "argmin",
                                        "softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp" };

typedef int (*axes_function)(mlxvk_array *, mlxvk_array, const int *, size_t, bool, mlxvk_stream);
typedef int (*scan_function)(mlxvk_array *, mlxvk_array, int, bool, bool, mlxvk_stream);
static const axes_function reductions[] = { mlxvk_sum_axes, mlxvk_prod_axes, mlxvk_max_axes, mlxvk_min_axes, mlxvk_mean_axes,
                                            mlxvk_all_axes, mlxvk_any_axes, mlxvk_logsumexp_axes };
static const scan_function scans[] = { mlxvk_cumsum, mlxvk_cumprod, mlxvk_cummax, mlxvk_cummin, mlxvk_logcumsumexp };

/* ---- the operand as numbers ---- */

/* What int32 values become in a dtype. */
static double as_number(mlxvk_dtype dtype, int32_t value)
{
    unsigned char bytes[16];
    store_number(dtype, bytes, 0, value);
    return load_number(dtype, bytes, 0).re;
}

static double *numbers_of(const struct host *h, mlxvk_dtype dtype)
{
    double *x = malloc((host_size(h) + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < host_size(h); i++) x[i] = as_number(dtype, h->data[i]);
    return x;
}

/* The position in the result (kept axes) of each element in turn. */
static size_t kept_position(const struct host *h, size_t index, uint32_t mask)
{
    size_t at = 0, step = 1;
    for (int i = h->ndim - 1; i >= 0; i--) {
        size_t c = index % (size_t)h->shape[i];
        index /= (size_t)h->shape[i];
        if (mask >> i & 1) continue;
        at += c * step;
        step *= (size_t)h->shape[i];
    }
    return at;
}

static size_t kept_size(const struct host *h, uint32_t mask)
{
    size_t n = 1;
    for (int i = 0; i < h->ndim; i++) if (!(mask >> i & 1)) n *= (size_t)h->shape[i];
    return n;
}

/* ---- the reference ---- */

static double start_of(enum op op)
{
    switch (op) {
    case PROD: case CUMPROD: case ALL: return 1;
    case MAX: case CUMMAX: return -INFINITY;
    case MIN: case CUMMIN: return INFINITY;
    default: return 0;
    }
}

static double step_of(enum op op, double a, double x)
{
    switch (op) {
    case PROD: case CUMPROD: return a * x;
    case MAX: case CUMMAX: return fmax(a, x);
    case MIN: case CUMMIN: return fmin(a, x);
    case ALL: return a != 0 && x != 0;
    case ANY: return a != 0 || x != 0;
    case LSE: case SOFTMAX: case LOGCUMSUMEXP: return a + exp(x);      /* small values: no maximum needed */
    default: return a + x;
    }
}

static double *reduce(const struct host *h, const double *x, enum op op, uint32_t mask)
{
    size_t n = kept_size(h, mask), count = n ? host_size(h) / n : 0;
    double *r = malloc((n + 1) * sizeof *r);
    assert_non_null(r);
    for (size_t i = 0; i < n; i++) r[i] = start_of(op);
    for (size_t i = 0; i < host_size(h); i++) {
        size_t k = kept_position(h, i, mask);
        r[k] = step_of(op, r[k], x[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (op == MEAN) r[i] /= (double)count;
        if (op == LSE) r[i] = log(r[i]);
    }
    return r;
}

/* ---- comparing ---- */

static void expect(mlxvk_array got, mlxvk_dtype dtype, const double *want, size_t n, const char *what)
{
    unsigned char *data = malloc(n * bytes_of(dtype) + 1);
    double tolerance = dtype == MLXVK_BFLOAT16 ? 8e-3 : dtype == MLXVK_FLOAT16 ? 1e-3 : dtype_is_inexact(dtype) ? 1e-5 : 0;
    assert_non_null(data);
    assert_int_equal(mlxvk_array_dtype(got), dtype);
    assert_int_equal(mlxvk_array_size(got), n);
    OK(mlxvk_array_read(got, data, n * bytes_of(dtype), stream), stream);
    for (size_t i = 0; i < n; i++) {
        double g = load_number(dtype, data, i).re;
        if (g == want[i] || fabs(g - want[i]) <= tolerance * fmax(1, fabs(want[i]))) continue;
        print_error("%s: element %zu of %zu is %g and not %g\n", what, i, n, g, want[i]);
        fail();
    }
    free(data);
}

static const char *describe(enum op op, mlxvk_dtype dtype, const struct host *h, uint32_t mask, mlxvk_array a)
{
    static char text[256];
    int n = snprintf(text, sizeof text, "%s %s (", names[op], mlxvk_dtype_name(dtype));
    for (int i = 0; i < h->ndim; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%d/%lld", i ? ", " : "", h->shape[i],
                      (long long)mlxvk_array_strides(a)[i]);
    snprintf(text + n, sizeof text - (size_t)n, ") axes %x", mask);
    return text;
}

static mlxvk_dtype widened(enum op op, mlxvk_dtype t)
{
    if (op == ALL || op == ANY) return MLXVK_BOOL;
    if (op == MEAN || op == LSE || op == LOGCUMSUMEXP) return dtype_is_inexact(t) ? t : MLXVK_FLOAT32;
    if (op == CUMSUM) return t == MLXVK_BOOL ? MLXVK_INT32 : t;
    if ((op != SUM && op != PROD) || dtype_is_inexact(t) || bytes_of(t) == 8) return t;
    return t == MLXVK_BOOL || dtype_is_signed(t) ? MLXVK_INT32 : MLXVK_UINT32;
}

/* ---- checks of one operation on one operand ---- */

static void check_reduction(const struct host *h, mlxvk_array a, mlxvk_dtype dtype, enum op op, uint32_t mask, bool keepdims)
{
    int axes[MLXVK_MAX_NDIM];
    size_t count = 0;
    mlxvk_array r = { NULL };
    double *x = numbers_of(h, dtype), *want = reduce(h, x, op, mask);
    for (int i = h->ndim - 1; i >= 0; i--) if (mask >> i & 1) axes[count++] = i % 2 ? i : i - h->ndim;
    OK(reductions[op](&r, a, axes, count, keepdims, stream), stream);
    assert_int_equal(mlxvk_array_ndim(r), keepdims ? h->ndim : h->ndim - (int)count);
    expect(r, widened(op, dtype), want, kept_size(h, mask), describe(op, dtype, h, mask, a));
    mlxvk_array_free(r);
    free(x);
    free(want);
}

static void check_arg(const struct host *h, mlxvk_array a, mlxvk_dtype dtype, enum op op, int axis)
{
    uint32_t mask = axis < 0 ? (1u << h->ndim) - 1 : 1u << axis;
    size_t n = kept_size(h, mask), inner = 1;
    mlxvk_array r = { NULL };
    double *x = numbers_of(h, dtype), *best = malloc(n * sizeof *best), *want = malloc(n * sizeof *want);
    assert_true(best && want);
    for (size_t i = 0; i < n; i++) want[i] = -1;
    for (int i = h->ndim - 1; axis >= 0 && i > axis; i--) inner *= (size_t)h->shape[i];
    for (size_t i = 0; i < host_size(h); i++) {
        size_t k = kept_position(h, i, mask), at = axis < 0 ? i : i / inner % (size_t)h->shape[axis];
        if (want[k] >= 0 && !(op == ARGMAX ? x[i] > best[k] : x[i] < best[k])) continue;
        best[k] = x[i];
        want[k] = (double)at;
    }
    if (axis < 0) OK((op == ARGMAX ? mlxvk_argmax : mlxvk_argmin)(&r, a, false, stream), stream);
    else OK((op == ARGMAX ? mlxvk_argmax_axis : mlxvk_argmin_axis)(&r, a, axis, true, stream), stream);
    expect(r, MLXVK_UINT32, want, n, describe(op, dtype, h, mask, a));
    mlxvk_array_free(r);
    free(x);
    free(best);
    free(want);
}

static void check_softmax(const struct host *h, mlxvk_array a, mlxvk_dtype dtype, uint32_t mask)
{
    int axes[MLXVK_MAX_NDIM];
    size_t count = 0, n = host_size(h);
    mlxvk_array r = { NULL };
    double *x = numbers_of(h, dtype), *sums = reduce(h, x, SOFTMAX, mask);
    for (int i = 0; i < h->ndim; i++) if (mask >> i & 1) axes[count++] = i;
    for (size_t i = 0; i < n; i++) x[i] = exp(x[i]) / sums[kept_position(h, i, mask)];
    OK(mlxvk_softmax_axes(&r, a, axes, count, true, stream), stream);
    expect(r, dtype, x, n, describe(SOFTMAX, dtype, h, mask, a));
    mlxvk_array_free(r);
    free(x);
    free(sums);
}

/* Integers wrap to the dtype; exclusive scans of extrema begin with its last value. */
static void check_scan(const struct host *h, mlxvk_array a, mlxvk_dtype dtype, enum op op, int axis, bool reverse, bool inclusive)
{
    size_t n = host_size(h), inner = 1, length = (size_t)h->shape[axis];
    mlxvk_dtype to = widened(op, dtype);
    mlxvk_array r = { NULL };
    double *x = numbers_of(h, dtype), *want = malloc((n + 1) * sizeof *want);
    assert_non_null(want);
    for (int i = axis + 1; i < h->ndim; i++) inner *= (size_t)h->shape[i];
    for (size_t row = 0; row < n / length; row++) {
        double s = start_of(op);
        size_t base = row / inner * length * inner + row % inner;
        for (size_t i = 0; i < length; i++) {
            size_t at = base + (reverse ? length - 1 - i : i) * inner;
            double next = step_of(op, s, x[at]);
            want[at] = inclusive ? next : s;
            if (op == LOGCUMSUMEXP) want[at] = log(want[at]);
            if (!dtype_is_inexact(to) && isfinite(want[at])) want[at] = as_number(to, (int32_t)want[at]);
            if (!dtype_is_inexact(to) && isinf(want[at])) {
                int bits = 8 * (int)bytes_of(to) - dtype_is_signed(to);
                double top = to == MLXVK_BOOL ? 1 : ldexp(1, bits) - 1, bottom = dtype_is_signed(to) ? -ldexp(1, bits) : 0;
                want[at] = op == CUMMAX ? bottom : top;
            }
            s = next;
        }
    }
    OK(scans[op - CUMSUM](&r, a, axis, reverse, inclusive, stream), stream);
    expect(r, to, want, n, describe(op, dtype, h, 1u << axis, a));
    mlxvk_array_free(r);
    free(x);
    free(want);
}

/* ---- operands ---- */

static const mlxvk_dtype types[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_INT32, MLXVK_INT64, MLXVK_INT8, MLXVK_FLOAT16, MLXVK_BOOL,
                                     MLXVK_UINT16, MLXVK_UINT64, MLXVK_INT16, MLXVK_UINT8, MLXVK_UINT32, MLXVK_COMPLEX64 };

static mlxvk_array upload(struct host *h, struct rng *r, mlxvk_dtype dtype, int range)
{
    mlxvk_array a, b = { NULL };
    bool negative = dtype_is_signed(dtype) || dtype_is_inexact(dtype);
    for (size_t i = 0; i < host_size(h); i++) h->data[i] = random_int(r, negative ? -range : 0, dtype == MLXVK_BOOL ? 1 : range);
    a = host_upload(h, device);
    OK(mlxvk_astype(&b, a, dtype, stream), stream);
    mlxvk_array_free(a);
    return b;
}

static void check_any(struct rng *r, const struct host *h, mlxvk_array a, mlxvk_dtype dtype, enum op op)
{
    uint32_t all = (1u << h->ndim) - 1, mask = (uint32_t)random_int(r, 1, (int)all);
    int axis = random_int(r, 0, h->ndim - 1);
    if (op <= LSE) check_reduction(h, a, dtype, op, mask, random_chance(r, 50));
    else if (op <= ARGMIN) check_arg(h, a, dtype, op, random_chance(r, 20) ? -1 : axis);
    else if (op == SOFTMAX) check_softmax(h, a, dtype, mask);
    else check_scan(h, a, dtype, op, axis, random_chance(r, 50), random_chance(r, 50));
}

static bool takes(enum op op, mlxvk_dtype dtype)
{
    bool complex = dtype == MLXVK_COMPLEX64;
    if (op == SOFTMAX) return dtype_is_inexact(dtype) && !complex;
    return !(complex && (op == ARGMAX || op == ARGMIN));
}

static void random_views(void **state)
{
    struct rng r = { 2024 };
    (void)state;
    for (int k = 0; k < 320; k++) {
        enum op op = (enum op)(k % OPS);
        mlxvk_dtype dtype = types[random_int(&r, 0, COUNT(types) - 1)];
        struct host h = host_random(&r, 5, 12);
        mlxvk_array a;
        if (!takes(op, dtype)) dtype = MLXVK_FLOAT32;
        a = upload(&h, &r, dtype, op == PROD || op == CUMPROD ? 1 : 3);
        for (int v = random_int(&r, 0, 3); v > 0; v--) random_view(&r, &a, &h, 6, 20000, stream);
        if (h.ndim && host_size(&h)) check_any(&r, &h, a, dtype, op);
        mlxvk_array_free(a);
        host_free(&h);
    }
}

/* Long rows, long columns, and both in one operand. */
static void cut_into_parts(void **state)
{
    static const int shapes[][3] = { { 1, 1, 100003 }, { 3, 1, 40000 }, { 1, 70001, 1 }, { 1, 30011, 3 }, { 2, 9000, 4 }, { 40, 1, 9001 },
                                     { 1, 3000, 32 }, { 600, 1, 600 }, { 300, 17, 20 }, { 1, 500, 513 } };
    struct rng r = { 7 };
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int op = 0; op < OPS; op++) {
            mlxvk_dtype dtype = types[i % 5];
            struct host h = host_new(shapes[i], 3);
            mlxvk_array a;
            if (!takes((enum op)op, dtype)) dtype = MLXVK_FLOAT16;
            a = upload(&h, &r, dtype, op == PROD || op == CUMPROD ? 1 : 2);
            int axis = shapes[i][2] > shapes[i][1] ? 2 : 1;
            if (op <= LSE) check_reduction(&h, a, dtype, (enum op)op, op % 2 ? 1u << axis : 7, false);
            else if (op <= ARGMIN) check_arg(&h, a, dtype, (enum op)op, op == ARGMAX ? axis : -1);
            else if (op == SOFTMAX) check_softmax(&h, a, dtype, 1u << axis);
            else check_scan(&h, a, dtype, (enum op)op, axis, op % 2, i % 2);
            mlxvk_array_free(a);
            host_free(&h);
        }
}

/* Rows that fit registers, by vectors of all sizes; NaN and infinities in them. */
static void softmax_rows(void **state)
{
    static const int lengths[] = { 8, 24, 72, 260, 1000, 4096, 5000, 8192, 16392 };
    struct rng r = { 9 };
    (void)state;
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (int d = 0; d < 2; d++) {
            struct host h = host_new((int[]){ 3, lengths[i] }, 2);
            mlxvk_array a = upload(&h, &r, d ? MLXVK_FLOAT32 : MLXVK_BFLOAT16, 3);
            check_softmax(&h, a, d ? MLXVK_FLOAT32 : MLXVK_BFLOAT16, 2);
            mlxvk_array_free(a);
            host_free(&h);
        }
    for (int k = 0; k < 3; k++) {
        float values[2 * 64], got[2 * 64];
        mlxvk_array a;
        for (int i = 0; i < 2 * 64; i++) values[i] = k == 2 && i < 64 ? -INFINITY : (float)(i % 5);
        values[7] = k == 0 ? NAN : k == 1 ? INFINITY : -INFINITY;
        values[70] = -INFINITY;
        a = floats(device, values, (int[]){ 2, 64 }, 2);
        OK(mlxvk_astype(&a, a, MLXVK_BFLOAT16, stream), stream);
        OK(mlxvk_softmax_axis(&a, a, 1, true, stream), stream);
        OK(mlxvk_astype(&a, a, MLXVK_FLOAT32, stream), stream);
        OK(mlxvk_array_read(a, got, sizeof got, stream), stream);
        for (int i = 0; i < 2 * 64; i++) assert_int_equal(!!isnan(got[i]), i < 64);
        assert_true(got[70] == 0);
        mlxvk_array_free(a);
    }
}

/* NaN stays in all that comes after it, in half types too, where the golden data is of no use. */
static void nan_stays(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    (void)state;
    for (size_t i = 0; i < COUNT(dtypes); i++)
        for (int reverse = 0; reverse < 2; reverse++)
            for (int low = 0; low < 2; low++) {
                const float values[] = { 1, NAN, 2, 0, 3 };
                float got[5];
                mlxvk_array a = floats(device, values, (int[]){ 5 }, 1);
                OK(mlxvk_astype(&a, a, dtypes[i], stream), stream);
                OK((low ? mlxvk_cummin : mlxvk_cummax)(&a, a, 0, reverse, true, stream), stream);
                OK(mlxvk_astype(&a, a, MLXVK_FLOAT32, stream), stream);
                OK(mlxvk_array_read(a, got, sizeof got, stream), stream);
                for (int j = 0; j < 5; j++) assert_int_equal(!!isnan(got[j]), reverse ? j <= 1 : j >= 1);
                mlxvk_array_free(a);
            }
}

/* Axes that repeat between axes that do not: each is a row of its own, more of them than the shader walks. */
static void many_that_repeat(void **state)
{
    static const int from[] = { 5, 1, 5, 1, 5, 1 }, to[] = { 5, 5, 5, 5, 5, 5 }, axes[] = { 0, 1, 2, 3, 4 };
    mlxvk_array x, wide = mlxvk_array_new(), y = mlxvk_array_new();
    float data[125], got[5], want = 0;
    (void)state;
    for (int i = 0; i < 125; i++) want += 25 * (data[i] = (float)(i * 7 % 23) - 9);
    x = floats(device, data, from, 6);
    OK(mlxvk_broadcast_to(&wide, x, to, 6, stream), stream);
    OK(mlxvk_sum_axes(&y, wide, axes, 5, false, stream), stream);
    OK(mlxvk_array_read(y, got, sizeof got, stream), stream);
    for (int i = 0; i < 5; i++) assert_float_equal(got[i], want, 0);
    mlxvk_array_free(x);
    mlxvk_array_free(wide);
    mlxvk_array_free(y);
}

/* ---- parts that the last workgroup joins ---- */

enum { JOINED_OPS = 8, JOINED_ROWS = 130 };
enum seen { ALL_OF_IT, FROM_SECOND, BACKWARDS, WITH_GAPS, EVERY_OTHER_ROW, TURNED, IN_BINDINGS };
static const struct joined_case {
    mlxvk_dtype dtype;
    int rows, n;
    enum seen seen;
    float special;                                   /* written here and there, and everywhere in the last row */
    int ops;                                         /* the first of them; 64-bit integers are not cut by all */
    bool joins;
} joined_cases[] = {
    { MLXVK_FLOAT32, 1, 4097, ALL_OF_IT, 0, 8, true }, { MLXVK_BFLOAT16, 1, 151936, ALL_OF_IT, 0, 8, true },
    { MLXVK_FLOAT16, 3, 70001, ALL_OF_IT, 0, 3, true }, { MLXVK_FLOAT32, 1, 1 << 20, ALL_OF_IT, 0, 3, true },
    { MLXVK_FLOAT32, 60, 8192, ALL_OF_IT, 0, 3, true }, { MLXVK_UINT16, 1, 1 << 22, ALL_OF_IT, 0, 2, true },
    { MLXVK_INT8, 1, 100000, ALL_OF_IT, 0, 8, true }, { MLXVK_INT32, 2, 70004, ALL_OF_IT, 0, 2, true },
    { MLXVK_BOOL, 1, 5000, ALL_OF_IT, 0, 2, true }, { MLXVK_UINT8, 5, 4999, FROM_SECOND, 0, 2, true },
    { MLXVK_UINT32, 1, 9000, BACKWARDS, 0, 2, true }, { MLXVK_INT16, 1, 9000, WITH_GAPS, 0, 2, true },
    { MLXVK_INT64, 2, 9000, FROM_SECOND, 0, 1, true }, { MLXVK_COMPLEX64, 2, 9001, ALL_OF_IT, 0, 1, true },
    { MLXVK_FLOAT32, 3, 5003, FROM_SECOND, 0, 3, true }, { MLXVK_BFLOAT16, 3, 9001, BACKWARDS, 0, 3, true },
    { MLXVK_FLOAT16, 2, 4999, WITH_GAPS, 0, 3, true }, { MLXVK_BFLOAT16, 4, 8191, EVERY_OTHER_ROW, 0, 3, true },
    { MLXVK_FLOAT32, 2, 8195, ALL_OF_IT, NAN, 5, true }, { MLXVK_BFLOAT16, 3, 70001, ALL_OF_IT, NAN, 3, true },
    { MLXVK_FLOAT32, 3, 8195, ALL_OF_IT, -INFINITY, 5, true }, { MLXVK_FLOAT16, 2, 70001, ALL_OF_IT, INFINITY, 3, true },
    /* more rows than counters, more parts than there is room for, nothing to join, columns, rows that are not bound whole */
    { MLXVK_FLOAT32, 129, 8192, ALL_OF_IT, 0, 3, false }, { MLXVK_FLOAT32, 128, 9 * 4096, ALL_OF_IT, 0, 3, false },
    { MLXVK_FLOAT32, 3, 4096, ALL_OF_IT, 0, 3, false }, { MLXVK_FLOAT32, 3, 1 << 16, TURNED, 0, 3, false },
    { MLXVK_FLOAT32, 2, 40000, IN_BINDINGS, 0, 3, false },
};

/* What a case reduces, as rows of numbers of which many are alike. */
static mlxvk_array rows_of(const struct joined_case *c, mlxvk_device d, mlxvk_stream s)
{
    int high[] = { c->rows * (1 + (c->seen == EVERY_OTHER_ROW)),
                   c->n * (1 + (c->seen == WITH_GAPS)) + (c->seen == FROM_SECOND) };
    int low[] = { 0, c->seen == FROM_SECOND || c->seen == WITH_GAPS }, step[] = { 1, 1 + (c->seen == WITH_GAPS) };
    float *values = malloc((size_t)high[0] * (size_t)high[1] * sizeof *values);
    mlxvk_array x;
    for (int i = 0; i < high[0]; i++)
        for (int k = 0; k < high[1]; k++) {
            bool here = c->special != 0 && (i == high[0] - 1 || k % 4099 == 17);
            values[i * high[1] + k] = here ? c->special : (float)((uint32_t)(i * 77 + k) * 40503u % 1009u) / 8;
        }
    x = floats(d, values, high, 2);
    free(values);
    OK(mlxvk_astype(&x, x, c->dtype, s), s);
    if (c->seen == TURNED) {
        OK(mlxvk_reshape(&x, x, (int[]){ c->n, c->rows }, 2, s), s);
        OK(mlxvk_transpose(&x, x, s), s);
    }
    if (c->seen == EVERY_OTHER_ROW) step[0] = 2;
    if (c->seen == BACKWARDS) { low[1] = -1; high[1] = -c->n - 1; step[1] = -1; }
    if (c->seen > ALL_OF_IT && c->seen < TURNED) OK(mlxvk_slice(&x, x, low, 2, high, 2, step, 2, s), s);
    assert_int_equal(mlxvk_array_dim(x, 0), c->rows);
    assert_int_equal(mlxvk_array_dim(x, 1), c->n);
    OK(mlxvk_array_eval(x), s);
    return x;
}

static int joined_op(int op, mlxvk_array *y, mlxvk_array x, mlxvk_stream s)
{
    switch (op) {
    case 0: return mlxvk_sum_axis(y, x, 1, true, s);
    case 1: return mlxvk_argmax_axis(y, x, 1, true, s);
    case 2: return mlxvk_logsumexp_axis(y, x, 1, true, s);
    case 3: return mlxvk_argmin_axis(y, x, 1, true, s);
    case 4: return mlxvk_max_axis(y, x, 1, true, s);
    case 5: return mlxvk_prod_axis(y, x, 1, true, s);
    case 6: return mlxvk_any_axis(y, x, 1, true, s);
    default: return mlxvk_mean_axis(y, x, 1, true, s);
    }
}

/* The results of the case's operations on rows, one behind the other, and their dispatches each. */
static size_t join(const char *gates, const struct joined_case *c, unsigned char *bits, uint64_t *dispatches)
{
    mlxvk_device d = open_device(gates);
    mlxvk_stream s = open_stream(d);
    mlxvk_array x = rows_of(c, d, s), y = mlxvk_array_new();
    size_t used = 0;
    for (int op = 0; op < c->ops; op++) {
        mlxvk_reset_stats(d);
        OK(joined_op(op, &y, x, s), s);
        OK(mlxvk_array_eval(y), s);
        dispatches[op] = stats_of(d).dispatches;
        OK(mlxvk_array_read(y, bits + used, mlxvk_array_nbytes(y), s), s);
        used += mlxvk_array_nbytes(y);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    return used;
}

/* One dispatch where there were two, and the same bits. */
static void joined_parts(void **state)
{
    static unsigned char on[JOINED_OPS * JOINED_ROWS * 8], off[JOINED_OPS * JOINED_ROWS * 8];
    (void)state;
    for (size_t i = 0; i < COUNT(joined_cases); i++) {
        const struct joined_case *c = &joined_cases[i];
        uint64_t one[JOINED_OPS] = { 0 }, two[JOINED_OPS] = { 0 };
        bool cut = c->seen == IN_BINDINGS;
        size_t n = join(cut ? "MLX_VK_ENABLE_REDUCE_JOIN=2 MLX_VK_MAX_BINDING_RANGE=65536" : "MLX_VK_ENABLE_REDUCE_JOIN=2",
                        c, on, one);
        assert_int_equal(n, join(cut ? "MLX_VK_ENABLE_REDUCE_JOIN=0 MLX_VK_MAX_BINDING_RANGE=65536"
                                     : "MLX_VK_ENABLE_REDUCE_JOIN=0", c, off, two));
        for (size_t k = 0; k < n; k++)
            if (on[k] != off[k]) fail_msg("case %zu: byte %zu of all results is %u, and %u apart", i, k, on[k], off[k]);
        for (int op = 0; op < JOINED_OPS; op++)
            if (one[op] + (c->joins && two[op]) != two[op])
                fail_msg("case %zu, operation %d: %d dispatches, and %d apart", i, op, (int)one[op], (int)two[op]);
    }
}

/* Rows that are joined one after the other need no barrier between them but where they share counters, and find zeros in
 * these; so do windows that come again, while the last ones still run. */
static void joined_in_a_row(void **state)
{
    enum { ROWS_EACH = 40, WINDOWS = 6 };
    struct setting t = start("MLX_VK_ENABLE_REDUCE_JOIN=2");
    mlxvk_array x[ROWS_EACH], sum[WINDOWS][ROWS_EACH];
    const float one = 1;
    mlxvk_stats stats;
    float got;
    (void)state;
    for (int i = 0; i < ROWS_EACH; i++) {
        mlxvk_array value = array_of(t.device, MLXVK_FLOAT32, &one, NULL, 0);
        x[i] = mlxvk_array_new();
        OK(mlxvk_full(&x[i], (int[]){ 5000 + i }, 1, value, MLXVK_FLOAT32, t.stream), t.stream);
        OK(mlxvk_array_eval(x[i]), t.stream);
        mlxvk_array_free(value);
    }
    for (int w = 0; w < WINDOWS; w++) {
        OK(mlxvk_synchronize(t.stream), t.stream);
        mlxvk_reset_stats(t.device);
        for (int k = 0; k < 1 + (w > 2); k++)        /* the last windows without a wait */
            for (int i = 0; i < ROWS_EACH; i++) {
                mlxvk_array *y = &sum[w][i];
                if (!k) *y = mlxvk_array_new();
                OK(mlxvk_sum(y, x[i], false, t.stream), t.stream);
                if (i == ROWS_EACH - 1) OK(mlxvk_finalize(t.stream), t.stream);
            }
        OK(mlxvk_synchronize(t.stream), t.stream);
        stats = stats_of(t.device);
        assert_int_equal(stats.dispatches, (w > 2 ? 2 : 1) * ROWS_EACH);
        assert_true(stats.barriers > 0 && stats.barriers < 10);
    }
    assert_true(stats.replayed > 0);
    for (int w = 0; w < WINDOWS; w++)
        for (int i = 0; i < ROWS_EACH; i++) {
            OK(mlxvk_array_read(sum[w][i], &got, sizeof got, t.stream), t.stream);
            assert_true(got == (float)(5000 + i));
            mlxvk_array_free(sum[w][i]);
        }
    for (int i = 0; i < ROWS_EACH; i++) mlxvk_array_free(x[i]);
    finish(&t);
}

/* ---- rows in any order: what they hold, where they begin ---- */

enum { FREE_ROWS = 5, FREE_MOST = 1100 };

/* Bits of dtypes of four bytes: both zeros, infinities, NaN and the smallest; those of smaller floats are their upper ones. */
static void fill_special(mlxvk_dtype dtype, unsigned char *bytes, size_t size, int count, bool nan, struct rng *r)
{
    static const uint32_t floats_of[] = { 0, 0x80000000u, 0x3f800000u, 0xbf800000u, 0x7f7f0000u, 0xff7f0000u, 0x00010000u,
                                          0x80010000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u };
    static const uint32_t f16_of[] = { 0, 0x8000, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 1, 0x8001, 0x7c00, 0xfc00, 0x7e00, 0xfe00 };
    bool f16 = dtype == MLXVK_FLOAT16, integer = !f16 && dtype != MLXVK_FLOAT32 && dtype != MLXVK_BFLOAT16;
    uint32_t kinds = nan ? 12 : 10, most = (uint32_t)random_bits(r) % kinds + 1;          /* rows of few kinds, too: ties, nothing but the worst */
    for (int i = 0; i < count; i++) {
        uint32_t k = (uint32_t)random_bits(r) % most, bits = f16 ? f16_of[k] : floats_of[k] >> (dtype == MLXVK_BFLOAT16 ? 16 : 0);
        if (integer) bits = k < 6 ? (uint32_t[]){ 0, ~0u, 1, 0x80808080u, 0x7f7f7f7fu, 0x80000000u }[k] : (uint32_t)random_bits(r);
        memcpy(bytes + (size_t)i * size, &bits, size);
    }
}

static double special_of(enum op op, mlxvk_dtype dtype, const unsigned char *row, int n)
{
    bool high = op == MAX || op == ARGMAX;
    double best = high ? -INFINITY : INFINITY, sum = 0;
    int at = 0, numbers = 0;
    for (int i = 0; i < n; i++) {
        double x = load_number(dtype, row, (size_t)i).re;
        sum += x;
        numbers += !isnan(x);
        if (high ? x > best : x < best) best = x, at = i;
    }
    return op == SUM ? sum : op == ARGMAX || op == ARGMIN ? at : numbers < n ? NAN : best;
}

static void check_special(enum op op, mlxvk_array a, mlxvk_dtype dtype, const unsigned char *bytes, size_t step, int n)
{
    mlxvk_array y = { NULL };
    if (op == ARGMAX || op == ARGMIN) OK((op == ARGMAX ? mlxvk_argmax_axis : mlxvk_argmin_axis)(&y, a, 1, false, stream), stream);
    else OK(reductions[op](&y, a, (int[]){ 1 }, 1, false, stream), stream);
    unsigned char got[8 * FREE_ROWS];
    OK(mlxvk_array_read(y, got, mlxvk_array_nbytes(y), stream), stream);
    for (int row = 0; row < FREE_ROWS; row++) {
        double x = special_of(op, dtype, bytes + (size_t)row * step, n), z = load_number(mlxvk_array_dtype(y), got, (size_t)row).re;
        bool same = op == SUM ? fmod(x - z, 4294967296.0) == 0 : isnan(x) ? isnan(z) : x == z;
        if (!same) fail_msg("%s of dtype %d, row %d of %d elements: %g and not %g", names[op], (int)dtype, row, n, z, x);
    }
    mlxvk_array_free(y);
}

/* The largest, the smallest, where they are, and sums of integers, by packs of 16 bytes that rows share with others. */
static void in_any_order(void **state)
{
    static const struct { mlxvk_dtype dtype; size_t size; } types[] = {
        { MLXVK_FLOAT32, 4 }, { MLXVK_FLOAT16, 2 }, { MLXVK_BFLOAT16, 2 }, { MLXVK_UINT8, 1 }, { MLXVK_INT8, 1 },
        { MLXVK_UINT16, 2 }, { MLXVK_INT16, 2 }, { MLXVK_INT32, 4 }, { MLXVK_UINT32, 4 } };
    static const int lengths[] = { 3, 17, 200, 1000 };
    static const enum op ops[] = { ARGMAX, ARGMIN, MAX, MIN, SUM };
    struct rng r = { 77 };
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t i = 0; i < 2 * COUNT(lengths); i++) {
            int n = lengths[i / 2], step = n + (i % 2 ? 1 : 0), from = i % 2 ? 5 : 0, all = FREE_ROWS * step + from;
            size_t size = types[t].size;
            unsigned char bytes[4 * FREE_ROWS * FREE_MOST];
            for (int row = 0; row < FREE_ROWS; row++)
                fill_special(types[t].dtype, bytes + size * (size_t)(row * step + (row ? from : 0)), size,
                             row == FREE_ROWS - 1 ? step : step + from, row % 2, &r);
            mlxvk_array a = array_of(device, types[t].dtype, bytes, &all, 1);
            OK(mlxvk_as_strided(&a, a, (int[]){ FREE_ROWS, n }, 2, (int64_t[]){ step, 1 }, 2, (size_t)from, stream), stream);
            for (size_t k = 0; k < COUNT(ops) - (t < 3); k++)
                check_special(ops[k], a, types[t].dtype, bytes + size * (size_t)from, size * (size_t)step, n);
            mlxvk_array_free(a);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_views), cmocka_unit_test(cut_into_parts), cmocka_unit_test(softmax_rows),
                                        cmocka_unit_test(nan_stays), cmocka_unit_test(in_any_order),
                                        cmocka_unit_test(many_that_repeat),
                                        cmocka_unit_test(joined_parts), cmocka_unit_test(joined_in_a_row) };
    return run_group("reduce", tests, set_up, tear_down);
}
