/* The syntax tree to code: names, types, templates, constants, and everything inlined.  SPDX-License-Identifier: MIT */
#pragma once

#include <functional>

#include "ir.h"
#include "metal.h"

namespace metal {

struct Scope;
struct StructInfo;

struct Type {
  enum Kind : uint8_t {
    none,
    boolean,
    integer,
    real,
    half,
    bfloat,
    vector,
    array,
    pointer,
    structure,
    atomic,
    lambda,
    null,
    list,
    text
  } kind = none;
  uint8_t bytes = 0;                           // of a number
  bool sign = false, packed = false, constant = false;   // constant: what a pointer points to
  Space space = Space::none;
  const Type* of = nullptr;
  uint32_t n = 1;
  StructInfo* info = nullptr;
  bool is_number() const { return kind >= boolean && kind <= bfloat; }
  bool is_float() const { return kind >= real && kind <= bfloat; }
  bool is_int() const { return kind == integer || kind == boolean; }
};

struct Value;
struct Node;

/* Where a pointer may point. */
struct Target {
  enum Kind : uint8_t { buffer, memory } kind = buffer;
  uint32_t binding = 0, offset = 0;            // a buffer's; offset is in bytes
  uint32_t unit = 1;                           // of bytes, which a buffer's index counts, and one of packed vectors that
                                               // are laid over a variable; 0: another variable's, which counts elements
  bool readonly = false;
  Node* node = nullptr;
  uint32_t number = 0;                         // of a node that an earlier run found: node is null until it is made
  const Type* view = nullptr;                  // a node seen as other numbers than it has
  Type seen;                                   // the view that an earlier run found: of its numbers, n of them
  bool operator==(const Target& o) const {
    return kind == o.kind && binding == o.binding && unit == o.unit && offset == o.offset && node == o.node &&
           view == o.view;
  }
};

/* An index into something: a constant or a value of 32 bits. */
struct Index {
  uint32_t id = 0;                             // 0: k
  int64_t k = 0;
};

struct Pointer {
  std::vector<Target> targets;
  uint32_t tag = 0;                            // which of several, NOWHERE of null; a value where one of them may be
  Index index;
  bool may_be_null = false;
};
constexpr uint32_t NOWHERE = 0xffffffff;

/* What runs found out about variables, for the next. Where a pointer is null in one run and not in another, other ifs
   are followed: variables are told apart by where they are, and in which calls, not by counting them. */
struct Findings {
  struct Variable {                            // a pointer
    std::vector<Target> targets;
    bool may_be_null = false;
  };
  std::map<uint32_t, Variable> pointers;       // by number
  std::map<std::string, uint32_t> numbers;     // of variables
  std::map<std::string, uint32_t> calls;
};

struct Lambda {
  Function* function = nullptr;
  Scope* scope = nullptr;
  StructInfo* self_type = nullptr;
};

union Number {
  int64_t i;
  double f;
};

struct Value {
  enum Kind : uint8_t { none, constant, reg, aggregate, pointer, lambda, null } kind = none;
  const Type* type = nullptr;
  uint32_t id = 0;
  Number k[4] = {{0}, {0}, {0}, {0}};
  std::shared_ptr<std::vector<Value>> parts;   // of a structure, an array, a list in braces
  std::shared_ptr<Pointer> p;
  Lambda l;
};

/* Memory of a variable: structures are apart, arrays flat, so that an index is all that a pointer needs. */
struct Node {
  const Type* type = nullptr;                  // no array
  Space space = Space::thread;
  uint32_t count = 0;                          // 0: no array
  std::vector<Node*> members;
  uint32_t slot = 0, number = 0;
  bool constant = false;
  /* a pointer */
  std::vector<Target> targets;
  uint32_t index_slot = 0, tag_slot = 0, loops = 0;                // how many it is made in
  bool is_set = false, may_be_null = false, was_null = false;      // was_null: where a loop may come again
};

struct Place_ {                                // something that can be stored to
  const Type* type = nullptr;
  std::vector<Target> targets;
  uint32_t tag = 0;
  Index index;
  bool constant = false, indexed = false, may_be_null = false;         // where a pointer points that may be
  Value* cell = nullptr;                       // a variable of constant evaluation
  std::vector<uint8_t> swizzle;
  bool has_component = false;
  Index component;
};

struct Operand {
  bool is_place = false;
  Place_ place;
  Value value;
  const Type* type() const { return is_place ? place.type : value.type; }
};

struct FunctionIn {                            // a function and where its names are looked up
  Function* f = nullptr;
  Scope* scope = nullptr;
  StructInfo* self_type = nullptr;
};

struct Entity {
  enum Kind : uint8_t { variable, type, functions, struct_template, alias_template, space } kind = variable;
  const Type* t = nullptr;
  bool is_value = false;                       // of a variable: it is `value`, which never changes
  Value value;
  Place_ place;
  Node* lazy = nullptr;                        // memory of a constant array, where an index is not constant
  std::vector<FunctionIn> list;
  Struct* structure = nullptr;
  std::vector<Struct*> specializations;
  Alias* alias = nullptr;
  Scope* scope = nullptr;                      // of a space; where a template is
  Scope* values = nullptr;                     // of an enumeration
  std::map<std::string, const Type*> instances;
  /* a static member, made when it is asked for */
  const Variable* pending = nullptr;
  Scope* pending_scope = nullptr;
};

struct Scope {
  Scope* parent = nullptr;
  std::unordered_map<std::string, Entity*> names;
  std::vector<Scope*> used;                    // using namespace
  StructInfo* info = nullptr;                  // members of this
  const Place_* self = nullptr;
};

struct Member {
  std::string name;
  const Type* type = nullptr;
  uint32_t offset = 0;
  Expr* init = nullptr;
};
struct StructInfo {
  std::string name;
  Struct* decl = nullptr;
  Scope* scope = nullptr;
  std::vector<Member> members;
  std::unordered_map<std::string, std::vector<Function*>> methods;
  std::vector<Function*> constructors;
  uint32_t size = 0, align = 1;
  bool complete = false;
};

/* A template's arguments. */
struct Argument {
  const Type* type = nullptr;
  bool is_value = false;
  Value value;
};
using Bindings = std::map<std::string, Argument>;

/* Where return goes while a function is inlined. */
struct Frame {
  const Type* result = nullptr;                // none: deduced by the first return
  uint32_t region = 0;
  bool deduced = false, has_value = false, used_region = false, by_reference = false;
  Node* storage = nullptr;
  Value value;
  Operand reference;
  bool single = false;                         // the only return is the last statement
  bool is_kernel = false;
};

enum class Flow : uint8_t { next, break_, continue_, return_ };

struct Restart {};                             // a pointer variable turned out to have more than one target

struct Lower {
  const Options& options;
  Code code;
  Tree& tree;
  std::deque<Type>& types;
  std::map<std::string, const Type*> interned;
  std::deque<Scope> scopes;
  std::deque<Entity> entities;
  std::deque<Node> nodes;
  std::deque<StructInfo> infos;
  std::deque<Place_> selves;
  std::deque<Value> cells;                     // variables of constant evaluation
  Scope *global = nullptr, *scope = nullptr;
  std::vector<Block*> blocks;
  std::vector<Frame*> frames;
  struct Jump {
    uint32_t region;
    bool is_loop;
    uint32_t next;
  };  // next: left where a loop goes on, 0: the loop itself does
  std::vector<Jump> jumps;
  bool folding = false, reachable = true;
  uint32_t steps = 0, calls = 0, nesting = 0, loops = 0;
  Findings& findings;
  std::map<uint32_t, Node*> numbered;           // nodes by their numbers
  std::map<std::string, uint32_t> made;         // how many so far there
  uint32_t inside = 0;                          // which call this is in
  std::vector<std::pair<std::string, Path>> instances;
  std::vector<Function*> kernels;
  struct Bytes { uint32_t word; };
  std::map<uint32_t, uint32_t> info_words;      // buffer -> its first word in the info
  uint32_t info_binding = 0;
  bool pointer_found = false;
  uint32_t dropped_code = 0;                    // within the side of ?: that a constant leaves out
  std::vector<Error> null_uses;                 // errors, unless a next run knows where these pointers point

  Lower(const Options& o, Tree& t, std::deque<Type>& y, Findings& k)
      : options(o), tree(t), types(y), findings(k) {}

  /* ---- types.cpp ---- */
  const Type* intern(const Type& t);
  const Type *t_void, *t_bool, *t_int, *t_uint, *t_long, *t_ulong, *t_float, *t_half, *t_bfloat, *t_null, *t_text,
      *t_lambda, *t_list;
  void make_types();
  const Type* integer(uint32_t bytes, bool sign);
  const Type* vector_of(const Type* of, uint32_t n, bool packed = false);
  const Type* array_of(const Type* of, uint32_t n);
  const Type* pointer_to(const Type* of, Space space, bool constant);
  const Type* builtin_type(const std::string& name);
  uint32_t size_of(const Type* t, Place at);
  uint32_t align_of(const Type* t, Place at);
  std::string name_of(const Type* t);
  Reg reg(const Type* t, Place at);
  const Type* scalar(const Type* t) { return t->kind == Type::vector ? t->of : t; }
  uint32_t width(const Type* t) { return t->kind == Type::vector ? t->n : 1; }

  /* ---- names.cpp ---- */
  Scope* push_scope(Scope* parent);
  Entity* find(const std::string& name, Scope* from);
  Entity* find_in(const std::string& name, Scope* in, int depth = 0);
  Entity* make_entity(Scope* in, const std::string& name, Entity::Kind kind);
  Entity* resolve(const Path& path, bool must = true);
  const Type* type_of(TypeNode* n, const Type* deduced = nullptr);
  const Type* named_type(const Path& path, Place at);
  const Type* entity_type(Entity* e, const Segment& s, Place at);
  const Type* instantiate(Entity* e, std::vector<Argument> args, Place at);
  const Type* trait_type(const std::string& name, const Segment& s, Place at, bool& found);
  bool trait_value(const Path& path, Value& v);
  std::vector<Argument> arguments_of(const std::vector<TemplateArg>& args);
  Argument argument_of(const TemplateArg& a);
  void bind(Scope* in, const std::string& name, const Argument& a);
  bool deduce(TypeNode* n, const Type* t, const Function& f, Scope* in, Bindings& b);
  bool deduce_arg(const TemplateArg& pattern, const Argument& a, const std::vector<TemplateParameter>& ps, Scope* in,
                  Bindings& b);
  bool deduce_type(TypeNode* n, const Type* t, const std::vector<TemplateParameter>& ps, Scope* in, Bindings& b);
  bool same(const Argument& a, const Argument& b);
  std::string key_of(const std::vector<Argument>& args);
  void declare_items(const std::vector<Item>& items, Scope* in);
  void declare_type(Stmt* s, Scope* in);
  void declare_function(Function* f, Scope* in);
  const Type* make_struct(Struct* s, Scope* in, const std::string& name);
  void complete(StructInfo* info, Place at);
  void force(Entity* e, Place at);
  const Member* member_of(const Type* t, const std::string& name, uint32_t& index);

  /* ---- emitting ---- */
  uint32_t emit(uint16_t op, Reg t, std::initializer_list<uint32_t> args, uint16_t imm = 0, Place at = {});
  uint32_t constant(Reg t, const uint64_t* bits);
  uint32_t constant_u32(uint32_t v);
  uint32_t constant_bool(bool v);
  uint32_t splat(Reg t, uint64_t bits);
  uint32_t slot(Reg t, uint32_t count, bool shared);
  void count_step(Place at);
  template <typename F> std::unique_ptr<Block> block_of(F f) {
    auto b = std::make_unique<Block>();
    blocks.push_back(b.get());
    f();
    blocks.pop_back();
    return b;
  }
  template <typename F, typename G> void emit_if(uint32_t condition, F yes, G no) {
    auto a = block_of(yes), b = block_of(no);
    push_if(condition, std::move(a), std::move(b));
  }
  void push_if(uint32_t condition, std::unique_ptr<Block> a, std::unique_ptr<Block> b);

  /* ---- values.cpp ---- */
  Value constant_value(const Type* t, int64_t v);
  Value real_value(const Type* t, double v);
  Value reg_value(const Type* t, uint32_t id);
  uint32_t id_of(const Value& v, Place at);
  Number wrap(const Type* t, Number n, const Type* from);
  Value convert(const Value& v, const Type* t, Place at, bool explicit_ = false);
  bool convertible(const Value& v, const Type* t, bool is_constant_zero);
  int rank(const Operand& o, const Type* t);
  uint32_t convert_reg(uint32_t id, const Type* from, const Type* to, uint32_t n, Place at);
  uint32_t widen(uint32_t id);
  uint32_t normalize(uint32_t id, const Type* t, uint32_t n);
  uint32_t round_half(uint32_t id, uint32_t n);
  uint32_t round_bfloat(uint32_t id, uint32_t n);
  uint32_t half_bits(uint32_t id);
  Value component(const Value& v, uint32_t i, Place at);
  Value join(const Type* t, const std::vector<Value>& parts, Place at);
  Value binary(const std::string& op, Value a, Value b, Place at);
  Value binary_numbers(const std::string& op, const Value& a, const Value& b, Place at);
  bool fold(const std::string& op, const Type* t, const Type* result, const Value& a, const Value& b, Value& out,
            Place at);
  const Type* common(const Type* a, const Type* b, Place at);
  const Type* promote(const Type* t);
  Value unary(const std::string& op, const Value& v, Place at);
  bool truth(const Value& v, bool& known, Place at);
  uint32_t condition(const Value& v, Place at);
  Value select(uint32_t c, const Value& a, const Value& b, Place at);
  Value bitcast(const Value& v, const Type* t, Place at);
  uint32_t bitcast_reg(uint32_t id, Reg t);
  Value zero(const Type* t, Place at);

  /* ---- memory.cpp ---- */
  Index index_of(const Value& v, Place at);
  Index add(Index a, Index b);
  Index scale(Index a, int64_t by);
  Index shift(Index a, uint32_t by);
  uint32_t id_of(Index i);
  Node* allocate(const Type* t, Space space, Place at);
  Node* make_node(const Type* t, Space space, uint32_t count, Place at);
  Place_ place_of(Node* n, const Type* t, bool constant = false);
  Place_ member_place(const Place_& p, uint32_t index, Place at);
  Place_ element_place(const Place_& p, Index i, Place at);
  Value load(const Place_& p, Place at);
  Value load(const Operand& o, Place at) { return o.is_place ? load(o.place, at) : o.value; }
  void store(const Place_& p, const Value& v, Place at);
  Value load_target(const Target& t, const Place_& p, Index i, Place at);
  void store_target(const Target& t, const Place_& p, Index i, const Value& v, Place at);
  Value load_buffer(const Target& t, const Type* type, Index i, Place at);
  void store_buffer(const Target& t, const Type* type, Index i, const Value& v, Place at);
  Value load_node(Node* n, const Type* type, Index i, bool indexed, Place at);
  void store_node(Node* n, const Type* type, Index i, bool indexed, const Value& v, Place at);
  Value load_view(const Target& t, const Type* type, Index i, Place at);
  void store_view(const Target& t, const Type* type, Index i, const Value& v, Place at);
  uint32_t stride_of(const Type* vector, Place at) { return size_of(vector, at) / vector->of->bytes; }  // in numbers
  uint32_t numbers_of(const Target& t, const Type* vector, Place at);                  // that its index counts by
  uint32_t number_of(const Type* t, Place at);
  void recall_targets(Node* n);
  void remember_targets(const Node* n);
  Value load_pointer(Node* n, const Type* type, Place at);
  Value points(const Value& v, Place at);
  uint32_t tag_of(const Value& v);
  void store_pointer(Node* n, const Value& v, Place at);
  Value number_of_bits(uint32_t bits, const Type* t, Place at);
  uint32_t bits_of_number(const Value& v, Place at);
  Index buffer_index(const Target& t, Index i, uint32_t offset, uint32_t bytes);
  Place_ dereference(const Value& pointer, Place at);
  Value address_of(const Place_& p, Space space, Place at);
  Value decay(const Operand& o, Place at);
  Value pointer_add(const Value& p, Index by, Place at);
  bool writable(const Value& p) const;
  Value pointer_cast(const Value& p, const Type* t, Place at);
  Value pointer_select(uint32_t c, const Value& a, const Value& b, Place at);
  Place_ temporary(const Value& v, Place at);
  Place_ memory_of(Entity* e, Place at);
  Space space_of(const Place_& p);

  /* ---- expressions.cpp ---- */
  Operand eval(Expr* e);
  Operand eval_kind(Expr* e);
  Value rvalue(Expr* e);
  Value value_as(Expr* e, const Type* t, bool explicit_ = false);
  Value constant_of(Expr* e, const Type* t, const char* what);
  Place_ place(Expr* e);
  Operand eval_name(Expr* e);
  Operand entity_operand(Entity* e, Place at);
  Operand constant_in_memory(Expr* e);
  Operand eval_unary(Expr* e);
  Operand eval_binary(Expr* e);
  Operand eval_assign(Expr* e);
  Operand eval_conditional(Expr* e);
  Operand eval_index(Expr* e);
  Operand eval_member(Expr* e);
  Operand member_operand(const Operand& o, const std::string& name, Place at);
  Operand eval_cast(Expr* e);
  Value cast(const Value& v, const Type* t, Place at);
  Value step(const Place_& p, const std::string& op, Place at);
  Value logical(Expr* e);
  Value literal(Expr* e);
  Value compare_pointers(const std::string& op, const Value& a, const Value& b, Place at);
  Operand overloaded(const std::string& op, std::vector<Operand> args, Place at, bool& found);
  Value construct(const Type* t, const std::vector<Expr*>& args, bool braces, Place at);
  Value construct_values(const Type* t, std::vector<Operand> args, bool braces, Place at);
  Value from_list(const Type* t, const std::vector<Expr*>& args, Place at);
  Value construct_vector(const Type* t, const std::vector<Operand>& args, Place at);
  Value default_value(const Type* t, Place at);

  /* ---- calls.cpp ---- */
  Operand eval_call(Expr* e);
  Operand call_method(Expr* e);
  Operand call_candidates(const std::vector<FunctionIn>& list, const std::vector<Argument>& explicit_args,
                          std::vector<Operand> args, const Operand* self, const std::string& name, Place at,
                          bool& found, bool must);
  Operand call(const FunctionIn& f, const Bindings& b, std::vector<Operand> args, const Operand* self, Place at);
  void bind_parameter(Scope* in, const Parameter& p, const Operand& o, Place at);
  Operand call_lambda(const Value& v, std::vector<Operand> args, Place at);
  const Type* passed_type(const Operand& o, const TypeNode* n);
  bool viable(const FunctionIn& f, const std::vector<Argument>& explicit_args, const std::vector<Operand>& args,
              Bindings& b, int& cost);
  Operand run_body(Function* f, const Type* result, bool by_reference, Place at);
  void initialize_members(const FunctionIn& f, const Place_& self, Place at);
  void store_argument(Scope* in, const Parameter& p, Operand o, Place at);
  Operand call_named(Expr* e, std::vector<Operand>& args);
  Place_ fresh_place(const Type* t, Place at);
  bool all_found(const FunctionIn& f, Scope* in, Bindings& b);
  Operand finish_frame(Frame& frame, Place at);
  Value construct_struct(const Type* t, std::vector<Operand> args, bool braces, Place at);
  Scope* bindings_scope(const FunctionIn& f, const Bindings& b);

  /* ---- builtins.cpp ---- */
  bool call_builtin(const std::string& name, const std::string& space, std::vector<Operand>& args,
                    const std::vector<Argument>& targs, Place at, Operand& out);
  Value ext(uint16_t op, const Type* t, const std::vector<Value>& args, Place at);
  Value round_to(const Type* t, uint32_t id);
  uint32_t uint_of(const Value& v, Place at);

  /* ---- statements.cpp ---- */
  Flow run(Stmt* s);
  Flow run_list(const std::vector<Stmt*>& list, size_t from = 0);
  Flow run_if(Stmt* s);
  Flow run_loop(Stmt* s);
  Flow fold_loop(Stmt* s);
  Flow run_range(Stmt* s);
  Flow run_switch(Stmt* s);
  Flow fold_switch(Stmt* s, const std::vector<std::vector<Stmt*>>& sections,
                   const std::vector<std::vector<Expr*>>& labels, int otherwise);
  Flow run_return(Stmt* s);
  Flow jump(bool is_break, Place at);
  void declare_variables(Stmt* s);
  void declare_variable(const Variable& v);
  Value initial(const Variable& v, const Type* t);
  bool returns_inside(Stmt* s, bool tail);
  bool always_returns(Stmt* s);

  /* ---- kernel.cpp ---- */
  void run_kernel(const std::string& name, Program& program);
  void kernel_parameters(Function* f, Scope* in, Program& program);
  void array_parameter(const Parameter& p, const Type* t, bool reference, Scope* in, Program& program);
  void attribute_parameter(const Parameter& p, const Type* t, Scope* in);
  Value attribute_value(const std::string& name, Place at);
  Value builtin_value(Builtin b);
  Value info_word(uint32_t word);
};

extern const char* const prelude;

}  // namespace metal
