// The table of the kernels for many rows (gemm.cuh), as the host sees it: instances by format and
// number of tokens of a tile.
//
// Pure data and functions; any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <iterator>
#include <span>

#include "kernels/cuda/linear/linear.h"

namespace aisp::cuda {

// Formats of the two operands. kFp8, kFp8Block: both e4m3. kNvfp4 and the last two: the weight is
// widened to bf16 in registers.
enum class GemmFormat : uint8_t { kBf16, kNvfp4, kFp8, kFp8Block, kFp8Bf16, kFp8BlockBf16 };

constexpr int kGemmRows = 128;  // weight rows of a CTA's tile
constexpr int kGemmCluster =
    2;  // CTAs of a cluster: neighbours along the weight's rows, which share the tokens
constexpr int kGemmThreads = 384;  // two warpgroups of consumers, one of which a thread produces

// What a launch needs beside the three tensor maps.
struct GemmParams {
  const uint8_t* nvfp4 = nullptr;
  const float* scales = nullptr;    // [n], or [n / 8, scale_columns]: one per 8 rows x 128 of K
  const float* bias = nullptr;      // [n] or null
  const float* x_scales = nullptr;  // [rows]
  int64_t group_bytes = 0;          // NVFP4: of a group of 64 rows
  int32_t row_groups = 0;           // NVFP4: how many are stored
  int32_t n = 0;                    // weight rows
  int32_t rows = 0;                 // tokens
  int32_t k_units = 0;              // stages along K
  int32_t part_units = 0;           // of a part, but for the last one's (gemm_split.cuh)
  int32_t scale_columns = 0;
  int32_t token_tiles = 0;
  int32_t row_pairs = 0;     // of weight tiles
  int32_t group_tokens = 0;  // token tiles that run through all weight rows together, so that they
                             // share the weight in L2
  Store store = Store::kBf16;
};

// Parts of K that a split tile may have.
constexpr int kGemmSplits[] = {2, 3, 4};
constexpr size_t kNumGemmSplits = std::size(kGemmSplits);

struct GemmKernel {
  const void* function = nullptr;  // (CUtensorMap weight, CUtensorMap x, CUtensorMap y, GemmParams)
  const void* split[kNumGemmSplits] = {};  // the same for tiles of so many parts, if there are any
  GemmFormat format = GemmFormat::kBf16;
  int tokens = 0;   // of a tile
  int stage_k = 0;  // of K, of a stage
  int step_k = 0;   // K is padded with zeros to a multiple of this
  int stages = 0;
  int shared_bytes = 0;
  int weight_row_bytes = 0;  // boxes of the weight: [kGemmRows][64 or 128 bytes], 0: no map; of
                             // x: [tokens / 2][128 bytes]
};

// Tokens of a box of y: 64 of bf16, 32 of f32. A box is 64 columns of bf16, 32 of bf16 for gated
// weights, 32 of f32.
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
