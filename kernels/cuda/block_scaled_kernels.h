// NVFP4 operands for cuBLASLt's block-scaled products: codes two per byte, row-major, and their
// e4m3 scales in tiles of 128 rows x 4 groups (cuBLAS documentation, "1D Block Scaling Factors
// Layout").
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/result.h"

namespace aisp::cuda {

inline constexpr int64_t kScaleGroup = 16;  // elements of a row with a common scale
inline constexpr int64_t kScaleTileRows = 128;
inline constexpr int64_t kScaleTileGroups = 4;

// Groups per row, padded to whole tiles.
constexpr int64_t PaddedGroups(int64_t k) {
  const int64_t groups = (k + kScaleGroup - 1) / kScaleGroup;
  return (groups + kScaleTileGroups - 1) / kScaleTileGroups * kScaleTileGroups;
}
constexpr size_t TiledScaleBytes(int64_t rows, int64_t k) {
  return static_cast<size_t>((rows + kScaleTileRows - 1) / kScaleTileRows * kScaleTileRows *
                             PaddedGroups(k));
}
// Offset of the scale of (row, group): rows r, r + 32, r + 64 and r + 96 of a tile are adjacent.
constexpr int64_t TiledScaleOffset(int64_t row, int64_t group, int64_t k) {
  const int64_t tile =
      row / kScaleTileRows * (PaddedGroups(k) / kScaleTileGroups) + group / kScaleTileGroups;
  const int64_t in_tile = row % kScaleTileRows;
  return tile * kScaleTileRows * kScaleTileGroups + in_tile % 32 * 16 + in_tile / 32 * 4 +
         group % kScaleTileGroups;
}

// Quantises bf16 [rows, k] to codes [rows, k / 2] and tiled scales; k is a multiple of 16. A
// group's scale is its largest magnitude / 6.
Status LaunchQuantizeBlockScaled(const void* x, int32_t rows, int64_t k, uint8_t* codes,
                                 uint8_t* scales, cudaStream_t stream);
// Reorders scales [rows, k / 16] from row-major to tiles.
Status LaunchTileScales(const uint8_t* from, int64_t rows, int64_t k, uint8_t* to,
                        cudaStream_t stream);

}  // namespace aisp::cuda
