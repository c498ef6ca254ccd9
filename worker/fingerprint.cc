#include "worker/fingerprint.h"

#include <fmt/format.h>

#include "kernels/device/dtype.h"

namespace aisp {
namespace {

template <typename T>
Status Same(const char* field, const T& own, const T& peer) {
  if (own == peer) return {};
  return FailedPrecondition(
      fmt::format("{} differs: this worker has \"{}\", its peer has \"{}\"; start both with the "
                  "same model, version and "
                  "KV settings",
                  field, own, peer));
}

}  // namespace

Status MatchFingerprints(const v1::Fingerprint& own, const v1::Fingerprint& peer) {
  AISP_RETURN_IF_ERROR(Same("protocol_version", own.protocol_version(), peer.protocol_version()));
  AISP_RETURN_IF_ERROR(Same("model_name", own.model_name(), peer.model_name()));
  AISP_RETURN_IF_ERROR(Same("weights_digest", own.weights_digest(), peer.weights_digest()));
  AISP_RETURN_IF_ERROR(Same("tokenizer_digest", own.tokenizer_digest(), peer.tokenizer_digest()));
  AISP_RETURN_IF_ERROR(Same("template_digest", own.template_digest(), peer.template_digest()));
  const v1::KvLayoutDesc& a = own.kv_layout();
  const v1::KvLayoutDesc& b = peer.kv_layout();
  AISP_RETURN_IF_ERROR(Same("kv_layout.num_layers", a.num_layers(), b.num_layers()));
  AISP_RETURN_IF_ERROR(Same("kv_layout.num_kv_heads", a.num_kv_heads(), b.num_kv_heads()));
  AISP_RETURN_IF_ERROR(Same("kv_layout.head_dim", a.head_dim(), b.head_dim()));
  AISP_RETURN_IF_ERROR(Same("kv_layout.block_tokens", a.block_tokens(), b.block_tokens()));
  AISP_RETURN_IF_ERROR(Same("kv_layout.dtype", a.dtype(), b.dtype()));
  return {};
}

v1::KvLayoutDesc DescribeLayout(const KvLayout& layout) {
  v1::KvLayoutDesc desc;
  desc.set_num_layers(static_cast<uint32_t>(layout.num_layers));
  desc.set_num_kv_heads(static_cast<uint32_t>(layout.num_kv_heads));
  desc.set_head_dim(static_cast<uint32_t>(layout.head_dim));
  desc.set_block_tokens(static_cast<uint32_t>(layout.block_tokens));
  desc.set_dtype(std::string(DTypeName(layout.dtype)));
  desc.set_num_blocks(static_cast<uint32_t>(layout.num_blocks));
  return desc;
}

KvLayout PeerLayout(const KvLayout& own, const v1::KvLayoutDesc& peer) {
  KvLayout layout = own;
  layout.num_blocks = static_cast<int32_t>(peer.num_blocks());
  return layout;
}

}  // namespace aisp
