// FileLock: lets one process at a time download a blob. It is flock(2) on the same file as in
// Hugging Face's library, so both can share a cache. As theirs, the file is not removed.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/result.h"

namespace aisp {

class FileLock {
 public:
  // nullopt: another holder has the lock. An error names the file.
  static Result<std::optional<FileLock>> Try(const std::string& path);
  // Waits for the lock, calling `give_up` every 0.1 s; its error ends the wait.
  static Result<FileLock> Wait(const std::string& path, const std::function<Status()>& give_up);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace aisp
