// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) in its expanded form:
// keys and values of every head are cached. That costs memory, but the common attention kernel can
// be used.
#include <fmt/format.h>

#include "model/sublayer.h"

namespace aisp {
namespace {

class LatentAttention final : public Sublayer {
 public:
  explicit LatentAttention(const LayerPlan& plan) : plan_(plan) {}

  Status Load(const LoadContext& c) {
    const AttentionSpec& a = plan_.attention;
    const std::string self = plan_.prefix + ".self_attn";
    const int64_t q = int64_t{a.num_heads} * (a.nope_dim + a.rope_dim);
    const int64_t kv = int64_t{a.num_heads} * (a.nope_dim + a.v_dim);
    const int64_t mixed = int64_t{a.num_heads} * a.v_dim;
    dtype_ = c.compute_dtype;
    cos_sin_ = c.cos_sin;
    AISP_ASSIGN_OR_RETURN(norm_,
                          LoadVector(c, plan_.prefix + ".input_layernorm.weight", plan_.hidden));
    AISP_ASSIGN_OR_RETURN(kv_norm_, LoadVector(c, self + ".kv_a_layernorm.weight", a.kv_lora_rank));
    AISP_ASSIGN_OR_RETURN(kv_down_,
                          LoadLinear(c, self + ".kv_a_proj_with_mqa", a.kv_lora_rank + a.rope_dim,
                                     plan_.hidden, Epilogue::kStore));
    AISP_ASSIGN_OR_RETURN(kv_up_,
                          LoadLinear(c, self + ".kv_b_proj", kv, a.kv_lora_rank, Epilogue::kStore));
    if (a.q_lora_rank > 0) {
      AISP_ASSIGN_OR_RETURN(q_norm_, LoadVector(c, self + ".q_a_layernorm.weight", a.q_lora_rank));
      AISP_ASSIGN_OR_RETURN(q_down_, LoadLinear(c, self + ".q_a_proj", a.q_lora_rank, plan_.hidden,
                                                Epilogue::kStore));
      AISP_ASSIGN_OR_RETURN(q_up_,
                            LoadLinear(c, self + ".q_b_proj", q, a.q_lora_rank, Epilogue::kStore));
    } else {
      AISP_ASSIGN_OR_RETURN(q_up_,
                            LoadLinear(c, self + ".q_proj", q, plan_.hidden, Epilogue::kStore));
    }
    AISP_ASSIGN_OR_RETURN(
        output_, LoadLinear(c, self + ".o_proj", plan_.hidden, mixed, Epilogue::kAccumulate));
    const int64_t latent = std::max(a.q_lora_rank, a.kv_lora_rank + a.rope_dim);
    c.workspace.Need(Scratch::kNormed, dtype_, plan_.hidden);
    c.workspace.Need(Scratch::kProjected, DType::kF32, q);
    c.workspace.Need(Scratch::kLatent, DType::kF32, latent);
    c.workspace.Need(Scratch::kLatentNormed, dtype_, latent);
    c.workspace.Need(Scratch::kLatentKv, DType::kF32, kv);
    c.workspace.Need(Scratch::kMixed, dtype_, mixed);
    return {};
  }

  void Emit(ProgrammeBuilder& b, const Workspace& w) const override {
    const AttentionSpec& a = plan_.attention;
    const TensorView hidden = w.View(Scratch::kHidden, DType::kF32, plan_.hidden);
    const TensorView normed = w.View(Scratch::kNormed, dtype_, plan_.hidden);
    const TensorView q = w.View(Scratch::kProjected, DType::kF32, q_up_->out_features());
    const TensorView latent = w.View(Scratch::kLatent, DType::kF32, kv_down_->out_features());
    const TensorView kv = w.View(Scratch::kLatentKv, DType::kF32, kv_up_->out_features());
    const TensorView mixed = w.View(Scratch::kMixed, dtype_, output_->in_features());
    const TensorView kv_normed = w.View(Scratch::kLatentNormed, dtype_, a.kv_lora_rank);
    const float epsilon = plan_.norm_epsilon;
    const ValueId x = b.Norm(b.residual(), {hidden, nullptr, norm_.view, normed, 0, epsilon});
    const ValueId query = EmitQuery(b, w, x, normed, q);
    const ValueId compressed = b.Linear(x, {kv_down_.get(), normed, latent}, "kv_down");
    const ValueId kv_x =
        b.Norm(compressed, {latent, nullptr, kv_norm_.view, kv_normed, 0, epsilon}, "kv norm");
    const ValueId expanded = b.Linear(kv_x, {kv_up_.get(), kv_normed, kv}, "kv_up");
    TensorView k_rope = latent;
    k_rope.data = latent.as<float>() + a.kv_lora_rank;
    k_rope.shape[1] = a.rope_dim;
    const ValueId rotated = b.LatentAppend(
        query, expanded, compressed,
        {q, kv, k_rope, cos_sin_, a.num_heads, a.nope_dim, a.rope_dim, a.v_dim, {}, {}});
    const ValueId attended = b.Attend(
        rotated,
        {q, a.nope_dim + a.rope_dim, a.v_dim, a.num_heads, a.scale, a.window, {}, {}, mixed});
    b.LinearAdd(attended, {output_.get(), mixed, hidden}, "o");
  }

 private:
  ValueId EmitQuery(ProgrammeBuilder& b, const Workspace& w, ValueId x, const TensorView& normed,
                    const TensorView& q) const {
    if (q_down_ == nullptr) return b.Linear(x, {q_up_.get(), normed, q}, "q");
    const int64_t rank = plan_.attention.q_lora_rank;
    const TensorView latent = w.View(Scratch::kLatent, DType::kF32, rank);
    const TensorView q_normed = w.View(Scratch::kLatentNormed, dtype_, rank);
    const ValueId compressed = b.Linear(x, {q_down_.get(), normed, latent}, "q_down");
    const ValueId q_x = b.Norm(
        compressed, {latent, nullptr, q_norm_.view, q_normed, 0, plan_.norm_epsilon}, "q norm");
    return b.Linear(q_x, {q_up_.get(), q_normed, q}, "q_up");
  }

  const LayerPlan plan_;
  DType dtype_ = DType::kF32;
  TensorView cos_sin_;
  DeviceVector norm_, q_norm_, kv_norm_;
  std::unique_ptr<PackedLinear> q_down_, q_up_, kv_down_, kv_up_, output_;
};

}  // namespace

Result<std::unique_ptr<Sublayer>> LoadLatentAttention(const LayerPlan& plan,
                                                      const LoadContext& context) {
  auto layer = std::make_unique<LatentAttention>(plan);
  AISP_RETURN_IF_ERROR(layer->Load(context));
  return layer;
}

}  // namespace aisp
