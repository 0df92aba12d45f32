/* The tape: random programs of operations on overlapping views, updates in place and several streams, against the host;
 * laziness, dropped and fused operations. */
#include "qwen3/parallel.h"
#include "support.h"

#include <stdio.h>

/* ---- pipelines that are made side by side ---- */

enum { SIDE = 48 };

/* Operations of several kernels, one after the other and side by side, in one window. */
static mlxvk_array many_kernels(mlxvk_array x, mlxvk_stream s)
{
    mlxvk_array y = { NULL }, z = { NULL }, none = { NULL };
    OK(mlxvk_matmul(&y, x, x, s), s);
    OK(mlxvk_softmax_axis(&y, y, 1, true, s), s);
    OK(mlxvk_cumsum(&z, y, 0, false, true, s), s);
    OK(mlxvk_sort_axis(&z, z, 1, s), s);
    OK(mlxvk_add(&y, y, z, s), s);
    OK(mlxvk_fast_rms_norm(&y, y, none, 1e-5f, s), s);
    OK(mlxvk_sum_axis(&z, y, 1, true, s), s);
    OK(mlxvk_subtract(&y, y, z, s), s);
    OK(mlxvk_exp(&z, y, s), s);
    OK(mlxvk_transpose(&y, y, s), s);
    OK(mlxvk_maximum(&y, y, z, s), s);
    OK(mlxvk_argmax_axis(&z, y, 0, true, s), s);
    OK(mlxvk_take_along_axis(&y, y, z, 0, s), s);
    mlxvk_array_free(z);
    return y;
}

/* user: counts the tasks. */
static void counted(mlxvk_task *task, void *with, uint32_t count, void *user)
{
    parallel(task, with, count, NULL);
    *(uint32_t *)user += count;
}

/* Does nothing: what it was to do is done one by one. */
static void no_threads(mlxvk_task *task, void *with, uint32_t count, void *user)
{
    (void)task, (void)with;
    *(uint32_t *)user += count;
}

/* Side by side: the pipelines that are made else, all but the first node's (a product's, two where b is turned) before they are
 * needed, and the same bits. */
static void test_pipelines_ahead(void **state)
{
    void (*const ways[])(mlxvk_task *, void *, uint32_t, void *) = { NULL, counted, no_threads };
    static float x[SIDE * SIDE], got[3][SIDE];
    uint64_t pipelines[3];
    struct rng random = { 38 };
    (void)state;
    for (int i = 0; i < SIDE * SIDE; i++) x[i] = (float)random_int(&random, -999, 999) / 999;
    for (int k = 0; k < 3; k++) {
        uint32_t ahead = 0;
        mlxvk_device d = { NULL };
        mlxvk_stream s;
        assert_int_equal(mlxvk_device_create(&d, &(mlxvk_device_desc){ .parallel = ways[k], .user = &ahead }), 0);
        s = open_stream(d);
        mlxvk_array a = array_of(d, MLXVK_FLOAT32, x, (int[]){ SIDE, SIDE }, 2), y = many_kernels(a, s);
        OK(mlxvk_array_read(y, got[k], sizeof got[k], s), s);
        pipelines[k] = stats_of(d).pipelines;
        assert_memory_equal(got[0], got[k], sizeof got[0]);
        assert_int_equal(pipelines[0], pipelines[k]);
        if (ways[k]) assert_true(ahead >= pipelines[k] - 2);
        mlxvk_array_free(y);
        mlxvk_array_free(a);
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
    }
    assert_true(pipelines[0] > 8);
}

/* ---- random programs ---- */

enum { POOL = 12, STREAMS = 3, STEPS = 250, MOST_ELEMENTS = 400 };

struct value { mlxvk_array array; struct host host; };

struct program {
    struct rng r;
    mlxvk_device device;
    mlxvk_stream streams[STREAMS];
    int stream_count;
    struct value pool[POOL];
};

static void value_free(struct value *v)
{
    mlxvk_array_free(v->array);
    host_free(&v->host);
    v->array = mlxvk_array_new();
}

static struct value *any_value(struct program *p) { return &p->pool[random_int(&p->r, 0, POOL - 1)]; }

static mlxvk_stream any_stream(struct program *p) { return p->streams[random_int(&p->r, 0, p->stream_count - 1)]; }

static void put(struct program *p, struct value v)
{
    struct value *place = any_value(p);
    value_free(place);
    *place = v;
}

static struct value handle_of(const struct value *v)
{
    struct value same = { mlxvk_array_new(), host_copy(&v->host) };
    assert_int_equal(mlxvk_array_set(&same.array, v->array), 0);
    return same;
}

static void step_new(struct program *p)
{
    struct host h = host_random(&p->r, 4, MOST_ELEMENTS);
    put(p, (struct value){ host_upload(&h, p->device), h });
}

/* A view beside its base: another pool entry on the same memory. */
static void step_view(struct program *p)
{
    struct value v = handle_of(any_value(p));
    random_view(&p->r, &v.array, &v.host, 8, MOST_ELEMENTS, any_stream(p));
    put(p, v);
}

static uint32_t u(int32_t x) { return (uint32_t)x; }
static int32_t do_negative(int32_t x, int32_t y) { (void)y; return (int32_t)-u(x); }
static int32_t do_square(int32_t x, int32_t y) { (void)y; return (int32_t)(u(x) * u(x)); }
static int32_t do_invert(int32_t x, int32_t y) { (void)y; return ~x; }
static int32_t do_add(int32_t x, int32_t y) { return (int32_t)(u(x) + u(y)); }
static int32_t do_subtract(int32_t x, int32_t y) { return (int32_t)(u(x) - u(y)); }
static int32_t do_multiply(int32_t x, int32_t y) { return (int32_t)(u(x) * u(y)); }
static int32_t do_maximum(int32_t x, int32_t y) { return x > y ? x : y; }
static int32_t do_xor(int32_t x, int32_t y) { return x ^ y; }

static void step_unary(struct program *p)
{
    static const struct {
        int (*device)(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
        int32_t (*host)(int32_t x, int32_t y);
    } operations[] = {
        { mlxvk_negative, do_negative }, { mlxvk_square, do_square }, { mlxvk_bitwise_invert, do_invert },
    };
    int which = random_int(&p->r, 0, (int)COUNT(operations) - 1);
    mlxvk_stream s = any_stream(p);
    struct value *v = any_value(p), res = { mlxvk_array_new(), host_copy(&v->host) };
    for (size_t i = 0; i < host_size(&res.host); i++) res.host.data[i] = operations[which].host(v->host.data[i], 0);
    OK(operations[which].device(&res.array, v->array, s), s);
    put(p, res);
}

/* Whether y can be broadcast to x's shape; if so, *y becomes that. */
static bool broadcast(const struct host *x, struct host *y)
{
    struct view v = host_whole(y), wide = { .ndim = x->ndim };
    int added = x->ndim - y->ndim;
    if (added < 0) return false;
    for (int i = 0; i < x->ndim; i++) {
        bool same = i >= added && v.shape[i - added] == x->shape[i];
        if (!same && i >= added && v.shape[i - added] != 1) return false;
        wide.shape[i] = x->shape[i];
        wide.strides[i] = same ? v.strides[i - added] : 0;
    }
    host_apply(y, &wide);
    return true;
}

static void step_binary(struct program *p)
{
    static const struct {
        int (*device)(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
        int32_t (*host)(int32_t x, int32_t y);
    } operations[] = {
        { mlxvk_add, do_add }, { mlxvk_subtract, do_subtract }, { mlxvk_multiply, do_multiply },
        { mlxvk_maximum, do_maximum }, { mlxvk_bitwise_xor, do_xor },
    };
    struct value *a = any_value(p), *b = a;
    int which = random_int(&p->r, 0, (int)COUNT(operations) - 1);
    mlxvk_stream s = any_stream(p);
    struct host y = { 0 };
    for (int tries = 0; tries < 8; tries++) {                  /* else with itself */
        struct value *other = any_value(p);
        y = host_copy(&other->host);
        if (broadcast(&a->host, &y)) { b = other; break; }
        host_free(&y);
    }
    if (!y.data) y = host_copy(&a->host);
    struct value res = { mlxvk_array_new(), host_copy(&a->host) };
    for (size_t i = 0; i < host_size(&y); i++) res.host.data[i] = operations[which].host(a->host.data[i], y.data[i]);
    OK(operations[which].device(&res.array, a->array, b->array, s), s);
    host_free(&y);
    put(p, res);
}

/* The slice of h becomes `update`, which has its shape. */
static void host_update(struct host *h, const struct view *v, const struct host *update)
{
    int index[MLXVK_MAX_NDIM] = { 0 };
    size_t size = host_size(update);
    for (size_t n = 0; n < size; n++) {
        int64_t at = v->offset;
        for (int i = 0; i < v->ndim; i++) at += index[i] * v->strides[i];
        h->data[at] = update->data[n];
        for (int i = v->ndim - 1; i >= 0 && ++index[i] == v->shape[i]; i--) index[i] = 0;
    }
}

/* The result is the operand itself half of the time: in place where nobody else owns it, and where somebody does (a
 * view of it in the pool, an operation on the tape), that one must not see the change. */
static void step_update(struct program *p)
{
    struct value *v = any_value(p), update, res;
    struct slice s = random_slice(&p->r, &v->host);
    size_t n = (size_t)v->host.ndim;
    mlxvk_stream stream = any_stream(p);
    update.host = host_new(s.view.shape, s.view.ndim);
    for (size_t i = 0; i < host_size(&update.host); i++) update.host.data[i] = (int32_t)random_bits(&p->r);
    update.array = host_upload(&update.host, p->device);
    if (random_chance(&p->r, 50)) {
        host_update(&v->host, &s.view, &update.host);
        OK(mlxvk_slice_update(&v->array, v->array, update.array, s.start, n, s.stop, n, s.step, n, stream), stream);
    } else {
        res = (struct value){ mlxvk_array_new(), host_copy(&v->host) };
        host_update(&res.host, &s.view, &update.host);
        OK(mlxvk_slice_update(&res.array, v->array, update.array, s.start, n, s.stop, n, s.step, n, stream), stream);
        put(p, res);
    }
    value_free(&update);
}

/* An update with a part of the same array: source and destination overlap. */
static void step_update_with_itself(struct program *p)
{
    struct value *v = any_value(p);
    struct slice to = random_slice(&p->r, &v->host);
    struct value part = handle_of(v);
    size_t n = (size_t)v->host.ndim;
    mlxvk_stream stream = any_stream(p);
    int zero[MLXVK_MAX_NDIM] = { 0 }, ones[MLXVK_MAX_NDIM];
    struct view from = host_whole(&v->host);
    for (int i = 0; i < v->host.ndim; i++) ones[i] = 1, from.shape[i] = to.view.shape[i];
    host_apply(&part.host, &from);
    OK(mlxvk_slice(&part.array, part.array, zero, n, from.shape, n, ones, n, stream), stream);
    host_update(&v->host, &to.view, &part.host);
    OK(mlxvk_slice_update(&v->array, v->array, part.array, to.start, n, to.stop, n, to.step, n, stream), stream);
    value_free(&part);
}

static void step_run(struct program *p)
{
    mlxvk_stream s = any_stream(p);
    struct value *v = any_value(p);
    switch (random_int(&p->r, 0, 5)) {
    case 0: OK(mlxvk_finalize(s), s); break;
    case 1: OK(mlxvk_synchronize(s), s); break;
    case 2: OK_DEVICE(async_eval_one(v->array), p->device); break;
    case 3: OK_DEVICE(eval_one(v->array), p->device); break;
    default: host_expect(&v->host, v->array, s);
    }
}

static void run_program(uint64_t seed, const char *gates, int stream_count)
{
    static void (*const steps[])(struct program *p) = {
        step_new, step_view, step_view, step_unary, step_binary, step_binary, step_update, step_update,
        step_update_with_itself, step_run,
    };
    struct program p = { .r = { seed }, .device = open_device(gates), .stream_count = stream_count };
    for (int i = 0; i < stream_count; i++) p.streams[i] = open_stream(p.device);
    for (int i = 0; i < POOL; i++) {
        p.pool[i].host = host_random(&p.r, 4, MOST_ELEMENTS);
        p.pool[i].array = host_upload(&p.pool[i].host, p.device);
    }
    for (int i = 0; i < STEPS; i++) steps[random_int(&p.r, 0, (int)COUNT(steps) - 1)](&p);
    for (int i = 0; i < POOL; i++) host_expect(&p.pool[i].host, p.pool[i].array, any_stream(&p));
    for (int i = 0; i < POOL; i++) value_free(&p.pool[i]);
    for (int i = 0; i < stream_count; i++) mlxvk_stream_free(p.streams[i]);
    size_t active = 1;
    OK_DEVICE(mlxvk_device_get_active_memory(&active, p.device), p.device);
    assert_int_equal(active, 0);                               /* nothing is left behind */
    mlxvk_device_free(p.device);
}

static void test_programs_one_stream(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) run_program(seed, "MLX_VK_POISON=1", 1);
}

static void test_programs_streams(void **state)
{
    (void)state;
    for (uint64_t seed = 101; seed <= 112; seed++) run_program(seed, "MLX_VK_POISON=1", STREAMS);
}

/* With a submission after every two operations, and hardly any in flight. */
static void test_programs_short_submissions(void **state)
{
    (void)state;
    const char *gates = "MLX_VK_POISON=1 MLX_VK_MAX_OPS_PER_BUFFER=2 MLX_VK_MAX_INFLIGHT_SEQUENCES=2";
    for (uint64_t seed = 201; seed <= 208; seed++) run_program(seed, gates, STREAMS);
}

/* ---- in place, or not ---- */

static size_t peak_of(mlxvk_device device)
{
    size_t peak = 0;
    OK_DEVICE(mlxvk_device_get_peak_memory(&peak, device), device);
    return peak;
}

/* A row written into a large array a hundred times, as a cache is: no second copy of it ever exists. */
static void test_update_in_place(void **state)
{
    (void)state;
    enum { ROWS = 100, WIDTH = 4096 };
    struct setting s = start(NULL);
    mlxvk_array cache = { NULL }, row = counting(s.device, WIDTH);
    struct host want = host_new((int[]){ ROWS, WIDTH }, 2);
    OK(mlxvk_zeros(&cache, (int[]){ ROWS, WIDTH }, 2, MLXVK_INT32, s.stream), s.stream);
    OK_DEVICE(eval_one(cache), s.device);
    OK_DEVICE(mlxvk_device_reset_peak_memory(s.device), s.device);
    for (int i = 0; i < ROWS; i++) {
        OK(mlxvk_slice_update(&cache, cache, row, (int[]){ i, 0 }, 2, (int[]){ i + 1, WIDTH }, 2, (int[]){ 1, 1 }, 2,
                              s.stream), s.stream);
        if (i % 7 == 0) OK_DEVICE(async_eval_one(cache), s.device);
        for (int j = 0; j < WIDTH; j++) want.data[i * WIDTH + j] = j;
    }
    OK_DEVICE(eval_one(cache), s.device);
    assert_true(peak_of(s.device) < ROWS * WIDTH * 4 * 3 / 2);
    host_expect(&want, cache, s.stream);
    host_free(&want);
    mlxvk_array_free(cache);
    mlxvk_array_free(row);
    finish(&s);
}

/* Whoever holds the old array, or a view of it, keeps the old values. */
static void test_update_of_shared(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_array a = counting(s.device, 6), view = { NULL }, old = { NULL }, nines = { NULL };
    nines = ints(s.device, (int32_t[]){ 9, 9 }, (int[]){ 2 }, 1);
    OK(mlxvk_slice(&view, a, (int[]){ 1 }, 1, (int[]){ 4 }, 1, (int[]){ 1 }, 1, s.stream), s.stream);
    assert_int_equal(mlxvk_array_set(&old, a), 0);
    OK(mlxvk_slice_update(&a, a, nines, (int[]){ 2 }, 1, (int[]){ 4 }, 1, (int[]){ 1 }, 1, s.stream), s.stream);
    expect_ints(a, (int32_t[]){ 0, 1, 9, 9, 4, 5 }, 6, s.stream);
    expect_ints(old, (int32_t[]){ 0, 1, 2, 3, 4, 5 }, 6, s.stream);
    expect_ints(view, (int32_t[]){ 1, 2, 3 }, 3, s.stream);
    mlxvk_array_free(old);
    OK(mlxvk_slice_update(&a, a, nines, (int[]){ 0 }, 1, (int[]){ 2 }, 1, (int[]){ 1 }, 1, s.stream), s.stream);
    expect_ints(a, (int32_t[]){ 9, 9, 9, 9, 4, 5 }, 6, s.stream);
    expect_ints(view, (int32_t[]){ 1, 2, 3 }, 3, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(view);
    mlxvk_array_free(nines);
    finish(&s);
}

/* An array whose own elements share memory: the only owner of its memory, and still not to be written in place. */
static void test_update_of_overlapping(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_array a = counting(s.device, 6), nine = ints(s.device, (int32_t[]){ 9 }, (int[]){ 1, 1 }, 2);
    OK(mlxvk_as_strided(&a, a, (int[]){ 3, 3 }, 2, (int64_t[]){ 1, 1 }, 2, 0, s.stream), s.stream);
    OK(mlxvk_slice_update(&a, a, nine, (int[]){ 0, 2 }, 2, (int[]){ 1, 3 }, 2, (int[]){ 1, 1 }, 2, s.stream), s.stream);
    expect_ints(a, (int32_t[]){ 0, 1, 9, 1, 2, 3, 2, 3, 4 }, 9, s.stream);
    mlxvk_array_free(a);
    a = counting(s.device, 2);
    OK(mlxvk_broadcast_to(&a, a, (int[]){ 2, 2 }, 2, s.stream), s.stream);
    OK(mlxvk_slice_update(&a, a, nine, (int[]){ 0, 0 }, 2, (int[]){ 1, 1 }, 2, (int[]){ 1, 1 }, 2, s.stream), s.stream);
    expect_ints(a, (int32_t[]){ 9, 1, 0, 1 }, 4, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(nine);
    finish(&s);
}

/* A reader recorded before the update sees the old values, also when both run later. */
static void test_update_after_recorded_read(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_array a = counting(s.device, 4), doubled = { NULL }, seven = { NULL };
    seven = ints(s.device, (int32_t[]){ 7 }, (int[]){ 1 }, 1);
    OK(mlxvk_add(&doubled, a, a, s.stream), s.stream);
    OK(mlxvk_slice_update(&a, a, seven, (int[]){ 3 }, 1, (int[]){ 4 }, 1, (int[]){ 1 }, 1, s.stream), s.stream);
    expect_ints(a, (int32_t[]){ 0, 1, 2, 7 }, 4, s.stream);
    expect_ints(doubled, (int32_t[]){ 0, 2, 4, 6 }, 4, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(doubled);
    mlxvk_array_free(seven);
    finish(&s);
}

/* Host data may be changed as soon as the call that took it returns. */
static void test_host_data_is_copied(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    int32_t data[] = { 1, 2, 3 };
    mlxvk_array a = ints(s.device, data, (int[]){ 3 }, 1), b = { NULL };
    OK(mlxvk_add(&b, a, a, s.stream), s.stream);
    memset(data, 0, sizeof data);
    expect_ints(b, (int32_t[]){ 2, 4, 6 }, 3, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    finish(&s);
}

/* ---- dropped ---- */

/* Results that nobody owns when it runs are not computed; what depends on them still is. */
static void test_dropped(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_array a = counting(s.device, 4), kept = { NULL };
    mlxvk_stats before = stats_of(s.device);
    for (int i = 0; i < 10; i++) {
        mlxvk_array unwanted = { NULL };
        OK(mlxvk_square(&unwanted, a, s.stream), s.stream);
        OK(mlxvk_negative(&unwanted, unwanted, s.stream), s.stream);
        mlxvk_array_free(unwanted);
    }
    OK(mlxvk_add(&kept, a, a, s.stream), s.stream);
    expect_ints(kept, (int32_t[]){ 0, 2, 4, 6 }, 4, s.stream);
    mlxvk_stats after = stats_of(s.device);
    assert_int_equal(after.operations - before.operations, 21);
    assert_int_equal(after.dropped - before.dropped, 20);
    assert_int_equal(after.dispatches - before.dispatches, 1);
    mlxvk_array_free(a);
    mlxvk_array_free(kept);
    finish(&s);
}

/* A chain of intermediate results without handles is computed for its end. */
static void test_chain(void **state)
{
    (void)state;
    struct setting s = start(NULL);
    mlxvk_array a = counting(s.device, 4), sum = { NULL };
    assert_int_equal(mlxvk_array_set(&sum, a), 0);
    for (int i = 0; i < 1000; i++) OK(mlxvk_add(&sum, sum, a, s.stream), s.stream);
    expect_ints(sum, (int32_t[]){ 0, 1001, 2002, 3003 }, 4, s.stream);
    mlxvk_array_free(a);
    mlxvk_array_free(sum);
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs_one_stream), cmocka_unit_test(test_programs_streams),
        cmocka_unit_test(test_programs_short_submissions), cmocka_unit_test(test_update_in_place),
        cmocka_unit_test(test_update_of_shared), cmocka_unit_test(test_update_of_overlapping),
        cmocka_unit_test(test_update_after_recorded_read),
        cmocka_unit_test(test_host_data_is_copied), cmocka_unit_test(test_dropped), cmocka_unit_test(test_chain),
        cmocka_unit_test(test_pipelines_ahead),
    };
    return run_group("tape", tests, NULL, NULL);
}
