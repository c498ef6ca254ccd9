// ChoiceStream: one choice of one request, between the router's tokens and the answer's text:
// detokenizes, finds stop strings, counts, and ends in exactly one of finish or error. Knows
// neither HTTP nor JSON.
//
// The router's thread. The owner (GenerationJob) outlives it and is told of progress after every
// change.
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
    uint32_t min_tokens = 0;     // the text of so many tokens ends no stream
    // Null: the text is content as it comes. With a parser the control tokens of `shown` (sorted)
    // are a part of the text whatever skip_special_tokens says.
    std::unique_ptr<AnswerParser> parser = nullptr;
    std::span<const TokenId> shown = {};
    // With prompt logprobs: the prompt, and so many alternatives; -1: none.
    SharedTokens prompt = {};
    int32_t prompt_logprobs = -1;
    bool pooled = false;  // ends with an embedding
  };

  // What is told of a choice; `Advanced` may be the last call that the choice survives.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnChoiceRouted(ChoiceStream& choice, const RouteDecision& route) = 0;
    virtual void OnChoiceAdvanced(ChoiceStream& choice) = 0;
    // A stop string was found: the rest of the request is not wanted.
    virtual void OnChoiceStopped(ChoiceStream& choice) = 0;
  };

  // Without a tokenizer (null) there is no text, only tokens.
  ChoiceStream(const Tokenizer* tokenizer, Options options, Listener* listener);

  void OnRouted(const RouteDecision& route) override;
  void OnTokens(const v1::TokenEvent& event) override;
  void OnFinish(v1::FinishReason reason, const Error& error, Duration retry_after) override;
  void OnPromptLogprobs(const v1::PromptLogprobs& logprobs) override;
  void OnEmbedding(const v1::TokenEvent& event) override;

  uint32_t index() const { return options_.index; }
  bool ended() const { return error_.has_value() || !finish_reason_.empty(); }
  // "stop", "length" or "tool_calls" once ended without an error.
  std::string_view finish_reason() const { return finish_reason_; }
  // The stop string that ended it; "": none did.
  const std::string& stop() const { return stop_; }
  const std::optional<ApiError>& error() const { return error_; }
  Duration retry_after() const { return retry_after_; }
  uint32_t completion_tokens() const { return completion_tokens_; }
  // With a parser: those until thinking was over, its markers among them, to the step.
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }
  const std::optional<v1::Timing>& timing() const { return timing_; }
  // So far, on all workers that it ran on.
  uint32_t preemptions() const { return preemptions_; }
  const v1::DraftCounts& drafts() const { return drafts_; }
  // Where it runs now.
  const std::string& decode_worker() const { return decode_worker_; }
  // "decode=decode-0 prefill=local": where it has run after all; "" before the first token.
  std::string RouteTaken() const;

  // Text and logprobs that were not taken yet.
  std::string TakeText() { return std::exchange(text_, {}); }
  // With a parser: of those tokens of which it is known what they are of.
  std::vector<ChoiceLogprob> TakeLogprobs();
  std::vector<TokenId> TakeTokenIds() { return std::exchange(token_ids_, {}); }
  // Of every token of the prompt, the first one without a value; text offsets are in the prompt.
  const std::vector<ChoiceLogprob>& prompt_logprobs() const { return prompt_logprobs_; }
  std::vector<ChoiceLogprob> TakePromptLogprobs() { return std::exchange(prompt_logprobs_, {}); }
  // Code points of the prompt's text, with prompt logprobs.
  size_t prompt_code_points() const { return prompt_code_points_; }
  std::vector<float> TakeEmbedding() { return std::exchange(embedding_, {}); }
  // Bytes that were kept of all that it said, taken or not; an estimate.
  size_t said_bytes() const { return said_bytes_; }
  // Of these, what is said of the prompt's tokens.
  size_t prompt_bytes() const { return prompt_bytes_; }
  // With a parser: the text told apart; TakeText gives nothing then.
  std::vector<AnswerPart> TakeParts() { return std::exchange(parts_, {}); }
  bool parses() const { return options_.parser != nullptr; }
  bool HasNews() const {
    return !text_.empty() || !parts_.empty() || placed_ > 0 || !token_ids_.empty();
  }

  RequestId request;

 private:
  std::string PieceOf(TokenId token) const;
  // A control token that is no part of the text.
  bool Hidden(TokenId token) const;
  void AddLogprob(TokenId token, const v1::TokenLogprobs& values);
  ChoiceLogprob MakeLogprob(TokenId token, const v1::TokenLogprobs& values, int32_t most) const;
  // The prompt's next token, with its place in the prompt's text.
  void AddPromptToken(ChoiceLogprob logprob);
  void Parse(bool ended);
  // The text of its part is known: whose the logprobs are that wait for it.
  void PlaceLogprobs(bool grew, bool text_grew, bool ended);
  // Appends what the stop matcher lets through; true when a stop string was found.
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
  size_t placed_ = 0;       // of these may be taken
  uint32_t text_part_ = 0;  // of the text that was read last
  bool in_text_ = false;
  std::vector<ChoiceLogprob> prompt_logprobs_;
  size_t prompt_told_ = 0;  // tokens of which it was said, taken or not
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
