/* Compiled with -fvisibility=hidden. */
#include "filter.h"

#define MLXVK_IMPLEMENTATION
#include "mlxvk.h"

float filter_sum(const float *x, int n)
{
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    mlxvk_array a = mlxvk_array_new_data(x, &n, 1, MLXVK_FLOAT32);
    float sum = 0;
    if (mlxvk_sum(&a, a, false, s) || mlxvk_array_read(a, &sum, sizeof sum, s)) sum = -1;
    mlxvk_array_free(a);
    mlxvk_stream_free(s);
    return sum;
}
