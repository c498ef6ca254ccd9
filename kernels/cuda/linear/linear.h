// Linear layers of the CUDA backend: y = x W^T on Hopper, at the memory's bandwidth when there are few rows.
//
// A weight is packed once, at load, into memory that the caller gives; from then on it is a plain value that points there.
// Few rows (LinearKernels::own_rows()) run in kernels that stream the weight through shared memory once, many in kernels that are
// bound by the tensor cores, or in cuBLASLt (many_rows.h): bf16 and FP8 stay row-major, so that all take the same copy; NVFP4 is
// stored in the order in which the tensor cores read it. Gate and up projections that feed SiLU(gate) * up are interleaved by
// eight rows ("gated").
//
// Who owns what: the caller owns packed memory, workspace, inputs and outputs; LinearKernels owns the cuBLASLt handle and
// the table of its tuned algorithms. Threads: Pack* may run on several threads; Launch and Prepare by one caller at a time,
// and the calls of one LinearKernels go to one stream (they share the workspace).
//
// Invariants: Launch allocates nothing, synchronises nothing and can be captured; grid and choice of kernel depend on (weight,
// rows, store) and on whether Prepare has tuned that product. A call with `rows` rounded up to a bucket computes the same for the
// rows that count: a row's result does not depend on what the others hold, and is the same for all numbers of rows that one
// instance serves (1, 2-8, 9-16, 17-32, 33-64, 65-128). The same call gives the same bits every time: split sums are added in a
// fixed order, without floating-point atomics.
//
// Errors: INVALID_ARGUMENT for shapes that do not fit each other, UNIMPLEMENTED for those without a kernel (K must be a
// multiple of 8 for bf16, 16 for FP8 and NVFP4; any N, but a multiple of 8 for the parts of gated and of block-scaled weights),
// RESOURCE_EXHAUSTED when memory or workspace is too small, INTERNAL when CUDA or cuBLASLt refuses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "kernels/cuda/token_words.h"

namespace aisp::cuda {

enum class WeightFormat : uint8_t {
  kBf16,
  kFp8,       // e4m3, one f32 scale per output row
  kFp8Block,  // e4m3, one f32 scale per 128 x 128 block (DeepSeek-V3, arXiv:2412.19437, section 3.3)
  kNvfp4,     // e2m1, one e4m3 scale per 16 elements of a row, times one f32 scale per output row
};

// How the rows of x are given. FP8 weights take both; the other formats take bf16.
enum class InputFormat : uint8_t {
  kBf16,
  kFp8,  // e4m3 as QuantizeRows (quantize.h) writes it: one f32 scale per row, elements permuted within each 16
};

enum class Store : uint8_t {
  kBf16,           // y = x W^T + b
  kF32,            // y = x W^T + b
  kAccumulateF32,  // y += x W^T + b
  kSiluMulBf16,  // y[:, i] = silu(gate_i) * up_i; gated weights only, y has half the weight's rows as columns
};

// ---- packing ----

enum class SourceType : uint8_t { kF32, kBf16, kF16, kFp8, kNvfp4 };

// One of the matrices that are stacked along the output (q, k and v; gate and up). Pointers may be host or device memory.
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
  // Floating-point sources are quantised on the way for the other formats (kFp8Block too); quantised sources keep theirs.
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

// Bytes of device memory (256-aligned) that PackWeight needs for `source`; its pointers are not looked at.
Result<size_t> PackedWeightBytes(const WeightSource& source);
// Host memory has been read when this returns, and takes transient device memory; parts in device memory are packed in the
// stream's order, and stay alive until the stream has passed.
Result<PackedWeight> PackWeight(const WeightSource& source, void* memory, size_t bytes,
                                cudaStream_t stream);

// ---- calls ----

inline constexpr int kMaxChainSteps = 6;
// Outputs from which on a layer is a head. Its kernels for few rows take so much shared memory that a CTA has a multiprocessor for
// itself: where the launch before leaves no room beside it (a chain), the first multiprocessors to be free would take two and
// half of all none.
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
};

struct LinearOptions {
  int32_t max_rows = 8192;
  // Where the choices among cuBLASLt's algorithms are kept from run to run; empty: nowhere.
  std::string tuning_cache;
  // Calls of at least so many rows on FP8 weights round their activations to e4m3 first, with a scale for each row, as FP8 checkpoints
  // specify: about 1.7 times the speed. 0: none; the weight is widened to bf16 in registers.
  int32_t fp8_activation_rows = 0;
  // Calls wait for the kernel before them on the device, after they have begun to fetch their weight (programmatic
  // dependent launch). Off: plain stream order, for debugging.
  bool overlap = true;
};

// One of several layers that run in a single launch. A step's x is what the step before it wrote (call.y there, with Store::kBf16 or
// kSiluMulBf16), or, with a norm, the RMS norm of the residual stream that the step before it has added to (kAccumulateF32): then
// call.x is for the normalised rows. Either is scratch of [rows, k] 16-bit words, which hold anything afterwards.
struct ChainStep {
  LinearCall call;
  const float* norm_weight = nullptr;  // [k], or null: no norm in front of this step
  float norm_epsilon = 1e-6f;
};

class LinearKernels {
 public:
  // For the current device; UNIMPLEMENTED unless it is of compute capability 9.0.
  static Result<std::unique_ptr<LinearKernels>> Create(const LinearOptions& options);
  virtual ~LinearKernels() = default;

  // Up to this many rows run in the kernels for few rows unless Prepare was called for them and others are faster as a rule (bf16
  // beyond 32 rows). Prepare is not needed for those.
  virtual int32_t own_rows(const PackedWeight& weight, InputFormat input) const = 0;
  // Bytes of workspace for every call on `weight` with at most options.max_rows rows. Take the largest over all weights.
  virtual size_t WorkspaceBytes(const PackedWeight& weight) const = 0;
  // Device memory, 256-aligned, used by all later calls; its first bytes are zeroed here.
  virtual Status SetWorkspace(void* memory, size_t bytes, cudaStream_t stream) = 0;
  // Times our kernels and cuBLASLt's candidates for (weight's shape, rows, ...) unless the cache knows the winner. Synchronises.
  // `call` has valid pointers; y is overwritten (also with kAccumulateF32).
  virtual Status Prepare(const LinearCall& call, cudaStream_t stream) = 0;
  // An unprepared call of many rows takes what is expected to be the fastest.
  virtual Status Launch(const LinearCall& call, cudaStream_t stream) = 0;
  // Whether `steps` (2 to kMaxChainSteps, equal rows) can run in one launch: their weights then stream without a pause in between.
  virtual bool CanChain(std::span<const ChainStep> steps) const = 0;
  // As if each step (norm, layer) had been launched by itself. Only what CanChain accepts.
  virtual Status LaunchChain(std::span<const ChainStep> steps, cudaStream_t stream) = 0;
  // For decode attention of one sequence, between the layers around it on the same stream: words (token_words.h) in which q, k and v
  // come, if the launch before left them so, and in which its row is to be left beside `row` for the launch that reads it. Null
  // pointers: nothing. Attention that is not launched after all calls WithdrawWords.
  virtual Result<TokenWords> OfferWords(const void* qkv, int64_t qkv_features, const void* row,
                                        int64_t row_features, cudaStream_t stream) = 0;
  virtual void WithdrawWords() = 0;
  // What launches have left as words may be out of date: something else has written since.
  virtual void ForgetWords() = 0;
  // "wgmma bf16 tile 128x64 x 6 stages, 132 CTAs", "cublasLt bf16 algorithm 3 of 8, 1.2 MiB".
  virtual std::string Describe(const LinearCall& call) const = 0;
};

}  // namespace aisp::cuda
