/* Statements of random programs: made of parts, copied, printed. */
#include "support_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "unit/numbers.h"

/* ---- parts ---- */

struct statement call_of(const char *op)
{
    struct statement s = { .kind = CALL, .variable = NONE, .op = find_operation(op), .args = cJSON_CreateObject() };
    if (s.op) return s;
    fprintf(stderr, "fuzz_programs: there is no operation %s\n", op);
    exit(1);
}

static void add_input(struct statement *s, const char *name, int variable, bool listed)
{
    if (s->inputs == MOST_INPUTS) return;
    s->in[s->inputs++] = (struct input){ name, variable, listed };
}

void with_input(struct statement *s, const char *name, int variable) { add_input(s, name, variable, false); }
void with_listed(struct statement *s, const char *name, int variable) { add_input(s, name, variable, true); }

void with_number(struct statement *s, const char *name, double value)
{
    cJSON_AddItemToObject(s->args, name, cJSON_CreateNumber(value));
}

void with_truth(struct statement *s, const char *name, bool value)
{
    cJSON_AddItemToObject(s->args, name, cJSON_CreateBool(value));
}

void with_text(struct statement *s, const char *name, const char *value)
{
    cJSON_AddItemToObject(s->args, name, cJSON_CreateString(value));
}

void with_null(struct statement *s, const char *name) { cJSON_AddItemToObject(s->args, name, cJSON_CreateNull()); }

void with_ints(struct statement *s, const char *name, const int *values, int count)
{
    cJSON_AddItemToObject(s->args, name, cJSON_CreateIntArray(values, count));
}

void statement_free(struct statement *s)
{
    cJSON_Delete(s->args);
    s->args = NULL;
}

void program_copy(struct program *to, const struct program *from)
{
    *to = *from;
    for (int i = 0; i < to->count; i++) to->statement[i].args = cJSON_Duplicate(from->statement[i].args, true);
}

void program_free(struct program *p)
{
    for (int i = 0; i < p->count; i++) statement_free(&p->statement[i]);
    p->count = 0;
}

void program_delete(struct program *p, int at)
{
    statement_free(&p->statement[at]);
    memmove(p->statement + at, p->statement + at + 1, (size_t)(--p->count - at) * sizeof *p->statement);
}

/* ---- data ---- */

static uint32_t mixed(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

/* Numbers of a moderate size; every float16 and bfloat16 one is that, without rounding. */
static double random_value(const struct data *d, size_t i, uint32_t word)
{
    int thousandths = (int)(word % 256) - 128;
    switch (d->values) {
    case SMALL:    return thousandths / 1024.0;
    case POSITIVE: return (double)(word % 128 + 64) / 128;
    case WHOLE:    return (int)(word % 19) - 9;
    case INDEX:    return word % (uint32_t)d->limit;
    case DISTINCT: return (double)((i * (d->limit % 7 ? 7 : 1) + d->seed) % (size_t)d->limit);
    default:
        if (dtype_is_inexact(d->dtype)) return thousandths / 64.0;
        return d->dtype == MLXVK_BOOL ? (int)(word & 1) : thousandths / 12;
    }
}

struct tensor data_tensor(const struct data *d)
{
    struct tensor t = { .dtype = d->dtype, .ndim = d->ndim };
    memcpy(t.shape, d->shape, sizeof d->shape);
    size_t count = tensor_size(&t);
    t.data = t.owned = need(malloc(tensor_bytes(&t) + 1));
    for (size_t i = 0; i < count; i++) {
        uint32_t word = mixed(((uint64_t)d->seed + 1) * 0x9e3779b97f4a7c15u + i * 0xd1b54a32d192ed03u);
        if (d->values == BITS) memcpy(t.owned + i * bytes_of(d->dtype), &word, bytes_of(d->dtype));
        else store_number(d->dtype, t.owned, i, random_value(d, i, word));
    }
    return t;
}

/* ---- printing ---- */

static void print_data(const struct statement *s)
{
    static const char *const names[VALUES] = { "uniform", "small", "positive", "whole", "index", "distinct", "bits" };
    char shape[200];
    printf("x%d = data(%s, %s, %s", s->variable, dtype_text(s->data.dtype),
           shape_text(shape, sizeof shape, s->data.shape, s->data.ndim), names[s->data.values]);
    if (s->data.values == INDEX || s->data.values == DISTINCT) printf(" below %d", s->data.limit);
    printf(", seed=%u)", s->data.seed);
}

static void print_input(const struct statement *s, int k)
{
    const struct input *in = &s->in[k];
    bool first = !in->listed || !k || strcmp(s->in[k - 1].name, in->name);
    bool last = in->listed && (k + 1 == s->inputs || strcmp(s->in[k + 1].name, in->name));
    printf("%s", k ? ", " : "");
    if (first) printf("%s=%s", in->name, in->listed ? "[" : "");
    if (in->variable == NONE) printf("none");
    else printf("x%d", in->variable);
    printf("%s", last ? "]" : "");
}

static void print_call(const struct statement *s)
{
    const cJSON *item;
    printf("x%d = %s(", s->variable, s->op->name);
    for (int k = 0; k < s->inputs; k++) print_input(s, k);
    cJSON_ArrayForEach(item, s->args) {
        char *text = cJSON_PrintUnformatted(item);
        printf("%s%s=%s", s->inputs || item != s->args->child ? ", " : "", item->string, text ? text : "?");
        cJSON_free(text);
    }
    printf("%s)", s->stream ? ", stream 1" : "");
}

static void print_note(const struct statement *s)
{
    static const char *const names[] = { [FREE] = "free", [READ] = "read", [EVAL] = "eval", [ASYNC] = "async_eval",
                                         [SUBMIT] = "finalize", [WAIT] = "synchronize" };
    if (s->kind == ALIAS) printf("x%d = x%d", s->variable, s->in[0].variable);
    else if (s->kind == SUBMIT || s->kind == WAIT) printf("%s(stream %d)", names[s->kind], s->stream);
    else if (s->variable == NONE) printf("%s(all)", names[s->kind]);
    else printf("%s(x%d)", names[s->kind], s->variable);
}

/* A line each; what is freed at once stands behind. */
void program_print(const struct program *p)
{
    for (int i = 0; i < p->count; i++) {
        const struct statement *s = &p->statement[i];
        printf("%s", s->kind == FREE && i ? "; " : i ? "\n    " : "    ");
        if (s->kind == DATA) print_data(s);
        else if (s->kind == CALL) print_call(s);
        else print_note(s);
    }
    puts("");
}
