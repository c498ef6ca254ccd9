#include "model/eagle_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/check.h"
#include "model/rope.h"

namespace aisp {
namespace {

constexpr const char* kLayer = "midlayer";

// Cuts tensors from one allocation; the first round, without memory, only counts.
class Cutter {
 public:
  explicit Cutter(std::byte* memory) : memory_(memory) {}
  TensorView Take(DType dtype, int64_t rows, int64_t cols) {
    std::byte* const at = memory_ != nullptr ? memory_ + used_ : nullptr;
    used_ += Arena::Padded(static_cast<size_t>(rows * cols) * DTypeBytes(dtype));
    return TensorView::Dense(at, dtype, {rows, cols});
  }
  size_t used() const { return used_; }

 private:
  std::byte* const memory_;
  size_t used_ = 0;
};

// Columns [begin, begin + count) of a dense tensor.
TensorView Columns(const TensorView& whole, int64_t begin, int64_t count) {
  TensorView part = whole;
  part.shape[1] = count;
  part.data =
      static_cast<std::byte*>(whole.data) + static_cast<size_t>(begin) * DTypeBytes(whole.dtype);
  return part;
}

// To bf16 as everywhere: to the nearest, ties to even.
void StoreFeatures(std::span<const float> from, const TensorView& to) {
  if (to.dtype == DType::kF32) {
    std::memcpy(to.data, from.data(), from.size_bytes());
    return;
  }
  auto* out = to.as<uint16_t>();
  for (size_t i = 0; i < from.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(from[i]);
    out[i] = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
}

}  // namespace

Result<std::unique_ptr<EagleHead>> EagleHead::Load(const std::string& directory,
                                                   const EagleSpec& spec,
                                                   const TensorView& embedding,
                                                   const EagleHeadOptions& options, Device& device,
                                                   Ops& ops) {
  if (device.info().asynchronous)
    return Unimplemented(fmt::format("an EAGLE-3 head on a {} device", device.info().kind));
  AISP_CHECK(embedding.rows() == spec.layer.vocabulary && embedding.cols() == spec.layer.hidden);
  std::unique_ptr<EagleHead> head(new EagleHead(spec, options, device, ops));
  head->embedding_ = embedding;
  AISP_ASSIGN_OR_RETURN(head->stream_, device.CreateStream());
  AISP_RETURN_IF_ERROR(head->LoadWeights(directory));
  AISP_RETURN_IF_ERROR(head->Allocate());
  return head;
}

// d2t says for each token of the head how far its id in the target's vocabulary is from its own.
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
    // Far offsets are refused before they are added.
    if (offset < -i || offset >= vocabulary - i) {
      return InvalidArgument(
          fmt::format("{}: d2t[{}] is {}, which is outside of the target's vocabulary of {} tokens",
                      checkpoint.directory(), i, offset, vocabulary));
    }
    target_tokens_[static_cast<size_t>(i)] = static_cast<TokenId>(i + offset);
  }
  return {};
}

Status EagleHead::LoadWeights(const std::string& directory) {
  AISP_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(directory));
  AISP_RETURN_IF_ERROR(ReadTokenMap(*checkpoint));
  WeightReader reader(checkpoint.get(), spec_.layer.quant);
  LoadContext c{device_,           ops_,        *stream_, reader, unused_, options_.compute_dtype,
                options_.max_rows, TensorView{}};
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
  AISP_ASSIGN_OR_RETURN(qkv_,
                        LoadStacked(c, {.parts = parts, .in = 2 * hidden, .bias = a.qkv_bias}));
  const StackedPart output[] = {{self + ".o_proj", hidden}};
  AISP_ASSIGN_OR_RETURN(
      output_,
      LoadStacked(
          c, {.parts = output, .in = q, .epilogue = Epilogue::kAccumulate, .bias = a.output_bias}));
  const StackedPart gate_up[] = {{mlp + ".gate_proj", inner}, {mlp + ".up_proj", inner}};
  AISP_ASSIGN_OR_RETURN(gate_up_, LoadStacked(c, {.parts = gate_up, .in = hidden}));
  AISP_ASSIGN_OR_RETURN(down_,
                        LoadLinear(c, mlp + ".down_proj", hidden, inner, Epilogue::kAccumulate));
  AISP_ASSIGN_OR_RETURN(head_,
                        LoadLinear(c, "lm_head", spec_.draft_vocabulary, hidden, Epilogue::kStore));
  return {};
}

Status EagleHead::Allocate() {
  const ModelSpec& layer = spec_.layer;
  const AttentionSpec& a = layer.layers.front().attention;
  const DType dtype = options_.compute_dtype;
  const int64_t rows = ops_.RowCapacity(options_.max_rows);
  const int64_t drawn = ops_.RowCapacity(options_.max_sequences);
  const int64_t inner = layer.layers.front().mlp.intermediate;
  const int64_t q = int64_t{a.num_heads} * a.head_dim;
  const auto cut = [&](Cutter c) {
    features_ = c.Take(dtype, rows, feature_size());
    embedded_ = c.Take(DType::kF32, rows, layer.hidden);
    hidden_ = c.Take(DType::kF32, rows, layer.hidden);
    both_ = c.Take(dtype, rows, 2 * layer.hidden);
    wide_ = c.Take(DType::kF32, rows, std::max(qkv_->out_features(), 2 * inner));
    mixed_ = c.Take(dtype, rows, std::max(q, inner));
    normed_ = c.Take(dtype, rows, layer.hidden);
    kept_ = c.Take(DType::kF32, drawn, layer.hidden);
    head_input_ = c.Take(dtype, drawn, layer.hidden);
    logits_ = c.Take(DType::kF32, drawn, spec_.draft_vocabulary);
    return c.used();
  };
  const size_t bytes = cut(Cutter(nullptr));
  AISP_ASSIGN_OR_RETURN(memory_, device_.Allocate(bytes, MemoryKind::kDevice));
  std::memset(memory_.data(), 0, bytes);
  cut(Cutter(static_cast<std::byte*>(memory_.data())));
  const std::vector<float> table = RopeTable(layer.rope, a.head_dim, options_.max_context);
  AISP_ASSIGN_OR_RETURN(rope_memory_,
                        device_.Allocate(table.size() * sizeof(float), MemoryKind::kDevice));
  std::memcpy(rope_memory_.data(), table.data(), table.size() * sizeof(float));
  rope_ = TensorView::Dense(rope_memory_.data(), DType::kF32, {options_.max_context, a.head_dim});
  AISP_ASSIGN_OR_RETURN(
      upload_, BatchUpload::Create(device_, {options_.max_rows, options_.max_sequences,
                                             options_.max_sequences, options_.max_context}));
  return {};
}

Result<DeviceBatch> EagleHead::Upload(const ForwardBatch& batch, const PagedKvView& kv) {
  return upload_.Upload(batch, spec_.layer.vocabulary, kv.block_tokens, 0, 0, device_, *stream_);
}

Status EagleHead::Step(const ForwardBatch& batch, std::span<const float> features,
                       const PagedKvView& kv) {
  AISP_CHECK(features.size() == batch.tokens.size() * static_cast<size_t>(feature_size()));
  AISP_ASSIGN_OR_RETURN(const DeviceBatch uploaded, Upload(batch, kv));
  StoreFeatures(features, features_);
  AISP_RETURN_IF_ERROR(
      ops_.Linear({fc_.get(), features_, hidden_, uploaded.ragged.rows}, *stream_));
  return Layer(uploaded, kv);
}

Status EagleHead::StepOn(const ForwardBatch& batch, std::span<const int32_t> outputs,
                         const PagedKvView& kv) {
  AISP_CHECK(outputs.size() == batch.tokens.size());
  AISP_ASSIGN_OR_RETURN(const DeviceBatch uploaded, Upload(batch, kv));
  const auto size = static_cast<size_t>(spec_.layer.hidden);
  for (size_t row = 0; row < outputs.size(); ++row) {
    std::memcpy(hidden_.as<float>() + row * size,
                kept_.as<float>() + static_cast<size_t>(outputs[row]) * size, size * sizeof(float));
  }
  return Layer(uploaded, kv);
}

Status EagleHead::Layer(const DeviceBatch& batch, const PagedKvView& kv) {
  AISP_RETURN_IF_ERROR(Attend(batch, kv));
  AISP_RETURN_IF_ERROR(Mlp(batch.ragged.rows));
  return Output(batch);
}

Status EagleHead::Attend(const DeviceBatch& batch, const PagedKvView& kv) {
  const AttentionSpec& a = spec_.layer.layers.front().attention;
  const int32_t rows = batch.ragged.rows;
  const int64_t size = spec_.layer.hidden;
  const float epsilon = spec_.layer.norm_epsilon;
  EmbeddingParams embedding;
  embedding.table = embedding_;
  embedding.tokens = batch.tokens;
  embedding.rows = rows;
  embedding.hidden = embedded_;
  AISP_RETURN_IF_ERROR(ops_.Embedding(embedding, *stream_));
  AISP_RETURN_IF_ERROR(ops_.RmsNorm(
      {embedded_, nullptr, input_norm_.view, Columns(both_, 0, size), rows, epsilon}, *stream_));
  AISP_RETURN_IF_ERROR(ops_.RmsNorm(
      {hidden_, nullptr, hidden_norm_.view, Columns(both_, size, size), rows, epsilon}, *stream_));
  const int64_t q = int64_t{a.num_heads} * a.head_dim;
  TensorView qkv = TensorView::Dense(wide_.data, DType::kF32, {wide_.rows(), qkv_->out_features()});
  const TensorView mixed = TensorView::Dense(mixed_.data, mixed_.dtype, {mixed_.rows(), q});
  AISP_RETURN_IF_ERROR(ops_.Linear({qkv_.get(), both_, qkv, rows}, *stream_));
  AISP_RETURN_IF_ERROR(
      ops_.RopeAppend({qkv, rope_, {}, {}, epsilon, a.num_heads, batch.ragged, kv}, *stream_));
  AISP_RETURN_IF_ERROR(ops_.PagedAttention(
      {qkv, a.head_dim, a.head_dim, a.num_heads, a.scale, a.window, batch.ragged, kv, mixed},
      *stream_));
  return ops_.Linear({output_.get(), mixed, hidden_, rows}, *stream_);
}

Status EagleHead::Mlp(int32_t rows) {
  const int64_t inner = spec_.layer.layers.front().mlp.intermediate;
  const TensorView gate_up = TensorView::Dense(wide_.data, DType::kF32, {wide_.rows(), 2 * inner});
  const TensorView mixed = TensorView::Dense(mixed_.data, mixed_.dtype, {mixed_.rows(), inner});
  AISP_RETURN_IF_ERROR(ops_.RmsNorm(
      {hidden_, nullptr, post_norm_.view, normed_, rows, spec_.layer.norm_epsilon}, *stream_));
  AISP_RETURN_IF_ERROR(ops_.Linear({gate_up_.get(), normed_, gate_up, rows}, *stream_));
  AISP_RETURN_IF_ERROR(ops_.SiluMul({gate_up, mixed, rows}, *stream_));
  return ops_.Linear({down_.get(), mixed, hidden_, rows}, *stream_);
}

// What is drawn from is kept: the rows of the next step go on with it.
Status EagleHead::Output(const DeviceBatch& batch) {
  const auto size = static_cast<size_t>(spec_.layer.hidden);
  for (int32_t i = 0; i < batch.num_logit_rows; ++i) {
    const int32_t row = batch.logit_rows != nullptr ? batch.logit_rows[i] : i;
    std::memcpy(kept_.as<float>() + static_cast<size_t>(i) * size,
                hidden_.as<float>() + static_cast<size_t>(row) * size, size * sizeof(float));
  }
  if (batch.num_logit_rows == 0) return {};
  AISP_RETURN_IF_ERROR(ops_.RmsNorm({kept_, nullptr, final_norm_.view, head_input_,
                                     batch.num_logit_rows, spec_.layer.norm_epsilon},
                                    *stream_));
  return ops_.Linear({head_.get(), head_input_, logits_, batch.num_logit_rows}, *stream_);
}

}  // namespace aisp
