#include "kvcache/tiers/disk_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

#include "common/check.h"

namespace aisp {
namespace {

constexpr std::array<char, 8> kMagic = {'a', 'i', 's', 'p', 'k', 'v', '\n', '\0'};
constexpr uint32_t kVersion = 2;

}  // namespace

struct DiskStore::Header {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t position = 0;
  Hash128 fingerprint;
  Hash128 key;
  Hash128 parent;
  uint64_t payload_bytes = 0;
  uint64_t sequence = 0;
  Hash128 payload_hash;
  BlockUnits units;
  Hash128 hash;  // of all fields before it

  Hash128 OwnHash() const {
    static_assert(sizeof(Header) == 224 + 16 && offsetof(Header, hash) == 224);
    return HashBytes(std::as_bytes(std::span(this, 1)).first(offsetof(Header, hash)));
  }
};

DiskStore::DiskStore(const Shape& shape, std::unique_ptr<BlockFile> file, int32_t slots)
    : shape_(shape),
      slot_bytes_(SlotBytes(shape.payload_bytes)),
      file_(std::move(file)),
      slots_(slots) {
  AISP_CHECK(slots > 0 && shape.payload_bytes > 0);
}

bool DiskStore::Good(const Header& h) const {
  return h.magic == kMagic && h.version == kVersion && h.hash == h.OwnHash() &&
         h.fingerprint == shape_.fingerprint && h.payload_bytes == shape_.payload_bytes &&
         h.position < static_cast<uint32_t>(shape_.position_limit);
}

Status DiskStore::ReadAll(uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    AISP_ASSIGN_OR_RETURN(const size_t n, file_->ReadAt(offset, into));
    if (n == 0) return DataLoss(fmt::format("the file ends at {}", offset));
    into = into.subspan(n);
    offset += n;
  }
  return {};
}

std::vector<TierEntry> DiskStore::Scan(std::span<std::byte> scratch) {
  struct Found {
    TierEntry entry;
    uint64_t sequence = 0;
  };
  std::vector<Found> found;
  for (int32_t slot = 0; slot < slots_; ++slot) {
    const uint64_t offset = static_cast<uint64_t>(slot) * slot_bytes_;
    if (!ReadAll(offset, scratch.first(kHeaderBytes))) continue;
    Header h;
    std::memcpy(&h, scratch.data(), sizeof(h));
    if (!Good(h)) continue;
    found.push_back(
        {{slot, h.key, h.parent, static_cast<int32_t>(h.position), h.units}, h.sequence});
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.sequence < b.sequence; });
  if (!found.empty()) next_sequence_ = found.back().sequence + 1;
  std::unordered_map<Hash128, int32_t> newest;
  for (const Found& f : found) newest[f.entry.key] = f.entry.slot;
  std::vector<TierEntry> entries;
  for (const Found& f : found) {
    if (newest[f.entry.key] == f.entry.slot) entries.push_back(f.entry);
  }
  return entries;
}

Status DiskStore::Write(const TierEntry& entry, std::span<std::byte> slot_buffer) {
  AISP_CHECK(slot_buffer.size() == slot_bytes_ && entry.slot >= 0 && entry.slot < slots_);
  Header h;
  h.magic = kMagic;
  h.version = kVersion;
  h.position = static_cast<uint32_t>(entry.position);
  h.fingerprint = shape_.fingerprint;
  h.key = entry.key;
  h.parent = entry.parent;
  h.payload_bytes = shape_.payload_bytes;
  h.sequence = next_sequence_++;
  h.units = entry.units;
  h.payload_hash = HashBytes(slot_buffer.subspan(kHeaderBytes, shape_.payload_bytes));
  h.hash = h.OwnHash();
  std::ranges::fill(slot_buffer.first(kHeaderBytes), std::byte{0});
  std::memcpy(slot_buffer.data(), &h, sizeof(h));
  uint64_t offset = static_cast<uint64_t>(entry.slot) * slot_bytes_;
  std::span<const std::byte> left = slot_buffer;
  while (!left.empty()) {
    AISP_ASSIGN_OR_RETURN(const size_t n, file_->WriteAt(offset, left));
    if (n == 0) return Unavailable(fmt::format("nothing was written at {}", offset));
    left = left.subspan(n);
    offset += n;
  }
  return {};
}

Status DiskStore::Read(int32_t slot, const Hash128& key, std::span<std::byte> slot_buffer) {
  AISP_CHECK(slot_buffer.size() == slot_bytes_ && slot >= 0 && slot < slots_);
  AISP_RETURN_IF_ERROR(ReadAll(static_cast<uint64_t>(slot) * slot_bytes_, slot_buffer));
  Header h;
  std::memcpy(&h, slot_buffer.data(), sizeof(h));
  if (!Good(h)) return DataLoss(fmt::format("the header of slot {} is damaged", slot));
  if (h.key != key) return DataLoss(fmt::format("slot {} holds another block", slot));
  if (h.payload_hash != HashBytes(slot_buffer.subspan(kHeaderBytes, shape_.payload_bytes)))
    return DataLoss(fmt::format("the block in slot {} is damaged", slot));
  return {};
}

}  // namespace aisp
