/* Fourier transforms of many lengths against sums in double: every bin of short ones, some bins of long ones. */
#include <stdio.h>
#include "unit/support.h"

enum { MOST_BINS = 24 };

struct value { double re, im; };
struct rows { int ndim, shape[4]; int64_t stride[4], first; float *data; };     /* complex elements */

static double random_value(struct rng *r) { return (double)random_int(r, -1000, 1000) / 1000; }

/* Random complex numbers in a view whose axes are in another order or reversed. */
static mlxvk_array operand(struct rows *x, struct rng *r, int ndim, const int *shape, bool strided, mlxvk_stream s)
{
    mlxvk_array a = { NULL };
    int order[4] = { 0, 1, 2, 3 }, size, swap = strided && ndim > 1 ? random_int(r, 0, ndim - 2) : -1;
    int64_t step = strided && random_chance(r, 30) ? 2 : 1;
    x->ndim = ndim;
    x->first = strided ? 3 : 0;
    if (swap >= 0) { order[swap] = ndim - 1; order[ndim - 1] = swap; }
    for (int i = ndim - 1; i >= 0; i--) {
        x->shape[order[i]] = shape[order[i]];
        x->stride[order[i]] = step;
        step *= shape[order[i]];
        if (strided) step += random_int(r, 0, 1);
    }
    if (strided) { x->first += x->stride[0] * (shape[0] - 1); x->stride[0] = -x->stride[0]; }
    size = (int)(step + x->first + 1);
    x->data = malloc((size_t)size * 8);
    assert_non_null(x->data);
    for (int i = 0; i < 2 * size; i++) x->data[i] = (float)random_value(r);
    OK(mlxvk_array_new_data_device(&a, x->data, &size, 1, MLXVK_COMPLEX64, mlxvk_stream_device(s)), s);
    OK(mlxvk_as_strided(&a, a, shape, (size_t)ndim, x->stride, (size_t)ndim, (size_t)x->first, s), s);
    return a;
}

/* Where row `row` of those along an axis begins. */
static int64_t row_start(const struct rows *x, int axis, int row)
{
    int64_t at = x->first;
    for (int i = x->ndim - 1; i >= 0; i--)
        if (i != axis) { at += row % x->shape[i] * x->stride[i]; row /= x->shape[i]; }
    return at;
}

/* Element j of a row of n: what is there, or zero; real: of a half spectrum, the rest being its mirror image. */
static struct value element(const struct rows *x, int axis, int64_t start, int j, int n, bool half)
{
    bool mirror = half && 2 * j > n;
    int at = mirror ? n - j : j;
    struct value v = { 0, 0 };
    if (at >= x->shape[axis]) return v;
    v.re = x->data[2 * (start + at * x->stride[axis])];
    v.im = x->data[2 * (start + at * x->stride[axis]) + 1];
    if (half && (at == 0 || 2 * at == n)) v.im = 0;
    if (mirror) v.im = -v.im;
    return v;
}

static struct value bin(const struct rows *x, int axis, int64_t start, int k, int n, bool half, bool real, int sign)
{
    struct value sum = { 0, 0 };
    for (int j = 0; j < n; j++) {
        struct value v = element(x, axis, start, j, n, half);
        double angle = sign * 6.283185307179586477 * (double)((int64_t)j * k % n) / n, c = cos(angle), s = sin(angle);
        if (real) v.im = 0;
        sum.re += v.re * c - v.im * s;
        sum.im += v.re * s + v.im * c;
    }
    return sum;
}

enum kind { FFT, IFFT, RFFT, IRFFT, KINDS };

static void check_rows(const struct rows *x, enum kind kind, int axis, int n, mlxvk_array res, struct rng *r, mlxvk_stream s)
{
    size_t bytes = mlxvk_array_nbytes(res);
    float *got = malloc(bytes + 8);
    int bins = mlxvk_array_dim(res, axis), rows = (int)mlxvk_array_size(res) / bins, inner = 1, sign = kind == IFFT || kind == IRFFT ? 1 : -1;
    double scale = sign > 0 ? 1.0 / n : 1, room = 3e-6 * sqrt(n) * scale;
    assert_non_null(got);
    for (int i = axis + 1; i < x->ndim; i++) inner *= x->shape[i];
    assert_int_equal(bins, kind == RFFT ? n / 2 + 1 : n);
    assert_int_equal(mlxvk_array_dtype(res), kind == IRFFT ? MLXVK_FLOAT32 : MLXVK_COMPLEX64);
    OK(mlxvk_array_read(res, got, bytes, s), s);
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < (bins < MOST_BINS ? bins : n > 50000 ? 6 : MOST_BINS); i++) {
            int k = bins < MOST_BINS ? i : i < 3 ? i : i == 3 ? bins - 1 : random_int(r, 0, bins - 1);
            size_t at = ((size_t)(row / inner) * (size_t)bins + (size_t)k) * (size_t)inner + (size_t)(row % inner);
            struct value want = bin(x, axis, row_start(x, axis, row), k, n, kind == IRFFT, kind == RFFT, sign);
            double re = kind == IRFFT ? got[at] : got[2 * at], im = kind == IRFFT ? want.im * scale : got[2 * at + 1];
            if (!(fabs(re - want.re * scale) <= room && fabs(im - want.im * scale) <= room))
                fail_msg("kind %d length %d axis %d row %d bin %d: %g %+gi, expected %g %+gi", kind, n, axis, row, k, re, im, want.re * scale,
                         want.im * scale);
        }
    free(got);
}

static int transform(mlxvk_array *res, mlxvk_array a, enum kind kind, int n, int axis, mlxvk_stream s)
{
    return kind == FFT ? mlxvk_fft_fft(res, a, n, axis, MLXVK_FFT_NORM_BACKWARD, s)
         : kind == IFFT ? mlxvk_fft_ifft(res, a, n, axis, MLXVK_FFT_NORM_BACKWARD, s)
         : kind == RFFT ? mlxvk_fft_rfft(res, a, n, axis, MLXVK_FFT_NORM_BACKWARD, s)
         : mlxvk_fft_irfft(res, a, n, axis, MLXVK_FFT_NORM_BACKWARD, s);
}

/* One transform along an axis of a small array, whose length there is n and a little. */
static void one_case(enum kind kind, int n, int more, int ndim, bool strided, mlxvk_stream s)
{
    struct rng r = { (uint64_t)n * 31 + (uint64_t)kind };
    struct rows x = { 0 };
    int shape[4], axis = random_int(&r, 0, ndim - 1), length = (kind == IRFFT ? n / 2 + 1 : n) + more;
    mlxvk_array a, res = { NULL };
    for (int i = 0; i < ndim; i++) shape[i] = random_int(&r, 1, 3);
    shape[axis] = length < 1 ? 1 : length;
    a = operand(&x, &r, ndim, shape, strided, s);
    OK(transform(&res, a, kind, n, axis, s), s);
    check_rows(&x, kind, axis, n, res, &r, s);
    mlxvk_array_free(a);
    mlxvk_array_free(res);
    free(x.data);
}

static void test_short(void **state)
{
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    (void)state;
    for (int n = 1; n < 60; n++)
        for (int kind = 0; kind < KINDS; kind++) one_case((enum kind)kind, n, n % 4 == 1 ? 1 : n % 4 == 2 ? -1 : 0, 1 + n % 4, n % 3 == 0, s);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* Prime factors up to 13 and beyond, one, two and three steps, reals in even and odd numbers. */
static void test_long(void **state)
{
    static const int lengths[] = { 97, 128, 143, 210, 1001, 1024, 1153, 1982, 2187, 2197, 4004, 4096, 4098, 6561, 8190, 8192, 10007, 14641,
                                   16384, 18247, 65536, 100000 };
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    (void)state;
    for (size_t i = 0; i < COUNT(lengths); i++) one_case((enum kind)(i % KINDS), lengths[i], i % 3 ? 0 : -3, 1 + (int)i % 3, i % 2, s);
    for (int kind = 0; kind < KINDS; kind++) { one_case((enum kind)kind, 9702, 0, 2, true, s); one_case((enum kind)kind, 9711, 1, 2, false, s); }
    one_case(FFT, 1 << 21, 0, 1, false, s);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* One transform of a matrix along an axis. */
static void matrix_case(enum kind kind, int rows, int columns, int axis, mlxvk_stream s)
{
    struct rng r = { (uint64_t)rows * 37 + (uint64_t)columns };
    struct rows x = { 0 };
    int shape[2] = { rows, columns }, n = shape[axis];
    mlxvk_array a, res = { NULL };
    if (kind == IRFFT) shape[axis] = n / 2 + 1;
    a = operand(&x, &r, 2, shape, false, s);
    OK(transform(&res, a, kind, n, axis, s), s);
    check_rows(&x, kind, axis, n, res, &r, s);
    mlxvk_array_free(a);
    mlxvk_array_free(res);
    free(x.data);
}

/* Columns beside each other, of which long ones take two steps. */
static void test_columns(void **state)
{
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) matrix_case((enum kind)kind, 48, 37, 0, s);
    matrix_case(FFT, 1024, 37, 0, s);
    matrix_case(RFFT, 2048, 5, 0, s);
    matrix_case(IRFFT, 4096, 5, 0, s);
    matrix_case(RFFT, 10206, 3, 0, s);               /* pairs of lines, of which an odd number make a row */
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* Rows of reals from the last to the first, which are read as pairs. */
static void test_reversed_rows(void **state)
{
    enum { ROWS = 5, N = 12 };
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array a = { NULL }, res = { NULL };
    float values[ROWS * N], back[ROWS * N];
    struct rng r = { 7 };
    (void)state;
    for (int i = 0; i < ROWS * N; i++) values[i] = (float)random_value(&r);
    for (int i = 0; i < ROWS * N; i++) back[i] = values[(ROWS - 1 - i / N) * N + i % N];
    a = floats(device, values, (int[]){ ROWS, N }, 2);
    OK(mlxvk_as_strided(&a, a, (int[]){ ROWS, N }, 2, (int64_t[]){ -N, 1 }, 2, (ROWS - 1) * N, s), s);
    OK(mlxvk_fft_rfft(&res, a, N, 1, MLXVK_FFT_NORM_BACKWARD, s), s);
    OK(mlxvk_fft_irfft(&res, res, N, 1, MLXVK_FFT_NORM_BACKWARD, s), s);
    expect_floats(res, back, ROWS * N, 0, 1e-6, s);
    mlxvk_array_free(a);
    mlxvk_array_free(res);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

/* The kernel with lengths as constants. */
static void test_fixed(void **state)
{
    mlxvk_device device = open_device("MLX_VK_FFT_KERNEL=1");
    mlxvk_stream s = open_stream(device);
    const char *all = getenv("FFT_LENGTHS");
    (void)state;
    one_case(FFT, 60, 0, 3, false, s);
    one_case(RFFT, 64, 0, 2, true, s);
    matrix_case(IRFFT, 5, 64, 1, s);                 /* a spectrum that is merged in shared memory */
    matrix_case(FFT, 70, 16, 1, s);                  /* short rows, loaded as one */
    matrix_case(FFT, 3, 90, 1, s);
    matrix_case(IFFT, 2, 8192, 1, s);                /* exchanged in halves */
    matrix_case(FFT, 10, 3125, 1, s);                /* as many rows are, though they fit */
    matrix_case(FFT, 10, 4096, 1, s);
    matrix_case(RFFT, 1, 32768, 1, s);               /* pairs of lines */
    matrix_case(IRFFT, 1, 32768, 1, s);
    matrix_case(RFFT, 10, 4096, 1, s);               /* the next rows are loaded before */
    matrix_case(IFFT, 3, 97, 1, s);                  /* a whole convolution */
    matrix_case(FFT, 10, 2503, 1, s);
    for (int n = 2; all && n < atoi(all); n += 1 + n / 16)
        for (int kind = 0; kind < KINDS; kind++) one_case((enum kind)kind, n, 0, 2, n % 2, s);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

static void test_several_axes(void **state)
{
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array one = { NULL }, two = { NULL }, back = { NULL };
    float values[4 * 5 * 6];
    struct rng r = { 5 };
    (void)state;
    for (size_t i = 0; i < COUNT(values); i++) values[i] = (float)random_value(&r);
    one = floats(device, values, (int[]){ 4, 5, 6 }, 3);
    OK(mlxvk_fft_rfftn(&two, one, NULL, 0, (int[]){ 0, 1, 2 }, 3, MLXVK_FFT_NORM_ORTHO, s), s);
    assert_int_equal(mlxvk_array_dim(two, 2), 4);
    OK(mlxvk_fft_irfftn(&back, two, NULL, 0, (int[]){ 0, 1, 2 }, 3, MLXVK_FFT_NORM_ORTHO, s), s);
    expect_floats(back, values, COUNT(values), 0, 1e-6, s);
    OK(mlxvk_fft_rfft2(&two, one, (int[]){ 7, 5 }, 2, (int[]){ -1, 1 }, 2, MLXVK_FFT_NORM_FORWARD, s), s);
    OK(mlxvk_fft_irfft2(&back, two, (int[]){ 6, 5 }, 2, (int[]){ -1, 1 }, 2, MLXVK_FFT_NORM_FORWARD, s), s);
    assert_int_equal(mlxvk_array_dim(back, 2), 6);
    OK(mlxvk_fft_fftn(&two, one, NULL, 0, NULL, 0, MLXVK_FFT_NORM_BACKWARD, s), s);       /* no axes: the operand */
    expect_floats(two, values, COUNT(values), 0, 0, s);
    OK(mlxvk_fft_fftshift(&two, one, (int[]){ 0, 2 }, 2, s), s);
    OK(mlxvk_fft_ifftshift(&back, two, (int[]){ 0, 2 }, 2, s), s);
    expect_floats(back, values, COUNT(values), 0, 0, s);
    OK(mlxvk_fft_fftfreq(&back, 5, 0.1, s), s);
    expect_floats(back, (float[]){ 0, 2, 4, -4, -2 }, 5, 1e-6, 0, s);
    OK(mlxvk_fft_rfftfreq(&back, 4, 0.5, s), s);
    expect_floats(back, (float[]){ 0, 0.5f, 1 }, 3, 1e-6, 0, s);
    mlxvk_array_free(one);
    mlxvk_array_free(two);
    mlxvk_array_free(back);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

static void test_empty(void **state)
{
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array a = { NULL }, res = { NULL };
    (void)state;
    OK(mlxvk_zeros(&a, (int[]){ 0, 5 }, 2, MLXVK_FLOAT32, s), s);
    OK(mlxvk_fft_fft(&res, a, 8, 1, MLXVK_FFT_NORM_BACKWARD, s), s);
    assert_int_equal(mlxvk_array_dim(res, 1), 8);
    OK(mlxvk_zeros(&a, (int[]){ 2, 0 }, 2, MLXVK_COMPLEX64, s), s);
    OK(mlxvk_fft_irfft(&res, a, 3, 1, MLXVK_FFT_NORM_BACKWARD, s), s);
    expect_floats(res, (float[6]){ 0 }, 6, 0, 0, s);
    OK(mlxvk_fft_fftshift(&res, a, (int[]){ 0, 1 }, 2, s), s);
    assert_int_equal(mlxvk_array_size(res), 0);
    mlxvk_array_free(a);
    mlxvk_array_free(res);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

static void test_errors(void **state)
{
    const mlxvk_fft_norm norm = MLXVK_FFT_NORM_BACKWARD;
    mlxvk_device device = open_device(NULL);
    mlxvk_stream s = open_stream(device);
    mlxvk_array a = { NULL }, scalar = { NULL }, res = { NULL };
    (void)state;
    OK(mlxvk_ones(&a, (int[]){ 2, 5 }, 2, MLXVK_FLOAT32, s), s);
    OK(mlxvk_ones(&scalar, NULL, 0, MLXVK_FLOAT32, s), s);
    REFUSED(mlxvk_fft_fft(&res, a, 5, 2, norm, s), MLXVK_ERROR_AXIS, s, "axis 2", "float32 (2, 5)");
    REFUSED(mlxvk_fft_fft(&res, a, 0, 1, norm, s), MLXVK_ERROR_ARGUMENT, s, "length of 0");
    REFUSED(mlxvk_fft_rfft(&res, a, -1, 1, norm, s), MLXVK_ERROR_ARGUMENT, s, "-1");
    REFUSED(mlxvk_fft_fft(&res, scalar, 1, 0, norm, s), MLXVK_ERROR_SHAPE, s, "dimension");
    REFUSED(mlxvk_fft_fft(&res, a, INT32_MAX, 0, norm, s), MLXVK_ERROR_LIMIT, s, "length");
    REFUSED(mlxvk_fft_fftn(&res, a, (int[]){ 2 }, 1, (int[]){ 0, 1 }, 2, norm, s), MLXVK_ERROR_ARGUMENT, s, "1 lengths for 2 axes");
    REFUSED(mlxvk_fft_fftn(&res, a, NULL, 0, (int[]){ 1, -1 }, 2, norm, s), MLXVK_ERROR_AXIS, s, "twice");
    REFUSED(mlxvk_fft_fft(&res, a, 5, 1, (mlxvk_fft_norm)7, s), MLXVK_ERROR_ARGUMENT, s, "norm");
    REFUSED(mlxvk_fft_fft(&res, (mlxvk_array){ NULL }, 5, 1, norm, s), MLXVK_ERROR_ARGUMENT, s, "a is");
    REFUSED(mlxvk_fft_fftshift(&res, a, (int[]){ 3 }, 1, s), MLXVK_ERROR_AXIS, s, "axis 3");
    REFUSED(mlxvk_fft_fftfreq(&res, 0, 1, s), MLXVK_ERROR_ARGUMENT, s, "n is 0");
    REFUSED(mlxvk_fft_rfftfreq(&res, 3, 0, s), MLXVK_ERROR_ARGUMENT, s, "d is 0");
    assert_null(res.ctx);
    mlxvk_array_free(a);
    mlxvk_array_free(scalar);
    mlxvk_stream_free(s);
    mlxvk_device_free(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short), cmocka_unit_test(test_long), cmocka_unit_test(test_columns), cmocka_unit_test(test_reversed_rows),
        cmocka_unit_test(test_fixed), cmocka_unit_test(test_several_axes), cmocka_unit_test(test_empty), cmocka_unit_test(test_errors),
    };
    return run_group("fft", tests, NULL, NULL);
}
