// What HTTP/1.1 looks like on the wire, without any socket: heads of answers, chunks, and the parts
// of a request's target. Pure functions: any thread.
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

// Appends status line, `headers`, Date, framing and an empty line. `close` and `http_1_0` decide on
// the Connection field. Control bytes in the values become spaces: a value that came from a client
// cannot end the head.
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
  std::string host;  // where the target is a URL: the one that counts, whatever Host says
};
// Splits the target of a request, "/v1/models?x=1" or "http://host/v1/models?x=1". With OPTIONS it
// may be "*", the server as a whole, which is the path then. Absent for anything else.
std::optional<HttpTarget> SplitTarget(std::string_view method, std::string_view target);

// Nothing but characters of a host and its port (RFC 3986), which leave out those that end or begin
// a part of a URL elsewhere; also "".
bool IsHostText(std::string_view text);

}  // namespace aisp
