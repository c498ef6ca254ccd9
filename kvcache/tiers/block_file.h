// BlockFile: the one file of a disk tier, as the seam for tests that make disks fail.
//
// PosixBlockFile: mode 0600, preallocated, locked against other processes, opened with O_DIRECT
// where the file system has it. Offsets, sizes and addresses are multiples of kAlignment. One
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"

namespace aisp {

class BlockFile {
 public:
  static constexpr size_t kAlignment = 4096;

  virtual ~BlockFile() = default;
  // Bytes moved, which may be fewer than wanted (0: the end of the file). RESOURCE_EXHAUSTED: the
  // disk is full; UNAVAILABLE: what the system said.
  virtual Result<size_t> ReadAt(uint64_t offset, std::span<std::byte> into) = 0;
  virtual Result<size_t> WriteAt(uint64_t offset, std::span<const std::byte> from) = 0;
};

class PosixBlockFile final : public BlockFile {
 public:
  // What is in the file stays, as far as `bytes` reach. ALREADY_EXISTS: another process has it;
  // RESOURCE_EXHAUSTED: the disk has no room for it, and the file is no longer than it was; else
  // what the system said, with the path.
  static Result<std::unique_ptr<PosixBlockFile>> Open(const std::string& path, uint64_t bytes);
  ~PosixBlockFile() override;

  Result<size_t> ReadAt(uint64_t offset, std::span<std::byte> into) override;
  Result<size_t> WriteAt(uint64_t offset, std::span<const std::byte> from) override;
  bool direct() const { return direct_; }

 private:
  explicit PosixBlockFile(int fd) : fd_(fd) {}
  const int fd_;
  bool direct_ = false;
};

}  // namespace aisp
