#include "worker/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

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

Result<KvLayout> PeerLayout(const v1::KvLayoutDesc& peer) {
  // Far beyond any model; keeps a block of one layer within 2^52 bytes.
  constexpr uint32_t kMost = 1 << 16;
  const std::optional<DType> dtype = ParseDType(peer.dtype());
  const auto sane = [](uint32_t value) { return value > 0 && value <= kMost; };
  if (!dtype || !sane(peer.num_layers()) || !sane(peer.num_kv_heads()) || !sane(peer.head_dim()) ||
      !sane(peer.block_tokens()) || peer.num_blocks() > INT32_MAX) {
    return InvalidArgument(fmt::format(
        "its KV pool is of {} layers, {} heads of {}, {} blocks of {} tokens, in \"{}\"",
        peer.num_layers(), peer.num_kv_heads(), peer.head_dim(), peer.num_blocks(),
        peer.block_tokens(), peer.dtype()));
  }
  KvLayout layout;
  layout.num_layers = static_cast<int32_t>(peer.num_layers());
  layout.num_kv_heads = static_cast<int32_t>(peer.num_kv_heads());
  layout.head_dim = static_cast<int32_t>(peer.head_dim());
  layout.block_tokens = static_cast<int32_t>(peer.block_tokens());
  layout.dtype = *dtype;
  layout.num_blocks = static_cast<int32_t>(peer.num_blocks());
  // Each value may be valid, but offsets are their product.
  uint64_t bytes = layout.LayerBlockBytes();
  if (__builtin_mul_overflow(bytes, uint64_t{peer.num_layers()}, &bytes) ||
      __builtin_mul_overflow(bytes, std::max(uint64_t{1}, uint64_t{peer.num_blocks()}), &bytes) ||
      bytes > INT64_MAX) {
    return InvalidArgument(fmt::format(
        "its KV pool of {} layers with {} blocks of {} bytes has more bytes than there are",
        peer.num_layers(), peer.num_blocks(), layout.LayerBlockBytes()));
  }
  return layout;
}

}  // namespace aisp
