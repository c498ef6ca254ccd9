// Outputs of a prompt's rows apart from KV and draws, on the GPU as on the CPU: embeddings and
// logprobs of known tokens, in steps with decode rows.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "common/random.h"
#include "engine/async_executor.h"
#include "engine/engine.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/kernels/cuda/run_engine.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

constexpr int32_t kScoredRows = 24;  // fewer than most prompts have

struct Outcome {
  std::vector<float> embedding;
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<TokenId> tokens;
};

// Of every four requests one is pooled, one scores its prompt and draws, one only scores, one
// draws.
std::vector<SequenceRequest> Requests(uint64_t seed, int32_t vocabulary) {
  SplitMix64 random(seed);
  std::vector<SequenceRequest> out;
  for (int i = 0; i < 16; ++i) {
    SequenceRequest r;
    const auto length = 1 + random.Below(90);
    for (uint64_t t = 0; t < length; ++t)
      r.tokens.push_back(static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary))));
    r.prompt_tokens = static_cast<int32_t>(length);
    r.max_new_tokens = i % 4 == 2 ? 0 : static_cast<int32_t>(2 + random.Below(12));
    r.sampling.temperature = 0;
    if (i % 4 == 0)
      r.pooling = std::array{Pooling::kMean, Pooling::kFirst, Pooling::kLast}[random.Below(3)];
    if (i % 4 == 1 || i % 4 == 2) r.prompt_logprobs = static_cast<int32_t>(random.Below(4));
    out.push_back(std::move(r));
  }
  return out;
}

std::vector<Outcome> RunAll(Executor& executor, std::vector<SequenceRequest> requests) {
  EngineOptions options;
  options.limits.max_prefill_chunk = 40;
  options.limits.max_sequences = 6;
  std::vector<Outcome> outcomes(requests.size());
  RunEngine(executor, options, std::move(requests), [&](size_t i, TokenOutput& output) {
    Outcome& o = outcomes[i];
    if (output.token >= 0) o.tokens.push_back(output.token);
    if (!output.embedding.empty()) o.embedding = output.embedding;
    o.prompt_logprobs.insert(o.prompt_logprobs.end(), output.prompt_logprobs.begin(),
                             output.prompt_logprobs.end());
  });
  return outcomes;
}

double Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);  // both of norm 1
}

struct Tolerance {
  double logprob = 2e-3;
  double cosine = 1 - 1e-5;
  bool same_tokens = true;
};

void ExpectClose(const std::vector<Outcome>& got, const std::vector<Outcome>& want,
                 const Tolerance& tolerance) {
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "sequence " << i);
    ASSERT_EQ(got[i].embedding.size(), want[i].embedding.size());
    if (!want[i].embedding.empty()) {
      EXPECT_GT(Cosine(got[i].embedding, want[i].embedding), tolerance.cosine);
    }
    ASSERT_EQ(got[i].prompt_logprobs.size(), want[i].prompt_logprobs.size());
    for (size_t t = 0; t < want[i].prompt_logprobs.size(); ++t) {
      const TokenLogprob &a = got[i].prompt_logprobs[t], &b = want[i].prompt_logprobs[t];
      EXPECT_NEAR(a.logprob, b.logprob, tolerance.logprob) << "token " << t;
      ASSERT_EQ(a.top.size(), b.top.size());
      for (size_t k = 0; k < b.top.size(); ++k)
        EXPECT_NEAR(a.top[k].second, b.top[k].second, tolerance.logprob);
    }
    if (tolerance.same_tokens) {
      EXPECT_EQ(got[i].tokens, want[i].tokens);
    }
  }
}

// Runs both executors on the same requests, the GPU's with and without graphs.
void Compare(const std::string& directory, DType compute, const Tolerance& tolerance) {
  ModelExecutorOptions base;
  base.model.compute_dtype = DType::kF32;
  base.max_slots = 8;
  base.max_scored_rows = kScoredRows;
  base.num_blocks = 64;
  const std::unique_ptr<Device> device = MakeTestDevice();
  const std::unique_ptr<Ops> ops = MakeTestOps();
  auto cpu = ModelExecutor::Create(directory, base, *device, *ops);
  ASSERT_TRUE(cpu.has_value()) << cpu.error().message;
  base.model.compute_dtype = compute;
  for (const bool graphs : {true, false}) {
    AISP_OPEN_GPU(gpu);
    auto made = AsyncExecutor::Create(directory, {.base = base, .use_graphs = graphs}, *gpu.device,
                                      *gpu.ops);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << (graphs ? " graphs" : ""));
      const auto requests = Requests(seed, (*cpu)->vocabulary());
      ExpectClose(RunAll(**made, requests), RunAll(**cpu, requests), tolerance);
      if (testing::Test::HasFailure()) return;
    }
  }
}

class GpuOutputs : public testing::TestWithParam<std::string> {};

TEST_P(GpuOutputs, EmbeddingsAndPromptLogprobsEqualTheCpus) {
  Compare(GoldenDirectory(GetParam()), DType::kF32, {});
}

INSTANTIATE_TEST_SUITE_P(Families, GpuOutputs,
                         testing::Values("llama", "mistral-window", "qwen3", "deepseek-v3"),
                         [](const auto& family) {
                           std::string name = family.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GpuOutputsInBf16, AreCloseToTheCpusInF32) {
  const std::string directory = StoryDirectory("story-7m");
  if (directory.empty()) GTEST_SKIP() << "no models/story-7m here";
  Compare(directory, DType::kBF16, {.logprob = 0.3, .cosine = 0.999, .same_tokens = false});
}

}  // namespace
}  // namespace aisp
