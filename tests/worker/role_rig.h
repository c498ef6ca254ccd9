// A cluster of one router stand-in, prefill and decode workers in one thread, for tests of the
// roles: real engines over the provenance executor, in-memory links and transports, and time
// controlled by the test.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "decode/decode_role.h"
#include "engine/engine.h"
#include "prefill/peer_connector.h"
#include "prefill/prefill_role.h"
#include "speculation/speculator.h"
#include "tests/support/fake_tiers.h"
#include "tests/support/provenance_executor.h"
#include "tests/worker/manual_transport.h"
#include "tests/worker/memory_links.h"

namespace aisp {

// Accepts every worker and keeps its messages.
class RouterStandIn final : public LinkHandler<v1::WorkerMessage> {
 public:
  struct Answer {
    std::vector<TokenId> tokens;
    std::vector<v1::TokenEvent> events;
    v1::FinishReason finish = v1::FINISH_NONE;
    v1::Error error;
    int finishes = 0;
    std::vector<v1::Timing> timings;
  };

  explicit RouterStandIn(LinkSender<v1::RouterMessage>* sender) : sender_(sender) {}

  std::optional<v1::AdapterSet> adapters;  // sent at registration
  std::string refuse_reason;               // if set, registrations are refused with it
  std::map<std::string, LinkId> links;     // by worker id, the attached ones
  std::map<std::string, v1::Register> registers;
  std::map<std::string, v1::Telemetry> telemetry;
  std::map<std::string, v1::AdapterReport> adapter_reports;
  std::map<std::string, std::vector<v1::KvEventBatch>> kv_events;
  std::map<std::string, std::vector<v1::KvEventBatch>> tier_events;
  std::map<uint64_t, Answer> answers;
  std::vector<v1::TokenBatch> batches;
  std::vector<v1::Draining> drainings;
  std::vector<v1::KeptAnswers> kept_answers;
  int registrations = 0;

  void Generate(const std::string& worker, const v1::GenerateRequest& request);
  void Cancel(const std::string& worker, uint64_t request_id);
  void Send(const std::string& worker, v1::RouterMessage message) {
    sender_->Send(links.at(worker), std::move(message));
  }

  void OnLinkUp(LinkId, const std::string&) override {}
  void OnMessage(LinkId link, v1::WorkerMessage message) override;
  void OnLinkDown(LinkId link, const Error& why) override;

 private:
  void OnTokens(const v1::TokenBatch& batch);

  LinkSender<v1::RouterMessage>* const sender_;
  std::map<LinkId, std::string> workers_;
};

// Knows which processes were killed.
class RigDeath final : public PeerDeath {
 public:
  std::map<std::string, bool> dead;  // by "worker_id/incarnation"
  int watches = 0;

  bool blind = false;  // nothing can be watched

  DeathWatch Watch(const std::string& worker_id, uint64_t incarnation,
                   const std::string&) override {
    if (blind) return {};
    ++watches;
    watched_[++last_] = worker_id + "/" + std::to_string(incarnation);
    return DeathWatch(last_);
  }
  bool Dead(DeathWatch watch) override {
    return watch != DeathWatch() && dead[watched_.at(watch.value)];
  }
  void Forget(DeathWatch watch) override {
    if (watch == DeathWatch()) return;
    --watches;
    watched_.erase(watch.value);
  }

 private:
  std::map<uint64_t, std::string> watched_;
  uint64_t last_ = 0;
};

struct RigOptions {
  ProvenanceOptions model;
  int32_t prefill_blocks = 64;
  int32_t decode_blocks = 64;
  int prefill_workers = 1;
  bool owner_copies = false;
  ScheduleLimits limits;
  PrefillOptions prefill;
  DecodeOptions decode;
  // Changes prefill workers' options from the decode worker's.
  std::function<void(ProvenanceOptions&)> of_prefill;
  bool mixed_precision = false;
  // Tiers of the prefill workers; copies end in the next turn unless RigWorker::hold_tiers is set.
  int32_t host_slots = 0;
  int32_t disk_slots = 0;
  // Messages that arrive while a step computes are delivered between two of its layers.
  bool in_step = false;
  RankedConnector::Runner run_connects = RankedConnector::RunHere;
  // Of the decode worker's engine.
  std::shared_ptr<Speculator> speculator;
};

// Common to both kinds of worker.
struct RigWorker {
  std::string name;
  bool paused = false;
  Inbox inbox;
  std::unique_ptr<ProvenanceExecutor> executor;
  std::unique_ptr<ManualTransport> transport;
  FakeDisk disk;
  std::unique_ptr<FakeTiers> tiers;
  bool hold_tiers = false;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<RouterLinksInMemory::Dialer> routers;
  virtual ~RigWorker() = default;
  virtual WorkerRole& role() = 0;
};
struct RigPrefill final : RigWorker {
  std::unique_ptr<RankedConnector> connector;
  std::unique_ptr<KvLinksInMemory::Dialer> peers;
  std::unique_ptr<DecodeRole> standby;  // fetches prefixes
  std::unique_ptr<PrefillRole> prefill;
  ~RigPrefill() override {
    prefill.reset();
    standby.reset();
  }
  WorkerRole& role() override { return *prefill; }
};
struct RigDecode final : RigWorker {
  std::unique_ptr<KvLinksInMemory::Dialer> peers;
  std::unique_ptr<DecodeRole> decode;
  ~RigDecode() override { decode.reset(); }
  WorkerRole& role() override { return *decode; }
};

class RoleRig {
 public:
  explicit RoleRig(const RigOptions& options);
  ~RoleRig();

  ManualClock clock;
  Metrics metrics;  // of all workers together
  RouterLinksInMemory router_links;
  KvLinksInMemory kv_links;
  RigDeath death;
  Inbox router_inbox;
  std::unique_ptr<RouterStandIn> router;
  std::unique_ptr<RigDecode> decode;
  std::vector<std::unique_ptr<RigPrefill>> prefills;

  // Leaves null in the prefill worker's place.
  void KillPrefill(size_t i, bool proof);
  void StartPrefill(size_t i, uint64_t incarnation);
  void KillDecode();

  // One turn of every worker that is not paused: messages, timers, at most one step. True:
  // something happened.
  bool Turn();
  // Runs turns, advancing time by `tick` each, until `done`. False: not done after `turns`.
  bool RunUntil(const std::function<bool()>& done, int turns = 3000);
  void RunFor(Duration time);
  // Until the workers are attached.
  void Attach();
  void CheckInvariants() const;

  // A greedy request without stop tokens; prefilled remotely if there is a prefill worker.
  v1::GenerateRequest MakeRequest(uint64_t id, const std::vector<TokenId>& prompt,
                                  uint32_t new_tokens) const;
  // The same, with the prefix pulled from that prefill worker; the decode worker, or (`by_prefill`)
  // the first prefill worker, computes the rest.
  v1::GenerateRequest MakePull(uint64_t id, const std::vector<TokenId>& prompt, uint32_t new_tokens,
                               size_t holder = 0, bool by_prefill = false) const;
  bool Finished(uint64_t id) const;
  // Runs to the end and expects the right tokens.
  void ExpectAnswer(uint64_t id, const std::vector<TokenId>& prompt, uint32_t new_tokens);
  // Neither side holds any block.
  void ExpectAllBlocksBack();

  // Pools by name; a test may add its own.
  ManualFabric& fabric() { return fabric_; }

  const RigOptions options;
  Duration tick = std::chrono::microseconds(500);

 private:
  bool TurnOf(RigWorker& worker);
  std::function<void()> InStep(RigWorker* worker);
  ProvenanceOptions Model(int32_t blocks) const;
  ProvenanceOptions PrefillModel() const;
  v1::Fingerprint FingerprintOf(const KvLayout& layout) const;
  void StartDecode();

  bool in_step_ = false;  // some worker is in the middle of a step
  ManualFabric fabric_;
  KvLinksInMemory::Sender kv_sender_{&kv_links};
  RouterLinksInMemory::Sender router_sender_{&router_links};
};

// `n` tokens that depend on `seed`.
std::vector<TokenId> MakePrompt(int n, uint64_t seed);
// The next turn of a conversation: `prompt` and more tokens.
std::vector<TokenId> MakeLonger(const std::vector<TokenId>& prompt, int more, uint64_t seed = 77);

}  // namespace aisp
