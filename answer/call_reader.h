// CallReader: the calls of one answer, from the trigger on. Inside answer/ only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "answer/parser.h"

namespace aisp {

class CallReader {
 public:
  enum class State : uint8_t {
    kMore,    // wants more text
    kOver,    // the calls are over; what is left in the buffer is text again
    kNoCall,  // this is no call; nothing was told of it, and the buffer has all of it
  };
  virtual ~CallReader() = default;
  // Takes what it can from the front of `buffer`. The buffer begins with the trigger at first.
  virtual State Read(std::string* buffer, std::vector<AnswerPart>* out) = 0;
  // The answer ends; the same with what is left, and never kMore.
  virtual State Finish(std::string* buffer, std::vector<AnswerPart>* out) = 0;
};

std::unique_ptr<CallReader> MakeObjectCalls(const CallFormat& format, uint32_t* calls);
std::unique_ptr<CallReader> MakeNamedCalls(const CallFormat& format, uint32_t* calls);
std::unique_ptr<CallReader> MakeMarkedCalls(const CallFormat& format, uint32_t* calls);
// `tools`, `parameters`: schemas by the names of tools; null: any name.
std::unique_ptr<CallReader> MakePythonicCalls(uint32_t* calls,
                                              std::shared_ptr<const Value::Map> tools);
std::unique_ptr<CallReader> MakeXmlCalls(uint32_t* calls,
                                         std::shared_ptr<const Value::Map> parameters);

// Follows one JSON object byte by byte: where it ends.
class JsonExtent {
 public:
  // True with the byte that closes the object.
  bool Push(char c) {
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      return false;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') return --depth_ <= 0;
    return false;
  }
  int depth() const { return depth_; }
  bool in_string() const { return in_string_; }

 private:
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

// A JSON string with its quotes as text; false when it is none.
bool UnquoteJson(std::string_view quoted, std::string* out);
std::string QuoteJson(std::string_view text);
bool IsJson(std::string_view text);
// One byte of a text as it stands in a JSON string.
void AppendEscaped(char c, std::string* out);

inline constexpr std::string_view kBlanks = " \t\r\n";
// Longest beginning of `marker` that `text` ends with, less than all of it.
size_t PartialEnd(std::string_view text, std::string_view marker);

}  // namespace aisp
