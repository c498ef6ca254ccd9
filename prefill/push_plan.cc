#include "prefill/push_plan.h"

#include <algorithm>

#include "common/check.h"

namespace aisp {

std::vector<BlockCopy> PlanLayerCopies(const KvLayout& src_layout, const KvLayout& dst_layout,
                                       int32_t layer, std::span<const BlockId> src,
                                       std::span<const BlockId> dst) {
  AISP_CHECK(src.size() == dst.size());
  const uint64_t bytes = src_layout.LayerBlockBytes();
  std::vector<BlockCopy> copies;
  for (size_t i = 0; i < src.size(); ++i) {
    const BlockCopy next{.src_offset = src_layout.Offset(layer, src[i]),
                         .dst_offset = dst_layout.Offset(layer, dst[i]),
                         .bytes = bytes};
    if (!copies.empty() && copies.back().src_offset + copies.back().bytes == next.src_offset &&
        copies.back().dst_offset + copies.back().bytes == next.dst_offset) {
      copies.back().bytes += bytes;
    } else {
      copies.push_back(next);
    }
  }
  return copies;
}

std::vector<BlockCopy> PlanRowCopies(const KvLayout& src_layout, const KvLayout& dst_layout,
                                     int32_t layer, int32_t begin, int32_t end,
                                     std::span<const BlockId> src, std::span<const BlockId> dst,
                                     int32_t dst_first) {
  AISP_CHECK(src_layout.dtype == dst_layout.dtype);
  const uint64_t row = static_cast<uint64_t>(src_layout.head_dim) * DTypeBytes(src_layout.dtype);
  const int32_t parts = 2 * src_layout.num_kv_heads;
  const auto at = [row](const KvLayout& layout, int32_t layer_index, BlockId block, int32_t part,
                        int32_t slot) {
    return layout.Offset(layer_index, block) +
           static_cast<uint64_t>(part * layout.block_tokens + slot) * row;
  };
  std::vector<BlockCopy> copies;
  for (int32_t token = begin; token < end;) {
    const int32_t of_dst = token - dst_first;
    const int32_t src_left = src_layout.block_tokens - token % src_layout.block_tokens;
    const int32_t dst_left = dst_layout.block_tokens - of_dst % dst_layout.block_tokens;
    const int32_t rows = std::min({src_left, dst_left, end - token});
    const BlockId from = src[static_cast<size_t>(token / src_layout.block_tokens)];
    const BlockId to = dst[static_cast<size_t>(of_dst / dst_layout.block_tokens)];
    for (int32_t part = 0; part < parts; ++part) {
      copies.push_back(
          {.src_offset = at(src_layout, layer, from, part, token % src_layout.block_tokens),
           .dst_offset = at(dst_layout, layer, to, part, of_dst % dst_layout.block_tokens),
           .bytes = static_cast<uint64_t>(rows) * row});
    }
    token += rows;
  }
  return copies;
}

int32_t PushableBlocks(const KvLayout& layout, int32_t ready_tokens, int32_t end_tokens) {
  if (ready_tokens >= end_tokens) return layout.BlocksFor(end_tokens);
  return ready_tokens / layout.block_tokens;
}

}  // namespace aisp
