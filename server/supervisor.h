// Supervisor: `aisp up`. Owns the listening sockets, starts the router, prefill and decode workers
// as processes of this same program, waits until all are ready, restarts what dies (after a growing
// back-off), replaces all of them one by one on request, and stops everything it started: router
// first, so that running streams can finish, then the workers.
//
// The sockets outlive the processes: while a router is replaced, or is started again after it died,
// clients and workers wait in their queues and are not refused. The children inherit a pipe whose
// other end the supervisor holds: when the supervisor dies, however, they stop. It uses posix_spawn
// and must run before anything of gRPC is initialised in this process. One thread.
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

// Whether a planner moves the workers between roles; kAuto: where they have more than one GPU.
enum class PlannerChoice : uint8_t { kAuto, kOn, kOff };

class Supervisor {
 public:
  // `announcer` hears of "router-pid" whenever a router starts.
  Supervisor(const Config& config, Announcer* announcer,
             PlannerChoice planner = PlannerChoice::kAuto);
  ~Supervisor();

  // Starts everything and waits until every worker is registered. On an error, or a stop signal,
  // nothing is left running.
  Status Start(StopSignals* signals, Duration timeout);
  // host:port of the router's HTTP server.
  const std::string& http_address() const;
  // Of its gRPC server for clients; "" without one.
  const std::string& grpc_address() const;
  const std::string& admin_address() const;  // "" when there is none
  // How the model can be asked: see invitation.h.
  std::string asked_by() const;
  // Watches and restarts until a stop signal; returns which. On SIGHUP it replaces every process by
  // a new one, router first: the new one is ready before the old one drains. An error: a process
  // died too often without which nothing is served.
  Result<std::string> Watch(StopSignals* signals);
  // Drains and stops all children, killing those that outlast the drain time; a stop signal while
  // waiting kills at once.
  void Stop(StopSignals* signals);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
