/* Reductions, softmax and scans beside a copy of the same run: time of one and bytes read and written a second.
 *
 *     build/bench/bench_reduce [log2 of the elements, default 28 on a GPU and 22 on a CPU driver]
 *
 * Results of one operation are not used by the next, so short ones overlap: their times are those of a busy device. */
#include "bench.h"

static double copy_speed;

enum what { COPY, SUM, SUM_ROWS, SUM_COLUMNS, MEAN_ROWS, MAX_COLUMNS, ALL, ARGMAX_ROWS, LOGSUMEXP_ROWS, SOFTMAX_ROWS, SOFTMAX_COLUMNS,
            CUMSUM_ROWS, CUMSUM_COLUMNS };

static int apply(enum what what, mlxvk_array *y, mlxvk_array x)
{
    mlxvk_vector_array one;
    int code;
    switch (what) {
    case SUM: return mlxvk_sum(y, x, false, stream);
    case SUM_ROWS: return mlxvk_sum_axis(y, x, 1, false, stream);
    case SUM_COLUMNS: return mlxvk_sum_axis(y, x, 0, false, stream);
    case MEAN_ROWS: return mlxvk_mean_axis(y, x, 1, false, stream);
    case MAX_COLUMNS: return mlxvk_max_axis(y, x, 0, false, stream);
    case ALL: return mlxvk_all(y, x, false, stream);
    case ARGMAX_ROWS: return mlxvk_argmax_axis(y, x, 1, false, stream);
    case LOGSUMEXP_ROWS: return mlxvk_logsumexp_axis(y, x, 1, false, stream);
    case SOFTMAX_ROWS: return mlxvk_softmax_axis(y, x, 1, true, stream);
    case SOFTMAX_COLUMNS: return mlxvk_softmax_axis(y, x, 0, true, stream);
    case CUMSUM_ROWS: return mlxvk_cumsum(y, x, 1, false, true, stream);
    case CUMSUM_COLUMNS: return mlxvk_cumsum(y, x, 0, false, true, stream);
    default: break;
    }
    one = mlxvk_vector_array_new_value(x);
    code = mlxvk_stack(y, one, stream);
    mlxvk_vector_array_free(one);
    return code;
}

/* Best of several rounds after a warm-up, in seconds for one. */
static double measure(enum what what, mlxvk_array x)
{
    double best = 1e30;
    mlxvk_array y = { NULL };
    size_t bytes = mlxvk_array_nbytes(x);
    int repeat = gpu ? bytes > (64u << 20) ? 20 : 300 : 2;
    for (int round = 0; round < 6; round++) {
        double start = now();
        for (int i = 0; i < repeat; i++) {
            check(apply(what, &y, x), "operation");
            check(mlxvk_finalize(stream), "finalize");
        }
        check(mlxvk_synchronize(stream), "synchronize");
        if (now() - start < best) best = now() - start;
    }
    mlxvk_array_free(y);
    return best / repeat;
}

static mlxvk_array number(float value)
{
    mlxvk_array a = { NULL };
    check(mlxvk_array_new_data_device(&a, &value, NULL, 0, MLXVK_FLOAT32, device), "array");
    return a;
}

static void line(const char *name, enum what what, mlxvk_dtype dtype, int rows, int columns)
{
    mlxvk_array x = { NULL }, low = number(-4), high = number(4);
    bool writes = what == COPY || what >= SOFTMAX_ROWS;
    double seconds, speed;
    check(mlxvk_random_uniform(&x, low, high, (int[]){ rows, columns }, 2, dtype, (mlxvk_array){ NULL }, stream), "uniform");
    check(mlxvk_array_eval(x), "eval");
    seconds = measure(what, x);
    speed = (double)mlxvk_array_nbytes(x) * (writes ? 2 : 1) / seconds * 1e-9;
    if (what == COPY) copy_speed = speed;
    printf("| %s %s %d x %d | %.1f us | %.0f GB/s | %.0f %% |\n", name, mlxvk_dtype_name(dtype), rows, columns, seconds * 1e6, speed,
           100 * speed / copy_speed);
    fflush(stdout);
    mlxvk_array_free(x);
    mlxvk_array_free(low);
    mlxvk_array_free(high);
}

int main(int argc, char **argv)
{
    int log, n, r, c;
    open_device(NULL);
    log = argc > 1 ? atoi(argv[1]) : gpu ? 28 : 22;
    n = 1 << log;
    r = 1 << log / 2;
    c = n / r;
    printf("%s\n\n| what | time | read and written | of the copy |\n|---|---|---|---|\n", device_name);
    line("copy", COPY, MLXVK_FLOAT32, r, c);
    line("sum of all", SUM, MLXVK_FLOAT32, 1, n);
    line("sum of all", SUM, MLXVK_BFLOAT16, 1, n);
    line("sum of rows", SUM_ROWS, MLXVK_FLOAT32, r, c);
    line("sum of rows", SUM_ROWS, MLXVK_FLOAT32, n / 128, 128);
    line("sum of rows", SUM_ROWS, MLXVK_FLOAT32, n / 7, 7);
    line("sum of rows", SUM_ROWS, MLXVK_FLOAT32, r, c - 1);
    line("mean of rows", MEAN_ROWS, MLXVK_BFLOAT16, r, c);
    line("sum of columns", SUM_COLUMNS, MLXVK_FLOAT32, r, c);
    line("sum of columns", SUM_COLUMNS, MLXVK_BFLOAT16, r, c);
    line("max of columns", MAX_COLUMNS, MLXVK_FLOAT32, n / 128, 128);
    line("max of columns", MAX_COLUMNS, MLXVK_FLOAT32, n / 3, 3);
    line("logsumexp of rows", LOGSUMEXP_ROWS, MLXVK_BFLOAT16, r, c);
    line("argmax of rows", ARGMAX_ROWS, MLXVK_BFLOAT16, r, c);
    line("argmax of one row", ARGMAX_ROWS, MLXVK_BFLOAT16, 1, 151936);
    line("argmax of one row", ARGMAX_ROWS, MLXVK_FLOAT32, 1, 151936);
    line("softmax of rows", SOFTMAX_ROWS, MLXVK_BFLOAT16, r, c / 2);
    line("softmax of rows", SOFTMAX_ROWS, MLXVK_FLOAT32, n / 65536, 20480);
    line("softmax of rows", SOFTMAX_ROWS, MLXVK_FLOAT32, n / 256, 256);
    line("softmax of one row", SOFTMAX_ROWS, MLXVK_FLOAT32, 1, 151936);
    line("softmax of columns", SOFTMAX_COLUMNS, MLXVK_FLOAT32, r, c);
    line("cumsum of all", CUMSUM_ROWS, MLXVK_FLOAT32, 1, n);
    line("cumsum of rows", CUMSUM_ROWS, MLXVK_FLOAT32, r, c);
    line("cumsum of rows", CUMSUM_ROWS, MLXVK_FLOAT32, n / 128, 128);
    line("cumsum of columns", CUMSUM_COLUMNS, MLXVK_FLOAT32, r, c);
    line("cumsum of columns", CUMSUM_COLUMNS, MLXVK_FLOAT32, n / 3, 3);
    close_device();
    return 0;
}
