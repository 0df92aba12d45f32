/* Runs a kernel's source on the device, for tests.                                    SPDX-License-Identifier: MIT */
#pragma once

#include <string>
#include <vector>

#include "metal.h"
extern "C" {
#include "mlxvk.h"
}

namespace metal_test {

using Numbers = std::vector<double>;
struct In {
  std::string name;
  mlxvk_dtype dtype;
  std::vector<int> shape;
  Numbers values;
};
struct Out {
  std::string name;
  mlxvk_dtype dtype;
  std::vector<int> shape;
};
struct Kernel {
  std::string source, header;
  std::vector<In> in;
  std::vector<Out> out;
  std::vector<metal::Template> templates;
  int grid[3] = {1, 1, 1}, group[3] = {1, 1, 1};
  bool atomic = false, exact = false;
  float init = 0;
};

const char* metal_name(mlxvk_dtype dtype);
double rounded(double v, mlxvk_dtype dtype);   // as an array of that dtype has it
/* What the arrays hold afterwards. Throws std::runtime_error with what was the matter. */
std::vector<Numbers> run(const Kernel& k);
uint32_t subgroup_size();
void finish();

}  // namespace metal_test
