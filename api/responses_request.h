// Converts bodies of OpenAI's Responses API (/v1/responses) to chat requests. Pure: any thread.
//
// Read: input (a string, or items: messages, function_call, function_call_output, reasoning),
// instructions, tools (functions), tool_choice, parallel_tool_calls, text.format, reasoning.effort,
// max_output_tokens, previous_response_id, store, include (message.output_text.logprobs),
// top_logprobs, metadata, and all parameters of a chat. Fields that would change the answer and are
// unsupported are refused by name.
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
  Value::List items;  // the conversation: the previous response's, then this input
  std::string echo;   // what the response repeats of its request, as members of a JSON object
};

// The conversation up to and including the response `id`; NOT_FOUND names the id.
using FindConversation = std::function<ApiResult<Value::List>(const std::string& id)>;

ApiResult<ResponsesRequest> ParseResponses(std::string_view body, const ApiLimits& limits,
                                           const FindConversation& find);
// Translates an error of the chat request to the field names of the Responses API.
ApiError InResponsesWords(ApiError error);

}  // namespace aisp
