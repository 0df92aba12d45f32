/* Products beyond matmul and quantized_matmul, and small floats: against sums on the host, with views, wrong arguments, indices
 * out of range and nothing to do. */
#include "unit/support.h"
#include <math.h>
#include <stdio.h>

static const mlxvk_optional_int none = { 0, false };

static mlxvk_optional_int some(int value) { return (mlxvk_optional_int){ value, true }; }

/* ---- small floats ---- */

static void test_fp8(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_array codes = mlxvk_array_new(), values = mlxvk_array_new(), back = mlxvk_array_new(), odd = mlxvk_array_new();
    const float given[] = { NAN, INFINITY, -INFINITY, 1e30f, -449, 447, 0, -0.0f, 0.0009765625f, 0.0009766f, 17, 19 };
    const uint8_t want[] = { 126, 126, 254, 126, 254, 126, 0, 128, 0, 1, 88, 90 };
    uint8_t all[256], got[256];
    float numbers[256];
    int shape[1] = { 256 }, few[1] = { (int)COUNT(given) };
    (void)state;
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    OK(mlxvk_array_new_data_device(&codes, all, shape, 1, MLXVK_UINT8, d), s);
    OK(mlxvk_from_fp8(&values, codes, MLXVK_FLOAT32, s), s);
    OK(mlxvk_array_read(values, numbers, sizeof numbers, s), s);
    for (int i = 0; i < 256; i++) {
        double size = i & 120 ? ldexp(8 + (i & 7), (i >> 3 & 15) - 10) : ldexp(i & 7, -9);
        assert_true(numbers[i] == (float)(i & 128 ? -size : size));
    }
    OK(mlxvk_to_fp8(&back, values, s), s);
    OK(mlxvk_array_read(back, got, sizeof got, s), s);
    for (int i = 0; i < 256; i++) assert_int_equal(got[i], (i & 127) == 127 ? i - 1 : i);
    OK(mlxvk_array_new_data_device(&odd, given, few, 1, MLXVK_FLOAT32, d), s);
    OK(mlxvk_to_fp8(&back, odd, s), s);
    OK(mlxvk_array_read(back, got, sizeof want, s), s);
    assert_memory_equal(got, want, sizeof want);
    REFUSED(mlxvk_to_fp8(&back, codes, s), MLXVK_ERROR_DTYPE, s, "to_fp8", "uint8");
    REFUSED(mlxvk_from_fp8(&back, odd, MLXVK_FLOAT32, s), MLXVK_ERROR_DTYPE, s, "from_fp8", "float32");
    REFUSED(mlxvk_from_fp8(&back, codes, MLXVK_INT32, s), MLXVK_ERROR_DTYPE, s, "from_fp8", "int32");
    mlxvk_array_free(codes);
    mlxvk_array_free(values);
    mlxvk_array_free(back);
    mlxvk_array_free(odd);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* Rows of 48 values in groups of 16: half a block of codes is left over. Then what the modes refuse. */
static void test_modes(void **state)
{
    mlxvk_device d = open_device(NULL);
    mlxvk_stream s = open_stream(d);
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    mlxvk_array w = mlxvk_array_new(), x = mlxvk_array_new(), q = mlxvk_array_new(), k = mlxvk_array_new(), y = mlxvk_array_new();
    mlxvk_array nothing = mlxvk_array_new();
    float weight[4 * 48], rows[2 * 48], sums[2 * 4], columns[2 * 48];
    (void)state;
    for (int i = 0; i < 4 * 48; i++) weight[i] = (float)(i % 7 - 3);
    for (int i = 0; i < 2 * 48; i++) rows[i] = (float)(i % 5 - 2);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) {
            sums[i * 4 + j] = 0;
            for (int l = 0; l < 48; l++) sums[i * 4 + j] += rows[i * 48 + l] * weight[j * 48 + l];
        }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 48; j++) {
            columns[i * 48 + j] = 0;
            for (int l = 0; l < 4; l++) columns[i * 48 + j] += rows[i * 4 + l] * weight[l * 48 + j];
        }
    for (int i = 0; i < 4 * 48; i++) weight[i] *= 2;           /* a scale of 1: exact */
    for (int i = 0; i < 8; i++) sums[i] *= 2;
    for (int i = 0; i < 96; i++) columns[i] *= 2;
    w = floats(d, weight, (int[]){ 4, 48 }, 2);
    x = floats(d, rows, (int[]){ 2, 48 }, 2);
    OK(mlxvk_quantize(&parts, w, none, none, "nvfp4", nothing, s), s);
    assert_int_equal(mlxvk_vector_array_size(parts), 2);
    OK(mlxvk_vector_array_get(&q, parts, 0), s);
    OK(mlxvk_vector_array_get(&k, parts, 1), s);
    OK(mlxvk_quantized_matmul(&y, x, q, k, nothing, true, none, none, "nvfp4", s), s);
    expect_floats(y, sums, COUNT(sums), 1e-6, 1e-5, s);
    mlxvk_array_free(x);
    x = floats(d, rows, (int[]){ 2, 4 }, 2);
    OK(mlxvk_quantized_matmul(&y, x, q, k, nothing, false, none, none, "nvfp4", s), s);
    expect_floats(y, columns, COUNT(columns), 1e-6, 1e-5, s);
    REFUSED(mlxvk_quantized_matmul(&y, x, q, k, nothing, false, none, none, "affine", s), MLXVK_ERROR_ARGUMENT, s, "biases");
    REFUSED(mlxvk_quantized_matmul(&y, x, q, k, k, false, none, none, "nvfp4", s), MLXVK_ERROR_ARGUMENT, s, "biases");
    REFUSED(mlxvk_quantized_matmul(&y, x, q, w, nothing, false, none, none, "nvfp4", s), MLXVK_ERROR_DTYPE, s, "uint8");
    REFUSED(mlxvk_quantized_matmul(&y, x, q, k, nothing, false, none, none, "mxfp4", s), MLXVK_ERROR_SHAPE, s, "groups");
    REFUSED(mlxvk_quantize(&parts, w, some(32), none, "nvfp4", nothing, s), MLXVK_ERROR_ARGUMENT, s, "32");
    REFUSED(mlxvk_quantize(&parts, w, none, some(4), "mxfp8", nothing, s), MLXVK_ERROR_ARGUMENT, s, "4 bits");
    REFUSED(mlxvk_quantize(&parts, w, none, none, "mxfp4", nothing, s), MLXVK_ERROR_SHAPE, s, "32");
    REFUSED(mlxvk_quantize(&parts, w, none, none, "mxfp5", nothing, s), MLXVK_ERROR_ARGUMENT, s, "mxfp5");
    REFUSED(mlxvk_quantize(&parts, w, none, none, "nvfp4", w, s), MLXVK_ERROR_ARGUMENT, s, "global_scale");
    mlxvk_vector_array_free(parts);
    mlxvk_array_free(w);
    mlxvk_array_free(x);
    mlxvk_array_free(q);
    mlxvk_array_free(k);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8), cmocka_unit_test(test_modes),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("products", tests, NULL, NULL);
}
