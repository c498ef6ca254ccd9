// AdminService: a worker process's /health, /ready and /metrics, on a port and thread of its own.
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
  // Binds worker.admin_address:admin_port. `ready` runs on the service's thread; must be
  // thread-safe.
  static Result<std::unique_ptr<AdminService>> Start(const Config& config, const Metrics* metrics,
                                                     std::function<Status()> ready);
  virtual ~AdminService() = default;
  virtual std::string address() const = 0;
  virtual void Stop() = 0;  // idempotent
};

// http://host:port at which others reach an AdminService bound to `address`. A wildcard address
// becomes the host that the worker advertises, else this machine's name.
std::string AdvertisedAdminUrl(const Config& config, const std::string& address);

}  // namespace aisp
