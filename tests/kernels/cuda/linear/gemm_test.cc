// The kernels for many rows, every instance by itself, against a double-precision product of the
// same (quantised) operands, on fresh random inputs and poisoned outputs. Needs a Hopper GPU.
#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/linear/linear_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/linear/quantize.h"
#include "tests/kernels/cuda/linear/matrices.h"
#include "tests/kernels/cuda/linear/reference.h"

namespace aisp::cuda {
namespace {

using test::DeviceVector;
using test::FromBf16;
using test::FromFp8;
using test::Matrix;
using test::ToBf16;

bool IsF32(Store store) { return store == Store::kF32 || store == Store::kAccumulateF32; }
bool IsFp8(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Block;
}

double RelativeError(const std::vector<float>& y, const std::vector<double>& expected) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (y[i] - expected[i]) * (y[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

class GemmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    cudaDeviceProp device = {};
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
        cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
      GTEST_SKIP() << "no GPU of compute capability 9.0";
    }
    auto gemm = Gemm::Create();
    ASSERT_TRUE(gemm) << gemm.error().ToString();
    gemm_ = *gemm;
    parts_ = std::make_unique<DeviceVector<uint8_t>>(gemm_.PartBytes());
    ASSERT_EQ(cudaMemset(parts_->get(), 0xff, parts_->size()), cudaSuccess);
    gemm_.SetParts(parts_->get());
  }

  // A weight of parts of the given heights, and its values.
  void MakeWeight(WeightFormat format, const std::vector<int64_t>& heights, int64_t k, bool bias,
                  bool gated) {
    std::vector<Matrix> matrices;
    for (const int64_t rows : heights) {
      matrices.push_back(test::MakeMatrix(random_, format, rows, k, bias));
    }
    std::vector<WeightPart> parts;
    values_.clear();
    bias_.clear();
    for (const Matrix& m : matrices) {
      parts.push_back(m.Part());
      values_.insert(values_.end(), m.values.begin(), m.values.end());
      bias_.insert(bias_.end(), m.bias.begin(), m.bias.end());
    }
    const WeightSource source{test::SourceOf(format), parts, k, gated, format};
    const auto bytes = PackedWeightBytes(source);
    ASSERT_TRUE(bytes) << bytes.error().ToString();
    memory_ = std::make_unique<DeviceVector<uint8_t>>(*bytes);
    auto packed = PackWeight(source, memory_->get(), *bytes, nullptr);
    ASSERT_TRUE(packed) << packed.error().ToString();
    weight_ = *packed;
  }

  void MakeInput(InputFormat format, int32_t rows) {
    const auto k = static_cast<size_t>(weight_.k);
    const size_t count = static_cast<size_t>(rows) * k;
    std::normal_distribution<float> normal;
    std::vector<uint16_t> bf16(count);
    for (auto& v : bf16) v = ToBf16(normal(random_));
    x_ = std::make_unique<DeviceVector<uint16_t>>(bf16);
    x_values_.resize(count);
    for (size_t i = 0; i < count; ++i) x_values_[i] = FromBf16(bf16[i]);
    if (format == InputFormat::kBf16) return;
    x8_ = std::make_unique<DeviceVector<uint8_t>>(count);
    x_scales_ = std::make_unique<DeviceVector<float>>(static_cast<size_t>(rows));
    ASSERT_TRUE(QuantizeRows(x_->get(), x8_->get(), x_scales_->get(), rows, weight_.k, nullptr));
    const auto e4m3 = x8_->Get();
    const auto scales = x_scales_->Get();
    for (size_t i = 0; i < count; ++i) {
      const size_t place = i / 16 * 16 + static_cast<size_t>(Fp8Position(static_cast<int>(i % 16)));
      x_values_[i] = FromFp8(e4m3[place]) * scales[i / k];
    }
  }

  // [rows, out] in double.
  std::vector<double> Expected(int32_t rows) {
    DeviceVector<float> w(values_);
    DeviceVector<float> x(x_values_);
    DeviceVector<double> product(static_cast<size_t>(rows * weight_.n));
    test::ReferenceProduct(x.get(), w.get(), product.get(), rows, weight_.n, weight_.k, nullptr);
    std::vector<double> y = product.Get();
    for (size_t i = 0; i < y.size() && !bias_.empty(); ++i) y[i] += bias_[i % bias_.size()];
    if (!weight_.gated) return y;
    std::vector<double> out;
    const auto half = static_cast<size_t>(weight_.n / 2);
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      for (size_t i = 0; i < half; ++i) {
        const double gate = y[r * 2 * half + i];
        out.push_back(gate / (1.0 + std::exp(-gate)) * y[r * 2 * half + half + i]);
      }
    }
    return out;
  }

  LinearCall Call(Store store, InputFormat input, int32_t rows) const {
    LinearCall call;
    call.weight = &weight_;
    call.x = x_->get();
    if (input == InputFormat::kFp8) {
      call.x = x8_->get();
      call.input = InputFormat::kFp8;
      call.x_scales = x_scales_->get();
    }
    call.store = store;
    call.rows = rows;
    call.y_stride = weight_.out_features() + 24;  // so that writes beyond a row show
    return call;
  }

  // Twice on poisoned outputs; the bits have to agree. Returns the values, [rows, out].
  std::vector<float> Run(LinearCall call, int kernel, const std::vector<float>& before) {
    const bool f32 = IsF32(call.store);
    const auto out = static_cast<size_t>(weight_.out_features());
    const auto stride = static_cast<size_t>(call.y_stride);
    const size_t count = static_cast<size_t>(call.rows) * stride;
    std::vector<uint8_t> runs[2];
    for (auto& run : runs) {
      std::vector<uint8_t> poison(count * (f32 ? 4 : 2), 0xff);
      for (size_t r = 0; call.store == Store::kAccumulateF32 && r * out < before.size(); ++r) {
        std::memcpy(&poison[r * stride * 4], &before[r * out], out * 4);
      }
      DeviceVector<uint8_t> y(poison);
      call.y = y.get();
      EXPECT_TRUE(gemm_.Supports(call));
      const Status status = gemm_.Launch(call, kernel, true, nullptr);
      EXPECT_TRUE(status) << status.error().ToString();
      run = y.Get();
    }
    EXPECT_EQ(runs[0], runs[1]) << "two runs differ";
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i) {
      float v;
      if (f32) {
        std::memcpy(&v, &runs[0][i * 4], 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, &runs[0][i * 2], 2);
        v = FromBf16(bits);
      }
      if (i % stride < out) {
        values.push_back(v);
      } else if (!std::isnan(v)) {
        ADD_FAILURE() << "written beyond the end of row " << i / stride;
        break;
      }
    }
    return values;
  }

  // Every instance with every store.
  void Compare(const std::vector<int32_t>& row_counts) {
    CompareInputs(InputFormat::kBf16, row_counts);
    if (IsFp8(weight_.format)) CompareInputs(InputFormat::kFp8, row_counts);
  }
  void CompareInputs(InputFormat input, const std::vector<int32_t>& row_counts) {
    for (const int32_t rows : row_counts) {
      MakeInput(input, rows);
      const std::vector<double> expected = Expected(rows);
      const std::vector<Store> stores =
          weight_.gated ? std::vector{Store::kSiluMulBf16}
                        : std::vector{Store::kF32, Store::kBf16, Store::kAccumulateF32};
      for (const Store store : stores) {
        std::vector<float> before(expected.size());
        std::vector<double> sum = expected;
        if (store == Store::kAccumulateF32) {
          std::normal_distribution<float> normal;
          for (size_t i = 0; i < before.size(); ++i) sum[i] += before[i] = normal(random_);
        }
        const LinearCall call = Call(store, input, rows);
        for (const int kernel : gemm_.Instances(call)) {
          SCOPED_TRACE(gemm_.Describe(kernel) + ", rows " + std::to_string(rows) + ", store " +
                       std::to_string(static_cast<int>(store)));
          const std::vector<float> y = Run(call, kernel, before);
          ASSERT_EQ(y.size(), sum.size());
          // bf16 results round once; FP8 products are added in fewer bits by the hardware; block
          // scales are rounded to bf16, and with few blocks along K all of an output errs to one
          // side, gate and up both.
          const bool blocks = weight_.format == WeightFormat::kFp8Block;
          const bool exact = IsF32(store) && input == InputFormat::kBf16 && !blocks;
          const double limit = exact ? 1e-4 : blocks ? 8e-3 : 5e-3;
          EXPECT_LT(RelativeError(y, sum), limit);
        }
      }
    }
  }

  std::mt19937 random_{std::random_device{}()};
  Gemm gemm_;
  std::unique_ptr<DeviceVector<uint8_t>> parts_;
  std::unique_ptr<DeviceVector<uint8_t>> memory_;
  PackedWeight weight_;
  std::vector<float> values_;  // [n, k], of the parts one after the other
  std::vector<float> bias_;
  std::unique_ptr<DeviceVector<uint16_t>> x_;
  std::unique_ptr<DeviceVector<uint8_t>> x8_;
  std::unique_ptr<DeviceVector<float>> x_scales_;
  std::vector<float> x_values_;
};

class GemmFormats : public GemmTest, public ::testing::WithParamInterface<WeightFormat> {};

// Less than a tile of tokens: soon done under compute-sanitizer, too (tools/gpu_sanitize.sh).
TEST_P(GemmFormats, SmallShapes) {
  MakeWeight(GetParam(), {200}, 272, true, false);
  Compare({70});
  MakeWeight(GetParam(), {72, 72}, 272, false, true);
  Compare({70});
}

TEST_P(GemmFormats, OddShapesWithBias) {
  const int64_t k = GetParam() == WeightFormat::kBf16 ? 1288 : 1296;
  MakeWeight(GetParam(), {200, 64, 72}, k, true, false);
  Compare({1, 64, 65, 130, 257, 300, 1000});
}

TEST_P(GemmFormats, Gated) {
  MakeWeight(GetParam(), {328, 328}, 1024, true, true);
  Compare({5, 128, 300, 2100});
}

// More tiles than clusters: stages and parities run on from tile to tile, the last pair of weight
// tiles is half empty.
TEST_P(GemmFormats, ManyTilesPerCluster) {
  MakeWeight(GetParam(), {4224 + 64}, 272, false, false);
  Compare({1000});
}

TEST_P(GemmFormats, LongSums) {
  MakeWeight(GetParam(), {256}, 14336, false, false);
  Compare({200});
}

INSTANTIATE_TEST_SUITE_P(Formats, GemmFormats,
                         ::testing::Values(WeightFormat::kBf16, WeightFormat::kFp8,
                                           WeightFormat::kFp8Block, WeightFormat::kNvfp4));

// Few tiles: K is taken in parts. Run() compares the bits of two runs.
TEST_F(GemmTest, PartsOfKAddUp) {
  std::set<int> added;
  std::set<int> stored;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 4096},
                             {1000, 2048},
                             {4480, 3072},
                             {6144, 4096},
                             {4096, 14336}}) {
    MakeWeight(WeightFormat::kFp8, {n}, k, true, false);
    MakeInput(InputFormat::kFp8, 1);
    for (const int32_t rows : {1, 100, 128, 200, 256}) {
      const LinearCall add = Call(Store::kAccumulateF32, InputFormat::kFp8, rows);
      const LinearCall store = Call(Store::kBf16, InputFormat::kFp8, rows);
      for (const int kernel : gemm_.Instances(add)) {
        added.insert(gemm_.Splits(add, kernel));
        stored.insert(gemm_.Splits(store, kernel));
      }
    }
    CompareInputs(InputFormat::kFp8, {1, 100, 128, 200, 256});
  }
  EXPECT_EQ(added, (std::set<int>{1, 2, 3, 4}));
  EXPECT_EQ(stored, added);
}

// The same of a single tile: soon done under compute-sanitizer, too.
TEST_F(GemmTest, PartsOfKOfOneTile) {
  MakeWeight(WeightFormat::kFp8, {200}, 4096, true, false);
  MakeInput(InputFormat::kFp8, 1);
  const LinearCall call = Call(Store::kAccumulateF32, InputFormat::kFp8, 70);
  std::set<int> parts;
  for (const int kernel : gemm_.Instances(call)) parts.insert(gemm_.Splits(call, kernel));
  EXPECT_EQ(*parts.rbegin(), 4);
  CompareInputs(InputFormat::kFp8, {70});
}

// More tiles than clusters of four CTAs fit at once: the parts of K are neighbouring clusters.
TEST_F(GemmTest, NeighbouringClustersAddTheirParts) {
  cudaDeviceProp device = {};
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  const int64_t tiles = device.multiProcessorCount / 4;
  MakeWeight(WeightFormat::kFp8, {tiles * 2 * kGemmRows}, 2048, true, false);
  MakeInput(InputFormat::kFp8, 1);
  const LinearCall call = Call(Store::kAccumulateF32, InputFormat::kFp8, 128);
  EXPECT_EQ(gemm_.Splits(call, gemm_.Choose(call)), 2);
  CompareInputs(InputFormat::kFp8, {100, 128});
}

// Where fp8_activation_rows asks for it, many rows of bf16 give what their e4m3 values would.
TEST_F(GemmTest, LinearLayersRoundActivationsWhereAsked) {
  constexpr int32_t kRows = 300;
  for (const auto format : {WeightFormat::kFp8, WeightFormat::kFp8Block}) {
    LinearOptions options;
    options.max_rows = kRows;
    options.fp8_activation_rows = kRows;
    auto kernels = LinearKernels::Create(options);
    ASSERT_TRUE(kernels) << kernels.error().ToString();
    MakeWeight(format, {512}, 1024, false, false);
    DeviceVector<uint8_t> workspace((*kernels)->WorkspaceBytes(weight_));
    ASSERT_TRUE((*kernels)->SetWorkspace(workspace.get(), workspace.size(), nullptr));
    MakeInput(InputFormat::kFp8, kRows);
    const std::vector<double> expected = Expected(kRows);
    DeviceVector<float> y(static_cast<size_t>(kRows) * 512);
    LinearCall call;
    call.weight = &weight_;
    call.x = x_->get();
    call.y = y.get();
    call.store = Store::kF32;
    call.rows = kRows;
    const Status status = (*kernels)->Launch(call, nullptr);
    ASSERT_TRUE(status) << status.error().ToString();
    EXPECT_LT(RelativeError(y.Get(), expected), 5e-3);
    EXPECT_NE((*kernels)->Describe(call).find("FP8 activations"), std::string::npos);
  }
}

TEST_F(GemmTest, MisalignedRowsAreLeftToOthers) {
  MakeWeight(WeightFormat::kBf16, {333}, 64, false, false);
  MakeInput(InputFormat::kBf16, 100);
  LinearCall call = Call(Store::kBf16, InputFormat::kBf16, 100);
  call.y_stride = 333;
  EXPECT_FALSE(gemm_.Supports(call));
  call.y_stride = 336;
  EXPECT_TRUE(gemm_.Supports(call));
}

}  // namespace
}  // namespace aisp::cuda
