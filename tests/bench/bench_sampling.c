#include "bench.h"
int main(void)
{
    open_device(NULL);
    mlxvk_array x = { NULL }, low = { NULL }, y = { NULL }, z = { NULL };
    float v[2] = { -4, 4 };
    mlxvk_array high = { NULL };
    check(mlxvk_array_new_data_device(&low, &v[0], NULL, 0, MLXVK_FLOAT32, device), "a");
    check(mlxvk_array_new_data_device(&high, &v[1], NULL, 0, MLXVK_FLOAT32, device), "a");
    check(mlxvk_random_uniform(&x, low, high, (int[]){ 1, 151936 }, 2, MLXVK_BFLOAT16, (mlxvk_array){ NULL }, stream), "u");
    check(mlxvk_array_eval(x), "e");
    double best = 1e30;
    int repeat = gpu ? 300 : 20;
    for (int round = 0; round < 8; round++) {
        double t = now();
        for (int i = 0; i < repeat; i++) {
            check(mlxvk_logsumexp_axis(&y, x, 1, true, stream), "l");
            check(mlxvk_subtract(&y, x, y, stream), "s");
            check(mlxvk_argmax_axis(&z, y, 1, true, stream), "m");
            check(mlxvk_finalize(stream), "f");
        }
        check(mlxvk_synchronize(stream), "y");
        if (now() - t < best) best = now() - t;
    }
    printf("lse, subtract, argmax: %.1f us\n", best / repeat * 1e6);
    close_device();
    return 0;
}
