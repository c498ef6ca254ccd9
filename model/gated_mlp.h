// The weights and nodes of a gated MLP (SwiGLU: Shazeer, arXiv:2002.05202): of a dense layer, or
// the shared expert.
#pragma once

#include <memory>
#include <string>

#include "model/sublayer.h"

namespace aisp {

class GatedMlp {
 public:
  // `name`: the MLP's, e.g. "model.layers.3.mlp".
  Status Load(const LoadContext& context, const LayerPlan& plan, const std::string& name,
              int64_t intermediate);
  // Adds the MLP's output for `x` (in Scratch::kNormed) to the residual stream.
  void Emit(ProgrammeBuilder& programme, const Workspace& workspace, ValueId x) const;

 private:
  DType dtype_ = DType::kF32;
  bool fused_ = false;  // gate, up and their product are one operation
  int64_t hidden_ = 0;
  int64_t intermediate_ = 0;
  std::unique_ptr<PackedLinear> gate_up_, down_;
};

}  // namespace aisp
