/* Memory that the caller adopts begins anywhere: at each remainder of the device's alignment, the next time at another
 * one with the same operations, so that what was planned for the one is at hand for the other. */
#define VK_NO_PROTOTYPES
#include "support_vulkan.h"

#include <math.h>
#include <vulkan/vulkan.h>

enum { BYTES = 1 << 16, N = 100, ROUNDS = 24 };
static const mlxvk_array NONE = { NULL };

struct lender { mlxvk_device device; mlxvk_stream s; uint64_t handle; char *mapped; };

static void lender_open(struct lender *l, uint32_t alignment, const char *gates)
{
    void *mapped = NULL;
    driver = (struct driver){ .alignment = alignment };
    l->device = own_device(gates);
    l->s = open_stream(l->device);
    l->handle = own_buffer(BYTES, &mapped);
    l->mapped = mapped;
}

static void lender_close(struct lender *l)
{
    mlxvk_stream_free(l->s);
    mlxvk_device_free(l->device);
    end_own_buffer();
    end_vulkan();
}

/* An array of `count` elements over adopted memory, which begins at byte `from` of the VkBuffer, and ends with a word. */
static mlxvk_array adopt(struct lender *l, size_t from, mlxvk_dtype dtype, int count)
{
    mlxvk_buffer buffer = { NULL };
    mlxvk_array a = { NULL };
    size_t bytes = (size_t)count * bytes_of(dtype);
    bytes += (4 - (from + bytes) % 4) % 4;
    OK_DEVICE(mlxvk_buffer_adopt(&buffer, l->handle, from, bytes, l->mapped + from, l->device), l->device);
    OK_DEVICE(mlxvk_array_new_buffer(&a, buffer, &count, NULL, 1, dtype, 0), l->device);
    mlxvk_buffer_free(buffer);
    return a;
}

/* Garbage everywhere but in the elements, which are this round's. */
static void fill_floats(struct lender *l, size_t from, int round, float *values)
{
    OK(mlxvk_synchronize(l->s), l->s);
    memset(l->mapped, 0xff, BYTES);
    for (int i = 0; i < N; i++) values[i] = (float)((i * 7 + round * 3) % 23) - 11;
    memcpy(l->mapped + from, values, N * sizeof *values);
}

/* rms_norm(x * x), with the intermediate result dropped; then the sum of x's second half. */
static void norm_round(struct lender *l, size_t from, int round)
{
    float values[N], want[N], sum = 0, mean = 0;
    mlxvk_array x, y = { NULL }, z = { NULL }, part = { NULL };
    fill_floats(l, from, round, values);
    x = adopt(l, from, MLXVK_FLOAT32, N);
    for (int i = 0; i < N; i++) mean += values[i] * values[i] * values[i] * values[i] / N;
    for (int i = 0; i < N; i++) want[i] = values[i] * values[i] / sqrtf(mean + 1e-5f);
    for (int i = N / 2; i < N; i++) sum += values[i];
    OK(mlxvk_multiply(&y, x, x, l->s), l->s);
    OK(mlxvk_fast_rms_norm(&z, y, NONE, 1e-5f, l->s), l->s);
    mlxvk_array_free(y);
    OK(mlxvk_slice(&part, x, (int[]){ N / 2 }, 1, (int[]){ N }, 1, (int[]){ 1 }, 1, l->s), l->s);
    OK(mlxvk_sum(&part, part, false, l->s), l->s);
    expect_floats(z, want, N, 1e-5, 1e-5, l->s);
    expect_floats(part, &sum, 1, 1e-5, 1e-5, l->s);
    mlxvk_array_free(part);
    mlxvk_array_free(z);
    mlxvk_array_free(x);
}

/* What is written into adopted memory, from memory adopted elsewhere, is there and nothing beside it. */
static void write_round(struct lender *l, size_t from, int round)
{
    size_t to = from + 4096 + 20;
    float values[N], want[N];
    mlxvk_array x, y;
    fill_floats(l, from, round, values);
    memcpy(l->mapped + to, values, sizeof values);
    x = adopt(l, from, MLXVK_FLOAT32, N);
    y = adopt(l, to, MLXVK_FLOAT32, N);
    for (int i = 0; i < N; i++) want[i] = i < 10 ? values[i] : 2 * values[i] - (float)round;
    OK_DEVICE(mlxvk_array_eval(y), l->device);
    mlxvk_array part = { NULL }, number = floats(l->device, (float[]){ (float)round }, NULL, 0);
    OK(mlxvk_slice(&part, x, (int[]){ 10 }, 1, (int[]){ N }, 1, (int[]){ 1 }, 1, l->s), l->s);
    OK(mlxvk_subtract(&part, part, number, l->s), l->s);
    OK(mlxvk_slice_update_add(&y, y, part, (int[]){ 10 }, 1, (int[]){ N }, 1, (int[]){ 1 }, 1, l->s), l->s);
    expect_floats(y, want, N, 0, 0, l->s);
    expect_floats(x, values, N, 0, 0, l->s);
    mlxvk_array_free(part);
    mlxvk_array_free(number);
    mlxvk_array_free(y);
    OK(mlxvk_synchronize(l->s), l->s);
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal((unsigned char)l->mapped[to - 64 + i], 0xff);
        assert_int_equal((unsigned char)l->mapped[to + sizeof values + i], 0xff);
    }
    mlxvk_array_free(x);
}

/* Bytes begin at odd ones, too. */
static void byte_round(struct lender *l, size_t from, int round)
{
    size_t at = from + (size_t)round % 4;
    float want[N];
    mlxvk_array x, y = { NULL };
    OK(mlxvk_synchronize(l->s), l->s);
    memset(l->mapped, 0xff, BYTES);
    for (int i = 0; i < N; i++) l->mapped[at + (size_t)i] = (char)(i + round);
    for (int i = 0; i < N; i++) want[i] = (float)(i + round);
    x = adopt(l, at, MLXVK_UINT8, N);
    OK(mlxvk_astype(&y, x, MLXVK_FLOAT32, l->s), l->s);
    expect_floats(y, want, N, 0, 0, l->s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* Remainders of 16 and, where the device aligns to more, of that: each twice running, and each follows each of few. */
static const int remainders[ROUNDS] = { 4,  4,  4, 8, 8, 4,  20, 20, 36, 36, 4,  52,
                                        52, 20, 0, 0, 16, 16, 32, 48, 48, 12, 28, 60 };

/* As on devices that align to so many bytes: no binding begins anywhere else. */
static const uint32_t alignments[] = { 16, 64, 256 };

static void all_rounds(const char *gates, uint32_t alignment, void (*round)(struct lender *l, size_t from, int n))
{
    struct lender l;
    lender_open(&l, alignment, gates);
    for (int i = 0; i < ROUNDS; i++) round(&l, 1024 + (size_t)remainders[i], i);
    assert_true(gates || stats_of(l.device).replayed > 0);
    assert_int_equal(driver.misaligned, 0);
    lender_close(&l);
}

static void all_alignments(void (*round)(struct lender *l, size_t from, int n))
{
    for (size_t i = 0; i < COUNT(alignments); i++) all_rounds(NULL, alignments[i], round);
    all_rounds("MLX_VK_ENABLE_REPLAY=0", 64, round);
}

static void test_read(void **state) { (void)state; all_alignments(norm_round); }
static void test_written(void **state) { (void)state; all_alignments(write_round); }
static void test_bytes(void **state) { (void)state; all_alignments(byte_round); }

/* Where shaders see words alone, memory that ends within one is refused. */
static void end_round(struct lender *l, size_t from, int round)
{
    mlxvk_buffer buffer = { NULL };
    size_t bytes = 0, halves = 0;
    OK_DEVICE(mlxvk_device_info_get_size(&bytes, l->device, "storage8"), l->device);
    OK_DEVICE(mlxvk_device_info_get_size(&halves, l->device, "storage16"), l->device);
    int code = mlxvk_buffer_adopt(&buffer, l->handle, from, 8 + (size_t)(round % 4), l->mapped + from, l->device);
    assert_int_equal(code, (from + (size_t)(round % 4)) % 4 && !(bytes && halves) ? MLXVK_ERROR_ARGUMENT : 0);
    mlxvk_buffer_free(buffer);
}
static void test_ends(void **state) { (void)state; all_rounds("MLX_VK_ENABLE_REPLAY=0", 16, end_round); }

/* What a device was made with may be said by structures of all versions: it is the same device to the library. */
static void test_features_one_by_one(void **state)
{
    (void)state;
    static const char *const keys[] = { "storage8", "storage16", "int8", "int16", "int64", "float16" };
    mlxvk_adopt adopt;
    mlxvk_device whole = { NULL }, d = { NULL }, none = { NULL };
    driver = (struct driver){ 0 };
    own_vulkan(&adopt, true);
    OK_DEVICE(create_device(&whole, &(mlxvk_device_desc){ .adopt = &adopt }), whole);
    const VkPhysicalDeviceFeatures2 *said = adopt.features;
    const VkPhysicalDeviceVulkan12Features *v12 = said->pNext;
    const VkPhysicalDeviceVulkan11Features *v11 = v12->pNext;
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES, .timelineSemaphore = VK_TRUE };
    VkPhysicalDevice16BitStorageFeatures halves = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, .pNext = &timeline,
        .storageBuffer16BitAccess = v11->storageBuffer16BitAccess };
    VkPhysicalDevice8BitStorageFeatures bytes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES, .pNext = &halves,
        .storageBuffer8BitAccess = v12->storageBuffer8BitAccess };
    VkPhysicalDeviceFeatures2 parts = { .sType = said->sType, .pNext = &bytes, .features = said->features };
    adopt.features = &parts;
    OK_DEVICE(create_device(&d, &(mlxvk_device_desc){ .adopt = &adopt }), d);
    for (size_t i = 0; i < COUNT(keys); i++) {
        size_t want = 2, got = 3;
        OK_DEVICE(mlxvk_device_info_get_size(&want, whole, keys[i]), whole);
        OK_DEVICE(mlxvk_device_info_get_size(&got, d, keys[i]), d);
        assert_int_equal(got, want);
    }
    timeline.timelineSemaphore = VK_FALSE;
    assert_int_equal(create_device(&none, &(mlxvk_device_desc){ .adopt = &adopt }), MLXVK_ERROR_NO_DEVICE);
    mlxvk_device_free(d);
    mlxvk_device_free(whole);
    end_vulkan();
}

/* No VkBuffer, and an end that cannot be counted to, are refused, and count as no memory. */
static void test_nothing(void **state)
{
    (void)state;
    struct lender l;
    size_t before, after;
    mlxvk_buffer buffer = { NULL };
    lender_open(&l, 0, NULL);
    OK_DEVICE(mlxvk_device_get_active_memory(&before, l.device), l.device);
    assert_int_equal(mlxvk_buffer_adopt(&buffer, 0, 0, 64, NULL, l.device), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_buffer_adopt(&buffer, l.handle, 64, SIZE_MAX - 63, NULL, l.device), MLXVK_ERROR_ARGUMENT);
    assert_null(buffer.ctx);
    OK_DEVICE(mlxvk_device_get_active_memory(&after, l.device), l.device);
    assert_int_equal(after, before);
    lender_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_read), cmocka_unit_test(test_written),
                                        cmocka_unit_test(test_bytes), cmocka_unit_test(test_ends),
                                        cmocka_unit_test(test_nothing),
                                        cmocka_unit_test(test_features_one_by_one) };
    return run_group("adopted", tests, NULL, NULL);
}
