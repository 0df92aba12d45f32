/* Streams: commit thresholds, the window of submissions, order across streams, events, threads. */
#define _GNU_SOURCE                                                /* RTLD_NEXT */
#include "support.h"
#include <math.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static mlxvk_event new_event(mlxvk_device device)
{
    mlxvk_event event = { NULL };
    OK_DEVICE(mlxvk_event_new(&event, device), device);
    return event;
}

/* ---- commit thresholds ---- */

/* Independent operations whose results are all held, so that none can be dropped or fused; the submissions that they
 * took, or those among them that came before anything was asked for. */
static uint64_t submissions_of(struct setting *s, int operations, int elements, bool unasked)
{
    mlxvk_array a = counting(s->device, elements), *results = calloc((size_t)operations, sizeof *results);
    OK(mlxvk_synchronize(s->stream), s->stream);
    uint64_t before = stats_of(s->device).submissions;
    for (int i = 0; i < operations; i++) OK(mlxvk_square(&results[i], a, s->stream), s->stream);
    uint64_t submissions = stats_of(s->device).submissions - before;
    OK(mlxvk_synchronize(s->stream), s->stream);
    if (!unasked) submissions = stats_of(s->device).submissions - before;
    for (int i = 0; i < operations; i++) mlxvk_array_free(results[i]);
    mlxvk_array_free(a);
    free(results);
    return submissions;
}

static void test_operations_threshold(void **state)
{
    (void)state;
    struct setting few = start("MLX_VK_MAX_OPS_PER_BUFFER=10"), many = start("MLX_VK_MAX_OPS_PER_BUFFER=100");
    assert_in_range(submissions_of(&few, 195, 16, false), 20, 21);
    assert_in_range(submissions_of(&many, 195, 16, false), 2, 3);
    assert_in_range(submissions_of(&many, 1000, 16, true), 5, 10);   /* the rest is on the tape still */
    finish(&few);
    finish(&many);
}

/* The default is 100 operations. */
static void test_default_threshold(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    assert_int_equal(submissions_of(&s, 90, 16, true), 0);
    assert_in_range(submissions_of(&s, 995, 16, false), 10, 13);   /* windows end submissions, too */
    finish(&s);
}

/* 32 MiB of results in parts of 4: as many as there are where the device is idle each time, and 2 where it is at work from the
 * first one on, so that the others' bytes count an eighth. */
static void test_bytes_threshold(void **state)
{
    (void)state;
    struct setting small = start("MLX_VK_MAX_MB_PER_BUFFER=4 MLX_VK_MAX_OPS_PER_BUFFER=100000 MLX_VK_MAX_MS_PER_BUFFER=0");
    struct setting large = start("MLX_VK_MAX_MB_PER_BUFFER=1000 MLX_VK_MAX_OPS_PER_BUFFER=100000 MLX_VK_MAX_MS_PER_BUFFER=0");
    assert_in_range(submissions_of(&small, 32, 1 << 18, false), 2, 12);       /* results of 1 MiB each */
    assert_int_equal(submissions_of(&large, 32, 1 << 18, false), 1);
    finish(&small);
    finish(&large);
}

/* Sums of sums, one after the other, until so many submissions were made unasked, or `most` of them; how many. */
static int sums_until(struct setting *s, uint64_t submissions, int most)
{
    const char *type = "";
    int n = 0;
    OK_DEVICE(mlxvk_device_info_get_string(&type, s->device, "type"), s->device);
    mlxvk_array a = counting(s->device, strcmp(type, "cpu") ? 1 << 20 : 1 << 14);
    OK(mlxvk_synchronize(s->stream), s->stream);
    submissions += stats_of(s->device).submissions;
    for (; n < most && stats_of(s->device).submissions < submissions; n++)
        OK(mlxvk_cumsum(&a, a, 0, false, true, s->stream), s->stream);
    OK(mlxvk_synchronize(s->stream), s->stream);
    mlxvk_array_free(a);
    return n;
}

/* By the time that the work takes, as the device's row of tunings estimates it: a few thousand sums take more than a
 * millisecond on every device, and those after which a first submission was made not a second. */
static void test_time_threshold(void **state)
{
    (void)state;
    enum { MOST = 6000 };
    struct setting any = start("MLX_VK_MAX_MB_PER_BUFFER=1000000 MLX_VK_MAX_OPS_PER_BUFFER=1000000 MLX_VK_MAX_MS_PER_BUFFER=0");
    struct setting one = start("MLX_VK_MAX_MB_PER_BUFFER=1000000 MLX_VK_MAX_OPS_PER_BUFFER=1000000 MLX_VK_MAX_MS_PER_BUFFER=1");
    struct setting second = start("MLX_VK_MAX_MB_PER_BUFFER=1000000 MLX_VK_MAX_OPS_PER_BUFFER=1000000 MLX_VK_MAX_MS_PER_BUFFER=1000");
    int n = sums_until(&one, 1, MOST);
    assert_true(n < MOST);
    assert_int_equal(sums_until(&any, 1, n), n);
    assert_int_equal(sums_until(&second, 1, n), n);
    finish(&any);
    finish(&one);
    finish(&second);
}

/* A product of tables, its dispatches counted. */
static uint64_t product_of_tables(struct setting *s, float *to, int n, int k)
{
    mlxvk_array a = mlxvk_array_new(), b = mlxvk_array_new();
    OK(mlxvk_arange(&a, 0, n * k, 1, MLXVK_FLOAT32, s->stream), s->stream);
    OK(mlxvk_sin(&a, a, s->stream), s->stream);
    OK(mlxvk_reshape(&b, a, (int[]){ k, n }, 2, s->stream), s->stream);
    OK(mlxvk_reshape(&a, a, (int[]){ n, k }, 2, s->stream), s->stream);
    OK(mlxvk_synchronize(s->stream), s->stream);
    uint64_t before = stats_of(s->device).dispatches;
    OK(mlxvk_matmul(&a, a, b, s->stream), s->stream);
    OK(mlxvk_array_read(a, to, (size_t)n * (size_t)n * sizeof *to, s->stream), s->stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    return stats_of(s->device).dispatches - before;
}

/* A dispatch that would take too long, by the same estimate, is cut. */
static void test_long_dispatch(void **state)
{
    (void)state;
    enum { SIDE = 1024, DEPTH = 64 };
    struct setting whole = start("MLX_VK_MAX_US_PER_DISPATCH=0"), cut = start("MLX_VK_MAX_US_PER_DISPATCH=1");
    float *want = malloc(2 * SIDE * SIDE * sizeof *want), *got = want + SIDE * SIDE;
    assert_non_null(want);
    memset(want, 0xff, 2 * SIDE * SIDE * sizeof *want);
    assert_in_range(product_of_tables(&whole, want, SIDE, DEPTH), 1, 2);         /* a CPU driver turns b first */
    assert_true(product_of_tables(&cut, got, SIDE, DEPTH) >= 4);
    for (int i = 0; i < SIDE * SIDE; i++) assert_true(fabsf(got[i] - want[i]) <= 1e-4f);
    free(want);
    finish(&whole);
    finish(&cut);
}

/* Nothing is submitted before something asks. */
static void test_laziness(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_array a = counting(s.device, 8), b = { NULL };
    OK(mlxvk_synchronize(s.stream), s.stream);
    uint64_t before = stats_of(s.device).submissions;
    OK(mlxvk_add(&b, a, a, s.stream), s.stream);
    assert_int_equal(stats_of(s.device).submissions, before);
    OK(mlxvk_finalize(s.stream), s.stream);
    assert_int_equal(stats_of(s.device).submissions, before + 1);
    expect_ints(b, (int32_t[]){ 0, 2, 4, 6, 8, 10, 12, 14 }, 8, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    finish(&s);
}

/* ---- the window of submissions ---- */

struct submitter { struct setting *s; atomic_int done; };

enum { SUBMISSIONS = 6 };

static void *submit_many(void *argument)
{
    struct submitter *w = argument;
    mlxvk_array a = counting(w->s->device, 8);
    for (int i = 0; i < SUBMISSIONS; i++) {
        mlxvk_array b = { NULL };
        if (mlxvk_add(&b, a, a, w->s->stream) || async_eval_one(b)) return "an operation failed";
        mlxvk_array_free(b);
        atomic_fetch_add(&w->done, 1);
    }
    mlxvk_array_free(a);
    return NULL;
}

/* With a window of 2 and a GPU that may not begin, the third submission has to wait. */
static void test_window(void **state)
{
    (void)state;
    struct setting s = start("MLX_VK_MAX_INFLIGHT_SEQUENCES=2");
    struct submitter w = { .s = &s };
    mlxvk_event event = new_event(s.device);
    pthread_t thread;
    void *problem = NULL;
    OK(mlxvk_event_wait(event, 1, s.stream), s.stream);
    assert_int_equal(pthread_create(&thread, NULL, submit_many, &w), 0);
    for (int i = 0; i < 200 && !atomic_load(&w.done); i++) sleep_ms(50);          /* the first one makes a pipeline */
    sleep_ms(300);
    int before = atomic_load(&w.done);
    OK_DEVICE(mlxvk_event_signal_host(event, 1), s.device);
    pthread_join(thread, &problem);
    if (problem) fail_msg("%s", (const char *)problem);
    assert_in_range(before, 1, 3);
    assert_int_equal(atomic_load(&w.done), SUBMISSIONS);
    mlxvk_event_free(event);
    finish(&s);
}

/* ---- finalize and synchronize ---- */

static void test_async_does_not_wait(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_event gate = new_event(s.device), done = new_event(s.device);
    mlxvk_array a = counting(s.device, 4), b = { NULL };
    OK(mlxvk_event_wait(gate, 1, s.stream), s.stream);
    OK(mlxvk_add(&b, a, a, s.stream), s.stream);
    OK_DEVICE(async_eval_one(b), s.device);
    OK(mlxvk_event_signal(done, 5, s.stream), s.stream);
    OK(mlxvk_finalize(s.stream), s.stream);
    assert_false(mlxvk_event_is_signaled(done, 5));
    assert_int_equal(mlxvk_event_wait_host(done, 5, 20 * 1000000), MLXVK_ERROR_NOT_READY);
    OK_DEVICE(mlxvk_event_signal_host(gate, 1), s.device);
    OK(mlxvk_synchronize(s.stream), s.stream);
    OK_DEVICE(mlxvk_event_wait_host(done, 5, 5u * 1000000000u), s.device);
    expect_ints(b, (int32_t[]){ 0, 2, 4, 6 }, 4, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_event_free(gate);
    mlxvk_event_free(done);
    finish(&s);
}

/* Freeing a stream waits for what it has submitted; its results stay. */
static void test_free_stream(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_stream other = open_stream(s.device);
    mlxvk_array a = counting(s.device, 4), b = { NULL }, c = { NULL };
    OK(mlxvk_add(&b, a, a, other), other);
    OK_DEVICE(async_eval_one(b), s.device);
    OK(mlxvk_add(&c, b, a, other), other);                     /* recorded, never asked for */
    mlxvk_stream_free(other);
    expect_ints(b, (int32_t[]){ 0, 2, 4, 6 }, 4, s.stream);
    expect_ints(c, (int32_t[]){ 0, 3, 6, 9 }, 4, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(c);
    assert_int_equal(mlxvk_stream_free((mlxvk_stream){ NULL }), 0);
    finish(&s);
}

static void test_handles(void **state)
{
    (void)state;
    mlxvk_stream one = mlxvk_default_gpu_stream_new(), two = mlxvk_default_gpu_stream_new(), new = mlxvk_stream_new();
    int index[3] = { -1, -2, -3 };
    assert_non_null(one.ctx);
    assert_int_equal(mlxvk_stream_get_index(&index[0], one), 0);
    assert_int_equal(mlxvk_stream_get_index(&index[1], two), 0);
    assert_int_equal(mlxvk_stream_get_index(&index[2], new), 0);
    assert_int_equal(index[0], index[1]);
    assert_int_not_equal(index[0], index[2]);
    assert_ptr_equal(mlxvk_stream_device(one).ctx, mlxvk_stream_device(new).ctx);
    mlxvk_stream_free(one);
    mlxvk_array a = counting(mlxvk_stream_device(two), 3), b = { NULL };
    OK(mlxvk_add(&b, a, a, two), two);
    expect_ints(b, (int32_t[]){ 0, 2, 4 }, 3, two);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_stream_free(two);
    mlxvk_stream_free(new);
}

static void test_clear_streams(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_array a = counting(s.device, 3), b = { NULL };
    OK(mlxvk_add(&b, a, a, s.stream), s.stream);
    OK_DEVICE(mlxvk_clear_streams(s.device), s.device);
    expect_ints(b, (int32_t[]){ 0, 2, 4 }, 3, s.stream);
    OK(mlxvk_add(&b, b, a, s.stream), s.stream);
    expect_ints(b, (int32_t[]){ 0, 3, 6 }, 3, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    finish(&s);
}

/* ---- order across streams ---- */

/* What one stream makes, another uses, and the first may not begin yet. */
static void test_read_after_write(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_stream other = open_stream(s.device);
    mlxvk_event gate = new_event(s.device);
    mlxvk_array a = counting(s.device, 4), b = { NULL }, c = { NULL };
    OK(mlxvk_event_wait(gate, 1, s.stream), s.stream);
    OK(mlxvk_add(&b, a, a, s.stream), s.stream);
    OK(mlxvk_add(&c, b, a, other), other);
    OK_DEVICE(async_eval_one(c), s.device);
    OK(mlxvk_finalize(other), other);
    sleep_ms(30);
    OK_DEVICE(mlxvk_event_signal_host(gate, 1), s.device);
    expect_ints(c, (int32_t[]){ 0, 3, 6, 9 }, 4, other);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(c);
    mlxvk_event_free(gate);
    mlxvk_stream_free(other);
    finish(&s);
}

/* One stream reads what another then updates in place: the reader must see the old values. */
static void test_write_after_read(void **state)
{
    (void)state;
    enum { N = 4096 };
    struct setting s = start(NULL);
    mlxvk_stream other = open_stream(s.device);
    mlxvk_event gate = new_event(s.device);
    mlxvk_array a = counting(s.device, N), update = counting(s.device, 10), doubled = { NULL };
    int32_t want[N];
    OK(mlxvk_event_wait(gate, 1, s.stream), s.stream);
    OK(mlxvk_add(&doubled, a, a, s.stream), s.stream);
    OK_DEVICE(async_eval_one(doubled), s.device);
    OK(mlxvk_slice_update(&a, a, update, (int[]){ 5 }, 1, (int[]){ 15 }, 1, (int[]){ 1 }, 1, other), other);
    OK_DEVICE(async_eval_one(a), s.device);
    sleep_ms(30);
    OK_DEVICE(mlxvk_event_signal_host(gate, 1), s.device);
    for (int i = 0; i < N; i++) want[i] = 2 * i;
    expect_ints(doubled, want, N, s.stream);
    for (int i = 0; i < N; i++) want[i] = i >= 5 && i < 15 ? i - 5 : i;
    expect_ints(a, want, N, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(update);
    mlxvk_array_free(doubled);
    mlxvk_event_free(gate);
    mlxvk_stream_free(other);
    finish(&s);
}

/* ---- events ---- */

static void test_event_host(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_event event = new_event(s.device);
    assert_true(mlxvk_event_is_signaled(event, 0));
    assert_false(mlxvk_event_is_signaled(event, 1));
    double before = seconds();
    assert_int_equal(mlxvk_event_wait_host(event, 1, 50 * 1000000), MLXVK_ERROR_NOT_READY);
    assert_true(seconds() - before >= 0.045);
    OK_DEVICE(mlxvk_event_signal_host(event, 3), s.device);
    assert_true(mlxvk_event_is_signaled(event, 2));
    OK_DEVICE(mlxvk_event_wait_host(event, 3, UINT64_MAX), s.device);
    assert_false(mlxvk_event_is_signaled(event, 4));
    mlxvk_event_free(event);
    assert_int_equal(mlxvk_event_free((mlxvk_event){ NULL }), 0);
    finish(&s);
}

/* Values that are not over those before them, that the device cannot count to, and events of another device are refused: to
 * Vulkan they are undefined, and Mesa loses the device. */
static void test_event_values(void **state)
{
    (void)state;
    struct setting s = start(NULL), other = start("MLX_VK_MAX_INFLIGHT_SEQUENCES=2");
    mlxvk_event event = new_event(s.device);
    mlxvk_error error;
    assert_int_equal(mlxvk_event_signal_host(event, 0), MLXVK_ERROR_ARGUMENT);
    OK_DEVICE(mlxvk_event_signal_host(event, 3), s.device);
    assert_int_equal(mlxvk_event_signal_host(event, 3), MLXVK_ERROR_ARGUMENT);
    OK_DEVICE(mlxvk_device_error(s.device, &error), s.device);
    assert_non_null(strstr(error.text, "3"));
    OK(mlxvk_event_signal(event, 7, s.stream), s.stream);
    REFUSED(mlxvk_event_signal(event, 7, s.stream), MLXVK_ERROR_ARGUMENT, s.stream, "7");
    assert_int_equal(mlxvk_event_signal_host(event, 5), MLXVK_ERROR_ARGUMENT);
    REFUSED(mlxvk_event_signal(event, 9, other.stream), MLXVK_ERROR_ARGUMENT, other.stream, "device");
    REFUSED(mlxvk_event_wait(event, 1, other.stream), MLXVK_ERROR_ARGUMENT, other.stream, "device");
    REFUSED(mlxvk_event_wait((mlxvk_event){ NULL }, 1, s.stream), MLXVK_ERROR_ARGUMENT, s.stream, "event");
    OK(mlxvk_event_signal(event, 8, s.stream), s.stream);
    OK(mlxvk_synchronize(s.stream), s.stream);
    OK_DEVICE(mlxvk_device_status(s.device), s.device);
    assert_true(mlxvk_event_is_signaled(event, 8));
    mlxvk_event_free(event);
    finish(&other);
    finish(&s);
}

static void *signal_later(void *event)
{
    sleep_ms(60);
    mlxvk_event_signal_host(*(mlxvk_event *)event, 1);
    return NULL;
}

static void test_event_between_threads(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_event event = new_event(s.device);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, signal_later, &event), 0);
    OK_DEVICE(mlxvk_event_wait_host(event, 1, UINT64_MAX), s.device);
    assert_true(mlxvk_event_is_signaled(event, 1));
    pthread_join(thread, NULL);
    mlxvk_event_free(event);
    finish(&s);
}

/* A signal that is over one that a stream has yet to give does not come before it, be it the host's or another stream's:
 * the event would go back. */
static void test_event_never_goes_back(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_stream other = open_stream(s.device);
    mlxvk_event gate = new_event(s.device), event = new_event(s.device);
    for (int by = 0; by < 2; by++) {
        uint64_t first = 2 * (uint64_t)by + 1, opened = (uint64_t)by + 1;
        pthread_t thread;
        OK(mlxvk_event_wait(gate, opened, s.stream), s.stream);
        OK(mlxvk_event_signal(event, first, s.stream), s.stream);
        if (by) OK(mlxvk_event_signal(event, first + 1, other), other);
        assert_false(mlxvk_event_is_signaled(event, first));
        if (by) OK_DEVICE(mlxvk_event_signal_host(gate, opened), s.device);
        else assert_int_equal(pthread_create(&thread, NULL, signal_later, &gate), 0);
        if (!by) OK_DEVICE(mlxvk_event_signal_host(event, first + 1), s.device);
        OK(mlxvk_synchronize(s.stream), s.stream);
        OK(mlxvk_synchronize(other), other);
        assert_true(mlxvk_event_is_signaled(event, first + 1));
        if (!by) pthread_join(thread, NULL);
    }
    OK_DEVICE(mlxvk_device_status(s.device), s.device);
    mlxvk_event_free(event);
    mlxvk_event_free(gate);
    mlxvk_stream_free(other);
    finish(&s);
}

/* Freeing an event does not wait for the work that names it, submitted or not. */
static void test_event_freed_in_use(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_stream second = open_stream(s.device);
    mlxvk_event gate = new_event(s.device);
    mlxvk_array a = counting(s.device, 4), b = { NULL }, c = { NULL };
    for (int round = 0; round < 20; round++) {
        mlxvk_event between = new_event(s.device);
        if (round % 2 == 0) OK(mlxvk_event_wait(gate, (uint64_t)round + 1, s.stream), s.stream);
        OK(mlxvk_add(&b, a, a, s.stream), s.stream);
        OK(mlxvk_event_signal(between, 1, s.stream), s.stream);        /* submitted, and behind the gate */
        OK(mlxvk_event_wait(between, 1, second), second);              /* not even submitted */
        mlxvk_event_free(between);
        assert_int_equal(mlxvk_event_wait_host(gate, (uint64_t)round + 1, 0), MLXVK_ERROR_NOT_READY);
        OK(mlxvk_add(&c, a, a, second), second);
        if (round % 3 == 0) OK(mlxvk_finalize(second), second);
        OK_DEVICE(mlxvk_event_signal_host(gate, (uint64_t)round + 1), s.device);
        OK(mlxvk_synchronize(second), second);
    }
    OK(mlxvk_synchronize(s.stream), s.stream);
    expect_ints(b, (int32_t[]){ 0, 2, 4, 6 }, 4, s.stream);
    expect_ints(c, (int32_t[]){ 0, 2, 4, 6 }, 4, second);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(c);
    mlxvk_event_free(gate);
    mlxvk_stream_free(second);
    finish(&s);
}

/* Two streams hand a value back and forth through events alone (a buffer that the library cannot see ordered). */
static void test_ping_pong(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_stream streams[2] = { s.stream, open_stream(s.device) };
    mlxvk_event turn = new_event(s.device);
    mlxvk_array values = counting(s.device, 3), one = mlxvk_array_new();
    OK_DEVICE(mlxvk_array_new_data_device(&one, (int32_t[]){ 1 }, NULL, 0, MLXVK_INT32, s.device), s.device);
    for (uint64_t i = 0; i < 12; i++) {
        mlxvk_stream now = streams[i % 2];
        OK(mlxvk_event_wait(turn, i, now), now);
        OK(mlxvk_add(&values, values, one, now), now);
        OK_DEVICE(async_eval_one(values), s.device);
        OK(mlxvk_event_signal(turn, i + 1, now), now);
        OK(mlxvk_finalize(now), now);
    }
    OK_DEVICE(mlxvk_event_wait_host(turn, 12, UINT64_MAX), s.device);
    expect_ints(values, (int32_t[]){ 12, 13, 14 }, 3, s.stream);
    mlxvk_array_free(values);
    mlxvk_array_free(one);
    mlxvk_event_free(turn);
    mlxvk_stream_free(streams[1]);
    finish(&s);
}

/* A wait holds back what comes after it and nothing that came before. */
static void test_wait_orders(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_event gate = new_event(s.device), before = new_event(s.device), after = new_event(s.device);
    OK(mlxvk_event_signal(before, 1, s.stream), s.stream);
    OK(mlxvk_event_wait(gate, 1, s.stream), s.stream);
    OK(mlxvk_event_signal(after, 1, s.stream), s.stream);
    OK(mlxvk_finalize(s.stream), s.stream);
    OK_DEVICE(mlxvk_event_wait_host(before, 1, 5u * 1000000000u), s.device);
    sleep_ms(30);
    assert_false(mlxvk_event_is_signaled(after, 1));
    OK_DEVICE(mlxvk_event_signal_host(gate, 1), s.device);
    OK_DEVICE(mlxvk_event_wait_host(after, 1, UINT64_MAX), s.device);
    mlxvk_event_free(gate);
    mlxvk_event_free(before);
    mlxvk_event_free(after);
    finish(&s);
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 40, WIDTH = 513 };

struct worker { mlxvk_device device; mlxvk_array shared; int number; pthread_t thread; };

static const char *work_once(struct worker *w, mlxvk_stream stream, int round)
{
    int32_t got[WIDTH];
    mlxvk_array factor = { NULL }, res = { NULL };
    const int32_t value = w->number * 1000 + round;
    if (mlxvk_array_new_data_device(&factor, &value, NULL, 0, MLXVK_INT32, w->device)) return "no array";
    if (mlxvk_multiply(&res, w->shared, factor, stream)) return "multiply failed";
    if (mlxvk_add(&res, res, w->shared, stream)) return "add failed";
    if (mlxvk_array_read(res, got, sizeof got, stream)) return "read failed";
    mlxvk_array_free(factor);
    mlxvk_array_free(res);
    for (int i = 0; i < WIDTH; i++)
        if (got[i] != i * (value + 1)) return "a wrong result";
    return NULL;
}

static void *work(void *argument)
{
    struct worker *w = argument;
    mlxvk_stream stream = mlxvk_stream_new_device(w->device);
    const char *problem = stream.ctx ? NULL : "no stream";
    for (int i = 0; i < ROUNDS && !problem; i++) problem = work_once(w, stream, i);
    mlxvk_stream_free(stream);
    return (void *)problem;
}

/* Several threads with a stream each, and an array that all of them read. */
static void test_threads(void **state)
{
    (void)state;
    struct setting s = start("MLX_VK_MAX_OPS_PER_BUFFER=3");
    struct worker workers[THREADS];
    mlxvk_array shared = counting(s.device, WIDTH);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){ .device = s.device, .shared = shared, .number = i + 1 };
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *problem;
        pthread_join(workers[i].thread, &problem);
        if (problem) fail_msg("thread %d: %s", i, (const char *)problem);
    }
    mlxvk_array_free(shared);
    finish(&s);
}

/* Signals events after half a minute, should the threads that were to do it be stuck: by the host, which takes no lock.
 * Khronos's validation layer (1.3.239) now and then misses such a signal for ten seconds. */
struct rescuer { mlxvk_event event; atomic_int done, was_needed; pthread_t thread; };

static void *rescue(void *argument)
{
    struct rescuer *r = argument;
    for (int i = 0; i < 600 && !atomic_load(&r->done); i++) sleep_ms(50);
    if (!atomic_load(&r->done)) {
        atomic_store(&r->was_needed, 1);
        mlxvk_event_signal_host(r->event, 1);
    }
    return NULL;
}

static void start_rescuer(struct rescuer *r, mlxvk_event event)
{
    *r = (struct rescuer){ .event = event };
    assert_int_equal(pthread_create(&r->thread, NULL, rescue, r), 0);
}

static bool was_rescued(struct rescuer *r)
{
    atomic_store(&r->done, 1);
    pthread_join(r->thread, NULL);
    return atomic_load(&r->was_needed);
}

enum { READ = 100000 };

struct reader { struct setting *s; mlxvk_array array; atomic_int begun; pthread_t thread; };

static void *read_later(void *argument)
{
    struct reader *r = argument;
    int32_t *got = malloc(READ * sizeof *got);
    const char *problem = got ? NULL : "no memory";
    atomic_store(&r->begun, 1);
    if (got && mlxvk_array_read(r->array, got, READ * sizeof *got, r->s->stream)) problem = "it could not be read";
    for (int i = 0; i < READ && !problem; i++) if (got[i] != -i) problem = "a wrong result";
    free(got);
    return (void *)problem;
}

/* One thread reads what waits for an event; others work meanwhile, and one of them signals it, after calls that need
 * the device. By mapped memory and by staging. */
static void test_reading_stalls_nobody(void **state)
{
    (void)state;
    for (int staging = 0; staging < 2; staging++) {
        struct setting s = start(staging ? "MLX_VK_FORCE_STAGING=1" : NULL);
        mlxvk_event event = new_event(s.device);
        struct reader r = { .s = &s };
        struct rescuer rescuer;
        mlxvk_array a = counting(s.device, READ), other = { NULL };
        void *problem = NULL;
        OK(mlxvk_synchronize(s.stream), s.stream);
        OK(mlxvk_event_wait(event, 1, s.stream), s.stream);
        OK(mlxvk_negative(&r.array, a, s.stream), s.stream);
        start_rescuer(&rescuer, event);
        assert_int_equal(pthread_create(&r.thread, NULL, read_later, &r), 0);
        while (!atomic_load(&r.begun)) sleep_ms(1);
        sleep_ms(200);
        for (int i = 0; i < 3; i++) OK(mlxvk_square(&other, a, s.stream), s.stream);
        mlxvk_event unrelated = new_event(s.device);
        mlxvk_event_signal_host(event, 1);
        pthread_join(r.thread, &problem);
        if (was_rescued(&rescuer)) fail_msg("a read keeps other threads from the device");
        if (problem) fail_msg("%s", (const char *)problem);
        mlxvk_array_free(a);
        mlxvk_array_free(other);
        mlxvk_array_free(r.array);
        mlxvk_event_free(event);
        mlxvk_event_free(unrelated);
        finish(&s);
    }
}

/* What is computed can be read, though its stream waits for an event before it does more. */
static void test_reading_before_an_event(void **state)
{
    (void)state;
    for (int staging = 0; staging < 2; staging++) {
        struct setting s = start(staging ? "MLX_VK_FORCE_STAGING=1" : NULL);
        mlxvk_event event = new_event(s.device);
        struct rescuer rescuer;
        mlxvk_array a = counting(s.device, 5), b = { NULL };
        OK(mlxvk_negative(&b, a, s.stream), s.stream);
        OK(mlxvk_finalize(s.stream), s.stream);
        OK(mlxvk_event_wait(event, 1, s.stream), s.stream);
        start_rescuer(&rescuer, event);
        expect_ints(b, (int32_t[]){ 0, -1, -2, -3, -4 }, 5, s.stream);
        if (was_rescued(&rescuer)) fail_msg("a read waits for what comes after it");
        OK_DEVICE(mlxvk_event_signal_host(event, 1), s.device);
        OK(mlxvk_synchronize(s.stream), s.stream);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
        mlxvk_event_free(event);
        finish(&s);
    }
}

/* More is uploaded at once than staging holds, by several threads. */
static void *upload_much(void *argument)
{
    enum { MUCH = 9 << 20 };
    struct worker *w = argument;
    const char *problem = NULL;
    int32_t *data = malloc(MUCH * sizeof *data), got = 0;
    mlxvk_stream stream = mlxvk_stream_new_device(w->device);
    mlxvk_array a = { NULL }, sum = { NULL };
    for (int i = 0; data && i < MUCH; i++) data[i] = i % 7 + w->number;
    if (!data || !stream.ctx || mlxvk_array_new_data_device(&a, data, (int[]){ MUCH }, 1, MLXVK_INT32, w->device))
        problem = "no array";
    else if (mlxvk_max(&sum, a, false, stream) || mlxvk_array_item_int32(&got, sum)) problem = "no maximum";
    else if (got != 6 + w->number) problem = "a wrong maximum";
    else if (mlxvk_array_read(a, data, MUCH * sizeof *data, stream)) problem = "it could not be read";
    for (int i = 0; i < MUCH && !problem; i++) if (data[i] != i % 7 + w->number) problem = "a wrong element";
    mlxvk_array_free(a);
    mlxvk_array_free(sum);
    mlxvk_stream_free(stream);
    free(data);
    return (void *)problem;
}

static void test_much_staging(void **state)
{
    (void)state;
    struct setting s = start("MLX_VK_FORCE_STAGING=1");
    struct worker workers[3];
    for (int i = 0; i < 3; i++) {
        workers[i] = (struct worker){ .device = s.device, .number = 100 * i };
        assert_int_equal(pthread_create(&workers[i].thread, NULL, upload_much, &workers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *problem;
        pthread_join(workers[i].thread, &problem);
        if (problem) fail_msg("thread %d: %s", i, (const char *)problem);
    }
    finish(&s);
}

/* In place of libc's: a polite thread lets others go first whenever it has let go of a lock, so that they come between
 * two of its calls that ought to be one. */
static _Thread_local bool polite;

#ifndef _WIN32                                                      /* whose locks are not libc's */
int pthread_mutex_unlock(pthread_mutex_t *m)
{
    int (*unlock)(pthread_mutex_t *);
    *(void **)&unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    int code = unlock(m);
    if (polite) nanosleep(&(struct timespec){ 0, 200000 }, NULL);
    return code;
}
#endif

/* Memory that is given back is overwritten, and nobody has it again. */
struct piece { struct piece *next; size_t size; };
static struct { pthread_mutex_t lock; struct piece *first; } spoilt = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *sized_allocate(size_t size, void *user)
{
    struct piece *p = malloc(sizeof *p + size);
    (void)user;
    if (!p) return NULL;
    p->size = size;
    return p + 1;
}

static void spoil(void *pointer, void *user)
{
    struct piece *p = (struct piece *)pointer - 1;
    (void)user;
    memset(pointer, 0xA5, p->size);
    pthread_mutex_lock(&spoilt.lock);
    p->next = spoilt.first;
    spoilt.first = p;
    pthread_mutex_unlock(&spoilt.lock);
}

/* The default stream is exchanged, and ends, while another thread works on it. */
static void *use_default(void *stop)
{
    polite = true;
    mlxvk_array a = mlxvk_array_new_int(20), b = mlxvk_array_new();
    const char *problem = NULL;
    int32_t got = 0;
    for (int i = 0; !problem && (i < 20 || !atomic_load((atomic_int *)stop)); i++) {
        if (mlxvk_add(&b, a, a, (mlxvk_stream){ NULL })) problem = "add failed";
        if (i % 10 == 0 && (mlxvk_array_item_int32(&got, b) || got != 40)) problem = "a wrong sum";
    }
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    return (void *)problem;
}

static void test_default_stream_exchanged(void **state)
{
    (void)state;
    atomic_int stop = 0;
    mlxvk_device d = { NULL }, first = mlxvk_device_new();
    mlxvk_stream fresh = { NULL };
    pthread_t threads[2];
    assert_int_equal(create_device(&d, &(mlxvk_device_desc){ .allocator = { sized_allocate, spoil, NULL } }), 0);
    assert_int_equal(mlxvk_set_default_device(d), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, use_default, &stop), 0);
    for (int i = 0; i < 200; i++) {
        fresh = mlxvk_stream_new();
        assert_int_equal(mlxvk_set_default_stream(fresh), 0);
        mlxvk_stream_free(fresh);                              /* the device alone has it now */
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) {
        void *problem;
        pthread_join(threads[i], &problem);
        if (problem) fail_msg("%s", (const char *)problem);
    }
    assert_int_equal(mlxvk_set_default_device(first), 0);
    mlxvk_device_free(first);
    mlxvk_device_free(d);
    while (spoilt.first) {
        void *next = spoilt.first->next;
        free(spoilt.first);
        spoilt.first = next;
    }
}

/* Blocks that were allocated and not given back. */
static atomic_int blocks;
static void *counted_allocate(size_t size, void *user) { (void)user; atomic_fetch_add(&blocks, 1); return malloc(size); }
static void counted_release(void *p, void *user) { (void)user; if (p) atomic_fetch_sub(&blocks, 1); free(p); }

/* What was recorded and nobody waits for does not keep the device. */
static void test_left_behind(void **state)
{
    (void)state;
    mlxvk_device d = { NULL }, first = mlxvk_device_new();
    assert_int_equal(create_device(&d, &(mlxvk_device_desc){ .allocator = { counted_allocate, counted_release, NULL } }), 0);
    assert_int_equal(mlxvk_set_default_device(d), 0);
    mlxvk_array a = mlxvk_array_new_int(20), b = mlxvk_array_new();
    assert_int_equal(mlxvk_add(&b, a, a, (mlxvk_stream){ NULL }), 0);
    mlxvk_array_free(a);
    assert_int_equal(mlxvk_set_default_device(first), 0);
    mlxvk_device_free(d);
    assert_true(atomic_load(&blocks) > 0);
    mlxvk_array_free(b);
    assert_int_equal(atomic_load(&blocks), 0);
    mlxvk_device_free(first);
}

/* More streams than any device has queues. */
static void test_many_streams(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_stream streams[24];
    mlxvk_array sum = counting(s.device, 5), one = counting(s.device, 5);
    for (int i = 0; i < 24; i++) {
        streams[i] = open_stream(s.device);
        OK(mlxvk_add(&sum, sum, one, streams[i]), streams[i]);
    }
    expect_ints(sum, (int32_t[]){ 0, 25, 50, 75, 100 }, 5, s.stream);
    for (int i = 0; i < 24; i++) mlxvk_stream_free(streams[i]);
    mlxvk_array_free(sum);
    mlxvk_array_free(one);
    finish(&s);
}

/* More streams to wait for than one submission takes: it is sent off while a dispatch is being set up, whose result must
 * not count as computed with it. */
static void test_many_waits(void **state)
{
    (void)state;
    enum { STREAMS = 17 };
    struct setting s = start(NULL);
    mlxvk_stream streams[STREAMS];
    mlxvk_array a = counting(s.device, 5), given[STREAMS], copies[STREAMS] = { { NULL } }, after = { NULL };
    for (int i = 0; i < STREAMS; i++) {
        given[i] = (mlxvk_array){ NULL };
        streams[i] = open_stream(s.device);
        OK(mlxvk_add(&given[i], a, a, streams[i]), streams[i]);
        OK(mlxvk_finalize(streams[i]), streams[i]);
    }
    for (int i = 0; i < STREAMS; i++) OK(mlxvk_negative(&copies[i], given[i], s.stream), s.stream);
    OK(mlxvk_negative(&after, copies[STREAMS - 1], streams[0]), streams[0]);       /* of the last one's result */
    expect_ints(after, (int32_t[]){ 0, 2, 4, 6, 8 }, 5, streams[0]);
    for (int i = 0; i < STREAMS; i++) {
        mlxvk_array_free(given[i]);
        mlxvk_array_free(copies[i]);
        mlxvk_stream_free(streams[i]);
    }
    mlxvk_array_free(a);
    mlxvk_array_free(after);
    finish(&s);
}

/* An array that many streams read, all of them recorded and waiting for an event that this thread signals later. */
static void test_many_readers(void **state)
{
    (void)state;
    enum { STREAMS = 11 };
    struct setting s = start(NULL);
    mlxvk_event gate = new_event(s.device);
    mlxvk_stream streams[STREAMS];
    mlxvk_array a = counting(s.device, 5), res[STREAMS] = { { NULL } };
    for (int i = 0; i < STREAMS; i++) {
        mlxvk_encoder encoder = { NULL };
        streams[i] = open_stream(s.device);
        OK(mlxvk_event_wait(gate, 1, streams[i]), streams[i]);
        OK(mlxvk_add(&res[i], a, a, streams[i]), streams[i]);
        OK(mlxvk_stream_encoder(&encoder, streams[i]), streams[i]);      /* lowered, */
        if (i % 2) OK(mlxvk_finalize(streams[i]), streams[i]);           /* and some of them submitted */
    }
    OK_DEVICE(mlxvk_event_signal_host(gate, 1), s.device);
    OK_DEVICE(mlxvk_array_wait(a, true), s.device);
    for (int i = 0; i < STREAMS; i++) {
        expect_ints(res[i], (int32_t[]){ 0, 2, 4, 6, 8 }, 5, streams[i]);
        mlxvk_array_free(res[i]);
        mlxvk_stream_free(streams[i]);
    }
    mlxvk_array_free(a);
    mlxvk_event_free(gate);
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations_threshold), cmocka_unit_test(test_default_threshold),
        cmocka_unit_test(test_bytes_threshold), cmocka_unit_test(test_time_threshold), cmocka_unit_test(test_long_dispatch), cmocka_unit_test(test_left_behind), cmocka_unit_test(test_laziness), cmocka_unit_test(test_window),
        cmocka_unit_test(test_async_does_not_wait), cmocka_unit_test(test_free_stream), cmocka_unit_test(test_handles),
        cmocka_unit_test(test_clear_streams), cmocka_unit_test(test_read_after_write),
        cmocka_unit_test(test_write_after_read), cmocka_unit_test(test_event_host),
        cmocka_unit_test(test_event_between_threads), cmocka_unit_test(test_event_never_goes_back),
        cmocka_unit_test(test_event_freed_in_use), cmocka_unit_test(test_ping_pong),
        cmocka_unit_test(test_wait_orders), cmocka_unit_test(test_threads), cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_reading_stalls_nobody), cmocka_unit_test(test_reading_before_an_event),
        cmocka_unit_test(test_much_staging), cmocka_unit_test(test_default_stream_exchanged),
        cmocka_unit_test(test_many_waits), cmocka_unit_test(test_many_readers), cmocka_unit_test(test_event_values),
    };
    return run_group("stream", tests, NULL, NULL);
}
