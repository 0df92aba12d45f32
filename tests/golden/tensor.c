/* Tensors on the host, and the views that MLX's operations make of them. */
#include "golden.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "unit/numbers.h"

bool complain(struct problem *problem, const char *format, ...)
{
    if (problem->text[0]) return false;
    va_list list;
    va_start(list, format);
    vsnprintf(problem->text, sizeof problem->text, format, list);
    va_end(list);
    return false;
}

void *need(void *pointer)
{
    if (pointer) return pointer;
    fputs("golden: out of memory\n", stderr);
    exit(1);
}

size_t tensor_size(const struct tensor *t)
{
    size_t size = 1;
    for (int i = 0; i < t->ndim; i++) size *= (size_t)t->shape[i];
    return size;
}

size_t tensor_bytes(const struct tensor *t) { return tensor_size(t) * bytes_of(t->dtype); }

void tensor_free(struct tensor *t)
{
    free(t->owned);
    *t = (struct tensor){ 0 };
}

static const char *const dtype_names[MLXVK_DTYPE_COUNT] = {
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "bfloat16", "complex64",
};

const char *dtype_text(mlxvk_dtype dtype)
{
    return (unsigned)dtype < MLXVK_DTYPE_COUNT ? dtype_names[dtype] : "no dtype";
}

bool dtype_by_name(mlxvk_dtype *dtype, const char *name)
{
    for (int i = 0; i < MLXVK_DTYPE_COUNT; i++) {
        if (strcmp(dtype_names[i], name)) continue;
        *dtype = (mlxvk_dtype)i;
        return true;
    }
    return false;
}

const char *shape_text(char *text, size_t size, const int *shape, int ndim)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, i ? ", %d" : "%d", shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}

/* ---- views ---- */

struct strided {
    int ndim;
    int shape[MLXVK_MAX_NDIM];
    int64_t strides[MLXVK_MAX_NDIM];                                    /* in elements */
    int64_t offset;
};

static struct strided row_major(const struct tensor *t)
{
    struct strided v = { .ndim = t->ndim };
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        v.shape[i] = t->shape[i];
        v.strides[i] = stride;
        stride *= t->shape[i];
    }
    return v;
}

/* Copies the elements that v names out of base. */
static bool gather(struct tensor *res, const struct tensor *base, const struct strided *v, struct problem *problem)
{
    *res = (struct tensor){ .dtype = base->dtype, .ndim = v->ndim };
    memcpy(res->shape, v->shape, sizeof v->shape);
    size_t size = tensor_size(res), item = bytes_of(base->dtype), limit = tensor_size(base);
    res->data = res->owned = need(malloc(size * item + 1));
    int index[MLXVK_MAX_NDIM] = { 0 };
    for (size_t n = 0; n < size; n++) {
        int64_t at = v->offset;
        for (int i = 0; i < v->ndim; i++) at += index[i] * v->strides[i];
        if (at < 0 || (uint64_t)at >= limit) return complain(problem, "a view reaches outside its tensor");
        memcpy(res->owned + n * item, base->data + (size_t)at * item, item);
        for (int i = v->ndim - 1; i >= 0 && ++index[i] == v->shape[i]; i--) index[i] = 0;
    }
    return true;
}

/* A list of numbers as integers; its length, or -1. */
static int json_ints(int64_t *values, const cJSON *args, const char *name)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(args, name), *item;
    int count = 0;
    if (!cJSON_IsArray(list)) return -1;
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsNumber(item) || count == MLXVK_MAX_NDIM) return -1;
        values[count++] = (int64_t)item->valuedouble;
    }
    return count;
}

static bool view_transpose(struct strided *v, const cJSON *args)
{
    int64_t axes[MLXVK_MAX_NDIM];
    struct strided old = *v;
    if (json_ints(axes, args, "axes") != v->ndim) return false;
    for (int i = 0; i < v->ndim; i++) {
        int64_t axis = axes[i] < 0 ? axes[i] + v->ndim : axes[i];
        if (axis < 0 || axis >= v->ndim) return false;
        v->shape[i] = old.shape[axis];
        v->strides[i] = old.strides[axis];
    }
    return true;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static bool view_slice(struct strided *v, const cJSON *args)
{
    int64_t start[MLXVK_MAX_NDIM], stop[MLXVK_MAX_NDIM], step[MLXVK_MAX_NDIM];
    if (json_ints(start, args, "start") != v->ndim || json_ints(stop, args, "stop") != v->ndim ||
        json_ints(step, args, "strides") != v->ndim) return false;
    for (int i = 0; i < v->ndim; i++) {
        int64_t n = v->shape[i], s = step[i], low = s < 0 ? -1 : 0, high = s < 0 ? n - 1 : n;
        if (!s) return false;
        int64_t first = clamp(start[i] < 0 ? start[i] + n : start[i], low, high);
        int64_t last = clamp(stop[i] < 0 ? stop[i] + n : stop[i], low, high);
        int64_t span = s < 0 ? first - last : last - first, width = s < 0 ? -s : s;
        v->offset += first * v->strides[i];
        v->shape[i] = span > 0 ? (int)((span + width - 1) / width) : 0;
        v->strides[i] *= s;
    }
    return true;
}

static bool view_broadcast(struct strided *v, const cJSON *args)
{
    int64_t shape[MLXVK_MAX_NDIM];
    struct strided old = *v;
    int ndim = json_ints(shape, args, "shape"), added = ndim - v->ndim;
    if (added < 0) return false;
    v->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        bool kept = i >= added && old.shape[i - added] == shape[i];
        if (!kept && i >= added && old.shape[i - added] != 1) return false;
        v->shape[i] = (int)shape[i];
        v->strides[i] = kept ? old.strides[i - added] : 0;
    }
    return true;
}

static bool view_expand(struct strided *v, const cJSON *args)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(args, "axis");
    if (!cJSON_IsNumber(item) || v->ndim == MLXVK_MAX_NDIM) return false;
    int axis = item->valueint < 0 ? item->valueint + v->ndim + 1 : item->valueint;
    if (axis < 0 || axis > v->ndim) return false;
    size_t moved = (size_t)(v->ndim - axis);
    memmove(v->shape + axis + 1, v->shape + axis, moved * sizeof *v->shape);
    memmove(v->strides + axis + 1, v->strides + axis, moved * sizeof *v->strides);
    v->shape[axis] = 1;
    v->strides[axis] = 0;
    v->ndim++;
    return true;
}

/* Of the row-major elements that v names: so v must be row-major itself, which the caller sees to. */
static bool view_as_strided(struct strided *v, const cJSON *args)
{
    int64_t shape[MLXVK_MAX_NDIM];
    const cJSON *offset = cJSON_GetObjectItemCaseSensitive(args, "offset");
    int ndim = json_ints(shape, args, "shape");
    if (ndim < 0 || json_ints(v->strides, args, "strides") != ndim || !cJSON_IsNumber(offset)) return false;
    for (int i = 0; i < ndim; i++) v->shape[i] = (int)shape[i];
    v->ndim = ndim;
    v->offset = (int64_t)offset->valuedouble;
    return true;
}

static const struct { const char *op; bool (*apply)(struct strided *v, const cJSON *args); } view_steps[] = {
    { "transpose_axes", view_transpose }, { "slice", view_slice }, { "broadcast_to", view_broadcast },
    { "expand_dims", view_expand }, { "as_strided", view_as_strided },
};

static bool one_step(struct tensor *t, const cJSON *step, struct problem *problem)
{
    const char *op = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(step, "op"));
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(step, "args");
    struct strided v = row_major(t);
    for (size_t i = 0; op && i < sizeof view_steps / sizeof *view_steps; i++) {
        if (strcmp(op, view_steps[i].op)) continue;
        struct tensor next;
        if (!view_steps[i].apply(&v, args)) return complain(problem, "view step %s: bad arguments", op);
        bool good = gather(&next, t, &v, problem);
        tensor_free(t);
        *t = next;
        return good;
    }
    return complain(problem, "unknown view step %s", op ? op : "without a name");
}

bool tensor_view(struct tensor *res, const struct tensor *base, const cJSON *steps, struct problem *problem)
{
    struct strided whole = row_major(base);
    const cJSON *step;
    if (!gather(res, base, &whole, problem)) return false;
    cJSON_ArrayForEach(step, steps)
        if (!one_step(res, step, problem)) return false;
    return true;
}
