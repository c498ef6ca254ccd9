#include "answer/python_arguments.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "answer/call_reader.h"

namespace aisp {
namespace {

struct Word {
  std::string_view python, json;  // of equal length
};
constexpr std::array<Word, 6> kWords = {{{"True", "true"},
                                         {"False", "false"},
                                         {"None", "null"},
                                         {"true", "true"},
                                         {"false", "false"},
                                         {"null", "null"}}};
constexpr size_t kPythonWords = 3;

bool IsBlank(char c) { return kBlanks.find(c) != std::string_view::npos; }
bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool IsNamePart(char c) {
  return IsNameStart(c) || std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-';
}
bool IsNumberPart(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("+-.eE").find(c) != std::string_view::npos;
}

}  // namespace

bool IsPythonName(std::string_view name) {
  return !name.empty() && IsNameStart(name[0]) && std::all_of(name.begin(), name.end(), IsNamePart);
}

bool PythonArguments::Step(char c, std::string* json) {
  const bool outside = place_ != Place::kText && place_ != Place::kEscape &&
                       place_ != Place::kWord && place_ != Place::kKey;
  if (outside && IsBlank(c) && place_ != Place::kDone) {
    if (!any_ && !(blank_ && c == ' ')) return false;
    blank_ = false;
    if (place_ == Place::kNumber) place_ = Place::kAfter;
    return true;
  }
  blank_ = false;
  switch (place_) {
    case Place::kStart:
      return StepStart(c, json);
    case Place::kKey:
      return StepKey(c, json);
    case Place::kValue:
      return StepValue(c, json);
    case Place::kText:
      return StepText(c, json);
    case Place::kEscape:
      return StepEscape(c, json);
    case Place::kWord:
      return StepWord(c, json);
    case Place::kNumber:
      if (!IsNumberPart(c)) return StepAfter(c, json);
      json->push_back(c);
      return true;
    case Place::kAfter:
      return StepAfter(c, json);
    case Place::kDone:
      break;
  }
  return false;
}

void PythonArguments::Comma(std::string* json) {
  if (comma_) json->push_back(',');
  comma_ = false;
}

// A name, or the closing parenthesis where none is required.
bool PythonArguments::StepStart(char c, std::string* json) {
  if (c == ')' && (first_ || comma_)) {
    *json += first_ ? "{}" : "}";
    place_ = Place::kDone;
    return true;
  }
  if (!IsNameStart(c)) return false;
  Comma(json);
  *json += first_ ? "{\"" : "\"";
  json->push_back(c);
  first_ = key_over_ = false;
  place_ = Place::kKey;
  return true;
}

bool PythonArguments::StepKey(char c, std::string* json) {
  if (c == '=') {
    *json += "\":";
    place_ = Place::kValue;
    return true;
  }
  if (any_ && IsBlank(c)) return key_over_ = true;
  if (key_over_ || !IsNamePart(c)) return false;
  json->push_back(c);
  return true;
}

bool PythonArguments::StepValue(char c, std::string* json) {
  if (c == ']' || c == '}') return Close(c, json);
  Comma(json);
  if (c == '"' || (any_ && c == '\'')) {
    json->push_back('"');
    quote_ = c;
    place_ = Place::kText;
    return true;
  }
  if (c == '[' || c == '{') {
    json->push_back(c);
    ++depth_;
    return true;
  }
  if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '-') {
    json->push_back(c);
    place_ = Place::kNumber;
    return true;
  }
  const size_t words = any_ ? kWords.size() : kPythonWords;
  for (size_t i = 0; i < words; ++i) {
    if (kWords[i].python[0] != c) continue;
    json->push_back(kWords[i].json[0]);
    word_ = static_cast<uint8_t>(i);
    word_at_ = 1;
    place_ = Place::kWord;
    return true;
  }
  return false;
}

bool PythonArguments::StepWord(char c, std::string* json) {
  const Word& word = kWords[word_];
  if (word.python[word_at_] != c) return false;
  json->push_back(word.json[word_at_++]);
  if (word_at_ == word.python.size()) place_ = Place::kAfter;
  return true;
}

bool PythonArguments::StepText(char c, std::string* json) {
  if (c == quote_) {
    json->push_back('"');
    place_ = Place::kAfter;
  } else if (c == '\\') {
    if (!any_) json->push_back(c);
    place_ = Place::kEscape;
  } else if (any_ && c == '"') {
    *json += "\\\"";
  } else if (any_ && static_cast<unsigned char>(c) < 0x20) {
    AppendEscaped(c, json);
  } else {
    json->push_back(c);
  }
  return true;
}

bool PythonArguments::StepEscape(char c, std::string* json) {
  place_ = Place::kText;
  if (!any_) {
    // Escapes that mean the same in both languages.
    if (c == '/') return false;
    json->push_back(c);
    return true;
  }
  if (std::string_view("\"\\ntrbfu").find(c) != std::string_view::npos) {
    *json += '\\';
    json->push_back(c);
  } else if (c == 'x') {
    *json += "\\u00";
  } else if (c == '\'') {
    json->push_back(c);
  } else if (c != '\n') {
    *json += "\\\\";
    json->push_back(c);
  }
  return true;
}

bool PythonArguments::Close(char c, std::string* json) {
  if (depth_ == 0) return false;
  --depth_;
  comma_ = false;
  json->push_back(c);
  place_ = Place::kAfter;
  return true;
}

bool PythonArguments::StepAfter(char c, std::string* json) {
  if (c == ']' || c == '}') return Close(c, json);
  if (c == ')' && depth_ == 0) {
    json->push_back('}');
    place_ = Place::kDone;
    return true;
  }
  if (c == ':' && depth_ > 0) {
    json->push_back(c);
  } else if (c == ',') {
    comma_ = any_;
    if (!any_) json->push_back(c);
  } else {
    return false;
  }
  place_ = c == ',' && depth_ == 0 ? Place::kStart : Place::kValue;
  blank_ = true;
  return true;
}

}  // namespace aisp
