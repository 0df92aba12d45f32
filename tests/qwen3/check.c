/* check.c - see check.h. */
#include "check.h"

#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Below this gap between the best and the second logit, rounding may decide. */
static const double margin_limit = 0.25;

static const mlxvk_array none;

struct reference {
    struct ids prompt, tokens;
    float     *margins, *logits;    /* logits NULL: the reference has none */
};

struct outcome {
    double largest, rms, scale;     /* of the differences of logits; the largest logit's size */
    int    compared, ties;          /* steps with a margin; differences where there was none */
    int    step_wrong, whole_wrong; /* first wrong step by decoding and in one prompt, or -1 */
    double step_margin, whole_margin;
};

/* ==== >>read ============================================================================================== */

static bool read_ids(struct ids *ids, const cJSON *list, int vocab, const char *where, const char *name, struct error *e)
{
    const cJSON *item;
    if (!cJSON_IsArray(list) || !list->child)
        return fail(e, "%s: a case has no %s", where, name);
    cJSON_ArrayForEach(item, list) {
        int64_t id;
        if (!json_integer(item, 0, vocab - 1, &id, where, name, e))
            return false;
        ids_add(ids, (int32_t)id);
    }
    return true;
}

static bool read_floats(float **to, const cJSON *list, size_t count, const char *where, const char *name,
                        struct error *e)
{
    const cJSON *item;
    if (!cJSON_IsArray(list) || (size_t)cJSON_GetArraySize(list) != count)
        return fail(e, "%s: %s is not a list of %zu numbers", where, name, count);
    float *at = *to = new_bytes(count, sizeof **to);
    cJSON_ArrayForEach(item, list)
        *at++ = cJSON_IsNumber(item) ? (float)item->valuedouble : NAN;
    return true;
}

static bool read_case(struct reference *r, const cJSON *item, int vocab, const char *where, struct error *e)
{
    const cJSON *logits = json_member(item, "logits_after_prompt");
    *r = (struct reference){ 0 };
    return read_ids(&r->prompt, json_member(item, "prompt_ids"), vocab, where, "prompt_ids", e) &&
           read_ids(&r->tokens, json_member(item, "tokens"), vocab, where, "tokens", e) &&
           read_floats(&r->margins, json_member(item, "margins"), r->tokens.length, where, "margins", e) &&
           (!logits || read_floats(&r->logits, logits, (size_t)vocab, where, "logits_after_prompt", e));
}

static void free_case(struct reference *r)
{
    ids_free(&r->prompt);
    ids_free(&r->tokens);
    free(r->margins);
    free(r->logits);
}

/* ==== >>compare =========================================================================================== */

static void compare_logits(const struct reference *r, const float *got, size_t count, struct outcome *o)
{
    double squares = 0;
    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - r->logits[i]);
        if (isnan(difference))
            difference = INFINITY;      /* which no other difference replaces */
        squares += difference * difference;
        o->largest = fmax(o->largest, difference);
        o->scale = fmax(o->scale, fabs(r->logits[i]));
    }
    o->rms = sqrt(squares / (double)count);
}

/* What rounding explains: every operation is off by up to half a unit in the last place of the activations' dtype, and
 * over the layers that adds up like a random walk. The tiny model's four layers come to about half of this. */
static double logits_limit(const struct model *m, const struct outcome *o)
{
    double unit = m->dtype == MLXVK_BFLOAT16 ? 1.0 / 256 : m->dtype == MLXVK_FLOAT16 ? 1.0 / 2048 : 1.0 / 65536;
    return 3 * unit * sqrt(fmax(m->config.layers, 4)) * fmax(o->scale, 1);
}

static void compare_token(const struct reference *r, size_t step, uint32_t got, int *wrong, double *wrong_margin, int *ties)
{
    if ((int32_t)got == r->tokens.data[step])
        return;
    if (r->margins[step] < margin_limit)
        ++*ties;
    else if (*wrong < 0) {
        *wrong = (int)step;
        *wrong_margin = r->margins[step];
    }
}

/* ==== >>run =============================================================================================== */

static bool read_logits(struct model *m, const struct reference *r, mlxvk_array logits, struct outcome *o,
                        struct error *e)
{
    const size_t vocab = (size_t)m->config.vocab;
    mlxvk_array floats = none;
    float *got = new_bytes(vocab, sizeof *got);
    gpu_check(m->gpu, mlxvk_astype(&floats, logits, MLXVK_FLOAT32, m->gpu->stream));
    gpu_check(m->gpu, mlxvk_array_read(floats, got, vocab * sizeof *got, m->gpu->stream));
    gpu_drop(&floats);
    bool ok = gpu_ok(m->gpu, "logits", e);
    if (ok)
        compare_logits(r, got, vocab, o);
    free(got);
    return ok;
}

/* The most likely tokens of (1, count, vocab). */
static bool read_best(struct model *m, mlxvk_array logits, uint32_t *best, size_t count, struct error *e)
{
    mlxvk_array index = none;
    gpu_check(m->gpu, mlxvk_argmax_axis(&index, logits, -1, false, m->gpu->stream));
    gpu_check(m->gpu, mlxvk_array_read(index, best, count * sizeof *best, m->gpu->stream));
    gpu_drop(&index);
    return gpu_ok(m->gpu, "argmax", e);
}

/* The prompt, then one token of the reference after the other. */
static bool run_steps(struct model *m, const struct reference *r, struct outcome *o, struct error *e)
{
    mlxvk_array logits = none;
    model_reset(m);
    bool ok = model_prompt(m, r->prompt.data, r->prompt.length, WANT_LAST, &logits, e);
    if (ok && r->logits)
        ok = read_logits(m, r, logits, o, e);
    for (size_t i = 0; ok && i < r->tokens.length; i++) {
        uint32_t best = 0;
        ok = read_best(m, logits, &best, 1, e);
        compare_token(r, i, best, &o->step_wrong, &o->step_margin, &o->ties);
        o->compared += r->margins[i] >= margin_limit;
        if (ok && i + 1 < r->tokens.length)
            ok = model_prompt(m, &r->tokens.data[i], 1, WANT_LAST, &logits, e);
    }
    gpu_drop(&logits);
    return ok;
}

/* Prompt and continuation in one pass. */
static bool run_whole(struct model *m, const struct reference *r, struct outcome *o, struct error *e)
{
    mlxvk_array logits = none;
    struct ids all = { 0 };
    int ties = 0; /* counted by run_steps */
    for (size_t i = 0; i < r->prompt.length; i++)
        ids_add(&all, r->prompt.data[i]);
    for (size_t i = 0; i + 1 < r->tokens.length; i++)
        ids_add(&all, r->tokens.data[i]);
    uint32_t *best = new_bytes(all.length, sizeof *best);
    model_reset(m);
    bool ok = model_prompt(m, all.data, all.length, WANT_ALL, &logits, e) && read_best(m, logits, best, all.length, e);
    for (size_t i = 0; ok && i < r->tokens.length; i++)
        compare_token(r, i, best[r->prompt.length - 1 + i], &o->whole_wrong, &o->whole_margin, &ties);
    gpu_drop(&logits);
    free(best);
    ids_free(&all);
    return ok;
}

static bool report(const struct model *m, int index, const struct reference *r, const struct outcome *o, FILE *out)
{
    const double limit = logits_limit(m, o);
    bool close = !r->logits || (isfinite(o->largest) && o->largest <= limit);
    bool good = close && o->step_wrong < 0 && o->whole_wrong < 0;
    fprintf(out, "case %d: %s: ", index, good ? "ok" : "FAILED");
    if (r->logits)
        fprintf(out, "logits differ by %.4f at most (limit %.4f), %.4f rms; ", o->largest, limit, o->rms);
    fprintf(out, "%d of %zu steps compared, %d other choices at small margins\n", o->compared, r->tokens.length, o->ties);
    if (o->step_wrong >= 0)
        fprintf(out, "  token by token: first other choice at step %d, margin %.4f\n", o->step_wrong, o->step_margin);
    if (o->whole_wrong >= 0)
        fprintf(out, "  in one prompt: first other choice at step %d, margin %.4f\n", o->whole_wrong, o->whole_margin);
    return good;
}

/* Sets *good where the model agrees; returns false for errors only. */
static bool run_case(struct model *m, const cJSON *item, int index, const char *path, FILE *out, bool *good,
                     struct error *e)
{
    struct reference r;
    struct outcome o = { .step_wrong = -1, .whole_wrong = -1 };
    bool ok = read_case(&r, item, m->config.vocab, path, e) && run_steps(m, &r, &o, e) && run_whole(m, &r, &o, e);
    *good = ok && report(m, index, &r, &o, out);
    free_case(&r);
    return ok;
}

bool check_reference(struct model *m, const char *path, FILE *out, struct error *e)
{
    int index = 0, passed = 0;
    cJSON *root = json_read(path, e);
    const cJSON *cases = cJSON_GetObjectItemCaseSensitive(root, "cases"), *item;
    bool ok = root && ((cJSON_IsArray(cases) && cases->child) || fail(e, "%s: no cases", path));
    for (item = ok ? cases->child : NULL; ok && item; item = item->next) {
        bool good = false;
        ok = run_case(m, item, ++index, path, out, &good, e);
        passed += good;
    }
    cJSON_Delete(root);
    if (ok)
        fprintf(out, "%d passed, %d failed\n", passed, index - passed);
    return ok && passed == index;
}
