/* Gather and scatter with random shapes, views and index arrays, against a plain computation on the host. */
#include <math.h>
#include <stdio.h>
#include "support.h"

enum { MAX_SIZE = 1 << 17, MAX_WINDOWS = 64 };

/* ---- numbers on the host: the bytes of an array, row-major ---- */

struct numbers { mlxvk_dtype dtype; int ndim, shape[MLXVK_MAX_NDIM]; size_t count; unsigned char bytes[8 * MAX_SIZE]; };

static void set_shape(struct numbers *n, mlxvk_dtype dtype, int ndim, const int *shape)
{
    n->dtype = dtype;
    n->ndim = ndim;
    n->count = 1;
    for (int i = 0; i < ndim; i++) n->count *= (size_t)(n->shape[i] = shape[i]);
    assert_true(n->count <= MAX_SIZE);
}

static uint64_t get_bits(const struct numbers *n, size_t i)
{
    uint64_t v = 0;
    size_t size = mlxvk_dtype_size(n->dtype);
    memcpy(&v, n->bytes + i * size, size);
    return v;
}

static void set_bits(struct numbers *n, size_t i, uint64_t v)
{
    size_t size = mlxvk_dtype_size(n->dtype);
    memcpy(n->bytes + i * size, &v, size);
}

static void fill(struct numbers *n, struct rng *r, int low, int high)
{
    for (size_t i = 0; i < n->count; i++) set_bits(n, i, (uint64_t)(int64_t)random_int(r, low, high));
}

/* On the device; sometimes stored with its axes in another order, and seen through a transposition. */
static mlxvk_array upload(const struct numbers *n, struct rng *r)
{
    mlxvk_array a = { NULL }, view = { NULL };
    int order[MLXVK_MAX_NDIM], back[MLXVK_MAX_NDIM];
    OK_DEVICE(mlxvk_array_new_data_device(&a, n->bytes, n->shape, n->ndim, n->dtype, device), device);
    if (n->ndim < 2 || random_chance(r, 60)) return a;
    for (int i = 0; i < n->ndim; i++) order[i] = i;
    for (int i = n->ndim - 1; i > 0; i--) {
        int k = random_int(r, 0, i), t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
    for (int i = 0; i < n->ndim; i++) back[order[i]] = i;
    OK(mlxvk_transpose_axes(&view, a, order, (size_t)n->ndim, stream), stream);
    OK(mlxvk_contiguous(&view, view, false, stream), stream);
    OK(mlxvk_transpose_axes(&view, view, back, (size_t)n->ndim, stream), stream);
    mlxvk_array_free(a);
    return view;
}

static void expect(const struct numbers *want, mlxvk_array got, const char *what)
{
    static unsigned char bytes[8 * MAX_SIZE];
    size_t size = want->count * mlxvk_dtype_size(want->dtype);
    assert_int_equal(mlxvk_array_dtype(got), want->dtype);
    assert_int_equal(mlxvk_array_ndim(got), want->ndim);
    for (int i = 0; i < want->ndim; i++) assert_int_equal(mlxvk_array_dim(got, i), want->shape[i]);
    if (!size) return;
    OK(mlxvk_array_read(got, bytes, size, stream), stream);
    if (memcmp(bytes, want->bytes, size)) { print_message("%s\n", what); fail(); }
}

/* ---- windows: where they start, some of them outside ---- */

struct windows {
    mlxvk_dtype dtype;
    int count, axes[MLXVK_MAX_NDIM], ndim, shape[2], sizes[MLXVK_MAX_NDIM];
    size_t number;
    int64_t at[MLXVK_MAX_NDIM][MAX_WINDOWS];         /* [index array][window] */
    mlxvk_array arrays[MLXVK_MAX_NDIM];
};

static mlxvk_array index_array(struct windows *w, int k, int axis_size, struct rng *r)
{
    struct numbers *n = malloc(sizeof *n);
    int shape[2] = { w->shape[0], w->ndim > 1 ? w->shape[1] : 1 };
    mlxvk_array a;
    assert_non_null(n);
    if (w->ndim == 2 && random_chance(r, 30)) shape[0] = 1;          /* to be broadcast */
    set_shape(n, w->dtype, w->ndim, shape);
    for (size_t i = 0; i < n->count; i++) {
        bool outside = random_chance(r, 8);
        int low = w->dtype <= MLXVK_UINT64 ? 0 : -axis_size, v = random_int(r, outside ? 2 * low : low, outside ? 2 * axis_size : axis_size - 1);
        set_bits(n, i, (uint64_t)(int64_t)v);
    }
    for (size_t i = 0; i < w->number; i++) {
        uint64_t bits = get_bits(n, i % n->count);
        int size = (int)mlxvk_dtype_size(w->dtype);
        w->at[k][i] = w->dtype <= MLXVK_UINT64 || size == 8 ? (int64_t)bits : (int64_t)(bits << (64 - 8 * size)) >> (64 - 8 * size);
        if (w->at[k][i] < 0) w->at[k][i] += axis_size;
    }
    a = upload(n, r);
    free(n);
    return a;
}

static void random_windows(struct windows *w, const struct numbers *a, struct rng *r, bool single)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_INT32, MLXVK_UINT32, MLXVK_INT64, MLXVK_UINT8, MLXVK_INT16, MLXVK_UINT64, MLXVK_INT8 };
    bool taken[MLXVK_MAX_NDIM] = { false };
    w->dtype = dtypes[random_int(r, 0, (int)COUNT(dtypes) - 1)];
    w->ndim = random_int(r, 0, 2);
    w->number = 1;
    for (int i = 0; i < w->ndim; i++) w->number *= (size_t)(w->shape[i] = random_int(r, 1, 7));
    if (w->ndim < 2) w->shape[1] = 1;
    if (!w->ndim) w->shape[0] = 1;
    w->count = random_int(r, 0, a->ndim);
    for (int i = 0; i < a->ndim; i++) w->sizes[i] = random_chance(r, 60) ? a->shape[i] : random_int(r, 1, a->shape[i]);
    for (int k = 0; k < w->count; k++) {
        do w->axes[k] = random_int(r, 0, a->ndim - 1); while (taken[w->axes[k]]);
        taken[w->axes[k]] = true;
        if (single || random_chance(r, 70)) w->sizes[w->axes[k]] = 1;
        w->arrays[k] = index_array(w, k, a->shape[w->axes[k]], r);
    }
    if (w->count) {                                  /* the broadcast shape is that of the largest */
        size_t largest = 0;
        for (int k = 0; k < w->count; k++) if (mlxvk_array_size(w->arrays[k]) > largest) largest = mlxvk_array_size(w->arrays[k]);
        if (largest < w->number) { w->shape[0] = 1; w->number = largest; }
    } else { w->ndim = 0; w->number = 1; }
}

static mlxvk_vector_array vector_of(const struct windows *w)
{
    mlxvk_vector_array v = mlxvk_vector_array_new();
    for (int k = 0; k < w->count; k++) mlxvk_vector_array_append_value(v, w->arrays[k]);
    return v;
}

static void free_windows(struct windows *w) { for (int k = 0; k < w->count; k++) mlxvk_array_free(w->arrays[k]); }

/* The offset in a of element e of window i; -1: the window does not fit, and `clamp` is false. */
static int64_t element_at(const struct numbers *a, const struct windows *w, size_t i, size_t e, bool clamp)
{
    int64_t at[MLXVK_MAX_NDIM], offset = 0;
    for (int d = a->ndim - 1; d >= 0; d--) {
        at[d] = (int64_t)(e % (size_t)w->sizes[d]);
        e /= (size_t)w->sizes[d];
    }
    for (int k = 0; k < w->count; k++) {
        int64_t p = w->at[k][i], room = a->shape[w->axes[k]] - w->sizes[w->axes[k]];
        if (p < 0 || p > room) {
            if (!clamp) return -1;
            p = p < 0 ? 0 : room;
        }
        at[w->axes[k]] += p;
    }
    for (int d = 0; d < a->ndim; d++) offset = offset * a->shape[d] + at[d];
    return offset;
}

static size_t window_size(const struct numbers *a, const struct windows *w)
{
    size_t size = 1;
    for (int i = 0; i < a->ndim; i++) size *= (size_t)w->sizes[i];
    return size;
}

static void random_source(struct numbers *a, struct rng *r, mlxvk_dtype dtype)
{
    int shape[MLXVK_MAX_NDIM], ndim = random_int(r, 1, 6);
    for (int i = 0; i < ndim; i++) shape[i] = random_int(r, 1, ndim > 4 ? 3 : 5);
    if (random_chance(r, 50)) shape[ndim - 1] = 16;
    set_shape(a, dtype, ndim, shape);
    fill(a, r, -100, 100);
}

static void random_gathers(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_UINT8, MLXVK_BFLOAT16, MLXVK_INT32, MLXVK_COMPLEX64 };
    static struct numbers a, want;
    struct rng r = { 5 };
    (void)state;
    for (int round = 0; round < 120; round++) {
        struct windows w;
        mlxvk_array x, res = { NULL };
        mlxvk_vector_array v;
        int shape[MLXVK_MAX_NDIM];
        size_t each;
        random_source(&a, &r, dtypes[round % (int)COUNT(dtypes)]);
        random_windows(&w, &a, &r, false);
        each = window_size(&a, &w);
        for (int i = 0; i < w.ndim; i++) shape[i] = w.shape[i];
        for (int i = 0; i < a.ndim; i++) shape[w.ndim + i] = w.sizes[i];
        set_shape(&want, a.dtype, w.ndim + a.ndim, shape);
        for (size_t i = 0; i < want.count; i++)
            set_bits(&want, i, get_bits(&a, (size_t)element_at(&a, &w, i / each, i % each, true)));
        x = upload(&a, &r);
        v = vector_of(&w);
        OK(mlxvk_gather(&res, x, v, w.axes, (size_t)w.count, w.sizes, (size_t)a.ndim, stream), stream);
        expect(&want, res, "gather");
        free_windows(&w);
        mlxvk_vector_array_free(v);
        mlxvk_array_free(x);
        mlxvk_array_free(res);
    }
}

static void gathers_refused(void **state)
{
    mlxvk_array a = { NULL }, i = counting(device, 2), f = floats(device, (float[]){ 0, 1 }, (int[]){ 2 }, 1), res = { NULL };
    mlxvk_vector_array one = mlxvk_vector_array_new_value(i);
    (void)state;
    OK(mlxvk_zeros(&a, (int[]){ 2, 3 }, 2, MLXVK_INT32, stream), stream);
    REFUSED(mlxvk_gather(&res, a, one, (int[]){ 2 }, 1, (int[]){ 1, 3 }, 2, stream), MLXVK_ERROR_AXIS, stream, "gather", "axis 2");
    REFUSED(mlxvk_gather(&res, a, one, (int[]){ 0, 1 }, 2, (int[]){ 1, 3 }, 2, stream), MLXVK_ERROR_ARGUMENT, stream, "2 axes");
    REFUSED(mlxvk_gather(&res, a, one, (int[]){ 0 }, 1, (int[]){ 1, 4 }, 2, stream), MLXVK_ERROR_SHAPE, stream, "windows of 4");
    REFUSED(mlxvk_gather(&res, a, one, (int[]){ 0 }, 1, (int[]){ 1 }, 1, stream), MLXVK_ERROR_ARGUMENT, stream, "slice_sizes");
    REFUSED(mlxvk_gather_single(&res, a, f, 0, (int[]){ 1, 3 }, 2, stream), MLXVK_ERROR_DTYPE, stream, "integers");
    mlxvk_vector_array_append_value(one, i);
    REFUSED(mlxvk_gather(&res, a, one, (int[]){ 0, 0 }, 2, (int[]){ 1, 1 }, 2, stream), MLXVK_ERROR_AXIS, stream, "twice");
    mlxvk_vector_array_append_value(one, i);
    REFUSED(mlxvk_gather(&res, a, one, (int[]){ 0, 1, 2 }, 3, (int[]){ 1, 1 }, 2, stream), MLXVK_ERROR_ARGUMENT, stream, "3 index arrays");
    OK(mlxvk_gather_single(&res, a, i, 0, (int[]){ 0, 3 }, 2, stream), stream);
    assert_int_equal(mlxvk_array_size(res), 0);
    mlxvk_array empty = ints(device, NULL, (int[]){ 0 }, 1), nothing = floats(device, NULL, (int[]){ 3, 0 }, 2);
    OK(mlxvk_gather_single(&res, nothing, empty, 1, (int[]){ 3, 1 }, 2, stream), stream);      /* no windows: as MLX, of any size */
    assert_int_equal(mlxvk_array_ndim(res), 3);
    assert_int_equal(mlxvk_array_size(res), 0);
    REFUSED(mlxvk_gather_single(&res, nothing, i, 1, (int[]){ 3, 1 }, 2, stream), MLXVK_ERROR_SHAPE, stream, "windows of 1");
    mlxvk_array_free(empty);
    mlxvk_array_free(nothing);
    mlxvk_vector_array_free(one);
    mlxvk_array_free(a);
    mlxvk_array_free(i);
    mlxvk_array_free(f);
    mlxvk_array_free(res);
}

/* ---- scatter ---- */

enum op { NONE, SUM, PROD, MAX, MIN, OPS };
typedef int (*scatter_function)(mlxvk_array *, mlxvk_array, mlxvk_vector_array, mlxvk_array, const int *, size_t, mlxvk_stream);
static const scatter_function functions[OPS] = { mlxvk_scatter, mlxvk_scatter_add, mlxvk_scatter_prod, mlxvk_scatter_max, mlxvk_scatter_min };

static int64_t signed_value(mlxvk_dtype t, uint64_t bits)
{
    int shift = 64 - 8 * (int)mlxvk_dtype_size(t);
    return t >= MLXVK_INT8 && t <= MLXVK_INT64 ? (int64_t)(bits << shift) >> shift : (int64_t)bits;
}

static float as_float(uint64_t bits) { uint32_t u = (uint32_t)bits; float f; memcpy(&f, &u, 4); return f; }
static uint64_t float_bits_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

/* Float32 and complex64 hold small whole numbers here: no order of sums matters. */
static uint64_t combined(enum op op, mlxvk_dtype t, uint64_t a, uint64_t b)
{
    if (op == NONE) return b;
    if (t == MLXVK_BOOL) return op == SUM || op == MAX ? a | b : a & b;
    if (t == MLXVK_COMPLEX64) {
        float ar = as_float(a), ai = as_float(a >> 32), br = as_float(b), bi = as_float(b >> 32);
        bool less = ar < br || (ar == br && ai < bi);
        if (op == MAX || op == MIN) return (op == MAX) == less ? b : a;
        if (op == SUM) return float_bits_of(ar + br) | float_bits_of(ai + bi) << 32;
        return float_bits_of(ar * br - ai * bi) | float_bits_of(ar * bi + ai * br) << 32;
    }
    if (t == MLXVK_FLOAT32) {
        float x = as_float(a), y = as_float(b);
        return float_bits_of(op == SUM ? x + y : op == PROD ? x * y : op == MAX ? (y > x ? y : x) : (y < x ? y : x));
    }
    if (op == SUM) return a + b;
    if (op == PROD) return a * b;
    if (t == MLXVK_UINT64) return (op == MAX) == (a < b) ? b : a;
    return (op == MAX) == (signed_value(t, a) < signed_value(t, b)) ? b : a;
}

static void fill_for(struct numbers *n, struct rng *r, enum op op)
{
    int top = op == PROD ? 1 : 100;
    for (size_t i = 0; i < n->count; i++) {
        int x = random_int(r, -top, top), y = random_int(r, -top, top);
        if (n->dtype == MLXVK_BOOL) set_bits(n, i, x & 1);
        else if (n->dtype == MLXVK_FLOAT32) set_bits(n, i, float_bits_of((float)x));
        else if (n->dtype == MLXVK_COMPLEX64) set_bits(n, i, float_bits_of((float)x) | float_bits_of(op == PROD ? 0 : (float)y) << 32);
        else set_bits(n, i, (uint64_t)(int64_t)x);
    }
}

static void apply(struct numbers *out, const struct windows *w, const struct numbers *updates, enum op op)
{
    size_t each = window_size(out, w);
    for (size_t i = 0; i < updates->count; i++) {
        int64_t at = element_at(out, w, i / each, i % each, false);
        if (at >= 0) set_bits(out, (size_t)at, combined(op, out->dtype, get_bits(out, (size_t)at), get_bits(updates, i)));
    }
}

static void one_scatter(struct rng *r, mlxvk_dtype dtype, enum op op, bool single, bool in_place)
{
    static struct numbers a, updates;
    struct windows w;
    mlxvk_array x, u, res = { NULL };
    mlxvk_vector_array v;
    int shape[MLXVK_MAX_NDIM];
    char what[80];
    random_source(&a, r, dtype);
    fill_for(&a, r, op);
    random_windows(&w, &a, r, single);
    for (int i = 0; i < w.ndim; i++) shape[i] = w.shape[i];
    for (int i = 0; i < a.ndim; i++) shape[w.ndim + i] = w.sizes[i];
    set_shape(&updates, dtype, w.ndim + a.ndim, shape);
    fill_for(&updates, r, op);
    x = upload(&a, r);
    u = upload(&updates, r);
    v = vector_of(&w);
    apply(&a, &w, &updates, op);
    snprintf(what, sizeof what, "scatter %d of %s, %d index arrays, %zu windows", op, mlxvk_dtype_name(dtype), w.count, w.number);
    OK(functions[op](in_place ? &x : &res, x, v, u, w.axes, (size_t)w.count, stream), stream);
    expect(&a, in_place ? x : res, what);
    free_windows(&w);
    mlxvk_vector_array_free(v);
    mlxvk_array_free(x);
    mlxvk_array_free(u);
    mlxvk_array_free(res);
}

static void random_scatters(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_INT32, MLXVK_FLOAT32, MLXVK_UINT8, MLXVK_INT64, MLXVK_INT16, MLXVK_COMPLEX64, MLXVK_BOOL,
                                          MLXVK_UINT64, MLXVK_UINT32 };
    struct rng r = { 9 };
    (void)state;
    for (int round = 0; round < 180; round++)
        one_scatter(&r, dtypes[round % (int)COUNT(dtypes)], (enum op)(round / (int)COUNT(dtypes) % OPS), random_chance(&r, 70), random_chance(&r, 40));
}

/* Many rows to few places and to many, some of them nowhere: whatever path sorts them, the sum is that of their order. */
static void many_to_few(const char *gates)
{
    enum { ROWS = 6000, WIDTH = 8, PLACES = 300 };
    mlxvk_device d = open_device(gates);
    mlxvk_stream s = open_stream(d);
    static float want[PLACES * WIDTH], exact[PLACES * WIDTH], updates[ROWS * WIDTH], got[PLACES * WIDTH], again[PLACES * WIDTH];
    static int32_t at[ROWS];
    struct rng r = { 3 };
    mlxvk_array a = { NULL }, u = { NULL }, i = { NULL }, res = { NULL };
    for (int k = 0; k < PLACES * WIDTH; k++) want[k] = (float)random_int(&r, -100, 100) / 7;
    memcpy(exact, want, sizeof exact);
    OK_DEVICE(mlxvk_array_new_data_device(&a, want, (int[]){ PLACES, WIDTH }, 2, MLXVK_FLOAT32, d), d);
    for (int k = 0; k < ROWS; k++) {
        at[k] = random_chance(&r, 30) ? 7 : random_chance(&r, 10) ? PLACES + 5 : random_int(&r, 0, PLACES - 1);
        for (int c = 0; c < WIDTH; c++) updates[k * WIDTH + c] = (float)random_int(&r, -1000, 1000) / 7;
        for (int c = 0; c < WIDTH && at[k] < PLACES; c++) want[at[k] * WIDTH + c] += updates[k * WIDTH + c];
    }
    OK_DEVICE(mlxvk_array_new_data_device(&u, updates, (int[]){ ROWS, 1, WIDTH }, 3, MLXVK_FLOAT32, d), d);
    OK_DEVICE(mlxvk_array_new_data_device(&i, at, (int[]){ ROWS }, 1, MLXVK_INT32, d), d);
    OK(mlxvk_scatter_add_single(&res, a, i, u, 0, s), s);
    OK(mlxvk_array_read(res, got, sizeof got, s), s);
    for (int k = 0; k < PLACES; k++) {
        if (k != 7) assert_memory_equal(got + k * WIDTH, want + k * WIDTH, 4 * WIDTH);   /* few of them: in order */
        else for (int c = 0; c < WIDTH; c++) assert_true(got[k * WIDTH + c] - want[k * WIDTH + c] < 1 && got[k * WIDTH + c] - want[k * WIDTH + c] > -1);
    }
    OK(mlxvk_scatter_add_single(&res, a, i, u, 0, s), s);
    OK(mlxvk_array_read(res, again, sizeof again, s), s);
    assert_memory_equal(got, again, sizeof got);
    for (int k = 0; k < ROWS; k++) if (at[k] < PLACES) memcpy(exact + at[k] * WIDTH, updates + k * WIDTH, 4 * WIDTH);
    OK(mlxvk_scatter_single(&res, a, i, u, 0, s), s);                                    /* the last one stays */
    OK(mlxvk_array_read(res, got, sizeof got, s), s);
    assert_memory_equal(got, exact, sizeof got);
    mlxvk_array_free(a);
    mlxvk_array_free(u);
    mlxvk_array_free(i);
    mlxvk_array_free(res);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* Random rows, added one after the other where `at` says: bit for bit what the host gets. want, updates: room for them. */
static void expect_added(float *want, int places, float *updates, const int32_t *at, int rows, int width, struct rng *r)
{
    size_t size = (size_t)places * (size_t)width * sizeof *want;
    float *got = malloc(size);
    mlxvk_array a = { NULL }, u = { NULL }, i = { NULL }, res = { NULL };
    assert_non_null(got);
    for (int k = 0; k < places * width; k++) want[k] = (float)random_int(r, -100, 100) / 7;
    OK_DEVICE(mlxvk_array_new_data_device(&a, want, (int[]){ places, width }, 2, MLXVK_FLOAT32, device), device);
    for (int k = 0; k < rows; k++)
        for (int c = 0; c < width; c++) {
            updates[k * width + c] = (float)random_int(r, -1000, 1000) / 7;
            want[at[k] * width + c] += updates[k * width + c];
        }
    OK_DEVICE(mlxvk_array_new_data_device(&u, updates, (int[]){ rows, 1, width }, 3, MLXVK_FLOAT32, device), device);
    OK_DEVICE(mlxvk_array_new_data_device(&i, at, (int[]){ rows }, 1, MLXVK_INT32, device), device);
    OK(mlxvk_scatter_add_single(&res, a, i, u, 0, stream), stream);
    OK(mlxvk_array_read(res, got, size, stream), stream);
    assert_memory_equal(got, want, size);
    mlxvk_array_free(a);
    mlxvk_array_free(u);
    mlxvk_array_free(i);
    mlxvk_array_free(res);
    free(got);
}

/* Runs of one key of all lengths up to what is added in order, over the edges of what a thread takes. */
static void runs_in_order(void **state)
{
    enum { ROWS = 9000, WIDTH = 32, PLACES = 4000 };
    static float want[PLACES * WIDTH], updates[ROWS * WIDTH];
    static int32_t at[ROWS];
    struct rng r = { 11 };
    (void)state;
    for (int k = 0, place = 0, run; k < ROWS; place++)
        for (run = random_chance(&r, 80) ? random_int(&r, 1, 4) : random_int(&r, 1, 64); run > 0 && k < ROWS; run--) at[k++] = place;
    for (int k = ROWS - 1; k > 0; k--) {
        int j = random_int(&r, 0, k), other = at[k];
        at[k] = at[j];
        at[j] = other;
    }
    expect_added(want, PLACES, updates, at, ROWS, WIDTH, &r);
}

/* So few that all of them are added in order, though all go to one place. */
static void few_in_order(void **state)
{
    enum { ROWS = 256, WIDTH = 33, PLACES = 2 };
    static float want[PLACES * WIDTH], updates[ROWS * WIDTH];
    static int32_t at[ROWS];
    struct rng r = { 12 };
    (void)state;
    for (int k = 0; k < ROWS; k++) at[k] = 1;
    expect_added(want, PLACES, updates, at, ROWS, WIDTH, &r);
}

/* Sums at several levels, of windows that are whole 16 bytes but do not begin so in memory; and of odd ones in a result of several
 * bindings, whose parts begin at other places within 16 bytes: what one level leaves, the next one finds. */
static void windows_at_levels(void **state)
{
    static const struct { const char *gates; int places, width, rows, before; } cases[] = {
        { NULL, 40, 64, 300, 1 }, { NULL, 40, 63, 300, 1 }, { "MLX_VK_MAX_BINDING_RANGE=98304", 1000, 33, 700, 0 } };
    (void)state;
    for (size_t k = 0; k < COUNT(cases); k++) {
        int places = cases[k].places, width = cases[k].width, rows = cases[k].rows, size = places * width, all = rows * width + cases[k].before;
        mlxvk_device d = open_device(cases[k].gates);
        mlxvk_stream s = open_stream(d);
        struct rng r = { 17 };
        float *want = malloc((size_t)size * 4), *got = malloc((size_t)size * 4), *updates = malloc((size_t)all * 4);
        int32_t *at = malloc((size_t)rows * sizeof *at);
        mlxvk_array a = { NULL }, u = { NULL }, i = { NULL }, res = { NULL };
        assert_true(want && got && updates && at);
        for (int n = 0; n < size; n++) want[n] = (float)random_int(&r, -100, 100);
        for (int n = 0; n < all; n++) updates[n] = (float)random_int(&r, -100, 100);
        OK_DEVICE(mlxvk_array_new_data_device(&a, want, (int[]){ places, width }, 2, MLXVK_FLOAT32, d), d);
        OK_DEVICE(mlxvk_array_new_data_device(&u, updates, &all, 1, MLXVK_FLOAT32, d), d);
        OK(mlxvk_as_strided(&u, u, (int[]){ rows, 1, width }, 3, (int64_t[]){ width, width, 1 }, 3, (size_t)cases[k].before, s), s);
        for (int n = 0; n < rows; n++) {
            at[n] = n % 3 ? 7 : random_int(&r, 0, places - 1);
            for (int c = 0; c < width; c++) want[at[n] * width + c] += updates[cases[k].before + n * width + c];
        }
        i = ints(d, at, &rows, 1);
        OK(mlxvk_scatter_add_single(&res, a, i, u, 0, s), s);
        OK(mlxvk_array_read(res, got, (size_t)size * 4, s), s);
        assert_memory_equal(got, want, (size_t)size * 4);
        mlxvk_array_free(a);
        mlxvk_array_free(u);
        mlxvk_array_free(i);
        mlxvk_array_free(res);
        free(want);
        free(got);
        free(updates);
        free(at);
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
    }
}

/* Windows that begin anywhere and have any number of elements, of each size, each operation, in runs of few and of many, in views:
 * whatever is between them stays. */
static void windows_anywhere(void **state)
{
    enum { ROWS = 700, PLACES = 40 };
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_INT16, MLXVK_UINT8 };
    static const int widths[] = { 4, 5, 8, 9, 15, 17, 18, 33, 130 };
    static struct numbers a, updates;
    static int32_t at[ROWS];
    struct rng r = { 13 };
    (void)state;
    for (size_t round = 0; round < COUNT(dtypes) * COUNT(widths) * OPS; round++) {
        mlxvk_dtype dtype = dtypes[round % COUNT(dtypes)];
        int width = widths[round / COUNT(dtypes) % COUNT(widths)], rows = random_chance(&r, 50) ? ROWS : 100;
        enum op op = (enum op)(round / COUNT(dtypes) / COUNT(widths));
        mlxvk_array x, u, i, res = { NULL };
        mlxvk_vector_array v;
        set_shape(&a, dtype, 2, (int[]){ PLACES, width });
        set_shape(&updates, dtype, 3, (int[]){ rows, 1, width });
        fill_for(&a, &r, op);
        fill_for(&updates, &r, op);
        x = upload(&a, &r);
        u = upload(&updates, &r);
        for (int k = 0; k < rows; k++) {
            at[k] = random_chance(&r, 20) ? 7 : random_chance(&r, 10) ? PLACES + 5 : random_int(&r, 0, PLACES - 1);
            for (int c = 0; c < width && at[k] < PLACES; c++)
                set_bits(&a, (size_t)(at[k] * width + c), combined(op, dtype, get_bits(&a, (size_t)(at[k] * width + c)),
                                                                    get_bits(&updates, (size_t)(k * width + c))));
        }
        i = ints(device, at, &rows, 1);
        v = mlxvk_vector_array_new_value(i);
        OK(functions[op](&res, x, v, u, (int[]){ 0 }, 1, stream), stream);
        mlxvk_vector_array_free(v);
        expect(&a, res, "windows from anywhere");
        mlxvk_array_free(x);
        mlxvk_array_free(u);
        mlxvk_array_free(i);
        mlxvk_array_free(res);
    }
}

static void sorted_by_merges(void **state) { (void)state; many_to_few("MLX_VK_ENABLE_RADIX_SORT=0"); }
static void sorted_by_digits(void **state) { (void)state; many_to_few("MLX_VK_ENABLE_RADIX_SORT=2 MLX_VK_POISON=1"); }

/* Sums of so many that their parts are combined at several levels. */
static void counts(void **state)
{
    enum { MANY = 100000 };
    int32_t *at = malloc(MANY * sizeof *at);
    float got[4];
    mlxvk_array a = { NULL }, i = { NULL }, u = { NULL }, res = { NULL };
    (void)state;
    assert_non_null(at);
    for (int k = 0; k < MANY; k++) at[k] = k % 1000 == 5 ? 0 : k % 10 < 3 ? 1 : 3;
    OK_DEVICE(mlxvk_array_new_data_device(&i, at, (int[]){ MANY }, 1, MLXVK_INT32, device), device);
    OK(mlxvk_zeros(&a, (int[]){ 4 }, 1, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_ones(&u, (int[]){ MANY, 1 }, 2, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_scatter_add_single(&res, a, i, u, 0, stream), stream);
    OK(mlxvk_array_read(res, got, sizeof got, stream), stream);
    assert_true(got[0] == 100 && got[1] == 30000 && got[2] == 0 && got[3] == MANY - 30100);
    OK(mlxvk_reshape(&u, u, (int[]){ MANY }, 1, stream), stream);
    OK(mlxvk_scatter_add_axis(&res, res, i, u, 0, stream), stream);
    OK(mlxvk_array_read(res, got, sizeof got, stream), stream);
    assert_true(got[0] == 200 && got[1] == 60000 && got[2] == 0 && got[3] == 2 * (MANY - 30100));
    mlxvk_array_free(a);
    mlxvk_array_free(i);
    mlxvk_array_free(u);
    mlxvk_array_free(res);
    free(at);
}

/* NaN: what is there stays for max and min, what comes is passed over. */
static void nan_updates(void **state)
{
    const uint32_t a[] = { 0x3f800000, 0x7fc00000, 0x3f800000, 0x3f800000 }, u[] = { 0x7fc00000, 0x40000000, 0x7fc00000, 0x40400000, 0x7fc00000 };
    const int32_t at[] = { 0, 1, 2, 2, 2 };
    mlxvk_array x = { NULL }, v = { NULL }, i = ints(device, at, (int[]){ 5 }, 1), res = { NULL };
    uint32_t got[4];
    (void)state;
    OK_DEVICE(mlxvk_array_new_data_device(&x, a, (int[]){ 4 }, 1, MLXVK_FLOAT32, device), device);
    OK_DEVICE(mlxvk_array_new_data_device(&v, u, (int[]){ 5, 1 }, 2, MLXVK_FLOAT32, device), device);
    OK(mlxvk_scatter_max_single(&res, x, i, v, 0, stream), stream);
    OK(mlxvk_array_read(res, got, sizeof got, stream), stream);
    assert_int_equal(got[0], 0x3f800000);
    assert_int_equal(got[1], 0x7fc00000);
    assert_int_equal(got[2], 0x40400000);
    OK(mlxvk_scatter_prod_single(&res, x, i, v, 0, stream), stream);
    OK(mlxvk_array_read(res, got, sizeof got, stream), stream);
    assert_int_equal(got[0] & 0x7fc00000, 0x7fc00000);
    assert_int_equal(got[3], 0x3f800000);
    mlxvk_array_free(x);
    mlxvk_array_free(v);
    mlxvk_array_free(i);
    mlxvk_array_free(res);
}

static void masked(void **state)
{
    mlxvk_array a = { NULL }, m = { NULL }, rows = { NULL }, res = { NULL }, six = counting(device, 6), two = ints(device, (int32_t[]){ 70, 80 }, (int[]){ 2 }, 1);
    (void)state;
    OK(mlxvk_reshape(&a, six, (int[]){ 2, 3 }, 2, stream), stream);
    OK_DEVICE(mlxvk_array_new_data_device(&m, (bool[]){ 1, 0, 1, 1, 0, 1 }, (int[]){ 2, 3 }, 2, MLXVK_BOOL, device), device);
    OK_DEVICE(mlxvk_array_new_data_device(&rows, (bool[]){ 0, 1 }, (int[]){ 2 }, 1, MLXVK_BOOL, device), device);
    OK(mlxvk_masked_scatter(&res, a, m, two, stream), stream);                           /* what is lacking stays */
    expect_ints(res, (int32_t[]){ 70, 1, 80, 3, 4, 5 }, 6, stream);
    OK(mlxvk_masked_scatter(&res, a, rows, a, stream), stream);
    expect_ints(res, (int32_t[]){ 0, 1, 2, 0, 1, 2 }, 6, stream);
    OK(mlxvk_slice(&two, six, (int[]){ 3 }, 1, (int[]){ 6 }, 1, (int[]){ 1 }, 1, stream), stream);
    OK(mlxvk_masked_scatter(&res, a, rows, two, stream), stream);                        /* one row for all */
    expect_ints(res, (int32_t[]){ 0, 1, 2, 3, 4, 5 }, 6, stream);
    REFUSED(mlxvk_masked_scatter(&res, a, six, two, stream), MLXVK_ERROR_DTYPE, stream, "mask", "bool");
    REFUSED(mlxvk_masked_scatter(&res, six, m, two, stream), MLXVK_ERROR_SHAPE, stream, "first dimensions");
    REFUSED(mlxvk_masked_scatter(&res, a, m, a, stream), MLXVK_ERROR_SHAPE, stream, "src");
    mlxvk_array_free(a);
    mlxvk_array_free(m);
    mlxvk_array_free(rows);
    mlxvk_array_free(res);
    mlxvk_array_free(six);
    mlxvk_array_free(two);
}

static void scatters_refused(void **state)
{
    mlxvk_array a = { NULL }, u = { NULL }, i = counting(device, 2), none = { NULL }, res = { NULL };
    mlxvk_vector_array one = mlxvk_vector_array_new_value(i);
    (void)state;
    OK(mlxvk_zeros(&a, (int[]){ 2, 3 }, 2, MLXVK_INT32, stream), stream);
    OK(mlxvk_ones(&u, (int[]){ 2, 1, 3 }, 3, MLXVK_FLOAT32, stream), stream);
    OK(mlxvk_zeros(&none, (int[]){ 0 }, 1, MLXVK_INT32, stream), stream);
    REFUSED(mlxvk_scatter(&res, a, one, u, (int[]){ -1 }, 1, stream), MLXVK_ERROR_AXIS, stream, "scatter", "axis -1");
    REFUSED(mlxvk_scatter_add(&res, a, one, a, (int[]){ 0 }, 1, stream), MLXVK_ERROR_SHAPE, stream, "scatter_add", "updates");
    REFUSED(mlxvk_scatter_max_single(&res, a, u, u, 0, stream), MLXVK_ERROR_DTYPE, stream, "scatter_max_single", "integers");
    OK(mlxvk_scatter(&a, a, one, u, (int[]){ 0 }, 1, stream), stream);
    expect_ints(a, (int32_t[]){ 1, 1, 1, 1, 1, 1 }, 6, stream);
    OK(mlxvk_scatter_add_axis(&a, a, a, a, 1, stream), stream);                          /* its own indices and values */
    expect_ints(a, (int32_t[]){ 1, 4, 1, 1, 4, 1 }, 6, stream);
    OK(mlxvk_zeros(&u, (int[]){ 0, 1, 3 }, 3, MLXVK_INT32, stream), stream);
    OK(mlxvk_scatter_add_single(&a, a, none, u, 0, stream), stream);
    expect_ints(a, (int32_t[]){ 1, 4, 1, 1, 4, 1 }, 6, stream);
    mlxvk_vector_array_free(one);
    mlxvk_array_free(a);
    mlxvk_array_free(u);
    mlxvk_array_free(i);
    mlxvk_array_free(none);
    mlxvk_array_free(res);
}

/* ---- slices, diagonals, searches ---- */

static void slices_at_run_time(void **state)
{
    mlxvk_array six = counting(device, 6), a = { NULL }, at = ints(device, (int32_t[]){ 1, 1 }, (int[]){ 2 }, 1), far = { NULL }, u = { NULL }, res = { NULL };
    const int64_t outside = (int64_t)1 << 40;
    (void)state;
    OK(mlxvk_reshape(&a, six, (int[]){ 2, 3 }, 2, stream), stream);
    OK_DEVICE(mlxvk_array_new_data_device(&far, &outside, NULL, 0, MLXVK_INT64, device), device);
    OK(mlxvk_slice_dynamic(&res, a, at, (int[]){ 0, -1 }, 2, (int[]){ 1, 2 }, 2, stream), stream);
    expect_ints(res, (int32_t[]){ 4, 5 }, 2, stream);
    OK(mlxvk_slice_dynamic(&res, a, far, (int[]){ 1 }, 1, (int[]){ 2, 2 }, 2, stream), stream);      /* the nearest place */
    expect_ints(res, (int32_t[]){ 1, 2, 4, 5 }, 4, stream);
    REFUSED(mlxvk_slice_dynamic(&res, a, far, NULL, 0, (int[]){ 1, 1 }, 2, stream), MLXVK_ERROR_SHAPE, stream, "start");
    u = ints(device, (int32_t[]){ 70, 80 }, (int[]){ 2 }, 1);
    OK(mlxvk_array_free(six), stream);
    OK(mlxvk_slice_update_dynamic(&a, a, u, at, (int[]){ 0, 1 }, 2, stream), stream);
    expect_ints(a, (int32_t[]){ 0, 1, 2, 3, 70, 80 }, 6, stream);
    OK(mlxvk_slice_update_dynamic(&res, a, u, far, (int[]){ 1 }, 1, stream), stream);                /* nowhere */
    expect_ints(res, (int32_t[]){ 0, 1, 2, 3, 70, 80 }, 6, stream);
    REFUSED(mlxvk_slice_update_dynamic(&res, a, u, at, (int[]){ 0, 0 }, 2, stream), MLXVK_ERROR_AXIS, stream, "slice_update_dynamic", "twice");
    REFUSED(mlxvk_slice_dynamic(&res, a, at, (int[]){ 1 }, 1, (int[]){ 2, 2 }, 2, stream), MLXVK_ERROR_SHAPE, stream, "slice_dynamic");
    REFUSED(mlxvk_slice_dynamic(&res, a, at, (int[]){ 0, 1 }, 2, (int[]){ 2, 4 }, 2, stream), MLXVK_ERROR_SHAPE, stream, "windows of 4");
    OK(mlxvk_slice_update_add(&a, a, a, (int[]){ 1, 2 }, 2, (int[]){ -3, -4 }, 2, (int[]){ -1, -1 }, 2, stream), stream);   /* itself, reversed */
    expect_ints(a, (int32_t[]){ 80, 71, 5, 5, 71, 80 }, 6, stream);
    OK(mlxvk_slice_update_max(&a, a, u, (int[]){ 0, 1 }, 2, (int[]){ 2, 3 }, 2, (int[]){ 1, 1 }, 2, stream), stream);
    expect_ints(a, (int32_t[]){ 80, 71, 80, 5, 71, 80 }, 6, stream);
    mlxvk_array_free(a);
    mlxvk_array_free(at);
    mlxvk_array_free(far);
    mlxvk_array_free(u);
    mlxvk_array_free(res);
}

static void diagonals(void **state)
{
    mlxvk_array six = counting(device, 6), a = { NULL }, res = { NULL };
    (void)state;
    OK(mlxvk_reshape(&a, six, (int[]){ 2, 3 }, 2, stream), stream);
    OK(mlxvk_diagonal(&res, a, 1, -2, -1, stream), stream);
    expect_ints(res, (int32_t[]){ 1, 5 }, 2, stream);
    OK(mlxvk_diagonal(&res, a, -1, 0, 1, stream), stream);
    expect_ints(res, (int32_t[]){ 3 }, 1, stream);
    OK(mlxvk_diag(&res, a, 5, stream), stream);
    assert_int_equal(mlxvk_array_size(res), 0);
    OK(mlxvk_diag(&res, res, -2, stream), stream);
    expect_ints(res, (int32_t[]){ 0, 0, 0, 0 }, 4, stream);
    OK(mlxvk_trace(&res, a, 0, 0, 1, MLXVK_INT32, stream), stream);
    expect_ints(res, (int32_t[]){ 4 }, 1, stream);
    OK(mlxvk_trace(&res, a, 0, 0, 1, MLXVK_BOOL, stream), stream);
    assert_int_equal(mlxvk_array_dtype(res), MLXVK_INT32);
    expect_ints(res, (int32_t[]){ 1 }, 1, stream);
    REFUSED(mlxvk_diagonal(&res, six, 0, 0, 1, stream), MLXVK_ERROR_SHAPE, stream, "diagonal");
    REFUSED(mlxvk_diagonal(&res, a, 0, 1, 1, stream), MLXVK_ERROR_AXIS, stream, "twice");
    REFUSED(mlxvk_diag(&res, six, INT32_MAX, stream), MLXVK_ERROR_LIMIT, stream, "diag", "rows");
    mlxvk_array_free(six);
    mlxvk_array_free(a);
    mlxvk_array_free(res);
}

static void searches(void **state)
{
    const float sorted[] = { -2, 0, 0, 1, NAN }, values[] = { -3, 0, -0.0f, 1.5f, NAN, 1, INFINITY };
    const int64_t wide[] = { -((int64_t)1 << 40), 5, 5, (int64_t)1 << 40 };
    mlxvk_array a = floats(device, sorted, (int[]){ 5 }, 1), v = floats(device, values, (int[]){ 7 }, 1), w = { NULL }, res = { NULL };
    mlxvk_array five = ints(device, (int32_t[]){ 5, 6, -1 }, (int[]){ 3 }, 1), empty = { NULL };
    (void)state;
    OK_DEVICE(mlxvk_array_new_data_device(&w, wide, (int[]){ 4 }, 1, MLXVK_INT64, device), device);
    OK(mlxvk_zeros(&empty, (int[]){ 0 }, 1, MLXVK_INT32, stream), stream);
    OK(mlxvk_searchsorted(&res, a, v, "left", stream), stream);
    assert_int_equal(mlxvk_array_dtype(res), MLXVK_UINT32);
    OK(mlxvk_view(&res, res, MLXVK_INT32, stream), stream);
    expect_ints(res, (int32_t[]){ 0, 1, 1, 4, 4, 3, 4 }, 7, stream);
    OK(mlxvk_searchsorted(&res, a, v, "right", stream), stream);
    OK(mlxvk_view(&res, res, MLXVK_INT32, stream), stream);
    expect_ints(res, (int32_t[]){ 0, 3, 3, 4, 5, 4, 4 }, 7, stream);
    OK(mlxvk_searchsorted(&res, w, five, "right", stream), stream);
    OK(mlxvk_view(&res, res, MLXVK_INT32, stream), stream);
    expect_ints(res, (int32_t[]){ 3, 3, 1 }, 3, stream);
    OK(mlxvk_searchsorted(&res, empty, five, "left", stream), stream);
    OK(mlxvk_view(&res, res, MLXVK_INT32, stream), stream);
    expect_ints(res, (int32_t[]){ 0, 0, 0 }, 3, stream);
    REFUSED(mlxvk_searchsorted(&res, a, v, "up", stream), MLXVK_ERROR_ARGUMENT, stream, "searchsorted", "up");
    mlxvk_array_free(a);
    mlxvk_array_free(v);
    mlxvk_array_free(w);
    mlxvk_array_free(five);
    mlxvk_array_free(empty);
    mlxvk_array_free(res);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_gathers), cmocka_unit_test(gathers_refused), cmocka_unit_test(random_scatters),
        cmocka_unit_test(runs_in_order), cmocka_unit_test(few_in_order),
        cmocka_unit_test(sorted_by_merges), cmocka_unit_test(sorted_by_digits), cmocka_unit_test(counts), cmocka_unit_test(nan_updates),
        cmocka_unit_test(windows_anywhere),
        cmocka_unit_test(windows_at_levels), cmocka_unit_test(masked), cmocka_unit_test(scatters_refused), cmocka_unit_test(slices_at_run_time), cmocka_unit_test(diagonals),
        cmocka_unit_test(searches)
    };
    return run_group("indexing", tests, set_up_poisoned, tear_down);
}
