/* A kernel of one's own between mlxvk's operations: barriers and memory are the library's work. */
#include <stdio.h>
#include "mlxvk.h"
#include "saxpy_spv.h"

enum { N = 1000 };

int main(void)
{
    struct { uint32_t n, x_shift, y_shift; float a; } push = { .n = N, .a = 2 };
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    mlxvk_array x = mlxvk_array_new(), y = mlxvk_array_new();
    mlxvk_kernel saxpy = { NULL };
    mlxvk_encoder e;
    static float out[N];
    int wrong = 0;
    mlxvk_kernel_desc desc = { .name = "saxpy", .spirv = saxpy_spv, .spirv_size = sizeof saxpy_spv, .bindings = 2,
                               .push_size = sizeof push, .threads = { 64 } };

    if (mlxvk_kernel_new(&saxpy, &desc, mlxvk_stream_device(s))) return 1;
    mlxvk_arange(&x, 0, N, 1, MLXVK_FLOAT32, s);                   /* recorded, not run yet */
    mlxvk_ones(&y, (int[]){ N }, 1, MLXVK_FLOAT32, s);

    mlxvk_stream_encoder(&e, s);                                   /* what was recorded is encoded here */
    mlxvk_set_kernel(e, saxpy);
    mlxvk_set_input_array(e, x, 0, &push.x_shift);
    mlxvk_set_output_array(e, y, 1, &push.y_shift);
    mlxvk_set_bytes(e, &push, sizeof push, 0);
    if (mlxvk_dispatch_threads(e, N, 1, 1)) return 1;

    mlxvk_add(&y, y, y, s);                                        /* and more operations behind it */
    if (mlxvk_array_read(y, out, sizeof out, s)) return 1;
    for (int i = 0; i < N; i++) wrong += out[i] != 2 * (2 * (float)i + 1);
    printf("%d of %d wrong\n", wrong, N);

    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_kernel_free(saxpy);
    mlxvk_stream_free(s);
    return wrong != 0;
}
