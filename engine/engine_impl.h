// The inside of Engine, in thirteen parts: engine.cc (queries), admission.cc (sequences are added,
// wait and end), launch.cc (plan, reserve, launch), turns.cc (how
// much prefill shares a step with decodes), collect.cc (results of a finished step),
// outputs.cc (logprobs and embeddings of rows), drafts.cc (draft tokens), features.cc (features of
// computed positions), remote.cc (blocks that others fill or read), pulled.cc (prefixes that others
// fill), tiered.cc (blocks from lower tiers), adapters.cc (LoRA adapters), invariants.cc (invariant
// checks). Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/feature_cache.h"
#include "engine/sequence_table.h"
#include "speculation/speculator.h"

namespace aisp {

// One step on the device: the executor's input (which it may read until the step is collected) and
// the sequence of each row. Reused, so that steps allocate nothing once the vectors have grown.
struct StepRecord {
  struct Entry {
    Sequence* sequence = nullptr;
    int32_t end = 0;       // tokens in the KV after this step, including draft rows
    int32_t draws = 0;     // 0: none
    int32_t drafts = 0;    // of its last rows: those that verify a draft token
    int32_t scored = 0;    // rows that are scored
    int32_t hidden = 0;    // rows whose hidden states are wanted
    int32_t features = 0;  // of its last rows: those whose features are wanted
    // Of the feature rows, those before position `kept_end` whose features go to the host.
    int32_t kept = 0;
    int32_t kept_end = 0;
  };
  // A draw whose mask depends on a token still being drawn by the previous step: the mask is made
  // between this step's forward pass and its draws.
  struct LateMask {
    Sequence* sequence = nullptr;
    size_t sample = 0;  // index in this step
    size_t before = 0;  // the sequence's sample in the previous step
  };

  uint64_t step = 0;
  Ticket ticket;
  Instant launched;
  Duration overhead{};
  std::vector<Entry> entries;
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> slot_of_row;
  std::vector<int32_t> adapter_of_row;
  bool adapts = false;  // some row has an adapter
  std::vector<SequenceRows> sequences;
  std::vector<int32_t> block_tables;
  std::vector<int32_t> logit_rows;
  std::vector<SampleRow> samples;
  std::vector<ScoredRow> scored;
  std::vector<int32_t> hidden_rows;
  std::vector<int32_t> feature_rows;
  std::vector<int32_t> kept_rows;
  std::vector<LayerSlice> slices;
  std::vector<CopiedBlock> copies;
  std::vector<LateMask> late_masks;
  std::optional<Result<StepResult>> result;  // collected early, for the next step's late masks
  StepTiming timing;
  double added_ms = 0;  // predicted, by its prefill rows

  void Clear();
};

struct Engine::Impl {
  Impl(const EngineOptions& options, Executor* executor, const Clock* clock, LayerSink* sink);

  // --- admission.cc ---
  Result<SequenceId> Add(SequenceRequest request);
  Status Validate(const SequenceRequest& request) const;
  Status ValidateOutputs(const SequenceRequest& request) const;
  // Not kNone: the request is already complete (a takeover with nothing left to draw).
  static FinishReason FinishedAtStart(const SequenceRequest& request);
  void Cancel(SequenceId id);
  void Expire(Instant now);
  // Sequences that have waited long enough for their class count as interactive from now on.
  void Age(Instant now);
  // Leaves every queue and drops its pins, or turns them into kStep pins while rows are in flight.
  void End(Sequence& s);
  void EndWith(Sequence& s, FinishReason finish, Error error = {}, Fault fault = Fault::kRequest);
  // Ends it with RESOURCE_EXHAUSTED if even an otherwise empty pool is too small.
  bool EndIfNeverFits(Sequence& s);
  void Preempt(Sequence& s);
  void DropBlocks(Sequence& s);
  // Handles a failed step that is no longer in `flight`: ends the sequence at fault, or makes each
  // suspect run alone.
  void FailStep(const StepRecord& step, const Error& error);
  // Calls FailStep or FailAll, depending on the error.
  void OnStepError(const StepRecord& step, const Error& error, const char* when);
  // The executor failed: ends all sequences and drops the steps in flight.
  void FailAll(const Error& error);

  // --- launch.cc ---
  bool CanLaunch() const;
  Status Launch();
  void BuildSnapshot();
  void AddRunningViews();
  void AddWaitingViews();
  bool Schedulable(const Sequence& s) const;
  SequenceView ViewOf(const Sequence& s);
  // Its index in `tenants`; added with the tenant's first sequence.
  int32_t TenantOf(FairShare::Account& account);
  void ViewMatch(const Sequence& s, SequenceView* view) const;
  // Whether `leader` is about to compute and publish most of what `s` needs beyond `cached` tokens.
  bool ComputesPrefixOf(const Sequence& leader, const Sequence& s, int32_t cached) const;
  bool WaitsForPrefix(const Sequence& s, int32_t cached) const;
  static bool GoesBefore(const Sequence& a, const Sequence& b);
  bool StartOverStuck();
  // After a failed step: keeps only one suspect in `views`, and none while a step is in flight.
  void IsolateSuspect();
  bool Apply(const PlannedSequence& planned, StepRecord& step);
  bool Start(Sequence& s, const PlannedSequence& planned);
  bool Grow(Sequence& s, int32_t new_blocks);
  SequenceRows AppendTokens(const Sequence& s, int32_t begin, int32_t end, int32_t drafts,
                            StepRecord& step) const;
  void AppendRows(Sequence& s, const PlannedSequence& planned, StepRecord& step);
  // Draws the token at `position` from row `row` of the step; `draw`: index among this sequence's
  // draws.
  void AppendSample(Sequence& s, int32_t position, int32_t row, int32_t draw, StepRecord& step);
  // Adds scored, hidden-state and feature rows, and counts them in `entry`.
  static void AppendOutputs(const Sequence& s, const SequenceRows& rows, StepRecord& step,
                            StepRecord::Entry* entry);
  // False when the step failed; `failed` says whether the device did.
  bool Execute(StepRecord& step, Instant begin);
  // Collects the previous step and makes the masks that depend on its tokens.
  void MakeLateMasks(StepRecord& step);

  // --- turns.cc ---
  // Most prefill rows of the next step, if it decodes, so that streams keep their TPOT.
  int32_t PrefillTokens(Instant now);
  void AddStreams(Instant now);
  void AddPrompts(Instant now);
  // Predicted time by which its prefill rows prolong a step that decodes.
  double AddedMs(const StepTiming& timing) const;

  // --- collect.cc ---
  CollectOutput Collect();
  Duration CycleOf(const StepRecord& step, Instant now) const;
  // Reports the cost of steps without prefill to the speculator.
  void ReportCost(const StepRecord& step, Instant now) const;
  static void NoteChunk(SequenceTimes& times, Instant launched, Instant done, int32_t tokens);
  // Cursors into a step's results, as its sequences consume them in order.
  struct Brought {
    SampledToken* sampled;
    RowScore* scores;
    const float* hidden;
    const std::byte* features;
    const float* kept;
  };
  // Distributes the results to the sequences, and features to the proposer.
  void AbsorbAll(const StepRecord& step, StepResult& result, Instant now, CollectOutput* out);
  void Absorb(const StepRecord& step, const StepRecord::Entry& entry, const Brought& brought,
              Instant now, CollectOutput* out);
  // outputs.cc. False: it ended.
  bool AbsorbScores(Sequence& s, std::span<RowScore> scores, CollectOutput* out);
  void AbsorbHidden(Sequence& s, const float* hidden, int32_t rows);
  // Ends a sequence whose rows are all done and that draws nothing.
  void FinishOutputs(Sequence& s, Instant now, CollectOutput* out);
  void AbsorbDraws(Sequence& s, const StepRecord::Entry& entry, SampledToken* sampled, Instant now,
                   CollectOutput* out);
  // A prefill-only sequence is done, and may have drawn.
  void HandToReader(Sequence& s, SampledToken* sampled, Instant now, CollectOutput* out);
  // False: it ended.
  bool AbsorbToken(Sequence& s, SampledToken& sampled, Instant now, std::vector<TokenOutput>* out);
  // False: the sequence's constraint does not allow the token.
  static bool TakeToken(Sequence& s, TokenId token);
  void ForgetSourceBlocks(const Sequence& s);
  void PublishWholeBlocks(Sequence& s);
  void ReleaseHusk(Sequence& s);

  // --- remote.cc ---
  std::vector<SequenceId> UpcomingGated(int32_t horizon_tokens) const;
  void OpenGate(SequenceId id);
  // Matches and reserves all blocks of `s`, or changes nothing. `match_limit` in tokens; at least
  // `keep_free` blocks remain free.
  bool TakeBlocks(Sequence& s, int32_t tokens, int32_t match_limit, int32_t keep_free);
  // Tokens after the `matched` ones that a copy-on-write of `partial` would supply; 0: no copy.
  int32_t CopiedTokens(const Sequence& s, int32_t matched, int32_t match_limit,
                       const PartialMatch& partial) const;
  // The copy is done: its source may be evicted.
  void EndCopy(Sequence& s);
  // Cancels the copy, if not done or if its target block is given up.
  void DropCopy(Sequence& s);
  void Release(SequenceId id);
  int32_t LocalMatch(SequenceId id) const;
  Result<RemoteGrant> GrantRemote(SequenceId id, bool with_token);
  std::optional<TokenOutput> RemoteFilled(SequenceId id, std::optional<SampledToken> drawn,
                                          const PromptFeatures& features);
  void RemoteFailed(SequenceId id, bool run_locally);
  void EndLease(Epoch epoch);

  // --- pulled.cc ---
  Result<RemoteGrant> GrantPrefix(const Hash128& root, std::span<const TokenId> tokens,
                                  int32_t end_token);
  std::span<const BlockId> PrefixBlocks(Epoch epoch) const;
  void PrefixFilled(Epoch epoch, int32_t end_token);
  void DropPrefix(Epoch epoch);

  // --- tiered.cc ---
  // Starts to fetch blocks of its prompt from lower tiers; it waits if that is faster than
  // computing.
  void AskTiers(Sequence& s);
  KvTiers::Waiting PromotePrefix(const Hash128& root, std::span<const TokenId> tokens);
  void OfferToTiers(Sequence& s, int32_t first, int32_t whole);
  void PollTiers();
  void ExpireTierWaits(Instant now);
  void NotePrefillRate(const StepTiming& timing);

  int32_t BlockTokens() const { return executor->kv_layout().block_tokens; }
  int32_t BlocksFor(int32_t tokens) const { return executor->kv_layout().BlocksFor(tokens); }
  int32_t Watermark() const;
  // Counts sequences for which `counts` is true (engine.cc).
  template <typename Counts>
  PromptWork QueuedPrefill(const Counts& counts) const;
  Hash128 RootOf(const std::string& cache_scope, const std::string& adapter) const;

  // --- drafts.cc ---
  void Propose(SequenceId id, std::span<const TokenId> tokens);
  // Cut to the vocabulary and to what the sequence may still draw.
  void SetDraft(Sequence& s, std::span<const TokenId> tokens) const;
  bool MayDraft(const Sequence& s) const;
  bool AsksProposer(const Sequence& s) const;
  // Whether text that its constraint forces is drafted.
  bool AsksForRuns(const Sequence& s) const;
  void NoteRun(Sequence& s) const;
  void ProposeRun(Sequence& s, SpeculativeSequence* out) const;
  // Asks constraints and the speculator for drafts of every decoding sequence.
  void ProposeAll();
  void ListDecodes();
  // Fills `drafting`, and `shape` with the step's size without drafts.
  void ListDrafting(VerifyStep* shape);
  // Whether the next step may hold draft tokens, so that the step in flight is collected first.
  bool AwaitsTokens() const;
  int32_t DraftsOf(const Sequence& s) const;
  // Prepares the tokens and masks that draws after draft tokens read.
  void PrepareDraws(Sequence& s, int32_t drafts);
  // `next`: the token drawn after the accepted ones equals the next draft token, which had no row.
  void NoteVerified(Sequence& s, std::span<const TokenId> draft, int32_t drafted, int32_t accepted,
                    bool next, CollectOutput* out);
  void NotifyProposersOfEnd(const Sequence& s);
  static DraftContext ContextOf(const Sequence& s);

  // --- features.cc ---
  // Whether the speculator wants the features of its rows.
  bool GivesFeatures(const Sequence& s) const;
  // Of the rows of positions [begin, end), how many of the last have features that the speculator
  // or a reader wants.
  int32_t FeatureRows(const Sequence& s, int32_t begin, int32_t end) const;
  // Appends the entry's feature rows; `row_end`: one past its last row in the step.
  void AppendFeatures(const Sequence& s, int32_t begin, int32_t row_end, StepRecord& step,
                      StepRecord::Entry* entry) const;
  int32_t FeatureSize() const;
  int32_t FeatureWindow(SequenceId id) const;
  PromptFeatures FeaturesOf(SequenceId id) const;
  // The first position whose features the speculator or a reader can use.
  int32_t FirstWanted(const Sequence& s) const;
  // Whether its features are cached for later prompts with the same prefix.
  bool KeepsFeatures(const Sequence& s) const;
  // Cached features of positions before `end`; at most one window of them.
  FeatureRun KeptFeatures(const Sequence& s, int32_t end);
  void KeepFeatures(Sequence& s, int32_t begin, std::span<const float> rows);
  // For a sequence that ends in this step: caches the features that the step computed.
  void KeepArriving(Sequence& s);
  void KeepForReader(Sequence& s, int32_t begin, std::span<const float> rows) const;
  void DeliverFeatures(const Sequence& s, FeatureRun run);
  // Passes all deliveries to the proposer.
  void Deliver();
  // Passes on the cached features of a prefix hit.
  void TakeKeptFeatures(Sequence& s);
  // Passes on the features of a prompt that another worker computed.
  void TakeFeatures(Sequence& s, const PromptFeatures& features);
  // Passes on the features of accepted rows. `features`: of all the entry's rows; `kept`: those
  // copied to the host. The sequence may have ended.
  void NoteFeatures(SequenceId id, const StepRecord::Entry& entry,
                    std::span<const std::byte> features, std::span<const float> kept);

  // --- adapters.cc ---
  Status LoadAdapter(PackedAdapter adapter);
  void DropAdapter(std::string_view digest);
  bool HasAdapter(std::string_view digest) const;
  // Empties the slots of dropped adapters that no sequence uses any more.
  void FreeAdapters();

  // --- invariants.cc ---
  void CheckInvariants() const;
  void CheckSequence(const Sequence& s) const;

  const EngineOptions options;
  Executor* const executor;
  const Clock* const clock;
  LayerSink* const sink;
  const ScheduleLimits limits;  // the options', limited to what the executor can do
  BlockManager blocks;
  SequenceTable table;
  Status failed;

  std::vector<StepRecord> ring;    // max_depth of them
  std::deque<StepRecord*> flight;  // oldest first
  uint64_t next_step = 1;
  uint64_t launched = 0;  // steps; those that failed to start leave no record
  uint64_t next_epoch = 1;
  uint64_t preemptions = 0;
  int suspects = 0;              // sequences that run alone next
  int step_failures_in_row = 0;  // step failures since the last success
  // The state when a plan found nothing to launch, or had to wait for a Collect before it preempts.
  // CanLaunch() is false while it is unchanged.
  struct Standstill {
    uint64_t table = 0;      // SequenceTable::version
    uint64_t collected = 0;  // steps, failed ones included
    uint64_t tier_waits = 0;
    bool tiers_busy = false;
    int32_t available = 0, leased = 0;
    bool operator==(const Standstill&) const = default;
  };
  Standstill Now() const {
    return {table.version(),        collected,          tier_waits_ended,
            tiers && tiers->Busy(), blocks.Available(), blocks.LeasedBlocks()};
  }
  std::optional<Standstill> blocked;
  uint64_t collected = 0;
  Instant next_deadline = kNever;
  Instant next_aging = kNever;
  // A prefix with granted blocks that are not filled yet.
  struct PulledPrefix {
    Hash128 root;
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;  // the whole prefix, pinned with kTier
    int32_t matched = 0;          // leading blocks that are published here already
    bool publishes = true;
  };
  std::map<Epoch, PulledPrefix> pulled;
  std::optional<FeatureCache> feature_cache;
  std::optional<KvTiers> tiers;
  Instant tier_deadline = kNever;  // lower bound of all tier wait limits
  uint64_t tier_waits_ended = 0;

  // Digests of dropped adapters, which accept no new sequence.
  std::set<std::string, std::less<>> leaving_adapters;

  std::vector<TokenOutput> pending_tokens;
  std::vector<SequenceId> pending_prefills_done;

  StepPlanner planner;
  std::optional<StepCost> step_cost;  // the latest that a router told
  PrefillTurn turn;
  std::vector<SequenceView> views;
  std::vector<TenantView> tenants;
  PlaceShares places;                       // batch slots, of the snapshot
  std::vector<FairShare::Account*> listed;  // in the order of `tenants`
  std::vector<const Sequence*>
      starting;  // while views are built: sequences that may start in this step
  std::vector<Sequence*> scratch;
  std::vector<Sequence*> decodes;  // while drafts are made
  std::vector<SpeculativeSequence> drafting;
  std::vector<ComputedRows> computed_rows;  // while a step is collected
  // Features that the step computed for the sequence being processed.
  struct Arriving {
    SequenceId sequence;
    int32_t begin = 0;
    std::span<const float> features;
  };
  Arriving arriving;
  // Features to pass to the proposer before the next step's, of sequences with no computed rows
  // yet.
  struct Delivery {
    SequenceId sequence;
    FeatureRun run;
  };
  std::vector<Delivery> deliveries;
  Duration propose_time{};   // before the next step
  int32_t plain_steps = 0;   // to launch before the next proposals
  Instant last_collected{};  // time of the last Collect
  bool runs_on = false;      // there has been work without a pause since the last Collect
};

}  // namespace aisp
