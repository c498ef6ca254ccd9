#include "api/response.h"

#include <algorithm>
#include <cmath>

namespace aisp {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";

// JSON has no infinity; other servers write -9999 for a token of probability 0.
void AppendLogprob(float logprob, std::string* out) {
  AppendNumber(std::isfinite(logprob) ? logprob : -9999.0f, out);
}

void AppendUsage(const Usage& usage, std::string* out) {
  out->append("{\"prompt_tokens\":");
  AppendNumber(usage.prompt_tokens, out);
  out->append(",\"completion_tokens\":");
  AppendNumber(usage.completion_tokens, out);
  out->append(",\"total_tokens\":");
  AppendNumber(uint64_t{usage.prompt_tokens} + usage.completion_tokens, out);
  out->append(",\"prompt_tokens_details\":{\"cached_tokens\":");
  AppendNumber(usage.cached_tokens, out);
  out->push_back('}');
  if (usage.reasoning_tokens > 0) {
    out->append(",\"completion_tokens_details\":{\"reasoning_tokens\":");
    AppendNumber(usage.reasoning_tokens, out);
    out->push_back('}');
  }
  if (!usage.extension.empty()) out->append(",\"aisp\":").append(usage.extension);
  out->push_back('}');
}

void AppendBytes(std::string_view bytes, std::string* out) {
  AppendList(bytes, out, [out](char c) { AppendNumber(static_cast<unsigned char>(c), out); });
}

void AppendChatToken(std::string_view bytes, float logprob, std::string* out) {
  out->append("{\"token\":");
  AppendJsonString(bytes, out);
  out->append(",\"logprob\":");
  AppendLogprob(logprob, out);
  out->append(",\"bytes\":");
  AppendBytes(bytes, out);
}

void AppendChatLogprobs(std::span<const ChoiceLogprob> tokens, std::string* out) {
  out->append("{\"content\":");
  AppendTokenLogprobs(tokens, out);
  out->append(",\"refusal\":null}");
}

// Maps texts to logprobs: the likeliest tokens and the drawn one. Of tokens with equal text, the
// likeliest counts.
void AppendTopTexts(const ChoiceLogprob& token, std::string* out) {
  std::vector<std::string> names;
  const auto add = [&](std::string_view bytes, float logprob) {
    std::string name;
    AppendJsonString(bytes, &name);
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    out->append(names.empty() ? "" : ",").append(name).push_back(':');
    AppendLogprob(logprob, out);
    names.push_back(std::move(name));
  };
  out->push_back('{');
  for (const TopLogprob& top : token.top) add(top.bytes, top.logprob);
  add(token.bytes, token.logprob);
  out->push_back('}');
}

void AppendCompletionLogprobs(std::span<const ChoiceLogprob> tokens, std::string* out) {
  out->append("{\"tokens\":");
  AppendList(tokens, out, [out](const ChoiceLogprob& t) { AppendJsonString(t.bytes, out); });
  out->append(",\"token_logprobs\":");
  AppendList(tokens, out, [out](const ChoiceLogprob& t) {
    if (!t.known) return void(out->append("null"));
    AppendLogprob(t.logprob, out);
  });
  out->append(",\"top_logprobs\":");
  AppendList(tokens, out, [out](const ChoiceLogprob& t) {
    if (!t.known) return void(out->append("null"));
    AppendTopTexts(t, out);
  });
  out->append(",\"text_offset\":");
  AppendList(tokens, out, [out](const ChoiceLogprob& t) { AppendNumber(t.text_offset, out); });
  out->push_back('}');
}

void AppendLogprobs(Endpoint endpoint, std::span<const ChoiceLogprob> tokens, std::string* out) {
  if (endpoint == Endpoint::kChat) return AppendChatLogprobs(tokens, out);
  AppendCompletionLogprobs(tokens, out);
}

void AppendTokenIds(std::span<const TokenId> token_ids, std::string* out) {
  if (token_ids.empty()) return;
  out->append(",\"token_ids\":");
  AppendList(token_ids, out, [out](TokenId id) { AppendNumber(id, out); });
}

// {"id":...,"object":...,"created":...,"model":...,"choices":[
std::string Head(std::string_view id, std::string_view object, std::string_view model,
                 int64_t created_s) {
  std::string out = "{\"id\":";
  AppendJsonString(id, &out);
  out += ",\"object\":";
  AppendJsonString(object, &out);
  out += ",\"created\":";
  AppendNumber(created_s, &out);
  out += ",\"model\":";
  AppendJsonString(model, &out);
  out += ",\"choices\":[";
  return out;
}

void AppendPromptToken(TokenId token, float logprob, uint32_t rank, std::string_view bytes,
                       std::string* out) {
  out->push_back('"');
  AppendNumber(token, out);
  out->append("\":{\"logprob\":");
  AppendLogprob(logprob, out);
  out->append(",\"rank\":");
  AppendNumber(rank, out);
  out->append(",\"decoded_token\":");
  AppendJsonString(bytes, out);
  out->push_back('}');
}

// As vLLM: for each prompt token an object by token id, with itself and the likeliest tokens.
void AppendPromptLogprobs(std::span<const ChoiceLogprob> tokens, std::string* out) {
  if (tokens.empty()) return;
  out->append(",\"prompt_logprobs\":");
  AppendList(tokens, out, [out](const ChoiceLogprob& t) {
    if (!t.known) return void(out->append("null"));
    out->push_back('{');
    AppendPromptToken(t.token, t.logprob, t.rank, t.bytes, out);
    uint32_t rank = 0;
    for (const TopLogprob& top : t.top) {
      ++rank;
      if (top.token == t.token) continue;
      out->push_back(',');
      AppendPromptToken(top.token, top.logprob, rank, top.bytes, out);
    }
    out->push_back('}');
  });
}

void AppendReasoningAndCalls(const Choice& choice, std::string* out) {
  if (!choice.reasoning.empty()) {
    out->append(",\"reasoning_content\":");
    AppendJsonString(choice.reasoning, out);
  }
  if (choice.calls.empty()) return;
  out->append(",\"tool_calls\":");
  AppendList(choice.calls, out, [out](const ToolCall& call) {
    out->append("{\"id\":");
    AppendJsonString(call.id, out);
    out->append(",\"type\":\"function\",\"function\":{\"name\":");
    AppendJsonString(call.name, out);
    out->append(",\"arguments\":");
    AppendJsonString(call.arguments, out);
    out->append("}}");
  });
}

}  // namespace

void AppendTokenLogprobs(std::span<const ChoiceLogprob> tokens, std::string* out) {
  AppendList(tokens, out, [out](const ChoiceLogprob& token) {
    AppendChatToken(token.bytes, token.logprob, out);
    out->append(",\"top_logprobs\":");
    AppendList(token.top, out, [out](const TopLogprob& top) {
      AppendChatToken(top.bytes, top.logprob, out);
      out->push_back('}');
    });
    out->push_back('}');
  });
}

ResponseEncoder::ResponseEncoder(Endpoint endpoint, std::string_view id, std::string_view model,
                                 int64_t created_s, StreamShape stream)
    : endpoint_(endpoint),
      usage_field_(stream.usage_field),
      event_ids_(stream.event_ids),
      head_(Head(id, endpoint == Endpoint::kChat ? "chat.completion" : "text_completion", model,
                 created_s)),
      stream_head_("data: " +
                   Head(id,
                        endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion",
                        model, created_s)),
      stream_tail_(stream.usage_field ? "],\"usage\":null}\n\n" : "]}\n\n") {}

std::string ResponseEncoder::Whole(std::span<const Choice> choices, const Usage& usage) {
  std::string out = head_;
  bool first = true;
  for (const Choice& choice : choices) {
    if (!std::exchange(first, false)) out.push_back(',');
    out += "{\"index\":";
    AppendNumber(choice.index, &out);
    const bool chat = endpoint_ == Endpoint::kChat;
    out += chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"text\":";
    if (chat && choice.text.empty() && !choice.calls.empty()) {
      out += "null";
    } else {
      AppendJsonString(choice.text, &out);
    }
    if (chat) out += ",\"refusal\":null";
    if (chat) AppendReasoningAndCalls(choice, &out);
    out += chat ? "},\"logprobs\":" : ",\"logprobs\":";
    if (choice.has_logprobs) {
      AppendLogprobs(endpoint_, choice.logprobs, &out);
    } else {
      out += "null";
    }
    AppendTokenIds(choice.token_ids, &out);
    if (!chat) AppendPromptLogprobs(choice.prompt_logprobs, &out);
    out += ",\"finish_reason\":";
    AppendJsonString(choice.finish_reason, &out);
    out.push_back('}');
  }
  out += "],\"usage\":";
  AppendUsage(usage, &out);
  // A chat has one prompt.
  if (endpoint_ == Endpoint::kChat && !choices.empty())
    AppendPromptLogprobs(choices.front().prompt_logprobs, &out);
  out.push_back('}');
  return out;
}

void ResponseEncoder::Begin(uint32_t choice, uint64_t position, std::string* out) const {
  if (event_ids_) {
    out->append("id: ");
    AppendNumber(choice, out);
    out->push_back(':');
    AppendNumber(position, out);
    out->push_back('\n');
  }
  out->append(stream_head_);
  out->append("{\"index\":");
  AppendNumber(choice, out);
}

void ResponseEncoder::Open(uint32_t choice, const Usage& /*so_far*/, std::string* out) {
  if (endpoint_ != Endpoint::kChat) return;
  Begin(choice, 0, out);
  out->append(
      ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
      "\"finish_reason\":null}");
  out->append(stream_tail_);
}

void ResponseEncoder::Text(uint32_t choice, uint64_t position, std::string_view text,
                           std::span<const ChoiceLogprob> logprobs,
                           std::span<const TokenId> token_ids, std::string* out) {
  const bool chat = endpoint_ == Endpoint::kChat;
  Begin(choice, position, out);
  out->append(chat ? ",\"delta\":{\"content\":\"" : ",\"text\":\"");
  AppendJsonEscaped(text, out);
  out->append(chat ? "\"},\"logprobs\":" : "\",\"logprobs\":");
  if (logprobs.empty()) {
    out->append("null");
  } else {
    AppendLogprobs(endpoint_, logprobs, out);
  }
  AppendTokenIds(token_ids, out);
  out->append(",\"finish_reason\":null}");
  out->append(stream_tail_);
}

void ResponseEncoder::Reasoning(uint32_t choice, uint64_t position, std::string_view text,
                                std::string* out) {
  Begin(choice, position, out);
  out->append(",\"delta\":{\"reasoning_content\":");
  AppendJsonString(text, out);
  out->append("},\"logprobs\":null,\"finish_reason\":null}");
  out->append(stream_tail_);
}

void ResponseEncoder::Call(uint32_t choice, uint64_t position, uint32_t call, std::string_view id,
                           std::string_view name, std::string* out) {
  Begin(choice, position, out);
  out->append(",\"delta\":{\"tool_calls\":[{\"index\":");
  AppendNumber(call, out);
  out->append(",\"id\":");
  AppendJsonString(id, out);
  out->append(",\"type\":\"function\",\"function\":{\"name\":");
  AppendJsonString(name, out);
  out->append(",\"arguments\":\"\"}}]},\"logprobs\":null,\"finish_reason\":null}");
  out->append(stream_tail_);
}

void ResponseEncoder::CallArguments(uint32_t choice, uint64_t position, uint32_t call,
                                    std::string_view text, std::string* out) {
  Begin(choice, position, out);
  out->append(",\"delta\":{\"tool_calls\":[{\"index\":");
  AppendNumber(call, out);
  out->append(",\"function\":{\"arguments\":");
  AppendJsonString(text, out);
  out->append("}}]},\"logprobs\":null,\"finish_reason\":null}");
  out->append(stream_tail_);
}

void ResponseEncoder::Finish(uint32_t choice, uint64_t position, const ChoiceEnd& end,
                             std::string* out) {
  Begin(choice, position, out);
  out->append(endpoint_ == Endpoint::kChat ? ",\"delta\":{}" : ",\"text\":\"\"");
  out->append(",\"logprobs\":null,\"finish_reason\":");
  AppendJsonString(end.reason, out);
  out->push_back('}');
  out->append(stream_tail_);
}

void ResponseEncoder::End(const Usage& usage, std::string* out) {
  if (usage_field_) {
    out->append(stream_head_);
    out->append("],\"usage\":");
    AppendUsage(usage, out);
    out->append("}\n\n");
  }
  out->append(kDone);
}

void ResponseEncoder::SetRunningUsage(const Usage& usage) {
  stream_tail_ = "],\"usage\":";
  AppendUsage(usage, &stream_tail_);
  stream_tail_ += "}\n\n";
}

void ResponseEncoder::Fail(const ApiError& error, std::string* out) {
  out->append("data: ");
  out->append(ErrorBody(error));
  out->append("\n\n");
  out->append(kDone);
}

std::string ModelObject(const ModelInfo& model) {
  std::string out = "{\"id\":";
  AppendJsonString(model.id, &out);
  out += ",\"object\":\"model\",\"created\":";
  AppendNumber(model.created_s, &out);
  out += ",\"owned_by\":\"aisp\",\"max_model_len\":";
  AppendNumber(model.max_model_len, &out);
  if (!model.parent.empty()) {
    out += ",\"parent\":";
    AppendJsonString(model.parent, &out);
  }
  out.push_back('}');
  return out;
}

std::string ModelList(std::span<const ModelInfo> models) {
  std::string out = "{\"object\":\"list\",\"data\":";
  AppendList(models, &out, [&out](const ModelInfo& model) { out += ModelObject(model); });
  out.push_back('}');
  return out;
}

std::string TokenizeResponse(std::span<const TokenId> tokens, int64_t max_model_len,
                             std::span<const std::string> pieces) {
  std::string out = "{\"count\":";
  AppendNumber(tokens.size(), &out);
  out += ",\"max_model_len\":";
  AppendNumber(max_model_len, &out);
  out += ",\"tokens\":";
  AppendList(tokens, &out, [&out](TokenId id) { AppendNumber(id, &out); });
  if (!pieces.empty()) {
    out += ",\"token_strs\":";
    AppendList(pieces, &out, [&out](const std::string& piece) { AppendJsonString(piece, &out); });
  }
  out.push_back('}');
  return out;
}

std::string DetokenizeResponse(std::string_view text) {
  std::string out = "{\"prompt\":";
  AppendJsonString(text, &out);
  out.push_back('}');
  return out;
}

}  // namespace aisp
