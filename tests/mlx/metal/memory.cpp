/* Variables, buffers and pointers. A pointer is where it may point, which is known here, and an index, a value.
 *                                                                                     SPDX-License-Identifier: MIT */
#include <algorithm>
#include <numeric>

#include "lower.h"

namespace metal {

enum : uint16_t {
  M_EXTRACT = 81,
  M_IADD = 128,
  M_IMUL = 132,
  M_SHR = 194,
  M_SHL = 196,
  M_OR = 197,
  M_AND = 199,
  M_NOT = 200,
  M_SELECT = 169,
  M_NOTEQUAL = 171,
  M_EQUAL = 170,
  M_EXTRACT_AT = 77,
  M_INSERT_AT = 78,
  M_INSERT = 82
};
static const Reg U32{Base::u32, 1}, U64{Base::u64, 1}, BOOL{Base::boolean, 1};

/* ---- indexes ---- */

Index Lower::index_of(const Value& v, Place at) {
  if (!v.type || !v.type->is_int())
    fail(at, "expected an integer as an index, not " + (v.type ? name_of(v.type) : "nothing"));
  Index i;
  if (v.kind == Value::constant) i.k = v.k[0].i;
  else i.id = convert_reg(v.id, v.type, t_uint, 1, at);
  return i;
}
uint32_t Lower::id_of(Index i) { return i.id ? i.id : constant_u32(static_cast<uint32_t>(i.k)); }
Index Lower::add(Index a, Index b) {
  if (!a.id && !b.id) return {0, static_cast<int32_t>(static_cast<uint32_t>(a.k) + static_cast<uint32_t>(b.k))};
  if (!a.id && !a.k) return b;
  if (!b.id && !b.k) return a;
  return {emit(M_IADD, U32, {id_of(a), id_of(b)}), 0};
}
Index Lower::scale(Index a, int64_t by) {
  if (!a.id) return {0, static_cast<int32_t>(static_cast<uint32_t>(a.k) * static_cast<uint32_t>(by))};
  if (by == 1) return a;
  return {emit(M_IMUL, U32, {a.id, constant_u32(static_cast<uint32_t>(by))}), 0};
}
Index Lower::shift(Index a, uint32_t by) {
  if (!by) return a;
  if (!a.id) return {0, static_cast<int64_t>(static_cast<uint32_t>(a.k) >> by)};
  return {emit(M_SHR, U32, {a.id, constant_u32(by)}), 0};
}
static uint32_t log2_of(uint32_t n) {
  uint32_t r = 0;
  while ((1u << r) < n) r++;
  return r;
}

/* ---- variables ---- */

/* The same in every run. */
uint32_t Lower::number_of(const Type* t, Place at) {
  std::string where = std::to_string(inside) + ":" + std::to_string(at.file) + ":" + std::to_string(at.line) + ":" +
                      std::to_string(at.column) + ":" + name_of(t);
  uint32_t count = made[where]++;
  return findings.numbers.emplace(where + ":" + std::to_string(count), findings.numbers.size()).first->second;
}

Node* Lower::make_node(const Type* t, Space space, uint32_t count, Place at) {
  count_step(at);
  uint64_t total = count;
  while (t->kind == Type::array) {
    total = std::max<uint64_t>(total, 1) * std::max(t->n, 1u);
    if (total > MAX_ELEMENTS) fail(at, "this array is too large");
    t = t->of;
  }
  nodes.emplace_back();
  Node* n = &nodes.back();
  n->number = number_of(t, at);
  numbered[n->number] = n;
  n->type = t;
  n->space = space;
  n->count = static_cast<uint32_t>(total);
  bool shared = space == Space::threadgroup;
  if (t->kind == Type::structure) {
    complete(t->info, at);
    for (const Member& m : t->info->members) n->members.push_back(make_node(m.type, space, n->count, at));
  } else if (t->kind == Type::pointer) {
    if (n->count) fail(at, "arrays of pointers are outside the language");
    if (shared) fail(at, "pointers in threadgroup memory are outside the language");
    n->loops = loops;
    n->index_slot = slot(U32, 0, false);
    n->tag_slot = slot(U32, 0, false);
    auto k = findings.pointers.find(n->number);
    if (k != findings.pointers.end()) {
      n->targets = k->second.targets;
      n->may_be_null = k->second.may_be_null;
    }
    for (Target& g : n->targets) {
      const Type& s = g.seen;
      if (s.kind == Type::none) continue;
      g.view = s.kind == Type::boolean  ? t_bool
               : s.kind == Type::real   ? t_float
               : s.kind == Type::half   ? t_half
               : s.kind == Type::bfloat ? t_bfloat
                                        : integer(s.bytes, s.sign);
      if (s.n > 1) g.view = vector_of(g.view, s.n, s.packed);
    }
  } else {
    Reg r = reg(t, at);
    if (t->kind == Type::atomic && r.base == Base::f32) r.base = Base::u32;
    bool apart = shared && t->kind == Type::vector;                    // so that it can be seen as numbers
    if (apart) r.n = 1;
    n->slot = slot(r, apart ? std::max(n->count, 1u) * stride_of(t, at) : n->count, shared);
  }
  return n;
}

Node* Lower::allocate(const Type* t, Space space, Place at) {
  if (t->kind == Type::none) fail(at, "a variable of type void");
  return make_node(t, space, 0, at);
}

Place_ Lower::place_of(Node* n, const Type* t, bool constant) {
  Place_ p;
  p.type = t;
  Target target;
  target.kind = Target::memory;
  target.unit = 0;
  target.node = n;
  p.targets.push_back(target);
  p.constant = constant;
  return p;
}

Place_ Lower::temporary(const Value& v, Place at) {
  Node* n = allocate(v.type, Space::thread, at);
  Place_ p = place_of(n, v.type);
  store(p, v, at);
  return p;
}

namespace {
void fill(Lower& l, Node* n, const Type* t, const Value& v, uint32_t at, Place where) {
  if (t->kind == Type::array) {
    for (uint32_t i = 0; i < t->n; i++) fill(l, n, t->of, (*v.parts)[i], at * t->n + i, where);
  } else if (t->kind == Type::structure) {
    for (size_t i = 0; i < n->members.size(); i++)
      fill(l, n->members[i], t->info->members[i].type, (*v.parts)[i], at, where);
  } else {
    Slot& s = l.code.slots[n->slot];
    if (s.init.empty()) s.init.assign(std::max(s.count, 1u), l.id_of(l.zero(t, where), where));
    s.init[at] = l.id_of(v, where);
  }
}
}  // namespace

/* A constant in memory: somebody wants an element that is not known here. */
Place_ Lower::memory_of(Entity* e, Place at) {
  if (!e->lazy) {
    e->lazy = make_node(e->t, Space::thread, 0, at);
    fill(*this, e->lazy, e->t, e->value, 0, at);
  }
  return place_of(e->lazy, e->t, true);
}

Space Lower::space_of(const Place_& p) {
  if (p.targets.empty()) return Space::thread;
  return p.targets[0].kind == Target::buffer ? Space::device : p.targets[0].node->space;
}

/* ---- parts of a place ---- */

Place_ Lower::member_place(const Place_& p, uint32_t index, Place at) {
  Place_ r = p;
  const Member& m = p.type->info->members[index];
  r.type = m.type;
  if (p.cell) {
    if (p.cell->kind != Value::aggregate) fail(at, "this is no constant expression");
    if (p.cell->parts.use_count() > 1) p.cell->parts = std::make_shared<std::vector<Value>>(*p.cell->parts);
    r.cell = &(*p.cell->parts)[index];
    return r;
  }
  for (Target& t : r.targets) {
    if (t.view) fail(at, "a structure laid over other memory is outside the language");
    if (t.kind == Target::buffer) t.offset += m.offset;
    else t.node = t.node->members[index];
  }
  return r;
}

Place_ Lower::element_place(const Place_& p, Index i, Place at) {
  Place_ r = p;
  const Type* t = p.type;
  r.type = t->of;
  if (p.cell) {
    if (i.id) fail(at, "this is no constant expression");
    if (i.k < 0 || i.k >= static_cast<int64_t>(t->n)) fail(at, "index " + std::to_string(i.k) + " of " + name_of(t));
    if (t->kind == Type::vector) {
      r.swizzle = {static_cast<uint8_t>(i.k)};
      return r;
    }
    if (p.cell->kind != Value::aggregate) fail(at, "this is no constant expression");
    if (p.cell->parts.use_count() > 1) p.cell->parts = std::make_shared<std::vector<Value>>(*p.cell->parts);
    r.cell = &(*p.cell->parts)[static_cast<size_t>(i.k)];
    return r;
  }
  if (t->kind == Type::vector && (!p.swizzle.empty() || (p.targets[0].kind == Target::memory && !p.targets[0].view &&
                                                         p.targets[0].node->space != Space::threadgroup))) {
    if (!i.id) {
      if (i.k < 0 || i.k >= static_cast<int64_t>(t->n)) fail(at, "index " + std::to_string(i.k) + " of " + name_of(t));
      uint8_t k = static_cast<uint8_t>(i.k);
      r.swizzle = {p.swizzle.empty() ? k : p.swizzle[k]};
      return r;
    }
    if (!p.swizzle.empty()) fail(at, "an index that is not constant into a swizzle is outside the language");
    r.has_component = true;
    r.component = i;
    return r;
  }
  if (p.targets[0].kind == Target::memory) {
    bool vector_view = t->kind == Type::vector;
    r.index = add(p.indexed ? scale(p.index, vector_view ? numbers_of(p.targets[0], t, at) : t->n) : Index{}, i);
    r.indexed = true;
    if (vector_view) for (Target& g : r.targets) g.view = t->of, g.unit = 0;
    return r;
  }
  uint32_t size = size_of(t->of, at), unit = p.targets[0].unit;
  if (size % unit) {                                                   // a number of a vector: smaller steps
    for (Target& g : r.targets) g.unit = size;
    r.index = scale(p.index, unit / size);
    unit = size;
  }
  r.index = add(r.index, scale(i, size / unit));
  r.indexed = true;
  return r;
}

/* ---- numbers as bits ---- */

/* Unsigned, of 64 bits for numbers of 8 bytes (where there are such), else of 32 with zeros above. */
uint32_t Lower::bits_of_number(const Value& v, Place at) {
  const Type* t = v.type;
  uint32_t id = id_of(v, at);
  switch (t->kind) {
    case Type::boolean: return emit(M_SELECT, U32, {id, constant_u32(1), constant_u32(0)}, 0, at);
    case Type::real: return emit(124, U32, {id}, 0, at);
    case Type::half: return half_bits(id);
    case Type::bfloat: return emit(M_SHR, U32, {emit(124, U32, {id}, 0, at), constant_u32(16)}, 0, at);
    default: break;
  }
  if (t->bytes == 8) return bitcast_reg(id, options.int64 ? U64 : U32);
  id = bitcast_reg(id, U32);
  return t->bytes < 4 && t->sign ? emit(M_AND, U32, {id, constant_u32(t->bytes == 1 ? 0xff : 0xffff)}, 0, at) : id;
}

Value Lower::number_of_bits(uint32_t bits, const Type* t, Place at) {
  switch (t->kind) {
    case Type::boolean: return reg_value(t, emit(M_NOTEQUAL, BOOL, {bits, constant_u32(0)}, 0, at));
    case Type::real: return reg_value(t, emit(124, {Base::f32, 1}, {bitcast_reg(bits, U32)}, 0, at));
    case Type::half:
      return reg_value(t,
                       emit(M_EXTRACT, {Base::f32, 1}, {emit(EXTENDED + 62, {Base::f32, 2}, {bits}, 0, at), 0}, 0, at));
    case Type::bfloat:
      return reg_value(t, emit(124, {Base::f32, 1}, {emit(M_SHL, U32, {bits, constant_u32(16)}, 0, at)}, 0, at));
    default: break;
  }
  uint32_t id = bitcast_reg(bits, reg(t, at));
  return reg_value(t, t->sign ? normalize(id, t, 1) : id);
}

/* ---- buffers ---- */

/* In elements of so many bytes. */
Index Lower::buffer_index(const Target& t, Index i, uint32_t offset, uint32_t bytes) {
  if (t.unit % bytes == 0) return add(scale(i, t.unit / bytes), {0, offset / bytes});
  return shift(add(i, {0, offset / t.unit}), log2_of(bytes / t.unit));
}

Value Lower::load_buffer(const Target& t, const Type* type, Index i, Place at) {
  Target part = t;
  if (type->kind == Type::vector) {
    std::vector<Value> v;
    for (uint32_t k = 0; k < type->n; k++, part.offset += type->of->bytes)
      v.push_back(load_buffer(part, type->of, i, at));
    return join(type, v, at);
  }
  if (type->kind == Type::structure || type->kind == Type::array) {
    Value v;
    v.kind = Value::aggregate;
    v.type = type;
    v.parts = std::make_shared<std::vector<Value>>();
    uint32_t n = type->kind == Type::array ? type->n : static_cast<uint32_t>(type->info->members.size());
    for (uint32_t k = 0; k < n; k++) {
      bool array = type->kind == Type::array;
      const Type* of = array ? type->of : type->info->members[k].type;
      part.offset = t.offset + (array ? k * size_of(of, at) : type->info->members[k].offset);
      v.parts->push_back(load_buffer(part, of, i, at));
    }
    return v;
  }
  if (type->kind == Type::atomic) type = type->of;
  if (type->kind == Type::pointer) fail(at, "pointers in buffers are outside the language");
  uint32_t bytes = type->bytes;
  if (bytes == 8 && !options.int64)
    return number_of_bits(emit(LOAD_BUFFER, U32, {t.binding, 4, id_of(buffer_index(t, i, t.offset, 4))}, 0, at), type,
                          at);
  uint32_t id =
      emit(LOAD_BUFFER, bytes == 8 ? U64 : U32, {t.binding, bytes, id_of(buffer_index(t, i, t.offset, bytes))}, 0, at);
  return number_of_bits(id, type, at);
}

void Lower::store_buffer(const Target& t, const Type* type, Index i, const Value& v, Place at) {
  if (t.readonly) fail(at, "this memory is constant");
  Target part = t;
  if (type->kind == Type::vector) {
    for (uint32_t k = 0; k < type->n; k++, part.offset += type->of->bytes)
      store_buffer(part, type->of, i, component(v, k, at), at);
    return;
  }
  if (type->kind == Type::structure || type->kind == Type::array) {
    uint32_t n = type->kind == Type::array ? type->n : static_cast<uint32_t>(type->info->members.size());
    for (uint32_t k = 0; k < n; k++) {
      bool array = type->kind == Type::array;
      const Type* of = array ? type->of : type->info->members[k].type;
      part.offset = t.offset + (array ? k * size_of(of, at) : type->info->members[k].offset);
      store_buffer(part, of, i, (*v.parts)[k], at);
    }
    return;
  }
  if (type->kind == Type::pointer) fail(at, "pointers in buffers are outside the language");
  if (type->kind == Type::atomic) type = type->of;
  uint32_t bytes = type->bytes, bits = bits_of_number(v, at);
  code.written[t.binding] = true;
  if (bytes == 8 && !options.int64) {
    Index low = buffer_index(t, i, t.offset, 4);
    uint32_t high =
        type->sign ? emit(195, {Base::i32, 1}, {bitcast_reg(bits, {Base::i32, 1}), constant_u32(31)}) : constant_u32(0);
    emit(STORE_BUFFER, {}, {t.binding, 4, id_of(low), bits}, 0, at);
    emit(STORE_BUFFER, {}, {t.binding, 4, id_of(add(low, {0, 1})), bitcast_reg(high, U32)}, 0, at);
    return;
  }
  emit(STORE_BUFFER, {}, {t.binding, bytes, id_of(buffer_index(t, i, t.offset, bytes)), bits}, 0, at);
}

/* ---- variables' values ---- */

uint32_t Lower::numbers_of(const Target& t, const Type* vector, Place at) {
  return t.unit ? t.unit / vector->of->bytes : stride_of(vector, at);
}

/* Nodes are made anew by each run: those that an earlier one found are there when this one has come to them. */
void Lower::recall_targets(Node* n) {
  for (Target& t : n->targets)
    if (t.kind == Target::memory && !t.node && numbered.count(t.number)) t.node = numbered[t.number];
}

void Lower::remember_targets(const Node* n) {
  std::vector<Target>& targets = findings.pointers[n->number].targets;
  targets = n->targets;
  for (Target& t : targets) {
    if (t.node) t.number = t.node->number;
    t.node = nullptr;
    if (!t.view) continue;
    t.seen = *scalar(t.view);                                          // a run's types end with it
    t.seen.n = width(t.view);
    t.seen.packed = t.view->packed;
    t.view = nullptr;
  }
}

namespace {
/* Whether one index counts the same in both. */
bool alike(const Target& a, const Target& b) {
  return a.kind == b.kind && a.unit == b.unit && (!a.node || !b.node || a.node->space == b.node->space);
}
}  // namespace

Value Lower::load_pointer(Node* n, const Type* type, Place at) {
  recall_targets(n);
  std::vector<Target> targets = n->targets;
  auto is_made = [](const Target& t) { return t.kind != Target::memory || t.node; };
  auto first = std::find_if(targets.begin(), targets.end(), is_made);
  for (Target& t : targets) {
    if (is_made(t)) continue;
    if (loops > n->loops) fail(at, "a pointer to a variable that comes after it");
    if (first != targets.end()) t = *first;                            // it cannot be that one yet
  }
  if (first == targets.end()) targets.clear();
  Value v;
  v.kind = Value::pointer;
  v.type = type;
  v.p = std::make_shared<Pointer>();
  v.p->targets = targets;
  if (targets.empty()) {
    v.kind = Value::null;
    n->was_null = n->was_null || loops > n->loops;
    return v;
  }
  v.p->index.id = emit(LOAD, U32, {n->index_slot, 0});
  v.p->may_be_null = n->may_be_null;
  if (targets.size() > 1 || n->may_be_null) v.p->tag = emit(LOAD, U32, {n->tag_slot, 0});
  return v;
}

void Lower::store_pointer(Node* n, const Value& v, Place at) {
  if (v.kind != Value::pointer && v.kind != Value::null) fail(at, "expected a pointer");
  if (!n->may_be_null && (v.kind == Value::null || v.p->may_be_null)) {
    if (n->is_set) pointer_found = true;                               // its tag was not stored before
    n->may_be_null = findings.pointers[n->number].may_be_null = true;
  }
  if (v.kind == Value::null) {
    emit(STORE, {}, {n->index_slot, 0, constant_u32(0)}, 0, at);
    emit(STORE, {}, {n->tag_slot, 0, constant_u32(NOWHERE)}, 0, at);
    return;
  }
  recall_targets(n);
  std::vector<uint32_t> where;
  for (const Target& t : v.p->targets) {
    size_t k = 0;
    while (k < n->targets.size() && !(n->targets[k] == t)) k++;
    if (k == n->targets.size()) {
      if (k >= 16) fail(at, "a pointer that may point to more than 16 arrays");
      if (k || n->was_null) pointer_found = true;                      // what was made before did not know: once more
      n->targets.push_back(t);
      if (k && !alike(t, n->targets[0]))
        fail(at, "a pointer that may point to memory of different kinds is outside the language");
    }
    where.push_back(static_cast<uint32_t>(k));
  }
  n->is_set = true;
  if (n->targets.size() > 1 || n->was_null || findings.pointers.count(n->number)) remember_targets(n);
  emit(STORE, {}, {n->index_slot, 0, id_of(v.p->index)}, 0, at);
  if (n->targets.size() < 2 && !n->may_be_null) return;
  uint32_t tag = constant_u32(where[0]);
  for (size_t k = 1; k < where.size(); k++)
    tag = emit(M_SELECT, U32,
               {emit(M_EQUAL, BOOL, {v.p->tag, constant_u32(static_cast<uint32_t>(k))}), constant_u32(where[k]), tag});
  if (v.p->may_be_null)
    tag = emit(M_SELECT, U32, {id_of(points(v, at), at), tag, constant_u32(NOWHERE)});
  emit(STORE, {}, {n->tag_slot, 0, tag}, 0, at);
}

Value Lower::load_node(Node* n, const Type* type, Index i, bool indexed, Place at) {
  if (type->kind == Type::array || type->kind == Type::structure) {
    count_step(at);
    Value v;
    v.kind = Value::aggregate;
    v.type = type;
    v.parts = std::make_shared<std::vector<Value>>();
    if (type->kind == Type::array) {
      for (uint32_t k = 0; k < type->n; k++)
        v.parts->push_back(load_node(n, type->of, add(indexed ? scale(i, type->n) : Index{}, {0, k}), true, at));
    } else {
      for (size_t k = 0; k < n->members.size(); k++)
        v.parts->push_back(load_node(n->members[k], type->info->members[k].type, i, indexed, at));
    }
    return v;
  }
  if (type->kind == Type::pointer) return load_pointer(n, type, at);
  if (type->kind == Type::atomic) {
    Reg r = code.slots[n->slot].type;
    uint32_t id = emit(LOAD, r, {n->slot, n->count ? id_of(i) : 0}, 0, at);
    return reg_value(type->of, bitcast_reg(id, reg(type->of, at)));
  }
  if (n->space == Space::threadgroup && type->kind == Type::vector) {
    std::vector<Value> parts;
    Index first = n->count ? scale(i, stride_of(type, at)) : Index{};
    for (uint32_t k = 0; k < type->n; k++)
      parts.push_back(
          reg_value(type->of, emit(LOAD, reg(type->of, at), {n->slot, id_of(add(first, {0, k}))}, 0, at)));
    return join(type, parts, at);
  }
  return reg_value(type, emit(LOAD, reg(type, at), {n->slot, n->count ? id_of(i) : 0}, 0, at));
}

void Lower::store_node(Node* n, const Type* type, Index i, bool indexed, const Value& v, Place at) {
  if (type->kind == Type::array || type->kind == Type::structure) {
    count_step(at);
    if (v.kind != Value::aggregate) fail(at, "expected a value of type " + name_of(type));
    if (type->kind == Type::array) {
      for (uint32_t k = 0; k < type->n; k++)
        store_node(n, type->of, add(indexed ? scale(i, type->n) : Index{}, {0, k}), true, (*v.parts)[k], at);
    } else {
      for (size_t k = 0; k < n->members.size(); k++)
        store_node(n->members[k], type->info->members[k].type, i, indexed, (*v.parts)[k], at);
    }
    return;
  }
  if (type->kind == Type::pointer) {
    store_pointer(n, v, at);
    return;
  }
  uint32_t id = id_of(v, at);
  if (type->kind == Type::atomic) id = bitcast_reg(id, code.slots[n->slot].type);
  if (n->space == Space::threadgroup && type->kind == Type::vector) {
    Index first = n->count ? scale(i, stride_of(type, at)) : Index{};
    for (uint32_t k = 0; k < type->n; k++)
      emit(STORE, {}, {n->slot, id_of(add(first, {0, k})), id_of(component(v, k, at), at)}, 0, at);
    return;
  }
  emit(STORE, {}, {n->slot, n->count ? id_of(i) : 0, id}, 0, at);
}

/* ---- a variable seen as other numbers than it has ---- */

namespace {
/* Which of a thread's vectors number e is in, and which of that one's numbers it is. */
struct Within { Index vector, number; };
Within within(Lower& l, const Type* t, Index e, Place at) {
  uint32_t width = l.stride_of(t, at);
  if (!e.id) return {{0, e.k / width}, {0, e.k % width}};
  return {{l.emit(134, U32, {e.id, l.constant_u32(width)}), 0}, {l.emit(137, U32, {e.id, l.constant_u32(width)}), 0}};
}

/* One of its numbers. */
Value load_scalar(Lower& l, Node* n, Index e, Place at) {
  const Type* s = l.scalar(n->type);
  bool vector = n->type->kind == Type::vector && n->space != Space::threadgroup;
  if (!vector)
    return l.reg_value(s, l.emit(LOAD, l.reg(s, at), {n->slot, l.code.slots[n->slot].count ? l.id_of(e) : 0}, 0, at));
  auto [which, part] = within(l, n->type, e, at);
  Value v = l.reg_value(n->type, l.emit(LOAD, l.reg(n->type, at), {n->slot, n->count ? l.id_of(which) : 0}, 0, at));
  if (!part.id) return l.component(v, static_cast<uint32_t>(part.k) % n->type->n, at);
  return l.reg_value(s, l.emit(M_EXTRACT_AT, l.reg(s, at), {v.id, part.id}, 0, at));
}

void store_scalar(Lower& l, Node* n, Index e, const Value& v, Place at) {
  bool vector = n->type->kind == Type::vector && n->space != Space::threadgroup;
  if (!vector) {
    l.emit(STORE, {}, {n->slot, l.code.slots[n->slot].count ? l.id_of(e) : 0, l.id_of(v, at)}, 0, at);
    return;
  }
  Within w = within(l, n->type, e, at);
  uint32_t which = n->count ? l.id_of(w.vector) : 0;
  Reg r = l.reg(n->type, at);
  uint32_t old = l.emit(LOAD, r, {n->slot, which}, 0, at);
  l.emit(STORE, {}, {n->slot, which, l.emit(M_INSERT_AT, r, {old, l.id_of(v, at), l.id_of(w.number)}, 0, at)}, 0, at);
}
}  // namespace

Value Lower::load_view(const Target& t, const Type* type, Index i, Place at) {
  const Type *s = scalar(t.node->type), *x = scalar(type);
  if (!x->is_number() || !s->is_number())
    fail(at, "memory of " + name_of(t.node->type) + " seen as " + name_of(type) + " is outside the language");
  uint32_t per = (t.unit ? t.unit : size_of(type, at)) / x->bytes;
  std::vector<Value> parts;
  for (uint32_t c = 0; c < width(type); c++) {
    Index e = add(scale(i, per), {0, c});
    if (x->bytes >= s->bytes) {
      uint32_t k = x->bytes / s->bytes;
      Value sum;
      const Type* wide = integer(std::max<uint32_t>(x->bytes, 4), false);
      for (uint32_t j = 0; j < k; j++) {
        Value part = reg_value(integer(s->bytes, false),
                               bits_of_number(load_scalar(*this, t.node, add(scale(e, k), {0, j}), at), at));
        part = convert(part, wide, at);
        sum = j ? binary_numbers("|", sum, binary_numbers("<<", part, constant_value(t_uint, 8 * s->bytes * j), at), at)
                : part;
      }
      parts.push_back(number_of_bits(sum.id, x, at));
    } else {
      uint32_t k = s->bytes / x->bytes;
      Value word =
          reg_value(integer(s->bytes, false), bits_of_number(load_scalar(*this, t.node, shift(e, log2_of(k)), at), at));
      Index low = e.id ? Index{emit(M_AND, U32, {e.id, constant_u32(k - 1)}), 0} : Index{0, e.k & (k - 1)};
      Value by = reg_value(t_uint, id_of(scale(low, 8 * x->bytes)));
      Value part = convert(binary_numbers(">>", word, by, at), integer(x->bytes, false), at);
      parts.push_back(number_of_bits(convert(part, t_uint, at).id, x, at));
    }
  }
  return join(type, parts, at);
}

void Lower::store_view(const Target& t, const Type* type, Index i, const Value& v, Place at) {
  const Type *s = scalar(t.node->type), *x = scalar(type);
  if (!x->is_number() || !s->is_number())
    fail(at, "memory of " + name_of(t.node->type) + " seen as " + name_of(type) + " is outside the language");
  uint32_t per = (t.unit ? t.unit : size_of(type, at)) / x->bytes;
  for (uint32_t c = 0; c < width(type); c++) {
    Index e = add(scale(i, per), {0, c});
    Value bits = reg_value(integer(x->bytes, false), bits_of_number(component(v, c, at), at));
    if (x->bytes >= s->bytes) {
      uint32_t k = x->bytes / s->bytes;
      for (uint32_t j = 0; j < k; j++) {
        Value part = convert(binary_numbers(">>", bits, constant_value(t_uint, 8 * s->bytes * j), at),
                             integer(s->bytes, false), at);
        store_scalar(*this, t.node, add(scale(e, k), {0, j}), number_of_bits(part.id, s, at), at);
      }
      continue;
    }
    if (t.node->space == Space::threadgroup)
      fail(at, "threadgroup memory of " + name_of(s) + " written as " + name_of(x) + " is outside the language");
    uint32_t k = s->bytes / x->bytes;
    const Type* wide = integer(s->bytes, false);
    Index which = shift(e, log2_of(k)),
          low = e.id ? Index{emit(M_AND, U32, {e.id, constant_u32(k - 1)}), 0} : Index{0, e.k & (k - 1)};
    Value by = reg_value(t_uint, id_of(scale(low, 8 * x->bytes)));
    Value old = reg_value(wide, bits_of_number(load_scalar(*this, t.node, which, at), at));
    Value mask = binary_numbers("<<",
                                convert(constant_value(t_uint, x->bytes == 4   ? -1
                                                               : x->bytes == 2 ? 0xffff
                                                                               : 0xff),
                                        promote(wide)->bytes > 4 ? wide : t_uint, at),
                                by, at);
    old = binary_numbers("&", old, unary("~", mask, at), at);
    Value sum = binary_numbers("|", old, binary_numbers("<<", convert(bits, mask.type, at), by, at), at);
    store_scalar(*this, t.node, which, number_of_bits(convert(sum, wide, at).id, s, at), at);
  }
}

/* ---- places ---- */

Value Lower::load_target(const Target& t, const Place_& p, Index i, Place at) {
  const Type* type = p.type;
  if (t.kind == Target::buffer) return load_buffer(t, type, i, at);
  if (t.view) return load_view(t, type, i, at);
  return load_node(t.node, type, i, p.indexed, at);
}
void Lower::store_target(const Target& t, const Place_& p, Index i, const Value& v, Place at) {
  if (t.kind == Target::buffer) store_buffer(t, p.type, i, v, at);
  else if (t.view) store_view(t, p.type, i, v, at);
  else store_node(t.node, p.type, i, p.indexed, v, at);
}

namespace {
/* The vector that a swizzle is of. */
const Type* whole_type(const Place_& p) {
  if (p.cell) return p.cell->type;
  const Target& t = p.targets[0];
  return t.view ? t.view : t.kind == Target::memory ? t.node->type : nullptr;
}
}  // namespace

Value Lower::load(const Place_& p, Place at) {
  count_step(at);
  if (p.cell) {
    if (p.cell->kind == Value::none) fail(at, "a variable without a value in a constant expression");
    if (p.swizzle.empty()) return *p.cell;
    std::vector<Value> parts;
    for (uint8_t k : p.swizzle) parts.push_back(component(*p.cell, k, at));
    return join(p.type, parts, at);
  }
  if (p.targets.empty()) fail(at, "a pointer that points nowhere");
  if (!p.swizzle.empty() && p.targets[0].kind == Target::buffer) {
    std::vector<Value> parts;
    for (uint8_t k : p.swizzle) {
      Place_ one = p;
      one.swizzle.clear();
      one.type = scalar(p.type);
      for (Target& t : one.targets) t.offset += k * one.type->bytes;
      parts.push_back(load(one, at));
    }
    return join(p.type, parts, at);
  }
  if (!p.swizzle.empty() || p.has_component) {
    Place_ whole = p;
    whole.type = whole_type(p);
    whole.swizzle.clear();
    whole.has_component = false;
    Value v = load(whole, at);
    if (p.has_component)
      return reg_value(p.type, emit(M_EXTRACT_AT, reg(p.type, at), {id_of(v, at), id_of(p.component)}, 0, at));
    std::vector<Value> parts;
    for (uint8_t k : p.swizzle) parts.push_back(component(v, k, at));
    return join(p.type, parts, at);
  }
  if (p.targets.size() == 1) return load_target(p.targets[0], p, p.index, at);
  uint32_t before = inside;
  inside = NOWHERE;                                                    // another run may know of one target here
  Node* n = allocate(p.type, Space::thread, at);
  inside = before;
  for (uint32_t k = 0; k < p.targets.size(); k++)
    emit_if(
        emit(M_EQUAL, BOOL, {p.tag, constant_u32(k)}),
        [&] { store_node(n, p.type, {}, false, load_target(p.targets[k], p, p.index, at), at); }, [] {});
  return load_node(n, p.type, {}, false, at);
}

void Lower::store(const Place_& p, const Value& v, Place at) {
  count_step(at);
  if (p.constant) fail(at, "this is constant, it cannot be written");
  if (p.cell) {
    if (v.kind == Value::reg || v.kind == Value::pointer) fail(at, "this is no constant expression");
    if (p.swizzle.empty()) {
      *p.cell = v;
      return;
    }
    for (size_t k = 0; k < p.swizzle.size(); k++) p.cell->k[p.swizzle[k]] = v.k[v.type->kind == Type::vector ? k : 0];
    return;
  }
  if (p.targets.empty()) fail(at, "a pointer that points nowhere");
  if (!p.swizzle.empty() && p.targets[0].kind == Target::buffer) {
    for (size_t k = 0; k < p.swizzle.size(); k++) {
      Place_ one = p;
      one.swizzle.clear();
      one.type = scalar(p.type);
      for (Target& t : one.targets) t.offset += p.swizzle[k] * one.type->bytes;
      store(one, component(v, static_cast<uint32_t>(k), at), at);
    }
    return;
  }
  if (!p.swizzle.empty() || p.has_component) {
    Place_ whole = p;
    whole.type = whole_type(p);
    whole.swizzle.clear();
    whole.has_component = false;
    Value old = load(whole, at);
    Reg r = reg(whole.type, at);
    uint32_t id = id_of(old, at);
    if (p.has_component) id = emit(M_INSERT_AT, r, {id, id_of(v, at), id_of(p.component)}, 0, at);
    for (size_t k = 0; k < p.swizzle.size(); k++)
      id = emit(M_INSERT, r, {id_of(component(v, static_cast<uint32_t>(k), at), at), id, p.swizzle[k]}, 0, at);
    store(whole, reg_value(whole.type, id), at);
    return;
  }
  if (p.targets.size() == 1) {
    store_target(p.targets[0], p, p.index, v, at);
    return;
  }
  for (uint32_t k = 0; k < p.targets.size(); k++)
    emit_if(
        emit(M_EQUAL, BOOL, {p.tag, constant_u32(k)}), [&] { store_target(p.targets[k], p, p.index, v, at); }, [] {});
}

/* ---- pointers ---- */

/* Is it not null? */
Value Lower::points(const Value& v, Place at) {
  if (v.kind != Value::pointer || !v.p->may_be_null) return constant_value(t_bool, v.kind == Value::pointer);
  return reg_value(t_bool, emit(M_NOTEQUAL, BOOL, {v.p->tag, constant_u32(NOWHERE)}, 0, at));
}

uint32_t Lower::tag_of(const Value& v) {
  if (v.kind != Value::pointer) return constant_u32(NOWHERE);
  return v.p->targets.size() > 1 || v.p->may_be_null ? v.p->tag : constant_u32(0);
}

Place_ Lower::dereference(const Value& v, Place at) {
  if (v.kind == Value::null && v.type->kind == Type::pointer) {
    if (!dropped_code) null_uses.push_back({at, "a null pointer is dereferenced"});
    return fresh_place(v.type->of, at);
  }
  if (v.kind == Value::null) fail(at, "a null pointer is dereferenced");
  if (v.kind != Value::pointer) fail(at, "expected a pointer, not " + name_of(v.type));
  Place_ p;
  p.type = v.type->of;
  p.targets = v.p->targets;
  p.tag = v.p->tag;
  p.index = v.p->index;
  p.may_be_null = v.p->may_be_null;
  p.indexed = true;
  p.constant = v.type->constant;
  return p;
}

Value Lower::address_of(const Place_& p, Space space, Place at) {
  if (p.cell) fail(at, "a pointer in a constant expression is outside the language");
  if (p.has_component) fail(at, "a pointer to a vector's number by an index is outside the language");
  Value v;
  v.kind = Value::pointer;
  v.type = pointer_to(p.type, space == Space::none ? space_of(p) : space, p.constant);
  v.p = std::make_shared<Pointer>();
  v.p->targets = p.targets;
  v.p->tag = p.tag;
  v.p->index = p.indexed ? p.index : Index{};
  v.p->may_be_null = p.may_be_null;
  if (p.swizzle.size() == 1) {
    uint32_t k = p.swizzle[0];
    const Target& first = p.targets[0];
    if (first.kind == Target::memory)                                  // one index for all of them
      v.p->index = add(scale(v.p->index, numbers_of(first, first.view ? first.view : first.node->type, at)), {0, k});
    for (Target& t : v.p->targets) {
      if (t.kind == Target::buffer) t.offset += k * p.type->bytes;
      else t.view = p.type, t.unit = 0;
    }
  } else if (!p.swizzle.empty()) fail(at, "a pointer to a swizzle");
  for (Target& t : v.p->targets)  // offsets go into the index, where one pointer has one
    if (t.kind == Target::buffer && v.p->targets.size() == 1 && t.offset && t.offset % t.unit == 0) {
      v.p->index = add(v.p->index, {0, t.offset / t.unit});
      t.offset = 0;
    }
  return v;
}

Value Lower::decay(const Operand& o, Place at) {
  Place_ p = o.is_place ? o.place : temporary(o.value, at);
  Place_ first = element_place(p, {}, at);
  return address_of(first, Space::none, at);
}

Value Lower::pointer_add(const Value& p, Index by, Place at) {
  if (p.kind == Value::null && p.type->kind == Type::pointer) return p;   // in code that is not reached
  if (p.kind != Value::pointer) fail(at, "a null pointer is moved");
  Value r = p;
  r.p = std::make_shared<Pointer>(*p.p);
  const Target& t = p.p->targets[0];
  uint32_t size = size_of(p.type->of, at);
  if (t.unit) {
    uint32_t unit = t.unit;
    if (size % unit)
      fail(at, "a pointer to " + name_of(p.type->of) + " into memory of larger numbers is outside the language");
    by = scale(by, size / unit);
  }
  r.p->index = add(p.p->index, by);
  return r;
}

/* May a cast take away what says that this memory is constant? An array of device memory is no less to be written for being
 * handed over as one to be read. */
bool Lower::writable(const Value& p) const {
  if (p.kind != Value::pointer) return true;
  for (const Target& t : p.p->targets) if (t.kind != Target::buffer || t.readonly) return false;
  return true;
}

Value Lower::pointer_cast(const Value& p, const Type* t, Place at) {
  if (t->of->kind == Type::none) return p;
  Value r = p;
  if (p.kind == Value::null) {
    r.type = t;
    return r;
  }
  r.p = std::make_shared<Pointer>(*p.p);
  Space space = t->space == Space::none ? p.type->space : t->space;
  r.type = pointer_to(t->of, space, t->constant || (p.type->constant && !writable(p)));
  uint32_t from = size_of(p.type->of, at), to = size_of(t->of, at), align = align_of(t->of, at);
  if (p.p->targets[0].kind == Target::buffer) {
    uint32_t unit = p.p->targets[0].unit;
    if (unit <= align) return r;
    for (Target& g : r.p->targets) g.unit = align;
    r.p->index = scale(p.p->index, unit / align);
    return r;
  }
  /* Packed vectors may begin at any number. */
  uint32_t before = p.p->targets[0].unit, unit = align < to && (from != to || before) ? align : 0;
  uint32_t step = unit ? unit : to;
  if (before) from = before;
  for (Target& g : r.p->targets) {
    if (g.node->type->kind == Type::atomic || t->of->kind == Type::atomic) {       // the same memory
      const Type* a = g.node->type->kind == Type::atomic ? g.node->type->of : g.node->type;
      const Type* b = t->of->kind == Type::atomic ? t->of->of : t->of;
      if (a->bytes != b->bytes) fail(at, "an atomic laid over other memory is outside the language");
      continue;
    }
    if (!scalar(g.node->type)->is_number() || !scalar(t->of)->is_number())
      fail(at, "memory of " + name_of(g.node->type) + " seen as " + name_of(t->of) + " is outside the language");
    g.view = g.node->type == t->of && !unit ? nullptr : t->of;
    g.unit = unit;
  }
  uint32_t common = std::gcd(from, step);
  r.p->index = shift(scale(p.p->index, from / common), log2_of(step / common));
  return r;
}

Value Lower::pointer_select(uint32_t c, const Value& a, const Value& b, Place at) {
  if (a.kind != Value::pointer || b.kind != Value::pointer) {          // one of them is null
    Value r = a.kind == Value::pointer ? a : b;
    r.p = std::make_shared<Pointer>(*r.p);
    r.p->tag = emit(M_SELECT, U32, {c, tag_of(a), tag_of(b)}, 0, at);
    r.p->may_be_null = true;
    return r;
  }
  Value r = a;
  r.p = std::make_shared<Pointer>(*a.p);
  r.p->index = {emit(M_SELECT, U32, {c, id_of(a.p->index), id_of(b.p->index)}, 0, at), 0};
  r.p->may_be_null = a.p->may_be_null || b.p->may_be_null;
  if (a.p->targets.size() == 1 && b.p->targets.size() == 1 && a.p->targets[0] == b.p->targets[0]) {
    if (r.p->may_be_null) r.p->tag = emit(M_SELECT, U32, {c, tag_of(a), tag_of(b)}, 0, at);
    return r;
  }
  uint32_t n = static_cast<uint32_t>(a.p->targets.size());
  uint32_t tag_b = b.p->targets.size() > 1 ? emit(M_IADD, U32, {b.p->tag, constant_u32(n)}) : constant_u32(n);
  if (b.p->may_be_null)
    tag_b = emit(M_SELECT, U32, {id_of(points(b, at), at), tag_b, constant_u32(NOWHERE)}, 0, at);
  r.p->tag = emit(M_SELECT, U32, {c, tag_of(a), tag_b}, 0, at);
  for (const Target& t : b.p->targets) r.p->targets.push_back(t);
  if (r.p->targets.size() > 16) fail(at, "a pointer that may point to more than 16 arrays");
  for (const Target& t : r.p->targets)
    if (!alike(t, r.p->targets[0]))
      fail(at, "a pointer that may point to memory of different kinds is outside the language");
  return r;
}

}  // namespace metal
