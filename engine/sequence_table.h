// SequenceTable: every sequence of one engine and its queues. Internal to engine/.
//
// Owns the Sequence objects; their addresses are stable. A sequence that ended with rows in flight
// stays as a husk, out of every queue, until those steps are collected: the executor still reads
// its tokens and block table. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "engine/engine.h"
#include "engine/feature_cache.h"
#include "engine/request.h"

namespace aisp {

enum class SequenceState : uint8_t {
  kGated,       // prefill-only, the reader has no blocks yet
  kWaiting,     // in the waiting queue
  kRunning,     // has a slot and all blocks it needs now
  kAwaitingKv,  // remote: waits for a grant or for its writer
  kHolding,     // prefill-only and done: keeps its blocks until Release
  kEnded,       // a husk
};

// Whether tokens are drawn for it at all.
inline bool Draws(const SequenceRequest& request) {
  if (request.kv_source == KvSource::kPrefillOnly) return request.draws_first;
  return request.pooling == Pooling::kNone && request.max_new_tokens > 0;
}

struct Sequence {
  SequenceId id;
  SequenceRequest
      request;  // tokens grow as they are drawn; never reallocated (capacity is taken in Add)
  Hash128 root;
  int32_t adapter = -1;  // the executor's index
  uint64_t arrival = 0;
  SequenceState state = SequenceState::kWaiting;
  std::vector<BlockId> blocks;   // block table; pinned with kSequence (a husk's: kStep)
  int32_t published_blocks = 0;  // leading blocks passed to the prefix index
  // Copy-on-write source of its first own block; its first step makes the copy. Pinned (kSequence)
  // until that step is collected; until then the copied tokens count in `scheduled` only.
  struct Copied {
    BlockId from{-1};
    int32_t end = 0;  // one past the last copied token
    bool pinned = false;
  };
  std::optional<Copied> copied;
  int32_t computed = 0;   // leading tokens whose KV is in the pool
  int32_t scheduled = 0;  // `computed` after the steps in flight are collected
  int32_t reported =
      0;  // prefill-only: the reader was told of the KV before it; slices continue here
  int32_t match_hint = 0;      // prefix hit when it was added
  int32_t slot = -1;           // while running
  int32_t rows_in_flight = 0;  // steps in flight that contain it
  int32_t samples_in_flight = 0;
  // Draft tokens after the last known one (Engine::Propose). While rows in flight verify some of
  // them, nothing more of this sequence is scheduled.
  std::vector<TokenId> draft;
  int32_t draft_rows = 0;    // how many of them the next step may verify
  int32_t draft_forced = 0;  // how many leading ones its constraint forced
  int32_t drafts_in_flight = 0;
  bool in_run = false;  // a forced run continues after the last drawn token
  // While drafts are in flight: generated and draft tokens, for penalties, and the masks of all
  // draws, for constraints.
  std::vector<TokenId> lookahead;
  std::vector<uint32_t> draft_masks;
  int32_t mask_draws = 0;  // number of masks in draft_masks
  size_t last_sample = 0;  // its last sample in the last step that draws for it
  // Set if its guide was advanced by a token not collected yet: whether it allowed the token.
  std::optional<bool> taken_early;
  DraftCounts drafts;
  bool alone = false;            // a step with it failed: its next one runs it alone
  bool lookup_counted = false;   // in the prefix cache's statistics
  bool reads_generated = false;  // its penalties need every token on the host before the next draw
  // Progress of prompt outputs: the first position without a logprob, and the sum of pooled hidden
  // states.
  int32_t scored = 1;
  std::vector<double> pooled;
  // Prefill-only: features of its last computed positions, contiguous, and the first such position.
  std::vector<float> features;
  int32_t features_from = 0;
  FeatureTail feature_tail;  // incomplete unit of the feature cache
  // Otherwise: the first position whose features its proposer can use, and its number of tokens
  // when added.
  int32_t window_begin = 0;
  int32_t window_end = 0;
  bool publishes = true;  // publishes its whole blocks
  std::optional<Epoch> lease;
  // Keys of its whole blocks in the lower tiers; and the promotion it waits for (0: none), until
  // when.
  std::vector<Hash128> tier_keys;
  uint64_t promotion = 0;
  Instant promotion_until = kNever;
  FairShare::Account* account = nullptr;  // its tenant's, until it ends
  SequenceTimes times;

  int32_t size() const { return static_cast<int32_t>(request.tokens.size()); }
  int32_t generated() const { return size() - request.prompt_tokens; }
  int64_t standing() const { return request.tenant.Standing(); }
  // When it stops yielding to interactive ones; kNever: not by waiting.
  Instant ages_at() const {
    const TenantShare& tenant = request.tenant;
    const bool ages = Yields(tenant.service_class) && tenant.patience > Duration{};
    return ages ? times.added + tenant.patience : kNever;
  }
  // A remote reader copies its blocks: it is never preempted, holds its KV until Release and
  // continues at the reader.
  bool has_reader() const { return request.kv_source == KvSource::kPrefillOnly; }
  // Whether its last token is computed too.
  bool samples() const { return !has_reader() || request.draws_first; }
  // Whether it draws tokens at its end; else it ends with its last row.
  bool draws() const { return Draws(request); }
  bool scores() const { return request.prompt_logprobs >= 0 && scored < request.prompt_tokens; }
  // KV of positions before it may come from a cache: no outputs of those rows are wanted.
  int32_t match_limit() const;
  // Tokens whose KV is wanted, including those that steps in flight will draw.
  int32_t target() const {
    if (has_reader()) return samples() ? size() : size() - 1;
    return size() + samples_in_flight;
  }
};

// A tenant's order: smaller class, greater rank, greater priority, earlier arrival.
bool Precedes(const Sequence& a, const Sequence& b);

class SequenceTable {
 public:
  explicit SequenceTable(int32_t max_slots);

  Sequence& Add(SequenceRequest request);
  // Null for unknown or ended ids.
  Sequence* Find(SequenceId id) const;
  // Every sequence that has not ended, in no order.
  template <typename F>
  void ForEachAlive(F&& f) const {
    for (const auto& [id, s] : sequences_) {
      if (s->state != SequenceState::kEnded) f(*s);
    }
  }
  // Including husks.
  template <typename F>
  void ForEach(F&& f) const {
    for (const auto& [id, s] : sequences_) f(*s);
  }
  int32_t alive() const { return alive_; }
  // Incremented when sequences are added, change queues or end.
  uint64_t version() const { return version_; }
  // Aborts if a queue, slot or counter contradicts the sequences.
  void CheckInvariants() const;

  // Moves it between queues. kRunning takes a slot (one must be free); leaving it returns the slot.
  void SetState(Sequence& s, SequenceState state);
  // It counts as interactive from now on.
  void Promote(Sequence& s);
  // Removes a husk without rows in flight.
  void Erase(Sequence& s);

  // Service given to the tenants of all sequences that have not ended.
  const FairShare& shares() const { return shares_; }

  // By precedence.
  const std::vector<Sequence*>& waiting() const { return waiting_; }
  const std::vector<Sequence*>& gated() const { return gated_; }
  const std::vector<Sequence*>& running() const { return running_; }
  int32_t awaiting() const { return awaiting_; }
  int32_t free_slots() const { return static_cast<int32_t>(free_slots_.size()); }
  SequenceTimes Times(SequenceId id) const;

 private:
  using Queue = std::vector<Sequence*>;
  void Leave(Sequence& s);
  void Enter(Sequence& s);
  static void InsertByPrecedence(Queue& queue, Sequence& s);
  static void Remove(Queue& queue, Sequence& s);

  FairShare shares_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  Queue waiting_;
  Queue gated_;
  Queue running_;
  int32_t awaiting_ = 0;
  int32_t alive_ = 0;
  uint64_t version_ = 0;
  std::vector<int32_t> free_slots_;
  uint64_t next_id_ = 1;
  // Times of recently ended sequences, readable after the final output.
  std::deque<SequenceId> ended_order_;
  std::unordered_map<SequenceId, SequenceTimes> ended_times_;
};

}  // namespace aisp
