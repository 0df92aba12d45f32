/* Memory: MLX's counters, limits and cache rule; buffers in use are never handed out. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <stdio.h>
#include <time.h>

/* A fresh device for each test, so that counters start at zero. */
static int set_up_new(void **state)
{
    (void)state;
    device = open_new_device("MLX_VK_POISON=1");
    stream = open_stream(device);
    return 0;
}

static size_t active(void)
{
    size_t bytes = 0;
    OK_DEVICE(mlxvk_device_get_active_memory(&bytes, device), device);
    return bytes;
}

static size_t cached(void)
{
    size_t bytes = 0;
    OK_DEVICE(mlxvk_device_get_cache_memory(&bytes, device), device);
    return bytes;
}

static size_t peak(void)
{
    size_t bytes = 0;
    OK_DEVICE(mlxvk_device_get_peak_memory(&bytes, device), device);
    return bytes;
}

static mlxvk_buffer buffer_of(size_t size)
{
    mlxvk_buffer buffer = { NULL };
    OK_DEVICE(mlxvk_buffer_new(&buffer, size, device), device);
    return buffer;
}

/* ---- counters ---- */

static void test_counters(void **state)
{
    (void)state;
    size_t start = active();
    mlxvk_buffer a = buffer_of(8192), b = buffer_of(65536);
    assert_int_equal(active() - start, 8192 + 65536);
    assert_int_equal(peak(), active());
    mlxvk_buffer_free(b);
    assert_int_equal(active() - start, 8192);
    assert_int_equal(cached(), 65536);
    assert_int_equal(peak() - start, 8192 + 65536);
    OK_DEVICE(mlxvk_device_reset_peak_memory(device), device);
    assert_int_equal(peak(), 0);                               /* MLX's way: not to what is active */
    mlxvk_buffer_free(a);
    assert_int_equal(active(), start);
    OK_DEVICE(mlxvk_device_clear_cache(device), device);
    assert_int_equal(cached(), 0);
}

static void test_arrays_are_counted(void **state)
{
    (void)state;
    size_t start = active();
    mlxvk_array a = counting(device, 16384), b = { NULL };
    assert_int_equal(active() - start, 65536);
    OK(mlxvk_negative(&b, a, stream), stream);
    OK_DEVICE(eval_one(b), device);
    assert_int_equal(active() - start, 2 * 65536);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    OK(mlxvk_synchronize(stream), stream);
    assert_int_equal(active(), start);
}

/* ---- the cache rule: the smallest cached buffer with size <= cached < min(2 size, size + 2 pages) ---- */

/* Whether a buffer of `want` bytes is made of a cached one of `have`. */
static bool reuses(size_t have, size_t want)
{
    OK_DEVICE(mlxvk_device_clear_cache(device), device);
    mlxvk_buffer_free(buffer_of(have));
    assert_int_equal(cached(), have);
    mlxvk_buffer buffer = buffer_of(want);
    bool reused = cached() == 0;
    mlxvk_buffer_free(buffer);
    return reused;
}

static void test_cache_rule(void **state)
{
    (void)state;
    assert_true(reuses(8192, 8192));
    assert_true(reuses(8192, 6000));
    assert_true(reuses(8192, 4352));
    assert_false(reuses(8192, 4096));                          /* half is wasted */
    assert_false(reuses(8192, 8448));
    assert_true(reuses(1 << 20, (1 << 20) - (1 << 14)));
    assert_false(reuses(1 << 20, (1 << 20) - (1 << 16)));      /* more than two pages are wasted */
}

static void test_cache_takes_smallest(void **state)
{
    (void)state;
    mlxvk_buffer big = buffer_of(12288), small = buffer_of(8192);
    mlxvk_buffer_free(small);
    mlxvk_buffer_free(big);
    mlxvk_buffer got = buffer_of(7936);
    assert_int_equal(cached(), 12288);
    mlxvk_buffer_free(got);
}

static mlxvk_array array_of_size(int size)
{
    mlxvk_array res = { 0 };
    OK_DEVICE(mlxvk_array_new_data_device(&res, NULL, &size, 1, MLXVK_UINT8, device), device);
    return res;
}

/* An array knows its own bytes and how many its memory has, which the cache may have found. */
static void test_capacity_of_an_array(void **state)
{
    (void)state;
    const mlxvk_array none = { 0 };
    assert_int_equal(mlxvk_array_memory_capacity(none), 0);
    mlxvk_device_clear_cache(device);
    mlxvk_array a = array_of_size(8192);
    assert_int_equal(mlxvk_array_memory_capacity(a), 8192);
    mlxvk_array_free(a);
    a = array_of_size(6000);
    assert_int_equal(mlxvk_array_memory_size(a), 6000);
    assert_int_equal(mlxvk_array_memory_capacity(a), 8192);
    mlxvk_array_free(a);
}

/* ---- limits ---- */

static void test_cache_limit(void **state)
{
    (void)state;
    size_t old = 0, back = 0;
    OK_DEVICE(mlxvk_device_set_cache_limit(&old, 16384, device), device);
    mlxvk_buffer parts[4];
    for (int i = 0; i < 4; i++) parts[i] = buffer_of(8192);
    for (int i = 0; i < 4; i++) mlxvk_buffer_free(parts[i]);
    assert_true(cached() <= 16384 + 8192);
    OK_DEVICE(mlxvk_device_set_cache_limit(&back, 0, device), device);
    assert_int_equal(back, 16384);
    mlxvk_buffer_free(buffer_of(4096));
    mlxvk_buffer_free(buffer_of(4096));
    assert_int_equal(cached(), 0);
    OK_DEVICE(mlxvk_device_set_cache_limit(NULL, old, device), device);
}

/* A guide, not a wall: the cache goes first, and allocation does not fail. */
static void test_memory_limit(void **state)
{
    (void)state;
    size_t old = 0, now = 0;
    OK_DEVICE(mlxvk_device_get_memory_limit(&old, device), device);
    assert_true(old > 0);
    mlxvk_buffer_free(buffer_of(1 << 22));
    assert_int_equal(cached(), 1 << 22);
    OK_DEVICE(mlxvk_device_set_memory_limit(&now, 5 << 20, device), device);
    assert_int_equal(now, old);
    OK_DEVICE(mlxvk_device_get_memory_limit(&now, device), device);
    assert_int_equal(now, 5 << 20);
    mlxvk_buffer big = buffer_of(1 << 24);
    assert_int_equal(cached(), 0);
    assert_true(active() >= 1 << 24);
    mlxvk_buffer_free(big);
    OK_DEVICE(mlxvk_device_set_memory_limit(NULL, old, device), device);
}

static void test_wired_limit(void **state)
{
    (void)state;
    size_t old = 1, now = 0;
    OK_DEVICE(mlxvk_device_set_wired_limit(&old, 1 << 20, device), device);
    assert_int_equal(old, 0);
    OK_DEVICE(mlxvk_device_set_wired_limit(&now, 0, device), device);
    assert_int_equal(now, 1 << 20);
}

static void test_too_large(void **state)
{
    (void)state;
    size_t before = active(), most = 0;
    char number[32];
    mlxvk_error error = { 0 };
    OK_DEVICE(mlxvk_device_info_get_size(&most, device, "max_buffer_length"), device);
    const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2, most + 1 };
    for (size_t i = 0; i < COUNT(sizes); i++) {
        mlxvk_buffer buffer = { NULL };
        int code = mlxvk_buffer_new(&buffer, sizes[i], device);
        assert_true(code == MLXVK_ERROR_LIMIT || code == MLXVK_ERROR_MEMORY);
        assert_null(buffer.ctx);
        mlxvk_device_error(device, &error);
        snprintf(number, sizeof number, "%zu", sizes[i]);
        assert_int_equal(error.code, code);
        if (!strstr(error.text, number)) fail_msg("the text does not name %s: %s", number, error.text);
    }
    assert_int_equal(active(), before);
    assert_int_equal(mlxvk_device_status(device), 0);
}

/* ---- less memory than the work would take ---- */

enum { PARTS = 10, PART_LEAST = 1 << 19, PART_MORE = 170000 };

/* Sums of sqrt(i) + 1 of ever longer rows, recorded at once. Returns the first error; sums[k] is written where there is
 * none of the k-th. */
static int sum_rows(mlxvk_stream s, mlxvk_array *sums)
{
    int first = 0;
    for (int k = 0; k < PARTS; k++) {
        mlxvk_array x = mlxvk_array_new(), y = mlxvk_array_new();
        int code = mlxvk_arange(&x, 0, PART_LEAST + k * PART_MORE, 1, MLXVK_FLOAT32, s);
        if (!code) code = mlxvk_slice(&y, x, (int[]){ 1 }, 1, (int[]){ PART_LEAST }, 1, (int[]){ 3 }, 1, s);
        if (!code) code = mlxvk_sqrt(&x, x, s);
        if (!code) code = mlxvk_cumsum(&x, x, 0, false, true, s);
        if (!code) code = mlxvk_sum(&y, y, false, s);
        if (!code) code = mlxvk_max(&x, x, false, s);
        if (!code) code = mlxvk_add(&sums[k], x, y, s);
        if (!first) first = code;
        mlxvk_array_free(x);
        mlxvk_array_free(y);
    }
    return first;
}

/* The rows on a device of so many MiB: how many sums were computed, each of which is right. The others' errors say what
 * was too large. */
static int sums_within(int megabytes, const char *more, float want[PARTS], size_t *held)
{
    char gates[128];
    int computed = 0;
    mlxvk_device d = { NULL };
    mlxvk_array sums[PARTS] = { { NULL } };
    mlxvk_error error = { 0 };
    snprintf(gates, sizeof gates, "MLX_VK_MAX_MEMORY_MB=%d %s", megabytes, more);
    OK_DEVICE(create_device(&d, &(mlxvk_device_desc){ .gates = gates }), d);
    mlxvk_stream s = open_stream(d);
    int code = sum_rows(s, sums);
    for (int k = 0; k < PARTS; k++) {
        float got = -1;
        int read = sums[k].ctx ? mlxvk_array_read(sums[k], &got, sizeof got, s) : code;
        if (!held && !read) assert_float_equal(got, want[k], 0);
        if (held) want[k] = got;
        if (read) assert_true(read == MLXVK_ERROR_MEMORY && got == -1);
        computed += !read;
        mlxvk_array_free(sums[k]);
    }
    mlxvk_stream_error(s, &error);
    if (computed < PARTS && !strstr(error.text, "bytes")) fail_msg("it does not say what was too large: %s", error.text);
    if (held) {
        size_t cached = 0;
        OK_DEVICE(mlxvk_device_get_peak_memory(held, d), d);
        OK_DEVICE(mlxvk_device_get_cache_memory(&cached, d), d);
        if (cached > *held) *held = cached;
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    return computed;
}

/* With half of what it takes otherwise everything is computed still; with less, what fits. */
static void test_budget(void **state)
{
    (void)state;
    static const char *const kinds[] = { "", "MLX_VK_FORCE_STAGING=1 MLX_VK_ENABLE_DONATION=0" };
    float want[PARTS];
    for (size_t i = 0; i < COUNT(kinds); i++) {
        size_t held = 0;
        assert_int_equal(sums_within(0, kinds[i], want, &held), PARTS);
        int whole = (int)(held >> 20), less = PARTS;
        assert_true(whole > 40);
        assert_int_equal(sums_within(whole / 2, kinds[i], want, NULL), PARTS);
        for (int most = 16; most > 0; most /= 8) {
            int computed = sums_within(most, kinds[i], want, NULL);
            assert_true(computed <= less);
            less = computed;
        }
        assert_true(less < PARTS);
    }
}

static void test_zero_bytes(void **state)
{
    (void)state;
    size_t before = active();
    mlxvk_buffer buffer = buffer_of(0);
    assert_int_equal(mlxvk_buffer_size(buffer), 0);
    assert_int_equal(active(), before);
    OK_DEVICE(mlxvk_buffer_wait(buffer), device);
    assert_int_equal(mlxvk_buffer_free(buffer), 0);
    assert_int_equal(mlxvk_buffer_free((mlxvk_buffer){ NULL }), 0);
}

/* ---- buffers do not overlap ---- */

enum { LIVE = 40 };

struct owned { mlxvk_array array; int count; int32_t first; };

static struct owned make_owned(struct rng *r, int32_t first)
{
    static const int sizes[] = { 1, 3, 64, 100, 1000, 5000, 70000, 300000 };
    int count = sizes[random_int(r, 0, (int)COUNT(sizes) - 1)];
    struct host h = host_new(&count, 1);
    for (int i = 0; i < count; i++) h.data[i] = first + i;
    struct owned o = { host_upload(&h, device), count, first };
    host_free(&h);
    return o;
}

static void check_owned(const struct owned *o)
{
    struct host h = host_new(&o->count, 1);
    for (int i = 0; i < o->count; i++) h.data[i] = o->first + i;
    host_expect(&h, o->array, stream);
    host_free(&h);
}

static void test_churn(void **state)
{
    (void)state;
    struct rng r = { 3 };
    struct owned all[LIVE] = { { { NULL }, 0, 0 } };
    for (int round = 0; round < 600; round++) {
        struct owned *o = &all[random_int(&r, 0, LIVE - 1)];
        if (o->array.ctx) check_owned(o);
        mlxvk_array_free(o->array);
        *o = make_owned(&r, round * 1000000);
        if (round % 97 == 0) OK_DEVICE(mlxvk_device_clear_cache(device), device);
    }
    for (int i = 0; i < LIVE; i++) {
        if (all[i].array.ctx) check_owned(&all[i]);
        mlxvk_array_free(all[i].array);
    }
    assert_int_equal(active(), 0);
}

/* ---- lifetime ---- */

/* Work that cannot start before the host says so: whatever it uses is in use for as long as the test likes. */
static mlxvk_event block(mlxvk_stream s)
{
    mlxvk_event event = { NULL };
    OK_DEVICE(mlxvk_event_new(&event, device), device);
    OK(mlxvk_event_wait(event, 1, s), s);
    return event;
}

static void unblock(mlxvk_event event)
{
    OK_DEVICE(mlxvk_event_signal_host(event, 1), device);
    mlxvk_event_free(event);
}

/* The input's handle goes while work on it is submitted but has not begun. New arrays of the same size are made and
 * written by the host at once; the result must not see them. */
static void test_buffer_in_use(void **state)
{
    (void)state;
    enum { N = 2048 };
    for (int round = 0; round < 20; round++) {
        int32_t want[N];
        mlxvk_array a = counting(device, N), res = { NULL }, others[8];
        mlxvk_event event = block(stream);
        OK(mlxvk_negative(&res, a, stream), stream);
        OK_DEVICE(async_eval_one(res), device);
        mlxvk_array_free(a);
        for (int i = 0; i < 8; i++) {
            int32_t junk[N];
            memset(junk, 0x77, sizeof junk);
            others[i] = ints(device, junk, (int[]){ N }, 1);
        }
        unblock(event);
        for (int i = 0; i < N; i++) want[i] = -i;
        expect_ints(res, want, N, stream);
        for (int i = 0; i < 8; i++) mlxvk_array_free(others[i]);
        mlxvk_array_free(res);
    }
}

/* The same with raw buffers: a buffer in use is not the next one handed out, and goes to the cache when done. */
static void test_freed_while_in_use(void **state)
{
    (void)state;
    enum { BYTES = 1 << 16 };
    mlxvk_buffer buffer = buffer_of(BYTES);
    mlxvk_array view = { NULL }, res = { NULL };
    const void *where = mlxvk_buffer_data(buffer);
    OK_DEVICE(mlxvk_array_new_buffer(&view, buffer, (int[]){ BYTES / 4 }, NULL, 1, MLXVK_INT32, 0), device);
    mlxvk_event event = block(stream);
    OK(mlxvk_copy(&res, view, stream), stream);
    OK(mlxvk_negative(&res, res, stream), stream);
    OK_DEVICE(async_eval_one(res), device);
    mlxvk_array_free(view);
    mlxvk_buffer_free(buffer);
    mlxvk_buffer next = buffer_of(BYTES);
    if (where) assert_ptr_not_equal(mlxvk_buffer_data(next), where);
    unblock(event);
    OK(mlxvk_synchronize(stream), stream);
    mlxvk_buffer_free(next);
    mlxvk_array_free(res);
    OK(mlxvk_synchronize(stream), stream);
    assert_int_equal(active(), 0);
}

static void test_buffer_wait(void **state)
{
    (void)state;
    mlxvk_array a = counting(device, 1000), b = { NULL };
    mlxvk_buffer buffer = { NULL };
    OK(mlxvk_negative(&b, a, stream), stream);
    OK_DEVICE(async_eval_one(b), device);
    OK_DEVICE(mlxvk_array_buffer(&buffer, NULL, b), device);
    OK_DEVICE(mlxvk_buffer_wait(buffer), device);
    const int32_t *data = mlxvk_array_data(b);
    if (data) assert_int_equal(data[999], -999);
    mlxvk_buffer_free(buffer);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
}

/* Many short-lived results: memory that one frees goes to the next on the same stream, and the peak stays low. */
static void test_temporaries_are_reused(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    mlxvk_array a = counting(device, N);
    int32_t *want = malloc(N * sizeof *want);
    for (int i = 0; i < 200; i++) {
        OK(mlxvk_negative(&a, a, stream), stream);
        if (i % 10 == 9) OK(mlxvk_finalize(stream), stream);
    }
    for (int i = 0; i < N; i++) want[i] = i;
    expect_ints(a, want, N, stream);
    assert_true(peak() <= 40 * N * sizeof *want);
    mlxvk_array_free(a);
    free(want);
}

/* Freed memory is overwritten (gate MLX_VK_POISON), so that a use after free cannot pass unnoticed. */
static void test_poison(void **state)
{
    (void)state;
    enum { BYTES = 4096 };
    mlxvk_buffer buffer = buffer_of(BYTES);
    unsigned char *data = mlxvk_buffer_data(buffer);
    if (!data) skip();
    memset(data, 0x11, BYTES);
    mlxvk_buffer_free(buffer);
    buffer = buffer_of(BYTES);
    unsigned char *again = mlxvk_buffer_data(buffer);
    assert_ptr_equal(again, data);
    for (int i = 0; i < BYTES; i++) assert_int_not_equal(again[i], 0x11);
    mlxvk_buffer_free(buffer);
}

static void make_buffers(mlxvk_buffer *buffers, int count, size_t size)
{
    for (int i = 0; i < count; i++) OK_DEVICE(mlxvk_buffer_new(&buffers[i], size, device), device);
}

/* Thousands of freed buffers that are too small stay where they are; of those that are not, the smallest is taken. (What
 * finding one takes: bench_runtime.) */
static void test_many_small(void **state)
{
    (void)state;
    enum { MANY = 8000 };
    mlxvk_buffer *buffers = calloc(MANY, sizeof *buffers);
    make_buffers(buffers, MANY, 2048);
    for (int i = 0; i < MANY; i++) { mlxvk_buffer_free(buffers[i]); buffers[i].ctx = NULL; }
    assert_int_equal(cached(), MANY * 2048);
    make_buffers(buffers, MANY, 2304);
    assert_int_equal(cached(), MANY * 2048);
    for (int i = 0; i < MANY; i++) mlxvk_buffer_free(buffers[i]);
    mlxvk_buffer larger = buffer_of(1200);                     /* the smallest that is less than twice as large */
    assert_int_equal(cached(), MANY * (2048 + 2304) - 2048);
    mlxvk_buffer_free(larger);
    free(buffers);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_new, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_counters), TEST(test_arrays_are_counted), TEST(test_cache_rule), TEST(test_cache_takes_smallest),
        TEST(test_many_small),
        TEST(test_capacity_of_an_array), TEST(test_cache_limit), TEST(test_memory_limit), TEST(test_wired_limit), TEST(test_too_large),
        TEST(test_budget),
        TEST(test_zero_bytes), TEST(test_churn), TEST(test_buffer_in_use), TEST(test_freed_while_in_use),
        TEST(test_buffer_wait), TEST(test_temporaries_are_reused), TEST(test_poison),
    };
    return run_group("memory", tests, NULL, NULL);
}
