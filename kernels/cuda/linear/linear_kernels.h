// Linear layers of the CUDA backend: y = x W^T on Hopper, at the memory's bandwidth when there are
// few rows. Few rows run in kernels that stream the weight through shared memory once, many in
// kernels that are bound by the tensor cores, or in cuBLASLt (many_rows.h). Which one is decided by
// kernels/cuda/table/linear_choice.h from what facts() says; here it is launched.
//
// Who owns what: the caller owns packed memory, workspace, inputs and outputs; LinearKernels owns
// the cuBLASLt handle and the profile of measured choices. Threads: Launch and Prepare by one
// caller at a time, and the calls of one LinearKernels go to one stream (they share the workspace).
//
// Invariants: Launch allocates nothing, synchronises nothing and can be captured. A call with
// `rows` rounded up to a bucket computes the same for the rows that count: a row's result does not
// depend on what the others hold, and is the same for all numbers of rows that one instance serves
// (1, 2-8, 9-16, 17-32, 33-64, 65-128). The same call gives the same bits every time: split sums
// are added in a fixed order, without floating-point atomics.
//
// Errors: INVALID_ARGUMENT for shapes that do not fit each other, RESOURCE_EXHAUSTED when memory or
// workspace is too small, INTERNAL when CUDA or cuBLASLt refuses.
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
  // Where the choices among cuBLASLt's algorithms are kept from run to run; empty: nowhere.
  std::string tuning_cache;
  // Calls of at least so many rows on FP8 weights round their activations to e4m3 first, with a
  // scale for each row, as FP8 checkpoints specify: about 1.7 times the speed; heads never do. 0:
  // none; the weight is widened to bf16 in registers.
  int32_t fp8_activation_rows = 0;
  // Nothing else computes on the device.
  bool exclusive = true;
  // Calls wait for the kernel before them on the device, after they have begun to fetch their
  // weight (programmatic dependent launch). Off: plain stream order, for debugging.
  bool overlap = true;
};

// What the table chooses by.
LinearTraits TraitsOf(const LinearCall& call);

// How several layers run in one launch.
struct ChainForm {
  bool one_token = false;  // one_token.cuh; else chain.cuh
  // One token: x is polled as the attention in front publishes it (token_slots.h), and the last
  // layer's outputs are published for the attention behind. Only where the launch in front
  // publishes, and the one behind consumes them.
  bool consumes = false;
  bool publishes = false;
  // [rows]; -1: none. For steps with adapters.
  const int32_t* adapter_of_row = nullptr;
  bool few_tokens = false;  // few_tokens.cuh
};

// The launch that takes all of `steps`; nothing: there is none. For calls of no programme.
std::optional<ChainForm> FormOf(std::span<const ChainStep> steps, const ChoiceFacts& facts);

// INTERNAL: the table has other sizes than the kernels. Needs no GPU.
Status CheckInstances();

class LinearKernels {
 public:
  // For the current device; UNIMPLEMENTED unless it is of compute capability 9.0.
  static Result<std::unique_ptr<LinearKernels>> Create(const LinearOptions& options);
  virtual ~LinearKernels() = default;

  // What the table chooses by. Prepare adds to its profile.
  virtual ChoiceFacts facts() const = 0;
  // Bytes of workspace for every call on `weight` with at most options.max_rows rows. Take the
  // largest over all weights.
  virtual size_t WorkspaceBytes(const PackedWeight& weight) const = 0;
  // Device memory, 256-aligned, used by all later calls; its first bytes are zeroed here.
  virtual Status SetWorkspace(void* memory, size_t bytes, cudaStream_t stream) = 0;
  // Times our kernels and cuBLASLt's candidates for (weight's shape, rows, ...) unless the cache
  // knows the winner. Synchronises. `call` has valid pointers; y is overwritten (also with
  // kAccumulateF32).
  virtual Status Prepare(const LinearCall& call, cudaStream_t stream) = 0;
  // What ChooseLinear says of the call.
  virtual Status Launch(const LinearCall& call, const LinearChoice& choice,
                        cudaStream_t stream) = 0;
  // Chosen now: for calls of no programme.
  Status Launch(const LinearCall& call, cudaStream_t stream);
  // As if each step (norm, layer) had been launched by itself. Only what the table (kernels/cuda/
  // table/linear_choice.h) says that fits; one step is possible with `one_token`.
  virtual Status LaunchChain(std::span<const ChainStep> steps, const ChainForm& form,
                             cudaStream_t stream) = 0;
  // Where a layer's e4m3 rows and their scales may be left for the next launch, of rounds = false
  // and InputFormat::kFp8. Any other launch may overwrite them.
  struct RoundedRows {
    void* rows = nullptr;
    float* scales = nullptr;
  };
  virtual RoundedRows rounded_rows() const = 0;
  // Where launches of one token and the attention between them publish their rows.
  virtual TokenSlots token_slots() const = 0;
  // "wgmma bf16 tile 128x64 x 6 stages, 132 CTAs", "cublasLt bf16 algorithm 3 of 8, 1.2 MiB".
  virtual std::string Describe(const LinearCall& call) const = 0;
};

}  // namespace aisp::cuda
