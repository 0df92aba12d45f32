/* A decoding step's fusion: norms and rope of a query and of its key, the writes of key and value into their caches, attention.
 * Each program runs some rounds, with all gates on and with that fusion off: the same results, the same caches, and fewer
 * dispatches where it applies. The programs to which it must not apply break what it assumes, one thing each. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const mlxvk_array NONE = { NULL };
static const char OFF[] = "MLX_VK_ENABLE_ROPE_SDPA=0";
enum { ROUNDS = 6, CAPACITY = 80 };

/* What a program does otherwise than the plain one; all 0: rope with base 10000, a weight for each norm, one query. */
struct step {
    const char *name;
    bool fuses;
    int heads, kv_heads, width, first;               /* first: keys that are there before the first round */
    mlxvk_dtype dtype;
    const char *gates;
    /* window: the eight last keys alone; back: the second half of rounds repeats; rotates: a cache that is full */
    bool no_norm, no_weight, freqs, window, back, rotates;
    bool traditional, part, other_place, other_row, masked, sinks, owned, wide_v, one_cache, other_eps, other_weight, positions, strided;
    int batch, queries;
};

#define FUSES(text) .name = text, .fuses = true
#define REFUSES(text) .name = text
#define SHAPE(h, kv, w, from, type) .heads = h, .kv_heads = kv, .width = w, .first = from, .dtype = MLXVK_##type
static const struct step steps[] = {
    { FUSES("as Qwen3 has it"), SHAPE(4, 2, 128, 5, BFLOAT16) },
    { FUSES("float32"), SHAPE(4, 2, 64, 5, FLOAT32) },
    { FUSES("float16, many heads for one of keys"), SHAPE(12, 1, 80, 5, FLOAT16) },
    { FUSES("wide, a key's head each"), SHAPE(3, 3, 256, 2, FLOAT32) },
    { FUSES("the first token"), SHAPE(4, 2, 64, 0, FLOAT32) },
    { FUSES("the first token, split if it could be"), SHAPE(4, 2, 64, 0, FLOAT32), .gates = "MLX_VK_SDPA_SPLIT_K=3" },
    { FUSES("keys in parts"), SHAPE(4, 2, 64, 40, FLOAT32), .gates = "MLX_VK_SDPA_SPLIT_K=5" },
    { FUSES("keys in parts, several workgroups a head"), SHAPE(10, 2, 64, 40, BFLOAT16), .gates = "MLX_VK_SDPA_SPLIT_K=3 MLX_VK_SDPA_DECODE_ROWS=2" },
    { FUSES("no norm"), SHAPE(4, 2, 64, 5, FLOAT32), .no_norm = true },
    { FUSES("norms without weights"), SHAPE(4, 2, 64, 5, FLOAT32), .no_weight = true },
    { FUSES("frequencies from an array"), SHAPE(4, 2, 64, 5, FLOAT32), .freqs = true },
    { FUSES("a window of keys"), SHAPE(4, 2, 64, 20, FLOAT32), .window = true },
    { FUSES("positions that come back"), SHAPE(4, 2, 64, 20, FLOAT32), .back = true },
    { FUSES("one place for all positions"), SHAPE(4, 2, 64, 20, FLOAT32), .rotates = true },
    { REFUSES("queries and keys of every second feature"), SHAPE(4, 2, 64, 5, FLOAT32), .no_norm = true, .strided = true },
    { REFUSES("pairs side by side"), SHAPE(4, 2, 64, 5, FLOAT32), .traditional = true },
    { REFUSES("rope of a part of the features"), SHAPE(4, 2, 64, 5, FLOAT32), .no_norm = true, .part = true },
    { REFUSES("a query from another place"), SHAPE(4, 2, 64, 5, FLOAT32), .other_place = true },
    { REFUSES("the key goes to the row before"), SHAPE(4, 2, 64, 5, FLOAT32), .other_row = true },
    { REFUSES("a mask"), SHAPE(4, 2, 64, 5, FLOAT32), .masked = true },
    { REFUSES("sinks"), SHAPE(4, 2, 64, 5, FLOAT32), .sinks = true },
    { REFUSES("the key is wanted, too"), SHAPE(4, 2, 64, 5, FLOAT32), .owned = true },
    { REFUSES("wider values"), SHAPE(4, 2, 64, 5, FLOAT32), .wide_v = true },
    { REFUSES("one cache for both"), SHAPE(4, 2, 64, 5, FLOAT32), .one_cache = true },
    { REFUSES("norms of two kinds"), SHAPE(4, 2, 64, 5, FLOAT32), .other_eps = true },
    { REFUSES("one norm without a weight"), SHAPE(4, 2, 64, 5, FLOAT32), .other_weight = true },
    { REFUSES("positions from an array"), SHAPE(4, 2, 64, 5, FLOAT32), .positions = true },
    { REFUSES("two sequences"), SHAPE(4, 2, 64, 5, FLOAT32), .batch = 2 },
    { REFUSES("two queries"), SHAPE(4, 2, 64, 5, FLOAT32), .queries = 2 },
};

struct run { const struct step *p; mlxvk_device device; mlxvk_stream s; mlxvk_array keys, values, freqs, sinks, mask, q_weight, k_weight; };

static int queries_of(const struct step *p) { return p->queries ? p->queries : 1; }
static int batch_of(const struct step *p) { return p->batch ? p->batch : 1; }

static struct run run_open(const struct step *p, bool on)
{
    struct run t = { .p = p };
    char gates[128];
    snprintf(gates, sizeof gates, "%s %s", p->gates ? p->gates : "", on ? "" : OFF);
    t.device = open_device(gates);
    t.s = open_stream(t.device);
    const int width = p->wide_v ? 2 * p->width : p->width, b = batch_of(p);
    t.keys = normals((int[]){ b, p->kv_heads, CAPACITY, p->width }, 4, p->dtype, 11, t.s);
    t.values = normals((int[]){ b, p->kv_heads, CAPACITY, width }, 4, p->dtype, 12, t.s);
    t.q_weight = normals((int[]){ p->width }, 1, p->dtype, 13, t.s);
    t.k_weight = normals((int[]){ p->width }, 1, p->dtype, 14, t.s);
    t.sinks = normals((int[]){ p->heads }, 1, p->dtype, 15, t.s);
    t.mask = normals((int[]){ CAPACITY }, 1, p->dtype, 16, t.s);
    t.freqs = normals((int[]){ p->width / 2 }, 1, MLXVK_FLOAT32, 17, t.s);
    OK(mlxvk_exp(&t.freqs, t.freqs, t.s), t.s);
    return t;
}

static void run_close(struct run *t)
{
    mlxvk_array *all[] = { &t->keys, &t->values, &t->freqs, &t->sinks, &t->mask, &t->q_weight, &t->k_weight };
    for (size_t i = 0; i < COUNT(all); i++) mlxvk_array_free(*all[i]);
    mlxvk_stream_free(t->s);
    mlxvk_device_free(t->device);
}

/* What a product would leave, (batch, queries, heads * width), by heads. */
static mlxvk_array drawn(struct run *t, int heads, int width, uint32_t seed, bool strided)
{
    const struct step *p = t->p;
    const int shape[] = { batch_of(p), queries_of(p), heads, strided ? 2 * width : width };
    mlxvk_array x = normals((int[]){ shape[0], shape[1], heads * shape[3] }, 3, p->dtype, seed, t->s);
    OK(mlxvk_reshape(&x, x, shape, 4, t->s), t->s);
    if (strided) OK(mlxvk_slice(&x, x, (int[]){ 0, 0, 0, 0 }, 4, shape, 4, (int[]){ 1, 1, 1, 2 }, 4, t->s), t->s);
    return x;
}

/* (batch, heads, queries, width) of that, with a norm of each head or without. */
static void split(struct run *t, mlxvk_array *x, const mlxvk_array *weight, float eps)
{
    const struct step *p = t->p;
    if (weight && !p->no_norm) OK(mlxvk_fast_rms_norm(x, *x, p->no_weight ? NONE : *weight, eps, t->s), t->s);
    OK(mlxvk_transpose_axes(x, *x, (int[]){ 0, 2, 1, 3 }, 4, t->s), t->s);
}

static void turn(struct run *t, mlxvk_array *x, int at)
{
    const struct step *p = t->p;
    const mlxvk_optional_float base = { 10000.0f, !p->freqs };
    const int dims = p->part ? p->width / 2 : p->width;
    if (!p->positions) {
        OK(mlxvk_fast_rope(x, *x, dims, p->traditional, base, 0.5f, at, p->freqs ? t->freqs : NONE, t->s), t->s);
        return;
    }
    mlxvk_array from = ints(t->device, (int32_t[]){ at }, NULL, 0);
    OK(mlxvk_fast_rope_dynamic(x, *x, dims, p->traditional, base, 0.5f, from, NONE, t->s), t->s);
    mlxvk_array_free(from);
}

/* Rows [at, at + queries) become `rows`, which then is the cache from `first` up to `end`. */
static void to_cache(struct run *t, mlxvk_array *cache, mlxvk_array *rows, int at, int first, int end)
{
    const int b = batch_of(t->p), heads = t->p->kv_heads, width = mlxvk_array_dim(*rows, 3), one[] = { 1, 1, 1, 1 };
    OK(mlxvk_slice_update(cache, *cache, *rows, (int[]){ 0, 0, at, 0 }, 4, (int[]){ b, heads, at + queries_of(t->p), width }, 4, one, 4,
                          t->s), t->s);
    OK(mlxvk_slice(rows, *cache, (int[]){ 0, 0, first, 0 }, 4, (int[]){ b, heads, end, width }, 4, one, 4, t->s), t->s);
}

/* One round: leaves the result, and where the key is wanted the key. */
static void round_of(struct run *t, int round, mlxvk_array res[2])
{
    const struct step *p = t->p;
    const int at = p->first + (p->rotates ? 0 : p->back ? round % 3 : round) * queries_of(p), position = at + (p->rotates ? round : 0), end = at + queries_of(p);
    const int first = p->window ? end - 8 : 0;
    mlxvk_array q, k, v, mask = NONE, *values = p->one_cache ? &t->keys : &t->values;
    q = drawn(t, p->heads, p->width, 100 + (uint32_t)round, p->strided);
    k = drawn(t, p->kv_heads, p->width, 200 + (uint32_t)round, p->strided);
    v = drawn(t, p->kv_heads, mlxvk_array_dim(t->values, 3), 300 + (uint32_t)round, false);
    split(t, &q, &t->q_weight, 1e-5f);
    split(t, &k, p->other_weight ? &NONE : &t->k_weight, p->other_eps ? 0.5f : 1e-5f);
    split(t, &v, NULL, 0);
    turn(t, &q, p->other_place ? position + 1 : position);
    turn(t, &k, position);
    if (p->owned) OK(mlxvk_array_set(&res[1], k), t->s);
    to_cache(t, &t->keys, &k, p->other_row ? at - 1 : at, first, end);
    to_cache(t, values, &v, p->one_cache ? CAPACITY - 1 : at, first, end);
    if (p->masked) OK(mlxvk_slice(&mask, t->mask, (int[]){ 0 }, 1, (int[]){ end - first }, 1, (int[]){ 1 }, 1, t->s), t->s);
    OK(mlxvk_fast_scaled_dot_product_attention(&res[0], q, k, v, 0.3f, p->masked ? "array" : queries_of(p) > 1 ? "causal" : "", mask,
                                               p->sinks ? t->sinks : NONE, t->s), t->s);
    mlxvk_array_free(q);
    mlxvk_array_free(k);
    mlxvk_array_free(v);
    mlxvk_array_free(mask);
}

/* Reads arrays as float32 behind each other, and frees those that a round left. */
static size_t read_all(struct run *t, const mlxvk_array *arrays, int count, float *to)
{
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        mlxvk_array x = NONE;
        if (!arrays[i].ctx) continue;
        OK(mlxvk_astype(&x, arrays[i], MLXVK_FLOAT32, t->s), t->s);
        OK(mlxvk_array_read(x, to + n, mlxvk_array_nbytes(x), t->s), t->s);
        n += mlxvk_array_size(x);
        mlxvk_array_free(x);
    }
    return n;
}

enum { ROOM = 1 << 18 };

static size_t run_step(const struct step *p, bool on, float *to, uint64_t *dispatches)
{
    struct run t = run_open(p, on);
    mlxvk_array res[ROUNDS][2] = { { { NULL } } };
    size_t n = 0;
    OK(mlxvk_synchronize(t.s), t.s);
    mlxvk_reset_stats(t.device);
    for (int i = 0; i < ROUNDS; i++) {
        round_of(&t, i, res[i]);
        OK(mlxvk_synchronize(t.s), t.s);
    }
    *dispatches = stats_of(t.device).dispatches;
    for (int i = 0; i < ROUNDS; i++) {
        n += read_all(&t, res[i], 2, to + n);
        for (int k = 0; k < 2; k++) mlxvk_array_free(res[i][k]);
    }
    n += read_all(&t, (mlxvk_array[]){ t.keys, t.values }, 2, to + n);
    assert_true(n <= ROOM);
    run_close(&t);
    return n;
}

static void test_steps(void **state)
{
    static float on[ROOM], off[ROOM];
    mlxvk_device own = open_device(NULL);
    size_t subgroups = 0;                            /* which the kernel needs */
    (void)state;
    OK_DEVICE(mlxvk_device_info_get_size(&subgroups, own, "subgroup"), own);
    mlxvk_device_free(own);
    for (size_t i = 0; i < COUNT(steps); i++) {
        const struct step *p = &steps[i];
        const double ulp = p->dtype == MLXVK_FLOAT32 ? 0x1p-18 : p->dtype == MLXVK_FLOAT16 ? 0x1p-9 : 0x1p-6;
        uint64_t fused, apart;
        size_t n = run_step(p, true, on, &fused);
        assert_int_equal(n, run_step(p, false, off, &apart));
        for (size_t k = 0; k < n; k++)
            if (!(fabs(on[k] - off[k]) <= ulp * fmax(1, fabs(off[k]))))
                fail_msg("%s: number %zu of %zu is %.9g in one and %.9g in steps", p->name, k, n, on[k], off[k]);
        if ((p->fuses && subgroups) != (fused < apart))
            fail_msg("%s: %llu dispatches, %llu with the fusion off", p->name, (unsigned long long)fused, (unsigned long long)apart);
        if (!p->fuses) assert_int_equal(fused, apart);
    }
}

/* A rope in front whose key goes to the row before: attention stands behind it as well, but its own query, key and value
 * are others, and one of these was recorded between the two. What is refused leaves every write where it was. */
static void test_refused_behind_other_rope(void **state)
{
    enum { WIDTH = 8, HEADS = 2, N = HEADS * 2 * WIDTH };
    const int one[] = { 1, 1, 1, 1 }, row[] = { 0, 0, 1, 0 }, stop[] = { 1, HEADS, 2, WIDTH };
    const mlxvk_optional_float base = { 10000.0f, true };
    float want[2][N], got[2][N];
    (void)state;
    for (int on = 0; on < 2; on++) {
        mlxvk_device device = open_device(on ? NULL : OFF);
        mlxvk_stream s = open_stream(device);
        mlxvk_array cache[2], x[4], earlier = NONE, res = NONE;
        for (int i = 0; i < 2; i++) cache[i] = normals((int[]){ 1, HEADS, 2, WIDTH }, 4, MLXVK_FLOAT32, 21 + (uint32_t)i, s);
        for (int i = 0; i < 4; i++) x[i] = normals((int[]){ 1, i ? HEADS : 4 * HEADS, 1, WIDTH }, 4, MLXVK_FLOAT32, 31 + (uint32_t)i, s);
        OK(mlxvk_synchronize(s), s);
        OK(mlxvk_fast_rope(&earlier, x[3], WIDTH, false, base, 1, 0, NONE, s), s);
        OK(mlxvk_slice_update(&cache[0], cache[0], earlier, (int[]){ 0, 0, 0, 0 }, 4, (int[]){ 1, HEADS, 1, WIDTH }, 4, one, 4, s), s);
        OK(mlxvk_slice_update(&cache[1], cache[1], x[2], row, 4, stop, 4, one, 4, s), s);
        for (int i = 0; i < 2; i++) OK(mlxvk_fast_rope(&x[i], x[i], WIDTH, false, base, 1, 1, NONE, s), s);
        OK(mlxvk_slice_update(&cache[0], cache[0], x[1], row, 4, stop, 4, one, 4, s), s);
        OK(mlxvk_fast_scaled_dot_product_attention(&res, x[0], cache[0], cache[1], 0.125f, "", NONE, NONE, s), s);
        for (int i = 0; i < 2; i++) mlxvk_array_free(x[i]);
        for (int i = 0; i < 2; i++) OK(mlxvk_array_read(cache[i], on ? got[i] : want[i], sizeof got[i], s), s);
        for (int i = 0; i < 2; i++) mlxvk_array_free(cache[i]);
        for (int i = 2; i < 4; i++) mlxvk_array_free(x[i]);
        mlxvk_array_free(earlier);
        mlxvk_array_free(res);
        mlxvk_stream_free(s);
        mlxvk_device_free(device);
    }
    assert_memory_equal(want, got, sizeof got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_steps, set_up_poisoned, tear_down),
        cmocka_unit_test_setup_teardown(test_refused_behind_other_rope, set_up_poisoned, tear_down),
    };
    return run_group("step", tests, NULL, NULL);
}
