/* Products beyond matmul and quantized_matmul, and small floats: against sums on the host, with views, wrong arguments, indices
 * out of range and nothing to do. */
#include "unit/support.h"
#include <math.h>
#include <stdio.h>

static const mlxvk_optional_int none = { 0, false };

static mlxvk_optional_int some(int value) { return (mlxvk_optional_int){ value, true }; }

/* ---- small floats ---- */

static void test_fp8(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_array codes = mlxvk_array_new(), values = mlxvk_array_new(), back = mlxvk_array_new(), odd = mlxvk_array_new();
    const float given[] = { NAN, INFINITY, -INFINITY, 1e30f, -449, 447, 0, -0.0f, 0.0009765625f, 0.0009766f, 17, 19 };
    const uint8_t want[] = { 126, 126, 254, 126, 254, 126, 0, 128, 0, 1, 88, 90 };
    uint8_t all[256], got[256];
    float numbers[256];
    int shape[1] = { 256 }, few[1] = { (int)COUNT(given) };
    (void)state;
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    OK(mlxvk_array_new_data_device(&codes, all, shape, 1, MLXVK_UINT8, d), s);
    OK(mlxvk_from_fp8(&values, codes, MLXVK_FLOAT32, s), s);
    OK(mlxvk_array_read(values, numbers, sizeof numbers, s), s);
    for (int i = 0; i < 256; i++) {
        double size = i & 120 ? ldexp(8 + (i & 7), (i >> 3 & 15) - 10) : ldexp(i & 7, -9);
        assert_true(numbers[i] == (float)(i & 128 ? -size : size));
    }
    OK(mlxvk_to_fp8(&back, values, s), s);
    OK(mlxvk_array_read(back, got, sizeof got, s), s);
    for (int i = 0; i < 256; i++) assert_int_equal(got[i], (i & 127) == 127 ? i - 1 : i);
    OK(mlxvk_array_new_data_device(&odd, given, few, 1, MLXVK_FLOAT32, d), s);
    OK(mlxvk_to_fp8(&back, odd, s), s);
    OK(mlxvk_array_read(back, got, sizeof want, s), s);
    assert_memory_equal(got, want, sizeof want);
    REFUSED(mlxvk_to_fp8(&back, codes, s), MLXVK_ERROR_DTYPE, s, "to_fp8", "uint8");
    REFUSED(mlxvk_from_fp8(&back, odd, MLXVK_FLOAT32, s), MLXVK_ERROR_DTYPE, s, "from_fp8", "float32");
    REFUSED(mlxvk_from_fp8(&back, codes, MLXVK_INT32, s), MLXVK_ERROR_DTYPE, s, "from_fp8", "int32");
    mlxvk_array_free(codes);
    mlxvk_array_free(values);
    mlxvk_array_free(back);
    mlxvk_array_free(odd);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* Rows of 48 values in groups of 16: half a block of codes is left over. Then what the modes refuse. */
static void test_modes(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    mlxvk_array w = mlxvk_array_new(), x = mlxvk_array_new(), q = mlxvk_array_new(), k = mlxvk_array_new(), y = mlxvk_array_new();
    mlxvk_array nothing = mlxvk_array_new();
    float weight[4 * 48], rows[2 * 48], sums[2 * 4], columns[2 * 48];
    (void)state;
    for (int i = 0; i < 4 * 48; i++) weight[i] = (float)(i % 7 - 3);
    for (int i = 0; i < 2 * 48; i++) rows[i] = (float)(i % 5 - 2);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) {
            sums[i * 4 + j] = 0;
            for (int l = 0; l < 48; l++) sums[i * 4 + j] += rows[i * 48 + l] * weight[j * 48 + l];
        }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 48; j++) {
            columns[i * 48 + j] = 0;
            for (int l = 0; l < 4; l++) columns[i * 48 + j] += rows[i * 4 + l] * weight[l * 48 + j];
        }
    for (int i = 0; i < 4 * 48; i++) weight[i] *= 2;           /* a scale of 1: exact */
    for (int i = 0; i < 8; i++) sums[i] *= 2;
    for (int i = 0; i < 96; i++) columns[i] *= 2;
    w = floats(d, weight, (int[]){ 4, 48 }, 2);
    x = floats(d, rows, (int[]){ 2, 48 }, 2);
    OK(mlxvk_quantize(&parts, w, none, none, "nvfp4", nothing, s), s);
    assert_int_equal(mlxvk_vector_array_size(parts), 2);
    OK(mlxvk_vector_array_get(&q, parts, 0), s);
    OK(mlxvk_vector_array_get(&k, parts, 1), s);
    OK(mlxvk_quantized_matmul(&y, x, q, k, nothing, true, none, none, "nvfp4", s), s);
    expect_floats(y, sums, COUNT(sums), 1e-6, 1e-5, s);
    mlxvk_array_free(x);
    x = floats(d, rows, (int[]){ 2, 4 }, 2);
    OK(mlxvk_quantized_matmul(&y, x, q, k, nothing, false, none, none, "nvfp4", s), s);
    expect_floats(y, columns, COUNT(columns), 1e-6, 1e-5, s);
    REFUSED(mlxvk_quantized_matmul(&y, x, q, k, nothing, false, none, none, "affine", s), MLXVK_ERROR_ARGUMENT, s, "biases");
    REFUSED(mlxvk_quantized_matmul(&y, x, q, k, k, false, none, none, "nvfp4", s), MLXVK_ERROR_ARGUMENT, s, "biases");
    REFUSED(mlxvk_quantized_matmul(&y, x, q, w, nothing, false, none, none, "nvfp4", s), MLXVK_ERROR_DTYPE, s, "uint8");
    REFUSED(mlxvk_quantized_matmul(&y, x, q, k, nothing, false, none, none, "mxfp4", s), MLXVK_ERROR_SHAPE, s, "groups");
    REFUSED(mlxvk_quantize(&parts, w, some(32), none, "nvfp4", nothing, s), MLXVK_ERROR_ARGUMENT, s, "32");
    REFUSED(mlxvk_quantize(&parts, w, none, some(4), "mxfp8", nothing, s), MLXVK_ERROR_ARGUMENT, s, "4 bits");
    REFUSED(mlxvk_quantize(&parts, w, none, none, "mxfp4", nothing, s), MLXVK_ERROR_SHAPE, s, "32");
    REFUSED(mlxvk_quantize(&parts, w, none, none, "mxfp5", nothing, s), MLXVK_ERROR_ARGUMENT, s, "mxfp5");
    REFUSED(mlxvk_quantize(&parts, w, none, none, "nvfp4", w, s), MLXVK_ERROR_ARGUMENT, s, "global_scale");
    mlxvk_vector_array_free(parts);
    mlxvk_array_free(w);
    mlxvk_array_free(x);
    mlxvk_array_free(q);
    mlxvk_array_free(k);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* ---- matrices chosen by index arrays ---- */

/* Random floats that a half type holds, as an array of such and in memory. */
static mlxvk_array random_array(struct rng *r, float **values, const int *shape, int ndim, mlxvk_dtype dtype, mlxvk_stream s)
{
    mlxvk_array a = mlxvk_array_new();
    size_t count = 1;
    uint8_t *bytes;
    for (int i = 0; i < ndim; i++) count *= (size_t)shape[i];
    bytes = malloc(count * 4 + 4);
    *values = malloc(count * sizeof **values + 4);
    assert_true(bytes && *values);
    for (size_t i = 0; i < count; i++) {
        (*values)[i] = (float)random_int(r, -64, 64) / 32;
        store_number(dtype, bytes, i, (*values)[i]);
    }
    OK(mlxvk_array_new_data_device(&a, bytes, shape, ndim, dtype, mlxvk_stream_device(s)), s);
    free(bytes);
    return a;
}

/* Every other matrix of an array, as a view and in memory. */
static void every_other(mlxvk_array *a, float **values, int matrices, int rows, int columns, mlxvk_stream s)
{
    size_t size = (size_t)rows * (size_t)columns;
    for (int i = 0; i < matrices; i++) memmove(*values + (size_t)i * size, *values + (size_t)(2 * i + 1) * size, size * sizeof **values);
    OK(mlxvk_slice(a, *a, (int[]){ 1, 0, 0 }, 3, (int[]){ 2 * matrices, rows, columns }, 3, (int[]){ 2, 1, 1 }, 3, s), s);
}

/* What an index array of `entries` says of `matrices`; NULL: absent. One in twenty lies outside. */
static mlxvk_array random_indices(struct rng *r, int *index, int entries, int matrices, bool sorted, mlxvk_device d)
{
    for (int i = 0; i < entries; i++)
        index[i] = sorted ? i * matrices / entries : random_chance(r, 5) ? 1 << 30 : random_int(r, 0, matrices - 1);
    return ints(d, index, (int[]){ entries }, 1);
}

struct gather_case { int entries, matrices, weights, m, n, k; bool lhs, sorted, transpose; mlxvk_dtype dtype; const char *mode; };

static void expect_gathered(const struct gather_case *g, const float *a, const float *b, const int *lhs, const int *rhs,
                            mlxvk_array y, mlxvk_stream s)
{
    size_t count = (size_t)g->entries * (size_t)g->m * (size_t)g->n;
    double unit = g->dtype == MLXVK_FLOAT32 ? 1e-6 : g->dtype == MLXVK_FLOAT16 ? 1e-3 : 8e-3;
    uint8_t *bytes = malloc(count * 4 + 4);
    assert_int_equal(mlxvk_array_size(y), count);
    OK(mlxvk_array_read(y, bytes, mlxvk_array_nbytes(y), s), s);
    for (int e = 0; e < g->entries; e++) {
        int x = lhs[e] < g->matrices ? lhs[e] : g->matrices - 1, w = rhs[e] < g->weights ? rhs[e] : g->weights - 1;
        for (int i = 0; i < g->m; i++)
            for (int j = 0; j < g->n; j++) {
                double sum = 0, sizes = 0, got = load_number(g->dtype, bytes, ((size_t)e * (size_t)g->m + (size_t)i) * (size_t)g->n + (size_t)j).re;
                for (int l = 0; l < g->k; l++) {
                    double p = (double)a[(x * g->m + i) * g->k + l] * b[g->transpose ? (w * g->n + j) * g->k + l : (w * g->k + l) * g->n + j];
                    sum += p;
                    sizes += fabs(p);
                }
                double slack = g->dtype != MLXVK_FLOAT32 && g->mode ? unit * 0.2 : 2e-6;
                if (!(fabs(got - sum) <= unit * fabs(sum) + slack * sizes + 1e-6))
                    fail_msg("entry %d (%d, %d) row %d column %d: %.9g, expected %.9g (%s, %d entries, %d x %d x %d%s)", e, x, w, i, j, got,
                             sum, g->mode ? g->mode : mlxvk_dtype_name(g->dtype), g->entries, g->m, g->n, g->k, g->transpose ? ", transposed" : "");
            }
    }
    free(bytes);
}

static void gather_one(struct rng *r, const struct gather_case *g, mlxvk_stream s)
{
    mlxvk_device d = mlxvk_stream_device(s);
    bool quantized = g->mode != NULL, odd_a = random_chance(r, 30), odd_b = random_chance(r, 30);
    int *lhs = malloc((size_t)g->entries * sizeof *lhs), *rhs = malloc((size_t)g->entries * sizeof *rhs);
    int rows = g->transpose ? g->n : g->k, columns = g->transpose ? g->k : g->n;
    float *a_values, *b_values;
    mlxvk_array a = random_array(r, &a_values, (int[]){ odd_a ? 2 * g->matrices : g->matrices, g->m, g->k }, 3, g->dtype, s);
    mlxvk_array b = random_array(r, &b_values, (int[]){ odd_b ? 2 * g->weights : g->weights, rows, columns }, 3, g->dtype, s);
    mlxvk_array left = mlxvk_array_new(), right = random_indices(r, rhs, g->entries, g->weights, g->sorted, d), y = mlxvk_array_new();
    if (odd_a) every_other(&a, &a_values, g->matrices, g->m, g->k, s);
    if (odd_b) every_other(&b, &b_values, g->weights, rows, columns, s);
    if (g->lhs) {
        mlxvk_array_free(left);
        left = random_indices(r, lhs, g->entries, g->matrices, false, d);
    } else for (int i = 0; i < g->entries; i++) lhs[i] = i;
    if (quantized) {
        mlxvk_vector_array parts = mlxvk_vector_array_new();
        mlxvk_array part[3] = { mlxvk_array_new(), mlxvk_array_new(), mlxvk_array_new() }, all = mlxvk_array_new(), none_array = mlxvk_array_new();
        OK(mlxvk_quantize(&parts, b, none, none, g->mode, none_array, s), s);
        for (size_t i = 0; i < mlxvk_vector_array_size(parts); i++) OK(mlxvk_vector_array_get(&part[i], parts, i), s);
        OK(mlxvk_dequantize(&all, part[0], part[1], part[2], none, none, g->mode, none_array, (mlxvk_optional_dtype){ MLXVK_FLOAT32, true }, s), s);
        OK(mlxvk_array_read(all, b_values, mlxvk_array_nbytes(all), s), s);
        OK(mlxvk_gather_qmm(&y, a, part[0], part[1], part[2], left, right, g->transpose, none, none, g->mode, g->sorted, s), s);
        for (int i = 0; i < 3; i++) mlxvk_array_free(part[i]);
        mlxvk_array_free(all);
        mlxvk_vector_array_free(parts);
    } else {
        if (g->transpose) OK(mlxvk_swapaxes(&b, b, 1, 2, s), s);
        OK(mlxvk_gather_mm(&y, a, b, left, right, g->sorted, s), s);
    }
    expect_gathered(g, a_values, b_values, lhs, rhs, y, s);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(left);
    mlxvk_array_free(right);
    mlxvk_array_free(y);
    free(a_values);
    free(b_values);
    free(lhs);
    free(rhs);
}

static void gather_cases(const char *gates, bool quantized, int count)
{
    static const char *const modes[] = { "affine", "mxfp4", "nvfp4", "mxfp8" };
    static const mlxvk_dtype types[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32 };
    struct rng r = { 21 };
    mlxvk_device d = open_device(gates);
    mlxvk_stream s = open_stream(d);
    for (int i = 0; i < count; i++) {
        int m = random_chance(&r, 60) ? 1 : random_int(&r, 2, 20), entries = random_int(&r, 1, m == 1 ? 80 : 9);
        struct gather_case g = { entries, random_int(&r, 1, 5), random_int(&r, 1, 7), m, random_int(&r, 1, 80), 64 * random_int(&r, 1, 2),
                                 random_chance(&r, 50), random_chance(&r, 40), random_chance(&r, 60), types[i % 3], NULL };
        if (!g.lhs) g.matrices = entries;
        if (quantized) g.mode = modes[i % 4];
        if (quantized && !g.transpose) { g.n = g.k; g.k = random_int(&r, 1, 70); }
        if (!quantized) g.k = random_int(&r, 1, 70);
        gather_one(&r, &g, s);
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_gather_qmm(void **state) { (void)state; gather_cases("", true, 10); }
static void test_gather_qmm_held(void **state) { (void)state; gather_cases("MLX_VK_QMM_KERNEL=5", true, 12); }
static void test_gather_qmm_plain(void **state) { (void)state; gather_cases("MLX_VK_ENABLE_SUBGROUP=0", true, 6); }
static void test_gather_qmm_tiles(void **state) { (void)state; gather_cases("MLX_VK_QMM_KERNEL=2", true, 10); }

/* Weights and results larger than a binding, by each kernel; many x that index arrays choose from; grids of few
 * workgroups. */
static void test_gather_qmm_in_parts(void **state)
{
    static const char *const small[] = { "MLX_VK_MAX_BINDING_RANGE=4096",
                                         "MLX_VK_QMM_KERNEL=2 MLX_VK_MAX_BINDING_RANGE=4096",
                                         "MLX_VK_QMM_KERNEL=5 MLX_VK_MAX_BINDING_RANGE=4096" };
    static const struct gather_case cases[] = {
        { 60, 40, 5, 3, 90, 128, true, false, true, MLXVK_FLOAT16, "affine" },
        { 9, 9, 4, 40, 90, 128, false, false, true, MLXVK_BFLOAT16, "mxfp4" },
        { 70, 70, 3000, 1, 8, 32, false, true, true, MLXVK_FLOAT32, "mxfp8" },
    };
    struct rng r = { 22 };
    (void)state;
    gather_cases("MLX_VK_MAX_BINDING_RANGE=16384", true, 24);
    gather_cases("MLX_VK_QMM_KERNEL=5 MLX_VK_MAX_BINDING_RANGE=16384", true, 12);
    gather_cases("MLX_VK_ENABLE_SUBGROUP=0 MLX_VK_MAX_BINDING_RANGE=16384", true, 8);
    gather_cases("MLX_VK_QMM_KERNEL=2 MLX_VK_MAX_BINDING_RANGE=16384", true, 24);
    gather_cases("MLX_VK_QMM_KERNEL=2 MLX_VK_MAX_GRID=6", true, 10);
    gather_cases("MLX_VK_MAX_GRID=6", true, 10);
    gather_cases("MLX_VK_QMM_KERNEL=2 MLX_VK_MAX_THREADS=256 MLX_VK_MAX_SHARED_MEMORY=16384", true, 10);
    for (size_t g = 0; g < COUNT(small); g++) {
        struct setting t = start(small[g]);
        for (size_t i = 0; i < COUNT(cases); i++) gather_one(&r, &cases[i], t.stream);
        finish(&t);
    }
}

static void test_gather_mm(void **state) { (void)state; gather_cases("", false, 24); }
static void test_gather_mm_plain(void **state) { (void)state; gather_cases("MLX_VK_MATMUL_KERNEL=1", false, 8); }
static void test_gather_mm_vector(void **state) { (void)state; gather_cases("MLX_VK_MATMUL_KERNEL=2", false, 12); }
static void test_gather_mm_tiled(void **state) { (void)state; gather_cases("MLX_VK_MATMUL_KERNEL=3", false, 12); }

/* What one binding or one grid cannot take is done in pieces: of entries, matrices, rows, columns. */
static void test_gather_mm_pieces(void **state)
{
    (void)state;
    gather_cases("MLX_VK_MAX_BINDING_RANGE=8192", false, 9);
    gather_cases("MLX_VK_MAX_BINDING_RANGE=8192 MLX_VK_MATMUL_KERNEL=3", false, 5);
    gather_cases("MLX_VK_MAX_GRID=8", false, 6);
    struct rng r = { 23 };
    struct setting t = start("MLX_VK_MAX_GRID=8");     /* more columns of tiles; entry by entry it would be slower */
    gather_one(&r, &(struct gather_case){ 5, 3, 2, 3, 263, 20, true, false, false, MLXVK_FLOAT32, NULL }, t.stream);
    finish(&t);
}

/* By cooperative matrices, where there are: those kernels must run, and not others in their place. */
static void gather_matrices(const char *gates, bool quantized, int count, const char *kernel)
{
    char f16[32], bf16[32];
    snprintf(f16, sizeof f16, "%s_f16", kernel);
    snprintf(bf16, sizeof bf16, "%s_bf16", kernel);
    need_capability("cooperative_matrix_size");
    uint64_t before = dispatches_of(gates, f16) + dispatches_of(gates, bf16);
    gather_cases(gates, quantized, count);
    assert_true(dispatches_of(gates, f16) + dispatches_of(gates, bf16) > before);
}

static void test_gather_qmm_matrices(void **state)
{
    (void)state;
    gather_matrices("MLX_VK_QMM_KERNEL=3", true, 10, "qmm_grouped");
}

static void test_gather_mm_matrices(void **state)
{
    (void)state;
    gather_matrices("MLX_VK_MATMUL_KERNEL=4", false, 12, "matmul_grouped");
}

/* More weights than a workgroup has threads, more than can be counted, and none that are used often. */
static void test_gather_many(void **state)
{
    static const struct gather_case many[] = {
        { 2500, 40, 1500, 1, 8, 64, true, false, true, MLXVK_FLOAT32, "affine" }, { 40, 40, 5000, 2, 5, 32, false, false, true, MLXVK_FLOAT32, "mxfp4" },
        { 3000, 3000, 1100, 1, 6, 20, false, true, false, MLXVK_FLOAT32, NULL }, { 7000, 30, 1500, 1, 3, 9, true, false, false, MLXVK_FLOAT16, NULL },
    };
    mlxvk_device d = open_device("MLX_VK_QMM_KERNEL=2");
    mlxvk_stream s = open_stream(d);
    struct rng r = { 71 };
    (void)state;
    for (size_t i = 0; i < COUNT(many); i++) gather_one(&r, &many[i], s);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* Indices broadcast, an absent one counts; nothing to do; wrong arguments. */
static void test_gather_edges(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    const float a_values[] = { 1, 2, 3, 4 }, b_values[] = { 1, 0, 0, 1, 0, 1, 1, 0 };
    const float want[] = { 1, 2, 2, 1, 3, 4, 4, 3 };
    mlxvk_array a = floats(d, a_values, (int[]){ 2, 1, 1, 2 }, 4), b = floats(d, b_values, (int[]){ 2, 2, 2 }, 3);
    mlxvk_array rows = ints(d, (int[]){ 0, 1, 0, 1 }, (int[]){ 2, 2 }, 2), column = ints(d, (int[]){ 0, 1 }, (int[]){ 2, 1 }, 2);
    mlxvk_array line = ints(d, (int[]){ 0, 1 }, (int[]){ 2 }, 1), y = mlxvk_array_new(), nothing = mlxvk_array_new(), empty = mlxvk_array_new();
    (void)state;
    OK(mlxvk_gather_mm(&y, a, b, nothing, rows, false, s), s);         /* a's batch (2, 1) with (2, 2) */
    assert_int_equal(mlxvk_array_ndim(y), 4);
    expect_floats(y, want, COUNT(want), 0, 0, s);
    OK(mlxvk_gather_mm(&y, a, b, column, line, false, s), s);
    expect_floats(y, want, COUNT(want), 0, 0, s);
    OK(mlxvk_gather_mm(&y, a, b, column, nothing, false, s), s);
    expect_floats(y, want, COUNT(want), 0, 0, s);
    OK(mlxvk_slice(&empty, line, (int[]){ 0 }, 1, (int[]){ 0 }, 1, (int[]){ 1 }, 1, s), s);
    OK(mlxvk_gather_mm(&y, a, b, empty, empty, false, s), s);
    assert_int_equal(mlxvk_array_size(y), 0);
    OK(mlxvk_slice(&empty, b, (int[]){ 0, 0, 0 }, 3, (int[]){ 0, 2, 2 }, 3, (int[]){ 1, 1, 1 }, 3, s), s);
    REFUSED(mlxvk_gather_mm(&y, a, empty, line, line, false, s), MLXVK_ERROR_SHAPE, s, "no matrices");
    REFUSED(mlxvk_gather_mm(&y, rows, rows, line, line, false, s), MLXVK_ERROR_DTYPE, s, "int32");
    REFUSED(mlxvk_gather_mm(&y, a, b, b, line, false, s), MLXVK_ERROR_DTYPE, s, "no integers");
    mlxvk_array_free(empty);
    empty = ints(d, (int[]){ 0, 1, 0 }, (int[]){ 3 }, 1);
    REFUSED(mlxvk_gather_mm(&y, a, b, line, empty, false, s), MLXVK_ERROR_SHAPE, s, "broadcast");
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(rows);
    mlxvk_array_free(column);
    mlxvk_array_free(line);
    mlxvk_array_free(y);
    mlxvk_array_free(empty);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* Scales that are powers of two: rounded up, or to the nearest, as MLX 0.30.3 does. */
static void test_scale_rounding(void **state)
{
    static const float tops[] = { 1, 2, 3, 4, 5, 6, 7, 1.7f, 0 };
    static const struct { const char *gates, *mode; int power[9]; } cases[] = {
        { "", "mxfp4", { -2, -1, -1, 0, 0, 0, 1, -1, 0 } }, { "", "mxfp8", { -8, -7, -7, -6, -6, -6, -6, -8, 0 } },
        { "MLX_VK_MX_SCALES_NEAREST=1", "mxfp4", { -3, -2, -1, -1, 0, 0, 0, -2, 0 } },
        { "MLX_VK_MX_SCALES_NEAREST=1", "mxfp8", { -9, -8, -7, -7, -6, -6, -6, -8, 0 } },
    };
    float values[9 * 32] = { 0 };
    (void)state;
    for (int i = 0; i < 9; i++) values[i * 32 + i] = i % 2 ? -tops[i] : tops[i];
    for (size_t k = 0; k < COUNT(cases); k++) {
        mlxvk_device d = open_device(cases[k].gates);
        mlxvk_stream s = open_stream(d);
        mlxvk_array w = floats(d, values, (int[]){ 9, 32 }, 2), scales = mlxvk_array_new(), nothing = mlxvk_array_new();
        mlxvk_vector_array parts = mlxvk_vector_array_new();
        uint8_t got[9];
        OK(mlxvk_quantize(&parts, w, none, none, cases[k].mode, nothing, s), s);
        OK(mlxvk_vector_array_get(&scales, parts, 1), s);
        OK(mlxvk_array_read(scales, got, sizeof got, s), s);
        for (int i = 0; i < 9; i++) assert_int_equal(got[i] - 127, cases[k].power[i]);
        mlxvk_vector_array_free(parts);
        mlxvk_array_free(w);
        mlxvk_array_free(scales);
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
    }
}

/* Two products of one x, and silu(y0) * y1 behind them, in one dispatch: the same as one by one. */
static void together(const char *mode, const char *gates, float *got)
{
    mlxvk_device d = open_device(gates);
    mlxvk_stream s = open_stream(d);
    struct rng r = { 61 };
    float *values[3];
    mlxvk_array x = random_array(&r, &values[0], (int[]){ 1, 96 }, 2, MLXVK_BFLOAT16, s), nothing = mlxvk_array_new(), y[4];
    mlxvk_array part[2][2];
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    for (int i = 0; i < 4; i++) { y[i] = mlxvk_array_new(); part[i / 2][i % 2] = mlxvk_array_new(); }
    for (int i = 0; i < 2; i++) {
        mlxvk_array w = random_array(&r, &values[1 + i], (int[]){ 40, 96 }, 2, MLXVK_BFLOAT16, s);
        OK(mlxvk_quantize(&parts, w, none, none, mode, nothing, s), s);
        for (size_t k = 0; k < 2; k++) OK(mlxvk_vector_array_get(&part[i][k], parts, k), s);
        OK(eval_one(part[i][0]), s);
        mlxvk_array_free(w);
    }
    for (int i = 0; i < 2; i++) OK(mlxvk_quantized_matmul(&y[i], x, part[i][0], part[i][1], nothing, true, none, none, mode, s), s);
    OK(mlxvk_sigmoid(&y[2], y[0], s), s);
    OK(mlxvk_multiply(&y[0], y[0], y[2], s), s);
    OK(mlxvk_multiply(&y[3], y[0], y[1], s), s);
    OK(mlxvk_astype(&y[3], y[3], MLXVK_FLOAT32, s), s);
    for (int i = 0; i < 3; i++) { mlxvk_array_free(y[i]); free(values[i]); }
    OK(mlxvk_array_read(y[3], got, mlxvk_array_nbytes(y[3]), s), s);
    for (int i = 0; i < 4; i++) mlxvk_array_free(part[i / 2][i % 2]);
    mlxvk_vector_array_free(parts);
    mlxvk_array_free(y[3]);
    mlxvk_array_free(x);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_modes_together(void **state)
{
    static const char *const modes[] = { "mxfp4", "nvfp4", "mxfp8" };
    (void)state;
    for (size_t i = 0; i < COUNT(modes); i++) {
        float apart[40], one[40], held[40];
        together(modes[i], "MLX_VK_ENABLE_QMM_GROUPED=0", apart);
        together(modes[i], "", one);
        together(modes[i], "MLX_VK_QMM_KERNEL=5", held);
        for (int k = 0; k < 40; k++) {               /* without the roundings in between */
            assert_true(fabsf(one[k] - apart[k]) <= 0.03f * fabsf(apart[k]) + 0.03f);
            assert_true(fabsf(held[k] - apart[k]) <= 0.03f * fabsf(apart[k]) + 0.03f);
        }
    }
}

/* ---- Hadamard transforms ---- */

static void hadamard_case(struct rng *r, mlxvk_stream s, int m, int bits, int rows, mlxvk_dtype dtype)
{
    mlxvk_device d = mlxvk_stream_device(s);
    int n = m << bits, wide = n + 3;
    float signs[28 * 28], identity[28 * 28] = { 0 }, *values;
    uint8_t *got = malloc((size_t)rows * (size_t)n * 4);
    double *row = malloc((size_t)n * sizeof *row), unit = dtype == MLXVK_FLOAT32 ? 1e-6 : dtype == MLXVK_FLOAT16 ? 1e-3 : 8e-3;
    mlxvk_array y = mlxvk_array_new(), one, a = random_array(r, &values, (int[]){ rows, wide }, 2, dtype, s);
    mlxvk_optional_float scale = { 0.125f, true };
    for (int i = 0; i < m; i++) identity[i * m + i] = 1;
    one = floats(d, identity, (int[]){ m, m }, 2);
    OK(mlxvk_hadamard_transform(&y, one, (mlxvk_optional_float){ 1, true }, s), s);
    OK(mlxvk_array_read(y, signs, mlxvk_array_nbytes(y), s), s);       /* row j: column j of the matrix */
    OK(mlxvk_slice(&a, a, (int[]){ 0, 3 }, 2, (int[]){ rows, wide }, 2, (int[]){ 1, 1 }, 2, s), s);
    OK(mlxvk_hadamard_transform(&y, a, scale, s), s);
    assert_int_equal(mlxvk_array_dtype(y), dtype);
    OK(mlxvk_array_read(y, got, mlxvk_array_nbytes(y), s), s);
    for (int t = 0; t < rows; t++) {
        for (int i = 0; i < n; i++) row[i] = values[t * wide + 3 + i];
        for (int h = 1; h < 1 << bits; h *= 2)
            for (int i = 0; i < n; i++)
                if (!(i % (1 << bits) & h)) { double x = row[i], z = row[i + h]; row[i] = x + z; row[i + h] = x - z; }
        for (int i = 0; i < n; i++) {
            double sum = 0, number = load_number(dtype, got, (size_t)t * (size_t)n + (size_t)i).re;
            for (int j = 0; j < m; j++) sum += signs[j * m + i / (1 << bits)] * row[(j << bits) + i % (1 << bits)];
            if (!(fabs(number - sum / 8) <= unit * fabs(sum) + 2e-6 * n))
                fail_msg("%d * 2^%d, row %d, element %d: %.9g, expected %.9g", m, bits, t, i, number, sum / 8);
        }
    }
    mlxvk_array_free(a);
    mlxvk_array_free(one);
    mlxvk_array_free(y);
    free(values);
    free(got);
    free(row);
}

static void test_hadamard(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    struct rng r = { 31 };
    mlxvk_array a = mlxvk_array_new(), y = mlxvk_array_new();
    (void)state;
    hadamard_case(&r, s, 1, 0, 5, MLXVK_FLOAT16);
    hadamard_case(&r, s, 1, 3, 700, MLXVK_FLOAT32);
    hadamard_case(&r, s, 12, 1, 100, MLXVK_BFLOAT16);
    hadamard_case(&r, s, 20, 8, 3, MLXVK_FLOAT32);
    hadamard_case(&r, s, 1, 14, 3, MLXVK_FLOAT16);             /* too long for one workgroup */
    hadamard_case(&r, s, 1, 17, 1, MLXVK_FLOAT32);
    hadamard_case(&r, s, 28, 9, 2, MLXVK_BFLOAT16);
    hadamard_case(&r, s, 12, 14, 1, MLXVK_FLOAT32);
    OK(mlxvk_array_new_data_device(&a, (int32_t[]){ 1, 1, 0, 0 }, (int[]){ 4 }, 1, MLXVK_INT32, d), s);
    OK(mlxvk_hadamard_transform(&y, a, (mlxvk_optional_float){ 0, false }, s), s);
    expect_floats(y, (float[]){ 1, 0, 1, 0 }, 4, 1e-6, 0, s);
    OK(mlxvk_slice(&a, a, (int[]){ 0 }, 1, (int[]){ 3 }, 1, (int[]){ 1 }, 1, s), s);
    REFUSED(mlxvk_hadamard_transform(&y, a, (mlxvk_optional_float){ 0, false }, s), MLXVK_ERROR_SHAPE, s, "hadamard", "(3)");
    OK(mlxvk_slice(&a, a, (int[]){ 0 }, 1, (int[]){ 0 }, 1, (int[]){ 1 }, 1, s), s);
    REFUSED(mlxvk_hadamard_transform(&y, a, (mlxvk_optional_float){ 0, false }, s), MLXVK_ERROR_SHAPE, s, "empty");
    mlxvk_array_free(a);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* ---- ranges of K, masks of blocks, both operands quantized ---- */

static void segment_cases(const char *gates)
{
    static const mlxvk_dtype types[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_FLOAT16 };
    const int32_t pairs[] = { 0, 130, 1, 2, 7, 100, 100, 7, 5, 5, 120, 4000, 129, 130, 3, 67, -5, 10, 64, 128 };
    const int count = (int)COUNT(pairs) / 2, m = 37, n = 50, k = 130;
    struct rng r = { 41 };
    mlxvk_device d = open_device(gates);
    mlxvk_stream s = open_stream(d);
    mlxvk_array segments = ints(d, pairs, (int[]){ 2, count / 2, 2 }, 3), y = mlxvk_array_new();
    uint8_t *got = malloc((size_t)(count * m * n) * 4);
    for (int i = 0; i < 6; i++) {
        mlxvk_dtype t = types[i % 3];
        bool turn_a = i & 1, turn_b = i > 2;
        double unit = t == MLXVK_FLOAT32 ? 1e-6 : t == MLXVK_FLOAT16 ? 1e-3 : 8e-3;
        float *x, *w;
        mlxvk_array a = random_array(&r, &x, turn_a ? (int[]){ k, m } : (int[]){ m, k }, 2, t, s);
        mlxvk_array b = random_array(&r, &w, turn_b ? (int[]){ n, k } : (int[]){ k, n }, 2, t, s);
        if (turn_a) OK(mlxvk_transpose(&a, a, s), s);
        if (turn_b) OK(mlxvk_transpose(&b, b, s), s);
        OK(mlxvk_segmented_mm(&y, a, b, segments, s), s);
        assert_int_equal(mlxvk_array_ndim(y), 4);
        OK(mlxvk_array_read(y, got, mlxvk_array_nbytes(y), s), s);
        for (int z = 0; z < count; z++)
            for (int j = 0; j < m * n; j++) {
                int row = j / n, column = j % n, low = pairs[2 * z] < 0 ? k : pairs[2 * z], high = pairs[2 * z + 1] > k ? k : pairs[2 * z + 1];
                double sum = 0, value = load_number(t, got, (size_t)(z * m * n + j)).re;
                for (int l = low; l < high; l++) sum += (double)x[turn_a ? l * m + row : row * k + l] * w[turn_b ? column * k + l : l * n + column];
                if (!(fabs(value - sum) <= unit * fabs(sum) + 1e-4))
                    fail_msg("%s, segment %d (%d, %d), %d %d: %.9g, expected %.9g", mlxvk_dtype_name(t), z, low, high, row, column, value, sum);
            }
        free(x);
        free(w);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
    }
    free(got);
    mlxvk_array_free(segments);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_segments(void **state) { (void)state; segment_cases(NULL); }
static void test_segments_pieces(void **state)
{
    (void)state;
    segment_cases("MLX_VK_MAX_BINDING_RANGE=16384");
    segment_cases("MLX_VK_MAX_GRID=2");
}
/* K longer than some drivers' loops may be: its pieces are added up, of each entry's range what lies in them. */
static void test_long_k(void **state)
{
    enum { K = 1150003 };
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = mlxvk_array_new(), b = mlxvk_array_new(), y = mlxvk_array_new(), nothing = mlxvk_array_new();
    mlxvk_array ranges = ints(d, (int[]){ 0, K, 600000, 1000000, 7, 9, 500000, 530000 }, (int[]){ 4, 2 }, 2);
    mlxvk_array zeros = ints(d, (int[]){ 0, 0 }, (int[]){ 2 }, 1);
    (void)state;
    OK(mlxvk_ones(&a, (int[]){ 1, K }, 2, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&b, (int[]){ K, 1 }, 2, MLXVK_FLOAT32, s), s);
    OK(mlxvk_segmented_mm(&y, a, b, ranges, s), s);
    expect_floats(y, (float[]){ K, 400000, 2, 30000 }, 4, 0, 0, s);
    OK(mlxvk_gather_mm(&y, a, b, nothing, zeros, false, s), s);
    expect_floats(y, (float[]){ K, K }, 2, 0, 0, s);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(y);
    mlxvk_array_free(ranges);
    mlxvk_array_free(zeros);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_segments_tiled(void **state) { (void)state; segment_cases("MLX_VK_MATMUL_KERNEL=3"); }

static void test_segments_edges(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    const float six[] = { 1, 2, 3, 4, 5, 6 }, zeros[] = { 0, 0, 0, 0 };
    mlxvk_array a = floats(d, six, (int[]){ 2, 3 }, 2), b = floats(d, six, (int[]){ 3, 2 }, 2), y = mlxvk_array_new(), none_of_k = mlxvk_array_new();
    mlxvk_array pair = ints(d, (int[]){ 0, 3 }, (int[]){ 1, 2 }, 2), three = ints(d, (int[]){ 0, 1, 2 }, (int[]){ 3 }, 1), other = mlxvk_array_new();
    (void)state;
    OK(mlxvk_segmented_mm(&y, a, b, pair, s), s);
    expect_floats(y, (float[]){ 22, 28, 49, 64 }, 4, 0, 0, s);
    OK(mlxvk_slice(&none_of_k, a, (int[]){ 0, 0 }, 2, (int[]){ 2, 0 }, 2, (int[]){ 1, 1 }, 2, s), s);
    OK(mlxvk_slice(&other, b, (int[]){ 0, 0 }, 2, (int[]){ 0, 2 }, 2, (int[]){ 1, 1 }, 2, s), s);
    OK(mlxvk_segmented_mm(&y, none_of_k, other, pair, s), s);
    expect_floats(y, zeros, 4, 0, 0, s);
    REFUSED(mlxvk_segmented_mm(&y, a, a, pair, s), MLXVK_ERROR_SHAPE, s, "segmented_mm", "(2, 3)");
    REFUSED(mlxvk_segmented_mm(&y, a, b, three, s), MLXVK_ERROR_SHAPE, s, "(3)");
    REFUSED(mlxvk_segmented_mm(&y, a, b, a, s), MLXVK_ERROR_SHAPE, s, "segments");
    REFUSED(mlxvk_segmented_mm(&y, a, b, b, s), MLXVK_ERROR_DTYPE, s, "integers");
    REFUSED(mlxvk_segmented_mm(&y, pair, b, pair, s), MLXVK_ERROR_SHAPE, s, "rows");
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(y);
    mlxvk_array_free(none_of_k);
    mlxvk_array_free(other);
    mlxvk_array_free(pair);
    mlxvk_array_free(three);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void find_masked(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    (void)nanoseconds;
    if (!strcmp(kernel, "matmul_masked")) *(uint64_t *)user += count;
}

/* Random bool masks of two products of several tiles, one of them, or all: what is left out is zero. */
static void block_masks_large(const char *gates)
{
    enum { M = 150, K = 200, N = 140, BATCH = 2 };
    struct rng r = { 47 };
    mlxvk_device d = open_device(gates);
    mlxvk_stream s = open_stream(d);
    float *x, *w, *want = malloc(BATCH * M * N * sizeof *want);
    mlxvk_array a = random_array(&r, &x, (int[]){ BATCH, M, K }, 3, MLXVK_FLOAT32, s), b = random_array(&r, &w, (int[]){ K, N }, 2, MLXVK_FLOAT32, s);
    mlxvk_array y = mlxvk_array_new();
    uint64_t count = 0, before = 0;
    assert_non_null(want);
    mlxvk_kernel_stats(d, find_masked, &before);
    for (int round = 0; round < 5; round++) {
        int block = round % 2 ? 64 : 32, down = (M - 1) / block + 1, deep = (K - 1) / block + 1, across = (N - 1) / block + 1;
        uint8_t keep[3][BATCH * 7 * 7];
        mlxvk_array mask[3] = { { NULL }, { NULL }, { NULL } };
        const int shapes[3][3] = { { BATCH, down, across }, { 1, down, deep }, { 1, deep, across } };
        for (int k = 0; k < 3; k++) {
            memset(keep[k], 1, sizeof keep[k]);
            if (round > 1 && round - 2 != k) continue;
            for (int i = 0; i < BATCH * 7 * 7; i++) keep[k][i] = (uint8_t)random_chance(&r, round ? 50 : 20);
            OK(mlxvk_array_new_data_device(&mask[k], keep[k], shapes[k], 3, MLXVK_BOOL, d), s);
        }
        OK(mlxvk_block_masked_mm(&y, a, b, block, mask[0], mask[1], mask[2], s), s);
        for (int i = 0; i < BATCH * M * N; i++) {
            int matrix = i / (M * N), row = i / N % M, column = i % N;
            double sum = 0;
            for (int l = 0; l < K; l++)
                if (keep[1][row / block * deep + l / block] && keep[2][l / block * across + column / block])
                    sum += (double)x[(matrix * M + row) * K + l] * w[l * N + column];
            want[i] = keep[0][(matrix * down + row / block) * across + column / block] ? (float)sum : 0;
        }
        expect_floats(y, want, BATCH * M * N, 1e-5, 1e-4, s);
        for (int k = 0; k < 3; k++) mlxvk_array_free(mask[k]);
    }
    mlxvk_kernel_stats(d, find_masked, &count);
    assert_int_equal(count - before, 5);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    free(x);
    free(w);
    free(want);
}

static void test_block_masks_large(void **state)
{
    (void)state;
    block_masks_large(NULL);
    block_masks_large("MLX_VK_TUNING=3");              /* as GPUs do, whose products of tiles may have a few rows apart */
}

/* a's first block holds NaN, which a bool mask takes away; a vector meets the other masks. */
static void test_block_masks(void **state)
{
    enum { M = 40, K = 70, N = 33 };
    const uint8_t keep[6] = { 0, 1, 1, 1, 0, 1 };
    const float weights[6] = { 2, 0, 1, 1, 3, 0.5f }, out_weights[4] = { 1, 2, 3, 0 };
    struct rng r = { 43 };
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    float *x, *w, want[M * N];
    mlxvk_array a = random_array(&r, &x, (int[]){ M, K }, 2, MLXVK_FLOAT32, s), b = random_array(&r, &w, (int[]){ K, N }, 2, MLXVK_FLOAT32, s);
    mlxvk_array left = mlxvk_array_new(), right = floats(d, weights, (int[]){ 3, 2 }, 2), out = floats(d, out_weights, (int[]){ 2, 2 }, 2);
    mlxvk_array y = mlxvk_array_new(), nothing = mlxvk_array_new(), nan = mlxvk_array_new();
    (void)state;
    x[0] = NAN;
    OK(mlxvk_array_new_data_device(&nan, x, (int[]){ M, K }, 2, MLXVK_FLOAT32, d), s);
    OK(mlxvk_array_new_data_device(&left, keep, (int[]){ 2, 3 }, 2, MLXVK_BOOL, d), s);
    OK(mlxvk_block_masked_mm(&y, nan, b, 32, out, left, right, s), s);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int l = 0; l < K; l++)
                if (keep[i / 32 * 3 + l / 32]) sum += (double)x[i * K + l] * w[l * N + j] * weights[l / 32 * 2 + j / 32];
            want[i * N + j] = (float)(sum * out_weights[i / 32 * 2 + j / 32]);
        }
    expect_floats(y, want, M * N, 1e-5, 1e-4, s);
    OK(mlxvk_block_masked_mm(&y, a, b, 7, nothing, nothing, nothing, s), s);       /* without masks: matmul */
    REFUSED(mlxvk_block_masked_mm(&y, a, b, 16, out, nothing, nothing, s), MLXVK_ERROR_ARGUMENT, s, "16");
    REFUSED(mlxvk_block_masked_mm(&y, a, b, 64, out, nothing, nothing, s), MLXVK_ERROR_SHAPE, s, "(2, 2)");
    REFUSED(mlxvk_block_masked_mm(&y, a, a, 32, out, nothing, nothing, s), MLXVK_ERROR_SHAPE, s, "block_masked_mm");
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(left);
    mlxvk_array_free(right);
    mlxvk_array_free(out);
    mlxvk_array_free(y);
    mlxvk_array_free(nan);
    free(x);
    free(w);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* nvfp4 with the tensors' scales, against a product of what quantize and dequantize make of both. */
static void test_qqmm_scales(void **state)
{
    enum { M = 5, N = 24, K = 64 };
    static const mlxvk_dtype types[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    struct rng r = { 47 };
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    const float largest = 2;
    mlxvk_array top = floats(d, &largest, NULL, 0), y = mlxvk_array_new(), nothing = mlxvk_array_new();
    (void)state;
    for (int i = 0; i < 3; i++) {
        mlxvk_vector_array parts = mlxvk_vector_array_new();
        mlxvk_array code = mlxvk_array_new(), scale = mlxvk_array_new(), values[2] = { mlxvk_array_new(), mlxvk_array_new() }, w = mlxvk_array_new();
        mlxvk_array operand[2];
        float *given[2], read[2][N * K];
        uint8_t got[M * N * 4];
        double unit = types[i] == MLXVK_FLOAT32 ? 1e-6 : types[i] == MLXVK_FLOAT16 ? 1e-3 : 8e-3;
        for (int k = 0; k < 2; k++) {
            operand[k] = random_array(&r, &given[k], (int[]){ k ? N : M, K }, 2, types[i], s);
            OK(mlxvk_quantize(&parts, operand[k], none, none, "nvfp4", top, s), s);
            OK(mlxvk_vector_array_get(&code, parts, 0), s);
            OK(mlxvk_vector_array_get(&scale, parts, 1), s);
            OK(mlxvk_dequantize(&values[k], code, scale, nothing, none, none, "nvfp4", top, (mlxvk_optional_dtype){ MLXVK_FLOAT32, true }, s), s);
            OK(mlxvk_array_read(values[k], read[k], mlxvk_array_nbytes(values[k]), s), s);
        }
        for (int quantized = 0; quantized < 2; quantized++) {
            OK(mlxvk_qqmm(&y, operand[0], quantized ? code : operand[1], quantized ? scale : nothing, none, none, "nvfp4", top, top, s), s);
            assert_int_equal(mlxvk_array_dtype(y), types[i]);
            OK(mlxvk_array_read(y, got, mlxvk_array_nbytes(y), s), s);
            for (int j = 0; j < M * N; j++) {
                double sum = 0, value = load_number(types[i], got, (size_t)j).re;
                for (int l = 0; l < K; l++) sum += (double)read[0][j / N * K + l] * read[1][j % N * K + l];
                if (!(fabs(value - sum) <= unit * fabs(sum) + 10 * unit)) fail_msg("%s %d: %.9g, expected %.9g", mlxvk_dtype_name(types[i]), j, value, sum);
            }
        }
        REFUSED(mlxvk_qqmm(&y, operand[0], code, scale, none, none, "nvfp4", top, nothing, s), MLXVK_ERROR_ARGUMENT, s, "together");
        REFUSED(mlxvk_qqmm(&y, operand[0], code, nothing, none, none, "nvfp4", nothing, nothing, s), MLXVK_ERROR_DTYPE, s, "without scales");
        REFUSED(mlxvk_qqmm(&y, operand[0], code, scale, none, none, "affine", nothing, nothing, s), MLXVK_ERROR_ARGUMENT, s, "affine");
        mlxvk_vector_array_free(parts);
        mlxvk_array_free(code);
        mlxvk_array_free(scale);
        mlxvk_array_free(w);
        for (int k = 0; k < 2; k++) { mlxvk_array_free(values[k]); mlxvk_array_free(operand[k]); free(given[k]); }
    }
    mlxvk_array_free(top);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* ---- contractions ---- */

enum { EIN_LABELS = 6, EIN_TERMS = 4, EIN_DIMS = 3 };

/* Random subscripts over six labels, some repeated, some dimensions of 1, against a loop over all labels. */
static void einsum_case(struct rng *r, mlxvk_stream s)
{
    static const char letters[] = "aZbYcX";
    int size[EIN_LABELS], count = random_int(r, 1, EIN_TERMS), label[EIN_TERMS][EIN_DIMS], ndim[EIN_TERMS], shape[EIN_TERMS][EIN_DIMS];
    int out[EIN_LABELS], outs = 0, total = 1, used = 0;
    float *values[EIN_TERMS], *want, largest = 0;
    char text[64] = "", *to = text;
    size_t result = 1;
    mlxvk_vector_array operands = mlxvk_vector_array_new();
    mlxvk_array y = mlxvk_array_new();
    for (int k = 0; k < EIN_LABELS; k++) size[k] = random_int(r, 1, 4);
    for (int t = 0; t < count; t++) {
        mlxvk_array a;
        ndim[t] = random_int(r, 0, EIN_DIMS);
        for (int i = 0; i < ndim[t]; i++) {
            int k = label[t][i] = random_int(r, 0, EIN_LABELS - 1);
            shape[t][i] = random_chance(r, 10) && used >> k & 1 ? 1 : size[k];
            for (int j = 0; j < i; j++) if (label[t][j] == k) shape[t][i] = shape[t][j];
            used |= 1 << k;
            *to++ = letters[k];
        }
        a = random_array(r, &values[t], shape[t], ndim[t], MLXVK_FLOAT32, s);
        OK(mlxvk_vector_array_append_value(operands, a), s);
        mlxvk_array_free(a);
        if (t + 1 < count) *to++ = ',';
    }
    *to++ = '-';
    *to++ = '>';
    for (int k = EIN_LABELS; k-- > 0;)
        if (used >> k & 1 && random_chance(r, 50)) { out[outs++] = k; *to++ = letters[k]; result *= (size_t)size[k]; }
    want = calloc(result, sizeof *want);
    for (int k = 0; k < EIN_LABELS; k++) { if (!(used >> k & 1)) size[k] = 1; total *= size[k]; }
    for (int i = 0; i < total; i++) {
        int at[EIN_LABELS], rest = i, place = 0;
        float product = 1;
        for (int k = 0; k < EIN_LABELS; k++) { at[k] = rest % size[k]; rest /= size[k]; }
        for (int t = 0; t < count; t++) {
            int element = 0;
            for (int d = 0; d < ndim[t]; d++) element = element * shape[t][d] + (shape[t][d] == 1 ? 0 : at[label[t][d]]);
            product *= values[t][element];
        }
        for (int d = 0; d < outs; d++) place = place * size[out[d]] + at[out[d]];
        want[place] += product;
    }
    for (size_t i = 0; i < result; i++) if (fabsf(want[i]) > largest) largest = fabsf(want[i]);
    *to = 0;
    OK(mlxvk_einsum(&y, text, operands, s), s);
    assert_int_equal(mlxvk_array_size(y), result);
    expect_floats(y, want, result, 1e-4, 1e-4 * largest + 1e-4, s);
    for (int t = 0; t < count; t++) free(values[t]);
    free(want);
    mlxvk_vector_array_free(operands);
    mlxvk_array_free(y);
}

static void test_einsum(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    struct rng r = { 53 };
    (void)state;
    for (int i = 0; i < 300; i++) einsum_case(&r, s);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* Dots, spaces, results that are implied; and what is refused. */
static void test_einsum_texts(void **state)
{
    static const struct { const char *text; int count, ndim, shape[4]; } good[] = {
        { "ij,jk", 2, 2, { 2, 4 } }, { "ba", 1, 2, { 3, 2 } }, { "...", 1, 2, { 2, 3 } }, { "i...->...", 1, 1, { 3 } },
        { "...j , jk -> ...k", 2, 2, { 2, 4 } }, { "ij->", 1, 0, { 0 } }, { "...->", 1, 0, { 0 } },
        { "ij,...->j...i", 2, 4, { 3, 3, 4, 2 } }, { "i...,jk->k...", 2, 2, { 4, 3 } }, { "kK,Kb", 2, 2, { 4, 2 } },
    };
    static const struct { const char *text, *word; int count; } bad[] = {
        { "ij,jk->ik", "operands", 1 }, { "ij", "operands", 2 }, { "ijk", "3 subscripts", 1 }, { "i", "1 subscripts", 1 }, { "ij->iz", "'z'", 1 },
        { "ij->ii", "repeated", 1 }, { "i1->i", "'1'", 1 }, { "ij-ij", "'-'", 1 }, { "ij->i->j", "'-'", 1 }, { "..ij", "'.'", 1 }, { "...i...", "'.'", 1 },
        { "ij,ji->", "broadcast", 2 }, { "ijkl...", "4 subscripts", 1 }, { "", "0 subscripts", 1 }, { "ij,jk,kl", "operands", 2 }, { "ij->i,j", "','", 1 },
        { "ii->i", "equal", 1 },
    };
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = floats(d, (float[12]){ 1 }, (int[]){ 2, 3 }, 2), b = floats(d, (float[12]){ 1 }, (int[]){ 3, 4 }, 2), y = mlxvk_array_new();
    mlxvk_error error;
    mlxvk_vector_array one = mlxvk_vector_array_new(), two = mlxvk_vector_array_new(), none_given = mlxvk_vector_array_new();
    (void)state;
    OK(mlxvk_vector_array_append_value(one, a), s);
    OK(mlxvk_vector_array_append_value(two, a), s);
    OK(mlxvk_vector_array_append_value(two, b), s);
    for (size_t i = 0; i < COUNT(good); i++) {
        OK(mlxvk_einsum(&y, good[i].text, good[i].count == 1 ? one : two, s), s);
        assert_int_equal(mlxvk_array_ndim(y), good[i].ndim);
        for (int k = 0; k < good[i].ndim; k++) assert_int_equal(mlxvk_array_shape(y)[k], good[i].shape[k]);
        OK(eval_one(y), s);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        int code = mlxvk_einsum(&y, bad[i].text, bad[i].count == 1 ? one : two, s);
        mlxvk_stream_error(s, &error);
        if (!code || !strstr(error.text, bad[i].word)) fail_msg("%s: %d, %s", bad[i].text, code, error.text);
    }
    REFUSED(mlxvk_einsum(&y, "->", none_given, s), MLXVK_ERROR_ARGUMENT, s, "einsum", "no arrays");
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(y);
    mlxvk_vector_array_free(one);
    mlxvk_vector_array_free(two);
    mlxvk_vector_array_free(none_given);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_contractions(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    const float six[] = { 1, 2, 3, 4, 5, 6 };
    mlxvk_array a = floats(d, six, (int[]){ 2, 3 }, 2), b = floats(d, six, (int[]){ 3, 2 }, 2), v = floats(d, six, (int[]){ 3 }, 1);
    mlxvk_array n = floats(d, six + 1, NULL, 0), whole = ints(d, (int[]){ 1, 2, 3 }, (int[]){ 3 }, 1), y = mlxvk_array_new(), empty = mlxvk_array_new();
    (void)state;
    OK(mlxvk_tensordot(&y, a, b, (int[]){ 0, -1 }, 2, (int[]){ 1, 0 }, 2, s), s);
    expect_floats(y, (float[]){ 1 + 6 + 15 + 8 + 20 + 36 }, 1, 0, 0, s);
    OK(mlxvk_tensordot(&y, a, v, NULL, 0, NULL, 0, s), s);
    assert_int_equal(mlxvk_array_ndim(y), 3);
    OK(mlxvk_tensordot_axis(&y, a, b, 1, s), s);
    expect_floats(y, (float[]){ 22, 28, 49, 64 }, 4, 0, 0, s);
    OK(mlxvk_inner(&y, a, v, s), s);
    expect_floats(y, (float[]){ 14, 32 }, 2, 0, 0, s);
    OK(mlxvk_inner(&y, n, v, s), s);
    expect_floats(y, (float[]){ 2, 4, 6 }, 3, 0, 0, s);
    OK(mlxvk_outer(&y, whole, whole, s), s);
    expect_ints(y, (int32_t[]){ 1, 2, 3, 2, 4, 6, 3, 6, 9 }, 9, s);
    OK(mlxvk_kron(&y, whole, whole, s), s);
    expect_ints(y, (int32_t[]){ 1, 2, 3, 2, 4, 6, 3, 6, 9 }, 9, s);
    OK(mlxvk_kron(&y, b, v, s), s);
    expect_floats(y, (float[]){ 1, 2, 3, 2, 4, 6, 3, 6, 9, 4, 8, 12, 5, 10, 15, 6, 12, 18 }, 18, 0, 0, s);
    OK(mlxvk_slice(&empty, v, (int[]){ 0 }, 1, (int[]){ 0 }, 1, (int[]){ 1 }, 1, s), s);
    REFUSED(mlxvk_kron(&y, v, empty, s), MLXVK_ERROR_SHAPE, s, "kron", "empty");
    REFUSED(mlxvk_inner(&y, a, b, s), MLXVK_ERROR_SHAPE, s, "inner", "(2, 3)", "(3, 2)");
    REFUSED(mlxvk_inner(&y, whole, whole, s), MLXVK_ERROR_DTYPE, s, "inner", "int32");
    REFUSED(mlxvk_tensordot(&y, a, b, (int[]){ 1 }, 1, (int[]){ 1, 0 }, 2, s), MLXVK_ERROR_ARGUMENT, s, "tensordot", "1 axes");
    REFUSED(mlxvk_tensordot(&y, a, b, (int[]){ 2 }, 1, (int[]){ 0 }, 1, s), MLXVK_ERROR_AXIS, s, "axis 2");
    REFUSED(mlxvk_tensordot(&y, a, b, (int[]){ 0, 0 }, 2, (int[]){ 0, 1 }, 2, s), MLXVK_ERROR_AXIS, s, "twice");
    REFUSED(mlxvk_tensordot_axis(&y, a, b, 3, s), MLXVK_ERROR_AXIS, s, "3 axes");
    REFUSED(mlxvk_tensordot_axis(&y, a, b, -1, s), MLXVK_ERROR_AXIS, s, "-1 axes");
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(v);
    mlxvk_array_free(n);
    mlxvk_array_free(whole);
    mlxvk_array_free(y);
    mlxvk_array_free(empty);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8), cmocka_unit_test(test_modes), cmocka_unit_test(test_modes_together), cmocka_unit_test(test_scale_rounding),
        cmocka_unit_test(test_gather_qmm), cmocka_unit_test(test_gather_qmm_held), cmocka_unit_test(test_gather_qmm_plain), cmocka_unit_test(test_gather_qmm_tiles),
        cmocka_unit_test(test_gather_qmm_matrices), cmocka_unit_test(test_gather_qmm_in_parts), cmocka_unit_test(test_gather_mm),
        cmocka_unit_test(test_gather_mm_plain),        cmocka_unit_test(test_gather_mm_vector), cmocka_unit_test(test_gather_mm_tiled), cmocka_unit_test(test_gather_mm_pieces),
        cmocka_unit_test(test_gather_mm_matrices),
        cmocka_unit_test(test_gather_many), cmocka_unit_test(test_gather_edges), cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_segments), cmocka_unit_test(test_segments_tiled), cmocka_unit_test(test_segments_pieces), cmocka_unit_test(test_long_k),
        cmocka_unit_test(test_segments_edges),
        cmocka_unit_test(test_block_masks), cmocka_unit_test(test_block_masks_large), cmocka_unit_test(test_qqmm_scales),
        cmocka_unit_test(test_einsum), cmocka_unit_test(test_einsum_texts), cmocka_unit_test(test_contractions),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_group("products", tests, NULL, NULL);
}
