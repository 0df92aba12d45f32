/* Devices with less: each capability switched off by its gate. Operations give the same bits; a program's own kernel that
 * needs the capability is refused by its name; and subgroups of other sizes where the device lets one choose. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <stdio.h>

/* capability: its key in device_info. declared: what SPIR-V calls it. type: the width of an integer, or of a float with 1 << 8,
 * that a kernel of one's own declares and that cannot be emulated. */
static const struct profile { const char *capability, *gates; uint32_t declared, type; } profiles[] = {
    { "storage8", "MLX_VK_ENABLE_STORAGE8=0", 4448, 8 },
    { "storage16", "MLX_VK_ENABLE_STORAGE16=0", 4433, 16 | 1 << 8 },
    { "int8", "MLX_VK_ENABLE_INT8=0", 39, 0 },
    { "int16", "MLX_VK_ENABLE_INT16=0", 22, 0 },
    { "int64", "MLX_VK_ENABLE_INT64=0", 11, 0 },
    { "float16", "MLX_VK_ENABLE_FLOAT16=0", 9, 0 },
    { "half_conversion", "MLX_VK_ENABLE_HALF_CONVERSION=0", 0, 0 },
    { "subgroup", "MLX_VK_ENABLE_SUBGROUP=0", 61, 0 },
    { "cooperative_matrix", "MLX_VK_ENABLE_COOPERATIVE_MATRIX=0", 6022, 0 },
    { "integer_dot_product", "MLX_VK_ENABLE_INTEGER_DOT=0", 6019, 0 },
    { "push_descriptor", "MLX_VK_ENABLE_PUSH_DESCRIPTORS=0", 0, 0 },
};
static const char all_off[] =
    "MLX_VK_ENABLE_STORAGE8=0 MLX_VK_ENABLE_STORAGE16=0 MLX_VK_ENABLE_INT8=0 MLX_VK_ENABLE_INT16=0 MLX_VK_ENABLE_INT64=0 "
    "MLX_VK_ENABLE_FLOAT16=0 MLX_VK_ENABLE_SUBGROUP=0 MLX_VK_ENABLE_COOPERATIVE_MATRIX=0 MLX_VK_ENABLE_INTEGER_DOT=0 "
    "MLX_VK_ENABLE_PUSH_DESCRIPTORS=0 MLX_VK_ENABLE_HALF_CONVERSION=0";

static size_t info(mlxvk_device d, const char *key)
{
    size_t value = 99;
    OK_DEVICE(mlxvk_device_info_get_size(&value, d, key), d);
    return value;
}

static void test_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(profiles); i++) {
        mlxvk_device d = open_device(profiles[i].gates);
        assert_int_equal(info(d, profiles[i].capability), 0);
        mlxvk_device_free(d);
    }
}

/* ---- operations: the same bits ---- */

enum { RESULT_BYTES = 1 << 16 };
struct results { size_t used; uint8_t bytes[RESULT_BYTES]; };

static void keep(struct results *r, mlxvk_array a, mlxvk_stream s)
{
    size_t size = mlxvk_array_nbytes(a);
    assert_true(r->used + size <= RESULT_BYTES);
    OK(mlxvk_array_read(a, r->bytes + r->used, size, s), s);
    r->used += size;
    mlxvk_array_free(a);
}

/* Odd sizes, so that elements of several rows, threads and operands share words. */
static void work(struct results *r, mlxvk_dtype dtype, mlxvk_stream s)
{
    mlxvk_array x = { NULL }, y = { NULL }, z = { NULL }, at = { NULL };
    mlxvk_vector_array both = mlxvk_vector_array_new();
    bool real = dtype == MLXVK_FLOAT16 || dtype == MLXVK_BFLOAT16;
    OK(mlxvk_arange(&x, 0, 7 * 13, 1, MLXVK_INT32, s), s);
    OK(mlxvk_multiply(&x, x, x, s), s);
    OK(mlxvk_reshape(&x, x, (int[]){ 7, 13 }, 2, s), s);
    OK(mlxvk_astype(&x, x, dtype, s), s);
    OK(mlxvk_transpose(&y, x, s), s);
    OK(mlxvk_add(&z, y, y, s), s);                                               /* rows of 7 */
    keep(r, z, s), z.ctx = NULL;
    OK(mlxvk_slice(&y, x, (int[]){ 1, 1 }, 2, (int[]){ 7, 12 }, 2, (int[]){ 2, 3 }, 2, s), s);
    OK(mlxvk_multiply(&z, y, y, s), s);
    OK(mlxvk_slice_update(&y, x, z, (int[]){ 0, 0 }, 2, (int[]){ 6, 12 }, 2, (int[]){ 2, 3 }, 2, s), s);   /* every third */
    keep(r, z, s), z.ctx = NULL;
    mlxvk_vector_array_append_value(both, x);
    mlxvk_vector_array_append_value(both, y);
    OK(mlxvk_concatenate_axis(&z, both, 1, s), s);
    keep(r, z, s), z.ctx = NULL;
    OK(mlxvk_array_new_data_device(&at, (int32_t[]){ 5, 0, 5, -1 }, (int[]){ 4 }, 1, MLXVK_INT32, mlxvk_stream_device(s)), s);
    OK(mlxvk_take_axis(&z, x, at, 0, s), s);
    keep(r, z, s), z.ctx = NULL;
    OK(mlxvk_max_axis(&z, y, 1, false, s), s);
    keep(r, z, s), z.ctx = NULL;
    OK(mlxvk_sort_axis(&z, y, 1, s), s);
    keep(r, z, s), z.ctx = NULL;
    OK(mlxvk_cumsum(&z, x, 1, false, true, s), s);
    keep(r, z, s), z.ctx = NULL;
    OK(mlxvk_greater(&z, x, y, s), s);
    OK(mlxvk_where(&z, z, x, y, s), s);
    keep(r, z, s), z.ctx = NULL;
    if (real) OK(mlxvk_softmax_axis(&z, x, 1, true, s), s);
    else OK(mlxvk_floor_divide(&z, y, x, s), s);
    keep(r, z, s);
    mlxvk_vector_array_free(both);
    mlxvk_array_free(at);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

static void work_of(struct results *r, const char *gates)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_UINT8, MLXVK_INT8, MLXVK_INT16, MLXVK_FLOAT16, MLXVK_BFLOAT16, MLXVK_UINT64, MLXVK_INT64 };
    mlxvk_device d = open_device(gates);
    mlxvk_stream s = open_stream(d);
    r->used = 0;
    for (size_t i = 0; i < COUNT(dtypes); i++) work(r, dtypes[i], s);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

static void test_same_bits(void **state)
{
    (void)state;
    static const char *const gates[] = { "MLX_VK_ENABLE_STORAGE8=0", "MLX_VK_ENABLE_STORAGE16=0", all_off };
    static struct results want, got;
    work_of(&want, NULL);
    assert_true(want.used > 5000);
    for (size_t i = 0; i < COUNT(gates); i++) {
        work_of(&got, gates[i]);
        assert_int_equal(got.used, want.used);
        for (size_t k = 0; k < want.used; k++)
            if (got.bytes[k] != want.bytes[k]) fail_msg("%s: byte %zu is %u, not %u", gates[i], k, got.bytes[k], want.bytes[k]);
    }
}

/* 64-bit integers against C's, over the edges of words and signs. */
static void test_wide_numbers(void **state)
{
    (void)state;
    static const int64_t edges[] = { 0, 1, -1, 2, -2, 3, 7, -7, 10, 0xffffffff, 0x100000000, -0x100000000, 0x100000001, 0x7fffffff,
                                     -0x80000000LL, 0x123456789abcdef, -0x123456789abcdef, INT64_MAX, INT64_MIN, INT64_MIN + 1 };
    enum { N = COUNT(edges) };
    mlxvk_device d = open_device("MLX_VK_ENABLE_INT64=0");
    mlxvk_stream s = open_stream(d);
    mlxvk_array a = { NULL }, b = { NULL }, z = { NULL };
    int64_t quotient[N * N], rest[N * N], product[N * N], unsigned_quotient[N * N];
    OK(mlxvk_array_new_data_device(&a, edges, (int[]){ N, 1 }, 2, MLXVK_INT64, d), s);
    OK(mlxvk_array_new_data_device(&b, edges, (int[]){ 1, N }, 2, MLXVK_INT64, d), s);
    OK(mlxvk_floor_divide(&z, a, b, s), s);
    OK(mlxvk_array_read(z, quotient, sizeof quotient, s), s);
    OK(mlxvk_remainder(&z, a, b, s), s);
    OK(mlxvk_array_read(z, rest, sizeof rest, s), s);
    OK(mlxvk_multiply(&z, a, b, s), s);
    OK(mlxvk_array_read(z, product, sizeof product, s), s);
    OK(mlxvk_view(&a, a, MLXVK_UINT64, s), s);
    OK(mlxvk_view(&b, b, MLXVK_UINT64, s), s);
    OK(mlxvk_floor_divide(&z, a, b, s), s);
    OK(mlxvk_array_read(z, unsigned_quotient, sizeof unsigned_quotient, s), s);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            int64_t x = edges[i], y = edges[k], q = 0, r = y ? 0 : x;
            assert_int_equal(product[i * N + k], (int64_t)((uint64_t)x * (uint64_t)y));
            if (y == -1) q = (int64_t)(0 - (uint64_t)x);
            else if (y) {
                q = x / y;
                r = x % y;
                if (r && (r < 0) != (y < 0)) { q--; r += y; }
            }
            if (quotient[i * N + k] != q || rest[i * N + k] != r)
                fail_msg("%lld by %lld: %lld, rest %lld", (long long)x, (long long)y, (long long)quotient[i * N + k], (long long)rest[i * N + k]);
            if (y) assert_int_equal(unsigned_quotient[i * N + k], (int64_t)((uint64_t)x / (uint64_t)y));
        }
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(z);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* ---- kernels of one's own ---- */

/* A kernel that does nothing, but declares a capability and the type 5. */
static int make_kernel(mlxvk_device d, const struct profile *p)
{
#define WORDS(count, op) ((count) << 16 | (op))
    const uint32_t real = p->type & 1 << 8 || !p->type, width = p->type ? p->type & 0xff : 32;
    const uint32_t spirv[] = {
        0x07230203, 0x00010500, 0, 7, 0, WORDS(2, 17), 1 /* Shader */, WORDS(2, 17), p->declared, WORDS(3, 14), 0, 1,
        WORDS(5, 15), 5, 1, 0x6e69616d /* main */, 0, WORDS(6, 16), 1, 17, 1, 1, 1, WORDS(2, 19), 2, WORDS(3, 33), 3, 2,
        real ? WORDS(3, 22) : WORDS(4, 21), 5, width, real ? WORDS(3, 29) : 1, real ? 6 : WORDS(2, 20), real ? 5 : 6, WORDS(5, 54), 2, 1, 0, 3, WORDS(2, 248), 4, WORDS(1, 253), WORDS(1, 56),
    };
    mlxvk_kernel k = { NULL };
    int code = mlxvk_kernel_new(&k, &(mlxvk_kernel_desc){ .name = "idle", .spirv = spirv, .spirv_size = sizeof spirv }, d);
    assert_true(!code == !!k.ctx);
    if (k.ctx) mlxvk_kernel_free(k);
    return code;
}

static void test_own_kernels(void **state)
{
    (void)state;
    mlxvk_device d = open_device(NULL);
    for (size_t i = 0; i < COUNT(profiles); i++)
        if (info(d, profiles[i].capability) && profiles[i].declared && profiles[i].declared < 6000) OK_DEVICE(make_kernel(d, &profiles[i]), d);
    mlxvk_device_free(d);
    for (size_t i = 0; i < COUNT(profiles); i++) {
        const struct profile *p = &profiles[i];
        mlxvk_error error = { 0 };
        if (!p->declared) continue;                                               /* nothing of a kernel */
        d = open_device(p->gates);
        assert_int_equal(make_kernel(d, p), MLXVK_ERROR_UNSUPPORTED);
        mlxvk_device_error(d, &error);
        if (!strstr(error.text, p->capability)) fail_msg("%s is not named: %s", p->capability, error.text);
        mlxvk_device_free(d);
    }
}

/* ---- subgroups ---- */

static void test_subgroup_sizes(void **state)
{
    (void)state;
    mlxvk_device d = open_device("MLX_VK_SUBGROUP_SIZE=0");
    size_t own = info(d, "subgroup_size"), least = info(d, "subgroup_size_least"), most = info(d, "subgroup_size_most");
    mlxvk_device_free(d);
    assert_true(least <= own && own <= most);
    for (size_t size = 1; size <= 256; size = size == 4 ? 5 : size == 5 ? 8 : 2 * size) {
        char gates[64];
        mlxvk_error error = { 0 };
        d.ctx = NULL;
        snprintf(gates, sizeof gates, "MLX_VK_SUBGROUP_SIZE=%zu", size);
        int code = create_device(&d, &(mlxvk_device_desc){ .gates = gates, .error = &error });
        if (size >= least && size <= most && size != 5) {
            float x[300] = { 0 }, sum = 0;
            assert_int_equal(code, 0);
            assert_int_equal(info(d, "subgroup_size"), size);
            for (int i = 0; i < 300; i++) x[i] = (float)i;
            mlxvk_stream s = open_stream(d);
            mlxvk_array a = floats(d, x, (int[]){ 300 }, 1);
            OK(mlxvk_sum(&a, a, false, s), s);
            OK(mlxvk_array_item_float32(&sum, a), s);
            assert_float_equal(sum, 44850, 0);
            mlxvk_array_free(a);
            mlxvk_stream_free(s);
            mlxvk_device_free(d);
        } else {
            assert_int_equal(code, MLXVK_ERROR_UNSUPPORTED);
            assert_null(d.ctx);
            assert_non_null(strstr(error.text, gates));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers), cmocka_unit_test(test_same_bits), cmocka_unit_test(test_wide_numbers),
        cmocka_unit_test(test_own_kernels), cmocka_unit_test(test_subgroup_sizes),
    };
    return run_group("profiles", tests, NULL, NULL);
}
