/* The plain operations beside the copy bandwidth of the same run: the table that README.md shows.
 *
 *     build/bench/bench_ops [part of a row's name]      (make bench-ops)
 *
 * Bytes are those that must be read and written once. Results are not used by the next operation, so the times are those of a
 * busy device. On a CPU driver operands are 1/256 as large, and the figures show only that everything runs. */
#include "bench.h"
#include "copy_spv.h"

enum unit { OF_COPY, OF_WRITE, GKEYS, TFLOPS };
enum what { PLAIN_COPY, PLAIN_WRITE, COPY, ADD, EXP, SELECT, TRANSPOSED, SOFTMAX, RMS_NORM, LAYER_NORM, SUM, SUM_ROWS, SUM_COLUMNS, CUMSUM,
            CUMSUM_ROWS, TAKE, SCATTER_ADD, SORT, FFT, CONV, BITS };

/* elements: log2 of the rows and of the columns on a GPU. wanted: percent, G keys/s or TFLOP/s. moved: how often the operand's
 * bytes are counted; condition bytes, indices and rows read again are added where they are known. */
static const struct row {
    enum what what;
    const char *name;
    mlxvk_dtype dtype;
    int rows, columns;
    double moved;
    enum unit unit;
    double wanted;
} table[] = {
    { PLAIN_COPY, "plain copy kernel", MLXVK_UINT32, 0, 28, 2, OF_COPY, 0 },
    { PLAIN_WRITE, "fill", MLXVK_UINT32, 0, 28, 1, OF_COPY, 0 },
    { COPY, "copy", MLXVK_FLOAT32, 0, 28, 2, OF_COPY, 93 },
    { COPY, "copy", MLXVK_BFLOAT16, 0, 28, 2, OF_COPY, 93 },
    { ADD, "add", MLXVK_FLOAT32, 0, 28, 3, OF_COPY, 93 },
    { ADD, "add", MLXVK_BFLOAT16, 0, 28, 3, OF_COPY, 93 },
    { EXP, "exp", MLXVK_FLOAT32, 0, 28, 2, OF_COPY, 93 },
    { EXP, "exp", MLXVK_BFLOAT16, 0, 28, 2, OF_COPY, 93 },
    { SELECT, "select", MLXVK_FLOAT32, 0, 28, 3, OF_COPY, 93 },
    { SELECT, "select", MLXVK_BFLOAT16, 0, 28, 3, OF_COPY, 93 },
    { TRANSPOSED, "transposed copy", MLXVK_FLOAT32, 14, 14, 2, OF_COPY, 75 },
    { TRANSPOSED, "transposed copy", MLXVK_BFLOAT16, 14, 14, 2, OF_COPY, 0 },
    { SOFTMAX, "softmax of rows", MLXVK_BFLOAT16, 14, 13, 2, OF_COPY, 93 },
    { RMS_NORM, "rms_norm of rows", MLXVK_BFLOAT16, 14, 13, 2, OF_COPY, 93 },
    { LAYER_NORM, "layer_norm of rows", MLXVK_BFLOAT16, 14, 13, 2, OF_COPY, 90 },
    { SUM, "sum of all", MLXVK_FLOAT32, 0, 28, 1, OF_COPY, 90 },
    { SUM_ROWS, "sum of rows", MLXVK_FLOAT32, 14, 13, 1, OF_COPY, 90 },
    { SUM_COLUMNS, "sum of columns", MLXVK_FLOAT32, 14, 13, 1, OF_COPY, 80 },
    { CUMSUM, "cumsum of all", MLXVK_FLOAT32, 0, 28, 2, OF_COPY, 80 },
    { CUMSUM_ROWS, "cumsum of rows", MLXVK_FLOAT32, 14, 13, 2, OF_COPY, 60 },
    { TAKE, "take of random rows", MLXVK_BFLOAT16, 20, 9, 2, OF_COPY, 70 },
    { SCATTER_ADD, "scatter_add of random rows", MLXVK_BFLOAT16, 20, 9, 1, OF_COPY, 50 },
    { SORT, "sort", MLXVK_FLOAT32, 0, 26, 2, GKEYS, 32 },
    { FFT, "fft of rows", MLXVK_COMPLEX64, 12, 12, 2, OF_COPY, 88 },
    { CONV, "conv2d 32 x 64 x 64 x 256 -> 256, 3 x 3", MLXVK_BFLOAT16, 0, 0, 0, TFLOPS, 230 },
    { BITS, "threefry bits", MLXVK_UINT32, 0, 28, 1, OF_WRITE, 60 },
};

enum { AT_ONCE = 8 };
static mlxvk_array x, y, z, results[AT_ONCE], *result;           /* of the row that is measured */
static mlxvk_kernel copy_kernel;
static double copy_speed, write_speed;

static void release(mlxvk_array *a)
{
    mlxvk_array_free(*a);
    a->ctx = NULL;
}

/* ---- operands ---- */

static mlxvk_array number(float value)
{
    mlxvk_array a = { NULL };
    check(mlxvk_array_new_data_device(&a, &value, NULL, 0, MLXVK_FLOAT32, device), "array");
    return a;
}

static void fill(mlxvk_array *a, const int *shape, size_t ndim, mlxvk_dtype dtype)
{
    mlxvk_array low = number(-4), high = number(4), none = { NULL };
    if (dtype == MLXVK_UINT32) check(mlxvk_random_bits(a, shape, ndim, 4, none, stream), "random_bits");
    else if (dtype == MLXVK_COMPLEX64 || dtype == MLXVK_BOOL) {
        check(mlxvk_random_uniform(a, low, high, shape, ndim, MLXVK_FLOAT32, none, stream), "uniform");
        if (dtype == MLXVK_BOOL) check(mlxvk_greater(a, *a, low, stream), "greater");
        check(mlxvk_astype(a, *a, dtype, stream), "astype");
    } else check(mlxvk_random_uniform(a, low, high, shape, ndim, dtype, none, stream), "uniform");
    check(mlxvk_array_eval(*a), "eval");
    release(&low);
    release(&high);
}

/* Random positions below n in y; how many different ones. */
static double random_positions(int n)
{
    static uint64_t state = 1;
    int32_t *at = malloc((size_t)n * sizeof *at);
    char *seen = calloc((size_t)n, 1);
    double distinct = 0;
    if (!at || !seen) exit(1);
    for (int i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at[i] = (int32_t)((uint32_t)(state >> 33) % (uint32_t)n);
        distinct += !seen[at[i]];
        seen[at[i]] = 1;
    }
    check(mlxvk_array_new_data_device(&y, at, &n, 1, MLXVK_INT32, device), "indices");
    free(at);
    free(seen);
    return distinct;
}

/* Makes a row's operands; the bytes (or keys, or floating-point operations) that count. */
static double prepare(const struct row *r, const int shape[2])
{
    double bytes;
    if (r->what == CONV) {
        int n = gpu ? 32 : 1, side = gpu ? 64 : 8, c = gpu ? 256 : 64;
        fill(&x, (int[]){ n, side, side, c }, 4, r->dtype);
        fill(&y, (int[]){ c, 3, 3, c }, 4, r->dtype);
        return 2.0 * n * side * side * c * c * 9;
    }
    fill(&x, shape, 2, r->dtype);
    bytes = r->moved * (double)mlxvk_array_nbytes(x);
    switch (r->what) {
    case PLAIN_COPY: check(mlxvk_array_empty(&y, shape, 2, r->dtype, stream), "empty"); break;
    case ADD: fill(&y, shape, 2, r->dtype); break;
    case SELECT:
        fill(&y, shape, 2, r->dtype);
        fill(&z, shape, 2, MLXVK_BOOL);
        return bytes + (double)mlxvk_array_nbytes(z);
    case RMS_NORM: case LAYER_NORM: fill(&y, &shape[1], 1, r->dtype); break;
    case TAKE: return bytes + 0 * random_positions(shape[0]);
    case SCATTER_ADD:
        fill(&z, (int[]){ shape[0], 1, shape[1] }, 3, r->dtype);
        return bytes + 2.0 * 2 * shape[1] * random_positions(shape[0]);
    case SORT: return (double)mlxvk_array_size(x);
    default: break;
    }
    return bytes;
}

/* ---- operations ---- */

static int plain_copy(void)
{
    uint32_t n = (uint32_t)(mlxvk_array_nbytes(x) / 16);
    mlxvk_encoder e;
    check(mlxvk_stream_encoder(&e, stream), "encoder");
    check(mlxvk_set_kernel(e, copy_kernel), "set_kernel");
    check(mlxvk_set_input_array(e, x, 0, NULL), "set_input_array");
    check(mlxvk_set_output_array(e, y, 1, NULL), "set_output_array");
    check(mlxvk_set_bytes(e, &n, sizeof n, 0), "set_bytes");
    return mlxvk_dispatch_threadgroups(e, (n + 1023) / 1024, 1, 1);
}

static int library_copy(mlxvk_array from)            /* stacking one array moves it */
{
    mlxvk_vector_array one = mlxvk_vector_array_new_value(from);
    int code = mlxvk_stack(result, one, stream);
    mlxvk_vector_array_free(one);
    return code;
}

static int transposed_copy(void)
{
    mlxvk_array view = { NULL };
    int code = mlxvk_transpose(&view, x, stream);
    if (!code) code = library_copy(view);
    release(&view);
    return code;
}

static int apply(const struct row *r, const int shape[2])
{
    switch (r->what) {
    case PLAIN_COPY: return plain_copy();
    case PLAIN_WRITE: return mlxvk_zeros(result, shape, 2, r->dtype, stream);
    case COPY: return library_copy(x);
    case ADD: return mlxvk_add(result, x, y, stream);
    case EXP: return mlxvk_exp(result, x, stream);
    case SELECT: return mlxvk_where(result, z, x, y, stream);
    case TRANSPOSED: return transposed_copy();
    case SOFTMAX: return mlxvk_softmax_axis(result, x, 1, true, stream);
    case RMS_NORM: return mlxvk_fast_rms_norm(result, x, y, 1e-5f, stream);
    case LAYER_NORM: return mlxvk_fast_layer_norm(result, x, y, y, 1e-5f, stream);
    case SUM: return mlxvk_sum(result, x, false, stream);
    case SUM_ROWS: return mlxvk_sum_axis(result, x, 1, false, stream);
    case SUM_COLUMNS: return mlxvk_sum_axis(result, x, 0, false, stream);
    case CUMSUM: case CUMSUM_ROWS: return mlxvk_cumsum(result, x, 1, false, true, stream);
    case TAKE: return mlxvk_take_axis(result, x, y, 0, stream);
    case SCATTER_ADD: return mlxvk_scatter_add_single(&x, x, y, z, 0, stream);   /* in place: nothing else holds x */
    case SORT: return mlxvk_sort_axis(result, x, 1, stream);
    case FFT: return mlxvk_fft_fft(result, x, shape[1], 1, MLXVK_FFT_NORM_BACKWARD, stream);
    case CONV: return mlxvk_conv2d(result, x, y, 1, 1, 1, 1, 1, 1, 1, stream);
    case BITS: return mlxvk_random_bits(result, shape, 2, 4, (mlxvk_array){ NULL }, stream);
    }
    return MLXVK_ERROR_ARGUMENT;
}

/* As many results as fit into a GiB are held, so that none is left out as unused, and computed by one submission: a
 * submission for each would be up to a tenth of the time of the shorter rows. */
static double batch(const struct row *r, const int shape[2], int repeat)
{
    size_t bytes = mlxvk_array_nbytes(x);
    int held = !gpu || bytes > (size_t)1 << 29 ? 1 : (int)(((size_t)1 << 30) / bytes);
    double start = now();
    if (held > AT_ONCE) held = AT_ONCE;
    for (int k = 0; k < repeat; k++) {
        result = &results[k % held];
        check(apply(r, shape), r->name);
        if (k % held == held - 1 || k == repeat - 1) check(mlxvk_finalize(stream), "finalize");
    }
    check(mlxvk_synchronize(stream), "synchronize");
    return (now() - start) / repeat;
}

/* Best of several rounds, in seconds for one, once the device has been busy for long enough to raise its clock, which falls
 * while a pipeline is compiled. */
static double measure(const struct row *r, const int shape[2])
{
    double best = 1e30, start, once;
    int repeat = 1;
    for (int i = 0; i < 2; i++) once = batch(r, shape, 1);
    while (gpu && repeat * once < 0.03 && repeat < 256) repeat *= 2;
    start = now();
    while (gpu && now() - start < 0.5) batch(r, shape, repeat);
    for (int i = 0; i < (gpu ? 7 : 2); i++) {
        once = batch(r, shape, repeat);
        if (once < best) best = once;
    }
    return best;
}

static void line(const struct row *r)
{
    static const char *const units[] = { "GB/s", "GB/s", "G keys/s", "TFLOP/s" };
    int less = gpu ? 0 : 8, from_rows = r->rows ? less / 2 : 0, shape[2] = { 1 << (r->rows - from_rows), 1 << (r->columns - less + from_rows) };
    double work, seconds, speed, ratio;
    char wanted[32] = "", size[48] = "";
    if (r->what != CONV) snprintf(size, sizeof size, " %d x %d", shape[0], shape[1]);
    work = prepare(r, shape);
    seconds = measure(r, shape);
    speed = ratio = work / seconds * (r->unit == TFLOPS ? 1e-12 : 1e-9);
    if (r->what == PLAIN_COPY) copy_speed = speed;
    if (r->what == PLAIN_WRITE) write_speed = speed;
    if (r->unit <= OF_WRITE) ratio = 100 * speed / (r->unit == OF_WRITE ? write_speed : copy_speed);
    if (r->wanted > 0) snprintf(wanted, sizeof wanted, "%.0f%s | %s", r->wanted, r->unit <= OF_WRITE ? " %" : "", ratio >= r->wanted ? "met" : "missed");
    printf("| %s %s%s | %.1f us | ", r->name, mlxvk_dtype_name(r->dtype), size, seconds * 1e6);
    if (r->unit <= OF_WRITE) printf("%.2f GB | %.0f GB/s | %.1f %%%s | %s |\n", work * 1e-9, speed, ratio, r->unit == OF_WRITE ? " of fill" : "", *wanted ? wanted : " | ");
    else printf("| %.2f %s | | %s |\n", speed, units[r->unit], wanted);
    fflush(stdout);
    for (int i = 0; i < 3; i++) release((mlxvk_array *[]){ &x, &y, &z }[i]);
    for (int i = 0; i < AT_ONCE; i++) release(&results[i]);
}

int main(int argc, char **argv)
{
    mlxvk_kernel_desc desc = { .name = "copy", .spirv = copy_spv, .spirv_size = sizeof copy_spv, .bindings = 2, .push_size = 4,
                               .threads = { 256 } };
    open_device(NULL);
    check(mlxvk_kernel_new(&copy_kernel, &desc, device), "kernel");
    printf("%s, %s, mlxvk %s\n\n| what | time | bytes | speed | of the plain copy | at least | |\n|---|---|---|---|---|---|---|\n", device_name, driver,
           mlxvk_version_text());
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (i < 2 || argc < 2 || strstr(table[i].name, argv[1])) line(&table[i]);
    mlxvk_kernel_free(copy_kernel);
    close_device();
    return 0;
}
