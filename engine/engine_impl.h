// The inside of Engine, in twelve parts: engine.cc (queries), admission.cc (how sequences come,
// wait and end), launch.cc (plan, reserve, hand to the executor), collect.cc (what a finished step
// means), outputs.cc (what rows bring beside draws), drafts.cc (what is proposed), features.cc
// (what proposers read of computed positions), remote.cc (blocks that others fill or read),
// pulled.cc (prefixes that others fill), tiered.cc (blocks from lower tiers), adapters.cc (LoRA
// adapters come and go), invariants.cc (what always holds). Engine thread only.
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

// One step on the device: what the executor was given (it may read it until the step is collected)
// and whom the rows belong to. Kept and reused, so that a step allocates nothing once the vectors
// have grown.
struct StepRecord {
  struct Entry {
    Sequence* sequence = nullptr;
    int32_t end = 0;       // tokens in the KV after this step, those of drafted rows too
    int32_t draws = 0;     // 0: none
    int32_t drafts = 0;    // of its last rows: those that verify a proposed token
    int32_t scored = 0;    // rows that are scored
    int32_t hidden = 0;    // rows whose hidden states are wanted
    int32_t features = 0;  // of its last rows: those whose features are wanted
    // Of these, the ones in front of position `kept_end` whose features come to the host.
    int32_t kept = 0;
    int32_t kept_end = 0;
  };
  // A draw whose mask depends on the token that the step before still draws: the mask is made
  // between this step's forward pass and its draws.
  struct LateMask {
    Sequence* sequence = nullptr;
    size_t sample = 0;  // of this step
    size_t before = 0;  // the sequence's sample of the step before
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
  std::optional<Result<StepResult>> result;  // there already, for the late masks of the step after
  StepTiming timing;

  void Clear();
};

struct Engine::Impl {
  Impl(const EngineOptions& options, Executor* executor, const Clock* clock, LayerSink* sink);

  // --- admission.cc ---
  Result<SequenceId> Add(SequenceRequest request);
  Status Validate(const SequenceRequest& request) const;
  Status ValidateOutputs(const SequenceRequest& request) const;
  // True when the request is complete as it came (a takeover with nothing left to draw).
  static FinishReason FinishedAtStart(const SequenceRequest& request);
  void Cancel(SequenceId id);
  void Expire(Instant now);
  // Who has waited long enough for its class counts as interactive from now on.
  void Age(Instant now);
  // Out of every queue; drops its pins, or turns them into kStep pins while rows are in flight.
  void End(Sequence& s);
  void EndWith(Sequence& s, FinishReason finish, Error error = {}, Fault fault = Fault::kRequest);
  // Ends with RESOURCE_EXHAUSTED if a pool of its own would not be enough.
  bool EndIfNeverFits(Sequence& s);
  void Preempt(Sequence& s);
  void DropBlocks(Sequence& s);
  // A step failed that is no longer in `flight`: ends the sequence whose fault it is, or lets those
  // that may be it run alone.
  void FailStep(const StepRecord& step, const Error& error);
  // Why a step failed becomes what happens: FailStep or FailAll.
  void OnStepError(const StepRecord& step, const Error& error, const char* when);
  // The executor failed: ends everything, forgets the steps in flight.
  void FailAll(const Error& error);

  // --- launch.cc ---
  bool CanLaunch() const;
  Status Launch();
  void BuildSnapshot();
  void AddRunningViews();
  void AddWaitingViews();
  bool Schedulable(const Sequence& s) const;
  SequenceView ViewOf(const Sequence& s);
  // Where it stands in `tenants`; it is listed with the first sequence that has it.
  int32_t TenantOf(FairShare::Account& account);
  void ViewMatch(const Sequence& s, SequenceView* view) const;
  // Whether `leader` is about to compute and publish most of what `s` would compute beyond `cached`
  // tokens.
  bool Leads(const Sequence& leader, const Sequence& s, int32_t cached) const;
  bool Follows(const Sequence& s, int32_t cached) const;
  static bool GoesBefore(const Sequence& a, const Sequence& b);
  bool StartOverStuck();
  // After a failed step: leaves only one of the suspects in `views`; nobody while a step is in
  // flight.
  void IsolateSuspect();
  bool Apply(const PlannedSequence& planned, StepRecord& step);
  bool Start(Sequence& s, const PlannedSequence& planned);
  bool Grow(Sequence& s, int32_t new_blocks);
  SequenceRows AppendTokens(const Sequence& s, int32_t begin, int32_t end, int32_t drafts,
                            StepRecord& step) const;
  void AppendRows(Sequence& s, const PlannedSequence& planned, StepRecord& step);
  // Draws the token at `position`, from row `row` of the step; the draw-th of this sequence.
  void AppendSample(Sequence& s, int32_t position, int32_t row, int32_t draw, StepRecord& step);
  // What is wanted of rows beside draws: `entry` counts them.
  static void AppendOutputs(const Sequence& s, const SequenceRows& rows, StepRecord& step,
                            StepRecord::Entry* entry);
  // False when the step failed; `failed` says whether the device did.
  bool Execute(StepRecord& step, Instant begin);
  // Waits for the step before `step` and makes the masks that depend on its tokens.
  void MakeLateMasks(StepRecord& step);

  // --- collect.cc ---
  CollectOutput Collect();
  Duration CycleOf(const StepRecord& step, Instant now) const;
  // The speculator hears of steps without prompts.
  void ReportCost(const StepRecord& step, Instant now) const;
  static void NoteChunk(SequenceTimes& times, Instant launched, Instant done, int32_t tokens);
  // What a step brought, as it is handed to its sequences one after the other.
  struct Brought {
    SampledToken* sampled;
    RowScore* scores;
    const float* hidden;
    const std::byte* features;
    const float* kept;
  };
  // Hands it to all of them, and tells the proposer.
  void AbsorbAll(const StepRecord& step, StepResult& result, Instant now, CollectOutput* out);
  void Absorb(const StepRecord& step, const StepRecord::Entry& entry, const Brought& brought,
              Instant now, CollectOutput* out);
  // outputs.cc. False: it ended.
  bool AbsorbScores(Sequence& s, std::span<RowScore> scores, CollectOutput* out);
  void AbsorbHidden(Sequence& s, const float* hidden, int32_t rows);
  // All its rows are done and nothing is drawn.
  void FinishOutputs(Sequence& s, Instant now, CollectOutput* out);
  void AbsorbDraws(Sequence& s, const StepRecord::Entry& entry, SampledToken* sampled, Instant now,
                   CollectOutput* out);
  // A prefill-only sequence is done, and may have drawn.
  void HandToReader(Sequence& s, SampledToken* sampled, Instant now, CollectOutput* out);
  // False: it ended.
  bool AbsorbToken(Sequence& s, SampledToken& sampled, Instant now, std::vector<TokenOutput>* out);
  // False: the sequence's constraint does not allow the token.
  static bool TakeToken(Sequence& s, TokenId token);
  void Distrust(const Sequence& s);
  void PublishWholeBlocks(Sequence& s);
  void ReleaseHusk(Sequence& s);

  // --- remote.cc ---
  std::vector<SequenceId> UpcomingGated(int32_t horizon_tokens) const;
  void OpenGate(SequenceId id);
  // Matches and reserves all blocks of `s`, or changes nothing. `match_limit` in tokens;
  // `keep_free` blocks are left.
  bool TakeBlocks(Sequence& s, int32_t tokens, int32_t match_limit, int32_t keep_free);
  // How many tokens behind the `matched` ones a copy of `partial` would bring; 0: none is made.
  int32_t CopiedTokens(const Sequence& s, int32_t matched, int32_t match_limit,
                       const PartialMatch& partial) const;
  // The copy is made: its source may be evicted.
  void EndCopy(Sequence& s);
  // The copy is not made, or the block that it was made into is given up.
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
  // Starts to fetch what lower tiers hold of its prompt; it waits for that, where it is worth it.
  void AskTiers(Sequence& s);
  KvTiers::Waiting PromotePrefix(const Hash128& root, std::span<const TokenId> tokens);
  void OfferToTiers(Sequence& s, int32_t first, int32_t whole);
  void PollTiers();
  void ExpireTierWaits(Instant now);
  void NotePrefillRate(const StepTiming& timing);

  int32_t BlockTokens() const { return executor->kv_layout().block_tokens; }
  int32_t BlocksFor(int32_t tokens) const { return executor->kv_layout().BlocksFor(tokens); }
  int32_t Watermark() const;
  // Of sequences that `counts` (engine.cc).
  template <typename Counts>
  PromptWork QueuedPrefill(const Counts& counts) const;
  Hash128 RootOf(const std::string& cache_scope, const std::string& adapter) const;

  // --- drafts.cc ---
  void Propose(SequenceId id, std::span<const TokenId> tokens);
  // Cut to what the model knows and the sequence could draw.
  void SetDraft(Sequence& s, std::span<const TokenId> tokens) const;
  bool MayDraft(const Sequence& s) const;
  bool AsksProposer(const Sequence& s) const;
  // Whether what its constraint leaves one text for is proposed.
  bool AsksForRuns(const Sequence& s) const;
  void NoteRun(Sequence& s) const;
  void ProposeRun(Sequence& s, SpeculativeSequence* out) const;
  // Asks constraints and the speculator for every sequence that decodes.
  void ProposeAll();
  void ListDecodes();
  // Fills `drafting`, and what the step is without drafts.
  void ListDrafting(VerifyStep* shape);
  // Whether the next step may hold proposed tokens, so that the one in flight is collected first.
  bool AwaitsTokens() const;
  int32_t DraftsOf(const Sequence& s) const;
  // What the draws behind proposed tokens read of those before them.
  void PrepareDraws(Sequence& s, int32_t drafts);
  // `next`: the token drawn behind the accepted ones is the next proposed one, which had no row.
  void NoteVerified(Sequence& s, std::span<const TokenId> draft, int32_t drafted, int32_t accepted,
                    bool next, CollectOutput* out);
  void NotifyProposersOfEnd(const Sequence& s);
  static DraftContext ContextOf(const Sequence& s);

  // --- features.cc ---
  // Whether the speculator wants the features of its rows.
  bool GivesFeatures(const Sequence& s) const;
  // Of the rows of positions [begin, end), how many of the last have their features wanted, by the
  // speculator or by a reader.
  int32_t FeatureRows(const Sequence& s, int32_t begin, int32_t end) const;
  // Appends the entry's rows of features, the last of its rows end in front of `row_end`.
  void AppendFeatures(const Sequence& s, int32_t begin, int32_t row_end, StepRecord& step,
                      StepRecord::Entry* entry) const;
  int32_t FeatureSize() const;
  int32_t FeatureWindow(SequenceId id) const;
  PromptFeatures FeaturesOf(SequenceId id) const;
  // The first position whose features are of use to whoever reads them.
  int32_t FirstWanted(const Sequence& s) const;
  // Whether features of it are kept for the next prompt that begins alike.
  bool KeepsFeatures(const Sequence& s) const;
  // Those of the positions in front of `end` that were kept; at most a window of them.
  FeatureRun KeptFeatures(const Sequence& s, int32_t end);
  void KeepFeatures(Sequence& s, int32_t begin, std::span<const float> rows);
  // Of the last step of a sequence that ends in it.
  void KeepArriving(Sequence& s);
  void KeepForReader(Sequence& s, int32_t begin, std::span<const float> rows) const;
  void DeliverFeatures(const Sequence& s, FeatureRun run);
  // Tells the proposer of all deliveries.
  void Deliver();
  // Of a prefix whose KV was found in the cache.
  void TakeKeptFeatures(Sequence& s);
  // Of a prompt that another worker has computed.
  void TakeFeatures(Sequence& s, const PromptFeatures& features);
  // Of the rows that an entry had, those that stand; `features`: of all of them, `kept`: those that
  // came to the host. The sequence may have ended.
  void NoteFeatures(SequenceId id, const StepRecord::Entry& entry,
                    std::span<const std::byte> features, std::span<const float> kept);

  // --- adapters.cc ---
  Status LoadAdapter(PackedAdapter adapter);
  void DropAdapter(std::string_view digest);
  bool HasAdapter(std::string_view digest) const;
  // Empties the places of those that leave and that no sequence has any more.
  void FreeAdapters();

  // --- invariants.cc ---
  void CheckInvariants() const;
  void CheckSequence(const Sequence& s) const;

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
  uint64_t launched = 0;  // steps; those that failed to start leave no record
  uint64_t next_epoch = 1;
  uint64_t preemptions = 0;
  int suspects = 0;              // sequences that run alone next
  int step_failures_in_row = 0;  // without a step that succeeded between them
  // What there was when a plan found nothing to launch, or must not preempt before a Collect.
  // CanLaunch() is false as long as nothing of it has changed.
  struct Standstill {
    uint64_t table = 0;      // SequenceTable::version
    uint64_t collected = 0;  // steps, those that failed too
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
  // A prefix whose blocks were granted and are not filled yet.
  struct PulledPrefix {
    Hash128 root;
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;  // all of it, pinned with kTier
    int32_t matched = 0;          // of them: published here already
    bool publishes = true;
  };
  std::map<Epoch, PulledPrefix> pulled;
  std::optional<FeatureCache> feature_cache;
  std::optional<KvTiers> tiers;
  Instant tier_deadline = kNever;  // no sequence stops waiting for a tier before
  uint64_t tier_waits_ended = 0;

  // Digests of adapters that take no new sequence.
  std::set<std::string, std::less<>> leaving_adapters;

  std::vector<TokenOutput> pending_tokens;
  std::vector<SequenceId> pending_prefills_done;

  StepPlanner planner;
  std::vector<SequenceView> views;
  std::vector<TenantView> tenants;
  PlaceShares places;                       // of the snapshot
  std::vector<FairShare::Account*> listed;  // in the order of `tenants`
  std::vector<const Sequence*> starting;    // while views are built: who may start in this step
  std::vector<Sequence*> scratch;
  std::vector<Sequence*> decodes;  // while drafts are made
  std::vector<SpeculativeSequence> drafting;
  std::vector<ComputedRows> computed_rows;  // while a step is collected
  // What the step brought of the sequence that is told of it.
  struct Arriving {
    SequenceId sequence;
    int32_t begin = 0;
    std::span<const float> features;
  };
  Arriving arriving;
  // What the proposer is told in front of the next step's, of sequences that computed nothing yet.
  struct Delivery {
    SequenceId sequence;
    FeatureRun run;
  };
  std::vector<Delivery> deliveries;
  Duration propose_time{};   // before the next step
  int32_t plain_steps = 0;   // to launch before proposals are made again
  Instant last_collected{};  // when the last step was
  bool runs_on = false;      // since the last step was collected there were rows to compute
};

}  // namespace aisp
