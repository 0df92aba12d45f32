/* generate.c - see generate.h.
 *
 * The host never waits for the token it is about to feed: step t + 1 is built from the array that step t will fill, and
 * handed to the device before the host reads what step t chose. */
#define _POSIX_C_SOURCE 200809L

#include "generate.h"

#include <math.h>
#include <time.h>

enum { CLEAR_EVERY = 256 };

static const mlxvk_array none;

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void start_evaluation(struct gpu *g, mlxvk_array array)
{
    mlxvk_vector_array one = mlxvk_vector_array_new_value(array);
    gpu_check(g, mlxvk_async_eval(one));
    mlxvk_vector_array_free(one);
}

/* The largest logit, whose look at all of them finds NaN and infinity. */
static void largest_logit(struct gpu *g, mlxvk_array logits, mlxvk_array *largest)
{
    gpu_check(g, mlxvk_max(largest, logits, false, g->stream));
    gpu_check(g, mlxvk_astype(largest, *largest, MLXVK_FLOAT32, g->stream));
    start_evaluation(g, *largest);
}

static bool is_number(struct gpu *g, mlxvk_array largest, struct error *e)
{
    float value = 0;
    gpu_check(g, mlxvk_array_item_float32(&value, largest));
    if (!gpu_ok(g, "generation", e))
        return false;
    return isfinite(value) || fail(e, "the model's logits are no finite numbers: its weights are damaged");
}

/* The step that takes `token` and makes `next`; both need not be known yet. */
static void start_step(struct model *m, struct sampler *s, mlxvk_array token, mlxvk_array *next)
{
    mlxvk_array logits = none;
    model_forward(m, token, 1, WANT_LAST, &logits);
    sampler_next(s, m->gpu, logits, next);
    gpu_drop(&logits);
    start_evaluation(m->gpu, *next);
}

/* largest: NULL, or where the largest logit goes. */
static bool first_step(struct model *m, struct sampler *s, const int32_t *prompt, size_t count, mlxvk_array *token,
                       mlxvk_array *largest, struct error *e)
{
    mlxvk_array logits = none;
    if (!model_prompt(m, prompt, count, WANT_LAST, &logits, e))
        return false;
    sampler_next(s, m->gpu, logits, token);
    if (largest)
        largest_logit(m->gpu, logits, largest);
    gpu_drop(&logits);
    start_evaluation(m->gpu, *token);
    return gpu_ok(m->gpu, "prompt", e);
}

/* Reads what the pending step chose. Returns whether the text goes on. */
static bool take_token(struct generation *run, struct model *m, mlxvk_array token, double *since, struct error *e)
{
    uint32_t id = 0;
    gpu_check(m->gpu, mlxvk_array_item_uint32(&id, token));
    if (!gpu_ok(m->gpu, "generation", e))
        return false;
    double now = seconds_now();
    if (run->tokens++ == 0) {
        run->prompt_seconds = now - *since;
        *since = now;
    }
    run->seconds = now - *since;
    if (!run->ignore_eos && config_is_eos(&m->config, (int32_t)id))
        return false;
    if (run->on_token)
        run->on_token(run->user, (int32_t)id);
    return true;
}

bool generate(struct generation *run, struct model *m, struct sampler *s, const int32_t *prompt, size_t count,
              struct error *e)
{
    mlxvk_array token = none, next = none, largest = none;
    double since = seconds_now();
    run->prompt_tokens = count;
    run->tokens = 0;
    run->prompt_seconds = run->seconds = 0;
    e->text[0] = 0;
    if (count == 0)
        return fail(e, "the prompt is empty");
    bool more = run->max_tokens > 0 &&
                first_step(m, s, prompt, count, &token, run->check_logits ? &largest : NULL, e) &&
                (!largest.ctx || is_number(m->gpu, largest, e));
    gpu_drop(&largest);
    for (int n = 1; more; n++) {
        bool room = n < run->max_tokens && m->offset < m->config.max_positions;
        if (room)
            start_step(m, s, token, &next);
        more = take_token(run, m, token, &since, e) && room;
        gpu_drop(&token);
        token = next;
        next = none;
        if (n % CLEAR_EVERY == 0)
            gpu_check(m->gpu, mlxvk_device_clear_cache(m->gpu->device));
    }
    gpu_drop(&token);
    gpu_drop(&next);
    return !e->text[0];
}
