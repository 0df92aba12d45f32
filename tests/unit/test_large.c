/* Arrays larger than the range that one storage-buffer binding reaches (128 MiB on lavapipe). */
#include "support.h"

enum { ELEMENTS = 42 << 20, ROW = 1 << 20 };                   /* 168 MiB of 4 bytes each */

static mlxvk_array base;                                       /* float32 (42, 2^20): i modulo 1021 */

/* Exact in float16 too. */
static float base_value(size_t i) { return (float)(i % 1021); }

static int set_up_base(void **state)
{
    float *data = malloc((size_t)ELEMENTS * sizeof *data);
    if (!data) return -1;
    set_up(state);
    for (size_t i = 0; i < ELEMENTS; i++) data[i] = base_value(i);
    base = floats(device, data, (int[]){ ELEMENTS / ROW, ROW }, 2);
    free(data);
    return 0;
}

static int tear_down_base(void **state)
{
    mlxvk_array_free(base);
    return tear_down(state);
}

/* Every element must be what `want` says. */
static void expect_all(mlxvk_array array, mlxvk_dtype dtype, double (*want)(size_t i))
{
    size_t bytes = (size_t)ELEMENTS * bytes_of(dtype);
    unsigned char *got = malloc(bytes);
    assert_non_null(got);
    assert_int_equal(mlxvk_array_nbytes(array), bytes);
    assert_int_equal(mlxvk_array_dtype(array), dtype);
    memset(got, 0xA5, bytes);
    OK(mlxvk_array_read(array, got, bytes, stream), stream);
    for (size_t i = 0; i < ELEMENTS; i++) {
        struct number n = load_number(dtype, got, i);
        if (n.re == want(i)) continue;
        print_error("element %zu: got %g, expected %g\n", i, n.re, want(i));
        free(got);
        fail();
    }
    free(got);
}

static double once(size_t i) { return base_value(i); }
static double twice(size_t i) { return 2 * base_value(i); }
static double negated(size_t i) { return -(double)base_value(i); }
static double plus_row(size_t i) { return base_value(i) + base_value(i % ROW); }

static void test_there_and_back(void **state)
{
    (void)state;
    size_t range = 0;
    OK_DEVICE(mlxvk_device_info_get_size(&range, device, "max_storage_buffer_range"), device);
    if (range >= (size_t)ELEMENTS * 4) print_message("one binding reaches %zu bytes here: nothing is split\n", range);
    expect_all(base, MLXVK_FLOAT32, once);
}

static void test_elementwise(void **state)
{
    (void)state;
    mlxvk_array res = { NULL };
    OK(mlxvk_add(&res, base, base, stream), stream);
    expect_all(res, MLXVK_FLOAT32, twice);
    OK(mlxvk_negative(&res, base, stream), stream);
    expect_all(res, MLXVK_FLOAT32, negated);
    mlxvk_array_free(res);
}

static void test_broadcast(void **state)
{
    (void)state;
    mlxvk_array row = { NULL }, res = { NULL };
    OK(mlxvk_slice(&row, base, (int[]){ 0, 0 }, 2, (int[]){ 1, ROW }, 2, (int[]){ 1, 1 }, 2, stream), stream);
    OK(mlxvk_add(&res, base, row, stream), stream);
    expect_all(res, MLXVK_FLOAT32, plus_row);
    mlxvk_array_free(row);
    mlxvk_array_free(res);
}

static void test_astype(void **state)
{
    (void)state;
    mlxvk_array res = { NULL };
    OK(mlxvk_astype(&res, base, MLXVK_FLOAT16, stream), stream);
    expect_all(res, MLXVK_FLOAT16, once);
    OK(mlxvk_astype(&res, res, MLXVK_INT32, stream), stream);
    expect_all(res, MLXVK_INT32, once);
    mlxvk_array_free(res);
}

/* A transposed copy and back: every element moves across the whole array. */
static void test_transposed_copy(void **state)
{
    (void)state;
    mlxvk_array t = { NULL };
    OK(mlxvk_transpose(&t, base, stream), stream);
    OK(mlxvk_contiguous(&t, t, false, stream), stream);
    OK(mlxvk_transpose(&t, t, stream), stream);
    OK(mlxvk_contiguous(&t, t, false, stream), stream);
    expect_all(t, MLXVK_FLOAT32, once);
    mlxvk_array_free(t);
}

static void test_small_part(void **state)
{
    (void)state;
    const int from = ELEMENTS / ROW - 1;
    mlxvk_array part = { NULL };
    OK(mlxvk_slice(&part, base, (int[]){ from, ROW - 3 }, 2, (int[]){ from + 1, ROW }, 2, (int[]){ 1, 1 }, 2, stream),
       stream);
    OK(mlxvk_add(&part, part, part, stream), stream);
    float want[3];
    for (size_t i = 0; i < 3; i++) want[i] = 2 * base_value((size_t)ELEMENTS - 3 + i);
    expect_floats(part, want, 3, 0, 0, stream);
    mlxvk_array_free(part);
}

/* A row beyond the reach of a binding is written in place. */
static void test_slice_update(void **state)
{
    (void)state;
    mlxvk_array copy = { NULL }, ones = { NULL }, part = { NULL };
    const int start[] = { 40, 5 }, stop[] = { 41, 8 }, step[] = { 1, 1 };
    OK(mlxvk_add(&copy, base, base, stream), stream);
    OK(mlxvk_ones(&ones, (int[]){ 1, 3 }, 2, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_slice_update(&copy, copy, ones, start, 2, stop, 2, step, 2, stream), stream);
    OK(mlxvk_slice(&part, copy, (int[]){ 40, 4 }, 2, (int[]){ 41, 9 }, 2, step, 2, stream), stream);
    const size_t at = (size_t)40 * ROW;
    const float want[] = { 2 * base_value(at + 4), 1, 1, 1, 2 * base_value(at + 8) };
    expect_floats(part, want, 5, 0, 0, stream);
    mlxvk_array_free(copy);
    mlxvk_array_free(ones);
    mlxvk_array_free(part);
}

static void test_sum(void **state)
{
    (void)state;
    mlxvk_array res = { NULL };
    double sum = 0;
    for (size_t i = 0; i < ELEMENTS; i++) sum += base_value(i);
    OK(mlxvk_sum(&res, base, false, stream), stream);
    expect_floats(res, &(float){ (float)sum }, 1, 1e-5, 0, stream);
    mlxvk_array_free(res);
}

static void test_max(void **state)
{
    (void)state;
    const float most = 1020;
    mlxvk_array res = { NULL };
    OK(mlxvk_max(&res, base, false, stream), stream);
    expect_floats(res, &most, 1, 0, 0, stream);
    mlxvk_array_free(res);
}

static void test_sum_of_rows(void **state)
{
    (void)state;
    mlxvk_array res = { NULL };
    float rows[ELEMENTS / ROW];
    for (size_t i = 0; i < ELEMENTS / ROW; i++) {
        double of_row = 0;
        for (size_t j = 0; j < ROW; j++) of_row += base_value(i * ROW + j);
        rows[i] = (float)of_row;
    }
    OK(mlxvk_sum_axis(&res, base, 1, false, stream), stream);
    expect_floats(res, rows, ELEMENTS / ROW, 1e-5, 0, stream);
    mlxvk_array_free(res);
}

static void test_sum_of_columns(void **state)
{
    (void)state;
    mlxvk_array res = { NULL };
    float *want = calloc(ROW, sizeof *want);
    for (size_t i = 0; i < ELEMENTS; i++) want[i % ROW] += base_value(i);
    OK(mlxvk_sum_axis(&res, base, 0, false, stream), stream);
    expect_floats(res, want, ROW, 1e-6, 0, stream);
    mlxvk_array_free(res);
    free(want);
}

/* Beyond one allocation: refused at the call, naming the size. */
static void test_beyond(void **state)
{
    (void)state;
    mlxvk_array res = { NULL };
    const int shape[] = { 1 << 20, 1 << 20 };
    REFUSED(mlxvk_zeros(&res, shape, 2, MLXVK_FLOAT32, stream), MLXVK_ERROR_LIMIT, stream, "zeros", "4398046511104");
    assert_null(res.ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_elementwise), cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_astype), cmocka_unit_test(test_transposed_copy), cmocka_unit_test(test_small_part),
        cmocka_unit_test(test_slice_update), cmocka_unit_test(test_sum), cmocka_unit_test(test_max),
        cmocka_unit_test(test_sum_of_rows), cmocka_unit_test(test_sum_of_columns), cmocka_unit_test(test_beyond),
    };
    return run_group("large", tests, set_up_base, tear_down_base);
}
