// The wire format of HTTP/1.1 without sockets: heads of answers, chunks, and the parts of a
// request's target. Pure functions: any thread.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "net/http_server.h"

namespace aisp {

// "Not Found" for 404.
std::string_view HttpReason(int status);

enum class BodyFraming { kLength, kChunked, kUntilClose };

// Appends status line, `headers`, Date, framing and an empty line. `close` and `http_1_0` select
// the Connection field. Control bytes in values become spaces, so that a client's value cannot end
// the head.
struct HttpHead {
  int status = 200;
  const HttpHeaders* headers = nullptr;
  std::string_view request_id;  // "": none
  BodyFraming framing = BodyFraming::kLength;
  size_t content_length = 0;
  bool close = false;
  bool http_1_0 = false;
  std::time_t now_s = 0;
};
void AppendHead(const HttpHead& head, std::string* out);

// Appends `data` as one chunk; nothing for empty data, which would end the body.
void AppendChunk(std::string_view data, std::string* out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// 1xx, 204 and 304 have no body and no length.
bool StatusHasBody(int status);

struct HttpTarget {
  std::string path, query;
  std::string host;  // if the target is a URL: overrides Host
};
// Splits a request's target, "/v1/models?x=1" or "http://host/v1/models?x=1". With OPTIONS it may
// be "*", the whole server, which then is the path. Empty for anything else.
std::optional<HttpTarget> SplitTarget(std::string_view method, std::string_view target);

// Whether all characters may be in a host and port (RFC 3986). Excludes those that delimit parts of
// a URL. True for "".
bool IsHostText(std::string_view text);

}  // namespace aisp
