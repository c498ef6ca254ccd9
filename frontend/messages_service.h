// /v1/messages: converts a request in Anthropic's shape to a chat. Any thread.
#pragma once

#include <string>

#include "frontend/prepared_request.h"

namespace aisp {

// `request_id`: for errors in the middle of a stream.
ApiResult<PreparedRequest> PrepareMessage(const TextModel& model, const std::string& body,
                                          const std::string& request_id);

// The answer of /v1/messages/count_tokens: the number of tokens of the request's prompt.
ApiResult<std::string> CountTokens(const TextModel& model, const std::string& body);

}  // namespace aisp
