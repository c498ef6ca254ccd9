// An engine over a ProvenanceExecutor, with every sequence's outputs compared with the oracle. For
// tests.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "engine/engine.h"
#include "tests/support/hash_guide.h"
#include "tests/support/provenance_executor.h"

namespace aisp {

inline std::vector<TokenId> RandomTokens(SplitMix64& random, int32_t count,
                                         int32_t vocabulary = 1000) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary))));
  return tokens;
}

inline std::vector<TokenId> SomeTokens(int32_t count, uint64_t seed) {
  SplitMix64 random(seed);
  return RandomTokens(random, count);
}

inline SequenceRequest MakeRequest(std::vector<TokenId> prompt, int32_t max_new_tokens = 8,
                                   uint64_t seed = 1) {
  SequenceRequest request;
  request.prompt_tokens = static_cast<int32_t>(prompt.size());
  request.tokens = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  request.sampling.seed = seed;
  return request;
}

// One sequence's outputs.
struct Outcome {
  SequenceRequest request;
  std::vector<TokenId> drawn;
  bool ended = false;
  FinishReason finish = FinishReason::kNone;
  Error error;
  Fault fault = Fault::kRequest;
  bool prefill_done = false;
  std::vector<float> prompt_logprobs;  // from the second position on
  std::vector<float> embedding;
};

class EngineHarness {
 public:
  explicit EngineHarness(const ProvenanceOptions& model, const EngineOptions& options = {},
                         LayerSink* sink = nullptr)
      : model_(model),
        executor(model),
        owned_(std::make_unique<Engine>(options, &executor, &clock, sink)),
        engine(*owned_) {}

  SequenceId Add(const SequenceRequest& request) {
    SequenceRequest added = request;
    if (const auto* guide = dynamic_cast<const HashGuide*>(request.guide.get()))
      added.guide = guide->Fresh();  // the oracle uses the original
    auto id = engine.Add(std::move(added));
    EXPECT_TRUE(id.has_value()) << id.error().ToString();
    if (!id) return SequenceId(0);
    outcomes[*id].request = request;
    return *id;
  }

  // One turn of the owner's loop: fills the device, then collects one result. False: nothing to do.
  bool Step() {
    bool moved = false;
    for (int i = 0; engine.CanLaunch(); ++i) {
      EXPECT_LT(i, 8) << "CanLaunch stays true without anything being launched";
      EXPECT_TRUE(engine.Launch().has_value());
      moved = true;
      if (i >= 8) break;
    }
    engine.CheckInvariants();
    if (!engine.InFlight()) return moved;
    Take(engine.Collect());
    engine.CheckInvariants();
    clock.Advance(std::chrono::milliseconds(1));
    return true;
  }

  void Run(int max_steps = 100000) {
    for (int i = 0; i < max_steps; ++i) {
      if (!Step()) return;
    }
    ADD_FAILURE() << "not idle after " << max_steps << " steps";
  }

  void Take(CollectOutput out) {
    for (TokenOutput& output : out.tokens) {
      Outcome& o = outcomes[output.sequence];
      EXPECT_FALSE(o.ended) << "an output after the end of sequence " << output.sequence.value;
      if (output.token >= 0) {
        EXPECT_EQ(output.position, static_cast<int32_t>(o.request.tokens.size() + o.drawn.size()));
        o.drawn.push_back(output.token);
      }
      if (!output.prompt_logprobs.empty()) {
        EXPECT_EQ(output.prompt_logprobs_from, static_cast<int32_t>(o.prompt_logprobs.size()) + 1);
      }
      for (const TokenLogprob& each : output.prompt_logprobs)
        o.prompt_logprobs.push_back(each.logprob);
      if (output.finish == FinishReason::kNone) continue;
      o.embedding = std::move(output.embedding);
      o.ended = true;
      o.finish = output.finish;
      o.error = std::move(output.error);
      o.fault = output.fault;
      EXPECT_FALSE(engine.Alive(output.sequence));
    }
    for (const VerifiedDraft& draft : out.drafts) {
      drafted += static_cast<uint64_t>(draft.drafted);
      accepted += static_cast<uint64_t>(draft.accepted);
      forced += static_cast<uint64_t>(draft.forced);
      forced_accepted += static_cast<uint64_t>(draft.forced_accepted);
    }
    for (SequenceId id : out.prefills_done) {
      EXPECT_FALSE(outcomes[id].prefill_done);
      outcomes[id].prefill_done = true;
    }
    last_timing = out.timing;
  }

  // The sequence ended by itself with exactly the oracle's tokens and finish.
  void ExpectOracle(SequenceId id) {
    const Outcome& o = outcomes[id];
    const ExpectedEnd expected = ExpectedOutput(model_, o.request);
    EXPECT_TRUE(o.ended) << "sequence " << id.value;
    EXPECT_EQ(o.drawn, expected.tokens) << "sequence " << id.value;
    EXPECT_EQ(o.finish, expected.finish) << "sequence " << id.value << ": " << o.error.message;
  }
  void ExpectAllOracle() {
    for (const auto& [id, outcome] : outcomes) ExpectOracle(id);
  }
  // The tokens so far are a prefix of the oracle's.
  void ExpectOraclePrefix(SequenceId id) {
    const Outcome& o = outcomes[id];
    std::vector<TokenId> expected = ExpectedOutput(model_, o.request).tokens;
    ASSERT_LE(o.drawn.size(), expected.size());
    expected.resize(o.drawn.size());
    EXPECT_EQ(o.drawn, expected) << "sequence " << id.value;
  }
  void ExpectIdle() {
    engine.blocks().CheckInvariants();
    const BlockStats stats = engine.blocks().Stats();
    EXPECT_EQ(stats.pinned, 0);
    EXPECT_EQ(stats.free + stats.cached, stats.total);
    EXPECT_EQ(engine.NumRunning() + engine.NumWaiting() + engine.NumAwaitingKv(), 0);
    EXPECT_FALSE(engine.InFlight());
    EXPECT_FALSE(engine.CanLaunch());
  }

 private:
  const ProvenanceOptions model_;

 public:
  ManualClock clock;
  ProvenanceExecutor executor;

 private:
  std::unique_ptr<Engine> owned_;

 public:
  Engine& engine;
  std::map<SequenceId, Outcome> outcomes;
  StepTiming last_timing;
  uint64_t drafted = 0, accepted = 0;        // draft tokens that were verified, and accepted
  uint64_t forced = 0, forced_accepted = 0;  // the same for forced runs
};

}  // namespace aisp
