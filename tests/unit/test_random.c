/* The generator's known answers, where keys come from, streams larger than a binding, and what sampling must never pick. */
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

/* One distribution whose logits are larger than a binding, dense and as every other element: the same samples. */
static void large_distributions(void **state)
{
    enum { CLASSES = 20001, SAMPLES = 500 };
    static uint32_t got[2][2][SAMPLES];
    float *logits = malloc(2 * CLASSES * sizeof *logits);
    (void)state;
    assert_non_null(logits);
    for (int i = 0; i < 2 * CLASSES; i++) logits[i] = (float)(i * 37 % 101) / 16;
    for (int small = 0; small < 2; small++) {
        struct setting t = start(small ? "MLX_VK_MAX_BINDING_RANGE=20000" : NULL);
        mlxvk_array key = ints(t.device, (int32_t[]){ 3, 4 }, (int[]){ 2 }, 1), x, res = { NULL };
        OK(mlxvk_astype(&key, key, MLXVK_UINT32, t.stream), t.stream);
        x = floats(t.device, logits, (int[]){ 1, 2 * CLASSES }, 2);
        for (int odd = 0; odd < 2; odd++) {
            const int from[] = { 0, 1 }, to[] = { 1, 2 * CLASSES }, step[] = { 1, 2 };
            if (odd) OK(mlxvk_slice(&x, x, from, 2, to, 2, step, 2, t.stream), t.stream);
            OK(mlxvk_random_categorical_num_samples(&res, x, -1, SAMPLES, key, t.stream), t.stream);
            OK(mlxvk_array_read(res, got[small][odd], sizeof got[0][0], t.stream), t.stream);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(keys),
        cmocka_unit_test(large_streams),
        cmocka_unit_test(impossible_classes), cmocka_unit_test(large_distributions),
        cmocka_unit_test(additions),
        cmocka_unit_test(refused),
    };
    return run_group("random", tests, set_up_default, tear_down);
}
