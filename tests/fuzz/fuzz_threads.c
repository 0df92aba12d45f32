/* Threads that share arrays, events and a device: each has a stream, reads what the others computed, waits for their
 * events and frees their arrays' last handles. Meant for a build with ThreadSanitizer: make test-threads.
 *
 *     fuzz_threads [rounds, 30] */
#define _POSIX_C_SOURCE 200809L
#include "mlxvk.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 8, N = 64 };

/* What each thread has published: a handle for who comes first, and the round up to which its event is. */
static struct { pthread_mutex_t lock; mlxvk_array array[THREADS]; int round[THREADS]; } board =
    { .lock = PTHREAD_MUTEX_INITIALIZER };
static mlxvk_device device;
static mlxvk_event events[THREADS];
static int rounds = 30;
struct worker { pthread_t thread; int index, wrong; };

/* Sets the thread's array; the one that was there is freed. */
static void publish(int index, mlxvk_array a, int round)
{
    mlxvk_array old, kept = { NULL };
    mlxvk_array_set(&kept, a);
    pthread_mutex_lock(&board.lock);
    old = board.array[index];
    board.array[index] = kept;
    board.round[index] = round;
    pthread_mutex_unlock(&board.lock);
    mlxvk_array_free(old);
}

/* One more handle on another's array, with the round it is of; 0: there is none yet. */
static int take(int index, mlxvk_array *res)
{
    pthread_mutex_lock(&board.lock);
    int round = board.round[index];
    if (round) mlxvk_array_set(res, board.array[index]);
    pthread_mutex_unlock(&board.lock);
    return round;
}

/* The array of a round: its elements are what its thread and round say. */
static int make(mlxvk_array *a, int index, int round, mlxvk_stream s)
{
    int code = mlxvk_arange(a, 0, N, 1, MLXVK_FLOAT32, s);
    mlxvk_array k = { NULL };
    float value = (float)(100 * index + round);
    if (!code) code = mlxvk_array_new_data_device(&k, &value, NULL, 0, MLXVK_FLOAT32, device);
    if (!code) code = mlxvk_add(a, *a, k, s);
    mlxvk_array_free(k);
    return code;
}

static int one_round(struct worker *w, int round, mlxvk_stream s)
{
    mlxvk_array mine = { NULL }, other = { NULL }, sum = { NULL };
    float got[N];
    int from = (w->index + round) % THREADS, code = make(&mine, w->index, round, s), theirs;
    if (!code) code = mlxvk_event_signal(events[w->index], (uint64_t)round, s);
    if (!code) publish(w->index, mine, round);
    if (!code && round % 3 == 0) code = mlxvk_finalize(s);
    if (!code && (theirs = take(from, &other))) {
        if (round % 5 == 0 && from != w->index) mlxvk_event_is_signaled(events[from], (uint64_t)theirs);
        code = mlxvk_add(&sum, mine, other, s);
        if (!code) code = mlxvk_array_read(sum, got, sizeof got, s);
        float want = (float)(100 * w->index + round + 100 * from + theirs);
        for (int i = 0; i < N && !code; i++) w->wrong += got[i] != want + 2 * (float)i;
    }
    mlxvk_array_free(mine);
    mlxvk_array_free(other);
    mlxvk_array_free(sum);
    return code;
}

static void *work(void *argument)
{
    struct worker *w = argument;
    mlxvk_stream s = mlxvk_stream_new_device(device);
    mlxvk_stats stats;
    size_t bytes;
    int code = s.ctx ? 0 : 1;
    for (int round = 1; round <= rounds && !code; round++) {
        code = one_round(w, round, s);
        if (!code && round % 7 == 0) code = mlxvk_event_wait_host(events[w->index], (uint64_t)round, UINT64_MAX);
        if (!code && round % 11 == 0) {
            code = mlxvk_device_clear_cache(device);
            mlxvk_get_stats(&stats, device);
            mlxvk_device_get_active_memory(&bytes, device);
        }
    }
    w->wrong += code;
    mlxvk_stream_free(s);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct worker workers[THREADS];
    int failed = 0;
    if (argc > 1) rounds = atoi(argv[1]);
    if (mlxvk_device_create(&device, NULL)) { puts("0 passed, 1 failed"); return 1; }
    for (int i = 0; i < THREADS; i++) failed += mlxvk_event_new(&events[i], device) != 0;
    for (int i = 0; i < THREADS; i++) {
        workers[i].index = i;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        failed += workers[i].wrong != 0;
    }
    for (int i = 0; i < THREADS; i++) { mlxvk_array_free(board.array[i]); mlxvk_event_free(events[i]); }
    mlxvk_device_free(device);
    printf("%d passed, %d failed\n", THREADS - failed, failed);
    return failed != 0;
}
