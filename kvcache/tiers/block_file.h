// BlockFile: the file of a disk tier; an interface, so that tests can inject disk faults.
//
// PosixBlockFile: mode 0600, preallocated, locked against other processes, opened with O_DIRECT if
// the file system supports it. Offsets, sizes and addresses are multiples of kAlignment. One thread
// at a time.
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
  // Bytes transferred, possibly fewer than requested (0: end of file). RESOURCE_EXHAUSTED: the disk
  // is full; UNAVAILABLE: any other system error.
  virtual Result<size_t> ReadAt(uint64_t offset, std::span<std::byte> into) = 0;
  virtual Result<size_t> WriteAt(uint64_t offset, std::span<const std::byte> from) = 0;
};

class PosixBlockFile final : public BlockFile {
 public:
  // Keeps the file's first `bytes`. ALREADY_EXISTS: another process uses it; RESOURCE_EXHAUSTED:
  // not enough disk space, and the file has not grown; else the system's error, with the path.
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
