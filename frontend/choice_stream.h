// ChoiceStream: turns the router's tokens of one choice into text: detokenizes, finds stop strings,
// counts, and ends with exactly one of finish or error. Independent of HTTP and JSON.
//
// The router's thread. The owner (GenerationJob) outlives it and is called after every change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "answer/parser.h"
#include "api/error.h"
#include "api/response.h"
#include "common/shared_tokens.h"
#include "router/router.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace aisp {

class ChoiceStream final : public RequestObserver {
 public:
  struct Options {
    uint32_t index = 0;
    std::vector<std::string> stop;
    bool include_stop = false;
    bool skip_special_tokens = true;
    int32_t num_logprobs = -1;
    bool keep_token_ids = false;
    bool tokens_as_ids = false;  // in logprobs
    uint32_t min_tokens = 0;     // stop strings are ignored in the text of so many tokens
    // Null: all text is content. With a parser, the control tokens in `shown` (sorted) are part of
    // the text regardless of skip_special_tokens.
    std::unique_ptr<AnswerParser> parser = nullptr;
    std::span<const TokenId> shown = {};
    // For prompt logprobs: the prompt and the number of alternatives; -1: none.
    SharedTokens prompt = {};
    int32_t prompt_logprobs = -1;
    bool pooled = false;  // ends with an embedding instead of text
  };

  // Callbacks about a choice; the last one may destroy it.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnChoiceRouted(ChoiceStream& choice, const RouteDecision& route) = 0;
    virtual void OnChoiceAdvanced(ChoiceStream& choice) = 0;
    // A stop string was found: the rest of the request is not needed.
    virtual void OnChoiceStopped(ChoiceStream& choice) = 0;
  };

  // Without a tokenizer (null) there are tokens but no text.
  ChoiceStream(const Tokenizer* tokenizer, Options options, Listener* listener);

  void OnRouted(const RouteDecision& route) override;
  void OnTokens(const v1::TokenEvent& event) override;
  void OnFinish(v1::FinishReason reason, const Error& error, Duration retry_after) override;
  void OnPromptLogprobs(const v1::PromptLogprobs& logprobs) override;
  void OnEmbedding(const v1::TokenEvent& event) override;

  uint32_t index() const { return options_.index; }
  bool ended() const { return error_.has_value() || !finish_reason_.empty(); }
  // "stop", "length" or "tool_calls" after an end without error.
  std::string_view finish_reason() const { return finish_reason_; }
  // The stop string that matched; "": none.
  const std::string& stop() const { return stop_; }
  const std::optional<ApiError>& error() const { return error_; }
  Duration retry_after() const { return retry_after_; }
  uint32_t completion_tokens() const { return completion_tokens_; }
  // With a parser: tokens up to the end of thinking, markers included, at step granularity.
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }
  const std::optional<v1::Timing>& timing() const { return timing_; }
  // Preemptions so far, over all workers.
  uint32_t preemptions() const { return preemptions_; }
  const v1::DraftCounts& drafts() const { return drafts_; }
  // The worker that runs it now.
  const std::string& decode_worker() const { return decode_worker_; }
  // "decode=decode-0 prefill=local": the workers that ran it; "" before the first token.
  std::string RouteTaken() const;

  // The text since the last call.
  std::string TakeText() { return std::exchange(text_, {}); }
  // With a parser: only those whose text part is known.
  std::vector<ChoiceLogprob> TakeLogprobs();
  std::vector<TokenId> TakeTokenIds() { return std::exchange(token_ids_, {}); }
  // One per prompt token, the first without a value; text offsets are within the prompt.
  const std::vector<ChoiceLogprob>& prompt_logprobs() const { return prompt_logprobs_; }
  std::vector<ChoiceLogprob> TakePromptLogprobs() { return std::exchange(prompt_logprobs_, {}); }
  // Length of the prompt's text in code points; needs prompt logprobs.
  size_t prompt_code_points() const { return prompt_code_points_; }
  std::vector<float> TakeEmbedding() { return std::exchange(embedding_, {}); }
  // Estimated size in bytes of all output so far, taken or not.
  size_t said_bytes() const { return said_bytes_; }
  // The part of said_bytes() that is about the prompt.
  size_t prompt_bytes() const { return prompt_bytes_; }
  // With a parser: the parsed text; TakeText returns nothing then.
  std::vector<AnswerPart> TakeParts() { return std::exchange(parts_, {}); }
  bool parses() const { return options_.parser != nullptr; }
  bool HasNews() const {
    return !text_.empty() || !parts_.empty() || placed_ > 0 || !token_ids_.empty();
  }

  RequestId request;

 private:
  std::string PieceOf(TokenId token) const;
  // Whether the token is a control token that is left out of the text.
  bool Hidden(TokenId token) const;
  void AddLogprob(TokenId token, const v1::TokenLogprobs& values);
  ChoiceLogprob MakeLogprob(TokenId token, const v1::TokenLogprobs& values, int32_t most) const;
  // Adds the prompt's next token with its offset in the prompt's text.
  void AddPromptToken(ChoiceLogprob logprob);
  void Parse(bool ended);
  // Sets the text part of the logprobs that wait for it.
  void PlaceLogprobs(bool grew, bool text_grew, bool ended);
  // Appends the text that the stop matcher releases; true when a stop string was found.
  bool AddText(std::string_view text);

  const Tokenizer* const tokenizer_;
  Options options_;
  Listener* const listener_;
  std::optional<Detokenizer> detokenizer_;
  StopMatcher stops_;
  std::string text_;
  std::vector<AnswerPart> parts_;
  bool called_ = false;
  bool thought_over_ = false;
  uint32_t reasoning_tokens_ = 0;
  std::vector<ChoiceLogprob> logprobs_;
  size_t placed_ = 0;       // number of logprobs whose text part is known
  uint32_t text_part_ = 0;  // of the most recent text
  bool in_text_ = false;
  std::vector<ChoiceLogprob> prompt_logprobs_;
  size_t prompt_told_ = 0;  // prompt tokens with logprobs so far, taken or not
  std::optional<Detokenizer> prompt_text_;
  size_t prompt_code_points_ = 0;
  std::vector<float> embedding_;
  std::vector<TokenId> token_ids_;
  size_t text_code_points_ = 0;
  size_t said_bytes_ = 0;
  size_t prompt_bytes_ = 0;
  uint32_t completion_tokens_ = 0;
  uint32_t preemptions_ = 0;
  v1::DraftCounts drafts_;
  std::string decode_worker_;
  std::optional<v1::Timing> timing_;
  std::string_view finish_reason_;
  std::string stop_;
  std::optional<ApiError> error_;
  Duration retry_after_{};
};

}  // namespace aisp
