// HubHttp: requests to the hub and to where it sends us, over libcurl; the one place that knows it.
// The token goes to the endpoint's own origin (scheme, host, port) and nowhere else, whoever
// redirects. https never turns into http. One thread; connections are kept between requests.
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
  std::map<std::string, std::string> headers;  // names in lower case; the last of equal names
  std::string error_body;                      // of a status that is no success: its beginning
  std::string url;                             // that answered

  std::string Header(const std::string& name) const;
};

struct HubQuery {
  std::string url;
  // HEAD, which stops at a redirect that names the content already (x-linked-etag).
  bool head = false;
  // With `ranged`: bytes from `from` on, up to before `to` unless that is 0.
  bool ranged = false;
  uint64_t from = 0;
  uint64_t to = 0;
  // Of an answer with status 200 or 206, before its content. An error ends the transfer.
  std::function<Status(const HubReply&)> on_head;
  std::function<Status(std::string_view)> on_bytes;
};

class HubHttp {
 public:
  // `cancelled` is asked every second at least, from within Perform. INVALID_ARGUMENT: the endpoint
  // is no http or https URL.
  static Result<std::unique_ptr<HubHttp>> Create(const HubOptions& options,
                                                 std::function<bool()> cancelled);
  ~HubHttp();
  HubHttp(const HubHttp&) = delete;
  HubHttp& operator=(const HubHttp&) = delete;

  // One answer, of whatever status. CANCELLED; UNAVAILABLE: no connection, or it broke;
  // DEADLINE_EXCEEDED: nothing came for timeout_s; else what a callback said.
  Result<HubReply> Perform(const HubQuery& query);

 private:
  struct Impl;
  explicit HubHttp(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
