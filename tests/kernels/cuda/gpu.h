// The GPU of a test, or the reason for skipping it; and tensors on it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/load.h"

namespace aisp {

// Looks in the test program's folder and in the build's lib folder.
inline Result<CudaBackend> OpenTestGpu(const std::string& tuning_cache = "") {
  std::error_code ignored;
  const std::string here =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
  const std::string folders[] = {here, here + "/../lib", std::string(AISP_BINARY_DIR) + "/lib"};
  CudaBackendOptions options;
  options.max_rows = 2048;
  options.max_sequences = 256;
  options.tuning_cache = tuning_cache;
  return OpenCudaBackend(options, folders);
}

// Skips the test when there is no GPU; any other failure to open it is a failure.
#define AISP_OPEN_GPU(variable)                                                    \
  auto variable##_opened = OpenTestGpu();                                          \
  if (!variable##_opened && variable##_opened.error().code == Code::kNotFound)     \
    GTEST_SKIP() << variable##_opened.error().message;                             \
  ASSERT_TRUE(variable##_opened.has_value()) << variable##_opened.error().message; \
  CudaBackend& variable = *variable##_opened

inline uint16_t ToBf16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float FromBf16(uint16_t v) {
  const uint32_t bits = uint32_t{v} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

inline float FromE4M3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}
// To the nearest, ties to even, saturating.
inline uint8_t ToE4M3(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::min(std::fabs(value), 448.0f);
  const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const float steps = std::nearbyint(std::ldexp(magnitude, 3 - exponent));
  const int code = static_cast<int>(steps) + (exponent + 6) * 8;
  return static_cast<uint8_t>(sign | std::min(code, 0x7e));
}

// A dense tensor that exists on the CPU and on the GPU.
class TwinTensor {
 public:
  TwinTensor(Device& device, Stream& stream, DType dtype, std::initializer_list<int64_t> shape)
      : device_(device), stream_(stream) {
    host = TensorView::Dense(nullptr, dtype, shape);
    bytes_.resize(std::max<size_t>(host.bytes(), 16));
    host.data = bytes_.data();
    auto buffer = device.Allocate(bytes_.size(), MemoryKind::kDevice);
    AISP_CHECK_MSG(buffer.has_value(), buffer.error().message);
    buffer_ = std::move(*buffer);
    gpu = host;
    gpu.data = buffer_.data();
  }
  // Random normal values, rounded to the dtype, on both sides.
  TwinTensor& Randomise(std::mt19937& random, float deviation = 1) {
    std::normal_distribution<float> normal(0, deviation);
    for (int64_t i = 0; i < host.elements(); ++i) Set(i, normal(random));
    return Upload();
  }
  // Fills memory with values that no kernel may leave.
  TwinTensor& Poison() {
    std::memset(bytes_.data(), 0xff, bytes_.size());
    return Upload();
  }
  TwinTensor& Upload() {
    AISP_CHECK(device_.Copy(gpu.data, bytes_.data(), bytes_.size(), stream_).has_value());
    AISP_CHECK(device_.Synchronize(stream_).has_value());
    return *this;
  }
  void Set(int64_t i, float v) {
    if (host.dtype == DType::kBF16) {
      host.as<uint16_t>()[i] = ToBf16(v);
    } else if (host.dtype == DType::kF8E4M3) {
      host.as<uint8_t>()[i] = ToE4M3(v);
    } else {
      host.as<float>()[i] = v;
    }
  }
  static float Get(const TensorView& t, int64_t i) {
    if (t.dtype == DType::kF8E4M3) return FromE4M3(t.as<uint8_t>()[i]);
    return t.dtype == DType::kBF16 ? FromBf16(t.as<uint16_t>()[i]) : t.as<float>()[i];
  }
  std::vector<std::byte> Download() const {
    std::vector<std::byte> out(bytes_.size());
    AISP_CHECK(device_.Copy(out.data(), gpu.data, out.size(), stream_).has_value());
    AISP_CHECK(device_.Synchronize(stream_).has_value());
    return out;
  }
  // |gpu - host| / |host| over the first `count` elements; NaN counts as 1e9.
  double Error(int64_t count = -1) const {
    const std::vector<std::byte> bytes = Download();
    TensorView got = host;
    got.data = const_cast<std::byte*>(bytes.data());
    double difference = 0, norm = 1e-30;
    for (int64_t i = 0; i < (count < 0 ? host.elements() : count); ++i) {
      const double a = Get(host, i), b = Get(got, i);
      if (std::isnan(b)) return 1e9;
      difference += (a - b) * (a - b);
      norm += a * a;
    }
    return std::sqrt(difference / norm);
  }

  // The values on the host as f32, in memory of the caller.
  TensorView Widened(std::vector<float>* memory) const {
    memory->resize(static_cast<size_t>(host.elements()));
    for (size_t i = 0; i < memory->size(); ++i) (*memory)[i] = Get(host, static_cast<int64_t>(i));
    TensorView view = host;
    view.data = memory->data();
    view.dtype = DType::kF32;
    return view;
  }

  TensorView host, gpu;

 private:
  Device& device_;
  Stream& stream_;
  std::vector<std::byte> bytes_;
  Buffer buffer_;
};

}  // namespace aisp
