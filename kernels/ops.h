// Ops: the fused operations of a model's layers on one device. kernels/cpu is both a product and
// the reference for others.
//
// Calls enqueue on a Stream and return without waiting; pointers are device pointers and must live
// until the stream has passed. Shapes are checked at load (Pack*, by Result); during a step they
// are invariants, and a wrong shape is a bug. Steps allocate nothing. Prepare resolves which kernel
// computes which node, from the backend's table, before the step runs.
//
// Number formats: the residual stream and all accumulations are f32. Inputs of Linear have the
// weight's compute dtype (f32 or bf16); outputs are f32 or, if the device prefers
// (ActivationDType), bf16. The KV pool is f32, bf16 or fp8_e4m3.
//
// Graphs: where supported, all operations of a step can be captured. A captured batch has no
// host_sequences, its grids depend only on the numbers of rows and sequences, and its inputs may be
// rewritten between replays. Padding: rows with a negative position are not written to the pool,
// sequences without rows are skipped by attention.
//
// Rows: inputs and outputs of Linear have memory for RowCapacity(rows) rows; those beyond `rows`
// have unspecified content and may be overwritten.
//
// Determinism: on the CPU a row's result is bit-identical whatever the other rows in the call, the
// chunking of the prompt and the block size of the pool. Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "kernels/device/device.h"
#include "kernels/params.h"
#include "kernels/programme.h"
#include "kernels/slow_paths.h"

namespace aisp {

// A launch of a prepared step, for people: a line of `aisp info --programme`.
struct LaunchInfo {
  std::string nodes;  // "layer 3 o, norm, gate_up, down; layer 4 norm, qkv"
  std::string kernel;
  std::string grid;  // "": not on a GPU
  double bytes = 0;  // memory that must be read and written
  double us = 0;     // predicted; 0: unknown
  std::string slow;  // why it is a slow path; "": it is none
};

// A programme resolved for one bucket: a list of launches, which Run executes in order. One step at
// a time, on the thread of its Ops.
class PreparedStep {
 public:
  virtual ~PreparedStep() = default;
  // `on_layer`: the KV of this layer is enqueued (on the CPU: is in the pool). May be empty.
  virtual Status Run(const StepInputs& inputs, const std::function<void(int32_t layer)>& on_layer,
                     Stream& stream) = 0;
  virtual std::vector<LaunchInfo> Describe() const = 0;
  // Handles of SlowPaths, one per slow launch, for replaying a captured step.
  virtual std::vector<size_t> slow_launches() const { return {}; }
};

class Ops {
 public:
  virtual ~Ops() = default;

  // The chosen kernels, for the log: "avx512 row kernels; avx512 products in panels of 64".
  virtual std::string Describe() const = 0;
  // The best dtype for computing `elements` weights of `checkpoint` dtype: f32 or bf16.
  virtual DType PreferredComputeDType(DType checkpoint, int64_t elements) const = 0;
  // Rows of memory that a tensor of up to `rows` rows needs for Linear.
  virtual int64_t RowCapacity(int64_t rows) const = 0;
  // Dtype of activations between operations, except the residual stream.
  virtual DType ActivationDType(DType compute) const = 0;
  virtual bool Fuses(Epilogue epilogue, DType compute) const = 0;
  // Whether weights of this compute dtype can have this format.
  virtual bool Supports(WeightFormat format, DType compute) const = 0;

  // INVALID_ARGUMENT: inconsistent shapes; UNIMPLEMENTED: a dtype without kernels;
  // RESOURCE_EXHAUSTED.
  virtual Result<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) = 0;
  virtual Result<std::unique_ptr<PackedExperts>> PackExperts(const ExpertsSource& source) = 0;

  // Whether draw nodes run on this device. Otherwise the engine's sampler draws from the logits.
  virtual bool DrawsTokens() const = 0;
  // Seeded normal values; `target` is dense device memory of f32 or bf16.
  virtual Status FillRandom(const TensorView& target, float deviation, uint64_t seed,
                            Stream& stream) = 0;

  // ---- steps ----

  // Resolves every node of `programme` for this bucket with the backend's table. The programme
  // outlives the result and has its pools. UNIMPLEMENTED names a node without a kernel. At load or
  // between steps; never during a capture.
  virtual Result<std::unique_ptr<PreparedStep>> Prepare(const Programme& programme,
                                                        const Bucket& bucket) = 0;
  // Allocates `slots` LoRA adapters of ranks up to `rank`. Once per programme, before it is
  // prepared for steps with adapters. UNIMPLEMENTED: an unsupported rank or layer;
  // RESOURCE_EXHAUSTED.
  virtual Status ReserveAdapters(const Programme& /*programme*/, int32_t /*slots*/,
                                 int32_t /*rank*/) {
    return {};
  }
  // Copies what the nodes' AdaptedLinear hold for `slot` to the device; it is there on return. No
  // step that uses the slot may be in flight.
  virtual Status PlaceAdapter(const Programme& /*programme*/, int32_t /*slot*/,
                              Stream& /*stream*/) {
    return {};
  }
  // Maps buckets with equal answers from the table to one.
  virtual Bucket Canonical(const Bucket& bucket) const = 0;
  // Nodes that run in something slower than the kernel meant for their kind.
  SlowPaths& slow_paths() { return slow_paths_; }

  // ---- single operations, for launches of a step and for tests ----

  virtual Status Embedding(const EmbeddingParams& params, Stream& stream) = 0;
  virtual Status Linear(const LinearParams& params, Stream& stream) = 0;
  virtual Status RmsNorm(const RmsNormParams& params, Stream& stream) = 0;
  virtual Status RopeAppend(const RopeAppendParams& params, Stream& stream) = 0;
  virtual Status LatentAppend(const LatentAppendParams& params, Stream& stream) = 0;
  virtual Status PagedAttention(const AttentionParams& params, Stream& stream) = 0;
  virtual Status SiluMul(const SiluMulParams& params, Stream& stream) = 0;
  virtual Status SelectExperts(const SelectExpertsParams& params, Stream& stream) = 0;
  virtual Status ExpertMlp(const ExpertMlpParams& params, Stream& stream) = 0;

 protected:
  SlowPaths slow_paths_;
};

}  // namespace aisp
