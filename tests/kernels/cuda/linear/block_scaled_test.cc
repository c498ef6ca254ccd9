// The operands of cuBLASLt's block-scaled products. The products need tensor cores that no tested
// GPU has; preparing their operands does not.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/block_scaled_kernels.h"

namespace aisp::cuda {
namespace {

TEST(BlockScaled, ScalesLieInTilesOf128RowsAnd4Groups) {
  EXPECT_EQ(TiledScaleOffset(0, 0, 128), 0);
  EXPECT_EQ(TiledScaleOffset(0, 3, 128), 3);
  EXPECT_EQ(TiledScaleOffset(1, 0, 128), 16);
  EXPECT_EQ(TiledScaleOffset(32, 0, 128), 4);
  EXPECT_EQ(TiledScaleOffset(127, 3, 128), 31 * 16 + 3 * 4 + 3);
  EXPECT_EQ(TiledScaleOffset(0, 4, 128), 512);
  EXPECT_EQ(TiledScaleOffset(128, 0, 128), 1024);
  // Every offset belongs to one scale, whatever the padding.
  for (const int64_t k : {16, 80, 256}) {
    std::vector<int> seen(TiledScaleBytes(200, k), 0);
    for (int64_t row = 0; row < 256; ++row) {
      for (int64_t group = 0; group < PaddedGroups(k); ++group)
        ++seen.at(static_cast<size_t>(TiledScaleOffset(row, group, k)));
    }
    for (const int count : seen) EXPECT_EQ(count, 1);
  }
}

float FromE4M3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

TEST(BlockScaled, RowsAreQuantisedToTheNearestCode) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  constexpr float kCodes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  constexpr int32_t kRows = 37;
  constexpr int64_t kColumns = 208;
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<uint16_t> x(kRows * kColumns);
  std::vector<float> values(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    // One of the groups is all zeros.
    const float v = i < 16 ? 0.0f : normal(random);
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof(bits));
    bits &= 0xffff0000u;
    x[i] = static_cast<uint16_t>(bits >> 16);
    std::memcpy(&values[i], &bits, sizeof(bits));
  }
  const size_t code_bytes = x.size() / 2, scale_bytes = TiledScaleBytes(kRows, kColumns);
  std::vector<uint8_t> codes(code_bytes), scales(scale_bytes);
  void* allocated = nullptr;
  ASSERT_EQ(cudaMalloc(&allocated, x.size() * 2 + code_bytes + scale_bytes), cudaSuccess);
  auto* const memory = static_cast<uint8_t*>(allocated);
  uint8_t* const on_codes = memory + x.size() * 2;
  uint8_t* const on_scales = on_codes + code_bytes;
  cudaMemset(memory, 0xff, x.size() * 2 + code_bytes + scale_bytes);
  cudaMemcpy(memory, x.data(), x.size() * 2, cudaMemcpyHostToDevice);
  ASSERT_TRUE(LaunchQuantizeBlockScaled(memory, kRows, kColumns, on_codes, on_scales, nullptr));
  cudaMemcpy(codes.data(), on_codes, code_bytes, cudaMemcpyDeviceToHost);
  ASSERT_EQ(cudaMemcpy(scales.data(), on_scales, scale_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  cudaFree(memory);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const auto i = static_cast<size_t>(row * kColumns + c);
      const float scale =
          FromE4M3(scales[static_cast<size_t>(TiledScaleOffset(row, c / 16, kColumns))]);
      const uint8_t code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
      const float got = kCodes[code & 7] * (code & 8 ? -scale : scale);
      float nearest = 1e9f;
      for (const float magnitude : kCodes)
        nearest = std::min(nearest, std::fabs(std::fabs(values[i]) - magnitude * scale));
      // Rounding the scale's inverse may choose the other of two codes that are almost equally
      // near.
      EXPECT_LE(std::fabs(got - values[i]), nearest * 1.001f + 1e-6f) << row << " " << c;
    }
  }
}

}  // namespace
}  // namespace aisp::cuda
