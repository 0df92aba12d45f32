/* Quantized products of random shapes, formats and layouts against sums in double, by each kind of kernel. */
#include "unit/support.h"
#include "gen/classes_spv.h"
#include "gen/dequantize_spv.h"
#include <math.h>
#include <stdio.h>

/* mode: NULL is affine. In the others scales are of one byte, read as powers of two (groups of 32) or as e4m3 (of 16). */
struct format { int bits, group; bool transpose; mlxvk_dtype x, scales; const char *mode; };

/* A quantized matrix of rows x columns values, in memory and as arrays. */
struct weight { uint32_t *words; float *scales, *biases; mlxvk_array array[3]; };

static double e4m3(unsigned c)
{
    double v = c >> 3 & 15 ? ldexp(8 + (int)(c & 7), (int)(c >> 3 & 15) - 10) : ldexp((int)(c & 7), -9);
    return c & 128 ? -v : v;
}

static double e2m1(unsigned c)
{
    static const double sizes[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    return c & 8 ? -sizes[c & 7] : sizes[c & 7];
}

static float *random_floats(struct rng *r, size_t count, float size, mlxvk_dtype dtype, uint8_t *bytes)
{
    float *v = malloc((count + 1) * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < count; i++) {
        store_number(dtype, bytes, i, size * ((float)random_int(r, -1000, 1000) / 1000.0f));
        v[i] = (float)load_number(dtype, bytes, i).re;
    }
    return v;
}

/* An array of the last two dimensions given, with `lead` batches (0: none) and perhaps more columns than are seen. */
static mlxvk_array upload(const void *bytes, int lead, int rows, int columns, mlxvk_dtype dtype, mlxvk_stream s)
{
    mlxvk_array a = mlxvk_array_new();
    int shape[3] = { lead, rows, columns };
    OK(mlxvk_array_new_data_device(&a, bytes, lead ? shape : shape + 1, lead ? 3 : 2, dtype, mlxvk_stream_device(s)), s);
    return a;
}

static struct weight random_weight(struct rng *r, const struct format *f, int lead, int rows, int columns, mlxvk_stream s)
{
    struct weight w;
    size_t count = (size_t)(lead ? lead : 1) * (size_t)rows;
    size_t words = (size_t)columns * (size_t)f->bits / 32, groups = (size_t)(columns / f->group);
    uint8_t *bytes = malloc(count * groups * 4 + 4);
    w.words = malloc(count * words * 4 + 4);
    assert_true(bytes && w.words);
    for (size_t i = 0; i < count * words; i++) w.words[i] = (uint32_t)random_bits(r);
    w.array[0] = upload(w.words, lead, rows, (int)words, MLXVK_UINT32, s);
    if (f->mode) {                                   /* what is large in the codes is small in the scales */
        w.scales = malloc((count * groups + 1) * sizeof *w.scales);
        assert_non_null(w.scales);
        for (size_t i = 0; i < count * groups; i++) {
            bytes[i] = (uint8_t)(f->group == 16 ? random_int(r, 0, 60) + 128 * random_int(r, 0, 1) : random_int(r, 116, 128));
            w.scales[i] = (float)(f->group == 16 ? e4m3(bytes[i]) : ldexp(1, bytes[i] - 127));
        }
        w.array[1] = upload(bytes, lead, rows, (int)groups, MLXVK_UINT8, s);
        w.biases = NULL;
        w.array[2] = mlxvk_array_new();
        free(bytes);
        return w;
    }
    w.scales = random_floats(r, count * groups, 2.0f / (float)(1 << f->bits), f->scales, bytes);
    w.array[1] = upload(bytes, lead, rows, (int)groups, f->scales, s);
    w.biases = random_floats(r, count * groups, 1.0f, f->scales, bytes);
    w.array[2] = upload(bytes, lead, rows, (int)groups, f->scales, s);
    free(bytes);
    return w;
}

static void weight_free(struct weight *w)
{
    for (int i = 0; i < 3; i++) mlxvk_array_free(w->array[i]);
    free(w->words);
    free(w->scales);
    free(w->biases);
}

/* The value in a row (counted over batches) and column; columns: of the matrix. */
static double value(const struct weight *w, const struct format *f, size_t row, int column, int columns)
{
    size_t words = (size_t)columns * (size_t)f->bits / 32, bit = (size_t)column * (size_t)f->bits, at = row * words + bit / 32;
    size_t group = row * (size_t)(columns / f->group) + (size_t)(column / f->group);
    uint64_t pair = w->words[at] | (bit % 32 + (size_t)f->bits > 32 ? (uint64_t)w->words[at + 1] << 32 : 0);
    unsigned code = (unsigned)(pair >> bit % 32) & ((1u << f->bits) - 1);
    if (f->mode) return w->scales[group] * (f->bits == 4 ? e2m1(code) : e4m3(code));
    return (double)w->scales[group] * (double)((pair >> bit % 32) & ((1u << f->bits) - 1)) + w->biases[group];
}

static mlxvk_dtype result_of(const struct format *f) { return f->mode || f->x == f->scales ? f->x : MLXVK_FLOAT32; }

/* All of its values, as columns of the product lie: [batch][n][k]. */
static float *unpack(const struct weight *w, const struct format *f, int lead, int n, int k)
{
    size_t batches = (size_t)(lead ? lead : 1), size = (size_t)n * (size_t)k;
    float *all = malloc((batches * size + 1) * sizeof *all);
    assert_non_null(all);
    for (size_t z = 0; z < batches; z++)
        for (int j = 0; j < n; j++)
            for (int l = 0; l < k; l++)
                all[z * size + (size_t)j * (size_t)k + (size_t)l] =
                    (float)(f->transpose ? value(w, f, z * (size_t)n + (size_t)j, l, k) : value(w, f, z * (size_t)k + (size_t)l, j, n));
    return all;
}

/* exact: the weights are not rounded. */
static void compare(const struct format *f, const struct weight *w, const float *x, const void *y, int lead, int m, int n, int k,
                    bool exact)
{
    mlxvk_dtype to = result_of(f);
    double unit = to == MLXVK_FLOAT32 ? 1e-6 : to == MLXVK_FLOAT16 ? 1e-3 : 8e-3;
    float *all = unpack(w, f, lead, n, k);
    for (int z = 0; z < (lead ? lead : 1); z++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                size_t row = (size_t)z * (size_t)m + (size_t)i, column = (size_t)z * (size_t)n + (size_t)j;
                const float *a = x + row * (size_t)k, *b = all + column * (size_t)k;
                double sum = 0, sizes = 0, squares = 0, got = load_number(to, y, row * (size_t)n + (size_t)j).re, rounding;
                for (int l = 0; l < k; l++) {
                    double product = (double)a[l] * b[l];
                    sum += product;
                    sizes += fabs(product);
                    squares += product * product;
                }
                /* weights rounded to a half type: half a unit of each at most, and they add up like a random walk */
                rounding = to == MLXVK_FLOAT32 || exact ? 2e-6 * sizes : unit / 2 * fmin(sizes, 4 * sqrt(squares));
                if (!(fabs(got - sum) <= unit * fabs(sum) + rounding + 1e-6))
                    fail_msg("batch %d row %d column %d: %.9g, expected %.9g (%s, %d bits, group %d, %s by %s, %d x %d x %d%s)", z, i, j,
                             got, sum, f->mode ? f->mode : "affine", f->bits, f->group, mlxvk_dtype_name(f->x), mlxvk_dtype_name(f->scales), m, k, n,
                             f->transpose ? "" : ", not transposed");
            }
    free(all);
}

static void one_case(struct rng *r, mlxvk_stream s, struct format f, int lead, int m, int n, int k, bool exact)
{
    size_t count = (size_t)(lead ? lead : 1) * (size_t)m, size = count * (size_t)n * 4;
    struct weight w = random_weight(r, &f, lead, f.transpose ? n : k, f.transpose ? k : n, s);
    uint8_t *bytes = malloc(count * (size_t)k * 4 + 4), *y = malloc(size + 4);
    float *x = random_floats(r, count * (size_t)k, 1.0f, f.x, bytes);
    mlxvk_array a = upload(bytes, lead, m, k, f.x, s), res = mlxvk_array_new();
    mlxvk_optional_int group = { f.group, true }, bits = { f.bits, true };
    OK(mlxvk_quantized_matmul(&res, a, w.array[0], w.array[1], w.array[2], f.transpose, group, bits,
                              f.mode ? f.mode : "affine", s), s);
    assert_int_equal(mlxvk_array_dtype(res), result_of(&f));
    assert_int_equal(mlxvk_array_size(res), count * (size_t)n);
    OK(mlxvk_array_read(res, y, mlxvk_array_nbytes(res), s), s);
    compare(&f, &w, x, y, lead, m, n, k, exact);
    mlxvk_array_free(a);
    mlxvk_array_free(res);
    weight_free(&w);
    free(x);
    free(y);
    free(bytes);
}

/* kernel: a value of gate MLX_VK_QMM_KERNEL; 0: the library chooses. */
static void cases(int kernel, const char *more, int count)
{
    static const int widths[] = { 4, 8, 4, 1, 2, 3, 5, 6 }, groups[] = { 64, 32, 128 };
    static const mlxvk_dtype dtypes[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32 };
    static const struct format small_floats[] = { { 4, 32, true, MLXVK_BFLOAT16, MLXVK_UINT8, "mxfp4" },
        { 4, 16, true, MLXVK_BFLOAT16, MLXVK_UINT8, "nvfp4" }, { 8, 32, true, MLXVK_BFLOAT16, MLXVK_UINT8, "mxfp8" } };
    char gates[192];
    struct rng r = { 11 + (uint64_t)kernel };
    mlxvk_device d;
    mlxvk_stream s;
    snprintf(gates, sizeof gates, "MLX_VK_QMM_KERNEL=%d %s", kernel, more);
    d = open_device(gates);
    s = open_stream(d);
    for (int i = 0; i < count; i++) {
        int which = random_int(&r, 0, 2);
        bool transpose = kernel == 1 || kernel > 4 || random_chance(&r, kernel ? 80 : 60);
        struct format f = { widths[i % 8], groups[random_int(&r, 0, 2)], transpose, dtypes[which], dtypes[which], NULL };
        if (i % 4 == 1) f = small_floats[i / 4 % 3];
        f.transpose = transpose;
        f.x = dtypes[which];
        int m = random_chance(&r, 50) ? random_int(&r, 1, 9) : random_int(&r, 10, 140), n = random_int(&r, 1, 150);
        int k = random_int(&r, 1, 4) * f.group, lead = random_chance(&r, 20) ? random_int(&r, 1, 3) : 0;
        if (!f.mode && random_chance(&r, 15)) f.scales = dtypes[random_int(&r, 0, 2)];
        if (!f.transpose) { k = n; n = random_int(&r, 1, 3) * f.group; }
        one_case(&r, s, f, lead, m, n, k, kernel == 2 && (m < 8 || result_of(&f) != MLXVK_BFLOAT16));
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_chosen(void **state) { (void)state; cases(0, "", 36); }
static void test_few_rows(void **state) { (void)state; cases(1, "", 16); }
static void test_few_rows_plain(void **state) { (void)state; cases(1, "MLX_VK_ENABLE_SUBGROUP=0", 8); }
static void test_few_rows_split(void **state) { (void)state; cases(1, "MLX_VK_QMV_SPLIT=4 MLX_VK_QMV_ROWS=2", 8); }
static void test_held(void **state) { (void)state; cases(5, "", 16); }
static void test_held_rows(void **state) { (void)state; cases(5, "MLX_VK_QMV_SPLIT=1 MLX_VK_QMV_ROWS=2 MLX_VK_QMV_THREADS=32", 8); }
static void test_held_wild(void **state) { (void)state; cases(5, "MLX_VK_QMV_ROWS=3 MLX_VK_QMV_THREADS=4096", 8); }
static void test_held_long(void **state) { (void)state; cases(5, "MLX_VK_QMV_SPLIT=2 MLX_VK_QMV_ROWS=4 MLX_VK_QMV_THREADS=32", 8); }

/* Rows from `first` on of a weight, by one row of x; with other rows of it as SwiGLU's second matrix where `other` >= 0. */
static void rows_of(const struct weight *w, mlxvk_array x, int first, int other, int rows, uint16_t *got, mlxvk_stream s)
{
    const mlxvk_optional_int group = { 32, true }, bits = { 4, true };
    mlxvk_array part[3] = { { NULL } }, y[2] = { { NULL } }, g = mlxvk_array_new();
    for (int side = 0; side < (other < 0 ? 1 : 2); side++) {
        int from = side ? other : first;
        for (int i = 0; i < 3; i++)
            OK(mlxvk_slice(&part[i], w->array[i], (int[]){ from, 0 }, 2, (int[]){ from + rows, mlxvk_array_dim(w->array[i], 1) }, 2,
                           (int[]){ 1, 1 }, 2, s), s);
        OK(mlxvk_quantized_matmul(&y[side], x, part[0], part[1], part[2], true, group, bits, "affine", s), s);
    }
    if (other >= 0) {
        OK(mlxvk_sigmoid(&g, y[0], s), s);
        OK(mlxvk_multiply(&g, y[0], g, s), s);
        OK(mlxvk_multiply(&y[0], g, y[1], s), s);
    }
    mlxvk_array_free(g);
    mlxvk_array_free(y[1]);
    for (int i = 0; i < 3; i++) mlxvk_array_free(part[i]);
    OK(mlxvk_array_read(y[0], got, (size_t)rows * 2, s), s);
    mlxvk_array_free(y[0]);
}

/* The array's numbers behind one other element: a view that begins at an odd one. */
static mlxvk_array one_later(mlxvk_array a, mlxvk_stream s)
{
    const int count = (int)mlxvk_array_size(a);
    mlxvk_array flat = mlxvk_array_new(), first = mlxvk_array_new();
    mlxvk_vector_array both = mlxvk_vector_array_new();
    OK(mlxvk_reshape(&flat, a, (int[]){ count }, 1, s), s);
    OK(mlxvk_slice(&first, flat, (int[]){ 0 }, 1, (int[]){ 1 }, 1, (int[]){ 1 }, 1, s), s);
    OK(mlxvk_vector_array_append_value(both, first), s);
    OK(mlxvk_vector_array_append_value(both, flat), s);
    OK(mlxvk_concatenate_axis(&flat, both, 0, s), s);
    OK(mlxvk_array_eval(flat), s);
    OK(mlxvk_slice(&flat, flat, (int[]){ 1 }, 1, (int[]){ 1 + count }, 1, (int[]){ 1 }, 1, s), s);
    OK(mlxvk_reshape(&flat, flat, mlxvk_array_shape(a), mlxvk_array_ndim(a), s), s);
    mlxvk_array_free(first);
    mlxvk_vector_array_free(both);
    return flat;
}

/* Rows of x at odd places meet a large weight as those at even ones do. */
static void test_odd_places(void **state)
{
    (void)state;
    enum { K = 4096, N = 4100, M = 3 };
    static float even[M * N], odd[M * N];
    const mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    mlxvk_array x = normals((int[]){ M, K }, 2, MLXVK_BFLOAT16, 71, stream), y = { NULL }, w = { NULL },
                key = { NULL }, scales = normals((int[]){ N, K / 64 }, 2, MLXVK_BFLOAT16, 72, stream),
                biases = normals((int[]){ N, K / 64 }, 2, MLXVK_BFLOAT16, 73, stream);
    OK(mlxvk_random_key(&key, 5), stream);
    OK(mlxvk_random_bits(&w, (int[]){ N, K / 8 }, 2, 4, key, stream), stream);
    for (int m = 1; m <= M; m += 2) {
        mlxvk_array part = { NULL };
        OK(mlxvk_slice(&part, x, (int[]){ 0, 0 }, 2, (int[]){ m, K }, 2, (int[]){ 1, 1 }, 2, stream), stream);
        for (int side = 0; side < 2; side++) {
            mlxvk_array at = side ? one_later(part, stream) : part;
            OK(mlxvk_quantized_matmul(&y, at, w, scales, biases, true, group, bits, "affine", stream), stream);
            OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, stream), stream);
            OK(mlxvk_array_read(y, side ? odd : even, (size_t)(m * N) * 4, stream), stream);
            if (side) mlxvk_array_free(at);
        }
        for (int i = 0; i < m * N; i++)                /* a sum of K products of about 5 */
            if (!(fabsf(odd[i] - even[i]) <= 4 + 0.01f * fabsf(even[i])))
                fail_msg("%d rows: element %d is %g at odd places and %g at even ones", m, i, odd[i], even[i]);
        mlxvk_array_free(part);
    }
    mlxvk_array all[] = { x, y, w, key, scales, biases };
    for (size_t i = 0; i < COUNT(all); i++) mlxvk_array_free(all[i]);
}

/* What a product is added to comes by words of two: views that begin at an odd element, rows of an odd number, and more of them
 * than one thread's. The same bits as the product, and then the sum. */
static void added_behind_odd(struct setting *t)
{
    enum { K = 96, ROWS_MOST = 2305, M_MOST = 4 };
    static const struct { int m, rows; } problems[] = { { 1, 41 }, { 1, ROWS_MOST }, { 2, 41 }, { M_MOST, 37 } };
    const mlxvk_optional_int group = { 32, true }, bits = { 4, true };
    static uint16_t bytes[M_MOST * ROWS_MOST], want[M_MOST * ROWS_MOST], got[M_MOST * ROWS_MOST];
    struct rng r = { 79 };
    for (size_t i = 0; i < COUNT(problems); i++) {
        const int m = problems[i].m, rows = problems[i].rows;
        const mlxvk_dtype type = i % 2 ? MLXVK_FLOAT16 : MLXVK_BFLOAT16;
        const struct format f = { 4, 32, true, type, type, NULL };
        struct weight w = random_weight(&r, &f, 0, rows, K, t->stream);
        free(random_floats(&r, (size_t)(m * K), 1.0f, type, (uint8_t *)bytes));
        mlxvk_array x = upload(bytes, 0, m, K, type, t->stream), y = mlxvk_array_new(), sum = mlxvk_array_new();
        free(random_floats(&r, (size_t)(m * rows), 1.0f, type, (uint8_t *)bytes));
        mlxvk_array added[2] = { upload(bytes, 0, m, rows, type, t->stream) };
        added[1] = one_later(added[0], t->stream);
        for (int later = 0; later < 2; later++)
            for (int fused = 0; fused < 2; fused++) {
                OK(mlxvk_quantized_matmul(&y, x, w.array[0], w.array[1], w.array[2], true, group, bits, "affine", t->stream), t->stream);
                if (!fused) OK(mlxvk_array_eval(y), t->stream);
                OK(mlxvk_add(&sum, y, added[later], t->stream), t->stream);
                memset(fused ? got : want, 0xff, sizeof got);
                OK(mlxvk_array_set(&y, sum), t->stream);
                OK(mlxvk_array_read(sum, fused ? got : want, (size_t)(m * rows) * 2, t->stream), t->stream);
                if (fused) assert_memory_equal(got, want, (size_t)(m * rows) * 2);
            }
        for (int later = 0; later < 2; later++) mlxvk_array_free(added[later]);
        mlxvk_array_free(x);
        mlxvk_array_free(y);
        mlxvk_array_free(sum);
        weight_free(&w);
    }
}

/* Words of scales hold two of them: rows with an odd number of groups, views that begin with an odd one, and two matrices
 * of which one does. Each row's bits are those that the whole matrix gives it. */
static void test_held_odd_places(void **state)
{
    enum { ROWS = 41, PART = 37, K = 96 };
    struct setting t = start("MLX_VK_QMM_KERNEL=5 MLX_VK_QMV_ROWS=4");
    const struct format f = { 4, 32, true, MLXVK_BFLOAT16, MLXVK_BFLOAT16, NULL };
    struct rng r = { 77 };
    uint16_t bytes[K], whole[ROWS], got[PART];
    struct weight w = random_weight(&r, &f, 0, ROWS, K, t.stream);
    float *x = random_floats(&r, K, 1.0f, f.x, (uint8_t *)bytes);
    mlxvk_array a = upload(bytes, 0, 1, K, f.x, t.stream);
    (void)state;
    rows_of(&w, a, 0, -1, ROWS, whole, t.stream);
    compare(&f, &w, x, whole, 0, 1, ROWS, K, false);
    for (int first = 0; first <= ROWS - PART; first++) {
        memset(got, 0xff, sizeof got);
        rows_of(&w, a, first, -1, PART, got, t.stream);
        assert_memory_equal(got, whole + first, sizeof got);
    }
    for (int first = 0; first < 2; first++)
        for (int other = 0; other < 2; other++) {
            memset(got, 0xff, sizeof got);
            rows_of(&w, a, first, other, PART, got, t.stream);
            for (int i = 0; i < PART; i++) {
                double g = load_number(f.x, whole, (size_t)(first + i)).re, u = load_number(f.x, whole, (size_t)(other + i)).re;
                double want = g / (1 + exp(-g)) * u, have = load_number(f.x, got, (size_t)i).re;
                if (!(fabs(have - want) <= 0.03 * fabs(want) + 1e-3)) fail_msg("row %d: %g, expected %g", i, have, want);
            }
        }
    mlxvk_array_free(a);
    weight_free(&w);
    free(x);
    added_behind_odd(&t);                              /* here: a process has only so many devices */
    finish(&t);
}

static void test_tiles(void **state) { (void)state; cases(2, "", 8); }
static void test_coopmat(void **state)
{
    static const char gates[] = "MLX_VK_QMM_KERNEL=3 ";                 /* as cases() writes them */
    (void)state;
    need_capability("cooperative_matrix_size");
    uint64_t before = dispatches_of(gates, "qmm_f16") + dispatches_of(gates, "qmm_bf16");
    cases(3, "", 16);
    assert_true(dispatches_of(gates, "qmm_f16") + dispatches_of(gates, "qmm_bf16") > before);
}

static void test_unpacked(void **state) { (void)state; cases(4, "", 8); }

/* Under MLX_VK_BATCH_INVARIANT: weights of which a device may make values for few rows, and which many meet unpacked. */
static void test_invariant_chains(void **state)
{
    static const struct { int bits, group, m, n, k; } problems[] = {
        { 4, 64, 1, 136, 512 }, { 4, 64, 7, 136, 1280 }, { 4, 32, 20, 128, 256 }, { 4, 64, 64, 136, 1280 }, { 4, 128, 65, 264, 768 },
        { 8, 64, 9, 136, 512 }, { 8, 32, 70, 136, 512 }, { 2, 64, 3, 128, 768 }, { 2, 128, 100, 128, 512 } };
    struct rng r = { 67 };
    struct setting s = start("MLX_VK_BATCH_INVARIANT=1");
    (void)state;
    for (size_t i = 0; i < COUNT(problems); i++)
        for (int half = 0; half < 2; half++) {
            mlxvk_dtype type = half ? MLXVK_FLOAT16 : MLXVK_BFLOAT16;
            struct format f = { problems[i].bits, problems[i].group, true, type, type, NULL };
            one_case(&r, s.stream, f, 0, problems[i].m, problems[i].n, problems[i].k, false);
        }
    finish(&s);
}

/* ---- the order of k in which rows and weights meet there ---- */

static mlxvk_kernel kernel_of(const char *name, const uint32_t *spirv, size_t size, uint32_t bindings, uint32_t push,
                              const uint32_t *constants, uint32_t count)
{
    const mlxvk_kernel_desc desc = { .name = name, .spirv = spirv, .spirv_size = size, .bindings = bindings,
        .push_size = push, .constants = constants, .constant_count = count, .threads = { 64 } };
    mlxvk_kernel kernel = { NULL };
    if (mlxvk_kernel_new(&kernel, &desc, device)) skip();                  /* it has no numbers of 16 bits in buffers */
    return kernel;
}

/* Where element i of a row in that order comes from. */
static int in_order(int i, int group, int bits)
{
    int half = 16 / bits, t = i % group / 8, q = i % 8 / 2, pair = i % 2;
    return i / group * group + q * (group / 4) + t / half * 2 * half + t % half + pair * half;
}

/* The library's kernels for the two, run as a caller's: each element of x is there, each value is the nearest
 * of float16, the next or the one before of bfloat16; beside that a scale's 256th part. */
static void classes_case(struct rng *r, mlxvk_dtype type, int bits, int group)
{
    enum { ROWS = 9, K = 512 };
    struct format f = { bits, group, true, type, type, NULL };
    struct weight w = random_weight(r, &f, 0, ROWS, K, stream);
    uint8_t bytes[ROWS * K * 2], out[2][ROWS * K * 2];
    float *x = random_floats(r, ROWS * K, 1, type, bytes);
    mlxvk_array from = upload(bytes, 0, ROWS, K, type, stream), to[2] = { { NULL }, { NULL } };
    uint32_t kind = (uint32_t)type, values[] = { 64, (uint32_t)bits, kind, kind, kind, 1, 0, (uint32_t)group / 4 };
    uint32_t order[] = { 64, (uint32_t)group, 16 / (uint32_t)bits }, shift = group == 32 ? 1 : group == 64 ? 2 : 3;
    struct { uint32_t count, group_shift, w_at, s_at, b_at, y_at, g_at; } unpack = { ROWS * K / 8, shift, 0, 0, 0, 0, 0 };
    struct { uint32_t count, eights, x_at, x_row, y_at; } turn = { ROWS * K / 8, K / 8, 0, K, 0 };
    mlxvk_kernel kernels[] = {
        kernel_of("classes", mlxvk_spv_classes, sizeof mlxvk_spv_classes, 2, sizeof turn, order, 3),
        kernel_of("dequantize", mlxvk_spv_dequantize, sizeof mlxvk_spv_dequantize, 5, sizeof unpack, values, 8) };
    double unit = type == MLXVK_BFLOAT16 ? 0.0052 : ldexp(1, -11);
    mlxvk_encoder e = { NULL };
    for (int i = 0; i < 2; i++) OK(mlxvk_array_empty(&to[i], (int[]){ ROWS, K }, 2, type, stream), stream);
    OK(mlxvk_stream_encoder(&e, stream), stream);
    OK(mlxvk_set_kernel(e, kernels[0]), stream);
    OK(mlxvk_set_output_array(e, to[0], 0, &turn.y_at), stream);
    OK(mlxvk_set_input_array(e, from, 1, &turn.x_at), stream);
    OK(mlxvk_set_bytes(e, &turn, sizeof turn, 0), stream);
    OK(mlxvk_dispatch_threads(e, turn.count, 1, 1), stream);
    OK(mlxvk_set_kernel(e, kernels[1]), stream);
    OK(mlxvk_set_input_array(e, w.array[0], 0, &unpack.w_at), stream);
    OK(mlxvk_set_input_array(e, w.array[1], 1, &unpack.s_at), stream);
    OK(mlxvk_set_input_array(e, w.array[2], 2, &unpack.b_at), stream);
    OK(mlxvk_set_output_array(e, to[1], 3, &unpack.y_at), stream);
    OK(mlxvk_set_input_array(e, w.array[1], 4, &unpack.g_at), stream);
    OK(mlxvk_set_bytes(e, &unpack, sizeof unpack, 0), stream);
    OK(mlxvk_dispatch_threads(e, unpack.count, 1, 1), stream);
    for (int i = 0; i < 2; i++) OK(mlxvk_array_read(to[i], out[i], sizeof out[i], stream), stream);
    for (int i = 0; i < ROWS * K; i++) {
        int at = i / K * K + in_order(i % K, group, bits);
        uint32_t code = w.words[at * bits / 32] >> at * bits % 32 & ((1u << bits) - 1);
        double s = w.scales[at / group], v = s * code + w.biases[at / group];
        assert_true(load_number(type, out[0], (size_t)i).re == (double)x[at]);
        assert_true(fabs(load_number(type, out[1], (size_t)i).re - v) <= fabs(v) * unit * 1.0001 + fabs(s) * ldexp(1, -8) + ldexp(1, -25));
    }
    for (int i = 0; i < 2; i++) { mlxvk_array_free(to[i]); mlxvk_kernel_free(kernels[i]); }
    mlxvk_array_free(from);
    weight_free(&w);
    free(x);
}

static void test_classes(void **state)
{
    static const struct { int bits, group; } formats[] = { { 4, 64 }, { 4, 32 }, { 4, 128 }, { 8, 64 }, { 8, 32 }, { 2, 64 }, { 2, 128 } };
    struct rng r = { 68 };
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++)
        for (int half = 0; half < 2; half++)
            classes_case(&r, half ? MLXVK_FLOAT16 : MLXVK_BFLOAT16, formats[i].bits, formats[i].group);
}

/* A few rows by cooperative matrices: by one subgroup and by several; K in one go, in several, and that ends within one; a
 * workgroup with one round and with more, on a large GPU with more than wait for their sums together; rows of W and x that
 * end within a matrix, batches. Then what it refuses. */
static void test_few_by_matrices(void **state)
{
    static const struct { const char *more; int bits, group, lead, m, n, k; } problems[] = {
        { "", 4, 64, 0, 3, 40, 192 }, { "", 8, 64, 2, 7, 17, 320 }, { "", 2, 64, 0, 8, 33, 1024 },
        { "", 4, 128, 0, 13, 16, 640 }, { "MLX_VK_QMV_THREADS=8", 4, 32, 0, 2, 50, 224 },
        { "MLX_VK_QMV_THREADS=32", 8, 32, 0, 17, 150, 96 }, { "MLX_VK_QMV_THREADS=16", 4, 64, 0, 5, 41, 576 },
        { "MLX_VK_QMV_THREADS=8", 4, 64, 0, 3, 600, 640 }, { "", 4, 64, 0, 63, 35, 1216 },
        { "", 4, 64, 0, 3, 13000, 1088 }, { "", 4, 64, 0, 1, 35000, 1088 },
    };
    static const struct { mlxvk_dtype type; const char *kernel; } types[] = {
        { MLXVK_FLOAT16, "qmv_matrix_f16" }, { MLXVK_BFLOAT16, "qmv_matrix_bf16" },
    };
    uint64_t taken[COUNT(types)] = { 0 };
    struct rng r = { 66 };
    (void)state;
    need_capability("cooperative_matrix_size");
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t i = 0; i < COUNT(problems) && taken[t] == i; i++) {              /* a device may lack one type's */
            struct format f = { problems[i].bits, problems[i].group, true, types[t].type, types[t].type, NULL };
            char gates[96];
            snprintf(gates, sizeof gates, "MLX_VK_QMM_KERNEL=6 %s", problems[i].more);
            struct setting s = start(gates);
            uint64_t before = dispatches_of(gates, types[t].kernel);
            one_case(&r, s.stream, f, problems[i].lead, problems[i].m, problems[i].n, problems[i].k, false);
            taken[t] += dispatches_of(gates, types[t].kernel) > before;
            finish(&s);
        }
    for (size_t t = 0; t < COUNT(types); t++) assert_true(taken[t] == COUNT(problems) || (!taken[t] && taken[!t]));
    cases(6, "", 4);
}

/* Some dozens of rows whose weights' codes become matrices once for all: one tile of x and several, rows of W and x that end
 * within a tile, more than a workgroup has; K in one part and in several, of whole chunks and not, shorter than a chunk; and of
 * x a part of longer rows. Then any. */
static void test_codes(void **state)
{
    static const struct { int bits, group, m, n, k; } problems[] = {
        { 4, 64, 17, 40, 192 }, { 4, 64, 32, 129, 1024 }, { 4, 64, 33, 300, 2880 }, { 4, 64, 64, 128, 4096 }, { 4, 64, 65, 17, 704 },
        { 8, 64, 20, 16, 320 }, { 8, 128, 48, 150, 1152 }, { 2, 64, 64, 33, 1024 }, { 2, 128, 31, 96, 128 }, { 4, 128, 50, 140, 2176 },
        { 8, 32, 64, 150, 96 }, { 4, 32, 35, 50, 1120 }, { 4, 64, 5, 41, 576 }, { 4, 64, 200, 35, 1216 }, { 4, 64, 40, 20000, 256 },
    };
    static const struct { mlxvk_dtype type; const char *kernel; } types[] = {
        { MLXVK_FLOAT16, "qmm_codes_f16" }, { MLXVK_BFLOAT16, "qmm_codes_bf16" },
    };
    static const char gates[] = "MLX_VK_QMM_KERNEL=8 ";                 /* as cases() writes them */
    uint64_t taken[COUNT(types)] = { 0 };
    struct rng r = { 79 };
    (void)state;
    need_capability("cooperative_matrix_size");
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t i = 0; i < COUNT(problems) && taken[t] == i; i++) {              /* only some drivers' places are known */
            struct format f = { problems[i].bits, problems[i].group, true, types[t].type, types[t].type, NULL };
            struct setting s = start(gates);
            uint64_t before = dispatches_of(gates, types[t].kernel);
            one_case(&r, s.stream, f, 0, problems[i].m, problems[i].n, problems[i].k, false);
            taken[t] += dispatches_of(gates, types[t].kernel) > before;
            finish(&s);
        }
    for (size_t t = 0; t < COUNT(types); t++) assert_true(taken[t] == COUNT(problems) || !taken[t]);
    cases(8, "", 16);
}

/* Two scales or biases of a row are one word but where either begins at an odd element: the same bits. */
static void test_matrices_odd_scales(void **state)
{
    enum { ROWS = 40, K = 512, M = 3 };
    const mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    struct rng r = { 78 };
    (void)state;
    need_capability("cooperative_matrix_size");
    for (int half = 0; half < 2; half++) {
        const struct format f = { 4, 64, true, half ? MLXVK_FLOAT16 : MLXVK_BFLOAT16, half ? MLXVK_FLOAT16 : MLXVK_BFLOAT16, NULL };
        uint16_t bytes[M * K], got[2][M * ROWS];
        struct setting t = start("MLX_VK_QMM_KERNEL=6");
        struct weight w = random_weight(&r, &f, 0, ROWS, K, t.stream);
        float *x = random_floats(&r, M * K, 1.0f, f.x, (uint8_t *)bytes);
        mlxvk_array a = upload(bytes, 0, M, K, f.x, t.stream), y = mlxvk_array_new();
        for (int moved = 0; moved < 4; moved++) {
            mlxvk_array of[2];
            for (int i = 0; i < 2; i++) {
                of[i] = moved >> i & 1 ? one_later(w.array[1 + i], t.stream) : mlxvk_array_new();
                if (!(moved >> i & 1)) OK(mlxvk_array_set(&of[i], w.array[1 + i]), t.stream);
            }
            OK(mlxvk_quantized_matmul(&y, a, w.array[0], of[0], of[1], true, group, bits, "affine", t.stream), t.stream);
            memset(got[moved > 0], 0xff, sizeof got[0]);
            OK(mlxvk_array_read(y, got[moved > 0], sizeof got[0], t.stream), t.stream);
            if (!moved) compare(&f, &w, x, got[0], 0, M, ROWS, K, false);
            else assert_memory_equal(got[1], got[0], sizeof got[0]);
            for (int i = 0; i < 2; i++) mlxvk_array_free(of[i]);
        }
        mlxvk_array_free(a);
        mlxvk_array_free(y);
        weight_free(&w);
        free(x);
        finish(&t);
    }
}

/* Gates as cases() writes them: a process has only so many devices (MOST_INSTANCES). */
#define SMALL_GRID "MLX_VK_QMM_KERNEL=0 MLX_VK_MAX_GRID=6"
#define SMALL_RANGE "MLX_VK_QMM_KERNEL=0 MLX_VK_MAX_BINDING_RANGE=4096"

/* Batches of x with its rows backwards, by a device's one binding and grid, or in parts. */
static void backwards(const char *gates, float *got)
{
    enum { BATCH = 2, M = 90, N = 32, K = 64 };
    struct setting t = start(gates);
    struct rng r = { 5 };
    float data[BATCH * M * K];
    mlxvk_array x = { NULL }, w = { NULL }, parts[3] = { { NULL } }, res = { NULL };
    mlxvk_vector_array v = { NULL };
    const mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    for (int i = 0; i < BATCH * M * K; i++) data[i] = (float)random_int(&r, -50, 50) / 32.0f;
    x = array_of(t.device, MLXVK_FLOAT32, data, (int[]){ BATCH, M, K }, 3);
    w = array_of(t.device, MLXVK_FLOAT32, data, (int[]){ BATCH, N, K }, 3);
    OK(mlxvk_quantize(&v, w, group, bits, "affine", (mlxvk_array){ NULL }, t.stream), t.stream);
    for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&parts[i], v, i), t.stream);
    OK(mlxvk_slice(&x, x, (int[]){ 0, -1, 0 }, 3, (int[]){ BATCH, -M - 1, K }, 3, (int[]){ 1, -1, 1 }, 3, t.stream), t.stream);
    OK(mlxvk_quantized_matmul(&res, x, parts[0], parts[1], parts[2], true, group, bits, "affine", t.stream), t.stream);
    OK(mlxvk_array_read(res, got, BATCH * M * N * sizeof *got, t.stream), t.stream);
    for (int i = 0; i < 3; i++) mlxvk_array_free(parts[i]);
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    mlxvk_array_free(res);
    mlxvk_vector_array_free(v);
    finish(&t);
}

static void test_backwards_in_parts(void **state)
{
    (void)state;
    static float want[2 * 90 * 32], got[COUNT(want)];
    const char *const gates[] = { SMALL_GRID, SMALL_RANGE };
    backwards(NULL, want);
    for (size_t g = 0; g < COUNT(gates); g++) {
        backwards(gates[g], got);
        for (size_t i = 0; i < COUNT(want); i++)
            if (!(fabsf(got[i] - want[i]) <= 1e-3f)) fail_msg("%s: element %zu is %g, not %g", gates[g], i, got[i], want[i]);
    }
}

/* Operands larger than a binding, grids of few workgroups, and kernels for little shared memory and few threads. */
static void test_small_devices(void **state)
{
    (void)state;
    cases(0, "MLX_VK_MAX_BINDING_RANGE=4096", 32);
    cases(2, "MLX_VK_MAX_BINDING_RANGE=2048", 24);
    cases(0, "MLX_VK_MAX_GRID=6", 12);
    cases(1, "MLX_VK_MAX_GRID=6", 12);
    cases(2, "MLX_VK_MAX_SHARED_MEMORY=16384", 12);
    cases(0, "MLX_VK_MAX_THREADS=256 MLX_VK_MAX_SHARED_MEMORY=16384", 12);
}

/* What no cut makes fit: the call says so, and of which operand. */
static void test_out_of_reach(void **state)
{
    struct setting t = start(SMALL_RANGE);
    const mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    mlxvk_array x = { NULL }, w = { NULL }, rhs = { NULL }, parts[3] = { { NULL } }, res = { NULL };
    mlxvk_vector_array v = { NULL };
    (void)state;
    OK(mlxvk_zeros(&w, (int[]){ 2, 64, 1024 }, 3, MLXVK_FLOAT32, t.stream), t.stream);
    OK(mlxvk_quantize(&v, w, group, bits, "affine", (mlxvk_array){ NULL }, t.stream), t.stream);
    for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&parts[i], v, i), t.stream);
    OK(mlxvk_zeros(&x, (int[]){ 1, 1, 1024 }, 3, MLXVK_FLOAT32, t.stream), t.stream);
    REFUSED(mlxvk_quantized_matmul(&res, x, parts[0], parts[1], parts[2], true, group, bits, "affine", t.stream),
            MLXVK_ERROR_LIMIT, t.stream, "x float32 (1, 1, 1024)", "longer than a binding");
    OK(mlxvk_zeros(&x, (int[]){ 1, 1, 64 }, 3, MLXVK_FLOAT32, t.stream), t.stream);
    OK(mlxvk_zeros(&rhs, (int[]){ 1 }, 1, MLXVK_UINT32, t.stream), t.stream);
    REFUSED(mlxvk_gather_qmm(&res, x, parts[0], parts[1], parts[2], (mlxvk_array){ NULL }, rhs, false, group, bits,
                             "affine", false, t.stream), MLXVK_ERROR_LIMIT, t.stream, "w uint32 (2, 64, 128)",
            "larger than a binding");
    for (int i = 0; i < 3; i++) mlxvk_array_free(parts[i]);
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    mlxvk_array_free(rhs);
    mlxvk_array_free(res);
    mlxvk_vector_array_free(v);
    finish(&t);
}

static void test_empty(void **state)
{
    struct rng r = { 5 };
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    struct format f = { 4, 64, true, MLXVK_FLOAT16, MLXVK_FLOAT16, NULL };
    (void)state;
    one_case(&r, s, f, 0, 0, 5, 64, false);
    one_case(&r, s, f, 0, 3, 0, 64, false);
    one_case(&r, s, f, 0, 3, 5, 0, false);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* a * b + c, rounded once or twice: a device's compiler may do either. */
static bool is_product_sum(mlxvk_dtype type, double is, float a, float b, float c)
{
    uint8_t bytes[8];
    bool equal = false;
    for (int once = 0; once < 2; once++) {
        volatile float product = a * b;
        store_number(type, bytes, 0, once ? fmaf(a, b, c) : product + c);
        double should = load_number(type, bytes, 0).re;
        equal = equal || (isnan(should) ? isnan(is) : is == should);
    }
    return equal;
}

/* Unpacked, bit for bit: scales and biases that are no numbers, infinite, opposite or that overflow, which eights of
 * bfloat16 are tested for together; more eights than whole workgroups take. */
static void test_unpacked_wild(void **state)
{
    enum { ROWS = 91, COLUMNS = 192, GROUP = 64, GROUPS = ROWS * COLUMNS / GROUP };
    const float wild[] = { 0.375f, NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1.0078125f, 0, -0.0f, -2.5f, 1e-30f };
    static const mlxvk_dtype types[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32 };
    static uint8_t scales[GROUPS * 4], biases[GROUPS * 4], got[ROWS * COLUMNS * 4];
    static uint32_t words[ROWS * COLUMNS / 8];
    mlxvk_optional_int group = { GROUP, true }, bits = { 4, true };
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    struct rng r = { 9 };
    (void)state;
    for (int i = 0; i < (int)COUNT(words); i++) words[i] = (uint32_t)random_bits(&r);
    for (int t = 0; t < (int)COUNT(types); t++) {
        mlxvk_array w, k, b, y = { NULL };
        for (size_t i = 0; i < GROUPS; i++) {
            store_number(types[t], scales, i, wild[i % COUNT(wild)]);
            store_number(types[t], biases, i, wild[i / COUNT(wild) % COUNT(wild)]);
        }
        w = upload(words, 0, ROWS, COLUMNS / 8, MLXVK_UINT32, s);
        k = upload(scales, 0, ROWS, COLUMNS / GROUP, types[t], s);
        b = upload(biases, 0, ROWS, COLUMNS / GROUP, types[t], s);
        OK(mlxvk_dequantize(&y, w, k, b, group, bits, "affine", (mlxvk_array){ NULL },
                            (mlxvk_optional_dtype){ types[t], true }, s), s);
        OK(mlxvk_array_read(y, got, mlxvk_array_nbytes(y), s), s);
        for (size_t i = 0; i < ROWS * COLUMNS; i++) {
            float scale = (float)load_number(types[t], scales, i / GROUP).re;
            float bias = (float)load_number(types[t], biases, i / GROUP).re, code = (float)(words[i / 8] >> i % 8 * 4 & 15);
            double is = load_number(types[t], got, i).re;
            if (!is_product_sum(types[t], is, scale, code, bias)) fail_msg("%zu: %g, not %g * %g + %g", i, is, scale, code, bias);
        }
        mlxvk_array_free(w);
        mlxvk_array_free(k);
        mlxvk_array_free(b);
        mlxvk_array_free(y);
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen), cmocka_unit_test(test_few_rows), cmocka_unit_test(test_few_rows_plain),
        cmocka_unit_test(test_few_rows_split), cmocka_unit_test(test_held), cmocka_unit_test(test_odd_places),
        cmocka_unit_test(test_held_rows),
        cmocka_unit_test(test_held_wild), cmocka_unit_test(test_held_long), cmocka_unit_test(test_held_odd_places),
        cmocka_unit_test(test_tiles), cmocka_unit_test(test_coopmat), cmocka_unit_test(test_few_by_matrices),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_matrices_odd_scales),
        cmocka_unit_test(test_invariant_chains), cmocka_unit_test(test_classes),
        cmocka_unit_test(test_unpacked), cmocka_unit_test(test_unpacked_wild), cmocka_unit_test(test_backwards_in_parts),
        cmocka_unit_test(test_small_devices), cmocka_unit_test(test_out_of_reach), cmocka_unit_test(test_empty),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_group("quantized", tests, NULL, NULL);
}
