// Converts bodies of Anthropic's Messages API (/v1/messages, /v1/messages/count_tokens) to chat
// requests. Pure: any thread.
//
// Read: messages (text, thinking, tool_use and tool_result blocks), system, max_tokens, tools,
// tool_choice, stop_sequences, thinking, output_config, metadata.user_id, and all sampling
// parameters of a chat. Fields that would change the answer and are unsupported are refused by
// name. Fields about prompt caching (cache_control) are ignored.
#pragma once

#include <string_view>

#include "api/request.h"

namespace aisp {

enum class MessagesUse : uint8_t {
  kAnswer,
  kCount,  // count tokens only: max_tokens is optional
};

ApiResult<ChatRequest> ParseMessages(std::string_view body, const ApiLimits& limits,
                                     MessagesUse use);
// Translates an error of the chat request to the field names of the Messages API.
ApiError InMessagesWords(ApiError error);

}  // namespace aisp
