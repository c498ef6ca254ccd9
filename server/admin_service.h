// AdminService: /health, /ready and /metrics of a worker process, on its own port and thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/metrics.h"
#include "config/config.h"
#include "net/http_server.h"
#include "net/io_loop.h"

namespace aisp {

class AdminService {
 public:
  // Binds worker.admin_address:admin_port. `ready` is called on the service's thread and must be
  // thread-safe.
  static Result<std::unique_ptr<AdminService>> Start(const Config& config, const Metrics* metrics,
                                                     std::function<Status()> ready);
  virtual ~AdminService() = default;
  virtual std::string address() const = 0;
  virtual void Stop() = 0;  // idempotent
};

// http://host:port of an AdminService bound to `address`, as others reach it: a wildcard address is
// told as the host that the worker advertises, else as this machine's name.
std::string AdvertisedAdminUrl(const Config& config, const std::string& address);

}  // namespace aisp
