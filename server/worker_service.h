// WorkerService: one prefill or decode worker with everything it needs: model and executor, KV pool
// and transports, engine, role, links, and the thread that owns them.
//
// Create and the destructor run on the main thread; between Start and Stop everything inside
// belongs to the worker's loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "config/config.h"
#include "engine/model_executor.h"
#include "net/grpc_links.h"
#include "net/local_links.h"
#include "server/served_model.h"
#include "server/worker_loop.h"

namespace aisp {

class InprocHub;

// Shared by the workers of one process.
struct WorkerHost {
  const Config* config = nullptr;
  const ServedModel* served = nullptr;
  const Clock* clock = nullptr;
  Metrics* metrics = nullptr;
  // Set when router and workers share a process: links stay inside it, and KV moves through
  // `inproc`. Without `inproc` there are no other workers, and a decode worker prefills every
  // prompt itself.
  LocalHub* local = nullptr;
  InprocHub* inproc = nullptr;
  // URL of this process's /health, /ready and /metrics for operators; "": none.
  std::string admin_url;
  // How this process's predecessor ended, if the supervisor knows.
  std::optional<v1::LastExit> last_exit;
  // For tests: wraps or replaces the model's executor.
  std::function<std::unique_ptr<ServingExecutor>(std::unique_ptr<ServingExecutor>)>
      replace_executor;
};

class WorkerService {
 public:
  virtual ~WorkerService() = default;

  // `role`: "prefill" or "decode"; `id`: its name in the cluster.
  static Result<std::unique_ptr<WorkerService>> Create(const WorkerHost& host,
                                                       const std::string& role,
                                                       const std::string& id);

  // Each callback runs once, on the worker's thread. `on_ready`: a router accepted the worker.
  // `on_stop`: a router stopped the process and the worker is drained, or the device failed and the
  // affected requests were answered.
  virtual void Start(std::function<void()> on_ready, std::function<void()> on_stop) = 0;
  // The role's Ready() as of the last step or timer. Any thread.
  virtual Status Ready() const = 0;
  // Why the device cannot compute any more, which only a new process can fix. Any thread.
  virtual Status Failure() const = 0;
  // Finishes running requests or hands them to other workers, for at most `limit` and while `haste`
  // (polled) is false; then stops the thread. Idempotent.
  virtual void DrainAndStop(Duration limit, const std::function<bool()>& haste) = 0;
  virtual const std::string& id() const = 0;
};

}  // namespace aisp
