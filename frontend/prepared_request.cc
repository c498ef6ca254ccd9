#include "frontend/prepared_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "frontend/answer_plan.h"
#include "text/fill_in_middle.h"

namespace aisp {
namespace {

ApiResult<void> CheckLength(const PreparedRequest& request, int64_t length, int64_t limit) {
  const bool pools = request.pooling != v1::POOL_NONE;
  const std::string param = pools                                 ? "input"
                            : request.endpoint == Endpoint::kChat ? "messages"
                                                                  : "prompt";
  if (length == 0) {
    return tl::unexpected(
        ApiError(Code::kInvalidArgument, "the prompt has no tokens; give at least one", param));
  }
  const bool draws = !pools && request.options.max_tokens != 0u;
  if (!draws && length > limit) {
    return tl::unexpected(ApiError(
        Code::kInvalidArgument,
        fmt::format("the {} has {} tokens, and this model's context is {} tokens; shorten it",
                    param, length, limit),
        param, "context_length_exceeded"));
  }
  if (draws && length >= limit) {
    return tl::unexpected(ApiError(
        Code::kInvalidArgument,
        fmt::format("the prompt has {} tokens, and this model's context is {} tokens, of which the "
                    "answer needs at least one; shorten the prompt to {} tokens or fewer",
                    length, limit, limit - 1),
        param, "context_length_exceeded"));
  }
  const auto& max_tokens = request.options.max_tokens;
  if (max_tokens && length + *max_tokens > limit) {
    return tl::unexpected(ApiError(
        Code::kInvalidArgument,
        fmt::format(
            "the prompt has {} tokens and max_tokens is {}, together {}; this model's context "
            "is {} tokens: lower max_tokens to {} or shorten the prompt",
            length, *max_tokens, length + *max_tokens, limit, limit - length),
        "max_tokens", "context_length_exceeded"));
  }
  if (length + request.options.min_tokens > limit) {
    return tl::unexpected(ApiError(
        Code::kInvalidArgument,
        fmt::format(
            "the prompt has {} tokens and min_tokens is {}; this model's context is {} tokens: "
            "lower min_tokens to {} or shorten the prompt",
            length, request.options.min_tokens, limit, limit - length),
        "min_tokens", "context_length_exceeded"));
  }
  return {};
}

// Size of all text that a template may repeat: contents, names, tools, variables. Other scalars
// count one byte.
size_t TextBytes(const Value& value) {
  if (value.IsString()) return value.AsString().size();
  size_t bytes = value.IsList() || value.IsMap() ? 0 : 1;
  if (value.IsList()) {
    for (const Value& item : value.AsList()) bytes += TextBytes(item);
  } else if (value.IsMap()) {
    for (const auto& [key, item] : value.AsMap()) bytes += key.size() + TextBytes(item);
  }
  return bytes;
}

// With force_finish, max_tokens must allow at least the shortest complete answer.
ApiResult<void> CheckEnding(const TextModel& model, const PreparedRequest& request,
                            Constraint& compiled) {
  const auto ending = compiled.NewMatcher()->FindEnding(kLongestEnding);
  if (!ending) {
    return tl::unexpected(ApiError(Code::kInvalidArgument,
                                   "force_finish: no way is known to end an answer of this "
                                   "constraint at any moment; leave it out",
                                   "force_finish"));
  }
  for (const auto& prompt : request.prompts) {
    const int64_t room = model.max_model_len - static_cast<int64_t>(prompt.size());
    const int64_t most = request.options.max_tokens.value_or(
        model.DefaultMaxTokens(request.endpoint, static_cast<uint32_t>(room)));
    const auto need = static_cast<int64_t>(ending->tokens.size()) + 1;
    if (most >= need) continue;
    return tl::unexpected(
        ApiError(Code::kInvalidArgument,
                 fmt::format("force_finish needs max_tokens of {} at least for the shortest answer "
                             "that follows the constraint, but there are {}",
                             need, most),
                 "max_tokens"));
  }
  return {};
}

}  // namespace

ApiResult<PreparedRequest> Checked(const TextModel& model, PreparedRequest request) {
  request.model_name = model.name;
  request.adapter = model.adapters->DigestOf(request.options.model);
  if (!request.adapter.empty()) request.model_name = request.options.model;
  for (const auto& prompt : request.prompts) {
    AISP_RETURN_IF_ERROR(
        CheckLength(request, static_cast<int64_t>(prompt.size()), model.max_model_len));
  }
  const v1::Constraint& constraint = request.options.sampling.constraint();
  if (constraint.kind() != v1::Constraint::NONE) {
    if (model.constraints == nullptr) {
      return tl::unexpected(ApiError(Code::kInvalidArgument,
                                     "answers cannot be constrained without a tokenizer",
                                     request.options.constraint_field));
    }
    request.compiled.push_back(
        {constraint, request.parse.calls != nullptr ? "tools" : request.options.constraint_field});
  }
  return request;
}

bool TakesLong(const TextModel& model, const PreparedRequest& request) {
  return std::any_of(request.compiled.begin(), request.compiled.end(), [&model](const auto& each) {
    return !model.constraints->Keeps(each.constraint);
  });
}

ApiResult<void> CheckConstraints(const TextModel& model, const PreparedRequest& request,
                                 const std::string& tenant) {
  for (const auto& [constraint, field] : request.compiled) {
    const auto compiled = model.constraints->Get(constraint, tenant);
    if (!compiled) {
      return tl::unexpected(ApiError(Code::kInvalidArgument, compiled.error().message, field));
    }
    const bool whole = &constraint == &request.compiled.back().constraint;
    if (whole && constraint.force_finish())
      AISP_RETURN_IF_ERROR(CheckEnding(model, request, **compiled));
  }
  return {};
}

namespace {

// Encodes fill-in-the-middle with the model's own control tokens.
ApiResult<std::vector<TokenId>> EncodeMiddle(const TextModel& model, const Prompt& prompt,
                                             const std::string& suffix,
                                             std::vector<TokenId>* stop_token_ids) {
  const FillInMiddle* const format = model.tokenizer ? FindFillInMiddle(*model.tokenizer) : nullptr;
  if (format == nullptr) {
    return tl::unexpected(ApiError(
        Code::kInvalidArgument,
        fmt::format("suffix is not supported: the tokenizer of '{}' has none of the tokens "
                    "by which models are known to fill in the middle ({})",
                    model.name, FillInMiddleNames()),
        "suffix"));
  }
  AISP_RETURN_IF_ERROR(model.CheckTextSize(suffix.size(), "suffix"));
  auto tokens =
      EncodeFillInMiddle(*model.tokenizer, *format, std::get<std::string>(prompt), suffix);
  if (!tokens) {
    return tl::unexpected(ApiError(Code::kInvalidArgument, tokens.error().message, "suffix"));
  }
  AISP_RETURN_IF_ERROR(model.CheckIds(*tokens, "suffix"));
  for (const TokenId id : EndsOfMiddle(*model.tokenizer, *format)) {
    if (id < model.vocabulary) stop_token_ids->push_back(id);
  }
  return std::move(*tokens);
}

}  // namespace

ApiResult<PreparedRequest> Prepare(const TextModel& model, CompletionRequest request) {
  PreparedRequest out;
  out.endpoint = Endpoint::kCompletions;
  AISP_RETURN_IF_ERROR(model.CheckName(request.model));
  for (const Prompt& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      AISP_RETURN_IF_ERROR(model.CheckTextSize(text->size(), "prompt"));
    }
    std::vector<TokenId> tokens;
    if (request.suffix) {
      std::vector<TokenId> ends;
      AISP_ASSIGN_OR_RETURN(tokens, EncodeMiddle(model, prompt, *request.suffix, &ends));
      if (out.prompts.empty())
        request.stop_token_ids.insert(request.stop_token_ids.end(), ends.begin(), ends.end());
    } else {
      AISP_ASSIGN_OR_RETURN(tokens, model.EncodePrompt(prompt, request.add_special_tokens));
    }
    if (request.echo) out.echoes.push_back(model.TextOf(prompt));
    out.prompts.push_back(std::move(tokens));
  }
  out.options = std::move(static_cast<GenerationOptions&>(request));
  const int32_t logprobs = out.options.sampling.num_logprobs();
  const bool echoes_logprobs = request.echo && logprobs >= 0;
  out.prompt_logprobs = echoes_logprobs ? logprobs : out.options.prompt_logprobs;
  return Checked(model, std::move(out));
}

namespace {

// The end of the prompt, where open thinking can be seen.
std::string EndOf(const TextModel& model, std::span<const TokenId> prompt) {
  constexpr size_t kTail = 16;
  return model.tokenizer->Decode(prompt.last(std::min(prompt.size(), kTail)),
                                 /*skip_special=*/false);
}

ApiResult<void> CheckAnswer(const TextModel& model, const ChatRequest& request) {
  if (request.tool_options.CallsPossible() && model.call_format == nullptr) {
    return tl::unexpected(
        ApiError(Code::kInvalidArgument,
                 "this model's chat template tells of no tool calls that this server can read; "
                 "start it with --tool-call-parser, leave tools out, or send \"tool_choice\": "
                 "\"none\"",
                 "tools"));
  }
  const std::string_view source =
      model.chat_template ? std::string_view(model.chat_template->source()) : "";
  const bool knows_effort = source.find("reasoning_effort") != std::string_view::npos ||
                            source.find("enable_thinking") != std::string_view::npos;
  if (!request.thinking.effort.empty() && !knows_effort) {
    return tl::unexpected(ApiError(Code::kInvalidArgument,
                                   "reasoning_effort is not supported: this model's chat template "
                                   "reads neither it nor enable_thinking; leave it out",
                                   "reasoning_effort"));
  }
  if (request.thinking.budget && model.think_format == nullptr) {
    return tl::unexpected(ApiError(Code::kInvalidArgument,
                                   "thinking_token_budget is not supported: this model is not "
                                   "known to think; start the server with --reasoning-parser",
                                   "thinking_token_budget"));
  }
  return {};
}

// Plans the answer's constraint and how it is parsed.
ApiResult<void> PlanAnswer(const TextModel& model, const ChatRequest& request,
                           PreparedRequest* out) {
  const bool calls = request.tool_options.CallsPossible();
  out->include_reasoning = request.thinking.include;
  out->parse.calls = calls ? model.call_format : nullptr;
  out->parse.think = model.think_format;
  const std::string end =
      model.think_format == nullptr ? "" : EndOf(model, out->prompts.front().get());
  out->parse.in_thinking =
      model.think_format != nullptr && EndsInThinking(end, *model.think_format);
  auto parameters = std::make_shared<Value::Map>();
  for (const ToolSpec& tool : request.tool_options.tools)
    parameters->Set(tool.name, tool.parameters);
  out->parse.parameters = parameters;
  PlanRequest plan;
  plan.tools = &request.tool_options;
  plan.calls = out->parse.calls;
  const bool thought =
      model.think_format != nullptr && EndsBehindThinking(end, *model.think_format);
  plan.think = thought ? nullptr : model.think_format;
  plan.in_thinking = out->parse.in_thinking;
  plan.think_budget = request.thinking.budget;
  if (plan.think != nullptr) {
    const auto close = model.tokenizer->TokenToId(std::string(plan.think->close));
    plan.close_ends =
        close && std::find(model.eos.begin(), model.eos.end(), *close) != model.eos.end();
  }
  plan.body = &out->options.sampling.constraint();
  if (plan.think == nullptr && plan.calls == nullptr) return {};
  const bool body = plan.body->kind() != v1::Constraint::NONE;
  const bool pythonic = calls && model.call_format->body == CallFormat::Body::kPythonic;
  out->parse.calls_or_content =
      calls && (body || pythonic) && request.tool_options.choice == ToolChoice::kAuto;
  if (calls && body && model.constraints != nullptr) {
    // Compiled separately first, so that an error names the field at fault.
    out->compiled.push_back({*plan.body, out->options.constraint_field});
  }
  const auto constraint = WritePlan(plan);
  if (!constraint) {
    return tl::unexpected(ApiError(Code::kInvalidArgument, constraint.error().message,
                                   calls ? "tools" : "thinking_token_budget"));
  }
  if (constraint->kind() != v1::Constraint::NONE)
    *out->options.sampling.mutable_constraint() = *constraint;
  return {};
}

}  // namespace

ApiResult<PreparedRequest> Prepare(const TextModel& model, ChatRequest request) {
  PreparedRequest out;
  out.endpoint = Endpoint::kChat;
  AISP_RETURN_IF_ERROR(model.CheckName(request.model));
  AISP_RETURN_IF_ERROR(model.CheckTextSize(TextBytes(request.messages) + TextBytes(request.tools) +
                                               TextBytes(request.template_variables),
                                           "messages"));
  AISP_RETURN_IF_ERROR(CheckAnswer(model, request));
  AISP_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                        model.RenderChat(request, request.add_special_tokens));
  out.prompts.push_back(std::move(tokens));
  out.options = std::move(static_cast<GenerationOptions&>(request));
  out.prompt_logprobs = out.options.prompt_logprobs;
  AISP_RETURN_IF_ERROR(PlanAnswer(model, request, &out));
  return Checked(model, std::move(out));
}

}  // namespace aisp
