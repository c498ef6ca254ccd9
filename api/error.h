// How a failure looks to a client of the OpenAI API: the one place where a Code becomes an HTTP
// status, and the shape
// {"error":{"message","type","param","code"}}. Pure functions: any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

#include "common/result.h"

namespace aisp {

// `text`, or its beginning and its end with "..." between them in at most `max_bytes` (8 or more)
// where it is longer. No UTF-8 character is cut in two.
std::string CutMiddle(std::string text, size_t max_bytes);

// An Error that also names the field of the request which is to blame.
struct ApiError {
  Code code = Code::kUnknown;
  std::string message;
  std::string param;  // "temperature", "messages[2].role"; "" when no field is to blame
  std::string name;   // for programs: "model_not_found"; "" takes ErrorCodeName(code)

  // What clients chose may stand in an error: longer texts are cut in their middle.
  static constexpr size_t kMostMessageBytes = 4096;
  static constexpr size_t kMostParamBytes = 256;

  ApiError() = default;
  ApiError(Code c, std::string m, std::string p = {}, std::string n = {})
      : code(c),
        message(CutMiddle(std::move(m), kMostMessageBytes)),
        param(CutMiddle(std::move(p), kMostParamBytes)),
        name(std::move(n)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): what the layers below report is passed on as it is
  ApiError(Error error) : ApiError(error.code, std::move(error.message)) {}
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

// INVALID_ARGUMENT -> 400, RESOURCE_EXHAUSTED -> 429, UNAVAILABLE -> 503, DEADLINE_EXCEEDED -> 504,
// and so on.
int HttpStatus(Code code);
// "invalid_request_error", "rate_limit_error", "server_error", ...: error.type.
std::string_view ErrorType(int http_status);
// "rate_limit_exceeded", "model_not_found" is not among them: error.code of a Code, "" for null.
std::string_view ErrorCodeName(Code code);

// The JSON object, without a newline at its end.
std::string ErrorBody(const ApiError& error);
// For failures that only HTTP knows (404 of a path, 405, 413, 431).
std::string ErrorBody(int http_status, std::string_view message);

}  // namespace aisp
