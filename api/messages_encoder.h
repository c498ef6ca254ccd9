// MessagesEncoder: answers in the shape of Anthropic's Messages API (/v1/messages): a message with
// a list of content blocks, and its events. Pure; one thread.
//
// A stream is message_start; per block content_block_start, deltas, content_block_stop; then
// message_delta (stop reason and usage) and message_stop. After a failure: an event `error`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "api/answer_encoder.h"
#include "api/response.h"

namespace aisp {

// {"type":"error","error":{"type","message"},"request_id"}.
std::string MessagesErrorBody(const ApiError& error, std::string_view request_id);
std::string MessagesErrorBody(int http_status, std::string_view message,
                              std::string_view request_id);
// GET /v1/models and GET /v1/models/{id} for clients that send `anthropic-version`.
std::string MessagesModelList(std::span<const ModelInfo> models);
std::string MessagesModel(const ModelInfo& model);
// {"input_tokens":n}.
std::string TokenCountBody(size_t tokens);

class MessagesEncoder final : public AnswerEncoder {
 public:
  // `id`: "msg_..."; `request`: the id of the request, for errors.
  MessagesEncoder(std::string id, std::string model, std::string request);

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
  enum class Block : uint8_t { kNone, kText, kThinking, kCall };

  // Opens a block of this kind with the JSON `start`, unless such a block is open.
  void OpenBlock(Block block, std::string_view start, std::string* out);
  void CloseBlock(std::string* out);
  // A delta of the open block: {"type":`type`,`member`:`text`}.
  void Delta(std::string_view type, std::string_view member, std::string_view text,
             std::string* out) const;
  // {"id":...,"type":"message",... up to "content":[
  std::string Head() const;

  const std::string id_, model_, request_;
  Block block_ = Block::kNone;
  size_t blocks_ = 0;  // number of blocks opened so far
  std::string end_;    // "stop_reason":...,"stop_sequence":...
};

}  // namespace aisp
