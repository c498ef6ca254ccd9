// OpenAI's /v1/completions and /v1/chat/completions bodies as plain data, parsed within bounds.
// Pure: no socket, no tokenizer, no clock; any thread.
//
// Rules: a known field of the wrong type or out of range is an error that names the field, the
// value and the limit. null means absent. Unknown fields are ignored and listed in
// GenerationOptions::ignored. Fields that change the answer and are unsupported (best_of, audio,
// ...; api/unsupported.cc) are refused by name unless they have their default value. The last of
// repeated keys counts. NaN and Infinity, nesting beyond `max_json_depth` and ill-formed UTF-8 are
// refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/error.h"
#include "api/tools.h"
#include "common.pb.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/service_class.h"
#include "text/value.h"

namespace aisp {

struct ApiLimits {
  // Exclusive upper bound of token ids in prompt, stop_token_ids and logit_bias; 0: unknown, then
  // only >= 0 is checked.
  int32_t vocab_size = 0;
  int32_t max_prompts = 64;
  int32_t max_embedding_inputs = 2048;  // also limits documents to rank and pairs to score
  int32_t max_choices = 64;             // prompts * n
  int32_t max_messages = 4096;
  int32_t max_stop_strings = 16;
  int32_t max_stop_bytes = 1024;  // of one stop string
  int32_t max_stop_token_ids = 64;
  int32_t max_logprobs = 20;
  int32_t max_logit_bias = 1024;
  int32_t max_json_depth = 64;
  Duration max_timeout = std::chrono::hours(1);
  bool keeps_responses = true;  // false: `store` of a response has no effect
  // Values for absent temperature, top_p, top_k, min_p and repetition_penalty, from the
  // checkpoint's generation_config.json. What is unset there takes OpenAI's: temperature 1, top_p
  // 1, others off.
  struct SamplingDefaults {
    std::optional<float> temperature;
    std::optional<float> top_p;
    std::optional<int32_t> top_k;
    std::optional<float> min_p;
    std::optional<float> repetition_penalty;
  };
  SamplingDefaults sampling_defaults;
};

// The options that both endpoints share.
struct GenerationOptions {
  std::string model;  // "": the client named none
  bool stream = false;
  bool include_usage = false;     // stream_options.include_usage
  bool continuous_usage = false;  // stream_options.continuous_usage_stats

  // seed 0: none given (a client's seed 0 becomes kSeedZero). num_logprobs -1: not requested.
  // repetition_penalty 1: off.
  v1::SamplingParams sampling;
  std::string constraint_field;        // the field that set sampling.constraint, for errors
  std::optional<uint32_t> max_tokens;  // max_completion_tokens, else max_tokens
  uint32_t min_tokens = 0;
  uint32_t n = 1;
  std::vector<std::string> stop;
  bool include_stop_in_output = false;  // include_stop_str_in_output
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool tokens_as_ids = false;     // return_tokens_as_token_ids: logprobs show "token_id:7"
  bool return_token_ids = false;  // choices carry `token_ids`; useful without a tokenizer
  int32_t prompt_logprobs = -1;   // alternatives per prompt token; -1: not requested

  std::string user;
  std::string cache_salt;
  int32_t priority = 0;                       // lower runs earlier, as in vLLM
  Duration timeout{};                         // `timeout`, seconds; zero: the server's default
  std::optional<ServiceClass> service_class;  // none: from the header, else the API key, else
                                              // interactive

  std::vector<std::string> ignored;  // fields of the body that were not recognized
};

// Replaces a client's seed of 0, which internally means "draw one".
inline constexpr uint64_t kSeedZero = 0x9E3779B97F4A7C15;

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest : GenerationOptions {
  std::vector<Prompt> prompts;        // at least one; choice index = prompt index * n + i
  bool add_special_tokens = true;     // the tokenizer's special tokens around each text
  bool echo = false;                  // the prompt's text precedes the generated text
  std::optional<std::string> suffix;  // text that follows the text to be generated
};

struct ChatRequest : GenerationOptions {
  // For the chat template, at least one: a list of maps {role, content, other fields unchanged}.
  // `content` is text, or null where it was null or absent; parts of type "text" have been joined.
  Value messages;
  Value tools;               // for the template: a list, or null
  Value template_variables;  // chat_template_kwargs: a map, or null
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;  // in addition to those of the template
  ToolOptions tool_options;
  ThinkingOptions thinking;
};

ApiResult<CompletionRequest> ParseCompletion(std::string_view body, const ApiLimits& limits);
ApiResult<ChatRequest> ParseChat(std::string_view body, const ApiLimits& limits);
// The same from a parsed body.
ApiResult<CompletionRequest> ParseCompletion(const Value::Map& body, const ApiLimits& limits);
ApiResult<ChatRequest> ParseChat(const Value::Map& body, const ApiLimits& limits);

// The header x-request-timeout, decimal seconds. The smaller of it and `timeout` counts. "" gives
// 0.
ApiResult<Duration> ParseTimeoutHeader(std::string_view value, const ApiLimits& limits);

// The headers x-slo-ttft-ms and x-slo-tpot-ms: decimal milliseconds, above 0 and at most one day.
// "" gives 0, meaning none.
ApiResult<double> ParseTargetHeader(std::string_view name, std::string_view value);

// The header x-aisp-class: interactive, batch or best-effort. "": none.
ApiResult<std::optional<ServiceClass>> ParseClassHeader(std::string_view value);

// The header idempotency-key: at most 255 visible ASCII characters. "": none.
ApiResult<std::string> ParseIdempotencyKey(std::string_view value);

// Bodies of /tokenize and /detokenize.
struct TokenizeRequest {
  std::string model;
  std::string prompt;
  std::optional<ChatRequest> chat;  // `messages` instead of `prompt`
  bool add_special_tokens = true;   // false by default for a chat, whose template adds them
  bool return_token_strs = false;
};
struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};
ApiResult<TokenizeRequest> ParseTokenize(std::string_view body, const ApiLimits& limits);
ApiResult<DetokenizeRequest> ParseDetokenize(std::string_view body, const ApiLimits& limits);
ApiResult<TokenizeRequest> ParseTokenize(const Value::Map& body, const ApiLimits& limits);
ApiResult<DetokenizeRequest> ParseDetokenize(const Value::Map& body, const ApiLimits& limits);

}  // namespace aisp
