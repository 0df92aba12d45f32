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
    /* what begins at an odd element */
    enum odd { EVEN, ODD_Q, ODD_K, ODD_V, ODD_Q_WEIGHT, ODD_K_WEIGHT, ODD_HEADS } odd;
    int room;                                        /* rows of the caches; 0: CAPACITY */
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
    { FUSES("a query at an odd element of 32 bits"), SHAPE(4, 2, 64, 5, FLOAT32), .odd = ODD_Q },
    { FUSES("a norm's weight at an odd element of 32 bits"), SHAPE(4, 2, 64, 5, FLOAT32), .odd = ODD_K_WEIGHT },
    { REFUSES("a query at an odd element"), SHAPE(4, 2, 64, 5, BFLOAT16), .odd = ODD_Q },
    { REFUSES("a key at an odd element"), SHAPE(4, 2, 64, 5, FLOAT16), .odd = ODD_K },
    { REFUSES("a value at an odd element"), SHAPE(4, 2, 64, 5, BFLOAT16), .odd = ODD_V },
    { REFUSES("the query's weight at an odd element"), SHAPE(4, 2, 64, 5, FLOAT16), .odd = ODD_Q_WEIGHT },
    { REFUSES("the key's weight at an odd element"), SHAPE(4, 2, 64, 5, BFLOAT16), .odd = ODD_K_WEIGHT },
    { REFUSES("heads that begin at odd elements"), SHAPE(4, 2, 64, 5, BFLOAT16), .no_norm = true, .odd = ODD_HEADS },
    { REFUSES("queries and keys of every second feature"), SHAPE(4, 2, 64, 5, FLOAT32), .no_norm = true, .strided = true },
    { FUSES("halves that are no eights, without a norm"), SHAPE(4, 2, 72, 5, FLOAT32), .no_norm = true },
    { REFUSES("a norm of halves that are no eights"), SHAPE(4, 2, 72, 5, FLOAT32) },
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

struct run {
    const struct step *p;
    char gates[256];
    mlxvk_device device;
    mlxvk_stream s;
    mlxvk_array keys, values, freqs, sinks, mask, q_weight, k_weight;
};

static int queries_of(const struct step *p) { return p->queries ? p->queries : 1; }
static int batch_of(const struct step *p) { return p->batch ? p->batch : 1; }
static int room_of(const struct step *p) { return p->room ? p->room : CAPACITY; }

/* The same, but from an element that is an odd one. */
static mlxvk_array odd_normals(int count, mlxvk_dtype dtype, uint32_t seed, mlxvk_stream s)
{
    mlxvk_array x = normals((int[]){ count + 1 }, 1, dtype, seed, s);
    OK(mlxvk_slice(&x, x, (int[]){ 1 }, 1, (int[]){ count + 1 }, 1, (int[]){ 1 }, 1, s), s);
    return x;
}

static mlxvk_array weight_of(const struct step *p, uint32_t seed, bool odd, mlxvk_stream s)
{
    return odd ? odd_normals(p->width, p->dtype, seed, s) : normals((int[]){ p->width }, 1, p->dtype, seed, s);
}

static struct run run_open(const struct step *p, bool on)
{
    struct run t = { .p = p };
    snprintf(t.gates, sizeof t.gates, "%s %s", p->gates ? p->gates : "", on ? "" : OFF);
    t.device = open_device(t.gates);
    t.s = open_stream(t.device);
    const int width = p->wide_v ? 2 * p->width : p->width, b = batch_of(p);
    t.keys = normals((int[]){ b, p->kv_heads, room_of(p), p->width }, 4, p->dtype, 11, t.s);
    t.values = normals((int[]){ b, p->kv_heads, room_of(p), width }, 4, p->dtype, 12, t.s);
    t.q_weight = weight_of(p, 13, p->odd == ODD_Q_WEIGHT, t.s);
    t.k_weight = weight_of(p, 14, p->odd == ODD_K_WEIGHT, t.s);
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
static mlxvk_array drawn(struct run *t, int heads, int width, uint32_t seed, bool odd)
{
    const struct step *p = t->p;
    const bool strided = p->strided && seed < 300, apart = p->odd == ODD_HEADS && seed < 200;
    const int shape[] = { batch_of(p), queries_of(p), heads, strided ? 2 * width : width + apart };
    const int count = shape[0] * shape[1] * heads * shape[3];
    mlxvk_array x = odd ? odd_normals(count, p->dtype, seed, t->s) : normals((int[]){ count }, 1, p->dtype, seed, t->s);
    OK(mlxvk_reshape(&x, x, shape, 4, t->s), t->s);
    if (apart) OK(mlxvk_slice(&x, x, (int[]){ 0, 0, 0, 0 }, 4, (int[]){ shape[0], shape[1], heads, width }, 4,
                              (int[]){ 1, 1, 1, 1 }, 4, t->s), t->s);
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

static int place_in_round(const struct step *p, int round)
{
    return p->first + (p->rotates ? 0 : p->back ? round % 3 : round) * queries_of(p);
}

/* A round's query, key and value; their seeds are from 100, 200 and 300 on. */
static void draw(struct run *t, int round, mlxvk_array x[3])
{
    const struct step *p = t->p;
    const uint32_t seed = (uint32_t)(round % 100);
    x[0] = drawn(t, p->heads, p->width, 100 + seed, p->odd == ODD_Q);
    x[1] = drawn(t, p->kv_heads, p->width, 200 + seed, p->odd == ODD_K);
    x[2] = drawn(t, p->kv_heads, mlxvk_array_dim(t->values, 3), 300 + seed, p->odd == ODD_V);
}

/* One round, which lets those go: leaves the result, and where the key is wanted the key. */
static void attend(struct run *t, int round, mlxvk_array x[3], mlxvk_array res[2])
{
    const struct step *p = t->p;
    const int at = place_in_round(p, round), position = at + (p->rotates ? round : 0), end = at + queries_of(p);
    const int first = p->window ? end - 8 : 0;
    mlxvk_array mask = NONE, *values = p->one_cache ? &t->keys : &t->values;
    split(t, &x[0], &t->q_weight, 1e-5f);
    split(t, &x[1], p->other_weight ? &NONE : &t->k_weight, p->other_eps ? 0.5f : 1e-5f);
    split(t, &x[2], NULL, 0);
    turn(t, &x[0], p->other_place ? position + 1 : position);
    turn(t, &x[1], position);
    if (p->owned) OK(mlxvk_array_set(&res[1], x[1]), t->s);
    to_cache(t, &t->keys, &x[1], p->other_row ? at - 1 : at, first, end);
    to_cache(t, values, &x[2], p->one_cache ? CAPACITY - 1 : at, first, end);
    if (p->masked) OK(mlxvk_slice(&mask, t->mask, (int[]){ 0 }, 1, (int[]){ end - first }, 1, (int[]){ 1 }, 1, t->s), t->s);
    OK(mlxvk_fast_scaled_dot_product_attention(&res[0], x[0], x[1], x[2], 0.3f,
                                               p->masked ? "array" : queries_of(p) > 1 ? "causal" : "", mask, p->sinks ? t->sinks : NONE, t->s), t->s);
    for (int i = 0; i < 3; i++) mlxvk_array_free(x[i]);
    mlxvk_array_free(mask);
}

static void round_of(struct run *t, int round, mlxvk_array res[2])
{
    mlxvk_array x[3];
    draw(t, round, x);
    attend(t, round, x, res);
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

static bool has_subgroups(void)                      /* which the kernel needs */
{
    mlxvk_device own = open_device(NULL);
    size_t subgroups = 0;
    OK_DEVICE(mlxvk_device_info_get_size(&subgroups, own, "subgroup"), own);
    mlxvk_device_free(own);
    return subgroups != 0;
}

static void test_steps(void **state)
{
    static float on[ROOM], off[ROOM];
    const bool subgroups = has_subgroups();
    (void)state;
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

/* MLX_VK_BATCH_INVARIANT: the bits of the operations apart, as all numbers of rows have them, while keys come to a part's end
 * and beyond it, and where the newest is a part alone. */
static void test_steps_invariant(void **state)
{
    enum { AT_END = 509, BEHIND = 512, LONG = 1030 };
#define ALL_APART "MLX_VK_BATCH_INVARIANT=1 MLX_VK_ENABLE_RMSNORM_ROPE=0"
#define INVARIANT(text, h, kv, w, from, type) \
    { FUSES(text), SHAPE(h, kv, w, from, type), .room = from + ROUNDS, .gates = ALL_APART }
    static const struct step steps_alike[] = {
        INVARIANT("as Qwen3-0.6B has it", 4, 2, 128, 5, BFLOAT16),
        INVARIANT("four heads for one of keys, as Qwen3-8B has them", 4, 1, 128, AT_END, BFLOAT16),
        INVARIANT("float32", 3, 1, 64, AT_END, FLOAT32),
        INVARIANT("float16, three quarters of a power of two", 12, 1, 96, LONG, FLOAT16),
        INVARIANT("wide", 2, 1, 256, 5, BFLOAT16),
        INVARIANT("more heads than a matrix has rows", 20, 1, 64, AT_END, BFLOAT16),
        INVARIANT("in several workgroups' chunks", 3, 1, 96, LONG, BFLOAT16),
        INVARIANT("the first token", 4, 2, 32, 0, FLOAT16),
        INVARIANT("the first token, which chunks do not take, and the next ones", 4, 2, 32, 0, BFLOAT16),
        INVARIANT("one eight a half", 4, 2, 16, 0, FLOAT32),
        INVARIANT("three eights a half", 4, 2, 48, BEHIND, FLOAT32),
        { FUSES("no norm"), SHAPE(4, 2, 72, AT_END, BFLOAT16), .room = AT_END + ROUNDS, .no_norm = true,
          .gates = ALL_APART },
        { FUSES("frequencies, no weights"), SHAPE(4, 2, 64, 5, BFLOAT16), .freqs = true, .no_weight = true,
          .gates = ALL_APART },
    };
    static float on[ROOM], off[ROOM];
    (void)state;
    for (size_t i = 0; i < COUNT(steps_alike); i++) {
        const struct step *p = &steps_alike[i];
        uint64_t fused, apart;
        size_t n = run_step(p, true, on, &fused), different = 0;
        assert_int_equal(n, run_step(p, false, off, &apart));
        for (size_t k = 0; k < n; k++) different += memcmp(&on[k], &off[k], sizeof *on) != 0;
        if (different) fail_msg("%s: %zu of %zu numbers differ", p->name, different, n);
        if (has_subgroups() != (fused < apart))
            fail_msg("%s: %llu dispatches, %llu with the fusion off", p->name, (unsigned long long)fused, (unsigned long long)apart);
    }
}

/* ---- against float64 on the host: caches hold NaN where nothing has been written yet ---- */

enum { WIDEST = 256, HEADS_MOST = 16, ROOM_MOST = 2112 };
struct model { float keys[2 * ROOM_MOST * WIDEST], values[2 * ROOM_MOST * WIDEST], weight[2][WIDEST], freqs[WIDEST / 2]; };

static double rounded(double x, mlxvk_dtype dtype)
{
    const float single = (float)x;
    if (dtype == MLXVK_FLOAT32) return single;
    return dtype == MLXVK_BFLOAT16 ? bf16_to_float(float_to_bf16(single)) : half_to_float(float_to_half(single));
}

/* A head's row behind norm and rope. */
static void turn_row(const struct step *p, const struct model *m, const float *weight, const float *x, int at, double *y)
{
    const int half = p->width / 2;
    double sum = 0, factor, row[WIDEST];
    for (int i = 0; i < p->width; i++) sum += (double)x[i] * x[i];
    factor = p->no_norm ? 1 : 1 / sqrt(sum / p->width + 1e-5);
    for (int i = 0; i < p->width; i++) row[i] = rounded(x[i] * factor * (p->no_norm || p->no_weight ? 1 : weight[i]), p->dtype);
    for (int i = 0; i < half; i++) {
        const double angle = p->freqs ? 0.5f * (float)at * (1 / m->freqs[i]) : 0.5 * at * pow(10000, -(double)i / half);
        y[i] = rounded(row[i] * cos(angle) - row[i + half] * sin(angle), p->dtype);
        y[i + half] = rounded(row[i] * sin(angle) + row[i + half] * cos(angle), p->dtype);
    }
}

/* What a head's query, turned, gets from `count` keys. */
static void attend_row(const struct step *p, const double *q, const float *keys, const float *values, int count, double *y)
{
    double score[ROOM_MOST], best = -INFINITY, sum = 0;
    for (int k = 0; k < count; k++) {
        score[k] = 0;
        for (int i = 0; i < p->width; i++) score[k] += 0.3 * q[i] * keys[k * p->width + i];
        best = fmax(best, score[k]);
    }
    memset(y, 0, sizeof *y * (size_t)p->width);
    for (int k = 0; k < count; k++) {
        const double weight = exp(score[k] - best);
        sum += weight;
        for (int i = 0; i < p->width; i++) y[i] += weight * values[k * p->width + i];
    }
    for (int i = 0; i < p->width; i++) y[i] /= sum;
}

/* A round on the host, from what was drawn for it. */
static void round_on_host(const struct step *p, struct model *m, const float *q, const float *k, const float *v, int at, double *y)
{
    const int w = p->width, group = p->heads / p->kv_heads;
    double row[WIDEST];
    for (int h = 0; h < p->kv_heads; h++) {
        const size_t to = ((size_t)h * room_of(p) + (size_t)at) * w;
        turn_row(p, m, m->weight[1], k + h * w, at, row);
        for (int i = 0; i < w; i++) m->keys[to + i] = (float)row[i];
        memcpy(m->values + to, v + h * w, sizeof *v * (size_t)w);
    }
    for (int h = 0; h < p->heads; h++) {
        const size_t from = (size_t)(h / group) * room_of(p) * w;
        turn_row(p, m, m->weight[0], q + h * w, at, row);
        attend_row(p, row, m->keys + from, m->values + from, at + 1, y + h * w);
    }
}

/* Reads a cache, and makes its rows from p->first on NaN, here and there. */
static void hollow(struct run *t, mlxvk_array *cache, float *values)
{
    const struct step *p = t->p;
    const int shape[] = { 1, p->kv_heads, room_of(p), p->width };
    read_all(t, cache, 1, values);
    for (int h = 0; h < p->kv_heads; h++)
        for (int i = p->first * p->width; i < room_of(p) * p->width; i++) values[(size_t)h * room_of(p) * p->width + i] = NAN;
    mlxvk_array_free(*cache);
    *cache = floats(t->device, values, shape, 4);
    OK(mlxvk_astype(cache, *cache, p->dtype, t->s), t->s);
    OK(eval_one(*cache), t->s);
}

static void expect_near(const struct run *t, int round, const char *what, const float *got, float want, size_t i)
{
    const struct step *p = t->p;
    const double ulp = p->dtype == MLXVK_FLOAT32 ? 0x1p-14 : p->dtype == MLXVK_FLOAT16 ? 0x1p-8 : 0x1p-5;
    if (isnan(want) ? isnan(got[i]) : fabs(got[i] - want) <= ulp * fmax(1, fabs(want))) return;
    fail_msg("%s, gates \"%s\", dtype %d, %d and %d heads of %d, %d keys and round %d, norm %d, weights %d, freqs %d, odd %d: "
             "%s %zu is %.9g, not %.9g", p->name, t->gates, (int)p->dtype, p->heads, p->kv_heads, p->width, p->first, round,
             !p->no_norm, !p->no_weight, p->freqs, (int)p->odd, what, i, got[i], want);
}

/* Runs so many rounds and compares each one, and the caches in the end; how many of its steps were linked. */
static uint64_t compare_with_host(const struct step *p, int rounds)
{
    static struct model m;
    static float drawn_there[3][HEADS_MOST * WIDEST], got[ROOM];
    static double want[HEADS_MOST * WIDEST];
    struct run t = run_open(p, true);
    uint64_t before = dispatches_of(t.gates, "attention_rope"), linked;
    const mlxvk_array of_norm[] = { t.q_weight, t.k_weight };
    const size_t cells = (size_t)p->kv_heads * room_of(p) * p->width;
    hollow(&t, &t.keys, m.keys);
    hollow(&t, &t.values, m.values);
    for (int i = 0; i < 2; i++) read_all(&t, &of_norm[i], 1, m.weight[i]);
    read_all(&t, &t.freqs, 1, m.freqs);
    for (int i = 0; i < rounds; i++) {
        mlxvk_array x[3], res[2] = { { NULL } };
        draw(&t, i, x);
        for (int k = 0; k < 3; k++) read_all(&t, &x[k], 1, drawn_there[k]);
        attend(&t, i, x, res);
        OK(mlxvk_synchronize(t.s), t.s);
        read_all(&t, res, 1, got);
        round_on_host(p, &m, drawn_there[0], drawn_there[1], drawn_there[2], p->first + i, want);
        for (size_t k = 0; k < (size_t)p->heads * p->width; k++) expect_near(&t, i, "number", got, (float)want[k], k);
        mlxvk_array_free(res[0]);
    }
    for (int c = 0; c < 2; c++) {
        read_all(&t, c ? &t.values : &t.keys, 1, got);
        for (size_t k = 0; k < cells; k++) expect_near(&t, rounds, c ? "value" : "key", got, (c ? m.values : m.keys)[k], k);
    }
    linked = stats_of(t.device).linked;
    before = dispatches_of(t.gates, "attention_rope") - before;
    const bool sixteens = p->no_norm || p->width % 16 == 0, even = !p->odd || (p->dtype == MLXVK_FLOAT32 && p->odd != ODD_V);
    if (has_subgroups() && (before != 0) != (sixteens && even))
        expect_near(&t, rounds, "fused steps", (float[]){ (float)before }, NAN, 0);
    run_close(&t);
    return linked;
}

/* The gates of SDPA_DECODE_ROWS are those of large GPUs, whose steps of 129 keys and more have twice the subgroups where
 * they are one part. A CPU's compiler takes seconds for the code of many rows: few samples have them, and those are narrow. */
static const char *const few_rows[] = {
    "MLX_VK_SDPA_SPLIT_K=3", "MLX_VK_SDPA_SPLIT_K=7", "", "MLX_VK_SDPA_DECODE_ROWS=1 MLX_VK_SDPA_SPLIT_K=1",
};
static const char *const many_rows[] = {
    "MLX_VK_SDPA_DECODE_ROWS=8 MLX_VK_SDPA_SPLIT_K=1", "MLX_VK_SDPA_DECODE_ROWS=3 MLX_VK_SDPA_SPLITK_TARGET_CHUNK=16",
    "MLX_VK_SDPA_DECODE_ROWS=2 MLX_VK_SDPA_SPLIT_K=128",
};

static void test_random_steps(void **state)
{
    struct rng r = { 20 };
    (void)state;
    for (int i = 0; i < 10; i++) {
        const bool many = i % 5 == 4;
        struct step p = { .name = "random" };
        p.dtype = (mlxvk_dtype)ONE_OF(&r, MLXVK_FLOAT16, MLXVK_FLOAT32, MLXVK_BFLOAT16);
        p.width = many ? ONE_OF(&r, 8, 24, 56) : ONE_OF(&r, 64, 72, 80, 96, 120, 128, 136, 192, 248, 256);
        p.kv_heads = random_int(&r, 1, 2);
        p.heads = p.kv_heads * random_int(&r, 1, 8);
        p.first = ONE_OF(&r, 0, 1, 3, 15, 31, 62, 63, 127, 128, 129, 200);
        p.room = p.first + random_int(&r, 3, 9);
        p.no_norm = random_chance(&r, 20);
        p.no_weight = random_chance(&r, 20);
        p.freqs = random_chance(&r, 25);
        p.odd = random_chance(&r, 15) ? (enum odd)random_int(&r, ODD_Q, ODD_V) : EVEN;
        p.gates = many ? many_rows[i / 5 % 3] : few_rows[random_int(&r, 0, 3)];
        compare_with_host(&p, 3);
    }
}

/* Token by token from the first on, and the caches' words found in memory where steps are recorded for good. */
static void test_growing(void **state)
{
    static const struct step growing[] = {
        { FUSES("growing, in one part"), SHAPE(3, 1, 64, 0, BFLOAT16), .room = 134,
          .gates = "MLX_VK_REPLAY_SEGMENT=1 MLX_VK_SDPA_DECODE_ROWS=1 MLX_VK_SDPA_SPLIT_K=1" },
        { FUSES("growing, in parts of 16"), SHAPE(7, 1, 56, 12, BFLOAT16), .room = 134,
          .gates = "MLX_VK_REPLAY_SEGMENT=1 MLX_VK_SDPA_DECODE_ROWS=2 MLX_VK_SDPA_SPLITK_TARGET_CHUNK=16" },
        { FUSES("growing, in two parts of 64"), SHAPE(2, 2, 40, 60, FLOAT16), .room = 134,
          .gates = "MLX_VK_REPLAY_SEGMENT=1 MLX_VK_SDPA_DECODE_ROWS=2 MLX_VK_SDPA_SPLITK_MAX_PARTS=2" },
        { FUSES("growing into two parts of 1024, which have twice the keys on their way"), SHAPE(2, 1, 32, 2044, FLOAT16),
          .room = 2052, .gates = "MLX_VK_REPLAY_SEGMENT=1 MLX_VK_SDPA_DECODE_ROWS=2 MLX_VK_SDPA_SPLIT_K=2" },
        { FUSES("the same, of rows narrower than their lanes read"), SHAPE(2, 1, 24, 2044, BFLOAT16), .room = 2052,
          .gates = "MLX_VK_REPLAY_SEGMENT=1 MLX_VK_SDPA_SPLIT_K=2" },
    };
    (void)state;
    for (size_t i = 0; i < COUNT(growing); i++) compare_with_host(&growing[i], growing[i].room - growing[i].first);
}

/* ---- linked: products in front of attention and behind it, see links.glsl ---- */

enum { LAYERS = 3, TOKENS = 70, LINK_WIDTH = 64, LINK_HEADS = 4 };

/* A token through layers of attention, each with caches of its own: res is as wide as x is. */
static void token(struct run *t, mlxvk_array caches[LAYERS][2], mlxvk_array w[3], mlxvk_array x, int at, mlxvk_array *res)
{
    const mlxvk_optional_int none = { 0, false };
    OK(mlxvk_array_set(res, x), t->s);
    for (int l = 0; l < LAYERS; l++) {
        mlxvk_array part[3] = { NONE, NONE, NONE }, o[2] = { NONE, NONE };
        t->keys = caches[l][0];
        t->values = caches[l][1];
        for (int i = 0; i < 3; i++) {
            OK(mlxvk_quantized_matmul(&part[i], *res, w[0], w[1], w[2], true, none, none, "affine", t->s), t->s);
            OK(mlxvk_reshape(&part[i], part[i], (int[]){ 1, 1, LINK_HEADS, LINK_WIDTH }, 4, t->s), t->s);
        }
        attend(t, at, part, o);
        caches[l][0] = t->keys;
        caches[l][1] = t->values;
        OK(mlxvk_reshape(&o[0], o[0], (int[]){ 1, LINK_HEADS * LINK_WIDTH }, 2, t->s), t->s);
        OK(mlxvk_quantized_matmul(res, o[0], w[0], w[1], w[2], true, none, none, "affine", t->s), t->s);
        mlxvk_array_free(o[0]);
    }
}

/* Leaves what all tokens give; returns the counts. */
static mlxvk_stats run_linked(const struct step *p, uint16_t *to)
{
    const mlxvk_optional_int none = { 0, false };
    struct run t = run_open(p, true);
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    mlxvk_array caches[LAYERS][2], w[3], keys = t.keys, values = t.values, res = NONE;
    const int n = LINK_HEADS * LINK_WIDTH;
    mlxvk_array plain = normals((int[]){ n, n }, 2, p->dtype, 41, t.s), x = normals((int[]){ 1, n }, 2, p->dtype, 42, t.s);
    OK(mlxvk_quantize(&parts, plain, none, none, "affine", NONE, t.s), t.s);
    for (size_t i = 0; i < 3; i++) {
        w[i] = mlxvk_array_new();
        OK(mlxvk_vector_array_get(&w[i], parts, i), t.s);
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t i = 0; i < 2; i++)
            caches[l][i] = normals((int[]){ 1, LINK_HEADS, room_of(p), LINK_WIDTH }, 4, p->dtype, 50 + 2 * l + i, t.s);
    OK(mlxvk_synchronize(t.s), t.s);
    mlxvk_reset_stats(t.device);
    for (int i = 0; i < TOKENS; i++) {
        token(&t, caches, w, x, i, &res);
        OK(mlxvk_array_read(res, to + (size_t)i * n, mlxvk_array_nbytes(res), t.s), t.s);
    }
    mlxvk_stats stats = stats_of(t.device);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 2; i++) mlxvk_array_free(caches[l][i]);
    for (int i = 0; i < 3; i++) mlxvk_array_free(w[i]);
    mlxvk_array_free(plain);
    mlxvk_array_free(x);
    mlxvk_array_free(res);
    mlxvk_vector_array_free(parts);
    t.keys = keys;
    t.values = values;
    run_close(&t);
    return stats;
}

/* The same bits, linked or not, while keys come to a part's end. */
static void test_linked(void **state)
{
    enum { N = TOKENS * LINK_HEADS * LINK_WIDTH };
    static uint16_t want[N], got[N];
    const struct step off = { .name = "apart", SHAPE(LINK_HEADS, LINK_HEADS, LINK_WIDTH, 0, BFLOAT16), .room = TOKENS,
                              .gates = "MLX_VK_QMM_KERNEL=5 MLX_VK_REPLAY_SEGMENT=2 MLX_VK_ENABLE_LINKS=0 MLX_VK_SDPA_DECODE_ROWS=1 "
                                       "MLX_VK_SDPA_SPLITK_TARGET_CHUNK=16" };
    struct step on = off;
    on.gates = "MLX_VK_QMM_KERNEL=5 MLX_VK_REPLAY_SEGMENT=2 MLX_VK_ENABLE_LINKS=2 MLX_VK_SDPA_DECODE_ROWS=1 "
               "MLX_VK_SDPA_SPLITK_TARGET_CHUNK=16";
    (void)state;
    skip_if_validating();
    mlxvk_stats apart = run_linked(&off, want), linked = run_linked(&on, got);
    char gates[256];
    snprintf(gates, sizeof gates, "%s ", on.gates);
    assert_int_equal(apart.linked, 0);
    for (int i = 0; i < N; i++)
        if (want[i] != got[i])
            fail_msg("token %d, number %d: %04x linked, %04x apart", i / (N / TOKENS), i % (N / TOKENS), got[i], want[i]);
    if (!linked.recorded || !dispatches_of(gates, "qmv_held") || !dispatches_of(gates, "attention_rope")) return;
    assert_true(linked.linked > 0);
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
        cmocka_unit_test_setup_teardown(test_steps_invariant, set_up_poisoned, tear_down),
        cmocka_unit_test(test_random_steps),
        cmocka_unit_test(test_growing),
        cmocka_unit_test(test_linked),
        cmocka_unit_test_setup_teardown(test_refused_behind_other_rope, set_up_poisoned, tear_down),
    };
    return run_group("step", tests, NULL, NULL);
}
