#include "api/responses_encoder.h"

#include <utility>

#include "api/response.h"

namespace aisp {
namespace {

void AppendUsage(const Usage& usage, std::string* out) {
  out->append("{\"input_tokens\":");
  AppendNumber(usage.prompt_tokens, out);
  out->append(",\"input_tokens_details\":{\"cached_tokens\":");
  AppendNumber(usage.cached_tokens, out);
  out->append(",\"cache_write_tokens\":0},\"output_tokens\":");
  AppendNumber(usage.completion_tokens, out);
  out->append(",\"output_tokens_details\":{\"reasoning_tokens\":");
  AppendNumber(usage.reasoning_tokens, out);
  out->append("},\"total_tokens\":");
  AppendNumber(uint64_t{usage.prompt_tokens} + usage.completion_tokens, out);
  if (!usage.extension.empty()) out->append(",\"aisp\":").append(usage.extension);
  out->push_back('}');
}

void AppendMember(std::string_view name, std::string_view text, std::string* out) {
  out->append(",\"").append(name).append("\":");
  AppendJsonString(text, out);
}

}  // namespace

ResponsesEncoder::ResponsesEncoder(ResponsesHead head) : head_(std::move(head)) {}

void ResponsesEncoder::Begin(std::string_view type, std::string* out) {
  out->append("event: ").append(type).append("\ndata: {\"type\":\"").append(type);
  out->append("\",\"sequence_number\":");
  AppendNumber(next_event_++, out);
}

void ResponsesEncoder::Place(bool part, std::string* out) const {
  AppendMember("item_id", items_.back().id, out);
  out->append(",\"output_index\":");
  AppendNumber(items_.size() - 1, out);
  if (part) out->append(",\"content_index\":0");
}

void ResponsesEncoder::AppendPart(const Item& item, std::string* out) {
  if (item.kind == Item::Kind::kReasoning) {
    out->append("{\"type\":\"reasoning_text\",\"text\":");
    AppendJsonString(item.text, out);
  } else {
    out->append("{\"type\":\"output_text\",\"text\":");
    AppendJsonString(item.text, out);
    out->append(",\"annotations\":[],\"logprobs\":[").append(item.logprobs).push_back(']');
  }
  out->push_back('}');
}

void ResponsesEncoder::AppendItem(const Item& item, std::string* out) {
  out->append("{\"id\":");
  AppendJsonString(item.id, out);
  AppendMember("status", item.status, out);
  if (item.kind == Item::Kind::kCall) {
    out->append(",\"type\":\"function_call\"");
    AppendMember("call_id", item.call_id, out);
    AppendMember("name", item.name, out);
    AppendMember("arguments", item.text, out);
  } else {
    const bool message = item.kind == Item::Kind::kMessage;
    out->append(message ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                        : ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
    // An item gets its part from the event that adds one.
    if (item.status != "in_progress" || !item.text.empty()) AppendPart(item, out);
    out->push_back(']');
  }
  out->push_back('}');
}

std::string ResponsesEncoder::Object(const Usage* usage) const {
  std::string out = "{\"id\":";
  AppendJsonString(head_.id, &out);
  out += ",\"object\":\"response\",\"created_at\":";
  AppendNumber(head_.created_s, &out);
  AppendMember("status", status_, &out);
  AppendMember("model", head_.model, &out);
  out += ",\"background\":false,\"error\":";
  if (status_ == "failed") {
    // This object allows only a few codes of OpenAI's.
    const bool limit = error_.code == Code::kResourceExhausted;
    out += limit ? "{\"code\":\"rate_limit_exceeded\"" : "{\"code\":\"server_error\"";
    AppendMember("message", error_.message, &out);
    out.push_back('}');
  } else {
    out += "null";
  }
  out += ",\"incomplete_details\":";
  out += status_ == "incomplete" ? "{\"reason\":\"max_output_tokens\"}" : "null";
  out += ",\"output\":";
  AppendList(items_, &out, [&out](const Item& item) { AppendItem(item, &out); });
  out += ",\"usage\":";
  if (usage == nullptr) out += "null";
  if (usage != nullptr) AppendUsage(*usage, &out);
  if (!head_.echo.empty()) out.append(",").append(head_.echo);
  out.push_back('}');
  return out;
}

void ResponsesEncoder::Lifecycle(std::string_view type, const Usage* usage, std::string* out) {
  Begin(type, out);
  out->append(",\"response\":").append(Object(usage));
  EndEvent(out);
}

void ResponsesEncoder::Open(uint32_t /*choice*/, const Usage& /*so_far*/, std::string* out) {
  Lifecycle("response.created", nullptr, out);
  Lifecycle("response.in_progress", nullptr, out);
}

ResponsesEncoder::Item& ResponsesEncoder::Add(Item item, std::string* out) {
  CloseItem("completed", out);
  const std::string_view prefix = item.kind == Item::Kind::kMessage     ? "msg_"
                                  : item.kind == Item::Kind::kReasoning ? "rs_"
                                                                        : "fc_";
  item.id.append(prefix).append(head_.id, head_.id.find('_') + 1).push_back('_');
  AppendNumber(items_.size(), &item.id);
  items_.push_back(std::move(item));
  Begin("response.output_item.added", out);
  out->append(",\"output_index\":");
  AppendNumber(items_.size() - 1, out);
  out->append(",\"item\":");
  AppendItem(items_.back(), out);
  EndEvent(out);
  if (items_.back().kind == Item::Kind::kCall) return items_.back();
  Begin("response.content_part.added", out);
  Place(/*part=*/true, out);
  out->append(",\"part\":");
  AppendPart(items_.back(), out);
  EndEvent(out);
  return items_.back();
}

ResponsesEncoder::Item& ResponsesEncoder::Current(Item::Kind kind, std::string* out) {
  const bool open = !items_.empty() && items_.back().status == "in_progress";
  if (open && items_.back().kind == kind) return items_.back();
  Item item;
  item.kind = kind;
  return Add(std::move(item), out);
}

void ResponsesEncoder::CloseItem(std::string_view status, std::string* out) {
  if (items_.empty() || items_.back().status != "in_progress") return;
  Item& item = items_.back();
  item.status = status;
  const bool call = item.kind == Item::Kind::kCall;
  const bool message = item.kind == Item::Kind::kMessage;
  Begin(call      ? "response.function_call_arguments.done"
        : message ? "response.output_text.done"
                  : "response.reasoning_text.done",
        out);
  Place(!call, out);
  if (call) AppendMember("name", item.name, out);
  AppendMember(call ? "arguments" : "text", item.text, out);
  if (message) out->append(",\"logprobs\":[").append(item.logprobs).push_back(']');
  EndEvent(out);
  if (!call) {
    Begin("response.content_part.done", out);
    Place(/*part=*/true, out);
    out->append(",\"part\":");
    AppendPart(item, out);
    EndEvent(out);
  }
  Begin("response.output_item.done", out);
  out->append(",\"output_index\":");
  AppendNumber(items_.size() - 1, out);
  out->append(",\"item\":");
  AppendItem(item, out);
  EndEvent(out);
}

void ResponsesEncoder::Text(uint32_t /*choice*/, uint64_t /*position*/, std::string_view text,
                            std::span<const ChoiceLogprob> logprobs,
                            std::span<const TokenId> /*token_ids*/, std::string* out) {
  // Logprobs of calls and thinking are not part of this API.
  for (const ChoiceLogprob& each : logprobs) {
    if (each.text_part == 0) continue;
    std::string value;
    AppendTokenLogprobs({&each, 1}, &value);
    if (!waiting_.empty()) waiting_.push_back(',');
    waiting_.append(value, 1, value.size() - 2);
  }
  if (text.empty()) return;
  Current(Item::Kind::kMessage, out);
  TextDelta(text, out);
}

void ResponsesEncoder::TextDelta(std::string_view text, std::string* out) {
  Item& item = items_.back();
  item.text += text;
  Begin("response.output_text.delta", out);
  Place(/*part=*/true, out);
  AppendMember("delta", text, out);
  out->append(",\"logprobs\":[").append(waiting_).push_back(']');
  EndEvent(out);
  if (!item.logprobs.empty() && !waiting_.empty()) item.logprobs.push_back(',');
  item.logprobs.append(std::exchange(waiting_, {}));
}

void ResponsesEncoder::Reasoning(uint32_t /*choice*/, uint64_t /*position*/, std::string_view text,
                                 std::string* out) {
  if (text.empty()) return;
  Current(Item::Kind::kReasoning, out).text += text;
  Begin("response.reasoning_text.delta", out);
  Place(/*part=*/true, out);
  AppendMember("delta", text, out);
  EndEvent(out);
}

void ResponsesEncoder::Call(uint32_t /*choice*/, uint64_t /*position*/, uint32_t /*call*/,
                            std::string_view id, std::string_view name, std::string* out) {
  Item item;
  item.kind = Item::Kind::kCall;
  item.call_id = id;
  item.name = name;
  Add(std::move(item), out);
}

void ResponsesEncoder::CallArguments(uint32_t /*choice*/, uint64_t /*position*/, uint32_t /*call*/,
                                     std::string_view text, std::string* out) {
  if (text.empty() || items_.empty() || items_.back().kind != Item::Kind::kCall) return;
  items_.back().text += text;
  Begin("response.function_call_arguments.delta", out);
  Place(/*part=*/false, out);
  AppendMember("delta", text, out);
  EndEvent(out);
}

void ResponsesEncoder::Finish(uint32_t /*choice*/, uint64_t /*position*/, const ChoiceEnd& end,
                              std::string* out) {
  // Clients expect a message even if the answer is empty.
  if (items_.empty()) Current(Item::Kind::kMessage, out);
  // Flushes logprobs of tokens after the text, such as the stop token.
  if (!waiting_.empty() && items_.back().kind == Item::Kind::kMessage) TextDelta("", out);
  status_ = end.reason == "length" ? "incomplete" : "completed";
  CloseItem(status_, out);
}

void ResponsesEncoder::End(const Usage& usage, std::string* out) {
  const std::string json = Object(&usage);
  Begin(status_ == "incomplete" ? "response.incomplete" : "response.completed", out);
  out->append(",\"response\":").append(json);
  EndEvent(out);
  if (!head_.keep) return;
  Value::List output;
  for (const Item& item : items_) output.push_back(AsInput(item));
  head_.keep(json, std::move(output));
}

void ResponsesEncoder::Fail(const ApiError& error, std::string* out) {
  // Nothing but keep-alive comments may have been sent so far.
  if (next_event_ == 0) Open(0, {}, out);
  CloseItem("incomplete", out);
  status_ = "failed";
  error_ = error;
  Lifecycle("response.failed", nullptr, out);
}

Value ResponsesEncoder::AsInput(const Item& item) {
  if (item.kind == Item::Kind::kCall) {
    return Value(Value::Map{{"type", "function_call"},
                            {"call_id", item.call_id},
                            {"name", item.name},
                            {"arguments", item.text}});
  }
  if (item.kind == Item::Kind::kMessage)
    return Value(Value::Map{{"type", "message"}, {"role", "assistant"}, {"content", item.text}});
  const Value part(Value::Map{{"type", "reasoning_text"}, {"text", item.text}});
  return Value(Value::Map{{"type", "reasoning"}, {"content", Value(Value::List{part})}});
}

std::string ResponsesEncoder::Whole(std::span<const Choice> choices, const Usage& usage) {
  // Runs the steps of a stream and drops the events.
  std::string events;
  for (const Choice& choice : choices) {
    ForPieces(
        choice,
        [&](std::string_view text, std::span<const ChoiceLogprob> logprobs) {
          Text(0, 0, text, logprobs, {}, &events);
        },
        [&](std::string_view text) { Reasoning(0, 0, text, &events); },
        [&](const ToolCall& call) {
          Call(0, 0, 0, call.id, call.name, &events);
          CallArguments(0, 0, 0, call.arguments, &events);
        });
    Finish(0, 0, {choice.finish_reason, choice.stop}, &events);
  }
  End(usage, &events);
  return Object(&usage);
}

}  // namespace aisp
