/* The same call for single rows: each must give the bits that it gives among the others, which the library promises of
 * these operations under MLX_VK_BATCH_INVARIANT. */
#include "golden.h"

#include <string.h>

/* Which operand has the rows, in its last axis but one, and which else has one for each. Causal attention is left out:
 * there a row's keys are counted from the end. */
static const struct { const char *op, *rows, *also; } by_rows[] = {
    { "matmul", "a", NULL }, { "addmm", "a", "c" }, { "gather_mm", "a", NULL }, { "quantized_matmul", "x", NULL },
    { "gather_qmm", "x", NULL }, { "fast_scaled_dot_product_attention", "queries", "mask_arr" },
};

enum { ROWS_MOST = 5 };                                                 /* of a case: from the first to the last */

static mlxvk_array *operand_named(struct call *call, const char *name)
{
    for (int i = 0; name && i < call->array_count; i++)
        if (!strcmp(call->arrays[i].name, name) && call->arrays[i].array.ctx) return &call->arrays[i].array;
    return NULL;
}

/* The row of an operand that has `rows` of them; another operand as it is. */
static bool take_row(mlxvk_array *row, mlxvk_array from, int rows, int at, mlxvk_stream stream)
{
    int start[MLXVK_MAX_NDIM] = { 0 }, stop[MLXVK_MAX_NDIM], step[MLXVK_MAX_NDIM];
    size_t ndim = mlxvk_array_ndim(from);
    if (ndim < 2 || mlxvk_array_dim(from, (int)ndim - 2) != rows) return !mlxvk_array_set(row, from);
    for (size_t i = 0; i < ndim; i++) {
        stop[i] = mlxvk_array_dim(from, (int)i);
        step[i] = 1;
    }
    start[ndim - 2] = at;
    stop[ndim - 2] = at + 1;
    return !mlxvk_slice(row, from, start, ndim, stop, ndim, step, ndim, stream);
}

static bool same_row(const struct tensor *all, const struct tensor *one, int rows, int at, struct problem *problem)
{
    bool column = all->ndim < 2 || one->ndim < 2 || one->shape[one->ndim - 2] != 1 || all->shape[all->ndim - 2] != rows;
    size_t size = tensor_bytes(one), line = column ? 1 : (size_t)all->shape[all->ndim - 1];
    if (size * (size_t)rows != tensor_bytes(all)) return complain(problem, "row %d has another size", at);
    line *= tensor_size(one) ? size / tensor_size(one) : 1;
    for (size_t i = 0; line && i < size / line; i++)
        if (memcmp(all->data + (i * (size_t)rows + (size_t)at) * line, one->data + i * line, line))
            return complain(problem, "row %d alone has other bits than among %d", at, rows);
    return true;
}

static bool check_row(const struct operation *operation, struct call *call, mlxvk_array *const operand[2],
                      const struct tensor *all, int rows, int at, struct problem *problem)
{
    mlxvk_array kept[2] = { *operand[0], operand[1] ? *operand[1] : (mlxvk_array){ NULL } };
    mlxvk_array whole = call->results[0];
    struct tensor one = { 0 };
    bool good = true;
    call->results[0] = mlxvk_array_new();
    call->ints_used = call->longs_used = 0;
    for (int k = 0; k < 2; k++) {
        if (!operand[k]) continue;
        *operand[k] = mlxvk_array_new();
        good = take_row(operand[k], kept[k], rows, at, call->stream) && good;
    }
    good = good && !operation->run(call) && array_to_tensor(&one, call->results[0], call->stream, problem) &&
           same_row(all, &one, rows, at, problem);
    if (!good) complain(problem, "row %d alone is refused", at);
    tensor_free(&one);
    for (int k = 0; k < 2; k++) {
        if (!operand[k]) continue;
        mlxvk_array_free(*operand[k]);
        *operand[k] = kept[k];
    }
    mlxvk_array_free(call->results[0]);
    call->results[0] = whole;
    return good;
}

bool check_rows(const struct operation *operation, struct call *call, struct problem *problem)
{
    const char *mode = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(call->args, "mask_mode"));
    for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++) {
        mlxvk_array *operand[2] = { operand_named(call, by_rows[i].rows), operand_named(call, by_rows[i].also) };
        struct tensor all = { 0 };
        int rows, step;
        bool good;
        if (strcmp(by_rows[i].op, operation->name) || !operand[0] || mlxvk_array_ndim(*operand[0]) < 2) continue;
        if (mode && !strcmp(mode, "causal")) continue;
        rows = mlxvk_array_dim(*operand[0], (int)mlxvk_array_ndim(*operand[0]) - 2);
        step = rows > ROWS_MOST ? (rows - 1) / (ROWS_MOST - 1) : 1;
        good = array_to_tensor(&all, call->results[0], call->stream, problem);
        for (int at = 0; good && at < rows && rows > 1; at += step)
            good = check_row(operation, call, operand, &all, rows, at, problem);
        tensor_free(&all);
        return good;
    }
    return true;
}
