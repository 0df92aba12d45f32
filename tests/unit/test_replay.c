/* Windows of the tape that come again are encoded from plans kept: the same results as without, bit for bit, whatever changes
 * from one time to the next, and fewer decisions. Each program runs some rounds on two devices, one of which keeps nothing. */
#include "support.h"

#include <math.h>
#include <stdio.h>

static const mlxvk_optional_float BASE = { 10000.0f, true };
static const mlxvk_array NONE = { NULL };
enum { ROUNDS = 14, WIDTH = 64, LENGTH = 32, RESULTS = 3 };

struct run { mlxvk_device device; mlxvk_stream s; mlxvk_array cache, values, weight, x, kept; int round; };

static mlxvk_array normal(struct run *t, const int *shape, int ndim, uint32_t seed)
{
    return normals(shape, ndim, MLXVK_FLOAT32, seed, t->s);
}

static mlxvk_array number(struct run *t, float value)
{
    mlxvk_array a = mlxvk_array_new();
    OK_DEVICE(mlxvk_array_new_data_device(&a, &value, NULL, 0, MLXVK_FLOAT32, t->device), t->device);
    return a;
}

/* ---- the programs: a round each, which leaves up to two results ---- */

/* A step of attention: rope at a position, a write into the cache, keys from there or from the cache's begin up to it. */
static void decode_at(struct run *t, mlxvk_array *res, int at, int first, mlxvk_array mask, const char *mode)
{
    mlxvk_array k = mlxvk_array_new(), keys = mlxvk_array_new(), scale = number(t, 1 + 0.125f * (float)t->round);
    OK(mlxvk_multiply(&k, t->x, scale, t->s), t->s);
    OK(mlxvk_fast_rms_norm(&k, k, t->weight, 1e-6f, t->s), t->s);
    OK(mlxvk_fast_rope(&k, k, WIDTH, false, BASE, 1, at, NONE, t->s), t->s);
    OK(mlxvk_slice_update(&t->cache, t->cache, k, (int[]){ 0, 0, at, 0 }, 4, (int[]){ 1, 2, at + 1, WIDTH }, 4, (int[]){ 1, 1, 1, 1 }, 4,
                          t->s), t->s);
    OK(mlxvk_slice(&keys, t->cache, (int[]){ 0, 0, first, 0 }, 4, (int[]){ 1, 2, at + 1, WIDTH }, 4, (int[]){ 1, 1, 1, 1 }, 4, t->s), t->s);
    OK(mlxvk_fast_scaled_dot_product_attention(&res[0], k, keys, keys, 0.125f, mode, mask, NONE, t->s), t->s);
    mlxvk_array_free(k);
    mlxvk_array_free(keys);
    mlxvk_array_free(scale);
}

static void decode(struct run *t, mlxvk_array *res) { decode_at(t, res, 3 + t->round, 0, NONE, ""); }

/* Longer, and as long as it was before: the plan that was kept first must not come back with what was adopted since. */
static void decode_again(struct run *t, mlxvk_array *res) { decode_at(t, res, 3 + t->round % 5, 0, NONE, ""); }

/* A window of keys that moves, and begins anew. */
static void decode_window(struct run *t, mlxvk_array *res)
{
    int at = 8 + t->round % 9;
    decode_at(t, res, at, at - 6, NONE, "");
}

/* A decoding step, which is one dispatch: the query and its key at a position, the key and its value in a row of caches. */
static void step_at(struct run *t, mlxvk_array *res, int position, int row, int first)
{
    mlxvk_array in[3], *cache[2] = { &t->cache, &t->values };
    const int one[] = { 1, 1, 1, 1 };
    for (int i = 0; i < 3; i++) {
        in[i] = number(t, (float)(1 + i) + 0.125f * (float)t->round);
        OK(mlxvk_multiply(&in[i], t->x, in[i], t->s), t->s);
    }
    for (int i = 0; i < 2; i++) OK(mlxvk_fast_rms_norm(&in[i], in[i], t->weight, 1e-6f, t->s), t->s);
    for (int i = 0; i < 2; i++) OK(mlxvk_fast_rope(&in[i], in[i], WIDTH, false, BASE, 1, position, NONE, t->s), t->s);
    for (int i = 0; i < 2; i++) {
        OK(mlxvk_slice_update(cache[i], *cache[i], in[1 + i], (int[]){ 0, 0, row, 0 }, 4, (int[]){ 1, 2, row + 1, WIDTH }, 4, one, 4,
                              t->s), t->s);
        OK(mlxvk_slice(&in[1 + i], *cache[i], (int[]){ 0, 0, first, 0 }, 4, (int[]){ 1, 2, row + 1, WIDTH }, 4, one, 4, t->s), t->s);
    }
    OK(mlxvk_fast_scaled_dot_product_attention(&res[0], in[0], in[1], in[2], 0.125f, "", NONE, NONE, t->s), t->s);
    for (int i = 0; i < 3; i++) mlxvk_array_free(in[i]);
}
static void step(struct run *t, mlxvk_array *res) { step_at(t, res, 5 + 3 * t->round, 3 + t->round, 0); }
static void step_again(struct run *t, mlxvk_array *res) { step_at(t, res, 3 + t->round % 5, 3 + t->round % 5, 0); }
static void step_window(struct run *t, mlxvk_array *res) { step_at(t, res, t->round, 8 + t->round % 9, 2 + t->round % 9); }
static void step_in_place(struct run *t, mlxvk_array *res) { step_at(t, res, 3 * t->round, 9, 0); }
static void step_refused(struct run *t, mlxvk_array *res) { step_at(t, res, t->round, 9, t->round % 6 == 5 ? 9 : 0); }

/* The mask has the binding where late words would be. */
static void decode_masked(struct run *t, mlxvk_array *res)
{
    mlxvk_array mask = mlxvk_array_new();
    OK(mlxvk_slice(&mask, t->weight, (int[]){ 0 }, 1, (int[]){ 10 }, 1, (int[]){ 1 }, 1, t->s), t->s);
    decode_at(t, res, 9, 0, mask, "array");
    mlxvk_array_free(mask);
}

/* Positions from an array, which has the binding where late words would be. */
static void positions(struct run *t, mlxvk_array *res)
{
    mlxvk_array y = mlxvk_array_new();
    OK(mlxvk_fast_rope_dynamic(&y, t->x, WIDTH, true, BASE, 1, t->kept, NONE, t->s), t->s);
    OK(mlxvk_slice_update(&t->cache, t->cache, y, (int[]){ 0, 0, t->round, 0 }, 4, (int[]){ 1, 2, t->round + 1, WIDTH }, 4,
                          (int[]){ 1, 1, 1, 1 }, 4, t->s), t->s);
    OK(mlxvk_sum_axis(&res[0], t->cache, 2, false, t->s), t->s);
    mlxvk_array_free(y);
}

/* Rows of several dtypes written at one place, then further and further, whole ones and pieces, also from what lies across. */
static void writes(struct run *t, mlxvk_array *res)
{
    static const struct { mlxvk_dtype dtype; int width, part; } rows[RESULTS] = { { MLXVK_UINT8, 256, 5 }, { MLXVK_INT64, 32, 32 },
                                                                               { MLXVK_BFLOAT16, 128, 128 } };
    for (int i = 0; i < RESULTS; i++) {
        int at = t->round < 7 ? 2 : (3 * t->round + i) % 24, n = rows[i].part;
        mlxvk_array to = mlxvk_array_new(), from = mlxvk_array_new();
        OK(mlxvk_zeros(&to, (int[]){ 28, rows[i].width }, 2, rows[i].dtype, t->s), t->s);
        OK(mlxvk_arange(&from, t->round, t->round + 4 * n, 1, rows[i].dtype, t->s), t->s);
        OK(mlxvk_reshape(&from, from, i == 1 ? (int[]){ n, 4 } : (int[]){ 4, n }, 2, t->s), t->s);
        if (i == 1) OK(mlxvk_transpose(&from, from, t->s), t->s);
        OK(mlxvk_slice_update(&to, to, from, (int[]){ at, 0 }, 2, (int[]){ at + 4, n }, 2, (int[]){ 1, 1 }, 2, t->s), t->s);
        OK(mlxvk_astype(&to, to, MLXVK_FLOAT32, t->s), t->s);
        OK(mlxvk_sum_axis(&res[i], to, 1, false, t->s), t->s);
        mlxvk_array_free(to);
        mlxvk_array_free(from);
    }
}

/* Narrow rows written at one place, then further and further: several of them begin where the same binding does. */
static void narrow_writes(struct run *t, mlxvk_array *res)
{
    int at = t->round < 7 ? 2 : t->round < 10 ? 3 : t->round;
    mlxvk_array to = mlxvk_array_new(), from = mlxvk_array_new();
    OK(mlxvk_zeros(&to, (int[]){ ROUNDS, 2 }, 2, MLXVK_FLOAT16, t->s), t->s);
    OK(mlxvk_arange(&from, 1 + t->round, 3 + t->round, 1, MLXVK_FLOAT16, t->s), t->s);
    OK(mlxvk_slice_update(&to, to, from, (int[]){ at, 0 }, 2, (int[]){ at + 1, 2 }, 2, (int[]){ 1, 1 }, 2, t->s), t->s);
    OK(mlxvk_astype(&res[0], to, MLXVK_FLOAT32, t->s), t->s);
    mlxvk_array_free(to);
    mlxvk_array_free(from);
}

/* Intermediates that somebody holds in some rounds only, so that what may be fused and dropped changes. */
static void owned_now_and_then(struct run *t, mlxvk_array *res)
{
    mlxvk_array g = mlxvk_array_new(), y = mlxvk_array_new();
    OK(mlxvk_sigmoid(&g, t->x, t->s), t->s);
    OK(mlxvk_multiply(&y, t->x, g, t->s), t->s);
    if (t->round % 3 == 2) res[1] = g;
    else mlxvk_array_free(g);
    OK(mlxvk_multiply(&res[0], y, t->x, t->s), t->s);
    mlxvk_array_free(y);
}

/* Views that begin elsewhere each time, aligned and not, and once have another layout. */
static void moving_views(struct run *t, mlxvk_array *res)
{
    int from = t->round % 4 * (t->round > 4 ? 3 : 4), step = t->round % 7 == 6 ? 2 : 1;
    mlxvk_array part = mlxvk_array_new(), row = mlxvk_array_new();
    OK(mlxvk_slice(&part, t->cache, (int[]){ 0, 0, from, 0 }, 4, (int[]){ 1, 2, from + 4 * step, WIDTH }, 4, (int[]){ 1, 1, step, 1 }, 4,
                   t->s), t->s);
    OK(mlxvk_slice(&row, t->weight, (int[]){ t->round }, 1, (int[]){ t->round + 16 }, 1, (int[]){ 1 }, 1, t->s), t->s);
    OK(mlxvk_softmax_axis(&part, part, -1, true, t->s), t->s);
    OK(mlxvk_sum_axis(&res[0], part, 2, false, t->s), t->s);
    OK(mlxvk_exp(&res[1], row, t->s), t->s);
    mlxvk_array_free(part);
    mlxvk_array_free(row);
}

/* x changes in place: from operands elsewhere, then from itself through views that come nearer until they overlap. */
static void in_place(struct run *t, mlxvk_array *res)
{
    int from = t->round < 3 ? 0 : t->round, to = 12;
    mlxvk_array part = mlxvk_array_new();
    OK(mlxvk_slice(&part, t->cache, (int[]){ 0, 0, from, 0 }, 4, (int[]){ 1, 2, from + 8, WIDTH }, 4, (int[]){ 1, 1, 1, 1 }, 4, t->s), t->s);
    OK(mlxvk_fast_rope(&part, part, WIDTH, true, BASE, 1, t->round, NONE, t->s), t->s);
    OK(mlxvk_slice_update(&t->cache, t->cache, part, (int[]){ 0, 0, to, 0 }, 4, (int[]){ 1, 2, to + 8, WIDTH }, 4, (int[]){ 1, 1, 1, 1 }, 4,
                          t->s), t->s);
    mlxvk_array_free(part);
    OK(mlxvk_array_set(&res[0], t->cache), t->s);
}

/* Keys of random numbers and scalars that kernels get as they are pushed. */
static void literals(struct run *t, mlxvk_array *res)
{
    mlxvk_array key = mlxvk_array_new(), noise = mlxvk_array_new(), a = number(t, (float)t->round), b = number(t, 0.5f);
    OK_DEVICE(mlxvk_array_new_data_device(&key, (uint32_t[]){ 7, (uint32_t)t->round }, (int[]){ 2 }, 1, MLXVK_UINT32, t->device), t->device);
    OK(mlxvk_random_normal(&noise, (int[]){ 4, WIDTH }, 2, MLXVK_FLOAT32, 0, 1, key, t->s), t->s);
    OK(mlxvk_multiply(&noise, noise, b, t->s), t->s);
    OK(mlxvk_add(&noise, noise, a, t->s), t->s);
    OK(mlxvk_tanh(&res[0], noise, t->s), t->s);
    mlxvk_array_free(key);
    mlxvk_array_free(noise);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
}

/* Samples by another key each time, of logits that are scaled by another number, in one dispatch. */
static void samples(struct run *t, mlxvk_array *res)
{
    mlxvk_array key = mlxvk_array_new(), x = mlxvk_array_new(), less = number(t, 0.5f * (float)t->round),
                times = number(t, 1 + 0.125f * (float)t->round);
    OK_DEVICE(mlxvk_array_new_data_device(&key, (uint32_t[]){ 9, (uint32_t)t->round }, (int[]){ 2 }, 1, MLXVK_UINT32, t->device), t->device);
    OK(mlxvk_reshape(&x, t->x, (int[]){ 2 * WIDTH }, 1, t->s), t->s);
    OK(mlxvk_subtract(&x, x, less, t->s), t->s);
    OK(mlxvk_multiply(&x, x, times, t->s), t->s);
    OK(mlxvk_random_categorical_num_samples(&res[0], x, -1, 5, key, t->s), t->s);
    mlxvk_array_free(key);
    mlxvk_array_free(x);
    mlxvk_array_free(less);
    mlxvk_array_free(times);
}

/* The same operations on other sizes in turn. */
static void sizes(struct run *t, mlxvk_array *res)
{
    int rows = 4 + t->round % 2;
    mlxvk_array part = mlxvk_array_new(), w = mlxvk_array_new();
    OK(mlxvk_slice(&part, t->cache, (int[]){ 0, 0, 0, 0 }, 4, (int[]){ 1, 2, rows, WIDTH }, 4, (int[]){ 1, 1, 1, 1 }, 4, t->s), t->s);
    OK(mlxvk_transpose_axes(&w, t->cache, (int[]){ 0, 1, 3, 2 }, 4, t->s), t->s);
    OK(mlxvk_matmul(&part, part, w, t->s), t->s);
    OK(mlxvk_fast_rms_norm(&res[0], part, NONE, 1e-6f, t->s), t->s);
    mlxvk_array_free(part);
    mlxvk_array_free(w);
}

/* At rest: all that a round makes, it drops. */
static void at_rest(struct run *t, mlxvk_array *res)
{
    mlxvk_array y = mlxvk_array_new(), z = mlxvk_array_new();
    OK(mlxvk_softmax_axis(&y, t->cache, -1, true, t->s), t->s);
    for (int i = 0; i < 6; i++) {
        OK(mlxvk_cumsum(&z, y, 2, i & 1, true, t->s), t->s);
        OK(mlxvk_softmax_axis(&y, z, i & 1 ? 2 : 3, true, t->s), t->s);
    }
    OK(mlxvk_slice_update_add(&t->cache, t->cache, y, (int[]){ 0, 0, 0, 0 }, 4, (int[]){ 1, 2, LENGTH, WIDTH }, 4, (int[]){ 1, 1, 1, 1 },
                              4, t->s), t->s);
    OK(mlxvk_sum(&res[0], t->cache, false, t->s), t->s);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
}

/* least: nodes that are replayed, of all rounds; recorded: dispatches that were recorded before, where all may be. */
static const struct { const char *name; void (*run)(struct run *t, mlxvk_array *res); uint64_t least, recorded; } programs[] = {
    { "a step of attention", decode, 5 * (ROUNDS - 3), 3 * (ROUNDS - 5) },
    { "attention as long as before", decode_again, 5 * (ROUNDS - 3), 3 * (ROUNDS - 5) },
    { "attention to a window", decode_window, 5 * (ROUNDS - 3), 3 * (ROUNDS - 7) },
    { "a decoding step", step, 10 * (ROUNDS - 3), 4 * (ROUNDS - 5) },
    { "a decoding step as long as before", step_again, 10 * (ROUNDS - 3), 4 * (ROUNDS - 5) },
    { "a decoding step in a window", step_window, 10 * (ROUNDS - 3), 4 * (ROUNDS - 7) },
    { "decoding steps in one row", step_in_place, 10 * (ROUNDS - 3), 4 * (ROUNDS - 5) },
    { "decoding steps of two lengths", step_refused, 1, 0 },
    { "attention with a mask", decode_masked, 1, 0 },
    { "positions from an array", positions, 1, 0 },
    { "rows of several dtypes", writes, 1, ROUNDS },
    { "narrow rows", narrow_writes, 1, ROUNDS },
    { "results owned now and then", owned_now_and_then, 1, 0 },
    { "views that move", moving_views, 1, 0 },
    { "in place, nearer and nearer", in_place, 1, 0 },
    { "literals", literals, 0, 0 },
    { "samples of scaled logits", samples, 3 * (ROUNDS - 3), 0 },
    { "two sizes in turn", sizes, 1, 0 },
    { "the same memory", at_rest, 14 * (ROUNDS - 3), 14 * (ROUNDS - 4) },
};

/* All rounds' results, one behind the other, and the device's statistics. */
static size_t results_of(size_t program, const char *gates, float *values, size_t room, mlxvk_stats *stats)
{
    struct run t = { .round = 0 };
    size_t count = 0;
    t.device = open_device(gates);
    t.s = open_stream(t.device);
    t.cache = normal(&t, (int[]){ 1, 2, LENGTH, WIDTH }, 4, 1);
    t.values = normal(&t, (int[]){ 1, 2, LENGTH, WIDTH }, 4, 4);
    t.weight = normal(&t, (int[]){ WIDTH }, 1, 2);
    t.x = normal(&t, (int[]){ 1, 2, 1, WIDTH }, 4, 3);
    t.kept = mlxvk_array_new();
    OK_DEVICE(mlxvk_array_new_data_device(&t.kept, (int[]){ 17 }, (int[]){ 1 }, 1, MLXVK_INT32, t.device), t.device);
    OK(mlxvk_synchronize(t.s), t.s);
    mlxvk_reset_stats(t.device);                      /* other programs had the device before */
    for (; t.round < ROUNDS; t.round++) {
        mlxvk_array res[RESULTS] = { { NULL } };
        programs[program].run(&t, res);
        for (int k = 0; k < RESULTS; k++) {
            if (!res[k].ctx) continue;
            assert_true(count + mlxvk_array_size(res[k]) <= room);
            OK(mlxvk_array_read(res[k], values + count, mlxvk_array_nbytes(res[k]), t.s), t.s);
            count += mlxvk_array_size(res[k]);
            mlxvk_array_free(res[k]);
        }
    }
    *stats = stats_of(t.device);
    mlxvk_array_free(t.cache);
    mlxvk_array_free(t.values);
    mlxvk_array_free(t.weight);
    mlxvk_array_free(t.x);
    mlxvk_array_free(t.kept);
    mlxvk_stream_free(t.s);
    mlxvk_device_free(t.device);
    return count;
}

static void test_programs(void **state)
{
    /* Steps recorded each time; recorded for good from one on; the same with submissions in the middle of what is recorded; short windows. */
#define DRAWN "MLX_VK_ENABLE_SCALED_CATEGORICAL=2 "
    static const char *const ways[] = { DRAWN "MLX_VK_REPLAY_SEGMENT=-1", DRAWN "MLX_VK_REPLAY_SEGMENT=1",
                                        DRAWN "MLX_VK_REPLAY_SEGMENT=2 MLX_VK_MAX_OPS_PER_BUFFER=2 MLX_VK_MAX_MB_PER_BUFFER=1",
                                        DRAWN "MLX_VK_REPLAY_SEGMENT=1 MLX_VK_WINDOW=1" };
    static float on[ROUNDS * 2 * LENGTH * WIDTH * 2], off[COUNT(on)];
    (void)state;
    for (size_t i = 0; i < COUNT(programs); i++) {
        mlxvk_stats replayed, none;
        size_t n = results_of(i, "MLX_VK_ENABLE_REPLAY=0", off, COUNT(off), &none);
        assert_int_equal(none.replayed, 0);
        for (size_t way = 0; way < COUNT(ways); way++) {
            for (size_t k = 0; k < COUNT(on); k++) on[k] = NAN;
            assert_int_equal(n, results_of(i, ways[way], on, COUNT(on), &replayed));
            if (replayed.replayed < programs[i].least)
                fail_msg("%s, %s: %llu nodes were replayed", programs[i].name, ways[way], (unsigned long long)replayed.replayed);
            if (strstr(ways[way], "-1")) assert_int_equal(replayed.recorded, 0);
            /* descriptor sets: the device pushes none, and nothing can be recorded for good */
            else if (way == 1 && !replayed.descriptor_sets && replayed.recorded < programs[i].recorded)
                fail_msg("%s: %llu dispatches were recorded before, of %llu", programs[i].name, (unsigned long long)replayed.recorded,
                         (unsigned long long)replayed.dispatches);
            for (size_t k = 0; k < n; k++)
                if (memcmp(&on[k], &off[k], sizeof *on))
                    fail_msg("%s, %s: element %zu is %.9g replayed and %.9g planned", programs[i].name, ways[way], k, on[k], off[k]);
        }
    }
#undef DRAWN
}

/* The same round again and again, its intermediate result owned by nobody. */
static void test_same_round(void **state)
{
    struct run t = { .round = 0 };
    float got[2 * WIDTH], want[2 * WIDTH];
    (void)state;
    t.device = open_device(NULL);
    t.s = open_stream(t.device);
    t.x = normal(&t, (int[]){ 2, WIDTH }, 2, 3);
    for (int i = 0; i < 8; i++) {
        mlxvk_array y = mlxvk_array_new(), z = mlxvk_array_new();
        OK(mlxvk_square(&y, t.x, t.s), t.s);
        OK(mlxvk_fast_rms_norm(&z, y, NONE, 1e-6f, t.s), t.s);
        mlxvk_array_free(y);
        OK(mlxvk_array_read(z, i ? got : want, sizeof got, t.s), t.s);
        if (i) assert_memory_equal(got, want, sizeof got);
        mlxvk_array_free(z);
    }
    assert_true(stats_of(t.device).replayed > 0);
    mlxvk_array_free(t.x);
    mlxvk_stream_free(t.s);
    mlxvk_device_free(t.device);
}

/* ---- links: recorded products that wait for those in front of them, see links.glsl ---- */

/* Products of one row in a row, each of the last one's result. scan: in front of which one a running sum comes between;
 * early: which one has the last result for its scales, too, which it reads before it waits; -1: none. norm: in front of
 * product `early` the row is RMS-normalised, NORM_ITSELF with itself for the norm's weight, which is read before the wait
 * instead of scales. pairs: a second product of the same row beside each but the last, all of which are added up in the
 * end, in one kernel that the gate CHAINS makes at once. linked: how many of the steps wait: the first has nothing to wait
 * for, and what comes behind the last relies on a barrier in front of it. */
#define LINK_GATES "MLX_VK_REPLAY_SEGMENT=2 MLX_VK_ENABLE_CHAINS=2"
enum { LINK_K = 64, LINK_ROUNDS = 12, LINK_PRODUCTS = 6 };
enum link_norm { NORM_NONE, NORM_SCALES, NORM_ITSELF };
static const struct link_case { const char *name; int scan, early; enum link_norm norm; bool pairs; uint64_t steps, linked; }
link_cases[] = {
    { "products", -1, -1, NORM_NONE, false, LINK_PRODUCTS, LINK_PRODUCTS - 2 },
    { "products and a running sum", 3, -1, NORM_NONE, false, LINK_PRODUCTS + 1, LINK_PRODUCTS - 3 },
    { "a product whose scales are the last one's result", -1, 2, NORM_NONE, false, LINK_PRODUCTS, LINK_PRODUCTS - 3 },
    { "a product behind a norm", -1, 2, NORM_SCALES, false, LINK_PRODUCTS, LINK_PRODUCTS - 2 },
    { "a norm whose weight is the last result", -1, 2, NORM_ITSELF, false, LINK_PRODUCTS, LINK_PRODUCTS - 3 },
    { "products side by side", -1, -1, NORM_NONE, true, 2 * LINK_PRODUCTS, 2 * LINK_PRODUCTS - 2 },
};
/* sets: products side by side are one dispatch, and a norm's weight is read before the wait. */
static const struct link_kernel { const char *name, *gates; mlxvk_dtype type; bool sets; } link_kernels[] = {
    { "qmv_held", "MLX_VK_QMM_KERNEL=5", MLXVK_BFLOAT16, true },
    { "qmv_matrix_bf16", "MLX_VK_QMM_KERNEL=6", MLXVK_BFLOAT16, false },
    { "qmv_matrix_f16", "MLX_VK_QMM_KERNEL=6", MLXVK_FLOAT16, false },
};

static void link_round(const struct link_case *c, mlxvk_array x, const mlxvk_array w[4], uint16_t *values, mlxvk_stream s)
{
    const mlxvk_optional_int none = { 0, false };
    mlxvk_array y = mlxvk_array_new(), scales = mlxvk_array_new(), weight = mlxvk_array_new();
    mlxvk_array more[LINK_PRODUCTS - 1] = { { NULL } };
    OK(mlxvk_array_set(&y, x), s);
    for (int i = 0; i < LINK_PRODUCTS; i++) {
        if (c->pairs && i + 1 < LINK_PRODUCTS)
            OK(mlxvk_quantized_matmul(&more[i], y, w[3], w[1], w[2], true, none, none, "affine", s), s);
        if (i == c->scan) OK(mlxvk_cumsum(&y, y, 1, false, true, s), s);
        const bool early = i == c->early;
        if (early && !c->norm) OK(mlxvk_reshape(&scales, y, (int[]){ LINK_K, 1 }, 2, s), s);
        if (early && c->norm) {
            OK(mlxvk_reshape(&weight, c->norm == NORM_ITSELF ? y : w[1], (int[]){ LINK_K }, 1, s), s);
            OK(mlxvk_fast_rms_norm(&y, y, weight, 1e-6f, s), s);
        }
        OK(mlxvk_quantized_matmul(&y, y, w[0], early && !c->norm ? scales : w[1], w[2], true, none, none, "affine", s), s);
    }
    for (int i = 0; c->pairs && i + 1 < LINK_PRODUCTS; i++) OK(mlxvk_add(&y, y, more[i], s), s);
    OK(mlxvk_array_read(y, values, mlxvk_array_nbytes(y), s), s);
    mlxvk_array_free(y);
    mlxvk_array_free(scales);
    mlxvk_array_free(weight);
    for (int i = 0; i + 1 < LINK_PRODUCTS; i++) mlxvk_array_free(more[i]);
}

static mlxvk_stats linked_rounds(const struct link_case *c, mlxvk_dtype type, const char *gates,
                                 uint16_t values[LINK_ROUNDS][LINK_K])
{
    mlxvk_device d = open_device(gates);
    mlxvk_stream s = open_stream(d);
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    mlxvk_array x = normals((int[]){ 1, LINK_K }, 2, type, 5, s), w[4], nothing = { NULL };
    mlxvk_array plain = normals((int[]){ LINK_K, LINK_K }, 2, type, 6, s);
    OK(mlxvk_quantize(&parts, plain, (mlxvk_optional_int){ 0, false }, (mlxvk_optional_int){ 0, false }, "affine", nothing, s), s);
    for (size_t i = 0; i < 3; i++) {
        w[i] = mlxvk_array_new();
        OK(mlxvk_vector_array_get(&w[i], parts, i), s);
    }
    w[3] = mlxvk_array_new();                           /* other codes */
    OK(mlxvk_bitwise_invert(&w[3], w[0], s), s);
    OK(mlxvk_array_eval(w[3]), s);
    OK(mlxvk_synchronize(s), s);
    mlxvk_reset_stats(d);
    for (int i = 0; i < LINK_ROUNDS; i++) {
        memset(values[i], 0xff, sizeof values[i]);
        link_round(c, x, w, values[i], s);
    }
    mlxvk_stats stats = stats_of(d);
    for (int i = 0; i < 4; i++) mlxvk_array_free(w[i]);
    mlxvk_array_free(x);
    mlxvk_array_free(plain);
    mlxvk_vector_array_free(parts);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    return stats;
}

static void compare_links(const struct link_case *c, const struct link_kernel *k)
{
    static uint16_t on[LINK_ROUNDS][LINK_K], off[LINK_ROUNDS][LINK_K];
    char with[128], without[128];
    mlxvk_stats none, stats;
    snprintf(with, sizeof with, "%s " LINK_GATES " MLX_VK_ENABLE_LINKS=2", k->gates);
    snprintf(without, sizeof without, "%s " LINK_GATES " MLX_VK_ENABLE_LINKS=0", k->gates);
    none = linked_rounds(c, k->type, without, off);
    stats = linked_rounds(c, k->type, with, on);
    assert_int_equal(none.linked, 0);
    for (int i = 0; i < LINK_ROUNDS; i++) {
        assert_memory_equal(off[i], off[0], sizeof off[i]);
        assert_memory_equal(on[i], off[0], sizeof on[i]);
    }
    /* Nothing is recorded where descriptors are not pushed; other kernels, without what these need, are not linked. */
    if (!stats.recorded || !dispatches_of(with, k->name) || (c->pairs && k->sets) || (c->norm && !k->sets)) return;
    if (stats.linked * c->steps != stats.recorded * c->linked)
        fail_msg("%s, %s: %llu of %llu recorded steps are linked, not %llu of %llu", c->name, k->name,
                 (unsigned long long)stats.linked, (unsigned long long)stats.recorded, (unsigned long long)c->linked,
                 (unsigned long long)c->steps);
}

static void test_links(void **state)
{
    (void)state;
    skip_if_validating();
    for (size_t k = 0; k < COUNT(link_kernels); k++)
        for (size_t i = 0; i < COUNT(link_cases); i++) compare_links(&link_cases[i], &link_kernels[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_programs), cmocka_unit_test(test_same_round),
                                        cmocka_unit_test(test_links) };
    return run_group("replay", tests, NULL, NULL);
}
