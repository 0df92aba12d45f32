/* Element-by-element operations on operands of all layouts: transposed, cut, repeated, with rows that are whole vectors and with
 * others, of elements of all sizes. */
#include "support.h"

enum { AXES = 4, MOST = 60000 };

struct layout { int ndim, shape[AXES], axes[AXES], from[AXES], to[AXES], repeat[AXES]; };

static size_t count(const int *shape, int ndim)
{
    size_t n = 1;
    for (int i = 0; i < ndim; i++) n *= (size_t)shape[i];
    return n;
}

static struct layout random_layout(struct rng *r)
{
    static const int units[] = { 1, 2, 4, 8, 16, 64 };
    struct layout l = { .ndim = random_int(r, 2, AXES), .axes = { 0, 1, 2, 3 } };
    size_t n = 1;
    for (int i = 0; i < l.ndim; i++) {
        l.shape[i] = random_int(r, 1, 9) * units[random_int(r, 0, 5)];
        while (n * (size_t)l.shape[i] > MOST) l.shape[i] = random_int(r, 1, 3);
        n *= (size_t)l.shape[i];
    }
    for (int i = l.ndim - 1; i > 0; i--) {
        int j = random_int(r, 0, i), axis = l.axes[i];
        l.axes[i] = l.axes[j];
        l.axes[j] = axis;
    }
    for (int i = 0; i < l.ndim; i++) {
        int length = l.shape[l.axes[i]], unit = units[random_int(r, 0, 4)];
        bool cut = !random_int(r, 0, 2);
        l.from[i] = cut ? random_int(r, 0, length - 1) / unit * unit : 0;
        l.to[i] = cut ? random_int(r, l.from[i] + 1, length) : length;
        l.repeat[i] = random_int(r, 0, 1);
    }
    return l;
}

static mlxvk_array random_array(struct rng *r, const int *shape, int ndim, mlxvk_dtype t, unsigned char **bytes)
{
    size_t size = count(shape, ndim) * mlxvk_dtype_size(t);
    mlxvk_array a = { NULL };
    *bytes = malloc(size);
    assert_non_null(*bytes);
    for (size_t i = 0; i < size; i++) (*bytes)[i] = (unsigned char)random_bits(r);
    if (t == MLXVK_BFLOAT16) for (size_t i = 1; i < size; i += 2) (*bytes)[i] = ((*bytes)[i] & 0x3f) | 1;   /* normal; ordered as integers are */
    OK_DEVICE(mlxvk_array_new_data_device(&a, *bytes, shape, (size_t)ndim, t, device), device);
    return a;
}

static uint64_t item(const unsigned char *bytes, size_t at, size_t size)
{
    uint64_t x = 0;
    memcpy(&x, bytes + at * size, size);
    return x;
}

/* COPY: the first operand; ABS; LARGER: of the two; CHOSEN: the same by comparison and where. */
enum { COPY, ABS, LARGER, CHOSEN, OPERATIONS };

static void apply(int op, mlxvk_array *res, mlxvk_array a, mlxvk_array b)
{
    mlxvk_array greater = { NULL };
    switch (op) {
    case COPY: OK(mlxvk_contiguous(res, a, false, stream), stream); break;
    case ABS: OK(mlxvk_abs(res, a, stream), stream); break;
    case LARGER: OK(mlxvk_maximum(res, a, b, stream), stream); break;
    default:
        OK(mlxvk_greater(&greater, b, a, stream), stream);
        OK(mlxvk_where(res, greater, b, a, stream), stream);
    }
    mlxvk_array_free(greater);
}

static void check_layout(struct rng *r, const struct layout *l, mlxvk_dtype t, int op)
{
    static const int ones[AXES] = { 1, 1, 1, 1 };
    unsigned char *left, *right, *got;
    int shape[AXES], other[AXES];
    size_t size = mlxvk_dtype_size(t), dims = (size_t)l->ndim, n;
    mlxvk_array a = random_array(r, l->shape, l->ndim, t, &left), b, res = { NULL };
    for (int i = 0; i < l->ndim; i++) {
        shape[i] = l->to[i] - l->from[i];
        other[i] = l->repeat[i] ? 1 : shape[i];
    }
    b = random_array(r, other, l->ndim, t, &right);
    OK(mlxvk_transpose_axes(&a, a, l->axes, dims, stream), stream);
    OK(mlxvk_slice(&a, a, l->from, dims, l->to, dims, ones, dims, stream), stream);
    apply(op, &res, a, b);
    n = count(shape, l->ndim);
    assert_int_equal(mlxvk_array_size(res), n);
    got = malloc(n * size);
    OK(mlxvk_array_read(res, got, n * size, stream), stream);
    for (size_t i = 0; i < n; i++) {
        size_t rest = i, at = 0, beside = 0, step = 1;
        uint64_t x, y;
        for (int k = l->ndim - 1; k >= 0; k--) {
            size_t c = rest % (size_t)shape[k], below = 1;
            for (int j = l->axes[k] + 1; j < l->ndim; j++) below *= (size_t)l->shape[j];
            rest /= (size_t)shape[k];
            at += (c + (size_t)l->from[k]) * below;
            if (other[k] > 1) beside += c * step;
            step *= (size_t)other[k];
        }
        x = item(left, at, size);
        y = item(right, beside, size);
        if (op >= LARGER && y > x) x = y;
        if (item(got, i, size) != x) fail_msg("operation %d of %s, %d dimensions: element %zu is wrong", op, mlxvk_dtype_name(t), l->ndim, i);
    }
    free(left);
    free(right);
    free(got);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(res);
}

static void test_layouts(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_UINT8, MLXVK_UINT16, MLXVK_UINT32, MLXVK_UINT64, MLXVK_BFLOAT16 };
    struct rng r = { 31 };
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct layout l = random_layout(&r);
        check_layout(&r, &l, dtypes[round % (int)COUNT(dtypes)], round / (int)COUNT(dtypes) % OPERATIONS);
    }
}

/* Rows about as long as what a thread takes of them, shorter, longer, whole multiples and not; that begin anywhere; with ends of
 * one dimension and of several at once; beside rows and elements that repeat. */
static void test_ends_of_rows(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_UINT8, MLXVK_BFLOAT16, MLXVK_UINT32 };
    static const int repeats[][AXES] = { { 0 }, { 1, 1, 1, 0 }, { 0, 0, 0, 1 }, { 1, 0, 1, 0 }, { 0, 1, 0, 0 }, { 1, 1, 1, 1 } };
    struct rng r = { 33 };
    (void)state;
    for (int columns = 1; columns <= 33; columns += columns < 5 ? 1 : columns % 8 == 5 || columns == 17 ? 2 : 1)
        for (size_t k = 0; k < COUNT(dtypes) * COUNT(repeats); k++) {
            const int *repeat = repeats[k % COUNT(repeats)];
            mlxvk_dtype t = dtypes[k / COUNT(repeats)];
            struct layout cut = { 4, { 3, 2, 3, columns + 2 }, { 0, 1, 2, 3 }, { 0, 0, 0, 1 }, { 3, 2, 3, columns + 1 }, { 0 } };
            struct layout flat = { 2, { 5, columns }, { 0, 1 }, { 1, 0 }, { 5, columns }, { repeat[0], repeat[3] } };
            struct layout turned = { 3, { columns, 3, 5 }, { 2, 1, 0 }, { 1, 0, 0 }, { 5, 3, columns }, { 0, repeat[1], repeat[3] } };
            memcpy(cut.repeat, repeat, sizeof cut.repeat);
            check_layout(&r, &cut, t, columns % OPERATIONS);
            check_layout(&r, &flat, t, (columns + 1) % OPERATIONS);
            check_layout(&r, &turned, t, (columns + 2) % OPERATIONS);
        }
}

/* What is written are parts of an array: rows that begin anywhere, of elements side by side and with gaps. */
static void test_into_parts(void **state)
{
    enum { ROWS = 5, WIDE = 41 };
    struct rng r = { 34 };
    (void)state;
    for (int i = 0; i < 48; i++) {
        mlxvk_dtype t = (mlxvk_dtype[]){ MLXVK_UINT8, MLXVK_BFLOAT16, MLXVK_UINT32 }[i % 3];
        int first = i % 7, step = 1 + i % 2, columns = 1 + (i * 5) % 17, from[] = { 1, first }, by[] = { 1, step };
        int to[] = { ROWS - 1, first + columns * step }, part[] = { ROWS - 2, columns };
        unsigned char *left, *right, got[4 * ROWS * WIDE];
        size_t size = mlxvk_dtype_size(t);
        mlxvk_array a = random_array(&r, (int[]){ ROWS, WIDE }, 2, t, &left), b = random_array(&r, part, 2, t, &right);
        OK(mlxvk_slice_update(&a, a, b, from, 2, to, 2, by, 2, stream), stream);
        OK(mlxvk_array_read(a, got, ROWS * WIDE * size, stream), stream);
        for (int row = 0; row < part[0]; row++)
            for (int k = 0; k < columns; k++)
                memcpy(left + (size_t)((row + 1) * WIDE + first + k * step) * size, right + (size_t)(row * columns + k) * size, size);
        assert_memory_equal(got, left, ROWS * WIDE * size);
        free(left);
        free(right);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
    }
}

/* A pool of bytes that as_strided views, and where they are. */
static void view_of_pool(mlxvk_array *a, mlxvk_array pool, const int shape[3], const int64_t strides[3], int first, mlxvk_stream s)
{
    OK(mlxvk_as_strided(a, pool, shape, 3, strides, 3, (size_t)first, s), s);
}

/* Rows that begin anywhere, copied to flat ones and to part of rows that are whole vectors or not, as a GPU does: bits, and none of
 * what is beside. Rows shorter than a vector, repeated, backwards, of more dimensions than are merged; results that begin within
 * a vector. */
static void test_rows_apart(void **state)
{
    static const mlxvk_dtype types[] = { MLXVK_BOOL, MLXVK_UINT8, MLXVK_BFLOAT16, MLXVK_FLOAT16, MLXVK_FLOAT32, MLXVK_INT64, MLXVK_COMPLEX64 };
    enum { POOL = 120000 };
    struct setting t = start("MLX_VK_TUNING=3 MLX_VK_POISON=2");
    struct rng r = { 35 };
    (void)state;
    for (int i = 0; i < 420; i++) {
        mlxvk_dtype type = types[i % (int)COUNT(types)];
        size_t size = mlxvk_dtype_size(type), n;
        int shape[3] = { random_int(&r, 1, 3), random_int(&r, 1, 5), random_int(&r, 1, i % 4 ? 40 : 700) };
        int lead = shape[2] + random_int(&r, 0, 1) * random_int(&r, 0, 17), first = random_int(&r, 0, 20), width = shape[2] + random_int(&r, 0, 9);
        int at = random_int(&r, 0, 1) * random_int(&r, 0, width - shape[2]), kind = random_int(&r, 0, 5);
        int64_t strides[3] = { (int64_t)lead * shape[1] + random_int(&r, 0, 3), lead, 1 };
        int to_shape[3] = { shape[0], shape[1] + random_int(&r, 0, 1), width };
        unsigned char *bytes, *want, *got;
        mlxvk_array pool, x = { NULL }, y = { NULL }, z = { NULL };
        if (kind == 1) strides[1] = 0;
        if (kind == 2) { first += (int)strides[0] * (shape[0] - 1); strides[0] = -strides[0]; }
        pool = random_array(&r, (int[]){ POOL / (int)size }, 1, type, &bytes);
        if (type == MLXVK_BOOL) for (int k = 0; k < POOL; k++) bytes[k] &= 1;
        mlxvk_array_free(pool);
        pool = (mlxvk_array){ NULL };
        OK_DEVICE(mlxvk_array_new_data_device(&pool, bytes, (int[]){ POOL / (int)size }, 1, type, t.device), t.device);
        view_of_pool(&x, pool, shape, strides, first, t.stream);
        n = count(shape, 3);
        want = malloc(n * size);
        got = malloc(count(to_shape, 3) * size);
        assert_true(want && got);
        for (size_t k = 0; k < n; k++) {
            int64_t c = (int64_t)(k % (size_t)shape[2]), b = (int64_t)(k / (size_t)shape[2]) % shape[1];
            int64_t a = (int64_t)(k / (size_t)(shape[1] * shape[2]));
            memcpy(want + k * size, bytes + (size_t)(first + a * strides[0] + b * strides[1] + c) * size, size);
        }
        OK(mlxvk_contiguous(&y, x, false, t.stream), t.stream);
        OK(mlxvk_array_read(y, got, n * size, t.stream), t.stream);
        if (memcmp(got, want, n * size)) fail_msg("copy %d of %s: %d x %d x %d from %d, %d apart", i, mlxvk_dtype_name(type), shape[0], shape[1], shape[2], first, lead);
        view_of_pool(&z, pool, to_shape, (int64_t[]){ (int64_t)to_shape[1] * width, width, 1 }, 0, t.stream);
        OK(mlxvk_contiguous(&z, z, false, t.stream), t.stream);
        OK(mlxvk_slice_update(&z, z, x, (int[]){ 0, 0, at }, 3, (int[]){ shape[0], shape[1], at + shape[2] }, 3, (int[]){ 1, 1, 1 }, 3, t.stream), t.stream);
        OK(mlxvk_array_read(z, got, count(to_shape, 3) * size, t.stream), t.stream);
        for (size_t k = 0; k < count(to_shape, 3); k++) {
            int c = (int)(k % (size_t)width), b = (int)(k / (size_t)width) % to_shape[1], a = (int)(k / (size_t)(width * to_shape[1]));
            bool in = b < shape[1] && c >= at && c < at + shape[2];
            const unsigned char *w = in ? want + (size_t)((a * shape[1] + b) * shape[2] + c - at) * size : bytes + k * size;
            if (memcmp(got + k * size, w, size)) fail_msg("update %d of %s: [%d, %d, %d] of %d x %d x %d at %d of %d", i, mlxvk_dtype_name(type), a, b, c, shape[0], shape[1], shape[2], at, width);
        }
        free(bytes);
        free(want);
        free(got);
        mlxvk_array_free(pool);
        mlxvk_array_free(x);
        mlxvk_array_free(y);
        mlxvk_array_free(z);
    }
    finish(&t);
}

/* Operands that are large enough to be copied by tiles first. */
static void test_large_and_across(void **state)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_UINT8, MLXVK_BFLOAT16, MLXVK_UINT32 };
    struct layout l = { 2, { 1040, 1024 }, { 1, 0 }, { 0, 0 }, { 1024, 1040 }, { 0, 1 } };
    struct rng r = { 32 };
    (void)state;
    for (size_t d = 0; d < COUNT(dtypes); d++) check_layout(&r, &l, dtypes[d], LARGER);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_layouts), cmocka_unit_test(test_ends_of_rows), cmocka_unit_test(test_into_parts), cmocka_unit_test(test_rows_apart),
                                       cmocka_unit_test(test_large_and_across) };
    return run_group("layouts", tests, set_up, tear_down);
}
