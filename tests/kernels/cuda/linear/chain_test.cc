// Several linear layers in one launch. Each step is compared with a double-precision product of the
// output of the step before it, on fresh random inputs and poisoned outputs (half_layer.h). The
// bits are the same every time, also in a graph and after a kernel that is still writing the input.
// Needs a Hopper GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/linear/chain.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "tests/kernels/cuda/linear/half_layer.h"
#include "tests/kernels/cuda/linear/matrices.h"

namespace aisp::cuda {
namespace {

using test::DeviceVector;
using test::Half;
using test::Matrix;
using test::Shape;
using test::ToBf16;

// The table's constants of the kernels equal those of the kernels; needs no GPU.
TEST(KernelInstances, AreThoseOfTheTable) {
  const Status same = CheckInstances();
  EXPECT_TRUE(same) << same.error().message;
}

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
    auto form = FormOf(steps, kernels_->facts());
    ASSERT_TRUE(form);
    if (half.adapter_of_row() != nullptr) *form = {.adapter_of_row = half.adapter_of_row()};
    const Status status = kernels_->LaunchChain(steps, *form, stream);
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
const WeightFormat kFewTokensFormats[] = {WeightFormat::kBf16, WeightFormat::kFp8};

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

// Partial sums that CTAs pass to each other stay in the chains' part of the workspace.
TEST_F(ChainTest, WritesNothingBehindItsRegion) {
  for (const auto format : kFormats) {
    for (const int32_t rows : {9, 32, 64}) {
      SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", rows " +
                   std::to_string(rows));
      Half half(*kernels_, random_, format, {1024, 2048, 4096, 1536, false}, rows);
      half.Reset(nullptr);
      auto chains = Chains::Create(kernels_->facts().device->multiprocessors, true);
      ASSERT_TRUE(chains) << chains.error().ToString();
      constexpr size_t kBehind = size_t{16} << 20;
      DeviceVector<uint8_t> memory(chains->region_bytes() + kBehind);
      ASSERT_EQ(cudaMemset(memory.get(), 0x5a, memory.size()), cudaSuccess);
      ASSERT_TRUE(chains->SetRegion(memory.get(), nullptr));
      ASSERT_TRUE(chains->Launch(half.Steps(), nullptr, nullptr));
      const std::vector<uint8_t> bytes = memory.Get();
      const auto touched =
          std::count_if(bytes.end() - kBehind, bytes.end(), [](uint8_t b) { return b != 0x5a; });
      ASSERT_EQ(touched, 0);
      half.Check();
    }
  }
}

// Against sums of each row's own adapter in double precision: adapters of one slot and of several,
// with ranks below one unit of K, of one unit, and of more.
TEST_F(ChainTest, AdaptersOfEachRow) {
  for (const auto& [slots, columns] : {std::pair(1, 16), {1, 48}, {4, 32}, {5, 48}, {2, 128}}) {
    for (const int32_t rows : {1, 2, 8, 9, 31, 64}) {
      for (const Shape& shape : {Shape{64, 64, 96, 128, false},
                                 {1296, 528, 656, 333, true},
                                 {1024, 2048, 4096, 1536, false}}) {
        SCOPED_TRACE(std::to_string(slots) + " of " + std::to_string(columns) + " ranks, rows " +
                     std::to_string(rows) + ", hidden " + std::to_string(shape.hidden));
        Half half(*kernels_, random_, WeightFormat::kBf16, shape, rows);
        half.AddAdapters(random_, slots, columns);
        half.Reset(nullptr);
        Launch(half, nullptr);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        half.Check();
        const auto bits = half.Bits();
        for (int run = 0; run < 20; ++run) {
          half.Reset(nullptr);
          Launch(half, nullptr);
          ASSERT_TRUE(bits == half.Bits()) << "two runs differ";
        }
        if (HasFailure()) return;
      }
    }
  }
}

// One token has its own kernel where layers are multiples of 128 wide: K that does not fill stages,
// rows that do not fill tiles.
TEST_F(ChainTest, OneTokenTiny) {
  for (const auto format : kFormats) RunAndCheck(format, {128, 128, 128, 40, true}, {1});
}
TEST_F(ChainTest, OneToken) {
  for (const auto format : kFormats) {
    RunAndCheck(format, {1152, 1408, 2944, 997, true}, {1});
    RunAndCheck(format, {4096, 2048, 5632, 3000, false}, {1});
  }
}

// Two to eight tokens also have their own kernel, in bf16 and FP8: every number of tokens; K of
// less than a stage, of partly filled stages, and of several slices.
TEST_F(ChainTest, FewTokensTiny) {
  for (const auto format : kFewTokensFormats) {
    RunAndCheck(format, {128, 128, 128, 40, true}, {2, 3, 4, 5, 6, 7, 8});
  }
}
TEST_F(ChainTest, FewTokens) {
  for (const auto format : kFewTokensFormats) {
    RunAndCheck(format, {1152, 1408, 2944, 997, true}, {2, 5, 8});
    RunAndCheck(format, {4096, 2048, 5632, 3000, false}, {3, 4, 8});
    RunAndCheck(format, {1024, 4480, 8576, 6144, true}, {7});
  }
}
// More tiles than share the slices of K, on as many CTAs as the GPU has.
TEST_F(ChainTest, FewTokensOfALongFirstStep) {
  for (const auto format : kFewTokensFormats) {
    RunAndCheck(format, {4224, 8576, 256, 264, true}, {8});
  }
}

// A row gets the same bits in a step of fewer rows, at any index. Repeated on inputs that the host
// makes in between: stages that were released too early failed here one time in ten.
TEST_F(ChainTest, FewTokensOfAnyNumberHaveTheSameBits) {
  for (const Shape& shape : {Shape{1024, 4480, 8576, 1536, true}, {1152, 1408, 2944, 997, true}}) {
    for (const auto format : kFewTokensFormats) {
      Half half(*kernels_, random_, format, shape, 8);
      const auto width = static_cast<size_t>(shape.qkv);
      for (int run = 0; run < 150; ++run) {
        SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", hidden " +
                     std::to_string(shape.hidden) + ", run " + std::to_string(run));
        half.Renew(random_);
        half.Reset(nullptr);
        Launch(half, nullptr);
        const std::vector<float> all = half.y();
        const std::vector<float> stream = half.h();
        for (const int32_t rows : {2, 3, 4, 7}) {
          std::vector<ChainStep> steps = half.Steps();
          for (ChainStep& step : steps) step.call.rows = rows;
          const auto form = FormOf(steps, kernels_->facts());
          ASSERT_TRUE(form && form->few_tokens);
          half.Reset(nullptr);
          ASSERT_TRUE(kernels_->LaunchChain(steps, *form, nullptr));
          const auto written = static_cast<ptrdiff_t>(static_cast<size_t>(rows) * width);
          const std::vector<float> some = half.y();
          ASSERT_TRUE(std::equal(all.begin(), all.begin() + written, some.begin())) << rows;
          const std::vector<float> residual = half.h();
          ASSERT_TRUE(
              std::equal(stream.begin(), stream.begin() + rows * shape.hidden, residual.begin()))
              << rows;
          // Rows that were not requested are not changed.
          ASSERT_TRUE(std::all_of(some.begin() + written, some.end(),
                                  [](float v) { return std::isnan(v); }));
        }
      }
    }
  }
}

TEST_F(ChainTest, FewTokensARowIsTheSameWhateverTheOthersHold) {
  for (const auto format : kFewTokensFormats) {
    Half half(*kernels_, random_, format, {1024, 1024, 2816, 1536, false}, 8);
    half.Reset(nullptr);
    Launch(half, nullptr);
    const std::vector<float> all = half.y();
    half.PoisonRows(5);
    half.Reset(nullptr);
    Launch(half, nullptr);
    const std::vector<float> poisoned = half.y();
    for (size_t i = 0; i < 5 * 1536; ++i) ASSERT_EQ(all[i], poisoned[i]);
    for (size_t i = 5 * 1536; i < 8 * 1536; ++i) ASSERT_TRUE(std::isnan(poisoned[i]));
  }
}

// What a launch publishes stays in its part of the workspace, and at its end all slots of the next
// launch's set are empty: launches of other widths follow each other.
TEST_F(ChainTest, FewTokensOfTwoShapesInTurn) {
  for (const auto format : kFewTokensFormats) {
    Half wide(*kernels_, random_, format, {4096, 2048, 5632, 3000, false}, 8);
    Half small(*kernels_, random_, format, {128, 128, 128, 40, true}, 3);
    // Both use the workspace of the one that was made last.
    for (int run = 0; run < 9; ++run) {
      Half& half = run % 3 == 0 ? small : wide;
      half.Reset(stream_);
      Launch(half, stream_);
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      half.Check();
      if (HasFailure()) return;
    }
  }
}

TEST_F(ChainTest, TheSameBitsEveryTime) {
  for (const auto format : kFormats) {
    for (const int32_t rows : {1, 4, 8, 16, 32, 64}) {
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

// FP8 weights have activations in f16: far beyond its range the result must be NaN or infinite,
// never a wrong number.
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

// Three chains back to back add to the same stream, replayed; each starts while the one before it
// still runs.
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
  const auto chains = [&](std::span<const ChainStep> some) {
    return FormOf(some, kernels_->facts()).has_value();
  };
  EXPECT_TRUE(chains(good));
  EXPECT_FALSE(chains(std::span(good).first(1)));
  auto steps = good;
  steps[1].call.rows = 1;
  EXPECT_FALSE(chains(steps));
  steps = good;
  steps[1].norm_weight = nullptr;
  EXPECT_FALSE(chains(steps));
  steps = good;
  steps[0].norm_weight = steps[1].norm_weight;
  EXPECT_FALSE(chains(steps));
  steps = good;
  for (ChainStep& step : steps) step.call.rows = 65;
  EXPECT_FALSE(chains(steps));
}

}  // namespace
}  // namespace aisp::cuda
