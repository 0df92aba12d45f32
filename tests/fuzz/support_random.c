/* Random operations: each takes operands that fit from what the program has. */
#include "support_program.h"

#include <string.h>
#include "unit/numbers.h"

static const char *one_of(const char *const *names, int count) { return names[favourite(count)]; }
#define NAMES(...) (const char *const[]){ __VA_ARGS__ }
#define PICK(...) one_of(NAMES(__VA_ARGS__), (int)(sizeof(NAMES(__VA_ARGS__)) / sizeof(char *)))

/* Frees an operand that was made for one operation, mostly: then the results in between belong to nobody. */
static void done_with(int variable, int before)
{
    if (variable != NONE && variable >= before && chance(75)) note(FREE, variable);
}

static int next_variable(void)
{
    int most = NONE;
    for (int i = 0; i < MOST_VARIABLES; i++) if (made->latest[i] != NONE) most = i;
    return most + 1;
}

static int random_axis(int v) { return of(v)->ndim ? between(-of(v)->ndim, of(v)->ndim - 1) : 0; }

/* ---- elementwise ---- */

static void unary(void)
{
    int from = next_variable(), a = any(true);
    if (a == NONE) return;
    simple(PICK("sigmoid", "sigmoid", "tanh", "abs", "negative", "square", "sin", "cos", "erf", "logical_not",
                "floor", "exp"), a);
    done_with(a, from);
}

static int partner(int a)
{
    const struct tensor t = *of(a);
    int shape[MOST_DIMS], ndim = t.ndim, kind = below(10);
    memcpy(shape, t.shape, sizeof shape);
    if (kind < 2 && ndim) shape[below(ndim)] = 1;
    if (kind == 2 && ndim > 1) { ndim--; memmove(shape, shape + 1, (size_t)ndim * sizeof *shape); }
    if (kind == 3) ndim = 0;
    return shaped(chance(90) ? t.dtype : any_dtype(), shape, ndim);
}

static void binary(void)
{
    int from = next_variable(), a = any(chance(85)), b = a == NONE ? NONE : partner(a);
    if (b == NONE) return;
    if (chance(30)) { int t = a; a = b; b = t; }
    const char *op = PICK("add", "add", "add", "subtract", "multiply", "multiply", "multiply", "maximum", "minimum",
                          "less", "equal", "logical_and", "greater_equal");
    struct statement s = call_of(op);
    with_input(&s, "a", a);
    with_input(&s, "b", b);
    if (chance(15)) emit_in_place(s, a);
    else emit(s);
    done_with(a, from);
    done_with(b, from);
}

/* A few of one shape, each on the last one. */
static void chain(void)
{
    int v = any(true);
    for (int k = between(2, 5); k > 0 && v != NONE; k--) {
        int last = v;
        if (chance(45)) v = simple(PICK("sigmoid", "tanh", "abs", "negative", "square", "cos"), last);
        else {
            int with = chance(40) ? same_shape_view(last) : partner(last);
            v = pair(PICK("add", "multiply", "subtract", "maximum"), last, with);
        }
        if (v != NONE && chance(80)) note(FREE, last);
    }
}

static void select_one(void)
{
    int from = next_variable(), x = any(chance(80)), y = x == NONE ? NONE : partner(x);
    if (y == NONE) return;
    struct statement s = call_of("where");
    with_input(&s, "condition", shaped(MLXVK_BOOL, of(x)->shape, of(x)->ndim));
    with_input(&s, "x", x);
    with_input(&s, "y", y);
    emit(s);
    done_with(y, from);
}

static void cast(void)
{
    int a = any(false);
    struct statement s = call_of("astype");
    if (a == NONE) { statement_free(&s); return; }
    with_input(&s, "a", a);
    with_text(&s, "dtype", dtype_text(any_dtype()));
    emit(s);
}

/* ---- along an axis ---- */

static void reduction(void)
{
    int from = next_variable(), a = any(chance(85));
    if (a == NONE || !of(a)->ndim) return;
    struct statement s = call_of(PICK("sum_axis", "sum_axis", "mean_axis", "max_axis", "min_axis", "logsumexp_axis",
                                      "all_axis", "any_axis", "argmax_axis", "argmin_axis"));
    with_input(&s, "a", a);
    with_number(&s, "axis", random_axis(a));
    with_truth(&s, "keepdims", chance(50));
    emit(s);
    done_with(a, from);
}

static void whole_reduction(void)
{
    int a = any(true), axes[MOST_DIMS], n = 0;
    if (a == NONE) return;
    for (int i = 0; i < of(a)->ndim; i++) if (chance(60)) axes[n++] = i;
    struct statement s = call_of(PICK("sum_axes", "mean_axes", "max_axes", "logsumexp_axes"));
    with_input(&s, "a", a);
    with_ints(&s, "axes", axes, n);
    with_truth(&s, "keepdims", chance(50));
    emit(s);
}

static void scan(void)
{
    int a = any(true);
    if (a == NONE || !of(a)->ndim) return;
    struct statement s = call_of(PICK("cumsum", "cumsum", "cummax", "cummin", "logcumsumexp", "cumprod"));
    with_input(&s, "a", a);
    with_number(&s, "axis", random_axis(a));
    with_truth(&s, "reverse", chance(50));
    with_truth(&s, "inclusive", chance(70));
    emit(s);
}

static void by_axis(void)
{
    int a = any(chance(85));
    if (a == NONE || !of(a)->ndim) return;
    const char *op = PICK("softmax_axis", "softmax_axis", "sort_axis", "argsort_axis", "roll_axis", "repeat_axis");
    struct statement s = call_of(op);
    with_input(&s, !strcmp(op, "repeat_axis") ? "arr" : "a", a);
    with_number(&s, "axis", random_axis(a));
    if (!strcmp(op, "softmax_axis")) with_truth(&s, "precise", chance(50));
    if (!strcmp(op, "roll_axis")) with_ints(&s, "shift", (int[]){ between(-3, 5) }, 1);
    if (!strcmp(op, "repeat_axis")) with_number(&s, "repeats", between(1, 3));
    emit(s);
}

static void joined(void)
{
    int a = any(chance(85)), shape[MOST_DIMS];
    if (a == NONE || !of(a)->ndim) return;
    struct tensor t = *of(a);
    int axis = below(t.ndim), others = between(1, 2);
    bool stack = chance(30);
    struct statement s = call_of(stack ? "stack_axis" : "concatenate_axis");
    with_listed(&s, "arrays", a);
    memcpy(shape, t.shape, sizeof shape);
    for (int i = 0; i < others; i++) {
        if (!stack && chance(50)) shape[axis] = between(1, 4);
        with_listed(&s, "arrays", shaped(t.dtype, shape, t.ndim));
    }
    with_number(&s, "axis", axis);
    emit(s);
}

/* ---- places that an index says ---- */

static int indices(int below_this, const int *shape, int ndim, bool distinct)
{
    return fresh(chance(90) ? MLXVK_INT32 : MLXVK_UINT32, shape, ndim, distinct ? DISTINCT : INDEX, below_this);
}

static void taken(void)
{
    int a = any(chance(85)), shape[MOST_DIMS] = { 0 }, ndim = between(0, 2);
    if (a == NONE || !of(a)->ndim) return;
    struct tensor t = *of(a);
    int axis = below(t.ndim);
    bool along = chance(40);
    for (int i = 0; i < ndim; i++) shape[i] = between(1, 6);
    if (along) { ndim = t.ndim; memcpy(shape, t.shape, sizeof shape); shape[axis] = between(1, 6); }
    int i = indices(t.shape[axis], shape, ndim, false);
    struct statement s = call_of(along ? "take_along_axis" : "take_axis");
    with_input(&s, "a", a);
    with_input(&s, "indices", i);
    with_number(&s, "axis", axis);
    emit(s);
    if (i != NONE) note(FREE, i);
}

static void scattered(void)
{
    int a = any(true), shape[MOST_DIMS + 1];
    if (a == NONE || !of(a)->ndim || of(a)->ndim >= MOST_DIMS) return;
    struct tensor t = *of(a);
    int axis = below(t.ndim), n = between(1, 6), i = indices(t.shape[axis], &n, 1, false);
    shape[0] = n;
    memcpy(shape + 1, t.shape, sizeof t.shape / MLXVK_MAX_NDIM * MOST_DIMS);
    shape[1 + axis] = 1;
    struct statement s = call_of(PICK("scatter_single", "scatter_add_single", "scatter_add_single",
                                      "scatter_max_single", "scatter_prod_single"));
    with_input(&s, "a", a);
    with_input(&s, "indices", i);
    with_input(&s, "updates", shaped(t.dtype, shape, t.ndim + 1));
    with_number(&s, "axis", axis);
    if (chance(40)) emit_in_place(s, a);
    else emit(s);
}

static void added_along(void)
{
    int a = any(true), shape[MOST_DIMS];
    if (a == NONE || !of(a)->ndim) return;
    struct tensor t = *of(a);
    int axis = below(t.ndim);
    memcpy(shape, t.shape, sizeof shape);
    shape[axis] = between(1, t.shape[axis]);
    bool put = chance(40);
    struct statement s = call_of(put ? "put_along_axis" : "scatter_add_axis");
    with_input(&s, "a", a);
    if (put) {                                             /* of two for one place any may stay */
        int ones[MOST_DIMS] = { 1, 1, 1, 1, 1, 1 };
        ones[axis] = shape[axis];
        int i = indices(t.shape[axis], ones, t.ndim, true);
        with_input(&s, "indices", i == NONE ? NONE : broadcast(i, shape, t.ndim));
    } else with_input(&s, "indices", indices(t.shape[axis], shape, t.ndim, false));
    with_input(&s, "values", shaped(t.dtype, shape, t.ndim));
    with_number(&s, "axis", axis);
    if (chance(40)) emit_in_place(s, a);
    else emit(s);
}

static void sliced_update(void)
{
    int from = next_variable(), x = any(chance(85));
    if (x == NONE || !of(x)->ndim) return;
    struct tensor t = *of(x);
    struct region g = random_region(t.shape, t.ndim);
    int view = chance(40) ? view_of(x) : NONE;             /* read afterwards */
    int with = chance(80) ? shaped(t.dtype, g.shape, g.ndim) : NONE;
    if (with == NONE) with = shaped(t.dtype, g.shape + 1, g.ndim - 1);
    if (with == NONE) return;
    const char *op = PICK("slice_update", "slice_update", "slice_update_add", "slice_update_prod", "slice_update_max",
                          "slice_update_min");
    update(op, x, with, &g, chance(70));
    done_with(with, from);
    if (view != NONE && view != x && chance(30)) note(READ, view);
}

/* With a place that is an array. */
static void dynamic_slice(void)
{
    int x = any(true), size[MOST_DIMS], axis;
    if (x == NONE || !of(x)->ndim) return;
    struct tensor t = *of(x);
    axis = below(t.ndim);
    memcpy(size, t.shape, sizeof size);
    size[axis] = between(1, t.shape[axis]);
    int start = fresh(MLXVK_INT32, (int[]){ 1 }, 1, INDEX, t.shape[axis] - size[axis] + 1);
    bool write = chance(50);
    struct statement s = call_of(write ? "slice_update_dynamic" : "slice_dynamic");
    with_input(&s, write ? "src" : "a", x);
    if (write) with_input(&s, "update", shaped(t.dtype, size, t.ndim));
    with_input(&s, "start", start);
    with_ints(&s, "axes", &axis, 1);
    if (!write) with_ints(&s, "slice_size", size, t.ndim);
    if (write && chance(60)) emit_in_place(s, x);
    else emit(s);
}

/* ---- products ---- */

static void matrices(void)
{
    int a = any(true), shape[MOST_DIMS];
    if (a == NONE || of(a)->ndim < 1 || of(a)->ndim > 4) return;
    struct tensor t = *of(a);
    int n = random_size(), k = t.shape[t.ndim - 1], b;
    memcpy(shape, t.shape, sizeof shape);
    if (t.ndim < 2 || chance(60)) b = chance(50) ? shaped(t.dtype, (int[]){ k, n }, 2) : NONE;
    else { shape[t.ndim - 2] = k; shape[t.ndim - 1] = n; b = shaped(t.dtype, shape, t.ndim); }
    if (b == NONE) b = transposed(shaped(t.dtype, (int[]){ n, k }, 2), (int[]){ 1, 0 });
    bool add = chance(30);
    struct statement s = call_of(add ? "addmm" : "matmul");
    if (add) with_input(&s, "c", shaped(t.dtype, &n, 1));
    with_input(&s, "a", a);
    with_input(&s, "b", b);
    if (add) with_number(&s, "alpha", chance(50) ? 1 : 0.5), with_number(&s, "beta", chance(50) ? 1 : -2);
    emit(s);
}

int random_product(int x)
{
    if (x == NONE || !of(x)->ndim || of(x)->shape[of(x)->ndim - 1] % 32) return NONE;
    struct weight w = quantized_weight(of(x)->dtype, 8 * between(1, 8), of(x)->shape[of(x)->ndim - 1]);
    return product(x, &w);
}

static void quantized(void)
{
    int x = any_variable(true);
    if (x == NONE || !of(x)->ndim || of(x)->shape[of(x)->ndim - 1] % 32 || of(x)->ndim > 3)
        x = shaped(any_float(), (int[]){ chance(50) ? 1 : between(1, 20), 32 * between(1, 3) }, 2);
    random_product(x);
}

/* ---- the operations of a transformer ---- */

int normed(int x)
{
    if (x == NONE || !of(x)->ndim) return NONE;
    int width = of(x)->shape[of(x)->ndim - 1];
    mlxvk_dtype dtype = of(x)->dtype;
    int weight = chance(75) ? (chance(50) ? fresh(dtype, &width, 1, UNIFORM, 0) : shaped(dtype, &width, 1)) : NONE;
    struct statement s = call_of("fast_rms_norm");
    with_input(&s, "x", x);
    with_input(&s, "weight", weight);
    with_number(&s, "eps", 0.01);
    return emit(s);
}

static void norm(void)
{
    int x = any(true);
    if (x == NONE || !of(x)->ndim) return;
    if (chance(70)) { normed(x); return; }
    int width = of(x)->shape[of(x)->ndim - 1];
    struct statement s = call_of("fast_layer_norm");
    with_input(&s, "x", x);
    with_input(&s, "weight", chance(80) ? shaped(of(x)->dtype, &width, 1) : NONE);
    with_input(&s, "bias", chance(50) ? shaped(of(x)->dtype, &width, 1) : NONE);
    with_number(&s, "eps", 0.01);
    emit(s);
}

int roped(int x, int dims)
{
    if (x == NONE || of(x)->ndim < 3) return NONE;
    bool array = chance(40);
    struct statement s = call_of(array ? "fast_rope_dynamic" : "fast_rope");
    with_input(&s, "x", x);
    with_number(&s, "dims", dims);
    with_truth(&s, "traditional", chance(30));
    with_number(&s, "base", 10000);
    with_number(&s, "scale", chance(80) ? 1 : 0.5);
    int batch = of(x)->shape[0];
    if (array) with_input(&s, "offset", fresh(MLXVK_INT32, &batch, chance(50) ? 1 : batch == 1 ? 0 : 1, INDEX, 20));
    else with_number(&s, "offset", chance(50) ? 0 : below(20));
    with_input(&s, "freqs", NONE);
    return emit(s);
}

static void rope(void)
{
    int x = any_variable(true);
    static const int widths[] = { 8, 16, 32, 64 };
    if (x == NONE || of(x)->ndim < 3 || of(x)->shape[of(x)->ndim - 1] < 4 || chance(40))
        x = shaped(any_float(), (int[]){ between(1, 2), between(1, 3), between(1, 6), widths[favourite(4)] }, 4);
    if (x == NONE) return;
    int width = of(x)->shape[of(x)->ndim - 1];
    roped(x, chance(80) ? width / 2 * 2 : width / 4 * 2);
}

static void attention(void)
{
    static const int widths[] = { 8, 32, 64, 64, 80, 128 };
    int batch = chance(70) ? 1 : 2, groups = between(1, 2), heads = groups * between(1, 2);
    int width = widths[favourite(6)];
    int queries = chance(50) ? 1 : between(2, 12), keys = chance(30) ? between(1, 4) : between(5, 40);
    mlxvk_dtype dtype = any_float();
    bool mask = chance(30), causal = !mask && chance(50);
    if (causal && queries > keys && chance(80)) queries = keys;
    int q = shaped(dtype, (int[]){ batch, heads, queries, width }, 4);
    int k = shaped(dtype, (int[]){ batch, groups, keys, width }, 4);
    int v = shaped(dtype, (int[]){ batch, groups, keys, width }, 4);
    struct statement s = call_of("fast_scaled_dot_product_attention");
    with_input(&s, "queries", q);
    with_input(&s, "keys", k);
    with_input(&s, "values", v);
    with_input(&s, "mask_arr", mask ? shaped(dtype, (int[]){ queries, keys }, 2) : NONE);
    with_input(&s, "sinks", NONE);
    with_number(&s, "scale", 0.25);
    with_text(&s, "mask_mode", mask ? "array" : causal ? "causal" : "");
    emit(s);
}

static void view(void)
{
    int v = any(chance(85));
    if (v != NONE) view_of(v);
}

static void other_copy(void)
{
    int v = any(chance(85));
    if (v == NONE) return;
    struct statement s = call_of(PICK("copy", "contiguous", "contiguous", "tile", "pad"));
    const char *op = s.op->name;
    int axes[MOST_DIMS], low[MOST_DIMS], high[MOST_DIMS], n = of(v)->ndim;
    for (int i = 0; i < n; i++) axes[i] = i, low[i] = below(3), high[i] = below(3);
    with_input(&s, !strcmp(op, "tile") ? "arr" : "a", v);
    if (!strcmp(op, "contiguous")) with_truth(&s, "allow_col_major", chance(50));
    if (!strcmp(op, "tile")) with_ints(&s, "reps", (int[]){ between(1, 3), between(1, 2) }, between(1, 2));
    if (!strcmp(op, "pad")) {
        with_input(&s, "pad_value", NONE);
        with_ints(&s, "axes", axes, n);
        with_ints(&s, "low_pad_size", low, n);
        with_ints(&s, "high_pad_size", high, n);
        with_text(&s, "mode", "constant");
    }
    emit(s);
}

void random_operation(void)
{
    static const struct { void (*make)(void); int weight; } table[] = {
        { unary, 8 }, { binary, 14 }, { chain, 10 }, { select_one, 3 }, { cast, 3 }, { reduction, 7 },
        { whole_reduction, 2 }, { scan, 4 }, { by_axis, 6 }, { joined, 4 }, { taken, 5 }, { scattered, 4 },
        { added_along, 2 }, { sliced_update, 14 }, { dynamic_slice, 4 }, { matrices, 7 }, { quantized, 7 },
        { norm, 7 }, { rope, 5 }, { attention, 4 }, { view, 12 }, { other_copy, 3 },
    };
    int all = 0, at = 0, weight[sizeof table / sizeof *table];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        all += weight[i] = is_favourite((int)i) ? 8 * table[i].weight : table[i].weight;
    all = below(all);
    while (all >= weight[at]) all -= weight[at++];
    table[at].make();
}
