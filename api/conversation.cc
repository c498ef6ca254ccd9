#include "api/conversation.h"

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

void Join(std::string_view text, std::string_view between, std::string* out) {
  if (!out->empty()) out->append(between);
  out->append(text);
}

bool IsWordByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Replaces `from` where it is a whole word.
std::string ReplaceWord(const std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t copied = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1)) {
    const size_t end = at + from.size();
    const bool word = (at == 0 || !IsWordByte(text[at - 1])) &&
                      (end == text.size() || !IsWordByte(text[end])) && at >= copied;
    if (!word) continue;
    out.append(text, copied, at - copied).append(to);
    copied = end;
  }
  return out.append(text, copied);
}

}  // namespace

void Conversation::Add(std::string_view role, std::string_view text) {
  Close();
  messages_.push_back(Value(Value::Map{{"role", role}, {"content", text}}));
}

void Conversation::System(std::string_view text) {
  if (!empty()) return Add("system", text);
  has_system_ = true;
  Join(text, "\n\n", &system_);
}

void Conversation::User(std::string_view text) { Add("user", text); }

void Conversation::Assistant(std::string_view text) {
  if (!calls_.empty() || spoke_) Close();
  open_ = spoke_ = true;
  content_ = text;
}

void Conversation::Thought(std::string_view text) {
  if (!calls_.empty() || spoke_) Close();
  open_ = true;
  Join(text, "\n", &thinking_);
}

void Conversation::Call(const std::string& id, const std::string& name, Value arguments) {
  open_ = true;
  names_[id] = name;
  Value::Map function{{"name", name}};
  function.Set("arguments", std::move(arguments));
  calls_.push_back(Value(
      Value::Map{{"id", id}, {"type", "function"}, {"function", Value(std::move(function))}}));
}

void Conversation::Result(const std::string& id, std::string_view text) {
  Close();
  Value::Map message{{"role", "tool"}, {"tool_call_id", id}, {"content", text}};
  if (const auto known = names_.find(id); known != names_.end()) message.Set("name", known->second);
  messages_.push_back(Value(std::move(message)));
}

bool Conversation::EndsWithAssistant() const { return open_ && spoke_ && calls_.empty(); }

void Conversation::Close() {
  if (!open_) return;
  Value::Map message{{"role", "assistant"}};
  message.Set("content", spoke_ || calls_.empty() ? Value(std::move(content_)) : Value());
  if (!thinking_.empty()) message.Set("reasoning_content", Value(std::move(thinking_)));
  if (!calls_.empty()) message.Set("tool_calls", Value(std::move(calls_)));
  messages_.push_back(Value(std::move(message)));
  open_ = spoke_ = false;
  content_.clear();
  thinking_.clear();
  calls_.clear();
}

Value::List Conversation::Take() {
  Close();
  if (has_system_) {
    messages_.insert(messages_.begin(),
                     Value(Value::Map{{"role", "system"}, {"content", system_}}));
  }
  return std::move(messages_);
}

bool ReadTextParts(Fields* fields, std::string_view name, const Value& content,
                   const std::vector<std::string_view>& types, std::string* out) {
  if (content.IsString()) {
    *out = content.AsString();
    return true;
  }
  if (!content.IsList()) {
    fields->Wrong(name, content, "a string or a list of parts");
    return false;
  }
  for (size_t i = 0; i < content.AsList().size(); ++i) {
    const Value& part = content.AsList()[i];
    const std::string at = std::string(name) + "[" + std::to_string(i) + "]";
    const Value* type = part.IsMap() ? part.AsMap().Find("type") : nullptr;
    const Value* text = part.IsMap() ? part.AsMap().Find("text") : nullptr;
    const bool known = type != nullptr && type->IsString() &&
                       std::find(types.begin(), types.end(), type->AsString()) != types.end();
    if (!known) {
      fields->Wrong(
          at, type == nullptr ? part : *type,
          "a part of type \"" + std::string(types.front()) + "\" (this server reads text only)");
      return false;
    }
    if (text == nullptr || !text->IsString()) {
      fields->Wrong(at + ".text", text == nullptr ? Value() : *text, "a string");
      return false;
    }
    if (i > 0) out->push_back('\n');
    out->append(text->AsString());
  }
  return true;
}

void RefuseChatNames(Fields* fields, const std::vector<FieldName>& names) {
  for (const FieldName& name : names) {
    if (fields->Find(name.chat) == nullptr) continue;
    fields->Refuse(name.chat, std::string(name.chat) + " is a field of chats; use " +
                                  std::string(name.client) + " here");
  }
}

void KeepUnread(const Fields& fields, std::vector<std::string>* names) {
  // Sorted instead of hashed: a body may hold a million names, and a client could make their hashes
  // collide.
  std::vector<std::string> unread = fields.Unread();
  std::sort(unread.begin(), unread.end());
  std::erase_if(*names, [&unread](const std::string& name) {
    return !std::binary_search(unread.begin(), unread.end(), name);
  });
}

ApiError InClientsWords(ApiError error, const std::vector<FieldName>& names) {
  for (const FieldName& name : names) {
    if (!error.param.starts_with(name.chat)) continue;
    if (error.param.size() > name.chat.size() && IsWordByte(error.param[name.chat.size()]))
      continue;
    error.param.replace(0, name.chat.size(), name.client);
    error.message = ReplaceWord(error.message, name.chat, name.client);
    break;
  }
  return error;
}

}  // namespace aisp
