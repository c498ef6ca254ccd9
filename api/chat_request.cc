#include "api/json_value.h"
#include "api/read_options.h"
#include "api/request.h"

namespace aisp {
namespace {

// Joins the text of content parts with newlines, as vLLM does.
bool JoinParts(Fields* fields, const Value::List& parts, std::string* out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = "content[" + std::to_string(i) + "]";
    if (i > 0) out->push_back('\n');
    if (parts[i].IsString()) {
      out->append(parts[i].AsString());
      continue;
    }
    const Value* type = parts[i].IsMap() ? parts[i].AsMap().Find("type") : nullptr;
    const Value* text = parts[i].IsMap() ? parts[i].AsMap().Find("text") : nullptr;
    if (type == nullptr || !type->IsString() || type->AsString() != "text") {
      fields->Wrong(name, type == nullptr ? parts[i] : *type,
                    "of type \"text\" (this server reads text only)");
      return false;
    }
    if (text == nullptr || !text->IsString()) {
      fields->Wrong(name + ".text", text == nullptr ? Value() : *text, "a string");
      return false;
    }
    out->append(text->AsString());
  }
  return true;
}

// Clients send the arguments of a call as JSON text; templates want the object.
Value WithParsedArguments(const Value& call, int max_depth) {
  const Value* function = call.IsMap() ? call.AsMap().Find("function") : nullptr;
  if (function == nullptr || !function->IsMap()) return call;
  const Value* arguments = function->AsMap().Find("arguments");
  if (arguments == nullptr || !arguments->IsString()) return call;
  const auto parsed = ParseJson(arguments->AsString(), max_depth);
  if (!parsed || !parsed->IsMap()) return call;
  Value::Map new_function = function->AsMap();
  new_function.Set("arguments", *parsed);
  Value::Map new_call = call.AsMap();
  new_call.Set("function", Value(std::move(new_function)));
  return Value(std::move(new_call));
}

Value ReadMessage(Fields* fields, const Value::Map& message, int max_depth) {
  std::string role;
  fields->String("role", 64, &role);
  if (role.empty()) fields->Refuse("role", "each message needs a role");
  Value::Map out = message;
  const Value* content = fields->Find("content");
  if (content == nullptr) {
    out.Set("content", Value());
    if (role == "user" || role == "system") {
      fields->Refuse("content", "a message of role \"" + role + "\" needs content");
    }
  } else if (content->IsList()) {
    std::string text;
    if (JoinParts(fields, content->AsList(), &text)) out.Set("content", Value(std::move(text)));
  } else if (!content->IsString()) {
    fields->Wrong("content", *content, "a string or a list of parts of type \"text\"");
  }
  std::string name;
  fields->String("name", kMaxNameBytes, &name);
  if (fields->Find("function_call") != nullptr) {
    fields->Refuse("function_call",
                   "function_call is the form that tool_calls has replaced; send that, and the "
                   "result with the role \"tool\"");
  }
  if (const Value::List* calls = fields->List("tool_calls", 1024)) {
    Value::List parsed;
    for (const Value& call : *calls) parsed.push_back(WithParsedArguments(call, max_depth));
    out.Set("tool_calls", Value(std::move(parsed)));
  }
  return Value(std::move(out));
}

void ReadMessages(Fields* fields, const ApiLimits& limits, ChatRequest* out) {
  if (fields->Find("messages") == nullptr) {
    return fields->Refuse("messages", "messages is missing: a list of {role, content}");
  }
  const Value::List* list = fields->List("messages", static_cast<size_t>(limits.max_messages));
  if (list == nullptr) return;
  if (list->empty()) return fields->Refuse("messages", "messages must not be empty");
  Value::List messages;
  messages.reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string name = "messages[" + std::to_string(i) + "]";
    if (!(*list)[i].IsMap()) return fields->Wrong(name, (*list)[i], "an object {role, content}");
    Fields each(&(*list)[i].AsMap(), name + ".");
    messages.push_back(ReadMessage(&each, (*list)[i].AsMap(), limits.max_json_depth));
    if (!each.ok()) return fields->SetError(each.error().value());
  }
  out->messages = Value(std::move(messages));
}

void ReadLogprobs(Fields* fields, const ApiLimits& limits, ChatRequest* out) {
  bool wanted = false;
  int32_t top = 0;
  fields->Bool("logprobs", &wanted);
  fields->IntInto("top_logprobs", 0, limits.max_logprobs, &top);
  if (top > 0 && !wanted) {
    fields->Refuse("top_logprobs", "top_logprobs needs \"logprobs\": true");
  }
  out->sampling.set_num_logprobs(wanted ? top : -1);
  fields->IntInto("prompt_logprobs", 0, limits.max_logprobs, &out->prompt_logprobs);
  RefusePromptLogprobsInStream(fields, *out);
}

}  // namespace

void ReadConversation(Fields* fields, const ApiLimits& limits, ChatRequest* out) {
  ReadMessages(fields, limits, out);
  if (fields->Object("chat_template_kwargs") != nullptr) {
    out->template_variables = *fields->Find("chat_template_kwargs");
  }
  fields->Bool("add_generation_prompt", &out->add_generation_prompt);
  fields->Bool("continue_final_message", &out->continue_final_message);
  if (out->continue_final_message && out->add_generation_prompt &&
      fields->Find("add_generation_prompt") != nullptr) {
    fields->Refuse("continue_final_message",
                   "continue_final_message and add_generation_prompt exclude each other");
  }
  if (out->continue_final_message) out->add_generation_prompt = false;
}

ApiResult<ChatRequest> ParseChat(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  return ParseChat(value.AsMap(), limits);
}

ApiResult<ChatRequest> ParseChat(const Value::Map& body, const ApiLimits& limits) {
  Fields fields(&body);
  ChatRequest out;
  ReadConversation(&fields, limits, &out);
  ReadGenerationOptions(&fields, limits, &out);
  ReadLogprobs(&fields, limits, &out);
  fields.Bool("add_special_tokens", &out.add_special_tokens);
  ReadTools(&fields, &out);
  ReadThinking(&fields, &out);
  RefuseUnsupported(&fields, Endpoint::kChat);
  if (!fields.ok()) return fields.error();
  out.ignored = fields.Unread();
  return out;
}

}  // namespace aisp
