// SequenceTable: every sequence of one engine and the queues it stands in. Internal to engine/.
//
// Owns the Sequence objects; their addresses are stable. A sequence that ended while rows of it are
// in flight stays as a husk, out of every queue, until those steps are collected: the executor
// still reads its tokens and its block table. Engine thread only.
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
  int32_t adapter = -1;  // as the executor counts them
  uint64_t arrival = 0;
  SequenceState state = SequenceState::kWaiting;
  std::vector<BlockId> blocks;   // block table; pinned with kSequence (a husk's: kStep)
  int32_t published_blocks = 0;  // leading blocks that the prefix index has been told of
  // The cached block of which its first own one begins as a copy, which its first step makes. It is
  // pinned (kSequence) until that is collected; before, the copied tokens count as scheduled alone.
  struct Copied {
    BlockId from{-1};
    int32_t end = 0;  // position behind the last token that it takes from there
    bool pinned = false;
  };
  std::optional<Copied> copied;
  int32_t computed = 0;   // leading tokens whose KV is in the pool
  int32_t scheduled = 0;  // the same once the steps in flight are collected
  int32_t reported =
      0;  // prefill-only: the reader knows of the KV before it; slices go on from here
  int32_t match_hint = 0;      // prefix match when it was added
  int32_t slot = -1;           // while running
  int32_t rows_in_flight = 0;  // steps in flight that contain it
  int32_t samples_in_flight = 0;
  // Proposed tokens behind the last known one (Engine::Propose), and how many of them rows in
  // flight verify; until those are collected nothing more of it is scheduled.
  std::vector<TokenId> draft;
  int32_t draft_rows = 0;    // of them, how many the next step may verify
  int32_t draft_forced = 0;  // of them, the leading ones that its constraint named
  int32_t drafts_in_flight = 0;
  bool in_run = false;  // behind the token that was drawn last a run of forced ones goes on
  // While drafts are in flight: generated and proposed tokens, for penalties, and the masks of all
  // draws, for constraints.
  std::vector<TokenId> lookahead;
  std::vector<uint32_t> draft_masks;
  int32_t mask_draws = 0;  // in draft_masks
  size_t last_sample = 0;  // of the last step with draws of it, its last
  // The constraint has seen a token that is not collected yet; whether it allowed it.
  std::optional<bool> taken_early;
  DraftCounts drafts;
  bool alone = false;            // a step with it failed: its next one has nobody else in it
  bool lookup_counted = false;   // in the statistics of the prefix cache
  bool reads_generated = false;  // its penalties need every token before the next draw on the host
  // What its prompt's rows brought beside KV: the first position without a logprob, and the sum of
  // hidden states that were pooled.
  int32_t scored = 1;
  std::vector<double> pooled;
  // Of the last positions of a prefill-only one, in order and without gap, as its rows were
  // computed; the first of those positions.
  std::vector<float> features;
  int32_t features_from = 0;
  FeatureTail feature_tail;  // on its way into the cache of features
  // Of another one: the first position whose features its proposer has use for, and how many tokens
  // it came with.
  int32_t window_begin = 0;
  int32_t window_end = 0;
  bool publishes = true;  // its whole blocks, for others to match
  std::optional<Epoch> lease;
  // Names of its whole blocks in the lower tiers, where there are any; and while blocks of it are
  // fetched from one: what it waits for (0: nothing) and until when.
  std::vector<Hash128> tier_keys;
  uint64_t promotion = 0;
  Instant promotion_until = kNever;
  FairShare::Account* account = nullptr;  // of its tenant, until it ends
  SequenceTimes times;

  int32_t size() const { return static_cast<int32_t>(request.tokens.size()); }
  int32_t generated() const { return size() - request.prompt_tokens; }
  int64_t standing() const { return request.tenant.Standing(); }
  // When it no longer gives way to interactive ones; kNever: not by waiting.
  Instant ages_at() const {
    const TenantShare& tenant = request.tenant;
    const bool ages = Yields(tenant.service_class) && tenant.patience > Duration{};
    return ages ? times.added + tenant.patience : kNever;
  }
  // A remote reader copies from its blocks: it is never preempted, holds its KV until Release and
  // goes on at the reader's.
  bool has_reader() const { return request.kv_source == KvSource::kPrefillOnly; }
  // Whether its last token is computed too.
  bool samples() const { return !has_reader() || request.draws_first; }
  // Whether tokens are drawn at its end; else it ends with its last row.
  bool draws() const { return Draws(request); }
  bool scores() const { return request.prompt_logprobs >= 0 && scored < request.prompt_tokens; }
  // KV of positions before it may come from a cache: no other row's outputs are wanted.
  int32_t match_limit() const;
  // Tokens whose KV is wanted, those counted that steps in flight will draw.
  int32_t target() const {
    if (has_reader()) return samples() ? size() : size() - 1;
    return size() + samples_in_flight;
  }
};

// One tenant's order: smaller class, greater rank, then greater priority, then who came first.
bool Precedes(const Sequence& a, const Sequence& b);

class SequenceTable {
 public:
  explicit SequenceTable(int32_t max_slots);

  Sequence& Add(SequenceRequest request);
  // Null for ids that never were or have ended.
  Sequence* Find(SequenceId id) const;
  // Every sequence that has not ended, in no order.
  template <typename F>
  void ForEachAlive(F&& f) const {
    for (const auto& [id, s] : sequences_) {
      if (s->state != SequenceState::kEnded) f(*s);
    }
  }
  // Husks too.
  template <typename F>
  void ForEach(F&& f) const {
    for (const auto& [id, s] : sequences_) f(*s);
  }
  int32_t alive() const { return alive_; }
  // Another one after whatever changed which sequences there are and where they stand.
  uint64_t version() const { return version_; }
  // Aborts when a queue, a slot or a counter does not say what the sequences do.
  void CheckInvariants() const;

  // Moves between queues. kRunning takes a slot (there must be a free one), leaving it gives the
  // slot back.
  void SetState(Sequence& s, SequenceState state);
  // Counts as interactive from now on.
  void Promote(Sequence& s);
  // Forgets a husk without rows in flight.
  void Erase(Sequence& s);

  // What the tenants of all sequences that have not ended were given.
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
  // The times of the last few ended sequences, for whoever reports them after the final output.
  std::deque<SequenceId> ended_order_;
  std::unordered_map<SequenceId, SequenceTimes> ended_times_;
};

}  // namespace aisp
