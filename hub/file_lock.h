// FileLock: at most one process downloads a blob into a cache. It is flock(2) on the file that
// Hugging Face's own library locks too, so that both may share a cache. The file stays, as theirs.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/result.h"

namespace aisp {

class FileLock {
 public:
  // Nothing: another process (or another FileLock of this one) has it. An error names the file.
  static Result<std::optional<FileLock>> Try(const std::string& path);
  // Waits for it, asking `give_up` every tenth of a second, whose error ends the waiting.
  static Result<FileLock> Wait(const std::string& path, const std::function<Status()>& give_up);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace aisp
