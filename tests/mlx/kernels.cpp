/* Which kernels ran how often, and with MLX_VK_PROFILE=1 how long on the GPU: bench.py asks.  SPDX-License-Identifier: MIT */
#include "bridge.h"

extern "C" int mlxvk_mlx_kernels(char* text, size_t size) {
  std::string all;
  auto each = [](const char* kernel, uint64_t count, uint64_t ns, void* user) {
    auto& s = *static_cast<std::string*>(user);
    s += (s.empty() ? "" : ",") + ("{\"kernel\":\"" + std::string(kernel)) + "\",\"count\":" + std::to_string(count) +
         ",\"ns\":" + std::to_string(ns) + "}";
  };
  if (mlxvk_mlx::has_device()) mlxvk_kernel_stats(mlxvk_mlx::device(), each, &all);
  all = "[" + all + "]";
  if (text && size) std::snprintf(text, size, "%s", all.c_str());
  return int(all.size()) + 1;
}
