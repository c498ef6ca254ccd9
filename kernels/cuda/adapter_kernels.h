// LoRA adapters on rows of a step: v = x down^T, then y += v up^T, each row with its own adapter or
// none. A slot's factors are contiguous, in the compute dtype, with room for ranks up to
// `rank_room`.
//
// Launches only: no waiting, no allocation. Sums have a fixed order: a row's result does not depend
// on other rows, and on their number only through AdapterSplits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/result.h"
#include "kernels/cuda/linear/chain_adapters.h"
#include "kernels/device/dtype.h"

namespace aisp::cuda {

inline constexpr int32_t kMostAdapterRanges = 4;
inline constexpr int32_t kMostAdapterRank = 128;

// One of the matrices stacked along the output.
struct AdapterRange {
  int32_t column = 0;
  int32_t out = 0;
  int64_t up = 0;  // element offset of its [out, rank_room] in a slot
};

// A layer with adapters, as passed to kernels.
struct AdapterLayer {
  DType type = DType::kBF16;  // of factors and x: bf16 or f32
  // [slots][slot_stride]: down [ranges][rank_room, in], then up of each range.
  const void* factors = nullptr;
  int64_t slot_stride = 0;         // elements
  const int32_t* ranks = nullptr;  // [slots][kMostAdapterRanges]; 0: no change to the range
  int32_t in = 0;
  int32_t rank_room = 0;  // a multiple of 16
  int32_t num_ranges = 0;
  AdapterRange ranges[kMostAdapterRanges];
};

struct AdapterRows {
  const int32_t* adapter_of_row = nullptr;  // [rows]; -1: none
  int32_t rows = 0;
  const void* x = nullptr;  // [rows, in], dense
  // Scratch between the launches: f32 [AdapterSplits(rows)][rows][num_ranges * rank_room].
  float* v = nullptr;
};

struct AdapterOutput {
  void* y = nullptr;  // [rows, columns], dense: added to or, with `gated`, written
  DType type = DType::kF32;
  int32_t columns = 0;
  // Gated layers: bf16 [rows, 2 * columns], gate and up interleaved by eight. y = silu(gate) * up
  // of these plus the adapters' part; ranges are {gate, up}. Null: not gated.
  const void* gated = nullptr;
};

// Number of parts of the sum over `in` computed in parallel.
int32_t AdapterSplits(int32_t rows);
// Upper bound of AdapterRows::v for up to `rows` rows, in rows of elements.
int64_t AdapterSumRows(int32_t rows);

Status LaunchAdapterDown(const AdapterLayer& layer, const AdapterRows& rows, cudaStream_t stream);
Status LaunchAdapterUp(const AdapterLayer& layer, const AdapterRows& rows,
                       const AdapterOutput& output, cudaStream_t stream);

// Packs one range of a slot from f32 in device memory: down [rank, in], up [rank, out]. `slot`
// points to the slot's factors.
Status LaunchPackAdapter(const AdapterLayer& layer, int32_t range, int32_t rank, const float* down,
                         const float* up, void* slot, cudaStream_t stream);
// The same for a launch of several layers (linear/chain.h), where all slots are interleaved.
// `gated`: rows of `up` are stored like those of a gated weight.
Status LaunchPackChainAdapter(const AdapterLayer& layer, const ChainAdapters& to, int32_t slot,
                              int32_t range, bool gated, int32_t rank, const float* down,
                              const float* up, cudaStream_t stream);

}  // namespace aisp::cuda
