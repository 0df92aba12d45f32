/* bench.c - see bench.h. */
#include "bench.h"

#include "generate.h"

#include <math.h>
#include <stdlib.h>

static const mlxvk_array none;

struct timing {
    double sum, squares;
    int    count;
};

static void add(struct timing *t, double rate)
{
    t->sum += rate;
    t->squares += rate * rate;
    t->count++;
}

int32_t *bench_tokens(const struct model *m, int count)
{
    uint64_t state = 0x9e3779b97f4a7c15u;
    int32_t *ids = new_bytes((size_t)count, sizeof *ids);
    for (int i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % (uint64_t)m->config.vocab);
    }
    return ids;
}

bool bench_context(struct model *m, const int32_t *ids, int depth, struct error *e)
{
    model_rewind(m, depth);
    if (m->offset == depth)
        return true;
    model_reset(m);
    if (!model_prompt(m, ids, (size_t)depth, WANT_CACHE, NULL, e))
        return false;
    model_eval_cache(m);
    return gpu_ok(m->gpu, "context", e);
}

static bool time_prompt(const struct bench *b, struct model *m, const int32_t *ids, struct timing *t, struct error *e)
{
    mlxvk_array logits = none;
    if (!b->prompt)
        return true;
    if (!bench_context(m, ids, b->depth, e))
        return false;
    double start = seconds_now();
    bool ok = model_prompt(m, ids, (size_t)b->prompt, WANT_LAST, &logits, e);
    gpu_check(m->gpu, mlxvk_array_eval(logits));
    add(t, b->prompt / (seconds_now() - start));
    gpu_drop(&logits);
    return ok && gpu_ok(m->gpu, "prompt", e);
}

/* Pipelined, from one random token on; the time includes every step. */
static bool time_generation(const struct bench *b, struct model *m, struct sampler *s, const int32_t *ids,
                            struct timing *t, struct error *e)
{
    struct generation run = { .max_tokens = b->generate, .ignore_eos = true };
    if (!b->generate)
        return true;
    if (!bench_context(m, ids, b->depth, e))
        return false;
    double start = seconds_now();
    bool ok = generate(&run, m, s, ids, 1, e);
    add(t, b->generate / (seconds_now() - start));
    return ok;
}

static void print_row(FILE *out, const char *name, int tokens, int depth, const struct timing *t)
{
    if (!t->count)
        return;
    double mean = t->sum / t->count, variance = t->squares / t->count - mean * mean;
    fprintf(out, "| %-8s | %6d | %6d | %10.2f +- %-8.2f |\n", name, tokens, depth, mean, sqrt(fmax(variance, 0)));
}

static void print_table(const struct bench *b, struct model *m, const char *name, const struct timing *prompt,
                        const struct timing *generation, FILE *out)
{
    const char *device = "?", *driver = "?";
    size_t peak = 0;
    mlxvk_device_info_get_string(&device, m->gpu->device, "device_name");
    mlxvk_device_info_get_string(&driver, m->gpu->device, "driver");
    mlxvk_device_get_peak_memory(&peak, m->gpu->device);
    fprintf(out, "%s on %s (%s), mean of %d\n", name, device, driver, b->trials);
    fprintf(out, "| test     | tokens |  depth |       tokens per second |\n");
    fprintf(out, "|----------|-------:|-------:|------------------------:|\n");
    print_row(out, "prompt", b->prompt, b->depth, prompt);
    print_row(out, "generate", b->generate, b->depth, generation);
    fprintf(out, "weights %.3f GB, peak memory %.3f GB\n", (double)model_bytes(m) / 1e9, (double)peak / 1e9);
}

/* With MLX_VK_PROFILE=1: where the GPU's time went, over all runs. */
static void print_kernel(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    if (nanoseconds)
        fprintf(user, "| %-24s | %8llu | %10.3f ms | %8.2f us each |\n", kernel, (unsigned long long)count,
                1e-6 * (double)nanoseconds, 1e-3 * (double)nanoseconds / (double)count);
}

static void print_stats(struct gpu *g, FILE *out)
{
    mlxvk_stats s;
    mlxvk_get_stats(&s, g->device);
    mlxvk_kernel_stats(g->device, print_kernel, out);
    fprintf(out, "%llu operations, %llu fused, %llu dropped, %llu replayed; %llu dispatches, %llu of them recorded before, %llu linked; "
                 "%llu barriers, %llu submissions; lowering %.1f ms\n",
            (unsigned long long)s.operations, (unsigned long long)s.fused, (unsigned long long)s.dropped,
            (unsigned long long)s.replayed, (unsigned long long)s.dispatches, (unsigned long long)s.recorded, (unsigned long long)s.linked,
            (unsigned long long)s.barriers, (unsigned long long)s.submissions, 1e-6 * (double)s.lowering_ns);
}

bool bench_run(const struct bench *b, struct model *m, const char *name, FILE *out, struct error *e)
{
    struct timing prompt = { 0 }, generation = { 0 }, warm = { 0 };
    struct sampler sampler;
    if (b->prompt < 0 || b->generate < 0 || b->prompt + b->generate == 0 || b->depth < 0)
        return fail(e, "--bench %d,%d at depth %d: nothing to measure", b->prompt, b->generate, b->depth);
    if ((int64_t)b->depth + (b->prompt > b->generate ? b->prompt : b->generate) > m->config.max_positions)
        return fail(e, "--bench: the model's context of %d is too short", m->config.max_positions);
    if (!sampler_open(&sampler, m->gpu, b->temp, b->top_p, b->top_k, 0, e))
        return false;
    int32_t *ids = bench_tokens(m, (b->depth > b->prompt ? b->depth : b->prompt) + 1);
    mlxvk_device_reset_peak_memory(m->gpu->device); /* loading is not what is measured */
    bool ok = true;
    double start = seconds_now(), first = 0;
    for (int i = -1; ok && i < b->trials; i++) {
        if (i == 0)
            mlxvk_reset_stats(m->gpu->device);
        ok = time_prompt(b, m, ids, i < 0 ? &warm : &prompt, e) &&
             time_generation(b, m, &sampler, ids, i < 0 ? &warm : &generation, e);
        if (i < 0)
            first = seconds_now() - start;
    }
    if (ok) {
        print_table(b, m, name, &prompt, &generation, out);
        fprintf(out, "start: device %.2f s, weights %.2f s, run to warm up %.2f s; %.2f s\n", b->device, b->weights, first,
                b->device + b->weights + first);
        print_stats(m->gpu, out);
    }
    free(ids);
    sampler_close(&sampler);
    return ok;
}
