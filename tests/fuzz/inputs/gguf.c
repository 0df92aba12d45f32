/* A GGUF file: metadata and tensors; what it has is written again, and read. */
#include "input.h"

static void expect_all(mlxvk_io_gguf gguf)
{
    mlxvk_vector_string keys = mlxvk_vector_string_new();
    mlxvk_array a = { NULL };
    EXPECT(!mlxvk_io_gguf_get_keys(&keys, gguf));
    for (size_t i = 0; i < mlxvk_vector_string_size(keys); i++) {
        char *key;
        EXPECT(!mlxvk_vector_string_get(&key, keys, i));
        EXPECT(!mlxvk_io_gguf_get_array(&a, gguf, key));
        expect_whole(a);
    }
    mlxvk_array_free(a);
    mlxvk_vector_string_free(keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mlxvk_io_gguf gguf = mlxvk_io_gguf_new();
    const char *path = input_file("input.gguf", data, size);
    int code = mlxvk_load_gguf(&gguf, path, input_stream());
    if (code) expect_refusal(code);
    else {
        expect_all(gguf);
        if (!mlxvk_save_gguf(path, gguf)) EXPECT(!mlxvk_load_gguf(&gguf, path, input_stream()));
    }
    mlxvk_io_gguf_free(gguf);
    return 0;
}
