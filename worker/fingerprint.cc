#include "worker/fingerprint.h"

#include "kernels/device/dtype.h"

namespace aisp {
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
