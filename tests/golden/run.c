/* One case: its operands, the call, and the comparison of what came out. */
#include "golden.h"
#include "watch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "unit/numbers.h"

/* What a case's result handles hold before the call: a call that fails must leave it there. */
enum { SENTINEL = 314159 };

struct attempt {
    const struct golden_file *file;
    const cJSON *item, *in;
    const struct operation *operation;
    struct operands *operands;
    struct call *call;
    mlxvk_array sentinel;
    const struct watch *watch;                                          /* or NULL */
    bool rows;
    const char *corrected;                                              /* what of the expected values was wrong, or NULL */
};

static double number_field(const cJSON *item, const char *name)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(item, name);
    return cJSON_IsNumber(field) ? field->valuedouble : 0;
}

static struct rule rule_of(const struct attempt *a)
{
    const cJSON *args = a->call->args, *axis = cJSON_GetObjectItemCaseSensitive(args, "axis");
    const char *cmp = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(a->item, "cmp"));
    struct rule rule = { .cmp = cmp ? cmp : "", .has_axis = cJSON_IsNumber(axis) };
    rule.rtol = number_field(a->item, "rtol");
    rule.atol = number_field(a->item, "atol");
    rule.axis = (int)number_field(args, "axis");
    rule.kth = (int)number_field(args, "kth");
    rule.input = a->operands->count ? &a->operands->list[0].value : NULL;
    return rule;
}

/* ---- expected values that are known to be wrong, put right ---- */

static double rounded_to(mlxvk_dtype dtype, double value)
{
    uint8_t bits[16];
    store_number(dtype, bits, 0, value);
    return load_number(dtype, bits, 0).re;
}

/* MLX's CPU backend adds step after step in the half type. Where the stored values are that, bit by bit, they become what
 * its GPU backends compute in the same type: start + i * (T(start + step) - T(start)). */
static bool multiply_steps(struct tensor *want, const cJSON *args)
{
    double start = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(args, "start"));
    double by = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(args, "step"));
    double first = rounded_to(want->dtype, start), step = rounded_to(want->dtype, rounded_to(want->dtype, start + by) - first), sum = first;
    size_t size = tensor_size(want);
    bool changed = false;
    for (size_t i = 0; i < size; i++) {
        if (load_number(want->dtype, want->data, i).re != sum) return false;
        sum = rounded_to(want->dtype, sum + step);
    }
    for (size_t i = 0; i < size; i++) {
        double value = rounded_to(want->dtype, first + rounded_to(want->dtype, rounded_to(want->dtype, (double)i) * step));
        changed = changed || value != load_number(want->dtype, want->data, i).re;
        store_number(want->dtype, want->owned, i, value);
    }
    return changed;
}

/* MLX's CPU backend forgets a half type's NaN: from the first one of a row on, NaN is what the case itself says is right. */
static bool keep_nan(struct tensor *want, const struct tensor *in, const cJSON *args)
{
    int axis = cJSON_GetObjectItemCaseSensitive(args, "axis")->valueint;
    bool back = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(args, "reverse")), changed = false;
    size_t step = 1, length, size = tensor_size(want);
    if (tensor_size(in) != size || !size) return false;
    if (axis < 0) axis += want->ndim;
    for (int i = axis + 1; i < want->ndim; i++) step *= (size_t)want->shape[i];
    length = (size_t)want->shape[axis];
    for (size_t lane = 0; lane < size / length; lane++) {
        bool met = false;
        for (size_t i = 0; i < length; i++) {
            size_t at = lane / step * step * length + lane % step + (back ? length - 1 - i : i) * step;
            met = met || isnan(load_number(in->dtype, in->data, at).re);
            if (!met || isnan(load_number(want->dtype, want->data, at).re)) continue;
            store_number(want->dtype, want->owned, at, NAN);
            changed = true;
        }
    }
    return changed;
}

/* What was put right in a result's expected values, or NULL. They are compared with all the same. */
static const char *put_right(const struct attempt *a, struct tensor *want)
{
    const char *op = a->operation->name;
    const struct tensor *in = a->operands->count ? &a->operands->list[0].value : NULL;
    bool half = want->dtype == MLXVK_FLOAT16 || want->dtype == MLXVK_BFLOAT16, maximum = !strcmp(op, "cummax") || !strcmp(op, "cummin");
    bool inclusive = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(a->call->args, "inclusive"));
    if (!half || want->owned || !(maximum ? in && inclusive : !strcmp(op, "arange"))) return NULL;
    want->owned = need(malloc(tensor_bytes(want) + 1));
    memcpy(want->owned, want->data, tensor_bytes(want));
    want->data = want->owned;
    if (maximum && keep_nan(want, in, a->call->args)) return "a NaN that MLX's CPU backend lost";
    if (!maximum && multiply_steps(want, a->call->args)) return "steps that MLX's CPU backend added up in the half type";
    return NULL;
}

/* ---- a case that must work ---- */

static bool check_array(struct attempt *a, mlxvk_array array, int index, struct problem *problem)
{
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(a->item, "out");
    struct problem inner = { "" };
    struct tensor got = { 0 }, want = { 0 };
    struct rule rule = rule_of(a);
    bool good = golden_tensor(&want, a->file, cJSON_GetStringValue(cJSON_GetArrayItem(names, index)), &inner);
    const char *corrected = good ? put_right(a, &want) : NULL;
    if (corrected) a->corrected = corrected;
    good = good && array_to_tensor(&got, array, a->call->stream, &inner) && compare(&got, &want, &rule, &inner);
    tensor_free(&got);
    tensor_free(&want);
    return good || complain(problem, "result %d: %s", index, inner.text);
}

static bool check_vector(struct attempt *a, int count, struct problem *problem)
{
    mlxvk_vector_array vector = a->call->result_vector;
    if (mlxvk_vector_array_size(vector) != (size_t)count)
        return complain(problem, "got %zu results, expected %d", mlxvk_vector_array_size(vector), count);
    for (int i = 0; i < count; i++) {
        mlxvk_array array = mlxvk_array_new();
        bool good = !mlxvk_vector_array_get(&array, vector, (size_t)i) && check_array(a, array, i, problem);
        mlxvk_array_free(array);
        if (!good) return complain(problem, "result %d cannot be got", i);
    }
    return true;
}

static bool check_results(struct attempt *a, struct problem *problem)
{
    int count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(a->item, "out"));
    if (a->operation->kind == VECTOR_RESULT) return check_vector(a, count, problem);
    if (count != (a->operation->kind == TWO_RESULTS ? 2 : 1))
        return complain(problem, "the case has %d results", count);
    for (int i = 0; i < count; i++)
        if (!check_array(a, a->call->results[i], i, problem)) return false;
    return true;
}

/* The results go to who looks at the calls. */
static bool show_results(struct attempt *a, struct problem *problem)
{
    mlxvk_array all[MAX_RESULTS], *results = a->call->results;
    int count = a->operation->kind == TWO_RESULTS ? 2 : 1;
    if (a->operation->kind == VECTOR_RESULT) {
        count = (int)mlxvk_vector_array_size(a->call->result_vector);
        if (count > MAX_RESULTS) return complain(problem, "more than %d results", MAX_RESULTS);
        for (int i = 0; i < count; i++) {
            all[i] = mlxvk_array_new();
            mlxvk_vector_array_get(&all[i], a->call->result_vector, (size_t)i);
        }
        results = all;
    }
    bool good = a->watch->called(a->watch->user, results, count);
    if (results == all) for (int i = 0; i < count; i++) mlxvk_array_free(all[i]);
    return good || complain(problem, "what was recorded is wrong");
}

static bool check_success(struct attempt *a, int code, struct problem *problem)
{
    char text[640];
    if (!code && a->watch) return show_results(a, problem);
    if (!code) return check_results(a, problem) && (!a->rows || check_rows(a->operation, a->call, problem));
    error_text(text, sizeof text, code, a->call->stream);
    return complain(problem, "mlxvk_%s returned %s", a->operation->name, text);
}

/* ---- a case that must be refused ---- */

static bool unchanged_results(const struct attempt *a, struct problem *problem)
{
    int32_t value = 0;
    bool same = a->operation->kind == VECTOR_RESULT ? mlxvk_vector_array_size(a->call->result_vector) == 1
                                                    : a->call->results[0].ctx == a->sentinel.ctx;
    if (same && !mlxvk_array_item_int32(&value, a->sentinel) && value == SENTINEL) return true;
    return complain(problem, "the refused call changed its result handle");
}

static bool unchanged_operands(const struct attempt *a, struct problem *problem)
{
    struct rule same = { .cmp = "bits" };
    for (int i = 0; i < a->operands->count; i++) {
        const struct operand *operand = &a->operands->list[i];
        struct problem inner = { "" };
        struct tensor now = { 0 };
        bool good = array_to_tensor(&now, operand->array, a->call->stream, &inner) &&
                    compare(&now, &operand->value, &same, &inner);
        tensor_free(&now);
        if (!good) return complain(problem, "after the refused call, operand %s: %s", operand->parameter, inner.text);
    }
    return true;
}

static bool check_refusal(const struct attempt *a, int code, struct problem *problem)
{
    const char *name = a->operation->name;
    mlxvk_error error = { 0 };
    if (!code) return complain(problem, "mlxvk_%s returned 0, where MLX refuses", name);
    mlxvk_stream_error(a->call->stream, &error);
    if (error.code != code) return complain(problem, "returned %d, but the stream's error is %d", code, error.code);
    if (!strstr(error.text, name)) return complain(problem, "the error does not name %s: %s", name, error.text);
    return unchanged_results(a, problem) && (a->watch || unchanged_operands(a, problem));
}

/* ---- both ---- */

static bool make_sentinel(struct attempt *a, struct problem *problem)
{
    a->sentinel = mlxvk_array_new_int(SENTINEL);
    if (!a->sentinel.ctx) return complain(problem, "no array for a number");
    a->call->result_vector = mlxvk_vector_array_new_value(a->sentinel);
    return !mlxvk_array_set(&a->call->results[0], a->sentinel) && !mlxvk_array_set(&a->call->results[1], a->sentinel);
}

static bool call_and_check(struct attempt *a, struct problem *problem)
{
    bool refused = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(a->item, "error"));
    if (!make_sentinel(a, problem)) return complain(problem, "no result handles");
    int code = a->operation->run(a->call);
    if (a->call->problem.text[0]) return complain(problem, "%s", a->call->problem.text);
    return refused ? check_refusal(a, code, problem) : check_success(a, code, problem);
}

static bool run_once(struct attempt *a, mlxvk_stream stream, enum layout layout, struct problem *problem)
{
    static const char *const names[LAYOUTS] = { "", "operands made contiguous: ", "operands scattered: " };
    struct problem inner = { "" };
    a->call = need(calloc(1, sizeof *a->call));
    a->call->args = cJSON_GetObjectItemCaseSensitive(a->item, "args");
    a->call->stream = stream;
    bool good = operands_bind(a->operands, a->call, a->in, layout, &inner) && call_and_check(a, &inner);
    operands_release(a->operands, a->call);
    for (int i = 0; i < 2; i++) mlxvk_array_free(a->call->results[i]);
    mlxvk_vector_array_free(a->call->result_vector);
    mlxvk_array_free(a->sentinel);
    free(a->call);
    if (good) return true;
    return complain(problem, "%s%s", names[layout], inner.text);
}

enum outcome run_case(const struct golden_file *file, const cJSON *item, mlxvk_stream stream,
                      const struct run_options *options, struct problem *problem)
{
    const char *op = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "op"));
    struct attempt a = { .file = file, .item = item, .operation = op ? find_operation(op) : NULL,
                         .watch = options->watch, .rows = options->rows };
    if (!a.operation) return complain(problem, "the runner knows no operation %s", op ? op : "without a name"), FAILED;
    a.in = cJSON_GetObjectItemCaseSensitive(item, "in");
    a.operands = need(calloc(1, sizeof *a.operands));
    bool good = operands_load(a.operands, file, a.in, problem) && run_once(&a, stream, AS_GIVEN, problem);
    for (int layout = CONTIGUOUS; good && layout < LAYOUTS; layout++) {
        bool differs = layout == CONTIGUOUS ? a.operands->has_views : a.operands->count > 0;
        if (options->layouts[layout] && differs) good = run_once(&a, stream, (enum layout)layout, problem);
    }
    operands_free(a.operands);
    free(a.operands);
    if (good && a.corrected) complain(problem, "%s", a.corrected);
    return good ? a.corrected ? CORRECTED : PASSED : FAILED;
}
