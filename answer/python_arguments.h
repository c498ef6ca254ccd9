// PythonArguments: the arguments of a Python call, `a=1, b="x")`, read byte by byte and said again
// as JSON. A value, cheap to copy. Brackets are counted, not matched: who needs that reads the
// JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace aisp {

// Names of parameters that can be written so.
bool IsPythonName(std::string_view name);

class PythonArguments {
 public:
  // kOne: the one spelling that a constrained answer has, and every byte is said at once: strings
  // in double quotes, True, False and None, one blank at most behind commas and colons. kAny: also
  // single quotes, Python's own escapes, blanks, a comma at the end.
  enum class Spelling : uint8_t { kOne, kAny };
  explicit PythonArguments(Spelling spelling) : any_(spelling == Spelling::kAny) {}

  // Takes what follows the opening parenthesis; false when `c` may not follow.
  bool Step(char c, std::string* json);
  // The closing parenthesis was read.
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
  bool first_ = true;      // no argument was read
  bool blank_ = false;     // one may follow
  bool comma_ = false;     // kAny: one that was read and not said
  bool key_over_ = false;  // kAny: blanks before the equals sign
  char quote_ = '"';
  uint8_t word_ = 0, word_at_ = 0;
  uint32_t depth_ = 0;  // of lists and dictionaries
};

}  // namespace aisp
