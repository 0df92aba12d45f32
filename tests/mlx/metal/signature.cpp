/* The file around a kernel's body: its parameters are what the arrays are, and what the body names.
 *                                                                                     SPDX-License-Identifier: MIT */
#include "metal.h"

namespace metal {
namespace {

const std::pair<const char*, const char*> attributes[] = {{"dispatch_quadgroups_per_threadgroup", "uint"},
                                                          {"dispatch_simdgroups_per_threadgroup", "uint"},
                                                          {"dispatch_threads_per_threadgroup", "uint3"},
                                                          {"grid_origin", "uint3"},
                                                          {"grid_size", "uint3"},
                                                          {"quadgroup_index_in_threadgroup", "uint"},
                                                          {"quadgroups_per_threadgroup", "uint"},
                                                          {"simdgroup_index_in_threadgroup", "uint"},
                                                          {"simdgroups_per_threadgroup", "uint"},
                                                          {"thread_execution_width", "uint"},
                                                          {"thread_index_in_quadgroup", "uint"},
                                                          {"thread_index_in_simdgroup", "uint"},
                                                          {"thread_index_in_threadgroup", "uint"},
                                                          {"thread_position_in_grid", "uint3"},
                                                          {"thread_position_in_threadgroup", "uint3"},
                                                          {"threadgroup_position_in_grid", "uint3"},
                                                          {"threadgroups_per_grid", "uint3"},
                                                          {"threads_per_grid", "uint3"},
                                                          {"threads_per_simdgroup", "uint"},
                                                          {"threads_per_threadgroup", "uint3"}};

struct Writer {
  const Description& d;
  std::vector<std::pair<uint32_t, uint32_t>>& bytes;
  std::string parameters;
  uint32_t index = 0;

  bool names(const std::string& what) const { return d.source.find(what) != std::string::npos; }

  void buffer(const std::string& declaration) {
    parameters += (index ? ",\n  " : "  ") + declaration + " [[buffer(" + std::to_string(index) + ")]]";
    index++;
  }
  void shape_of(const Array& a, const char* what, const char* type, uint32_t size) {
    if (!a.ndim || !names(a.name + what)) return;
    bytes.emplace_back(index, size);
    buffer(std::string("const constant ") + type + a.name + what);
  }
  void run() {
    for (const Array& a : d.inputs) {
      buffer(std::string("const ") + (a.size < 8 ? "constant " : "device ") + a.type + (a.ndim ? "* " : "& ") + a.name);
      shape_of(a, "_shape", "int* ", 4 * a.ndim);
      shape_of(a, "_strides", "int64_t* ", 8 * a.ndim);
      shape_of(a, "_ndim", "int& ", 4);
    }
    for (const Array& a : d.outputs)
      buffer("device " + (d.atomic_outputs ? "atomic<" + a.type + ">" : a.type) + "* " + a.name);
    for (auto& a : attributes)
      if (names(a.first)) parameters += std::string(",\n  ") + a.second + " " + a.first + " [[" + a.first + "]]";
  }
};

}  // namespace

std::string write_kernel(const Description& d, std::vector<std::pair<uint32_t, uint32_t>>& bytes) {
  Writer w{d, bytes, {}};
  std::string text = d.header + "\n", arguments;
  w.run();
  for (const Template& t : d.templates) {
    text += (arguments.empty() ? "template <" : ", ") + t.kind + " " + t.name;
    arguments += (arguments.empty() ? "" : ", ") + t.value;
  }
  if (!arguments.empty()) text += ">\n";
  text += "[[kernel]] void " + d.name + "(\n" + w.parameters + ") {\n" + d.source + "\n}\n";
  if (arguments.empty()) return text;
  std::string instance = d.name + "<" + arguments + ">";
  return text + "template [[host_name(\"" + d.name + "\")]] [[kernel]] decltype(" + instance + ") " + instance + ";\n";
}

}  // namespace metal
