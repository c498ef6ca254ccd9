// The instances of the kernels of linear/, as far as a choice depends on them: sizes that their
// templates have, without CUDA. Opening the backend compares each with its kernel
// (linear/linear.cc), so that neither can change alone.
//
// Pure data; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/params.h"

namespace aisp::cuda {

// A kernel for few rows, of one layer or of a chain.
struct StreamInstance {
  aisp::WeightFormat format = aisp::WeightFormat::kCompute;
  bool fp8_rows = false;  // takes activations in e4m3
  int tokens = 0;         // rows that its sums have room for
  int rows = 0;           // of the weight, of a unit of work
  int stage_k = 0;        // of K, of a unit of work
};
// By ascending tokens within a format.
std::span<const StreamInstance> StreamInstances();
std::span<const StreamInstance> ChainInstances();

// The kernel for one token.
struct OneTokenInstance {
  int warps = 0;
  int block_k = 0;
  int stage_bytes = 0;
  int fixed_bytes = 0;
  int stage_k() const { return warps * block_k; }
};
OneTokenInstance OneTokenInstanceOf(aisp::WeightFormat format);

// A kernel for many rows; in the order of GemmKernels().
struct GemmInstance {
  aisp::WeightFormat format = aisp::WeightFormat::kCompute;
  bool fp8_rows = false;
  int tokens = 0;
  int stage_k = 0;
  int step_k = 0;
};
std::span<const GemmInstance> GemmInstances();

inline constexpr int kWeightRowsOfToken = 16;  // finished together
inline constexpr int kGemmPairRows = 256;      // weight rows of a cluster's tile

}  // namespace aisp::cuda
