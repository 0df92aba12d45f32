/* sampler.c - see sampler.h. Everything is done with log-probabilities in the model's dtype, in mlx-lm's order. */
#include "sampler.h"

#include <math.h>

static const mlxvk_array none;

bool sampler_check(double temp, double top_p, int top_k, struct error *e)
{
    if (!(temp >= 0 && temp <= 1e6))
        return fail(e, "--temp %g: not a number from 0 to 1e6", temp);
    if (!(top_p >= 0 && top_p <= 1))
        return fail(e, "--top-p %g: not between 0 and 1", top_p);
    return top_k >= 0 || fail(e, "--top-k %d: not a number of 0 or more", top_k);
}

bool sampler_open(struct sampler *s, struct gpu *g, double temp, double top_p, int top_k, uint64_t seed,
                  struct error *e)
{
    const uint32_t key[2] = { (uint32_t)(seed >> 32), (uint32_t)seed };
    *s = (struct sampler){ temp, top_p, top_k, none };
    if (!sampler_check(temp, top_p, top_k, e))
        return false;
    gpu_check(g, mlxvk_array_new_data_device(&s->key, key, &(int){ 2 }, 1, MLXVK_UINT32, g->device));
    return gpu_ok(g, "seed", e);
}

void sampler_close(struct sampler *s)
{
    gpu_drop(&s->key);
}

/* A scalar in the dtype of `like`, so that it does not promote what it meets. */
static void scalar_like(struct gpu *g, mlxvk_array *to, double value, mlxvk_array like)
{
    const float number = (float)value;
    gpu_check(g, mlxvk_array_new_data_device(to, &number, NULL, 0, MLXVK_FLOAT32, g->device));
    gpu_check(g, mlxvk_astype(to, *to, mlxvk_array_dtype(like), g->stream));
}

/* logprobs where keep, else -inf. Releases keep. */
static void mask(struct gpu *g, mlxvk_array *logprobs, mlxvk_array *keep)
{
    mlxvk_array minus = none;
    scalar_like(g, &minus, -INFINITY, *logprobs);
    gpu_check(g, mlxvk_where(logprobs, *keep, *logprobs, minus, g->stream));
    gpu_drop(&minus);
    gpu_drop(keep);
}

/* A token stays where those that are more likely have less than top_p of all probability: from the place on, in the order
 * of probabilities, that is found by counting where they have more. */
static void keep_top_p(struct gpu *g, mlxvk_array *logprobs, double top_p)
{
    mlxvk_array order = none, probs = none, above = none, total = none, one = none, limit = none;
    gpu_check(g, mlxvk_sort_axis(&order, *logprobs, -1, g->stream));
    gpu_check(g, mlxvk_astype(&probs, order, MLXVK_FLOAT32, g->stream));
    gpu_check(g, mlxvk_exp(&probs, probs, g->stream));
    gpu_check(g, mlxvk_cumsum(&above, probs, -1, true, false, g->stream));
    gpu_check(g, mlxvk_slice(&total, above, (int[]){ 0 }, 1, (int[]){ 1 }, 1, (int[]){ 1 }, 1, g->stream));
    gpu_check(g, mlxvk_slice(&one, probs, (int[]){ 0 }, 1, (int[]){ 1 }, 1, (int[]){ 1 }, 1, g->stream));
    gpu_check(g, mlxvk_add(&total, total, one, g->stream));
    scalar_like(g, &limit, top_p, total);
    gpu_check(g, mlxvk_multiply(&limit, total, limit, g->stream));
    gpu_check(g, mlxvk_greater_equal(&above, above, limit, g->stream));
    gpu_check(g, mlxvk_sum_axis(&above, above, -1, true, g->stream));
    gpu_check(g, mlxvk_take_along_axis(&limit, order, above, -1, g->stream));
    gpu_check(g, mlxvk_greater_equal(&above, *logprobs, limit, g->stream));
    mask(g, logprobs, &above);
    gpu_drop(&order);
    gpu_drop(&probs);
    gpu_drop(&total);
    gpu_drop(&one);
    gpu_drop(&limit);
}

/* All but the top_k most likely tokens go. */
static void keep_top_k(struct gpu *g, mlxvk_array *logprobs, int top_k)
{
    mlxvk_array order = none, minus = none;
    int size = (int)mlxvk_array_size(*logprobs);
    gpu_check(g, mlxvk_negative(&order, *logprobs, g->stream));
    gpu_check(g, mlxvk_argpartition_axis(&order, order, top_k - 1, -1, g->stream));
    gpu_check(g, mlxvk_slice(&order, order, &top_k, 1, &size, 1, (int[]){ 1 }, 1, g->stream));
    scalar_like(g, &minus, -INFINITY, *logprobs);
    gpu_check(g, mlxvk_put_along_axis(logprobs, *logprobs, order, minus, -1, g->stream));
    gpu_drop(&order);
    gpu_drop(&minus);
}

static void draw(struct sampler *s, struct gpu *g, mlxvk_array logprobs, mlxvk_array *token)
{
    mlxvk_array key = none, scaled = none;
    scalar_like(g, &scaled, 1 / s->temp, logprobs);
    gpu_check(g, mlxvk_multiply(&scaled, logprobs, scaled, g->stream));
    gpu_check(g, mlxvk_reshape(&scaled, scaled, (int[]){ 1, -1 }, 2, g->stream));
    gpu_check(g, mlxvk_random_split(&s->key, &key, s->key, g->stream));
    gpu_check(g, mlxvk_random_categorical(token, scaled, -1, key, g->stream));
    gpu_drop(&scaled);
    gpu_drop(&key);
}

void sampler_next(struct sampler *s, struct gpu *g, mlxvk_array logits, mlxvk_array *token)
{
    mlxvk_array logprobs = none, total = none;
    gpu_check(g, mlxvk_reshape(&logprobs, logits, (int[]){ -1 }, 1, g->stream));
    gpu_check(g, mlxvk_logsumexp_axis(&total, logprobs, -1, true, g->stream));
    gpu_check(g, mlxvk_subtract(&logprobs, logprobs, total, g->stream));
    gpu_drop(&total);
    if (s->temp == 0) {
        gpu_check(g, mlxvk_argmax_axis(token, logprobs, -1, false, g->stream));
    } else {
        if (s->top_p > 0 && s->top_p < 1)
            keep_top_p(g, &logprobs, s->top_p);
        if (s->top_k > 0 && (size_t)s->top_k < mlxvk_array_size(logprobs))
            keep_top_k(g, &logprobs, s->top_k);
        draw(s, g, logprobs, token);
    }
    gpu_check(g, mlxvk_reshape(token, *token, (int[]){ 1, 1 }, 2, g->stream));
    gpu_drop(&logprobs);
}
