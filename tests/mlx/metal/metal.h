/* Metal kernels, as mx.fast.metal_kernel makes them, to SPIR-V.                            SPDX-License-Identifier: MIT
 *
 *     source -> tokens -> syntax tree -> structured code, everything inlined -> SPIR-V
 *
 * The interface of the compiler in this folder; it needs the C++17 library and nothing else. What of the language there
 * is, and where its results may differ from Metal's, says LANGUAGE.md.
 */
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace metal {

/* What a device, and a dispatch on it, is like. */
struct Options {
  uint32_t subgroup = 32;                     // threads of the device's subgroups; a simdgroup has 32 whatever it says
  uint32_t threads[3] = {1, 1, 1};            // of a threadgroup
  bool whole[3] = {false, false, false};  // the grid is a multiple of them: nobody need look whether a thread is in it
  uint32_t folded = 0;                        // so many groups along x, then those behind them along y: the grid has no y and
                                              // z, and more groups than a device takes along x; whole[0] is false. 0: no
  bool int64 = true;                          // the device has 64-bit integers; else they are computed in 32 bits
  bool exact = false;                         // a * b + c is never contracted
  bool fast_math = false;                     // __FAST_MATH__ says so; the code is the same
  /* Buffers that are bytes of the host's (shape, strides, ndim): index of the buffer, size in bytes. */
  std::vector<std::pair<uint32_t, uint32_t>> bytes;
};

/* Bindings are the arrays that are read, in the order of their buffers, then, if `info`, an array of uint32 (the grid's
 * three sides and a word of nothing, behind them the bytes in the order of Options::bytes, each rounded up to eight),
 * then the arrays that are written. */
struct Program {
  std::vector<uint32_t> words;                // empty: `error` says why
  std::string error;                          // FILE:LINE:COLUMN: error: ..., the line, and a mark below the column
  uint32_t line = 0, column = 0;
  std::vector<uint32_t> inputs, outputs;      // the buffers' indexes
  std::vector<uint32_t> written;              // bindings among those that are read: they are written, too
  bool info = false;
  uint32_t info_words = 0;
  uint32_t shared_bytes = 0;                  // of threadgroup memory
};

/* source: a file of Metal's language; kernel: the name of a [[kernel]] function in it, or of an instantiation. */
Program compile(const std::string& source, const std::string& kernel, const Options& options);

/* ---- the file that metal_kernel makes of a body ---- */

struct Array {
  std::string name, type;                     // as Metal names it: "float", "bfloat16_t", ...
  uint32_t ndim = 1;
  uint64_t size = 8;                          // small ones are in constant memory
};
struct Template {
  std::string name, kind, value;              // kind: "typename", "int", "bool"
};
struct Description {
  std::string name, source, header;
  std::vector<Array> inputs, outputs;
  std::vector<Template> templates;
  bool atomic_outputs = false;
};
/* The file's text; bytes receives what Options::bytes is to be. The kernel's name is the description's. */
std::string write_kernel(const Description& d, std::vector<std::pair<uint32_t, uint32_t>>& bytes);

}  // namespace metal
