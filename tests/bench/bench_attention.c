/* Attention, normalisation and rotary embedding at the shapes of a language model with 32 query and 8 key heads of 128.
 *
 *     build/bench/bench_attention [bf16|f16|f32] [heads, default 32 (4 on a CPU driver)]
 *
 * Decode steps depend on each other, so a step's time includes its barriers; keys and values rotate over 256 MB, so that
 * they come from memory and not from a cache. */
#include "bench.h"

enum { WIDTH = 128, GROUP = 4, ROUNDS = 5 };

static mlxvk_dtype dtype = MLXVK_BFLOAT16;
static int heads;

static mlxvk_array noise(int h, int length, int width)
{
    mlxvk_array x = mlxvk_array_new();
    check(mlxvk_random_normal(&x, (int[]){ 1, h, length, width }, 4, dtype, 0, 1, (mlxvk_array){ NULL }, stream), "random_normal");
    check(mlxvk_array_eval(x), "eval");
    return x;
}

/* One step of something measured: *x is its input, and becomes its result. */
typedef void (*step_function)(mlxvk_array *x, int step, void *data);

/* Best mean time of a step in seconds. */
static double measure(step_function step, mlxvk_array first, int steps, void *data)
{
    double best = 1e30;
    for (int round = 0; round < ROUNDS + 1; round++) {             /* the first warms up */
        mlxvk_array x = mlxvk_array_new();
        double start;
        mlxvk_array_set(&x, first);
        check(mlxvk_synchronize(stream), "synchronize");
        start = now();
        for (int i = 0; i < steps; i++) step(&x, i, data);
        check(mlxvk_array_eval(x), "eval");
        check(mlxvk_synchronize(stream), "synchronize");
        if (round && (now() - start) / steps < best) best = (now() - start) / steps;
        mlxvk_array_free(x);
    }
    return best;
}

struct keys { mlxvk_array k[64], v[64]; int copies; const char *mode; };

static void attend(mlxvk_array *x, int step, void *data)
{
    struct keys *keys = data;
    int i = step % keys->copies;
    check(mlxvk_fast_scaled_dot_product_attention(x, *x, keys->k[i], keys->v[i], 0.0884f, keys->mode, (mlxvk_array){ NULL },
                                                  (mlxvk_array){ NULL }, stream), "attention");
}

static struct keys make_keys(int length, const char *mode, size_t total)
{
    struct keys keys = { .mode = mode };
    size_t bytes = 2 * (size_t)(heads / GROUP) * (size_t)length * WIDTH * mlxvk_dtype_size(dtype);
    keys.copies = bytes >= total ? 1 : (int)(total / bytes);
    if (keys.copies > 64) keys.copies = 64;
    for (int i = 0; i < keys.copies; i++) {
        keys.k[i] = noise(heads / GROUP, length, WIDTH);
        keys.v[i] = noise(heads / GROUP, length, WIDTH);
    }
    return keys;
}

static void free_keys(struct keys *keys)
{
    for (int i = 0; i < keys->copies; i++) {
        mlxvk_array_free(keys->k[i]);
        mlxvk_array_free(keys->v[i]);
    }
}

static void bench_decode(int length)
{
    struct keys keys = make_keys(length, "", (size_t)256 << 20);
    mlxvk_array q = noise(heads, 1, WIDTH);
    double t = measure(attend, q, gpu ? 200 : 3, &keys);
    double bytes = 2.0 * (heads / GROUP) * length * WIDTH * (double)mlxvk_dtype_size(dtype);
    printf("| decode, %d keys | %.1f us | %.0f GB/s |\n", length, 1e6 * t, 1e-9 * bytes / t);
    mlxvk_array_free(q);
    free_keys(&keys);
}

/* The last `queries` positions against `length` keys, as a prompt comes in pieces. */
static void bench_prefill(int queries, int length, const char *mode)
{
    struct keys keys = make_keys(length, mode, 1);
    mlxvk_array q = noise(heads, queries, WIDTH);
    double t = measure(attend, q, gpu ? 10 : 1, &keys);
    double operations = 4.0 * heads * (double)queries * WIDTH * (*mode ? length - 0.5 * queries : length);
    printf("| prefill, %d x %d%s | %.1f us | %.2f TFLOP/s |\n", queries, length, *mode ? ", causal" : "", 1e6 * t,
           1e-12 * operations / t);
    mlxvk_array_free(q);
    free_keys(&keys);
}

static void norm(mlxvk_array *x, int step, void *data)
{
    (void)step;
    check(mlxvk_fast_rms_norm(x, *x, *(mlxvk_array *)data, 1e-6f, stream), "rms_norm");
}

static void rotate(mlxvk_array *x, int step, void *data)
{
    (void)data;
    check(mlxvk_fast_rope(x, *x, WIDTH, false, (mlxvk_optional_float){ 1e6f, true }, 1, step, (mlxvk_array){ NULL }, stream), "rope");
}

static void bench_rows(int rows, int width)
{
    mlxvk_array x = noise(1, rows, width), w = noise(1, 1, width), flat = mlxvk_array_new();
    double t;
    check(mlxvk_reshape(&flat, w, &width, 1, stream), "reshape");
    t = measure(norm, x, gpu ? 100 : 2, &flat);
    printf("| rms_norm, %d x %d | %.1f us | %.0f GB/s |\n", rows, width, 1e6 * t,
           2e-9 * (double)mlxvk_array_nbytes(x) / t);
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    mlxvk_array_free(flat);
}

static void bench_rope(int length)
{
    mlxvk_array x = noise(heads, length, WIDTH);
    double t = measure(rotate, x, gpu ? 100 : 2, NULL);
    printf("| rope, %d heads x %d | %.1f us | %.0f GB/s |\n", heads, length, 1e6 * t, 2e-9 * (double)mlxvk_array_nbytes(x) / t);
    mlxvk_array_free(x);
}

int main(int argc, char **argv)
{
    open_device(NULL);
    if (argc > 1) dtype = !strcmp(argv[1], "f32") ? MLXVK_FLOAT32 : !strcmp(argv[1], "f16") ? MLXVK_FLOAT16 : MLXVK_BFLOAT16;
    heads = argc > 2 ? atoi(argv[2]) / GROUP * GROUP : gpu ? 32 : 4;
    if (heads < GROUP) { fprintf(stderr, "heads must be a multiple of %d\n", GROUP); return 1; }
    printf("%s, %s, mlxvk %s, %s\n\n| %d heads on %d, width %d | time | |\n|---|---|---|\n", device_name, driver, mlxvk_version_text(),
           mlxvk_dtype_name(dtype), heads, heads / GROUP, WIDTH);
    for (int i = 0; i < 3; i++) bench_decode((int[]){ 512, gpu ? 8192 : 2048, gpu ? 32768 : 4096 }[i]);
    bench_prefill(gpu ? 512 : 128, gpu ? 512 : 128, "causal");
    bench_prefill(gpu ? 512 : 128, gpu ? 4096 : 256, "causal");
    for (int i = 0; i < 4; i++) bench_prefill((int[]){ 8, 16, 64, 128 }[i], gpu ? 8192 : 512, "causal");
    bench_prefill(gpu ? 4096 : 256, gpu ? 4096 : 256, "causal");
    bench_prefill(gpu ? 4096 : 256, gpu ? 4096 : 256, "");
    bench_rows(1, 4096);
    bench_rows(gpu ? 4096 : 64, 4096);
    bench_rows(gpu ? 32 * 4096 : 512, 128);
    bench_rope(1);
    bench_rope(gpu ? 4096 : 64);
    close_device();
    return 0;
}
