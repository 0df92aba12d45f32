/* A program in mlx-c's terms: with every mlxvk_ read as mlx_ and MLXVK_ as MLX_ it is one for mlx-c.
 * Arrays and metadata into a safetensors file and back, through iterators. */
#include <stdio.h>
#include <string.h>
#include "mlxvk.h"

static const char *const path = "mlxc_example.safetensors";

static int write_file(mlxvk_stream s)
{
    mlxvk_map_string_to_array arrays = mlxvk_map_string_to_array_new();
    mlxvk_map_string_to_string metadata = mlxvk_map_string_to_string_new();
    mlxvk_array weight = mlxvk_array_new(), bias = mlxvk_array_new(), key = mlxvk_array_new();
    int code;

    mlxvk_random_key(&key, 1);
    mlxvk_random_normal(&weight, (int[]){ 4, 3 }, 2, MLXVK_BFLOAT16, 0, 1, key, s);
    mlxvk_arange(&bias, 0, 4, 1, MLXVK_FLOAT32, s);
    mlxvk_map_string_to_array_insert(arrays, "layer.weight", weight);
    mlxvk_map_string_to_array_insert(arrays, "layer.bias", bias);
    mlxvk_map_string_to_string_insert(metadata, "format", "mlx");
    code = mlxvk_save_safetensors(path, arrays, metadata);

    mlxvk_array_free(weight);
    mlxvk_array_free(bias);
    mlxvk_array_free(key);
    mlxvk_map_string_to_array_free(arrays);
    mlxvk_map_string_to_string_free(metadata);
    return code;
}

int main(void)
{
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    mlxvk_map_string_to_array arrays = mlxvk_map_string_to_array_new();
    mlxvk_map_string_to_string metadata = mlxvk_map_string_to_string_new();
    mlxvk_map_string_to_array_iterator it;
    mlxvk_array value = mlxvk_array_new(), sum = mlxvk_array_new();
    const char *key, *format = "";
    float total = 0;
    int found = 0, failed = write_file(s) || mlxvk_load_safetensors(&arrays, &metadata, path, s);

    it = mlxvk_map_string_to_array_iterator_new(arrays);
    while (!mlxvk_map_string_to_array_iterator_next(&key, &value, it)) {
        mlxvk_string text = mlxvk_string_new();
        mlxvk_array_tostring(&text, value);
        printf("%s: %s\n", key, mlxvk_string_data(text));
        mlxvk_string_free(text);
        found++;
    }
    mlxvk_map_string_to_array_iterator_free(it);
    mlxvk_map_string_to_string_get(&format, metadata, "format");
    mlxvk_map_string_to_array_get(&value, arrays, "layer.bias");
    mlxvk_sum(&sum, value, false, s);
    mlxvk_array_item_float32(&total, sum);
    printf("format %s, the bias adds up to %g\n", format, (double)total);
    failed = failed || found != 2 || total != 6 || strcmp(format, "mlx");

    remove(path);
    mlxvk_array_free(value);
    mlxvk_array_free(sum);
    mlxvk_map_string_to_array_free(arrays);
    mlxvk_map_string_to_string_free(metadata);
    mlxvk_stream_free(s);
    return failed;
}
