// A programme and the CPU's table: edges, layers with their own pool shapes, sums over devices,
// refusals.
#include "kernels/programme.h"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstring>
#include <mutex>
#include <thread>

#include "common/random.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops.h"

namespace aisp {
namespace {

struct Tensor {
  Tensor(int64_t rows, int64_t cols, uint64_t seed = 0)
      : values(static_cast<size_t>(rows * cols)),
        view(TensorView::Dense(values.data(), DType::kF32, {rows, cols})) {
    SplitMix64 random(seed);
    for (float& v : values) v = seed == 0 ? 0.0f : static_cast<float>(random.Uniform()) - 0.5f;
  }
  std::vector<float> values;
  TensorView view;
};

class ProgrammeTest : public testing::Test {
 protected:
  std::unique_ptr<PackedLinear> Pack(int64_t out, int64_t in, Epilogue epilogue, uint64_t seed) {
    weights_.push_back(std::make_unique<Tensor>(out, in, seed));
    LinearSource source;
    source.parts = std::span(&weights_.back()->view, 1);
    source.epilogue = epilogue;
    auto packed = ops_->PackLinear(source);
    EXPECT_TRUE(packed.has_value());
    return std::move(*packed);
  }
  static Bucket BucketOf(int32_t rows) {
    Bucket bucket;
    bucket.sequences = bucket.rows = rows;
    bucket.rows_per_sequence = 1;
    return bucket;
  }
  Status Run(const Programme& programme, const Bucket& bucket, const StepInputs& inputs,
             std::vector<int32_t>* layers = nullptr) {
    AISP_ASSIGN_OR_RETURN(const auto step, ops_->Prepare(programme, ops_->Canonical(bucket)));
    return step->Run(
        inputs,
        [&](int32_t layer) {
          if (layers != nullptr) layers->push_back(layer);
        },
        *stream_);
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Stream> stream_ = std::move(*device_->CreateStream());
  std::unique_ptr<Ops> ops_ = std::move(*MakeCpuOps({}));
  std::vector<std::unique_ptr<Tensor>> weights_;
};

constexpr int64_t kHidden = 32;

TEST_F(ProgrammeTest, AValueWithOneReaderMayStayInALaunchAndAResidualAlwaysMay) {
  Tensor hidden(16, kHidden), normed(16, kHidden), inner(16, kHidden), gain(1, kHidden, 1);
  gain.view = TensorView::Dense(gain.values.data(), DType::kF32, {kHidden});
  const auto store = Pack(kHidden, kHidden, Epilogue::kStore, 2);
  const auto add = Pack(kHidden, kHidden, Epilogue::kAccumulate, 3);
  ProgrammeBuilder b;
  b.GivenResidual(hidden.view);
  const ValueId x = b.Norm(b.residual(), {hidden.view, nullptr, gain.view, normed.view});
  const ValueId y = b.Linear(x, {store.get(), normed.view, inner.view}, "one");
  b.LinearAdd(y, {add.get(), inner.view, hidden.view}, "two");
  const ValueId again = b.Norm(b.residual(), {hidden.view, nullptr, gain.view, normed.view});
  b.Linear(again, {store.get(), normed.view, inner.view}, "three");
  b.Linear(again, {store.get(), normed.view, inner.view}, "four");
  const Programme p = b.Finish();
  EXPECT_TRUE(p.Hands(0, 1, kInsideLaunch));
  EXPECT_TRUE(p.Hands(1, 2, kPublished));
  EXPECT_TRUE(p.Hands(2, 3, kInsideLaunch)) << "the residual stream stays in memory";
  EXPECT_FALSE(p.Hands(2, 3, kPublished));
  EXPECT_FALSE(p.Hands(3, 4, kInsideLaunch)) << "two read it";
  EXPECT_TRUE(p.Hands(3, 5, kAsRows));
  EXPECT_FALSE(p.Hands(0, 2, kAsRows)) << "no edge";
  EXPECT_EQ(p.OnlyReader(0), 1);
  EXPECT_EQ(p.OnlyReader(3), -1);
  EXPECT_EQ(p.Producer(2), 1);
  EXPECT_EQ(p.edges().size(), 7u);
}

// A prompt of five tokens in the second block of a pool.
struct PromptBatch {
  static constexpr int32_t kRows = 5, kBlock = 16;
  PromptBatch() {
    batch.rows = kRows;
    batch.num_sequences = 1;
    batch.longest_rows = kRows;
    batch.host_sequences = spans;
    batch.sequences = spans.data();
    batch.positions = positions.data();
    batch.kv_slots = slots.data();
    batch.block_tables = tables.data();
  }
  PromptBatch(const PromptBatch&) = delete;

  const std::vector<int32_t> positions = {0, 1, 2, 3, 4}, slots = {16, 17, 18, 19, 20},
                             tables = {1};
  const std::vector<RowSpan> spans = {{0, kRows, kRows, 0}};
  RaggedBatch batch;
};

// The nodes of a layer's attention, with random rows and an empty pool of two blocks.
struct LayerAttention {
  LayerAttention(int32_t heads, int32_t kv_heads, int32_t dim, uint64_t seed)
      : cos_sin(16, dim, 40 + seed),
        qkv(PromptBatch::kRows, int64_t{heads + 2 * kv_heads} * dim, seed),
        out(PromptBatch::kRows, int64_t{heads} * dim),
        kv{nullptr, DType::kF32, kv_heads, dim, PromptBatch::kBlock, 2},
        pool(2, static_cast<int64_t>(kv.block_bytes() / 4)) {
    kv.layer = pool.view.data;
    rope.qkv = qkv.view;
    rope.cos_sin = cos_sin.view;
    rope.num_heads = heads;
    attention = {qkv.view, dim, dim, heads, 0.3f, 0, {}, {}, out.view};
  }
  LayerAttention(const LayerAttention&) = delete;

  Tensor cos_sin, qkv, out;
  PagedKvView kv;
  Tensor pool;
  RopeAppendParams rope;
  AttentionParams attention;
};

// A layer with several heads of 32, and one with a single head of 64.
TEST_F(ProgrammeTest, LayersMayHavePoolsOfShapesOfTheirOwn) {
  constexpr int32_t kShapes[][3] = {{4, 2, 32}, {2, 1, 64}};
  const PromptBatch prompt;
  const RaggedBatch& batch = prompt.batch;
  std::vector<std::unique_ptr<LayerAttention>> made;
  std::vector<TensorView> outs, expected;
  std::vector<PagedKvView> pools;
  ProgrammeBuilder b;
  for (int32_t layer = 0; layer < 2; ++layer) {
    const auto& [heads, kv_heads, dim] = kShapes[layer];
    const auto make = [&]() -> LayerAttention& {
      made.push_back(
          std::make_unique<LayerAttention>(heads, kv_heads, dim, static_cast<uint64_t>(layer + 1)));
      return *made.back();
    };
    const LayerAttention& node = make();
    b.SetLayer(layer);
    b.Attend(b.RopeAppend(b.Given(node.qkv.view), node.rope), node.attention);
    outs.push_back(node.out.view);
    pools.push_back(node.kv);

    LayerAttention& call = make();
    call.rope.batch = call.attention.batch = batch;
    call.rope.kv = call.attention.kv = call.kv;
    ASSERT_TRUE(ops_->RopeAppend(call.rope, *stream_).has_value());
    ASSERT_TRUE(ops_->PagedAttention(call.attention, *stream_).has_value());
    expected.push_back(call.out.view);
  }
  Programme programme = b.Finish();
  ASSERT_TRUE(programme.BindKv(pools).has_value());
  Bucket bucket = BucketOf(PromptBatch::kRows);
  bucket.mode = StepMode::kPrefill;
  StepInputs inputs;
  inputs.batch = batch;
  std::vector<int32_t> layers;
  ASSERT_TRUE(Run(programme, bucket, inputs, &layers).has_value());
  EXPECT_EQ(layers, (std::vector<int32_t>{0, 1}));
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(std::memcmp(outs[i].data, expected[i].data, outs[i].bytes()), 0) << "layer " << i;

  std::swap(pools[0], pools[1]);
  const Status swapped = programme.BindKv(pools);
  ASSERT_FALSE(swapped.has_value());
  EXPECT_NE(swapped.error().message.find("layer 0"), std::string::npos) << swapped.error().message;
}

// Devices of one process: each adds its part once all have arrived.
class SumOverThreads final : public Collective {
 public:
  explicit SumOverThreads(int ranks) : ranks_(ranks), barrier_(ranks) {}
  int32_t ranks() const override { return ranks_; }
  Status AllReduceOnHost(float* values, int64_t count) override {
    {
      const std::lock_guard lock(mutex_);
      sum_.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) sum_[static_cast<size_t>(i)] += values[i];
    }
    barrier_.arrive_and_wait();
    std::copy(sum_.begin(), sum_.end(), values);
    barrier_.arrive_and_wait();
    {
      const std::lock_guard lock(mutex_);
      sum_.clear();
    }
    barrier_.arrive_and_wait();
    return {};
  }

 private:
  const int ranks_;
  std::barrier<> barrier_;
  std::mutex mutex_;
  std::vector<float> sum_;
};

TEST_F(ProgrammeTest, AnAllReduceSumsTheResidualStreamOverDevices) {
  SumOverThreads sum(2);
  std::array<Tensor, 2> hidden = {Tensor(16, kHidden, 5), Tensor(16, kHidden, 6)};
  std::vector<float> expected(3 * kHidden);
  for (size_t i = 0; i < expected.size(); ++i)
    expected[i] = hidden[0].values[i] + hidden[1].values[i];
  const auto rank = [&](size_t i) {
    const auto ops = std::move(*MakeCpuOps({}));
    ProgrammeBuilder b;
    b.GivenResidual(hidden[i].view);
    b.AllReduce(&sum);
    const Programme programme = b.Finish();
    const auto step = ops->Prepare(programme, BucketOf(3));
    ASSERT_TRUE(step.has_value()) << step.error().message;
    StepInputs inputs;
    inputs.batch.rows = 3;
    const auto stream = std::move(*device_->CreateStream());
    EXPECT_TRUE((*step)->Run(inputs, {}, *stream).has_value());
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  for (const Tensor& h : hidden) {
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(h.values[i], expected[i]);
  }
}

TEST_F(ProgrammeTest, OnlyTheRowsWhoseLogitsAreWantedReachTheHead) {
  Tensor hidden(16, kHidden, 7), normed(16, kHidden), logits(16, 24), gain(1, kHidden, 8);
  gain.view = TensorView::Dense(gain.values.data(), DType::kF32, {kHidden});
  const auto head = Pack(24, kHidden, Epilogue::kStore, 9);
  ProgrammeBuilder b;
  b.GivenResidual(hidden.view);
  const ValueId x = b.Norm(b.GatherRows(), {hidden.view, nullptr, gain.view, normed.view});
  b.Draw(b.Linear(x, {head.get(), normed.view, logits.view}, "logits"));
  const Programme programme = b.Finish();
  const auto logits_of = [&](std::vector<int32_t> rows) {
    std::fill(logits.values.begin(), logits.values.end(), -1.0f);
    Bucket bucket = BucketOf(9);
    bucket.logit_rows = static_cast<int32_t>(rows.size());
    StepInputs inputs;
    inputs.batch.rows = 9;
    inputs.logit_rows = rows.data();
    inputs.num_logit_rows = bucket.logit_rows;
    EXPECT_TRUE(Run(programme, bucket, inputs).has_value());
    return logits.values;
  };
  const auto all = logits_of({0, 1, 2, 3, 4, 5, 6, 7, 8});
  const auto some = logits_of({2, 7});
  EXPECT_TRUE(std::equal(some.begin(), some.begin() + 24, all.begin() + 2 * 24));
  EXPECT_TRUE(std::equal(some.begin() + 24, some.begin() + 48, all.begin() + 7 * 24));
  EXPECT_EQ(logits_of({})[0], -1.0f) << "nothing is computed for nobody";
}

TEST_F(ProgrammeTest, WhatTheCpuHasNoKernelForIsRefusedByName) {
  Tensor q(4, 64), out(4, 64);
  q.view.dtype = DType::kBF16;
  ProgrammeBuilder b;
  b.SetLayer(3);
  b.Attend(b.Given(q.view), {q.view, 32, 32, 2, 1.0f, 0, {}, {}, out.view});
  const Programme programme = b.Finish();
  const auto step = ops_->Prepare(programme, BucketOf(1));
  ASSERT_FALSE(step.has_value());
  EXPECT_EQ(step.error().code, Code::kUnimplemented);
  EXPECT_NE(step.error().message.find("layer 3 attend"), std::string::npos) << step.error().message;
}

TEST_F(ProgrammeTest, LaunchesAreDescribed) {
  Tensor hidden(16, kHidden, 5);
  SumOverThreads sum(1);
  ProgrammeBuilder b;
  b.GivenResidual(hidden.view);
  b.AllReduce(&sum);
  const Programme programme = b.Finish();
  const auto step = ops_->Prepare(programme, BucketOf(1));
  ASSERT_TRUE(step.has_value());
  const std::vector<LaunchInfo> launches = (*step)->Describe();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].nodes, "all-reduce");
}

}  // namespace
}  // namespace aisp
