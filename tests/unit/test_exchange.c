/* Collectives of devices that share memory: two devices of this process, each a rank, which import the same pages. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include "support.h"

enum { RANKS = 2, COUNTED = 32, CONTROL = 32 };

static struct rank { mlxvk_device device; mlxvk_stream stream; mlxvk_buffer buffer; mlxvk_ranks with; } ranks[RANKS];
static uint32_t *words;

static size_t info_of(const char *key)
{
    size_t value = 0;
    OK_DEVICE(mlxvk_device_info_get_size(&value, device, key), device);
    return value;
}

/* Where a device can import the host's memory, and is a CPU or one that was seen to exchange parts. */
static bool able(void)
{
    const char *type = "";
    OK_DEVICE(mlxvk_device_info_get_string(&type, device, "type"), device);
    return info_of("memory_import_alignment") && info_of("int64") && (info_of("exchanges") || !strcmp(type, "cpu"));
}

static int open_ranks(void **state)
{
    void *pages = NULL;
    if (set_up(state)) return -1;
    if (!able()) return 0;
    const size_t align = info_of("memory_import_alignment"), size = mlxvk_exchange_words(RANKS) * 4;
    const size_t bytes = (size + align - 1) / align * align;
    const uint32_t zeros[COUNTED] = { 0 };
    if (posix_memalign(&pages, align, bytes)) return -1;
    memset(pages, 0, bytes);
    for (int r = 0; r < RANKS; r++) {
        struct rank *k = &ranks[r];
        k->device = r ? open_new_device(NULL) : open_device(NULL);
        k->stream = open_stream(k->device);
        if (mlxvk_buffer_import(&k->buffer, MLXVK_MEMORY_HOST, (uintptr_t)pages, bytes, k->device)) return 0;
        k->with.rank = r;
        k->with.ranks = RANKS;
        OK_DEVICE(mlxvk_array_new_buffer(&k->with.memory, k->buffer, (int[]){ (int)(size / 4) }, NULL, 1,
                                         MLXVK_UINT32, 0), k->device);
        k->with.count = array_of(k->device, MLXVK_UINT32, zeros, (int[]){ COUNTED }, 1);
    }
    words = pages;
    return 0;
}

static int close_ranks(void **state)
{
    for (int r = 0; r < RANKS; r++) {
        struct rank *k = &ranks[r];
        if (!k->device.ctx) continue;
        mlxvk_array_free(k->with.memory);
        mlxvk_array_free(k->with.count);
        mlxvk_buffer_free(k->buffer);
        mlxvk_stream_free(k->stream);
        mlxvk_device_free(k->device);
    }
    free(words);
    return tear_down(state);
}

static const mlxvk_dtype dtypes[] = { MLXVK_BOOL, MLXVK_UINT8, MLXVK_INT16, MLXVK_UINT32, MLXVK_INT64, MLXVK_UINT64,
                                      MLXVK_FLOAT16, MLXVK_BFLOAT16, MLXVK_FLOAT32, MLXVK_COMPLEX64 };

/* Random bits, infinities and NaN among them; from element `skip` of an array on, so that parts begin anywhere. */
static mlxvk_array part_of(struct rank *k, mlxvk_dtype dtype, int count, int skip, uint32_t seed)
{
    static uint8_t bytes[MLXVK_EXCHANGE_MOST + 64];
    const int whole = count + skip, end = whole, step = 1;
    struct rng r = { seed };
    mlxvk_array all, a = { NULL };
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)random_bits(&r) & (dtype == MLXVK_BOOL ? 1 : 255);
    all = array_of(k->device, dtype, bytes, &whole, 1);
    OK(mlxvk_slice(&a, all, &skip, 1, &end, 1, &step, 1, k->stream), k->stream);
    mlxvk_array_free(all);
    return a;
}

/* What rank k wants of both parts by other operations, on its own device. */
static mlxvk_array wanted(struct rank *k, mlxvk_exchange_op op, mlxvk_array a, mlxvk_array b)
{
    static int (*const functions[])(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream) = {
        [MLXVK_EXCHANGE_SUM] = mlxvk_add, [MLXVK_EXCHANGE_MAX] = mlxvk_maximum, [MLXVK_EXCHANGE_MIN] = mlxvk_minimum };
    mlxvk_array y = { NULL };
    if (op == MLXVK_EXCHANGE_GATHER) {
        mlxvk_vector_array both = mlxvk_vector_array_new();
        mlxvk_vector_array_append_value(both, a);
        mlxvk_vector_array_append_value(both, b);
        OK(mlxvk_concatenate(&y, both, k->stream), k->stream);
        mlxvk_vector_array_free(both);
    } else OK(functions[op](&y, a, b, k->stream), k->stream);
    return y;
}

/* Bit for bit, but for which NaN it is. */
static void same(struct rank *k, mlxvk_array got, mlxvk_array want, mlxvk_dtype dtype, int op, int count)
{
    mlxvk_array equal = { NULL };
    bool is = false;
    OK(mlxvk_array_equal(&equal, got, want, true, k->stream), k->stream);
    OK(mlxvk_array_item_bool(&is, equal), k->stream);
    if (!is) fail_msg("rank %d: operation %d of %d %s", k->with.rank, op, count, mlxvk_dtype_name(dtype));
    mlxvk_array_free(equal);
}

/* Both ranks', submitted one after the other: the first one waits for the second. */
static void exchange(mlxvk_dtype dtype, mlxvk_exchange_op op, int count, int skip, int first)
{
    mlxvk_array own[RANKS][RANKS], got[RANKS] = { { NULL } };
    for (int i = 0; i < RANKS; i++) {
        const int r = first ^ i;
        struct rank *k = &ranks[r];
        for (int of = 0; of < RANKS; of++) own[r][of] = part_of(k, dtype, count, skip, (uint32_t)(count + of));
        OK(mlxvk_exchange(&got[r], own[r][r], op, &k->with, k->stream), k->stream);
        OK(mlxvk_finalize(k->stream), k->stream);
    }
    for (int r = 0; r < RANKS; r++) {
        mlxvk_array want = wanted(&ranks[r], op, own[r][0], own[r][1]);
        same(&ranks[r], got[r], want, dtype, (int)op, count);
        mlxvk_array_free(want);
        mlxvk_array_free(got[r]);
        for (int of = 0; of < RANKS; of++) mlxvk_array_free(own[r][of]);
    }
}

static void test_parts(void **state)
{
    static const int counts[] = { 1, 3, 13, 1031, 4099 };
    (void)state;
    if (!words) skip();
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (int op = MLXVK_EXCHANGE_GATHER; op <= MLXVK_EXCHANGE_MIN; op++)
            for (size_t i = 0; i < COUNT(counts); i++)
                exchange(dtypes[d], (mlxvk_exchange_op)op, counts[i], (int)(i + d) % 4, (int)(i & 1));
    exchange(MLXVK_UINT8, MLXVK_EXCHANGE_SUM, MLXVK_EXCHANGE_MOST, 0, 0);
    exchange(MLXVK_BFLOAT16, MLXVK_EXCHANGE_SUM, MLXVK_EXCHANGE_MOST / 2, 1, 1);
    exchange(MLXVK_COMPLEX64, MLXVK_EXCHANGE_GATHER, MLXVK_EXCHANGE_MOST / 8, 0, 0);
}

/* Many in a row, each of the last one's result, as windows that come again and are recorded. (Few at a time: this
 * thread records for both, and must not wait for room.) */
static void test_in_a_row(void **state)
{
    enum { N = 1000, STEPS = 20, TIMES = 20 };
    mlxvk_array x[RANKS], half[RANKS];
    static float want[N], from[RANKS][N];
    (void)state;
    if (!words) skip();
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < N; i++) from[r][i] = (float)((i * 7 + r * 3) % 64);
        x[r] = floats(ranks[r].device, from[r], (int[]){ N }, 1);
        half[r] = floats(ranks[r].device, (float[]){ 0.5f }, (int[]){ 1 }, 1);
    }
    for (int i = 0; i < N; i++) want[i] = (from[0][i] + from[1][i]) / 2;
    for (int time = 0; time < TIMES; time++)
        for (int r = 0; r < RANKS; r++) {
            struct rank *k = &ranks[r];
            for (int i = 0; i < STEPS; i++) {
                OK(mlxvk_exchange(&x[r], x[r], MLXVK_EXCHANGE_SUM, &k->with, k->stream), k->stream);
                OK(mlxvk_multiply(&x[r], x[r], half[r], k->stream), k->stream);
            }
            OK(mlxvk_finalize(k->stream), k->stream);
        }
    for (int r = 0; r < RANKS; r++) {
        expect_floats(x[r], want, N, 0, 0, ranks[r].stream);
        mlxvk_array_free(x[r]);
        mlxvk_array_free(half[r]);
    }
}

static void test_refused(void **state)
{
    (void)state;
    if (!words) skip();
    struct rank *k = &ranks[0];
    mlxvk_array x = counting(k->device, 5), long_one = counting(k->device, MLXVK_EXCHANGE_MOST / 4 + 1), y = { NULL };
    mlxvk_ranks with = k->with;
    const mlxvk_exchange_op sum = MLXVK_EXCHANGE_SUM;
    mlxvk_stream s = k->stream;
    REFUSED(mlxvk_exchange(&y, x, sum, NULL, s), MLXVK_ERROR_ARGUMENT, s, "with is NULL");
    REFUSED(mlxvk_exchange(&y, x, (mlxvk_exchange_op)4, &with, s), MLXVK_ERROR_ARGUMENT, s, "4");
    REFUSED(mlxvk_exchange(&y, long_one, sum, &with, s), MLXVK_ERROR_LIMIT, s, "65536");
    with.rank = 2;
    REFUSED(mlxvk_exchange(&y, x, sum, &with, s), MLXVK_ERROR_ARGUMENT, s, "rank 2 of 2");
    with = (mlxvk_ranks){ k->with.memory, k->with.count, 0, 3 };
    REFUSED(mlxvk_exchange(&y, x, sum, &with, s), MLXVK_ERROR_ARGUMENT, s, "memory");
    with = (mlxvk_ranks){ k->with.memory, x, 0, 2 };
    REFUSED(mlxvk_exchange(&y, x, sum, &with, s), MLXVK_ERROR_ARGUMENT, s, "count");
    mlxvk_array_free(x);
    mlxvk_array_free(long_one);
}

/* The other one never comes: the host says so, and the work ends. Last: the ranks are apart from then on. */
static void test_stopped(void **state)
{
    (void)state;
    if (!words) skip();
    struct rank *k = &ranks[1];
    volatile uint32_t *own = words + CONTROL * k->with.rank;
    const uint32_t before = own[0];
    mlxvk_array x = counting(k->device, 5), y = { NULL };
    assert_int_equal(own[2], 0);
    OK(mlxvk_exchange(&y, x, MLXVK_EXCHANGE_SUM, &k->with, k->stream), k->stream);
    OK(mlxvk_finalize(k->stream), k->stream);
    own[1] = 1;
    OK(mlxvk_synchronize(k->stream), k->stream);
    assert_int_equal(own[0], before + 1);
    assert_int_equal(own[2], 1);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts), cmocka_unit_test(test_in_a_row), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stopped),
    };
    return run_group("exchange", tests, open_ranks, close_ranks);
}
