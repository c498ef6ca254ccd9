// /v1/messages: a request in Anthropic's shape as a chat, and its answer as a message. Any thread.
#pragma once

#include <string>

#include "frontend/prepared_request.h"

namespace aisp {

// `request_id`: for errors in mid-stream.
ApiResult<PreparedRequest> PrepareMessage(const TextModel& model, const std::string& body,
                                          const std::string& request_id);

// The body of /v1/messages/count_tokens: how many tokens the prompt of such a request has.
ApiResult<std::string> CountTokens(const TextModel& model, const std::string& body);

}  // namespace aisp
