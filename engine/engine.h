// Engine: one device's serving loop. Keeps sequences, blocks and the prefix index; plans steps
// (PlanStep), launches them on an Executor, collects them, and returns the outputs. No I/O, no
// peers.
//
// Thread: one. No locks. Clock injected. Only the executor blocks. Loop of the owner:
//   while (engine.CanLaunch()) engine.Launch();  ...  out = engine.Collect();
//
// With executor depth 2, step n+1 is launched before step n is collected. A sequence that finished
// in step n leaves at the end of n+1: its extra row is ignored and its blocks stay pinned until
// then.
//
// Ends that no step produces (a deadline, a sequence that can never fit, a prefill fully cached, a
// failed device) are returned by the next Collect: InFlight() is true while any is pending, also
// with no step on the device.
//
// Invariants: blocks are reserved before Launch; the blocks of a step in flight stay pinned until
// it is collected (by their sequence, or by kStep if it ended meanwhile); prefix blocks are
// published in Collect, RemoteFilled, PrefixFilled and PollTiers only; every Add ends in exactly
// one TokenOutput with a finish, unless Cancel or Release ended it (then none follows). No sequence
// is preempted while a step is in flight: the blocks that it frees may be enough.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/prefix_hash.h"
#include "common/prompt_work.h"
#include "common/result.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "engine/step_plan.h"
#include "kvcache/block_manager.h"
#include "kvcache/tiers/kv_tiers.h"

namespace aisp {

class Speculator;  // speculation/speculator.h

struct EngineOptions {
  ScheduleLimits limits;
  bool enable_prefix_cache = true;
  int32_t max_sequences_total = 1024;  // waiting + running; Add refuses beyond (RESOURCE_EXHAUSTED)
  std::string weights_digest;          // for the prefix root
  // Drafts tokens for running sequences; null: no drafts. Steps with drafts are not launched before
  // the last step's tokens are known; after a proposal that is worth no row, a few plain steps run
  // first.
  std::shared_ptr<Speculator> speculator;
  // Host memory for features of positions whose KV may be in the prefix cache; 0: none are kept,
  // and proposers begin after the prefix hit.
  size_t feature_cache_bytes = size_t{64} << 20;
  // Tiers for prefix blocks below the pool; none without TierOptions::io.
  TierOptions tiers;
  // StepInput::between_layers. May call anything allowed while a step is in flight, except Launch
  // and Collect.
  std::function<void()> between_layers;
};

// One sequence's draft tokens in one step.
struct VerifiedDraft {
  SequenceId sequence;
  int32_t drafted = 0;  // by a proposer
  int32_t accepted = 0;
  int32_t forced = 0;  // leading ones, from a constraint that allows only one text
  int32_t forced_accepted = 0;
};

struct StepTiming {
  uint64_t step = 0;
  int32_t prefill_tokens = 0;
  int32_t decode_rows = 0;
  // Positions whose KV is read, summed over prefill rows and over decode rows.
  int64_t prefill_context = 0;
  int64_t decode_context = 0;
  Duration duration{};  // launch to collect; includes the rest of an earlier step in flight
  Duration device{};  // of this step alone; by the executor, else from its earliest possible start
  Duration overhead{};  // host time outside the executor (planning, bookkeeping)
  Duration propose{};   // time in proposers before it
};

// Load of sequences that yield to interactive ones.
struct YieldingWork {
  int32_t rows = 0;    // running, waiting and awaiting KV
  int32_t blocks = 0;  // that would be freed
  PromptWork prefill;  // not yet computed, of waiting and running ones
};

// One step's part of a prompt's prefill.
struct PrefillChunk {
  Instant launched = kNever;
  Instant done = kNever;
  int32_t tokens = 0;
};

// A sequence's milestones, on the engine's clock; kNever: not reached.
struct SequenceTimes {
  // From this many on, the last chunk covers the rest.
  static constexpr size_t kMaxChunks = 32;

  Instant added = kNever;
  Instant first_scheduled = kNever;
  Instant prefill_done = kNever;  // KV of all but the last token is in the pool
  Instant first_token = kNever;
  int32_t cached_tokens = 0;
  int32_t preemptions = 0;
  std::vector<PrefillChunk> chunks;  // in order, up to the first token
};

struct CollectOutput {
  std::vector<TokenOutput> tokens;  // in row order; also a prefill-only sequence's first token
  std::vector<SequenceId>
      prefills_done;  // prefill-only sequences whose KV is complete; they hold it until Release
  StepTiming timing;
  std::vector<VerifiedDraft> drafts;  // of this step, those with at least one draft token
};

// A grant of blocks for a remote writer, sent by the decode role.
struct RemoteGrant {
  Epoch epoch;
  int32_t first_token = 0;  // multiple of block_tokens; KV before it was matched in the local cache
  std::vector<BlockId> blocks;  // for [first_token, tokens - 1], position tokens - 1 included
};

// Features (engine/executor.h) of a prompt's last positions, which may be sent with its KV.
struct PromptFeatures {
  int32_t begin = 0;            // first position
  std::span<const float> rows;  // [positions, feature_size]; empty: unknown
};

class Engine {
 public:
  Engine(const EngineOptions& options, Executor* executor, const Clock* clock, LayerSink* sink);
  ~Engine();

  // INVALID_ARGUMENT: values outside their range, or more tokens than the context or the pool
  // holds; UNIMPLEMENTED: masks, scores or hidden states that the executor lacks; UNAVAILABLE: its
  // adapter is not loaded; RESOURCE_EXHAUSTED: too many sequences; or the error of failed().
  Result<SequenceId> Add(SequenceRequest request);
  // Ends a sequence without output, at any time, and drops its pins (a step in flight keeps its own
  // until collected). Like every call with an id: no effect on a sequence that has ended.
  void Cancel(SequenceId id);

  // --- prefill-only sequences ---
  // Gated sequences that would be scheduled within the next `horizon_tokens` of prefill work, in
  // scheduling order.
  std::vector<SequenceId> UpcomingGated(int32_t horizon_tokens) const;
  // LayerSlices of an opened sequence cover [ComputedTokens after OpenGate, tokens - 1) without gap
  // or overlap; up to `tokens` if it draws, since its last token is always computed.

  // Allows it to run; it is never preempted. Matches the prefix and takes all blocks at once if
  // they are free; else it queues with ComputedTokens 0 and matches when it starts. If everything
  // is cached, the next Collect lists it in prefills_done.
  void OpenGate(SequenceId id);
  // Its block table, and the number of leading tokens whose KV is in the pool (own prefix hit
  // included); empty and 0 after its end.
  std::span<const BlockId> BlocksOf(SequenceId id) const;
  int32_t ComputedTokens(SequenceId id) const;
  // Elements of one position's features kept for readers (SequenceRequest::feature_window); 0:
  // none.
  int32_t FeatureSize() const;
  // Features kept for the reader, once all its KV is computed; none if the last position came from
  // a cache. Valid until the next non-const call.
  PromptFeatures FeaturesOf(SequenceId id) const;
  // The reader has all KV: the sequence ends, its blocks stay cached.
  void Release(SequenceId id);

  // --- remote-KV sequences ---
  // Tokens that a grant made now would exclude (whole cached blocks).
  int32_t LocalMatch(SequenceId id) const;
  // Matches again and reserves blocks, which carry the sequence's pins and a lease pin of the
  // returned epoch. NOT_FOUND: ended; FAILED_PRECONDITION: not waiting for a grant;
  // RESOURCE_EXHAUSTED: below the watermark. `with_token`: the first token is sent too; its block
  // is reserved here but is not part of the grant.
  Result<RemoteGrant> GrantRemote(SequenceId id, bool with_token = false);

  // All KV has arrived: the lease ends, whole blocks are published. With `drawn` (an id of the
  // vocabulary), the last token's KV has arrived too, and the output is returned; else the last
  // token runs as a decode row. `features` of the last positions go to its proposer.
  std::optional<TokenOutput> RemoteFilled(SequenceId id,
                                          std::optional<SampledToken> drawn = std::nullopt,
                                          const PromptFeatures& features = {});
  // How many of a remote sequence's last positions need features for its proposer; 0: none.
  int32_t FeatureWindow(SequenceId id) const;
  // The writer failed or was given up. The sequence drops granted blocks (quarantined until
  // EndLease) and either runs locally (`run_locally`) or waits for another grant.
  void RemoteFailed(SequenceId id, bool run_locally);
  // The writer of `epoch` acknowledged the end or is proven dead.
  void EndLease(Epoch epoch);

  // --- prefixes pulled from another worker ---
  // Blocks for the uncached part of tokens[0, end_token), whole blocks, under a lease of the
  // returned epoch. FAILED_PRECONDITION: all is cached. RESOURCE_EXHAUSTED: below the watermark.
  Result<RemoteGrant> GrantPrefix(const Hash128& root, std::span<const TokenId> tokens,
                                  int32_t end_token);
  // The granted blocks, until the grant ends.
  std::span<const BlockId> PrefixBlocks(Epoch epoch) const;
  // Whole blocks up to `end_token` have arrived: the lease ends, they are published and cached.
  void PrefixFilled(Epoch epoch, int32_t end_token);
  // Gives up the grant: its blocks stay quarantined until EndLease.
  void DropPrefix(Epoch epoch);

  // --- draft tokens ---

  // Draft tokens for a running sequence; its next step verifies up to limits.max_draft_rows of
  // them. Dropped while a token is in flight; cut before a stop token and where a constraint
  // forbids a token or ends. Not for owners that set EngineOptions::speculator.
  void Propose(SequenceId id, std::span<const TokenId> tokens);

  // --- tiers ---
  // Handles completed TierIo work: blocks return, and sequences that waited for them may start.
  // Call after each wake of TierIo.
  void PollTiers();
  // Null: no tiers.
  const KvTiers* tiers() const;
  // For another worker: starts to promote into the cache the whole blocks of these tokens that
  // lower tiers hold. No promotion: nothing there is faster than computing, or there is no room.
  KvTiers::Waiting PromotePrefix(const Hash128& root, std::span<const TokenId> tokens);
  // Blocks that a tier gained and lost since the last call, as BlockManager::TakeEvents; empty
  // without tiers.
  std::vector<KvCacheEvent> TakeTierEvents(TierPlace tier, uint64_t* first_sequence);

  // --- LoRA adapters ---
  // Most adapters loaded at once; 0: adapters are unsupported.
  int32_t AdapterPlaces() const;
  // Makes it available to sequences. RESOURCE_EXHAUSTED: every adapter slot is taken. No effect on
  // one that is loaded; one being dropped is kept.
  Status LoadAdapter(PackedAdapter adapter);
  // No new sequence may use it; its slot is freed when its last sequence has ended.
  void DropAdapter(std::string_view digest);
  bool HasAdapter(std::string_view digest) const;

  // --- the loop ---
  // There is work for a Launch, and fewer than max_depth steps are in flight.
  bool CanLaunch() const;
  // Plans, reserves, launches. If nothing can be launched (no free blocks), CanLaunch() is false
  // until something changes. Errors are the device's: see failed().
  Status Launch();
  // Whether Collect has something to return: a step in flight, or ends that no step produces.
  bool InFlight() const;
  // Whether Collect would return without waiting. Also reports finished layers to the sink.
  bool StepDone();
  // Waits for the oldest step in flight; requires InFlight().
  CollectOutput Collect();

  // Ends sequences past their deadline, in any state, with DEADLINE_EXCEEDED; the next Collect
  // returns the outputs. Collect does this too, so a timer calls it only while no step runs, at
  // NextDeadline().
  void Expire(Instant now);
  // Lower bound of all deadlines and tier wait limits; kNever: none.
  Instant NextDeadline() const;

  // Extends its deadline to at least `deadline`.
  void Prolong(SequenceId id, Instant deadline);

  // Set once the executor failed: every sequence has ended with an error, and Add refuses.
  const Status& failed() const;

  // Aborts on a violated invariant of sequences, queues, blocks, counters or steps in flight. Tests
  // and the simulation call it after every step.
  void CheckInvariants() const;

  // Valid until shortly after the sequence's final output was returned.
  SequenceTimes Times(SequenceId id) const;
  bool Alive(SequenceId id) const;
  int32_t NumRunning() const;
  int32_t NumWaiting() const;
  int32_t NumAwaitingKv() const;
  PromptWork QueuedPrefill() const;  // not yet computed, of waiting and running sequences
  YieldingWork Yielding() const;     // the yielding part of all these
  // How long the device has worked on the oldest step, if that has prefill rows; else zero.
  Duration PrefillAge() const;
  uint64_t Preemptions() const;
  // Null: no speculator.
  const Speculator* speculator() const;
  // Token ids are below it.
  int32_t vocabulary() const;
  // From the executor; entries are never removed, counts only grow.
  std::vector<SlowPathCount> SlowPaths() const;
  BlockManager& blocks();
  const BlockManager& blocks() const;
  // `adapter`: as in SequenceRequest; its KV is not shared with others.
  Hash128 RootOf(const std::string& cache_scope, const std::string& adapter = "") const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
