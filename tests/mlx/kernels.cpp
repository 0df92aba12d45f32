/* Kernels in Metal's language, as mx.fast.metal_kernel makes them: see bridge.h.           SPDX-License-Identifier: MIT
 *
 * MLX writes the source around a kernel's body itself, and asks metal::is_available() first; in wheels that do not have
 * this part of MLX it is done here. What arrives is that source, which metal/ compiles once for each text and way of being
 * called. */
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <unordered_map>

#include "bridge.h"
#include "metal/metal.h"
#include "mlx/backend/common/compiled.h"
#include "mlx/backend/metal/metal.h"

namespace mlxvk_mlx {

using namespace mlx::core;

namespace {

/* Words behind each other, as a shader has them. */
using Words = std::vector<uint32_t>;

/* A primitive's own words, and what a call of it adds. */
struct Call {
  decltype(std::declval<const fast::CustomKernel&>().state()) state;
  ::metal::Options options;
  Words info;                                              // as metal.h has it

  const std::string& name() const { return std::get<0>(state); }
  const std::string& source() const { return std::get<1>(state); }
  bool ensure_row_contiguous() const { return std::get<5>(state); }
  std::optional<float> init_value() const { return std::get<6>(state); }
};

size_t of_device(const char* key) {
  size_t value = 0;
  mlxvk_device_info_get_size(&value, device(), key);
  return value;
}

const ::metal::Options& of_device() {
  static const ::metal::Options options = [] {
    ::metal::Options o;
    o.subgroup = uint32_t(of_device("subgroup_size"));
    o.int64 = of_device("int64") != 0;
    return o;
  }();
  return options;
}

/* Metal's own rules for the two; a threadgroup is never larger than the grid. Of a long grid's groups, of which Metal has more
 * along x than many devices take, those beyond so many are the next ones along y. */
void set_threads(Call& call) {
  const uint32_t most_groups = 65535, folded = 1 << 15;
  static const size_t most = of_device("max_threads");
  const auto grid = std::apply([](auto... n) { return std::array{n...}; }, std::get<2>(call.state));
  const auto group = std::apply([](auto... n) { return std::array{n...}; }, std::get<3>(call.state));
  size_t threads = 1;
  for (int i = 0; i < 3; i++) {
    if (grid[i] < 1 || group[i] < 1)
      throw std::invalid_argument("[metal_kernel] Every side of the grid and of the threadgroup must be at least 1.");
    const uint32_t side = uint32_t(std::min(grid[i], group[i]));
    call.options.threads[i] = side;
    call.options.whole[i] = uint32_t(grid[i]) % side == 0;
    call.info.push_back(uint32_t(grid[i]));
    threads *= side;
  }
  call.info.push_back(0);
  if (grid[1] == 1 && grid[2] == 1 && (uint32_t(grid[0]) - 1) / call.options.threads[0] >= most_groups) {
    call.options.folded = folded;
    call.options.whole[0] = false;
  }
  if (threads > most)
    throw std::invalid_argument("[metal_kernel] Thread group size (" + std::to_string(threads) + ") is greater than " +
                                "the maximum allowed threads per threadgroup (" + std::to_string(most) + ").");
}

/* One of the buffers of the host's; each begins at an even word. */
template <class T> void add_bytes(Call& call, uint32_t buffer, const std::vector<T>& values) {
  const size_t at = call.info.size(), size = values.size() * sizeof(T);
  call.info.resize(at + (size + 7) / 8 * 2);
  std::memcpy(&call.info[at], values.data(), size);
  call.options.bytes.emplace_back(buffer, uint32_t(size));
}

/* contiguous: of the copy that is made of what is not. */
std::vector<int64_t> strides_of(mlxvk_array a, bool contiguous) {
  const size_t ndim = mlxvk_array_ndim(a);
  std::vector<int64_t> strides(mlxvk_array_strides(a), mlxvk_array_strides(a) + ndim);
  if (!contiguous || mlxvk_array_is_row_contiguous(a)) return strides;
  int64_t next = 1;
  for (size_t i = ndim; i--; next *= mlxvk_array_shape(a)[i]) strides[i] = next;
  return strides;
}

/* What MLX hands over beside the arrays, in the order of its signature. */
void set_bytes(Call& call, const mlxvk_array* in, size_t inputs) {
  const auto& wanted = std::get<4>(call.state);
  uint32_t buffer = 0;
  for (size_t i = 0; i < inputs; i++) {
    const size_t ndim = mlxvk_array_ndim(in[i]);
    const auto [shape, strides, dimensions] = wanted[i];
    buffer++;
    if (!ndim) continue;
    if (shape) add_bytes(call, buffer++, std::vector<int>(mlxvk_array_shape(in[i]), mlxvk_array_shape(in[i]) + ndim));
    if (strides) add_bytes(call, buffer++, strides_of(in[i], call.ensure_row_contiguous()));
    if (dimensions) add_bytes(call, buffer++, std::vector<int>{int(ndim)});
  }
}

/* ---- compiled kernels ---- */

struct Kernel {
  ::metal::Program program;
  mlxvk_fast_spirv_kernel kernel{};
  Words info_words;                                        // of the last call, and as an array: mostly the next one's
  mlxvk_array info{};
};

template <class T> void append(std::string& text, const T* values, size_t count) {
  text.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

/* All that compiling looks at; what is the device's is always the same. */
std::string key_of(const Call& call) {
  std::string key = call.name() + '\0' + call.source() + '\0';
  append(key, call.options.threads, 3);
  append(key, call.options.whole, 3);
  append(key, &call.options.folded, 1);
  append(key, &call.options.fast_math, 1);
  append(key, call.options.bytes.data(), call.options.bytes.size());
  return key;
}

struct Names {
  mlxvk_vector_string v = mlxvk_vector_string_new();
  explicit Names(size_t count) {
    for (size_t i = 0; i < count; i++) mlxvk_vector_string_append_value(v, std::to_string(i).c_str());
  }
  Names(const Names&) = delete;
  ~Names() { mlxvk_vector_string_free(v); }
};

/* Kept as long as the process, as MLX keeps its libraries. The lock is held. */
Kernel& compiled(const Call& call) {
  static auto& all = *new std::unordered_map<std::string, std::unique_ptr<Kernel>>;
  auto& place = all[key_of(call)];
  if (place) return *place;
  auto made = std::make_unique<Kernel>();
  made->program = ::metal::compile(call.source(), call.name(), call.options);
  const auto& p = made->program;
  if (p.words.empty()) throw std::runtime_error("[metal_kernel] " + p.error);
  static const size_t shared = of_device("shared_memory_size");
  if (p.shared_bytes > shared)
    throw std::runtime_error("[metal_kernel] " + call.name() + ": " + std::to_string(p.shared_bytes) +
                             " bytes of threadgroup memory; the device has " + std::to_string(shared));
  Names in(p.inputs.size() + p.info), out(p.outputs.size());
  made->kernel = mlxvk_fast_spirv_kernel_new(call.name().c_str(), in.v, out.v, p.words.data(),
                                             p.words.size() * sizeof p.words[0], call.ensure_row_contiguous());
  if (!made->kernel.ctx) throw std::runtime_error("[metal_kernel] more than 31 arrays, or out of memory");
  place = std::move(made);
  return *place;
}

int info_of(mlxvk_array* res, Kernel& k, const Words& words) {
  if (k.info_words != words || !k.info.ctx) {
    const int count = int(words.size());
    mlxvk_array fresh{};
    if (int code = mlxvk_array_new_data_device(&fresh, words.data(), &count, 1, MLXVK_UINT32, device())) return code;
    mlxvk_array_free(k.info);
    k.info = fresh;
    k.info_words = words;
  }
  *res = k.info;
  return 0;
}

struct Config {
  mlxvk_fast_spirv_kernel_config c = mlxvk_fast_spirv_kernel_config_new();
  Config() = default;
  Config(const Config&) = delete;
  ~Config() { mlxvk_fast_spirv_kernel_config_free(c); }
};

int dispatch(mlxvk_vector_array* results, uint32_t& written, const Call& call, const mlxvk_array* in, size_t inputs,
             const array* like, size_t outputs, mlxvk_stream s) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  Kernel& k = compiled(call);
  std::vector<mlxvk_array> arrays(in, in + inputs);
  if (k.program.info)
    if (int code = info_of(&arrays.emplace_back(), k, call.info)) return code;
  const uint32_t* threads = call.options.threads;
  Config config;
  for (auto* o = like; o < like + outputs; o++)
    mlxvk_fast_spirv_kernel_config_add_output_arg(config.c, o->shape().data(), o->ndim(), dtype_of(*o));
  const uint32_t row = call.options.folded * threads[0];
  if (row) mlxvk_fast_spirv_kernel_config_set_grid(config.c, int(row), int((call.info[0] - 1) / row + 1), 1);
  else mlxvk_fast_spirv_kernel_config_set_grid(config.c, int(call.info[0]), int(call.info[1]), int(call.info[2]));
  mlxvk_fast_spirv_kernel_config_set_thread_group(config.c, int(threads[0]), int(threads[1]), int(threads[2]));
  for (uint32_t input : k.program.written) {
    mlxvk_fast_spirv_kernel_config_add_written_input(config.c, int(input));
    written |= uint32_t(1) << input;
  }
  if (auto value = call.init_value()) mlxvk_fast_spirv_kernel_config_set_init_value(config.c, *value);
  mlxvk_vector_array operands = mlxvk_vector_array_new_data(arrays.data(), arrays.size());
  const int code = mlxvk_fast_spirv_kernel_apply(results, k.kernel, operands, config.c, s);
  mlxvk_vector_array_free(operands);
  return code;
}

}  // namespace

uint32_t run_kernel(mlxvk_array* out, Primitive& p, const mlxvk_array* in, size_t inputs, const array* like, size_t outputs) {
  auto& kernel = static_cast<fast::CustomKernel&>(p);
  Call call{kernel.state(), of_device(), {}};
  if (std::get<8>(call.state)) throw std::runtime_error("[metal_kernel] a kernel for CUDA cannot run on Vulkan");
#if MLX_VERSION_NUMERIC >= 32000
  call.options.fast_math = CompileOptions(std::get<10>(call.state)).math_mode == MathMode::Fast;
#endif
  set_threads(call);
  set_bytes(call, in, inputs);
  const mlxvk_stream s = stream_of(p.stream());
  mlxvk_vector_array results{};
  uint32_t written = 0;
  int code = dispatch(&results, written, call, in, inputs, like, outputs, s);
  for (size_t i = 0; i < outputs && !code; i++) code = mlxvk_vector_array_get(&out[i], results, i);
  mlxvk_vector_array_free(results);
  if (code) raise(code, s, "metal_kernel");
  return written;
}

/* Kernels are written for what every device of Apple's has. Where that is not, programs better do without them, unless
 * they are told otherwise. */
static bool takes_kernels() {
  const char* gate = std::getenv("MLX_VK_METAL_KERNELS");
  if (gate && *gate) return has_device() && std::strcmp(gate, "0");
  return has_device() && of_device("max_threads") >= 1024 && of_device("int64");
}

}  // namespace mlxvk_mlx

namespace mlx::core::metal {

/* Programs ask whether they may bring kernels. MLX asks before it shares memory: where that is its first call of all, nobody
 * was there to say whether it has to. */
bool is_available() {
  static const bool value = mlxvk_mlx::takes_kernels();
  if (mlxvk_mlx::guard_python()) mlxvk_mlx::share_next(true);
  return value;
}

}  // namespace mlx::core::metal

/* ---- the front, for wheels that have none ---- */

#if MLX_VERSION_NUMERIC < 32000
namespace mlxvk_mlx {

namespace {

using Sides = std::tuple<int, int, int>;
using Templates = std::vector<std::pair<std::string, fast::TemplateArg>>;

/* A kernel before it is called: what it is called with says the types, and the values of its templates. */
struct Front {
  ::metal::Description kernel;
  std::vector<std::tuple<bool, bool, bool>> wanted;        // of each input's shape, strides and ndim, which the body names
  bool ensure_row_contiguous;

  ::metal::Description described(const Arrays& inputs, const std::vector<Dtype>& outputs, const Templates& templates) const;
  Arrays operator()(const Arrays& inputs, const std::vector<Shape>& shapes, const std::vector<Dtype>& dtypes, Sides grid,
                    Sides threadgroup, const Templates& templates, std::optional<float> init_value, bool verbose,
                    StreamOrDevice where) const;
};

::metal::Template template_of(const std::string& name, const fast::TemplateArg& value) {
  if (auto* dtype = std::get_if<Dtype>(&value)) return {name, "typename", get_type_string(*dtype)};
  if (auto* flag = std::get_if<bool>(&value)) return {name, "bool", *flag ? "true" : "false"};
  return {name, "int", std::to_string(std::get<int>(value))};
}

/* The function's name says its template's values, as far as a name can. */
::metal::Description Front::described(const Arrays& inputs, const std::vector<Dtype>& outputs,
                                      const Templates& templates) const {
  ::metal::Description d = kernel;
  d.name = "custom_kernel_" + d.name;
  for (size_t i = 0; i < inputs.size(); i++)
    d.inputs[i] = {d.inputs[i].name, get_type_string(inputs[i].dtype()), uint32_t(inputs[i].ndim()), inputs[i].size()};
  for (size_t i = 0; i < outputs.size(); i++) d.outputs[i].type = get_type_string(outputs[i]);
  for (auto& [name, value] : templates) {
    d.templates.push_back(template_of(name, value));
    d.name += '_';
    for (char c : d.templates.back().value) d.name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  return d;
}

void check_count(const char* what, size_t count, size_t names) {
  if (count == names) return;
  throw std::invalid_argument("[metal_kernel] There are " + std::to_string(count) + " `" + what + "`, and names for " +
                              std::to_string(names) + ".");
}

Arrays Front::operator()(const Arrays& inputs, const std::vector<Shape>& shapes, const std::vector<Dtype>& dtypes, Sides grid,
                         Sides threadgroup, const Templates& templates, std::optional<float> init_value, bool verbose,
                         StreamOrDevice where) const {
  check_count("inputs", inputs.size(), kernel.inputs.size());
  check_count("output_shapes", shapes.size(), kernel.outputs.size());
  check_count("output_dtypes", dtypes.size(), kernel.outputs.size());
  const Stream s = to_stream(where);
  if (s.device != Device::gpu) throw std::invalid_argument("[metal_kernel] Only supports the GPU.");
  const ::metal::Description d = described(inputs, dtypes, templates);
  std::vector<std::pair<uint32_t, uint32_t>> bytes;        // as set_bytes finds them when the kernel runs
  const std::string source = ::metal::write_kernel(d, bytes);
  if (verbose) {
    std::printf("Generated source code for `%s`:\n\n%s\n", kernel.name.c_str(), source.c_str());
    std::fflush(stdout);
  }
  return array::make_arrays(shapes, dtypes,
                            std::make_shared<fast::CustomKernel>(s, d.name, source, grid, threadgroup, wanted,
                                                                 ensure_row_contiguous, init_value,
                                                                 std::vector<fast::ScalarArg>{}, false, 0),
                            inputs);
}

std::vector<::metal::Array> arrays_of(const std::vector<std::string>& names) {
  std::vector<::metal::Array> arrays(names.size());
  for (size_t i = 0; i < names.size(); i++) arrays[i].name = names[i];
  return arrays;
}

}  // namespace

}  // namespace mlxvk_mlx

namespace mlx::core::fast {

CustomKernelFunction metal_kernel(const std::string& name, const std::vector<std::string>& input_names,
                                  const std::vector<std::string>& output_names, const std::string& source,
                                  const std::string& header, bool ensure_row_contiguous, bool atomic_outputs) {
  if (!metal::is_available()) throw std::runtime_error("[metal_kernel] No Metal back-end.");
  if (output_names.empty()) throw std::invalid_argument("[metal_kernel] A kernel has at least one output.");
  mlxvk_mlx::Front front{{name, source, header, mlxvk_mlx::arrays_of(input_names), mlxvk_mlx::arrays_of(output_names), {},
                          atomic_outputs}, {}, ensure_row_contiguous};
  const auto named = [&](const std::string& what) { return source.find(what) != std::string::npos; };
  for (auto& input : input_names)
    front.wanted.emplace_back(named(input + "_shape"), named(input + "_strides"), named(input + "_ndim"));
  return front;
}

}  // namespace mlx::core::fast
#endif
