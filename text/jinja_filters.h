// The filters of templates (jinja2/filters.py): tables of those on text and numbers
// (jinja_text_filters.cc) and on lists (jinja_list_filters.cc), and access to their arguments.
//
// A filter gets its input and its arguments. Errors come from the interpreter (Fail), which knows
// the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/jinja_interpreter.h"

namespace aisp::jinja {

struct Filter {
  std::string_view name;
  Result<Value> (*apply)(Interpreter&, const Value& v, const Args&);
};
std::span<const Filter> TextFilters();
std::span<const Filter> ListFilters();

// Argument number i, or the one with that name; `absent` if there is none.
bool Flag(Interpreter& in, const Args& args, size_t i, std::string_view name, bool absent = false);
Result<int64_t> Integer(Interpreter& in, const Args& args, size_t i, std::string_view name,
                        int64_t absent);
Result<std::string> Text(Interpreter& in, const Args& args, size_t i, std::string_view name,
                         std::string_view absent);

// str.replace, at most `limit` times unless that is negative.
Result<Value> Replaced(Interpreter& in, const std::string& s, const std::string& from,
                       const std::string& to, int64_t limit);

}  // namespace aisp::jinja
