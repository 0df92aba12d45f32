/* A program for mlx-c. The Makefile renames mlx_ to mlxvk_ and builds what comes out.
 * Arrays and metadata into a safetensors file and back, through iterators. */
#include <stdio.h>
#include <string.h>
#include "mlx/c/mlx.h"

static const char *const path = "mlxc_example.safetensors";

static int write_file(mlx_stream s)
{
    mlx_map_string_to_array arrays = mlx_map_string_to_array_new();
    mlx_map_string_to_string metadata = mlx_map_string_to_string_new();
    mlx_array weight = mlx_array_new(), bias = mlx_array_new(), key = mlx_array_new();
    int code;

    mlx_random_key(&key, 1);
    mlx_random_normal(&weight, (int[]){ 4, 3 }, 2, MLX_BFLOAT16, 0, 1, key, s);
    mlx_arange(&bias, 0, 4, 1, MLX_FLOAT32, s);
    mlx_map_string_to_array_insert(arrays, "layer.weight", weight);
    mlx_map_string_to_array_insert(arrays, "layer.bias", bias);
    mlx_map_string_to_string_insert(metadata, "format", "mlx");
    code = mlx_save_safetensors(path, arrays, metadata);

    mlx_array_free(weight);
    mlx_array_free(bias);
    mlx_array_free(key);
    mlx_map_string_to_array_free(arrays);
    mlx_map_string_to_string_free(metadata);
    return code;
}

int main(void)
{
    mlx_stream s = mlx_default_gpu_stream_new();
    mlx_map_string_to_array arrays = mlx_map_string_to_array_new();
    mlx_map_string_to_string metadata = mlx_map_string_to_string_new();
    mlx_map_string_to_array_iterator it;
    mlx_array value = mlx_array_new(), sum = mlx_array_new();
    const char *key, *format = "";
    float total = 0;
    int found = 0, failed = write_file(s) || mlx_load_safetensors(&arrays, &metadata, path, s);

    it = mlx_map_string_to_array_iterator_new(arrays);
    while (!mlx_map_string_to_array_iterator_next(&key, &value, it)) {
        mlx_string text = mlx_string_new();
        mlx_array_tostring(&text, value);
        printf("%s: %s\n", key, mlx_string_data(text));
        mlx_string_free(text);
        found++;
    }
    mlx_map_string_to_array_iterator_free(it);
    mlx_map_string_to_string_get(&format, metadata, "format");
    mlx_map_string_to_array_get(&value, arrays, "layer.bias");
    mlx_sum(&sum, value, false, s);
    mlx_array_item_float32(&total, sum);
    printf("format %s, the bias adds up to %g\n", format, (double)total);
    failed = failed || found != 2 || total != 6 || strcmp(format, "mlx");

    remove(path);
    mlx_array_free(value);
    mlx_array_free(sum);
    mlx_map_string_to_array_free(arrays);
    mlx_map_string_to_string_free(metadata);
    mlx_stream_free(s);
    return failed;
}
