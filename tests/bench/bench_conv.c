/* Convolutions: time of one and TFLOP/s, for each kind of kernel that the device has.
 *
 *     build/bench/bench_conv [N H W C O kernel stride groups]      (default: a table)
 *     build/bench/bench_conv winograd                              (3 x 3 in float32: as chosen, and by tiles)
 */
#include <math.h>
#include <stdint.h>
#include "bench.h"

struct shape { int n, h, w, c, o, kernel, stride, groups; };

static const struct shape shapes[] = {
    { 32, 64, 64, 256, 256, 3, 1, 1 }, { 32, 56, 56, 64, 64, 3, 1, 1 },     { 32, 28, 28, 128, 128, 3, 1, 1 }, { 32, 14, 14, 256, 256, 3, 1, 1 },
    { 32, 7, 7, 512, 512, 3, 1, 1 },   { 1, 14, 14, 512, 512, 3, 1, 1 },    { 1, 128, 128, 256, 256, 3, 1, 1 }, { 32, 224, 224, 3, 64, 7, 2, 1 },
    { 32, 56, 56, 256, 512, 1, 2, 1 }, { 32, 56, 56, 256, 64, 1, 1, 1 },    { 4, 64, 64, 128, 128, 5, 1, 2 },   { 32, 56, 56, 144, 144, 3, 1, 144 },
    { 32, 28, 28, 512, 512, 7, 1, 512 }, { 4, 256, 256, 32, 32, 5, 1, 1 },  { 1, 1, 100000, 128, 128, 11, 1, 1 },
};

static const struct shape threes[] = {
    { 32, 64, 64, 256, 256, 3, 1, 1 },  { 32, 112, 112, 16, 16, 3, 1, 1 }, { 32, 56, 56, 32, 32, 3, 1, 1 },   { 32, 56, 56, 48, 48, 3, 1, 1 },
    { 32, 56, 56, 64, 64, 3, 1, 1 },    { 32, 56, 56, 96, 96, 3, 1, 1 },   { 32, 56, 56, 16, 128, 3, 1, 1 },  { 32, 56, 56, 128, 16, 3, 1, 1 },
    { 32, 28, 28, 128, 128, 3, 1, 1 },  { 32, 14, 14, 256, 256, 3, 1, 1 }, { 32, 7, 7, 512, 512, 3, 1, 1 },   { 1, 56, 56, 64, 64, 3, 1, 1 },
    { 1, 28, 28, 128, 128, 3, 1, 1 },   { 1, 14, 14, 256, 256, 3, 1, 1 },  { 1, 14, 14, 512, 512, 3, 1, 1 },  { 1, 7, 7, 512, 512, 3, 1, 1 },
    { 4, 28, 28, 128, 128, 3, 1, 1 },   { 4, 14, 14, 256, 256, 3, 1, 1 },  { 1, 64, 64, 320, 320, 3, 1, 1 },  { 2, 32, 32, 640, 640, 3, 1, 1 },
    { 1, 512, 512, 64, 64, 3, 1, 1 },   { 1, 512, 512, 128, 128, 3, 1, 1 },
};

static mlxvk_array random_array(const int *dims, mlxvk_dtype dtype)
{
    mlxvk_array a = { NULL }, low = { NULL }, high = { NULL };
    float l = -1, h = 1;
    check(mlxvk_array_new_data_device(&low, &l, NULL, 0, MLXVK_FLOAT32, device), "array");
    check(mlxvk_array_new_data_device(&high, &h, NULL, 0, MLXVK_FLOAT32, device), "array");
    check(mlxvk_random_uniform(&a, low, high, dims, 4, dtype, (mlxvk_array){ NULL }, stream), "uniform");
    check(mlxvk_array_eval(a), "eval");
    mlxvk_array_free(low);
    mlxvk_array_free(high);
    return a;
}

static void enqueue(const struct shape *x, mlxvk_array in, mlxvk_array w, mlxvk_array *y)
{
    int pad = x->kernel / 2, tall = x->h > 1;
    check(mlxvk_conv2d(y, in, w, x->stride, x->stride, tall ? pad : 0, pad, 1, 1, x->groups, stream), "conv2d");
    check(mlxvk_finalize(stream), "finalize");
}

/* With MLX_VK_PROFILE=1: where the GPU's time went. */
static void print_kernel(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user)
{
    (void)user;
    if (nanoseconds) printf("    %-24s %8llu x %8.2f us\n", kernel, (unsigned long long)count, 1e-3 * (double)nanoseconds / (double)count);
}

/* ---- sampled elements against sums in double ---- */

enum { SAMPLES = 200 };

static double element(mlxvk_dtype dtype, const void *bytes, size_t i)
{
    float value;
    uint16_t half;
    if (dtype == MLXVK_FLOAT32) { memcpy(&value, (const uint8_t *)bytes + 4 * i, 4); return value; }
    memcpy(&half, (const uint8_t *)bytes + 2 * i, 2);
    if (dtype == MLXVK_FLOAT16) {
        int e = half >> 10 & 31, m = half & 1023;
        return (half >> 15 ? -1 : 1) * (e == 31 ? INFINITY : ldexp(e ? m + 1024 : m, (e ? e : 1) - 25));
    }
    uint32_t word = (uint32_t)half << 16;
    memcpy(&value, &word, 4);
    return value;
}

static void *contents(mlxvk_array a)
{
    void *bytes = malloc(mlxvk_array_nbytes(a));
    if (!bytes) { fprintf(stderr, "out of memory\n"); exit(1); }
    check(mlxvk_array_read(a, bytes, mlxvk_array_nbytes(a), stream), "read");
    return bytes;
}

/* The worst error in units of what rounding allows; every third element is at an edge of its image. */
static double worst_error(const struct shape *x, mlxvk_dtype dtype, mlxvk_array in, mlxvk_array w, mlxvk_array y)
{
    void *a = contents(in), *b = contents(w), *got = contents(y);
    int oh = mlxvk_array_dim(y, 1), ow = mlxvk_array_dim(y, 2), kh = x->h > 1 ? x->kernel : 1, c = x->c / x->groups;
    double worst = 0, epsilon = dtype == MLXVK_FLOAT32 ? 1e-6 : dtype == MLXVK_FLOAT16 ? 6e-4 : 4.5e-3;
    uint32_t state = 1;
#define RANDOM(n) ((int)((state = state * 1664525u + 1013904223u) >> 8) % (n))
    for (int s = 0; s < SAMPLES; s++) {
        int n = RANDOM(x->n), i = RANDOM(oh), j = RANDOM(ow), o = RANDOM(x->o), group = o / (x->o / x->groups);
        double sum = 0, sizes = 0, value;
        if (s % 3 == 0) { i = s & 1 ? i : s & 2 ? oh - 1 : 0; j = s & 4 ? j : s & 8 ? ow - 1 : 0; n = s & 16 ? x->n - 1 : n; }
        for (int k = 0; k < kh; k++)
            for (int l = 0; l < x->kernel; l++)
                for (int m = 0; m < c; m++) {
                    int p = i * x->stride + k - kh / 2, q = j * x->stride + l - x->kernel / 2;
                    if (p < 0 || p >= x->h || q < 0 || q >= x->w) continue;
                    size_t at = (((size_t)n * (size_t)x->h + (size_t)p) * (size_t)x->w + (size_t)q) * (size_t)x->c;
                    double t = element(dtype, a, at + (size_t)(group * c + m)) *
                        element(dtype, b, (((size_t)o * (size_t)kh + (size_t)k) * (size_t)x->kernel + (size_t)l) * (size_t)c + (size_t)m);
                    sum += t;
                    sizes += fabs(t);
                }
        value = element(dtype, got, (((size_t)n * (size_t)oh + (size_t)i) * (size_t)ow + (size_t)j) * (size_t)x->o + (size_t)o);
        value = fabs(value - sum) / (epsilon * fabs(sum) + 4e-6 * sizes);
        if (!(value <= worst)) worst = value;           /* NaN too */
    }
    free(a);
    free(b);
    free(got);
    return worst;
}

static void measure(struct shape x, mlxvk_dtype dtype, const char *kind)
{
    int kh = x.h > 1 ? x.kernel : 1, repeat = gpu ? 4 : 1;
    mlxvk_array y = { NULL }, in, w;
    double best = 1e30, start, once, flops, worst;
    if (!gpu) { x.n = x.n > 2 ? 2 : x.n; x.h = x.h / 4 + 1; x.w = x.w / 4 + 1; }
    in = random_array((int[]){ x.n, x.h, x.w, x.c }, dtype);
    w = random_array((int[]){ x.o, kh, x.kernel, x.c / x.groups }, dtype);
    enqueue(&x, in, w, &y);
    check(mlxvk_synchronize(stream), "synchronize");
    start = now();
    do { enqueue(&x, in, w, &y); check(mlxvk_synchronize(stream), "synchronize"); } while (gpu && now() - start < 0.3);
    start = now();
    enqueue(&x, in, w, &y);
    check(mlxvk_synchronize(stream), "synchronize");
    once = now() - start;
    while (gpu && repeat * once < 0.03 && repeat < 1024) repeat *= 2;
    for (int round = 0; round < (gpu ? 5 : 2); round++) {
        start = now();
        for (int i = 0; i < repeat; i++) enqueue(&x, in, w, &y);
        check(mlxvk_synchronize(stream), "synchronize");
        if ((now() - start) / repeat < best) best = (now() - start) / repeat;
    }
    worst = worst_error(&x, dtype, in, w, y);
    flops = 2.0 * (double)mlxvk_array_size(y) * kh * x.kernel * (x.c / x.groups);
    printf("| %-8s | %-10s | %3d x %3d x %6d x %3d -> %3d, %d x %d, stride %d, groups %3d | %9.1f us | %7.2f TFLOP/s | %6.0f GB/s | %s %.2f |\n",
           mlxvk_dtype_name(dtype), kind, x.n, x.h, x.w, x.c, x.o, kh, x.kernel, x.stride, x.groups, best * 1e6, flops / best * 1e-12,
           (double)(mlxvk_array_nbytes(in) + mlxvk_array_nbytes(w) + mlxvk_array_nbytes(y)) / best * 1e-9, judge(worst <= 1), worst);
    if (getenv("MLX_VK_PROFILE")) {
        mlxvk_kernel_stats(device, print_kernel, NULL);
        mlxvk_reset_stats(device);
    }
    fflush(stdout);
    mlxvk_array_free(y);
    mlxvk_array_free(in);
    mlxvk_array_free(w);
}

static void winograd(void)
{
    open_device("MLX_VK_ENABLE_WINOGRAD=0");
    printf("%s, %s\n\n| dtype | kernel | shape | time | | |\n|---|---|---|---|---|---|\n", device_name, driver);
    for (size_t i = 0; i < sizeof threes / sizeof *threes; i++) measure(threes[i], MLXVK_FLOAT32, "tiled");
    close_device();
    open_device(NULL);
    for (size_t i = 0; i < sizeof threes / sizeof *threes; i++) measure(threes[i], MLXVK_FLOAT32, "chosen");
    close_device();
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "winograd")) { winograd(); return 0; }
    static const mlxvk_dtype dtypes[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32 };
    static const char *const kinds[][2] = { { "chosen", NULL }, { "tiled", "MLX_VK_CONV_KERNEL=3" }, { "matrices", "MLX_VK_CONV_KERNEL=4" },
        { "unfolded", "MLX_VK_CONV_KERNEL=6" }, { "by lines", "MLX_VK_CONV_KERNEL=8" },
        { "tile 1", "MLX_VK_CONV_KERNEL=4 MLX_VK_MATMUL_TILE=1" }, { "tile 2", "MLX_VK_CONV_KERNEL=4 MLX_VK_MATMUL_TILE=2" },
        { "tile 3", "MLX_VK_CONV_KERNEL=4 MLX_VK_MATMUL_TILE=3" }, { "tile 4", "MLX_VK_CONV_KERNEL=4 MLX_VK_MATMUL_TILE=4" },
        { "tile 5", "MLX_VK_CONV_KERNEL=4 MLX_VK_MATMUL_TILE=5" } };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        open_device(kinds[k][1]);
        if (!k) printf("%s, %s\n\n| dtype | kernel | shape | time | | |\n|---|---|---|---|---|---|\n", device_name, driver);
        if (argc > 8) {
            struct shape x = { atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]), atoi(argv[7]), atoi(argv[8]) };
            for (int d = 0; d < 3 && x.groups > 0 && x.stride > 0; d++) measure(x, dtypes[d], kinds[k][0]);
        } else if (k == 0)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                for (int d = 0; d < 3; d++) measure(shapes[i], dtypes[d], kinds[k][0]);
        else measure(shapes[0], MLXVK_BFLOAT16, kinds[k][0]);
        close_device();
        if (!gpu) break;
    }
    return verdict();
}
