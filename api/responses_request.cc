#include "api/responses_request.h"

#include <algorithm>
#include <array>
#include <utility>

#include "api/conversation.h"
#include "api/json_text.h"
#include "api/json_value.h"
#include "api/read_options.h"

namespace aisp {
namespace {

const std::vector<FieldName>& Names() {
  static const std::vector<FieldName> kNames = {
      {"max_completion_tokens", "max_output_tokens"},
      {"max_tokens", "max_output_tokens"},
      {"response_format.json_schema", "text.format"},
      {"response_format", "text.format"},
      {"reasoning_effort", "reasoning.effort"},
      {"messages", "input"},
      {"logprobs", "include"},
  };
  return kNames;
}

// Reads the items of the input one by one into a Conversation.
class ItemReader {
 public:
  explicit ItemReader(Conversation* conversation) : to_(*conversation) {}

  void Read(Fields* fields, std::string_view name, const Value& value) {
    if (!value.IsMap()) return fields->Wrong(name, value, "an item: an object");
    Fields item(&value.AsMap(), std::string(name) + ".");
    std::string type = "message";
    item.String("type", 64, &type);
    if (type == "message") {
      Message(&item);
    } else if (type == "function_call") {
      Call(&item);
    } else if (type == "function_call_output") {
      Output(&item);
    } else if (type == "reasoning") {
      Thought(&item);
    } else {
      item.Refuse("type", std::string(name) +
                              ".type must be \"message\", \"function_call\", "
                              "\"function_call_output\" or \"reasoning\": this "
                              "server knows no items of type " +
                              Describe(Value(type)));
    }
    if (!item.ok()) fields->SetError(item.error().value());
  }

 private:
  // A required non-empty string member.
  static std::string Needed(Fields* item, std::string_view name) {
    std::string out;
    item->String(name, kAnyLength, &out);
    if (out.empty()) item->Wrong(name, Value(out), "a string that is not empty");
    return out;
  }

  void Message(Fields* item) {
    const std::string role = Needed(item, "role");
    const Value* content = item->Find("content");
    if (content == nullptr) return item->Wrong("content", Value(), "a string or a list of parts");
    std::string text;
    if (!ReadTextParts(item, "content", *content, {"input_text", "output_text", "text"}, &text))
      return;
    if (role == "user") {
      to_.User(text);
    } else if (role == "assistant") {
      to_.Assistant(text);
    } else if (role == "system" || role == "developer") {
      to_.System(text);
    } else {
      item->Wrong("role", Value(role), "\"user\", \"assistant\", \"system\" or \"developer\"");
    }
  }

  void Call(Fields* item) {
    const std::string id = Needed(item, "call_id");
    const std::string name = Needed(item, "name");
    const std::string arguments = Needed(item, "arguments");
    if (item->ok()) to_.Call(id, name, Value(arguments));
  }

  void Output(Fields* item) {
    const std::string id = Needed(item, "call_id");
    const Value* output = item->Find("output");
    if (output == nullptr) return item->Wrong("output", Value(), "a string or a list of parts");
    std::string text;
    if (ReadTextParts(item, "output", *output, {"input_text", "output_text", "text"}, &text))
      to_.Result(id, text);
  }

  void Thought(Fields* item) {
    if (item->Find("encrypted_content") != nullptr) {
      return item->Refuse("encrypted_content",
                          "encrypted_content cannot be read by this server, whose reasoning stands "
                          "in content; leave it out");
    }
    // The full thinking if present, else its summary.
    for (const std::string_view name : {"content", "summary"}) {
      const Value* content = item->Find(name);
      if (content == nullptr || (content->IsList() && content->AsList().empty())) continue;
      std::string text;
      if (ReadTextParts(item, name, *content, {"reasoning_text", "summary_text"}, &text))
        to_.Thought(text);
      return;
    }
  }

  Conversation& to_;
};

void ReadInput(Fields* fields, const ApiLimits& limits, ResponsesRequest* out) {
  const Value* input = fields->Find("input");
  if (input == nullptr)
    return fields->Refuse("input", "input is missing: a string or a list of items");
  if (input->IsString()) {
    const Value::Map message{{"type", "message"}, {"role", "user"}, {"content", *input}};
    out->items.push_back(Value(message));
    return;
  }
  const Value::List* items = fields->List("input", static_cast<size_t>(limits.max_messages));
  if (items == nullptr) return;
  if (items->empty()) return fields->Refuse("input", "input must not be empty");
  out->items.insert(out->items.end(), items->begin(), items->end());
}

// Items from index `known` on are this request's own; errors count from there.
void ReadItems(Fields* fields, const ApiLimits& limits, size_t known, ResponsesRequest* out,
               Value::Map* chat) {
  if (out->items.size() > static_cast<size_t>(limits.max_messages)) {
    return fields->Refuse("input", "the conversation must have at most " +
                                       std::to_string(limits.max_messages) + " items, but has " +
                                       std::to_string(out->items.size()));
  }
  Conversation conversation;
  std::string instructions;
  fields->String("instructions", kAnyLength, &instructions);
  if (!instructions.empty()) conversation.System(instructions);
  ItemReader reader(&conversation);
  for (size_t i = 0; i < out->items.size() && fields->ok(); ++i) {
    const std::string name = i < known ? "previous_response_id[" + std::to_string(i) + "]"
                                       : "input[" + std::to_string(i - known) + "]";
    reader.Read(fields, name, out->items[i]);
  }
  chat->Set("messages", Value(conversation.Take()));
}

// Converts this API's flat form to a chat's.
Value AllowedTools(const Value::Map& flat) {
  Value::Map out;
  if (const Value* mode = flat.Find("mode")) out.Set("mode", *mode);
  if (const Value* tools = flat.Find("tools"); tools != nullptr && tools->IsList()) {
    Value::List named;
    for (const Value& tool : tools->AsList()) {
      const Value* name = tool.IsMap() ? tool.AsMap().Find("name") : nullptr;
      named.push_back(name == nullptr
                          ? tool
                          : Value(Value::Map{{"function", Value(Value::Map{{"name", *name}})}}));
    }
    out.Set("tools", Value(std::move(named)));
  }
  return Value(Value::Map{{"type", "allowed_tools"}, {"allowed_tools", Value(std::move(out))}});
}

void ReadResponsesTools(Fields* fields, Value::Map* chat) {
  const Value::List* tools = fields->List("tools", kMaxTools);
  Value::List functions;
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const Value& tool = (*tools)[i];
    const std::string at = "tools[" + std::to_string(i) + "]";
    const Value* type = tool.IsMap() ? tool.AsMap().Find("type") : nullptr;
    if (type == nullptr || !type->IsString() || type->AsString() != "function") {
      return fields->Wrong(at + (type == nullptr ? "" : ".type"), type == nullptr ? tool : *type,
                           "\"function\": other kinds of tools are not supported by this server");
    }
    Value::Map function;
    for (const auto& [key, value] : tool.AsMap()) {
      if (key != "type" && !value.IsNone()) function.Set(key, value);
    }
    functions.push_back(Value(Value::Map{{"type", "function"}, {"function", Value(function)}}));
  }
  chat->Set("tools", Value(std::move(functions)));
  const Value* choice = fields->Find("tool_choice");
  if (choice == nullptr || !choice->IsMap()) return;
  const Value* type = choice->AsMap().Find("type");
  if (type != nullptr && type->IsString() && type->AsString() == "allowed_tools")
    return chat->Set("tool_choice", AllowedTools(choice->AsMap()));
  const Value* name = choice->AsMap().Find("name");
  if (type == nullptr || !type->IsString() || type->AsString() != "function" || name == nullptr) {
    return fields->Wrong("tool_choice", type == nullptr ? *choice : *type,
                         "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": "
                         "...}");
  }
  chat->Set("tool_choice", Value(Value::Map{{"type", "function"},
                                            {"function", Value(Value::Map{{"name", *name}})}}));
}

void ReadText(Fields* fields, Value::Map* chat) {
  const Value::Map* text = fields->Object("text");
  if (text == nullptr) return;
  Fields each(text, "text.");
  std::string verbosity = "medium";
  each.String("verbosity", 64, &verbosity);
  if (verbosity != "medium") {
    each.Refuse("verbosity", "text.verbosity is not supported by this server; leave it out");
  }
  if (const Value::Map* format = each.Object("format")) {
    const Value* type = format->Find("type");
    Value::Map out;
    if (type != nullptr) out.Set("type", *type);
    if (type != nullptr && type->IsString() && type->AsString() == "json_schema") {
      if (format->Find("schema") == nullptr)
        each.Refuse("format.schema", "text.format.schema is missing: it holds the JSON Schema");
      out.Set("json_schema", Value(*format));
    }
    chat->Set("response_format", Value(std::move(out)));
  }
  if (!each.ok()) fields->SetError(each.error().value());
}

void ReadReasoning(Fields* fields, Value::Map* chat) {
  const Value::Map* reasoning = fields->Object("reasoning");
  if (reasoning == nullptr) return;
  Fields each(reasoning, "reasoning.");
  if (const Value* effort = each.Find("effort")) chat->Set("reasoning_effort", *effort);
  for (const std::string_view name : {"summary", "generate_summary"}) {
    std::string summary = "auto";
    each.String(name, 64, &summary);
    if (summary != "auto") {
      each.Refuse(name, "reasoning." + std::string(name) +
                            " is not supported by this server, which gives the reasoning itself; "
                            "leave it out");
    }
  }
  if (!each.ok()) fields->SetError(each.error().value());
}

// include and top_logprobs.
void ReadIncluded(Fields* fields, Value::Map* chat) {
  bool logprobs = false;
  if (const Value::List* include = fields->List("include", 64)) {
    for (const Value& item : *include) {
      const std::string word = item.IsString() ? item.AsString() : "";
      // The thinking is not encrypted, so no encrypted copy is needed.
      if (word == "reasoning.encrypted_content") continue;
      if (word != "message.output_text.logprobs") {
        return fields->Wrong("include", item,
                             "a list of \"message.output_text.logprobs\" (no other output is known "
                             "here)");
      }
      logprobs = true;
    }
  }
  chat->Set("logprobs", Value(logprobs));
  if (!logprobs && fields->Find("top_logprobs") != nullptr) {
    int64_t top = 0;
    fields->Int("top_logprobs", 0, INT32_MAX, &top);
    if (top > 0) {
      fields->Refuse("top_logprobs",
                     "top_logprobs needs \"include\": [\"message.output_text.logprobs\"]");
    }
  }
}

void CheckMetadata(Fields* fields) {
  constexpr size_t kPairs = 16;
  constexpr size_t kKeyBytes = 64 * 4;
  constexpr size_t kValueBytes = 512 * 4;
  const Value::Map* metadata = fields->Object("metadata");
  if (metadata == nullptr) return;
  if (metadata->size() > kPairs)
    return fields->Wrong("metadata", Value(*metadata), "an object of at most 16 strings");
  Fields each(metadata, "metadata.");
  for (const auto& [key, value] : *metadata) {
    std::string text;
    each.String(key, kValueBytes, &text);
    if (key.size() > kKeyBytes)
      each.Refuse(key, "a name in metadata must have at most 64 characters");
  }
  if (!each.ok()) fields->SetError(each.error().value());
}

void RefuseResponsesFields(Fields* fields) {
  constexpr std::array kRefused = {"background", "conversation",   "context_management",
                                   "image",      "max_tool_calls", "moderation",
                                   "prompt",     "prompt_logprobs"};
  for (const std::string_view name : kRefused) {
    const Value* value = fields->Find(name);
    if (value == nullptr || (value->IsBool() && !value->AsBool())) continue;
    fields->Refuse(name, std::string(name) + " is not supported by this server; leave it out");
  }
  RefuseChatNames(fields, Names());
  std::string truncation = "disabled";
  fields->String("truncation", 64, &truncation);
  if (truncation != "disabled")
    fields->Refuse("truncation", "truncation is not supported by this server; leave it out");
  uint32_t n = 1;
  fields->IntInto("n", 1, INT32_MAX, &n);
  if (n != 1) fields->Refuse("n", "a response has one answer; leave n out");
  if (const Value::Map* options = fields->Object("stream_options")) {
    Fields each(options, "stream_options.");
    bool obfuscated = false;
    each.Bool("include_obfuscation", &obfuscated);
    if (obfuscated)
      each.Refuse("include_obfuscation", "obfuscation is not supported by this server");
    if (!each.ok()) fields->SetError(each.error().value());
  }
}

void AppendEcho(const Fields& fields, std::string_view name, std::string_view absent,
                std::string* out) {
  if (!out->empty()) out->push_back(',');
  AppendJsonString(name, out);
  out->push_back(':');
  const Value* value = fields.Find(name);
  if (value == nullptr) return void(out->append(absent));
  AppendJson(*value, out);
}

std::string EchoOf(const Fields& fields, const ResponsesRequest& request) {
  std::string out = request.store ? "\"store\":true" : "\"store\":false";
  const v1::SamplingParams& sampling = request.chat.sampling;
  out += ",\"temperature\":";
  AppendNumber(sampling.temperature(), &out);
  out += ",\"top_p\":";
  AppendNumber(sampling.top_p(), &out);
  AppendEcho(fields, "instructions", "null", &out);
  AppendEcho(fields, "max_output_tokens", "null", &out);
  AppendEcho(fields, "metadata", "{}", &out);
  AppendEcho(fields, "parallel_tool_calls", "true", &out);
  AppendEcho(fields, "previous_response_id", "null", &out);
  AppendEcho(fields, "reasoning", R"({"effort":null,"summary":null})", &out);
  AppendEcho(fields, "text", R"({"format":{"type":"text"}})", &out);
  AppendEcho(fields, "tool_choice", "\"auto\"", &out);
  AppendEcho(fields, "tools", "[]", &out);
  AppendEcho(fields, "top_logprobs", "0", &out);
  AppendEcho(fields, "truncation", "\"disabled\"", &out);
  AppendEcho(fields, "user", "null", &out);
  return out;
}

// The fields that a chat has under the same names; the readers above add the others.
Value::Map ChatFields(const Value::Map& body) {
  constexpr std::array kOwn = {
      "input", "instructions", "previous_response_id", "store",   "text", "reasoning",
      "tools", "metadata",     "max_output_tokens",    "include", "n",    "stream_options"};
  Value::Map out;
  for (const auto& [key, value] : body) {
    if (std::find(kOwn.begin(), kOwn.end(), std::string_view(key)) == kOwn.end())
      out.Set(key, value);
  }
  return out;
}

}  // namespace

ApiError InResponsesWords(ApiError error) { return InClientsWords(std::move(error), Names()); }

ApiResult<ResponsesRequest> ParseResponses(std::string_view body, const ApiLimits& limits,
                                           const FindConversation& find) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  Fields fields(&value.AsMap());
  ResponsesRequest out;
  fields.Bool("store", &out.store);
  out.store = out.store && limits.keeps_responses;
  fields.String("previous_response_id", kMaxNameBytes, &out.previous_response_id);
  if (fields.ok() && !out.previous_response_id.empty()) {
    AISP_ASSIGN_OR_RETURN(out.items, find(out.previous_response_id));
  }
  const size_t known = out.items.size();
  Value::Map chat = ChatFields(value.AsMap());
  ReadInput(&fields, limits, &out);
  ReadItems(&fields, limits, known, &out, &chat);
  ReadResponsesTools(&fields, &chat);
  ReadText(&fields, &chat);
  ReadReasoning(&fields, &chat);
  ReadIncluded(&fields, &chat);
  CheckMetadata(&fields);
  RefuseResponsesFields(&fields);
  if (const Value* most = fields.Find("max_output_tokens"))
    chat.Set("max_completion_tokens", *most);
  if (!fields.ok()) return fields.error();
  auto parsed = ParseChat(chat, limits);
  if (!parsed) return tl::unexpected(InResponsesWords(std::move(parsed).error()));
  out.chat = std::move(*parsed);
  KeepUnread(fields, &out.chat.ignored);
  out.echo = EchoOf(fields, out);
  return out;
}

}  // namespace aisp
