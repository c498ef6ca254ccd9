// Sublayer: half a layer, the attention or the MLP, with its norm and its weights. It reads the residual stream and adds to it.
//
// One file for each kind. Immutable after load but for the workspace, so one step at a time.
#pragma once

#include <memory>

#include "kernels/ops.h"
#include "model/layer_plan.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace aisp {

// What loading half a layer needs.
struct LoadContext {
  Device& device;
  Ops& ops;
  Stream& stream;
  WeightReader& weights;
  Workspace& workspace;
  DType compute_dtype;
  int32_t max_rows = 0;
  TensorView cos_sin;  // in device memory
};

// What one step needs. `kv` is this layer's part of the pool.
struct StepContext {
  Ops& ops;
  Stream& stream;
  const Workspace& workspace;
  RaggedBatch batch;
  PagedKvView kv;
};

class Sublayer {
 public:
  virtual ~Sublayer() = default;
  virtual Status Forward(const StepContext& step) const = 0;
};

Result<std::unique_ptr<Sublayer>> LoadGroupedAttention(const LayerPlan& plan,
                                                       const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadLatentAttention(const LayerPlan& plan,
                                                      const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadGatedMlp(const LayerPlan& plan, const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadExpertMlp(const LayerPlan& plan, const LoadContext& context);

// A vector of the checkpoint as f32 in device memory.
struct DeviceVector {
  Buffer buffer;
  TensorView view;
};
Result<DeviceVector> LoadVector(const LoadContext& context, const std::string& name, int64_t n);
// One matrix, without bias.
Result<std::unique_ptr<PackedLinear>> LoadLinear(const LoadContext& context,
                                                 const std::string& name, int64_t out, int64_t in,
                                                 Epilogue epilogue);

}  // namespace aisp
