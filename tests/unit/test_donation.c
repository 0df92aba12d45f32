/* Results in the place of operands that nobody wants any more: memory is saved, and what somebody still reads stays. */
#include "support.h"

#include <math.h>
#include <stdio.h>

enum { OFF, ON, DEVICES };

static mlxvk_device devices[DEVICES];
static mlxvk_stream streams[DEVICES];

static int set_up_both(void **state)
{
    static const char *const gates[DEVICES] = { "MLX_VK_ENABLE_DONATION=0 MLX_VK_POISON=1", "MLX_VK_ENABLE_DONATION=1 MLX_VK_POISON=1" };
    (void)state;
    for (int i = 0; i < DEVICES; i++) {
        devices[i] = open_device(gates[i]);
        streams[i] = open_stream(devices[i]);
    }
    return 0;
}

static int tear_down_both(void **state)
{
    (void)state;
    for (int i = 0; i < DEVICES; i++) {
        mlxvk_stream_free(streams[i]);
        mlxvk_device_free(devices[i]);
    }
    return 0;
}

static size_t active(int on)
{
    size_t bytes = 0;
    OK_DEVICE(mlxvk_device_get_active_memory(&bytes, devices[on]), devices[on]);
    return bytes;
}

/* The peak since the last call, above what is active now. */
static size_t peak(int on)
{
    size_t bytes = 0;
    OK_DEVICE(mlxvk_device_get_peak_memory(&bytes, devices[on]), devices[on]);
    return bytes;
}

static mlxvk_array random_floats(struct rng *r, const int *shape, int ndim, int on)
{
    size_t size = 1;
    mlxvk_array a = { NULL };
    for (int i = 0; i < ndim; i++) size *= (size_t)shape[i];
    float *values = malloc(size * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < size; i++) values[i] = (float)random_int(r, -2000, 2000) / 1000;
    OK_DEVICE(mlxvk_array_new_data_device(&a, values, shape, ndim, MLXVK_FLOAT32, devices[on]), devices[on]);
    free(values);
    return a;
}

/* The elements of both must be the same bit for bit; frees both. */
static void expect_same(mlxvk_array pair[DEVICES])
{
    size_t bytes = mlxvk_array_nbytes(pair[OFF]);
    char *data[DEVICES];
    assert_int_equal(mlxvk_array_nbytes(pair[ON]), bytes);
    for (int i = 0; i < DEVICES; i++) {
        data[i] = malloc(bytes + 1);
        assert_non_null(data[i]);
        OK(mlxvk_array_read(pair[i], data[i], bytes, streams[i]), streams[i]);
        mlxvk_array_free(pair[i]);
    }
    assert_memory_equal(data[OFF], data[ON], bytes);
    for (int i = 0; i < DEVICES; i++) free(data[i]);
}

/* ---- memory ---- */

/* MLX's own test of operations that need no memory (test_eval.py, test_donation_for_noops). */
static void test_no_memory(void **state)
{
    (void)state;
    const int side[] = { 4096, 4096 }, flat = 4096 * 4096;
    mlxvk_stream s = streams[ON];
    mlxvk_array x = { NULL };
    OK(mlxvk_zeros(&x, side, 2, MLXVK_FLOAT32, s), s);
    OK(eval_one(x), s);
    size_t before = peak(ON);
    for (int i = 0; i < 10; i++) {
        OK(mlxvk_abs(&x, x, s), s);
        OK(mlxvk_reshape(&x, x, &flat, 1, s), s);
        OK(mlxvk_transpose(&x, x, s), s);
        OK(mlxvk_transpose(&x, x, s), s);
        OK(mlxvk_abs(&x, x, s), s);
    }
    OK(eval_one(x), s);
    assert_int_equal(peak(ON), before);
    for (int i = 0; i < 10; i++) {
        int start = 0, stop = mlxvk_array_dim(x, 0) - 1, step = 1;
        OK(mlxvk_abs(&x, x, s), s);
        OK(mlxvk_slice(&x, x, &start, 1, &stop, 1, &step, 1, s), s);
        OK(mlxvk_abs(&x, x, s), s);
    }
    OK(eval_one(x), s);
    assert_int_equal(peak(ON), before);
    mlxvk_array_free(x);
}

typedef int (*step)(mlxvk_array *x, mlxvk_stream s);
static int step_softmax(mlxvk_array *x, mlxvk_stream s) { return mlxvk_softmax_axis(x, *x, -1, true, s); }
static int step_softmax_first(mlxvk_array *x, mlxvk_stream s) { return mlxvk_softmax_axis(x, *x, 0, true, s); }
static int step_norm(mlxvk_array *x, mlxvk_stream s) { return mlxvk_fast_layer_norm(x, *x, (mlxvk_array){ NULL }, (mlxvk_array){ NULL }, 1e-5f, s); }
static int step_scan(mlxvk_array *x, mlxvk_stream s) { return mlxvk_cumsum(x, *x, 1, true, false, s); }
static int step_scan_columns(mlxvk_array *x, mlxvk_stream s) { return mlxvk_cummax(x, *x, 0, false, true, s); }
static int step_square(mlxvk_array *x, mlxvk_stream s) { return mlxvk_multiply(x, *x, *x, s); }
static int step_rope(mlxvk_array *x, mlxvk_stream s)
{
    return mlxvk_fast_rope(x, *x, 32, false, (mlxvk_optional_float){ 1e4f, true }, 1, 3, (mlxvk_array){ NULL }, s);
}
static int step_traditional(mlxvk_array *x, mlxvk_stream s)
{
    return mlxvk_fast_rope(x, *x, 30, true, (mlxvk_optional_float){ 1e4f, true }, 1, 3, (mlxvk_array){ NULL }, s);
}

/* Each of these needs no memory for its result, and computes what it computes elsewhere. Softmax may keep two numbers of each
 * row beside it. */
static void test_steps(void **state)
{
    (void)state;
    static const step steps[] = { step_softmax, step_softmax_first, step_norm, step_scan, step_scan_columns, step_square, step_rope,
                                  step_traditional };
    const int shape[] = { 64, 65, 80 };
    for (size_t k = 0; k < COUNT(steps); k++) {
        mlxvk_array pair[DEVICES] = { { NULL } };
        for (int on = 0; on < DEVICES; on++) {
            struct rng r = { 5 };
            pair[on] = random_floats(&r, shape, 3, on);
            OK(eval_one(pair[on]), streams[on]);
            OK_DEVICE(mlxvk_device_reset_peak_memory(devices[on]), devices[on]);
            size_t before = active(on);
            OK(steps[k](&pair[on], streams[on]), streams[on]);
            OK(eval_one(pair[on]), streams[on]);
            size_t beside = steps[k] == step_softmax ? 1 << 16 : 0;           /* of pages of 32 KiB */
            if (on && steps[k] != step_scan_columns && steps[k] != step_softmax_first) assert_true(peak(on) <= before + beside);
            if (on) assert_int_equal(active(on), before);
            if (!on) assert_true(peak(on) > before);
        }
        expect_same(pair);
    }
}

/* ---- what must not be overwritten ---- */

static void test_kept_operand(void **state)
{
    (void)state;
    mlxvk_stream s = streams[ON];
    const float values[] = { -1, -2, -3, -4, -5, -6 }, want[] = { 1, 2, 3, 4, 5, 6 };
    mlxvk_array x = floats(devices[ON], values, (int[]){ 6 }, 1), y = { NULL };
    OK(mlxvk_abs(&y, x, s), s);
    expect_floats(y, want, 6, 0, 0, s);
    expect_floats(x, values, 6, 0, 0, s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* A view that somebody holds keeps all of it; so does a later reader. */
static void test_kept_view(void **state)
{
    (void)state;
    mlxvk_stream s = streams[ON];
    const float values[] = { -1, -2, -3, -4, -5, -6 }, want[] = { 1, 2, 3, 4, 5, 6 }, sums[] = { 0, 0, 0, 0, 0, 0 };
    mlxvk_array x = floats(devices[ON], values, (int[]){ 2, 3 }, 2), view = { NULL }, y = { NULL }, z = { NULL };
    OK(mlxvk_transpose(&view, x, s), s);
    OK(mlxvk_abs(&x, x, s), s);
    expect_floats(x, want, 6, 0, 0, s);
    expect_floats(view, (const float[]){ -1, -4, -2, -5, -3, -6 }, 6, 0, 0, s);
    OK(mlxvk_transpose(&view, view, s), s);
    OK(mlxvk_abs(&y, view, s), s);
    OK(mlxvk_add(&z, view, y, s), s);
    mlxvk_array_free(view);
    expect_floats(z, sums, 6, 0, 0, s);
    expect_floats(y, want, 6, 0, 0, s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
}

/* Somebody holds the memory itself, without an array. */
static void test_kept_buffer(void **state)
{
    (void)state;
    mlxvk_stream s = streams[ON];
    const float values[] = { -1, -2, -3, -4, -5, -6 };
    mlxvk_array x = floats(devices[ON], values, (int[]){ 6 }, 1), again = { NULL };
    mlxvk_buffer buffer = { NULL };
    OK(mlxvk_negative(&x, x, s), s);
    OK_DEVICE(mlxvk_array_buffer(&buffer, NULL, x), devices[ON]);
    OK(mlxvk_negative(&x, x, s), s);
    expect_floats(x, values, 6, 0, 0, s);
    OK_DEVICE(mlxvk_array_new_buffer(&again, buffer, (int[]){ 6 }, NULL, 1, MLXVK_FLOAT32, 0), devices[ON]);
    expect_floats(again, (const float[]){ 1, 2, 3, 4, 5, 6 }, 6, 0, 0, s);
    mlxvk_array_free(x);
    mlxvk_array_free(again);
    mlxvk_buffer_free(buffer);
}

/* An operand that is read at other positions than those written: transposed, reversed, broadcast. */
static void test_other_positions(void **state)
{
    (void)state;
    enum { N = 300 };
    mlxvk_array pair[DEVICES] = { { NULL } };
    for (int on = 0; on < DEVICES; on++) {
        mlxvk_stream s = streams[on];
        mlxvk_array turned = { NULL }, row = { NULL };
        struct rng r = { 9 };
        pair[on] = random_floats(&r, (int[]){ N, N }, 2, on);
        OK(mlxvk_transpose(&turned, pair[on], s), s);
        OK(mlxvk_subtract(&pair[on], pair[on], turned, s), s);
        OK(mlxvk_slice(&turned, pair[on], (int[]){ N, N }, 2, (int[]){ -N - 1, -N - 1 }, 2, (int[]){ -1, -1 }, 2, s), s);
        OK(mlxvk_add(&pair[on], pair[on], turned, s), s);
        mlxvk_array_free(turned);
        OK(mlxvk_slice(&row, pair[on], (int[]){ 7, 0 }, 2, (int[]){ 8, N }, 2, (int[]){ 1, 1 }, 2, s), s);
        OK(mlxvk_multiply(&pair[on], pair[on], row, s), s);
        mlxvk_array_free(row);
    }
    expect_same(pair);
}

/* Another stream still reads what this one would write into. */
static void test_two_streams(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    mlxvk_stream s = streams[ON], other = open_stream(devices[ON]);
    mlxvk_array x = { NULL }, sum = { NULL };
    OK(mlxvk_ones(&x, (int[]){ N }, 1, MLXVK_FLOAT32, s), s);
    OK(eval_one(x), s);
    OK(mlxvk_sum(&sum, x, false, other), other);
    OK(async_eval_one(sum), other);
    for (int i = 0; i < 4; i++) OK(mlxvk_negative(&x, x, s), s);
    OK(mlxvk_exp(&x, x, s), s);
    OK(async_eval_one(x), s);
    expect_floats(sum, (const float[]){ N }, 1, 0, 0, other);
    OK(mlxvk_sum(&x, x, false, other), other);
    expect_floats(x, (const float[]){ 2850325 }, 1, 1e-4, 0, other);
    mlxvk_array_free(x);
    mlxvk_array_free(sum);
    mlxvk_stream_free(other);
}

/* ---- fused nodes ---- */

static void test_fused(void **state)
{
    (void)state;
    const int shape[] = { 3, 64 };
    mlxvk_array pair[DEVICES] = { { NULL } }, sums[DEVICES] = { { NULL } };
    for (int on = 0; on < DEVICES; on++) {
        mlxvk_stream s = streams[on];
        struct rng r = { 11 };
        mlxvk_array a = random_floats(&r, shape, 2, on), b = random_floats(&r, shape, 2, on), silu = { NULL };
        uint64_t fused = stats_of(devices[on]).fused;
        OK(mlxvk_negative(&a, a, s), s);
        OK(mlxvk_negative(&b, b, s), s);
        OK(mlxvk_sigmoid(&silu, a, s), s);
        OK(mlxvk_multiply(&a, a, silu, s), s);
        mlxvk_array_free(silu);
        OK(mlxvk_multiply(&a, a, b, s), s);
        OK(mlxvk_square(&b, b, s), s);
        OK(mlxvk_add(&sums[on], a, b, s), s);
        OK(mlxvk_fast_rms_norm(&pair[on], sums[on], (mlxvk_array){ NULL }, 1e-5f, s), s);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
        OK(eval_one(pair[on]), s);
        assert_int_equal(stats_of(devices[on]).fused - fused, 5);
    }
    expect_same(pair);
    expect_same(sums);
}

/* ---- random programs: the same with the gate on and off ---- */

enum { LIVE = 6, ROWS = 12, COLS = 20 };

struct live { mlxvk_array array[LIVE]; };

/* One of the arrays, or a view with another layout. */
static mlxvk_array operand(struct rng *r, const struct live *l, mlxvk_stream s)
{
    mlxvk_array x = { NULL };
    OK(mlxvk_array_set(&x, l->array[random_int(r, 0, LIVE - 1)]), s);
    switch (random_int(r, 0, 7)) {
    case 0:
        OK(mlxvk_transpose(&x, x, s), s);
        OK(mlxvk_reshape(&x, x, (int[]){ ROWS, COLS }, 2, s), s);
        break;
    case 1: {
        int row = random_int(r, 0, ROWS - 1);
        OK(mlxvk_slice(&x, x, (int[]){ row, 0 }, 2, (int[]){ row + 1, COLS }, 2, (int[]){ 1, 1 }, 2, s), s);
        OK(mlxvk_broadcast_to(&x, x, (int[]){ ROWS, COLS }, 2, s), s);
        break;
    }
    case 2:
        OK(mlxvk_slice(&x, x, (int[]){ ROWS, COLS }, 2, (int[]){ -ROWS - 1, -COLS - 1 }, 2, (int[]){ -1, -1 }, 2, s), s);
        break;
    default: break;
    }
    return x;
}

static void random_step(struct rng *r, struct live *l, mlxvk_stream s)
{
    mlxvk_array x = operand(r, l, s), y = operand(r, l, s), z = { NULL };
    int to = random_int(r, 0, LIVE - 1);
    mlxvk_array *res = &l->array[to];
    switch (random_int(r, 0, 10)) {
    case 0: OK(mlxvk_abs(res, x, s), s); break;
    case 1: OK(mlxvk_sigmoid(res, x, s), s); break;
    case 2: OK(mlxvk_subtract(res, x, y, s), s); break;
    case 3: OK(mlxvk_maximum(res, x, y, s), s); break;
    case 4: OK(mlxvk_multiply(res, x, x, s), s); OK(mlxvk_sigmoid(res, *res, s), s); break;
    case 5: OK(mlxvk_softmax_axis(res, x, random_int(r, 0, 1), true, s), s); break;
    case 6: OK(mlxvk_fast_rms_norm(res, x, (mlxvk_array){ NULL }, 1e-3f, s), s); break;
    case 7: OK(mlxvk_cummax(res, x, random_int(r, 0, 1), random_chance(r, 50), true, s), s); break;
    case 8: OK(mlxvk_copy(res, x, s), s); break;
    case 9:
        OK(mlxvk_less(&z, x, y, s), s);
        OK(mlxvk_where(res, z, y, x, s), s);
        break;
    default:
        OK(mlxvk_astype(&z, x, MLXVK_FLOAT16, s), s);
        OK(mlxvk_astype(&z, z, MLXVK_BFLOAT16, s), s);
        OK(mlxvk_astype(res, z, MLXVK_FLOAT32, s), s);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    if (random_chance(r, 10)) OK(async_eval_one(*res), s);
}

static void test_random_programs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct live l[DEVICES];
        for (int on = 0; on < DEVICES; on++) {
            struct rng r = { seed };
            for (int i = 0; i < LIVE; i++) l[on].array[i] = random_floats(&r, (int[]){ ROWS, COLS }, 2, on);
            for (int i = 0; i < 60; i++) random_step(&r, &l[on], streams[on]);
        }
        for (int i = 0; i < LIVE; i++) expect_same((mlxvk_array[]){ l[OFF].array[i], l[ON].array[i] });
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_steps), cmocka_unit_test(test_kept_operand), cmocka_unit_test(test_kept_view),
        cmocka_unit_test(test_kept_buffer), cmocka_unit_test(test_other_positions), cmocka_unit_test(test_two_streams),
        cmocka_unit_test(test_fused), cmocka_unit_test(test_random_programs),
    };
    return run_group("donation", tests, set_up_both, tear_down_both);
}
