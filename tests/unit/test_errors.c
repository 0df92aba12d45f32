/* Errors: codes and texts, nothing changed by a refused call; an allocator that fails; a driver that fails. */
#include "support_vulkan.h"

#include <stdio.h>

static mlxvk_array a23, b34, i4, c2;                           /* named by shape; float32, float32, int32, complex64 */

static const float values[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };

static int set_up_arrays(void **state)
{
    set_up(state);
    a23 = floats(device, values, (int[]){ 2, 3 }, 2);
    b34 = floats(device, values, (int[]){ 3, 4 }, 2);
    i4 = counting(device, 4);
    OK_DEVICE(mlxvk_array_new_data_device(&c2, values, (int[]){ 2 }, 1, MLXVK_COMPLEX64, device), device);
    return 0;
}

static void expect_unchanged(void)
{
    float pairs[4];
    expect_floats(a23, values, 6, 0, 0, stream);
    expect_floats(b34, values, 12, 0, 0, stream);
    expect_ints(i4, (int32_t[]){ 0, 1, 2, 3 }, 4, stream);
    OK(mlxvk_array_read(c2, pairs, sizeof pairs, stream), stream);
    assert_memory_equal(pairs, values, sizeof pairs);
}

static int tear_down_arrays(void **state)
{
    expect_unchanged();
    const mlxvk_array all[] = { a23, b34, i4, c2 };
    for (size_t i = 0; i < COUNT(all); i++) mlxvk_array_free(all[i]);
    return tear_down(state);
}

/* ---- no device ---- */

static int noted;

static void note_text(const char *text, void *last)
{
    snprintf(last, 200, "%.199s", text);
    noted++;
}

/* Calls that want the default device where there is none: who asks, and the handler, are told why. Before the program
 * has one; then it gets it. */
static void test_no_default(void **state)
{
    (void)state;
    const mlxvk_device none = { NULL };
    char told[200] = "";
    const char *name = NULL;
    mlxvk_error error = { 0 };
    mlxvk_event event = { NULL };
    mlxvk_buffer buffer = { NULL };
    mlxvk_device_info info = { NULL };
    size_t size = 0;
    mlxvk_stats stats;
    hide_drivers();
    mlxvk_set_error_handler(note_text, told, NULL);
    const char early = *told;
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    const int asked = mlxvk_device_error(none, &error);
    mlxvk_error of_stream = { 0 };
    const int asked_stream = mlxvk_stream_error(s, &of_stream);
    const int told_times = noted;                    /* who asks for an error makes none */
    const int codes[] = { mlxvk_event_new(&event, none), mlxvk_buffer_new(&buffer, 4, none), mlxvk_device_info_get(&info, none),
                          mlxvk_device_info_get_string(&name, none, "device_name"), mlxvk_get_stats(&stats, none),
                          mlxvk_pipeline_cache_data(none, NULL, &size), mlxvk_get_active_memory(&size), mlxvk_synchronize(s) };
    const int wrong = mlxvk_event_new(NULL, none);
    mlxvk_set_error_handler(NULL, NULL, NULL);
    show_drivers();
    assert_null(s.ctx);
    assert_int_equal(early, 0);
    assert_int_equal(asked, 0);
    assert_int_equal(asked_stream, 0);
    assert_int_equal(told_times, 1);
    assert_string_equal(of_stream.text, error.text);
    assert_int_equal(error.code, MLXVK_ERROR_NO_DEVICE);
    assert_non_null(strstr(error.text, "install"));
    assert_non_null(strstr(told, "install"));
    for (size_t i = 0; i < COUNT(codes); i++)
        if (codes[i] != MLXVK_ERROR_NO_DEVICE) fail_msg("call %zu: code %d", i, codes[i]);
    assert_int_equal(wrong, MLXVK_ERROR_ARGUMENT);
    count_instance();
    s = mlxvk_default_gpu_stream_new();
    assert_non_null(s.ctx);
    mlxvk_stream_free(s);
    assert_int_equal(mlxvk_device_error(none, &error), 0);
    assert_int_equal(error.code, 0);
    s.ctx = NULL;                                    /* it is what { NULL } stands for, in calls and of errors */
    mlxvk_array res = { NULL };
    REFUSED(mlxvk_zeros(&res, (int[]){ -1 }, 1, MLXVK_INT32, s), MLXVK_ERROR_SHAPE, s, "zeros", "-1");
}

/* ---- texts ---- */

static void test_result_texts(void **state)
{
    (void)state;
    for (int code = 0; code < MLXVK_RESULT_COUNT; code++) {
        assert_true(mlxvk_result_text(code)[0]);
        for (int other = 0; other < code; other++)
            assert_string_not_equal(mlxvk_result_text(code), mlxvk_result_text(other));
    }
    assert_non_null(mlxvk_result_text(-1));
    assert_non_null(mlxvk_result_text(1000));
}

/* What a refused call must leave alone. */
static mlxvk_array kept(void)
{
    mlxvk_array array = { NULL };
    assert_int_equal(mlxvk_array_set(&array, i4), 0);
    return array;
}

#define REFUSED_HERE(call, code, ...)                                                                                 \
    do {                                                                                                              \
        mlxvk_array res = kept();                                                                                     \
        REFUSED(call, code, stream, __VA_ARGS__);                                                                     \
        assert_ptr_equal(res.ctx, i4.ctx);                                                                            \
        mlxvk_array_free(res);                                                                                        \
    } while (0)

static void test_shapes(void **state)
{
    (void)state;
    REFUSED_HERE(mlxvk_add(&res, a23, b34, stream), MLXVK_ERROR_SHAPE, "add", "(2, 3)", "(3, 4)", "float32");
    REFUSED_HERE(mlxvk_where(&res, a23, b34, a23, stream), MLXVK_ERROR_SHAPE, "where", "(2, 3)", "(3, 4)");
    REFUSED_HERE(mlxvk_reshape(&res, a23, (int[]){ 4, 2 }, 2, stream), MLXVK_ERROR_SHAPE, "reshape", "(2, 3)");
    REFUSED_HERE(mlxvk_reshape(&res, a23, (int[]){ -1, -1 }, 2, stream), MLXVK_ERROR_SHAPE, "reshape");
    REFUSED_HERE(mlxvk_reshape(&res, a23, (int[]){ -1, 4 }, 2, stream), MLXVK_ERROR_SHAPE, "reshape");
    REFUSED_HERE(mlxvk_broadcast_to(&res, a23, (int[]){ 2, 4 }, 2, stream), MLXVK_ERROR_SHAPE, "broadcast_to",
                 "(2, 3)");
    REFUSED_HERE(mlxvk_broadcast_to(&res, a23, (int[]){ 3 }, 1, stream), MLXVK_ERROR_SHAPE, "broadcast_to");
    REFUSED_HERE(mlxvk_zeros(&res, (int[]){ 2, -1 }, 2, MLXVK_INT32, stream), MLXVK_ERROR_SHAPE, "zeros", "-1");
    const int huge[] = { 1 << 30, 1 << 30, 1 << 30 };
    const int huge_but_empty[] = { 0, 1 << 30, 1 << 30, 1 << 30 };
    REFUSED_HERE(mlxvk_zeros(&res, huge, 3, MLXVK_INT32, stream), MLXVK_ERROR_LIMIT, "zeros");
    REFUSED_HERE(mlxvk_zeros(&res, huge_but_empty, 4, MLXVK_INT32, stream), MLXVK_ERROR_LIMIT, "zeros");
    REFUSED_HERE(mlxvk_broadcast_to(&res, a23, huge_but_empty, 4, stream), MLXVK_ERROR_LIMIT, "broadcast_to");
    REFUSED_HERE(mlxvk_slice_update(&res, a23, b34, (int[]){ 0, 0 }, 2, (int[]){ 2, 2 }, 2, (int[]){ 1, 1 }, 2, stream),
                 MLXVK_ERROR_SHAPE, "slice_update", "(3, 4)");
}

static void test_shapes_of_lists(void **state)
{
    (void)state;
    mlxvk_vector_array list = mlxvk_vector_array_new_data((mlxvk_array[]){ a23, b34 }, 2);
    mlxvk_vector_array empty = mlxvk_vector_array_new();
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    REFUSED_HERE(mlxvk_concatenate(&res, list, stream), MLXVK_ERROR_SHAPE, "concatenate", "(2, 3)", "(3, 4)");
    REFUSED_HERE(mlxvk_stack(&res, list, stream), MLXVK_ERROR_SHAPE, "stack");
    REFUSED(mlxvk_split(&parts, a23, 2, 1, stream), MLXVK_ERROR_SHAPE, stream, "split", "(2, 3)");
    assert_int_equal(mlxvk_vector_array_size(parts), 0);
    mlxvk_array res = kept();
    assert_int_not_equal(mlxvk_concatenate(&res, empty, stream), 0);
    assert_ptr_equal(res.ctx, i4.ctx);
    mlxvk_array_free(res);
    mlxvk_vector_array_free(list);
    mlxvk_vector_array_free(empty);
    mlxvk_vector_array_free(parts);
}

/* One zero seen as a long row. */
static mlxvk_array long_row(int length, mlxvk_dtype dtype)
{
    mlxvk_array a = mlxvk_array_new();
    OK(mlxvk_zeros(&a, NULL, 0, dtype, stream), stream);
    OK(mlxvk_broadcast_to(&a, a, (int[]){ 1, length }, 2, stream), stream);
    return a;
}

/* Lengths that only views have: what is computed of them must not overflow. */
static void test_long_views(void **state)
{
    enum { HALF = (1 << 30) + 1, MOST = INT32_MAX - 15 };
    mlxvk_array half = long_row(HALF, MLXVK_COMPLEX64), x = long_row(MOST, MLXVK_FLOAT32), w = long_row(MOST / 8, MLXVK_UINT32);
    mlxvk_array scales = long_row(MOST / 16, MLXVK_UINT8), none = { NULL };
    const mlxvk_optional_int any = { 0, false };
    (void)state;
    REFUSED_HERE(mlxvk_fft_irfftn(&res, half, NULL, 0, (int[]){ 1 }, 1, MLXVK_FFT_NORM_BACKWARD, stream), MLXVK_ERROR_LIMIT, "2147483648");
    REFUSED_HERE(mlxvk_fft_irfft2(&res, half, NULL, 0, (int[]){ 0, 1 }, 2, MLXVK_FFT_NORM_BACKWARD, stream), MLXVK_ERROR_LIMIT, "2147483648");
    REFUSED_HERE(mlxvk_quantized_matmul(&res, x, w, scales, none, true, any, any, "nvfp4", stream), MLXVK_ERROR_LIMIT, "rows of");
    REFUSED_HERE(mlxvk_repeat_axis(&res, half, 2, 1, stream), MLXVK_ERROR_LIMIT, "too long");
    REFUSED_HERE(mlxvk_tile(&res, half, (int[]){ 2 }, 1, stream), MLXVK_ERROR_LIMIT, "too long");
    REFUSED_HERE(mlxvk_kron(&res, half, half, stream), MLXVK_ERROR_LIMIT, "axis");
    REFUSED_HERE(mlxvk_pad(&res, half, (int[]){ 1 }, 1, (int[]){ HALF }, 1, (int[]){ HALF }, 1, none, "constant", stream),
                 MLXVK_ERROR_LIMIT, "elements");
    REFUSED_HERE(mlxvk_diag(&res, i4, INT32_MIN, stream), MLXVK_ERROR_LIMIT, "2147483652");
    REFUSED_HERE(mlxvk_arange(&res, -1e308, 1e308, 1e-300, MLXVK_FLOAT32, stream), MLXVK_ERROR_LIMIT, "elements");
    mlxvk_array_free(half);
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    mlxvk_array_free(scales);
}

/* Numbers beyond an integer dtype's become its last one. */
static void test_large_numbers(void **state)
{
    mlxvk_array a = mlxvk_array_new();
    uint64_t got[2];
    (void)state;
    OK(mlxvk_arange(&a, 18446744073709551616.0, 18446744073709551616.0 + 8192, 4096, MLXVK_UINT64, stream), stream);
    OK(mlxvk_array_read(a, got, sizeof got, stream), stream);
    assert_true(got[0] == UINT64_MAX);
    mlxvk_array_free(a);
}

static void test_axes(void **state)
{
    (void)state;
    REFUSED_HERE(mlxvk_transpose_axes(&res, a23, (int[]){ 0, 2 }, 2, stream), MLXVK_ERROR_AXIS, "transpose_axes", "2");
    REFUSED_HERE(mlxvk_transpose_axes(&res, a23, (int[]){ 1, -1 }, 2, stream), MLXVK_ERROR_AXIS, "transpose_axes");
    REFUSED_HERE(mlxvk_swapaxes(&res, a23, 0, 2, stream), MLXVK_ERROR_AXIS, "swapaxes");
    REFUSED_HERE(mlxvk_expand_dims(&res, a23, 4, stream), MLXVK_ERROR_AXIS, "expand_dims");
    REFUSED_HERE(mlxvk_flatten(&res, a23, 1, 0, stream), MLXVK_ERROR_AXIS, "flatten");
    REFUSED_HERE(mlxvk_sum_axis(&res, a23, 2, false, stream), MLXVK_ERROR_AXIS, "sum_axis", "2");
    REFUSED_HERE(mlxvk_sum_axes(&res, a23, (int[]){ 0, -2 }, 2, false, stream), MLXVK_ERROR_AXIS, "sum_axes");
    REFUSED_HERE(mlxvk_softmax_axis(&res, a23, -3, false, stream), MLXVK_ERROR_AXIS, "softmax_axis");
    REFUSED_HERE(mlxvk_sort_axis(&res, a23, 2, stream), MLXVK_ERROR_AXIS, "sort_axis");
    REFUSED_HERE(mlxvk_cumsum(&res, a23, 2, false, true, stream), MLXVK_ERROR_AXIS, "cumsum");
    REFUSED_HERE(mlxvk_take_axis(&res, a23, i4, 2, stream), MLXVK_ERROR_AXIS, "take_axis");
    REFUSED_HERE(mlxvk_argmax_axis(&res, a23, -3, false, stream), MLXVK_ERROR_AXIS, "argmax_axis");
}

static void test_dtypes(void **state)
{
    (void)state;
    REFUSED_HERE(mlxvk_bitwise_and(&res, a23, a23, stream), MLXVK_ERROR_DTYPE, "bitwise_and", "float32");
    REFUSED_HERE(mlxvk_floor(&res, c2, stream), MLXVK_ERROR_DTYPE, "floor", "complex64");
    REFUSED_HERE(mlxvk_astype(&res, a23, MLXVK_FLOAT64, stream), MLXVK_ERROR_DTYPE, "astype", "float64");
    REFUSED_HERE(mlxvk_astype(&res, a23, (mlxvk_dtype)77, stream), MLXVK_ERROR_DTYPE, "astype");
    REFUSED_HERE(mlxvk_full(&res, (int[]){ 2 }, 1, a23, MLXVK_FLOAT64, stream), MLXVK_ERROR_DTYPE, "full", "float64");
    REFUSED_HERE(mlxvk_take(&res, i4, a23, stream), MLXVK_ERROR_DTYPE, "take", "float32");
    REFUSED_HERE(mlxvk_matmul(&res, i4, i4, stream), MLXVK_ERROR_DTYPE, "matmul", "int32");
}

static void test_matrices(void **state)
{
    (void)state;
    const mlxvk_optional_int none = { 0, false };
    REFUSED_HERE(mlxvk_matmul(&res, a23, a23, stream), MLXVK_ERROR_SHAPE, "matmul", "(2, 3)");
    REFUSED_HERE(mlxvk_addmm(&res, b34, a23, b34, 1, 1, stream), MLXVK_ERROR_SHAPE, "addmm", "(3, 4)");
    REFUSED_HERE(mlxvk_fast_rms_norm(&res, a23, b34, 1e-5f, stream), MLXVK_ERROR_SHAPE, "fast_rms_norm", "(3, 4)");
    mlxvk_array res = kept();
    assert_int_not_equal(mlxvk_quantized_matmul(&res, a23, b34, a23, a23, true, none, none, "affine", stream), 0);
    assert_int_not_equal(mlxvk_quantized_matmul(&res, a23, b34, a23, a23, true, none, none, "no such mode", stream), 0);
    assert_int_not_equal(mlxvk_fast_scaled_dot_product_attention(&res, a23, a23, a23, 1, "", (mlxvk_array){ NULL },
                                                                 (mlxvk_array){ NULL }, stream), 0);
    assert_ptr_equal(res.ctx, i4.ctx);
    mlxvk_array_free(res);
}

/* The longest name of an operation that has errors is whole. */
static void test_longest_name(void **state)
{
    (void)state;
    const mlxvk_array none = { NULL };
    mlxvk_array res = { NULL };
    mlxvk_error error;
    assert_int_equal(mlxvk_fast_scaled_dot_product_attention_logsumexp(&res, a23, a23, 1, "", none, none, stream),
                     MLXVK_ERROR_SHAPE);
    OK(mlxvk_stream_error(stream, &error), stream);
    assert_string_equal(error.operation, "fast_scaled_dot_product_attention_logsumexp");
}

static void test_absent(void **state)
{
    (void)state;
    const mlxvk_array none = { NULL };
    REFUSED_HERE(mlxvk_add(&res, none, a23, stream), MLXVK_ERROR_ARGUMENT, "add");
    REFUSED_HERE(mlxvk_negative(&res, none, stream), MLXVK_ERROR_ARGUMENT, "negative");
    REFUSED_HERE(mlxvk_clip(&res, a23, none, none, stream), MLXVK_ERROR_ARGUMENT, "clip");
    REFUSED_HERE(mlxvk_reshape(&res, a23, NULL, 2, stream), MLXVK_ERROR_ARGUMENT, "reshape");
    assert_int_not_equal(mlxvk_add(NULL, a23, a23, stream), 0);
    assert_int_not_equal(mlxvk_eval((mlxvk_vector_array){ NULL }), 0);
}

static void test_two_devices(void **state)
{
    (void)state;
    mlxvk_device other = open_new_device(NULL);
    mlxvk_array foreign = counting(other, 4);
    REFUSED_HERE(mlxvk_add(&res, i4, foreign, stream), MLXVK_ERROR_ARGUMENT, "add", "device");
    mlxvk_array_free(foreign);
    mlxvk_device_free(other);
}

/* The last error stays until the next; a success does not clear it; streams do not share it. */
static void test_error_stays(void **state)
{
    (void)state;
    mlxvk_array res = { NULL };
    mlxvk_error error = { 0 };
    mlxvk_stream other = open_stream(device);
    REFUSED(mlxvk_add(&res, a23, b34, stream), MLXVK_ERROR_SHAPE, stream, "add");
    OK(mlxvk_add(&res, a23, a23, stream), stream);
    assert_int_equal(mlxvk_stream_error(stream, &error), 0);
    assert_int_equal(error.code, MLXVK_ERROR_SHAPE);
    assert_string_equal(error.operation, "add");
    assert_true(error.line > 0);
    assert_int_equal(mlxvk_stream_error(other, &error), 0);
    assert_int_equal(error.code, 0);
    mlxvk_array_free(res);
    mlxvk_stream_free(other);
}

static int errors_seen;

static void count_error(const mlxvk_error *error, void *user)
{
    assert_ptr_equal(user, &errors_seen);
    assert_int_equal(error->code, MLXVK_ERROR_SHAPE);
    errors_seen++;
}

static void test_callback(void **state)
{
    (void)state;
    mlxvk_device d = { NULL };
    const mlxvk_device_desc desc = { .on_error = count_error, .user = &errors_seen };
    assert_int_equal(create_device(&d, &desc), 0);
    mlxvk_stream s = open_stream(d);
    mlxvk_array x = counting(d, 2), y = counting(d, 3), res = { NULL };
    assert_int_equal(mlxvk_add(&res, x, y, s), MLXVK_ERROR_SHAPE);
    assert_int_equal(mlxvk_add(&res, y, x, s), MLXVK_ERROR_SHAPE);
    assert_int_equal(errors_seen, 2);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* ---- an allocator that fails ---- */

struct failing { size_t calls, fail_at, live; bool for_good; };

static void *failing_allocate(size_t size, void *user)
{
    struct failing *f = user;
    f->calls++;
    if (f->calls == f->fail_at || (f->for_good && f->calls > f->fail_at)) return NULL;
    void *pointer = malloc(size ? size : 1);
    f->live += pointer != NULL;
    return pointer;
}

static void failing_release(void *pointer, void *user)
{
    struct failing *f = user;
    f->live -= pointer != NULL;
    free(pointer);
}

/* Some of everything. 0, or the first error. */
static int small_program(mlxvk_device d, mlxvk_stream s, int32_t got[6])
{
    const int shape[] = { 2, 3 }, axes[] = { 1, 0 }, zero[] = { 0, 0 }, one[] = { 1, 1 }, stop[] = { 3, 1 };
    mlxvk_array x = { NULL }, y = { NULL }, z = { NULL }, update = { NULL };
    mlxvk_vector_array list = { NULL };
    mlxvk_event event = { NULL };
    int code = mlxvk_array_new_data_device(&x, (int32_t[]){ 1, 2, 3, 4, 5, 6 }, shape, 2, MLXVK_INT32, d);
    if (!code) code = mlxvk_array_new_data_device(&update, (int32_t[]){ 7 }, NULL, 0, MLXVK_INT32, d);
    if (!code) code = mlxvk_transpose_axes(&y, x, axes, 2, s);
    if (!code) code = mlxvk_add(&z, y, y, s);
    if (!code) code = mlxvk_slice_update(&z, z, update, zero, 2, stop, 2, one, 2, s);
    if (!code) code = mlxvk_event_new(&event, d);
    if (!code) code = mlxvk_event_signal(event, 1, s);
    if (!code) code = (list = mlxvk_vector_array_new_value(z)).ctx ? mlxvk_async_eval(list) : MLXVK_ERROR_HOST_MEMORY;
    if (!code) code = mlxvk_negative(&z, z, s);
    if (!code) code = mlxvk_array_read(z, got, 6 * sizeof *got, s);
    mlxvk_event_free(event);
    mlxvk_vector_array_free(list);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    mlxvk_array_free(update);
    return code;
}

/* One result of each family of operations, added up, so that each has to be right. */
static int each_family(mlxvk_array x, mlxvk_array *res, mlxvk_stream s)
{
    mlxvk_array t = { NULL };
    mlxvk_vector_array pair = { NULL };
    int code = mlxvk_softmax_axis(res, x, 1, true, s);
    if (!code) code = mlxvk_sort_axis(&t, x, 0, s);
    if (!code) code = mlxvk_add(res, *res, t, s);
    if (!code) code = mlxvk_cumsum(&t, x, 1, true, true, s);
    if (!code) code = mlxvk_add(res, *res, t, s);
    if (!code) code = mlxvk_fast_rms_norm(&t, *res, (mlxvk_array){ NULL }, 1e-5f, s);
    if (!code) code = mlxvk_matmul(res, t, x, s);
    if (!code) pair = mlxvk_vector_array_new_data((mlxvk_array[]){ *res, t }, 2);
    if (!code && !pair.ctx) code = MLXVK_ERROR_HOST_MEMORY;
    if (!code) code = mlxvk_concatenate_axis(res, pair, 0, s);
    if (!code) code = mlxvk_argsort_axis(&t, *res, 1, s);
    if (!code) code = mlxvk_take_along_axis(res, *res, t, 1, s);
    if (!code) code = mlxvk_sum_axis(res, *res, 0, false, s);
    mlxvk_vector_array_free(pair);
    mlxvk_array_free(t);
    return code;
}

/* 0, or the first error. */
static int large_program(mlxvk_device d, mlxvk_stream s, float got[3])
{
    const float data[9] = { 4, 1, 8, 2, 9, 3, 5, 7, 6 };
    mlxvk_array x = { NULL }, res = { NULL };
    int code = mlxvk_array_new_data_device(&x, data, (int[]){ 3, 3 }, 2, MLXVK_FLOAT32, d);
    if (!code) code = each_family(x, &res, s);
    if (!code) code = mlxvk_array_read(res, got, 3 * sizeof *got, s);
    mlxvk_array_free(x);
    mlxvk_array_free(res);
    return code;
}

/* The small program with a failing allocation, from the device on: right, or refused for want of memory; and nothing is
 * leaked. */
static int run_failing(struct failing *f, const mlxvk_adopt *adopt)
{
    const mlxvk_device_desc desc = { .adopt = adopt, .allocator = { failing_allocate, failing_release, f } };
    const int32_t want[] = { -7, -8, -7, -10, -7, -12 };
    int32_t got[6] = { 0 };
    mlxvk_device d = { NULL };
    mlxvk_stream s = { NULL };
    int code = create_device(&d, &desc);
    if (!code && !(s = mlxvk_stream_new_device(d)).ctx) code = MLXVK_ERROR_HOST_MEMORY;
    if (!code) code = small_program(d, s, got);
    if (!code) assert_memory_equal(got, want, sizeof want);
    if (code && !f->for_good && s.ctx) {                       /* memory is there again: so must everything be */
        assert_int_equal(small_program(d, s, got), 0);
        assert_memory_equal(got, want, sizeof want);
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    assert_int_equal(f->live, 0);
    return code;
}

/* Devices are adopted, because there may be only so many instances. */
static void fail_each(bool for_good)
{
    mlxvk_adopt adopt;
    struct failing whole = { .fail_at = SIZE_MAX };
    own_vulkan(&adopt, true);
    const uint32_t family = adopt.queue_family;
    adopt.families = &family;                                  /* one more list to be copied */
    adopt.family_count = 1;
    assert_int_equal(run_failing(&whole, &adopt), 0);
    assert_true(whole.calls > 10);
    size_t refused = 0;
    for (size_t n = 1; n <= whole.calls; n++) {
        struct failing f = { .fail_at = n, .for_good = for_good };
        int code = run_failing(&f, &adopt);
        if (code != 0 && code != MLXVK_ERROR_HOST_MEMORY) fail_msg("allocation %zu failing: code %d", n, code);
        refused += code != 0;
    }
    assert_true(refused > 5);
    end_vulkan();
}

static void test_each_allocation_fails(void **state) { (void)state; fail_each(false); }
static void test_allocations_fail_from_each(void **state) { (void)state; fail_each(true); }

/* Those by which the library makes a device itself. */
static void test_allocations_of_device_fail(void **state)
{
    struct failing f = { .fail_at = 1 };
    (void)state;
    for (mlxvk_device d = { NULL }; !d.ctx; f.fail_at++) {
        const mlxvk_device_desc desc = { .allocator = { failing_allocate, failing_release, &f } };
        f.calls = 0;
        int code = create_device(&d, &desc);
        if (code) assert_int_equal(code, MLXVK_ERROR_HOST_MEMORY);
        else mlxvk_device_free(d);
        assert_int_equal(f.live, 0);
    }
    assert_true(f.fail_at > 2);
}

/* The error is filled where there is no device to ask, whatever it was before: here it is the list of families that has no
 * memory. */
static void test_error_of_device(void **state)
{
    mlxvk_adopt adopt;
    (void)state;
    own_vulkan(&adopt, false);
    adopt.families = (uint32_t[]){ adopt.queue_family + 1 };
    adopt.family_count = 1;
    struct failing f = { .fail_at = 2 };
    mlxvk_error error;
    memset(&error, 0xAA, sizeof error);
    const mlxvk_device_desc desc = { .allocator = { failing_allocate, failing_release, &f }, .adopt = &adopt, .error = &error };
    mlxvk_device d = { NULL };
    assert_int_equal(mlxvk_device_create(&d, &desc), MLXVK_ERROR_HOST_MEMORY);
    assert_int_equal(error.code, MLXVK_ERROR_HOST_MEMORY);
    assert_string_equal(error.operation, "device");
    end_vulkan();
}

/* Each allocation of the large program in turn, on a device that has its kernels; after each, it works again. */
static void fail_each_of_large(mlxvk_device d, mlxvk_stream s, struct failing *f, const float want[3])
{
    float got[3];
    f->calls = 0, f->fail_at = SIZE_MAX;
    assert_int_equal(large_program(d, s, got), 0);
    const size_t calls = f->calls;
    size_t refused = 0;
    for (size_t n = 1; n <= calls; n++) {
        f->calls = 0, f->fail_at = n;
        int code = large_program(d, s, got);
        if (code != 0 && code != MLXVK_ERROR_HOST_MEMORY) fail_msg("allocation %zu failing: code %d", n, code);
        if (!code) assert_memory_equal(got, want, sizeof got);
        refused += code != 0;
        f->fail_at = SIZE_MAX;
        assert_int_equal(large_program(d, s, got), 0);
        assert_memory_equal(got, want, sizeof got);
    }
    assert_true(refused > 10);
}

static void test_each_allocation_of_operations_fails(void **state)
{
    (void)state;
    struct failing f = { .fail_at = SIZE_MAX };
    const mlxvk_device_desc desc = { .allocator = { failing_allocate, failing_release, &f }, .gates = "MLX_VK_STATS=1" };
    float want[3];
    mlxvk_device d = { NULL };
    assert_int_equal(large_program(device, stream, want), 0);
    assert_true(want[0] != want[1]);
    assert_int_equal(create_device(&d, &desc), 0);
    mlxvk_stream s = open_stream(d);
    fail_each_of_large(d, s, &f, want);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    assert_int_equal(f.live, 0);
}

/* Result handles that hold the last things of another device: they and it go. */
static void test_results_over_another_device(void **state)
{
    (void)state;
    struct failing f = { .fail_at = SIZE_MAX };
    const mlxvk_device_desc desc = { .allocator = { failing_allocate, failing_release, &f } };
    mlxvk_device d = { NULL };
    mlxvk_array x = { NULL }, y = { NULL }, q = { NULL }, a = counting(device, 4);
    mlxvk_buffer buffer = { NULL };
    assert_int_equal(create_device(&d, &desc), 0);
    x = counting(d, 4);
    y = counting(d, 3);
    q = counting(d, 2);
    mlxvk_vector_array list = mlxvk_vector_array_new_value(q);
    mlxvk_array_free(q);
    q.ctx = NULL;
    assert_int_equal(mlxvk_buffer_new(&buffer, 300, d), 0);
    mlxvk_device_free(d);
    assert_true(f.live > 0);
    OK(mlxvk_add(&x, a, a, stream), stream);
    OK(mlxvk_array_buffer(&buffer, NULL, a), stream);
    OK(mlxvk_split(&list, a, 2, 0, stream), stream);
    assert_true(f.live > 0);
    OK(mlxvk_random_split(&y, &q, (mlxvk_array){ NULL }, stream), stream);
    assert_int_equal(f.live, 0);
    expect_ints(x, (int32_t[]){ 0, 2, 4, 6 }, 4, stream);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(q);
    mlxvk_array_free(a);
    mlxvk_vector_array_free(list);
    mlxvk_buffer_free(buffer);
}

/* Memory that cannot be had outside of operations: no error of those that follow. */
static void test_memory_fails_late(void **state)
{
    (void)state;
    struct failing f = { .fail_at = SIZE_MAX };
    const mlxvk_device_desc desc = { .allocator = { failing_allocate, failing_release, &f } };
    mlxvk_device d = { NULL };
    mlxvk_stream s = { NULL };
    mlxvk_array a = { NULL }, b = { NULL };
    mlxvk_buffer buffer = { NULL };
    void *host;
    assert_int_equal(create_device(&d, &desc), 0);
    assert_int_equal(mlxvk_get_default_stream(&s, d), 0);
    b = counting(d, 5);
    a = counting(d, 1);                              /* so small that it has no memory until it is needed */
    for (int i = 0; i < 2; i++) {
        f.fail_at = f.calls + 1;
        assert_int_equal(i ? mlxvk_array_buffer(&buffer, NULL, a) : mlxvk_array_host(&host, a), MLXVK_ERROR_HOST_MEMORY);
        f.fail_at = SIZE_MAX;
        OK(mlxvk_add(&b, b, b, s), s);
        OK(mlxvk_synchronize(s), s);
    }
    expect_ints(b, (int32_t[]){ 0, 4, 8, 12, 16 }, 5, s);
    assert_int_equal(mlxvk_array_buffer(&buffer, NULL, a), 0);
    mlxvk_buffer_free(buffer);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    assert_int_equal(f.live, 0);
}

/* What cannot be computed says why to calls that have no stream, too: the device has the text, the last array's. */
static int without_stream(int call, mlxvk_array a, mlxvk_array one)
{
    void *host;
    float value;
    mlxvk_buffer buffer = { NULL };
    mlxvk_string text = { NULL };
    mlxvk_vector_array v = mlxvk_vector_array_new_value(a);
    int code = call == 0 ? mlxvk_eval(v) : call == 1 ? mlxvk_async_eval(v) : call == 2 ? mlxvk_array_eval(a)
             : call == 3 ? mlxvk_array_wait(a, true) : call == 4 ? mlxvk_array_host(&host, a)
             : call == 5 ? mlxvk_array_buffer(&buffer, NULL, a) : call == 6 ? mlxvk_array_item_float32(&value, one)
             : mlxvk_array_tostring(&text, a);
    mlxvk_vector_array_free(v);
    return code;
}

static void test_why_not_computed(void **state)
{
    (void)state;
    static const char *const names[] = { "eval", "async_eval", "array_wait", "array_wait", "array_host", "array_buffer", "item",
                                         "array_read" };
    struct setting small = start("MLX_VK_MAX_MEMORY_MB=8");
    mlxvk_device d = small.device;
    mlxvk_stream s = small.stream;
    for (int call = 0; call < (int)COUNT(names); call++) {
        mlxvk_array a = floats(d, values, (int[]){ 1 }, 1), one = { NULL };
        mlxvk_buffer none = { NULL };
        mlxvk_error error;
        OK(mlxvk_broadcast_to(&a, a, (int[]){ 8, 1 << 20 }, 2, s), s);
        OK(mlxvk_exp(&a, a, s), s);
        OK(mlxvk_slice(&one, a, (int[]){ 3, 4 }, 2, (int[]){ 4, 5 }, 2, (int[]){ 1, 1 }, 2, s), s);
        assert_int_equal(mlxvk_buffer_new(&none, SIZE_MAX / 2, d), MLXVK_ERROR_LIMIT);         /* another error before */
        assert_int_equal(without_stream(call, a, one), MLXVK_ERROR_MEMORY);
        OK_DEVICE(mlxvk_device_error(d, &error), d);
        assert_int_equal(error.code, MLXVK_ERROR_MEMORY);
        assert_string_equal(error.operation, names[call]);
        if (!strstr(error.text, "float32")) fail_msg("call %d: %s", call, error.text);
        if (call < 7 && !strstr(error.text, "33554432 bytes")) fail_msg("call %d: %s", call, error.text);
        if (call == 7 && !strstr(error.text, "operand")) fail_msg("call %d: %s", call, error.text);
        mlxvk_array_free(a);
        mlxvk_array_free(one);
        mlxvk_finalize(s);
    }
    finish(&small);
}

/* What tells the first error of deferred work tells its words, though another call failed since. */
static void test_first_error_of_work(void **state)
{
    (void)state;
    struct setting small = start("MLX_VK_MAX_MEMORY_MB=8");
    mlxvk_stream s = small.stream;
    for (int call = 0; call < 3; call++) {
        mlxvk_array a = floats(small.device, values, (int[]){ 1 }, 1), res = { NULL };
        OK(mlxvk_broadcast_to(&a, a, (int[]){ 8, 1 << 20 }, 2, s), s);
        OK(mlxvk_exp(&a, a, s), s);
        assert_int_equal(mlxvk_array_eval(a), MLXVK_ERROR_MEMORY);
        REFUSED(mlxvk_zeros(&res, (int[]){ -1 }, 1, MLXVK_INT32, s), MLXVK_ERROR_SHAPE, s, "zeros");
        int code = call == 0 ? mlxvk_finalize(s) : call == 1 ? mlxvk_synchronize(s) : mlxvk_stream_advance(s, 1000, NULL);
        REFUSED(code, MLXVK_ERROR_MEMORY, s, "33554432 bytes");
        OK(mlxvk_finalize(s), s);
        mlxvk_array_free(a);
    }
    finish(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_default), cmocka_unit_test(test_result_texts), cmocka_unit_test(test_shapes), cmocka_unit_test(test_shapes_of_lists),
        cmocka_unit_test(test_axes), cmocka_unit_test(test_long_views), cmocka_unit_test(test_large_numbers), cmocka_unit_test(test_dtypes), cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_absent), cmocka_unit_test(test_longest_name), cmocka_unit_test(test_two_devices), cmocka_unit_test(test_error_stays),
        cmocka_unit_test(test_callback), cmocka_unit_test(test_each_allocation_fails),
        cmocka_unit_test(test_allocations_of_device_fail), cmocka_unit_test(test_error_of_device),
        cmocka_unit_test(test_allocations_fail_from_each),
        cmocka_unit_test(test_each_allocation_of_operations_fails),
        cmocka_unit_test(test_memory_fails_late), cmocka_unit_test(test_why_not_computed), cmocka_unit_test(test_first_error_of_work),
        cmocka_unit_test(test_results_over_another_device),
    };
    return run_group("errors", tests, set_up_arrays, tear_down_arrays);
}
