#include "kvcache/tiers/block_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace aisp {
namespace {

Code CodeOf(int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? Code::kResourceExhausted : Code::kUnavailable;
}

tl::unexpected<Error> FailedTo(const std::string& what, int error) {
  return Fail(CodeOf(error), fmt::format("{}: {}", what, std::strerror(error)));
}

}  // namespace

Result<std::unique_ptr<PosixBlockFile>> PosixBlockFile::Open(const std::string& path,
                                                             uint64_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return FailedTo("cannot open " + path, errno);
  std::unique_ptr<PosixBlockFile> file(new PosixBlockFile(fd));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FailedTo("cannot lock " + path, errno);
    return Fail(Code::kAlreadyExists, path + " is in use by another process");
  }
  // The file holds prompts: an older file with a wider mode is narrowed.
  if (fchmod(fd, 0600) != 0) return FailedTo("cannot set the mode of " + path, errno);
  struct stat before {};
  if (fstat(fd, &before) != 0) return FailedTo("cannot look at " + path, errno);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return FailedTo("cannot size " + path, errno);
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    Error failed = FailedTo(fmt::format("cannot get {} bytes for {}", bytes, path), error).value();
    // A file system may keep what it allocated until it was full; others need that space.
    const off_t kept = std::min(before.st_size, static_cast<off_t>(bytes));
    if (ftruncate(fd, kept) != 0)
      failed.message += fmt::format("; what it got cannot be given back: {}", std::strerror(errno));
    return tl::unexpected(std::move(failed));
  }
  // The host tier caches this file; the page cache would hold the same bytes again.
  const int flags = fcntl(fd, F_GETFL);
  file->direct_ = flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
  return file;
}

PosixBlockFile::~PosixBlockFile() { close(fd_); }

Result<size_t> PosixBlockFile::ReadAt(uint64_t offset, std::span<std::byte> into) {
  for (;;) {
    const ssize_t n = pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR) return FailedTo(fmt::format("cannot read at {}", offset), errno);
  }
}

Result<size_t> PosixBlockFile::WriteAt(uint64_t offset, std::span<const std::byte> from) {
  for (;;) {
    const ssize_t n = pwrite(fd_, from.data(), from.size(), static_cast<off_t>(offset));
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR) return FailedTo(fmt::format("cannot write at {}", offset), errno);
  }
}

}  // namespace aisp
