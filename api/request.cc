#include "api/request.h"

#include <algorithm>

#include "api/read_options.h"
#include "common/strings.h"

namespace aisp {

bool ReadPromptTokens(Fields* fields, std::string_view name, const Value::List& list,
                      int32_t vocab_size, std::vector<TokenId>* out) {
  out->reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    TokenId id = 0;
    if (!ReadTokenId(list[i], vocab_size, &id)) {
      fields->Wrong(std::string(name) + "[" + std::to_string(i) + "]", list[i],
                    TokenIdRange(vocab_size));
      return false;
    }
    out->push_back(id);
  }
  return true;
}

void ReadPrompts(Fields* fields, std::string_view name, int32_t max_prompts, int32_t vocab_size,
                 std::vector<Prompt>* out) {
  constexpr std::string_view kWhat =
      "a string, a list of strings, a list of token ids or a list of such lists";
  const Value* prompt = fields->Find(name);
  if (prompt == nullptr) {
    return fields->Refuse(name, std::string(name) + " is missing: " + std::string(kWhat));
  }
  if (prompt->IsString()) return void(out->emplace_back(prompt->AsString()));
  if (!prompt->IsList() || prompt->AsList().empty()) return fields->Wrong(name, *prompt, kWhat);
  const Value::List& list = prompt->AsList();
  std::vector<TokenId> tokens;
  if (list[0].IsInt()) {
    if (ReadPromptTokens(fields, name, list, vocab_size, &tokens)) {
      out->emplace_back(std::move(tokens));
    }
    return;
  }
  if (list.size() > static_cast<size_t>(max_prompts)) {
    return fields->Refuse(name, std::string(name) + " must have at most " +
                                    std::to_string(max_prompts) + " entries, but has " +
                                    std::to_string(list.size()));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string each = std::string(name) + "[" + std::to_string(i) + "]";
    if (list[i].IsString()) {
      out->emplace_back(list[i].AsString());
    } else if (list[i].IsList() && !list[i].AsList().empty()) {
      tokens.clear();
      if (!ReadPromptTokens(fields, each, list[i].AsList(), vocab_size, &tokens)) return;
      out->emplace_back(std::move(tokens));
    } else {
      return fields->Wrong(each, list[i], "a string or a list of token ids that is not empty");
    }
  }
}

namespace {

// An empty suffix counts as absent.
void ReadSuffix(Fields* fields, CompletionRequest* out) {
  std::string suffix;
  fields->String("suffix", kAnyLength, &suffix);
  if (suffix.empty()) return;
  if (!out->add_special_tokens) {
    return fields->Refuse("suffix",
                          "suffix together with \"add_special_tokens\": false is not supported; "
                          "leave one out");
  }
  if (out->echo) {
    return fields->Refuse("suffix", "suffix together with echo is not supported; leave one out");
  }
  for (const Prompt& prompt : out->prompts) {
    if (std::holds_alternative<std::string>(prompt)) continue;
    return fields->Refuse("suffix", "suffix needs a prompt that is text, but it is token ids");
  }
  out->suffix = std::move(suffix);
}

// Prompt logprobs: vLLM's prompt_logprobs, and OpenAI's echo with logprobs.
void ReadPromptLogprobs(Fields* fields, const ApiLimits& limits, CompletionRequest* out) {
  fields->IntInto("prompt_logprobs", 0, limits.max_logprobs, &out->prompt_logprobs);
  const bool echoes = out->echo && out->sampling.num_logprobs() >= 0;
  if (!fields->ok()) return;
  if (out->prompt_logprobs >= 0 && echoes) {
    return fields->Refuse("prompt_logprobs",
                          "prompt_logprobs together with echo and logprobs is not supported: echo "
                          "brings the prompt's logprobs already; leave one of them out");
  }
  RefusePromptLogprobsInStream(fields, *out);
  if (echoes && out->stream && out->n > 1) {
    fields->Refuse(
        "n", "n must be 1 in a stream with echo and logprobs, but is " + std::to_string(out->n));
  }
  const bool nothing = out->max_tokens == 0u && !out->echo && out->prompt_logprobs < 0;
  if (nothing) {
    const std::string name =
        fields->Find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
    fields->Refuse(name, name +
                             " must be at least 1 unless the prompt is asked for (echo or "
                             "prompt_logprobs), but is 0");
  }
}

}  // namespace

ApiResult<CompletionRequest> ParseCompletion(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  return ParseCompletion(value.AsMap(), limits);
}

ApiResult<CompletionRequest> ParseCompletion(const Value::Map& body, const ApiLimits& limits) {
  Fields fields(&body);
  CompletionRequest out;
  ReadPrompts(&fields, "prompt", limits.max_prompts, limits.vocab_size, &out.prompts);
  ReadGenerationOptions(&fields, limits, &out, /*least_tokens=*/0);
  CheckForceFinish(&fields, out, /*calls=*/false);
  fields.Bool("add_special_tokens", &out.add_special_tokens);
  fields.Bool("echo", &out.echo);
  RefuseUnsupported(&fields, Endpoint::kCompletions);
  int32_t logprobs = -1;
  fields.IntInto("logprobs", 0, limits.max_logprobs, &logprobs);
  out.sampling.set_num_logprobs(logprobs);
  ReadPromptLogprobs(&fields, limits, &out);
  ReadSuffix(&fields, &out);
  if (fields.ok() && out.prompts.size() * out.n > static_cast<size_t>(limits.max_choices)) {
    fields.Refuse("n", "prompts times n must be at most " + std::to_string(limits.max_choices) +
                           ", but is " + std::to_string(out.prompts.size() * out.n));
  }
  if (!fields.ok()) return fields.error();
  out.ignored = fields.Unread();
  return out;
}

ApiResult<TokenizeRequest> ParseTokenize(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  return ParseTokenize(value.AsMap(), limits);
}

ApiResult<TokenizeRequest> ParseTokenize(const Value::Map& body, const ApiLimits& limits) {
  Fields fields(&body);
  TokenizeRequest out;
  fields.String("model", kMaxNameBytes, &out.model);
  if (fields.Find("messages") != nullptr) {
    if (fields.Find("prompt") != nullptr) {
      fields.Refuse("prompt", "prompt and messages exclude each other; send one of them");
    }
    out.chat.emplace();
    out.add_special_tokens = false;
    ReadConversation(&fields, limits, &*out.chat);
    if (const Value::List* tools = fields.List("tools", kMaxTools); tools && !tools->empty()) {
      out.chat->tools = *fields.Find("tools");
    }
  } else if (fields.Find("prompt") == nullptr) {
    fields.Refuse("prompt", "prompt is missing: a string, or messages instead of it");
  }
  fields.String("prompt", kAnyLength, &out.prompt);
  fields.Bool("add_special_tokens", &out.add_special_tokens);
  fields.Bool("return_token_strs", &out.return_token_strs);
  if (!fields.ok()) return fields.error();
  return out;
}

ApiResult<DetokenizeRequest> ParseDetokenize(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  return ParseDetokenize(value.AsMap(), limits);
}

ApiResult<DetokenizeRequest> ParseDetokenize(const Value::Map& body, const ApiLimits& limits) {
  Fields fields(&body);
  DetokenizeRequest out;
  if (fields.Find("tokens") == nullptr) {
    fields.Refuse("tokens", "tokens is missing: a list of token ids");
  }
  fields.String("model", kMaxNameBytes, &out.model);
  if (const Value::List* tokens = fields.List("tokens", kAnyLength)) {
    ReadPromptTokens(&fields, "tokens", *tokens, limits.vocab_size, &out.tokens);
  }
  if (!fields.ok()) return fields.error();
  return out;
}

ApiResult<Duration> ParseTimeoutHeader(std::string_view value, const ApiLimits& limits) {
  if (value.empty()) return Duration{};
  const double most = ToSeconds(limits.max_timeout);
  const auto seconds = ParseDouble(value);
  if (seconds && *seconds > 0 && *seconds <= most) {
    return Duration(static_cast<int64_t>(*seconds * 1e9));
  }
  return tl::unexpected(ApiError(
      Code::kInvalidArgument,
      "the header x-request-timeout must be a number of seconds above 0 and at most " +
          std::to_string(static_cast<int64_t>(most)) + ", but is \"" + Excerpt(value, 40) + "\"",
      "x-request-timeout"));
}

ApiResult<double> ParseTargetHeader(std::string_view name, std::string_view value) {
  constexpr double kMostMs = 86'400'000;
  if (value.empty()) return 0.0;
  const auto ms = ParseDouble(value);
  if (ms && *ms > 0 && *ms <= kMostMs) return *ms;
  const std::string header(name);
  return tl::unexpected(ApiError(
      Code::kInvalidArgument,
      "the header " + header + " must be a number of milliseconds above 0 and at most 86400000, " +
          "but is \"" + Excerpt(value, 40) + "\"",
      header));
}

ApiResult<std::optional<ServiceClass>> ParseClassHeader(std::string_view value) {
  if (value.empty()) return std::nullopt;
  if (const auto named = ServiceClassNamed(value)) return named;
  return tl::unexpected(ApiError(Code::kInvalidArgument,
                                 "the header x-aisp-class must be interactive, batch or "
                                 "best-effort, but is \"" +
                                     Excerpt(value, 40) + "\"",
                                 "x-aisp-class"));
}

ApiResult<std::string> ParseIdempotencyKey(std::string_view value) {
  constexpr size_t kLongest = 255;
  const bool visible =
      std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c < 127; });
  if (value.size() <= kLongest && visible) return std::string(value);
  return tl::unexpected(ApiError(Code::kInvalidArgument,
                                 "the header idempotency-key must be at most 255 visible ASCII "
                                 "characters without blanks, but is \"" +
                                     Excerpt(value, 40) + "\" (" + std::to_string(value.size()) +
                                     " bytes)",
                                 "idempotency-key"));
}

}  // namespace aisp
