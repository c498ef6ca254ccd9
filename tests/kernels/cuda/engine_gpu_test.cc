// Constrained sequences and draft tokens on the GPU, as an engine runs them: with two steps in
// flight, masks computed during a forward pass, and plain sequences in the same steps.
#include <cmath>
#include <cstdio>
#include <map>

#include "engine/async_executor.h"
#include "engine/engine.h"
#include "speculation/speculator.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/kernels/cuda/run_engine.h"
#include "tests/model/golden.h"
#include "tests/support/hash_guide.h"

namespace aisp {
namespace {

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish = FinishReason::kNone;
};

std::vector<SequenceRequest> Requests(uint64_t seed, int32_t vocabulary) {
  SplitMix64 random(seed);
  std::vector<SequenceRequest> out;
  for (int i = 0; i < 12; ++i) {
    SequenceRequest r;
    const auto length = 3 + random.Below(40);
    for (uint64_t t = 0; t < length; ++t)
      r.tokens.push_back(
          static_cast<TokenId>(4 + random.Below(static_cast<uint64_t>(vocabulary - 4))));
    r.prompt_tokens = static_cast<int32_t>(length);
    r.max_new_tokens = static_cast<int32_t>(2 + random.Below(30));
    r.sampling.seed = random.Next();
    r.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
    if (i % 4 == 1) r.sampling.top_p = 0.8f;
    if (i % 5 == 2) r.sampling.presence_penalty = 0.5f;
    r.sampling.num_logprobs = i % 4 - 1;
    if (i % 3 != 2)
      r.guide = std::make_shared<HashGuide>(random.Next(), vocabulary, 1 + random.Below(25));
    out.push_back(std::move(r));
  }
  return out;
}

// Proposes the tokens of the sequences in `answers`, with mistakes.
class RecordedProposer final : public Proposer {
 public:
  using Book = std::map<uint64_t, std::vector<TokenId>>;  // by seed
  explicit RecordedProposer(Book answers) : answers_(std::move(answers)) {}
  std::string_view name() const override { return "recorded"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    for (size_t i = 0; i < contexts.size(); ++i) {
      const DraftContext& c = contexts[i];
      const std::vector<TokenId>& answer = answers_.at(c.sampling->seed);
      for (size_t at = c.tokens.size() - static_cast<size_t>(c.prompt_tokens); at < answer.size();
           ++at)
        drafts[i].Add(random_.Below(5) == 0 ? 9 : answer[at], 0.8f);
    }
    return {};
  }
  void Ended(const DraftContext&) override {}

 private:
  const Book answers_;
  SplitMix64 random_{3};
};

std::vector<Answer> RunAll(Executor& executor, std::vector<SequenceRequest> requests,
                           std::shared_ptr<Speculator> speculator = nullptr,
                           int32_t max_sequences = 8) {
  EngineOptions options;
  options.speculator = std::move(speculator);
  options.limits.max_draft_rows = executor.max_draws() - executor.max_slots();
  options.limits.max_prefill_chunk = 64;
  options.limits.max_sequences = max_sequences;
  std::vector<Answer> answers(requests.size());
  RunEngine(executor, options, std::move(requests), [&](size_t i, TokenOutput& output) {
    Answer& t = answers[i];
    if (output.token >= 0) t.tokens.push_back(output.token);
    if (output.logprob) t.logprobs.push_back(std::move(*output.logprob));
    t.finish = output.finish;
  });
  return answers;
}

void ExpectSame(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "sequence " << i);
    EXPECT_EQ(got[i].tokens, want[i].tokens);
    EXPECT_EQ(got[i].finish, want[i].finish);
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size());
    for (size_t t = 0; t < want[i].logprobs.size(); ++t) {
      EXPECT_NEAR(got[i].logprobs[t].logprob, want[i].logprobs[t].logprob, 2e-3);
      ASSERT_EQ(got[i].logprobs[t].top.size(), want[i].logprobs[t].top.size());
    }
  }
}

TEST(GpuEngine, ConstraintsAndProposedTokensGiveWhatTheCpuDraws) {
  const std::string directory = StoryDirectory("story-7m");
  if (directory.empty()) GTEST_SKIP() << "no models/story-7m here";
  ModelExecutorOptions base;
  base.model.compute_dtype = DType::kF32;
  base.max_slots = 8;
  base.max_draft_rows = 16;
  base.num_blocks = 64;
  const std::unique_ptr<Device> device = MakeTestDevice();
  const std::unique_ptr<Ops> ops = MakeTestOps();
  auto cpu = ModelExecutor::Create(directory, base, *device, *ops);
  ASSERT_TRUE(cpu.has_value()) << cpu.error().message;
  const int32_t vocabulary = (*cpu)->vocabulary();
  constexpr uint64_t kSeeds = 6;
  std::vector<std::vector<Answer>> expected;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed)
    expected.push_back(RunAll(**cpu, Requests(seed, vocabulary)));
  for (const bool graphs : {true, false}) {
    uint64_t proposals = 0;
    AISP_OPEN_GPU(gpu);
    auto made = AsyncExecutor::Create(directory, {.base = base, .use_graphs = graphs}, *gpu.device,
                                      *gpu.ops);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << (graphs ? " graphs" : ""));
      ExpectSame(RunAll(**made, Requests(seed, vocabulary)), expected[seed - 1]);
      if (HasFailure()) return;
      RecordedProposer::Book answers;
      const auto requests = Requests(seed, vocabulary);
      for (size_t i = 0; i < requests.size(); ++i)
        answers[requests[i].sampling.seed] = expected[seed - 1][i].tokens;
      const SteadyClock clock;
      const auto speculator = std::make_shared<Speculator>(
          SpeculatorOptions{.num_tokens = 5, .adaptive = seed % 2 == 0},
          std::make_unique<RecordedProposer>(std::move(answers)), &clock);
      {
        SCOPED_TRACE("with forced runs alone");
        const auto runs =
            std::make_shared<Speculator>(SpeculatorOptions{.adaptive = false}, nullptr, &clock);
        ExpectSame(RunAll(**made, Requests(seed, vocabulary), runs), expected[seed - 1]);
      }
      SCOPED_TRACE("with proposed tokens");
      ExpectSame(RunAll(**made, Requests(seed, vocabulary), speculator), expected[seed - 1]);
      proposals += speculator->stats().proposals;
    }
    EXPECT_GT(proposals, 100u);
  }
}

// Greedy, with logprobs of the two likeliest tokens.
std::vector<SequenceRequest> GreedyRequests(uint64_t seed, int32_t vocabulary) {
  std::vector<SequenceRequest> out = Requests(seed, vocabulary);
  for (SequenceRequest& r : out) {
    r.guide = nullptr;
    r.sampling = {};
    r.sampling.temperature = 0;
    r.sampling.seed = seed * 100 + static_cast<uint64_t>(&r - out.data());
    r.sampling.num_logprobs = 2;
    r.max_new_tokens = 40;
  }
  return out;
}

// The differences between two greedy runs of the same requests.
struct Distance {
  float logprob = 0;  // largest difference, of tokens before the first that differs
  float gap = 0;      // largest gap between the two likeliest tokens where the runs differ
  size_t parted = 0;  // sequences that differ
  size_t tokens = 0;  // tokens before that
};

void AddDistance(const std::vector<Answer>& a, const std::vector<Answer>& b, Distance* d) {
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t both = std::min(a[i].tokens.size(), b[i].tokens.size());
    size_t at = 0;
    for (; at < both && a[i].tokens[at] == b[i].tokens[at]; ++at, ++d->tokens)
      d->logprob =
          std::max(d->logprob, std::abs(a[i].logprobs[at].logprob - b[i].logprobs[at].logprob));
    if (at == both) continue;
    ++d->parted;
    const auto& top = a[i].logprobs[at].top;
    AISP_CHECK(top.size() >= 2);
    d->gap = std::max(d->gap, top[0].second - top[1].second);
  }
}

// Verify steps use other kernels than single rows, and so does a batch of another size: the former
// may change results no more than the latter.
TEST(GpuEngine, ProposedTokensInBf16ChangeNoMoreThanAnotherBatchDoes) {
  const std::string directory = StoryDirectory("story-7m");
  if (directory.empty()) GTEST_SKIP() << "no models/story-7m here";
  AISP_OPEN_GPU(gpu);
  ModelExecutorOptions base;
  base.model.compute_dtype = DType::kBF16;
  base.max_slots = 8;
  base.max_draft_rows = 48;
  base.num_blocks = 64;
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    base.kv_dtype = kv;
    auto made = AsyncExecutor::Create(directory, {.base = base}, *gpu.device, *gpu.ops);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    const int32_t vocabulary = (*made)->vocabulary();
    Distance verified, batched;
    for (const int32_t length : {3, 7, 15}) {
      const auto seed = static_cast<uint64_t>(length);
      const std::vector<Answer> plain = RunAll(**made, GreedyRequests(seed, vocabulary));
      AddDistance(plain, RunAll(**made, GreedyRequests(seed, vocabulary), nullptr, 1), &batched);
      RecordedProposer::Book answers;
      const auto requests = GreedyRequests(seed, vocabulary);
      for (size_t i = 0; i < requests.size(); ++i)
        answers[requests[i].sampling.seed] = plain[i].tokens;
      const SteadyClock clock;
      const auto speculator = std::make_shared<Speculator>(
          SpeculatorOptions{.num_tokens = length, .adaptive = false},
          std::make_unique<RecordedProposer>(std::move(answers)), &clock);
      AddDistance(plain, RunAll(**made, GreedyRequests(seed, vocabulary), speculator), &verified);
    }
    std::printf(
        "kv %s: verified %.4f, gap %.4f, parted %zu, %zu tokens; batched %.4f, %.4f, %zu, %zu\n",
        std::string(DTypeName(kv)).c_str(), verified.logprob, verified.gap, verified.parted,
        verified.tokens, batched.logprob, batched.gap, batched.parted, batched.tokens);
    EXPECT_LE(verified.logprob, 2 * batched.logprob);
    EXPECT_LE(verified.gap, 2 * std::max(batched.gap, batched.logprob));
    EXPECT_LE(verified.parted, 2 * batched.parted);
  }
}

}  // namespace
}  // namespace aisp
