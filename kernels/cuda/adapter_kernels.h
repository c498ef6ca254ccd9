// Low-rank adapters on rows of a step: v = x down^T, then y += v up^T, each row with its own
// adapter or none. Factors of a slot lie one behind the other, in the compute dtype, with room for
// ranks of up to `rank_room`.
//
// Launches only: nothing waits, nothing allocates. Sums have a fixed order: a row's result does not
// depend on the other rows, and on their number only by AdapterSplits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/result.h"
#include "kernels/cuda/linear/chain_adapters.h"
#include "kernels/device/dtype.h"

namespace aisp::cuda {

inline constexpr int32_t kMostAdapterRanges = 4;
inline constexpr int32_t kMostAdapterRank = 128;

// One of the matrices that are stacked along the output.
struct AdapterRange {
  int32_t column = 0;
  int32_t out = 0;
  int64_t up = 0;  // where its [out, rank_room] begins in a slot, in elements
};

// A layer with adapters. Plain data for kernels.
struct AdapterLayer {
  DType type = DType::kBF16;  // of factors and x: bf16 or f32
  // [slots][slot_stride]: down [ranges][rank_room, in], then up of each range.
  const void* factors = nullptr;
  int64_t slot_stride = 0;         // elements
  const int32_t* ranks = nullptr;  // [slots][kMostAdapterRanges]; 0: the range stays as it is
  int32_t in = 0;
  int32_t rank_room = 0;  // a multiple of 16
  int32_t num_ranges = 0;
  AdapterRange ranges[kMostAdapterRanges];
};

struct AdapterRows {
  const int32_t* adapter_of_row = nullptr;  // [rows]; -1: none
  int32_t rows = 0;
  const void* x = nullptr;  // [rows, in], dense
  // f32 [AdapterSplits(rows)][rows][num_ranges * rank_room], between the two launches.
  float* v = nullptr;
};

struct AdapterOutput {
  void* y = nullptr;  // [rows, columns], dense: added to; or, with `gated`, written
  DType type = DType::kF32;
  int32_t columns = 0;
  // bf16 [rows, 2 * columns], gate and up interleaved by eight: y = silu(gate) * up of them and of
  // what the adapters add. Ranges are {gate, up} then. Null: not such a layer.
  const void* gated = nullptr;
};

// Parts of the sum over `in` that are computed side by side.
int32_t AdapterSplits(int32_t rows);
// The most elements of AdapterRows::v for up to `rows` rows, by elements of one.
int64_t AdapterSumRows(int32_t rows);

Status LaunchAdapterDown(const AdapterLayer& layer, const AdapterRows& rows, cudaStream_t stream);
Status LaunchAdapterUp(const AdapterLayer& layer, const AdapterRows& rows,
                       const AdapterOutput& output, cudaStream_t stream);

// One range of a slot, from f32 in device memory: down [rank, in], up [rank, out]. `slot` points to
// the slot's factors.
Status LaunchPackAdapter(const AdapterLayer& layer, int32_t range, int32_t rank, const float* down,
                         const float* up, void* slot, cudaStream_t stream);
// The same for a launch of several layers (linear/chain.h), where all slots lie beside each other.
// `gated`: rows of `up` are stored as those of a gated weight.
Status LaunchPackChainAdapter(const AdapterLayer& layer, const ChainAdapters& to, int32_t slot,
                              int32_t range, bool gated, int32_t rank, const float* down,
                              const float* up, cudaStream_t stream);

}  // namespace aisp::cuda
