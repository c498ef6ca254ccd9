// ResponsesEncoder: answers of OpenAI's Responses API (/v1/responses): a response object with a
// list of items, and its events. Pure; one thread.
//
// A stream is response.created, response.in_progress; per item output_item.added, its parts and
// deltas, output_item.done; then response.completed or response.incomplete. After a failure:
// response.failed. Every event has a line `event:` and its sequence number.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_encoder.h"
#include "text/value.h"

namespace aisp {

struct ResponsesHead {
  std::string id;  // "resp_..."
  std::string model;
  int64_t created_s = 0;
  // Members of the request that the object repeats (ResponsesRequest::echo): `"store":true,...`.
  std::string echo;
  // Called for a response that completed or reached its length limit: its JSON, and its output as
  // input items for a later request. May be empty.
  std::function<void(const std::string& json, Value::List output)> keep = {};
};

class ResponsesEncoder final : public AnswerEncoder {
 public:
  explicit ResponsesEncoder(ResponsesHead head);

  std::string Whole(std::span<const Choice> choices, const Usage& usage) override;
  void Open(uint32_t choice, const Usage& so_far, std::string* out) override;
  void Text(uint32_t choice, uint64_t position, std::string_view text,
            std::span<const ChoiceLogprob> logprobs, std::span<const TokenId> token_ids,
            std::string* out) override;
  void Reasoning(uint32_t choice, uint64_t position, std::string_view text,
                 std::string* out) override;
  void Call(uint32_t choice, uint64_t position, uint32_t call, std::string_view id,
            std::string_view name, std::string* out) override;
  void CallArguments(uint32_t choice, uint64_t position, uint32_t call, std::string_view text,
                     std::string* out) override;
  void Finish(uint32_t choice, uint64_t position, const ChoiceEnd& end, std::string* out) override;
  void End(const Usage& usage, std::string* out) override;
  void Fail(const ApiError& error, std::string* out) override;

 private:
  struct Item {
    enum class Kind : uint8_t { kMessage, kReasoning, kCall };
    Kind kind = Kind::kMessage;
    std::string id;
    std::string text;  // of a call: its arguments
    std::string call_id, name;
    std::string logprobs;  // JSON without the brackets
    std::string_view status = "in_progress";
  };

  // Opens an item of this kind unless the last one is of this kind.
  Item& Current(Item::Kind kind, std::string* out);
  Item& Add(Item item, std::string* out);
  void CloseItem(std::string_view status, std::string* out);
  // A delta of the open message, with the logprobs that were waiting for text.
  void TextDelta(std::string_view text, std::string* out);
  // Opens the event `type`; what the caller appends begins with a comma.
  void Begin(std::string_view type, std::string* out);
  static void EndEvent(std::string* out) { out->append("}\n\n"); }
  // The position of the open item, as members of an event.
  void Place(bool part, std::string* out) const;
  static void AppendPart(const Item& item, std::string* out);
  static void AppendItem(const Item& item, std::string* out);
  static Value AsInput(const Item& item);
  void Lifecycle(std::string_view type, const Usage* usage, std::string* out);
  // The response object in its current state.
  std::string Object(const Usage* usage) const;

  const ResponsesHead head_;
  std::vector<Item> items_;
  std::string waiting_;  // logprobs of tokens whose text is not sent yet: JSON without the brackets
  std::string_view status_ = "in_progress";
  ApiError error_;
  uint64_t next_event_ = 0;
};

}  // namespace aisp
