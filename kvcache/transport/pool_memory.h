// Mappings of pools in a memfd, and the seals that make them safe to map.
#pragma once

#include <cstddef>
#include <span>

#include "common/result.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

enum class MappingAccess { kRead, kReadWrite };

// A shared mapping of a memfd from offset 0, while this lives. Move-only.
class PoolMapping {
 public:
  // OUT_OF_RANGE: the file is smaller.
  static Result<PoolMapping> Map(int fd, size_t bytes, MappingAccess access);
  PoolMapping(PoolMapping&& other) noexcept;
  PoolMapping& operator=(PoolMapping&&) = delete;
  ~PoolMapping();
  // Read-only with kRead.
  std::span<std::byte> bytes() const { return {base_, bytes_}; }

 private:
  PoolMapping(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_;
  size_t bytes_;
};

// Processes that map a pool also hold its descriptor. Sealing keeps them from shrinking the file,
// which would crash others that access it, and from adding seals.
Status SealPool(int fd);
// FAILED_PRECONDITION: its owner could still shrink it.
Status CheckSealed(const UniqueFd& fd);

}  // namespace aisp
