/* The table of operations. A row is the function's name without mlxvk_ and its parameters, each by its kind and its
 * name in mlx-c; the result and the stream are left out. The compiler checks a row against the declaration. */
#include "golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARRAY(name)     array_of(c, #name)
#define VECTOR(name)    vector_of(c, #name)
#define INT(name)       int_of(c, #name)
#define U64(name)       u64_of(c, #name)
#define DOUBLE(name)    double_of(c, #name)
#define FLOAT(name)     (float)double_of(c, #name)
#define BOOL(name)      bool_of(c, #name)
#define STRING(name)    string_of(c, #name)
#define DTYPE(name)     dtype_of(c, #name)
/* The data's `full` is Python's, which keeps the dtype of an array whatever dtype is asked for; mlx-c's casts. */
#define OWN_DTYPE(name) mlxvk_array_dtype(array_of(c, #name))
#define NORM(name)      norm_of(c, #name)
#define INTS(name)      ints_of(c, #name), count_of(c, #name)
#define LONGS(name)     longs_of(c, #name), count_of(c, #name)
#define OPT_INT(name)   opt_int_of(c, #name)
#define OPT_FLOAT(name) opt_float_of(c, #name)
#define OPT_DTYPE(name) opt_dtype_of(c, #name)

#define REDUCE(X, name)                                                                                               \
    X(name, ARRAY(a), BOOL(keepdims))                                                                                 \
    X(name##_axis, ARRAY(a), INT(axis), BOOL(keepdims))                                                               \
    X(name##_axes, ARRAY(a), INTS(axes), BOOL(keepdims))
#define SCAN(X, name) X(name, ARRAY(a), INT(axis), BOOL(reverse), BOOL(inclusive))
#define SLICE_UPDATE(X, name) X(name, ARRAY(src), ARRAY(update), INTS(start), INTS(stop), INTS(strides))
#define SCATTER(X, name)                                                                                              \
    X(name, ARRAY(a), VECTOR(indices), ARRAY(updates), INTS(axes))                                                    \
    X(name##_single, ARRAY(a), ARRAY(indices), ARRAY(updates), INT(axis))
#define VARIANCE(X, name)                                                                                             \
    X(name, ARRAY(a), BOOL(keepdims), INT(ddof))                                                                      \
    X(name##_axis, ARRAY(a), INT(axis), BOOL(keepdims), INT(ddof))                                                    \
    X(name##_axes, ARRAY(a), INTS(axes), BOOL(keepdims), INT(ddof))
#define TWO(name) int_of(c, #name "_0"), int_of(c, #name "_1")
#define THREE(name) TWO(name), int_of(c, #name "_2")
#define FFT(X, name)                                                                                                  \
    X(name, ARRAY(a), INT(n), INT(axis), NORM(norm))                                                                  \
    X(name##2, ARRAY(a), INTS(n), INTS(axes), NORM(norm))                                                             \
    X(name##n, ARRAY(a), INTS(n), INTS(axes), NORM(norm))
#define QUANT OPT_INT(group_size), OPT_INT(bits), STRING(mode)

/* Functions with one result. */
#define ONE_RESULT_FUNCTIONS(X)                                                                                       \
    X(arange, DOUBLE(start), DOUBLE(stop), DOUBLE(step), DTYPE(dtype))                                                \
    X(full, INTS(shape), ARRAY(vals), OWN_DTYPE(vals))                                                                \
    X(full_like, ARRAY(a), ARRAY(vals), DTYPE(dtype))                                                                 \
    X(zeros, INTS(shape), DTYPE(dtype))                                                                               \
    X(zeros_like, ARRAY(a))                                                                                           \
    X(ones, INTS(shape), DTYPE(dtype))                                                                                \
    X(ones_like, ARRAY(a))                                                                                            \
    X(linspace, DOUBLE(start), DOUBLE(stop), INT(num), DTYPE(dtype))                                                  \
    X(eye, INT(n), INT(m), INT(k), DTYPE(dtype))                                                                      \
    X(identity, INT(n), DTYPE(dtype))                                                                                 \
    X(tri, INT(n), INT(m), INT(k), DTYPE(type))                                                                       \
    X(tril, ARRAY(x), INT(k))                                                                                         \
    X(triu, ARRAY(x), INT(k))                                                                                         \
    X(bartlett, INT(M))                                                                                               \
    X(blackman, INT(M))                                                                                               \
    X(hamming, INT(M))                                                                                                \
    X(hanning, INT(M))                                                                                                \
    X(copy, ARRAY(a))                                                                                                 \
    X(contiguous, ARRAY(a), BOOL(allow_col_major))                                                                    \
    X(astype, ARRAY(a), DTYPE(dtype))                                                                                 \
    X(view, ARRAY(a), DTYPE(dtype))                                                                                   \
    X(reshape, ARRAY(a), INTS(shape))                                                                                 \
    X(flatten, ARRAY(a), INT(start_axis), INT(end_axis))                                                              \
    X(unflatten, ARRAY(a), INT(axis), INTS(shape))                                                                    \
    X(transpose, ARRAY(a))                                                                                            \
    X(transpose_axes, ARRAY(a), INTS(axes))                                                                           \
    X(swapaxes, ARRAY(a), INT(axis1), INT(axis2))                                                                     \
    X(moveaxis, ARRAY(a), INT(source), INT(destination))                                                              \
    X(expand_dims, ARRAY(a), INT(axis))                                                                               \
    X(expand_dims_axes, ARRAY(a), INTS(axes))                                                                         \
    X(squeeze, ARRAY(a))                                                                                              \
    X(squeeze_axis, ARRAY(a), INT(axis))                                                                              \
    X(squeeze_axes, ARRAY(a), INTS(axes))                                                                             \
    X(broadcast_to, ARRAY(a), INTS(shape))                                                                            \
    X(atleast_1d, ARRAY(a))                                                                                           \
    X(atleast_2d, ARRAY(a))                                                                                           \
    X(atleast_3d, ARRAY(a))                                                                                           \
    X(pad, ARRAY(a), INTS(axes), INTS(low_pad_size), INTS(high_pad_size), ARRAY(pad_value), STRING(mode))             \
    X(pad_symmetric, ARRAY(a), INT(pad_width), ARRAY(pad_value), STRING(mode))                                        \
    X(roll, ARRAY(a), INTS(shift))                                                                                    \
    X(roll_axis, ARRAY(a), INTS(shift), INT(axis))                                                                    \
    X(roll_axes, ARRAY(a), INTS(shift), INTS(axes))                                                                   \
    X(tile, ARRAY(arr), INTS(reps))                                                                                   \
    X(repeat, ARRAY(arr), INT(repeats))                                                                               \
    X(repeat_axis, ARRAY(arr), INT(repeats), INT(axis))                                                               \
    X(number_of_elements, ARRAY(a), INTS(axes), BOOL(inverted), DTYPE(dtype))                                         \
    X(stop_gradient, ARRAY(a))                                                                                        \
    X(as_strided, ARRAY(a), INTS(shape), LONGS(strides), (size_t)U64(offset))                                         \
    X(slice, ARRAY(a), INTS(start), INTS(stop), INTS(strides))                                                        \
    SLICE_UPDATE(X, slice_update) SLICE_UPDATE(X, slice_update_add) SLICE_UPDATE(X, slice_update_prod)                \
    SLICE_UPDATE(X, slice_update_max) SLICE_UPDATE(X, slice_update_min)                                               \
    X(slice_dynamic, ARRAY(a), ARRAY(start), INTS(axes), INTS(slice_size))                                            \
    X(slice_update_dynamic, ARRAY(src), ARRAY(update), ARRAY(start), INTS(axes))                                      \
    X(diag, ARRAY(a), INT(k))                                                                                         \
    X(diagonal, ARRAY(a), INT(offset), INT(axis1), INT(axis2))                                                        \
    X(trace, ARRAY(a), INT(offset), INT(axis1), INT(axis2), DTYPE(dtype))                                             \
    X(searchsorted, ARRAY(a), ARRAY(v), STRING(side))                                                                 \
    X(concatenate, VECTOR(arrays))                                                                                    \
    X(concatenate_axis, VECTOR(arrays), INT(axis))                                                                    \
    X(stack, VECTOR(arrays))                                                                                          \
    X(stack_axis, VECTOR(arrays), INT(axis))                                                                          \
    X(take, ARRAY(a), ARRAY(indices))                                                                                 \
    X(take_axis, ARRAY(a), ARRAY(indices), INT(axis))                                                                 \
    X(take_along_axis, ARRAY(a), ARRAY(indices), INT(axis))                                                           \
    X(gather, ARRAY(a), VECTOR(indices), INTS(axes), INTS(slice_sizes))                                               \
    X(gather_single, ARRAY(a), ARRAY(indices), INT(axis), INTS(slice_sizes))                                          \
    X(put_along_axis, ARRAY(a), ARRAY(indices), ARRAY(values), INT(axis))                                             \
    X(scatter_add_axis, ARRAY(a), ARRAY(indices), ARRAY(values), INT(axis))                                           \
    SCATTER(X, scatter) SCATTER(X, scatter_add) SCATTER(X, scatter_prod) SCATTER(X, scatter_max) SCATTER(X, scatter_min) \
    X(masked_scatter, ARRAY(a), ARRAY(mask), ARRAY(src))                                                              \
    X(round, ARRAY(a), INT(decimals))                                                                                 \
    X(where, ARRAY(condition), ARRAY(x), ARRAY(y))                                                                    \
    X(clip, ARRAY(a), ARRAY(a_min), ARRAY(a_max))                                                                     \
    X(nan_to_num, ARRAY(a), FLOAT(nan), OPT_FLOAT(posinf), OPT_FLOAT(neginf))                                         \
    X(isclose, ARRAY(a), ARRAY(b), DOUBLE(rtol), DOUBLE(atol), BOOL(equal_nan))                                       \
    X(allclose, ARRAY(a), ARRAY(b), DOUBLE(rtol), DOUBLE(atol), BOOL(equal_nan))                                      \
    X(array_equal, ARRAY(a), ARRAY(b), BOOL(equal_nan))                                                               \
    VARIANCE(X, var) VARIANCE(X, std)                                                                                 \
    X(median, ARRAY(a), INTS(axes), BOOL(keepdims))                                                                   \
    REDUCE(X, sum) REDUCE(X, prod) REDUCE(X, max) REDUCE(X, min)                                                      \
    REDUCE(X, mean) REDUCE(X, all) REDUCE(X, any) REDUCE(X, logsumexp)                                                \
    X(argmax, ARRAY(a), BOOL(keepdims))                                                                               \
    X(argmax_axis, ARRAY(a), INT(axis), BOOL(keepdims))                                                               \
    X(argmin, ARRAY(a), BOOL(keepdims))                                                                               \
    X(argmin_axis, ARRAY(a), INT(axis), BOOL(keepdims))                                                               \
    X(softmax, ARRAY(a), BOOL(precise))                                                                               \
    X(softmax_axis, ARRAY(a), INT(axis), BOOL(precise))                                                               \
    X(softmax_axes, ARRAY(a), INTS(axes), BOOL(precise))                                                              \
    SCAN(X, cumsum) SCAN(X, cumprod) SCAN(X, cummax) SCAN(X, cummin) SCAN(X, logcumsumexp)                            \
    X(sort, ARRAY(a))                                                                                                 \
    X(sort_axis, ARRAY(a), INT(axis))                                                                                 \
    X(argsort, ARRAY(a))                                                                                              \
    X(argsort_axis, ARRAY(a), INT(axis))                                                                              \
    X(partition, ARRAY(a), INT(kth))                                                                                  \
    X(partition_axis, ARRAY(a), INT(kth), INT(axis))                                                                  \
    X(argpartition, ARRAY(a), INT(kth))                                                                               \
    X(argpartition_axis, ARRAY(a), INT(kth), INT(axis))                                                               \
    X(topk, ARRAY(a), INT(k))                                                                                         \
    X(topk_axis, ARRAY(a), INT(k), INT(axis))                                                                         \
    X(matmul, ARRAY(a), ARRAY(b))                                                                                     \
    X(addmm, ARRAY(c), ARRAY(a), ARRAY(b), FLOAT(alpha), FLOAT(beta))                                                 \
    X(conv_general, ARRAY(input), ARRAY(weight), INTS(stride), INTS(padding_lo), INTS(padding_hi), INTS(kernel_dilation), \
      INTS(input_dilation), INT(groups), BOOL(flip))                                                                  \
    X(conv1d, ARRAY(input), ARRAY(weight), INT(stride), INT(padding), INT(dilation), INT(groups))                     \
    X(conv2d, ARRAY(input), ARRAY(weight), TWO(stride), TWO(padding), TWO(dilation), INT(groups))                     \
    X(conv3d, ARRAY(input), ARRAY(weight), THREE(stride), THREE(padding), THREE(dilation), INT(groups))               \
    X(conv_transpose1d, ARRAY(input), ARRAY(weight), INT(stride), INT(padding), INT(dilation), INT(output_padding),   \
      INT(groups))                                                                                                    \
    X(conv_transpose2d, ARRAY(input), ARRAY(weight), TWO(stride), TWO(padding), TWO(dilation), TWO(output_padding),   \
      INT(groups))                                                                                                    \
    X(conv_transpose3d, ARRAY(input), ARRAY(weight), THREE(stride), THREE(padding), THREE(dilation),                  \
      THREE(output_padding), INT(groups))                                                                             \
    FFT(X, fft_fft) FFT(X, fft_ifft) FFT(X, fft_rfft) FFT(X, fft_irfft)                                               \
    X(fft_fftshift, ARRAY(a), INTS(axes))                                                                             \
    X(fft_ifftshift, ARRAY(a), INTS(axes))                                                                            \
    X(fft_fftfreq, INT(n), DOUBLE(d))                                                                                 \
    X(fft_rfftfreq, INT(n), DOUBLE(d))                                                                                \
    X(quantized_matmul, ARRAY(x), ARRAY(w), ARRAY(scales), ARRAY(biases), BOOL(transpose), QUANT)                     \
    X(dequantize, ARRAY(w), ARRAY(scales), ARRAY(biases), QUANT, ARRAY(global_scale), OPT_DTYPE(dtype))               \
    X(inner, ARRAY(a), ARRAY(b))                                                                                      \
    X(outer, ARRAY(a), ARRAY(b))                                                                                      \
    X(kron, ARRAY(a), ARRAY(b))                                                                                       \
    X(tensordot, ARRAY(a), ARRAY(b), INTS(axes_a), INTS(axes_b))                                                      \
    X(tensordot_axis, ARRAY(a), ARRAY(b), INT(axis))                                                                  \
    X(einsum, STRING(subscripts), VECTOR(operands))                                                                   \
    X(segmented_mm, ARRAY(a), ARRAY(b), ARRAY(segments))                                                              \
    X(block_masked_mm, ARRAY(a), ARRAY(b), INT(block_size), ARRAY(mask_out), ARRAY(mask_lhs), ARRAY(mask_rhs))        \
    X(qqmm, ARRAY(x), ARRAY(w), ARRAY(w_scales), QUANT, ARRAY(global_scale_x), ARRAY(global_scale_w))                 \
    X(gather_qqmm, ARRAY(x), ARRAY(w), ARRAY(w_scales), ARRAY(lhs_indices), ARRAY(rhs_indices), QUANT,                \
      ARRAY(global_scale_x), ARRAY(global_scale_w), BOOL(sorted_indices))                                             \
    X(fast_cross_entropy, ARRAY(logits), ARRAY(targets))                                                              \
    X(fast_cross_entropy_vjp, ARRAY(logits), ARRAY(targets), ARRAY(loss), ARRAY(cotangent))                           \
    X(fast_scaled_dot_product_attention_logsumexp, ARRAY(queries), ARRAY(keys), FLOAT(scale), STRING(mask_mode),      \
      ARRAY(mask_arr), ARRAY(sinks))                                                                                  \
    X(hadamard_transform, ARRAY(a), OPT_FLOAT(scale))                                                                 \
    X(gather_mm, ARRAY(a), ARRAY(b), ARRAY(lhs_indices), ARRAY(rhs_indices), BOOL(sorted_indices))                    \
    X(gather_qmm, ARRAY(x), ARRAY(w), ARRAY(scales), ARRAY(biases), ARRAY(lhs_indices), ARRAY(rhs_indices),           \
      BOOL(transpose), QUANT, BOOL(sorted_indices))                                                                   \
    X(to_fp8, ARRAY(x))                                                                                               \
    X(from_fp8, ARRAY(x), DTYPE(dtype))                                                                               \
    X(fast_rms_norm, ARRAY(x), ARRAY(weight), FLOAT(eps))                                                             \
    X(fast_layer_norm, ARRAY(x), ARRAY(weight), ARRAY(bias), FLOAT(eps))                                              \
    X(fast_rope, ARRAY(x), INT(dims), BOOL(traditional), OPT_FLOAT(base), FLOAT(scale), INT(offset), ARRAY(freqs))    \
    X(fast_rope_dynamic, ARRAY(x), INT(dims), BOOL(traditional), OPT_FLOAT(base), FLOAT(scale), ARRAY(offset),        \
      ARRAY(freqs))                                                                                                   \
    X(fast_scaled_dot_product_attention, ARRAY(queries), ARRAY(keys), ARRAY(values), FLOAT(scale), STRING(mask_mode), \
      ARRAY(mask_arr), ARRAY(sinks))                                                                                  \
    X(random_split_num, ARRAY(key), INT(num))                                                                         \
    X(random_bits, INTS(shape), INT(width), ARRAY(key))                                                               \
    X(random_uniform, ARRAY(low), ARRAY(high), INTS(shape), DTYPE(dtype), ARRAY(key))                                 \
    X(random_normal, INTS(shape), DTYPE(dtype), FLOAT(loc), FLOAT(scale), ARRAY(key))                                 \
    X(random_gumbel, INTS(shape), DTYPE(dtype), ARRAY(key))                                                           \
    X(random_categorical, ARRAY(logits), INT(axis), ARRAY(key))                                                       \
    X(random_categorical_shape, ARRAY(logits), INT(axis), INTS(shape), ARRAY(key))                                    \
    X(random_categorical_num_samples, ARRAY(logits_), INT(axis), INT(num_samples), ARRAY(key))                        \
    X(random_bernoulli, ARRAY(p), INTS(shape), ARRAY(key))                                                            \
    X(random_randint, ARRAY(low), ARRAY(high), INTS(shape), DTYPE(dtype), ARRAY(key))                                 \
    X(random_normal_broadcast, INTS(shape), DTYPE(dtype), ARRAY(loc), ARRAY(scale), ARRAY(key))                       \
    X(random_truncated_normal, ARRAY(lower), ARRAY(upper), INTS(shape), DTYPE(dtype), ARRAY(key))                     \
    X(random_laplace, INTS(shape), DTYPE(dtype), FLOAT(loc), FLOAT(scale), ARRAY(key))                                \
    X(random_permutation, ARRAY(x), INT(axis), ARRAY(key))                                                            \
    X(random_permutation_arange, INT(x), ARRAY(key))                                                                  \
    X(linalg_tri_inv, ARRAY(a), BOOL(upper))                                                                          \
    X(linalg_cholesky, ARRAY(a), BOOL(upper))                                                                         \
    X(linalg_cholesky_inv, ARRAY(a), BOOL(upper))                                                                     \
    X(linalg_inv, ARRAY(a))                                                                                           \
    X(linalg_pinv, ARRAY(a))                                                                                          \
    X(linalg_solve, ARRAY(a), ARRAY(b))                                                                               \
    X(linalg_solve_triangular, ARRAY(a), ARRAY(b), BOOL(upper))                                                       \
    X(linalg_eigvalsh, ARRAY(a), STRING(UPLO))                                                                        \
    X(divide_truncate, ARRAY(a), ARRAY(b))                                                                            \
    X(equal_nan, ARRAY(a), ARRAY(b))                                                                                  \
    X(random_multivariate_normal, ARRAY(mean), ARRAY(cov), INTS(shape), DTYPE(dtype), ARRAY(key))                     \
    X(linalg_norm, ARRAY(a), DOUBLE(ord), INTS(axis), BOOL(keepdims))                                                 \
    X(linalg_norm_matrix, ARRAY(a), STRING(ord), INTS(axis), BOOL(keepdims))                                          \
    X(linalg_norm_l2, ARRAY(a), INTS(axis), BOOL(keepdims))                                                           \
    X(linalg_cross, ARRAY(a), ARRAY(b), INT(axis))

/* Functions with a vector of results. */
#define VECTOR_RESULT_FUNCTIONS(X)                                                                                    \
    X(split, ARRAY(a), INT(num_splits), INT(axis))                                                                    \
    X(split_sections, ARRAY(a), INTS(indices), INT(axis))                                                             \
    X(divmod, ARRAY(a), ARRAY(b))                                                                                     \
    X(meshgrid, VECTOR(arrays), BOOL(sparse), STRING(indexing))                                                       \
    X(broadcast_arrays, VECTOR(inputs))                                                                               \
    X(linalg_lu, ARRAY(a))                                                                                            \
    X(linalg_svd, ARRAY(a), BOOL(compute_uv))                                                                         \
    X(fast_rms_norm_vjp, ARRAY(x), ARRAY(weight), ARRAY(cotangent), FLOAT(eps))                                       \
    X(fast_layer_norm_vjp, ARRAY(x), ARRAY(weight), ARRAY(bias), ARRAY(cotangent), FLOAT(eps))                        \
    X(fast_gated_delta_update, ARRAY(queries), ARRAY(keys), ARRAY(values), ARRAY(gates), ARRAY(beta),                 \
      ARRAY(initial_state), ARRAY(mask))                                                                              \
    X(fast_gated_delta_update_vjp, ARRAY(queries), ARRAY(keys), ARRAY(values), ARRAY(gates), ARRAY(beta),             \
      ARRAY(initial_state), ARRAY(cotangent), ARRAY(state_cotangent))                                                 \
    X(fast_scaled_dot_product_attention_vjp, ARRAY(queries), ARRAY(keys), ARRAY(values), FLOAT(scale),                \
      STRING(mask_mode), ARRAY(mask_arr), ARRAY(sinks), ARRAY(output), ARRAY(logsumexp), ARRAY(cotangent))            \
    X(quantize, ARRAY(w), QUANT, ARRAY(global_scale))

/* Functions with two results. */
#define TWO_RESULT_FUNCTIONS(X)                                                                                       \
    X(linalg_lu_factor, ARRAY(a))                                                                                     \
    X(linalg_qr, ARRAY(a))                                                                                            \
    X(linalg_eigh, ARRAY(a), STRING(UPLO))                                                                            \
    X(random_split, ARRAY(key))

/* Functions with one result and no stream. */
#define STREAMLESS_FUNCTIONS(X)                                                                                       \
    X(random_key, U64(seed))
/* Functions with a vector of results and no stream. */
#define STREAMLESS_VECTOR_FUNCTIONS(X)                                                                                \
    X(depends, VECTOR(inputs), VECTOR(dependencies))

/* ---- parameters ---- */

#define INVENT(kind) if (c->invent) c->invent(c, name, kind)

static const cJSON *argument(struct call *c, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(c->args, name);
    if (!item) complain(&c->problem, "the case has no parameter %s", name);
    return item;
}

static mlxvk_array array_of(struct call *c, const char *name)
{
    INVENT('a');
    for (int i = 0; i < c->array_count; i++)
        if (!strcmp(c->arrays[i].name, name)) return c->arrays[i].array;
    complain(&c->problem, "the case has no operand %s", name);
    return (mlxvk_array){ NULL };
}

static mlxvk_vector_array vector_of(struct call *c, const char *name)
{
    INVENT('v');
    for (int i = 0; i < c->vector_count; i++)
        if (!strcmp(c->vectors[i].name, name)) return c->vectors[i].vector;
    complain(&c->problem, "the case has no list of operands %s", name);
    return (mlxvk_vector_array){ NULL };
}

static double number_of(struct call *c, const cJSON *item, const char *name)
{
    const char *text = cJSON_GetStringValue(item);
    if (cJSON_IsNumber(item)) return item->valuedouble;
    if (text && !strcmp(text, "inf")) return INFINITY;
    if (text && !strcmp(text, "-inf")) return -INFINITY;
    if (text && !strcmp(text, "nan")) return NAN;
    complain(&c->problem, "parameter %s is not a number", name);
    return 0;
}

static double double_of(struct call *c, const char *name)
{
    INVENT('n');
    return number_of(c, argument(c, name), name);
}

/* A number that an integer type must hold. */
static double integer_of(struct call *c, const cJSON *item, const char *name, double low, double high)
{
    double value = number_of(c, item, name);
    if (value >= low && value <= high && value == trunc(value)) return value;
    complain(&c->problem, "parameter %s is not an integer in its range", name);
    return 0;
}

static int int_of(struct call *c, const char *name)
{
    INVENT('i');
    return (int)integer_of(c, argument(c, name), name, INT32_MIN, INT32_MAX);
}

static uint64_t u64_of(struct call *c, const char *name)
{
    INVENT('u');
    return (uint64_t)integer_of(c, argument(c, name), name, 0, 0x1p53);     /* JSON numbers are doubles */
}

static bool bool_of(struct call *c, const char *name)
{
    INVENT('b');
    const cJSON *item = argument(c, name);
    if (!cJSON_IsBool(item)) complain(&c->problem, "parameter %s is not a boolean", name);
    return cJSON_IsTrue(item);
}

static const char *string_of(struct call *c, const char *name)
{
    INVENT('s');
    const cJSON *item = argument(c, name);
    const char *text = cJSON_GetStringValue(item);
    if (!text && !(c->invent && cJSON_IsNull(item))) complain(&c->problem, "parameter %s is not a string", name);
    return text;
}

static mlxvk_dtype dtype_of(struct call *c, const char *name)
{
    INVENT('t');
    mlxvk_dtype dtype = MLXVK_BOOL;
    const char *text = string_of(c, name);
    if (c->invent && text && *text == '#') return (mlxvk_dtype)atoi(text + 1);
    if (text && !dtype_by_name(&dtype, text)) complain(&c->problem, "parameter %s is no dtype: %s", name, text);
    return dtype;
}

static mlxvk_fft_norm norm_of(struct call *c, const char *name)
{
    const char *text = string_of(c, name);
    if (c->invent && text && *text == '#') return (mlxvk_fft_norm)atoi(text + 1);
    if (text && !strcmp(text, "forward")) return MLXVK_FFT_NORM_FORWARD;
    if (text && !strcmp(text, "ortho")) return MLXVK_FFT_NORM_ORTHO;
    if (text && strcmp(text, "backward")) complain(&c->problem, "parameter %s is no norm: %s", name, text);
    return MLXVK_FFT_NORM_BACKWARD;
}

static size_t count_of(struct call *c, const char *name)
{
    INVENT('l');
    return (size_t)cJSON_GetArraySize(argument(c, name));
}

/* The list of `name`, or NULL for null, and for an object, whose size is the count that goes with it. */
static const cJSON *list_of(struct call *c, const char *name, int used)
{
    const cJSON *list = argument(c, name);
    if (cJSON_IsNull(list) || (c->invent && cJSON_IsObject(list))) return NULL;
    if (cJSON_IsArray(list) && cJSON_GetArraySize(list) <= MAX_INTS - used) return list;
    complain(&c->problem, "parameter %s is not a list, or too long", name);
    return NULL;
}

static const int *ints_of(struct call *c, const char *name)
{
    INVENT('l');
    const cJSON *list = list_of(c, name, c->ints_used), *item;
    int *first = c->ints + c->ints_used;
    cJSON_ArrayForEach(item, list) c->ints[c->ints_used++] = (int)integer_of(c, item, name, INT32_MIN, INT32_MAX);
    return list ? first : NULL;
}

static const int64_t *longs_of(struct call *c, const char *name)
{
    INVENT('l');
    const cJSON *list = list_of(c, name, c->longs_used), *item;
    int64_t *first = c->longs + c->longs_used;
    cJSON_ArrayForEach(item, list) c->longs[c->longs_used++] = (int64_t)integer_of(c, item, name, -0x1p53, 0x1p53);
    return list ? first : NULL;
}

static mlxvk_optional_int opt_int_of(struct call *c, const char *name)
{
    INVENT('I');
    if (cJSON_IsNull(argument(c, name))) return (mlxvk_optional_int){ 0, false };
    return (mlxvk_optional_int){ int_of(c, name), true };
}

static mlxvk_optional_float opt_float_of(struct call *c, const char *name)
{
    INVENT('N');
    if (cJSON_IsNull(argument(c, name))) return (mlxvk_optional_float){ 0, false };
    return (mlxvk_optional_float){ (float)double_of(c, name), true };
}

static mlxvk_optional_dtype opt_dtype_of(struct call *c, const char *name)
{
    INVENT('T');
    if (cJSON_IsNull(argument(c, name))) return (mlxvk_optional_dtype){ MLXVK_BOOL, false };
    return (mlxvk_optional_dtype){ dtype_of(c, name), true };
}

/* ---- calls ---- */

#define DEFINE_ONE(name, ...)                                                                                         \
    static int call_##name(struct call *c) { return mlxvk_##name(&c->results[0], __VA_ARGS__, c->stream); }
#define DEFINE_VECTOR(name, ...)                                                                                      \
    static int call_##name(struct call *c) { return mlxvk_##name(&c->result_vector, __VA_ARGS__, c->stream); }
#define DEFINE_TWO(name, ...)                                                                                         \
    static int call_##name(struct call *c)                                                                            \
    {                                                                                                                 \
        return mlxvk_##name(&c->results[0], &c->results[1], __VA_ARGS__, c->stream);                                  \
    }
#define DEFINE_STREAMLESS(name, ...)                                                                                  \
    static int call_##name(struct call *c) { return mlxvk_##name(&c->results[0], __VA_ARGS__); }
#define DEFINE_STREAMLESS_VECTOR(name, ...)                                                                           \
    static int call_##name(struct call *c) { return mlxvk_##name(&c->result_vector, __VA_ARGS__); }
#define DEFINE_UNARY(name)  DEFINE_ONE(name, ARRAY(a))
#define DEFINE_BINARY(name) DEFINE_ONE(name, ARRAY(a), ARRAY(b))
ONE_RESULT_FUNCTIONS(DEFINE_ONE)
VECTOR_RESULT_FUNCTIONS(DEFINE_VECTOR)
TWO_RESULT_FUNCTIONS(DEFINE_TWO)
STREAMLESS_FUNCTIONS(DEFINE_STREAMLESS)
STREAMLESS_VECTOR_FUNCTIONS(DEFINE_STREAMLESS_VECTOR)
MLXVK_UNARY_FUNCTIONS(DEFINE_UNARY)
MLXVK_BINARY_FUNCTIONS(DEFINE_BINARY)

#define ROW(name, kind)       { #name, kind, call_##name },
#define ROW_ONE(name, ...)    ROW(name, ONE_RESULT)
#define ROW_VECTOR(name, ...) ROW(name, VECTOR_RESULT)
#define ROW_TWO(name, ...)    ROW(name, TWO_RESULTS)
#define ROW_PLAIN(name)       ROW(name, ONE_RESULT)

static const struct operation operations[] = {
    ONE_RESULT_FUNCTIONS(ROW_ONE)
    VECTOR_RESULT_FUNCTIONS(ROW_VECTOR)
    TWO_RESULT_FUNCTIONS(ROW_TWO)
    STREAMLESS_FUNCTIONS(ROW_ONE)
    STREAMLESS_VECTOR_FUNCTIONS(ROW_VECTOR)
    MLXVK_UNARY_FUNCTIONS(ROW_PLAIN)
    MLXVK_BINARY_FUNCTIONS(ROW_PLAIN)
};

size_t operation_count(void) { return sizeof operations / sizeof *operations; }
const struct operation *operation_at(size_t i) { return &operations[i]; }

const struct operation *find_operation(const char *name)
{
    for (size_t i = 0; i < operation_count(); i++)
        if (!strcmp(operations[i].name, name)) return &operations[i];
    return NULL;
}
