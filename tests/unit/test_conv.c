/* Convolutions of random shapes, strides, dilations and groups against sums in double, for each kind of kernel in turn. */
#include <stdio.h>
#include "unit/support.h"

enum { SPACE = 3, AXES = SPACE + 2 };

/* One convolution, its missing axes of size 1 first. */
struct problem {
    int space, batch, channels, outputs, groups, size[SPACE], kernel[SPACE], stride[SPACE], low[SPACE], high[SPACE], across[SPACE],
        within[SPACE];
    bool flip;
    mlxvk_dtype dtype;
    double spread;                                      /* sizes of the terms of neighbouring positions, which Winograd's way mixes */
};

static struct problem random_problem(struct rng *r)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    struct problem p = { .space = random_int(r, 1, 3), .batch = random_int(r, 1, 2), .flip = random_chance(r, 30),
                         .dtype = dtypes[random_int(r, 0, 2)] };
    int each = ONE_OF(r, 1, 3, 4, 8, 16, 24, 64), outputs = ONE_OF(r, 1, 5, 8, 16, 33, 70);
    p.groups = p.space == 3 || random_chance(r, 60) ? 1 : ONE_OF(r, 2, 3, 8);
    if (p.groups > 1) { outputs = ONE_OF(r, 1, 2, 8, 17); each = ONE_OF(r, 1, 1, 2, 8); }
    p.channels = p.groups * each;
    p.outputs = p.groups * outputs;
    for (int i = 0; i < SPACE; i++) {
        p.size[i] = p.kernel[i] = p.stride[i] = p.across[i] = p.within[i] = 1;
        if (i < SPACE - p.space) continue;
        p.kernel[i] = random_int(r, 1, 4);
        p.stride[i] = ONE_OF(r, 1, 1, 2, 3);
        p.across[i] = ONE_OF(r, 1, 1, 2, 3);
        p.within[i] = ONE_OF(r, 1, 1, 1, 2, 3, 4);
        p.low[i] = random_int(r, 0, 3);
        p.high[i] = random_int(r, 0, 3);
        p.size[i] = 1 + (p.across[i] * (p.kernel[i] - 1)) / p.within[i] + random_int(r, 0, p.space == 1 ? 30 : p.space == 2 ? 9 : 4);
    }
    return p;
}

static int out_size(const struct problem *p, int axis)
{
    int room = p->within[axis] * (p->size[axis] - 1) + p->low[axis] + p->high[axis] - p->across[axis] * (p->kernel[axis] - 1);
    return room < 0 ? 0 : room / p->stride[axis] + 1;
}

/* An operand whose axes lie in another order, with a first element of its own, or reversed along one axis. */
struct operand { mlxvk_array array; float *values; int shape[AXES]; int64_t stride[AXES], first; };

static struct operand operand(struct rng *r, const int *shape, int space, mlxvk_dtype dtype, mlxvk_stream s)
{
    struct operand o = { .first = ONE_OF(r, 0, 0, 8, 3) };
    int order[AXES] = { 0, 1, 2, 3, 4 }, size, from = SPACE - space, ndim = space + 2, view[AXES] = { 0 };
    int64_t step = random_chance(r, 80) ? 1 : 2, strides[AXES];
    uint8_t *bytes;
    if (random_chance(r, 30)) { int a = random_int(r, 1, 4), t = order[a]; order[a] = order[1]; order[1] = t; }
    for (int i = AXES - 1; i >= 0; i--) { o.stride[order[i]] = step; step *= shape[order[i]]; }
    if (random_chance(r, 15)) { o.first += o.stride[3] * (shape[3] - 1); o.stride[3] = -o.stride[3]; }
    size = (int)(step + o.first + 1);
    bytes = malloc((size_t)size * 4);
    o.values = malloc((size_t)size * sizeof *o.values);
    assert_true(bytes && o.values);
    for (int i = 0; i < size; i++) {
        store_number(dtype, bytes, (size_t)i, (double)random_int(r, -1000, 1000) / 1000);
        o.values[i] = (float)load_number(dtype, bytes, (size_t)i).re;
    }
    memcpy(o.shape, shape, sizeof o.shape);
    for (int i = 0; i < ndim; i++) {
        int axis = i == 0 ? 0 : i + from;
        view[i] = shape[axis];
        strides[i] = o.stride[axis];
    }
    OK(mlxvk_array_new_data_device(&o.array, bytes, &size, 1, dtype, mlxvk_stream_device(s)), s);
    OK(mlxvk_as_strided(&o.array, o.array, view, (size_t)ndim, strides, (size_t)ndim, (size_t)o.first, s), s);
    free(bytes);
    return o;
}

static float at(const struct operand *o, int a, int b, int c, int d, int e)
{
    return o->values[o->first + a * o->stride[0] + b * o->stride[1] + c * o->stride[2] + d * o->stride[3] + e * o->stride[4]];
}

/* The input's position under tap t of position x of the result, or -1. */
static int under(const struct problem *p, int axis, int x, int t)
{
    int q = x * p->stride[axis] - p->low[axis] + (p->flip ? p->kernel[axis] - 1 - t : t) * p->across[axis];
    return q < 0 || q % p->within[axis] || q / p->within[axis] >= p->size[axis] ? -1 : q / p->within[axis];
}

static double sum_at(const struct problem *p, const struct operand *in, const struct operand *w, const int *x, double *sizes)
{
    int c = p->channels / p->groups, group = x[4] / (p->outputs / p->groups);
    double sum = 0;
    *sizes = 0;
    for (int i = 0; i < p->kernel[0]; i++)
        for (int j = 0; j < p->kernel[1]; j++)
            for (int k = 0; k < p->kernel[2]; k++) {
                int a = under(p, 0, x[1], i), b = under(p, 1, x[2], j), d = under(p, 2, x[3], k);
                for (int l = 0; l < c && a >= 0 && b >= 0 && d >= 0; l++) {
                    double t = (double)at(in, x[0], a, b, d, group * c + l) * at(w, x[4], i, j, k, l);
                    sum += t;
                    *sizes += fabs(t);
                }
            }
    return sum;
}

static void compare(const struct problem *p, const struct operand *in, const struct operand *w, mlxvk_array res, mlxvk_stream s)
{
    int out[AXES] = { p->batch, out_size(p, 0), out_size(p, 1), out_size(p, 2), p->outputs }, x[AXES], count = 1;
    double epsilon = p->dtype == MLXVK_FLOAT32 ? 1e-6 : p->dtype == MLXVK_FLOAT16 ? 1e-3 : 8e-3, want, sizes, value;
    void *got;
    for (int i = 0; i < AXES; i++) count *= out[i];
    assert_int_equal(mlxvk_array_ndim(res), p->space + 2);
    assert_int_equal(mlxvk_array_size(res), count);
    assert_int_equal(mlxvk_array_dim(res, p->space), out[3]);
    got = malloc(mlxvk_array_nbytes(res));
    assert_non_null(got);
    OK(mlxvk_array_read(res, got, mlxvk_array_nbytes(res), s), s);
    for (int i = 0; i < count; i++) {
        for (int rest = i, k = AXES - 1; k >= 0; k--) { x[k] = rest % out[k]; rest /= out[k]; }
        want = sum_at(p, in, w, x, &sizes);
        value = load_number(p->dtype, got, (size_t)i).re;
        if (!(fabs(value - want) <= epsilon * fabs(want) + 1e-6 + 2e-6 * (sizes + p->spread)))
            fail_msg("element %d: %.9g, expected %.9g (%s, %d axes, %d -> %d channels, %d groups)", i, value, want,
                     mlxvk_dtype_name(p->dtype), p->space, p->channels, p->outputs, p->groups);
    }
    free(got);
}

static void run_problem(const struct problem *p, struct rng *r, mlxvk_stream s)
{
    int n = p->space, from = SPACE - n;
    size_t m = (size_t)n;
    struct operand in = operand(r, (int[]){ p->batch, p->size[0], p->size[1], p->size[2], p->channels }, n, p->dtype, s);
    struct operand w = operand(r, (int[]){ p->outputs, p->kernel[0], p->kernel[1], p->kernel[2], p->channels / p->groups }, n, p->dtype, s);
    mlxvk_array res = { NULL };
    OK(mlxvk_conv_general(&res, in.array, w.array, p->stride + from, m, p->low + from, m, p->high + from, m, p->across + from, m,
                          p->within + from, m, p->groups, p->flip, s), s);
    compare(p, &in, &w, res, s);
    mlxvk_array_free(res);
    mlxvk_array_free(in.array);
    mlxvk_array_free(w.array);
    free(in.values);
    free(w.values);
}

static void run_cases(const char *gates, int cases, bool eights)
{
    mlxvk_device device = open_device(gates);
    mlxvk_stream s = open_stream(device);
    const char *text = getenv("CONV_CASES");
    for (int i = 0; i < (text ? atoi(text) : cases); i++) {
        struct rng r = { (uint64_t)i * 7919 + 1 };
        struct problem p = random_problem(&r);
        for (int k = 0; k < SPACE; k++) if (out_size(&p, k) < 1) p.high[k] += 9;
        if (eights) {
            p.dtype = MLXVK_FLOAT16;
            p.channels = p.groups * ONE_OF(&r, 8, 16, 40);
        }
        run_problem(&p, &r, s);
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* Gates of several tests are written alike: a process has only so many devices (MOST_INSTANCES). */
#define PLAIN "MLX_VK_CONV_KERNEL=1 MLX_VK_POISON=1"
#define DEPTHWISE "MLX_VK_CONV_KERNEL=2 MLX_VK_POISON=1"
#define DEPTHWISE_GPU "MLX_VK_CONV_KERNEL=2 MLX_VK_POISON=1 MLX_VK_TUNING=3"

static void test_chosen(void **state) { (void)state; run_cases(NULL, 60, false); }
static void test_plain(void **state) { (void)state; run_cases(PLAIN, 30, false); }
static void test_tiled(void **state) { (void)state; run_cases("MLX_VK_CONV_KERNEL=3", 40, false); }

static void test_pieces(void **state) { (void)state; run_cases("MLX_VK_MAX_BINDING_RANGE=16384", 25, false); }
static void test_unfolded(void **state) { (void)state; run_cases("MLX_VK_CONV_KERNEL=6", 20, true); }

/* Channels that are no whole 16 bytes, of all dtypes; groups are not for it. */
static void test_unfolded_even(void **state)
{
    const char *gates = "MLX_VK_CONV_KERNEL=10 MLX_VK_TUNING=1 MLX_VK_POISON=2";
    uint64_t before = dispatches_of(gates, "conv_unfold");
    (void)state;
    run_cases(gates, 60, false);
    assert_true(dispatches_of(gates, "conv_unfold") > before);
}

/* One channel a group, by what CPU drivers and GPUs do: lines of taps as far apart as positions and others, of more taps than are
 * read at once; kernels with more taps than a workgroup keeps; channels that are no fours, and no equal shares of workgroups. */
static void test_depthwise(void **state)
{
    static const char *const gates[] = { DEPTHWISE " MLX_VK_TUNING=1", DEPTHWISE_GPU };
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    (void)state;
    for (size_t way = 0; way < COUNT(gates); way++) {
        mlxvk_device device = open_device(gates[way]);
        mlxvk_stream s = open_stream(device);
        uint64_t before = dispatches_of(gates[way], "conv_depthwise");
        for (int i = 0; i < 40; i++) {
            struct rng r = { (uint64_t)i * 7907 + 1 };
            struct problem p = { .space = random_int(&r, 1, 2), .batch = random_int(&r, 1, 2), .flip = random_chance(&r, 30),
                                 .dtype = dtypes[i % 3], .channels = ONE_OF(&r, 2, 3, 4, 20, 33, 132, 144) };
            bool many = i % 10 == 0;
            p.groups = p.outputs = p.channels;
            for (int k = 0; k < SPACE; k++) {
                bool last = k == SPACE - 1;
                p.size[k] = p.kernel[k] = p.stride[k] = p.across[k] = p.within[k] = 1;
                if (k < SPACE - p.space) continue;
                p.kernel[k] = !last ? random_int(&r, 1, 3) : many ? 400 : ONE_OF(&r, 1, 2, 3, 4, 7, 8, 9);
                p.stride[k] = ONE_OF(&r, 1, 1, 2);
                p.across[k] = ONE_OF(&r, 1, 1, 2);
                p.low[k] = random_int(&r, 0, 3);
                p.high[k] = random_int(&r, 0, 3);
                p.size[k] = 1 + p.across[k] * (p.kernel[k] - 1) + random_int(&r, 0, last ? 20 : 4);
            }
            run_problem(&p, &r, s);
        }
        assert_true(dispatches_of(gates[way], "conv_depthwise") > before);
        mlxvk_stream_free(s);
        mlxvk_device_free(device);
    }
}

/* An input without positions, of which there is padding alone: zeros. */
static void test_nothing_but_padding(void **state)
{
    static const char *const gates[] = { NULL, PLAIN, DEPTHWISE " MLX_VK_TUNING=1", DEPTHWISE_GPU };
    (void)state;
    for (size_t way = 0; way < COUNT(gates); way++) {
        mlxvk_device device = open_device(gates[way]);
        mlxvk_stream s = open_stream(device);
        static const float ones[8 * 3] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
        float got[2 * 8];
        mlxvk_array x = { NULL }, w = floats(device, ones, (int[]){ 8, 3, 1 }, 3), y = { NULL };
        OK(mlxvk_zeros(&x, (int[]){ 1, 0, 8 }, 3, MLXVK_FLOAT32, s), s);
        OK(mlxvk_conv1d(&y, x, w, 1, 2, 1, 8, s), s);
        assert_int_equal(mlxvk_array_size(y), COUNT(got));
        OK(mlxvk_array_read(y, got, sizeof got, s), s);
        for (size_t i = 0; i < COUNT(got); i++) assert_true(got[i] == 0);
        mlxvk_array_free(x);
        mlxvk_array_free(w);
        mlxvk_array_free(y);
        mlxvk_stream_free(s);
        mlxvk_device_free(device);
    }
}

/* Parts of K that MLX_VK_BATCH_INVARIANT wants, which no binding reaches in all: fewer positions at a time. */
static void test_invariant_parts(void **state)
{
    mlxvk_device device = open_device("MLX_VK_TUNING=3 MLX_VK_BATCH_INVARIANT=1 MLX_VK_MAX_BINDING_RANGE=65536");
    mlxvk_stream s = open_stream(device);
    (void)state;
    for (int batch = 1; batch <= 3; batch += 2) {
        struct rng r = { 11 };
        struct problem p = { .space = 2, .batch = batch, .groups = 1, .dtype = MLXVK_FLOAT32, .channels = 15, .outputs = 17,
            .size = { 1, batch > 1 ? 10 : 30, 31 }, .kernel = { 1, 7, 7 }, .stride = { 1, 1, 1 }, .low = { 0, 3, 3 }, .high = { 0, 3, 3 },
            .across = { 1, 1, 1 }, .within = { 1, 1, 1 } };
        run_problem(&p, &r, s);
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* 2 to 5 taps along each axis, in steps of 1: sizes that tiles do not divide, results of one position, padding beyond the kernel. */
static void test_winograd(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    mlxvk_device device = open_device("MLX_VK_CONV_KERNEL=7");
    mlxvk_stream s = open_stream(device);
    const char *text = getenv("CONV_CASES");
    (void)state;
    for (int i = 0; i < (text ? atoi(text) : 40); i++) {
        struct rng r = { (uint64_t)i * 104729 + 1 };
        struct problem p = { .space = 2, .batch = random_int(&r, 1, 4), .groups = 1, .flip = random_chance(&r, 30), .dtype = dtypes[i % 4],
            .channels = ONE_OF(&r, 1, 3, 4, 16, 40), .outputs = ONE_OF(&r, 1, 5, 8, 33), .size = { 1, 1, 1 }, .kernel = { 1, random_int(&r, 2, 5), random_int(&r, 2, 5) },
            .stride = { 1, 1, 1 }, .across = { 1, 1, 1 }, .within = { 1, 1, 1 } };
        p.spread = p.kernel[1] * p.kernel[2] / 4.0 * p.channels;
        for (int k = 1; k < SPACE; k++) {
            p.low[k] = random_int(&r, 0, 4);
            p.high[k] = random_int(&r, 0, 4);
            p.size[k] = random_int(&r, p.low[k] + p.high[k] >= p.kernel[k] ? 1 : p.kernel[k] - p.low[k] - p.high[k], 14);
            if (random_chance(&r, 10)) p.within[k] = p.across[k] = 2;                          /* as if neither were there, in parts */
            if (out_size(&p, k) < 1) p.high[k] += 9;
        }
        run_problem(&p, &r, s);
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* What lies between the steps is bounded: some tiles at a time. */
static void test_winograd_parts(void **state)
{
    mlxvk_device device = open_device("MLX_VK_CONV_KERNEL=7 MLX_VK_MAX_BINDING_RANGE=1048576");
    mlxvk_stream s = open_stream(device);
    struct rng r = { 3 };
    struct problem p = { .space = 2, .batch = 3, .groups = 1, .dtype = MLXVK_FLOAT32, .channels = 40, .outputs = 17, .size = { 1, 30, 40 },
        .kernel = { 1, 3, 3 }, .stride = { 1, 1, 1 }, .low = { 0, 1, 1 }, .high = { 0, 1, 0 }, .across = { 1, 1, 1 }, .within = { 1, 1, 1 },
        .spread = 90 };
    (void)state;
    run_problem(&p, &r, s);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

static void find_winograd(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    (void)nanoseconds;
    if (!strcmp(kernel, "winograd")) *(uint64_t *)user += count;
}

/* It is chosen where it pays, in parts where it may not take all the memory, and not where a gate or a lack of that forbids it. */
static void test_winograd_chosen(void **state)
{
    static const struct { const char *gate; size_t bytes; unsigned dispatches; } ways[] = {
        { NULL, 0, 3 }, { "MLX_VK_ENABLE_WINOGRAD=0", 0, 0 }, { NULL, 40000000, 3 }, { NULL, 10000000, 5 }, { NULL, 1, 0 } };
    enum { WAYS = sizeof ways / sizeof *ways };
    enum { SIZE = 64, CHANNELS = 128, IN = SIZE * SIZE * CHANNELS, WEIGHTS = 9 * CHANNELS * CHANNELS };
    float *in = malloc(IN * sizeof *in), *w = malloc(WEIGHTS * sizeof *w), *got[WAYS];
    struct rng r = { 5 };
    (void)state;
    assert_true(in && w);
    for (int i = 0; i < IN; i++) in[i] = (float)random_int(&r, -1000, 1000) / 1000;
    for (int i = 0; i < WEIGHTS; i++) w[i] = (float)random_int(&r, -1000, 1000) / 1000;
    for (int i = 0; i < WAYS; i++) {
        mlxvk_device device = open_device(ways[i].gate);
        mlxvk_stream s = open_stream(device);
        mlxvk_array x = floats(device, in, (int[]){ 1, SIZE, SIZE, CHANNELS }, 4), y = { NULL };
        mlxvk_array k = floats(device, w, (int[]){ CHANNELS, 3, 3, CHANNELS }, 4);
        uint64_t count = 0, before = 0;
        mlxvk_kernel_stats(device, find_winograd, &before);
        got[i] = malloc(IN * sizeof *got[i]);
        assert_non_null(got[i]);
        OK_DEVICE(mlxvk_device_set_winograd_limit(NULL, ways[i].bytes, device), device);
        OK(mlxvk_conv2d(&y, x, k, 1, 1, 1, 1, 1, 1, 1, s), s);
        OK(mlxvk_array_read(y, got[i], IN * sizeof *got[i], s), s);
        mlxvk_kernel_stats(device, find_winograd, &count);
        assert_int_equal(count - before, ways[i].dispatches);
        OK_DEVICE(mlxvk_device_set_winograd_limit(NULL, 0, device), device);
        mlxvk_array_free(x);
        mlxvk_array_free(k);
        mlxvk_array_free(y);
        mlxvk_stream_free(s);
        mlxvk_device_free(device);
    }
    for (int i = IN; i < WAYS * IN; i++) {
        float one = got[0][i % IN], other = got[i / IN][i % IN];
        if (!(fabsf(one - other) <= 1e-6f * 9 / 4 * CHANNELS)) fail_msg("way %d, element %d: %.9g, and otherwise %.9g", i / IN, i % IN, one, other);
    }
    free(in);
    free(w);
    for (int i = 0; i < WAYS; i++) free(got[i]);
}

static void test_coopmat(void **state)
{
    (void)state;
    need_capability("cooperative_matrix_size");
    uint64_t before = dispatches_of("MLX_VK_CONV_KERNEL=4", "conv_coopmat_");
    run_cases("MLX_VK_CONV_KERNEL=4", 10, true);
    assert_true(dispatches_of("MLX_VK_CONV_KERNEL=4", "conv_coopmat_") > before);
    for (int tile = 1; tile <= 5 && getenv("CONV_CASES"); tile++) {
        char gates[80];
        snprintf(gates, sizeof gates, "MLX_VK_CONV_KERNEL=4 MLX_VK_MATMUL_TILE=%d", tile);
        run_cases(gates, 0, true);
    }
}

/* Half types with as many positions and output channels as tiles have, and what their kernel does not take: few or odd channels,
 * several images of three axes. */
static struct problem wide_problem(struct rng *r)
{
    struct problem p = { .space = random_int(r, 1, 3), .batch = ONE_OF(r, 1, 1, 2, 5), .flip = random_chance(r, 30),
                         .dtype = random_chance(r, 50) ? MLXVK_FLOAT16 : MLXVK_BFLOAT16 };
    p.groups = p.space < 3 && random_chance(r, 25) ? 2 : 1;
    p.channels = p.groups * ONE_OF(r, 16, 32, 32, 48, 64, 128, 24, 8);
    p.outputs = p.groups * ONE_OF(r, 64, 64, 72, 128, 136, 200, 60);
    if (p.space == 3) p.batch = random_chance(r, 80) ? 1 : 2;
    for (int i = 0; i < SPACE; i++) {
        p.size[i] = p.kernel[i] = p.stride[i] = p.across[i] = p.within[i] = 1;
        if (i < SPACE - p.space) continue;
        p.kernel[i] = random_int(r, 1, 3);
        p.stride[i] = ONE_OF(r, 1, 1, 1, 1, 1, 1, 2, 3);
        p.across[i] = ONE_OF(r, 1, 1, 1, 2);
        p.within[i] = ONE_OF(r, 1, 1, 1, 1, 1, 1, 1, 2);
        p.low[i] = ONE_OF(r, 0, 1, 1, 2);
        p.high[i] = ONE_OF(r, 0, 1, 1, 3);
        p.size[i] = 1 + p.across[i] * (p.kernel[i] - 1) + (p.space == 1 ? random_int(r, 30, 200) : p.space == 2 ? random_int(r, 4, 20) : random_int(r, 2, 7));
    }
    return p;
}

static void run_wide(const char *gates, int cases)
{
    const char *text = getenv("CONV_CASES");
    mlxvk_device device = open_device(gates);
    mlxvk_stream s = open_stream(device);
    for (int i = 0; i < (text ? atoi(text) : cases); i++) {
        struct rng r = { (uint64_t)i * 6151 + 1 };
        struct problem p = wide_problem(&r);
        run_problem(&p, &r, s);
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* As they come; the images' copies with padding some at a time; each shape of tiles. */
static void test_coopmat2(void **state)
{
    const char *all = "MLX_VK_POISON=1 MLX_VK_CONV_KERNEL=8";
    (void)state;
    need_capability("cooperative_matrix2");
    uint64_t before = dispatches_of(all, "conv_coopmat2_"), after;
    run_wide(all, 24);
    after = dispatches_of(all, "conv_coopmat2_");
    assert_true(after > before);
    run_wide("MLX_VK_POISON=1 MLX_VK_CONV_KERNEL=8 MLX_VK_MAX_BINDING_RANGE=65536", 10);
    for (int tile = 1; tile <= 9; tile++) {
        char gates[80];
        snprintf(gates, sizeof gates, "MLX_VK_POISON=1 MLX_VK_CONV_KERNEL=8 MLX_VK_MATMUL_TILE=%d", tile);
        run_wide(gates, 5);
    }
}

/* Channels that are no whole eights, of a group, of the input, of the result, and what begins at odd places: by copies with
 * zeros, whose memory is NaN before that; some images at a time; as grouped, dilated, flipped and strided as they come. */
static void run_even(const char *gates, int cases)
{
    const char *text = getenv("CONV_CASES");
    mlxvk_device device = open_device(gates);
    mlxvk_stream s = open_stream(device);
    for (int i = 0; i < (text ? atoi(text) : cases); i++) {
        struct rng r = { (uint64_t)i * 4751 + 1 };
        struct problem p = wide_problem(&r);
        p.channels = p.groups * ONE_OF(&r, 1, 3, 15, 17, 20, 31, 33, 48, 63, 65);
        p.outputs = p.groups * ONE_OF(&r, 63, 65, 66, 64, 72);
        run_problem(&p, &r, s);
    }
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

static void test_even(void **state)
{
    const char *all = "MLX_VK_POISON=2 MLX_VK_CONV_KERNEL=9";
    uint64_t before;
    (void)state;
    need_capability("cooperative_matrix_size");
    before = dispatches_of(all, "conv_coopmat");
    run_even(all, 6);
    assert_true(dispatches_of(all, "conv_coopmat") > before);
    run_even("MLX_VK_POISON=2 MLX_VK_CONV_KERNEL=9 MLX_VK_MAX_BINDING_RANGE=65536", 3);
}

static void test_negative_padding(void **state)
{
    static const float x[] = { 0, 1, 2, 3, 4 }, one[] = { 1 };
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array in = floats(device, x, (int[]){ 1, 5, 1 }, 3), w = floats(device, one, (int[]){ 1, 1, 1 }, 3), res = { NULL };
    (void)state;
    OK(mlxvk_conv_general(&res, in, w, NULL, 0, (int[]){ -1 }, 1, (int[]){ 1 }, 1, NULL, 0, (int[]){ 2 }, 1, 1, false, s), s);
    expect_floats(res, (float[]){ 1, 0, 2, 0, 3, 0, 4, 0 }, 8, 0, 0, s);
    OK(mlxvk_conv1d(&res, in, w, 1, -1, 1, 1, s), s);
    expect_floats(res, (float[]){ 1, 2, 3 }, 3, 0, 0, s);
    OK(mlxvk_conv_transpose1d(&res, in, w, 2, 0, 1, 1, 1, s), s);
    expect_floats(res, (float[]){ 0, 0, 1, 0, 2, 0, 3, 0, 4, 0 }, 10, 0, 0, s);
    REFUSED(mlxvk_conv_general(&res, in, w, NULL, 0, (int[]){ -3 }, 1, (int[]){ -3 }, 1, NULL, 0, NULL, 0, 1, false, s),
            MLXVK_ERROR_SHAPE, s, "smaller");
    mlxvk_array_free(res);
    mlxvk_array_free(in);
    mlxvk_array_free(w);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* More products of an element than drivers with short loops take in one invocation: one channel a group; phases of a dilated
 * input, whose results do not follow each other. Counts of ones are exact. */
static void test_long(void **state)
{
    static const struct { int in, taps, c, groups, stride, dilation, low; } cases[] = {
        { 70002, 70000, 1, 2, 1, 1, 0 }, { 30000, 60000, 1, 1, 3, 2, 1 }, { 24000, 48000, 2, 2, 3, 2, 1 }, { 12, 9, 40000, 1, 1, 2, 1 },
    };
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array in = { NULL }, w = { NULL }, res = { NULL };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int stride = cases[i].stride, d = cases[i].dilation, low = cases[i].low, n = 1 + (i == 2), full = (cases[i].in - 1) * d + 1, size;
        float want[256];
        OK(mlxvk_ones(&in, (int[]){ 2, cases[i].in, cases[i].c * cases[i].groups }, 3, MLXVK_FLOAT32, s), s);
        OK(mlxvk_ones(&w, (int[]){ n * cases[i].groups, cases[i].taps, cases[i].c }, 3, MLXVK_FLOAT32, s), s);
        OK(mlxvk_conv_general(&res, in, w, &stride, 1, &low, 1, &low, 1, NULL, 0, &d, 1, cases[i].groups, false, s), s);
        size = (int)mlxvk_array_size(res) / 2;
        assert_in_range(size, 1, 128);
        for (int k = 0; k < size; k++) {
            int from = k / (n * cases[i].groups) * stride - low, hits = 0;
            for (int t = 0; t < cases[i].taps; t++) hits += from + t >= 0 && from + t < full && (from + t) % d == 0;
            want[k] = want[size + k] = (float)(hits * cases[i].c);
        }
        expect_floats(res, want, 2 * (size_t)size, 0, 0, s);
    }
    mlxvk_array_free(res);
    mlxvk_array_free(in);
    mlxvk_array_free(w);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* MLX divides towards zero: a kernel that sticks out by less than a stride has one position. */
static void test_kernel_sticks_out(void **state)
{
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array in = { NULL }, w = { NULL }, res = { NULL };
    (void)state;
    OK(mlxvk_ones(&in, (int[]){ 1, 2, 1 }, 3, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&w, (int[]){ 1, 3, 1 }, 3, MLXVK_FLOAT32, s), s);
    OK(mlxvk_conv1d(&res, in, w, 2, 0, 1, 1, s), s);
    expect_floats(res, (float[]){ 2 }, 1, 0, 0, s);
    REFUSED(mlxvk_conv1d(&res, in, w, 1, 0, 1, 1, s), MLXVK_ERROR_SHAPE, s, "smaller");
    REFUSED(mlxvk_conv1d(&res, in, w, 2, 0, 2, 1, s), MLXVK_ERROR_SHAPE, s, "smaller");
    OK(mlxvk_ones(&in, (int[]){ 2, 4, 3, 32 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&w, (int[]){ 32, 6, 5, 32 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_conv2d(&res, in, w, 3, 3, 0, 0, 1, 1, 1, s), s);
    assert_int_equal(mlxvk_array_size(res), 64);
    OK(mlxvk_max(&res, res, false, s), s);
    expect_floats(res, (float[]){ 12 * 32 }, 1, 0, 0, s);
    mlxvk_array_free(res);
    mlxvk_array_free(in);
    mlxvk_array_free(w);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

static void test_empty(void **state)
{
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array in = { NULL }, w = { NULL }, res = { NULL };
    (void)state;
    OK(mlxvk_zeros(&in, (int[]){ 0, 5, 5, 3 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&w, (int[]){ 2, 3, 3, 3 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_conv2d(&res, in, w, 1, 1, 0, 0, 1, 1, 1, s), s);
    assert_int_equal(mlxvk_array_size(res), 0);
    OK(mlxvk_zeros(&in, (int[]){ 1, 0, 2, 3 }, 4, MLXVK_FLOAT32, s), s);                        /* padding alone */
    OK(mlxvk_conv2d(&res, in, w, 1, 1, 2, 1, 1, 1, 1, s), s);
    expect_floats(res, (float[16]){ 0 }, 8, 0, 0, s);
    OK(mlxvk_zeros(&in, (int[]){ 1, 2, 2, 0 }, 4, MLXVK_FLOAT32, s), s);                        /* no channels */
    OK(mlxvk_ones(&w, (int[]){ 2, 1, 1, 0 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_conv2d(&res, in, w, 1, 1, 0, 0, 1, 1, 1, s), s);
    expect_floats(res, (float[8]){ 0 }, 8, 0, 0, s);
    mlxvk_array_free(res);
    mlxvk_array_free(in);
    mlxvk_array_free(w);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

static void test_errors(void **state)
{
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array in = { NULL }, w = { NULL }, whole = { NULL }, flat = { NULL }, five = { NULL }, res = { NULL };
    (void)state;
    OK(mlxvk_ones(&in, (int[]){ 1, 5, 5, 4 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&w, (int[]){ 2, 3, 3, 4 }, 4, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&whole, (int[]){ 1, 5, 5, 4 }, 4, MLXVK_INT32, s), s);
    OK(mlxvk_ones(&flat, (int[]){ 5, 4 }, 2, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&five, (int[]){ 2, 1, 1, 1, 2 }, 5, MLXVK_FLOAT32, s), s);
    REFUSED(mlxvk_conv2d(&res, in, w, 0, 1, 0, 0, 1, 1, 1, s), MLXVK_ERROR_ARGUMENT, s, "stride");
    REFUSED(mlxvk_conv2d(&res, in, w, 1, 1, 0, 0, 1, 0, 1, s), MLXVK_ERROR_ARGUMENT, s, "dilation");
    REFUSED(mlxvk_conv2d(&res, in, w, 1, 1, 0, 0, 1, 1, 2, s), MLXVK_ERROR_SHAPE, s, "2 groups");
    REFUSED(mlxvk_conv2d(&res, in, w, 1, 1, 0, 0, 1, 1, 0, s), MLXVK_ERROR_ARGUMENT, s, "groups");
    REFUSED(mlxvk_conv2d(&res, in, w, 1, 1, 0, 0, 3, 1, 1, s), MLXVK_ERROR_SHAPE, s, "smaller");
    REFUSED(mlxvk_conv2d(&res, whole, w, 1, 1, 0, 0, 1, 1, 1, s), MLXVK_ERROR_DTYPE, s, "int32");
    REFUSED(mlxvk_conv1d(&res, flat, w, 1, 0, 1, 1, s), MLXVK_ERROR_SHAPE, s, "float32 (5, 4)");
    REFUSED(mlxvk_conv3d(&res, five, five, 1, 1, 1, 0, 0, 0, 1, 1, 1, 2, s), MLXVK_ERROR_ARGUMENT, s, "groups");
    REFUSED(mlxvk_conv3d(&res, in, w, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, s), MLXVK_ERROR_ARGUMENT, s, "3 values");
    REFUSED(mlxvk_conv_transpose1d(&res, in, w, 1, 0, 1, 0, 1, s), MLXVK_ERROR_SHAPE, s, "3 axes");
    REFUSED(mlxvk_conv2d(&res, in, (mlxvk_array){ NULL }, 1, 1, 0, 0, 1, 1, 1, s), MLXVK_ERROR_ARGUMENT, s, "weight");
    assert_null(res.ctx);
    mlxvk_array_free(in);
    mlxvk_array_free(w);
    mlxvk_array_free(whole);
    mlxvk_array_free(flat);
    mlxvk_array_free(five);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* An argument is a pattern of test names: "test_coop*". */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen), cmocka_unit_test(test_plain), cmocka_unit_test(test_tiled), cmocka_unit_test(test_unfolded), cmocka_unit_test(test_unfolded_even), cmocka_unit_test(test_pieces), cmocka_unit_test(test_invariant_parts),
        cmocka_unit_test(test_coopmat), cmocka_unit_test(test_coopmat2), cmocka_unit_test(test_even), cmocka_unit_test(test_depthwise), cmocka_unit_test(test_nothing_but_padding),
        cmocka_unit_test(test_winograd), cmocka_unit_test(test_winograd_parts),
        cmocka_unit_test(test_winograd_chosen),
        cmocka_unit_test(test_kernel_sticks_out), cmocka_unit_test(test_negative_padding), cmocka_unit_test(test_long),
        cmocka_unit_test(test_empty), cmocka_unit_test(test_errors),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_group("conv", tests, NULL, NULL);
}
