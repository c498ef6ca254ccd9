#include "kvcache/ucx/pinned_ring.h"

#include <utility>

namespace aisp::ucx {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

Status PinnedRing::Open() {
  if (memory_.bytes() > 0) return {};
  AISP_ASSIGN_OR_RETURN(stream_, pool_.device->CreateStream());
  AISP_ASSIGN_OR_RETURN(memory_, pool_.device->Allocate(kBytes, MemoryKind::kHost));
  return {};
}

std::optional<uint64_t> PinnedRing::PlaceFor(uint64_t bytes) const {
  if (rooms_.empty()) return bytes <= kBytes ? std::optional<uint64_t>(0) : std::nullopt;
  const uint64_t oldest = rooms_.front().at;
  const Room& newest = rooms_.back();
  const uint64_t end = (newest.at + newest.bytes + kAlignment - 1) / kAlignment * kAlignment;
  const bool wrapped = newest.at < oldest;
  if (end + bytes <= (wrapped ? oldest : kBytes)) return end;
  if (!wrapped && bytes <= oldest) return 0;
  return std::nullopt;
}

Result<std::optional<uint64_t>> PinnedRing::Take(uint64_t bytes) {
  AISP_RETURN_IF_ERROR(Open());
  const std::optional<uint64_t> at = PlaceFor(bytes);
  if (!at) return std::optional<uint64_t>();
  std::unique_ptr<Event> event;
  if (spare_.empty()) {
    AISP_ASSIGN_OR_RETURN(event, pool_.device->CreateEvent());
  } else {
    event = std::move(spare_.back());
    spare_.pop_back();
  }
  rooms_.push_back({*at, bytes, false, std::move(event)});
  return std::optional<uint64_t>(first_ + rooms_.size() - 1);
}

void PinnedRing::GiveBack(uint64_t room) {
  Get(room).free = true;
  for (; !rooms_.empty() && rooms_.front().free; ++first_) {
    spare_.push_back(std::move(rooms_.front().copied));
    rooms_.pop_front();
  }
}

std::byte* PinnedRing::data(uint64_t room) const {
  return static_cast<std::byte*>(memory_.data()) + Get(room).at;
}

Status PinnedRing::Copy(Room& room, void* target, const void* source) {
  AISP_RETURN_IF_ERROR(pool_.device->Copy(target, source, room.bytes, *stream_));
  return pool_.device->Record(*room.copied, *stream_);
}

Status PinnedRing::FromPool(uint64_t room, uint64_t offset) {
  return Copy(Get(room), data(room), pool_.base + offset);
}

Status PinnedRing::ToPool(uint64_t room, uint64_t offset) {
  return Copy(Get(room), pool_.base + offset, data(room));
}

Result<bool> PinnedRing::Copied(uint64_t room) const {
  return pool_.device->Query(*Get(room).copied);
}

}  // namespace aisp::ucx
