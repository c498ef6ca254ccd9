#include "speculation/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/strings.h"

namespace aisp {
namespace {

using Json = nlohmann::json;
using Method = SpeculationConfig::Method;

constexpr std::string_view kWhat = "speculative_config";

Error Wrong(std::string_view key, const Json& value, std::string_view allowed) {
  return {Code::kInvalidArgument,
          fmt::format("{}: {} is {}; {}", kWhat, key,
                      value.dump(-1, ' ', false, Json::error_handler_t::replace), allowed)};
}

Status ReadInt(const Json& value, std::string_view key, int32_t least, int32_t most, int32_t* out) {
  if (!value.is_number_integer() || value.get<double>() < least || value.get<double>() > most) {
    return tl::unexpected(
        Wrong(key, value, fmt::format("a whole number from {} to {} is allowed", least, most)));
  }
  *out = value.get<int32_t>();
  return {};
}

Status ReadNumber(const Json& value, std::string_view key, double least, double most, float* out) {
  if (!value.is_number() || value.get<double>() < least || value.get<double>() > most) {
    return tl::unexpected(
        Wrong(key, value, fmt::format("a number from {} to {} is allowed", least, most)));
  }
  *out = value.get<float>();
  return {};
}

Status ReadMethod(const Json& value, Method* out) {
  for (const Method method : {Method::kNgram, Method::kSuffix, Method::kDraftModel, Method::kEagle3,
                              Method::kMedusa, Method::kMtp}) {
    if (value.is_string() && value.get_ref<const std::string&>() == MethodName(method)) {
      *out = method;
      return {};
    }
  }
  return tl::unexpected(
      Wrong("method", value,
            "\"ngram\", \"suffix\", \"draft_model\", \"eagle3\", \"medusa\" and \"mtp\" are "
            "possible"));
}

bool NeedsModel(Method method) {
  return method == Method::kDraftModel || method == Method::kEagle3 || method == Method::kMedusa;
}

bool TakesModel(Method method) { return NeedsModel(method) || method == Method::kMtp; }

bool ReadsFeatures(Method method) {
  return method == Method::kEagle3 || method == Method::kMedusa || method == Method::kMtp;
}

// For error messages.
std::string KeysOf(Method method) {
  std::string keys = "method, num_speculative_tokens, adaptive";
  if (method == Method::kNgram) keys += ", prompt_lookup_min, prompt_lookup_max";
  if (method == Method::kSuffix) {
    keys +=
        ", suffix_decoding_max_cached_tokens, suffix_decoding_max_spec_factor, "
        "suffix_decoding_min_token_prob";
  }
  if (TakesModel(method)) keys += ", model, quantization";
  if (method == Method::kDraftModel) keys += ", draft_vocab_size";
  if (ReadsFeatures(method)) keys += ", prompt_features";
  return keys;
}

// A key of another method is refused.
Status ReadKey(const std::string& key, const Json& value, SpeculationConfig* c) {
  const bool ngram = c->method == Method::kNgram, suffix = c->method == Method::kSuffix;
  if (key == "method") return {};
  if (key == "num_speculative_tokens")
    return ReadInt(value, key, 1, SpeculationConfig::kMostTokens, &c->num_tokens);
  if (key == "adaptive") {
    if (!value.is_boolean())
      return tl::unexpected(Wrong(key, value, "true and false are possible"));
    c->adaptive = value.get<bool>();
    return {};
  }
  if (key == "prompt_lookup_min" && ngram)
    return ReadInt(value, key, 1, NgramOptions::kLongest, &c->ngram.min);
  if (key == "prompt_lookup_max" && ngram)
    return ReadInt(value, key, 1, NgramOptions::kLongest, &c->ngram.max);
  if (key == "suffix_decoding_max_cached_tokens" && suffix)
    return ReadInt(value, key, 0, 1 << 24, &c->suffix.shared_tokens);
  if (key == "suffix_decoding_max_spec_factor" && suffix)
    return ReadNumber(value, key, 0.1, 100, &c->suffix.max_factor);
  if (key == "suffix_decoding_min_token_prob" && suffix)
    return ReadNumber(value, key, 0, 1, &c->suffix.min_probability);
  if (key == "model" && TakesModel(c->method)) {
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      return tl::unexpected(Wrong(key, value, "the folder of a checkpoint is wanted"));
    c->model = value.get<std::string>();
    return {};
  }
  if (key == "quantization" && TakesModel(c->method)) {
    if (value != "none" && value != "fp8" && value != "nvfp4")
      return tl::unexpected(Wrong(key, value, "\"none\", \"fp8\" and \"nvfp4\" are possible"));
    c->quantization = value.get<std::string>();
    return {};
  }
  if (key == "draft_vocab_size" && c->method == Method::kDraftModel)
    return ReadInt(value, key, 1, 1 << 24, &c->draft_vocabulary);
  if (key == "prompt_features" && ReadsFeatures(c->method))
    return ReadInt(value, key, 0, SpeculationConfig::kMostPromptFeatures, &c->prompt_features);
  return InvalidArgument(fmt::format("{}: method {} has no key '{}'; it has {}", kWhat,
                                     MethodName(c->method), Excerpt(key), KeysOf(c->method)));
}

}  // namespace

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kOff:
      return "off";
    case Method::kNgram:
      return "ngram";
    case Method::kSuffix:
      return "suffix";
    case Method::kDraftModel:
      return "draft_model";
    case Method::kEagle3:
      return "eagle3";
    case Method::kMedusa:
      return "medusa";
    case Method::kMtp:
      return "mtp";
  }
  return "off";
}

Result<SpeculationConfig> ParseSpeculationConfig(std::string_view text) {
  SpeculationConfig config;
  if (text == "off") return config;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return InvalidArgument(
        fmt::format("{} is '{}'; it is off or a JSON object as in "
                    "{{\"method\": \"suffix\", \"num_speculative_tokens\": 8}}",
                    kWhat, text));
  }
  if (!json.contains("method")) {
    return InvalidArgument(
        fmt::format("{} names no method; as in {{\"method\": \"suffix\"}}", kWhat));
  }
  AISP_RETURN_IF_ERROR(ReadMethod(json["method"], &config.method));
  for (const auto& [key, value] : json.items()) AISP_RETURN_IF_ERROR(ReadKey(key, value, &config));
  config.says_num_tokens = json.contains("num_speculative_tokens");
  // If only one of the two is given, it sets both, as in vLLM.
  const bool has_min = json.contains("prompt_lookup_min"),
             has_max = json.contains("prompt_lookup_max");
  if (has_min && !has_max) config.ngram.max = config.ngram.min;
  if (has_max && !has_min) config.ngram.min = config.ngram.max;
  if (config.ngram.min > config.ngram.max) {
    return InvalidArgument(fmt::format("{}: prompt_lookup_min is {} and prompt_lookup_max {}",
                                       kWhat, config.ngram.min, config.ngram.max));
  }
  if (NeedsModel(config.method) && config.model.empty()) {
    return InvalidArgument(
        fmt::format("{}: method {} needs the key 'model'", kWhat, MethodName(config.method)));
  }
  return config;
}

}  // namespace aisp
