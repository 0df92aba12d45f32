/* test_safetensors.c - good files of every kind, and each way in which a header can be cut short or lie. */
#define _POSIX_C_SOURCE 200809L

#include "support_files.h"
#include "../qwen3/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ==== >>helpers =========================================================================================== */

/* A file with this header and data_size bytes 0, 1, 2, ... length: what the first 8 bytes say, or -1 for the truth. */
static void write_file(const char *name, const char *header, size_t data_size, int64_t length)
{
    struct text file = { 0 };
    uint64_t says = length < 0 ? strlen(header) : (uint64_t)length;
    for (int i = 0; i < 8; i++)
        text_add(&file, &(unsigned char){ (unsigned char)(says >> (8 * i)) }, 1);
    text_add_string(&file, header);
    for (size_t i = 0; i < data_size; i++)
        text_add(&file, &(unsigned char){ (unsigned char)i }, 1);
    write_bytes(name, file.data, file.length);
    text_free(&file);
}

static bool try_open(const char *name, struct safetensors *st, struct error *e)
{
    char *path = path_join(dir, name);
    bool ok = safetensors_open_file(st, path, e);
    free(path);
    return ok;
}

static void refused_length(const char *header, size_t data_size, int64_t length, const char *why)
{
    struct safetensors st;
    struct error e = { "" };
    write_file("bad.safetensors", header, data_size, length);
    bool ok = try_open("bad.safetensors", &st, &e);
    remove_file("bad.safetensors");
    if (ok || !strstr(e.text, why))
        print_error("header %s: expected \"%s\", got \"%s\"\n", header, why, e.text);
    assert_false(ok);
    assert_non_null(strstr(e.text, why));
    assert_non_null(strstr(e.text, "bad.safetensors")); /* the line says where */
    assert_int_equal(st.tensor_count, 0);
    assert_null(st.files);
}

static void refused(const char *header, size_t data_size, const char *why)
{
    refused_length(header, data_size, -1, why);
}

/* ==== >>good files ======================================================================================== */

static void test_good_file(void **state)
{
    struct safetensors st;
    struct error e = { "" };
    char text[64];
    (void)state;
    write_file("good.safetensors",
               "{\"__metadata__\": {\"format\": \"mlx\"}, \"b\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [4, 16]},"
               "\"a\": {\"dtype\": \"U32\", \"shape\": [], \"data_offsets\": [0, 4]},"
               "\"empty\": {\"dtype\": \"F32\", \"shape\": [0, 5], \"data_offsets\": [4, 4]}}   ", 16, -1);
    assert_true(try_open("good.safetensors", &st, &e));
    assert_int_equal(st.tensor_count, 3);
    assert_int_equal(st.total_bytes, 16);
    const struct st_tensor *b = safetensors_find(&st, "b");
    assert_int_equal(b->dtype, ST_BF16);
    assert_int_equal(b->ndim, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(((const unsigned char *)b->data)[0], 4);
    assert_string_equal(st_describe(b, text, sizeof text), "BF16 [2, 3]");
    assert_int_equal(safetensors_find(&st, "empty")->begin, 4);
    assert_null(safetensors_find(&st, "c"));
    assert_null(safetensors_find(&st, "__metadata__"));
    safetensors_close(&st);
    remove_file("good.safetensors");
}

static void test_every_dtype(void **state)
{
    (void)state;
    for (int d = 0; d < ST_DTYPE_COUNT; d++) {
        struct safetensors st;
        struct error e = { "" };
        char header[128];
        size_t size = st_dtype_size((enum st_dtype)d) * 3;
        snprintf(header, sizeof header, "{\"t\": {\"dtype\": \"%s\", \"shape\": [3], \"data_offsets\": [0, %zu]}}",
                 st_dtype_name((enum st_dtype)d), size);
        write_file("t.safetensors", header, size, -1);
        assert_true(try_open("t.safetensors", &st, &e));
        assert_int_equal(st.tensors[0].dtype, d);
        safetensors_close(&st);
    }
    remove_file("t.safetensors");
}

static void test_tiny_model(void **state)
{
    struct safetensors st;
    struct error e = { "" };
    (void)state;
    assert_true(safetensors_open(&st, "tests/models/tiny-qwen3", &e));
    const struct st_tensor *w = safetensors_find(&st, "model.layers.3.mlp.down_proj.weight");
    assert_non_null(w);
    assert_int_equal(w->dtype, ST_U32);
    assert_int_equal(w->shape[1], 96);
    safetensors_close(&st);
}

/* ==== >>lengths =========================================================================================== */

static void test_truncated(void **state)
{
    struct safetensors st;
    struct error e = { "" };
    (void)state;
    for (size_t length = 0; length < 8; length++) {
        write_bytes("bad.safetensors", "\2\0\0\0\0\0\0", length);
        assert_false(try_open("bad.safetensors", &st, &e));
        assert_non_null(strstr(e.text, "truncated"));
    }
    remove_file("bad.safetensors");
    refused_length("", 0, 2, "truncated");
    refused_length("{}", 0, 3, "truncated");
    refused_length("{}", 5, 8, "truncated");
    refused_length("{}", 0, 100000001, "more than the format allows");
    refused_length("{}", 0, INT64_MAX, "more than the format allows");
    refused_length("{}", 0, 0, "invalid JSON");
    refused_length("{}", 0, 1, "invalid JSON");
    refused("{\"t\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [0, 16]}}", 15, "outside the file");
}

/* Cut anywhere, a file is refused and nothing outside it is read. */
static void test_cut_anywhere(void **state)
{
    static const char header[] =
        "{\"a\": {\"dtype\": \"F16\", \"shape\": [2], \"data_offsets\": [0, 4]}, \"b\": {\"dtype\": \"U8\", \"shape\": [1, 3],"
        "\"data_offsets\": [4, 7]}}";
    struct text file = { 0 };
    (void)state;
    text_add(&file, (unsigned char[8]){ sizeof header - 1 }, 8);
    text_add_string(&file, header);
    text_add(&file, "1234567", 7);
    for (size_t length = 0; length <= file.length; length++) {
        struct safetensors st;
        struct error e = { "" };
        write_bytes("cut.safetensors", file.data, length);
        assert_int_equal(try_open("cut.safetensors", &st, &e), length == file.length);
        safetensors_close(&st);
    }
    remove_file("cut.safetensors");
    text_free(&file);
}

/* ==== >>lies ============================================================================================== */

static void test_bad_json(void **state)
{
    (void)state;
    refused("{", 0, "invalid JSON at line 1");
    refused("[]", 0, "not a JSON object");
    refused("{} x", 0, "invalid JSON");
    refused("{\"t\": 3}", 0, "not an object");
    refused("{\"t\": {}}", 0, "no dtype");
    refused("{\"t\": {\"dtype\": 3}}", 0, "no dtype");
    refused("{\"t\": {\"dtype\": \"F31\"}}", 0, "unknown dtype F31");
    refused("{\"t\": {\"dtype\": \"F32\"}}", 0, "no shape");
}

static void test_bad_shapes(void **state)
{
    (void)state;
    static const char *const shapes[] = { "[-1]", "[1.5]", "[\"2\"]", "[null]", "[[2]]", "[1e300]", "[4294967296]" };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char header[160];
        snprintf(header, sizeof header, "{\"t\": {\"dtype\": \"U8\", \"shape\": %s, \"data_offsets\": [0, 2]}}", shapes[i]);
        refused(header, 2, "dimension");
    }
    refused("{\"t\": {\"dtype\": \"U8\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 1]}}", 1, "dimensions");
    refused("{\"t\": {\"dtype\": \"F32\", \"shape\": [2147483647, 2147483647, 2147483647], \"data_offsets\": [0, 4]}}", 4,
            "overflows");
    /* 2^64 elements: the product wraps to 0 where nobody looks */
    refused("{\"t\": {\"dtype\": \"U8\", \"shape\": [65536, 65536, 65536, 65536], \"data_offsets\": [0, 0]}}", 0, "overflows");
}

static void test_bad_ranges(void **state)
{
    static const char *const ranges[] = { "3", "[]", "[0]", "[0, 2, 4]", "[\"0\", 2]", "[0, 2.5]", "[-2, 0]", "{}" };
    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        char header[160];
        snprintf(header, sizeof header, "{\"t\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": %s}}", ranges[i]);
        refused(header, 2, "data_offsets are not two integers");
    }
    refused("{\"t\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 3]}}", 3, "3 bytes, but its dtype and shape");
    refused("{\"t\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [2, 0]}}", 2, "outside");
    refused("{\"t\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [1, 3]}}", 2, "outside");
    refused("{\"t\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [9007199254740990, 9007199254740992]}}", 2,
            "outside");
}

#define TENSOR(name, begin, end) \
    "\"" name "\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [" #begin ", " #end "]}"

static void test_overlap_and_holes(void **state)
{
    (void)state;
    refused("{" TENSOR("a", 0, 4) ", " TENSOR("b", 0, 4) "}", 4, "overlap");
    refused("{" TENSOR("a", 0, 4) ", " TENSOR("b", 3, 7) "}", 7, "tensors a and b overlap");
    refused("{" TENSOR("b", 3, 7) ", " TENSOR("a", 0, 4) "}", 7, "tensors a and b overlap");
    refused("{" TENSOR("a", 0, 4) ", " TENSOR("b", 5, 9) "}", 9, "belong to no tensor");
    refused("{" TENSOR("a", 1, 5) "}", 5, "belong to no tensor");
    refused("{" TENSOR("a", 0, 4) "}", 9, "5 bytes after the last tensor");
    refused("{" TENSOR("a", 0, 4) ", " TENSOR("a", 4, 8) "}", 8, "twice");
}

/* ==== >>directories ======================================================================================= */

static void write_shards(void)
{
    write_file("model-00001-of-00002.safetensors", "{" TENSOR("a", 0, 4) ", " TENSOR("b", 4, 8) "}", 8, -1);
    write_file("model-00002-of-00002.safetensors", "{" TENSOR("c", 0, 4) "}", 4, -1);
}

static void remove_shards(void)
{
    remove_file("model-00001-of-00002.safetensors");
    remove_file("model-00002-of-00002.safetensors");
    remove_file("model.safetensors.index.json");
}

static void test_shards(void **state)
{
    struct safetensors st;
    struct error e = { "" };
    const char *index = "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\","
                        "\"c\": \"model-00002-of-00002.safetensors\", \"b\": \"model-00001-of-00002.safetensors\"}}";
    (void)state;
    write_shards();
    for (int indexed = 0; indexed < 2; indexed++) {
        if (indexed)
            write_bytes("model.safetensors.index.json", index, strlen(index));
        assert_true(safetensors_open(&st, dir, &e));
        assert_int_equal(st.file_count, 2);
        assert_int_equal(st.tensor_count, 3);
        assert_non_null(strstr(safetensors_find(&st, "c")->file, "00002-of"));
        safetensors_close(&st);
    }
    write_file("model-00002-of-00002.safetensors", "{" TENSOR("b", 0, 4) "}", 4, -1);
    remove_file("model.safetensors.index.json");
    assert_false(safetensors_open(&st, dir, &e));
    assert_non_null(strstr(e.text, "tensor b is there twice"));
    remove_shards();
}

static void refused_index(const char *index, const char *why)
{
    struct safetensors st;
    struct error e = { "" };
    write_bytes("model.safetensors.index.json", index, strlen(index));
    bool ok = safetensors_open(&st, dir, &e);
    if (ok || !strstr(e.text, why))
        print_error("index %s: expected \"%s\", got \"%s\"\n", index, why, e.text);
    assert_false(ok);
    assert_non_null(strstr(e.text, why));
}

static void test_bad_index(void **state)
{
    (void)state;
    write_shards();
    refused_index("{", "invalid JSON");
    refused_index("[1]", "not a JSON object");
    refused_index("{}", "no weight_map");
    refused_index("{\"weight_map\": {}}", "no weight_map");
    refused_index("{\"weight_map\": {\"a\": 3}}", "plain file name");
    refused_index("{\"weight_map\": {\"a\": \"../model.safetensors\"}}", "plain file name");
    refused_index("{\"weight_map\": {\"a\": \"model-00003-of-00003.safetensors\"}}", "model-00003-of-00003.safetensors: ");
    refused_index("{\"weight_map\": {\"c\": \"model-00001-of-00002.safetensors\"}}", "tensor c is not in model-00001");
    refused_index("{\"weight_map\": {\"a\": \"model-00002-of-00002.safetensors\", \"b\": \"model-00001-of-00002.safetensors\"}}",
                  "tensor a is not in model-00002");
    remove_shards();
}

static void test_nothing_there(void **state)
{
    struct safetensors st;
    struct error e = { "" };
    (void)state;
    assert_false(safetensors_open(&st, dir, &e));
    assert_non_null(strstr(e.text, "no model"));
    assert_false(safetensors_open(&st, "no/such/directory", &e));
    assert_false(safetensors_open_file(&st, "no/such/file", &e));
    assert_non_null(strstr(e.text, "No such file"));
    assert_false(safetensors_open_file(&st, dir, &e));
#ifdef _WIN32                                                      /* opens no folder as if it were a file */
    assert_non_null(strstr(e.text, "Permission denied"));
#else
    assert_non_null(strstr(e.text, "not a regular file"));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_file),         cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_tiny_model),        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_cut_anywhere),      cmocka_unit_test(test_bad_json),
        cmocka_unit_test(test_bad_shapes),        cmocka_unit_test(test_bad_ranges),
        cmocka_unit_test(test_overlap_and_holes), cmocka_unit_test(test_shards),
        cmocka_unit_test(test_bad_index),         cmocka_unit_test(test_nothing_there),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_dir, remove_dir);
}
