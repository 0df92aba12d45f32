/* Long runs: the Qwen3 program's model writes token after token, and begins anew with the last half of its text where
 * the context is full, while two threads with streams of their own make and free arrays. Afterwards devices are opened
 * and closed. Memory of the device and of the host stays what it was, so do the dispatches a token, and in the end the
 * counters say that nothing is left. The processor's time a token is printed; a text of JUDGED contexts, long enough for
 * what else the machine does to even out, must not need more of it in its last third. Run by make test-long.
 *
 *     fuzz_long [tokens, 1600] [devices, 20] [MODEL, tests/models/tiny-qwen3] */
#define _POSIX_C_SOURCE 200809L
#include "qwen3/model.h"
#include "qwen3/sampler.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONTEXT = 256, KEPT = CONTEXT / 2, THREADS = 2, SLOTS = 16, LARGEST = 1 << 17, MOST_PERIODS = 1 << 14,
       WARM = 2, JUDGED = 300 };

static int failed;
#define EXPECT(condition, ...) \
    do { if (!(condition)) { failed++; printf("not so: " __VA_ARGS__); puts(""); } } while (0)

/* ---- what is measured, at the end of each context ---- */

/* MB at most, MB; a token: of the processor, of the device. */
struct period { double device, host, seconds, dispatches; };
static struct period periods[MOST_PERIODS];
static int period_count;

static double resident(void)
{
    long pages[2] = { 0, 0 };
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &pages[0], &pages[1]) != 2) pages[1] = 0;
    if (file) fclose(file);
    return 1e-6 * (double)pages[1] * (double)sysconf(_SC_PAGESIZE);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void end_period(mlxvk_device device, int tokens)
{
    static double since;
    static uint64_t dispatched;
    mlxvk_stats stats = { 0 };
    size_t peak = 0, cached = 0;
    double now = processor_seconds();
    mlxvk_device_get_peak_memory(&peak, device);
    mlxvk_device_get_cache_memory(&cached, device);
    mlxvk_device_reset_peak_memory(device);
    mlxvk_device_clear_cache(device);
    mlxvk_get_stats(&stats, device);
    if (period_count < MOST_PERIODS)
        periods[period_count++] = (struct period){ 1e-6 * (double)(peak > cached ? peak : cached), resident(),
                                                   (now - since) / tokens,
                                                   (double)(stats.dispatches - dispatched) / tokens };
    since = now;
    dispatched = stats.dispatches;
}

/* The mean of a third of the periods behind the first ones, which warm up. */
static struct period third(int which)
{
    struct period sum = { 0 };
    int n = (period_count - WARM) / 3, from = WARM + which * n;
    for (int i = from; i < from + n; i++) {
        sum.device += periods[i].device / n;
        sum.host += periods[i].host / n;
        sum.seconds += periods[i].seconds / n;
        sum.dispatches += periods[i].dispatches / n;
    }
    return sum;
}

static void check_periods(void)
{
    if (period_count < WARM + 3) { EXPECT(false, "%d contexts are too few to compare", period_count); return; }
    struct period first = third(0), last = third(2);
    printf("%d contexts: device %.1f MB, then %.1f; host %.1f MB, then %.1f; "
           "a token %.1f dispatches, then %.1f, of the processor %.3f ms, then %.3f\n",
           period_count, first.device, last.device, first.host, last.host, first.dispatches, last.dispatches,
           1e3 * first.seconds, 1e3 * last.seconds);
    EXPECT(last.device < 1.1 * first.device + 1, "memory of the device is flat");
    EXPECT(last.host < 1.05 * first.host + 4, "memory of the host is flat");
    EXPECT(last.dispatches < 1.02 * first.dispatches, "the dispatches of a token are flat");
    EXPECT(period_count < JUDGED || last.seconds < 1.25 * first.seconds, "the time of a token is flat");
}

/* ---- the threads beside: a round a token ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long wanted, done[THREADS];                                    /* rounds; wanted below 0: it is over */
static mlxvk_device device;

struct beside { pthread_t thread; int index; long wrong; uint64_t state; mlxvk_array slots[SLOTS]; };

static uint32_t random_below(struct beside *b, uint32_t n)
{
    b->state = b->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->state >> 33) % n;
}

/* An array goes, another comes; its sum is what it must be. */
static int one_round(struct beside *b, mlxvk_stream s)
{
    mlxvk_array *a = &b->slots[random_below(b, SLOTS)], sum = { NULL };
    int n = 1 + (int)random_below(b, LARGEST);
    float got = 0;
    gpu_drop(a);
    int code = mlxvk_ones(a, (int[]){ n }, 1, MLXVK_FLOAT32, s);
    if (!code) code = mlxvk_add(a, *a, *a, s);
    if (!code) code = mlxvk_sum(&sum, *a, false, s);
    if (!code) code = mlxvk_array_item_float32(&got, sum);
    b->wrong += code || got != 2 * (float)n;
    mlxvk_array_free(sum);
    return code;
}

static void *work_beside(void *argument)
{
    struct beside *b = argument;
    mlxvk_stream s = mlxvk_stream_new_device(device);
    for (;;) {
        pthread_mutex_lock(&lock);
        while (wanted >= 0 && done[b->index] >= wanted) pthread_cond_wait(&changed, &lock);
        bool over = wanted < 0;
        pthread_mutex_unlock(&lock);
        if (over) break;
        one_round(b, s);
        pthread_mutex_lock(&lock);
        done[b->index]++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    for (int i = 0; i < SLOTS; i++) gpu_drop(&b->slots[i]);
    mlxvk_stream_free(s);
    return NULL;
}

/* Lets them go on to so many rounds, and waits until they have done those before. */
static void want_rounds(long rounds)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < THREADS; i++) while (done[i] < wanted) pthread_cond_wait(&changed, &lock);
    wanted = rounds;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---- the text ---- */

/* Begins anew with the last half of a text that fills the context. */
static bool wrap(struct model *m, const int32_t *text, mlxvk_array *logits, struct error *e)
{
    model_rewind(m, 0);
    return model_prompt(m, text + CONTEXT - KEPT, KEPT, WANT_LAST, logits, e);
}

static bool write_tokens(struct model *m, long tokens, struct error *e)
{
    static int32_t text[CONTEXT] = { 1 };
    int length = 1;
    mlxvk_array logits = { NULL }, token = { NULL };
    struct sampler s;
    if (!sampler_open(&s, m->gpu, 1, 0, 0, 7, e)) return false;
    bool good = model_prompt(m, text, 1, WANT_LAST, &logits, e);
    for (long n = 1; n <= tokens && good; n++) {
        uint32_t id = 0;
        sampler_next(&s, m->gpu, logits, &token);
        gpu_check(m->gpu, mlxvk_array_item_uint32(&id, token));
        want_rounds(n);
        text[length++] = (int32_t)id;
        gpu_drop(&logits);
        if (length == CONTEXT) {
            want_rounds(n);
            good = wrap(m, text, &logits, e);
            memmove(text, text + CONTEXT - KEPT, KEPT * sizeof *text);
            length = KEPT;
            end_period(device, CONTEXT - KEPT);
        } else {
            gpu_check(m->gpu, mlxvk_reshape(&token, token, (int[]){ 1, 1 }, 2, m->gpu->stream));
            model_forward(m, token, 1, WANT_LAST, &logits);
        }
        gpu_drop(&token);
        good = good && gpu_ok(m->gpu, "generation", e);
    }
    gpu_drop(&logits);
    sampler_close(&s);
    return good;
}

static bool long_text(const char *folder, long tokens, struct error *e)
{
    struct beside beside[THREADS] = { 0 };
    struct gpu g;
    struct config c;
    struct safetensors st;
    struct model m;
    size_t left = 1;
    if (!gpu_open(&g, NULL, NULL, e) || !config_read(&c, folder, e) || !safetensors_open(&st, folder, e)) return false;
    device = g.device;
    if (!model_load(&m, &g, &c, &st, NULL, NULL, e)) return false;
    for (int i = 0; i < THREADS; i++) {
        beside[i] = (struct beside){ .index = i, .state = (uint64_t)i };
        pthread_create(&beside[i].thread, NULL, work_beside, &beside[i]);
    }
    bool good = write_tokens(&m, tokens, e);
    want_rounds(-1);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(beside[i].thread, NULL);
        EXPECT(!beside[i].wrong, "thread %d computed right: %ld rounds did not", i, beside[i].wrong);
    }
    model_free(&m);
    safetensors_close(&st);
    config_free(&c);
    mlxvk_synchronize(g.stream);
    mlxvk_device_get_active_memory(&left, device);
    EXPECT(!left, "nothing is left: %zu bytes are", left);
    gpu_close(&g);
    return good;
}

/* ---- devices ---- */

static int open_and_close(void)
{
    mlxvk_device d = { NULL };
    mlxvk_array a = { NULL };
    const float x[64] = { 3 };
    float y[64] = { 0 };
    int code = mlxvk_device_create(&d, NULL);
    mlxvk_stream s = code ? (mlxvk_stream){ NULL } : mlxvk_stream_new_device(d);
    if (!code) code = mlxvk_array_new_data_device(&a, x, (int[]){ 64 }, 1, MLXVK_FLOAT32, d);
    if (!code) code = mlxvk_square(&a, a, s);
    if (!code) code = mlxvk_array_read(a, y, sizeof y, s);
    mlxvk_array_free(a);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    return code ? code : y[0] == 9 ? 0 : -1;
}

static void open_devices(int count)
{
    double half = 0;
    int code = 0;
    for (int i = 0; i < count && !code; i++) {
        code = open_and_close();
        EXPECT(!code, "device %d: %s", i, mlxvk_result_text(code));
        if (i == count / 2) half = resident();
    }
    printf("%d devices: host %.1f MB half-way, then %.1f\n", count, half, resident());
    EXPECT(resident() < 1.05 * half + 4, "devices leave no memory behind");
}

int main(int argc, char **argv)
{
    long tokens = argc > 1 ? atol(argv[1]) : 1600;
    int devices = argc > 2 ? atoi(argv[2]) : 20;
    struct error e = { "" };
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (tokens > 0) {
        bool good = long_text(argc > 3 ? argv[3] : "tests/models/tiny-qwen3", tokens, &e);
        EXPECT(good, "the text was written: %s", e.text);
        check_periods();
    }
    if (devices > 0) open_devices(devices);
    printf("%d passed, %d failed\n", !failed, failed);
    return failed != 0;
}
