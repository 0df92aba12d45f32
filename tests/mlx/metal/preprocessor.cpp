/* Directives and macros.                                                              SPDX-License-Identifier: MIT */
#include <algorithm>
#include <cstdlib>

#include "common.h"

namespace metal {
namespace {

using Tokens = std::vector<Token>;

bool hidden(const Token& t) {
  for (const HideSet* h = t.hidden.get(); h; h = h->next.get())
    if (h->name == t.text) return true;
  return false;
}

struct Preprocessor {
  const Tokens& in;
  Macros& macros;
  bool& exact;
  size_t at = 0;
  Tokens out{};
  uint32_t work = 0;
  struct Condition { Place at; bool taken, active, otherwise; };
  std::vector<Condition> conditions{};

  void count(Place p, size_t n = 1) {
    work += static_cast<uint32_t>(n);
    if (work > 4 * MAX_TOKENS) fail(p, "macros make the source too long");
  }
  bool active() const {
    return std::all_of(conditions.begin(), conditions.end(), [](const Condition& c) { return c.active; });
  }

  /* ---- macros ---- */

  static Token stringized(const Tokens& arg, Place p) {
    Token t;
    t.kind = Tok::text;
    t.at = p;
    for (const Token& a : arg) {
      if (a.space && !t.text.empty()) t.text += ' ';
      t.text += a.text;
    }
    return t;
  }

  static Token pasted(const Token& a, const Token& b) {
    Tokens t = lex(a.text + b.text, a.at.file);
    if (t.size() != 2) fail(a.at, "## makes no token of " + a.text + " and " + b.text);
    t[0].at = a.at;
    t[0].space = a.space;
    return t[0];
  }

  /* Arguments of a call from `pos` (its opening parenthesis) on; leaves pos behind the closing one. */
  std::vector<Tokens> arguments(const Tokens& t, size_t& pos) {
    std::vector<Tokens> args(1);
    Place begin = t[pos].at;
    int depth = 0;
    for (pos++;; pos++) {
      if (pos >= t.size() || t[pos].kind == Tok::end) fail(begin, "expected ) at the end of a macro's arguments");
      const Token& k = t[pos];
      if (k.is(")") && !depth) break;
      if (k.is("(")) depth++;
      if (k.is(")")) depth--;
      if (k.is(",") && !depth) args.emplace_back();
      else args.back().push_back(k);
    }
    pos++;
    return args;
  }

  static int parameter(const Macro& m, const std::string& name) {
    for (size_t i = 0; i < m.parameters.size(); i++) if (m.parameters[i] == name) return static_cast<int>(i);
    return -1;
  }

  /* The macro's body with its arguments in it. */
  Tokens substitute(const Macro& m, std::vector<Tokens> args, const Token& name) {
    Tokens result;
    while (m.variadic && args.size() > m.parameters.size()) {          // the last one takes the rest
      Token comma;
      comma.kind = Tok::mark;
      comma.text = ",";
      Tokens rest = std::move(args[m.parameters.size()]);
      args.erase(args.begin() + static_cast<long>(m.parameters.size()));
      args[m.parameters.size() - 1].push_back(comma);
      for (Token& t : rest) args[m.parameters.size() - 1].push_back(t);
    }
    for (size_t i = 0; i < m.body.size(); i++) {
      const Token& t = m.body[i];
      bool paste = i > 0 && m.body[i - 1].is("##");
      if (t.is("##")) continue;
      int p = t.kind == Tok::name ? parameter(m, t.text) : -1;
      if (m.function && t.is("#") && i + 1 < m.body.size() && (p = parameter(m, m.body[i + 1].text)) >= 0) {
        result.push_back(stringized(args[static_cast<size_t>(p)], name.at));
        i++;
        continue;
      }
      bool raw = paste || (i + 1 < m.body.size() && m.body[i + 1].is("##"));
      Tokens piece = p < 0 ? Tokens{t} : raw ? args[static_cast<size_t>(p)] : expand(args[static_cast<size_t>(p)]);
      if (!piece.empty()) piece[0].space = t.space;
      size_t from = 0;
      if (paste && !result.empty() && !piece.empty()) {
        result.back() = pasted(result.back(), piece[0]);
        from = 1;
      }
      count(name.at, piece.size() + 1);
      result.insert(result.end(), piece.begin() + static_cast<long>(from), piece.end());
    }
    auto hide = std::make_shared<const HideSet>(HideSet{name.text, name.hidden});
    for (Token& t : result) {
      if (t.kind == Tok::name) t.hidden = hide;
      t.at = name.at;
    }
    return result;
  }

  int depth = 0;
  /* Expands all macros of a list. */
  Tokens expand(const Tokens& list) {
    Tokens work_list(list.rbegin(), list.rend()), result;             // the next token is the last
    if (++depth > 64) fail(list.empty() ? Place{} : list[0].at, "macros nest too deeply");
    while (!work_list.empty()) {
      Token t = std::move(work_list.back());
      work_list.pop_back();
      count(t.at);
      auto m = t.kind == Tok::name ? macros.find(t.text) : macros.end();
      if (m == macros.end() || hidden(t)) {
        result.push_back(std::move(t));
        continue;
      }
      std::vector<Tokens> args;
      if (m->second.function) {
        if (work_list.empty() || !work_list.back().is("(")) {
          result.push_back(std::move(t));
          continue;
        }
        Tokens forward(work_list.rbegin(), work_list.rend());
        count(t.at, forward.size() / 16);
        size_t pos = 0;
        args = arguments(forward, pos);
        work_list.resize(work_list.size() - pos);
        check_count(m->second, args, t);
      }
      Tokens body = substitute(m->second, std::move(args), t);
      work_list.insert(work_list.end(), body.rbegin(), body.rend());
    }
    depth--;
    return result;
  }

  static void check_count(const Macro& m, std::vector<Tokens>& args, const Token& t) {
    if (m.parameters.empty() && args.size() == 1 && args[0].empty()) args.clear();
    if (m.variadic && args.size() + 1 == m.parameters.size()) args.emplace_back();
    if (args.size() == m.parameters.size() || (m.variadic && args.size() >= m.parameters.size())) return;
    fail(t.at, "macro " + t.text + " takes " + std::to_string(m.parameters.size()) + " arguments, not " +
                   std::to_string(args.size()));
  }

  /* ---- #if ---- */

  struct Condition_parser {
    Preprocessor& p;
    const Tokens& t;
    Place where;
    size_t at = 0;
    int depth = 0;

    bool take(const char* s) {
      if (at < t.size() && t[at].is(s)) { at++; return true; }
      return false;
    }
    int64_t primary() {
      if (++depth > static_cast<int>(MAX_NESTING)) fail(where, "#if nests too deeply");
      int64_t v = 0;
      if (at >= t.size()) fail(where, "expected an expression behind #if");
      if (take("!")) v = !primary();
      else if (take("-")) v = static_cast<int64_t>(0 - static_cast<uint64_t>(primary()));
      else if (take("+")) v = primary();
      else if (take("~")) v = ~primary();
      else if (take("(")) {
        v = binary(0);
        if (!take(")")) fail(where, "expected ) in #if");
      } else if (t[at].kind == Tok::integer) v = static_cast<int64_t>(strtoull(t[at++].text.c_str(), nullptr, 0));
      else if (t[at].kind == Tok::name) v = t[at++].text == "true";
      else fail(t[at].at, "expected an integer in #if");
      depth--;
      return v;
    }
    static int64_t apply(const std::string& op, int64_t a, int64_t b, Place where) {
      uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
      if ((op == "/" || op == "%") && (!b || b == -1)) {
        if (!b) fail(where, "division by zero in #if");
        return op == "%" ? 0 : static_cast<int64_t>(0 - x);
      }
      if (op == "||") return a || b;
      if (op == "&&") return a && b;
      if (op == "|") return a | b;
      if (op == "^") return a ^ b;
      if (op == "&") return a & b;
      if (op == "==") return a == b;
      if (op == "!=") return a != b;
      if (op == "<") return a < b;
      if (op == ">") return a > b;
      if (op == "<=") return a <= b;
      if (op == ">=") return a >= b;
      if (op == "<<") return static_cast<int64_t>(x << (y & 63));
      if (op == ">>") return a >> (y & 63);
      if (op == "+") return static_cast<int64_t>(x + y);
      if (op == "-") return static_cast<int64_t>(x - y);
      if (op == "*") return static_cast<int64_t>(x * y);
      return op == "/" ? a / b : a % b;
    }
    int64_t binary(int level) {
      static const std::vector<std::vector<const char*>> levels = {
          {"||"},       {"&&"},     {"|"},          {"^"}, {"&"}, {"==", "!="}, {"<=", ">=", "<", ">"},
          {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"}};
      if (level == static_cast<int>(levels.size())) return primary();
      int64_t v = binary(level + 1);
      for (bool more = true; more;) {
        more = false;
        for (const char* op : levels[static_cast<size_t>(level)])
          if (!more && take(op)) {
            v = apply(op, v, binary(level + 1), where);
            more = true;
          }
      }
      return v;
    }
  };

  bool condition(const Tokens& line, Place where) {
    Tokens replaced;
    for (size_t i = 0; i < line.size(); i++) {
      if (!line[i].is("defined") && !line[i].is("__has_include") && !line[i].is("__has_feature")) {
        replaced.push_back(line[i]);
        continue;
      }
      bool known = line[i].is("defined"), parens = i + 1 < line.size() && line[i + 1].is("(");
      size_t name = i + (parens ? 2 : 1);
      if (name >= line.size()) fail(where, "expected a name behind defined");
      Token t;
      t.kind = Tok::integer;
      t.at = line[i].at;
      t.text = known && macros.count(line[name].text) ? "1" : "0";
      replaced.push_back(t);
      i = name;
      while (parens && i + 1 < line.size() && !line[i].is(")")) i++;
    }
    Tokens list = expand(replaced);
    Condition_parser c{*this, list, where};
    int64_t v = c.binary(0);
    if (c.at < list.size() && list[c.at].is("?")) fail(list[c.at].at, "?: in #if is outside the language");
    if (c.at != list.size()) fail(list[c.at].at, "expected the end of #if");
    return v != 0;
  }

  /* ---- directives ---- */

  Tokens rest_of_line() {
    Tokens line;
    while (in[at].kind != Tok::end && !in[at].first) line.push_back(in[at++]);
    return line;
  }

  void define(const Tokens& line, Place where) {
    if (line.empty() || line[0].kind != Tok::name) fail(where, "expected a name behind #define");
    Macro m;
    size_t i = 1;
    if (line.size() > 1 && line[1].is("(") && !line[1].space) {
      m.function = true;
      for (i = 2; i < line.size() && !line[i].is(")"); i++) {
        if (line[i].is(",")) continue;
        m.variadic = line[i].is("...");
        m.parameters.push_back(m.variadic ? "__VA_ARGS__" : line[i].text);
      }
      if (i++ >= line.size()) fail(where, "expected ) at the end of a macro's parameters");
    }
    m.body.assign(line.begin() + static_cast<long>(i), line.end());
    macros[line[0].text] = m;
  }

  void include(const Tokens& line, Place where) {
    std::string name;
    for (const Token& t : line) name += t.text;
    bool known = name.rfind("<metal", 0) == 0 || name.rfind("<simd", 0) == 0 || name.rfind("mlx/", 0) == 0 ||
                 name == "utils.h" || name == "<mlx>";
    if (!known) fail(where, "#include " + name + ": only <metal_...> is known");
  }

  void conditional(const std::string& d, const Tokens& line, Place where) {
    bool outer = active();
    if (d == "if" || d == "ifdef" || d == "ifndef") {
      bool v = false;
      if (outer && d == "if") v = condition(line, where);
      else if (outer) {
        if (line.empty()) fail(where, "expected a name behind #" + d);
        v = (macros.count(line[0].text) > 0) == (d == "ifdef");
      }
      if (conditions.size() > MAX_NESTING) fail(where, "#if nests too deeply");
      conditions.push_back({where, v, v, false});
      return;
    }
    if (conditions.empty()) fail(where, "#" + d + " without #if");
    Condition& c = conditions.back();
    if (d == "endif") {
      conditions.pop_back();
      return;
    }
    if (c.otherwise) fail(where, "#" + d + " behind #else");
    c.otherwise = d == "else";
    c.active = false;
    bool v = !c.taken && (d == "else" || (std::all_of(conditions.begin(), conditions.end() - 1,
                          [](const Condition& o) { return o.active; }) && condition(line, where)));
    c.active = v;
    c.taken = c.taken || v;
  }

  /* #pragma clang fp contract(off), METAL fp contract(off), STDC FP_CONTRACT OFF */
  static bool uncontracted(const Tokens& line) {
    std::string text;
    for (const Token& t : line) text += t.text;
    return text == "clangfpcontract(off)" || text == "METALfpcontract(off)" || text == "STDCFP_CONTRACTOFF";
  }

  void directive() {
    Place where = in[at++].at;
    if (in[at].first) return;                                          // an empty one
    std::string d = in[at++].text;
    Tokens line = rest_of_line();
    if (d == "if" || d == "ifdef" || d == "ifndef" || d == "elif" || d == "else" || d == "endif") {
      conditional(d, line, where);
      return;
    }
    if (!active()) return;
    if (d == "define") define(line, where);
    else if (d == "undef" && !line.empty()) macros.erase(line[0].text);
    else if (d == "include") include(line, where);
    else if (d == "error") fail(where, "#error" + std::string(line.empty() ? "" : " " + stringized(line, where).text));
    else if (d == "pragma") exact = exact || uncontracted(line);
    else if (d != "line" && d != "warning" && d != "import")
      fail(where, "#" + d + " is no known directive");
  }

  Tokens run() {
    Tokens text;
    while (in[at].kind != Tok::end) {
      if (in[at].first && in[at].is("#")) directive_behind(text);
      else if (active()) text.push_back(in[at++]);
      else at++;
    }
    flush(text);
    if (!conditions.empty()) fail(conditions.back().at, "this #if has no #endif");
    out.push_back(in[at]);
    return std::move(out);
  }

  /* Text before a directive is expanded with the macros as they were. */
  void directive_behind(Tokens& text) {
    flush(text);
    directive();
  }
  void flush(Tokens& text) {
    Tokens list = expand(text);
    for (size_t i = 0; i < list.size(); i++) {
      if (list[i].is("_Pragma") && i + 3 < list.size() && list[i + 1].is("(")) i += 3;
      else out.push_back(std::move(list[i]));
    }
    text.clear();
    if (out.size() > MAX_TOKENS) fail(out.back().at, "macros make the source too long");
  }
};

}  // namespace

std::vector<Token> preprocess(const std::vector<Token>& tokens, Macros& macros, bool& exact) {
  return Preprocessor{tokens, macros, exact}.run();
}

}  // namespace metal
