// OpenAI's answers to chats and completions: whole objects and SSE events. Pure: text in, text out.
// One thread per ResponseEncoder.
//
// A stream is, per choice: the role (chat), text..., the finish; after the last choice the usage
// (if requested), then [DONE]. After a failure: the error, then [DONE]. An event is exactly one
// `data: ` line and an empty line, since many clients read no other SSE. Only clients that request
// event ids get a line `id: <choice>:<position>` in front.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/answer_encoder.h"
#include "api/error.h"
#include "api/json_text.h"
#include "common/ids.h"

namespace aisp {

enum class Endpoint { kCompletions, kChat };

// What a stream's events contain besides the choices.
struct StreamShape {
  // Every event has a usage field, null except in the last (stream_options.include_usage).
  bool usage_field = false;
  bool event_ids = false;
};

class ResponseEncoder final : public AnswerEncoder {
 public:
  // `id`: "cmpl-..." or "chatcmpl-..."; `created_s`: Unix time.
  ResponseEncoder(Endpoint endpoint, std::string_view id, std::string_view model, int64_t created_s,
                  StreamShape stream = {});

  std::string Whole(std::span<const Choice> choices, const Usage& usage) override;

  // Completions have no opening event: appends nothing.
  void Open(uint32_t choice, const Usage& so_far, std::string* out) override;
  // Empty `logprobs`: the field is null. Empty `token_ids`: the field is absent. Cheap: no JSON
  // tree, only two prepared texts around the escaped one.
  void Text(uint32_t choice, uint64_t position, std::string_view text,
            std::span<const ChoiceLogprob> logprobs, std::span<const TokenId> token_ids,
            std::string* out) override;
  void Reasoning(uint32_t choice, uint64_t position, std::string_view text,
                 std::string* out) override;
  void Call(uint32_t choice, uint64_t position, uint32_t call, std::string_view id,
            std::string_view name, std::string* out) override;
  void CallArguments(uint32_t choice, uint64_t position, uint32_t call, std::string_view text,
                     std::string* out) override;
  void Finish(uint32_t choice, uint64_t position, const ChoiceEnd& end, std::string* out) override;
  void End(const Usage& usage, std::string* out) override;
  void Fail(const ApiError& error, std::string* out) override;

  // stream_options.continuous_usage_stats.
  void SetRunningUsage(const Usage& usage) override;

 private:
  void Begin(uint32_t choice, uint64_t position, std::string* out) const;

  const Endpoint endpoint_;
  const bool usage_field_;
  const bool event_ids_;
  const std::string head_;         // start of a whole answer, up to "choices":[
  const std::string stream_head_;  // start of an event, from "data: " up to "choices":[
  std::string stream_tail_;        // end of an event, from the end of the choices
};

// A list of {token, logprob, bytes, top_logprobs}, as in chats and responses.
void AppendTokenLogprobs(std::span<const ChoiceLogprob> tokens, std::string* out);

// An SSE comment that keeps an idle stream alive through proxies.
inline constexpr std::string_view kKeepAliveComment = ": keep-alive\n\n";
inline constexpr std::string_view kSseContentType = "text/event-stream; charset=utf-8";
inline constexpr std::string_view kJsonContentType = "application/json";

struct ModelInfo {
  std::string id;
  int64_t created_s = 0;
  int64_t max_model_len = 0;
  std::string parent = {};  // of an adapter: its base model
};
// GET /v1/models and GET /v1/models/{id}.
std::string ModelList(std::span<const ModelInfo> models);
std::string ModelObject(const ModelInfo& model);

// `pieces`: the bytes of each token; empty when not requested.
std::string TokenizeResponse(std::span<const TokenId> tokens, int64_t max_model_len,
                             std::span<const std::string> pieces = {});
std::string DetokenizeResponse(std::string_view text);

}  // namespace aisp
