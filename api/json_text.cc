#include "api/json_text.h"

#include <array>

#include "common/strings.h"
#include "text/utf8.h"

namespace aisp {
namespace {

// 0: no escape; 'u': \u00XX; else the letter after the backslash.
constexpr std::array<char, 256> MakeEscapes() {
  std::array<char, 256> table{};
  for (int c = 0; c < 0x20; ++c) table[static_cast<size_t>(c)] = 'u';
  table['\n'] = 'n';
  table['\r'] = 'r';
  table['\t'] = 't';
  table['\b'] = 'b';
  table['\f'] = 'f';
  table['"'] = '"';
  table['\\'] = '\\';
  return table;
}
constexpr std::array<char, 256> kEscapes = MakeEscapes();

void AppendValid(std::string_view text, std::string* out) {
  size_t plain = 0;  // start of the run that is copied unchanged
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char escape = kEscapes[byte];
    if (escape == 0) continue;
    out->append(text.substr(plain, i - plain));
    plain = i + 1;
    out->push_back('\\');
    out->push_back(escape);
    if (escape != 'u') continue;
    constexpr std::string_view kHex = "0123456789abcdef";
    out->append("00");
    out->push_back(kHex[byte >> 4]);
    out->push_back(kHex[byte & 15]);
  }
  out->append(text.substr(plain));
}

}  // namespace

void AppendJsonEscaped(std::string_view text, std::string* out) {
  if (IsValidUtf8(text)) return AppendValid(text, out);
  std::string repaired;
  Utf8Assembler assembler(Utf8Assembler::Repair::kMaximalSubpart);
  assembler.Push(text, &repaired);
  assembler.Flush(&repaired);
  AppendValid(repaired, out);
}

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  AppendJsonEscaped(text, out);
  out->push_back('"');
}

void AppendJson(const Value& value, std::string* out) {
  if (value.IsBool()) {
    *out += value.AsBool() ? "true" : "false";
  } else if (value.IsInt()) {
    AppendNumber(value.AsInt(), out);
  } else if (value.IsFloat()) {
    AppendNumber(value.AsFloat(), out);
  } else if (value.IsString()) {
    AppendJsonString(value.AsString(), out);
  } else if (value.IsList()) {
    AppendList(value.AsList(), out, [out](const Value& item) { AppendJson(item, out); });
  } else if (value.IsMap()) {
    out->push_back('{');
    bool first = true;
    for (const auto& [name, member] : value.AsMap()) {
      if (!std::exchange(first, false)) out->push_back(',');
      AppendJsonString(name, out);
      out->push_back(':');
      AppendJson(member, out);
    }
    out->push_back('}');
  } else {
    *out += "null";
  }
}

}  // namespace aisp
