// AnswerEncoder: how the answer to one request is written, whole or as SSE events. Each shape of
// the API has one implementation (response.h: chat and completions; responses_encoder.h;
// messages_encoder.h). Pure: text in, text out. One thread per encoder.
//
// A whole answer is one call of Whole. A stream is, per choice: Open, then Text, Reasoning, Call
// and CallArguments as they come, then Finish; after the last choice End. After the first Open,
// Fail may be called at any time instead; it is the last call. Output is appended to `out`.
//
// Ill-formed UTF-8 in a text becomes U+FFFD, so that the JSON around it stays valid.
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
  uint32_t cached_tokens = 0;     // prompt tokens found in the prefix cache
  uint32_t reasoning_tokens = 0;  // completion tokens of thinking, markers included
  // A JSON object for `usage.aisp` (where the request ran, TTFT and its parts); "": none.
  std::string extension = {};
};

struct TopLogprob {
  std::string bytes;  // of the token; may be a part of a UTF-8 sequence
  float logprob = 0;
  TokenId token = 0;
};
struct ChoiceLogprob {
  std::string bytes;
  float logprob = 0;
  std::vector<TopLogprob> top;  // as many as the client asked for
  size_t text_offset = 0;       // completions: code point offset of the token in the choice's text
  TokenId token = 0;
  bool known = true;  // false: the first token of a prompt, which has no probability
  uint32_t rank = 0;  // prompts only. 1: the likeliest token; 0: unknown
  // Which text of the answer it belongs to, from 1 (calls separate texts); 0: thinking or a call.
  uint32_t text_part = 1;
};

struct ToolCall {
  std::string id, name, arguments;
};

// Why a choice ended.
struct ChoiceEnd {
  std::string_view reason;     // "stop", "length", "tool_calls"
  std::string_view stop = {};  // the stop string that matched; "": none
};

// One choice of an answer that is not streamed.
struct Choice {
  // A run of text or reasoning, or one call, in the order in which the model wrote them.
  struct Piece {
    enum class Kind : uint8_t { kText, kReasoning, kCall };
    Kind kind = Kind::kText;
    size_t bytes = 0;
    uint32_t text_part = 0;  // text_part of the last text in this piece, as in ChoiceLogprob
  };
  uint32_t index = 0;
  std::string text;
  std::string_view finish_reason;  // as ChoiceEnd::reason
  bool has_logprobs = false;
  std::vector<ChoiceLogprob> logprobs;
  std::vector<TokenId> token_ids = {};  // empty: not requested
  std::string reasoning = {};           // empty: none
  std::vector<ToolCall> calls = {};
  std::vector<Piece> order = {};  // empty: all reasoning, then all text, then the calls
  std::string_view stop = {};     // as ChoiceEnd::stop
  // Logprobs of the prompt's tokens, shared by its choices; the first has no value. Empty: not
  // requested.
  std::span<const ChoiceLogprob> prompt_logprobs = {};
};

class AnswerEncoder {
 public:
  virtual ~AnswerEncoder() = default;

  // The whole answer of a request that does not stream, choices ordered by index.
  virtual std::string Whole(std::span<const Choice> choices, const Usage& usage) = 0;

  // The first event of a choice. `so_far`: usage up to its first token.
  virtual void Open(uint32_t choice, const Usage& so_far, std::string* out) = 0;
  // New text. `position`: completion tokens sent with this event and all before it.
  virtual void Text(uint32_t choice, uint64_t position, std::string_view text,
                    std::span<const ChoiceLogprob> logprobs, std::span<const TokenId> token_ids,
                    std::string* out) = 0;
  virtual void Reasoning(uint32_t choice, uint64_t position, std::string_view text,
                         std::string* out) = 0;
  // The start of call number `call` (from 0); CallArguments appends to its arguments.
  virtual void Call(uint32_t choice, uint64_t position, uint32_t call, std::string_view id,
                    std::string_view name, std::string* out) = 0;
  virtual void CallArguments(uint32_t choice, uint64_t position, uint32_t call,
                             std::string_view text, std::string* out) = 0;
  virtual void Finish(uint32_t choice, uint64_t position, const ChoiceEnd& end,
                      std::string* out) = 0;
  // The events after the last choice.
  virtual void End(const Usage& usage, std::string* out) = 0;
  // Sets the usage that following events report, for clients that asked for it.
  virtual void SetRunningUsage(const Usage& /*usage*/) {}
  virtual void Fail(const ApiError& error, std::string* out) = 0;
};

// Visits the content of a whole choice in its order: text(a text, its logprobs), reasoning(a text)
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
