/* What the runtime costs: copy bandwidth through the library beside a plain copy kernel, and CPU time per operation, beside many
 * streams and cached buffers, too.
 *
 *     build/bench/bench_runtime [MiB of the copy, default 1024 on a GPU and 64 on a CPU driver] */
#include "bench.h"
#include "copy_spv.h"

/* One copy through the library: stacking one array moves it. */
static void library_copy(mlxvk_array x, mlxvk_array *y)
{
    mlxvk_vector_array one = mlxvk_vector_array_new_value(x);
    check(mlxvk_stack(y, one, stream), "stack");
    mlxvk_vector_array_free(one);
    check(mlxvk_finalize(stream), "finalize");
}

static void kernel_copy(mlxvk_kernel copy, mlxvk_array x, mlxvk_array y)
{
    uint32_t n = (uint32_t)(mlxvk_array_nbytes(x) / 16);
    mlxvk_encoder e;
    check(mlxvk_stream_encoder(&e, stream), "encoder");
    check(mlxvk_set_kernel(e, copy), "set_kernel");
    check(mlxvk_set_input_array(e, x, 0, NULL), "set_input_array");
    check(mlxvk_set_output_array(e, y, 1, NULL), "set_output_array");
    check(mlxvk_set_bytes(e, &n, sizeof n, 0), "set_bytes");
    check(mlxvk_dispatch_threadgroups(e, (n + 1023) / 1024, 1, 1), "dispatch");
    check(mlxvk_finalize(stream), "finalize");
}

/* Best of several rounds of `repeat` copies, after a warm-up, in GB/s read and written. */
static double bandwidth(mlxvk_kernel copy, mlxvk_array x, mlxvk_array y, int repeat)
{
    double best = 1e30, bytes = 2.0 * (double)mlxvk_array_nbytes(x);
    for (int round = 0; round < 7; round++) {
        double start;
        check(mlxvk_synchronize(stream), "synchronize");
        start = now();
        for (int i = 0; i < repeat; i++) {
            if (copy.ctx) kernel_copy(copy, x, y);
            else library_copy(x, &y);
        }
        check(mlxvk_synchronize(stream), "synchronize");
        if (now() - start < best) best = now() - start;
    }
    return bytes * repeat / best * 1e-9;
}

static void bench_copy(size_t mib)
{
    mlxvk_kernel copy = { NULL };
    mlxvk_kernel_desc desc = { .name = "copy", .spirv = copy_spv, .spirv_size = sizeof copy_spv, .bindings = 2, .push_size = 4,
                               .threads = { 256 } };
    mlxvk_array x = mlxvk_array_new(), y = mlxvk_array_new();
    int n = (int)(mib << 18);
    double plain, library;
    check(mlxvk_kernel_new(&copy, &desc, device), "kernel");
    check(mlxvk_random_bits(&x, &n, 1, 4, (mlxvk_array){ NULL }, stream), "random_bits");
    check(mlxvk_array_eval(x), "eval");
    check(mlxvk_array_empty(&y, &n, 1, MLXVK_UINT32, stream), "empty");
    plain = bandwidth(copy, x, y, gpu ? 50 : 3);
    mlxvk_array_free(y);
    y = mlxvk_array_new();
    library = bandwidth((mlxvk_kernel){ NULL }, x, y, gpu ? 50 : 3);
    printf("| plain copy kernel, %zu MiB | %.0f GB/s | |\n", mib, plain);
    printf("| copy through the library, %zu MiB | %.0f GB/s | %.0f %% of the plain copy |\n", mib, library, 100 * library / plain);
    mlxvk_array_free(x);
    mlxvk_kernel_free(copy);
}

/* Independent small additions: what a call and a dispatch cost the CPU. */
static void bench_calls(void)
{
    enum { BATCH = 64 };
    mlxvk_array x = mlxvk_array_new(), y[BATCH] = { { NULL } };
    mlxvk_stats stats;
    int batches = gpu ? 2000 : 100;
    double start, total;
    check(mlxvk_ones(&x, (int[]){ 256 }, 1, MLXVK_FLOAT32, stream), "ones");
    for (int round = 0; round < 2; round++) {                      /* the first warms up */
        check(mlxvk_synchronize(stream), "synchronize");
        mlxvk_reset_stats(device);
        start = now();
        for (int b = 0; b < batches; b++)
            for (int i = 0; i < BATCH; i++) check(mlxvk_add(&y[i], x, x, stream), "add");
        total = 1e9 * (now() - start);
        mlxvk_get_stats(&stats, device);
        check(mlxvk_synchronize(stream), "synchronize");
    }
    printf("| operation call (front and tape) | %.2f us | CPU, mean of %llu |\n",
           1e-3 * (total - (double)stats.lowering_ns) / (double)stats.operations, (unsigned long long)stats.operations);
    printf("| lowering and recording, with submission | %.2f us a dispatch | CPU, %llu dispatches, %llu submissions |\n",
           1e-3 * (double)stats.lowering_ns / (double)stats.dispatches, (unsigned long long)stats.dispatches,
           (unsigned long long)stats.submissions);
    for (int i = 0; i < BATCH; i++) mlxvk_array_free(y[i]);
    mlxvk_array_free(x);
}

/* Microseconds of a call, which lowers nothing. */
static double call_time(mlxvk_array x)
{
    enum { CALLS = 20000 };
    double start = now();
    for (int i = 0; i < CALLS; i++) {
        mlxvk_array y = { NULL };
        check(mlxvk_negative(&y, x, stream), "negative");
        mlxvk_array_free(y);
    }
    return 1e6 * (now() - start) / CALLS;
}

static void bench_idle_streams(void)
{
    enum { STREAMS = 1000 };
    static mlxvk_stream idle[STREAMS];
    mlxvk_array x = mlxvk_array_new();
    double alone, beside;
    check(mlxvk_ones(&x, (int[]){ 5 }, 1, MLXVK_FLOAT32, stream), "ones");
    alone = call_time(x);
    for (int i = 0; i < STREAMS; i++) idle[i] = mlxvk_stream_new_device(device);
    beside = call_time(x);
    printf("| an operation call beside %d idle streams | %.2f us | alone %.2f us |\n", STREAMS, beside, alone);
    for (int i = 0; i < STREAMS; i++) mlxvk_stream_free(idle[i]);
    mlxvk_array_free(x);
}

/* Microseconds of each of so many buffers. */
static double buffers_time(mlxvk_buffer *buffers, int count, size_t size)
{
    double start = now();
    for (int i = 0; i < count; i++) check(mlxvk_buffer_new(&buffers[i], size, device), "buffer_new");
    return 1e6 * (now() - start) / count;
}

/* The cache must find what is large enough among thousands that are not. */
static void bench_cached_buffers(void)
{
    enum { MANY = 8000 };
    static mlxvk_buffer buffers[MANY];
    double alone = buffers_time(buffers, MANY, 2048), beside;
    for (int i = 0; i < MANY; i++) { mlxvk_buffer_free(buffers[i]); buffers[i].ctx = NULL; }
    beside = buffers_time(buffers, MANY, 2304);
    printf("| a buffer of 2304 bytes beside %d cached ones of 2048 | %.2f us | alone %.2f us |\n", MANY, beside, alone);
    for (int i = 0; i < MANY; i++) mlxvk_buffer_free(buffers[i]);
}

int main(int argc, char **argv)
{
    open_device(NULL);
    printf("%s, %s, mlxvk %s\n\n| what | measured | |\n|---|---|---|\n", device_name, driver, mlxvk_version_text());
    bench_copy(argc > 1 ? (size_t)atol(argv[1]) : gpu ? 1024 : 64);
    bench_calls();
    bench_idle_streams();
    bench_cached_buffers();
    close_device();
    return 0;
}
