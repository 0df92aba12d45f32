/* Families of operations and lines of neighbours: see bench_cliffs.c. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support_cliffs.h"

struct cliffs cliffs;

/* A line of neighbours: a base case, on a GPU and on a CPU driver, and what changes. A word is one neighbour of the base
 * ("k-1", "batch*16,m/4": several changes at once) or a walk ("m=1..64": each is compared with those before and after it). */
struct cliff_line { const char *gpu_base, *cpu_base, *changes; };

enum { DTYPE = CLIFF_DTYPE, OFFSET = CLIFF_OFFSET, FIRST };

/* ---- operands ---- */

static const struct { mlxvk_dtype dtype; const char *name; } dtypes[] = {
    { MLXVK_FLOAT32, "f32" }, { MLXVK_FLOAT16, "f16" }, { MLXVK_BFLOAT16, "bf16" }, { MLXVK_COMPLEX64, "c64" },
    { MLXVK_UINT8, "u8" }, { MLXVK_INT32, "i32" }, { MLXVK_UINT32, "u32" },
};
enum { F32, F16, BF16, C64, U8, I32, U32, DTYPES };

double cliff_element(int dtype) { return (double)mlxvk_dtype_size(dtypes[dtype].dtype); }

static mlxvk_array strided(int dtype, int offset, const int *shape, const int64_t *strides, size_t ndim,
                           int64_t elements)
{
    return cliffs.strided(dtypes[dtype].dtype, offset, shape, strides, ndim, elements);
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

/* Operations that only move bytes: a CPU driver takes its time by elements, too. */
static struct cliff_work moved(int dtype, double elements)
{
    return (struct cliff_work){ elements * cliff_element(dtype), cliffs.gpu ? 0 : elements };
}

/* Those that compute: on a CPU driver loads and arithmetic take turns, and two bytes count as an operation. */
static struct cliff_work computed(double bytes, double operations)
{
    return (struct cliff_work){ cliffs.gpu ? bytes : 0, cliffs.gpu ? operations : operations + bytes / 2 };
}

/* ---- products ---- */

enum { M = FIRST, K, N, AT, BT, C, BATCH };          /* at, bt: seen transposed; c: 1 adds a row, 2 a matrix */

static struct cliff_work product_prepare(const int *p)
{
    double m = p[M], k = p[K], n = p[N];
    cliffs.x[0] = matrix(p[DTYPE], p[OFFSET], p[BATCH], p[M], p[K], p[AT]);
    cliffs.x[1] = matrix(p[DTYPE], p[OFFSET], p[BATCH], p[K], p[N], p[BT]);
    if (p[C]) cliffs.x[2] = matrix(p[DTYPE], p[OFFSET], 1, p[C] == 2 ? p[M] : 1, p[N], false);
    return computed(p[BATCH] * (m * k + k * n + m * n + (p[C] == 2 ? m * n : 0)) * cliff_element(p[DTYPE]),
                    2.0 * p[BATCH] * m * k * n);
}

static int product_apply(const int *p, mlxvk_array *y)
{
    return p[C] ? mlxvk_addmm(y, cliffs.x[2], cliffs.x[0], cliffs.x[1], 1, 1, cliffs.stream)
                : mlxvk_matmul(y, cliffs.x[0], cliffs.x[1], cliffs.stream);
}

static const struct cliff_line product_lines[] = {
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

static struct cliff_work quantized_prepare(const int *p)
{
    int d = p[DTYPE], n = p[STORED] ? p[N] : p[K], k = p[STORED] ? p[K] : p[N];
    double weights = (double)n * k, groups = weights / p[GROUP], x_and_y;
    cliffs.x[0] = matrix(d, p[OFFSET], 1, p[M], p[K], false);
    if (p[BITS] == PLAIN) cliffs.x[1] = matrix(d, 0, 1, p[K], p[N], p[STORED]);
    else {
        cliffs.x[1] = matrix(U32, 0, 1, n, k / 32 * p[BITS], false);
        cliffs.x[2] = matrix(d, 0, 1, n, k / p[GROUP], false);
        cliffs.x[3] = matrix(d, 0, 1, n, k / p[GROUP], false);
    }
    x_and_y = (double)p[M] * (p[K] + p[N]) * cliff_element(d);
    if (p[BITS] == PLAIN) return computed(weights * cliff_element(d) + x_and_y, 2 * p[M] * weights);
    return computed(weights * p[BITS] / 8 + 2 * groups * cliff_element(d) + x_and_y, (2 * p[M] + UNPACKING) * weights);
}

static int quantized_apply(const int *p, mlxvk_array *y)
{
    mlxvk_optional_int group = { p[GROUP], true }, bits = { p[BITS], true };
    if (p[BITS] == PLAIN) return mlxvk_matmul(y, cliffs.x[0], cliffs.x[1], cliffs.stream);
    return mlxvk_quantized_matmul(y, cliffs.x[0], cliffs.x[1], cliffs.x[2], cliffs.x[3], p[STORED], group, bits, "affine",
                                  cliffs.stream);
}

static const struct cliff_line quantized_lines[] = {
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

static struct cliff_work attention_prepare(const int *p)
{
    double e = cliff_element(p[DTYPE]), width = p[WIDTH], q = p[QUERIES];
    double seen = q * p[KEYS] - (p[CAUSAL] ? q * (q - 1) / 2 : 0);
    int64_t held = p[KEYS] + p[CACHE], w = p[WIDTH], strides[4] = { p[ON] * held * w, held * w, w, 1 };
    cliffs.x[0] = dense(p[DTYPE], p[OFFSET], (int[]){ p[ENTRIES], p[HEADS], p[QUERIES], p[WIDTH] }, 4);
    for (int i = 1; i < 3; i++)
        cliffs.x[i] = strided(p[DTYPE], p[OFFSET], (int[]){ p[ENTRIES], p[ON], p[KEYS], p[WIDTH] }, strides, 4,
                              p[ENTRIES] * strides[0]);
    return computed(2 * p[ENTRIES] * width * (p[HEADS] * q + p[ON] * (double)p[KEYS]) * e,
                    4 * p[ENTRIES] * p[HEADS] * width * seen);
}

static int attention_apply(const int *p, mlxvk_array *y)
{
    mlxvk_array none = { NULL };
    return mlxvk_fast_scaled_dot_product_attention(y, cliffs.x[0], cliffs.x[1], cliffs.x[2], 0.0884f,
                                                   p[CAUSAL] ? "causal" : "", none, none, cliffs.stream);
}

static const struct cliff_line attention_lines[] = {
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

static struct cliff_work matrix_prepare(const int *p)
{
    cliffs.x[0] = matrix(p[DTYPE], p[OFFSET], 1, p[ROWS], p[COLUMNS], p[SWAPPED]);
    return moved(p[DTYPE], 2.0 * p[ROWS] * p[COLUMNS]);
}

static struct cliff_work reduce_prepare(const int *p)
{
    struct cliff_work w = matrix_prepare(p);
    return (struct cliff_work){ w.bytes / 2, w.operations / 2 };
}

static struct cliff_work norm_prepare(const int *p)
{
    struct cliff_work w = matrix_prepare(p);
    cliffs.x[1] = dense(p[DTYPE], p[OFFSET], &p[COLUMNS], 1);
    cliffs.x[2] = dense(p[DTYPE], p[OFFSET], &p[COLUMNS], 1);
    return w;
}

static int sum_apply(const int *p, mlxvk_array *y)
{
    return mlxvk_sum_axis(y, cliffs.x[0], p[AXIS], false, cliffs.stream);
}

static int max_apply(const int *p, mlxvk_array *y)
{
    return mlxvk_max_axis(y, cliffs.x[0], p[AXIS], false, cliffs.stream);
}

static int argmax_apply(const int *p, mlxvk_array *y)
{
    return mlxvk_argmax_axis(y, cliffs.x[0], p[AXIS], false, cliffs.stream);
}

static int logsumexp_apply(const int *p, mlxvk_array *y)
{
    return mlxvk_logsumexp_axis(y, cliffs.x[0], p[AXIS], false, cliffs.stream);
}

static int softmax_apply(const int *p, mlxvk_array *y)
{
    return mlxvk_softmax_axis(y, cliffs.x[0], p[AXIS], true, cliffs.stream);
}

static int cumsum_apply(const int *p, mlxvk_array *y)
{
    return mlxvk_cumsum(y, cliffs.x[0], p[AXIS], false, true, cliffs.stream);
}

static int sort_apply(const int *p, mlxvk_array *y) { return mlxvk_sort_axis(y, cliffs.x[0], p[AXIS], cliffs.stream); }

static int argsort_apply(const int *p, mlxvk_array *y)
{
    return mlxvk_argsort_axis(y, cliffs.x[0], p[AXIS], cliffs.stream);
}

static int rms_norm_apply(const int *p, mlxvk_array *y)
{
    (void)p;
    return mlxvk_fast_rms_norm(y, cliffs.x[0], cliffs.x[1], 1e-5f, cliffs.stream);
}

static int layer_norm_apply(const int *p, mlxvk_array *y)
{
    (void)p;
    return mlxvk_fast_layer_norm(y, cliffs.x[0], cliffs.x[1], cliffs.x[2], 1e-5f, cliffs.stream);
}

static const struct cliff_line reduce_lines[] = {
    { "rows=8192 columns=8192", "rows=256 columns=2048",
      "columns-1 columns+1 rows-1 rows+1 offset=1 swapped=1 axis=0 axis=0,swapped=1 axis=0,columns-1 axis=0,offset=1 "
      "dtype=bf16 dtype=f16 dtype=i32 dtype=u8 rows=1,columns*256 columns=64,rows*32 columns*16,rows/16" },
    { "rows=8192 columns=4096", "rows=64 columns=4096",
      "columns=1023..1025 columns=4095..4097 columns=255..257 columns=127..129 columns=31..33 columns=15..17" },
    { 0 },
};

static const struct cliff_line softmax_lines[] = {
    { "rows=8192 columns=8192 dtype=bf16", "rows=128 columns=1024 dtype=bf16",
      "columns-1 columns+1 rows+1 offset=1 swapped=1 axis=0 dtype=f16 dtype=f32 rows*4,columns/4 rows/8,columns*8" },
    { "rows=2048", "rows=32", "columns=32767..32769 columns=4095..4097 columns=1023..1025 columns=255..257" },
    { "rows=65536 columns=128", "rows=512 columns=128", "columns-1 columns+1 columns=64,rows*2 offset=1 dtype=bf16" },
    { "columns=131072 dtype=bf16", "columns=8192 dtype=bf16", "rows=1..4 rows=63..66" },
    { 0 },
};

static const struct cliff_line norm_lines[] = {
    { "rows=16384 columns=4096 dtype=bf16", "rows=128 columns=1024 dtype=bf16",
      "columns-1 columns+1 rows+1 offset=1 swapped=1 dtype=f16 dtype=f32 rows*4,columns/4 rows/4,columns*4" },
    { "rows=8192", "rows=64", "columns=2047..2049 columns=8191..8193 columns=255..257 columns=1023..1025 columns=127..129" },
    { "columns=4096 dtype=bf16", "columns=1024 dtype=bf16", "rows=1..4 rows=1023..1025" },
    { 0 },
};

static const struct cliff_line scan_lines[] = {
    { "rows=8192 columns=8192", "rows=128 columns=2048",
      "columns-1 columns+1 rows+1 offset=1 swapped=1 axis=0 axis=0,columns-1 dtype=bf16 dtype=i32 rows=1,columns*64 rows*32,columns/32" },
    { "rows=16384", "rows=64", "columns=4095..4097 columns=1023..1025 columns=255..257 columns=63..65" },
    { "columns=1048576", "columns=16384", "rows=1..4" },
    { 0 },
};

static const struct cliff_line sort_lines[] = {
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
    mlxvk_vector_array one = mlxvk_vector_array_new_value(cliffs.x[0]);
    int code = mlxvk_stack(y, one, cliffs.stream);
    (void)p;
    mlxvk_vector_array_free(one);
    return code;
}

static int exp_apply(const int *p, mlxvk_array *y) { (void)p; return mlxvk_exp(y, cliffs.x[0], cliffs.stream); }

static int add_apply(const int *p, mlxvk_array *y)
{
    (void)p;
    return mlxvk_add(y, cliffs.x[0], cliffs.x[1], cliffs.stream);
}

static struct cliff_work add_prepare(const int *p)
{
    int one_row = p[SECOND] == 1, one_column = p[SECOND] == 2;
    double all = (double)p[ROWS] * p[COLUMNS];
    matrix_prepare(p);
    cliffs.x[1] = matrix(p[DTYPE], p[OFFSET], 1, one_row ? 1 : p[ROWS], one_column ? 1 : p[COLUMNS], p[SECOND] == 3);
    return moved(p[DTYPE], all * (one_row || one_column ? 2 : 3));
}

static const struct cliff_line copy_lines[] = {
    { "rows=8192 columns=8192", "rows=512 columns=1024",
      "swapped=1 offset=1 offset=1,swapped=1 columns-1 columns+1 rows-1,columns-1,swapped=1 dtype=bf16 dtype=u8 dtype=c64" },
    { "rows=8192 columns=8192 swapped=1 dtype=bf16", "rows=512 columns=1024 swapped=1 dtype=bf16",
      "rows-1 columns-1 rows-1,columns-1 rows+1 columns+1 offset=1 dtype=f16 dtype=u8 rows*64,columns/64 rows/64,columns*64" },
    { "rows=8192 columns=8192 swapped=1 dtype=u8", "rows=512 columns=1024 swapped=1 dtype=u8",
      "rows-1 columns-1 rows-1,columns-1 offset=1" },
    { "columns=4194304 swapped=1", "columns=65536 swapped=1", "rows=1..17" },
    { 0 },
};

static const struct cliff_line unary_lines[] = {
    { "rows=8192 columns=8192", "rows=512 columns=1024", "columns-1 columns+1 offset=1 swapped=1 dtype=bf16 dtype=f16 rows=1,columns*512" },
    { "rows=8192 columns=8192 dtype=bf16", "rows=512 columns=1024 dtype=bf16", "columns-1 rows-1,columns-1 offset=1 swapped=1" },
    { 0 },
};

static const struct cliff_line add_lines[] = {
    { "rows=8192 columns=8192", "rows=512 columns=1024",
      "columns-1 columns+1 offset=1 second=1 second=2 second=3 swapped=1,second=3 second=1,columns-1 "
      "dtype=bf16 dtype=f16 dtype=i32 dtype=u8" },
    { "rows=8192 columns=8192 dtype=bf16", "rows=512 columns=1024 dtype=bf16",
      "columns-1 rows-1,columns-1 offset=1 second=1 second=2 second=3 second=1,columns-1" },
    { 0 },
};

/* ---- rows taken by position, rows added to positions ---- */

enum { TAKEN = SWAPPED };                            /* so many positions */

static struct cliff_work take_prepare(const int *p)
{
    cliffs.x[0] = matrix(p[DTYPE], p[OFFSET], 1, p[ROWS], p[COLUMNS], false);
    cliffs.x[1] = cliffs.positions(p[TAKEN], p[AXIS] ? p[COLUMNS] : p[ROWS]);
    return moved(p[DTYPE], 2.0 * p[TAKEN] * (p[AXIS] ? p[ROWS] : p[COLUMNS]));
}

static int take_apply(const int *p, mlxvk_array *y)
{
    return mlxvk_take_axis(y, cliffs.x[0], cliffs.x[1], p[AXIS], cliffs.stream);
}

static struct cliff_work scatter_prepare(const int *p)
{
    cliffs.x[1] = cliffs.positions(p[TAKEN], p[ROWS]);
    cliffs.x[2] = dense(p[DTYPE], p[OFFSET], (int[]){ p[TAKEN], 1, p[COLUMNS] }, 3);
    cliffs.x[0] = cliffs.zeros(dtypes[p[DTYPE]].dtype, p[ROWS], p[COLUMNS]);
    return moved(p[DTYPE], 3.0 * p[TAKEN] * p[COLUMNS]);
}

static int scatter_apply(const int *p, mlxvk_array *y)              /* in place: nothing else holds it */
{
    (void)p;
    (void)y;
    return mlxvk_scatter_add_single(&cliffs.x[0], cliffs.x[0], cliffs.x[1], cliffs.x[2], 0, cliffs.stream);
}

static const struct cliff_line take_lines[] = {
    { "rows=262144 columns=512 taken=131072", "rows=2048 columns=512 taken=1024",
      "columns-1 columns+1 rows-1 taken-1 offset=1 dtype=bf16 dtype=bf16,columns-1 dtype=u8 dtype=c64 columns/8,rows*8,taken*8" },
    { "rows=4096 columns=16384 taken=16384 axis=1", "rows=256 columns=2048 taken=2048 axis=1", "taken-1 columns-1 offset=1 rows+1" },
    { "rows=262144 taken=1048576", "rows=16384 taken=65536", "columns=1..9 columns=15..17 columns=31..33 columns=63..65" },
    { 0 },
};

static const struct cliff_line scatter_lines[] = {
    { "rows=262144 columns=512 taken=131072", "rows=2048 columns=512 taken=1024",
      "columns-1 columns+1 rows-1 taken-1 offset=1 dtype=bf16 dtype=bf16,columns-1 dtype=i32 columns/8,rows*8,taken*8" },
    { 0 },
};

/* ---- convolutions, Fourier transforms ---- */

enum { IMAGES = FIRST, SIDE, CHANNELS, OUT, KERNEL, STRIDE, GROUPS };

static struct cliff_work conv_prepare(const int *p)
{
    double side = (p[SIDE] - 1) / p[STRIDE] + 1, results = p[IMAGES] * side * side * p[OUT];
    double window = (double)p[KERNEL] * p[KERNEL] * p[CHANNELS] / p[GROUPS];
    cliffs.x[0] = dense(p[DTYPE], p[OFFSET], (int[]){ p[IMAGES], p[SIDE], p[SIDE], p[CHANNELS] }, 4);
    cliffs.x[1] = dense(p[DTYPE], p[OFFSET], (int[]){ p[OUT], p[KERNEL], p[KERNEL], p[CHANNELS] / p[GROUPS] }, 4);
    return computed(((double)p[IMAGES] * p[SIDE] * p[SIDE] * p[CHANNELS] + results + window * p[OUT]) *
                    cliff_element(p[DTYPE]), 2 * results * window);
}

static int conv_apply(const int *p, mlxvk_array *y)
{
    int s = p[STRIDE], pad = p[KERNEL] / 2;
    return mlxvk_conv2d(y, cliffs.x[0], cliffs.x[1], s, s, pad, pad, 1, 1, p[GROUPS], cliffs.stream);
}

static const struct cliff_line conv_lines[] = {
    { "images=32 side=64 channels=256 out=256 dtype=bf16", "images=1 side=16 channels=32 out=32 dtype=bf16",
      "images+1 side-1 side+1 channels-1 channels+1 out-1 out+1 offset=1 dtype=f16 channels-8 out+8 kernel=5 stride=2" },
    { "images=32 side=64 channels=256 out=256", "images=1 side=16 channels=32 out=32",
      "images+1 side-1 side+1 channels-1 channels+1 out-1 out+1 offset=1 channels-4 out+4 kernel=5 stride=2" },
    { "side=32 channels=128 out=128 dtype=bf16", "side=16 channels=32 out=32 dtype=bf16", "images=1..9" },
    { "images=32 side=56 channels=144 out=144 groups=144", "images=1 side=16 channels=32 out=32 groups=32", "side-1 dtype=bf16 images+1" },
    { 0 },
};

enum { TRANSFORMS = FIRST, LENGTH, ALONG };

static struct cliff_work fft_prepare(const int *p)
{
    double all = (double)p[TRANSFORMS] * p[LENGTH], real = p[DTYPE] == C64 ? 1 : 0.5;
    cliffs.x[0] = matrix(p[DTYPE], p[OFFSET], 1, p[ALONG] ? p[TRANSFORMS] : p[LENGTH],
                         p[ALONG] ? p[LENGTH] : p[TRANSFORMS], false);
    return computed(all * 16 * real, 5 * all * log2(p[LENGTH]) * real);
}

static int fft_apply(const int *p, mlxvk_array *y)
{
    return (p[DTYPE] == C64 ? mlxvk_fft_fft : mlxvk_fft_rfft)(y, cliffs.x[0], p[LENGTH], p[ALONG],
                                                              MLXVK_FFT_NORM_BACKWARD, cliffs.stream);
}

/* A length with a large prime factor is a convolution of twice the length: its neighbours are others of its kind. */
static const struct cliff_line fft_lines[] = {
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

const struct cliff_family cliff_families[] = {
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
const int cliff_family_count = sizeof cliff_families / sizeof *cliff_families;

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

static int *param(const struct cliff_family *f, int *p, const char *text)
{
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz");
    for (int i = 0; i < CLIFF_PARAMS && f->params[i]; i++)
        if (strlen(f->params[i]) == length && !strncmp(text, f->params[i], length)) return &p[i];
    fprintf(stderr, "%s has no such number: %s\n", f->name, text);
    exit(1);
}

/* The changes of a word: "m=1", "k-1,n*2". */
static void change(const struct cliff_family *f, int *p, const char *text)
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

void cliff_set(const struct cliff_family *f, int *p, const char *words)
{
    for (; *words; words = next_word(words)) change(f, p, words);
}

/* What differs from the defaults, as the lines say it. */
const char *cliff_text(const struct cliff_family *f, const int *p, char text[128])
{
    int defaults[CLIFF_PARAMS] = { 0 };
    size_t n = 0;
    cliff_set(f, defaults, f->defaults);
    *text = 0;
    for (int i = 0; i < CLIFF_PARAMS && f->params[i] && n < 100; i++) {
        if (p[i] == defaults[i] && i != DTYPE) continue;
        if (i == DTYPE) n += (size_t)snprintf(text + n, 128 - n, "%s", dtypes[p[i]].name);
        else n += (size_t)snprintf(text + n, 128 - n, " %s=%d", f->params[i], p[i]);
    }
    return text;
}

/* ---- walking ---- */

static void walk(const struct cliff_family *f, const int *base, const char *word, const struct cliff_walker *by)
{
    int p[CLIFF_PARAMS], *value, last = atoi(strstr(word, "..") + 2), before = -1, here;
    memcpy(p, base, sizeof p);
    change(f, p, word);
    value = param(f, p, word);
    for (; *value <= last; ++*value, before = here) {
        here = by->sample(f, p);
        if (before >= 0) by->neighbours(before, here);
    }
}

static void follow(const struct cliff_family *f, const struct cliff_line *l, const struct cliff_walker *by)
{
    const char *base = cliffs.gpu ? l->gpu_base : l->cpu_base;
    int p[CLIFF_PARAMS] = { 0 }, q[CLIFF_PARAMS];
    if (!base) return;
    cliff_set(f, p, f->defaults);
    cliff_set(f, p, base);
    for (const char *word = l->changes; *word; word = next_word(word)) {
        size_t length = strcspn(word, " ");
        const char *dots = strstr(word, "..");
        memcpy(q, p, sizeof q);
        if (dots && dots < word + length) walk(f, p, word, by);
        else {
            change(f, q, word);
            by->neighbours(by->sample(f, p), by->sample(f, q));
        }
    }
}

void cliff_follow(const struct cliff_family *f, const struct cliff_walker *by)
{
    for (const struct cliff_line *l = f->lines; l->changes; l++) follow(f, l, by);
}
