#include "api/messages_encoder.h"

#include <array>
#include <ctime>
#include <utility>

#include "api/json_text.h"
#include "api/json_value.h"

namespace aisp {
namespace {

constexpr int kMaxArgumentsDepth = 256;

std::string_view ErrorTypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status >= 500 ? "api_error" : "invalid_request_error";
  }
}

// Anthropic counts prompt tokens from the prefix cache separately.
void AppendUsage(const Usage& usage, std::string* out) {
  out->append("{\"input_tokens\":");
  AppendNumber(usage.prompt_tokens - usage.cached_tokens, out);
  out->append(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
  AppendNumber(usage.cached_tokens, out);
  out->append(",\"output_tokens\":");
  AppendNumber(usage.completion_tokens, out);
  if (!usage.extension.empty()) out->append(",\"aisp\":").append(usage.extension);
  out->push_back('}');
}

// `{` and the members of a text block.
std::string TextBlock(std::string_view text) {
  std::string out = "{\"type\":\"text\",\"text\":";
  AppendJsonString(text, &out);
  return out + "}";
}

std::string ThinkingBlock(std::string_view text) {
  std::string out = "{\"type\":\"thinking\",\"thinking\":";
  AppendJsonString(text, &out);
  return out + ",\"signature\":\"\"}";
}

// `input`: JSON text of an object.
std::string CallBlock(std::string_view id, std::string_view name, std::string_view input) {
  std::string out = "{\"type\":\"tool_use\",\"id\":";
  AppendJsonString(id, &out);
  out += ",\"name\":";
  AppendJsonString(name, &out);
  return out.append(",\"input\":").append(input).append("}");
}

// A call that was cut off has no complete object yet.
std::string InputOf(const std::string& arguments) {
  const auto value = ParseJson(arguments, kMaxArgumentsDepth);
  return value && value->IsMap() ? arguments : "{}";
}

std::string EndOf(const ChoiceEnd& end) {
  const std::string_view reason = end.reason == "length"       ? "max_tokens"
                                  : end.reason == "tool_calls" ? "tool_use"
                                  : end.stop.empty()           ? "end_turn"
                                                               : "stop_sequence";
  std::string out = "\"stop_reason\":";
  AppendJsonString(reason, &out);
  out += ",\"stop_sequence\":";
  if (reason == "stop_sequence") {
    AppendJsonString(end.stop, &out);
  } else {
    out += "null";
  }
  return out;
}

}  // namespace

std::string MessagesErrorBody(const ApiError& error, std::string_view request_id) {
  return MessagesErrorBody(HttpStatus(error.code), error.message, request_id);
}

std::string MessagesErrorBody(int http_status, std::string_view message,
                              std::string_view request_id) {
  std::string out = "{\"type\":\"error\",\"error\":{\"type\":";
  AppendJsonString(ErrorTypeOf(http_status), &out);
  out += ",\"message\":";
  AppendJsonString(message, &out);
  out += "},\"request_id\":";
  AppendJsonString(request_id, &out);
  out.push_back('}');
  return out;
}

std::string MessagesModel(const ModelInfo& model) {
  const auto created = static_cast<std::time_t>(model.created_s);
  std::tm utc{};
  gmtime_r(&created, &utc);
  std::array<char, 32> time{};
  const size_t size = std::strftime(time.data(), time.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  std::string out = "{\"type\":\"model\",\"id\":";
  AppendJsonString(model.id, &out);
  out += ",\"display_name\":";
  AppendJsonString(model.id, &out);
  out += ",\"created_at\":";
  AppendJsonString(std::string_view(time.data(), size), &out);
  out += ",\"max_input_tokens\":";
  AppendNumber(model.max_model_len, &out);
  out.push_back('}');
  return out;
}

std::string MessagesModelList(std::span<const ModelInfo> models) {
  std::string out = "{\"data\":";
  AppendList(models, &out, [&out](const ModelInfo& model) { out += MessagesModel(model); });
  out += ",\"has_more\":false,\"first_id\":";
  if (models.empty()) {
    out += "null,\"last_id\":null}";
    return out;
  }
  AppendJsonString(models.front().id, &out);
  out += ",\"last_id\":";
  AppendJsonString(models.back().id, &out);
  out.push_back('}');
  return out;
}

std::string TokenCountBody(size_t tokens) {
  return "{\"input_tokens\":" + std::to_string(tokens) + "}";
}

MessagesEncoder::MessagesEncoder(std::string id, std::string model, std::string request)
    : id_(std::move(id)), model_(std::move(model)), request_(std::move(request)) {}

std::string MessagesEncoder::Head() const {
  std::string out = "{\"id\":";
  AppendJsonString(id_, &out);
  out += ",\"type\":\"message\",\"role\":\"assistant\",\"model\":";
  AppendJsonString(model_, &out);
  return out + ",\"content\":[";
}

void MessagesEncoder::Open(uint32_t /*choice*/, const Usage& so_far, std::string* out) {
  out->append("event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
  out->append(Head()).append("],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
  AppendUsage(so_far, out);
  out->append("}}\n\n");
}

void MessagesEncoder::OpenBlock(Block block, std::string_view start, std::string* out) {
  if (block_ == block && block != Block::kCall) return;
  CloseBlock(out);
  block_ = block;
  out->append("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
  AppendNumber(blocks_++, out);
  out->append(",\"content_block\":").append(start).append("}\n\n");
}

void MessagesEncoder::CloseBlock(std::string* out) {
  if (block_ == Block::kNone) return;
  block_ = Block::kNone;
  out->append("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
  AppendNumber(blocks_ - 1, out);
  out->append("}\n\n");
}

void MessagesEncoder::Delta(std::string_view type, std::string_view member, std::string_view text,
                            std::string* out) const {
  out->append("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
  AppendNumber(blocks_ - 1, out);
  out->append(",\"delta\":{\"type\":\"").append(type).append("\",\"").append(member).append("\":");
  AppendJsonString(text, out);
  out->append("}}\n\n");
}

void MessagesEncoder::Text(uint32_t /*choice*/, uint64_t /*position*/, std::string_view text,
                           std::span<const ChoiceLogprob> /*logprobs*/,
                           std::span<const TokenId> /*token_ids*/, std::string* out) {
  if (text.empty()) return;
  OpenBlock(Block::kText, TextBlock(""), out);
  Delta("text_delta", "text", text, out);
}

void MessagesEncoder::Reasoning(uint32_t /*choice*/, uint64_t /*position*/, std::string_view text,
                                std::string* out) {
  if (text.empty()) return;
  OpenBlock(Block::kThinking, ThinkingBlock(""), out);
  Delta("thinking_delta", "thinking", text, out);
}

void MessagesEncoder::Call(uint32_t /*choice*/, uint64_t /*position*/, uint32_t /*call*/,
                           std::string_view id, std::string_view name, std::string* out) {
  OpenBlock(Block::kCall, CallBlock(id, name, "{}"), out);
}

void MessagesEncoder::CallArguments(uint32_t /*choice*/, uint64_t /*position*/, uint32_t /*call*/,
                                    std::string_view text, std::string* out) {
  if (!text.empty() && block_ == Block::kCall) Delta("input_json_delta", "partial_json", text, out);
}

void MessagesEncoder::Finish(uint32_t /*choice*/, uint64_t /*position*/, const ChoiceEnd& end,
                             std::string* out) {
  // Clients expect a block even if the answer is empty.
  if (blocks_ == 0) OpenBlock(Block::kText, TextBlock(""), out);
  CloseBlock(out);
  end_ = EndOf(end);
}

void MessagesEncoder::End(const Usage& usage, std::string* out) {
  out->append("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{").append(end_);
  out->append("},\"usage\":");
  AppendUsage(usage, out);
  out->append("}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

void MessagesEncoder::Fail(const ApiError& error, std::string* out) {
  out->append("event: error\ndata: ").append(MessagesErrorBody(error, request_)).append("\n\n");
}

std::string MessagesEncoder::Whole(std::span<const Choice> choices, const Usage& usage) {
  const Choice& choice = choices.front();
  std::string out = Head();
  const auto add = [&out](const std::string& block) {
    if (out.back() != '[') out.push_back(',');
    out += block;
  };
  ForPieces(
      choice,
      [&](std::string_view text, std::span<const ChoiceLogprob> /*logprobs*/) {
        if (!text.empty()) add(TextBlock(text));
      },
      [&](std::string_view text) {
        if (!text.empty()) add(ThinkingBlock(text));
      },
      [&](const ToolCall& call) { add(CallBlock(call.id, call.name, InputOf(call.arguments))); });
  // Clients expect a block even if the answer is empty.
  if (out.back() == '[') add(TextBlock(""));
  out += "],";
  out += EndOf({choice.finish_reason, choice.stop});
  out += ",\"usage\":";
  AppendUsage(usage, &out);
  out.push_back('}');
  return out;
}

}  // namespace aisp
