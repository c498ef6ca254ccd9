#include "model/gated_mlp.h"

namespace aisp {
namespace {

class GatedMlpLayer final : public Sublayer {
 public:
  explicit GatedMlpLayer(const LayerPlan& plan) : plan_(plan) {}

  Status Load(const LoadContext& c) {
    dtype_ = c.compute_dtype;
    AISP_ASSIGN_OR_RETURN(
        norm_, LoadVector(c, plan_.prefix + ".post_attention_layernorm.weight", plan_.hidden));
    return mlp_.Load(c, plan_, plan_.mlp_name, plan_.mlp.intermediate);
  }

  void Emit(ProgrammeBuilder& b, const Workspace& w) const override {
    const TensorView hidden = w.View(Scratch::kHidden, DType::kF32, plan_.hidden);
    const TensorView normed = w.View(Scratch::kNormed, dtype_, plan_.hidden);
    mlp_.Emit(b, w,
              b.Norm(b.residual(), {hidden, nullptr, norm_.view, normed, 0, plan_.norm_epsilon}));
  }

 private:
  const LayerPlan plan_;
  DType dtype_ = DType::kF32;
  DeviceVector norm_;
  GatedMlp mlp_;
};

}  // namespace

Status GatedMlp::Load(const LoadContext& c, const LayerPlan& plan, const std::string& name,
                      int64_t intermediate) {
  dtype_ = c.compute_dtype;
  hidden_ = plan.hidden;
  intermediate_ = intermediate;
  fused_ = c.ops.Fuses(Epilogue::kGatedSilu, dtype_);
  const StackedPart gate_up[] = {{name + "." + plan.gate_name, intermediate},
                                 {name + "." + plan.up_name, intermediate}};
  AISP_ASSIGN_OR_RETURN(
      gate_up_, LoadStacked(c, {.parts = gate_up,
                                .in = hidden_,
                                .epilogue = fused_ ? Epilogue::kGatedSilu : Epilogue::kStore,
                                .output_dtype = fused_ ? dtype_ : DType::kF32}));
  AISP_ASSIGN_OR_RETURN(down_, LoadLinear(c, name + "." + plan.down_name, hidden_, intermediate,
                                          Epilogue::kAccumulate));
  c.workspace.Need(Scratch::kNormed, dtype_, hidden_);
  if (!fused_) c.workspace.Need(Scratch::kProjected, DType::kF32, 2 * intermediate);
  c.workspace.Need(Scratch::kMixed, dtype_, intermediate);
  return {};
}

void GatedMlp::Emit(ProgrammeBuilder& b, const Workspace& w, ValueId x) const {
  const TensorView hidden = w.View(Scratch::kHidden, DType::kF32, hidden_);
  const TensorView normed = w.View(Scratch::kNormed, dtype_, hidden_);
  const TensorView activation = w.View(Scratch::kMixed, dtype_, intermediate_);
  ValueId inner;
  if (fused_) {
    inner = b.Linear(x, {gate_up_.get(), normed, activation}, "gate_up");
  } else {
    const TensorView gate_up = w.View(Scratch::kProjected, DType::kF32, 2 * intermediate_);
    inner =
        b.SiluMul(b.Linear(x, {gate_up_.get(), normed, gate_up}, "gate_up"), {gate_up, activation});
  }
  b.LinearAdd(inner, {down_.get(), activation, hidden}, "down");
}

Result<std::unique_ptr<Sublayer>> LoadGatedMlp(const LayerPlan& plan, const LoadContext& context) {
  auto layer = std::make_unique<GatedMlpLayer>(plan);
  AISP_RETURN_IF_ERROR(layer->Load(context));
  return layer;
}

}  // namespace aisp
