// SimWorker: one worker process of the simulated cluster: the real engine, block manager and role
// over the provenance executor, with production's loop (worker/worker_role.h). Lives from a start
// to a kill; a restart is another SimWorker with a newer incarnation and an empty pool.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode/decode_role.h"
#include "engine/engine.h"
#include "prefill/prefill_role.h"
#include "tests/sim/coverage.h"
#include "tests/sim/settings.h"
#include "tests/sim/sim_tiers.h"
#include "tests/sim/timed_executor.h"
#include "tests/support/provenance_executor.h"
#include "tests/support/sim_fabric.h"
#include "tests/support/sim_links.h"
#include "tests/support/sim_world.h"
#include "worker/parked_role.h"
#include "worker/peer_death.h"
#include "worker/role_switch.h"

namespace aisp {

using RouterLinksNet = SimLinks<v1::WorkerMessage, v1::RouterMessage>;
using KvLinksNet = SimLinks<v1::DecodeToPrefill, v1::PrefillToDecode>;

class SimWorker;

// Shared by the workers of one cluster.
struct SimShared {
  SimWorld* world = nullptr;
  const SimSettings* settings = nullptr;
  SimCoverage* coverage = nullptr;
  RouterLinksNet* router_net = nullptr;
  KvLinksNet* kv_net = nullptr;
  SimFabric* fabric = nullptr;
  SimFabric* fallback = nullptr;  // an additional, slower transport; null: none
  PeerDeath* death = nullptr;
  std::vector<std::string> router_addresses;
  const bool* faults_over = nullptr;  // from then on there are no faults
  // A process wants to end (WorkerRole::StopWanted); once per process.
  std::function<void(SimWorker*)> on_stop;
  // A request ended this process; once per process.
  std::function<void(SimWorker*)> on_crash;
  v1::Fingerprint fingerprint;
  ProvenanceOptions model;
};

// Of one process.
struct SimIdentity {
  std::string name;
  bool prefill = false;
  uint64_t incarnation = 0;
  // How the previous process ended, if its supervisor knows.
  std::optional<v1::LastExit> last_exit = std::nullopt;
  std::string kv_address = "";               // "": same as the name
  std::shared_ptr<FakeDisk> disk = nullptr;  // outlives the process; null: no disk tier
};

class SimWorker {
 public:
  SimWorker(const SimShared& shared, const SimIdentity& identity);
  ~SimWorker();

  void Start();
  // SIGKILL: links break; the pool and writes in progress are lost.
  void Kill(double notice_ms);
  // `suspended`: together with its machine, whose clock stops.
  void Pause(bool suspended = false);
  void Resume();
  void BeginDrain();
  // The device fails at its next step.
  void FailDevice();

  // Its current role.
  bool prefill() const { return switch_->current() == v1::ROLE_PREFILL; }
  RoleSwitch& roles() { return *switch_; }
  const RoleSwitch& roles() const { return *switch_; }
  const std::string& name() const { return name_; }
  uint64_t incarnation() const { return incarnation_; }
  SimProcess& process() { return *process_; }
  WorkerRole& role() { return *switch_; }
  const WorkerRole& role() const { return *switch_; }
  const Engine& engine() const { return *engine_; }
  // A request's KV is in flight into or out of this process.
  bool InTransfer() const;
  // Fails the run if, at rest, a block is not in its proper state.
  void CheckQuiet();

 private:
  void Pump();
  bool PumpOnce();
  // A request ends this process in the middle of a launch.
  void Crash();
  // As an executor that computes inside Launch.
  void BlockUntilStepDone();
  void ScheduleBeat();
  void Beat();
  void ScheduleWake();
  void Observe();
  void CheckLaidDown(v1::Role now);
  void CheckNotStranded();
  void BuildExecutor(const SimIdentity& identity);
  void BuildTransports();
  void BuildRoles(const SimIdentity& identity, const WorkerOptions& options);
  EngineOptions MakeEngineOptions(const SimIdentity& identity);
  std::vector<KvTransport*> Transports() const;
  void CountTiers();

  const SimShared shared_;
  const std::string name_;
  const uint64_t incarnation_;
  std::shared_ptr<SimProcess> process_;
  SimClock clock_;
  Pulse pulse_;
  std::vector<std::byte> pool_;
  ProvenanceOptions model_options_;
  std::unique_ptr<ProvenanceExecutor> model_;
  std::unique_ptr<TimedExecutor> executor_;
  std::unique_ptr<SimTiers> tiers_;
  std::unique_ptr<KvTransport> transport_;
  std::unique_ptr<KvTransport> fallback_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RankedConnector> connector_;
  std::unique_ptr<RouterLinksNet::Dialer> router_dialer_;
  std::unique_ptr<KvLinksNet::Dialer> kv_dialer_;
  std::unique_ptr<KvLinksNet::Listener> kv_listener_;
  std::unique_ptr<PrefillRole> prefill_;
  std::unique_ptr<DecodeRole> decode_;
  std::unique_ptr<ParkedRole> parked_;
  std::unique_ptr<RoleSwitch> switch_;
  Instant wake_at_ = kNever;
  uint64_t preemptions_seen_ = 0;
  uint64_t drafted_rows_seen_ = 0;
  uint64_t called_off_seen_ = 0;
  uint64_t from_host_seen_ = 0;
  uint64_t promoted_seen_ = 0;
  uint64_t from_disk_seen_ = 0;
  bool stop_told_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aisp
