/* Kernels of the caller's in mlx-c's shape: new, config, apply. */
#include "support.h"
#include "shaders/weighted_spv.h"

enum { ROWS = 5, COLUMNS = 7, SIZE = ROWS * COLUMNS };

static mlxvk_vector_string names(const char *const *text, size_t count)
{
    mlxvk_vector_string v = mlxvk_vector_string_new();
    for (size_t i = 0; i < count; i++) assert_int_equal(mlxvk_vector_string_append_value(v, text[i]), 0);
    return v;
}

static mlxvk_fast_spirv_kernel weighted(const uint32_t *spirv, size_t size, bool rows)
{
    mlxvk_vector_string in = names((const char *const[]){ "x", "y" }, 2), out = names((const char *const[]){ "result", "written" }, 2);
    mlxvk_fast_spirv_kernel kernel = mlxvk_fast_spirv_kernel_new("weighted", in, out, spirv, size, rows);
    mlxvk_vector_string_free(in);
    mlxvk_vector_string_free(out);
    return kernel;
}

/* Two results of ROWS x COLUMNS that begin with 3, by groups of `group` x 2 threads. */
static mlxvk_fast_spirv_kernel_config config_of(int group, const int *shape, size_t dims)
{
    mlxvk_fast_spirv_kernel_config f = mlxvk_fast_spirv_kernel_config_new();
    int size = 1;
    for (size_t i = 0; i < dims; i++) size *= shape[i];
    assert_int_equal(mlxvk_fast_spirv_kernel_config_add_output_arg(f, shape, dims, MLXVK_FLOAT32), 0);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_add_output_arg(f, shape, dims, MLXVK_UINT32), 0);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_set_grid(f, (size + 1) / 2, 2, 1), 0);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_set_thread_group(f, group, 2, 1), 0);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_set_init_value(f, 3), 0);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_add_template_arg_int(f, "SIZE", size), 0);
    return f;
}

static mlxvk_vector_array pair(mlxvk_array x, mlxvk_array y)
{
    return mlxvk_vector_array_new_data((mlxvk_array[]){ x, y }, 2);
}

/* Frees the results. */
static void expect_results(mlxvk_vector_array results, const float *want, size_t count)
{
    mlxvk_array result = { NULL }, written = { NULL };
    int32_t once[SIZE];
    for (int i = 0; i < SIZE; i++) once[i] = 4;
    assert_int_equal(mlxvk_vector_array_size(results), 2);
    assert_int_equal(mlxvk_vector_array_get(&result, results, 0), 0);
    assert_int_equal(mlxvk_vector_array_get(&written, results, 1), 0);
    OK(mlxvk_astype(&written, written, MLXVK_INT32, stream), stream);
    expect_floats(result, want, count, 0, 0, stream);
    expect_ints(written, once, count, stream);
    mlxvk_array_free(result);
    mlxvk_array_free(written);
    mlxvk_vector_array_free(results);
}

static void test_template_arguments(void **state)
{
    (void)state;
    mlxvk_fast_spirv_kernel kernel = weighted(weighted_spv, sizeof weighted_spv, true);
    mlxvk_array x = { NULL }, y = { NULL };
    OK(mlxvk_arange(&x, 0, SIZE, 1, MLXVK_FLOAT32, stream), stream);              /* not computed yet */
    OK(mlxvk_arange(&y, 100, 100 + SIZE, 1, MLXVK_FLOAT32, stream), stream);
    mlxvk_vector_array inputs = pair(x, y);
    for (int i = 0; i < 6; i++) {                                                  /* twice each: made once, found once */
        const int factor = i % 3, group = (int[]){ 1, 8, 64 }[i % 3];
        mlxvk_fast_spirv_kernel_config f = config_of(group, (int[]){ ROWS, COLUMNS }, 2);
        mlxvk_vector_array results = { NULL };
        float want[SIZE];
        if (i % 3) OK(mlxvk_fast_spirv_kernel_config_add_template_arg_int(f, i < 3 ? "FACTOR" : "3", factor), stream);
        OK(mlxvk_fast_spirv_kernel_config_add_template_arg_bool(f, "NEGATIVE", i % 3 == 1), stream);
        if (i % 3 == 2) OK(mlxvk_fast_spirv_kernel_config_add_template_arg_dtype(f, "TYPE", MLXVK_BFLOAT16), stream);
        for (int j = 0; j < SIZE; j++)                                             /* FACTOR is 2 where nobody sets it */
            want[j] = (i % 3 ? (float)factor : 2) * (float)j + (i % 3 == 1 ? -1 : 1) * (100 + (float)j) + (i % 3 == 2 ? MLXVK_BFLOAT16 : 0);
        OK(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), stream);
        expect_results(results, want, SIZE);
        mlxvk_fast_spirv_kernel_config_free(f);
    }
    mlxvk_vector_array_free(inputs);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_fast_spirv_kernel_free(kernel);
}

/* Views: copied where the kernel wants rows, else as they are, from their first element on. */
static void test_views(void **state)
{
    (void)state;
    mlxvk_array base = { NULL }, x = { NULL }, y = { NULL };
    OK(mlxvk_arange(&base, 0, 2 * SIZE, 1, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_as_strided(&x, base, (int[]){ ROWS, COLUMNS }, 2, (int64_t[]){ 1, ROWS }, 2, 3, stream), stream);
    OK(mlxvk_slice(&y, base, (int[]){ 11 }, 1, (int[]){ 11 + SIZE }, 1, (int[]){ 1 }, 1, stream), stream);
    for (int rows = 0; rows < 2; rows++) {
        mlxvk_fast_spirv_kernel kernel = weighted(weighted_spv, sizeof weighted_spv, rows);
        mlxvk_fast_spirv_kernel_config f = config_of(16, (int[]){ SIZE }, 1);
        mlxvk_vector_array inputs = pair(x, y), results = mlxvk_vector_array_new_value(x);
        float want[SIZE];
        for (int j = 0; j < SIZE; j++) want[j] = 2.0f * (float)(rows ? 3 + j / COLUMNS + j % COLUMNS * ROWS : 3 + j) + (float)(11 + j);
        OK(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), stream);
        expect_results(results, want, SIZE);
        mlxvk_fast_spirv_kernel_config_free(f);
        mlxvk_vector_array_free(inputs);
        mlxvk_fast_spirv_kernel_free(kernel);
    }
    mlxvk_array_free(base);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* Results go on into operations, and theirs into the kernel; arrays may be empty. */
static void test_among_operations(void **state)
{
    (void)state;
    mlxvk_fast_spirv_kernel kernel = weighted(weighted_spv, sizeof weighted_spv, true);
    mlxvk_array x = floats(device, (float[]){ 1, 2, 3, 4 }, (int[]){ 4 }, 1), none = floats(device, NULL, (int[]){ 0 }, 1);
    for (int round = 0; round < 3; round++) {
        mlxvk_fast_spirv_kernel_config f = config_of(4, (int[]){ 4 }, 1);
        mlxvk_vector_array inputs, results = { NULL };
        OK(mlxvk_square(&x, x, stream), stream);
        inputs = pair(x, x);
        OK(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), stream);
        OK(mlxvk_vector_array_get(&x, results, 0), stream);
        OK(mlxvk_divide(&x, x, x, stream), stream);
        mlxvk_vector_array_free(inputs);
        mlxvk_vector_array_free(results);
        mlxvk_fast_spirv_kernel_config_free(f);
    }
    expect_floats(x, (float[]){ 1, 1, 1, 1 }, 4, 0, 0, stream);
    mlxvk_fast_spirv_kernel_config f = config_of(4, (int[]){ 0 }, 1);
    mlxvk_vector_array inputs = pair(none, none), results = { NULL };
    OK(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), stream);
    expect_results(results, NULL, 0);
    mlxvk_fast_spirv_kernel_config_free(f);
    f = config_of(4, (int[]){ 4 }, 1);
    results = (mlxvk_vector_array){ NULL };
    OK(mlxvk_fast_spirv_kernel_config_set_grid(f, 0, 1, 1), stream);               /* no threads: the first value stays */
    OK(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), stream);
    OK(mlxvk_vector_array_get(&x, results, 0), stream);
    expect_floats(x, (float[]){ 3, 3, 3, 3 }, 4, 0, 0, stream);
    mlxvk_vector_array_free(results);
    mlxvk_fast_spirv_kernel_config_free(f);
    mlxvk_vector_array_free(inputs);
    mlxvk_array_free(x);
    mlxvk_array_free(none);
    mlxvk_fast_spirv_kernel_free(kernel);
}

/* The kernel's first result is an input here: written in place, behind what reads it, and before what is recorded next. */
static void test_an_input_that_is_written(void **state)
{
    (void)state;
    const int shape[] = { ROWS, COLUMNS };
    mlxvk_vector_string in = names((const char *const[]){ "x", "y", "result" }, 3), out = names((const char *const[]){ "written" }, 1);
    mlxvk_fast_spirv_kernel kernel = mlxvk_fast_spirv_kernel_new("weighted", in, out, weighted_spv, sizeof weighted_spv, true);
    mlxvk_fast_spirv_kernel_config f = mlxvk_fast_spirv_kernel_config_new();
    mlxvk_array x = { NULL }, y = { NULL }, r = { NULL }, before = { NULL }, view = { NULL };
    mlxvk_vector_array results = { NULL };
    float old[SIZE], want[SIZE], turned[SIZE];
    for (int i = 0; i < SIZE; i++) old[i] = 2 * (float)i, want[i] = 3 * (float)i + 100;
    for (int i = 0; i < SIZE; i++) turned[i] = want[i % ROWS * COLUMNS + i / ROWS];
    OK(mlxvk_fast_spirv_kernel_config_add_output_arg(f, shape, 2, MLXVK_UINT32), stream);
    OK(mlxvk_fast_spirv_kernel_config_set_grid(f, (SIZE + 1) / 2, 2, 1), stream);
    OK(mlxvk_fast_spirv_kernel_config_set_thread_group(f, 8, 2, 1), stream);
    OK(mlxvk_fast_spirv_kernel_config_add_template_arg_int(f, "SIZE", SIZE), stream);
    OK(mlxvk_fast_spirv_kernel_config_add_written_input(f, 2), stream);
    OK(mlxvk_arange(&x, 0, SIZE, 1, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_arange(&y, 100, 100 + SIZE, 1, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_arange(&r, 0, SIZE, 1, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_reshape(&r, r, shape, 2, stream), stream);
    OK(mlxvk_transpose(&view, r, stream), stream);
    OK(mlxvk_add(&before, r, r, stream), stream);
    mlxvk_vector_array inputs = mlxvk_vector_array_new_data((mlxvk_array[]){ x, y, r }, 3);
    OK(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), stream);
    expect_floats(before, old, SIZE, 0, 0, stream);
    expect_floats(r, want, SIZE, 0, 0, stream);
    expect_floats(view, turned, SIZE, 0, 0, stream);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_add_written_input(f, -1), MLXVK_ERROR_ARGUMENT);
    OK(mlxvk_fast_spirv_kernel_config_add_written_input(f, 3), stream);
    REFUSED(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), MLXVK_ERROR_ARGUMENT, stream, "3 inputs");
    mlxvk_vector_array_free(results);
    mlxvk_vector_array_free(inputs);
    mlxvk_fast_spirv_kernel_config_free(f);
    mlxvk_fast_spirv_kernel_free(kernel);
    mlxvk_vector_string_free(in);
    mlxvk_vector_string_free(out);
    for (int i = 0; i < 5; i++) mlxvk_array_free((mlxvk_array[]){ x, y, r, before, view }[i]);
}

static void test_misuse(void **state)
{
    (void)state;
    mlxvk_fast_spirv_kernel kernel = weighted(weighted_spv, sizeof weighted_spv, true), broken;
    mlxvk_fast_spirv_kernel_config f = config_of(4, (int[]){ 4 }, 1), none = { NULL };
    mlxvk_array x = floats(device, (float[]){ 1, 2, 3, 4 }, (int[]){ 4 }, 1);
    mlxvk_vector_array inputs = pair(x, x), one = mlxvk_vector_array_new_value(x), results = { NULL };
    uint32_t words[COUNT(weighted_spv)];
    REFUSED(mlxvk_fast_spirv_kernel_apply(&results, kernel, one, f, stream), MLXVK_ERROR_ARGUMENT, stream, "weighted", "2 inputs");
    REFUSED(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, none, stream), MLXVK_ERROR_ARGUMENT, stream, "config");
    REFUSED(mlxvk_fast_spirv_kernel_apply(&results, (mlxvk_fast_spirv_kernel){ NULL }, inputs, f, stream), MLXVK_ERROR_ARGUMENT, stream, "kernel");
    REFUSED(mlxvk_fast_spirv_kernel_apply(NULL, kernel, inputs, f, stream), MLXVK_ERROR_ARGUMENT, stream, "res is NULL");
    OK(mlxvk_fast_spirv_kernel_config_set_thread_group(f, 4, 3, 1), stream);
    REFUSED(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), MLXVK_ERROR_ARGUMENT, stream, "2 threads along axis 1");
    OK(mlxvk_fast_spirv_kernel_config_set_thread_group(f, 1 << 20, 2, 1), stream);
    REFUSED(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), MLXVK_ERROR_LIMIT, stream, "threads");
    OK(mlxvk_fast_spirv_kernel_config_set_thread_group(f, 4, 2, 1), stream);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_set_thread_group(f, 0, 1, 1), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_set_grid(f, -1, 1, 1), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_fast_spirv_kernel_config_set_grid(none, 1, 1, 1), MLXVK_ERROR_ARGUMENT);
    OK(mlxvk_fast_spirv_kernel_config_add_template_arg_int(f, "COLOUR", 1), stream);
    REFUSED(mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, stream), MLXVK_ERROR_ARGUMENT, stream, "COLOUR");
    assert_null(results.ctx);
    mlxvk_fast_spirv_kernel_config_free(f);

    assert_null(weighted(NULL, 0, true).ctx);
    for (size_t cut = 20; cut < sizeof words; cut += 4) {                          /* whatever is cut off: an error, nothing worse */
        memcpy(words, weighted_spv, cut);
        broken = weighted(words, cut, true);
        f = config_of(4, (int[]){ 4 }, 1);
        assert_int_not_equal(mlxvk_fast_spirv_kernel_apply(&results, broken, inputs, f, stream), 0);
        mlxvk_fast_spirv_kernel_config_free(f);
        mlxvk_fast_spirv_kernel_free(broken);
        if (cut == 2000) cut = sizeof words - 400;                                  /* the middle is long */
    }
    mlxvk_vector_array_free(one);
    mlxvk_vector_array_free(inputs);
    mlxvk_array_free(x);
    mlxvk_fast_spirv_kernel_free(kernel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template_arguments), cmocka_unit_test(test_views), cmocka_unit_test(test_among_operations),
        cmocka_unit_test(test_an_input_that_is_written), cmocka_unit_test(test_misuse),
    };
    return run_group("spirv_kernel", tests, set_up, tear_down);
}
