/* Chains of elementwise operations with and without kernels made for them: time of one, and what making the kernel costs.
 *
 *     build/bench/bench_chains [log2 of the elements, default 26 on a GPU and 18 on a CPU driver]
 */
#include "bench.h"

enum { COLUMNS = 4096 };

static mlxvk_array x, y, bias;

static mlxvk_array number(float value, mlxvk_dtype dtype)
{
    mlxvk_array a = { NULL };
    check(mlxvk_array_new_data_device(&a, &value, NULL, 0, MLXVK_FLOAT32, device), "array");
    check(mlxvk_astype(&a, a, dtype, stream), "astype");
    check(mlxvk_array_eval(a), "eval");
    return a;
}

static mlxvk_array half, one, slope, cubic;

static void add_multiply(mlxvk_array *r)
{
    check(mlxvk_add(r, x, y, stream), "add");
    check(mlxvk_multiply(r, *r, x, stream), "multiply");
}

/* The approximation of gelu by tanh, of x plus a row. */
static void gelu(mlxvk_array *r)
{
    mlxvk_array a = { NULL }, t = { NULL };
    check(mlxvk_add(&a, x, bias, stream), "add");
    check(mlxvk_square(&t, a, stream), "square");
    check(mlxvk_multiply(&t, t, a, stream), "multiply");
    check(mlxvk_multiply(&t, t, cubic, stream), "multiply");
    check(mlxvk_add(&t, t, a, stream), "add");
    check(mlxvk_multiply(&t, t, slope, stream), "multiply");
    check(mlxvk_tanh(&t, t, stream), "tanh");
    check(mlxvk_add(&t, t, one, stream), "add");
    check(mlxvk_multiply(&a, a, half, stream), "multiply");
    check(mlxvk_multiply(r, a, t, stream), "multiply");
    mlxvk_array_free(a);
    mlxvk_array_free(t);
}

static const struct chain { const char *name; void (*run)(mlxvk_array *r); } chains[] = {
    { "(x + y) x", add_multiply }, { "gelu(x + row)", gelu },
};

static double once(const struct chain *c, int repeat)
{
    mlxvk_array r = { NULL };
    double start = now();
    for (int i = 0; i < repeat; i++) {
        c->run(&r);
        check(mlxvk_finalize(stream), "finalize");
    }
    check(mlxvk_synchronize(stream), "synchronize");
    mlxvk_array_free(r);
    return (now() - start) / repeat;
}

static void measure(const char *gates, int rows, mlxvk_dtype dtype, double first[2], double best[2])
{
    mlxvk_array key = { NULL };
    open_device(gates);
    half = number(0.5f, dtype), one = number(1, dtype), slope = number(0.7978845608f, dtype), cubic = number(0.044715f, dtype);
    x.ctx = y.ctx = bias.ctx = NULL;
    check(mlxvk_random_normal(&x, (int[]){ rows, COLUMNS }, 2, dtype, 0, 1, key, stream), "normal");
    check(mlxvk_random_normal(&y, (int[]){ rows, COLUMNS }, 2, dtype, 0, 1, key, stream), "normal");
    check(mlxvk_random_normal(&bias, (int[]){ COLUMNS }, 1, dtype, 0, 1, key, stream), "normal");
    check(mlxvk_array_eval(x), "eval");
    check(mlxvk_array_eval(y), "eval");
    check(mlxvk_array_eval(bias), "eval");
    check(mlxvk_synchronize(stream), "synchronize");
    for (int i = 0; i < 2; i++) {
        first[i] = once(&chains[i], 1);
        best[i] = 1e30;
        for (int round = 0; round < 6; round++) {
            double t = once(&chains[i], gpu ? 50 : 2);
            if (t < best[i]) best[i] = t;
        }
    }
    for (int i = 0; i < 7; i++) mlxvk_array_free(*(mlxvk_array *[]){ &x, &y, &bias, &half, &one, &slope, &cubic }[i]);
    close_device();
}

int main(int argc, char **argv)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_BFLOAT16, MLXVK_FLOAT32 };
    int log;
    open_device(NULL);
    log = argc > 1 ? atoi(argv[1]) : gpu ? 26 : 18;
    printf("%s: %d x %d elements\n%-24s %12s %12s %14s %14s\n", device_name, 1 << (log - 12), COLUMNS, "chain", "apart, us",
           "fused, us", "first apart, ms", "first fused, ms");
    close_device();
    for (size_t k = 0; k < 2; k++) {
        double first[2][2], best[2][2];
        measure("MLX_VK_ENABLE_CHAINS=0", 1 << (log - 12), dtypes[k], first[0], best[0]);
        measure("MLX_VK_ENABLE_CHAINS=2", 1 << (log - 12), dtypes[k], first[1], best[1]);
        for (int i = 0; i < 2; i++)
            printf("%-14s %-9s %12.1f %12.1f %14.1f %14.1f\n", chains[i].name, mlxvk_dtype_name(dtypes[k]),
                   1e6 * best[0][i], 1e6 * best[1][i], 1e3 * first[0][i], 1e3 * first[1][i]);
    }
    return 0;
}
