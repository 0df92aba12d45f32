/* Scans of long rows in one pass, see shaders/scan_once.comp, against plain loops where sums are exact; the same bits
 * from run to run and whatever lies beside a row where they are not, also where tiles tell nothing and each
 * workgroup scans again what it needs. Sizes lie around a tile, a group of tiles and a block of groups, mostly in rows so
 * short that mlxvk.c cuts them into small ones. And scans along another axis than the last, see shaders/scan.comp: the same bits
 * whatever lies beside a column, cut or not. */
#include <math.h>
#include <stdio.h>
#include "support.h"

enum { TILE = 512, GROUP = 4 * TILE, BLOCK = 4 * GROUP, LONG = 1 << 14 };              /* of rows below LONG */
enum { LONG_TILE = 1 << 14, LONG_GROUP = 32 * LONG_TILE, LONGEST = 1 << 22 };           /* of rows below LONGEST */
enum { ONCE, SILENT, JOINED, WAYS };
static const char *const gates[WAYS] = { "MLX_VK_ENABLE_LINKS=2 MLX_VK_ENABLE_REDUCE_JOIN=0 MLX_VK_POISON=1",
                                         "MLX_VK_ENABLE_LINKS=3 MLX_VK_ENABLE_REDUCE_JOIN=0 MLX_VK_POISON=1",
                                         "MLX_VK_ENABLE_LINKS=2 MLX_VK_ENABLE_REDUCE_JOIN=2 MLX_VK_POISON=1" };

typedef int (*scan_function)(mlxvk_array *, mlxvk_array, int, bool, bool, mlxvk_stream);
static const struct { const char *name; scan_function scan; } scans[] = {
    { "cumsum", mlxvk_cumsum }, { "cumprod", mlxvk_cumprod }, { "cummax", mlxvk_cummax }, { "cummin", mlxvk_cummin } };

struct scan_case {
    mlxvk_dtype dtype;
    int scan, rows, n, first, last, step;            /* the operand's shape, of which a slice is scanned; last 0: all */
    bool reverse, inclusive, normal;                 /* normal: not whole numbers */
};

static float *numbers(const struct scan_case *c)
{
    struct rng r = { (uint64_t)c->n * 31 + (uint64_t)c->rows };
    size_t count = (size_t)c->rows * (size_t)c->n;
    float *x = malloc(count * sizeof *x);
    bool product = scans[c->scan].scan == mlxvk_cumprod;
    assert_non_null(x);
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)random_int(&r, -1, 1);
        if (product) x[i] = random_chance(&r, 50) ? 1 : -1;
        if (c->normal) x[i] = (float)random_int(&r, -1000000, 1000000) * (product ? 1e-9f : 1e-3f) + (product ? 1 : 0);
    }
    return x;
}

static mlxvk_array operand(const struct scan_case *c, mlxvk_device d, mlxvk_stream s)
{
    float *x = numbers(c);
    mlxvk_array a = floats(d, x, (int[]){ c->rows, c->n }, 2);
    OK(mlxvk_astype(&a, a, c->dtype, s), s);
    if (c->last) {
        const int start[] = { 0, c->first }, stop[] = { c->rows, c->last }, step[] = { 1, c->step };
        OK(mlxvk_slice(&a, a, start, 2, stop, 2, step, 2, s), s);
    }
    free(x);
    return a;
}

/* What a scan gives one way: of numbers that are not whole as they are, of others as float32. To be freed. */
static void *scanned(const struct scan_case *c, int way, size_t *count)
{
    mlxvk_device d = open_device(gates[way]);
    mlxvk_stream s = open_stream(d);
    mlxvk_array x = operand(c, d, s), y = mlxvk_array_new();
    OK(scans[c->scan].scan(&y, x, 1, c->reverse, c->inclusive, s), s);
    if (!c->normal) OK(mlxvk_astype(&y, y, MLXVK_FLOAT32, s), s);
    *count = mlxvk_array_size(y);
    void *res = malloc(mlxvk_array_nbytes(y));
    assert_non_null(res);
    OK(mlxvk_array_read(y, res, mlxvk_array_nbytes(y), s), s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    return res;
}

/* A whole number in a dtype: integers wrap. */
static double in_dtype(mlxvk_dtype t, double v)
{
    int bits = 8 * (int)mlxvk_dtype_size(t);
    if (dtype_is_inexact(t) || isinf(v)) return v;
    if (t == MLXVK_BOOL) return v != 0;
    int64_t wrapped = (int64_t)((uint64_t)(int64_t)v << (64 - bits)) >> (64 - bits);
    return (double)(t <= MLXVK_UINT32 && wrapped < 0 ? wrapped + ((int64_t)1 << bits) : wrapped);
}

/* What one dtype's least or largest value is, where an exclusive scan begins. */
static double end_of(mlxvk_dtype t, bool largest)
{
    double top = ldexp(1, 8 * (int)mlxvk_dtype_size(t) - (t > MLXVK_UINT32)) - 1;
    if (dtype_is_inexact(t)) return largest ? INFINITY : -INFINITY;
    if (t == MLXVK_BOOL) top = 1;
    return largest ? top : t > MLXVK_UINT32 ? -top - 1 : 0;
}

/* Against a plain loop over whole numbers. */
static void expect_scan(const struct scan_case *c, int way)
{
    enum { SUM, PROD, MAX, MIN };
    int last = c->last ? c->last : c->n, step = c->last ? c->step : 1, n = (last - c->first + step - 1) / step;
    mlxvk_dtype to = c->dtype == MLXVK_BOOL && c->scan == SUM ? MLXVK_INT32 : c->dtype;
    size_t count;
    float *x = numbers(c), *got = scanned(c, way, &count);
    assert_int_equal(count, (size_t)c->rows * (size_t)n);
    for (int row = 0; row < c->rows; row++) {
        double a = c->scan == SUM ? 0 : c->scan == PROD ? 1 : end_of(c->dtype, c->scan == MIN);
        for (int k = 0; k < n; k++) {
            int i = c->reverse ? n - 1 - k : k;
            double v = in_dtype(c->dtype, (double)x[row * c->n + c->first + i * step]), b = a;
            b = in_dtype(to, c->scan == SUM ? a + v : c->scan == PROD ? a * v : c->scan == MAX ? fmax(a, v) : fmin(a, v));
            float want = (float)(c->inclusive ? b : a), y = got[row * n + i];
            if (y != want)
                fail_msg("%s of %s, %d rows of %d (%d to %d by %d)%s%s: element %d of row %d is %g, not %g, way %d",
                         scans[c->scan].name, mlxvk_dtype_name(c->dtype), c->rows, c->n, c->first, c->last, c->step,
                         c->reverse ? ", reverse" : "", c->inclusive ? "" : ", exclusive", i, row, (double)y, (double)want, way);
            a = b;
        }
    }
    free(x);
    free(got);
}

static void compare(const struct scan_case *c)
{
    size_t count;
    if (!c->normal) {
        expect_scan(c, ONCE);
        expect_scan(c, SILENT);
        return;
    }
    unsigned char *want = scanned(c, ONCE, &count), *got = scanned(c, SILENT, &count);
    for (size_t i = 0, width = mlxvk_dtype_size(c->dtype); i < count; i++)
        if (memcmp(want + i * width, got + i * width, width))
            fail_msg("%s of %s, %d rows of %d%s%s: element %zu differs", scans[c->scan].name, mlxvk_dtype_name(c->dtype),
                     c->rows, c->n, c->reverse ? ", reverse" : "", c->inclusive ? "" : ", exclusive", i);
    free(got);
    free(want);
}

/* All dtypes, scans and directions, around the sizes at which another tile, group or block begins. On a CPU most of the time is
 * the pipelines', so that not each dtype goes with each scan. */
static void test_sizes(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_INT32, MLXVK_FLOAT16, MLXVK_BOOL, MLXVK_INT8,
                                          MLXVK_UINT16, MLXVK_UINT32, MLXVK_INT16, MLXVK_UINT8 };
    static const int sizes[] = { 2 * TILE, 2 * TILE + 1, 3 * TILE + 4, GROUP - 6, GROUP - 2, GROUP, GROUP + 1, GROUP + TILE + 5,
                                 BLOCK - 3, BLOCK, BLOCK + 3, BLOCK + GROUP + TILE + 1, LONG - 1 };
    int n = 0;
    (void)state;
    for (int kind = 0; kind < (int)COUNT(dtypes); kind++)
        for (int k = 0; k < 7; k++, n++)
            compare(&(struct scan_case){ dtypes[kind], kind % 4, 1, sizes[n % (int)COUNT(sizes)], .reverse = kind & 2,
                                         .inclusive = kind % 3 != 1 });
    for (int k = 0; k < 16; k++)                     /* rows end, and those behind the first begin, anywhere in a four */
        compare(&(struct scan_case){ MLXVK_FLOAT32, 0, k % 3 + 1, 2 * TILE + 4 * k + k % 4, .inclusive = true });
}

/* Elements of a tile of rows from LONGEST on: what a device has of shared memory says so. */
static int longest_tile(void)
{
    size_t shared = 0;
    OK_DEVICE(mlxvk_device_info_get_size(&shared, device, "shared_memory_size"), device);
    return 2048 * (shared >= 4096 + 5 * 8192 ? 21 : 16 + (int)(shared - 4096) / 8192);
}

/* Where there are tiles enough for a group of a long row, or a block: the last where a loop may be as long. */
static void test_long(void **state)
{
    const char *type = NULL;
    (void)state;
    compare(&(struct scan_case){ MLXVK_INT32, 0, 1, LONG_GROUP - 2, .inclusive = true });
    compare(&(struct scan_case){ MLXVK_FLOAT32, 0, 2, LONG_GROUP + LONG_TILE + 3, .reverse = true, .normal = true });
    compare(&(struct scan_case){ MLXVK_INT32, 0, 1, LONGEST - 1, .reverse = true, .inclusive = true });
    compare(&(struct scan_case){ MLXVK_INT32, 0, 1, LONGEST + 7, .inclusive = true });
    OK_DEVICE(mlxvk_device_info_get_string(&type, device, "type"), device);
    if (!strcmp(type, "cpu")) return;
    const int tile = longest_tile(), group = 32 * tile, block = 32 * group;
    compare(&(struct scan_case){ MLXVK_FLOAT32, 0, 1, block + group + tile + 1, .inclusive = true, .normal = true });
    compare(&(struct scan_case){ MLXVK_INT32, 0, 1, block + 5, .reverse = true });
}

/* Several rows, rows that begin anywhere, and elements that are not side by side. */
static void test_views(void **state)
{
    static const struct scan_case views[] = {
        { MLXVK_FLOAT32, 0, 3, 2 * TILE + 4, .inclusive = true },
        { MLXVK_FLOAT32, 0, 3, 3 * TILE, 1, 2 * TILE + 18, 1, .inclusive = true },
        { MLXVK_FLOAT16, 3, 2, 3 * TILE + 1, 3, 3 * TILE, 1, .reverse = true, .inclusive = true },
        { MLXVK_INT8, 1, 5, 2 * TILE + 7, 2, 2 * TILE + 5, 1, .inclusive = true },
        { MLXVK_BFLOAT16, 1, 1, 6 * TILE, 1, 6 * TILE, 2, .inclusive = false },
        { MLXVK_INT32, 2, 2, 2 * BLOCK, 5, BLOCK + 7, 1, .reverse = true, .inclusive = true },
    };
    (void)state;
    for (size_t i = 0; i < COUNT(views); i++) compare(&views[i]);
}

/* Rows two dimensions apart, of which every second one is taken. */
static void test_dimensions(void **state)
{
    enum { ROWS = 5, N = GROUP + 9 };
    static int32_t x[ROWS * ROWS * N], got[ROWS * ROWS * N];
    struct rng r = { 7 };
    (void)state;
    for (int i = 0; i < ROWS * ROWS * N; i++) x[i] = random_int(&r, -9, 9);
    for (int way = 0; way < WAYS; way++) {
        struct setting t = start(gates[way]);
        mlxvk_array a = array_of(t.device, MLXVK_INT32, x, (int[]){ ROWS, ROWS, N, 1 }, 4);
        OK(mlxvk_slice(&a, a, (int[]){ 0, 0, 0, 0 }, 4, (int[]){ ROWS, ROWS - 1, N, 1 }, 4, (int[]){ 2, 1, 1, 1 }, 4, t.stream), t.stream);
        OK(mlxvk_cumsum(&a, a, 2, false, true, t.stream), t.stream);
        OK(mlxvk_array_read(a, got, mlxvk_array_nbytes(a), t.stream), t.stream);
        for (int i = 0; i < (ROWS / 2 + 1) * (ROWS - 1); i++) {
            int32_t sum = 0, *y = got + i * N, *of = x + (i / (ROWS - 1) * 2 * ROWS + i % (ROWS - 1)) * N;
            for (int k = 0; k < N; k++)
                if (y[k] != (sum += of[k]))
                    fail_msg("element %d of row %d is %d, not %d, way %d", k, i, y[k], sum, way);
        }
        mlxvk_array_free(a);
        finish(&t);
    }
}

/* Sums that are rounded: in one order, whoever forms them. */
static void test_same_bits(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++)
        compare(&(struct scan_case){ k & 1 ? MLXVK_FLOAT32 : MLXVK_BFLOAT16, !(k & 1), k % 4 == 1 ? 2 : 1,
                                     k & 2 ? BLOCK + 3 * TILE + k : 5 * TILE + k, .inclusive = k & 1, .normal = true });
    compare(&(struct scan_case){ MLXVK_FLOAT32, 0, 70, LONG - 1, .inclusive = true, .normal = true });
}

/* Each row twice: as a view where it lies, and in an array of its own, where it begins at 16 bytes. */
static void expect_rows_beside(const struct scan_case *many, const char *way)
{
    size_t size = sizeof(float) * (size_t)many->n;
    float *all = malloc(many->rows * size), *one = malloc(size), *from = numbers(many);
    struct setting t = start(way);
    mlxvk_array x = operand(many, t.device, t.stream), y = mlxvk_array_new();
    assert_non_null(all);
    assert_non_null(one);
    OK(mlxvk_cumsum(&y, x, 1, false, true, t.stream), t.stream);
    OK(mlxvk_array_read(y, all, many->rows * size, t.stream), t.stream);
    for (int i = 0; i < 6; i++) {
        const int row = i / 2 * (many->rows - 1) / 2, shape[] = { 1, many->n };
        if (i % 2) { mlxvk_array_free(y); y = floats(t.device, from + (size_t)row * many->n, shape, 2); }
        else OK(mlxvk_slice(&y, x, (int[]){ row, 0 }, 2, (int[]){ row + 1, many->n }, 2, (int[]){ 1, 1 }, 2, t.stream), t.stream);
        OK(mlxvk_cumsum(&y, y, 1, false, true, t.stream), t.stream);
        OK(mlxvk_array_read(y, one, size, t.stream), t.stream);
        assert_memory_equal(one, all + (size_t)row * many->n, size);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    finish(&t);
    free(from);
    free(all);
    free(one);
}

/* A row has the bits that it has alone: one of many, which would fill a device as they are; a long one, which is cut. In
 * one pass or not. */
static void test_rows_beside(void **state)
{
    const char *const ways[] = { gates[ONCE], gates[SILENT], gates[JOINED], "MLX_VK_ENABLE_LINKS=0 MLX_VK_POISON=1" };
    (void)state;
    for (size_t way = 0; way < COUNT(ways); way++) {
        expect_rows_beside(&(struct scan_case){ MLXVK_FLOAT32, 0, 9, BLOCK + TILE + 8, .inclusive = true, .normal = true }, ways[way]);
        expect_rows_beside(&(struct scan_case){ MLXVK_FLOAT32, 0, 4, 1001, .inclusive = true, .normal = true }, ways[way]);
        expect_rows_beside(&(struct scan_case){ MLXVK_FLOAT32, 0, 3, 70001, .inclusive = true, .normal = true }, ways[way]);
    }
    expect_rows_beside(&(struct scan_case){ MLXVK_FLOAT32, 0, 1030, 8192, .inclusive = true, .normal = true }, ways[2]);
}

/* ---- along another axis than the last ---- */

enum { BESIDE = 8, PLUS = 5, VIEWS = 8 };                /* columns; the first that is not of plain numbers; seen() */
static const scan_function column_scans[] = { mlxvk_cumsum, mlxvk_cumprod, mlxvk_cummax, mlxvk_cummin, mlxvk_logcumsumexp };
static const char *const cut_ways[] = { "MLX_VK_POISON=1", "MLX_VK_POISON=1 MLX_VK_SCAN_COLUMNS=1",
                                        "MLX_VK_POISON=1 MLX_VK_SCAN_COLUMNS=1000000000" };      /* by device, none cut, all */

struct column_case { mlxvk_dtype dtype; int scan, n; bool reverse, inclusive; int more; };       /* more: views of many columns */

/* (n, BESIDE): random numbers; the last columns nothing but -0, one NaN, one infinity. */
static mlxvk_array column_values(const struct column_case *c, struct setting *t)
{
    struct rng r = { (uint64_t)c->n * 7 + (uint64_t)c->scan };
    const int parts = c->dtype == MLXVK_COMPLEX64 ? 2 : 1, shape[] = { c->n, BESIDE };
    const bool whole = !dtype_is_inexact(c->dtype), product = column_scans[c->scan] == mlxvk_cumprod;
    size_t count = (size_t)c->n * BESIDE * (size_t)parts;
    float *x = malloc(count * sizeof *x);
    int64_t *w = malloc(count * sizeof *w);
    assert_true(x && w);
    for (size_t i = 0; i < count; i++) {
        size_t row = i / BESIDE / (size_t)parts, column = i / (size_t)parts % BESIDE;
        float v = (float)random_int(&r, -1000000, 1000000) * 1e-6f;
        w[i] = (int64_t)random_bits(&r);
        x[i] = product ? (i % 2 && parts == 2 ? 0.03f * v : 1 + 0.03f * v) : v;
        if (column == PLUS) x[i] = -0.0f;
        if (column == PLUS + 1 && row == (size_t)c->n * 2 / 3) x[i] = NAN;
        if (column == PLUS + 2 && row == (size_t)c->n / 2) x[i] = INFINITY;
    }
    mlxvk_array a = array_of(t->device, whole ? MLXVK_INT64 : parts == 2 ? MLXVK_COMPLEX64 : MLXVK_FLOAT32,
                             whole ? (void *)w : x, shape, 2);
    OK(mlxvk_astype(&a, a, c->dtype, t->stream), t->stream);
    free(x);
    free(w);
    return a;
}

static mlxvk_array part_of_columns(mlxvk_array x, int start, int stop, int step, bool own, mlxvk_stream s)
{
    mlxvk_array y = mlxvk_array_new();
    OK(mlxvk_slice(&y, x, (int[]){ 0, start }, 2, (int[]){ mlxvk_array_dim(x, 0), stop }, 2, (int[]){ 1, step }, 2, s), s);
    if (own) OK(mlxvk_contiguous(&y, y, false, s), s);
    return y;
}

/* Columns first, first + step, ... of x, and from the first again after the last, in one way that they may lie. */
static mlxvk_array seen(mlxvk_array x, int view, int *first, int *step, mlxvk_stream s)
{
    mlxvk_array y = mlxvk_array_new();
    const int three[] = { 1, mlxvk_array_dim(x, 0), BESIDE };
    *first = 0;
    *step = 1;
    switch (view) {
    case 0: OK(mlxvk_array_set(&y, x), s); break;
    case 1: return part_of_columns(x, *first = 3, 4, 1, true, s);          /* one, fours of which lie side by side */
    case 2: return part_of_columns(x, *first = PLUS + 1, PLUS + 2, 1, false, s);
    case 3: return part_of_columns(x, 0, 5, 1, true, s);                   /* not by fours */
    case 4: return part_of_columns(x, *first = 1, 4, 1, false, s);         /* at an odd place */
    case 5: return part_of_columns(x, 0, BESIDE, *step = 2, false, s);
    case 6: return part_of_columns(x, *first = 4, 8, 1, false, s);         /* by fours, with gaps */
    case 7:                                                                /* several matrices */
        OK(mlxvk_reshape(&y, x, three, 3, s), s);
        OK(mlxvk_tile(&y, y, (int[]){ 3, 1, 1 }, 3, s), s);
        break;
    case 8:                                                                /* more threads than a CPU driver has lanes */
        OK(mlxvk_tile(&y, x, (int[]){ 1, 129 }, 2, s), s);
        x = y;
        y = part_of_columns(x, 0, 1027, 1, true, s);
        mlxvk_array_free(x);
        break;
    default: OK(mlxvk_tile(&y, x, (int[]){ 1, 260 }, 2, s), s);
    }
    return y;
}

/* What a scan along the last axis but one gives. To be freed. */
static unsigned char *scanned_columns(const struct column_case *c, mlxvk_array x, size_t *count, size_t *size, mlxvk_stream s)
{
    mlxvk_array y = mlxvk_array_new();
    OK(column_scans[c->scan](&y, x, -2, c->reverse, c->inclusive, s), s);
    unsigned char *got = malloc(mlxvk_array_nbytes(y));
    assert_non_null(got);
    OK(mlxvk_array_read(y, got, mlxvk_array_nbytes(y), s), s);
    *count = mlxvk_array_size(y);
    *size = mlxvk_array_itemsize(y);
    mlxvk_array_free(y);
    return got;
}

static void expect_same_columns(const struct column_case *c)
{
    unsigned char *want = NULL;
    for (size_t way = c->more ? 0 : 1; way < COUNT(cut_ways); way++) {
        struct setting t = start(cut_ways[way]);
        mlxvk_array x = column_values(c, &t);
        for (int view = 0; view < VIEWS + c->more; view++) {
            int first, step;
            size_t count, size;
            mlxvk_array y = seen(x, view, &first, &step, t.stream);
            size_t m = (size_t)mlxvk_array_dim(y, -1);
            unsigned char *got = scanned_columns(c, y, &count, &size, t.stream);
            for (size_t i = 0; want && i < count; i++) {
                size_t row = i / m % (size_t)c->n, column = ((size_t)first + i % m * (size_t)step) % BESIDE;
                if (memcmp(got + i * size, want + (row * BESIDE + column) * size, size))
                    fail_msg("scan %d of %s, %d elements%s%s: element %zu of column %zu differs, view %d, way %zu", c->scan,
                             mlxvk_dtype_name(c->dtype), c->n, c->reverse ? " reverse" : "", c->inclusive ? "" : " exclusive", row,
                             column, view, way);
            }
            if (want) free(got);
            else want = got;
            mlxvk_array_free(y);
        }
        mlxvk_array_free(x);
        finish(&t);
    }
    free(want);
}

/* A column has the bits that it has alone and among any others, wherever they lie, cut into chunks or walked as it is. On
 * a CPU most of the time is the pipelines', so that not each dtype goes with each scan. */
static void test_columns_beside(void **state)
{
    static const int sizes[] = { 63, 64, 65, 127, 128, 4095, 4096, 4097, 4160, 8200 };
    static const struct { mlxvk_dtype dtype; int scan; } kinds[] = {
        { MLXVK_FLOAT32, 2 }, { MLXVK_FLOAT32, 4 }, { MLXVK_FLOAT16, 0 }, { MLXVK_BFLOAT16, 1 }, { MLXVK_COMPLEX64, 0 },
        { MLXVK_COMPLEX64, 1 }, { MLXVK_COMPLEX64, 4 }, { MLXVK_INT64, 0 }, { MLXVK_INT8, 3 } };
    (void)state;
    for (int k = 0; k < (int)COUNT(sizes); k++)
        expect_same_columns(&(struct column_case){ MLXVK_FLOAT32, 0, sizes[k], k & 1, k & 2 || k == 5, 2 });
    for (int k = 0; k < (int)COUNT(kinds); k++)
        expect_same_columns(&(struct column_case){ kinds[k].dtype, kinds[k].scan, k % 4 ? 4098 + k : 129 + k, k & 1, k & 2, 0 });
    expect_same_columns(&(struct column_case){ MLXVK_FLOAT32, 0, 19200, .inclusive = true, .more = 1 });
    expect_same_columns(&(struct column_case){ MLXVK_FLOAT32, 0, 65535, .reverse = true, .inclusive = true });
    expect_same_columns(&(struct column_case){ MLXVK_FLOAT32, 0, 300000, .inclusive = true });
    expect_same_columns(&(struct column_case){ MLXVK_BFLOAT16, 1, 300001, .reverse = true });
}

/* NaN and infinities go on to the end, whatever tile they are in. */
static void test_not_numbers(void **state)
{
    enum { N = 3 * TILE };
    static float x[N], got[N];
    (void)state;
    for (int scan = 0; scan < (int)COUNT(scans); scan++)
        for (int way = ONCE; way < WAYS; way++)
            for (int k = 0; k < 3; k++) {
                struct setting t = start(gates[way]);
                const int at = TILE + 77;
                const float odd[] = { NAN, INFINITY, -INFINITY };
                for (int i = 0; i < N; i++) x[i] = 1;
                x[at] = odd[k];
                mlxvk_array a = floats(t.device, x, (int[]){ N }, 1);
                OK(scans[scan].scan(&a, a, 0, false, true, t.stream), t.stream);
                OK(mlxvk_array_read(a, got, sizeof got, t.stream), t.stream);
                for (int i = 0; i < N; i++) {
                    float plain = scan == 0 ? (float)(i + 1) : 1, want = i < at ? plain : odd[k];
                    if (i >= at && ((scan == 2 && k == 2) || (scan == 3 && k == 1))) want = 1;
                    if (isnan(want) ? !isnan(got[i]) : got[i] != want)
                        fail_msg("%s: element %d is %g, not %g", scans[scan].name, i, (double)got[i], (double)want);
                }
                mlxvk_array_free(a);
                finish(&t);
            }
}

/* A result does not take the memory of an operand that others may have to scan again. */
static void test_operand_stays(void **state)
{
    enum { N = 40 * TILE };
    static int32_t got[N];
    (void)state;
    for (int way = ONCE; way < WAYS; way++) {
        struct setting t = start(gates[way]);
        mlxvk_array a = counting(t.device, N), one = mlxvk_array_new();
        OK(mlxvk_ones_like(&one, a, t.stream), t.stream);
        OK(mlxvk_cumsum(&one, one, 0, false, true, t.stream), t.stream);
        OK(mlxvk_subtract(&a, one, a, t.stream), t.stream);
        OK(mlxvk_cumsum(&a, a, 0, false, true, t.stream), t.stream);
        OK(mlxvk_array_read(a, got, sizeof got, t.stream), t.stream);
        for (int i = 0; i < N; i++) assert_int_equal(got[i], i + 1);
        mlxvk_array_free(a);
        mlxvk_array_free(one);
        finish(&t);
    }
}

/* That the kernel is the one that is tested. */
static void taken(int way, int n, uint64_t dispatches)
{
    mlxvk_device d = open_device(gates[way]);
    mlxvk_stream s = open_stream(d);
    mlxvk_array x = counting(d, n);
    uint64_t before = dispatches_of(gates[way], "scan_once");
    size_t subgroup = 0;
    OK(mlxvk_cumsum(&x, x, 0, false, true, s), s);
    OK(mlxvk_array_eval(x), s);
    mlxvk_device_info_get_size(&subgroup, d, "subgroup");
    if (subgroup) assert_int_equal(dispatches_of(gates[way], "scan_once") - before, dispatches);
    mlxvk_array_free(x);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

/* What tiles tell is cleared by a dispatch of its own where it is not kept clear, or is more than there is room for: here of
 * 31 tiles, 8 groups and 2 blocks, and of 48, 12 and 3. */
static void test_taken(void **state)
{
    (void)state;
    taken(ONCE, 2 * TILE, 2);
    taken(JOINED, 2 * TILE, 1);
    taken(JOINED, 31 * TILE, 1);
    taken(JOINED, 3 * LONG_TILE, 1);
    taken(JOINED, 62 * LONG_TILE, 2);
}

/* ---- scans, then the place of a value in what they come to ---- */

#define SEARCHED "MLX_VK_ENABLE_LINKS=2 MLX_VK_ENABLE_REDUCE_JOIN=2 MLX_VK_ENABLE_SEARCH_GROUPS=2 MLX_VK_POISON=1"
#define APART "MLX_VK_ENABLE_LINKS=2 MLX_VK_ENABLE_REDUCE_JOIN=2 MLX_VK_ENABLE_SEARCH_GROUPS=0 MLX_VK_POISON=1"

enum broken { WHOLE, SUMS_HELD, TWO_VALUES, TWO_ROWS, NUMBER_LESS, TOO_LONG, HALVES, SHORT, NEGATIVE };
static const struct search_case {
    int n;
    bool reverse, inclusive, right;
    int number;                                      /* 1: added, -1: subtracted, 0: none */
    enum broken broken;
    int fused, apart;                                /* dispatches */
} search_cases[] = {
    { 4 * TILE, false, true, false, 0, WHOLE, 1, 2 },          { 5 * TILE + 3, false, false, true, -1, WHOLE, 1, 3 },
    { 9 * GROUP / 4 + 1, true, true, true, 1, WHOLE, 1, 3 },   { 151936, false, false, true, -1, WHOLE, 1, 3 },
    { 151937, true, false, false, -1, WHOLE, 1, 3 },           { 4 * TILE, false, true, true, 0, NEGATIVE, 1, 2 },
    { 4 * TILE, false, true, false, -1, SUMS_HELD, 2, 3 },     { 4 * TILE, false, true, false, 0, TWO_VALUES, 2, 2 },
    { 4 * TILE, false, true, false, 0, TWO_ROWS, 2, 2 },       { 4 * TILE, false, true, false, -1, NUMBER_LESS, 2, 3 },
    { 62 * LONG_TILE, false, true, false, 0, TOO_LONG, 3, 3 }, { 4 * TILE, false, true, false, 0, HALVES, 3, 3 },
    { TILE, false, true, false, 0, SHORT, 2, 2 },
};

/* The places of values in a case's sums, for each of `count` values; dispatches of the last. */
static int places(const char *with, const struct search_case *c, uint32_t *result, int count)
{
    struct setting t = start(with);
    float *data = malloc((size_t)c->n * 2 * sizeof *data), one = 3;
    struct rng r = { (uint64_t)c->n };
    int rows = c->broken == TWO_ROWS ? 2 : 1, dispatches = 0;
    mlxvk_array x, number = floats(t.device, &one, NULL, 0);
    for (int i = 0; i < c->n * rows; i++) data[i] = (float)random_int(&r, c->broken == NEGATIVE ? -1000 : 0, 1000) / 977;
    x = floats(t.device, data, (int[]){ rows, c->n }, 2);
    OK(mlxvk_astype(&number, number, MLXVK_UINT32, t.stream), t.stream);
    if (c->broken == HALVES) OK(mlxvk_astype(&x, x, MLXVK_BFLOAT16, t.stream), t.stream);
    OK(mlxvk_array_eval(x), t.stream);
    OK(mlxvk_array_eval(number), t.stream);
    for (int i = 0; i < count; i++) {
        float odd[2] = { i == 0 ? NAN : i == 1 ? -1 : (float)c->n * (float)(i - 2) / (float)(count - 2) * 0.52f, 5 };
        mlxvk_array value = floats(t.device, odd, (int[]){ c->broken == TWO_VALUES ? 2 : 1 }, 1), sums = mlxvk_array_new();
        mlxvk_array place = mlxvk_array_new();
        OK(mlxvk_synchronize(t.stream), t.stream);
        mlxvk_reset_stats(t.device);
        OK(mlxvk_cumsum(&sums, x, 1, c->reverse, c->inclusive, t.stream), t.stream);
        if (c->broken == TWO_ROWS)
            OK(mlxvk_slice(&place, sums, (int[]){ 1, 0 }, 2, (int[]){ 2, c->n }, 2, (int[]){ 1, 1 }, 2, t.stream), t.stream);
        else OK(mlxvk_array_set(&place, sums), t.stream);
        if (c->broken != SUMS_HELD) { mlxvk_array_free(sums); sums = mlxvk_array_new(); }
        OK(mlxvk_reshape(&place, place, (int[]){ c->n }, 1, t.stream), t.stream);
        OK(mlxvk_searchsorted(&place, place, value, c->right ? "right" : "left", t.stream), t.stream);
        if (c->broken == NUMBER_LESS) OK(mlxvk_subtract(&place, number, place, t.stream), t.stream);
        else if (c->number) OK((c->number > 0 ? mlxvk_add : mlxvk_subtract)(&place, place, number, t.stream), t.stream);
        OK(mlxvk_synchronize(t.stream), t.stream);
        dispatches = (int)stats_of(t.device).dispatches;
        OK(mlxvk_array_read(place, result + 2 * i, mlxvk_array_nbytes(place), t.stream), t.stream);
        mlxvk_array_free(value);
        mlxvk_array_free(sums);
        mlxvk_array_free(place);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(number);
    free(data);
    finish(&t);
    return dispatches;
}

/* The same places by one dispatch, where all holds that this assumes. */
static void test_search_behind(void **state)
{
    enum { COUNT_OF = 12 };
    (void)state;
    for (size_t i = 0; i < sizeof search_cases / sizeof *search_cases; i++) {
        const struct search_case *c = &search_cases[i];
        uint32_t want[2 * COUNT_OF] = { 0 }, got[2 * COUNT_OF] = { 0 };
        int apart = places(APART, c, want, COUNT_OF), fused = places(SEARCHED, c, got, COUNT_OF);
        if (fused != c->fused || apart != c->apart) fail_msg("case %zu: %d dispatches, and %d apart", i, fused, apart);
        for (int k = 0; k < 2 * COUNT_OF; k++)
            if (got[k] != want[k]) fail_msg("case %zu, value %d: place %u, and %u apart", i, k / 2, got[k], want[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sizes), cmocka_unit_test(test_long), cmocka_unit_test(test_views),
                                        cmocka_unit_test(test_dimensions), cmocka_unit_test(test_same_bits), cmocka_unit_test(test_rows_beside),
                                        cmocka_unit_test(test_columns_beside),
                                        cmocka_unit_test(test_not_numbers), cmocka_unit_test(test_operand_stays),
                                        cmocka_unit_test(test_taken), cmocka_unit_test(test_search_behind) };
    return run_group("scans", tests, set_up, tear_down);
}
