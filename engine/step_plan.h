// StepPlan: what one step will compute, as data. PlanStep is a pure function of an engine snapshot,
// so a scheduling decision can be tested, logged and replayed without an engine. It counts blocks
// but allocates none.
//
// Everything is ordered by precedence: greater rank; then the tenant with less service, so that
// many or long requests of one tenant do not delay the others; then, within a tenant, greater
// priority and earlier arrival. A waiting sequence gets all blocks of its target when it starts, so
// a started prefill never needs another block and two half-done prefills cannot starve each other;
// only decodes grow, one block at a time. Any thread; only scratch memory is kept between calls.
//
// Rules:
//   - Running decodes come first, one row each, by precedence. The remaining token budget goes to
//     prefills: next is the tenant with the least service, this step's rows included, and within
//     a tenant running sequences before waiting ones, which obey PlaceShares.
//   - A prefill that cannot finish in this step gets half of the remaining budget while others
//     wait after it, plus what those do not need. Gated sequences are skipped. If blocks do not
//     suffice for a waiting sequence, later ones do not start either, unless they hold all their
//     blocks; the watermark is waived when nothing runs.
//   - A step that decodes has at most the snapshot's prefill rows.
//   - A running sequence without its next block preempts the last ones by precedence, but none
//     already planned and none before it; if that does not suffice, it waits. Before all that,
//     those waiting for a slot or blocks take them from running sequences of lesser classes. A
//     plan that preempts starts no sequence that needs blocks.
//   - Verify rows use the tokens and blocks left at the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
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

// One sequence as the scheduler sees it. Lengths include tokens in flight.
struct SequenceView {
  SequenceId id;
  SequencePhase phase = SequencePhase::kWaiting;
  bool gated = false;  // may not start yet (prefill-only, waiting for the reader's blocks)
  int32_t target_tokens =
      0;  // tokens whose KV is wanted: all known ones (prefill-only: maybe tokens - 1)
  int32_t computed_tokens = 0;  // KV done or in flight
  // Waiting only: length of its prefix hit. Tokens after the last whole block are copied
  // (copy-on-write).
  int32_t cached_tokens = 0;
  int32_t cached_free_blocks =
      0;  // waiting only: how many of the matched blocks count as available now
  int32_t blocks_held = 0;
  bool samples = true;      // draws a token once computed == target
  bool has_reader = false;  // a reader copies its blocks: it is never preempted
  // Decodes only: draft tokens after the last known one, which rows of the same step may verify.
  int32_t draft_tokens = 0;
  bool scores = false;  // its next rows are scored; a step has few such rows
  int32_t tenant = 0;   // index into EngineSnapshot::tenants
  // Greater goes first, across tenants: class and rank (TenantShare::Standing).
  int64_t rank = 0;
  ServiceClass service_class = ServiceClass::kInteractive;
  int32_t priority = 0;
  uint64_t arrival = 0;  // smaller came earlier
};

// A tenant's service so far, divided by its weight (common/fair_share.h).
struct TenantView {
  double service = 0;
  double weight = 1;
  bool leaves_places = false;  // obeys PlaceShares; false: requests without a key
};

struct EngineSnapshot {
  std::span<const SequenceView> sequences;  // any order
  int32_t available_blocks = 0;
  int32_t block_tokens = 16;
  // Ties in service go to the smaller index. Empty: all sequences belong to one tenant.
  std::span<const TenantView> tenants = {};
  // Most prefill rows of a step that decodes (common/token_limits.h).
  int32_t prefill_tokens = std::numeric_limits<int32_t>::max();
};

struct ScheduleLimits {
  int32_t max_batch_tokens = 512;   // token budget of a step (chunked prefill)
  int32_t max_sequences = 64;       // sequences in a step = running sequences
  int32_t max_prefill_chunk = 512;  // largest chunk of one sequence
  int32_t watermark_blocks = 1;     // kept free for running sequences when admitting a waiting one
  int32_t max_draft_rows = 0;       // rows of a step that verify draft tokens
  int32_t max_scored_rows = 0;      // rows of a step of sequences that score their rows
};

struct PlannedSequence {
  SequenceId id;
  int32_t token_begin = 0;  // first position computed in this step
  int32_t num_tokens = 0;
  int32_t new_blocks =
      0;  // to reserve before launch (after the prefix match, for a starting sequence)
  bool starts = false;  // was waiting: match the prefix first
  // Draws a token after the last row; with drafts, one after each of the last 1 + drafts rows.
  bool samples = false;
  int32_t draft_tokens = 0;  // of num_tokens: rows that verify draft tokens
};

struct StepPlan {
  std::vector<SequenceId> preempt;  // drop their blocks first, in this order
  std::vector<PlannedSequence>
      sequences;  // decodes first, then prefill chunks and starting sequences
  int32_t num_tokens = 0;
  bool empty() const { return sequences.empty() && preempt.empty(); }
};

// The plan by the rules at the head of this file. Pure and deterministic; the order of
// snapshot.sequences does not matter.
StepPlan PlanStep(const EngineSnapshot& snapshot, const ScheduleLimits& limits);

// The same for a caller that plans in a loop: no allocation once memory has grown to the number of
// sequences.
class StepPlanner {
 public:
  // The plan is valid until the next call.
  const StepPlan& Plan(const EngineSnapshot& snapshot, const ScheduleLimits& limits);

 private:
  enum class Fate : uint8_t { kOpen, kPlanned, kPreempted };

  void Sort(const EngineSnapshot& snapshot);
  // Preempts sequences of lesser classes for waiting ones.
  void MakeWay();
  bool MayStart(const SequenceView& view) {
    const TenantView& tenant = tenants_[static_cast<size_t>(view.tenant)];
    if (!tenant.leaves_places || view.rank > 0) return true;
    return places_.MayTake(view.tenant, tenant.weight, view.service_class);
  }
  // Frees one slot and `blocks` blocks; preempts nobody if that is impossible.
  bool Displace(ServiceClass waiting, int32_t blocks);
  // Free blocks that a waiting sequence needs.
  int32_t BlocksWanted(const SequenceView& view) const;
  bool Precedes(int32_t a, int32_t b) const;
  void RankTenants();
  void PlanRunning(int32_t index, int32_t most_rows);
  void PlanPrefills();
  // The next candidate of the tenant with the least service; -1: none.
  int32_t NextPrefill();
  // Most rows to plan now, with `behind` other candidates waiting.
  int32_t Share(const SequenceView& view, int32_t begin, size_t behind) const;
  // Rows that `view` may add within the step's budgets.
  int32_t Room(const SequenceView& view) const {
    return view.scores ? std::min(budget_, scored_) : budget_;
  }
  void PlanWaiting(int32_t index, size_t behind);
  // Gives unused budget to prefills that were cut short.
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
  int32_t prefill_left_ = 0;      // of it, for prefill rows
  int32_t scored_ = 0;            // rows that may still be scored
  PlaceShares places_;            // batch slots: how many are free, and who holds the others
  bool blocked_ = false;          // no sequence without blocks may start any more
  std::vector<int32_t> decodes_;  // indices into views_ by precedence
  // Sequences with more than one row to compute or that may start. By rank, then the tenant's
  // order.
  std::vector<int32_t> prefills_;
  std::vector<TenantView> tenants_;    // of the snapshot, plus what this plan gives
  std::vector<int32_t> tenant_place_;  // of each tenant in the initial order by service
  std::vector<int32_t> victims_;       // may be preempted, by precedence: the last goes first
  std::vector<Fate> fates_;            // of views_[i]
  // Planned decodes with draft tokens: index of the view, index in the plan.
  std::vector<std::pair<int32_t, size_t>> verifying_;
  std::vector<int32_t> order_;  // indices into views_ of plan_.sequences
  std::vector<int32_t> scratch_;
  StepPlan plan_;
};

}  // namespace aisp
