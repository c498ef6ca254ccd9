#include "api/error.h"

#include "api/json_text.h"

namespace aisp {
namespace {

std::string Body(std::string_view message, std::string_view type, std::string_view param,
                 std::string_view code) {
  std::string out = "{\"error\":{\"message\":";
  AppendJsonString(message, &out);
  out += ",\"type\":";
  AppendJsonString(type, &out);
  out += ",\"param\":";
  if (param.empty()) out += "null";
  if (!param.empty()) AppendJsonString(param, &out);
  out += ",\"code\":";
  if (code.empty()) out += "null";
  if (!code.empty()) AppendJsonString(code, &out);
  out += "}}";
  return out;
}

}  // namespace

std::string CutMiddle(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  constexpr std::string_view kDots = "...";
  const auto inside = [&text](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  // A UTF-8 character has at most three continuation bytes; a longer run is ill-formed and may be
  // cut.
  constexpr size_t kLongest = 3;
  size_t head = (max_bytes - kDots.size()) / 2;
  size_t tail = text.size() - (max_bytes - kDots.size() - head);
  for (size_t i = 0; i < kLongest && head > 0 && inside(head); ++i) --head;
  for (size_t i = 0; i < kLongest && inside(tail); ++i) ++tail;
  text.replace(head, tail - head, kDots);
  return text;
}

int HttpStatus(Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kOutOfRange:
      return 400;
    case Code::kUnauthenticated:
      return 401;
    case Code::kPermissionDenied:
      return 403;
    case Code::kNotFound:
      return 404;
    case Code::kAlreadyExists:
    case Code::kAborted:
      return 409;
    case Code::kResourceExhausted:
      return 429;
    case Code::kCancelled:
      return 499;
    case Code::kUnimplemented:
      return 501;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadlineExceeded:
      return 504;
    case Code::kUnknown:
    case Code::kInternal:
    case Code::kDataLoss:
      return 500;
  }
  return 500;
}

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 408:
    case 504:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_implemented_error";
    case 503:
      return "service_unavailable_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string_view ErrorCodeName(Code code) {
  switch (code) {
    case Code::kUnauthenticated:
      return "invalid_api_key";
    case Code::kNotFound:
      return "not_found";
    case Code::kResourceExhausted:
      return "rate_limit_exceeded";
    case Code::kCancelled:
      return "cancelled";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kUnavailable:
      return "service_unavailable";
    case Code::kUnimplemented:
      return "not_implemented";
    default:
      return "";
  }
}

std::string ErrorBody(const ApiError& error) {
  return Body(error.message, ErrorType(HttpStatus(error.code)), error.param,
              error.name.empty() ? ErrorCodeName(error.code) : std::string_view(error.name));
}

std::string ErrorBody(int http_status, std::string_view message) {
  return Body(message, ErrorType(http_status), {}, {});
}

}  // namespace aisp
