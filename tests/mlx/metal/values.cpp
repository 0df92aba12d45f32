/* Numbers: constants, conversions, arithmetic.                                        SPDX-License-Identifier: MIT */
#include <cmath>
#include <cstring>

#include "lower.h"

namespace metal {

/* SPIR-V's numbers of what is used here. */
enum : uint16_t {
  CONSTRUCT = 80,
  EXTRACT = 81,
  FTOU = 109,
  FTOS = 110,
  STOF = 111,
  UTOF = 112,
  UCONVERT = 113,
  SCONVERT = 114,
  BITCAST = 124,
  SNEGATE = 126,
  FNEGATE = 127,
  IADD = 128,
  LOGICAL_NOT = 168,
  SELECT = 169,
  IEQUAL = 170,
  INOTEQUAL = 171,
  UGREATER = 172,
  UGREATEREQUAL = 174,
  ULESS = 176,
  FUNORDNOTEQUAL = 183,
  SHIFT_RIGHT = 194,
  SHIFT_RIGHT_S = 195,
  SHIFT_LEFT = 196,
  BIT_OR = 197,
  BIT_AND = 199,
  BIT_NOT = 200,
  FMUL = 133,
};

/* ---- emitting ---- */

void Lower::count_step(Place at) {
  if (++steps > MAX_STEPS)
    fail(at, "this is too complex: more than " + std::to_string(MAX_STEPS) + " steps of compilation");
}

uint32_t Lower::emit(uint16_t op, Reg t, std::initializer_list<uint32_t> args, uint16_t imm, Place at) {
  if (folding) fail(at, "this is no constant expression");
  if (++code.size > MAX_CODE)
    fail(at, "this makes too much code: more than " + std::to_string(MAX_CODE) + " instructions");
  Inst i;
  i.op = op;
  i.type = t;
  i.imm = imm;
  for (uint32_t a : args) i.args[i.n++] = a;
  i.id = t.base == Base::none ? 0 : code.value(t);
  uint32_t id = i.id;
  blocks.back()->push_back(std::move(i));
  return id;
}

void Lower::push_if(uint32_t condition, std::unique_ptr<Block> a, std::unique_ptr<Block> b) {
  if (a->empty() && b->empty()) return;
  emit(IF, {}, {condition});
  blocks.back()->back().a = std::move(a);
  blocks.back()->back().b = std::move(b);
}

uint32_t Lower::constant(Reg t, const uint64_t* bits) { return code.constant(t, bits); }

uint32_t Lower::splat(Reg t, uint64_t bits) {
  uint64_t all[4] = {bits, bits, bits, bits};
  return constant(t, all);
}
uint32_t Lower::constant_u32(uint32_t v) { return splat({Base::u32, 1}, v); }
uint32_t Lower::constant_bool(bool v) { return splat({Base::boolean, 1}, v); }

uint32_t Lower::slot(Reg t, uint32_t count, bool shared) {
  Slot s;
  s.type = t;
  s.count = count;
  s.shared = shared;
  code.slots.push_back(s);
  return static_cast<uint32_t>(code.slots.size() - 1);
}

/* ---- constants ---- */

namespace {

double to_bfloat(double v) {
  float f = static_cast<float>(v);
  uint32_t u;
  memcpy(&u, &f, 4);
  if (std::isnan(f)) return v;
  u += 0x7fffu + (u >> 16 & 1);
  u &= 0xffff0000u;
  memcpy(&f, &u, 4);
  return f;
}

double to_half(double d) {
  float f = static_cast<float>(d);
  if (std::isnan(f) || std::isinf(f)) return f;
  double a = std::fabs(static_cast<double>(f));
  int e = 0;
  std::frexp(a, &e);
  double unit = std::ldexp(1.0, std::max(e - 11, -24));
  double r = std::nearbyint(a / unit) * unit;
  if (r >= 65520.0) r = INFINITY;
  return std::signbit(f) ? -r : r;
}

int64_t wrapped(uint64_t v, uint32_t bytes, bool sign) {
  switch (bytes) {
    case 1: return sign ? static_cast<int8_t>(v) : static_cast<int64_t>(static_cast<uint8_t>(v));
    case 2: return sign ? static_cast<int16_t>(v) : static_cast<int64_t>(static_cast<uint16_t>(v));
    case 4: return sign ? static_cast<int32_t>(v) : static_cast<int64_t>(static_cast<uint32_t>(v));
    default: return static_cast<int64_t>(v);
  }
}

int64_t from_double(double d, const Type* t) {
  if (std::isnan(d)) return 0;
  if (t->sign || t->bytes < 8) {
    d = std::min(std::max(d, -9.2233720368547e18), 9.2233720368547e18);
    return wrapped(static_cast<uint64_t>(static_cast<int64_t>(d)), t->bytes, t->sign);
  }
  return d <= 0 ? 0 : d >= 1.8446744073709e19 ? -1 : static_cast<int64_t>(static_cast<uint64_t>(d));
}

}  // namespace

Number Lower::wrap(const Type* t, Number n, const Type* from) {
  Number r = {0};
  double d = from->is_float() ? n.f : from->kind == Type::integer && !from->sign && from->bytes == 8
                                          ? static_cast<double>(static_cast<uint64_t>(n.i)) : static_cast<double>(n.i);
  switch (t->kind) {
    case Type::boolean: r.i = from->is_float() ? n.f != 0 || std::isnan(n.f) : n.i != 0; break;
    case Type::integer:
      r.i = from->is_float() ? from_double(n.f, t) : wrapped(static_cast<uint64_t>(n.i), t->bytes, t->sign);
      break;
    case Type::real: r.f = static_cast<double>(static_cast<float>(d)); break;
    case Type::half: r.f = to_half(d); break;
    default: r.f = to_bfloat(d); break;
  }
  return r;
}

Value Lower::constant_value(const Type* t, int64_t v) {
  Value r;
  r.kind = Value::constant;
  r.type = t;
  Number n;
  n.i = v;
  r.k[0] = t->is_float() ? wrap(t, n, t_long) : wrap(t, n, t_long);
  return r;
}

Value Lower::real_value(const Type* t, double v) {
  Value r;
  r.kind = Value::constant;
  r.type = t;
  Number n;
  n.f = v;
  r.k[0] = wrap(t, n, t_float);
  if (t->kind == Type::real) r.k[0].f = static_cast<double>(static_cast<float>(v));
  return r;
}

Value Lower::reg_value(const Type* t, uint32_t id) {
  Value r;
  r.kind = Value::reg;
  r.type = t;
  r.id = id;
  return r;
}

uint32_t Lower::id_of(const Value& v, Place at) {
  if (v.kind == Value::reg) return v.id;
  if (v.kind != Value::constant) fail(at, "a value of type " + name_of(v.type) + " cannot be used here");
  Reg r = reg(v.type, at);
  uint64_t bits[4] = {0, 0, 0, 0};
  for (uint32_t i = 0; i < r.n; i++) {
    if (r.base == Base::f32) {
      float f = static_cast<float>(v.k[i].f);
      uint32_t u;
      memcpy(&u, &f, 4);
      bits[i] = u;
    } else {
      bits[i] = bits_of(r.base) == 64 ? static_cast<uint64_t>(v.k[i].i) : static_cast<uint32_t>(v.k[i].i);
    }
  }
  return constant(r, bits);
}

Value Lower::zero(const Type* t, Place at) {
  if (t->is_number() || t->kind == Type::vector || t->kind == Type::atomic) {
    Value v;
    v.kind = Value::constant;
    v.type = t->kind == Type::atomic ? t->of : t;
    for (Number& n : v.k) {
      n.i = 0;
      if (scalar(v.type)->is_float()) n.f = 0;
    }
    return v;
  }
  Value v;
  v.type = t;
  v.kind = Value::aggregate;
  v.parts = std::make_shared<std::vector<Value>>();
  count_step(at);
  if (t->kind == Type::array) {
    if (t->n > MAX_ELEMENTS) fail(at, "this array is too large");
    Value one = t->n ? zero(t->of, at) : Value();
    steps += t->n / 64;
    if (one.kind == Value::aggregate)
      for (uint32_t i = 0; i < t->n; i++) v.parts->push_back(zero(t->of, at));
    else v.parts->assign(t->n, one);
  } else if (t->kind == Type::structure) {
    complete(t->info, at);
    for (const Member& m : t->info->members) v.parts->push_back(zero(m.type, at));
  } else if (t->kind == Type::pointer) {
    v.kind = Value::null;
  } else {
    fail(at, "a value of type " + name_of(t) + " cannot be made from nothing");
  }
  return v;
}

/* ---- registers ---- */

uint32_t Lower::bitcast_reg(uint32_t id, Reg t) { return code.types[id] == t ? id : emit(BITCAST, t, {id}); }

/* A number of 32 bits to the range of a smaller type. */
uint32_t Lower::normalize(uint32_t id, const Type* t, uint32_t n) {
  if (t->kind != Type::integer || t->bytes >= 4) return id;
  Reg r = code.types[id];
  r.n = static_cast<uint8_t>(n);
  uint32_t up = 32u - 8u * t->bytes;
  if (!t->sign) return emit(BIT_AND, r, {id, splat(r, t->bytes == 1 ? 0xff : 0xffff)});
  uint32_t high = emit(SHIFT_LEFT, r, {id, splat({Base::u32, r.n}, up)});
  return emit(SHIFT_RIGHT_S, r, {high, splat({Base::u32, r.n}, up)});
}

/* To the nearest bfloat, ties to even; NaN stays. */
uint32_t Lower::round_bfloat(uint32_t id, uint32_t n) {
  Reg f{Base::f32, static_cast<uint8_t>(n)}, u{Base::u32, f.n}, b{Base::boolean, f.n};
  uint32_t bits = bitcast_reg(id, u);
  uint32_t odd = emit(BIT_AND, u, {emit(SHIFT_RIGHT, u, {bits, splat(u, 16)}), splat(u, 1)});
  uint32_t sum = emit(IADD, u, {emit(IADD, u, {bits, odd}), splat(u, 0x7fff)});
  uint32_t nan = emit(UGREATER, b, {emit(BIT_AND, u, {bits, splat(u, 0x7fffffff)}), splat(u, 0x7f800000)});
  uint32_t r = emit(SELECT, u, {nan, emit(BIT_OR, u, {bits, splat(u, 0x400000)}), sum});
  return bitcast_reg(emit(BIT_AND, u, {r, splat(u, 0xffff0000u)}), f);
}

/* To the nearest half: by adding what lies below its last bit, or, of small ones, as multiples of 2^-24. */
uint32_t Lower::round_half(uint32_t id, uint32_t n) {
  Reg f{Base::f32, static_cast<uint8_t>(n)}, u{Base::u32, f.n}, b{Base::boolean, f.n};
  uint32_t bits = bitcast_reg(id, u);
  uint32_t a = emit(BIT_AND, u, {bits, splat(u, 0x7fffffff)}), sign = emit(BIT_AND, u, {bits, splat(u, 0x80000000u)});
  uint32_t odd = emit(BIT_AND, u, {emit(SHIFT_RIGHT, u, {a, splat(u, 13)}), splat(u, 1)});
  uint32_t sum = emit(IADD, u, {emit(IADD, u, {a, odd}), splat(u, 0xfff)});
  sum = emit(BIT_AND, u, {sum, splat(u, 0xffffe000u)});
  sum = emit(SELECT, u, {emit(UGREATEREQUAL, b, {sum, splat(u, 0x47800000)}), splat(u, 0x7f800000), sum});
  sum = emit(SELECT, u, {emit(UGREATER, b, {a, splat(u, 0x7f800000)}), splat(u, 0x7fc00000), sum});
  uint32_t small = emit(EXTENDED + 2, f, {emit(FMUL, f, {bitcast_reg(a, f), splat(f, 0x4b800000)})});
  small = bitcast_reg(emit(FMUL, f, {small, splat(f, 0x33800000)}), u);
  uint32_t r = emit(SELECT, u, {emit(ULESS, b, {a, splat(u, 0x38800000)}), small, sum});
  return bitcast_reg(emit(BIT_OR, u, {r, sign}), f);
}

/* The 16 bits of a float that is a half's value. */
uint32_t Lower::half_bits(uint32_t id) {
  Reg f{Base::f32, 1}, u{Base::u32, 1}, b{Base::boolean, 1};
  uint32_t bits = bitcast_reg(id, u);
  uint32_t a = emit(BIT_AND, u, {bits, splat(u, 0x7fffffff)});
  uint32_t sign = emit(BIT_AND, u, {emit(SHIFT_RIGHT, u, {bits, splat(u, 16)}), splat(u, 0x8000)});
  uint32_t normal = emit(SHIFT_RIGHT, u, {emit(130, u, {a, splat(u, 0x38000000)}), splat(u, 13)});
  uint32_t big = emit(UGREATEREQUAL, b, {a, splat(u, 0x7f800000)});
  uint32_t special =
      emit(SELECT, u, {emit(UGREATER, b, {a, splat(u, 0x7f800000)}), splat(u, 0x7e00), splat(u, 0x7c00)});
  normal = emit(SELECT, u, {big, special, normal});
  uint32_t small = emit(FTOU, u, {emit(FMUL, f, {bitcast_reg(a, f), splat(f, 0x4b800000)})});
  uint32_t r = emit(SELECT, u, {emit(ULESS, b, {a, splat(u, 0x38800000)}), small, normal});
  return emit(BIT_OR, u, {r, sign});
}

Value Lower::round_to(const Type* t, uint32_t id) {
  const Type* s = scalar(t);
  if (s->kind == Type::half) id = round_half(id, width(t));
  if (s->kind == Type::bfloat) id = round_bfloat(id, width(t));
  return reg_value(t, id);
}

/* int to long by its halves: Mesa 22.3 compares what SConvert made with constants in 32 bits, and wrongly. */
uint32_t Lower::widen(uint32_t id) {
  Reg i{Base::i32, 1}, u{Base::u32, 1};
  uint32_t high = bitcast_reg(emit(SHIFT_RIGHT_S, i, {id, splat(u, 31)}), u);
  return emit(BITCAST, {Base::i64, 1}, {emit(CONSTRUCT, {Base::u32, 2}, {bitcast_reg(id, u), high})});
}

/* Of n numbers; from, to: scalar types. */
uint32_t Lower::convert_reg(uint32_t id, const Type* from, const Type* to, uint32_t n, Place at) {
  uint8_t w = static_cast<uint8_t>(n);
  Reg f = reg(from, at), t = reg(to, at);
  f.n = t.n = w;
  if (from == to) return id;
  if (to->kind == Type::boolean) {
    Reg b{Base::boolean, w};
    return from->is_float() ? emit(FUNORDNOTEQUAL, b, {id, splat(f, 0)}) : emit(INOTEQUAL, b, {id, splat(f, 0)});
  }
  if (from->kind == Type::boolean)
    return emit(SELECT, t, {id, splat(t, t.base == Base::f32 ? 0x3f800000u : 1), splat(t, 0)});
  if (to->is_float()) {
    bool wider = from->kind == Type::half || from->kind == Type::bfloat;
    uint32_t r = from->is_float() ? id : emit(f.base == Base::u32 || f.base == Base::u64 ? UTOF : STOF, t, {id});
    if (to->kind == Type::real || (wider && from->kind == to->kind)) return r;
    return round_to(n == 1 ? to : vector_of(to, n), r).id;
  }
  if (from->is_float()) {
    Reg wide = t;                                                      // small ones by way of int
    if (to->bytes < 4) wide.base = Base::i32;
    uint32_t r = emit(wide.base == Base::u32 || wide.base == Base::u64 ? FTOU : FTOS, wide, {id});
    return normalize(bitcast_reg(r, t), to, n);
  }
  uint32_t r = id;
  if (bits_of(f.base) != bits_of(t.base)) {
    bool sign = f.base == Base::i32 || f.base == Base::i64;
    Reg same_sign = t;
    same_sign.base = bits_of(t.base) == 64 ? (sign ? Base::i64 : Base::u64) : (sign ? Base::i32 : Base::u32);
    if (sign && bits_of(t.base) == 64 && n == 1) r = widen(r);
    else r = emit(sign ? SCONVERT : UCONVERT, same_sign, {r});
  }
  r = bitcast_reg(r, t);
  bool fits = from->bytes < to->bytes && (from->sign == to->sign || to->sign);
  return fits ? r : normalize(r, to, n);
}

Value Lower::component(const Value& v, uint32_t i, Place at) {
  if (v.type->kind != Type::vector) return v;
  Value r;
  r.type = v.type->of;
  r.kind = v.kind;
  r.k[0] = v.k[i];
  if (v.kind == Value::reg) r.id = emit(EXTRACT, reg(r.type, at), {v.id, i}, 0, at);
  return r;
}

/* A vector of numbers. */
Value Lower::join(const Type* t, const std::vector<Value>& parts, Place at) {
  if (t->kind != Type::vector) return parts[0];
  Value r;
  r.type = t;
  r.kind = Value::constant;
  for (const Value& p : parts) if (p.kind != Value::constant) r.kind = Value::reg;
  uint32_t ids[4] = {0, 0, 0, 0};
  for (uint32_t i = 0; i < t->n; i++) {
    r.k[i] = parts[i].k[0];
    if (r.kind == Value::reg) ids[i] = id_of(parts[i], at);
  }
  if (r.kind == Value::constant) return r;
  if (t->n == 2) r.id = emit(CONSTRUCT, reg(t, at), {ids[0], ids[1]}, 0, at);
  if (t->n == 3) r.id = emit(CONSTRUCT, reg(t, at), {ids[0], ids[1], ids[2]}, 0, at);
  if (t->n == 4) r.id = emit(CONSTRUCT, reg(t, at), {ids[0], ids[1], ids[2], ids[3]}, 0, at);
  return r;
}

/* ---- conversions ---- */

Value Lower::convert(const Value& v, const Type* t, Place at, bool explicit_) {
  if (v.type == t) return v;
  const Type* f = v.type;
  if (t->kind == Type::none) return Value{};
  if (v.kind == Value::aggregate && f->kind == Type::list) {
    std::vector<Operand> args;
    for (const Value& p : *v.parts) {
      Operand o;
      o.value = p;
      args.push_back(o);
    }
    return construct_values(t, args, true, at);
  }
  if (t->kind == Type::atomic && f->is_number()) return convert(v, t->of, at);
  bool numbers = (f->is_number() || f->kind == Type::vector) && (t->is_number() || t->kind == Type::vector);
  bool may_vector =
      f->kind != Type::vector || (t->kind == Type::vector && t->n == f->n &&
                                  (explicit_ || t->of == f->of || t->of->is_float() == f->of->is_float()));
  if (numbers && may_vector) {
    Value r = v;
    r.type = t;
    if (v.kind == Value::constant) {
      for (uint32_t i = 0; i < 4; i++) r.k[i] = wrap(scalar(t), v.k[f->kind == Type::vector ? i : 0], scalar(f));
      return r;
    }
    r.id = convert_reg(v.id, scalar(f), scalar(t), width(f), at);
    if (f->kind != Type::vector && t->kind == Type::vector)
      return join(t, std::vector<Value>(t->n, reg_value(t->of, r.id)), at);
    return r;
  }
  if (t->kind == Type::pointer) {
    if (v.kind == Value::null || (v.kind == Value::constant && f->is_int() && !v.k[0].i)) {
      Value r;
      r.kind = Value::null;
      r.type = t;
      return r;
    }
    if (f->kind == Type::pointer) {
      if (f->constant && !t->constant && t->space != Space::constant && !explicit_)
        fail(at, "a pointer to constant memory cannot become " + name_of(t));
      if (f->of == t->of || t->of->kind == Type::none) {
        Value r = v;
        r.type = pointer_to(f->of, f->space, t->constant || (f->constant && !(explicit_ && writable(v))));
        return r;
      }
      if (explicit_) return pointer_cast(v, t, at);
    }
  }
  if ((f->kind == Type::pointer || f->kind == Type::null) && t == t_bool) return points(v, at);
  if (f->kind == Type::structure) {
    complete(f->info, at);
    Operand self;
    self.value = v;
    for (Function* m : f->info->methods["operator T"]) {
      Scope* before = scope;
      scope = f->info->scope;
      const Type* to = type_of(m->result);
      scope = before;
      if (to == t || (t->is_number() && to->is_number()))
        return convert(load(call({m, f->info->scope, f->info}, {}, {}, &self, at), at), t, at);
    }
  }
  if (t->kind == Type::structure && f->kind != Type::list) {
    Operand o;
    o.value = v;
    return construct_struct(t, {o}, false, at);
  }
  fail(at, "expected a value of type " + name_of(t) + ", not " + name_of(f));
}

bool Lower::convertible(const Value& v, const Type* t, bool) {
  Operand o;
  o.value = v;
  return rank(o, t) >= 0;
}

/* How far an argument is from a parameter; below 0: it cannot be that. */
int Lower::rank(const Operand& o, const Type* t) {
  const Type* f = o.type();
  if (f == t) return 0;
  if (t->kind == Type::pointer && f->kind == Type::array)
    return f->of == t->of && (t->constant || !o.place.constant) ? 1 : -1;
  if (t->kind == Type::pointer && f->kind == Type::pointer) {
    if (f->of != t->of || (f->constant && !t->constant && t->space != Space::constant)) return -1;
    bool constants = t->space == Space::constant && f->space == Space::thread && f->constant;   // where those are kept
    if (f->space != Space::none && t->space != Space::none && f->space != t->space && !constants) return -1;
    return 1;
  }
  if (t->kind == Type::pointer) return f->kind == Type::null ? 1 : -1;
  if (f->is_number() && t->is_number()) {
    if (f->is_float() != t->is_float()) return 5;
    if (f->is_float()) return t->kind == Type::real ? 2 : 4;
    if (f->kind == Type::boolean || f->bytes < 4) return t == t_int ? 2 : 4;
    return f->bytes == t->bytes ? 3 : f->bytes < t->bytes ? 3 : 4;
  }
  if (t->kind == Type::vector) {
    if (f->kind == Type::vector) return f->n == t->n && f->of == t->of ? 1 : -1;
    return f->is_number() ? 7 : f->kind == Type::list ? 6 : -1;
  }
  if (f->kind == Type::list) return t->kind == Type::structure || t->kind == Type::array || t->is_number() ? 6 : -1;
  if (t->kind == Type::structure) {
    complete(t->info, {});
    for (Function* c : t->info->constructors)
      if (c->parameters.size() == 1 && f->kind != Type::structure) return 8;
    return -1;
  }
  if (f->kind == Type::structure) {
    complete(f->info, {});
    return t->is_number() && f->info->methods.count("operator T") ? 8 : -1;
  }
  if (f->kind == Type::atomic) return -1;
  return -1;
}

/* ---- arithmetic ---- */

const Type* Lower::promote(const Type* t) {
  if (t->kind == Type::boolean || (t->kind == Type::integer && t->bytes < 4)) return t_int;
  return t;
}

const Type* Lower::common(const Type* a, const Type* b, Place at) {
  if (a->kind == Type::vector || b->kind == Type::vector) {
    if (a->kind == Type::vector && b->kind == Type::vector) {
      if (a->n != b->n) fail(at, "vectors of different length: " + name_of(a) + " and " + name_of(b));
      return a->of == b->of ? vector_of(a->of, a->n) : vector_of(common(a->of, b->of, at), a->n);
    }
    const Type* v = a->kind == Type::vector ? a : b;
    const Type* s = a->kind == Type::vector ? b : a;
    if (!s->is_number()) fail(at, "no operation of " + name_of(a) + " and " + name_of(b));
    return vector_of(v->of, v->n);
  }
  if (!a->is_number() || !b->is_number()) fail(at, "no operation of " + name_of(a) + " and " + name_of(b));
  if (a->is_float() && b->is_float()) return a == b ? a : t_float;
  if (a->is_float()) return a;
  if (b->is_float()) return b;
  a = promote(a);
  b = promote(b);
  if (a == b) return a;
  if (a->bytes != b->bytes) return a->bytes > b->bytes ? a : b;
  return a->sign ? b : a;
}

namespace {

struct Operation { const char* name; uint16_t f, s, u; bool compares; };
const Operation operations[] = {
    {"+", 129, 128, 128, false}, {"-", 131, 130, 130, false}, {"*", 133, 132, 132, false}, {"/", 136, 135, 134, false},
    {"%", 0, 138, 137, false}, {"&", 0, 199, 199, false}, {"|", 0, 197, 197, false}, {"^", 0, 198, 198, false},
    {"<<", 0, 196, 196, false}, {">>", 0, 195, 194, false}, {"==", 180, 170, 170, true}, {"!=", 183, 171, 171, true},
    {"<", 184, 177, 176, true}, {">", 186, 173, 172, true}, {"<=", 188, 179, 178, true}, {">=", 190, 175, 174, true}};

const Operation* operation(const std::string& name) {
  for (const Operation& o : operations) if (name == o.name) return &o;
  return nullptr;
}

template <typename T>
bool compare(const std::string& op, T x, T y) {
  if (op == "==") return x == y;
  if (op == "!=") return x != y;
  if (op == "<") return x < y;
  if (op == ">") return x > y;
  return op == "<=" ? x <= y : x >= y;
}

double fold_float(const std::string& op, double x, double y) {
  return op == "+" ? x + y : op == "-" ? x - y : op == "*" ? x * y : x / y;
}

/* b is no 0 where it divides. */
int64_t fold_int(const std::string& op, const Type* t, int64_t a, int64_t b) {
  uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b), mask = 8 * t->bytes - 1;
  if (op == "+") return static_cast<int64_t>(x + y);
  if (op == "-") return static_cast<int64_t>(x - y);
  if (op == "*") return static_cast<int64_t>(x * y);
  if (op == "&") return a & b;
  if (op == "|") return a | b;
  if (op == "^") return a ^ b;
  if (op == "<<") return static_cast<int64_t>(x << (y & mask));
  if (op == ">>") return t->sign ? a >> (y & mask) : static_cast<int64_t>(x >> (y & mask));
  if (!t->sign && t->bytes == 8) return static_cast<int64_t>(op == "/" ? x / y : x % y);
  if (b == -1) return op == "/" ? static_cast<int64_t>(0 - x) : 0;
  return op == "/" ? a / b : a % b;
}

}  // namespace

/* Of constants of type t. */
bool Lower::fold(const std::string& op, const Type* t, const Type* result, const Value& a, const Value& b, Value& out,
                 Place at) {
  const Type* s = scalar(t);
  const Operation* o = operation(op);
  if (a.kind != Value::constant || b.kind != Value::constant) return false;
  out = Value();
  out.kind = Value::constant;
  out.type = result;
  for (uint32_t i = 0; i < width(t); i++) {
    Number n = {0};
    if (s->is_float()) {
      if (o->compares) n.i = compare(op, a.k[i].f, b.k[i].f);
      else {
        n.f = fold_float(op, a.k[i].f, b.k[i].f);
        n = wrap(s, n, t_float);
      }
    } else {
      if ((op == "/" || op == "%") && !b.k[i].i) {
        if (folding) fail(at, "division by zero in a constant");
        return false;
      }
      bool big = !s->sign && s->bytes == 8;
      if (o->compares)
        n.i = big ? compare(op, static_cast<uint64_t>(a.k[i].i), static_cast<uint64_t>(b.k[i].i))
                  : compare(op, a.k[i].i, b.k[i].i);
      else {
        n.i = fold_int(op, s, a.k[i].i, b.k[i].i);
        n = wrap(s, n, t_long);
      }
    }
    out.k[i] = n;
  }
  return true;
}

namespace {
/* x + 0, x * 1, ...: indexes are full of them. */
bool is_number(const Value& v, int64_t n) {
  return v.kind == Value::constant && v.type->kind == Type::integer && v.k[0].i == n;
}
}  // namespace

Value Lower::binary_numbers(const std::string& op, const Value& a0, const Value& b0, Place at) {
  const Operation* o = operation(op);
  if (!o) fail(at, "'" + op + "' is outside the language");
  bool shifts = op == "<<" || op == ">>";
  const Type* t = shifts && b0.type->kind != Type::vector ? (a0.type->kind == Type::vector ? a0.type : promote(a0.type))
                                                          : common(a0.type, b0.type, at);
  const Type* s = scalar(t);
  if (!t->is_number() && t->kind != Type::vector) fail(at, "no '" + op + "' of " + name_of(a0.type));
  if (s->is_float() && !o->f) fail(at, "no '" + op + "' of " + name_of(a0.type) + " and " + name_of(b0.type));
  if (s->kind == Type::boolean && !o->compares && op != "&" && op != "|" && op != "^") {
    s = t_int;
    t = vector_of(t_int, width(t));
  }
  Value a = convert(a0, t, at, true), b = convert(b0, t, at, true), out;
  const Type* result = o->compares ? vector_of(t_bool, width(t)) : t;
  if (fold(op, t, result, a, b, out, at)) return out;
  if (t->kind == Type::integer) {
    if ((op == "+" || op == "-" || shifts) && is_number(b, 0)) return a;
    if (op == "+" && is_number(a, 0)) return b;
    if ((op == "*" || op == "/") && is_number(b, 1)) return a;
    if (op == "*" && is_number(a, 1)) return b;
    if (op == "*" && (is_number(a, 0) || is_number(b, 0))) return constant_value(t, 0);
  }
  Reg r = reg(result, at), operand = reg(t, at);
  uint16_t code_op = s->is_float() ? o->f : s->kind == Type::integer && s->sign ? o->s : o->u;
  if (s->kind == Type::boolean) {
    static const std::unordered_map<std::string, uint16_t> booleans = {
        {"==", 164}, {"!=", 165}, {"&", 167}, {"|", 166}, {"^", 165}};
    auto f = booleans.find(op);
    if (f == booleans.end())
      return binary_numbers(op, convert(a, vector_of(t_int, width(t)), at, true),
                            convert(b, vector_of(t_int, width(t)), at, true), at);
    code_op = f->second;
  }
  uint32_t y = id_of(b, at);
  if (shifts) {
    uint64_t mask = 8 * s->bytes - 1;
    if (b.kind == Value::constant) {
      Value m = b;
      for (Number& n : m.k) n.i &= static_cast<int64_t>(mask);
      y = id_of(m, at);
    } else {
      y = emit(BIT_AND, operand, {y, splat(operand, mask)}, 0, at);
    }
  }
  uint32_t id = emit(code_op, r, {id_of(a, at), y}, 0, at);
  if (!o->compares && s->is_float()) return round_to(t, id);
  if (!o->compares) id = normalize(id, s, width(t));
  return reg_value(result, id);
}

Value Lower::binary(const std::string& op, Value a, Value b, Place at) { return binary_numbers(op, a, b, at); }

Value Lower::unary(const std::string& op, const Value& v, Place at) {
  if (op == "!" && (v.type->kind == Type::pointer || v.type->kind == Type::null))
    return unary(op, points(v, at), at);
  const Type* t = v.type->kind == Type::vector ? v.type : promote(v.type);
  if (!t->is_number() && t->kind != Type::vector) fail(at, "no '" + op + "' of " + name_of(v.type));
  const Type* s = scalar(t);
  if (op == "!") {
    Value b = convert(v, vector_of(t_bool, width(t)), at, true);
    if (b.kind == Value::constant) {
      for (Number& n : b.k) n.i = !n.i;
      return b;
    }
    return reg_value(b.type, emit(LOGICAL_NOT, reg(b.type, at), {b.id}, 0, at));
  }
  Value a = convert(v, t, at, true);
  if (op == "+") return a;
  if (op == "~" && s->is_float()) fail(at, "no '~' of " + name_of(v.type));
  if (a.kind == Value::constant) {
    for (uint32_t i = 0; i < width(t); i++) {
      if (s->is_float()) a.k[i].f = -a.k[i].f;
      else {
        a.k[i].i = op == "~" ? ~a.k[i].i : static_cast<int64_t>(0 - static_cast<uint64_t>(a.k[i].i));
        a.k[i] = wrap(s, a.k[i], t_long);
      }
    }
    return a;
  }
  uint16_t o = op == "~" ? BIT_NOT : s->is_float() ? FNEGATE : SNEGATE;
  uint32_t id = emit(o, reg(t, at), {a.id}, 0, at);
  return reg_value(t, normalize(id, s, width(t)));
}

bool Lower::truth(const Value& v, bool& known, Place at) {
  Value b = convert(v, t_bool, at, true);
  known = b.kind == Value::constant;
  return known && b.k[0].i;
}

uint32_t Lower::condition(const Value& v, Place at) { return id_of(convert(v, t_bool, at, true), at); }

/* c ? a : b of one type */
Value Lower::select(uint32_t c, const Value& a, const Value& b, Place at) {
  if (a.kind == Value::pointer || b.kind == Value::pointer) return pointer_select(c, a, b, at);
  if (a.kind == Value::null) return a;                                 // both are
  if (a.kind == Value::aggregate) {
    Value r = a;
    r.parts = std::make_shared<std::vector<Value>>();
    for (size_t i = 0; i < a.parts->size(); i++) r.parts->push_back(select(c, (*a.parts)[i], (*b.parts)[i], at));
    return r;
  }
  Reg t = reg(a.type, at);
  uint32_t condition = c;
  if (t.n > 1 && code.types[c].n == 1)
    condition = join(vector_of(t_bool, t.n), std::vector<Value>(t.n, reg_value(t_bool, c)), at).id;
  return reg_value(a.type, emit(SELECT, t, {condition, id_of(a, at), id_of(b, at)}, 0, at));
}

/* as_type: by the bits of the whole. */
Value Lower::bitcast(const Value& v, const Type* t, Place at) {
  if (v.type == t) return v;
  const Type *f = v.type, *fs = scalar(f), *ts = scalar(t);
  if (!fs->is_number() || !ts->is_number() || size_of(f, at) != size_of(t, at))
    fail(at, "as_type of " + name_of(f) + " to " + name_of(t) + ", which has another size");
  /* Numbers to bits, bits to words of the smaller size, and together again. */
  uint32_t from = fs->bytes, to = ts->bytes, n = width(f);
  std::vector<Value> parts;
  for (uint32_t i = 0; i < n; i++)
    parts.push_back(reg_value(integer(from, false), bits_of_number(component(v, i, at), at)));
  std::vector<Value> made;
  if (from > to) {
    for (const Value& p : parts)
      for (uint32_t k = 0; k < from / to; k++)
        made.push_back(
            convert(binary_numbers(">>", p, constant_value(t_uint, 8 * to * k), at), integer(to, false), at, true));
  } else {
    for (uint32_t i = 0; i < n; i += to / from) {
      Value sum = convert(parts[i], integer(std::max(to, 4u), false), at, true);
      for (uint32_t k = 1; k < to / from; k++)
        sum = binary_numbers("|", sum,
                             binary_numbers("<<", convert(parts[i + k], integer(std::max(to, 4u), false), at, true),
                                            constant_value(t_uint, 8 * from * k), at),
                             at);
      made.push_back(sum);
    }
  }
  std::vector<Value> out;
  for (uint32_t i = 0; i < width(t); i++) out.push_back(number_of_bits(id_of(made[i], at), ts, at));
  return join(t, out, at);
}

}  // namespace metal
