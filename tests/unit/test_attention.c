/* Attention against sums in double, by each kernel and with keys in parts; rotary embedding at large positions; norms of rows
 * in odd layouts. */
#include "support.h"

#include <math.h>
#include <stdio.h>

enum mask_kind { NO_MASK, CAUSAL, BOOL_MASK, ADDED_MASK };

struct shape { int batch, heads, kv_heads, queries, keys, width, value_width; enum mask_kind mask; bool sinks; };

/* shift: elements before the first one of each operand. */
struct job { struct shape shape; mlxvk_dtype dtype; float scale; int shift; };

enum { MOST_KEYS = 20501 };

static const struct shape shapes[] = {
    { 1, 4, 1,  1, 70, 64,  64, NO_MASK,    true  },
    { 1, 2, 2,  5, 33, 80,  80, CAUSAL,     false },
    { 2, 6, 2,  2, 40, 64, 128, BOOL_MASK,  false },
    { 1, 2, 1, 20, 41, 64,  32, ADDED_MASK, true  },
    { 1, 2, 1,  9,  5, 33,  40, CAUSAL,     true  },                /* rows before the first key */
    { 1, 4, 2,  9,  5, 64,  64, CAUSAL,     false },
    { 1, 4, 1,  1, 50, 64,  64, ADDED_MASK, false },                /* what keeps from the pipeline for one query: masks, */
    { 2, 4, 2,  2, 30, 64,  64, NO_MASK,    false },                /* a second query */
    { 1, 4, 2,  1, 37, 64,  64, CAUSAL,     true  },
};

/* A tensor on the host with its strides, and the array that views the same numbers. */
struct tensor { float *data; int64_t stride[4]; mlxvk_array array; };

/* Half types hold these, too. */
static float noise(struct rng *r) { return (float)random_int(r, -128, 128) / 64.0f; }

/* (b, h, n, d) in one of the layouts that models use: plain, part of a larger cache, or heads and positions swapped.
 * Behind `shift` others. */
static struct tensor tensor(struct rng *r, mlxvk_dtype dtype, const int shape[4], int shift, mlxvk_device device,
                            mlxvk_stream s)
{
    struct tensor t = { .array = mlxvk_array_new() };
    int b = shape[0], h = shape[1], n = shape[2], d = shape[3];
    int capacity = n + random_int(r, 0, 5), order = random_int(r, 0, 1), size = shift + b * h * capacity * d;
    t.data = malloc((size_t)size * sizeof *t.data);
    assert_non_null(t.data);
    for (int i = 0; i < size; i++) t.data[i] = noise(r);
    t.stride[0] = (int64_t)h * capacity * d;
    t.stride[1] = order ? d : (int64_t)capacity * d;
    t.stride[2] = order ? (int64_t)h * d : d;
    t.stride[3] = 1;
    t.array = floats(device, t.data, &size, 1);
    if (dtype != MLXVK_FLOAT32) OK(mlxvk_astype(&t.array, t.array, dtype, s), s);
    OK(mlxvk_as_strided(&t.array, t.array, shape, 4, t.stride, 4, (size_t)shift, s), s);
    memmove(t.data, t.data + shift, sizeof *t.data * (size_t)(size - shift));
    return t;
}

static double at(const struct tensor *t, int b, int h, int n, int d)
{
    return t->data[b * t->stride[0] + h * t->stride[1] + n * t->stride[2] + d];
}

static void tensor_free(struct tensor *t)
{
    free(t->data);
    mlxvk_array_free(t->array);
}

/* One row of scores with its mask applied; -inf where a key is not attended to. */
static void score_row(const struct job *job, const struct tensor *q, const struct tensor *k, const float *mask,
                      double *score, int b, int h, int i)
{
    const struct shape *p = &job->shape;
    for (int j = 0; j < p->keys; j++) {
        double m = p->mask == CAUSAL ? j <= i + p->keys - p->queries : p->mask == NO_MASK ? 1 : mask[i * p->keys + j];
        score[j] = 0;
        for (int d = 0; d < p->width; d++) score[j] += at(q, b, h, i, d) * at(k, b, h / (p->heads / p->kv_heads), j, d);
        score[j] *= job->scale;
        if (p->mask == ADDED_MASK) score[j] += m;
        else if (m == 0) score[j] = -INFINITY;
    }
}

static void reference(const struct job *job, const struct tensor *q, const struct tensor *k, const struct tensor *v,
                      const float *mask, const float *sinks, float *out)
{
    const struct shape *p = &job->shape;
    double score[MOST_KEYS];
    for (int row = 0; row < p->batch * p->heads * p->queries; row++) {
        int i = row % p->queries, h = row / p->queries % p->heads, b = row / p->queries / p->heads;
        double best = p->sinks ? sinks[h] : -1e30, sum;
        score_row(job, q, k, mask, score, b, h, i);
        for (int j = 0; j < p->keys; j++) best = fmax(best, score[j]);
        sum = p->sinks ? exp(sinks[h] - best) : 0;
        for (int j = 0; j < p->keys; j++) sum += score[j] = exp(score[j] - best);
        for (int d = 0; d < p->value_width; d++) {
            double x = 0;
            for (int j = 0; j < p->keys; j++) x += score[j] * at(v, b, h / (p->heads / p->kv_heads), j, d);
            out[row * p->value_width + d] = sum > 0 ? (float)(x / sum) : 0;
        }
    }
}

static mlxvk_array mask_array(const struct shape *p, const float *mask, mlxvk_device device, mlxvk_stream s)
{
    const int shape[2] = { p->queries, p->keys };
    mlxvk_array a = mlxvk_array_new();
    if (p->mask < BOOL_MASK) return a;
    a = floats(device, mask, shape, 2);
    if (p->mask == BOOL_MASK) OK(mlxvk_astype(&a, a, MLXVK_BOOL, s), s);
    return a;
}

/* Errors up to `off`. */
static void attend_job(const struct job *job, double off, mlxvk_device device, mlxvk_stream s, struct rng *r)
{
    const struct shape *p = &job->shape;
    const mlxvk_dtype dtype = job->dtype;
    struct tensor q = tensor(r, dtype, (int[]){ p->batch, p->heads, p->queries, p->width }, job->shift, device, s);
    struct tensor k = tensor(r, dtype, (int[]){ p->batch, p->kv_heads, p->keys, p->width }, job->shift, device, s);
    struct tensor v = tensor(r, dtype, (int[]){ p->batch, p->kv_heads, p->keys, p->value_width }, job->shift, device,
                             s);
    size_t count = (size_t)(p->batch * p->heads * p->queries * p->value_width);
    float sinks[64], *want = malloc(count * sizeof *want);
    float *mask = malloc(sizeof *mask * (size_t)(p->queries * p->keys));
    mlxvk_array out = mlxvk_array_new(), m, sink = mlxvk_array_new();
    assert_non_null(want);
    assert_non_null(mask);
    for (int i = 0; i < p->queries * p->keys; i++)                   /* the first row is masked as a whole */
        mask[i] = p->mask == BOOL_MASK ? (float)(i >= p->keys && random_chance(r, 60)) : random_chance(r, 20) ? -INFINITY : noise(r);
    for (int i = 0; i < p->heads; i++) sinks[i] = noise(r);
    m = mask_array(p, mask, device, s);
    if (p->mask == ADDED_MASK) OK(mlxvk_astype(&m, m, dtype, s), s);
    if (p->sinks) sink = floats(device, sinks, &p->heads, 1);
    if (p->sinks) OK(mlxvk_astype(&sink, sink, dtype, s), s);
    OK(mlxvk_fast_scaled_dot_product_attention(&out, q.array, k.array, v.array, job->scale,
                                               p->mask == CAUSAL ? "causal" : "", m, sink, s), s);
    OK(mlxvk_astype(&out, out, MLXVK_FLOAT32, s), s);
    reference(job, &q, &k, &v, mask, sinks, want);
    expect_floats(out, want, count, off, off, s);
    free(want);
    free(mask);
    mlxvk_array_free(out);
    mlxvk_array_free(m);
    mlxvk_array_free(sink);
    tensor_free(&q);
    tensor_free(&k);
    tensor_free(&v);
}

static void attend_as(const struct shape *p, mlxvk_dtype dtype, double off, mlxvk_device device, mlxvk_stream s,
                      struct rng *r)
{
    attend_job(&(struct job){ *p, dtype, 0.125f, 0 }, off, device, s, r);
}

static void attend(const struct shape *p, mlxvk_device device, mlxvk_stream s, struct rng *r)
{
    attend_as(p, MLXVK_FLOAT32, 1e-5, device, s, r);
}

static void test_attention(void **state)
{
    static const char *const gates[] = { "", "MLX_VK_SDPA_SPLIT_K=3 MLX_VK_SDPA_DECODE_ROWS=4", "MLX_VK_SDPA_SPLIT_K=2",
                                         "MLX_VK_SDPA_DECODE_ROWS=2", "MLX_VK_SDPA_DECODE_ROWS=2 MLX_VK_SDPA_SPLIT_K=3",
                                         "MLX_VK_SDPA_DECODE_ONE_QUERY=1", "MLX_VK_SDPA_DECODE_ONE_QUERY=1 MLX_VK_SDPA_SPLIT_K=3",
                                         "MLX_VK_ENABLE_SDPA_DECODE=0", "MLX_VK_ENABLE_SUBGROUP=0",
                                         "MLX_VK_ENABLE_SDPA_NATIVE=0",
                                         "MLX_VK_MAX_THREADS=256", "MLX_VK_MAX_SHARED_MEMORY=16384",
                                         "MLX_VK_MAX_BINDING_RANGE=4096",
                                         "MLX_VK_ENABLE_SDPA_DECODE=0 MLX_VK_MAX_BINDING_RANGE=2048",
                                         "MLX_VK_SDPA_SPLIT_K=3 MLX_VK_MAX_BINDING_RANGE=1024" };
    (void)state;
    for (size_t g = 0; g < COUNT(gates); g++) {
        mlxvk_device device = open_device(gates[g]);
        mlxvk_stream s = open_stream(device);
        struct rng r = { 7 };
        for (size_t i = 0; i < COUNT(shapes); i++) attend(&shapes[i], device, s, &r);
        mlxvk_stream_free(s);
        mlxvk_device_free(device);
    }
}

/* Not by the kernel for few queries, which takes all of them on a CPU driver. */
#define PROMPT "MLX_VK_POISON=2 MLX_VK_STATS=1 MLX_VK_ENABLE_SDPA_DECODE=0"
#define IN_PARTS PROMPT " MLX_VK_SDPA_SPLIT_K=5"
#define FEW "MLX_VK_POISON=2 MLX_VK_STATS=1"

/* A causal mask where there are more queries than keys: those before the first key have results of zero. By each kernel. */
static void test_more_queries(void **state)
{
    static const char *const gates[] = { FEW, PROMPT, "MLX_VK_POISON=2 MLX_VK_SDPA_SPLIT_K=2",
                                         PROMPT " MLX_VK_ENABLE_COOPERATIVE_MATRIX=0",
                                         "MLX_VK_POISON=2 MLX_VK_ENABLE_SDPA_NATIVE=0",
                                         PROMPT " MLX_VK_MAX_BINDING_RANGE=65536", "MLX_VK_MAX_BINDING_RANGE=4096",
                                         "MLX_VK_POISON=2 MLX_VK_MAX_SHARED_MEMORY=16384" };
    static const struct shape more[] = { { 1, 32, 8, 127, 65, 64, 64, CAUSAL, false }, { 1, 8, 2, 127, 65, 128, 128, CAUSAL, true },
                                         { 2, 4, 1, 8, 7, 128, 64, CAUSAL, false } };
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    static const double off[] = { 1e-5, 2e-3, 1.6e-2 };
    (void)state;
    for (size_t g = 0; g < COUNT(gates); g++) {
        struct setting t = start(gates[g]);
        struct rng r = { 19 };
        for (size_t i = 0; i < COUNT(more); i++)
            for (int d = 0; d < (more[i].sinks ? 1 : 3); d++) attend_as(&more[i], dtypes[d], off[d], t.device, t.stream, &r);
        finish(&t);
    }
}

static double off_of(mlxvk_dtype t) { return t == MLXVK_BFLOAT16 ? 2e-2 : t == MLXVK_FLOAT16 ? 3e-3 : 1e-5; }

/* What the kernels for prompts take: queries of several heads in a block, blocks with rows that are not there, tiles
 * with keys that are not there; enough rows to fill a large GPU, and not; scores that grow from tile to tile. By each
 * kernel. */
static void test_prompts(void **state)
{
    static const char *const gates[] = { PROMPT, PROMPT " MLX_VK_ENABLE_COOPERATIVE_MATRIX=0",
                                         PROMPT " MLX_VK_MAX_SHARED_MEMORY=32768",
                                         PROMPT " MLX_VK_MAX_BINDING_RANGE=65536",
                                         IN_PARTS };
    static const struct job prompts[] = {
        { { 1, 4, 2, 70, 70, 128, 128, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 },
        { { 2, 4, 1, 37, 101, 64, 64, CAUSAL, true }, MLXVK_BFLOAT16, 0.125f, 8 },
        { { 1, 2, 2, 65, 300, 96, 80, NO_MASK, true }, MLXVK_FLOAT16, 0.125f, 0 },
        { { 1, 3, 1, 90, 47, 80, 128, CAUSAL, false }, MLXVK_BFLOAT16, 0.125f, 0 },
        { { 1, 2, 1, 77, 129, 72, 40, BOOL_MASK, false }, MLXVK_BFLOAT16, 0.125f, 16 },
        { { 2, 2, 1, 66, 97, 128, 64, ADDED_MASK, true }, MLXVK_FLOAT16, 0.125f, 0 },
        { { 1, 2, 1, 40, 260, 128, 128, CAUSAL, true }, MLXVK_FLOAT16, 2, 0 },
        { { 1, 2, 2, 130, 200, 64, 64, CAUSAL, false }, MLXVK_BFLOAT16, 2, 0 },
        { { 1, 33, 3, 261, 150, 64, 56, CAUSAL, true }, MLXVK_BFLOAT16, 0.125f, 0 },
        { { 1, 33, 11, 257, 113, 128, 128, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 },
        { { 1, 33, 3, 262, 67, 80, 80, BOOL_MASK, true }, MLXVK_BFLOAT16, 0.125f, 0 },
    };
    (void)state;
    for (size_t g = 0; g < COUNT(gates); g++) {
        struct setting t = start(gates[g]);
        struct rng r = { 23 };
        size_t many = 0;                                             /* a CPU driver would take minutes for those */
        assert_int_equal(mlxvk_device_info_get_size(&many, t.device, "cooperative_matrix2"), 0);
        for (size_t i = 0; i < COUNT(prompts) - (many ? 0 : 3); i++)
            attend_job(&prompts[i], off_of(prompts[i].dtype), t.device, t.stream, &r);
        finish(&t);
    }
}

/* What the kernel that keeps scores in registers assumes, one broken a case: it takes the first four alone, where the
 * device has cooperative matrices that are converted. */
static void test_prompt_assumptions(void **state)
{
    static const struct { const char *gates; struct job job; } cases[] = {
        { PROMPT, { { 1, 2, 1, 70, 40, 64, 64, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 } },
        { PROMPT, { { 1, 2, 1, 70, 40, 72, 128, NO_MASK, false }, MLXVK_BFLOAT16, 0.125f, 8 } },
        { PROMPT, { { 1, 2, 1, 70, 40, 64, 64, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 4 } },   /* copied first */
        { PROMPT, { { 1, 2, 1, 70, 40, 60, 64, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 } },   /* copied with zeros behind */
        { PROMPT, { { 1, 2, 1, 70, 40, 64, 64, CAUSAL, false }, MLXVK_FLOAT32, 0.125f, 0 } },
        /* rows are not aligned, and few */
        { PROMPT, { { 1, 2, 1, 9, 20, 60, 64, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 } },
        /* features beyond 128 */
        { PROMPT, { { 1, 2, 1, 70, 40, 136, 64, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 } },
        { PROMPT, { { 1, 2, 1, 70, 40, 64, 136, CAUSAL, false }, MLXVK_BFLOAT16, 0.125f, 0 } },
        /* the scale is not positive */
        { PROMPT, { { 1, 2, 1, 70, 40, 64, 64, CAUSAL, false }, MLXVK_BFLOAT16, -0.125f, 0 } },
        { PROMPT " MLX_VK_MAX_SHARED_MEMORY=32768",
          { { 1, 2, 1, 70, 40, 128, 128, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 } },
        { PROMPT " MLX_VK_ENABLE_COOPERATIVE_MATRIX=0",
          { { 1, 2, 1, 70, 40, 64, 64, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 } },
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct setting t = start(cases[i].gates);
        struct rng r = { 29 };
        size_t able = 0;
        uint64_t before = dispatches_of(cases[i].gates, "attention_coopmat2");
        assert_int_equal(mlxvk_device_info_get_size(&able, t.device, "cooperative_matrix2"), 0);
        attend_job(&cases[i].job, off_of(cases[i].job.dtype), t.device, t.stream, &r);
        assert_int_equal(dispatches_of(cases[i].gates, "attention_coopmat2") - before, i < 4 && able);
        finish(&t);
    }
}

static void find_parts(const mlxvk_stat *stat, void *parts)
{
    if (!strcmp(stat->family, "attention parts") && !strcmp(stat->kernel, "attention by matrices"))
        sscanf(strrchr(stat->signature, ':'), ": %u", (unsigned *)parts);
}

/* Few queries of many keys, whose workgroups share rows: parts that no row of a block attends to, the last one shorter,
 * queries of several heads in a block. Each of what makes parts is then taken away: many keys, few rows; and of what has them
 * before the kernel for few queries: many keys, more than one block of its rows. */
static void test_prompt_parts(void **state)
{
    static const struct { struct job job; unsigned parts; const char *gates; } cases[] = {
        { { { 1, 4, 2, 16, 1100, 64, 64, CAUSAL, false }, MLXVK_BFLOAT16, 0.125f, 0 }, 4, PROMPT },
        { { { 2, 2, 1, 33, 777, 128, 80, BOOL_MASK, true }, MLXVK_FLOAT16, 0.125f, 0 }, 3, PROMPT },
        { { { 1, 2, 2, 70, 1601, 80, 128, CAUSAL, true }, MLXVK_BFLOAT16, 1, 0 }, 6, PROMPT },
        { { { 1, 1, 1, 600, 600, 64, 64, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 }, 2, PROMPT },
        { { { 1, 4, 2, 16, 511, 64, 64, CAUSAL, false }, MLXVK_BFLOAT16, 0.125f, 0 }, 0, PROMPT },
        { { { 2, 34, 34, 16, 512, 64, 64, CAUSAL, false }, MLXVK_BFLOAT16, 0.125f, 0 }, 0, PROMPT },
        { { { 1, 8, 2, 4, 4100, 64, 64, CAUSAL, false }, MLXVK_BFLOAT16, 0.125f, 0 }, 13, FEW },
        { { { 1, 8, 2, 4, 4095, 64, 64, CAUSAL, false }, MLXVK_BFLOAT16, 0.125f, 0 }, 0, FEW },
        { { { 1, 8, 2, 2, 4100, 64, 64, CAUSAL, false }, MLXVK_BFLOAT16, 0.125f, 0 }, 0, FEW },
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct setting t = start(cases[i].gates);
        struct rng r = { 41 };
        size_t able = 0;
        unsigned parts = 0;
        const char *type = "";
        assert_int_equal(mlxvk_device_info_get_size(&able, t.device, "cooperative_matrix2"), 0);
        OK_DEVICE(mlxvk_device_info_get_string(&type, t.device, "type"), t.device);
        OK_DEVICE(mlxvk_reset_stats(t.device), t.device);
        attend_job(&cases[i].job, off_of(cases[i].job.dtype), t.device, t.stream, &r);
        OK_DEVICE(mlxvk_stats_report(t.device, find_parts, &parts), t.device);
        if (able && !strcmp(type, "discrete")) assert_int_equal(parts, cases[i].parts);    /* of so many processors */
        finish(&t);
    }
}

/* Rows that begin anywhere are copied for the kernel for few queries, too; but not where features are no whole steps. */
static void test_decode_copies(void **state)
{
    static const struct { struct job job; bool taken; } cases[] = {
        { { { 1, 8, 2, 1, 40, 64, 64, NO_MASK, false }, MLXVK_FLOAT16, 0.125f, 0 }, true },
        { { { 1, 8, 2, 1, 40, 64, 64, NO_MASK, false }, MLXVK_FLOAT16, 0.125f, 1 }, true },
        { { { 1, 8, 2, 1, 40, 64, 64, NO_MASK, false }, MLXVK_FLOAT32, 0.125f, 3 }, true },
        { { { 1, 8, 2, 1, 40, 60, 64, NO_MASK, false }, MLXVK_BFLOAT16, 0.125f, 0 }, false },
    };
    const char *gates = FEW;
    bool able = false;
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct setting t = start(gates);
        struct rng r = { 37 };
        uint64_t before = dispatches_of(gates, "attention_decode");
        attend_job(&cases[i].job, off_of(cases[i].job.dtype), t.device, t.stream, &r);
        if (!i) able = dispatches_of(gates, "attention_decode") > before;          /* the first is not copied */
        assert_int_equal(dispatches_of(gates, "attention_decode") > before, cases[i].taken && able);
        finish(&t);
    }
}

/* Widths that are no whole eights, of queries and keys, of values, of both: copies with zeros behind, which hold NaN before
 * that. In views that begin anywhere; of few and of many queries, by each kernel; where copies do not fit, and where there are
 * too few multiplications for them. */
static void test_odd_widths(void **state)
{
    static const char *const gates[] = { FEW, PROMPT, IN_PARTS, PROMPT " MLX_VK_ENABLE_COOPERATIVE_MATRIX=0",
                                         PROMPT " MLX_VK_MAX_BINDING_RANGE=65536", "MLX_VK_MAX_BINDING_RANGE=4096",
                                         "MLX_VK_POISON=2 MLX_VK_MAX_SHARED_MEMORY=16384", "MLX_VK_ENABLE_SUBGROUP=0" };
    static const struct job jobs[] = {
        { { 1, 4, 2, 70, 70, 65, 65, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 },
        { { 2, 4, 1, 37, 101, 33, 33, NO_MASK, true }, MLXVK_BFLOAT16, 0.125f, 1 },
        { { 1, 2, 2, 65, 90, 100, 64, BOOL_MASK, false }, MLXVK_BFLOAT16, 0.125f, 0 },
        { { 1, 2, 1, 66, 97, 64, 127, ADDED_MASK, true }, MLXVK_FLOAT16, 0.125f, 3 },
        { { 1, 2, 1, 40, 60, 129, 131, CAUSAL, true }, MLXVK_BFLOAT16, 0.125f, 0 },
        { { 1, 4, 2, 70, 70, 65, 65, NO_MASK, true }, MLXVK_FLOAT32, 0.125f, 0 },
        { { 1, 2, 1, 33, 60, 255, 249, ADDED_MASK, false }, MLXVK_FLOAT32, 0.125f, 2 },
        { { 2, 8, 2, 1, 200, 65, 66, NO_MASK, true }, MLXVK_BFLOAT16, 0.125f, 1 },
        { { 1, 8, 8, 3, 90, 127, 1, CAUSAL, false }, MLXVK_FLOAT16, 0.125f, 0 },
        { { 1, 60, 10, 40, 40, 1, 3, CAUSAL, false }, MLXVK_FLOAT32, 0.125f, 0 },
        { { 1, 2, 1, 9, 20, 65, 65, CAUSAL, true }, MLXVK_FLOAT16, 0.125f, 0 },
        { { 1, 2, 1, 40, 0, 65, 65, NO_MASK, false }, MLXVK_FLOAT16, 0.125f, 0 },
        { { 1, 2, 1, 100, 60, 0, 8, NO_MASK, false }, MLXVK_FLOAT32, 0.125f, 0 },
    };
    (void)state;
    for (size_t g = 0; g < COUNT(gates); g++) {
        struct setting t = start(gates[g]);
        struct rng r = { 43 };
        for (size_t i = 0; i < COUNT(jobs); i++)
            attend_job(&jobs[i], off_of(jobs[i].dtype), t.device, t.stream, &r);
        finish(&t);
    }
}

/* A query and a key that are no numbers: so is its row, and those of all that attend to the key. */
static void prompt_nan(const char *gates)
{
    enum { HEADS = 2, QUERIES = 70, KEYS = 90, WIDTH = 64, BAD_QUERY = 20, BAD_KEY = 60 };
    static const mlxvk_dtype types[] = { MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    static float q[HEADS * QUERIES * WIDTH], k[HEADS * KEYS * WIDTH], out[HEADS * QUERIES * WIDTH];
    struct setting t = start(gates);
    struct rng r = { 31 };
    for (size_t i = 0; i < COUNT(q); i++) q[i] = noise(&r);
    for (size_t i = 0; i < COUNT(k); i++) k[i] = noise(&r);
    q[BAD_QUERY * WIDTH + 3] = NAN;
    k[(KEYS + BAD_KEY) * WIDTH + 5] = NAN;
    for (size_t d = 0; d < COUNT(types); d++) {
        mlxvk_array x = floats(t.device, q, (int[]){ 1, HEADS, QUERIES, WIDTH }, 4), none = { NULL }, y = { NULL };
        mlxvk_array z = floats(t.device, k, (int[]){ 1, HEADS, KEYS, WIDTH }, 4);
        mlxvk_array v = normals((int[]){ 1, HEADS, KEYS, WIDTH }, 4, types[d], 1, t.stream);
        OK(mlxvk_astype(&x, x, types[d], t.stream) || mlxvk_astype(&z, z, types[d], t.stream), t.stream);
        OK(mlxvk_fast_scaled_dot_product_attention(&y, x, z, v, 0.125f, "causal", none, none, t.stream), t.stream);
        OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, t.stream), t.stream);
        OK(mlxvk_array_read(y, out, sizeof out, t.stream), t.stream);
        for (int i = 0; i < HEADS * QUERIES * WIDTH; i++) {
            int row = i / WIDTH % QUERIES, first = i / WIDTH < QUERIES;
            assert_int_equal(isnan(out[i]) != 0, first ? row == BAD_QUERY : row + KEYS - QUERIES >= BAD_KEY);
        }
        mlxvk_array_free(x);
        mlxvk_array_free(y);
        mlxvk_array_free(z);
        mlxvk_array_free(v);
    }
    finish(&t);
}

static void test_prompt_nan(void **state)
{
    (void)state;
    prompt_nan(IN_PARTS);
    prompt_nan(PROMPT);
}

/* More parts than a thread loads at once, more rows than are joined at once. Parts of 1024 keys, of which a thread has twice
 * as many on their way, with ends in either half; one query and several, rows narrower than their lanes read. */
static void test_many_parts(void **state)
{
    static const struct shape shapes_of_parts[] = {
        { 1, 4, 1, 1, 128, 128, 128, NO_MASK, true }, { 2, 5, 1, 1, 127, 128, 128, BOOL_MASK, false },
        { 1, 4, 1, 1, 20501, 32, 32, NO_MASK, true }, { 1, 2, 2, 1, 20480, 16, 16, CAUSAL, false },
        { 1, 2, 1, 2, 20499, 40, 24, ADDED_MASK, true },
    };
    mlxvk_device device = open_device("MLX_VK_SDPA_SPLIT_K=20 MLX_VK_SDPA_DECODE_ROWS=8");
    mlxvk_stream s = open_stream(device);
    struct rng r = { 11 };
    (void)state;
    for (size_t i = 0; i < COUNT(shapes_of_parts); i++) attend(&shapes_of_parts[i], device, s, &r);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* Barriers of several attentions at once, which do not depend on each other, and whose parts' results cannot lie in the
 * same memory: each has twice as many as the one in front. The results must be those of one after another. */
static uint64_t barriers_at_once(const char *gates)
{
    enum { AT_ONCE = 5, KEYS = 150, WIDTH = 64, HEADS = 4 << (AT_ONCE - 1) };
    static float want[AT_ONCE][HEADS * WIDTH];
    const mlxvk_array none = { NULL };
    struct setting t = start(gates);
    mlxvk_array q[AT_ONCE], k[AT_ONCE], out[AT_ONCE], again[AT_ONCE];
    mlxvk_vector_array all = mlxvk_vector_array_new();
    uint64_t before;
    for (int i = 0; i < AT_ONCE; i++) {
        q[i] = normals((int[]){ 1, 4 << i, 1, WIDTH }, 4, MLXVK_FLOAT32, 2 * (uint32_t)i, t.stream);
        k[i] = normals((int[]){ 1, 2, KEYS, WIDTH }, 4, MLXVK_FLOAT32, 2 * (uint32_t)i + 1, t.stream);
        out[i] = mlxvk_array_new();
        again[i] = mlxvk_array_new();
        OK(mlxvk_fast_scaled_dot_product_attention(&out[i], q[i], k[i], k[i], 0.125f, "", none, none, t.stream), t.stream);
        OK(mlxvk_array_read(out[i], want[i], sizeof(float) * (size_t)(WIDTH * 4 << i), t.stream), t.stream);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        OK(mlxvk_fast_scaled_dot_product_attention(&again[i], q[i], k[i], k[i], 0.125f, "", none, none, t.stream), t.stream);
        OK(mlxvk_vector_array_append_value(all, again[i]), t.stream);
    }
    before = stats_of(t.device).barriers;
    OK(mlxvk_eval(all), t.stream);
    before = stats_of(t.device).barriers - before;
    for (int i = 0; i < AT_ONCE; i++) {
        expect_floats(again[i], want[i], (size_t)(WIDTH * 4 << i), 0, 0, t.stream);
        mlxvk_array_free(q[i]);
        mlxvk_array_free(k[i]);
        mlxvk_array_free(out[i]);
        mlxvk_array_free(again[i]);
    }
    mlxvk_vector_array_free(all);
    finish(&t);
    return before;
}

/* Attentions in parts count them in the same words, so that there is a barrier between two of them. The first may have one
 * in front, for what was before. */
static void test_parts_side_by_side(void **state)
{
    (void)state;
    assert_in_range(barriers_at_once("MLX_VK_ENABLE_SDPA_DECODE=0"), 0, 1);
    need_capability("subgroup");                     /* without, no kernel counts them */
    assert_in_range(barriers_at_once("MLX_VK_SDPA_SPLIT_K=2"), 4, 5);
}

/* Heads wider than the kernels' limit, no keys at all, no batch of keys enough for parts. */
static void test_attention_edges(void **state)
{
    static const struct shape wide = { 1, 2, 1, 3, 7, 264, 264, CAUSAL, false };
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array q = mlxvk_array_new(), k = mlxvk_array_new(), out = mlxvk_array_new();
    struct rng r = { 3 };
    (void)state;
    attend(&wide, device, s, &r);
    OK(mlxvk_ones(&q, (int[]){ 1, 2, 1, 8 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&k, (int[]){ 1, 1, 0, 8 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_fast_scaled_dot_product_attention(&out, q, k, k, 1, "", (mlxvk_array){ NULL }, (mlxvk_array){ NULL }, s), s);
    expect_floats(out, (float[16]){ 0 }, 16, 0, 0, s);
    OK(mlxvk_ones(&q, (int[]){ 1, 65536, 1, 8 }, 4, MLXVK_FLOAT32, s), s);      /* more than kernels count for one of keys */
    OK(mlxvk_ones(&k, (int[]){ 1, 1, 3, 8 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_fast_scaled_dot_product_attention(&out, q, k, k, 1, "", (mlxvk_array){ NULL }, (mlxvk_array){ NULL }, s), s);
    OK(mlxvk_min(&out, out, false, s), s);
    expect_floats(out, (float[]){ 1 }, 1, 1e-6, 0, s);
    REFUSED(mlxvk_fast_scaled_dot_product_attention(&out, q, q, k, 1, "", (mlxvk_array){ NULL }, (mlxvk_array){ NULL }, s),
            MLXVK_ERROR_SHAPE, s, "do not match");
    OK(mlxvk_ones(&q, (int[]){ 0, 8, 4, 64 }, 4, MLXVK_FLOAT16, s), s);
    OK(mlxvk_ones(&k, (int[]){ 0, 2, 5000, 64 }, 4, MLXVK_FLOAT16, s), s);
    OK(mlxvk_fast_scaled_dot_product_attention(&out, q, k, k, 1, "causal", (mlxvk_array){ NULL }, (mlxvk_array){ NULL }, s), s);
    OK(mlxvk_array_eval(out), s);
    OK(mlxvk_ones(&q, (int[]){ 1, 65536, 1, 8 }, 4, MLXVK_FLOAT32, s), s);
    REFUSED(mlxvk_fast_scaled_dot_product_attention(&out, q, q, q, 1, "causal", q, (mlxvk_array){ NULL }, s), MLXVK_ERROR_ARGUMENT, s,
            "causal");
    mlxvk_array_free(q);
    mlxvk_array_free(k);
    mlxvk_array_free(out);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* base 1 makes the position itself the angle, exactly: what comes out of (1, 0) is its cosine and sine. */
static void test_rope_positions(void **state)
{
    static const int offsets[] = { 0, 3, 355, 4000, 39990, 131070, 16777000 };
    enum { TOKENS = 40 };
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array x = mlxvk_array_new(), y = mlxvk_array_new(), offset = mlxvk_array_new();
    float in[2 * TOKENS], want[2 * TOKENS];
    (void)state;
    for (int i = 0; i < 2 * TOKENS; i++) in[i] = i % 2 == 0;
    x = floats(device, in, (int[]){ 1, TOKENS, 2 }, 3);
    for (size_t k = 0; k < COUNT(offsets); k++) {
        const int32_t at = offsets[k];
        for (int i = 0; i < TOKENS; i++) {
            want[2 * i] = (float)cos(0.5 * (at + i));
            want[2 * i + 1] = (float)sin(0.5 * (at + i));
        }
        OK(mlxvk_fast_rope(&y, x, 2, true, (mlxvk_optional_float){ 1, true }, 0.5f, at, (mlxvk_array){ NULL }, s), s);
        expect_floats(y, want, 2 * TOKENS, 0, 3e-7, s);
        offset = ints(device, &at, NULL, 0);
        OK(mlxvk_fast_rope_dynamic(&y, x, 2, false, (mlxvk_optional_float){ 1, true }, 0.5f, offset, (mlxvk_array){ NULL }, s), s);
        expect_floats(y, want, 2 * TOKENS, 0, 3e-7, s);
        mlxvk_array_free(offset);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* Rows whose leading dimensions do not merge: the same as for a copy of them. */
static void test_norm_layouts(void **state)
{
    enum { A = 2, B = 3, C = 2, D = 3, N = 24, SIZE = A * B * C * D * N };
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    float data[SIZE], want[SIZE];
    struct rng r = { 5 };
    mlxvk_array x, y = mlxvk_array_new(), z = mlxvk_array_new();
    (void)state;
    for (int i = 0; i < SIZE; i++) data[i] = noise(&r);
    x = floats(device, data, (int[]){ A, B, C, D, N }, 5);
    OK(mlxvk_transpose_axes(&x, x, (int[]){ 3, 1, 2, 0, 4 }, 5, s), s);
    OK(mlxvk_contiguous(&y, x, false, s), s);
    for (int layer = 0; layer < 2; layer++) {
        const mlxvk_array none = { NULL };
        if (layer) OK(mlxvk_fast_layer_norm(&z, y, none, none, 1e-5f, s), s);
        else OK(mlxvk_fast_rms_norm(&z, y, none, 1e-5f, s), s);
        OK(mlxvk_array_read(z, want, sizeof want, s), s);
        if (layer) OK(mlxvk_fast_layer_norm(&z, x, none, none, 1e-5f, s), s);
        else OK(mlxvk_fast_rms_norm(&z, x, none, 1e-5f, s), s);
        expect_floats(z, want, SIZE, 1e-6, 1e-6, s);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_attention), cmocka_unit_test(test_many_parts), cmocka_unit_test(test_parts_side_by_side), cmocka_unit_test(test_attention_edges),
                                        cmocka_unit_test(test_more_queries), cmocka_unit_test(test_prompts),
                                        cmocka_unit_test(test_prompt_nan), cmocka_unit_test(test_prompt_parts), cmocka_unit_test(test_prompt_assumptions),
                                        cmocka_unit_test(test_decode_copies), cmocka_unit_test(test_odd_widths),
                                        cmocka_unit_test(test_rope_positions), cmocka_unit_test(test_norm_layouts) };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_group("attention", tests, NULL, NULL);
}
