/* Gather and scatter beside a copy of the same run: time of one, and the bytes that must be read and written a second.
 *
 *     build/bench/bench_indexing [log2 of the rows, default 20 on a GPU and 14 on a CPU driver]
 *
 * Rows are 1 KiB of bfloat16, elements as many as 16 a row; positions are random, with repetitions. */
#include "bench.h"

enum what { COPY, TAKE, TAKE_COLUMNS, ADD, ADD_COPY, PUT, MAXIMUM, ADD_AXIS, TAKE_ALONG, GATHER_TWO, MASKED };
enum { WIDTH = 512 };

static double copy_speed;
static mlxvk_array table, updates, index_a, index_b, mask, result;
static mlxvk_vector_array both;

static int apply(enum what what)
{
    switch (what) {
    case TAKE: return mlxvk_take_axis(&result, table, index_a, 0, stream);
    case TAKE_COLUMNS: return mlxvk_take_axis(&result, table, index_b, 1, stream);
    case ADD: return mlxvk_scatter_add_single(&table, table, index_a, updates, 0, stream);
    case ADD_COPY: return mlxvk_scatter_add_single(&result, table, index_a, updates, 0, stream);
    case PUT: return mlxvk_scatter_single(&table, table, index_a, updates, 0, stream);
    case MAXIMUM: return mlxvk_scatter_max_single(&table, table, index_a, updates, 0, stream);
    case ADD_AXIS: return mlxvk_scatter_add_axis(&table, table, index_a, updates, 0, stream);
    case TAKE_ALONG: return mlxvk_take_along_axis(&result, table, index_a, 0, stream);
    case GATHER_TWO: return mlxvk_gather(&result, table, both, (int[]){ 0, 1 }, 2, (int[]){ 1, 1 }, 2, stream);
    case MASKED: return mlxvk_masked_scatter(&table, table, mask, updates, stream);
    default: break;
    }
    mlxvk_vector_array one = mlxvk_vector_array_new_value(table);
    int code = mlxvk_stack(&result, one, stream);
    mlxvk_vector_array_free(one);
    return code;
}

/* Best of several rounds after a warm-up, in seconds for one. */
static double measure(enum what what)
{
    double best = 1e30;
    int repeat = gpu ? 20 : 2;
    for (int round = 0; round < 6; round++) {
        double start = now();
        for (int i = 0; i < repeat; i++) {
            check(apply(what), "operation");
            check(mlxvk_finalize(stream), "finalize");
        }
        check(mlxvk_synchronize(stream), "synchronize");
        if (now() - start < best) best = now() - start;
    }
    return best / repeat;
}

static void line(const char *name, enum what what, double bytes)
{
    double seconds = measure(what), speed = bytes / seconds * 1e-9;
    if (what == COPY) copy_speed = speed;
    printf("| %s | %.1f us | %.0f GB/s | %.0f %% |\n", name, seconds * 1e6, speed, 100 * speed / copy_speed);
    fflush(stdout);
    mlxvk_array_free(result);
    result.ctx = NULL;
}

/* ---- operands ---- */

static uint32_t random_number(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* Random positions below n, every `hot`-th one 7; the number of different ones in *distinct. */
static mlxvk_array positions(int count, int n, int hot, double *distinct)
{
    int32_t *at = malloc((size_t)count * sizeof *at);
    char *seen = calloc((size_t)n, 1);
    mlxvk_array a = { NULL };
    if (!at || !seen) exit(1);
    *distinct = 0;
    for (int i = 0; i < count; i++) {
        at[i] = hot && i % hot == 0 ? 7 % n : (int32_t)(random_number() % (uint32_t)n);
        *distinct += !seen[at[i]];
        seen[at[i]] = 1;
    }
    check(mlxvk_array_new_data_device(&a, at, &count, 1, MLXVK_INT32, device), "indices");
    free(at);
    free(seen);
    return a;
}

static void set(mlxvk_array *a, const int *shape, size_t ndim, mlxvk_dtype dtype)
{
    mlxvk_array low = { NULL }, high = { NULL };
    float minus = -4, plus = 4;
    check(mlxvk_array_new_data_device(&low, &minus, NULL, 0, MLXVK_FLOAT32, device), "low");
    check(mlxvk_array_new_data_device(&high, &plus, NULL, 0, MLXVK_FLOAT32, device), "high");
    check(mlxvk_random_uniform(a, low, high, shape, ndim, dtype == MLXVK_INT32 ? MLXVK_FLOAT32 : dtype, (mlxvk_array){ NULL }, stream), "uniform");
    if (dtype == MLXVK_INT32) check(mlxvk_view(a, *a, dtype, stream), "view");
    check(mlxvk_array_eval(*a), "eval");
    mlxvk_array_free(low);
    mlxvk_array_free(high);
}

static void replace(mlxvk_array *a, mlxvk_array by)
{
    mlxvk_array_free(*a);
    *a = by;
}

static void rows(int n)
{
    double distinct, row = 2 * WIDTH, all = row * n;
    set(&table, (int[]){ n, WIDTH }, 2, MLXVK_BFLOAT16);
    set(&updates, (int[]){ n, 1, WIDTH }, 3, MLXVK_BFLOAT16);
    replace(&index_a, positions(n, n, 0, &distinct));
    replace(&index_b, positions(WIDTH, WIDTH, 0, &distinct));
    replace(&index_a, positions(n, n, 0, &distinct));
    line("copy", COPY, 2 * all);
    line("take of rows", TAKE, 2 * all);
    line("take of columns", TAKE_COLUMNS, 2 * all);
    line("scatter of rows, in place", PUT, all + row * distinct);
    line("scatter_add of rows, in place", ADD, all + 2 * row * distinct);
    line("scatter_add of rows into a copy", ADD_COPY, all + 2 * all);
    line("scatter_max of rows, in place", MAXIMUM, all + 2 * row * distinct);
    replace(&index_a, positions(n, n, 4, &distinct));
    line("scatter_add of rows, every 4th to one row", ADD, all + 2 * row * distinct);
}

static void elements(int n, mlxvk_dtype dtype)
{
    double distinct, all = 4.0 * n;
    set(&table, (int[]){ n }, 1, dtype);
    set(&updates, (int[]){ n, 1 }, 2, dtype);
    replace(&index_a, positions(n, n, 0, &distinct));
    printf("| %s: | | | |\n", mlxvk_dtype_name(dtype));
    line("take of elements", TAKE, 3 * all);
    line("take_along_axis", TAKE_ALONG, 3 * all);
    line("scatter of elements, in place", PUT, 2 * all + 4 * distinct);
    line("scatter_add of elements, in place", ADD, 2 * all + 8 * distinct);
    check(mlxvk_reshape(&updates, updates, (int[]){ n }, 1, stream), "reshape");
    line("scatter_add_axis, in place", ADD_AXIS, 2 * all + 8 * distinct);
    check(mlxvk_reshape(&updates, updates, (int[]){ n, 1 }, 2, stream), "reshape");
    replace(&index_a, positions(n, 10, 0, &distinct));
    line("scatter_add of elements to 10 places", ADD, 2 * all);
    check(mlxvk_reshape(&updates, updates, (int[]){ n }, 1, stream), "reshape");
    check(mlxvk_astype(&mask, index_a, MLXVK_BOOL, stream), "mask");
    line("masked_scatter, in place", MASKED, n + 2 * all);
}

int main(int argc, char **argv)
{
    double distinct;
    int log, n;
    open_device(NULL);
    log = argc > 1 ? atoi(argv[1]) : gpu ? 20 : 14;
    n = 1 << log;
    printf("%s\n\n| what | time | read and written | of the copy |\n|---|---|---|---|\n", device_name);
    rows(n);
    set(&table, (int[]){ n, 64 }, 2, MLXVK_FLOAT32);
    replace(&index_a, positions(16 * n, n, 0, &distinct));
    replace(&index_b, positions(16 * n, 64, 0, &distinct));
    both = mlxvk_vector_array_new_value(index_a);
    check(mlxvk_vector_array_append_value(both, index_b), "vector");
    line("gather of elements by two index arrays", GATHER_TWO, 16.0 * 16 * n);
    mlxvk_vector_array_free(both);
    elements(16 * n, MLXVK_FLOAT32);
    elements(16 * n, MLXVK_INT32);
    for (size_t i = 0; i < 5; i++) mlxvk_array_free(*(mlxvk_array *[]){ &table, &updates, &index_a, &index_b, &mask }[i]);
    close_device();
    return 0;
}
