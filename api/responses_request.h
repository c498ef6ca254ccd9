// Bodies of OpenAI's Responses API (/v1/responses), made a chat's. Pure: any thread.
//
// Read: input (a string, or items: messages, function_call, function_call_output, reasoning),
// instructions, tools (functions), tool_choice, parallel_tool_calls, text.format, reasoning.effort,
// max_output_tokens, previous_response_id, store, include (message.output_text.logprobs),
// top_logprobs, metadata, and every parameter that a chat has. What would change the meaning of the
// answer and cannot be honoured is refused by name.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "api/request.h"

namespace aisp {

struct ResponsesRequest {
  ChatRequest chat;
  bool store = true;
  std::string previous_response_id;
  Value::List items;  // the conversation: that of the previous response, then this input
  std::string echo;   // what the response repeats of its request, as members of a JSON object
};

// The conversation that the response of this id ended with; NOT_FOUND names the id.
using FindConversation = std::function<ApiResult<Value::List>(const std::string& id)>;

ApiResult<ResponsesRequest> ParseResponses(std::string_view body, const ApiLimits& limits,
                                           const FindConversation& find);
// Says of an error of the chat which field of the Responses API it is about.
ApiError InResponsesWords(ApiError error);

}  // namespace aisp
