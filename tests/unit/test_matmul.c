/* Matrix products of random shapes, layouts and batches against sums in double, for each kind of kernel in turn. */
#include "support.h"
#include <stdio.h>

enum { MOST_DIMS = 6 };

static struct rng rng;

static int below(int n) { return random_int(&rng, 0, n - 1); }

/* An operand: the array, and how the reference reads it. */
struct operand {
    mlxvk_array array;
    float *values;                                   /* of the stored elements, as rounded to the dtype */
    int ndim, shape[MOST_DIMS];
    int64_t stride[MOST_DIMS], first;
};

/* Random values in a random layout: the last two dimensions in either order, rows longer than needed, a first element that
 * is not the storage's, a stride that repeats, reverses or skips. */
static struct operand operand(int ndim, const int *shape, mlxvk_dtype dtype, mlxvk_stream s)
{
    struct operand o = { .ndim = ndim };
    int order[MOST_DIMS], size, even = below(2) ? 1 : 8;
    int64_t step = ONE_OF(&rng, 1, 1, 1, 1, 2);
    uint8_t *bytes;
    for (int i = 0; i < ndim; i++) { order[i] = i; o.shape[i] = shape[i]; }
    if (ndim > 1 && below(2)) { order[ndim - 1] = ndim - 2; order[ndim - 2] = ndim - 1; }
    o.first = even * below(3);
    for (int i = ndim - 1; i >= 0; i--) {
        int at = order[i];
        o.stride[at] = step;
        if (i < ndim - 2 && below(4) == 0) { o.stride[at] = 0; continue; }      /* broadcast */
        step *= shape[at] ? shape[at] : 1;
        if (i == ndim - 1) step = (step + even - 1) / even * even + even * below(2);
        if (i == ndim - 2 && shape[at] && below(8) == 0) { o.first += o.stride[at] * (shape[at] - 1); o.stride[at] = -o.stride[at]; }
    }
    size = (int)(step + o.first + 1);
    bytes = malloc((size_t)size * 4);
    o.values = malloc((size_t)size * sizeof *o.values);
    assert_true(bytes && o.values);
    for (int i = 0; i < size; i++) {
        o.values[i] = (float)(random_bits(&rng) % 2001) / 1000.0f - 1.0f;
        store_number(dtype, bytes, (size_t)i, o.values[i]);
        o.values[i] = (float)load_number(dtype, bytes, (size_t)i).re;
    }
    assert_int_equal(mlxvk_array_new_data_device(&o.array, bytes, &size, 1, dtype, mlxvk_stream_device(s)), 0);
    assert_int_equal(mlxvk_as_strided(&o.array, o.array, shape, (size_t)ndim, o.stride, (size_t)ndim, (size_t)o.first, s), 0);
    free(bytes);
    return o;
}

static void operand_free(struct operand *o)
{
    mlxvk_array_free(o->array);
    free(o->values);
}

/* An operand's element at the result's batch index, row and column; dimensions of 1 repeat. */
static double element(const struct operand *o, int ndim, const int *batch, int row, int column)
{
    int64_t at = o->first;
    for (int i = 0; i < o->ndim; i++) {
        int from_end = o->ndim - i, index = from_end == 1 ? column : from_end == 2 ? row : batch[ndim - from_end];
        if (o->shape[i] != 1) at += index * o->stride[i];
    }
    return o->values[at];
}

static void compare(const struct operand *a, const struct operand *b, const struct operand *c, float alpha, float beta, int ndim,
                    const int *shape, int k, mlxvk_dtype dtype, const void *got)
{
    int m = shape[ndim - 2], n = shape[ndim - 1], count = 1, batch[MOST_DIMS] = { 0 };
    for (int i = 0; i < ndim - 2; i++) count *= shape[i];
    for (int z = 0; z < count; z++) {
        int rest = z;
        for (int i = ndim - 3; i >= 0; i--) { batch[i] = rest % shape[i]; rest /= shape[i]; }
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                size_t at = ((size_t)z * (size_t)m + (size_t)i) * (size_t)n + (size_t)j;
                double sum = 0, sizes = 0, want, value, epsilon = dtype == MLXVK_FLOAT32 ? 1e-6 : dtype == MLXVK_FLOAT16 ? 1e-3 : 8e-3;
                for (int l = 0; l < k; l++) {
                    double t = element(a, ndim, batch, i, l) * element(b, ndim, batch, l, j);
                    sum += t;
                    sizes += fabs(t);
                }
                want = alpha * sum + (c ? beta * element(c, ndim, batch, i, j) : 0);
                value = load_number(dtype, got, at).re;
                if (!(fabs(value - want) <= epsilon * fabs(want) + 1e-6 + 2e-6 * fabs((double)alpha) * sizes))
                    fail_msg("matrix %d row %d column %d: %.9g, expected %.9g (%s, %d x %d x %d)", z, i, j, value, want,
                             mlxvk_dtype_name(dtype), m, k, n);
            }
    }
}

static void one_case(mlxvk_stream s)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    mlxvk_dtype dtype = dtypes[below(3)];
    int m = ONE_OF(&rng, 1, 1, 2, 5, 8, 17, 33, 64, 130), n = ONE_OF(&rng, 1, 3, 8, 24, 65, 128, 200), k = ONE_OF(&rng, 0, 1, 7, 32, 64, 100, 260);
    int batches = ONE_OF(&rng, 0, 0, 0, 1, 2, 3, 4), sa[MOST_DIMS], sb[MOST_DIMS], sc[MOST_DIMS], out[MOST_DIMS], ndim = batches + 2;
    float alpha = below(2) ? 1.0f : 0.5f, beta = (float)below(3) - 1.0f;
    bool bias = below(3) == 0;
    struct operand a, b, c;
    mlxvk_array res = { NULL };
    size_t bytes;
    void *got;
    mlxvk_error error;
    if (batches) { m = m > 40 ? 40 : m; n = n > 70 ? 70 : n; }
    for (int i = 0; i < batches; i++) {
        out[i] = ONE_OF(&rng, 1, 2, 2, 3);
        sa[i] = below(4) ? out[i] : 1;
        sb[i] = sa[i] == 1 ? out[i] : below(4) ? out[i] : 1;
        sc[i] = below(2) ? out[i] : 1;
    }
    sa[batches] = out[batches] = m;
    sb[batches + 1] = out[batches + 1] = n;
    sa[batches + 1] = sb[batches] = k;
    sc[batches] = below(2) ? m : 1;
    sc[batches + 1] = below(2) ? n : 1;
    a = operand(ndim, sa, dtype, s);
    b = operand(ndim, sb, dtype, s);
    c = operand(ndim, sc, dtype, s);
    assert_int_equal(bias ? mlxvk_addmm(&res, c.array, a.array, b.array, alpha, beta, s) : mlxvk_matmul(&res, a.array, b.array, s), 0);
    assert_int_equal(mlxvk_array_ndim(res), ndim);
    for (int i = 0; i < ndim; i++) assert_int_equal(mlxvk_array_dim(res, i), out[i]);
    bytes = mlxvk_array_nbytes(res);
    got = malloc(bytes + 4);
    assert_non_null(got);
    if (mlxvk_array_read(res, got, bytes, s)) { mlxvk_stream_error(s, &error); fail_msg("%s", error.text); }
    compare(&a, &b, bias ? &c : NULL, bias ? alpha : 1, beta, ndim, out, k, dtype, got);
    free(got);
    mlxvk_array_free(res);
    operand_free(&a);
    operand_free(&b);
    operand_free(&c);
}

static void run_cases(const char *gates, int cases)
{
    struct setting s = start(gates);
    for (int i = 0; i < cases; i++) {
        rng.state = (uint64_t)i * 7919 + 1;
        one_case(s.stream);
    }
    finish(&s);
}

static int cases(void)
{
    const char *text = getenv("MATMUL_CASES");
    return text ? atoi(text) : 40;
}

/* Larger products of operands that no fast kernel reads as they are, and enough of K to be cut into parts. */
static void test_large(void **state)
{
    static const struct { int m, k, n; int64_t step; } list[] = {
        { 130, 170, 129, 2 }, { 40, 3000, 70, 1 }, { 3, 9000, 50, 3 }, { 2, 9001, 3, 1 }, { 17, 1100, 1000, 1 }, { 24, 1031, 1020, 1 },
    };
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    (void)state;
    for (size_t i = 0; i < COUNT(list); i++) {
        int m = list[i].m, k = list[i].k, n = list[i].n, size = (int)list[i].step * k * (m > n ? m : n);
        struct operand a = { .ndim = 3, .shape = { 1, m, k }, .stride = { 0, list[i].step * k, list[i].step } }, b = a;
        float *got = malloc((size_t)(2 * m * n) * sizeof *got);
        mlxvk_array all, res = { NULL };
        b.shape[0] = 2; b.shape[1] = k; b.shape[2] = n;
        b.stride[1] = list[i].step; b.stride[2] = list[i].step * k;
        a.values = b.values = malloc((size_t)size * sizeof *a.values);
        assert_true(a.values && got);
        rng.state = i;
        for (int j = 0; j < size; j++) a.values[j] = (float)(random_bits(&rng) % 2001) / 1000.0f - 1.0f;
        all = mlxvk_array_new_data(a.values, &size, 1, MLXVK_FLOAT32);
        assert_int_equal(mlxvk_as_strided(&a.array, all, a.shape, 3, a.stride, 3, 0, s), 0);
        assert_int_equal(mlxvk_as_strided(&b.array, all, b.shape, 3, b.stride, 3, 0, s), 0);
        assert_int_equal(mlxvk_matmul(&res, a.array, b.array, s), 0);
        assert_int_equal(mlxvk_array_read(res, got, mlxvk_array_nbytes(res), s), 0);
        compare(&a, &b, NULL, 1, 0, 3, (int[]){ 2, m, n }, k, MLXVK_FLOAT32, got);
        mlxvk_array_free(res);
        mlxvk_array_free(all);
        mlxvk_array_free(a.array);
        operand_free(&b);
        free(got);
    }
    mlxvk_stream_free(s);
}

/* Batches of matrices of half types whose rows fill no 16 bytes: which go by copies, where those pay; broadcast ones, too. */
static void test_odd_batches(void **state)
{
    static const int shapes[][4] = { { 6, 5, 131, 129 }, { 1, 5, 131, 129 }, { 6, 1, 131, 129 } };
    struct setting t = start("");
    (void)state;
    for (int i = 0; i < 3; i++) {
        enum { N = 133, M = 131, K = 129 };
        const int out[] = { 6, 5, M, N }, sb[] = { 6, i ? 5 : 1, K, N };
        mlxvk_dtype dtype = i % 2 ? MLXVK_FLOAT16 : MLXVK_BFLOAT16;
        rng.state = 77 + (uint64_t)i;
        struct operand a = operand(4, shapes[i], dtype, t.stream), b = operand(4, sb, dtype, t.stream);
        mlxvk_array res = { NULL };
        OK(mlxvk_matmul(&res, a.array, b.array, t.stream), t.stream);
        uint8_t *got = malloc(mlxvk_array_nbytes(res));
        assert_non_null(got);
        OK(mlxvk_array_read(res, got, mlxvk_array_nbytes(res), t.stream), t.stream);
        compare(&a, &b, NULL, 1, 0, 4, out, K, dtype, got);
        free(got);
        mlxvk_array_free(res);
        operand_free(&a);
        operand_free(&b);
    }
    finish(&t);
}

/* c counts for nothing where beta is 0, and neither does what the result's memory held before. */
static void test_beta_zero(void **state)
{
    static const char *const gates[] = { "", "MLX_VK_MATMUL_KERNEL=1", "MLX_VK_MATMUL_KERNEL=2", "MLX_VK_MATMUL_KERNEL=3" };
    static const int sizes[][3] = { { 5, 7, 9 }, { 1, 33, 40 }, { 40, 33, 1 }, { 65, 20, 70 } };
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_COMPLEX64 };
    (void)state;
    for (int i = 0; i < 4 * 4 * 3; i++) {
        const int *size = sizes[i % 4];
        mlxvk_dtype dtype = dtypes[i / 16];
        struct setting t = start(gates[i / 4 % 4]);
        mlxvk_array nan = { NULL }, a = { NULL }, b = { NULL }, used = { NULL }, res = { NULL };
        mlxvk_stream s = t.stream;
        float got;
        assert_int_equal(mlxvk_array_new_data_device(&nan, &(float){ NAN }, NULL, 0, MLXVK_FLOAT32, t.device), 0);
        assert_int_equal(mlxvk_full(&used, (int[]){ size[0], size[2] }, 2, nan, dtype, s), 0);
        assert_int_equal(mlxvk_ones(&a, (int[]){ size[0], size[1] }, 2, dtype, s), 0);
        assert_int_equal(mlxvk_ones(&b, (int[]){ size[1], size[2] }, 2, dtype, s), 0);
        assert_int_equal(mlxvk_array_eval(used) || mlxvk_array_eval(a) || mlxvk_array_eval(b), 0);
        mlxvk_array_free(used);
        assert_int_equal(mlxvk_addmm(&res, nan, a, b, 2, 0, s), 0);
        assert_int_equal(mlxvk_real(&res, res, s) || mlxvk_astype(&res, res, MLXVK_FLOAT32, s) || mlxvk_max(&res, res, false, s), 0);
        assert_int_equal(mlxvk_array_read(res, &got, sizeof got, s), 0);
        assert_true(got == (float)(2 * size[1]));
        mlxvk_array_free(nan);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
        mlxvk_array_free(res);
        finish(&t);
    }
}

/* K longer than some drivers' loops may be (lavapipe's end after 65,535 iterations), or than a binding: every element
 * counts. */
static void test_long_k(void **state)
{
    static const char *const gates[] = { "MLX_VK_MATMUL_KERNEL=1", "MLX_VK_MATMUL_KERNEL=2", "MLX_VK_MATMUL_KERNEL=3",
                                         "MLX_VK_MAX_BINDING_RANGE=1048576" };
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT32, MLXVK_FLOAT32, MLXVK_FLOAT32, MLXVK_COMPLEX64 };
    const int k = 1150003;
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct setting t = start(gates[i % 4]);
        mlxvk_stream s = t.stream;
        mlxvk_array a = { NULL }, b = { NULL }, c = { NULL }, res = { NULL }, low = { NULL };
        float got[2];
        OK(mlxvk_ones(&a, (int[]){ 3, k }, 2, dtypes[i], s), s);
        OK(mlxvk_ones(&b, (int[]){ k, 2 }, 2, dtypes[i], s), s);
        OK(mlxvk_ones(&c, (int[]){ 3, 1 }, 2, dtypes[i], s), s);
        OK(mlxvk_addmm(&res, c, a, b, 2, 3, s), s);
        OK(mlxvk_real(&res, res, s), s);
        OK(mlxvk_min(&low, res, false, s), s);
        OK(mlxvk_max(&res, res, false, s), s);
        OK(mlxvk_array_read(low, &got[0], sizeof got[0], s), s);
        OK(mlxvk_array_read(res, &got[1], sizeof got[1], s), s);
        assert_true(got[0] == (float)(2 * k + 3) && got[1] == got[0]);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
        mlxvk_array_free(c);
        mlxvk_array_free(res);
        mlxvk_array_free(low);
        finish(&t);
    }
}

/* One row times what lies across K, where a thread has the most of it: by whole 16 bytes, by elements, in a batch; of chosen
 * matrices. */
static void test_long_k_across(void **state)
{
    static const struct { int batch, n; bool gather; } cases[] = { { 1, 8, false }, { 1, 9, false }, { 2, 3, false }, { 2, 3, true } };
    const int k = 524272;
    struct setting t = start("MLX_VK_MATMUL_KERNEL=2");
    mlxvk_stream s = t.stream;
    (void)state;
    for (int i = 0; i < (int)COUNT(cases); i++) {
        int batch = cases[i].batch, n = cases[i].n;
        mlxvk_array a = { NULL }, b = { NULL }, of = { NULL }, none = { NULL }, res = { NULL };
        float got[9] = { 0 };
        OK(mlxvk_ones(&a, (int[]){ batch, 1, k }, 3, MLXVK_FLOAT32, s), s);
        OK(mlxvk_ones(&b, (int[]){ batch, k, n }, 3, MLXVK_FLOAT32, s), s);
        OK(mlxvk_contiguous(&b, b, false, s), s);
        OK(mlxvk_arange(&of, 0, batch, 1, MLXVK_UINT32, s), s);
        OK(cases[i].gather ? mlxvk_gather_mm(&res, a, b, none, of, false, s) : mlxvk_matmul(&res, a, b, s), s);
        OK(mlxvk_array_read(res, got, sizeof *got * (size_t)(batch * n), s), s);
        for (int j = 0; j < batch * n; j++) if (got[j] != (float)k) fail_msg("case %d: %f", i, (double)got[j]);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
        mlxvk_array_free(of);
        mlxvk_array_free(res);
    }
    finish(&t);
}

/* The same where masks leave all blocks, which the kernel for masked blocks cannot do in one go there. */
static void test_long_masked_k(void **state)
{
    enum { SIDE = 9 };
    const int k = 640000;
    struct setting t = start("");
    mlxvk_stream s = t.stream;
    mlxvk_array a = { NULL }, b = { NULL }, mask = { NULL }, none = { NULL }, res = { NULL };
    float got[SIDE * SIDE];
    (void)state;
    OK(mlxvk_ones(&a, (int[]){ SIDE, k }, 2, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&b, (int[]){ k, SIDE }, 2, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&mask, (int[]){ 1, 1 }, 2, MLXVK_BOOL, s), s);
    OK(mlxvk_block_masked_mm(&res, a, b, 64, mask, none, none, s), s);
    OK(mlxvk_array_read(res, got, sizeof got, s), s);
    for (int i = 0; i < SIDE * SIDE; i++) assert_true(got[i] == (float)k);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(mask);
    mlxvk_array_free(res);
    finish(&t);
}

static void test_chosen(void **state) { (void)state; run_cases("", cases()); }
static void test_plain(void **state) { (void)state; run_cases("MLX_VK_MATMUL_KERNEL=1", 2 * cases()); }
static void test_vector(void **state) { (void)state; run_cases("MLX_VK_MATMUL_KERNEL=2", cases()); }

/* Every device has workgroups of 128 threads; some have no larger ones. */
static void test_few_threads(void **state)
{
    (void)state;
    for (int kernel = 1; kernel <= 3; kernel++) {
        char gates[64];
        snprintf(gates, sizeof gates, "MLX_VK_MAX_THREADS=128 MLX_VK_MATMUL_KERNEL=%d", kernel);
        run_cases(gates, cases() / 2);
    }
}

static void test_tiled(void **state) { (void)state; run_cases("MLX_VK_MATMUL_KERNEL=3", cases()); }
/* Also where a grid, or a binding, is smaller than the passes of a product. */
static void test_passes(void **state)
{
    (void)state;
    run_cases("MLX_VK_MATMUL_KERNEL=7", 2 * cases());
    run_cases("MLX_VK_MATMUL_KERNEL=7 MLX_VK_MAX_GRID=6", cases());
    run_cases("MLX_VK_MATMUL_KERNEL=7 MLX_VK_MAX_BINDING_RANGE=4096", cases());
}

/* By a kernel that not every device has: it must run, and not another one in its place. */
static void run_matrices(const char *capability, const char *gates, const char *kernel)
{
    need_capability(capability);
    uint64_t before = dispatches_of(gates, kernel);
    run_cases(gates, cases());
    assert_true(dispatches_of(gates, kernel) > before);
}

static void test_coopmat(void **state)
{
    (void)state;
    run_matrices("cooperative_matrix_size", "MLX_VK_MATMUL_KERNEL=4", "matmul_coopmat_");
}

static void test_coopmat2(void **state)
{
    (void)state;
    run_matrices("cooperative_matrix2", "MLX_VK_MATMUL_KERNEL=5", "matmul_coopmat2_");
}

/* Random elements in rows, or columns, of whole `unit`s. */
static struct operand even_operand(int rows, int columns, bool along_columns, int unit, mlxvk_dtype dtype, mlxvk_stream s)
{
    int64_t lead = ((along_columns ? rows : columns) + unit - 1) / unit * unit;
    struct operand o = { .ndim = 2, .shape = { rows, columns },
                         .stride = { along_columns ? 1 : lead, along_columns ? lead : 1 } };
    int size = (int)lead * (along_columns ? columns : rows);
    uint8_t *bytes = malloc((size_t)size * 4);
    o.values = malloc((size_t)size * sizeof *o.values);
    assert_true(bytes && o.values);
    for (int i = 0; i < size; i++) {
        store_number(dtype, bytes, (size_t)i, (double)(random_bits(&rng) % 2001) / 1000.0 - 1.0);
        o.values[i] = (float)load_number(dtype, bytes, (size_t)i).re;
    }
    OK(mlxvk_array_new_data_device(&o.array, bytes, &size, 1, dtype, mlxvk_stream_device(s)), s);
    OK(mlxvk_as_strided(&o.array, o.array, o.shape, 2, o.stride, 2, 0, s), s);
    free(bytes);
    return o;
}

/* size: M, K, N, and c: none, 1: a row for all, 2: as the result is. unit: eight is what kernels of cooperative matrices read. */
static void even_case(const int *size, int orders, int unit, mlxvk_dtype dtype, mlxvk_stream s)
{
    int m = size[0], k = size[1], n = size[2];
    bool bias = size[3] != 0;
    float beta = size[3] == 2 ? -0.75f : 1;
    struct operand a = even_operand(m, k, orders & 1, unit, dtype, s), b = even_operand(k, n, orders & 2, unit, dtype, s);
    struct operand c = even_operand(size[3] == 2 ? m : 1, n, false, unit, dtype, s);
    mlxvk_array res = { NULL };
    void *got = malloc((size_t)m * (size_t)n * mlxvk_dtype_size(dtype));
    assert_non_null(got);
    OK(bias ? mlxvk_addmm(&res, c.array, a.array, b.array, 0.5f, beta, s) : mlxvk_matmul(&res, a.array, b.array, s), s);
    OK(mlxvk_array_read(res, got, mlxvk_array_nbytes(res), s), s);
    compare(&a, &b, bias ? &c : NULL, bias ? 0.5f : 1, beta, 2, (int[]){ m, n }, k, dtype, got);
    free(got);
    mlxvk_array_free(res);
    operand_free(&a);
    operand_free(&b);
    operand_free(&c);
}

/* By tiles of a row of their table: the least product that has them inside. */
static void even_tiles(int row, const int (*sizes)[4], int count)
{
    char gates[64];
    struct setting s;
    snprintf(gates, sizeof gates, "MLX_VK_MATMUL_KERNEL=5 MLX_VK_MATMUL_TILE=%d", row);
    s = start(gates);
    rng.state = (uint64_t)row;
    for (int i = 0; i < count; i++)
        even_case(sizes[i], (row + i) % 4, 8, i / 4 % 2 ? MLXVK_FLOAT16 : MLXVK_BFLOAT16, s.stream);
    finish(&s);
}

/* Each tile; and three with one row, eight columns or eight of K more and less than lie inside, in all orders: what is
 * assumed of tiles inside, one thing wrong at a time, a's columns that are read in eights among it. */
static void test_coopmat2_tiles(void **state)
{
    static const int tiles[][2] = { { 128, 192 }, { 128, 256 }, { 128, 160 }, { 128, 128 }, { 96, 192 }, { 64, 256 },
                                    { 64, 64 }, { 32, 128 }, { 32, 64 } };
    (void)state;
    need_capability("cooperative_matrix2");
    for (int i = 0; i < (int)COUNT(tiles); i++) {
        int m = tiles[i][0], n = tiles[i][1];
        const int sizes[][4] = { { m, 64, n, 0 }, { m + 1, 64, n, 0 }, { m, 128, n + 8, 0 }, { m + 8, 64, n + 64, 1 },
                                 { m - 1, 64, n, 0 }, { m, 64, n - 8, 0 }, { m, 72, n, 0 }, { m + 3, 56, n + 40, 1 },
                                 { m + 17, 704, n + 16, 0 }, { m - 1, 72, n - 8, 0 }, { m + 1, 64, n + 8, 0 },
                                 { m, 64, n, 2 }, { m + 1, 64, n + 8, 2 }, { m - 1, 72, n - 8, 2 },
                                 { m, 64, n, 1 }, { m - 1, 72, n - 8, 1 } };
        even_tiles(i + 1, sizes, m > 64 || n > 128 ? 1 : (int)COUNT(sizes));
    }
}

/* Products of these sizes (M, K, N, c, orders, unit) in both half types; how many of their dispatches were matmul_few's. */
static uint64_t few_dispatches(const char *gates, const int (*sizes)[6], size_t count, uint64_t seed)
{
    const uint64_t before = dispatches_of(gates, "matmul_few_");
    struct setting s = start(gates);
    rng.state = seed;
    for (size_t i = 0; i < 2 * count; i++) {
        const int *t = sizes[i / 2];
        even_case(t, t[4], t[5], i % 2 ? MLXVK_FLOAT16 : MLXVK_BFLOAT16, s.stream);
    }
    finish(&s);
    return dispatches_of(gates, "matmul_few_") - before;
}

/* Up to 16 rows under the gate by one dispatch of matrices: K of parts that are whole, begun and several rounds of them,
 * columns that fill no matrix; then one thing wrong at a time: a seventeenth row, the orders of a and b, c. Rows that begin
 * anywhere, of odd length. */
static void test_few_matrices(void **state)
{
    static const char gates[] = "MLX_VK_POISON=1 MLX_VK_BATCH_INVARIANT=1";
    static const int sizes[][6] = { /* M, K, N, c, orders, unit */
        { 1, 512, 48, 0, 2, 8 }, { 1, 1024, 33, 0, 2, 8 }, { 2, 136, 16, 0, 2, 8 }, { 3, 8, 5, 0, 2, 8 }, { 5, 2568, 40, 0, 2, 8 },
        { 8, 5120, 24, 0, 2, 8 }, { 9, 776, 50, 0, 2, 8 }, { 16, 1152, 64, 0, 2, 8 }, { 17, 512, 48, 0, 2, 8 }, { 4, 512, 48, 0, 0, 8 },
        { 4, 512, 48, 0, 3, 8 }, { 4, 516, 48, 0, 2, 1 }, { 4, 1031, 48, 0, 2, 1 }, { 4, 1024, 48, 1, 2, 8 },
        { 8, 2047, 40, 0, 2, 1 }, { 16, 1153, 33, 0, 2, 1 }, { 3, 7, 5, 0, 2, 1 }, { 9, 1025, 16, 0, 2, 1 } };
    (void)state;
    need_capability("cooperative_matrix_size");
    assert_true(few_dispatches(gates, sizes, COUNT(sizes), 29) > 0);
}

/* The same kernel for few columns, where no gate keeps from it: of the transposed product, of more than a workgroup takes, too; with
 * one thing wrong at a time: a thirty-third column, the orders, c. Rows that begin anywhere, of odd length. */
static void test_few_columns(void **state)
{
    static const char gates[] = "MLX_VK_POISON=1 MLX_VK_MATMUL_KERNEL=8";
    static const char parts[] = "MLX_VK_POISON=1 MLX_VK_MATMUL_KERNEL=8 MLX_VK_TUNING=3";
    static const int sizes[][6] = { /* M, K, N, c, orders, unit */
        { 48, 512, 9, 0, 2, 8 }, { 40, 1032, 16, 0, 2, 8 }, { 33, 776, 1, 0, 2, 8 }, { 9, 512, 8, 0, 2, 8 }, { 16, 136, 16, 0, 2, 8 },
        { 48, 512, 17, 0, 2, 8 }, { 48, 512, 9, 0, 0, 8 }, { 48, 512, 9, 0, 3, 8 }, { 48, 1031, 9, 0, 2, 1 }, { 48, 512, 9, 1, 2, 8 },
        { 48, 512, 33, 0, 2, 8 }, { 33, 778, 5, 0, 2, 1 }, { 40, 517, 16, 0, 2, 1 },
        { 40, 264, 18, 0, 2, 8 }, { 40, 777, 31, 0, 2, 1 },            /* two matrices; not of rows from anywhere */
        { 40, 2049, 9, 0, 2, 1 }, { 40, 2056, 24, 0, 2, 8 } };         /* parts of other sizes */
    (void)state;
    need_capability("cooperative_matrix_size");
    assert_true(few_dispatches(gates, sizes, COUNT(sizes), 31) >= 5);
    assert_true(few_dispatches(parts, sizes, COUNT(sizes), 31) >= 5);
}

/* float32 by the largest tiles, where all of them lie inside matrices that are read by fours, and where one thing is
 * wrong at a time: M, N, K, what follows a row, K in parts; in all orders, with and without c. */
static void test_tiled_whole(void **state)
{
    static const int sizes[][5] = { { 128, 64, 128, 0, 4 }, { 256, 72, 128, 1, 4 }, { 129, 64, 128, 0, 4 }, { 128, 64, 132, 0, 4 },
                                    { 128, 68, 128, 0, 4 }, { 128, 61, 128, 0, 1 }, { 128, 61, 128, 0, 4 }, { 127, 64, 256, 0, 1 },
                                    { 128, 4096, 128, 0, 4 }, { 128, 8, 128, 0, 4 } };
    struct setting s = start("MLX_VK_POISON=1 MLX_VK_MATMUL_KERNEL=3 MLX_VK_MATMUL_TILE=1");
    (void)state;
    rng.state = 11;
    for (int i = 0; i < (int)COUNT(sizes); i++)
        for (int orders = 0; orders < 4; orders++) even_case(sizes[i], orders, sizes[i][4], MLXVK_FLOAT32, s.stream);
    finish(&s);
}

/* An argument is a pattern of test names: "test_coop*". */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain), cmocka_unit_test(test_chosen), cmocka_unit_test(test_vector), cmocka_unit_test(test_tiled),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_few_threads),
        cmocka_unit_test(test_large), cmocka_unit_test(test_odd_batches), cmocka_unit_test(test_beta_zero), cmocka_unit_test(test_long_k), cmocka_unit_test(test_long_k_across), cmocka_unit_test(test_long_masked_k),
        cmocka_unit_test(test_coopmat), cmocka_unit_test(test_coopmat2), cmocka_unit_test(test_coopmat2_tiles),
        cmocka_unit_test(test_few_matrices), cmocka_unit_test(test_few_columns), cmocka_unit_test(test_tiled_whole),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_group("matmul", tests, NULL, NULL);
}
