/* sampler.c - see sampler.h. Everything is done with log-probabilities in the model's dtype, in mlx-lm's order. */
#include "sampler.h"

#include <math.h>

static const mlxvk_array none;

bool sampler_check(double temp, double top_p, int top_k, struct error *e)
{
    if (!(temp >= 0 && temp <= 1e6))
        return fail(e, "--temp %g: not a number of 0 or more", temp);
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

/* Sums probabilities from the least likely up; a token stays where its sum exceeds 1 - top_p. */
static void keep_top_p(struct gpu *g, mlxvk_array *logprobs, double top_p)
{
    mlxvk_array order = none, sums = none, limit = none;
    gpu_check(g, mlxvk_argsort_axis(&order, *logprobs, -1, g->stream));
    gpu_check(g, mlxvk_exp(&sums, *logprobs, g->stream));
    gpu_check(g, mlxvk_take(&sums, sums, order, g->stream));
    gpu_check(g, mlxvk_cumsum(&sums, sums, -1, false, true, g->stream));
    gpu_check(g, mlxvk_argsort_axis(&order, order, -1, g->stream)); /* the inverse permutation: back to token order */
    gpu_check(g, mlxvk_take(&sums, sums, order, g->stream));
    gpu_drop(&order);
    scalar_like(g, &limit, 1 - top_p, *logprobs);
    gpu_check(g, mlxvk_greater(&sums, sums, limit, g->stream));
    gpu_drop(&limit);
    mask(g, logprobs, &sums);
}

/* A token stays where fewer than top_k are more likely. */
static void keep_top_k(struct gpu *g, mlxvk_array *logprobs, int top_k)
{
    mlxvk_array rank = none, limit = none;
    gpu_check(g, mlxvk_negative(&rank, *logprobs, g->stream));
    gpu_check(g, mlxvk_argsort_axis(&rank, rank, -1, g->stream));
    gpu_check(g, mlxvk_argsort_axis(&rank, rank, -1, g->stream));
    gpu_check(g, mlxvk_array_new_data_device(&limit, &(uint32_t){ (uint32_t)top_k }, NULL, 0, MLXVK_UINT32, g->device));
    gpu_check(g, mlxvk_less(&rank, rank, limit, g->stream));
    gpu_drop(&limit);
    mask(g, logprobs, &rank);
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
