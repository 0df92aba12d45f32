/* From a failing program to the few lines that fail. Each change is kept where the program still fails, in whatever
 * way. */
#include "support_program.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_SECONDS = 60 };

static time_t began;
static int tries;                                          /* a race does not show each time */

static bool still_fails(const struct program *p, struct problem *problem)
{
    struct problem found = { "" };
    for (int i = 0; i < tries; i++) {
        found.text[0] = 0;
        if (program_passes(p, &found)) continue;
        *problem = found;
        return true;
    }
    return false;
}

/* Keeps `changed` in place of *p where it fails, else drops it. */
static bool keep(struct program *p, struct program *changed, struct problem *problem)
{
    bool fails = time(NULL) - began < MOST_SECONDS && still_fails(changed, problem);
    if (fails) { program_free(p); *p = *changed; }
    else program_free(changed);
    return fails;
}

/* Parts of `size` statements at a time. */
static bool delete_parts(struct program *p, int size, struct problem *problem)
{
    bool any = false;
    struct program *changed = need(malloc(sizeof *changed));
    for (int at = p->count - size; at >= 0; at -= size) {
        if (at + size > p->count) continue;
        program_copy(changed, p);
        for (int i = 0; i < size; i++) program_delete(changed, at);
        any = keep(p, changed, problem) || any;
    }
    free(changed);
    return any;
}

static struct reference *referred(const struct program *p)
{
    struct reference *r = need(malloc(sizeof *r));
    reference_begin(r, p->straight);
    for (int i = 0; i < p->count; i++) reference_step(r, p, i);
    return r;
}

static void forget(struct reference *r) { reference_end(r); free(r); }

/* Statements that the reference cannot run. */
static void delete_dead(struct program *p)
{
    struct reference *r = need(malloc(sizeof *r));
    reference_begin(r, p->straight);
    for (int i = 0; i < p->count; i++)
        if (!reference_step(r, p, i)) {
            program_delete(p, i);
            forget(r);
            delete_dead(p);
            return;
        }
    forget(r);
}

/* Data in place of what an operation gives. */
static bool cut_off(struct program *p, struct problem *problem)
{
    bool any = false;
    struct program *changed = need(malloc(sizeof *changed));
    for (int i = p->count - 1; i >= 0; i--) {
        if (p->statement[i].kind != CALL) continue;
        struct reference *r = referred(p);
        struct tensor t = r->value[i].tensor;
        bool there = r->value[i].there;
        forget(r);
        if (!there || t.ndim > MOST_DIMS) continue;
        program_copy(changed, p);
        struct statement *s = &changed->statement[i];
        statement_free(s);
        *s = (struct statement){ .kind = DATA, .variable = s->variable };
        s->data = (struct data){ t.dtype, t.ndim, { 0 }, UNIFORM, 0, (uint32_t)i };
        memcpy(s->data.shape, t.shape, (size_t)t.ndim * sizeof *t.shape);
        any = keep(p, changed, problem) || any;
    }
    free(changed);
    return any;
}

/* Every use of what statement i gives becomes one of its operands. */
static bool bypass(struct program *p, struct problem *problem)
{
    bool any = false;
    struct program *changed = need(malloc(sizeof *changed));
    for (int i = p->count - 1; i >= 0; i--)
        for (int k = 0; i < p->count && k < p->statement[i].inputs; k++) {
            int from = p->statement[i].variable, to = p->statement[i].in[k].variable;
            if (to == NONE || from == to) continue;
            program_copy(changed, p);
            for (int j = i + 1; j < changed->count; j++)
                for (int n = 0; n < changed->statement[j].inputs; n++) {
                    struct input *in = &changed->statement[j].in[n];
                    if (in->variable == from) in->variable = to;
                }
            program_delete(changed, i);
            any = keep(p, changed, problem) || any;
        }
    free(changed);
    return any;
}

/* ---- numbers ---- */

static void replace_in(cJSON *item, int from, int to)
{
    if (cJSON_IsNumber(item) && item->valuedouble == from) cJSON_SetNumberValue(item, to);
    for (cJSON *c = cJSON_IsArray(item) ? item->child : NULL; c; c = c->next) replace_in(c, from, to);
}

static void replace_all(struct program *p, int from, int to)
{
    for (int i = 0; i < p->count; i++) {
        struct statement *s = &p->statement[i];
        for (int k = 0; s->kind == DATA && k < s->data.ndim; k++) if (s->data.shape[k] == from) s->data.shape[k] = to;
        for (cJSON *c = s->args ? s->args->child : NULL; c; c = c->next) replace_in(c, from, to);
    }
}

static void count_in(const cJSON *item, bool *seen, int most)
{
    if (cJSON_IsNumber(item) && item->valuedouble > 1 && item->valuedouble < most) seen[(int)item->valuedouble] = true;
    for (const cJSON *c = cJSON_IsArray(item) ? item->child : NULL; c; c = c->next) count_in(c, seen, most);
}

/* A size becomes a smaller one wherever it stands. */
static bool smaller_numbers(struct program *p, struct problem *problem)
{
    enum { MOST = 5000 };
    bool any = false, *seen = need(calloc(MOST, sizeof *seen));
    struct program *changed = need(malloc(sizeof *changed));
    for (int i = 0; i < p->count; i++) {
        const struct statement *s = &p->statement[i];
        for (int k = 0; s->kind == DATA && k < s->data.ndim; k++)
            if (s->data.shape[k] < MOST) seen[s->data.shape[k]] = true;
        for (const cJSON *c = s->args ? s->args->child : NULL; c; c = c->next) count_in(c, seen, MOST);
    }
    for (int n = MOST - 1; n > 1; n--) {
        const int less[] = { 1, n / 2, n - 1 };
        for (int k = 0; k < 3 && seen[n]; k++) {
            if (less[k] >= n || (k && less[k] < 2)) continue;
            program_copy(changed, p);
            replace_all(changed, n, less[k]);
            if (keep(p, changed, problem)) { any = true; seen[less[k]] = true; break; }
        }
    }
    free(changed);
    free(seen);
    return any;
}

/* One list of one statement, number by number. */
static bool plainer_lists(struct program *p, struct problem *problem)
{
    bool any = false;
    struct program *changed = need(malloc(sizeof *changed));
    for (int i = 0; i < p->count; i++)
        for (int a = 0; p->statement[i].args && a < cJSON_GetArraySize(p->statement[i].args); a++) {
            int n = cJSON_GetArraySize(cJSON_GetArrayItem(p->statement[i].args, a));
            for (int k = 0; k < n; k++) {
                double was = cJSON_GetNumberValue(cJSON_GetArrayItem(cJSON_GetArrayItem(p->statement[i].args, a), k));
                if (was == 0 || was == 1) continue;
                program_copy(changed, p);
                cJSON *item = cJSON_GetArrayItem(cJSON_GetArrayItem(changed->statement[i].args, a), k);
                cJSON_SetNumberValue(item, was < 0 || was > 3 ? 1 : was - 1);
                any = keep(p, changed, problem) || any;
            }
        }
    free(changed);
    return any;
}

/* ---- the rest ---- */

static void make_plain(struct program *p, int what)
{
    if (what == 0) p->setting = 0;
    if (what == 1) p->straight = false;
    for (int i = 0; i < p->count; i++) {
        struct statement *s = &p->statement[i];
        if (what == 2) s->stream = 0;
        if (what == 3 && s->kind == DATA && (s->data.dtype == MLXVK_FLOAT16 || s->data.dtype == MLXVK_BFLOAT16))
            s->data.dtype = MLXVK_FLOAT32;
    }
}

static bool plainer(struct program *p, struct problem *problem)
{
    bool any = false;
    struct program *changed = need(malloc(sizeof *changed));
    for (int what = 0; what < 4; what++) {
        program_copy(changed, p);
        make_plain(changed, what);
        any = keep(p, changed, problem) || any;
    }
    free(changed);
    return any;
}

void program_shrink(struct program *p, struct problem *problem)
{
    struct problem first = { "" };
    began = time(NULL);
    tries = 4;
    if (!still_fails(p, problem)) return;
    for (int i = 0; i < 3; i++) if (!program_passes(p, &first)) tries--;
    delete_dead(p);
    for (int size = p->count / 2; size; size /= 2) delete_parts(p, size, problem);
    plainer(p, problem);
    for (int round = 0; round < 4; round++) {
        int before = p->count;
        bool any = cut_off(p, problem);
        any = bypass(p, problem) || any;
        any = delete_parts(p, 2, problem) || any;
        while (delete_parts(p, 1, problem)) any = true;
        any = smaller_numbers(p, problem) || any;
        any = plainer_lists(p, problem) || any;
        if (!any || (round && before == p->count)) break;
    }
    delete_dead(p);
    still_fails(p, problem);
}
