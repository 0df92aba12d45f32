/* Results of products in half types are the sums rounded to nearest, ties to even, by each kernel: operands are multiples of
 * powers of two whose sums float32 holds exactly, so that every bit of the results is known. A kernel that the device does
 * not have is skipped; qmv_held, which makes integers of x, is not here. */
#include "support.h"
#include <stdio.h>

/* One product of one kind: `kernel` is what must run it. `make` appends it to the stream and says what it should be. */
struct sums { double *want; size_t count; };
struct kind {
    const char *gates, *kernel;
    mlxvk_array (*make)(const struct kind *k, struct setting *t, struct sums *s);
    mlxvk_dtype dtype;
};

static struct sums sums_of(size_t count)
{
    struct sums s = { calloc(count, sizeof(double)), count };
    assert_non_null(s.want);
    return s;
}

static void *room(size_t size)
{
    void *p = malloc(size);
    assert_non_null(p);
    return p;
}

static void add_name(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    char *names = user;
    (void)count;
    (void)nanoseconds;
    snprintf(names + strlen(names), 512 - strlen(names), " %s ", kernel);
}

/* Did the kernel run since the figures were reset? The name is a whole word of those that did. */
static bool has_run(mlxvk_device d, const char *kernel)
{
    char names[512] = "", word[64];
    snprintf(word, sizeof word, " %s ", kernel);
    mlxvk_kernel_stats(d, add_name, names);
    return strstr(names, word) != NULL;
}

/* Random multiples of 2^-shift, from -most to most of them, as an array of the dtype; values gets them. */
static mlxvk_array multiples(struct rng *r, const int *shape, int ndim, int most, int shift, float *values, mlxvk_dtype dtype,
                             mlxvk_device d)
{
    size_t count = 1;
    uint8_t *bytes;
    mlxvk_array a;
    for (int i = 0; i < ndim; i++) count *= (size_t)shape[i];
    bytes = room(count * 4);
    for (size_t i = 0; i < count; i++) {
        values[i] = ldexpf((float)random_int(r, -most, most), -shift);
        store_number(dtype, bytes, i, values[i]);
        assert_true(load_number(dtype, bytes, i).re == values[i]);
    }
    a = array_of(d, dtype, bytes, shape, ndim);
    free(bytes);
    return a;
}

/* Distance to the next number of a half type that is farther from zero. */
static double unit_of(mlxvk_dtype dtype, double x)
{
    int exponent;
    frexp(x, &exponent);
    return dtype == MLXVK_FLOAT16 ? ldexp(1, (exponent > -13 ? exponent : -13) - 11) : ldexp(1, exponent - 8);
}

/* The results must be these, rounded; says how far off they are, and how biased, in units in the last place. */
static void expect_rounded(mlxvk_array y, const double *want, size_t count, mlxvk_dtype dtype, mlxvk_stream s)
{
    uint8_t *got = room(count * 2), one[2];
    size_t wrong = 0;
    double bias = 0, worst = 0;
    assert_int_equal(mlxvk_array_nbytes(y), count * 2);
    OK(mlxvk_array_read(y, got, count * 2, s), s);
    for (size_t i = 0; i < count; i++) {
        double off = (load_number(dtype, got, i).re - want[i]) / unit_of(dtype, want[i]);
        store_number(dtype, one, 0, want[i]);
        wrong += memcmp(one, got + 2 * i, 2) != 0;
        bias += want[i] < 0 ? -off : off;
        worst = fmax(worst, fabs(off));
    }
    if (wrong)
        fail_msg("%zu of %zu results are not the nearest: %.3f units off at most, %+.4f on average (away from zero)", wrong,
                 count, worst, bias / (double)count);
    free(got);
}

/* Runs one kind; skips the test where another kernel did it. */
static void run(void **state)
{
    const struct kind *k = *state;
    struct setting t = start(k->gates);
    struct sums s;
    mlxvk_array y;
    bool ran;
    mlxvk_reset_stats(t.device);
    y = k->make(k, &t, &s);
    OK(mlxvk_array_eval(y), t.stream);
    OK(mlxvk_synchronize(t.stream), t.stream);
    ran = has_run(t.device, k->kernel);
    if (ran) expect_rounded(y, s.want, s.count, k->dtype, t.stream);
    mlxvk_array_free(y);
    free(s.want);
    finish(&t);
    if (!ran) skip();
}

/* ---- matmul ---- */

enum { M = 200, K = 256, N = 264, FEW = 5 };

static mlxvk_array matmul_with(const struct kind *k, struct setting *t, struct sums *s, int m, bool along)
{
    struct rng r = { 5 };
    float *x = room(M * K * sizeof *x), *w = room(K * N * sizeof *w);
    mlxvk_array y = mlxvk_array_new(), a = multiples(&r, (int[]){ m, K }, 2, 63, 5, x, k->dtype, t->device);
    mlxvk_array b = multiples(&r, (int[]){ along ? N : K, along ? K : N }, 2, 63, 5, w, k->dtype, t->device);
    *s = sums_of((size_t)m * N);
    for (int i = 0; i < m; i++)
        for (int l = 0; l < K; l++)
            for (int j = 0; j < N; j++) s->want[i * N + j] += (double)x[i * K + l] * w[along ? j * K + l : l * N + j];
    if (along) OK(mlxvk_transpose(&b, b, t->stream), t->stream);
    OK(mlxvk_matmul(&y, a, b, t->stream), t->stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    free(x);
    free(w);
    return y;
}

static mlxvk_array many_rows(const struct kind *k, struct setting *t, struct sums *s) { return matmul_with(k, t, s, M, false); }
static mlxvk_array few_rows(const struct kind *k, struct setting *t, struct sums *s) { return matmul_with(k, t, s, FEW, false); }
static mlxvk_array few_along(const struct kind *k, struct setting *t, struct sums *s) { return matmul_with(k, t, s, FEW, true); }

/* Rows that are no whole eights, of a product that is worth copying them. */
static mlxvk_array odd_rows(const struct kind *k, struct setting *t, struct sums *s)
{
    enum { ROWS = 815, DEPTH = 1001, COLUMNS = 903 };
    struct rng r = { 7 };
    float *x = room(ROWS * DEPTH * sizeof *x), *w = room(COLUMNS * DEPTH * sizeof *w);
    mlxvk_array y = mlxvk_array_new(), a = multiples(&r, (int[]){ ROWS, DEPTH }, 2, 31, 5, x, k->dtype, t->device);
    mlxvk_array b = multiples(&r, (int[]){ COLUMNS, DEPTH }, 2, 31, 5, w, k->dtype, t->device);
    *s = sums_of(ROWS * COLUMNS);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            float sum = 0;                                             /* exact, too */
            for (int l = 0; l < DEPTH; l++) sum += x[i * DEPTH + l] * w[j * DEPTH + l];
            s->want[i * COLUMNS + j] = sum;
        }
    OK(mlxvk_transpose(&b, b, t->stream), t->stream);
    OK(mlxvk_matmul(&y, a, b, t->stream), t->stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    free(x);
    free(w);
    return y;
}

/* c is added before the sum is rounded. */
static mlxvk_array with_c(const struct kind *k, struct setting *t, struct sums *s)
{
    struct rng r = { 6 };
    float *x = room(M * K * sizeof *x), *w = room(K * N * sizeof *w), c[N];
    mlxvk_array y = mlxvk_array_new(), a = multiples(&r, (int[]){ M, K }, 2, 63, 5, x, k->dtype, t->device);
    mlxvk_array b = multiples(&r, (int[]){ K, N }, 2, 63, 5, w, k->dtype, t->device);
    mlxvk_array row = multiples(&r, (int[]){ N }, 1, 127, 9, c, k->dtype, t->device);
    *s = sums_of((size_t)M * N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            for (int l = 0; l < K; l++) s->want[i * N + j] += (double)x[i * K + l] * w[l * N + j];
            s->want[i * N + j] = 0.5 * s->want[i * N + j] - 2 * (double)c[j];
        }
    OK(mlxvk_addmm(&y, row, a, b, 0.5f, -2, t->stream), t->stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(row);
    free(x);
    free(w);
    return y;
}

/* ---- quantized_matmul ---- */

enum { ROWS = 136, DEPTH = 256, GROUP = 64 };

/* y = x W^T, W of random 4-bit codes. Where x is the identity the results are decoded weights, which kernels may round twice,
 * to the same number; else scales of a power of two make weights that need no rounding, and sums are what is rounded. */
static mlxvk_array quantized_with(const struct kind *k, struct setting *t, struct sums *s, int rows, bool identity)
{
    static const int words[2] = { ROWS, DEPTH / 8 }, groups[2] = { ROWS, DEPTH / GROUP };
    struct rng r = { 9 };
    uint32_t *codes = calloc(ROWS * DEPTH / 8, sizeof *codes);
    float scale[ROWS * DEPTH / GROUP], bias[ROWS * DEPTH / GROUP], *x = room(DEPTH * DEPTH * sizeof *x);
    mlxvk_array y = mlxvk_array_new(), q, a, scales = multiples(&r, groups, 2, identity ? 127 : 1, 12, scale, k->dtype, t->device);
    mlxvk_array biases = multiples(&r, groups, 2, identity ? 127 : 1, identity ? 9 : 10, bias, k->dtype, t->device);
    assert_non_null(codes);
    *s = sums_of((size_t)(rows * ROWS));
    a = multiples(&r, (int[]){ rows, DEPTH }, 2, 63, 5, x, k->dtype, t->device);
    if (identity) OK(mlxvk_eye(&a, rows, DEPTH, 0, k->dtype, t->stream), t->stream);
    for (int i = 0; i < ROWS * DEPTH; i++) {
        int code = random_int(&r, 0, 15), j = i / DEPTH, l = i % DEPTH;
        double weight = (double)scale[i / GROUP] * code + bias[i / GROUP];
        codes[i / 8] |= (uint32_t)code << i % 8 * 4;
        for (int row = 0; row < rows; row++)
            s->want[row * ROWS + j] += (identity ? row == l : (double)x[row * DEPTH + l]) * weight;
    }
    q = array_of(t->device, MLXVK_UINT32, codes, words, 2);
    OK(mlxvk_quantized_matmul(&y, a, q, scales, biases, true, (mlxvk_optional_int){ GROUP, true }, (mlxvk_optional_int){ 4, true },
                              "affine", t->stream), t->stream);
    mlxvk_array_free(a);
    mlxvk_array_free(q);
    mlxvk_array_free(scales);
    mlxvk_array_free(biases);
    free(x);
    free(codes);
    return y;
}

static mlxvk_array weights(const struct kind *k, struct setting *t, struct sums *s) { return quantized_with(k, t, s, DEPTH, true); }
static mlxvk_array quantized(const struct kind *k, struct setting *t, struct sums *s) { return quantized_with(k, t, s, M, false); }
static mlxvk_array quantized_few(const struct kind *k, struct setting *t, struct sums *s) { return quantized_with(k, t, s, FEW, false); }

/* ---- conv1d ---- */

static mlxvk_array convolution(const struct kind *k, struct setting *t, struct sums *s)
{
    enum { LENGTH = 130, CHANNELS = 40, TAPS = 3, OUT = 72 };
    struct rng r = { 12 };
    float *x = room(LENGTH * CHANNELS * sizeof *x), *w = room(OUT * TAPS * CHANNELS * sizeof *w);
    mlxvk_array y = mlxvk_array_new(), a = multiples(&r, (int[]){ 1, LENGTH, CHANNELS }, 3, 63, 5, x, k->dtype, t->device);
    mlxvk_array b = multiples(&r, (int[]){ OUT, TAPS, CHANNELS }, 3, 63, 5, w, k->dtype, t->device);
    *s = sums_of((LENGTH - TAPS + 1) * OUT);
    for (int i = 0; i < LENGTH - TAPS + 1; i++)
        for (int j = 0; j < OUT; j++)
            for (int l = 0; l < TAPS * CHANNELS; l++) s->want[i * OUT + j] += (double)x[i * CHANNELS + l] * w[j * TAPS * CHANNELS + l];
    OK(mlxvk_conv1d(&y, a, b, 1, 0, 1, 1, t->stream), t->stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    free(x);
    free(w);
    return y;
}

/* ---- attention: queries of zero weigh all of 2^n keys alike ---- */

static mlxvk_array attention_with(const struct kind *k, struct setting *t, struct sums *s, int queries)
{
    enum { HEADS = 4, KEYS = 128, WIDTH = 64 };
    struct rng r = { 13 };
    float *keys = room(HEADS * KEYS * WIDTH * sizeof *keys), *x = room(HEADS * KEYS * WIDTH * sizeof *x);
    mlxvk_array y = mlxvk_array_new(), q = mlxvk_array_new(), none = { NULL };
    mlxvk_array a = multiples(&r, (int[]){ 1, HEADS, KEYS, WIDTH }, 4, 63, 5, keys, k->dtype, t->device);
    mlxvk_array v = multiples(&r, (int[]){ 1, HEADS, KEYS, WIDTH }, 4, 63, 5, x, k->dtype, t->device);
    *s = sums_of((size_t)(HEADS * queries * WIDTH));
    for (int i = 0; i < HEADS * queries; i++)
        for (int l = 0; l < KEYS; l++)
            for (int j = 0; j < WIDTH; j++) s->want[i * WIDTH + j] += x[(i / queries * KEYS + l) * WIDTH + j] / (double)KEYS;
    OK(mlxvk_zeros(&q, (int[]){ 1, HEADS, queries, WIDTH }, 4, k->dtype, t->stream), t->stream);
    OK(mlxvk_fast_scaled_dot_product_attention(&y, q, a, v, 0.125f, "", none, none, t->stream), t->stream);
    mlxvk_array_free(q);
    mlxvk_array_free(a);
    mlxvk_array_free(v);
    free(keys);
    free(x);
    return y;
}

static mlxvk_array one_query(const struct kind *k, struct setting *t, struct sums *s) { return attention_with(k, t, s, 1); }
static mlxvk_array queries(const struct kind *k, struct setting *t, struct sums *s) { return attention_with(k, t, s, 70); }

/* ---- all ---- */

#define HALVES(X, gates, kernel_f16, kernel_bf16, make) \
    X(gates, kernel_f16, make, MLXVK_FLOAT16) X(gates, kernel_bf16, make, MLXVK_BFLOAT16)
#define KINDS(X) \
    HALVES(X, POISON " MLX_VK_MATMUL_KERNEL=1", "matmul_plain", "matmul_plain", many_rows) \
    HALVES(X, POISON, "matvec_subgroup", "matvec_subgroup", few_along) \
    HALVES(X, POISON, "vecmat", "vecmat", few_rows) \
    HALVES(X, POISON " MLX_VK_MATMUL_KERNEL=3", "matmul_tiled", "matmul_tiled", many_rows) \
    HALVES(X, POISON " MLX_VK_MATMUL_KERNEL=3", "matmul_tiled", "matmul_tiled", with_c) \
    HALVES(X, POISON " MLX_VK_MATMUL_KERNEL=4", "matmul_coopmat_f16", "matmul_coopmat_bf16", many_rows) \
    HALVES(X, POISON " MLX_VK_MATMUL_KERNEL=4", "matmul_coopmat_f16", "matmul_coopmat_bf16", with_c) \
    HALVES(X, POISON " MLX_VK_MATMUL_KERNEL=5", "matmul_coopmat2_f16", "matmul_coopmat2_bf16", many_rows) \
    HALVES(X, POISON " MLX_VK_MATMUL_KERNEL=5", "matmul_coopmat2_f16", "matmul_coopmat2_bf16", with_c) \
    HALVES(X, POISON, "matmul_coopmat2_f16", "matmul_coopmat2_bf16", odd_rows) \
    HALVES(X, POISON " MLX_VK_QMM_KERNEL=1", "qmv", "qmv", quantized_few) \
    HALVES(X, POISON " MLX_VK_QMM_KERNEL=2", "qmm", "qmm", quantized) \
    HALVES(X, POISON " MLX_VK_QMM_KERNEL=2", "qmm", "qmm", weights) \
    HALVES(X, POISON " MLX_VK_QMM_KERNEL=3", "qmm_f16", "qmm_bf16", quantized) \
    HALVES(X, POISON " MLX_VK_QMM_KERNEL=3", "qmm_f16", "qmm_bf16", weights) \
    HALVES(X, POISON " MLX_VK_QMM_KERNEL=4", "dequantize", "dequantize", weights) \
    HALVES(X, POISON " MLX_VK_CONV_KERNEL=3", "conv_tiled", "conv_tiled", convolution) \
    HALVES(X, POISON " MLX_VK_CONV_KERNEL=4", "conv_coopmat_f16", "conv_coopmat_bf16", convolution) \
    HALVES(X, POISON, "attention_decode", "attention_decode", one_query) \
    HALVES(X, POISON " MLX_VK_ENABLE_SDPA_DECODE=0", "attention_f16", "attention_bf16", queries) \
    HALVES(X, POISON " MLX_VK_ENABLE_SDPA_DECODE=0 MLX_VK_ENABLE_COOPERATIVE_MATRIX=0", "attention", "attention", queries)
#define POISON "MLX_VK_POISON=1"

#define ROW(gates, kernel, make, dtype) { gates, kernel, make, dtype },
#define TEST(gates, kernel, make, dtype) { #make " by " kernel ", " #dtype, run, NULL, NULL, NULL },
static const struct kind kinds[] = { KINDS(ROW) };

int main(void)
{
    struct CMUnitTest tests[] = { KINDS(TEST) };
    for (size_t i = 0; i < COUNT(kinds); i++) tests[i].initial_state = (void *)(uintptr_t)&kinds[i];
    return run_group("rounding", tests, NULL, NULL);
}
