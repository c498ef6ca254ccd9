#include "kernels/cuda/attention_set.h"

#include <algorithm>

#include "kernels/cuda/rows.h"

namespace aisp::cuda {

StepKind AttentionSet::KindOf(const RaggedBatch& batch) {
  if (batch.longest_rows <= 1) return StepKind::kDecode;
  const bool decodes = std::any_of(batch.host_sequences.begin(), batch.host_sequences.end(),
                                   [](const RowSpan& s) { return s.num_rows == 1; });
  return decodes ? StepKind::kMixed : StepKind::kPrefill;
}

Status AttentionSet::BeginStep(const RaggedBatch& batch, cudaStream_t) {
  batch_ = {batch.sequences, batch.block_tables, batch.num_sequences};
  kind_ = KindOf(batch);
  for (auto& [shape, instance] : instances_) instance.planned = instance.decode_planned = false;
  return {};
}

Result<AttentionSet::Instance> AttentionSet::Make(const AttentionParams& p, cudaStream_t stream) {
  Instance instance;
  if (!kernels_) {
    if (p.q.dtype == DType::kF32 && p.kv.dtype == DType::kF32) return instance;
    return Unimplemented(device_.info().name +
                         " has no kernels for attention over KV of less than f32; small models run "
                         "here with --dtype f32 and --kv-dtype f32, others with --device cpu");
  }
  AttentionConfig config;
  config.num_heads = p.num_heads;
  config.num_kv_heads = p.kv.num_kv_heads;
  config.head_dim = p.kv.head_dim;
  config.block_tokens = p.kv.block_tokens;
  config.kv = p.kv.dtype;
  config.q = p.q.dtype;
  config.out = p.out.dtype;
  config.scale = p.scale;
  config.window = p.window;
  config.max_sequences = max_sequences_;
  config.max_rows = max_rows_;
  if (p.q_head_dim != p.kv.head_dim || p.v_head_dim != p.kv.head_dim) return instance;
  auto attention = Attention::Create(config);
  if (!attention && attention.error().code == Code::kUnimplemented) return instance;
  if (!attention) return tl::unexpected(std::move(attention).error());
  const size_t bytes = std::max<size_t>((*attention)->workspace_bytes(), 256);
  AISP_ASSIGN_OR_RETURN(instance.workspace, device_.Allocate(bytes, MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR((*attention)->ZeroWorkspace(instance.workspace.data(), stream));
  instance.attention = std::move(*attention);
  return instance;
}

Result<AttentionSet::Instance*> AttentionSet::InstanceFor(const AttentionParams& p,
                                                          cudaStream_t stream) {
  const Shape shape{p.num_heads, p.kv.num_kv_heads, p.kv.head_dim, p.kv.block_tokens, p.window,
                    p.scale,     p.kv.dtype,        p.q.dtype,     p.out.dtype};
  const auto found = instances_.find(shape);
  if (found != instances_.end()) return &found->second;
  AISP_ASSIGN_OR_RETURN(Instance made, Make(p, stream));
  return &instances_.emplace(shape, std::move(made)).first->second;
}

Status AttentionSet::Run(const AttentionParams& p, cudaStream_t stream) {
  AISP_ASSIGN_OR_RETURN(Instance * instance, InstanceFor(p, stream));
  if (instance->attention == nullptr) return LaunchPlainAttention(p, stream);
  AISP_ASSIGN_OR_RETURN(const KvLayer* layer, LayerOf(*instance, p.kv));
  if (!instance->planned) {
    AISP_RETURN_IF_ERROR(
        instance->attention->PlanStep(batch_, kind_, instance->workspace.data(), stream));
    instance->planned = true;
  }
  AttentionCall call;
  call.q = p.q.data;
  call.q_row_stride = p.q.strides[0];
  call.out = p.out.data;
  call.out_row_stride = p.out.strides[0];
  call.layer = layer;
  Status done = instance->attention->Run(batch_, kind_, call, instance->workspace.data(), stream);
  // A head size that only decoding has a kernel for.
  if (!done && done.error().code == Code::kUnimplemented) return LaunchPlainAttention(p, stream);
  return done;
}

Status AttentionSet::RunDecode(const RopeAppendParams& r, const AttentionParams& p,
                               const TokenWords& words, cudaStream_t stream) {
  AISP_ASSIGN_OR_RETURN(Instance * instance, InstanceFor(p, stream));
  if (instance->attention == nullptr) return Unimplemented("no attention kernels for this shape");
  AISP_ASSIGN_OR_RETURN(const KvLayer* layer, LayerOf(*instance, p.kv));
  const auto norm = [](const TensorView& v) {
    return v.data != nullptr ? v.as<const float>() : nullptr;
  };
  RopeAppendCall rope;
  rope.qkv = r.qkv.data;
  rope.qkv_type = r.qkv.dtype;
  rope.qkv_row_stride = r.qkv.strides[0];
  rope.cos_sin = r.cos_sin.as<const float>();
  rope.q_norm = norm(r.q_norm);
  rope.k_norm = norm(r.k_norm);
  rope.norm_epsilon = r.norm_epsilon;
  rope.rows = p.batch.rows;
  rope.num_heads = r.num_heads;
  rope.positions = p.batch.positions;
  rope.kv_slots = p.batch.kv_slots;
  AttentionCall call;
  call.out = p.out.data;
  call.out_row_stride = p.out.strides[0];
  call.layer = layer;
  call.words = words;
  const AttentionBatch batch{p.batch.sequences, p.batch.block_tables, p.batch.num_sequences};
  if (!instance->decode_planned) {
    AISP_ASSIGN_OR_RETURN(call.after_plan,
                          instance->attention->PlanDecode(batch, rope.positions, rope.rows,
                                                          instance->workspace.data(), stream));
    instance->decode_planned = true;
  }
  return instance->attention->RunDecode(batch, rope, call, instance->workspace.data(), stream);
}

Result<const KvLayer*> AttentionSet::LayerOf(Instance& instance, const PagedKvView& kv) {
  auto layer = instance.layers.find(kv.layer);
  if (layer == instance.layers.end()) {
    AISP_ASSIGN_OR_RETURN(const KvLayer made,
                          instance.attention->MakeLayer(kv.layer, kv.num_blocks));
    layer = instance.layers.emplace(kv.layer, made).first;
  }
  return &layer->second;
}

std::string AttentionSet::Describe() const {
  std::string text;
  for (const auto& [shape, instance] : instances_) {
    if (!text.empty()) text += "; ";
    text += instance.attention != nullptr ? instance.attention->Describe() : "plain attention";
  }
  return text;
}

}  // namespace aisp::cuda
