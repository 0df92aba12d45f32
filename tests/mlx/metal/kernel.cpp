/* The kernel function: its parameters, and the way from a source to words.            SPDX-License-Identifier: MIT */
#include <algorithm>
#include <sstream>

#include "lower.h"

namespace metal {

/* ---- what a thread knows of itself ---- */

Value Lower::builtin_value(Builtin b) {
  auto read = [&](Builtin what) {
    return reg_value(t_uint, emit(BUILTIN, {Base::u32, 1}, {}, static_cast<uint16_t>(what)));
  };
  auto number = [&](uint32_t v) { return constant_value(t_uint, v); };
  if (!options.folded || b > Builtin::groups_z || (b >= Builtin::local_x && b <= Builtin::local_z)) return read(b);
  if (b == Builtin::groups_x) {
    const uint32_t side = options.threads[0];
    return binary_numbers("/", binary_numbers("+", info_word(0), number(side - 1), {}), number(side), {});
  }
  if (static_cast<uint32_t>(b) % 3) return number(b > Builtin::group_z);               // y or z
  Value group = binary_numbers("*", read(Builtin::group_y), number(options.folded), {});
  group = binary_numbers("+", group, read(Builtin::group_x), {});
  if (b == Builtin::group_x) return group;
  return binary_numbers("+", binary_numbers("*", group, number(options.threads[0]), {}), read(Builtin::local_x), {});
}

Value Lower::info_word(uint32_t word) {
  uint32_t base = emit(PUSH, {Base::u32, 1}, {info_binding});
  uint32_t at = emit(128, {Base::u32, 1}, {base, constant_u32(word)});
  return reg_value(t_uint, emit(LOAD_BUFFER, {Base::u32, 1}, {info_binding, 4, at}));
}

Value Lower::attribute_value(const std::string& name, Place at) {
  static const std::unordered_map<std::string, Builtin> threes = {
      {"thread_position_in_grid", Builtin::position_x}, {"thread_position_in_threadgroup", Builtin::local_x},
      {"threadgroup_position_in_grid", Builtin::group_x}, {"threadgroups_per_grid", Builtin::groups_x}};
  static const std::unordered_map<std::string, Builtin> ones = {
      {"thread_index_in_threadgroup", Builtin::index}, {"thread_index_in_simdgroup", Builtin::lane},
      {"simdgroup_index_in_threadgroup", Builtin::simdgroup}};
  const uint32_t* g = options.threads;
  uint32_t total = g[0] * g[1] * g[2];
  const Type* uint3 = vector_of(t_uint, 3);
  auto three = [&](const std::vector<Value>& v) { return join(uint3, v, at); };
  auto number = [&](uint32_t v) { return constant_value(t_uint, v); };
  auto f = threes.find(name);
  if (f != threes.end()) {
    std::vector<Value> v;
    for (int i = 0; i < 3; i++) v.push_back(builtin_value(static_cast<Builtin>(static_cast<int>(f->second) + i)));
    return three(v);
  }
  auto o = ones.find(name);
  if (o != ones.end()) return builtin_value(o->second);
  if (name == "threads_per_grid" || name == "grid_size") return three({info_word(0), info_word(1), info_word(2)});
  if (name == "dispatch_threads_per_threadgroup") return three({number(g[0]), number(g[1]), number(g[2])});
  if (name == "threads_per_threadgroup") {
    std::vector<Value> v;
    for (uint32_t i = 0; i < 3; i++) {
      if (options.whole[i]) { v.push_back(number(g[i])); continue; }
      Value first = binary_numbers(
          "*", builtin_value(static_cast<Builtin>(static_cast<int>(Builtin::group_x) + static_cast<int>(i))),
          number(g[i]), at);
      Value left = binary_numbers("-", info_word(i), first, at);
      v.push_back(reg_value(t_uint, emit(EXTENDED + 38, {Base::u32, 1}, {id_of(left, at), constant_u32(g[i])})));
    }
    return three(v);
  }
  if (name == "grid_origin") return zero(uint3, at);
  if (name == "simdgroups_per_threadgroup" || name == "dispatch_simdgroups_per_threadgroup")
    return number((total + 31) / 32);
  if (name == "quadgroups_per_threadgroup" || name == "dispatch_quadgroups_per_threadgroup")
    return number((total + 3) / 4);
  if (name == "thread_execution_width" || name == "threads_per_simdgroup") return number(32);
  if (name == "thread_index_in_quadgroup") return binary_numbers("&", builtin_value(Builtin::lane), number(3), at);
  if (name == "quadgroup_index_in_threadgroup") {
    Value first = binary_numbers("*", builtin_value(Builtin::simdgroup), number(8), at);
    return binary_numbers("+", first, binary_numbers("/", builtin_value(Builtin::lane), number(4), at), at);
  }
  fail(at, "[[" + name + "]] is outside the language");
}

void Lower::attribute_parameter(const Parameter& p, const Type* t, Scope* in) {
  Value v = attribute_value(p.attribute, p.at);
  if (v.type->kind == Type::vector && v.type != t) {
    std::vector<Value> parts;
    for (uint32_t i = 0; i < std::min(width(t), 3u); i++)
      parts.push_back(convert(component(v, i, p.at), scalar(t), p.at, true));
    v = join(t, parts, p.at);
  }
  v = convert(v, t, p.at, true);
  Entity* e = make_entity(in, p.name, Entity::variable);
  e->t = t;
  e->place = fresh_place(t, p.at);
  store(e->place, v, p.at);
}

/* ---- arrays ---- */

void Lower::array_parameter(const Parameter& p, const Type* t, bool reference, Scope* in, Program& program) {
  TypeNode* inner = p.type->inner;
  const Type* of = reference ? t : t->of;
  bool constant = inner->constant || inner->space == Space::constant;
  auto bytes = info_words.find(static_cast<uint32_t>(p.index));
  Target target;
  Pointer pointer;
  target.unit = align_of(of, p.at);
  if (bytes != info_words.end()) {
    target.binding = info_binding;
    target.unit = std::min(target.unit, 4u);
    target.readonly = true;
    uint32_t base = emit(PUSH, {Base::u32, 1}, {info_binding});
    pointer.index = scale(add({base, 0}, {0, bytes->second}), 4 / target.unit);
  } else {
    auto& list = constant ? program.inputs : program.outputs;
    uint32_t k =
        static_cast<uint32_t>(std::find(list.begin(), list.end(), static_cast<uint32_t>(p.index)) - list.begin());
    target.binding = constant ? k : static_cast<uint32_t>(program.inputs.size()) + (program.info ? 1 : 0) + k;
    target.readonly = inner->space == Space::constant;
    pointer.index.id = emit(PUSH, {Base::u32, 1}, {target.binding});
  }
  pointer.targets.push_back(target);
  Value v;
  v.kind = Value::pointer;
  v.type = pointer_to(of, inner->space, constant);
  v.p = std::make_shared<Pointer>(pointer);
  Entity* e = make_entity(in, p.name, Entity::variable);
  e->t = reference ? of : v.type;
  if (reference) {
    e->place = dereference(v, p.at);
    return;
  }
  e->place = fresh_place(v.type, p.at);
  store(e->place, v, p.at);
}

void Lower::kernel_parameters(Function* f, Scope* in, Program& program) {
  int next = 0;
  for (Parameter& p : f->parameters) {                                 // first which there are
    bool array = p.type->kind == TypeNode::pointer || p.type->kind == TypeNode::reference;
    if (!array) continue;
    if (p.index < 0) p.index = next;
    next = p.index + 1;
    if (p.type->inner->space == Space::threadgroup)
      fail(p.at, "threadgroup memory as a parameter of a kernel is outside the language");
    if (info_words.count(static_cast<uint32_t>(p.index))) continue;
    bool constant = p.type->inner->constant || p.type->inner->space == Space::constant;
    auto& list = constant ? program.inputs : program.outputs;
    list.push_back(static_cast<uint32_t>(p.index));
  }
  info_binding = static_cast<uint32_t>(program.inputs.size());
  code.bindings = static_cast<uint32_t>(program.inputs.size() + program.outputs.size()) + (program.info ? 1 : 0);
  code.inputs = info_binding;
  code.written.assign(code.bindings + 1, false);
  if (code.bindings > 31) fail(f->at, "more than 31 arrays, shapes included");
  for (const Parameter& p : f->parameters) {
    const Type* t = type_of(p.type);
    if (p.type->kind == TypeNode::pointer || p.type->kind == TypeNode::reference)
      array_parameter(p, t, p.type->kind == TypeNode::reference, in, program);
    else if (p.attribute.empty()) fail(p.at, "expected an attribute behind '" + p.name + "'");
    else attribute_parameter(p, t, in);
  }
}

void Lower::run_kernel(const std::string& name, Program& program) {
  Function* f = nullptr;
  const Segment* arguments = nullptr;
  std::string function = name;
  for (auto& i : instances)
    if (i.first == name || i.second.segments.back().name == name || instances.size() == 1) {
      function = i.second.segments.back().name;
      arguments = &i.second.segments.back();
    }
  for (Function* k : kernels) if (k->name == function || (!f && kernels.size() == 1)) f = k;
  if (!f) fail({1, 1, 0}, "there is no [[kernel]] function '" + name + "'");
  if (!f->body) fail(f->at, "the kernel has no body");
  Scope* in = push_scope(global);
  scope = in;
  std::vector<Argument> args;
  if (arguments) args = arguments_of(arguments->args);
  for (size_t i = 0; i < f->templates.size(); i++) {
    const TemplateParameter& t = f->templates[i];
    if (i >= args.size()) fail(f->at, "expected a template argument for '" + t.name + "'");
    if (args[i].is_value == t.is_type) fail(f->at, "the template argument for '" + t.name + "' is of another kind");
    if (args[i].is_value) args[i].value = convert(args[i].value, type_of(t.type), f->at);
    bind(in, t.name, args[i]);
  }
  Frame frame;
  frame.result = t_void;
  frame.is_kernel = true;
  frames.push_back(&frame);
  blocks.push_back(&code.main);
  bool whole = options.whole[0] && options.whole[1] && options.whole[2];
  program.info = !options.bytes.empty() || !whole;
  for (const Parameter& p : f->parameters)
    program.info = program.info || p.attribute == "threads_per_grid" || p.attribute == "grid_size";
  code.has_info = program.info;
  program.info_words = program.info ? 4 : 0;
  for (auto& b : options.bytes) {
    info_words[b.first] = program.info_words;
    program.info_words += (b.second + 7) / 8 * 2;
  }
  scope = push_scope(in);
  in = scope;
  kernel_parameters(f, in, program);
  for (uint32_t i = 0; i < 3; i++) {
    if (options.whole[i]) continue;
    Value inside = binary_numbers("<", builtin_value(static_cast<Builtin>(i)), info_word(i), f->at);
    emit_if(id_of(inside, f->at), [] {}, [&] { emit(RETURN, {}, {}); });
  }
  run(f->body);
  blocks.pop_back();
  frames.pop_back();
}

/* ---- errors ---- */

namespace {

std::string line_of(const std::string& source, uint32_t line) {
  std::istringstream in(source);
  std::string text;
  for (uint32_t i = 0; i < line; i++) if (!std::getline(in, text)) return "";
  return text;
}

std::string shown(const Error& e, const std::string& source, const std::string& name) {
  std::string text = e.at.file ? "prelude" : name;
  text += ":" + std::to_string(e.at.line) + ":" + std::to_string(e.at.column) + ": error: " + e.text + "\n";
  std::string line = line_of(e.at.file ? prelude : source, e.at.line);
  if (line.size() > 300) line = line.substr(0, 300) + "...";
  for (char& c : line) if (static_cast<unsigned char>(c) < 32) c = ' ';
  uint32_t column = e.at.column ? e.at.column : 1;
  return text + "    " + line + "\n    " + std::string(std::min(column - 1, 300u), ' ') + "^";
}

void compile_into(Program& p, const std::string& source, const std::string& kernel, Options options) {
  Tree tree;
  Names names;
  Macros macros;
  if (options.fast_math) preprocess(lex("#define __FAST_MATH__ 1\n", 1), macros, options.exact);
  std::vector<Item> library = parse(preprocess(lex(prelude, 1), macros, options.exact), tree, names);
  std::vector<Item> items = parse(preprocess(lex(source, 0), macros, options.exact), tree, names);
  Findings findings;
  for (int attempt = 0; attempt < 8; attempt++) {
    std::deque<Type> types;
    Lower l(options, tree, types, findings);
    l.make_types();
    l.global = l.push_scope(nullptr);
    l.scope = l.global;
    l.declare_items(library, l.global);
    l.declare_items(items, l.global);
    p = Program();
    l.run_kernel(kernel, p);
    if (l.pointer_found) continue;
    if (!l.null_uses.empty()) throw l.null_uses[0];
    for (uint32_t k = 0; k < p.inputs.size(); k++) if (l.code.written[k]) p.written.push_back(k);
    make_uniform(l.code, options);
    p.words = write_spirv(l.code, options, p.shared_bytes);
    return;
  }
  fail({1, 1, 0}, "pointers that point to too many arrays");
}

}  // namespace

Program compile(const std::string& source, const std::string& kernel, const Options& options) {
  Program p;
  try {
    compile_into(p, source, kernel, options);
  } catch (const Error& e) {
    p = Program();
    p.error = shown(e, source, kernel);
    p.line = e.at.line;
    p.column = e.at.column;
  }
  return p;
}

}  // namespace metal
