#include "model/mtp_head.h"

#include "common/check.h"
#include "model/rope.h"
#include "model/tensor_cutter.h"

namespace aisp {

MtpHead::MtpHead(const MtpSpec& spec, const Model& target, const FeatureHeadOptions& options,
                 Device& device, Ops& ops)
    : FeatureHead({spec.model.vocabulary, spec.model.hidden, spec.model.hidden, spec.model.kv()},
                  options, device, ops),
      spec_(spec),
      target_(target) {}

Result<std::unique_ptr<MtpHead>> MtpHead::Load(const std::string& directory, const MtpSpec& spec,
                                               const Model& target,
                                               const FeatureHeadOptions& options, Device& device,
                                               Ops& ops) {
  std::unique_ptr<MtpHead> head(new MtpHead(spec, target, options, device, ops));
  AISP_ASSIGN_OR_RETURN(const auto stream, device.CreateStream());
  AISP_RETURN_IF_ERROR(head->LoadRope(*stream));
  AISP_RETURN_IF_ERROR(head->LoadWeights(directory, *stream));
  AISP_RETURN_IF_ERROR(head->Allocate());
  head->EmitProgrammes();
  return head;
}

Status MtpHead::LoadRope(Stream& stream) {
  const AttentionSpec& a = spec_.layer.attention;
  const int32_t dim = a.kind == AttentionKind::kLatent ? a.rope_dim : a.head_dim;
  const std::vector<float> table = RopeTable(spec_.model.rope, dim, options_.max_context);
  const size_t bytes = table.size() * sizeof(float);
  AISP_ASSIGN_OR_RETURN(rope_memory_, device_.Allocate(bytes, MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(device_.Copy(rope_memory_.data(), table.data(), bytes, stream));
  rope_ = TensorView::Dense(rope_memory_.data(), DType::kF32, {options_.max_context, dim});
  return device_.Synchronize(stream);
}

Status MtpHead::LoadWeights(const std::string& directory, Stream& stream) {
  std::unique_ptr<Checkpoint> checkpoint;
  if (!options_.random_weights) {
    AISP_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(directory));
  }
  WeightReader reader(checkpoint.get(), spec_.model.quant);
  if (options_.random_weights) {
    reader.MakeRandom(*options_.random_weights, device_.info().asynchronous ? nullptr : &ops_,
                      &stream);
  }
  LoadContext c{device_,           ops_, stream, reader, workspace_, options_.compute_dtype,
                options_.max_rows, rope_};
  c.activation_dtype = ops_.ActivationDType(options_.compute_dtype);
  c.weight_format = options_.weight_format;
  const int64_t hidden = spec_.model.hidden;
  const std::string& layer = spec_.layer.prefix;
  AISP_ASSIGN_OR_RETURN(token_norm_, LoadVector(c, layer + ".enorm.weight", hidden));
  AISP_ASSIGN_OR_RETURN(hidden_norm_, LoadVector(c, layer + ".hnorm.weight", hidden));
  AISP_ASSIGN_OR_RETURN(output_norm_, LoadVector(c, layer + ".shared_head.norm.weight", hidden));
  AISP_ASSIGN_OR_RETURN(projection_,
                        LoadLinear(c, layer + ".eh_proj", hidden, 2 * hidden, Epilogue::kStore));
  c.workspace.Need(Scratch::kHidden, DType::kF32, hidden);
  AISP_ASSIGN_OR_RETURN(attention_, LoadAttention(spec_.layer, c));
  AISP_ASSIGN_OR_RETURN(mlp_, LoadMlp(spec_.layer, c));
  head_ = &target_.head();
  const std::string own = layer + ".shared_head.head";
  if (checkpoint != nullptr && reader.Has(own + ".weight")) {
    AISP_ASSIGN_OR_RETURN(own_head_,
                          LoadLinear(c, own, spec_.model.vocabulary, hidden, Epilogue::kStore));
    head_ = own_head_.get();
  }
  AISP_CHECK(head_->input_dtype() == options_.compute_dtype);
  return {};
}

Status MtpHead::Allocate() {
  const int64_t rows = ops_.RowCapacity(options_.max_rows), hidden = spec_.model.hidden;
  const int64_t drawn = ops_.RowCapacity(options_.max_sequences);
  AISP_RETURN_IF_ERROR(workspace_.Allocate(device_, rows));
  hidden_ = workspace_.View(Scratch::kHidden, DType::kF32, hidden);
  const auto cut = [&](TensorCutter c) {
    features_ = c.Take(feature_dtype_, rows, hidden);
    final_ = c.Take(DType::kF32, rows, hidden);
    embedded_ = c.Take(DType::kF32, rows, hidden);
    both_ = c.Take(options_.compute_dtype, rows, 2 * hidden);
    // kGoOn steps read as many rows as they draw.
    kept_ = c.Take(DType::kF32, drawn, hidden);
    head_input_ = c.Take(options_.compute_dtype, drawn, hidden);
    logits_ = target_logits_ = c.Take(DType::kF32, drawn, spec_.model.vocabulary);
    return c.used();
  };
  const size_t bytes = cut(TensorCutter(nullptr));
  AISP_ASSIGN_OR_RETURN(memory_, device_.Allocate(bytes, MemoryKind::kDevice));
  cut(TensorCutter(static_cast<std::byte*>(memory_.data())));
  return CreateUpload();
}

void MtpHead::EmitProgrammes() {
  for (const Part part : {Part::kBegin, Part::kGoOn, Part::kCatchUp}) {
    ProgrammeBuilder b;
    EmitInput(b, part != Part::kGoOn);
    attention_->Emit(b, workspace_);
    if (part != Part::kCatchUp) {
      mlp_->Emit(b, workspace_);
      EmitOutput(b);
    }
    programme(part) = b.Finish();
  }
}

void MtpHead::EmitInput(ProgrammeBuilder& b, bool begins) const {
  const int64_t hidden = spec_.model.hidden;
  const float epsilon = spec_.model.norm_epsilon;
  b.SetLayer(0);
  EmbeddingParams embedding;
  embedding.table = target_.embedding();
  embedding.hidden = embedded_;
  const ValueId embedded = b.EmbedBeside(embedding);
  const ValueId left = b.Norm(
      embedded, {embedded_, nullptr, token_norm_.view, Columns(both_, 0, hidden), 0, epsilon});
  TensorView source = kept_;
  ValueId known = b.Given(begins ? features_ : kept_);
  if (begins) {
    source = final_;
    known = b.Norm(
        known, {features_, nullptr, target_.final_norm(), final_, 0, target_.spec().norm_epsilon});
  }
  const ValueId right = b.Norm(
      known, {source, nullptr, hidden_norm_.view, Columns(both_, hidden, hidden), 0, epsilon});
  b.BeginResidualOfTwo(left, right, {projection_.get(), both_, hidden_}, "eh_proj");
}

void MtpHead::EmitOutput(ProgrammeBuilder& b) const {
  b.SetLayer(-1);
  const ValueId rows = b.GatherRows();
  const ValueId x =
      b.Norm(rows, {hidden_, nullptr, output_norm_.view, head_input_, 0, spec_.model.norm_epsilon});
  const ValueId logits = b.Linear(x, {head_, head_input_, logits_}, "logits");
  b.TapRows(rows, {hidden_, kept_});
  b.Draw(logits);
}

}  // namespace aisp
