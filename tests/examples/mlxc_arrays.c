/* A program in mlx-c's terms: with every mlxvk_ read as mlx_ and MLXVK_ as MLX_ it is one for mlx-c.
 * Arrays, printing, broadcasting, reductions, and where it runs. */
#include <stdio.h>
#include "mlxvk.h"

static void print_array(const char *what, mlxvk_array a)
{
    mlxvk_string text = mlxvk_string_new();
    mlxvk_array_tostring(&text, a);
    printf("%s\n%s\n", what, mlxvk_string_data(text));
    mlxvk_string_free(text);
}

static void print_device(void)
{
    mlxvk_device device = mlxvk_device_new();
    mlxvk_device_info info = mlxvk_device_info_new();
    mlxvk_vector_string keys = mlxvk_vector_string_new();
    mlxvk_device_info_get(&info, device);
    mlxvk_device_info_get_keys(&keys, info);
    for (size_t i = 0; i < mlxvk_vector_string_size(keys); i++) {
        char *key;
        bool is_string;
        mlxvk_vector_string_get(&key, keys, i);
        mlxvk_device_info_is_string(&is_string, info, key);
        if (is_string) {
            const char *value;
            mlxvk_device_info_get_string(&value, info, key);
            printf("  %s: %s\n", key, value);
        } else {
            size_t value;
            mlxvk_device_info_get_size(&value, info, key);
            printf("  %s: %zu\n", key, value);
        }
    }
    mlxvk_vector_string_free(keys);
    mlxvk_device_info_free(info);
    mlxvk_device_free(device);
}

int main(void)
{
    float data[] = { 1, 2, 3, 4, 5, 6 };
    int shape[] = { 2, 3 };
    mlxvk_stream stream = mlxvk_default_gpu_stream_new();
    mlxvk_array arr = mlxvk_array_new_data(data, shape, 2, MLXVK_FLOAT32);
    mlxvk_array two = mlxvk_array_new_int(2);
    mlxvk_array res = mlxvk_array_new();
    float sum = 0;
    size_t active = 0;

    print_device();
    print_array("hello world!", arr);
    mlxvk_divide(&res, arr, two, stream);
    print_array("divided by 2!", res);
    mlxvk_sum(&res, res, false, stream);
    mlxvk_array_item_float32(&sum, res);
    mlxvk_arange(&res, 0, 3, 0.5, MLXVK_FLOAT32, stream);
    print_array("arange", res);
    mlxvk_full(&res, (int[]){ 20, 3 }, 2, two, MLXVK_INT32, stream);
    print_array("a tall one", res);
    mlxvk_get_active_memory(&active);
    printf("sum %g, %zu bytes in use\n", (double)sum, active);

    mlxvk_array_free(arr);
    mlxvk_array_free(two);
    mlxvk_array_free(res);
    mlxvk_stream_free(stream);
    return sum == 10.5f && active > 0 ? 0 : 1;
}
