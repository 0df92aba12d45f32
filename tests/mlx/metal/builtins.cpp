/* Functions that the language brings along and that no source can say.                SPDX-License-Identifier: MIT */
#include <cmath>

#include "lower.h"

namespace metal {
namespace {

const Reg U32{Base::u32, 1}, BOOL{Base::boolean, 1};

/* Numbers in, numbers of the same type out; the instructions of GLSL.std.450 for floats, signed and unsigned integers
 * (0: no such function of them, and integers become floats). Folded where all is constant. */
struct Math {
  const char* name;
  uint8_t args;
  uint16_t f, s, u;
  double (*folded)(double, double, double);
  const char* prelude = nullptr;              // a function of float there: the device's is not exact enough
};
const Math maths[] = {
    {"exp", 1, 27, 0, 0, [](double x, double, double) { return std::exp(x); }},
    {"exp2", 1, 29, 0, 0, [](double x, double, double) { return std::exp2(x); }},
    {"log", 1, 28, 0, 0, [](double x, double, double) { return std::log(x); }},
    {"log2", 1, 30, 0, 0, [](double x, double, double) { return std::log2(x); }},
    {"sqrt", 1, 31, 0, 0, [](double x, double, double) { return std::sqrt(x); }},
    {"rsqrt", 1, 32, 0, 0, [](double x, double, double) { return 1 / std::sqrt(x); }},
    {"sin", 1, 13, 0, 0, [](double x, double, double) { return std::sin(x); }, "builtin_sin"},
    {"cos", 1, 14, 0, 0, [](double x, double, double) { return std::cos(x); }, "builtin_cos"},
    {"tan", 1, 15, 0, 0, [](double x, double, double) { return std::tan(x); }, "builtin_tan"},
    {"asin", 1, 16, 0, 0, nullptr, "builtin_asin"}, {"acos", 1, 17, 0, 0, nullptr, "builtin_acos"},
    {"atan", 1, 18, 0, 0, nullptr, "builtin_atan"}, {"sinh", 1, 19, 0, 0, nullptr, "builtin_sinh"},
    {"cosh", 1, 20, 0, 0, nullptr, "builtin_cosh"}, {"builtin_tanh", 1, 21, 0, 0, nullptr},
    {"asinh", 1, 22, 0, 0, nullptr, "builtin_asinh"}, {"acosh", 1, 23, 0, 0, nullptr, "builtin_acosh"},
    {"atanh", 1, 24, 0, 0, nullptr, "builtin_atanh"}, {"atan2", 2, 25, 0, 0, nullptr, "builtin_atan2"},
    {"powr", 2, 26, 0, 0, [](double x, double y, double) { return std::pow(x, y); }},
    {"fabs", 1, 4, 0, 0, [](double x, double, double) { return std::fabs(x); }},
    {"floor", 1, 8, 0, 0, [](double x, double, double) { return std::floor(x); }},
    {"ceil", 1, 9, 0, 0, [](double x, double, double) { return std::ceil(x); }},
    {"trunc", 1, 3, 0, 0, [](double x, double, double) { return std::trunc(x); }},
    {"rint", 1, 2, 0, 0, [](double x, double, double) { return std::nearbyint(x); }},
    {"sign", 1, 6, 7, 0, [](double x, double, double) { return x > 0 ? 1.0 : x < 0 ? -1.0 : x == 0 ? x : 0.0; },
     "builtin_sign"},
    {"fmin", 2, 79, 0, 0, [](double x, double y, double) { return std::fmin(x, y); }},
    {"fmax", 2, 80, 0, 0, [](double x, double y, double) { return std::fmax(x, y); }},
    {"min", 2, 79, 39, 38, [](double x, double y, double) { return std::fmin(x, y); }},
    {"max", 2, 80, 42, 41, [](double x, double y, double) { return std::fmax(x, y); }},
    {"clamp", 3, 81, 45, 44, [](double x, double y, double z) { return std::fmin(std::fmax(x, y), z); }},
    {"fma", 3, 50, 0, 0, [](double x, double y, double z) { return std::fma(x, y, z); }},
    {"step", 2, 48, 0, 0, nullptr}, {"smoothstep", 3, 49, 0, 0, nullptr},
};

/* Of the threads of a simdgroup, or of four of them. */
struct SimdRow { const char* name; Simd kind; bool other; };
const SimdRow simds[] = {{"sum", Simd::sum, false},
                         {"product", Simd::product, false},
                         {"min", Simd::min, false},
                         {"max", Simd::max, false},
                         {"and", Simd::and_, false},
                         {"or", Simd::or_, false},
                         {"xor", Simd::xor_, false},
                         {"prefix_inclusive_sum", Simd::inclusive_sum, false},
                         {"prefix_exclusive_sum", Simd::exclusive_sum, false},
                         {"prefix_inclusive_product", Simd::inclusive_product, false},
                         {"prefix_exclusive_product", Simd::exclusive_product, false},
                         {"broadcast", Simd::shuffle, true},
                         {"shuffle", Simd::shuffle, true},
                         {"shuffle_xor", Simd::shuffle_xor, true},
                         {"shuffle_up", Simd::shuffle_up, true},
                         {"shuffle_down", Simd::shuffle_down, true},
                         {"shuffle_rotate_up", Simd::rotate_up, true},
                         {"shuffle_rotate_down", Simd::rotate_down, true},
                         {"any", Simd::any, false},
                         {"all", Simd::all, false},
                         {"ballot", Simd::ballot, false}};

struct AtomicRow { const char* name; Atomic s, u, f; };
const AtomicRow atomics[] = {{"exchange", Atomic::exchange, Atomic::exchange, Atomic::exchange},
                             {"fetch_add", Atomic::add, Atomic::add, Atomic::add_f},
                             {"fetch_sub", Atomic::sub, Atomic::sub, Atomic::add_f},
                             {"fetch_min", Atomic::min_s, Atomic::min_u, Atomic::min_f},
                             {"fetch_max", Atomic::max_s, Atomic::max_u, Atomic::max_f},
                             {"fetch_and", Atomic::and_, Atomic::and_, Atomic::load},
                             {"fetch_or", Atomic::or_, Atomic::or_, Atomic::load},
                             {"fetch_xor", Atomic::xor_, Atomic::xor_, Atomic::load},
                             {"load", Atomic::load, Atomic::load, Atomic::load},
                             {"store", Atomic::store, Atomic::store, Atomic::store}};

struct Caller {
  Lower& l;
  std::vector<Operand>& args;
  Place at;
  std::string name;

  Value arg(size_t i) {
    if (i >= args.size()) fail(at, "'" + name + "' needs more arguments than " + std::to_string(args.size()));
    Value v = l.load(args[i], at);
    if (v.type && v.type->kind == Type::structure) v = l.convert(v, l.t_float, at);
    return v;
  }
  void need(size_t n) {
    if (args.size() != n)
      fail(at, "'" + name + "' takes " + std::to_string(n) + " arguments, not " + std::to_string(args.size()));
  }
  const Type* number(const Type* t) {
    if (!t || (!t->is_number() && t->kind != Type::vector))
      fail(at, "'" + name + "' takes numbers, not " + (t ? l.name_of(t) : "void"));
    return t;
  }

  /* ---- numbers ---- */

  bool math(Value& out) {
    const Math* m = nullptr;
    for (const Math& x : maths) if (name == x.name && args.size() == x.args) m = &x;
    if (!m) return false;
    std::vector<Value> v;
    for (size_t i = 0; i < m->args; i++) v.push_back(arg(i));
    const Type* t = number(v[0].type);
    for (size_t i = 1; i < m->args; i++) t = l.common(t, number(v[i].type), at);
    const Type* s = l.scalar(t);
    if (s->is_int() && !m->s) t = l.vector_of(l.t_float, l.width(t));
    else if (s->kind == Type::boolean) t = l.vector_of(l.t_int, l.width(t));
    s = l.scalar(t);
    bool constant = m->folded && s->is_float();
    for (Value& x : v) {
      x = l.convert(x, t, at, true);
      constant = constant && x.kind == Value::constant;
    }
    if (constant) {
      out = v[0];
      for (uint32_t i = 0; i < l.width(t); i++) {
        Number n;
        n.f = m->folded(v[0].k[i].f, m->args > 1 ? v[1].k[i].f : 0, m->args > 2 ? v[2].k[i].f : 0);
        out.k[i] = l.wrap(s, n, l.t_float);
      }
      return true;
    }
    if (s->is_int() && fold_int(m, s, v, out)) return true;
    uint16_t op = s->is_float() ? m->f : s->sign ? m->s : m->u;
    if (!op) fail(at, "'" + name + "' of " + l.name_of(t) + " is outside the language");
    out = m->prelude && s->is_float() ? by_prelude(m->prelude, t, l.t_float, v) : l.ext(op, t, v, at);
    return true;
  }

  /* A function of the prelude's for each component, computed in `in`. */
  Value by_prelude(const char* function, const Type* t, const Type* in, const std::vector<Value>& v) {
    std::vector<Value> parts;
    for (uint32_t i = 0; i < l.width(t); i++) {
      std::vector<Operand> one(v.size());
      bool found = false;
      for (size_t k = 0; k < v.size(); k++) one[k].value = l.convert(l.component(v[k], i, at), in, at, true);
      Operand r = l.call_candidates(l.find_in(function, l.global)->list, {}, one, nullptr, function, at, found, true);
      parts.push_back(l.convert(l.load(r, at), l.scalar(t), at, true));
    }
    return l.join(t, parts, at);
  }

  /* min and max of integers in array sizes */
  bool fold_int(const Math* m, const Type* s, const std::vector<Value>& v, Value& out) {
    for (const Value& x : v) if (x.kind != Value::constant || x.type->kind == Type::vector) return false;
    if (m->s == 7) return false;
    auto less = [&](int64_t a, int64_t b) {
      return s->sign ? a < b : static_cast<uint64_t>(a) < static_cast<uint64_t>(b);
    };
    auto lower = [&](int64_t a, int64_t b) { return less(b, a) ? b : a; };
    auto higher = [&](int64_t a, int64_t b) { return less(a, b) ? b : a; };
    int64_t r = m->args == 3 ? lower(higher(v[0].k[0].i, v[1].k[0].i), v[2].k[0].i)
                : m->s == 39 ? lower(v[0].k[0].i, v[1].k[0].i)
                             : higher(v[0].k[0].i, v[1].k[0].i);
    out = l.constant_value(s, r);
    return true;
  }

  Value absolute() {
    need(1);
    Value v = arg(0);
    const Type* s = l.scalar(number(v.type));
    if (v.kind == Value::constant && v.type->is_number()) {
      if (s->is_float()) return l.real_value(v.type, std::fabs(v.k[0].f));
      return l.constant_value(
          v.type, s->sign && v.k[0].i < 0 ? static_cast<int64_t>(0 - static_cast<uint64_t>(v.k[0].i)) : v.k[0].i);
    }
    if (s->is_float()) return l.ext(4, v.type, {v}, at);
    if (!s->sign) return v;
    uint32_t n = l.emit(EXTENDED + 5, l.reg(v.type, at), {l.id_of(v, at)}, 0, at);
    return l.reg_value(v.type, l.normalize(n, s, l.width(v.type)));                   // the least one has no other
  }

  /* By the bits: what a driver thinks of NaN does not matter. */
  bool classify(Value& out) {
    enum { nan, inf, finite, normal, sign };
    static const std::unordered_map<std::string, int> table = {
        {"isnan", nan}, {"isinf", inf}, {"isfinite", finite}, {"isnormal", normal}, {"signbit", sign}};
    auto f = table.find(name);
    if (f == table.end()) return false;
    need(1);
    Value v = arg(0);
    uint32_t n = l.width(number(v.type));
    if (!l.scalar(v.type)->is_float()) v = l.convert(v, l.vector_of(l.t_float, n), at, true);
    Reg u{Base::u32, static_cast<uint8_t>(n)}, b{Base::boolean, u.n};
    uint32_t bits = l.bitcast_reg(l.id_of(v, at), u), id = 0;
    uint32_t a = l.emit(199, u, {bits, l.splat(u, 0x7fffffff)}, 0, at), most = l.splat(u, 0x7f800000);
    if (f->second == nan) id = l.emit(172, b, {a, most});
    if (f->second == inf) id = l.emit(170, b, {a, most});
    if (f->second == finite) id = l.emit(176, b, {a, most});
    if (f->second == normal)
      id = l.emit(167, b, {l.emit(176, b, {a, most}), l.emit(174, b, {a, l.splat(u, 0x00800000)})});
    if (f->second == sign) id = l.emit(171, b, {l.emit(199, u, {bits, l.splat(u, 0x80000000u)}), l.splat(u, 0)});
    out = l.reg_value(l.vector_of(l.t_bool, n), id);
    return true;
  }

  Value any_all() {
    need(1);
    Value v = l.convert(arg(0), l.vector_of(l.t_bool, l.width(number(arg(0).type))), at, true);
    if (v.type->kind != Type::vector) return v;
    return l.reg_value(l.t_bool, l.emit(name == "any" ? 154 : 155, BOOL, {l.id_of(v, at)}, 0, at));
  }

  Value select() {
    need(3);
    Value a = arg(0), b = arg(1), c = arg(2);
    const Type* t = l.common(number(a.type), number(b.type), at);
    c = l.convert(c, l.vector_of(l.t_bool, l.width(c.type)), at, true);
    return l.select(l.id_of(c, at), l.convert(b, t, at, true), l.convert(a, t, at, true), at);
  }

  Value dot() {
    need(2);
    Value a = arg(0), b = arg(1), sum;
    const Type* t = l.common(number(a.type), number(b.type), at);
    a = l.convert(a, t, at, true);
    b = l.convert(b, t, at, true);
    for (uint32_t i = 0; i < l.width(t); i++) {
      Value p = l.binary_numbers("*", l.component(a, i, at), l.component(b, i, at), at);
      sum = i ? l.binary_numbers("+", sum, p, at) : p;
    }
    return sum;
  }

  Value bits() {
    need(1);
    Value v = arg(0);
    const Type* t = number(v.type);
    const Type* s = l.scalar(t);
    if (!s->is_int()) fail(at, "'" + name + "' takes integers, not " + l.name_of(t));
    uint32_t n = l.width(t), size = s->kind == Type::boolean ? 32 : 8u * s->bytes;
    if (s->bytes == 8) {
      std::vector<Value> parts;
      for (uint32_t i = 0; i < n; i++) parts.push_back(wide_bits(l.component(v, i, at)));
      return l.join(t, parts, at);
    }
    const Type* wide = l.vector_of(l.t_uint, n);
    Value w = l.convert(l.convert(v, l.vector_of(l.integer(s->bytes, false), n), at, true), wide, at, true);
    Reg u = l.reg(wide, at);
    uint32_t id = l.id_of(w, at);
    if (name == "popcount") id = l.emit(205, u, {id}, 0, at);
    else if (name == "reverse_bits") id = l.emit(194, u, {l.emit(204, u, {id}, 0, at), l.splat(u, 32 - size)}, 0, at);
    else if (name == "clz") id = l.emit(130, u, {l.splat(u, size - 1), l.emit(EXTENDED + 75, u, {id}, 0, at)}, 0, at);
    else id = l.emit(EXTENDED + 38, u, {l.emit(EXTENDED + 73, u, {id}, 0, at), l.splat(u, size)}, 0, at);
    return l.convert(l.reg_value(wide, id), t, at, true);
  }
  Value wide_bits(const Value& v) {
    Value u = l.convert(v, l.t_ulong, at, true);
    Value low = l.convert(u, l.t_uint, at, true),
          high = l.convert(l.binary_numbers(">>", u, l.constant_value(l.t_uint, 32), at), l.t_uint, at, true);
    auto part = [&](const Value& x) {
      std::vector<Operand> one(1);
      one[0].value = x;
      return Caller{l, one, at, name}.bits();
    };
    Value a = part(low), b = part(high), r, more = l.constant_value(l.t_uint, 32), none = l.constant_value(l.t_uint, 0);
    if (name == "popcount") r = l.binary_numbers("+", a, b, at);
    else if (name == "reverse_bits")
      r = l.binary_numbers("|", l.binary_numbers("<<", l.convert(a, l.t_ulong, at, true), more, at), b, at);
    else if (name == "clz")
      r = l.select(l.id_of(l.binary_numbers("==", high, none, at), at), l.binary_numbers("+", a, more, at), b, at);
    else r = l.select(l.id_of(l.binary_numbers("==", low, none, at), at), l.binary_numbers("+", b, more, at), a, at);
    return l.convert(r, v.type, at, true);
  }

  Value mulhi() {
    need(2);
    Value a = arg(0), b = arg(1);
    const Type* t = number(a.type) == b.type ? a.type : l.common(a.type, number(b.type), at);   // small ones stay small
    const Type* s = l.scalar(t);
    if (s->kind != Type::integer) fail(at, "mulhi of " + l.name_of(t) + " is outside the language");
    if (s->bytes == 8 || (!l.options.int64 && s->bytes == 4))
      return by_prelude("builtin_mulhi", t, l.integer(s->bytes, s->sign),
                        {l.convert(a, t, at, true), l.convert(b, t, at, true)});
    const Type* w = l.vector_of(l.integer(8, s->sign), l.width(t));
    Value p = l.binary_numbers("*", l.convert(l.convert(a, t, at, true), w, at, true),
                               l.convert(l.convert(b, t, at, true), w, at, true), at);
    return l.convert(l.binary_numbers(">>", p, l.constant_value(l.t_uint, 8 * s->bytes), at), t, at, true);
  }

  /* ---- threads together ---- */

  bool simd(Value& out) {
    bool quad = name.rfind("quad_", 0) == 0;
    if (!quad && name.rfind("simd_", 0)) return false;
    std::string n = name.substr(5);
    if (n == "is_first") {
      out = l.reg_value(l.t_bool, l.emit(SIMD, BOOL, {quad ? 4u : 32u, l.constant_bool(true)},
                                         static_cast<uint16_t>(Simd::first), at));
      return true;
    }
    if (n == "active_threads_mask") {
      uint32_t id =
          l.emit(SIMD, U32, {quad ? 4u : 32u, l.constant_bool(true)}, static_cast<uint16_t>(Simd::ballot), at);
      out = l.convert(l.reg_value(l.t_uint, id), l.t_ulong, at);
      return true;
    }
    const SimdRow* row = nullptr;
    for (const SimdRow& r : simds) if (n == r.name) row = &r;
    if (n == "broadcast_first") {
      out = first_of(quad ? 4 : 32);
      return true;
    }
    if (n == "shuffle_and_fill_up" || n == "shuffle_and_fill_down") {
      out = fill(n == "shuffle_and_fill_up", quad ? 4 : 32);
      return true;
    }
    if (!row) return false;
    need(row->other ? 2 : 1);
    uint32_t other = row->other ? l.id_of(l.convert(arg(1), l.t_uint, at, true), at) : 0;
    out = each(row->kind, quad ? 4 : 32, arg(0), other);
    return true;
  }

  Value each(Simd kind, uint32_t width, const Value& v, uint32_t other) {
    if (kind == Simd::any || kind == Simd::all || kind == Simd::ballot) {
      uint32_t c = l.condition(v, at);
      bool ballot = kind == Simd::ballot;
      uint32_t id = l.emit(SIMD, ballot ? U32 : BOOL, {width, c}, static_cast<uint16_t>(kind), at);
      return ballot ? l.convert(l.reg_value(l.t_uint, id), l.t_ulong, at) : l.reg_value(l.t_bool, id);
    }
    number(v.type);
    std::vector<Value> parts;
    const Type* s = l.scalar(v.type);
    bool moves = kind >= Simd::shuffle;
    for (uint32_t i = 0; i < l.width(v.type); i++) {
      Value c = l.component(v, i, at);
      if (s->kind == Type::boolean) c = l.convert(c, l.t_uint, at);
      uint32_t id = l.id_of(c, at);
      id = l.emit(SIMD, l.code.types[id], {width, id, other}, static_cast<uint16_t>(kind), at);
      if (s->kind == Type::boolean) parts.push_back(l.convert(l.reg_value(l.t_uint, id), l.t_bool, at));
      else parts.push_back(moves || kind == Simd::min || kind == Simd::max ? l.reg_value(s, id)
                           : s->is_float() ? l.round_to(s, id) : l.reg_value(s, l.normalize(id, s, 1)));
    }
    return l.join(v.type, parts, at);
  }

  Value first_of(uint32_t width) {
    need(1);
    return each(Simd::first, width, arg(0), 0);
  }

  /* simd_shuffle_and_fill_up(value, filling, delta, modulo): the filling's last threads come in where there are none
   * below, of the simdgroup or of its parts of as many threads as modulo says. */
  Value fill(bool up, uint32_t width) {
    if (args.size() != 3 && args.size() != 4) need(3);
    Value v = arg(0), f = l.convert(arg(1), v.type, at), delta = l.convert(arg(2), l.t_uint, at, true);
    Value part = args.size() == 4 ? l.convert(arg(3), l.t_uint, at, true) : l.constant_value(l.t_uint, width);
    Value rest = l.binary_numbers("-", part, l.constant_value(l.t_uint, 1), at), self = l.builtin_value(Builtin::lane);
    Value lane = l.binary_numbers("&", self, rest, at);
    Value from = l.binary_numbers("&", l.binary_numbers(up ? "-" : "+", lane, delta, at), rest, at);
    uint32_t source = l.id_of(l.binary_numbers("+", l.binary_numbers("-", self, lane, at), from, at), at);
    Value moved = each(Simd::shuffle, 32, v, source), filled = each(Simd::shuffle, 32, f, source);
    Value inside = up ? l.binary_numbers(">=", lane, delta, at)
                      : l.binary_numbers("<", lane, l.binary_numbers("-", part, delta, at), at);
    return l.select(l.id_of(inside, at), moved, filled, at);
  }

  bool barrier() {
    if (name != "threadgroup_barrier" && name != "simdgroup_barrier" && name != "atomic_thread_fence") return false;
    int64_t flags = 3;
    if (!args.empty()) {
      Value v = arg(0);
      if (v.kind == Value::constant) flags = v.k[0].i;
    }
    uint16_t what = static_cast<uint16_t>((flags & 2 ? 1 : 0) | (flags & 1 ? 2 : 0));
    if (name == "threadgroup_barrier") l.emit(BARRIER, {}, {0}, what, at);
    else if (name == "simdgroup_barrier" ) l.emit(BARRIER, {}, {l.options.subgroup >= 32 ? 1u : 0u}, what, at);
    else l.emit(BARRIER, {}, {2}, 3, at);
    return true;
  }

  /* ---- atomics ---- */

  uint32_t atomic(const Place_& p, Atomic kind, uint32_t value, uint32_t compared) {
    if (p.targets.size() != 1) fail(at, "an atomic that may be in several arrays is outside the language");
    const Target& t = p.targets[0];
    bool buffer = t.kind == Target::buffer;
    if (buffer && kind != Atomic::load && (t.readonly || p.constant)) fail(at, "this memory is constant");
    if (buffer && kind != Atomic::load) l.code.written[t.binding] = true;
    uint32_t index = buffer ? l.id_of(l.buffer_index(t, p.index, t.offset, 4)) : t.node->count ? l.id_of(p.index) : 0;
    uint32_t which = buffer ? t.binding : t.node->slot;
    uint32_t zero = l.constant_u32(0);
    if (!buffer && (t.node->type->kind == Type::structure || t.view))
      fail(at, "an atomic laid over other memory is outside the language");
    return l.emit(ATOMIC, U32, {buffer ? 0u : 1u, which, index, value ? value : zero, compared ? compared : zero},
                  static_cast<uint16_t>(kind), at);
  }

  bool atomic_call(Value& out) {
    if (name.rfind("atomic_", 0)) return false;
    std::string n = name.substr(7);
    size_t tail = n.rfind("_explicit");
    if (tail != std::string::npos) n.resize(tail);
    Value pointer = args.empty()                                            ? Value()
                    : args[0].type() && args[0].type()->kind == Type::array ? l.decay(args[0], at)
                                                                            : arg(0);
    if (!pointer.type || pointer.type->kind != Type::pointer)
      fail(at, "'" + name + "' takes a pointer to an atomic first");
    Place_ p = l.dereference(pointer, at);
    const Type* t = p.type->kind == Type::atomic ? p.type->of : p.type;
    if (!t->is_number() || t->bytes != 4)
      fail(at, "atomic<" + l.name_of(t) + "> is outside the language: int, uint and float are in it");
    if (n == "compare_exchange_weak" || n == "compare_exchange_strong") {
      out = compare_exchange(p, t);
      return true;
    }
    const AtomicRow* row = nullptr;
    for (const AtomicRow& r : atomics) if (n == r.name) row = &r;
    if (!row) return false;
    Atomic kind = t->is_float() ? row->f : t->sign ? row->s : row->u;
    if (kind == Atomic::load && n != "load") fail(at, "'" + name + "' of floats is outside the language");
    Value v = n == "load" ? Value() : l.convert(arg(1), t, at);
    if (t->is_float() && n == "fetch_sub") v = l.unary("-", v, at);
    uint32_t id = atomic(p, kind, n == "load" ? 0 : l.bitcast_reg(l.id_of(v, at), U32), 0);
    if (n != "store") out = l.reg_value(t, l.bitcast_reg(id, l.reg(t, at)));
    return true;
  }

  Value compare_exchange(const Place_& p, const Type* t) {
    if (args.size() < 3) need(5);
    Place_ expected = l.dereference(arg(1), at);
    Value want = l.convert(l.load(expected, at), t, at), v = l.convert(arg(2), t, at);
    uint32_t w = l.bitcast_reg(l.id_of(want, at), U32);
    uint32_t old = atomic(p, Atomic::compare, l.bitcast_reg(l.id_of(v, at), U32), w);
    l.store(expected, l.reg_value(t, l.bitcast_reg(old, l.reg(t, at))), at);
    return l.reg_value(l.t_bool, l.emit(170, BOOL, {old, w}, 0, at));
  }
};

}  // namespace

Value Lower::ext(uint16_t op, const Type* t, const std::vector<Value>& args, Place at) {
  Reg r = reg(t, at);
  uint32_t a[3] = {0, 0, 0};
  for (size_t i = 0; i < args.size() && i < 3; i++) a[i] = id_of(args[i], at);
  uint16_t o = static_cast<uint16_t>(EXTENDED + op);
  uint32_t id = args.size() == 1   ? emit(o, r, {a[0]}, 0, at)
                : args.size() == 2 ? emit(o, r, {a[0], a[1]}, 0, at)
                                   : emit(o, r, {a[0], a[1], a[2]}, 0, at);
  return scalar(t)->is_float() ? round_to(t, id) : reg_value(t, id);
}

bool Lower::call_builtin(const std::string& name, const std::string&, std::vector<Operand>& args,
                         const std::vector<Argument>&, Place at, Operand& out) {
  Caller c{*this, args, at, name};
  if (c.barrier() || c.atomic_call(out.value) || c.simd(out.value) || c.classify(out.value) || c.math(out.value))
    return true;
  if (name == "abs") out.value = c.absolute();
  else if (name == "any" || name == "all") out.value = c.any_all();
  else if (name == "select") out.value = c.select();
  else if (name == "dot") out.value = c.dot();
  else if (name == "popcount" || name == "clz" || name == "ctz" || name == "reverse_bits") out.value = c.bits();
  else if (name == "mulhi") out.value = c.mulhi();
  else if (name == "builtin_lane") out.value = builtin_value(Builtin::lane);
  else if (name == "addressof" && args.size() == 1 && args[0].is_place)
    out.value = address_of(args[0].place, Space::none, at);
  else if (name == "declval") fail(at, "declval is outside the language");
  else return false;
  return true;
}

}  // namespace metal
