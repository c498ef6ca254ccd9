#include "model/eagle_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "common/check.h"
#include "model/rope.h"
#include "model/tensor_cutter.h"

namespace aisp {
namespace {

constexpr const char* kLayer = "midlayer";

}  // namespace

EagleHead::EagleHead(const EagleSpec& spec, const FeatureHeadOptions& options, Device& device,
                     Ops& ops)
    : FeatureHead(
          {spec.layer.vocabulary, spec.layer.hidden,
           static_cast<int32_t>(spec.feature_layers.size()) * spec.target_hidden, spec.layer.kv()},
          options, device, ops),
      spec_(spec) {}

Result<std::unique_ptr<EagleHead>> EagleHead::Load(const std::string& directory,
                                                   const EagleSpec& spec,
                                                   const TensorView& embedding,
                                                   const FeatureHeadOptions& options,
                                                   Device& device, Ops& ops) {
  AISP_CHECK(embedding.rows() == spec.layer.vocabulary && embedding.cols() == spec.layer.hidden);
  std::unique_ptr<EagleHead> head(new EagleHead(spec, options, device, ops));
  head->embedding_ = embedding;
  head->activation_ = ops.ActivationDType(options.compute_dtype);
  head->fused_ = ops.Fuses(Epilogue::kGatedSilu, options.compute_dtype);
  AISP_ASSIGN_OR_RETURN(const auto stream, device.CreateStream());
  AISP_RETURN_IF_ERROR(head->LoadWeights(directory, *stream));
  AISP_RETURN_IF_ERROR(head->Allocate(*stream));
  head->EmitProgrammes();
  return head;
}

size_t EagleHead::bytes() const {
  return weight_bytes_ + rope_memory_.bytes() + memory_.bytes() + columns_.bytes() + upload_bytes();
}

// For random weights: tokens spread over the target's vocabulary.
void EagleHead::MakeTokenMap() {
  const int64_t count = spec_.draft_vocabulary, vocabulary = spec_.layer.vocabulary;
  for (int64_t i = 0; i < count; ++i)
    target_tokens_.push_back(static_cast<TokenId>(i * vocabulary / count));
}

// d2t has, for each token of the head, its id in the target's vocabulary minus its own id.
Status EagleHead::ReadTokenMap(const Checkpoint& checkpoint) {
  const int32_t count = spec_.draft_vocabulary, vocabulary = spec_.layer.vocabulary;
  target_tokens_.resize(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) target_tokens_[static_cast<size_t>(i)] = i;
  if (count == vocabulary && checkpoint.Find("d2t") == nullptr) return {};
  const std::array<int64_t, 1> shape = {count};
  AISP_ASSIGN_OR_RETURN(const TensorView map, checkpoint.Get("d2t", shape));
  if (map.dtype != DType::kI64) {
    return InvalidArgument(fmt::format("{}: d2t has dtype {}; i64 is expected",
                                       checkpoint.directory(), DTypeName(map.dtype)));
  }
  for (int32_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    std::memcpy(&offset, static_cast<const std::byte*>(map.data) + sizeof(offset) * size_t(i),
                sizeof(offset));
    // Checked before adding, to avoid overflow.
    if (offset < -i || offset >= vocabulary - i) {
      return InvalidArgument(
          fmt::format("{}: d2t[{}] is {}, which is outside of the target's vocabulary of {} tokens",
                      checkpoint.directory(), i, offset, vocabulary));
    }
    target_tokens_[static_cast<size_t>(i)] = static_cast<TokenId>(i + offset);
  }
  return {};
}

Status EagleHead::LoadWeights(const std::string& directory, Stream& stream) {
  std::unique_ptr<Checkpoint> checkpoint;
  if (options_.random_weights) {
    MakeTokenMap();
  } else {
    AISP_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(directory));
    AISP_RETURN_IF_ERROR(ReadTokenMap(*checkpoint));
  }
  WeightReader reader(checkpoint.get(), spec_.layer.quant);
  if (options_.random_weights) {
    reader.MakeRandom(*options_.random_weights, device_.info().asynchronous ? nullptr : &ops_,
                      &stream);
  }
  LoadContext c{device_,           ops_,        stream, reader, unused_, options_.compute_dtype,
                options_.max_rows, TensorView{}};
  c.weight_format = options_.weight_format;
  c.weight_bytes = &weight_bytes_;
  const AttentionSpec& a = spec_.layer.layers.front().attention;
  const int64_t hidden = spec_.layer.hidden, inner = spec_.layer.layers.front().mlp.intermediate;
  const int64_t q = int64_t{a.num_heads} * a.head_dim, kv = int64_t{a.num_kv_heads} * a.head_dim;
  const std::string layer = kLayer, self = layer + ".self_attn", mlp = layer + ".mlp";
  AISP_ASSIGN_OR_RETURN(input_norm_, LoadVector(c, layer + ".input_layernorm.weight", hidden));
  AISP_ASSIGN_OR_RETURN(hidden_norm_, LoadVector(c, layer + ".hidden_norm.weight", hidden));
  AISP_ASSIGN_OR_RETURN(post_norm_,
                        LoadVector(c, layer + ".post_attention_layernorm.weight", hidden));
  AISP_ASSIGN_OR_RETURN(final_norm_, LoadVector(c, "norm.weight", hidden));
  AISP_ASSIGN_OR_RETURN(fc_, LoadLinear(c, "fc", hidden, feature_size(), Epilogue::kStore));
  const StackedPart parts[] = {
      {self + ".q_proj", q}, {self + ".k_proj", kv}, {self + ".v_proj", kv}};
  AISP_ASSIGN_OR_RETURN(
      qkv_,
      LoadStacked(
          c, {.parts = parts, .in = 2 * hidden, .bias = a.qkv_bias, .output_dtype = activation_}));
  const StackedPart output[] = {{self + ".o_proj", hidden}};
  AISP_ASSIGN_OR_RETURN(
      output_,
      LoadStacked(
          c, {.parts = output, .in = q, .epilogue = Epilogue::kAccumulate, .bias = a.output_bias}));
  const StackedPart gate_up[] = {{mlp + ".gate_proj", inner}, {mlp + ".up_proj", inner}};
  AISP_ASSIGN_OR_RETURN(
      gate_up_, LoadStacked(c, {.parts = gate_up,
                                .in = hidden,
                                .epilogue = fused_ ? Epilogue::kGatedSilu : Epilogue::kStore,
                                .output_dtype = fused_ ? options_.compute_dtype : DType::kF32}));
  AISP_ASSIGN_OR_RETURN(down_,
                        LoadLinear(c, mlp + ".down_proj", hidden, inner, Epilogue::kAccumulate));
  AISP_ASSIGN_OR_RETURN(head_,
                        LoadLinear(c, "lm_head", spec_.draft_vocabulary, hidden, Epilogue::kStore));
  return {};
}

Status EagleHead::Allocate(Stream& stream) {
  const ModelSpec& layer = spec_.layer;
  const AttentionSpec& a = layer.layers.front().attention;
  const DType dtype = options_.compute_dtype;
  const int64_t rows = ops_.RowCapacity(options_.max_rows);
  const int64_t drawn = ops_.RowCapacity(options_.max_sequences);
  const int64_t inner = layer.layers.front().mlp.intermediate;
  const int64_t q = int64_t{a.num_heads} * a.head_dim;
  const auto cut = [&](TensorCutter c) {
    features_ = c.Take(dtype, rows, feature_size());
    embedded_ = c.Take(DType::kF32, rows, layer.hidden);
    hidden_ = c.Take(DType::kF32, rows, layer.hidden);
    both_ = c.Take(dtype, rows, 2 * layer.hidden);
    wide_ =
        c.Take(DType::kF32, rows, std::max(qkv_->out_features(), fused_ ? int64_t{0} : 2 * inner));
    mixed_ = c.Take(dtype, rows, std::max(q, inner));
    normed_ = c.Take(dtype, rows, layer.hidden);
    kept_ = c.Take(DType::kF32, drawn, layer.hidden);
    head_input_ = c.Take(dtype, drawn, layer.hidden);
    logits_ = c.Take(DType::kF32, drawn, spec_.draft_vocabulary);
    target_logits_ = spreads() ? c.Take(DType::kF32, drawn, layer.vocabulary) : logits_;
    return c.used();
  };
  AISP_ASSIGN_OR_RETURN(memory_, device_.Allocate(cut(TensorCutter(nullptr)), MemoryKind::kDevice));
  cut(TensorCutter(static_cast<std::byte*>(memory_.data())));
  AISP_RETURN_IF_ERROR(FillTables(stream));
  return CreateUpload();
}

Status EagleHead::FillTables(Stream& stream) {
  const int32_t dim = spec_.layer.layers.front().attention.head_dim;
  const std::vector<float> table = RopeTable(spec_.layer.rope, dim, options_.max_context);
  AISP_ASSIGN_OR_RETURN(rope_memory_,
                        device_.Allocate(table.size() * sizeof(float), MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(
      device_.Copy(rope_memory_.data(), table.data(), table.size() * sizeof(float), stream));
  rope_ = TensorView::Dense(rope_memory_.data(), DType::kF32, {options_.max_context, dim});
  const size_t columns = target_tokens_.size() * sizeof(TokenId);
  AISP_ASSIGN_OR_RETURN(columns_, device_.Allocate(columns, MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(device_.Copy(columns_.data(), target_tokens_.data(), columns, stream));
  const std::vector<float> none(static_cast<size_t>(spec_.layer.vocabulary), kNoLogit);
  for (int64_t row = 0; spreads() && row < target_logits_.rows(); ++row) {
    AISP_RETURN_IF_ERROR(device_.Copy(target_logits_.Rows(row, 1).data, none.data(),
                                      none.size() * sizeof(float), stream));
  }
  return device_.Synchronize(stream);
}

void EagleHead::EmitProgrammes() {
  ProgrammeBuilder begin, go_on, catch_up;
  EmitFeatures(begin);
  EmitLayer(begin, hidden_);
  EmitOutput(begin, hidden_, /*keeps=*/true);
  programme(Part::kBegin) = begin.Finish();
  go_on.SetLayer(0);
  go_on.GivenResidual(kept_);
  EmitLayer(go_on, kept_);
  EmitOutput(go_on, kept_, /*keeps=*/false);
  programme(Part::kGoOn) = go_on.Finish();
  EmitFeatures(catch_up);
  EmitKeys(catch_up, hidden_);
  programme(Part::kCatchUp) = catch_up.Finish();
}

void EagleHead::EmitFeatures(ProgrammeBuilder& b) const {
  b.SetLayer(0);
  b.BeginResidual(b.Given(features_), {fc_.get(), features_, hidden_}, "fc");
}

// Emits the nodes up to the KV append; returns the value from which attention reads its queries.
ValueId EagleHead::EmitKeys(ProgrammeBuilder& b, const TensorView& residual) const {
  const AttentionSpec& a = spec_.layer.layers.front().attention;
  const int64_t size = spec_.layer.hidden;
  const float epsilon = spec_.layer.norm_epsilon;
  EmbeddingParams embedding;
  embedding.table = embedding_;
  embedding.hidden = embedded_;
  const ValueId embedded = b.EmbedBeside(embedding);
  const ValueId left =
      b.Norm(embedded, {embedded_, nullptr, input_norm_.view, Columns(both_, 0, size), 0, epsilon});
  const ValueId right = b.Norm(
      b.residual(), {residual, nullptr, hidden_norm_.view, Columns(both_, size, size), 0, epsilon});
  const TensorView qkv =
      TensorView::Dense(wide_.data, activation_, {wide_.rows(), qkv_->out_features()});
  const ValueId projected = b.LinearOfTwo(left, right, {qkv_.get(), both_, qkv}, "qkv");
  return b.RopeAppend(projected, {qkv, rope_, {}, {}, epsilon, a.num_heads, {}, {}});
}

void EagleHead::EmitLayer(ProgrammeBuilder& b, const TensorView& residual) const {
  const AttentionSpec& a = spec_.layer.layers.front().attention;
  const int64_t q = int64_t{a.num_heads} * a.head_dim;
  const ValueId rotated = EmitKeys(b, residual);
  const TensorView qkv =
      TensorView::Dense(wide_.data, activation_, {wide_.rows(), qkv_->out_features()});
  const TensorView mixed = TensorView::Dense(mixed_.data, mixed_.dtype, {mixed_.rows(), q});
  const ValueId attended = b.Attend(
      rotated, {qkv, a.head_dim, a.head_dim, a.num_heads, a.scale, a.window, {}, {}, mixed});
  b.LinearAdd(attended, {output_.get(), mixed, residual}, "o");
  EmitMlp(b, residual);
}

void EagleHead::EmitMlp(ProgrammeBuilder& b, const TensorView& residual) const {
  const int64_t inner = spec_.layer.layers.front().mlp.intermediate;
  const TensorView mixed = TensorView::Dense(mixed_.data, mixed_.dtype, {mixed_.rows(), inner});
  ValueId x = b.Norm(b.residual(),
                     {residual, nullptr, post_norm_.view, normed_, 0, spec_.layer.norm_epsilon});
  if (fused_) {
    x = b.Linear(x, {gate_up_.get(), normed_, mixed}, "gate_up");
  } else {
    const TensorView gate_up =
        TensorView::Dense(wide_.data, DType::kF32, {wide_.rows(), 2 * inner});
    x = b.SiluMul(b.Linear(x, {gate_up_.get(), normed_, gate_up}, "gate_up"), {gate_up, mixed});
  }
  b.LinearAdd(x, {down_.get(), mixed, residual}, "down");
}

// `keeps`: copies the drawn rows to kept_, from which kGoOn continues; kGoOn has them there.
void EagleHead::EmitOutput(ProgrammeBuilder& b, const TensorView& residual, bool keeps) const {
  b.SetLayer(-1);
  const ValueId rows = b.GatherRows();
  const ValueId x =
      b.Norm(rows, {residual, nullptr, final_norm_.view, head_input_, 0, spec_.layer.norm_epsilon});
  ValueId logits = b.Linear(x, {head_.get(), head_input_, logits_}, "logits");
  if (keeps) b.TapRows(rows, {residual, kept_});
  if (spreads()) {
    logits =
        b.Spread(logits, {logits_, target_logits_, static_cast<const int32_t*>(columns_.data())});
  }
  b.Draw(logits);
}

}  // namespace aisp
