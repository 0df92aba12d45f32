/* Each fusion against the same operations one by one: a gate turned off must give the same results and more dispatches.
 * The same bits, but where a fused kernel adds a row up in another order. */
#include "support.h"

#include <math.h>
#include <string.h>

enum { ROWS = 3, WIDTH = 256, HEADS = 4, KV_HEADS = 2, DIM = 64, CAPACITY = 16 };
static const mlxvk_optional_float BASE = { 10000.0f, true };

/* Everything a case works on, the same random numbers on every device. */
struct bench {
    mlxvk_device device;
    mlxvk_stream s;
    mlxvk_dtype dtype;
    mlxvk_array a, b, weight, heads, head_weight, cache;
};

static struct bench bench_open(const char *gates, mlxvk_dtype dtype)
{
    struct bench t = { .dtype = dtype };
    t.device = open_device(gates);
    t.s = open_stream(t.device);
    t.a = normals((int[]){ ROWS, WIDTH }, 2, dtype, 1, t.s);
    t.b = normals((int[]){ ROWS, WIDTH }, 2, dtype, 2, t.s);
    t.weight = normals((int[]){ WIDTH }, 1, dtype, 3, t.s);
    t.heads = normals((int[]){ 1, ROWS, KV_HEADS, DIM }, 4, dtype, 4, t.s);
    t.head_weight = normals((int[]){ DIM }, 1, dtype, 5, t.s);
    t.cache = normals((int[]){ 1, KV_HEADS, CAPACITY, DIM }, 4, dtype, 6, t.s);
    mlxvk_reset_stats(t.device);
    return t;
}

static void bench_close(struct bench *t)
{
    mlxvk_array all[] = { t->a, t->b, t->weight, t->heads, t->head_weight, t->cache };
    for (size_t i = 0; i < COUNT(all); i++) mlxvk_array_free(all[i]);
    mlxvk_stream_free(t->s);
    mlxvk_device_free(t->device);
}

/* ---- the cases: each leaves up to two results ---- */

static void swiglu(struct bench *t, mlxvk_array *res)
{
    mlxvk_array g = mlxvk_array_new();
    OK(mlxvk_sigmoid(&g, t->a, t->s), t->s);
    OK(mlxvk_multiply(&g, t->a, g, t->s), t->s);
    OK(mlxvk_multiply(&res[0], g, t->b, t->s), t->s);
    mlxvk_array_free(g);
}

static void add_norm(struct bench *t, mlxvk_array *res)
{
    OK(mlxvk_add(&res[0], t->a, t->b, t->s), t->s);
    OK(mlxvk_fast_rms_norm(&res[1], res[0], t->weight, 1e-6f, t->s), t->s);
}

static void norm_rope_cache(struct bench *t, mlxvk_array *res)
{
    mlxvk_array k = mlxvk_array_new();
    OK(mlxvk_fast_rms_norm(&k, t->heads, t->head_weight, 1e-6f, t->s), t->s);
    OK(mlxvk_transpose_axes(&k, k, (int[]){ 0, 2, 1, 3 }, 4, t->s), t->s);
    OK(mlxvk_fast_rope(&k, k, DIM, false, BASE, 1, 7, mlxvk_array_new(), t->s), t->s);
    OK(mlxvk_slice_update(&t->cache, t->cache, k, (int[]){ 0, 0, 5, 0 }, 4, (int[]){ 1, KV_HEADS, 5 + ROWS, DIM }, 4,
                          (int[]){ 1, 1, 1, 1 }, 4, t->s), t->s);
    mlxvk_array_free(k);
    OK(mlxvk_array_set(&res[0], t->cache), t->s);
}

static void rope_cache(struct bench *t, mlxvk_array *res)
{
    mlxvk_array k = mlxvk_array_new();
    OK(mlxvk_transpose_axes(&k, t->heads, (int[]){ 0, 2, 1, 3 }, 4, t->s), t->s);
    OK(mlxvk_fast_rope(&k, k, DIM, true, BASE, 1, 3, mlxvk_array_new(), t->s), t->s);
    OK(mlxvk_slice_update(&t->cache, t->cache, k, (int[]){ 0, 0, 1, 0 }, 4, (int[]){ 1, KV_HEADS, 1 + ROWS, DIM }, 4,
                          (int[]){ 1, 1, 1, 1 }, 4, t->s), t->s);
    mlxvk_array_free(k);
    OK(mlxvk_array_set(&res[0], t->cache), t->s);
}

static const struct fusion {
    const char *name, *off;
    void (*run)(struct bench *t, mlxvk_array *res);
    uint64_t fused, apart;                           /* dispatches with the gate on and off */
    double ulps;                                     /* units in the last place of 1 that results may differ by */
} fusions[] = {
    { "silu * x", "MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16=0", swiglu, 1, 3, 4 },
    { "add + rms_norm", "MLX_VK_ENABLE_ADD_RMSNORM_NATIVE=0", add_norm, 1, 2, 0 },
    { "rms_norm + rope + cache write", "MLX_VK_ENABLE_RMSNORM_ROPE=0 MLX_VK_ENABLE_ROPE_CACHE_WRITE=0", norm_rope_cache, 1, 3, 8 },
    { "rope + cache write", "MLX_VK_ENABLE_ROPE_CACHE_WRITE=0", rope_cache, 1, 2, 0 },
};

/* The results of a case, as float32, one behind the other. */
static size_t results_of(const struct fusion *f, const char *gates, mlxvk_dtype dtype, uint64_t dispatches, float *values)
{
    struct bench t = bench_open(gates, dtype);
    mlxvk_array res[2] = { { NULL }, { NULL } };
    size_t count = 0;
    f->run(&t, res);
    OK(mlxvk_synchronize(t.s), t.s);
    if (stats_of(t.device).dispatches != dispatches)
        fail_msg("%s (%s): %llu dispatches, expected %llu", f->name, gates ? gates : "all on",
                 (unsigned long long)stats_of(t.device).dispatches, (unsigned long long)dispatches);
    for (int i = 0; i < 2 && res[i].ctx; i++) {
        OK(mlxvk_astype(&res[i], res[i], MLXVK_FLOAT32, t.s), t.s);
        OK(mlxvk_array_read(res[i], values + count, mlxvk_array_nbytes(res[i]), t.s), t.s);
        count += mlxvk_array_size(res[i]);
        mlxvk_array_free(res[i]);
    }
    bench_close(&t);
    return count;
}

static void test_equal(void **state)
{
    static const struct { mlxvk_dtype dtype; double ulp; } kinds[] = { { MLXVK_FLOAT32, 0x1p-23 }, { MLXVK_BFLOAT16, 0x1p-7 } };
    static float on[4 * ROWS * WIDTH], off[4 * ROWS * WIDTH];
    (void)state;
    for (size_t i = 0; i < COUNT(fusions); i++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            const struct fusion *f = &fusions[i];
            size_t n = results_of(f, NULL, kinds[k].dtype, f->fused, on);
            assert_int_equal(n, results_of(f, f->off, kinds[k].dtype, f->apart, off));
            for (size_t j = 0; j < n; j++)
                if (!(fabs(on[j] - off[j]) <= f->ulps * kinds[k].ulp * fmax(1, fabs(off[j]))))
                    fail_msg("%s (%s): element %zu is %.9g fused and %.9g apart", f->name, mlxvk_dtype_name(kinds[k].dtype), j, on[j], off[j]);
        }
}

/* Each head of (2, 3, heads, dims) normalised, then turned, as float32. With the weight or without. */
static size_t normed_rope(const char *gates, mlxvk_dtype dtype, int dims, bool traditional, float *values, const char **kind)
{
    enum { HEADS = 5 };
    struct bench t = bench_open(gates, dtype);
    mlxvk_array x = normals((int[]){ 2, 3, HEADS, dims }, 4, dtype, (uint32_t)dims, t.s);
    mlxvk_array weight = dims % 16 ? mlxvk_array_new() : normals(&dims, 1, dtype, 9, t.s), y = mlxvk_array_new();
    size_t count = mlxvk_array_size(x);
    OK(mlxvk_synchronize(t.s), t.s);
    mlxvk_reset_stats(t.device);
    OK(mlxvk_fast_rms_norm(&y, x, weight, 1e-5f, t.s), t.s);
    OK(mlxvk_transpose_axes(&y, y, (int[]){ 0, 2, 1, 3 }, 4, t.s), t.s);
    OK(mlxvk_fast_rope(&y, y, dims, traditional, BASE, 1, 11, mlxvk_array_new(), t.s), t.s);
    OK(mlxvk_synchronize(t.s), t.s);
    if (dims <= 512) assert_int_equal(stats_of(t.device).dispatches, gates ? 2 : 1);      /* wider ones: as threads allow */
    OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, t.s), t.s);
    OK(mlxvk_array_read(y, values, mlxvk_array_nbytes(y), t.s), t.s);
    OK_DEVICE(mlxvk_device_info_get_string(kind, t.device, "type"), t.device);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(weight);
    bench_close(&t);
    return count;
}

/* As apart: rows of one thread, of two, of several, of more than a tree's half, and of more than a CPU driver's rows have;
 * halves that do not lie at eights. Bit by bit on CPU drivers; elsewhere compilers may see to some in another way. */
static void test_norm_rope(void **state)
{
    static const int dims[] = { 8, 16, 24, 72, 128, 264, 520, 1024 };
    static const struct { mlxvk_dtype dtype; double ulp; } kinds[] = { { MLXVK_FLOAT32, 0x1p-23 }, { MLXVK_BFLOAT16, 0x1p-7 },
                                                                       { MLXVK_FLOAT16, 0x1p-10 } };
    static float on[30 * 1024], apart[30 * 1024];
    const char *kind;
    (void)state;
    for (size_t i = 0; i < COUNT(dims); i++)
        for (int traditional = 0; traditional < 2; traditional++) {
            size_t k = (i + (size_t)traditional) % COUNT(kinds), n = normed_rope(NULL, kinds[k].dtype, dims[i], traditional, on, &kind);
            assert_int_equal(n, normed_rope("MLX_VK_ENABLE_RMSNORM_ROPE=0", kinds[k].dtype, dims[i], traditional, apart, &kind));
            for (size_t j = 0; j < n; j++)
                if (!(fabs(on[j] - apart[j]) <= (strcmp(kind, "cpu") ? 4 * kinds[k].ulp * fmax(1, fabs(apart[j])) : 0)))
                    fail_msg("%d features of %s%s: element %zu is %.9g fused and %.9g apart", dims[i], mlxvk_dtype_name(kinds[k].dtype),
                             traditional ? ", traditional" : "", j, on[j], apart[j]);
        }
}

/* Where the first operation of a fusion goes ahead of an earlier one that must wait for a barrier, the others may need that one. */
static void test_ahead(void **state)
{
    struct bench t = bench_open(NULL, MLXVK_FLOAT32);
    mlxvk_array weight = mlxvk_array_new(), h = mlxvk_array_new(), norm = mlxvk_array_new(), want = mlxvk_array_new();
    float got[ROWS * WIDTH], apart[ROWS * WIDTH];
    (void)state;
    for (int i = 0; i < 2; i++) {
        mlxvk_array *res = i ? &norm : &want;
        OK(mlxvk_cumsum(&weight, t.weight, 0, false, true, t.s), t.s);
        OK(mlxvk_cumsum(&weight, weight, 0, false, true, t.s), t.s);
        if (!i) OK_DEVICE(mlxvk_array_eval(weight), t.device);
        OK(mlxvk_add(&h, t.a, t.b, t.s), t.s);
        OK(mlxvk_fast_rms_norm(res, h, weight, 1e-6f, t.s), t.s);
        OK(mlxvk_array_read(*res, i ? got : apart, sizeof got, t.s), t.s);
    }
    assert_memory_equal(got, apart, sizeof got);
    mlxvk_array_free(weight);
    mlxvk_array_free(h);
    mlxvk_array_free(norm);
    mlxvk_array_free(want);
    bench_close(&t);
}

/* A result in between that somebody holds is computed, so the operations stay apart. */
static void test_owned(void **state)
{
    struct bench t = bench_open(NULL, MLXVK_FLOAT32);
    mlxvk_array sigmoid = mlxvk_array_new(), silu = mlxvk_array_new(), product = mlxvk_array_new();
    float held[ROWS * WIDTH], again[ROWS * WIDTH];
    (void)state;
    OK(mlxvk_sigmoid(&sigmoid, t.a, t.s), t.s);
    OK(mlxvk_multiply(&silu, t.a, sigmoid, t.s), t.s);
    OK(mlxvk_multiply(&product, silu, t.b, t.s), t.s);
    OK(mlxvk_synchronize(t.s), t.s);
    assert_int_equal(stats_of(t.device).dispatches, 3);
    OK(mlxvk_array_read(sigmoid, held, sizeof held, t.s), t.s);
    OK(mlxvk_sigmoid(&product, t.a, t.s), t.s);
    OK(mlxvk_array_read(product, again, sizeof again, t.s), t.s);
    assert_memory_equal(held, again, sizeof held);
    mlxvk_array_free(sigmoid);
    mlxvk_array_free(silu);
    mlxvk_array_free(product);
    bench_close(&t);
}

/* An update of an operand between the nodes of a fusion must not be overtaken. */
static void test_update_between(void **state)
{
    struct bench t = bench_open(NULL, MLXVK_FLOAT32);
    mlxvk_array g = mlxvk_array_new(), res = mlxvk_array_new(), old = mlxvk_array_new();
    float got[ROWS * WIDTH], want[ROWS * WIDTH];
    mlxvk_array zero = mlxvk_array_new();
    (void)state;
    OK(mlxvk_zeros(&zero, NULL, 0, MLXVK_FLOAT32, t.s), t.s);
    OK(mlxvk_contiguous(&old, t.b, false, t.s), t.s);
    OK(mlxvk_sigmoid(&g, t.a, t.s), t.s);
    OK(mlxvk_multiply(&g, t.a, g, t.s), t.s);
    mlxvk_array_free(old);
    OK(mlxvk_slice_update(&t.b, t.b, zero, (int[]){ 0, 0 }, 2, (int[]){ ROWS, WIDTH }, 2, (int[]){ 1, 1 }, 2, t.s), t.s);
    OK(mlxvk_multiply(&res, g, t.b, t.s), t.s);
    mlxvk_array_free(g);
    OK(mlxvk_array_read(res, got, sizeof got, t.s), t.s);
    memset(want, 0, sizeof want);
    for (size_t i = 0; i < COUNT(got); i++) assert_true(got[i] == want[i]);
    mlxvk_array_free(res);
    mlxvk_array_free(zero);
    bench_close(&t);
}

/* ---- quantized products with what comes before and behind them, as a layer of a model has them, for one row ---- */

enum { WIDE = 320 };
struct layer { mlxvk_array w[3][3], x, residual, weight; };

static void layer_open(struct bench *t, struct layer *l, int rows)
{
    static const int sizes[] = { 203, 64, 203 };
    mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    const mlxvk_array nothing = mlxvk_array_new();
    for (int i = 0; i < 3; i++) {
        mlxvk_vector_array q = mlxvk_vector_array_new();
        mlxvk_array w = normals((int[]){ sizes[i], WIDE }, 2, t->dtype, 20 + (uint32_t)i, t->s);
        OK(mlxvk_quantize(&q, w, group, bits, "affine", nothing, t->s), t->s);
        for (size_t k = 0; k < 3; k++) {
            l->w[i][k] = mlxvk_array_new();
            OK(mlxvk_vector_array_get(&l->w[i][k], q, k), t->s);
        }
        mlxvk_vector_array_free(q);
        mlxvk_array_free(w);
    }
    l->x = normals((int[]){ 1, rows, WIDE }, 3, t->dtype, 30, t->s);
    l->residual = normals((int[]){ 1, rows, sizes[0] }, 3, t->dtype, 31, t->s);
    l->weight = normals((int[]){ WIDE }, 1, t->dtype, 32, t->s);
    OK(mlxvk_synchronize(t->s), t->s);
    mlxvk_reset_stats(t->device);
}

static void layer_close(struct layer *l)
{
    for (int i = 0; i < 9; i++) mlxvk_array_free(l->w[i / 3][i % 3]);
    mlxvk_array_free(l->x);
    mlxvk_array_free(l->residual);
    mlxvk_array_free(l->weight);
}

static void by_weight(struct bench *t, const struct layer *l, int i, mlxvk_array x, mlxvk_array *res)
{
    mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    OK(mlxvk_quantized_matmul(res, x, l->w[i][0], l->w[i][1], l->w[i][2], true, group, bits, "affine", t->s), t->s);
}

static void norm_of(struct bench *t, const struct layer *l, mlxvk_array *res)
{
    OK(mlxvk_fast_rms_norm(res, l->x, l->weight, 1e-6f, t->s), t->s);
}

static void norm_products(struct bench *t, const struct layer *l, mlxvk_array *res)
{
    mlxvk_array x = mlxvk_array_new();
    norm_of(t, l, &x);
    for (int i = 0; i < 3; i++) by_weight(t, l, i, x, &res[i]);
    mlxvk_array_free(x);
}

static void norm_product(struct bench *t, const struct layer *l, mlxvk_array *res)
{
    mlxvk_array x = mlxvk_array_new();
    norm_of(t, l, &x);
    by_weight(t, l, 1, x, &res[0]);
    mlxvk_array_free(x);
}

/* silu(gate) * up of two products of x, of which the gate's is recorded first or second, and kept or not. */
static void swiglu_of(struct bench *t, const struct layer *l, mlxvk_array x, bool second, bool keep, mlxvk_array *res)
{
    mlxvk_array y[2] = { mlxvk_array_new(), mlxvk_array_new() }, silu = mlxvk_array_new();
    by_weight(t, l, 0, x, &y[0]);
    by_weight(t, l, 2, x, &y[1]);
    OK(mlxvk_sigmoid(&silu, y[second], t->s), t->s);
    OK(mlxvk_multiply(&silu, y[second], silu, t->s), t->s);
    OK(mlxvk_multiply(&res[0], silu, y[!second], t->s), t->s);
    if (keep) OK(mlxvk_array_set(&res[1], y[second]), t->s);
    for (int i = 0; i < 2; i++) mlxvk_array_free(y[i]);
    mlxvk_array_free(silu);
}

static void norm_swiglu_of(struct bench *t, const struct layer *l, bool second, bool keep, mlxvk_array *res)
{
    mlxvk_array x = mlxvk_array_new();
    norm_of(t, l, &x);
    swiglu_of(t, l, x, second, keep, res);
    mlxvk_array_free(x);
}

static void norm_swiglu(struct bench *t, const struct layer *l, mlxvk_array *res) { norm_swiglu_of(t, l, false, false, res); }
static void norm_swiglu_second(struct bench *t, const struct layer *l, mlxvk_array *res) { norm_swiglu_of(t, l, true, false, res); }
static void norm_swiglu_kept(struct bench *t, const struct layer *l, mlxvk_array *res) { norm_swiglu_of(t, l, true, true, res); }
static void swiglu_second(struct bench *t, const struct layer *l, mlxvk_array *res) { swiglu_of(t, l, l->x, true, false, res); }

/* Somebody holds the norm's result: only products that go together anyway are one dispatch. */
static void held_norm(struct bench *t, const struct layer *l, mlxvk_array *res)
{
    norm_of(t, l, &res[0]);
    by_weight(t, l, 0, res[0], &res[1]);
}

static void product_add(struct bench *t, const struct layer *l, mlxvk_array *res)
{
    mlxvk_array y = mlxvk_array_new();
    by_weight(t, l, 0, l->x, &y);
    OK(mlxvk_add(&res[0], l->residual, y, t->s), t->s);
    OK(mlxvk_add(&res[1], res[0], l->residual, t->s), t->s);
    mlxvk_array_free(y);
}

/* The addition of a row to several, of a product to itself, of one that somebody holds: nothing to fuse. */
static void other_adds(struct bench *t, const struct layer *l, mlxvk_array *res)
{
    mlxvk_array y = mlxvk_array_new();
    by_weight(t, l, 0, l->x, &y);
    OK(mlxvk_add(&res[0], y, y, t->s), t->s);
    by_weight(t, l, 0, l->x, &res[1]);
    OK(mlxvk_add(&res[2], res[1], l->residual, t->s), t->s);
    mlxvk_array_free(y);
}

static const struct layer_case {
    const char *name;
    void (*run)(struct bench *t, const struct layer *l, mlxvk_array *res);
    int rows;
    uint64_t fused, apart;                           /* dispatches */
} layer_cases[] = {
    { "rms_norm + 3 products", norm_products, 1, 1, 2 }, { "rms_norm + product", norm_product, 1, 1, 2 },
    { "rms_norm + silu(product) * product", norm_swiglu, 1, 1, 5 },
    { "rms_norm + product * silu(product)", norm_swiglu_second, 1, 1, 5 },
    { "rms_norm + product * silu(product kept)", norm_swiglu_kept, 1, 2, 5 },
    { "product * silu(product)", swiglu_second, 1, 1, 4 }, { "2 rows: product * silu(product)", swiglu_second, 2, 1, 4 },
    { "rms_norm of 2 rows + products", norm_products, 2, 2, 2 },
    { "rms_norm kept, product", held_norm, 1, 2, 2 }, { "product + addition", product_add, 1, 2, 3 },
    { "product of 3 rows + addition", product_add, 3, 2, 3 }, { "other additions", other_adds, 1, 3, 3 },
};

static size_t layer_results(const struct layer_case *c, const char *gates, mlxvk_dtype dtype, uint64_t dispatches, float *values)
{
    struct bench t = bench_open(gates, dtype);
    struct layer l;
    mlxvk_array res[3] = { { NULL }, { NULL }, { NULL } };
    size_t count = 0, subgroup = 0, dots = 0;
    OK_DEVICE(mlxvk_device_info_get_size(&subgroup, t.device, "subgroup"), t.device);
    OK_DEVICE(mlxvk_device_info_get_size(&dots, t.device, "integer_dot_product"), t.device);
    layer_open(&t, &l, c->rows);
    c->run(&t, &l, res);
    OK(mlxvk_synchronize(t.s), t.s);
    if (subgroup && dots && stats_of(t.device).dispatches != dispatches)
        fail_msg("%s (%s): %llu dispatches, expected %llu", c->name, gates, (unsigned long long)stats_of(t.device).dispatches,
                 (unsigned long long)dispatches);
    for (int i = 0; i < 3 && res[i].ctx; i++) {
        OK(mlxvk_astype(&res[i], res[i], MLXVK_FLOAT32, t.s), t.s);
        OK(mlxvk_array_read(res[i], values + count, mlxvk_array_nbytes(res[i]), t.s), t.s);
        count += mlxvk_array_size(res[i]);
        mlxvk_array_free(res[i]);
    }
    layer_close(&l);
    bench_close(&t);
    return count;
}

static void test_layer(void **state)
{
    static const struct { mlxvk_dtype dtype; double ulp; } kinds[] = { { MLXVK_FLOAT16, 0x1p-10 }, { MLXVK_BFLOAT16, 0x1p-7 } };
    static float on[4 * WIDE], off[4 * WIDE];
    (void)state;
    for (size_t i = 0; i < COUNT(layer_cases); i++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            const struct layer_case *c = &layer_cases[i];
            size_t n = layer_results(c, "MLX_VK_QMM_KERNEL=5", kinds[k].dtype, c->fused, on);
            double most = 0;
            assert_int_equal(n, layer_results(c, "MLX_VK_QMM_KERNEL=5 MLX_VK_ENABLE_QMM_ADD=0 MLX_VK_ENABLE_RMSNORM_QMM=0 "
                                              "MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16=0 MLX_VK_ENABLE_CHAINS=0",
                                              kinds[k].dtype, c->apart, off));
            for (size_t j = 0; j < n; j++) most = fmax(most, fabs(off[j]));
            for (size_t j = 0; j < n; j++)
                if (!(fabs(on[j] - off[j]) <= 2 * kinds[k].ulp * fmax(0.25 * most, fabs(off[j]))))
                    fail_msg("%s (%s): element %zu is %.9g fused and %.9g apart", c->name, mlxvk_dtype_name(kinds[k].dtype), j, on[j], off[j]);
        }
}

/* ---- rows taken of a quantized matrix ---- */

enum { VOCABULARY = 40, FEATURES = 192 };
static const struct embedding {
    const char *mode;
    int bits, group;
    mlxvk_dtype dtype, indices;
    int shape[2], ndim;
    uint64_t fewer;                                  /* dispatches that the fusion saves */
    /* what it assumes, broken; part: every second row; turned: indices transposed; taller: more rows of scales than of codes */
    bool other_indices, owned, part, turned, taller, narrow;
    bool gather;                                     /* by windows of a row, as MLX has it; narrow: of a part of it */
} embeddings[] = {
    { .mode = "affine", .bits = 4, .group = 64, .dtype = MLXVK_BFLOAT16, .indices = MLXVK_INT32, .shape = { 1, 1 }, .ndim = 2, .fewer = 3 },
    { .mode = "affine", .bits = 3, .group = 32, .dtype = MLXVK_FLOAT32, .indices = MLXVK_UINT32, .shape = { 2, 7 }, .ndim = 2, .fewer = 3 },
    { .mode = "affine", .bits = 8, .group = 64, .dtype = MLXVK_FLOAT16, .indices = MLXVK_INT64, .shape = { 11 }, .ndim = 1, .fewer = 3 },
    { .mode = "affine", .bits = 5, .group = 32, .dtype = MLXVK_BFLOAT16, .indices = MLXVK_INT8, .shape = { 5 }, .ndim = 1, .fewer = 3 },
    { .mode = "mxfp4", .bits = 4, .group = 32, .dtype = MLXVK_BFLOAT16, .indices = MLXVK_INT32, .shape = { 3 }, .ndim = 1, .fewer = 2 },
    { .mode = "nvfp4", .bits = 4, .group = 16, .dtype = MLXVK_FLOAT32, .indices = MLXVK_INT32, .shape = { 2 }, .ndim = 1, .fewer = 2 },
    { .mode = "mxfp8", .bits = 8, .group = 32, .dtype = MLXVK_FLOAT16, .indices = MLXVK_UINT16, .shape = { 4 }, .ndim = 1, .fewer = 2 },
    { .mode = "affine", .bits = 4, .group = 64, .dtype = MLXVK_BFLOAT16, .indices = MLXVK_INT32, .shape = { 1, 1 }, .ndim = 2, .fewer = 3, .gather = true },
    { .mode = "affine", .bits = 6, .group = 32, .dtype = MLXVK_FLOAT32, .indices = MLXVK_UINT32, .shape = { 3, 4 }, .ndim = 2, .fewer = 3, .gather = true },
    { .mode = "affine", .bits = 4, .group = 64, .dtype = MLXVK_FLOAT32, .indices = MLXVK_INT32, .shape = { 7 }, .ndim = 1, .gather = true, .narrow = true },
    { .mode = "affine", .bits = 4, .group = 64, .dtype = MLXVK_FLOAT32, .indices = MLXVK_INT32, .shape = { 6, 5 }, .ndim = 2, .turned = true },
    { .mode = "affine", .bits = 4, .group = 64, .dtype = MLXVK_FLOAT32, .indices = MLXVK_INT32, .shape = { 5 }, .ndim = 1, .other_indices = true },
    { .mode = "affine", .bits = 4, .group = 64, .dtype = MLXVK_FLOAT32, .indices = MLXVK_INT32, .shape = { 5 }, .ndim = 1, .owned = true },
    { .mode = "affine", .bits = 4, .group = 64, .dtype = MLXVK_FLOAT32, .indices = MLXVK_INT32, .shape = { 5 }, .ndim = 1, .part = true },
    { .mode = "affine", .bits = 4, .group = 64, .dtype = MLXVK_FLOAT32, .indices = MLXVK_INT32, .shape = { 5 }, .ndim = 1, .taller = true },
};

/* Rows below the first and beyond the last one, too, which wrap or stay at the end, as take has them. */
static mlxvk_array indices_of(struct bench *t, const struct embedding *x)
{
    mlxvk_array a = mlxvk_array_new();
    int count = 1;
    for (int i = 0; i < x->ndim; i++) count *= x->shape[i];
    OK(mlxvk_arange(&a, -3, -3 + 11 * count, 11, MLXVK_INT32, t->s), t->s);
    OK(mlxvk_astype(&a, a, x->indices, t->s), t->s);
    OK(mlxvk_reshape(&a, a, x->turned ? (int[]){ x->shape[1], x->shape[0] } : x->shape, (size_t)x->ndim, t->s), t->s);
    if (x->turned) OK(mlxvk_transpose(&a, a, t->s), t->s);
    OK(mlxvk_array_eval(a), t->s);
    return a;
}

/* Rows of a, or where `narrow` is set two thirds of them. */
static void take_rows(struct bench *t, const struct embedding *x, mlxvk_array *a, mlxvk_array at)
{
    int width = mlxvk_array_dim(*a, 1);
    if (!x->gather) {
        OK(mlxvk_take_axis(a, *a, at, 0, t->s), t->s);
        return;
    }
    OK(mlxvk_gather_single(a, *a, at, 0, (int[]){ 1, x->narrow ? width / 3 * 2 : width }, 2, t->s), t->s);
    OK(mlxvk_squeeze_axis(a, *a, x->ndim, t->s), t->s);
}

static size_t embed(const struct embedding *x, const char *gates, float *values, uint64_t *dispatches)
{
    struct bench t = bench_open(gates, x->dtype);
    mlxvk_optional_int group = { x->group, true }, bits = { x->bits, true };
    const mlxvk_array nothing = mlxvk_array_new();
    const bool biased = !strcmp(x->mode, "affine");
    mlxvk_array w = normals((int[]){ x->part ? 2 * VOCABULARY : VOCABULARY, FEATURES }, 2, x->dtype, 50, t.s), taken[3] = { { NULL } };
    mlxvk_array at = indices_of(&t, x), other = mlxvk_array_new(), y = mlxvk_array_new();
    mlxvk_vector_array q = mlxvk_vector_array_new();
    size_t n;
    OK(mlxvk_quantize(&q, w, group, bits, x->mode, nothing, t.s), t.s);
    OK(mlxvk_array_set(&other, at), t.s);
    if (x->other_indices) OK(mlxvk_negative(&other, at, t.s), t.s);
    OK(mlxvk_array_eval(other), t.s);
    for (size_t k = 0; k < (biased ? 3 : 2); k++) {
        OK(mlxvk_vector_array_get(&taken[k], q, k), t.s);
        if (x->part)
            OK(mlxvk_slice(&taken[k], taken[k], (int[]){ 0, 0 }, 2, (int[]){ 2 * VOCABULARY, mlxvk_array_dim(taken[k], 1) }, 2, (int[]){ 2, 1 }, 2,
                           t.s), t.s);
        if (x->taller && k == 1) {
            mlxvk_vector_array both = mlxvk_vector_array_new_data((mlxvk_array[]){ taken[k], taken[k] }, 2);
            OK(mlxvk_concatenate_axis(&taken[k], both, 0, t.s), t.s);
            mlxvk_vector_array_free(both);
        }
        OK(mlxvk_array_eval(taken[k]), t.s);
    }
    OK(mlxvk_synchronize(t.s), t.s);
    mlxvk_reset_stats(t.device);
    for (size_t k = 0; k < (biased ? 3 : 2); k++) take_rows(&t, x, &taken[k], k == 1 ? other : at);
    OK(mlxvk_dequantize(&y, taken[0], taken[1], taken[2], group, bits, x->mode, nothing, (mlxvk_optional_dtype){ x->dtype, true }, t.s), t.s);
    for (size_t k = 0; k < 3; k++) if (!x->owned) { mlxvk_array_free(taken[k]); taken[k] = nothing; }
    OK(mlxvk_synchronize(t.s), t.s);
    *dispatches = stats_of(t.device).dispatches;
    OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, t.s), t.s);
    n = mlxvk_array_size(y);
    OK(mlxvk_array_read(y, values, mlxvk_array_nbytes(y), t.s), t.s);
    for (size_t k = 0; k < 3; k++) mlxvk_array_free(taken[k]);
    mlxvk_array_free(w);
    mlxvk_array_free(at);
    mlxvk_array_free(other);
    mlxvk_array_free(y);
    mlxvk_vector_array_free(q);
    bench_close(&t);
    return n;
}

static void test_embedding(void **state)
{
    static float on[30 * FEATURES], off[30 * FEATURES];
    (void)state;
    for (size_t i = 0; i < COUNT(embeddings); i++) {
        const struct embedding *x = &embeddings[i];
        uint64_t fused, apart;
        size_t n = embed(x, NULL, on, &fused);
        assert_int_equal(n, embed(x, "MLX_VK_ENABLE_TAKE_DEQUANTIZE=0", off, &apart));
        if (fused + x->fewer != apart)
            fail_msg("embedding %zu: %llu dispatches, and %llu with the fusion off", i, (unsigned long long)fused, (unsigned long long)apart);
        for (size_t j = 0; j < n; j++)
            if (memcmp(&on[j], &off[j], sizeof *on))
                fail_msg("embedding %zu: element %zu is %.9g fused and %.9g apart", i, j, on[j], off[j]);
    }
}

/* ---- rows less a number each, and where the best of the difference is ---- */

enum { LOGITS = 5000, LOGIT_ROWS = 3 };
enum broken { WHOLE, COLUMNS, GAPS, ONE_NUMBER, FULL_NUMBERS, REVERSED, ADDED, OTHER_AXIS, PART_SEEN, SHORT, INTEGERS,
              BY_GATE, FEW_BUFFERS, IN_BINDINGS };
static const struct less_case {
    mlxvk_dtype dtype;
    int rows, n;
    bool least, kept;
    float special;                                   /* written here and there */
    enum broken broken;
} less_cases[] = {
    { MLXVK_BFLOAT16, 1, LOGITS, false, false, 0, WHOLE }, { MLXVK_BFLOAT16, 1, LOGITS, false, true, 0, WHOLE },
    { MLXVK_FLOAT16, 1, LOGITS, false, true, 0, WHOLE }, { MLXVK_FLOAT32, 1, LOGITS, false, true, 0, WHOLE },
    { MLXVK_FLOAT32, 1, 4096, true, true, 0, WHOLE }, { MLXVK_BFLOAT16, LOGIT_ROWS, 4097, false, true, 0, WHOLE },
    { MLXVK_FLOAT32, LOGIT_ROWS, LOGITS, true, true, 0, WHOLE },
    { MLXVK_FLOAT16, LOGIT_ROWS, 4999, true, false, 0, WHOLE },
    { MLXVK_BFLOAT16, LOGIT_ROWS, LOGITS, false, true, NAN, WHOLE },
    { MLXVK_FLOAT32, 1, LOGITS, true, true, NAN, WHOLE },
    { MLXVK_BFLOAT16, LOGIT_ROWS, LOGITS, false, true, INFINITY, WHOLE },
    { MLXVK_FLOAT16, 1, LOGITS, false, true, -INFINITY, WHOLE },
    { MLXVK_FLOAT32, 1, LOGITS, true, true, -INFINITY, WHOLE },
    { MLXVK_BFLOAT16, LOGIT_ROWS, LOGITS, false, true, 0, COLUMNS },
    { MLXVK_FLOAT32, LOGIT_ROWS, LOGITS, false, true, 0, GAPS },
    { MLXVK_BFLOAT16, LOGIT_ROWS, LOGITS, false, true, 0, ONE_NUMBER },
    { MLXVK_FLOAT32, LOGIT_ROWS, LOGITS, false, true, 0, FULL_NUMBERS },
    { MLXVK_FLOAT32, 1, LOGITS, false, true, 0, REVERSED }, { MLXVK_FLOAT32, 1, LOGITS, false, true, 0, ADDED },
    { MLXVK_FLOAT32, LOGIT_ROWS, LOGITS, false, true, 0, OTHER_AXIS },
    { MLXVK_FLOAT32, 1, LOGITS, false, true, 0, PART_SEEN },
    { MLXVK_FLOAT32, LOGIT_ROWS, 100, false, true, 0, SHORT }, { MLXVK_INT32, 1, LOGITS, false, true, 0, INTEGERS },
    { MLXVK_BFLOAT16, 1, LOGITS, false, true, 0, BY_GATE },
    { MLXVK_FLOAT32, 1, LOGITS, false, true, 0, FEW_BUFFERS }, { MLXVK_FLOAT32, 1, LOGITS, false, true, 0, IN_BINDINGS },
};

/* What a case subtracts from: few different numbers, so that the difference has ties that its operand has not. */
static mlxvk_array logits_of(struct bench *t, const struct less_case *c, int rows, int n)
{
    static float values[2 * LOGIT_ROWS * LOGITS];
    mlxvk_array x;
    for (int i = 0; i < rows * n; i++) values[i] = 3 + (float)(i * 37 % 101) / 1024;
    for (int i = 0; i < rows && c->special != 0; i++) {
        values[i * n + 11] = values[i * n + n - 2] = c->special;
        for (int k = 0; k < n && i == 1; k++) values[i * n + k] = c->special;
    }
    x = floats(t->device, values, (int[]){ rows, n }, 2);
    OK(mlxvk_astype(&x, x, c->dtype, t->s), t->s);
    OK(mlxvk_array_eval(x), t->s);
    return x;
}

/* Where the best of x less the numbers is, and the difference, on the stream of t. */
static void best_of(struct bench *t, const struct less_case *c, mlxvk_array x, mlxvk_array number, mlxvk_array *at,
                    mlxvk_array *y)
{
    bool reversed = c->broken == REVERSED;
    mlxvk_array seen = mlxvk_array_new();
    if (c->broken == ADDED) OK(mlxvk_add(y, x, number, t->s), t->s);
    else OK(mlxvk_subtract(y, reversed ? number : x, reversed ? x : number, t->s), t->s);
    OK(mlxvk_array_set(&seen, *y), t->s);
    if (c->broken == PART_SEEN)
        OK(mlxvk_slice(&seen, *y, (int[]){ 0, 1 }, 2, (int[]){ c->rows, c->n }, 2, (int[]){ 1, 1 }, 2, t->s), t->s);
    OK((c->least ? mlxvk_argmin_axis : mlxvk_argmax_axis)(at, seen, c->broken == OTHER_AXIS ? 0 : 1, false, t->s), t->s);
    mlxvk_array_free(seen);
}

/* The results of a case as words, and the dispatches: of the fourth time, when the window is replayed. */
static size_t best_of_less(const struct less_case *c, const char *gates, float *values, uint64_t *dispatches)
{
    enum { TIMES = 4 };
    struct bench t = bench_open(gates, c->dtype == MLXVK_INT32 ? MLXVK_FLOAT32 : c->dtype);
    bool turned = c->broken == COLUMNS;
    int rows = c->broken == GAPS ? 2 * c->rows : c->rows;
    int numbers[] = { c->broken == ONE_NUMBER ? 1 : c->rows, c->broken == FULL_NUMBERS ? c->n : 1 };
    mlxvk_array x = logits_of(&t, c, turned ? c->n : rows, turned ? rows : c->n), at, y;
    mlxvk_array number = normals(numbers, 2, t.dtype, 60, t.s);
    size_t n;
    OK(mlxvk_astype(&number, number, c->dtype, t.s), t.s);
    if (turned) OK(mlxvk_transpose(&x, x, t.s), t.s);
    if (c->broken == GAPS)
        OK(mlxvk_slice(&x, x, (int[]){ 0, 0 }, 2, (int[]){ rows, c->n }, 2, (int[]){ 2, 1 }, 2, t.s), t.s);
    OK(mlxvk_array_eval(number), t.s);
    for (int i = 0; i < TIMES; i++) {
        OK(mlxvk_synchronize(t.s), t.s);
        mlxvk_reset_stats(t.device);
        y = mlxvk_array_new();
        at = mlxvk_array_new();
        best_of(&t, c, x, number, &at, &y);
        if (!c->kept) mlxvk_array_free(y);
        OK(mlxvk_synchronize(t.s), t.s);
        *dispatches = stats_of(t.device).dispatches;
        if (i == TIMES - 1) break;
        mlxvk_array_free(at);
        if (c->kept) mlxvk_array_free(y);
    }
    n = mlxvk_array_size(at);
    OK(mlxvk_array_read(at, values, mlxvk_array_nbytes(at), t.s), t.s);
    if (c->kept) {
        OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, t.s), t.s);
        OK(mlxvk_array_read(y, values + n, mlxvk_array_nbytes(y), t.s), t.s);
        n += mlxvk_array_size(y);
        mlxvk_array_free(y);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(number);
    mlxvk_array_free(at);
    bench_close(&t);
    return n;
}

/* The same bits with one dispatch less, where all that it assumes holds; else as many. Parts joined in one dispatch, or
 * by another one. */
static void test_arg_less(void **state)
{
#define LESS(n) "MLX_VK_ENABLE_CHAIN_REDUCE=0 MLX_VK_ENABLE_SUBTRACT_ARGREDUCE=" #n
    static const char *const gates[2][2] = {
        { LESS(2) " MLX_VK_ENABLE_REDUCE_JOIN=2", LESS(0) " MLX_VK_ENABLE_REDUCE_JOIN=2" },
        { LESS(2) " MLX_VK_ENABLE_REDUCE_JOIN=0", LESS(0) " MLX_VK_ENABLE_REDUCE_JOIN=0" } };
    static const char *const special[][2] = {
        [BY_GATE] = { LESS(2) " MLX_VK_ENABLE_ARGREDUCE_ARGMAX_LASTDIM=0",
                      LESS(0) " MLX_VK_ENABLE_ARGREDUCE_ARGMAX_LASTDIM=0" },
        [FEW_BUFFERS] = { LESS(2) " MLX_VK_MAX_STORAGE_BUFFERS=4", LESS(0) " MLX_VK_MAX_STORAGE_BUFFERS=4" },
        [IN_BINDINGS] = { LESS(2) " MLX_VK_MAX_BINDING_RANGE=16384", LESS(0) " MLX_VK_MAX_BINDING_RANGE=16384" },
    };
    static float on[LOGITS * (LOGIT_ROWS + 1)], off[LOGITS * (LOGIT_ROWS + 1)];
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(less_cases); i++) {
        const struct less_case *c = &less_cases[i / 2];
        const char *const *pair = c->broken < BY_GATE ? gates[i % 2] : special[c->broken];
        uint64_t fused, apart;
        size_t n = best_of_less(c, pair[0], on, &fused);
        assert_int_equal(n, best_of_less(c, pair[1], off, &apart));
        if (fused + (c->broken == WHOLE) != apart)
            fail_msg("case %zu: %llu dispatches, and %llu with the fusion off", i / 2, (unsigned long long)fused,
                     (unsigned long long)apart);
        for (size_t j = 0; j < n; j++)
            if (memcmp(&on[j], &off[j], sizeof *on))
                fail_msg("case %zu: word %zu is %.9g fused and %.9g apart", i / 2, j, on[j], off[j]);
    }
#undef LESS
}

/* ---- places in a sequence, and a number ---- */

enum { SEQUENCE = 5000, VALUES_MOST = 129 };
enum search_broken { SEARCH_WHOLE, SEARCH_ALONE, NUMBER_LESS_PLACE, NUMBER_EACH, PLACE_TWICE, PLACE_HELD, PLACE_PART,
                     PLACE_TIMES, MANY_VALUES, SHORT_SEQUENCE };
static const struct search_case {
    mlxvk_dtype dtype;
    int length, step, values;
    bool right, less, shuffled, turned;
    enum search_broken broken;
} search_cases[] = {
    { MLXVK_FLOAT32, SEQUENCE, 1, 1, false, true, false, false, SEARCH_WHOLE },
    { MLXVK_FLOAT32, SEQUENCE, 1, 1, true, false, true, false, SEARCH_WHOLE },
    { MLXVK_FLOAT32, 1024, 1, 128, true, true, true, false, SEARCH_WHOLE },
    { MLXVK_FLOAT32, 4999, 2, 126, false, false, false, true, SEARCH_WHOLE },
    { MLXVK_BFLOAT16, 2049, 1, 33, true, true, true, false, SEARCH_WHOLE },
    { MLXVK_INT64, 2047, 1, 7, true, false, true, false, SEARCH_WHOLE },
    { MLXVK_UINT8, 1025, 3, 12, false, true, true, true, SEARCH_WHOLE },
    { MLXVK_FLOAT32, SEQUENCE, 1, 5, false, false, true, false, SEARCH_ALONE },
    { MLXVK_FLOAT32, SEQUENCE, 1, 3, false, true, false, false, NUMBER_LESS_PLACE },
    { MLXVK_FLOAT32, SEQUENCE, 1, 3, false, true, false, false, NUMBER_EACH },
    { MLXVK_FLOAT32, SEQUENCE, 1, 1, false, false, false, false, PLACE_TWICE },
    { MLXVK_FLOAT32, SEQUENCE, 1, 3, false, true, false, false, PLACE_HELD },
    { MLXVK_FLOAT32, SEQUENCE, 1, 3, false, true, false, false, PLACE_PART },
    { MLXVK_FLOAT32, SEQUENCE, 1, 3, false, false, false, false, PLACE_TIMES },
    { MLXVK_FLOAT32, SEQUENCE, 1, VALUES_MOST, false, true, false, false, MANY_VALUES },
    { MLXVK_FLOAT32, 1023, 1, 3, false, true, false, false, SHORT_SEQUENCE },
};

/* The operands of a case: sequence, values, number. Three values are not in order: NaN, and both infinities. */
static void search_operands(struct bench *t, const struct search_case *c, mlxvk_array a[3])
{
    static float numbers[3 * SEQUENCE];
    static const float odd[3] = { NAN, INFINITY, -INFINITY };
    int n = c->length * c->step;
    for (int i = 0; i < n; i++)
        numbers[i] = (float)(c->shuffled && i % 37 == 5 ? i * 61 % n : i) / (c->dtype == MLXVK_UINT8 ? 16 : 8);
    a[0] = floats(t->device, numbers, (int[]){ n }, 1);
    for (int i = 0; i < c->values; i++) {
        numbers[i] = (float)(i * 7919 % n) / 8 - (float)(i % 3 - 1) / 16;
        if (i % 5 == 4 && c->dtype == MLXVK_FLOAT32) numbers[i] = odd[i / 5 % 3];
    }
    a[1] = c->turned ? floats(t->device, numbers, (int[]){ c->values / 2, 2 }, 2)
                     : floats(t->device, numbers, (int[]){ c->values }, 1);
    for (int i = 0; i < c->values; i++) numbers[i] = (float)(i + 3);
    a[2] = floats(t->device, numbers, (int[]){ c->broken == NUMBER_EACH ? c->values : 1 }, 1);
    for (int i = 0; i < 3; i++) OK(mlxvk_astype(&a[i], a[i], i < 2 ? c->dtype : MLXVK_UINT32, t->s), t->s);
    OK(mlxvk_slice(&a[0], a[0], (int[]){ 0 }, 1, (int[]){ n }, 1, &c->step, 1, t->s), t->s);
    if (c->turned) OK(mlxvk_transpose(&a[1], a[1], t->s), t->s);
    for (int i = 0; i < 3; i++) OK(mlxvk_array_eval(a[i]), t->s);
}

/* The results of a case as words, and the dispatches: of the fourth time, when the window is replayed. */
static size_t places(const struct search_case *c, const char *gates, uint32_t *words, uint64_t *dispatches)
{
    struct bench t = bench_open(gates, MLXVK_FLOAT32);
    mlxvk_array a[3], y = mlxvk_array_new(), place = mlxvk_array_new();
    size_t n;
    search_operands(&t, c, a);
    for (int i = 0; i < 4; i++) {
        mlxvk_array_free(y);
        mlxvk_array_free(place);
        place = mlxvk_array_new();
        y = mlxvk_array_new();
        OK(mlxvk_synchronize(t.s), t.s);
        mlxvk_reset_stats(t.device);
        OK(mlxvk_searchsorted(&place, a[0], a[1], c->right ? "right" : "left", t.s), t.s);
        if (c->broken == SEARCH_ALONE) OK(mlxvk_array_set(&y, place), t.s);
        else {
            mlxvk_array seen = mlxvk_array_new(), number = c->broken == PLACE_TWICE ? place : a[2];
            bool turned = c->broken == NUMBER_LESS_PLACE;
            OK(mlxvk_array_set(&seen, place), t.s);
            if (c->broken == PLACE_PART)
                OK(mlxvk_slice(&seen, place, (int[]){ 1 }, 1, &c->values, 1, (int[]){ 1 }, 1, t.s), t.s);
            OK((c->broken == PLACE_TIMES ? mlxvk_multiply : c->less ? mlxvk_subtract : mlxvk_add)(
                   &y, turned ? number : seen, turned ? seen : number, t.s), t.s);
            mlxvk_array_free(seen);
        }
        if (c->broken != PLACE_HELD) { mlxvk_array_free(place); place = mlxvk_array_new(); }
        OK(mlxvk_synchronize(t.s), t.s);
        *dispatches = stats_of(t.device).dispatches;
    }
    n = mlxvk_array_size(y);
    OK(mlxvk_array_read(y, words, mlxvk_array_nbytes(y), t.s), t.s);
    if (c->broken == PLACE_HELD) OK(mlxvk_array_read(place, words + n, mlxvk_array_nbytes(place), t.s), t.s);
    if (c->broken == PLACE_HELD) n *= 2;
    mlxvk_array_free(y);
    mlxvk_array_free(place);
    for (int i = 0; i < 3; i++) mlxvk_array_free(a[i]);
    bench_close(&t);
    return n;
}

/* Workgroups come to the places that threads come to, in sequences out of order, too; with one dispatch less where a
 * number is added or subtracted and all that this assumes holds. */
static void test_search(void **state)
{
    static uint32_t on[2 * VALUES_MOST], off[2 * VALUES_MOST];
    (void)state;
    for (size_t i = 0; i < COUNT(search_cases); i++) {
        const struct search_case *c = &search_cases[i];
        uint64_t fused, apart;
        size_t n = places(c, "MLX_VK_ENABLE_SEARCH_GROUPS=2", on, &fused);
        assert_int_equal(n, places(c, "MLX_VK_ENABLE_SEARCH_GROUPS=0", off, &apart));
        if (fused + (c->broken == SEARCH_WHOLE) != apart)
            fail_msg("case %zu: %llu dispatches, and %llu with the gate off", i, (unsigned long long)fused,
                     (unsigned long long)apart);
        for (size_t j = 0; j < n; j++)
            if (on[j] != off[j]) fail_msg("case %zu: place %zu is %u by groups and %u by threads", i, j, on[j], off[j]);
    }
}

/* ---- sums, times a number ---- */

enum sum_broken { SUM_WHOLE, SUM_MEAN, SUM_HALVES, SUM_TWICE, SUM_HELD, SUM_PART, SUM_PLUS, SUM_LARGEST,
                  SUM_NUMBER_EACH, SUM_TURNED, SUM_BROADCAST };
static const struct sum_case {
    int rows, n, axis;                               /* axis 2: both */
    float number;
    enum sum_broken broken;
} sum_cases[] = {
    { 1, 5000, 1, 0.3f, SUM_WHOLE }, { 1, 5000, 2, -1e38f, SUM_WHOLE }, { 1, 100, 1, NAN, SUM_WHOLE },
    { 3, 5000, 1, 0.7f, SUM_WHOLE }, { 3, 5000, 0, 0.7f, SUM_WHOLE }, { 300, 16, 0, -0.0f, SUM_WHOLE },
    { 3, 5000, 2, INFINITY, SUM_WHOLE }, { 150, 100, 1, 3, SUM_WHOLE },
    { 1, 5000, 1, 0.3f, SUM_MEAN }, { 1, 5000, 1, 0.3f, SUM_HALVES }, { 1, 5000, 1, 0.3f, SUM_TWICE },
    { 1, 5000, 1, 0.3f, SUM_HELD }, { 3, 500, 1, 0.3f, SUM_PART }, { 1, 5000, 1, 0.3f, SUM_PLUS },
    { 1, 5000, 1, 0.3f, SUM_LARGEST }, { 3, 5000, 1, 0.3f, SUM_NUMBER_EACH }, { 3, 5000, 2, 0.3f, SUM_TURNED },
    { 1, 5000, 1, 0.3f, SUM_BROADCAST },
};

static void sum_of(struct bench *t, const struct sum_case *c, mlxvk_array x, mlxvk_array *sum)
{
    if (c->axis == 2) OK(mlxvk_sum(sum, x, false, t->s), t->s);
    else if (c->broken == SUM_MEAN) OK(mlxvk_mean_axis(sum, x, c->axis, false, t->s), t->s);
    else if (c->broken == SUM_LARGEST) OK(mlxvk_max_axis(sum, x, c->axis, false, t->s), t->s);
    else OK(mlxvk_sum_axis(sum, x, c->axis, false, t->s), t->s);
}

/* The results of a case, and the dispatches: of the fourth time, when the window is replayed. */
static size_t sum_times(const struct sum_case *c, const char *gates, float *values, uint64_t *dispatches)
{
    struct bench t = bench_open(gates, MLXVK_FLOAT32);
    float numbers[3] = { c->number, 5, 7 };
    mlxvk_array x = normals((int[]){ c->rows, c->n }, 2, MLXVK_FLOAT32, 70, t.s), y = mlxvk_array_new();
    mlxvk_array number = floats(t.device, numbers, (int[]){ c->broken == SUM_NUMBER_EACH ? 3 : 1 }, 1);
    mlxvk_array sum = mlxvk_array_new();
    size_t n;
    if (c->broken == SUM_HALVES) OK(mlxvk_astype(&x, x, MLXVK_BFLOAT16, t.s), t.s);
    if (c->broken == SUM_HALVES) OK(mlxvk_astype(&number, number, MLXVK_BFLOAT16, t.s), t.s);
    if (c->axis == 2) OK(mlxvk_reshape(&number, number, NULL, 0, t.s), t.s);
    if (c->broken == SUM_TURNED) OK(mlxvk_transpose(&x, x, t.s), t.s);
    OK(mlxvk_array_eval(x), t.s);
    OK(mlxvk_array_eval(number), t.s);
    for (int i = 0; i < 4; i++) {
        mlxvk_array seen = mlxvk_array_new();
        mlxvk_array_free(sum);
        mlxvk_array_free(y);
        sum = mlxvk_array_new();
        y = mlxvk_array_new();
        OK(mlxvk_synchronize(t.s), t.s);
        mlxvk_reset_stats(t.device);
        sum_of(&t, c, x, &sum);
        OK(mlxvk_array_set(&seen, sum), t.s);
        if (c->broken == SUM_PART)
            OK(mlxvk_slice(&seen, sum, (int[]){ 1 }, 1, (int[]){ 3 }, 1, (int[]){ 1 }, 1, t.s), t.s);
        if (c->broken == SUM_BROADCAST) OK(mlxvk_broadcast_to(&seen, sum, (int[]){ 4 }, 1, t.s), t.s);
        OK((c->broken == SUM_PLUS ? mlxvk_add : mlxvk_multiply)(&y, seen, c->broken == SUM_TWICE ? seen : number, t.s),
           t.s);
        mlxvk_array_free(seen);
        if (c->broken != SUM_HELD) { mlxvk_array_free(sum); sum = mlxvk_array_new(); }
        OK(mlxvk_synchronize(t.s), t.s);
        *dispatches = stats_of(t.device).dispatches;
    }
    OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, t.s), t.s);
    n = mlxvk_array_size(y);
    OK(mlxvk_array_read(y, values, mlxvk_array_nbytes(y), t.s), t.s);
    if (c->broken == SUM_HELD) OK(mlxvk_array_read(sum, values + n++, sizeof *values, t.s), t.s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(number);
    mlxvk_array_free(sum);
    bench_close(&t);
    return n;
}

static void test_sum_times(void **state)
{
#define TIMES(n, join) "MLX_VK_ENABLE_SUM_MULTIPLY=" #n " MLX_VK_ENABLE_REDUCE_JOIN=" #join
    static const char *const gates[2][2] = { { TIMES(1, 2), TIMES(0, 2) }, { TIMES(1, 0), TIMES(0, 0) } };
    static float on[5001], off[5001];
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(sum_cases); i++) {
        const struct sum_case *c = &sum_cases[i / 2];
        uint64_t fused, apart;
        size_t n = sum_times(c, gates[i % 2][0], on, &fused);
        assert_int_equal(n, sum_times(c, gates[i % 2][1], off, &apart));
        if (fused + (c->broken == SUM_WHOLE) != apart)
            fail_msg("case %zu: %llu dispatches, and %llu with the fusion off", i / 2, (unsigned long long)fused,
                     (unsigned long long)apart);
        for (size_t j = 0; j < n; j++)
            if (memcmp(&on[j], &off[j], sizeof *on))
                fail_msg("case %zu: word %zu is %.9g fused and %.9g apart", i / 2, j, on[j], off[j]);
    }
#undef TIMES
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal), cmocka_unit_test(test_norm_rope),
        cmocka_unit_test(test_owned), cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_update_between), cmocka_unit_test(test_layer), cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_arg_less), cmocka_unit_test(test_search),
        cmocka_unit_test(test_sum_times),
    };
    return run_group("fusion", tests, NULL, NULL);
}
