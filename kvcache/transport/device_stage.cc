#include "kvcache/transport/device_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "kvcache/transport/tcp_wire.h"

namespace aisp {
namespace {

constexpr uint64_t kLeastBytes = 4 << 20;

}  // namespace

void DeviceStage::Clear() {
  pieces_.clear();
  bytes_ = 0;
}

void DeviceStage::Add(uint64_t pool_offset, uint64_t bytes) {
  pieces_.push_back({pool_offset, bytes_, bytes});
  bytes_ += bytes;
}

Status DeviceStage::Reserve() {
  if (bytes_ <= memory_.bytes()) return {};
  if (bytes_ > kMostBytes) {
    return ResourceExhausted(
        fmt::format("a write of {} bytes to or from a GPU; at most {} pass through host memory at "
                    "once, split it",
                    bytes_, kMostBytes));
  }
  const uint64_t wanted = std::bit_ceil(std::max(bytes_, kLeastBytes));
  memory_ = {};
  AISP_ASSIGN_OR_RETURN(memory_, pool_.device->Allocate(wanted, MemoryKind::kHost));
  return {};
}

uint64_t DeviceStage::Checksum() const {
  uint64_t sum = 0;
  for (const CopyRange& piece : pieces_)
    sum = FoldChecksum(sum, {data() + piece.target_offset, piece.bytes});
  return sum;
}

Status DeviceStage::FromPool() { return Copy(data(), pool_.base, /*to_pool=*/false); }
Status DeviceStage::ToPool() { return Copy(pool_.base, data(), /*to_pool=*/true); }

Status DeviceStage::Copy(void* target, const void* source, bool to_pool) {
  if (stream_ == nullptr) {
    AISP_ASSIGN_OR_RETURN(stream_, pool_.device->CreateStream());
  }
  std::vector<CopyRange> ranges;
  ranges.reserve(pieces_.size());
  for (const CopyRange& piece : pieces_) {
    CopyRange range = piece;
    if (to_pool) std::swap(range.source_offset, range.target_offset);
    if (range.bytes > 0) ranges.push_back(range);
  }
  AISP_RETURN_IF_ERROR(pool_.device->CopyRanges(target, source, ranges, *stream_));
  return pool_.device->Synchronize(*stream_);
}

}  // namespace aisp
