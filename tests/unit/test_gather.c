/* Positions that lie outside of their axis, rows wider than a binding, updates in place; the rest is golden data's. */
#include "support.h"

/* Negative positions wrap once; further out the nearest element is read, and nothing is written. */
static void positions_outside(void **state)
{
    const int64_t wide[] = { 3, -1, (int64_t)1 << 40, -((int64_t)1 << 40), -7, 6 };
    const uint64_t large[] = { 2, UINT64_MAX, (uint64_t)1 << 32, 5, 6, 0 };
    mlxvk_array a = counting(device, 6), count = counting(device, 6), i64 = array_of(device, MLXVK_INT64, wide, (int[]){ 6 }, 1);
    mlxvk_array u64 = array_of(device, MLXVK_UINT64, large, (int[]){ 6 }, 1), res = { NULL };
    mlxvk_array values = ints(device, (int32_t[]){ 10, 11, 12, 13, 14, 15 }, (int[]){ 6 }, 1);
    (void)state;
    OK(mlxvk_take(&res, a, i64, stream), stream);
    expect_ints(res, (int32_t[]){ 3, 5, 5, 0, 0, 5 }, 6, stream);
    OK(mlxvk_take_along_axis(&res, a, u64, 0, stream), stream);
    expect_ints(res, (int32_t[]){ 2, 5, 5, 5, 5, 0 }, 6, stream);
    OK(mlxvk_put_along_axis(&res, a, i64, values, 0, stream), stream);
    expect_ints(res, (int32_t[]){ 0, 1, 2, 10, 4, 11 }, 6, stream);
    expect_ints(a, (int32_t[]){ 0, 1, 2, 3, 4, 5 }, 6, stream);
    OK(mlxvk_put_along_axis(&a, a, u64, values, 0, stream), stream);
    expect_ints(a, (int32_t[]){ 15, 1, 10, 3, 4, 13 }, 6, stream);
    OK(mlxvk_put_along_axis(&a, a, count, a, 0, stream), stream);                    /* its own values */
    expect_ints(a, (int32_t[]){ 15, 1, 10, 3, 4, 13 }, 6, stream);
    mlxvk_array_free(a);
    mlxvk_array_free(count);
    mlxvk_array_free(i64);
    mlxvk_array_free(u64);
    mlxvk_array_free(values);
    mlxvk_array_free(res);
}

/* A table beyond one binding is written, or the call says that it cannot be; then it is what it was. */
static void writes_to_large(mlxvk_array table, mlxvk_array index)
{
    mlxvk_array res = { NULL }, row = { NULL }, ones = { NULL };
    unsigned char *got = malloc(5 * 1000);
    mlxvk_error error = { 0 };
    assert_non_null(got);
    OK(mlxvk_ones(&ones, (int[]){ 5, 1, 1000 }, 3, MLXVK_UINT8, stream), stream);
    OK(mlxvk_scatter_single(&res, table, index, ones, 0, stream), stream);
    OK(mlxvk_take_axis(&row, res, index, 0, stream), stream);
    if (mlxvk_array_read(row, got, 5 * 1000, stream)) {
        mlxvk_stream_error(stream, &error);
        assert_int_equal(error.code, MLXVK_ERROR_LIMIT);
        mlxvk_synchronize(stream);
    } else for (int i = 0; i < 5 * 1000; i++) assert_int_equal(got[i], 1);
    OK(mlxvk_take_axis(&row, table, index, 0, stream), stream);
    OK(mlxvk_array_read(row, got, 5 * 1000, stream), stream);
    mlxvk_array_free(res);
    mlxvk_array_free(row);
    mlxvk_array_free(ones);
    free(got);
}

/* Rows of a table beyond one binding, by words of every width and by elements. */
static void large_tables(void **state)
{
    enum { ROWS = 140000, WIDTH = 1000, TAKEN = 5 };                             /* bytes: 134 MiB */
    static const int cuts[][2] = { { 0, WIDTH }, { 4, 8 }, { 16, 496 }, { 3, 37 } };
    const int32_t rows[TAKEN] = { 0, -1, 70001, -140000, 139999 };
    unsigned char *data = malloc((size_t)ROWS * WIDTH), *got = malloc(TAKEN * WIDTH);
    mlxvk_array table, part = { NULL }, res = { NULL }, index = array_of(device, MLXVK_INT32, rows, (int[]){ TAKEN }, 1);
    (void)state;
    assert_true(data && got);
    for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    table = array_of(device, MLXVK_UINT8, data, (int[]){ ROWS, WIDTH }, 2);
    for (size_t k = 0; k < COUNT(cuts); k++) {
        size_t first = (size_t)cuts[k][0], width = (size_t)cuts[k][1];
        OK(mlxvk_slice(&part, table, (int[]){ 0, (int)first }, 2, (int[]){ ROWS, (int)(first + width) }, 2, (int[]){ 1, 1 }, 2, stream), stream);
        OK(mlxvk_take_axis(&res, part, index, 0, stream), stream);
        OK(mlxvk_array_read(res, got, TAKEN * width, stream), stream);
        for (size_t i = 0; i < TAKEN; i++) {
            size_t row = (size_t)(rows[i] < 0 ? rows[i] + ROWS : rows[i]);
            assert_memory_equal(got + i * width, data + row * WIDTH + first, width);
        }
    }
    writes_to_large(table, index);
    mlxvk_array_free(table);
    mlxvk_array_free(part);
    mlxvk_array_free(index);
    mlxvk_array_free(res);
    free(data);
    free(got);
}

/* Rows of all small lengths, of elements of 1, 2 and 4 bytes, from any element on, the first row after all
 * others. */
static void odd_rows(void **state)
{
    enum { OUTER = 2, ROWS = 3, TAKEN = 7, MOST = 21 };
    static const int32_t at[TAKEN] = { 2, 0, 0, -1, 1, 2, 0 };
    static const mlxvk_dtype dtypes[] = { MLXVK_UINT8, MLXVK_BFLOAT16, MLXVK_UINT32 };
    mlxvk_array index = ints(device, at, (int[]){ TAKEN }, 1);
    (void)state;
    for (int i = 0; i < MOST * 3 * 2; i++) {
        int columns = 1 + i % MOST, first = i % 2 ? 0 : 1 + i % 5, all = first + OUTER * ROWS * columns;
        mlxvk_dtype t = dtypes[i / MOST % 3];
        size_t size = mlxvk_dtype_size(t), row = (size_t)columns * size;
        int64_t strides[] = { ROWS * columns, columns, 1 };
        unsigned char source[4 * (5 + OUTER * ROWS * MOST)], got[4 * OUTER * TAKEN * MOST];
        mlxvk_array a, res = { NULL };
        for (size_t k = 0; k < (size_t)all * size; k++) source[k] = (unsigned char)(k * 7 + (k >> 8) * 13 + 1);
        a = array_of(device, t, source, &all, 1);
        OK(mlxvk_as_strided(&a, a, (int[]){ OUTER, ROWS, columns }, 3, strides, 3, (size_t)first, stream), stream);
        OK(mlxvk_take_axis(&res, a, index, 1, stream), stream);
        OK(mlxvk_array_read(res, got, OUTER * TAKEN * row, stream), stream);
        for (size_t k = 0; k < OUTER * TAKEN; k++) {
            size_t taken = (size_t)((at[k % TAKEN] + ROWS) % ROWS) + k / TAKEN * ROWS;
            assert_memory_equal(got + k * row, source + (size_t)first * size + taken * row, row);
        }
        mlxvk_array_free(a);
        mlxvk_array_free(res);
    }
    mlxvk_array_free(index);
}

/* Only the axis that is taken from must have something. */
static void taken_from_no_rows(void)
{
    mlxvk_array a = { NULL }, at = ints(device, (int32_t[]){ 2, 0, -1, 1, 7 }, (int[]){ 5 }, 1), res = { NULL };
    OK(mlxvk_zeros(&a, (int[]){ 2, 0, 3 }, 3, MLXVK_FLOAT16, stream), stream);
    OK(mlxvk_take_axis(&res, a, at, -1, stream), stream);
    OK(mlxvk_array_read(res, NULL, 0, stream), stream);
    assert_memory_equal(mlxvk_array_shape(res), ((int[]){ 2, 0, 5 }), 3 * sizeof(int));
    REFUSED(mlxvk_take_axis(&res, a, at, 1, stream), MLXVK_ERROR_SHAPE, stream, "axis 1", "(2, 0, 3)");
    assert_int_equal(mlxvk_array_dim(res, 2), 5);
    mlxvk_array_free(a);
    mlxvk_array_free(at);
    mlxvk_array_free(res);
}

static void refused(void **state)
{
    mlxvk_array a = counting(device, 6), f = floats(device, (float[]){ 0, 1 }, (int[]){ 2 }, 1), res = { NULL }, empty = { NULL };
    (void)state;
    OK(mlxvk_zeros(&empty, (int[]){ 0 }, 1, MLXVK_INT32, stream), stream);
    REFUSED(mlxvk_take(&res, a, f, stream), MLXVK_ERROR_DTYPE, stream, "take", "integers");
    REFUSED(mlxvk_take(&res, empty, a, stream), MLXVK_ERROR_SHAPE, stream, "empty");
    REFUSED(mlxvk_take_axis(&res, a, a, 1, stream), MLXVK_ERROR_AXIS, stream, "take_axis");
    OK(mlxvk_take(&res, empty, empty, stream), stream);
    taken_from_no_rows();
    OK(mlxvk_put_along_axis(&res, a, empty, empty, 0, stream), stream);
    expect_ints(res, (int32_t[]){ 0, 1, 2, 3, 4, 5 }, 6, stream);
    mlxvk_array_free(a);
    mlxvk_array_free(f);
    mlxvk_array_free(res);
    mlxvk_array_free(empty);
}

/* Where one binding reaches no further than a part of the base: offsets of windows' elements are found in parts. */
static void offsets_in_parts(void **state)
{
    enum { ROWS = 400, COLUMNS = 1000, WINDOWS = 3, HIGH = 100, WIDE = 4 };
    static const int32_t at[WINDOWS] = { 0, 150, 290 };
    static float want[ROWS * COLUMNS], got[ROWS * COLUMNS], updates[WINDOWS * HIGH * WIDE];
    struct setting t = start("MLX_VK_MAX_BINDING_RANGE=65536");
    mlxvk_array a = array_of(t.device, MLXVK_FLOAT32, want, (int[]){ ROWS, COLUMNS }, 2), some, y = { NULL };      /* zeros */
    mlxvk_array index = array_of(t.device, MLXVK_INT32, at, (int[]){ WINDOWS }, 1);
    (void)state;
    for (int i = 0; i < (int)COUNT(updates); i++) {
        updates[i] = (float)i + 1;
        want[(at[i / WIDE / HIGH] + i / WIDE % HIGH) * COLUMNS + i % WIDE] = updates[i];
    }
    some = array_of(t.device, MLXVK_FLOAT32, updates, (int[]){ WINDOWS, HIGH, WIDE }, 3);
    OK(mlxvk_scatter_single(&y, a, index, some, 0, t.stream), t.stream);
    memset(got, 0xa5, sizeof got);
    OK(mlxvk_array_read(y, got, sizeof got, t.stream), t.stream);
    for (int i = 0; i < ROWS * COLUMNS; i++) if (!(got[i] == want[i])) fail_msg("element %d is %g, not %g", i, (double)got[i], (double)want[i]);
    for (mlxvk_array **p = (mlxvk_array *[]){ &a, &index, &some, &y, NULL }; *p; p++) mlxvk_array_free(**p);
    finish(&t);
}

/* Index arrays that are longer than a binding, and seen transposed. */
static void transposed_in_parts(void **state)
{
    enum { ROWS = 400, COLUMNS = 1000, TALL = 300, BROAD = 200 };
    static int32_t down[TALL * BROAD], across[TALL * BROAD], got[TALL * BROAD];
    struct setting t = start("MLX_VK_MAX_BINDING_RANGE=65536");
    mlxvk_array a = counting(t.device, ROWS * COLUMNS), x[2], y = { NULL };
    (void)state;
    for (int i = 0; i < TALL * BROAD; i++) {
        down[i] = i * 7 % ROWS;
        across[i] = i * 11 % COLUMNS;
    }
    OK(mlxvk_reshape(&a, a, (int[]){ ROWS, COLUMNS }, 2, t.stream), t.stream);
    x[0] = array_of(t.device, MLXVK_INT32, down, (int[]){ BROAD, TALL }, 2);
    x[1] = array_of(t.device, MLXVK_INT32, across, (int[]){ BROAD, TALL }, 2);
    for (int k = 0; k < 2; k++) OK(mlxvk_transpose(&x[k], x[k], t.stream), t.stream);
    mlxvk_vector_array both = mlxvk_vector_array_new_data(x, 2);
    OK(mlxvk_gather(&y, a, both, (int[]){ 0, 1 }, 2, (int[]){ 1, 1 }, 2, t.stream), t.stream);
    memset(got, 0xa5, sizeof got);
    OK(mlxvk_array_read(y, got, sizeof got, t.stream), t.stream);
    for (int i = 0; i < TALL * BROAD; i++) {
        int from = i % BROAD * TALL + i / BROAD;
        if (got[i] != down[from] * COLUMNS + across[from]) fail_msg("window %d: %d", i, got[i]);
    }
    mlxvk_vector_array_free(both);
    for (mlxvk_array **p = (mlxvk_array *[]){ &a, &x[0], &x[1], &y, NULL }; *p; p++) mlxvk_array_free(**p);
    finish(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(positions_outside), cmocka_unit_test(large_tables), cmocka_unit_test(odd_rows),
                                       cmocka_unit_test(offsets_in_parts), cmocka_unit_test(transposed_in_parts), cmocka_unit_test(refused) };
    return run_group("gather", tests, set_up_poisoned, tear_down);
}
