/* profile.c - see profile.h. */
#include "profile.h"

#include "bench.h"
#include "generate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Steps of a generation: so many that the host has got ahead of the device; the last but two is the one that is shown. */
enum { STEPS = 12, SHOWN = STEPS - 3, WARM = 3 };

static const mlxvk_array none;

/* ==== >>lines ============================================================================================= */

/* Which of the dispatches that are told go to the file, and as what. */
struct lines {
    FILE       *out;
    const char *part;
    uint64_t    told, from, to, next; /* next: the one that is "next"; 0: none */
};

static void write_line(const mlxvk_dispatch *d, void *user)
{
    struct lines *l = user;
    uint64_t at = l->told++;
    const char *part = at >= l->from && at < l->to ? l->part : l->next && at == l->next ? "next" : NULL;
    if (part)
        fprintf(l->out, "%s,%s,%llu,%llu,%llu,%llu,%llu,%.0f,%u,%u,%u\n", part, d->kernel, (unsigned long long)d->begin,
                (unsigned long long)d->end, (unsigned long long)d->submission, (unsigned long long)d->read,
                (unsigned long long)d->written, d->multiplications, d->groups[0], d->groups[1], d->groups[2]);
}

/* Writes what was dispatched since the last reset. The lines mean something only where none is missing. */
static bool write_lines(struct lines *l, struct gpu *g, struct error *e)
{
    mlxvk_stats s = { 0 };
    gpu_check(g, mlxvk_get_stats(&s, g->device));
    l->told = 0;
    gpu_check(g, mlxvk_dispatch_trace(g->device, write_line, l));
    return gpu_ok(g, l->part, e) && (l->told == s.dispatches ||
           fail(e, "%s: the driver has times of %llu dispatches of %llu", l->part, (unsigned long long)l->told,
                (unsigned long long)s.dispatches));
}

static bool write_all(FILE *out, const char *part, struct gpu *g, struct error *e)
{
    return write_lines(&(struct lines){ .out = out, .part = part, .to = UINT64_MAX }, g, e);
}

static void forget(struct gpu *g)
{
    gpu_check(g, mlxvk_reset_stats(g->device));
}

/* ==== >>floors ============================================================================================ */

static bool is_cpu(struct gpu *g)
{
    const char *type = "";
    mlxvk_device_info_get_string(&type, g->device, "type");
    return strcmp(type, "cpu") == 0;
}

/* Far more than caches hold. */
static bool write_copy(FILE *out, struct gpu *g, struct error *e)
{
    mlxvk_array from = none, to = none;
    int count = is_cpu(g) ? 1 << 24 : 1 << 27;
    gpu_check(g, mlxvk_zeros(&from, &count, 1, MLXVK_FLOAT32, g->stream));
    gpu_check(g, mlxvk_array_eval(from));
    for (int i = 0; i < WARM + 3; i++) {
        if (i == WARM)
            forget(g);
        gpu_drop(&to);
        gpu_check(g, mlxvk_negative(&to, from, g->stream));
        gpu_check(g, mlxvk_array_eval(to));
    }
    gpu_drop(&from);
    gpu_drop(&to);
    return gpu_ok(g, "copy", e) && write_all(out, "copy", g, e);
}

/* The weight of a layer that is quantized as q says. */
static void quantize(struct gpu *g, mlxvk_array weight, const struct quantization *q, struct linear *l)
{
    mlxvk_optional_int group_size = { q->group_size, true }, bits = { q->bits, true };
    mlxvk_array *const to[] = { &l->weight, &l->scales, &l->biases };
    mlxvk_vector_array parts = { NULL };
    gpu_check(g, mlxvk_quantize(&parts, weight, group_size, bits, quantization_mode_name(q->mode), none, g->stream));
    const size_t count = q->mode == QUANTIZED_AFFINE ? 3 : 2;
    for (size_t i = 0; i < count && !g->code; i++)
        gpu_check(g, mlxvk_vector_array_get(to[i], parts, i));
    mlxvk_vector_array_free(parts);
}

/* x by itself, and where the model is quantized by such a weight: which is faster, devices differ in. */
static void multiply(struct model *m, mlxvk_array x, const struct linear *l)
{
    struct gpu *g = m->gpu;
    mlxvk_optional_int group_size = { l->q.group_size, true }, bits = { l->q.bits, true };
    mlxvk_array y = none;
    gpu_check(g, mlxvk_matmul(&y, x, x, g->stream));
    gpu_check(g, mlxvk_array_eval(y));
    if (l->q.bits && !g->code) {
        gpu_check(g, mlxvk_quantized_matmul(&y, x, l->weight, l->scales, l->biases, true, group_size, bits,
                                            quantization_mode_name(l->q.mode), g->stream));
        gpu_check(g, mlxvk_array_eval(y));
    }
    gpu_drop(&y);
}

static bool write_product(FILE *out, struct model *m, struct error *e)
{
    struct gpu *g = m->gpu;
    mlxvk_array x = none;
    struct linear l = { .q = m->layers[0].up.q };
    int side = is_cpu(g) ? 512 : 4096, shape[] = { side, side };
    gpu_check(g, mlxvk_random_normal(&x, shape, 2, m->dtype, 0, 1, none, g->stream));
    if (l.q.bits)
        quantize(g, x, &l.q, &l);
    for (int i = 0; i < WARM + 3; i++) {
        if (i == WARM)
            forget(g);
        multiply(m, x, &l);
    }
    gpu_drop(&x);
    gpu_drop(&l.weight);
    gpu_drop(&l.scales);
    gpu_drop(&l.biases);
    return gpu_ok(g, "product", e) && write_all(out, "product", g, e);
}

/* ==== >>model ============================================================================================= */

static bool write_prompt(FILE *out, struct model *m, const int32_t *ids, int prompt, int depth, struct error *e)
{
    bool ok = true;
    for (int i = 0; ok && i <= WARM; i++) {
        mlxvk_array logits = none;
        if (!bench_context(m, ids, depth, e))
            return false;
        forget(m->gpu);
        ok = model_prompt(m, ids, (size_t)prompt, WANT_LAST, &logits, e);
        gpu_check(m->gpu, mlxvk_array_eval(logits));
        gpu_drop(&logits);
        ok = ok && gpu_ok(m->gpu, "prompt", e);
    }
    return ok && write_all(out, "prompt", m->gpu, e);
}

struct steps {
    struct gpu *gpu;
    uint64_t    end[STEPS + 1]; /* dispatches of all steps up to that one */
    int         step;
};

/* A token is taken when the step behind it is with the device. */
static void count_step(void *user, int32_t id)
{
    struct steps *s = user;
    mlxvk_stats stats = { 0 };
    (void)id;
    gpu_check(s->gpu, mlxvk_get_stats(&stats, s->gpu->device));
    s->end[++s->step] = stats.dispatches;
}

static bool write_step(FILE *out, struct model *m, const int32_t *ids, int depth, struct error *e)
{
    struct steps s = { .gpu = m->gpu };
    struct sampler greedy;
    struct generation run = { .max_tokens = STEPS, .ignore_eos = true, .on_token = count_step, .user = &s };
    if (!bench_context(m, ids, depth, e) || !sampler_open(&greedy, m->gpu, 0, 0, 0, 0, e))
        return false;
    forget(m->gpu);
    bool ok = generate(&run, m, &greedy, ids, 1, e);
    sampler_close(&greedy);
    struct lines lines = { .out = out, .part = "decode", .from = s.end[SHOWN - 1], .to = s.end[SHOWN], .next = s.end[SHOWN] };
    return ok && write_lines(&lines, m->gpu, e);
}

static void write_head(FILE *out, struct model *m, const char *name, int prompt, int depth)
{
    const char *device = "?", *driver = "?";
    mlxvk_device_info_get_string(&device, m->gpu->device, "device_name");
    mlxvk_device_info_get_string(&driver, m->gpu->device, "driver");
    fprintf(out, "# %s\n# %s (%s)\n# a prompt of %d tokens behind %d\n# a decode step behind %d tokens\n", name, device, driver,
            prompt, depth, depth + SHOWN);
    fprintf(out, "part,kernel,begin_ns,end_ns,submission,read,written,multiplications,groups_x,groups_y,groups_z\n");
}

bool profile_run(const char *path, struct model *m, const char *name, int prompt, int depth, struct error *e)
{
    if (prompt < 1 || (int64_t)depth + (prompt > STEPS ? prompt : STEPS) > m->config.max_positions)
        return fail(e, "--profile: a prompt of %d tokens behind %d is none, or too long for a context of %d", prompt, depth,
                    m->config.max_positions);
    FILE *out = fopen(path, "w");
    if (!out)
        return fail(e, "%s: %s", path, strerror(errno));
    int32_t *ids = bench_tokens(m, depth > prompt ? depth : prompt);
    write_head(out, m, name, prompt, depth);
    bool ok = write_copy(out, m->gpu, e) && write_product(out, m, e) &&
              write_prompt(out, m, ids, prompt, depth, e) && write_step(out, m, ids, depth, e);
    free(ids);
    ok = (!ferror(out) || !ok || fail(e, "%s: cannot be written", path)) && ok;
    return (fclose(out) == 0 || !ok || fail(e, "%s: cannot be written", path)) && ok;
}
