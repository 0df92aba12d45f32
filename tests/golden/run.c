/* One case: its operands, the call, and the comparison of what came out. */
#include "golden.h"

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
    bool not_there;
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

/* ---- a case that must work ---- */

static bool check_array(const struct attempt *a, mlxvk_array array, int index, struct problem *problem)
{
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(a->item, "out");
    struct problem inner = { "" };
    struct tensor got = { 0 }, want = { 0 };
    struct rule rule = rule_of(a);
    bool good = golden_tensor(&want, a->file, cJSON_GetStringValue(cJSON_GetArrayItem(names, index)), &inner) &&
                array_to_tensor(&got, array, a->call->stream, &inner) && compare(&got, &want, &rule, &inner);
    tensor_free(&got);
    return good || complain(problem, "result %d: %s", index, inner.text);
}

static bool check_vector(const struct attempt *a, int count, struct problem *problem)
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

static bool check_results(const struct attempt *a, struct problem *problem)
{
    int count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(a->item, "out"));
    if (a->operation->kind == VECTOR_RESULT) return check_vector(a, count, problem);
    if (count != (a->operation->kind == TWO_RESULTS ? 2 : 1))
        return complain(problem, "the case has %d results", count);
    for (int i = 0; i < count; i++)
        if (!check_array(a, a->call->results[i], i, problem)) return false;
    return true;
}

/* The library says itself that this variant of an operation (a mode, say) is not there yet. */
static bool says_not_there(const struct attempt *a, int code)
{
    mlxvk_error error = { 0 };
    mlxvk_stream_error(a->call->stream, &error);
    return code == MLXVK_ERROR_UNSUPPORTED && error.code == code && strstr(error.text, "not there yet");
}

static bool check_success(struct attempt *a, int code, struct problem *problem)
{
    char text[640];
    if (!code) return check_results(a, problem);
    a->not_there = says_not_there(a, code);
    error_text(text, sizeof text, code, a->call->stream);
    return complain(problem, "mlxvk_%s returned %s", a->operation->name, text);
}

/* ---- cases whose data is known to be wrong ---- */

static bool has_nan(const struct tensor *t)
{
    for (size_t i = 0; i < tensor_size(t); i++)
        if (isnan(load_number(t->dtype, t->data, i).re)) return true;
    return false;
}

static double rounded_to(mlxvk_dtype dtype, double value)
{
    uint8_t bits[16];
    store_number(dtype, bits, 0, value);
    return load_number(dtype, bits, 0).re;
}

/* Is the library's arange start + i * (T(start + step) - T(start)), each step in T, as MLX's GPU backends compute it? */
static bool arange_as_gpu(const struct attempt *a, mlxvk_dtype dtype, mlxvk_stream stream)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(a->item, "args");
    double start = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(args, "start"));
    double stop = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(args, "stop"));
    double by = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(args, "step")), first, step;
    mlxvk_array array = mlxvk_array_new();
    uint16_t *got = NULL;
    size_t n = 0;
    bool same = !mlxvk_arange(&array, start, stop, by, dtype, stream);
    if (same) {
        n = mlxvk_array_size(array);
        got = need(calloc(n + 1, sizeof *got));
        same = !mlxvk_array_read(array, got, n * sizeof *got, stream);
    }
    first = rounded_to(dtype, start);
    step = rounded_to(dtype, rounded_to(dtype, start + by) - first);
    for (size_t i = 0; i < n && same; i++)
        same = load_number(dtype, got, i).re == rounded_to(dtype, first + rounded_to(dtype, rounded_to(dtype, (double)i) * step));
    mlxvk_array_free(array);
    free(got);
    return same;
}

/* Why a case's expected values are wrong, or NULL. */
static const char *wrong_data(const struct attempt *a, mlxvk_stream stream)
{
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(a->item, "args"), "dtype"));
    bool f16 = dtype && !strcmp(dtype, "float16"), bf16 = dtype && !strcmp(dtype, "bfloat16");
    const char *op = a->operation->name;
    const struct tensor *in = a->operands->count ? &a->operands->list[0].value : NULL;
    bool half = in && (in->dtype == MLXVK_FLOAT16 || in->dtype == MLXVK_BFLOAT16);
    if ((!strcmp(op, "cummax") || !strcmp(op, "cummin")) && half && has_nan(in))
        return "MLX's CPU backend gives 0 where a half-type NaN should stay, against the case's own note";
    if (!strcmp(op, "arange") && (f16 || bf16) && arange_as_gpu(a, f16 ? MLXVK_FLOAT16 : MLXVK_BFLOAT16, stream))
        return "MLX's CPU backend adds step after step in the half type; its GPU backends compute start + i * step";
    return NULL;
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
    return unchanged_results(a, problem) && unchanged_operands(a, problem);
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
    struct attempt a = { .file = file, .item = item, .operation = op ? find_operation(op) : NULL };
    if (!a.operation) return op ? NOT_THERE : FAILED;
    a.in = cJSON_GetObjectItemCaseSensitive(item, "in");
    a.operands = need(calloc(1, sizeof *a.operands));
    bool good = operands_load(a.operands, file, a.in, problem) && run_once(&a, stream, AS_GIVEN, problem);
    for (int layout = CONTIGUOUS; good && layout < LAYOUTS; layout++) {
        bool differs = layout == CONTIGUOUS ? a.operands->has_views : a.operands->count > 0;
        if (options->layouts[layout] && differs) good = run_once(&a, stream, (enum layout)layout, problem);
    }
    const char *reason = good ? NULL : wrong_data(&a, stream);
    operands_free(a.operands);
    free(a.operands);
    if (reason) *problem = (struct problem){ "" };
    if (reason) complain(problem, "%s", reason);
    return good ? PASSED : reason ? WRONG_DATA : a.not_there ? NOT_THERE : FAILED;
}
