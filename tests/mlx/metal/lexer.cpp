/* Text to tokens.                                                                     SPDX-License-Identifier: MIT */
#include <cstring>

#include "common.h"

namespace metal {
namespace {

/* Longest first. */
const char* const marks[] = {"<<=", ">>=", "...", "->*", "::", "->", "++", "--", "<<", ">>", "<=", ">=", "==",
                             "!=",  "&&",  "||",  "+=",  "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##", "+",
                             "-",   "*",   "/",   "%",   "=",  "<",  ">",  "!",  "~",  "&",  "|",  "^",  "?",
                             ":",   ";",   ",",   ".",   "(",  ")",  "[",  "]",  "{",  "}",  "#",  "@"};

/* Names that are marks. */
const char* const words[] = {"and",    "&&", "or",    "||", "not", "!", "not_eq", "!=",
                             "bitand", "&",  "bitor", "|",  "xor", "^", "compl",  "~",  nullptr};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Lexer {
  const std::string& s;
  uint16_t file;
  size_t at = 0, line_start = 0;
  uint32_t line = 1;
  bool first = true, space = false;
  std::vector<Token> out{};

  Place place() const {
    return {line, static_cast<uint16_t>(at - line_start < 60000 ? at - line_start + 1 : 60000), file};
  }
  char look(size_t n = 0) const { return at + n < s.size() ? s[at + n] : '\0'; }

  void new_line() {
    line++;
    line_start = at;
  }

  /* A backslash before the line's end: the line goes on in the next. */
  bool skip_continuation() {
    if (look() != '\\' || !(look(1) == '\n' || (look(1) == '\r' && look(2) == '\n'))) return false;
    at += look(1) == '\n' ? 2 : 3;
    new_line();
    return true;
  }

  bool skip_comment() {
    if (look() != '/') return false;
    if (look(1) == '/') {
      while (at < s.size() && look() != '\n')
        if (!skip_continuation()) at++;
      return true;
    }
    if (look(1) != '*') return false;
    Place begin = place();
    at += 2;
    while (!(look() == '*' && look(1) == '/')) {
      if (at >= s.size()) fail(begin, "this comment has no end, expected */");
      if (s[at++] == '\n') new_line();
    }
    at += 2;
    return true;
  }

  void skip_space() {
    for (;;) {
      char c = look();
      if (at >= s.size()) return;
      if (skip_continuation()) {
      } else if (c == '\n') {
        at++;
        new_line();
        first = true;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
        at++;
      } else if (!skip_comment()) {
        return;
      }
      space = true;
    }
  }

  void push(Tok kind, Place p, std::string text) {
    if (out.size() >= MAX_TOKENS) fail(p, "the source is too long");
    Token t;
    t.kind = kind;
    t.at = p;
    t.text = std::move(text);
    t.first = first;
    t.space = space;
    out.push_back(std::move(t));
    first = space = false;
  }

  /* A number as the preprocessor sees it: letters, digits, points, signs behind an exponent's letter. */
  void number() {
    Place p = place();
    size_t begin = at;
    bool hex = look() == '0' && (look(1) == 'x' || look(1) == 'X'), real = false;
    std::string text;
    for (; at < s.size(); at++) {
      char c = s[at], l = static_cast<char>(c | 32);
      bool exponent = hex ? l == 'p' : l == 'e';
      if (c == '\'' ) continue;
      if (!is_letter(c) && !is_digit(c) && c != '.') break;
      text += c;
      real = real || c == '.' || (exponent && at > begin);
      if (exponent && (look(1) == '+' || look(1) == '-')) text += s[++at];
    }
    if (!hex && !text.empty() && (text.back() | 32) == 'f') real = true;
    if (!hex && !text.empty() && (text.back() | 32) == 'h') real = true;
    push(real ? Tok::real : Tok::integer, p, text);
  }

  void quoted(char quote) {
    Place p = place();
    std::string text;
    for (at++; look() != quote; at++) {
      if (at >= s.size() || look() == '\n') fail(p, std::string("expected ") + quote + " before the line's end");
      if (look() == '\\') text += s[at++];
      text += look();
    }
    at++;
    push(quote == '"' ? Tok::text : Tok::character, p, text);
  }

  void mark() {
    for (const char* m : marks) {
      size_t n = strlen(m);
      if (s.compare(at, n, m)) continue;
      Place p = place();
      at += n;
      push(Tok::mark, p, m);
      return;
    }
    fail(place(), "a character that the language does not have");
  }

  std::vector<Token> run() {
    for (skip_space(); at < s.size(); skip_space()) {
      char c = look();
      if (is_letter(c)) {
        Place p = place();
        size_t begin = at;
        while (is_letter(look()) || is_digit(look())) at++;
        std::string name = s.substr(begin, at - begin);
        const char* const* word = words;
        while (*word && name != *word) word += 2;
        if (*word) push(Tok::mark, p, word[1]);
        else push(Tok::name, p, name);
      } else if (is_digit(c) || (c == '.' && is_digit(look(1)))) {
        number();
      } else if (c == '"' || c == '\'') {
        quoted(c);
      } else {
        mark();
      }
    }
    Token end;
    end.at = place();
    end.first = true;
    out.push_back(end);
    return std::move(out);
  }
};

}  // namespace

std::vector<Token> lex(const std::string& source, uint16_t file) {
  if (source.size() > MAX_SOURCE) fail({1, 1, file}, "the source is too long");
  return Lexer{source, file}.run();
}

}  // namespace metal
