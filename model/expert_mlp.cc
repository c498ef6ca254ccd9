// A mixture of experts: a router picks top_k gated MLPs for each row (Mixtral: arXiv:2401.04088;
// DeepSeek-V3 with groups, a correction bias and a shared expert: arXiv:2412.19437, section 2.1.2).
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "model/gated_mlp.h"
#include "model/sublayer.h"

namespace aisp {
namespace {

class ExpertMlpLayer final : public Sublayer {
 public:
  explicit ExpertMlpLayer(const LayerPlan& plan) : plan_(plan) {}

  Status Load(const LoadContext& c) {
    const MlpSpec& m = plan_.mlp;
    dtype_ = c.compute_dtype;
    AISP_ASSIGN_OR_RETURN(
        norm_, LoadVector(c, plan_.prefix + ".post_attention_layernorm.weight", plan_.hidden));
    // The router's choice is discrete, so it is always computed in f32.
    LoadContext exact = c;
    exact.compute_dtype = DType::kF32;
    exact.weight_format = WeightFormat::kCompute;
    AISP_ASSIGN_OR_RETURN(router_, LoadLinear(exact, plan_.mlp_name + ".gate", m.num_experts,
                                              plan_.hidden, Epilogue::kStore));
    if (m.correction_bias) {
      AISP_ASSIGN_OR_RETURN(
          correction_,
          LoadVector(c, plan_.mlp_name + ".gate.e_score_correction_bias", m.num_experts));
    }
    std::vector<ExpertsSource::Expert> experts;
    for (int32_t e = 0; e < m.num_experts; ++e) {
      const std::string name = fmt::format("{}.experts.{}.", plan_.mlp_name, e);
      ExpertsSource::Expert expert;
      AISP_ASSIGN_OR_RETURN(expert.gate,
                            c.weights.Matrix(name + plan_.gate_name, m.intermediate, plan_.hidden));
      AISP_ASSIGN_OR_RETURN(expert.up,
                            c.weights.Matrix(name + plan_.up_name, m.intermediate, plan_.hidden));
      AISP_ASSIGN_OR_RETURN(expert.down,
                            c.weights.Matrix(name + plan_.down_name, plan_.hidden, m.intermediate));
      experts.push_back(expert);
    }
    AISP_ASSIGN_OR_RETURN(experts_, c.ops.PackExperts({experts, dtype_, c.max_rows, m.top_k,
                                                       c.weights.SeedOf(plan_.mlp_name)}));
    if (c.expert_bytes != nullptr) *c.expert_bytes += experts_->bytes();
    c.weights.Release();
    if (m.shared_intermediate > 0) {
      AISP_RETURN_IF_ERROR(shared_.emplace().Load(c, plan_, plan_.mlp_name + ".shared_experts",
                                                  m.shared_intermediate));
    }
    c.workspace.Need(Scratch::kNormed, dtype_, plan_.hidden);
    c.workspace.Need(Scratch::kProjected, DType::kF32, plan_.hidden);
    c.workspace.Need(Scratch::kRouter, DType::kF32, m.num_experts);
    c.workspace.Need(Scratch::kExperts, DType::kI32, m.top_k);
    c.workspace.Need(Scratch::kExpertWeights, DType::kF32, m.top_k);
    return {};
  }

  void Emit(ProgrammeBuilder& b, const Workspace& w) const override {
    const MlpSpec& m = plan_.mlp;
    const TensorView hidden = w.View(Scratch::kHidden, DType::kF32, plan_.hidden);
    const TensorView normed = w.View(Scratch::kNormed, dtype_, plan_.hidden);
    const TensorView logits = w.View(Scratch::kRouter, DType::kF32, m.num_experts);
    const ValueId before = b.residual();
    const ValueId x = b.Norm(before, {hidden, nullptr, norm_.view, normed, 0, plan_.norm_epsilon});
    TensorView exact = normed;
    ValueId routed = x;
    if (dtype_ != DType::kF32) {
      exact = w.View(Scratch::kProjected, DType::kF32, plan_.hidden);
      routed = b.Norm(before, {hidden, nullptr, norm_.view, exact, 0, plan_.norm_epsilon},
                      "norm for the router");
    }
    SelectExpertsParams select;
    select.logits = logits;
    select.correction_bias = correction_.view;
    select.score = m.score == RouterScore::kSigmoid ? ExpertScore::kSigmoid : ExpertScore::kSoftmax;
    select.top_k = m.top_k;
    select.num_groups = m.num_groups;
    select.top_groups = m.top_groups;
    select.normalise = m.normalise;
    select.scale = m.routed_scale;
    select.experts = w.View(Scratch::kExperts, DType::kI32, m.top_k);
    select.weights = w.View(Scratch::kExpertWeights, DType::kF32, m.top_k);
    const ValueId chosen =
        b.SelectExperts(b.Linear(routed, {router_.get(), exact, logits}, "router"), select);
    b.Experts(x, chosen, {experts_.get(), normed, select.experts, select.weights, hidden});
    if (shared_) shared_->Emit(b, w, x);
  }

 private:
  const LayerPlan plan_;
  DType dtype_ = DType::kF32;
  DeviceVector norm_, correction_;
  std::unique_ptr<PackedLinear> router_;
  std::unique_ptr<PackedExperts> experts_;
  std::optional<GatedMlp> shared_;
};

}  // namespace

Result<std::unique_ptr<Sublayer>> LoadExpertMlp(const LayerPlan& plan, const LoadContext& context) {
  auto layer = std::make_unique<ExpertMlpLayer>(plan);
  AISP_RETURN_IF_ERROR(layer->Load(context));
  return layer;
}

}  // namespace aisp
