#include "prefill/push_plan.h"

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

int32_t PushableBlocks(const KvLayout& layout, int32_t ready_tokens, int32_t end_tokens) {
  if (ready_tokens >= end_tokens) return layout.BlocksFor(end_tokens);
  return ready_tokens / layout.block_tokens;
}

}  // namespace aisp
