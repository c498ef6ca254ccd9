// The attention kernels that a model's layers need, one for each shape, made at the first call of a shape; which is outside any
// capture, because the first step never is captured. Shapes that attention/ has no kernel for run in the plain one.
//
// One stream at a time: the instances' workspaces are of the step that BeginStep announced. A step is planned by a shape's first Run,
// or its first RunDecode.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/ops.h"

namespace aisp::cuda {

class AttentionSet {
 public:
  // `kernels`: whether attention/ runs on this GPU. Where it does not, f32 alone is served, by the plain kernel.
  AttentionSet(Device& device, int32_t max_rows, int32_t max_sequences, bool kernels)
      : device_(device), max_rows_(max_rows), max_sequences_(max_sequences), kernels_(kernels) {}

  Status BeginStep(const RaggedBatch& batch, cudaStream_t stream);
  Status Run(const AttentionParams& params, cudaStream_t stream);
  // RoPE, append and attention of a step whose sequences have at most one row each, in one launch; `params` has the batch that
  // BeginStep announced. UNIMPLEMENTED where there is no such kernel: RopeAppend and Run serve.
  // `words` as in AttentionCall.
  Status RunDecode(const RopeAppendParams& rope, const AttentionParams& params,
                   const TokenWords& words, cudaStream_t stream);
  // "decode ...; prefill ..." of each shape.
  std::string Describe() const;

 private:
  using Shape = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, float, DType, DType, DType>;
  struct Instance {
    std::unique_ptr<Attention> attention;  // null: no kernel for this shape
    Buffer workspace;
    bool planned = false;                   // for the step that BeginStep announced, for Run
    bool decode_planned = false;            // for RunDecode
    std::map<const void*, KvLayer> layers;  // by the address of the layer's pool
  };

  static StepKind KindOf(const RaggedBatch& batch);
  Result<Instance*> InstanceFor(const AttentionParams& params, cudaStream_t stream);
  Result<Instance> Make(const AttentionParams& params, cudaStream_t stream);
  static Result<const KvLayer*> LayerOf(Instance& instance, const PagedKvView& kv);

  Device& device_;
  const int32_t max_rows_, max_sequences_;
  const bool kernels_;
  std::map<Shape, Instance> instances_;
  AttentionBatch batch_;
  StepKind kind_ = StepKind::kDecode;
};

}  // namespace aisp::cuda
