// Linear layers of the CUDA backend: weights, calls and their formats, as kernels and host see
// them. linear_kernels.h launches them.
//
// A weight is packed once, at load, into memory that the caller gives; from then on it is a plain
// value that points there. bf16 and FP8 stay row-major, so that all kernels take the same copy;
// NVFP4 is stored in the order in which the tensor cores read it. Gate and up projections that feed
// SiLU(gate) * up are interleaved by eight rows ("gated").
//
// Pack* may run on several threads; the rest is plain data.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/result.h"
#include "kernels/cuda/linear/chain_adapters.h"
#include "kernels/cuda/poll.h"

namespace aisp::cuda {

enum class WeightFormat : uint8_t {
  kBf16,
  kFp8,       // e4m3, one f32 scale per output row
  kFp8Block,  // e4m3, one f32 scale per 128 x 128 block (DeepSeek-V3, arXiv:2412.19437,
              // section 3.3)
  kNvfp4,     // e2m1, one e4m3 scale per 16 elements of a row, times one f32 scale per output row
};

// How the rows of x are given. FP8 weights take both; the other formats take bf16.
enum class InputFormat : uint8_t {
  kBf16,
  kFp8,  // e4m3 as QuantizeRows (quantize.h) writes it: one f32 scale per row, elements permuted
         // within each 16
};

enum class Store : uint8_t {
  kBf16,           // y = x W^T + b
  kF32,            // y = x W^T + b
  kAccumulateF32,  // y += x W^T + b
  kSiluMulBf16,  // y[:, i] = silu(gate_i) * up_i; gated weights only, y has half the weight's rows
                 // as columns
};

// ---- packing ----

enum class SourceType : uint8_t { kF32, kBf16, kF16, kFp8, kNvfp4 };

// One of the matrices that are stacked along the output (q, k and v; gate and up). Pointers may be
// host or device memory.
struct WeightPart {
  const void* data =
      nullptr;  // [rows, k] of the source type; kNvfp4: [rows, k / 2], low nibble first
  int64_t rows = 0;
  const float* bias = nullptr;  // [rows] or null
  // kFp8 sources: what an element is multiplied by.
  const float* scales =
      nullptr;  // [rows], or [ceil(rows/128), ceil(k/128)] for kFp8Block; null: `scale` for all
  float scale = 1.0f;  // also kNvfp4: "weight_scale_2" (compressed-tensors stores its reciprocal)
  const void* block_scales = nullptr;  // kNvfp4: e4m3 [rows, k / 16], plain row-major
};

struct WeightSource {
  SourceType type = SourceType::kBf16;
  std::span<const WeightPart> parts;
  int64_t k = 0;
  bool gated = false;  // parts are {gate, up} of equal height, used with Store::kSiluMulBf16
  // Floating-point sources are quantised on the way for the other formats (kFp8Block too);
  // quantised sources keep theirs.
  WeightFormat format = WeightFormat::kBf16;
};

// Plain; may be copied. Valid as long as the memory given to PackWeight.
struct PackedWeight {
  WeightFormat format = WeightFormat::kBf16;
  bool gated = false;
  bool has_bias = false;
  int64_t n = 0;  // output rows, both halves of a gated weight
  int64_t k = 0;
  const void* data = nullptr;
  const float* scales = nullptr;  // [n], kFp8Block: [n / 8, ceil(k / 128)]; null for kBf16
  const float* bias = nullptr;    // [n]
  size_t bytes = 0;               // of memory, all of it

  int64_t out_features() const { return gated ? n / 2 : n; }
  // Bytes that a call streams.
  size_t streamed_bytes() const;
};

// Bytes of device memory (256-aligned) that PackWeight needs for `source`; its pointers are not
// looked at.
Result<size_t> PackedWeightBytes(const WeightSource& source);
// Host memory has been read when this returns, and takes transient device memory; parts in device
// memory are packed in the stream's order, and stay alive until the stream has passed.
Result<PackedWeight> PackWeight(const WeightSource& source, void* memory, size_t bytes,
                                cudaStream_t stream);

// ---- calls ----

inline constexpr int kMaxChainSteps = 6;
// Outputs from which on a layer is a head. Its kernels for few rows take so much shared memory that
// a CTA has a multiprocessor for itself: where the launch before leaves no room beside it (a
// chain), the first multiprocessors to be free would take two and half of all none.
inline constexpr int64_t kHeadRows = 65536;

struct LinearCall {
  const PackedWeight* weight = nullptr;
  const void* x = nullptr;  // [rows, k], 16-byte aligned
  InputFormat input = InputFormat::kBf16;
  const float* x_scales = nullptr;  // [rows], with InputFormat::kFp8
  void* y = nullptr;                // [rows, out_features()]
  Store store = Store::kBf16;
  int32_t rows = 0;
  int64_t y_stride = 0;  // elements between rows of y; 0: dense
  PollTag poll;
};

// One of several layers that run in a single launch. A step's x is what the step before it wrote
// (call.y there, with Store::kBf16 or kSiluMulBf16), or, with a norm, the RMS norm of the residual
// stream that the step before it has added to (kAccumulateF32): then call.x is for the normalised
// rows. Either is scratch of [rows, k] 16-bit words, which hold anything afterwards.
struct ChainStep {
  LinearCall call;
  const float* norm_weight = nullptr;  // [k], or null: no norm in front of this step
  float norm_epsilon = 1e-6f;
  const ChainAdapters* adapters = nullptr;  // bf16 weights only; null: none change this layer
};

}  // namespace aisp::cuda
