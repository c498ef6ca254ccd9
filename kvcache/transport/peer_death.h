// PeerWatch: proof that another process of this host can no longer write into a pool.
//
// Holds a pidfd, which keeps naming one process even if its pid is reused. A stopped process
// (SIGSTOP) is alive: it may resume, and its writes with it. A zombie is dead: its memory is gone.
//
// If the process is not visible (another PID namespace), the connection over which it got the pool
// proves as much for memory that it maps: it closes after the mapping is gone, on exit or on
// release. One thread at a time; fd() may be polled anywhere.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "common/result.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

class PeerWatch {
 public:
  // The process with this pid, which the caller knows to be the peer's: an old pid may have been
  // reused. With `start_time` (from StartTime while the peer was alive) that is checked. NOT_FOUND:
  // no such process, or a different start time.
  static Result<PeerWatch> Open(pid_t pid, uint64_t start_time = 0);
  // The process at the other end of a connected Unix socket, as the kernel recorded it when it
  // connected (or listened).
  static Result<PeerWatch> OpenSocketPeer(int socket);
  // Watches the other end of this connection, which stays open while it maps the pool. For host
  // memory only: a device may still write for a process whose files are closed.
  static Result<PeerWatch> OfConnection(int socket);
  // A process's start time in clock ticks since boot; with the pid it is unique within this boot.
  static Result<uint64_t> StartTime(pid_t pid);

  // A second watch of the same process.
  Result<PeerWatch> Duplicate() const;

  // True only with proof; stays true.
  bool Dead() const;
  // Readable (POLLIN) after the death.
  int fd() const { return fd_.get(); }
  // 0: watched by its connection.
  pid_t pid() const { return pid_; }

 private:
  PeerWatch(UniqueFd fd, pid_t pid) : fd_(std::move(fd)), pid_(pid) {}
  UniqueFd fd_;
  pid_t pid_ = 0;
};

// Owner's side of a transport that knows which processes map its pool.
class WriterWatcher {
 public:
  virtual ~WriterWatcher() = default;
  // A watch of the writer that received this token when it connected. NOT_FOUND: unknown token; a
  // peer's own claims prove nothing.
  virtual Result<PeerWatch> WatchWriter(std::string_view token) = 0;
};

}  // namespace aisp
