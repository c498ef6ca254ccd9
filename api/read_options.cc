#include "api/read_options.h"

#include <algorithm>
#include <charconv>

#include "api/json_value.h"
#include "common/strings.h"

namespace aisp {
namespace {

constexpr int64_t kMaxTokens = INT32_MAX;

void ReadSeed(Fields* fields, v1::SamplingParams* sampling) {
  if (fields->Find("seed") == nullptr) return;
  int64_t seed = 0;
  fields->Int("seed", INT64_MIN, INT64_MAX, &seed);
  sampling->set_seed(seed == 0 ? kSeedZero : static_cast<uint64_t>(seed));
}

void ReadLogitBias(Fields* fields, const ApiLimits& limits, v1::SamplingParams* sampling) {
  const Value::Map* bias = fields->Object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > static_cast<size_t>(limits.max_logit_bias)) {
    return fields->Refuse("logit_bias", "logit_bias must have at most " +
                                            std::to_string(limits.max_logit_bias) +
                                            " tokens, but has " + std::to_string(bias->size()));
  }
  Fields each(bias, "logit_bias.");
  for (const auto& [key, value] : *bias) {
    int64_t id = -1;
    const auto end = key.data() + key.size();
    const auto parsed = std::from_chars(key.data(), end, id);
    TokenId token = 0;
    if (parsed.ec != std::errc() || parsed.ptr != end ||
        !ReadTokenId(Value(id), limits.vocab_size, &token)) {
      return fields->Wrong("logit_bias", Value(key),
                           "an object whose keys are each " + TokenIdRange(limits.vocab_size));
    }
    float amount = 0;
    each.Float(key, -100, 100, &amount);
    if (!each.ok()) return fields->SetError(each.error().value());
    (*sampling->mutable_logit_bias())[token] = amount;
  }
}

// "auto", "off" or {"num_speculative_tokens": n}.
void ReadSpeculation(Fields* fields, v1::SamplingParams* sampling) {
  constexpr int64_t kMostDraftTokens = 64;
  const Value* value = fields->Find("speculation");
  if (value == nullptr) return;
  const bool word = value->IsString();
  if (word && value->AsString() == "auto") return;
  if (word && value->AsString() == "off") return sampling->set_max_draft_tokens(0);
  if (!value->IsMap() || value->AsMap().size() == 0) {
    return fields->Wrong("speculation", *value,
                         "\"auto\", \"off\" or {\"num_speculative_tokens\": n}");
  }
  for (const auto& [key, ignored] : value->AsMap()) {
    if (key == "num_speculative_tokens") continue;
    return fields->Refuse("speculation",
                          "speculation has no member \"" + Excerpt(key, 40) +
                              "\"; it takes \"num_speculative_tokens\" alone, since how tokens are "
                              "proposed is the server's setting (--speculative-config)");
  }
  uint32_t tokens = 0;
  Fields each(&value->AsMap(), "speculation.");
  each.IntInto("num_speculative_tokens", 0, kMostDraftTokens, &tokens);
  if (!each.ok()) return fields->SetError(each.error().value());
  // null is as if absent, here as elsewhere: no limit of the request's own.
  if (each.Find("num_speculative_tokens") != nullptr) sampling->set_max_draft_tokens(tokens);
}

void ReadSampling(Fields* fields, const ApiLimits& limits, v1::SamplingParams* sampling) {
  const ApiLimits::SamplingDefaults& absent = limits.sampling_defaults;
  float temperature = absent.temperature.value_or(1);
  float top_p = absent.top_p.value_or(1);
  float min_p = absent.min_p.value_or(0);
  float presence = 0;
  float frequency = 0;
  float repetition = absent.repetition_penalty.value_or(1);
  int32_t top_k = absent.top_k.value_or(0);
  fields->Float("temperature", 0, 2, &temperature);
  fields->Float("top_p", 0, 1, &top_p, /*min_excluded=*/true);
  fields->Float("min_p", 0, 1, &min_p);
  fields->IntInto("top_k", -1, INT32_MAX, &top_k);
  fields->Float("presence_penalty", -2, 2, &presence);
  fields->Float("frequency_penalty", -2, 2, &frequency);
  fields->Float("repetition_penalty", 0, 10, &repetition, /*min_excluded=*/true);
  sampling->set_temperature(temperature);
  sampling->set_top_p(top_p);
  sampling->set_min_p(min_p);
  sampling->set_top_k(std::max(top_k, 0));
  sampling->set_presence_penalty(presence);
  sampling->set_frequency_penalty(frequency);
  sampling->set_repetition_penalty(repetition);
  sampling->set_num_logprobs(-1);
  ReadSeed(fields, sampling);
  ReadSpeculation(fields, sampling);
  ReadLogitBias(fields, limits, sampling);
}

void ReadLengths(Fields* fields, GenerationOptions* out, int64_t least) {
  uint32_t tokens = 0;
  for (const std::string_view name : {"max_completion_tokens", "max_tokens"}) {
    if (fields->Find(name) == nullptr) continue;
    fields->IntInto(name, least, kMaxTokens, &tokens);
    if (!out->max_tokens) out->max_tokens = tokens;
  }
  fields->IntInto("min_tokens", 0, kMaxTokens, &out->min_tokens);
  if (fields->ok() && out->max_tokens && out->min_tokens > *out->max_tokens) {
    fields->Refuse("min_tokens", "min_tokens must be at most the maximum of tokens, " +
                                     std::to_string(*out->max_tokens) + ", but is " +
                                     std::to_string(out->min_tokens));
  }
}

}  // namespace

void ReadCallerOptions(Fields* fields, const ApiLimits& limits, GenerationOptions* out) {
  fields->String("model", kMaxNameBytes, &out->model);
  fields->String("user", kMaxNameBytes, &out->user);
  fields->String("cache_salt", kMaxNameBytes, &out->cache_salt);
  fields->IntInto("priority", INT32_MIN, INT32_MAX, &out->priority);
  std::string service_class;
  fields->String("service_class", kMaxNameBytes, &service_class);
  if (fields->ok() && !service_class.empty()) {
    out->service_class = ServiceClassNamed(service_class);
    if (!out->service_class) {
      fields->Wrong("service_class", *fields->Find("service_class"),
                    "\"interactive\", \"batch\" or \"best-effort\"");
    }
  }
  double timeout_s = 0;
  fields->Number("timeout", 0, ToSeconds(limits.max_timeout), /*min_excluded=*/true, &timeout_s);
  out->timeout = Duration(static_cast<int64_t>(timeout_s * 1e9));
}

void RefusePromptLogprobsInStream(Fields* fields, const GenerationOptions& options) {
  if (!options.stream || options.prompt_logprobs < 0) return;
  fields->Refuse("prompt_logprobs",
                 "prompt_logprobs is not supported in a stream; leave \"stream\" out");
}

void ReadGenerationOptions(Fields* fields, const ApiLimits& limits, GenerationOptions* out,
                           int64_t least_tokens) {
  ReadCallerOptions(fields, limits, out);
  fields->Bool("stream", &out->stream);
  if (const Value::Map* options = fields->Object("stream_options")) {
    Fields each(options, "stream_options.");
    each.Bool("include_usage", &out->include_usage);
    each.Bool("continuous_usage_stats", &out->continuous_usage);
    if (!each.ok()) fields->SetError(each.error().value());
    if (!out->stream) {
      fields->Refuse("stream_options", "stream_options needs \"stream\": true");
    }
  }
  ReadSampling(fields, limits, &out->sampling);
  ReadLengths(fields, out, least_tokens);
  ReadConstraint(fields, out);
  fields->IntInto("n", 1, limits.max_choices, &out->n);
  fields->Strings("stop", static_cast<size_t>(limits.max_stop_strings),
                  static_cast<size_t>(limits.max_stop_bytes), &out->stop);
  fields->Bool("include_stop_str_in_output", &out->include_stop_in_output);
  fields->TokenIds("stop_token_ids", static_cast<size_t>(limits.max_stop_token_ids),
                   limits.vocab_size, &out->stop_token_ids);
  fields->Bool("ignore_eos", &out->ignore_eos);
  fields->Bool("skip_special_tokens", &out->skip_special_tokens);
  fields->Bool("return_token_ids", &out->return_token_ids);
  fields->Bool("return_tokens_as_token_ids", &out->tokens_as_ids);
  uint32_t best_of = out->n;
  fields->IntInto("best_of", 1, kMaxTokens, &best_of);
  if (best_of != out->n) {
    fields->Refuse("best_of", "best_of is not supported: leave it out, or make it equal to n");
  }
}

ApiResult<Value> ParseBody(std::string_view body, const ApiLimits& limits) {
  auto value = ParseJson(body, limits.max_json_depth);
  if (!value) return tl::unexpected(ApiError(value.error()));
  if (!value->IsMap()) {
    return tl::unexpected(ApiError(Code::kInvalidArgument,
                                   "the body must be a JSON object, but is " + Describe(*value)));
  }
  return std::move(*value);
}

}  // namespace aisp
