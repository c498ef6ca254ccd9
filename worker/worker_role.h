// WorkerRole: the interface common to the prefill and decode roles, as a state machine without I/O:
// an engine, links to the routers (registration, telemetry, KV events), draining, readiness. The
// same code runs behind gRPC and, in one thread under simulated time, in tests/sim.
//
// Thread: the engine thread of the worker owns the role; every method and callback runs on it. The
// owner's loop:
//
//   - deliver what arrived (OnLinkUp, OnMessage, OnLinkDown)
//   - role.OnTransport() when a transport woke us
//   - role.OnTimer(now) when now >= role.NextTimer()
//   - if role.CanLaunch(): role.Launch() (depth permitting)
//   - if role.InFlight(): role.Collect() (the simulation lets time pass between the two)
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
class StepObserver;

struct WorkerOptions {
  std::string worker_id;
  uint64_t incarnation = 0;  // new at every start
  std::string host_id;
  std::vector<std::string> router_addresses;
  v1::Fingerprint fingerprint;
  std::string kv_address;  // where decode workers dial; "": does not listen
  // Reported to routers: the tokens of a step, and the most of one prompt in it.
  int32_t max_batch_tokens = 0;
  int32_t max_prefill_chunk = 0;
  int32_t launched_ahead = 0;  // steps launched while one runs
  // Reported to routers for their operators.
  int64_t pid = 0;
  std::string admin_url;
  std::string version;
  std::optional<v1::LastExit> last_exit;  // of the process that this one replaces
  std::vector<v1::Role> roles;            // reported to routers: those that this process supports
  Duration telemetry_interval = std::chrono::milliseconds(50);
  Duration reconnect_min = std::chrono::milliseconds(20);
  Duration reconnect_max = std::chrono::seconds(1);
  Duration drain_timeout = std::chrono::seconds(30);
  // Receives the links for heartbeats; may be null. Outlives the role.
  Pulse* pulse = nullptr;
  // The engine's LoRA adapters; null: those of the fingerprint, which never change. Outlives the
  // role.
  AdapterKeeper* adapters = nullptr;
  // Is told of every step; may be null. Outlives the role.
  StepObserver* steps = nullptr;
  // A worker becomes unready if it has work and no step ends for this long.
  Duration step_stall_limit = std::chrono::seconds(10);
};

class WorkerRole : public LinkHandler<v1::RouterMessage> {
 public:
  ~WorkerRole() override = default;

  // Dials the routers; called once before anything else.
  virtual void Start() = 0;
  // Replaces the routers' addresses (a name resolved to others).
  virtual void SetRouters(const std::vector<std::string>& addresses) = 0;

  virtual bool CanLaunch() const = 0;
  virtual void Launch() = 0;
  virtual bool InFlight() const = 0;
  // Whether Collect would return without waiting. Until then the owner's loop delivers messages, so
  // that a new request joins the next planned step.
  virtual bool StepDone() = 0;
  virtual void Collect() = 0;

  // Polls completions of KvTransport writes and of copies between tiers, and takes notes.
  virtual void OnTransport() = 0;
  // Whether a note (KvTransport::TakeNote), which wakes nobody, or the end of a copy between GPUs
  // may come soon: the owner's loop polls instead of sleeping, and calls OnTransport if HasNotes.
  virtual bool ExpectsSoon() const { return false; }
  virtual bool HasNotes() const { return false; }
  virtual Instant NextTimer() const = 0;
  virtual void OnTimer(Instant now) = 0;

  // No new work: unstarted requests return to the routers, running sequences finish, pushed blocks
  // are acknowledged; then Drained() is true. After options.drain_timeout, or at once after
  // MoveStreams, the routers are asked to move running streams; those that no other worker can take
  // finish here.
  virtual void BeginDrain() = 0;
  virtual void MoveStreams() = 0;
  virtual bool Drained() const = 0;
  // Calls off a drain: routers and peers may send work again.
  virtual void CallOffDrain() = 0;
  // For a drained role in a process that takes another one (worker/role_switch.h): stops
  // registering. Links to routers stay until those close them; peers are still answered, so that
  // outstanding acknowledgements are sent.
  virtual void StandBy() = 0;
  // As Start, and again after StandBy. `role_epoch` counts the process's roles so far.
  virtual void Activate(uint64_t role_epoch) = 0;
  // Flushes and closes the links to the routers; nothing works afterwards. Called before the
  // process ends, so that its last tokens are not lost.
  virtual void CloseLinks() = 0;
  // A router asked this process to end and it is drained; or another process has this worker's
  // name.
  virtual bool StopWanted() const = 0;

  // OK, or why the worker must not get traffic (no step progress, pool empty, device failed, no
  // router).
  virtual Status Ready() const = 0;
  virtual const Engine& engine() const = 0;
};

}  // namespace aisp
