#include "kvcache/block_check.h"

#include "common/hash.h"

namespace aisp {

uint64_t LayerBlockCheck(const KvLayout& layout, const std::byte* pool, int32_t layer,
                         BlockId block) {
  // Seeded by the layer, so that swapped layers are detected.
  return Hash64({pool + layout.Offset(layer, block), layout.LayerBlockBytes()},
                static_cast<uint64_t>(layer) + 1);
}

uint64_t BlockCheck(const KvLayout& layout, const std::byte* pool, BlockId block) {
  uint64_t check = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer)
    check ^= LayerBlockCheck(layout, pool, layer, block);
  return check;
}

}  // namespace aisp
