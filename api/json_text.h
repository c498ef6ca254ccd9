// Writes JSON text directly: what a stream needs per token, and parsed values. Appends to `out`.
// Pure functions: any thread.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "text/value.h"

namespace aisp {

// Appends `text` escaped and without quotes; ill-formed UTF-8 becomes U+FFFD.
void AppendJsonEscaped(std::string_view text, std::string* out);
// As above, with quotes.
void AppendJsonString(std::string_view text, std::string* out);
// Writes a value from ParseJson as JSON again; recursion is as deep as the value.
void AppendJson(const Value& value, std::string* out);

template <typename T>
void AppendNumber(T number, std::string* out) {
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  out->append(digits, end);
}

// Calls `each` for every element, with commas in between.
template <typename Range, typename Fn>
void AppendList(const Range& range, std::string* out, Fn each) {
  out->push_back('[');
  bool first = true;
  for (const auto& element : range) {
    if (!std::exchange(first, false)) out->push_back(',');
    each(element);
  }
  out->push_back(']');
}

}  // namespace aisp
