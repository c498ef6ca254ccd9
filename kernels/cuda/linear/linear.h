// Linear layers of the CUDA backend: weights, calls and their formats, for kernels and host.
// linear_kernels.h launches them.
//
// A weight is packed once, at load, into the caller's memory; then it is a plain value that refers
// to it. bf16 and FP8 stay row-major, so that all kernels use the same copy; NVFP4 is stored in the
// order in which tensor cores read it. Gate and up projections for SiLU(gate) * up are interleaved
// by eight rows ("gated").
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
  kFp8Block,  // e4m3, one f32 scale per 128 x 128 block (DeepSeek-V3, arXiv:2412.19437, section
              // 3.3)
  kNvfp4,     // e2m1, one e4m3 scale per 16 elements of a row, times one f32 scale per output row
};

// Format of the rows of x. FP8 weights accept both, other formats only bf16.
enum class InputFormat : uint8_t {
  kBf16,
  kFp8,  // e4m3 from QuantizeRows (quantize.h): one f32 scale per row, elements permuted within
         // each 16
};

enum class Store : uint8_t {
  kBf16,           // y = x W^T + b
  kF32,            // y = x W^T + b
  kAccumulateF32,  // y += x W^T + b
  kSiluMulBf16,  // y[:, i] = silu(gate_i) * up_i; gated weights only, y has half as many columns as
                 // the weight has rows
};

// ---- packing ----

enum class SourceType : uint8_t { kF32, kBf16, kF16, kFp8, kNvfp4 };

// One of the matrices stacked along the output (q, k and v; gate and up). Pointers may be host or
// device memory.
struct WeightPart {
  const void* data =
      nullptr;  // [rows, k] of the source type; kNvfp4: [rows, k / 2], low nibble first
  int64_t rows = 0;
  const float* bias = nullptr;  // [rows] or null
  // kFp8 sources: factors of the elements.
  const float* scales =
      nullptr;  // [rows], or [ceil(rows/128), ceil(k/128)] for kFp8Block; null: `scale` for all
  float scale = 1.0f;  // also kNvfp4's "weight_scale_2" (compressed-tensors stores its reciprocal)
  const void* block_scales = nullptr;  // kNvfp4: e4m3 [rows, k / 16], plain row-major
};

struct WeightSource {
  SourceType type = SourceType::kBf16;
  std::span<const WeightPart> parts;
  int64_t k = 0;
  bool gated = false;  // parts are {gate, up} of equal height, for Store::kSiluMulBf16
  // Floating-point sources are quantised to this format (kFp8Block too); quantised sources keep
  // theirs.
  WeightFormat format = WeightFormat::kBf16;
};

// A plain value, freely copied. Valid as long as the memory given to PackWeight.
struct PackedWeight {
  WeightFormat format = WeightFormat::kBf16;
  bool gated = false;
  bool has_bias = false;
  int64_t n = 0;  // output rows, both halves of a gated weight
  int64_t k = 0;
  const void* data = nullptr;
  const float* scales = nullptr;  // [n], kFp8Block: [n / 8, ceil(k / 128)]; null for kBf16
  const float* bias = nullptr;    // [n]
  size_t bytes = 0;               // total size in memory

  int64_t out_features() const { return gated ? n / 2 : n; }
  // Bytes that a call reads.
  size_t streamed_bytes() const;
};

// Bytes of device memory (256-aligned) that PackWeight needs for `source`; its pointers are not
// dereferenced.
Result<size_t> PackedWeightBytes(const WeightSource& source);
// On return host memory has been read (through transient device memory). Parts in device memory are
// packed in stream order and must live until the stream has passed.
Result<PackedWeight> PackWeight(const WeightSource& source, void* memory, size_t bytes,
                                cudaStream_t stream);

// ---- calls ----

inline constexpr int kMaxChainSteps = 6;
// From this number of outputs on a layer is a vocabulary head. Its few-row kernels use so much
// shared memory that a CTA has a multiprocessor for itself. Otherwise, after a launch without room
// beside it (a chain), the first free multiprocessors would take two CTAs each and half of them
// none.
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

// One of several layers in a single launch. Its x is the previous step's y (kBf16 or kSiluMulBf16),
// or with a norm the RMS norm of the residual stream that the previous step added to
// (kAccumulateF32). call.x is scratch for it, [rows, k] 16-bit words with unspecified content
// afterwards.
struct ChainStep {
  LinearCall call;
  const float* norm_weight = nullptr;  // [k], or null: no norm in front of this step
  float norm_epsilon = 1e-6f;
  const ChainAdapters* adapters = nullptr;  // bf16 weights only; null: none
};

}  // namespace aisp::cuda
