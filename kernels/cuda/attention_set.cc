#include "kernels/cuda/attention_set.h"

#include <algorithm>

namespace aisp::cuda {

Result<AttentionSet::Instance*> AttentionSet::For(const AttentionParams& p, int32_t decode_tokens,
                                                  int32_t split_tokens, cudaStream_t stream) {
  const Shape shape{p.num_heads, p.kv.num_kv_heads, p.kv.head_dim, p.kv.block_tokens,
                    p.window,    decode_tokens,     split_tokens,  p.scale,
                    p.kv.dtype,  p.q.dtype,         p.out.dtype};
  const auto found = instances_.find(shape);
  if (found != instances_.end()) return &found->second;
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
  config.max_decode_tokens = decode_tokens;
  config.split_tokens = split_tokens;
  Instance instance;
  AISP_ASSIGN_OR_RETURN(instance.attention, Attention::Create(config));
  const size_t bytes = std::max<size_t>(instance.attention->workspace_bytes(), 256);
  AISP_ASSIGN_OR_RETURN(instance.workspace, device_.Allocate(bytes, MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(instance.attention->ZeroWorkspace(instance.workspace.data(), stream));
  return &instances_.emplace(shape, std::move(instance)).first->second;
}

std::string AttentionSet::Describe() const {
  std::string text;
  for (const auto& [shape, instance] : instances_) {
    if (!text.empty()) text += "; ";
    text += instance.attention->Describe();
  }
  return text;
}

}  // namespace aisp::cuda
