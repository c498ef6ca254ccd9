// Matrix products against plain code, and their row independence.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/linear.h"

namespace aisp {
namespace {

std::vector<float> Normal(int64_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& v : out) v = normal(generator);
  return out;
}

class LinearTest : public testing::TestWithParam<int> {
 protected:
  LinearTest()
      : ops_(std::move(*MakeCpuOps({.threads = GetParam()}))),
        stream_(std::move(*device_->CreateStream())) {}

  // x W^T, added to `start` if the weight accumulates.
  std::vector<float> Multiply(const PackedLinear& w, const std::vector<float>& x, int64_t rows,
                              float start = 0) {
    const int64_t capacity = ops_->RowCapacity(rows), in = w.in_features(), out = w.out_features();
    std::vector<std::byte> memory(static_cast<size_t>(capacity * in) * DTypeBytes(w.input_dtype()));
    ConvertElements(TensorView::Dense(const_cast<float*>(x.data()), DType::kF32, {rows * in}), 0,
                    rows * in, w.input_dtype(), memory.data());
    std::vector<float> y(static_cast<size_t>(capacity * out), start);
    EXPECT_TRUE(ops_->Linear({&w, TensorView::Dense(memory.data(), w.input_dtype(), {capacity, in}),
                              TensorView::Dense(y.data(), DType::kF32, {capacity, out}),
                              static_cast<int32_t>(rows)},
                             *stream_)
                    .has_value());
    y.resize(static_cast<size_t>(rows * out));
    return y;
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> stream_;
};

TEST_P(LinearTest, PartsAreStackedBiasedAndAccumulated) {
  const int64_t in = 96;
  auto a = Normal(80 * in, 1), b = Normal(48 * in, 2), bias = Normal(80, 3);
  const TensorView parts[] = {TensorView::Dense(a.data(), DType::kF32, {80, in}),
                              TensorView::Dense(b.data(), DType::kF32, {48, in})};
  const TensorView biases[] = {TensorView::Dense(bias.data(), DType::kF32, {80}), TensorView{}};
  const auto packed = ops_->PackLinear({parts, biases, DType::kF32, Epilogue::kAccumulate});
  ASSERT_TRUE(packed.has_value()) << packed.error().ToString();
  ASSERT_EQ((*packed)->out_features(), 128);
  const auto x = Normal(5 * in, 4);
  const auto y = Multiply(**packed, x, 5, 10.0f);
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t n = 0; n < 128; ++n) {
      double sum = 10.0 + (n < 80 ? static_cast<double>(bias[static_cast<size_t>(n)]) : 0.0);
      const float* w =
          n < 80 ? &a[static_cast<size_t>(n * in)] : &b[static_cast<size_t>((n - 80) * in)];
      for (int64_t k = 0; k < in; ++k)
        sum += static_cast<double>(x[static_cast<size_t>(r * in + k)]) * w[k];
      ASSERT_NEAR(y[static_cast<size_t>(r * 128 + n)], sum, 2e-4) << r << " " << n;
    }
  }
}

TEST_P(LinearTest, ARowIsTheSameBitsInEveryNumberOfRows) {
  std::vector<DType> dtypes = {DType::kF32};
  if (ops_->PreferredComputeDType(DType::kBF16, int64_t{1} << 40) == DType::kBF16)
    dtypes.push_back(DType::kBF16);
  for (DType dtype : dtypes) {
    for (const auto& [out, in] :
         std::vector<std::pair<int64_t, int64_t>>{{512, 256}, {256, 768}, {100, 72}, {64, 1536}}) {
      auto w = Normal(out * in, 5);
      const TensorView parts[] = {TensorView::Dense(w.data(), DType::kF32, {out, in})};
      const auto packed = ops_->PackLinear({parts, {}, dtype, Epilogue::kStore});
      ASSERT_TRUE(packed.has_value());
      const auto x = Normal(600 * in, 6);
      const auto all = Multiply(**packed, x, 600);
      for (int64_t rows : {1, 2, 5, 7, 15, 16, 17, 31, 33, 63, 65, 100, 255, 257, 513}) {
        // The last `rows` of the 600, so that a row has another index than before.
        const std::vector<float> some(x.end() - static_cast<ptrdiff_t>(rows * in), x.end());
        const auto y = Multiply(**packed, some, rows);
        ASSERT_EQ(std::memcmp(y.data(), &all[static_cast<size_t>((600 - rows) * out)],
                              y.size() * sizeof(float)),
                  0)
            << DTypeName(dtype) << " [" << out << ", " << in << "], " << rows << " rows";
      }
    }
  }
}

TEST_P(LinearTest, PartsThatDoNotFitAreRefused) {
  auto w = Normal(64 * 64, 1);
  const TensorView uneven[] = {TensorView::Dense(w.data(), DType::kF32, {32, 64}),
                               TensorView::Dense(w.data(), DType::kF32, {32, 32})};
  EXPECT_EQ(ops_->PackLinear({uneven, {}, DType::kF32, Epilogue::kStore}).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(ops_->PackLinear({}).error().code, Code::kInvalidArgument);
  const TensorView fine[] = {TensorView::Dense(w.data(), DType::kF32, {32, 64})};
  EXPECT_EQ(ops_->PackLinear({fine, {}, DType::kF8E4M3, Epilogue::kStore}).error().code,
            Code::kUnimplemented);
}

INSTANTIATE_TEST_SUITE_P(Threads, LinearTest, testing::Values(1, 2, 3));

// Each table that this CPU can run, called directly.
class PanelTest : public testing::TestWithParam<const PanelKernels*> {
 protected:
  static std::vector<float> Multiply(const PanelKernels& kernels, int threads, DType dtype,
                                     const std::vector<float>& w, const std::vector<float>& x,
                                     int64_t rows, int64_t in, int64_t out) {
    ThreadPool pool(threads);
    LinearEngine engine(&pool, kernels);
    const TensorView parts[] = {
        TensorView::Dense(const_cast<float*>(w.data()), DType::kF32, {out, in})};
    const auto packed = engine.Pack({parts, {}, dtype, Epilogue::kStore});
    EXPECT_TRUE(packed.has_value());
    std::vector<std::byte> input(static_cast<size_t>(rows * in) * DTypeBytes(dtype));
    ConvertElements(TensorView::Dense(const_cast<float*>(x.data()), DType::kF32, {rows * in}), 0,
                    rows * in, dtype, input.data());
    std::vector<float> y(static_cast<size_t>(rows * out), 7.0f);
    engine.Run(**packed, input.data(), y.data(), rows);
    return y;
  }
};

TEST_P(PanelTest, EveryShapeAgreesWithPlainCodeOnAnyNumberOfThreads) {
  if (GetParam() == nullptr) GTEST_SKIP() << "this CPU does not run it";
  std::vector<DType> dtypes = {DType::kF32};
  if (GetParam()->bf16 != nullptr) dtypes.push_back(DType::kBF16);
  for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{{1, 16, 1},
                                                                         {1, 300, 515},
                                                                         {2, 600, 129},
                                                                         {3, 258, 64},
                                                                         {5, 1024, 200},
                                                                         {13, 770, 65},
                                                                         {37, 512, 96},
                                                                         {250, 514, 66}}) {
    const auto w = Normal(out * in, 7), x = Normal(rows * in, 8);
    for (DType dtype : dtypes) {
      const auto y = Multiply(*GetParam(), 1, dtype, w, x, rows, in, out);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < out; ++n) {
          double sum = 0, size = 0;
          for (int64_t k = 0; k < in; ++k) {
            const double product = static_cast<double>(x[static_cast<size_t>(r * in + k)]) *
                                   w[static_cast<size_t>(n * in + k)];
            sum += product;
            size += product * product;
          }
          const double tolerance = (dtype == DType::kF32 ? 1e-5 : 2e-2) * (1 + std::sqrt(size));
          ASSERT_NEAR(y[static_cast<size_t>(r * out + n)], sum, tolerance)
              << DTypeName(dtype) << " " << rows << "x" << in << "x" << out << ": " << r << ","
              << n;
        }
      }
      for (int threads : {2, 3}) {
        const auto shared = Multiply(*GetParam(), threads, dtype, w, x, rows, in, out);
        ASSERT_EQ(std::memcmp(shared.data(), y.data(), y.size() * sizeof(float)), 0) << threads;
      }
    }
  }
}

std::string TableName(const testing::TestParamInfo<const PanelKernels*>& info) {
  constexpr const char* kNames[] = {"Baseline", "Avx2", "Avx512", "Avx512Bf16"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Tables, PanelTest,
                         testing::Values(&BaselinePanelKernels(), Avx2PanelKernels(),
                                         Avx512PanelKernels(), Avx512Bf16PanelKernels()),
                         TableName);

TEST(PanelKernels, AvxAndAvx512GiveTheSameBits) {
  if (Avx2PanelKernels() == nullptr || Avx512PanelKernels() == nullptr)
    GTEST_SKIP() << "this CPU has not both";
  const auto w = Normal(200 * 700, 9), x = Normal(19 * 700, 10);
  ThreadPool pool(1);
  std::vector<float> results[2];
  const PanelKernels* const tables[] = {Avx2PanelKernels(), Avx512PanelKernels()};
  for (size_t i = 0; i < 2; ++i) {
    LinearEngine engine(&pool, *tables[i]);
    const TensorView parts[] = {
        TensorView::Dense(const_cast<float*>(w.data()), DType::kF32, {200, 700})};
    const auto packed = engine.Pack({parts, {}, DType::kF32, Epilogue::kStore});
    ASSERT_TRUE(packed.has_value());
    results[i].resize(19 * 200);
    engine.Run(**packed, x.data(), results[i].data(), 19);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(CpuOpsOptions, ThreadsHaveToBeSensible) {
  EXPECT_EQ(MakeCpuOps({.threads = 0}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(MakeCpuOps({.threads = 1000}).error().code, Code::kInvalidArgument);
}

TEST(Convert, HalfPrecisionIsExact) {
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0f);
  EXPECT_EQ(HalfToFloat(0xc000), -2.0f);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1.0p-24f);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(HalfToFloat(0x7c00), INFINITY);
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7e00)));
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
}

}  // namespace
}  // namespace aisp
