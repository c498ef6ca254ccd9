#include "api/messages_request.h"

#include <algorithm>
#include <array>
#include <utility>

#include "api/conversation.h"
#include "api/read_options.h"

namespace aisp {
namespace {

const std::vector<FieldName>& Names() {
  static const std::vector<FieldName> kNames = {
      {"max_completion_tokens", "max_tokens"},
      {"stop", "stop_sequences"},
      {"response_format", "output_config.format"},
      {"reasoning_effort", "output_config.effort"},
      {"thinking_token_budget", "thinking.budget_tokens"},
      {"continue_final_message", "messages"},
  };
  return kNames;
}

std::string Numbered(std::string_view name, size_t i) {
  return std::string(name) + "[" + std::to_string(i) + "]";
}

// A required string member of a block.
std::string Needed(Fields* block, std::string_view name) {
  std::string out;
  if (block->Find(name) == nullptr) {
    block->Wrong(name, Value(), "a string");
  } else {
    block->String(name, kAnyLength, &out);
  }
  return out;
}

// Reads messages one by one into a Conversation.
class MessageReader {
 public:
  explicit MessageReader(Conversation* conversation) : to_(*conversation) {}

  void Read(Fields* fields, const std::string& name, const Value& value) {
    if (!value.IsMap()) return fields->Wrong(name, value, "an object {role, content}");
    Fields message(&value.AsMap(), name + ".");
    const std::string role = Needed(&message, "role");
    const Value* content = message.Find("content");
    if (content == nullptr) {
      message.Wrong("content", Value(), "a string or a list of blocks");
    } else if (role == "system") {
      std::string text;
      if (ReadTextParts(&message, "content", *content, {"text"}, &text)) to_.System(text);
    } else if (role == "user") {
      User(&message, *content);
    } else if (role == "assistant") {
      Assistant(&message, *content);
    } else if (message.ok()) {
      message.Wrong("role", Value(role), "\"user\", \"assistant\" or \"system\"");
    }
    if (!message.ok()) fields->SetError(message.error().value());
  }

 private:
  // Calls each(block, type, fields) for every block of a content.
  template <typename Each>
  static void ForBlocks(Fields* message, const Value& content, Each each) {
    if (!content.IsList())
      return message->Wrong("content", content, "a string or a list of blocks");
    for (size_t i = 0; i < content.AsList().size() && message->ok(); ++i) {
      const Value& value = content.AsList()[i];
      const std::string name = Numbered("content", i);
      if (!value.IsMap()) return message->Wrong(name, value, "a block: an object");
      Fields block(&value.AsMap(), message->prefix() + name + ".");
      const std::string type = Needed(&block, "type");
      if (block.ok()) each(&block, type);
      if (!block.ok()) message->SetError(block.error().value());
    }
  }

  static void RefuseBlock(Fields* block, const std::string& type, std::string_view known) {
    block->Wrong("type", Value(type), std::string(known) + " (this server reads text only)");
  }

  // Tool results become messages of their own; text after them is the user's.
  void User(Fields* message, const Value& content) {
    if (content.IsString()) return to_.User(content.AsString());
    std::string text;
    bool spoke = false;
    ForBlocks(message, content, [&](Fields* block, const std::string& type) {
      if (type == "tool_result") {
        if (std::exchange(spoke, false)) to_.User(std::exchange(text, {}));
        return ToolResult(block);
      }
      if (type != "text") return RefuseBlock(block, type, "\"text\" or \"tool_result\"");
      if (spoke) text.push_back('\n');
      text += Needed(block, "text");
      spoke = true;
    });
    if (spoke && message->ok()) to_.User(text);
  }

  void ToolResult(Fields* block) {
    const std::string id = Needed(block, "tool_use_id");
    bool failed = false;
    block->Bool("is_error", &failed);
    std::string text;
    const Value* content = block->Find("content");
    if (content != nullptr && !ReadTextParts(block, "content", *content, {"text"}, &text)) return;
    // Chat templates have no flag for failed results, so the text says it.
    if (block->ok()) to_.Result(id, failed ? "Error: " + text : text);
  }

  void Assistant(Fields* message, const Value& content) {
    if (content.IsString()) return to_.Assistant(content.AsString());
    std::string text;
    bool spoke = false;
    struct Call {
      std::string id, name;
      Value input;
    };
    std::vector<Call> calls;
    ForBlocks(message, content, [&](Fields* block, const std::string& type) {
      if (type == "thinking") {
        const std::string thought = Needed(block, "thinking");
        if (block->ok()) to_.Thought(thought);
      } else if (type == "tool_use") {
        Call call{Needed(block, "id"), Needed(block, "name"), Value(Value::Map())};
        if (block->Object("input") != nullptr) call.input = *block->Find("input");
        calls.push_back(std::move(call));
      } else if (type == "text") {
        if (spoke) text.push_back('\n');
        text += Needed(block, "text");
        spoke = true;
      } else {
        RefuseBlock(block, type, "\"text\", \"thinking\" or \"tool_use\"");
      }
    });
    if (!message->ok()) return;
    if (spoke || calls.empty()) to_.Assistant(text);
    for (Call& call : calls) to_.Call(call.id, call.name, std::move(call.input));
  }

  Conversation& to_;
};

void ReadTurns(Fields* fields, const ApiLimits& limits, Value::Map* chat) {
  Conversation conversation;
  if (const Value* system = fields->Find("system")) {
    std::string text;
    if (!ReadTextParts(fields, "system", *system, {"text"}, &text)) return;
    conversation.System(text);
  }
  if (fields->Find("messages") == nullptr)
    return fields->Refuse("messages", "messages is missing: a list of {role, content}");
  const Value::List* list = fields->List("messages", static_cast<size_t>(limits.max_messages));
  if (list == nullptr) return;
  if (list->empty()) return fields->Refuse("messages", "messages must not be empty");
  MessageReader reader(&conversation);
  for (size_t i = 0; i < list->size() && fields->ok(); ++i)
    reader.Read(fields, Numbered("messages", i), (*list)[i]);
  // The answer continues the text that the client gave for the assistant.
  if (conversation.EndsWithAssistant()) chat->Set("continue_final_message", Value(true));
  chat->Set("messages", Value(conversation.Take()));
}

bool ReadTool(Fields* fields, const std::string& at, const Value& value, Value::List* out) {
  if (!value.IsMap()) {
    fields->Wrong(at, value, "a tool: an object");
    return false;
  }
  Fields tool(&value.AsMap(), at + ".");
  std::string type = "custom";
  tool.String("type", kMaxNameBytes, &type);
  if (type != "custom")
    tool.Wrong("type", Value(type), "\"custom\": other tools are not supported by this server");
  bool deferred = false;
  tool.Bool("defer_loading", &deferred);
  if (deferred || tool.Find("input_examples") != nullptr) {
    const char* name = deferred ? "defer_loading" : "input_examples";
    tool.Refuse(name, at + "." + name + " is not supported by this server; leave it out");
  }
  Value::Map function{{"name", Value(Needed(&tool, "name"))}};
  if (const Value* description = tool.Find("description"))
    function.Set("description", *description);
  if (tool.Find("input_schema") == nullptr) tool.Wrong("input_schema", Value(), "a JSON Schema");
  if (tool.Object("input_schema") != nullptr)
    function.Set("parameters", *tool.Find("input_schema"));
  if (const Value* strict = tool.Find("strict")) function.Set("strict", *strict);
  if (!tool.ok()) fields->SetError(tool.error().value());
  out->push_back(Value(Value::Map{{"type", "function"}, {"function", Value(std::move(function))}}));
  return tool.ok();
}

void ReadMessagesTools(Fields* fields, Value::Map* chat) {
  if (const Value::List* tools = fields->List("tools", kMaxTools)) {
    Value::List functions;
    for (size_t i = 0; i < tools->size(); ++i) {
      if (!ReadTool(fields, Numbered("tools", i), (*tools)[i], &functions)) return;
    }
    chat->Set("tools", Value(std::move(functions)));
  }
  const Value::Map* choice = fields->Object("tool_choice");
  if (choice == nullptr) return;
  Fields each(choice, "tool_choice.");
  const std::string type = Needed(&each, "type");
  bool alone = false;
  each.Bool("disable_parallel_tool_use", &alone);
  chat->Set("parallel_tool_calls", Value(!alone));
  if (type == "auto" || type == "none") {
    chat->Set("tool_choice", Value(type));
  } else if (type == "any") {
    chat->Set("tool_choice", Value("required"));
  } else if (type == "tool") {
    Value::Map function{{"name", Value(Needed(&each, "name"))}};
    chat->Set("tool_choice",
              Value(Value::Map{{"type", "function"}, {"function", Value(std::move(function))}}));
  } else {
    each.Wrong("type", Value(type), "\"auto\", \"any\", \"tool\" or \"none\"");
  }
  if (!each.ok()) fields->SetError(each.error().value());
}

// enabled, adaptive: the template turns thinking on. disabled: it turns it off, and any thinking is
// not returned. Absent: the template decides.
void ReadMessagesThinking(Fields* fields, Value::Map* chat) {
  const Value::Map* thinking = fields->Object("thinking");
  if (thinking == nullptr) return;
  Fields each(thinking, "thinking.");
  const std::string type = Needed(&each, "type");
  const bool enabled = type == "enabled";
  if (!enabled && type != "adaptive" && type != "disabled")
    each.Wrong("type", Value(type), "\"enabled\", \"adaptive\" or \"disabled\"");
  if (enabled) {
    int64_t budget = 0;
    int64_t most = INT32_MAX;
    fields->Int("max_tokens", 1, INT32_MAX, &most);
    if (each.Find("budget_tokens") == nullptr) each.Wrong("budget_tokens", Value(), "an integer");
    each.Int("budget_tokens", 1, INT32_MAX, &budget);
    if (each.ok() && budget >= most) {
      each.Refuse("budget_tokens", "thinking.budget_tokens must be less than max_tokens, " +
                                       std::to_string(most) + ", but is " + std::to_string(budget));
    }
    chat->Set("thinking_token_budget", Value(budget));
  }
  std::string display = "summarized";
  each.String("display", kMaxNameBytes, &display);
  if (display != "summarized" && display != "omitted")
    each.Wrong("display", Value(display), "\"summarized\" or \"omitted\"");
  if (type == "disabled" || display == "omitted") chat->Set("include_reasoning", Value(false));
  Value::Map variables;
  if (const Value::Map* given = fields->Object("chat_template_kwargs")) variables = *given;
  variables.Set("enable_thinking", Value(type != "disabled"));
  chat->Set("chat_template_kwargs", Value(std::move(variables)));
  if (!each.ok()) fields->SetError(each.error().value());
}

void ReadOutputConfig(Fields* fields, Value::Map* chat) {
  const Value::Map* config = fields->Object("output_config");
  if (config == nullptr) return;
  Fields each(config, "output_config.");
  if (const Value* effort = each.Find("effort")) chat->Set("reasoning_effort", *effort);
  if (const Value::Map* format = each.Object("format")) {
    Fields inner(format, "output_config.format.");
    const std::string type = Needed(&inner, "type");
    if (inner.ok() && type != "json_schema") inner.Wrong("type", Value(type), "\"json_schema\"");
    if (inner.Find("schema") == nullptr) inner.Wrong("schema", Value(), "a JSON Schema");
    if (!inner.ok()) return fields->SetError(inner.error().value());
    chat->Set("response_format",
              Value(Value::Map{{"type", "json_schema"}, {"json_schema", Value(*format)}}));
  }
  if (!each.ok()) fields->SetError(each.error().value());
}

void RefuseMessagesFields(Fields* fields) {
  RefuseChatNames(fields, Names());
  for (const std::string_view name : {"container", "mcp_servers", "context_management", "logprobs",
                                      "top_logprobs", "prompt_logprobs", "return_token_ids"}) {
    const Value* value = fields->Find(name);
    if (value == nullptr || (value->IsBool() && !value->AsBool())) continue;
    fields->Refuse(name, std::string(name) + " is not supported by this server; leave it out");
  }
  std::string word = "standard";
  fields->String("speed", kMaxNameBytes, &word);
  if (word != "standard")
    fields->Refuse("speed", "speed is not supported by this server; leave it out");
  uint32_t n = 1;
  fields->IntInto("n", 1, INT32_MAX, &n);
  if (n != 1) fields->Refuse("n", "a message has one answer; leave n out");
}

Value::Map ChatFields(const Value::Map& body) {
  constexpr std::array kOwn = {
      "messages", "system",        "tools",    "tool_choice",  "stop_sequences",
      "thinking", "output_config", "metadata", "service_tier", "stream_options",
      "n"};
  Value::Map out;
  for (const auto& [key, value] : body) {
    if (std::find(kOwn.begin(), kOwn.end(), std::string_view(key)) == kOwn.end())
      out.Set(key, value);
  }
  return out;
}

}  // namespace

ApiError InMessagesWords(ApiError error) { return InClientsWords(std::move(error), Names()); }

ApiResult<ChatRequest> ParseMessages(std::string_view body, const ApiLimits& limits,
                                     MessagesUse use) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  Fields fields(&value.AsMap());
  Value::Map chat = ChatFields(value.AsMap());
  if (use == MessagesUse::kAnswer && fields.Find("max_tokens") == nullptr)
    fields.Refuse("max_tokens", "max_tokens is missing: how many tokens the answer may have");
  ReadTurns(&fields, limits, &chat);
  ReadMessagesTools(&fields, &chat);
  ReadMessagesThinking(&fields, &chat);
  ReadOutputConfig(&fields, &chat);
  if (const Value* stop = fields.Find("stop_sequences")) chat.Set("stop", *stop);
  if (const Value::Map* metadata = fields.Object("metadata")) {
    Fields each(metadata, "metadata.");
    std::string user;
    each.String("user_id", kMaxNameBytes, &user);
    if (!each.ok()) fields.SetError(each.error().value());
    chat.Set("user", Value(std::move(user)));
  }
  RefuseMessagesFields(&fields);
  if (!fields.ok()) return fields.error();
  auto parsed = ParseChat(chat, limits);
  if (!parsed) return tl::unexpected(InMessagesWords(std::move(parsed).error()));
  KeepUnread(fields, &parsed->ignored);
  return parsed;
}

}  // namespace aisp
