// WorkerRole: what the prefill and the decode role have in common, as a state machine without I/O:
// an engine, links to the routers (registration, telemetry, KV events), draining, readiness. The
// same code runs behind gRPC and, in one thread under simulated time, in tests/sim.
//
// Thread: the engine thread of the worker owns the role; every method and every callback runs on
// it. The owner's loop:
//
//   deliver what arrived (OnLinkUp/OnMessage/OnLinkDown)      role.OnTransport() when a transport
//   woke us role.OnTimer(now) when now >= role.NextTimer() if role.CanLaunch(): role.Launch()
//   (depth permitting) if role.InFlight():  role.Collect()                       (the simulation
//   lets time pass between the two)
//
// Nothing is retried without a bound and nothing waits without a deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "engine/engine.h"
#include "proto/link.h"
#include "worker/pulse.h"

namespace aisp {

class AdapterKeeper;
class StepLog;

struct WorkerOptions {
  std::string worker_id;
  uint64_t incarnation = 0;  // new for every start
  std::string host_id;
  std::vector<std::string> router_addresses;
  v1::Fingerprint fingerprint;
  std::string kv_address;  // where decode workers dial; "": it listens for none
  // Told to routers: what one step takes, and how much of it one prompt.
  int32_t max_batch_tokens = 0;
  int32_t max_prefill_chunk = 0;
  int32_t launched_ahead = 0;  // steps, while one runs
  // Told to routers for their operators.
  int64_t pid = 0;
  std::string admin_url;
  std::string version;
  std::optional<v1::LastExit> last_exit;  // of the process that this one replaces
  std::vector<v1::Role> roles;            // told to routers: those that this process can take
  Duration telemetry_interval = std::chrono::milliseconds(50);
  Duration reconnect_min = std::chrono::milliseconds(20);
  Duration reconnect_max = std::chrono::seconds(1);
  Duration drain_timeout = std::chrono::seconds(30);
  // Told to whom heartbeats go; may be null. Outlives the role.
  Pulse* pulse = nullptr;
  // Which LoRA adapters the engine has; null: those of the fingerprint, for good. Outlives the
  // role.
  AdapterKeeper* adapters = nullptr;
  // Gets every step; may be null. Outlives the role.
  StepLog* step_log = nullptr;
  // A worker turns unready when it has work and no step ended for this long.
  Duration step_stall_limit = std::chrono::seconds(10);
};

class WorkerRole : public LinkHandler<v1::RouterMessage> {
 public:
  ~WorkerRole() override = default;

  // Dials the routers; called once before anything else.
  virtual void Start() = 0;
  // The routers are at these addresses from now on (a name in the name service has others).
  virtual void SetRouters(const std::vector<std::string>& addresses) = 0;

  virtual bool CanLaunch() const = 0;
  virtual void Launch() = 0;
  virtual bool InFlight() const = 0;
  // Whether Collect would return without waiting: until then the owner's loop delivers what
  // arrives, so that a new request is in the next step that is planned.
  virtual bool StepDone() = 0;
  virtual void Collect() = 0;

  // Completions of KvTransport writes, and of copies between tiers, may be polled.
  virtual void OnTransport() = 0;
  virtual Instant NextTimer() const = 0;
  virtual void OnTimer(Instant now) = 0;

  // No new work: what has not started goes back to the routers, running sequences finish, pushed
  // blocks are acknowledged. Drained() turns true then. After options.drain_timeout the routers are
  // asked to place running streams elsewhere, at once after MoveStreams; those that no other worker
  // can take finish here.
  virtual void BeginDrain() = 0;
  virtual void MoveStreams() = 0;
  virtual bool Drained() const = 0;
  // A drain is called off: routers and peers may send work again.
  virtual void CallOffDrain() = 0;
  // Of a drained role in a process that takes another one (worker/role_switch.h): it registers
  // nowhere any more. Its links to routers stay until those end them; peers are answered for good,
  // so that what is owed to them is paid.
  virtual void StandBy() = 0;
  // As Start, and again after StandBy. `role_epoch` counts the roles that the process has had.
  virtual void Activate(uint64_t role_epoch) = 0;
  // Closes the links to the routers after what was sent on them; nothing works after it. Before the
  // process ends, so that the last tokens are not lost with it.
  virtual void CloseLinks() = 0;
  // A router asked for the end of this process, and it is drained; or another process has this
  // worker's name now.
  virtual bool StopWanted() const = 0;

  // OK, or why the worker must not get traffic (no step progress, pool empty, device failed, no
  // router).
  virtual Status Ready() const = 0;
  virtual const Engine& engine() const = 0;
};

}  // namespace aisp
