/* Chains of elementwise operations in kernels written at run time: the same bits as operation by operation, for random chains of
 * random dtypes, shapes and views; and every module that is written is a valid one, where spirv-val is there to say so. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"
#include "chain_files.h"

#include <stdio.h>
#include <unistd.h>

enum { INPUTS = 4, VALUES = 14, RESULTS = 3, CHAINS = 40 };

#define ON "MLX_VK_ENABLE_CHAINS=2 MLX_VK_DEBUG_CHAINS=1 MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16=0"
#define OFF "MLX_VK_ENABLE_CHAINS=0 MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16=0"

typedef int (*unary_function)(mlxvk_array *, mlxvk_array, mlxvk_stream);
typedef int (*binary_function)(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream);

static const unary_function unary[] = {
    mlxvk_abs, mlxvk_negative, mlxvk_sign, mlxvk_square, mlxvk_exp, mlxvk_sigmoid, mlxvk_tanh, mlxvk_sqrt, mlxvk_rsqrt, mlxvk_log,
    mlxvk_floor, mlxvk_isnan, mlxvk_logical_not, mlxvk_erf, mlxvk_reciprocal, mlxvk_sin, mlxvk_log1p, mlxvk_expm1, mlxvk_isfinite,
};
static const binary_function binary[] = {
    mlxvk_add, mlxvk_subtract, mlxvk_multiply, mlxvk_add, mlxvk_multiply, mlxvk_divide, mlxvk_maximum, mlxvk_minimum, mlxvk_equal,
    mlxvk_less, mlxvk_greater_equal, mlxvk_not_equal, mlxvk_logical_and, mlxvk_logical_or, mlxvk_logaddexp, mlxvk_power,
    mlxvk_arctan2, mlxvk_remainder,
};
static const mlxvk_dtype dtypes[] = {
    MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_INT32, MLXVK_UINT8, MLXVK_INT16, MLXVK_UINT32,
    MLXVK_BOOL, MLXVK_INT8, MLXVK_UINT16,
};

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

/* Numbers around 0, and some that are special. */
static float any_number(struct rng *r)
{
    static const float special[] = { 0, -0.0f, 1, -1, 1e30f, -1e30f, 1e-30f, 65504, 3.4e38f };
    uint32_t bits = 0x7f800000u;
    float x;
    if (random_chance(r, 3)) { bits |= random_chance(r, 50) ? 0 : 0x400000u; memcpy(&x, &bits, 4); return x; }
    return random_chance(r, 10) ? special[random_int(r, 0, (int)COUNT(special) - 1)] : (float)random_int(r, -4000, 4000) / 512;
}

/* An operand of the shape, or one that broadcasts to it: whole, a number, transposed, with steps, or missing dimensions. */
static mlxvk_array any_input(struct bench *b, struct rng *r, const int *shape, int ndim)
{
    int form = random_int(r, 0, 6), from = form == 1 ? ndim : form == 2 ? random_int(r, 0, ndim) : 0, n = ndim - from, inner[4];
    size_t size = 1;
    float *data;
    mlxvk_array a = mlxvk_array_new();
    for (int i = 0; i < n; i++) inner[i] = form == 3 && random_chance(r, 40) ? 1 : shape[from + i];
    if (form == 4) for (int i = 0; i < n; i++) inner[i] = shape[ndim - 1 - i];
    if (form == 5 && n) inner[n - 1] = inner[n - 1] * 2 + 1;
    for (int i = 0; i < n; i++) size *= (size_t)inner[i];
    data = malloc((size + 1) * sizeof *data);
    for (size_t i = 0; i < size; i++) data[i] = any_number(r);
    OK_DEVICE(mlxvk_array_new_data_device(&a, data, inner, n, MLXVK_FLOAT32, b->device), b->device);
    free(data);
    OK(mlxvk_astype(&a, a, dtypes[random_int(r, 0, (int)COUNT(dtypes) - 1)], b->s), b->s);
    if (form == 4) OK(mlxvk_transpose(&a, a, b->s), b->s);
    if (form == 5 && n) {
        int start[4] = { 0 }, stop[4], step[4] = { 1, 1, 1, 1 };
        for (int i = 0; i < n; i++) stop[i] = inner[i];
        start[n - 1] = 1;
        step[n - 1] = 2;
        OK(mlxvk_slice(&a, a, start, (size_t)n, stop, (size_t)n, step, (size_t)n, b->s), b->s);
    }
    if (random_chance(r, 70)) OK_DEVICE(mlxvk_array_eval(a), b->device);
    return a;
}

/* One operation on the elements in a row, and back in their shape. */
static int step_in_a_row(mlxvk_array *a, struct bench *b, struct rng *r, mlxvk_array x)
{
    int shape[4], ndim = (int)mlxvk_array_ndim(x), code;
    for (int i = 0; i < ndim; i++) shape[i] = mlxvk_array_dim(x, i);
    code = mlxvk_reshape(a, x, (int[]){ (int)mlxvk_array_size(x) }, 1, b->s);
    if (!code) code = unary[random_int(r, 0, (int)COUNT(unary) - 1)](a, *a, b->s);
    return code ? code : mlxvk_reshape(a, *a, shape, (size_t)ndim, b->s);
}

/* One random operation on what there is. */
static mlxvk_array any_step(struct bench *b, struct rng *r, const mlxvk_array *values, int count)
{
    mlxvk_array a = mlxvk_array_new(), x = values[random_int(r, count > 3 ? count - 3 : 0, count - 1)];
    mlxvk_array y = values[random_int(r, 0, count - 1)];
    int kind = random_int(r, 0, 10), code;
    if (kind < 3) code = unary[random_int(r, 0, (int)COUNT(unary) - 1)](&a, x, b->s);
    else if (kind < 8) code = binary[random_int(r, 0, (int)COUNT(binary) - 1)](&a, x, y, b->s);
    else if (kind == 8) code = mlxvk_astype(&a, x, dtypes[random_int(r, 0, (int)COUNT(dtypes) - 1)], b->s);
    else if (kind == 9) code = step_in_a_row(&a, b, r, x);
    else code = mlxvk_where(&a, values[random_int(r, 0, count - 1)], x, y, b->s);
    if (code) { mlxvk_array_free(a); a = mlxvk_array_new(); OK(mlxvk_add(&a, x, y, b->s), b->s); }   /* negative of bool */
    return a;
}

/* Runs the chain of a seed; its results' bits, one behind the other. */
static size_t run(struct bench *b, uint64_t seed, uint8_t *bytes, size_t room)
{
    struct rng r = { seed };
    mlxvk_array value[INPUTS + VALUES], res[RESULTS];
    int shape[4], ndim = random_int(&r, 0, 4), count = INPUTS, n = random_int(&r, 3, VALUES);
    size_t used = 0;
    for (int i = 0; i < ndim; i++)
        shape[i] = random_chance(&r, 4) ? 0 : random_chance(&r, 40) ? 4 * random_int(&r, 1, 4) : random_int(&r, 1, 9);
    for (int i = 0; i < INPUTS; i++) value[i] = any_input(b, &r, shape, ndim);
    for (int i = 0; i < n; i++, count++) value[count] = any_step(b, &r, value, count);
    for (int i = 0; i < RESULTS; i++) {              /* the last one, and sometimes others */
        int k = i && random_chance(&r, 50) ? random_int(&r, INPUTS, count - 1) : count - 1;
        res[i] = mlxvk_array_new();
        OK(mlxvk_array_set(&res[i], value[k]), b->s);
    }
    for (int i = 0; i < count; i++) mlxvk_array_free(value[i]);
    for (int i = 0; i < RESULTS; i++) {
        size_t bytes_of = mlxvk_array_nbytes(res[i]);
        assert_true(used + bytes_of <= room);
        OK(mlxvk_array_read(res[i], bytes + used, bytes_of, b->s), b->s);
        used += bytes_of;
        mlxvk_array_free(res[i]);
    }
    return used;
}

static void test_random(void **state)
{
    static uint8_t on[1 << 20], off[1 << 20];
    struct bench apart = bench_open(OFF), fused = bench_open(ON);
    const char *more = getenv("CHAINS");
    (void)state;
    for (int i = 0; i < (more ? atoi(more) : CHAINS); i++) {
        uint64_t seed = 0x9E3779B97F4A7C15u * (uint64_t)(i + 1);
        size_t n = run(&apart, seed, off, sizeof off);
        assert_int_equal(n, run(&fused, seed, on, sizeof on));
        for (size_t k = 0; k < n; k++)
            if (on[k] != off[k]) fail_msg("chain %d: byte %zu of %zu is %02x fused and %02x apart", i, k, n, on[k], off[k]);
    }
    assert_true(stats_of(fused.device).fused > CHAINS);
    assert_true(stats_of(fused.device).dispatches < stats_of(apart.device).dispatches);
    bench_close(&apart);
    bench_close(&fused);
}

/* ---- what becomes of chains ---- */

/* gelu by tanh, of x plus a row: ten operations. */
static mlxvk_array gelu(struct bench *b, mlxvk_array x, mlxvk_array row, mlxvk_array *inside)
{
    float numbers[4] = { 0.044715f, 0.7978845608f, 1, 0.5f };
    mlxvk_array number[4], a = mlxvk_array_new(), t = mlxvk_array_new();
    for (int i = 0; i < 4; i++) {
        number[i] = mlxvk_array_new();
        OK_DEVICE(mlxvk_array_new_data_device(&number[i], &numbers[i], NULL, 0, MLXVK_FLOAT32, b->device), b->device);
    }
    OK(mlxvk_add(&a, x, row, b->s), b->s);
    OK(mlxvk_square(&t, a, b->s), b->s);
    OK(mlxvk_multiply(&t, t, a, b->s), b->s);
    OK(mlxvk_multiply(&t, t, number[0], b->s), b->s);
    OK(mlxvk_add(&t, t, a, b->s), b->s);
    OK(mlxvk_multiply(&t, t, number[1], b->s), b->s);
    OK(mlxvk_tanh(&t, t, b->s), b->s);
    if (inside) OK(mlxvk_array_set(inside, t), b->s);
    OK(mlxvk_add(&t, t, number[2], b->s), b->s);
    OK(mlxvk_multiply(&a, a, number[3], b->s), b->s);
    OK(mlxvk_multiply(&t, a, t, b->s), b->s);
    for (int i = 0; i < 4; i++) mlxvk_array_free(number[i]);
    mlxvk_array_free(a);
    return t;
}

enum { ROWS = 5, WIDTH = 8 };

/* Dispatches that gelu takes with a gate; with what others hold inside, that is written too. */
static uint64_t run_gelu(const char *gates, bool held, int times, float *result, float *inside)
{
    struct bench b = bench_open(gates);
    float data[ROWS * WIDTH];
    mlxvk_array x, row, y = mlxvk_array_new(), t = mlxvk_array_new();
    uint64_t dispatches = 0;
    for (int i = 0; i < ROWS * WIDTH; i++) data[i] = (float)(i - 17) / 7;
    x = floats(b.device, data, (int[]){ ROWS, WIDTH }, 2);
    row = floats(b.device, data, (int[]){ WIDTH }, 1);
    for (int i = 0; i < times; i++) {
        mlxvk_array_free(y);
        mlxvk_reset_stats(b.device);
        y = gelu(&b, x, row, held ? &t : NULL);
        OK(mlxvk_synchronize(b.s), b.s);
        dispatches = stats_of(b.device).dispatches;
    }
    OK(mlxvk_array_read(y, result, sizeof data, b.s), b.s);
    if (held) OK(mlxvk_array_read(t, inside, sizeof data, b.s), b.s);
    mlxvk_array_free(x);
    mlxvk_array_free(row);
    mlxvk_array_free(y);
    mlxvk_array_free(t);
    bench_close(&b);
    return dispatches;
}

static void test_gelu(void **state)
{
    float want[ROWS * WIDTH], want_inside[ROWS * WIDTH], got[ROWS * WIDTH], inside[ROWS * WIDTH];
    (void)state;
    assert_int_equal(run_gelu(OFF, true, 1, want, want_inside), 10);
    assert_int_equal(run_gelu(ON, false, 1, got, inside), 1);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(run_gelu(ON, true, 1, got, inside), 1);
    assert_memory_equal(got, want, sizeof want);
    assert_memory_equal(inside, want_inside, sizeof want);
}

/* ---- results of other shapes: the same elements in a row, and numbers for all ---- */

enum other { IN_A_ROW, STEPS_THEN_ROW, ROW_THEN_STEPS, PART_OF_IT, TURNED, AS_BITS, IN_MIDDLE_HELD, WRITTEN_BEHIND,
             WRITTEN_THEN_READ, NUMBER, TWO_NUMBERS, NUMBER_HELD, NUMBER_READ, NUMBER_BEHIND, NUMBER_OF_PART, OTHERS };
enum { LONG = 6, WIDE = 12 };

static mlxvk_array binary_of(struct bench *b, binary_function f, mlxvk_array x, mlxvk_array y)
{
    mlxvk_array a = mlxvk_array_new();
    OK(f(&a, x, y, b->s), b->s);
    return a;
}

/* The same elements, each with its double: a chain's second half, of another shape. */
static mlxvk_array seen_otherwise(struct bench *b, enum other other, mlxvk_array x, mlxvk_array row)
{
    mlxvk_array a = mlxvk_array_new();
    OK(mlxvk_array_set(&a, x), b->s);
    if (other == PART_OF_IT)
        OK(mlxvk_slice(&a, a, (int[]){ 1, 0 }, 2, (int[]){ LONG, WIDE }, 2, (int[]){ 1, 1 }, 2, b->s), b->s);
    else if (other == TURNED) OK(mlxvk_transpose(&a, a, b->s), b->s);
    else if (other == AS_BITS) OK(mlxvk_view(&a, a, MLXVK_INT32, b->s), b->s);
    else OK(mlxvk_reshape(&a, a, (int[]){ LONG * WIDE }, 1, b->s), b->s);
    OK((other == ROW_THEN_STEPS ? mlxvk_add : mlxvk_subtract)(&a, a, other == ROW_THEN_STEPS ? row : a, b->s), b->s);
    return a;
}

/* A copy in which a row is written then: the chain's result has another writer. */
static mlxvk_array written_behind(struct bench *b, enum other other, mlxvk_array x)
{
    mlxvk_array a = mlxvk_array_new(), last = mlxvk_array_new();
    OK(mlxvk_slice(&last, x, (int[]){ 5, 0 }, 2, (int[]){ 6, WIDE }, 2, (int[]){ 1, 1 }, 2, b->s), b->s);
    OK(mlxvk_slice_update(&a, x, last, (int[]){ 1, 0 }, 2, (int[]){ 2, WIDE }, 2, (int[]){ 1, 1 }, 2, b->s), b->s);
    if (other == WRITTEN_THEN_READ) OK(mlxvk_add(&a, a, x, b->s), b->s);
    mlxvk_array_free(last);
    return a;
}

/* What a case computes, and what it holds besides. data: LONG * 2 by WIDE. */
static mlxvk_array of_other_shape(struct bench *b, enum other other, mlxvk_array data, mlxvk_array row, mlxvk_array *held)
{
    mlxvk_array x = mlxvk_array_new(), y, z, n = mlxvk_array_new();
    int step = other == STEPS_THEN_ROW ? 2 : 1;
    OK(mlxvk_slice(&x, data, (int[]){ 0, 0 }, 2, (int[]){ LONG * step, WIDE }, 2, (int[]){ step, 1 }, 2, b->s), b->s);
    if (other < NUMBER) {
        y = binary_of(b, mlxvk_multiply, x, x);
        if (other == IN_MIDDLE_HELD || other >= WRITTEN_BEHIND) OK(mlxvk_array_set(held, y), b->s);
        z = other >= WRITTEN_BEHIND ? written_behind(b, other, y) : seen_otherwise(b, other, y, row);
    } else {
        mlxvk_array last = mlxvk_array_new();
        OK(mlxvk_slice(&n, row, (int[]){ 3 }, 1, (int[]){ 4 }, 1, (int[]){ 1 }, 1, b->s), b->s);
        y = binary_of(b, mlxvk_multiply, n, n);
        OK(mlxvk_array_set(&last, y), b->s);
        if (other == TWO_NUMBERS) OK(mlxvk_add(&last, last, n, b->s), b->s);
        if (other == NUMBER_HELD) OK(mlxvk_array_set(held, y), b->s);
        if (other == NUMBER_READ) OK(mlxvk_cumsum(held, y, 0, false, true, b->s), b->s);
        if (other == NUMBER_OF_PART) {
            mlxvk_array_free(last);
            last = binary_of(b, mlxvk_multiply, row, row);
            OK(mlxvk_slice(&last, last, (int[]){ 5 }, 1, (int[]){ 6 }, 1, (int[]){ 1 }, 1, b->s), b->s);
        }
        z = binary_of(b, mlxvk_subtract, x, last);
        if (other == NUMBER_BEHIND) {
            OK(mlxvk_exp(&y, y, b->s), b->s);
            OK(mlxvk_multiply(&z, z, y, b->s), b->s);
        }
        mlxvk_array_free(last);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(n);
    return z;
}

/* The results of a case, and its dispatches. */
static uint64_t run_other(struct bench *b, enum other other, float *result, float *held)
{
    float numbers[2 * LONG * WIDE * 2];
    mlxvk_array data, row, z, h = mlxvk_array_new();
    uint64_t dispatches;
    for (int i = 0; i < 2 * LONG * WIDE * 2; i++) numbers[i] = (float)(i * 29 % 101 - 17) / 7;
    data = floats(b->device, numbers, (int[]){ 2 * LONG, WIDE }, 2);
    row = floats(b->device, numbers + 5, (int[]){ 2 * LONG * WIDE }, 1);
    OK(mlxvk_slice(&row, row, (int[]){ 0 }, 1, (int[]){ 2 * LONG * WIDE }, 1, (int[]){ 2 }, 1, b->s), b->s);
    OK_DEVICE(mlxvk_array_eval(data), b->device);
    OK(mlxvk_synchronize(b->s), b->s);
    mlxvk_reset_stats(b->device);
    z = of_other_shape(b, other, data, row, &h);
    OK(mlxvk_synchronize(b->s), b->s);
    dispatches = stats_of(b->device).dispatches;
    OK(mlxvk_array_read(z, result, mlxvk_array_nbytes(z), b->s), b->s);
    if (h.ctx && mlxvk_array_size(h)) OK(mlxvk_array_read(h, held, mlxvk_array_nbytes(h), b->s), b->s);
    mlxvk_array_free(data);
    mlxvk_array_free(row);
    mlxvk_array_free(z);
    mlxvk_array_free(h);
    return dispatches;
}

/* The dispatches that each takes apart, and fused: as many where what chains assume does not hold. */
static void test_other_shapes(void **state)
{
    static const uint8_t dispatches[OTHERS][2] = {
        [IN_A_ROW] = { 2, 1 }, [STEPS_THEN_ROW] = { 2, 1 }, [ROW_THEN_STEPS] = { 2, 2 }, [PART_OF_IT] = { 2, 2 },
        [TURNED] = { 2, 2 }, [AS_BITS] = { 2, 2 }, [IN_MIDDLE_HELD] = { 2, 1 }, [WRITTEN_BEHIND] = { 3, 2 },
        [WRITTEN_THEN_READ] = { 4, 3 }, [NUMBER] = { 2, 1 }, [TWO_NUMBERS] = { 3, 1 },
        [NUMBER_HELD] = { 2, 2 }, [NUMBER_READ] = { 3, 3 }, [NUMBER_BEHIND] = { 4, 1 }, [NUMBER_OF_PART] = { 2, 2 },
    };
    struct bench alone = bench_open(OFF), together = bench_open(ON);
    (void)state;
    for (int i = 0; i < OTHERS; i++) {
        float want[LONG * WIDE] = { 0 }, got[LONG * WIDE] = { 0 }, want_held[LONG * WIDE] = { 0 }, held[LONG * WIDE] = { 0 };
        uint64_t apart = run_other(&alone, (enum other)i, want, want_held);
        uint64_t fused = run_other(&together, (enum other)i, got, held);
        if (apart != dispatches[i][0] || fused != dispatches[i][1])
            fail_msg("case %d: %llu dispatches apart, %llu fused", i, (unsigned long long)apart, (unsigned long long)fused);
        assert_memory_equal(got, want, sizeof want);
        assert_memory_equal(held, want_held, sizeof held);
    }
    bench_close(&alone);
    bench_close(&together);
}

/* ---- chains that begin with a random word ---- */

enum drawn { ONE_WORD, OTHER_ROW, KEY_WITH_STEPS, KEY_OF_ONE, KEY_MADE_HERE, WORD_HELD, TWO_DRAWN, WORD_FOR_ALL, TWO_WORDS,
             HALF_A_WORD, KEY_KNOWN, SPLIT, SPLIT_HELD, SPLIT_ACROSS, SPLIT_TWICE, SPLIT_ALONE, SPLIT_OF_SIX, DRAWN };

/* The key of a case: of words that lie in memory, but for one that the host knows. */
static mlxvk_array key_of(struct bench *b, enum drawn drawn)
{
    static const uint32_t words[6] = { 0x12345678, 0x9abcdef0, 7, 0xffffffff, 5, 6 };
    int from = drawn == OTHER_ROW ? 2 : drawn == KEY_WITH_STEPS ? 1 : 0, step = drawn == KEY_WITH_STEPS ? 3 : 1;
    mlxvk_array k = mlxvk_array_new();
    int count = drawn == KEY_KNOWN ? 2 : 6;
    OK_DEVICE(mlxvk_array_new_data_device(&k, words, &count, 1, MLXVK_UINT32, b->device), b->device);
    if (drawn == KEY_OF_ONE) {
        OK(mlxvk_slice(&k, k, (int[]){ 3 }, 1, (int[]){ 4 }, 1, (int[]){ 1 }, 1, b->s), b->s);
        OK(mlxvk_broadcast_to(&k, k, (int[]){ 2 }, 1, b->s), b->s);
    } else OK(mlxvk_slice(&k, k, &from, 1, (int[]){ from + step + 1 }, 1, &step, 1, b->s), b->s);
    if (drawn == KEY_MADE_HERE) OK(mlxvk_add(&k, k, k, b->s), b->s);
    return k;
}

/* One of the keys that one splits into, all of which are held, or two words across these. */
static void split(struct bench *b, enum drawn drawn, mlxvk_array *key, mlxvk_array *held)
{
    mlxvk_array all = mlxvk_array_new();
    int shape[2] = { drawn == SPLIT_OF_SIX ? 3 : 2, 2 }, from = drawn == SPLIT_ACROSS ? 1 : 2;
    OK(mlxvk_random_bits(&all, shape, 2, 4, *key, b->s), b->s);
    if (drawn == SPLIT_HELD) OK(mlxvk_array_set(held, all), b->s);
    OK(mlxvk_reshape(&all, all, (int[]){ 2 * shape[0] }, 1, b->s), b->s);
    OK(mlxvk_slice(key, all, &from, 1, (int[]){ from + 2 }, 1, (int[]){ 1 }, 1, b->s), b->s);
    mlxvk_array_free(all);
}

/* u / 2^32, of a random word u. */
static mlxvk_array unit_of(struct bench *b, enum drawn drawn, mlxvk_array key, mlxvk_array *held)
{
    const float range = 4294967296.0f;
    mlxvk_array a = mlxvk_array_new(), number = floats(b->device, &range, (int[]){ 1 }, 1);
    OK(mlxvk_random_bits(&a, (int[]){ drawn == TWO_WORDS ? 2 : 1 }, 1, drawn == HALF_A_WORD ? 2 : 4, key, b->s), b->s);
    if (drawn == WORD_HELD) OK(mlxvk_array_set(held, a), b->s);
    OK(mlxvk_astype(&a, a, MLXVK_FLOAT32, b->s), b->s);
    OK(mlxvk_divide(&a, a, number, b->s), b->s);
    mlxvk_array_free(number);
    return a;
}

/* The results of a case, and its dispatches. */
static uint64_t run_drawn(struct bench *b, enum drawn drawn, float *result, uint32_t *word)
{
    float numbers[LONG];
    mlxvk_array key, z = mlxvk_array_new(), held = mlxvk_array_new(), x;
    uint64_t dispatches;
    for (int i = 0; i < LONG; i++) numbers[i] = (float)i;
    x = floats(b->device, numbers, (int[]){ LONG }, 1);
    OK(mlxvk_synchronize(b->s), b->s);
    mlxvk_reset_stats(b->device);
    key = key_of(b, drawn);
    if (drawn >= SPLIT) split(b, drawn, &key, &held);
    if (drawn == SPLIT_TWICE) split(b, drawn, &key, &held);
    if (drawn == SPLIT_ALONE) OK(mlxvk_astype(&z, key, MLXVK_FLOAT32, b->s), b->s);
    else z = unit_of(b, drawn, key, &held);
    if (drawn == TWO_DRAWN) {
        mlxvk_array more = unit_of(b, OTHER_ROW, key, NULL);
        OK(mlxvk_add(&z, z, more, b->s), b->s);
        mlxvk_array_free(more);
    }
    if (drawn == WORD_FOR_ALL) OK(mlxvk_multiply(&z, z, x, b->s), b->s);
    OK(mlxvk_synchronize(b->s), b->s);
    dispatches = stats_of(b->device).dispatches;
    OK(mlxvk_array_read(z, result, mlxvk_array_nbytes(z), b->s), b->s);
    if (held.ctx && mlxvk_array_size(held)) OK(mlxvk_array_read(held, word, mlxvk_array_nbytes(held), b->s), b->s);
    mlxvk_array_free(key);
    mlxvk_array_free(z);
    mlxvk_array_free(held);
    mlxvk_array_free(x);
    return dispatches;
}

/* One word from a key in memory is a chain's first step, or several, also where that key is of those that another splits into;
 * more than four words, parts of one, and those of a key that the host knows are not, and nothing larger draws it at each
 * element. */
static void test_drawn(void **state)
{
    static const uint8_t dispatches[DRAWN][2] = {
        [ONE_WORD] = { 3, 1 }, [OTHER_ROW] = { 3, 1 }, [KEY_WITH_STEPS] = { 3, 1 }, [KEY_OF_ONE] = { 3, 1 },
        [KEY_MADE_HERE] = { 4, 2 }, [WORD_HELD] = { 3, 1 }, [TWO_DRAWN] = { 7, 2 }, [WORD_FOR_ALL] = { 4, 2 },
        [TWO_WORDS] = { 3, 2 }, [HALF_A_WORD] = { 3, 2 }, [KEY_KNOWN] = { 3, 2 }, [SPLIT] = { 4, 1 }, [SPLIT_HELD] = { 4, 1 },
        [SPLIT_ACROSS] = { 4, 1 }, [SPLIT_TWICE] = { 5, 2 }, [SPLIT_ALONE] = { 2, 2 }, [SPLIT_OF_SIX] = { 4, 2 },
    };
    struct bench alone = bench_open(OFF), together = bench_open(ON);
    (void)state;
    for (int i = 0; i < DRAWN; i++) {
        float want[LONG] = { 0 }, got[LONG] = { 0 };
        uint32_t word[4] = { 0 }, want_word[4] = { 0 };
        uint64_t apart = run_drawn(&alone, (enum drawn)i, want, want_word);
        uint64_t fused = run_drawn(&together, (enum drawn)i, got, word);
        if (apart != dispatches[i][0] || fused != dispatches[i][1])
            fail_msg("case %d: %llu dispatches apart, %llu fused", i, (unsigned long long)apart, (unsigned long long)fused);
        assert_memory_equal(got, want, sizeof want);
        assert_memory_equal(word, want_word, sizeof word);
        assert_true(want[0] > 0 || want[1] > 0);
    }
    bench_close(&alone);
    bench_close(&together);
}

/* ---- one element where an index says ---- */

enum picked { AT_INDEX, FROM_END, BEYOND, BEFORE, UNSIGNED, BACKWARDS, INDEX_MADE, OF_ITSELF, HALF_OF_IT, OF_STEP, TWO_PICKED, WIDE_INDEX,
              TWO_INDICES, PICKED };

/* z = y * x[index] and what each case makes of that. */
static uint64_t run_picked(struct bench *b, enum picked picked, float *result)
{
    static const int at[PICKED] = { [AT_INDEX] = 3, [FROM_END] = -2, [BEYOND] = 1000, [BEFORE] = -1000, [UNSIGNED] = -7, [BACKWARDS] = 2 };
    float numbers[LONG * WIDE];
    int index[2] = { at[picked], 5 }, count = picked == TWO_INDICES ? 2 : 1, step = picked == BACKWARDS ? -1 : 1;
    mlxvk_array x, y, i = mlxvk_array_new(), z = mlxvk_array_new(), one = mlxvk_array_new();
    uint64_t dispatches;
    for (int k = 0; k < LONG * WIDE; k++) numbers[k] = (float)(k * 29 % 101 - 17) / 7;
    x = floats(b->device, numbers, (int[]){ 1, LONG * WIDE }, 2);
    y = floats(b->device, numbers + 8, (int[]){ 1, LONG * WIDE - 8 }, 2);
    OK_DEVICE(mlxvk_array_new_data_device(&i, index, (int[]){ 1, count }, 2, picked == UNSIGNED ? MLXVK_UINT32 : MLXVK_INT32, b->device),
              b->device);
    if (step < 0)
        OK(mlxvk_slice(&x, x, (int[]){ 0, 60 }, 2, (int[]){ 1, 2 }, 2, (int[]){ 1, -1 }, 2, b->s), b->s);
    if (picked == HALF_OF_IT) OK(mlxvk_astype(&x, x, MLXVK_BFLOAT16, b->s), b->s);
    if (picked == WIDE_INDEX) OK(mlxvk_astype(&i, i, MLXVK_INT64, b->s), b->s);
    OK_DEVICE(mlxvk_array_eval(x), b->device);
    OK_DEVICE(mlxvk_array_eval(y), b->device);
    OK_DEVICE(mlxvk_array_eval(i), b->device);
    OK(mlxvk_synchronize(b->s), b->s);
    mlxvk_reset_stats(b->device);
    if (picked == INDEX_MADE) OK(mlxvk_add(&i, i, i, b->s), b->s);
    if (picked == OF_STEP) OK(mlxvk_square(&x, x, b->s), b->s);
    OK(mlxvk_take_along_axis(&z, x, i, 1, b->s), b->s);
    if (picked == TWO_INDICES) OK(mlxvk_slice(&z, z, (int[]){ 0, 1 }, 2, (int[]){ 1, 2 }, 2, (int[]){ 1, 1 }, 2, b->s), b->s);
    if (picked == TWO_PICKED) {
        OK(mlxvk_take_along_axis(&one, y, i, 1, b->s), b->s);
        OK(mlxvk_add(&z, z, one, b->s), b->s);
        mlxvk_array_free(one);
        one = mlxvk_array_new();
    }
    if (picked == OF_ITSELF || picked == OF_STEP) OK(mlxvk_subtract(&z, x, z, b->s), b->s);
    else OK(mlxvk_multiply(&z, y, z, b->s), b->s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(i);
    OK(mlxvk_synchronize(b->s), b->s);
    dispatches = stats_of(b->device).dispatches;
    OK(mlxvk_array_read(z, result, mlxvk_array_nbytes(z), b->s), b->s);
    mlxvk_array_free(z);
    mlxvk_array_free(one);
    return dispatches;
}

/* An element of an array in memory, by one index of 32 bits, is a step; not of what the chain comes to, nor a second one. */
static void test_picked(void **state)
{
    static const uint8_t dispatches[PICKED][2] = {
        [AT_INDEX] = { 2, 1 }, [FROM_END] = { 2, 1 }, [BEYOND] = { 2, 1 }, [BEFORE] = { 2, 1 }, [UNSIGNED] = { 2, 1 }, [BACKWARDS] = { 2, 1 },
        [INDEX_MADE] = { 3, 1 }, [OF_ITSELF] = { 2, 1 }, [HALF_OF_IT] = { 3, 1 }, [OF_STEP] = { 3, 2 }, [TWO_PICKED] = { 4, 2 },
        [WIDE_INDEX] = { 2, 2 }, [TWO_INDICES] = { 2, 2 },
    };
    struct bench alone = bench_open(OFF), together = bench_open(ON);
    (void)state;
    for (int i = 0; i < PICKED; i++) {
        float want[LONG * WIDE] = { 0 }, got[LONG * WIDE] = { 0 };
        uint64_t apart = run_picked(&alone, (enum picked)i, want), fused = run_picked(&together, (enum picked)i, got);
        if (apart != dispatches[i][0] || fused != dispatches[i][1])
            fail_msg("case %d: %llu dispatches apart, %llu fused", i, (unsigned long long)apart, (unsigned long long)fused);
        assert_memory_equal(got, want, sizeof want);
    }
    bench_close(&alone);
    bench_close(&together);
}

/* Without a word from the caller a kernel is made for chains that come again and again, not for the first. */
static void test_often(void **state)
{
    float once[ROWS * WIDTH], often[ROWS * WIDTH];
    (void)state;
    assert_int_equal(run_gelu(NULL, false, 1, once, NULL), 10);
    assert_int_equal(run_gelu(NULL, false, 100, often, NULL), 1);
    assert_memory_equal(once, often, sizeof once);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random), cmocka_unit_test(test_gelu),
                                        cmocka_unit_test(test_other_shapes), cmocka_unit_test(test_drawn),
                                        cmocka_unit_test(test_picked),
                                        cmocka_unit_test(test_often),
                                        cmocka_unit_test(test_valid) };
    return run_group("chains", tests, in_folder, remove_folder);
}
