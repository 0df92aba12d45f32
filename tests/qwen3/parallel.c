/* parallel.c - see parallel.h. */
#include "parallel.h"

#include <pthread.h>
#include <unistd.h>

enum { THREADS_MOST = 16, STACK = 8 << 20 }; /* drivers compile on it; musl's own is small */

struct work {
    mlxvk_task     *task;
    void           *with;
    uint32_t        next, count;
    pthread_mutex_t lock;
};

static void *take_tasks(void *arg)
{
    struct work *w = arg;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        uint32_t i = w->next < w->count ? w->next++ : w->count;
        pthread_mutex_unlock(&w->lock);
        if (i == w->count)
            return NULL;
        w->task(w->with, i);
    }
}

void parallel(mlxvk_task *task, void *with, uint32_t count, void *user)
{
    struct work w = { task, with, 0, count, PTHREAD_MUTEX_INITIALIZER };
    pthread_t threads[THREADS_MOST];
    pthread_attr_t attributes;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t started = 0, wanted = processors < THREADS_MOST ? (uint32_t)(processors > 0 ? processors : 1) : THREADS_MOST;
    (void)user;
    if (wanted > count)
        wanted = count;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    while (started + 1 < wanted && !pthread_create(&threads[started], &attributes, take_tasks, &w))
        started++;
    take_tasks(&w);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_attr_destroy(&attributes);
    pthread_mutex_destroy(&w.lock);
}
