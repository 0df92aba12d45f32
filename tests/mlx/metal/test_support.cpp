/* Runs a kernel's source on the device, for tests.                                    SPDX-License-Identifier: MIT */
#include "test_support.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

namespace metal_test {
namespace {

struct Format { const char* name; size_t size; };
Format format(mlxvk_dtype d) {
  switch (d) {
    case MLXVK_BOOL: return {"bool", 1};
    case MLXVK_UINT8: return {"uint8_t", 1};
    case MLXVK_INT8: return {"int8_t", 1};
    case MLXVK_UINT16: return {"uint16_t", 2};
    case MLXVK_INT16: return {"int16_t", 2};
    case MLXVK_UINT32: return {"uint32_t", 4};
    case MLXVK_INT32: return {"int32_t", 4};
    case MLXVK_UINT64: return {"uint64_t", 8};
    case MLXVK_INT64: return {"int64_t", 8};
    case MLXVK_FLOAT16: return {"float16_t", 2};
    case MLXVK_BFLOAT16: return {"bfloat16_t", 2};
    default: return {"float", 4};
  }
}

float half_to_float(uint16_t h) {
  int e = h >> 10 & 31;
  double m = h & 1023, v = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
  return static_cast<float>(h & 0x8000 ? -v : v);
}
uint16_t float_to_half(float f) {
  double a = std::fabs(static_cast<double>(f));
  uint16_t sign = std::signbit(f) ? 0x8000 : 0;
  if (std::isnan(f)) return static_cast<uint16_t>(sign | 0x7e00);
  if (a >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  int e = 0;
  std::frexp(a, &e);
  e = std::max(e - 1, -14);
  double m = std::nearbyint(std::ldexp(a, 10 - e));
  if (m >= 2048) {
    m /= 2;
    e++;
  }
  return static_cast<uint16_t>(sign |
                               (m >= 1024 ? static_cast<int>(m) - 1024 + ((e + 15) << 10) : static_cast<int>(m)));
}
uint16_t float_to_bfloat(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if (std::isnan(f)) return 0x7fc0;
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// An element of an array, as any dtype has it.
union Item {
  uint8_t u8;
  int8_t i8;
  uint16_t u16;
  int16_t i16;
  uint32_t u32;
  int32_t i32;
  uint64_t u64;
  int64_t i64;
  float f;
};

void put(char* to, double v, mlxvk_dtype d) {
  Item x;
  switch (d) {
    case MLXVK_BOOL: x.u8 = v != 0; break;
    case MLXVK_UINT8: x.u8 = static_cast<uint8_t>(v); break;
    case MLXVK_INT8: x.i8 = static_cast<int8_t>(v); break;
    case MLXVK_UINT16: x.u16 = static_cast<uint16_t>(v); break;
    case MLXVK_INT16: x.i16 = static_cast<int16_t>(v); break;
    case MLXVK_UINT32: x.u32 = static_cast<uint32_t>(v); break;
    case MLXVK_INT32: x.i32 = static_cast<int32_t>(v); break;
    case MLXVK_UINT64: x.u64 = static_cast<uint64_t>(v); break;
    case MLXVK_INT64: x.i64 = static_cast<int64_t>(v); break;
    case MLXVK_FLOAT16: x.u16 = float_to_half(static_cast<float>(v)); break;
    case MLXVK_BFLOAT16: x.u16 = float_to_bfloat(static_cast<float>(v)); break;
    default: x.f = static_cast<float>(v); break;
  }
  memcpy(to, &x, format(d).size);
}
double get(const char* from, mlxvk_dtype d) {
  Item x;
  memcpy(&x, from, format(d).size);
  switch (d) {
    case MLXVK_BOOL: case MLXVK_UINT8: return x.u8;
    case MLXVK_INT8: return x.i8;
    case MLXVK_UINT16: return x.u16;
    case MLXVK_INT16: return x.i16;
    case MLXVK_UINT32: return x.u32;
    case MLXVK_INT32: return x.i32;
    case MLXVK_UINT64: return static_cast<double>(x.u64);
    case MLXVK_INT64: return static_cast<double>(x.i64);
    case MLXVK_FLOAT16: return half_to_float(x.u16);
    case MLXVK_BFLOAT16: x.u32 = static_cast<uint32_t>(x.u16) << 16; return x.f;
    default: return x.f;
  }
}

mlxvk_stream& the_stream() {
  static mlxvk_stream s = mlxvk_default_gpu_stream_new();
  return s;
}
size_t info(const char* key) {
  size_t v = 0;
  mlxvk_device_info_get_size(&v, mlxvk_stream_device(the_stream()), key);
  return v;
}
void check(int code) {
  if (!code) return;
  mlxvk_error e;
  mlxvk_stream_error(the_stream(), &e);
  throw std::runtime_error(e.text);
}

size_t count(const std::vector<int>& shape) {
  size_t n = 1;
  for (int s : shape) n *= static_cast<size_t>(s);
  return n;
}

mlxvk_array array_of(const In& a) {
  size_t size = format(a.dtype).size;
  std::vector<char> bytes(count(a.shape) * size + 1);
  for (size_t i = 0; i < count(a.shape); i++) put(&bytes[i * size], a.values[i % a.values.size()], a.dtype);
  return mlxvk_array_new_data(bytes.data(), a.shape.data(), static_cast<int>(a.shape.size()), a.dtype);
}

/* The grid, and what the source names of shapes, in the order in which write_kernel lists them. */
In info_array(const Kernel& k) {
  In r = {"info", MLXVK_UINT32, {}, {}};
  for (int g : k.grid) r.values.push_back(g);
  r.values.push_back(0);
  auto pad = [&] { if (r.values.size() % 2) r.values.push_back(0); };
  for (const In& a : k.in) {
    if (a.shape.empty()) continue;
    auto named = [&](const char* what) { return k.source.find(a.name + what) != std::string::npos; };
    if (named("_shape")) for (int s : a.shape) r.values.push_back(s);
    pad();
    if (named("_strides"))
      for (size_t i = 0; i < a.shape.size(); i++) {
        double stride = 1;
        for (size_t j = i + 1; j < a.shape.size(); j++) stride *= a.shape[j];
        r.values.push_back(stride);
        r.values.push_back(0);
      }
    if (named("_ndim")) r.values.push_back(static_cast<double>(a.shape.size()));
    pad();
  }
  r.shape = {static_cast<int>(r.values.size())};
  return r;
}

metal::Program compiled(const Kernel& k) {
  metal::Description d;
  d.name = "kernel_under_test";
  d.source = k.source;
  d.header = k.header;
  d.templates = k.templates;
  d.atomic_outputs = k.atomic;
  for (const In& a : k.in)
    d.inputs.push_back({a.name, format(a.dtype).name, static_cast<uint32_t>(a.shape.size()), count(a.shape)});
  for (const Out& a : k.out)
    d.outputs.push_back({a.name, format(a.dtype).name, static_cast<uint32_t>(a.shape.size()), count(a.shape)});
  metal::Options o;
  o.subgroup = subgroup_size();
  o.int64 = info("int64") != 0;
  o.exact = k.exact;
  for (int i = 0; i < 3; i++) {
    o.threads[i] = static_cast<uint32_t>(std::min(k.group[i], k.grid[i]));
    o.whole[i] = k.grid[i] % static_cast<int>(o.threads[i]) == 0;
  }
  std::string text = metal::write_kernel(d, o.bytes);
  metal::Program p = metal::compile(text, d.name, o);
  if (p.words.empty()) throw std::runtime_error(p.error);
  return p;
}

mlxvk_vector_string names(const std::vector<std::string>& list) {
  mlxvk_vector_string v = mlxvk_vector_string_new();
  for (const std::string& n : list) mlxvk_vector_string_append_value(v, n.c_str());
  return v;
}

}  // namespace

const char* metal_name(mlxvk_dtype dtype) { return format(dtype).name; }

double rounded(double v, mlxvk_dtype dtype) {
  char bytes[8] = {0};
  put(bytes, v, dtype);
  return get(bytes, dtype);
}

uint32_t subgroup_size() { return static_cast<uint32_t>(info("subgroup_size")); }

std::vector<Numbers> run(const Kernel& k) {
  metal::Program p = compiled(k);
  std::vector<std::string> in, out;
  std::vector<mlxvk_array> arrays;
  for (const In& a : k.in) {
    in.push_back(a.name);
    arrays.push_back(array_of(a));
  }
  if (p.info) {
    in.push_back("info");
    arrays.push_back(array_of(info_array(k)));
  }
  mlxvk_fast_spirv_kernel_config f = mlxvk_fast_spirv_kernel_config_new();
  for (const Out& a : k.out) {
    out.push_back(a.name);
    mlxvk_fast_spirv_kernel_config_add_output_arg(f, a.shape.data(), a.shape.size(), a.dtype);
  }
  mlxvk_fast_spirv_kernel_config_set_grid(f, k.grid[0], k.grid[1], k.grid[2]);
  mlxvk_fast_spirv_kernel_config_set_thread_group(f, std::min(k.group[0], k.grid[0]), std::min(k.group[1], k.grid[1]),
                                                  std::min(k.group[2], k.grid[2]));
  mlxvk_fast_spirv_kernel_config_set_init_value(f, k.init);
  mlxvk_vector_string in_names = names(in), out_names = names(out);
  mlxvk_fast_spirv_kernel kernel =
      mlxvk_fast_spirv_kernel_new("test", in_names, out_names, p.words.data(), 4 * p.words.size(), true);
  mlxvk_vector_array inputs = mlxvk_vector_array_new_data(arrays.data(), arrays.size()), results = {nullptr};
  int code = mlxvk_fast_spirv_kernel_apply(&results, kernel, inputs, f, the_stream());
  std::vector<Numbers> values;
  for (size_t i = 0; i < k.out.size() && !code; i++) {
    mlxvk_array a = {nullptr};
    size_t n = count(k.out[i].shape), size = format(k.out[i].dtype).size;
    std::vector<char> bytes(n * size + 1);
    mlxvk_vector_array_get(&a, results, i);
    code = mlxvk_array_read(a, bytes.data(), n * size, the_stream());
    values.emplace_back();
    for (size_t j = 0; j < n; j++) values.back().push_back(get(&bytes[j * size], k.out[i].dtype));
    mlxvk_array_free(a);
  }
  for (mlxvk_array a : arrays) mlxvk_array_free(a);
  mlxvk_vector_array_free(results);
  mlxvk_vector_array_free(inputs);
  mlxvk_fast_spirv_kernel_free(kernel);
  mlxvk_fast_spirv_kernel_config_free(f);
  mlxvk_vector_string_free(in_names);
  mlxvk_vector_string_free(out_names);
  check(code);
  return values;
}

void finish() { mlxvk_stream_free(the_stream()); }

}  // namespace metal_test
