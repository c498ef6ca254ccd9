// CallReader: parses the tool calls of one answer, from the trigger on. For answer/ only.
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
    kMore,    // needs more text
    kOver,    // the calls have ended; what is left in the buffer is plain text
    kNoCall,  // this is not a call: nothing was emitted and the buffer is complete
  };
  virtual ~CallReader() = default;
  // Consumes what it can from the front of `buffer`, which first begins with the trigger.
  virtual State Read(std::string* buffer, std::vector<AnswerPart>* out) = 0;
  // As Read, for the end of the answer. Never returns kMore.
  virtual State Finish(std::string* buffer, std::vector<AnswerPart>* out) = 0;
};

std::unique_ptr<CallReader> MakeObjectCalls(const CallFormat& format, uint32_t* calls);
std::unique_ptr<CallReader> MakeNamedCalls(const CallFormat& format, uint32_t* calls);
std::unique_ptr<CallReader> MakeMarkedCalls(const CallFormat& format, uint32_t* calls);
// `tools`, `parameters`: JSON Schemas by tool name; null: any name is accepted.
std::unique_ptr<CallReader> MakePythonicCalls(uint32_t* calls,
                                              std::shared_ptr<const Value::Map> tools);
std::unique_ptr<CallReader> MakeXmlCalls(uint32_t* calls,
                                         std::shared_ptr<const Value::Map> parameters);

// Finds the end of one JSON object, byte by byte.
class JsonExtent {
 public:
  // True for the byte that closes the object.
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

// Decodes a quoted JSON string; false when `quoted` is not one.
bool UnquoteJson(std::string_view quoted, std::string* out);
std::string QuoteJson(std::string_view text);
bool IsJson(std::string_view text);
// Appends one byte of text, escaped for a JSON string.
void AppendEscaped(char c, std::string* out);

inline constexpr std::string_view kBlanks = " \t\r\n";
// Length of the longest proper prefix of `marker` that `text` ends with.
size_t PartialEnd(std::string_view text, std::string_view marker);

}  // namespace aisp
