/* Runs a kernel of a folder, for fuzz_programs.py: `spec` says what there is, `source` and `header` are it; an array is
 * NAME.bin, as doubles, and a result NAME.out.                                          SPDX-License-Identifier: MIT */
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "test_support.h"

using namespace metal_test;

namespace {

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/* exact; grid X GROUP; in NAME DTYPE COUNT; out NAME DTYPE COUNT */
Kernel read(const std::string& folder) {
  Kernel k;
  std::ifstream spec(folder + "/spec");
  std::string word, name;
  int dtype = 0, count = 0;
  k.source = text_of(folder + "/source");
  k.header = text_of(folder + "/header");
  while (spec >> word) {
    if (word == "exact") {
      k.exact = true;
      continue;
    }
    if (word == "grid") {
      spec >> k.grid[0] >> k.group[0];
      continue;
    }
    spec >> name >> dtype >> count;
    if (word == "out") {
      k.out.push_back({name, static_cast<mlxvk_dtype>(dtype), {count}});
      continue;
    }
    Numbers values(static_cast<size_t>(count));
    std::ifstream(folder + "/" + name + ".bin", std::ios::binary)
        .read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(8 * values.size()));
    k.in.push_back({name, static_cast<mlxvk_dtype>(dtype), {count}, values});
  }
  return k;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::string folder = argv[1];
  int failed = 0;
  try {
    Kernel k = read(folder);
    std::vector<Numbers> results = run(k);
    for (size_t i = 0; i < results.size(); i++)
      std::ofstream(folder + "/" + k.out[i].name + ".out", std::ios::binary)
          .write(reinterpret_cast<char*>(results[i].data()), static_cast<std::streamsize>(8 * results[i].size()));
  } catch (const std::exception& e) {
    puts(e.what());
    failed = 1;
  }
  finish();
  return failed;
}
