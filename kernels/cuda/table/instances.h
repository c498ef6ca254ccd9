// The instances of linear/'s kernels, as far as choices depend on them: the sizes of their
// templates, without CUDA. Opening the backend compares them with the kernels (linear/linear.cc),
// so that both stay equal.
//
// Pure data; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/params.h"

namespace aisp::cuda {

// A few-row kernel, for one layer or a chain.
struct StreamInstance {
  aisp::WeightFormat format = aisp::WeightFormat::kCompute;
  bool fp8_rows = false;  // activations in e4m3
  int tokens = 0;         // capacity of its sums
  int rows = 0;           // of the weight, per unit
  int stage_k = 0;        // of K, per unit
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

// The kernel for two to eight tokens: K per warp and stage. 0: the format has none.
inline constexpr int32_t kMostFewTokens = 8;
int FewTokensBlockK(aisp::WeightFormat format);

// A many-row kernel, in the order of GemmKernels().
struct GemmInstance {
  aisp::WeightFormat format = aisp::WeightFormat::kCompute;
  bool fp8_rows = false;
  int tokens = 0;
  int stage_k = 0;
  int step_k = 0;
  int32_t most_rows = 0;  // 0: for any number
};
std::span<const GemmInstance> GemmInstances();

// Decode attention in one launch (attention/fused.cuh): query rows per item, over all heads of a KV
// head and one or more rows of a sequence. A sequence has up to two items per KV head.
inline constexpr int32_t kFusedItemRows = 16;
// Rows of a sequence per item, in steps where sequences have several.
constexpr int32_t FusedItemTokens(int32_t group) { return std::max(1, kFusedItemRows / group); }
// Whether it supports steps with up to `rows` rows per sequence.
constexpr bool FusedTakes(int32_t group, int32_t rows) {
  const int32_t tokens = FusedItemTokens(group);
  return group <= kFusedItemRows && (rows == 1 || (tokens > 1 && rows <= 2 * tokens));
}

inline constexpr int kGemmPairRows = 256;  // weight rows of a cluster's tile

}  // namespace aisp::cuda
