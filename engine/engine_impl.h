// The inside of Engine, in five parts: engine.cc (queries), admission.cc (how sequences come, wait and end), launch.cc (plan,
// reserve, hand to the executor), collect.cc (what a finished step means), remote.cc (blocks that others fill or read).
// Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sequence_table.h"

namespace aisp {

// One step on the device: what the executor was given (it may read it until the step is collected) and whom the rows
// belong to. Kept and reused, so that a step allocates nothing once the vectors have grown.
struct StepRecord {
  struct Entry {
    Sequence* sequence = nullptr;
    int32_t end = 0;  // tokens in the KV after this step
    bool samples = false;
  };

  uint64_t step = 0;
  Ticket ticket;
  Instant launched;
  Duration overhead{};
  std::vector<Entry> entries;
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> slot_of_row;
  std::vector<SequenceRows> sequences;
  std::vector<int32_t> block_tables;
  std::vector<int32_t> logit_rows;
  std::vector<SampleRow> samples;
  std::vector<LayerSlice> slices;
  StepTiming timing;

  void Clear();
};

struct Engine::Impl {
  Impl(const EngineOptions& options, Executor* executor, const Clock* clock, LayerSink* sink);

  // --- admission.cc ---
  Result<SequenceId> Add(SequenceRequest request);
  Status Validate(const SequenceRequest& request) const;
  // True when the request is complete as it came (a takeover with nothing left to draw).
  static FinishReason FinishedAtStart(const SequenceRequest& request);
  void Cancel(SequenceId id);
  void Expire(Instant now);
  // Out of every queue; drops its pins, or turns them into kStep pins while rows are in flight.
  void End(Sequence& s);
  void EndWith(Sequence& s, FinishReason finish, Error error = {});
  // Ends with RESOURCE_EXHAUSTED if a pool of its own would not be enough.
  bool EndIfNeverFits(Sequence& s);
  void Preempt(Sequence& s);
  void DropBlocks(Sequence& s);
  // The executor failed: ends everything, forgets the steps in flight.
  void FailAll(const Error& error);

  // --- launch.cc ---
  bool CanLaunch() const;
  Status Launch();
  void BuildSnapshot();
  void AddRunningViews();
  void AddWaitingViews();
  bool Schedulable(const Sequence& s) const;
  SequenceView ViewOf(const Sequence& s) const;
  void ViewMatch(const Sequence& s, SequenceView* view) const;
  // Whether `leader` is about to compute and publish most of what `s` would compute beyond `cached` tokens.
  bool Leads(const Sequence& leader, const Sequence& s, int32_t cached) const;
  bool Follows(const Sequence& s, int32_t cached) const;
  bool StartOverStuck();
  bool Apply(const PlannedSequence& planned, StepRecord& step);
  bool Start(Sequence& s);
  bool Grow(Sequence& s, int32_t new_blocks);
  void AppendRows(Sequence& s, int32_t rows, StepRecord& step);
  void AppendSample(Sequence& s, StepRecord& step);
  Status Execute(StepRecord& step, Instant begin);

  // --- collect.cc ---
  CollectOutput Collect();
  void Absorb(const StepRecord::Entry& entry, SampledToken* sampled, Instant now,
              CollectOutput* out);
  void AbsorbToken(Sequence& s, SampledToken& sampled, Instant now, CollectOutput* out);
  void PublishWholeBlocks(Sequence& s);
  void ReleaseHusk(Sequence& s);

  // --- remote.cc ---
  std::vector<SequenceId> UpcomingGated(int32_t horizon_tokens) const;
  void OpenGate(SequenceId id);
  // Matches and reserves all blocks of `s`, or changes nothing. `match_limit` in tokens; `keep_free` blocks are left.
  bool TakeBlocks(Sequence& s, int32_t tokens, int32_t match_limit, int32_t keep_free);
  void Release(SequenceId id);
  int32_t LocalMatch(SequenceId id) const;
  Result<RemoteGrant> GrantRemote(SequenceId id);
  void RemoteFilled(SequenceId id);
  void RemoteFailed(SequenceId id, bool run_locally);
  void EndLease(Epoch epoch);

  int32_t MaxSequences() const { return limits.max_sequences; }
  int32_t BlockTokens() const { return executor->kv_layout().block_tokens; }
  int32_t BlocksFor(int32_t tokens) const { return executor->kv_layout().BlocksFor(tokens); }
  int32_t Watermark() const;
  Hash128 RootOf(const std::string& cache_scope) const;

  const EngineOptions options;
  Executor* const executor;
  const Clock* const clock;
  LayerSink* const sink;
  const ScheduleLimits limits;  // those of the options, within what the executor can do
  BlockManager blocks;
  SequenceTable table;
  Status failed;

  std::vector<StepRecord> ring;    // max_depth of them
  std::deque<StepRecord*> flight;  // oldest first
  uint64_t next_step = 1;
  uint64_t next_epoch = 1;
  uint64_t preemptions = 0;
  // A plan found nothing to launch, or must not preempt before a Collect; cleared by whatever could change that.
  bool blocked = false;
  Instant next_deadline = kNever;
  int32_t waiting_with_blocks = 0;

  std::vector<TokenOutput> pending_tokens;
  std::vector<SequenceId> pending_prefills_done;

  StepPlanner planner;
  std::vector<SequenceView> views;
  std::vector<const Sequence*> starting;  // while views are built: who may start in this step
  std::vector<Sequence*> scratch;
};

}  // namespace aisp
