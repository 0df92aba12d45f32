/* Reductions in the kernels of chains in front of them: the same bits as operation by operation, for all that they take; and
 * where something that they assume does not hold, the operations by themselves. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"
#include "chain_files.h"

#include <stdio.h>
#include <unistd.h>

#define JOIN "MLX_VK_ENABLE_REDUCE_JOIN=2 MLX_VK_ENABLE_SUBTRACT_ARGREDUCE=0 "
#define ANY "MLX_VK_ENABLE_CHAINS=2 MLX_VK_DEBUG_CHAINS=1 " JOIN
#define ON ANY "MLX_VK_ENABLE_CHAIN_REDUCE=2"
#define OFF "MLX_VK_ENABLE_CHAINS=0 MLX_VK_ENABLE_CHAIN_REDUCE=2 MLX_VK_ENABLE_SUBTRACT_ARGREDUCE=0 "

enum { LONGEST = 152004, ROWS_MOST = 130 };

struct bench { mlxvk_device device; mlxvk_stream s; };

static struct bench bench_open(const char *gates)
{
    struct bench b = { .device = open_new_device(gates) };
    b.s = open_stream(b.device);
    return b;
}

static void bench_close(struct bench *b)
{
    mlxvk_stream_free(b->s);
    mlxvk_device_free(b->device);
}

/* What is in a row's elements. */
enum filled { ORDINARY, SPECIAL, ZEROS, LOWEST, FILLED };

static float number(struct rng *r, enum filled filled)
{
    static const float special[] = { 0, -0.0f, 1e30f, -1e30f, 1e-30f, 65504, INFINITY, -INFINITY, NAN };
    if (filled == LOWEST) return -INFINITY;
    if (filled == ZEROS) return random_chance(r, 50) ? 0 : -0.0f;
    if (filled == SPECIAL && random_chance(r, 1)) return special[random_int(r, 0, (int)COUNT(special) - 1)];
    return (float)random_int(r, -4000, 4000) / 512;
}

enum operation { SUM, MEAN, MAX, MIN, ARGMAX, ARGMIN, PROD, OPERATIONS };

static void reduce(struct bench *b, enum operation op, mlxvk_array *res, mlxvk_array a, int axis)
{
    int code = op == SUM ? mlxvk_sum_axis(res, a, axis, false, b->s)
        : op == MEAN ? mlxvk_mean_axis(res, a, axis, false, b->s)
        : op == MAX ? mlxvk_max_axis(res, a, axis, false, b->s)
        : op == MIN ? mlxvk_min_axis(res, a, axis, false, b->s)
        : op == PROD ? mlxvk_prod_axis(res, a, axis, false, b->s)
        : op == ARGMAX ? mlxvk_argmax_axis(res, a, axis, false, b->s) : mlxvk_argmin_axis(res, a, axis, false, b->s);
    OK(code, b->s);
}

/* One case: rows of `length`, and what is done with them. */
struct fold_case {
    int rows, length;
    mlxvk_dtype dtype;
    enum operation op;
    enum filled filled;
    bool held;                                       /* the chain's result is wanted, too */
};

/* The results, (x - number of each row) * 1.25 reduced, and the product: their bits; how many dispatches they took. */
static uint64_t run(struct bench *b, const struct fold_case *c, uint32_t *result, float *kept)
{
    struct rng r = { (uint64_t)c->length * 31 + (uint64_t)c->rows };
    size_t size = (size_t)c->rows * (size_t)c->length;
    float *data = malloc(size * sizeof *data), scale = 1.25f;
    mlxvk_array x, rows, s = floats(b->device, &scale, NULL, 0), res = mlxvk_array_new();
    uint64_t dispatches = 0;
    for (size_t i = 0; i < size; i++) data[i] = number(&r, c->filled);
    x = floats(b->device, data, (int[]){ c->rows, c->length }, 2);
    for (int i = 0; i < c->rows; i++) data[i] = (float)i / 4;
    rows = floats(b->device, data, (int[]){ c->rows, 1 }, 2);
    OK(mlxvk_astype(&x, x, c->dtype, b->s), b->s);
    OK(mlxvk_astype(&rows, rows, c->dtype, b->s), b->s);
    OK(mlxvk_astype(&s, s, c->dtype, b->s), b->s);
    OK_DEVICE(mlxvk_array_eval(x), b->device);
    OK_DEVICE(mlxvk_array_eval(rows), b->device);
    OK_DEVICE(mlxvk_array_eval(s), b->device);
    for (int i = 0; i < (size < 1 << 16 ? 4 : 1); i++) {             /* the last times the window is replayed */
        mlxvk_array y = mlxvk_array_new();
        OK(mlxvk_synchronize(b->s), b->s);
        mlxvk_reset_stats(b->device);
        OK(mlxvk_subtract(&y, x, rows, b->s), b->s);
        OK(mlxvk_multiply(&y, y, s, b->s), b->s);
        reduce(b, c->op, &res, y, 1);
        if (!c->held) { mlxvk_array_free(y); y = mlxvk_array_new(); }
        OK(mlxvk_synchronize(b->s), b->s);
        dispatches = stats_of(b->device).dispatches;
        OK(mlxvk_array_read(res, result, mlxvk_array_nbytes(res), b->s), b->s);
        if (c->held) OK(mlxvk_array_read(y, kept, mlxvk_array_nbytes(y), b->s), b->s);
        mlxvk_array_free(y);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(res);
    mlxvk_array_free(rows);
    mlxvk_array_free(s);
    free(data);
    return dispatches;
}

/* The bits of a result, of which all NaN are one: their signs and the bits behind are the compiler's. */
static uint32_t as_one(const struct fold_case *c, uint32_t bits)
{
    uint32_t infinity = c->dtype == MLXVK_FLOAT32 ? 0x7f800000u : c->dtype == MLXVK_FLOAT16 ? 0x7c00u : 0x7f80u;
    uint32_t all = c->dtype == MLXVK_FLOAT32 ? 0x7fffffffu : 0x7fffu;
    return c->op < ARGMAX && c->dtype != MLXVK_INT32 && (bits & all) > infinity ? infinity + 1 : bits;
}

static uint32_t result_of(const struct fold_case *c, const uint32_t *result, int i)
{
    bool half = c->op != ARGMAX && c->op != ARGMIN && (c->dtype == MLXVK_BFLOAT16 || c->dtype == MLXVK_FLOAT16);
    return as_one(c, half ? ((const uint16_t *)result)[i] : result[i]);
}

/* Runs a case apart and together; fails where bits differ. Gives the dispatches together. */
static uint64_t compare(struct bench *apart, struct bench *together, const struct fold_case *c)
{
    size_t size = c->held ? (size_t)c->rows * (size_t)c->length : 1;
    float *kept[2] = { calloc(size, sizeof(float)), calloc(size, sizeof(float)) };
    uint32_t result[2][ROWS_MOST] = { { 0 } };
    uint64_t dispatches;
    run(apart, c, result[0], kept[0]);
    dispatches = run(together, c, result[1], kept[1]);
    for (int i = 0; i < c->rows; i++)
        if (result_of(c, result[0], i) != result_of(c, result[1], i))
            fail_msg("%d x %d, dtype %d, operation %d, filled %d, row %d: %08x apart, %08x together", c->rows, c->length,
                     (int)c->dtype, (int)c->op, (int)c->filled, i, result[0][i], result[1][i]);
    assert_memory_equal(kept[0], kept[1], size * sizeof(float));
    free(kept[0]);
    free(kept[1]);
    return dispatches;
}

/* Rows of one piece, of several, of more than sixteen and of what is no whole one. */
static void test_bits(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_FLOAT16 };
    static const int lengths[][2] = { { 3, 4 }, { 7, 260 }, { 1, 1024 }, { 5, 1300 }, { 2, 4096 }, { 3, 4100 }, { 1, 20000 }, { 2, 69632 }, { 1, LONGEST } };
    struct bench apart = bench_open(OFF), together = bench_open(ANY "MLX_VK_ENABLE_CHAIN_REDUCE=3");
    int at = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (size_t t = 0; t < COUNT(dtypes); t++)
            for (int op = 0; op < PROD; op++, at++) {
                struct fold_case c = { lengths[i][0], lengths[i][1], dtypes[t], (enum operation)op, (enum filled)(at % 5 % FILLED),
                                       at % 3 == 0 };
                assert_int_equal(compare(&apart, &together, &c), 1);
            }
    bench_close(&apart);
    bench_close(&together);
}

/* Dispatches where something is not as a reduction behind a chain has it: the chain, then what reduces. */
static void test_assumptions(void **state)
{
    static const struct { struct fold_case c; uint8_t dispatches; } cases[] = {
        { { 2, 4096, MLXVK_FLOAT32, SUM, ORDINARY, false }, 1 },
        { { 2, 4096, MLXVK_FLOAT32, PROD, ORDINARY, false }, 2 },          /* another operation */
        { { 2, 4096, MLXVK_INT32, SUM, ORDINARY, false }, 2 },             /* not of float numbers */
        { { 2, 4098, MLXVK_FLOAT32, SUM, ORDINARY, false }, 2 },           /* not of fours */
        { { 2, 1020, MLXVK_FLOAT32, SUM, ORDINARY, false }, 2 },           /* short rows */
        { { 128, 1024, MLXVK_FLOAT32, SUM, ORDINARY, false }, 1 },
        { { 129, 1024, MLXVK_FLOAT32, SUM, ORDINARY, false }, 2 },         /* more rows than there are counters */
    };
    struct bench apart = bench_open(OFF), together = bench_open(ON);
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint64_t n = compare(&apart, &together, &cases[i].c);
        if (n != cases[i].dispatches) fail_msg("case %zu: %llu dispatches", i, (unsigned long long)n);
    }
    bench_close(&apart);
    bench_close(&together);
}

enum { EACH = 4 * 4096 };
enum shape { AS_IT_IS, IN_A_ROW, ALL_AXES, FIRST_AXIS, LAST_TWO, TURNED, FROM_ONE, PARTS, READ_TWICE, TWO_FOLDS, STEPS_BEHIND,
             COUNTED, NUMBER_BEHIND, NUMBER_TWICE, NUMBERS_BEHIND, SUM_HELD, SHAPES };

/* The results of a case whose shapes or readers matter. */
static uint64_t run_shape(struct bench *b, enum shape shape, float *result, size_t *count)
{
    float *data = malloc((EACH + 4) * sizeof *data);
    mlxvk_array x, y = mlxvk_array_new(), z = mlxvk_array_new();
    uint64_t dispatches;
    for (int i = 0; i < EACH + 4; i++) data[i] = (float)(i * 29 % 101 - 17) / 7;
    x = floats(b->device, data, (int[]){ EACH + 4 }, 1);
    OK(mlxvk_slice(&x, x, (int[]){ shape == FROM_ONE }, 1, (int[]){ EACH + (shape == FROM_ONE) }, 1, (int[]){ 1 }, 1, b->s), b->s);
    OK(mlxvk_reshape(&x, x, (int[]){ 2, 2, 4096 }, 3, b->s), b->s);
    OK_DEVICE(mlxvk_array_eval(x), b->device);
    OK(mlxvk_synchronize(b->s), b->s);
    mlxvk_reset_stats(b->device);
    OK(mlxvk_square(&x, x, b->s), b->s);
    if (shape == COUNTED) OK(mlxvk_logical_not(&x, x, b->s), b->s);
    if (shape == TURNED) OK(mlxvk_transpose_axes(&y, x, (int[]){ 1, 0, 2 }, 3, b->s), b->s);
    else if (shape == IN_A_ROW) OK(mlxvk_reshape(&y, x, (int[]){ 2, 8192 }, 2, b->s), b->s);
    else if (shape == PARTS)
        OK(mlxvk_slice(&y, x, (int[]){ 1, 0, 0 }, 3, (int[]){ 2, 2, 4096 }, 3, (int[]){ 1, 1, 1 }, 3, b->s), b->s);
    else OK(mlxvk_array_set(&y, x), b->s);
    if (shape == READ_TWICE) OK(mlxvk_cumsum(&z, x, 2, false, true, b->s), b->s);
    mlxvk_array_free(x);
    x = mlxvk_array_new();
    if (shape == ALL_AXES) OK(mlxvk_sum(&x, y, false, b->s), b->s);
    else if (shape == FIRST_AXIS) OK(mlxvk_sum_axis(&x, y, 0, false, b->s), b->s);
    else if (shape == LAST_TWO) OK(mlxvk_sum_axes(&x, y, (int[]){ 1, 2 }, 2, false, b->s), b->s);
    else OK(mlxvk_sum_axis(&x, y, -1, false, b->s), b->s);
    if (shape == TWO_FOLDS) OK(mlxvk_max_axis(&z, y, 2, false, b->s), b->s);
    if (shape == STEPS_BEHIND) OK(mlxvk_sqrt(&x, x, b->s), b->s);
    if (shape >= NUMBER_BEHIND) {
        mlxvk_array number = floats(b->device, data, (int[]){ 2 }, shape == NUMBERS_BEHIND);
        OK(mlxvk_reshape(&x, x, (int[]){ 2, 1, 2 }, 3, b->s), b->s);
        if (shape == SUM_HELD) OK(mlxvk_array_set(&z, x), b->s);
        OK(mlxvk_multiply(&x, x, shape == NUMBER_TWICE ? x : number, b->s), b->s);
        mlxvk_array_free(number);
    }
    mlxvk_array_free(y);
    OK(mlxvk_synchronize(b->s), b->s);
    dispatches = stats_of(b->device).dispatches;
    OK(mlxvk_array_read(x, result, mlxvk_array_nbytes(x), b->s), b->s);
    *count = mlxvk_array_size(x);
    if (shape == TWO_FOLDS || shape == READ_TWICE || shape == SUM_HELD) {
        OK(mlxvk_array_read(z, result + *count, mlxvk_array_nbytes(z), b->s), b->s);
        *count += mlxvk_array_size(z);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(z);
    free(data);
    return dispatches;
}

static void test_shapes(void **state)
{
    static const uint8_t dispatches[SHAPES] = {
        [AS_IT_IS] = 1, [IN_A_ROW] = 1, [ALL_AXES] = 1, [LAST_TWO] = 1, [COUNTED] = 1, [READ_TWICE] = 2, [STEPS_BEHIND] = 2, [NUMBER_BEHIND] = 1,
        [FIRST_AXIS] = 2,                            /* columns */
        [TURNED] = 2,                                /* rows in another order than the chain's elements */
        [FROM_ONE] = 2,                              /* operands that do not begin at a multiple of four */
        [PARTS] = 2,                                 /* of some of the elements */
        [TWO_FOLDS] = 2,                             /* a chain has one */
        [NUMBER_TWICE] = 2, [NUMBERS_BEHIND] = 2, [SUM_HELD] = 2,      /* not one number; others want the sum */
    };
    static float got[2 * EACH], want[2 * EACH];
    struct bench apart = bench_open(OFF), together = bench_open(ON);
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        size_t count, same;
        uint64_t n;
        run_shape(&apart, (enum shape)i, want, &count);
        n = run_shape(&together, (enum shape)i, got, &same);
        if (n != dispatches[i]) fail_msg("case %d: %llu dispatches", i, (unsigned long long)n);
        assert_int_equal(count, same);
        if (memcmp(got, want, count * sizeof *got)) fail_msg("case %d: other bits", i);
    }
    bench_close(&apart);
    bench_close(&together);
}

/* Devices of fewer threads, or that a gate keeps from it, reduce by another dispatch. */
static void test_devices(void **state)
{
    struct fold_case c = { 2, 8192, MLXVK_FLOAT32, SUM, ORDINARY, false };
    static const struct { const char *gates; uint8_t dispatches; } devices[] = {
        { JOIN "MLX_VK_ENABLE_CHAINS=2 MLX_VK_ENABLE_CHAIN_REDUCE=0", 2 },
        { "MLX_VK_ENABLE_CHAINS=2 MLX_VK_ENABLE_CHAIN_REDUCE=2 MLX_VK_MAX_BINDING_RANGE=32768", 0 },   /* not bound whole */
        { JOIN "MLX_VK_ENABLE_CHAINS=2 MLX_VK_ENABLE_CHAIN_REDUCE=2 MLX_VK_BATCH_INVARIANT=1", 3 },
    };
    struct bench apart = bench_open(OFF);
    (void)state;
    for (size_t i = 0; i < COUNT(devices); i++) {
        struct bench b = bench_open(devices[i].gates);
        uint64_t n = compare(&apart, &b, &c);
        if (devices[i].dispatches ? n != devices[i].dispatches : n < 2) fail_msg("%s: %d", devices[i].gates, (int)n);
        bench_close(&b);
    }
    bench_close(&apart);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_bits), cmocka_unit_test(test_assumptions),
                                        cmocka_unit_test(test_shapes), cmocka_unit_test(test_devices),
                                        cmocka_unit_test(test_valid) };
    return run_group("folds", tests, in_folder, remove_folder);
}
