// Sublayer: half a layer, the attention or the MLP, with its norm and its weights. It reads the residual stream and adds to it.
//
// One file for each kind. Immutable after load but for the workspace, so one step at a time.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

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
  // What operations hand to each other outside the residual stream (Ops::ActivationDType).
  DType activation_dtype = DType::kF32;
  // How matrices are kept; nothing: as they are stored where the device can, else in the compute dtype.
  std::optional<WeightFormat> weight_format = std::nullopt;
  // Sums.
  size_t* weight_bytes = nullptr;
  size_t* expert_bytes = nullptr;
};

// The linear layers of a step, which wait until an operation of another kind wants what they compute: so layers that follow each
// other go to the device together, also from one half layer to the next. In front of them the embedding waits for the first norm.
class LinearQueue {
 public:
  LinearQueue(Ops& ops, Stream& stream, const EmbeddingParams& embedding)
      : ops_(ops), stream_(stream), embedding_(embedding) {}
  // `norm` goes in front of the layer, unless it is empty.
  Status Add(const RmsNormParams& norm, const LinearParams& linear) {
    if (count_ == steps_.size()) AISP_RETURN_IF_ERROR(Flush());
    steps_[count_++] = {norm, linear};
    return {};
  }
  Status Flush() {
    const std::span<LinearStep> steps(steps_.data(), count_);
    count_ = 0;
    if (embedding_) AISP_RETURN_IF_ERROR(Embed(steps));
    return steps.empty() ? Status{} : ops_.LinearRun(steps, stream_);
  }

 private:
  // With the first layer's norm, if it is of all that is embedded.
  Status Embed(std::span<LinearStep> steps) {
    if (!steps.empty() && steps[0].norm.x.data == embedding_->hidden.data &&
        steps[0].norm.row_indices == nullptr && steps[0].norm.rows == embedding_->rows) {
      embedding_->norm = std::exchange(steps[0].norm, {});
    }
    AISP_RETURN_IF_ERROR(ops_.Embedding(*embedding_, stream_));
    embedding_.reset();
    return {};
  }

  Ops& ops_;
  Stream& stream_;
  std::optional<EmbeddingParams> embedding_;
  std::array<LinearStep, kMaxLinearSteps> steps_;
  size_t count_ = 0;
};

// What one step needs. `kv` is this layer's part of the pool. Before any other operation `linear` has to be flushed.
struct StepContext {
  Ops& ops;
  Stream& stream;
  const Workspace& workspace;
  LinearQueue& linear;
  RaggedBatch batch;
  PagedKvView kv;
};

class Sublayer {
 public:
  virtual ~Sublayer() = default;
  // May leave linear layers queued.
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
// Matrices stacked along their output, each [out, in], with biases (`name`.bias) if there are.
struct StackedPart {
  std::string name;  // without ".weight"
  int64_t out = 0;
};
struct StackedLinear {
  std::span<const StackedPart> parts;
  int64_t in = 0;
  Epilogue epilogue = Epilogue::kStore;
  bool bias = false;
  DType output_dtype = DType::kF32;
  bool keep_precision = false;  // in the compute dtype, whatever the others are kept in
};
Result<std::unique_ptr<PackedLinear>> LoadStacked(const LoadContext& context,
                                                  const StackedLinear& stacked);
// One matrix, without bias, with an f32 output.
Result<std::unique_ptr<PackedLinear>> LoadLinear(const LoadContext& context,
                                                 const std::string& name, int64_t out, int64_t in,
                                                 Epilogue epilogue);

}  // namespace aisp
