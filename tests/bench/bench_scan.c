/* temporary */
#include "bench.h"
#include <math.h>
static mlxvk_array number(float v) { mlxvk_array a = { NULL }; check(mlxvk_array_new_data_device(&a, &v, NULL, 0, MLXVK_FLOAT32, device), "a"); return a; }
static int run(const char *op, mlxvk_array *y, mlxvk_array x)
{
    if (!strcmp(op, "cumsum")) return mlxvk_cumsum(y, x, 1, false, true, stream);
    if (!strcmp(op, "reverse")) return mlxvk_cumsum(y, x, 1, true, true, stream);
    if (!strcmp(op, "exclusive")) return mlxvk_cumsum(y, x, 1, false, false, stream);
    if (!strcmp(op, "cumprod")) return mlxvk_cumprod(y, x, 1, false, true, stream);
    if (!strcmp(op, "cummax")) return mlxvk_cummax(y, x, 1, false, true, stream);
    if (!strcmp(op, "sort")) return mlxvk_sort_axis(y, x, 1, stream);
    if (!strcmp(op, "argsort")) return mlxvk_argsort_axis(y, x, 1, stream);
    mlxvk_vector_array one = mlxvk_vector_array_new_value(x);
    int code = mlxvk_stack(y, one, stream);
    mlxvk_vector_array_free(one);
    return code;
}
static uint64_t zero;
static void each(const mlxvk_dispatch *p, void *u) { (void)u; if (!zero) zero = p->begin; printf("    %s %u: %.1f +%.1f us\n", p->kernel, p->groups[0], (double)(p->begin - zero) * 1e-3, (double)(p->end - p->begin) * 1e-3); }
int main(int argc, char **argv)
{
    open_device(NULL);
    const char *tag = getenv("TAG") ? getenv("TAG") : "";
    bool trace = getenv("MLX_VK_PROFILE") != NULL;
    for (int i = 1; i < argc; i++) {                 /* op:dtype:rows:log2n */
        char op[16], type[8]; int rows, log;
        sscanf(argv[i], "%15[a-z]:%7[a-z0-9]:%d:%d", op, type, &rows, &log);
        mlxvk_dtype t = !strcmp(type, "bf16") ? MLXVK_BFLOAT16 : !strcmp(type, "f16") ? MLXVK_FLOAT16 : !strcmp(type, "i32") ? MLXVK_INT32 : MLXVK_FLOAT32;
        mlxvk_array x = { NULL }, y = { NULL }, low = number(-4), high = number(4);
        int n = log > 30 ? log : 1 << log;
        check(mlxvk_random_uniform(&x, low, high, (int[]){ rows, n }, 2, t == MLXVK_INT32 ? MLXVK_FLOAT32 : t, (mlxvk_array){ NULL }, stream), "u");
        if (t == MLXVK_INT32) check(mlxvk_astype(&x, x, t, stream), "as");
        check(mlxvk_array_eval(x), "eval");
        size_t bytes = mlxvk_array_nbytes(x);
        int repeat = bytes > (64u << 20) ? 10 : 200;
        double best = 1e30;
        if (trace) { repeat = 3; }
        if (!gpu) repeat = 1;
        for (int round = 0; round < 5; round++) {
            if (trace) mlxvk_reset_stats(device);
            double start = now();
            for (int k = 0; k < repeat; k++) { check(run(op, &y, x), "op"); check(mlxvk_finalize(stream), "f"); }
            check(mlxvk_synchronize(stream), "s");
            if (now() - start < best) best = now() - start;
        }
        best /= repeat;
        if (trace) { zero = 0; mlxvk_dispatch_trace(device, each, NULL); }
        printf("%-22s %-26s %9.1f us %7.0f GB/s %7.2f G/s\n", tag, argv[i], best * 1e6, 2 * (double)bytes / best * 1e-9, (double)rows * n / best * 1e-9);
        fflush(stdout);
        mlxvk_array_free(x); mlxvk_array_free(y); mlxvk_array_free(low); mlxvk_array_free(high);
    }
    close_device();
    return 0;
}
