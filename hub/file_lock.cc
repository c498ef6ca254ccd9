#include "hub/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

namespace aisp {

Result<std::optional<FileLock>> FileLock::Try(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FailedPrecondition(fmt::format("the lock {}: {}", path, std::strerror(errno)));
  FileLock lock(fd);
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return std::optional<FileLock>();
    return FailedPrecondition(
        fmt::format("the lock {}: {}; the cache has to lie on a file system that knows locks", path,
                    std::strerror(errno)));
  }
  // The previous holder may have removed the file, so that this lock is of an unlinked file.
  struct stat held {
  }, named{};
  if (fstat(fd, &held) != 0 || stat(path.c_str(), &named) != 0 || held.st_ino != named.st_ino)
    return std::optional<FileLock>();
  return std::optional<FileLock>(std::move(lock));
}

Result<FileLock> FileLock::Wait(const std::string& path, const std::function<Status()>& give_up) {
  for (;;) {
    AISP_ASSIGN_OR_RETURN(std::optional<FileLock> lock, Try(path));
    if (lock) return std::move(*lock);
    AISP_RETURN_IF_ERROR(give_up());
    // flock cannot be polled, and a blocking call could not be cancelled.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace aisp
