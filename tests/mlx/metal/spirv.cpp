/* Structured code to SPIR-V 1.5.                                                      SPDX-License-Identifier: MIT */
#include <algorithm>
#include <set>

#include "ir.h"
#include "metal.h"

namespace metal {
namespace {

enum : uint32_t {
  CLASS_INPUT = 1, CLASS_WORKGROUP = 4, CLASS_PRIVATE = 6, CLASS_FUNCTION = 7, CLASS_PUSH = 9, CLASS_BUFFER = 12,
  SCOPE_DEVICE = 1, SCOPE_WORKGROUP = 2, SCOPE_SUBGROUP = 3,
};
enum : uint16_t {
  OpMemoryModel = 14,
  OpEntryPoint = 15,
  OpExecutionMode = 16,
  OpCapability = 17,
  OpTypeVoid = 19,
  OpTypeBool = 20,
  OpTypeInt = 21,
  OpTypeFloat = 22,
  OpTypeVector = 23,
  OpTypeArray = 28,
  OpTypeRuntimeArray = 29,
  OpTypeStruct = 30,
  OpTypePointer = 32,
  OpTypeFunction = 33,
  OpConstantTrue = 41,
  OpConstantFalse = 42,
  OpConstant = 43,
  OpConstantComposite = 44,
  OpFunction = 54,
  OpFunctionEnd = 56,
  OpVariable = 59,
  OpLoad = 61,
  OpStore = 62,
  OpAccessChain = 65,
  OpDecorate = 71,
  OpMemberDecorate = 72,
  OpUConvert = 113,
  OpBitcast = 124,
  OpIAdd = 128,
  OpFAdd = 129,
  OpISub = 130,
  OpIMul = 132,
  OpFMul = 133,
  OpLogicalOr = 166,
  OpLogicalAnd = 167,
  OpLogicalNot = 168,
  OpSelect = 169,
  OpIEqual = 170,
  OpINotEqual = 171,
  OpULessThan = 176,
  OpUGreaterThanEqual = 174,
  OpShiftRight = 194,
  OpShiftLeft = 196,
  OpBitwiseOr = 197,
  OpBitwiseXor = 198,
  OpBitwiseAnd = 199,
  OpControlBarrier = 224,
  OpMemoryBarrier = 225,
  OpAtomicLoad = 227,
  OpAtomicStore = 228,
  OpAtomicExchange = 229,
  OpAtomicCompareExchange = 230,
  OpLoopMerge = 246,
  OpSelectionMerge = 247,
  OpLabel = 248,
  OpBranch = 249,
  OpBranchConditional = 250,
  OpReturn = 253,
  OpUnreachable = 255,
  OpExtInst = 12,
  OpExtInstImport = 11,
};

using Words = std::vector<uint32_t>;

struct Writer {
  Code& code;
  const Options& options;
  Words capabilities, head, decorations, globals, variables, body;
  std::map<Words, uint32_t> known;
  std::vector<uint32_t> ids;                   // of values
  std::vector<uint32_t> slot_ids;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> views;
  std::map<uint32_t, uint32_t> inputs;         // by built-in
  std::vector<uint32_t> interface;
  std::set<uint32_t> caps;
  uint32_t next = 1, ext = 0, push = 0, shared_bytes = 0, exchange32 = 0, exchange64 = 0, parity = 0;
  uint32_t any_flags = 0, any_turn = 0;
  struct Region { uint32_t region, merge, go_on; };
  std::vector<Region> regions;
  std::map<std::pair<uint32_t, bool>, uint32_t> flags;   // region, is it to go on: a variable that says so


  Writer(Code& c, const Options& o) : code(c), options(o) {}

  uint32_t fresh() { return next++; }
  static void put(Words& to, uint16_t op, const Words& operands) {
    to.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | op);
    to.insert(to.end(), operands.begin(), operands.end());
  }
  void out(uint16_t op, const Words& operands) { put(body, op, operands); }
  uint32_t make(uint16_t op, uint32_t type, const Words& operands) {
    Words w = {type, fresh()};
    w.insert(w.end(), operands.begin(), operands.end());
    out(op, w);
    return w[1];
  }
  void need(uint32_t capability) { caps.insert(capability); }

  /* ---- types and constants ---- */

  uint32_t type(uint16_t op, const Words& operands) {
    Words key = {op};
    key.insert(key.end(), operands.begin(), operands.end());
    uint32_t& id = known[key];
    if (id) return id;
    id = fresh();
    Words w = {id};
    w.insert(w.end(), operands.begin(), operands.end());
    put(globals, op, w);
    return id;
  }
  uint32_t integer(uint32_t bits, bool sign) {
    if (bits == 64) need(11);
    return type(OpTypeInt, {bits, sign});
  }
  uint32_t t_u32() { return integer(32, false); }
  uint32_t t_bool() { return type(OpTypeBool, {}); }
  uint32_t t_f32() { return type(OpTypeFloat, {32}); }
  uint32_t of(Reg r) {
    uint32_t base = 0;
    switch (r.base) {
      case Base::boolean: base = t_bool(); break;
      case Base::i32: base = integer(32, true); break;
      case Base::u32: base = t_u32(); break;
      case Base::i64: base = integer(64, true); break;
      case Base::u64: base = integer(64, false); break;
      case Base::f32: base = t_f32(); break;
      case Base::none: return type(OpTypeVoid, {});
    }
    return r.n > 1 ? type(OpTypeVector, {base, r.n}) : base;
  }
  uint32_t pointer(uint32_t storage, uint32_t to) { return type(OpTypePointer, {storage, to}); }

  uint32_t constant_of(uint32_t t, uint16_t op, const Words& operands) {
    Words key = {op, t};
    key.insert(key.end(), operands.begin(), operands.end());
    uint32_t& id = known[key];
    if (id) return id;
    id = fresh();
    Words w = {t, id};
    w.insert(w.end(), operands.begin(), operands.end());
    put(globals, op, w);
    return id;
  }
  uint32_t u32(uint32_t v) { return constant_of(t_u32(), OpConstant, {v}); }
  uint32_t boolean(bool v) { return constant_of(t_bool(), v ? OpConstantTrue : OpConstantFalse, {}); }
  uint32_t scalar(Base b, uint64_t v) {
    if (b == Base::boolean) return boolean(v);
    if (bits_of(b) == 64)
      return constant_of(of({b, 1}), OpConstant, {static_cast<uint32_t>(v), static_cast<uint32_t>(v >> 32)});
    return constant_of(of({b, 1}), OpConstant, {static_cast<uint32_t>(v)});
  }
  uint32_t constant(const Constant& c) {
    if (c.type.n == 1) return scalar(c.type.base, c.value[0]);
    Words parts;
    for (uint32_t i = 0; i < c.type.n; i++) parts.push_back(scalar(c.type.base, c.value[i]));
    return constant_of(of(c.type), OpConstantComposite, parts);
  }
  uint32_t id(uint32_t value) {
    if (ids[value]) return ids[value];
    auto c = code.constant_index.find(value);
    if (c == code.constant_index.end()) return ids[value] = fresh();
    return ids[value] = constant(code.constants[c->second]);
  }

  /* ---- memory ---- */

  uint32_t global(uint32_t storage, uint32_t t, uint32_t init = 0) {
    uint32_t v = fresh();
    Words w = {pointer(storage, t), v, storage};
    if (init) w.push_back(init);
    put(globals, OpVariable, w);
    interface.push_back(v);
    return v;
  }
  uint32_t local(uint32_t t) {
    uint32_t v = fresh();
    put(variables, OpVariable, {pointer(CLASS_FUNCTION, t), v, CLASS_FUNCTION});
    return v;
  }
  uint32_t array_type(uint32_t t, uint32_t n) { return type(OpTypeArray, {t, u32(n)}); }

  uint32_t slot_type(const Slot& s) { return s.count ? array_type(of(s.type), s.count) : of(s.type); }
  static uint32_t slot_class(const Slot& s) {
    return s.shared ? CLASS_WORKGROUP : s.init.empty() ? CLASS_FUNCTION : CLASS_PRIVATE;
  }
  uint32_t slot(uint32_t i) {
    if (slot_ids[i]) return slot_ids[i];
    const Slot& s = code.slots[i];
    if (s.shared) shared_bytes += std::max(s.count, 1u) * s.type.n * bits_of(s.type.base) / 8;
    if (!s.init.empty()) {
      Words parts;
      for (uint32_t v : s.init) parts.push_back(id(v));
      uint32_t init = s.count ? constant_of(slot_type(s), OpConstantComposite, parts) : parts[0];
      return slot_ids[i] = global(CLASS_PRIVATE, slot_type(s), init);
    }
    return slot_ids[i] = s.shared ? global(CLASS_WORKGROUP, slot_type(s)) : local(slot_type(s));
  }
  uint32_t slot_pointer(uint32_t i, uint32_t index) {
    const Slot& s = code.slots[i];
    uint32_t v = slot(i);
    return s.count ? make(OpAccessChain, pointer(slot_class(s), of(s.type)), {v, id(index)}) : v;
  }

  /* A binding as an array of unsigned integers of so many bytes. */
  uint32_t view(uint32_t binding, uint32_t bytes) {
    uint32_t& v = views[{binding, bytes}];
    if (v) return v;
    if (bytes == 1) need(4448);
    if (bytes == 2) need(4433);
    bool had = known.count({OpTypeRuntimeArray, integer(8 * bytes, false)});
    uint32_t array = type(OpTypeRuntimeArray, {integer(8 * bytes, false)});
    uint32_t block = type(OpTypeStruct, {array});
    if (!had) {
      put(decorations, OpDecorate, {array, 6, bytes});
      put(decorations, OpMemberDecorate, {block, 0, 35, 0});
      put(decorations, OpDecorate, {block, 2});
    }
    v = global(CLASS_BUFFER, block);
    put(decorations, OpDecorate, {v, 34, 0});
    put(decorations, OpDecorate, {v, 33, binding});
    put(decorations, OpDecorate, {v, 20});                             // others may be the same memory

    return v;
  }
  uint32_t element(uint32_t binding, uint32_t bytes, uint32_t index) {
    uint32_t v = view(binding, bytes);
    return make(OpAccessChain, pointer(CLASS_BUFFER, integer(8 * bytes, false)), {v, u32(0), id(index)});
  }

  uint32_t push_value(uint32_t binding) {
    if (!push) {
      uint32_t length = u32(code.bindings), element = t_u32(), array = fresh(),
               block = fresh();  // no other array has a stride
      put(globals, OpTypeArray, {array, element, length});
      put(decorations, OpDecorate, {array, 6, 4});
      put(globals, OpTypeStruct, {block, array});
      put(decorations, OpMemberDecorate, {block, 0, 35, 0});
      put(decorations, OpDecorate, {block, 2});
      push = global(CLASS_PUSH, block);
    }
    uint32_t p = make(OpAccessChain, pointer(CLASS_PUSH, t_u32()), {push, u32(0), u32(binding)});
    return make(OpLoad, t_u32(), {p});
  }

  /* ---- what a thread knows ---- */

  uint32_t built_in(uint32_t which, bool vector) {
    uint32_t& v = inputs[which];
    if (!v) {
      v = global(CLASS_INPUT, vector ? type(OpTypeVector, {t_u32(), 3}) : t_u32());
      put(decorations, OpDecorate, {v, 11, which});
      if (which == 36 || which == 38 || which == 40 || which == 41) need(61);
    }
    return v;
  }
  uint32_t input(uint32_t which) { return make(OpLoad, t_u32(), {built_in(which, false)}); }
  uint32_t input(uint32_t which, uint32_t component) {
    uint32_t v = built_in(which, true);
    return make(OpLoad, t_u32(), {make(OpAccessChain, pointer(CLASS_INPUT, t_u32()), {v, u32(component)})});
  }
  bool native() const { return options.subgroup >= 32; }
  uint32_t builtin(Builtin b) {
    static const uint32_t threes[] = {28, 27, 26, 24};
    if (b <= Builtin::groups_z) return input(threes[static_cast<uint32_t>(b) / 3], static_cast<uint32_t>(b) % 3);
    if (b == Builtin::index) return input(29);
    bool is_lane = b == Builtin::lane;
    if (!native())
      return is_lane ? make(OpBitwiseAnd, t_u32(), {input(29), u32(31)})
                     : make(OpShiftRight, t_u32(), {input(29), u32(5)});
    uint32_t lane = input(41);
    if (is_lane) return options.subgroup == 32 ? lane : make(OpBitwiseAnd, t_u32(), {lane, u32(31)});
    uint32_t group = input(40);
    if (options.subgroup == 32) return group;
    uint32_t first = make(OpIMul, t_u32(), {group, u32(options.subgroup / 32)});
    return make(OpIAdd, t_u32(), {first, make(OpShiftRight, t_u32(), {lane, u32(5)})});
  }

  /* ---- instructions ---- */

  void plain(const Inst& i) {
    static const std::set<uint16_t> literal_last = {81, 82};           // extract, insert: the last operand is a number
    Words w;
    for (uint32_t k = 0; k < i.n; k++)
      w.push_back(literal_last.count(i.op) && k + 1 == i.n ? i.args[k] : id(i.args[k]));
    Words all = {of(i.type), id(i.id)};
    uint16_t op = i.op;
    if (op >= EXTENDED) {
      all.push_back(ext);
      all.push_back(op - EXTENDED);
      op = OpExtInst;
    }
    all.insert(all.end(), w.begin(), w.end());
    out(op, all);
    bool rounds = op == OpFMul || op == OpFAdd || op == 131 || op == 136;
    if (options.exact && rounds) put(decorations, OpDecorate, {id(i.id), 42});
  }
  void result(const Inst& i, uint32_t value) { ids[i.id] = value; }

  void load_buffer(const Inst& i) {
    uint32_t bytes = i.args[1], p = element(i.args[0], bytes, i.args[2]);
    uint32_t v = make(OpLoad, integer(8 * bytes, false), {p});
    if (bytes < 4) v = make(OpUConvert, t_u32(), {v});
    result(i, v);
  }
  void store_buffer(const Inst& i) {
    uint32_t bytes = i.args[1], v = id(i.args[3]);
    if (bytes < 4) v = make(OpUConvert, integer(8 * bytes, false), {v});
    out(OpStore, {element(i.args[0], bytes, i.args[2]), v});
  }

  /* ---- atomics ---- */

  void atomic(const Inst& i) {
    static const uint16_t ops[] = {
        OpAtomicLoad, OpAtomicStore, OpAtomicExchange, 234, 235, 236, 238, 237, 239, 240, 241, 242};
    Atomic kind = static_cast<Atomic>(i.imm);
    uint32_t p = i.args[0] ? slot_pointer(i.args[1], i.args[2]) : element(i.args[1], 4, i.args[2]);
    if (i.args[0] && code.slots[i.args[1]].type.base == Base::i32) {
      signed_atomic(i, p, kind);
      return;
    }
    uint32_t scope = u32(i.args[0] ? SCOPE_WORKGROUP : SCOPE_DEVICE), relaxed = u32(0);
    if (kind == Atomic::load) out(OpAtomicLoad, {t_u32(), id(i.id), p, scope, relaxed});
    else if (kind == Atomic::store) out(OpAtomicStore, {p, scope, relaxed, id(i.args[3])});
    else if (kind == Atomic::compare)
      out(OpAtomicCompareExchange, {t_u32(), id(i.id), p, scope, relaxed, relaxed, id(i.args[3]), id(i.args[4])});
    else if (kind >= Atomic::add_f) float_atomic(i, p, kind, scope);
    else out(ops[static_cast<uint32_t>(kind)], {t_u32(), id(i.id), p, scope, relaxed, id(i.args[3])});
  }
  /* A variable of int: the same with casts. */
  void signed_atomic(const Inst& i, uint32_t p, Atomic kind) {
    static const uint16_t ops[] = {
        OpAtomicLoad, OpAtomicStore, OpAtomicExchange, 234, 235, 236, 238, 237, 239, 240, 241, 242};
    uint32_t t = integer(32, true), scope = u32(SCOPE_WORKGROUP), relaxed = u32(0), r = 0;
    uint32_t v = make(OpBitcast, t, {id(i.args[3])});
    if (kind == Atomic::load) r = make(OpAtomicLoad, t, {p, scope, relaxed});
    else if (kind == Atomic::store) out(OpAtomicStore, {p, scope, relaxed, v});
    else if (kind == Atomic::compare)
      r = make(OpAtomicCompareExchange, t, {p, scope, relaxed, relaxed, v, make(OpBitcast, t, {id(i.args[4])})});
    else r = make(ops[static_cast<uint32_t>(kind)], t, {p, scope, relaxed, v});
    if (r) result(i, make(OpBitcast, t_u32(), {r}));
  }
  /* old = p; while another thread was faster: once more */
  void float_atomic(const Inst& i, uint32_t p, Atomic kind, uint32_t scope) {
    uint32_t relaxed = u32(0), old = local(t_u32()), head_label = fresh(), body_label = fresh(), go_on = fresh(),
             merge = fresh();
    out(OpStore, {old, make(OpAtomicLoad, t_u32(), {p, scope, relaxed})});
    out(OpBranch, {head_label});
    out(OpLabel, {head_label});
    out(OpLoopMerge, {merge, go_on, 0});
    out(OpBranch, {body_label});
    out(OpLabel, {body_label});
    uint32_t was = make(OpLoad, t_u32(), {old});
    uint32_t x = make(OpBitcast, t_f32(), {was}), y = make(OpBitcast, t_f32(), {id(i.args[3])});
    uint32_t sum = kind == Atomic::add_f ? make(OpFAdd, t_f32(), {x, y})
                                         : make(OpExtInst, t_f32(), {ext, kind == Atomic::min_f ? 79u : 80u, x, y});
    uint32_t bits = make(OpBitcast, t_u32(), {sum});
    uint32_t seen = make(OpAtomicCompareExchange, t_u32(), {p, scope, relaxed, relaxed, bits, was});
    out(OpStore, {old, seen});
    uint32_t done = make(OpIEqual, t_bool(), {seen, was});
    out(OpBranchConditional, {done, merge, go_on});
    out(OpLabel, {go_on});
    out(OpBranch, {head_label});
    out(OpLabel, {merge});
    result(i, make(OpLoad, t_u32(), {old}));
  }

  /* ---- barriers ---- */

  /* mem_none, too, orders threadgroup memory: Apple's devices do, and kernels of mlx-lm count on it. */
  void barrier(const Inst& i) {
    uint32_t semantics = 0x108 | (i.imm & 2 ? 0x40u : 0);
    if (i.args[0] == 2) {
      out(OpMemoryBarrier, {u32(SCOPE_DEVICE), u32(0x8 | 0x140)});
      return;
    }
    uint32_t scope = i.args[0] == 1 ? SCOPE_SUBGROUP : SCOPE_WORKGROUP;
    out(OpControlBarrier, {u32(scope), u32(SCOPE_WORKGROUP), u32(semantics)});
  }
  void group_barrier() { out(OpControlBarrier, {u32(SCOPE_WORKGROUP), u32(SCOPE_WORKGROUP), u32(0x108)}); }

  /* ---- threads together ---- */

  static uint64_t identity(Simd kind, Base b) {
    bool f = b == Base::f32, wide = bits_of(b) == 64, sign = b == Base::i32 || b == Base::i64;
    uint64_t most = sign ? (wide ? 0x7fffffffffffffffull : 0x7fffffffull) : (wide ? ~0ull : 0xffffffffull);
    uint64_t least = sign ? (wide ? 0x8000000000000000ull : 0x80000000ull) : 0;
    switch (kind) {
      case Simd::product: case Simd::inclusive_product: case Simd::exclusive_product: return f ? 0x3f800000 : 1;
      case Simd::min: return f ? 0x7f800000 : most;
      case Simd::max: return f ? 0xff800000 : least;
      case Simd::and_: return wide ? ~0ull : 0xffffffffull;
      default: return 0;
    }
  }
  uint32_t combine(Simd kind, Base b, uint32_t x, uint32_t y) {
    bool f = b == Base::f32, sign = b == Base::i32 || b == Base::i64;
    uint32_t t = of({b, 1});
    switch (kind) {
      case Simd::product:
      case Simd::inclusive_product:
      case Simd::exclusive_product: return make(f ? OpFMul : OpIMul, t, {x, y});
      case Simd::min: return make(OpExtInst, t, {ext, f ? 79u : sign ? 39u : 38u, x, y});
      case Simd::max: return make(OpExtInst, t, {ext, f ? 80u : sign ? 42u : 41u, x, y});
      case Simd::and_: return make(OpBitwiseAnd, t, {x, y});
      case Simd::or_: return make(OpBitwiseOr, t, {x, y});
      case Simd::xor_: return make(OpBitwiseXor, t, {x, y});
      default: return make(f ? OpFAdd : OpIAdd, t, {x, y});
    }
  }

  uint32_t threads() const { return options.threads[0] * options.threads[1] * options.threads[2]; }

  /* Everybody's value where everybody can read it; returns where this cluster's begin. Two rooms in turn, so that one
   * barrier is enough: whoever writes a room again has passed the barrier of the other. */
  uint32_t exchange(uint32_t value, bool wide, uint32_t width, uint32_t& room) {
    uint32_t padded = (threads() + 31) / 32 * 32, t = integer(wide ? 64 : 32, false);
    uint32_t& array = wide ? exchange64 : exchange32;
    if (!array) {
      array = global(CLASS_WORKGROUP, array_type(t, 2 * padded));
      shared_bytes += 2 * padded * (wide ? 8 : 4);
    }
    if (!parity) parity = global(CLASS_PRIVATE, t_u32(), u32(0));
    uint32_t first = make(OpLoad, t_u32(), {parity}), index = input(29);
    uint32_t at = make(OpIAdd, t_u32(), {first, index});
    out(OpStore, {make(OpAccessChain, pointer(CLASS_WORKGROUP, t), {array, at}), value});
    out(OpStore, {parity, make(OpISub, t_u32(), {u32(padded), first})});
    group_barrier();
    room = array;
    uint32_t base = make(OpBitwiseAnd, t_u32(), {index, u32(~(width - 1))});
    return make(OpIAdd, t_u32(), {first, base});
  }
  uint32_t read(uint32_t room, bool wide, uint32_t base, uint32_t offset) {
    uint32_t t = integer(wide ? 64 : 32, false);
    uint32_t at = make(OpIAdd, t_u32(), {base, offset});
    return make(OpLoad, t, {make(OpAccessChain, pointer(CLASS_WORKGROUP, t), {room, at})});
  }
  /* Is thread `offset` of this cluster one of the threadgroup? Only its last cluster may lack some. */
  uint32_t exists(uint32_t width, uint32_t offset) {
    uint32_t base = make(OpBitwiseAnd, t_u32(), {input(29), u32(~(width - 1))});
    return make(OpULessThan, t_bool(), {make(OpIAdd, t_u32(), {base, offset}), u32(threads())});
  }

  /* Of the whole threadgroup. Two flags in turn: one is cleared again when nobody reads it any more. */
  uint32_t any(uint32_t condition) {
    uint32_t t = t_u32();
    if (!any_flags) {
      any_flags = global(CLASS_WORKGROUP, array_type(t, 2));
      any_turn = global(CLASS_PRIVATE, t, u32(0));
      shared_bytes += 8;
    }
    uint32_t turn = make(OpLoad, t, {any_turn});
    uint32_t flag_pointer = make(OpAccessChain, pointer(CLASS_WORKGROUP, t), {any_flags, turn});
    out(OpStore, {any_turn, make(OpISub, t, {u32(1), turn})});
    store_if(make(OpIEqual, t_bool(), {input(29), u32(0)}), flag_pointer, 0);
    group_barrier();
    store_if(condition, flag_pointer, 1);
    group_barrier();
    return make(OpINotEqual, t_bool(), {make(OpLoad, t, {flag_pointer}), u32(0)});
  }
  void store_if(uint32_t condition, uint32_t to, uint32_t value) {
    uint32_t yes = fresh(), merge = fresh();
    out(OpSelectionMerge, {merge, 0});
    out(OpBranchConditional, {condition, yes, merge});
    out(OpLabel, {yes});
    out(OpStore, {to, u32(value)});
    out(OpBranch, {merge});
    out(OpLabel, {merge});
  }

  struct Shared { uint32_t room, base; bool wide; Base b; };
  Shared share(const Inst& i, uint32_t value, Base b) {
    bool wide = bits_of(b) == 64;
    uint32_t unsigned_type = integer(wide ? 64 : 32, false);
    if (b != Base::u32 && b != Base::u64) value = make(OpBitcast, unsigned_type, {value});
    Shared s = {0, 0, wide, b};
    s.base = exchange(value, wide, i.args[0], s.room);
    return s;
  }
  uint32_t typed(const Shared& s, uint32_t v) {
    return s.b == Base::u32 || s.b == Base::u64 ? v : make(OpBitcast, of({s.b, 1}), {v});
  }

  void simd_emulated(const Inst& i) {
    Simd kind = static_cast<Simd>(i.imm);
    uint32_t width = i.args[0], value = id(i.args[1]), mask = i.n > 3 ? id(i.args[3]) : 0;
    Base b = code.types[i.args[1]].base;
    if (b == Base::boolean) {
      vote(i, kind, width, value, mask);
      return;
    }
    bool reduces = kind <= Simd::exclusive_product;
    if (reduces && mask) value = make(OpSelect, of({b, 1}), {mask, value, scalar(b, identity(kind, b))});
    if (reduces && kind <= Simd::xor_) reduce(i, kind, width, value, b);
    else if (reduces) scan(i, kind, width, value, b);
    else move(i, kind, width, value, b, mask);
  }

  void reduce(const Inst& i, Simd kind, uint32_t width, uint32_t value, Base b) {
    Shared s = share(i, value, b);
    std::vector<uint32_t> v;
    for (uint32_t k = 0; k < width; k++) v.push_back(lane_value(s, width, k, kind));
    for (; v.size() > 1;) {  // neighbours first, as shuffles by 1, 2, 4, ... would
      std::vector<uint32_t> half;
      for (size_t k = 0; k < v.size(); k += 2) half.push_back(combine(kind, b, v[k], v[k + 1]));
      v = half;
    }
    result(i, v[0]);
  }
  uint32_t lane_value(const Shared& s, uint32_t width, uint32_t k, Simd kind) {
    uint32_t v = typed(s, read(s.room, s.wide, s.base, u32(k)));
    if (threads() % width == 0) return v;
    return make(OpSelect, of({s.b, 1}), {exists(width, u32(k)), v, scalar(s.b, identity(kind, s.b))});
  }
  void scan(const Inst& i, Simd kind, uint32_t width, uint32_t value, Base b) {
    bool inclusive = kind == Simd::inclusive_sum || kind == Simd::inclusive_product;
    Shared s = share(i, value, b);
    uint32_t lane = make(OpBitwiseAnd, t_u32(), {input(29), u32(width - 1)}), sum = scalar(b, identity(kind, b));
    for (uint32_t k = 0; k < width; k++) {
      uint32_t in =
          inclusive ? make(OpUGreaterThanEqual, t_bool(), {lane, u32(k)}) : make(OpULessThan, t_bool(), {u32(k), lane});
      uint32_t more = combine(kind, b, sum, typed(s, read(s.room, s.wide, s.base, u32(k))));
      sum = make(OpSelect, of({b, 1}), {in, more, sum});
    }
    result(i, sum);
  }
  void move(const Inst& i, Simd kind, uint32_t width, uint32_t value, Base b, uint32_t mask) {
    uint32_t lane = make(OpBitwiseAnd, t_u32(), {input(29), u32(width - 1)}), from = 0, keep = 0, t = t_u32();
    uint32_t other = kind == Simd::first ? 0 : id(i.args[2]);
    if (kind == Simd::first) from = mask ? first_active(i, width, mask) : u32(0);
    if (kind == Simd::shuffle) from = other;
    if (kind == Simd::shuffle_xor) from = make(OpBitwiseXor, t, {lane, other});
    if (kind == Simd::shuffle_up || kind == Simd::rotate_up) from = make(OpISub, t, {lane, other});
    if (kind == Simd::shuffle_down || kind == Simd::rotate_down) from = make(OpIAdd, t, {lane, other});
    if (kind == Simd::shuffle_up) keep = make(OpULessThan, t_bool(), {lane, other});
    if (kind == Simd::shuffle_down) keep = make(OpUGreaterThanEqual, t_bool(), {from, u32(width)});
    Shared s = share(i, value, b);
    uint32_t v = typed(s, read(s.room, s.wide, s.base, make(OpBitwiseAnd, t, {from, u32(width - 1)})));
    if (keep) v = make(OpSelect, of({b, 1}), {keep, value, v});
    result(i, v);
  }
  /* The threads where it is true, as bits. */
  uint32_t ballot(const Inst& i, uint32_t width, uint32_t value) {
    uint32_t lane = make(OpBitwiseAnd, t_u32(), {input(29), u32(width - 1)});
    uint32_t bit = make(OpSelect, t_u32(), {value, make(OpShiftLeft, t_u32(), {u32(1), lane}), u32(0)});
    Shared s = share(i, bit, Base::u32);
    uint32_t sum = lane_value(s, width, 0, Simd::or_);
    for (uint32_t k = 1; k < width; k++) sum = make(OpBitwiseOr, t_u32(), {sum, lane_value(s, width, k, Simd::or_)});
    return sum;
  }
  uint32_t first_active(const Inst& i, uint32_t width, uint32_t mask) {
    return make(OpExtInst, t_u32(), {ext, 73, ballot(i, width, mask)});
  }
  void vote(const Inst& i, Simd kind, uint32_t width, uint32_t value, uint32_t mask) {
    if (kind == Simd::first) {
      uint32_t lane = make(OpBitwiseAnd, t_u32(), {input(29), u32(width - 1)});
      result(i, make(OpIEqual, t_bool(), {lane, mask ? first_active(i, width, mask) : u32(0)}));
      return;
    }
    bool all = kind == Simd::all;
    if (all) value = make(OpLogicalNot, t_bool(), {value});
    if (mask) value = make(OpLogicalAnd, t_bool(), {value, mask});
    uint32_t bits = ballot(i, width, value);
    if (kind == Simd::ballot) result(i, bits);
    else result(i, make(all ? OpIEqual : OpINotEqual, t_bool(), {bits, u32(0)}));
  }

  /* By the device's own instructions: subgroups of 32, or of more in clusters. */
  void simd_native(const Inst& i) {
    Simd kind = static_cast<Simd>(i.imm);
    uint32_t width = i.args[0], value = id(i.args[1]), scope = u32(SCOPE_SUBGROUP);
    Base b = code.types[i.args[1]].base;
    need(61);
    bool clusters = width != options.subgroup;
    if (b == Base::boolean) {
      native_vote(i, kind, width, value, clusters);
      return;
    }
    uint32_t t = of({b, 1});
    if (kind <= Simd::xor_) {
      need(clusters ? 67 : 63);
      Words w = {t, id(i.id), scope, clusters ? 3u : 0u, value};
      if (clusters) w.push_back(u32(width));
      out(reduce_op(kind, b), w);
      return;
    }
    if (kind <= Simd::exclusive_product) {
      if (clusters)
        fail({1, 1, 0}, "prefix functions on a device with subgroups of " + std::to_string(options.subgroup) +
                            " are outside the language");
      need(63);
      bool inclusive = kind == Simd::inclusive_sum || kind == Simd::inclusive_product;
      bool product = kind == Simd::inclusive_product || kind == Simd::exclusive_product;
      out(reduce_op(product ? Simd::product : Simd::sum, b), {t, id(i.id), scope, inclusive ? 1u : 2u, value});
      return;
    }
    native_move(i, kind, width, value, b);
  }
  static uint16_t reduce_op(Simd kind, Base b) {
    bool f = b == Base::f32, sign = b == Base::i32 || b == Base::i64;
    switch (kind) {
      case Simd::sum: return f ? 350 : 349;
      case Simd::product: return f ? 352 : 351;
      case Simd::min: return f ? 355 : sign ? 353 : 354;
      case Simd::max: return f ? 358 : sign ? 356 : 357;
      case Simd::and_: return 359;
      case Simd::or_: return 360;
      default: return 361;
    }
  }
  void native_move(const Inst& i, Simd kind, uint32_t width, uint32_t value, Base b) {
    uint32_t t = of({b, 1}), u = t_u32(), scope = u32(SCOPE_SUBGROUP), lane = input(41), keep = 0, from = 0;
    need(65);
    if (kind == Simd::first && width == options.subgroup) {
      need(64);
      out(338, {t, id(i.id), scope, value});
      return;
    }
    uint32_t other = kind == Simd::first ? u32(0) : id(i.args[2]);
    uint32_t own = make(OpBitwiseAnd, u, {lane, u32(width - 1)}), base = make(OpISub, u, {lane, own});
    if (kind == Simd::first || kind == Simd::shuffle) from = other;
    if (kind == Simd::shuffle_xor) from = make(OpBitwiseXor, u, {own, other});
    if (kind == Simd::shuffle_up || kind == Simd::rotate_up) from = make(OpISub, u, {own, other});
    if (kind == Simd::shuffle_down || kind == Simd::rotate_down) from = make(OpIAdd, u, {own, other});
    if (kind == Simd::shuffle_up) keep = make(OpULessThan, t_bool(), {own, other});
    if (kind == Simd::shuffle_down) keep = make(OpUGreaterThanEqual, t_bool(), {from, u32(width)});
    from = make(OpIAdd, u, {base, make(OpBitwiseAnd, u, {from, u32(width - 1)})});
    uint32_t v = make(345, t, {scope, value, from});
    if (keep) v = make(OpSelect, t, {keep, value, v});
    result(i, v);
  }
  void native_vote(const Inst& i, Simd kind, uint32_t width, uint32_t value, bool clusters) {
    uint32_t scope = u32(SCOPE_SUBGROUP), u4 = type(OpTypeVector, {t_u32(), 4});
    if (kind == Simd::first && !clusters) {
      out(333, {t_bool(), id(i.id), scope});
      return;
    }
    if ((kind == Simd::any || kind == Simd::all) && !clusters) {
      need(62);
      out(kind == Simd::all ? 334 : 335, {t_bool(), id(i.id), scope, value});
      return;
    }
    need(64);
    if (kind == Simd::all) value = make(OpLogicalNot, t_bool(), {value});
    uint32_t bits = make(339, u4, {scope, value}), lane = input(41), word = make(81, t_u32(), {bits, 0});
    if (options.subgroup > 32)
      word =
          make(OpSelect, t_u32(), {make(OpULessThan, t_bool(), {lane, u32(32)}), word, make(81, t_u32(), {bits, 1})});
    uint32_t own = make(OpBitwiseAnd, t_u32(), {lane, u32(31)});
    if (width < 32) {
      uint32_t first = make(OpBitwiseAnd, t_u32(), {own, u32(~(width - 1))});
      word = make(OpBitwiseAnd, t_u32(), {make(OpShiftRight, t_u32(), {word, first}), u32((1u << width) - 1)});
    }
    if (kind == Simd::ballot) result(i, word);
    else if (kind == Simd::first) {
      uint32_t first = make(OpExtInst, t_u32(), {ext, 73, word});
      result(i, make(OpIEqual, t_bool(), {make(OpBitwiseAnd, t_u32(), {lane, u32(width - 1)}), first}));
    } else result(i, make(kind == Simd::all ? OpIEqual : OpINotEqual, t_bool(), {word, u32(0)}));
  }

  /* ---- control flow ---- */

  /* Jumps in a block to regions around it, and whether those come from within another region. */
  static void jumps_in(const Block& b, std::set<std::pair<uint32_t, bool>>& found, std::vector<uint32_t>& inside,
                       uint32_t except_direct) {
    for (const Inst& i : b) {
      if (i.op == BREAK || i.op == CONTINUE) {
        bool own = std::find(inside.begin(), inside.end(), i.args[0]) != inside.end();
        bool direct = inside.empty() && i.args[0] == except_direct;
        if (!own && !direct) found.insert({i.args[0], i.op == CONTINUE});
      }
      bool region = i.op == LOOP || i.op == REGION;
      if (region) inside.push_back(i.args[0]);
      if (i.a) jumps_in(*i.a, found, inside, except_direct);
      if (i.b) jumps_in(*i.b, found, inside, except_direct);
      if (region) inside.pop_back();
    }
  }
  static std::set<std::pair<uint32_t, bool>> jumps_out(const Block* a, const Block* b, uint32_t region) {
    std::set<std::pair<uint32_t, bool>> found;
    std::vector<uint32_t> inside = {region};
    if (a) jumps_in(*a, found, inside, 0);
    if (b) jumps_in(*b, found, inside, 0);
    return found;
  }
  uint32_t flag(uint32_t region, bool go_on) {
    uint32_t& f = flags[{region, go_on}];
    if (!f) f = local(t_bool());
    return f;
  }
  /* Flags of this region begin false: who jumps to it from within others sets one. */
  void clear_flags(const Block& b, uint32_t region, bool go_on) {
    std::set<std::pair<uint32_t, bool>> deep;
    deep_jumps(b, region, false, deep);
    for (auto& d : deep) if (d.second == go_on) out(OpStore, {flag(region, go_on), boolean(false)});
  }
  static void deep_jumps(const Block& b, uint32_t region, bool nested, std::set<std::pair<uint32_t, bool>>& found) {
    for (const Inst& i : b) {
      if ((i.op == BREAK || i.op == CONTINUE) && i.args[0] == region && nested)
        found.insert({region, i.op == CONTINUE});
      bool inner = nested || i.op == LOOP || i.op == REGION;
      if (i.a) deep_jumps(*i.a, region, inner, found);
      if (i.b) deep_jumps(*i.b, region, inner, found);
    }
  }

  void jump(uint32_t region, bool go_on) {
    const Region& r = regions.back();
    if (r.region != region) out(OpStore, {flag(region, go_on), boolean(true)});
    out(OpBranch, {r.region == region && go_on ? r.go_on : r.merge});
  }

  /* Behind a region that was left for one around it. */
  bool pass_on(const std::set<std::pair<uint32_t, bool>>& targets) {
    for (auto& t : targets) {
      uint32_t set = make(OpLoad, t_bool(), {flag(t.first, t.second)}), yes = fresh(), merge = fresh();
      out(OpSelectionMerge, {merge, 0});
      out(OpBranchConditional, {set, yes, merge});
      out(OpLabel, {yes});
      jump(t.first, t.second);
      out(OpLabel, {merge});
    }
    return false;
  }

  void loop(const Inst& i) {
    bool once = i.op == REGION;
    uint32_t head_label = fresh(), body_label = fresh(), go_on = fresh(), merge = fresh(), region = i.args[0];
    auto targets = jumps_out(i.a.get(), i.b.get(), region);
    clear_flags(*i.a, region, false);
    out(OpBranch, {head_label});
    out(OpLabel, {head_label});
    out(OpLoopMerge, {merge, go_on, 0});
    out(OpBranch, {body_label});
    out(OpLabel, {body_label});
    clear_flags(*i.a, region, true);
    regions.push_back({region, merge, go_on});
    if (!block(*i.a)) out(OpBranch, {once ? merge : go_on});
    out(OpLabel, {go_on});
    if (i.b && block(*i.b)) fail({1, 1, 0}, "a jump out of a loop's step");
    out(OpBranch, {head_label});
    regions.pop_back();
    out(OpLabel, {merge});
    pass_on(targets);
  }

  uint32_t ifs = 0;                            // around what is written; Mesa's llvmpipe forgets those beyond 80
  bool branch(const Inst& i) {
    struct Leave { uint32_t& n; ~Leave() { n--; } } leave{ifs};
    if (++ifs > 72) fail({1, 1, 0}, "this nests too deeply: more than 72 ifs within one another");
    uint32_t yes = fresh(), merge = fresh(), no = i.b->empty() ? merge : fresh();
    out(OpSelectionMerge, {merge, 0});
    out(OpBranchConditional, {id(i.args[0]), yes, no});
    out(OpLabel, {yes});
    bool a = block(*i.a), b = false;
    if (!a) out(OpBranch, {merge});
    if (no != merge) {
      out(OpLabel, {no});
      b = block(*i.b);
      if (!b) out(OpBranch, {merge});
    }
    out(OpLabel, {merge});
    if (a && b) out(OpUnreachable, {});
    return a && b;
  }

  /* True where its end is not reached. */
  bool block(const Block& b) {
    for (const Inst& i : b) {
      switch (i.op) {
        case LOAD: out(OpLoad, {of(i.type), id(i.id), slot_pointer(i.args[0], i.args[1])}); break;
        case STORE: out(OpStore, {slot_pointer(i.args[0], i.args[1]), id(i.args[2])}); break;
        case LOAD_BUFFER: load_buffer(i); break;
        case STORE_BUFFER: store_buffer(i); break;
        case ATOMIC: atomic(i); break;
        case IF: if (branch(i)) return true; break;
        case LOOP: case REGION: loop(i); break;
        case BREAK: jump(i.args[0], false); return true;
        case CONTINUE: jump(i.args[0], true); return true;
        case RETURN: out(OpReturn, {}); return true;
        case BARRIER: barrier(i); break;
        case SIMD: if (native()) simd_native(i); else simd_emulated(i); break;
        case BUILTIN: result(i, builtin(static_cast<Builtin>(i.imm))); break;
        case ANY: result(i, any(id(i.args[0]))); break;
        case PUSH: result(i, push_value(i.args[0])); break;
        default: plain(i); break;
      }
    }
    return false;
  }

  /* ---- the module ---- */

  Words run() {
    ids.assign(code.types.size(), 0);
    slot_ids.assign(code.slots.size(), 0);
    ext = fresh();
    uint32_t main = fresh(), t_void = type(OpTypeVoid, {}), t_main = type(OpTypeFunction, {t_void});
    if (!block(code.main)) out(OpReturn, {});
    need(1);
    for (uint32_t c : caps) put(capabilities, OpCapability, {c});
    put(head, OpExtInstImport, {ext, 0x4c534c47, 0x6474732e, 0x3035342e, 0});      // GLSL.std.450
    put(head, OpMemoryModel, {0, 1});
    Words entry = {5, main, 0x6e69616d, 0};                                         // main
    entry.insert(entry.end(), interface.begin(), interface.end());
    put(head, OpEntryPoint, entry);
    put(head, OpExecutionMode, {main, 17, options.threads[0], options.threads[1], options.threads[2]});
    Words all = {0x07230203, 0x00010500, 0, 0, 0};
    for (const Words* w : {&capabilities, &head, &decorations, &globals}) all.insert(all.end(), w->begin(), w->end());
    put(all, OpFunction, {t_void, main, 0, t_main});
    put(all, OpLabel, {fresh()});
    all.insert(all.end(), variables.begin(), variables.end());
    all.insert(all.end(), body.begin(), body.end());
    put(all, OpFunctionEnd, {});
    all[3] = next;
    return all;
  }
};

}  // namespace

std::vector<uint32_t> write_spirv(Code& code, const Options& options, uint32_t& shared_bytes) {
  Writer w(code, options);
  std::vector<uint32_t> words = w.run();
  shared_bytes = w.shared_bytes;
  return words;
}

}  // namespace metal
