// Remote sequences: an engine whose blocks another engine fills.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/engine_harness.h"

namespace aisp {
namespace {

using testing::HasSubstr;

// A prefill engine (P) that pushes into a decode engine's (D's) pool, layer by layer, inside the
// sink: the roles without messages.
class Pair : public LayerSink {
 public:
  Pair(const ProvenanceOptions& prefill_model, const ProvenanceOptions& decode_model,
       const EngineOptions& options)
      : p(prefill_model, options, this), d(decode_model, options) {}

  struct Transfer {
    SequenceId on_d;
    SequenceId on_p;
    RemoteGrant grant;
    bool draws = false;
    bool granted = false;
    int32_t pushed = 0;  // leading tokens in D's pool at all layers
  };

  // Starts a transfer; false: D refuses the grant.
  Transfer Begin(const SequenceRequest& request, bool draws = false) {
    Transfer t;
    t.draws = draws;
    SequenceRequest remote = request;
    remote.kv_source = KvSource::kRemote;
    t.on_d = d.Add(remote);
    SequenceRequest prefill = request;
    prefill.kv_source = KvSource::kPrefillOnly;
    prefill.draws_first = draws;
    t.on_p = p.Add(prefill);
    return t;
  }
  bool Grant(Transfer& t) {
    auto grant = d.engine.GrantRemote(t.on_d, t.draws);
    if (!grant) return false;
    t.grant = *grant;
    t.granted = true;
    t.pushed = t.grant.first_token;
    active[t.on_p] = &t;
    p.engine.OpenGate(t.on_p);
    Push(t, p.engine.BlocksOf(t.on_p), t.pushed, p.engine.ComputedTokens(t.on_p), 0, Layers());
    t.pushed = std::max(t.pushed, p.engine.ComputedTokens(t.on_p));
    return true;
  }
  void OnLayer(int32_t layer, std::span<const LayerSlice> slices) override {
    for (const LayerSlice& s : slices) {
      const auto it = active.find(s.sequence);
      if (it == active.end()) continue;
      Transfer& t = *it->second;
      Push(t, s.blocks, std::max(s.token_begin, t.grant.first_token), s.token_end, layer,
           layer + 1);
      if (layer + 1 == Layers()) t.pushed = std::max(t.pushed, s.token_end);
    }
  }
  // Collects P's results; finished transfers are filled in on D.
  void StepP() {
    p.Step();
    for (auto it = active.begin(); it != active.end();) {
      Transfer& t = *it->second;
      if (p.outcomes[t.on_p].prefill_done) {
        EXPECT_GE(t.pushed, static_cast<int32_t>(p.outcomes[t.on_p].request.tokens.size()) -
                                (t.draws ? 0 : 1));
        p.engine.Release(t.on_p);
        Fill(t);
        it = active.erase(it);
      } else {
        ++it;
      }
    }
  }
  int32_t Layers() const { return p.executor.kv_layout().num_layers; }

  EngineHarness p;
  EngineHarness d;
  std::map<SequenceId, Transfer*> active;

 private:
  void Fill(const Transfer& t) {
    std::optional<SampledToken> drawn;
    if (t.draws) drawn = SampledToken{p.outcomes[t.on_p].drawn.at(0), {}, {}};
    const std::optional<TokenOutput> first = d.engine.RemoteFilled(t.on_d, std::move(drawn));
    EXPECT_EQ(first.has_value(), t.draws);
    d.engine.CheckInvariants();
    if (first) d.Take({.tokens = {*first}, .prefills_done = {}, .timing = {}, .drafts = {}});
  }
  void Push(Transfer& t, std::span<const BlockId> from, int32_t begin, int32_t end,
            int32_t first_layer, int32_t last_layer) {
    if (begin >= end) return;
    const KvLayout src = p.executor.kv_layout();
    const KvLayout dst = d.executor.kv_layout();
    const int32_t first_granted = t.grant.first_token / src.block_tokens;
    for (int32_t block = begin / src.block_tokens; block * src.block_tokens < end; ++block) {
      const BlockId to = t.grant.blocks[static_cast<size_t>(block - first_granted)];
      for (int32_t layer = first_layer; layer < last_layer; ++layer) {
        std::memcpy(d.executor.pool_base() + dst.Offset(layer, to),
                    p.executor.pool_base() + src.Offset(layer, from[static_cast<size_t>(block)]),
                    src.LayerBlockBytes());
      }
    }
  }
};

class EngineRemote : public testing::TestWithParam<int> {
 protected:
  ProvenanceOptions M(int32_t blocks = 64) const {
    ProvenanceOptions model;
    model.max_depth = GetParam();
    model.num_blocks = blocks;
    return model;
  }
  static EngineOptions Chunks(int32_t tokens) {
    EngineOptions options;
    options.limits.max_batch_tokens = tokens;
    options.limits.max_prefill_chunk = tokens;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Depth, EngineRemote, testing::Values(1, 2));

TEST_P(EngineRemote, ARemotePrefillBringsTheTokensOfTheOracleAtEveryLength) {
  for (int32_t length = 1; length <= 50; ++length) {
    SCOPED_TRACE(length);
    Pair pair(M(), M(), Chunks(8));
    auto t = pair.Begin(MakeRequest(SomeTokens(length, 1), 20));
    EXPECT_EQ(pair.d.engine.NumAwaitingKv(), 1);
    EXPECT_FALSE(pair.d.engine.CanLaunch());
    ASSERT_TRUE(pair.Grant(t));
    while (!pair.active.empty()) pair.StepP();
    pair.d.Run();
    pair.d.ExpectAllOracle();
    EXPECT_EQ(pair.d.executor.rows_computed(), 20u)
        << "the last token of the prompt and all drawn ones but the last";
    pair.d.ExpectIdle();
    pair.p.ExpectIdle();
  }
}

TEST_P(EngineRemote, AFirstTokenThatComesWithTheKvIsTheOraclesAtEveryLength) {
  for (int32_t length = 1; length <= 50; ++length) {
    SCOPED_TRACE(length);
    Pair pair(M(), M(), Chunks(8));
    auto t = pair.Begin(MakeRequest(SomeTokens(length, 1), 20), /*draws=*/true);
    ASSERT_TRUE(pair.Grant(t));
    EXPECT_EQ(static_cast<int32_t>(t.grant.blocks.size()), (length + 15) / 16);
    while (!pair.active.empty()) pair.StepP();
    EXPECT_EQ(pair.d.outcomes[t.on_d].drawn.size(), 1u) << "before any step";
    EXPECT_NE(pair.d.engine.Times(t.on_d).first_token, kNever);
    pair.d.Run();
    pair.d.ExpectAllOracle();
    EXPECT_EQ(pair.d.executor.rows_computed(), 19u);
    pair.d.ExpectIdle();
    pair.p.ExpectIdle();
  }
}

TEST_P(EngineRemote, AFirstTokenThatEndsItsSequenceNeedsNoStep) {
  for (const bool stops : {false, true}) {
    Pair pair(M(), M(), Chunks(64));
    SequenceRequest request = MakeRequest(SomeTokens(40, 1), stops ? 20 : 1);
    if (stops) request.stop_token_ids = ExpectedTokens(M(), request.tokens, 1, 1);
    auto t = pair.Begin(request, /*draws=*/true);
    ASSERT_TRUE(pair.Grant(t));
    while (!pair.active.empty()) pair.StepP();
    pair.d.ExpectAllOracle();
    EXPECT_EQ(pair.d.executor.steps(), 0u);
    pair.d.ExpectIdle();
  }
}

TEST_P(EngineRemote, ThoseThatWaitForARowAloneCannotWaitForEachOther) {
  // Two prompts of two whole blocks each fill the pool, and each needs a third one for its row.
  EngineOptions options = Chunks(64);
  options.limits.watermark_blocks = 0;
  Pair pair(M(), M(/*blocks=*/4), options);
  auto first = pair.Begin(MakeRequest(SomeTokens(32, 1), 5, 1), /*draws=*/true);
  auto second = pair.Begin(MakeRequest(SomeTokens(32, 2), 5, 2), /*draws=*/true);
  ASSERT_TRUE(pair.Grant(first));
  const bool both = pair.Grant(second);
  while (!pair.active.empty()) pair.StepP();
  pair.d.Run();
  EXPECT_FALSE(both);
  if (!both) {
    ASSERT_TRUE(pair.Grant(second));
    while (!pair.active.empty()) pair.StepP();
    pair.d.Run();
  }
  pair.d.ExpectAllOracle();
  pair.d.ExpectIdle();
}

TEST_P(EngineRemote, MatchesOfEveryLengthOnBothSidesBringTheSameTokens) {
  const std::vector<TokenId> tokens = SomeTokens(70, 1);
  for (int32_t on_p : {0, 16, 48, 70}) {
    for (int32_t on_d : {0, 16, 32, 64, 70}) {
      SCOPED_TRACE(testing::Message() << on_p << " cached on P, " << on_d << " on D");
      Pair pair(M(), M(), Chunks(16));
      const auto warm = [&](EngineHarness& h, int32_t count) {
        if (count == 0) return;
        h.Add(MakeRequest(std::vector<TokenId>(tokens.begin(), tokens.begin() + count), 1));
        h.Run();
      };
      warm(pair.p, on_p);
      warm(pair.d, on_d);
      auto t = pair.Begin(MakeRequest(tokens, 20));
      EXPECT_EQ(pair.d.engine.LocalMatch(t.on_d), on_d / 16 * 16);
      ASSERT_TRUE(pair.Grant(t));
      EXPECT_EQ(t.grant.first_token, on_d / 16 * 16);
      EXPECT_EQ(t.grant.blocks.size(), 5u - static_cast<size_t>(on_d / 16));
      while (!pair.active.empty()) pair.StepP();
      pair.d.Run();
      pair.d.ExpectAllOracle();
      EXPECT_EQ(pair.d.engine.Times(t.on_d).cached_tokens, t.grant.first_token);
      pair.d.ExpectIdle();
    }
  }
}

TEST_P(EngineRemote, AFullPrefixHitNeedsOnlyTheBlockOfTheLastToken) {
  EngineHarness h(M());
  const std::vector<TokenId> tokens = SomeTokens(33, 1);
  h.Add(MakeRequest(tokens, 1));
  h.Run();
  SequenceRequest request = MakeRequest(tokens, 20);
  request.kv_source = KvSource::kRemote;
  const SequenceId id = h.Add(request);
  const auto grant = h.engine.GrantRemote(id);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->first_token, 32);
  EXPECT_EQ(grant->blocks.size(), 1u);
  h.engine.RemoteFilled(id);
  h.Run();
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineRemote, RemoteAndLocalSequencesRunInOneBatch) {
  Pair pair(M(), M(), Chunks(32));
  std::vector<Pair::Transfer> transfers;
  for (int32_t i = 0; i < 6; ++i)
    transfers.push_back(pair.Begin(MakeRequest(SomeTokens(20 + 9 * i, 80 + i), 25, i)));
  for (int32_t i = 0; i < 4; ++i) pair.d.Add(MakeRequest(SomeTokens(12 + 7 * i, 90 + i), 25, i));
  for (auto& t : transfers) ASSERT_TRUE(pair.Grant(t));
  while (!pair.active.empty()) {
    pair.StepP();
    pair.d.Step();
  }
  pair.d.Run();
  pair.d.ExpectAllOracle();
  pair.d.ExpectIdle();
  pair.p.ExpectIdle();
}

TEST_P(EngineRemote, FilledSequencesArePreemptedAndRecomputedWithoutChangingAToken) {
  Pair pair(M(), M(/*blocks=*/12), Chunks(32));
  std::vector<Pair::Transfer> transfers;
  for (int32_t i = 0; i < 4; ++i)
    transfers.push_back(pair.Begin(MakeRequest(SomeTokens(30 + i, 80 + i), 60, i)));
  for (auto& t : transfers) {
    for (int i = 0; !pair.Grant(t) && i < 1000; ++i) pair.d.Step();
    ASSERT_TRUE(t.granted);
    while (!pair.active.empty()) pair.StepP();
  }
  pair.d.Run();
  EXPECT_GT(pair.d.engine.Preemptions(), 0u);
  pair.d.ExpectAllOracle();
  pair.d.ExpectIdle();
}

TEST_P(EngineRemote, ACopyOfASharedPrefixDoesNotStarveItsOwner) {
  Pair pair(M(), M(/*blocks=*/16), Chunks(128));
  const std::vector<TokenId> shared = SomeTokens(96, 7);
  const auto with_tail = [&](int32_t count, uint64_t seed) {
    std::vector<TokenId> tokens = shared;
    for (TokenId t : SomeTokens(count, seed)) tokens.push_back(t);
    return tokens;
  };
  auto first = pair.Begin(MakeRequest(with_tail(8, 1), 20, 1));
  SequenceRequest urgent = MakeRequest(with_tail(14, 2), 100, 2);
  urgent.priority = 1;
  auto second = pair.Begin(urgent);
  // Both are granted a whole prompt before either is published, and the one preempted later
  // publishes first: what the other adds to its copy is published below blocks that no sequence
  // holds.
  ASSERT_TRUE(pair.Grant(first));
  while (!pair.p.outcomes[first.on_p].prefill_done) pair.p.Step();
  ASSERT_TRUE(pair.Grant(second));
  while (!pair.active.empty()) pair.StepP();
  pair.d.Run();
  EXPECT_GT(pair.d.engine.Preemptions(), 1u);
  pair.d.ExpectAllOracle();
  pair.d.ExpectIdle();
}

TEST_P(EngineRemote, AGrantBelowTheWatermarkIsRefusedAndChangesNothing) {
  EngineHarness h(M(/*blocks=*/6));
  h.Add(MakeRequest(SomeTokens(30, 2), 8));
  h.Step();
  SequenceRequest request = MakeRequest(SomeTokens(64, 1), 4);
  request.kv_source = KvSource::kRemote;
  const SequenceId id = h.Add(request);
  const int32_t before = h.engine.blocks().Available();
  const auto refused = h.engine.GrantRemote(id);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("need 4 KV blocks"));
  EXPECT_EQ(h.engine.blocks().Available(), before);
  EXPECT_EQ(h.engine.blocks().LeasedBlocks(), 0);
  while (h.engine.NumRunning() > 0) h.Step();
  EXPECT_TRUE(h.engine.GrantRemote(id).has_value()) << "alone it may use everything";
}

TEST_P(EngineRemote, AFailedWriterLeavesItsBlocksInQuarantineAndTheSequenceRunsLocally) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(50, 1), 20);
  request.kv_source = KvSource::kRemote;
  const SequenceId id = h.Add(request);
  const auto grant = h.engine.GrantRemote(id);
  ASSERT_TRUE(grant);
  h.engine.RemoteFailed(id, /*run_locally=*/true);
  EXPECT_EQ(h.engine.blocks().Stats().quarantined, 4);
  h.Step();
  // The late writer still writes to its granted blocks.
  for (BlockId block : grant->blocks) {
    std::memset(h.executor.pool_base() + h.executor.kv_layout().Offset(0, block), 0x5a,
                h.executor.kv_layout().LayerBlockBytes());
  }
  h.Run();
  h.ExpectAllOracle();
  EXPECT_EQ(h.engine.blocks().Stats().quarantined, 4);
  h.engine.EndLease(grant->epoch);
  h.engine.EndLease(grant->epoch);
  h.ExpectIdle();
}

TEST_P(EngineRemote, AFailedWriterMayBeReplacedByAnother) {
  Pair pair(M(), M(), Chunks(16));
  auto t = pair.Begin(MakeRequest(SomeTokens(50, 1), 20));
  const auto lost = pair.d.engine.GrantRemote(t.on_d);
  ASSERT_TRUE(lost);
  EXPECT_FALSE(pair.d.engine.GrantRemote(t.on_d)) << "one grant at a time";
  pair.d.engine.RemoteFailed(t.on_d, /*run_locally=*/false);
  EXPECT_EQ(pair.d.engine.NumAwaitingKv(), 1);
  ASSERT_TRUE(pair.Grant(t));
  EXPECT_NE(t.grant.epoch, lost->epoch);
  while (!pair.active.empty()) pair.StepP();
  pair.d.Run();
  pair.d.ExpectAllOracle();
  EXPECT_EQ(pair.d.engine.blocks().Stats().quarantined, 4);
  pair.d.engine.EndLease(lost->epoch);
  pair.d.ExpectIdle();
}

TEST_P(EngineRemote, CancelBeforeGrantAndUnderAGrant) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(50, 1), 20);
  request.kv_source = KvSource::kRemote;
  const SequenceId early = h.Add(request);
  h.engine.Cancel(early);
  EXPECT_EQ(h.engine.GrantRemote(early).error().code, Code::kNotFound);
  h.ExpectIdle();
  const SequenceId id = h.Add(request);
  const auto grant = h.engine.GrantRemote(id);
  ASSERT_TRUE(grant);
  h.engine.Cancel(id);
  EXPECT_EQ(h.engine.blocks().Stats().quarantined, 4);
  h.engine.RemoteFilled(id);
  h.engine.RemoteFailed(id, true);
  h.engine.EndLease(grant->epoch);
  h.ExpectIdle();
}

TEST_P(EngineRemote, ADeadlineUnderAGrantLeavesTheLeaseStanding) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(50, 1), 20);
  request.kv_source = KvSource::kRemote;
  request.deadline = Instant{100};
  const SequenceId id = h.Add(request);
  const auto grant = h.engine.GrantRemote(id);
  ASSERT_TRUE(grant);
  h.engine.Expire(Instant{100});
  h.Run();
  EXPECT_EQ(h.outcomes[id].error.code, Code::kDeadlineExceeded);
  EXPECT_EQ(h.engine.blocks().Stats().quarantined, 4);
  h.engine.EndLease(grant->epoch);
  h.ExpectIdle();
}

TEST_P(EngineRemote, FilledBlocksArePublishedForOthers) {
  Pair pair(M(), M(), Chunks(64));
  const std::vector<TokenId> tokens = SomeTokens(50, 1);
  auto t = pair.Begin(MakeRequest(tokens, 3));
  ASSERT_TRUE(pair.Grant(t));
  while (!pair.active.empty()) pair.StepP();
  const SequenceId local = pair.d.Add(MakeRequest(tokens, 10, 5));
  pair.d.Run();
  EXPECT_EQ(pair.d.engine.Times(local).cached_tokens, 48);
  pair.d.ExpectAllOracle();
}

}  // namespace
}  // namespace aisp
