// AnswerEncoder: how the answer to one request is written, whole or as SSE events; one
// implementation for each shape of the API (response.h: chat and completions; responses_encoder.h;
// messages_encoder.h). Pure: text in, text out; one encoder: one thread.
//
// A whole answer is one call of Whole. A stream is, per choice: Open, then Text, Reasoning, Call
// and CallArguments as they come, then Finish; after the last choice End. Fail may come instead of
// anything after the first Open, and is the last call. Append-only: `out` is added to.
//
// Text must be UTF-8; ill-formed bytes become U+FFFD, so that a broken piece cannot break the JSON
// around it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "common/ids.h"

namespace aisp {

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;     // of the prompt
  uint32_t reasoning_tokens = 0;  // of the completion, markers included
  // A JSON object that stands in `usage` under "aisp" (where the request ran, TTFT and its parts);
  // "": none.
  std::string extension = {};
};

struct TopLogprob {
  std::string bytes;  // of the token: a part of a UTF-8 sequence is possible
  float logprob = 0;
  TokenId token = 0;
};
struct ChoiceLogprob {
  std::string bytes;
  float logprob = 0;
  std::vector<TopLogprob> top;  // as many as the client asked for
  size_t text_offset =
      0;  // completions: where the token starts in the choice's text, in code points
  TokenId token = 0;
  bool known = true;  // false: the first token of a prompt, which nothing goes before
  uint32_t rank = 0;  // 1: no token is likelier; 0: not known. Of prompts
  // Of which text of the answer, from 1: calls stand between them; 0: of thinking or of a call.
  uint32_t text_part = 1;
};

struct ToolCall {
  std::string id, name, arguments;
};

// Why a choice ended.
struct ChoiceEnd {
  std::string_view reason;     // "stop", "length", "tool_calls"
  std::string_view stop = {};  // the stop string that ended it; "": none did
};

// One choice of a whole answer.
struct Choice {
  // So much of text or reasoning, or a call; in the order in which the model wrote them.
  struct Piece {
    enum class Kind : uint8_t { kText, kReasoning, kCall };
    Kind kind = Kind::kText;
    size_t bytes = 0;
    uint32_t text_part = 0;  // of the last of its text, as ChoiceLogprob::text_part
  };
  uint32_t index = 0;
  std::string text;
  std::string_view finish_reason;  // as ChoiceEnd::reason
  bool has_logprobs = false;
  std::vector<ChoiceLogprob> logprobs;
  std::vector<TokenId> token_ids = {};  // empty: not wanted
  std::string reasoning = {};           // empty: none
  std::vector<ToolCall> calls = {};
  std::vector<Piece> order = {};  // empty: all of the reasoning, of the text, and the calls
  std::string_view stop = {};     // as ChoiceEnd::stop
  // Of every token of the prompt, the first one without; empty: not wanted. Choices share them.
  std::span<const ChoiceLogprob> prompt_logprobs = {};
};

class AnswerEncoder {
 public:
  virtual ~AnswerEncoder() = default;

  // The whole answer of a request that does not stream. Choices in the order of their index.
  virtual std::string Whole(std::span<const Choice> choices, const Usage& usage) = 0;

  // The first event of a choice; `so_far`: what the request has used until its first token.
  virtual void Open(uint32_t choice, const Usage& so_far, std::string* out) = 0;
  // New text. `position`: the completion tokens that this event and those before it have brought.
  virtual void Text(uint32_t choice, uint64_t position, std::string_view text,
                    std::span<const ChoiceLogprob> logprobs, std::span<const TokenId> token_ids,
                    std::string* out) = 0;
  virtual void Reasoning(uint32_t choice, uint64_t position, std::string_view text,
                         std::string* out) = 0;
  // The begin of call `call` (from 0), and more text of its arguments.
  virtual void Call(uint32_t choice, uint64_t position, uint32_t call, std::string_view id,
                    std::string_view name, std::string* out) = 0;
  virtual void CallArguments(uint32_t choice, uint64_t position, uint32_t call,
                             std::string_view text, std::string* out) = 0;
  virtual void Finish(uint32_t choice, uint64_t position, const ChoiceEnd& end,
                      std::string* out) = 0;
  // What comes after the last choice.
  virtual void End(const Usage& usage, std::string* out) = 0;
  // What a client that asked for it finds in the events that follow.
  virtual void SetRunningUsage(const Usage& /*usage*/) {}
  virtual void Fail(const ApiError& error, std::string* out) = 0;
};

// Hands on what a whole choice says, in its order: text(a text, its logprobs), reasoning(a text)
// and call(a ToolCall).
template <typename Text, typename Reasoning, typename Call>
void ForPieces(const Choice& choice, Text text, Reasoning reasoning, Call call) {
  using Kind = Choice::Piece::Kind;
  if (choice.order.empty()) {
    reasoning(std::string_view(choice.reasoning));
    text(std::string_view(choice.text), std::span<const ChoiceLogprob>(choice.logprobs));
    for (const ToolCall& each : choice.calls) call(each);
    return;
  }
  std::string_view said = choice.text, thought = choice.reasoning;
  std::span<const ChoiceLogprob> logprobs = choice.logprobs;
  size_t next_call = 0;
  for (const Choice::Piece& piece : choice.order) {
    if (piece.kind == Kind::kCall) {
      call(choice.calls[next_call++]);
    } else if (piece.kind == Kind::kReasoning) {
      reasoning(thought.substr(0, piece.bytes));
      thought.remove_prefix(piece.bytes);
    } else {
      size_t count = 0;
      while (count < logprobs.size() && logprobs[count].text_part <= piece.text_part) ++count;
      text(said.substr(0, piece.bytes), logprobs.first(count));
      said.remove_prefix(piece.bytes);
      logprobs = logprobs.subspan(count);
    }
  }
}

}  // namespace aisp
