/* Rows alone and with others: what a row gives has the same bits in a batch of any size, at any place of it, and in prompts
 * cut anywhere. Reductions, norms, softmax, scans and rope promise it always; products, quantized products and attention
 * under MLX_VK_BATCH_INVARIANT. For these the program says, too, how many results differ without it: a test of bits that
 * finds none to differ there shows nothing. New memory is garbage.
 *
 *     build/unit/test_invariant [TEST]                 all, or those whose names fit: test_attention */
#include "../qwen3/model.h"              /* first: cmocka has a macro that is called as a function of it */
#include "support.h"

#include <stdio.h>

/* What is compared: a function of some rows of x, which lie along an axis of it; `start` is the first one's number in x. */
struct trial;
typedef mlxvk_array (*function)(const struct trial *t, mlxvk_array x, int start);
struct trial {
    function apply;
    mlxvk_array x, operand[5];
    int in_axis, out_axis, kind, first;
    mlxvk_optional_int group, bits;
    const char *mode;
    bool transpose;
    char text[160];
};

static struct { size_t compared, differing; } tally;

/* ---- rows of arrays ---- */

static mlxvk_array some(mlxvk_array a, int axis, int start, int stop)
{
    mlxvk_array r = { NULL };
    OK(mlxvk_array_set(&r, a), stream);
    take_slice(&r, axis, start, stop, 1);
    return r;
}

static void own(mlxvk_array *a) { OK(mlxvk_contiguous(a, *a, false, stream), stream); }

static mlxvk_array random_array(mlxvk_dtype dtype, uint32_t seed, int ndim, const int *shape)
{
    mlxvk_array a = normals(shape, ndim, MLXVK_FLOAT32, seed, stream);
    OK(mlxvk_astype(&a, a, dtype, stream), stream);
    return a;
}
#define RANDOM(dtype, seed, ...) \
    random_array(dtype, seed, (int)COUNT(((int[]){ __VA_ARGS__ })), (int[]){ __VA_ARGS__ })

/* The result's bytes, row after row; what becomes of the array is no matter. */
static unsigned char *rows_read(mlxvk_array a, int axis, size_t *size)
{
    unsigned char *data;
    OK(mlxvk_moveaxis(&a, a, axis, 0, stream), stream);
    own(&a);
    *size = mlxvk_array_nbytes(a);
    data = malloc(*size + 1);
    assert_non_null(data);
    OK(mlxvk_array_read(a, data, *size, stream), stream);
    mlxvk_array_free(a);
    return data;
}

/* ---- the comparison ---- */

static void compare_part(const struct trial *t, const unsigned char *all, size_t row, int start, int count, bool copied,
                         bool strict)
{
    mlxvk_array x = some(t->x, t->in_axis, start, start + count);
    unsigned char *got;
    size_t size, bad = 0;
    if (copied) own(&x);
    got = rows_read(t->apply(t, x, start), t->out_axis, &size);
    assert_int_equal(size, row * (size_t)count);
    for (size_t i = 0; i < size; i += 2) bad += memcmp(got + i, all + row * (size_t)start + i, size - i < 2 ? 1 : 2) != 0;
    tally.compared++;
    tally.differing += bad != 0;
    if (bad && strict) {
        print_error("%s: rows %d to %d%s: %zu of %zu bytes differ\n", t->text, start, start + count - 1,
                    copied ? ", copied" : "", 2 * bad, size);
        fail();
    }
    free(got);
    mlxvk_array_free(x);
}

/* All rows of x at once against parts of them. */
static void compare(const struct trial *t, bool strict)
{
    static const int counts[] = { 1, 2, 3, 5, 8, 9, 16, 32, 33, 65 };
    int rows = mlxvk_array_dim(t->x, t->in_axis);
    mlxvk_array whole = { NULL };
    size_t size;
    unsigned char *all;
    OK(mlxvk_array_set(&whole, t->x), stream);
    all = rows_read(t->apply(t, whole, 0), t->out_axis, &size);
    mlxvk_array_free(whole);
    for (size_t i = 0; i < COUNT(counts) && counts[i] < rows; i++) {
        int at[] = { 0, (rows - counts[i]) / 2, rows - counts[i] };
        for (int k = 0; k < 3; k++)
            if (k == (int)i % 3 || counts[i] == 1)
                compare_part(t, all, size / (size_t)rows, at[k], counts[i], i % 2, strict);
    }
    free(all);
}

/* Each device of these gates runs a group of trials: without the gate no result need be the same. Without matrix units the
 * second is as the last. */
static const char *const settings[] = { "", "MLX_VK_BATCH_INVARIANT=2", "MLX_VK_BATCH_INVARIANT=1" };
static size_t setting_count(void)
{
    size_t units = 0;
    OK_DEVICE(mlxvk_device_info_get_size(&units, device, "cooperative_matrix_size"), device);
    return units ? 3 : 2;
}

static void on_each(void (*run)(bool strict))
{
    const mlxvk_device own_device = device;
    const mlxvk_stream own_stream = stream;
    for (size_t i = 0; i < setting_count(); i++) {
        char gates[80];
        struct setting s;
        snprintf(gates, sizeof gates, "MLX_VK_POISON=1 %s", settings[i]);
        s = start(gates);
        device = s.device;
        stream = s.stream;
        memset(&tally, 0, sizeof tally);
        run(i > 0);
        print_message("    %s: %zu of %zu differ\n", i ? settings[i] : "without the gate", tally.differing, tally.compared);
        device = own_device;
        stream = own_stream;
        finish(&s);
    }
}

static void trial_free(struct trial *t)
{
    mlxvk_array_free(t->x);
    for (size_t i = 0; i < COUNT(t->operand); i++) mlxvk_array_free(t->operand[i]);
}

/* Without the gate each fourth trial shows that there is something to find. */
static void run_trial(struct trial *t, bool strict)
{
    static unsigned turn;
    if (strict || turn++ % 4 == 0) compare(t, strict);
    trial_free(t);
}

/* ---- products ---- */

enum { ALL_ROWS = 70 };
enum { PLAIN, TRANSPOSED, GAPS, SHIFTED, LAYOUTS };
static const char *const layouts[LAYOUTS] = { "plain", "transposed", "with gaps", "shifted" };

/* The same numbers, laid out in another way. */
static void lay_out(mlxvk_array *a, int layout)
{
    int last = (int)mlxvk_array_ndim(*a) - 1, n = mlxvk_array_dim(*a, last);
    if (layout == TRANSPOSED) {
        OK(mlxvk_swapaxes(a, *a, last - 1, last, stream), stream);
        own(a);
        OK(mlxvk_swapaxes(a, *a, last - 1, last, stream), stream);
    } else if (layout == GAPS || layout == SHIFTED) {
        OK(mlxvk_repeat_axis(a, *a, 2, last, stream), stream);
        if (layout == GAPS) take_slice(a, last, 0, 2 * n, 2);
        else take_slice(a, last, 1, n + 1, 1);
    }
}

static mlxvk_array product(const struct trial *t, mlxvk_array x, int start)
{
    mlxvk_array r = { NULL };
    (void)start;
    if (t->kind) OK(mlxvk_addmm(&r, t->operand[1], x, t->operand[0], 0.75f, 1.5f, stream), stream);
    else OK(mlxvk_matmul(&r, x, t->operand[0], stream), stream);
    return r;
}

static const mlxvk_dtype types[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_FLOAT16 };

static void dense_products(bool strict)
{
    static const int sizes[][2] = { { 1, 5 }, { 33, 70 }, { 512, 64 }, { 1040, 136 }, { 1536, 136 }, { 1100, 9 } };
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int l = 0; l < LAYOUTS; l++)
            for (int of_x = 0; of_x < LAYOUTS; of_x++) {
                mlxvk_dtype type = types[(i + (size_t)l + (size_t)of_x) % 3];
                int k = sizes[i][0], n = sizes[i][1];
                struct trial t = { .apply = product, .x = RANDOM(type, 3, ALL_ROWS, k), .kind = (l + of_x) % 3 == 2,
                                   .operand = { RANDOM(type, 4, k, n), RANDOM(type, 5, n) } };
                if ((i + (size_t)l) % 2 != (size_t)of_x % 2) { trial_free(&t); continue; }
                lay_out(&t.x, of_x);
                lay_out(&t.operand[0], l);
                snprintf(t.text, sizeof t.text, "%s %d x %d, x %s, b %s", mlxvk_dtype_name(type), k, n, layouts[of_x], layouts[l]);
                run_trial(&t, strict);
            }
}

/* Rows of a batch of matrices, the batch as rows, a batch of weights. */
static void batched_products(bool strict)
{
    for (int kind = 0; kind < 3; kind++)
        for (size_t i = 0; i < COUNT(types); i++) {
            struct trial t = { .apply = product, .in_axis = kind != 1, .out_axis = kind != 1 };
            t.x = kind == 1 ? RANDOM(types[i], 6, 40, 3, 600) : RANDOM(types[i], 6, 3, 40, 600);
            t.operand[0] = kind == 2 ? RANDOM(types[i], 7, 3, 600, 50) : RANDOM(types[i], 7, 600, 50);
            lay_out(&t.operand[0], (int)i % 2);
            snprintf(t.text, sizeof t.text, "%s in a batch, %d", mlxvk_dtype_name(types[i]), kind);
            run_trial(&t, strict);
        }
}

/* Entries that index arrays give their matrices: those of rows start ... */
static mlxvk_array indices_of(const struct trial *t, mlxvk_array x, int start)
{
    return some(t->operand[4], 0, start, start + mlxvk_array_dim(x, 0));
}

static mlxvk_array gathered(const struct trial *t, mlxvk_array x, int start)
{
    mlxvk_array r = { NULL }, none = { NULL }, chosen = indices_of(t, x, start);
    OK(mlxvk_gather_mm(&r, x, t->operand[0], none, chosen, false, stream), stream);
    mlxvk_array_free(chosen);
    return r;
}

enum { WEIGHTS = 5 };
static mlxvk_array choices(int count)
{
    int32_t values[ALL_ROWS];
    for (int i = 0; i < count; i++) values[i] = i * i * 7 % WEIGHTS;
    return ints(device, values, &count, 1);
}

static void gathered_products(bool strict)
{
    for (size_t i = 0; i < COUNT(types); i++)
        for (int rows = 1; rows < 4; rows += 2)
            for (int layout = 0; layout < 2; layout++) {
                struct trial t = { .apply = gathered, .x = RANDOM(types[i], 8, ALL_ROWS, rows, 530),
                                   .operand = { RANDOM(types[i], 9, WEIGHTS, 530, 34), [4] = choices(ALL_ROWS) } };
                lay_out(&t.operand[0], layout);
                snprintf(t.text, sizeof t.text, "gather_mm %s, %d rows each, %s", mlxvk_dtype_name(types[i]), rows, layouts[layout]);
                run_trial(&t, strict);
            }
}

/* ---- quantized products ---- */

static mlxvk_array quantized(const struct trial *t, mlxvk_array x, int start)
{
    mlxvk_array r = { NULL }, none = { NULL }, chosen;
    const mlxvk_array *w = t->operand;
    if (!t->kind) {
        OK(mlxvk_quantized_matmul(&r, x, w[0], w[1], w[2], t->transpose, t->group, t->bits, t->mode, stream), stream);
        return r;
    }
    chosen = indices_of(t, x, start);
    OK(mlxvk_gather_qmm(&r, x, w[0], w[1], w[2], none, chosen, t->transpose, t->group, t->bits, t->mode, false, stream),
       stream);
    mlxvk_array_free(chosen);
    return r;
}

static void quantize(struct trial *t, mlxvk_array weights)
{
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    mlxvk_array none = { NULL };
    OK(mlxvk_quantize(&parts, weights, t->group, t->bits, t->mode, none, stream), stream);
    for (size_t i = 0; i < mlxvk_vector_array_size(parts); i++)
        OK(mlxvk_vector_array_get(&t->operand[i], parts, i), stream);
    mlxvk_vector_array_free(parts);
    mlxvk_array_free(weights);
}

/* kind 0: one weight, 1: by index arrays, 2: a batch of weights. */
/* x of a trial; odd: between other elements, so that its rows are at odd places. */
static mlxvk_array rows_for(mlxvk_dtype type, int kind, bool odd, int k)
{
    int rows = kind == 1 ? 1 : ALL_ROWS, more = odd;
    mlxvk_array x;
    if (!kind && !odd) return RANDOM(type, 11, ALL_ROWS, k);
    x = RANDOM(type, 11, kind == 1 ? ALL_ROWS : kind ? 3 : 2, rows + more, k + more);
    take_slice(&x, 1, more, rows + more, 1);
    take_slice(&x, 2, more, k + more, 1);
    return x;
}

static int weight_k = 1152, weight_n = 70;              /* of a trial; chained_products walks others */

static void quantized_trial(const char *mode, int group, int bits, mlxvk_dtype type, bool transpose, int kind, bool odd,
                            bool strict)
{
    struct trial t = { .apply = quantized, .mode = mode, .group = { group, true }, .bits = { bits, true },
                       .transpose = transpose, .kind = kind == 1, .in_axis = kind == 2 || (odd && !kind) };
    mlxvk_dtype w_type = strcmp(mode, "affine") ? MLXVK_FLOAT32 : type;
    int k = weight_k, n = transpose ? weight_n : 128, down = transpose ? n : k, across = transpose ? k : n;
    t.out_axis = t.in_axis;
    t.x = rows_for(type, kind, odd, k);
    quantize(&t, kind == 0 ? RANDOM(w_type, 12, down, across)
               : RANDOM(w_type, 12, kind == 1 ? WEIGHTS : 3, down, across));
    if (kind == 1) t.operand[4] = choices(ALL_ROWS);
    snprintf(t.text, sizeof t.text, "%s %d bits, groups of %d, %s, %stransposed, kind %d%s", mode, bits, group, mlxvk_dtype_name(type),
             transpose ? "" : "not ", kind, odd ? ", odd" : "");
    run_trial(&t, strict);
}

static void quantized_products(bool strict)
{
    static const int widths[] = { 2, 3, 4, 5, 6, 8 };
    int turn = 0;
    for (size_t i = 0; i < COUNT(widths); i++)
        for (int group = 32 << i % 2; group <= 128; group *= 4, turn++)
            quantized_trial("affine", group, widths[i], types[turn % 3], true, 0, false, strict);
    for (size_t i = 0; i < COUNT(types); i++)
        for (int kind = 0; kind < 3; kind++) {
            quantized_trial("affine", 64, kind ? 4 : 8, types[i], true, kind, false, strict);
            quantized_trial("affine", 32, kind ? 8 : 4, types[i], false, kind, false, strict);
            if ((size_t)kind != i) continue;
            quantized_trial("mxfp4", 32, 4, types[i], kind != 1, kind, false, strict);
            quantized_trial("mxfp8", 32, 8, types[i], kind != 2, kind, false, strict);
            quantized_trial("nvfp4", 16, 4, types[i], true, kind, false, strict);
        }
    for (size_t i = 0; i < COUNT(types); i++)
        for (int kind = 0; kind < 3; kind++) quantized_trial("affine", 64, 4, types[i], true, kind, true, strict);
}

/* Weights that a device may unpack for many rows: K of whole chains, one, a few, and more than a workgroup has at once; the last
 * one has none, and a begun group more than a workgroup has. */
static void chained_products(bool strict)
{
    static const struct { int k, n, group, bits; } shapes[] = {
        { 256, 136, 64, 4 }, { 1280, 136, 64, 4 }, { 1024, 128, 32, 4 }, { 768, 264, 128, 4 }, { 1280, 136, 64, 8 },
        { 512, 128, 128, 2 }, { 768, 136, 64, 2 }, { 4608, 136, 64, 4 }, { 512, 136, 32, 8 }, { 4160, 136, 64, 4 } };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (size_t k = 0; k < COUNT(types); k++) {
            weight_k = shapes[i].k, weight_n = shapes[i].n;
            if (types[k] != MLXVK_FLOAT32)
                quantized_trial("affine", shapes[i].group, shapes[i].bits, types[k], true, 0, false, strict);
        }
    weight_k = 1152, weight_n = 70;
}

/* ---- attention ---- */

enum { QUERIES, KEYS, VALUES, MASK, SINKS };            /* operands; QUERIES are the rows */
enum { NO_MASK, CAUSAL, BOOL_MASK, ADDED_MASK, MASKS };
static const char *const masks[MASKS] = { "none", "causal", "bool", "added" };

/* Queries start ... of a prompt; behind a causal mask there are no keys beyond the last of them yet. */
static mlxvk_array attend(const struct trial *t, mlxvk_array x, int start)
{
    mlxvk_array r = { NULL }, k = { NULL }, v = { NULL }, mask = { NULL };
    int stop = start + mlxvk_array_dim(x, t->in_axis), axis = t->in_axis;
    OK(mlxvk_array_set(&k, t->operand[KEYS]), stream);
    OK(mlxvk_array_set(&v, t->operand[VALUES]), stream);
    if (axis == 0 || t->kind == CAUSAL) {
        take_slice(&k, axis, axis ? 0 : start, t->first + stop, 1);
        take_slice(&v, axis, axis ? 0 : start, t->first + stop, 1);
    }
    if (t->operand[MASK].ctx) mask = some(t->operand[MASK], axis, start, stop);
    OK(mlxvk_fast_scaled_dot_product_attention(&r, x, k, v, 0.125f, t->kind == CAUSAL ? "causal" : "", mask,
                                               t->operand[SINKS], stream), stream);
    mlxvk_array_free(k);
    mlxvk_array_free(v);
    mlxvk_array_free(mask);
    return r;
}

struct shape { int heads, kv_heads, queries, first, width, value_width; };

static void attention_trial(const struct shape *s, mlxvk_dtype type, int mask, bool sinks, int axis, bool strict)
{
    int batch = axis ? 2 : 33, queries = axis ? s->queries : 3, keys = s->first + s->queries;
    struct trial t = { .apply = attend, .x = RANDOM(type, 21, batch, s->heads, queries, s->width), .in_axis = axis,
                       .out_axis = axis, .kind = mask, .first = axis ? s->first : 0 };
    t.operand[KEYS] = RANDOM(type, 22, batch, s->kv_heads, keys + 5, s->width);          /* room, as a cache has */
    t.operand[VALUES] = RANDOM(type, 23, batch, s->kv_heads, keys + 5, s->value_width);
    take_slice(&t.operand[KEYS], 2, 0, keys, 1);
    take_slice(&t.operand[VALUES], 2, 0, keys, 1);
    if (mask >= BOOL_MASK) {
        mlxvk_array zero = floats(device, &(float){ -0.5f }, NULL, 0);
        t.operand[MASK] = RANDOM(type, 24, batch, 1, queries, keys);
        if (mask == BOOL_MASK) OK(mlxvk_greater(&t.operand[MASK], t.operand[MASK], zero, stream), stream);
        mlxvk_array_free(zero);
    }
    if (sinks) t.operand[SINKS] = RANDOM(type, 25, s->heads);
    snprintf(t.text, sizeof t.text, "%s, heads %d on %d, %d queries on %d keys, width %d and %d, mask %s%s, by %s",
             mlxvk_dtype_name(type), s->heads, s->kv_heads, queries, keys, s->width, s->value_width, masks[mask],
             sinks ? ", sinks" : "", axis ? "queries" : "batch");
    run_trial(&t, strict);
}

static void attention(bool strict)
{
    static const struct shape shapes[] = {
        { 4, 2, 70, 0, 64, 64 }, { 4, 1, 67, 500, 128, 128 }, { 2, 2, 40, 1000, 80, 80 }, { 2, 1, 70, 30, 33, 40 },
        { 6, 2, 35, 7, 96, 64 }, { 2, 1, 33, 90, 256, 256 },
    };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int mask = 0; mask < MASKS; mask++) {
            attention_trial(&shapes[i], types[(i + (size_t)mask) % 3], mask, (i + (size_t)mask) % 2, 2, strict);
            attention_trial(&shapes[i], types[(i + (size_t)mask + 1) % 3], mask, mask % 2, 0, strict);
        }
}

/* ---- attention by chunks of keys: its ways, and what it does not take ---- */

struct chunked {
    const char *name;
    struct shape shape;
    mlxvk_dtype type;
    int mask, room;                                     /* room: features that rows have behind their own */
    bool sinks, fits;
};

/* Dispatches under these gates by chunks of keys: of subgroups that share them, that go through all. */
struct chunk_counts { uint64_t shared, walked; };
static struct chunk_counts chunk_counts(const char *gates)
{
    return (struct chunk_counts){ dispatches_of(gates, "attention_chunks"), dispatches_of(gates, "attention_walk") };
}

/* The result's bytes under these gates. */
static unsigned char *chunked_run(const struct chunked *c, const char *gates, size_t *size)
{
    const struct shape *s = &c->shape;
    const mlxvk_device own_device = device;
    const mlxvk_stream own_stream = stream;
    struct setting on = start(gates);
    struct trial t = { .in_axis = 2, .kind = c->mask, .first = s->first };
    int keys = s->first + s->queries;
    mlxvk_array x;
    unsigned char *data;
    device = on.device;
    stream = on.stream;
    x = RANDOM(c->type, 31, 2, s->heads, s->queries, s->width);
    t.operand[KEYS] = RANDOM(c->type, 32, 2, s->kv_heads, keys + 3, s->width + c->room);
    t.operand[VALUES] = RANDOM(c->type, 33, 2, s->kv_heads, keys + 3, s->value_width + c->room);
    for (int i = KEYS; i <= VALUES; i++) {
        take_slice(&t.operand[i], 2, 0, keys, 1);
        take_slice(&t.operand[i], 3, 0, i == KEYS ? s->width : s->value_width, 1);
    }
    if (c->mask == ADDED_MASK) t.operand[MASK] = RANDOM(c->type, 34, 2, 1, s->queries, keys);
    if (c->sinks) t.operand[SINKS] = RANDOM(c->type, 35, s->heads);
    data = rows_read(attend(&t, x, 0), 2, size);
    mlxvk_array_free(x);
    trial_free(&t);
    device = own_device;
    stream = own_stream;
    finish(&on);
    return data;
}

/* Subgroups that go through all keys and those that share them: the same bits. And one thing at a time that chunks of keys
 * by matrices do not take, which then has the same bits all the same. */
static void test_chunks(void **state)
{
#define SHAPE(...) .shape = { __VA_ARGS__ }
    static const struct chunked cases[] = {
        { "a prompt", SHAPE(4, 2, 70, 0, 64, 64), MLXVK_BFLOAT16, CAUSAL, .fits = true },
        { "one key", SHAPE(4, 2, 1, 0, 64, 64), MLXVK_BFLOAT16, NO_MASK, .fits = true },
        { "up to where chunks become longer", SHAPE(4, 1, 1, 511, 128, 128), MLXVK_BFLOAT16, NO_MASK, .fits = true },
        { "few queries, one key behind that", SHAPE(8, 2, 3, 510, 128, 128), MLXVK_BFLOAT16, CAUSAL, .fits = true },
        { "several workgroups' keys", SHAPE(6, 2, 37, 1500, 128, 80), MLXVK_BFLOAT16, CAUSAL, .sinks = true, .fits = true },
        { "rows that end before others of their workgroup", SHAPE(2, 1, 300, 700, 128, 128), MLXVK_BFLOAT16, CAUSAL, .fits = true },
        { "a mask that is added, narrow values", SHAPE(2, 1, 35, 300, 112, 16), MLXVK_BFLOAT16, ADDED_MASK, .fits = true },
        { "narrow keys, gaps behind them", SHAPE(2, 2, 18, 600, 16, 112), MLXVK_BFLOAT16, NO_MASK, 8, .sinks = true,
          .fits = true },
        { "float16", SHAPE(4, 2, 33, 600, 64, 64), MLXVK_FLOAT16, CAUSAL, .fits = false },
        { "float32", SHAPE(4, 2, 33, 600, 64, 64), MLXVK_FLOAT32, CAUSAL, .fits = false },
        { "72 features", SHAPE(4, 2, 33, 600, 72, 64), MLXVK_BFLOAT16, CAUSAL, .fits = false },
        { "values of 72 features", SHAPE(4, 2, 33, 600, 64, 72), MLXVK_BFLOAT16, CAUSAL, .fits = false },
        { "144 features", SHAPE(4, 2, 33, 600, 144, 64), MLXVK_BFLOAT16, CAUSAL, .fits = false },
        { "values of 144 features", SHAPE(4, 2, 33, 600, 64, 144), MLXVK_BFLOAT16, CAUSAL, .fits = false },
    };
    enum { SHARED, WALKED };
    static const char *const ways[] = { "MLX_VK_POISON=1 MLX_VK_BATCH_INVARIANT=1 MLX_VK_SDPA_SPLIT_K=2",
                                        "MLX_VK_POISON=1 MLX_VK_BATCH_INVARIANT=1 MLX_VK_SDPA_SPLIT_K=1",
                                        "MLX_VK_POISON=1 MLX_VK_BATCH_INVARIANT=1" };
    bool able = false;
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        unsigned char *want = NULL, *got;
        for (size_t k = 0; k < COUNT(ways); k++) {
            struct chunk_counts before = chunk_counts(ways[k]), after;
            bool shared, walked;
            size_t size;
            got = chunked_run(&cases[i], ways[k], &size);
            after = chunk_counts(ways[k]);
            shared = after.shared > before.shared;
            walked = after.walked > before.walked;
            if (!i) able = shared || walked;
            assert_int_equal(shared || walked, able && cases[i].fits);
            assert_false(k == SHARED ? walked : k == WALKED && shared);
            if (want && memcmp(got, want, size)) fail_msg("%s: other bits with %s", cases[i].name, ways[k]);
            if (want) free(got);
            else want = got;
        }
        free(want);
    }
}

/* ---- what a product prepares of its row: a norm, silu(x) * y ---- */

/* A layer's way for `rows` rows of k: a norm, two products of it, silu(x) * y of these, a product back, an addition. */
struct prepared {
    const char *name;
    bool normed, gated;                                /* what goes into the products, where the device does that */
    int rows, k, inner;
    bool norm_owned, product_owned, no_weight, odd_weight, odd_times;
};

static mlxvk_array product_of(mlxvk_array x, const mlxvk_array w[3])
{
    const mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    mlxvk_array y = { NULL };
    OK(mlxvk_quantized_matmul(&y, x, w[0], w[1], w[2], true, group, bits, "affine", stream), stream);
    return y;
}

static void free_all(mlxvk_array *a, size_t count)
{
    for (size_t i = 0; i < count; i++) mlxvk_array_free(a[i]);
}

/* The bytes of its result under these gates, and its dispatches. */
static unsigned char *prepared_run(const struct prepared *p, const char *gates, size_t *size, uint64_t *dispatches)
{
    struct trial w[3] = { { .mode = "affine", .group = { 64, true }, .bits = { 4, true } } };
    mlxvk_array x, weight, norm = { NULL }, y[2], sigmoid = { NULL }, product = { NULL }, none = { NULL };
    const mlxvk_device own_device = device;
    const mlxvk_stream own_stream = stream;
    struct setting s = start(gates);
    device = s.device;
    stream = s.stream;
    w[1] = w[2] = w[0];
    for (int i = 0; i < 3; i++)
        quantize(&w[i], RANDOM(MLXVK_BFLOAT16, 80 + (uint32_t)i, i < 2 ? p->inner : p->k, i < 2 ? p->k : p->inner));
    x = RANDOM(MLXVK_BFLOAT16, 83, p->rows, p->k);
    weight = RANDOM(MLXVK_BFLOAT16, 84, p->k + p->odd_weight);
    take_slice(&weight, 0, p->odd_weight, p->k + p->odd_weight, 1);
    OK(mlxvk_synchronize(stream), stream);
    mlxvk_reset_stats(device);
    OK(mlxvk_fast_rms_norm(&norm, x, p->no_weight ? none : weight, 1e-5f, stream), stream);
    for (int i = 0; i < 2; i++) y[i] = product_of(norm, w[i].operand);
    if (p->odd_times) take_slice(&y[1], 1, p->inner - 1, -p->inner - 1, -1);
    OK(mlxvk_sigmoid(&sigmoid, y[0], stream), stream);
    OK(mlxvk_multiply(&product, y[0], sigmoid, stream), stream);
    OK(mlxvk_multiply(&product, product, y[1], stream), stream);
    free_all((mlxvk_array[]){ y[0], y[1], sigmoid }, 3);
    if (!p->norm_owned) mlxvk_array_free(norm);
    mlxvk_array back = product_of(product, w[2].operand);
    if (!p->product_owned) mlxvk_array_free(product);
    OK(mlxvk_add(&back, back, x, stream), stream);
    OK(eval_one(back), stream);
    OK(mlxvk_synchronize(stream), stream);
    *dispatches = stats_of(device).dispatches;
    if (p->norm_owned) mlxvk_array_free(norm);
    if (p->product_owned) mlxvk_array_free(product);
    unsigned char *data = rows_read(back, 0, size);
    for (int i = 0; i < 3; i++) free_all(w[i].operand, 3);
    free_all((mlxvk_array[]){ x, weight }, 2);
    device = own_device;
    stream = own_stream;
    finish(&s);
    return data;
}

/* The bits of the operations apart; and what keeps each of the two from it, one thing at a time. */
static void test_prepared(void **state)
{
#define SIZES(m, columns, between) .rows = m, .k = columns, .inner = between
    static const struct prepared cases[] = {
        { .name = "as Qwen3-0.6B has it", .normed = true, .gated = true, SIZES(1, 1024, 3072) },
        { .name = "more than a go for the product back", .normed = true, .gated = true, SIZES(1, 512, 4352) },
        { .name = "eights that are no power of two", .normed = true, .gated = true, SIZES(1, 2560, 768) },
        { .name = "as many eights as there are places", .normed = true, .gated = true, SIZES(1, 4096, 256) },
        { .name = "a row of few eights", .gated = true, SIZES(1, 256, 512) },
        { .name = "a long row", .gated = true, SIZES(1, 4352, 256) },
        { .name = "two rows", SIZES(2, 1024, 512) },
        { .name = "a norm that somebody has", .gated = true, SIZES(1, 1024, 512), .norm_owned = true },
        { .name = "silu(x) * y that somebody has", .normed = true, SIZES(1, 1024, 512), .product_owned = true },
        { .name = "a norm without a weight", .gated = true, SIZES(1, 1024, 512), .no_weight = true },
        { .name = "a norm's weight at an odd element", .gated = true, SIZES(1, 1024, 512), .odd_weight = true },
        { .name = "factors from the last to the first", .normed = true, SIZES(1, 1024, 512), .odd_times = true },
    };
    bool does = false;
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct prepared *p = &cases[i];
        uint64_t with, no_norm, apart;
        size_t size, n;
        unsigned char *got = prepared_run(p, "MLX_VK_BATCH_INVARIANT=1", &size, &with);
        unsigned char *half = prepared_run(p, "MLX_VK_BATCH_INVARIANT=1 MLX_VK_ENABLE_QMM_BESIDE=0", &n, &no_norm);
        unsigned char *want = prepared_run(p, "MLX_VK_BATCH_INVARIANT=1 MLX_VK_ENABLE_QMM_BESIDE=0 "
                                              "MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16=0", &n, &apart);
        if (memcmp(got, want, size) || memcmp(half, want, size)) fail_msg("%s: other bits than apart", p->name);
        if (!i) does = with < no_norm;
        if (does && p->normed != (with < no_norm))
            fail_msg("%s: %d dispatches, %d without the norm's", p->name, (int)with, (int)no_norm);
        if (does && (no_norm + (p->gated ? 3 : 2) != apart))
            fail_msg("%s: %d dispatches, %d without silu(x) * y's", p->name, (int)no_norm, (int)apart);
        free(got);
        free(half);
        free(want);
    }
}

/* ---- what always gives a row the same bits ---- */

enum { SUM, LSE, SOFTMAX, RMS, CUMSUM, CUMPROD, LOGCUMSUMEXP, ROPE, SORT, ROW_OPS };
static const char *const row_ops[ROW_OPS] = { "sum", "logsumexp", "softmax", "rms_norm", "cumsum", "cumprod", "logcumsumexp", "rope", "sort" };

static mlxvk_array row_op(const struct trial *t, mlxvk_array x, int start)
{
    mlxvk_array r = { NULL }, none = { NULL };
    int n = mlxvk_array_dim(x, 1);
    (void)start;
    switch (t->kind) {
    case SUM: OK(mlxvk_sum_axis(&r, x, 1, false, stream), stream); break;
    case LSE: OK(mlxvk_logsumexp_axis(&r, x, 1, false, stream), stream); break;
    case SOFTMAX: OK(mlxvk_softmax_axis(&r, x, 1, true, stream), stream); break;
    case RMS: OK(mlxvk_fast_rms_norm(&r, x, t->operand[0], 1e-5f, stream), stream); break;
    case CUMSUM: OK(mlxvk_cumsum(&r, x, 1, false, true, stream), stream); break;
    case CUMPROD: OK(mlxvk_cumprod(&r, x, 1, false, true, stream), stream); break;
    case LOGCUMSUMEXP: OK(mlxvk_logcumsumexp(&r, x, 1, false, true, stream), stream); break;
    case SORT: OK(mlxvk_sort_axis(&r, x, 1, stream), stream); break;
    default:                                         /* the rows are heads of one token */
        OK(mlxvk_reshape(&r, x, (int[]){ mlxvk_array_dim(x, 0), 1, 1, n }, 4, stream), stream);
        OK(mlxvk_fast_rope(&r, r, n / 2 * 2, false, (mlxvk_optional_float){ 10000, true }, 1, 77, none, stream), stream);
    }
    return r;
}

static void test_rows(void **state)
{
    static const int sizes[] = { 1, 2, 33, 64, 257, 1000, 4097, 20000 };
    (void)state;
    memset(&tally, 0, sizeof tally);
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int op = 0; op < ROW_OPS; op++) {
            mlxvk_dtype type = types[(i + (size_t)op) % 3];
            int rows = sizes[i] > 4000 ? 9 : ALL_ROWS;
            struct trial t = { .apply = row_op, .x = RANDOM(type, 31, rows, sizes[i]), .kind = op,
                               .operand = { RANDOM(type, 32, sizes[i]) } };
            if (op == ROPE && (sizes[i] < 2 || sizes[i] > 4000)) { trial_free(&t); continue; }
            snprintf(t.text, sizeof t.text, "%s of %d %s", row_ops[op], sizes[i], mlxvk_dtype_name(type));
            run_trial(&t, true);
        }
}

/* ---- a model: a prompt in chunks, and token by token ---- */

enum { TOKENS = 150 };

/* Logits of all positions of a prompt that is fed in chunks. */
static uint32_t *logits_of(struct model *m, int chunk, size_t *count)
{
    int32_t ids[TOKENS];
    uint32_t *all = NULL;
    *count = 0;
    model_rewind(m, 0);
    for (int i = 0; i < TOKENS; i++) ids[i] = 3 + i * i * 13 % (m->config.vocab - 5);
    for (int at = 0; at < TOKENS; at += chunk) {
        int n = TOKENS - at < chunk ? TOKENS - at : chunk;
        mlxvk_array tokens = ints(m->gpu->device, ids + at, (int[]){ 1, n }, 2), logits = mlxvk_array_new();
        model_forward(m, tokens, n, WANT_ALL, &logits);
        OK(m->gpu->code, m->gpu->stream);
        OK(mlxvk_astype(&logits, logits, MLXVK_FLOAT32, m->gpu->stream), m->gpu->stream);
        all = realloc(all, 4 * *count + mlxvk_array_nbytes(logits));
        assert_non_null(all);
        OK(mlxvk_array_read(logits, all + *count, mlxvk_array_nbytes(logits), m->gpu->stream), m->gpu->stream);
        *count += mlxvk_array_size(logits);
        mlxvk_array_free(tokens);
        mlxvk_array_free(logits);
    }
    return all;
}

static void test_model(void **state)
{
    static const int chunks[] = { 1, 3, 7, 16, 64, TOKENS };
    (void)state;
    for (size_t k = 0; k < setting_count(); k++) {
        struct safetensors st;
        struct config c;
        struct model m;
        struct gpu gpu;
        struct error e = { "" };
        size_t count, n, differing = 0;
        uint32_t *want;
        assert_true(gpu_open(&gpu, NULL, settings[k], &e) && config_read(&c, "tests/models/tiny-qwen3", &e));
        assert_true(safetensors_open(&st, "tests/models/tiny-qwen3", &e) && model_load(&m, &gpu, &c, &st, NULL, NULL, &e));
        safetensors_close(&st);
        want = logits_of(&m, chunks[COUNT(chunks) - 1], &count);
        for (size_t i = 0; i + 1 < COUNT(chunks); i++) {
            uint32_t *got = logits_of(&m, chunks[i], &n);
            size_t bad = 0;
            assert_int_equal(n, count);
            for (size_t j = 0; j < n; j++) bad += got[j] != want[j];
            if (bad && k) print_error("%s: in chunks of %d %zu of %zu logits differ\n", settings[k], chunks[i], bad, n);
            differing += bad;
            free(got);
        }
        print_message("    %s: %zu of %zu logits differ\n", k ? settings[k] : "without the gate", differing,
                      count * (COUNT(chunks) - 1));
        free(want);
        model_free(&m);
        config_free(&c);
        gpu_close(&gpu);
        if (k) assert_int_equal(differing, 0);
    }
}

static void test_dense(void **state) { (void)state; on_each(dense_products); }
static void test_batched(void **state) { (void)state; on_each(batched_products); }
static void test_gathered(void **state) { (void)state; on_each(gathered_products); }
static void test_quantized(void **state) { (void)state; on_each(quantized_products); }
static void test_chained(void **state) { (void)state; on_each(chained_products); }
static void test_attention(void **state) { (void)state; on_each(attention); }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_dense),     cmocka_unit_test(test_batched),
        cmocka_unit_test(test_gathered),  cmocka_unit_test(test_quantized), cmocka_unit_test(test_chained),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_chunks),    cmocka_unit_test(test_prepared),
        cmocka_unit_test(test_model),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_group("invariant", tests, set_up_poisoned, tear_down);
}
