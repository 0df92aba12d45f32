/* Random calls of every operation of the table: shapes to 6 dimensions, all dtypes, layouts, values that fit and values that
 * do not, handles and pointers that are missing, arrays of another stream and of another device. A call may be refused or
 * give a result that can be read; it must not crash, lose the device or change a result handle when it fails; made again it
 * gives the same bits. The same seed makes the same calls. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "unit/numbers.h"

struct making now;

static uint32_t random_word(void)                          /* splitmix64 */
{
    if (now.byte_count > 1) {
        now.byte_count -= 2;
        now.bytes += 2;
        return now.bytes[-2] | (uint32_t)now.bytes[-1] << 8;
    }
    uint64_t z = now.state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

int below(int n) { return (int)(random_word() % (uint32_t)n); }
int between(int low, int high) { return low + below(high - low + 1); }
bool chance(int percent) { return below(100) < percent; }
#define ONE_OF(...) (((const char *[]){ __VA_ARGS__ })[below((int)(sizeof(const char *[]){ __VA_ARGS__ } / sizeof(char *)))])
static bool any_of(const char *name, const char *part) { return strstr(name, part) != NULL; }

/* ---- arrays ---- */

static int random_size(void) { return chance(4) ? 0 : chance(25) ? 1 : between(2, LARGEST); }

/* A shape of this call's kind: the same, with ones, shorter, turned, or any. */
static int random_shape(int *shape)
{
    int ndim = now.ndim, kind = below(10);
    memcpy(shape, now.shape, sizeof now.shape);
    if (kind == 6) for (int i = 0; i < ndim; i++) if (chance(40)) shape[i] = 1;
    if (kind == 7 && ndim) { int drop = below(ndim); ndim -= drop; memmove(shape, shape + drop, (size_t)ndim * sizeof *shape); }
    if (kind == 8 && ndim > 1) { int n = shape[ndim - 1]; shape[ndim - 1] = shape[ndim - 2]; shape[ndim - 2] = n; }
    if (kind == 9) { ndim = below(MOST_DIMS + 1); for (int i = 0; i < ndim; i++) shape[i] = random_size(); }
    return ndim;
}

static void fill(mlxvk_dtype dtype, unsigned char *data, size_t count, const char *name)
{
    bool bits = chance(15) || !strcmp(name, "w"), index = any_of(name, "indices") || any_of(name, "segments") || !strcmp(name, "start");
    for (size_t i = 0; i < count; i++) {
        double value = index ? between(chance(5) ? -9 : 0, LARGEST - 1) : chance(30) ? between(-3, 9) : between(-4000, 4000) / 1000.0;
        if (chance(2)) value = value < 0 ? -INFINITY : value < 1 ? NAN : INFINITY;
        if (!dtype_is_inexact(dtype) && !(fabs(value) < 1e9)) value = 1;
        store_number(dtype, data, i, value);
        for (size_t k = 0; k < bytes_of(dtype) && bits && dtype != MLXVK_BOOL; k++)
            data[i * bytes_of(dtype) + k] = (unsigned char)random_word();
    }
}

mlxvk_dtype random_dtype(void) { int t; do t = below(MLXVK_DTYPE_COUNT); while (t == MLXVK_FLOAT64); return (mlxvk_dtype)t; }

static mlxvk_dtype dtype_for(const char *name)
{
    static const mlxvk_dtype integers[] = { MLXVK_INT32, MLXVK_UINT32, MLXVK_INT64, MLXVK_UINT8, MLXVK_INT16, MLXVK_UINT64 };
    if (chance(6)) return random_dtype();
    if (any_of(name, "indices") || any_of(name, "segments") || !strcmp(name, "start")) return integers[below(6)];
    if (!strcmp(name, "key") || !strcmp(name, "w")) return MLXVK_UINT32;
    if (any_of(name, "mask") || !strcmp(name, "condition")) return MLXVK_BOOL;
    return chance(80) ? now.dtype : random_dtype();
}

static mlxvk_array plain_array(const char *name, mlxvk_dtype dtype, const int *shape, int ndim)
{
    size_t count = 1;
    mlxvk_array a;
    unsigned char *data;
    for (int i = 0; i < ndim; i++) count *= (size_t)shape[i];
    data = need(malloc(count * bytes_of(dtype) + 1));
    fill(dtype, data, count, name);
    a = mlxvk_array_new_data(data, shape, ndim, dtype);
    free(data);
    return a;
}

/* Where an array lies in a larger one: axis i is axis place[i] of that, from start in steps; repeated: it has one element. */
struct placing {
    int base[MOST_DIMS], place[MOST_DIMS], start[MOST_DIMS], stop[MOST_DIMS], step[MOST_DIMS];
    bool repeated;
};

static struct placing random_layout(const int *shape, int ndim)
{
    struct placing l = { .repeated = chance(15) };
    int turn = ndim && chance(50) ? below(ndim) : 0;
    bool cut = chance(60);
    for (int i = 0; i < ndim; i++) {
        int at = l.place[i] = (i + turn) % ndim, n = l.repeated && shape[i] && chance(60) ? 1 : shape[i];
        int lead = cut ? below(3) : 0, width = cut && chance(40) ? between(2, 3) : 1, size = lead + n * width + (cut ? below(2) : 0);
        bool back = n && chance(20);
        l.base[at] = size, l.step[at] = back ? -width : width;
        l.start[at] = back ? lead + (n - 1) * width : lead;
        l.stop[at] = !back ? lead + n * width : lead ? lead - 1 : -size - 1;
    }
    return l;
}

/* By the library's own functions; where one refuses, the array is another one. */
static mlxvk_array laid_out(const char *name, mlxvk_dtype dtype, const int *shape, int ndim)
{
    struct placing l = random_layout(shape, ndim);
    size_t n = (size_t)ndim, count = 1;
    mlxvk_array a;
    for (int i = 0; i < ndim; i++) count *= (size_t)l.base[i];
    if (count > 1 << 18) return plain_array(name, dtype, shape, ndim);
    a = plain_array(name, dtype, l.base, ndim);
    if (!a.ctx || mlxvk_slice(&a, a, l.start, n, l.stop, n, l.step, n, now.stream)) return a;
    if (mlxvk_transpose_axes(&a, a, l.place, n, now.stream)) return a;
    if (l.repeated) mlxvk_broadcast_to(&a, a, shape, n, now.stream);
    return a;
}

/* From some byte of an array of bytes on. */
static mlxvk_array misaligned(const char *name, mlxvk_dtype dtype, const int *shape, int ndim)
{
    int bytes = (int)bytes_of(dtype), lead = between(1, 9), base = bytes, ends[2] = { lead, 0 };
    mlxvk_array a;
    for (int i = 0; i < ndim; i++) base *= shape[i];
    ends[1] = base += lead;
    if (dtype == MLXVK_BOOL || base > 1 << 20) return plain_array(name, dtype, shape, ndim);
    a = plain_array("w", MLXVK_UINT8, &base, 1);
    if (!a.ctx || mlxvk_slice(&a, a, &ends[0], 1, &ends[1], 1, &(int){ 1 }, 1, now.stream)) return a;
    if (!mlxvk_view(&a, a, dtype, now.stream)) mlxvk_reshape(&a, a, shape, (size_t)ndim, now.stream);
    return a;
}

/* Not computed yet, on this stream or the second. */
static void make_lazy(mlxvk_array *a)
{
    mlxvk_stream stream = chance(25) ? now.second : now.stream;
    if (chance(50)) mlxvk_maximum(a, *a, *a, stream);
    else mlxvk_contiguous(a, *a, chance(50), stream);
}

mlxvk_array shaped_array(const char *name, mlxvk_dtype dtype, const int *shape, int ndim)
{
    int kind = below(100);
    mlxvk_array a = kind < 45 ? laid_out(name, dtype, shape, ndim) : kind < 49 ? misaligned(name, dtype, shape, ndim) :
                                plain_array(name, dtype, shape, ndim);
    if (a.ctx && chance(15)) make_lazy(&a);
    return a;
}

static mlxvk_array random_array(const char *name)
{
    int shape[MOST_DIMS], ndim = random_shape(shape);
    mlxvk_dtype dtype = dtype_for(name);
    if (!strcmp(name, "key") && !chance(5)) { ndim = 1; shape[0] = 2; }
    if ((any_of(name, "value") || any_of(name, "val") || any_of(name, "scale")) && chance(50)) ndim = 0;
    return chance(2) ? mlxvk_array_new() : shaped_array(name, dtype, shape, ndim);
}

/* Its like on the other device. */
static void make_foreign(mlxvk_array *a)
{
    mlxvk_array other = { NULL };
    mlxvk_array_new_data_device(&other, NULL, mlxvk_array_shape(*a), (int)mlxvk_array_ndim(*a), mlxvk_array_dtype(*a), now.other);
    if (!other.ctx) return;
    mlxvk_array_free(*a);
    *a = other;
    now.foreign = true;
}

/* ---- parameters ---- */

/* Numbers that become sizes of results stay small, but for a few. */
static bool is_size(const char *name)
{
    static const char *const sizes[] = {
        "shape", "n", "m", "M", "num", "x", "reps", "repeats", "pad_width", "low_pad_size", "high_pad_size", "num_samples",
        "slice_sizes", "slice_size", "num_splits", "padding", "padding_lo", "padding_hi", "output_padding", "width", "dims",
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) if (!strcmp(name, sizes[i])) return true;
    return any_of(name, "padding") || any_of(name, "dilation") || any_of(name, "stride_");
}

static double random_integer(const char *name)
{
    static const int extremes[] = { INT32_MAX, INT32_MIN, INT32_MAX - 1, 1 << 30, -(1 << 30), 65536 };
    if (chance(is_size(name) ? 1 : 3)) return extremes[below(6)];
    if (!strcmp(name, "bits")) return between(0, 9);
    if (!strcmp(name, "group_size")) return 16 << below(4);
    if (is_size(name)) return chance(5) ? -between(1, 3) : between(0, 9);
    if (any_of(name, "axis") && now.ndim && chance(85)) return between(-now.ndim, now.ndim - 1);
    return chance(70) ? between(0, 3) : between(-7, 9);
}

static const char *random_string(const char *name)
{
    if (!strcmp(name, "norm")) return chance(2) ? "#7" : ONE_OF("backward", "ortho", "forward");     /* numbers in C */
    if (chance(3)) return "bogus";
    if (chance(2)) return NULL;
    if (!strcmp(name, "mask_mode")) return ONE_OF("", "causal", "array");
    if (!strcmp(name, "indexing")) return ONE_OF("xy", "ij");
    if (!strcmp(name, "ord")) return ONE_OF("fro", "f", "nuc");
    if (!strcmp(name, "UPLO")) return ONE_OF("L", "U");
    if (!strcmp(name, "side")) return ONE_OF("left", "right");
    if (!strcmp(name, "subscripts")) return ONE_OF("ij,jk->ik", "ij->ji", "i,i", "...i,...i->...", "ab,bc,cd->ad", "ii->i", "ij,", "->");
    if (any_of(now.op, "pad")) return ONE_OF("constant", "edge", "reflect", "symmetric");
    return ONE_OF("affine", "mxfp4", "mxfp8", "nvfp4");
}

static cJSON *random_number(const char *name)
{
    static const double numbers[] = { 0, 1, -1, 0.5, 2, 3, 1e-5, 1e-3, 10000, -2.5, 7, 1e30 };
    (void)name;
    if (chance(3)) return cJSON_CreateString(ONE_OF("inf", "-inf", "nan"));
    return cJSON_CreateNumber(chance(70) ? numbers[below(12)] : between(-50, 50));
}

/* A pointer that is NULL with a count that says otherwise: an object, of which only the size counts. */
static cJSON *no_list(void)
{
    cJSON *none = cJSON_CreateObject();
    for (int n = below(3); n >= 0; n--) cJSON_AddNullToObject(none, "");
    return none;
}

static cJSON *random_text(const char *text) { return text ? cJSON_CreateString(text) : cJSON_CreateNull(); }

static const char *random_dtype_text(void)
{
    return chance(2) ? "float64" : chance(1) ? ONE_OF("#-1", "#14", "#99") : dtype_text(random_dtype());
}

static void add_number(cJSON *list, double value) { cJSON_AddItemToArray(list, cJSON_CreateNumber(value)); }

static cJSON *random_list(const char *name)
{
    cJSON *list = cJSON_CreateArray();
    bool by_axis = any_of(name, "st") || any_of(name, "reps") || any_of(name, "slice_size");       /* start, stop, strides */
    int n = chance(4) ? below(MOST_DIMS + 2) : !strcmp(name, "shape") ? below(5) : by_axis ? now.ndim : below(now.ndim + 1);
    if (any_of(name, "axes") || !strcmp(name, "axis")) {                                              /* mostly different ones */
        int first = below(now.ndim + 1);
        for (int i = 0; i < n; i++) add_number(list, chance(85) && now.ndim ? (first + i) % now.ndim : between(-7, 7));
        return list;
    }
    if (!strcmp(name, "shape") && chance(50)) {
        int shape[MOST_DIMS];
        n = random_shape(shape);
        for (int i = 0; i < n; i++) add_number(list, chance(3) ? -1 : chance(1) ? INT32_MAX : shape[i]);
        return list;
    }
    for (int i = 0; i < n; i++) add_number(list, !strcmp(name, "strides") && !chance(20) ? between(-2, 2) : random_integer(name));
    return list;
}

/* An operand that the call will take: at times another device's, or the one whose handle the result shall replace. */
static void use_array(struct call *c, mlxvk_array *a)
{
    if (now.again) return;
    if (now.other.ctx && chance(1)) make_foreign(a);
    else if (chance(5) && !now.replaced && !c->results[0].ctx) { c->results[0] = *a; now.replaced = a->ctx; }
}

static void invent(struct call *c, const char *name, char kind)
{
    if (kind == 'a') {
        int i = 0;
        while (i < c->array_count && strcmp(c->arrays[i].name, name)) i++;
        if (i < c->array_count ? c->arrays[i].used : i == MAX_OPERANDS) return;
        if (i == c->array_count) c->arrays[c->array_count++] = (struct named_array){ name, random_array(name), false };
        c->arrays[i].used = true;
        if (c->arrays[i].array.ctx) use_array(c, &c->arrays[i].array);
        return;
    }
    if (kind == 'v') {
        struct named_vector *v = &c->vectors[c->vector_count];
        for (int i = 0; i < c->vector_count; i++) if (!strcmp(c->vectors[i].name, name)) return;
        *v = (struct named_vector){ name, mlxvk_vector_array_new() };
        c->vector_count++;
        for (int n = chance(3) ? 0 : between(1, 4); n > 0; n--) {
            mlxvk_array a = random_array(name);
            if (a.ctx) mlxvk_vector_array_append_value(v->vector, a);
            mlxvk_array_free(a);
        }
        return;
    }
    if (cJSON_GetObjectItemCaseSensitive(now.args, name)) return;
    cJSON_AddItemToObject(now.args, name,
        kind == 'b' ? cJSON_CreateBool(chance(50)) : kind == 'i' ? cJSON_CreateNumber(random_integer(name)) :
        kind == 'u' ? cJSON_CreateNumber(below(9)) : kind == 'n' ? random_number(name) : kind == 's' ? random_text(random_string(name)) :
        kind == 't' ? cJSON_CreateString(random_dtype_text()) :
        kind == 'l' ? (chance(2) ? cJSON_CreateNull() : chance(1) ? no_list() : random_list(name)) :
        chance(50) ? cJSON_CreateNull() : kind == 'I' ? cJSON_CreateNumber(random_integer(name)) :
        kind == 'T' ? cJSON_CreateString(random_dtype_text()) : cJSON_CreateNumber(between(-5, 50)));
}

/* ---- host memory that is refused at times ---- */

static int refused_percent;
static uint64_t refusals;                                  /* a stream of its own: other calls stay what they are */

static void *allocate(size_t size, void *user)
{
    (void)user;
    refusals = refusals * 6364136223846793005u + 1442695040888963407u;
    return (int)((refusals >> 33) % 1000) < refused_percent * 10 ? NULL : malloc(size);
}

static void release(void *pointer, void *user) { (void)user; free(pointer); }

/* The device that arrays are made on becomes one with such memory. */
static mlxvk_stream scarce_stream(int percent)
{
    mlxvk_device device = { NULL };
    mlxvk_stream stream = { NULL };
    mlxvk_device_create(&device, &(mlxvk_device_desc){ .allocator = { allocate, release, NULL } });
    mlxvk_set_default_device(device);
    stream = mlxvk_default_gpu_stream_new();
    mlxvk_device_free(device);
    refused_percent = percent;
    return stream;
}

/* ---- one call ---- */

/* What a result holds, in few numbers: to compare runs with other switches. */
static void print_result(mlxvk_array array, const unsigned char *data)
{
    mlxvk_dtype dtype = mlxvk_array_dtype(array);
    size_t size = mlxvk_array_size(array), odd = 0;
    uint32_t hash = 2166136261u;
    double sum = 0;
    char text[160];
    for (size_t i = 0; i < mlxvk_array_nbytes(array); i++) hash = (hash ^ data[i]) * 16777619u;
    for (size_t i = 0; i < size; i++) {
        struct number n = load_number(dtype, data, i);
        if (isfinite(n.re) && isfinite(n.im)) sum += fabs(n.re) + fabs(n.im);
        else odd++;
    }
    printf("     gave %s %s: sum %.9g, %zu not finite, hash %08x\n", dtype_text(dtype),
           shape_text(text, sizeof text, mlxvk_array_shape(array), (int)mlxvk_array_ndim(array)), sum, odd, hash);
}

/* Reads what came out; `good` results must be readable, but for limits of the device. */
static bool read_result(mlxvk_array array, struct problem *problem)
{
    size_t bytes = mlxvk_array_nbytes(array);
    unsigned char *data;
    char text[640];
    int code;
    if (!array.ctx) return complain(problem, "there is no result");
    if (bytes > (size_t)1 << 26) return true;              /* a view that repeats what it has */
    data = need(malloc(bytes + 1));
    code = mlxvk_array_read(array, data, bytes, now.stream);
    if (!code && now.verbose) print_result(array, data);
    free(data);
    if (!code || code == MLXVK_ERROR_LIMIT || code == MLXVK_ERROR_HOST_MEMORY) return true;
    return complain(problem, "reading returned %s", error_text(text, sizeof text, code, now.stream));
}

static bool check_refusal(const struct call *c, int code, struct problem *problem)
{
    mlxvk_error error = { 0 };
    mlxvk_stream_error(now.stream, &error);
    if (code < 0 || code >= MLXVK_RESULT_COUNT || code == MLXVK_ERROR_VULKAN || code == MLXVK_ERROR_DEVICE_LOST)
        return complain(problem, "returned %d: %s", code, error.text);
    if (c->results[0].ctx == now.replaced && !c->results[1].ctx && !c->result_vector.ctx) return true;
    return complain(problem, "the call failed and changed a result's handle");
}

static bool check_call(const struct call *c, const struct operation *op, struct problem *problem)
{
    if (now.foreign) return complain(problem, "an array of another device was taken");
    if (op->kind != VECTOR_RESULT) {
        for (int i = 0; i < (op->kind == TWO_RESULTS ? 2 : 1); i++) if (!read_result(c->results[i], problem)) return false;
        return true;
    }
    for (size_t i = 0; i < mlxvk_vector_array_size(c->result_vector); i++) {
        mlxvk_array a = mlxvk_array_new();
        bool good = !mlxvk_vector_array_get(&a, c->result_vector, i) && read_result(a, problem);
        mlxvk_array_free(a);
        if (!good) return complain(problem, "result %zu cannot be read", i);
    }
    return true;
}

static void free_results(struct call *c)
{
    for (int i = 0; i < 2; i++) {
        mlxvk_array_free(c->results[i]);
        c->results[i] = mlxvk_array_new();
    }
    mlxvk_vector_array_free(c->result_vector);
    c->result_vector = (mlxvk_vector_array){ NULL };
}

/* The same elements, row-major. */
static void straighten(mlxvk_array *a)
{
    struct tensor t = { 0 };
    struct problem problem = { "" };
    if (a->ctx && array_to_tensor(&t, *a, now.stream, &problem)) {
        mlxvk_array_free(*a);
        *a = mlxvk_array_new_data(t.data, t.shape, t.ndim, t.dtype);
    }
    tensor_free(&t);
}

/* The call once more gives the same bits; with operands made row-major too, but that floats may be added in another order. */
static bool check_again(struct call *c, const struct operation *op, struct problem *problem)
{
    struct tensor first = { 0 }, second = { 0 };
    bool good = true, straight = chance(50);
    int code;
    if (op->kind || mlxvk_array_nbytes(c->results[0]) >= 1 << 20) return true;
    if (array_to_tensor(&first, c->results[0], now.stream, problem)) {
        for (int i = 0; i < c->array_count && straight; i++) straighten(&c->arrays[i].array);
        free_results(c);
        c->ints_used = c->longs_used = 0;
        now.again = true;
        code = op->run(c);
        good = code ? complain(problem, "the second call returned %d", code) : array_to_tensor(&second, c->results[0], now.stream, problem);
        if (good && !(straight && dtype_is_inexact(first.dtype))) good = compare(&second, &first, &(struct rule){ .cmp = "bits" }, problem);
    }
    tensor_free(&first);
    tensor_free(&second);
    return good || refused_percent;
}

static void print_call(const struct call *c, const struct operation *op, uint64_t seed, const struct problem *problem)
{
    char *args = cJSON_PrintUnformatted(now.args), text[160];
    printf("FAIL %s, --seed %llu\n     %s\n     %s\n", op->name, (unsigned long long)seed, problem->text, args ? args : "");
    for (int i = 0; i < c->array_count; i++) {
        mlxvk_array a = c->arrays[i].array;
        const int64_t *strides = mlxvk_array_strides(a);
        printf("     %s: %s %s", c->arrays[i].name, a.ctx ? dtype_text(mlxvk_array_dtype(a)) : "none",
               a.ctx ? shape_text(text, sizeof text, mlxvk_array_shape(a), (int)mlxvk_array_ndim(a)) : "");
        for (size_t k = 0; a.ctx && k < mlxvk_array_ndim(a); k++) printf("%s%lld", k ? " " : ", strides ", (long long)strides[k]);
        puts("");
    }
    cJSON_free(args);
}

static void make_call(struct call *c, uint64_t seed, const char *op)
{
    now.state = seed;
    now.op = op;
    c->args = now.args = cJSON_CreateObject();
    now.foreign = now.again = false;
    now.replaced = NULL;
    now.ndim = chance(70) ? between(1, 4) : below(MOST_DIMS + 1);
    now.dtype = chance(50) ? MLXVK_FLOAT32 : random_dtype();
    for (int i = 0; i < now.ndim; i++) now.shape[i] = random_size();
    if (chance(85)) fit(c, op);
    c->stream = chance(1) ? (mlxvk_stream){ NULL } : chance(3) ? now.second : now.stream;
}

/* 0: refused, 1: done, -1: wrong. */
static int one_call(const struct operation *op, uint64_t seed)
{
    struct call c = { .invent = invent };
    struct problem problem = { "" };
    int code;
    bool good;
    if (now.verbose) printf("     %s --seed %llu\n", op->name, (unsigned long long)seed);
    make_call(&c, seed, op->name);
    code = op->run(&c);
    for (int i = 0; i < c.array_count && now.replaced; i++)                      /* it is results[0]'s now, or used up */
        if (c.arrays[i].array.ctx == now.replaced) c.arrays[i].array = mlxvk_array_new();
    if (c.problem.text[0]) good = complain(&problem, "the table does not know: %s", c.problem.text);
    else good = code ? check_refusal(&c, code, &problem) : check_call(&c, op, &problem);
    if (good && !code && !now.replaced && !any_of(op->name, "random_") && chance(20)) good = check_again(&c, op, &problem);
    if (!good) print_call(&c, op, seed, &problem);
    else if (now.verbose && code)
        printf("     refused: %s\n", error_text(problem.text, sizeof problem.text, code, c.stream.ctx ? c.stream : now.stream));
    for (int i = 0; i < c.array_count; i++) mlxvk_array_free(c.arrays[i].array);
    for (int i = 0; i < c.vector_count; i++) mlxvk_vector_array_free(c.vectors[i].vector);
    free_results(&c);
    cJSON_Delete(now.args);
    return !good ? -1 : code ? 0 : 1;
}

/* ---- all calls ---- */

static bool make_streams(const struct fuzz_options *o, mlxvk_stream stream)
{
    now.verbose = o->verbose;
    now.stream = o->refused ? scarce_stream(o->refused) : stream;
    if (!now.stream.ctx) return false;
    now.second = mlxvk_stream_new_device(mlxvk_stream_device(now.stream));
    mlxvk_device_create(&now.other, NULL);
    return true;
}

static void free_streams(const struct fuzz_options *o)
{
    refused_percent = 0;
    mlxvk_stream_free(now.second);
    mlxvk_device_free(now.other);
    if (o->refused) mlxvk_stream_free(now.stream);
}

/* How each operation fared; without --verbose those that never gave a result although they were called often. */
static void print_tallies(const unsigned (*tallies)[3], const struct fuzz_options *o)
{
    for (size_t i = 0; i < operation_count(); i++) {
        const unsigned *t = tallies[i];
        bool silent = !t[1] && t[0] >= 10;
        if (!silent && !(o->verbose && t[0] + t[1] + t[2])) continue;
        printf("%-40s %6u gave results %6u refused %6u wrong%s\n", operation_at(i)->name, t[1], t[0], t[2],
               silent ? "   never a result" : "");
    }
}

int fuzz(const struct fuzz_options *o, mlxvk_stream stream)
{
    size_t operations = operation_count(), all[3] = { 0 };
    unsigned (*tallies)[3] = need(calloc(operations, sizeof *tallies));
    struct timespec time;
    double end;
    if (!make_streams(o, stream)) return 1;
    clock_gettime(CLOCK_MONOTONIC, &time);
    end = (double)time.tv_sec + o->seconds;
    for (uint64_t seed = o->seed; (double)time.tv_sec < end || (o->seconds <= 0 && seed == o->seed); seed++) {
        size_t which = seed * 7919 % operations;               /* a short run meets all kinds */
        const struct operation *op = operation_at(which);
        clock_gettime(CLOCK_MONOTONIC, &time);
        if (o->wanted && !o->wanted(o->user, op->name)) continue;
        int outcome = one_call(op, seed), kind = outcome < 0 ? 2 : outcome;
        tallies[which][kind]++;
        all[kind]++;
        if (mlxvk_device_status(mlxvk_stream_device(now.stream))) { puts("stopped: the device is lost"); all[2]++; break; }
    }
    free_streams(o);
    print_tallies((const unsigned (*)[3])tallies, o);
    free(tallies);
    printf("%zu calls gave results, %zu were refused, %zu went wrong\n", all[1], all[0], all[2]);
    return all[2] != 0 || all[0] + all[1] == 0;
}

bool fuzz_bytes(const uint8_t *bytes, size_t count, mlxvk_stream stream)
{
    if (count < 2) return true;
    if (!now.stream.ctx && !make_streams(&(struct fuzz_options){ 0 }, stream)) return false;
    size_t which = (bytes[0] | (size_t)bytes[1] << 8) % operation_count();
    now.bytes = bytes + 2;
    now.byte_count = count - 2;
    return one_call(operation_at(which), 1) >= 0 && !mlxvk_device_status(mlxvk_stream_device(now.stream));
}
