// RouterService: the process side of a router: I/O loop, HTTP server, gRPC servers for clients and
// workers, tokenizer pool, frontend and router. The loop's thread owns router and frontend.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/metrics.h"
#include "config/config.h"
#include "net/local_links.h"
#include "server/served_model.h"

namespace aisp {

// Inherited listening sockets that other processes hold too (net/listen_socket.h); -1: bind the
// configured address.
struct RouterSockets {
  int http = -1;
  int workers = -1;
  int grpc = -1;  // for clients
  int admin = -1;
};

class RouterService {
 public:
  // `local`: in-process workers attach there as kLocalRouterAddress; null: by gRPC only.
  static Result<std::unique_ptr<RouterService>> Create(const Config& config,
                                                       const ServedModel* model, const Clock* clock,
                                                       Metrics* metrics, LocalHub* local,
                                                       const RouterSockets& sockets = {});
  static constexpr const char* kLocalRouterAddress = "local:router";
  virtual ~RouterService() = default;

  // Binds and serves. ALREADY_EXISTS when a port is in use. On inherited sockets clients are
  // accepted once a decode worker is ready (or after kAcceptWithoutWorkers); until then a
  // predecessor serves them or they wait in the queue.
  virtual Status Start() = 0;
  // "127.0.0.1:8080"; valid after Start.
  virtual std::string http_address() const = 0;
  // Address for gRPC clients; "" if not served.
  virtual std::string grpc_address() const = 0;
  // Address of the admin port; "" if there is none.
  virtual std::string admin_address() const = 0;
  // Address at which workers attach; "" if all are local.
  virtual std::string workers_address() const = 0;
  // Stops listening, tells the workers, waits for accepted requests for at most `limit` or until
  // `haste` returns true, then stops. Idempotent.
  virtual void DrainAndStop(Duration limit, const std::function<bool()>& haste) = 0;
};

}  // namespace aisp
