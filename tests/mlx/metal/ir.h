/* Structured code: blocks of instructions, some of which hold blocks. A value is named by a number and made once; what
 * changes is in variables.                                                            SPDX-License-Identifier: MIT */
#pragma once

#include <map>

#include "ast.h"

namespace metal {

/* What a register holds. Smaller integers are kept extended in 32 bits, halves and bfloats, rounded, as floats. */
enum class Base : uint8_t { none, boolean, i32, u32, i64, u64, f32 };
struct Reg {
  Base base = Base::none;
  uint8_t n = 1;                               // of a vector
  bool operator==(const Reg& o) const { return base == o.base && n == o.n; }
  bool operator!=(const Reg& o) const { return !(*this == o); }
};
inline uint32_t bits_of(Base b) { return b == Base::i64 || b == Base::u64 ? 64 : 32; }

/* Below EXTENDED an instruction is SPIR-V's of that number; between it and LOAD, one of GLSL.std.450. */
enum Op : uint16_t {
  EXTENDED = 1000,
  LOAD = 2000,        // variable, index or 0
  STORE,              // variable, index or 0, value
  LOAD_BUFFER,        // binding, bytes, index: unsigned, 64 bits where bytes is 8
  STORE_BUFFER,       // binding, bytes, index, value
  ATOMIC,             // imm: Atomic; 0 buffer or 1 variable, which, index, value, compared
  IF,                 // condition; a, b
  LOOP,               // region; a: the body, b: behind it, where continue goes
  REGION,             // region; a: once
  BREAK,              // region
  CONTINUE,           // region
  RETURN,             // of the kernel
  BARRIER,            // imm: 1 threadgroup memory, 2 device memory
  SIMD,               // imm: Simd; width of a cluster, value, other value or lane
  BUILTIN,            // imm: Builtin
  PUSH,               // binding: the element of the buffer that is the array's first
  ANY,                // condition: is it true for any thread of the threadgroup?
};
enum class Atomic : uint16_t {
  load,
  store,
  exchange,
  add,
  sub,
  min_s,
  max_s,
  min_u,
  max_u,
  and_,
  or_,
  xor_,
  compare,
  add_f,
  min_f,
  max_f
};
/* The first ones reduce; scans follow. */
enum class Simd : uint16_t { sum, product, min, max, and_, or_, xor_, inclusive_sum, exclusive_sum, inclusive_product,
                             exclusive_product, shuffle, shuffle_xor, shuffle_up, shuffle_down, rotate_up, rotate_down,
                             fill_up, fill_down, ballot, any, all, first, active };
enum class Builtin : uint16_t {
  position_x,
  position_y,
  position_z,
  local_x,
  local_y,
  local_z,
  group_x,
  group_y,
  group_z,
  groups_x,
  groups_y,
  groups_z,
  lane,
  simdgroup,
  index
};

struct Inst;
using Block = std::vector<Inst>;
struct Inst {
  uint16_t op = 0, imm = 0;
  Reg type;
  uint32_t id = 0, n = 0, args[5] = {0, 0, 0, 0, 0};
  std::unique_ptr<Block> a, b;
};

struct Slot {                                  // a variable
  Reg type;
  uint32_t count = 0;                          // of an array; 0: none
  bool shared = false;                         // threadgroup memory
  std::vector<uint32_t> init;                  // constants
};

struct Constant {
  Reg type;
  uint64_t value[4] = {0, 0, 0, 0};            // bits
};

struct Code {
  Block main;
  std::vector<Slot> slots;
  std::vector<Constant> constants;             // constant i is the value i + 1
  std::map<std::vector<uint64_t>, uint32_t> constant_ids;
  std::vector<Reg> types{1};                   // of the values
  uint32_t inputs = 0, bindings = 0, regions = 0, size = 0;
  bool has_info = false;
  std::vector<bool> written;                   // bindings

  uint32_t value(Reg t) {
    types.push_back(t);
    return static_cast<uint32_t>(types.size() - 1);
  }
  std::map<uint32_t, uint32_t> constant_index; // id -> constants
  uint32_t constant(Reg t, const uint64_t* bits) {
    std::vector<uint64_t> key = {static_cast<uint64_t>(t.base) << 8 | t.n};
    key.insert(key.end(), bits, bits + t.n);
    uint32_t& id = constant_ids[key];
    if (id) return id;
    Constant c;
    c.type = t;
    for (uint32_t i = 0; i < t.n; i++) c.value[i] = bits[i];
    id = value(t);
    constant_index[id] = static_cast<uint32_t>(constants.size());
    constants.push_back(c);
    return id;
  }
};

/* Threads that do not go a way together go it together, with a mask, where there is a barrier on it, and where there is
 * one in a simd function. */
void make_uniform(Code& code, const struct Options& options);
std::vector<uint32_t> write_spirv(Code& code, const struct Options& options, uint32_t& shared_bytes);

}  // namespace metal
