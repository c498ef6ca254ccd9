// The model families on the GPU against recorded outputs of Hugging Face transformers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "engine/async_executor.h"
#include "model/files.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

struct RigOptions {
  int32_t block_tokens = 16;
  DType compute = DType::kF32;
  std::optional<DType> kv = std::nullopt;
  std::optional<WeightFormat> format = WeightFormat::kCompute;
  int32_t output_tokens = 0;
};

Rig OpenRigAt(CudaBackend& gpu, const std::string& directory, const RigOptions& o) {
  AsyncExecutorOptions options;
  options.base.model.compute_dtype = o.compute;
  options.base.model.max_batch_tokens = 256;
  options.base.model.weight_format = o.format;
  options.base.model.output_tokens = o.output_tokens;
  options.base.max_slots = 16;
  options.base.block_tokens = o.block_tokens;
  options.base.num_blocks = 256;
  options.base.kv_dtype = o.kv;
  auto executor = AsyncExecutor::Create(directory, options, *gpu.device, *gpu.ops);
  AISP_CHECK_MSG(executor.has_value(), executor.error().ToString());
  return Rig::Around(std::move(gpu.device), std::move(gpu.ops), std::move(*executor));
}

Rig OpenRig(CudaBackend& gpu, const std::string& family, const RigOptions& o) {
  return OpenRigAt(gpu, GoldenDirectory(family), o);
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i])) return 1e9;
    error += std::pow(got[i] - want[i], 2);
    norm += std::pow(want[i], 2);
  }
  return std::sqrt(error / norm);
}

class GpuGolden : public testing::TestWithParam<std::string> {};

TEST_P(GpuGolden, F32GivesTheRecordedLogitsAndTokens) {
  for (const int32_t chunk : {256, 7}) {
    AISP_OPEN_GPU(gpu);
    Rig rig = OpenRig(gpu, GetParam(), {.block_tokens = chunk == 7 ? 64 : 16});
    for (const GoldenCase& c : LoadGolden(GetParam())) {
      auto sequence = rig.NewSequence(c.prompt, static_cast<int32_t>(c.prompt.size()));
      const std::vector<float> logits = rig.LastLogits(sequence, chunk);
      double worst = 0;
      for (size_t i = 0; i < logits.size(); ++i) {
        ASSERT_FALSE(std::isnan(logits[i]));
        worst = std::max(worst, std::fabs(static_cast<double>(logits[i] - c.last_logits[i])));
      }
      EXPECT_LT(worst, 2e-3);
      if (c.min_top2_margin > 1e-3) {
        EXPECT_EQ(rig.Greedy(c.prompt, static_cast<int32_t>(c.greedy.size()), chunk), c.greedy);
      }
    }
  }
}

// bf16 rounds weights, activations and KV to 8 bits of mantissa.
TEST_P(GpuGolden, Bf16StaysCloseToTheRecordedLogits) {
  AISP_OPEN_GPU(gpu);
  Rig rig = OpenRig(gpu, GetParam(), {.compute = DType::kBF16});
  for (const GoldenCase& c : LoadGolden(GetParam())) {
    auto sequence = rig.NewSequence(c.prompt, static_cast<int32_t>(c.prompt.size()));
    const double error = RelativeError(rig.LastLogits(sequence, 256), c.last_logits);
    RecordProperty("relative_error", std::to_string(error));
    printf("%s bf16: %.4f\n", GetParam().c_str(), error);
    // Routing is discrete: where two experts are close, rounding may change the choice, and then
    // the logits by more.
    const bool routed = GetParam().find("moe") != std::string::npos || GetParam() == "mixtral" ||
                        GetParam() == "deepseek-v3";
    EXPECT_LT(error, routed ? 0.2 : 0.05);
    if (c.min_top2_margin > 0.1) {
      EXPECT_EQ(rig.Greedy(c.prompt, static_cast<int32_t>(c.greedy.size()), 256), c.greedy);
    }
  }
}

TEST_P(GpuGolden, WeightsAsTheCheckpointHasThemGiveCloseLogits) {
  if (GetParam().find("fp8") == std::string::npos && GetParam().find("nvfp4") == std::string::npos)
    GTEST_SKIP() << "not a quantised checkpoint";
  AISP_OPEN_GPU(gpu);
  Rig rig = OpenRig(gpu, GetParam(), {.compute = DType::kBF16, .format = std::nullopt});
  for (const GoldenCase& c : LoadGolden(GetParam())) {
    auto sequence = rig.NewSequence(c.prompt, static_cast<int32_t>(c.prompt.size()));
    const double error = RelativeError(rig.LastLogits(sequence, 256), c.last_logits);
    printf("%s native: %.4f\n", GetParam().c_str(), error);
    EXPECT_LT(error, 0.05);
  }
}

// In f32 the same bits; other shapes of a product may have another kernel.
TEST_P(GpuGolden, LogitsOfTheFirstTokensAreThoseOfAll) {
  constexpr int32_t kFirst = 96;
  if (const auto gpu = OpenTestGpu(); !gpu) GTEST_SKIP() << gpu.error().message;
  const std::vector<TokenId> prompt = LoadGolden(GetParam()).front().prompt;
  for (const auto& [compute, format] :
       {std::pair{DType::kF32, std::optional(WeightFormat::kCompute)},
        std::pair{DType::kBF16, std::optional(WeightFormat::kCompute)},
        std::pair{DType::kBF16, std::optional<WeightFormat>()}}) {
    const auto logits = [&, c = compute, f = format](int32_t count) {
      auto gpu = OpenTestGpu();
      AISP_CHECK_MSG(gpu.has_value(), gpu.error().message);
      Rig rig = OpenRig(*gpu, GetParam(), {.compute = c, .format = f, .output_tokens = count});
      auto sequence = rig.NewSequence(prompt, static_cast<int32_t>(prompt.size()));
      return rig.LastLogits(sequence, 7);
    };
    std::vector<float> all = logits(0), first = logits(kFirst);
    EXPECT_EQ(std::count(first.begin() + kFirst, first.end(), kNoLogit),
              std::ssize(first) - kFirst);
    all.resize(kFirst), first.resize(kFirst);
    if (compute == DType::kF32) {
      EXPECT_EQ(first, all);
    } else {
      EXPECT_LT(RelativeError(first, all), 0.01);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GpuGolden,
                         testing::Values("llama", "llama3-rope", "llama-mha-hd128",
                                         "mistral-window", "qwen2", "qwen3", "mixtral", "qwen3-moe",
                                         "deepseek-v3", "llama-fp8-channel", "llama-fp8-block",
                                         "llama-nvfp4"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Greedy tokens of some of the golden prompts, through an executor.
class GreedyBatch {
 public:
  static constexpr int32_t kBlocks = 12;  // of a prompt
  static constexpr size_t kDecodeSteps = 23;

  // `got` has a list of tokens for each case.
  GreedyBatch(AsyncExecutor& executor, std::span<const GoldenCase> cases,
              std::span<std::vector<TokenId>> got)
      : executor_(executor), cases_(cases), got_(got), lengths_(cases.size()), tables_(got.size()) {
    greedy_.temperature = 0;
  }

  // Each prompt in its own step.
  void Prefill(size_t i) {
    const auto sequence = static_cast<int32_t>(i);
    for (int32_t b = 0; b < kBlocks; ++b) tables_[i].push_back(sequence * kBlocks + b);
    const std::vector<TokenId>& prompt = cases_[i].prompt;
    const auto count = static_cast<int32_t>(prompt.size());
    ASSERT_LE(count + 24, kBlocks * 16);
    std::vector<int32_t> positions(prompt.size()), slots(prompt.size(), sequence);
    std::iota(positions.begin(), positions.end(), 0);
    const SequenceRows rows[] = {{0, count, count, 0}};
    const int32_t logit_rows[] = {count - 1};
    SampleRow sample;
    sample.slot = sequence;
    sample.position = static_cast<uint32_t>(count);
    sample.params = &greedy_;
    StepInput input;
    input.batch = {prompt, positions, slots, rows, tables_[i], logit_rows};
    input.samples = {&sample, 1};
    auto ticket = executor_.Launch(input);
    ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
    auto result = executor_.Collect(*ticket);
    ASSERT_TRUE(result.has_value()) << result.error().message;
    got_[i].push_back(result->tokens[0].token);
    lengths_[i] = count;
  }

  // All prompts together, with two steps in flight and tokens that stay on the device.
  void Decode() {
    std::vector<Step> steps(kDecodeSteps);
    Launch(steps[0]);
    for (size_t k = 0; k < steps.size(); ++k) {
      if (k + 1 < steps.size()) Launch(steps[k + 1]);
      auto result = executor_.Collect(steps[k].ticket);
      ASSERT_TRUE(result.has_value()) << result.error().message;
      for (size_t i = 0; i < got_.size(); ++i) got_[i].push_back(result->tokens[i].token);
    }
  }

 private:
  struct Step {
    std::vector<TokenId> tokens;
    std::vector<int32_t> positions, slots, table, logit_rows;
    std::vector<SequenceRows> rows;
    std::vector<SampleRow> samples;
    Ticket ticket;
  };

  void Launch(Step& s) {
    for (size_t i = 0; i < got_.size(); ++i) {
      const auto sequence = static_cast<int32_t>(i);
      s.tokens.push_back(kTokenOnDevice);
      s.positions.push_back(lengths_[i]);
      s.slots.push_back(sequence);
      s.rows.push_back({sequence, 1, lengths_[i] + 1, static_cast<int32_t>(s.table.size())});
      s.table.insert(s.table.end(), tables_[i].begin(), tables_[i].end());
      s.logit_rows.push_back(sequence);
      SampleRow sample;
      sample.logit_index = sample.slot = sequence;
      sample.position = static_cast<uint32_t>(++lengths_[i]);
      sample.params = &greedy_;
      s.samples.push_back(sample);
    }
    StepInput input;
    input.batch = {s.tokens, s.positions, s.slots, s.rows, s.table, s.logit_rows};
    input.samples = s.samples;
    auto ticket = executor_.Launch(input);
    AISP_CHECK_MSG(ticket.has_value(), ticket.error().message);
    s.ticket = *ticket;
  }

  AsyncExecutor& executor_;
  const std::span<const GoldenCase> cases_;
  const std::span<std::vector<TokenId>> got_;
  SamplingParams greedy_;
  std::vector<int32_t> lengths_;
  std::vector<std::vector<int32_t>> tables_;
};

// A step in a graph or operation by operation, alone or in a batch: the drawn tokens are the same.
TEST(GpuExecutor, BatchedGreedyTokensAreThoseOfEachAloneAndOfPlainLaunches) {
  std::vector<std::vector<TokenId>> alone;
  const auto cases = LoadGolden("llama");
  for (const bool graphs : {false, true}) {
    for (const size_t batch : {size_t{1}, cases.size()}) {
      AISP_OPEN_GPU(gpu);
      AsyncExecutorOptions options;
      options.base.model.compute_dtype = DType::kF32;
      options.base.max_slots = 16;
      options.base.num_blocks = 256;
      options.use_graphs = graphs;
      auto made = AsyncExecutor::Create(GoldenDirectory("llama"), options, *gpu.device, *gpu.ops);
      ASSERT_TRUE(made.has_value()) << made.error().message;
      std::vector<std::vector<TokenId>> got(cases.size());
      for (size_t first = 0; first < cases.size(); first += batch) {
        const size_t n = std::min(batch, cases.size() - first);
        GreedyBatch together(**made, std::span(cases).subspan(first, n),
                             std::span(got).subspan(first, n));
        for (size_t i = 0; i < n; ++i) together.Prefill(i);
        together.Decode();
        if (HasFatalFailure()) return;
      }
      for (size_t i = 0; i < cases.size(); ++i) {
        if (cases[i].min_top2_margin > 1e-3) {
          EXPECT_EQ(got[i], cases[i].greedy) << graphs << batch;
        }
      }
      if (alone.empty()) {
        alone = got;
      } else {
        EXPECT_EQ(got, alone) << "graphs " << graphs << " batch " << batch;
      }
    }
  }
}

struct Step {
  TokenId token = -1;
  float margin = 0;  // its logit's lead over the next best one
};

Step BestOf(const std::vector<float>& logits) {
  Step step;
  step.token = ArgMax(logits);
  float second = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<TokenId>(i) != step.token) second = std::max(second, logits[i]);
  }
  step.margin = logits[static_cast<size_t>(step.token)] - second;
  return step;
}

// The number of rows decides the kernel, and bf16 rounds after each. The greedy token must be the
// same wherever its logit leads by more than rounding can change, which is nearly everywhere.
TEST(GpuExecutor, Bf16GreedyTokensAloneAndBatchedAreTheSameBeyondAMargin) {
  constexpr float kMargin = 0.25f;
  constexpr size_t kSteps = 40;
  const std::string directory = StoryDirectory("story-7m");
  if (directory.empty()) GTEST_SKIP() << "models/story-7m is not there";
  const auto text = ReadTextFile(directory + "/expected.json");
  ASSERT_TRUE(text.has_value());
  std::vector<std::vector<TokenId>> prompts, stories;
  const nlohmann::json expected = nlohmann::json::parse(*text);
  for (const auto& c : expected["cases"]) {
    prompts.push_back(c["prompt_ids"].get<std::vector<TokenId>>());
    stories.push_back(c["greedy_ids"].get<std::vector<TokenId>>());
    stories.back().resize(std::min(stories.back().size(), kSteps));
  }
  ASSERT_FALSE(prompts.empty());
  AISP_OPEN_GPU(gpu);
  Rig rig = OpenRigAt(gpu, directory, {.compute = DType::kBF16});
  const auto sequence_of = [&](size_t i) {
    std::vector<TokenId> tokens = prompts[i];
    tokens.insert(tokens.end(), stories[i].begin(), stories[i].end());
    const auto length = static_cast<int32_t>(tokens.size());
    return rig.NewSequence(std::move(tokens), length);
  };
  // Feeds the recorded story, whatever is drawn, so that every step can be compared.
  std::vector<std::vector<Step>> alone(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    auto sequence = sequence_of(i);
    int32_t rows = static_cast<int32_t>(prompts[i].size());
    for (size_t k = 0; k < stories[i].size(); ++k, rows = 1)
      alone[i].push_back(BestOf(rig.Step({{&sequence, rows}})[0]));
  }
  std::vector<Rig::Sequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) sequences.push_back(sequence_of(i));
  size_t steps = 0, beyond = 0;
  float widest_difference = 0;
  for (size_t k = 0; k < kSteps; ++k) {
    std::vector<Rig::Rows> rows;
    std::vector<size_t> who;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (k >= stories[i].size()) continue;
      rows.push_back({&sequences[i], k == 0 ? static_cast<int32_t>(prompts[i].size()) : 1});
      who.push_back(i);
    }
    if (rows.empty()) break;
    const auto logits = rig.Step(rows);
    for (size_t j = 0; j < who.size(); ++j) {
      const Step& own = alone[who[j]][k];
      ++steps;
      const bool same = ArgMax(logits[j]) == own.token;
      if (!same) widest_difference = std::max(widest_difference, own.margin);
      if (own.margin <= kMargin) continue;
      ++beyond;
      EXPECT_TRUE(same) << "prompt " << who[j] << " step " << k << " margin " << own.margin;
    }
  }
  printf("%zu steps, %zu beyond a margin of %g; tokens differ up to %g\n", steps, beyond,
         static_cast<double>(kMargin), static_cast<double>(widest_difference));
  EXPECT_GT(beyond, steps * 3 / 4);
}

// Copies each layer's keys out of the pool when the layer is reported.
class KeySink final : public LayerSink {
 public:
  KeySink(Device& device, const ServingExecutor& executor) : device_(device), executor_(executor) {}
  void OnLayer(int32_t layer, std::span<const LayerSlice> slices) override {
    layers.push_back(layer);
    const KvLayout& layout = executor_.kv_layout();
    auto stream = device_.CreateStream();
    for (const LayerSlice& slice : slices) {
      for (int32_t p = slice.token_begin; p < slice.token_end; ++p) {
        const BlockId block = slice.blocks[static_cast<size_t>(p / layout.block_tokens)];
        std::vector<float> key(static_cast<size_t>(layout.head_dim));
        const auto* from =
            static_cast<const std::byte*>(executor_.kv_pool().data()) +
            layout.Offset(layer, block) +
            static_cast<size_t>(p % layout.block_tokens) * key.size() * sizeof(float);
        AISP_CHECK(
            device_.Copy(key.data(), from, key.size() * sizeof(float), **stream).has_value());
        AISP_CHECK(device_.Synchronize(**stream).has_value());
        for (const float v : key) {
          if (v != 0) {
            ++keys_present;
            break;
          }
        }
      }
    }
  }
  std::vector<int32_t> layers;
  int keys_present = 0;

 private:
  Device& device_;
  const ServingExecutor& executor_;
};

TEST(GpuExecutor, LayersAreReportedInOrderWithTheirKvInThePool) {
  AISP_OPEN_GPU(gpu);
  Rig rig = OpenRig(gpu, "llama", {});
  KeySink sink(*rig.device, *rig.executor);
  auto a = rig.NewSequence({1, 2, 3, 4, 5}, 8);
  auto b = rig.NewSequence({9, 8, 7}, 8);
  rig.Step({{&a, 5}, {&b, 3}}, &sink);
  EXPECT_EQ(sink.layers, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(sink.keys_present, 16);
}

}  // namespace
}  // namespace aisp
