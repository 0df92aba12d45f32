/* Statements. In constant evaluation they are executed, else their code is made.      SPDX-License-Identifier: MIT */
#include "lower.h"

namespace metal {

namespace {

/* Restores the names of before. */
struct Inner {
  Lower& l;
  Scope* before;
  explicit Inner(Lower& lower) : l(lower), before(lower.scope) { l.scope = l.push_scope(before); }
  ~Inner() { l.scope = before; }
};

struct InLoop {
  Lower& l;
  explicit InLoop(Lower& lower) : l(lower) { l.loops++; }
  ~InLoop() { l.loops--; }
};

bool is_constant(const Value& v) {
  if (v.kind == Value::constant) return true;
  if (v.kind != Value::aggregate) return false;
  for (const Value& p : *v.parts) if (!is_constant(p)) return false;
  return true;
}

TypeNode* base_of(TypeNode* n) {
  while (n->inner) n = n->inner;
  return n;
}

}  // namespace

Flow Lower::run(Stmt* s) {
  count_step(s->at);
  if (++nesting > 6 * MAX_NESTING) fail(s->at, "this nests too deeply");
  struct Leave { uint32_t& n; ~Leave() { n--; } } leave{nesting};
  switch (s->kind) {
    case S::block: {
      Inner inner(*this);
      return run_list(s->list);
    }
    case S::expression: eval(s->e); return Flow::next;
    case S::variables: declare_variables(s); return Flow::next;
    case S::if_: return run_if(s);
    case S::for_: case S::while_: case S::do_: return folding ? fold_loop(s) : run_loop(s);
    case S::range_for: return run_range(s);
    case S::switch_: return run_switch(s);
    case S::break_: return jump(true, s->at);
    case S::continue_: return jump(false, s->at);
    case S::return_: return run_return(s);
    case S::structure:
    case S::alias:
    case S::enumeration:
    case S::using_namespace: declare_type(s, scope); return Flow::next;
    case S::assertion: {
      if (constant_of(s->e, t_bool, "a static_assert").k[0].i) return Flow::next;
      fail(s->at, "static_assert does not hold" +
                      (s->step && s->step->kind == E::text ? ": " + s->step->text : std::string()));
    }
    case S::case_: case S::default_: fail(s->at, "case outside of a switch's block");
    default: return Flow::next;
  }
}

Flow Lower::run_list(const std::vector<Stmt*>& list, size_t from) {
  for (size_t i = from; i < list.size(); i++) {
    Stmt* s = list[i];
    bool rest_is_else = !folding && !frames.empty() && !frames.back()->region && !frames.back()->is_kernel &&
                        jumps.empty() && s->kind == S::if_ && !s->b && !s->is_constexpr && always_returns(s->a) &&
                        i + 1 < list.size();
    if (rest_is_else) {                                                // so that nothing needs to be jumped over
      Inner inner(*this);
      if (s->init) run(s->init);
      Value c = s->e ? rvalue(s->e) : Value();
      bool known = false;
      if (!s->e) fail(s->at, "an if that declares its condition is outside the language");
      bool v = truth(c, known, s->at);
      if (known && v) return run(s->a);
      if (known) continue;
      uint32_t id = condition(c, s->at);
      Flow rest = Flow::next;
      auto a = block_of([&] { run(s->a); });
      auto b = block_of([&] { rest = run_list(list, i + 1); });
      push_if(id, std::move(a), std::move(b));
      return rest;
    }
    Flow f = run(s);
    if (f != Flow::next) return f;
  }
  return Flow::next;
}

Flow Lower::run_if(Stmt* s) {
  Inner inner(*this);
  if (s->init) run(s->init);
  Value c;
  if (s->e) c = s->is_constexpr ? constant_of(s->e, t_bool, "if constexpr's condition") : rvalue(s->e);
  else {
    const Variable& v = s->init->variables.back();
    c = load(entity_operand(find(v.name, scope), s->at), s->at);
  }
  bool known = false, v = truth(c, known, s->at);
  if (known) return v ? run(s->a) : s->b ? run(s->b) : Flow::next;
  if (folding) fail(s->at, "this is no constant expression");
  uint32_t id = condition(c, s->at);
  Flow f = Flow::next, g = Flow::next;
  auto a = block_of([&] { f = run(s->a); });
  auto b = block_of([&] { if (s->b) g = run(s->b); });
  push_if(id, std::move(a), std::move(b));
  if (f == Flow::next || g == Flow::next) return Flow::next;
  return f == g ? f : Flow::return_;
}

/* ---- jumps ---- */

Flow Lower::jump(bool is_break, Place at) {
  if (folding) return is_break ? Flow::break_ : Flow::continue_;
  size_t i = jumps.size();
  while (i > 0 && !is_break && !jumps[i - 1].is_loop) i--;
  if (!i) fail(at, is_break ? "break outside of a loop and a switch" : "continue outside of a loop");
  const Jump& j = jumps[i - 1];
  if (is_break) emit(BREAK, {}, {j.region}, 0, at);
  else if (j.next) emit(BREAK, {}, {j.next}, 0, at);
  else emit(CONTINUE, {}, {j.region}, 0, at);
  return is_break ? Flow::break_ : Flow::continue_;
}

Flow Lower::run_return(Stmt* s) {
  if (frames.empty()) fail(s->at, "return outside of a function");
  Frame& f = *frames.back();
  if (f.is_kernel) {
    if (s->e) fail(s->at, "a kernel returns nothing");
    emit(RETURN, {}, {}, 0, s->at);
    return Flow::return_;
  }
  if (s->e && f.by_reference) {
    f.reference = eval(s->e);
    f.has_value = true;
    return Flow::return_;
  }
  if (s->e && (!f.result || f.result->kind != Type::none)) {
    Value v = f.result ? value_as(s->e, f.result) : rvalue(s->e);
    if (!f.result) f.result = v.type;
    if (f.result->kind == Type::pointer && v.kind == Value::pointer) f.result = v.type;
    if (v.type != f.result) v = convert(v, f.result, s->at);
    f.has_value = true;
    if (f.single) f.value = v;
    else {
      if (v.kind == Value::lambda)
        fail(s->at, "a function that returns a lambda from several places is outside the language");
      if (!f.storage) f.storage = allocate(f.result, Space::thread, s->at);
      store_node(f.storage, f.result, {}, false, v, s->at);
    }
  } else if (s->e) {
    eval(s->e);
  } else if (!f.result) {
    f.result = t_void;
  }
  if (!folding && f.region) emit(BREAK, {}, {f.region}, 0, s->at);
  return Flow::return_;
}

/* ---- loops ---- */

Flow Lower::fold_loop(Stmt* s) {
  Inner inner(*this);
  if (s->init) run(s->init);
  for (bool first = true;; first = false) {
    count_step(s->at);
    bool known = true, go = true;
    if (s->e && !(s->kind == S::do_ && first)) go = truth(rvalue(s->e), known, s->at);
    if (!known) fail(s->at, "this is no constant expression");
    if (!go) return Flow::next;
    Flow f = run(s->a);
    if (f == Flow::return_) return f;
    if (f == Flow::break_) return Flow::next;
    if (s->step) eval(s->step);
  }
}

Flow Lower::run_loop(Stmt* s) {
  Inner inner(*this);
  if (s->init) run(s->init);
  InLoop within(*this);
  uint32_t region = ++code.regions, once = s->kind == S::do_ ? ++code.regions : 0;
  auto leave_unless = [&](Expr* e) {
    if (!e) return;
    Value c = rvalue(e);
    bool known = false, v = truth(c, known, s->at);
    if (known && v) return;
    if (known) emit(BREAK, {}, {region}, 0, s->at);
    else emit_if(condition(c, s->at), [] {}, [&] { emit(BREAK, {}, {region}, 0, s->at); });
  };
  jumps.push_back({region, true, once});
  auto body = block_of([&] {
    if (s->kind == S::do_) {
      auto inside = block_of([&] { run(s->a); });
      emit(REGION, {}, {once}, 0, s->at);
      blocks.back()->back().a = std::move(inside);
      leave_unless(s->e);
    } else {
      leave_unless(s->e);
      run(s->a);
    }
  });
  auto step = block_of([&] { if (s->step) eval(s->step); });
  jumps.pop_back();
  emit(LOOP, {}, {region}, 0, s->at);
  blocks.back()->back().a = std::move(body);
  blocks.back()->back().b = std::move(step);
  return Flow::next;
}

/* for (T x : array) */
Flow Lower::run_range(Stmt* s) {
  Inner inner(*this);
  Operand o = eval(s->e);
  const Type* t = o.type();
  if (!t || t->kind != Type::array) fail(s->at, "a for over anything but an array is outside the language");
  if (!o.is_place) o.place = folding ? fresh_place(t, s->at) : temporary(o.value, s->at);
  Parameter p;
  p.type = s->variables[0].type;
  p.name = s->variables[0].name;
  Operand element;
  element.is_place = true;
  if (folding) {
    for (uint32_t i = 0; i < t->n; i++) {
      Inner each(*this);
      element.place = element_place(o.place, {0, i}, s->at);
      bind_parameter(scope, p, element, s->at);
      Flow f = run(s->a);
      if (f == Flow::return_) return f;
      if (f == Flow::break_) break;
    }
    return Flow::next;
  }
  InLoop within(*this);
  uint32_t region = ++code.regions, i = slot({Base::u32, 1}, 0, false);
  emit(STORE, {}, {i, 0, constant_u32(0)}, 0, s->at);
  jumps.push_back({region, true, 0});
  auto body = block_of([&] {
    uint32_t at = emit(LOAD, {Base::u32, 1}, {i, 0}, 0, s->at);
    emit_if(emit(176, {Base::boolean, 1}, {at, constant_u32(t->n)}), [] {}, [&] { emit(BREAK, {}, {region}); });
    element.place = element_place(o.place, {at, 0}, s->at);
    bind_parameter(scope, p, element, s->at);
    run(s->a);
  });
  auto step = block_of([&] {
    emit(STORE, {}, {i, 0, emit(128, {Base::u32, 1}, {emit(LOAD, {Base::u32, 1}, {i, 0}), constant_u32(1)})});
  });
  jumps.pop_back();
  emit(LOOP, {}, {region}, 0, s->at);
  blocks.back()->back().a = std::move(body);
  blocks.back()->back().b = std::move(step);
  return Flow::next;
}

/* ---- switch ---- */

Flow Lower::fold_switch(Stmt* s, const std::vector<std::vector<Stmt*>>& sections,
                        const std::vector<std::vector<Expr*>>& labels, int otherwise) {
  Value v = rvalue(s->e);
  int chosen = otherwise;
  for (size_t i = 0; i < labels.size(); i++)
    for (Expr* e : labels[i])
      if (constant_of(e, v.type, "a case").k[0].i == v.k[0].i) chosen = static_cast<int>(i);
  for (size_t i = chosen < 0 ? sections.size() : static_cast<size_t>(chosen); i < sections.size(); i++) {
    Flow f = run_list(sections[i]);
    if (f == Flow::break_) return Flow::next;
    if (f != Flow::next) return f;
  }
  return Flow::next;
}

/* The number of the section that is meant, then each section that is not before it. */
Flow Lower::run_switch(Stmt* s) {
  Inner inner(*this);
  if (s->a->kind != S::block) fail(s->at, "expected a block behind switch");
  std::vector<std::vector<Stmt*>> sections;
  std::vector<std::vector<Expr*>> labels;
  int otherwise = -1;
  bool label = false;
  for (Stmt* x : s->a->list) {
    bool is_label = x->kind == S::case_ || x->kind == S::default_;
    if (is_label && !label) {
      sections.emplace_back();
      labels.emplace_back();
    }
    if (x->kind == S::case_) labels.back().push_back(x->e);
    if (x->kind == S::default_) otherwise = static_cast<int>(sections.size()) - 1;
    if (!is_label && sections.empty()) fail(x->at, "expected case before a switch's first statement");
    if (!is_label) sections.back().push_back(x);
    label = is_label;
  }
  if (folding) return fold_switch(s, sections, labels, otherwise);
  Value v = rvalue(s->e);
  if (!v.type->is_int()) fail(s->at, "switch takes an integer, not " + name_of(v.type));
  v = convert(v, promote(v.type), s->at);
  uint32_t n = static_cast<uint32_t>(sections.size());
  Value chosen = constant_value(t_uint, otherwise < 0 ? n : static_cast<uint32_t>(otherwise));
  for (uint32_t i = 0; i < n; i++)
    for (Expr* e : labels[i]) {
      Value same = binary_numbers("==", v, constant_of(e, v.type, "a case"), e->at);
      if (same.kind == Value::constant) chosen = same.k[0].i ? constant_value(t_uint, i) : chosen;
      else chosen = select(id_of(same, e->at), constant_value(t_uint, i), chosen, e->at);
    }
  uint32_t region = ++code.regions;
  jumps.push_back({region, false, 0});
  auto body = block_of([&] {
    for (uint32_t i = 0; i < n; i++)
      emit_if(
          id_of(binary_numbers("<=", chosen, constant_value(t_uint, i), s->at), s->at), [&] { run_list(sections[i]); },
          [] {});
  });
  jumps.pop_back();
  emit(REGION, {}, {region}, 0, s->at);
  blocks.back()->back().a = std::move(body);
  return Flow::next;
}

/* ---- variables ---- */

void Lower::declare_variables(Stmt* s) {
  for (const Variable& v : s->variables) declare_variable(v);
}

Value Lower::initial(const Variable& v, const Type* t) {
  if (v.init->kind == E::list) return construct(t, v.init->args, !v.direct, v.at);
  return value_as(v.init, t);
}

void Lower::declare_variable(const Variable& v) {
  TypeNode *n = v.type, *base = base_of(n);
  bool shared = base->space == Space::threadgroup && n->kind != TypeNode::pointer && n->kind != TypeNode::reference;
  bool automatic = base->kind == TypeNode::automatic, global_value = frames.empty() && !folding;
  bool must = v.is_constexpr || global_value ||
              (base->space == Space::constant && n->kind != TypeNode::pointer && n->kind != TypeNode::reference);
  if (n->kind == TypeNode::reference) {
    if (!v.init || v.init->kind == E::list) fail(v.at, "a reference needs what it refers to");
    Parameter p;
    p.type = n;
    p.name = v.name;
    bind_parameter(scope, p, eval(v.init), v.at);
    return;
  }
  bool before = folding;
  struct Restore { bool& f; bool v; ~Restore() { f = v; } } restore{folding, before};
  if (must) folding = true;
  Value value;
  const Type* t = nullptr;
  if (automatic && n->kind != TypeNode::array) {
    if (!v.init || v.init->kind == E::list) fail(v.at, "auto has no value to be deduced from");
    Operand o = eval(v.init);
    if (o.type()->kind == Type::none) fail(v.at, "auto has no value to be deduced from");
    if (o.type()->kind == Type::array) {
      o.value = decay(o, v.at);
      o.is_place = false;
    }
    value = load(o, v.at);
    t = value.type;
  } else {
    const Type* deduced = nullptr;
    if (n->kind == TypeNode::array && !n->size) {
      if (!v.init || v.init->kind != E::list) fail(v.at, "expected the array's size");
      deduced = array_of(t_int, static_cast<uint32_t>(v.init->args.size()));
    }
    t = type_of(n, deduced);
    if (t->kind == Type::none) fail(v.at, "a variable of type void");
    if (v.init) value = initial(v, t);
    else if (t->kind == Type::structure && !shared) {
      complete(t->info, v.at);
      bool presets = !t->info->constructors.empty();
      for (const Member& m : t->info->members) presets = presets || m.init;
      if (presets) value = construct_struct(t, {}, true, v.at);
    }
  }
  folding = before;
  if (t->kind == Type::pointer && value.kind == Value::pointer) t = value.type;
  if (must && !is_constant(value)) fail(v.at, "'" + v.name + "' must be constant");
  bool immutable = n->kind == TypeNode::array ? base->constant : n->constant;
  bool keeps = must || value.kind == Value::lambda ||
               (immutable && (is_constant(value) || value.kind == Value::reg || value.kind == Value::pointer));
  Entity* e = nullptr;
  if (keeps && value.kind != Value::none) {
    e = make_entity(scope, v.name, Entity::variable);
    e->is_value = true;
    e->value = value;
    e->t = t;
    return;
  }
  if (shared && folding) fail(v.at, "threadgroup memory in a constant expression");
  Place_ p = shared ? place_of(allocate(t, Space::threadgroup, v.at), t) : fresh_place(t, v.at);
  e = make_entity(scope, v.name, Entity::variable);
  e->t = t;
  if (value.kind != Value::none) {
    if (shared) fail(v.at, "threadgroup memory cannot have a first value");
    store(p, value, v.at);
  }
  p.constant = immutable;
  e->place = p;
}

}  // namespace metal
