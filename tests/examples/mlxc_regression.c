/* A program in mlx-c's terms: with every mlxvk_ read as mlx_ and MLXVK_ as MLX_ it is one for mlx-c.
 * Linear regression by gradient descent, the gradient written out; several results are evaluated at once. */
#include <stdio.h>
#include <stdlib.h>
#include "mlxvk.h"

enum { SAMPLES = 512, FEATURES = 16, STEPS = 60 };

static void on_error(const char *text, void *data)
{
    (void)data;
    fprintf(stderr, "%s\n", text);
}

int main(void)
{
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    mlxvk_array x = mlxvk_array_new(), xt = mlxvk_array_new(), truth = mlxvk_array_new(), y = mlxvk_array_new();
    mlxvk_array w = mlxvk_array_new(), error = mlxvk_array_new(), step = mlxvk_array_new(), loss = mlxvk_array_new();
    mlxvk_array key = mlxvk_array_new(), noise = mlxvk_array_new(), rate = mlxvk_array_new_float(0.5f / SAMPLES);
    mlxvk_vector_array state;
    float first = 0, last = 0;

    mlxvk_set_error_handler(on_error, NULL, NULL);
    mlxvk_random_key(&key, 7);
    mlxvk_random_split(&key, &noise, key, s);
    mlxvk_random_normal(&truth, (int[]){ FEATURES, 1 }, 2, MLXVK_FLOAT32, 0, 1, key, s);
    mlxvk_random_normal(&x, (int[]){ SAMPLES, FEATURES }, 2, MLXVK_FLOAT32, 0, 1, noise, s);
    mlxvk_matmul(&y, x, truth, s);
    mlxvk_transpose(&xt, x, s);
    mlxvk_zeros(&w, (int[]){ FEATURES, 1 }, 2, MLXVK_FLOAT32, s);

    for (int i = 0; i < STEPS; i++) {
        mlxvk_matmul(&error, x, w, s);
        mlxvk_subtract(&error, error, y, s);
        mlxvk_square(&loss, error, s);
        mlxvk_mean(&loss, loss, false, s);
        mlxvk_matmul(&step, xt, error, s);
        mlxvk_multiply(&step, step, rate, s);
        mlxvk_subtract(&w, w, step, s);
        state = mlxvk_vector_array_new();
        mlxvk_vector_array_append_value(state, w);
        mlxvk_vector_array_append_value(state, loss);
        mlxvk_eval(state);
        mlxvk_vector_array_free(state);
        mlxvk_array_item_float32(&last, loss);
        if (!i) first = last;
    }
    printf("loss %g after one step, %g after %d\n", (double)first, (double)last, STEPS);
    mlxvk_linalg_norm_l2(&error, truth, NULL, 0, false, s);

    mlxvk_array all[] = { x, xt, truth, y, w, error, step, loss, key, noise, rate };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mlxvk_array_free(all[i]);
    mlxvk_stream_free(s);
    return first > 1 && last < 1e-6f ? EXIT_SUCCESS : EXIT_FAILURE;
}
