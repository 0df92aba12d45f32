/* Scopes, what a name stands for, templates' arguments.                               SPDX-License-Identifier: MIT */
#include "lower.h"

namespace metal {

/* ---- scopes ---- */

Scope* Lower::push_scope(Scope* parent) {
  if (scopes.size() > MAX_STEPS) fail({}, "the source is too complex");
  scopes.emplace_back();
  scopes.back().parent = parent;
  return &scopes.back();
}

Entity* Lower::make_entity(Scope* in, const std::string& name, Entity::Kind kind) {
  entities.emplace_back();
  Entity* e = &entities.back();
  e->kind = kind;
  e->scope = in;
  if (!name.empty()) in->names[name] = e;
  return e;
}

Entity* Lower::find_in(const std::string& name, Scope* in, int depth) {
  auto f = in->names.find(name);
  if (f != in->names.end()) return f->second;
  if (depth > 8) return nullptr;
  for (Scope* u : in->used)
    if (Entity* e = find_in(name, u, depth + 1)) return e;
  return nullptr;
}

Entity* Lower::find(const std::string& name, Scope* from) {
  for (Scope* s = from; s; s = s->parent)
    if (Entity* e = find_in(name, s)) return e;
  return nullptr;
}

namespace {
/* Everything of these is in the outermost scope, which itself has no name. */
bool is_library(const std::string& n) { return n.empty() || n == "metal" || n == "std" || n == "simd" || n == "mlx"; }
}  // namespace

Entity* Lower::resolve(const Path& path, bool must) {
  Scope* in = nullptr;
  for (size_t i = 0; i < path.segments.size(); i++) {
    const Segment& s = path.segments[i];
    bool last = i + 1 == path.segments.size();
    Entity* e = in ? find_in(s.name, in) : find(s.name, scope);
    if (!in && i == 0 && is_library(s.name) && !last && !e) {
      in = global;
      continue;
    }
    if (!e && !last && (s.name == "fast" || s.name == "precise" || s.name == "detail")) {
      in = global;
      continue;
    }
    if (!e) {
      if (must) fail(path.at, "'" + s.name + "' is not known here");
      return nullptr;
    }
    if (last) return e;
    if (e->kind == Entity::space || e->values) {
      in = e->values ? e->values : e->scope;
      continue;
    }
    const Type* t = entity_type(e, s, path.at);
    if (t->kind != Type::structure) fail(path.at, "'" + s.name + "' is no structure, so it has no members");
    complete(t->info, path.at);
    in = t->info->scope;
  }
  return nullptr;
}

/* ---- types ---- */

const Type* Lower::type_of(TypeNode* n, const Type* deduced) {
  if (++nesting > 2 * MAX_NESTING) fail(n->at, "this nests too deeply");
  struct Leave { uint32_t& n; ~Leave() { n--; } } leave{nesting};
  switch (n->kind) {
    case TypeNode::named: return named_type(n->path, n->at);
    case TypeNode::automatic:
      if (!deduced) fail(n->at, "auto has no value to be deduced from");
      return deduced;
    case TypeNode::declared: {
      bool before = folding;
      auto b = block_of([&] { deduced = eval(n->size).type(); });      // the code is dropped
      folding = before;
      return deduced;
    }
    case TypeNode::pointer: {
      const Type* of = n->inner->kind == TypeNode::automatic && deduced && deduced->kind == Type::pointer
                           ? deduced->of
                           : type_of(n->inner, deduced);
      Space space = n->inner->space;
      TypeNode* base = n->inner;
      while (base->inner) base = base->inner;
      if (space == Space::none && n->inner->kind == TypeNode::array) space = base->space;
      return pointer_to(of, space, n->inner->constant);
    }
    case TypeNode::reference: return type_of(n->inner, deduced);
    case TypeNode::array: {
      const Type* of = type_of(n->inner, deduced && deduced->kind == Type::array ? deduced->of : nullptr);
      if (!n->size) {
        if (!deduced || deduced->kind != Type::array) fail(n->at, "expected the array's size");
        return array_of(of, deduced->n);
      }
      Value v = constant_of(n->size, t_long, "an array's size");
      if (v.k[0].i < 0 || v.k[0].i > static_cast<int64_t>(MAX_ELEMENTS))
        fail(n->at, "an array of " + std::to_string(v.k[0].i) + " elements");
      return array_of(of, static_cast<uint32_t>(v.k[0].i));
    }
  }
  return t_void;
}

const Type* Lower::named_type(const Path& path, Place at) {
  const Segment& s = path.segments.back();
  bool found = false;
  const Type* t = trait_type(s.name, s, at, found);
  if (found && t) return t;
  if (path.segments.size() > 1) {                                      // conditional<...>::type and the like
    const Segment& o = path.segments[path.segments.size() - 2];
    t = s.name == "type" && o.has_args ? trait_type(o.name + "_t", o, at, found) : nullptr;
    if (t) return t;
  }
  Entity* e = resolve(path, false);
  if (e) return entity_type(e, s, at);
  t = builtin_type(s.name);
  if (t) return t;
  if (s.name == "double") fail(at, "double is outside the language");
  fail(at, "'" + path.text() + "' is no type that is known here");
}

const Type* Lower::entity_type(Entity* e, const Segment& s, Place at) {
  if (e->kind == Entity::type) {
    return e->t;
  }
  if (e->kind == Entity::struct_template) {
    if (!s.has_args) {                                                 // within itself
      for (Scope* k = scope; k; k = k->parent)
        if (k->info && k->info->decl && k->info->decl->name == s.name)
          for (auto& i : e->instances) if (i.second->info == k->info) return i.second;
      fail(at, "expected template arguments behind '" + s.name + "'");
    }
    return instantiate(e, arguments_of(s.args), at);
  }
  if (e->kind == Entity::alias_template) return instantiate(e, arguments_of(s.args), at);
  fail(at, "'" + s.name + "' is no type");
}

Argument Lower::argument_of(const TemplateArg& a) {
  Argument r;
  Entity* either = a.type && a.value ? resolve(a.type->path, false) : nullptr;
  if (a.type && !(either && either->kind == Entity::variable)) {
    r.type = type_of(a.type);
    return r;
  }
  if (a.value->kind == E::name) {  // the parser may not have known that it is a type
    Entity* e = resolve(a.value->path, false);
    if (e && e->kind == Entity::type) {
      r.type = e->t;
      return r;
    }
  }
  r.is_value = true;
  r.value = constant_of(a.value, nullptr, "a template's argument");
  return r;
}

std::vector<Argument> Lower::arguments_of(const std::vector<TemplateArg>& args) {
  std::vector<Argument> r;
  for (const TemplateArg& a : args) r.push_back(argument_of(a));
  return r;
}

std::string Lower::key_of(const std::vector<Argument>& args) {
  std::string key;
  for (const Argument& a : args) {
    if (!a.is_value) key += name_of(a.type);
    else if (a.value.type->is_float()) key += std::to_string(a.value.k[0].f);
    else key += a.value.type == t_bool ? (a.value.k[0].i ? "true" : "false") : std::to_string(a.value.k[0].i);
    key += ", ";
  }
  return key.substr(0, key.size() > 2 ? key.size() - 2 : 0);
}

bool Lower::same(const Argument& a, const Argument& b) {
  if (a.is_value != b.is_value) return false;
  if (!a.is_value) return a.type == b.type;
  return a.value.type->is_float() == b.value.type->is_float() && a.value.k[0].i == b.value.k[0].i;
}

void Lower::bind(Scope* in, const std::string& name, const Argument& a) {
  if (name.empty()) return;
  Entity* e = make_entity(in, name, a.is_value ? Entity::variable : Entity::type);
  e->t = a.is_value ? a.value.type : a.type;
  e->is_value = a.is_value;
  e->value = a.value;
}

/* ---- traits ---- */

const Type* Lower::trait_type(const std::string& name, const Segment& s, Place at, bool& found) {
  static const std::unordered_map<std::string, size_t> arity = {{"vec", 2},
                                                                {"packed_vec", 2},
                                                                {"atomic", 1},
                                                                {"conditional_t", 3},
                                                                {"enable_if_t", 1},
                                                                {"make_unsigned_t", 1},
                                                                {"make_signed_t", 1},
                                                                {"remove_cv_t", 1},
                                                                {"remove_reference_t", 1},
                                                                {"remove_const_t", 1},
                                                                {"decay_t", 1},
                                                                {"remove_volatile_t", 1}};
  auto f = arity.find(name);
  bool is_atomic_name = name.rfind("atomic_", 0) == 0;
  if (is_atomic_name) {
    const Type* of = name == "atomic_int" ? t_int : name == "atomic_uint" ? t_uint : name == "atomic_float" ? t_float :
                     name == "atomic_bool" ? t_bool : name == "atomic_ulong" ? t_ulong : nullptr;
    if (!of) return nullptr;
    found = true;
    Type t;
    t.kind = Type::atomic;
    t.of = of;
    return intern(t);
  }
  if (f == arity.end() || !s.has_args) return nullptr;
  found = true;
  std::vector<Argument> a = arguments_of(s.args);
  if (a.size() < f->second)
    fail(at, "expected " + std::to_string(f->second) + " template arguments behind '" + name + "'");
  if (name == "vec" || name == "packed_vec") {
    int64_t n = a[1].is_value ? a[1].value.k[0].i : 0;
    if (!a[0].type || !a[0].type->is_number() || n < 1 || n > 4) fail(at, "a vector has 1 to 4 numbers");
    return vector_of(a[0].type, static_cast<uint32_t>(n), name != "vec");
  }
  if (name == "conditional_t") return a[0].is_value && a[0].value.k[0].i ? a[1].type : a[2].type;
  if (name == "enable_if_t") {
    if (!a[0].is_value || !a[0].value.k[0].i) fail(at, "enable_if does not hold");
    return a.size() > 1 ? a[1].type : t_void;
  }
  if (!a[0].type) fail(at, "expected a type behind '" + name + "<'");
  if (name == "atomic") {
    Type t;
    t.kind = Type::atomic;
    t.of = a[0].type;
    if (!t.of->is_number()) fail(at, "atomic<" + name_of(t.of) + "> is outside the language");
    return intern(t);
  }
  if (name == "make_unsigned_t" || name == "make_signed_t") return integer(a[0].type->bytes, name == "make_signed_t");
  return a[0].type;
}

/* is_same<...>::value, is_same_v<...> and so on */
bool Lower::trait_value(const Path& path, Value& v) {
  static const std::unordered_map<std::string, int> traits = {
      {"is_same", 0},       {"is_floating_point", 1}, {"is_integral", 2}, {"is_signed", 3},  {"is_unsigned", 4},
      {"is_arithmetic", 5}, {"is_convertible", 6},    {"is_scalar", 5},   {"is_pointer", 7}, {"is_void", 8}};
  std::string name;
  const Segment* s = &path.segments.back();
  if (s->has_args && s->name.size() > 2 && s->name.substr(s->name.size() - 2) == "_v")
    name = s->name.substr(0, s->name.size() - 2);
  else if (s->name == "value" && path.segments.size() > 1) {
    s = &path.segments[path.segments.size() - 2];
    name = s->name;
  }
  auto f = traits.find(name);
  if (f == traits.end() || !s->has_args) return false;
  std::vector<Argument> a = arguments_of(s->args);
  for (const Argument& x : a) if (!x.type) fail(path.at, "expected a type behind '" + name + "<'");
  if (a.empty() || (a.size() < 2 && (f->second == 0 || f->second == 6)))
    fail(path.at, "expected template arguments behind '" + name + "'");
  const Type* t = a[0].type;
  bool r = false;
  switch (f->second) {
    case 0: r = t == a[1].type; break;
    case 1: r = t->is_float(); break;
    case 2: r = t->is_int(); break;
    case 3: r = t->is_float() || (t->kind == Type::integer && t->sign); break;
    case 4: r = t->is_int() && !t->sign; break;
    case 5: r = t->is_number(); break;
    case 6: r = t == a[1].type || (t->is_number() && a[1].type->is_number()); break;
    case 7: r = t->kind == Type::pointer; break;
    default: r = t->kind == Type::none; break;
  }
  v = constant_value(t_bool, r);
  return true;
}

/* ---- templates ---- */

namespace {
const TemplateParameter* parameter_named(const std::vector<TemplateParameter>& ps, const std::string& name) {
  for (const TemplateParameter& p : ps) if (p.name == name) return &p;
  return nullptr;
}
bool put(Bindings& b, const std::string& name, const Argument& a) {
  auto f = b.find(name);
  if (f == b.end()) {
    b[name] = a;
    return true;
  }
  if (f->second.is_value != a.is_value) return false;
  return a.is_value ? f->second.value.k[0].i == a.value.k[0].i : f->second.type == a.type;
}
}  // namespace

bool Lower::deduce_arg(const TemplateArg& pattern, const Argument& a, const std::vector<TemplateParameter>& ps,
                       Scope* in, Bindings& b) {
  bool type = pattern.type && !(pattern.value && a.is_value);
  if (type) return !a.is_value && deduce_type(pattern.type, a.type, ps, in, b);
  if (pattern.value->kind == E::name && pattern.value->path.segments.size() == 1 &&
      parameter_named(ps, pattern.value->path.segments[0].name))
    return put(b, pattern.value->path.segments[0].name, a);
  if (!a.is_value) return false;
  Scope* before = scope;
  scope = in;
  Value v = constant_of(pattern.value, nullptr, "a template's argument");
  scope = before;
  return v.k[0].i == a.value.k[0].i;
}

/* Finds template parameters in `n` so that it becomes `t`; false where it cannot. What names no parameter is not looked
 * at here: a conversion may do. */
bool Lower::deduce_type(TypeNode* n, const Type* t, const std::vector<TemplateParameter>& ps, Scope* in, Bindings& b) {
  if (n->kind == TypeNode::reference) return deduce_type(n->inner, t, ps, in, b);
  if (n->kind == TypeNode::pointer) {
    if (t->kind == Type::array) return deduce_type(n->inner, t->of, ps, in, b);
    return t->kind == Type::pointer && deduce_type(n->inner, t->of, ps, in, b);
  }
  if (n->kind == TypeNode::array) {
    if (t->kind == Type::pointer) return deduce_type(n->inner, t->of, ps, in, b);
    if (t->kind != Type::array) return false;
    if (n->size && n->size->kind == E::name && n->size->path.segments.size() == 1 &&
        parameter_named(ps, n->size->path.segments[0].name)) {
      Argument a;
      a.is_value = true;
      a.value = constant_value(t_int, t->n);
      if (!put(b, n->size->path.segments[0].name, a)) return false;
    }
    return deduce_type(n->inner, t->of, ps, in, b);
  }
  if (n->kind != TypeNode::named) return true;
  const Segment& s = n->path.segments.back();
  if (n->path.segments.size() == 1 && !s.has_args && parameter_named(ps, s.name)) {
    Argument a;
    a.type = t;
    return put(b, s.name, a);
  }
  if (!s.has_args) return true;
  if (s.name == "vec") {
    if (t->kind != Type::vector || s.args.size() != 2) return false;
    Argument of, count;
    of.type = t->of;
    count.is_value = true;
    count.value = constant_value(t_int, t->n);
    return deduce_arg(s.args[0], of, ps, in, b) && deduce_arg(s.args[1], count, ps, in, b);
  }
  if (s.name == "atomic") {
    Argument of;
    of.type = t->of;
    return t->kind == Type::atomic && s.args.size() == 1 && deduce_arg(s.args[0], of, ps, in, b);
  }
  Scope* before = scope;
  scope = in;
  Entity* e = resolve(n->path, false);
  scope = before;
  if (!e || e->kind != Entity::struct_template || t->kind != Type::structure || !t->info->scope) return true;
  const Struct* d = e->structure;
  if (t->info->name.rfind(d->name + "<", 0)) return false;
  for (size_t i = 0; i < s.args.size() && i < d->templates.size(); i++) {
    Entity* bound = find_in("$" + std::to_string(i), t->info->scope->parent);
    if (!bound) return true;
    Argument a;
    a.is_value = bound->is_value;
    a.type = bound->t;
    a.value = bound->value;
    if (!deduce_arg(s.args[i], a, ps, in, b)) return false;
  }
  return true;
}

const Type* Lower::instantiate(Entity* e, std::vector<Argument> args, Place at) {
  const std::vector<TemplateParameter>& ps =
      e->kind == Entity::alias_template ? e->alias->parameters : e->structure->templates;
  if (args.size() > ps.size())
    fail(at, "too many template arguments: " + std::to_string(args.size()) + ", not " + std::to_string(ps.size()));
  if (++calls > 4 * MAX_CALLS) fail(at, "templates nest too deeply");
  struct Leave { uint32_t& n; ~Leave() { n--; } } leave{calls};
  Scope* in = push_scope(e->scope);
  Scope* before = scope;
  scope = in;
  for (size_t i = 0; i < ps.size(); i++) {
    if (i >= args.size()) {
      if (!ps[i].preset.type && !ps[i].preset.value) fail(at, "expected a template argument for '" + ps[i].name + "'");
      args.push_back(argument_of(ps[i].preset));
    }
    if (!args[i].is_value && !ps[i].is_type) fail(at, "expected a value for the template's '" + ps[i].name + "'");
    if (args[i].is_value && ps[i].is_type) fail(at, "expected a type for the template's '" + ps[i].name + "'");
    if (args[i].is_value) args[i].value = convert(args[i].value, type_of(ps[i].type), at);
    bind(in, ps[i].name, args[i]);
    bind(in, "$" + std::to_string(i), args[i]);
  }
  scope = before;
  if (e->kind == Entity::alias_template) {
    scope = in;
    const Type* t = type_of(e->alias->type);
    scope = before;
    return t;
  }
  std::string key = key_of(args);
  auto found = e->instances.find(key);
  if (found != e->instances.end()) return found->second;
  if (e->instances.size() > 2000) fail(at, "too many instances of a template");
  Struct* chosen = e->structure;
  Scope* chosen_scope = in;
  for (Struct* s : e->specializations) {
    Bindings b;
    bool fits = s->specialized.size() <= args.size();
    for (size_t i = 0; fits && i < s->specialized.size(); i++) {
      fits = deduce_arg(s->specialized[i], args[i], s->templates, e->scope, b);
      if (fits && s->specialized[i].type && !args[i].is_value &&
          s->specialized[i].type->kind == TypeNode::named) {  // not a parameter: equal
        const Path& p = s->specialized[i].type->path;
        if (!(p.segments.size() == 1 && parameter_named(s->templates, p.segments[0].name)) &&
            !p.segments.back().has_args) {
          scope = e->scope;
          fits = type_of(s->specialized[i].type) == args[i].type;
          scope = before;
        }
      }
    }
    if (!fits) continue;
    chosen = s;
    chosen_scope = push_scope(e->scope);
    for (auto& x : b) bind(chosen_scope, x.first, x.second);
    for (size_t i = 0; i < args.size(); i++) bind(chosen_scope, "$" + std::to_string(i), args[i]);
    if (s->templates.empty()) break;
  }
  Type t;
  t.kind = Type::structure;
  infos.emplace_back();
  StructInfo* info = &infos.back();
  t.info = info;
  info->name = e->structure->name + "<" + key + ">";
  info->decl = chosen;
  info->scope = push_scope(chosen_scope);
  info->scope->info = info;
  const Type* made = intern(t);
  e->instances[key] = made;
  return made;
}

/* ---- declarations ---- */

const Type* Lower::make_struct(Struct* s, Scope* in, const std::string& name) {
  infos.emplace_back();
  StructInfo* info = &infos.back();
  info->name = name;
  info->decl = s;
  info->scope = push_scope(in);
  info->scope->info = info;
  Type t;
  t.kind = Type::structure;
  t.info = info;
  return intern(t);
}

void Lower::declare_type(Stmt* s, Scope* in) {
  if (s->kind == S::structure) {
    Struct* d = s->structure;
    auto own = in->names.find(d->name);
    if (d->is_specialization) {
      Entity* e = find(d->name, in);
      if (!e || e->kind != Entity::struct_template) fail(d->at, "there is no template '" + d->name + "' to specialize");
      e->specializations.push_back(d);
    } else if (d->is_template) {
      Entity* e = own != in->names.end() ? own->second : make_entity(in, d->name, Entity::struct_template);
      if (!e->structure || e->structure->members.size() + e->structure->methods.size() == 0) e->structure = d;
    } else {
      make_entity(in, d->name, Entity::type)->t = make_struct(d, in, d->name);
    }
  } else if (s->kind == S::alias) {
    if (s->a) declare_type(s->a, in);                                  // typedef struct S { ... } *P
    if (!s->alias->type) {                                             // using a::b
      Entity* e = resolve(s->e->path, false);
      if (e) in->names[s->alias->name] = e;
    } else if (s->alias->parameters.empty()) {
      const Type* t = type_of(s->alias->type);
      make_entity(in, s->alias->name, Entity::type)->t = t;
    } else {
      make_entity(in, s->alias->name, Entity::alias_template)->alias = s->alias;
    }
  } else if (s->kind == S::using_namespace) {
    Entity* e = resolve(s->e->path, false);
    if (e && e->kind == Entity::space && e->scope != in) in->used.push_back(e->scope);
  } else if (s->kind == S::enumeration) {
    const Enumeration* n = s->enumeration;
    const Type* base = n->base ? type_of(n->base) : t_int;
    Entity* type = make_entity(in, n->name, Entity::type);
    type->t = base;
    type->values = push_scope(in);
    int64_t next = 0;
    for (auto& v : n->values) {
      if (v.second) next = constant_of(v.second, base, "an enumeration's value").k[0].i;
      Entity* e = make_entity(type->values, v.first, Entity::variable);
      if (!n->scoped) in->names[v.first] = e;
      e->is_value = true;
      e->t = base;
      e->value = constant_value(base, next);
      next = static_cast<int64_t>(static_cast<uint64_t>(next) + 1);
    }
  }
}

void Lower::declare_function(Function* f, Scope* in) {
  auto own = in->names.find(f->name);
  Entity* e = own != in->names.end() && own->second->kind == Entity::functions
                  ? own->second
                  : make_entity(in, f->name, Entity::functions);
  if (f->body || !f->is_template) e->list.push_back({f, in, in->info});
  if (f->is_kernel) kernels.push_back(f);
}

void Lower::declare_items(const std::vector<Item>& items, Scope* in) {
  Scope* before = scope;
  scope = in;
  for (const Item& i : items) {
    count_step(i.at);
    if (i.kind == Item::function) {
      declare_function(i.f, in);
    } else if (i.kind == Item::instance) {
      instances.emplace_back(i.name, i.path);
    } else if (i.kind == Item::space) {
      if (i.name.empty() || is_library(i.name)) {
        declare_items(i.items, in);
        continue;
      }
      auto own = in->names.find(i.name);
      Entity* e = own != in->names.end() ? own->second : make_entity(in, i.name, Entity::space);
      if (e->kind != Entity::space) fail(i.at, "'" + i.name + "' is something else already");
      if (own == in->names.end()) e->scope = push_scope(in);
      declare_items(i.items, e->scope);
    } else if (i.s->kind == S::variables || i.s->kind == S::assertion) {
      run(i.s);
    } else {
      declare_type(i.s, in);
    }
  }
  scope = before;
}

/* ---- structures ---- */

/* Members, once they are needed: a template's may not be possible before. */
void Lower::complete(StructInfo* info, Place at) {
  if (info->complete) return;
  info->complete = true;
  Struct* d = info->decl;
  if (++calls > 4 * MAX_CALLS) fail(at, "structures nest too deeply");
  struct Leave { uint32_t& n; ~Leave() { n--; } } leave{calls};
  Scope* before = scope;
  scope = info->scope;
  for (TypeNode* b : d->bases) {
    const Type* t = type_of(b);
    if (t->kind != Type::structure) fail(b->at, "a base that is no structure");
    complete(t->info, b->at);
    for (const Member& m : t->info->members) info->members.push_back(m);
    info->methods.insert(t->info->methods.begin(), t->info->methods.end());
    info->scope->used.push_back(t->info->scope);
    info->size = t->info->size;
    info->align = t->info->align;
  }
  for (Stmt* s : d->types) {
    if (s->kind == S::assertion) run(s);
    else declare_type(s, info->scope);
  }
  for (Function* f : d->methods) {
    if (f->is_constructor) info->constructors.push_back(f);
    else if (f->is_static) declare_function(f, info->scope);
    else info->methods[f->name].push_back(f);
  }
  for (const Variable& v : d->members) {
    if (v.is_static || v.is_constexpr) {
      Entity* e = make_entity(info->scope, v.name, Entity::variable);
      e->pending = &v;
      e->pending_scope = info->scope;
      continue;
    }
    Member m;
    m.name = v.name;
    m.type = type_of(v.type);
    if (v.type->kind == TypeNode::reference) fail(v.at, "members that are references are outside the language");
    if (m.type->kind == Type::structure && m.type->info == info) fail(v.at, "a structure within itself");
    m.init = v.init;
    uint32_t a = align_of(m.type, v.at), size = size_of(m.type, v.at);
    m.offset = (info->size + a - 1) / a * a;
    info->size = m.offset + size;
    if (info->size > 1u << 30) fail(v.at, "this structure is too large");
    info->align = std::max(info->align, a);
    info->members.push_back(m);
  }
  info->size = std::max(1u, (info->size + info->align - 1) / info->align * info->align);
  scope = before;
}

/* A static member's value, when somebody asks for it. */
void Lower::force(Entity* e, Place at) {
  if (!e->pending) return;
  const Variable* v = e->pending;
  e->pending = nullptr;
  Scope* before = scope;
  scope = e->pending_scope;
  const Type* t = v->type->kind == TypeNode::automatic ? nullptr : type_of(v->type);
  if (!v->init) fail(v->at, "a static member without a value");
  bool was = folding;
  folding = true;
  Value value = t ? initial(*v, t) : rvalue(v->init);
  folding = was;
  if (value.kind != Value::constant && value.kind != Value::aggregate) fail(at, "'" + v->name + "' is no constant");
  e->is_value = true;
  e->value = value;
  e->t = value.type;
  scope = before;
}

const Member* Lower::member_of(const Type* t, const std::string& name, uint32_t& index) {
  for (index = 0; index < t->info->members.size(); index++)
    if (t->info->members[index].name == name) return &t->info->members[index];
  return nullptr;
}

}  // namespace metal
