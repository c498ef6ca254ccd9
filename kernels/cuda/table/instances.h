// The instances of the kernels of linear/, as far as a choice depends on them: sizes that their
// templates have, without CUDA. Opening the backend compares each with its kernel
// (linear/linear.cc), so that neither can change alone.
//
// Pure data; any thread.
#pragma once

#include <algorithm>
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

// The kernel for two to eight tokens: of K, of a warp in a stage. 0: the format has none.
inline constexpr int32_t kMostFewTokens = 8;
int FewTokensBlockK(aisp::WeightFormat format);

// A kernel for many rows; in the order of GemmKernels().
struct GemmInstance {
  aisp::WeightFormat format = aisp::WeightFormat::kCompute;
  bool fp8_rows = false;
  int tokens = 0;
  int stage_k = 0;
  int step_k = 0;
};
std::span<const GemmInstance> GemmInstances();

// Decode attention in one launch (attention/fused.cuh): query rows of an item, those of all heads
// of a KV head in one or several rows of a sequence. A sequence has up to two items for a KV head.
inline constexpr int32_t kFusedItemRows = 16;
// Rows of a sequence in an item of a step where sequences have several.
constexpr int32_t FusedItemTokens(int32_t group) { return std::max(1, kFusedItemRows / group); }
// Whether it takes steps with up to so many rows of a sequence.
constexpr bool FusedTakes(int32_t group, int32_t rows) {
  const int32_t tokens = FusedItemTokens(group);
  return group <= kFusedItemRows && (rows == 1 || (tokens > 1 && rows <= 2 * tokens));
}

inline constexpr int kGemmPairRows = 256;  // weight rows of a cluster's tile

}  // namespace aisp::cuda
