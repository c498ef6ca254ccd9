#include "server/prepared_request.h"

#include <fmt/format.h>

#include <utility>

namespace aisp {
namespace {

ApiResult<void> CheckLength(const PreparedRequest& request, int64_t length, int64_t limit) {
  const std::string param = request.endpoint == Endpoint::kChat ? "messages" : "prompt";
  if (length == 0) {
    return tl::unexpected(
        ApiError(Code::kInvalidArgument, "the prompt has no tokens; give at least one", param));
  }
  if (length >= limit) {
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

size_t ContentBytes(const Value& messages) {
  size_t bytes = 0;
  for (const Value& message : messages.AsList()) {
    const Value* content = message.AsMap().Find("content");
    if (content != nullptr && content->IsString()) bytes += content->AsString().size();
  }
  return bytes;
}

ApiResult<PreparedRequest> Checked(const ServedModel& model, PreparedRequest request) {
  for (const auto& prompt : request.prompts) {
    AISP_RETURN_IF_ERROR(
        CheckLength(request, static_cast<int64_t>(prompt.size()), model.max_model_len));
  }
  return request;
}

}  // namespace

ApiResult<PreparedRequest> Prepare(const ServedModel& model, CompletionRequest request) {
  PreparedRequest out;
  out.endpoint = Endpoint::kCompletions;
  AISP_RETURN_IF_ERROR(model.CheckName(request.model));
  for (const Prompt& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      AISP_RETURN_IF_ERROR(model.CheckTextSize(text->size(), "prompt"));
    }
    AISP_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model.EncodePrompt(prompt));
    if (request.echo) out.echoes.push_back(model.TextOf(prompt));
    out.prompts.push_back(std::move(tokens));
  }
  out.options = std::move(static_cast<GenerationOptions&>(request));
  return Checked(model, std::move(out));
}

ApiResult<PreparedRequest> Prepare(const ServedModel& model, ChatRequest request) {
  PreparedRequest out;
  out.endpoint = Endpoint::kChat;
  AISP_RETURN_IF_ERROR(model.CheckName(request.model));
  AISP_RETURN_IF_ERROR(model.CheckTextSize(ContentBytes(request.messages), "messages"));
  AISP_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model.RenderChat(request));
  out.prompts.push_back(std::move(tokens));
  out.options = std::move(static_cast<GenerationOptions&>(request));
  return Checked(model, std::move(out));
}

}  // namespace aisp
