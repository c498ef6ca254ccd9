// Ops: the fused operations that the layers of a model are made of, on one device. kernels/cpu is a
// product and the oracle of the others.
//
// Everything is enqueued on a Stream and returns without waiting for the device; pointers are
// device pointers and stay alive until the stream has passed. Shapes are checked at load (Pack*, by
// Result) and, on the step path, as invariants: a wrong shape there is a broken program. Nothing
// allocates on the step path. Which kernel computes which node of a model's step is resolved by
// Prepare, from the backend's table, before the step runs.
//
// Number formats: the residual stream and everything that is accumulated are f32; the inputs of
// Linear have the weight's compute dtype (f32 or bf16); its outputs are f32 or, where the device
// prefers to write less (ActivationDType), bf16; the KV pool is f32, bf16 or fp8_e4m3.
//
// Graphs: where the device supports them, every operation of the step path can be captured. A
// captured batch has no host_sequences, its grids follow from the number of rows and sequences
// alone, and what it reads may be rewritten between replays. Padding: rows with a negative position
// are left out of the pool, sequences with no rows are left out of attention.
//
// Rows: a tensor that is an input or output of Linear has RowCapacity(rows) rows of memory; those
// beyond `rows` may hold anything and be overwritten.
//
// Determinism: on the CPU a row's result is the same bit for bit whatever other rows are in the
// call and however many, however a prompt was cut into calls, and whatever the block size of the
// pool is. Threads: one caller at a time.
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

// A launch of a prepared step, for people: what `aisp info --programme` prints a line of.
struct LaunchInfo {
  std::string nodes;  // "layer 3 o, norm, gate_up, down; layer 4 norm, qkv"
  std::string kernel;
  std::string grid;  // empty: not of a GPU
  double bytes = 0;  // of memory that it has to read and write
  double us = 0;     // predicted; 0: not known
  std::string slow;  // why it is a slow path; empty: it is none
};

// A programme resolved for one bucket: a list of launches. Running launches them in order. One step
// at a time, on the thread of its Ops.
class PreparedStep {
 public:
  virtual ~PreparedStep() = default;
  // `on_layer`: the KV of this layer is enqueued (on the CPU: is in the pool). May be empty.
  virtual Status Run(const StepInputs& inputs, const std::function<void(int32_t layer)>& on_layer,
                     Stream& stream) = 0;
  virtual std::vector<LaunchInfo> Describe() const = 0;
  // Handles of SlowPaths, one for each launch that is slow: for whoever replays a captured step.
  virtual std::vector<size_t> slow_launches() const { return {}; }
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Which kernels were chosen, for the log: "avx512 row kernels; avx512 products in panels of 64".
  virtual std::string Describe() const = 0;
  // The dtype in which `elements` weights of `checkpoint` dtype are best computed here: f32 or
  // bf16.
  virtual DType PreferredComputeDType(DType checkpoint, int64_t elements) const = 0;
  // Rows of memory that a tensor of up to `rows` rows needs to serve Linear.
  virtual int64_t RowCapacity(int64_t rows) const = 0;
  // Of what one operation hands to the next outside the residual stream.
  virtual DType ActivationDType(DType compute) const = 0;
  virtual bool Fuses(Epilogue epilogue, DType compute) const = 0;
  // Whether weights of this compute dtype can be kept so.
  virtual bool Supports(WeightFormat format, DType compute) const = 0;

  // INVALID_ARGUMENT: shapes that do not fit each other; UNIMPLEMENTED: a dtype without kernels
  // here; RESOURCE_EXHAUSTED.
  virtual Result<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) = 0;
  virtual Result<std::unique_ptr<PackedExperts>> PackExperts(const ExpertsSource& source) = 0;

  // Whether draw nodes are run here. Else the engine's sampler draws, from the logits.
  virtual bool DrawsTokens() const = 0;
  // Seeded normal values of the given deviation; `target` is dense, f32 or bf16, device memory.
  virtual Status FillRandom(const TensorView& target, float deviation, uint64_t seed,
                            Stream& stream) = 0;

  // ---- steps ----

  // Resolves every node of `programme` for steps of this size from the backend's table. The
  // programme outlives it and has its pools. UNIMPLEMENTED names a node that the table has nothing
  // for. At load, or between steps; never in a capture.
  virtual Result<std::unique_ptr<PreparedStep>> Prepare(const Programme& programme,
                                                        const Bucket& bucket) = 0;
  // Makes room for as many low-rank adapters of ranks of up to `rank`. Once for a programme, before
  // it is prepared for steps with adapters. UNIMPLEMENTED: a rank or layer without kernels here;
  // RESOURCE_EXHAUSTED.
  virtual Status ReserveAdapters(const Programme& /*programme*/, int32_t /*slots*/,
                                 int32_t /*rank*/) {
    return {};
  }
  // What the nodes' AdaptedLinear hold for `slot` has changed: brings it to the device, where it is
  // when this returns. No step that uses the slot is in flight.
  virtual Status PlaceAdapter(const Programme& /*programme*/, int32_t /*slot*/,
                              Stream& /*stream*/) {
    return {};
  }
  // Buckets for which the table has the same answers map to one.
  virtual Bucket Canonical(const Bucket& bucket) const = 0;
  // Nodes that run in something slower than the kernel that is meant for their kind.
  SlowPaths& slow_paths() { return slow_paths_; }

  // ---- single operations: what launches of a step are made of, and tests ----

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
