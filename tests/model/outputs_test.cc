// Embeddings and logprobs of prompts with a real model: compared with what transformers recorded,
// and the same bits however the prompt is chunked, batched or found in the prefix cache.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "common/random.h"
#include "engine/engine.h"
#include "model/safetensors.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

struct Outcome {
  std::vector<float> embedding;
  std::vector<float> logprobs;
  Error error;
  int32_t cached_tokens = 0;
};

class Runner {
 public:
  Runner(const std::string& directory, int32_t chunk, bool prefix_cache)
      : rig_(Rig::Open(directory, {.max_batch_tokens = 256})),
        engine_(Options(chunk, prefix_cache), rig_.executor.get(), &clock_, nullptr) {}

  SequenceId Add(const std::vector<TokenId>& tokens, Pooling pooling, int32_t logprobs = -1) {
    SequenceRequest request;
    request.tokens = tokens;
    request.prompt_tokens = static_cast<int32_t>(tokens.size());
    request.pooling = pooling;
    request.prompt_logprobs = logprobs;
    request.max_new_tokens = 0;
    auto id = engine_.Add(std::move(request));
    EXPECT_TRUE(id.has_value()) << id.error().message;
    return *id;
  }
  void Run() {
    while (engine_.CanLaunch() || engine_.InFlight()) {
      if (engine_.CanLaunch()) {
        EXPECT_TRUE(engine_.Launch().has_value());
      }
      if (!engine_.InFlight()) continue;
      for (TokenOutput& out : engine_.Collect().tokens) {
        Outcome& outcome = outcomes[out.sequence];
        for (const TokenLogprob& each : out.prompt_logprobs)
          outcome.logprobs.push_back(each.logprob);
        if (!out.embedding.empty()) outcome.embedding = std::move(out.embedding);
        outcome.error = std::move(out.error);
        outcome.cached_tokens = engine_.Times(out.sequence).cached_tokens;
      }
    }
  }
  Outcome Embed(const std::vector<TokenId>& tokens, Pooling pooling, int32_t logprobs = -1) {
    const SequenceId id = Add(tokens, pooling, logprobs);
    Run();
    EXPECT_EQ(outcomes[id].error.message, "");
    return outcomes[id];
  }
  std::map<SequenceId, Outcome> outcomes;

 private:
  static EngineOptions Options(int32_t chunk, bool prefix_cache) {
    EngineOptions options;
    options.limits.max_prefill_chunk = chunk;
    options.limits.max_batch_tokens = 256;
    options.enable_prefix_cache = prefix_cache;
    return options;
  }
  SteadyClock clock_;
  Rig rig_;
  Engine engine_;
};

std::vector<double> HeadTimes(const std::string& directory, const std::vector<float>& x) {
  const auto checkpoint = Checkpoint::Open(directory);
  const auto& tensors = (*checkpoint)->tensors();
  const auto found = tensors.find("lm_head.weight");
  const auto& head =
      found != tensors.end() ? found->second : tensors.at("model.embed_tokens.weight");
  EXPECT_EQ(head.dtype, "F32");
  const auto* weights = reinterpret_cast<const float*>(head.data.data());
  std::vector<double> out(static_cast<size_t>(head.shape[0]));
  for (size_t row = 0; row < out.size(); ++row) {
    for (size_t i = 0; i < x.size(); ++i)
      out[row] += static_cast<double>(weights[row * x.size() + i]) * static_cast<double>(x[i]);
  }
  return out;
}

double Cosine(const std::vector<double>& a, const std::vector<float>& b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * static_cast<double>(b[i]);
    aa += a[i] * a[i];
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return dot / std::sqrt(aa * bb);
}

// Multiplying the embedding by the head's matrix gives the recorded logits, up to the norm of the
// hidden state.
TEST(Outputs, TheLastPositionsEmbeddingMakesTheRecordedLogits) {
  const std::string directory = GoldenDirectory("llama");
  Runner runner(directory, 256, true);
  for (const GoldenCase& c : LoadGolden("llama")) {
    const Outcome out = runner.Embed(c.prompt, Pooling::kLast);
    EXPECT_GT(Cosine(HeadTimes(directory, out.embedding), c.last_logits), 1 - 1e-6);
  }
}

TEST(Outputs, LogprobsOfThePromptHaveTheRecordedMean) {
  for (const char* family : {"llama", "qwen3", "mixtral", "deepseek-v3", "mistral-window"}) {
    for (const int32_t chunk : {256, 7}) {
      SCOPED_TRACE(testing::Message() << family << " in chunks of " << chunk);
      Runner runner(GoldenDirectory(family), chunk, true);
      int checked = 0;
      for (const GoldenCase& c : LoadGolden(family)) {
        if (c.mean_nll < 0) continue;
        for (int again = 0; again < 2; ++again) {  // the second time it is a prefix hit
          const Outcome out = runner.Embed(c.prompt, Pooling::kNone, 0);
          ASSERT_EQ(out.logprobs.size(), c.prompt.size() - 1);
          const double sum = std::accumulate(out.logprobs.begin(), out.logprobs.end(), 0.0);
          EXPECT_NEAR(-sum / static_cast<double>(out.logprobs.size()), c.mean_nll, 1e-3);
          ++checked;
        }
      }
      EXPECT_GT(checked, 0);
    }
  }
}

TEST(Outputs, TheyAreTheSameBitForBitAloneCutBatchedAndBehindACachedPrefix) {
  const std::string directory = GoldenDirectory("llama");
  SplitMix64 random(5);
  std::vector<std::vector<TokenId>> prompts;
  std::vector<TokenId> shared;
  for (int i = 0; i < 40; ++i) shared.push_back(static_cast<TokenId>(random.Below(512)));
  for (int i = 0; i < 8; ++i) {
    std::vector<TokenId> tokens(shared.begin(), shared.begin() + (i % 2 == 0 ? 40 : 0));
    for (uint64_t n = 1 + random.Below(60); n > 0; --n)
      tokens.push_back(static_cast<TokenId>(random.Below(512)));
    prompts.push_back(tokens);
  }
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast, Pooling::kFirst, Pooling::kNone}) {
    const int32_t logprobs = pooling == Pooling::kNone ? 3 : -1;
    std::vector<Outcome> alone;
    for (const auto& prompt : prompts)
      alone.push_back(Runner(directory, 256, false).Embed(prompt, pooling, logprobs));
    Runner together(directory, 11, true);
    for (int round = 0; round < 2; ++round) {
      std::vector<SequenceId> ids;
      for (const auto& prompt : prompts) ids.push_back(together.Add(prompt, pooling, logprobs));
      together.Run();
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(together.outcomes[ids[i]].embedding, alone[i].embedding);
        EXPECT_EQ(together.outcomes[ids[i]].logprobs, alone[i].logprobs);
      }
    }
  }
}

}  // namespace
}  // namespace aisp
