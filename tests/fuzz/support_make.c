/* Random operations on what a program has so far. A statement is run by the reference as soon as it is made: what
 * cannot be run, or gives what cannot be compared, does not become part of the program. */
#include "support_program.h"

#include <stdlib.h>
#include <string.h>
#include "unit/numbers.h"

struct program *making;
struct reference *made;

static int variables;                                      /* of the program so far */
static mlxvk_dtype main_dtype;                             /* of most of its floating data */
static bool two_streams;

/* Most of the time of a run goes into pipelines, one for each operation, dtype and layout. So a block of programs has
 * favourites: of each list of choices the same one, mostly, and half of the operations. */
enum { BLOCK = 48 };
static uint32_t block;

static uint32_t block_hash(uint32_t what)
{
    uint32_t h = (block * 0x9e3779b1u) ^ (what * 0x85ebca6bu + 0x27d4eb2fu);
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    return h ^ h >> 13;
}

int favourite(int count) { return chance(75) ? (int)(block_hash((uint32_t)count) % (uint32_t)count) : below(count); }
bool is_favourite(int number) { return block_hash(1000 + (uint32_t)number) & 1; }

/* ---- statements ---- */

bool is_there(int variable) { return variable != NONE && made->latest[variable] != NONE; }

/* Where it is gone: a scalar, of which statements cannot be made. */
const struct tensor *of(int variable)
{
    static const struct tensor nothing = { 0 };
    return is_there(variable) ? &made->value[made->latest[variable]].tensor : &nothing;
}
mlxvk_dtype float_dtype(void) { return main_dtype; }

static bool add(struct statement s)
{
    if (making->count == MOST_STATEMENTS - 8) { statement_free(&s); return false; }
    s.stream = two_streams && chance(40);
    making->statement[making->count] = s;
    if (reference_step(made, making, making->count)) { making->count++; return true; }
    statement_free(&s);
    return false;
}

int emit_in_place(struct statement s, int variable)
{
    for (int k = 0; k < s.inputs; k++)
        if (s.in[k].variable != NONE && !is_there(s.in[k].variable)) { statement_free(&s); return NONE; }
    s.variable = variable;
    return add(s) ? variable : NONE;
}

int emit(struct statement s)
{
    if (variables == MOST_VARIABLES) { statement_free(&s); return NONE; }
    int res = emit_in_place(s, variables);
    variables += res != NONE;
    return res;
}

void note(enum kind kind, int variable)
{
    if (variable != NONE && !is_there(variable)) return;
    add((struct statement){ .kind = kind, .variable = variable });
}

mlxvk_dtype any_float(void)
{
    return chance(94) ? main_dtype : ((mlxvk_dtype[]){ MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16 })[below(3)];
}

mlxvk_dtype any_dtype(void)
{
    static const mlxvk_dtype others[] = { MLXVK_INT32, MLXVK_INT32, MLXVK_BOOL, MLXVK_UINT8,
                                          MLXVK_INT8, MLXVK_UINT32, MLXVK_INT16, MLXVK_INT64 };
    return chance(80) ? any_float() : others[favourite(8)];
}

int fresh(mlxvk_dtype dtype, const int *shape, int ndim, enum values values, int limit)
{
    struct statement s = { .kind = DATA, .data = { .dtype = dtype, .ndim = ndim, .values = values, .limit = limit } };
    memcpy(s.data.shape, shape, (size_t)ndim * sizeof *shape);
    s.data.seed = (uint32_t)below(1000);
    return emit(s);
}

/* ---- what there is ---- */

/* A random one of those that `fits` takes, mostly a late one. */
static int choose(bool (*fits)(const struct tensor *t, const void *user), const void *user)
{
    int found = NONE, seen = 0;
    for (int i = 0; i < variables; i++)
        if (is_there(i) && fits(of(i), user)) if (chance(100 / ++seen) || chance(15)) found = i;
    return found;
}

static bool floats(const struct tensor *t, const void *user) { (void)user; return dtype_is_float(t->dtype); }
static bool all_of_them(const struct tensor *t, const void *user) { (void)t, (void)user; return true; }
static bool alike(const struct tensor *t, const void *user)
{
    const struct tensor *u = user;
    return t->dtype == u->dtype && t->ndim == u->ndim &&
           !memcmp(t->shape, u->shape, (size_t)t->ndim * sizeof *t->shape);
}
static bool large_enough(const struct tensor *t, const void *user)
{
    const struct tensor *u = user;
    return t->dtype == u->dtype && tensor_size(t) >= tensor_size(u);
}

int any_variable(bool floating) { return choose(floating ? floats : all_of_them, NULL); }

/* Where vectors of elements begin, mostly: many fast paths ask for that. */
static int aligned(int offset) { return chance(70) ? offset / 4 * 4 : offset; }

int random_size(void)
{
    static const int sizes[] = { 1, 2, 3, 4, 4, 5, 8, 8, 8, 16, 16, 32, 33, 64 };
    return chance(12) ? between(1, 12) : sizes[below(14)];
}

int random_shape(int *shape)
{
    int ndim = chance(10) ? between(0, 5) : between(1, 3), size = 1;
    for (int i = 0; i < ndim; i++) {
        shape[i] = random_size();
        if (size * shape[i] > 4096) shape[i] = 1;
        size *= shape[i];
    }
    if (ndim && chance(10) && size < 4096 && shape[ndim - 1] < 64) shape[ndim - 1] *= between(2, 6);
    return ndim;
}

int any(bool floating)
{
    int shape[MOST_DIMS], found = chance(85) ? any_variable(floating) : NONE;
    if (found != NONE) return chance(30) ? view_of(found) : found;
    int ndim = random_shape(shape);
    return fresh(floating ? any_float() : any_dtype(), shape, ndim, UNIFORM, 0);
}

/* ---- views ---- */

int simple(const char *op, int a)
{
    struct statement s = call_of(op);
    with_input(&s, "a", a);
    return emit(s);
}

int pair(const char *op, int a, int b)
{
    struct statement s = call_of(op);
    with_input(&s, "a", a);
    with_input(&s, "b", b);
    return emit(s);
}

int reshaped(int variable, const int *shape, int ndim)
{
    struct statement s = call_of("reshape");
    with_input(&s, "a", variable);
    with_ints(&s, "shape", shape, ndim);
    return emit(s);
}

int broadcast(int variable, const int *shape, int ndim)
{
    struct statement s = call_of("broadcast_to");
    with_input(&s, "a", variable);
    with_ints(&s, "shape", shape, ndim);
    return emit(s);
}

int transposed(int variable, const int *axes)
{
    struct statement s = call_of("transpose_axes");
    if (variable == NONE) { statement_free(&s); return NONE; }
    with_input(&s, "a", variable);
    with_ints(&s, "axes", axes, of(variable)->ndim);
    return emit(s);
}

void lay_axis(struct region *g, int axis, int first, int n, int step)
{
    g->start[axis] = first;
    g->step[axis] = step;
    g->shape[axis] = n;
    g->stop[axis] = first + (n - 1) * step + (step > 0 ? 1 : -1);
    if (g->stop[axis] < 0) g->stop[axis] = -1000000;       /* -1 would be the last place */
}

/* A random place for n elements along an axis of `size`. */
static void place_axis(struct region *g, int axis, int size, int n)
{
    int most = n > 1 ? (size - 1) / (n - 1) : 1, step = chance(70) || most < 2 ? 1 : between(2, most < 3 ? most : 3);
    int first = below(size - (n - 1) * step);
    if (chance(n == size ? 8 : 25)) lay_axis(g, axis, first + (n - 1) * step, n, -step);
    else lay_axis(g, axis, first, n, step);
}

struct region random_region(const int *shape, int ndim)
{
    struct region g = { .ndim = ndim };
    for (int i = 0; i < ndim; i++) {
        int n = shape[i], kind = below(10);
        if (kind < 5) lay_axis(&g, i, 0, n, 1);
        else if (kind == 5) lay_axis(&g, i, n - 1, n, -1);
        else if (kind == 6 && n > 1) lay_axis(&g, i, chance(50) ? 0 : n / 2, n / 2, 1);
        else if (kind == 7 && n > 1) lay_axis(&g, i, below(2), n / 2, 2);
        else place_axis(&g, i, n, between(1, n));
    }
    return g;
}

bool region_for(struct region *g, const int *shape, int ndim, const int *wanted)
{
    g->ndim = ndim;
    for (int i = 0; i < ndim; i++) if (shape[i] < wanted[i]) return false;
    for (int i = 0; i < ndim; i++) place_axis(g, i, shape[i], wanted[i]);
    return true;
}

static void with_region(struct statement *s, const struct region *g)
{
    with_ints(s, "start", g->start, g->ndim);
    with_ints(s, "stop", g->stop, g->ndim);
    with_ints(s, "strides", g->step, g->ndim);
}

int slice_of(int variable, const struct region *g)
{
    struct statement s = call_of("slice");
    with_input(&s, "a", variable);
    with_region(&s, g);
    return emit(s);
}

static int random_slice(int v)
{
    struct region g = random_region(of(v)->shape, of(v)->ndim);
    return slice_of(v, &g);
}

static int random_transpose(int v)
{
    int axes[MOST_DIMS], n = of(v)->ndim;
    for (int i = 0; i < n; i++) axes[i] = i;
    for (int i = n - 1; i > 0; i--) { int k = below(i + 1), t = axes[i]; axes[i] = axes[k]; axes[k] = t; }
    return transposed(v, axes);
}

/* Factors in another order, or split, or joined. */
static int random_reshape(int v)
{
    int shape[MOST_DIMS], n = 0, rest = (int)tensor_size(of(v));
    while (n < 3 && chance(70)) {
        static const int factors[] = { 2, 4, 8, 16, 3, 5, 32 };
        int f = factors[below(7)];
        if (rest % f) continue;
        shape[n++] = f;
        rest /= f;
    }
    if (chance(50)) shape[n++] = rest;
    else { memmove(shape + 1, shape, (size_t)n++ * sizeof *shape); shape[0] = rest; }
    return reshaped(v, shape, n);
}

static int random_broadcast(int v)
{
    const struct tensor *t = of(v);
    int shape[MOST_DIMS], lead = t->ndim < MOST_DIMS - 1 && chance(50);
    for (int i = 0; i < t->ndim; i++) shape[i + lead] = t->shape[i] == 1 && chance(70) ? between(1, 8) : t->shape[i];
    if (lead) shape[0] = between(1, 4);
    return broadcast(v, shape, t->ndim + lead);
}

/* A window of the given shape in the elements of v, row-major, with strides of any kind. */
static int strided(int v, const int *shape, int ndim)
{
    struct statement s = call_of("as_strided");
    int strides[MOST_DIMS], size = (int)tensor_size(of(v)), low = 0, high = 0, step = chance(70) ? 1 : between(0, 2);
    for (int i = ndim - 1; i >= 0; i--) {
        int most = shape[i] > 1 ? (size - 1 - (high - low)) / (shape[i] - 1) : 1;
        strides[i] = step > most ? (chance(50) ? most : 0) : step;
        step = chance(75) ? step * shape[i] : between(0, 9);
        if (chance(12)) strides[i] = -strides[i];
        *(strides[i] < 0 ? &low : &high) += strides[i] * (shape[i] - 1);
    }
    with_input(&s, "a", v);
    with_ints(&s, "shape", shape, ndim);
    with_ints(&s, "strides", strides, ndim);
    with_number(&s, "offset", low ? -low + below(size - (high - low)) : aligned(below(size - high)));
    return emit(s);
}

static int random_strided(int v)
{
    int shape[MOST_DIMS], ndim = random_shape(shape);
    return strided(v, shape, ndim);
}

static int random_axis_view(int v)
{
    const struct tensor *t = of(v);
    struct statement s = call_of(t->ndim > 1 && chance(60) ? (chance(50) ? "swapaxes" : "diagonal") : "expand_dims");
    with_input(&s, "a", v);
    if (!strcmp(s.op->name, "expand_dims")) with_number(&s, "axis", between(-1, 0));
    else {
        int a = below(t->ndim), b = (a + 1 + below(t->ndim - 1)) % t->ndim;
        if (!strcmp(s.op->name, "diagonal")) with_number(&s, "offset", chance(60) ? 0 : between(-2, 2));
        with_number(&s, "axis1", a);
        with_number(&s, "axis2", b);
    }
    return emit(s);
}

int view_of(int v)
{
    static int (*const makers[])(int) = { random_slice, random_slice, random_slice, random_transpose, random_transpose,
                                          random_reshape, random_broadcast, random_strided, random_axis_view };
    if (v == NONE) return NONE;
    int res = makers[below(9)](v);
    return res == NONE ? v : res;
}

/* ---- other views of one memory, of one shape ---- */

static int reversed(int v)
{
    const struct tensor *t = of(v);
    struct region g = { .ndim = t->ndim };
    int axis = t->ndim ? below(t->ndim) : 0;
    for (int i = 0; i < t->ndim; i++) lay_axis(&g, i, i == axis ? t->shape[i] - 1 : 0, t->shape[i], i == axis ? -1 : 1);
    return slice_of(v, &g);
}

static int square_transposed(int v)
{
    const struct tensor *t = of(v);
    for (int i = t->ndim - 1; i > 0; i--) {
        if (t->shape[i] != t->shape[i - 1] || t->shape[i] == 1) continue;
        struct statement s = call_of("swapaxes");
        with_input(&s, "a", v);
        with_number(&s, "axis1", i);
        with_number(&s, "axis2", i - 1);
        return emit(s);
    }
    return NONE;
}

/* A window of the flattened array, repeated. */
static int window(int v)
{
    int shape[MOST_DIMS], ndim = of(v)->ndim, n, first, axis = 0, size = (int)tensor_size(of(v));
    memcpy(shape, of(v)->shape, sizeof shape);
    while (axis < ndim && shape[axis] == 1) axis++;
    if (axis == ndim) return NONE;
    n = size / shape[axis];
    shape[axis] = 1;
    first = aligned(below(size - n + 1));
    int flat = reshaped(v, &size, 1), full[MOST_DIMS];
    if (flat == NONE) return NONE;
    struct region g = { .ndim = 1 };
    memcpy(full, of(v)->shape, sizeof full);
    lay_axis(&g, 0, first, n, 1);
    int part = slice_of(flat, &g);
    note(FREE, flat);
    if (part == NONE) return NONE;
    int block = reshaped(part, shape, ndim);
    note(FREE, part);
    if (block == NONE) return NONE;
    int res = broadcast(block, full, ndim);
    note(FREE, block);
    return res;
}

/* Half of it along an axis, repeated. */
static int half_repeated(int v)
{
    int shape[MOST_DIMS], full[MOST_DIMS], ndim = of(v)->ndim, axis = ndim ? below(ndim) : 0;
    if (!ndim || of(v)->shape[axis] < 2) return NONE;
    memcpy(full, of(v)->shape, sizeof full);
    memcpy(shape, full, sizeof full);
    struct region g = { .ndim = ndim };
    for (int i = 0; i < ndim; i++) lay_axis(&g, i, i == axis ? below(full[i]) : 0, i == axis ? 1 : full[i], 1);
    int part = slice_of(v, &g);
    if (part == NONE) return NONE;
    int res = broadcast(part, full, ndim);
    note(FREE, part);
    return res;
}

static int same_strided(int v) { return strided(v, of(v)->shape, of(v)->ndim); }

/* The other way round and back: the same elements, through two more views. */
static int detour(int v)
{
    int shape[MOST_DIMS], ndim = of(v)->ndim;
    memcpy(shape, of(v)->shape, sizeof shape);
    int other = random_reshape(v), res = other == NONE ? NONE : reshaped(other, shape, ndim);
    note(FREE, other);
    return res;
}

int same_shape_view(int v)
{
    static int (*const makers[])(int) = { reversed, reversed, square_transposed, square_transposed, window, window,
                                          half_repeated, same_strided, detour };
    if (v == NONE) return NONE;
    int res = makers[below(9)](v);
    return res == NONE ? v : res;
}

/* ---- operands of a shape ---- */

/* The first elements of something larger. */
static int carved(const struct tensor *want)
{
    int v = choose(large_enough, want), n = (int)tensor_size(want), size;
    if (v == NONE) return NONE;
    if (chance(30)) return strided(v, want->shape, want->ndim);
    size = (int)tensor_size(of(v));
    int flat = reshaped(v, &size, 1);
    if (flat == NONE) return NONE;
    struct region g = { .ndim = 1 };
    lay_axis(&g, 0, aligned(below(size - n + 1)), n, 1);
    int part = slice_of(flat, &g), res = part == NONE ? NONE : reshaped(part, want->shape, want->ndim);
    note(FREE, flat);
    note(FREE, part);
    return res;
}

/* Part of a larger array made for it, or of one with ones that is repeated. */
static int laid_out(const struct tensor *want)
{
    struct region g = { .ndim = want->ndim };
    int base[MOST_DIMS];
    for (int i = 0; i < want->ndim; i++) base[i] = want->shape[i] * between(1, 2) + below(2);
    if (!region_for(&g, base, want->ndim, want->shape)) return NONE;
    int whole = fresh(want->dtype, base, want->ndim, UNIFORM, 0), res = whole == NONE ? NONE : slice_of(whole, &g);
    if (chance(60)) note(FREE, whole);
    return res;
}

int shaped(mlxvk_dtype dtype, const int *shape, int ndim)
{
    struct tensor want = { .dtype = dtype, .ndim = ndim };
    int res = NONE, kind = below(100);
    memcpy(want.shape, shape, (size_t)ndim * sizeof *shape);
    if (kind < 50) res = choose(alike, &want);
    else if (kind < 70) res = carved(&want);
    else if (kind < 80) res = laid_out(&want);
    if (res != NONE && kind < 12) res = same_shape_view(res);
    return res == NONE ? fresh(dtype, shape, ndim, UNIFORM, 0) : res;
}

int update(const char *op, int variable, int with, const struct region *g, bool in_place)
{
    struct statement s = call_of(op);
    with_input(&s, "src", variable);
    with_input(&s, "update", with);
    with_region(&s, g);
    return in_place ? emit_in_place(s, variable) : emit(s);
}

struct weight quantized_weight(mlxvk_dtype dtype, int rows, int columns)
{
    static const int widths[] = { 4, 4, 4, 8, 2, 3, 5, 6 };
    struct weight w = { .dtype = dtype, .rows = rows, .columns = columns };
    w.bits = widths[favourite(8)];
    w.group = 32 << favourite(2);
    if (columns % w.group) w.group = 32;
    w.w = fresh(MLXVK_UINT32, (int[]){ rows, columns * w.bits / 32 }, 2, BITS, 0);
    w.scales = fresh(dtype, (int[]){ rows, columns / w.group }, 2, SMALL, 0);
    w.biases = fresh(dtype, (int[]){ rows, columns / w.group }, 2, UNIFORM, 0);
    return w;
}

int product(int x, const struct weight *w)
{
    struct statement s = call_of("quantized_matmul");
    with_input(&s, "x", x);
    with_input(&s, "w", w->w);
    with_input(&s, "scales", w->scales);
    with_input(&s, "biases", w->biases);
    with_truth(&s, "transpose", true);
    with_number(&s, "group_size", w->group);
    with_number(&s, "bits", w->bits);
    with_text(&s, "mode", "affine");
    return emit(s);
}

/* ---- programs ---- */

/* Something happens to what there is, now and then. */
static void random_note(void)
{
    int v = any_variable(false), kind = below(100);
    if (v == NONE) return;
    if (kind < 40) note(FREE, v);
    else if (kind < 60) note(READ, v);
    else if (kind < 70) note(chance(50) ? EVAL : ASYNC, chance(40) ? NONE : v);
    else if (kind < 78) add((struct statement){ .kind = chance(60) ? SUBMIT : WAIT, .variable = NONE });
    else if (variables < MOST_VARIABLES) {
        struct statement s = { .kind = ALIAS, .variable = variables, .in = { { "", v, false } }, .inputs = 1 };
        variables += add(s);
    }
}

void program_make(struct program *p, struct reference *r, uint64_t seed)
{
    static const mlxvk_dtype dtypes[] = { MLXVK_FLOAT32, MLXVK_FLOAT32, MLXVK_BFLOAT16, MLXVK_FLOAT32, MLXVK_FLOAT16 };
    int count;
    now.state = (seed + 1) * 0xd1342543de82ef95u ^ seed << 32;
    *p = (struct program){ .seed = seed, .straight = chance(35) };
    making = p;
    made = r;
    variables = 0;
    block = (uint32_t)(seed / BLOCK);
    if (chance(25)) p->setting = 1 + (int)(block_hash(1) % (SETTINGS - 1));
    main_dtype = dtypes[block_hash(2) % 5];
    two_streams = chance(15);
    reference_begin(r, p->straight);
    count = between(2, 8);
    for (int i = 0; i < count; i++) {
        if (chance(i ? 45 : 80)) random_motif();
        else for (int k = between(1, 4); k > 0; k--) random_operation();
        if (chance(30)) random_note();
    }
}
