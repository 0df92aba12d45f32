/* A program for mlx-c. The Makefile renames mlx_ to mlxvk_ and builds what comes out.
 * Linear regression by gradient descent, the gradient written out; several results are evaluated at once. */
#include <stdio.h>
#include <stdlib.h>
#include "mlx/c/mlx.h"

enum { SAMPLES = 512, FEATURES = 16, STEPS = 60 };

static void on_error(const char *text, void *data)
{
    (void)data;
    fprintf(stderr, "%s\n", text);
}

int main(void)
{
    mlx_stream s = mlx_default_gpu_stream_new();
    mlx_array x = mlx_array_new(), xt = mlx_array_new(), truth = mlx_array_new(), y = mlx_array_new();
    mlx_array w = mlx_array_new(), error = mlx_array_new(), step = mlx_array_new(), loss = mlx_array_new();
    mlx_array key = mlx_array_new(), noise = mlx_array_new(), rate = mlx_array_new_float(0.5f / SAMPLES);
    mlx_vector_array state;
    float first = 0, last = 0;

    mlx_set_error_handler(on_error, NULL, NULL);
    mlx_random_key(&key, 7);
    mlx_random_split(&key, &noise, key, s);
    mlx_random_normal(&truth, (int[]){ FEATURES, 1 }, 2, MLX_FLOAT32, 0, 1, key, s);
    mlx_random_normal(&x, (int[]){ SAMPLES, FEATURES }, 2, MLX_FLOAT32, 0, 1, noise, s);
    mlx_matmul(&y, x, truth, s);
    mlx_transpose(&xt, x, s);
    mlx_zeros(&w, (int[]){ FEATURES, 1 }, 2, MLX_FLOAT32, s);

    for (int i = 0; i < STEPS; i++) {
        mlx_matmul(&error, x, w, s);
        mlx_subtract(&error, error, y, s);
        mlx_square(&loss, error, s);
        mlx_mean(&loss, loss, false, s);
        mlx_matmul(&step, xt, error, s);
        mlx_multiply(&step, step, rate, s);
        mlx_subtract(&w, w, step, s);
        state = mlx_vector_array_new();
        mlx_vector_array_append_value(state, w);
        mlx_vector_array_append_value(state, loss);
        mlx_eval(state);
        mlx_vector_array_free(state);
        mlx_array_item_float32(&last, loss);
        if (!i) first = last;
    }
    printf("loss %g after one step, %g after %d\n", (double)first, (double)last, STEPS);
    mlx_linalg_norm_l2(&error, truth, NULL, 0, false, s);

    mlx_array all[] = { x, xt, truth, y, w, error, step, loss, key, noise, rate };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mlx_array_free(all[i]);
    mlx_stream_free(s);
    return first > 1 && last < 1e-6f ? EXIT_SUCCESS : EXIT_FAILURE;
}
