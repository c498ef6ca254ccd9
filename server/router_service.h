// RouterService: the router's process side: I/O loop, HTTP server, gRPC server for workers,
// tokenizer pool, frontend and router, wired together. The loop's thread owns router and frontend.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/metrics.h"
#include "config/config.h"
#include "net/local_links.h"
#include "server/served_model.h"

namespace aisp {

// Listening sockets that others made and hold too (net/listen_socket.h); -1: bind the configured
// address.
struct RouterSockets {
  int http = -1;
  int workers = -1;
  int grpc = -1;  // clients
  int admin = -1;
};

class RouterService {
 public:
  // `local`: workers of this process attach there under kLocalRouterAddress; null: workers attach
  // by gRPC only.
  static Result<std::unique_ptr<RouterService>> Create(const Config& config,
                                                       const ServedModel* model, const Clock* clock,
                                                       Metrics* metrics, LocalHub* local,
                                                       const RouterSockets& sockets = {});
  static constexpr const char* kLocalRouterAddress = "local:router";
  virtual ~RouterService() = default;

  // Binds and serves. ALREADY_EXISTS when a port is taken. On sockets that were handed over clients
  // are served from when a decode worker is ready (or kAcceptWithoutWorkers is over): till then a
  // predecessor may serve, or clients wait in its queue.
  virtual Status Start() = 0;
  // "127.0.0.1:8080"; valid after Start.
  virtual std::string http_address() const = 0;
  // Where gRPC clients come to; "" when there is no gRPC for them.
  virtual std::string grpc_address() const = 0;
  // The admin port; "" when there is none.
  virtual std::string admin_address() const = 0;
  // Where workers attach; "" when only local ones do.
  virtual std::string workers_address() const = 0;
  // Stops listening, tells the workers, lets what was accepted finish for at most `limit` or until
  // `haste` says so, then stops. Idempotent.
  virtual void DrainAndStop(Duration limit, const std::function<bool()>& haste) = 0;
};

}  // namespace aisp
