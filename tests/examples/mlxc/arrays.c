/* A program for mlx-c. The Makefile renames mlx_ to mlxvk_ and builds what comes out.
 * Arrays, printing, broadcasting, reductions, and where it runs. */
#include <stdio.h>
#include "mlx/c/mlx.h"

static void print_array(const char *what, mlx_array a)
{
    mlx_string text = mlx_string_new();
    mlx_array_tostring(&text, a);
    printf("%s\n%s\n", what, mlx_string_data(text));
    mlx_string_free(text);
}

static void print_device(void)
{
    mlx_device device = mlx_device_new();
    mlx_device_info info = mlx_device_info_new();
    mlx_vector_string keys = mlx_vector_string_new();
    mlx_device_info_get(&info, device);
    mlx_device_info_get_keys(&keys, info);
    for (size_t i = 0; i < mlx_vector_string_size(keys); i++) {
        char *key;
        bool is_string;
        mlx_vector_string_get(&key, keys, i);
        mlx_device_info_is_string(&is_string, info, key);
        if (is_string) {
            const char *value;
            mlx_device_info_get_string(&value, info, key);
            printf("  %s: %s\n", key, value);
        } else {
            size_t value;
            mlx_device_info_get_size(&value, info, key);
            printf("  %s: %zu\n", key, value);
        }
    }
    mlx_vector_string_free(keys);
    mlx_device_info_free(info);
    mlx_device_free(device);
}

int main(void)
{
    float data[] = { 1, 2, 3, 4, 5, 6 };
    int shape[] = { 2, 3 };
    mlx_stream stream = mlx_default_gpu_stream_new();
    mlx_array arr = mlx_array_new_data(data, shape, 2, MLX_FLOAT32);
    mlx_array two = mlx_array_new_int(2);
    mlx_array res = mlx_array_new();
    float sum = 0;
    size_t active = 0;

    print_device();
    print_array("hello world!", arr);
    mlx_divide(&res, arr, two, stream);
    print_array("divided by 2!", res);
    mlx_sum(&res, res, false, stream);
    mlx_array_item_float32(&sum, res);
    mlx_arange(&res, 0, 3, 0.5, MLX_FLOAT32, stream);
    print_array("arange", res);
    mlx_full(&res, (int[]){ 20, 3 }, 2, two, MLX_INT32, stream);
    print_array("a tall one", res);
    mlx_get_active_memory(&active);
    printf("sum %g, %zu bytes in use\n", (double)sum, active);

    mlx_array_free(arr);
    mlx_array_free(two);
    mlx_array_free(res);
    mlx_stream_free(stream);
    return sum == 10.5f && active > 0 ? 0 : 1;
}
