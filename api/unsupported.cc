// Fields of OpenAI's and vLLM's requests that change the answer and that this server does not honour.
#include <array>

#include "api/json_value.h"
#include "api/read_options.h"

namespace aisp {
namespace {

// What such a field may say all the same, because it is what happens without it.
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
    if (name == "service_tier") return word == "auto" || word == "default";
    return word.empty();
  }
  const double number = value.IsInt()     ? static_cast<double>(value.AsInt())
                        : value.IsFloat() ? value.AsFloat()
                                          : -1;
  return name == "length_penalty" && number == 1;
}

constexpr std::array kRefused = {
    "suffix",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "structured_outputs",
    "functions",
    "function_call",
    "audio",
    "modalities",
    "prediction",
    "reasoning_effort",
    "verbosity",
    "web_search_options",
    "store",
    "service_tier",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
    "prompt_logprobs",
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

void RefuseTools(Fields* fields) {
  const Value* choice = fields->Find("tool_choice");
  const bool plain = choice == nullptr || choice->IsString();
  const std::string word = choice != nullptr && plain ? choice->AsString() : "auto";
  if (!plain || (word != "auto" && word != "none")) {
    return fields->Refuse("tool_choice",
                          "tool_choice can only be \"auto\" or \"none\": this server cannot force "
                          "a call");
  }
  const Value::List* tools = fields->List("tools", kMaxTools);
  if (tools == nullptr || tools->empty() || word == "none") return;
  fields->Refuse("tools",
                 "tools are not supported by this server, which finds no calls in an answer; leave "
                 "tools out, or send \"tool_choice\": \"none\"");
}

}  // namespace

void RefuseUnsupported(Fields* fields, Endpoint endpoint) {
  for (const std::string_view name : kRefused) {
    const Value* value = fields->Find(name);
    if (value == nullptr || IsDefault(name, *value)) continue;
    fields->Refuse(name, std::string(name) + " is not supported by this server; leave it out");
  }
  if (endpoint == Endpoint::kChat) RefuseTools(fields);
  const Value::Map* format = fields->Object("response_format");
  if (format == nullptr) return;
  const Value* type = format->Find("type");
  if (type != nullptr && type->IsString() && type->AsString() == "text") return;
  fields->Refuse(
      "response_format",
      "response_format can only be {\"type\": \"text\"} on this server, but its type is " +
          (type == nullptr ? "missing" : Describe(*type)));
}

}  // namespace aisp
