// OpenAI's answers: whole objects and SSE events. Pure: text in, text out; any thread (one
// ResponseEncoder: one thread).
//
// Order of a stream, per choice: Role (chat), Text..., Finish, once each but Text; after the last
// choice Usage (when the client asked for it), then Done. After a fault: ErrorEvent, then Done. An
// event is exactly one `data: ` line and an empty one: many clients read no other SSE. Only who
// asks for event ids gets a line `id: <choice>:<position>` in front, where position counts the
// completion tokens that this event and those before it have brought.
//
// Text must be UTF-8; ill-formed bytes become U+FFFD, so that a broken piece cannot break the JSON
// around it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/error.h"
#include "common/ids.h"

namespace aisp {

enum class Endpoint { kCompletions, kChat };

// What a stream's events bring beside the choices.
struct StreamShape {
  // Every event has a usage field, null but in the Usage event (stream_options.include_usage).
  bool usage_field = false;
  bool event_ids = false;
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt
  // A JSON object that stands in `usage` under "aisp" (where the request ran, TTFT and its parts);
  // "": none.
  std::string extension;
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
};

struct ToolCall {
  std::string id, name, arguments;
};

// One choice of a whole answer.
struct Choice {
  uint32_t index = 0;
  std::string text;
  std::string_view finish_reason;  // "stop", "length", "tool_calls"
  bool has_logprobs = false;
  std::vector<ChoiceLogprob> logprobs;
  std::vector<TokenId> token_ids = {};  // empty: not wanted
  std::string reasoning = {};           // chat; empty: none
  std::vector<ToolCall> calls = {};     // chat
};

// Writes the answers to one request. Append-only functions: `out` is added to.
class ResponseEncoder {
 public:
  // `id`: "cmpl-..." or "chatcmpl-..."; `created_s`: Unix time.
  ResponseEncoder(Endpoint endpoint, std::string_view id, std::string_view model, int64_t created_s,
                  StreamShape stream = {});

  // The whole answer of a request that does not stream. Choices in the order of their index.
  std::string Whole(std::span<const Choice> choices, const Usage& usage) const;

  // Chat: the first event of a choice. Completions have none: nothing is added.
  void Role(uint32_t choice, std::string* out) const;
  // New text. `logprobs` empty: the field is null; `token_ids` empty: there is no such field.
  // Cheap: no JSON tree, two appends of prepared text around the escaped one.
  void Text(uint32_t choice, uint64_t position, std::string_view text, std::string* out) const;
  void Text(uint32_t choice, uint64_t position, std::string_view text,
            std::span<const ChoiceLogprob> logprobs, std::span<const TokenId> token_ids,
            std::string* out) const;
  // Chat: thinking, the begin of call `call` (from 0), and more text of its arguments.
  void Reasoning(uint32_t choice, uint64_t position, std::string_view text, std::string* out) const;
  void Call(uint32_t choice, uint64_t position, uint32_t call, std::string_view id,
            std::string_view name, std::string* out) const;
  void CallArguments(uint32_t choice, uint64_t position, uint32_t call, std::string_view text,
                     std::string* out) const;
  void Finish(uint32_t choice, uint64_t position, std::string_view finish_reason,
              std::string* out) const;
  void UsageEvent(const Usage& usage, std::string* out) const;
  // The events of choices that follow carry this usage (stream_options.continuous_usage_stats).
  void SetRunningUsage(const Usage& usage);
  static void ErrorEvent(const ApiError& error, std::string* out);
  static void Done(std::string* out);

 private:
  void Open(uint32_t choice, uint64_t position, std::string* out) const;

  const Endpoint endpoint_;
  const bool event_ids_;
  const std::string head_;         // of a whole answer, up to "choices":[
  const std::string stream_head_;  // of an event, from "data: " up to "choices":[
  std::string stream_tail_;        // from the end of the choices to the end of the event
};

// An SSE comment that keeps an idle stream alive through proxies.
inline constexpr std::string_view kKeepAliveComment = ": keep-alive\n\n";
inline constexpr std::string_view kSseContentType = "text/event-stream; charset=utf-8";
inline constexpr std::string_view kJsonContentType = "application/json";

struct ModelInfo {
  std::string id;
  int64_t created_s = 0;
  int64_t max_model_len = 0;
};
// GET /v1/models and GET /v1/models/{id}.
std::string ModelList(std::span<const ModelInfo> models);
std::string ModelObject(const ModelInfo& model);

// `pieces`: the bytes of each token, or empty when the client did not ask for them.
std::string TokenizeResponse(std::span<const TokenId> tokens, int64_t max_model_len,
                             std::span<const std::string> pieces = {});
std::string DetokenizeResponse(std::string_view text);

// Appends `text` in JSON's escapes and without the quotes; ill-formed UTF-8 becomes U+FFFD.
void AppendJsonEscaped(std::string_view text, std::string* out);
// As above with quotes.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace aisp
