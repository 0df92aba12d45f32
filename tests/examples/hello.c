/* The smallest program: a matrix product on the default device.
 *
 *     cc hello.c mlxvk.c -ldl -lpthread -lm */
#include <stdio.h>
#include "mlxvk.h"

int main(void)
{
    float x[] = { 1, 2, 3, 4 }, y[4];
    mlxvk_error error;
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    mlxvk_array a = mlxvk_array_new_data(x, (int[]){ 2, 2 }, 2, MLXVK_FLOAT32);

    mlxvk_matmul(&a, a, a, s);
    if (mlxvk_array_read(a, y, sizeof y, s)) {
        if (!mlxvk_stream_error(s, &error)) fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    printf("%g %g\n%g %g\n", y[0], y[1], y[2], y[3]);
    mlxvk_array_free(a);
    mlxvk_stream_free(s);
    return y[0] == 7 && y[1] == 10 && y[2] == 15 && y[3] == 22 ? 0 : 1;
}
