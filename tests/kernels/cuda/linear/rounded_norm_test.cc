// Rounding to e4m3: the bits of the host, and of a norm followed by rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/rows.h"
#include "kernels/device/fp8.h"
#include "tests/kernels/cuda/linear/matrices.h"

namespace aisp::cuda {
namespace {

using test::DeviceVector;

TEST(RoundedNorm, HasTheBitsOfANormAndARounding) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
  std::mt19937 random{std::random_device{}()};
  std::normal_distribution<float> normal;
  for (const int64_t width : {16, 48, 256, 1040, 4096, 5120, 16384}) {
    for (const int32_t rows : {1, 7, 130, 1000}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << width);
      const auto count = static_cast<size_t>(rows * width);
      std::vector<float> values(count), gains(static_cast<size_t>(width));
      for (float& v : values) v = normal(random);
      for (float& v : gains) v = normal(random);
      std::fill(values.begin(), values.begin() + width, 0.0f);  // a row of zeros
      DeviceVector<float> x(values), weight(gains), scales(static_cast<size_t>(rows)),
          expected_scales(static_cast<size_t>(rows));
      DeviceVector<uint16_t> bf16(count);
      DeviceVector<uint8_t> y(count), expected(count);
      RmsNormParams p;
      p.x = TensorView::Dense(x.get(), DType::kF32, {rows, width});
      p.weight = TensorView::Dense(weight.get(), DType::kF32, {width});
      p.y = TensorView::Dense(bf16.get(), DType::kBF16, {rows, width});
      p.rows = rows;
      ASSERT_TRUE(LaunchRmsNorm(p, nullptr));
      ASSERT_TRUE(
          QuantizeRows(bf16.get(), expected.get(), expected_scales.get(), rows, width, nullptr));
      ASSERT_TRUE(LaunchRoundedNorm(p, y.get(), scales.get(), nullptr));
      EXPECT_EQ(y.Get(), expected.Get());
      EXPECT_EQ(scales.Get(), expected_scales.Get());
    }
  }
}

TEST(QuantizeRows, HasTheHostsBits) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
  std::mt19937 random{11};
  std::normal_distribution<float> normal;
  for (const int64_t width : {16, 4096, 14336, 28672, 65536}) {
    for (const int32_t rows : {3, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << width);
      const auto count = static_cast<size_t>(rows * width);
      std::vector<uint16_t> x(count);
      for (uint16_t& v : x) v = test::ToBf16(normal(random));
      DeviceVector<uint16_t> from(x);
      DeviceVector<uint8_t> to(count);
      DeviceVector<float> scales(static_cast<size_t>(rows));
      ASSERT_TRUE(QuantizeRows(from.get(), to.get(), scales.get(), rows, width, nullptr));
      const std::vector<uint8_t> is = to.Get();
      const std::vector<float> is_scales = scales.Get();
      for (int64_t row = 0; row < rows; ++row) {
        const auto at = [&](int64_t i) {
          return test::FromBf16(x[static_cast<size_t>(row * width + i)]);
        };
        float most = 0;
        for (int64_t i = 0; i < width; ++i) most = std::max(most, std::fabs(at(i)));
        const float scale = most / 448.0f, inverse = 1.0f / scale;
        ASSERT_EQ(is_scales[static_cast<size_t>(row)], scale);
        for (int64_t i = 0; i < width; ++i) {
          const int64_t permuted =
              row * width + i / 16 * 16 + Fp8Position(static_cast<int>(i % 16));
          ASSERT_EQ(is[static_cast<size_t>(permuted)], FloatToFp8(at(i) * inverse)) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace aisp::cuda
