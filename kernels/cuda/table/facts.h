// What the kernel table's choices depend on besides programme and bucket: the device, and
// measurements on it. Plain data without CUDA headers, so that a programme can be resolved without
// a GPU (`aisp info --programme`).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/result.h"
#include "kernels/params.h"

namespace aisp::cuda {

// How a weight was packed, for LinearTraits::family.
enum class LinearFamily : uint8_t {
  kPlain = 1,    // weights.h: row-major, f32 or bf16
  kFast,         // linear/: bf16, FP8, NVFP4 for Hopper
  kBlockScaled,  // block_scaled.h: NVFP4 for 10.0 and 12.0
};

struct DeviceFacts {
  std::string name;
  int32_t multiprocessors = 0;
  bool hopper = false;        // linear/ and attention/ are available
  bool block_scaled = false;  // BlockScaledLinear is available
  // No other code of this process uses the device: CTAs of a launch may wait for each other.
  bool exclusive = true;
  bool overlap = true;
  int32_t max_rows = 0;
  int32_t max_sequences = 0;
  // Calls with at least so many rows on FP8 weights first round their rows to e4m3; 0: never.
  int32_t fp8_activation_rows = 0;
  // For predictions only.
  double bytes_per_us = 0;  // read by a kernel
  double launch_us = 0;     // per kernel in a graph
  double bf16_flops_per_us = 0;
};

// Measured choices by product: the content of the cache that ManyRows::Prepare writes.
class TuningProfile {
 public:
  // Prefix of its lines. The number is increased when changed kernels may invalidate choices.
  static constexpr const char* kMark = "choice.4";

  // Tokens per tile of our fastest kernel; kLtTokens: cuBLASLt was faster.
  static constexpr int kLtTokens = 0;
  // Key of everything besides rows that a choice depends on; `fp8_rows`: activations are e4m3.
  static std::string KeyOf(const LinearTraits& weight, bool fp8_rows);

  // Reads lines "choice.4 KEY ROWS TOKENS"; ignores others.
  void Read(std::istream& lines);
  void Add(const std::string& key, int32_t rows, int tokens) { measured_[key][rows] = tokens; }
  // By rows; null: not measured.
  const std::map<int32_t, int>* Of(const std::string& key) const;

 private:
  std::map<std::string, std::map<int32_t, int>> measured_;
};

// A measured H200: the device for maps printed without a GPU.
DeviceFacts H200Facts();

}  // namespace aisp::cuda
