// Conversation: builds a chat's messages from API shapes that have an assistant's thinking, text
// and calls as separate items. Chat templates need these merged into one message. For api/ only.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/fields.h"
#include "text/value.h"

namespace aisp {

class Conversation {
 public:
  // System texts before all other turns become one message: many templates read only the first.
  void System(std::string_view text);
  void User(std::string_view text);
  void Assistant(std::string_view text);
  void Thought(std::string_view text);
  // `arguments`: an object, or its JSON text.
  void Call(const std::string& id, const std::string& name, Value arguments);
  void Result(const std::string& id, std::string_view text);

  // Whether the last turn is assistant text, which the answer may continue.
  bool EndsWithAssistant() const;
  bool empty() const { return messages_.empty() && !open_; }
  Value::List Take();

 private:
  void Add(std::string_view role, std::string_view text);
  void Close();

  Value::List messages_;
  std::string system_;
  bool has_system_ = false;
  // The assistant's message under construction.
  bool open_ = false;
  bool spoke_ = false;
  std::string content_, thinking_;
  Value::List calls_;
  std::unordered_map<std::string, std::string> names_;  // tool names by call id
};

// Reads the text of a content: a string, or a list of parts whose type is one of `types` and whose
// "text" holds the text, joined by newlines. An error in `fields` names the part.
bool ReadTextParts(Fields* fields, std::string_view name, const Value& content,
                   const std::vector<std::string_view>& types, std::string* out);

// A field with another name in this API shape; errors must use the client's name.
struct FieldName {
  std::string_view chat;    // "response_format"
  std::string_view client;  // "text.format"
};
ApiError InClientsWords(ApiError error, const std::vector<FieldName>& names);
// Refuses the chat API's own names, so that no field is silently ignored.
void RefuseChatNames(Fields* fields, const std::vector<FieldName>& names);
// Removes from `names` (unread by the chat) those that the client's own shape has read.
void KeepUnread(const Fields& fields, std::vector<std::string>* names);

}  // namespace aisp
