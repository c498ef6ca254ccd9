// Sublayer: half a layer (attention or MLP) with its norm and weights. It reads the residual stream
// and adds to it.
//
// One file per kind. Immutable after load except for the workspace, so one step at a time.
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

// What a sublayer needs to load.
struct LoadContext {
  Device& device;
  Ops& ops;
  Stream& stream;
  WeightReader& weights;
  Workspace& workspace;
  DType compute_dtype;
  int32_t max_rows = 0;
  TensorView cos_sin;  // in device memory
  // Dtype of activations between operations, except the residual stream (Ops::ActivationDType).
  DType activation_dtype = DType::kF32;
  // Format of matrices; nullopt: the checkpoint's if the device supports it, else the compute
  // dtype.
  std::optional<WeightFormat> weight_format = std::nullopt;
  // Running sums.
  size_t* weight_bytes = nullptr;
  size_t* expert_bytes = nullptr;
  AdapterTable* adapters = nullptr;  // null: no adapters
};

class Sublayer {
 public:
  virtual ~Sublayer() = default;
  // Emits its nodes, from residual stream to residual stream. Call after Workspace::Allocate.
  virtual void Emit(ProgrammeBuilder& programme, const Workspace& workspace) const = 0;
};

Result<std::unique_ptr<Sublayer>> LoadGroupedAttention(const LayerPlan& plan,
                                                       const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadLatentAttention(const LayerPlan& plan,
                                                      const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadGatedMlp(const LayerPlan& plan, const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadExpertMlp(const LayerPlan& plan, const LoadContext& context);

// Loads the sublayer of the plan's kind.
Result<std::unique_ptr<Sublayer>> LoadAttention(const LayerPlan& plan, const LoadContext& context);
Result<std::unique_ptr<Sublayer>> LoadMlp(const LayerPlan& plan, const LoadContext& context);

// A checkpoint's vector as f32 in device memory.
struct DeviceVector {
  Buffer buffer;
  TensorView view;
};
Result<DeviceVector> LoadVector(const LoadContext& context, const std::string& name, int64_t n);
// Matrices [out, in] stacked along their output, with optional biases (`name`.bias).
struct StackedLinear {
  std::span<const StackedPart> parts;
  int64_t in = 0;
  Epilogue epilogue = Epilogue::kStore;
  bool bias = false;
  DType output_dtype = DType::kF32;
  bool keep_precision = false;  // in the compute dtype, whatever the format of others
  // If above 0: only the first rows of a single part, without bias; the checkpoint has all of it.
  int64_t first_rows = 0;
};
Result<std::unique_ptr<PackedLinear>> LoadStacked(const LoadContext& context,
                                                  const StackedLinear& stacked);
// One matrix without bias and with an f32 output.
Result<std::unique_ptr<PackedLinear>> LoadLinear(const LoadContext& context,
                                                 const std::string& name, int64_t out, int64_t in,
                                                 Epilogue epilogue);

}  // namespace aisp
