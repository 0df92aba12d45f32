/* The generator's known answers, where keys come from, streams larger than a binding, what sampling must never pick, and samples of
 * logits that are scaled first, at once and apart. */
#include "support.h"

static const mlxvk_array none;

static int set_up_default(void **state)
{
    (void)state;
    device = mlxvk_device_new();                     /* the default one: random_seed is its */
    stream = open_stream(device);
    return 0;
}

static mlxvk_array key_of(uint64_t seed)
{
    mlxvk_array key = { NULL };
    OK(mlxvk_random_key(&key, seed), stream);
    return key;
}

/* A key that the host does not know: computed by the device. */
static mlxvk_array computed_key(uint32_t high, uint32_t low)
{
    mlxvk_array words = { NULL }, key = { NULL };
    OK(mlxvk_array_new_data_device(&words, (uint32_t[]){ high, 0, 7, low, 0, 7, 1, 2 }, (int[]){ 8 }, 1, MLXVK_UINT32, device), stream);
    OK(mlxvk_slice(&key, words, (int[]){ 0 }, 1, (int[]){ 6 }, 1, (int[]){ 3 }, 1, stream), stream);
    mlxvk_array_free(words);
    return key;
}

static void expect_bits(mlxvk_array key, const int *shape, size_t ndim, int width, const uint32_t *want, size_t count)
{
    mlxvk_array res = { NULL };
    OK(mlxvk_random_bits(&res, shape, ndim, width, key, stream), stream);
    OK(mlxvk_astype(&res, res, MLXVK_INT32, stream), stream);
    expect_ints(res, (const int32_t *)want, count, stream);
    mlxvk_array_free(res);
}
#define BITS(key, shape, ndim, width, ...)                                                                            \
    expect_bits(key, shape, ndim, width, (uint32_t[]){ __VA_ARGS__ }, COUNT(((uint32_t[]){ __VA_ARGS__ })))

static void known_answers(void **state)
{
    mlxvk_array key = key_of(0), strided = computed_key(0, 0);
    (void)state;
    for (int i = 0; i < 2; i++) {
        BITS(key, NULL, 0, 4, 1797259609);
        BITS(key, (int[]){ 3 }, 1, 4, 4146024105, 1351547692, 2718843009);
        BITS(key, ((int[]){ 2, 2 }), 2, 4, 4146024105, 967050713, 2718843009, 1272950319);
        BITS(key, (int[]){ 5 }, 1, 2, 20137, 63263, 64300, 20622, 16513);
        BITS(key, (int[]){ 7 }, 1, 2, 20137, 63263, 1497, 14756, 16513, 41486, 44591);
        BITS(key, NULL, 0, 1, 89);
        mlxvk_array_set(&key, strided);
    }
    mlxvk_array_free(key);
    key = key_of(((uint64_t)1 << 32) | 1);
    BITS(key, (int[]){ 3 }, 1, 4, 3725146706, 1802982961, 1349634643);
    mlxvk_array_free(key);
    mlxvk_array_free(strided);
}

/* The host and the device split alike; the device's own state goes on with row 0 and hands out row 1. */
static void keys(void **state)
{
    uint32_t host[4], gpu[4], next[6], used[6];
    mlxvk_array a = { NULL }, b = { NULL }, key = key_of(3), strided = computed_key(0, 3), res = { NULL };
    (void)state;
    OK(mlxvk_random_split(&a, &b, key, stream), stream);
    OK(mlxvk_array_read(a, host, 8, stream), stream);
    OK(mlxvk_array_read(b, host + 2, 8, stream), stream);
    OK(mlxvk_random_split(&a, &b, strided, stream), stream);
    OK(mlxvk_array_read(a, gpu, 8, stream), stream);
    OK(mlxvk_array_read(b, gpu + 2, 8, stream), stream);
    assert_memory_equal(host, gpu, sizeof host);
    assert_memory_equal(host, ((uint32_t[]){ 1024511538, 47757680, 2603795180, 1437962712 }), sizeof host);
    OK(mlxvk_random_split(&key, &b, key, stream), stream);         /* in place */
    OK(mlxvk_array_read(key, gpu, 8, stream), stream);
    assert_memory_equal(host, gpu, 8);

    OK(mlxvk_random_seed(3), stream);
    OK(mlxvk_random_bits(&res, (int[]){ 6 }, 1, 4, none, stream), stream);
    OK(mlxvk_array_read(res, next, sizeof next, stream), stream);
    OK(mlxvk_random_bits(&res, (int[]){ 6 }, 1, 4, b, stream), stream);
    OK(mlxvk_array_read(res, used, sizeof used, stream), stream);
    assert_memory_equal(next, used, sizeof next);
    OK(mlxvk_random_split(&a, &b, key, stream), stream);
    OK(mlxvk_random_bits(&res, (int[]){ 6 }, 1, 4, none, stream), stream);
    OK(mlxvk_array_read(res, next, sizeof next, stream), stream);
    OK(mlxvk_random_bits(&res, (int[]){ 6 }, 1, 4, b, stream), stream);
    OK(mlxvk_array_read(res, used, sizeof used, stream), stream);
    assert_memory_equal(next, used, sizeof next);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(key);
    mlxvk_array_free(strided);
    mlxvk_array_free(res);
}

/* The words of a stream pair up across its halves, also where those are in different bindings. */
static void large_streams(void **state)
{
    enum { WORDS = 36000001 };                                     /* 137 MiB */
    mlxvk_array key = key_of(9), res = { NULL }, part = { NULL };
    uint32_t *words = malloc((size_t)WORDS * 4), sum[4] = { 0 };
    (void)state;
    assert_non_null(words);
    OK(mlxvk_random_bits(&res, (int[]){ WORDS }, 1, 4, key, stream), stream);
    OK(mlxvk_array_read(res, words, (size_t)WORDS * 4, stream), stream);
    for (size_t i = 0; i < WORDS; i++) sum[i * 4 / WORDS] += words[i] >> 28;
    for (int i = 0; i < 4; i++) assert_in_range(sum[i], 67400000, 67600000);     /* 9e6 times 7.5 */
    OK(mlxvk_random_bits(&res, (int[]){ WORDS * 2 }, 1, 2, key, stream), stream);
    OK(mlxvk_slice(&part, res, (int[]){ WORDS - 3 }, 1, (int[]){ WORDS + 3 }, 1, (int[]){ 1 }, 1, stream), stream);
    uint16_t halves[6];
    OK(mlxvk_array_read(part, halves, sizeof halves, stream), stream);
    assert_memory_equal(halves, (uint16_t *)words + (WORDS - 3), sizeof halves);
    mlxvk_array_free(key);
    mlxvk_array_free(res);
    mlxvk_array_free(part);
    free(words);
}

/* A class of probability 0 is never drawn, by either algorithm, wherever it is. */
static void impossible_classes(void **state)
{
    enum { CLASSES = 20000, SAMPLES = 3000 };
    float *logits = malloc(2 * CLASSES * sizeof *logits);
    uint32_t *got = malloc(2 * SAMPLES * sizeof *got);
    mlxvk_array key = key_of(5), one, two, res = { NULL };
    (void)state;
    assert_true(logits && got);
    for (int i = 0; i < 2 * CLASSES; i++) logits[i] = i % 1000 == 17 ? (float)(i % 7) : -INFINITY;
    one = floats(device, logits, (int[]){ 1, CLASSES }, 2);
    two = floats(device, logits, (int[]){ 2, CLASSES }, 2);
    OK(mlxvk_random_categorical_num_samples(&res, one, -1, SAMPLES, key, stream), stream);
    OK(mlxvk_array_read(res, got, SAMPLES * sizeof *got, stream), stream);
    for (int i = 0; i < SAMPLES; i++) assert_int_equal(got[i] % 1000, 17);
    OK(mlxvk_random_categorical_num_samples(&res, two, -1, 20, key, stream), stream);
    OK(mlxvk_array_read(res, got, 40 * sizeof *got, stream), stream);
    for (int i = 0; i < 40; i++) assert_int_equal(got[i] % 1000, 17);
    OK(mlxvk_random_categorical_num_samples(&res, two, -1, 0, key, stream), stream);
    assert_int_equal(mlxvk_array_size(res), 0);
    mlxvk_array_free(key);
    mlxvk_array_free(one);
    mlxvk_array_free(two);
    mlxvk_array_free(res);
    free(logits);
    free(got);
}

/* One distribution whose logits, and samples, are larger than a binding, dense, as every other element, and so far apart
 * that a workgroup's lie in no binding: the same samples. */
static void large_distributions(void **state)
{
    enum { CLASSES = 20001, SAMPLES = 5100, VIEWS = 3 };
    static uint32_t got[2][VIEWS][SAMPLES];
    float *logits = malloc(2 * CLASSES * sizeof *logits);
    (void)state;
    assert_non_null(logits);
    for (int i = 0; i < 2 * CLASSES; i++) logits[i] = (float)(i * 37 % 101) / 16;
    for (int small = 0; small < 2; small++) {
        struct setting t = start(small ? "MLX_VK_MAX_BINDING_RANGE=20000" : NULL);
        mlxvk_array key = ints(t.device, (int32_t[]){ 3, 4 }, (int[]){ 2 }, 1), x, res = { NULL };
        OK(mlxvk_astype(&key, key, MLXVK_UINT32, t.stream), t.stream);
        x = floats(t.device, logits, (int[]){ 1, 2 * CLASSES }, 2);
        for (int view = 0; view < VIEWS; view++) {
            const int from[] = { 0, 1 }, to[] = { 1, 2 * CLASSES }, step[] = { 1, view + 1 };
            if (view) OK(mlxvk_slice(&x, x, from, 2, to, 2, step, 2, t.stream), t.stream);
            OK(mlxvk_random_categorical_num_samples(&res, x, -1, SAMPLES, key, t.stream), t.stream);
            OK(mlxvk_array_read(res, got[small][view], sizeof got[0][0], t.stream), t.stream);
        }
        mlxvk_array_free(key);
        mlxvk_array_free(x);
        mlxvk_array_free(res);
        finish(&t);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    for (int i = 0; i < SAMPLES; i++) assert_in_range(got[0][0][i], 0, 2 * CLASSES - 1);
    assert_int_not_equal(got[0][0][0], got[0][0][1]);
    free(logits);
}

static void threefry(const uint32_t key[2], uint32_t x, uint32_t y, uint32_t out[2])
{
    static const int turns[8] = { 13, 15, 26, 6, 17, 29, 16, 24 };
    const uint32_t k[3] = { key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bdau };
    x += k[0];
    y += k[1];
    for (uint32_t i = 0; i < 20; i++) {
        x += y;
        y = (y << turns[i % 8] | y >> (32 - turns[i % 8])) ^ x;
        if (i % 4 != 3) continue;
        x += k[(i / 4 + 1) % 3];
        y += k[(i / 4 + 2) % 3] + i / 4 + 1;
    }
    out[0] = x;
    out[1] = y;
}

/* Streams that threads write by fours and others, with both ways to add. */
static void additions(void **state)
{
    static const char *const gates[] = { "MLX_VK_RANDOM_PRODUCTS=1", "MLX_VK_RANDOM_PRODUCTS=2" };
    static const int lengths[] = { 8, 1021, 4096, 40008 };
    const uint32_t key[2] = { 0xfedcba98, 0x89abcdef };
    uint32_t *got = malloc(40008 * sizeof *got);
    (void)state;
    assert_non_null(got);
    for (size_t g = 0; g < COUNT(gates); g++) {
        mlxvk_device other = open_device(gates[g]);
        mlxvk_stream s = open_stream(other);
        for (size_t i = 0; i < COUNT(lengths); i++) {
            uint32_t n = (uint32_t)lengths[i], half = (n + 1) / 2, want[2];
            mlxvk_array k = { NULL }, res = { NULL };
            OK_DEVICE(mlxvk_array_new_data_device(&k, key, (int[]){ 2 }, 1, MLXVK_UINT32, other), other);
            OK(mlxvk_random_bits(&res, &lengths[i], 1, 4, k, s), s);
            OK(mlxvk_array_read(res, got, n * sizeof *got, s), s);
            for (uint32_t j = 0; j < half; j++) {
                threefry(key, j, j + half < n ? j + half : 0, want);
                assert_int_equal(got[j], want[0]);
                if (j + half < n) assert_int_equal(got[j + half], want[1]);
            }
            mlxvk_array_free(k);
            mlxvk_array_free(res);
        }
        mlxvk_stream_free(s);
        mlxvk_device_free(other);
    }
    free(got);
}

static void refused(void **state)
{
    mlxvk_array res = { NULL }, key = key_of(1), long_key = ints(device, (int32_t[]){ 1, 2, 3 }, (int[]){ 3 }, 1);
    (void)state;
    REFUSED(mlxvk_random_bits(&res, (int[]){ 2 }, 1, 3, key, stream), MLXVK_ERROR_ARGUMENT, stream, "width");
    REFUSED(mlxvk_random_bits(&res, (int[]){ -2 }, 1, 4, key, stream), MLXVK_ERROR_SHAPE, stream, "random_bits");
    REFUSED(mlxvk_random_bits(&res, (int[]){ 2 }, 1, 4, long_key, stream), MLXVK_ERROR_DTYPE, stream, "uint32");
    OK(mlxvk_astype(&long_key, long_key, MLXVK_UINT32, stream), stream);
    REFUSED(mlxvk_random_bits(&res, (int[]){ 2 }, 1, 4, long_key, stream), MLXVK_ERROR_SHAPE, stream, "(2)");
    REFUSED(mlxvk_random_normal(&res, (int[]){ 2 }, 1, MLXVK_INT32, 0, 1, key, stream), MLXVK_ERROR_DTYPE, stream, "int32");
    REFUSED(mlxvk_random_categorical(&res, key, 1, key, stream), MLXVK_ERROR_AXIS, stream, "axis");
    REFUSED(mlxvk_random_categorical_shape(&res, key, 0, NULL, 99, key, stream), MLXVK_ERROR_SHAPE, stream, "dimensions");
    mlxvk_array_free(res);
    mlxvk_array_free(key);
    mlxvk_array_free(long_key);
}

/* ---- samples of a row less and times numbers ---- */

enum drawn_broken { DRAWN, ROW_LESS, LESS_OWNED, TIMES_OWNED, LESS_READ, KEY_COMPUTED, TIMES_COMPUTED, OTHER_BITS, SOME_ROWS, TURNED_BACK,
                    REVERSED_LESS, CAST_BETWEEN };
enum { DRAWS = 6 };
static const struct drawn_case {
    mlxvk_dtype dtype;
    int n, samples;                                  /* samples: 0: one, without a dimension for them */
    bool less, times;
    int step;                                        /* between logits; 0: one number, as often */
    enum drawn_broken broken;
    int saves;                                       /* dispatches */
} drawn_cases[] = {
    { MLXVK_BFLOAT16, 5001, 0, true, true, 1, DRAWN, 2 },      { MLXVK_FLOAT16, 5000, 0, true, true, 1, DRAWN, 2 },
    { MLXVK_FLOAT32, 4097, 0, true, true, 1, DRAWN, 2 },       { MLXVK_FLOAT32, 2049, 7, true, true, 1, DRAWN, 2 },
    { MLXVK_BFLOAT16, 2048, 0, true, false, 1, DRAWN, 1 },     { MLXVK_FLOAT32, 3000, 0, true, false, 2, DRAWN, 1 },
    { MLXVK_BFLOAT16, 4099, 0, false, true, 1, DRAWN, 1 },     { MLXVK_FLOAT32, 33, 0, false, true, 3, DRAWN, 1 },
    { MLXVK_FLOAT32, 2, 3, true, true, 1, DRAWN, 2 },          { MLXVK_FLOAT16, 300, 0, true, true, -1, DRAWN, 2 },
    { MLXVK_FLOAT32, 9000, 0, true, true, 0, DRAWN, 2 },       { MLXVK_BFLOAT16, 500, 0, false, true, 1, KEY_COMPUTED, 1 },
    { MLXVK_BFLOAT16, 500, 0, true, true, 1, ROW_LESS, 1 },    { MLXVK_BFLOAT16, 500, 0, true, true, 1, LESS_OWNED, 1 },
    { MLXVK_BFLOAT16, 500, 0, true, true, 1, TIMES_OWNED, 0 }, { MLXVK_FLOAT32, 500, 0, true, true, 1, LESS_READ, 1 },
    { MLXVK_BFLOAT16, 500, 0, true, true, 1, KEY_COMPUTED, 1 },{ MLXVK_FLOAT32, 500, 0, true, true, 1, TIMES_COMPUTED, 0 },
    { MLXVK_FLOAT16, 500, 0, true, true, 1, OTHER_BITS, 1 },   { MLXVK_FLOAT32, 500, 0, true, true, 1, SOME_ROWS, 0 },
    { MLXVK_FLOAT32, 500, 0, true, true, 1, TURNED_BACK, 0 },  { MLXVK_FLOAT32, 500, 0, true, true, 1, REVERSED_LESS, 1 },
    { MLXVK_FLOAT32, 500, 0, true, true, 1, CAST_BETWEEN, 1 },
};

/* Logits of a case: a part of them, where `step` is not 1. */
static mlxvk_array drawn_logits(const struct drawn_case *c, mlxvk_stream s)
{
    const int step = abs(c->step), all = step ? c->n * step : 1;
    mlxvk_array x = normals((int[]){ all }, 1, c->dtype, 61, s);
    if (c->step < 0) OK(mlxvk_slice(&x, x, (int[]){ all - 1 }, 1, (int[]){ -all - 1 }, 1, &c->step, 1, s), s);
    else if (step > 1) OK(mlxvk_slice(&x, x, (int[]){ 0 }, 1, &all, 1, &step, 1, s), s);
    if (!step) OK(mlxvk_broadcast_to(&x, x, &c->n, 1, s), s);
    OK(mlxvk_array_eval(x), s);
    return x;
}

/* x less a number, times one that is not the same each time: kept[0] and kept[1] have what somebody else wants of it. */
static void scale_logits(mlxvk_device d, mlxvk_stream s, const struct drawn_case *c, mlxvk_array x, mlxvk_array number, int round,
                         mlxvk_array *y, mlxvk_array *kept)
{
    mlxvk_array times = floats(d, (float[]){ 0.75f + 0.25f * (float)round }, NULL, 0);
    OK(mlxvk_array_set(y, x), s);
    if (c->broken == TIMES_COMPUTED) OK(mlxvk_add(&times, times, times, s), s);
    OK(mlxvk_astype(&times, times, c->dtype, s), s);
    if (c->less && c->broken == REVERSED_LESS) OK(mlxvk_subtract(y, number, x, s), s);
    else if (c->less) OK(mlxvk_subtract(y, x, number, s), s);
    if (c->broken == LESS_OWNED) OK(mlxvk_array_set(&kept[0], *y), s);
    if (c->broken == LESS_READ) OK(mlxvk_max(&kept[0], *y, false, s), s);
    if (c->broken == OTHER_BITS) OK(mlxvk_view(y, *y, MLXVK_BFLOAT16, s), s);
    if (c->broken == OTHER_BITS) OK(mlxvk_astype(&times, times, MLXVK_BFLOAT16, s), s);
    if (c->broken == CAST_BETWEEN) OK(mlxvk_astype(y, *y, MLXVK_FLOAT16, s), s);
    if (c->broken == CAST_BETWEEN) OK(mlxvk_astype(&times, times, MLXVK_FLOAT16, s), s);
    if (c->times) OK(round % 2 ? mlxvk_multiply(y, times, *y, s) : mlxvk_multiply(y, *y, times, s), s);
    if (c->broken == TIMES_OWNED) OK(mlxvk_array_set(&kept[1], *y), s);
    if (c->broken == SOME_ROWS) OK(mlxvk_reshape(y, *y, (int[]){ 2, c->n / 2 }, 2, s), s);
    if (c->broken == TURNED_BACK)
        OK(mlxvk_slice(y, *y, (int[]){ c->n - 1 }, 1, (int[]){ -c->n - 1 }, 1, (int[]){ -1 }, 1, s), s);
    mlxvk_array_free(times);
}

/* Samples of a case, in `drawn`, by other keys each time; the dispatches of the last time, when the window is replayed. */
static int drawn_samples(mlxvk_device d, mlxvk_stream s, const struct drawn_case *c, uint32_t *drawn, uint64_t *dispatches)
{
    mlxvk_array x = drawn_logits(c, s), number = normals((int[]){ c->broken == ROW_LESS ? c->n : 1 }, 1, c->dtype, 62, s);
    int count = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        mlxvk_array key = { 0 }, y = { 0 }, kept[2] = { { 0 }, { 0 } }, res = { 0 };
        OK_DEVICE(mlxvk_array_new_data_device(&key, (uint32_t[]){ i, 1234567 * i }, (int[]){ 2 }, 1, MLXVK_UINT32, d), d);
        if (c->broken == KEY_COMPUTED) OK(mlxvk_add(&key, key, key, s), s);
        if (c->broken == KEY_COMPUTED) OK(mlxvk_array_eval(key), s);
        OK(mlxvk_synchronize(s), s);
        mlxvk_reset_stats(d);
        scale_logits(d, s, c, x, number, (int)i, &y, kept);
        if (c->samples) OK(mlxvk_random_categorical_num_samples(&res, y, -1, c->samples, key, s), s);
        else {
            if (c->broken != SOME_ROWS) OK(mlxvk_reshape(&y, y, (int[]){ 1, c->n }, 2, s), s);
            OK(mlxvk_random_categorical(&res, y, -1, key, s), s);
        }
        mlxvk_array_free(y);
        OK(mlxvk_synchronize(s), s);
        *dispatches = stats_of(d).dispatches;
        OK(mlxvk_array_read(res, drawn + count, mlxvk_array_nbytes(res), s), s);
        count += (int)mlxvk_array_size(res);
        mlxvk_array_free(res);
        mlxvk_array_free(key);
        for (int k = 0; k < 2; k++) if (kept[k].ctx) mlxvk_array_free(kept[k]);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(number);
    return count;
}

/* The same samples, with a dispatch less for each number; one sample by the dispatch that measures its tiles, or behind. */
static void scaled_logits(void **state)
{
#define DRAWN_GATES(n) "MLX_VK_ENABLE_CHAINS=0 MLX_VK_ENABLE_REDUCE_JOIN=" n " MLX_VK_ENABLE_SCALED_CATEGORICAL="
    static const char *const gates[2][2] = { { DRAWN_GATES("2") "2", DRAWN_GATES("2") "0" }, { DRAWN_GATES("0") "2", DRAWN_GATES("0") "0" } };
    (void)state;
    for (size_t g = 0; g < COUNT(gates); g++) {
        mlxvk_device d[2];
        mlxvk_stream s[2];
        for (int k = 0; k < 2; k++) { d[k] = open_device(gates[g][k]); s[k] = open_stream(d[k]); }
        for (size_t i = 0; i < COUNT(drawn_cases); i++) {
            const struct drawn_case *c = &drawn_cases[i];
            uint32_t on[8 * DRAWS], off[8 * DRAWS];
            uint64_t fused, apart;
            int n = drawn_samples(d[0], s[0], c, on, &fused);
            assert_int_equal(n, drawn_samples(d[1], s[1], c, off, &apart));
            if (fused + (uint64_t)c->saves != apart)
                fail_msg("case %zu: %d dispatches, and %d with the fusion off", i, (int)fused, (int)apart);
            for (int k = 0; k < n; k++)
                if (on[k] != off[k] || on[k] >= (uint32_t)c->n)
                    fail_msg("case %zu: sample %d is %u fused and %u apart", i, k, on[k], off[k]);
        }
        for (int k = 0; k < 2; k++) { mlxvk_stream_free(s[k]); mlxvk_device_free(d[k]); }
    }
#undef DRAWN_GATES
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(keys),
        cmocka_unit_test(large_streams),
        cmocka_unit_test(impossible_classes), cmocka_unit_test(large_distributions),
        cmocka_unit_test(additions), cmocka_unit_test(scaled_logits),
        cmocka_unit_test(refused),
    };
    return run_group("random", tests, set_up_default, tear_down);
}
