/* Cliffs: work that takes many times what nearly the same work takes. Walks neighbours (sizes, layouts, offsets, dtypes, batches)
 * and fails where a case takes more than 1.5 times what its better neighbour takes, work for work.
 *
 *     build/bench/bench_cliffs [part of a family's name]      (make bench-cliffs)
 *
 * A case's work is the time that its bytes take at the copy bandwidth, or its arithmetic at the best speed that its family
 * reached in this run, whichever is longer. What a launch takes is subtracted, and nothing is expected to take less than a few
 * of them. Each operation waits for the one before it, and has operands that no cache holds. Recording counts, in a launch, too.
 * A CPU driver gets sizes that it can do; its times are those of all threads together. */
#include <ctype.h>
#include <math.h>
#include "bench.h"

enum { PARAMS = 12, OPERANDS = 4, COPIES = 16, CASES = 2048, PAIRS = 2 * CASES, PASSES = 6, CLASSES = 4, FEW_LAUNCHES = 3 };
static const double limit = 1.5, far_over = 3;       /* noise is not so large */

struct work { double bytes, operations; };

/* A line of neighbours: a base case, on a GPU and on a CPU driver, and what changes. A word is one neighbour of the base
 * ("k-1", "batch*16,m/4": several changes at once) or a walk ("m=1..64": each is compared with those before and after it). */
struct line { const char *gpu_base, *cpu_base, *changes; };

/* One operation: what its numbers are called, how its operands are made, how it is called. */
struct family {
    const char *name, *params[PARAMS], *defaults;
    struct work (*prepare)(const int *p);
    int (*apply)(const int *p, mlxvk_array *y);
    const struct line *lines;
};
enum { DTYPE, OFFSET, FIRST };                       /* every family's first numbers: index in dtypes, elements before an operand */

struct sample {
    const struct family *family;
    int p[PARAMS];
    struct work work;
    double seconds;
};

static struct sample samples[CASES];
static int sample_count, pair_count;
static struct { int of, neighbour; } pairs[PAIRS];
static double launch, copy_speed;                    /* seconds; bytes a second */
static mlxvk_array sets[COPIES][OPERANDS], *x = sets[0];            /* of the case that is measured; they take turns */
static int copies;
static const double cold = 192e6;                    /* bytes of all turns, at least: more than caches hold */

static void release(mlxvk_array *a)
{
    mlxvk_array_free(*a);
    a->ctx = NULL;
}

/* ---- operands: views of one array of random elements for each dtype ---- */

static struct { mlxvk_dtype dtype; const char *name; mlxvk_array pool; } dtypes[] = {
    { MLXVK_FLOAT32, "f32", { NULL } }, { MLXVK_FLOAT16, "f16", { NULL } }, { MLXVK_BFLOAT16, "bf16", { NULL } },
    { MLXVK_COMPLEX64, "c64", { NULL } }, { MLXVK_UINT8, "u8", { NULL } }, { MLXVK_INT32, "i32", { NULL } },
    { MLXVK_UINT32, "u32", { NULL } },
};
enum { F32, F16, BF16, C64, U8, I32, U32, DTYPES };
static size_t used;                                  /* elements of the pools that the case has */

static int pool_size(void) { return gpu ? 1 << 28 : 1 << 22; }

static double element(int dtype) { return (double)mlxvk_dtype_size(dtypes[dtype].dtype); }

static mlxvk_array pool_of(int dtype)
{
    mlxvk_array *a = &dtypes[dtype].pool, none = { NULL };
    mlxvk_dtype as = dtypes[dtype].dtype;
    int n = pool_size(), whole = dtype >= U8;
    if (a->ctx) return *a;
    if (whole) check(mlxvk_random_bits(a, &n, 1, (int)element(dtype), none, stream), "random_bits");
    else check(mlxvk_random_normal(a, &n, 1, dtype == C64 ? MLXVK_FLOAT32 : as, 0, 1, none, stream), "random_normal");
    if (whole) check(mlxvk_view(a, *a, as, stream), "view");
    else check(mlxvk_astype(a, *a, as, stream), "astype");
    check(mlxvk_array_eval(*a), "eval");
    return *a;
}

static mlxvk_array strided(int dtype, int offset, const int *shape, const int64_t *strides, size_t ndim, int64_t elements)
{
    mlxvk_array a = { NULL };
    if ((int64_t)used + elements + offset > pool_size()) { fprintf(stderr, "a case is larger than the pool\n"); exit(1); }
    check(mlxvk_as_strided(&a, pool_of(dtype), shape, ndim, strides, ndim, used + (size_t)offset, stream), "as_strided");
    used = (used + (size_t)elements + (size_t)offset + 255) / 256 * 256;
    return a;
}

static mlxvk_array dense(int dtype, int offset, const int *shape, size_t ndim)
{
    int64_t strides[8], elements = 1;
    for (size_t i = ndim; i-- > 0; elements *= shape[i]) strides[i] = elements;
    return strided(dtype, offset, shape, strides, ndim, elements);
}

static mlxvk_array matrix(int dtype, int offset, int batch, int rows, int columns, bool transposed)
{
    int shape[3] = { batch, rows, columns }, lead = batch == 1;
    int64_t size = (int64_t)rows * columns, strides[3] = { size, transposed ? 1 : columns, transposed ? rows : 1 };
    return strided(dtype, offset, shape + lead, strides + lead, (size_t)(3 - lead), size * batch);
}

/* `count` random positions below n. */
static mlxvk_array positions(int count, int n)
{
    static uint64_t state = 1;
    int32_t *at = malloc((size_t)count * sizeof *at);
    mlxvk_array a = { NULL };
    if (!at) exit(1);
    for (int i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at[i] = (int32_t)((uint32_t)(state >> 33) % (uint32_t)n);
    }
    check(mlxvk_array_new_data_device(&a, at, &count, 1, MLXVK_INT32, device), "indices");
    free(at);
    return a;
}

/* Operations that only move bytes: a CPU driver takes its time by elements, too. */
static struct work moved(int dtype, double elements) { return (struct work){ elements * element(dtype), gpu ? 0 : elements }; }

/* Those that compute: on a CPU driver loads and arithmetic take turns, and two bytes count as an operation. */
static struct work computed(double bytes, double operations)
{
    return (struct work){ gpu ? bytes : 0, gpu ? operations : operations + bytes / 2 };
}

/* ---- products ---- */

enum { M = FIRST, K, N, AT, BT, C, BATCH };          /* at, bt: seen transposed; c: 1 adds a row, 2 a matrix */

static struct work product_prepare(const int *p)
{
    double m = p[M], k = p[K], n = p[N];
    x[0] = matrix(p[DTYPE], p[OFFSET], p[BATCH], p[M], p[K], p[AT]);
    x[1] = matrix(p[DTYPE], p[OFFSET], p[BATCH], p[K], p[N], p[BT]);
    if (p[C]) x[2] = matrix(p[DTYPE], p[OFFSET], 1, p[C] == 2 ? p[M] : 1, p[N], false);
    return computed(p[BATCH] * (m * k + k * n + m * n + (p[C] == 2 ? m * n : 0)) * element(p[DTYPE]), 2.0 * p[BATCH] * m * k * n);
}

static int product_apply(const int *p, mlxvk_array *y)
{
    return p[C] ? mlxvk_addmm(y, x[2], x[0], x[1], 1, 1, stream) : mlxvk_matmul(y, x[0], x[1], stream);
}

static const struct line product_lines[] = {
    /* those that were known first */
    { "m=4096 k=4096 n=4096 dtype=bf16", "m=192 k=192 n=192 dtype=bf16",
      "m-1,k-1,n-1 c=1 c=2 k-1 k+1 m-1 m+1 n-1 n+1 bt=0 at=1 at=1,bt=0 offset=1 dtype=f16 batch=4,m/2,n/2" },
    { "m=4096 k=4096 n=4096", "m=192 k=192 n=192",
      "m-1,k-1,n-1 c=1 c=2 k-1 k+1 m-1 m+1 n-1 n+1 bt=0 at=1 at=1,bt=0 offset=1 batch=4,m/2,n/2" },
    { "m=16 k=4096 n=4096", "m=16 k=512 n=256", "m=32,n*3 k-1 k+1 n-1 n+1 offset=1 bt=0" },
    { "m=1 k=4096 n=4096 dtype=bf16", "m=1 k=1024 n=512 dtype=bf16", "k-1 k+1 n-1 n+1 offset=1 bt=0 c=1 dtype=f16 dtype=f32 n*3" },
    { "k=4096 n=4096 dtype=bf16", "k=512 n=256 dtype=bf16", "m=1..65" },
    { "k=4096 n=4096", "k=512 n=256", "m=1..65" },
    { "k=4096 n=4096 bt=0 dtype=bf16", NULL, "m=1..65" },
    { "m=4096 k=4096 dtype=bf16", "m=256 k=512", "n=1..17" },
    { "m=512 k=1024 n=1024 dtype=bf16", "m=64 k=256 n=128", "k=1023..1025 k=2047..2049 k=4095..4097 k=8191..8193 k=255..257" },
    { "m=8 k=4096 n=4096 dtype=bf16", "m=8 k=512 n=128", "k=511..513 k=1023..1025 k=2047..2049 k=8191..8193" },
    { "m=1 k=4096 n=4096", "m=1 k=512 n=256", "k=1023..1025 k=2047..2049 k=4095..4097 k=8191..8193" },
    { "m=512 k=4096 n=4096 dtype=bf16", "m=96 k=256 n=96 dtype=bf16", "m+1 m-1 k+8 k+2 n+8 n+2 offset=1 offset=8 c=1 dtype=f16" },
    { "m=128 k=4096 n=4096 dtype=f16", "m=64 k=512 n=64 dtype=f16", "m+1 m-1 k+1 n+1 c=1 bt=0 dtype=bf16 dtype=f32" },
    { "m=128 k=128 n=128 batch=512 dtype=bf16", "m=32 k=64 n=32 batch=16 dtype=bf16",
      "batch-1 batch+1 m-1 k-1 n-1 offset=1 bt=0 at=1 c=1 dtype=f16 batch/4,m*2,n*2" },
    { "m=1 k=1024 n=1024 batch=64 dtype=bf16", "m=1 k=256 n=128 batch=8 dtype=bf16", "batch+1 k-1 n-1 bt=0 offset=1 batch=1,n*64" },
    { 0 },
};

/* ---- quantized products; 16 bits: the same product of what is not quantized ---- */

enum { BITS = AT, GROUP, STORED, PLAIN = 16, UNPACKING = 3 };   /* stored: 0: K x N, not to be transposed; operations a weight */

static struct work quantized_prepare(const int *p)
{
    int d = p[DTYPE], n = p[STORED] ? p[N] : p[K], k = p[STORED] ? p[K] : p[N];
    double weights = (double)n * k, groups = weights / p[GROUP], x_and_y;
    x[0] = matrix(d, p[OFFSET], 1, p[M], p[K], false);
    if (p[BITS] == PLAIN) x[1] = matrix(d, 0, 1, p[K], p[N], p[STORED]);
    else {
        x[1] = matrix(U32, 0, 1, n, k / 32 * p[BITS], false);
        x[2] = matrix(d, 0, 1, n, k / p[GROUP], false);
        x[3] = matrix(d, 0, 1, n, k / p[GROUP], false);
    }
    x_and_y = (double)p[M] * (p[K] + p[N]) * element(d);
    if (p[BITS] == PLAIN) return computed(weights * element(d) + x_and_y, 2 * p[M] * weights);
    return computed(weights * p[BITS] / 8 + 2 * groups * element(d) + x_and_y, (2 * p[M] + UNPACKING) * weights);
}

static int quantized_apply(const int *p, mlxvk_array *y)
{
    mlxvk_optional_int group = { p[GROUP], true }, bits = { p[BITS], true };
    if (p[BITS] == PLAIN) return mlxvk_matmul(y, x[0], x[1], stream);
    return mlxvk_quantized_matmul(y, x[0], x[1], x[2], x[3], p[STORED], group, bits, "affine", stream);
}

static const struct line quantized_lines[] = {
    /* those that were known first */
    { "m=1 n=4096 k=4096", "m=1 n=512 k=1024", "bits=16 bits=2 bits=3 bits=5 bits=6 bits=8 group=32 group=128 stored=0 offset=1" },
    { "m=1 n=4096 k=14336", "m=1 n=512 k=1792", "m=8 m=2 m=4 dtype=f16 dtype=f32 offset=1 k+64 k-64 n-1 n+1 n+8 bits=8" },
    { "m=1 n=4096 k=12288", "m=1 n=512 k=1536", "n*7,n/2,k/3 k-64 k+64 k-1024 k+1024 bits=8" },
    { "n=4096 k=14336", "n=256 k=512", "m=1..65" },
    { "n=4096 k=4096 bits=8", NULL, "m=1..33" },
    { "m=1 n=4096 k=1024", "m=1 n=512 k=1024", "k-64 k+64 k=512 k=2048 k=2112 k=8192 k=8256 n-1 n+1" },
    { "m=512 n=4096 k=4096", "m=64 n=128 k=256", "m-1 m+1 n-1 n+1 k+64 bits=8 bits=3 group=32 dtype=f16 offset=1 stored=0 bits=16" },
    { "m=128 n=4096 k=4096", "m=32 n=128 k=256", "m-1 m+1 n-1 n+1 n+8 k+64 bits=8 bits=6 dtype=f32" },
    { 0 },
};

/* ---- attention ---- */

enum { HEADS = FIRST, ON, WIDTH, QUERIES, KEYS, CAUSAL, ENTRIES, CACHE };   /* on so many heads of keys; cache: keys behind them */

static struct work attention_prepare(const int *p)
{
    double e = element(p[DTYPE]), width = p[WIDTH], q = p[QUERIES], seen = q * p[KEYS] - (p[CAUSAL] ? q * (q - 1) / 2 : 0);
    int64_t held = p[KEYS] + p[CACHE], w = p[WIDTH], strides[4] = { p[ON] * held * w, held * w, w, 1 };
    x[0] = dense(p[DTYPE], p[OFFSET], (int[]){ p[ENTRIES], p[HEADS], p[QUERIES], p[WIDTH] }, 4);
    for (int i = 1; i < 3; i++)
        x[i] = strided(p[DTYPE], p[OFFSET], (int[]){ p[ENTRIES], p[ON], p[KEYS], p[WIDTH] }, strides, 4, p[ENTRIES] * strides[0]);
    return computed(2 * p[ENTRIES] * width * (p[HEADS] * q + p[ON] * (double)p[KEYS]) * e, 4 * p[ENTRIES] * p[HEADS] * width * seen);
}

static int attention_apply(const int *p, mlxvk_array *y)
{
    mlxvk_array none = { NULL };
    return mlxvk_fast_scaled_dot_product_attention(y, x[0], x[1], x[2], 0.0884f, p[CAUSAL] ? "causal" : "", none, none, stream);
}

static const struct line attention_lines[] = {
    { "queries=1 keys=8192", "queries=1 keys=512 heads=8 on=2",
      "keys-1 keys+1 cache=256 offset=1 dtype=f16 dtype=f32 heads=8,on=8 on*2 width=64 width=96 width=256 entries=4 causal=1 keys*2" },
    { "keys=2048", "heads=4 on=2 keys=256", "queries=1..17" },
    { "queries=1", "queries=1 heads=8 on=2", "keys=127..129 keys=255..257 keys=511..513 keys=1023..1025 keys=2047..2049" },
    { "queries=2048 keys=2048 causal=1", "queries=128 keys=128 causal=1 heads=4 on=2",
      "queries-1 keys+1 queries+1,keys+1 offset=1 cache=256 dtype=f16 width=64 on*2 entries=2 causal=0 keys*2" },
    { "queries=512 keys=512 width=64 heads=32 on=32", "queries=48 keys=64 width=64 heads=4 on=4",
      "width=80 width=72 width=128 width=65 queries-1 keys-1 dtype=f32 dtype=f16" },
    { 0 },
};

/* ---- operations on a matrix, along an axis of it ---- */

enum { ROWS = FIRST, COLUMNS, AXIS, SWAPPED };       /* swapped: the operand is seen transposed */

static struct work matrix_prepare(const int *p)
{
    x[0] = matrix(p[DTYPE], p[OFFSET], 1, p[ROWS], p[COLUMNS], p[SWAPPED]);
    return moved(p[DTYPE], 2.0 * p[ROWS] * p[COLUMNS]);
}

static struct work reduce_prepare(const int *p)
{
    struct work w = matrix_prepare(p);
    return (struct work){ w.bytes / 2, w.operations / 2 };
}

static struct work norm_prepare(const int *p)
{
    struct work w = matrix_prepare(p);
    x[1] = dense(p[DTYPE], p[OFFSET], &p[COLUMNS], 1);
    x[2] = dense(p[DTYPE], p[OFFSET], &p[COLUMNS], 1);
    return w;
}

static int sum_apply(const int *p, mlxvk_array *y) { return mlxvk_sum_axis(y, x[0], p[AXIS], false, stream); }
static int max_apply(const int *p, mlxvk_array *y) { return mlxvk_max_axis(y, x[0], p[AXIS], false, stream); }
static int argmax_apply(const int *p, mlxvk_array *y) { return mlxvk_argmax_axis(y, x[0], p[AXIS], false, stream); }
static int logsumexp_apply(const int *p, mlxvk_array *y) { return mlxvk_logsumexp_axis(y, x[0], p[AXIS], false, stream); }
static int softmax_apply(const int *p, mlxvk_array *y) { return mlxvk_softmax_axis(y, x[0], p[AXIS], true, stream); }
static int cumsum_apply(const int *p, mlxvk_array *y) { return mlxvk_cumsum(y, x[0], p[AXIS], false, true, stream); }
static int sort_apply(const int *p, mlxvk_array *y) { return mlxvk_sort_axis(y, x[0], p[AXIS], stream); }
static int argsort_apply(const int *p, mlxvk_array *y) { return mlxvk_argsort_axis(y, x[0], p[AXIS], stream); }

static int rms_norm_apply(const int *p, mlxvk_array *y)
{
    (void)p;
    return mlxvk_fast_rms_norm(y, x[0], x[1], 1e-5f, stream);
}

static int layer_norm_apply(const int *p, mlxvk_array *y)
{
    (void)p;
    return mlxvk_fast_layer_norm(y, x[0], x[1], x[2], 1e-5f, stream);
}

static const struct line reduce_lines[] = {
    { "rows=8192 columns=8192", "rows=256 columns=2048",
      "columns-1 columns+1 rows-1 rows+1 offset=1 swapped=1 axis=0 axis=0,swapped=1 axis=0,columns-1 axis=0,offset=1 "
      "dtype=bf16 dtype=f16 dtype=i32 dtype=u8 rows=1,columns*256 columns=64,rows*32 columns*16,rows/16" },
    { "rows=8192 columns=4096", "rows=64 columns=4096",
      "columns=1023..1025 columns=4095..4097 columns=255..257 columns=127..129 columns=31..33 columns=15..17" },
    { 0 },
};

static const struct line softmax_lines[] = {
    { "rows=8192 columns=8192 dtype=bf16", "rows=128 columns=1024 dtype=bf16",
      "columns-1 columns+1 rows+1 offset=1 swapped=1 axis=0 dtype=f16 dtype=f32 rows*4,columns/4 rows/8,columns*8" },
    { "rows=2048", "rows=32", "columns=32767..32769 columns=4095..4097 columns=1023..1025 columns=255..257" },
    { "rows=65536 columns=128", "rows=512 columns=128", "columns-1 columns+1 columns=64,rows*2 offset=1 dtype=bf16" },
    { "columns=131072 dtype=bf16", "columns=8192 dtype=bf16", "rows=1..4 rows=63..66" },
    { 0 },
};

static const struct line norm_lines[] = {
    { "rows=16384 columns=4096 dtype=bf16", "rows=128 columns=1024 dtype=bf16",
      "columns-1 columns+1 rows+1 offset=1 swapped=1 dtype=f16 dtype=f32 rows*4,columns/4 rows/4,columns*4" },
    { "rows=8192", "rows=64", "columns=2047..2049 columns=8191..8193 columns=255..257 columns=1023..1025 columns=127..129" },
    { "columns=4096 dtype=bf16", "columns=1024 dtype=bf16", "rows=1..4 rows=1023..1025" },
    { 0 },
};

static const struct line scan_lines[] = {
    { "rows=8192 columns=8192", "rows=128 columns=2048",
      "columns-1 columns+1 rows+1 offset=1 swapped=1 axis=0 axis=0,columns-1 dtype=bf16 dtype=i32 rows=1,columns*64 rows*32,columns/32" },
    { "rows=16384", "rows=64", "columns=4095..4097 columns=1023..1025 columns=255..257 columns=63..65" },
    { "columns=1048576", "columns=16384", "rows=1..4" },
    { 0 },
};

static const struct line sort_lines[] = {
    { "rows=1 columns=16777216", "rows=1 columns=65536", "columns-1 columns+1 offset=1 dtype=i32 dtype=u32" },
    { "rows=4096 columns=4096", "rows=256 columns=256", "columns-1 columns+1 offset=1 swapped=1 axis=0 rows+1 dtype=bf16 dtype=i32" },
    { "rows=8192", "rows=16",
      "columns=127..129 columns=255..257 columns=511..513 columns=1023..1025 columns=2047..2049 columns=8191..8193" },
    { "columns=65536", "columns=8192", "rows=1..4" },
    { 0 },
};

/* ---- copies, elementwise operations ---- */

enum { SECOND = SWAPPED + 1 };                       /* 1: one row, 2: one column, 3: seen transposed */

static int copy_apply(const int *p, mlxvk_array *y)  /* stacking one array moves it */
{
    mlxvk_vector_array one = mlxvk_vector_array_new_value(x[0]);
    int code = mlxvk_stack(y, one, stream);
    (void)p;
    mlxvk_vector_array_free(one);
    return code;
}

static int exp_apply(const int *p, mlxvk_array *y) { (void)p; return mlxvk_exp(y, x[0], stream); }
static int add_apply(const int *p, mlxvk_array *y) { (void)p; return mlxvk_add(y, x[0], x[1], stream); }

static struct work add_prepare(const int *p)
{
    int one_row = p[SECOND] == 1, one_column = p[SECOND] == 2;
    double all = (double)p[ROWS] * p[COLUMNS];
    matrix_prepare(p);
    x[1] = matrix(p[DTYPE], p[OFFSET], 1, one_row ? 1 : p[ROWS], one_column ? 1 : p[COLUMNS], p[SECOND] == 3);
    return moved(p[DTYPE], all * (one_row || one_column ? 2 : 3));
}

static const struct line copy_lines[] = {
    { "rows=8192 columns=8192", "rows=512 columns=1024",
      "swapped=1 offset=1 offset=1,swapped=1 columns-1 columns+1 rows-1,columns-1,swapped=1 dtype=bf16 dtype=u8 dtype=c64" },
    { "rows=8192 columns=8192 swapped=1 dtype=bf16", "rows=512 columns=1024 swapped=1 dtype=bf16",
      "rows-1 columns-1 rows-1,columns-1 rows+1 columns+1 offset=1 dtype=f16 dtype=u8 rows*64,columns/64 rows/64,columns*64" },
    { "rows=8192 columns=8192 swapped=1 dtype=u8", "rows=512 columns=1024 swapped=1 dtype=u8",
      "rows-1 columns-1 rows-1,columns-1 offset=1" },
    { "columns=4194304 swapped=1", "columns=65536 swapped=1", "rows=1..17" },
    { 0 },
};

static const struct line unary_lines[] = {
    { "rows=8192 columns=8192", "rows=512 columns=1024", "columns-1 columns+1 offset=1 swapped=1 dtype=bf16 dtype=f16 rows=1,columns*512" },
    { "rows=8192 columns=8192 dtype=bf16", "rows=512 columns=1024 dtype=bf16", "columns-1 rows-1,columns-1 offset=1 swapped=1" },
    { 0 },
};

static const struct line add_lines[] = {
    { "rows=8192 columns=8192", "rows=512 columns=1024",
      "columns-1 columns+1 offset=1 second=1 second=2 second=3 swapped=1,second=3 second=1,columns-1 "
      "dtype=bf16 dtype=f16 dtype=i32 dtype=u8" },
    { "rows=8192 columns=8192 dtype=bf16", "rows=512 columns=1024 dtype=bf16",
      "columns-1 rows-1,columns-1 offset=1 second=1 second=2 second=3 second=1,columns-1" },
    { 0 },
};

/* ---- rows taken by position, rows added to positions ---- */

enum { TAKEN = SWAPPED };                            /* so many positions */

static struct work take_prepare(const int *p)
{
    x[0] = matrix(p[DTYPE], p[OFFSET], 1, p[ROWS], p[COLUMNS], false);
    x[1] = positions(p[TAKEN], p[AXIS] ? p[COLUMNS] : p[ROWS]);
    return moved(p[DTYPE], 2.0 * p[TAKEN] * (p[AXIS] ? p[ROWS] : p[COLUMNS]));
}

static int take_apply(const int *p, mlxvk_array *y) { return mlxvk_take_axis(y, x[0], x[1], p[AXIS], stream); }

static struct work scatter_prepare(const int *p)
{
    x[1] = positions(p[TAKEN], p[ROWS]);
    x[2] = dense(p[DTYPE], p[OFFSET], (int[]){ p[TAKEN], 1, p[COLUMNS] }, 3);
    check(mlxvk_zeros(&x[0], (int[]){ p[ROWS], p[COLUMNS] }, 2, dtypes[p[DTYPE]].dtype, stream), "zeros");
    check(mlxvk_array_eval(x[0]), "eval");
    return moved(p[DTYPE], 3.0 * p[TAKEN] * p[COLUMNS]);
}

static int scatter_apply(const int *p, mlxvk_array *y)              /* in place: nothing else holds it */
{
    (void)p;
    (void)y;
    return mlxvk_scatter_add_single(&x[0], x[0], x[1], x[2], 0, stream);
}

static const struct line take_lines[] = {
    { "rows=262144 columns=512 taken=131072", "rows=2048 columns=512 taken=1024",
      "columns-1 columns+1 rows-1 taken-1 offset=1 dtype=bf16 dtype=bf16,columns-1 dtype=u8 dtype=c64 columns/8,rows*8,taken*8" },
    { "rows=4096 columns=16384 taken=16384 axis=1", "rows=256 columns=2048 taken=2048 axis=1", "taken-1 columns-1 offset=1 rows+1" },
    { "rows=262144 taken=1048576", "rows=16384 taken=65536", "columns=1..9 columns=15..17 columns=31..33 columns=63..65" },
    { 0 },
};

static const struct line scatter_lines[] = {
    { "rows=262144 columns=512 taken=131072", "rows=2048 columns=512 taken=1024",
      "columns-1 columns+1 rows-1 taken-1 offset=1 dtype=bf16 dtype=bf16,columns-1 dtype=i32 columns/8,rows*8,taken*8" },
    { 0 },
};

/* ---- convolutions, Fourier transforms ---- */

enum { IMAGES = FIRST, SIDE, CHANNELS, OUT, KERNEL, STRIDE, GROUPS };

static struct work conv_prepare(const int *p)
{
    double side = (p[SIDE] - 1) / p[STRIDE] + 1, results = p[IMAGES] * side * side * p[OUT];
    double window = (double)p[KERNEL] * p[KERNEL] * p[CHANNELS] / p[GROUPS];
    x[0] = dense(p[DTYPE], p[OFFSET], (int[]){ p[IMAGES], p[SIDE], p[SIDE], p[CHANNELS] }, 4);
    x[1] = dense(p[DTYPE], p[OFFSET], (int[]){ p[OUT], p[KERNEL], p[KERNEL], p[CHANNELS] / p[GROUPS] }, 4);
    return computed(((double)p[IMAGES] * p[SIDE] * p[SIDE] * p[CHANNELS] + results + window * p[OUT]) * element(p[DTYPE]),
                    2 * results * window);
}

static int conv_apply(const int *p, mlxvk_array *y)
{
    int s = p[STRIDE], pad = p[KERNEL] / 2;
    return mlxvk_conv2d(y, x[0], x[1], s, s, pad, pad, 1, 1, p[GROUPS], stream);
}

static const struct line conv_lines[] = {
    { "images=32 side=64 channels=256 out=256 dtype=bf16", "images=1 side=16 channels=32 out=32 dtype=bf16",
      "images+1 side-1 side+1 channels-1 channels+1 out-1 out+1 offset=1 dtype=f16 channels-8 out+8 kernel=5 stride=2" },
    { "images=32 side=64 channels=256 out=256", "images=1 side=16 channels=32 out=32",
      "images+1 side-1 side+1 channels-1 channels+1 out-1 out+1 offset=1 channels-4 out+4 kernel=5 stride=2" },
    { "side=32 channels=128 out=128 dtype=bf16", "side=16 channels=32 out=32 dtype=bf16", "images=1..9" },
    { "images=32 side=56 channels=144 out=144 groups=144", "images=1 side=16 channels=32 out=32 groups=32", "side-1 dtype=bf16 images+1" },
    { 0 },
};

enum { TRANSFORMS = FIRST, LENGTH, ALONG };

static struct work fft_prepare(const int *p)
{
    double all = (double)p[TRANSFORMS] * p[LENGTH], real = p[DTYPE] == C64 ? 1 : 0.5;
    x[0] = matrix(p[DTYPE], p[OFFSET], 1, p[ALONG] ? p[TRANSFORMS] : p[LENGTH], p[ALONG] ? p[LENGTH] : p[TRANSFORMS], false);
    return computed(all * 16 * real, 5 * all * log2(p[LENGTH]) * real);
}

static int fft_apply(const int *p, mlxvk_array *y)
{
    return (p[DTYPE] == C64 ? mlxvk_fft_fft : mlxvk_fft_rfft)(y, x[0], p[LENGTH], p[ALONG], MLXVK_FFT_NORM_BACKWARD, stream);
}

/* A length with a large prime factor is a convolution of twice the length: its neighbours are others of its kind. */
static const struct line fft_lines[] = {
    { "transforms=4096 length=4096", "transforms=16 length=1024",
      "transforms-1 transforms+1 offset=1 along=0 dtype=f32 dtype=f32,offset=1" },
    { "transforms=4096 length=4096", NULL, "length=4095 length=4000 length=4050 length=3125 length=3200 length=6561 length=5000" },
    { NULL, "transforms=16 length=1024", "length=1001 length=1000 length=972 length=960 length=729 length=1280" },
    { "transforms=4096 length=4099", NULL, "length=4093 length=4097 transforms+1 offset=1" },
    { NULL, "transforms=8 length=1031", "length=1033 length=1021 transforms+1 offset=1" },
    { "transforms=8192 length=2048", "transforms=32 length=512", "length/2 length/4 length*2 length*4,transforms/4 length-8 along=0" },
    { "transforms=64 length=262144", "transforms=2 length=8192", "length*2,transforms/2 length/2,transforms*2 transforms+1 offset=1" },
    { 0 },
};

/* ---- the families ---- */

#define PRODUCT { "dtype", "offset", "m", "k", "n", "at", "bt", "c", "batch" }
#define QUANTIZED { "dtype", "offset", "m", "k", "n", "bits", "group", "stored" }
#define ATTENTION { "dtype", "offset", "heads", "on", "width", "queries", "keys", "causal", "entries", "cache" }
#define MATRIX { "dtype", "offset", "rows", "columns", "axis", "swapped", "second" }
#define POSITIONS { "dtype", "offset", "rows", "columns", "axis", "taken" }
#define CONV { "dtype", "offset", "images", "side", "channels", "out", "kernel", "stride", "groups" }
#define FOURIER { "dtype", "offset", "transforms", "length", "along" }

static const struct family families[] = {
    { "product", PRODUCT, "bt=1 batch=1", product_prepare, product_apply, product_lines },
    { "quantized", QUANTIZED, "dtype=bf16 bits=4 group=64 stored=1", quantized_prepare, quantized_apply, quantized_lines },
    { "attention", ATTENTION, "dtype=bf16 heads=32 on=8 width=128 entries=1", attention_prepare, attention_apply, attention_lines },
    { "copy", MATRIX, "axis=1", matrix_prepare, copy_apply, copy_lines },
    { "exp", MATRIX, "axis=1", matrix_prepare, exp_apply, unary_lines },
    { "add", MATRIX, "axis=1", add_prepare, add_apply, add_lines },
    { "sum", MATRIX, "axis=1", reduce_prepare, sum_apply, reduce_lines },
    { "max", MATRIX, "axis=1", reduce_prepare, max_apply, reduce_lines },
    { "argmax", MATRIX, "axis=1", reduce_prepare, argmax_apply, reduce_lines },
    { "logsumexp", MATRIX, "axis=1", reduce_prepare, logsumexp_apply, softmax_lines },
    { "softmax", MATRIX, "axis=1", matrix_prepare, softmax_apply, softmax_lines },
    { "rms_norm", MATRIX, "axis=1", norm_prepare, rms_norm_apply, norm_lines },
    { "layer_norm", MATRIX, "axis=1", norm_prepare, layer_norm_apply, norm_lines },
    { "cumsum", MATRIX, "axis=1", matrix_prepare, cumsum_apply, scan_lines },
    { "sort", MATRIX, "axis=1", matrix_prepare, sort_apply, sort_lines },
    { "argsort", MATRIX, "axis=1", matrix_prepare, argsort_apply, sort_lines },
    { "take", POSITIONS, "", take_prepare, take_apply, take_lines },
    { "scatter_add", POSITIONS, "", scatter_prepare, scatter_apply, scatter_lines },
    { "conv2d", CONV, "kernel=3 stride=1 groups=1", conv_prepare, conv_apply, conv_lines },
    { "fft", FOURIER, "dtype=c64 along=1", fft_prepare, fft_apply, fft_lines },
};
enum { FAMILIES = sizeof families / sizeof *families };

/* ---- reading the lines ---- */

static int value_of(const char *text)
{
    char name[8];
    if (isdigit((unsigned char)*text)) return atoi(text);
    sscanf(text, "%7[a-z0-9]", name);
    for (int i = 0; i < DTYPES; i++)
        if (!strcmp(name, dtypes[i].name)) return i;
    fprintf(stderr, "no dtype: %s\n", text);
    exit(1);
}

static int *param(const struct family *f, int *p, const char *text)
{
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz");
    for (int i = 0; i < PARAMS && f->params[i]; i++)
        if (strlen(f->params[i]) == length && !strncmp(text, f->params[i], length)) return &p[i];
    fprintf(stderr, "%s has no such number: %s\n", f->name, text);
    exit(1);
}

/* The changes of a word: "m=1", "k-1,n*2". */
static void change(const struct family *f, int *p, const char *text)
{
    for (size_t length; *text && *text != ' '; text += length + (text[length] == ',')) {
        size_t at = strspn(text, "abcdefghijklmnopqrstuvwxyz");
        int *value = param(f, p, text), by = value_of(text + at + 1);
        length = strcspn(text, ", ");
        switch (text[at]) {
        case '+': *value += by; break;
        case '-': *value -= by; break;
        case '*': *value *= by; break;
        case '/': *value /= by; break;
        default: *value = by; break;
        }
    }
}

static const char *next_word(const char *text)
{
    text += strcspn(text, " ");
    return text + strspn(text, " ");
}

static void set(const struct family *f, int *p, const char *words)
{
    for (; *words; words = next_word(words)) change(f, p, words);
}

/* What differs from the defaults, as the lines say it. */
static const char *text_of(const struct sample *s, char text[128])
{
    int defaults[PARAMS] = { 0 };
    size_t n = 0;
    set(s->family, defaults, s->family->defaults);
    *text = 0;
    for (int i = 0; i < PARAMS && s->family->params[i] && n < 100; i++) {
        if (s->p[i] == defaults[i] && i != DTYPE) continue;
        if (i == DTYPE) n += (size_t)snprintf(text + n, 128 - n, "%s", dtypes[s->p[i]].name);
        else n += (size_t)snprintf(text + n, 128 - n, " %s=%d", s->family->params[i], s->p[i]);
    }
    return text;
}

/* ---- measuring ---- */

/* Seconds, on a CPU driver of the process on all cores: what else the machine does would count otherwise. */
static double ticks(void) { return gpu ? now() : (double)clock() / CLOCKS_PER_SEC; }

/* Seconds of one: `repeat` of them, each after the one before. The clock runs while they are recorded, because some may run
 * before the last is. */
static double round_of(const struct sample *s, int repeat)
{
    double start = ticks();
    for (int i = 0; i < repeat; i++) {
        mlxvk_array y = { NULL };
        mlxvk_encoder e;
        x = sets[i % copies];
        check(s->family->apply(s->p, &y), s->family->name);
        check(mlxvk_stream_encoder(&e, stream), "encoder");
        check(mlxvk_encoder_barrier(e), "barrier");
        mlxvk_array_free(y);
    }
    check(mlxvk_synchronize(stream), "synchronize");
    return (ticks() - start) / repeat;
}

/* Best of rounds that take `busy` seconds together: the clock rises while the device works, and falls while a pipeline is
 * compiled, so the first ones do not count. */
static double best_of(const struct sample *s, double busy)
{
    double best, start, once;
    int repeat = 1;
    round_of(s, 1);
    best = round_of(s, 1);
    while (repeat * best < (gpu ? 2e-3 : 2e-4) && repeat < 256) repeat *= 2;
    start = now();
    for (int i = 0; i < 3 || (now() - start < busy && i < 200); i++)
        if ((once = round_of(s, repeat)) < best || i == 0) best = once;
    return best;
}

static void measure(struct sample *s, double busy)
{
    double seconds;
    used = 0;
    copies = 0;
    do {
        x = sets[copies++];
        s->work = s->family->prepare(s->p);
    } while (gpu && copies < COPIES && copies * s->work.bytes < cold);
    seconds = best_of(s, busy);
    if (s->seconds == 0 || seconds < s->seconds) s->seconds = seconds;
    for (int i = 0; i < copies * OPERANDS; i++) release(&sets[i / OPERANDS][i % OPERANDS]);
}

static double usual(void) { return gpu ? 0.05 : 0.03; }

/* The sample of a case, measured for a moment when it is first met, so that its pipelines are there. */
static int sample_of(const struct family *f, const int *p)
{
    struct sample *s = &samples[sample_count];
    for (int i = 0; i < sample_count; i++)
        if (samples[i].family == f && !memcmp(samples[i].p, p, sizeof samples[i].p)) return i;
    if (sample_count == CASES) { fprintf(stderr, "too many cases\n"); exit(1); }
    s->family = f;
    memcpy(s->p, p, sizeof s->p);
    measure(s, 0);
    return sample_count++;
}

static void neighbours(int a, int b)
{
    if (pair_count + 2 > PAIRS) { fprintf(stderr, "too many neighbours\n"); exit(1); }
    pairs[pair_count].of = a;
    pairs[pair_count++].neighbour = b;
    pairs[pair_count].of = b;
    pairs[pair_count++].neighbour = a;
}

static void walk(const struct family *f, const int *base, const char *word)
{
    int p[PARAMS], *value, last = atoi(strstr(word, "..") + 2), before = -1, here;
    memcpy(p, base, sizeof p);
    change(f, p, word);
    value = param(f, p, word);
    for (; *value <= last; ++*value, before = here) {
        here = sample_of(f, p);
        if (before >= 0) neighbours(before, here);
    }
}

static void follow(const struct family *f, const struct line *l)
{
    const char *base = gpu ? l->gpu_base : l->cpu_base;
    int p[PARAMS] = { 0 }, q[PARAMS];
    if (!base) return;
    set(f, p, f->defaults);
    set(f, p, base);
    for (const char *word = l->changes; *word; word = next_word(word)) {
        size_t length = strcspn(word, " ");
        const char *dots = strstr(word, "..");
        memcpy(q, p, sizeof q);
        if (dots && dots < word + length) walk(f, p, word);
        else {
            change(f, q, word);
            neighbours(sample_of(f, p), sample_of(f, q));
        }
    }
}

/* ---- judging ---- */

/* Dtypes that should reach the same speed of arithmetic: those of one size, and all on a CPU driver, which computes in float32. */
static int class_of(const struct sample *s)
{
    double size = element(s->p[DTYPE]);
    return !gpu ? 0 : size > 4 ? 3 : size > 2 ? 2 : size > 1 ? 1 : 0;
}

static double peaks[FAMILIES][CLASSES];              /* operations a second */

static void find_peaks(void)
{
    memset(peaks, 0, sizeof peaks);
    for (int i = 0; i < sample_count; i++) {
        double *peak = &peaks[samples[i].family - families][class_of(&samples[i])], speed = samples[i].work.operations / samples[i].seconds;
        if (speed > *peak) *peak = speed;
    }
}

static double ideal(const struct sample *s)
{
    double peak = peaks[s->family - families][class_of(s)];
    return fmax(s->work.bytes / copy_speed, peak > 0 ? s->work.operations / peak : 0);
}

/* How many times what the neighbour's speed would make it take. */
static double ratio(const struct sample *s, const struct sample *neighbour)
{
    double expected = (neighbour->seconds - launch) * ideal(s) / ideal(neighbour);
    return (s->seconds - launch) / fmax(expected, FEW_LAUNCHES * launch);
}

/* The neighbour that does best beside a case. */
static int better(int of, double *times)
{
    int best = -1;
    *times = 0;
    for (int i = 0; i < pair_count; i++) {
        double r = pairs[i].of == of ? ratio(&samples[of], &samples[pairs[i].neighbour]) : 0;
        if (r > *times) { *times = r; best = pairs[i].neighbour; }
    }
    return best;
}

/* What looks like a cliff is measured again, at several times, so that noise is none. */
static void doubt(void)
{
    for (int pass = 0; pass < PASSES; pass++) {
        find_peaks();
        for (int i = 0; i < sample_count; i++) {
            double times;
            int neighbour = better(i, &times);
            if (times <= limit || (pass && times > far_over)) continue;
            measure(&samples[i], usual());
            measure(&samples[neighbour], usual());
        }
    }
    find_peaks();
}

/* ---- reporting ---- */

static int report(int cliffs[FAMILIES])
{
    char a[128], b[128];
    int count = 0;
    for (int i = 0; i < sample_count; i++) {
        double times;
        int neighbour = better(i, &times);
        const struct sample *s = &samples[i];
        if (times <= limit) continue;
        if (!count++) printf("\n| family | case | us | its neighbour | us | times |\n|---|---|---|---|---|---|\n");
        cliffs[s->family - families]++;
        printf("| %s | %s | %.1f | %s | %.1f | %.2f |\n", s->family->name, text_of(s, a), 1e6 * s->seconds,
               text_of(&samples[neighbour], b), 1e6 * samples[neighbour].seconds, times);
    }
    return count;
}

static void summary(const int cliffs[FAMILIES])
{
    printf("\n| family | cases | cliffs |\n|---|---|---|\n");
    for (int f = 0; f < FAMILIES; f++) {
        int cases = 0;
        for (int i = 0; i < sample_count; i++) cases += samples[i].family == &families[f];
        if (cases) printf("| %s | %d | %d |\n", families[f].name, cases, cliffs[f]);
    }
}

static const struct family *family_of(const char *name)
{
    const struct family *f = families;
    while (strcmp(f->name, name)) f++;
    return f;
}

/* What a launch takes and how fast a copy is: the better of what it was before and after the cases. */
static void gauge(void)
{
    static struct sample one, copy;
    one.family = family_of("add");
    copy.family = family_of("copy");
    one.p[ROWS] = one.p[COLUMNS] = 1;
    copy.p[ROWS] = copy.p[COLUMNS] = gpu ? 8192 : 1024;
    measure(&copy, gpu ? 0.5 : 0.1);
    measure(&one, 4 * usual());
    copy_speed = copy.work.bytes / copy.seconds;
    launch = one.seconds;
}

int main(int argc, char **argv)
{
    int cliffs[FAMILIES] = { 0 }, count;
    double start = now();
    const char *wanted = argc > 1 ? argv[1] : "";
    /* Submissions as long as a round. */
    open_device("MLX_VK_MAX_OPS_PER_BUFFER=100000000 MLX_VK_MAX_MB_PER_BUFFER=100000000 MLX_VK_MAX_MS_PER_BUFFER=0");
    gauge();
    for (int f = 0; f < FAMILIES; f++) {
        if (!strstr(families[f].name, wanted)) continue;
        fprintf(stderr, "%s\n", families[f].name);
        for (const struct line *l = families[f].lines; l->changes; l++) follow(&families[f], l);
    }
    fprintf(stderr, "%d cases\n", sample_count);
    for (int i = 0; i < sample_count; i++) measure(&samples[i], usual());
    gauge();
    doubt();
    printf("%s, %s, mlxvk %s; copy %.1f GB/s, a launch %.2f us\n", device_name, driver, mlxvk_version_text(), 1e-9 * copy_speed,
           1e6 * launch);
    count = report(cliffs);
    summary(cliffs);
    printf("\n%d cases, %d over %.1f times their better neighbour, %.0f s\n", sample_count, count, limit, now() - start);
    for (int i = 0; i < DTYPES; i++) release(&dtypes[i].pool);
    close_device();
    return count > 0;
}
