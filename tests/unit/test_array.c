/* Arrays: dtypes, views of every kind to 8 dimensions against the host, arrays over buffers, handles, vectors. */
#include "support.h"

#include <limits.h>
#include <math.h>

/* ---- dtypes ---- */

static void test_dtypes(void **state)
{
    (void)state;
    static const char *const names[] = {
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
        "float16", "float32", "float64", "bfloat16", "complex64",
    };
    for (int i = 0; i < MLXVK_DTYPE_COUNT; i++) {
        assert_string_equal(mlxvk_dtype_name((mlxvk_dtype)i), names[i]);
        assert_int_equal(mlxvk_dtype_size((mlxvk_dtype)i), bytes_of((mlxvk_dtype)i));
    }
    assert_string_equal(mlxvk_dtype_name((mlxvk_dtype)99), "?");
    assert_int_equal(mlxvk_dtype_size((mlxvk_dtype)-1), 0);
}

/* Every dtype goes up and comes back unchanged, whatever its bits. */
static void test_round_trip(void **state)
{
    (void)state;
    struct rng r = { 1 };
    for (int dtype = 0; dtype < MLXVK_DTYPE_COUNT; dtype++) {
        unsigned char data[8 * 105], back[8 * 105];
        mlxvk_array a = { NULL };
        size_t bytes = 105 * bytes_of((mlxvk_dtype)dtype);
        if (dtype == MLXVK_FLOAT64) continue;
        for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)random_int(&r, 0, dtype == MLXVK_BOOL ? 1 : 255);
        OK_DEVICE(mlxvk_array_new_data_device(&a, data, (int[]){ 3, 5, 7 }, 3, (mlxvk_dtype)dtype, device), device);
        assert_int_equal(mlxvk_array_nbytes(a), bytes);
        assert_int_equal(mlxvk_array_itemsize(a), bytes_of((mlxvk_dtype)dtype));
        OK(mlxvk_array_read(a, back, bytes, stream), stream);
        assert_memory_equal(back, data, bytes);
        mlxvk_array_free(a);
    }
}

static void test_float64_is_refused(void **state)
{
    (void)state;
    mlxvk_array a = { NULL };
    mlxvk_error error = { 0 };
    double value = 1;
    assert_int_equal(mlxvk_array_new_data_device(&a, &value, NULL, 0, MLXVK_FLOAT64, device), MLXVK_ERROR_DTYPE);
    assert_null(a.ctx);
    mlxvk_device_error(device, &error);
    assert_non_null(strstr(error.text, "float64"));
}

static void test_shape_questions(void **state)
{
    (void)state;
    mlxvk_array a = counting(device, 24), b = { NULL };
    OK(mlxvk_reshape(&b, a, (int[]){ 2, 3, 4 }, 3, stream), stream);
    assert_int_equal(mlxvk_array_ndim(b), 3);
    assert_int_equal(mlxvk_array_size(b), 24);
    assert_int_equal(mlxvk_array_nbytes(b), 96);
    assert_int_equal(mlxvk_array_dim(b, 1), 3);
    assert_int_equal(mlxvk_array_dim(b, -1), 4);
    assert_int_equal(mlxvk_array_dim(b, 3), 0);
    assert_int_equal(mlxvk_array_dim(b, -4), 0);
    assert_int_equal(mlxvk_array_shape(b)[2], 4);
    assert_true(mlxvk_array_is_row_contiguous(b));
    OK(mlxvk_transpose(&b, b, stream), stream);
    OK_DEVICE(mlxvk_array_eval(b), device);
    assert_false(mlxvk_array_is_row_contiguous(b));
    assert_int_equal(mlxvk_array_strides(b)[0], 1);
    assert_int_equal(mlxvk_array_strides(b)[2], 12);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
}

/* ---- scalars, empty arrays, dimensions ---- */

static void test_items(void **state)
{
    (void)state;
    mlxvk_array truth = mlxvk_array_new_bool(true), whole = mlxvk_array_new_int(-5), real = mlxvk_array_new_float(2.5f);
    mlxvk_array same = mlxvk_array_new_float32(2.5f), pair = mlxvk_array_new_complex(1, -2);
    bool b = false;
    int32_t i = 0;
    float f = 0, c[2];
    assert_int_equal(mlxvk_array_item_bool(&b, truth), 0);
    assert_true(b);
    assert_int_equal(mlxvk_array_item_int32(&i, whole), 0);
    assert_int_equal(i, -5);
    assert_int_equal(mlxvk_array_item_float32(&f, real), 0);
    assert_true(f == 2.5f);
    assert_int_equal(mlxvk_array_dtype(same), MLXVK_FLOAT32);
    assert_int_equal(mlxvk_array_ndim(pair), 0);
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    OK(mlxvk_array_read(pair, c, sizeof c, s), s);
    assert_true(c[0] == 1 && c[1] == -2);
    assert_int_not_equal(mlxvk_array_item_float32(&f, whole), 0);     /* the dtype must match */
    assert_true(f == 2.5f);
    const mlxvk_array all[] = { truth, whole, real, same, pair };
    for (size_t n = 0; n < COUNT(all); n++) mlxvk_array_free(all[n]);
    mlxvk_stream_free(s);
}

static void test_item_of_many(void **state)
{
    (void)state;
    int32_t value = 7;
    mlxvk_array a = counting(device, 2);
    assert_int_not_equal(mlxvk_array_item_int32(&value, a), 0);
    assert_int_equal(value, 7);
    mlxvk_array_free(a);
}

static void test_empty(void **state)
{
    (void)state;
    mlxvk_array a = ints(device, NULL, (int[]){ 3, 0, 2 }, 3), b = { NULL }, sum = { NULL };
    char nothing;
    assert_int_equal(mlxvk_array_size(a), 0);
    OK(mlxvk_array_read(a, &nothing, 0, stream), stream);
    OK(mlxvk_negative(&b, a, stream), stream);
    OK(mlxvk_transpose(&b, b, stream), stream);
    OK(mlxvk_add(&b, b, b, stream), stream);
    assert_int_equal(mlxvk_array_dim(b, 0), 2);
    OK(mlxvk_array_read(b, &nothing, 0, stream), stream);
    OK(mlxvk_sum(&sum, a, false, stream), stream);
    expect_ints(sum, (int32_t[]){ 0 }, 1, stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(sum);
}

static void test_most_dimensions(void **state)
{
    (void)state;
    int ones[MLXVK_MAX_NDIM + 1];
    int32_t value = 42;
    mlxvk_array a = { NULL }, b = { NULL };
    for (int i = 0; i <= MLXVK_MAX_NDIM; i++) ones[i] = 1;
    OK_DEVICE(mlxvk_array_new_data_device(&a, &value, ones, MLXVK_MAX_NDIM, MLXVK_INT32, device), device);
    OK(mlxvk_add(&b, a, a, stream), stream);
    expect_ints(b, (int32_t[]){ 84 }, 1, stream);
    assert_int_not_equal(mlxvk_expand_dims(&b, a, 0, stream), 0);
    assert_int_not_equal(mlxvk_reshape(&b, a, ones, MLXVK_MAX_NDIM + 1, stream), 0);
    assert_int_not_equal(mlxvk_broadcast_to(&b, a, ones, MLXVK_MAX_NDIM + 1, stream), 0);
    expect_ints(b, (int32_t[]){ 84 }, 1, stream);
    mlxvk_array_free(b);
    b = mlxvk_array_new();
    assert_int_not_equal(mlxvk_array_new_data_device(&b, &value, ones, MLXVK_MAX_NDIM + 1, MLXVK_INT32, device), 0);
    assert_null(b.ctx);
    mlxvk_array_free(a);
}

/* One number that the host knows is cast as the device casts many: any bits, places halfway between two, what is too
 * large and too small; also as the second of four numbers, and to what it is. */
static void test_literal_casts(void **state)
{
    (void)state;
    enum { COUNT_BITS = 400 };
    static const mlxvk_dtype types[] = { MLXVK_FLOAT16, MLXVK_FLOAT32, MLXVK_BFLOAT16 };
    static const uint32_t edges[] = { 0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x477fefff, 0x477ff000, 0x33000000, 0x33000001,
                                      0x387fe000, 0x38000000, 0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0x3f801000, 0x3f803000 };
    struct rng r = { 5 };
    uint32_t bits[COUNT_BITS];
    for (int i = 0; i < COUNT_BITS; i++)
        bits[i] = i < (int)COUNT(edges) ? edges[i] : ((uint32_t)random_int(&r, 0, 0xffff) << 16 | (uint32_t)random_int(&r, 0, 0xffff));
    for (size_t f = 0; f < COUNT(types); f++)
        for (size_t t = 0; t < COUNT(types); t++) {
            uint32_t want[COUNT_BITS], got[2];
            mlxvk_array many = { 0 }, x = { 0 }, one = { 0 };
            OK_DEVICE(mlxvk_array_new_data_device(&many, bits, (int[]){ COUNT_BITS }, 1, types[f], device), device);
            OK(mlxvk_astype(&many, many, types[t], stream), stream);
            size_t from = bytes_of(types[f]), to = bytes_of(types[t]);
            OK(mlxvk_array_read(many, want, COUNT_BITS * to, stream), stream);
            for (int i = 0; i < COUNT_BITS; i++) {
                const unsigned char *at = (const unsigned char *)bits + from * (size_t)i;
                bool second = i % 2 && i + 3 <= COUNT_BITS;
                OK_DEVICE(mlxvk_array_new_data_device(&x, second ? at - from : at, (int[]){ second ? 4 : 1 }, 1, types[f], device), device);
                if (second) OK(mlxvk_slice(&x, x, (int[]){ 1 }, 1, (int[]){ 2 }, 1, (int[]){ 1 }, 1, stream), stream);
                OK(mlxvk_astype(&one, x, types[t], stream), stream);
                assert_int_equal(mlxvk_array_ndim(one), 1);
                got[0] = 0;
                OK(mlxvk_array_read(one, got, to, stream), stream);
                double a = load_number(types[t], got, 0).re, b = load_number(types[t], want, (size_t)i).re;
                if (a != a && b != b) continue;
                if (memcmp(got, (const char *)want + to * (size_t)i, to))
                    fail_msg("%d to %d: %#x is %g as one number and %g as one of many", types[f], types[t], bits[i], a, b);
            }
            mlxvk_array_free(many);
            mlxvk_array_free(x);
            mlxvk_array_free(one);
        }
}

/* Copies of transposed views, by tiles and element by element, of items of all sizes. CPU drivers take tiles only where a
 * row of the result reads more lines than their caches hold: the last case. */
static void test_transposed_copies(void **state)
{
    (void)state;
    static const struct { int ndim, shape[5], axes[5]; } cases[] = {
        { 2, { 70, 131 }, { 1, 0 } }, { 2, { 8, 200 }, { 1, 0 } }, { 2, { 64, 64 }, { 1, 0 } }, { 3, { 3, 33, 65 }, { 0, 2, 1 } },
        { 3, { 20, 3, 70 }, { 2, 1, 0 } }, { 4, { 2, 9, 3, 66 }, { 2, 0, 3, 1 } }, { 5, { 2, 3, 9, 2, 10 }, { 3, 0, 1, 4, 2 } },
        { 2, { 65601, 65 }, { 1, 0 } } };
    static const mlxvk_dtype dtypes[] = { MLXVK_INT32, MLXVK_UINT8, MLXVK_BFLOAT16, MLXVK_INT64, MLXVK_COMPLEX64 };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            int size = 1, start[5], stop[5], one[5] = { 1, 1, 1, 1, 1 }, cut[5];
            mlxvk_array a = { NULL }, b = { NULL };
            struct host h;
            struct view v = { .ndim = cases[i].ndim };
            for (int k = 0; k < cases[i].ndim; k++) size *= cut[k] = cases[i].shape[k];
            h = host_new(cases[i].shape, cases[i].ndim);
            for (int k = 0; k < size; k++) h.data[k] = k % 251;
            a = host_upload(&h, device);
            OK(mlxvk_astype(&a, a, dtypes[d], stream), stream);
            for (int k = 0; k < cases[i].ndim; k++) { start[k] = d % 2 && cut[k] > 9; stop[k] = cut[k]; }
            OK(mlxvk_slice(&a, a, start, (size_t)v.ndim, stop, (size_t)v.ndim, one, (size_t)v.ndim, stream), stream);
            OK(mlxvk_transpose_axes(&a, a, cases[i].axes, (size_t)v.ndim, stream), stream);
            OK(mlxvk_contiguous(&b, a, false, stream), stream);
            OK(mlxvk_astype(&b, b, MLXVK_INT32, stream), stream);
            for (int k = 0; k < v.ndim; k++) {
                int64_t step = 1;
                int axis = cases[i].axes[k];
                for (int j = axis + 1; j < v.ndim; j++) step *= cases[i].shape[j];
                v.shape[k] = cut[axis] - start[axis];
                v.strides[k] = step;
                v.offset += start[axis] * step;
            }
            host_apply(&h, &v);
            host_expect(&h, b, stream);
            host_free(&h);
            mlxvk_array_free(a);
            mlxvk_array_free(b);
        }
}

static void test_full_casts(void **state)
{
    (void)state;
    mlxvk_array value = floats(device, (float[]){ 3.75f }, NULL, 0), res = { NULL };
    OK(mlxvk_full(&res, (int[]){ 2, 2 }, 2, value, MLXVK_INT32, stream), stream);
    expect_ints(res, (int32_t[]){ 3, 3, 3, 3 }, 4, stream);
    mlxvk_array_free(value);
    mlxvk_array_free(res);
}

/* ---- views ---- */

/* What an operation that is no view makes of a view. */
static void check_consumers(mlxvk_array a, const struct host *h)
{
    struct host twice = host_copy(h);
    mlxvk_array copy = { NULL }, sum = { NULL };
    for (size_t i = 0; i < host_size(h); i++) twice.data[i] = (int32_t)((uint32_t)h->data[i] + (uint32_t)h->data[i]);
    OK(mlxvk_contiguous(&copy, a, false, stream), stream);
    host_expect(h, copy, stream);
    assert_true(mlxvk_array_is_row_contiguous(copy));
    OK(mlxvk_add(&sum, a, copy, stream), stream);
    host_expect(&twice, sum, stream);
    host_free(&twice);
    mlxvk_array_free(copy);
    mlxvk_array_free(sum);
}

static void test_random_views(void **state)
{
    (void)state;
    struct rng r = { 2024 };
    for (int round = 0; round < 150; round++) {
        struct host h = host_random(&r, 6, 600);
        mlxvk_array a = host_upload(&h, device);
        for (int steps = random_int(&r, 1, 6); steps > 0; steps--) random_view(&r, &a, &h, 8, 4000, stream);
        host_expect(&h, a, stream);
        check_consumers(a, &h);
        host_free(&h);
        mlxvk_array_free(a);
    }
}

/* Elements of `size` bytes, told apart by their index, go through the same views. */
static void test_views_of_sizes(void **state)
{
    (void)state;
    static const mlxvk_dtype dtypes[] = { MLXVK_UINT8, MLXVK_INT16, MLXVK_BFLOAT16, MLXVK_INT64, MLXVK_COMPLEX64 };
    struct rng r = { 77 };
    for (int round = 0; round < 60; round++) {
        mlxvk_dtype dtype = dtypes[round % (int)COUNT(dtypes)];
        size_t item = bytes_of(dtype);
        struct host index = host_random(&r, 4, 240);           /* of each element in the base */
        size_t size = host_size(&index);
        unsigned char *base = malloc(size * item + 1), *got;
        mlxvk_array a = { NULL };
        for (size_t i = 0; i < size * item; i++) base[i] = (unsigned char)random_bits(&r);
        for (size_t i = 0; i < size; i++) index.data[i] = (int32_t)i;
        OK_DEVICE(mlxvk_array_new_data_device(&a, base, index.shape, index.ndim, dtype, device), device);
        for (int steps = 0; steps < 4; steps++) random_view(&r, &a, &index, 8, 1000, stream);
        OK(mlxvk_contiguous(&a, a, false, stream), stream);
        size = host_size(&index);
        got = malloc(size * item + 1);
        OK(mlxvk_array_read(a, got, size * item, stream), stream);
        for (size_t i = 0; i < size; i++)
            assert_memory_equal(got + i * item, base + (size_t)index.data[i] * item, item);
        free(got);
        free(base);
        host_free(&index);
        mlxvk_array_free(a);
    }
}

/* Items are where their size says, whatever byte a view of smaller ones begins at. */
static void test_views_from_odd_bytes(void **state)
{
    (void)state;
    static const mlxvk_dtype dtypes[] = { MLXVK_INT16, MLXVK_INT32, MLXVK_INT64 };
    unsigned char bytes[72], got[64];
    for (int i = 0; i < 72; i++) bytes[i] = (unsigned char)(3 * i);
    for (int first = 1; first <= 8; first++) {
        for (int i = 0; i < 3; i++) {
            mlxvk_array a = { NULL }, twice = { NULL };
            OK_DEVICE(mlxvk_array_new_data_device(&a, bytes, (int[]){ 72 }, 1, MLXVK_UINT8, device), device);
            OK(mlxvk_slice(&a, a, &first, 1, (int[]){ first + 64 }, 1, (int[]){ 1 }, 1, stream), stream);
            OK(mlxvk_view(&a, a, dtypes[i], stream), stream);
            OK(mlxvk_maximum(&twice, a, a, stream), stream);
            OK(mlxvk_array_read(twice, got, 64, stream), stream);
            assert_memory_equal(got, bytes + first, 64);
            mlxvk_array_free(a);
            mlxvk_array_free(twice);
        }
    }
}

/* Views of a view share its memory: a kernel runs only where memory must move. */
static void test_views_are_views(void **state)
{
    (void)state;
    mlxvk_array a = counting(device, 60), v = { NULL };
    OK(mlxvk_array_eval(a), stream);
    uint64_t before = stats_of(device).dispatches;
    OK(mlxvk_reshape(&v, a, (int[]){ 3, 4, 5 }, 3, stream), stream);
    OK(mlxvk_transpose_axes(&v, v, (int[]){ 2, 0, 1 }, 3, stream), stream);
    OK(mlxvk_slice(&v, v, (int[]){ 4, 0, 0 }, 3, (int[]){ -6, 3, 4 }, 3, (int[]){ -2, 1, 3 }, 3, stream), stream);
    OK(mlxvk_expand_dims(&v, v, 0, stream), stream);
    OK(mlxvk_broadcast_to(&v, v, (int[]){ 2, 3, 3, 2 }, 4, stream), stream);
    OK(mlxvk_array_eval(v), stream);
    assert_int_equal(stats_of(device).dispatches, before);
    mlxvk_buffer one = { NULL }, other = { NULL };
    size_t offset = 0;
    OK(mlxvk_array_buffer(&one, &offset, a), stream);
    size_t start = offset;
    OK(mlxvk_array_buffer(&other, &offset, v), stream);
    assert_int_equal(offset - start, 4 * 4);
    assert_ptr_equal(mlxvk_buffer_data(one), mlxvk_buffer_data(other));
    mlxvk_buffer_free(one);
    mlxvk_buffer_free(other);
    mlxvk_array_free(a);
    mlxvk_array_free(v);
}

/* ---- arrays over buffers ---- */

static void fill_buffer(mlxvk_buffer buffer, int count)
{
    mlxvk_array a = { NULL }, from = counting(device, count);
    OK_DEVICE(mlxvk_array_new_buffer(&a, buffer, &count, NULL, 1, MLXVK_INT32, 0), device);
    OK(mlxvk_slice_update(&a, a, from, (int[]){ 0 }, 1, &count, 1, (int[]){ 1 }, 1, stream), stream);
    OK_DEVICE(eval_one(a), device);
    mlxvk_array_free(a);
    mlxvk_array_free(from);
}

static void test_over_buffers(void **state)
{
    (void)state;
    enum { N = 400 };
    struct rng r = { 5 };
    mlxvk_buffer buffer = { NULL };
    OK_DEVICE(mlxvk_buffer_new(&buffer, N * 4, device), device);
    assert_true(mlxvk_buffer_size(buffer) >= N * 4);
    fill_buffer(buffer, N);
    struct host base = host_new((int[]){ N }, 1);
    for (int i = 0; i < N; i++) base.data[i] = i;
    for (int round = 0; round < 60; round++) {
        struct view v = { .ndim = random_int(&r, 0, 5) };
        int64_t low = 0, high = 0;
        for (int i = 0; i < v.ndim; i++) {
            v.shape[i] = random_int(&r, 1, 4);
            v.strides[i] = random_int(&r, -20, 20);
            *(v.strides[i] < 0 ? &low : &high) += v.strides[i] * (v.shape[i] - 1);
        }
        if (high - low >= N) continue;
        v.offset = random_int(&r, (int)-low, (int)(N - 1 - high));
        struct host h = host_copy(&base);
        host_apply(&h, &v);
        mlxvk_array a = { NULL };
        OK_DEVICE(mlxvk_array_new_buffer(&a, buffer, v.shape, v.strides, v.ndim, MLXVK_INT32, (size_t)v.offset * 4),
                  device);
        host_expect(&h, a, stream);
        check_consumers(a, &h);
        mlxvk_array_free(a);
        host_free(&h);
    }
    host_free(&base);
    mlxvk_buffer_free(buffer);
}

/* An array holds its buffer. */
static void test_buffer_lives(void **state)
{
    (void)state;
    mlxvk_buffer buffer = { NULL };
    mlxvk_array a = { NULL };
    int32_t want[64];
    OK_DEVICE(mlxvk_buffer_new(&buffer, 256, device), device);
    fill_buffer(buffer, 64);
    OK_DEVICE(mlxvk_array_new_buffer(&a, buffer, (int[]){ 64 }, NULL, 1, MLXVK_INT32, 0), device);
    mlxvk_buffer_free(buffer);
    for (int i = 0; i < 64; i++) want[i] = i;
    expect_ints(a, want, 64, stream);
    mlxvk_array_free(a);
}

static void test_outside_buffers(void **state)
{
    (void)state;
    static const struct { int shape[2]; int64_t strides[2]; size_t offset; } bad[] = {
        { { 4, 65 }, { 64, 1 }, 0 },                           /* 256 elements and one more */
        { { 4, 64 }, { 64, 1 }, 4 },
        { { 4, 64 }, { -64, 1 }, 0 },                          /* before the first */
        { { 2, 2 }, { 1, 1 }, 2000 },
        { { 2, 2 }, { INT64_MAX / 2, 1 }, 0 },
        { { 2, 2 }, { 1, 1 }, 2 },                             /* not a multiple of the element's size */
        { { 2, 2 }, { 1, 1 }, SIZE_MAX - 3 },
        { { -1, 2 }, { 1, 1 }, 0 },
        { { 0, 2 }, { INT64_MIN, 1 }, 0 },                     /* the same of no elements */
        { { 0, 0 }, { INT64_MAX, INT64_MAX }, 0 },
    };
    mlxvk_buffer buffer = { NULL };
    mlxvk_array base = counting(device, 256);
    size_t made = 0;
    OK_DEVICE(mlxvk_buffer_new(&buffer, 1024, device), device);
    assert_int_equal(mlxvk_buffer_size(buffer), 1024);
    for (size_t i = 0; i < COUNT(bad); i++) {
        mlxvk_array a = { NULL };
        mlxvk_error error = { 0 };
        int code = mlxvk_array_new_buffer(&a, buffer, bad[i].shape, bad[i].strides, 2, MLXVK_INT32, bad[i].offset);
        if (!code) print_error("bad array %zu was made\n", i);
        made += !code;
        mlxvk_device_error(device, &error);
        if (code) assert_null(a.ctx);
        if (code) assert_int_equal(error.code, code);
        if (bad[i].offset % 4) continue;
        made += !mlxvk_array_new_view(&a, base, bad[i].shape, bad[i].strides, 2, MLXVK_INT32, bad[i].offset);
        made += !mlxvk_as_strided(&a, base, bad[i].shape, 2, bad[i].strides, 2, bad[i].offset / 4, stream);
    }
    assert_int_equal(made, 0);
    mlxvk_array_free(base);
    mlxvk_buffer_free(buffer);
}

/* Arrays over one buffer: an update that is read there, backwards, is not written in the middle of that, whether it goes
 * by as it is, or by what is computed of it in the same kernel. */
static void test_over_one_buffer(void **state)
{
    (void)state;
    enum { N = 3001 };
    static float values[N], got[2][N];
    const int n = N;
    const int64_t back = -1;
    for (int i = 0; i < N; i++) values[i] = (float)(i % 17 - 8);
    for (int silu = 0; silu < 2; silu++) {
        mlxvk_buffer buffer = { NULL };
        mlxvk_array given = floats(device, values, &n, 1), a = { NULL }, b = { NULL }, y = { NULL };
        OK_DEVICE(mlxvk_buffer_new(&buffer, sizeof values, device), device);
        OK_DEVICE(mlxvk_array_new_buffer(&a, buffer, &n, NULL, 1, MLXVK_FLOAT32, 0), device);
        OK_DEVICE(mlxvk_array_new_buffer(&b, buffer, &n, &back, 1, MLXVK_FLOAT32, 4 * (N - 1)), device);
        OK(mlxvk_slice_update(&a, a, given, (int[]){ 0 }, 1, &n, 1, (int[]){ 1 }, 1, stream), stream);
        assert_int_equal(eval_one(a), 0);
        if (silu) {
            OK(mlxvk_sigmoid(&y, b, stream), stream);
            OK(mlxvk_multiply(&y, y, b, stream), stream);
            OK(mlxvk_slice_update_prod(&a, a, y, (int[]){ 0 }, 1, &n, 1, (int[]){ 1 }, 1, stream), stream);
        } else OK(mlxvk_slice_update(&a, a, b, (int[]){ 0 }, 1, &n, 1, (int[]){ 1 }, 1, stream), stream);
        mlxvk_array_free(y);
        OK(mlxvk_array_read(a, got[silu], sizeof values, stream), stream);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
        mlxvk_array_free(given);
        mlxvk_buffer_free(buffer);
    }
    for (int i = 0; i < N; i++) {
        float x = values[N - 1 - i];
        assert_true(got[0][i] == x);
        assert_true(fabsf(got[1][i] - values[i] * x / (1 + expf(-x))) <= 1e-4f * (1 + fabsf(got[1][i])));
    }
}

/* The same program again and again, while there are two arrays over each of two buffers: what is multiplied lies over the other
 * buffer at first, then over the one that is written. A kept window must not be taken for it. */
static void test_over_other_buffers(void **state)
{
    (void)state;
    enum { N = 3001 };
    static float values[N], got[N];
    const int n = N;
    const int64_t back = -1;
    for (int i = 0; i < N; i++) values[i] = (float)(i % 17 - 8);
    for (int round = 0; round < 6; round++) {
        mlxvk_buffer memory[2] = { { NULL }, { NULL } };
        mlxvk_array given = floats(device, values, &n, 1), a[2] = { { NULL }, { NULL } }, other[2] = { { NULL }, { NULL } };
        mlxvk_array b = { NULL }, y = { NULL };
        for (int i = 0; i < 2; i++) {
            OK_DEVICE(mlxvk_buffer_new(&memory[i], sizeof values, device), device);
            OK_DEVICE(mlxvk_array_new_buffer(&a[i], memory[i], &n, NULL, 1, MLXVK_FLOAT32, 0), device);
            OK(mlxvk_slice_update(&a[i], a[i], given, (int[]){ 0 }, 1, &n, 1, (int[]){ 1 }, 1, stream), stream);
            assert_int_equal(eval_one(a[i]), 0);
            OK_DEVICE(mlxvk_array_new_buffer(&other[i], memory[i], &n, NULL, 1, MLXVK_FLOAT32, 0), device);
        }
        OK_DEVICE(mlxvk_array_new_buffer(&b, memory[round < 4], &n, &back, 1, MLXVK_FLOAT32, 4 * (N - 1)), device);
        OK(mlxvk_sigmoid(&y, b, stream), stream);
        OK(mlxvk_multiply(&y, y, b, stream), stream);
        OK(mlxvk_slice_update_prod(&a[0], a[0], y, (int[]){ 0 }, 1, &n, 1, (int[]){ 1 }, 1, stream), stream);
        mlxvk_array_free(y);
        OK(mlxvk_array_read(a[0], got, sizeof values, stream), stream);
        for (int i = 0; i < N; i++) {
            float x = values[N - 1 - i];
            if (!(fabsf(got[i] - values[i] * x / (1 + expf(-x))) <= 1e-4f * (1 + fabsf(got[i]))))
                fail_msg("round %d, element %d: %g", round, i, (double)got[i]);
        }
        for (int i = 0; i < 2; i++) {
            mlxvk_array_free(a[i]);
            mlxvk_array_free(other[i]);
            mlxvk_buffer_free(memory[i]);
        }
        mlxvk_array_free(b);
        mlxvk_array_free(given);
    }
}

/* A slice without elements of an axis whose stride counts nothing: a long step must not overflow it. */
static void test_empty_steps(void **state)
{
    (void)state;
    const int64_t far = (int64_t)1 << 50;
    mlxvk_array a = counting(device, 8), none = { NULL };
    OK(mlxvk_as_strided(&a, a, (int[]){ 1 }, 1, &far, 1, 3, stream), stream);
    OK(mlxvk_slice(&none, a, (int[]){ 1 }, 1, (int[]){ 1 }, 1, (int[]){ INT_MAX }, 1, stream), stream);
    assert_int_equal(mlxvk_array_size(none), 0);
    assert_true(mlxvk_array_strides(none)[0] == far);
    OK(mlxvk_slice(&a, a, (int[]){ 0 }, 1, (int[]){ 1 }, 1, (int[]){ INT_MAX }, 1, stream), stream);
    expect_ints(a, (int32_t[]){ 3 }, 1, stream);
    mlxvk_array_free(a);
    mlxvk_array_free(none);
}

/* ---- handles and vectors ---- */

static void test_set(void **state)
{
    (void)state;
    mlxvk_array a = counting(device, 4), b = counting(device, 2), third = { NULL };
    assert_int_equal(mlxvk_array_set(&b, a), 0);
    assert_int_equal(mlxvk_array_set(&third, b), 0);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    expect_ints(third, (int32_t[]){ 0, 1, 2, 3 }, 4, stream);
    assert_int_equal(mlxvk_array_set(&third, third), 0);
    expect_ints(third, (int32_t[]){ 0, 1, 2, 3 }, 4, stream);
    mlxvk_array_free(third);
    assert_int_equal(mlxvk_array_free((mlxvk_array){ NULL }), 0);
}

static void test_vectors(void **state)
{
    (void)state;
    mlxvk_array a = counting(device, 1), b = counting(device, 2), got = { NULL };
    mlxvk_vector_array v = mlxvk_vector_array_new_data((mlxvk_array[]){ a, b }, 2);
    assert_int_equal(mlxvk_vector_array_size(v), 2);
    assert_int_equal(mlxvk_vector_array_append_value(v, a), 0);
    assert_int_equal(mlxvk_vector_array_append_data(v, (mlxvk_array[]){ b, b }, 2), 0);
    assert_int_equal(mlxvk_vector_array_size(v), 5);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    assert_int_equal(mlxvk_vector_array_get(&got, v, 4), 0);
    expect_ints(got, (int32_t[]){ 0, 1 }, 2, stream);
    assert_int_not_equal(mlxvk_vector_array_get(&got, v, 5), 0);
    expect_ints(got, (int32_t[]){ 0, 1 }, 2, stream);
    assert_int_equal(mlxvk_vector_array_set_data(&v, &got, 1), 0);
    assert_int_equal(mlxvk_vector_array_size(v), 1);
    mlxvk_vector_array_free(v);
    expect_ints(got, (int32_t[]){ 0, 1 }, 2, stream);
    mlxvk_array_free(got);
    assert_int_equal(mlxvk_vector_array_free((mlxvk_vector_array){ NULL }), 0);
}

static void test_read_size(void **state)
{
    (void)state;
    int32_t data[4] = { 9, 9, 9, 9 };
    mlxvk_array a = counting(device, 3);
    assert_int_not_equal(mlxvk_array_read(a, data, 8, stream), 0);
    assert_int_not_equal(mlxvk_array_read(a, data, 16, stream), 0);
    assert_int_not_equal(mlxvk_array_read(a, NULL, 12, stream), 0);
    assert_int_equal(data[0], 9);
    OK(mlxvk_array_read(a, data, 12, stream), stream);
    assert_int_equal(data[2], 2);
    assert_int_equal(data[3], 9);
    mlxvk_array_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes), cmocka_unit_test(test_round_trip), cmocka_unit_test(test_float64_is_refused),
        cmocka_unit_test(test_shape_questions), cmocka_unit_test(test_items), cmocka_unit_test(test_item_of_many),
        cmocka_unit_test(test_empty), cmocka_unit_test(test_most_dimensions), cmocka_unit_test(test_full_casts),
        cmocka_unit_test(test_literal_casts), cmocka_unit_test(test_transposed_copies),
        cmocka_unit_test(test_random_views),
        cmocka_unit_test(test_views_of_sizes), cmocka_unit_test(test_views_from_odd_bytes), cmocka_unit_test(test_views_are_views),
        cmocka_unit_test(test_over_buffers), cmocka_unit_test(test_buffer_lives),
        cmocka_unit_test(test_over_one_buffer), cmocka_unit_test(test_over_other_buffers), cmocka_unit_test(test_empty_steps),
        cmocka_unit_test(test_outside_buffers), cmocka_unit_test(test_set), cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_read_size),
    };
    return run_group("array", tests, set_up, tear_down);
}
