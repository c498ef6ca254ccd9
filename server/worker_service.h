// WorkerService: one prefill or decode worker, wired: model and executor, KV pool and transports,
// engine, role, links, and the thread that owns them all.
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

// What workers of one process share.
struct WorkerHost {
  const Config* config = nullptr;
  const ServedModel* served = nullptr;
  const Clock* clock = nullptr;
  Metrics* metrics = nullptr;
  // Set when router and workers are one process: links then stay inside it, and KV moves through
  // `inproc`. Without `inproc` the worker has nobody to move KV to or from: a decode worker
  // prefills every prompt itself.
  LocalHub* local = nullptr;
  InprocHub* inproc = nullptr;
  // Of this process's /health, /ready and /metrics, as operators reach it; "": there is none.
  std::string admin_url;
  // How the process that this one replaces ended, where its supervisor says so.
  std::optional<v1::LastExit> last_exit;
  // For tests: what computes in place of the model's executor, which it is given.
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

  // Run once each, on the worker's thread: `on_ready` when a router has accepted it, `on_stop` when
  // a router asked for the end of the process and the worker is drained, or when its device has
  // failed and its requests are answered.
  virtual void Start(std::function<void()> on_ready, std::function<void()> on_stop) = 0;
  // Any thread: the role's Ready(), as of the last step or timer.
  virtual Status Ready() const = 0;
  // Any thread: why the device cannot compute any more. Only a new process helps.
  virtual Status Failure() const = 0;
  // Finishes what runs or hands it to others, for at most `limit`, while `haste` (polled) stays
  // false; then stops the thread. Idempotent.
  virtual void DrainAndStop(Duration limit, const std::function<bool()>& haste) = 0;
  virtual const std::string& id() const = 0;
};

}  // namespace aisp
