/* Element-by-element operations, conversions and copies of all layouts beside the copy bandwidth of the same run.
 *
 *     build/bench/bench_elementwise [group [part of a row's name]]      groups: unary, binary, cast, broadcast, copy, make
 *
 * Bytes are those that must be read and written once. On a CPU driver arrays are 1/256 as large, and the figures show only that
 * everything runs. */
#include "bench.h"

#define F32 MLXVK_FLOAT32
#define BF16 MLXVK_BFLOAT16
#define F16 MLXVK_FLOAT16
#define C64 MLXVK_COMPLEX64
#define U8 MLXVK_UINT8
#define I32 MLXVK_INT32
#define BOOLEAN MLXVK_BOOL

enum { ROWS, COLUMNS, HEADS, HEAD_TOKENS, HEAD, SQUARE, SIZES };
static int size_of[SIZES] = { 16384, 8192, 32, 32768, 128, 16384 };
static const char *group = "", *part = "";
static mlxvk_array x, y, z, result;
static double copy_speed;
static const mlxvk_array none;

static void release(mlxvk_array *a)
{
    mlxvk_array_free(*a);
    a->ctx = NULL;
}

static mlxvk_array number(float value)
{
    mlxvk_array a = { NULL };
    check(mlxvk_array_new_data_device(&a, &value, NULL, 0, F32, device), "array");
    return a;
}

/* Random numbers of any dtype: of integers all bits, of bool some true. */
static void fill(mlxvk_array *a, const int *shape, int ndim, mlxvk_dtype t, double from, double to)
{
    mlxvk_array low = number((float)from), high = number((float)to);
    if (t == U8 || t == I32) {
        check(mlxvk_random_bits(a, shape, (size_t)ndim, 4, none, stream), "bits");
        check(mlxvk_astype(a, *a, t, stream), "astype");
    } else {
        check(mlxvk_random_uniform(a, low, high, shape, (size_t)ndim, t == BF16 || t == F16 ? t : F32, none, stream), "uniform");
        if (t == BOOLEAN) check(mlxvk_greater(a, *a, number(0), stream), "greater");
        if (t == C64) check(mlxvk_astype(a, *a, t, stream), "astype");
    }
    check(mlxvk_array_eval(*a), "eval");
    release(&low);
    release(&high);
}

typedef int (*run_function)(void);

static double batch(run_function run, const char *name, int repeat)
{
    double start = now();
    for (int k = 0; k < repeat; k++) {
        check(run(), name);
        check(mlxvk_finalize(stream), "finalize");
    }
    check(mlxvk_synchronize(stream), "synchronize");
    return (now() - start) / repeat;
}

/* Best of some rounds once the device has been busy: its clock falls while a pipeline is compiled. */
static double line(run_function run, const char *name, const char *types, double bytes)
{
    double best = 1e30, start = now(), once;
    char full[96], of_copy[24] = "";
    snprintf(full, sizeof full, "%s %s", name, types);
    batch(run, name, 1);
    start = now();
    while (gpu && now() - start < 0.4) batch(run, name, 32);
    for (int i = 0; i < (gpu ? 5 : 1); i++) {
        once = batch(run, name, gpu ? 16 : 1);
        if (once < best) best = once;
    }
    if (copy_speed > 0) snprintf(of_copy, sizeof of_copy, "%.1f %%", 100 * bytes / best / copy_speed);
    printf("| %s | %.1f us | %.0f GB/s | %s |\n", full, best * 1e6, bytes / best * 1e-9, of_copy);
    fflush(stdout);
    release(&result);
    return bytes / best;
}

static bool wanted(const char *of, const char *name) { return (!*group || !strcmp(group, of)) && (!*part || strstr(name, part)); }
static void clear(void) { for (int i = 0; i < 3; i++) release((mlxvk_array *[]){ &x, &y, &z }[i]); }
static double bytes_of(mlxvk_array a) { return (double)mlxvk_array_nbytes(a); }
#define PLAIN ((int[]){ size_of[ROWS], size_of[COLUMNS] })

/* ---- one and two operands ---- */

static int (*one)(mlxvk_array *, mlxvk_array, mlxvk_stream);
static int (*two)(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream);
static int run_one(void) { return one(&result, x, stream); }
static int run_two(void) { return two(&result, x, y, stream); }

#define R(name, low, high) { #name, mlxvk_##name, low, high }
static const struct { const char *name; int (*run)(mlxvk_array *, mlxvk_array, mlxvk_stream); double low, high; } unary[] = {
    R(square, -4, 4), R(floor, -4, 4), R(sqrt, .01, 8), R(rsqrt, .01, 8), R(reciprocal, .01, 8), R(exp, -4, 4), R(expm1, -4, 4),
    R(log, .01, 8), R(log2, .01, 8), R(log10, .01, 8), R(log1p, -.9, 8), R(sin, -4, 4), R(cos, -4, 4), R(tan, -4, 4), R(sinh, -4, 4),
    R(cosh, -4, 4), R(tanh, -4, 4), R(arcsin, -.95, .95), R(arccos, -.95, .95), R(arctan, -4, 4), R(arcsinh, -4, 4), R(arccosh, 1, 8),
    R(arctanh, -.95, .95), R(erf, -4, 4), R(erfinv, -.95, .95), R(sigmoid, -4, 4), R(degrees, -4, 4), R(sign, -4, 4), R(abs, -4, 4),
    R(isnan, -4, 4),
};
#undef R
#define R(name, t) { #name, mlxvk_##name, t }
static const struct { const char *name; int (*run)(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream); mlxvk_dtype dtype; } binary[] = {
    R(add, F32), R(add, BF16), R(add, F16), R(add, U8), R(add, I32), R(divide, F32), R(divide, BF16), R(maximum, F32), R(maximum, BF16),
    R(maximum, F16), R(power, F32), R(power, BF16), R(remainder, F32), R(logaddexp, F32), R(logaddexp, BF16), R(arctan2, F32), R(arctan2, BF16),
    R(floor_divide, I32), R(greater, F32), R(greater, BF16), R(equal, U8), R(logical_and, BOOLEAN), R(add, C64), R(multiply, C64),
};
#undef R

static bool wanted_unary(const char *name, mlxvk_dtype t)
{
    return wanted("unary", name) || ((!*group || !strcmp(group, "unary")) && !strcmp(part, mlxvk_dtype_name(t)));
}

static void unary_rows(mlxvk_dtype t)
{
    double low = 0, high = 0;
    fill(&x, PLAIN, 2, t, .1, .9);
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++) {      /* all pipelines first: the clock falls while they are made */
        one = unary[i].run;
        if (wanted_unary(unary[i].name, t)) batch(run_one, unary[i].name, 1);
    }
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++) {
        if (!wanted_unary(unary[i].name, t)) continue;
        if (low != unary[i].low || high != unary[i].high || !x.ctx) fill(&x, PLAIN, 2, t, low = unary[i].low, high = unary[i].high);
        one = unary[i].run;
        line(run_one, unary[i].name, mlxvk_dtype_name(t), bytes_of(x) + (one == mlxvk_isnan ? (double)mlxvk_array_size(x) : bytes_of(x)));
    }
    clear();
}

static void binary_rows(void)
{
    for (size_t i = 0; i < sizeof binary / sizeof *binary; i++) {
        mlxvk_dtype t = binary[i].dtype;
        bool to_bool = binary[i].run == mlxvk_greater || binary[i].run == mlxvk_equal || binary[i].run == mlxvk_logical_and;
        if (!wanted("binary", binary[i].name)) continue;
        fill(&x, PLAIN, 2, t, .01, 4);
        fill(&y, PLAIN, 2, t, .01, 4);
        two = binary[i].run;
        line(run_two, binary[i].name, mlxvk_dtype_name(t), 2 * bytes_of(x) + (to_bool ? (double)mlxvk_array_size(x) : bytes_of(x)));
        clear();
    }
}

/* ---- conversions ---- */

static mlxvk_dtype to_type;
static int run_cast(void) { return mlxvk_astype(&result, x, to_type, stream); }

static void cast_rows(void)
{
    static const mlxvk_dtype pairs[][2] = { { F32, BF16 }, { BF16, F32 }, { F32, F16 }, { F16, F32 }, { BF16, F16 }, { F16, BF16 }, { U8, F32 },
                                            { F32, U8 }, { BOOLEAN, F32 }, { F32, BOOLEAN }, { U8, BF16 }, { BF16, U8 }, { I32, F32 }, { F32, I32 },
                                            { I32, U8 }, { BOOLEAN, I32 }, { U8, F16 }, { F32, MLXVK_INT64 }, { MLXVK_INT64, F32 }, { F32, C64 } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char types[48];
        to_type = pairs[i][1];
        snprintf(types, sizeof types, "%s -> %s", mlxvk_dtype_name(pairs[i][0]), mlxvk_dtype_name(to_type));
        if (!wanted("cast", types)) continue;
        if (pairs[i][0] == MLXVK_INT64) { fill(&x, PLAIN, 2, F32, 0, 100); check(mlxvk_astype(&x, x, MLXVK_INT64, stream), "astype"); }
        else fill(&x, PLAIN, 2, pairs[i][0], 0, 100);
        check(mlxvk_array_eval(x), "eval");
        line(run_cast, "cast", types, bytes_of(x) + (double)mlxvk_array_size(x) * (double)mlxvk_dtype_size(to_type));
        clear();
    }
}

/* ---- operands that repeat or run otherwise ---- */

static int run_where(void) { return mlxvk_where(&result, z, x, y, stream); }
static int run_copy_of(mlxvk_array from)             /* stacking one array moves it */
{
    mlxvk_vector_array list = mlxvk_vector_array_new_value(from);
    int code = mlxvk_stack(&result, list, stream);
    mlxvk_vector_array_free(list);
    return code;
}
static int run_copy(void) { return run_copy_of(y.ctx ? y : x); }
static int run_join(void)
{
    mlxvk_array both[2] = { x, x };
    mlxvk_vector_array list = mlxvk_vector_array_new_data(both, 2);
    int code = mlxvk_concatenate_axis(&result, list, 1, stream);
    mlxvk_vector_array_free(list);
    return code;
}

static void broadcast_rows(void)
{
    static const mlxvk_dtype types[] = { F32, BF16 };
    for (int d = 0; d < 2; d++) {
        mlxvk_dtype t = types[d];
        const char *name = mlxvk_dtype_name(t);
        two = mlxvk_add;
        if (wanted("broadcast", "row")) {
            fill(&x, PLAIN, 2, t, -4, 4);
            fill(&y, &size_of[COLUMNS], 1, t, -4, 4);
            line(run_two, "add a row", name, 2 * bytes_of(x));
        }
        if (wanted("broadcast", "column")) {
            fill(&x, PLAIN, 2, t, -4, 4);
            fill(&y, (int[]){ size_of[ROWS], 1 }, 2, t, -4, 4);
            two = mlxvk_multiply;
            line(run_two, "multiply by a column", name, 2 * bytes_of(x));
        }
        if (wanted("broadcast", "outer")) {
            fill(&x, (int[]){ size_of[ROWS], 1 }, 2, t, -4, 4);
            fill(&y, &size_of[COLUMNS], 1, t, -4, 4);
            line(run_two, "multiply column by row", name, (double)size_of[ROWS] * size_of[COLUMNS] * (double)mlxvk_dtype_size(t));
        }
        if (wanted("broadcast", "transposed operand")) {
            fill(&x, (int[]){ size_of[SQUARE], size_of[SQUARE] }, 2, t, -4, 4);
            fill(&y, (int[]){ size_of[SQUARE], size_of[SQUARE] }, 2, t, -4, 4);
            check(mlxvk_transpose(&y, y, stream), "transpose");
            two = mlxvk_add;
            line(run_two, "add a transposed operand", name, 3 * bytes_of(x));
            one = mlxvk_exp;
            clear();
            fill(&x, (int[]){ size_of[SQUARE], size_of[SQUARE] }, 2, t, -4, 4);
            check(mlxvk_transpose(&x, x, stream), "transpose");
            line(run_one, "exp of a transposed operand", name, 2 * bytes_of(x));
        }
        clear();
        if (wanted("broadcast", "slice")) {
            fill(&x, PLAIN, 2, t, -4, 4);
            check(mlxvk_slice(&x, x, (int[]){ 0, 64 }, 2, (int[]){ size_of[ROWS], size_of[COLUMNS] }, 2, (int[]){ 1, 1 }, 2, stream), "slice");
            one = mlxvk_square;
            line(run_one, "square of a slice of columns", name, 2 * bytes_of(x));
        }
        clear();
        if (wanted("broadcast", "mask")) {
            fill(&x, (int[]){ 8, size_of[ROWS] / 8, size_of[COLUMNS] }, 3, t, -4, 4);
            fill(&z, (int[]){ size_of[ROWS] / 8, size_of[COLUMNS] }, 2, BOOLEAN, -4, 4);
            y = number(-1);
            check(mlxvk_astype(&y, y, t, stream), "astype");
            line(run_where, "where: mask of fewer dimensions, number", name, 2 * bytes_of(x) + bytes_of(z));
            clear();
            fill(&x, (int[]){ size_of[ROWS], size_of[COLUMNS] }, 2, t, -4, 4);
            fill(&y, &size_of[COLUMNS], 1, t, -4, 4);
            fill(&z, (int[]){ size_of[ROWS], 1 }, 2, BOOLEAN, -4, 4);
            line(run_where, "where: mask of rows, row", name, 2 * bytes_of(x));
            clear();
            fill(&x, PLAIN, 2, t, -4, 4);
            fill(&y, PLAIN, 2, t, -4, 4);
            fill(&z, PLAIN, 2, BOOLEAN, -4, 4);
            line(run_where, "where", name, 3 * bytes_of(x) + bytes_of(z));
        }
        clear();
    }
}

/* ---- copies ---- */

static void copy_rows(void)
{
    static const mlxvk_dtype types[] = { F32, BF16, U8, C64 };
    int s = size_of[SQUARE];
    for (int d = 0; d < 4; d++) {
        mlxvk_dtype t = types[d];
        const char *name = mlxvk_dtype_name(t);
        if (t == C64) s /= 2;
        if (wanted("copy", "transposed")) {
            fill(&x, (int[]){ s, s }, 2, t, -4, 4);
            check(mlxvk_transpose(&y, x, stream), "transpose");
            line(run_copy, "transposed copy", name, 2 * bytes_of(x));
            fill(&x, (int[]){ s / 16, s / 16, 256 }, 3, t, -4, 4);
            check(mlxvk_transpose_axes(&y, x, (int[]){ 0, 2, 1 }, 3, stream), "transpose");
            line(run_copy, "transposed copy of small matrices", name, 2 * bytes_of(x));
            fill(&x, (int[]){ s - 1, s - 3 }, 2, t, -4, 4);
            check(mlxvk_transpose(&y, x, stream), "transpose");
            line(run_copy, "transposed copy, odd sides", name, 2 * bytes_of(x));
        }
        clear();
        if (wanted("copy", "heads")) {
            fill(&x, (int[]){ size_of[HEAD_TOKENS], size_of[HEADS], size_of[HEAD] }, 3, t, -4, 4);
            check(mlxvk_transpose_axes(&y, x, (int[]){ 1, 0, 2 }, 3, stream), "transpose");
            line(run_copy, "heads before tokens", name, 2 * bytes_of(x));
        }
        clear();
        if (wanted("copy", "columns")) {
            fill(&x, PLAIN, 2, t, -4, 4);
            check(mlxvk_slice(&y, x, (int[]){ 0, 64 }, 2, (int[]){ size_of[ROWS], size_of[COLUMNS] }, 2, (int[]){ 1, 1 }, 2, stream), "slice");
            line(run_copy, "slice of columns", name, 2 * bytes_of(y));
        }
        clear();
        if (wanted("copy", "join")) {
            fill(&x, (int[]){ size_of[ROWS], size_of[COLUMNS] / 2 }, 2, t, -4, 4);
            line(run_join, "join of columns", name, 4 * bytes_of(x));
        }
        clear();
        if (wanted("copy", "repeat")) {
            fill(&x, &size_of[COLUMNS], 1, t, -4, 4);
            check(mlxvk_broadcast_to(&y, x, PLAIN, 2, stream), "broadcast_to");
            line(run_copy, "row repeated", name, bytes_of(y));
        }
        clear();
    }
}

/* ---- made from nothing ---- */

static int run_arange(void) { return mlxvk_arange(&result, 0, (double)size_of[ROWS] * size_of[COLUMNS], 1, to_type, stream); }
static int run_full(void) { return mlxvk_full(&result, PLAIN, 2, x, to_type, stream); }
static int run_uniform(void) { return mlxvk_random_uniform(&result, x, y, PLAIN, 2, to_type, none, stream); }
static int run_normal(void) { return mlxvk_random_normal(&result, PLAIN, 2, to_type, 0, 1, none, stream); }
static int run_bits(void) { return mlxvk_random_bits(&result, PLAIN, 2, 4, none, stream); }

static void make_rows(void)
{
    static const mlxvk_dtype types[] = { F32, BF16, I32, U8 };
    for (int d = 0; d < 4; d++) {
        double bytes = (double)size_of[ROWS] * size_of[COLUMNS] * (double)mlxvk_dtype_size(types[d]);
        const char *name = mlxvk_dtype_name(types[d]);
        to_type = types[d];
        x = number(0);
        y = number(1);
        if (wanted("make", "full")) line(run_full, "full", name, bytes);
        if (wanted("make", "arange") && to_type != U8 && to_type != BF16) line(run_arange, "arange", name, bytes);
        clear();
        x = number(0);                                   /* numbers that no kernel has read yet are known when a call is made */
        y = number(1);
        if (wanted("make", "uniform") && d < 2) line(run_uniform, "uniform", name, bytes);
        if (wanted("make", "normal") && d < 2) line(run_normal, "normal", name, bytes);
        if (wanted("make", "bits") && d == 0) line(run_bits, "bits", "", bytes);
        clear();
    }
}

int main(int argc, char **argv)
{
    static const mlxvk_dtype floats[] = { F32, BF16, F16 };
    if (argc > 1) group = argv[1];
    if (argc > 2) part = argv[2];
    open_device(NULL);
    if (!gpu) { size_of[ROWS] = 512; size_of[COLUMNS] = 1024; size_of[HEAD_TOKENS] = 128; size_of[SQUARE] = 1024; }
    fill(&x, PLAIN, 2, F32, -4, 4);
    for (double start = now(); gpu && now() - start < 0.3;) batch(run_copy, "copy", 32);
    copy_speed = line(run_copy, "copy", "float32", 2 * bytes_of(x));
    clear();
    for (int d = 0; d < 3; d++) if (wanted("unary", part)) unary_rows(floats[d]);
    binary_rows();
    cast_rows();
    broadcast_rows();
    copy_rows();
    make_rows();
    close_device();
    return 0;
}
