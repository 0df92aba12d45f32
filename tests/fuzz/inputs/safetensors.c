/* Weights: as the library reads them, and as the Qwen3 program does. */
#include "input.h"
#include "qwen3/safetensors.h"

static void expect_all(mlxvk_map_string_to_array arrays)
{
    mlxvk_map_string_to_array_iterator i = mlxvk_map_string_to_array_iterator_new(arrays);
    const char *key;
    mlxvk_array a = { NULL };
    while (!mlxvk_map_string_to_array_iterator_next(&key, &a, i)) expect_whole(a);
    mlxvk_array_free(a);
    mlxvk_map_string_to_array_iterator_free(i);
}

static void load(const uint8_t *data, size_t size)
{
    mlxvk_io_reader reader = input_reader(data, size);
    mlxvk_map_string_to_array arrays = mlxvk_map_string_to_array_new();
    mlxvk_map_string_to_string metadata = mlxvk_map_string_to_string_new();
    int code = mlxvk_load_safetensors_reader(&arrays, &metadata, reader, input_stream());
    if (code) expect_refusal(code);
    else expect_all(arrays);
    mlxvk_map_string_to_array_free(arrays);
    mlxvk_map_string_to_string_free(metadata);
    mlxvk_io_reader_free(reader);
}

static volatile unsigned read_bytes;

static void open_file(const uint8_t *data, size_t size)
{
    struct safetensors st;
    struct error e = { "" };
    if (!safetensors_open_file(&st, input_file("model.safetensors", data, size), &e)) {
        EXPECT(e.text[0]);
        return;
    }
    for (size_t i = 0; i < st.tensor_count; i++)           /* every byte that is promised is there */
        for (size_t k = 0; k < st.tensors[i].end - st.tensors[i].begin; k++)
            read_bytes += ((const unsigned char *)st.tensors[i].data)[k];
    safetensors_close(&st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    load(data, size);
    open_file(data, size);
    return 0;
}
