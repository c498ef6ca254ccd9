// Mappings of pools that lie in a memfd, and the seals that make them safe to map.
#pragma once

#include <cstddef>
#include <span>

#include "common/result.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

enum class MappingAccess { kRead, kReadWrite };

// A shared mapping of a memfd from its beginning, for as long as this lives. Move-only.
class PoolMapping {
 public:
  // OUT_OF_RANGE when the file is smaller.
  static Result<PoolMapping> Map(int fd, size_t bytes, MappingAccess access);
  PoolMapping(PoolMapping&& other) noexcept;
  PoolMapping& operator=(PoolMapping&&) = delete;
  ~PoolMapping();
  // With kRead nobody may write them.
  std::span<std::byte> bytes() const { return {base_, bytes_}; }

 private:
  PoolMapping(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_;
  size_t bytes_;
};

// Everybody who maps a pool holds its descriptors too: nobody may make the file shorter, which
// would end whoever touches the mapping, or forbid others to map it.
Status SealPool(int fd);
// FAILED_PRECONDITION: its owner could still make it shorter.
Status CheckSealed(const UniqueFd& fd);

}  // namespace aisp
