// Random matrices in checkpoint formats, with their values, and device memory with contents. Test
// support.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/linear/linear.h"

namespace aisp::cuda::test {

inline float FromFp8(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  const float v = exponent > 0 ? std::ldexp(static_cast<float>(8 + mantissa), exponent - 10)
                               : std::ldexp(static_cast<float>(mantissa), -9);
  return (bits & 0x80) != 0 ? -v : v;
}
inline float FromFp4(int nibble) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return (nibble & 8) != 0 ? -kValues[nibble & 7] : kValues[nibble & 7];
}
inline uint16_t ToBf16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float FromBf16(uint16_t v) {
  const uint32_t bits = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// To nearest, ties to even.
inline uint16_t ToF16(float v) {
  const auto sign = static_cast<uint16_t>(std::signbit(v) ? 0x8000 : 0);
  const float m = std::fabs(v);
  if (std::isnan(v)) return 0x7fff;
  if (m >= 65520.0f) return sign | 0x7c00;
  const int exponent = m < std::ldexp(1.0f, -14) ? -14 : std::ilogb(m);
  // In units of the last place, 1024 to 2047 except for subnormals; 2048 carries into the exponent.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(m, 10 - exponent)));
  return static_cast<uint16_t>(sign | (units + ((exponent + 14) << 10)));
}
inline float FromF16(uint16_t v) {
  const int exponent = v >> 10 & 31;
  const int mantissa = v & 1023;
  float f = std::numeric_limits<float>::infinity();
  if (exponent == 31 && mantissa != 0) f = std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) f = std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent > 0 && exponent < 31)
    f = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return (v & 0x8000) != 0 ? -f : f;
}

// Device memory with its contents.
template <typename T>
class DeviceVector {
 public:
  explicit DeviceVector(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(count, 1) * sizeof(T)),
              cudaSuccess);
  }
  explicit DeviceVector(const std::vector<T>& values) : DeviceVector(values.size()) { Set(values); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;
  ~DeviceVector() { cudaFree(data_); }
  void Set(const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  std::vector<T> Get() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }
  T* get() { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// A quantised matrix in a checkpoint's format, and its values.
struct Matrix {
  std::vector<uint8_t> data;          // elements of the source type
  std::vector<float> scales;          // FP8: [rows] or blocks
  std::vector<uint8_t> block_scales;  // NVFP4
  float scale = 1.0f;
  std::vector<float> bias;
  std::vector<float> values;  // [rows, k]
  int64_t rows = 0;

  WeightPart Part() const {
    WeightPart part;
    part.data = data.data();
    part.rows = rows;
    part.bias = bias.empty() ? nullptr : bias.data();
    part.scales = scales.empty() ? nullptr : scales.data();
    part.scale = scale;
    part.block_scales = block_scales.empty() ? nullptr : block_scales.data();
    return part;
  }
};

inline SourceType SourceOf(WeightFormat format) {
  return format == WeightFormat::kBf16    ? SourceType::kBf16
         : format == WeightFormat::kNvfp4 ? SourceType::kNvfp4
                                          : SourceType::kFp8;
}

// Elements of about 1 / sqrt(k).
inline Matrix MakeMatrix(std::mt19937& random, WeightFormat format, int64_t rows, int64_t k,
                         bool bias) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  Matrix m;
  m.rows = rows;
  const auto count = static_cast<size_t>(rows * k);
  m.values.resize(count);
  const float deviation = 1.0f / std::sqrt(static_cast<float>(k));
  if (format == WeightFormat::kBf16) {
    m.data.resize(count * 2);
    for (size_t i = 0; i < count; ++i) {
      const uint16_t v = ToBf16(normal(random) * deviation);
      std::memcpy(&m.data[2 * i], &v, 2);
      m.values[i] = FromBf16(v);
    }
  } else if (format == WeightFormat::kNvfp4) {
    m.data.resize(count / 2);
    m.block_scales.resize(count / 16);
    m.scale = uniform(random) * deviation / 100.0f;
    // Every code of a scale, subnormals and zero included.
    for (auto& s : m.block_scales) s = static_cast<uint8_t>(random() % 0x7f);
    for (size_t i = 0; i < count; ++i) {
      const int nibble = static_cast<int>(random() % 16);
      m.data[i / 2] |= static_cast<uint8_t>(nibble << (i % 2 * 4));
      m.values[i] = FromFp4(nibble) * FromFp8(m.block_scales[i / 16]) * m.scale;
    }
  } else {
    const bool blocks = format == WeightFormat::kFp8Block;
    const int64_t columns = (k + 127) / 128;
    m.data.resize(count);
    m.scales.resize(static_cast<size_t>(blocks ? (rows + 127) / 128 * columns : rows));
    for (auto& s : m.scales) s = uniform(random) * deviation / 100.0f;
    for (int64_t i = 0; i < rows * k; ++i) {
      auto bits = static_cast<uint8_t>(random());
      if ((bits & 0x7f) == 0x7f) bits ^= 1;  // not NaN
      m.data[static_cast<size_t>(i)] = bits;
      const int64_t scale = blocks ? i / k / 128 * columns + i % k / 128 : i / k;
      m.values[static_cast<size_t>(i)] = FromFp8(bits) * m.scales[static_cast<size_t>(scale)];
    }
  }
  if (bias) {
    for (int64_t i = 0; i < rows; ++i) m.bias.push_back(normal(random));
  }
  return m;
}

}  // namespace aisp::cuda::test
