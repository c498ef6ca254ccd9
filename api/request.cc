#include "api/request.h"

#include "api/read_options.h"

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

namespace {

void ReadPrompts(Fields* fields, const ApiLimits& limits, std::vector<Prompt>* out) {
  constexpr std::string_view kWhat =
      "a string, a list of strings, a list of token ids or a list of such lists";
  const Value* prompt = fields->Find("prompt");
  if (prompt == nullptr)
    return fields->Refuse("prompt", "prompt is missing: " + std::string(kWhat));
  if (prompt->IsString()) return void(out->emplace_back(prompt->AsString()));
  if (!prompt->IsList() || prompt->AsList().empty()) return fields->Wrong("prompt", *prompt, kWhat);
  const Value::List& list = prompt->AsList();
  std::vector<TokenId> tokens;
  if (list[0].IsInt()) {
    if (ReadPromptTokens(fields, "prompt", list, limits.vocab_size, &tokens)) {
      out->emplace_back(std::move(tokens));
    }
    return;
  }
  if (list.size() > static_cast<size_t>(limits.max_prompts)) {
    return fields->Wrong("prompt", *prompt,
                         "at most " + std::to_string(limits.max_prompts) + " prompts");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = "prompt[" + std::to_string(i) + "]";
    if (list[i].IsString()) {
      out->emplace_back(list[i].AsString());
    } else if (list[i].IsList() && !list[i].AsList().empty()) {
      tokens.clear();
      if (!ReadPromptTokens(fields, name, list[i].AsList(), limits.vocab_size, &tokens)) return;
      out->emplace_back(std::move(tokens));
    } else {
      return fields->Wrong(name, list[i], "a string or a list of token ids that is not empty");
    }
  }
}

}  // namespace

ApiResult<CompletionRequest> ParseCompletion(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  Fields fields(&value.AsMap());
  CompletionRequest out;
  ReadPrompts(&fields, limits, &out.prompts);
  ReadGenerationOptions(&fields, limits, &out);
  fields.Bool("echo", &out.echo);
  std::string suffix;
  fields.String("suffix", kAnyLength, &suffix);
  if (!suffix.empty()) fields.Refuse("suffix", "suffix is not supported by this server");
  int32_t logprobs = -1;
  fields.IntInto("logprobs", 0, limits.max_logprobs, &logprobs);
  out.sampling.set_num_logprobs(logprobs);
  if (out.echo && logprobs >= 0) {
    fields.Refuse("logprobs", "logprobs together with echo is not supported: the prompt has none");
  }
  if (fields.ok() && out.prompts.size() * out.n > static_cast<size_t>(limits.max_choices)) {
    fields.Refuse("n", "prompts times n must be at most " + std::to_string(limits.max_choices) +
                           ", but is " + std::to_string(out.prompts.size() * out.n));
  }
  if (!fields.ok()) return fields.error();
  return out;
}

ApiResult<TokenizeRequest> ParseTokenize(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  Fields fields(&value.AsMap());
  TokenizeRequest out;
  if (fields.Find("prompt") == nullptr) fields.Refuse("prompt", "prompt is missing: a string");
  fields.String("model", kMaxNameBytes, &out.model);
  fields.String("prompt", kAnyLength, &out.prompt);
  fields.Bool("add_special_tokens", &out.add_special_tokens);
  if (!fields.ok()) return fields.error();
  return out;
}

ApiResult<DetokenizeRequest> ParseDetokenize(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  Fields fields(&value.AsMap());
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

}  // namespace aisp
