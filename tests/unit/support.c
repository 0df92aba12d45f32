#define _POSIX_C_SOURCE 200809L                      /* setenv */
#include "support.h"

#include <stdio.h>

/* ---- the library ---- */

static void fail_at(const char *what, int code, const mlxvk_error *error, const char *file, int line)
{
    print_error("%s\n  returned %d (%s): %s\n", what, code, mlxvk_result_text(code), error->text);
    _fail(file, line);
}

void check_ok(int code, mlxvk_stream stream, const char *what, const char *file, int line)
{
    mlxvk_error error = { 0 };
    if (!code) return;
    mlxvk_stream_error(stream, &error);
    fail_at(what, code, &error, file, line);
}

void check_ok_device(int code, mlxvk_device device, const char *what, const char *file, int line)
{
    mlxvk_error error = { 0 };
    if (!code) return;
    mlxvk_device_error(device, &error);
    fail_at(what, code, &error, file, line);
}

void check_refused(int code, int want, mlxvk_stream stream, const char *what, const char *file, int line,
                   const char *const *words)
{
    mlxvk_error error = { 0 };
    mlxvk_stream_error(stream, &error);
    bool good = code == want && error.code == want;
    for (size_t i = 0; words[i]; i++) {
        if (strstr(error.text, words[i])) continue;
        print_error("the error's text lacks \"%s\"\n", words[i]);
        good = false;
    }
    if (good) return;
    print_error("expected %d (%s)\n", want, mlxvk_result_text(want));
    fail_at(what, code, &error, file, line);
}

/* ---- devices ---- */

mlxvk_device device;
mlxvk_stream stream;

/* Kept open for who asks again. NVIDIA's driver (580.159) has no more than 23 at once in a process. */
enum { KEPT_DEVICES = 20 };
static struct kept_device { mlxvk_device device; char gates[1024]; } devices[KEPT_DEVICES];
static int device_count, instance_count;

void count_instance(void)
{
    if (++instance_count > MOST_INSTANCES) fail_msg("more than %d VkInstances in one process", MOST_INSTANCES);
}

int create_device(mlxvk_device *res, const mlxvk_device_desc *desc)
{
    if (!desc || !desc->adopt) count_instance();
    return mlxvk_device_create(res, desc);
}

static char old_drivers[2][1024];
static const char *const driver_lists[2] = { "VK_ICD_FILENAMES", "VK_DRIVER_FILES" };

void hide_drivers(void)
{
#ifdef _WIN32
    skip();                                          /* drivers are named in the registry there, and by Wine's host */
#endif
    for (int i = 0; i < 2; i++) {
        const char *old = getenv(driver_lists[i]);
        snprintf(old_drivers[i], sizeof old_drivers[i], "%s", old ? old : "");
        setenv(driver_lists[i], "/nonexistent/none.json", 1);
    }
}

void show_drivers(void)
{
    for (int i = 0; i < 2; i++)
        if (*old_drivers[i]) setenv(driver_lists[i], old_drivers[i], 1); else unsetenv(driver_lists[i]);
}

mlxvk_device open_new_device(const char *gates)
{
    mlxvk_error error = { 0 };
    mlxvk_device res = { NULL };
    int code = create_device(&res, &(mlxvk_device_desc){ .gates = gates, .error = &error });
    if (code) fail_at("mlxvk_device_create", code, &error, __FILE__, __LINE__);
    return res;
}

/* The one used last is the last. */
mlxvk_device open_device(const char *gates)
{
    mlxvk_device res = { NULL };
    int i = 0;
    if (!gates) gates = "";
    while (i < device_count && strcmp(devices[i].gates, gates)) i++;
    if (i == KEPT_DEVICES) {
        mlxvk_device_free(devices[0].device);
        memmove(devices, devices + 1, --device_count * sizeof *devices);
        i--;
    }
    struct kept_device one = devices[i < device_count ? i : 0];
    if (i == device_count) {
        assert_true(strlen(gates) < sizeof one.gates);
        one.device = open_new_device(gates);         /* where that fails, the others are as they were */
        strcpy(one.gates, gates);
        device_count++;
    }
    memmove(devices + i, devices + i + 1, (size_t)(device_count - 1 - i) * sizeof *devices);
    devices[device_count - 1] = one;
    assert_int_equal(mlxvk_device_set(&res, one.device), 0);
    return res;
}

int end_devices(int failed)
{
    while (device_count) mlxvk_device_free(devices[--device_count].device);
    return failed;
}

mlxvk_stream open_stream(mlxvk_device device)
{
    mlxvk_stream stream = mlxvk_stream_new_device(device);
    mlxvk_error error = { 0 };
    if (stream.ctx) return stream;
    mlxvk_device_error(device, &error);
    fail_at("mlxvk_stream_new_device", error.code, &error, __FILE__, __LINE__);
    return stream;
}

static int set_up_with(const char *gates)
{
    device = open_device(gates);
    stream = open_stream(device);
    return 0;
}

int set_up(void **state) { (void)state; return set_up_with(NULL); }
int set_up_poisoned(void **state) { (void)state; return set_up_with("MLX_VK_POISON=1"); }

int tear_down(void **state)
{
    (void)state;
    mlxvk_stream_free(stream);
    mlxvk_device_free(device);
    return 0;
}

struct setting start(const char *gates)
{
    struct setting s = { open_device(gates), { NULL } };
    s.stream = open_stream(s.device);
    return s;
}

void finish(struct setting *s)
{
    mlxvk_stream_free(s->stream);
    mlxvk_device_free(s->device);
}

/* ---- what a device has, and does ---- */

void need_capability(const char *key)
{
    size_t value = 0;
    mlxvk_device d = open_device(NULL);
    OK_DEVICE(mlxvk_device_info_get_size(&value, d, key), d);
    mlxvk_device_free(d);
    if (value) return;
    print_message("the device has no %s\n", key);
    skip();
}

struct tally { const char *kernel; uint64_t count; };

static void add_kernel(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    struct tally *t = user;
    (void)nanoseconds;
    if (!strncmp(kernel, t->kernel, strlen(t->kernel))) t->count += count;
}

void skip_if_validating(void)
{
    const char *layers = getenv("VK_INSTANCE_LAYERS");
    if (layers && strstr(layers, "validation")) skip();
}

uint64_t dispatches_of(const char *gates, const char *kernel)
{
    struct tally t = { kernel, 0 };
    mlxvk_device d = open_device(gates);
    OK_DEVICE(mlxvk_kernel_stats(d, add_kernel, &t), d);
    mlxvk_device_free(d);
    return t.count;
}

mlxvk_stats stats_of(mlxvk_device device)
{
    mlxvk_stats stats;
    assert_int_equal(mlxvk_get_stats(&stats, device), 0);
    return stats;
}

/* ---- arrays ---- */

mlxvk_array array_of(mlxvk_device device, mlxvk_dtype dtype, const void *data, const int *shape, int ndim)
{
    mlxvk_array array = { NULL };
    OK_DEVICE(mlxvk_array_new_data_device(&array, data, shape, ndim, dtype, device), device);
    return array;
}

void take_slice(mlxvk_array *a, int axis, int start, int stop, int step)
{
    int from[5] = { 0 }, to[5], by[5] = { 1, 1, 1, 1, 1 };
    size_t ndim = mlxvk_array_ndim(*a);
    for (size_t i = 0; i < ndim; i++) to[i] = mlxvk_array_dim(*a, (int)i);
    from[axis] = start;
    to[axis] = stop;
    by[axis] = step;
    OK(mlxvk_slice(a, *a, from, ndim, to, ndim, by, ndim, stream), stream);
}

mlxvk_array ints(mlxvk_device device, const int32_t *values, const int *shape, int ndim)
{
    return array_of(device, MLXVK_INT32, values, shape, ndim);
}

mlxvk_array floats(mlxvk_device device, const float *values, const int *shape, int ndim)
{
    return array_of(device, MLXVK_FLOAT32, values, shape, ndim);
}

mlxvk_array counting(mlxvk_device device, int count)
{
    struct host h = host_new(&count, 1);
    for (int i = 0; i < count; i++) h.data[i] = i;
    mlxvk_array array = host_upload(&h, device);
    host_free(&h);
    return array;
}

mlxvk_array normals(const int *shape, int ndim, mlxvk_dtype dtype, uint32_t seed, mlxvk_stream s)
{
    mlxvk_array key = array_of(mlxvk_stream_device(s), MLXVK_UINT32, (uint32_t[]){ 0, seed }, (int[]){ 2 }, 1);
    mlxvk_array res = { NULL };
    OK(mlxvk_random_normal(&res, shape, (size_t)ndim, dtype, 0, 1, key, s), s);
    OK(eval_one(res), s);
    mlxvk_array_free(key);
    return res;
}

/* The elements of an array, to be freed, read into a buffer that held something else. */
static void *read_array(mlxvk_array array, mlxvk_dtype dtype, size_t count, mlxvk_stream stream)
{
    size_t bytes = count * bytes_of(dtype);
    assert_non_null(array.ctx);
    assert_int_equal(mlxvk_array_dtype(array), dtype);
    assert_int_equal(mlxvk_array_size(array), count);
    void *data = malloc(bytes + 1);
    assert_non_null(data);
    memset(data, 0xA5, bytes + 1);
    OK(mlxvk_array_read(array, data, bytes, stream), stream);
    return data;
}

void expect_ints(mlxvk_array array, const int32_t *want, size_t count, mlxvk_stream stream)
{
    int32_t *got = read_array(array, MLXVK_INT32, count, stream);
    for (size_t i = 0; i < count; i++) {
        if (got[i] == want[i]) continue;
        print_error("element %zu of %zu: got %d, expected %d\n", i, count, got[i], want[i]);
        free(got);
        _fail(__FILE__, __LINE__);
    }
    free(got);
}

void expect_floats(mlxvk_array array, const float *want, size_t count, double rtol, double atol, mlxvk_stream stream)
{
    float *got = read_array(array, MLXVK_FLOAT32, count, stream);
    for (size_t i = 0; i < count; i++) {
        if (got[i] == want[i] || fabs((double)got[i] - want[i]) <= atol + rtol * fabs(want[i])) continue;
        print_error("element %zu of %zu: got %g, expected %g\n", i, count, got[i], want[i]);
        free(got);
        _fail(__FILE__, __LINE__);
    }
    free(got);
}

static int eval_with(mlxvk_array array, int (*eval)(mlxvk_vector_array outputs))
{
    mlxvk_vector_array outputs = mlxvk_vector_array_new_value(array);
    int code = eval(outputs);
    mlxvk_vector_array_free(outputs);
    return code;
}

int eval_one(mlxvk_array array) { return eval_with(array, mlxvk_eval); }
int async_eval_one(mlxvk_array array) { return eval_with(array, mlxvk_async_eval); }

/* ---- random numbers (splitmix64) ---- */

uint64_t random_bits(struct rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int random_int(struct rng *r, int low, int high)
{
    return low + (int)(random_bits(r) % (uint64_t)(high - low + 1));
}

bool random_chance(struct rng *r, int percent) { return random_int(r, 0, 99) < percent; }

int random_of(struct rng *r, const int *list, int count) { return list[random_int(r, 0, count - 1)]; }

/* ---- host tensors ---- */

size_t host_size(const struct host *h)
{
    size_t size = 1;
    for (int i = 0; i < h->ndim; i++) size *= (size_t)h->shape[i];
    return size;
}

struct host host_new(const int *shape, int ndim)
{
    struct host h = { .ndim = ndim };
    for (int i = 0; i < ndim; i++) h.shape[i] = shape[i];
    h.data = calloc(host_size(&h) + 1, sizeof *h.data);
    assert_non_null(h.data);
    return h;
}

struct host host_random(struct rng *r, int max_ndim, int max_size)
{
    int shape[MLXVK_MAX_NDIM], ndim = random_int(r, 0, max_ndim), room = max_size;
    for (int i = 0; i < ndim; i++) {
        shape[i] = random_int(r, 1, room < 7 ? room : 7);
        room /= shape[i];
    }
    struct host h = host_new(shape, ndim);
    for (size_t i = 0; i < host_size(&h); i++) h.data[i] = (int32_t)random_bits(r);
    return h;
}

struct host host_copy(const struct host *h)
{
    struct host copy = host_new(h->shape, h->ndim);
    memcpy(copy.data, h->data, host_size(h) * sizeof *h->data);
    return copy;
}

void host_free(struct host *h)
{
    free(h->data);
    *h = (struct host){ 0 };
}

struct view host_whole(const struct host *h)
{
    struct view v = { .ndim = h->ndim };
    int64_t stride = 1;
    for (int i = h->ndim - 1; i >= 0; i--) {
        v.shape[i] = h->shape[i];
        v.strides[i] = stride;
        stride *= h->shape[i];
    }
    return v;
}

void host_apply(struct host *h, const struct view *v)
{
    struct host res = host_new(v->shape, v->ndim);
    int index[MLXVK_MAX_NDIM] = { 0 };
    size_t size = host_size(&res);
    for (size_t n = 0; n < size; n++) {
        int64_t at = v->offset;
        for (int i = 0; i < v->ndim; i++) at += index[i] * v->strides[i];
        res.data[n] = h->data[at];
        for (int i = v->ndim - 1; i >= 0 && ++index[i] == v->shape[i]; i--) index[i] = 0;
    }
    host_free(h);
    *h = res;
}

mlxvk_array host_upload(const struct host *h, mlxvk_device device)
{
    return ints(device, h->data, h->shape, h->ndim);
}

void host_expect(const struct host *want, mlxvk_array got, mlxvk_stream stream)
{
    assert_int_equal(mlxvk_array_ndim(got), want->ndim);
    for (int i = 0; i < want->ndim; i++) assert_int_equal(mlxvk_array_dim(got, i), want->shape[i]);
    expect_ints(got, want->data, host_size(want), stream);
}

/* ---- random views ---- */

/* One axis of length n: a random range, forwards or backwards, of at least one element where there is one. */
static void random_range(struct rng *r, int n, int *start, int *stop, int *step)
{
    int first = random_int(r, 0, n - 1), last = random_int(r, 0, n - 1);
    *step = random_int(r, 1, 3);
    if (first > last) *step = -*step;
    *start = first;
    *stop = *step > 0 ? last + 1 : last - 1;
    if (*stop < 0) *stop = -n - 1;                             /* before the first: -1 would be the last */
    if (random_chance(r, 30)) *start -= n;                     /* the same, counted from the end */
}

struct slice random_slice(struct rng *r, const struct host *h)
{
    struct slice s = { .view = host_whole(h) };
    for (int i = 0; i < h->ndim; i++) {
        int n = h->shape[i], first, last;
        s.start[i] = 0, s.stop[i] = n, s.step[i] = 1;
        if (n == 0 || random_chance(r, 30)) continue;
        random_range(r, n, &s.start[i], &s.stop[i], &s.step[i]);
        first = s.start[i] < 0 ? s.start[i] + n : s.start[i];
        last = s.step[i] > 0 ? s.stop[i] - 1 : s.stop[i] < 0 ? 0 : s.stop[i] + 1;
        s.view.offset += first * s.view.strides[i];
        s.view.shape[i] = (last - first) / s.step[i] + 1;
        s.view.strides[i] *= s.step[i];
    }
    return s;
}

/* The state of one random view operation. */
struct viewing {
    struct rng *r;
    mlxvk_array *array;
    struct host *h;
    struct view v;
    int max_ndim, max_size;
    mlxvk_stream stream;
};

static void shuffle(struct rng *r, int *values, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int j = random_int(r, 0, i), kept = values[i];
        values[i] = values[j];
        values[j] = kept;
    }
}

static bool do_transpose(struct viewing *w)
{
    int axes[MLXVK_MAX_NDIM];
    for (int i = 0; i < w->v.ndim; i++) axes[i] = i;
    shuffle(w->r, axes, w->v.ndim);
    struct view old = w->v;
    for (int i = 0; i < old.ndim; i++) {
        w->v.shape[i] = old.shape[axes[i]];
        w->v.strides[i] = old.strides[axes[i]];
        if (random_chance(w->r, 20)) axes[i] -= old.ndim;
    }
    OK(mlxvk_transpose_axes(w->array, *w->array, axes, (size_t)old.ndim, w->stream), w->stream);
    return true;
}

static bool do_swapaxes(struct viewing *w)
{
    if (!w->v.ndim) return false;
    int a = random_int(w->r, 0, w->v.ndim - 1), b = random_int(w->r, 0, w->v.ndim - 1);
    struct view old = w->v;
    w->v.shape[a] = old.shape[b], w->v.shape[b] = old.shape[a];
    w->v.strides[a] = old.strides[b], w->v.strides[b] = old.strides[a];
    OK(mlxvk_swapaxes(w->array, *w->array, a, b - old.ndim, w->stream), w->stream);
    return true;
}

static bool do_slice(struct viewing *w)
{
    struct slice s = random_slice(w->r, w->h);
    size_t n = (size_t)w->v.ndim;
    w->v = s.view;
    OK(mlxvk_slice(w->array, *w->array, s.start, n, s.stop, n, s.step, n, w->stream), w->stream);
    return true;
}

static bool do_broadcast(struct viewing *w)
{
    struct view old = w->v;
    int added = random_int(w->r, 0, 1), size = (int)host_size(w->h);
    if (old.ndim + added > w->max_ndim || !size) return false;
    w->v.ndim = old.ndim + added;
    for (int i = 0; i < w->v.ndim; i++) {
        int from = i - added, length = from < 0 ? 1 : old.shape[from];
        int grown = length == 1 && size * 3 <= w->max_size ? random_int(w->r, 1, 3) : length;
        w->v.shape[i] = grown;
        w->v.strides[i] = from < 0 || grown != length ? 0 : old.strides[from];
        size = size / length * grown;
    }
    OK(mlxvk_broadcast_to(w->array, *w->array, w->v.shape, (size_t)w->v.ndim, w->stream), w->stream);
    return true;
}

static bool do_expand(struct viewing *w)
{
    if (w->v.ndim >= w->max_ndim) return false;
    int axis = random_int(w->r, 0, w->v.ndim);
    for (int i = w->v.ndim; i > axis; i--) {
        w->v.shape[i] = w->v.shape[i - 1];
        w->v.strides[i] = w->v.strides[i - 1];
    }
    w->v.shape[axis] = 1, w->v.strides[axis] = 0;
    OK(mlxvk_expand_dims(w->array, *w->array, axis - w->v.ndim - 1, w->stream), w->stream);
    w->v.ndim++;
    return true;
}

static bool do_squeeze(struct viewing *w)
{
    int to = 0;
    struct view old = w->v;
    for (int i = 0; i < old.ndim; i++) {
        if (old.shape[i] == 1) continue;
        w->v.shape[to] = old.shape[i];
        w->v.strides[to++] = old.strides[i];
    }
    if (to == old.ndim) return false;
    w->v.ndim = to;
    OK(mlxvk_squeeze(w->array, *w->array, w->stream), w->stream);
    return true;
}

/* Splits one axis or joins two, so that it is sometimes a view and sometimes a copy. */
static bool do_reshape(struct viewing *w)
{
    int shape[MLXVK_MAX_NDIM + 1], ndim = w->v.ndim, at = ndim ? random_int(w->r, 0, ndim - 1) : 0;
    if (!ndim) return false;
    memcpy(shape, w->v.shape, sizeof w->v.shape);
    if (at + 1 < ndim && random_chance(w->r, 50)) {
        shape[at] *= shape[at + 1];
        memmove(shape + at + 1, shape + at + 2, (size_t)(ndim - at - 2) * sizeof *shape);
        ndim--;
    } else {
        int part = random_int(w->r, 2, 4);
        if (ndim >= w->max_ndim || !shape[at] || shape[at] % part) return false;
        memmove(shape + at + 1, shape + at, (size_t)(ndim - at) * sizeof *shape);
        shape[at] = part, shape[at + 1] /= part;
        ndim++;
    }
    struct host named = { .ndim = ndim };
    memcpy(named.shape, shape, (size_t)ndim * sizeof *shape);
    w->v = host_whole(&named);
    if (host_size(&named)) shape[random_int(w->r, 0, ndim - 1)] = -1;
    OK(mlxvk_reshape(w->array, *w->array, shape, (size_t)ndim, w->stream), w->stream);
    return true;
}

/* Any strides over the elements in row-major order: negative, zero and overlapping ones. */
static bool do_as_strided(struct viewing *w)
{
    int64_t size = (int64_t)host_size(w->h), low = 0, high = 0;
    struct view v = { .ndim = random_int(w->r, 1, w->max_ndim < 4 ? w->max_ndim : 4) };
    if (!size || size > w->max_size) return false;
    for (int i = 0; i < v.ndim; i++) {
        v.shape[i] = random_int(w->r, 1, 5);
        v.strides[i] = random_int(w->r, -5, 5);
        *(v.strides[i] < 0 ? &low : &high) += v.strides[i] * (v.shape[i] - 1);
    }
    if (high - low >= size) return false;
    v.offset = random_int(w->r, (int)-low, (int)(size - 1 - high));
    w->v = v;
    OK(mlxvk_as_strided(w->array, *w->array, v.shape, (size_t)v.ndim, v.strides, (size_t)v.ndim, (size_t)v.offset,
                        w->stream), w->stream);
    return true;
}

void random_view(struct rng *r, mlxvk_array *array, struct host *h, int max_ndim, int max_size, mlxvk_stream stream)
{
    static bool (*const operations[])(struct viewing *w) = {
        do_transpose, do_swapaxes, do_slice, do_slice, do_broadcast, do_expand, do_squeeze, do_reshape, do_as_strided,
    };
    for (;;) {
        struct viewing w = { r, array, h, host_whole(h), max_ndim, max_size, stream };
        if (!operations[random_int(r, 0, (int)COUNT(operations) - 1)](&w)) continue;
        host_apply(h, &w.v);
        return;
    }
}
