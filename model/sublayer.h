// Sublayer: half a layer, the attention or the MLP, with its norm and its weights. It reads the
// residual stream and adds to it.
//
// One file for each kind. Immutable after load but for the workspace, so one step at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/ops.h"
#include "kernels/programme.h"
#include "model/adapter_table.h"
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
  // How matrices are kept; nothing: as they are stored where the device can, else in the compute
  // dtype.
  std::optional<WeightFormat> weight_format = std::nullopt;
  // Sums.
  size_t* weight_bytes = nullptr;
  size_t* expert_bytes = nullptr;
  AdapterTable* adapters = nullptr;  // null: nobody's
};

class Sublayer {
 public:
  virtual ~Sublayer() = default;
  // Its nodes, from the residual stream to the residual stream. After Workspace::Allocate.
  virtual void Emit(ProgrammeBuilder& programme, const Workspace& workspace) const = 0;
};

Result<std::unique_ptr<Sublayer>> LoadGroupedAttention(const LayerPlan& plan,
                                                       const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadLatentAttention(const LayerPlan& plan,
                                                      const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadGatedMlp(const LayerPlan& plan, const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadExpertMlp(const LayerPlan& plan, const LoadContext& context);

// The one of the plan's kind.
Result<std::unique_ptr<Sublayer>> LoadAttention(const LayerPlan& plan, const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadMlp(const LayerPlan& plan, const LoadContext& context);

// A vector of the checkpoint as f32 in device memory.
struct DeviceVector {
  Buffer buffer;
  TensorView view;
};
Result<DeviceVector> LoadVector(const LoadContext& context, const std::string& name, int64_t n);
// Matrices stacked along their output, each [out, in], with biases (`name`.bias) if there are.
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
