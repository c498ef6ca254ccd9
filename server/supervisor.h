// Supervisor: `aisp up`. Owns the listening sockets, starts router, prefill and decode workers as
// processes of this program, waits until all are ready, restarts those that die (with back-off),
// replaces all one by one on request, and stops them: the router first, so that running streams can
// finish, then the workers.
//
// The sockets outlive the processes: while a router is replaced or restarted, clients and workers
// wait in the queues instead of being refused. Children inherit a pipe held by the supervisor and
// stop when it closes. Uses posix_spawn, and must run before gRPC is initialised in this process.
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "config/config.h"

namespace aisp {

class Announcer;
class StopSignals;

// Whether a planner moves workers between roles; kAuto: if they have more than one GPU.
enum class PlannerChoice : uint8_t { kAuto, kOn, kOff };

class Supervisor {
 public:
  // `announcer` gets "router-pid" whenever a router starts.
  Supervisor(const Config& config, Announcer* announcer,
             PlannerChoice planner = PlannerChoice::kAuto);
  ~Supervisor();

  // Starts everything and waits until all workers are registered. On an error or a stop signal all
  // processes are stopped.
  Status Start(StopSignals* signals, Duration timeout);
  // host:port of the router's HTTP server.
  const std::string& http_address() const;
  // host:port of its gRPC server for clients; "" if there is none.
  const std::string& grpc_address() const;
  const std::string& admin_address() const;  // "" when there is none
  // How the model can be prompted: see invitation.h.
  std::string asked_by() const;
  // Watches and restarts until a stop signal, which it returns. SIGHUP replaces every process,
  // router first; each new one is ready before the old one drains. An error: a process
  // without which nothing is served died too often.
  Result<std::string> Watch(StopSignals* signals);
  // Drains and stops all children and kills those that exceed the drain time; another stop signal
  // kills at once.
  void Stop(StopSignals* signals);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
