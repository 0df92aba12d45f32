/* Calls: which function is meant, and its body in the place of the call.              SPDX-License-Identifier: MIT */
#include "lower.h"

namespace metal {

/* ---- which one ---- */

Scope* Lower::bindings_scope(const FunctionIn& f, const Bindings& b) {
  Scope* in = push_scope(f.scope);
  for (auto& x : b) bind(in, x.first, x.second);
  return in;
}

/* Template parameters that neither arguments nor the caller say have a preset value, or the function is not meant. */
bool Lower::all_found(const FunctionIn& f, Scope* in, Bindings& b) {
  Scope* before = scope;
  scope = in;
  bool all = true;
  for (const TemplateParameter& p : f.f->templates) {
    if (b.count(p.name)) {
      if (b[p.name].is_value == p.is_type) all = false;
      else if (b[p.name].is_value) b[p.name].value = convert(b[p.name].value, type_of(p.type), f.f->at);
    } else if (p.preset.type || p.preset.value) {
      b[p.name] = argument_of(p.preset);
    } else {
      all = false;
    }
    if (!all) break;
    bind(in, p.name, b[p.name]);
  }
  scope = before;
  return all;
}

/* What a parameter of that kind is deduced from: by value, an array is a pointer to its first element. */
const Type* Lower::passed_type(const Operand& o, const TypeNode* n) {
  const Type* t = o.type();
  if (!t || t->kind != Type::array || n->kind != TypeNode::named) return t;
  return pointer_to(t->of, o.is_place ? space_of(o.place) : Space::thread, o.is_place && o.place.constant);
}

bool Lower::viable(const FunctionIn& f, const std::vector<Argument>& explicit_args, const std::vector<Operand>& args,
                   Bindings& b, int& cost) {
  const Function& d = *f.f;
  count_step(d.at);
  if (args.size() > d.parameters.size()) return false;
  for (size_t i = args.size(); i < d.parameters.size(); i++) if (!d.parameters[i].preset) return false;
  cost = d.is_template ? 1 : 0;
  if (d.is_specialization) {
    std::vector<Argument> own = arguments_of(d.specialized);
    for (size_t i = 0; i < explicit_args.size() && i < own.size(); i++)
      if (!same(own[i], explicit_args[i])) return false;
  } else if (explicit_args.size() > d.templates.size()) {
    return false;
  }
  for (size_t i = 0; i < explicit_args.size() && i < d.templates.size(); i++) b[d.templates[i].name] = explicit_args[i];
  Scope* before = scope;
  size_t open_blocks = blocks.size(), open_frames = frames.size(), uses = null_uses.size();
  uint32_t depth = nesting, inside = calls;
  bool was_folding = folding;
  std::vector<Jump> outside = jumps;
  try {                                                                // what cannot be is not meant
    Bindings found = b;
    for (size_t i = 0; i < args.size(); i++) {
      const Type* t = passed_type(args[i], d.parameters[i].type);
      if (!t || t->kind == Type::none) return false;
      Bindings tried = found;
      if (d.is_template && !deduce_type(d.parameters[i].type, t, d.templates, f.scope, tried)) {
        tried = found;                                                 // said explicitly, so that it converts
        if (explicit_args.size() < d.templates.size()) return false;
      }
      found = tried;
    }
    b = found;
    Scope* in = push_scope(f.scope);
    if (!all_found(f, in, b)) return false;
    scope = in;
    if (d.is_template && d.result && d.result->kind != TypeNode::automatic) type_of(d.result);
    for (size_t i = 0; i < args.size(); i++) {
      TypeNode* n = d.parameters[i].type;
      const Type* from = args[i].type();
      const Type* t = type_of(
          n, n->kind == TypeNode::automatic || (n->inner && n->inner->kind == TypeNode::automatic) ? from : nullptr);
      if (n->kind == TypeNode::array) t = pointer_to(t->of, Space::none, n->inner->constant);
      bool writes = n->kind == TypeNode::reference && !n->inner->constant;
      if (writes && t != from) { scope = before; return false; }
      if (writes && args[i].is_place && args[i].place.constant) cost += 50;
      int r = rank(args[i], t);
      if (r < 0) { scope = before; return false; }
      cost += 8 * r;
      if (d.is_template && n->kind == TypeNode::named && !n->path.segments.back().has_args) cost += 1;
    }
    scope = before;
    return true;
  } catch (const Error&) {
    scope = before;
    blocks.resize(open_blocks);
    frames.resize(open_frames);
    null_uses.resize(uses);
    nesting = depth;
    calls = inside;
    folding = was_folding;
    jumps = outside;
    if (steps > MAX_STEPS || code.size > MAX_CODE) throw;
    return false;
  }
}

Operand Lower::call_candidates(const std::vector<FunctionIn>& list, const std::vector<Argument>& explicit_args,
                               std::vector<Operand> args, const Operand* self, const std::string& name, Place at,
                               bool& found, bool must) {
  const FunctionIn* best = nullptr;
  Bindings bindings;
  int least = 1 << 30;
  for (const FunctionIn& f : list) {
    Bindings b;
    int cost = 0;
    if (f.f->name == "deleted" || !viable(f, explicit_args, args, b, cost)) continue;
    if (!f.f->body) cost += 1000;
    if (f.f->at.file != at.file) cost += 4;                            // the source's own before the library's
    if (cost >= least) continue;
    least = cost;
    best = &f;
    bindings = b;
  }
  found = best != nullptr;
  if (!best) {
    if (!must) return {};
    std::string types;
    for (const Operand& o : args) types += (types.empty() ? "" : ", ") + (o.type() ? name_of(o.type()) : "void");
    fail(at, "no function '" + name + "' takes (" + types + ")");
  }
  if (!best->f->body && !best->f->is_constructor) fail(at, "'" + name + "' is declared, but not defined");
  return call(*best, bindings, std::move(args), self, at);
}

/* ---- parameters ---- */

Place_ Lower::fresh_place(const Type* t, Place at) {
  if (!folding) return place_of(allocate(t, Space::thread, at), t);
  cells.emplace_back();
  if (cells.size() > MAX_STEPS) fail(at, "this is too complex");
  cells.back() = Value();
  if (t->kind == Type::structure || t->kind == Type::array || t->kind == Type::vector) cells.back() = zero(t, at);
  Place_ p;
  p.type = t;
  p.cell = &cells.back();
  return p;
}

/* By value: a variable of its own. */
void Lower::store_argument(Scope* in, const Parameter& p, Operand o, Place at) {
  TypeNode* n = p.type;
  const Type* from = o.type();
  if (from->kind == Type::array && (n->kind == TypeNode::pointer || n->kind == TypeNode::automatic ||
                                    n->kind == TypeNode::array || type_of(n)->kind == Type::pointer)) {
    o.value = decay(o, at);
    o.is_place = false;
    from = o.value.type;
  }
  const Type* t =
      n->kind == TypeNode::array ? pointer_to(type_of(n->inner), from->space, n->inner->constant) : type_of(n, from);
  Value v = convert(load(o, at), t, at);
  if (v.type->kind == Type::pointer && t->kind == Type::pointer) t = v.type;
  Entity* e = make_entity(in, p.name, Entity::variable);
  e->t = t;
  if (n->constant || v.kind == Value::lambda || (v.kind == Value::null && t->kind != Type::pointer)) {
    e->is_value = true;
    e->value = v;
    return;
  }
  e->place = fresh_place(t, at);
  store(e->place, v, at);
}

void Lower::bind_parameter(Scope* in, const Parameter& p, const Operand& o, Place at) {
  if (!o.type() || o.type()->kind == Type::none) fail(at, "an argument without a value");
  TypeNode* n = p.type;
  if (n->kind != TypeNode::reference) {
    store_argument(in, p, o, at);
    return;
  }
  const Type* t = type_of(n, o.type());
  if (o.type()->kind == Type::lambda) t = o.type();
  Entity* e = make_entity(in, p.name, Entity::variable);
  e->t = t;
  if (o.is_place && o.type() == t) {
    e->place = o.place;
    e->place.constant = e->place.constant || n->inner->constant;
    return;
  }
  Value v = convert(load(o, at), t, at);
  e->is_value = v.kind == Value::constant || v.kind == Value::lambda || v.kind == Value::aggregate || folding;
  e->value = v;
  if (e->is_value) return;
  e->place = temporary(v, at);
  e->place.constant = n->inner->constant;
}

/* ---- bodies ---- */

namespace {
uint32_t count_returns(const Stmt* s) {
  if (!s) return 0;
  uint32_t n = s->kind == S::return_ ? 1 : 0;
  for (const Stmt* x : s->list) n += count_returns(x);
  return n + count_returns(s->a) + count_returns(s->b);
}
}  // namespace

bool Lower::always_returns(Stmt* s) {
  if (!s) return false;
  if (s->kind == S::return_) return true;
  if (s->kind == S::block) return !s->list.empty() && always_returns(s->list.back());
  return s->kind == S::if_ && s->b && always_returns(s->a) && always_returns(s->b);
}

/* Is there a return that something else would follow? What follows an if that returns goes into its else. */
bool Lower::returns_inside(Stmt* s, bool tail) {
  if (!s) return false;
  if (s->kind == S::return_) return !tail;
  if (s->kind == S::if_) return returns_inside(s->a, tail) || returns_inside(s->b, tail);
  if (s->kind == S::block) {
    for (size_t i = 0; i < s->list.size(); i++) {
      Stmt* x = s->list[i];
      bool moves = x->kind == S::if_ && !x->b && always_returns(x->a);
      if (returns_inside(x, tail && (moves || i + 1 == s->list.size()))) return true;
    }
    return false;
  }
  return count_returns(s) > 0;
}

Operand Lower::finish_frame(Frame& frame, Place at) {
  Operand o;
  if (frame.by_reference && frame.has_value) return frame.reference;
  if (frame.storage) {
    o.value = load_node(frame.storage, frame.result, {}, false, at);
    return o;
  }
  if (frame.result && frame.result->kind != Type::none) {
    if (!frame.has_value) {
      if (folding) fail(at, "a function without a value in a constant expression");
      o.value = zero(frame.result, at);                                // undefined in C++
      return o;
    }
    o.value = frame.value;
  }
  return o;
}

Operand Lower::run_body(Function* f, const Type* result, bool by_reference, Place at) {
  Frame frame;
  frame.result = result;
  frame.deduced = !result;
  frame.by_reference = by_reference;
  uint32_t returns = count_returns(f->body);
  bool region = !folding && returns_inside(f->body, true);
  frame.single =
      folding || (returns == 1 && !region && !f->body->list.empty() && f->body->list.back()->kind == S::return_);
  if (by_reference && !frame.single)
    fail(at, "a function that returns a reference from several places is outside the language");
  frames.push_back(&frame);
  std::vector<Jump> outside;
  outside.swap(jumps);
  if (region) {
    frame.region = ++code.regions;
    auto body = block_of([&] { run(f->body); });
    emit(REGION, {}, {frame.region}, 0, at);
    blocks.back()->back().a = std::move(body);
  } else {
    run(f->body);
  }
  jumps.swap(outside);
  frames.pop_back();
  return finish_frame(frame, at);
}

void Lower::initialize_members(const FunctionIn& f, const Place_& self, Place at) {
  const std::vector<Member>& members = f.self_type->members;
  for (uint32_t i = 0; i < members.size(); i++) {
    Expr* init = members[i].init;
    for (auto& x : f.f->inits) if (x.first == members[i].name) init = x.second;
    Place_ m = member_place(self, i, at);
    if (init && init->kind == E::list) store(m, construct(m.type, init->args, m.type->kind == Type::array, at), at);
    else if (init) store(m, value_as(init, m.type), at);
    else if (folding) store(m, zero(m.type, at), at);
  }
}

Operand Lower::call(const FunctionIn& f, const Bindings& b, std::vector<Operand> args, const Operand* self, Place at) {
  count_step(at);
  if (++calls > MAX_CALLS) fail(at, "calls nest too deeply: recursion is outside the language");
  struct Leave { uint32_t& n; uint32_t before; ~Leave() { n = before; } } leave{inside, inside};
  std::string where = std::to_string(inside) + ":" + std::to_string(at.file) + ":" + std::to_string(at.line) + ":" +
                      std::to_string(at.column);
  inside = findings.calls.emplace(where, findings.calls.size() + 1).first->second;
  Scope* before = scope;
  Scope* in = bindings_scope(f, b);
  if (self) {
    selves.push_back(self->is_place ? self->place
                     : folding      ? fresh_place(self->value.type, at)
                                    : temporary(self->value, at));
    if (!self->is_place && folding) *selves.back().cell = self->value;
    in = push_scope(in);
    in->info = f.self_type;
    in->self = &selves.back();
  }
  const Place_* own = self ? in->self : nullptr;
  in = push_scope(in);
  scope = in;
  for (size_t i = 0; i < f.f->parameters.size(); i++) {
    const Parameter& p = f.f->parameters[i];
    Operand o;
    if (i < args.size()) o = args[i];
    else if (p.preset->kind == E::list) o.value = value_as(p.preset, type_of(p.type));
    else o = eval(p.preset);
    bind_parameter(in, p, o, at);
  }
  Operand r;
  if (f.f->is_constructor) initialize_members(f, *own, at);
  if (f.f->body) {
    bool automatic = !f.f->is_constructor && f.f->result->kind == TypeNode::automatic;
    const Type* result = f.f->is_constructor ? t_void : automatic ? nullptr : type_of(f.f->result);
    bool reference = !f.f->is_constructor && f.f->result->kind == TypeNode::reference;
    r = run_body(f.f, result, reference, at);
  }
  scope = before;
  calls--;
  if (!r.is_place && !r.value.type) r.value.type = t_void;
  return r;
}

Operand Lower::call_lambda(const Value& v, std::vector<Operand> args, Place at) {
  FunctionIn f;
  f.f = v.l.function;
  f.scope = v.l.scope;
  if (args.size() > f.f->parameters.size()) fail(at, "a lambda with too many arguments");
  for (size_t i = args.size(); i < f.f->parameters.size(); i++)
    if (!f.f->parameters[i].preset) fail(at, "a lambda with too few arguments");
  return call(f, {}, std::move(args), nullptr, at);
}

Value Lower::construct_struct(const Type* t, std::vector<Operand> args, bool braces, Place at) {
  complete(t->info, at);
  if (args.size() == 1 && args[0].type() == t) return load(args[0], at);
  if (!t->info->constructors.empty()) {
    std::vector<FunctionIn> list;
    for (Function* c : t->info->constructors) list.push_back({c, t->info->scope, t->info});
    Operand self;
    self.is_place = true;
    self.place = fresh_place(t, at);
    bool found = false;
    call_candidates(list, {}, args, &self, t->info->name, at, found, !args.empty());
    if (found) return load(self.place, at);
  }
  if (args.size() == 1 && !braces && args[0].type()->kind == Type::structure)
    fail(at, "expected a value of type " + name_of(t) + ", not " + name_of(args[0].type()));
  Value v;
  v.type = t;
  v.kind = Value::aggregate;
  v.parts = std::make_shared<std::vector<Value>>();
  const std::vector<Member>& members = t->info->members;
  if (args.size() > members.size()) fail(at, t->info->name + " with " + std::to_string(args.size()) + " values");
  Scope* before = scope;
  for (size_t i = 0; i < members.size(); i++) {
    if (i < args.size()) {
      v.parts->push_back(convert(load(args[i], at), members[i].type, at));
      continue;
    }
    scope = t->info->scope;
    v.parts->push_back(members[i].init ? value_as(members[i].init, members[i].type)
                                       : default_value(members[i].type, at));
    scope = before;
  }
  return v;
}

/* ---- calls ---- */

Operand Lower::call_method(Expr* e) {
  Expr* m = e->a;
  Operand o = eval(m->a);
  if (m->arrow) {
    o.place = dereference(load(o, m->at), m->at);
    o.is_place = true;
  }
  const Type* t = o.type();
  std::vector<Operand> args;
  for (Expr* a : e->args) args.push_back(eval(a));
  if (!t || t->kind != Type::structure)
    fail(m->at, (t ? name_of(t) : "nothing") + " has no functions, so no '" + m->text + "'");
  complete(t->info, m->at);
  bool found = false;
  std::vector<Argument> explicit_args;
  if (!m->path.segments.empty()) explicit_args = arguments_of(m->path.segments[0].args);
  auto f = t->info->methods.find(m->text);
  if (f != t->info->methods.end()) {
    std::vector<FunctionIn> list;
    for (Function* x : f->second) list.push_back({x, t->info->scope, t->info});
    return call_candidates(list, explicit_args, args, &o, m->text, e->at, found, true);
  }
  Entity* s = find_in(m->text, t->info->scope);
  if (s && s->kind == Entity::functions)
    return call_candidates(s->list, explicit_args, args, nullptr, m->text, e->at, found, true);
  Operand callee = member_operand(o, m->text, m->at);
  if (callee.type() && callee.type()->kind == Type::lambda) return call_lambda(callee.value, args, e->at);
  fail(m->at, t->info->name + " has no function '" + m->text + "'");
}

Operand Lower::call_named(Expr* e, std::vector<Operand>& args) {
  const Path& path = e->a->path;
  const Segment& s = path.segments.back();
  bool found = false;
  std::vector<Argument> explicit_args = s.has_args ? arguments_of(s.args) : std::vector<Argument>();
  if (path.segments.size() == 1) {  // a function of the structure that this one is of
    for (Scope* k = scope; k; k = k->parent) {
      if (!k->self || !k->info) continue;
      auto m = k->info->methods.find(s.name);
      if (m == k->info->methods.end()) continue;
      std::vector<FunctionIn> list;
      for (Function* f : m->second) list.push_back({f, k->info->scope, k->info});
      Operand self;
      self.is_place = true;
      self.place = *k->self;
      return call_candidates(list, explicit_args, args, &self, s.name, e->at, found, true);
    }
  }
  std::vector<FunctionIn> list;
  if (path.segments.size() == 1) {                                     // of this scope and those around it
    for (Scope* k = scope; k; k = k->parent) {
      Entity* n = find_in(s.name, k);
      if (n && n->kind == Entity::functions) list.insert(list.end(), n->list.begin(), n->list.end());
      else if (n) break;
    }
  }
  Entity* n = resolve(path, false);
  if (n && n->kind == Entity::functions && list.empty()) list = n->list;
  if (n && n->kind == Entity::variable) {
    Operand callee = entity_operand(n, e->at);
    if (callee.type() && callee.type()->kind == Type::lambda) return call_lambda(load(callee, e->at), args, e->at);
    if (callee.type() && callee.type()->kind == Type::structure) {
      args.insert(args.begin(), callee);
      Operand r = overloaded("()", args, e->at, found);
      if (found) return r;
    }
    fail(e->at, "'" + s.name + "' is no function");
  }
  if (n && (n->kind == Entity::type || n->kind == Entity::struct_template || n->kind == Entity::alias_template)) {
    Operand o;
    o.value = construct_values(entity_type(n, s, e->at), args, false, e->at);
    return o;
  }
  if (!list.empty()) {
    Operand r = call_candidates(list, explicit_args, args, nullptr, s.name, e->at, found, false);
    if (found) return r;
  }
  Operand out;
  std::string space = path.segments.size() > 1 ? path.segments[path.segments.size() - 2].name : "";
  if (call_builtin(s.name, space, args, explicit_args, e->at, out)) return out;
  if (list.empty()) fail(path.at, "'" + path.text() + "' is no function that is known here");
  return call_candidates(list, explicit_args, args, nullptr, s.name, e->at, found, true);
}

Operand Lower::eval_call(Expr* e) {
  if (e->a->kind == E::member) return call_method(e);
  std::vector<Operand> args;
  for (Expr* a : e->args) args.push_back(eval(a));
  if (e->a->kind == E::name) return call_named(e, args);
  Operand callee = eval(e->a);
  if (callee.type() && callee.type()->kind == Type::lambda) return call_lambda(load(callee, e->at), args, e->at);
  bool found = false;
  args.insert(args.begin(), callee);
  Operand r = overloaded("()", args, e->at, found);
  if (!found) fail(e->at, "expected a function before (");
  return r;
}

}  // namespace metal
