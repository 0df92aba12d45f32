/* MLX's newest primitives against references in float64: cross entropy, the gated delta rule, attention's gradient,
 * products of quantized matrices that indices choose. */
#include "support.h"

/* ---- operands: numbers in float64 as their dtype has them, laid out in one of five ways ---- */

/* No gaps; rows with gaps and an offset; every other element; (B, H, L, D) as (B, L, H, D) lies, as (B, D, L, H). */
enum layout { DENSE, PADDED, SPREAD, LAYOUTS, BESIDE = LAYOUTS, ACROSS };
struct operand { double *x; size_t size; mlxvk_array a; int shape[5], ndim; mlxvk_dtype dtype; };

static mlxvk_array laid_out(const struct operand *o, enum layout layout);
static mlxvk_array laid_swapped(const struct operand *o, int axis)
{
    mlxvk_array a = laid_out(o, DENSE);
    OK(mlxvk_swapaxes(&a, a, 1, axis, stream), stream);
    OK(mlxvk_contiguous(&a, a, false, stream), stream);
    OK(mlxvk_swapaxes(&a, a, 1, axis, stream), stream);
    return a;
}

static mlxvk_array laid_out(const struct operand *o, enum layout layout)
{
    if (layout >= BESIDE) return laid_swapped(o, layout == BESIDE ? 2 : 3);
    int last = o->shape[o->ndim - 1], shape[5];
    int64_t strides[5], step = layout == SPREAD ? 2 : 1, row = layout == DENSE ? last : last * step + 4;
    size_t rows = last ? o->size / (size_t)last : 0, total = rows * (size_t)row + 8, first = layout == DENSE ? 0 : 3;
    unsigned char *bytes = calloc(total, bytes_of(o->dtype));
    mlxvk_array flat, res = { NULL };
    assert_non_null(bytes);
    for (size_t i = 0; i < total; i++) store_number(o->dtype, bytes, i, 77);
    for (size_t i = 0; i < o->size; i++)
        store_number(o->dtype, bytes, first + i / (size_t)last * (size_t)row + i % (size_t)last * (size_t)step, o->x[i]);
    memcpy(shape, o->shape, sizeof shape);
    for (int i = o->ndim - 1; i >= 0; i--)
        strides[i] = i == o->ndim - 1 ? step : i == o->ndim - 2 ? row : strides[i + 1] * shape[i + 1];
    flat = array_of(device, o->dtype, bytes, (int[]){ (int)total }, 1);
    OK(mlxvk_as_strided(&res, flat, shape, (size_t)o->ndim, strides, (size_t)o->ndim, first, stream), stream);
    mlxvk_array_free(flat);
    free(bytes);
    return res;
}

/* From low to high; of less than two dimensions: dense. */
static struct operand operand(struct rng *r, mlxvk_dtype dtype, const int *shape, int ndim, double low, double high,
                              enum layout layout)
{
    struct operand o = { .size = 1, .ndim = ndim, .dtype = dtype };
    unsigned char one[16];
    for (int i = 0; i < ndim; i++) o.size *= (size_t)(o.shape[i] = shape[i]);
    o.x = malloc((o.size + 1) * sizeof *o.x);
    assert_non_null(o.x);
    for (size_t i = 0; i < o.size; i++) {
        store_number(dtype, one, 0, low + (high - low) * random_int(r, 0, 4096) / 4096);
        o.x[i] = load_number(dtype, one, 0).re;
    }
    if (ndim) o.a = laid_out(&o, o.size ? layout : DENSE);
    return o;
}

static void operand_free(struct operand *o)
{
    mlxvk_array_free(o->a);
    free(o->x);
}

/* scale: the size of numbers that a sum is made of; 0: exact. */
static void expect(mlxvk_array got, mlxvk_dtype dtype, const double *want, size_t count, double scale, const char *what)
{
    double tolerance = scale <= 0 ? 0 : dtype == MLXVK_FLOAT32 ? 2e-5 : dtype == MLXVK_FLOAT16 ? 1e-3 : 8e-3;
    unsigned char *data = malloc(count * bytes_of(dtype) + 1);
    assert_non_null(data);
    assert_int_equal(mlxvk_array_dtype(got), dtype);
    assert_int_equal(mlxvk_array_size(got), count);
    OK(mlxvk_array_read(got, data, count * bytes_of(dtype), stream), stream);
    for (size_t i = 0; i < count; i++) {
        double g = load_number(dtype, data, i).re;
        if (g == want[i] || (isnan(g) && isnan(want[i]))) continue;
        if (fabs(g - want[i]) <= 2e-5 * scale + tolerance * fabs(want[i])) continue;
        print_error("%s: element %zu of %zu is %g and not %g\n", what, i, count, g, want[i]);
        fail();
    }
    free(data);
}

static double largest(const double *x, size_t count)
{
    double most = 1e-3;
    for (size_t i = 0; i < count; i++) most = fmax(most, fabs(x[i]));
    return most;
}

static const mlxvk_dtype floating[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_FLOAT16 };

/* Pipelines take long on a CPU: all cases in a test's first run, the second or the third one in the others. */
static int one_case;
#define EACH_CASE(i, cases) for (size_t i = 0; i < COUNT(cases); i++) if (!one_case || i == (size_t)one_case)

/* Runs a test again where 8 and 16 bits are taken out of words, where bindings are small, and where dispatches are cut. */
static void everywhere(void (*test)(void), const char *small)
{
    const char *const gates[] = { NULL, small,
        "MLX_VK_ENABLE_STORAGE8=0 MLX_VK_ENABLE_STORAGE16=0 MLX_VK_MAX_US_PER_DISPATCH=1 MLX_VK_MAX_SHARED_MEMORY=16384" };
    mlxvk_device own = device;
    mlxvk_stream its = stream;
    for (size_t i = 0; i < COUNT(gates); i++) {
        struct setting s = start(gates[i]);
        device = s.device;
        stream = s.stream;
        one_case = (int)i;
        test();
        finish(&s);
    }
    device = own;
    stream = its;
}

/* ---- cross entropy ---- */

static void entropy_reference(const double *x, int n, int t, double *loss)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) most = x[i] > most || isnan(x[i]) ? x[i] : most;
    for (int i = 0; i < n; i++) sum += exp(x[i] - most);
    *loss = log(sum) + most - x[t < 0 ? t + n : t];
}

static void one_entropy(struct rng *r, int rows, int n, mlxvk_dtype dtype, mlxvk_dtype index, enum layout layout)
{
    struct operand x = operand(r, dtype, (int[]){ rows, n }, 2, -8, 8, layout);
    struct operand g = operand(r, MLXVK_FLOAT32, (int[]){ rows }, 1, -2, 2, DENSE), classes = g;
    double *loss = malloc((size_t)rows * sizeof *loss), *dx = malloc(x.size * sizeof *dx);
    mlxvk_array res = { NULL }, back = { NULL };
    classes.x = malloc((size_t)rows * sizeof *classes.x);
    classes.dtype = index;
    for (int i = 0; i < rows; i++) {
        int most = index == MLXVK_INT8 ? (n < 127 ? n : 127) : n, t = random_int(r, 0, most - 1);
        classes.x[i] = dtype_is_signed(index) && random_chance(r, 30) ? -1 - t : t;
        t = (int)classes.x[i] < 0 ? (int)classes.x[i] + n : (int)classes.x[i];
        entropy_reference(x.x + (size_t)i * (size_t)n, n, t, &loss[i]);
        for (int k = 0; k < n; k++) {
            size_t at = (size_t)i * (size_t)n + (size_t)k;
            dx[at] = g.x[i] * (exp(x.x[at] - x.x[(size_t)i * (size_t)n + (size_t)t] - loss[i]) - (k == t));
        }
    }
    classes.a = laid_out(&classes, DENSE);
    OK(mlxvk_fast_cross_entropy(&res, x.a, classes.a, stream), stream);
    expect(res, MLXVK_FLOAT32, loss, (size_t)rows, 8, "loss");
    OK(mlxvk_fast_cross_entropy_vjp(&back, x.a, classes.a, res, g.a, stream), stream);
    expect(back, dtype, dx, x.size, 2, "gradient of logits");
    mlxvk_array_free(res);
    mlxvk_array_free(back);
    operand_free(&x);
    operand_free(&g);
    operand_free(&classes);
    free(loss);
    free(dx);
}

static void entropies(void)
{
    static const int shapes[][2] = { { 1, 1 }, { 3, 2 }, { 5, 7 }, { 33, 40 }, { 2, 1001 }, { 3, 1024 }, { 1, 3000 } };
    static const mlxvk_dtype indices[] = { MLXVK_INT32, MLXVK_UINT8, MLXVK_INT64, MLXVK_UINT32, MLXVK_INT8 };
    struct rng r = { 5 };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (size_t t = 0; t < COUNT(floating); t++)
            one_entropy(&r, shapes[i][0], shapes[i][1], floating[t],
                        shapes[i][1] > 255 ? MLXVK_INT32 : indices[(i + t) % COUNT(indices)], (enum layout)((i + t) % LAYOUTS));
}
static void cross_entropies(void **state) { (void)state; everywhere(entropies, "MLX_VK_MAX_BINDING_RANGE=16384"); }

/* What is not finite; a result in the logits' place; no rows. */
static void edges_of_cross_entropy(void **state)
{
    const float inf = INFINITY, x[] = { inf, 0, 1, -inf, -inf, -inf, NAN, 0, 1, 0, -inf, 1, 0, inf, 1, 3, 3, 3 };
    const double want[] = { NAN, NAN, NAN, INFINITY, INFINITY, log(3) };
    const int shape[] = { 6, 3 };
    mlxvk_array a = floats(device, x, shape, 2), t = ints(device, (int32_t[]){ 0, 0, 1, 1, 0, 99 }, (int[]){ 6 }, 1), res = { NULL };
    mlxvk_array one = floats(device, (float[]){ 1, 2, 3 }, (int[]){ 3 }, 1), c = ints(device, (int32_t[]){ 1 }, NULL, 0), back = { NULL };
    mlxvk_array none = floats(device, NULL, (int[]){ 0, 3 }, 2), few = ints(device, NULL, (int[]){ 0 }, 1);
    mlxvk_array empty = floats(device, NULL, (int[]){ 6, 0 }, 2);
    (void)state;
    OK(mlxvk_fast_cross_entropy(&res, a, t, stream), stream);
    expect(res, MLXVK_FLOAT32, want, 6, 1, "loss");
    OK(mlxvk_fast_cross_entropy(&res, one, c, stream), stream);
    expect_floats(res, (float[]){ 1.4076059f }, 1, 1e-6, 0, stream);
    OK(mlxvk_fast_cross_entropy_vjp(&back, one, c, res, res, stream), stream);
    OK(mlxvk_fast_cross_entropy_vjp(&one, one, c, res, res, stream), stream);
    expect_floats(one, (float[]){ 1.4076059f * 0.09003057f, 1.4076059f * (0.24472848f - 1), 1.4076059f * 0.66524094f }, 3, 1e-5, 0, stream);
    OK(mlxvk_fast_cross_entropy(&res, none, few, stream), stream);
    assert_int_equal(mlxvk_array_size(res), 0);
    OK(mlxvk_fast_cross_entropy_vjp(&back, none, few, res, res, stream), stream);
    assert_int_equal(mlxvk_array_size(back), 0);
    REFUSED(mlxvk_fast_cross_entropy(&res, empty, t, stream), MLXVK_ERROR_SHAPE, stream, "no classes");
    REFUSED(mlxvk_fast_cross_entropy(&res, a, few, stream), MLXVK_ERROR_SHAPE, stream, "(6, 3)");
    REFUSED(mlxvk_fast_cross_entropy(&res, t, c, stream), MLXVK_ERROR_DTYPE, stream, "int32");
    REFUSED(mlxvk_fast_cross_entropy(&res, a, a, stream), MLXVK_ERROR_DTYPE, stream, "targets");
    REFUSED(mlxvk_fast_cross_entropy_vjp(&res, a, t, c, c, stream), MLXVK_ERROR_SHAPE, stream, "cotangent");
    for (size_t i = 0; i < 9; i++) mlxvk_array_free(((mlxvk_array[]){ a, t, res, one, c, back, none, few, empty })[i]);
}

/* Classes that are masked, beside others: softmax less 1 there all the same, as MLX has it; -inf in all of a row is NaN. */
static void classes_far_below(void)
{
    enum { ROWS = 9, MOST = 1001 };
    static const float far[ROWS] = { -1e9f, 0, -1e4f, -INFINITY, 1, -3e38f, -70, NAN, -1 };
    static const int widths[] = { 4, 5, 1000, MOST };
    struct rng r = { 21 };
    for (size_t i = 0; i < COUNT(widths); i++) {
        int n = widths[i], t[ROWS];
        static float x[ROWS * MOST], g[ROWS];
        static double want[ROWS * MOST];
        mlxvk_array a, c, ones, loss = { NULL }, back = { NULL };
        for (int row = 0; row < ROWS; row++) {
            double sum = 0;
            float *own = x + row * n;
            t[row] = random_int(&r, 0, n - 1);
            g[row] = row == 3 ? 0 : 2;
            for (int k = 0; k < n; k++) own[k] = row == 8 ? -INFINITY : (float)random_int(&r, -4096, 4096) / 1024;
            if (row != 8) own[t[row]] = far[row];
            for (int k = 0; k < n; k++) sum += exp(own[k]);
            for (int k = 0; k < n; k++)
                want[row * n + k] = row == 8 ? (double)NAN : g[row] * (exp(own[k]) / sum - (k == t[row]));
        }
        a = floats(device, x, (int[]){ ROWS, n }, 2);
        c = ints(device, t, (int[]){ ROWS }, 1);
        ones = floats(device, g, (int[]){ ROWS }, 1);
        OK(mlxvk_fast_cross_entropy(&loss, a, c, stream), stream);
        OK(mlxvk_fast_cross_entropy_vjp(&back, a, c, loss, ones, stream), stream);
        expect(back, MLXVK_FLOAT32, want, (size_t)(ROWS * n), 1, "gradient of logits");
        OK(mlxvk_fast_cross_entropy_vjp(&a, a, c, loss, ones, stream), stream);          /* where they lie */
        expect(a, MLXVK_FLOAT32, want, (size_t)(ROWS * n), 1, "gradient in the logits' place");
        for (size_t k = 0; k < 5; k++) mlxvk_array_free(((mlxvk_array[]){ a, c, ones, loss, back })[k]);
    }
}
static void cross_entropies_far_below(void **state) { (void)state; everywhere(classes_far_below, "MLX_VK_MAX_BINDING_RANGE=16384"); }

/* ---- the gated delta rule ---- */

struct delta { int b, t, hk, hv, dk, dv; mlxvk_dtype dtype; bool vector, state, mask; enum layout layout; };
enum { Q, K, V, GATE, BETA, STATE, MASK, DELTA_OPERANDS };

/* One step of a head: s is dv x dk. */
static void delta_step(const struct delta *d, double *s, const double *q, const double *k, const double *v, const double *gate,
                       double beta, double *y)
{
    for (int i = 0; i < d->dv; i++, s += d->dk) {
        double seen = 0;
        for (int j = 0; j < d->dk; j++) seen += (s[j] *= gate[d->vector ? j : 0]) * k[j];
        y[i] = 0;
        for (int j = 0; j < d->dk; j++) y[i] += (s[j] += beta * (v[i] - seen) * k[j]) * q[j];
    }
}

static void delta_reference(const struct delta *d, const struct operand *o, double *y, double *s)
{
    for (int n = 0; n < d->b * d->hv; n++) {
        int b = n / d->hv, h = n % d->hv;
        double *own = s + (size_t)n * (size_t)(d->dv * d->dk);
        for (int i = 0; i < d->dv * d->dk; i++) own[i] = d->state ? o[STATE].x[n * d->dv * d->dk + i] : 0;
        for (int t = 0; t < d->t; t++) {
            int at = b * d->t + t, key = (at * d->hk + h / (d->hv / d->hk)) * d->dk, head = at * d->hv + h;
            if (d->mask && o[MASK].x[at] == 0)
                for (int i = 0; i < d->dv; i++) y[head * d->dv + i] = 0;
            else delta_step(d, own, o[Q].x + key, o[K].x + key, o[V].x + head * d->dv, o[GATE].x + (d->vector ? head * d->dk : head),
                            o[BETA].x[head], y + head * d->dv);
        }
    }
}

static void delta_operands(struct rng *r, const struct delta *d, struct operand o[DELTA_OPERANDS])
{
    double size = 1.5 / sqrt(d->dk);
    o[Q] = operand(r, d->dtype, (int[]){ d->b, d->t, d->hk, d->dk }, 4, -size, size, d->layout);
    o[K] = operand(r, d->dtype, (int[]){ d->b, d->t, d->hk, d->dk }, 4, -size, size, d->layout);
    o[V] = operand(r, d->dtype, (int[]){ d->b, d->t, d->hv, d->dv }, 4, -1, 1, d->layout);
    o[GATE] = operand(r, d->dtype, (int[]){ d->b, d->t, d->hv, d->dk }, d->vector ? 4 : 3, 0.5, 1, d->layout % LAYOUTS);
    o[BETA] = operand(r, d->dtype, (int[]){ d->b, d->t, d->hv }, 3, 0, 1, d->layout % LAYOUTS);
    o[STATE] = operand(r, MLXVK_FLOAT32, (int[]){ d->b, d->hv, d->dv, d->dk }, 4, -1, 1, d->layout % LAYOUTS);
    o[MASK] = operand(r, MLXVK_BOOL, (int[]){ d->b, d->t }, 2, 0, 0, d->layout % LAYOUTS);
    for (size_t i = 0; i < o[MASK].size; i++) o[MASK].x[i] = random_chance(r, 60);
    mlxvk_array_free(o[MASK].a);
    o[MASK].a = laid_out(&o[MASK], d->layout % LAYOUTS);
}

static void one_delta(struct rng *r, const struct delta *d)
{
    struct operand o[DELTA_OPERANDS];
    mlxvk_vector_array res = { NULL };
    mlxvk_array out = { NULL }, none = { NULL };
    double *y, *s;
    delta_operands(r, d, o);
    y = malloc(o[V].size * sizeof *y);
    s = malloc(o[STATE].size * sizeof *s);
    delta_reference(d, o, y, s);
    OK(mlxvk_fast_gated_delta_update(&res, o[Q].a, o[K].a, o[V].a, o[GATE].a, o[BETA].a, d->state ? o[STATE].a : none,
                                     d->mask ? o[MASK].a : none, stream), stream);
    assert_int_equal(mlxvk_vector_array_size(res), 2);
    OK(mlxvk_vector_array_get(&out, res, 0), stream);
    expect(out, d->dtype, y, o[V].size, 1, "y");
    OK(mlxvk_vector_array_get(&out, res, 1), stream);
    expect(out, MLXVK_FLOAT32, s, o[STATE].size, 1, "state");
    for (int i = 0; i < DELTA_OPERANDS; i++) operand_free(&o[i]);
    mlxvk_array_free(out);
    mlxvk_vector_array_free(res);
    free(y);
    free(s);
}

static void deltas(void)
{
    static const struct delta cases[] = {
        { 1, 1, 1, 1, 1, 1, MLXVK_FLOAT32, false, false, false, DENSE }, { 2, 5, 2, 4, 7, 3, MLXVK_FLOAT32, false, true, false, PADDED },
        { 1, 19, 1, 2, 128, 40, MLXVK_BFLOAT16, false, true, false, DENSE }, { 2, 9, 1, 3, 64, 33, MLXVK_FLOAT16, false, false, true, SPREAD },
        { 1, 33, 2, 2, 40, 20, MLXVK_FLOAT32, true, true, true, DENSE }, { 1, 7, 1, 1, 300, 5, MLXVK_BFLOAT16, true, false, false, PADDED },
        { 3, 2, 2, 2, 20, 17, MLXVK_FLOAT32, false, true, true, SPREAD },
    };
    struct rng r = { 9 };
    EACH_CASE(i, cases) one_delta(&r, &cases[i]);
}
static void gated_deltas(void **state) { (void)state; everywhere(deltas, "MLX_VK_MAX_BINDING_RANGE=65536"); }

/* Heads that lie further apart than a binding reaches, of one token, too. */
static void deltas_beside(void)
{
    const struct delta d = { 2, 50, 4, 8, 64, 9, MLXVK_FLOAT32, false, true, false, BESIDE };
    struct rng r = { 15 };
    one_delta(&r, &d);
}
static void gated_deltas_of_heads_beside(void **state) { (void)state; everywhere(deltas_beside, "MLX_VK_MAX_BINDING_RANGE=20480"); }

/* ---- its gradient: for the whole sequence at once, with all states kept ---- */

enum { DQ, DK, DV, DGATE, DBETA, DSTATE, GRADIENTS };

static void delta_step_back(const struct delta *d, const double *s, double *ds, const double *q, const double *k, const double *v,
                            const double *gate, double beta, const double *o, double *const to[GRADIENTS])
{
    for (int i = 0; i < d->dv; i++, s += d->dk, ds += d->dk) {
        double seen = 0, w = 0;
        for (int j = 0; j < d->dk; j++) {
            ds[j] += o[i] * q[j];
            seen += gate[d->vector ? j : 0] * s[j] * k[j];
            w += ds[j] * k[j];
        }
        to[DV][i] = beta * w;
        *to[DBETA] += w * (v[i] - seen);
        for (int j = 0; j < d->dk; j++) {
            double decay = gate[d->vector ? j : 0], old = decay * s[j];
            to[DQ][j] += o[i] * (old + beta * (v[i] - seen) * k[j]);
            to[DK][j] += beta * ((v[i] - seen) * ds[j] - w * old);
            ds[j] -= beta * w * k[j];
            to[DGATE][d->vector ? j : 0] += ds[j] * s[j];
            ds[j] *= decay;
        }
    }
}

/* o: the operands; y, last: the cotangents of both results, the latter NULL where there is none. */
static void delta_gradient(const struct delta *d, const struct operand *o, const double *y, const double *last, double *to[GRADIENTS])
{
    int size = d->dv * d->dk;
    double *s = malloc((size_t)(d->t + 1) * (size_t)size * sizeof *s), *seen = malloc((size_t)d->dv * sizeof *seen);
    for (int n = 0; n < d->b * d->hv; n++) {
        int b = n / d->hv, h = n % d->hv;
        double *ds = to[DSTATE] + n * size;
        for (int i = 0; i < size; i++) s[i] = d->state ? o[STATE].x[n * size + i] : 0;
        for (int i = 0; i < size; i++) ds[i] = last ? last[n * size + i] : 0;
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < d->t; i++) {
                int t = pass ? d->t - 1 - i : i, at = b * d->t + t, key = (at * d->hk + h / (d->hv / d->hk)) * d->dk;
                int head = at * d->hv + h, gate = d->vector ? head * d->dk : head;
                double *own = s + t * size;
                if (!pass) {
                    memcpy(own + size, own, (size_t)size * sizeof *own);
                    delta_step(d, own + size, o[Q].x + key, o[K].x + key, o[V].x + head * d->dv, o[GATE].x + gate, o[BETA].x[head], seen);
                } else delta_step_back(d, own, ds, o[Q].x + key, o[K].x + key, o[V].x + head * d->dv, o[GATE].x + gate, o[BETA].x[head],
                                       y + head * d->dv, (double *[]){ to[DQ] + key, to[DK] + key, to[DV] + head * d->dv, to[DGATE] + gate,
                                                                       to[DBETA] + head, NULL });
            }
    }
    free(s);
    free(seen);
}

static void one_delta_gradient(struct rng *r, const struct delta *d)
{
    static const char *const names[] = { "dqueries", "dkeys", "dvalues", "dgates", "dbeta", "dstate" };
    struct operand o[DELTA_OPERANDS], y, last;
    mlxvk_vector_array res = { NULL };
    mlxvk_array out = { NULL }, none = { NULL };
    double *want[GRADIENTS];
    delta_operands(r, d, o);
    y = operand(r, d->dtype, o[V].shape, 4, -1, 1, d->layout);
    last = operand(r, MLXVK_FLOAT32, o[STATE].shape, 4, -1, 1, d->layout);
    for (int i = 0; i < GRADIENTS; i++) want[i] = calloc(o[i].size, sizeof *want[i]);
    delta_gradient(d, o, y.x, d->mask ? NULL : last.x, want);
    OK(mlxvk_fast_gated_delta_update_vjp(&res, o[Q].a, o[K].a, o[V].a, o[GATE].a, o[BETA].a, d->state ? o[STATE].a : none, y.a,
                                         d->mask ? none : last.a, stream), stream);
    assert_int_equal(mlxvk_vector_array_size(res), GRADIENTS);
    for (size_t i = 0; i < GRADIENTS; i++) {
        OK(mlxvk_vector_array_get(&out, res, i), stream);
        expect(out, o[i].dtype, want[i], o[i].size, largest(want[i], o[i].size), names[i]);
        free(want[i]);
    }
    for (int i = 0; i < DELTA_OPERANDS; i++) operand_free(&o[i]);
    operand_free(&y);
    operand_free(&last);
    mlxvk_array_free(out);
    mlxvk_vector_array_free(res);
}

static void delta_gradients(void)
{
    static const struct delta cases[] = {     /* mask: the last state has no cotangent */
        { 1, 1, 1, 1, 1, 1, MLXVK_FLOAT32, false, false, false, DENSE }, { 2, 5, 2, 4, 7, 3, MLXVK_FLOAT32, false, true, false, PADDED },
        { 1, 19, 1, 2, 128, 40, MLXVK_BFLOAT16, false, true, false, DENSE }, { 2, 9, 1, 3, 64, 33, MLXVK_FLOAT16, false, false, true, SPREAD },
        { 1, 33, 2, 2, 40, 20, MLXVK_FLOAT32, true, true, true, DENSE }, { 1, 7, 1, 1, 300, 5, MLXVK_BFLOAT16, true, false, false, PADDED },
        { 3, 70, 2, 2, 12, 17, MLXVK_FLOAT32, false, true, false, SPREAD },
    };
    struct rng r = { 10 };
    EACH_CASE(i, cases) one_delta_gradient(&r, &cases[i]);
}
static void gated_delta_gradients(void **state) { (void)state; everywhere(delta_gradients, "MLX_VK_MAX_BINDING_RANGE=400000"); }

/* ---- attention's gradient ---- */

enum mask { NO_MASK, CAUSAL, BOOLEAN, ADDED };
struct attention { int b, h, kv, l, n, d, dv; mlxvk_dtype dtype; enum mask mask; bool sinks, sums; enum layout layout; };
enum { AQ, AK, AV, AG, AMASK, ASINKS, ATTENTION_OPERANDS };

/* The weights of a query, of head h of batch b; its logsumexp. */
static double attention_weights(const struct attention *a, const struct operand *o, int b, int h, int i, double *p)
{
    const double *q = o[AQ].x + ((b * a->h + h) * a->l + i) * a->d, *k = o[AK].x + (b * a->kv + h / (a->h / a->kv)) * a->n * a->d;
    double most = a->sinks ? o[ASINKS].x[h] : -INFINITY, sum = 0;
    for (int j = 0; j < a->n; j++) {
        double m = a->mask == BOOLEAN || a->mask == ADDED ? o[AMASK].x[(b * a->l + i) * a->n + j] : 0;
        p[j] = m * (a->mask == ADDED);
        for (int x = 0; x < a->d; x++) p[j] += 0.3 * q[x] * k[j * a->d + x];
        if ((a->mask == CAUSAL && j > i + a->n - a->l) || (a->mask == BOOLEAN && m == 0)) p[j] = -INFINITY;
        most = fmax(most, p[j]);
    }
    if (a->sinks) sum = exp(o[ASINKS].x[h] - most);
    for (int j = 0; j < a->n; j++) sum += p[j] = isinf(p[j]) ? 0 : exp(p[j] - most);
    for (int j = 0; j < a->n && sum > 0; j++) p[j] /= sum;
    return sum > 0 ? most + log(sum) : -INFINITY;
}

static void attention_gradient(const struct attention *a, const struct operand *o, double *out, double *sums, double *const to[3])
{
    double *p = malloc((size_t)a->n * sizeof *p), *slope = malloc((size_t)a->n * sizeof *slope);
    for (int row = 0; row < a->b * a->h * a->l; row++) {
        int i = row % a->l, h = row / a->l % a->h, b = row / a->l / a->h, keys = (b * a->kv + h / (a->h / a->kv)) * a->n;
        const double *g = o[AG].x + row * a->dv, *k = o[AK].x + keys * a->d, *v = o[AV].x + keys * a->dv, *q = o[AQ].x + row * a->d;
        double dot = 0;
        sums[row] = attention_weights(a, o, b, h, i, p);
        for (int x = 0; x < a->dv; x++) out[row * a->dv + x] = 0;
        for (int j = 0; j < a->n; j++) {
            slope[j] = 0;
            for (int x = 0; x < a->dv; x++) {
                out[row * a->dv + x] += p[j] * v[j * a->dv + x];
                slope[j] += g[x] * v[j * a->dv + x];
                to[2][(keys + j) * a->dv + x] += p[j] * g[x];
            }
            dot += p[j] * slope[j];
        }
        for (int j = 0; j < a->n; j++)
            for (int x = 0; x < a->d; x++) {
                to[0][row * a->d + x] += 0.3 * p[j] * (slope[j] - dot) * k[j * a->d + x];
                to[1][(keys + j) * a->d + x] += 0.3 * p[j] * (slope[j] - dot) * q[x];
            }
    }
    free(p);
    free(slope);
}

static void attention_operands(struct rng *r, const struct attention *a, struct operand o[ATTENTION_OPERANDS])
{
    const int mask[] = { a->b, 1, a->l, a->n };
    o[AQ] = operand(r, a->dtype, (int[]){ a->b, a->h, a->l, a->d }, 4, -1, 1, a->layout);
    o[AK] = operand(r, a->dtype, (int[]){ a->b, a->kv, a->n, a->d }, 4, -1, 1, a->layout);
    o[AV] = operand(r, a->dtype, (int[]){ a->b, a->kv, a->n, a->dv }, 4, -1, 1, a->layout);
    o[AG] = operand(r, a->dtype, (int[]){ a->b, a->h, a->l, a->dv }, 4, -1, 1, a->layout);
    o[AMASK] = operand(r, a->mask == BOOLEAN ? MLXVK_BOOL : a->dtype, mask, 4, -1, 1, a->layout == BESIDE ? SPREAD : a->layout);
    o[ASINKS] = operand(r, a->dtype, (int[]){ a->h }, 1, -1, 1, DENSE);
    if (a->mask != BOOLEAN) return;
    for (size_t i = 0; i < o[AMASK].size; i++) o[AMASK].x[i] = i >= (size_t)a->n && random_chance(r, 60);   /* one sees nothing */
    mlxvk_array_free(o[AMASK].a);
    o[AMASK].a = laid_out(&o[AMASK], a->layout);
}

static void one_attention(struct rng *r, const struct attention *a)
{
    static const char *const names[] = { "dqueries", "dkeys", "dvalues" };
    struct operand o[ATTENTION_OPERANDS], out;
    mlxvk_array none = { NULL }, sums = { NULL }, part = { NULL };
    mlxvk_vector_array res = { NULL };
    const char *mode = a->mask == CAUSAL ? "causal" : "";
    double *to[3], *all;
    attention_operands(r, a, o);
    out = operand(r, a->dtype, o[AG].shape, 4, 0, 0, DENSE);
    all = malloc((size_t)(a->b * a->h * a->l) * sizeof *all);
    for (int i = 0; i < 3; i++) to[i] = calloc(o[i].size, sizeof *to[i]);
    attention_gradient(a, o, out.x, all, to);
    mlxvk_array_free(out.a);
    out.a = laid_out(&out, a->layout);
    mlxvk_array mask = a->mask == BOOLEAN || a->mask == ADDED ? o[AMASK].a : none, sinks = a->sinks ? o[ASINKS].a : none;
    if (a->sums) {
        OK(mlxvk_fast_scaled_dot_product_attention_logsumexp(&sums, o[AQ].a, o[AK].a, 0.3f, mode, mask, sinks, stream), stream);
        expect(sums, MLXVK_FLOAT32, all, (size_t)(a->b * a->h * a->l), 4, "logsumexp");
    }
    OK(mlxvk_fast_scaled_dot_product_attention_vjp(&res, o[AQ].a, o[AK].a, o[AV].a, 0.3f, mode, mask, sinks, out.a, sums, o[AG].a, stream),
       stream);
    assert_int_equal(mlxvk_vector_array_size(res), 3);
    for (size_t i = 0; i < 3; i++) {
        OK(mlxvk_vector_array_get(&part, res, i), stream);
        expect(part, a->dtype, to[i], o[i].size, (a->dtype == MLXVK_FLOAT32 ? 1 : 200) * largest(to[i], o[i].size), names[i]);
        free(to[i]);
    }
    for (int i = 0; i < ATTENTION_OPERANDS; i++) operand_free(&o[i]);
    operand_free(&out);
    mlxvk_array_free(part);
    mlxvk_array_free(sums);
    mlxvk_vector_array_free(res);
    free(all);
}

static void attentions(void)
{
    static const struct attention cases[] = {
        { 1, 1, 1, 1, 1, 1, 1, MLXVK_FLOAT32, NO_MASK, false, true, DENSE }, { 2, 4, 2, 37, 45, 24, 20, MLXVK_FLOAT32, CAUSAL, false, true, PADDED },
        { 2, 2, 1, 33, 70, 64, 64, MLXVK_BFLOAT16, BOOLEAN, true, true, DENSE }, { 1, 6, 2, 20, 9, 40, 33, MLXVK_FLOAT16, ADDED, true, false, SPREAD },
        { 1, 2, 2, 50, 30, 40, 64, MLXVK_FLOAT32, CAUSAL, true, true, DENSE },
        /* by cooperative matrices, where there are: several tiles of each side, rows of heads that share keys, a width that
         * is no multiple of a matrix's; then one thing each that they do not take */
        { 2, 4, 2, 100, 131, 128, 128, MLXVK_BFLOAT16, CAUSAL, false, true, DENSE }, { 1, 4, 1, 131, 70, 72, 40, MLXVK_FLOAT16, CAUSAL, true, false, PADDED },
        { 2, 3, 3, 65, 66, 24, 64, MLXVK_BFLOAT16, ADDED, true, false, DENSE }, { 1, 2, 2, 70, 40, 64, 128, MLXVK_FLOAT16, BOOLEAN, false, true, SPREAD },
        { 1, 2, 1, 40, 40, 36, 64, MLXVK_BFLOAT16, NO_MASK, false, false, DENSE }, { 1, 2, 1, 40, 40, 136, 128, MLXVK_BFLOAT16, NO_MASK, false, true, DENSE },
    };
    struct rng r = { 12 };
    EACH_CASE(i, cases) one_attention(&r, &cases[i]);
}
static void attention_gradients(void **state) { (void)state; everywhere(attentions, "MLX_VK_MAX_BINDING_RANGE=32768"); }

/* Heads that reach further than a binding, a mask with gaps likewise, though none has more elements than one. */
static void heads_beside(void)
{
    static const struct attention cases[] = { { 1, 8, 4, 33, 40, 64, 64, MLXVK_FLOAT32, CAUSAL, false, true, BESIDE },
                                              { 1, 4, 4, 40, 120, 64, 64, MLXVK_FLOAT32, ADDED, true, false, BESIDE } };
    struct rng r = { 14 };
    for (size_t i = 0; i < COUNT(cases); i++) one_attention(&r, &cases[i]);
}
static void attention_gradients_of_heads_beside(void **state) { (void)state; everywhere(heads_beside, "MLX_VK_MAX_BINDING_RANGE=32768"); }

/* What one head of keys is read by must fit, of all heads of queries: told when called, not when computed. */
static void attention_gradients_that_do_not_fit(void **state)
{
    struct setting s = start("MLX_VK_MAX_BINDING_RANGE=32768");
    mlxvk_array q = floats(s.device, NULL, (int[]){ 1, 4, 40, 64 }, 4), k = floats(s.device, NULL, (int[]){ 1, 1, 40, 64 }, 4);
    mlxvk_array m = floats(s.device, NULL, (int[]){ 1, 4, 4, 640 }, 4), none = { NULL }, out = { NULL };
    mlxvk_array few = floats(s.device, NULL, (int[]){ 1, 4, 4, 8 }, 4), keys = floats(s.device, NULL, (int[]){ 1, 1, 640, 8 }, 4);
    mlxvk_vector_array res = { NULL };
    (void)state;
    REFUSED(mlxvk_fast_scaled_dot_product_attention_vjp(&res, q, k, k, 1, "", none, none, q, none, q, s.stream), MLXVK_ERROR_LIMIT,
            s.stream, "a head's rows");
    REFUSED(mlxvk_fast_scaled_dot_product_attention_logsumexp(&out, few, keys, 1, "", m, none, s.stream), MLXVK_ERROR_LIMIT,
            s.stream, "the mask");
    for (size_t i = 0; i < 6; i++) mlxvk_array_free(((mlxvk_array[]){ q, k, m, out, few, keys })[i]);
    mlxvk_vector_array_free(res);
    finish(&s);
}

/* ---- rope of features that lie further apart than a binding reaches ---- */

static void ropes_across(void)
{
    const int b = 2, h = 3, l = 33, d = 64, half = d / 2;
    struct rng r = { 16 };
    struct operand x = operand(&r, MLXVK_FLOAT32, (int[]){ b, h, l, d }, 4, -1, 1, ACROSS);
    double *want = malloc(x.size * sizeof *want);
    mlxvk_array res = { NULL }, none = { NULL };
    for (int row = 0; row < b * h * l; row++)
        for (int k = 0; k < half; k++) {
            double angle = (row % l + 7) * pow(10000, -2.0 * k / d), *own = want + row * d, *of = x.x + row * d;
            own[k] = of[k] * cos(angle) - of[k + half] * sin(angle);
            own[k + half] = of[k] * sin(angle) + of[k + half] * cos(angle);
        }
    OK(mlxvk_fast_rope(&res, x.a, d, false, (mlxvk_optional_float){ 10000, true }, 1, 7, none, stream), stream);
    expect(res, MLXVK_FLOAT32, want, x.size, 1, "rope");
    mlxvk_array_free(res);
    operand_free(&x);
    free(want);
}
static void ropes_of_features_across(void **state) { (void)state; everywhere(ropes_across, "MLX_VK_MAX_BINDING_RANGE=8192"); }

/* ---- floor_divide: as MLX, the floor of a quotient that was rounded to its dtype ---- */

static void floors_of_quotients(void **state)
{
    enum { N = 4096 };
    static const mlxvk_dtype halves[] = { MLXVK_FLOAT16, MLXVK_BFLOAT16 };
    struct rng r = { 3 };
    (void)state;
    for (size_t k = 0; k < COUNT(halves); k++) {
        struct operand a = operand(&r, halves[k], (int[]){ N }, 1, -20, 20, DENSE), b = operand(&r, halves[k], (int[]){ N }, 1, -2, 2, DENSE);
        double *want = malloc(N * sizeof *want);
        unsigned char one[16];
        mlxvk_array res = { NULL };
        for (size_t i = 0; i < N; i++) {
            store_number(halves[k], one, 0, (double)((float)a.x[i] / (float)b.x[i]));
            want[i] = floor(load_number(halves[k], one, 0).re);
        }
        OK(mlxvk_floor_divide(&res, a.a, b.a, stream), stream);
        expect(res, halves[k], want, N, 0, "floor_divide");
        mlxvk_array_free(res);
        operand_free(&a);
        operand_free(&b);
        free(want);
    }
}

/* ---- integers by 0: a quotient of 0, so all of a remains ---- */

static void integers_by_zero(void **state)
{
    enum { N = 37 };
    struct rng r = { 4 };
    double none[N] = { 0 };
    (void)state;
    for (mlxvk_dtype t = MLXVK_BOOL; t <= MLXVK_INT64; t++) {
        struct operand a = operand(&r, t, (int[]){ N }, 1, dtype_is_signed(t) ? -100 : 0, t == MLXVK_BOOL ? 2 : 100, DENSE);
        mlxvk_array zero = { NULL }, y = { NULL };
        mlxvk_vector_array both = { NULL };
        OK(mlxvk_zeros(&zero, (int[]){ N }, 1, t, stream), stream);
        OK(mlxvk_floor_divide(&y, a.a, zero, stream), stream);
        expect(y, t, none, N, 0, "floor_divide by 0");
        OK(mlxvk_remainder(&y, a.a, zero, stream), stream);
        expect(y, t, a.x, N, 0, "remainder by 0");
        OK(mlxvk_divmod(&both, a.a, zero, stream), stream);
        OK(mlxvk_vector_array_get(&y, both, 0), stream);
        expect(y, t, none, N, 0, "divmod by 0: quotient");
        OK(mlxvk_vector_array_get(&y, both, 1), stream);
        expect(y, t, a.x, N, 0, "divmod by 0: remainder");
        mlxvk_vector_array_free(both);
        mlxvk_array_free(y);
        mlxvk_array_free(zero);
        operand_free(&a);
    }
}

/* ---- no tokens, no keys; what is refused ---- */

static void empty_and_refused(void **state)
{
    mlxvk_array none = { NULL }, q = floats(device, NULL, (int[]){ 1, 0, 1, 2 }, 4), g = floats(device, NULL, (int[]){ 1, 0, 1 }, 3);
    mlxvk_array s = floats(device, (float[]){ 1, 2, 3, 4 }, (int[]){ 1, 1, 2, 2 }, 4), x = floats(device, (float[]){ 5, 6 }, (int[]){ 1, 1, 1, 2 }, 4);
    mlxvk_array nothing = floats(device, NULL, (int[]){ 1, 1, 0, 2 }, 4), one = floats(device, (float[]){ 1 }, (int[]){ 1, 1, 1 }, 3), out = { NULL };
    mlxvk_vector_array res = { NULL };
    (void)state;
    OK(mlxvk_fast_gated_delta_update(&res, q, q, q, g, g, s, none, stream), stream);
    OK(mlxvk_vector_array_get(&out, res, 1), stream);
    expect_floats(out, (float[]){ 1, 2, 3, 4 }, 4, 0, 0, stream);
    OK(mlxvk_fast_gated_delta_update_vjp(&res, q, q, q, g, g, none, q, s, stream), stream);
    OK(mlxvk_vector_array_get(&out, res, 5), stream);
    expect_floats(out, (float[]){ 1, 2, 3, 4 }, 4, 0, 0, stream);
    OK(mlxvk_astype(&out, s, MLXVK_FLOAT16, stream), stream);
    OK(mlxvk_fast_gated_delta_update_vjp(&res, q, q, q, g, g, out, q, s, stream), stream);
    OK(mlxvk_vector_array_get(&out, res, 5), stream);
    expect(out, MLXVK_FLOAT16, (double[]){ 1, 2, 3, 4 }, 4, 0, "the state's gradient, of its dtype");
    OK(mlxvk_fast_scaled_dot_product_attention_vjp(&res, x, nothing, nothing, 1, "", none, none, x, none, x, stream), stream);
    OK(mlxvk_vector_array_get(&out, res, 0), stream);
    expect_floats(out, (float[]){ 0, 0 }, 2, 0, 0, stream);
    REFUSED(mlxvk_fast_gated_delta_update(&res, x, q, x, one, one, none, none, stream), MLXVK_ERROR_SHAPE, stream, "queries");
    REFUSED(mlxvk_fast_gated_delta_update(&res, x, x, x, g, one, none, none, stream), MLXVK_ERROR_SHAPE, stream, "gates");
    REFUSED(mlxvk_fast_gated_delta_update(&res, x, x, x, one, one, x, none, stream), MLXVK_ERROR_SHAPE, stream, "state");
    REFUSED(mlxvk_fast_gated_delta_update(&res, x, x, x, one, one, s, one, stream), MLXVK_ERROR_SHAPE, stream, "mask");
    REFUSED(mlxvk_fast_gated_delta_update_vjp(&res, x, x, x, one, one, s, s, none, stream), MLXVK_ERROR_SHAPE, stream, "cotangent");
    REFUSED(mlxvk_fast_scaled_dot_product_attention_vjp(&res, x, x, x, 1, "", none, none, s, none, s, stream), MLXVK_ERROR_SHAPE, stream, "output");
    REFUSED(mlxvk_fast_scaled_dot_product_attention_vjp(&res, x, x, x, 1, "no", none, none, x, none, x, stream), MLXVK_ERROR_ARGUMENT, stream, "no");
    for (size_t i = 0; i < 7; i++) mlxvk_array_free(((mlxvk_array[]){ q, g, s, x, nothing, one, out })[i]);
    mlxvk_vector_array_free(res);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropies), cmocka_unit_test(edges_of_cross_entropy),
        cmocka_unit_test(cross_entropies_far_below), cmocka_unit_test(gated_deltas), cmocka_unit_test(gated_delta_gradients),
        cmocka_unit_test(gated_deltas_of_heads_beside), cmocka_unit_test(ropes_of_features_across), cmocka_unit_test(attention_gradients),
        cmocka_unit_test(attention_gradients_of_heads_beside), cmocka_unit_test(attention_gradients_that_do_not_fit),
        cmocka_unit_test(floors_of_quotients), cmocka_unit_test(integers_by_zero),
        cmocka_unit_test(empty_and_refused),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_group("primitives", tests, set_up_poisoned, tear_down);
}
