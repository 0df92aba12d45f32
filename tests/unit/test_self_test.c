/* What a driver that nobody knows is asked to compute before it is believed: one whose kernels of a class do nothing
 * loses them. */
#include <stdlib.h>
#include "support_vulkan.h"

static size_t has(mlxvk_device d, const char *capability)
{
    size_t value = 9;
    OK_DEVICE(mlxvk_device_info_get_size(&value, d, capability), d);
    return value;
}

/* Sums of 5 rows of 0 to 99, three times, which go through bytes and float16. */
static bool computes(mlxvk_device d)
{
    enum { ROWS = 5, COLUMNS = 300 };
    float x[ROWS * COLUMNS], got[ROWS] = { 0 };
    bool right = true;
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = { NULL }, ones = { NULL };
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i % 100);
    OK_DEVICE(mlxvk_array_new_data_device(&a, x, (int[]){ ROWS, COLUMNS }, 2, MLXVK_FLOAT32, d), d);
    const mlxvk_dtype through[] = { MLXVK_UINT8, MLXVK_FLOAT16, MLXVK_FLOAT32 };
    for (size_t i = 0; i < COUNT(through); i++) {
        OK(mlxvk_astype(&a, a, through[i], s), s);
        OK(mlxvk_array_eval(a), s);
    }
    OK(mlxvk_ones(&ones, (int[]){ 1, COLUMNS }, 2, MLXVK_FLOAT32, s), s);
    OK(mlxvk_transpose(&a, a, s), s);
    OK(mlxvk_matmul(&a, ones, a, s), s);
    OK(mlxvk_array_read(a, got, sizeof got, s), s);
    for (int i = 0; i < ROWS; i++) right = right && got[i] == 3 * 4950;
    mlxvk_array_free(a);
    mlxvk_array_free(ones);
    mlxvk_stream_free(s);
    return right;
}

/* Kernels with a capability do nothing: tried, they are not used, and what they were for is right. Without being tried
 * they are used, and it is wrong. needed: by computes(). */
static void test_self_test(void **state)
{
    (void)state;
    static const struct { const char *capability; uint32_t spirv; bool needed; } classes[] = {
        { "storage8", 4448, true }, { "storage16", 4433, true }, { "subgroup", 63, false } };
    for (size_t i = 0; i < COUNT(classes); i++) {
        driver = (struct driver){ .broken = classes[i].spirv };
        mlxvk_device d = own_device("MLX_VK_SELF_TEST=0");
        size_t had[COUNT(classes)];
        for (size_t k = 0; k < COUNT(classes); k++) had[k] = has(d, classes[k].capability);
        if (!had[i]) { mlxvk_device_free(d); end_vulkan(); continue; }
        if (classes[i].needed && computes(d))
            fail_msg("kernels with %s do nothing, and nobody misses them", classes[i].capability);
        mlxvk_device_free(d);
        end_vulkan();
        d = own_device("MLX_VK_SELF_TEST=2");
        for (size_t k = 0; k < COUNT(classes); k++)
            if (has(d, classes[k].capability) != (k != i && had[k]))
                fail_msg("%s is broken, and %s is %zu", classes[i].capability, classes[k].capability,
                         has(d, classes[k].capability));
        assert_true(computes(d));
        mlxvk_device_free(d);
        end_vulkan();
    }
    driver = (struct driver){ 0 };
}

/* ---- what was found out, kept with the pipeline cache ---- */

struct kept { unsigned char *data; size_t size; };

/* In memory of just its size, so that sanitizers see what reads beyond. */
static struct kept kept_by(mlxvk_device d)
{
    struct kept k = { NULL, 0 };
    OK_DEVICE(mlxvk_pipeline_cache_data(d, NULL, &k.size), d);
    assert_non_null(k.data = malloc(k.size));
    OK_DEVICE(mlxvk_pipeline_cache_data(d, k.data, &k.size), d);
    return k;
}

/* Another device with the same handles. */
static mlxvk_device device_with(mlxvk_adopt *a, const unsigned char *data, size_t size, const char *gates)
{
    mlxvk_device d = { NULL };
    mlxvk_error error = { 0 };
    const mlxvk_device_desc desc = { .adopt = a, .gates = gates, .pipeline_cache = data, .pipeline_cache_size = size,
                                     .error = &error };
    driver.dispatches = 0;
    driver.cache_given = SIZE_MAX;
    a->get_instance_proc_addr = failing_driver();
    if (create_device(&d, &desc)) fail_msg("%s", error.text);
    return d;
}

/* A driver whose kernels with subgroup operations do nothing: what is kept of it, and then it does all again. false: it
 * has none. */
static bool found_broken(mlxvk_adopt *a, mlxvk_device *found)
{
    driver = (struct driver){ .broken = 63, .own_cache = true };
    own_vulkan(a, true);
    *found = device_with(a, NULL, 0, "MLX_VK_SELF_TEST=0");
    bool had = has(*found, "subgroup");
    mlxvk_device_free(*found);
    if (!had) { end_vulkan(); driver = (struct driver){ 0 }; return false; }
    *found = device_with(a, NULL, 0, "MLX_VK_SELF_TEST=2");
    assert_int_equal(has(*found, "subgroup"), 0);
    assert_true(driver.dispatches > 0);
    driver.broken = 0;
    return true;
}

static void end_found(mlxvk_device found)
{
    mlxvk_device_free(found);
    end_vulkan();
    driver = (struct driver){ 0 };
}

/* However much or little the driver has to be kept: its header has 32 bytes, but lavapipe of Mesa 26.2 gives 20. */
static void test_kept(void **state)
{
    (void)state;
    static const size_t sizes[] = { 0, 1, 4, 15, 16, 20, 31, 32, 33, 100, 1 << 20 };
    mlxvk_adopt a;
    mlxvk_device found = { NULL };
    if (!found_broken(&a, &found)) skip();
    for (size_t i = 0; i < COUNT(sizes); i++) {
        driver.cache_bytes = sizes[i];
        struct kept k = kept_by(found);
        mlxvk_device again = device_with(&a, k.data, k.size, "MLX_VK_SELF_TEST=2");
        if (has(again, "subgroup") || driver.dispatches)
            fail_msg("%zu bytes of the driver's: tried again, by %d dispatches", sizes[i], driver.dispatches);
        assert_true(driver.cache_given == sizes[i] && !driver.cache_wrong);
        struct kept then = kept_by(again);           /* and on to the next process */
        assert_int_equal(then.size, k.size);
        assert_memory_equal(then.data, k.data, k.size);
        mlxvk_device_free(again);
        free(then.data);
        free(k.data);
    }
    end_found(found);
}

/* The driver's own bytes, whatever they are. */
static void test_kept_by_driver(void **state)
{
    (void)state;
    mlxvk_adopt a;
    mlxvk_device found = { NULL };
    if (!found_broken(&a, &found)) skip();
    driver.own_cache = false;
    struct kept k = kept_by(found);
    mlxvk_device again = device_with(&a, k.data, k.size, "MLX_VK_SELF_TEST=2");
    assert_int_equal(has(again, "subgroup"), 0);
    assert_int_equal(driver.dispatches, 0);
    mlxvk_device_free(again);
    free(k.data);
    end_found(found);
}

/* A device made with these bytes must know nothing, and the driver must see none of them. */
static void expect_ignored(mlxvk_adopt *a, const unsigned char *data, size_t size, const struct kept *nothing)
{
    unsigned char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    mlxvk_device d = device_with(a, copy, size, "MLX_VK_SELF_TEST=0");
    if (driver.cache_given) fail_msg("of %zu bytes the driver was given %zu", size, driver.cache_given);
    struct kept k = kept_by(d);
    assert_int_equal(k.size, nothing->size);
    assert_memory_equal(k.data, nothing->data, k.size);
    mlxvk_device_free(d);
    free(copy);
    free(k.data);
}

/* A file that was cut anywhere, is longer than it was, or has another byte somewhere. */
static void test_kept_damaged(void **state)
{
    (void)state;
    static const size_t sizes[] = { 0, 20, 48 };
    mlxvk_adopt a;
    mlxvk_device found = { NULL };
    if (!found_broken(&a, &found)) skip();
    for (size_t i = 0; i < COUNT(sizes); i++) {
        driver.cache_bytes = sizes[i];
        mlxvk_device ignorant = device_with(&a, NULL, 0, "MLX_VK_SELF_TEST=0");
        struct kept k = kept_by(found), nothing = kept_by(ignorant);
        unsigned char *longer = calloc(1, k.size + 1);
        assert_int_equal(k.size, nothing.size);
        assert_memory_not_equal(k.data, nothing.data, k.size);
        for (size_t n = 0; n < k.size; n++) expect_ignored(&a, k.data, n, &nothing);
        for (size_t n = 1; n < k.size; n++) expect_ignored(&a, k.data + n, k.size - n, &nothing);
        for (size_t n = 0; n < k.size; n++) {
            k.data[n] ^= (unsigned char)(1 << n % 8);
            expect_ignored(&a, k.data, k.size, &nothing);
            k.data[n] ^= (unsigned char)(1 << n % 8);
        }
        assert_non_null(longer);
        memcpy(longer, k.data, k.size);
        expect_ignored(&a, longer, k.size + 1, &nothing);
        memcpy(longer + 1, k.data, k.size);
        expect_ignored(&a, longer, k.size + 1, &nothing);
        mlxvk_device_free(ignorant);
        free(k.data);
        free(nothing.data);
        free(longer);
    }
    end_found(found);
}

/* After an update the driver is asked again, and computes right; its bytes are its own to judge. Nor does it matter
 * that it takes none. */
static void test_kept_of_others(void **state)
{
    (void)state;
    mlxvk_adopt a;
    mlxvk_device found = { NULL };
    if (!found_broken(&a, &found)) skip();
    driver.cache_bytes = 40;
    struct kept k = kept_by(found);
    driver.updated = true;
    mlxvk_device d = device_with(&a, k.data, k.size, "MLX_VK_SELF_TEST=2");
    assert_true(driver.dispatches > 0 && driver.cache_given == 40 && !driver.cache_wrong);
    assert_int_equal(has(d, "subgroup"), 1);
    mlxvk_device_free(d);
    driver.updated = false;
    driver.refuses_cache = true;
    d = device_with(&a, k.data, k.size, "MLX_VK_SELF_TEST=2");
    assert_true(!driver.dispatches && !driver.cache_given && !has(d, "subgroup"));
    assert_true(computes(d));
    mlxvk_device_free(d);
    free(k.data);
    end_found(found);
}

/* Less room than is needed is an error, and nothing is written beyond it. */
static void test_kept_room(void **state)
{
    (void)state;
    static const size_t sizes[] = { 0, 20, 48 };
    driver = (struct driver){ .own_cache = true };
    mlxvk_device d = own_device("MLX_VK_SELF_TEST=0");
    for (size_t i = 0; i < COUNT(sizes); i++) {
        driver.cache_bytes = sizes[i];
        struct kept k = kept_by(d);
        for (size_t room = 0; room <= k.size; room++) {
            size_t size = room;
            unsigned char *data = malloc(k.size + 8);
            assert_non_null(data);
            memset(data, 0xA5, k.size + 8);
            assert_int_equal(mlxvk_pipeline_cache_data(d, data, &size), room < k.size ? MLXVK_ERROR_ARGUMENT : 0);
            for (size_t n = room; n < k.size + 8; n++) assert_int_equal(data[n], 0xA5);
            if (room == k.size) assert_memory_equal(data, k.data, k.size);
            free(data);
        }
        free(k.data);
    }
    end_found(d);
}

/* A known driver is not tried, and one that computes right keeps all it has. What has none of these has nothing to be tried. */
static void test_self_test_right(void **state)
{
    (void)state;
    driver = (struct driver){ 0 };
    mlxvk_device d = own_device("MLX_VK_SELF_TEST=0");
    size_t all = has(d, "storage8") + 2 * has(d, "storage16") + 4 * has(d, "subgroup");
    assert_int_equal(driver.dispatches, 0);
    mlxvk_device_free(d);
    end_vulkan();
    d = own_device("MLX_VK_SELF_TEST=2");
    if (all) assert_true(driver.dispatches > (all == 7 ? 4 : 0));
    assert_int_equal(has(d, "storage8") + 2 * has(d, "storage16") + 4 * has(d, "subgroup"), all);
    mlxvk_device_free(d);
    end_vulkan();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self_test),      cmocka_unit_test(test_kept),
        cmocka_unit_test(test_kept_by_driver), cmocka_unit_test(test_kept_damaged),
        cmocka_unit_test(test_kept_of_others), cmocka_unit_test(test_kept_room),
        cmocka_unit_test(test_self_test_right),
    };
    return run_group("self-test", tests, NULL, NULL);
}
