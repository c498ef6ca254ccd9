// Bodies of Anthropic's Messages API (/v1/messages, /v1/messages/count_tokens), made a chat's.
// Pure: any thread.
//
// Read: messages (text, thinking, tool_use and tool_result blocks), system, max_tokens, tools,
// tool_choice, stop_sequences, thinking, output_config, metadata.user_id, and every parameter of
// sampling that a chat has. What would change the meaning of the answer and cannot be honoured is
// refused by name. What says how a prompt is cached (cache_control) is ignored.
#pragma once

#include <string_view>

#include "api/request.h"

namespace aisp {

enum class MessagesUse : uint8_t {
  kAnswer,
  kCount,  // of tokens: there need be no max_tokens
};

ApiResult<ChatRequest> ParseMessages(std::string_view body, const ApiLimits& limits,
                                     MessagesUse use);
// Says of an error of the chat which field of the Messages API it is about.
ApiError InMessagesWords(ApiError error);

}  // namespace aisp
