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
    if (!operation) return complain(problem, "view step %s is not there yet", op ? op : "without a name");
    struct call *c = need(calloc(1, sizeof *c));
    char text[640];
    *c = (struct call){ .args = cJSON_GetObjectItemCaseSensitive(step, "args"), .stream = call->stream };
    c->arrays[c->array_count++] = (struct named_array){ "a", *array };
    int code = operation->run(c);
    bool good = !code && !c->problem.text[0];
    if (c->problem.text[0]) complain(problem, "view step %s: %s", op, c->problem.text);
    else if (code) complain(problem, "view step %s returned %s", op, error_text(text, sizeof text, code, c->stream));
    mlxvk_array_free(*array);
    *array = c->results[0];
    free(c);
    return good;
}

static bool make_array(struct operand *operand, struct call *call, bool contiguous, struct problem *problem)
{
    const cJSON *step;
    operand->array = array_of_tensor(contiguous ? &operand->value : &operand->base);
    if (!operand->array.ctx) return complain(problem, "operand %s: no array from host data", operand->parameter);
    if (contiguous) return true;
    cJSON_ArrayForEach(step, operand->view)
        if (!apply_step(&operand->array, step, call, problem)) return false;
    return true;
}

static void bind_array(struct call *call, const char *name, mlxvk_array array)
{
    call->arrays[call->array_count++] = (struct named_array){ name, array };
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

bool operands_bind(struct operands *o, struct call *call, const cJSON *in, bool contiguous, struct problem *problem)
{
    const cJSON *item;
    int next = 0;
    for (int i = 0; i < o->count; i++)
        if (!make_array(&o->list[i], call, contiguous, problem)) return false;
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
