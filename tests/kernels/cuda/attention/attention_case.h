// A step of attention on random data, on the device and in double precision on the host.
//
// Whatever the kernels must not read is NaN: unused blocks, slots past a context, gaps between
// rows; the output starts as NaN.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attention.h"

namespace aisp::cuda {

struct SequenceCase {
  int32_t rows = 0;
  int32_t context = 0;
};

struct AttentionCase {
  int32_t heads = 8;
  int32_t kv_heads = 2;
  int32_t head_dim = 128;
  int32_t block_tokens = 16;
  DType kv = DType::kBF16;
  DType q = DType::kBF16;
  DType out = DType::kBF16;
  int32_t window = 0;
  int32_t decode_tokens = 1;
  int32_t split_tokens = 0;
  StepKind kind = StepKind::kDecode;
  std::vector<SequenceCase> sequences;
  uint64_t seed = 1;
  float q_scale = 2.0f;  // standard deviation of the queries

  std::string Name() const;
};

struct CaseResult {
  std::string error;        // not empty: a call failed
  double relative = 1e9;    // |out - reference| / |reference|
  double worst_row = 1e9;   // the same for the worst {row, head}
  bool repeatable = false;  // three runs, equal bits
};

CaseResult RunCase(const AttentionCase& c);
bool HaveGpu();

// Device memory, freed at the end of the scope.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes);
  DeviceBytes(const void* host, size_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// Casts an expression of counts to an index or a size.
constexpr size_t Index(int64_t n) { return static_cast<size_t>(n); }

uint16_t Bf16FromFloat(float value);
float FloatFromBf16(uint16_t bits);
uint8_t E4M3FromFloat(float value);
float FloatFromE4M3(uint8_t bits);

}  // namespace aisp::cuda
