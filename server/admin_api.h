// AdminApi: what a router's admin port (router.admin_port) serves besides the client API:
//
//   GET  /admin/overview                      workers, load, latency and throughput of the last
//                                             two minutes, for the page and `aisp top`
//   GET  /admin/workers                       every registered worker: id, role, state, load
//   GET  /admin/workers/ID?wait_ms=N          one of them; with wait_ms (at most 30 s) answers
//                                             when it is drained or gone, or after that time
//   POST /admin/workers/ID/drain?move=1&stop=1   starts a drain; answers like GET
//   POST /admin/workers/ID/role               {"role": "prefill|decode|parked"}, optionally with
//                                             "expected", "expected_epoch", "move_after_ms",
//                                             "deadline_ms": changes the role without a restart;
//                                             202: started, 409: role or epoch differ
//   POST /v1/load_lora_adapter, /v1/unload_lora_adapter    see frontend/lora_admin.h
//   GET  /admin/trace                         the last requests
//   GET  /admin/trace/ID                      one request's spans, by request id or trace id
//
// router.admin says who may call. "loopback" (default): programs on this machine; the port must
// listen on a loopback address, or the router does not start. Requests from web pages (Origin, or a
// Host that is not this machine) are refused, since they do not come from the browser's user.
// "key": anybody with `Authorization: Bearer KEY`. "off": no port. The I/O thread.
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

// The data it shows; outlives it.
struct AdminSources {
  Router* router = nullptr;
  IoLoop* loop = nullptr;
  const Clock* clock = nullptr;
  const LiveStats* stats = nullptr;
  const TraceRing* traces = nullptr;
  std::string model;
  bool runtime_lora = false;  // adapters may be loaded and unloaded at runtime
};

class AdminApi {
 public:
  // Reads router.admin_key_file. INVALID_ARGUMENT: the file has no key, or the port would be
  // reachable by others without one.
  static Result<std::unique_ptr<AdminApi>> Create(const Config& config,
                                                  const AdminSources& sources);
  // Whether the body should be read: only for authorized calls of the few kinds that have one.
  bool WantsBody(const HttpRequest& head) const;
  // False when the path is not one of these.
  bool Handle(const std::shared_ptr<HttpExchange>& exchange);

 private:
  AdminApi(std::string mode, std::string key, AdminSources sources)
      : mode_(std::move(mode)), key_(std::move(key)), from_(std::move(sources)) {}

  Status Allowed(const HttpRequest& request) const;
  // Handles /admin/workers; `path` is the rest.
  void Workers(const std::shared_ptr<HttpExchange>& exchange, std::string_view path);
  // Answers now, or checks again shortly, until `deadline`.
  void Describe(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                Instant deadline);
  void Drain(HttpExchange& exchange, const std::string& id);
  void SetRole(const std::shared_ptr<HttpExchange>& exchange, const std::string& id);
  // Handles /admin/trace; `path` is the rest.
  void Trace(HttpExchange& exchange, std::string_view path) const;

  const std::string mode_;
  const std::string key_;
  const AdminSources from_;
  std::map<uint64_t, std::shared_ptr<IoLoop::Timer>> waits_;  // at most one per HTTP connection
  uint64_t last_wait_ = 0;
};

}  // namespace aisp
