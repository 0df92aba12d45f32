/* Quantized matrix products as decoding and prompts use them: weights cold (copies that fill 1 GB take turns), each product
 * ordered after the one before it, a whole round in one submission, so that the CPU's part does not count.
 *
 *     build/bench/bench_qmv              the shapes below, 4 and 8 bits, 1 to 8 rows; then many rows
 *     build/bench/bench_qmv sweep        every setting of the kernels for one row
 *     build/bench/bench_qmv routes       every kernel for 1 to 512 rows
 *     build/bench/bench_qmv few          1 to 128 rows, as the library chooses, as multiples of 1; then by each kernel for few
 *     build/bench/bench_qmv chain        one row in a step that is recorded and linked, as decoding has it: each product adds to
 *                                        what the one before it left
 *     build/bench/bench_qmv f16          the same in float16
 *     build/bench/bench_qmv model 8b [M] [BITS]     the products of a token of Qwen3-8B (or 06b)
 *     build/bench/bench_qmv N K [M] [BITS] [GROUP]      one shape */
#include "bench.h"

enum { MAX_COPIES = 512 };

static mlxvk_dtype x_type = MLXVK_BFLOAT16;

struct weight { mlxvk_array w, scales, biases; };
struct shape { int n, k; };
static const struct shape shapes[] = { { 14336, 4096 }, { 4096, 14336 }, { 4096, 4096 }, { 3072, 1024 }, { 1024, 3072 }, { 151936, 1024 } };

/* With submissions as long as a round. */
static void open_for_rounds(const char *gates)
{
    char all[320];
    snprintf(all, sizeof all, ONE_SUBMISSION " %s", gates);
    open_device(all);
}

/* Begins a round: how much has been submitted before it. */
static uint64_t begin_round(void)
{
    mlxvk_stats stats;
    check(mlxvk_synchronize(stream), "synchronize");
    check(mlxvk_get_stats(&stats, device), "get_stats");
    return stats.submissions;
}

/* Submits what has been recorded since; its seconds. What went before its clock began would look free. */
static double submit_round(uint64_t submissions)
{
    mlxvk_stats stats;
    double start;
    check(mlxvk_get_stats(&stats, device), "get_stats");
    if (stats.submissions != submissions) {
        fprintf(stderr, "a part of the round was submitted before the clock began\n");
        exit(1);
    }
    start = now();
    check(mlxvk_finalize(stream), "finalize");
    check(mlxvk_synchronize(stream), "synchronize");
    return now() - start;
}

static mlxvk_array uniform(int rows, int columns, mlxvk_dtype dtype)
{
    mlxvk_array low = mlxvk_array_new(), high = mlxvk_array_new(), res = mlxvk_array_new();
    const float edges[2] = { -0.05f, 0.05f };
    check(mlxvk_array_new_data_device(&low, &edges[0], NULL, 0, MLXVK_FLOAT32, device), "low");
    check(mlxvk_array_new_data_device(&high, &edges[1], NULL, 0, MLXVK_FLOAT32, device), "high");
    check(mlxvk_random_uniform(&res, low, high, (int[]){ rows, columns }, 2, dtype, (mlxvk_array){ NULL }, stream), "random_uniform");
    mlxvk_array_free(low);
    mlxvk_array_free(high);
    return res;
}

static struct weight random_weight(int n, int k, int bits, int group)
{
    struct weight q = { mlxvk_array_new(), uniform(n, k / group, x_type), uniform(n, k / group, x_type) };
    check(mlxvk_random_bits(&q.w, (int[]){ n, k / 32 * bits }, 2, 4, (mlxvk_array){ NULL }, stream), "random_bits");
    check(mlxvk_synchronize(stream), "synchronize");
    return q;
}

static void free_weight(const struct weight *q)
{
    mlxvk_array_free(q->w);
    mlxvk_array_free(q->scales);
    mlxvk_array_free(q->biases);
}

/* Codes, and two numbers of 16 bits a group. */
static double weight_bytes(int n, int k, int bits, int group)
{
    return (double)n * k * bits / 8 + (double)n * (k / group) * 4;
}

/* One round of products over all copies, submitted at once; its seconds. */
static double round_of(const struct weight *q, int copies, mlxvk_array x, int bits, int group, int repeat)
{
    mlxvk_optional_int g = { group, true }, b = { bits, true };
    uint64_t submissions = begin_round();
    for (int r = 0; r < repeat; r++)
        for (int i = 0; i < copies; i++) {
            mlxvk_array y = mlxvk_array_new();
            mlxvk_encoder e;
            check(mlxvk_quantized_matmul(&y, x, q[i].w, q[i].scales, q[i].biases, true, g, b, "affine", stream), "quantized_matmul");
            check(mlxvk_stream_encoder(&e, stream), "encoder");
            check(mlxvk_encoder_barrier(e), "barrier");
            mlxvk_array_free(y);
        }
    return submit_round(submissions);
}

struct result { double us, bytes; };

static struct result measure(int m, int n, int k, int bits, int group)
{
    static struct weight q[MAX_COPIES];
    double bytes = weight_bytes(n, k, bits, group), best = 1e30, busy = 0, wanted = gpu ? 1e9 : 1;
    int copies = (int)(wanted / bytes) + 1, repeat;
    mlxvk_array x = uniform(m, k, x_type);
    if (copies > MAX_COPIES) copies = MAX_COPIES;
    for (int i = 0; i < copies; i++) q[i] = random_weight(n, k, bits, group);
    repeat = 1 + 200 / copies;
    if (!gpu) repeat = 1;
    for (int i = 0; i < 5 || (busy < 0.4 && i < 1000); i++) {       /* the clock rises while it works */
        double t = round_of(q, copies, x, bits, group, repeat);
        busy += t;
        if (t < best) best = t;
    }
    for (int i = 0; i < copies; i++) free_weight(&q[i]);
    mlxvk_array_free(x);
    mlxvk_device_clear_cache(device);
    return (struct result){ 1e6 * best / (copies * repeat), bytes };
}

static void print_kernel(const char *name, uint64_t count, uint64_t ns, void *user)
{
    (void)ns;
    if (!count || (strncmp(name, "qm", 2) && strncmp(name, "matmul", 6) && strncmp(name, "dequant", 7))) return;
    printf("%s%s", *(int *)user ? ", " : "", name);
    *(int *)user = 1;
}

static void row(int m, int n, int k, int bits, int group)
{
    struct result r;
    int first = 0;
    mlxvk_reset_stats(device);
    r = measure(m, n, k, bits, group);
    printf("| %d x %d | %d | %d/%d | %.1f | %.0f | %.1f | ", n, k, m, bits, group, r.us, r.bytes / r.us * 1e-3, 2e-6 * m * n * k / r.us);
    mlxvk_kernel_stats(device, print_kernel, &first);
    printf(" |\n");
    fflush(stdout);
}

static void heading(void)
{
    printf("\n%s, %s; %s\n\n", device_name, driver, mlxvk_dtype_name(x_type));
    printf("| N x K | M | bits/group | us | GB/s | TFLOP/s | kernels |\n|---|---|---|---|---|---|---|\n");
}

/* Every setting of the kernels for one row, for each shape. */
static void sweep(void)
{
    static const int kernels[] = { 5, 1 }, rows[] = { 1, 2, 4, 8 }, splits[] = { 0, 1, 2, 4, 16 }, threads[] = { 64, 128, 256, 512 };
    char gates[160];
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t n = 0; n < 2 * 4 * 5 * 4; n++) {
            int kernel = kernels[n / 80], split = splits[n / 4 % 5], t = threads[n % 4];
            struct result r;
            if (32 * split > t && kernel == 1) continue;
            snprintf(gates, sizeof gates, "MLX_VK_QMM_KERNEL=%d MLX_VK_QMV_ROWS=%d MLX_VK_QMV_SPLIT=%d MLX_VK_QMV_THREADS=%d", kernel,
                     rows[n / 20 % 4], split, t);
            open_for_rounds(gates);
            r = measure(1, shapes[s].n, shapes[s].k, 4, 64);
            printf("%8.2f us  %6d x %5d  %s\n", r.us, shapes[s].n, shapes[s].k, gates);
            fflush(stdout);
            close_device();
        }
}

/* Each kernel for few and many rows: where to change from one to the other. */
static void routes(void)
{
    static const int kernels[] = { 5, 1, 6, 3, 4 }, rows[] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 };
    char gates[64];
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        snprintf(gates, sizeof gates, "MLX_VK_QMM_KERNEL=%d", kernels[k]);
        open_for_rounds(gates);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (size_t s = 0; s < 3; s++)
                if (kernels[k] == 5 ? rows[i] <= 8 : kernels[k] == 1 || kernels[k] == 6 ? rows[i] <= 32 : rows[i] >= 8)
                    row(rows[i], shapes[s].n, shapes[s].k, 4, 64);
        close_device();
    }
}

/* What a layer of Qwen3-8B, and of Qwen3-0.6B, has. */
enum { LAYER_SHAPES = 6 };
static const struct shape layer_shapes[LAYER_SHAPES] = { { 4096, 12288 }, { 24576, 4096 }, { 6144, 4096 }, { 4096, 4096 }, { 3072, 1024 },
                                            { 1024, 3072 } };

/* A few rows: what they cost as a multiple of one row; by each kernel that might take them. */
static void few_rows(void)
{
    static const struct { int number, first, last; } kernels[] = { { 0, 1, 128 }, { 8, 16, 128 }, { 6, 2, 64 }, { 3, 16, 128 }, { 4, 32, 128 }, { 5, 1, 8 } };
    static const int rows[] = { 1, 2, 3, 4, 8, 16, 17, 32, 48, 64, 65, 96, 128 };
    double one[LAYER_SHAPES] = { 0 };
    printf("\n| N x K, us (multiple of M = 1, as the library chooses) |");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) printf(" M = %d |", rows[i]);
    printf("\n|---|");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) printf("---|");
    printf("\n");
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        char gates[64];
        snprintf(gates, sizeof gates, "MLX_VK_QMM_KERNEL=%d", kernels[k].number);
        open_for_rounds(gates);
        for (size_t s = 0; s < LAYER_SHAPES; s++) {
            printf("| %d x %d, %s %d |", layer_shapes[s].n, layer_shapes[s].k, k ? "kernel" : "chosen", kernels[k].number);
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                if (rows[i] < kernels[k].first || rows[i] > kernels[k].last) { printf(" |"); continue; }
                struct result r = measure(rows[i], layer_shapes[s].n, layer_shapes[s].k, 4, 64);
                if (!i && !k) one[s] = r.us;
                printf(" %.1f (%.2f) |", r.us, r.us / one[s]);
                fflush(stdout);
            }
            printf("\n");
        }
        close_device();
    }
}

/* A step of so many products, each of a row of its own, plus what the one before it left, and its sum; `last` is that of the
 * step before, and becomes this one's. As decoding has it, a step is recorded while the one before it runs. */
static void chained_step(mlxvk_array *last, const struct weight *q, const mlxvk_array *x, int count)
{
    mlxvk_optional_int g = { 64, true }, b = { 4, true };
    mlxvk_array y = mlxvk_array_new(), product = mlxvk_array_new();
    mlxvk_vector_array results;
    for (int i = 0; i < count; i++) {
        check(mlxvk_quantized_matmul(&product, x[i], q[i].w, q[i].scales, q[i].biases, true, g, b, "affine", stream), "quantized_matmul");
        if (i) check(mlxvk_add(&y, product, y, stream), "add");
        else check(mlxvk_array_set(&y, product), "array_set");
    }
    check(mlxvk_sum(&y, y, false, stream), "sum");     /* not the products' own memory, which the next step has again */
    mlxvk_array_free(product);
    results = mlxvk_vector_array_new_value(y);
    check(mlxvk_async_eval(results), "async_eval");
    mlxvk_vector_array_free(results);
    if (last->ctx) check(mlxvk_array_eval(*last), "eval");
    mlxvk_array_free(*last);
    *last = y;
}

/* One row in a step that is recorded once and then replayed, where the device can with links in the place of barriers. */
static void chain(void)
{
    enum { STEPS = 64, CHAIN = 100 };
    static struct weight q[CHAIN];
    static mlxvk_array x[CHAIN];
    open_device("");
    printf("\n%s, %s; %s, one row, a step of %d products\n\n| N x K | us a product | GB/s | dispatches linked |\n|---|---|---|---|\n", device_name, driver,
           mlxvk_dtype_name(x_type), CHAIN);
    for (size_t s = 0; s < LAYER_SHAPES; s++) {
        double bytes = weight_bytes(layer_shapes[s].n, layer_shapes[s].k, 4, 64), best = 1e30, busy = 0;
        int steps = gpu ? STEPS : 4;
        mlxvk_stats stats;
        for (int i = 0; i < CHAIN; i++) {
            q[i] = random_weight(layer_shapes[s].n, layer_shapes[s].k, 4, 64);
            x[i] = uniform(1, layer_shapes[s].k, x_type);
        }
        for (int trial = 0; trial < 3 || busy < 0.4; trial++) {     /* the first ones are recorded meanwhile */
            double start = now(), took;
            mlxvk_array last = { NULL };
            mlxvk_reset_stats(device);
            for (int i = 0; i < steps; i++) chained_step(&last, q, x, CHAIN);
            check(mlxvk_synchronize(stream), "synchronize");
            mlxvk_array_free(last);
            took = now() - start;
            busy += took;
            if (took < best) best = took;
        }
        check(mlxvk_get_stats(&stats, device), "get_stats");
        best *= 1e6 / (steps * CHAIN);
        printf("| %d x %d | %.1f | %.0f | %.0f %% |\n", layer_shapes[s].n, layer_shapes[s].k, best, bytes / best * 1e-3,
               100.0 * (double)stats.linked / (double)stats.dispatches);
        fflush(stdout);
        for (int i = 0; i < CHAIN; i++) {
            free_weight(&q[i]);
            mlxvk_array_free(x[i]);
        }
        mlxvk_device_clear_cache(device);
    }
    close_device();
}

/* ---- the products of one token, as a model's layers make them, weights cold ---- */

enum { SETS_MOST = 3, COLD = 320 << 20 };
struct product { const char *name; int k, sets, n[SETS_MOST]; bool swiglu; };
static const struct product products_8b[] = {
    { "qkv", 4096, 3, { 4096, 1024, 1024 }, false }, { "o", 4096, 1, { 4096 }, false }, { "gate up", 4096, 2, { 12288, 12288 }, true },
    { "down", 12288, 1, { 4096 }, false }, { "head", 4096, 1, { 151936 }, false },
};
static const struct product products_06b[] = {
    { "qkv", 1024, 3, { 2048, 1024, 1024 }, false }, { "o", 2048, 1, { 1024 }, false }, { "gate up", 1024, 2, { 3072, 3072 }, true },
    { "down", 3072, 1, { 1024 }, false }, { "head", 1024, 1, { 151936 }, false },
};

static void one_product(const struct product *p, const struct weight *q, mlxvk_array x, int bits)
{
    mlxvk_optional_int g = { 64, true }, b = { bits, true };
    mlxvk_array y[SETS_MOST], s = mlxvk_array_new();
    mlxvk_encoder e;
    for (int i = 0; i < p->sets; i++) {
        y[i] = mlxvk_array_new();
        check(mlxvk_quantized_matmul(&y[i], x, q[i].w, q[i].scales, q[i].biases, true, g, b, "affine", stream), "quantized_matmul");
    }
    if (p->swiglu) {
        check(mlxvk_sigmoid(&s, y[0], stream), "sigmoid");
        check(mlxvk_multiply(&y[0], y[0], s, stream), "multiply");
        mlxvk_array_free(s);
        check(mlxvk_multiply(&y[0], y[0], y[1], stream), "multiply");
        mlxvk_array_free(y[1]);
    }
    check(mlxvk_stream_encoder(&e, stream), "encoder");
    check(mlxvk_encoder_barrier(e), "barrier");
    for (int i = 0; i < p->sets; i++) if (!p->swiglu || !i) mlxvk_array_free(y[i]);
}

static double products_round(const struct product *p, const struct weight *q, int copies, int count, mlxvk_array x, int bits)
{
    uint64_t submissions = begin_round();
    for (int i = 0; i < count; i++) one_product(p, q + i % copies * p->sets, x, bits);
    return submit_round(submissions);
}

static void model(const char *size, int m, int bits)
{
    const struct product *p = strcmp(size, "8b") ? products_06b : products_8b;
    for (int i = 0; i < 5; i++, p++) {
        static struct weight q[MAX_COPIES * SETS_MOST];
        double bytes = 0, best = 1e30, busy = 0;
        int copies, count;
        mlxvk_array x = uniform(m, p->k, x_type);
        for (int j = 0; j < p->sets; j++) bytes += weight_bytes(p->n[j], p->k, bits, 64);
        copies = gpu ? (int)(COLD / bytes) + 1 : 1;
        count = gpu ? (bytes > 1e8 ? 30 : 200) : 2;
        for (int c = 0; c < copies * p->sets; c++) q[c] = random_weight(p->n[c % p->sets], p->k, bits, 64);
        for (int r = 0; gpu ? busy < 0.3 : r < 1; r++) {
            double t = products_round(p, q, copies, count, x, bits);
            busy += t;
            if (t < best) best = t;
        }
        best = 1e6 * best / count;
        printf("%-8s %6.1f MB %8.2f us %6.0f GB/s\n", p->name, bytes * 1e-6, best, bytes / best * 1e-3);
        fflush(stdout);
        for (int c = 0; c < copies * p->sets; c++) free_weight(&q[c]);
        mlxvk_array_free(x);
        mlxvk_device_clear_cache(device);
    }
}

int main(int argc, char **argv)
{
    static const int few[] = { 1, 2, 4, 8 }, many[] = { 16, 32, 64, 128, 512, 2048 };
    if (argc == 2 && !strcmp(argv[1], "chain")) { chain(); return 0; }
    if (argc == 2 && !strcmp(argv[1], "f16")) x_type = MLXVK_FLOAT16;
    open_for_rounds("");
    if (argc > 2 && !strcmp(argv[1], "model")) {
        model(argv[2], argc > 3 ? atoi(argv[3]) : 1, argc > 4 ? atoi(argv[4]) : 4);
        close_device();
        return 0;
    }
    heading();
    if (argc > 2)
        row(argc > 3 ? atoi(argv[3]) : 1, atoi(argv[1]), atoi(argv[2]), argc > 4 ? atoi(argv[4]) : 4, argc > 5 ? atoi(argv[5]) : 64);
    else if (argc == 1) {
        for (int bits = 4; bits <= 8; bits += 4)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                for (size_t i = 0; i < (bits == 4 && gpu ? 4 : 1); i++) row(few[i], shapes[s].n, shapes[s].k, bits, 64);
        for (size_t i = 0; gpu && i < sizeof many / sizeof *many; i++)
            for (size_t s = 0; s < 3; s++) row(many[i], shapes[s].n, shapes[s].k, 4, 64);
    }
    close_device();
    if (argc == 2 && !strcmp(argv[1], "sweep")) sweep();
    if (argc == 2 && !strcmp(argv[1], "routes")) routes();
    if (argc == 2 && (!strcmp(argv[1], "few") || x_type == MLXVK_FLOAT16)) few_rows();
    return 0;
}
