/* Arrays of more elements than 31 bits count, views of far more than memory has, and of six dimensions.
 *
 * What needs the memory runs twice: on arrays near and over 2^31 elements where a GPU has at least 16 GiB, and everywhere on small
 * ones, with gates that make the device bind and count so little, and have grids so small, that the same splitting is needed. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

enum { SMALL_RANGE = 16384 };
static const size_t ENOUGH = (size_t)16 << 30, OVER = (size_t)3000000000u;


/* ---- the arrays: X[i][j] = i % 89 + j % 31 - 60, int8, R x C, with C odd ---- */

static int R, C;
static size_t most;                                            /* bytes of the largest allocation, or what stands for it */
static mlxvk_array X;

static int value(size_t i, size_t j) { return (int)(i % 89) + (int)(j % 31) - 60; }

static mlxvk_array counted(int n, mlxvk_dtype dtype)           /* 0, 1, ... */
{
    mlxvk_array a = { NULL };
    OK(mlxvk_arange(&a, 0, n, 1, dtype, stream), stream);
    return a;
}

static mlxvk_array number(int v, mlxvk_dtype dtype)
{
    mlxvk_array a = { NULL };
    OK_DEVICE(mlxvk_array_new_data_device(&a, &v, NULL, 0, MLXVK_INT32, device), device);
    OK(mlxvk_astype(&a, a, dtype, stream), stream);
    return a;
}

/* k % modulus + add for k below n, as a row or a column */
static mlxvk_array pattern(int n, int modulus, int add, bool column, mlxvk_dtype dtype)
{
    mlxvk_array a = counted(n, MLXVK_INT32), m = number(modulus, MLXVK_INT32), b = number(add, MLXVK_INT32);
    OK(mlxvk_remainder(&a, a, m, stream), stream);
    OK(mlxvk_add(&a, a, b, stream), stream);
    OK(mlxvk_astype(&a, a, dtype, stream), stream);
    OK(mlxvk_reshape(&a, a, column ? (int[]){ n, 1 } : (int[]){ 1, n }, 2, stream), stream);
    mlxvk_array_free(m);
    mlxvk_array_free(b);
    return a;
}

static mlxvk_array table(int rows, int columns, mlxvk_dtype dtype)
{
    mlxvk_array a = pattern(rows, 89, -60, true, dtype), b = pattern(columns, 31, 0, false, dtype);
    OK(mlxvk_add(&a, a, b, stream), stream);
    mlxvk_array_free(b);
    return a;
}

/* Frees arrays, and gives their memory back. */
#define DONE(...) done((mlxvk_array[]){ __VA_ARGS__ }, COUNT(((mlxvk_array[]){ __VA_ARGS__ })))
static void done(const mlxvk_array *a, size_t n)
{
    for (size_t i = 0; i < n; i++) mlxvk_array_free(a[i]);
    OK_DEVICE(mlxvk_device_clear_cache(device), device);
}

/* Rows [row, row + rows) and columns [column, ...) of a matrix. */
static mlxvk_array window(mlxvk_array a, int row, int rows, int column, int columns)
{
    mlxvk_array part = { NULL };
    OK(mlxvk_slice(&part, a, (int[]){ row, column }, 2, (int[]){ row + rows, column + columns }, 2, (int[]){ 1, 1 }, 2, stream), stream);
    return part;
}

typedef double (*expected)(size_t i, size_t j);

/* Elements of a matrix: at both ends, in the middle, and where 2^31 elements and the range of a binding end. */
static void expect_spots(const char *file, int line, mlxvk_array a, int rows, int columns, mlxvk_dtype dtype, double tolerance, expected want)
{
    const size_t edges[] = { 0, (size_t)1 << 31, (size_t)1 << 30, ((size_t)1 << 31) / bytes_of(dtype), SMALL_RANGE / bytes_of(dtype) };
    const int width = columns < 5 ? columns : 5;
    assert_int_equal(mlxvk_array_dtype(a), dtype);
    assert_int_equal(mlxvk_array_dim(a, 0), rows);
    assert_int_equal(mlxvk_array_dim(a, 1), columns);
    for (size_t spot = 0; spot < 3 + 2 * COUNT(edges); spot++) {
        size_t edge = spot < 3 ? 0 : edges[(spot - 3) / 2] / (size_t)columns;
        size_t row = spot == 0 ? 0 : spot == 1 ? (size_t)rows - 1 : spot == 2 ? (size_t)rows / 2 : edge + spot % 2;
        if (row >= (size_t)rows) continue;
        for (int part = 0; part < 3; part++) {
            int column = part == 0 ? 0 : part == 1 ? columns / 2 : columns - width;
            if (column + width > columns) column = columns - width;
            unsigned char got[5 * 8];
            mlxvk_array w = window(a, (int)row, 1, column, width);
            OK(mlxvk_array_read(w, got, (size_t)width * bytes_of(dtype), stream), stream);
            mlxvk_array_free(w);
            for (int k = 0; k < width; k++) {
                double wanted = want(row, (size_t)(column + k)), is = load_number(dtype, got, (size_t)k).re;
                if (fabs(is - wanted) <= tolerance * (fabs(wanted) + 1e-3)) continue;
                print_error("element (%zu, %d) of (%d, %d): got %g, expected %g\n", row, column + k, rows, columns, is, wanted);
                _fail(file, line);
            }
        }
    }
}
#define SPOTS(a, rows, columns, dtype, tolerance, want) expect_spots(__FILE__, __LINE__, a, rows, columns, dtype, tolerance, want)

static double item_of(mlxvk_array a)
{
    unsigned char got[8];
    mlxvk_dtype dtype = mlxvk_array_dtype(a);
    OK(mlxvk_array_read(a, got, bytes_of(dtype), stream), stream);
    return load_number(dtype, got, 0).re;
}

/* How many of the X are `v`. */
static int64_t count_of(int rows, int v)
{
    int64_t n = 0;
    for (int a = 0; a < 89; a++) {
        int b = v + 60 - a;
        if (b < 0 || b > 30) continue;
        n += (int64_t)((rows - a + 88) / 89) * ((C - b + 30) / 31);
    }
    return n;
}

/* ---- what needs the memory ---- */

static double want_value(size_t i, size_t j) { return value(i, j); }
static double want_transposed(size_t i, size_t j) { return value(j, i); }
static double want_backwards(size_t i, size_t j) { return value((size_t)R - 1 - 2 * i, 3 * j); }
static double want_twice(size_t i, size_t j) { return 2 * value(i, j); }
static double want_positive(size_t i, size_t j) { return value(i, j) > 0; }
static double want_size(size_t i, size_t j) { return abs(value(i, j)); }
static double want_seven(size_t i, size_t j) { (void)i; (void)j; return 7; }

static void test_made(void **state)
{
    (void)state;
    SPOTS(X, R, C, MLXVK_INT8, 0, want_value);
    assert_true(mlxvk_array_size(X) == (size_t)R * (size_t)C);
}

static void test_copies(void **state)
{
    (void)state;
    mlxvk_array a = { NULL }, b = { NULL };
    OK(mlxvk_transpose(&a, X, stream), stream);
    OK(mlxvk_contiguous(&b, a, false, stream), stream);
    SPOTS(b, C, R, MLXVK_INT8, 0, want_transposed);
    OK(mlxvk_slice(&a, X, (int[]){ R - 1, 0 }, 2, (int[]){ -R - 1, C }, 2, (int[]){ -2, 3 }, 2, stream), stream);
    OK(mlxvk_contiguous(&b, a, false, stream), stream);
    SPOTS(b, (R + 1) / 2, (C + 2) / 3, MLXVK_INT8, 0, want_backwards);
    DONE(a, b);
}

static void test_elementwise(void **state)
{
    (void)state;
    mlxvk_array a = { NULL }, b = { NULL }, zero = number(0, MLXVK_INT8);
    int64_t positive = 0;
    OK(mlxvk_add(&a, X, X, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_twice);
    OK(mlxvk_greater(&b, X, zero, stream), stream);
    SPOTS(b, R, C, MLXVK_BOOL, 0, want_positive);
    OK(mlxvk_negative(&a, X, stream), stream);
    OK(mlxvk_where(&a, b, X, a, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_size);
    OK(mlxvk_sum(&a, b, false, stream), stream);
    for (int v = 1; v <= 58; v++) positive += count_of(R, v);
    assert_true((int32_t)item_of(a) == (int32_t)(uint32_t)positive);
    DONE(a, b, zero);
}

static void test_astype(void **state)
{
    (void)state;
    const int rows = R / 2;
    mlxvk_array part = window(X, R - rows, rows, 0, C), a = { NULL };
    OK(mlxvk_astype(&a, part, MLXVK_FLOAT16, stream), stream);
    mlxvk_array_free(part);
    part = window(a, rows - 1, 1, 0, C);
    OK(mlxvk_astype(&part, part, MLXVK_INT8, stream), stream);
    mlxvk_array far = window(X, R - 1, 1, 0, C), same = { NULL };
    OK(mlxvk_array_equal(&same, part, far, false, stream), stream);
    assert_true(item_of(same) == 1);
    OK(mlxvk_astype(&a, a, MLXVK_BOOL, stream), stream);
    OK(mlxvk_astype(&a, a, MLXVK_INT8, stream), stream);
    OK(mlxvk_sum(&a, a, false, stream), stream);
    assert_true(item_of(a) == (double)(int32_t)(uint32_t)((int64_t)rows * C - (count_of(R, 0) - count_of(R - rows, 0))));
    DONE(part, a, far, same);
}

static int64_t sum_of(int n, int modulus, int add)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += i % modulus + add;
    return sum;
}

static double want_row_sum(size_t i, size_t j) { (void)j; return (double)(sum_of(C, 31, 0) + (int64_t)C * ((int)(i % 89) - 60)); }
static double want_column_sum(size_t i, size_t j) { (void)i; return (double)(sum_of(R, 89, -60) + (int64_t)R * (int)(j % 31)); }

static void test_reductions(void **state)
{
    (void)state;
    mlxvk_array a = { NULL };
    OK(mlxvk_sum(&a, X, false, stream), stream);
    assert_true((int32_t)item_of(a) == (int32_t)(uint32_t)(sum_of(R, 89, -60) * C + sum_of(C, 31, 0) * R));
    OK(mlxvk_sum_axis(&a, X, 1, true, stream), stream);
    SPOTS(a, R, 1, MLXVK_INT32, 0, want_row_sum);
    OK(mlxvk_sum_axis(&a, X, 0, true, stream), stream);
    SPOTS(a, 1, C, MLXVK_INT32, 0, want_column_sum);
    OK(mlxvk_max(&a, X, false, stream), stream);
    assert_true(item_of(a) == 58);
    OK(mlxvk_min(&a, X, false, stream), stream);
    assert_true(item_of(a) == -60);
    OK(mlxvk_any(&a, X, false, stream), stream);
    assert_true(item_of(a) == 1);
    OK(mlxvk_all(&a, X, false, stream), stream);
    assert_true(item_of(a) == 0);
    DONE(a);
}

static double want_thirty(size_t i, size_t j) { (void)i; (void)j; return 30; }

/* The place of one element that is larger than all others, far behind 2^31. */
static void test_arg_reductions(void **state)
{
    (void)state;
    mlxvk_array a = { NULL }, copy = { NULL }, top = number(100, MLXVK_INT8), zero = number(0, MLXVK_INT8);
    OK(mlxvk_argmax_axis(&a, X, 1, true, stream), stream);
    SPOTS(a, R, 1, MLXVK_UINT32, 0, want_thirty);
    OK(mlxvk_argmax(&a, X, false, stream), stream);
    assert_true(item_of(a) == 88.0 * C + 30);
    OK(mlxvk_add(&copy, X, zero, stream), stream);
    OK(mlxvk_slice_update(&copy, copy, top, (int[]){ R - 2, C - 7 }, 2, (int[]){ R - 1, C - 6 }, 2, (int[]){ 1, 1 }, 2, stream), stream);
    OK(mlxvk_argmax(&a, copy, false, stream), stream);
    assert_true(item_of(a) == (double)(R - 2) * C + C - 7);
    OK(mlxvk_argmax_axis(&a, copy, 0, true, stream), stream);
    mlxvk_array w = window(a, 0, 1, C - 7, 1);
    assert_true(item_of(w) == R - 2);
    DONE(a, copy, top, w, zero);
}

static double want_scan_of_row(size_t i, size_t j)
{
    int64_t sum = 0;
    for (size_t k = 0; k <= j; k++) sum += value(i, k);
    return (int8_t)sum;
}
static double want_scan_of_column(size_t i, size_t j)
{
    int64_t sum = 0;
    for (size_t k = 0; k <= i; k++) sum += value(k, j);
    return (int8_t)sum;
}

static void test_scans(void **state)
{
    (void)state;
    mlxvk_array a = { NULL };
    OK(mlxvk_cumsum(&a, X, 1, false, true, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_scan_of_row);
    OK(mlxvk_cumsum(&a, X, 0, false, true, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_scan_of_column);
    DONE(a);
}

static double want_counted(size_t i, size_t j) { (void)i; return (int8_t)(j + 1); }

/* One row that fills what a binding reaches. */
static void test_long_scan(void **state)
{
    (void)state;
    const int n = most < ENOUGH / 8 ? SMALL_RANGE - 64 : INT_MAX;
    mlxvk_array a = { NULL };
    OK(mlxvk_ones(&a, (int[]){ 1, n }, 2, MLXVK_INT8, stream), stream);
    OK(mlxvk_cumsum(&a, a, 1, false, true, stream), stream);
    SPOTS(a, 1, n, MLXVK_INT8, 0, want_counted);
    DONE(a);
}

static double want_sorted(size_t i, size_t j)
{
    size_t v = 0;
    while (v < 30 && j >= ((size_t)C - v + 30) / 31) { j -= ((size_t)C - v + 30) / 31; v++; }
    return value(i, v);
}

static void test_sort(void **state)
{
    (void)state;
    mlxvk_array a = { NULL };
    OK(mlxvk_sort_axis(&a, X, 1, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_sorted);
    DONE(a);
}

static size_t shuffled(size_t i, int n) { return i * 7919 % (size_t)n; }
static double want_taken_rows(size_t i, size_t j) { return value(shuffled(i, R), j); }
static double want_taken_columns(size_t i, size_t j) { return value(i, shuffled(j, C)); }

static mlxvk_array shuffle(int n, const int *shape, int ndim)
{
    mlxvk_array a = { NULL };
    int32_t *at = malloc((size_t)n * sizeof *at);
    assert_non_null(at);
    for (int i = 0; i < n; i++) at[i] = (int32_t)shuffled((size_t)i, n);
    OK_DEVICE(mlxvk_array_new_data_device(&a, at, shape, ndim, MLXVK_INT32, device), device);
    free(at);
    return a;
}

static void test_take(void **state)
{
    (void)state;
    mlxvk_array a = { NULL }, rows = shuffle(R, (int[]){ R }, 1), columns = shuffle(C, (int[]){ C }, 1), along = shuffle(C, (int[]){ 1, C }, 2);
    OK(mlxvk_take_axis(&a, X, rows, 0, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_taken_rows);
    OK(mlxvk_take_axis(&a, X, columns, 1, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_taken_columns);
    OK(mlxvk_take_along_axis(&a, X, along, 1, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_taken_columns);
    DONE(a, rows, columns, along);
}

static double want_put(size_t i, size_t j) { return j % 31 == 4 ? 7 : value(i, j); }

/* Sevens where the columns' indices say, and into slices at the far end. */
static void test_updates(void **state)
{
    (void)state;
    mlxvk_array a = { NULL }, seven = number(7, MLXVK_INT8), at = { NULL }, w, zero = number(0, MLXVK_INT8);
    OK(mlxvk_arange(&at, 4, C, 31, MLXVK_INT32, stream), stream);
    OK(mlxvk_reshape(&at, at, (int[]){ 1, -1 }, 2, stream), stream);
    OK(mlxvk_put_along_axis(&a, X, at, seven, 1, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_put);
    OK(mlxvk_add(&a, X, zero, stream), stream);
    OK(mlxvk_slice_update(&a, a, seven, (int[]){ R - 3, 2 }, 2, (int[]){ R, C }, 2, (int[]){ 1, 1 }, 2, stream), stream);
    w = window(a, R - 3, 3, 2, C - 2);
    SPOTS(w, 3, C - 2, MLXVK_INT8, 0, want_seven);
    mlxvk_array_free(w);
    w = window(a, 0, R - 3, 0, C);
    SPOTS(w, R - 3, C, MLXVK_INT8, 0, want_value);
    OK(mlxvk_as_strided(&w, a, (int[]){ 1, 4 }, 2, (int64_t[]){ 1, 1 }, 2, (size_t)R * (size_t)C - 4, stream), stream);
    SPOTS(w, 1, 4, MLXVK_INT8, 0, want_seven);
    DONE(a, seven, at, w, zero);
}

static double want_padded(size_t i, size_t j) { return j < 3 || j >= (size_t)C + 3 ? 7 : value(i, j - 3); }
static double want_rolled(size_t i, size_t j) { return value(i, (j + (size_t)C - 5) % (size_t)C); }
static double want_repeated(size_t i, size_t j) { return value(i / 2, j); }
static double want_tiled(size_t i, size_t j) { return value(i % (size_t)(R / 2), j); }

static void test_layout(void **state)
{
    (void)state;
    const int rows = R / 2;
    mlxvk_array a = { NULL }, top = window(X, 0, rows, 0, C), rest = window(X, rows, R - rows, 0, C), seven = number(7, MLXVK_INT8);
    mlxvk_vector_array both = mlxvk_vector_array_new_data((mlxvk_array[]){ top, rest }, 2);
    OK(mlxvk_concatenate_axis(&a, both, 0, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_value);
    mlxvk_vector_array_free(both);
    OK(mlxvk_pad(&a, X, (int[]){ 1 }, 1, (int[]){ 3 }, 1, (int[]){ 2 }, 1, seven, "constant", stream), stream);
    SPOTS(a, R, C + 5, MLXVK_INT8, 0, want_padded);
    OK(mlxvk_roll_axis(&a, X, (int[]){ 5 }, 1, 1, stream), stream);
    SPOTS(a, R, C, MLXVK_INT8, 0, want_rolled);
    OK(mlxvk_repeat_axis(&a, top, 2, 0, stream), stream);
    SPOTS(a, 2 * rows, C, MLXVK_INT8, 0, want_repeated);
    OK(mlxvk_tile(&a, top, (int[]){ 2, 1 }, 2, stream), stream);
    SPOTS(a, 2 * rows, C, MLXVK_INT8, 0, want_tiled);
    DONE(a, top, rest, seven);
}

/* As much as one allocation may have. */
static void test_largest(void **state)
{
    (void)state;
    const int columns = 65536 < most / 16 ? 65536 : 1024, rows = (int)(most / (size_t)columns), words = (int)(most / 4 < INT_MAX ? most / 4 : INT_MAX);
    mlxvk_array a = { NULL }, w = { NULL }, seven = number(7, MLXVK_UINT8);
    uint32_t got[3];
    OK(mlxvk_full(&a, (int[]){ rows, columns }, 2, seven, MLXVK_UINT8, stream), stream);
    SPOTS(a, rows, columns, MLXVK_UINT8, 0, want_seven);
    OK(mlxvk_sum(&a, a, false, stream), stream);
    assert_true(item_of(a) == (double)(uint32_t)(7 * (uint64_t)rows * (uint64_t)columns));
    OK(mlxvk_arange(&a, 5, 5 + (double)words, 1, MLXVK_UINT32, stream), stream);
    OK(mlxvk_slice(&w, a, (int[]){ words - 3 }, 1, (int[]){ words }, 1, (int[]){ 1 }, 1, stream), stream);
    OK(mlxvk_array_read(w, got, sizeof got, stream), stream);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(got[i], (uint32_t)words + 2 + i);
    DONE(a, w, seven);
}

/* MLX's generator, to compare random bytes with. */
static uint32_t random_word(const uint32_t key[2], uint32_t x, uint32_t y, int half)
{
    static const int rotations[8] = { 13, 15, 26, 6, 17, 29, 16, 24 };
    const uint32_t k[3] = { key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bdau };
    x += k[0];
    y += k[1];
    for (uint32_t round = 0; round < 20; round++) {
        int r = rotations[round % 8];
        x += y;
        y = (y << r | y >> (32 - r)) ^ x;
        if (round % 4 < 3) continue;
        x += k[(round / 4 + 1) % 3];
        y += k[(round / 4 + 2) % 3] + round / 4 + 1;
    }
    return half ? y : x;
}

static double want_random(size_t i, size_t j)
{
    const size_t at = i * (size_t)C + j, words = ((size_t)R * (size_t)C + 3) / 4, half = (words + 1) / 2, word = at / 4;
    const uint32_t key[2] = { 3, 4 }, pair = (uint32_t)(word % half);
    uint32_t other = pair + (uint32_t)half;
    if (other >= words) other = 0;                             /* of an odd number of words the last one stands alone */
    return random_word(key, pair, other, word >= half) >> 8 * (at % 4) & 255;
}

static void test_random(void **state)
{
    (void)state;
    mlxvk_array a = { NULL }, key = { NULL }, low = { NULL }, high = { NULL };
    OK_DEVICE(mlxvk_array_new_data_device(&key, (uint32_t[]){ 3, 4 }, (int[]){ 2 }, 1, MLXVK_UINT32, device), device);
    OK(mlxvk_random_bits(&a, (int[]){ R, C }, 2, 1, key, stream), stream);
    SPOTS(a, R, C, MLXVK_UINT8, 0, want_random);
    low = floats(device, (float[]){ 0 }, NULL, 0);
    high = floats(device, (float[]){ 1 }, NULL, 0);
    OK(mlxvk_random_uniform(&a, low, high, (int[]){ R, C / 2 }, 2, MLXVK_BFLOAT16, key, stream), stream);
    OK(mlxvk_mean_axis(&low, a, 1, false, stream), stream);
    OK(mlxvk_astype(&low, low, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_mean(&low, low, false, stream), stream);
    assert_true(fabs(item_of(low) - 0.5) < 0.02);
    OK(mlxvk_max(&low, a, false, stream), stream);
    assert_true(item_of(low) > 0.9 && item_of(low) <= 1);
    DONE(a, key, low, high);
}

static double want_softmax(size_t i, size_t j)
{
    double sum = 0;
    (void)i;
    for (int v = 0; v < 31; v++) sum += ((C - v + 30) / 31) * exp(v - 30);
    return exp((double)(j % 31) - 30) / sum;
}
static double want_rms(size_t i, size_t j)
{
    double sum = 0;
    for (int v = 0; v < 31; v++) sum += ((C - v + 30) / 31) * pow(value(i, (size_t)v), 2);
    return value(i, j) / sqrt(sum / C);
}

static void test_rows(void **state)
{
    (void)state;
    const int rows = (int)(most / 2 / (size_t)C < (size_t)R ? most / 2 / (size_t)C : (size_t)R);
    mlxvk_array a = table(rows, C, MLXVK_FLOAT16), b = { NULL };
    OK(mlxvk_softmax_axis(&b, a, 1, true, stream), stream);
    SPOTS(b, rows, C, MLXVK_FLOAT16, 0.02, want_softmax);
    OK(mlxvk_fast_rms_norm(&b, a, (mlxvk_array){ NULL }, 0, stream), stream);
    SPOTS(b, rows, C, MLXVK_FLOAT16, 0.002, want_rms);
    DONE(a, b);
}

static int product_of(size_t i, size_t j)
{
    int sum = 0;
    for (size_t k = 0; k < 16; k++) sum += ((int)((i + 2 * k) % 5) - 2) * ((int)((3 * k + j) % 7) - 3);
    return sum;
}
static double want_product(size_t i, size_t j) { return product_of(i, j); }

/* A result of as many elements as 16 bits each leave room for. */
static void test_matmul(void **state)
{
    (void)state;
    const int n = (int)sqrt((double)(most / 2)) & ~15;
    mlxvk_array a = { NULL }, b = { NULL };
    float *x = malloc((size_t)n * 16 * sizeof *x), *y = malloc((size_t)n * 16 * sizeof *y);
    assert_true(x && y);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 16; k++) {
            x[i * 16 + k] = (float)((i + 2 * k) % 5 - 2);
            y[k * n + i] = (float)((3 * k + i) % 7 - 3);
        }
    a = floats(device, x, (int[]){ n, 16 }, 2);
    b = floats(device, y, (int[]){ 16, n }, 2);
    free(x);
    free(y);
    OK(mlxvk_astype(&a, a, MLXVK_BFLOAT16, stream), stream);
    OK(mlxvk_astype(&b, b, MLXVK_BFLOAT16, stream), stream);
    OK(mlxvk_matmul(&a, a, b, stream), stream);
    SPOTS(a, n, n, MLXVK_BFLOAT16, 0, want_product);
    DONE(a, b);
}

/* Views with more elements than 32 bits count. */
static void test_repeats(void **state)
{
    (void)state;
    const int n = most < ENOUGH / 8 ? 700 : 70000;
    mlxvk_array one = number(3, MLXVK_UINT8), row = pattern(n, 31, 0, false, MLXVK_UINT8), a = { NULL };
    OK(mlxvk_broadcast_to(&one, one, (int[]){ n, n }, 2, stream), stream);
    OK(mlxvk_broadcast_to(&row, row, (int[]){ n, n }, 2, stream), stream);
    OK(mlxvk_sum(&a, one, false, stream), stream);
    assert_true(item_of(a) == (double)(uint32_t)(3 * (uint64_t)n * (uint64_t)n));
    OK(mlxvk_sum(&a, row, false, stream), stream);
    assert_true(item_of(a) == (double)(uint32_t)((uint64_t)sum_of(n, 31, 0) * (uint64_t)n));
    OK(mlxvk_prod(&a, one, false, stream), stream);
    assert_true(item_of(a) > 0);
    DONE(one, row, a);
}

/* ---- families whose rows, heads or batches are split: the same results as on a device that binds all of it ---- */

static mlxvk_array numbers(const int *shape, int ndim, mlxvk_dtype dtype)
{
    size_t n = 1;
    uint32_t state = (uint32_t)ndim;
    mlxvk_array a;
    float *data;
    for (int i = 0; i < ndim; i++) n *= (size_t)shape[i];
    data = malloc(n * sizeof *data);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        data[i] = (float)(int)(state >> 16) / 32768 - 1;
    }
    a = floats(device, data, shape, ndim);
    free(data);
    OK(mlxvk_astype(&a, a, dtype, stream), stream);
    return a;
}
#define NUMBERS(dtype, ...) numbers((int[]){ __VA_ARGS__ }, (int)COUNT(((int[]){ __VA_ARGS__ })), dtype)

enum { FAMILY_RESULTS = 4 };
static const mlxvk_array none = { NULL };

static void take_results(mlxvk_array *res, mlxvk_vector_array v)
{
    for (size_t i = 0; i < mlxvk_vector_array_size(v) && i < FAMILY_RESULTS; i++) assert_int_equal(mlxvk_vector_array_get(&res[i], v, i), 0);
    mlxvk_vector_array_free(v);
}

static void family_norms(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 3, 43, 64), w = NUMBERS(MLXVK_FLOAT32, 64), t = none;
    OK(mlxvk_fast_rms_norm(&res[0], x, w, 1e-5f, stream), stream);
    OK(mlxvk_fast_layer_norm(&res[1], x, w, w, 1e-5f, stream), stream);
    OK(mlxvk_transpose_axes(&t, x, (int[]){ 1, 0, 2 }, 3, stream), stream);
    OK(mlxvk_fast_rms_norm(&res[2], t, none, 1e-5f, stream), stream);
    OK(mlxvk_add(&t, x, res[1], stream), stream);
    OK(mlxvk_fast_rms_norm(&res[3], t, w, 1e-5f, stream), stream);   /* with the sum, where that is fused */
    DONE(x, w, t);
}

static void family_gradients(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 131, 64), w = NUMBERS(MLXVK_FLOAT32, 64), g = NUMBERS(MLXVK_FLOAT32, 131, 64);
    mlxvk_vector_array v = mlxvk_vector_array_new();
    OK(mlxvk_fast_layer_norm_vjp(&v, x, w, w, g, 1e-5f, stream), stream);
    take_results(res, v);
    DONE(x, w, g);
}

static void family_rope(mlxvk_array *res)
{
    const mlxvk_optional_float base = { 10000, true };
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 1, 3, 67, 64), y = NUMBERS(MLXVK_FLOAT16, 5, 19, 72), t = none, at = none;
    OK(mlxvk_swapaxes(&t, x, 1, 2, stream), stream);
    OK_DEVICE(mlxvk_array_new_data_device(&at, (int32_t[]){ 3, 1, 4, 1, 5 }, (int[]){ 5 }, 1, MLXVK_INT32, device), device);
    OK(mlxvk_fast_rope(&res[0], x, 64, false, base, 1, 7, none, stream), stream);
    OK(mlxvk_fast_rope(&res[1], t, 32, true, base, 1, 0, none, stream), stream);
    OK(mlxvk_fast_rope_dynamic(&res[2], y, 40, false, base, 0.5f, at, none, stream), stream);
    DONE(x, y, t, at);
}

static void family_quantized(mlxvk_array *res)
{
    const mlxvk_optional_int group = { 32, true }, bits = { 4, true };
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 150, 128), w = NUMBERS(MLXVK_FLOAT32, 3, 50, 128), part[3] = { none, none, none };
    mlxvk_vector_array v = mlxvk_vector_array_new();
    OK(mlxvk_quantize(&v, w, group, bits, "affine", none, stream), stream);
    take_results(part, v);
    OK(mlxvk_dequantize(&res[0], part[0], part[1], part[2], group, bits, "affine", none, (mlxvk_optional_dtype){ 0 }, stream), stream);
    OK(mlxvk_quantized_matmul(&res[1], x, part[0], part[1], part[2], true, group, bits, "affine", stream), stream);
    for (int i = 0; i < 3; i++) mlxvk_array_free(part[i]);
    part[0] = part[1] = part[2] = none;
    v = mlxvk_vector_array_new();
    OK(mlxvk_quantize(&v, w, group, bits, "mxfp4", none, stream), stream);
    take_results(part, v);
    OK(mlxvk_dequantize(&res[2], part[0], part[1], none, group, bits, "mxfp4", none, (mlxvk_optional_dtype){ 0 }, stream), stream);
    DONE(x, w, part[0], part[1]);
}

static void family_attention(mlxvk_array *res)
{
    mlxvk_array q = NUMBERS(MLXVK_FLOAT32, 2, 4, 37, 32), k = NUMBERS(MLXVK_FLOAT32, 2, 2, 41, 32), v = NUMBERS(MLXVK_FLOAT32, 2, 2, 41, 32);
    mlxvk_array mask = NUMBERS(MLXVK_FLOAT32, 2, 1, 37, 41), sinks = NUMBERS(MLXVK_FLOAT32, 4), one = NUMBERS(MLXVK_FLOAT32, 1, 3, 71, 32);
    mlxvk_array key = NUMBERS(MLXVK_FLOAT32, 1, 1, 90, 32);
    OK(mlxvk_fast_scaled_dot_product_attention(&res[0], q, k, v, 0.2f, "array", mask, sinks, stream), stream);
    OK(mlxvk_fast_scaled_dot_product_attention(&res[1], q, k, v, 0.2f, "causal", none, none, stream), stream);
    OK(mlxvk_fast_scaled_dot_product_attention(&res[2], one, key, key, 0.2f, "causal", none, none, stream), stream);
    OK(mlxvk_fast_scaled_dot_product_attention(&res[3], one, key, key, 0.2f, "", none, none, stream), stream);
    DONE(q, k, v, mask, sinks, one, key);
}

static void family_transforms(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 50, 128), kernel = NUMBERS(MLXVK_FLOAT32, 8, 3, 3, 4), image = NUMBERS(MLXVK_FLOAT32, 5, 12, 13, 4);
    OK(mlxvk_hadamard_transform(&res[0], x, (mlxvk_optional_float){ 1, true }, stream), stream);
    OK(mlxvk_fft_fft(&res[1], x, 128, 1, MLXVK_FFT_NORM_BACKWARD, stream), stream);
    OK(mlxvk_fft_fft(&res[2], x, 50, 0, MLXVK_FFT_NORM_BACKWARD, stream), stream);
    OK(mlxvk_conv2d(&res[3], image, kernel, 1, 1, 1, 1, 1, 1, 1, stream), stream);
    DONE(x, kernel, image);
}

/* Lengths with large prime factors: rows are longer in between. */
static void family_chirps(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 100, 83), y = NUMBERS(MLXVK_FLOAT32, 100, 46);
    OK(mlxvk_fft_fft(&res[0], x, 83, 1, MLXVK_FFT_NORM_BACKWARD, stream), stream);
    OK(mlxvk_fft_rfft(&res[1], x, 83, 1, MLXVK_FFT_NORM_BACKWARD, stream), stream);
    OK(mlxvk_fft_irfft(&res[2], y, 46, 1, MLXVK_FFT_NORM_ORTHO, stream), stream);
    OK(mlxvk_fft_fft(&res[3], x, 101, 0, MLXVK_FFT_NORM_BACKWARD, stream), stream);
    DONE(x, y);
}

static void family_indices(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 90, 70), low = NUMBERS(MLXVK_FLOAT32, 90, 1), at = none, sorted = none;
    OK(mlxvk_argsort_axis(&at, x, 1, stream), stream);
    OK(mlxvk_take_along_axis(&res[0], x, at, 1, stream), stream);
    OK(mlxvk_put_along_axis(&res[1], x, at, x, 1, stream), stream);
    OK(mlxvk_sort_axis(&sorted, low, 0, stream), stream);
    OK(mlxvk_reshape(&sorted, sorted, (int[]){ 90 }, 1, stream), stream);
    OK(mlxvk_searchsorted(&res[2], sorted, x, "left", stream), stream);
    OK(mlxvk_cumsum(&res[3], x, 0, true, false, stream), stream);
    DONE(x, low, at, sorted);
}

/* Whole numbers in [-most, most): some lie outside an axis that is shorter. */
static mlxvk_array places(int n, int most)
{
    mlxvk_array a = NUMBERS(MLXVK_FLOAT32, n), by = number(most, MLXVK_FLOAT32);
    OK(mlxvk_multiply(&a, a, by, stream), stream);
    OK(mlxvk_astype(&a, a, MLXVK_INT32, stream), stream);
    mlxvk_array_free(by);
    return a;
}

/* Windows of whole rows, of parts of rows (element by element), in the order of the windows and in any. */
static void family_scatter(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 90, 70), rows = places(150, 100), columns = places(150, 80), few = none;
    mlxvk_array u = NUMBERS(MLXVK_FLOAT32, 150, 1, 70), v = NUMBERS(MLXVK_FLOAT32, 150, 1, 40), ten = number(10, MLXVK_FLOAT32);
    mlxvk_vector_array both = mlxvk_vector_array_new_data((mlxvk_array[]){ rows, columns }, 2);
    few = pattern(150, 2, 31, true, MLXVK_INT32);
    OK(mlxvk_reshape(&few, few, (int[]){ 150 }, 1, stream), stream);
    OK(mlxvk_scatter_single(&res[0], x, rows, u, 0, stream), stream);
    OK(mlxvk_scatter_add_single(&res[1], x, few, u, 0, stream), stream);
    OK(mlxvk_scatter_add(&res[2], x, both, v, (int[]){ 0, 1 }, 2, stream), stream);
    OK(mlxvk_multiply(&x, x, ten, stream), stream);
    OK(mlxvk_multiply(&v, v, ten, stream), stream);
    OK(mlxvk_astype(&x, x, MLXVK_INT16, stream), stream);
    OK(mlxvk_scatter_max(&res[3], x, both, v, (int[]){ 0, 1 }, 2, stream), stream);
    mlxvk_vector_array_free(both);
    DONE(x, rows, columns, few, u, v, ten);
}

/* Windows that reach farther than a binding, are larger than one, or have elements of other sizes. */
static void family_windows(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 3, 60, 70), at = places(20, 60), u = NUMBERS(MLXVK_FLOAT32, 20, 3, 1, 70);
    mlxvk_array first = number(0, MLXVK_INT32), all = NUMBERS(MLXVK_FLOAT32, 3, 60, 70), wide = none, small = none;
    mlxvk_array by = number(127, MLXVK_FLOAT32);
    OK(mlxvk_scatter_single(&res[0], x, at, u, 1, stream), stream);
    OK(mlxvk_astype(&wide, x, MLXVK_COMPLEX64, stream), stream);
    OK(mlxvk_scatter_add_single(&res[1], wide, at, u, 1, stream), stream);
    OK(mlxvk_negative(&all, all, stream), stream);
    OK(mlxvk_scatter_prod_single(&res[2], x, first, all, 0, stream), stream);
    OK(mlxvk_abs(&small, x, stream), stream);
    OK(mlxvk_multiply(&small, small, by, stream), stream);
    OK(mlxvk_astype(&small, small, MLXVK_UINT8, stream), stream);
    OK(mlxvk_repeat(&small, small, 2, stream), stream);
    OK(mlxvk_reshape(&small, small, (int[]){ 6, 60, 70 }, 3, stream), stream);
    OK(mlxvk_slice_update_dynamic(&res[3], small, all, first, (int[]){ 0 }, 1, stream), stream);
    DONE(x, at, u, first, all, wide, small, by);
}

static void family_gather(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 90, 70), y = NUMBERS(MLXVK_FLOAT32, 3, 60, 70), t = none;
    mlxvk_array rows = places(150, 100), columns = places(150, 80), few = places(3, 2), other = places(3, 50);
    mlxvk_vector_array both = mlxvk_vector_array_new_data((mlxvk_array[]){ rows, columns }, 2);
    mlxvk_vector_array two = mlxvk_vector_array_new_data((mlxvk_array[]){ few, other }, 2);
    OK(mlxvk_gather(&res[0], x, both, (int[]){ 0, 1 }, 2, (int[]){ 1, 40 }, 2, stream), stream);
    OK(mlxvk_slice(&t, x, (int[]){ 89, 0 }, 2, (int[]){ -91, 70 }, 2, (int[]){ -1, 1 }, 2, stream), stream);
    OK(mlxvk_transpose(&t, t, stream), stream);
    OK(mlxvk_gather(&res[1], t, both, (int[]){ 1, 0 }, 2, (int[]){ 3, 2 }, 2, stream), stream);
    OK(mlxvk_gather(&res[2], y, two, (int[]){ 0, 1 }, 2, (int[]){ 2, 50, 70 }, 3, stream), stream);
    OK(mlxvk_gather_single(&res[3], y, other, 1, (int[]){ 3, 20, 70 }, 3, stream), stream);
    mlxvk_vector_array_free(both);
    mlxvk_vector_array_free(two);
    DONE(x, y, t, rows, columns, few, other);
}

static void family_search(mlxvk_array *res)
{
    mlxvk_array x = none, y = NUMBERS(MLXVK_FLOAT32, 50, 60), by = number(64, MLXVK_FLOAT32);
    OK(mlxvk_multiply(&y, y, by, stream), stream);
    OK(mlxvk_floor(&y, y, stream), stream);
    OK(mlxvk_arange(&x, -4500, 4501, 1, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_divide(&x, x, by, stream), stream);
    OK(mlxvk_floor(&x, x, stream), stream);           /* runs of 64, from -71 to 70 */
    OK(mlxvk_searchsorted(&res[0], x, y, "left", stream), stream);
    OK(mlxvk_searchsorted(&res[1], x, y, "right", stream), stream);
    DONE(x, y, by);
}

static void family_matrices(mlxvk_array *res)
{
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 7, 40, 40), t = none, shift = none;
    mlxvk_vector_array v = mlxvk_vector_array_new();
    OK(mlxvk_swapaxes(&t, x, 1, 2, stream), stream);
    OK(mlxvk_matmul(&t, x, t, stream), stream);
    OK(mlxvk_eye(&shift, 40, 40, 0, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_add(&t, t, shift, stream), stream);
    OK(mlxvk_linalg_cholesky(&res[0], t, false, stream), stream);
    OK(mlxvk_linalg_lu(&v, x, stream), stream);
    take_results(res + 1, v);
    DONE(x, t, shift);
}

static const struct { const char *name; void (*make)(mlxvk_array *res); double tolerance; } families[] = {
    { "norms", family_norms, 1e-6 }, { "gradients", family_gradients, 1e-5 }, { "rope", family_rope, 1e-5 },
    { "quantized", family_quantized, 1e-5 }, { "attention", family_attention, 1e-5 }, { "transforms", family_transforms, 1e-5 },
    { "indices", family_indices, 1e-5 }, { "matrices", family_matrices, 1e-4 }, { "scatter", family_scatter, 1e-5 },
    { "windows", family_windows, 1e-5 }, { "gather", family_gather, 0 }, { "search", family_search, 0 },
    { "chirps", family_chirps, 1e-4 },
};

/* The results' elements on this device, as numbers; complex ones count twice. */
static double *family_values(size_t which, size_t *count)
{
    mlxvk_array res[FAMILY_RESULTS] = { none, none, none, none };
    double *values = NULL;
    *count = 0;
    families[which].make(res);
    for (int i = 0; i < FAMILY_RESULTS; i++) {
        size_t n = mlxvk_array_size(res[i]), bytes = mlxvk_array_nbytes(res[i]);
        unsigned char *raw = res[i].ctx ? malloc(bytes + 1) : NULL;
        if (!raw) continue;
        OK(mlxvk_array_read(res[i], raw, bytes, stream), stream);
        values = realloc(values, (*count + 2 * n) * sizeof *values);
        assert_non_null(values);
        for (size_t k = 0; k < n; k++) {
            struct number v = load_number(mlxvk_array_dtype(res[i]), raw, k);
            values[(*count)++] = v.re;
            values[(*count)++] = v.im;
        }
        free(raw);
        mlxvk_array_free(res[i]);
    }
    return values;
}

static void test_families(void **state)
{
    (void)state;
    const mlxvk_device short_one = device;
    const mlxvk_stream short_stream = stream;
    for (size_t f = 0; f < COUNT(families); f++) {
        size_t count, wanted;
        double *got = family_values(f, &count), *want;
        device = open_device(NULL);
        stream = open_stream(device);
        want = family_values(f, &wanted);
        mlxvk_stream_free(stream);
        mlxvk_device_free(device);
        device = short_one;
        stream = short_stream;
        assert_true(count == wanted && count > 0);
        for (size_t i = 0; i < count; i++)
            if (!(fabs(got[i] - want[i]) <= families[f].tolerance * (1 + fabs(want[i])))) fail_msg("%s: element %zu is %g, not %g", families[f].name, i, got[i], want[i]);
        free(got);
        free(want);
    }
}

/* One row, of which no binding holds the whole: made of what can be bound. */
static void test_one_row(void **state)
{
    (void)state;
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 1, SMALL_RANGE), res = none;
    float *in = malloc(SMALL_RANGE * 4), *got = malloc(SMALL_RANGE * 4);
    double most = -INFINITY, sum = 0;
    assert_true(in && got);
    OK(mlxvk_softmax_axis(&res, x, 1, false, stream), stream);
    OK(mlxvk_array_read(x, in, SMALL_RANGE * 4, stream), stream);
    memset(got, 0xff, SMALL_RANGE * 4);
    OK(mlxvk_array_read(res, got, SMALL_RANGE * 4, stream), stream);
    for (int i = 0; i < SMALL_RANGE; i++) most = in[i] > most ? in[i] : most;
    for (int i = 0; i < SMALL_RANGE; i++) sum += exp(in[i] - most);
    for (int i = 0; i < SMALL_RANGE; i++) {
        double want = exp(in[i] - most) / sum;
        if (!(fabs(got[i] - want) <= 1e-5 * want + 1e-30)) fail_msg("element %d is %.9g, not %.9g", i, got[i], want);
    }
    free(in);
    free(got);
    DONE(x, res);
}

/* The call itself refuses what it can know. */
static void test_refused_rows(void **state)
{
    (void)state;
    mlxvk_array x = NUMBERS(MLXVK_FLOAT32, 1, 5000), square = NUMBERS(MLXVK_FLOAT32, 70, 70), res = none, mask = none, flat = none;
    mlxvk_vector_array all = mlxvk_vector_array_new();
    REFUSED(mlxvk_sort_axis(&res, x, 1, stream), MLXVK_ERROR_LIMIT, stream, "sort_axis", "float32 (1, 5000)", "20000", "16384");
    REFUSED(mlxvk_median(&res, x, (int[]){ 1 }, 1, false, stream), MLXVK_ERROR_LIMIT, stream, "median", "(1, 5000)");
    REFUSED(mlxvk_fft_fft(&res, x, 2560, 1, MLXVK_FFT_NORM_BACKWARD, stream), MLXVK_ERROR_LIMIT, stream, "fft_fft", "float32 (1, 5000)", "16384");
    REFUSED(mlxvk_linalg_inv(&res, square, stream), MLXVK_ERROR_LIMIT, stream, "linalg_inv", "float32 (70, 70)", "19600");
    REFUSED(mlxvk_linalg_svd(&all, square, true, stream), MLXVK_ERROR_LIMIT, stream, "linalg_svd", "float32 (70, 70)");
    OK(mlxvk_greater(&mask, x, x, stream), stream);
    OK(mlxvk_reshape(&flat, x, (int[]){ 5000 }, 1, stream), stream);
    REFUSED(mlxvk_masked_scatter(&res, x, mask, flat, stream), MLXVK_ERROR_LIMIT, stream, "masked_scatter", "float32 (1, 5000)");
    assert_null(res.ctx);
    OK(mlxvk_fft_fft(&res, x, 1000, 1, MLXVK_FFT_NORM_BACKWARD, stream), stream);      /* a part of the row will do */
    OK(mlxvk_array_eval(res), stream);
    mlxvk_vector_array_free(all);
    DONE(x, square, res, mask, flat);
}

/* ---- six dimensions that do not merge: the same results as of a copy without gaps ---- */

enum { SIX = 6 };

/* Of base: axes exchanged, some positions left out, one axis backwards. */
static mlxvk_array six_view(mlxvk_dtype dtype)
{
    mlxvk_array a = NUMBERS(dtype, 3, 4, 5, 3, 6, 8);
    OK(mlxvk_transpose_axes(&a, a, (int[]){ 4, 1, 3, 0, 2, 5 }, SIX, stream), stream);
    OK(mlxvk_slice(&a, a, (int[]){ 0, 0, 2, 0, 0, 0 }, SIX, (int[]){ 6, 4, -4, 3, 5, 8 }, SIX, (int[]){ 2, 3, -2, 2, 2, 1 }, SIX, stream), stream);
    return a;                                                  /* (3, 2, 2, 2, 3, 8) */
}

static int six_rows(mlxvk_array *res, mlxvk_array a)
{
    return mlxvk_softmax_axis(&res[0], a, 5, false, stream) | mlxvk_softmax_axis(&res[1], a, 2, false, stream) |
           mlxvk_fast_rms_norm(&res[2], a, none, 1e-5f, stream) | mlxvk_fast_layer_norm(&res[3], a, none, none, 1e-5f, stream);
}
static int six_reductions(mlxvk_array *res, mlxvk_array a)
{
    return mlxvk_sum_axes(&res[0], a, (int[]){ 0, 2, 4 }, 3, false, stream) | mlxvk_logsumexp_axes(&res[1], a, (int[]){ 1, 3, 5 }, 3, true, stream) |
           mlxvk_argmax_axis(&res[2], a, 3, false, stream) | mlxvk_var_axes(&res[3], a, (int[]){ 0, 5 }, 2, false, 1, stream);
}
static int six_order(mlxvk_array *res, mlxvk_array a)
{
    return mlxvk_sort_axis(&res[0], a, 4, stream) | mlxvk_argsort_axis(&res[1], a, 0, stream) | mlxvk_cumsum(&res[2], a, 1, true, true, stream) |
           mlxvk_argmin(&res[3], a, false, stream);
}
static int six_indices(mlxvk_array *res, mlxvk_array a)
{
    mlxvk_array at = none, few = none;
    mlxvk_vector_array both;
    int code = mlxvk_argsort_axis(&at, a, 4, stream) | mlxvk_take_along_axis(&res[0], a, at, 4, stream) |
               mlxvk_put_along_axis(&res[1], a, at, a, 4, stream);
    OK_DEVICE(mlxvk_array_new_data_device(&few, (int32_t[]){ 1, 0, 1 }, (int[]){ 3 }, 1, MLXVK_INT32, device), device);
    both = mlxvk_vector_array_new_data((mlxvk_array[]){ few, few }, 2);
    code |= mlxvk_take_axis(&res[2], a, few, 2, stream) | mlxvk_gather(&res[3], a, both, (int[]){ 1, 3 }, 2, (int[]){ 3, 1, 2, 1, 3, 8 }, SIX, stream);
    mlxvk_vector_array_free(both);
    mlxvk_array_free(at);
    mlxvk_array_free(few);
    return code;
}
static int six_updates(mlxvk_array *res, mlxvk_array a)
{
    mlxvk_array at = none, updates = NUMBERS(MLXVK_FLOAT32, 3, 3, 1, 2, 2, 3, 8), part = none;
    const int from[] = { 0, 1, 0, 0, 1, 0 }, to[] = { 3, 2, 2, 2, 3, 8 }, by[] = { 2, 1, 1, 1, 1, 3 };
    int code;
    OK_DEVICE(mlxvk_array_new_data_device(&at, (int32_t[]){ 1, 0, 1 }, (int[]){ 3 }, 1, MLXVK_INT32, device), device);
    code = mlxvk_scatter_add_single(&res[0], a, at, updates, 1, stream) | mlxvk_slice(&part, a, from, SIX, to, SIX, by, SIX, stream) |
           mlxvk_slice_update(&res[1], a, part, from, SIX, to, SIX, by, SIX, stream) |
           mlxvk_pad(&res[2], a, (int[]){ 1, 4 }, 2, (int[]){ 1, 0 }, 2, (int[]){ 0, 2 }, 2, none, "edge", stream) |
           mlxvk_roll_axis(&res[3], a, (int[]){ 1 }, 1, 4, stream);
    mlxvk_array_free(at);
    mlxvk_array_free(updates);
    mlxvk_array_free(part);
    return code;
}
static int six_products(mlxvk_array *res, mlxvk_array a)
{
    mlxvk_array t = none;
    const mlxvk_optional_float base = { 10000, true };
    int code = mlxvk_swapaxes(&t, a, 4, 5, stream) | mlxvk_matmul(&res[0], a, t, stream) | mlxvk_fast_rope(&res[1], a, 8, false, base, 1, 2, none, stream) |
               mlxvk_fft_fft(&res[2], a, 3, 0, MLXVK_FFT_NORM_BACKWARD, stream) | mlxvk_hadamard_transform(&res[3], a, (mlxvk_optional_float){ 1, true }, stream);
    mlxvk_array_free(t);
    return code;
}
static int six_elements(mlxvk_array *res, mlxvk_array a)
{
    mlxvk_array mask = none, t = none;
    int code = mlxvk_transpose_axes(&t, a, (int[]){ 0, 1, 3, 2, 4, 5 }, SIX, stream) | mlxvk_greater(&mask, a, t, stream) |
               mlxvk_where(&res[0], mask, a, t, stream) | mlxvk_astype(&res[1], a, MLXVK_COMPLEX64, stream) | mlxvk_exp(&res[2], a, stream) |
               mlxvk_arctan2(&res[3], t, a, stream);
    mlxvk_array_free(mask);
    mlxvk_array_free(t);
    return code;
}

static void test_dimensions(void **state)
{
    (void)state;
    static int (*const calls[])(mlxvk_array *res, mlxvk_array a) = { six_rows, six_reductions, six_order, six_indices, six_updates, six_products,
                                                                     six_elements };
    mlxvk_array view = six_view(MLXVK_FLOAT32), dense = none, close = none;
    OK(mlxvk_contiguous(&dense, view, false, stream), stream);
    assert_false(mlxvk_array_is_row_contiguous(view));
    for (size_t i = 0; i < COUNT(calls); i++) {
        mlxvk_array got[FAMILY_RESULTS] = { none, none, none, none }, want[FAMILY_RESULTS] = { none, none, none, none };
        OK(calls[i](got, view), stream);
        OK(calls[i](want, dense), stream);
        for (int k = 0; k < FAMILY_RESULTS; k++) {
            OK(mlxvk_allclose(&close, got[k], want[k], 1e-5, 1e-6, false, stream), stream);
            if (item_of(close) != 1) fail_msg("result %d of group %zu is another one", k, i);
            mlxvk_array_free(got[k]);
            mlxvk_array_free(want[k]);
        }
    }
    DONE(view, dense, close);
}

/* ---- what runs everywhere: views of any number of elements, and what is refused ---- */

enum { WIDE = 1 << 20 };

static mlxvk_array repeated(mlxvk_dtype dtype, int rows, int columns)
{
    mlxvk_array a = number(1, dtype);
    OK(mlxvk_broadcast_to(&a, a, (int[]){ rows, columns }, 2, stream), stream);
    return a;
}

static double want_one(size_t i, size_t j) { (void)i; (void)j; return 1; }
static double want_column(size_t i, size_t j) { (void)i; return (double)(j % 31); }

static void test_views(void **state)
{
    (void)state;
    mlxvk_array a = repeated(MLXVK_INT8, 1 << 17, 1 << 16), b = pattern(1 << 16, 31, 0, false, MLXVK_INT8), w = { NULL }, at = shuffle(5, (int[]){ 5 }, 1);
    assert_true((uint64_t)mlxvk_array_size(a) == (uint64_t)1 << 33 && (uint64_t)mlxvk_array_nbytes(a) == (uint64_t)1 << 33);
    SPOTS(a, 1 << 17, 1 << 16, MLXVK_INT8, 0, want_one);
    OK(mlxvk_broadcast_to(&b, b, (int[]){ 1 << 17, 1 << 16 }, 2, stream), stream);
    SPOTS(b, 1 << 17, 1 << 16, MLXVK_INT8, 0, want_column);
    w = window(b, (1 << 17) - 9, 9, 0, 1 << 16);
    OK(mlxvk_add(&w, w, w, stream), stream);
    OK(mlxvk_take_axis(&w, b, at, 0, stream), stream);
    SPOTS(w, 5, 1 << 16, MLXVK_INT8, 0, want_column);
    OK(mlxvk_reshape(&w, a, (int[]){ 1 << 16, 1 << 17 }, 2, stream), stream);
    SPOTS(w, 1 << 16, 1 << 17, MLXVK_INT8, 0, want_one);
    OK(mlxvk_transpose(&w, b, stream), stream);
    OK(mlxvk_slice(&w, w, (int[]){ 0, 0 }, 2, (int[]){ 1 << 16, 1 << 17 }, 2, (int[]){ 13, 1 << 15 }, 2, stream), stream);
    OK(mlxvk_contiguous(&w, w, false, stream), stream);
    assert_int_equal(mlxvk_array_dim(w, 1), 4);
    DONE(a, b, w, at);
}

/* What repeats is looked at once. */
static void test_reduced_views(void **state)
{
    (void)state;
    const int rows = 1 << 17, columns = 1 << 16;
    mlxvk_array b = pattern(columns, 31, 0, false, MLXVK_INT8), a = repeated(MLXVK_INT8, rows, columns), w = { NULL };
    OK(mlxvk_broadcast_to(&b, b, (int[]){ rows, columns }, 2, stream), stream);
    OK(mlxvk_max(&w, b, false, stream), stream);
    assert_true(item_of(w) == 30);
    OK(mlxvk_min(&w, a, false, stream), stream);
    assert_true(item_of(w) == 1);
    OK(mlxvk_all(&w, a, false, stream), stream);
    assert_true(item_of(w) == 1);
    OK(mlxvk_any(&w, b, false, stream), stream);
    assert_true(item_of(w) == 1);
    OK(mlxvk_argmax_axis(&w, b, 0, false, stream), stream);
    OK(mlxvk_max(&w, w, false, stream), stream);
    assert_true(item_of(w) == 0);
    mlxvk_array_free(a);
    a = repeated(MLXVK_INT8, 50000, 60000);
    OK(mlxvk_argmin(&w, a, false, stream), stream);
    assert_true(item_of(w) == 0);
    DONE(a, b, w);
}

#define TOO_LARGE(call, ...) do { REFUSED(call, MLXVK_ERROR_LIMIT, stream, __VA_ARGS__); assert_null(res.ctx); } while (0)
static const char wide_text[] = "(1048576, 1048576)";

static void test_refused_results(void **state)
{
    (void)state;
    mlxvk_array res = { NULL }, a = repeated(MLXVK_INT8, WIDE, WIDE), f = repeated(MLXVK_FLOAT16, WIDE, WIDE), one = number(1, MLXVK_INT8);
    mlxvk_array flat = counted(WIDE, MLXVK_INT32), key = { NULL };
    const int shape[] = { WIDE, WIDE };
    mlxvk_vector_array list = mlxvk_vector_array_new_data((mlxvk_array[]){ a, a }, 2);
    OK_DEVICE(mlxvk_array_new_data_device(&key, (uint32_t[]){ 3, 4 }, (int[]){ 2 }, 1, MLXVK_UINT32, device), device);
    TOO_LARGE(mlxvk_zeros(&res, shape, 2, MLXVK_BOOL, stream), "zeros", wide_text, "1099511627776");
    TOO_LARGE(mlxvk_full(&res, shape, 2, one, MLXVK_INT8, stream), "full", wide_text);
    TOO_LARGE(mlxvk_array_empty(&res, shape, 2, MLXVK_INT8, stream), "array_empty", wide_text);
    TOO_LARGE(mlxvk_contiguous(&res, a, false, stream), "contiguous", wide_text);
    TOO_LARGE(mlxvk_astype(&res, a, MLXVK_FLOAT32, stream), "astype", wide_text);
    TOO_LARGE(mlxvk_add(&res, a, one, stream), "add", wide_text);
    TOO_LARGE(mlxvk_equal(&res, a, a, stream), "equal", wide_text);
    TOO_LARGE(mlxvk_negative(&res, a, stream), "negative", wide_text);
    TOO_LARGE(mlxvk_where(&res, a, one, one, stream), "where", wide_text);
    TOO_LARGE(mlxvk_cumsum(&res, a, 1, false, true, stream), "cumsum", wide_text);
    TOO_LARGE(mlxvk_softmax_axis(&res, f, 1, false, stream), "softmax_axis", wide_text);
    TOO_LARGE(mlxvk_sort_axis(&res, a, 1, stream), "sort_axis", wide_text);
    TOO_LARGE(mlxvk_argsort_axis(&res, a, 0, stream), "argsort_axis", wide_text);
    TOO_LARGE(mlxvk_topk_axis(&res, a, 2, 1, stream), "topk_axis", wide_text);
    TOO_LARGE(mlxvk_random_bits(&res, shape, 2, 1, key, stream), "random_bits", wide_text);
    TOO_LARGE(mlxvk_random_normal(&res, shape, 2, MLXVK_FLOAT16, 0, 1, key, stream), "random_normal", wide_text);
    TOO_LARGE(mlxvk_tri(&res, WIDE, WIDE, 0, MLXVK_BOOL, stream), "tri", wide_text);
    TOO_LARGE(mlxvk_eye(&res, WIDE, WIDE, 0, MLXVK_BOOL, stream), "eye", wide_text);
    TOO_LARGE(mlxvk_take_axis(&res, a, flat, 0, stream), "take_axis", wide_text);
    TOO_LARGE(mlxvk_searchsorted(&res, flat, a, "left", stream), "searchsorted");
    TOO_LARGE(mlxvk_matmul(&res, f, f, stream), "matmul", wide_text);
    TOO_LARGE(mlxvk_concatenate_axis(&res, list, 0, stream), "concatenate_axis", "(2097152, 1048576)");
    TOO_LARGE(mlxvk_stack_axis(&res, list, 0, stream), "stack_axis", "(2, 1048576, 1048576)");
    TOO_LARGE(mlxvk_roll_axis(&res, a, (int[]){ 1 }, 1, 0, stream), "roll_axis", wide_text);
    TOO_LARGE(mlxvk_slice_update(&res, a, one, (int[]){ 0, 0 }, 2, (int[]){ 1, 1 }, 2, (int[]){ 1, 1 }, 2, stream), "slice_update", wide_text);
    TOO_LARGE(mlxvk_fast_rms_norm(&res, f, (mlxvk_array){ NULL }, 0, stream), "fast_rms_norm", wide_text);
    mlxvk_vector_array_free(list);
    DONE(a, f, one, flat, key);
}

static void test_refused_lengths(void **state)
{
    (void)state;
    mlxvk_array res = { NULL }, a = repeated(MLXVK_INT8, WIDE, WIDE), long_one = repeated(MLXVK_INT8, 1, INT_MAX), wide = repeated(MLXVK_INT64, 2, 1 << 30);
    mlxvk_array f = repeated(MLXVK_FLOAT16, WIDE, WIDE), flat = counted(3, MLXVK_INT32), words = repeated(MLXVK_UINT32, 2, 1 << 29);
    mlxvk_array scales = repeated(MLXVK_FLOAT16, 2, 1 << 25), many = { NULL };
    mlxvk_vector_array list = mlxvk_vector_array_new_data((mlxvk_array[]){ long_one, long_one }, 2);
    mlxvk_optional_int bits = { 8, true }, group = { 64, true };
    TOO_LARGE(mlxvk_reshape(&res, a, (int[]){ -1 }, 1, stream), "reshape", wide_text, "1099511627776");
    TOO_LARGE(mlxvk_reshape(&res, a, (int[]){ 4, -1 }, 2, stream), "reshape", wide_text);
    TOO_LARGE(mlxvk_flatten(&res, a, 0, -1, stream), "flatten", wide_text);
    TOO_LARGE(mlxvk_sort(&res, a, stream), "sort", wide_text);
    TOO_LARGE(mlxvk_take(&res, a, flat, stream), "take", wide_text);
    TOO_LARGE(mlxvk_argmax(&res, a, false, stream), "argmax", wide_text);
    TOO_LARGE(mlxvk_outer(&res, a, flat, stream), "outer", wide_text);
    TOO_LARGE(mlxvk_repeat(&res, a, 2, stream), "repeat", wide_text);
    TOO_LARGE(mlxvk_roll(&res, a, (int[]){ 1 }, 1, stream), "roll", wide_text);
    TOO_LARGE(mlxvk_median(&res, f, (int[]){ 0, 1 }, 2, false, stream), "median", wide_text);
    TOO_LARGE(mlxvk_tensordot(&res, f, f, (int[]){ 0, 1 }, 2, (int[]){ 0, 1 }, 2, stream), "tensordot", wide_text);
    TOO_LARGE(mlxvk_view(&res, wide, MLXVK_INT8, stream), "view", "(2, 1073741824)");
    TOO_LARGE(mlxvk_concatenate_axis(&res, list, 1, stream), "concatenate_axis", "(1, 2147483647)", "4294967294");
    TOO_LARGE(mlxvk_pad(&res, long_one, (int[]){ 1 }, 1, (int[]){ 1 }, 1, (int[]){ 0 }, 1, (mlxvk_array){ NULL }, "constant", stream), "pad",
              "(1, 2147483647)");
    TOO_LARGE(mlxvk_tile(&res, long_one, (int[]){ 1, 2 }, 2, stream), "tile", "(1, 2147483647)");
    TOO_LARGE(mlxvk_repeat_axis(&res, long_one, 2, 1, stream), "repeat_axis", "(1, 2147483647)");
    TOO_LARGE(mlxvk_kron(&res, long_one, a, stream), "kron", "(1, 2147483647)");
    TOO_LARGE(mlxvk_diag(&res, flat, INT_MAX, stream), "diag", "2147483650");
    TOO_LARGE(mlxvk_arange(&res, 0, 3e9, 1, MLXVK_INT8, stream), "arange", "3000000000");
    TOO_LARGE(mlxvk_dequantize(&res, words, scales, scales, group, bits, "affine", (mlxvk_array){ NULL }, (mlxvk_optional_dtype){ 0 }, stream),
              "dequantize", "(2, 536870912)");
    many = number(1, MLXVK_FLOAT16);
    OK(mlxvk_broadcast_to(&many, many, (int[]){ 1 << 17, 1 << 16, 2, 2 }, 4, stream), stream);
    TOO_LARGE(mlxvk_gather_mm(&res, many, many, (mlxvk_array){ NULL }, flat, false, stream), "gather_mm", "(131072, 65536, 2, 2)");
    TOO_LARGE(mlxvk_zeros(&res, (int[]){ INT_MAX, INT_MAX, INT_MAX }, 3, MLXVK_INT8, stream), "zeros");
    mlxvk_vector_array_free(list);
    DONE(a, long_one, wide, f, flat, words, scales, many);
}

/* ---- groups ---- */

static int open_default(void **state)
{
    (void)state;
    device = open_device(NULL);
    stream = open_stream(device);
    return 0;
}

static int close_all(void **state)
{
    mlxvk_array_free(X);
    X.ctx = NULL;
    return tear_down(state);
}

static int open_small(void **state)
{
    (void)state;
    char gates[64];
    snprintf(gates, sizeof gates, "MLX_VK_MAX_BINDING_RANGE=%d MLX_VK_MAX_GRID=32", SMALL_RANGE);
    device = open_device(gates);
    stream = open_stream(device);
    R = 131;
    C = 401;
    most = 5 * SMALL_RANGE;
    X = table(R, C, MLXVK_INT8);
    return 0;
}

/* Over 2^31 elements, where there is room for several such arrays, and no CPU that would take minutes. */
static int open_large(void **state)
{
    const char *type = "";
    size_t memory = 0;
    open_default(state);
    OK_DEVICE(mlxvk_device_info_get_string(&type, device, "type"), device);
    OK_DEVICE(mlxvk_device_info_get_size(&memory, device, "memory_size"), device);
    OK_DEVICE(mlxvk_device_info_get_size(&most, device, "max_buffer_length"), device);
    if (most > (size_t)UINT32_MAX) most = UINT32_MAX;
    C = 60001;
    R = (int)(OVER / (size_t)C);
    if (memory < ENOUGH || most < OVER + OVER / 8 || !strcmp(type, "cpu")) {
        print_message("%zu MiB of memory, %zu MiB at once, %s: nothing near 2^31 elements is computed here\n", memory >> 20, most >> 20, type);
        return 0;
    }
    X = table(R, C, MLXVK_INT8);
    return 0;
}

/* A test of the large ones, and how long it took. */
#define LARGE(name) static void large_##name(void **state) { run_large(#name, test_##name, state); }
static void run_large(const char *name, void (*test)(void **), void **state)
{
    struct timespec from, to;
    if (!X.ctx) skip();
    clock_gettime(CLOCK_MONOTONIC, &from);
    test(state);
    clock_gettime(CLOCK_MONOTONIC, &to);
    print_message("%s: %.2f s\n", name, (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9);
}
#define TESTS(X)                                                                                                      \
    X(made) X(copies) X(elementwise) X(astype) X(reductions) X(arg_reductions) X(scans) X(long_scan) X(sort) X(take) X(updates)  \
    X(layout) X(largest) X(random) X(rows) X(matmul) X(repeats)
TESTS(LARGE)

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(test_views), cmocka_unit_test(test_reduced_views), cmocka_unit_test(test_refused_results),
        cmocka_unit_test(test_refused_lengths), cmocka_unit_test(test_dimensions),
    };
#define TEST(name) cmocka_unit_test(test_##name),
    const struct CMUnitTest small[] = { TESTS(TEST) cmocka_unit_test(test_families), cmocka_unit_test(test_one_row),
                                        cmocka_unit_test(test_refused_rows) };
#undef TEST
#define TEST(name) cmocka_unit_test(large_##name),
    const struct CMUnitTest large[] = { TESTS(TEST) };
#undef TEST
    int failed = run_group("huge: views", everywhere, open_default, close_all);
    failed += run_group("huge: small, with a short range", small, open_small, close_all);
    return failed + run_group("huge: large", large, open_large, close_all);
}
