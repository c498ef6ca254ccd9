// HubHttp: requests to the hub and its redirects, with libcurl, which only this file uses. The
// token is sent only to the endpoint's own origin (scheme, host, port), and https never redirects
// to http. One thread; connections are reused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "hub/options.h"

namespace aisp {

struct HubReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names; the last of equal names
  std::string error_body;                      // start of the body of an unsuccessful answer
  std::string url;                             // the final URL

  std::string Header(const std::string& name) const;
};

struct HubQuery {
  std::string url;
  // HEAD, which stops at a redirect that already names the content (x-linked-etag).
  bool head = false;
  // With `ranged`: bytes from `from` up to, not including, `to`; 0: to the end.
  bool ranged = false;
  uint64_t from = 0;
  uint64_t to = 0;
  // Called for status 200 or 206 before the content. An error ends the transfer.
  std::function<Status(const HubReply&)> on_head;
  std::function<Status(std::string_view)> on_bytes;
};

class HubHttp {
 public:
  // Perform polls `cancelled` at least every second. INVALID_ARGUMENT: the endpoint is not an
  // http(s) URL.
  static Result<std::unique_ptr<HubHttp>> Create(const HubOptions& options,
                                                 std::function<bool()> cancelled);
  ~HubHttp();
  HubHttp(const HubHttp&) = delete;
  HubHttp& operator=(const HubHttp&) = delete;

  // One answer of any status. CANCELLED; UNAVAILABLE: connection failed or broke;
  // DEADLINE_EXCEEDED: no data for timeout_s; otherwise a callback's error.
  Result<HubReply> Perform(const HubQuery& query);

 private:
  struct Impl;
  explicit HubHttp(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
