// AnswerParser: splits what a model writes, as it arrives, into thinking, content and tool calls.
// One object per choice; no I/O; one thread. Memory is bounded by the text pushed.
//
// No text is lost: what looked like a call and is not one is emitted as content. A possible prefix
// of a marker is held back until it is decided. The joined arguments of a call are JSON text,
// provided that the model wrote valid arguments.
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
  uint32_t call = 0;  // kCall, kArguments: index of the call, from 0
};

struct AnswerParserOptions {
  const CallFormat* calls = nullptr;   // null: calls are not parsed
  const ThinkFormat* think = nullptr;  // null: thinking is not parsed
  bool in_thinking = false;            // the prompt ended inside thinking
  // JSON Schemas of the tools' parameters by tool name, for formats that write untyped values.
  std::shared_ptr<const Value::Map> parameters;
  // A constraint makes the answer either calls of these tools from the start, or only content.
  bool calls_or_content = false;
};

class AnswerParser {
 public:
  virtual ~AnswerParser() = default;
  virtual void Push(std::string_view text, std::vector<AnswerPart>* out) = 0;
  // Ends the answer: emits what was held back.
  virtual void Finish(std::vector<AnswerPart>* out) = 0;
};

// The id of a call, in the format's style. Deterministic: equal inputs give the same id.
std::string MakeCallId(std::string_view request, uint32_t choice, uint32_t call,
                       const CallFormat* format);

std::unique_ptr<AnswerParser> MakeAnswerParser(const AnswerParserOptions& options);

}  // namespace aisp
