/* Two ways to run a program, and the comparison of what they give.
 *
 * The reference has every fusion and donation off, waits after each operation, and never writes in place: a program's
 * value is what its operations give one by one. Its operands are the program's own views, or (`straight`) row-major
 * copies that went through the host. The other way is the one that programs go: recorded, evaluated where they say
 * so, in place where they may.
 *
 * What is exact (moved, compared, integers) must be equal, and where nothing was fused every bit, as then the same
 * kernels ran. Else the two may differ by roundings. A small difference of any tensor's size is let pass; where it is
 * greater, the reference is run some times more with noise of a rounding's size on all that is rounded, and the
 * results may differ by some times what that noise does to them. */
#include "support_program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "unit/numbers.h"

enum { MOST_ELEMENTS = 1 << 16, LARGEST_VALUE = 1000, NOISY_RUNS = 8, NOISE_FACTOR = 6, MOST_PIPELINES = 1000 };

const struct setting settings[SETTINGS] = {
    { "", true, false },
    { "MLX_VK_ENABLE_CHAINS=2 MLX_VK_ENABLE_CHAIN_REDUCE=3", true, false },
    { "MLX_VK_MAX_OPS_PER_BUFFER=3 MLX_VK_ENABLE_REDUCE_JOIN=2 MLX_VK_ENABLE_SUBTRACT_ARGREDUCE=2 MLX_VK_ENABLE_SCALED_CATEGORICAL=2 "
      "MLX_VK_ENABLE_SEARCH_GROUPS=2", true, false },
    { "MLX_VK_MAX_GRID=33", false, true },
    { "MLX_VK_FORCE_STAGING=1", true, false },
    { "MLX_VK_ENABLE_PUSH_DESCRIPTORS=0 MLX_VK_MAX_INFLIGHT_SEQUENCES=1", true, false },
};

/* What the reference runs without. */
static const char *const fusion_gates[] = {
    "MLX_VK_ENABLE_ADD_RMSNORM_NATIVE", "MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16", "MLX_VK_ENABLE_ROPE_CACHE_WRITE",
    "MLX_VK_ENABLE_RMSNORM_ROPE", "MLX_VK_ENABLE_ROPE_SDPA", "MLX_VK_ENABLE_QMM_GROUPED", "MLX_VK_ENABLE_QMM_ADD",
    "MLX_VK_ENABLE_RMSNORM_QMM", "MLX_VK_ENABLE_TAKE_DEQUANTIZE", "MLX_VK_ENABLE_REDUCE_JOIN",
    "MLX_VK_ENABLE_SUBTRACT_ARGREDUCE", "MLX_VK_ENABLE_SCALED_CATEGORICAL", "MLX_VK_ENABLE_SEARCH_GROUPS", "MLX_VK_ENABLE_SUM_MULTIPLY",
    "MLX_VK_ENABLE_CHAINS", "MLX_VK_ENABLE_CHAIN_REDUCE", "MLX_VK_ENABLE_DONATION",
};
enum { FUSION_GATES = sizeof fusion_gates / sizeof *fusion_gates };

/* ---- devices ---- */

struct machine { mlxvk_device device; mlxvk_stream stream[2]; };

static struct machine plain, lazy[SETTINGS];

static bool machine_open(struct machine *m, const char *gates, struct problem *problem)
{
    mlxvk_error error = { 0 };
    char text[64 * FUSION_GATES];
    snprintf(text, sizeof text, "%s MLX_VK_POISON=2", gates);      /* what nobody wrote shows */
    if (mlxvk_device_create(&m->device, &(mlxvk_device_desc){ .gates = text, .error = &error }))
        return complain(problem, "no device: %s", error.text);
    for (int i = 0; i < 2; i++) m->stream[i] = mlxvk_stream_new_device(m->device);
    return m->stream[1].ctx || complain(problem, "no streams");
}

static void machine_close(struct machine *m)
{
    for (int i = 0; i < 2 && m->stream[i].ctx; i++) mlxvk_stream_free(m->stream[i]);
    mlxvk_device_free(m->device);
    *m = (struct machine){ 0 };
}

bool running_open(struct problem *problem)
{
    char gates[64 * FUSION_GATES] = "";
    for (int i = 0; i < FUSION_GATES; i++)
        snprintf(gates + strlen(gates), sizeof gates - strlen(gates), "%s=0 ", fusion_gates[i]);
    return machine_open(&plain, gates, problem);
}

/* Pipelines take memory: where there are very many, a device begins anew. */
static void refresh(struct machine *m)
{
    mlxvk_stats stats = { 0 };
    if (m->device.ctx && !mlxvk_get_stats(&stats, m->device) && stats.pipelines > MOST_PIPELINES) machine_close(m);
}

bool running_refresh(struct problem *problem)
{
    for (int i = 0; i < SETTINGS; i++) refresh(&lazy[i]);
    refresh(&plain);
    return plain.device.ctx || running_open(problem);
}

void running_close(void)
{
    machine_close(&plain);
    for (int i = 0; i < SETTINGS; i++) machine_close(&lazy[i]);
}

/* ---- one call ---- */

static void bind_vectors(struct call *c, const struct statement *s, const mlxvk_array *operands)
{
    for (int k = 0; k < s->inputs; k++) {
        struct named_vector *v = NULL;
        if (!s->in[k].listed) continue;
        for (int i = 0; i < c->vector_count; i++) if (!strcmp(c->vectors[i].name, s->in[k].name)) v = &c->vectors[i];
        if (!v) {
            v = &c->vectors[c->vector_count++];
            *v = (struct named_vector){ s->in[k].name, mlxvk_vector_array_new() };
        }
        mlxvk_vector_array_append_value(v->vector, operands[k]);
    }
}

/* *result may hold an array, whose place the result takes. */
static int run_call(const struct statement *s, const mlxvk_array *operands, mlxvk_stream stream, mlxvk_array *result)
{
    struct call c = { .args = s->args, .stream = stream, .results = { *result } };
    for (int k = 0; k < s->inputs; k++)
        if (!s->in[k].listed) c.arrays[c.array_count++] = (struct named_array){ s->in[k].name, operands[k], false };
    bind_vectors(&c, s, operands);
    int code = s->op->run(&c);
    if (c.problem.text[0] && !code) code = MLXVK_ERROR_ARGUMENT;
    *result = c.results[0];
    for (int i = 0; i < c.vector_count; i++) mlxvk_vector_array_free(c.vectors[i].vector);
    return code;
}

/* ---- what is exact ---- */

static bool listed(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name)) names++;
    return *names != NULL;
}

/* Numbers go through unchanged, or one of several is chosen. */
static bool moves_only(const char *name)
{
    static const char *const names[] = {
        "copy", "contiguous", "astype", "view", "reshape", "flatten", "unflatten", "transpose",
        "transpose_axes", "swapaxes", "moveaxis", "expand_dims", "squeeze", "broadcast_to", "as_strided",
        "slice", "slice_update", "slice_update_max", "slice_update_min", "slice_dynamic",
        "slice_update_dynamic", "diag", "diagonal", "concatenate_axis", "stack_axis", "pad", "roll_axis",
        "tile", "repeat_axis", "take", "take_axis", "take_along_axis", "gather_single", "put_along_axis",
        "scatter_single", "scatter_max_single", "scatter_min_single", "masked_scatter", "where", "clip",
        "maximum", "minimum", "max_axis", "min_axis", "sort_axis", "cummax", "cummin", "negative", "abs",
        "tril", "triu", "stop_gradient", NULL };
    return listed(names, name);
}

/* A small difference of an operand can become a large one of the result. */
static bool jumps(const char *name, mlxvk_dtype from, mlxvk_dtype to)
{
    static const char *const names[] = { "floor", "ceil", "round", "sign", "remainder", "floor_divide", "searchsorted",
                                         NULL };
    return (dtype_is_inexact(from) && !dtype_is_inexact(to)) || listed(names, name);
}

/* ---- noise ---- */

static double unit_of(mlxvk_dtype dtype)
{
    return dtype == MLXVK_BFLOAT16 ? 0x1p-7 : dtype == MLXVK_FLOAT16 ? 0x1p-10 : 0x1p-22;
}

static void add_noise(struct tensor *t, uint64_t *state)
{
    if (!dtype_is_float(t->dtype)) return;
    for (size_t i = 0; i < tensor_size(t); i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        double r = (double)(*state >> 33) * 0x1p-30 - 1;
        double x = load_number(t->dtype, t->data, i).re;
        if (x != 0) store_number(t->dtype, t->owned, i, x * (1 + unit_of(t->dtype) * r));
    }
}

static struct tensor tensor_copy(const struct tensor *t)
{
    struct tensor copy = *t;
    copy.data = copy.owned = need(malloc(tensor_bytes(t) + 1));
    memcpy(copy.owned, t->data, tensor_bytes(t));
    return copy;
}

/* ---- the reference ---- */

void reference_begin(struct reference *r, bool straight)
{
    memset(r, 0, sizeof *r);
    r->straight = straight;
    for (int i = 0; i < MOST_VARIABLES; i++) r->latest[i] = NONE;
}

void reference_end(struct reference *r)
{
    for (int i = 0; i < MOST_VARIABLES; i++) mlxvk_array_free(r->handle[i]);
    for (int i = 0; i < MOST_STATEMENTS; i++) tensor_free(&r->value[i].tensor);
    memset(r, 0, sizeof *r);
}

static const struct value *value_of(const struct reference *r, int variable)
{
    return variable != NONE && r->latest[variable] != NONE ? &r->value[r->latest[variable]] : NULL;
}

static bool uploaded(mlxvk_array *res, const struct tensor *t, mlxvk_device device)
{
    return !mlxvk_array_new_data_device(res, t->data, t->shape, t->ndim, t->dtype, device);
}

/* The operands as the reference has them; in a noisy run what is exact is rounded here, when something rounds. */
static bool reference_operands(struct reference *r, const struct statement *s, mlxvk_array *operands, bool rounds)
{
    for (int k = 0; k < s->inputs; k++) {
        const struct value *v = value_of(r, s->in[k].variable);
        if (s->in[k].variable == NONE) continue;
        if (!v) return false;
        if (!r->straight) { mlxvk_array_set(&operands[k], r->handle[s->in[k].variable]); continue; }
        struct tensor t = tensor_copy(&v->tensor);
        if (r->noisy && rounds && v->exact) add_noise(&t, &r->noise);
        bool good = uploaded(&operands[k], &t, plain.device);
        tensor_free(&t);
        if (!good) return false;
    }
    return true;
}

/* Finite, and of a size that leaves room for a few more operations. */
static bool is_moderate(const struct tensor *t)
{
    for (size_t i = 0; dtype_is_inexact(t->dtype) && i < tensor_size(t); i++)
        if (!(fabs(load_number(t->dtype, t->data, i).re) <= LARGEST_VALUE)) return false;
    return true;
}

/* Whether the result is exact; false in *known where it depends on roundings too much to be compared. */
static bool exactness(const struct reference *r, const struct statement *s, mlxvk_dtype result, bool *known)
{
    bool exact = true, inexact_type = dtype_is_inexact(result), jump = false;
    for (int k = 0; k < s->inputs; k++) {
        const struct value *v = value_of(r, s->in[k].variable);
        if (!v) continue;
        exact = exact && v->exact;
        inexact_type = inexact_type || dtype_is_inexact(v->tensor.dtype);
        jump = jump || jumps(s->op->name, v->tensor.dtype, result);
    }
    *known = exact || !jump;
    return exact && (!inexact_type || moves_only(s->op->name) || jump);
}

static bool set_variable(struct reference *r, int at, int variable, mlxvk_array handle)
{
    mlxvk_array_free(r->handle[variable]);
    r->handle[variable] = handle;
    r->latest[variable] = at;
    r->value[at].there = true;
    return true;
}

static bool reference_call(struct reference *r, const struct statement *s, int at)
{
    mlxvk_array operands[MOST_INPUTS] = { { NULL } }, result = { NULL };
    struct problem problem = { "" };
    struct value *v = &r->value[at];
    bool known = false, rounds = !moves_only(s->op->name);
    bool good = reference_operands(r, s, operands, rounds) && !run_call(s, operands, plain.stream[0], &result) &&
                result.ctx && mlxvk_array_size(result) && mlxvk_array_size(result) <= MOST_ELEMENTS &&
                mlxvk_array_ndim(result) <= MOST_DIMS &&
                array_to_tensor(&v->tensor, result, plain.stream[0], &problem) && is_moderate(&v->tensor);
    if (good) v->exact = exactness(r, s, v->tensor.dtype, &known);
    good = good && known;
    if (good && r->noisy && rounds && !v->exact) add_noise(&v->tensor, &r->noise);
    for (int k = 0; k < s->inputs; k++) mlxvk_array_free(operands[k]);
    if (good) return set_variable(r, at, s->variable, result);
    mlxvk_array_free(result);
    tensor_free(&v->tensor);
    return false;
}

static bool reference_data(struct reference *r, const struct statement *s, int at)
{
    struct value *v = &r->value[at];
    mlxvk_array handle = { NULL };
    v->tensor = data_tensor(&s->data);
    v->exact = true;
    return uploaded(&handle, &v->tensor, plain.device) && set_variable(r, at, s->variable, handle);
}

bool reference_step(struct reference *r, const struct program *p, int at)
{
    const struct statement *s = &p->statement[at];
    mlxvk_array copy = { NULL };
    if (s->kind == CALL) return reference_call(r, s, at);
    if (s->kind == DATA) return reference_data(r, s, at);
    if (s->kind == SUBMIT || s->kind == WAIT || s->variable == NONE) return true;
    const struct value *v = value_of(r, s->kind == ALIAS ? s->in[0].variable : s->variable);
    if (!v) return false;
    if (s->kind == ALIAS) {
        r->value[at] = (struct value){ true, v->exact, tensor_copy(&v->tensor) };
        mlxvk_array_set(&copy, r->handle[s->in[0].variable]);
        return set_variable(r, at, s->variable, copy);
    }
    if (s->kind != FREE) return true;
    mlxvk_array_free(r->handle[s->variable]);
    r->handle[s->variable] = copy;
    r->latest[s->variable] = NONE;
    return true;
}

/* ---- comparison ---- */

static double largest(const struct tensor *t)
{
    double most = 0;
    for (size_t i = 0; i < tensor_size(t); i++) most = fmax(most, fabs(load_number(t->dtype, t->data, i).re));
    return most;
}

static double distance(const struct tensor *a, const struct tensor *b)
{
    double most = 0;
    for (size_t i = 0; i < tensor_size(a); i++)
        most = fmax(most, fabs(load_number(a->dtype, a->data, i).re - load_number(b->dtype, b->data, i).re));
    return most;
}

/* The most that noise changes what statement `at` gives. */
static double spread_of(const struct program *p, const struct reference *r, int at)
{
    struct reference *noisy = need(malloc(sizeof *noisy));
    double most = 0;
    for (int run = 0; run < NOISY_RUNS; run++) {
        reference_begin(noisy, true);
        noisy->noisy = true;
        noisy->noise = p->seed * 31 + (uint64_t)run;
        for (int i = 0; i <= at; i++)
            if (r->value[i].there || p->statement[i].kind == FREE) reference_step(noisy, p, i);
        if (noisy->value[at].there) most = fmax(most, distance(&noisy->value[at].tensor, &r->value[at].tensor));
        reference_end(noisy);
    }
    free(noisy);
    return most;
}

static struct rule rule_for(const struct value *want, bool same_bits)
{
    mlxvk_dtype dtype = want->tensor.dtype;
    double unit = unit_of(dtype), most = largest(&want->tensor);
    if (same_bits) return (struct rule){ .cmp = "bits" };
    if (want->exact) return (struct rule){ .cmp = "exact" };
    double atol = (dtype == MLXVK_FLOAT32 ? 16 : 2) * unit * most + 1e-6;
    return (struct rule){ .cmp = "close", .rtol = 4 * unit, .atol = atol };
}

static bool agrees(const struct program *p, const struct reference *r, int at, const struct tensor *got, bool same_bits,
                   struct problem *problem)
{
    struct rule rule = rule_for(&r->value[at], same_bits);
    struct problem first = { "" };
    if (compare(got, &r->value[at].tensor, &rule, &first)) return true;
    if (strcmp(rule.cmp, "close")) return complain(problem, "x%d: %s", p->statement[at].variable, first.text);
    rule.atol += NOISE_FACTOR * spread_of(p, r, at);
    first.text[0] = 0;
    return compare(got, &r->value[at].tensor, &rule, &first) ||
           complain(problem, "x%d: %s", p->statement[at].variable, first.text);
}

/* ---- lazily ---- */

struct lazy_run {
    const struct program *p;
    const struct reference *r;
    const struct setting *setting;
    struct machine *machine;
    struct problem *problem;
    uint64_t fused;                                        /* before it */
    int latest[MOST_VARIABLES];
    mlxvk_array handle[MOST_VARIABLES];
    bool refused;                                          /* by a limit that the setting has: no more to see */
};

static bool lazy_compare(struct lazy_run *l, int variable)
{
    struct tensor got = { 0 };
    mlxvk_stats stats = { 0 };
    bool good = array_to_tensor(&got, l->handle[variable], l->machine->stream[0], l->problem);
    mlxvk_get_stats(&stats, l->machine->device);
    bool same_bits = l->setting->same_kernels && !l->p->straight && stats.fused == l->fused;
    if (good) good = agrees(l->p, l->r, l->latest[variable], &got, same_bits, l->problem);
    else complain(l->problem, "x%d cannot be read", variable);
    tensor_free(&got);
    return good;
}

static bool lazy_call(struct lazy_run *l, const struct statement *s)
{
    mlxvk_array operands[MOST_INPUTS] = { { NULL } };
    mlxvk_stream stream = l->machine->stream[s->stream];
    char text[640];
    for (int k = 0; k < s->inputs; k++) if (s->in[k].variable != NONE) operands[k] = l->handle[s->in[k].variable];
    int code = run_call(s, operands, stream, &l->handle[s->variable]);
    if (code == MLXVK_ERROR_LIMIT && l->setting->limits) l->refused = true;
    else if (code)
        return complain(l->problem, "%s returned %s", s->op->name, error_text(text, sizeof text, code, stream));
    return true;
}

static bool lazy_eval(struct lazy_run *l, const struct statement *s)
{
    mlxvk_vector_array v = mlxvk_vector_array_new();
    for (int i = 0; i < MOST_VARIABLES; i++)
        if (l->latest[i] != NONE && (s->variable == NONE || s->variable == i))
            mlxvk_vector_array_append_value(v, l->handle[i]);
    int code = s->kind == EVAL ? mlxvk_eval(v) : mlxvk_async_eval(v);
    mlxvk_vector_array_free(v);
    return !code || complain(l->problem, "%s returned %d", s->kind == EVAL ? "eval" : "async_eval", code);
}

static bool lazy_stream(struct lazy_run *l, enum kind kind, int stream)
{
    mlxvk_stream s = l->machine->stream[stream];
    int code = kind == WAIT ? mlxvk_synchronize(s) : mlxvk_finalize(s);
    char text[640];
    return !code || complain(l->problem, "stream %d: %s", stream, error_text(text, sizeof text, code, s));
}

static bool lazy_step(struct lazy_run *l, int at)
{
    const struct statement *s = &l->p->statement[at];
    switch (s->kind) {
    case SUBMIT: case WAIT: return lazy_stream(l, s->kind, s->stream);
    case EVAL: case ASYNC:  return lazy_eval(l, s);
    case READ:              return l->latest[s->variable] == NONE || lazy_compare(l, s->variable);
    case ALIAS:
        if (l->r->value[at].there) mlxvk_array_set(&l->handle[s->variable], l->handle[s->in[0].variable]);
        break;
    case FREE:
        mlxvk_array_free(l->handle[s->variable]);
        l->handle[s->variable] = mlxvk_array_new();
        l->latest[s->variable] = NONE;
        return true;
    case DATA:
        mlxvk_array_free(l->handle[s->variable]);
        l->handle[s->variable] = mlxvk_array_new();
        if (!uploaded(&l->handle[s->variable], &l->r->value[at].tensor, l->machine->device))
            return complain(l->problem, "no memory for data");
        break;
    case CALL:
        if (l->r->value[at].there && !lazy_call(l, s)) return false;
        break;
    }
    if (l->r->value[at].there) l->latest[s->variable] = at;
    return true;
}

static bool run_lazily(const struct program *p, const struct reference *r, struct machine *m, struct problem *problem)
{
    struct lazy_run l = { .p = p, .r = r, .setting = &settings[p->setting], .machine = m, .problem = problem };
    mlxvk_stats stats = { 0 };
    bool good = true;
    for (int i = 0; i < MOST_VARIABLES; i++) l.latest[i] = NONE;
    mlxvk_get_stats(&stats, m->device);
    l.fused = stats.fused;
    for (int i = 0; i < p->count && good && !l.refused; i++) good = lazy_step(&l, i);
    for (int i = 0; i < MOST_VARIABLES && good && !l.refused; i++) if (l.latest[i] != NONE) good = lazy_compare(&l, i);
    for (int i = 0; i < MOST_VARIABLES; i++) mlxvk_array_free(l.handle[i]);
    for (int i = 0; i < 2 && !l.refused; i++) good = lazy_stream(&l, WAIT, i) && good;
    if (l.refused) for (int i = 0; i < 2; i++) mlxvk_synchronize(m->stream[i]);
    return good;
}

bool program_agrees(const struct program *p, const struct reference *r, struct problem *problem)
{
    struct machine *m = &lazy[p->setting];
    if (!m->device.ctx && !machine_open(m, settings[p->setting].gates, problem)) return false;
    return run_lazily(p, r, m, problem);
}

bool program_passes(const struct program *p, struct problem *problem)
{
    struct reference *r = need(malloc(sizeof *r));
    reference_begin(r, p->straight);
    for (int i = 0; i < p->count; i++) reference_step(r, p, i);
    bool good = program_agrees(p, r, problem);
    reference_end(r);
    free(r);
    return good;
}

/* ---- which gate ---- */

static bool passes_without(const struct program *p, const struct reference *r, const char *gate)
{
    struct machine m = { 0 };
    struct problem problem = { "" };
    char gates[256];
    snprintf(gates, sizeof gates, "%s=0 %s", gate, settings[p->setting].gates);
    bool good = machine_open(&m, gates, &problem);
    for (int i = 0; i < 3 && good; i++) good = run_lazily(p, r, &m, &problem);
    machine_close(&m);
    return good;
}

void suspects(const struct program *p, char *text, size_t size)
{
    struct reference *r = need(malloc(sizeof *r));
    size_t used = 0;
    reference_begin(r, p->straight);
    for (int i = 0; i < p->count; i++) reference_step(r, p, i);
    *text = 0;
    for (int i = 0; i < FUSION_GATES && used < size; i++)
        if (passes_without(p, r, fusion_gates[i]))
            used += (size_t)snprintf(text + used, size - used, "%s%s=0", used ? ", " : "", fusion_gates[i]);
    reference_end(r);
    free(r);
}
