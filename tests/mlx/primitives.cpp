/* The table from MLX's primitives to mlxvk's calls: see bridge.h.                            SPDX-License-Identifier: MIT */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>

#include "bridge.h"

namespace mlxvk_mlx {

using namespace mlx::core;

/* ---- a call ---- */

/* One primitive with its operands as mlxvk sees them. Inside a Compiled there are no arrays of MLX, only these. */
struct Job {
  Primitive& p;
  mlxvk_array* in;
  size_t inputs;
  mlxvk_array* out;                                        // { NULL }, or the first input where that may be overwritten
  const array* like;                                       // the outputs' dtypes and, outside a Compiled, shapes
  mlxvk_stream s;
  int number = 0;                                          // the operand { NULL } that the host knows, see host_number()
  size_t outputs = 1;
  uint32_t written = 0;                                    // by a kernel of the program's, a bit for each operand

  const int* shape() const { return like->shape().data(); }
  size_t ndim() const { return like->ndim(); }
  template <class P> const P& as() const { return static_cast<const P&>(p); }
};

using Native = int (*)(Job&);
using Layout = void (*)(Primitive&, const Arrays&, Arrays&);

struct Row {
  const char* name;                                        // the type's, in mlx::core
  bool graph;                                              // it is one of fast::Custom's
  State state;
  Native native;                                           // 0 or mlxvk's error code
  Layout layout;                                           // MLX's arrays only: no data moves, or rarely
  bool in_place;                                           // the first input may be overwritten where MLX donates it
  bool whole;                                              // each operand must fit into one storage-buffer binding
  const char* note;
};

struct Vector {
  mlxvk_vector_array v = mlxvk_vector_array_new();
  Vector() = default;
  Vector(const mlxvk_array* data, size_t size) { mlxvk_vector_array_append_data(v, data, size); }
  Vector(const Vector&) = delete;
  ~Vector() { mlxvk_vector_array_free(v); }
};

static const mlxvk_array none{};

/* A call's several results into the primitive's outputs. */
static int spread(Job& j, const Vector& all) {
  int code = 0;
  for (size_t i = 0; i < mlxvk_vector_array_size(all.v) && !code; i++) code = mlxvk_vector_array_get(&j.out[i], all.v, i);
  return code;
}

/* ---- shapes of calls that many primitives share ---- */

template <auto f> int unary(Job& j) { return f(j.out, j.in[0], j.s); }
template <auto f> int binary(Job& j) { return f(j.out, j.in[0], j.in[1], j.s); }
template <auto f> int ternary(Job& j) { return f(j.out, j.in[0], j.in[1], j.in[2], j.s); }

using Binary = int (*)(mlxvk_array*, mlxvk_array, mlxvk_array, mlxvk_stream);

/* The primitive keeps complex64; the front takes the real part. */
static int abs_native(Job& j) {
  if (mlxvk_array_dtype(j.in[0]) != MLXVK_COMPLEX64) return mlxvk_abs(j.out, j.in[0], j.s);
  Handle size;
  int code = mlxvk_abs(&size, j.in[0], j.s);
  return code ? code : mlxvk_astype(j.out, size, MLXVK_COMPLEX64, j.s);
}

static int log_native(Job& j) {
  switch (j.as<Log>().state()) {
    case Log::two: return mlxvk_log2(j.out, j.in[0], j.s);
    case Log::ten: return mlxvk_log10(j.out, j.in[0], j.s);
    default: return mlxvk_log(j.out, j.in[0], j.s);
  }
}

static int sqrt_native(Job& j) { return (j.as<Sqrt>().state() ? mlxvk_rsqrt : mlxvk_sqrt)(j.out, j.in[0], j.s); }

static int round_native(Job& j) { return mlxvk_round(j.out, j.in[0], 0, j.s); }

static int astype_native(Job& j) {
  return mlxvk_astype(j.out, j.in[0], mlxvk_dtype(int(j.as<AsType>().state().val())), j.s);
}

static int bitwise_native(Job& j) {
  static const Binary calls[] = {mlxvk_bitwise_and, mlxvk_bitwise_or, mlxvk_bitwise_xor, mlxvk_left_shift, mlxvk_right_shift};
  return calls[j.as<BitwiseBinary>().state()](j.out, j.in[0], j.in[1], j.s);
}

static int equal_native(Job& j) { return (j.as<Equal>().state() ? mlxvk_equal_nan : mlxvk_equal)(j.out, j.in[0], j.in[1], j.s); }

/* In integers the primitive truncates. */
static int divide_native(Job& j) {
  const bool integers = mlxvk_array_dtype(j.in[0]) < MLXVK_FLOAT16;
  return (integers ? mlxvk_divide_truncate : mlxvk_divide)(j.out, j.in[0], j.in[1], j.s);
}

#if MLX_VERSION_NUMERIC >= 32000
static int divmod_native(Job& j) {
  Vector all;
  int code = mlxvk_divmod(&all.v, j.in[0], j.in[1], j.s);
  return code ? code : spread(j, all);
}
#else
/* As the wheel's CPU has it: the quotient towards 0, the remainder with the dividend's sign. Ours has the divisor's: where
 * they differ, one divisor less. */
static int divmod_native(Job& j) {
  const mlxvk_array x = j.in[0], y = j.in[1];
  const bool integers = mlxvk_array_dtype(x) < MLXVK_FLOAT16;
  Handle r, zero, x_negative, r_negative, other, shifted, quotient, up, down, negative;
  int code = mlxvk_remainder(&r, x, y, j.s);
  if (!code) code = mlxvk_zeros_like(&zero, r, j.s);
  if (!code) code = mlxvk_less(&x_negative, x, zero, j.s);
  if (!code) code = mlxvk_less(&r_negative, r, zero, j.s);
  if (!code) code = mlxvk_not_equal(&other, x_negative, r_negative, j.s);
  if (!code) code = mlxvk_not_equal(&negative, r, zero, j.s);
  if (!code) code = mlxvk_logical_and(&other, other, negative, j.s);
  if (!code) code = mlxvk_subtract(&shifted, r, y, j.s);
  if (!code) code = mlxvk_where(&j.out[1], other, shifted, r, j.s);
  if (!code && integers) return mlxvk_divide_truncate(&j.out[0], x, y, j.s);
  if (!code) code = mlxvk_divide(&quotient, x, y, j.s);
  if (!code) code = mlxvk_less(&negative, quotient, zero, j.s);
  if (!code) code = mlxvk_ceil(&up, quotient, j.s);
  if (!code) code = mlxvk_floor(&down, quotient, j.s);
  return code ? code : mlxvk_where(&j.out[0], negative, up, down, j.s);
}
#endif

static int broadcast_native(Job& j) { return mlxvk_array_set(j.out, j.in[0]); }

/* ---- creation ---- */

static int arange_native(Job& j) {
  auto [start, stop, step] = j.as<Arange>().state();
  return mlxvk_arange(j.out, start, stop, step, dtype_of(*j.like), j.s);
}

static int full_native(Job& j) { return mlxvk_full(j.out, j.shape(), j.ndim(), j.in[0], dtype_of(*j.like), j.s); }

/* Parts of a call that mlxvk does one by one, joined along their first axis and seen as the primitive's result. */
template <class F> int in_parts(Job& j, int parts, F part) {
  Vector all;
  Handle joined;
  int code = 0;
  if (parts == 1) {                                        // the usual case: nothing to join
    code = part(0, &joined);
    return code ? code : mlxvk_reshape(j.out, joined, j.shape(), j.ndim(), j.s);
  }
  for (int i = 0; i < parts && !code; i++) {
    Handle one;
    code = part(i, &one);
    if (!code) code = mlxvk_vector_array_append_value(all.v, one);
  }
  if (!code) code = mlxvk_concatenate_axis(&joined, all.v, 0, j.s);
  return code ? code : mlxvk_reshape(j.out, joined, j.shape(), j.ndim(), j.s);
}

/* Row i of an array's first axis (with that axis). */
static int row_of(mlxvk_array* res, mlxvk_array a, int i, mlxvk_stream s) {
  std::vector<int> start(mlxvk_array_ndim(a), 0), stop(mlxvk_array_shape(a), mlxvk_array_shape(a) + mlxvk_array_ndim(a)), step(start.size(), 1);
  start[0] = i;
  stop[0] = i + 1;
  return mlxvk_slice(res, a, start.data(), start.size(), stop.data(), stop.size(), step.data(), step.size(), s);
}

/* As many numbers from each key. */
static int random_bits_native(Job& j) {
  const int keys = int(mlxvk_array_size(j.in[0]) / 2), each = keys ? int(j.like->size() / keys) : 0;
  const int width = j.as<RandomBits>().state().second;
  const int pairs[] = {keys, 2}, pair = 2;
  Handle rows;
  int code = mlxvk_reshape(&rows, j.in[0], pairs, 2, j.s);
  if (!code && keys == 0) return mlxvk_zeros(j.out, j.shape(), j.ndim(), dtype_of(*j.like), j.s);
  return code ? code : in_parts(j, keys, [&](int i, mlxvk_array* res) {
    Handle row, key;
    int c = row_of(&row, rows, i, j.s);
    if (!c) c = mlxvk_reshape(&key, row, &pair, 1, j.s);
    return c ? c : mlxvk_random_bits(res, &each, 1, width, key, j.s);
  });
}

/* ---- shape ---- */

static int concatenate_native(Job& j) {
  Vector all(j.in, j.inputs);
  return mlxvk_concatenate_axis(j.out, all.v, j.as<Concatenate>().state(), j.s);
}

/* What a slice update does with what is there; `set` (and MLX before 0.31) replaces it. */
static int reduced_update(mlxvk_array* res, Job& j, Binary reduce, Few<int, 8>& start, Few<int, 8>& stop, Few<int, 8>& step) {
  Handle there;
  int code = mlxvk_slice(&there, j.in[0], start.data(), start.size(), stop.data(), stop.size(), step.data(), step.size(), j.s);
  return code ? code : reduce(res, there, j.in[1], j.s);
}

/* From its start and strides and the update's shape, as MLX has it: the end that it keeps may be stale. */
static int slice_update_native(Job& j) {
  Binary reduce = nullptr;
#if MLX_VERSION_NUMERIC >= 31000
  static const Binary calls[] = {mlxvk_maximum, mlxvk_minimum, mlxvk_add, mlxvk_multiply, nullptr};
  auto [type, first, unused, strides] = j.as<SliceUpdate>().state();
  reduce = calls[type];
#else
  auto [first, unused, strides] = j.as<SliceUpdate>().state();
#endif
  if (!mlxvk_array_size(j.in[1])) return mlxvk_copy(j.out, j.in[0], j.s);
  Few<int, 8> start(first.size()), step(first.size()), stop(first.size());
  for (size_t i = 0; i < start.size(); i++) {
    start[i] = first[i];
    step[i] = strides[i];
    const int last = start[i] + (mlxvk_array_dim(j.in[1], int(i)) - 1) * step[i], size = mlxvk_array_dim(j.in[0], int(i));
    stop[i] = step[i] > 0 ? last + 1 : last > 0 ? last - 1 : -size - 1;
  }
  Handle reduced;
  int code = reduce ? reduced_update(&reduced, j, reduce, start, stop, step) : 0;
  return code ? code : mlxvk_slice_update(j.out, j.in[0], reduce ? reduced.a : j.in[1], start.data(), start.size(), stop.data(),
                                          stop.size(), step.data(), step.size(), j.s);
}

static int pad_native(Job& j) {
  auto [axes, low, high] = j.as<Pad>().state();
  return mlxvk_pad(j.out, j.in[0], axes.data(), axes.size(), low.data(), low.size(), high.data(), high.size(), j.in[1], "constant", j.s);
}

static int gather_native(Job& j) {
  auto [axes, sizes] = j.as<Gather>().state();
  Vector indices(j.in + 1, j.inputs - 1);
  return mlxvk_gather(j.out, j.in[0], indices.v, axes.data(), axes.size(), sizes.data(), sizes.size(), j.s);
}

static int gather_axis_native(Job& j) {
  return mlxvk_take_along_axis(j.out, j.in[0], j.in[1], j.as<GatherAxis>().state(), j.s);
}

static int scatter_axis_native(Job& j) {
  auto [reduce, axis] = j.as<ScatterAxis>().state();
  return (reduce == ScatterAxis::None ? mlxvk_put_along_axis : mlxvk_scatter_add_axis)(j.out, j.in[0], j.in[1], j.in[2], axis, j.s);
}

static int scatter_native(Job& j) {
  static int (*const calls[])(mlxvk_array*, mlxvk_array, mlxvk_vector_array, mlxvk_array, const int*, size_t, mlxvk_stream) = {
      mlxvk_scatter_max, mlxvk_scatter_min, mlxvk_scatter_add, mlxvk_scatter_prod, mlxvk_scatter};
  auto [reduce, axes] = j.as<Scatter>().state();
  Vector indices(j.in + 1, j.inputs - 2);
  return calls[reduce](j.out, j.in[0], indices.v, j.in[j.inputs - 1], axes.data(), axes.size(), j.s);
}

/* ---- reductions, scans, sorting ---- */

static int reduce_native(Job& j) {
  static int (*const calls[])(mlxvk_array*, mlxvk_array, const int*, size_t, bool, mlxvk_stream) = {
      mlxvk_all_axes, mlxvk_any_axes, mlxvk_sum_axes, mlxvk_prod_axes, mlxvk_min_axes, mlxvk_max_axes};
  auto [type, axes] = j.as<Reduce>().state();
  return calls[type](j.out, j.in[0], axes.data(), axes.size(), true, j.s);
}

static int arg_reduce_native(Job& j) {
  auto [type, axis] = j.as<ArgReduce>().state();
  return (type == ArgReduce::ArgMin ? mlxvk_argmin_axis : mlxvk_argmax_axis)(j.out, j.in[0], axis, true, j.s);
}

#if MLX_VERSION_NUMERIC >= 32003
static int searchsorted_native(Job& j) {
  return mlxvk_searchsorted(j.out, j.in[0], j.in[1], j.as<SearchSorted>().state() ? "right" : "left", j.s);
}
#endif

static int softmax_native(Job& j) { return mlxvk_softmax_axis(j.out, j.in[0], -1, j.as<Softmax>().state(), j.s); }
static int logsumexp_native(Job& j) { return mlxvk_logsumexp_axis(j.out, j.in[0], -1, true, j.s); }

static int scan_native(Job& j) {
  static int (*const calls[])(mlxvk_array*, mlxvk_array, int, bool, bool, mlxvk_stream) = {
      mlxvk_cummax, mlxvk_cummin, mlxvk_cumsum, mlxvk_cumprod, mlxvk_logcumsumexp};
  auto [type, axis, reverse, inclusive] = j.as<Scan>().state();
  return calls[type](j.out, j.in[0], axis, reverse, inclusive, j.s);
}

static int sort_native(Job& j) { return mlxvk_sort_axis(j.out, j.in[0], j.as<Sort>().state(), j.s); }
static int argsort_native(Job& j) { return mlxvk_argsort_axis(j.out, j.in[0], j.as<ArgSort>().state(), j.s); }

template <class P, auto f> int partition_native(Job& j) {
  auto [kth, axis] = j.as<P>().state();
  return f(j.out, j.in[0], kth, axis, j.s);
}

/* ---- matrix ---- */

static int addmm_native(Job& j) {
  auto [alpha, beta] = j.as<AddMM>().state();
  return mlxvk_addmm(j.out, j.in[2], j.in[0], j.in[1], alpha, beta, j.s);
}

static int slice_dynamic_native(Job& j) {
  auto [axes, size] = j.as<DynamicSlice>().state();
  return mlxvk_slice_dynamic(j.out, j.in[0], j.in[1], axes.data(), axes.size(), size.data(), size.size(), j.s);
}

static int slice_update_dynamic_native(Job& j) {
  auto axes = j.as<DynamicSliceUpdate>().state();
  return mlxvk_slice_update_dynamic(j.out, j.in[0], j.in[1], j.in[2], axes.data(), axes.size(), j.s);
}

/* The primitive works on batches: (B, ...), a mask of that shape, and each batch's source flattened. */
static int masked_scatter_native(Job& j) {
  const int whole = -1;
  return in_parts(j, mlxvk_array_dim(j.in[0], 0), [&](int i, mlxvk_array* res) {
    Handle row[3], flat[3];
    int code = 0;
    for (int k = 0; k < 3 && !code; k++) code = row_of(&row[k], j.in[k], i, j.s);
    for (int k = 0; k < 3 && !code; k++) code = mlxvk_reshape(&flat[k], row[k], &whole, 1, j.s);
    return code ? code : mlxvk_masked_scatter(res, flat[0], flat[1], flat[2], j.s);
  });
}

/* MLX's own variable, which it looks at with each convolution. */
static void limit_winograd() {
  static std::atomic<size_t> last{0};
  if (records()) return;                                   // who calls may be changing the environment
  const char* text = std::getenv("MLX_CONV_WINOGRAD_WORKING_SET");
  const long value = text ? std::strtol(text, nullptr, 10) : 0;
  const size_t bytes = value > 0 ? size_t(value) : 0;
  if (last.exchange(bytes) != bytes) mlxvk_device_set_winograd_limit(nullptr, bytes, device());
}

static int convolution_native(Job& j) {
  limit_winograd();
  auto [stride, low, high, dilation, input_dilation, groups, flip] = j.as<Convolution>().state();
  return mlxvk_conv_general(j.out, j.in[0], j.in[1], stride.data(), stride.size(), low.data(), low.size(), high.data(), high.size(),
                            dilation.data(), dilation.size(), input_dilation.data(), input_dilation.size(), groups, flip, j.s);
}

static int quantized_matmul_native(Job& j) {
  auto [group, bits, mode, transpose] = j.as<QuantizedMatmul>().state();
  auto call = [&, group = group, bits = bits, transpose = transpose](const char* name) {
    return mlxvk_quantized_matmul(j.out, j.in[0], j.in[1], j.in[2], j.inputs > 3 ? j.in[3] : none, transpose, {group, true},
                                  {bits, true}, name, j.s);
  };
  return mode == QuantizationMode::Affine ? call("affine") : call(quantization_mode_to_string(mode).c_str());
}

static int gather_mm_native(Job& j) {
  auto [left, right] = j.as<GatherMM>().state();
  return mlxvk_gather_mm(j.out, j.in[0], j.in[1], j.in[2], j.in[3], left || right, j.s);
}

static int gather_qmm_native(Job& j) {
  auto [group, bits, mode, transpose, left, right] = j.as<GatherQMM>().state();
  const mlxvk_array* indices = &j.in[j.inputs - 2];
  return mlxvk_gather_qmm(j.out, j.in[0], j.in[1], j.in[2], j.inputs > 5 ? j.in[3] : none, indices[0], indices[1], transpose,
                          {group, true}, {bits, true}, quantization_mode_to_string(mode).c_str(), left || right, j.s);
}

/* Inputs: a, b, then the result's mask where there is one, then those of a and b where they are. */
static int block_masked_mm_native(Job& j) {
  const bool masks = j.inputs > 3, of_result = j.inputs == 3 || j.inputs == 5;
  return mlxvk_block_masked_mm(j.out, j.in[0], j.in[1], j.as<BlockMaskedMM>().state(), of_result ? j.in[2] : none,
                               masks ? j.in[j.inputs - 2] : none, masks ? j.in[j.inputs - 1] : none, j.s);
}

/* Inputs: x, w, its scales where it is quantized, the two global scales where there are any. */
static int qqmm_native(Job& j) {
  auto [group, bits, mode] = j.as<QQMatmul>().state();
  const size_t own = mlxvk_array_dtype(j.in[1]) == MLXVK_UINT32 ? 3 : 2;
  const bool global = j.inputs > own;
  return mlxvk_qqmm(j.out, j.in[0], j.in[1], own > 2 ? j.in[2] : none, {group, true}, {bits, true},
                    quantization_mode_to_string(mode).c_str(), global ? j.in[own] : none, global ? j.in[own + 1] : none, j.s);
}

#if MLX_VERSION_NUMERIC >= 32003
/* Inputs: x, w, the two indices, then as QQMatmul. */
static int gather_qqmm_native(Job& j) {
  auto [group, bits, mode, left, right] = j.as<GatherQQMM>().state();
  const size_t own = mlxvk_array_dtype(j.in[1]) == MLXVK_UINT32 ? 5 : 4;
  const bool global = j.inputs > own;
  return mlxvk_gather_qqmm(j.out, j.in[0], j.in[1], own > 4 ? j.in[4] : none, j.in[2], j.in[3], {group, true}, {bits, true},
                           quantization_mode_to_string(mode).c_str(), global ? j.in[own] : none,
                           global ? j.in[own + 1] : none, left || right, j.s);
}
#endif

/* The lengths are the result's where it is real, else the operand's. */
static int fft_native(Job& j) {
  using Transform = int (*)(mlxvk_array*, mlxvk_array, const int*, size_t, const int*, size_t, mlxvk_fft_norm, mlxvk_stream);
  static const Transform calls[] = {mlxvk_fft_fftn, mlxvk_fft_ifftn, mlxvk_fft_rfftn, mlxvk_fft_irfftn};
  const auto state = j.as<FFT>().state();                  // newer versions have more in it
  const auto& wide_axes = std::get<0>(state);
  const bool inverse = std::get<1>(state), real = std::get<2>(state);
  std::vector<int> axes(wide_axes.begin(), wide_axes.end()), n;
  for (int axis : axes) n.push_back(inverse && real ? j.shape()[axis] : mlxvk_array_dim(j.in[0], axis));
  return calls[2 * real + inverse](j.out, j.in[0], n.data(), n.size(), axes.data(), axes.size(), MLXVK_FFT_NORM_BACKWARD, j.s);
}

static int hadamard_native(Job& j) {
  return mlxvk_hadamard_transform(j.out, j.in[0], {j.as<Hadamard>().state(), true}, j.s);
}

static int quantize_native(Job& j) {
  auto [unused, group, bits, mode, dequantize] = j.as<fast::Quantize>().state();
  const std::string name = quantization_mode_to_string(mode);
  const bool affine = mode == QuantizationMode::Affine;    // what others have behind their operands is a global scale
  const mlxvk_array last = j.inputs > (dequantize ? 2 : 1) ? j.in[j.inputs - 1] : none;
  if (dequantize)
    return mlxvk_dequantize(j.out, j.in[0], j.in[1], affine ? last : none, {group, true}, {bits, true}, name.c_str(),
                            affine ? none : last, {dtype_of(*j.like), true}, j.s);
  Vector all;
  int code = mlxvk_quantize(&all.v, j.in[0], {group, true}, {bits, true}, name.c_str(), last, j.s);
  return code ? code : spread(j, all);
}

static int fp8_native(Job& j) {
  return j.as<fast::ConvertFP8>().state() ? mlxvk_to_fp8(j.out, j.in[0], j.s) : mlxvk_from_fp8(j.out, j.in[0], dtype_of(*j.like), j.s);
}

/* ---- fast ---- */

/* MLX passes the scalar 1 (or 0) for a weight (or bias) that there is not. */
static mlxvk_array or_none(mlxvk_array a) { return mlxvk_array_ndim(a) ? a : none; }

static int rms_norm_native(Job& j) {
  return mlxvk_fast_rms_norm(j.out, j.in[0], or_none(j.in[1]), j.as<fast::RMSNorm>().state().second, j.s);
}

static int layer_norm_native(Job& j) {
  return mlxvk_fast_layer_norm(j.out, j.in[0], or_none(j.in[1]), or_none(j.in[2]), j.as<fast::LayerNorm>().state().second, j.s);
}

/* Outputs that belong to no parameter are zeros of the parameter's shape. */
static int zeros_for_absent(Job& j, size_t from, size_t outputs) {
  int code = 0;
  for (size_t i = from; i < outputs && !code; i++) code = mlxvk_zeros_like(&j.out[i], j.in[i], j.s);
  return code;
}

static int rms_norm_vjp_native(Job& j) {
  Vector all;
  int code = mlxvk_fast_rms_norm_vjp(&all.v, j.in[0], or_none(j.in[1]), j.in[2], j.as<fast::RMSNormVJP>().state().second, j.s);
  if (!code) code = spread(j, all);
  return code ? code : zeros_for_absent(j, mlxvk_vector_array_size(all.v), 2);
}

static int layer_norm_vjp_native(Job& j) {
  const mlxvk_array w = or_none(j.in[1]), b = or_none(j.in[2]);
  Vector all;
  if (!w.ctx && b.ctx) return MLXVK_ERROR_UNSUPPORTED;
  int code = mlxvk_fast_layer_norm_vjp(&all.v, j.in[0], w, b, j.in[3], j.as<fast::LayerNormVJP>().state().second, j.s);
  if (!code) code = spread(j, all);
  return code ? code : zeros_for_absent(j, mlxvk_vector_array_size(all.v), 3);
}

/* Backwards is a rotation by the negative angles. */
static int rope_native(Job& j) {
  auto [unused, dims, traditional, base, scale, forward] = j.as<fast::RoPE>().state();
  const bool freqs = j.inputs > 2;
  if (!j.in[1].ctx)
    return mlxvk_fast_rope(j.out, j.in[0], dims, traditional, {base, !freqs}, forward ? scale : -scale, j.number,
                           freqs ? j.in[2] : none, j.s);
  return mlxvk_fast_rope_dynamic(j.out, j.in[0], dims, traditional, {base, !freqs}, forward ? scale : -scale, j.in[1],
                                 freqs ? j.in[2] : none, j.s);
}

static int attention_native(Job& j) {
  const auto state = j.as<fast::ScaledDotProductAttention>().state();   // newer versions have more in it
  const float scale = std::get<1>(state);
  const bool causal = std::get<2>(state), sinks = std::get<3>(state);
  const bool mask = j.inputs > 3u + sinks;
  return mlxvk_fast_scaled_dot_product_attention(j.out, j.in[0], j.in[1], j.in[2], scale, causal ? "causal" : mask ? "array" : "",
                                                 mask ? j.in[3] : none, sinks ? j.in[j.inputs - 1] : none, j.s);
}

/* Inputs: those of the attention, its result, that one's cotangent: see ScaledDotProductAttention::vjp below. */
static int attention_vjp_native(Job& j) {
  auto [unused, scale, causal, sinks] = j.as<fast::ScaledDotProductAttentionVJP>().state();
  const mlxvk_array *output = &j.in[j.inputs - 2], *cotangent = &j.in[j.inputs - 1];
  const bool mask = j.inputs > 5u + sinks;
  Vector all;
  int code = mlxvk_fast_scaled_dot_product_attention_vjp(
      &all.v, j.in[0], j.in[1], j.in[2], scale, causal ? "causal" : mask ? "array" : "", mask ? j.in[3] : none,
      sinks ? output[-1] : none, *output, none, *cotangent, j.s);
  return code ? code : spread(j, all);
}

#if MLX_VERSION_NUMERIC >= 32003
static int cross_entropy_vjp_native(Job& j) {
  return mlxvk_fast_cross_entropy_vjp(j.out, j.in[0], j.in[1], j.in[2], j.in[3], j.s);
}

/* Inputs: queries, keys, values, gates, beta, the state. */
static int gated_delta_native(Job& j) {
  Vector all;
  int code = mlxvk_fast_gated_delta_update(&all.v, j.in[0], j.in[1], j.in[2], j.in[3], j.in[4], j.in[5], none, j.s);
  return code ? code : spread(j, all);
}

/* Behind the same operands: the cotangents of both results. */
static int gated_delta_vjp_native(Job& j) {
  Vector all;
  int code = mlxvk_fast_gated_delta_update_vjp(&all.v, j.in[0], j.in[1], j.in[2], j.in[3], j.in[4], j.in[5], j.in[6],
                                               j.in[7], j.s);
  return code ? code : spread(j, all);
}
#endif

static int custom_kernel_native(Job& j) {
  j.written = run_kernel(j.out, j.p, j.in, j.inputs, j.like, j.outputs);
  return 0;
}

/* ---- layout: MLX's own code for the CPU moves no data; where data must move, mlxvk does ---- */

static void view_layout(Primitive& p, const Arrays& inputs, Arrays& outputs) { p.eval_cpu(inputs, outputs); }

static bool refuses(int code) {
  return code == MLXVK_ERROR_UNSUPPORTED || code == MLXVK_ERROR_DTYPE || code == MLXVK_ERROR_LIMIT || code == MLXVK_ERROR_ARGUMENT ||
         code == MLXVK_ERROR_SHAPE;
}

/* A copy that mlxvk does not do: the primitive falls back. */
struct Refusal : std::runtime_error { using std::runtime_error::runtime_error; };

/* A row-major copy on the GPU. */
static array contiguous_copy(const array& in, Stream s) {
  array out(in.shape(), in.dtype(), nullptr, {});
  mlxvk_array from{}, to{};
  int code = operand(&from, in, s);
  if (!code) code = mlxvk_contiguous(&to, from, false, stream_of(s));
  mlxvk_array_free(from);
  if (refuses(code)) throw Refusal(error_text(code, stream_of(s)));
  if (code) raise(code, stream_of(s), "copy");
  adopt(out, to, {in}, s);
  return out;
}

static void reshape_layout(Primitive& p, const Arrays& inputs, Arrays& outputs) {
  auto& out = outputs[0];
  if (!out.size()) { out.set_data(allocator::malloc(0)); return; }
  auto [copy, strides] = prepare_reshape(inputs[0], out);
  if (!copy) { shared_buffer_reshape(inputs[0], strides, out); return; }
  array whole = contiguous_copy(inputs[0], p.stream());
  shared_buffer_reshape(whole, out.strides(), out);
}

/* A private member, which template arguments may name. */
bool allow_col_major(const Contiguous& c);
template <bool Contiguous::*member> struct Opened {
  friend bool allow_col_major(const Contiguous& c) { return c.*member; }
};
template struct Opened<&Contiguous::allow_col_major_>;

static void contiguous_layout(Primitive& p, const Arrays& inputs, Arrays& outputs) {
  const auto& in = inputs[0];
  /* MLX's rule of 16 KiB: what shares a much larger buffer is copied, so that the buffer can go. */
  const bool fits = in.buffer_size() <= in.nbytes() + 16384;
  const bool allow_col = allow_col_major(static_cast<const Contiguous&>(p));
  if (!in.size() || (fits && (in.flags().row_contiguous || (allow_col && in.flags().col_contiguous)))) outputs[0].copy_shared_buffer(in);
  else outputs[0].copy_shared_buffer(contiguous_copy(in, p.stream()));
}

static void view_bits_layout(Primitive& p, const Arrays& inputs, Arrays& outputs) {
  const auto& in = inputs[0];
  auto& out = outputs[0];
  const size_t from = in.itemsize(), to = out.itemsize();
  if (from == to || in.flags().row_contiguous || (to < from && in.ndim() && in.strides().back() == 1)) view_layout(p, inputs, outputs);
  else view_layout(p, {contiguous_copy(in, p.stream())}, outputs);
}

/* Of elements in row-major order, whatever the layout of an unpadded or sliced input is. */
static void strided_layout(Primitive& p, const Arrays& inputs, Arrays& outputs) {
  view_layout(p, inputs[0].flags().row_contiguous ? inputs : Arrays{contiguous_copy(inputs[0], p.stream())}, outputs);
}

/* ---- the table: one row a primitive ---- */

/* The wheel may hide what typeid(type) refers to. */
#define ROW(type) #type, std::is_base_of_v<fast::Custom, type>
#define NATIVE(type, call)   {ROW(type), State::native, call, nullptr, false, false, ""}
#define WHOLE(type, call)    {ROW(type), State::native, call, nullptr, false, true, ""}
#define IN_PLACE(type, call, whole) {ROW(type), State::native, call, nullptr, true, whole, ""}
#define UNREACHED(type, call, note) {ROW(type), State::unreached, call, nullptr, false, false, note}
#define LAYOUT(type, call)   {ROW(type), State::layout, nullptr, call, false, false, ""}
#define ON_HOST(type, note)  {ROW(type), State::host, nullptr, view_layout, false, false, note}
#define ON_CPU(type, note)   {ROW(type), State::fallback, nullptr, nullptr, false, false, note}

static const Row table[] = {
    NATIVE(Abs, abs_native), NATIVE(ArcCos, unary<mlxvk_arccos>), NATIVE(ArcCosh, unary<mlxvk_arccosh>),
    NATIVE(ArcSin, unary<mlxvk_arcsin>), NATIVE(ArcSinh, unary<mlxvk_arcsinh>), NATIVE(ArcTan, unary<mlxvk_arctan>),
    NATIVE(ArcTanh, unary<mlxvk_arctanh>), NATIVE(AsType, astype_native), NATIVE(BitwiseInvert, unary<mlxvk_bitwise_invert>),
    NATIVE(Ceil, unary<mlxvk_ceil>), NATIVE(Conjugate, unary<mlxvk_conjugate>), NATIVE(Cos, unary<mlxvk_cos>),
    NATIVE(Cosh, unary<mlxvk_cosh>), NATIVE(Erf, unary<mlxvk_erf>), NATIVE(ErfInv, unary<mlxvk_erfinv>),
    NATIVE(Exp, unary<mlxvk_exp>), NATIVE(Expm1, unary<mlxvk_expm1>), NATIVE(Floor, unary<mlxvk_floor>),
    NATIVE(Imag, unary<mlxvk_imag>), NATIVE(Log, log_native), NATIVE(Log1p, unary<mlxvk_log1p>),
    NATIVE(LogicalNot, unary<mlxvk_logical_not>), NATIVE(Negative, unary<mlxvk_negative>), NATIVE(Real, unary<mlxvk_real>),
    NATIVE(Round, round_native), NATIVE(Sigmoid, unary<mlxvk_sigmoid>), NATIVE(Sign, unary<mlxvk_sign>),
    NATIVE(Sin, unary<mlxvk_sin>), NATIVE(Sinh, unary<mlxvk_sinh>), NATIVE(Sqrt, sqrt_native),
    NATIVE(Square, unary<mlxvk_square>), NATIVE(Tan, unary<mlxvk_tan>), NATIVE(Tanh, unary<mlxvk_tanh>),

    NATIVE(Add, binary<mlxvk_add>), NATIVE(ArcTan2, binary<mlxvk_arctan2>), NATIVE(BitwiseBinary, bitwise_native),
    NATIVE(Divide, divide_native), NATIVE(DivMod, divmod_native), NATIVE(Equal, equal_native), NATIVE(Greater, binary<mlxvk_greater>),
    NATIVE(GreaterEqual, binary<mlxvk_greater_equal>), NATIVE(Less, binary<mlxvk_less>),
    NATIVE(LessEqual, binary<mlxvk_less_equal>), NATIVE(LogAddExp, binary<mlxvk_logaddexp>),
    NATIVE(LogicalAnd, binary<mlxvk_logical_and>), NATIVE(LogicalOr, binary<mlxvk_logical_or>),
    NATIVE(Maximum, binary<mlxvk_maximum>), NATIVE(Minimum, binary<mlxvk_minimum>), NATIVE(Multiply, binary<mlxvk_multiply>),
    NATIVE(NotEqual, binary<mlxvk_not_equal>), NATIVE(Power, binary<mlxvk_power>), NATIVE(Remainder, binary<mlxvk_remainder>),
    NATIVE(Subtract, binary<mlxvk_subtract>), NATIVE(Select, ternary<mlxvk_where>), NATIVE(Compiled, nullptr),

    NATIVE(Arange, arange_native), NATIVE(Full, full_native), NATIVE(RandomBits, random_bits_native),
    NATIVE(Concatenate, concatenate_native), NATIVE(Pad, pad_native), IN_PLACE(SliceUpdate, slice_update_native, false),
    NATIVE(Gather, gather_native), NATIVE(GatherAxis, gather_axis_native),
    IN_PLACE(ScatterAxis, scatter_axis_native, true),
    IN_PLACE(Scatter, scatter_native, true), NATIVE(MaskedScatter, masked_scatter_native), NATIVE(Convolution, convolution_native),
    WHOLE(DynamicSlice, slice_dynamic_native), IN_PLACE(DynamicSliceUpdate, slice_update_dynamic_native, true),
    NATIVE(GatherMM, gather_mm_native), NATIVE(GatherQMM, gather_qmm_native), NATIVE(Hadamard, hadamard_native), WHOLE(FFT, fft_native),
    NATIVE(BlockMaskedMM, block_masked_mm_native), NATIVE(SegmentedMM, ternary<mlxvk_segmented_mm>),
#if MLX_VERSION_NUMERIC >= 31000
    NATIVE(QQMatmul, qqmm_native),
#else
    UNREACHED(QQMatmul, qqmm_native, "MLX has it for CUDA"),
#endif
    NATIVE(Reduce, reduce_native), NATIVE(ArgReduce, arg_reduce_native), NATIVE(Softmax, softmax_native),
    NATIVE(LogSumExp, logsumexp_native), WHOLE(Scan, scan_native), WHOLE(Sort, sort_native), WHOLE(ArgSort, argsort_native),
    WHOLE(Partition, (partition_native<Partition, mlxvk_partition_axis>)),
    WHOLE(ArgPartition, (partition_native<ArgPartition, mlxvk_argpartition_axis>)),
    NATIVE(Matmul, binary<mlxvk_matmul>), NATIVE(AddMM, addmm_native), NATIVE(QuantizedMatmul, quantized_matmul_native),
    NATIVE(fast::Quantize, quantize_native), NATIVE(fast::RMSNorm, rms_norm_native), NATIVE(fast::LayerNorm, layer_norm_native),
    NATIVE(fast::RoPE, rope_native), NATIVE(fast::RMSNormVJP, rms_norm_vjp_native),
    NATIVE(fast::LayerNormVJP, layer_norm_vjp_native), NATIVE(fast::ConvertFP8, fp8_native), NATIVE(fast::ScaledDotProductAttention, attention_native),
    NATIVE(fast::ScaledDotProductAttentionVJP, attention_vjp_native), NATIVE(fast::CustomKernel, custom_kernel_native),

    LAYOUT(AsStrided, strided_layout), LAYOUT(Broadcast, view_layout), LAYOUT(BroadcastAxes, view_layout),
    LAYOUT(Contiguous, contiguous_layout), LAYOUT(Copy, view_layout), LAYOUT(CustomTransforms, view_layout),
    LAYOUT(Depends, view_layout), LAYOUT(ExpandDims, view_layout), LAYOUT(Flatten, reshape_layout),
    LAYOUT(Reshape, reshape_layout), LAYOUT(Slice, view_layout),
    LAYOUT(Split, view_layout), LAYOUT(Squeeze, view_layout), LAYOUT(StopGradient, view_layout),
    LAYOUT(Transpose, view_layout), LAYOUT(Unflatten, reshape_layout), LAYOUT(View, view_bits_layout),

    ON_HOST(NumberOfElements, "a number, from its operand's shape"),

    ON_CPU(Load, "reads files"),
    ON_CPU(Cholesky, ""), ON_CPU(Eig, ""), ON_CPU(Eigh, ""), ON_CPU(Inverse, ""), ON_CPU(LUF, ""), ON_CPU(QRF, ""), ON_CPU(SVD, ""),
#if MLX_VERSION_NUMERIC >= 32003
    NATIVE(SearchSorted, searchsorted_native),
    NATIVE(FloorDivide, binary<mlxvk_floor_divide>), NATIVE(GatherQQMM, gather_qqmm_native),
    NATIVE(fast::CrossEntropy, binary<mlxvk_fast_cross_entropy>),
    NATIVE(fast::CrossEntropyVJP, cross_entropy_vjp_native),
    NATIVE(fast::GatedDeltaUpdate, gated_delta_native), NATIVE(fast::GatedDeltaUpdateVJP, gated_delta_vjp_native),
#endif
};

static bool is(const Row& row, const char* name) { return !std::strcmp(row.name, name); }

/* As the compiler names "fast::RoPE" of mlx::core: N3mlx4core4fast4RoPEE. */
static std::string type_name(const std::string& name) {
  const size_t colon = name.find("::");
  const std::string last = colon == name.npos ? name : name.substr(colon + 2);
  return "N3mlx4core" + (colon == name.npos ? "" : std::to_string(colon) + name.substr(0, colon)) + std::to_string(last.size()) + last + "E";
}

static bool is_compiled(const Row& row) { return row.state == State::native && !row.native; }   // no other has no call

static const char* short_name(const char* name) { const char* colon = std::strrchr(name, ':'); return colon ? colon + 1 : name; }

const Row* find_row(const Primitive& p) {
  static const auto* index = [] {
    auto* map = new std::unordered_map<std::string, const Row*>;
    for (auto& row : table) map->emplace(type_name(row.name), &row);
    return map;
  }();
  /* A type's virtual table stands for it: hashing its name is a tenth of what the bridge does for an operation. */
  static thread_local struct { const void* table; const Row* row; } seen[512];
  const void* table = *reinterpret_cast<const void* const*>(&p);
  auto& last = seen[reinterpret_cast<uintptr_t>(table) / 16 % std::size(seen)];
  if (last.table != table) {
    auto it = index->find(typeid(p).name());
    last = {table, it == index->end() ? nullptr : it->second};
  }
  return last.row;
}

bool is_load(const Primitive& p) {
  const Row* row = find_row(p);
  return row && is(*row, "Load");
}

bool holds_functions(const Primitive& p) {
  static const Row* const custom = std::find_if(std::begin(table), std::end(table), [](auto& row) { return is(row, "CustomTransforms"); });
  const Row* row = find_row(p);
  return !row || row == custom || row->state == State::fallback;
}

fast::Custom* with_graph(Primitive& p) {
  const Row* row = find_row(p);
  return row && row->graph ? static_cast<fast::Custom*>(&p) : nullptr;
}

static std::atomic<bool> ran[std::size(table)];            // by row

static void note_run(const Row& row) { ran[&row - table].store(true, std::memory_order_relaxed); }

void each_primitive(const std::function<void(const char*, State, const char*, bool)>& each) {
  for (auto& row : table) each(short_name(row.name), row.state, row.note, ran[&row - table]);
}

/* ---- running ---- */

/* Handles for one call's operands and results, freed with it. */
struct Operands {
  const Arrays& arrays;
  Few<mlxvk_array, 8> in;
  Few<char, 8> lent;                                       // handles of MLX's own
  Few<mlxvk_array, 4> out;
  bool given = false;                                      // the first input's handle is in out[0]
  int number = 0;                                          // of an operand without a handle

  Operands(const Arrays& inputs, size_t results)
      : arrays(inputs), in(inputs.size()), lent(inputs.size()), out(results) {}
  ~Operands() {
    for (size_t i = 0; i < in.size(); i++) {
      if (lent[i]) give_back_lent(arrays[i]);
      else mlxvk_array_free(in[i]);
    }
    for (mlxvk_array a : out) mlxvk_array_free(a);
  }

  /* number_at: an operand that is not wanted as an array where the host has its value. */
  int open(Stream s, bool in_place, size_t number_at) {
    given = in_place && arrays[0].is_donatable() && arrays[0].size();
    for (size_t i = 0; i < in.size(); i++) {
      if (i == number_at && host_number(arrays[i], number)) continue;
      const int code = operand(&in[i], arrays[i], s, given && !i ? Use::only : Use::lent);
      lent[i] = code == LENT;
      if (code && !lent[i]) return code;
    }
    if (given) out[0] = in[0];
    return 0;
  }

  /* After the call: the handle went into the result, or back to MLX. */
  void settle(int code) {
    if (!given) return;
    if (code) { give_back(arrays[0], in[0]); out[0] = {}; }
    in[0] = {};
    given = false;
  }
};

/* Does each array fit into one storage-buffer binding? */
static bool fits(const Arrays& arrays) {
  static const size_t range = [] {
    size_t value = 0;
    mlxvk_device_info_get_size(&value, device(), "max_storage_buffer_range");
    return value - 1024;
  }();
  for (auto& a : arrays) {
    const size_t most = std::min(range, (a.itemsize() << 31) - 1024);   // and no element beyond a signed index
    if (a.nbytes() > most || (a.data_shared_ptr() && a.data_size() * a.itemsize() > most)) return false;
  }
  return true;
}

/* Runs a row's call. Returns false, with the reason, where mlxvk does not have this case. */
static bool run_native(const Row& row, Primitive& p, const Arrays& inputs, Arrays& outputs, std::string& reason) {
  const Stream s = p.stream();
  Operands o(inputs, outputs.size());
  if (row.whole && !(fits(inputs) && fits(outputs))) { reason = "over the storage-buffer range"; return false; }
  int code = o.open(s, row.in_place, row.native == rope_native ? 1 : SIZE_MAX);
  if (!code) {
    Job j{p, o.in.data(), o.in.size(), o.out.data(), outputs.data(), stream_of(s), o.number, outputs.size()};
    code = row.native(j);
    for (size_t i = 0; j.written >> i; i++) if (j.written >> i & 1) note_written(inputs[i]);
  }
  o.settle(code);
  if (refuses(code)) { reason = error_text(code, stream_of(s)); return false; }
  if (code) raise(code, stream_of(s), p.name());
  for (size_t i = 0; i < outputs.size(); i++) {
    if (mlxvk_array_size(o.out[i]) != outputs[i].size() || mlxvk_array_dtype(o.out[i]) != dtype_of(outputs[i]))
      throw std::runtime_error(std::string("[") + p.name() + "] mlxvk's result is of another shape or dtype than MLX's");
    mlxvk_array result = o.out[i];
    o.out[i] = {};
    adopt(outputs[i], result, inputs, s, outputs.data());
  }
  return true;
}

/* Names in MLX_VK_FALLBACK_FOR ("Exp,FFT"): to find out whether a primitive of ours is at fault. */
static std::vector<std::string> excluded_names() {
  const char* text = std::getenv("MLX_VK_FALLBACK_FOR");
  std::istringstream list(text ? text : "");
  std::vector<std::string> names;
  for (std::string name; std::getline(list, name, ',');) {
    if (std::any_of(std::begin(table), std::end(table), [&](auto& row) { return short_name(row.name) == name; }))
      names.push_back(name);
    else
      std::fprintf(stderr, "mlxvk: MLX_VK_FALLBACK_FOR: %s is none of mlxvk_mlx.primitives()\n", name.c_str());
  }
  return names;
}

static bool excluded(const Row& row) {
  static const std::vector<std::string> names = excluded_names();
  return std::any_of(names.begin(), names.end(), [&](auto& name) { return name == short_name(row.name); });
}

/* Those of Compiled and View are made up for each. */
static const char* lasting_name(const Row& row, const Primitive& p) {
  return is_compiled(row) || row.layout == view_bits_layout ? short_name(row.name) : p.name();
}

void run(Primitive& p, const Arrays& inputs, Arrays& outputs) {
  const Row* row = find_row(p);
  std::string reason;
  if (!row && !std::strcmp(p.name(), "Synchronize")) return;   // what an evaluation ends with
  if (!row && run_collective(p, inputs, outputs)) return;
  if (row && row->layout) {
    try {
      row->layout(p, inputs, outputs);
      note_run(*row);
      count_native(lasting_name(*row, p));
    } catch (const Refusal& refusal) {
      fall_back(p, inputs, outputs, refusal.what());
    }
    return;
  }
  if (row && excluded(*row)) { fall_back(p, inputs, outputs, "MLX_VK_FALLBACK_FOR"); return; }
  if (row && is_compiled(*row)) { p.eval_gpu(inputs, outputs); return; }
  if (row && row->native && run_native(*row, p, inputs, outputs, reason)) {
    note_run(*row);
    count_native(lasting_name(*row, p));
    return;
  }
  if (reason.empty()) reason = row ? row->note : "unknown to the bridge";
  fall_back(p, inputs, outputs, reason);
}

/* ---- Compiled: its graph, operation by operation, without MLX's arrays in between ---- */

/* The inputs' values, then those of the tape, in this order. Graphs are short: who wants one looks for its id. */
class Values {
 public:
  Values(const Arrays& inputs, const Arrays& tape, const Arrays& outputs) : values_(inputs.size() + tape.size()) {
    size_t n = 0;
    for (auto& a : inputs) values_[n++].id = a.id();
    for (auto& t : tape) values_[n++].id = t.id();
    for (auto& t : tape)
      for (auto& a : t.inputs()) count(a);
    for (auto& a : outputs) count(a);
  }
  Values(const Values&) = delete;
  ~Values() { for (auto& v : values_) let_go(v); }

  mlxvk_array& operator[](size_t n) { return values_[n].array; }
  mlxvk_array* get(const array& a) { Value* v = find(a); return v && v->array.ctx ? &v->array : nullptr; }
  /* One reader fewer; the last one lets it go, so that what lies between can be fused. */
  void used(const array& a) {
    Value* v = find(a);
    if (v && --v->uses <= 0) let_go(*v);
  }
  /* One of MLX's own handles on an input. */
  int note_lent(size_t n, const array& a) { values_[n].lender = &a; return 0; }

 private:
  struct Value { uintptr_t id; mlxvk_array array; int uses; const mlx::core::array* lender; };

  static void let_go(Value& v) {
    if (v.lender) give_back_lent(*v.lender);
    else mlxvk_array_free(v.array);
    v.array = {};
    v.lender = nullptr;
  }

  Value* find(const array& a) {
    const uintptr_t id = a.id();
    for (auto& v : values_) if (v.id == id) return &v;
    return nullptr;
  }
  void count(const array& a) { if (Value* v = find(a)) v->uses++; }

  Few<Value, 24> values_;
};

/* first: the number of the tape's first value. */
static int run_tape(const Arrays& tape, size_t first, Values& values, Stream s) {
  for (size_t n = 0; n < tape.size(); n++) {
    const array& t = tape[n];
    const Row* row = find_row(t.primitive());
    Few<mlxvk_array, 8> in(t.inputs().size());
    mlxvk_array& out = values[first + n];
    if (!row || (!row->native && !is(*row, "Broadcast"))) return MLXVK_ERROR_UNSUPPORTED;
    for (size_t i = 0; i < in.size(); i++) {
      mlxvk_array* a = values.get(t.inputs()[i]);
      if (!a) return MLXVK_ERROR_UNSUPPORTED;
      in[i] = *a;
    }
    Job j{t.primitive(), in.data(), in.size(), &out, &t, stream_of(s)};
    if (int code = row->native ? row->native(j) : broadcast_native(j)) return code;
    note_run(*row);
    if (mlxvk_array_dtype(out) != dtype_of(t)) return MLXVK_ERROR_DTYPE;
    for (auto& i : t.inputs()) values.used(i);
  }
  return 0;
}

/* The value of one of its outputs, in the shape that MLX expects. */
static int take_output(mlxvk_array* res, mlxvk_array value, const array& out, Stream s) {
  if (mlxvk_array_ndim(value) == out.ndim() && !std::memcmp(mlxvk_array_shape(value), out.shape().data(), out.ndim() * sizeof(int)))
    return mlxvk_array_set(res, value);
  Handle wide;
  int code = mlxvk_broadcast_to(&wide, value, out.shape().data(), out.ndim(), stream_of(s));
  return code ? code : mlxvk_contiguous(res, wide, false, stream_of(s));
}

}  // namespace mlxvk_mlx

namespace mlx::core {

/* The graph is in private members: this one is MLX's method, defined anew. */
void Compiled::eval_gpu(const std::vector<array>& inputs, std::vector<array>& outputs) {
  using namespace mlxvk_mlx;
  const Stream s = stream();
  Few<mlxvk_array, 8> results(outputs.size());
  int code = 0;
  {
    Values values(inputs_, tape_, outputs_);
    for (size_t i = 0; i < inputs.size() && !code; i++) {
      code = operand(&values[i], inputs[i], s, Use::lent);
      if (code == LENT) code = values.note_lent(i, inputs[i]);
    }
    if (!code) code = run_tape(tape_, inputs.size(), values, s);
    for (size_t i = 0; i < outputs.size() && !code; i++) {
      mlxvk_array* value = values.get(outputs_[i]);
      code = value ? take_output(&results[i], *value, outputs[i], s) : MLXVK_ERROR_UNSUPPORTED;
    }
  }
  if (code) {
    for (auto& r : results) mlxvk_array_free(r);
    fall_back(*this, inputs, outputs, error_text(code, stream_of(s)));
    return;
  }
  for (size_t i = 0; i < outputs.size(); i++) adopt(outputs[i], results[i], inputs, s, outputs.data());
  note_run(*find_row(*this));
  count_native("Compiled");
}

namespace fast {

using mlxvk_mlx::Arrays;

/* Where mlxvk has the operation, MLX must not take its graph instead. In training the graph is differentiated anyway. */
bool RMSNorm::use_fallback(Stream s) { return s.device == Device::cpu; }
bool LayerNorm::use_fallback(Stream s) { return s.device == Device::cpu; }
bool RoPE::use_fallback(Stream s) { return s.device == Device::cpu; }
static bool attention_by_graph(const array& q, Stream s) {
  return s.device == Device::cpu || !issubdtype(q.dtype(), floating);
}
#if MLX_VERSION_NUMERIC >= 32000
/* Why there is no kernel that does without the scores in memory; empty where there is one. */
static std::string no_fused_kernel(const array& q, const array& v, Stream s) {
  enum { WIDEST = 256 };                                   // mlxvk's
  if (s.device == Device::cpu) return "the fused kernels require a GPU stream";
  if (std::max(q.shape(3), v.shape(3)) <= WIDEST) return {};
  return "the fused kernel supports head dims up to 256, these are " + std::to_string(q.shape(3)) + " and " +
         std::to_string(v.shape(3));
}

#if MLX_VERSION_NUMERIC >= 32004
bool ScaledDotProductAttention::use_fallback(const array& q, const array&, const array& v, bool, bool, bool, bool,
                                             bool, bool, bool force_fused, Stream s) {
#elif MLX_VERSION_NUMERIC >= 32002
bool ScaledDotProductAttention::use_fallback(const array& q, const array&, const array& v, bool, bool, bool, bool,
                                             bool, bool force_fused, Stream s) {
#else
bool ScaledDotProductAttention::use_fallback(const array& q, const array&, const array& v, bool, bool, bool, bool,
                                             bool, Stream s) {
  const bool force_fused = false;
#endif
  const std::string lack = force_fused ? no_fused_kernel(q, v, s) : "";
  if (!lack.empty())
    throw std::invalid_argument("[scaled_dot_product_attention] force_fused=True but no fused kernel is available: " + lack + ".");
  return attention_by_graph(q, s);
}
#else
/* With more queries than keys, what a causal mask hides depends on MLX's version, and its graph says it: query i sees the keys
 * up to i in 0.30.3, and in 0.32.4, as in mlxvk, those up to i less the surplus. */
bool ScaledDotProductAttention::use_fallback(const array& q, const array& k, const array&, bool, bool, bool causal,
                                             bool, bool, Stream s) {
  return attention_by_graph(q, s) || (causal && q.shape(2) > k.shape(2));
}
#endif
bool ScaledDotProductAttention::supports_bool_mask() { return true; }

/* Those of a primitive whose first operands they are for. */
static Arrays gradients(std::shared_ptr<Primitive> vjp, const Arrays& inputs, int operands,
                        const std::vector<int>& argnums) {
  std::vector<Shape> shapes;
  std::vector<Dtype> dtypes;
  Arrays wanted;
  for (int i = 0; i < operands; i++) { shapes.push_back(inputs[i].shape()); dtypes.push_back(inputs[i].dtype()); }
  const Arrays all = array::make_arrays(std::move(shapes), dtypes, std::move(vjp), inputs);
  for (int i : argnums) wanted.push_back(all[i]);
  return wanted;
}

/* Of a graph, for some of its operands. MLX's own derives for all, which fails where one has no gradient: indices. */
template <class F> static auto for_some(const F& graph, const Arrays& primals, const std::vector<int>& argnums) {
  Arrays chosen;
  for (int i : argnums) chosen.push_back(primals[i]);
  return std::pair(chosen, [&](const Arrays& x) {
    Arrays all = primals;
    for (size_t k = 0; k < x.size(); k++) all[argnums[k]] = x[k];
    return graph(all);
  });
}

Arrays Custom::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) {
  const auto [chosen, graph] = for_some(fallback_, primals, argnums);
  return mlx::core::vjp(graph, chosen, cotangents).second;
}

Arrays Custom::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  const auto [chosen, graph] = for_some(fallback_, primals, argnums);
  return mlx::core::jvp(graph, chosen, tangents).second;
}

/* MLX's own would carry the logarithms of the sums as a second result, which its graph (for vmap, jvp and gradients
 * of gradients) does not have, and refuses gradients of masks and sinks. So MLX is told that there is none, and this
 * one is in its place: the attention has one result, and what mlxvk has no gradient for comes from the graph. */
bool ScaledDotProductAttentionVJP::use_fallback(const array&, Stream) { return true; }

Arrays ScaledDotProductAttention::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                                      const Arrays& outputs) {
  const auto graph = [attention = fallback_](const Arrays& in) {
    auto all = mlx::core::vjp(attention, Arrays(in.begin(), in.end() - 2), {in.back()}).second;
    return Arrays(all.begin(), all.begin() + 3);
  };
  if (std::any_of(argnums.begin(), argnums.end(), [](int i) { return i > 2; }))
    return Custom::vjp(primals, cotangents, argnums, outputs);
  Arrays inputs = primals;
  inputs.insert(inputs.end(), {outputs[0], cotangents[0]});
  auto vjp = std::make_shared<ScaledDotProductAttentionVJP>(stream(), graph, scale_, do_causal_, has_sinks_);
  return gradients(std::move(vjp), inputs, 3, argnums);
}

#if MLX_VERSION_NUMERIC >= 32003
bool CrossEntropy::use_fallback(Stream s) { return s.device == Device::cpu; }
/* MLX does not hand a mask on; mlxvk takes rows of 512. */
bool GatedDeltaUpdate::use_fallback(int, int Dk, int, int, bool has_mask, Stream s) {
  return s.device == Device::cpu || has_mask || Dk > 512;
}
bool GatedDeltaUpdateVJP::use_fallback(int, int, int, int, Stream s) { return s.device == Device::cpu; }

/* MLX gives its own the wrong graph: that of the update. */
Arrays GatedDeltaUpdate::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                             const Arrays&) {
  const auto graph = [update = fallback_](const Arrays& in) {
    return mlx::core::vjp(update, Arrays(in.begin(), in.end() - 2), Arrays(in.end() - 2, in.end())).second;
  };
  Arrays inputs = primals;
  inputs.insert(inputs.end(), cotangents.begin(), cotangents.end());
  return gradients(std::make_shared<GatedDeltaUpdateVJP>(stream(), graph), inputs, int(primals.size()), argnums);
}
#endif

}  // namespace fast

}  // namespace mlx::core
