// Several linear layers in one launch: each step against a double-precision product of what the step before it gave, on fresh random
// inputs and poisoned outputs; the same bits every time; in a graph and behind a kernel that is still writing the input. Needs a
// Hopper GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/linear/f16_input.h"
#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/cuda/linear/matrices.h"
#include "tests/kernels/cuda/linear/reference.h"

namespace aisp::cuda {
namespace {

using test::DeviceVector;
using test::FromBf16;
using test::FromF16;
using test::Matrix;
using test::ToBf16;
using test::ToF16;

constexpr float kEpsilon = 1e-5f;

struct Shape {
  int64_t attention, hidden, intermediate, qkv;  // qkv: outputs of the last step
  bool bias;
};

// The four layers between two attentions and all they read and write.
class Half {
 public:
  Half(LinearKernels& kernels, std::mt19937& random, WeightFormat format, const Shape& shape,
       int32_t rows, float size = 1.0f)
      : shape_(shape),
        rows_(rows),
        f16_(format == WeightFormat::kFp8 || format == WeightFormat::kFp8Block) {
    AddWeight(random, format, {shape.hidden}, shape.attention, false);
    AddWeight(random, format, {shape.intermediate, shape.intermediate}, shape.hidden, true);
    AddWeight(random, format, {shape.hidden}, shape.intermediate, false);
    AddWeight(random, format, {shape.qkv / 16 * 8, shape.qkv - shape.qkv / 16 * 8}, shape.hidden,
              false);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 2; ++i) {
      gains_[i].resize(static_cast<size_t>(shape.hidden));
      for (float& g : gains_[i]) g = 1.0f + 0.3f * normal(random);
      device_gains_[i] = std::make_unique<DeviceVector<float>>(gains_[i]);
    }
    x0_.resize(static_cast<size_t>(rows * shape.attention));
    for (uint16_t& v : x0_) v = ToBf16(size * normal(random));
    h0_.resize(static_cast<size_t>(rows * shape.hidden));
    for (float& v : h0_) v = 3.0f * size * normal(random);
    x_ = std::make_unique<DeviceVector<uint16_t>>(x0_);
    h_ = std::make_unique<DeviceVector<float>>(h0_);
    const auto count = [&](int64_t columns) { return static_cast<size_t>(rows * columns); };
    normed_[0] = std::make_unique<DeviceVector<uint16_t>>(count(shape.hidden));
    normed_[1] = std::make_unique<DeviceVector<uint16_t>>(count(shape.hidden));
    act_ = std::make_unique<DeviceVector<uint16_t>>(count(shape.intermediate));
    y_ = std::make_unique<DeviceVector<uint16_t>>(count(shape.qkv));
    size_t workspace = 0;
    for (const PackedWeight& w : weights_) {
      workspace = std::max(workspace, kernels.WorkspaceBytes(w));
    }
    workspace_ = std::make_unique<DeviceVector<uint8_t>>(workspace);
    EXPECT_TRUE(kernels.SetWorkspace(workspace_->get(), workspace, nullptr));
  }

  std::vector<ChainStep> Steps() {
    std::vector<ChainStep> steps(4);
    const void* const inputs[] = {x_->get(), normed_[0]->get(), act_->get(), normed_[1]->get()};
    void* const outputs[] = {h_->get(), act_->get(), h_->get(), y_->get()};
    const Store stores[] = {Store::kAccumulateF32, Store::kSiluMulBf16, Store::kAccumulateF32,
                            Store::kBf16};
    for (size_t i = 0; i < 4; ++i) {
      steps[i].call.weight = &weights_[i];
      steps[i].call.x = inputs[i];
      steps[i].call.y = outputs[i];
      steps[i].call.store = stores[i];
      steps[i].call.rows = rows_;
      if (i % 2 == 1) steps[i].norm_weight = device_gains_[i / 2]->get();
      steps[i].norm_epsilon = kEpsilon;
    }
    return steps;
  }

  // Outputs are poisoned, the residual stream starts anew.
  void Reset(cudaStream_t stream) {
    EXPECT_EQ(
        cudaMemcpyAsync(h_->get(), h0_.data(), h0_.size() * 4, cudaMemcpyHostToDevice, stream),
        cudaSuccess);
    for (auto* v : {&normed_[0], &normed_[1], &act_, &y_}) {
      EXPECT_EQ(cudaMemsetAsync((*v)->get(), 0xff, (*v)->size() * 2, stream), cudaSuccess);
    }
  }

  // All that a run writes.
  std::vector<uint16_t> Bits() const {
    std::vector<uint16_t> bits;
    for (const auto* v : {&normed_[0], &normed_[1], &act_, &y_}) {
      const auto part = (*v)->Get();
      bits.insert(bits.end(), part.begin(), part.end());
    }
    for (const float f : h_->Get()) {
      uint32_t word;
      std::memcpy(&word, &f, 4);
      bits.push_back(static_cast<uint16_t>(word));
      bits.push_back(static_cast<uint16_t>(word >> 16));
    }
    return bits;
  }

  // Every output of a run, element by element, from the input that its step had.
  void Check() {
    const std::vector<double> o = Product(0, Values(*x_));
    std::vector<double> h(h0_.begin(), h0_.end());
    for (size_t i = 0; i < h.size(); ++i) h[i] += o[i];
    const std::vector<double> gate_up = Normalised(Product(1, Normed(h, 0)), h, 1);
    std::vector<double> act;
    const auto half = static_cast<size_t>(shape_.intermediate);
    for (size_t r = 0; r < static_cast<size_t>(rows_); ++r) {
      for (size_t i = 0; i < half; ++i) {
        const double gate = gate_up[2 * r * half + i];
        act.push_back(gate / (1.0 + std::exp(-gate)) * gate_up[2 * r * half + half + i]);
      }
    }
    const std::vector<double> down = Product(2, Inner(*act_, act, shape_.intermediate, 5e-3));
    for (size_t i = 0; i < h.size(); ++i) h[i] += down[i];
    // Where the reference has rounded what is between the steps itself, some of it has gone the other way: a bit of bf16 each.
    const bool kept = KeepsInner();
    ExpectNear(h_->Get(), h, kept ? 2e-5 : 3e-3, "residual stream");
    ExpectNear(Values(*y_), Normalised(Product(3, Normed(h, 1)), h, 3), kept ? 5e-3 : 1e-2, "qkv");
  }

  // Whether the run left what is between the steps where the caller can see it; one of one token need not.
  bool KeepsInner() const {
    const std::vector<uint16_t> bits = act_->Get();
    return std::any_of(bits.begin(), bits.end(), [](uint16_t b) { return b != 0xffff; });
  }

  uint16_t* x() { return x_->get(); }
  void RestoreX() { x_->Set(x0_); }
  // Rows from `first` on become NaN.
  void PoisonRows(int32_t first) {
    std::vector<uint16_t> x = x0_;
    std::fill(x.begin() + first * shape_.attention, x.end(), uint16_t{0xffff});
    x_->Set(x);
  }
  std::vector<float> y() const { return Values(*y_); }

 private:
  void AddWeight(std::mt19937& random, WeightFormat format, const std::vector<int64_t>& heights,
                 int64_t k, bool gated) {
    matrices_.emplace_back();
    std::vector<WeightPart> parts;
    for (const int64_t rows : heights) {
      matrices_.back().push_back(test::MakeMatrix(random, format, rows, k, shape_.bias));
    }
    for (const Matrix& m : matrices_.back()) parts.push_back(m.Part());
    const WeightSource source{test::SourceOf(format), parts, k, gated, format};
    const auto bytes = PackedWeightBytes(source);
    ASSERT_TRUE(bytes) << bytes.error().ToString();
    memory_.push_back(std::make_unique<DeviceVector<uint8_t>>(*bytes));
    auto packed = PackWeight(source, memory_.back()->get(), *bytes, nullptr);
    ASSERT_TRUE(packed) << packed.error().ToString();
    weights_.push_back(*packed);
  }

  static std::vector<float> Values(const DeviceVector<uint16_t>& v) {
    std::vector<float> values;
    for (const uint16_t bits : v.Get()) values.push_back(FromBf16(bits));
    return values;
  }

  // What one step left for the next, rows of `width`.
  std::vector<float> InnerValues(const DeviceVector<uint16_t>& v, int64_t width) const {
    if (!f16_) return Values(v);
    const std::vector<uint16_t> bits = v.Get();
    std::vector<float> values(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) {
      const size_t column = i % static_cast<size_t>(width);
      const auto place = static_cast<size_t>(F16Place(static_cast<int32_t>(column)));
      values[i] = FromF16(bits[i - column + place]) * kF16Divisor;
    }
    return values;
  }

  // Without bias where a norm is still to be applied.
  std::vector<double> Product(size_t weight, const std::vector<float>& x) {
    std::vector<float> w;
    for (const Matrix& m : matrices_[weight]) w.insert(w.end(), m.values.begin(), m.values.end());
    const int64_t k = weights_[weight].k;
    const int64_t n = static_cast<int64_t>(w.size()) / k;
    DeviceVector<float> dw(w);
    DeviceVector<float> dx(x);
    DeviceVector<double> dy(static_cast<size_t>(rows_ * n));
    test::ReferenceProduct(dx.get(), dw.get(), dy.get(), rows_, n, k, nullptr);
    std::vector<double> y = dy.Get();
    if (weight % 2 == 0) AddBias(weight, y);
    return y;
  }
  void AddBias(size_t weight, std::vector<double>& y) {
    std::vector<float> bias;
    for (const Matrix& m : matrices_[weight]) {
      bias.insert(bias.end(), m.bias.begin(), m.bias.end());
    }
    if (bias.empty()) return;
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
  }

  std::vector<double> Normalised(std::vector<double> y, const std::vector<double>& h,
                                 size_t weight) {
    const size_t n = y.size() / static_cast<size_t>(rows_);
    const auto k = static_cast<size_t>(shape_.hidden);
    for (size_t r = 0; r < static_cast<size_t>(rows_); ++r) {
      double squares = 0.0;
      for (size_t i = 0; i < k; ++i) squares += h[r * k + i] * h[r * k + i];
      const double norm = 1.0 / std::sqrt(squares / static_cast<double>(k) + kEpsilon);
      for (size_t i = 0; i < n; ++i) y[r * n + i] *= norm;
    }
    AddBias(weight, y);
    return y;
  }

  // The input of a layer with a norm in front carries the gain; 1 / rms comes later.
  std::vector<float> Normed(const std::vector<double>& h, size_t which) const {
    std::vector<double> expected = h;
    for (size_t i = 0; i < h.size(); ++i) expected[i] *= gains_[which][i % gains_[which].size()];
    return Inner(*normed_[which], expected, shape_.hidden, 4e-3);
  }

  // What the next step reads: as the run left it, if it is near what is expected, or that, rounded.
  std::vector<float> Inner(const DeviceVector<uint16_t>& left, const std::vector<double>& expected,
                           int64_t width, double limit) const {
    if (KeepsInner()) {
      std::vector<float> values = InnerValues(left, width);
      ExpectNear(values, expected, limit, "between two steps");
      return values;
    }
    std::vector<float> values;
    for (const double v : expected) {
      const auto f = static_cast<float>(v);
      values.push_back(f16_ ? FromF16(ToF16(f / kF16Divisor)) * kF16Divisor : FromBf16(ToBf16(f)));
    }
    return values;
  }

  // `limit` is relative to the element, and a tenth of it to the root mean square of all.
  static void ExpectNear(const std::vector<float>& y, const std::vector<double>& expected,
                         double limit, const char* what) {
    ASSERT_EQ(y.size(), expected.size()) << what;
    double squares = 0.0;
    for (const double v : expected) squares += v * v;
    const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
    ASSERT_GT(rms, 0.0) << what;
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i], limit * (std::abs(expected[i]) + 0.1 * rms))
          << what << ", element " << i << " of " << y.size();
    }
  }

  Shape shape_;
  int32_t rows_;
  bool f16_;  // what lies between steps
  std::vector<std::vector<Matrix>> matrices_;
  std::vector<std::unique_ptr<DeviceVector<uint8_t>>> memory_;
  std::vector<PackedWeight> weights_;
  std::vector<float> gains_[2];
  std::unique_ptr<DeviceVector<float>> device_gains_[2];
  std::vector<uint16_t> x0_;
  std::vector<float> h0_;
  std::unique_ptr<DeviceVector<uint16_t>> x_, normed_[2], act_, y_;
  std::unique_ptr<DeviceVector<float>> h_;
  std::unique_ptr<DeviceVector<uint8_t>> workspace_;
};

class ChainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    cudaDeviceProp device = {};
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
        cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
      GTEST_SKIP() << "no GPU of compute capability 9.0";
    }
    auto kernels = LinearKernels::Create({.max_rows = 64, .tuning_cache = "", .overlap = true});
    ASSERT_TRUE(kernels) << kernels.error().ToString();
    kernels_ = std::move(*kernels);
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void Launch(Half& half, cudaStream_t stream) {
    const std::vector<ChainStep> steps = half.Steps();
    ASSERT_TRUE(kernels_->CanChain(steps));
    const Status status = kernels_->LaunchChain(steps, stream);
    ASSERT_TRUE(status) << status.error().ToString();
  }

  void RunAndCheck(WeightFormat format, const Shape& shape,
                   const std::vector<int32_t>& row_counts) {
    for (const int32_t rows : row_counts) {
      SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", rows " +
                   std::to_string(rows) + ", hidden " + std::to_string(shape.hidden));
      Half half(*kernels_, random_, format, shape, rows);
      half.Reset(nullptr);
      Launch(half, nullptr);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      half.Check();
      const auto bits = half.Bits();
      half.Reset(nullptr);
      Launch(half, nullptr);
      ASSERT_TRUE(bits == half.Bits()) << "two runs differ";
      if (HasFailure()) return;
    }
  }

  std::mt19937 random_{std::random_device{}()};
  std::unique_ptr<LinearKernels> kernels_;
  cudaStream_t stream_ = nullptr;
};

const WeightFormat kFormats[] = {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block,
                                 WeightFormat::kNvfp4};

std::vector<std::pair<WeightFormat, int32_t>> EveryFormatAnd(const std::vector<int32_t>& rows) {
  std::vector<std::pair<WeightFormat, int32_t>> all;
  for (const auto format : kFormats) {
    for (const int32_t r : rows) all.emplace_back(format, r);
  }
  return all;
}

TEST_F(ChainTest, TinyShapes) {
  for (const auto format : kFormats) RunAndCheck(format, {64, 64, 96, 128, false}, {1, 3, 20});
}
TEST_F(ChainTest, OddShapesWithBias) {
  for (const auto format : kFormats) {
    RunAndCheck(format, {1296, 528, 656, 333, true}, {1, 5, 8, 9, 16, 17, 32, 33, 64});
  }
}
TEST_F(ChainTest, WideShapes) {
  for (const auto format : kFormats) {
    RunAndCheck(format, {1024, 2048, 4096, 1536, false}, {1, 8, 13, 32, 64});
  }
}

// One token has a kernel of its own where layers are multiples of 128 wide: stages that K does not fill, tiles that rows do not.
TEST_F(ChainTest, OneTokenTiny) {
  for (const auto format : kFormats) RunAndCheck(format, {128, 128, 128, 40, true}, {1});
}
TEST_F(ChainTest, OneToken) {
  for (const auto format : kFormats) {
    RunAndCheck(format, {1152, 1408, 2944, 997, true}, {1});
    RunAndCheck(format, {4096, 2048, 5632, 3000, false}, {1});
  }
}

TEST_F(ChainTest, TheSameBitsEveryTime) {
  for (const auto format : kFormats) {
    for (const int32_t rows : {1, 8, 16, 32, 64}) {
      SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", rows " +
                   std::to_string(rows));
      Half half(*kernels_, random_, format, {1024, 1024, 2816, 1536, false}, rows);
      std::vector<uint16_t> first;
      for (int run = 0; run < 200; ++run) {
        half.Reset(stream_);
        Launch(half, stream_);
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        const auto bits = half.Bits();
        if (run == 0) first = bits;
        ASSERT_TRUE(bits == first) << "run " << run;
      }
      half.Check();
    }
  }
}

// FP8 weights have activations in f16: far beyond its range the result is not a number, and never a wrong one.
TEST_F(ChainTest, ActivationsOfAnySize) {
  for (const auto format : kFormats) {
    for (const int32_t rows : {1, 12, 40}) {
      SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", rows " +
                   std::to_string(rows));
      Half large(*kernels_, random_, format, {1296, 528, 656, 336, true}, rows, 2e4f);
      large.Reset(nullptr);
      Launch(large, nullptr);
      large.Check();
      if (format == WeightFormat::kBf16 || format == WeightFormat::kNvfp4) continue;
      for (const int64_t k : {656, 640}) {
        Half infinite(*kernels_, random_, format, {1280, 512, k, 336, true}, rows, 1e9f);
        infinite.Reset(nullptr);
        Launch(infinite, nullptr);
        for (const float v : infinite.y()) ASSERT_FALSE(std::isfinite(v));
      }
    }
  }
}

// Three chains back to back add to the same stream, replayed; each starts while the one before it still runs.
TEST_F(ChainTest, InAGraph) {
  for (const auto& [format, rows] : EveryFormatAnd({1, 4})) {
    Half half(*kernels_, random_, format, {1024, 1024, 2816, 1536, false}, rows);
    half.Reset(stream_);
    for (int i = 0; i < 3; ++i) {
      Launch(half, stream_);
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    }
    const auto expected = half.Bits();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < 3; ++i) Launch(half, stream_);
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 50; ++i) {
      half.Reset(stream_);
      ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      ASSERT_TRUE(expected == half.Bits()) << "replay " << i;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
}

TEST_F(ChainTest, BehindAKernelThatWritesItsInput) {
  constexpr int32_t kRows = 8;
  constexpr int64_t kWidth = 1024;
  Half half(*kernels_, random_, WeightFormat::kBf16, {kWidth, 1024, 2816, 1536, false}, kRows);
  const Matrix m = test::MakeMatrix(random_, WeightFormat::kBf16, kWidth, 8192, false);
  const std::vector<WeightPart> parts{m.Part()};
  const WeightSource source{SourceType::kBf16, parts, 8192, false, WeightFormat::kBf16};
  const auto bytes = PackedWeightBytes(source);
  ASSERT_TRUE(bytes);
  DeviceVector<uint8_t> memory(*bytes);
  const auto weight = PackWeight(source, memory.get(), *bytes, nullptr);
  ASSERT_TRUE(weight);
  std::vector<uint16_t> x(static_cast<size_t>(kRows) * 8192);
  std::normal_distribution<float> normal;
  for (uint16_t& v : x) v = ToBf16(normal(random_));
  DeviceVector<uint16_t> device_x(x);
  LinearCall before;
  before.weight = &*weight;
  before.x = device_x.get();
  before.y = half.x();
  before.store = Store::kBf16;
  before.rows = kRows;
  std::vector<uint16_t> first;
  for (int run = 0; run < 50; ++run) {
    half.RestoreX();
    half.Reset(stream_);
    ASSERT_TRUE(kernels_->Launch(before, stream_));
    if (run == 0) {
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    }
    Launch(half, stream_);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    if (run == 0) first = half.Bits();
    ASSERT_TRUE(first == half.Bits()) << "run " << run;
  }
  half.Check();
}

TEST_F(ChainTest, ARowIsTheSameWhateverTheOthersHold) {
  for (const auto format : kFormats) {
    Half half(*kernels_, random_, format, {1024, 1024, 2816, 1536, false}, 16);
    half.Reset(nullptr);
    Launch(half, nullptr);
    const std::vector<float> all = half.y();
    half.PoisonRows(9);
    half.Reset(nullptr);
    Launch(half, nullptr);
    const std::vector<float> poisoned = half.y();
    for (size_t i = 0; i < 9 * 1536; ++i) ASSERT_EQ(all[i], poisoned[i]);
    for (size_t i = 9 * 1536; i < 16 * 1536; ++i) ASSERT_TRUE(std::isnan(poisoned[i]));
  }
}

TEST_F(ChainTest, WhatDoesNotFollowIsNoChain) {
  Half half(*kernels_, random_, WeightFormat::kBf16, {64, 64, 96, 128, false}, 2);
  const std::vector<ChainStep> good = half.Steps();
  EXPECT_TRUE(kernels_->CanChain(good));
  EXPECT_FALSE(kernels_->CanChain(std::span(good).first(1)));
  auto steps = good;
  steps[1].call.rows = 1;
  EXPECT_FALSE(kernels_->CanChain(steps));
  steps = good;
  steps[2].call.x = steps[1].call.x;
  EXPECT_FALSE(kernels_->CanChain(steps));
  steps = good;
  steps[1].norm_weight = nullptr;
  EXPECT_FALSE(kernels_->CanChain(steps));
  steps = good;
  steps[0].norm_weight = steps[1].norm_weight;
  EXPECT_FALSE(kernels_->CanChain(steps));
  steps = good;
  for (ChainStep& step : steps) step.call.rows = 65;
  EXPECT_FALSE(kernels_->CanChain(steps));
}

}  // namespace
}  // namespace aisp::cuda
