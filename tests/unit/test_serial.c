/* What a CPU driver does otherwise than a GPU (tunings[0] of mlxvk.c: threads one after the other), just within and just beyond
 * what each of these ways assumes: sizes, where rows begin, layouts, dtypes. The same driver three times: as itself, with bindings
 * of 192 KiB, and called a discrete GPU, whose general ways say what is right, to the bit where they promise it. What lies in
 * front of, between and behind an operand's elements is NaN, or no number that belongs there; results' memory holds garbage.
 * Where the device is no CPU driver, all three are its own ways. Operands are given up, so that results may lie in their place.
 *
 *     build/unit/test_serial [STEP]                    each so manieth case (9); 1: all, in some minutes */
#include "support_vulkan.h"
#include <math.h>
#include <stdio.h>

#define F32 MLXVK_FLOAT32
#define F16 MLXVK_FLOAT16
#define BF16 MLXVK_BFLOAT16
#define C64 MLXVK_COMPLEX64
#define U8 MLXVK_UINT8
#define I32 MLXVK_INT32
#define I64 MLXVK_INT64

enum { HERE, TIGHT, THERE, SIDES, PARAMS = 8, DIMS = 5, BINDING = 196608 };
static struct setting sides[SIDES];
static size_t largest;                                 /* array of a case, in bytes */
static unsigned cases, step = 9;

/* ---- operands ---- */

static void put_number(mlxvk_dtype t, void *data, size_t i, struct rng *r)
{
    uint64_t bits = random_bits(r);
    float x = (float)(bits >> 40) * 0x1p-21f - 4;
    if (t == F32) ((float *)data)[i] = x;
    else if (t == C64) { ((float *)data)[2 * i] = x; ((float *)data)[2 * i + 1] = (float)(bits & 0xffffff) * 0x1p-21f - 4; }
    else if (t == F16) ((uint16_t *)data)[i] = float_to_half(x);
    else if (t == BF16) ((uint16_t *)data)[i] = float_to_bf16(x);
    else memcpy((unsigned char *)data + i * bytes_of(t), (unsigned char *)&bits + 8 - bytes_of(t), bytes_of(t));
}

/* NaN, of integers a number of equal bytes. */
static void put_poison(mlxvk_dtype t, void *data, size_t count)
{
    for (size_t i = 0; i < count * bytes_of(t) / (dtype_is_inexact(t) ? 2 : 1); i++)
        if (dtype_is_inexact(t)) ((uint16_t *)data)[i] = 0x7fff;
        else ((unsigned char *)data)[i] = 0x7b;
}

/* Random numbers at these places, at least `offset` elements behind the memory's beginning. */
static mlxvk_array placed(mlxvk_dtype t, const struct view *v, uint64_t seed)
{
    struct rng r = { seed };
    int64_t low = 0, high = 0, index[DIMS] = { 0 }, at;
    size_t elements = 1;
    mlxvk_array a = { NULL };
    for (int i = 0; i < v->ndim; i++) {
        int64_t far = v->strides[i] * (v->shape[i] - 1);
        *(far < 0 ? &low : &high) += far;
        elements *= (size_t)v->shape[i];
    }
    low -= v->offset;
    int all = (int)(high - low) + 32;
    void *data = malloc((size_t)all * bytes_of(t));
    if ((size_t)all * bytes_of(t) > largest) largest = (size_t)all * bytes_of(t);
    assert_non_null(data);
    put_poison(t, data, (size_t)all);
    for (size_t n = 0; n < elements; n++) {
        at = -low;
        for (int i = 0; i < v->ndim; i++) at += index[i] * v->strides[i];
        put_number(t, data, (size_t)at, &r);
        for (int i = v->ndim - 1; i >= 0 && ++index[i] == v->shape[i]; i--) index[i] = 0;
    }
    OK_DEVICE(mlxvk_array_new_data_device(&a, data, &all, 1, t, device), device);
    free(data);
    OK(mlxvk_as_strided(&a, a, v->shape, (size_t)v->ndim, v->strides, (size_t)v->ndim, (size_t)-low, stream), stream);
    return a;
}

/* Where the rows of a matrix lie: side by side; from the second element on; an element apart; by whole fours and eights, apart;
 * each second element; columns; those from the second element on; the last row first; one row again and again. */
enum layout { ROWS, SHIFTED, GAPS, FOURS, EIGHTS, STEPS, ACROSS, SHIFTED_ACROSS, REVERSED, REPEATED, LAYOUTS };

static struct view matrix_view(enum layout l, int rows, int n)
{
    struct view v = { .ndim = 2, .shape = { rows, n }, .strides = { n, 1 } };
    switch (l) {
    case SHIFTED: v.offset = 1; break;
    case GAPS: v.strides[0] = n + 1; break;
    case FOURS: v.strides[0] = (n + 3) / 4 * 4 + 4; break;
    case EIGHTS: v.strides[0] = (n + 7) / 8 * 8 + 8; break;
    case STEPS: v.strides[0] = 2 * n + 1; v.strides[1] = 2; break;
    case ACROSS: case SHIFTED_ACROSS: v.strides[0] = 1; v.strides[1] = rows; v.offset = l == SHIFTED_ACROSS; break;
    case REVERSED: v.strides[0] = -n; v.offset = 4; break;
    case REPEATED: v.strides[0] = 0; break;
    default: break;
    }
    return v;
}

static mlxvk_array matrix(mlxvk_dtype t, enum layout l, int rows, int n, uint64_t seed)
{
    struct view v = matrix_view(l, rows, n);
    return placed(t, &v, seed);
}

static mlxvk_array vector(mlxvk_dtype t, int n, int offset, int step, uint64_t seed)
{
    return placed(t, &(struct view){ .ndim = 1, .shape = { n }, .strides = { step }, .offset = offset }, seed);
}

static mlxvk_array positions(int count, int n, uint64_t seed)
{
    struct rng r = { seed };
    int32_t *at = malloc((size_t)count * sizeof *at);
    mlxvk_array a;
    assert_non_null(at);
    for (int i = 0; i < count; i++) at[i] = random_int(&r, 0, n - 1);
    a = ints(device, at, &count, 1);
    free(at);
    return a;
}

static mlxvk_array put_together(const mlxvk_array *parts, size_t count, int axis)
{
    mlxvk_array y = { NULL };
    mlxvk_vector_array list = mlxvk_vector_array_new_data(parts, count);
    OK(mlxvk_concatenate_axis(&y, list, axis, stream), stream);
    mlxvk_vector_array_free(list);
    return y;
}

static void release(mlxvk_array *a, int count) { for (int i = 0; i < count; i++) mlxvk_array_free(a[i]); }

/* ---- the comparison ---- */

struct way { const char *name; mlxvk_array (*make)(const int *p); double tolerance; };

static unsigned char *given(const struct way *w, const int *p, int side, mlxvk_dtype *t, size_t *count)
{
    mlxvk_array y, dense = { NULL };
    unsigned char *data;
    device = sides[side].device;
    stream = sides[side].stream;
    y = w->make(p);
    OK(mlxvk_contiguous(&dense, y, false, stream), stream);
    *t = mlxvk_array_dtype(dense);
    *count = mlxvk_array_size(dense);
    if (mlxvk_array_nbytes(dense) > largest) largest = mlxvk_array_nbytes(dense);
    data = malloc(mlxvk_array_nbytes(dense) + 1);
    assert_non_null(data);
    OK(mlxvk_array_read(dense, data, mlxvk_array_nbytes(dense), stream), stream);
    mlxvk_array_free(y);
    mlxvk_array_free(dense);
    return data;
}

/* Within the tolerance, of the largest element; without one to the bit. */
static void same(const struct way *w, const int *p)
{
    mlxvk_dtype t, other;
    size_t count, n;
    unsigned char *want, *got;
    double most = 0;
    if (cases++ % step) return;
    largest = 0;
    want = given(w, p, THERE, &t, &count);
    for (size_t i = 0; i < count; i++) {
        struct number v = load_number(t, want, i);
        if (isnan(v.re) || isnan(v.im)) fail_msg("%s reads what is no operand's, by a GPU's ways", w->name);
        most = fmax(most, fmax(fabs(v.re), fabs(v.im)));
    }
    for (int side = HERE; side < THERE; side++) {
        if (side == TIGHT && largest <= BINDING) continue;
        got = given(w, p, side, &other, &n);
        assert_int_equal(t, other);
        assert_int_equal(n, count);
        for (size_t i = 0; i < count; i++) {
            struct number a = load_number(t, got, i), b = load_number(t, want, i);
            if (w->tolerance == 0 ? !memcmp(got + i * bytes_of(t), want + i * bytes_of(t), bytes_of(t))
                                  : fabs(a.re - b.re) <= w->tolerance * most && fabs(a.im - b.im) <= w->tolerance * most) continue;
            fail_msg("%s%s of %d, %d, %d, %d, %d, %d, %d, %d: element %zu of %zu is %.9g, not %.9g", w->name,
                     side == TIGHT ? " in bindings of 192 KiB" : "", p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], i, count,
                     dtype_is_inexact(t) ? a.re : (double)a.i + (double)a.u, dtype_is_inexact(t) ? b.re : (double)b.i + (double)b.u);
        }
        free(got);
    }
    free(want);
}
#define SAME(way, ...) same(way, (int[PARAMS]){ __VA_ARGS__ })
#define LIST(...) ((int[]){ __VA_ARGS__ })
#define EACH(n, ...) \
    for (int n = 0, n##_at = 0; n##_at < (int)COUNT(LIST(__VA_ARGS__)) && (n = LIST(__VA_ARGS__)[n##_at], true); n##_at++)
#define UP_TO(n, end) for (int n = 0; n < (end); n++)
enum { DTYPE, LAYOUT, HIGH, LENGTH, REST };            /* what most cases begin with */

static mlxvk_array matrix_of(const int *p) { return matrix((mlxvk_dtype)p[DTYPE], (enum layout)p[LAYOUT], p[HIGH], p[LENGTH], 1); }

/* ---- copies and elementwise operations ---- */

/* A stack of 1 or 3 matrices seen transposed, whose rows and columns are some elements apart, copied or converted. */
static mlxvk_array turned(const int *p)
{
    int64_t column = p[1] + p[4], all = column * p[2] + p[5];
    struct view v = { .ndim = 3, .shape = { p[3], p[1], p[2] }, .strides = { all, 1, column }, .offset = p[6] };
    mlxvk_array a = placed((mlxvk_dtype)p[0], &v, 1);
    if (p[7]) OK(mlxvk_astype(&a, a, (mlxvk_dtype)p[7], stream), stream);
    return a;
}

/* The same between columns of others, so that results' rows are longer, and begin anywhere. */
static mlxvk_array turned_between(const int *p)
{
    mlxvk_array parts[3] = { matrix((mlxvk_dtype)p[0], ROWS, p[1], p[3], 2), { NULL }, matrix((mlxvk_dtype)p[0], ROWS, p[1], p[4], 3) }, y;
    parts[1] = matrix((mlxvk_dtype)p[0], ACROSS, p[1], p[2], 1);
    y = put_together(parts, 3, 1);
    release(parts, 3);
    return y;
}

/* The columns of which the last is first in memory. */
static mlxvk_array turned_back(const int *p)
{
    struct view v = { .ndim = 2, .shape = { p[1], p[2] }, .strides = { 1, -p[1] }, .offset = p[3] };
    mlxvk_array a = placed((mlxvk_dtype)p[0], &v, 1);
    OK(mlxvk_contiguous(&a, a, false, stream), stream);
    return a;
}

static void test_transposed(void **state)
{
    static const struct way back = { "a transposed copy backwards", turned_back, 0 };
    static const struct way copy = { "a transposed copy", turned, 0 }, between = { "a transposed copy between others", turned_between, 0 };
    (void)state;
    EACH(t, F32, I32, U8, F16, C64, I64) {
        EACH(rows, 64, 66, 127, 128, 132) EACH(columns, 60, 64, 65, 68, 192) SAME(&copy, t, rows, columns, 1, 0, 0, 0);
        EACH(more, 0, 1, 2, 4, 8) EACH(apart, 0, 2, 4) EACH(offset, 0, 1, 4) SAME(&copy, t, 128, 64, 3, more, apart, offset);
        SAME(&copy, t, 126, 64, 3, 2);
        EACH(rows, 51, 64, 129) EACH(offset, 0, 1) SAME(&back, t, rows, 100, offset);
        SAME(&between, t, 128, 62, 0, 2);
        EACH(before, 0, 1, 4, 8) EACH(behind, 0, 3, 4) SAME(&between, t, 128, 64, before, behind);
    }
    EACH(t, F32, I32) EACH(to, F32, I32, F16, U8) if (t != to) SAME(&copy, t, 128, 64, 3, 0, 0, 0, to);
    EACH(rows, 1, 7, 8, 9) SAME(&copy, F32, rows, 4096, 2, 0, 0, 0);
}

/* Five dimensions of which none are walked as one, or fewer, by two operands: a row, a column, one, the same, the same turned. */
enum second { BESIDE, ONE_ROW, ONE_COLUMN, SINGLE, TURNED, BACKWARDS, SECONDS };
static mlxvk_array added(const int *p)
{
    mlxvk_dtype t = (mlxvk_dtype)p[DTYPE];
    enum second s = (enum second)p[4];
    int rows = s == ONE_ROW || s == SINGLE ? 1 : p[HIGH], n = s == ONE_COLUMN || s == SINGLE ? 1 : p[LENGTH];
    mlxvk_array x[2] = { matrix_of(p), matrix(t, s == TURNED ? ACROSS : s == BACKWARDS ? REVERSED : p[5] ? SHIFTED : ROWS, rows, n, 2) }, y = { NULL };
    OK(mlxvk_add(&y, x[0], x[1], stream), stream);
    release(x, 2);
    return y;
}

static mlxvk_array added_apart(const int *p)
{
    struct view v = { .ndim = p[1], .offset = p[4] };
    mlxvk_array x[2], y = { NULL };
    for (int i = 0; i < v.ndim; i++) v.shape[i] = i + 1 < v.ndim ? 3 : p[2];
    v.strides[v.ndim - 1] = 1;
    for (int i = v.ndim - 1; i-- > 0;) v.strides[i] = v.strides[i + 1] * v.shape[i + 1] + p[3];
    x[0] = placed((mlxvk_dtype)p[0], &v, 1);
    for (int i = 0; i < v.ndim; i++) v.strides[i] = i + 1 < v.ndim ? v.strides[i] + 8 : 1;
    x[1] = placed((mlxvk_dtype)p[0], &v, 2);
    OK(mlxvk_add(&y, x[0], x[1], stream), stream);
    release(x, 2);
    return y;
}

static mlxvk_array copied(const int *p)
{
    mlxvk_array a = matrix_of(p);
    if (p[REST]) OK(mlxvk_astype(&a, a, (mlxvk_dtype)p[REST], stream), stream);
    return a;
}

/* Rows by fours, of which several matrices may be some elements apart: two operands, each straight, turned, the same in all rows,
 * each row one element, or elements two apart, of rows or of one for all; or one operand, squared. */
enum way_to_lie { STRAIGHT, ACROSS_IT, ONE_FOR_ALL, ONE_EACH, TWO_APART, ONE_TWO_APART, WAYS };
static mlxvk_array lying(mlxvk_dtype t, enum way_to_lie way, const int *p, uint64_t seed)
{
    int64_t gap = p[6], row = p[3] + gap, column = p[2] + gap;
    struct view v = { .ndim = 3, .shape = { p[1], p[2], p[3] }, .offset = p[7] };
    int64_t strides[WAYS][3] = { { p[2] * row, row, 1 }, { p[3] * column, 1, column }, { row, 0, 1 }, { column, 1, 0 },
                                { 2 * p[2] * row, 2 * row, 2 }, { 2 * row, 0, 2 } };
    memcpy(v.strides, strides[way], sizeof strides[way]);
    return placed(t, &v, seed);
}

static mlxvk_array together(const int *p, mlxvk_array x[2])
{
    mlxvk_array y = { NULL };
    if (p[5] == WAYS) OK(mlxvk_square(&y, x[0], stream), stream);
    else OK((p[0] == U8 ? mlxvk_less : mlxvk_add)(&y, x[0], x[1], stream), stream);
    return y;
}

static mlxvk_array by_fours(const int *p)
{
    mlxvk_array x[2] = { lying((mlxvk_dtype)p[0], (enum way_to_lie)p[4], p, 1), { NULL } }, y;
    if (p[5] != WAYS) x[1] = lying((mlxvk_dtype)p[0], (enum way_to_lie)p[5], p, 2);
    y = together(p, x);
    release(x, 2);
    return y;
}

/* The same of copies, which lie straight. */
static mlxvk_array of_copies(const int *p)
{
    mlxvk_array x[2] = { lying((mlxvk_dtype)p[0], (enum way_to_lie)p[4], p, 1), { NULL } }, y;
    if (p[5] != WAYS) x[1] = lying((mlxvk_dtype)p[0], (enum way_to_lie)p[5], p, 2);
    for (int i = 0; i < 2 && x[i].ctx; i++) OK(mlxvk_contiguous(&x[i], x[i], false, stream), stream);
    y = together(p, x);
    release(x, 2);
    return y;
}

static void same_as_copies(const int *p)
{
    static const struct way ways[2] = { { "rows by fours", by_fours, 0 }, { "their copies", of_copies, 0 } };
    for (int side = HERE; side < SIDES; side++) {
        unsigned char *data[2];
        mlxvk_dtype t;
        size_t count = 0;
        for (int i = 0; i < 2; i++) data[i] = given(&ways[i], p, side, &t, &count);
        if (memcmp(data[0], data[1], count * bytes_of(t)))
            fail_msg("%d, %d, %d, %d, %d, %d, %d, %d differs from its copies'", p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
        for (int i = 0; i < 2; i++) free(data[i]);
    }
}

/* Turned operands, by whatever both kinds of devices do with them: rows of whole strips of vectors, as GPUs take them, and others;
 * fewer elements than are worth it; rows, and what lies between columns, that are no fours; three matrices; places within vectors. */
static void test_turned(void **state)
{
    (void)state;
    EACH(t, F32, F16, BF16, U8) EACH(second, STRAIGHT, ACROSS_IT, ONE_FOR_ALL, ONE_EACH, WAYS) {
        EACH(n, 128, 240, 256, 264) same_as_copies((int[PARAMS]){ t, 1, 96, n, ACROSS_IT, second, 0, 0 });
        same_as_copies((int[PARAMS]){ t, 3, 100, 128, ACROSS_IT, second, 16, 0 });
        same_as_copies((int[PARAMS]){ t, 1, 98, 256, ACROSS_IT, second, 0, 0 });
        EACH(offset, 1, 4) same_as_copies((int[PARAMS]){ t, 2, 64, 256, STRAIGHT, ACROSS_IT, offset, offset });
    }
}

static void test_rows_by_fours(void **state)
{
    static const struct way fours = { "rows by fours", by_fours, 0 }, backwards = { "a sum of rows backwards", added, 0 };
    (void)state;
    EACH(t, F32, BF16, U8) {
        UP_TO(first, WAYS) UP_TO(second, WAYS + 1) {
            EACH(gap, 0, 1, 4, 16) SAME(&fours, t, 1, 64, 256, first, second, gap, 0);
            EACH(offset, 1, 4, 16) SAME(&fours, t, 1, 64, 256, first, second, 0, offset);
            EACH(rows, 62, 64) EACH(n, 254, 256, 264) SAME(&fours, t, 3, rows, n, first, second, 16, 0);
        }
        UP_TO(one, 2) EACH(rows, 252, 255, 256, 512) EACH(n, 63, 64, 65, 130) EACH(offset, 0, 1)   /* a row that is repeated, or not */
            SAME(&fours, t, 1, rows, n, one ? ONE_FOR_ALL : STRAIGHT, one ? STRAIGHT : ONE_FOR_ALL, 0, offset);
        SAME(&fours, t, 1, 512, 65, STRAIGHT, ONE_TWO_APART, 0, 0);
        EACH(gap, 1, 3) SAME(&fours, t, 1, 512, 65, STRAIGHT, ONE_FOR_ALL, gap, 0);
        SAME(&fours, t, 1, 512, 65, ONE_FOR_ALL, ONE_FOR_ALL, 0, 0);
        SAME(&fours, t, 3, 512, 65, STRAIGHT, ONE_FOR_ALL, 0, 0);
        SAME(&fours, t, 1, 64, 252, STRAIGHT, ACROSS_IT, 0, 0);         /* fewer elements than are worth it */
    }
    EACH(layout, GAPS, REVERSED) SAME(&backwards, F32, layout, 64, 256, BACKWARDS);
}

static void test_elementwise(void **state)
{
    static const struct way add = { "a sum of two matrices", added, 0 }, apart = { "a sum in many dimensions", added_apart, 0 };
    static const struct way copy = { "a copy", copied, 0 };
    (void)state;
    EACH(t, F32, BF16, U8) {
        EACH(n, 1, 3, 4, 5, 8, 15, 16, 17) UP_TO(layout, LAYOUTS) UP_TO(second, SECONDS) UP_TO(shifted, 2)
            SAME(&add, t, layout, 9, n, second, shifted);
        EACH(ndim, 1, 2, 3, 4, 5) EACH(n, 3, 4, 7, 8, 16, 17) EACH(gap, 1, 4, 8, 16) UP_TO(offset, 2) SAME(&apart, t, ndim, n, gap, offset);
        EACH(to, 0, F32, F16, U8) EACH(n, 1, 4, 7, 16, 33) UP_TO(layout, LAYOUTS) SAME(&copy, t, layout, 7, n, to);
    }
}

/* ---- rows taken by position, rows added to positions ---- */

static mlxvk_array taken(const int *p)
{
    mlxvk_array x = matrix_of(p), at = positions(p[4], p[5] ? p[LENGTH] : p[HIGH], 3), y = { NULL };
    OK(mlxvk_take_axis(&y, x, at, p[5], stream), stream);
    mlxvk_array_free(x);
    mlxvk_array_free(at);
    return y;
}

/* Rows of rows: (3, rows, n), along the middle axis; between others, so that results begin anywhere. */
static mlxvk_array taken_within(const int *p)
{
    int64_t row = p[LENGTH] + p[LAYOUT];
    struct view v = { .ndim = 3, .shape = { 3, p[HIGH], p[LENGTH] }, .strides = { row * p[HIGH], row, 1 } };
    mlxvk_array x = placed((mlxvk_dtype)p[DTYPE], &v, 1), at = positions(p[4], p[HIGH], 3), parts[3] = { { NULL } }, y;
    for (int i = 0; i < 3; i++) {
        mlxvk_array half = { NULL };
        OK(mlxvk_take_axis(&parts[i], x, at, 1, stream), stream);
        if (i == 1) OK(mlxvk_take_axis(&half, x, at, 1, stream), stream);
        mlxvk_array_free(half);
    }
    y = put_together(parts, 3, 0);
    release(parts, 3);
    mlxvk_array_free(x);
    mlxvk_array_free(at);
    return y;
}

static void test_taken(void **state)
{
    static const struct way rows = { "rows taken", taken, 0 }, within = { "rows of matrices taken", taken_within, 0 };
    (void)state;
    EACH(t, F32, F16, U8, C64) {
        for (int n = 1; n < 18; n++) EACH(count, 1, 3, 4, 257) EACH(layout, ROWS, SHIFTED, GAPS, FOURS) SAME(&rows, t, layout, 37, n, count, 0);
        EACH(n, 1, 3, 4, 7, 8, 9) EACH(count, 1, 2, 5, 17) EACH(gap, 0, 1, 4) SAME(&within, t, gap, 11, n, count);
        EACH(n, 3, 7, 8) EACH(count, 5, 64) SAME(&rows, t, ROWS, 9000, n, count, 0);
        EACH(count, 5, 64) EACH(layout, ROWS, ACROSS) SAME(&rows, t, layout, 9, 65, count, 1);
    }
}

/* (7, rows, columns) zeros, to which windows are added along an axis; p[5], p[6]: of so many rows and columns. */
static mlxvk_array scattered(const int *p)
{
    mlxvk_dtype t = (mlxvk_dtype)p[0];
    int axis = p[4], shape[3] = { 7, p[1], p[2] }, count = p[3], window[4] = { count, 7, p[5] ? p[5] : p[1], p[6] ? p[6] : p[2] };
    int64_t step = window[3] + p[7];
    struct view v = { .ndim = 4, .shape = { window[0], window[1], window[2], window[3] }, .offset = p[7] };
    mlxvk_array to = { NULL }, at = positions(count, shape[axis], 5), updates;
    window[axis + 1] = v.shape[axis + 1] = 1;
    for (int i = 3, first = 1; i >= 0; i--) {
        v.strides[i] = first ? 1 : step;
        if (!first) step *= v.shape[i];
        first = 0;
    }
    updates = placed(t, &v, 6);
    OK(mlxvk_zeros(&to, shape, 3, t, stream), stream);
    OK(mlxvk_scatter_add_single(&to, to, at, updates, axis, stream), stream);
    mlxvk_array_free(at);
    mlxvk_array_free(updates);
    return to;
}

static void test_scattered(void **state)
{
    static const struct way whole = { "integers added to positions", scattered, 0 }, near = { "numbers added to positions", scattered, 1e-6 },
                            rough = { "halves added to positions", scattered, 0x1p-7 };
    (void)state;
    EACH(t, I32, U8, I64, F32, BF16, C64) {
        const struct way *w = t == F32 || t == C64 ? &near : t == BF16 ? &rough : &whole;
        EACH(columns, 1, 3, 4, 5, 15, 16, 17, 33, 63, 64, 65) UP_TO(shifted, 2) {
            SAME(w, t, 1, columns, 40, 0, 0, 0, shifted);                  /* rows */
            SAME(w, t, 3, columns, 300, 0, 2, 0, shifted);                 /* a part of the rows */
            if (columns > 2) SAME(w, t, 3, columns, 40, 0, 2, columns - 2, shifted);      /* in two dimensions */
            SAME(w, t, 5, columns, 40, 2, 0, 0, shifted);                  /* columns */
            SAME(w, t, 5, columns, 40, 1, 0, 0, shifted);
        }
        EACH(columns, 17, 64, 100) SAME(w, t, 1, columns, 3000, 0);        /* more than a binding */
    }
}

/* ---- sorting ---- */

static mlxvk_array sorted(const int *p)
{
    mlxvk_array a = matrix_of(p);
    if (p[REST]) OK(mlxvk_argsort_axis(&a, a, 1, stream), stream);
    else OK(mlxvk_sort_axis(&a, a, 1, stream), stream);
    return a;
}

static void test_sorted(void **state)
{
    static const struct way sort = { "a sort", sorted, 0 };
    (void)state;
    EACH(t, F32, BF16, U8, I64) UP_TO(places, 2) {
        EACH(n, 1, 8, 9, 63, 64, 65, 120, 121, 127, 128, 129, 136, 137, 255, 257, 1000, 1023, 1025, 2047, 2049, 3000) SAME(&sort, t, ROWS, 3, n, places);
        EACH(n, 4095, 4096, 4097, 4352, 4353, 8191, 8193, 10000, 17000) SAME(&sort, t, ROWS, 2, n, places);
        EACH(layout, SHIFTED, GAPS, ACROSS) EACH(n, 130, 4100) SAME(&sort, t, layout, 3, n, places);
    }
}

/* ---- reductions, softmax ---- */

enum reduction { SUM, MAX, LOGSUMEXP, ARGMAX, VARIANCE, REDUCTIONS };
static mlxvk_array reduced(const int *p)
{
    mlxvk_array x = matrix_of(p), y = { NULL };
    int axis = p[5];
    switch ((enum reduction)p[4]) {
    case SUM: OK(mlxvk_sum_axis(&y, x, axis, false, stream), stream); break;
    case MAX: OK(mlxvk_max_axis(&y, x, axis, false, stream), stream); break;
    case LOGSUMEXP: OK(mlxvk_logsumexp_axis(&y, x, axis, false, stream), stream); break;
    case ARGMAX: OK(mlxvk_argmax_axis(&y, x, axis, false, stream), stream); break;
    default: OK(mlxvk_var_axis(&y, x, axis, false, 0, stream), stream);
    }
    mlxvk_array_free(x);
    return y;
}

static void test_reduced(void **state)
{
    static const struct way reduce = { "a reduction", reduced, 0 };
    (void)state;
    UP_TO(op, REDUCTIONS) EACH(t, F32, BF16, U8, I64) {
        if (op == SUM ? t == I64 : op == LOGSUMEXP ? t != BF16 : op == ARGMAX ? t != F32 && t != I64 : op == MAX ? t != F32 : true) continue;
        EACH(n, 1, 3, 17, 64, 257) EACH(layout, ROWS, SHIFTED, STEPS, REVERSED) SAME(&reduce, t, layout, 33, n, op, 1);
        EACH(rows, 1, 8) EACH(n, 4095, 4096, 4097, 40000) EACH(layout, ROWS, SHIFTED) SAME(&reduce, t, layout, rows, n, op, 1);
        EACH(columns, 1, 63, 64, 252, 256, 260) EACH(rows, 5, 65, 257) EACH(layout, ROWS, SHIFTED) SAME(&reduce, t, layout, rows, columns, op, 0);
        EACH(columns, 3, 64) EACH(rows, 4096, 4097) SAME(&reduce, t, ROWS, rows, columns, op, 0);
    }
    EACH(rows, 1, 65) EACH(n, 17, 65, 4097) UP_TO(axis, 2) SAME(&reduce, F32, SHIFTED, rows, n, VARIANCE, axis);
    EACH(layout, GAPS, ACROSS) EACH(n, 16, 63, 255, 1030) SAME(&reduce, F32, layout, 33, n, SUM, 1);
    EACH(op, SUM, MAX, ARGMAX) EACH(n, 65536, 65537) EACH(layout, ROWS, SHIFTED) SAME(&reduce, F32, layout, 9, n, op, 1);
    SAME(&reduce, C64, SHIFTED, 9, 300, SUM, 1);
}

static mlxvk_array softmaxed(const int *p)
{
    mlxvk_array a = matrix_of(p);
    OK(mlxvk_softmax_axis(&a, a, p[REST], true, stream), stream);
    return a;
}

/* (rows, p[2], p[3]) over the last two axes, or the middle one. */
static mlxvk_array softmaxed_within(const int *p)
{
    struct view v = { .ndim = 3, .shape = { p[1], p[2], p[3] }, .strides = { p[2] * p[3] + p[5], p[3], 1 }, .offset = p[5] };
    mlxvk_array a = placed((mlxvk_dtype)p[0], &v, 1);
    OK(mlxvk_softmax_axes(&a, a, LIST(1, 2), p[4] ? 2 : 1, true, stream), stream);
    return a;
}

static void test_softmax(void **state)
{
    static const struct way rows = { "softmax", softmaxed, 0 }, within = { "softmax of three dimensions", softmaxed_within, 0 };
    (void)state;
    EACH(t, F32, BF16) {
        EACH(n, 1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 63, 64, 65, 129, 257, 1023, 1024, 1025, 2049)
            EACH(layout, ROWS, SHIFTED, GAPS, FOURS, EIGHTS, STEPS, ACROSS) SAME(&rows, t, layout, 9, n, 1);
        EACH(n, 4095, 4096, 4097, 8192, 8193, 32767) EACH(layout, ROWS, SHIFTED) SAME(&rows, t, layout, 2, n, 1);
        EACH(columns, 2, 3, 4, 5, 8, 64, 65) EACH(layout, ROWS, SHIFTED) EACH(high, 1, 2, 33) SAME(&rows, t, layout, high, columns, 0);
        EACH(n, 1, 2, 3, 4, 5, 9, 33) EACH(inner, 1, 2, 3, 4, 5, 8) UP_TO(both, 2) UP_TO(shifted, 2) SAME(&within, t, 7, n, inner, both, shifted);
    }
}

/* ---- norms ---- */

enum besides { NONE, BESIDES, FROM_SECOND, EACH_SECOND, BESIDES_COUNT };
static mlxvk_array weight_of(mlxvk_dtype t, int n, enum besides b, uint64_t seed)
{
    return b == NONE ? (mlxvk_array){ NULL } : vector(t, n, b == FROM_SECOND, b == EACH_SECOND ? 2 : 1, seed);
}

static mlxvk_array normed(const int *p)
{
    mlxvk_dtype t = (mlxvk_dtype)p[DTYPE];
    mlxvk_array x[3] = { matrix_of(p), weight_of(t, p[LENGTH], (enum besides)p[4], 2), weight_of(t, p[LENGTH], (enum besides)p[5], 3) }, y = { NULL };
    if (p[6] == 2) {                                   /* of a sum, which is kept */
        mlxvk_array r = matrix(t, (enum layout)p[LAYOUT], p[HIGH], p[LENGTH], 4), sum = { NULL }, parts[2] = { { NULL } };
        OK(mlxvk_add(&sum, x[0], r, stream), stream);
        OK(mlxvk_fast_rms_norm(&parts[1], sum, x[1], 1e-5f, stream), stream);
        parts[0] = sum;
        y = put_together(parts, 2, 0);
        release(parts, 2);
        mlxvk_array_free(r);
    } else if (p[6]) OK(mlxvk_fast_layer_norm(&y, x[0], x[1], x[2], 1e-5f, stream), stream);
    else OK(mlxvk_fast_rms_norm(&y, x[0], x[1], 1e-5f, stream), stream);
    release(x, 3);
    return y;
}

static void test_normed(void **state)
{
    static const struct way norm = { "a norm", normed, 0 };
    (void)state;
    EACH(t, F32, BF16) {
        EACH(n, 1, 4, 7, 8, 9, 12, 64, 65, 127, 129, 132, 256, 257, 1023, 1024, 1025, 4096, 4097)
            EACH(layout, ROWS, SHIFTED, GAPS, FOURS, EIGHTS, STEPS, REVERSED) SAME(&norm, t, layout, 3, n, BESIDES, NONE, 0);
        EACH(n, 8, 33, 128, 1025) EACH(layout, ROWS, SHIFTED, STEPS) UP_TO(weight, BESIDES_COUNT) UP_TO(bias, BESIDES_COUNT)
            SAME(&norm, t, layout, 5, n, weight, bias, 1);
        EACH(n, 7, 64, 129, 1024, 1025) EACH(layout, ROWS, SHIFTED, GAPS, STEPS) SAME(&norm, t, layout, 5, n, BESIDES, NONE, 2);
        EACH(rows, 1, 2, 16, 65, 130) EACH(n, 130, 512, 1030, 2047, 2048, 8192, 9001) SAME(&norm, t, ROWS, rows, n, FROM_SECOND, NONE, 0);
    }
}

/* ---- products ---- */

/* p: dtype, rows, K, columns, and where a and b lie; a batch; an offset. */
static mlxvk_array multiplied(const int *p)
{
    mlxvk_dtype t = (mlxvk_dtype)p[0];
    int rows = p[1], k = p[2], n = p[3], a = p[4] & 1, b = p[4] >> 1 & 1, gap = p[5], batch = p[6];
    struct view v = { .ndim = 3, .shape = { batch, rows, k }, .offset = p[7] }, w = { .ndim = 3, .shape = { batch, k, n }, .offset = p[7] };
    mlxvk_array x[2], y = { NULL };
    memcpy(v.strides, ((int64_t[]){ (rows + gap) * (int64_t)(k + gap), a ? 1 : k + gap, a ? rows + gap : 1 }), 3 * sizeof *v.strides);
    memcpy(w.strides, ((int64_t[]){ (n + gap) * (int64_t)(k + gap), b ? 1 : n + gap, b ? k + gap : 1 }), 3 * sizeof *w.strides);
    x[0] = placed(t, &v, 1);
    x[1] = placed(t, &w, 2);
    if (p[4] & 4) {
        mlxvk_array at[2] = { positions(5, batch, 3), positions(5, batch, 4) };
        OK(mlxvk_gather_mm(&y, x[0], x[1], at[0], at[1], false, stream), stream);
        release(at, 2);
    } else OK(mlxvk_matmul(&y, x[0], x[1], stream), stream);
    release(x, 2);
    return y;
}

static void test_multiplied(void **state)
{
    static const struct way near = { "a product", multiplied, 1e-5 }, rough = { "a product", multiplied, 0x1p-7 };
    (void)state;
    EACH(t, F32, BF16) {
        const struct way *w = t == F32 ? &near : &rough;
        EACH(rows, 1, 2, 3, 5, 8, 9) EACH(k, 1, 7, 8, 9, 33, 513) EACH(n, 1, 3, 33) EACH(how, 0, 1, 2, 3, 6) SAME(w, t, rows, k, n, how, 0, 2);
        EACH(rows, 1, 5, 63, 65, 70) EACH(how, 0, 1, 2, 3) UP_TO(gap, 2) UP_TO(shifted, 2) EACH(batch, 1, 3) SAME(w, t, rows, 130, 131, how, gap, batch, shifted);
        EACH(rows, 4, 5, 31, 32, 33, 64, 66, 96, 97, 127, 129) EACH(n, 31, 33, 64, 65, 127, 129) EACH(how, 0, 2) SAME(w, t, rows, 256, n, how, 0, 1);
    }
}

/* Quantized weights. p: dtype, rows, K, columns, bits, how, and where x lies: row after row, from the second element on, apart. */
enum quantized { TURNED_WEIGHT, AS_STORED, BATCH, GATHERED, PAIR, GATED, NORMED };
static mlxvk_array quantized_product(const int *p, mlxvk_array x, mlxvk_array at, uint64_t seed)
{
    mlxvk_optional_int group = { 64, true }, bits = { p[4], true };
    int n = p[5] == AS_STORED ? p[2] : p[3], k = p[5] == AS_STORED ? p[3] : p[2], stack = p[5] == GATHERED ? 4 : 1;
    struct view v = { .ndim = 3, .shape = { stack, n, k }, .strides = { (int64_t)n * k, k, 1 } };
    mlxvk_array w = placed((mlxvk_dtype)p[0], &v, seed), part[3] = { { NULL } }, none = { NULL }, y = { NULL };
    mlxvk_vector_array all = { NULL };
    if (p[5] != GATHERED) OK(mlxvk_reshape(&w, w, LIST(n, k), 2, stream), stream);
    OK(mlxvk_quantize(&all, w, group, bits, "affine", none, stream), stream);
    for (size_t i = 0; i < 3; i++) OK(mlxvk_vector_array_get(&part[i], all, i), stream);
    if (p[5] == GATHERED)
        OK(mlxvk_gather_qmm(&y, x, part[0], part[1], part[2], none, at, true, group, bits, "affine", false, stream), stream);
    else OK(mlxvk_quantized_matmul(&y, x, part[0], part[1], part[2], p[5] != AS_STORED, group, bits, "affine", stream), stream);
    release(part, 3);
    mlxvk_vector_array_free(all);
    mlxvk_array_free(w);
    return y;
}

static mlxvk_array quantized(const int *p)
{
    mlxvk_dtype t = (mlxvk_dtype)p[0];
    int batch = p[5] == BATCH || p[5] == GATHERED ? 3 : 1, k = p[2], gap = p[6] == 2 ? 1 : p[6] == 3 ? 8 : 0;
    struct view v = { .ndim = 3, .shape = { batch, p[1], k }, .offset = p[6] == 1, .strides = { (int64_t)p[1] * (k + gap) + gap, k + gap, 1 } };
    mlxvk_array x = placed(t, &v, 1), at = { NULL }, weight = { NULL }, y[2] = { { NULL } }, silu = { NULL };
    if (batch == 1) OK(mlxvk_squeeze_axis(&x, x, 0, stream), stream);
    if (p[5] == GATHERED) at = positions(3, 4, 7);
    if (p[5] == NORMED) {
        weight = vector(t, k, 0, 1, 9);
        OK(mlxvk_fast_rms_norm(&x, x, weight, 1e-5f, stream), stream);
        mlxvk_array_free(weight);
    }
    y[0] = quantized_product(p, x, at, 2);
    if (p[5] >= PAIR) y[1] = quantized_product(p, x, at, 3);
    if (p[5] == PAIR || p[5] == NORMED) {
        mlxvk_array both = put_together(y, 2, 1);
        mlxvk_array_free(y[0]);
        y[0] = both;
    } else if (p[5] == GATED) {
        OK(mlxvk_sigmoid(&silu, y[0], stream), stream);
        OK(mlxvk_multiply(&silu, y[0], silu, stream), stream);
        OK(mlxvk_multiply(&y[0], silu, y[1], stream), stream);
        mlxvk_array_free(silu);
    }
    mlxvk_array_free(y[1]);
    mlxvk_array_free(at);
    mlxvk_array_free(x);
    return y[0];
}

static void test_quantized(void **state)
{
    static const struct way near = { "a quantized product", quantized, 1e-4 }, rough = { "a quantized product", quantized, 0x1p-6 };
    (void)state;
    EACH(t, F32, BF16) {
        const struct way *w = t == F32 ? &near : &rough;
        for (int rows = 1; rows < 18; rows++) UP_TO(place, 4) SAME(w, t, rows, 128, 33, 4, TURNED_WEIGHT, place);
        EACH(rows, 1, 5, 8, 9, 13) for (int how = AS_STORED; how <= NORMED; how++) UP_TO(place, 4) SAME(w, t, rows, 128, 64, 4, how, place);
        EACH(bits, 3, 8) EACH(rows, 1, 5, 9) UP_TO(place, 2) SAME(w, t, rows, 192, 31, bits, TURNED_WEIGHT, place);
        EACH(n, 64, 128) EACH(k, 31, 32, 33, 64) EACH(rows, 1, 9) SAME(w, t, rows, k, n, 4, AS_STORED, 0);
    }
}

/* ---- Fourier transforms ---- */

static mlxvk_array transformed(const int *p)
{
    mlxvk_array a = matrix_of(p);
    int axis = p[4], n = p[axis ? LENGTH : HIGH];
    if (p[DTYPE] == C64) OK(mlxvk_fft_fft(&a, a, n, axis, MLXVK_FFT_NORM_BACKWARD, stream), stream);
    else OK(mlxvk_fft_rfft(&a, a, n, axis, MLXVK_FFT_NORM_BACKWARD, stream), stream);
    return a;
}

static void test_transformed(void **state)
{
    static const struct way transform = { "a Fourier transform", transformed, 1e-5 };
    (void)state;
    EACH(t, C64, F32) EACH(layout, ROWS, SHIFTED) {
        EACH(n, 512, 1000, 1024, 4096) EACH(columns, 1, 3, 17) SAME(&transform, t, layout, n, columns, 0);
        EACH(n, 1021, 1024) SAME(&transform, t, layout, 3, n, 1);
    }
}

/* ---- the devices ---- */

static int open_sides(void **state)
{
    const char *type;
    (void)state;
    sides[HERE] = start("MLX_VK_POISON=1");
    sides[TIGHT] = start("MLX_VK_POISON=1 MLX_VK_MAX_BINDING_RANGE=196608");
    driver = (struct driver){ .device_type = 2 };      /* VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU */
    sides[THERE].device = own_device("MLX_VK_POISON=1");
    OK_DEVICE(mlxvk_device_info_get_string(&type, sides[THERE].device, "type"), sides[THERE].device);
    assert_string_equal(type, "discrete");
    sides[THERE].stream = open_stream(sides[THERE].device);
    return 0;
}

static int close_sides(void **state)
{
    (void)state;
    for (int i = 0; i < SIDES; i++) finish(&sides[i]);
    end_vulkan();
    print_message("%u of %u cases\n", (cases + step - 1) / step, cases);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transposed), cmocka_unit_test(test_elementwise), cmocka_unit_test(test_rows_by_fours),
        cmocka_unit_test(test_turned), cmocka_unit_test(test_taken), cmocka_unit_test(test_scattered),
        cmocka_unit_test(test_sorted), cmocka_unit_test(test_reduced), cmocka_unit_test(test_softmax), cmocka_unit_test(test_normed),
        cmocka_unit_test(test_multiplied), cmocka_unit_test(test_quantized), cmocka_unit_test(test_transformed),
    };
    if (argc > 1 && atoi(argv[1]) > 0) step = (unsigned)atoi(argv[1]);
    return run_group("serial", tests, open_sides, close_sides);
}
