// Supervisor: runs router, prefill and decode workers as separate processes (`aisp up`). Starts the router first, then the
// workers beside each other, tells when all are ready, restarts a worker that dies (bounded backoff), and stops everything
// it started: router first, so that running streams can finish, then the workers.
//
// The children inherit a pipe whose other end the supervisor holds: when the supervisor dies, however, they stop. It uses
// posix_spawn and must run before anything of gRPC is initialised in this process.
// One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "config/config.h"

namespace aisp {

class StopSignals;

class Supervisor {
 public:
  explicit Supervisor(const Config& config);
  ~Supervisor();

  // Starts everything and waits until every worker is registered. On an error, or a stop signal, nothing is left running.
  Status Start(StopSignals* signals, Duration timeout);
  // host:port of the router's HTTP server.
  const std::string& http_address() const;
  // Watches and restarts until a stop signal; returns which. An error: the router died, or a worker died too often.
  Result<std::string> Watch(StopSignals* signals);
  // Drains and stops all children, killing those that outlast the drain time; a stop signal while waiting kills at once.
  void Stop(StopSignals* signals);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
