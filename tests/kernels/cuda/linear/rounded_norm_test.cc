// A norm that writes e4m3 rows gives the same bits as a norm followed by rounding.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/rows.h"
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

}  // namespace
}  // namespace aisp::cuda
