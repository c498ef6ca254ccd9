// ModelExecutor's contract beyond logits: the order of layers, tokens that stay in their slots,
// rows that fail alone.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "tests/model/golden.h"

namespace aisp {
namespace {

class ExecutorTest : public testing::Test {
 protected:
  Rig rig_ = Rig::Open(GoldenDirectory("llama"), {.num_blocks = 32});
};

// Reads like a peer: through its own mapping of the pool.
class ReadingSink final : public LayerSink {
 public:
  explicit ReadingSink(const ServingExecutor& executor) : layout_(executor.kv_layout()) {
    const Buffer& pool = executor.kv_pool();
    bytes_ = pool.bytes();
    pool_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, pool.fd(), 0);
  }
  ~ReadingSink() override { munmap(pool_, bytes_); }
  void OnLayer(int32_t layer, std::span<const LayerSlice> slices) override {
    layers.push_back(layer);
    for (const LayerSlice& s : slices) {
      for (int32_t p = s.token_begin; p < s.token_end; ++p) {
        const BlockId block = s.blocks[static_cast<size_t>(p / layout_.block_tokens)];
        const auto* key = reinterpret_cast<const float*>(static_cast<const std::byte*>(pool_) +
                                                         layout_.Offset(layer, block)) +
                          p % layout_.block_tokens * layout_.head_dim;
        float sum = 0;
        for (int32_t d = 0; d < layout_.head_dim; ++d) sum += std::fabs(key[d]);
        if (sum > 0) ++keys_present;
      }
    }
  }
  std::vector<int32_t> layers;
  int keys_present = 0;

 private:
  const KvLayout layout_;
  void* pool_ = nullptr;
  size_t bytes_ = 0;
};

TEST_F(ExecutorTest, TheSinkSeesEveryLayerInOrderWithItsKvInTheSharedPool) {
  ASSERT_GE(rig_.executor->kv_pool().fd(), 0);
  ReadingSink sink(*rig_.executor);
  auto a = rig_.NewSequence({1, 2, 3, 4, 5}, 8);
  auto b = rig_.NewSequence({9, 8, 7}, 8);
  rig_.Step({{&a, 5}, {&b, 3}}, &sink);
  EXPECT_EQ(sink.layers, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(sink.keys_present, 16);
}

// One step of one sequence of one block.
Result<StepResult> LaunchOne(ServingExecutor& executor, TokenId token, int32_t position,
                             const SamplingParams& params, int32_t slot) {
  const TokenId tokens[] = {token};
  const int32_t positions[] = {position}, slots[] = {slot}, table[] = {0}, rows[] = {0};
  const SequenceRows sequences[] = {{0, 1, position + 1, 0}};
  SampleRow sample;
  sample.slot = slot;
  sample.position = static_cast<uint32_t>(position + 1);
  sample.params = &params;
  StepInput input;
  input.batch = {tokens, positions, slots, sequences, table, rows};
  input.samples = {&sample, 1};
  AISP_ASSIGN_OR_RETURN(const Ticket ticket, executor.Launch(input));
  return executor.Collect(ticket);
}

TEST_F(ExecutorTest, ATokenOnTheDeviceIsTheOneLastDrawnForItsSlot) {
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<TokenId> known, on_device;
  for (int run = 0; run < 2; ++run) {
    TokenId token = 1;
    for (int32_t position = 0; position < 12; ++position) {
      const bool device = run == 1 && position > 0;
      const auto result =
          LaunchOne(*rig_.executor, device ? kTokenOnDevice : token, position, greedy, 3);
      ASSERT_TRUE(result.has_value()) << result.error().message;
      token = result->tokens.at(0).token;
      (run == 0 ? known : on_device).push_back(token);
    }
  }
  EXPECT_EQ(known, on_device);
  EXPECT_EQ(known[0], LoadGolden("llama")[0].greedy[0]);
}

TEST_F(ExecutorTest, AStepThatDoesNotFitIsAnErrorAndTheNextOneRuns) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(LaunchOne(*rig_.executor, 512, 0, greedy, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(LaunchOne(*rig_.executor, -7, 0, greedy, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(LaunchOne(*rig_.executor, 1, 16, greedy, 0).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(LaunchOne(*rig_.executor, 1, 0, greedy, 0).has_value());
}

TEST_F(ExecutorTest, ARowWithNanFailsAndItsNeighbourGoesOn) {
  auto bad = rig_.NewSequence({1, 2, 3}, 16);
  auto good = rig_.NewSequence({1, 2, 3}, 16);
  const auto expected = rig_.Step({{&bad, 2}, {&good, 2}}).back();
  const KvLayout& layout = rig_.executor->kv_layout();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(
      static_cast<std::byte*>(rig_.executor->kv_pool().data()) + layout.Offset(0, bad.blocks[0]),
      &nan, sizeof(nan));
  const auto logits = rig_.Step({{&bad, 1}, {&good, 1}});
  SamplingParams params;
  SampleRow row;
  row.params = &params;
  Sampler sampler(512);
  EXPECT_EQ(sampler.Sample(logits[0], row).status.error().code, Code::kInternal);
  EXPECT_TRUE(sampler.Sample(logits[1], row).status.has_value());
}

TEST(KvLayoutOfAModel, IsCheckedAndSizedByMemory) {
  const KvShape shape{2, 2, 32};
  const auto layout = MakeKvLayout(shape, 16, DType::kBF16, 0, 1 << 20);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->num_blocks, 128);
  EXPECT_LE(layout->PoolBytes(), size_t{1} << 20);
  EXPECT_EQ(MakeKvLayout(shape, 24, DType::kF32, 8, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(MakeKvLayout(shape, 16, DType::kI32, 8, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(MakeKvLayout(shape, 16, DType::kF32, 0, 100).error().code, Code::kInvalidArgument);
}

TEST(ModelLoading, NamesWhatIsWrong) {
  const auto device = MakeTestDevice();
  const auto ops = MakeTestOps();
  const auto missing = Model::Load("/nonexistent", {}, *device, *ops);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  ModelOptions options;
  options.max_context = 5000;
  const auto long_context = Model::Load(GoldenDirectory("llama"), options, *device, *ops);
  EXPECT_EQ(long_context.error().code, Code::kInvalidArgument);
  EXPECT_NE(long_context.error().message.find("4096"), std::string::npos);
}

TEST(ModelLoading, SaysHowFarItIs) {
  const auto device = MakeTestDevice();
  const auto ops = MakeTestOps();
  for (const auto seed : {std::optional<uint64_t>(), std::optional<uint64_t>(1)}) {
    std::vector<uint64_t> done;
    uint64_t total = 0;
    ModelOptions options;
    options.random_weights = seed;
    options.on_progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
      done.push_back(done_bytes);
      total = total_bytes;
    };
    ASSERT_TRUE(Model::Load(GoldenDirectory("llama"), options, *device, *ops));
    ASSERT_GT(done.size(), 4u);  // reported per matrix, not only per layer
    EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
    EXPECT_GT(done.front(), 0u);
    EXPECT_LT(done[done.size() / 2], total);
    EXPECT_EQ(done.back(), total);
  }
}

// Masks are requested after the forward pass: the allowed tokens can depend on anything until then.
TEST_F(ExecutorTest, WhatMayBeDrawnIsSaidBetweenForwardAndDraw) {
  auto& executor = *rig_.executor;
  const int32_t vocabulary = executor.model().spec().vocabulary;
  auto a = rig_.NewSequence({1, 2, 3}, 8);
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::vector<int32_t> positions = {0, 1, 2}, slots = {0, 0, 0}, logit_rows = {1, 2};
  const std::vector<SequenceRows> sequences = {{0, 3, 3, 0}};
  SamplingParams params;
  params.temperature = 0;
  std::vector<uint32_t> mask(static_cast<size_t>(vocabulary + 31) / 32);
  // Two draws of one sequence.
  std::vector<SampleRow> samples(2);
  for (int32_t i = 0; i < 2; ++i) {
    samples[static_cast<size_t>(i)].logit_index = i;
    samples[static_cast<size_t>(i)].position = static_cast<uint32_t>(2 + i);
    samples[static_cast<size_t>(i)].params = &params;
  }
  samples[1].mask = mask;
  StepInput input;
  input.step = 1;
  input.batch = ForwardBatch{tokens, positions, slots, sequences, a.table, logit_rows};
  input.samples = samples;
  int calls = 0;
  input.before_draw = [&] {
    ++calls;
    mask[0] = 1u << 7;
  };
  const auto ticket = executor.Launch(input);
  ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
  const auto result = executor.Collect(*ticket);
  ASSERT_TRUE(result.has_value());
  ASSERT_EQ(result->tokens.size(), 2u);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(result->tokens[0].token, ArgMax(rig_.ReadLogits(0)));
  EXPECT_EQ(result->tokens[1].token, 7);
}

}  // namespace
}  // namespace aisp
