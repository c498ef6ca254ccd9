// Files of a disk tier: whatever a file holds, the index built from it is consistent, and a block
// is read only if it matches its header.
#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "common/check.h"
#include "common/hash.h"
#include "kvcache/tiers/disk_store.h"
#include "kvcache/tiers/tier_index.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

constexpr size_t kPayload = 64;
constexpr int32_t kSlots = 3;
constexpr int32_t kPositions = 4096;

// Offsets in a header, as DiskStore describes it.
constexpr size_t kHeader = 240;
constexpr size_t kPayloadHashAt = 80, kHashAt = 224;
struct Field {
  size_t begin, end;
};
// One bit each of a slot's first byte: which hashes to correct, so that they do not reject every
// input.
constexpr Field kRight[] = {{0, 12}, {16, 32}, {64, 72}};
constexpr unsigned kPayloadHashRight = 8, kHashRight = 16;

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

const DiskStore::Shape kShape{{1, 2}, kPayload, kPositions};

// The header of a valid block.
std::vector<std::byte> HonestHeader() {
  DiskStore store(kShape, std::make_unique<InputFile>(""), 1);
  std::vector<std::byte> slot(store.slot_bytes());
  AISP_CHECK(store.Write({0, {5, 6}, {}, 0}, slot));
  slot.resize(kHeader);
  return slot;
}

void PutHash(std::span<std::byte> target, std::span<const std::byte> of) {
  const Hash128 hash = HashBytes(of);
  std::memcpy(target.data(), &hash, sizeof(hash));
}

// `part`: a byte, the header, the payload; missing bytes are zero.
void FillSlot(std::string_view part, std::span<std::byte> slot) {
  static const std::vector<std::byte>& honest = *new std::vector<std::byte>(HonestHeader());
  const unsigned right = part.empty() ? 0 : static_cast<unsigned char>(part[0]);
  const auto take = [&](size_t from, std::span<std::byte> into) {
    if (from < part.size())
      std::memcpy(into.data(), part.data() + from, std::min(into.size(), part.size() - from));
  };
  const std::span<std::byte> header = slot.first(kHeader);
  const std::span<std::byte> payload = slot.subspan(DiskStore::kHeaderBytes, kPayload);
  take(1, header);
  take(1 + kHeader, payload);
  for (size_t i = 0; i < std::size(kRight); ++i) {
    const auto [begin, end] = kRight[i];
    if ((right >> i & 1) != 0)
      std::memcpy(header.data() + begin, honest.data() + begin, end - begin);
  }
  if ((right & kPayloadHashRight) != 0) PutHash(header.subspan(kPayloadHashAt), payload);
  if ((right & kHashRight) != 0) PutHash(header.subspan(kHashAt), header.first(kHashAt));
}

}  // namespace

void FuzzOne(std::string_view input) {
  // An input is the used part of each slot, in order, without the padding.
  constexpr size_t kUsed = 1 + kHeader + kPayload;
  std::vector<std::byte> file(DiskStore::SlotBytes(kPayload) * kSlots);
  for (size_t slot = 0; slot * kUsed < input.size() && slot < kSlots; ++slot) {
    FillSlot(input.substr(slot * kUsed, kUsed),
             std::span(file).subspan(slot * DiskStore::SlotBytes(kPayload),
                                     DiskStore::SlotBytes(kPayload)));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  DiskStore store(kShape, std::make_unique<InputFile>(text), kSlots);
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
    Hash128 key = at == found.end() ? Hash128{7, 7} : at->key;
    while (at == found.end() && keys.contains(key)) ++key.lo;
    const Status read = store.Read(slot, key, buffer);
    AISP_CHECK(read || read.error().code == Code::kDataLoss);
    // A slot that the scan skipped may hold the key of another slot, but not one of its own.
    AISP_CHECK(!read || at != found.end());
    AISP_CHECK(store.Write({slot, {9, static_cast<uint64_t>(slot)}, {}, 0}, buffer));
    AISP_CHECK(store.Read(slot, {9, static_cast<uint64_t>(slot)}, buffer));
  }
}

}  // namespace aisp
