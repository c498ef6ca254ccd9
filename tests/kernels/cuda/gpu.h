// The GPU of a test, or the reason why it is skipped; and tensors on it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/load.h"

namespace aisp {

// Looks beside the test program and in the build's lib folder.
inline Result<CudaBackend> OpenTestGpu() {
  std::error_code ignored;
  const std::string here =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
  const std::string folders[] = {here, here + "/../lib", std::string(AISP_BINARY_DIR) + "/lib"};
  CudaBackendOptions options;
  options.max_rows = 2048;
  options.max_sequences = 256;
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
  // What no kernel ought to leave.
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
    } else {
      host.as<float>()[i] = v;
    }
  }
  static float Get(const TensorView& t, int64_t i) {
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

  TensorView host, gpu;

 private:
  Device& device_;
  Stream& stream_;
  std::vector<std::byte> bytes_;
  Buffer buffer_;
};

}  // namespace aisp
