/* Speed and correctness of matrix products: random data, weights that no cache holds, sampled elements checked in double.
 *
 *     build/bench/bench_matmul              the table
 *     build/bench/bench_matmul sweep        large products with each kernel and row of the table of tiles
 *     build/bench/bench_matmul DTYPE M K N [nn|nt|tn|tt]     one product (f32, f16, bf16)
 *
 * nt: b is stored N x K and seen transposed, as weights are. Gates (MLX_VK_MATMUL_KERNEL, ...) count. */
#include <math.h>
#include <stdint.h>
#include "bench.h"

enum { RING = 16, SAMPLES = 200, OTHER = 4096 };     /* OTHER: b is not a's elements */

struct pool { mlxvk_dtype dtype; size_t count; uint8_t *bytes; mlxvk_array array; };

/* ---- random elements, on the host and on the device ---- */

/* Random bits made into numbers of (-2, 2) that use the whole mantissa. */
static uint32_t element_bits(mlxvk_dtype dtype, uint32_t r)
{
    uint32_t sign = r >> 31, exponent = (r >> 29 & 3) + 1;          /* of 2^-3 .. 2^0 */
    if (dtype == MLXVK_FLOAT32) return sign << 31 | (123 + exponent) << 23 | (r & 0x7fffff);
    if (dtype == MLXVK_BFLOAT16) return sign << 15 | (123 + exponent) << 7 | (r & 0x7f);
    return sign << 15 | (11 + exponent) << 10 | (r & 0x3ff);
}

static double number(const struct pool *p, const void *bytes, size_t i)
{
    uint32_t word;
    uint16_t half;
    float value;
    if (p->dtype == MLXVK_FLOAT32) { memcpy(&value, (const uint8_t *)bytes + 4 * i, 4); return value; }
    memcpy(&half, (const uint8_t *)bytes + 2 * i, 2);
    if (p->dtype == MLXVK_FLOAT16) {
        double m = half & 0x3ff;
        int e = half >> 10 & 31;
        m = e == 31 ? INFINITY : e ? ldexp(m + 1024, e - 25) : ldexp(m, -24);
        return half >> 15 ? -m : m;
    }
    word = (uint32_t)half << 16;
    memcpy(&value, &word, 4);
    return value;
}

static struct pool new_pool(mlxvk_dtype dtype, size_t bytes)
{
    struct pool p = { dtype, bytes / mlxvk_dtype_size(dtype), malloc(bytes), { NULL } };
    uint64_t state = 88172645463325252u;
    int n = (int)p.count;
    if (!p.bytes) { fprintf(stderr, "out of memory\n"); exit(1); }
    for (size_t i = 0; i < p.count; i++) {
        state ^= state << 13; state ^= state >> 7; state ^= state << 17;
        uint32_t bits = element_bits(dtype, (uint32_t)(state >> 32));
        memcpy(p.bytes + i * mlxvk_dtype_size(dtype), &bits, mlxvk_dtype_size(dtype));
    }
    check(mlxvk_array_new_data_device(&p.array, p.bytes, &n, 1, dtype, device), "upload");
    return p;
}

static void free_pool(struct pool *p)
{
    mlxvk_array_free(p->array);
    free(p->bytes);
}

/* ---- one product ---- */

struct product { int m, k, n; bool a_transposed, b_transposed, bias; };

static mlxvk_array matrix(const struct pool *p, int rows, int columns, bool transposed, size_t first)
{
    mlxvk_array a = { NULL };
    int64_t strides[2] = { transposed ? 1 : columns, transposed ? rows : 1 };
    check(mlxvk_as_strided(&a, p->array, (int[]){ rows, columns }, 2, strides, 2, first, stream), "as_strided");
    return a;
}

static double at(const struct pool *p, int rows, int columns, bool transposed, size_t first, int row, int column)
{
    return number(p, p->bytes, first + (transposed ? (size_t)column * (size_t)rows + (size_t)row
                                                   : (size_t)row * (size_t)columns + (size_t)column));
}

/* Compares sampled elements, corners included, with sums in double. */
static double worst_error(const struct pool *p, const struct product *x, size_t first_b, mlxvk_array got)
{
    size_t size = mlxvk_array_nbytes(got);
    uint8_t *bytes = malloc(size);
    double worst = 0;
    uint32_t state = 1;
    if (!bytes) exit(1);
    check(mlxvk_array_read(got, bytes, size, stream), "read");
    for (int s = 0; s < SAMPLES; s++) {
        int i = (int)((state = state * 1664525u + 1013904223u) >> 8) % x->m;
        int j = (int)((state = state * 1664525u + 1013904223u) >> 8) % x->n;
        double sum = 0, sizes = 0, value, epsilon = p->dtype == MLXVK_FLOAT32 ? 1e-6 : p->dtype == MLXVK_FLOAT16 ? 6e-4 : 4.5e-3;
        if (s < 4) { i = s & 1 ? x->m - 1 : 0; j = s & 2 ? x->n - 1 : 0; }
        for (int k = 0; k < x->k; k++) {
            double t = at(p, x->m, x->k, x->a_transposed, 0, i, k) * at(p, x->k, x->n, x->b_transposed, first_b, k, j);
            sum += t;
            sizes += fabs(t);
        }
        if (x->bias) sum += number(p, p->bytes, (size_t)j);
        value = number(p, bytes, (size_t)i * (size_t)x->n + (size_t)j);
        value = fabs(value - sum) / (epsilon * fabs(sum) + 2e-6 * sizes);
        if (!(value <= worst)) worst = value;                       /* NaN too */
    }
    free(bytes);
    return worst;
}

static void kernel_name(const char *kernel, uint64_t count, uint64_t ns, void *user)
{
    char *text = user;
    (void)ns;
    (void)count;
    snprintf(text + strlen(text), 96 - strlen(text), "%s%s", *text ? " + " : "", kernel);
}

static void enqueue(const struct product *x, mlxvk_array c, mlxvk_array a, const mlxvk_array *b, int different, mlxvk_array *y, int i)
{
    check(x->bias ? mlxvk_addmm(&y[i % RING], c, a, b[i % different], 1, 1, stream)
                  : mlxvk_matmul(&y[i % RING], a, b[i % different], stream), "matmul");
    if (i % RING == RING - 1) check(mlxvk_finalize(stream), "finalize");
}

/* Seconds a product, best of several rounds after the clock is up; different b's, which together no cache holds. */
static double seconds(const struct product *x, mlxvk_array c, mlxvk_array a, const mlxvk_array *b, int different, mlxvk_array *y)
{
    double best = 1e30, start = now(), once, warm = gpu ? 0.12 : 0.02;
    int repeat = RING, done = 0;
    check(mlxvk_synchronize(stream), "synchronize");
    for (start = now(); now() - start < warm || done == 0; done += RING) {
        for (int i = 0; i < RING; i++) enqueue(x, c, a, b, different, y, i);
        check(mlxvk_synchronize(stream), "synchronize");
    }
    once = (now() - start) / done;
    while (repeat * once < (gpu ? 0.05 : 0.005) && repeat < 4096) repeat *= 2;
    for (int round = 0; round < (gpu ? 5 : 2); round++) {
        start = now();
        for (int i = 0; i < repeat; i++) enqueue(x, c, a, b, different, y, i);
        check(mlxvk_synchronize(stream), "synchronize");
        if ((now() - start) / repeat < best) best = (now() - start) / repeat;
    }
    return best;
}

/* Times one product; returns seconds, prints a row of the table unless quiet. */
static double measure(const struct pool *p, struct product x, bool quiet)
{
    size_t size_b = (size_t)x.k * (size_t)x.n, bytes;
    int different = 1;
    mlxvk_array a = matrix(p, x.m, x.k, x.a_transposed, 0), b[RING] = { { NULL } }, y[RING] = { { NULL } }, c = { NULL };
    char kernels[96] = "";
    const char *right;
    double t, worst;
    if (size_b + OTHER > p->count || (size_t)x.m * (size_t)x.k > p->count) { printf("| too large for the pool |\n"); return 0; }
    while (different < RING && OTHER + (size_t)(different + 1) * size_b <= p->count && x.m <= 64) different++;
    for (int i = 0; i < different; i++) b[i] = matrix(p, x.k, x.n, x.b_transposed, OTHER + (size_t)i * size_b);
    check(mlxvk_as_strided(&c, p->array, &x.n, 1, (int64_t[]){ 1 }, 1, 0, stream), "as_strided");
    check(mlxvk_synchronize(stream), "synchronize");
    mlxvk_reset_stats(device);
    enqueue(&x, c, a, b, 1, y, 0);
    worst = worst_error(p, &x, OTHER, y[0]);
    mlxvk_kernel_stats(device, kernel_name, kernels);
    t = seconds(&x, c, a, b, different, y);
    bytes = ((size_t)x.m * (size_t)x.k + size_b + (size_t)x.m * (size_t)x.n) * mlxvk_dtype_size(p->dtype);
    right = judge(worst <= 1);
    if (!quiet)
        printf("| %-8s | %5d x %5d x %5d %c%c%s | %9.2f us | %8.2f TFLOP/s | %7.0f GB/s | %-28s | %s %.2f |\n", mlxvk_dtype_name(p->dtype),
               x.m, x.k, x.n, x.a_transposed ? 't' : 'n', x.b_transposed ? 't' : 'n', x.bias ? " + c" : "", 1e6 * t,
               2e-12 * x.m * x.n * (double)x.k / t, 1e-9 * (double)bytes / t, kernels, right, worst);
    fflush(stdout);
    for (int i = 0; i < RING; i++) { mlxvk_array_free(b[i]); mlxvk_array_free(y[i]); }
    mlxvk_array_free(a);
    mlxvk_array_free(c);
    return worst <= 1 ? t : -t;
}

/* ---- the tables ---- */

static const struct product matrices[] = {
    { 1024, 1024, 1024, false, true, false },  { 4096, 4096, 4096, false, true, false },  { 4096, 4096, 4096, false, false, false },
    { 4096, 4096, 4096, true, false, false },  { 8192, 8192, 8192, false, true, false },  { 512, 14336, 4096, false, true, false },
    { 512, 4096, 14336, false, true, false },  { 512, 1024, 3072, false, true, false },   { 128, 4096, 4096, false, true, false },
    { 32, 4096, 14336, false, true, false },   { 16, 4096, 4096, false, true, false },    { 4096, 4096, 4096, false, true, true },
    { 4095, 4095, 4095, false, true, false },  { 1000, 1000, 1000, false, false, false }, { 77, 5000, 333, false, false, false },
};
static const struct product vectors[] = {
    { 1, 16384, 4096, false, true, false }, { 1, 14336, 4096, false, true, false }, { 1, 4096, 14336, false, true, false },
    { 1, 4096, 4096, false, true, false },  { 1, 1024, 3072, false, true, false },  { 1, 1024, 151936, false, true, false },
    { 2, 4096, 14336, false, true, false }, { 4, 4096, 14336, false, true, false }, { 8, 4096, 14336, false, true, false },
    { 1, 16384, 4096, false, false, false }, { 1, 4096, 14336, false, false, false }, { 1, 4096, 4096, false, false, false },
    { 4, 4096, 14336, false, false, false }, { 8, 4096, 14336, false, false, false }, { 4096, 16384, 1, false, false, false },
    { 1, 4095, 4097, false, true, false },  { 1, 1 << 22, 1, false, false, false },
};

static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 };

static size_t pool_bytes(void) { return getenv("X_POOL") ? (size_t)400 << 20 : gpu ? (size_t)1 << 30 : (size_t)16 << 20; }

/* A CPU driver gets sizes that it can do. */
static struct product scaled(struct product x)
{
    if (gpu) return x;
    x.m = x.m > 64 ? x.m / 32 + x.m % 2 : x.m;
    x.n = x.n > 64 ? x.n / 32 + x.n % 2 : x.n;
    x.k = x.k > 64 ? x.k / 32 + x.k % 2 : x.k;
    return x;
}

static void table(void)
{
    printf("| dtype | M x K x N | time | | | kernels | error / allowed |\n|---|---|---|---|---|---|---|\n");
    for (int d = 0; d < 3; d++) {
        struct pool p = new_pool(dtypes[d], pool_bytes());
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) measure(&p, scaled(matrices[i]), false);
        for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) measure(&p, scaled(vectors[i]), false);
        free_pool(&p);
    }
}

/* TFLOP/s of each row of the table of tiles, for the kernels that a dtype has. */
static void sweep_kernel(mlxvk_dtype dtype, int kernel, int rows)
{
    static const struct product sizes[] = {
        { 1024, 1024, 1024, false, true, false }, { 4096, 4096, 4096, false, true, false }, { 4096, 4096, 4096, false, false, false },
        { 8192, 8192, 8192, false, true, false }, { 512, 14336, 4096, false, true, false }, { 512, 4096, 14336, false, true, false },
        { 128, 4096, 4096, false, true, false },  { 32, 4096, 14336, false, true, false },  { 2048, 2048, 2048, false, true, false },
    };
    for (int row = 1; row <= rows; row++) {
        char gates[96];
        struct pool p;
        snprintf(gates, sizeof gates, "MLX_VK_MATMUL_KERNEL=%d MLX_VK_MATMUL_TILE=%d", kernel, row);
        open_device(gates);
        p = new_pool(dtype, pool_bytes());
        printf("%-8s kernel %d tile %2d:", mlxvk_dtype_name(dtype), kernel, row);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct product x = scaled(sizes[i]);
            double t = measure(&p, x, true);
            printf(" %8.2f%s", 2e-12 * x.m * x.n * (double)x.k / fabs(t), t < 0 ? "!" : "");
            fflush(stdout);
        }
        printf("\n");
        free_pool(&p);
        close_device();
    }
}

static void sweep(void)
{
    printf("TFLOP/s: 1024^3, 4096^3 nt, nn, 8192^3, 512x14336x4096, 512x4096x14336, 128x4096x4096, 32x4096x14336, 2048^3; ! is wrong\n");
    sweep_kernel(MLXVK_FLOAT32, 3, 4);
    for (int kernel = 4; kernel <= 5; kernel++) {
        sweep_kernel(MLXVK_BFLOAT16, kernel, 8);
        sweep_kernel(MLXVK_FLOAT16, kernel, 2);
    }
}

static int one(char **argv, int argc)
{
    mlxvk_dtype dtype = !strcmp(argv[1], "f32") ? MLXVK_FLOAT32 : !strcmp(argv[1], "f16") ? MLXVK_FLOAT16 : MLXVK_BFLOAT16;
    const char *layout = argc > 5 ? argv[5] : "nt";
    struct product x = { atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), layout[0] == 't', layout[1] == 't', false };
    struct pool p = new_pool(dtype, pool_bytes());
    if (x.m < 1 || x.k < 1 || x.n < 1) return 1;
    measure(&p, x, false);
    free_pool(&p);
    return 0;
}

int setenv(const char *, const char *, int);
static void x_f32(void)
{
    static const int c[][5] = {  /* row, map, whole, two, unroll */
        { 0, 0, 0, 0, 0 }, { 0, 1, 0, 0, 0 }, { 0, 0, 1, 0, 0 }, { 0, 1, 1, 0, 0 }, { 0, 0, 0, 1, 0 }, { 0, 1, 0, 1, 0 }, { 0, 0, 1, 1, 0 }, { 0, 1, 1, 1, 0 },
        { 1, 1, 1, 0, 0 }, { 1, 1, 1, 1, 0 }, { 1, 1, 1, 1, 8 }, { 0, 1, 1, 0, 4 }, { 0, 1, 1, 1, 4 }, { 0, 1, 1, 1, 2 }, { 2, 1, 1, 0, 1 }, { 2, 1, 1, 1, 2 }, { 3, 1, 1, 1, 1 },
        { 4, 1, 1, 1, 1 }, { 5, 1, 1, 1, 1 }, { 5, 1, 1, 1, 2 }, { 7, 1, 1, 1, 0 }, { 8, 1, 1, 1, 0 } };
    static const char *names[] = { "X_F32", "X_MAP", "X_WHOLE", "X_BUF", "X_UNROLL" };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct product nn = { 4096, 4096, 4096, false, false, false }, nt = { 4096, 4096, 4096, false, true, false };
        double t, u = 1;
        for (int k = 0; k < 5; k++) { char x[16]; snprintf(x, sizeof x, "%d", c[i][k]); setenv(names[k], x, 1); }
        open_device("MLX_VK_MATMUL_KERNEL=3");
        struct pool p = new_pool(MLXVK_FLOAT32, pool_bytes() / 8);
        int w0 = wrong_results;
        t = measure(&p, nn, true);
        if (i < 8) u = measure(&p, nt, true);
        printf("f32 row %2d map %d whole %d two %d unroll %d: nn %6.2f nt %6.2f TFLOP/s %s\n", c[i][0], c[i][1], c[i][2], c[i][3], c[i][4], 2e-12 * 4096. * 4096 * 4096 / fabs(t),
               2e-12 * 4096. * 4096 * 4096 / fabs(u), wrong_results > w0 || t < 0 || u < 0 ? "WRONG" : "ok");
        fflush(stdout);
        free_pool(&p);
        close_device();
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] == 'x') { x_f32(); return verdict(); }
    open_device(NULL);
    printf("%s, %s, mlxvk %s\n\n", device_name, driver, mlxvk_version_text());
    if (argc > 4) one(argv, argc);
    else if (argc > 1 && !strcmp(argv[1], "sweep")) { close_device(); sweep(); return verdict(); }
    else table();
    close_device();
    return verdict();
}
