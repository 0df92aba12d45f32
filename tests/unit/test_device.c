/* Devices: finding and choosing one, what it says of itself, gates, the pipeline cache, a device of the caller's, a
 * driver that fails. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>
#include "support_vulkan.h"

/* ---- finding ---- */

struct listing { int count; char first[256], type[32]; };

static void note_device(int index, const char *name, const char *type, void *user)
{
    struct listing *l = user;
    assert_int_equal(index, l->count);
    assert_true(name[0] && type[0]);
    if (!l->count++) {
        snprintf(l->first, sizeof l->first, "%s", name);
        snprintf(l->type, sizeof l->type, "%s", type);
    }
}

static void test_list(void **state)
{
    (void)state;
    struct listing l = { 0 };
    assert_true(mlxvk_is_available());
    assert_int_equal(mlxvk_device_list(note_device, &l), 0);
    int count = -1;
    assert_int_equal(mlxvk_device_count(&count, MLXVK_GPU), 0);
    assert_int_equal(l.count, count);
    assert_true(l.count >= 1);
    assert_true(!strcmp(l.type, "cpu") || !strcmp(l.type, "discrete") || !strcmp(l.type, "integrated") ||
                !strcmp(l.type, "virtual") || !strcmp(l.type, "other"));
}

/* Makes a device by name and computes with it. */
static void use_device(const char *name)
{
    mlxvk_device d = { NULL };
    mlxvk_error error = { 0 };
    if (create_device(&d, &(mlxvk_device_desc){ .name = name, .error = &error })) fail_msg("%s", error.text);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, 3), b = { NULL };
    OK(mlxvk_add(&b, a, a, s), s);
    expect_ints(b, (int32_t[]){ 0, 2, 4 }, 3, s);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_choice(void **state)
{
    (void)state;
    struct listing l = { 0 };
    mlxvk_device_list(note_device, &l);
    use_device(NULL);
    use_device("0");
    l.first[5] = 0;                                            /* part of its name */
    use_device(l.first);
}

static void test_no_such_device(void **state)
{
    (void)state;
    static const char *const names[] = { "99", "no such device" };
    for (size_t i = 0; i < COUNT(names); i++) {
        mlxvk_device d = { NULL };
        mlxvk_error error = { 0 };
        assert_int_equal(create_device(&d, &(mlxvk_device_desc){ .name = names[i], .error = &error }),
                         MLXVK_ERROR_NO_DEVICE);
        assert_null(d.ctx);
        assert_int_equal(error.code, MLXVK_ERROR_NO_DEVICE);
        if (!strstr(error.text, names[i])) fail_msg("the text does not name \"%s\": %s", names[i], error.text);
    }
}

static void test_environment_chooses(void **state)
{
    (void)state;
    mlxvk_device d = { NULL };
    setenv("MLX_VK_DEVICE", "no such device", 1);
    int code = create_device(&d, NULL), by_name = create_device(&d, &(mlxvk_device_desc){ .name = "0" });
    unsetenv("MLX_VK_DEVICE");
    assert_int_equal(code, MLXVK_ERROR_NO_DEVICE);
    assert_int_equal(by_name, 0);                              /* the description wins */
    mlxvk_device_free(d);
}

/* A loader without any driver: the text says what to install. */
static void test_no_driver(void **state)
{
    (void)state;
    mlxvk_device d = { NULL };
    mlxvk_error error = { 0 };
    hide_drivers();
    int code = create_device(&d, &(mlxvk_device_desc){ .error = &error });
    bool available = mlxvk_is_available();
    show_drivers();
    assert_int_equal(code, MLXVK_ERROR_NO_DEVICE);
    assert_false(available);
    assert_null(d.ctx);
    assert_non_null(strstr(error.text, "install"));
}

/* ---- what a device says ---- */

static void test_info(void **state)
{
    (void)state;
    static const char *const strings[] = { "device_name", "architecture", "driver" };
    static const char *const sizes[] = {
        "max_buffer_length", "max_recommended_working_set_size", "memory_size", "subgroup_size",
        "max_storage_buffer_range", "shared_memory_size",
    };
    static const char *const flags[] = {
        "unified", "int8", "int16", "int64", "float16", "storage8", "storage16", "bfloat16", "cooperative_matrix",
        "cooperative_matrix2", "push_descriptor", "integer_dot_product", "half_conversion",
    };
    mlxvk_device d = open_device(NULL);
    const char *text = NULL;
    size_t value = 0;
    for (size_t i = 0; i < COUNT(strings); i++) {
        OK_DEVICE(mlxvk_device_info_get_string(&text, d, strings[i]), d);
        assert_true(text[0]);
    }
    for (size_t i = 0; i < COUNT(sizes); i++) {
        OK_DEVICE(mlxvk_device_info_get_size(&value, d, sizes[i]), d);
        assert_true(value > 0);
    }
    for (size_t i = 0; i < COUNT(flags); i++) {
        OK_DEVICE(mlxvk_device_info_get_size(&value, d, flags[i]), d);
        assert_true(value <= 1);
    }
    assert_int_equal(mlxvk_device_info_get_size(&value, d, "colour"), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_device_info_get_size(&value, d, "driver"), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_device_info_get_string(&text, d, "memory_size"), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_device_status(d), 0);
    assert_true(mlxvk_version_text()[0]);
    mlxvk_device_free(d);
}

struct gates { int count; bool ops, no_barriers; char text[256]; };

static void note_gate(const char *line, void *user)
{
    struct gates *g = user;
    g->count++;
    if (strstr(line, "MLX_VK_MAX_OPS_PER_BUFFER")) snprintf(g->text, sizeof g->text, "%s", line);
    if (strstr(line, "MLX_VK_TEST_NO_BARRIERS")) g->no_barriers = true;
}

/* The description's gates win over the environment's. */
static void test_gates(void **state)
{
    (void)state;
    struct gates g = { 0 };
    setenv("MLX_VK_MAX_OPS_PER_BUFFER", "31", 1);
    mlxvk_device from_environment = open_new_device(NULL), from_desc = open_new_device("MLX_VK_MAX_OPS_PER_BUFFER=53");
    unsetenv("MLX_VK_MAX_OPS_PER_BUFFER");
    assert_int_equal(mlxvk_gates(from_environment, note_gate, &g), 0);
    assert_true(g.count > 5 && g.no_barriers);
    assert_non_null(strstr(g.text, "31"));
    assert_int_equal(mlxvk_gates(from_desc, note_gate, &g), 0);
    assert_non_null(strstr(g.text, "53"));
    mlxvk_device_free(from_environment);
    mlxvk_device_free(from_desc);
}

/* ---- lifetime ---- */

/* The device lives as long as anything made from it. */
static void test_outlived(void **state)
{
    (void)state;
    mlxvk_device d = open_new_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, 3);
    mlxvk_buffer buffer = { NULL };
    mlxvk_event event = { NULL };
    OK_DEVICE(mlxvk_buffer_new(&buffer, 1000, d), d);
    OK_DEVICE(mlxvk_event_new(&event, d), d);
    mlxvk_device_free(d);
    OK(mlxvk_add(&a, a, a, s), s);
    expect_ints(a, (int32_t[]){ 0, 2, 4 }, 3, s);
    mlxvk_stream_free(s);
    mlxvk_array_free(a);
    mlxvk_event_free(event);
    assert_true(mlxvk_buffer_size(buffer) >= 1000);
    mlxvk_buffer_free(buffer);
    assert_int_equal(mlxvk_device_free((mlxvk_device){ NULL }), 0);
}

/* Devices do not know of each other. */
static void test_two(void **state)
{
    (void)state;
    mlxvk_device one = open_device(NULL), two = open_new_device(NULL);
    size_t bytes = 1;
    mlxvk_array a = counting(one, 1000);
    OK_DEVICE(mlxvk_device_get_active_memory(&bytes, two), two);
    assert_int_equal(bytes, 0);
    OK_DEVICE(mlxvk_device_get_active_memory(&bytes, one), one);
    assert_true(bytes >= 4000);
    mlxvk_array_free(a);
    mlxvk_device_free(one);
    mlxvk_device_free(two);
}

/* Streams that have a queue to themselves and streams that share one, each of which goes on with another's result. */
static void test_queues(void **state)
{
    (void)state;
    static const char *const gates[] = { "MLX_VK_QUEUES=-1", "MLX_VK_QUEUES=1", "MLX_VK_QUEUES=2", "MLX_VK_QUEUES=5", "MLX_VK_QUEUES=1000" };
    enum { STREAMS = 7, ROUNDS = 3 };
    for (size_t i = 0; i < COUNT(gates); i++) {
        mlxvk_device d = { 0 };
        mlxvk_stream s[STREAMS];
        mlxvk_array x = { 0 }, one = { 0 };
        float value = 0;
        assert_int_equal(mlxvk_device_create(&d, &(mlxvk_device_desc){ .gates = gates[i] }), 0);
        for (int k = 0; k < STREAMS; k++) s[k] = mlxvk_stream_new_device(d);
        OK(mlxvk_zeros(&x, NULL, 0, MLXVK_FLOAT32, s[0]), s[0]);
        OK(mlxvk_ones(&one, NULL, 0, MLXVK_FLOAT32, s[0]), s[0]);
        for (int k = 0; k < ROUNDS * STREAMS; k++) OK(mlxvk_add(&x, x, one, s[k % STREAMS]), s[k % STREAMS]);
        OK(mlxvk_array_item_float32(&value, x), s[0]);
        assert_true(value == ROUNDS * STREAMS);
        mlxvk_array_free(x);
        mlxvk_array_free(one);
        for (int k = 0; k < STREAMS; k++) mlxvk_stream_free(s[k]);
        mlxvk_device_free(d);
    }
}

static void test_stats(void **state)
{
    (void)state;
    mlxvk_device d = open_new_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, 3), b = { NULL };
    OK(mlxvk_add(&b, a, a, s), s);
    OK(mlxvk_synchronize(s), s);
    mlxvk_stats stats = stats_of(d);
    assert_int_equal(stats.operations, 1);
    assert_int_equal(stats.dispatches, 1);
    assert_int_equal(stats.submissions, 1);
    assert_int_equal(stats.pipelines, 1);
    assert_int_equal(mlxvk_reset_stats(d), 0);
    stats = stats_of(d);
    assert_int_equal(stats.operations + stats.dispatches + stats.submissions, 0);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* ---- the pipeline cache ---- */

static void compute_with_cache(const void *data, size_t size)
{
    mlxvk_device d = { NULL };
    mlxvk_error error = { 0 };
    const mlxvk_device_desc desc = { .pipeline_cache = data, .pipeline_cache_size = size, .error = &error };
    if (create_device(&d, &desc)) fail_msg("%s", error.text);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, 3), b = { NULL };
    OK(mlxvk_add(&b, a, a, s), s);
    expect_ints(b, (int32_t[]){ 0, 2, 4 }, 3, s);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* A cache of an earlier run, a broken one and somebody else's: the result is the same. */
static void test_pipeline_cache(void **state)
{
    (void)state;
    mlxvk_device d = open_device(NULL);
    size_t size = 0, less = 1;
    OK_DEVICE(mlxvk_pipeline_cache_data(d, NULL, &size), d);
    assert_true(size >= 16);
    unsigned char *data = malloc(size);
    OK_DEVICE(mlxvk_pipeline_cache_data(d, data, &size), d);
    assert_int_not_equal(mlxvk_pipeline_cache_data(d, data, &less), 0);
    mlxvk_device_free(d);
    compute_with_cache(data, size);
    compute_with_cache(data, size / 2);
    memset(data, 0x5A, size);
    compute_with_cache(data, size);
    compute_with_cache(data, 3);
    free(data);
}

/* ---- a device of the caller's, and a driver that fails ---- */

static int locks, unlocks;

static void lock_queue(void *user)
{
    assert_ptr_equal(user, &locks);
    assert_int_equal(locks++, unlocks);                        /* not within each other */
}
static void unlock_queue(void *user)
{
    assert_ptr_equal(user, &locks);
    assert_int_equal(++unlocks, locks);
}

/* driver: NULL for the true one. */
static mlxvk_device adopt(void *driver, bool small_storage)
{
    mlxvk_adopt a;
    mlxvk_device d = { NULL };
    mlxvk_error error = { 0 };
    own_vulkan(&a, small_storage);
    a.get_instance_proc_addr = driver;
    a.lock_queue = lock_queue, a.unlock_queue = unlock_queue, a.user = &locks;
    if (create_device(&d, &(mlxvk_device_desc){ .adopt = &a, .error = &error })) fail_msg("%s", error.text);
    return d;
}

static void test_adopt(void **state)
{
    (void)state;
    locks = unlocks = 0;
    mlxvk_device d = adopt(NULL, true);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, 1000), b = { NULL };
    OK(mlxvk_multiply(&b, a, a, s), s);
    int32_t want[1000];
    for (int i = 0; i < 1000; i++) want[i] = i * i;
    expect_ints(b, want, 1000, s);
    assert_true(locks > 0);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    assert_int_equal(locks, unlocks);
    end_vulkan();                                              /* still the caller's */
}

/* Without locks a queue is used as it is; with one of them alone it cannot be used: an error says which is missing. */
static void adopt_with_locks(mlxvk_adopt a)
{
    mlxvk_error error = { 0 };
    for (int given = 0; given < 4; given++) {
        mlxvk_device d = { NULL };
        mlxvk_array x, y = { NULL };
        a.lock_queue = given & 1 ? lock_queue : NULL;
        a.unlock_queue = given & 2 ? unlock_queue : NULL;
        a.user = given == 3 ? &locks : NULL;
        locks = unlocks = 0;
        int code = create_device(&d, &(mlxvk_device_desc){ .adopt = &a, .error = &error });
        if (given == 1 || given == 2) {
            assert_int_equal(code, MLXVK_ERROR_ARGUMENT);
            assert_non_null(strstr(error.text, given == 1 ? "unlock_queue is NULL" : " lock_queue is NULL"));
            assert_null(d.ctx);
            continue;
        }
        if (code) fail_msg("%s", error.text);
        mlxvk_stream s = open_stream(d);
        x = counting(d, 4);
        OK(mlxvk_square(&y, x, s), s);
        expect_ints(y, (int32_t[]){ 0, 1, 4, 9 }, 4, s);
        mlxvk_array_free(x);
        mlxvk_array_free(y);
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
        assert_true(given ? locks > 0 : locks == 0);
        assert_int_equal(locks, unlocks);
    }
}

static void test_adopt_less(void **state)
{
    (void)state;
    mlxvk_adopt whole;
    own_vulkan(&whole, true);
    for (int i = 0; i < 5; i++) {
        mlxvk_adopt a = whole;
        mlxvk_device d = { NULL };
        mlxvk_error error = { 0 };
        *(i == 0 ? &a.instance : i == 1 ? &a.physical_device : i == 2 ? &a.device : &a.queue) = NULL;
        if (i == 4) a = whole, a.extension_count = 1, a.extensions = NULL;
        assert_int_equal(create_device(&d, &(mlxvk_device_desc){ .adopt = &a, .error = &error }), MLXVK_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "adopt"));
        assert_null(d.ctx);
    }
    assert_int_equal(mlxvk_device_list(NULL, NULL), MLXVK_ERROR_ARGUMENT);
    adopt_with_locks(whole);
    end_vulkan();
}

/* A feature that was not enabled: a clear error, or the right result without it. */
static void test_least_device(void **state)
{
    (void)state;
    mlxvk_device d = adopt(NULL, false);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, 3), b = { NULL };
    int32_t got[3] = { 0 };
    mlxvk_error error = { 0 };
    int code = mlxvk_add(&b, a, a, s);
    if (!code) code = mlxvk_array_read(b, got, sizeof got, s);
    mlxvk_stream_error(s, &error);
    if (!code) assert_int_equal(got[2], 4);
    else assert_int_equal(code, MLXVK_ERROR_UNSUPPORTED);
    if (code && !strstr(error.text, "storage")) fail_msg("the text does not say what the device lacks: %s", error.text);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    end_vulkan();
}

/* Work that a queue refuses for want of memory is submitted once more; refused again it is lost, and nothing that it was to
 * compute can be read. -1 and -2: VK_ERROR_OUT_OF_HOST_MEMORY and VK_ERROR_OUT_OF_DEVICE_MEMORY. */
static void test_refused_work(void **state)
{
    (void)state;
    for (int times = 1; times <= 2; times++) {
        fail_submits = times;
        submit_failure = -times;
        mlxvk_device d = adopt(failing_driver(), true);
        mlxvk_stream s = open_stream(d);
        mlxvk_array a = counting(d, 5), b = { NULL }, c = { NULL };
        int32_t got[5] = { 0 };
        fail_submits_after = 0;
        OK(mlxvk_add(&b, a, a, s), s);
        int code = mlxvk_finalize(s);
        assert_int_equal(code, times == 1 ? 0 : MLXVK_ERROR_DEVICE_LOST);
        if (!code) code = mlxvk_negative(&c, b, s);
        if (times == 1) expect_ints(c, (int32_t[]){ 0, -2, -4, -6, -8 }, 5, s);
        else assert_int_equal(mlxvk_array_read(b, got, sizeof got, s), MLXVK_ERROR_DEVICE_LOST);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
        mlxvk_array_free(c);
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
        end_vulkan();
    }
    fail_submits_after = fail_submits = -1;
    submit_failure = -4;                                       /* VK_ERROR_DEVICE_LOST */
}

#ifdef VK_EXT_device_fault
static char logged[600];
static void take_line(const char *line, void *user) { (void)user; snprintf(logged, sizeof logged, "%s", line); }

/* A device that is lost when a queue is asked for the second time says what the driver says, and what was at work. */
static void test_why_lost(void **state)
{
    (void)state;
    static const char *const extensions[] = { "VK_EXT_device_fault" };
    static VkPhysicalDeviceFaultFeaturesEXT fault = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FAULT_FEATURES_EXT, .deviceFault = VK_TRUE };
    mlxvk_error error = { 0 };
    mlxvk_adopt a;
    own_vulkan(&a, true);
    fault.pNext = (void *)(uintptr_t)a.features;
    a.features = &fault;
    a.extensions = extensions;
    a.extension_count = 1;
    a.get_instance_proc_addr = failing_driver();
    fail_submits_after = 1;
    driver.tells_fault = true;
    mlxvk_device d = { NULL };
    assert_int_equal(create_device(&d, &(mlxvk_device_desc){ .adopt = &a, .on_log = take_line }), 0);
    mlxvk_stream s = open_stream(d);
    mlxvk_array x = counting(d, 3), y = { NULL };
    OK(mlxvk_square(&y, x, s), s);
    expect_ints(y, (int32_t[]){ 0, 1, 4 }, 3, s);
    OK(mlxvk_cumsum(&y, y, 0, false, true, s), s);
    assert_int_equal(mlxvk_synchronize(s), MLXVK_ERROR_DEVICE_LOST);
    mlxvk_stream_error(s, &error);
    const char *const said[] = { "the device was lost", "a page that is not there", "0xabcd000", "unit 7 (0x4d)", "scan" };
    for (size_t i = 0; i < COUNT(said); i++) if (!strstr(error.text, said[i])) fail_msg("not said: %s", error.text);
    assert_null(strstr(error.text, "unary"));                  /* that was done */
    assert_non_null(strstr(logged, said[1]));
    mlxvk_device_error(d, &error);
    assert_int_equal(error.code, MLXVK_ERROR_DEVICE_LOST);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    fail_submits_after = -1;
    driver.tells_fault = false;
    end_vulkan();
}

#define WHY_LOST cmocka_unit_test(test_why_lost),
#else
#define WHY_LOST                                               /* the headers are older */
#endif

static void *signal_one(void *event)
{
    mlxvk_event_signal_host(*(mlxvk_event *)event, 1);         /* refused, where it comes late */
    return NULL;
}

/* Two threads signal an event: it does not go back, however long one of them takes. */
static void two_signal(mlxvk_device d)
{
    pthread_t thread;
    mlxvk_event e = { NULL };
    OK_DEVICE(mlxvk_event_new(&e, d), d);
    driver.slow_signal = 1;
    assert_int_equal(pthread_create(&thread, NULL, signal_one, &e), 0);
    nanosleep(&(struct timespec){ 0, 30000000 }, NULL);
    OK_DEVICE(mlxvk_event_signal_host(e, 2), d);
    pthread_join(thread, NULL);
    driver.slow_signal = 0;
    assert_true(mlxvk_event_is_signaled(e, 2));
    assert_false(driver.signalled_back);
    mlxvk_event_free(e);
}

/* The host's signals come one after the other, but on a device that is lost they do not wait for one of a stream, which
 * may never come. */
static void test_signals(void **state)
{
    (void)state;
    mlxvk_device d = adopt(failing_driver(), true);
    mlxvk_event gate = { NULL }, e = { NULL };
    mlxvk_stream waiting = open_stream(d), refused = open_stream(d);
    two_signal(d);
    OK_DEVICE(mlxvk_event_new(&gate, d), d);
    OK_DEVICE(mlxvk_event_new(&e, d), d);
    OK(mlxvk_event_wait(gate, 1, waiting), waiting);
    OK(mlxvk_event_signal(e, 3, waiting), waiting);
    fail_submits_after = 0;
    fail_submits = 1;
    assert_int_equal(mlxvk_event_signal(gate, 1, refused), MLXVK_ERROR_DEVICE_LOST);
    fail_submits_after = fail_submits = -1;
    assert_int_equal(mlxvk_event_signal_host(e, 5), MLXVK_ERROR_DEVICE_LOST);
    assert_int_equal(mlxvk_event_signal_host(gate, 2), 0);              /* the first stream's work goes on */
    mlxvk_stream_free(waiting);
    mlxvk_stream_free(refused);
    mlxvk_event_free(gate);
    mlxvk_event_free(e);
    mlxvk_device_free(d);
    end_vulkan();
}

struct waiter { mlxvk_stream stream; mlxvk_event event; int code; };

static void *synchronize_it(void *argument)
{
    struct waiter *w = argument;
    w->code = mlxvk_synchronize(w->stream);
    return NULL;
}

static void *wait_for_it(void *argument)
{
    struct waiter *w = argument;
    w->code = mlxvk_event_wait_host(w->event, 3, UINT64_MAX);
    return NULL;
}

/* Who waits on a device that is lost to the library alone, since a queue refused what others wait for, is not stuck, be it
 * that it waits already; and what the queue may still be at work on stays when its stream is freed. */
static void test_waits_of_lost(void **state)
{
    (void)state;
    pthread_t threads[2];
    mlxvk_device d = adopt(failing_driver(), true);
    mlxvk_event gate = { NULL }, e = { NULL };
    mlxvk_stream waiting = open_stream(d), refused = open_stream(d);
    mlxvk_array a = counting(d, 5), b = { NULL };
    OK_DEVICE(mlxvk_event_new(&gate, d), d);
    OK_DEVICE(mlxvk_event_new(&e, d), d);
    OK(mlxvk_event_wait(gate, 1, waiting), waiting);
    OK(mlxvk_add(&b, a, a, waiting), waiting);
    OK(mlxvk_event_signal(e, 3, waiting), waiting);
    struct waiter w[2] = { { waiting, e, 0 }, { waiting, e, 0 } };
    assert_int_equal(pthread_create(&threads[0], NULL, synchronize_it, &w[0]), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, wait_for_it, &w[1]), 0);
    nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
    submit_failure = -2;                                       /* VK_ERROR_OUT_OF_DEVICE_MEMORY, twice */
    fail_submits_after = 0;
    fail_submits = 2;
    assert_int_equal(mlxvk_event_signal(gate, 1, refused), MLXVK_ERROR_DEVICE_LOST);
    fail_submits_after = fail_submits = -1;
    submit_failure = -4;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(w[i].code, MLXVK_ERROR_DEVICE_LOST);
    }
    mlxvk_array_free(b);
    mlxvk_stream_free(waiting);
    mlxvk_stream_free(refused);
    assert_false(mlxvk_event_is_signaled(e, 3));
    assert_int_equal(mlxvk_event_signal_host(gate, 2), 0);     /* the queue goes on with what it has */
    while (!mlxvk_event_is_signaled(e, 3)) nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    mlxvk_array_free(a);
    mlxvk_event_free(gate);
    mlxvk_event_free(e);
    mlxvk_device_free(d);
    end_vulkan();
}

/* A lost device is an error that stays; nothing crashes, and closing works. */
static void test_lost(void **state)
{
    (void)state;
    fail_submits_after = 1;
    mlxvk_device d = adopt(failing_driver(), true);
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = counting(d, 3), b = { NULL }, c = { NULL };
    mlxvk_error error = { 0 };
    int32_t got[3];
    OK(mlxvk_add(&b, a, a, s), s);
    expect_ints(b, (int32_t[]){ 0, 2, 4 }, 3, s);
    int code = mlxvk_add(&c, b, a, s);
    if (!code) code = mlxvk_array_read(c, got, sizeof got, s);
    assert_int_equal(code, MLXVK_ERROR_DEVICE_LOST);
    mlxvk_stream_error(s, &error);
    assert_int_equal(error.code, MLXVK_ERROR_DEVICE_LOST);
    fail_submits_after = -1;
    assert_int_equal(mlxvk_device_status(d), MLXVK_ERROR_DEVICE_LOST);
    assert_int_equal(mlxvk_add(&c, a, a, s), MLXVK_ERROR_DEVICE_LOST);
    assert_int_equal(mlxvk_synchronize(s), MLXVK_ERROR_DEVICE_LOST);
    assert_int_not_equal(mlxvk_array_read(c, got, sizeof got, s), 0);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(c);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    end_vulkan();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list), cmocka_unit_test(test_choice), cmocka_unit_test(test_no_such_device),
        cmocka_unit_test(test_environment_chooses), cmocka_unit_test(test_no_driver), cmocka_unit_test(test_info),
        cmocka_unit_test(test_gates), cmocka_unit_test(test_outlived), cmocka_unit_test(test_two), cmocka_unit_test(test_queues),
        cmocka_unit_test(test_stats), cmocka_unit_test(test_pipeline_cache), cmocka_unit_test(test_adopt), cmocka_unit_test(test_adopt_less),
        cmocka_unit_test(test_least_device), cmocka_unit_test(test_lost), cmocka_unit_test(test_signals),
        cmocka_unit_test(test_waits_of_lost), WHY_LOST cmocka_unit_test(test_refused_work),
    };
    return run_group("device", tests, NULL, NULL);
}
