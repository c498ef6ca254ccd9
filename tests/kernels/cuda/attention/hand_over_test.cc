// Attention of one sequence between the layers of a single-row step. Rows handed over as slots
// while the kernels run must give the same bits as rows in memory.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cuda/attention/attention.h"
#include "tests/kernels/cuda/attention/attention_case.h"
#include "tests/kernels/cuda/linear/half_layer.h"

namespace aisp::cuda {
namespace {

using test::DeviceVector;
using test::Half;

constexpr int32_t kHeads = 8;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kDim = 128;
constexpr int32_t kBlockTokens = 16;
constexpr int32_t kQkv = (kHeads + 2 * kKvHeads) * kDim;
constexpr int64_t kHidden = 1152;
constexpr int kLayers = 5;

// Layers of the same weights with a pool each, in the order of a decode step: attention, then a
// chain.
class HandOver : public testing::Test {
 protected:
  void SetUp() override {
    if (!HaveGpu()) GTEST_SKIP() << "no GPU";
    auto kernels = LinearKernels::Create({});
    if (!kernels && kernels.error().code == Code::kUnimplemented) {
      GTEST_SKIP() << kernels.error().message;
    }
    ASSERT_TRUE(kernels) << kernels.error().ToString();
    kernels_ = std::move(*kernels);
    AttentionConfig config;
    config.num_heads = kHeads;
    config.num_kv_heads = kKvHeads;
    config.head_dim = kDim;
    config.block_tokens = kBlockTokens;
    config.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    config.max_sequences = 1;
    config.max_rows = 1;
    auto attention = Attention::Create(config);
    ASSERT_TRUE(attention) << attention.error().ToString();
    attention_ = std::move(*attention);
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    workspace_ = std::make_unique<DeviceVector<uint8_t>>(attention_->workspace_bytes());
    ASSERT_TRUE(attention_->ZeroWorkspace(workspace_->get(), stream_));
    std::normal_distribution<float> normal;
    std::vector<uint16_t> start(kHidden);
    for (uint16_t& v : start) v = test::ToBf16(normal(random_));
    start_ = std::make_unique<DeviceVector<uint16_t>>(start);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // A step with so many keys in context; 0: its only row is padding.
  void Prepare(int32_t context) {
    const int32_t blocks = std::max(1, (context + kBlockTokens - 1) / kBlockTokens);
    std::vector<int32_t> table(static_cast<size_t>(blocks));
    for (int32_t b = 0; b < blocks; ++b) table[static_cast<size_t>(b)] = blocks - 1 - b;
    const int32_t position = context - 1;
    spans_ = std::make_unique<DeviceVector<RowSpan>>(std::vector<RowSpan>{{0, 1, context, 0}});
    positions_ = std::make_unique<DeviceVector<int32_t>>(std::vector<int32_t>{position});
    slots_ = std::make_unique<DeviceVector<int32_t>>(std::vector<int32_t>{
        context > 0 ? table[static_cast<size_t>(position / kBlockTokens)] * kBlockTokens +
                          position % kBlockTokens
                    : 0});
    table_ = std::make_unique<DeviceVector<int32_t>>(table);
    cos_sin_ = std::make_unique<DeviceVector<float>>(
        std::vector<float>(static_cast<size_t>(std::max(1, context)) * kDim, 0.7f));
    pool_elements_ = static_cast<size_t>(blocks) * kBlockTokens * kKvHeads * kDim * 2;
    std::normal_distribution<float> normal;
    keys_.resize(pool_elements_ * kLayers);
    for (uint16_t& v : keys_) v = test::ToBf16(normal(random_));
    pool_ = std::make_unique<DeviceVector<uint16_t>>(keys_);
    blocks_ = blocks;
  }

  void Attend(Half& half, int layer, const TokenSlots& slots) {
    RopeAppendCall rope;
    rope.qkv = half.y_data();
    rope.qkv_type = DType::kBF16;
    rope.qkv_row_stride = kQkv;
    rope.cos_sin = cos_sin_->get();
    rope.rows = 1;
    rope.num_heads = kHeads;
    rope.positions = positions_->get();
    rope.kv_slots = slots_->get();
    const auto kv =
        attention_->MakeLayer(pool_->get() + pool_elements_ * static_cast<size_t>(layer), blocks_);
    ASSERT_TRUE(kv) << kv.error().ToString();
    AttentionCall call;
    call.out = half.x();
    call.out_row_stride = kHeads * kDim;
    call.layer = &*kv;
    call.token_slots = slots;
    const Status done = attention_->RunDecode({spans_->get(), table_->get(), 1}, rope, call,
                                              workspace_->get(), stream_);
    ASSERT_TRUE(done) << done.error().ToString();
  }

  // The q, k and v of the step's first layer.
  LinearCall First(Half& half) {
    LinearCall call = half.Steps().back().call;
    call.x = start_->get();
    return call;
  }

  // One step whose layers and attention hand over slots or rows. Nobody reads the last chain's q, k
  // and v.
  void Step(Half& half, bool by_slots) {
    const std::vector<ChainStep> steps = half.Steps();
    ChainStep first;
    first.call = First(half);
    EXPECT_TRUE(kernels_->LaunchChain(std::span(&first, 1), {true, false, by_slots}, stream_));
    for (int layer = 0; layer < kLayers; ++layer) {
      Attend(half, layer, by_slots ? kernels_->token_slots() : TokenSlots{});
      const bool publishes = by_slots && layer + 1 < kLayers;
      EXPECT_TRUE(kernels_->LaunchChain(steps, {true, by_slots, publishes}, stream_));
    }
  }

  std::vector<uint16_t> Outcome(const Half& half) {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    std::vector<uint16_t> bits = half.Bits();
    const std::vector<uint16_t> pool = pool_->Get();
    bits.insert(bits.end(), pool.begin(), pool.end());
    return bits;
  }
  void Restart(Half& half) {
    half.Reset(stream_);
    half.RestoreX();
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    pool_->Set(keys_);
  }

  std::mt19937 random_{std::random_device{}()};
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<LinearKernels> kernels_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<DeviceVector<uint8_t>> workspace_;
  std::unique_ptr<DeviceVector<RowSpan>> spans_;
  std::unique_ptr<DeviceVector<int32_t>> table_, positions_, slots_;
  std::unique_ptr<DeviceVector<float>> cos_sin_;
  std::unique_ptr<DeviceVector<uint16_t>> start_;  // input of the step's first layer
  std::unique_ptr<DeviceVector<uint16_t>> pool_;
  std::vector<uint16_t> keys_;  // of all layers
  size_t pool_elements_ = 0;    // of a layer
  int32_t blocks_ = 0;
};

TEST_F(HandOver, SlotsGiveTheBitsOfRows) {
  for (const auto format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
    Half half(*kernels_, random_, format, {kHeads * kDim, kHidden, 2944, kQkv, false}, 1);
    for (const int32_t context : {0, 1, 16, 17, 300, 1025}) {
      SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", context " +
                   std::to_string(context));
      Prepare(context);
      Restart(half);
      Step(half, false);
      const std::vector<uint16_t> expected = Outcome(half);
      Restart(half);
      Step(half, true);
      const std::vector<uint16_t> handed = Outcome(half);
      ASSERT_TRUE(handed == expected || context == 0);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      Step(half, true);
      ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
      for (int run = 0; run < 50; ++run) {
        Restart(half);
        ASSERT_EQ(cudaGraphLaunch(replay, stream_), cudaSuccess);
        const std::vector<uint16_t> bits = Outcome(half);  // padding: it must end
        ASSERT_TRUE(bits == expected || context == 0) << "replay " << run;
      }
      cudaGraphExecDestroy(replay);
      cudaGraphDestroy(graph);
    }
  }
}

// Steps with and without slots in mixed order.
TEST_F(HandOver, StepsWithSlotsAndStepsWithRowsLeaveNothingBehind) {
  Half half(*kernels_, random_, WeightFormat::kFp8, {kHeads * kDim, kHidden, 2944, kQkv, false}, 1);
  Prepare(300);
  Restart(half);
  Step(half, false);
  const std::vector<uint16_t> expected = Outcome(half);
  for (const bool by_slots : {true, false, true, true, false, false, true}) {
    Restart(half);
    Step(half, by_slots);
    ASSERT_TRUE(Outcome(half) == expected) << by_slots;
  }
}

}  // namespace
}  // namespace aisp::cuda
