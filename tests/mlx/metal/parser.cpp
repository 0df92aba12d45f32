/* Tokens to the syntax tree: the part of C++ that kernels are made of.                SPDX-License-Identifier: MIT */
#include <cstdlib>
#include <unordered_set>

#include "ast.h"

namespace metal {
namespace {

const std::unordered_set<std::string> builtin_types = {
    "void",   "bool",    "char",     "short",    "int",      "long",    "float",    "half",      "bfloat",   "double",
    "uchar",  "ushort",  "uint",     "ulong",    "size_t",   "ptrdiff_t", "int8_t", "uint8_t",   "int16_t",  "uint16_t",
    "int32_t", "uint32_t", "int64_t", "uint64_t", "unsigned", "signed"};
/* Vectors: these with 2, 3 or 4 behind, and packed_ before. */
const std::unordered_set<std::string> vector_bases = {"bool", "char", "short", "int", "long", "float", "half", "bfloat",
                                                      "uchar", "ushort", "uint", "ulong"};
const std::unordered_set<std::string> qualifiers = {
    "const",    "constexpr", "static",   "inline",   "device",  "constant", "thread", "threadgroup",
    "volatile", "extern",    "typename", "struct",   "class",   "unsigned", "signed", "auto",
    "decltype", "mutable",   "friend",   "register", "virtual", "explicit"};
const std::unordered_set<std::string> casts = {"static_cast", "reinterpret_cast", "const_cast", "as_type"};
/* What no name can be. */
const std::unordered_set<std::string> reserved = {
    "if",       "else",   "for",      "while", "do",        "switch", "case",     "default", "break",
    "continue", "return", "template", "using", "namespace", "sizeof", "operator", "new",     "delete",
    "throw",    "try",    "catch",    "goto",  "union",     "this",   "true",     "false"};

/* Templates that no source declares. */
const std::unordered_set<std::string> library_templates = {
    "vec",       "packed_vec",       "atomic",        "conditional_t", "conditional",        "enable_if_t",
    "enable_if", "make_unsigned_t",  "make_signed_t", "remove_cv_t",   "remove_reference_t", "remove_const_t",
    "decay_t",   "remove_volatile_t"};

bool is_vector_name(const std::string& full) {
  std::string n = full.rfind("packed_", 0) == 0 ? full.substr(7) : full;
  return n.size() > 1 && n.back() >= '2' && n.back() <= '4' && vector_bases.count(n.substr(0, n.size() - 1));
}

struct Parser {
  std::vector<Token> t;
  Tree& tree;
  std::vector<Names> scopes;
  size_t at = 0;
  uint32_t depth = 0;
  uint64_t steps = 0;
  bool no_greater = false;                     // within template arguments

  /* ---- tokens ---- */

  struct Nested {
    Parser& p;
    explicit Nested(Parser& q) : p(q) {
      if (++p.depth > 6 * MAX_NESTING) fail(p.here(), "this nests too deeply");
    }
    ~Nested() { p.depth--; }
  };

  const Token& peek(size_t n = 0) const { return t[at + n < t.size() ? at + n : t.size() - 1]; }
  Place here() const { return peek().at; }
  bool is(const char* s) const { return peek().is(s); }
  const Token& next() {
    if (++steps > 20u * MAX_TOKENS) fail(here(), "the source is too complex");
    const Token& k = peek();
    if (at + 1 < t.size()) at++;
    return k;
  }
  bool take(const char* s) {
    if (!is(s)) return false;
    next();
    return true;
  }
  std::string shown() const {
    const Token& k = peek();
    return k.kind == Tok::end ? "the end of the source" : k.kind == Tok::text ? "a string" : "'" + k.text + "'";
  }
  [[noreturn]] void expected(const std::string& what) { fail(here(), "expected " + what + ", not " + shown()); }
  void need(const char* s) {
    if (!take(s)) expected(std::string("'") + s + "'");
  }
  std::string need_name(const char* what) {
    if (peek().kind != Tok::name || reserved.count(peek().text)) expected(what);
    return next().text;
  }

  template <typename T>
  T* make(std::deque<T>& pool) {
    pool.emplace_back();
    return &pool.back();
  }
  Expr* expr(E kind, Place p, Expr* a = nullptr, Expr* b = nullptr) {
    Expr* e = make(tree.exprs);
    e->kind = kind;
    e->at = p;
    e->a = a;
    e->b = b;
    return e;
  }
  Stmt* stmt(S kind, Place p) {
    Stmt* s = make(tree.stmts);
    s->kind = kind;
    s->at = p;
    return s;
  }
  TypeNode* type_node(TypeNode::Kind kind, Place p, TypeNode* inner = nullptr) {
    TypeNode* n = make(tree.types);
    n->kind = kind;
    n->at = p;
    n->inner = inner;
    return n;
  }

  /* ---- names ---- */

  Known known(const std::string& name) const {
    for (size_t i = scopes.size(); i-- > 0;) {
      auto f = scopes[i].find(name);
      if (f != scopes[i].end()) return f->second;
    }
    if (builtin_types.count(name) || is_vector_name(name)) return Known::type;
    if (library_templates.count(name)) return Known::type_template;
    if (name.rfind("atomic_", 0) == 0 && (name == "atomic_int" || name == "atomic_uint" || name == "atomic_float" ||
                                          name == "atomic_bool" || name == "atomic_ulong"))
      return Known::type;
    if (name.size() > 2 && name.rfind("is_", 0) == 0) return Known::function_template;
    if (name == "metal" || name == "std" || name == "simd" || name == "fast" || name == "precise") return Known::space;
    return Known::value;
  }
  void declare(const std::string& name, Known k) {
    if (!name.empty()) scopes.back()[name] = k;
  }
  struct Scoped {
    Parser& p;
    explicit Scoped(Parser& q) : p(q) { p.scopes.emplace_back(); }
    ~Scoped() { p.scopes.pop_back(); }
  };

  bool type_starts(size_t n = 0) const {
    const Token& k = peek(n);
    if (k.is("::")) return type_starts(n + 1);
    if (k.kind != Tok::name) return false;
    if (qualifiers.count(k.text)) return true;
    Known w = known(k.text);
    if (w == Known::space && peek(n + 1).is("::")) return type_starts(n + 2);
    return w == Known::type || w == Known::type_template;
  }

  std::vector<TemplateArg> template_args() {
    std::vector<TemplateArg> args;
    need("<");
    bool before = no_greater;
    no_greater = true;
    while (!is(">")) {
      args.push_back(template_arg());
      if (!take(",")) break;
    }
    no_greater = before;
    need(">");
    return args;
  }
  TemplateArg template_arg() {
    Nested nested(*this);
    TemplateArg a;
    size_t begin = at;
    if (type_starts()) {
      bool qualified = peek().kind == Tok::name && !qualifiers.count(peek().text);
      a.type = type_id();
      bool alone = is(",") || is(">");
      if (alone && !(qualified && a.type->kind == TypeNode::named && a.type->path.segments.size() > 1)) return a;
      if (!alone) a.type = nullptr;
      at = begin;
    }
    a.value = binary(0);
    return a;
  }

  Path path() {
    Path p;
    p.at = here();
    if (take("::")) p.segments.emplace_back();               // without a name: the outermost scope
    bool after_space = true;
    for (;;) {
      bool forced = take("template");
      Segment s;
      s.name = peek().text == "operator" ? operator_name() : need_name("a name");
      Known w = after_space ? known(s.name) : Known::value;
      bool arguments = w == Known::type_template || w == Known::function_template || forced;
      if (is("<") && arguments) {
        s.has_args = true;
        s.args = template_args();
      }
      p.is_type = w == Known::type || w == Known::type_template;
      after_space = w == Known::space;
      p.segments.push_back(std::move(s));
      if (!is("::")) return p;
      next();
    }
  }

  std::string operator_name() {
    next();
    std::string name = "operator";
    if (take("(")) {
      need(")");
      return name + "()";
    }
    if (take("[")) {
      need("]");
      return name + "[]";
    }
    if (peek().kind == Tok::mark) {
      name += next().text;
      if (name == "operator>" && is(">") && !peek().space) name += next().text;
      if (name == "operator>" && is(">=") && !peek().space) name += next().text;
      return name;
    }
    return name + " ";                                                 // a conversion; the type follows
  }

  /* ---- types ---- */

  struct Specifiers {
    TypeNode* type = nullptr;
    bool is_constexpr = false, is_static = false, is_friend = false;
  };

  void integer_words(Path& p, bool is_unsigned) {
    bool is_long = false, any = false;
    std::string name = "int";
    while (is("long") || is("int") || is("short") || is("char") || is("unsigned") || is("signed")) {
      std::string w = next().text;
      any = true;
      if (w == "unsigned") is_unsigned = true;
      else if (w == "long") is_long = true;
      else if (w != "signed" && !(w == "int" && (name == "short" || is_long))) name = w;
    }
    (void)any;
    if (is_long) name = "long";
    Segment s;
    s.name = (is_unsigned ? "u" : "") + name;
    p.segments.push_back(s);
    p.is_type = true;
  }

  Specifiers specifiers() {
    Nested nested(*this);
    Specifiers s;
    TypeNode* n = type_node(TypeNode::named, here());
    bool found = false;
    for (;;) {
      const Token& k = peek();
      if (k.is("[") && peek(1).is("[")) skip_attribute();
      else if (k.is("const")) { next(); n->constant = true; }
      else if (k.is("constexpr")) { next(); s.is_constexpr = n->constant = true; }
      else if (k.is("static")) { next(); s.is_static = true; }
      else if (k.is("friend")) { next(); s.is_friend = true; }
      else if (k.is("virtual")) fail(here(), "virtual functions are outside the language");
      else if (k.is("inline") || k.is("volatile") || k.is("extern") || k.is("mutable") || k.is("register") ||
               k.is("explicit"))
        next();
      else if (k.is("device")) { next(); n->space = Space::device; }
      else if (k.is("constant")) { next(); n->space = Space::constant; }
      else if (k.is("threadgroup")) { next(); n->space = Space::threadgroup; }
      else if (k.is("thread")) { next(); n->space = Space::thread; }
      else if (found) break;
      else if (k.is("typename") || k.is("struct") || k.is("class")) { next(); base_type(n); found = true; }
      else if (k.is("auto")) { next(); n->kind = TypeNode::automatic; found = true; }
      else if (k.is("decltype")) {
        next();
        need("(");
        n->kind = TypeNode::declared;
        n->size = expression();
        need(")");
        found = true;
      } else { base_type(n); found = true; }
    }
    s.type = n;
    return s;
  }

  void base_type(TypeNode* n) {
    n->path.at = here();
    if (is("unsigned") || is("signed") || is("long") || is("short") || is("char") || is("int"))
      integer_words(n->path, false);
    else if (peek().kind == Tok::name && !reserved.count(peek().text)) n->path = path();
    else expected("a type");
  }

  /* *, & and const behind a type */
  TypeNode* pointers(TypeNode* n) {
    for (uint32_t i = 0;; i++) {
      if (i > MAX_NESTING) fail(here(), "this nests too deeply");
      if (is("*")) n = type_node(TypeNode::pointer, next().at, n);
      else if (is("&") || is("&&")) n = type_node(TypeNode::reference, next().at, n);
      else if (is("const") && n->kind == TypeNode::pointer) { next(); n->constant = true; }
      else if (is("const")) { next(); n->constant = true; }
      else if (is("thread") || is("device") || is("constant") || is("threadgroup")) {
        if (n->kind == TypeNode::pointer) next();                      // where the pointer itself lies
        else return n;
      } else return n;
    }
  }

  /* [n]...; the first is outermost */
  TypeNode* dimensions(TypeNode* n) {
    if (!is("[") || peek(1).is("[")) return n;
    Nested nested(*this);
    Place p = next().at;
    Expr* size = is("]") ? nullptr : conditional_inside();
    need("]");
    TypeNode* a = type_node(TypeNode::array, p, dimensions(n));
    a->size = size;
    return a;
  }
  Expr* conditional_inside() {
    bool before = no_greater;
    no_greater = false;
    Expr* e = conditional();
    no_greater = before;
    return e;
  }

  TypeNode* type_id() {
    TypeNode* n = pointers(specifiers().type);
    if (is("(") && (peek(1).is("&") || peek(1).is("*")))
      fail(here(), "pointers to functions and arrays are outside the language");
    return dimensions(n);
  }

  /* A name with what stands around it: T (&name)[4] */
  TypeNode* declarator(TypeNode* base, std::string& name, bool optional) {
    TypeNode* n = pointers(base);
    if (is("(") && (peek(1).is("&") || (peek(1).is("*") && peek(2).kind == Tok::name))) {
      next();
      bool pointer = is("*");
      Place p = next().at;
      if (peek().kind == Tok::name) name = next().text;
      need(")");
      return type_node(pointer ? TypeNode::pointer : TypeNode::reference, p, dimensions(n));
    }
    if (!optional || (peek().kind == Tok::name && !reserved.count(peek().text))) name = need_name("a name");
    return dimensions(n);
  }

  void skip_attribute() {
    need("[");
    need("[");
    for (int d = 0; !(d == 0 && is("]")); next()) {
      if (peek().kind == Tok::end) expected("']]'");
      if (is("(")) d++;
      if (is(")")) d--;
    }
    need("]");
    need("]");
  }

  /* ---- expressions ---- */

  Expr* expression() {
    bool before = no_greater;
    no_greater = false;
    Expr* e = assignment();
    while (is(",")) {
      Place p = next().at;
      e = expr(E::comma, p, e, assignment());
    }
    no_greater = before;
    return e;
  }

  Expr* assignment() {
    Nested nested(*this);
    static const std::unordered_set<std::string> ops = {
        "=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="};
    Expr* left = conditional();
    std::string op = peek().kind == Tok::mark ? peek().text : "";
    if (op == ">" && peek(1).is(">=") && !peek(1).space) op = ">>=";
    if (!ops.count(op)) return left;
    Expr* e = expr(E::assign, next().at, left);
    if (op == ">>=") next();
    e->text = op;
    e->b = is("{") ? braces() : assignment();
    return e;
  }

  Expr* conditional() {
    Nested nested(*this);
    Expr* c = binary(0);
    if (!is("?")) return c;
    Expr* e = expr(E::conditional, next().at, c);
    bool before = no_greater;
    no_greater = false;
    e->b = assignment();
    need(":");
    no_greater = before;
    e->c = assignment();
    return e;
  }

  static int precedence(const std::string& op) {
    static const std::unordered_map<std::string, int> table = {
        {"||", 1}, {"&&", 2}, {"|", 3},  {"^", 4},  {"&", 5}, {"==", 6}, {"!=", 6}, {"<", 7},  {">", 7},
        {"<=", 7}, {">=", 7}, {"<<", 8}, {">>", 8}, {"+", 9}, {"-", 9},  {"*", 10}, {"/", 10}, {"%", 10}};
    auto f = table.find(op);
    return f == table.end() ? 0 : f->second;
  }

  Expr* binary(int least) {
    Nested nested(*this);
    Expr* left = unary();
    for (;;) {
      if (peek().kind != Tok::mark) return left;
      std::string op = peek().text;
      bool shift = op == ">" && peek(1).is(">") && !peek(1).space;
      if (shift) op = ">>";
      if (op == ">" && peek(1).is(">=") && !peek(1).space) return left;          // >>=
      int p = precedence(op);
      if (!p || p <= least || (no_greater && (op == ">" || op == ">>" || op == ">="))) return left;
      Place where = next().at;
      if (shift) next();
      Expr* e = expr(E::binary, where, left);
      e->text = op;
      e->b = binary(p);
      left = e;
    }
  }

  Expr* unary() {
    Nested nested(*this);
    static const std::unordered_set<std::string> ops = {"+", "-", "!", "~", "*", "&", "++", "--"};
    if (peek().kind == Tok::mark && ops.count(peek().text)) {
      Expr* e = expr(E::unary, here());
      e->text = next().text;
      e->a = unary();
      return e;
    }
    if (is("sizeof") || is("alignof")) return size_of();
    if (is("(") && type_starts(1)) {
      size_t begin = at;
      if (Expr* e = c_cast()) return e;
      at = begin;
    }
    return postfix(primary());
  }

  Expr* size_of() {
    Expr* e = expr(is("sizeof") ? E::size_of : E::align_of, here());
    next();
    bool parens = is("(");
    if (parens && type_starts(1)) {
      size_t begin = at;
      next();
      e->type = type_id();
      if (take(")")) return e;
      at = begin;
      e->type = nullptr;
    }
    e->a = unary();
    return e;
  }

  /* (type) operand; none where the parentheses hold an expression that begins with a type */
  Expr* c_cast() {
    Place p = next().at;
    size_t begin = at;
    bool plain = peek().kind == Tok::name && !qualifiers.count(peek().text);
    if (plain) {
      path();
      if (is("(") || is("{") || is("::")) return nullptr;
      at = begin;
    }
    bool before = no_greater;
    no_greater = false;
    TypeNode* n = type_id();
    no_greater = before;
    if (!is(")")) return nullptr;
    next();
    Expr* e = expr(E::cast, p);
    e->text = "c";
    e->type = n;
    e->a = is("{") ? braces() : unary();
    return e;
  }

  std::vector<Expr*> arguments(const char* end) {
    std::vector<Expr*> args;
    bool before = no_greater;
    no_greater = false;
    while (!is(end)) {
      args.push_back(is("{") ? braces() : assignment());
      if (!take(",")) break;
    }
    no_greater = before;
    need(end);
    return args;
  }

  Expr* braces() {
    Nested nested(*this);
    Expr* e = expr(E::list, here());
    need("{");
    e->args = arguments("}");
    return e;
  }

  Expr* postfix(Expr* e) {
    for (uint32_t i = 0;; i++) {
      if (i > 4 * MAX_NESTING) fail(here(), "this nests too deeply");
      Place p = here();
      if (take("(")) {
        e = expr(E::call, e->kind == E::name ? e->at : p, e);
        e->args = arguments(")");
      } else if (is("[") ) {
        next();
        e = expr(E::index, p, e);
        e->b = expression();
        need("]");
      } else if (is(".") || is("->")) {
        e = expr(E::member, p, e);
        e->arrow = next().text == "->";
        bool forced = take("template");
        e->text = is("operator") ? operator_name() : need_name("a member's name");
        if (forced && is("<")) {
          Segment s;
          s.name = e->text;
          s.has_args = true;
          s.args = template_args();
          e->path.segments.push_back(s);
        }
      } else if (is("++") || is("--")) {
        e = expr(E::postfix, p, e);
        e->text = next().text;
      } else {
        return e;
      }
    }
  }

  /* What stands between quotes: a character, or one that a backslash says. */
  int character(const Token& k) {
    const std::string& s = k.text;
    if (s.size() == 1) return static_cast<signed char>(s[0]);
    if (s.size() < 2 || s[0] != '\\') fail(k.at, "this is no single character");
    static const char named[] = "a\ab\bf\fn\nr\rt\tv\v\\\\''\"\"??";
    for (const char* n = named; s.size() == 2 && *n; n += 2) if (s[1] == *n) return n[1];
    bool hex = s[1] == 'x';
    const char* digits = s.c_str() + (hex ? 2 : 1);
    char* end = nullptr;
    long code = strtol(digits, &end, hex ? 16 : 8);
    if (*end || end == digits || code < 0 || code > 255)
      fail(k.at, "'\\" + s.substr(1) + "' is no character that is known here");
    return static_cast<signed char>(code);
  }

  Expr* literal() {
    const Token& k = next();
    Expr* e = expr(k.kind == Tok::integer ? E::integer : k.kind == Tok::real ? E::real : E::text, k.at);
    e->text = k.text;
    if (k.kind == Tok::character) {
      e->kind = E::integer;
      e->text = std::to_string(character(k));
    }
    return e;
  }

  Expr* primary() {
    const Token& k = peek();
    if (k.kind == Tok::integer || k.kind == Tok::real || k.kind == Tok::text || k.kind == Tok::character)
      return literal();
    if (is("(")) {
      next();
      Expr* e = expression();
      need(")");
      return e;
    }
    if (is("[")) return lambda();
    if (k.kind != Tok::name && !k.is("::")) expected("an expression");
    if (is("true") || is("false")) {
      Expr* e = expr(E::boolean, here());
      e->text = next().text;
      return e;
    }
    if (is("nullptr")) return expr(E::null, next().at);
    if (is("this")) return expr(E::this_, next().at);
    if (casts.count(k.text)) return named_cast();
    return named();
  }

  Expr* named_cast() {
    Expr* e = expr(E::cast, here());
    e->text = next().text;
    bool before = no_greater;
    no_greater = true;
    need("<");
    e->type = type_id();
    no_greater = before;
    need(">");
    need("(");
    e->a = expression();
    need(")");
    return e;
  }

  /* A name, or a type before its arguments. */
  Expr* named() {
    Place p = here();
    if (is("metal") && peek(1).is("::") && casts.count(peek(2).text)) {
      next();
      next();
      return named_cast();
    }
    bool forced = is("typename");
    if (!forced && !is("::") && (peek().kind != Tok::name || reserved.count(peek().text))) expected("an expression");
    if (forced || is("unsigned") || is("signed") || is("long") || is("short") || is("char") || is("int")) {
      TypeNode* n = type_node(TypeNode::named, p);
      take("typename");
      base_type(n);
      return construct(n, p);
    }
    if (qualifiers.count(peek().text)) expected("an expression");
    Path q = path();
    if (q.is_type && (is("(") || is("{"))) {
      TypeNode* n = type_node(TypeNode::named, p);
      n->path = std::move(q);
      return construct(n, p);
    }
    Expr* e = expr(E::name, p);
    e->path = std::move(q);
    return e;
  }
  Expr* construct(TypeNode* n, Place p) {
    Expr* e = expr(E::construct, p);
    e->type = n;
    if (take("(")) e->args = arguments(")");
    else if (take("{")) {
      e->args = arguments("}");
      e->text = "{";
    } else expected("'(' behind a type");
    return e;
  }

  Expr* lambda() {
    Expr* e = expr(E::lambda, here());
    Function* f = make(tree.functions);
    f->at = here();
    f->name = "lambda";
    need("[");
    while (!is("]")) {
      if (peek().kind == Tok::end) expected("']'");
      f->captures = true;
      next();
    }
    next();
    Scoped scope(*this);
    if (take("(")) parameters(f);
    while (is("mutable") || is("constexpr") || is("noexcept")) next();
    f->result = take("->") ? type_id() : type_node(TypeNode::automatic, f->at);
    f->body = block();
    e->function = f;
    return e;
  }

  /* ---- statements ---- */

  Stmt* block() {
    Nested nested(*this);
    Scoped scope(*this);
    Stmt* s = stmt(S::block, here());
    need("{");
    while (!is("}")) {
      if (peek().kind == Tok::end) expected("'}'");
      s->list.push_back(statement());
    }
    next();
    return s;
  }

  /* Does a declaration begin here? */
  bool declares() {
    if (!type_starts()) return false;
    if (qualifiers.count(peek().text) && !is("typename")) return true;
    size_t begin = at;
    bool before = no_greater;
    try {
      TypeNode* n = specifiers().type;
      bool pointer = is("*") || is("&") || is("&&");
      n = pointers(n);
      bool yes = (peek().kind == Tok::name && !reserved.count(peek().text)) || (is("(") && peek(1).is("&")) ||
                 (pointer && is("("));
      at = begin;
      return yes;
    } catch (const Error&) {
      no_greater = before;
      at = begin;                                                      // said again where it is parsed as an expression
      return false;
    }
  }

  Stmt* variables(bool semicolon = true) {
    Stmt* s = stmt(S::variables, here());
    Specifiers sp = specifiers();
    do {
      Variable v;
      v.at = here();
      v.is_constexpr = sp.is_constexpr;
      v.is_static = sp.is_static;
      v.type = declarator(sp.type, v.name, false);
      v.at = t[at ? at - 1 : 0].at;
      declare(v.name, Known::value);
      while (is("[") && peek(1).is("[")) skip_attribute();
      initializer(v);
      s->variables.push_back(v);
    } while (take(","));
    if (semicolon) need(";");
    return s;
  }
  void initializer(Variable& v) {
    if (take("=")) v.init = is("{") ? braces() : assignment();
    else if (is("{")) v.init = braces();
    else if (is("(")) {
      v.init = expr(E::list, next().at);
      v.init->args = arguments(")");
      v.direct = true;
    }
  }

  Stmt* statement() {
    Nested nested(*this);
    Place p = here();
    while (is("[") && peek(1).is("[")) skip_attribute();
    if (is("{")) return block();
    if (take(";")) return stmt(S::empty, p);
    if (is("if")) return if_statement();
    if (is("for")) return for_statement();
    if (is("while") || is("do") || is("switch")) return loop_statement();
    if (is("case") || is("default")) return label();
    if (is("return")) {
      next();
      Stmt* s = stmt(S::return_, p);
      if (!is(";")) s->e = is("{") ? braces() : expression();
      need(";");
      return s;
    }
    if (is("break") || is("continue")) {
      Stmt* s = stmt(is("break") ? S::break_ : S::continue_, p);
      next();
      need(";");
      return s;
    }
    if (is("goto") || is("try") || is("throw") || is("new") || is("delete") || is("union") || is("asm"))
      fail(p, "'" + peek().text + "' is outside the language");
    if (Stmt* s = type_statement()) return s;
    if (declares()) return variables();
    bool two_names = peek().kind == Tok::name && peek(1).kind == Tok::name && !reserved.count(peek().text);
    if (two_names) fail(p, "'" + peek().text + "' is no type that is known here");
    Stmt* s = stmt(S::expression, p);
    s->e = expression();
    need(";");
    return s;
  }

  Stmt* type_statement() {
    bool names_struct =
        (is("struct") || is("class")) && peek(1).kind == Tok::name && (peek(2).is("{") || peek(2).is(":"));
    if (names_struct) {
      Stmt* s = structure({}, false);
      need(";");
      return s;
    }
    if (is("using") || is("typedef")) return alias({});
    if (is("enum")) return enumeration();
    if (is("static_assert")) return assertion();
    if (is("union")) fail(here(), "unions are outside the language");
    return nullptr;
  }

  Stmt* if_statement() {
    Scoped scope(*this);
    Stmt* s = stmt(S::if_, next().at);
    s->is_constexpr = take("constexpr");
    need("(");
    if (declares()) {
      s->init = variables(false);
      if (take(";")) s->e = expression();
    } else {
      s->e = expression();
      if (take(";")) fail(here(), "if with an expression before the condition is outside the language");
    }
    need(")");
    s->a = statement();
    if (take("else")) s->b = statement();
    return s;
  }

  Stmt* for_statement() {
    Scoped scope(*this);
    Stmt* s = stmt(S::for_, next().at);
    need("(");
    if (declares()) {
      size_t begin = at;
      Specifiers sp = specifiers();
      std::string name;
      TypeNode* n = declarator(sp.type, name, true);
      if (take(":")) {
        s->kind = S::range_for;
        Variable v;
        v.name = name;
        v.type = n;
        v.at = s->at;
        declare(name, Known::value);
        s->variables.push_back(v);
        s->e = expression();
        need(")");
        s->a = statement();
        return s;
      }
      at = begin;
      s->init = variables();
    } else if (!take(";")) {
      s->init = stmt(S::expression, here());
      s->init->e = expression();
      need(";");
    }
    if (!is(";")) s->e = expression();
    need(";");
    if (!is(")")) s->step = expression();
    need(")");
    s->a = statement();
    return s;
  }

  Stmt* loop_statement() {
    Scoped scope(*this);
    std::string what = peek().text;
    Stmt* s = stmt(what == "while" ? S::while_ : what == "do" ? S::do_ : S::switch_, here());
    next();
    if (what == "do") {
      s->a = statement();
      if (!take("while")) expected("'while' behind do's statement");
    }
    need("(");
    s->e = expression();
    need(")");
    if (what == "do") need(";");
    else s->a = statement();
    return s;
  }

  Stmt* label() {
    Stmt* s = stmt(is("case") ? S::case_ : S::default_, here());
    next();
    if (s->kind == S::case_) s->e = conditional();
    need(":");
    return s;
  }

  Stmt* assertion() {
    Stmt* s = stmt(S::assertion, next().at);
    need("(");
    s->e = assignment();
    if (take(",")) s->step = assignment();
    need(")");
    need(";");
    return s;
  }

  /* ---- declarations ---- */

  std::vector<TemplateParameter> template_parameters() {
    std::vector<TemplateParameter> list;
    need("<");
    bool before = no_greater;
    no_greater = true;
    while (!is(">")) {
      TemplateParameter p;
      bool named_type =
          is("class") || (is("typename") &&
                          (peek(1).kind == Tok::name ? peek(2).is(",") || peek(2).is(">") || peek(2).is("=") : true));
      if (is("template")) fail(here(), "templates as parameters of templates are outside the language");
      if (named_type) {
        next();
        p.is_type = true;
        if (is("...")) fail(here(), "parameter packs are outside the language");
        if (peek().kind == Tok::name) p.name = next().text;
        if (take("=")) p.preset.type = type_id();
        declare(p.name, Known::type);
      } else {
        p.type = pointers(specifiers().type);
        if (is("...")) fail(here(), "parameter packs are outside the language");
        if (peek().kind == Tok::name) p.name = next().text;
        if (take("=")) p.preset.value = binary(0);
        declare(p.name, Known::value);
      }
      list.push_back(p);
      if (!take(",")) break;
    }
    no_greater = before;
    need(">");
    return list;
  }

  void parameters(Function* f) {
    while (!is(")")) {
      Parameter p;
      p.at = here();
      if (is("...")) fail(here(), "'...' is outside the language");
      if (is("void") && peek(1).is(")")) { next(); break; }
      p.type = declarator(specifiers().type, p.name, true);
      declare(p.name, Known::value);
      while (is("[") && peek(1).is("[")) attribute(p);
      if (take("=")) p.preset = is("{") ? braces() : assignment();
      f->parameters.push_back(p);
      if (!take(",")) break;
    }
    need(")");
  }
  void attribute(Parameter& p) {
    need("[");
    need("[");
    p.attribute = need_name("an attribute");
    if (take("(")) {
      if (peek().kind == Tok::integer) p.index = atoi(next().text.substr(0, 6).c_str());
      else next();
      need(")");
    }
    need("]");
    need("]");
  }

  /* Behind the name: parameters, qualifiers, initializers, body. */
  void function_rest(Function* f) {
    Scoped scope(*this);
    need("(");
    parameters(f);
    while (is("const") || is("thread") || is("device") || is("constant") || is("threadgroup") || is("noexcept") ||
           is("volatile"))
      next();
    if (take("->")) f->result = type_id();
    while (is("[") && peek(1).is("[")) skip_attribute();
    if (f->is_constructor && take(":")) {
      do {
        std::string name = need_name("a member's name");
        if (is("<")) template_args();
        Expr* e = expr(E::list, here());
        bool brace = is("{");
        if (!brace && !is("(")) expected("'('");
        next();
        e->args = arguments(brace ? "}" : ")");
        f->inits.emplace_back(name, e);
      } while (take(","));
    }
    if (take("=")) {
      if (!is("default") && !is("delete")) expected("'default'");
      if (is("delete")) f->name = "deleted";
      next();
      need(";");
      return;
    }
    if (take(";")) return;                                             // only declared
    f->body = block();
  }

  Stmt* alias(std::vector<TemplateParameter> parameters) {
    bool is_typedef = is("typedef");
    Stmt* s = stmt(S::alias, next().at);
    if (!is_typedef && take("namespace")) {
      s->kind = S::using_namespace;
      s->e = expr(E::name, here());
      s->e->path = path();
      need(";");
      return s;
    }
    Alias* a = make(tree.aliases);
    s->alias = a;
    a->parameters = std::move(parameters);
    if (is_typedef) {
      bool defines = (is("struct") || is("class")) && (peek(1).is("{") || peek(2).is("{"));
      TypeNode* base = defines ? defined_structure(s) : specifiers().type;
      if (!base) return s->a;
      a->type = declarator(base, a->name, false);
    } else if (peek(1).is("=") || peek(1).is("[")) {
      a->name = need_name("a name");
      while (is("[")) skip_attribute();
      need("=");
      a->type = type_id();
    } else {                                                           // using space::name
      s->e = expr(E::name, here());
      s->e->path = path();
      a->name = s->e->path.segments.back().name;
      need(";");
      return s;
    }
    need(";");
    outer()[a->name] = a->parameters.empty() ? Known::type : Known::type_template;
    return s;
  }
  /* typedef struct A { ... } B: the type; none where it has only the name that the typedef gives it. */
  TypeNode* defined_structure(Stmt* s) {
    s->a = structure({}, false);
    Struct* d = s->a->structure;
    bool alone = peek().kind == Tok::name && peek(1).is(";") && (d->name.empty() || d->name == peek().text);
    if (alone) {
      d->name = next().text;
      next();
      outer()[d->name] = Known::type;
      return nullptr;
    }
    if (d->name.empty()) fail(d->at, "a structure without a name of its own is outside the language here");
    TypeNode* n = type_node(TypeNode::named, d->at);
    Segment g;
    g.name = d->name;
    n->path.at = d->at;
    n->path.is_type = true;
    n->path.segments.push_back(g);
    return n;
  }
  /* Names of templates are declared around the scope that their parameters are in. */
  uint32_t template_depth = 0;
  Names& outer() { return scopes[scopes.size() - 1 - (template_depth ? 1 : 0)]; }

  Stmt* enumeration() {
    Stmt* s = stmt(S::enumeration, next().at);
    Enumeration* n = make(tree.enumerations);
    s->enumeration = n;
    n->scoped = take("class") || take("struct");
    if (peek().kind == Tok::name) n->name = next().text;
    if (!n->name.empty()) declare(n->name, Known::type);
    if (take(":")) n->base = type_id();
    need("{");
    while (!is("}")) {
      std::string name = need_name("a name");
      n->values.emplace_back(name, take("=") ? conditional() : nullptr);
      if (!take(",")) break;
    }
    need("}");
    need(";");
    return s;
  }

  Stmt* structure(std::vector<TemplateParameter> templates, bool is_template) {
    Nested nested(*this);
    Stmt* s = stmt(S::structure, next().at);
    Struct* d = make(tree.structs);
    s->structure = d;
    d->at = here();
    if (!is("{")) d->name = need_name("a structure's name");
    d->templates = std::move(templates);
    d->is_template = is_template;
    Known k = known(d->name);
    if (is("<") && k == Known::type_template) {
      d->is_specialization = true;
      d->specialized = template_args();
    } else if (!d->name.empty()) {
      outer()[d->name] = is_template ? Known::type_template : Known::type;
    }
    uint32_t before = template_depth;
    template_depth = 0;
    if (take(":"))
      do {
        if (is("public") || is("private")) next();
        d->bases.push_back(type_id());
      } while (take(","));
    if (is("{")) {
      Scoped scope(*this);
      if (is_template) declare(d->name, Known::type_template);
      next();
      while (!take("}")) member(d);
    }
    template_depth = before;
    return s;
  }

  bool is_constructor(const Struct* d) const { return peek().text == d->name && peek(1).is("("); }

  void member(Struct* d) {
    Nested nested(*this);
    if (peek().kind == Tok::end) expected("'}'");
    if ((is("public") || is("private") || is("protected")) && peek(1).is(":")) {
      next();
      next();
      return;
    }
    if (take(";")) return;
    Scoped scope(*this);
    std::vector<TemplateParameter> templates;
    bool is_template = is("template");
    if (is_template) {
      next();
      templates = template_parameters();
    }
    if (is("static_assert")) {
      d->types.push_back(assertion());
      return;
    }
    if (is("using") || is("typedef") || is("enum") ||
        ((is("struct") || is("class")) && (peek(2).is("{") || peek(2).is(":")))) {
      bool nested_struct = is("struct") || is("class");
      Stmt* s = nested_struct ? structure(templates, is_template) : is("enum") ? enumeration() : alias(templates);
      if (nested_struct) need(";");
      if (s->alias) scopes[scopes.size() - 2][s->alias->name] = Known::type;
      if (s->structure)
        scopes[scopes.size() - 2][s->structure->name] = is_template ? Known::type_template : Known::type;
      d->types.push_back(s);
      return;
    }
    while (is("[") && peek(1).is("[")) skip_attribute();
    size_t skip = 0;
    while (peek(skip).is("constexpr") || peek(skip).is("inline") || peek(skip).is("explicit") ||
           peek(skip).is("METAL_FUNC"))
      skip++;
    if (peek(skip).text == d->name && peek(skip + 1).is("(")) {
      at += skip;
      Function* f = make(tree.functions);
      f->at = here();
      f->name = next().text;
      f->is_constructor = true;
      f->templates = templates;
      f->is_template = is_template;
      function_rest(f);
      d->methods.push_back(f);
      return;
    }
    if (is("~")) fail(here(), "destructors are outside the language");
    if (peek(skip).is("operator")) {
      at += skip;
      conversion(d);
      return;
    }
    member_declaration(d, templates, is_template);
  }

  void conversion(Struct* d) {
    Function* f = make(tree.functions);
    f->at = here();
    f->name = operator_name();
    if (f->name != "operator ") fail(f->at, "expected a type before operator");
    f->name = "operator T";
    f->result = type_id();
    function_rest(f);
    d->methods.push_back(f);
  }

  void member_declaration(Struct* d, const std::vector<TemplateParameter>& templates, bool is_template) {
    Specifiers sp = specifiers();
    for (;;) {
      Variable v;
      TypeNode* n = pointers(sp.type);
      v.at = here();
      if (is("operator") || (peek().kind == Tok::name && peek(1).is("("))) {
        Function* f = make(tree.functions);
        f->at = here();
        f->name = is("operator") ? operator_name() : next().text;
        f->result = n;
        f->is_static = sp.is_static || sp.is_friend;
        f->templates = templates;
        f->is_template = is_template;
        function_rest(f);
        d->methods.push_back(f);
        return;
      }
      v.type = declarator(n, v.name, false);
      v.is_static = sp.is_static;
      v.is_constexpr = sp.is_constexpr;
      if (take(":")) fail(v.at, "bit fields are outside the language");
      initializer(v);
      d->members.push_back(v);
      if (take(";")) return;
      need(",");
    }
  }

  /* ---- the file ---- */

  Item item() {
    Nested nested(*this);
    Item i;
    i.at = here();
    if (is("namespace")) return space_item();
    if (is("template")) return template_item();
    Stmt* s = type_statement();
    if (s) {
      i.s = s;
      return i;
    }
    if (take("extern")) fail(i.at, "extern is outside the language");
    return declaration_item({}, false);
  }

  Item space_item() {
    Item i;
    i.at = here();
    i.kind = Item::space;
    next();
    if (peek().kind == Tok::name) {
      i.name = next().text;
      while (take("::")) i.name += "::" + need_name("a name");
    }
    scopes.back()[i.name] = Known::space;
    need("{");
    while (!take("}")) {
      if (peek().kind == Tok::end) expected("'}'");
      if (!take(";")) i.items.push_back(item());
    }
    return i;
  }

  Item template_item() {
    Item i;
    i.at = here();
    next();
    if (!is("<")) return instance_item();
    if (peek(1).is(">")) {
      next();
      next();
      if (is("struct") || is("class")) {
        i.s = structure({}, false);
        need(";");
        return i;
      }
      return declaration_item({}, true);
    }
    Scoped scope(*this);
    uint32_t before = template_depth;
    template_depth = 1;
    std::vector<TemplateParameter> p = template_parameters();
    if (is("struct") || is("class")) {
      i.s = structure(std::move(p), true);
      need(";");
    } else if (is("using")) {
      i.s = alias(std::move(p));
    } else {
      i = declaration_item(p, false);
    }
    template_depth = before;
    return i;
  }

  /* template [[host_name("n")]] [[kernel]] decltype(f<4>) f<4>; */
  Item instance_item() {
    Item i;
    i.at = here();
    i.kind = Item::instance;
    while (is("[")) {
      if (peek(2).is("host_name") && peek(4).kind == Tok::text) i.name = peek(4).text;
      skip_attribute();
    }
    if (is("decltype")) {
      next();
      need("(");
      expression();
      need(")");
      i.path = path();
    } else {
      specifiers();
      i.path = path();
    }
    while (!is(";")) {
      if (peek().kind == Tok::end) expected("';'");
      next();
    }
    next();
    return i;
  }

  Item declaration_item(const std::vector<TemplateParameter>& templates, bool specialization) {
    Item i;
    i.at = here();
    bool kernel = false;
    while ((is("[") && peek(1).is("[")) || is("kernel")) {
      kernel = kernel || is("kernel") || peek(2).is("kernel");
      if (is("kernel")) next();
      else skip_attribute();
    }
    bool any_template = !templates.empty();
    size_t begin = at;
    Specifiers sp = specifiers();
    TypeNode* n = pointers(sp.type);
    kernel = kernel || (t[begin].is("kernel"));
    bool function =
        is("operator") || (peek().kind == Tok::name && (peek(1).is("(") || (specialization && peek(1).is("<"))));
    if (!function) {
      at = begin;
      i.s = variables();
      if (any_template) fail(i.at, "templates of variables are outside the language");
      return i;
    }
    i.kind = Item::function;
    Function* f = make(tree.functions);
    i.f = f;
    f->at = here();
    f->result = n;
    f->is_kernel = kernel;
    f->templates = templates;
    f->is_template = any_template;
    if (is("operator")) f->name = operator_name();
    else f->name = next().text;
    if (specialization) {
      f->is_specialization = true;
      if (is("<")) f->specialized = template_args();
    }
    if (any_template) outer()[f->name] = Known::function_template;
    uint32_t before = template_depth;
    template_depth = 0;
    function_rest(f);
    template_depth = before;
    return i;
  }

  std::vector<Item> run() {
    std::vector<Item> items;
    while (peek().kind != Tok::end)
      if (!take(";")) items.push_back(item());
    return items;
  }
};

/* > > and > >= for the shifts: whether > closes template arguments only the parser knows. */
std::vector<Token> split_shifts(std::vector<Token> in) {
  std::vector<Token> out;
  out.reserve(in.size() + 16);
  for (Token& t : in) {
    bool shift = t.kind == Tok::mark && (t.text == ">>" || t.text == ">>=");
    if (!shift) {
      out.push_back(std::move(t));
      continue;
    }
    Token second = t;
    second.text = t.text.substr(1);
    second.at.column++;
    second.space = second.first = false;
    t.text = ">";
    out.push_back(std::move(t));
    out.push_back(std::move(second));
  }
  for (size_t i = 1; i < out.size(); i++)                              // > > apart is no shift
    if (out[i].kind == Tok::mark && out[i].text[0] == '>' && out[i].at.line != out[i - 1].at.line) out[i].space = true;
  return out;
}

}  // namespace

std::vector<Item> parse(std::vector<Token> tokens, Tree& tree, Names& globals) {
  Parser p{split_shifts(std::move(tokens)), tree, {}};
  p.scopes.push_back(globals);
  std::vector<Item> items = p.run();
  globals = p.scopes[0];
  return items;
}

}  // namespace metal
