// AdminApi: the operator's part of a router's HTTP surface:
//
//   GET  /admin/workers                       every registered worker: id, role, state, load
//   GET  /admin/workers/ID?wait_ms=N          one of them; with wait_ms (30 s at most) answers when it is drained or gone, or
//                                             after that time
//   POST /admin/workers/ID/drain?move=1&stop=1   asks it to drain; answers what GET says
//
// Who may call, router.admin: "loopback" (default): clients on loopback addresses; a request that a proxy passed on (Forwarded, X-Forwarded-For)
// or that a web page made (Origin) is refused, because its sender is not the one whom the address shows. "key": anybody with
// `Authorization: Bearer KEY`. "off": nobody.
// The I/O thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "config/config.h"
#include "net/http_server.h"
#include "net/io_loop.h"
#include "router/router.h"

namespace aisp {

class AdminApi {
 public:
  // Reads router.admin_key_file.
  static Result<std::unique_ptr<AdminApi>> Create(const Config& config, Router* router,
                                                  IoLoop* loop, const Clock* clock);
  // False when the path is not one of these.
  bool Handle(const std::shared_ptr<HttpExchange>& exchange);

 private:
  AdminApi(std::string mode, std::string key, Router* router, IoLoop* loop, const Clock* clock)
      : mode_(std::move(mode)), key_(std::move(key)), router_(router), loop_(loop), clock_(clock) {}

  Status Allowed(const HttpRequest& request) const;
  void List(HttpExchange& exchange) const;
  // Answers now, or looks again in a moment until `deadline`.
  void Describe(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                Instant deadline);
  void Drain(HttpExchange& exchange, const std::string& id);

  const std::string mode_;
  const std::string key_;
  Router* const router_;
  IoLoop* const loop_;
  const Clock* const clock_;
  std::map<uint64_t, std::shared_ptr<IoLoop::Timer>> waits_;  // bounded by the HTTP connections
  uint64_t last_wait_ = 0;
};

}  // namespace aisp
