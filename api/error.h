// How a failure looks to a client of the OpenAI API: maps a Code to an HTTP status (the only place
// that does) and writes {"error":{"message","type","param","code"}}. Pure functions: any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

#include "common/result.h"

namespace aisp {

// `text`, with "..." in place of its middle if it is longer than `max_bytes` (8 or more). No UTF-8
// character is cut.
std::string CutMiddle(std::string text, size_t max_bytes);

// An Error that also names the request field at fault.
struct ApiError {
  Code code = Code::kUnknown;
  std::string message;
  std::string param;  // "temperature", "messages[2].role"; "" when no field is to blame
  std::string name;   // error code for programs: "model_not_found"; "" uses ErrorCodeName(code)

  // Errors may quote text of any length from the client; longer messages lose their middle.
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
// error.type: "invalid_request_error", "rate_limit_error", "server_error", ...
std::string_view ErrorType(int http_status);
// error.code for a Code, such as "rate_limit_exceeded"; "" means null.
std::string_view ErrorCodeName(Code code);

// The JSON object, without a trailing newline.
std::string ErrorBody(const ApiError& error);
// For failures of HTTP itself (404 of a path, 405, 413, 431).
std::string ErrorBody(int http_status, std::string_view message);

}  // namespace aisp
