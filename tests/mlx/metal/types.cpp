/* Types, each made once, so that equal ones are the same pointer.                     SPDX-License-Identifier: MIT */
#include "lower.h"

namespace metal {

const Type* Lower::intern(const Type& t) {
  char key[128];
  snprintf(key, sizeof key, "%d %d %d%d%d %d %p %u %p", t.kind, t.bytes, t.sign, t.packed, t.constant,
           static_cast<int>(t.space), static_cast<const void*>(t.of), t.n, static_cast<const void*>(t.info));
  const Type*& found = interned[key];
  if (!found) {
    types.push_back(t);
    found = &types.back();
  }
  return found;
}

namespace {
Type plain(Type::Kind k, uint8_t bytes = 0, bool sign = false) {
  Type t;
  t.kind = k;
  t.bytes = bytes;
  t.sign = sign;
  return t;
}
}  // namespace

void Lower::make_types() {
  t_void = intern(plain(Type::none));
  t_bool = intern(plain(Type::boolean, 1));
  t_int = integer(4, true);
  t_uint = integer(4, false);
  t_long = integer(8, true);
  t_ulong = integer(8, false);
  t_float = intern(plain(Type::real, 4, true));
  t_half = intern(plain(Type::half, 2, true));
  t_bfloat = intern(plain(Type::bfloat, 2, true));
  t_null = intern(plain(Type::null));
  t_text = intern(plain(Type::text));
  t_lambda = intern(plain(Type::lambda));
  t_list = intern(plain(Type::list));
}

const Type* Lower::integer(uint32_t bytes, bool sign) {
  return intern(plain(Type::integer, static_cast<uint8_t>(bytes), sign));
}

const Type* Lower::vector_of(const Type* of, uint32_t n, bool packed) {
  if (n == 1) return of;
  Type t = plain(Type::vector);
  t.of = of;
  t.n = n;
  t.packed = packed;
  return intern(t);
}

const Type* Lower::array_of(const Type* of, uint32_t n) {
  Type t = plain(Type::array);
  t.of = of;
  t.n = n;
  return intern(t);
}

const Type* Lower::pointer_to(const Type* of, Space space, bool constant) {
  Type t = plain(Type::pointer);
  t.of = of;
  t.space = space;
  t.constant = constant;
  return intern(t);
}

const Type* Lower::builtin_type(const std::string& full) {
  static const std::unordered_map<std::string, std::pair<int, bool>> integers = {
      {"char", {1, true}},    {"uchar", {1, false}},   {"int8_t", {1, true}},  {"uint8_t", {1, false}},
      {"short", {2, true}},   {"ushort", {2, false}},  {"int16_t", {2, true}}, {"uint16_t", {2, false}},
      {"int", {4, true}},     {"uint", {4, false}},    {"int32_t", {4, true}}, {"uint32_t", {4, false}},
      {"long", {8, true}},    {"ulong", {8, false}},   {"int64_t", {8, true}}, {"uint64_t", {8, false}},
      {"size_t", {8, false}}, {"ptrdiff_t", {8, true}}};
  auto f = integers.find(full);
  if (f != integers.end()) return integer(static_cast<uint32_t>(f->second.first), f->second.second);
  if (full == "void") return t_void;
  if (full == "bool") return t_bool;
  if (full == "float") return t_float;
  if (full == "half") return t_half;
  if (full == "bfloat") return t_bfloat;
  bool packed = full.rfind("packed_", 0) == 0;
  std::string n = packed ? full.substr(7) : full;
  if (n.size() < 2 || n.back() < '2' || n.back() > '4') return nullptr;
  const Type* of = builtin_type(n.substr(0, n.size() - 1));
  return of && of->is_number() ? vector_of(of, static_cast<uint32_t>(n.back() - '0'), packed) : nullptr;
}

uint32_t Lower::align_of(const Type* t, Place at) {
  switch (t->kind) {
    case Type::vector: return t->packed ? t->of->bytes : t->of->bytes * (t->n == 3 ? 4 : t->n);
    case Type::array: return align_of(t->of, at);
    case Type::atomic: return t->of->bytes;
    case Type::structure: complete(t->info, at); return t->info->align;
    case Type::pointer: return 8;
    default: return t->bytes ? t->bytes : 1;
  }
}

uint32_t Lower::size_of(const Type* t, Place at) {
  uint64_t size = t->bytes;
  switch (t->kind) {
    case Type::vector: size = t->of->bytes * (t->n == 3 && !t->packed ? 4u : t->n); break;
    case Type::array: size = static_cast<uint64_t>(size_of(t->of, at)) * t->n; break;
    case Type::atomic: size = t->of->bytes; break;
    case Type::structure: complete(t->info, at); size = t->info->size; break;
    case Type::pointer: size = 8; break;
    case Type::none: fail(at, "void has no size");
    default: break;
  }
  if (size > 1u << 30) fail(at, "this type is too large");
  return static_cast<uint32_t>(size);
}

std::string Lower::name_of(const Type* t) {
  static const char* const spaces[] = {"", "device ", "constant ", "thread ", "threadgroup "};
  if (!t) return "?";
  switch (t->kind) {
    case Type::none: return "void";
    case Type::boolean: return "bool";
    case Type::real: return "float";
    case Type::half: return "half";
    case Type::bfloat: return "bfloat";
    case Type::integer: {
      static const char* const names[] = {"", "char", "short", "", "int", "", "", "", "long"};
      return std::string(t->sign ? "" : "u") + names[t->bytes];
    }
    case Type::vector: return (t->packed ? "packed_" : "") + name_of(t->of) + std::to_string(t->n);
    case Type::array: return name_of(t->of) + "[" + std::to_string(t->n) + "]";
    case Type::pointer:
      return (t->constant ? "const " : "") + std::string(spaces[static_cast<int>(t->space)]) + name_of(t->of) + "*";
    case Type::structure: return t->info->name;
    case Type::atomic: return "atomic<" + name_of(t->of) + ">";
    case Type::lambda: return "a lambda";
    case Type::null: return "nullptr";
    case Type::list: return "a list in braces";
    default: return "a string";
  }
}

Reg Lower::reg(const Type* t, Place at) {
  Reg r;
  const Type* s = t->kind == Type::atomic ? t->of : scalar(t);
  r.n = static_cast<uint8_t>(width(t));
  switch (s->kind) {
    case Type::boolean: r.base = Base::boolean; break;
    case Type::integer:
      if (s->bytes == 8 && options.int64) r.base = s->sign ? Base::i64 : Base::u64;
      else r.base = s->sign ? Base::i32 : Base::u32;
      break;
    case Type::real: case Type::half: case Type::bfloat: r.base = Base::f32; break;
    default: fail(at, "a value of type " + name_of(t) + " cannot be used here");
  }
  return r;
}

}  // namespace metal
