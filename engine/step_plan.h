// StepPlan: what one step will compute, as data. PlanStep is a pure function from a snapshot of the
// engine, so a scheduling decision can be tested, logged and replayed without an engine. It
// allocates no block: it counts.
//
// Order of everything is precedence: greater rank; then the tenant to which less was given, so that
// one with many or long requests keeps none of the others from theirs; then, of one tenant's,
// greater priority and earlier arrival. A waiting sequence
// gets all blocks of its target at once when it starts, so a prefill that has begun never needs
// another block and two half-done prefills cannot starve each other; only decodes grow, by a block
// at a time. Any thread; nothing is kept between calls but scratch memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/prompt_work.h"
#include "common/service_class.h"
#include "engine/places.h"

namespace aisp {

enum class SequencePhase : uint8_t {
  kWaiting,  // no blocks yet, preempted, or (blocks_held > 0) all its blocks are there and it only
             // needs a row
  kRunning,  // holds blocks; prefilling or decoding
  kAwaitingKv,  // a remote writer fills its blocks; not schedulable
};

// One sequence as the scheduler sees it. Lengths count tokens that are in flight as if they were
// there.
struct SequenceView {
  SequenceId id;
  SequencePhase phase = SequencePhase::kWaiting;
  bool gated = false;  // may not start yet (prefill-only, waiting for the reader's blocks)
  int32_t target_tokens =
      0;  // tokens whose KV is wanted: all known ones (prefill-only: maybe tokens - 1)
  int32_t computed_tokens = 0;  // KV done or in flight
  // Waiting only: length of the prefix match it would start with. What is beyond its last whole
  // block is copied into a block of its own.
  int32_t cached_tokens = 0;
  int32_t cached_free_blocks =
      0;  // waiting only: how many of the matched blocks count as available now
  int32_t blocks_held = 0;
  bool samples = true;      // draws a token once computed == target
  bool has_reader = false;  // who copies from its blocks: it is never preempted
  // Proposed tokens behind the last known one, which rows of the same step may verify. Of decodes.
  int32_t draft_tokens = 0;
  bool scores = false;  // its next rows are scored, and a step has few of those
  PromptPace pace;      // of its rows in a step that decodes
  int32_t tenant = 0;   // index into EngineSnapshot::tenants
  // Greater goes first, of whatever tenant: its class and rank (TenantShare::Standing).
  int64_t rank = 0;
  ServiceClass service_class = ServiceClass::kInteractive;
  int32_t priority = 0;
  uint64_t arrival = 0;  // smaller came earlier
};

// What a tenant was given so far, over its weight (common/fair_share.h).
struct TenantView {
  double service = 0;
  double weight = 1;
  bool leaves_places = false;  // to others: see PlaceShares; false: everybody without a key
};

struct EngineSnapshot {
  std::span<const SequenceView> sequences;  // any order
  int32_t available_blocks = 0;
  int32_t block_tokens = 16;
  // Ties in service go to the smaller index. Empty: all sequences are of one tenant.
  std::span<const TenantView> tenants = {};
};

struct ScheduleLimits {
  int32_t max_batch_tokens = 512;   // token budget of a step (chunked prefill)
  int32_t max_sequences = 64;       // rows sets in a step = running sequences
  int32_t max_prefill_chunk = 512;  // largest chunk of one sequence
  int32_t watermark_blocks = 1;     // kept free for running sequences when admitting a waiting one
  int32_t max_draft_rows = 0;       // rows of a step that verify proposed tokens
  int32_t max_scored_rows = 0;      // rows of a step of sequences that score theirs
};

struct PlannedSequence {
  SequenceId id;
  int32_t token_begin = 0;  // first position computed in this step
  int32_t num_tokens = 0;
  int32_t new_blocks =
      0;  // to reserve before launch (after the prefix match, for a starting sequence)
  bool starts = false;  // was waiting: match the prefix first
  // Draws a token at the end of these rows; with drafts, one behind each of the last 1 + drafts.
  bool samples = false;
  int32_t draft_tokens = 0;  // of num_tokens: those that verify proposed tokens
};

struct StepPlan {
  std::vector<SequenceId> preempt;  // drop their blocks first, newest and lowest priority first
  std::vector<PlannedSequence> sequences;  // decodes first, then prefill chunks and who starts
  int32_t num_tokens = 0;
  bool empty() const { return sequences.empty() && preempt.empty(); }
};

// Running decodes come first, one row each, by precedence. What they leave of the token budget goes
// to prefills: next is the tenant to which least was given, this step's rows counted, and of a
// tenant the running sequences before those that wait, which leave places for other tenants.

// A prefill that cannot end in this step gets half of what is left while others stand behind it,
// and what they do not need in the end. Gated sequences are passed over. Without enough blocks for
// a waiting sequence, those behind it do not start either, unless they hold all their blocks; the
// watermark is waived when nothing runs.

// Beside decodes, prompts with a pace also share one step as their paces measure it; the first of
// them has a few rows however slow it is.

// A running sequence without its next block preempts the last ones by precedence, none that is in
// the plan already and none before it; when that is not enough, it waits. Before all that, whoever
// waits for a place or blocks gets those of running sequences of a lesser class. A plan that
// preempts starts no sequence that needs blocks.

// Rows that verify proposed tokens take what is left of tokens and blocks at the end. Pure and
// deterministic; the order of snapshot.sequences does not matter.
StepPlan PlanStep(const EngineSnapshot& snapshot, const ScheduleLimits& limits);

// The same for a caller that plans in a loop: no allocation once the memory has grown to the number
// of sequences.
class StepPlanner {
 public:
  // The plan is valid until the next call.
  const StepPlan& Plan(const EngineSnapshot& snapshot, const ScheduleLimits& limits);

 private:
  enum class Fate : uint8_t { kOpen, kPlanned, kPreempted };

  void Sort(const EngineSnapshot& snapshot);
  // Preempts for those that wait, of lesser classes.
  void MakeWay();
  bool MayStart(const SequenceView& view) {
    const TenantView& tenant = tenants_[static_cast<size_t>(view.tenant)];
    if (!tenant.leaves_places || view.rank > 0) return true;
    return places_.MayTake(view.tenant, tenant.weight, view.service_class);
  }
  // Makes one place and so many blocks free; preempts nobody when that cannot be reached.
  bool Displace(ServiceClass waiting, int32_t blocks);
  // Free blocks that a waiting sequence would want.
  int32_t BlocksWanted(const SequenceView& view) const;
  bool Precedes(int32_t a, int32_t b) const;
  void RankTenants();
  void PlanRunning(int32_t index, int32_t most_rows);
  void PlanPrefills();
  // The next candidate of the tenant to which least was given; -1: none is left.
  int32_t NextPrefill();
  // At most so many rows now, with `behind` other candidates.
  int32_t Share(const SequenceView& view, int32_t begin, size_t behind) const;
  // Of `rows` from `begin` on those for which its pace has so much of the step left.
  int32_t Paced(const SequenceView& view, int32_t begin, int32_t rows, double part) const;
  // Rows that `view` may have beside what is planned, by the budgets of the step.
  int32_t Room(const SequenceView& view) const {
    return view.scores ? std::min(budget_, scored_) : budget_;
  }
  void PlanWaiting(int32_t index, size_t behind);
  // What was left over, to prefills that were cut.
  void ExtendPrefills(size_t first);
  void NoteVerifying(int32_t index);
  void PlanDrafts();
  bool StartWaiting(int32_t index, size_t behind);
  bool MakeRoom(int32_t index, int32_t blocks);
  void AddRows(int32_t index, int32_t begin, int32_t rows, int32_t new_blocks, bool starts);
  int32_t BlocksFor(int32_t tokens) const;

  std::span<const SequenceView> views_;
  ScheduleLimits limits_;
  int32_t block_tokens_ = 16;
  int32_t available_ = 0;         // blocks not promised to anybody in this plan
  int32_t budget_ = 0;            // tokens
  bool paced_ = false;            // the step decodes
  double part_ = 1;               // of the step that paced prompts have left
  int32_t scored_ = 0;            // rows that may still be scored
  PlaceShares places_;            // sequences that may still start, and who holds the others
  bool blocked_ = false;          // nobody without blocks may start any more
  std::vector<int32_t> decodes_;  // indices into views_ by precedence
  // Who has more than a row to compute or may start. By rank, then a tenant's own order.
  std::vector<int32_t> prefills_;
  std::vector<TenantView> tenants_;    // of the snapshot, with what this plan gives
  std::vector<int32_t> tenant_place_;  // of each tenant in the order by service as it was
  std::vector<int32_t> victims_;       // who may be preempted, by precedence: the last goes first
  std::vector<Fate> fates_;            // of views_[i]
  // Decodes in the plan with proposed tokens: index of the view, index in the plan.
  std::vector<std::pair<int32_t, size_t>> verifying_;
  std::vector<int32_t> order_;  // indices into views_ of plan_.sequences
  std::vector<int32_t> scratch_;
  StepPlan plan_;
};

}  // namespace aisp
