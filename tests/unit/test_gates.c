/* Gates: one at another value gives the same results by another path; and the statistics that tell which path it was. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* ---- operations ---- */

static mlxvk_array two_dims(int rows, int columns, mlxvk_dtype dtype, uint32_t seed, mlxvk_stream s)
{
    return normals((int[]){ rows, columns }, 2, dtype, seed, s);
}

static mlxvk_array number(uint32_t value, mlxvk_stream s)
{
    mlxvk_array a = { NULL };
    OK(mlxvk_array_new_data_device(&a, &value, NULL, 0, MLXVK_UINT32, mlxvk_stream_device(s)), s);
    return a;
}

static const mlxvk_array none = { NULL };

static mlxvk_array run_product(int rows, mlxvk_stream s)
{
    mlxvk_array x = two_dims(rows, 256, MLXVK_FLOAT16, 1, s), w = two_dims(96, 256, MLXVK_FLOAT16, 2, s), part[3] = { { NULL } }, y = { NULL };
    mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    mlxvk_vector_array q = mlxvk_vector_array_new();
    OK(mlxvk_quantize(&q, w, group, bits, "affine", none, s), s);
    for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&part[i], q, i), s);
    OK(mlxvk_quantized_matmul(&y, x, part[0], part[1], part[2], true, group, bits, "affine", s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    for (size_t i = 0; i < 3; i++) mlxvk_array_free(part[i]);
    mlxvk_vector_array_free(q);
    return y;
}

static mlxvk_array run_dequantize(int rows, mlxvk_stream s)
{
    mlxvk_array w = two_dims(rows, 128, MLXVK_FLOAT32, 3, s), part[3] = { { NULL } }, y = { NULL };
    mlxvk_optional_int group = { 32, true }, bits = { 4, true };
    mlxvk_vector_array q = mlxvk_vector_array_new();
    OK(mlxvk_quantize(&q, w, group, bits, "affine", none, s), s);
    for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&part[i], q, i), s);
    OK(mlxvk_dequantize(&y, part[0], part[1], part[2], group, bits, "affine", none, (mlxvk_optional_dtype){ MLXVK_FLOAT32, false }, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(w);
    for (size_t i = 0; i < 3; i++) mlxvk_array_free(part[i]);
    mlxvk_vector_array_free(q);
    return y;
}

static mlxvk_array run_norm(int rows, mlxvk_stream s)
{
    mlxvk_array x = two_dims(rows, 72, MLXVK_FLOAT32, 4, s), y = { NULL };
    mlxvk_array w = normals((int[]){ 72 }, 1, MLXVK_FLOAT32, 5, s);
    OK(mlxvk_fast_rms_norm(&y, x, w, 1e-5f, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    return y;
}

/* (batch, heads, tokens, width), seen transposed. kind: 1 traditional, 2 some features only, 4 frequencies, 8 an offset for each. */
static mlxvk_array run_rope(int kind, mlxvk_stream s)
{
    mlxvk_array x = normals((int[]){ 2, 5, 3, 40 }, 4, MLXVK_FLOAT32, 6, s);
    mlxvk_array freqs = { NULL }, at = { NULL }, y = { NULL };
    mlxvk_optional_float base = { 1000, !(kind & 4) };
    int dims = kind & 2 ? 24 : 40;
    OK(mlxvk_transpose_axes(&x, x, (int[]){ 0, 2, 1, 3 }, 4, s), s);
    if (kind & 4) {
        freqs = normals(&(int){ dims / 2 }, 1, MLXVK_FLOAT32, 7, s);
        OK(mlxvk_exp(&freqs, freqs, s), s);
    }
    if (kind & 8) {
        OK(mlxvk_array_new_data_device(&at, (int32_t[]){ 3, 11 }, (int[]){ 2 }, 1, MLXVK_INT32, mlxvk_stream_device(s)), s);
        OK(mlxvk_fast_rope_dynamic(&y, x, dims, kind & 1, base, 0.5f, at, freqs, s), s);
    } else OK(mlxvk_fast_rope(&y, x, dims, kind & 1, base, 0.5f, 4, freqs, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(freqs);
    mlxvk_array_free(at);
    return y;
}

static mlxvk_array attend(int queries, int keys, int width, const char *mode, mlxvk_stream s)
{
    mlxvk_array q = normals((int[]){ 1, 4, queries, width }, 4, MLXVK_FLOAT32, 8, s);
    mlxvk_array k = normals((int[]){ 1, 2, keys, width }, 4, MLXVK_FLOAT32, 9, s);
    mlxvk_array v = normals((int[]){ 1, 2, keys, width }, 4, MLXVK_FLOAT32, 10, s), y = { NULL };
    OK(mlxvk_fast_scaled_dot_product_attention(&y, q, k, v, 0.1f, mode, none, none, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(q);
    mlxvk_array_free(k);
    mlxvk_array_free(v);
    return y;
}

static mlxvk_array run_decode(int keys, mlxvk_stream s) { return attend(1, keys, 128, "", s); }
static mlxvk_array run_narrow(int keys, mlxvk_stream s) { return attend(1, keys, 64, "", s); }
static mlxvk_array run_prefill(int keys, mlxvk_stream s) { return attend(5, keys, 64, "causal", s); }

static mlxvk_array run_argmax(int rows, mlxvk_stream s)
{
    mlxvk_array x = two_dims(rows, 3000, MLXVK_FLOAT32, 11, s), y = { NULL };
    OK(mlxvk_argmax_axis(&y, x, 1, false, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    return y;
}

typedef int (*binary_function)(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);

/* how: 0 two of a shape, 1 with one number, 2 with a row. */
static mlxvk_array half_binary(binary_function f, int how, mlxvk_stream s)
{
    mlxvk_array x = two_dims(30, 44, MLXVK_BFLOAT16, 12, s), z = two_dims(how ? 1 : 30, how == 1 ? 1 : 44, MLXVK_BFLOAT16, 13, s), y = { NULL };
    OK(f(&y, x, z, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(z);
    return y;
}

static mlxvk_array run_add(int how, mlxvk_stream s) { return half_binary(mlxvk_add, how, s); }
static mlxvk_array run_multiply(int how, mlxvk_stream s) { return half_binary(mlxvk_multiply, how, s); }

static mlxvk_array run_shift(int count, mlxvk_stream s)
{
    mlxvk_array x = { NULL }, by = number(5, s), y = { NULL };
    OK(mlxvk_arange(&x, 1, 1 + 7919.0 * count, 7919, MLXVK_UINT32, s), s);
    OK(mlxvk_left_shift(&y, x, by, s), s);
    OK(mlxvk_right_shift(&y, y, by, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(by);
    return y;
}

static mlxvk_array run_gather(int width, mlxvk_stream s)
{
    mlxvk_array x = two_dims(20, width, MLXVK_FLOAT32, 14, s), at = { NULL }, y = { NULL };
    OK(mlxvk_array_new_data_device(&at, (int32_t[]){ 3, -1, 0, 19, 7 }, (int[]){ 5 }, 1, MLXVK_INT32, mlxvk_stream_device(s)), s);
    OK(mlxvk_take_axis(&y, x, at, 0, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(at);
    return y;
}

static mlxvk_array run_sort(int length, mlxvk_stream s)
{
    mlxvk_array x = two_dims(2, length, MLXVK_FLOAT32, 15, s), y = { NULL };
    OK(mlxvk_sort_axis(&y, x, 1, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    return y;
}

static mlxvk_array run_matmul(int rows, mlxvk_stream s)
{
    mlxvk_array x = two_dims(rows, 64, MLXVK_FLOAT32, 16, s), w = two_dims(64, 96, MLXVK_FLOAT32, 17, s), y = { NULL };
    OK(mlxvk_matmul(&y, x, w, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    return y;
}

/* A chain whose operands nobody keeps. */
static mlxvk_array run_chain(int rows, mlxvk_stream s)
{
    mlxvk_array x = two_dims(rows, 50, MLXVK_FLOAT32, 18, s);
    for (int i = 0; i < 3; i++) {
        OK(mlxvk_sigmoid(&x, x, s), s);
        OK(mlxvk_softmax_axis(&x, x, 1, true, s), s);
        OK(mlxvk_multiply(&x, x, x, s), s);
    }
    OK(eval_one(x), s);
    return x;
}

static mlxvk_array run_transpose(int rows, mlxvk_stream s)
{
    mlxvk_array x = two_dims(rows, 136, MLXVK_BFLOAT16, 19, s), y = { NULL };
    OK(mlxvk_transpose(&x, x, s), s);
    OK(mlxvk_contiguous(&y, x, false, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    return y;
}

/* Large enough for a transposed operand to be copied first. */
static mlxvk_array run_across(int rows, mlxvk_stream s)
{
    mlxvk_array x = two_dims(rows, 16, MLXVK_FLOAT32, 20, s), z = two_dims(16, rows, MLXVK_FLOAT32, 21, s);
    mlxvk_array y = { NULL };
    OK(mlxvk_transpose(&x, x, s), s);
    OK(mlxvk_multiply(&y, x, z, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(z);
    return y;
}

static mlxvk_array run_wide(int count, mlxvk_stream s)       /* int64 */
{
    mlxvk_array x = { NULL };
    OK(mlxvk_arange(&x, 0, count, 1, MLXVK_FLOAT32, s), s);
    OK(mlxvk_square(&x, x, s), s);
    OK(eval_one(x), s);
    return x;
}

typedef mlxvk_array (*run_function)(int n, mlxvk_stream s);

/* Differences allowed: relative to the largest element. */
static const struct operation { const char *name; run_function run; int n; double tolerance; } operations[] = {
    { "product of 1 row", run_product, 1, 2e-3 },
    { "product of 2 rows", run_product, 2, 2e-3 },
    { "product of 3 rows", run_product, 3, 2e-3 },
    { "product of 4 rows", run_product, 4, 2e-3 },
    { "product of 7 rows", run_product, 7, 2e-3 },
    { "product of 12 rows", run_product, 12, 2e-3 },
    { "product of 40 rows", run_product, 40, 2e-3 },
    { "dequantize", run_dequantize, 6, 1e-6 },
    { "rms_norm", run_norm, 9, 1e-6 },
    { "rope", run_rope, 0, 1e-5 },
    { "rope of pairs", run_rope, 1, 1e-5 },
    { "rope of some features", run_rope, 2, 1e-5 },
    { "rope with frequencies", run_rope, 4 + 1, 1e-5 },
    { "rope with offsets", run_rope, 8, 1e-5 },
    { "decode over 20 keys", run_decode, 20, 1e-5 },
    { "decode over 50 keys", run_decode, 50, 1e-5 },
    { "decode over 100 keys", run_decode, 100, 1e-5 },
    { "decode over 300 keys", run_decode, 300, 1e-5 },
    { "decode of width 64", run_narrow, 300, 1e-5 },
    { "prefill", run_prefill, 90, 1e-5 },
    { "argmax", run_argmax, 5, 0 },
    { "add", run_add, 0, 0 },
    { "add a number", run_add, 1, 0 },
    { "add a row", run_add, 2, 0 },
    { "multiply", run_multiply, 0, 0 },
    { "multiply by a number", run_multiply, 1, 0 },
    { "multiply by a row", run_multiply, 2, 0 },
    { "shift", run_shift, 100, 0 },
    { "gather", run_gather, 12, 0 },
    { "sort", run_sort, 5000, 0 },
    { "matmul", run_matmul, 17, 1e-5 },
    { "chain", run_chain, 8, 1e-6 },
    { "numbers", run_wide, 1000, 0 },
    { "transposed copy", run_transpose, 128, 0 },
    { "operand read across", run_across, 70001, 0 },
};

/* ---- what an operation gave, and how ---- */

struct outcome { size_t count; float *values; uint64_t path; };

static void hash_text(uint64_t *h, const char *text)
{
    for (const char *p = text ? text : "-"; *p; p++) *h = (*h ^ (unsigned char)*p) * 0x100000001b3u;
}

static void hash_stat(const mlxvk_stat *stat, void *user)
{
    if (!strcmp(stat->family, "algorithms")) return;
    hash_text(user, stat->family);
    hash_text(user, stat->kernel);
    hash_text(user, stat->reason);
    hash_text(user, stat->signature);
}

static void hash_kernel(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    (void)nanoseconds;
    hash_text(user, kernel);
    *(uint64_t *)user += count;
}

static struct outcome outcome_of(const struct operation *o, mlxvk_device d, mlxvk_stream s)
{
    struct outcome r = { .path = 0xcbf29ce484222325u };
    mlxvk_array y;
    OK_DEVICE(mlxvk_reset_stats(d), d);
    y = o->run(o->n, s);
    OK_DEVICE(mlxvk_stats_report(d, hash_stat, &r.path), d);
    OK_DEVICE(mlxvk_kernel_stats(d, hash_kernel, &r.path), d);
    OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, s), s);
    r.count = mlxvk_array_size(y);
    r.values = malloc((r.count + 1) * sizeof *r.values);
    assert_non_null(r.values);
    OK(mlxvk_array_read(y, r.values, r.count * sizeof *r.values, s), s);
    mlxvk_array_free(y);
    return r;
}

static void compare(const struct operation *o, const char *gates, const struct outcome *want, const struct outcome *got)
{
    double most = 0;
    assert_int_equal(want->count, got->count);
    for (size_t i = 0; i < want->count; i++) if (fabs((double)want->values[i]) > most) most = fabs((double)want->values[i]);
    for (size_t i = 0; i < want->count; i++)
        if (!(fabs((double)want->values[i] - (double)got->values[i]) <= o->tolerance * most))
            fail_msg("%s with %s: element %zu is %.9g, not %.9g", o->name, gates, i, (double)got->values[i], (double)want->values[i]);
}

/* ---- every gate at another value: the same results ---- */

/* Gates that do not cover each other share a device; changes: the operations that must take another path then; all: the others
 * run too. */
static const struct group { bool all; const char *gates, *changes[12]; } groups[] = {
    { true, "MLX_VK_ENABLE_RMSNORM_NATIVE=0 MLX_VK_ENABLE_ROPE_NATIVE=0 MLX_VK_ENABLE_QMM_NATIVE=0 MLX_VK_ENABLE_SDPA_NATIVE=0 "
      "MLX_VK_ENABLE_ARGREDUCE_ARGMAX_LASTDIM=0 MLX_VK_ENABLE_ADD_BF16=0 MLX_VK_ENABLE_FAST_QUANTIZE_DEQ_AFFINE_B4=0 "
      "MLX_VK_ENABLE_GATHER_ROWS_WORDS=0 MLX_VK_ENABLE_DONATION=0 MLX_VK_ENABLE_RADIX_SORT=2 MLX_VK_ENABLE_PRUNING=0",
      { "rms_norm", "rope", "rope with offsets", "product of 1 row", "product of 40 rows", "decode over 300 keys", "prefill", "argmax", "add",
        "add a number", "dequantize", "gather" } },
    { false, "MLX_VK_ENABLE_MUL_BF16=0 MLX_VK_ENABLE_BITWISE_SHIFT_U32=0 MLX_VK_ENABLE_ROPE_HS_TRANSPOSED=0 MLX_VK_ENABLE_QMM_NATIVE_M1=0 "
      "MLX_VK_ENABLE_QMM_NATIVE_M4=0 MLX_VK_ENABLE_SDPA_DECODE=0 MLX_VK_MATMUL_KERNEL=1 "
      "MLX_VK_ENABLE_TRANSPOSE_TILES=0",
      { "multiply", "multiply by a number", "shift", "rope", "product of 1 row", "product of 3 rows", "product of 4 rows", "decode of width 64",
        "prefill", "matmul", "transposed copy", "operand read across" } },
    { false, "MLX_VK_ENABLE_QMM_NATIVE_M1_REDUCE=0 MLX_VK_ENABLE_QMM_NATIVE_M2=0 MLX_VK_ENABLE_QMM_NATIVE_M8=0 MLX_VK_ENABLE_QMM_NATIVE_M16=0 "
      "MLX_VK_ENABLE_SDPA_DECODE_D128=0 MLX_VK_SDPA_MAX_K_LEN_PREFILL=50",
      { "product of 1 row", "product of 2 rows", "product of 7 rows", "product of 12 rows", "decode over 20 keys", "decode over 300 keys", "prefill" } },
    { false, "MLX_VK_ENABLE_QMM_NATIVE_M1_REDUCE_SUBGROUP=0 MLX_VK_ENABLE_SDPA_DECODE_D128_K32=0 MLX_VK_SDPA_SPLIT_K=4",
      { "product of 1 row", "decode over 20 keys", "decode over 50 keys", "decode over 300 keys", "prefill" } },
    { false, "MLX_VK_ENABLE_SDPA_DECODE_D128_K64=0 MLX_VK_SDPA_SPLITK_TARGET_WG_DECODE=64 MLX_VK_SDPA_SPLITK_TARGET_CHUNK=32 "
      "MLX_VK_SDPA_SPLITK_MIN_K_LEN=101 MLX_VK_QMM_KERNEL=2",
      { "decode over 50 keys", "decode over 300 keys", "decode of width 64" } },
    { false, "MLX_VK_ENABLE_SDPA_DECODE_D128_K128=0 MLX_VK_SDPA_SPLITK_TARGET_WG_DECODE=64 MLX_VK_SDPA_SPLITK_TARGET_CHUNK_DECODE=16 "
      "MLX_VK_SDPA_SPLITK_TARGET_CHUNK_PREFILL=16 MLX_VK_SDPA_SPLITK_MAX_PARTS_DECODE=3 MLX_VK_SDPA_SPLITK_MAX_PARTS_PREFILL=2 "
      "MLX_VK_SDPA_SPLITK_MIN_K_LEN_DECODE=30 MLX_VK_SDPA_SPLITK_MIN_K_LEN_PREFILL=1000 MLX_VK_SDPA_DECODE_ROWS=4 MLX_VK_QMM_KERNEL=4",
      { "decode over 50 keys", "decode over 100 keys", "decode over 300 keys" } },
    { true, "MLX_VK_SDPA_MAX_K_LEN=60 MLX_VK_SDPA_SPLITK_MAX_PARTS=2 MLX_VK_MAX_OPS_PER_BUFFER=1 MLX_VK_MAX_MB_PER_BUFFER=1 "
      "MLX_VK_MAX_INFLIGHT_SEQUENCES=1 MLX_VK_QMM_KERNEL=1 MLX_VK_QMV_ROWS=2 MLX_VK_QMV_SPLIT=2 MLX_VK_QMV_THREADS=64 MLX_VK_POISON=1 MLX_VK_ENABLE_RADIX_SORT=0 MLX_VK_ENABLE_PRUNING=2",
      { "decode over 100 keys", "decode over 300 keys", "prefill" } },
    { true, "MLX_VK_SDPA_MAX_K_LEN_DECODE=60 MLX_VK_FORCE_STAGING=1 MLX_VK_ENABLE_PUSH_DESCRIPTORS=0 MLX_VK_ENABLE_SUBGROUP=0 "
      "MLX_VK_ENABLE_COOPERATIVE_MATRIX=0 MLX_VK_ENABLE_INTEGER_DOT=0 MLX_VK_ENABLE_INT64=0 MLX_VK_ENABLE_UNCHECKED=0 MLX_VK_MATMUL_TILE=1",
      { "decode over 20 keys", "decode over 100 keys", "decode over 300 keys" } },
};

/* Gates whose effect other tests compare (fusions in test_fusion, chains in test_chains and test_folds, convolutions in test_conv, Fourier
 * transforms in test_fft, scales' rounding in test_products, random bits in test_random, capabilities in test_profiles,
 * bindings and grids in test_huge, one query in test_attention, decoding steps in test_step, threads and buffers in test_driver, shared memory in test_quantized, memory in test_memory, what clearing leaves in test_shared, self-tests in test_self_test, queues in test_device, tunings in test-profiles, replay in
 * test_replay, columns of scans in test_scans, what comes with a row in test_invariant), and those that change no path, of which this file tests what they print. */
static const char *const elsewhere[] = {
    "MLX_VK_CONV_KERNEL", "MLX_VK_ENABLE_WINOGRAD", "MLX_VK_ENABLE_STORAGE8", "MLX_VK_ENABLE_STORAGE16", "MLX_VK_ENABLE_INT8", "MLX_VK_ENABLE_INT16",
    "MLX_VK_ENABLE_FLOAT16", "MLX_VK_ENABLE_HALF_CONVERSION", "MLX_VK_SUBGROUP_SIZE", "MLX_VK_FFT_KERNEL",
    "MLX_VK_RANDOM_PRODUCTS", "MLX_VK_BATCH_INVARIANT", "MLX_VK_SDPA_DECODE_ONE_QUERY",
    "MLX_VK_ENABLE_CHAINS", "MLX_VK_ENABLE_CHAIN_REDUCE", "MLX_VK_DEBUG_CHAINS", "MLX_VK_MAX_BINDING_RANGE", "MLX_VK_MAX_GRID",
    "MLX_VK_MAX_MEMORY_MB", "MLX_VK_SELF_TEST", "MLX_VK_QUEUES", "MLX_VK_TUNING",
    "MLX_VK_MAX_THREADS", "MLX_VK_MAX_SHARED_MEMORY", "MLX_VK_MAX_STORAGE_BUFFERS", "MLX_VK_MAX_MS_PER_BUFFER", "MLX_VK_MAX_US_PER_DISPATCH", "MLX_VK_REPLAY_SEGMENT",
    "MLX_VK_ENABLE_REPLAY", "MLX_VK_ENABLE_LINKS", "MLX_VK_SCAN_COLUMNS", "MLX_VK_WINDOW", "MLX_VK_CLEAR_KEEPS_MB",
    "MLX_VK_ENABLE_ADD_RMSNORM_NATIVE", "MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16", "MLX_VK_ENABLE_ROPE_CACHE_WRITE",
    "MLX_VK_ENABLE_REDUCE_JOIN", "MLX_VK_ENABLE_SUBTRACT_ARGREDUCE", "MLX_VK_ENABLE_SCALED_CATEGORICAL", "MLX_VK_ENABLE_SEARCH_GROUPS", "MLX_VK_ENABLE_SUM_MULTIPLY",
    "MLX_VK_ENABLE_RMSNORM_ROPE", "MLX_VK_ENABLE_TAKE_DEQUANTIZE", "MLX_VK_ENABLE_ROPE_SDPA", "MLX_VK_ENABLE_QMM_GROUPED", "MLX_VK_ENABLE_QMM_BESIDE", "MLX_VK_ENABLE_QMM_ADD", "MLX_VK_ENABLE_RMSNORM_QMM", "MLX_VK_MX_SCALES_NEAREST", "MLX_VK_PROFILE", "MLX_VK_PROFILE_COMPILED_DETAIL", "MLX_VK_TEST_NO_BARRIERS",
    "MLX_VK_DEVICE", "MLX_VK_STATS", "MLX_VK_QMM_STATS", "MLX_VK_SDPA_STATS", "MLX_VK_ALGO_STATS", "MLX_VK_DEBUG_ROPE_REJECT",
    "MLX_VK_DEBUG_SDPA_REJECT", "MLX_VK_DEBUG_SDPA_SPLITK", "MLX_VK_DEBUG_ARGREDUCE_REJECT", "MLX_VK_DEBUG_BINARY_FALLBACK",
    "MLX_VK_DEBUG_BITWISE_FALLBACK", "MLX_VK_DEBUG_FAST_QUANTIZE_FALLBACK", "MLX_VK_DEBUG_GATHER_FALLBACK", "MLX_VK_DEBUG_COMPILED_DETAIL",
};

static bool must_change(const struct group *g, const char *operation)
{
    for (size_t i = 0; i < COUNT(g->changes) && g->changes[i]; i++) if (!strcmp(g->changes[i], operation)) return true;
    return false;
}

static void test_equal_results(void **state)
{
    (void)state;
    struct outcome want[COUNT(operations)];
    for (size_t g = 0; g <= COUNT(groups); g++) {                     /* first without gates */
        const char *gates = g ? groups[g - 1].gates : "";
        char all[1024];
        snprintf(all, sizeof all, "MLX_VK_STATS=1 %s", gates);
        mlxvk_device d = open_device(all);
        mlxvk_stream s = open_stream(d);
        for (size_t i = 0; i < COUNT(operations); i++) {
            const struct operation *o = &operations[i];
            struct outcome got;
            if (g && !groups[g - 1].all && !must_change(&groups[g - 1], o->name)) continue;
            got = outcome_of(o, d, s);
            if (!g) { want[i] = got; continue; }
            compare(o, gates, &want[i], &got);
            if (must_change(&groups[g - 1], o->name) && got.path == want[i].path) fail_msg("%s: the same path with %s", o->name, gates);
            free(got.values);
        }
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
    }
    for (size_t i = 0; i < COUNT(operations); i++) free(want[i].values);
}

/* Each gate that the library prints is in one of the groups above, or is named as tested elsewhere. */
static void known_gate(const char *line, void *user)
{
    size_t n = strcspn(line, " ");
    char name[80];
    snprintf(name, sizeof name, "%.*s=", (int)n, line);
    ++*(int *)user;
    for (size_t i = 0; i < COUNT(groups); i++) if (strstr(groups[i].gates, name)) return;
    name[n] = 0;
    for (size_t i = 0; i < COUNT(elsewhere); i++) if (!strcmp(elsewhere[i], name)) return;
    fail_msg("%s is not tested", name);
}

static void test_all_are_tested(void **state)
{
    (void)state;
    int count = 0;
    mlxvk_device d = open_device(NULL);
    OK_DEVICE(mlxvk_gates(d, known_gate, &count), d);
    assert_true(count > 70);
    mlxvk_device_free(d);
}

/* ---- the device by its gate ---- */

static void find_device(const char *line, void *user) { if (strstr(line, "MLX_VK_DEVICE ")) snprintf(user, 128, "%s", line); }

static void test_device_gate(void **state)
{
    (void)state;
    mlxvk_error error = { 0 };
    mlxvk_device d = { NULL };
    char line[128] = "";
    assert_int_equal(create_device(&d, &(mlxvk_device_desc){ .gates = "MLX_VK_DEVICE=no_such_device MLX_VK_STATS=1", .error = &error }),
                     MLXVK_ERROR_NO_DEVICE);
    assert_non_null(strstr(error.text, "\"no_such_device\""));
    setenv("MLX_VK_DEVICE", "no such device", 1);
    assert_int_equal(create_device(&d, &(mlxvk_device_desc){ .error = &error }), MLXVK_ERROR_NO_DEVICE);
    assert_non_null(strstr(error.text, "\"no such device\""));
    d = open_new_device("MLX_VK_DEVICE=0");                                /* wins over the environment */
    unsetenv("MLX_VK_DEVICE");
    OK_DEVICE(mlxvk_gates(d, find_device, line), d);
    assert_non_null(strstr(line, " 0 "));
    mlxvk_device_free(d);
}

/* ---- statistics ---- */

struct counts { uint64_t ran, refused, others; char signature[256], reason[256]; };

static void count_products(const mlxvk_stat *stat, void *user)
{
    struct counts *c = user;
    if (strcmp(stat->family, "quantized_matmul")) c->others++;
    else if (stat->reason) {
        c->refused += stat->count;
        snprintf(c->reason, sizeof c->reason, "%s", stat->reason);
    } else {
        c->ran += stat->count;
        snprintf(c->signature, sizeof c->signature, "%s", stat->signature);
    }
}

static void test_statistics(void **state)
{
    (void)state;
    struct counts c = { 0 };
    mlxvk_device d = open_new_device("MLX_VK_STATS=1 MLX_VK_ENABLE_QMM_NATIVE_M1=0");
    mlxvk_stream s = open_stream(d);
    for (int i = 0; i < 3; i++) mlxvk_array_free(run_product(1, s));
    OK_DEVICE(mlxvk_stats_report(d, count_products, &c), d);
    assert_int_equal(c.ran, 3);
    assert_int_equal(c.refused, 3);
    assert_string_equal(c.reason, "a gate");
    assert_non_null(strstr(c.signature, "rows 1, groups per column 4, 256 x 96, affine of 4 bits in groups of 64, float16"));
    assert_true(c.others > 0);
    OK_DEVICE(mlxvk_reset_stats(d), d);
    mlxvk_array_free(run_product(40, s));
    c = (struct counts){ 0 };
    OK_DEVICE(mlxvk_stats_report(d, count_products, &c), d);
    assert_int_equal(c.ran, 1);
    assert_non_null(strstr(c.signature, "rows 64,"));                  /* by powers of two beyond 16 */
    assert_int_equal(mlxvk_stats_report(d, NULL, NULL), MLXVK_ERROR_ARGUMENT);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_nothing_is_counted(void **state)
{
    (void)state;
    struct counts c = { 0 };
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_array_free(run_product(1, s));
    OK_DEVICE(mlxvk_stats_report(d, count_products, &c), d);
    assert_int_equal(c.ran + c.refused + c.others, 0);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* A profile names fused operations. */
static void find_fused(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    (void)nanoseconds;
    if (!strcmp(kernel, "add + rms_norm")) *(uint64_t *)user += count;
}

static void add_and_norm(mlxvk_stream s, int rows)
{
    mlxvk_array x = two_dims(rows, 64, MLXVK_FLOAT32, 1, s), y = two_dims(rows, 64, MLXVK_FLOAT32, 2, s);
    OK(mlxvk_add(&x, x, y, s), s);
    OK(mlxvk_fast_rms_norm(&y, x, none, 1e-5f, s), s);
    OK(eval_one(y), s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

static void test_fused_names(void **state)
{
    (void)state;
    for (int on = 0; on < 2; on++) {
        uint64_t count = 0;
        mlxvk_device d = open_new_device(on ? "MLX_VK_PROFILE=1 MLX_VK_PROFILE_COMPILED_DETAIL=1" : "MLX_VK_PROFILE=1");
        mlxvk_stream s = open_stream(d);
        add_and_norm(s, 4);
        OK_DEVICE(mlxvk_kernel_stats(d, find_fused, &count), d);
        assert_int_equal(count, on);
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
    }
}

/* Each dispatch one by one; the last ones are an addition of two arrays, and a product of two matrices. */
struct trace { mlxvk_device device; mlxvk_dispatch seen[16]; int count; };

static void take_dispatch(const mlxvk_dispatch *dispatch, void *user)
{
    struct trace *t = user;
    mlxvk_stats stats;
    assert_in_range(t->count, 0, 15);
    OK_DEVICE(mlxvk_get_stats(&stats, t->device), t->device);  /* the library may be called */
    t->seen[t->count++] = *dispatch;
}

static void add_and_multiply(mlxvk_stream s)
{
    mlxvk_array x = two_dims(64, 32, MLXVK_FLOAT32, 1, s), y = two_dims(64, 32, MLXVK_FLOAT32, 2, s), z = { NULL };
    OK(mlxvk_add(&z, x, y, s), s);
    OK(eval_one(z), s);
    OK(mlxvk_transpose(&y, y, s), s);
    OK(mlxvk_matmul(&z, x, y, s), s);
    OK(eval_one(z), s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
}

static void check_trace(const struct trace *t)
{
    const mlxvk_dispatch *sum = &t->seen[t->count - 2], *product = sum + 1;
    const uint64_t bytes = 64 * 32 * 4;
    assert_in_range(t->count, 2, 16);
    for (const mlxvk_dispatch *at = t->seen; at < product; at++)
        assert_true(at->begin <= at->end && at->begin <= at[1].begin && at->submission <= at[1].submission);
    assert_true(product->begin <= product->end && strlen(sum->kernel) && strcmp(sum->kernel, product->kernel));
    assert_true(sum->submission < product->submission);
    assert_true(sum->read >= 2 * bytes && sum->read < 3 * bytes && sum->written == bytes);
    assert_true(product->read == 2 * bytes && product->written == 64 * 64 * 4);
    assert_true(sum->multiplications == 0 && product->multiplications == 64 * 64 * 32);
    for (int i = 0; i < 3; i++) assert_true(sum->groups[i] && product->groups[i]);
}

static void test_dispatch_trace(void **state)
{
    (void)state;
    mlxvk_device d = open_new_device("MLX_VK_PROFILE=2");
    mlxvk_stream s = open_stream(d);
    struct trace t = { .device = d };
    add_and_multiply(s);
    OK_DEVICE(mlxvk_reset_stats(d), d);                            /* what ran before is forgotten */
    OK_DEVICE(mlxvk_dispatch_trace(d, take_dispatch, &t), d);
    assert_int_equal(t.count, 0);
    add_and_multiply(s);
    for (int i = 0; i < 2; i++) {                                  /* each is told once */
        OK_DEVICE(mlxvk_dispatch_trace(d, take_dispatch, &t), d);
        check_trace(&t);
    }
    assert_int_equal(mlxvk_dispatch_trace(d, NULL, NULL), MLXVK_ERROR_ARGUMENT);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* ---- what is printed ---- */

/* Lines of stderr that `work` and the device's end write. */
static char *printed(const char *gates, void (*work)(mlxvk_stream s))
{
    FILE *file = tmpfile();
    int keep = dup(2);
    char *text = calloc(1, 1 << 16);
    assert_non_null(file);
    assert_non_null(text);
    fflush(stderr);
    dup2(fileno(file), 2);
    mlxvk_device d = open_new_device(gates);
    mlxvk_stream s = open_stream(d);
    work(s);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    fflush(stderr);
    dup2(keep, 2);
    close(keep);
    rewind(file);
    text[fread(text, 1, (1 << 16) - 1, file)] = 0;
    fclose(file);
    return text;
}

static int occurrences(const char *text, const char *part)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)) != NULL; p += strlen(part)) n++;
    return n;
}

/* Each twice, and each a way that is not the fast one. */
static void slow_paths(mlxvk_stream s)
{
    for (int i = 0; i < 2; i++) {
        mlxvk_array x = two_dims(6, 10, MLXVK_FLOAT32, 1, s), turned = { NULL }, y = { NULL }, whole = { NULL };
        mlxvk_array_free(run_rope(2 + 1, s));
        mlxvk_array_free(run_decode(30, s));
        mlxvk_array_free(run_dequantize(4, s));
        OK(mlxvk_argmax_axis(&y, x, 0, false, s), s);
        OK(eval_one(y), s);
        OK(mlxvk_transpose(&turned, x, s), s);
        OK(mlxvk_copy(&y, turned, s), s);
        OK(mlxvk_add(&y, y, turned, s), s);
        OK(eval_one(y), s);
        OK(mlxvk_astype(&whole, turned, MLXVK_INT32, s), s);
        OK(mlxvk_transpose(&turned, whole, s), s);
        OK(mlxvk_astype(&x, x, MLXVK_INT32, s), s);
        OK(mlxvk_bitwise_and(&y, x, turned, s), s);
        OK(eval_one(y), s);
        OK(mlxvk_take_axis(&y, x, turned, 1, s), s);
        OK(eval_one(y), s);
        mlxvk_array_free(x);
        mlxvk_array_free(turned);
        mlxvk_array_free(y);
        mlxvk_array_free(whole);
    }
}

static void test_rejects(void **state)
{
    (void)state;
    char *text = printed("MLX_VK_DEBUG_ROPE_REJECT=1 MLX_VK_DEBUG_SDPA_REJECT=1 MLX_VK_DEBUG_SDPA_SPLITK=1 MLX_VK_DEBUG_ARGREDUCE_REJECT=1 "
                         "MLX_VK_DEBUG_BINARY_FALLBACK=1 MLX_VK_DEBUG_BITWISE_FALLBACK=1 MLX_VK_DEBUG_FAST_QUANTIZE_FALLBACK=1 "
                         "MLX_VK_DEBUG_GATHER_FALLBACK=1 MLX_VK_ENABLE_ROPE_NATIVE=0 MLX_VK_ENABLE_SDPA_DECODE_D128_K32=0 "
                         "MLX_VK_ENABLE_FAST_QUANTIZE_DEQ_AFFINE_B4=0", slow_paths);
    static const char *const lines[] = {
        "[mlxvk] rope: in one kernel not taken, a gate: 24 of float32 (2, 3, 5, 40) (600, 40, 120, 1)\n",
        "[mlxvk] attention: attention_decode not taken, a gate: float32, batch 1, heads 4 on 2, queries 1, keys up to 32, width 128 and 128, mask none\n",
        "[mlxvk] argreduce: rows not taken, not along contiguous rows: float32 (6, 10) (10, 1)\n",
        "[mlxvk] dequantize: dequantize not taken, a gate: 4 bits of uint32 (4, 16) (16, 1)\n",
        "[mlxvk] gather: rows not taken, ",
        "[mlxvk] bitwise: bitwise_and not taken, strided, not aligned, or a gate: int32 (6, 10) (10, 1), int32 (6, 10) (1, 6)\n",
    };
    for (size_t i = 0; i < COUNT(lines); i++)
        if (occurrences(text, lines[i]) != 1) fail_msg("%d times: %s(of:)\n%s", occurrences(text, lines[i]), lines[i], text);
    assert_true(occurrences(text, "[mlxvk] binary: add not taken, ") >= 1);
    free(text);
    text = printed(NULL, slow_paths);
    assert_string_equal(text, "");
    free(text);
}

static void fused_work(mlxvk_stream s)
{
    for (int i = 0; i < 2; i++) add_and_norm(s, 4);
    add_and_norm(s, 5);
}

static void test_fused_detail(void **state)
{
    static const char four[] = "[mlxvk] fused: add + rms_norm: float32 (4, 64)\n";
    static const char five[] = "[mlxvk] fused: add + rms_norm: float32 (5, 64)\n";
    (void)state;
    char *text = printed("MLX_VK_DEBUG_COMPILED_DETAIL=1", fused_work);
    if (occurrences(text, four) != 1 || occurrences(text, five) != 1)
        fail_msg("not once each: %s%sof:\n%s", four, five, text);
    free(text);
    text = printed("MLX_VK_DEBUG_COMPILED_DETAIL=1 MLX_VK_ENABLE_ADD_RMSNORM_NATIVE=0", fused_work);
    assert_int_equal(occurrences(text, "add + rms_norm"), 0);
    free(text);
    text = printed(NULL, fused_work);
    assert_string_equal(text, "");
    free(text);
}

static void some_work(mlxvk_stream s)
{
    for (int i = 0; i < 2; i++) {
        mlxvk_array_free(run_product(2, s));
        mlxvk_array_free(run_decode(40, s));
    }
}

/* A step's attention with the newest key's rope and place in the cache, in one dispatch. */
static void step_work(mlxvk_stream s)
{
    const mlxvk_array none = { NULL };
    const mlxvk_optional_float base = { 10000.0f, true };
    const int one[] = { 1, 1, 1, 1 }, start[] = { 0, 0, 39, 0 }, stop[] = { 1, 2, 40, 128 };
    mlxvk_array cache[2] = { { NULL }, { NULL } }, x[3] = { { NULL }, { NULL }, { NULL } }, y = { NULL };
    for (int i = 0; i < 2; i++) OK(mlxvk_zeros(&cache[i], (int[]){ 1, 2, 40, 128 }, 4, MLXVK_FLOAT32, s), s);
    for (int i = 0; i < 3; i++) OK(mlxvk_ones(&x[i], (int[]){ 1, i ? 2 : 4, 1, 128 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_synchronize(s), s);
    for (int i = 0; i < 2; i++) OK(mlxvk_fast_rope(&x[i], x[i], 128, false, base, 1, 39, none, s), s);
    for (int i = 0; i < 2; i++) OK(mlxvk_slice_update(&cache[i], cache[i], x[i + 1], start, 4, stop, 4, one, 4, s), s);
    OK(mlxvk_fast_scaled_dot_product_attention(&y, x[0], cache[0], cache[1], 0.125f, "", none, none, s), s);
    for (int i = 0; i < 3; i++) mlxvk_array_free(x[i]);
    OK(eval_one(y), s);
    for (int i = 0; i < 2; i++) mlxvk_array_free(cache[i]);
    mlxvk_array_free(y);
}

static void test_printed_statistics(void **state)
{
    (void)state;
    char *text = printed("MLX_VK_QMM_STATS=1 MLX_VK_ALGO_STATS=1", some_work);
    assert_int_equal(occurrences(text, "rows 2, groups per column 4, 256 x 96, affine of 4 bits in groups of 64, float16, batch 1: 2\n") > 0, 1);
    assert_int_equal(occurrences(text, "[mlxvk] algorithms: pipelines made: all: "), 1);
    assert_int_equal(occurrences(text, "[mlxvk] algorithms: buffers found in the cache: all: "), 1);
    assert_int_equal(occurrences(text, "attention"), 0);
    free(text);
    text = printed("MLX_VK_SDPA_STATS=1", some_work);
    assert_int_equal(occurrences(text, "keys up to 64, width 128 and 128, mask none: 2\n") > 0, 1);
    assert_int_equal(occurrences(text, "quantized"), 0);
    free(text);
    text = printed("MLX_VK_DEBUG_SDPA_SPLITK=1 MLX_VK_SDPA_SPLIT_K=4", some_work);
    assert_int_equal(occurrences(text, ": 4 parts of up to 16 keys\n"), 1);
    free(text);
    text = printed("MLX_VK_SDPA_STATS=1", step_work);
    assert_int_equal(occurrences(text, "attention_rope: float32, batch 1, heads 4 on 2, queries 1, keys up to 64, width 128 and 128, mask none: 1\n"), 1);
    free(text);
    text = printed("MLX_VK_DEBUG_SDPA_SPLITK=1 MLX_VK_SDPA_SPLIT_K=4", step_work);
    assert_int_equal(occurrences(text, "attention_rope: "), 1);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_results), cmocka_unit_test(test_all_are_tested), cmocka_unit_test(test_device_gate),
        cmocka_unit_test(test_statistics), cmocka_unit_test(test_nothing_is_counted), cmocka_unit_test(test_fused_names), cmocka_unit_test(test_dispatch_trace),
        cmocka_unit_test(test_rejects), cmocka_unit_test(test_fused_detail), cmocka_unit_test(test_printed_statistics),
    };
    return run_group("gates", tests, NULL, NULL);
}
