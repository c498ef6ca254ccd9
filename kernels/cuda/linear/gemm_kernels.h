// The table of kernels for many rows (gemm.cuh) for the host: instances by format and tokens per
// tile.
//
// Pure data and functions; any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <iterator>
#include <span>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/poll.h"

namespace aisp::cuda {

// Operand formats. kFp8, kFp8Block: both e4m3. kNvfp4 and the last two: the weight is converted to
// bf16 in registers.
enum class GemmFormat : uint8_t { kBf16, kNvfp4, kFp8, kFp8Block, kFp8Bf16, kFp8BlockBf16 };

constexpr int kGemmRows = 128;     // weight rows per CTA tile
constexpr int kGemmCluster = 2;    // CTAs per cluster: adjacent weight rows, same tokens
constexpr int kGemmThreads = 384;  // two consumer warpgroups, and one with the producer thread
constexpr int kGemmConsumers = 256;
// Two clusters that share a tile (gemm_apart.cuh): vectors of four sums that a thread publishes,
// and an empty slot. No sum has these bits: arithmetic produces the NaN 0x7fffffff.
constexpr int kGemmApartQuads = 8;
constexpr uint32_t kGemmNoSum = 0xffffffffu;

// Parameters of a launch besides the three tensor maps.
struct GemmParams {
  const uint8_t* nvfp4 = nullptr;
  const float* scales = nullptr;    // [n], or [n / 8, scale_columns]: one per 8 rows x 128 of K
  const float* bias = nullptr;      // [n] or null
  const float* x_scales = nullptr;  // [rows]
  int64_t group_bytes = 0;          // NVFP4: per group of 64 rows
  int32_t row_groups = 0;           // NVFP4: number stored
  int32_t n = 0;                    // weight rows
  int32_t rows = 0;                 // tokens
  int32_t k_units = 0;              // stages along K
  int32_t part_units = 0;           // per part, except the last one (gemm_split.cuh)
  int32_t scale_columns = 0;
  int32_t token_tiles = 0;
  int32_t row_pairs = 0;     // of weight tiles
  int32_t group_tokens = 0;  // token tiles processed for all weight rows together, sharing the
                             // weight in L2
  Store store = Store::kBf16;
  void* parts = nullptr;  // gemm_apart.cuh: [CTAs][kGemmApartQuads][kGemmConsumers] vectors, empty
                          // between launches
  PollTag poll;
};

// Possible numbers of K parts of a split tile.
constexpr int kGemmSplits[] = {2, 3, 4};
constexpr size_t kNumGemmSplits = std::size(kGemmSplits);

struct GemmKernel {
  const void* function = nullptr;  // (CUtensorMap weight, CUtensorMap x, CUtensorMap y, GemmParams)
  const void* split[kNumGemmSplits] = {};  // the same for tiles split into parts; null if there is
                                           // none
  const void* apart = nullptr;             // the same for two parts in different clusters, or null
  GemmFormat format = GemmFormat::kBf16;
  int tokens = 0;   // per tile
  int stage_k = 0;  // of K, per stage
  int step_k = 0;   // K is padded with zeros to a multiple of this
  int stages = 0;
  int shared_bytes = 0;
  int weight_row_bytes = 0;  // boxes of the weight: [kGemmRows][64 or 128 bytes], 0: no map; of x:
                             // [tokens / 2][128 bytes]
};

// Tokens per box of y: 64 for bf16, 32 for f32. A box has 64 columns of bf16 (32 for gated weights)
// or 32 of f32.
constexpr int GemmStoreTokens(Store store) {
  return store == Store::kF32 || store == Store::kAccumulateF32 ? 32 : 64;
}

std::span<const GemmKernel> Bf16GemmKernels();
std::span<const GemmKernel> Fp8GemmKernels();
std::span<const GemmKernel> Fp8Bf16GemmKernels();
std::span<const GemmKernel> Nvfp4GemmKernels();
// All of them.
std::span<const GemmKernel> GemmKernels();

}  // namespace aisp::cuda
