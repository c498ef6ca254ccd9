// Worker: a prefill or decode worker in simulated time. It batches, chunks, caches prefixes and
// preempts like the engine (engine/scheduler.h), but computes nothing: a step takes the time that
// its profile gives. It sends the router the messages of a real worker. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "common/token_limits.h"
#include "proto/link.h"
#include "simulate/block_cache.h"
#include "simulate/profile.h"

namespace aisp::simulate {

class Worker;

// A request on a decode worker.
struct Sequence {
  uint64_t wire_id = 0;
  Worker* decode = nullptr;
  Worker* prefill = nullptr;   // null: prefilled on the decode worker
  std::vector<Hash128> units;  // prefix hashes of the prompt
  int32_t prompt = 0;          // tokens
  int32_t emitted = 0;
  int32_t max_new = 0;
  int32_t computed = 0;  // tokens whose KV is on the decode worker
  size_t shared = 0;     // leading blocks in use in its cache
  int64_t private_blocks = 0;
  TokenLimits limits;
  Instant first;                    // its first token
  int32_t told = 0;                 // of `emitted`: tokens sent to the router
  Instant yields_until{INT64_MIN};  // until then it yields to interactive requests
  Instant came;                     // arrival of its prompt, or of the KV
  bool granted = false;             // its blocks wait for a prefill worker's KV
  // The worker from whose cache a prefix is pulled first; null: none.
  Worker* pull_from = nullptr;
  int32_t pull_tokens = 0;   // that it is believed to hold
  v1::PrefixPull pull = {};  // result of the pull

  int32_t length() const { return prompt + emitted; }
};

// The interface from a worker to the simulation.
class World {
 public:
  virtual ~World() = default;
  virtual Instant Now() const = 0;
  virtual void SendToRouter(Worker& from, v1::WorkerMessage message) = 0;
  // Scheduled calls of Worker::OnStepEnd, Worker::OnKv and Worker::OnJob.
  virtual void StepEndsAt(Worker& worker, Instant at) = 0;
  virtual void KvArrivesAt(Worker& decode, uint64_t wire_id, Instant at) = 0;
  virtual void JobArrivesAt(Worker& prefill, Worker& decode, uint64_t wire_id, Instant at) = 0;
  // Schedules Worker::OnPulled.
  virtual void PulledAt(Worker& puller, Worker& decode, uint64_t wire_id, Instant at) = 0;
  // Schedules Worker::OnJobRefused.
  virtual void JobRefusedAt(Worker& decode, uint64_t wire_id, Instant at) = 0;
  // Schedules Worker::OnRoleTimer.
  virtual void RoleTimerAt(Worker& worker, Instant at) = 0;
  // Registers again on a new link, which becomes the worker's.
  virtual void Rejoin(Worker& worker) = 0;
  virtual Worker* Named(const std::string& id) = 0;
  // Whether several routers place requests; only the worker knows of all.
  virtual bool SeveralRouters() const = 0;
};

class Worker {
 public:
  // `fingerprint`: of the whole pool, for the registration and prefix hashes.
  Worker(std::string id, bool prefill, const WorkerProfile& profile,
         const v1::Fingerprint& fingerprint, LinkId link, uint64_t seed, World* world);

  v1::Register Registration() const;
  void OnRouterMessage(const v1::RouterMessage& message);
  void OnJob(Worker& decode, uint64_t wire_id);
  void OnKv(uint64_t wire_id);
  // The prefix pulled for that prompt of `decode` has arrived.
  void OnPulled(Worker& decode, uint64_t wire_id);
  void OnJobRefused(uint64_t wire_id);
  void OnStepEnd();
  // Called every interval; during a step the report is sent when the step ends.
  void OnTelemetryTimer();
  // Moves the streams that still run, or cancels the role change.
  void OnRoleTimer();

  const std::string& id() const { return id_; }
  LinkId link() const { return link_; }
  void set_link(LinkId link) { link_ = link; }
  bool prefill() const { return role_ == v1::ROLE_PREFILL; }
  v1::Role role() const { return role_; }
  bool changing() const { return becoming_ != v1::ROLE_UNSPECIFIED; }
  const WorkerProfile& profile() const { return profile_; }
  Duration busy() const { return busy_; }
  uint64_t steps() const { return steps_; }
  uint64_t preemptions() const { return preemptions_; }
  int64_t computed_prompt_tokens() const { return computed_prompt_tokens_; }

 private:
  // A prompt, or the part of one that a prefill worker computes.
  struct Job {
    Worker* decode = nullptr;
    uint64_t wire_id = 0;
    std::vector<Hash128> units;
    int32_t tokens = 0;
    int32_t computed = 0;
    size_t shared = 0;
    int64_t private_blocks = 0;
    double compute_ms = 0;
    bool started = false;
    Instant came;
  };
  struct Chunk {
    uint64_t wire_id;
    Worker* decode;
    int32_t tokens;
  };
  struct Step {
    bool running = false;
    Instant begin;
    Duration duration{};
    StepShape shape;
    std::vector<uint64_t> rows;  // wire ids of decode rows
    std::vector<Chunk> chunks;
  };

  void OnGenerate(const v1::GenerateRequest& generate);
  void OnCancel(uint64_t wire_id);
  // worker_pulls.cc: starts a pull; false: there is nothing to pull.
  bool StartPull(Sequence& sequence);
  size_t HeldTokens(const Sequence& sequence) const;
  bool KeepPulled(const Sequence& sequence);
  // worker_roles.cc
  void OnSetRole(const v1::SetRole& wanted);
  void ReportDraining(bool move, bool over);
  void HandBack(uint64_t wire_id);
  // Registers with the new role once nothing of the old one is left.
  void MaybeRejoin();
  // The job of `decode` will not be computed.
  void RefuseJob(Worker& decode, uint64_t wire_id);
  // Starts the next step if there is work and no step runs.
  void Plan();
  // Plans the step launched during the last one, from the work present at its launch.
  void PlanLaunched();
  void PlanWhatIsThere();
  bool IsThere(Instant came) const { return came <= launched_; }
  void PlanDecode();
  void PlanPrompts(int32_t most);  // at most so many tokens
  int32_t Share(int32_t left, int32_t budget, bool others) const;
  // How many prefill tokens the step may have.
  int32_t PrefillTokens();
  // Adds a part of the remaining prompt to this step, within `budget` tokens.
  void PlanChunk(const Sequence& sequence, bool others, int32_t* budget);
  void AddChunk(uint64_t wire_id, Worker* decode, int32_t computed, int32_t tokens);
  bool Follows(const Sequence& sequence) const;
  void PlanJobs();
  void BeginStep();
  double StepMs();  // time of `step_`, which starts now
  void EndRows();
  void EndChunks();
  void EndJobs();
  bool Yields(const Sequence& sequence) const { return world_->Now() < sequence.yields_until; }
  // Inserts it in order of precedence.
  void Enqueue(const Sequence& sequence, bool first_of_its_kind = false);
  // Preempts yielding rows for a waiting interactive prompt.
  void GiveWay();
  // The last yielding sequence of `running_` from `begin` on; if none yields, the last one.
  uint64_t Victim(size_t begin) const;
  int64_t BlocksFor(const Sequence& sequence, size_t* held) const;
  bool Admit(Sequence& sequence);
  bool Grow(Sequence& sequence, size_t place);
  void Preempt(uint64_t wire_id);
  void GiveBack(Sequence& sequence);
  void PublishPrompt(Sequence& sequence);
  void Emit(Sequence& sequence);
  // Queues the tokens that the router does not have yet.
  void QueueTokens(Sequence& sequence);
  void Forget(uint64_t wire_id);
  // Reserves blocks for a sequence whose KV comes from elsewhere, if there are enough.
  bool Grant(uint64_t wire_id);
  void AddJob(Worker& decode, const Sequence& asked);
  bool StartJob(Job& job);
  void FinishJob(Job& job);
  // Blocks were freed: prefill workers that wait for them may continue.
  void WakePrefills();
  void SendTokens();
  void SendKvEvents();
  void SendTelemetry();
  void SetYielding(v1::Telemetry* telemetry) const;
  // Prompts prefilled here.
  size_t QueuedPrompts();
  // New work came: as WorkerShell::NoteLoad.
  void NoteLoad();
  Sequence* Find(uint64_t wire_id);
  size_t PromptBlocks(int32_t tokens) const { return static_cast<size_t>(tokens / block_); }
  std::vector<Hash128> BlockNames(const std::vector<Hash128>& units, size_t count) const;
  std::span<const Hash128> UnitsOfBlock(const std::vector<Hash128>& units, size_t block) const;
  double Jitter();

  const std::string id_;
  v1::Role role_;
  uint64_t role_epoch_ = 1;
  v1::Role becoming_ = v1::ROLE_UNSPECIFIED;
  Instant move_at_ = kNever;
  Instant give_up_at_ = kNever;
  const WorkerProfile& profile_;
  const v1::Fingerprint& fingerprint_;
  LinkId link_;
  World* const world_;
  const int32_t block_;
  SplitMix64 random_;
  BlockCache cache_;
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  std::deque<uint64_t> waiting_;   // prompts to prefill here
  std::deque<uint64_t> kv_ready_;  // their KV has arrived, they have no row yet
  std::vector<uint64_t> running_;  // with a row, in order of arrival
  std::set<uint64_t> awaiting_;    // wait for a prefill worker's KV
  std::deque<Job> jobs_;           // of a prefill worker; started ones first
  Step step_;
  PrefillTurn turn_;
  std::optional<StepCost> cost_told_;  // of its steps, as routers have learnt it
  Instant launched_ = kNever;  // launch of the step that is planned; later work is not in it
  Instant link_free_;          // of a prefill worker: end of its last transfer

  v1::TokenBatch tokens_;
  std::vector<Hash128> stored_;
  uint64_t kv_sequence_ = 0;
  std::vector<v1::StepSample> samples_;
  uint64_t telemetry_sequence_ = 0;
  bool telemetry_due_ = false;
  Instant telemetry_sent_{INT64_MIN / 2};
  double warmth_ = 0;  // at `prompts_until_`: recent fraction of time with prefill
  Instant prompts_until_;
  Duration busy_{};
  uint64_t steps_ = 0;
  uint64_t requests_ = 0;
  bool any_yields_ = false;  // whether any sequence ever yielded
  uint64_t preemptions_ = 0;
  int64_t computed_prompt_tokens_ = 0;
};

}  // namespace aisp::simulate
