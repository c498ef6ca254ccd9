// AdminApi: what a router's admin port (router.admin_port) has beside everything that clients have:
//
//   GET  /admin/overview                      workers, load, latency and throughput of the last
//                                             two minutes, for the page and `aisp top`
//   GET  /admin/workers                       every registered worker: id, role, state, load
//   GET  /admin/workers/ID?wait_ms=N          one of them; with wait_ms (30 s at most) answers
//                                             when it is drained or gone, or after that time
//   POST /admin/workers/ID/drain?move=1&stop=1   asks it to drain; answers what GET says
//   POST /admin/workers/ID/role               {"role": "prefill|decode|parked"}, with "expected",
//                                             "expected_epoch", "move_after_ms", "deadline_ms"
//                                             where wanted: it takes another role without a
//                                             restart; 202: it has begun, 409: it is not as
//                                             expected
//   POST /v1/load_lora_adapter, /v1/unload_lora_adapter    see frontend/lora_admin.h
//   GET  /admin/trace                         the last requests
//   GET  /admin/trace/ID                      the life of one, by request id or trace id
//
// Who may call, router.admin: "loopback" (default): programs on this machine; the port listens on a
// loopback address or the router does not start. What a page of another site made (Origin; a
// browser that was told another name for this host) is refused: its sender is not whoever runs the
// browser. "key": anybody with `Authorization: Bearer KEY`. "off": nobody, there is no port.
// The I/O thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "config/config.h"
#include "frontend/live_stats.h"
#include "net/http_server.h"
#include "net/io_loop.h"
#include "router/router.h"
#include "tracing/trace_ring.h"

namespace aisp {

// What it shows; outlives it.
struct AdminSources {
  Router* router = nullptr;
  IoLoop* loop = nullptr;
  const Clock* clock = nullptr;
  const LiveStats* stats = nullptr;
  const TraceRing* traces = nullptr;
  std::string model;
  bool runtime_lora = false;  // adapters may be loaded and unloaded
};

class AdminApi {
 public:
  // Reads router.admin_key_file. INVALID_ARGUMENT: no key in it, or an address that others reach
  // without one.
  static Result<std::unique_ptr<AdminApi>> Create(const Config& config,
                                                  const AdminSources& sources);
  // Whether a request is to be read with its body: the few kinds that have any, of who may call.
  bool WantsBody(const HttpRequest& head) const;
  // False when the path is not one of these.
  bool Handle(const std::shared_ptr<HttpExchange>& exchange);

 private:
  AdminApi(std::string mode, std::string key, AdminSources sources)
      : mode_(std::move(mode)), key_(std::move(key)), from_(std::move(sources)) {}

  Status Allowed(const HttpRequest& request) const;
  // What follows /admin/workers.
  void Workers(const std::shared_ptr<HttpExchange>& exchange, std::string_view path);
  // Answers now, or looks again in a moment until `deadline`.
  void Describe(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                Instant deadline);
  void Drain(HttpExchange& exchange, const std::string& id);
  void SetRole(const std::shared_ptr<HttpExchange>& exchange, const std::string& id);
  // What follows /admin/trace.
  void Trace(HttpExchange& exchange, std::string_view path) const;

  const std::string mode_;
  const std::string key_;
  const AdminSources from_;
  std::map<uint64_t, std::shared_ptr<IoLoop::Timer>> waits_;  // bounded by the HTTP connections
  uint64_t last_wait_ = 0;
};

}  // namespace aisp
