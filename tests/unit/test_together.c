/* Quantized products of one x with several weights and many rows of x, in one dispatch: the same as one by one. */
#include "unit/support.h"
#include <math.h>
#include <stdio.h>

/* Products of one x with `sets` weights; or silu(y0) * y1 of two, y0 being recorded first or second, or kept. apart:
 * what breaks an assumption of the kernel that does them together. */
enum { NO_SWIGLU, SWIGLU, SWIGLU_SECOND, SWIGLU_KEPT };
struct together {
    int m, k, rows[3], tile;                         /* tile: of MLX_VK_MATMUL_TILE; 0: as one product is faster */
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
        { 130, 128, { 500, 300 }, 10, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 0 },   /* columns not in eights */
        { 512, 1024, { 4096, 1024, 1024 }, 10, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 1 },
        { 512, 1024, { 4096, 1024, 1024 }, 0, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 0 },
        { 512, 1024, { 4096, 1024, 1024 }, 0, MLXVK_FLOAT16, "mxfp8", NO_SWIGLU, 8, 0 },
        { 500, 960, { 4096, 1016, 1032 }, 0, MLXVK_BFLOAT16, "affine", NO_SWIGLU, 0, 0 },
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
        const char *plain = c->dtype == MLXVK_FLOAT16 ? "matmul_coopmat2_f16" : "matmul_coopmat2_bf16";
        char gates[64];
        uint64_t before, products;
        size_t count;
        snprintf(gates, sizeof gates, "MLX_VK_MATMUL_TILE=%d", c->tile);
        before = dispatches_of(gates, "matmul_sets");
        products = dispatches_of(gates, plain);
        count = together_results(c, gates, &one);
        assert_int_equal(dispatches_of(gates, "matmul_sets") - before, able ? c->joined : 0);
        if (!c->tile) assert_int_equal(dispatches_of(gates, plain) - products, 1);
        assert_int_equal(together_results(c, "MLX_VK_ENABLE_QMM_GROUPED=0 MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16=0", &apart),
                         count);
        for (size_t k = 0; k < count; k++)           /* of silu(y0) * y1, each rounding is one of them */
            if (!(fabs(one[k] - apart[k]) <= (c->swiglu ? 8 : 1.01) * unit * fabs(apart[k]) + (c->swiglu ? 0.05 * unit : 1e-5) * size))
                fail_msg("case %zu, number %zu: %g, one by one %g", i, k, one[k], apart[k]);
        free(one);
        free(apart);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_many_rows_together) };
    return run_group("together", tests, NULL, NULL);
}
