/* Operands of a case: loaded from the file, viewed on the host and on the device, and read back. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "unit/numbers.h"

const char *error_text(char *text, size_t size, int code, mlxvk_stream stream)
{
    mlxvk_error error = { 0 };
    mlxvk_stream_error(stream, &error);
    snprintf(text, size, "%d (%s): %s", code, mlxvk_result_text(code), error.text);
    return text;
}

/* ---- loading ---- */

static bool load_one(struct operands *o, const struct golden_file *file, const cJSON *item, const char *parameter,
                     struct problem *problem)
{
    if (o->count == MAX_OPERANDS) return complain(problem, "more than %d operands", MAX_OPERANDS);
    struct operand *operand = &o->list[o->count++];
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "t"));
    operand->parameter = parameter;
    operand->view = cJSON_GetObjectItemCaseSensitive(item, "view");
    if (cJSON_GetArraySize(operand->view)) o->has_views = true;
    return golden_tensor(&operand->base, file, name, problem) &&
           tensor_view(&operand->value, &operand->base, operand->view, problem);
}

bool operands_load(struct operands *o, const struct golden_file *file, const cJSON *in, struct problem *problem)
{
    const cJSON *item, *part;
    *o = (struct operands){ 0 };
    cJSON_ArrayForEach(item, in) {
        if (cJSON_IsObject(item) && !load_one(o, file, item, item->string, problem)) return false;
        if (!cJSON_IsArray(item)) continue;
        cJSON_ArrayForEach(part, item)
            if (!load_one(o, file, part, item->string, problem)) return false;
    }
    return true;
}

void operands_free(struct operands *o)
{
    for (int i = 0; i < o->count; i++) tensor_free(&o->list[i].value);
    *o = (struct operands){ 0 };
}

/* ---- arrays ---- */

static mlxvk_array array_of_tensor(const struct tensor *t)
{
    return mlxvk_array_new_data(t->data, t->shape, t->ndim, t->dtype);
}

static bool apply_step(mlxvk_array *array, const cJSON *step, struct call *call, struct problem *problem)
{
    const char *op = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(step, "op"));
    const struct operation *operation = op ? find_operation(op) : NULL;
    if (!operation) return complain(problem, "the runner knows no view step %s", op ? op : "without a name");
    struct call *c = need(calloc(1, sizeof *c));
    char text[640];
    *c = (struct call){ .args = cJSON_GetObjectItemCaseSensitive(step, "args"), .stream = call->stream };
    c->arrays[c->array_count++] = (struct named_array){ "a", *array, false };
    int code = operation->run(c);
    bool good = !code && !c->problem.text[0];
    if (c->problem.text[0]) complain(problem, "view step %s: %s", op, c->problem.text);
    else if (code) complain(problem, "view step %s returned %s", op, error_text(text, sizeof text, code, c->stream));
    mlxvk_array_free(*array);
    *array = c->results[0];
    free(c);
    return good;
}

static bool make_viewed(struct operand *operand, struct call *call, struct problem *problem)
{
    const cJSON *step;
    operand->array = array_of_tensor(&operand->base);
    cJSON_ArrayForEach(step, operand->view)
        if (operand->array.ctx && !apply_step(&operand->array, step, call, problem)) return false;
    return true;
}

/* ---- scattered operands ---- */

/* Where the elements of a tensor lie in a larger one: axis i is axis place[i] of it, from start in steps. */
struct scatter {
    struct tensor base;
    int place[MLXVK_MAX_NDIM], start[MLXVK_MAX_NDIM], stop[MLXVK_MAX_NDIM], step[MLXVK_MAX_NDIM];
};

/* Some number that depends on the operand only. */
static unsigned mix(unsigned seed) { return (seed * 2654435761u) >> 7; }

static struct scatter plan_scatter(const struct tensor *t, unsigned seed)
{
    struct scatter s = { .base = { .dtype = t->dtype, .ndim = t->ndim } };
    int turn = t->ndim ? (int)(mix(seed) % (unsigned)t->ndim) : 0;
    for (int i = 0; i < t->ndim; i++) {
        unsigned bits = mix(seed + 31u * (unsigned)i + 7);
        int at = s.place[i] = (i + turn) % t->ndim, width = 1 + (int)(bits & 1), length = t->shape[i];
        int lead = (int)(bits >> 1 & 3), last = lead + (length - 1) * width;
        s.base.shape[at] = lead + length * width + 1;
        s.start[at] = lead, s.stop[at] = lead + length * width, s.step[at] = width;
        if (!(bits >> 3 & 1) || length == 0) continue;
        s.start[at] = last, s.stop[at] = lead ? lead - 1 : -s.base.shape[at] - 1, s.step[at] = -width;
    }
    return s;
}

static void fill_scatter(struct scatter *s, const struct tensor *t)
{
    size_t size = tensor_size(t), item = bytes_of(t->dtype), stride[MLXVK_MAX_NDIM + 1] = { 0 };
    int index[MLXVK_MAX_NDIM] = { 0 };
    s->base.data = s->base.owned = need(malloc(tensor_bytes(&s->base) + 1));
    memset(s->base.owned, 1, tensor_bytes(&s->base));
    stride[t->ndim] = 1;
    for (int i = t->ndim; i-- > 0;) stride[i] = stride[i + 1] * (size_t)s->base.shape[i];
    for (size_t n = 0; n < size; n++) {
        size_t to = 0;
        for (int i = 0; i < t->ndim; i++)
            to += (size_t)(s->start[s->place[i]] + index[i] * s->step[s->place[i]]) * stride[s->place[i] + 1];
        memcpy(s->base.owned + to * item, t->data + n * item, item);
        for (int i = t->ndim - 1; i >= 0 && ++index[i] == t->shape[i]; i--) index[i] = 0;
    }
}

static bool make_scattered(struct operand *operand, struct call *call, unsigned seed, struct problem *problem)
{
    struct scatter s = plan_scatter(&operand->value, seed);
    size_t n = (size_t)operand->value.ndim;
    fill_scatter(&s, &operand->value);
    operand->array = array_of_tensor(&s.base);
    tensor_free(&s.base);
    if (!operand->array.ctx) return true;
    if (mlxvk_slice(&operand->array, operand->array, s.start, n, s.stop, n, s.step, n, call->stream) ||
        mlxvk_transpose_axes(&operand->array, operand->array, s.place, n, call->stream))
        return complain(problem, "operand %s: no view", operand->parameter);
    return true;
}

static bool make_array(struct operands *o, int index, struct call *call, enum layout layout, struct problem *problem)
{
    struct operand *operand = &o->list[index];
    bool good = true;
    if (layout == CONTIGUOUS) operand->array = array_of_tensor(&operand->value);
    else if (layout == AS_GIVEN) good = make_viewed(operand, call, problem);
    else good = make_scattered(operand, call, (unsigned)index + (unsigned)tensor_bytes(&operand->value), problem);
    if (!good || operand->array.ctx) return good;
    return complain(problem, "operand %s: no array from host data", operand->parameter);
}

static void bind_array(struct call *call, const char *name, mlxvk_array array)
{
    call->arrays[call->array_count++] = (struct named_array){ name, array, false };
}

static bool bind_vector(struct call *call, const struct operands *o, int first, int count, const char *name)
{
    mlxvk_vector_array vector = mlxvk_vector_array_new();
    if (call->vector_count == (int)(sizeof call->vectors / sizeof *call->vectors)) return false;
    call->vectors[call->vector_count++] = (struct named_vector){ name, vector };
    for (int i = first; i < first + count; i++)
        if (mlxvk_vector_array_append_value(vector, o->list[i].array)) return false;
    return true;
}

bool operands_bind(struct operands *o, struct call *call, const cJSON *in, enum layout layout, struct problem *problem)
{
    const cJSON *item;
    int next = 0;
    for (int i = 0; i < o->count; i++)
        if (!make_array(o, i, call, layout, problem)) return false;
    cJSON_ArrayForEach(item, in) {
        int count = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : cJSON_IsObject(item);
        if (call->array_count == MAX_OPERANDS) return complain(problem, "more than %d operands", MAX_OPERANDS);
        if (!cJSON_IsArray(item)) bind_array(call, item->string, count ? o->list[next].array : mlxvk_array_new());
        else if (!bind_vector(call, o, next, count, item->string)) return complain(problem, "no vector of arrays");
        next += count;
    }
    return true;
}

void operands_release(struct operands *o, struct call *call)
{
    for (int i = 0; i < o->count; i++) {
        mlxvk_array_free(o->list[i].array);
        o->list[i].array = mlxvk_array_new();
    }
    for (int i = 0; i < call->vector_count; i++) mlxvk_vector_array_free(call->vectors[i].vector);
    call->vector_count = call->array_count = 0;
}

/* ---- reading ---- */

enum { GUARD = 64, PATTERN = 0xA5 };

bool array_to_tensor(struct tensor *res, mlxvk_array array, mlxvk_stream stream, struct problem *problem)
{
    *res = (struct tensor){ .dtype = mlxvk_array_dtype(array), .ndim = (int)mlxvk_array_ndim(array) };
    char text[640];
    if (!array.ctx) return complain(problem, "there is no result");
    if (res->ndim) memcpy(res->shape, mlxvk_array_shape(array), (size_t)res->ndim * sizeof *res->shape);
    size_t bytes = tensor_bytes(res);
    if (bytes != mlxvk_array_nbytes(array)) return complain(problem, "nbytes does not fit the shape");
    res->data = res->owned = need(malloc(bytes + GUARD));
    memset(res->owned, PATTERN, bytes + GUARD);
    int code = mlxvk_array_read(array, res->owned, bytes, stream);
    if (code) return complain(problem, "reading returned %s", error_text(text, sizeof text, code, stream));
    for (size_t i = bytes; i < bytes + GUARD; i++)
        if (res->owned[i] != PATTERN) return complain(problem, "reading wrote behind the buffer");
    return true;
}
