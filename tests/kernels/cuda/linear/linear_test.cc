// Linear layers against a double-precision product of the same (quantised) operands, on fresh
// random inputs. Needs a Hopper GPU.
#include "kernels/cuda/linear/linear_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
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
using test::SourceOf;
using test::ToBf16;

class LinearTest : public ::testing::Test {
 protected:
  static constexpr int32_t kMaxRows = 2100;

  void SetUp() override {
    int devices = 0;
    cudaDeviceProp device = {};
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
        cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
      GTEST_SKIP() << "no GPU of compute capability 9.0";
    }
    auto kernels =
        LinearKernels::Create({.max_rows = kMaxRows, .tuning_cache = "", .overlap = true});
    ASSERT_TRUE(kernels) << kernels.error().ToString();
    kernels_ = std::move(*kernels);
  }

  float Normal() { return std::normal_distribution<float>()(random_); }

  Matrix MakeMatrix(WeightFormat format, int64_t rows, int64_t k, bool bias) {
    return test::MakeMatrix(random_, format, rows, k, bias);
  }

  void Pack(WeightFormat format, const std::vector<Matrix>& matrices, int64_t k, bool gated) {
    std::vector<WeightPart> parts;
    for (const Matrix& m : matrices) parts.push_back(m.Part());
    const WeightSource source{SourceOf(format), parts, k, gated, format};
    const auto bytes = PackedWeightBytes(source);
    ASSERT_TRUE(bytes) << bytes.error().ToString();
    weight_memory_ = std::make_unique<DeviceVector<uint8_t>>(*bytes);
    auto packed = PackWeight(source, weight_memory_->get(), *bytes, nullptr);
    ASSERT_TRUE(packed) << packed.error().ToString();
    weight_ = *packed;
    const size_t workspace = kernels_->WorkspaceBytes(weight_);
    workspace_ = std::make_unique<DeviceVector<uint8_t>>(workspace);
    const Status set = kernels_->SetWorkspace(workspace_->get(), workspace, nullptr);
    ASSERT_TRUE(set) << set.error().ToString();
  }

  // Activations as the kernels get them, and their values.
  struct Input {
    std::unique_ptr<DeviceVector<uint8_t>> data;
    std::unique_ptr<DeviceVector<float>> scales;
    std::vector<float> values;
  };
  Input MakeInput(InputFormat format, int32_t rows, int64_t k) {
    Input input;
    const auto count = static_cast<size_t>(rows * k);
    std::vector<uint16_t> bf16(count);
    for (auto& v : bf16) v = ToBf16(Normal());
    std::vector<uint8_t> bytes(count * 2);
    std::memcpy(bytes.data(), bf16.data(), bytes.size());
    input.data = std::make_unique<DeviceVector<uint8_t>>(bytes);
    input.values.resize(count);
    if (format == InputFormat::kBf16) {
      for (size_t i = 0; i < count; ++i) input.values[i] = FromBf16(bf16[i]);
      return input;
    }
    auto quantised = std::make_unique<DeviceVector<uint8_t>>(count);
    input.scales = std::make_unique<DeviceVector<float>>(static_cast<size_t>(rows));
    EXPECT_TRUE(
        QuantizeRows(input.data->get(), quantised->get(), input.scales->get(), rows, k, nullptr));
    const auto e4m3 = quantised->Get();
    const auto scales = input.scales->Get();
    for (size_t i = 0; i < count; ++i) {
      const size_t place = i / 16 * 16 + static_cast<size_t>(Fp8Position(static_cast<int>(i % 16)));
      input.values[i] = FromFp8(e4m3[place]) * scales[i / static_cast<size_t>(k)];
      // Quantising keeps 3 bits of mantissa.
      EXPECT_NEAR(
          input.values[i], FromBf16(bf16[i]),
          std::abs(FromBf16(bf16[i])) / 15.9f + scales[i / static_cast<size_t>(k)] / 500.0f);
    }
    input.data = std::move(quantised);
    return input;
  }

  // The expected values of a call, [rows, out], from the parts' values.
  std::vector<double> Expected(const std::vector<Matrix>& matrices, const Input& input,
                               int32_t rows, int64_t k, bool gated) {
    std::vector<float> w;
    std::vector<float> bias;
    for (const Matrix& m : matrices) {
      w.insert(w.end(), m.values.begin(), m.values.end());
      for (int64_t i = 0; i < m.rows; ++i) {
        bias.push_back(m.bias.empty() ? 0.0f : m.bias[static_cast<size_t>(i)]);
      }
    }
    const auto n = static_cast<int64_t>(bias.size());
    DeviceVector<float> dw(w);
    DeviceVector<float> dx(input.values);
    DeviceVector<double> dy(static_cast<size_t>(rows * n));
    test::ReferenceProduct(dx.get(), dw.get(), dy.get(), rows, n, k, nullptr);
    std::vector<double> y = dy.Get();
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
    if (!gated) return y;
    std::vector<double> out;
    const auto half = static_cast<size_t>(n / 2);
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      for (size_t i = 0; i < half; ++i) {
        const double gate = y[r * 2 * half + i];
        out.push_back(gate / (1.0 + std::exp(-gate)) * y[r * 2 * half + half + i]);
      }
    }
    return out;
  }

  // Runs a call twice on poisoned outputs; the bits must be equal. Returns the values, [rows, out].
  std::vector<float> Run(Store store, InputFormat format, Input& input, int32_t rows,
                         const std::vector<float>& before) {
    const bool f32 = store == Store::kF32 || store == Store::kAccumulateF32;
    const auto out = static_cast<size_t>(weight_.out_features());
    const size_t stride = out + 24;  // strided, so that writes beyond a row show
    const size_t count = static_cast<size_t>(rows) * stride;
    std::vector<uint8_t> runs[2];
    for (auto& run : runs) {
      std::vector<uint8_t> poison(count * (f32 ? 4 : 2), 0xff);
      if (store == Store::kAccumulateF32) {
        for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
          std::memcpy(&poison[r * stride * 4], &before[r * out], out * 4);
        }
      }
      DeviceVector<uint8_t> y(poison);
      LinearCall call;
      call.weight = &weight_;
      call.x = input.data->get();
      call.input = format;
      call.x_scales = input.scales ? input.scales->get() : nullptr;
      call.y = y.get();
      call.store = store;
      call.rows = rows;
      call.y_stride = static_cast<int64_t>(stride);
      const Status status = kernels_->Launch(call, nullptr);
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
      } else {
        EXPECT_TRUE(std::isnan(v)) << "written beyond the row's end";
      }
    }
    return values;
  }

  static double RelativeError(const std::vector<float>& y, const std::vector<double>& expected) {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double d = y[i] - expected[i];
      difference += d * d;
      norm += expected[i] * expected[i];
    }
    return std::sqrt(difference / norm);
  }

  void CompareStores(WeightFormat format, InputFormat input_format,
                     const std::vector<int64_t>& heights, int64_t k, bool bias, bool gated,
                     const std::vector<int32_t>& row_counts) {
    std::vector<Matrix> matrices;
    for (const int64_t rows : heights) matrices.push_back(MakeMatrix(format, rows, k, bias));
    Pack(format, matrices, k, gated);
    for (const int32_t rows : row_counts) {
      Input input = MakeInput(input_format, rows, k);
      const std::vector<double> expected = Expected(matrices, input, rows, k, gated);
      const std::vector<Store> stores =
          gated ? std::vector{Store::kSiluMulBf16}
                : std::vector{Store::kF32, Store::kBf16, Store::kAccumulateF32};
      for (const Store store : stores) {
        SCOPED_TRACE("rows " + std::to_string(rows) + ", store " +
                     std::to_string(static_cast<int>(store)));
        std::vector<float> before(expected.size());
        std::vector<double> sum = expected;
        if (store == Store::kAccumulateF32) {
          for (size_t i = 0; i < before.size(); ++i) sum[i] += before[i] = Normal();
        }
        const std::vector<float> y = Run(store, input_format, input, rows, before);
        ASSERT_EQ(y.size(), sum.size());
        const bool f32 = store == Store::kF32 || store == Store::kAccumulateF32;
        // bf16 results round once (2^-9); FP8 products are also added with fewer bits by the
        // hardware, and many rows of quantised weights are computed in bf16.
        const double limit = f32 && format == WeightFormat::kBf16 ? 1e-4 : 5e-3;
        EXPECT_LT(RelativeError(y, sum), limit);
      }
    }
  }

  std::mt19937 random_{std::random_device{}()};
  std::unique_ptr<LinearKernels> kernels_;
  std::unique_ptr<DeviceVector<uint8_t>> weight_memory_;
  std::unique_ptr<DeviceVector<uint8_t>> workspace_;
  PackedWeight weight_;
};

const std::vector<int32_t> kRowCounts = {1,  2,  3,  7,  8,   9,   16,  17,  31,
                                         32, 48, 64, 65, 100, 128, 200, 1000};

TEST_F(LinearTest, Bf16OddShapes) {
  CompareStores(WeightFormat::kBf16, InputFormat::kBf16, {200, 64, 69}, 1288, true, false,
                kRowCounts);
}
TEST_F(LinearTest, Bf16SplitAlongK) {
  CompareStores(WeightFormat::kBf16, InputFormat::kBf16, {1024}, 4096, false, false, {1, 16, 64});
}
TEST_F(LinearTest, Fp8WeightsOddShapes) {
  CompareStores(WeightFormat::kFp8, InputFormat::kBf16, {200, 64, 69}, 1296, true, false,
                kRowCounts);
}
TEST_F(LinearTest, Fp8WeightsAndActivations) {
  CompareStores(WeightFormat::kFp8, InputFormat::kFp8, {200, 64, 72}, 1296, true, false,
                kRowCounts);
}
TEST_F(LinearTest, Fp8WeightsAndActivationsOddOutputs) {
  CompareStores(WeightFormat::kFp8, InputFormat::kFp8, {333}, 1040, false, false, {1, 20, 64, 200});
}
// Up to eight tokens with K of real models, so that CTAs share tiles or have many.
TEST_F(LinearTest, FewTokensLongK) {
  struct Formats {
    WeightFormat weight;
    InputFormat input;
  };
  const std::vector<int32_t> rows = {1, 2, 5, 8};
  for (const Formats f : {Formats{WeightFormat::kFp8, InputFormat::kBf16},
                          Formats{WeightFormat::kFp8, InputFormat::kFp8},
                          Formats{WeightFormat::kNvfp4, InputFormat::kBf16}}) {
    SCOPED_TRACE("format " + std::to_string(static_cast<int>(f.weight)) + ", input " +
                 std::to_string(static_cast<int>(f.input)));
    CompareStores(f.weight, f.input, {200, 64, 69}, 2048, true, false, rows);
    CompareStores(f.weight, f.input, {1400, 1208}, 3968, true, false, rows);
    CompareStores(f.weight, f.input, {328}, 14336, false, false, rows);
    CompareStores(f.weight, f.input, {664, 664}, 4096, false, true, rows);
  }
}
TEST_F(LinearTest, Fp8BlocksOddShapes) {
  CompareStores(WeightFormat::kFp8Block, InputFormat::kBf16, {200, 64, 69}, 1296, true, false,
                kRowCounts);
}
TEST_F(LinearTest, Fp8BlocksWithFp8Activations) {
  CompareStores(WeightFormat::kFp8Block, InputFormat::kFp8, {256, 69}, 1152, false, false,
                {1, 9, 32, 64, 130});
}
TEST_F(LinearTest, Nvfp4OddShapes) {
  CompareStores(WeightFormat::kNvfp4, InputFormat::kBf16, {200, 64, 69}, 1296, true, false,
                kRowCounts);
}
TEST_F(LinearTest, GatedInEveryFormat) {
  for (const auto format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
    SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)));
    CompareStores(format, InputFormat::kBf16, {328, 328}, 1024, format == WeightFormat::kBf16, true,
                  {1, 8, 30, 64, 128, 300, 2100});
  }
  CompareStores(WeightFormat::kFp8, InputFormat::kFp8, {328, 328}, 1024, false, true,
                {1, 16, 64, 300});
}

// As many outputs as a vocabulary has (kHeadRows).
TEST_F(LinearTest, HeadsInEveryFormat) {
  for (const auto format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
    SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)));
    CompareStores(format, InputFormat::kBf16, {kHeadRows + 40}, 256, false, false, {1, 8, 30});
  }
}

TEST_F(LinearTest, ARowIsTheSameWhateverTheOthersHold) {
  std::vector<Matrix> matrices{MakeMatrix(WeightFormat::kBf16, 512, 2048, false)};
  Pack(WeightFormat::kBf16, matrices, 2048, false);
  Input input = MakeInput(InputFormat::kBf16, 16, 2048);
  const std::vector<float> all = Run(Store::kF32, InputFormat::kBf16, input, 16, {});
  auto bytes = input.data->Get();
  const std::vector<uint8_t> kept(bytes.begin(), bytes.begin() + 9 * 2048 * 2);
  std::fill(bytes.begin() + 9 * 2048 * 2, bytes.end(), uint8_t{0xff});  // NaN
  input.data->Set(bytes);
  const std::vector<float> poisoned = Run(Store::kF32, InputFormat::kBf16, input, 16, {});
  const std::vector<float> fewer = Run(Store::kF32, InputFormat::kBf16, input, 9, {});
  for (size_t i = 0; i < 9 * 512; ++i) {
    ASSERT_EQ(all[i], poisoned[i]);
    ASSERT_EQ(all[i], fewer[i]);
  }
}

TEST_F(LinearTest, QuantisingOnLoadKeepsTheFormatsPrecision) {
  constexpr int64_t kRows = 264;
  constexpr int64_t kColumns = 1024;
  const Matrix bf16 = MakeMatrix(WeightFormat::kBf16, kRows, kColumns, false);
  const std::vector<WeightPart> parts{bf16.Part()};
  Input input = MakeInput(InputFormat::kBf16, 32, kColumns);
  const auto expected = Expected({bf16}, input, 32, kColumns, false);
  struct Case {
    WeightFormat format;
    double limit;
  };
  // Rounding errors of Gaussian weights: 3 bits of mantissa, and e2m1 with a scale per 16.
  for (const Case c : {Case{WeightFormat::kFp8, 0.035}, Case{WeightFormat::kFp8Block, 0.035},
                       Case{WeightFormat::kNvfp4, 0.12}}) {
    const WeightSource source{SourceType::kBf16, parts, kColumns, false, c.format};
    const auto bytes = PackedWeightBytes(source);
    ASSERT_TRUE(bytes);
    weight_memory_ = std::make_unique<DeviceVector<uint8_t>>(*bytes);
    auto packed = PackWeight(source, weight_memory_->get(), *bytes, nullptr);
    ASSERT_TRUE(packed) << packed.error().ToString();
    weight_ = *packed;
    workspace_ = std::make_unique<DeviceVector<uint8_t>>(kernels_->WorkspaceBytes(weight_));
    ASSERT_TRUE(
        kernels_->SetWorkspace(workspace_->get(), kernels_->WorkspaceBytes(weight_), nullptr));
    const double error =
        RelativeError(Run(Store::kF32, InputFormat::kBf16, input, 32, {}), expected);
    EXPECT_LT(error, c.limit);
    EXPECT_GT(error, 1e-3);
  }
}

TEST_F(LinearTest, ShapesWithoutKernelAreRefusedAtLoad) {
  WeightPart part;
  part.rows = 64;
  const std::vector<WeightPart> parts{part};
  const auto odd = PackedWeightBytes({SourceType::kBf16, parts, 100, false, WeightFormat::kBf16});
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, Code::kUnimplemented);
  const auto gated = PackedWeightBytes({SourceType::kBf16, parts, 128, true, WeightFormat::kBf16});
  ASSERT_FALSE(gated);
  EXPECT_EQ(gated.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace aisp::cuda
