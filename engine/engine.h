// Engine: one device's serving loop. Keeps sequences, blocks and the prefix index; plans steps
// (PlanStep), launches them on an Executor, collects them, and says what came out. Does no I/O and
// knows no peer.
//
// Thread: one. No locks. Clock injected. Nothing blocks but the executor.
// Loop of the owner:   while (engine.CanLaunch()) engine.Launch();  ...  out = engine.Collect();
// With executor depth 2, step n+1 is launched before step n is collected; a sequence that turns out
// to have finished in step n leaves at the end of n+1, its extra row is ignored, its blocks stay
// pinned by the step until then.
//
// Ends that no step brings (a deadline, a sequence that can never fit, a prefill whose KV was
// cached altogether, a failed device) wait for the next Collect: InFlight() is true while any does,
// also with no step on the device.
//
// Invariants: blocks are reserved before Launch; the blocks of a step in flight stay pinned until
// it is collected (by their sequence, or by kStep where it ended meanwhile); prefix blocks are
// published in Collect and RemoteFilled only; every Add ends in exactly one TokenOutput with a
// finish, unless Cancel or Release ended it (then none follows). Nobody is preempted while a step
// is in flight: what that step frees may be enough.
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
  // Proposes tokens for running sequences; null: nobody does. Where steps are launched before the
  // tokens of the last one are known, those with proposed tokens are not, and a few plain ones go
  // by before the next proposal when none was worth a row.
  std::shared_ptr<Speculator> speculator;
  // Features of positions whose KV may be found in the prefix cache, in the host's memory; 0: none
  // are kept, and proposers begin behind what is found.
  size_t feature_cache_bytes = size_t{64} << 20;
  // Where prefix blocks go and come from beside the pool; without TierOptions::io nowhere.
  TierOptions tiers;
  // StepInput::between_layers. May call whatever of the engine may be called while a step is in
  // flight, but neither Launch nor Collect.
  std::function<void()> between_layers;
};

// One sequence's proposed tokens in one step.
struct VerifiedDraft {
  SequenceId sequence;
  int32_t drafted = 0;  // by a proposer
  int32_t accepted = 0;
  int32_t forced = 0;  // in front of them, by a constraint that leaves no other text
  int32_t forced_accepted = 0;
};

struct StepTiming {
  uint64_t step = 0;
  int32_t prefill_tokens = 0;
  int32_t decode_rows = 0;
  // Positions whose KV is read, summed over the rows of prompts and over those that decode.
  int64_t prefill_context = 0;
  int64_t decode_context = 0;
  Duration duration{};  // launch to collect: holds the rest of a step before that was in flight
  Duration device{};    // of this step alone; by the executor, else from when it could begin
  Duration overhead{};  // of it, outside the executor (planning, bookkeeping)
  Duration propose{};   // before it, in proposers
};

// What belongs to sequences that give way to interactive ones.
struct YieldingWork {
  int32_t rows = 0;    // running, waiting and awaiting KV
  int32_t blocks = 0;  // that would come back
  PromptWork prefill;  // of waiting and running ones, not computed yet
};

// A step's share of a prompt's prefill.
struct PrefillChunk {
  Instant launched = kNever;
  Instant done = kNever;
  int32_t tokens = 0;
};

// When a sequence passed its milestones, on the engine's clock; kNever where it has not.
struct SequenceTimes {
  // Beyond so many chunks the last one stands for the rest.
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
  std::vector<TokenOutput> tokens;  // in row order; what a prefill-only sequence drew too
  std::vector<SequenceId>
      prefills_done;  // prefill-only sequences whose KV is complete; they hold it until Release
  StepTiming timing;
  std::vector<VerifiedDraft> drafts;  // of this step, those with at least one token
};

// A grant of blocks for a remote writer, as the decode role passes it on.
struct RemoteGrant {
  Epoch epoch;
  int32_t first_token = 0;  // multiple of block_tokens; KV before it was matched in the local cache
  std::vector<BlockId> blocks;  // for [first_token, tokens - 1], position tokens - 1 included
};

// Features (engine/executor.h) of a prompt's last positions, which may travel with its KV.
struct PromptFeatures {
  int32_t begin = 0;            // the first of the positions
  std::span<const float> rows;  // [positions, feature_size]; empty: none are known
};

class Engine {
 public:
  Engine(const EngineOptions& options, Executor* executor, const Clock* clock, LayerSink* sink);
  ~Engine();

  // INVALID_ARGUMENT: empty, or longer than the context (both numbers) or than the whole pool could
  // ever hold; RESOURCE_EXHAUSTED: too many sequences.
  Result<SequenceId> Add(SequenceRequest request);
  // Ends a sequence silently, at any moment; drops its pins (a step in flight keeps its own until
  // collected). Like every call that names a sequence: nothing happens when it has ended already.
  void Cancel(SequenceId id);

  // --- prefill-only sequences ---
  // Gated ones that would be scheduled within the next `horizon_tokens` of prefill work, in the
  // order in which they would run.
  std::vector<SequenceId> UpcomingGated(int32_t horizon_tokens) const;
  // LayerSlices of an opened sequence cover [ComputedTokens after OpenGate, tokens - 1) without gap
  // or overlap; to tokens for one that draws, which computes its last token in any case.

  // May run from now on; it is never preempted. Matches the prefix and takes all blocks at once
  // where they are free, else it queues with ComputedTokens 0 and matches when it starts. When all
  // that is wanted is cached, prefills_done of the next Collect reports it.
  void OpenGate(SequenceId id);
  // Block table and number of leading tokens whose KV is in the pool (own prefix match included);
  // empty and 0 when it ended.
  std::span<const BlockId> BlocksOf(SequenceId id) const;
  int32_t ComputedTokens(SequenceId id) const;
  // Elements of the features that are kept for readers (SequenceRequest::feature_window); 0: none
  // are, whatever is asked for.
  int32_t FeatureSize() const;
  // Those that were kept, once all of its KV is computed; none where a cache had the last position.
  // Valid until the next call that is not const.
  PromptFeatures FeaturesOf(SequenceId id) const;
  // The reader has everything: the sequence ends, its blocks stay cached.
  void Release(SequenceId id);

  // --- remote-KV sequences ---
  // Tokens that a grant made now would not need to be sent (whole cached blocks).
  int32_t LocalMatch(SequenceId id) const;
  // Matches again and reserves; RESOURCE_EXHAUSTED when it would go below the watermark. The blocks
  // carry the sequence's pins and a lease pin of the returned epoch. `with_token`: the writer shall
  // bring the first token too; the block of that is reserved here, and is no part of the grant.
  Result<RemoteGrant> GrantRemote(SequenceId id, bool with_token = false);

  // All KV arrived: the lease ends, whole blocks are published. With `drawn`, a token of the
  // vocabulary, KV of the last token came too: the sequence goes on as if a step had drawn it, and
  // the output is returned; else it runs its last token as a decode row. Its proposer begins with
  // `features`, which are of positions up to the last whose KV has come.
  std::optional<TokenOutput> RemoteFilled(SequenceId id,
                                          std::optional<SampledToken> drawn = std::nullopt,
                                          const PromptFeatures& features = {});
  // Of how many of a remote sequence's last positions its proposer has use for features; 0: none.
  int32_t FeatureWindow(SequenceId id) const;
  // The writer failed or is given up: the sequence drops granted blocks (they stay quarantined
  // until EndLease) and becomes either a local one (`run_locally`) or awaits another grant.
  void RemoteFailed(SequenceId id, bool run_locally);
  // The writer of `epoch` acknowledged or is proven dead.
  void EndLease(Epoch epoch);

  // --- prefixes that another worker holds ---
  // Blocks for what the cache lacks of tokens[0, end_token), whole blocks, under a lease of the
  // returned epoch. FAILED_PRECONDITION: it lacks nothing. RESOURCE_EXHAUSTED when it would go
  // below the watermark.
  Result<RemoteGrant> GrantPrefix(const Hash128& root, std::span<const TokenId> tokens,
                                  int32_t end_token);
  // The granted blocks, while the grant is not over.
  std::span<const BlockId> PrefixBlocks(Epoch epoch) const;
  // It arrived up to `end_token`, whole blocks: the lease ends, these are published and cached.
  void PrefixFilled(Epoch epoch, int32_t end_token);
  // The grant is given up: the blocks stay quarantined until EndLease.
  void DropPrefix(Epoch epoch);

  // --- proposed tokens ---

  // What is likely to follow the last token of a running sequence. Its next step verifies as many
  // as limits.max_draft_rows allows, in rows of the same step. Forgotten where a token is still in
  // flight; cut off before a stop token and where a constraint forbids or ends. With a Speculator
  // in the options, the owner does not call this.
  void Propose(SequenceId id, std::span<const TokenId> tokens);

  // --- tiers ---
  // What TierIo has finished: blocks come back, sequences that waited for them may start. To be
  // called after each wake of TierIo.
  void PollTiers();
  // Null without any.
  const KvTiers* tiers() const;
  // For another worker: begins to bring what lower tiers hold of these tokens, in whole blocks,
  // into the cache. No promotion: nothing is there that is faster than computing, or there is no
  // room.
  KvTiers::Waiting PromotePrefix(const Hash128& root, std::span<const TokenId> tokens);
  // What a tier took and lost since the last call, as BlockManager::TakeEvents; none without tiers.
  std::vector<KvCacheEvent> TakeTierEvents(TierPlace tier, uint64_t* first_sequence);

  // --- LoRA adapters ---
  // How many there may be; 0: none are served.
  int32_t AdapterPlaces() const;
  // Sequences may name it from now on. RESOURCE_EXHAUSTED: every place is taken. Nothing is done
  // for one that is there; one that leaves stays then.
  Status LoadAdapter(PackedAdapter adapter);
  // No new sequence with it; its place is free when the last one that has it is over.
  void DropAdapter(std::string_view digest);
  bool HasAdapter(std::string_view digest) const;

  // --- the loop ---
  // Something to compute that a Launch could start, and fewer than max_depth steps in flight.
  bool CanLaunch() const;
  // Plans, reserves, launches. It may turn out that nothing can be launched (no block for anybody):
  // then CanLaunch() is false until something changes. An error is the device's: see failed().
  Status Launch();
  // Collect has something: a step on the device, or ends that no step brings.
  bool InFlight() const;
  // Whether Collect would return without waiting. Finished layers go to the sink here too.
  bool StepDone();
  // Waits for the oldest step in flight; requires InFlight().
  CollectOutput Collect();

  // Ends what is past its deadline, in any state, with DEADLINE_EXCEEDED; the outputs come with the
  // next Collect. Collect does it too, so a timer needs to call it only while no step runs, at
  // NextDeadline().
  void Expire(Instant now);
  // No sequence has an earlier deadline, nor stops waiting for a tier before (there may be none at
  // it any more); kNever without any.
  Instant NextDeadline() const;

  // It has until then at least. Nothing when it has ended.
  void Prolong(SequenceId id, Instant deadline);

  // Set once the executor failed; every sequence ended with an error output, Add refuses.
  const Status& failed() const;

  // Checks everything and aborts on a violated invariant: sequences and their queues, blocks,
  // counters, steps in flight. Tests and the simulation call it after every step.
  void CheckInvariants() const;

  SequenceTimes Times(SequenceId id)
      const;  // valid until the sequence's final output was returned and a little after
  bool Alive(SequenceId id) const;
  int32_t NumRunning() const;
  int32_t NumWaiting() const;
  int32_t NumAwaitingKv() const;
  PromptWork QueuedPrefill() const;  // of waiting and running sequences, not computed yet
  YieldingWork Yielding() const;     // of all these
  // Since when the device works at the oldest step, where that holds rows of prompts; else zero.
  Duration PrefillAge() const;
  uint64_t Preemptions() const;
  // Null without one.
  const Speculator* speculator() const;
  // Token ids are below it.
  int32_t vocabulary() const;
  // Of the executor; entries are never taken away, counts only grow.
  std::vector<SlowPathCount> SlowPaths() const;
  BlockManager& blocks();
  const BlockManager& blocks() const;
  // `adapter`: as in SequenceRequest; its KV is of use to no other.
  Hash128 RootOf(const std::string& cache_scope, const std::string& adapter = "") const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
