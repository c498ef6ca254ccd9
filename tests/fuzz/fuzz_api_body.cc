// Bodies of the APIs. The first byte chooses the endpoint. A body that parses must keep the limits
// that it was parsed under; any other must give an error that is itself valid JSON and names its
// cause.
#include <nlohmann/json.hpp>

#include "api/error.h"
#include "api/messages_request.h"
#include "api/request.h"
#include "api/responses_request.h"
#include "common/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

void CheckError(const ApiError& error) {
  AISP_CHECK(!error.message.empty());
  const int status = HttpStatus(error.code);
  AISP_CHECK(status >= 400 && status < 600);
  const auto json = nlohmann::json::parse(ErrorBody(error), nullptr, /*allow_exceptions=*/false);
  AISP_CHECK(json.is_object() && json.contains("error"));
}

void CheckOptions(const GenerationOptions& options, const ApiLimits& limits) {
  AISP_CHECK(options.n >= 1 && options.n <= static_cast<uint32_t>(limits.max_choices));
  AISP_CHECK(options.stop.size() <= static_cast<size_t>(limits.max_stop_strings));
  AISP_CHECK(options.sampling.temperature() >= 0);
  AISP_CHECK(options.sampling.num_logprobs() <= limits.max_logprobs);
  AISP_CHECK(!options.max_tokens || *options.max_tokens > 0);
  for (const TokenId id : options.stop_token_ids) AISP_CHECK(id >= 0 && id < limits.vocab_size);
}

void CheckChat(const ChatRequest& request, const ApiLimits& limits) {
  CheckOptions(request, limits);
  AISP_CHECK(request.messages.IsList() && !request.messages.AsList().empty());
  // Translated messages are nested deeper than in the body: the body's own depth is what counts.
  AISP_CHECK(request.messages.depth() <= static_cast<uint32_t>(limits.max_json_depth) + 8);
}

// What a response repeats of its request must be JSON, and its items must be valid input again.
void FuzzResponses(std::string_view body, const ApiLimits& limits) {
  const Value::List none;
  const auto request = ParseResponses(
      body, limits, [&none](const std::string&) -> ApiResult<Value::List> { return none; });
  if (!request) return CheckError(request.error());
  CheckChat(request->chat, limits);
  AISP_CHECK(nlohmann::json::accept("{" + request->echo + "}"));
  const auto again = ParseResponses(
      R"({"input": "x", "previous_response_id": "r"})", limits,
      [&request](const std::string&) -> ApiResult<Value::List> { return request->items; });
  // One more item may be one too many.
  AISP_CHECK(again || request->items.size() >= static_cast<size_t>(limits.max_messages));
}

}  // namespace

void FuzzOne(std::string_view input) {
  if (input.empty()) return;
  ApiLimits limits;
  limits.vocab_size = 4096;
  const std::string_view body = input.substr(1);
  if (input[0] == 'R') return FuzzResponses(body, limits);
  if (input[0] == 'M') {
    const auto request = ParseMessages(body, limits, MessagesUse::kAnswer);
    if (!request) return CheckError(request.error());
    return CheckChat(*request, limits);
  }
  switch (input[0] % 4) {
    case 0: {
      const auto request = ParseCompletion(body, limits);
      if (!request) return CheckError(request.error());
      CheckOptions(*request, limits);
      AISP_CHECK(!request->prompts.empty());
      AISP_CHECK(request->prompts.size() * request->n <= static_cast<size_t>(limits.max_choices));
      return;
    }
    case 1: {
      const auto request = ParseChat(body, limits);
      if (!request) return CheckError(request.error());
      CheckOptions(*request, limits);
      AISP_CHECK(request->messages.IsList() && !request->messages.AsList().empty());
      AISP_CHECK(request->messages.depth() <= static_cast<uint32_t>(limits.max_json_depth));
      return;
    }
    case 2: {
      const auto request = ParseTokenize(body, limits);
      if (!request) CheckError(request.error());
      return;
    }
    default: {
      const auto request = ParseDetokenize(body, limits);
      if (!request) return CheckError(request.error());
      for (const TokenId id : request->tokens) AISP_CHECK(id >= 0 && id < limits.vocab_size);
    }
  }
}

}  // namespace aisp
