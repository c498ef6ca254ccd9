// A disk in memory with injected faults. For tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/tiers/block_file.h"

namespace aisp {

struct FaultyDisk {
  std::vector<std::byte> bytes;
  size_t longest = SIZE_MAX;        // most bytes of one call
  std::optional<Error> fail_reads;  // from now on
  std::optional<Error> fail_writes;
  std::optional<size_t> room;           // bytes until the disk is full
  std::optional<size_t> power_is_lost;  // after so many more bytes are written
};

class FaultyFile final : public BlockFile {
 public:
  explicit FaultyFile(FaultyDisk* disk) : disk_(disk) {}
  Result<size_t> ReadAt(uint64_t offset, std::span<std::byte> into) override {
    if (disk_->fail_reads) return tl::unexpected(*disk_->fail_reads);
    if (offset >= disk_->bytes.size()) return size_t{0};
    const size_t n = std::min({into.size(), disk_->bytes.size() - offset, disk_->longest});
    std::memcpy(into.data(), disk_->bytes.data() + offset, n);
    return n;
  }
  Result<size_t> WriteAt(uint64_t offset, std::span<const std::byte> from) override {
    if (disk_->fail_writes) return tl::unexpected(*disk_->fail_writes);
    if (disk_->room == size_t{0}) return Fail(Code::kResourceExhausted, "no space left on device");
    const size_t n = std::min({from.size(), disk_->longest, disk_->room.value_or(SIZE_MAX)});
    if (disk_->room) *disk_->room -= n;
    size_t kept = std::min(n, disk_->bytes.size() - offset);
    if (disk_->power_is_lost) {
      kept = std::min(kept, *disk_->power_is_lost);
      *disk_->power_is_lost -= kept;
    }
    std::memcpy(disk_->bytes.data() + offset, from.data(), kept);
    return n;
  }

 private:
  FaultyDisk* const disk_;
};

}  // namespace aisp
