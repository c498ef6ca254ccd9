// A few whole steps of a small model in every number format, as an engine runs them: a long and a
// short prompt in one step, then decoding with tokens that stay on the device, drawn greedily and
// at random. Small enough for compute-sanitizer (tools/gpu_sanitize.sh).
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "engine/async_executor.h"
#include "model/files.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kBlocksEach = 8;
constexpr size_t kLongPrompt = 100;  // more rows than the kernels for few rows take
constexpr int kBatchTokens = 128;    // both prompts in a step
constexpr int kDecodeSteps = 4;

struct Format {
  const char* name;
  std::optional<WeightFormat> weights;
  DType kv;
  double limit;  // of the logits' difference from f32 on the CPU
};
// Shown in failures and in lists of tests.
void PrintTo(const Format& format, std::ostream* out) { *out << format.name; }

struct TestSequence {
  std::vector<TokenId> tokens;  // the prompt, then what was drawn
  SamplingParams params;
  std::vector<float> logits;  // after all of `tokens` but the last
};

// Prompts from the recorded stories: one of kLongPrompt tokens, one short, the second drawn at
// random.
std::vector<TestSequence> Prompts(const std::string& directory) {
  const auto text = ReadTextFile(directory + "/expected.json");
  AISP_CHECK_MSG(text.has_value(), "no expected.json in " + directory);
  const nlohmann::json expected = nlohmann::json::parse(*text);
  std::vector<TestSequence> sequences(2);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& c = expected["cases"][i];
    sequences[i].tokens = c["prompt_ids"].get<std::vector<TokenId>>();
    const auto story = c["greedy_ids"].get<std::vector<TokenId>>();
    if (i == 0) sequences[i].tokens.insert(sequences[i].tokens.end(), story.begin(), story.end());
  }
  sequences[0].tokens.resize(kLongPrompt);
  sequences[0].params.temperature = 0;
  sequences[1].params.temperature = 0.9f;
  sequences[1].params.top_p = 0.9f;
  sequences[1].params.top_k = 40;
  sequences[1].params.repetition_penalty = 1.1f;
  sequences[1].params.seed = 7;
  return sequences;
}

// Runs one step over the rows of every sequence that are not computed yet; appends the drawn
// tokens.
void Step(AsyncExecutor& executor, std::vector<TestSequence>& sequences,
          std::vector<int32_t>& computed) {
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions, slots, table, logit_rows;
  std::vector<SequenceRows> rows;
  std::vector<SampleRow> samples;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto length = static_cast<int32_t>(sequences[i].tokens.size());
    const int32_t slot = static_cast<int32_t>(i);
    rows.push_back({static_cast<int32_t>(tokens.size()), length - computed[i], length,
                    static_cast<int32_t>(table.size())});
    for (int32_t p = computed[i]; p < length; ++p) {
      // The token that the last step drew is still on the device.
      tokens.push_back(computed[i] > 0 ? kTokenOnDevice
                                       : sequences[i].tokens[static_cast<size_t>(p)]);
      positions.push_back(p);
      slots.push_back(slot);
    }
    for (int32_t b = 0; b < kBlocksEach; ++b) table.push_back(slot + 2 * b);
    logit_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    SampleRow sample;
    sample.logit_index = sample.slot = slot;
    sample.position = static_cast<uint32_t>(length);
    sample.params = &sequences[i].params;
    sample.prompt = sequences[i].tokens;
    samples.push_back(sample);
    computed[i] = length;
  }
  StepInput input;
  input.batch = {tokens, positions, slots, rows, table, logit_rows};
  input.samples = samples;
  const auto ticket = executor.Launch(input);
  ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
  const auto result = executor.Collect(*ticket);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  for (size_t i = 0; i < sequences.size(); ++i) {
    ASSERT_TRUE(result->tokens[i].status.has_value()) << result->tokens[i].status.error().message;
    sequences[i].tokens.push_back(result->tokens[i].token);
  }
}

void ReadLogits(Device& device, const AsyncExecutor& executor,
                std::vector<TestSequence>& sequences) {
  const TensorView logits = executor.logits();
  auto stream = device.CreateStream();
  ASSERT_TRUE(stream.has_value());
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].logits.resize(static_cast<size_t>(logits.cols()));
    const float* from = logits.as<float>() + static_cast<int64_t>(i) * logits.cols();
    ASSERT_TRUE(device
                    .Copy(sequences[i].logits.data(), from,
                          sequences[i].logits.size() * sizeof(float), **stream)
                    .has_value());
  }
  ASSERT_TRUE(device.Synchronize(**stream).has_value());
}

class GpuSteps : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    directory_ = StoryDirectory("story-7m");
    if (directory_.empty()) GTEST_SKIP() << "models/story-7m is not there";
  }

  // The tuning results of matrix kernels are kept for the next run in the same TEST_TMPDIR: tuning
  // under a sanitizer takes minutes.
  void Run(bool graphs, size_t count, std::vector<TestSequence>* sequences) {
    auto opened = OpenTestGpu(testing::TempDir() + "/aisp_steps_tuning");
    if (!opened && opened.error().code == Code::kNotFound) GTEST_SKIP() << opened.error().message;
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    AsyncExecutorOptions options;
    options.base.model.compute_dtype = DType::kBF16;
    options.base.model.max_batch_tokens = kBatchTokens;
    options.base.model.weight_format = GetParam().weights;
    options.base.max_slots = 2;
    options.base.block_tokens = kBlockTokens;
    options.base.num_blocks = 2 * kBlocksEach;
    options.base.kv_dtype = GetParam().kv;
    options.use_graphs = graphs;
    auto made = AsyncExecutor::Create(directory_, options, *opened->device, *opened->ops);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    AsyncExecutor& executor = **made;
    *sequences = Prompts(directory_);
    sequences->resize(count);
    std::vector<int32_t> computed(sequences->size(), 0);
    for (int i = 0; i <= kDecodeSteps; ++i)
      ASSERT_NO_FATAL_FAILURE(Step(executor, *sequences, computed));
    ReadLogits(*opened->device, executor, *sequences);
    // Two launches a layer, and those before and after the layers.
    const auto layers = static_cast<size_t>(executor.kv_layout().num_layers);
    if (graphs) {
      EXPECT_LE(executor.GraphOperations(static_cast<int32_t>(count)), 2 * layers + 12);
    }
  }

  void ExpectTheCpus(const std::vector<TestSequence>& sequences) const {
    Rig cpu = Rig::Open(directory_, {});
    for (size_t i = 0; i < sequences.size(); ++i) {
      std::vector<TokenId> seen = sequences[i].tokens;
      seen.pop_back();
      const auto length = static_cast<int32_t>(seen.size());
      auto sequence = cpu.NewSequence(std::move(seen), length);
      const std::vector<float> want = cpu.LastLogits(sequence, 256);
      double error = 0, norm = 0;
      for (size_t t = 0; t < want.size(); ++t) {
        error += std::pow(sequences[i].logits[t] - want[t], 2);
        norm += std::pow(want[t], 2);
      }
      error = std::sqrt(error / norm);
      printf("%s, sequence %zu of %zu: %.4f\n", GetParam().name, i, sequences.size(), error);
      EXPECT_LT(error, GetParam().limit);  // false for NaN
    }
  }

  std::string directory_;
};

// Two tests, so that the slowest tool can run one with a whole prompt and one with whole decode
// steps without graphs.
TEST_P(GpuSteps, LogitsAreTheCpus) {
  std::vector<TestSequence> plain;
  ASSERT_NO_FATAL_FAILURE(Run(false, 2, &plain));
  if (IsSkipped()) return;
  ExpectTheCpus(plain);
}

TEST_P(GpuSteps, GraphsGiveTheBitsOfPlainLaunches) {
  std::vector<TestSequence> plain, captured;
  ASSERT_NO_FATAL_FAILURE(Run(false, 2, &plain));
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(Run(true, 2, &captured));
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(captured[i].tokens, plain[i].tokens);
    EXPECT_EQ(captured[i].logits, plain[i].logits);
  }
}

// A single sequence has its own kernels, which hand rows to each other while they run.
TEST_P(GpuSteps, OneSequenceAlone) {
  std::vector<TestSequence> plain, captured;
  ASSERT_NO_FATAL_FAILURE(Run(false, 1, &plain));
  if (IsSkipped()) return;
  ExpectTheCpus(plain);
  ASSERT_NO_FATAL_FAILURE(Run(true, 1, &captured));
  EXPECT_EQ(captured[0].tokens, plain[0].tokens);
  EXPECT_EQ(captured[0].logits, plain[0].logits);
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuSteps,
                         testing::Values(Format{"bf16", WeightFormat::kCompute, DType::kBF16, 0.05},
                                         Format{"fp8", WeightFormat::kFp8, DType::kBF16, 0.1},
                                         Format{"nvfp4", WeightFormat::kNvfp4, DType::kBF16, 0.35},
                                         Format{"bf16_kv_fp8", WeightFormat::kCompute,
                                                DType::kF8E4M3, 0.15}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace aisp
