// Prefill-only sequences: gates, slices for the remote reader, blocks kept until Release.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/engine/engine_harness.h"

namespace aisp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Copies each slice at the moment of the call, layer by layer, as a reader would.
class Reader : public LayerSink {
 public:
  struct Seen {
    std::vector<std::pair<int32_t, int32_t>> slices;  // of layer 0
    std::vector<BlockId> blocks;
    int32_t layers_of_last = 0;
  };
  void OnLayer(int32_t layer, std::span<const LayerSlice> slices) override {
    for (const LayerSlice& s : slices) {
      Seen& seen = sequences[s.sequence];
      if (layer == 0) {
        seen.slices.emplace_back(s.token_begin, s.token_end);
        seen.blocks.assign(s.blocks.begin(), s.blocks.end());
      } else {
        EXPECT_EQ(seen.slices.back(), std::make_pair(s.token_begin, s.token_end));
        EXPECT_EQ(layer, seen.layers_of_last);
      }
      seen.layers_of_last = layer + 1;
    }
  }
  // The slices cover [begin, end) without gap or overlap.
  void ExpectCovers(SequenceId id, int32_t begin, int32_t end) {
    for (const auto& [b, e] : sequences[id].slices) {
      EXPECT_EQ(b, begin);
      EXPECT_LT(b, e);
      begin = e;
    }
    EXPECT_EQ(begin, end);
  }
  std::map<SequenceId, Seen> sequences;
};

SequenceRequest Prefill(std::vector<TokenId> tokens) {
  SequenceRequest request = MakeRequest(std::move(tokens));
  request.kv_source = KvSource::kPrefillOnly;
  return request;
}

class EnginePrefill : public testing::TestWithParam<int> {
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
  Reader reader_;
};
INSTANTIATE_TEST_SUITE_P(Depth, EnginePrefill, testing::Values(1, 2));

TEST_P(EnginePrefill, NothingRunsBeforeTheGateOpens) {
  EngineHarness h(M(), {}, &reader_);
  const SequenceId id = h.Add(Prefill(SomeTokens(40, 1)));
  EXPECT_FALSE(h.engine.CanLaunch());
  EXPECT_EQ(h.engine.NumWaiting(), 1);
  EXPECT_EQ(h.engine.QueuedPrefill().tokens, 39);
  h.engine.OpenGate(id);
  EXPECT_TRUE(h.engine.CanLaunch());
  h.Run();
  EXPECT_TRUE(h.outcomes[id].prefill_done);
}

TEST_P(EnginePrefill, AllKvButTheLastTokensIsComputedAndKeptUntilRelease) {
  for (int32_t chunk : {1, 7, 16, 100}) {
    SCOPED_TRACE(chunk);
    Reader reader;
    EngineHarness h(M(), Chunks(chunk), &reader);
    const std::vector<TokenId> tokens = SomeTokens(50, 1);
    const SequenceId id = h.Add(Prefill(tokens));
    h.engine.OpenGate(id);
    h.Run();
    EXPECT_TRUE(h.outcomes[id].prefill_done);
    EXPECT_FALSE(h.outcomes[id].ended);
    EXPECT_EQ(h.engine.ComputedTokens(id), 49);
    EXPECT_TRUE(h.executor.Holds(tokens, h.engine.BlocksOf(id), 0, 49));
    reader.ExpectCovers(id, 0, 49);
    EXPECT_EQ(h.engine.blocks().Stats().pinned, 4);
    EXPECT_EQ(h.engine.NumRunning(), 0) << "the reader's time takes no slot";
    h.engine.Release(id);
    EXPECT_FALSE(h.engine.Alive(id));
    EXPECT_EQ(h.engine.blocks().Stats().cached, 3);
    h.ExpectIdle();
  }
}

TEST_P(EnginePrefill, OpenGateMatchesThePrefixAtOnce) {
  EngineHarness h(M(), {}, &reader_);
  const std::vector<TokenId> tokens = SomeTokens(50, 1);
  h.Add(MakeRequest(std::vector<TokenId>(tokens.begin(), tokens.begin() + 34), 1));
  h.Run();
  const SequenceId id = h.Add(Prefill(tokens));
  EXPECT_EQ(h.engine.ComputedTokens(id), 0);
  h.engine.OpenGate(id);
  EXPECT_EQ(h.engine.ComputedTokens(id), 32);
  EXPECT_EQ(h.engine.BlocksOf(id).size(), 4u);
  EXPECT_TRUE(h.executor.Holds(tokens, h.engine.BlocksOf(id), 0, 32));
  h.Run();
  reader_.ExpectCovers(id, 32, 49);
  EXPECT_EQ(h.engine.Times(id).cached_tokens, 32);
  h.engine.Release(id);
  h.ExpectIdle();
}

TEST_P(EnginePrefill, AFullMatchIsDoneWithoutAStep) {
  EngineHarness h(M(), {}, &reader_);
  const std::vector<TokenId> tokens = SomeTokens(33, 1);
  h.Add(MakeRequest(tokens, 1));
  h.Run();
  const uint64_t steps = h.executor.steps();
  const SequenceId id = h.Add(Prefill(tokens));
  h.engine.OpenGate(id);
  EXPECT_EQ(h.engine.ComputedTokens(id), 32);
  EXPECT_TRUE(h.engine.InFlight()) << "the next Collect reports it";
  h.Run();
  EXPECT_TRUE(h.outcomes[id].prefill_done);
  EXPECT_EQ(h.executor.steps(), steps);
  h.engine.Release(id);
  h.ExpectIdle();
}

TEST_P(EnginePrefill, ASingleTokenHasNothingToPrefill) {
  EngineHarness h(M(), {}, &reader_);
  const SequenceId id = h.Add(Prefill({5}));
  h.engine.OpenGate(id);
  h.Run();
  EXPECT_TRUE(h.outcomes[id].prefill_done);
  EXPECT_EQ(h.executor.steps(), 0u);
  h.engine.Release(id);
  h.ExpectIdle();
}

TEST_P(EnginePrefill, ALateMatchIsPartOfTheFirstSlice) {
  EngineHarness h(M(/*blocks=*/6), Chunks(16), &reader_);
  const std::vector<TokenId> tokens = SomeTokens(50, 1);
  h.Add(MakeRequest(std::vector<TokenId>(tokens.begin(), tokens.begin() + 33), 1));
  h.Run();
  const SequenceId first = h.Add(Prefill(SomeTokens(60, 2)));
  const SequenceId second = h.Add(Prefill(tokens));
  h.engine.OpenGate(second);  // takes its match and two more blocks
  h.engine.OpenGate(first);
  EXPECT_EQ(h.engine.ComputedTokens(second), 32);
  EXPECT_EQ(h.engine.ComputedTokens(first), 0);
  EXPECT_TRUE(h.engine.BlocksOf(first).empty()) << "all or nothing";
  h.Run();
  EXPECT_TRUE(h.outcomes[second].prefill_done);
  EXPECT_FALSE(h.outcomes[first].prefill_done);
  h.engine.Release(second);
  h.Run();
  EXPECT_TRUE(h.outcomes[first].prefill_done);
  reader_.ExpectCovers(first, 0, 59);
  EXPECT_TRUE(h.executor.Holds(h.outcomes[first].request.tokens, h.engine.BlocksOf(first), 0, 59));
  h.engine.Release(first);

  const SequenceId blocker = h.Add(Prefill(SomeTokens(90, 3)));
  const SequenceId again = h.Add(Prefill(h.outcomes[first].request.tokens));
  const SequenceId holder = h.Add(Prefill(SomeTokens(20, 4)));
  h.engine.OpenGate(holder);
  h.engine.OpenGate(blocker);
  h.engine.OpenGate(again);
  EXPECT_EQ(h.engine.ComputedTokens(again), 0)
      << "it must not overtake the one that waits for blocks";
  h.Run();
  h.engine.Release(holder);
  h.Run();
  h.engine.Release(blocker);
  h.Run();
  ASSERT_TRUE(h.outcomes[again].prefill_done);
  reader_.ExpectCovers(again, 0, 59);
  h.engine.Release(again);
  h.ExpectIdle();
}

TEST_P(EnginePrefill, TheFirstSliceOfALateStartCoversItsMatch) {
  EngineHarness h(M(/*blocks=*/8), {}, &reader_);
  const std::vector<TokenId> tokens = SomeTokens(33, 1);
  h.Add(MakeRequest(tokens, 1));
  h.Run();
  const SequenceId holder = h.Add(Prefill(SomeTokens(60, 2)));
  const SequenceId large = h.Add(Prefill(SomeTokens(80, 3)));
  const SequenceId late = h.Add(Prefill(tokens));
  h.engine.OpenGate(holder);
  h.engine.OpenGate(large);
  h.engine.OpenGate(late);
  EXPECT_EQ(h.engine.ComputedTokens(late), 0);
  h.Run();
  h.engine.Cancel(large);
  const uint64_t rows = h.executor.rows_computed();
  h.Run();
  ASSERT_TRUE(h.outcomes[late].prefill_done);
  EXPECT_EQ(h.executor.rows_computed() - rows, 1u)
      << "one token is computed again so that there is a step to report in";
  reader_.ExpectCovers(late, 0, 32);
  h.engine.Release(late);
  h.engine.Release(holder);
  h.ExpectIdle();
}

TEST_P(EnginePrefill, UpcomingGatedListsWhoWouldRunWithinTheHorizon) {
  EngineHarness h(M());
  const SequenceId a = h.Add(Prefill(SomeTokens(41, 1)));
  const SequenceId b = h.Add(Prefill(SomeTokens(41, 2)));
  SequenceRequest urgent = Prefill(SomeTokens(21, 3));
  urgent.priority = 1;
  const SequenceId c = h.Add(urgent);
  EXPECT_THAT(h.engine.UpcomingGated(0), IsEmpty());
  EXPECT_THAT(h.engine.UpcomingGated(1), ElementsAre(c));
  EXPECT_THAT(h.engine.UpcomingGated(21), ElementsAre(c, a));
  EXPECT_THAT(h.engine.UpcomingGated(60), ElementsAre(c, a));
  EXPECT_THAT(h.engine.UpcomingGated(61), ElementsAre(c, a, b));
  h.engine.OpenGate(c);
  h.engine.OpenGate(a);
  EXPECT_THAT(h.engine.UpcomingGated(60), IsEmpty());
  EXPECT_THAT(h.engine.UpcomingGated(61), ElementsAre(b));
  h.Run();
  EXPECT_THAT(h.engine.UpcomingGated(1), ElementsAre(b));
}

TEST_P(EnginePrefill, AClosedGateLetsOthersOvertakeAndKeepsItsPlace) {
  EngineHarness h(M(), Chunks(16));
  const SequenceId refused = h.Add(Prefill(SomeTokens(30, 1)));
  const SequenceId other = h.Add(Prefill(SomeTokens(30, 2)));
  const SequenceId last = h.Add(Prefill(SomeTokens(30, 3)));
  h.engine.OpenGate(other);
  h.Run();
  EXPECT_TRUE(h.outcomes[other].prefill_done);
  h.engine.OpenGate(last);
  h.engine.OpenGate(refused);
  h.Step();
  h.Step();
  EXPECT_EQ(h.engine.Times(refused).preemptions, 0);
  EXPECT_LE(h.engine.Times(refused).first_scheduled, h.engine.Times(last).first_scheduled);
  h.Run();
}

TEST_P(EnginePrefill, ReadersPinsOutlastPressureFromLocalSequences) {
  EngineHarness h(M(/*blocks=*/8), {}, &reader_);
  const std::vector<TokenId> tokens = SomeTokens(50, 1);
  const SequenceId held = h.Add(Prefill(tokens));
  h.engine.OpenGate(held);
  h.Run();
  for (int32_t i = 0; i < 3; ++i) h.Add(MakeRequest(SomeTokens(10, 70 + i), 45, i));
  h.Run();
  EXPECT_GT(h.engine.Preemptions(), 0u);
  EXPECT_TRUE(h.executor.Holds(tokens, h.engine.BlocksOf(held), 0, 49));
  h.engine.Release(held);
  h.outcomes.erase(held);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EnginePrefill, CancelAtEveryStepGivesEveryBlockBack) {
  for (int cancel_at = 0; cancel_at < 9; ++cancel_at) {
    SCOPED_TRACE(cancel_at);
    Reader reader;
    EngineHarness h(M(), Chunks(8), &reader);
    const SequenceId id = h.Add(Prefill(SomeTokens(40, 1)));
    if (cancel_at > 0) h.engine.OpenGate(id);
    for (int i = 1; i < cancel_at; ++i) h.Step();
    if (h.engine.CanLaunch()) {
      ASSERT_TRUE(h.engine.Launch());
    }
    h.engine.Cancel(id);
    h.Run();
    EXPECT_TRUE(h.engine.BlocksOf(id).empty());
    EXPECT_EQ(h.engine.ComputedTokens(id), 0);
    h.ExpectIdle();
  }
}

TEST_P(EnginePrefill, ADeadlineEndsAlsoOneThatWaitsForItsReader) {
  EngineHarness h(M(), {}, &reader_);
  SequenceRequest request = Prefill(SomeTokens(40, 1));
  request.deadline = Instant{1'000'000'000};
  const SequenceId id = h.Add(request);
  h.engine.OpenGate(id);
  h.Run();
  EXPECT_TRUE(h.outcomes[id].prefill_done);
  h.engine.Expire(Instant{1'000'000'000});
  h.Run();
  EXPECT_EQ(h.outcomes[id].error.code, Code::kDeadlineExceeded);
  h.ExpectIdle();
}

}  // namespace
}  // namespace aisp
