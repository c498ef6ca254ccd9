#include "frontend/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/strings.h"

namespace aisp {
namespace {

ApiError NoTokenizer(const std::string& model, const char* param) {
  return ApiError(Code::kFailedPrecondition,
                  fmt::format("the model '{}' has no tokenizer; give the prompt as token ids to "
                              "/v1/completions, with return_token_ids",
                              model),
                  param);
}

int64_t LocalTimeS() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t t = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&t, &local);
  return static_cast<int64_t>(t) + local.tm_gmtoff;
}

// Removes what the template wrote after the last message, so that the answer continues it.
ApiResult<std::string> CutAfterLastMessage(std::string text, const Value& messages) {
  const Value* content = messages.AsList().back().AsMap().Find("content");
  const std::string_view last =
      content != nullptr && content->IsString() ? Trim(content->AsString()) : std::string_view();
  const size_t at = last.empty() ? std::string::npos : text.rfind(last);
  if (at == std::string::npos) {
    return tl::unexpected(
        ApiError(Code::kInvalidArgument,
                 "continue_final_message needs a last message whose text the chat "
                 "template keeps as it is",
                 "continue_final_message"));
  }
  text.resize(at + last.size());
  return text;
}

}  // namespace

ApiResult<void> TextModel::CheckName(const std::string& requested) const {
  if (requested.empty() || requested == name || !adapters->DigestOf(requested).empty()) return {};
  std::string served = fmt::format("'{}' is", name);
  if (const std::vector<std::string> names = adapters->Names(); !names.empty())
    served = fmt::format("'{}' is, and its adapters '{}'", name, Join(names, "', '"));
  return tl::unexpected(
      ApiError(Code::kNotFound,
               fmt::format("the model '{}' is not served here; {}", Excerpt(requested), served),
               "model", "model_not_found"));
}

ApiResult<std::vector<TokenId>> TextModel::RenderChat(const ChatRequest& request,
                                                      bool add_special) const {
  if (!chat_template) {
    return tl::unexpected(ApiError(
        Code::kFailedPrecondition,
        fmt::format("the model '{}' has no chat template; use /v1/completions, or start the "
                    "server with --chat-template",
                    name)));
  }
  if (!tokenizer) return tl::unexpected(NoTokenizer(name, "messages"));
  Value::Map context;
  context.Set("messages", ShapeMessages(request.messages, template_traits));
  context.Set("add_generation_prompt", Value(request.add_generation_prompt));
  context.Set("bos_token", Value(tokenizer->BosToken()));
  context.Set("eos_token", Value(tokenizer->EosToken()));
  if (!request.tools.IsNone()) context.Set("tools", request.tools);
  if (!request.thinking.effort.empty()) {
    context.Set("reasoning_effort", Value(request.thinking.effort));
    context.Set("enable_thinking", Value(request.thinking.effort != "none"));
  }
  if (request.template_variables.IsMap()) {
    for (const auto& [key, value] : request.template_variables.AsMap()) context.Set(key, value);
  }
  const RenderOptions options{.now_s = LocalTimeS()};
  auto text = chat_template->Render(context, options);
  if (!text && !request.tools.IsNone()) {
    // Descriptions are optional for clients, but some templates fail without them.
    context.Set("tools", WithDescriptions(request.tools));
    if (auto again = chat_template->Render(context, options)) text = std::move(again);
  }
  if (!text) {
    // The template's limits depend on the request alone, so a retry would fail as well.
    const Code code =
        text.error().code == Code::kResourceExhausted ? Code::kInvalidArgument : text.error().code;
    return tl::unexpected(ApiError(code, text.error().message, "messages"));
  }
  if (request.continue_final_message) {
    AISP_ASSIGN_OR_RETURN(*text, CutAfterLastMessage(std::move(*text), request.messages));
  }
  auto tokens = tokenizer->Encode(*text, add_special, /*parse_special=*/true);
  if (!tokens)
    return tl::unexpected(ApiError(tokens.error().code, tokens.error().message, "messages"));
  AISP_RETURN_IF_ERROR(CheckIds(*tokens, "messages"));
  return std::move(*tokens);
}

ApiResult<std::vector<TokenId>> TextModel::EncodePrompt(const Prompt& prompt,
                                                        bool add_special) const {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    AISP_RETURN_IF_ERROR(CheckIds(*ids, "prompt"));
    return *ids;
  }
  if (!tokenizer) return tl::unexpected(NoTokenizer(name, "prompt"));
  auto tokens = tokenizer->Encode(std::get<std::string>(prompt), add_special,
                                  /*parse_special=*/true);
  if (!tokens)
    return tl::unexpected(ApiError(tokens.error().code, tokens.error().message, "prompt"));
  AISP_RETURN_IF_ERROR(CheckIds(*tokens, "prompt"));
  return std::move(*tokens);
}

std::string TextModel::TextOf(const Prompt& prompt) const {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  if (!tokenizer) return "";
  return tokenizer->Decode(std::get<std::vector<TokenId>>(prompt), /*skip_special=*/true);
}

ApiResult<void> TextModel::CheckIds(const std::vector<TokenId>& tokens,
                                    const std::string& param) const {
  const auto beyond = std::find_if(tokens.begin(), tokens.end(),
                                   [this](TokenId t) { return t < 0 || t >= vocabulary; });
  if (beyond == tokens.end()) return {};
  std::string piece;
  if (tokenizer && *beyond >= 0 && *beyond < tokenizer->VocabSize())
    piece = fmt::format(" ('{}')", Excerpt(tokenizer->IdToPiece(*beyond)));
  return tl::unexpected(ApiError(
      Code::kInvalidArgument,
      fmt::format("the prompt holds token {}{}, and this model has {} tokens only; leave it out",
                  *beyond, piece, vocabulary),
      param));
}

ApiResult<void> TextModel::CheckTextSize(size_t bytes, const std::string& param) const {
  if (max_text_bytes == 0 || bytes <= max_text_bytes) return {};
  return tl::unexpected(ApiError(
      Code::kInvalidArgument,
      fmt::format("the prompt has {} bytes, and {} bytes are more than this model's context of {} "
                  "tokens can hold; shorten the prompt",
                  bytes, max_text_bytes, max_model_len),
      param, "context_length_exceeded"));
}

uint32_t TextModel::DefaultMaxTokens(Endpoint endpoint, uint32_t room) const {
  constexpr uint32_t kCompletionsDefault = 16;
  return endpoint == Endpoint::kChat ? room : std::min(room, kCompletionsDefault);
}

}  // namespace aisp
