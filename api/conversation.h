// Conversation: a chat's messages from the turns of other shapes, which have an assistant's
// thinking, text and calls as separate items: they become one message, as chat templates want it.
// Inside api/ only.
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
  // Those that come before everything else become one message: many templates take but the first.
  void System(std::string_view text);
  void User(std::string_view text);
  void Assistant(std::string_view text);
  void Thought(std::string_view text);
  // `arguments`: an object, or its JSON text.
  void Call(const std::string& id, const std::string& name, Value arguments);
  void Result(const std::string& id, std::string_view text);

  // Whether the last turn is the assistant's own text, which an answer may continue.
  bool EndsWithAssistant() const;
  bool empty() const { return messages_.empty() && !open_; }
  Value::List Take();

 private:
  void Add(std::string_view role, std::string_view text);
  void Close();

  Value::List messages_;
  std::string system_;
  bool has_system_ = false;
  // The assistant's message that is being gathered.
  bool open_ = false;
  bool spoke_ = false;
  std::string content_, thinking_;
  Value::List calls_;
  std::unordered_map<std::string, std::string> names_;  // of the tools, by the ids of calls
};

// The text of a content: a string, or a list of parts whose type is one of `types` and whose text
// stands in "text"; joined by line ends. An error in `fields` names the part.
bool ReadTextParts(Fields* fields, std::string_view name, const Value& content,
                   const std::vector<std::string_view>& types, std::string* out);

// Fields that another shape has under other names: what an error says is in the client's words.
struct FieldName {
  std::string_view chat;    // "response_format"
  std::string_view client;  // "text.format"
};
ApiError InClientsWords(ApiError error, const std::vector<FieldName>& names);
// Refuses the chat's names, so that no field is dropped in silence.
void RefuseChatNames(Fields* fields, const std::vector<FieldName>& names);
// Of the names that a chat did not read, those that the client's own shape has not read either.
void KeepUnread(const Fields& fields, std::vector<std::string>* names);

}  // namespace aisp
