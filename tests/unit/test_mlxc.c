/* mlx-c's objects: strings, vectors, maps, devices, streams, arrays as text, files. */
#include <stdio.h>
#include "support.h"

/* What mlx-c's programs use. */
static int set_up_default(void **state)
{
    (void)state;
    stream = mlxvk_default_gpu_stream_new();
    assert_non_null(stream.ctx);
    return 0;
}

#define CHECK(call) assert_int_equal((call), 0)

/* ---- containers ---- */

static void strings(void **state)
{
    mlxvk_string a = mlxvk_string_new(), b = mlxvk_string_new_data("text");
    (void)state;
    assert_string_equal(mlxvk_string_data(a), "");
    CHECK(mlxvk_string_set(&a, b));
    mlxvk_string_free(b);
    assert_string_equal(mlxvk_string_data(a), "text");
    assert_int_equal(mlxvk_string_set(NULL, a), MLXVK_ERROR_ARGUMENT);
    mlxvk_string_free(a);
    mlxvk_string_free((mlxvk_string){ NULL });
}

static void vectors(void **state)
{
    mlxvk_vector_int i = mlxvk_vector_int_new_data((const int[]){ 3, 4 }, 2), j = mlxvk_vector_int_new();
    mlxvk_vector_string s = mlxvk_vector_string_new_value("one");
    int value = 0;
    char *text = NULL;
    (void)state;
    for (int k = 0; k < 100; k++) CHECK(mlxvk_vector_int_append_value(i, k));
    assert_int_equal(mlxvk_vector_int_size(i), 102);
    CHECK(mlxvk_vector_int_get(&value, i, 101));
    assert_int_equal(value, 99);
    assert_int_equal(mlxvk_vector_int_get(&value, i, 102), MLXVK_ERROR_ARGUMENT);
    CHECK(mlxvk_vector_int_set(&j, i));
    CHECK(mlxvk_vector_int_set(&j, j));                               /* itself */
    CHECK(mlxvk_vector_int_set_value(&i, 7));
    assert_int_equal(mlxvk_vector_int_size(i), 1);
    assert_int_equal(mlxvk_vector_int_size(j), 102);
    CHECK(mlxvk_vector_string_append_data(s, (const char *[]){ "two", "three" }, 2));
    CHECK(mlxvk_vector_string_get(&text, s, 2));
    assert_string_equal(text, "three");
    assert_int_equal(mlxvk_vector_string_append_data(s, NULL, 1), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_vector_string_append_data(s, (const char *[]){ "four", NULL }, 2), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_vector_string_append_value(s, NULL), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_vector_string_size(s), 3);
    assert_int_equal(mlxvk_vector_string_append_value((mlxvk_vector_string){ NULL }, "x"), MLXVK_ERROR_ARGUMENT);
    mlxvk_vector_int_free(i);
    mlxvk_vector_int_free(j);
    mlxvk_vector_string_free(s);
}

static void vectors_of_arrays(void **state)
{
    mlxvk_array a = mlxvk_array_new_int(5), b = mlxvk_array_new();
    mlxvk_vector_array v = mlxvk_vector_array_new_value(a), w = mlxvk_vector_array_new();
    mlxvk_vector_vector_array all = mlxvk_vector_vector_array_new_value(v), copy = mlxvk_vector_vector_array_new();
    int32_t value = 0;
    (void)state;
    CHECK(mlxvk_vector_array_set_value(&v, b));                       /* the list kept its own */
    CHECK(mlxvk_vector_vector_array_append_value(all, v));
    CHECK(mlxvk_vector_vector_array_set(&copy, all));
    mlxvk_vector_vector_array_free(all);
    assert_int_equal(mlxvk_vector_vector_array_size(copy), 2);
    CHECK(mlxvk_vector_vector_array_get(&w, copy, 0));
    CHECK(mlxvk_vector_array_get(&b, w, 0));
    CHECK(mlxvk_array_item_int32(&value, b));
    assert_int_equal(value, 5);
    CHECK(mlxvk_vector_array_set(&w, w));
    assert_int_equal(mlxvk_vector_array_size(w), 1);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_vector_array_free(v);
    mlxvk_vector_array_free(w);
    mlxvk_vector_vector_array_free(copy);
}

static void maps(void **state)
{
    mlxvk_map_string_to_string m = mlxvk_map_string_to_string_new(), other = mlxvk_map_string_to_string_new();
    mlxvk_map_string_to_array arrays = mlxvk_map_string_to_array_new();
    mlxvk_map_string_to_string_iterator it;
    mlxvk_array a = mlxvk_array_new_int(5), b = mlxvk_array_new();
    const char *key, *value;
    char name[16], seen[16] = "";
    int count = 0;
    (void)state;
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "k%02d", i * 37 % 50);
        CHECK(mlxvk_map_string_to_string_insert(m, name, name + 1));
    }
    CHECK(mlxvk_map_string_to_string_insert(m, "k10", "other"));
    CHECK(mlxvk_map_string_to_string_set(&other, m));
    mlxvk_map_string_to_string_free(m);
    it = mlxvk_map_string_to_string_iterator_new(other);
    while (!mlxvk_map_string_to_string_iterator_next(&key, &value, it)) {
        assert_true(strcmp(seen, key) < 0);
        snprintf(seen, sizeof seen, "%s", key);
        assert_string_equal(value, strcmp(key, "k10") ? key + 1 : "other");
        count++;
    }
    assert_int_equal(count, 50);
    mlxvk_map_string_to_string_iterator_free(it);
    assert_int_not_equal(mlxvk_map_string_to_string_get(&value, other, "none"), 0);
    CHECK(mlxvk_map_string_to_array_insert(arrays, "a", a));
    CHECK(mlxvk_map_string_to_array_insert(arrays, "a", a));
    CHECK(mlxvk_map_string_to_array_get(&b, arrays, "a"));
    assert_ptr_equal(a.ctx, b.ctx);
    assert_int_equal(mlxvk_map_string_to_array_insert(arrays, "b", (mlxvk_array){ NULL }), MLXVK_ERROR_ARGUMENT);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_map_string_to_array_free(arrays);
    mlxvk_map_string_to_string_free(other);
}

/* ---- devices and streams ---- */

static void devices(void **state)
{
    mlxvk_device d = mlxvk_device_new_type(MLXVK_GPU, 0), e = { NULL }, of_stream = { NULL };
    mlxvk_device_info info = mlxvk_device_info_new();
    mlxvk_stream s = { NULL }, t = mlxvk_default_cpu_stream_new(), fresh = mlxvk_stream_new();
    mlxvk_string text = mlxvk_string_new();
    mlxvk_device_type type = MLXVK_CPU;
    bool yes = false;
    size_t memory = 0;
    int index = -1;
    (void)state;
    CHECK(mlxvk_get_default_device(&e));
    assert_true(mlxvk_device_equal(d, e));
    CHECK(mlxvk_device_get_index(&index, d));
    CHECK(mlxvk_device_get_type(&type, d));
    assert_int_equal(index, 0);
    assert_int_equal(type, MLXVK_GPU);
    CHECK(mlxvk_device_tostring(&text, d));
    assert_string_equal(mlxvk_string_data(text), "Device(gpu, 0)");
    CHECK(mlxvk_device_is_available(&yes, d));
    assert_true(yes);
    CHECK(mlxvk_set_default_device(d));
    CHECK(mlxvk_device_info_get(&info, d));
    CHECK(mlxvk_device_info_has_key(&yes, info, "memory_size"));
    assert_true(yes);
    CHECK(mlxvk_device_info_get_size(&memory, info, "memory_size"));
    assert_true(memory > 0);
    CHECK(mlxvk_device_info_has_key(&yes, info, "colour"));
    assert_false(yes);
    CHECK(mlxvk_get_default_stream(&s, d));
    assert_true(mlxvk_stream_equal(s, t));
    assert_false(mlxvk_stream_equal(s, fresh));
    CHECK(mlxvk_stream_get_device(&of_stream, fresh));
    assert_true(mlxvk_device_equal(of_stream, d));
    CHECK(mlxvk_set_default_stream(fresh));
    CHECK(mlxvk_get_default_stream(&s, d));
    assert_true(mlxvk_stream_equal(s, fresh));
    CHECK(mlxvk_set_default_stream(t));
    CHECK(mlxvk_stream_set(&s, t));
    CHECK(mlxvk_stream_tostring(&text, s));
    assert_int_equal(strncmp(mlxvk_string_data(text), "Stream(Device(gpu, 0), ", 23), 0);
    mlxvk_device_free(d);
    mlxvk_device_free(e);
    mlxvk_device_free(of_stream);
    mlxvk_device_info_free(info);
    mlxvk_stream_free(s);
    mlxvk_stream_free(t);
    mlxvk_stream_free(fresh);
    mlxvk_string_free(text);
}

static void note_error(const char *text, void *data) { snprintf(data, 200, "%s", text); }
static void note_end(void *data) { strcat(data, " (ended)"); }

static void error_handler(void **state)
{
    char text[256] = "";
    mlxvk_array a = mlxvk_array_new_int(1), r = mlxvk_array_new();
    (void)state;
    mlxvk_set_error_handler(note_error, text, note_end);
    assert_int_equal(mlxvk_transpose_axes(&r, a, (int[]){ 0 }, 1, stream), MLXVK_ERROR_AXIS);
    assert_non_null(strstr(text, "transpose_axes"));
    mlxvk_set_error_handler(NULL, NULL, NULL);
    assert_non_null(strstr(text, "(ended)"));
    assert_int_equal(mlxvk_transpose_axes(&r, a, (int[]){ 0 }, 1, stream), MLXVK_ERROR_AXIS);
    mlxvk_array_free(a);
}

/* The handler hears of the default device, whichever it is, and of no other; its own one of a device that is not it. */
static void note_own(const mlxvk_error *error, void *data) { snprintf(data, 200, "own: %.100s", error->text); }

static void error_handler_follows(void **state)
{
    char text[256] = "", own[256] = "";
    mlxvk_device first = mlxvk_device_new(), second = { NULL };
    mlxvk_buffer none = { NULL };
    (void)state;
    CHECK(create_device(&second, &(mlxvk_device_desc){ .on_error = note_own, .user = own }));
    mlxvk_set_error_handler(note_error, text, NULL);
    CHECK(mlxvk_set_default_device(second));
    assert_int_equal(mlxvk_buffer_new(&none, SIZE_MAX / 2, second), MLXVK_ERROR_LIMIT);
    assert_non_null(strstr(text, "buffer"));
    assert_string_equal(own, "");
    text[0] = 0;
    assert_int_equal(mlxvk_buffer_new(&none, SIZE_MAX / 2, first), MLXVK_ERROR_LIMIT);
    assert_string_equal(text, "");
    CHECK(mlxvk_set_default_device(first));
    assert_int_equal(mlxvk_buffer_new(&none, SIZE_MAX / 2, second), MLXVK_ERROR_LIMIT);
    assert_string_equal(text, "");
    assert_non_null(strstr(own, "own: buffer"));
    assert_int_equal(mlxvk_buffer_new(&none, SIZE_MAX / 2, first), MLXVK_ERROR_LIMIT);
    assert_non_null(strstr(text, "buffer"));
    mlxvk_set_error_handler(NULL, NULL, NULL);
    mlxvk_device_free(first);
    mlxvk_device_free(second);
}

/* ---- arrays ---- */

static void freed(void *data) { ++*(int *)data; }

static void setters_and_items(void **state)
{
    mlxvk_array a = mlxvk_array_new();
    int calls = 0, data[] = { 1, 2, 3 };
    bool b = false;
    int8_t small = 0;
    mlxvk_complex64_t z;
    float parts[2];
    mlxvk_bfloat16_t half = 0;
    double wide;
    (void)state;
    CHECK(mlxvk_array_set_bool(&a, true));
    CHECK(mlxvk_array_item_bool(&b, a));
    assert_true(b);
    CHECK(mlxvk_array_set_int(&a, -3));
    CHECK(mlxvk_astype(&a, a, MLXVK_INT8, stream));
    CHECK(mlxvk_array_item_int8(&small, a));
    assert_int_equal(small, -3);
    CHECK(mlxvk_array_set_complex(&a, 1, -2));
    CHECK(mlxvk_array_item_complex64(&z, a));
    memcpy(parts, &z, sizeof parts);
    assert_true(parts[0] == 1 && parts[1] == -2);
    CHECK(mlxvk_array_set_float(&a, 1.5f));
    CHECK(mlxvk_astype(&a, a, MLXVK_BFLOAT16, stream));
    CHECK(mlxvk_array_item_bfloat16(&half, a));
    assert_int_equal(half, 0x3fc0);
    assert_int_not_equal(mlxvk_array_set_double(&a, 1.5), 0);         /* no float64 on the GPU; a stays */
    assert_int_equal(mlxvk_array_dtype(a), MLXVK_BFLOAT16);
    assert_null(mlxvk_array_new_float64(1).ctx);
    assert_int_not_equal(mlxvk_array_item_float64(&wide, a), 0);
    CHECK(mlxvk_array_set_data(&a, data, (int[]){ 3 }, 1, MLXVK_INT32));
    CHECK(mlxvk_array_eval(a));
    assert_null(mlxvk_array_data_float32(a));
    if (mlxvk_array_data_int32(a)) assert_int_equal(mlxvk_array_data_int32(a)[2], 3);
    mlxvk_array_free(a);
    a = mlxvk_array_new_data_managed_payload(data, (int[]){ 3 }, 1, MLXVK_INT32, &calls, freed);
    assert_int_equal(calls, 1);
    mlxvk_array_free(a);
}

static void expect_text(mlxvk_array *a, const char *want)
{
    mlxvk_string text = mlxvk_string_new();
    CHECK(mlxvk_array_tostring(&text, *a));
    assert_string_equal(mlxvk_string_data(text), want);
    mlxvk_string_free(text);
    mlxvk_array_free(*a);
    a->ctx = NULL;
}

/* As MLX prints them. */
static void texts(void **state)
{
    mlxvk_array a = mlxvk_array_new();
    float z[] = { 1, 2, 1, -1 }, f[] = { 1.5f, NAN, INFINITY, 1e10f, 1e-7f, -0.0f };
    (void)state;
    CHECK(mlxvk_arange(&a, 0, 7, 1, MLXVK_INT32, stream));
    expect_text(&a, "array([0, 1, 2, ..., 4, 5, 6], dtype=int32)");
    CHECK(mlxvk_arange(&a, 0, 6, 1, MLXVK_UINT8, stream));
    expect_text(&a, "array([0, 1, 2, 3, 4, 5], dtype=uint8)");
    CHECK(mlxvk_zeros(&a, (int[]){ 2, 0, 3 }, 3, MLXVK_FLOAT32, stream));
    expect_text(&a, "array([[],\n       []], dtype=float32)");
    a = mlxvk_array_new_float(3.5f);
    expect_text(&a, "array(3.5, dtype=float32)");
    a = mlxvk_array_new_bool(true);
    expect_text(&a, "array(True, dtype=bool)");
    a = mlxvk_array_new_data(f, (int[]){ 6 }, 1, MLXVK_FLOAT32);
    expect_text(&a, "array([1.5, nan, inf, 1e+10, 1e-07, -0], dtype=float32)");
    a = mlxvk_array_new_data(z, (int[]){ 2 }, 1, MLXVK_COMPLEX64);
    expect_text(&a, "array([1+2j, 1-1j], dtype=complex64)");
    CHECK(mlxvk_zeros(&a, (int[]){ 1, 7, 1 }, 3, MLXVK_FLOAT16, stream));
    expect_text(&a, "array([[[0],\n        [0],\n        [0],\n        ...,\n        [0],\n        [0],\n        [0]]], dtype=float16)");
    CHECK(mlxvk_zeros(&a, (int[]){ 2, 2, 1, 2 }, 4, MLXVK_INT64, stream));
    expect_text(&a, "array([[[[0, 0]],\n        [[0, 0]]],\n       [[[0, 0]],\n        [[0, 0]]]], dtype=int64)");
}

/* ---- files in memory ---- */

struct memory { unsigned char data[4096]; size_t size, at; bool good; };

static bool memory_good(void *m) { return ((struct memory *)m)->good; }
static size_t memory_tell(void *m) { return ((struct memory *)m)->at; }
static const char *memory_label(void *m) { (void)m; return "memory"; }
static void memory_seek(void *p, int64_t at, int whence)
{
    struct memory *m = p;
    m->at = (size_t)at + (whence == SEEK_END ? m->size : whence == SEEK_CUR ? m->at : 0);
}
static void memory_read(void *p, char *data, size_t n)
{
    struct memory *m = p;
    m->good = m->good && m->at + n <= m->size;
    if (m->good) memcpy(data, m->data + m->at, n);
    m->at += n;
}
static void memory_write(void *p, const char *data, size_t n)
{
    struct memory *m = p;
    m->good = m->good && m->at + n <= sizeof m->data;
    if (m->good) memcpy(m->data + m->at, data, n);
    m->at += n;
    m->size = m->at;
}
static const mlxvk_io_vtable memory_calls = { memory_good, memory_good, memory_tell, memory_seek, memory_read, NULL, memory_write,
                                              memory_label, NULL };

static int load_memory(struct memory *m, mlxvk_map_string_to_array *arrays, mlxvk_map_string_to_string *metadata)
{
    mlxvk_io_reader reader = mlxvk_io_reader_new(m, memory_calls);
    int code;
    m->good = true;
    code = mlxvk_load_safetensors_reader(arrays, metadata, reader, stream);
    mlxvk_io_reader_free(reader);
    return code;
}

static void safetensors_round(void **state)
{
    static const mlxvk_dtype dtype[] = { MLXVK_BOOL, MLXVK_UINT8, MLXVK_INT16, MLXVK_INT64, MLXVK_FLOAT16, MLXVK_BFLOAT16, MLXVK_FLOAT32, MLXVK_COMPLEX64 };
    struct memory m = { .good = true };
    mlxvk_io_writer writer = mlxvk_io_writer_new(&m, memory_calls);
    mlxvk_map_string_to_array arrays = mlxvk_map_string_to_array_new(), back = mlxvk_map_string_to_array_new();
    mlxvk_map_string_to_string metadata = mlxvk_map_string_to_string_new(), texts_back = mlxvk_map_string_to_string_new();
    mlxvk_array a = mlxvk_array_new(), b = mlxvk_array_new(), same = mlxvk_array_new();
    const char *text = "";
    char key[40];
    void *descriptor = NULL;
    (void)state;
    for (size_t i = 0; i < COUNT(dtype); i++) {
        CHECK(mlxvk_arange(&a, -3, 3, 1, MLXVK_FLOAT32, stream));
        CHECK(mlxvk_reshape(&a, a, (int[]){ 2, 3 }, 2, stream));
        CHECK(mlxvk_astype(&a, a, dtype[i], stream));
        CHECK(mlxvk_transpose(&a, a, stream));                        /* written row-major all the same */
        snprintf(key, sizeof key, "tensor \"%zu\"\n\\", i);
        CHECK(mlxvk_map_string_to_array_insert(arrays, key, a));
    }
    CHECK(mlxvk_zeros(&a, (int[]){ 0, 4 }, 2, MLXVK_FLOAT32, stream));
    CHECK(mlxvk_map_string_to_array_insert(arrays, "empty", a));
    CHECK(mlxvk_map_string_to_array_insert(arrays, "scalar", (a = (mlxvk_array_free(a), mlxvk_array_new_int(4)))));
    CHECK(mlxvk_map_string_to_string_insert(metadata, "note", "a \"quoted\"\ttext, \xc3\xa9"));
    CHECK(mlxvk_io_writer_descriptor(&descriptor, writer));
    assert_ptr_equal(descriptor, &m);
    CHECK(mlxvk_save_safetensors_writer(writer, arrays, metadata));
    assert_int_equal(m.size % 8, (2 * 6 + 3 * 12 + 24 + 96 + 4) % 8);  /* the header is padded */
    CHECK(load_memory(&m, &back, &texts_back));
    CHECK(mlxvk_map_string_to_string_get(&text, texts_back, "note"));
    assert_string_equal(text, "a \"quoted\"\ttext, \xc3\xa9");
    for (size_t i = 0; i < COUNT(dtype); i++) {
        bool equal = false;
        snprintf(key, sizeof key, "tensor \"%zu\"\n\\", i);
        CHECK(mlxvk_map_string_to_array_get(&a, arrays, key));
        CHECK(mlxvk_map_string_to_array_get(&b, back, key));
        assert_int_equal(mlxvk_array_dtype(b), dtype[i]);
        CHECK(mlxvk_array_equal(&same, a, b, false, stream));
        CHECK(mlxvk_array_item_bool(&equal, same));
        assert_true(equal);
    }
    CHECK(mlxvk_map_string_to_array_get(&b, back, "empty"));
    assert_int_equal(mlxvk_array_dim(b, 1), 4);
    mlxvk_io_writer_free(writer);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(same);
    mlxvk_map_string_to_array_free(arrays);
    mlxvk_map_string_to_array_free(back);
    mlxvk_map_string_to_string_free(metadata);
    mlxvk_map_string_to_string_free(texts_back);
}

/* Every cut of a good file is refused, or read without touching what is not there; so are wrong headers. */
static void safetensors_wrong(void **state)
{
    static const char *const headers[] = {
        "", "[]", "{", "{\"a\"}", "{\"a\":1}", "{\"a\":{}}", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
        "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"X9\",\"shape\":[1],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[18446744073709551615,18446744073709551615]}}",
        "{\"\\uZZZZ\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "{\"a\\", "{\"__metadata__\":{\"x\":1}}", "{\"__metadata__\":nul}", "{\"__metadata__\":nul",
    };
    mlxvk_map_string_to_array arrays = mlxvk_map_string_to_array_new();
    mlxvk_map_string_to_string metadata = mlxvk_map_string_to_string_new();
    mlxvk_array a = mlxvk_array_new_int(1);
    struct memory m = { .good = true };
    (void)state;
    CHECK(mlxvk_map_string_to_array_insert(arrays, "kept", a));
    for (size_t i = 0; i < COUNT(headers); i++) {
        size_t n = strlen(headers[i]);
        memset(&m, 0, sizeof m);
        m.data[0] = (unsigned char)n;
        memcpy(m.data + 8, headers[i], n);
        m.size = 8 + n + 8;
        if (!load_memory(&m, &arrays, &metadata)) fail_msg("header %s was taken", headers[i]);
    }
    const char *good = "{\"__metadata__\":{\"k\":\"\\ud83d\\ude00\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    memset(&m, 0, sizeof m);
    m.data[0] = (unsigned char)strlen(good);
    memcpy(m.data + 8, good, strlen(good));
    for (m.size = 0; m.size < 16 + strlen(good); m.size++) assert_int_not_equal(load_memory(&m, &arrays, &metadata), 0);
    CHECK(mlxvk_map_string_to_array_get(&a, arrays, "kept"));          /* nothing of the wrong ones was kept */
    CHECK(load_memory(&m, &arrays, &metadata));
    assert_int_not_equal(mlxvk_map_string_to_array_get(&a, arrays, "kept"), 0);
    const char *smile = "";
    CHECK(mlxvk_map_string_to_string_get(&smile, metadata, "k"));
    assert_string_equal(smile, "\xf0\x9f\x98\x80");
    const char *empty = "{\"__metadata__\": null,\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[0,8]}}";   /* MLX's own */
    memset(&m, 0, sizeof m);
    m.data[0] = (unsigned char)strlen(empty);
    memcpy(m.data + 8, empty, strlen(empty));
    m.size = 16 + strlen(empty);
    CHECK(load_memory(&m, &arrays, &metadata));
    assert_int_not_equal(mlxvk_map_string_to_string_get(&smile, metadata, "k"), 0);
    CHECK(mlxvk_map_string_to_array_get(&a, arrays, "a"));
    assert_int_equal(mlxvk_array_dtype(a), MLXVK_UINT8);
    REFUSED(mlxvk_load_safetensors(&arrays, &metadata, "/no/such/file", stream), MLXVK_ERROR_ARGUMENT, stream, "/no/such/file");
    assert_int_not_equal(mlxvk_save_safetensors("/no/such/file", arrays, metadata), 0);
    mlxvk_array_free(a);
    mlxvk_map_string_to_array_free(arrays);
    mlxvk_map_string_to_string_free(metadata);
}

/* What cannot be saved is an error of the arrays' device; no other is made to keep it. */
static void errors_of_saving(void **state)
{
    mlxvk_device other = open_device(NULL);
    mlxvk_array a = ints(other, (int32_t[]){ 1, 2 }, (int[]){ 2 }, 1);
    mlxvk_map_string_to_array arrays = mlxvk_map_string_to_array_new();
    mlxvk_map_string_to_string none = { NULL };
    mlxvk_io_gguf gguf = mlxvk_io_gguf_new();
    mlxvk_error error = { 0 };
    (void)state;
    CHECK(mlxvk_map_string_to_array_insert(arrays, "a", a));
    CHECK(mlxvk_io_gguf_set_array(gguf, "a", a));
    const char *const calls[] = { "save", "save_safetensors", "save_gguf" };
    for (size_t i = 0; i < COUNT(calls); i++) {
        int code = i == 0 ? mlxvk_save("/no/such/file", a)
                 : i == 1 ? mlxvk_save_safetensors("/no/such/file", arrays, none) : mlxvk_save_gguf("/no/such/file", gguf);
        CHECK(mlxvk_device_error(other, &error));
        assert_int_equal(code, MLXVK_ERROR_ARGUMENT);
        assert_int_equal(error.code, code);
        assert_string_equal(error.operation, calls[i]);
    }
    mlxvk_io_gguf_free(gguf);
    mlxvk_map_string_to_array_free(arrays);
    mlxvk_array_free(a);
    mlxvk_device_free(other);
}

/* ---- npy ---- */

static int load_npy(struct memory *m, mlxvk_array *res)
{
    mlxvk_io_reader reader = mlxvk_io_reader_new(m, memory_calls);
    int code;
    m->good = true;
    code = mlxvk_load_reader(res, reader, stream);
    mlxvk_io_reader_free(reader);
    return code;
}

static void memory_read_at(void *p, char *data, size_t n, size_t at)
{
    memory_seek(p, (int64_t)at, SEEK_SET);
    memory_read(p, data, n);
}
static const char *no_label(void *m) { (void)m; return NULL; }

/* A reader that reads at offsets alone, and has no name. */
static void reader_at_offsets(void **state)
{
    const mlxvk_io_vtable calls = { .seek = memory_seek, .tell = memory_tell, .read_at_offset = memory_read_at, .label = no_label };
    struct memory m = { .good = true };
    mlxvk_string text = { NULL };
    mlxvk_array a = mlxvk_array_new_int(3), b = { NULL };
    (void)state;
    mlxvk_io_writer writer = mlxvk_io_writer_new(&m, memory_calls);
    CHECK(mlxvk_save_writer(writer, a));
    mlxvk_io_writer_free(writer);
    mlxvk_io_reader reader = mlxvk_io_reader_new(&m, calls);
    OK(mlxvk_load_reader(&b, reader, stream), stream);
    expect_ints(b, (int32_t[]){ 3 }, 1, stream);
    CHECK(mlxvk_io_reader_tostring(&text, reader));
    assert_string_equal(mlxvk_string_data(text), "(no name)");
    m.data[0] = 0;
    REFUSED(mlxvk_load_reader(&b, reader, stream), MLXVK_ERROR_ARGUMENT, stream, "load_reader", "(no name)");
    mlxvk_io_reader_free(reader);
    reader = mlxvk_io_reader_new(&m, (mlxvk_io_vtable){ .seek = memory_seek, .tell = memory_tell });
    REFUSED(mlxvk_load_reader(&b, reader, stream), MLXVK_ERROR_ARGUMENT, stream, "lacks");
    mlxvk_io_reader_free(reader);
    mlxvk_string_free(text);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
}

/* What NumPy writes for np.arange(6, dtype=int16).reshape(2, 3), in either order. */
static void npy_from_numpy(void **state)
{
    mlxvk_array a = mlxvk_array_new();
    (void)state;
    for (int fortran = 0; fortran < 2; fortran++) {
        static const int16_t values[2][6] = { { 0, 1, 2, 3, 4, 5 }, { 0, 3, 1, 4, 2, 5 } };
        struct memory m = { .data = "\x93NUMPY\x01" };
        m.data[8] = 118;
        memset(m.data + 10, ' ', 118);
        snprintf((char *)m.data + 10, 118, "{'descr': '<i2', 'fortran_order': %s, 'shape': (2, 3), }", fortran ? "True" : "False");
        m.data[10 + strlen((char *)m.data + 10)] = ' ';
        m.data[127] = '\n';
        memcpy(m.data + 128, values[fortran], 12);
        m.size = 140;
        CHECK(load_npy(&m, &a));
        assert_int_equal(mlxvk_array_dtype(a), MLXVK_INT16);
        assert_int_equal(mlxvk_array_dim(a, 0), 2);
        CHECK(mlxvk_astype(&a, a, MLXVK_INT32, stream));
        expect_ints(a, (int32_t[]){ 0, 1, 2, 3, 4, 5 }, 6, stream);
        for (m.size = 0; m.size < 140; m.size++) assert_int_not_equal(load_npy(&m, &a), 0);
    }
    mlxvk_array_free(a);
}

static void npy_round(void **state)
{
    static const char *const path = "test_mlxc.npy";
    mlxvk_array a = mlxvk_array_new(), b = mlxvk_array_new();
    (void)state;
    for (int ndim = 0; ndim < 4; ndim++) {
        for (int t = 0; t < MLXVK_DTYPE_COUNT; t++) {
            bool equal = false;
            if (t == MLXVK_FLOAT64) continue;
            CHECK(mlxvk_full(&a, (int[]){ 2, 3, 1 }, (size_t)ndim, (b = (mlxvk_array_free(b), mlxvk_array_new_int(3))), (mlxvk_dtype)t, stream));
            CHECK(mlxvk_save(path, a));
            CHECK(mlxvk_load(&b, path, stream));
            assert_int_equal(mlxvk_array_dtype(b), t);
            assert_int_equal(mlxvk_array_ndim(b), ndim);
            CHECK(mlxvk_array_equal(&a, a, b, false, stream));
            CHECK(mlxvk_array_item_bool(&equal, a));
            assert_true(equal);
        }
    }
    remove(path);
    REFUSED(mlxvk_load(&a, path, stream), MLXVK_ERROR_ARGUMENT, stream, path);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
}

/* ---- GGUF ---- */

static const char *const gguf_path = "test_mlxc.gguf";

static void gguf_round(void **state)
{
    mlxvk_io_gguf g = mlxvk_io_gguf_new(), back = mlxvk_io_gguf_new();
    mlxvk_array a = mlxvk_array_new(), b = mlxvk_array_new(), same = mlxvk_array_new();
    mlxvk_vector_string words = mlxvk_vector_string_new_data((const char *[]){ "one", "", "three" }, 3), keys = mlxvk_vector_string_new();
    mlxvk_string text = mlxvk_string_new();
    static const mlxvk_dtype dtype[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16, MLXVK_INT8, MLXVK_INT64 };
    char name[16], *word;
    bool yes = false;
    int32_t number = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(dtype); i++) {
        CHECK(mlxvk_arange(&a, 0, 15, 1, dtype[i], stream));
        CHECK(mlxvk_reshape(&a, a, (int[]){ 3, 5 }, 2, stream));
        snprintf(name, sizeof name, "t%zu", i);
        CHECK(mlxvk_io_gguf_set_array(g, name, a));
    }
    CHECK(mlxvk_array_set_int(&b, -5));
    CHECK(mlxvk_io_gguf_set_metadata_array(g, "number", b));
    mlxvk_array_free(b);
    b = mlxvk_array_new_data(&(uint32_t){ 512 }, NULL, 0, MLXVK_UINT32);
    CHECK(mlxvk_io_gguf_set_metadata_array(g, "general.alignment", b));
    CHECK(mlxvk_arange(&b, 0, 4, 1, MLXVK_FLOAT32, stream));
    CHECK(mlxvk_io_gguf_set_metadata_array(g, "numbers", b));
    CHECK(mlxvk_io_gguf_set_metadata_string(g, "text", "hello"));
    CHECK(mlxvk_io_gguf_set_metadata_vector_string(g, "words", words));
    CHECK(mlxvk_save_gguf(gguf_path, g));
    CHECK(mlxvk_load_gguf(&back, gguf_path, stream));
    CHECK(mlxvk_io_gguf_get_keys(&keys, back));
    assert_int_equal(mlxvk_vector_string_size(keys), COUNT(dtype));
    for (size_t i = 0; i < COUNT(dtype); i++) {
        snprintf(name, sizeof name, "t%zu", i);
        CHECK(mlxvk_io_gguf_get_array(&a, g, name));
        CHECK(mlxvk_io_gguf_get_array(&b, back, name));
        assert_int_equal(mlxvk_array_dtype(b), dtype[i]);
        CHECK(mlxvk_array_equal(&same, a, b, false, stream));
        CHECK(mlxvk_array_item_bool(&yes, same));
        assert_true(yes);
    }
    CHECK(mlxvk_io_gguf_get_metadata_array(&b, back, "number"));
    CHECK(mlxvk_array_item_int32(&number, b));
    assert_int_equal(number, -5);
    CHECK(mlxvk_io_gguf_get_metadata_array(&b, back, "numbers"));
    assert_int_equal(mlxvk_array_size(b), 4);
    CHECK(mlxvk_io_gguf_get_metadata_string(&text, back, "text"));
    assert_string_equal(mlxvk_string_data(text), "hello");
    CHECK(mlxvk_io_gguf_get_metadata_vector_string(&words, back, "words"));
    CHECK(mlxvk_vector_string_get(&word, words, 2));
    assert_string_equal(word, "three");
    CHECK(mlxvk_io_gguf_has_metadata_string(&yes, back, "words"));
    assert_false(yes);
    CHECK(mlxvk_io_gguf_has_metadata_vector_string(&yes, back, "words"));
    assert_true(yes);
    assert_int_not_equal(mlxvk_io_gguf_get_metadata_string(&text, back, "none"), 0);
    CHECK(mlxvk_array_set_complex(&a, 1, 2));
    CHECK(mlxvk_io_gguf_set_array(g, "complex", a));
    assert_int_equal(mlxvk_save_gguf(gguf_path, g), MLXVK_ERROR_DTYPE);
    remove(gguf_path);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(same);
    mlxvk_string_free(text);
    mlxvk_vector_string_free(words);
    mlxvk_vector_string_free(keys);
    mlxvk_io_gguf_free(g);
    mlxvk_io_gguf_free(back);
}

static size_t put(unsigned char *to, size_t at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) to[at + i] = (unsigned char)(value >> (8 * i));
    return at + bytes;
}

static size_t put_name(unsigned char *to, size_t at, const char *text)
{
    at = put(to, at, strlen(text), 8);
    memcpy(to + at, text, strlen(text));
    return at + strlen(text);
}

/* A row of 64 values in each of three kinds of blocks; returns the file's size. */
static size_t block_file(unsigned char *file)
{
    static const struct { const char *name; int type, bytes; } kinds[] = { { "a.weight", 2, 18 }, { "b.weight", 3, 20 }, { "c.weight", 8, 34 } };
    size_t at = put(file, 0, 0x46554747, 4), offset = 0;
    at = put(file, at, 3, 4);
    at = put(file, at, 3, 8);
    at = put(file, at, 1, 8);
    at = put_name(file, at, "general.alignment");
    at = put(file, put(file, at, 4, 4), 64, 4);
    for (int i = 0; i < 3; i++) {
        at = put_name(file, at, kinds[i].name);
        at = put(file, at, 2, 4);
        at = put(file, put(file, at, 64, 8), 1, 8);
        at = put(file, put(file, at, (uint64_t)kinds[i].type, 4), offset, 8);
        offset += 128;
    }
    at = (at + 63) / 64 * 64;
    for (int i = 0; i < 3; i++)
        for (int b = 0; b < 2; b++) {
            unsigned char *block = file + at + (size_t)(128 * i + b * kinds[i].bytes);
            block += put(block, 0, float_to_half(b ? 0.5f : 0.25f), 2);
            if (i == 1) block += put(block, 0, float_to_half(3), 2);
            for (int k = 0; k < 32; k++) {
                int code = (k * 5 + b) % 16;
                if (i == 2) block[k] = (unsigned char)(code - 8);
                else block[k % 16] |= (unsigned char)(k < 16 ? code : code << 4);
            }
        }
    return at + 128 * 3;
}

static void gguf_blocks(void **state)
{
    unsigned char file[2048] = { 0 };
    size_t size = block_file(file);
    mlxvk_io_gguf g = mlxvk_io_gguf_new();
    mlxvk_array w = mlxvk_array_new(), s = mlxvk_array_new(), b = mlxvk_array_new(), x = mlxvk_array_new();
    (void)state;
    for (size_t cut = 0; cut <= size; cut += cut < size - 300 ? 1 : 20) {            /* all of it once at the end */
        FILE *f = fopen(gguf_path, "wb");
        assert_non_null(f);
        if (size - cut < 20) cut = size;
        assert_int_equal(fwrite(file, 1, cut, f), cut);
        fclose(f);
        if (cut < size - 128) assert_int_not_equal(mlxvk_load_gguf(&g, gguf_path, stream), 0);
    }
    CHECK(mlxvk_load_gguf(&g, gguf_path, stream));
    remove(gguf_path);
    for (int i = 0; i < 3; i++) {
        char name[3][16];
        float want[64], got[64];
        static const char *const ends[] = { "weight", "scales", "biases" };
        mlxvk_array *parts[] = { &w, &s, &b };
        for (int k = 0; k < 3; k++) {
            snprintf(name[k], sizeof name[k], "%c.%s", 'a' + i, ends[k]);
            CHECK(mlxvk_io_gguf_get_array(parts[k], g, name[k]));
        }
        assert_int_equal(mlxvk_array_dim(w, 1), i == 2 ? 16 : 8);
        CHECK(mlxvk_dequantize(&x, w, s, b, (mlxvk_optional_int){ 32, true }, (mlxvk_optional_int){ i == 2 ? 8 : 4, true }, "affine",
                               (mlxvk_array){ NULL }, (mlxvk_optional_dtype){ MLXVK_FLOAT32, true }, stream));
        CHECK(mlxvk_array_read(x, got, sizeof got, stream));
        for (int k = 0; k < 64; k++) {
            int block = k / 32, code = (k % 32 * 5 + block) % 16;
            float scale = block ? 0.5f : 0.25f;
            want[k] = i == 1 ? scale * (float)code + 3 : scale * (float)(code - 8);
            assert_true(got[k] == want[k]);
        }
    }
    mlxvk_array_free(w);
    mlxvk_array_free(s);
    mlxvk_array_free(b);
    mlxvk_array_free(x);
    mlxvk_io_gguf_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings), cmocka_unit_test(vectors), cmocka_unit_test(vectors_of_arrays), cmocka_unit_test(maps),
        cmocka_unit_test(devices), cmocka_unit_test(error_handler), cmocka_unit_test(error_handler_follows),
        cmocka_unit_test(setters_and_items), cmocka_unit_test(texts),
        cmocka_unit_test(safetensors_round), cmocka_unit_test(safetensors_wrong), cmocka_unit_test(reader_at_offsets), cmocka_unit_test(npy_from_numpy),
        cmocka_unit_test(errors_of_saving),
        cmocka_unit_test(npy_round), cmocka_unit_test(gguf_round), cmocka_unit_test(gguf_blocks),
    };
    return run_group("mlxc", tests, set_up_default, tear_down);
}
