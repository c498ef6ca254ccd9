// Linear layers of the CUDA backend on Hopper: y = x W^T, at memory bandwidth for few rows. Few
// rows run in kernels that stream the weight through shared memory once, many rows in kernels bound
// by the tensor cores, or in cuBLASLt (many_rows.h). kernels/cuda/table/linear_choice.h chooses,
// based on facts(); this class launches.
//
// Ownership: the caller owns packed memory, workspace, inputs and outputs; LinearKernels owns the
// cuBLASLt handle and the profile of measured choices. Threads: Launch and Prepare by one caller at
// a time; all calls of one LinearKernels use one stream (they share the workspace).
//
// Invariants: Launch allocates nothing, does not synchronise and can be captured. Rounding `rows`
// up to a bucket does not change the result of the real rows: a row's result does not depend on
// other rows, and is the same for all row counts of one instance (1, 2-8, 9-16, 17-32, 33-64,
// 65-128). Calls are deterministic: split sums are added in a fixed order, without floating-point
// atomics.
//
// Errors: INVALID_ARGUMENT for inconsistent shapes, RESOURCE_EXHAUSTED when memory or workspace is
// too small, INTERNAL when CUDA or cuBLASLt fails.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/result.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/table/linear_choice.h"
#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {

struct LinearOptions {
  int32_t max_rows = 8192;
  // File for measured choices of cuBLASLt's algorithms; "": none.
  std::string tuning_cache;
  // Calls with at least so many rows on FP8 weights first round activations to e4m3 with a scale
  // per row, as FP8 checkpoints specify: about 1.7 times as fast. Never for heads. 0: never; the
  // weight is converted to bf16 in registers.
  int32_t fp8_activation_rows = 0;
  // No other process computes on the device.
  bool exclusive = true;
  // Kernels start before the previous one has ended and prefetch their weight (programmatic
  // dependent launch). Off: plain stream order, for debugging.
  bool overlap = true;
};

// The properties that the table chooses by.
LinearTraits TraitsOf(const LinearCall& call);

// How several layers run in one launch.
struct ChainForm {
  bool one_token = false;  // one_token.cuh; else chain.cuh
  // One token: x is polled as the preceding attention publishes it (token_slots.h), and the last
  // layer's outputs are published for the following attention. Only if those launches publish and
  // consume.
  bool consumes = false;
  bool publishes = false;
  // [rows]; -1: none. For steps with adapters.
  const int32_t* adapter_of_row = nullptr;
  bool few_tokens = false;  // few_tokens.cuh
};

// The form of launch for all of `steps`; nullopt: none. For calls outside a programme.
std::optional<ChainForm> FormOf(std::span<const ChainStep> steps, const ChoiceFacts& facts);

// INTERNAL: the table's sizes differ from the kernels'. Needs no GPU.
Status CheckInstances();

class LinearKernels {
 public:
  // For the current device; UNIMPLEMENTED unless it is of compute capability 9.0.
  static Result<std::unique_ptr<LinearKernels>> Create(const LinearOptions& options);
  virtual ~LinearKernels() = default;

  // What the table chooses by. Prepare adds to its profile.
  virtual ChoiceFacts facts() const = 0;
  // Bytes of workspace for any call on `weight` with up to options.max_rows rows. Take the maximum
  // over weights.
  virtual size_t WorkspaceBytes(const PackedWeight& weight) const = 0;
  // Device memory, 256-aligned, for all later calls; its first bytes are zeroed here.
  virtual Status SetWorkspace(void* memory, size_t bytes, cudaStream_t stream) = 0;
  // Measures our kernels and cuBLASLt's candidates for this shape and row count unless the cache
  // has the winner. Synchronises. `call` needs valid pointers; y is overwritten (also with
  // kAccumulateF32).
  virtual Status Prepare(const LinearCall& call, cudaStream_t stream) = 0;
  // Launches the kernel chosen by ChooseLinear.
  virtual Status Launch(const LinearCall& call, const LinearChoice& choice,
                        cudaStream_t stream) = 0;
  // Chooses and launches, for calls outside a programme.
  Status Launch(const LinearCall& call, cudaStream_t stream);
  // Equivalent to launching each step (norm, layer) alone. Only for forms that the table allows
  // (kernels/cuda/table/linear_choice.h); a single step is possible with `one_token`.
  virtual Status LaunchChain(std::span<const ChainStep> steps, const ChainForm& form,
                             cudaStream_t stream) = 0;
  // Where a launch may leave e4m3 rows and scales for the next one (rounds = false,
  // InputFormat::kFp8). Any other launch may overwrite them.
  struct RoundedRows {
    void* rows = nullptr;
    float* scales = nullptr;
  };
  virtual RoundedRows rounded_rows() const = 0;
  // Where one-token launches and the attention between them publish their rows.
  virtual TokenSlots token_slots() const = 0;
  // "wgmma bf16 tile 128x64 x 6 stages, 132 CTAs", "cublasLt bf16 algorithm 3 of 8, 1.2 MiB".
  virtual std::string Describe(const LinearCall& call) const = 0;
};

}  // namespace aisp::cuda
