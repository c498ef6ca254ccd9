// Everything at random: local, prefill-only and remote sequences, shared prefixes, tiny pools,
// cancels, writers that fail or write late. A failing run prints its seed.
#include <gtest/gtest.h>

#include <cstring>
#include <list>

#include "engine/draft_model.h"
#include "engine/eagle.h"
#include "speculation/speculator.h"
#include "tests/engine/engine_harness.h"
#include "tests/support/provenance_head.h"
#include "tests/support/proving_medusa.h"

namespace aisp {
namespace {

// Drafts the model's tokens, with mistakes.
class ProvenanceProposer final : public Proposer {
 public:
  ProvenanceProposer(const ProvenanceOptions& model, uint64_t seed)
      : model_(model), random_(seed) {}
  std::string_view name() const override { return "provenance"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    for (size_t i = 0; i < contexts.size(); ++i) {
      SequenceRequest request;
      request.tokens.assign(contexts[i].tokens.begin(), contexts[i].tokens.end());
      request.prompt_tokens = contexts[i].prompt_tokens;
      request.sampling = *contexts[i].sampling;
      const auto drawn = static_cast<int32_t>(request.tokens.size()) - request.prompt_tokens;
      request.max_new_tokens = drawn + static_cast<int32_t>(random_.Below(4));
      if (request.max_new_tokens == drawn) continue;
      for (TokenId t : ExpectedOutput(model_, request).tokens)
        drafts[i].Add(random_.Below(4) == 0 ? 7 : t, 0.7f);
    }
    return {};
  }
  void Ended(const DraftContext&) override {}

 private:
  const ProvenanceOptions model_;
  SplitMix64 random_;
};

// One decode engine (D) and one prefill engine (P). P's finished KV is copied into D's pool block
// by block at random later moments, as a transport would.
class Chaos : public LayerSink {
 public:
  explicit Chaos(uint64_t seed)
      : random_(seed),
        model_(RandomModel()),
        p_(PrefillModel(), RandomOptions(), this),
        d_(model_, DecodeOptions()) {
    for (int i = 0; i < 4; ++i)
      stems_.push_back(RandomTokens(random_, static_cast<int32_t>(random_.Below(90)), 200));
  }

  void Play(int turns) {
    for (int turn = 0; turn < turns && !testing::Test::HasFailure(); ++turn) {
      if (Chance(3)) Arrive();
      if (Chance(4)) CancelSomebody();
      for (auto it = transfers_.begin(); it != transfers_.end();)
        it = Advance(*it) ? std::next(it) : transfers_.erase(it);
      if (Chance(2)) EndSomeLease();
      if (Chance(6)) d_.engine.Expire(d_.clock.Now());
      if (Chance(2)) p_.Step();
      if (!Chance(4)) d_.Step();
    }
  }

  void Finish() {
    for (int turn = 0; turn < 20000 && !testing::Test::HasFailure(); ++turn) {
      for (auto it = transfers_.begin(); it != transfers_.end();)
        it = Advance(*it) ? std::next(it) : transfers_.erase(it);
      while (!dead_leases_.empty()) EndSomeLease();
      d_.engine.Expire(d_.clock.Now());
      bool moved = p_.Step();
      moved = d_.Step() || moved;
      if (!moved && transfers_.empty()) break;
    }
    EXPECT_TRUE(transfers_.empty());
    if (never_wrong_) {
      EXPECT_EQ(d_.accepted, d_.drafted) << (head_ ? "a head" : "a draft model");
    }
    for (SequenceId id : expected_) {
      const Outcome& o = d_.outcomes[id];
      if (o.finish == FinishReason::kError) {
        EXPECT_EQ(o.error.code, Code::kDeadlineExceeded) << o.error.message;
        EXPECT_NE(o.request.deadline, kNever);
        d_.ExpectOraclePrefix(id);
      } else {
        d_.ExpectOracle(id);
      }
    }
    for (SequenceId id : cancelled_) d_.ExpectOraclePrefix(id);
    d_.ExpectIdle();
    p_.ExpectIdle();
  }

  // Each slice begins where the previous one ended, at every layer.
  void OnLayer(int32_t layer, std::span<const LayerSlice> slices) override {
    for (const LayerSlice& s : slices) {
      const auto it = covered_.find(s.sequence);
      if (it == covered_.end()) continue;
      if (layer == 0) it->second = {it->second.end, s.token_end};
      EXPECT_EQ(s.token_begin, it->second.begin);
      EXPECT_EQ(s.token_end, it->second.end);
    }
  }

  size_t ended() const { return expected_.size(); }
  uint64_t preemptions() const { return d_.engine.Preemptions(); }
  uint64_t accepted() const { return never_wrong_ ? 0 : d_.accepted; }
  uint64_t accepted_of_model() const { return never_wrong_ && !head_ ? d_.accepted : 0; }
  uint64_t accepted_of_head() const { return head_ ? d_.accepted : 0; }
  uint64_t accepted_of_runs() const { return d_.forced_accepted; }
  size_t sent_features() const { return sent_features_; }
  size_t first_tokens() const { return first_tokens_; }
  size_t first_tokens_that_end() const { return first_tokens_that_end_; }

 private:
  enum class Stage { kAsk, kPrefill, kDone };
  struct Transfer {
    SequenceId on_d;
    SequenceId on_p;
    SequenceRequest request;
    RemoteGrant grant;
    Stage stage = Stage::kAsk;
    bool draws = false;
  };
  struct Covered {
    int32_t begin = 0;
    int32_t end = 0;
  };

  bool Chance(uint64_t one_in) { return random_.Below(one_in) == 0; }

  ProvenanceOptions RandomModel() {
    ProvenanceOptions model;
    model.max_depth = static_cast<int32_t>(1 + random_.Below(2));
    model.max_draws = 40;
    model.block_tokens = Chance(3) ? 32 : 16;
    model.num_blocks = static_cast<int32_t>(14 + random_.Below(30));
    model.max_slots = static_cast<int32_t>(2 + random_.Below(12));
    model.num_kv_heads = static_cast<int32_t>(1 + random_.Below(2));
    model.vocabulary = 200;
    model.gives_features = true;
    if (Chance(2)) model.most_kept_features = static_cast<int32_t>(random_.Below(60));
    return model;
  }
  ProvenanceOptions PrefillModel() {
    ProvenanceOptions model = model_;
    model.num_blocks = static_cast<int32_t>(14 + random_.Below(20));
    model.max_depth = static_cast<int32_t>(1 + random_.Below(2));
    return model;
  }
  EngineOptions RandomOptions() {
    EngineOptions options;
    options.limits.max_batch_tokens = static_cast<int32_t>(4 + random_.Below(100));
    options.limits.max_prefill_chunk = static_cast<int32_t>(1 + random_.Below(100));
    options.limits.max_sequences = static_cast<int32_t>(1 + random_.Below(12));
    options.limits.watermark_blocks = static_cast<int32_t>(random_.Below(3));
    options.enable_prefix_cache = !Chance(5);
    return options;
  }
  EngineOptions DecodeOptions() {
    EngineOptions options = RandomOptions();
    if (!Chance(3)) return options;
    options.limits.max_draft_rows = static_cast<int32_t>(1 + random_.Below(20));
    const SpeculatorOptions speculation{.num_tokens = 4, .adaptive = Chance(2)};
    std::unique_ptr<Proposer> proposer;
    switch (random_.Below(5)) {
      case 0:
        proposer = std::make_unique<ProvenanceProposer>(model_, random_.Next());
        break;
      case 1:
        proposer = RandomDraftModel();
        break;
      case 2:
        proposer = std::make_unique<ProvingMedusa>(
            model_, static_cast<int32_t>(1 + random_.Below(8)), random_.Below(3));
        break;
      case 3:  // forced runs only
        break;
      default:
        proposer = RandomHead();
    }
    options.speculator =
        std::make_shared<Speculator>(speculation, std::move(proposer), &speculation_clock_);
    return options;
  }
  // The target itself: its drafts are right, unless its KV is wrong.
  std::unique_ptr<Proposer> RandomDraftModel() {
    never_wrong_ = true;
    ProvenanceOptions model = model_;
    model.num_blocks = static_cast<int32_t>(4 + random_.Below(60));
    model.block_tokens = Chance(2) ? 32 : 16;
    model.max_depth = 1;
    DraftModelOptions options;
    options.catch_up_tokens = static_cast<int32_t>(1 + random_.Below(100));
    options.min_probability = 0;
    return std::make_unique<DraftModelProposer>(
        options, std::make_unique<ProvenanceExecutor>(model), &speculation_clock_);
  }
  // Exact, unless its KV or features are not the sequence's.
  std::unique_ptr<Proposer> RandomHead() {
    never_wrong_ = head_ = true;
    ProvenanceHeadOptions options;
    options.num_blocks = static_cast<int32_t>(4 + random_.Below(60));
    options.block_tokens = Chance(2) ? 32 : 16;
    options.max_sequences = model_.max_slots;
    options.max_rows = EagleProposer::kWaiting * model_.max_slots;
    if (Chance(3)) options.max_context = static_cast<int32_t>(20 + random_.Below(100));
    return std::make_unique<EagleProposer>(EagleOptions{.min_probability = 0},
                                           std::make_unique<ProvenanceHead>(model_, options));
  }
  SequenceRequest RandomRequest() {
    const std::vector<TokenId>& stem = stems_[random_.Below(stems_.size())];
    std::vector<TokenId> tokens(stem.begin(),
                                stem.begin() + static_cast<long>(random_.Below(stem.size() + 1)));
    for (TokenId t : RandomTokens(random_, static_cast<int32_t>(1 + random_.Below(40)), 200))
      tokens.push_back(t);
    SequenceRequest request =
        MakeRequest(std::move(tokens), static_cast<int32_t>(1 + random_.Below(60)), random_.Next());
    request.priority = static_cast<int32_t>(random_.Below(3));
    if (Chance(3)) request.stop_token_ids = {static_cast<TokenId>(random_.Below(200)), 17};
    if (Chance(3)) request.min_new_tokens = static_cast<int32_t>(random_.Below(20));
    if (Chance(5)) request.sampling.presence_penalty = 0.3f;
    if (Chance(4)) request.sampling.temperature = 0;
    if (Chance(4)) {
      request.guide = std::make_shared<HashGuide>(random_.Next(), 200, 1 + random_.Below(40));
    }
    if (Chance(6)) request.cache_scope = "scope";
    if (Chance(8)) {
      const auto ms = static_cast<int64_t>(random_.Below(100));
      request.deadline = d_.clock.Now() + std::chrono::milliseconds(ms);
    }
    return request;
  }

  void Arrive() {
    if (d_.engine.NumWaiting() + d_.engine.NumAwaitingKv() > 20) return;
    SequenceRequest request = RandomRequest();
    if (Chance(2)) {
      expected_.insert(d_.Add(request));
      return;
    }
    Transfer t;
    t.request = request;
    request.kv_source = KvSource::kRemote;
    t.on_d = d_.Add(request);
    expected_.insert(t.on_d);
    request.kv_source = KvSource::kPrefillOnly;
    request.deadline = kNever;
    if (!Chance(4)) request.feature_window = static_cast<int32_t>(random_.Below(80));
    t.draws = request.draws_first = request.guide == nullptr && !Chance(3);
    t.on_p = p_.Add(request);
    transfers_.push_back(std::move(t));
  }

  void CancelSomebody() {
    if (expected_.empty()) return;
    auto it = expected_.begin();
    std::advance(it, static_cast<long>(random_.Below(expected_.size())));
    if (!d_.engine.Alive(*it)) return;
    if (Chance(2) && d_.engine.CanLaunch()) {
      EXPECT_TRUE(d_.engine.Launch().has_value());
    }
    d_.engine.Cancel(*it);
    cancelled_.insert(*it);
    expected_.erase(it);
  }

  void EndSomeLease() {
    if (dead_leases_.empty()) return;
    const RemoteGrant grant = dead_leases_.front();
    dead_leases_.pop_front();
    Scribble(grant);  // the last writes of a revoked grant
    d_.engine.EndLease(grant.epoch);
  }
  void Scribble(const RemoteGrant& grant) {
    const KvLayout layout = d_.executor.kv_layout();
    for (BlockId block : grant.blocks) {
      for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
        std::memset(d_.executor.pool_base() + layout.Offset(layer, block),
                    static_cast<int>(random_.Below(256)), layout.LayerBlockBytes());
      }
    }
  }

  // False: the transfer is over.
  bool Advance(Transfer& t) {
    const bool wanted = d_.engine.Alive(t.on_d);
    switch (t.stage) {
      case Stage::kAsk:
        if (!wanted) return Drop(t, /*granted=*/false);
        if (Chance(8)) {
          d_.engine.RemoteFailed(t.on_d, /*run_locally=*/true);
          return Drop(t, false);
        }
        Ask(t);
        return true;
      case Stage::kPrefill:
        if (!wanted) return Drop(t, true);
        if (Chance(40)) {
          d_.engine.RemoteFailed(t.on_d, /*run_locally=*/Chance(2));
          if (d_.engine.NumAwaitingKv() > 0 && Chance(2)) d_.engine.Cancel(t.on_d), Forget(t.on_d);
          if (d_.engine.Alive(t.on_d)) d_.engine.RemoteFailed(t.on_d, true);
          return Drop(t, true);
        }
        if (p_.outcomes[t.on_p].prefill_done) t.stage = Stage::kDone;
        return true;
      case Stage::kDone:
        if (!wanted) return Drop(t, true);
        if (Chance(2)) return true;
        Copy(t);
        Fill(t);
        return false;
    }
    return false;
  }
  // Features arrive in part, in whole, or not at all.
  void Fill(const Transfer& t) {
    std::optional<SampledToken> drawn;
    if (t.draws) drawn = SampledToken{p_.outcomes[t.on_p].drawn.at(0), {}, {}};
    PromptFeatures features = p_.engine.FeaturesOf(t.on_p);
    const std::vector<float> rows(features.rows.begin(), features.rows.end());
    features.rows = rows;
    p_.engine.Release(t.on_p);
    if (Chance(4)) features = {};
    sent_features_ += features.rows.size() / kProvenanceFeatures;
    const std::optional<TokenOutput> first =
        d_.engine.RemoteFilled(t.on_d, std::move(drawn), features);
    EXPECT_EQ(first.has_value(), t.draws);
    d_.engine.CheckInvariants();
    if (!first) return;
    ++first_tokens_;
    first_tokens_that_end_ += first->finish != FinishReason::kNone ? 1 : 0;
    d_.Take({.tokens = {*first}, .prefills_done = {}, .timing = {}, .drafts = {}});
  }
  void Forget(SequenceId id) {
    expected_.erase(id);
    cancelled_.insert(id);
  }
  bool Drop(Transfer& t, bool granted) {
    if (granted) dead_leases_.push_back(t.grant);
    covered_.erase(t.on_p);
    p_.engine.Cancel(t.on_p);
    return false;
  }
  void Ask(Transfer& t) {
    auto grant = d_.engine.GrantRemote(t.on_d, t.draws);
    if (!grant) {
      EXPECT_EQ(grant.error().code, Code::kResourceExhausted);
      return;
    }
    t.grant = *grant;
    t.stage = Stage::kPrefill;
    p_.engine.OpenGate(t.on_p);
    const int32_t computed = p_.engine.ComputedTokens(t.on_p);
    covered_[t.on_p] = {computed, computed};
  }
  void Copy(const Transfer& t) {
    const auto wanted = static_cast<int32_t>(t.request.tokens.size()) - (t.draws ? 0 : 1);
    const KvLayout src = p_.executor.kv_layout();
    const KvLayout dst = d_.executor.kv_layout();
    EXPECT_EQ(p_.engine.ComputedTokens(t.on_p), wanted);
    EXPECT_EQ(covered_[t.on_p].end, wanted);
    EXPECT_TRUE(p_.executor.Holds(t.request.tokens, p_.engine.BlocksOf(t.on_p), 0, wanted));
    const std::span<const BlockId> from = p_.engine.BlocksOf(t.on_p);
    const auto first = static_cast<size_t>(t.grant.first_token / src.block_tokens);
    for (size_t block = first; block < static_cast<size_t>(src.BlocksFor(wanted)); ++block) {
      for (int32_t layer = 0; layer < src.num_layers; ++layer) {
        std::memcpy(d_.executor.pool_base() + dst.Offset(layer, t.grant.blocks[block - first]),
                    p_.executor.pool_base() + src.Offset(layer, from[block]),
                    src.LayerBlockBytes());
      }
    }
  }

  size_t sent_features_ = 0, first_tokens_ = 0, first_tokens_that_end_ = 0;
  SplitMix64 random_;
  bool never_wrong_ = false;  // the proposer
  bool head_ = false;
  const ManualClock speculation_clock_;
  const ProvenanceOptions model_;
  EngineHarness p_;
  EngineHarness d_;
  std::vector<std::vector<TokenId>> stems_;
  std::list<Transfer> transfers_;
  std::list<RemoteGrant> dead_leases_;
  std::map<SequenceId, Covered> covered_;
  std::set<SequenceId> expected_;
  std::set<SequenceId> cancelled_;
};

TEST(EngineRandom, EveryScheduleBringsTheOraclesTokensAndEveryBlockComesBack) {
  size_t ended = 0;
  size_t first_tokens = 0, first_tokens_that_end = 0, sent_features = 0;
  uint64_t preemptions = 0, accepted = 0, accepted_of_model = 0, accepted_of_head = 0;
  uint64_t accepted_of_runs = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Chaos chaos(seed);
    chaos.Play(250);
    chaos.Finish();
    ended += chaos.ended();
    preemptions += chaos.preemptions();
    accepted += chaos.accepted();
    accepted_of_model += chaos.accepted_of_model();
    accepted_of_head += chaos.accepted_of_head();
    accepted_of_runs += chaos.accepted_of_runs();
    first_tokens += chaos.first_tokens();
    sent_features += chaos.sent_features();
    first_tokens_that_end += chaos.first_tokens_that_end();
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(ended, 3000u);
  EXPECT_GT(preemptions, 100u);
  EXPECT_GT(accepted, 500u);
  EXPECT_GT(accepted_of_model, 500u);
  EXPECT_GT(accepted_of_head, 500u);
  EXPECT_GT(accepted_of_runs, 500u);
  EXPECT_GT(first_tokens, 500u);
  EXPECT_GT(sent_features, 5000u);
  EXPECT_GT(first_tokens_that_end, 10u);
}

}  // namespace
}  // namespace aisp
