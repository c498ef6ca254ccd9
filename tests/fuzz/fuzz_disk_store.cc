// Files of a disk tier: whatever a file holds, the index made of it is in order and a block is read
// only where it is what its header says.
#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "common/check.h"
#include "kvcache/tiers/disk_store.h"
#include "kvcache/tiers/tier_index.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

constexpr size_t kPayload = 64;
constexpr int32_t kSlots = 3;
constexpr int32_t kPositions = 4096;

class InputFile final : public BlockFile {
 public:
  explicit InputFile(std::string_view input) : bytes_(input.begin(), input.end()) {}
  Result<size_t> ReadAt(uint64_t offset, std::span<std::byte> into) override {
    if (offset >= bytes_.size()) return size_t{0};
    const size_t n = std::min(into.size(), bytes_.size() - offset);
    std::memcpy(into.data(), bytes_.data() + offset, n);
    return n;
  }
  Result<size_t> WriteAt(uint64_t offset, std::span<const std::byte> from) override {
    if (offset + from.size() > bytes_.size()) bytes_.resize(offset + from.size());
    std::memcpy(bytes_.data() + offset, from.data(), from.size());
    return from.size();
  }

 private:
  std::vector<char> bytes_;
};

}  // namespace

void FuzzOne(std::string_view input) {
  // An input is the used part of each slot, one after the other: the padding is left out.
  constexpr size_t kUsed = 112 + kPayload;
  std::vector<char> file(DiskStore::SlotBytes(kPayload) * kSlots);
  for (size_t slot = 0; slot * kUsed < input.size() && slot < kSlots; ++slot) {
    const std::string_view part = input.substr(slot * kUsed, kUsed);
    char* at = file.data() + slot * DiskStore::SlotBytes(kPayload);
    std::memcpy(at, part.data(), std::min<size_t>(part.size(), 112));
    if (part.size() > 112)
      std::memcpy(at + DiskStore::kHeaderBytes, part.data() + 112, part.size() - 112);
  }
  DiskStore store({{1, 2}, kPayload, kPositions},
                  std::make_unique<InputFile>(std::string_view(file.data(), file.size())), kSlots);
  std::vector<std::byte> buffer(store.slot_bytes());
  const std::vector<TierEntry> found = store.Scan(std::span(buffer).first(DiskStore::kHeaderBytes));
  std::set<Hash128> keys;
  TierIndex index(kSlots);
  for (const TierEntry& entry : found) {
    AISP_CHECK(entry.slot >= 0 && entry.slot < kSlots);
    AISP_CHECK(entry.position >= 0 && entry.position < kPositions);
    AISP_CHECK(keys.insert(entry.key).second);
    AISP_CHECK(index.Restore(entry.slot, entry.key, entry.parent, 1 + entry.position));
    index.CheckInvariants();
  }
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    const auto at = std::ranges::find(found, slot, &TierEntry::slot);
    const Hash128 key = at == found.end() ? Hash128{7, 7} : at->key;
    const Status read = store.Read(slot, key, buffer);
    AISP_CHECK(read || read.error().code == Code::kDataLoss);
    // A slot that the scan left out may hold the key that another one has, but not one of its own.
    AISP_CHECK(!read || at != found.end());
    AISP_CHECK(store.Write({slot, {9, static_cast<uint64_t>(slot)}, {}, 0}, buffer));
    AISP_CHECK(store.Read(slot, {9, static_cast<uint64_t>(slot)}, buffer));
  }
}

}  // namespace aisp
