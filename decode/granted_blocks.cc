#include "decode/granted_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kvcache/block_check.h"
#include "kvcache/kv_conversion.h"

namespace aisp {

void AllowWrites(const KvLayout& layout, std::span<const BlockId> blocks, Epoch epoch,
                 KvTransport* transport) {
  if (!transport->capabilities().owner_copies) return;  // nobody would look
  std::vector<BlockCopy> allowed;
  allowed.reserve(blocks.size() * static_cast<size_t>(layout.num_layers));
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (const BlockId block : blocks) {
      const uint64_t offset = layout.Offset(layer, block);
      allowed.push_back(
          {.src_offset = offset, .dst_offset = offset, .bytes = layout.LayerBlockBytes()});
    }
  }
  transport->AllowEpoch(epoch, allowed);
}

Status CheckArrived(const KvLayout& layout, const std::byte* pool, const Arrived& arrived,
                    const google::protobuf::RepeatedField<uint64_t>& checks) {
  const std::span<const BlockId> blocks = arrived.blocks;
  if (static_cast<size_t>(checks.size()) != blocks.size()) {
    return DataLoss(
        fmt::format("data loss: {} checks came for {} blocks", checks.size(), blocks.size()));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int32_t left = arrived.tokens - static_cast<int32_t>(i) * layout.block_tokens;
    const uint64_t check = arrived.converted ? RowsCheck(layout, pool, blocks[i],
                                                         std::clamp(left, 0, layout.block_tokens))
                                             : BlockCheck(layout, pool, blocks[i]);
    if (check == checks[static_cast<int>(i)]) continue;
    return DataLoss(
        fmt::format("data loss: block {} of {} is not what was written", i, blocks.size()));
  }
  return {};
}

}  // namespace aisp
