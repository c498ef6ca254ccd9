// PythonArguments: converts the arguments of a Python call, `a=1, b="x")`, to JSON, byte by byte. A
// value, cheap to copy. Brackets are counted, not matched: callers that care check the JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace aisp {

// Whether a parameter's name can be written as a Python keyword argument.
bool IsPythonName(std::string_view name);

class PythonArguments {
 public:
  // kOne: the single spelling that a constraint allows, converted without delay: double quotes,
  // True, False, None, at most one blank after commas and colons. kAny: also single quotes,
  // Python's other escapes, blanks, a trailing comma.
  enum class Spelling : uint8_t { kOne, kAny };
  explicit PythonArguments(Spelling spelling) : any_(spelling == Spelling::kAny) {}

  // Consumes the next byte after the opening parenthesis; false when `c` is not allowed.
  bool Step(char c, std::string* json);
  // True after the closing parenthesis.
  bool done() const { return place_ == Place::kDone; }
  bool in_text() const { return place_ == Place::kText || place_ == Place::kEscape; }
  bool in_key() const { return place_ == Place::kKey; }
  bool in_escape() const { return place_ == Place::kEscape; }

 private:
  enum class Place : uint8_t {
    kStart,
    kKey,
    kValue,
    kText,
    kEscape,
    kWord,
    kNumber,
    kAfter,
    kDone
  };

  bool StepStart(char c, std::string* json);
  bool StepKey(char c, std::string* json);
  bool StepValue(char c, std::string* json);
  bool StepText(char c, std::string* json);
  bool StepEscape(char c, std::string* json);
  bool StepWord(char c, std::string* json);
  bool StepAfter(char c, std::string* json);
  void Comma(std::string* json);
  bool Close(char c, std::string* json);

  bool any_;
  Place place_ = Place::kStart;
  bool first_ = true;      // no argument yet
  bool blank_ = false;     // a blank is allowed next
  bool comma_ = false;     // kAny: a comma was read and not yet emitted
  bool key_over_ = false;  // kAny: blanks before the equals sign
  char quote_ = '"';
  uint8_t word_ = 0, word_at_ = 0;
  uint32_t depth_ = 0;  // of nested lists and dictionaries
};

}  // namespace aisp
