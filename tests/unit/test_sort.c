/* Sorts of every dtype and of lengths around each kernel's limits against a stable sort on the host; long rows by merges
 * and by radix. */
#include "support.h"

#include <math.h>
#include <stdio.h>

enum { LONGEST = 40000 };

static const mlxvk_dtype all_dtypes[] = {
    MLXVK_BOOL, MLXVK_UINT8, MLXVK_UINT16, MLXVK_UINT32, MLXVK_UINT64, MLXVK_INT8, MLXVK_INT16, MLXVK_INT32, MLXVK_INT64,
    MLXVK_FLOAT16, MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_COMPLEX64,
};

static struct { mlxvk_dtype dtype; const unsigned char *bytes; } row;      /* what qsort's comparison looks at */

static int compare_words(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int compare(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    struct number x, y;
    int order = 0;
    if (row.dtype == MLXVK_UINT64 || row.dtype == MLXVK_INT64) {
        uint64_t v, w, flip = row.dtype == MLXVK_INT64 ? (uint64_t)1 << 63 : 0;
        memcpy(&v, row.bytes + 8 * (size_t)i, 8);
        memcpy(&w, row.bytes + 8 * (size_t)j, 8);
        order = compare_words(v ^ flip, w ^ flip);
        return order ? order : compare_words(i, j);
    }
    x = load_number(row.dtype, row.bytes, i);
    y = load_number(row.dtype, row.bytes, j);
    bool nan_x = isnan(x.re) || isnan(x.im), nan_y = isnan(y.re) || isnan(y.im);
    if (nan_x || nan_y) order = nan_x - nan_y;
    else if (x.re != y.re) order = x.re < y.re ? -1 : 1;
    else if (x.im != y.im) order = x.im < y.im ? -1 : 1;
    return order ? order : compare_words(i, j);
}

/* Few different values: ties, both zeros, NaN, infinities; or any bits. */
static void fill(struct rng *r, mlxvk_dtype dtype, unsigned char *bytes, size_t count)
{
    static const double special[] = { 0, -0.0, NAN, INFINITY, -INFINITY, 1, -1, 2.5 };
    size_t size = mlxvk_dtype_size(dtype);
    bool few = random_chance(r, 50), floating = dtype == MLXVK_FLOAT16 || dtype == MLXVK_FLOAT32 || dtype == MLXVK_BFLOAT16;
    for (size_t i = 0; i < count; i++) {
        if (few && floating) store_number(dtype, bytes, i, special[random_int(r, 0, (int)COUNT(special) - 1)]);
        else if (few && dtype == MLXVK_COMPLEX64)
            for (size_t k = 0; k < 2; k++) store_number(MLXVK_FLOAT32, bytes, 2 * i + k, special[random_int(r, 0, (int)COUNT(special) - 1)]);
        else
            for (size_t k = 0; k < size; k++)
                bytes[i * size + k] = dtype == MLXVK_BOOL ? random_bits(r) & 1 : few && k != size - 1 ? 0 : (unsigned char)random_bits(r);
    }
}

static void expect_sorted(mlxvk_device device, mlxvk_stream stream, struct rng *r, mlxvk_dtype dtype, int rows, int length)
{
    size_t count = (size_t)rows * (size_t)length, size = mlxvk_dtype_size(dtype);
    unsigned char *data = malloc(count * size), *sorted = malloc(count * size);
    uint32_t *places = malloc(count * sizeof *places), *want = malloc((size_t)length * sizeof *want);
    mlxvk_array a = { NULL }, res = { NULL };
    assert_true(data && sorted && places && want);
    fill(r, dtype, data, count);
    OK(mlxvk_array_new_data_device(&a, data, (int[]){ rows, length }, 2, dtype, device), stream);
    OK(mlxvk_argsort_axis(&res, a, -1, stream), stream);
    OK(mlxvk_array_read(res, places, count * sizeof *places, stream), stream);
    OK(mlxvk_sort_axis(&res, a, 1, stream), stream);
    OK(mlxvk_array_read(res, sorted, count * size, stream), stream);
    for (size_t first = 0; first < count; first += (size_t)length) {
        row.dtype = dtype;
        row.bytes = data + first * size;
        for (int i = 0; i < length; i++) want[i] = (uint32_t)i;
        qsort(want, (size_t)length, sizeof *want, compare);
        for (size_t i = 0; i < (size_t)length; i++) {
            struct number got = load_number(dtype, sorted, first + i), value = load_number(dtype, row.bytes, want[i]);
            bool same = got.re == value.re && got.im == value.im;
            if (isnan(value.re) || isnan(value.im)) same = isnan(got.re) || isnan(got.im);
            if (places[first + i] != want[i] || !same)
                fail_msg("%s (%d, %d): element %zu of row %zu: position %u, not %u", mlxvk_dtype_name(dtype), rows, length, i,
                         first / (size_t)length, places[first + i], want[i]);
        }
    }
    mlxvk_array_free(a);
    mlxvk_array_free(res);
    free(data);
    free(sorted);
    free(places);
    free(want);
}

static void every_dtype(void **state)
{
    static const int shapes[][2] = { { 1, 1 }, { 5, 3 }, { 300, 16 }, { 7, 100 }, { 3, 1025 }, { 1, 2049 }, { 2, 4097 }, { 2, 9000 } };
    mlxvk_device device = open_device(NULL);
    mlxvk_stream stream = open_stream(device);
    struct rng r = { 1 };
    (void)state;
    for (size_t d = 0; d < COUNT(all_dtypes); d++)
        for (size_t i = 0; i < COUNT(shapes); i++) expect_sorted(device, stream, &r, all_dtypes[d], shapes[i][0], shapes[i][1]);
    mlxvk_stream_free(stream);
    mlxvk_device_free(device);
}

static void long_rows(const char *gates)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_UINT8, MLXVK_BFLOAT16, MLXVK_FLOAT32, MLXVK_INT64 };
    mlxvk_device device = open_device(gates);
    mlxvk_stream stream = open_stream(device);
    struct rng r = { 2 };
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        expect_sorted(device, stream, &r, dtypes[d], 3, 5001);
        expect_sorted(device, stream, &r, dtypes[d], 3, 6144);                 /* whole tiles, whatever one has: */
        expect_sorted(device, stream, &r, dtypes[d], 2, 1792 * 4);             /* 256 times 8, 7 where positions leave less room */
        expect_sorted(device, stream, &r, dtypes[d], 1, LONGEST);
    }
    mlxvk_stream_free(stream);
    mlxvk_device_free(device);
}

static void by_merges(void **state) { (void)state; long_rows("MLX_VK_ENABLE_RADIX_SORT=0"); }
static void by_radix(void **state) { (void)state; long_rows("MLX_VK_ENABLE_RADIX_SORT=2"); }

/* More tiles than the last step of a radix pass sums up by itself. */
static void by_radix_with_sums(void **state)
{
    mlxvk_device device = open_device("MLX_VK_ENABLE_RADIX_SORT=2");
    mlxvk_stream stream = open_stream(device);
    struct rng r = { 3 };
    (void)state;
    expect_sorted(device, stream, &r, MLXVK_INT16, 1, 210000);
    expect_sorted(device, stream, &r, MLXVK_UINT8, 1, (1 << 20) + 77);         /* by the larger tiles */
    mlxvk_stream_free(stream);
    mlxvk_device_free(device);
}

/* Any axis of any view; what is not last in memory comes back as a view. */
static void axes_and_views(void **state)
{
    mlxvk_device device = open_device(NULL);
    mlxvk_stream stream = open_stream(device);
    mlxvk_array a = ints(device, (int32_t[]){ 3, 1, 2, 9, 7, 8, 6, 4, 5 }, (int[]){ 3, 3 }, 2), b = { NULL }, res = { NULL };
    (void)state;
    OK(mlxvk_sort_axis(&res, a, 0, stream), stream);
    expect_ints(res, (int32_t[]){ 3, 1, 2, 6, 4, 5, 9, 7, 8 }, 9, stream);
    OK(mlxvk_transpose(&b, a, stream), stream);
    OK(mlxvk_sort_axis(&res, b, -1, stream), stream);
    expect_ints(res, (int32_t[]){ 3, 6, 9, 1, 4, 7, 2, 5, 8 }, 9, stream);
    OK(mlxvk_sort(&res, b, stream), stream);
    expect_ints(res, (int32_t[]){ 1, 2, 3, 4, 5, 6, 7, 8, 9 }, 9, stream);
    OK(mlxvk_slice(&b, a, (int[]){ 2, 2 }, 2, (int[]){ -4, -4 }, 2, (int[]){ -1, -1 }, 2, stream), stream);
    OK(mlxvk_topk_axis(&res, b, 1, 1, stream), stream);
    expect_ints(res, (int32_t[]){ 6, 9, 3 }, 3, stream);
    OK(mlxvk_topk(&res, a, 9, stream), stream);
    OK(mlxvk_topk(&res, a, 0, stream), stream);
    assert_int_equal(mlxvk_array_size(res), 0);
    REFUSED(mlxvk_topk(&res, a, 10, stream), MLXVK_ERROR_ARGUMENT, stream, "topk");
    REFUSED(mlxvk_partition_axis(&res, a, -4, 0, stream), MLXVK_ERROR_ARGUMENT, stream, "partition_axis");
    REFUSED(mlxvk_sort_axis(&res, a, 2, stream), MLXVK_ERROR_AXIS, stream, "sort_axis");
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(res);
    mlxvk_stream_free(stream);
    mlxvk_device_free(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype),
        cmocka_unit_test(by_merges),
        cmocka_unit_test(by_radix),
        cmocka_unit_test(by_radix_with_sums),
        cmocka_unit_test(axes_and_views),
    };
    return run_group("sort", tests, NULL, NULL);
}
