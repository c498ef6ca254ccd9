#include "kvcache/transport/pool_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "kvcache/transport/pool_socket.h"

namespace aisp {

Result<PoolMapping> PoolMapping::Map(int fd, size_t bytes, MappingAccess access) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return tl::unexpected(SocketError("fstat of a pool"));
  if (static_cast<uint64_t>(file.st_size) < bytes) {
    return Fail(Code::kOutOfRange,
                fmt::format("a memfd of {} bytes cannot hold a pool of {}", file.st_size, bytes));
  }
  const int protection = access == MappingAccess::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* base = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED)
    return tl::unexpected(SocketError(fmt::format("mapping {} bytes", bytes)));
  return PoolMapping(static_cast<std::byte*>(base), bytes);
}

PoolMapping::PoolMapping(PoolMapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}

PoolMapping::~PoolMapping() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Status SealPool(int fd) {
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return tl::unexpected(SocketError("sealing a memfd"));
  return {};
}

Status CheckSealed(const UniqueFd& fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return FailedPrecondition("the pool's owner could take the memory away: it is not sealed");
  return {};
}

}  // namespace aisp
