// The weights and the flow of one gated MLP (SwiGLU: Shazeer, arXiv:2002.05202); a dense layer's,
// or the experts' shared one.
#pragma once

#include <memory>
#include <string>

#include "model/sublayer.h"

namespace aisp {

class GatedMlp {
 public:
  // `name`: of the MLP, "model.layers.3.mlp".
  Status Load(const LoadContext& context, const LayerPlan& plan, const std::string& name,
              int64_t intermediate);
  // Adds to the residual stream what the MLP makes of `x`, which lies in Scratch::kNormed.
  void Emit(ProgrammeBuilder& programme, const Workspace& workspace, ValueId x) const;

 private:
  DType dtype_ = DType::kF32;
  bool fused_ = false;  // gate, up and their product in one operation
  int64_t hidden_ = 0;
  int64_t intermediate_ = 0;
  std::unique_ptr<PackedLinear> gate_up_, down_;
};

}  // namespace aisp
