/* Drivers and devices unlike the one that tests run on: calls that fail, memory of several types, lower limits. */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>
#include "support_vulkan.h"
#include "shaders/combine_spv.h"
#include "shaders/fill_spv.h"

static mlxvk_kernel combine_kernel(mlxvk_device d, uint32_t bindings, int want)
{
    const mlxvk_kernel_desc desc = {
        .name = "combine", .spirv = combine_spv, .spirv_size = sizeof combine_spv, .bindings = bindings,
        .push_size = 16, .constants = (uint32_t[]){ 64, 1 }, .constant_count = 2, .threads = { 64 },
    };
    mlxvk_kernel kernel = { NULL };
    assert_int_equal(mlxvk_kernel_new(&kernel, &desc, d), want);
    return kernel;
}

static void close_own(mlxvk_device d, mlxvk_stream s)
{
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    end_vulkan();
}

/* -0, -1, -2, ... must be what negating makes of 0, 1, 2, ... */
enum { N = 5000 };

static void expect_negative(mlxvk_array a, mlxvk_stream s)
{
    int32_t want[N];
    for (int i = 0; i < N; i++) want[i] = -i;
    expect_ints(a, want, N, s);
}

static void check_negative(mlxvk_device d, mlxvk_stream s)
{
    mlxvk_array a = counting(d, N), b = { NULL };
    OK(mlxvk_negative(&b, a, s), s);
    expect_negative(b, s);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
}

/* ---- calls that fail ---- */

/* A wait that fails says nothing of the queue: what it may be writing to stays, and is used again later. -1 and -2:
 * VK_ERROR_OUT_OF_HOST_MEMORY and VK_ERROR_OUT_OF_DEVICE_MEMORY. */
static void test_failed_wait_frees_nothing(void **state)
{
    (void)state;
    driver = (struct driver){ 0 };
    mlxvk_device d = own_device("MLX_VK_FORCE_STAGING=1");
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, N), b = { NULL };
    int32_t got[N];
    OK(mlxvk_negative(&b, a, s), s);
    expect_negative(b, s);
    driver.frees = driver.allocations = 0;
    for (int failure = -1; failure >= -2; failure--) {
        driver.fail_waits = 1;
        driver.wait_failure = failure;
        REFUSED(mlxvk_array_read(b, got, sizeof got, s),
                failure == -1 ? MLXVK_ERROR_HOST_MEMORY : MLXVK_ERROR_MEMORY, s, "memory");
        assert_int_equal(driver.fail_waits, 0);
        assert_int_equal(driver.frees, 0);
    }
    expect_negative(b, s);
    check_negative(d, s);
    assert_true(driver.allocations <= 3);                      /* one for each read that failed, at most */
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    close_own(d, s);
}

/* More steps in a row go without a pool of descriptors than one pool has sets; then there are pools again. */
static void test_no_pools(void **state)
{
    (void)state;
    driver = (struct driver){ 0 };
    mlxvk_device d = own_device("MLX_VK_ENABLE_PUSH_DESCRIPTORS=0 MLX_VK_MAX_OPS_PER_BUFFER=1000");
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, N);
    driver.fail_pools = 300;
    while (driver.fail_pools) {
        mlxvk_array b = { NULL };
        OK(mlxvk_negative(&b, a, s), s);
        assert_int_equal(eval_one(b), MLXVK_ERROR_MEMORY);
        mlxvk_array_free(b);
    }
    mlxvk_finalize(s);
    check_negative(d, s);
    mlxvk_array_free(a);
    close_own(d, s);
}

static void add_time(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    (void)kernel;
    ((uint64_t *)user)[0] += count;
    ((uint64_t *)user)[1] += nanoseconds;
}

/* Times that the driver does not have are not added up. */
static void test_times_not_ready(void **state)
{
    (void)state;
    uint64_t sums[2] = { 0 };
    driver = (struct driver){ .half_ready = true };
    mlxvk_device d = own_device("MLX_VK_PROFILE=1");
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, N), b = { NULL }, c = { NULL }, e = { NULL };
    OK(mlxvk_negative(&b, a, s), s);
    OK(mlxvk_square(&c, a, s), s);
    OK(mlxvk_abs(&e, a, s), s);
    OK(mlxvk_synchronize(s), s);
    OK_DEVICE(mlxvk_kernel_stats(d, add_time, sums), d);
    assert_int_equal(sums[0], 3);
    assert_int_equal(sums[1], 500);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(c);
    mlxvk_array_free(e);
    close_own(d, s);
}

/* ---- memory types ---- */

/* A buffer says of which types its memory may be; where one of them has no memory left the next is taken. */
static void test_memory_types(void **state)
{
    (void)state;
    for (int staging = 0; staging < 2; staging++)
        for (uint32_t exhausted = 0; exhausted <= 2; exhausted += 2) {
            driver = (struct driver){ .types = 3, .allowed = 6, .exhausted = exhausted };
            mlxvk_device d = own_device(staging ? "MLX_VK_FORCE_STAGING=1" : NULL);
            mlxvk_stream s = open_stream(d);
            check_negative(d, s);
            assert_int_equal(driver.used, exhausted ? 4 : 2);
            close_own(d, s);
        }
}

/* Where the device's own memory is used up, what comes is of the window that the host has on some of it. A few numbers
 * in memory that work under way reads do not get there before that. */
static void test_memory_in_a_window(void **state)
{
    (void)state;
    driver = (struct driver){ .types = 2, .allowed = 3, .exhausted = 1, .window = true };
    mlxvk_device d = own_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_event gate = { NULL };
    mlxvk_array a = counting(d, 6), b = counting(d, 6), few, y = { NULL }, z = { NULL };
    size_t unified = 1;
    OK_DEVICE(mlxvk_device_info_get_size(&unified, d, "unified"), d);
    assert_false(unified);
    OK_DEVICE(mlxvk_event_new(&gate, d), d);
    OK(mlxvk_event_wait(gate, 1, s), s);
    OK(mlxvk_add(&y, a, b, s), s);
    OK_DEVICE(async_eval_one(y), d);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    few = ints(d, (int32_t[]){ 7, 8, 9 }, (int[]){ 3 }, 1);
    OK(mlxvk_negative(&z, few, s), s);
    OK_DEVICE(async_eval_one(z), d);
    OK_DEVICE(mlxvk_event_signal_host(gate, 1), d);
    expect_ints(y, (int32_t[]){ 0, 2, 4, 6, 8, 10 }, 6, s);
    expect_ints(z, (int32_t[]){ -7, -8, -9 }, 3, s);
    mlxvk_event_free(gate);
    mlxvk_array_free(few);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    close_own(d, s);
}

static void test_no_memory_left(void **state)
{
    (void)state;
    driver = (struct driver){ .types = 3, .allowed = 6, .exhausted = 7 };
    mlxvk_device d = own_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_buffer buffer = { NULL };
    assert_int_equal(mlxvk_buffer_new(&buffer, 1000, d), MLXVK_ERROR_MEMORY);
    assert_null(buffer.ctx);
    driver.exhausted = 0;
    check_negative(d, s);
    close_own(d, s);
}

/* Memory that is in use behind an event cannot be had: an error, and not a wait that keeps who signals it away. */
static void test_memory_behind_an_event(void **state)
{
    (void)state;
    driver = (struct driver){ 0 };
    mlxvk_device d = own_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_event event = { NULL };
    mlxvk_buffer large = { NULL };
    mlxvk_array a = counting(d, N), b = { NULL };
    alarm(60);                                                 /* a wait without end ends the test */
    OK_DEVICE(mlxvk_event_new(&event, d), d);
    OK(mlxvk_event_wait(event, 1, s), s);
    OK(mlxvk_negative(&b, a, s), s);
    OK_DEVICE(async_eval_one(b), d);
    mlxvk_array_free(b);
    driver.exhausted = ~0u;
    assert_int_equal(mlxvk_buffer_new(&large, 100 << 20, d), MLXVK_ERROR_MEMORY);
    driver.exhausted = 0;
    OK_DEVICE(mlxvk_event_signal_host(event, 1), d);
    alarm(0);
    check_negative(d, s);
    mlxvk_event_free(event);
    mlxvk_array_free(a);
    close_own(d, s);
}

/* ---- lower limits ---- */

/* Right, or UNSUPPORTED with words that say why. */
static void right_or_refused(int code, mlxvk_array array, const int32_t *want, size_t count, mlxvk_stream s,
                             const char *why)
{
    int32_t got[64] = { 0 };
    mlxvk_error error = { 0 };
    assert_true(count <= COUNT(got));
    if (!code) code = mlxvk_array_read(array, got, count * sizeof *got, s);
    mlxvk_stream_error(s, &error);
    if (!code) assert_memory_equal(got, want, count * sizeof *got);
    else assert_int_equal(code, MLXVK_ERROR_UNSUPPORTED);
    if (code && !strstr(error.text, why)) fail_msg("\"%s\" does not say \"%s\"", error.text, why);
}

static void select_and_add(mlxvk_device d, const char *why)
{
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, 4), one = array_of(d, MLXVK_INT32, (int32_t[]){ 1 }, NULL, 0), b = { NULL }, c = { NULL }, res = { NULL };
    int code = mlxvk_add(&b, a, a, s);
    right_or_refused(code, b, (int32_t[]){ 0, 2, 4, 6 }, 4, s, why);
    code = mlxvk_greater(&c, a, one, s);
    if (!code) code = mlxvk_where(&res, c, a, b, s);
    right_or_refused(code, res, (int32_t[]){ 0, 2, 2, 3 }, 4, s, why);
    mlxvk_array_free(a);
    mlxvk_array_free(one);
    mlxvk_array_free(b);
    mlxvk_array_free(c);
    mlxvk_array_free(res);
    mlxvk_stream_free(s);
}

/* A workgroup may be as large as it is only along another axis. */
static void test_flat_workgroups(void **state)
{
    (void)state;
    enum { EXECUTION_MODE = 6 << 16 | 16, LOCAL_SIZE = 17, WORDS = sizeof fill_spv / sizeof *fill_spv };
    driver = (struct driver){ .max_depth = 64 };
    mlxvk_device d = own_device(NULL);
    for (uint32_t depth = 64; depth <= 65; depth++)
        for (int fixed = 0; fixed < 2; fixed++) {
            uint32_t words[WORDS], sizes = 0;
            mlxvk_kernel kernel = { NULL };
            mlxvk_kernel_desc desc = { .spirv = words, .spirv_size = sizeof words, .bindings = 4, .push_size = 16 };
            memcpy(words, fill_spv, sizeof words);
            for (size_t i = 5; i + 5 < WORDS && fixed && !sizes; i += words[i] >> 16) {
                sizes = words[i] == EXECUTION_MODE && words[i + 2] == LOCAL_SIZE;
                if (sizes) memcpy(words + i + 3, (uint32_t[]){ 1, 1, depth }, 12);
            }
            assert_int_equal(sizes, fixed);
            if (!fixed) desc.threads[2] = depth;
            int want = depth <= 64 ? 0 : fixed ? MLXVK_ERROR_ARGUMENT : MLXVK_ERROR_LIMIT;
            assert_int_equal(mlxvk_kernel_new(&kernel, &desc, d), want);
            mlxvk_kernel_free(kernel);
        }
    close_own(d, (mlxvk_stream){ NULL });
}

/* Layouts have no more bindings than a stage may; kernels that have more are refused. By the driver and by the gate. */
static void test_few_buffers(void **state)
{
    (void)state;
    for (int by_gate = 0; by_gate < 2; by_gate++)
        for (uint32_t most = 4; most <= 8; most += 4) {
            driver = (struct driver){ .max_buffers = by_gate ? 0 : most };
            const char *gate = most == 4 ? "MLX_VK_MAX_STORAGE_BUFFERS=4" : "MLX_VK_MAX_STORAGE_BUFFERS=8";
            mlxvk_device d = own_device(by_gate ? gate : NULL);
            assert_int_equal(driver.largest_layout, most);
            mlxvk_kernel_free(combine_kernel(d, most, 0));
            combine_kernel(d, most + 1, MLXVK_ERROR_LIMIT);
            select_and_add(d, "storage buffers");
            close_own(d, (mlxvk_stream){ NULL });
        }
}

/* No pipeline has more threads than a workgroup may. */
static void test_few_threads(void **state)
{
    (void)state;
    for (int by_gate = 0; by_gate < 2; by_gate++) {
        size_t threads = 0;
        driver = (struct driver){ .max_threads = by_gate ? 0 : 128 };
        mlxvk_device d = own_device(by_gate ? "MLX_VK_MAX_THREADS=128" : NULL);
        OK_DEVICE(mlxvk_device_info_get_size(&threads, d, "max_threads"), d);
        assert_int_equal(threads, 128);
        select_and_add(d, "threads");
        close_own(d, (mlxvk_stream){ NULL });
    }
}

/* Chains of operations, whose kernels are made for them: as one where their arrays and threads fit, else one by one. */
static void test_chains_within_limits(void **state)
{
    enum { ARRAYS = 7, SIZE = 1000 };
    static const char *const gates[] = {
        "MLX_VK_ENABLE_CHAINS=2", "MLX_VK_ENABLE_CHAINS=2 MLX_VK_MAX_STORAGE_BUFFERS=8",
        "MLX_VK_ENABLE_CHAINS=2 MLX_VK_MAX_STORAGE_BUFFERS=6", "MLX_VK_ENABLE_CHAINS=2 MLX_VK_MAX_THREADS=128",
    };
    (void)state;
    for (size_t g = 0; g < COUNT(gates); g++) {
        mlxvk_device d = open_new_device(gates[g]);
        mlxvk_stream s = open_stream(d);
        mlxvk_array a[ARRAYS], sum = { NULL };
        int32_t want[SIZE];
        for (int i = 0; i < ARRAYS; i++) a[i] = counting(d, SIZE);
        OK(mlxvk_add(&sum, a[0], a[1], s), s);
        for (int i = 2; i < ARRAYS; i++) OK(mlxvk_add(&sum, sum, a[i], s), s);
        for (int i = 0; i < SIZE; i++) want[i] = ARRAYS * i;
        expect_ints(sum, want, SIZE, s);
        assert_in_range(stats_of(d).dispatches, g == 2 ? 2 : 1, g == 2 ? ARRAYS - 1 : 1);
        for (int i = 0; i < ARRAYS; i++) mlxvk_array_free(a[i]);
        mlxvk_array_free(sum);
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
    }
}

/* Two products of one x: in one dispatch, which binds 14 buffers, or in two; with the same results. */
static uint64_t two_products(mlxvk_device d, float got[2][64])
{
    mlxvk_stream s = open_stream(d);
    mlxvk_array w[2][3] = { { { NULL } } }, y[2] = { { NULL } }, x;
    mlxvk_optional_int none = { 0, false };
    float values[64 * 128];
    for (int i = 0; i < 64 * 128; i++) values[i] = (float)((i * 37 + i / 128 * 11) % 101 - 50) / 64;
    x = floats(d, values, (int[]){ 1, 128 }, 2);
    for (int k = 0; k < 2; k++) {
        mlxvk_array plain = floats(d, values, (int[]){ 64, 128 }, 2);
        mlxvk_vector_array parts = { NULL };
        OK(mlxvk_quantize(&parts, plain, none, none, "affine", (mlxvk_array){ NULL }, s), s);
        for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&w[k][i], parts, i), s);
        mlxvk_vector_array_free(parts);
        mlxvk_array_free(plain);
        for (int i = 0; i < 64 * 128; i++) values[i] = -values[i] / 2;
    }
    OK(mlxvk_synchronize(s), s);
    uint64_t before = stats_of(d).dispatches;
    for (int k = 0; k < 2; k++)
        OK(mlxvk_quantized_matmul(&y[k], x, w[k][0], w[k][1], w[k][2], true, none, none, "affine", s), s);
    OK(mlxvk_synchronize(s), s);
    before = stats_of(d).dispatches - before;
    for (int k = 0; k < 2; k++) {
        OK(mlxvk_array_read(y[k], got[k], sizeof got[k], s), s);
        mlxvk_array_free(y[k]);
        for (int i = 0; i < 3; i++) mlxvk_array_free(w[k][i]);
    }
    mlxvk_array_free(x);
    mlxvk_stream_free(s);
    return before;
}

static void test_fusions_within_limits(void **state)
{
    (void)state;
    mlxvk_device whole = open_new_device(NULL), few = open_new_device("MLX_VK_MAX_STORAGE_BUFFERS=8");
    float want[2][64], got[2][64];
    size_t subgroup = 0;                             /* the kernel of several products is one for subgroups */
    OK_DEVICE(mlxvk_device_info_get_size(&subgroup, whole, "subgroup"), whole);
    memset(got, 0xff, sizeof got);
    assert_int_equal(two_products(whole, want), subgroup ? 1 : 2);
    assert_int_equal(two_products(few, got), 2);
    assert_memory_equal(got, want, sizeof want);
    mlxvk_device_free(whole);
    mlxvk_device_free(few);
}

/* ---- handles that held something ---- */

static void *count_allocate(size_t size, void *user) { ++*(int *)user; return malloc(size); }
static void count_release(void *pointer, void *user) { --*(int *)user; free(pointer); }

/* A device that tries its kernels ends with all of its memory, whatever the gates are. */
static void test_trials_leave_nothing(void **state)
{
    (void)state;
    int live = 0;
    mlxvk_device d = { NULL };
    const mlxvk_device_desc counted = { .allocator = { count_allocate, count_release, &live },
                                        .gates = "MLX_VK_SELF_TEST=2 MLX_VK_PROFILE=2 MLX_VK_STATS=1" };
    assert_int_equal(create_device(&d, &counted), 0);
    assert_true(live > 0);
    mlxvk_device_free(d);
    assert_int_equal(live, 0);
}

/* What a result handle held is let go: the device ends, with all of its memory. */
static void test_handles_are_replaced(void **state)
{
    (void)state;
    int live = 0;
    mlxvk_device d = { NULL };
    mlxvk_event event = { NULL };
    mlxvk_kernel kernel;
    mlxvk_buffer buffer = { NULL };
    const mlxvk_device_desc counted = { .allocator = { count_allocate, count_release, &live } };
    assert_int_equal(create_device(&d, &counted), 0);
    kernel = combine_kernel(d, 3, 0);
    for (int i = 0; i < 3; i++) {
        const mlxvk_kernel_desc desc = { .spirv = combine_spv, .spirv_size = sizeof combine_spv, .bindings = 3,
                                         .push_size = 16 };
        OK_DEVICE(mlxvk_event_new(&event, d), d);
        OK_DEVICE(mlxvk_kernel_new(&kernel, &desc, d), d);
        OK_DEVICE(mlxvk_buffer_new(&buffer, 1000, d), d);
    }
    mlxvk_event_free(event);
    mlxvk_kernel_free(kernel);
    mlxvk_buffer_free(buffer);
    assert_true(live > 0);
    mlxvk_device_free(d);
    assert_int_equal(live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failed_wait_frees_nothing), cmocka_unit_test(test_times_not_ready),
        cmocka_unit_test(test_memory_types), cmocka_unit_test(test_no_memory_left), cmocka_unit_test(test_few_buffers),
        cmocka_unit_test(test_memory_behind_an_event), cmocka_unit_test(test_few_threads),
        cmocka_unit_test(test_chains_within_limits), cmocka_unit_test(test_fusions_within_limits),
        cmocka_unit_test(test_handles_are_replaced), cmocka_unit_test(test_no_pools),
        cmocka_unit_test(test_memory_in_a_window), cmocka_unit_test(test_trials_leave_nothing),
        cmocka_unit_test(test_flat_workgroups),
    };
    return run_group("driver", tests, NULL, NULL);
}
