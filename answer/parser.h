// AnswerParser: what a model writes, told apart while it comes: thinking, content, tool calls. One
// object for each choice; no I/O; one thread. Bounded by what is pushed.
//
// Nothing is lost: text that looked like a call and is none is given out as content. What may be
// the beginning of a marker is held back until it is clear. The arguments of a call, joined, are
// JSON text wherever the model wrote such.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "answer/format.h"
#include "text/value.h"

namespace aisp {

struct AnswerPart {
  enum class Kind : uint8_t { kContent, kReasoning, kCall, kArguments };
  Kind kind = Kind::kContent;
  std::string text;   // kCall: the name of the tool
  uint32_t call = 0;  // kCall, kArguments: from 0
};

struct AnswerParserOptions {
  const CallFormat* calls = nullptr;   // null: no calls are looked for
  const ThinkFormat* think = nullptr;  // null: no thinking is looked for
  bool in_thinking = false;            // the prompt ended inside of it
  // The JSON Schemas of the tools' parameters by name, where a format writes values without types.
  std::shared_ptr<const Value::Map> parameters;
  // The answer is calls of these tools, spelled as a constraint has them, or content to its end.
  bool calls_or_content = false;
};

class AnswerParser {
 public:
  virtual ~AnswerParser() = default;
  virtual void Push(std::string_view text, std::vector<AnswerPart>* out) = 0;
  // The answer ends: what was held back is given out.
  virtual void Finish(std::vector<AnswerPart>* out) = 0;
};

// The id of a call as the format's templates want it: the same for the same request.
std::string MakeCallId(std::string_view request, uint32_t choice, uint32_t call,
                       const CallFormat* format);

std::unique_ptr<AnswerParser> MakeAnswerParser(const AnswerParserOptions& options);

}  // namespace aisp
