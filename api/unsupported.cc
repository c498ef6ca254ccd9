// Fields of OpenAI's and vLLM's requests that change the answer and are unsupported here.
#include <array>

#include "api/json_value.h"
#include "api/read_options.h"

namespace aisp {
namespace {

// Values that equal the default behaviour and are therefore accepted.
bool IsDefault(std::string_view name, const Value& value) {
  if (value.IsBool()) return value.AsBool() == (name == "spaces_between_special_tokens");
  if (value.IsList()) {
    const Value::List& list = value.AsList();
    const bool text = list.size() == 1 && list[0].IsString() && list[0].AsString() == "text";
    return list.empty() || (name == "modalities" && text);
  }
  if (value.IsMap()) return value.AsMap().size() == 0;
  if (value.IsString()) {
    const std::string& word = value.AsString();
    if (name == "tool_choice" || name == "function_call") return word == "auto" || word == "none";
    if (name == "service_tier") return word == "auto" || word == "default";
    if (name == "verbosity") return word == "medium";
    return word.empty();
  }
  const double number = value.IsInt()     ? static_cast<double>(value.AsInt())
                        : value.IsFloat() ? value.AsFloat()
                                          : -1;
  return (name == "length_penalty" && number == 1) || (name == "top_logprobs" && number == 0);
}

constexpr std::array kRefused = {
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "prompt_embeds",
    "regex",
    "ebnf",
    "json_schema",
    "grammar",
    "functions",
    "function_call",
    "audio",
    "modalities",
    "prediction",
    "verbosity",
    "web_search_options",
    "store",
    "service_tier",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
    "truncate_prompt_tokens",
    "bad_words",
    "allowed_token_ids",
    "logits_processors",
    "spaces_between_special_tokens",
    "chat_template",
    "documents",
    "mm_processor_kwargs",
    "kv_transfer_params",
};

// Advice for the error; often the field should be replaced rather than omitted.
std::string_view InsteadOf(std::string_view name) {
  if (name == "functions" || name == "function_call")
    return "it is the form that tools and tool_choice have replaced; send these";
  if (name == "store") return "completions are not kept; /v1/responses keeps responses";
  if (name == "bad_words") return "use logit_bias with the tokens of these words";
  if (name == "allowed_token_ids") return "use structured_outputs or logit_bias";
  if (name == "regex") return "use structured_outputs.regex or guided_regex";
  if (name == "grammar" || name == "ebnf")
    return "use structured_outputs.grammar or guided_grammar";
  if (name == "json_schema") return "use response_format or guided_json";
  if (name == "service_tier") return "use service_class";
  return "leave it out";
}

constexpr std::array kRefusedForChats = {
    "suffix",
    "echo",
    "prompt",
};

constexpr std::array kRefusedForCompletions = {
    "messages", "top_logprobs", "tools", "tool_choice", "reasoning_effort", "thinking_token_budget",
};

// Accepted without effect: prefixes are always cached, and nothing is stored or monitored.
constexpr std::array kWithoutEffect = {
    "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "request_id",
};

}  // namespace

void RefuseUnsupported(Fields* fields, Endpoint endpoint) {
  for (const std::string_view name : kWithoutEffect) fields->Find(name);
  for (const std::string_view name : kRefused) {
    const Value* value = fields->Find(name);
    if (value == nullptr || IsDefault(name, *value)) continue;
    fields->Refuse(name, std::string(name) + " is not supported by this server; " +
                             std::string(InsteadOf(name)));
  }
  if (endpoint == Endpoint::kChat) {
    for (const std::string_view name : kRefusedForChats) {
      const Value* value = fields->Find(name);
      if (value == nullptr || IsDefault(name, *value)) continue;
      fields->Refuse(name, std::string(name) +
                               " is not supported by this server for chats; use /v1/completions");
    }
    return;
  }
  for (const std::string_view name : kRefusedForCompletions) {
    const Value* value = fields->Find(name);
    if (value == nullptr || IsDefault(name, *value)) continue;
    fields->Refuse(
        name,
        std::string(name) +
            " is not supported by this server for text completions; use /v1/chat/completions");
  }
}

}  // namespace aisp
