/* The golden runner's rules of comparison: each passes right values and stops wrong ones. Its views and files. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "golden/compare.c"
#include "golden/file.c"
#include "golden/tensor.c"
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Row-major values of a dtype, from doubles. */
static struct tensor tensor_from(mlxvk_dtype dtype, const double *values, size_t count)
{
    struct tensor t = { .dtype = dtype, .ndim = 1, .shape = { (int)count } };
    t.data = t.owned = need(malloc(count * 8 + 1));
    for (size_t i = 0; i < count; i++) store_number(dtype, t.owned, i, values[i]);
    return t;
}

static bool compare_doubles(const struct rule *rule, mlxvk_dtype dtype, const double *got, const double *want, size_t n)
{
    struct problem problem = { "" };
    struct tensor a = tensor_from(dtype, got, n), b = tensor_from(dtype, want, n);
    bool good = compare(&a, &b, rule, &problem);
    assert_true(good == !problem.text[0]);
    tensor_free(&a);
    tensor_free(&b);
    return good;
}

static bool one(const char *cmp, mlxvk_dtype dtype, double got, double want)
{
    return compare_doubles(&(struct rule){ .cmp = cmp, .rtol = 0.01, .atol = 0.001 }, dtype, &got, &want, 1);
}

static void test_bits(void **state)
{
    (void)state;
    assert_true(one("bits", MLXVK_FLOAT32, 1.5, 1.5));
    assert_true(one("bits", MLXVK_FLOAT16, NAN, -NAN));
    assert_false(one("bits", MLXVK_FLOAT32, 0.0, -0.0));
    assert_false(one("bits", MLXVK_BFLOAT16, 1.0, 1.0078125));
    assert_false(one("bits", MLXVK_FLOAT32, NAN, 1));
    assert_false(one("bits", MLXVK_INT8, -1, 1));
    assert_false(one("bits", MLXVK_COMPLEX64, 1, 2));
}

static void test_exact(void **state)
{
    (void)state;
    assert_true(one("exact", MLXVK_FLOAT32, 0.0, -0.0));
    assert_true(one("exact", MLXVK_FLOAT32, NAN, NAN));
    assert_true(one("exact", MLXVK_FLOAT32, -INFINITY, -INFINITY));
    assert_false(one("exact", MLXVK_FLOAT32, 1, 1 + 0x1p-23));
    assert_false(one("exact", MLXVK_FLOAT32, NAN, INFINITY));
    assert_false(one("exact", MLXVK_UINT64, 1, 2));
    assert_false(one("exact", MLXVK_BOOL, 1, 0));
}

static void test_close(void **state)
{
    (void)state;
    assert_true(one("close", MLXVK_FLOAT32, 1.0109, 1));
    assert_false(one("close", MLXVK_FLOAT32, 1.0111, 1));
    assert_false(one("close", MLXVK_FLOAT32, 0.9889, 1));
    assert_true(one("close", MLXVK_FLOAT32, INFINITY, INFINITY));
    assert_false(one("close", MLXVK_FLOAT32, 3e38, INFINITY));
    assert_false(one("close", MLXVK_FLOAT32, -INFINITY, INFINITY));
    assert_false(one("close", MLXVK_FLOAT32, NAN, 1));
    assert_false(one("close", MLXVK_FLOAT32, 1, NAN));
    assert_true(one("close", MLXVK_BFLOAT16, NAN, NAN));
    assert_false(one("close", MLXVK_INT32, 1001, 1000));
    assert_false(one("close", MLXVK_FLOAT32, 1e-3 * 1.01, 0));
}

static bool close_complex(double re, double im, double want_re, double want_im)
{
    struct rule rule = { .rtol = 0.01 };
    return is_close(MLXVK_COMPLEX64, (struct number){ .re = re, .im = im },
                 (struct number){ .re = want_re, .im = want_im }, &rule);
}

static void test_close_complex(void **state)
{
    (void)state;
    assert_true(close_complex(100, 0.9, 100, 0));             /* by the modulus, not by parts */
    assert_false(close_complex(100, 1.1, 100, 0));
    assert_true(close_complex(NAN, 1, 2, NAN));
    assert_false(close_complex(NAN, 1, 2, 3));
    assert_true(close_complex(INFINITY, 1, INFINITY, 1));
    assert_false(close_complex(INFINITY, 1, INFINITY, 2));
}

static void test_denormal_ok(void **state)
{
    (void)state;
    struct rule strict = { .cmp = "denormal-ok" }, loose = { .cmp = "denormal-ok", .rtol = 1e-3 };
    const double denormal = 0x1p-130, normal = 0x1p-120, half_denormal = 0x1p-16, zero = 0;
    assert_true(compare_doubles(&strict, MLXVK_FLOAT32, &denormal, &denormal, 1));
    assert_true(compare_doubles(&strict, MLXVK_FLOAT32, &zero, &denormal, 1));
    assert_false(compare_doubles(&strict, MLXVK_FLOAT32, &zero, &normal, 1));
    assert_false(compare_doubles(&strict, MLXVK_FLOAT32, &denormal, &zero, 1));
    assert_true(compare_doubles(&loose, MLXVK_FLOAT16, &zero, &half_denormal, 1));
    assert_false(compare_doubles(&loose, MLXVK_FLOAT32, &zero, &half_denormal, 1));
    assert_false(compare_doubles(&loose, MLXVK_BFLOAT16, &zero, &normal, 1));
    assert_false(compare_doubles(&loose, MLXVK_FLOAT16, &zero, &(double){ 0x1p-13 }, 1));
}

static void test_finite_and_any(void **state)
{
    (void)state;
    assert_true(one("finite", MLXVK_FLOAT32, 5, 6));
    assert_false(one("finite", MLXVK_FLOAT32, NAN, 6));
    assert_false(one("finite", MLXVK_FLOAT16, -INFINITY, 6));
    assert_true(one("any", MLXVK_FLOAT32, NAN, 6));
    assert_false(one("no such rule", MLXVK_FLOAT32, 1, 1));
}

static void test_form(void **state)
{
    (void)state;
    struct problem problem = { "" };
    struct rule rule = { .cmp = "any" };
    struct tensor a = tensor_from(MLXVK_INT32, (double[]){ 1, 2 }, 2);
    struct tensor b = tensor_from(MLXVK_UINT32, (double[]){ 1, 2 }, 2);
    assert_false(compare(&a, &b, &rule, &problem));
    problem.text[0] = 0;
    b.dtype = MLXVK_INT32;
    assert_true(compare(&a, &b, &rule, &problem));
    b.shape[0] = 1;
    assert_false(compare(&a, &b, &rule, &problem));
    problem.text[0] = 0;
    b.shape[0] = 2, b.shape[1] = 1, b.ndim = 2;
    assert_false(compare(&a, &b, &rule, &problem));
    tensor_free(&a);
    tensor_free(&b);
}

static void test_set(void **state)
{
    (void)state;
    struct rule rule = { .cmp = "set" };
    const double want[] = { 3, NAN, 5, 5 }, right[] = { 5, 3, 5, NAN }, wrong[] = { 5, 3, 3, NAN };
    assert_true(compare_doubles(&rule, MLXVK_FLOAT16, right, want, 4));
    assert_false(compare_doubles(&rule, MLXVK_FLOAT16, wrong, want, 4));
}

/* 2 x 3 values along either axis: lanes must not be mixed up. */
static void test_set_axes(void **state)
{
    (void)state;
    struct problem problem = { "" };
    struct tensor want = tensor_from(MLXVK_INT8, (double[]){ 1, 2, 3, 4, 5, 6 }, 6);
    struct tensor rows = tensor_from(MLXVK_INT8, (double[]){ 3, 1, 2, 6, 5, 4 }, 6);
    struct tensor columns = tensor_from(MLXVK_INT8, (double[]){ 4, 2, 6, 1, 5, 3 }, 6);
    struct tensor *all[] = { &want, &rows, &columns };
    for (size_t i = 0; i < COUNT(all); i++) all[i]->ndim = 2, all[i]->shape[0] = 2, all[i]->shape[1] = 3;
    struct rule by_row = { .cmp = "set", .has_axis = true, .axis = 1 };
    struct rule by_column = { .cmp = "set", .has_axis = true, .axis = -2 };
    assert_true(compare(&rows, &want, &by_row, &problem));
    assert_true(compare(&columns, &want, &by_column, &problem));
    assert_false(compare(&columns, &want, &by_row, &problem));
    problem.text[0] = 0;
    assert_false(compare(&rows, &want, &by_column, &problem));
    problem.text[0] = 0;
    assert_false(compare(&rows, &want, &(struct rule){ .cmp = "set", .has_axis = true, .axis = 2 }, &problem));
    for (size_t i = 0; i < COUNT(all); i++) tensor_free(all[i]);
}

static void test_partition(void **state)
{
    (void)state;
    struct rule rule = { .cmp = "partition", .kth = 2 };
    const double want[] = { 1, 2, 3, 4, 5 }, right[] = { 2, 1, 3, 5, 4 };
    const double misplaced[] = { 1, 3, 2, 4, 5 }, crossed[] = { 1, 4, 3, 2, 5 }, foreign[] = { 1, 2, 3, 4, 6 };
    assert_true(compare_doubles(&rule, MLXVK_FLOAT32, right, want, 5));
    assert_false(compare_doubles(&rule, MLXVK_FLOAT32, misplaced, want, 5));
    assert_false(compare_doubles(&rule, MLXVK_INT32, crossed, want, 5));
    assert_false(compare_doubles(&rule, MLXVK_UINT8, foreign, want, 5));
    rule.kth = -5;
    assert_false(compare_doubles(&rule, MLXVK_FLOAT32, right, want, 5));
    rule.kth = 5;
    assert_false(compare_doubles(&rule, MLXVK_FLOAT32, right, want, 5));
}

static bool argparted(const double *got, size_t count)
{
    struct problem problem = { "" };
    struct tensor input = tensor_from(MLXVK_FLOAT32, (double[]){ 9, 7, 8, 7 }, 4);
    struct tensor want = tensor_from(MLXVK_UINT32, (double[]){ 1, 3, 2, 0 }, 4);
    struct tensor indices = tensor_from(MLXVK_UINT32, got, count);
    struct rule rule = { .cmp = "argpartition", .kth = 1, .input = &input };
    bool good = compare(&indices, &want, &rule, &problem);
    tensor_free(&input);
    tensor_free(&want);
    tensor_free(&indices);
    return good;
}

static void test_argpartition(void **state)
{
    (void)state;
    assert_true(argparted((double[]){ 1, 3, 2, 0 }, 4));
    assert_true(argparted((double[]){ 3, 1, 0, 2 }, 4));
    assert_false(argparted((double[]){ 3, 3, 0, 2 }, 4));
    assert_false(argparted((double[]){ 3, 2, 0, 1 }, 4));
    assert_false(argparted((double[]){ 3, 4, 0, 2 }, 4));
}

static void test_halves(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = half_to_float((uint16_t)h), b = bf16_to_float((uint16_t)h);
        assert_true(isnan(f) ? isnan(half_to_float(float_to_half(f))) : float_to_half(f) == h);
        assert_true(isnan(b) ? isnan(bf16_to_float(float_to_bf16(b))) : float_to_bf16(b) == h);
    }
    assert_int_equal(float_to_half(1 + 0x1p-11f), 0x3c00);    /* ties to even */
    assert_int_equal(float_to_half(1 + 0x3p-11f), 0x3c02);
    assert_int_equal(float_to_half(65519.99f), 0x7bff);
    assert_int_equal(float_to_half(65520), 0x7c00);
    assert_int_equal(float_to_half(0x1p-25f), 0);
    assert_int_equal(float_to_half(0x1.8p-25f), 1);
    assert_int_equal(float_to_half(0x1.ffcp-15f), 0x0400);    /* up into the normal numbers */
    assert_int_equal(float_to_bf16(1 + 0x1p-8f), 0x3f80);
    assert_int_equal(float_to_bf16(1 + 0x3p-8f), 0x3f82);
    assert_int_equal(float_to_bf16(3.4e38f), 0x7f80);
}

/* ---- views ---- */

static void check_view(const char *steps, const double *want, const int *shape, int ndim)
{
    struct problem problem = { "" };
    double values[12];
    for (int i = 0; i < 12; i++) values[i] = i;
    struct tensor base = tensor_from(MLXVK_INT32, values, 12), got;
    base.ndim = 2, base.shape[0] = 3, base.shape[1] = 4;
    cJSON *json = cJSON_Parse(steps);
    assert_non_null(json);
    if (!tensor_view(&got, &base, json, &problem)) fail_msg("%s: %s", steps, problem.text);
    assert_int_equal(got.ndim, ndim);
    assert_memory_equal(got.shape, shape, (size_t)ndim * sizeof *shape);
    for (size_t i = 0; i < tensor_size(&got); i++)
        assert_int_equal(load_number(MLXVK_INT32, got.data, i).i, (int64_t)want[i]);
    cJSON_Delete(json);
    tensor_free(&got);
    tensor_free(&base);
}

static void test_views(void **state)
{
    (void)state;
    check_view("[{\"op\":\"transpose_axes\",\"args\":{\"axes\":[1,-2]}}]",
               (double[]){ 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11 }, (int[]){ 4, 3 }, 2);
    check_view("[{\"op\":\"slice\",\"args\":{\"start\":[-1,3],\"stop\":[-9,0],\"strides\":[-2,-2]}}]",
               (double[]){ 11, 9, 3, 1 }, (int[]){ 2, 2 }, 2);
    check_view("[{\"op\":\"slice\",\"args\":{\"start\":[2,0],\"stop\":[1,9],\"strides\":[1,3]}}]",
               NULL, (int[]){ 0, 2 }, 2);
    check_view("[{\"op\":\"slice\",\"args\":{\"start\":[1,1],\"stop\":[2,3],\"strides\":[1,1]}},"
               "{\"op\":\"broadcast_to\",\"args\":{\"shape\":[2,2,2]}}]",
               (double[]){ 5, 6, 5, 6, 5, 6, 5, 6 }, (int[]){ 2, 2, 2 }, 3);
    check_view("[{\"op\":\"as_strided\",\"args\":{\"shape\":[2,3],\"strides\":[-1,2],\"offset\":5}}]",
               (double[]){ 5, 7, 9, 4, 6, 8 }, (int[]){ 2, 3 }, 2);
    check_view("[{\"op\":\"slice\",\"args\":{\"start\":[0,0],\"stop\":[1,2],\"strides\":[1,1]}},"
               "{\"op\":\"expand_dims\",\"args\":{\"axis\":-1}}]", (double[]){ 0, 1 }, (int[]){ 1, 2, 1 }, 3);
}

static void test_bad_views(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "[{\"op\":\"turn\",\"args\":{}}]",
        "[{\"op\":\"transpose_axes\",\"args\":{\"axes\":[0]}}]",
        "[{\"op\":\"transpose_axes\",\"args\":{\"axes\":[0,2]}}]",
        "[{\"op\":\"broadcast_to\",\"args\":{\"shape\":[3,5]}}]",
        "[{\"op\":\"as_strided\",\"args\":{\"shape\":[13],\"strides\":[1],\"offset\":0}}]",
        "[{\"op\":\"as_strided\",\"args\":{\"shape\":[2],\"strides\":[-1],\"offset\":0}}]",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct problem problem = { "" };
        struct tensor base = tensor_from(MLXVK_INT32, (double[12]){ 0 }, 12), got;
        base.ndim = 2, base.shape[0] = 3, base.shape[1] = 4;
        cJSON *json = cJSON_Parse(bad[i]);
        assert_false(tensor_view(&got, &base, json, &problem));
        assert_true(problem.text[0]);
        cJSON_Delete(json);
        tensor_free(&got);
        tensor_free(&base);
    }
}

/* ---- files ---- */

static bool opens(const char *header, uint64_t length, size_t data_size, struct problem *problem)
{
    char path[] = "/tmp/mlxvk-golden-XXXXXX";
    struct golden_file file;
    static const char data[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &length, 8), 8);
    assert_int_equal(write(fd, header, strlen(header)), (ssize_t)strlen(header));
    assert_int_equal(write(fd, data, data_size), (ssize_t)data_size);
    close(fd);
    bool good = golden_open(&file, path, problem);
    if (good) golden_close(&file);
    unlink(path);
    return good;
}

#define META "\"__metadata__\":{\"format\":\"mlxvk-golden-1\",\"cases\":\"[]\"}"
#define TENSOR(dtype, shape, from, to) \
    "\"" from to "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

static void test_files(void **state)
{
    (void)state;
    struct problem problem = { "" };
    const char *good = "{" META "," TENSOR("F32", "[2,2]", "0", "16") "," TENSOR("BOOL", "[]", "16", "17") "}";
    assert_true(opens(good, strlen(good), 17, &problem));
    assert_false(opens(good, strlen(good), 16, &problem));
    assert_false(opens(good, strlen(good) - 1, 64, &problem));
    assert_false(opens(good, UINT64_MAX, 17, &problem));
    static const char *const bad[] = {
        "{" META "," TENSOR("F32", "[2,2]", "0", "16") "," TENSOR("F32", "[1]", "12", "16") "}",
        "{" META "," TENSOR("F32", "[2,3]", "0", "16") "}",
        "{" META "," TENSOR("F32", "[-1]", "4", "0") "}",
        "{" META "," TENSOR("F64", "[1]", "0", "8") "}",
        "{" META "," TENSOR("F32", "[1000000000,1000000000,1000000000]", "0", "16") "}",
        "{" META "," TENSOR("F32", "[0.5]", "0", "2") "}",
        "{\"__metadata__\":{\"format\":\"mlxvk-golden-2\",\"cases\":\"[]\"}}",
        "{\"__metadata__\":{\"format\":\"mlxvk-golden-1\",\"cases\":\"[\"}}",
        "[]", "", "{}",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        problem.text[0] = 0;
        if (opens(bad[i], strlen(bad[i]), 64, &problem) || !problem.text[0]) fail_msg("read a bad file: %s", bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits), cmocka_unit_test(test_exact), cmocka_unit_test(test_close),
        cmocka_unit_test(test_close_complex), cmocka_unit_test(test_denormal_ok),
        cmocka_unit_test(test_finite_and_any), cmocka_unit_test(test_form), cmocka_unit_test(test_set),
        cmocka_unit_test(test_set_axes), cmocka_unit_test(test_partition), cmocka_unit_test(test_argpartition),
        cmocka_unit_test(test_halves), cmocka_unit_test(test_views), cmocka_unit_test(test_bad_views),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
