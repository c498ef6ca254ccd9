// The number formats that a worker computes in, once its device is open: the part of its
// fingerprint that determines the bits of its KV. Every setting that changes those bits must be
// added here. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "config/config.h"
#include "server/backend.h"
#include "server/served_model.h"

namespace aisp {

struct ArithmeticFacts {
  std::string_view device;        // "cpu", "cuda"
  DType compute = DType::kF32;    // of the matrix products
  std::string_view quantization;  // --quantization
  QuantFormat stored = QuantFormat::kNone;
  std::function<bool(WeightFormat)> multiplies;  // the device, without widening
  DType activations = DType::kF32;
  int32_t fp8_activation_rows = 0;  // a step's rows from which they are rounded to FP8; 0: never
  DType kv = DType::kF32;
  int32_t block_tokens = 0;  // 0: no bit depends on it
};

std::string DescribeArithmetic(const ArithmeticFacts& facts);

// "cuda bf16; weights nvfp4; activations bf16; kv fp8_e4m3 x 1".
std::string ArithmeticOf(const Config& config, const ServedModel& served, const Backend& backend);

// The served model's fingerprint with this worker's arithmetic and KV layout.
v1::Fingerprint WorkerFingerprint(const Config& config, const ServedModel& served,
                                  const Backend& backend);

}  // namespace aisp
