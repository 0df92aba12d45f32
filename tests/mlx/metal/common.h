/* What the compiler's parts share: errors, limits, tokens.                            SPDX-License-Identifier: MIT */
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace metal {

/* A place in a file: 0 is the caller's source, 1 the prelude. */
struct Place {
  uint32_t line = 0;
  uint16_t column = 0, file = 0;
};

struct Error {
  Place at;
  std::string text;
};
[[noreturn]] inline void fail(Place at, std::string text) { throw Error{at, std::move(text)}; }

/* The source is a stranger's: it ends with an error before it takes much of anything. */
enum : uint32_t {
  MAX_SOURCE = 4u << 20,         // bytes
  MAX_TOKENS = 400000,           // behind macros
  MAX_NESTING = 100,             // of statements, expressions, types
  MAX_CALLS = 48,                // of functions within functions
  MAX_CODE = 300000,             // instructions
  MAX_STEPS = 1000000,           // statements and expressions looked at, constants' evaluation included
  MAX_ELEMENTS = 65536,          // of an array that is a value or a variable
};

enum class Tok : uint8_t { end, name, integer, real, text, character, mark };

struct HideSet {
  std::string name;
  std::shared_ptr<const HideSet> next;
};

struct Token {
  Tok kind = Tok::end;
  bool first = false, space = false;          // of its line; behind white space
  Place at;
  std::string text;
  std::shared_ptr<const HideSet> hidden;      // macros that it came from: not expanded again
  bool is(const char* t) const { return (kind == Tok::mark || kind == Tok::name) && text == t; }
};

std::vector<Token> lex(const std::string& source, uint16_t file);

/* Macros outlive a file: the prelude's hold in the source. */
struct Macro {
  bool function = false, variadic = false;
  std::vector<std::string> parameters;
  std::vector<Token> body;
};
using Macros = std::unordered_map<std::string, Macro>;
/* exact: set where a pragma says that a * b + c is not to be contracted. */
std::vector<Token> preprocess(const std::vector<Token>& tokens, Macros& macros, bool& exact);

}  // namespace metal
