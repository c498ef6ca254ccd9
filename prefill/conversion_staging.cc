#include "prefill/conversion_staging.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "common/check.h"

namespace aisp {
namespace {

// Layers of blocks in progress at a time, if the pool has room.
constexpr int32_t kWantedSlots = 128;
constexpr int32_t kPoolShare = 8;   // takes at most 1/8 of the pool
constexpr int32_t kLeastShare = 2;  // or 1/2 if that is too little for one block

}  // namespace

int32_t ConversionStaging::SlotsFor(const KvLayout& to) const {
  const size_t slot = blocks_->layout().LayerBlockBytes();
  return static_cast<int32_t>((to.LayerBlockBytes() + slot - 1) / slot);
}

int32_t ConversionStaging::LeastBlocks(const KvConversion& conversion) const {
  const int32_t layers = blocks_->layout().num_layers;
  return (SlotsFor(conversion.to()) + layers - 1) / layers;
}

Status ConversionStaging::Check(const KvConversion& conversion) const {
  if (pool_ == nullptr) {
    return FailedPrecondition(fmt::format(
        "KV is not converted from {}: it is in the memory of a device; give both workers the same "
        "--kv-dtype",
        conversion.ToString()));
  }
  const int32_t least = LeastBlocks(conversion);
  if (least <= blocks_->layout().num_blocks / kLeastShare) return {};
  return FailedPrecondition(
      fmt::format("KV is not converted from {}: it takes {} blocks of a pool of {}; give this "
                  "worker more memory for KV",
                  conversion.ToString(), least, blocks_->layout().num_blocks));
}

Status ConversionStaging::Open(const KvConversion& conversion, int32_t prompt_blocks) {
  AISP_RETURN_IF_ERROR(Check(conversion));
  const KvLayout& own = blocks_->layout();
  const int32_t least = LeastBlocks(conversion);
  const int32_t most = own.num_blocks - prompt_blocks;
  if (std::max(least, blocks()) > most) {
    return ResourceExhausted(
        fmt::format("KV is not converted from {}: beside a prompt of {} blocks, a pool of {} has "
                    "no room for that",
                    conversion.ToString(), prompt_blocks, own.num_blocks));
  }
  const int32_t liked =
      (std::max(2 * SlotsFor(conversion.to()), kWantedSlots) + own.num_layers - 1) / own.num_layers;
  const int32_t wanted =
      std::min(most, std::max(least, std::min(liked, own.num_blocks / kPoolShare)));
  const int32_t missing = wanted - blocks();
  if (missing > 0) {
    // Takes less if that is all the pool has and it suffices.
    const int32_t enough = std::max(0, least - blocks());
    AISP_ASSIGN_OR_RETURN(
        Reservation more,
        blocks_->Reserve(std::max(enough, std::min(missing, blocks_->Available() / kLeastShare))));
    for (const BlockId block : more.blocks()) {
      reserved_.push_back(block);
      for (int32_t layer = 0; layer < own.num_layers; ++layer)
        free_.push_back(own.Offset(layer, block));
    }
    reservations_.push_back(std::move(more));
  }
  ++pushes_;
  most_blocks_ = std::max(most_blocks_, blocks());
  return {};
}

void ConversionStaging::Close() {
  AISP_CHECK(pushes_ > 0);
  if (--pushes_ > 0) return;
  AISP_CHECK(static_cast<int32_t>(free_.size()) == slots());
  free_.clear();
  reserved_.clear();
  reservations_.clear();
}

std::vector<uint64_t> ConversionStaging::Take(int32_t n) {
  const auto count = static_cast<size_t>(n);
  if (free_.size() < count) return {};
  std::vector<uint64_t> taken(free_.end() - static_cast<ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

void ConversionStaging::GiveBack(std::span<const uint64_t> slots) {
  free_.insert(free_.end(), slots.begin(), slots.end());
}

void ConversionStaging::Fill(std::span<const uint64_t> slots, std::span<const std::byte> made,
                             uint64_t dst_offset, std::vector<BlockCopy>* copies) {
  const size_t slot = blocks_->layout().LayerBlockBytes();
  for (size_t done = 0; done < made.size(); done += slot) {
    const size_t bytes = std::min(slot, made.size() - done);
    const uint64_t at = slots[done / slot];
    std::memcpy(pool_ + at, made.data() + done, bytes);
    copies->push_back({.src_offset = at, .dst_offset = dst_offset + done, .bytes = bytes});
  }
}

}  // namespace aisp
