/* Fusions whose nodes see each other's results, or the place of the result, through other views: the programs that a fused
 * kernel would get wrong. Each runs with everything on and with no fusion; what comes out must agree. */
#include "support.h"

#include <math.h>
#include <stdio.h>

static const mlxvk_optional_float BASE = { 10000.0f, true };
static const mlxvk_array NONE = { NULL };
#define INTS(...) ((int[]){ __VA_ARGS__ }), sizeof((int[]){ __VA_ARGS__ }) / sizeof(int)

/* A program's device, and what it leaves. */
struct run { mlxvk_device device; mlxvk_stream s; mlxvk_array res[2]; };

static mlxvk_array normal(struct run *t, const int *shape, int ndim, uint32_t seed)
{
    return normals(shape, ndim, MLXVK_FLOAT32, seed, t->s);
}

/* A view by start, stop and step along every axis. */
static mlxvk_array slice(struct run *t, mlxvk_array a, const int *start, const int *stop, const int *step, size_t n)
{
    mlxvk_array res = mlxvk_array_new();
    OK(mlxvk_slice(&res, a, start, n, stop, n, step, n, t->s), t->s);
    return res;
}

/* The sum goes into every second column, or backwards; then it is normalised. */
static void add_norm(struct run *t, int start, int stop, int step)
{
    mlxvk_array x = normal(t, INTS(4, 128), 1), update = normal(t, INTS(4, 64), 2), weight = normal(t, INTS(64), 3), part;
    OK(mlxvk_slice_update_add(&x, x, update, (int[]){ 0, start }, 2, (int[]){ 4, stop }, 2, (int[]){ 1, step }, 2, t->s), t->s);
    part = slice(t, x, (int[]){ 0, start }, (int[]){ 4, stop }, (int[]){ 1, step }, 2);
    OK(mlxvk_fast_rms_norm(&t->res[0], part, weight, 1e-6f, t->s), t->s);
    mlxvk_array_free(part);
    t->res[1] = x;
    mlxvk_array_free(update);
    mlxvk_array_free(weight);
}
static void add_norm_steps(struct run *t) { add_norm(t, 0, 128, 2); }
static void add_norm_backwards(struct run *t) { add_norm(t, 127, 63, -1); }

/* The last row of a matrix as a vector. */
static mlxvk_array last_row(struct run *t, mlxvk_array a)
{
    int rows = mlxvk_array_dim(a, 0), n = mlxvk_array_dim(a, 1);
    mlxvk_array row = slice(t, a, (int[]){ rows - 1, 0 }, (int[]){ rows, n }, (int[]){ 1, 1 }, 2);
    OK(mlxvk_flatten(&row, row, 0, -1, t->s), t->s);
    return row;
}

/* The norm's weight, or its bias, lies in the sum that the same kernel would write, or in an operand whose place it takes. */
static void add_norm_of_itself(struct run *t, bool of_sum, bool bias)
{
    mlxvk_array x = normal(t, INTS(48, 64), 1), y = normal(t, INTS(48, 64), 2), h = mlxvk_array_new(), row;
    OK(mlxvk_add(&h, x, y, t->s), t->s);
    row = last_row(t, of_sum ? h : x);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    if (bias) OK(mlxvk_fast_layer_norm(&t->res[0], h, NONE, row, 1e-6f, t->s), t->s);
    else OK(mlxvk_fast_rms_norm(&t->res[0], h, row, 1e-6f, t->s), t->s);
    mlxvk_array_free(row);
    t->res[1] = h;
}
static void add_norm_weight(struct run *t) { add_norm_of_itself(t, true, false); }
static void add_norm_weight_of_x(struct run *t) { add_norm_of_itself(t, false, false); }
static void add_norm_bias(struct run *t) { add_norm_of_itself(t, true, true); }
static void add_norm_bias_of_x(struct run *t) { add_norm_of_itself(t, false, true); }

/* What is multiplied is silu as nobody wrote it. */
static void swiglu(struct run *t, bool transposed)
{
    mlxvk_array x = normal(t, INTS(8, 8), 1), u = normal(t, INTS(8, 8), 2), y = mlxvk_array_new(), seen = mlxvk_array_new();
    OK(mlxvk_sigmoid(&y, x, t->s), t->s);
    OK(mlxvk_multiply(&y, y, x, t->s), t->s);
    if (transposed) OK(mlxvk_transpose(&seen, y, t->s), t->s);
    else seen = slice(t, y, (int[]){ 7, 0 }, (int[]){ -9, 8 }, (int[]){ -1, 1 }, 2);
    mlxvk_array_free(y);
    OK(mlxvk_multiply(&t->res[0], seen, u, t->s), t->s);
    mlxvk_array_free(seen);
    mlxvk_array_free(x);
    mlxvk_array_free(u);
}
static void swiglu_transposed(struct run *t) { swiglu(t, true); }
static void swiglu_backwards(struct run *t) { swiglu(t, false); }

/* The last node writes into what the first one reads through another view. */
static void swiglu_in_place(struct run *t)
{
    mlxvk_array x = normal(t, INTS(8, 8), 1), back = slice(t, x, (int[]){ 7, 0 }, (int[]){ -9, 8 }, (int[]){ -1, 1 }, 2);
    mlxvk_array y = mlxvk_array_new();
    OK(mlxvk_sigmoid(&y, back, t->s), t->s);
    OK(mlxvk_multiply(&y, y, back, t->s), t->s);
    mlxvk_array_free(back);
    OK(mlxvk_slice_update_prod(&x, x, y, (int[]){ 0, 0 }, 2, (int[]){ 8, 8 }, 2, (int[]){ 1, 1 }, 2, t->s), t->s);
    mlxvk_array_free(y);
    t->res[0] = x;
}

/* The same of more than a binding reaches: no part may be written before all parts that read there. */
static void swiglu_of_parts(struct run *t)
{
    const int n = 8192;
    mlxvk_array x = normal(t, &n, 1, 1), back = slice(t, x, (int[]){ n - 1 }, (int[]){ -n - 1 }, (int[]){ -1 }, 1);
    mlxvk_array y = mlxvk_array_new();
    OK(mlxvk_sigmoid(&y, back, t->s), t->s);
    OK(mlxvk_multiply(&y, y, back, t->s), t->s);
    mlxvk_array_free(back);
    OK(mlxvk_slice_update_prod(&x, x, y, (int[]){ 0 }, 1, &n, 1, (int[]){ 1 }, 1, t->s), t->s);
    mlxvk_array_free(y);
    t->res[0] = x;
}

/* rope of a cache's first half of tokens, half a half further. */
static void rope_of_parts(struct run *t)
{
    mlxvk_array c = normal(t, INTS(1, 1, 96, 64), 1), r = mlxvk_array_new();
    mlxvk_array part = slice(t, c, (int[]){ 0, 0, 0, 0 }, (int[]){ 1, 1, 64, 64 }, (int[]){ 1, 1, 1, 1 }, 4);
    OK(mlxvk_fast_rope(&r, part, 64, false, BASE, 1, 3, NONE, t->s), t->s);
    mlxvk_array_free(part);
    OK(mlxvk_slice_update(&c, c, r, (int[]){ 0, 0, 32, 0 }, 4, (int[]){ 1, 1, 96, 64 }, 4, (int[]){ 1, 1, 1, 1 }, 4, t->s), t->s);
    mlxvk_array_free(r);
    t->res[0] = c;
}

/* rope of a part of a cache into the cache's other end, with a norm in front or without. */
static void rope_in_place(struct run *t, bool norm)
{
    mlxvk_array c = normal(t, INTS(1, 1, 16, 64), 1), weight = normal(t, INTS(64), 2), r = mlxvk_array_new();
    mlxvk_array part = slice(t, c, (int[]){ 0, 0, norm ? 0 : 2, 0 }, (int[]){ 1, 1, 16, 64 }, (int[]){ 1, 1, 1, 1 }, 4);
    if (norm) OK(mlxvk_fast_rms_norm(&part, part, weight, 1e-6f, t->s), t->s);
    OK(mlxvk_fast_rope(&r, part, 64, false, BASE, 1, 3, NONE, t->s), t->s);
    mlxvk_array_free(part);
    OK(mlxvk_slice_update(&c, c, r, (int[]){ 0, 0, 15, 0 }, 4, (int[]){ 1, 1, norm ? -17 : 1, 64 }, 4, (int[]){ 1, 1, -1, 1 }, 4, t->s), t->s);
    mlxvk_array_free(r);
    mlxvk_array_free(weight);
    t->res[0] = c;
}
static void rope_cache(struct run *t) { rope_in_place(t, false); }
static void norm_rope_cache(struct run *t) { rope_in_place(t, true); }

/* rope's rows begin in the middle of the norm's. */
static void norm_rope_rows(struct run *t)
{
    mlxvk_array x = normal(t, INTS(1, 2, 16, 8), 1), n = mlxvk_array_new(), part;
    OK(mlxvk_fast_rms_norm(&n, x, NONE, 1e-6f, t->s), t->s);
    OK(mlxvk_flatten(&n, n, 0, -1, t->s), t->s);
    part = slice(t, n, (int[]){ 4 }, (int[]){ 132 }, (int[]){ 1 }, 1);
    mlxvk_array_free(n);
    OK(mlxvk_reshape(&part, part, INTS(1, 1, 16, 8), t->s), t->s);
    OK(mlxvk_broadcast_to(&part, part, INTS(1, 2, 16, 8), t->s), t->s);
    OK(mlxvk_fast_rope(&t->res[0], part, 8, false, BASE, 1, 0, NONE, t->s), t->s);
    mlxvk_array_free(part);
    mlxvk_array_free(x);
}

/* A product is added to the x that it reads; `rows` of x, which has room for one more. */
static void product_in_place(struct run *t, int rows, int first)
{
    mlxvk_array x = normal(t, INTS(rows + 1, 64), 1), w = normal(t, INTS(64, 64), 2), q = mlxvk_array_new(), part;
    mlxvk_vector_array packed = { NULL };
    mlxvk_array of[3] = { { NULL }, { NULL }, { NULL } };
    OK(mlxvk_quantize(&packed, w, (mlxvk_optional_int){ 32, true }, (mlxvk_optional_int){ 4, true }, "affine", NONE, t->s), t->s);
    for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&of[i], packed, i), t->s);
    part = slice(t, x, (int[]){ 0, 0 }, (int[]){ rows, 64 }, (int[]){ 1, 1 }, 2);
    OK(mlxvk_quantized_matmul(&q, part, of[0], of[1], of[2], true, (mlxvk_optional_int){ 32, true }, (mlxvk_optional_int){ 4, true },
                              "affine", t->s), t->s);
    mlxvk_array_free(part);
    OK(mlxvk_slice_update_add(&x, x, q, (int[]){ first, 0 }, 2, (int[]){ first + rows, 64 }, 2, (int[]){ 1, 1 }, 2, t->s), t->s);
    mlxvk_array_free(q);
    for (size_t i = 0; i < 3; i++) mlxvk_array_free(of[i]);
    mlxvk_vector_array_free(packed);
    mlxvk_array_free(w);
    t->res[0] = x;
}
static void product_same_place(struct run *t) { product_in_place(t, 1, 0); }
static void product_next_rows(struct run *t) { product_in_place(t, 2, 1); }

/* A product is added into rows with gaps between them. */
static void product_with_gaps(struct run *t)
{
    mlxvk_array x = normal(t, INTS(2, 64), 1), c = normal(t, INTS(2, 128), 4), w = normal(t, INTS(64, 64), 2), q = mlxvk_array_new();
    mlxvk_vector_array packed = { NULL };
    mlxvk_array of[3] = { { NULL }, { NULL }, { NULL } };
    OK(mlxvk_quantize(&packed, w, (mlxvk_optional_int){ 32, true }, (mlxvk_optional_int){ 8, true }, "affine", NONE, t->s), t->s);
    for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&of[i], packed, i), t->s);
    OK(mlxvk_quantized_matmul(&q, x, of[0], of[1], of[2], true, (mlxvk_optional_int){ 32, true }, (mlxvk_optional_int){ 8, true },
                              "affine", t->s), t->s);
    OK(mlxvk_slice_update_add(&c, c, q, (int[]){ 0, 0 }, 2, (int[]){ 2, 128 }, 2, (int[]){ 1, 2 }, 2, t->s), t->s);
    mlxvk_array_free(q);
    for (size_t i = 0; i < 3; i++) mlxvk_array_free(of[i]);
    mlxvk_vector_array_free(packed);
    mlxvk_array_free(w);
    mlxvk_array_free(x);
    t->res[0] = c;
}

/* Two products of one x, more rows than a small grid has workgroups. */
static void two_products(struct run *t)
{
    mlxvk_array x = normal(t, INTS(1, 64), 1), q[2] = { { NULL }, { NULL } };
    mlxvk_array of[2][3] = { { { NULL } } };
    for (uint32_t k = 0; k < 2; k++) {
        mlxvk_array w = normal(t, INTS(144, 64), 2 + k);
        mlxvk_vector_array packed = { NULL };
        OK(mlxvk_quantize(&packed, w, (mlxvk_optional_int){ 32, true }, (mlxvk_optional_int){ 4, true }, "affine", NONE, t->s), t->s);
        for (size_t i = 0; i < 3; i++) {
            OK(mlxvk_vector_array_get(&of[k][i], packed, i), t->s);
            OK_DEVICE(mlxvk_array_eval(of[k][i]), t->device);
        }
        mlxvk_vector_array_free(packed);
        mlxvk_array_free(w);
    }
    for (int k = 0; k < 2; k++) {
        OK(mlxvk_quantized_matmul(&q[k], x, of[k][0], of[k][1], of[k][2], true, (mlxvk_optional_int){ 32, true },
                                  (mlxvk_optional_int){ 4, true }, "affine", t->s), t->s);
        for (size_t i = 0; i < 3; i++) mlxvk_array_free(of[k][i]);
    }
    mlxvk_array_free(x);
    t->res[0] = q[0];
    t->res[1] = q[1];
}

/* silu of a product multiplies the product with a part of its sigmoid. */
static void products_and_part(struct run *t)
{
    mlxvk_array q[2], sigmoid = mlxvk_array_new(), part, silu = mlxvk_array_new();
    two_products(t);
    for (int k = 0; k < 2; k++) { q[k] = t->res[k]; t->res[k] = mlxvk_array_new(); }
    OK(mlxvk_sigmoid(&sigmoid, q[0], t->s), t->s);
    part = slice(t, sigmoid, (int[]){ 0, 5 }, (int[]){ 1, 6 }, (int[]){ 1, 1 }, 2);
    mlxvk_array_free(sigmoid);
    OK(mlxvk_broadcast_to(&part, part, INTS(1, 144), t->s), t->s);
    OK(mlxvk_multiply(&silu, part, q[0], t->s), t->s);
    OK(mlxvk_multiply(&t->res[0], q[1], silu, t->s), t->s);
    mlxvk_array_free(part);
    mlxvk_array_free(silu);
    for (int k = 0; k < 2; k++) mlxvk_array_free(q[k]);
}

static const char *const APART =
    "MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16=0 MLX_VK_ENABLE_ADD_RMSNORM_NATIVE=0 MLX_VK_ENABLE_RMSNORM_ROPE=0 "
    "MLX_VK_ENABLE_ROPE_CACHE_WRITE=0 MLX_VK_ENABLE_QMM_GROUPED=0 MLX_VK_ENABLE_QMM_ADD=0 MLX_VK_ENABLE_RMSNORM_QMM=0 "
    "MLX_VK_ENABLE_CHAINS=0 MLX_VK_ENABLE_DONATION=0";

static const struct { const char *name, *gates; void (*run)(struct run *t); } programs[] = {
    { "a sum into every second column, normalised", "", add_norm_steps },
    { "a sum written backwards, normalised", "", add_norm_backwards },
    { "a sum, normalised with its own last row for a weight", "", add_norm_weight },
    { "a sum, normalised with an operand's last row for a weight", "", add_norm_weight_of_x },
    { "a sum, normalised with its own last row for a bias", "", add_norm_bias },
    { "a sum, normalised with an operand's last row for a bias", "", add_norm_bias_of_x },
    { "silu transposed", "", swiglu_transposed },
    { "silu backwards", "", swiglu_backwards },
    { "silu of x backwards, into x", "", swiglu_in_place },
    { "silu of x backwards, into x, in parts", "MLX_VK_MAX_BINDING_RANGE=16384", swiglu_of_parts },
    { "rope within a cache, in parts", "MLX_VK_MAX_BINDING_RANGE=16384", rope_of_parts },
    { "rope within a cache", "", rope_cache },
    { "rms_norm and rope within a cache", "", norm_rope_cache },
    { "rope of rows that are not the norm's", "", norm_rope_rows },
    { "x += product(x)", "", product_same_place },
    { "the next rows of x += product(x)", "", product_next_rows },
    { "a product into rows with gaps", "", product_with_gaps },
    { "two products on a small grid", "MLX_VK_MAX_GRID=9", two_products },
    { "products and a part of a sigmoid", "", products_and_part },
};

static size_t results_of(size_t i, const char *gates, float *values, size_t room)
{
    struct run t = { .res = { { NULL }, { NULL } } };
    size_t count = 0;
    t.device = open_device(gates);
    t.s = open_stream(t.device);
    programs[i].run(&t);
    for (int k = 0; k < 2; k++) {
        if (!t.res[k].ctx) continue;
        assert_true(count + mlxvk_array_size(t.res[k]) <= room);
        OK(mlxvk_array_read(t.res[k], values + count, mlxvk_array_nbytes(t.res[k]), t.s), t.s);
        count += mlxvk_array_size(t.res[k]);
        mlxvk_array_free(t.res[k]);
    }
    mlxvk_stream_free(t.s);
    mlxvk_device_free(t.device);
    return count;
}

static void test_programs(void **state)
{
    static float on[8192], off[8192];
    char apart[1024];
    size_t failed = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(programs); i++) {
        size_t n, wrong = 0;
        snprintf(apart, sizeof apart, "%s %s", APART, programs[i].gates);
        for (size_t j = 0; j < COUNT(on); j++) on[j] = off[j] = NAN;
        n = results_of(i, programs[i].gates, on, COUNT(on));
        assert_int_equal(n, results_of(i, apart, off, COUNT(off)));
        for (size_t j = 0; j < n; j++) wrong += !(fabsf(on[j] - off[j]) <= 1e-4f * (1 + fabsf(off[j])));
        if (wrong) print_error("%s: %zu of %zu elements are wrong\n", programs[i].name, wrong, n);
        failed += wrong > 0;
    }
    if (failed) fail_msg("%zu of %zu programs", failed, COUNT(programs));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_programs) };
    return run_group("fusion_views", tests, NULL, NULL);
}
