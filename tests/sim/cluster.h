// SimCluster: routers, prefill and decode workers and their clients in one thread under simulated
// time, with faults decided by a seed. cluster_checks.cc lists the invariants.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics.h"
#include "router/router.h"
#include "tests/sim/client.h"
#include "tests/sim/coverage.h"
#include "tests/sim/frontend.h"
#include "tests/sim/http_client.h"
#include "tests/sim/settings.h"
#include "tests/sim/worker.h"

namespace aisp {

inline constexpr Duration kLongestRouterPause = std::chrono::milliseconds(2500);

class SimCluster {
 public:
  SimCluster(uint64_t seed, bool trace);
  ~SimCluster();

  // Runs the seed to its end. False: see failure().
  bool Run();
  const std::string& failure() const { return world_.failure(); }
  const SimSettings& settings() const { return settings_; }
  const SimCoverage& coverage() const { return coverage_; }
  uint64_t digest() const { return world_.digest(); }

 private:
  struct RouterProcess {
    std::shared_ptr<SimProcess> process;
    std::optional<SimClock> clock;
    std::unique_ptr<RouterLinksNet::Listener> sender;
    std::unique_ptr<Metrics> metrics;
    std::unique_ptr<Router> router;
    std::unique_ptr<SimFrontend> frontend;  // over the router
    // Its process has ended.
    void Clear() {
      frontend.reset();
      router.reset();
    }
    Instant wake_at = kNever;
    std::shared_ptr<RouterProcess> predecessor;  // while it drains
  };
  struct WorkerSlot {
    std::string name;
    bool prefill = false;
    uint64_t incarnation = 0;           // of the worker, drawn as in production
    uint64_t starts = 0;                // so far
    std::unique_ptr<SimWorker> worker;  // null while down
    std::optional<v1::LastExit> last_exit = std::nullopt;
    std::shared_ptr<FakeDisk> disk = nullptr;  // shared by its successive processes
  };
  // The simulation knows which processes it killed.
  class Death final : public PeerDeath {
   public:
    explicit Death(SimCluster* cluster) : cluster_(cluster) {}
    DeathWatch Watch(const std::string& worker_id, uint64_t incarnation,
                     const std::string& lane_token) override;
    bool Dead(DeathWatch watch) override;
    void Forget(DeathWatch watch) override { watched_.erase(watch); }

   private:
    SimCluster* cluster_;
    uint64_t next_ = 1;
    std::map<DeathWatch, std::pair<std::string, uint64_t>> watched_;
  };

  // cluster.cc
  void WireNetworks();
  // Fails the run if the worker was accepted under its name before and another one since.
  void NoteRegistered(const SimProcess& router, const SimProcess& worker);
  void StartRouter(int index);
  void PumpRouter(RouterProcess& r);
  // The router for a client's request: the predecessor, on an open connection, while the new router
  // has no worker yet.
  std::shared_ptr<RouterProcess> RouterFor(size_t index);
  void StartWorker(int index);
  Duration ClientGrace() const;

  // load.cc
  struct Visit {
    bool must_succeed = false;
    Duration cancel_after{};
    SimHabits habits;
  };
  void Submit(RouterRequest request, const Visit& visit);
  // As when its client leaves; false: it has already ended.
  bool CancelRequest(size_t number);
  std::vector<TokenId> MakePrompt();
  RouterRequest MakeRequest(bool storm);
  void AddSampling(RouterRequest* request);
  void AddOutputs(RouterRequest* request);
  void AddTenant(RouterRequest* request);
  SimHabits MakeHabits();
  void ScheduleLoad();
  void Arrive();
  // A prompt of one token only, whose computation fails or ends the process.
  void AskForBadStep() { AskForPoison(SimHabits::Poison::kStep); }
  void AskForEnd() { AskForPoison(SimHabits::Poison::kProcess); }
  void AskForPoison(SimHabits::Poison poison);
  void ScheduleProbes();

  // http_load.cc
  void ScheduleHttp();
  void ScheduleHttpProbes();
  void SubmitHttp(const SimHttpRequest& request, bool must_succeed, Duration leave_after);
  SimHttpRequest MakeHttpRequest();
  static void EndFrontends(const std::shared_ptr<RouterProcess>& router);
  // Clients of the process lose their connections; call before it ends.
  void DisconnectHttp(const RouterProcess& router, const std::string& why);
  void CheckHttp(bool at_end);

  // faults.cc
  void ScheduleFaults();
  void Schedule(double expected, void (SimCluster::*fault)());
  void CrashWorker();
  void KillWorker(int index, const std::string& why, int signal = 9);
  void Bury(std::unique_ptr<SimWorker> worker, double notice_ms);
  void PauseWorker();
  void BreakLink();
  void HalfOpenLink();
  void StallLink();
  void SetLinkRoom(int messages, size_t bytes);
  void DrainWorker();
  void AwaitDrained(int index, uint64_t incarnation);
  void RollingUpdate(size_t index);
  void AwaitUpdated(size_t index, uint64_t starts);
  bool Serves(const WorkerSlot& slot) const;
  void CrashRouter();
  void UpdateRouter();
  void ReplaceRouter(size_t index, std::function<void()> then);
  void AwaitRetired(size_t index, const std::shared_ptr<RouterProcess>& old,
                    std::function<void()> then);
  void RollingRouterUpdate(size_t index);
  void FailTransfer();
  void FallLane();
  void SpoilWrite();
  void FailDevice();
  void MakeZombie();
  // A second process under the name of a live one.
  void DuplicateName();
  void EndZombie(const SimWorker* zombie, const std::string& why);
  // The worker's process wants to end: it was told that another has its name.
  void OnStopWanted(SimWorker* worker);
  // A request ended the worker's process.
  void OnCrash(SimWorker* worker);
  void PauseRouter();
  static void Resume(RouterProcess& router);
  void Heal();

  // role_changes.cc
  void ScheduleRoleChanges();
  // Changes any worker to any role, through a router or at the worker itself.
  void ChangeRole();
  void AskForRole(size_t index, const RoleWish& wish);
  // One change after the other, each when the previous one is over, for workers that are not
  // needed.
  void ChangeRolesInTurn(int left);
  // Until every worker has its initial role again.
  void GoHome(size_t index);
  int RandomWorker();  // a running one; -1: none

  // cluster_checks.cc
  void CheckQuiet();
  void CheckPoisonAlone();
  void CountQuietWorkers(const std::string& line);
  void CheckLongStepsLoseNobody(const std::string& line);
  void CheckMetrics(const RouterProcess& router);
  void CheckNames(const RouterProcess& router);
  void CheckClients(bool at_end);

  SimWorld world_;
  SimSettings settings_;
  SimCoverage coverage_;
  Death death_;
  RouterLinksNet router_net_;
  KvLinksNet kv_net_;
  SimFabric fabric_;
  SimFabric fallback_;  // used if settings_.falls_back
  SimShared shared_;
  RouterOptions router_options_;
  std::vector<std::vector<TokenId>> families_;
  std::vector<std::shared_ptr<RouterProcess>> routers_;
  int retiring_routers_ = 0;
  // By router and name: the accepted processes, in order.
  std::map<std::pair<const SimProcess*, std::string>, std::vector<std::string>> accepted_;
  std::vector<WorkerSlot> workers_;
  std::vector<std::unique_ptr<SimWorker>> zombies_;  // alive, but replaced or a duplicate
  // (client, its router); clients outlive their requests.
  std::vector<std::pair<std::unique_ptr<SimClient>, std::shared_ptr<RouterProcess>>> clients_;
  std::vector<std::pair<std::shared_ptr<SimHttpClient>, std::shared_ptr<RouterProcess>>>
      http_clients_;
  // Separate, so that HTTP clients do not change the draws of others.
  SplitMix64 http_random_;
  bool faults_over_ = false;
};

}  // namespace aisp
