/* The syntax tree. Names are not resolved in it: a template's body means something else at each instantiation.
 *                                                                                     SPDX-License-Identifier: MIT */
#pragma once

#include "common.h"

namespace metal {

struct Expr;
struct Stmt;
struct TypeNode;
struct Function;
struct Struct;

enum class Space : uint8_t { none, device, constant, thread, threadgroup };

struct TemplateArg {
  TypeNode* type = nullptr;                    // one of the two; both of S::x, which only the names tell
  Expr* value = nullptr;
};
struct Segment {
  std::string name;
  bool has_args = false;
  std::vector<TemplateArg> args;
};
/* a::b<c>::d */
struct Path {
  Place at;
  std::vector<Segment> segments;
  bool is_type = false;                        // the parser saw that it names one
  std::string text() const {
    std::string s;
    for (const Segment& g : segments) s += (s.empty() ? "" : "::") + g.name;
    return s;
  }
};

struct TypeNode {
  enum Kind : uint8_t { named, automatic, declared, pointer, reference, array } kind = named;
  Place at;
  Path path;
  TypeNode* inner = nullptr;
  Expr* size = nullptr;                        // of an array (none: as many as its values); decltype's expression
  Space space = Space::none;
  bool constant = false;
};

struct Parameter {
  TypeNode* type = nullptr;
  std::string name, attribute;                 // [[attribute(index)]]
  int index = -1;
  Expr* preset = nullptr;
  Place at;
};

struct TemplateParameter {
  bool is_type = false;
  TypeNode* type = nullptr;                    // of a value
  std::string name;
  TemplateArg preset;
};

enum class E : uint8_t {
  integer, real, boolean, null, text, name, unary, postfix, binary, assign, conditional, call, index, member, cast,
  construct, list, lambda, size_of, align_of, comma, this_,
};
struct Expr {
  E kind = E::integer;
  Place at;
  std::string text;                            // operator, literal, member's name, kind of cast
  Expr *a = nullptr, *b = nullptr, *c = nullptr;
  std::vector<Expr*> args;
  TypeNode* type = nullptr;
  Path path;
  bool arrow = false;
  Function* function = nullptr;                // a lambda's
};

struct Variable {
  Place at;
  std::string name;
  TypeNode* type = nullptr;
  Expr* init = nullptr;                        // = init, (args), {args}
  bool is_constexpr = false, is_static = false, direct = false;   // direct: init is a list of arguments
};

enum class S : uint8_t {
  block, expression, variables, if_, for_, while_, do_, switch_, case_, default_, break_, continue_, return_, structure,
  alias, empty, assertion, enumeration, using_namespace, range_for, function,
};
struct Alias {
  std::string name;
  std::vector<TemplateParameter> parameters;
  TypeNode* type = nullptr;
};
struct Enumeration {
  std::string name;
  bool scoped = false;
  TypeNode* base = nullptr;
  std::vector<std::pair<std::string, Expr*>> values;
};
struct Stmt {
  S kind = S::empty;
  Place at;
  Expr *e = nullptr, *step = nullptr;
  Stmt *init = nullptr, *a = nullptr, *b = nullptr;
  std::vector<Stmt*> list;
  std::vector<Variable> variables;
  bool is_constexpr = false;
  Struct* structure = nullptr;
  Alias* alias = nullptr;
  Enumeration* enumeration = nullptr;
  Function* function = nullptr;
};

struct Function {
  Place at;
  std::string name;                            // operator+ for operators
  std::vector<TemplateParameter> templates;
  bool is_template = false, is_kernel = false, is_static = false, is_constructor = false, captures = false;
  TypeNode* result = nullptr;                  // none: a constructor; automatic: deduced
  std::vector<Parameter> parameters;
  std::vector<std::pair<std::string, Expr*>> inits;   // of a constructor: member, list of arguments
  Stmt* body = nullptr;
  std::vector<TemplateArg> specialized;        // template <> f<int>
  bool is_specialization = false;
};

struct Struct {
  Place at;
  std::string name;
  std::vector<TemplateParameter> templates;
  bool is_template = false, is_specialization = false;
  std::vector<TemplateArg> specialized;
  std::vector<TypeNode*> bases;
  std::vector<Variable> members;               // static ones, too
  std::vector<Function*> methods;
  std::vector<Stmt*> types;                    // structures, aliases, enumerations
};

struct Item {
  enum Kind : uint8_t { function, statement, space, instance } kind = statement;
  Place at;
  Function* f = nullptr;
  Stmt* s = nullptr;
  std::string name;                            // of a namespace; what an instance is called by the host
  std::vector<Item> items;
  Path path;                                   // of an instance: name<arguments>
};

/* Owns what is parsed. */
struct Tree {
  std::deque<Expr> exprs;
  std::deque<Stmt> stmts;
  std::deque<TypeNode> types;
  std::deque<Function> functions;
  std::deque<Struct> structs;
  std::deque<Alias> aliases;
  std::deque<Enumeration> enumerations;
};

/* Names that a parser knows, of the prelude's for the source. */
enum class Known : uint8_t { value, type, type_template, function_template, space };
using Names = std::unordered_map<std::string, Known>;

std::vector<Item> parse(std::vector<Token> tokens, Tree& tree, Names& globals);

}  // namespace metal
