// Grouped-query attention (Ainslie et al., arXiv:2305.13245) with rotary positions over the paged
// pool.
#include <fmt/format.h>

#include "model/sublayer.h"

namespace aisp {
namespace {

class GroupedAttention final : public Sublayer {
 public:
  explicit GroupedAttention(const LayerPlan& plan) : plan_(plan) {}

  Status Load(const LoadContext& c) {
    const AttentionSpec& a = plan_.attention;
    const std::string self = plan_.prefix + ".self_attn";
    const int64_t q = int64_t{a.num_heads} * a.head_dim, kv = int64_t{a.num_kv_heads} * a.head_dim;
    dtype_ = c.compute_dtype;
    cos_sin_ = c.cos_sin;
    AISP_ASSIGN_OR_RETURN(norm_,
                          LoadVector(c, plan_.prefix + ".input_layernorm.weight", plan_.hidden));
    if (a.qk_norm) {
      AISP_ASSIGN_OR_RETURN(q_norm_, LoadVector(c, self + ".q_norm.weight", a.head_dim));
      AISP_ASSIGN_OR_RETURN(k_norm_, LoadVector(c, self + ".k_norm.weight", a.head_dim));
    }
    activation_ = c.activation_dtype;
    const StackedPart qkv[] = {
        {self + ".q_proj", q}, {self + ".k_proj", kv}, {self + ".v_proj", kv}};
    AISP_ASSIGN_OR_RETURN(qkv_, LoadStacked(c, {.parts = qkv,
                                                .in = plan_.hidden,
                                                .bias = a.qkv_bias,
                                                .output_dtype = activation_}));
    const StackedPart output[] = {{self + ".o_proj", plan_.hidden}};
    AISP_ASSIGN_OR_RETURN(output_, LoadStacked(c, {.parts = output,
                                                   .in = q,
                                                   .epilogue = Epilogue::kAccumulate,
                                                   .bias = a.output_bias}));
    c.workspace.Need(Scratch::kNormed, dtype_, plan_.hidden);
    c.workspace.Need(Scratch::kProjected, activation_, q + 2 * kv);
    c.workspace.Need(Scratch::kMixed, dtype_, q);
    return {};
  }

  void Emit(ProgrammeBuilder& b, const Workspace& w) const override {
    const AttentionSpec& a = plan_.attention;
    const int64_t q = int64_t{a.num_heads} * a.head_dim;
    const TensorView hidden = w.View(Scratch::kHidden, DType::kF32, plan_.hidden);
    const TensorView normed = w.View(Scratch::kNormed, dtype_, plan_.hidden);
    const TensorView qkv = w.View(Scratch::kProjected, activation_, qkv_->out_features());
    const TensorView mixed = w.View(Scratch::kMixed, dtype_, q);
    const ValueId x =
        b.Norm(b.residual(), {hidden, nullptr, norm_.view, normed, 0, plan_.norm_epsilon});
    const ValueId projected = b.Linear(x, {qkv_.get(), normed, qkv}, "qkv");
    const ValueId rotated = b.RopeAppend(
        projected,
        {qkv, cos_sin_, q_norm_.view, k_norm_.view, plan_.norm_epsilon, a.num_heads, {}, {}});
    const ValueId attended = b.Attend(
        rotated, {qkv, a.head_dim, a.head_dim, a.num_heads, a.scale, a.window, {}, {}, mixed});
    b.LinearAdd(attended, {output_.get(), mixed, hidden}, "o");
  }

 private:
  const LayerPlan plan_;
  DType dtype_ = DType::kF32;
  DType activation_ = DType::kF32;
  TensorView cos_sin_;
  DeviceVector norm_, q_norm_, k_norm_;
  std::unique_ptr<PackedLinear> qkv_, output_;
};

}  // namespace

Result<std::unique_ptr<Sublayer>> LoadGroupedAttention(const LayerPlan& plan,
                                                       const LoadContext& context) {
  auto layer = std::make_unique<GroupedAttention>(plan);
  AISP_RETURN_IF_ERROR(layer->Load(context));
  return layer;
}

}  // namespace aisp
