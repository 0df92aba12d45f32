/* Quantized products of one x with several weights and many rows of x, in one dispatch: the same as one by one. */
#include "unit/support.h"
#include <math.h>
#include <stdio.h>

/* Products of one x with `sets` weights; or silu(y0) * y1 of two, y0 being recorded first or second, or kept. apart:
 * what breaks an assumption of the kernel that does them together. */
enum { NO_SWIGLU, SWIGLU, SWIGLU_SECOND, SWIGLU_KEPT };
struct together {
    int m, k, rows[3], tile;                         /* tile: of MLX_VK_MATMUL_TILE */
    mlxvk_dtype dtype;
    const char *mode;
    int swiglu, lead;                                /* lead: elements of x before the ones seen, in each row */
    uint64_t joined;                                 /* dispatches of that kernel where the device has it */
};

static void silu_product(mlxvk_array *res, mlxvk_array x, mlxvk_array y, mlxvk_stream s)
{
    mlxvk_array silu = mlxvk_array_new();
    OK(mlxvk_sigmoid(&silu, x, s), s);
    OK(mlxvk_multiply(&silu, x, silu, s), s);
    OK(mlxvk_multiply(res, silu, y, s), s);
    mlxvk_array_free(silu);
}

/* All results, in float32, one behind the other; returns how many numbers. */
static size_t together_results(const struct together *c, const char *gates, float **values)
{
    struct setting t = start(gates);
    mlxvk_stream s = t.stream;
    const mlxvk_optional_int none = { 0, false };
    mlxvk_array x = normals((int[]){ c->m, c->k + c->lead }, 2, c->dtype, 5, s), y[3], part[3][3], zero = mlxvk_array_new();
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    size_t count = 0;
    int sets = 0;
    OK(mlxvk_slice(&x, x, (int[]){ 0, c->lead }, 2, (int[]){ c->m, c->lead + c->k }, 2, (int[]){ 1, 1 }, 2, s), s);
    *values = malloc((size_t)c->m * (size_t)(c->rows[0] + c->rows[1] + c->rows[2]) * sizeof **values);
    assert_non_null(*values);
    for (; sets < 3 && c->rows[sets]; sets++) {
        mlxvk_array w = normals((int[]){ c->rows[sets], c->k }, 2, c->dtype, 6 + (uint32_t)sets, s);
        y[sets] = mlxvk_array_new();
        OK(mlxvk_quantize(&parts, w, none, none, c->mode, zero, s), s);
        for (size_t i = 0; i < 3; i++) {
            part[sets][i] = mlxvk_array_new();
            if (i < mlxvk_vector_array_size(parts)) OK(mlxvk_vector_array_get(&part[sets][i], parts, i), s);
        }
        for (size_t i = 0; i < mlxvk_vector_array_size(parts); i++) OK(eval_one(part[sets][i]), s);
        mlxvk_array_free(w);
    }
    for (int i = 0; i < sets; i++)
        OK(mlxvk_quantized_matmul(&y[i], x, part[i][0], part[i][1], part[i][2], true, none, none, c->mode, s), s);
    if (c->swiglu) {
        int first = c->swiglu == SWIGLU_SECOND;
        silu_product(&y[!first], y[first], y[!first], s);
        if (c->swiglu != SWIGLU_KEPT) OK(mlxvk_array_set(&y[first], y[!first]), s);
    }
    for (int i = 0; i < sets; i++) OK(mlxvk_astype(&y[i], y[i], MLXVK_FLOAT32, s), s);
    for (int i = 0; i < sets; i++) {
        OK(mlxvk_array_read(y[i], *values + count, mlxvk_array_nbytes(y[i]), s), s);
        count += mlxvk_array_size(y[i]);
        mlxvk_array_free(y[i]);
        for (int k = 0; k < 3; k++) mlxvk_array_free(part[i][k]);
    }
    mlxvk_vector_array_free(parts);
    mlxvk_array_free(zero);
    mlxvk_array_free(x);
    finish(&t);
    return count;
}

static void test_many_rows_together(void **state)
{
    static const struct together cases[] = {
        { 70, 64, { 64, 64 }, 7, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 1 },      /* the first two: small, for CPU drivers, too */
        { 65, 64, { 64, 32 }, 9, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 0 },      /* a matrix of half a tile of columns */
        { 300, 512, { 384, 128, 256 }, 4, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 1 },
        { 128, 576, { 128, 128 }, 4, MLXVK_FLOAT16, "affine", NO_SWIGLU, 8, 1 },   /* rows of x apart */
        { 129, 192, { 192, 576 }, 1, MLXVK_FLOAT16, "mxfp8", NO_SWIGLU, 0, 1 },
        { 200, 128, { 192, 192 }, 1, MLXVK_BFLOAT16, "nvfp4", SWIGLU, 0, 1 },
        { 130, 128, { 96, 96 }, 1, MLXVK_FLOAT16, "affine", SWIGLU_SECOND, 0, 1 },
        { 66, 1024, { 256, 256 }, 6, MLXVK_BFLOAT16, "affine", SWIGLU, 0, 1 },
        { 140, 192, { 200, 136, 264 }, 4, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 1 },   /* each matrix's last tile begins earlier */
        { 70, 64, { 72, 88 }, 9, MLXVK_FLOAT16, "mxfp8", NO_SWIGLU, 0, 1 },
        { 130, 128, { 200, 200 }, 4, MLXVK_BFLOAT16, "affine", SWIGLU, 0, 1 },
        { 130, 128, { 500, 300 }, 10, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 0 },
        { 512, 1024, { 4096, 1024, 1024 }, 10, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 1 },
        { 66, 64, { 64, 64 }, 7, MLXVK_BFLOAT16, "affine", SWIGLU_KEPT, 0, 1 },    /* the products alone go together */
        { 300, 96, { 128, 128 }, 4, MLXVK_BFLOAT16, "mxfp4", NO_SWIGLU, 0, 0 },    /* K is no whole steps */
        { 100, 128, { 128, 128 }, 4, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 0 },  /* fewer rows than a tile */
        { 128, 128, { 128, 120 }, 4, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 0 },
        { 128, 128, { 128, 128 }, 4, MLXVK_FLOAT32, "affine", NO_SWIGLU, 0, 0 },
        { 128, 128, { 128, 128 }, 4, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 3, 0 },  /* rows of x that begin anywhere */
        { 64, 128, { 128, 128 }, 7, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 0 },   /* so many rows go by qmv_matrix */
    };
    struct setting t = start("");
    size_t able = 0;
    (void)state;
    assert_int_equal(mlxvk_device_info_get_size(&able, t.device, "cooperative_matrix2"), 0);
    finish(&t);
    for (size_t i = 0; i < (able ? COUNT(cases) : 2); i++) {
        const struct together *c = &cases[i];
        double unit = c->dtype == MLXVK_BFLOAT16 ? 1.0 / 128 : c->dtype == MLXVK_FLOAT16 ? 1.0 / 1024 : 1e-5, size = sqrt(c->k);
        float *one, *apart;
        char gates[64];
        uint64_t before;
        size_t count;
        snprintf(gates, sizeof gates, "MLX_VK_MATMUL_TILE=%d", c->tile);
        before = dispatches_of(gates, "matmul_sets");
        count = together_results(c, gates, &one);
        assert_int_equal(dispatches_of(gates, "matmul_sets") - before, able ? c->joined : 0);
        assert_int_equal(together_results(c, "MLX_VK_ENABLE_QMM_GROUPED=0 MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16=0", &apart),
                         count);
        for (size_t k = 0; k < count; k++)           /* of silu(y0) * y1, each rounding is one of them */
            if (!(fabs(one[k] - apart[k]) <= (c->swiglu ? 8 : 1.01) * unit * fabs(apart[k]) + (c->swiglu ? 0.05 * unit : 1e-5) * size))
                fail_msg("case %zu, number %zu: %g, one by one %g", i, k, one[k], apart[k]);
        free(one);
        free(apart);
    }
}

/* ---- weights unpacked ahead: nodes that the tape gets of itself ---- */

enum { AHEAD_ROWS = 70, AHEAD_K = 64, AHEAD_WIDE = 128, AHEAD_LAYERS = 3, AHEAD_ROUNDS = 6, AHEAD_WEIGHTS = 7, AHEAD_BITS = 4 };
/* fresh: a weight is quantized in the round itself; strided: another's scales have gaps, and a third weight is half of one that
 * is twice as long; other_scales: of another type than x in the first layer, whose results have theirs. */
static const struct ahead { const char *name; mlxvk_dtype dtype; bool fresh, strided, other_scales; } ahead_cases[] = {
    { "a model", MLXVK_BFLOAT16, false, false, false },
    { "float32", MLXVK_FLOAT32, false, false, false },
    { "a weight made meanwhile", MLXVK_BFLOAT16, true, false, false },
    { "strided scales, half of a weight", MLXVK_BFLOAT16, false, true, false },
    { "scales of another type", MLXVK_BFLOAT16, false, false, true },
};

struct ahead_run { struct setting t; mlxvk_array dense[AHEAD_WEIGHTS], part[AHEAD_LAYERS][AHEAD_WEIGHTS][3]; };

/* q, k, v, o, gate, up, down. */
static int ahead_width(int w) { return w == 4 || w == 5 ? AHEAD_WIDE : AHEAD_K; }

static void quantize_into(mlxvk_array part[3], mlxvk_array dense, mlxvk_stream s)
{
    const mlxvk_optional_int group = { 32, true }, bits = { AHEAD_BITS, true };
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    OK(mlxvk_quantize(&parts, dense, group, bits, "affine", (mlxvk_array){ NULL }, s), s);
    for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&part[i], parts, i), s);
    mlxvk_vector_array_free(parts);
}

static void ahead_weights(struct ahead_run *r, const struct ahead *c)
{
    mlxvk_stream s = r->t.stream;
    for (int w = 0; w < AHEAD_WEIGHTS; w++) {
        r->dense[w] = normals((int[]){ ahead_width(w) * (c->strided ? 2 : 1), w == 6 ? AHEAD_WIDE : AHEAD_K }, 2,
                              c->other_scales ? MLXVK_FLOAT32 : c->dtype, 20 + (uint32_t)w, s);
        for (int l = 0; l < AHEAD_LAYERS; l++) {
            mlxvk_array *p = r->part[l][w];
            for (int i = 0; i < 3; i++) p[i] = mlxvk_array_new();
            quantize_into(p, r->dense[w], s);
            for (int i = 0; i < 3; i++) {
                int columns = mlxvk_array_dim(p[i], 1), first = w == 1 && c->strided ? ahead_width(w) : 0, step = w == 0 && c->strided && i ? 2 : 1;
                OK(mlxvk_slice(&p[i], p[i], (int[]){ first, 0 }, 2, (int[]){ first + ahead_width(w) * step, columns }, 2,
                               (int[]){ step, 1 }, 2, s), s);
                OK(eval_one(p[i]), s);
            }
        }
    }
}

static void ahead_product(mlxvk_array *y, mlxvk_array x, mlxvk_array part[3], mlxvk_stream s)
{
    OK(mlxvk_quantized_matmul(y, x, part[0], part[1], part[2], true, (mlxvk_optional_int){ 32, true },
                              (mlxvk_optional_int){ AHEAD_BITS, true }, "affine", s), s);
}

static void ahead_layer(struct ahead_run *r, const struct ahead *c, int l, mlxvk_array *x)
{
    mlxvk_stream s = r->t.stream;
    mlxvk_array y[AHEAD_WEIGHTS];
    if (c->fresh) quantize_into(r->part[l][3], r->dense[3], s);
    for (int w = 0; w < AHEAD_WEIGHTS; w++) y[w] = mlxvk_array_new();
    for (int w = 0; w < 3; w++) ahead_product(&y[w], *x, r->part[l][w], s);
    OK(mlxvk_multiply(&y[1], y[1], y[2], s), s);
    OK(mlxvk_add(&y[0], y[0], y[1], s), s);
    OK(mlxvk_tanh(&y[0], y[0], s), s);
    ahead_product(&y[3], y[0], r->part[l][3], s);
    OK(mlxvk_add(x, *x, y[3], s), s);
    OK(mlxvk_tanh(x, *x, s), s);
    for (int w = 4; w < 6; w++) ahead_product(&y[w], *x, r->part[l][w], s);
    silu_product(&y[4], y[4], y[5], s);
    ahead_product(&y[6], y[4], r->part[l][6], s);
    OK(mlxvk_add(x, *x, y[6], s), s);
    OK(mlxvk_tanh(x, *x, s), s);
    for (int w = 0; w < AHEAD_WEIGHTS; w++) mlxvk_array_free(y[w]);
}

struct ahead_counts { uint64_t barriers, unpacked; };

static void add_unpacked(const char *name, uint64_t count, uint64_t ns, void *user)
{
    (void)ns;
    if (!strcmp(name, "dequantize")) ((struct ahead_counts *)user)->unpacked += count;
}

static struct ahead_counts ahead_rounds(const struct ahead *c, const char *gates, float values[AHEAD_ROUNDS][AHEAD_ROWS * AHEAD_K])
{
    struct ahead_run r = { .t = start(gates) };
    mlxvk_stream s = r.t.stream;
    struct ahead_counts counts = { 0, 0 };
    mlxvk_array first = normals((int[]){ AHEAD_ROWS, AHEAD_K }, 2, c->dtype, 5, s);
    ahead_weights(&r, c);
    OK(mlxvk_synchronize(s), s);
    mlxvk_reset_stats(r.t.device);
    for (int i = 0; i < AHEAD_ROUNDS; i++) {
        mlxvk_array x = mlxvk_array_new();
        OK(mlxvk_array_set(&x, first), s);
        for (int l = 0; l < AHEAD_LAYERS; l++) ahead_layer(&r, c, l, &x);
        OK(mlxvk_astype(&x, x, MLXVK_FLOAT32, s), s);
        memset(values[i], 0xff, sizeof values[i]);
        OK(mlxvk_array_read(x, values[i], mlxvk_array_nbytes(x), s), s);
        mlxvk_array_free(x);
    }
    counts.barriers = stats_of(r.t.device).barriers;
    OK(mlxvk_kernel_stats(r.t.device, add_unpacked, &counts), s);
    for (int w = 0; w < AHEAD_WEIGHTS; w++) {
        mlxvk_array_free(r.dense[w]);
        for (int l = 0; l < AHEAD_LAYERS; l++) for (int i = 0; i < 3; i++) mlxvk_array_free(r.part[l][w][i]);
    }
    mlxvk_array_free(first);
    finish(&r.t);
    return counts;
}

static void test_unpacked_ahead(void **state)
{
    static float on[AHEAD_ROUNDS][AHEAD_ROWS * AHEAD_K], off[AHEAD_ROUNDS][AHEAD_ROWS * AHEAD_K];
    (void)state;
    for (size_t i = 0; i < COUNT(ahead_cases); i++) {
        const struct ahead *c = &ahead_cases[i];
        static const char before[] = "MLX_VK_QMM_KERNEL=4 MLX_VK_ENABLE_UNPACK_AHEAD=0",
            ahead[] = "MLX_VK_QMM_KERNEL=4 MLX_VK_ENABLE_UNPACK_AHEAD=2";
        struct ahead_counts without = ahead_rounds(c, before, off), with = ahead_rounds(c, ahead, on);
        for (int k = 0; k < AHEAD_ROUNDS; k++) {
            if (memcmp(off[k], off[0], sizeof off[k])) fail_msg("%s: round %d is another without", c->name, k);
            if (memcmp(on[k], off[0], sizeof on[k])) fail_msg("%s: round %d is another with it", c->name, k);
        }
        assert_int_equal(with.unpacked, without.unpacked);
        if (with.barriers >= without.barriers)
            fail_msg("%s: %llu barriers with it, %llu without", c->name, (unsigned long long)with.barriers,
                     (unsigned long long)without.barriers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_many_rows_together), cmocka_unit_test(test_unpacked_ahead) };
    return run_group("together", tests, NULL, NULL);
}
