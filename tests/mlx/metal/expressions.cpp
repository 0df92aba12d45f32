/* Expressions.                                                                        SPDX-License-Identifier: MIT */
#include <cmath>
#include <cstdlib>

#include "lower.h"

namespace metal {

namespace {
Operand of_value(Value v) {
  Operand o;
  o.value = std::move(v);
  return o;
}
Operand of_place(Place_ p) {
  Operand o;
  o.is_place = true;
  o.place = std::move(p);
  return o;
}
}  // namespace

Value Lower::rvalue(Expr* e) {
  Operand o = eval(e);
  Value v = load(o, e->at);
  if (v.kind == Value::none) fail(e->at, "expected a value");
  return v;
}

Value Lower::value_as(Expr* e, const Type* t, bool explicit_) {
  if (e->kind == E::list) return construct(t, e->args, true, e->at);
  Operand o = eval(e);
  if (t->kind == Type::pointer && o.type() && o.type()->kind == Type::array)
    return convert(decay(o, e->at), t, e->at, explicit_);
  return convert(load(o, e->at), t, e->at, explicit_);
}

/* t: none: as it is. */
Value Lower::constant_of(Expr* e, const Type* t, const char* what) {
  bool before = folding;
  folding = true;
  Value v;
  try {
    v = t ? value_as(e, t) : rvalue(e);
  } catch (...) {
    folding = before;
    throw;
  }
  folding = before;
  if (v.kind != Value::constant) fail(e->at, std::string(what) + " must be constant");
  return v;
}

Place_ Lower::place(Expr* e) {
  Operand o = eval(e);
  if (!o.is_place) fail(e->at, "expected something that can be written");
  return o.place;
}

/* What has no value is of type void: every operand has a type. */
Operand Lower::eval(Expr* e) {
  Operand o = eval_kind(e);
  if (!o.is_place && !o.value.type) o.value.type = t_void;
  return o;
}

Operand Lower::eval_kind(Expr* e) {
  count_step(e->at);
  if (++nesting > 6 * MAX_NESTING) fail(e->at, "this nests too deeply");
  struct Leave { uint32_t& n; ~Leave() { n--; } } leave{nesting};
  switch (e->kind) {
    case E::integer: case E::real: return of_value(literal(e));
    case E::boolean: return of_value(constant_value(t_bool, e->text == "true"));
    case E::null: {
      Value v;
      v.kind = Value::null;
      v.type = t_null;
      return of_value(v);
    }
    case E::text: fail(e->at, "strings are outside the language");
    case E::name: return eval_name(e);
    case E::unary: case E::postfix: return eval_unary(e);
    case E::binary: return eval_binary(e);
    case E::assign: return eval_assign(e);
    case E::conditional: return eval_conditional(e);
    case E::call: return eval_call(e);
    case E::index: return eval_index(e);
    case E::member: return eval_member(e);
    case E::cast: return eval_cast(e);
    case E::construct: {
      const Type* t = type_of(e->type);
      if (t->kind == Type::none) return of_value(Value());
      return of_value(construct(t, e->args, e->text == "{", e->at));
    }
    case E::list: {
      Value v;
      v.kind = Value::aggregate;
      v.type = t_list;
      v.parts = std::make_shared<std::vector<Value>>();
      for (Expr* a : e->args) v.parts->push_back(rvalue(a));
      return of_value(v);
    }
    case E::lambda: {
      Value v;
      v.kind = Value::lambda;
      v.type = t_lambda;
      v.l.function = e->function;
      v.l.scope = scope;
      return of_value(v);
    }
    case E::size_of: case E::align_of: {
      const Type* t = nullptr;
      if (e->type) t = type_of(e->type);
      else {
        bool before = folding;
        folding = false;
        auto dropped = block_of([&] { t = eval(e->a).type(); });
        folding = before;
      }
      return of_value(constant_value(t_ulong, e->kind == E::size_of ? size_of(t, e->at) : align_of(t, e->at)));
    }
    case E::comma: eval(e->a); return eval(e->b);
    case E::this_:
      for (Scope* s = scope; s; s = s->parent)
        if (s->self) return of_value(address_of(*s->self, Space::thread, e->at));
      fail(e->at, "this, outside of a structure");
  }
  return {};
}

Value Lower::literal(Expr* e) {
  std::string t = e->text;
  if (e->kind == E::real) {
    const Type* type = t_float;
    bool hex = t.size() > 1 && (t[1] | 32) == 'x';
    if (t.size() > 2 && (t.compare(t.size() - 2, 2, "bf") == 0 || t.compare(t.size() - 2, 2, "BF") == 0)) {
      type = t_bfloat;
      t.resize(t.size() - 2);
    } else if ((t.back() | 32) == 'h') {
      type = t_half;
      t.pop_back();
    } else if ((t.back() | 32) == 'f' && (!hex || t.find_first_of("pP") != std::string::npos)) {
      t.pop_back();
    } else if ((t.back() | 32) == 'l') {
      t.pop_back();
    }
    char* end = nullptr;
    double v = std::strtod(t.c_str(), &end);
    if (*end) fail(e->at, "'" + e->text + "' is no number");
    return real_value(type, v);
  }
  bool is_unsigned = false, is_long = false;
  bool hex = t.size() > 1 && (t[1] | 32) == 'x', binary_digits = t.size() > 1 && t[0] == '0' && (t[1] | 32) == 'b';
  while (!t.empty() && ((t.back() | 32) == 'u' || (t.back() | 32) == 'l' || ((t.back() | 32) == 'z' && !hex))) {
    is_unsigned = is_unsigned || (t.back() | 32) == 'u';
    is_long = is_long || (t.back() | 32) == 'l';
    t.pop_back();
  }
  char* end = nullptr;
  bool negative = !t.empty() && t[0] == '-';
  uint64_t v = binary_digits ? std::strtoull(t.c_str() + 2, &end, 2) : std::strtoull(t.c_str(), &end, 0);
  if (*end || t.empty()) fail(e->at, "'" + e->text + "' is no number");
  bool decimal = !hex && !binary_digits && t[0] != '0';
  if (negative) return constant_value(t_int, static_cast<int64_t>(v));
  if (!is_long && v <= 0x7fffffffu && !is_unsigned) return constant_value(t_int, static_cast<int64_t>(v));
  if (!is_long && v <= 0xffffffffu && (is_unsigned || !decimal)) return constant_value(t_uint, static_cast<int64_t>(v));
  return constant_value(is_unsigned || v > 0x7fffffffffffffffu ? t_ulong : t_long, static_cast<int64_t>(v));
}

/* ---- names ---- */

Operand Lower::entity_operand(Entity* e, Place at) {
  force(e, at);
  if (e->kind != Entity::variable) fail(at, "expected a value");
  if (e->is_value) return of_value(e->value);
  return of_place(e->place);
}

Operand Lower::eval_name(Expr* e) {
  Value v;
  if (trait_value(e->path, v)) return of_value(v);
  if (e->path.segments.size() == 1) {  // members of the structure whose method this is, nearer than globals
    const std::string& name = e->path.segments[0].name;
    for (Scope* s = scope; s; s = s->parent) {
      if (Entity* n = find_in(name, s)) {
        if (n->kind == Entity::variable) return entity_operand(n, e->at);
        break;
      }
      if (!s->info || !s->self) continue;
      uint32_t index = 0;
      if (member_of(s->self->type, name, index)) return of_place(member_place(*s->self, index, e->at));
    }
  }
  Entity* n = resolve(e->path, false);
  if (!n) {
    const std::string& last = e->path.segments.back().name;
    if (last == "thread_scope_device") return of_value(constant_value(t_int, 0));
    fail(e->at, "'" + e->path.text() + "' is not known here");
  }
  if (n->kind != Entity::variable) fail(e->at, "expected a value, not '" + e->path.text() + "'");
  return entity_operand(n, e->at);
}

/* ---- operators ---- */

Operand Lower::overloaded(const std::string& op, std::vector<Operand> args, Place at, bool& found) {
  found = false;
  bool any = false;
  for (const Operand& o : args) any = any || (o.type() && o.type()->kind == Type::structure);
  if (!any) return {};
  std::string name = "operator" + op;
  const Type* first = args[0].type();
  if (first->kind == Type::structure) {
    complete(first->info, at);
    auto m = first->info->methods.find(name);
    if (m != first->info->methods.end()) {
      std::vector<FunctionIn> list;
      for (Function* f : m->second) list.push_back({f, first->info->scope, first->info});
      std::vector<Operand> rest(args.begin() + 1, args.end());
      Operand r = call_candidates(list, {}, rest, &args[0], name, at, found, false);
      if (found) return r;
    }
  }
  std::vector<FunctionIn> list;
  if (Entity* e = find(name, scope)) list = e->list;
  if (Entity* e = find(name, global)) if (list.empty()) list = e->list;
  for (const Operand& o : args) {                                      // friends, and what stands beside the structure
    if (!o.type() || o.type()->kind != Type::structure) continue;
    complete(o.type()->info, at);
    if (Entity* e = find(name, o.type()->info->scope)) list.insert(list.end(), e->list.begin(), e->list.end());
  }
  return call_candidates(list, {}, args, nullptr, name, at, found, false);
}

Value Lower::step(const Place_& p, const std::string& op, Place at) {
  Value old = load(p, at);
  bool up = op == "++";
  Value next;
  if (p.type->kind == Type::pointer) next = pointer_add(old, {0, up ? 1 : -1}, at);
  else next = convert(binary(up ? "+" : "-", old, constant_value(t_int, 1), at), p.type, at, true);
  store(p, next, at);
  return old;
}

/* Of a variable that is a value, or of an element of it, whose address is wanted: what is known only when the kernel runs
   is stored there. */
Operand Lower::constant_in_memory(Expr* e) {
  if (e->kind == E::index) {
    Operand a = constant_in_memory(e->a);
    if (!a.is_place || a.type()->kind != Type::array) return {};
    return of_place(element_place(a.place, index_of(rvalue(e->b), e->at), e->at));
  }
  Entity* n = e->kind == E::name ? resolve(e->path, false) : nullptr;
  if (!n || n->kind != Entity::variable || !n->is_value) return {};
  if (n->value.kind != Value::reg) return of_place(memory_of(n, e->at));
  Place_ p = temporary(n->value, e->at);
  p.constant = true;
  return of_place(p);
}

Operand Lower::eval_unary(Expr* e) {
  const std::string& op = e->text;
  Operand a = eval(e->a);
  bool found = false;
  std::vector<Operand> args = {a};
  if (e->kind == E::postfix) args.push_back(of_value(constant_value(t_int, 0)));
  if (op != "&") {
    Operand r = overloaded(op, args, e->at, found);
    if (found) return r;
  }
  if (op == "++" || op == "--") {
    if (!a.is_place) fail(e->at, "expected something that can be written");
    Value old = step(a.place, op, e->at);
    return e->kind == E::postfix ? of_value(old) : a;
  }
  if (op == "*") {
    if (a.type()->kind == Type::array)
      return of_place(element_place(a.is_place ? a.place : temporary(a.value, e->at), {}, e->at));
    return of_place(dereference(load(a, e->at), e->at));
  }
  if (op == "&") {
    if (!a.is_place) a = constant_in_memory(e->a);
    if (!a.is_place) fail(e->at, "expected something that has an address");
    return of_value(address_of(a.place, Space::none, e->at));
  }
  return of_value(unary(op, load(a, e->at), e->at));
}

/* && and ||: what is right of them only where it counts. */
Value Lower::logical(Expr* e) {
  bool is_and = e->text == "&&", known = false;
  Value a = rvalue(e->a);
  if (a.type->kind == Type::vector) {
    Value b = rvalue(e->b);
    const Type* t = vector_of(t_bool, a.type->n);
    return binary(is_and ? "&" : "|", convert(a, t, e->at, true), convert(b, t, e->at, true), e->at);
  }
  a = convert(a, t_bool, e->at, true);
  bool v = truth(a, known, e->at);
  if (known) return v == is_and ? convert(rvalue(e->b), t_bool, e->at, true) : constant_value(t_bool, v);
  Value b;
  auto block = block_of([&] {
    b = convert(rvalue(e->b), t_bool, e->at, true);
    if (b.kind == Value::constant) b = reg_value(t_bool, constant_bool(b.k[0].i));
  });
  bool simple = true;                                                  // without effect or loads: both, at once
  for (const Inst& i : *block)
    simple = simple && i.op < 2000 && i.op != 134 && i.op != 135 && i.op != 137 && i.op != 138;
  if (simple && block->size() <= 8) {
    for (Inst& i : *block) blocks.back()->push_back(std::move(i));
    return reg_value(t_bool, emit(is_and ? 167 : 166, {Base::boolean, 1}, {a.id, b.id}, 0, e->at));
  }
  uint32_t s = slot({Base::boolean, 1}, 0, false);
  emit(STORE, {}, {s, 0, a.id}, 0, e->at);
  blocks.push_back(block.get());
  emit(STORE, {}, {s, 0, b.id}, 0, e->at);
  blocks.pop_back();
  if (is_and) push_if(a.id, std::move(block), std::make_unique<Block>());
  else push_if(a.id, std::make_unique<Block>(), std::move(block));
  return reg_value(t_bool, emit(LOAD, {Base::boolean, 1}, {s, 0}, 0, e->at));
}

Value Lower::compare_pointers(const std::string& op, const Value& a, const Value& b, Place at) {
  bool is_equality = op == "==" || op == "!=";
  if (is_equality || a.kind != Value::pointer || b.kind != Value::pointer) {
    if (!is_equality) fail(at, "no '" + op + "' of null pointers");
    if (a.kind != Value::pointer && b.kind != Value::pointer) return constant_value(t_bool, op == "==");
    if (a.kind != Value::pointer || b.kind != Value::pointer) {
      Value there = points(a.kind == Value::pointer ? a : b, at);
      return op == "!=" ? there : unary("!", there, at);
    }
  }
  if (a.p->targets.size() != 1 || b.p->targets.size() != 1)
    fail(at, "a comparison of pointers that may point to several arrays is outside the language");
  const Target &x = a.p->targets[0], &y = b.p->targets[0];
  bool same = x.kind == y.kind && x.binding == y.binding && x.node == y.node;
  if (is_equality && (a.p->may_be_null || b.p->may_be_null)) {         // two null ones are equal
    if (same && !(x == y)) fail(at, "'" + op + "' of pointers of different kinds is outside the language");
    auto of = [&](const Value& v) { return id_of(points(v, at), at); };
    auto boolean = [&](uint16_t o, uint32_t p, uint32_t q) { return emit(o, {Base::boolean, 1}, {p, q}, 0, at); };
    enum : uint16_t { M_BOTH = 167, M_EITHER = 166, M_ALIKE = 164, M_UNLIKE = 165, M_EQUAL = 170 };
    uint32_t there = of(a), equal = boolean(M_ALIKE, there, of(b));
    uint32_t nowhere = boolean(M_UNLIKE, there, constant_bool(true));
    uint32_t here = same ? boolean(M_EQUAL, id_of(a.p->index), id_of(b.p->index)) : constant_bool(false);
    Value r = reg_value(t_bool, boolean(M_BOTH, equal, boolean(M_EITHER, nowhere, here)));
    return op == "==" ? r : unary("!", r, at);
  }
  if (!same) {
    if (op == "==" || op == "!=") return constant_value(t_bool, op == "!=");
    fail(at, "'" + op + "' of pointers into different arrays");
  }
  if (!(x == y)) fail(at, "'" + op + "' of pointers of different kinds is outside the language");
  Value i = reg_value(t_int, bitcast_reg(id_of(a.p->index), {Base::i32, 1})),
        j = reg_value(t_int, bitcast_reg(id_of(b.p->index), {Base::i32, 1}));
  if (op != "-") return binary_numbers(op, i, j, at);
  Value d = binary_numbers("-", i, j, at);
  if (x.unit)
    d = binary_numbers("/", d, constant_value(t_int, std::max(1u, size_of(a.type->of, at) / x.unit)), at);
  return convert(d, t_long, at);
}

Operand Lower::eval_binary(Expr* e) {
  const std::string& op = e->text;
  if (op == "&&" || op == "||") return of_value(logical(e));
  /* a + b + c + ... is as deep as it is long: by a loop */
  std::vector<Expr*> chain;
  Expr* left = e;
  while (left->kind == E::binary && left->text != "&&" && left->text != "||") {
    chain.push_back(left);
    left = left->a;
  }
  Operand a = eval(left);
  while (!chain.empty()) {
    Expr* x = chain.back();
    chain.pop_back();
    count_step(x->at);
    Operand b = eval(x->b);
    bool found = false;
    Operand r = overloaded(x->text, {a, b}, x->at, found);
    if (found) {
      a = r;
      continue;
    }
    Value l = a.type() && a.type()->kind == Type::array ? decay(a, x->at) : load(a, x->at);
    Value y = b.type() && b.type()->kind == Type::array ? decay(b, x->at) : load(b, x->at);
    if (l.kind == Value::none || y.kind == Value::none) fail(x->at, "expected a value");
    bool lp = l.type->kind == Type::pointer || l.kind == Value::null,
         yp = y.type->kind == Type::pointer || y.kind == Value::null;
    if (lp && yp) a = of_value(compare_pointers(x->text, l, y, x->at));
    else if (lp && (x->text == "+" || x->text == "-")) {
      Index i = index_of(x->text == "-" ? unary("-", y, x->at) : y, x->at);
      a = of_value(pointer_add(l, i, x->at));
    } else if (yp && x->text == "+") a = of_value(pointer_add(y, index_of(l, x->at), x->at));
    else {
      if (l.type->kind == Type::structure || y.type->kind == Type::structure) {
        if (l.type->kind == Type::structure && y.type->is_number()) l = convert(l, y.type, x->at);
        else if (y.type->kind == Type::structure && l.type->is_number()) y = convert(y, l.type, x->at);
      }
      a = of_value(binary(x->text, l, y, x->at));
    }
  }
  return a;
}

Operand Lower::eval_assign(Expr* e) {
  Operand target = eval(e->a);
  std::string op = e->text.substr(0, e->text.size() - 1);
  const Type* t = target.type();
  if (t && t->kind == Type::structure) {
    bool found = false;
    if (e->b->kind != E::list) {
      Operand b = eval(e->b);
      Operand r = overloaded(e->text, {target, b}, e->at, found);
      if (found) return r;
      Value v = op.empty() ? load(b, e->at) : load(overloaded(op, {target, b}, e->at, found), e->at);
      if (!op.empty() && !found) fail(e->at, "no '" + e->text + "' of " + name_of(t));
      if (!target.is_place) fail(e->at, "expected something that can be written");
      store(target.place, convert(v, t, e->at), e->at);
      return target;
    }
  }
  if (!target.is_place)
    fail(e->at, target.value.kind == Value::constant ? "this is constant, it cannot be written"
                                                     : "expected something that can be written");
  if (t->kind == Type::array) fail(e->at, "arrays cannot be assigned");
  if (t->kind == Type::atomic) fail(e->at, "an atomic is written by atomic_store_explicit");
  if (op.empty()) {
    store(target.place, value_as(e->b, t), e->at);
    return target;
  }
  Operand b = eval(e->b);
  Value y = load(b, e->at), old = load(target.place, e->at);
  if (t->kind == Type::pointer) {
    if (op != "+" && op != "-") fail(e->at, "no '" + e->text + "' of a pointer");
    store(target.place, pointer_add(old, index_of(op == "-" ? unary("-", y, e->at) : y, e->at), e->at), e->at);
    return target;
  }
  store(target.place, convert(binary(op, old, y, e->at), t, e->at, true), e->at);
  return target;
}

Operand Lower::eval_conditional(Expr* e) {
  Value c = rvalue(e->a);
  bool known = false;
  if (c.type->kind == Type::vector) {
    Value b = rvalue(e->b), d = rvalue(e->c);
    const Type* t = common(b.type, d.type, e->at);
    return of_value(select(condition(c, e->at), convert(b, t, e->at), convert(d, t, e->at), e->at));
  }
  bool v = truth(c, known, e->at);
  if (known && folding) return eval(v ? e->b : e->c);
  uint32_t id = known ? 0 : condition(c, e->at);
  Operand l, r;
  auto value_of = [&](Expr* x, Operand& o, bool dropped) {
    struct Leave { uint32_t& n; uint32_t before; ~Leave() { n = before; } } leave{dropped_code, dropped_code};
    dropped_code += dropped;
    o = eval(x);
    if (o.is_place && o.type()->kind != Type::array) o = of_value(load(o, e->at));
  };
  /* Each side's code in its block, then the types, then what converts. */
  auto yes = block_of([&] {
    value_of(e->b, l, known && !v);
  });
  auto no = block_of([&] {
    value_of(e->c, r, known && v);
  });
  auto append = [&](Block& b) { for (Inst& i : b) blocks.back()->push_back(std::move(i)); };
  auto decayed = [&](Operand& o, Block& b) {
    if (!o.type() || o.type()->kind != Type::array) return;
    blocks.push_back(&b);
    o = of_value(decay(o, e->at));
    blocks.pop_back();
  };
  decayed(l, *yes);
  decayed(r, *no);
  if (l.value.kind == Value::none || r.value.kind == Value::none) {    // void
    if (known) append(v ? *yes : *no);
    else push_if(id, std::move(yes), std::move(no));
    return {};
  }
  const Type *a = l.type(), *b = r.type(), *t = a;
  if (a != b) {
    bool numbers = (a->is_number() || a->kind == Type::vector) && (b->is_number() || b->kind == Type::vector);
    if (numbers) t = common(a, b, e->at);
    else if (a->kind == Type::null || (b->kind == Type::structure && a->kind != Type::pointer)) t = b;
    else if (a->kind == Type::pointer && b->kind == Type::pointer && b->constant) t = b;
  }
  blocks.push_back(yes.get());
  Value x = convert(l.value, t, e->at);
  blocks.back() = no.get();
  Value y = convert(r.value, t, e->at);
  blocks.pop_back();
  if (known) {
    append(v ? *yes : *no);
    return of_value(v ? x : y);
  }
  if (t->kind == Type::pointer) {
    append(*yes);
    append(*no);
    return of_value(select(id, x, y, e->at));
  }
  auto simple = [](const Block& k) {
    if (k.size() > 6) return false;
    for (const Inst& i : k) if (i.op >= 1000 || (i.op >= 134 && i.op <= 138 && i.op != 136)) return false;
    return true;
  };
  if (simple(*yes) && simple(*no)) {
    append(*yes);
    append(*no);
    return of_value(select(id, x, y, e->at));
  }
  Node* n = allocate(t, Space::thread, e->at);
  blocks.push_back(yes.get());
  store_node(n, t, {}, false, x, e->at);
  blocks.back() = no.get();
  store_node(n, t, {}, false, y, e->at);
  blocks.pop_back();
  push_if(id, std::move(yes), std::move(no));
  return of_value(load_node(n, t, {}, false, e->at));
}

Operand Lower::eval_index(Expr* e) {
  Operand a = eval(e->a);
  const Type* t = a.type();
  if (t && t->kind == Type::structure) {
    bool found = false;
    Operand r = overloaded("[]", {a, eval(e->b)}, e->at, found);
    if (found) return r;
  }
  Value i = rvalue(e->b);
  if (t && t->is_int() && i.type->kind == Type::pointer) {             // 2[p]
    Value p = i;
    i = load(a, e->at);
    return of_place(dereference(pointer_add(p, index_of(i, e->at), e->at), e->at));
  }
  if (i.type->kind == Type::structure) i = convert(i, t_int, e->at);
  Index index = index_of(i, e->at);
  if (t && t->kind == Type::pointer) return of_place(dereference(pointer_add(load(a, e->at), index, e->at), e->at));
  if (!t || (t->kind != Type::array && t->kind != Type::vector))
    fail(e->at, "expected an array, a vector or a pointer before [, not " + name_of(t));
  if (a.is_place) return of_place(element_place(a.place, index, e->at));
  if (!index.id && (index.k < 0 || index.k >= static_cast<int64_t>(t->n)))
    fail(e->at, "index " + std::to_string(index.k) + " of " + name_of(t));
  if (!index.id)
    return of_value(t->kind == Type::vector ? component(a.value, static_cast<uint32_t>(index.k), e->at)
                                            : (*a.value.parts)[static_cast<size_t>(index.k)]);
  if (e->a->kind == E::name && t->kind == Type::array) {
    Entity* n = resolve(e->a->path, false);
    if (n && n->kind == Entity::variable && n->is_value && n->t == t)
      return of_place(element_place(memory_of(n, e->at), index, e->at));
  }
  return of_place(element_place(temporary(a.value, e->at), index, e->at));
}

Operand Lower::member_operand(const Operand& o, const std::string& name, Place at) {
  const Type* t = o.type();
  if (t && t->kind == Type::vector) {
    std::vector<uint8_t> swizzle;
    for (char c : name) {
      const char* sets[] = {"xyzw", "rgba"};
      int k = -1;
      for (const char* s : sets) for (int i = 0; i < 4; i++) if (s[i] == c) k = i;
      if (k < 0 || k >= static_cast<int>(t->n) || swizzle.size() >= 4) fail(at, name_of(t) + " has no '" + name + "'");
      swizzle.push_back(static_cast<uint8_t>(k));
    }
    const Type* r = vector_of(t->of, static_cast<uint32_t>(swizzle.size()));
    if (o.is_place && !o.place.has_component) {
      Operand p = o;
      p.place.type = r;
      if (!o.place.swizzle.empty()) for (uint8_t& k : swizzle) k = o.place.swizzle[k];
      p.place.swizzle = swizzle;
      if (!o.place.cell && o.place.targets[0].kind == Target::memory && o.place.targets[0].view &&
          o.place.swizzle.empty())
        p.place.targets[0].view = t;
      return p;
    }
    Value v = load(o, at);
    std::vector<Value> parts;
    for (uint8_t k : swizzle) parts.push_back(component(v, k, at));
    return of_value(join(r, parts, at));
  }
  if (!t || t->kind != Type::structure)
    fail(at, (t ? name_of(t) : "nothing") + " has no members, so no '" + name + "'");
  complete(t->info, at);
  uint32_t index = 0;
  if (!member_of(t, name, index)) {
    Entity* e = find_in(name, t->info->scope);
    if (e && e->kind == Entity::variable) return entity_operand(e, at);
    fail(at, t->info->name + " has no member '" + name + "'");
  }
  if (o.is_place) return of_place(member_place(o.place, index, at));
  return of_value((*o.value.parts)[index]);
}

Operand Lower::eval_member(Expr* e) {
  Operand o = eval(e->a);
  if (e->arrow) o = of_place(dereference(load(o, e->at), e->at));
  return member_operand(o, e->text, e->at);
}

/* ---- casts and constructors ---- */

Value Lower::cast(const Value& v, const Type* t, Place at) {
  if (t->kind == Type::pointer && v.type->kind == Type::pointer) return pointer_cast(v, t, at);
  return convert(v, t, at, true);
}

Operand Lower::eval_cast(Expr* e) {
  const Type* t = type_of(e->type);
  TypeNode* n = e->type;
  if (e->a->kind == E::list) return of_value(construct(t, e->a->args, true, e->at));
  Operand o = eval(e->a);
  if (e->text == "as_type") return of_value(bitcast(load(o, e->at), t, e->at));
  if (n->kind == TypeNode::reference) {
    if (!o.is_place) return of_value(convert(o.value, t, e->at, true));
    if (o.type() == t) return o;
    Value p = address_of(o.place, Space::none, e->at);
    return of_place(dereference(pointer_cast(p, pointer_to(t, Space::none, o.place.constant), e->at), e->at));
  }
  if (t->kind == Type::none) return {};
  if (o.type() && o.type()->kind == Type::array && t->kind == Type::pointer)
    return of_value(cast(decay(o, e->at), t, e->at));
  if (e->text == "reinterpret_cast" && t->kind != Type::pointer)
    fail(e->at, "reinterpret_cast to " + name_of(t) + " is outside the language");
  return of_value(cast(load(o, e->at), t, e->at));
}

Value Lower::construct(const Type* t, const std::vector<Expr*>& args, bool braces, Place at) {
  if (braces &&
      (t->kind == Type::array ||
       (t->kind == Type::structure && (complete(t->info, at), t->info->constructors.empty()))) &&
      !(t->kind == Type::structure && args.size() == 1 && args[0]->kind != E::list))
    return from_list(t, args, at);
  std::vector<Operand> list;
  for (Expr* a : args) {
    if (a->kind == E::list && args.size() == 1 && t->kind == Type::vector) return construct(t, a->args, true, at);
    list.push_back(eval(a));
  }
  return construct_values(t, list, braces, at);
}

/* Arrays and structures without constructors; what is not said is zero, or as the member says. */
Value Lower::from_list(const Type* t, const std::vector<Expr*>& args, Place at) {
  Value v;
  v.type = t;
  v.kind = Value::aggregate;
  v.parts = std::make_shared<std::vector<Value>>();
  bool array = t->kind == Type::array;
  size_t n = array ? t->n : t->info->members.size();
  if (args.size() > n) fail(at, name_of(t) + " with " + std::to_string(args.size()) + " values");
  for (size_t i = 0; i < n; i++) {
    const Type* of = array ? t->of : t->info->members[i].type;
    if (i < args.size()) v.parts->push_back(value_as(args[i], of));
    else if (array && i > args.size())
      v.parts->push_back(v.parts->back().kind == Value::constant ? v.parts->back() : zero(of, at));
    else
      v.parts->push_back(array                      ? zero(of, at)
                         : t->info->members[i].init ? value_as(t->info->members[i].init, of)
                                                    : default_value(of, at));
  }
  return v;
}

Value Lower::default_value(const Type* t, Place at) {
  if (t->kind == Type::structure) return construct_struct(t, {}, true, at);
  return zero(t, at);
}

Value Lower::construct_vector(const Type* t, const std::vector<Operand>& args, Place at) {
  std::vector<Value> parts;
  for (const Operand& o : args) {
    Value v = load(o, at);
    if (!v.type || (!v.type->is_number() && v.type->kind != Type::vector)) {
      if (v.type && v.type->kind == Type::structure) v = convert(v, t->of, at);
      else fail(at, "a vector is made of numbers, not of " + name_of(v.type));
    }
    for (uint32_t i = 0; i < width(v.type); i++) parts.push_back(convert(component(v, i, at), t->of, at, true));
  }
  if (parts.empty()) return zero(t, at);
  if (parts.size() == 1) parts.assign(t->n, parts[0]);
  if (parts.size() != t->n) fail(at, name_of(t) + " of " + std::to_string(parts.size()) + " numbers");
  return join(t, parts, at);
}

Value Lower::construct_values(const Type* t, std::vector<Operand> args, bool braces, Place at) {
  if (t->kind == Type::structure) return construct_struct(t, std::move(args), braces, at);
  if (t->kind == Type::vector) {
    if (args.size() == 1 && args[0].type() && args[0].type()->kind == Type::vector && args[0].type()->n == t->n)
      return convert(load(args[0], at), t, at, true);
    return construct_vector(t, args, at);
  }
  if (t->kind == Type::array) {
    Value v = zero(t, at);
    if (args.size() > t->n) fail(at, name_of(t) + " with " + std::to_string(args.size()) + " values");
    for (size_t i = 0; i < args.size(); i++) (*v.parts)[i] = convert(load(args[i], at), t->of, at);
    return v;
  }
  if (args.empty()) return zero(t, at);
  if (args.size() > 1) fail(at, name_of(t) + " is made of one value, not " + std::to_string(args.size()));
  if (t->kind == Type::pointer && args[0].type()->kind == Type::array) return cast(decay(args[0], at), t, at);
  return cast(load(args[0], at), t, at);
}

}  // namespace metal
