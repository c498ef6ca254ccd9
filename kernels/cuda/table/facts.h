// What the table of kernels chooses by beside the programme and the bucket: the device, and what
// was measured on it. Plain data without any CUDA header, so that a programme can be resolved where
// no GPU is (`aisp info --programme`).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/result.h"
#include "kernels/params.h"

namespace aisp::cuda {

// How a weight was packed: LinearTraits::family.
enum class LinearFamily : uint8_t {
  kPlain = 1,    // weights.h: row-major, f32 or bf16
  kFast,         // linear/: bf16, FP8, NVFP4 for Hopper
  kBlockScaled,  // block_scaled.h: NVFP4 for 10.0 and 12.0
};

struct DeviceFacts {
  std::string name;
  int32_t multiprocessors = 0;
  bool hopper = false;        // linear/ and attention/ run here
  bool block_scaled = false;  // BlockScaledLinear does
  // Nothing else of this process computes there: launches whose CTAs wait for each other may run.
  bool exclusive = true;
  bool overlap = true;
  int32_t max_rows = 0;
  int32_t max_sequences = 0;
  // Calls of at least so many rows on FP8 weights round their rows to e4m3 first; 0: none.
  int32_t fp8_activation_rows = 0;
  // For predictions alone.
  double bytes_per_us = 0;  // that a kernel reads
  double launch_us = 0;     // of a kernel in a graph
  double bf16_flops_per_us = 0;
};

// Times of kernels that were measured, by product: what ManyRows::Prepare leaves in its cache.
class TuningProfile {
 public:
  // Of its lines. The number goes up with kernels that may change what is fastest.
  static constexpr const char* kMark = "choice.2";

  // Tokens of a tile of our own kernel that was fastest, kLtTokens: cuBLASLt was.
  static constexpr int kLtTokens = 0;
  // What a choice may depend on beside the rows; `fp8_rows`: the activations are e4m3.
  static std::string KeyOf(const LinearTraits& weight, bool fp8_rows);

  // Lines "choice.2 KEY ROWS TOKENS"; others are left out.
  void Read(std::istream& lines);
  void Add(const std::string& key, int32_t rows, int tokens) { measured_[key][rows] = tokens; }
  // By rows; null: nothing was measured.
  const std::map<int32_t, int>* Of(const std::string& key) const;

 private:
  std::map<std::string, std::map<int32_t, int>> measured_;
};

// An H200 as measured: the device of a map that is printed where no GPU is.
DeviceFacts H200Facts();

}  // namespace aisp::cuda
