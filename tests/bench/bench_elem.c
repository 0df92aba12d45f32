/* A trial: variants of add and exp beside the copy bandwidth of the same run.   bench_elem [VARIANT ...]  (MLX_VK_ELEM digits) */
#include <math.h>
#include "bench.h"
#include "copy_spv.h"

static mlxvk_array x, y, result;
static mlxvk_kernel copy_kernel;
static double copy_speed;
enum what { COPY, ADD, EXP, OTHER };
static const struct { const char *name; int (*one)(mlxvk_array *, mlxvk_array, mlxvk_stream), (*two)(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream); } others[] = {
    { "sigmoid", mlxvk_sigmoid, NULL }, { "tanh", mlxvk_tanh, NULL }, { "reciprocal", mlxvk_reciprocal, NULL }, { "sqrt", mlxvk_sqrt, NULL },
    { "rsqrt", mlxvk_rsqrt, NULL }, { "log", mlxvk_log, NULL }, { "erf", mlxvk_erf, NULL }, { "sin", mlxvk_sin, NULL }, { "expm1", mlxvk_expm1, NULL },
    { "cos", mlxvk_cos, NULL }, { "sinh", mlxvk_sinh, NULL }, { "log1p", mlxvk_log1p, NULL }, { "tan", mlxvk_tan, NULL },
    { "multiply", NULL, mlxvk_multiply }, { "divide", NULL, mlxvk_divide }, { "maximum", NULL, mlxvk_maximum },
};
static int other;

static void release(mlxvk_array *a) { mlxvk_array_free(*a); a->ctx = NULL; }

static mlxvk_array number(float value)
{
    mlxvk_array a = { NULL };
    check(mlxvk_array_new_data_device(&a, &value, NULL, 0, MLXVK_FLOAT32, device), "array");
    return a;
}

static void fill(mlxvk_array *a, int n, mlxvk_dtype dtype)
{
    mlxvk_array low = number(-4), high = number(4), none = { NULL };
    check(mlxvk_random_uniform(a, low, high, &n, 1, dtype, none, stream), "uniform");
    check(mlxvk_array_eval(*a), "eval");
    release(&low);
    release(&high);
}

static int apply(enum what what)
{
    if (what == ADD) return mlxvk_add(&result, x, y, stream);
    if (what == EXP) return mlxvk_exp(&result, x, stream);
    if (what == OTHER) return others[other].one ? others[other].one(&result, x, stream) : others[other].two(&result, x, y, stream);
    uint32_t n = (uint32_t)(mlxvk_array_nbytes(x) / 16);
    mlxvk_encoder e;
    check(mlxvk_stream_encoder(&e, stream), "encoder");
    check(mlxvk_set_kernel(e, copy_kernel), "set_kernel");
    check(mlxvk_set_input_array(e, x, 0, NULL), "set_input_array");
    check(mlxvk_set_output_array(e, y, 1, NULL), "set_output_array");
    check(mlxvk_set_bytes(e, &n, sizeof n, 0), "set_bytes");
    return mlxvk_dispatch_threadgroups(e, (n + 1023) / 1024, 1, 1);
}

static double batch(enum what what, int repeat)
{
    double start = now();
    for (int k = 0; k < repeat; k++) {
        check(apply(what), "apply");
        check(mlxvk_finalize(stream), "finalize");
    }
    check(mlxvk_synchronize(stream), "synchronize");
    return (now() - start) / repeat;
}

static double measure(enum what what)
{
    double best = 1e30, start, once;
    int repeat = gpu ? 32 : 1;
    for (int i = 0; i < 2; i++) batch(what, 1);
    start = now();
    while (gpu && now() - start < 0.2) batch(what, repeat);
    for (int i = 0; i < (gpu ? 6 : 1); i++) if ((once = batch(what, repeat)) < best) best = once;
    return best;
}

static void line(enum what what, mlxvk_dtype dtype)
{
    int n = gpu ? 1 << 28 : 1 << 18;
    double bytes;
    fill(&x, n, dtype);
    bytes = (double)mlxvk_array_nbytes(x) * (what == ADD || (what == OTHER && others[other].two) ? 3 : 2);
    if (what == ADD || (what == OTHER && others[other].two)) fill(&y, n, dtype);
    if (what == COPY) check(mlxvk_array_empty(&y, &n, 1, dtype, stream), "empty");
    double seconds = measure(what), speed = bytes / seconds * 1e-9;
    if (what == COPY) copy_speed = speed;
    printf("  %s %s %.1f us %.1f%%", what == COPY ? "copy" : what == ADD ? "add" : what == EXP ? "exp" : others[other].name, mlxvk_dtype_name(dtype), seconds * 1e6, 100 * speed / copy_speed);
    fflush(stdout);
    release(&x); release(&y); release(&result);
}

static float of_bf16(uint16_t h) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }
static uint16_t to_bf16(double x)                    /* of a float32 or a float64 that no float32 lies between */
{
    float f = (float)x; uint32_t u; memcpy(&u, &f, 4);
    if (f != f) return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static int order(uint16_t h) { return h & 0x8000 ? -(h & 0x7fff) : h; }

/* How many results are not the nearest bf16; how far the farthest is. */
static void verify(void)
{
    enum { N = 1 << 16 };
    static uint16_t in[N], other[N];
    const uint16_t *got;
    int n = N, off = 0, far = 0, nans = 0;
    for (int i = 0; i < N; i++) { in[i] = (uint16_t)i; other[i] = (uint16_t)((unsigned)i * 40503u >> 3); }
    check(mlxvk_array_new_data_device(&x, in, &n, 1, MLXVK_BFLOAT16, device), "x");
    check(mlxvk_array_new_data_device(&y, other, &n, 1, MLXVK_BFLOAT16, device), "y");
    for (int what = ADD; what <= EXP; what++) {
        check(apply((enum what)what), "apply");
        check(mlxvk_array_eval(result), "eval");
        got = mlxvk_array_data_bfloat16(result);
        off = far = nans = 0;
        for (int i = 0; i < N; i++) {
            float p = of_bf16(in[i]), q = of_bf16(other[i]);
            double want = what == ADD ? (double)(p + q) : exp((double)p);
            uint16_t w = to_bf16(want);
            if (want != want) { nans += of_bf16(got[i]) == of_bf16(got[i]); continue; }
            if (of_bf16(got[i]) != of_bf16(got[i])) { nans++; continue; }
            if (order(got[i]) != order(w)) off++;
            if (abs(order(got[i]) - order(w)) > far) far = abs(order(got[i]) - order(w));
        }
        printf("  %s: %d off, by %d, %d NaN wrong", what == ADD ? "add" : "exp", off, far, nans);
        release(&result);
    }
    release(&x); release(&y);
    static float f[N];
    const float *g;
    double worst = 0;
    for (int i = 0; i < N; i++) f[i] = -87.0f + 175.5f * (float)i / N;
    check(mlxvk_array_new_data_device(&x, f, &n, 1, MLXVK_FLOAT32, device), "x");
    check(apply(EXP), "apply");
    check(mlxvk_array_eval(result), "eval");
    g = mlxvk_array_data_float32(result);
    for (int i = 0; i < N; i++) {
        double want = exp((double)f[i]), ulp = ldexp(1, ilogb(want) - 23), e = fabs((double)g[i] - want) / ulp;
        if (e > worst) worst = e;
    }
    printf("  exp f32: %.2f ulp", worst);
    release(&result); release(&x);
}

static void measure_others(void)
{
    static const mlxvk_dtype types[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32 };
    for (int t = 0; t < 3; t++) {
        printf("\n   ");
        for (other = 0; other < (int)(sizeof others / sizeof *others); other++) line(OTHER, types[t]);
    }
}

int main(int argc, char **argv)
{
    static const char *const all[] = { "211", "200", "201", "111", "411" };
    int count = argc > 1 ? argc - 1 : (int)(sizeof all / sizeof *all);
    for (int i = 0; i < count; i++) {
        char gates[64];
        size_t half = 0;
        const char *v = argc > 1 ? argv[i + 1] : all[i];
        mlxvk_kernel_desc desc = { .name = "copy", .spirv = copy_spv, .spirv_size = sizeof copy_spv, .bindings = 2, .push_size = 4, .threads = { 256 } };
        snprintf(gates, sizeof gates, "MLX_VK_ELEM=%s", v);
        open_device(gates);
        mlxvk_device_info_get_size(&half, device, "half_conversion");
        check(mlxvk_kernel_new(&copy_kernel, &desc, device), "kernel");
        printf("%s (half_conversion %zu)", v, half);
        line(COPY, MLXVK_FLOAT32);
        line(ADD, MLXVK_BFLOAT16);
        line(ADD, MLXVK_FLOAT16);
        line(ADD, MLXVK_FLOAT32);
        line(EXP, MLXVK_BFLOAT16);
        line(EXP, MLXVK_FLOAT16);
        line(EXP, MLXVK_FLOAT32);
        verify();
        if (i < 2) measure_others();
        printf("\n");
        fflush(stdout);
        mlxvk_kernel_free(copy_kernel);
        close_device();
    }
    return 0;
}
