// PeerWatch: proof that another process of this host is gone, so that nothing it had started can
// still write into a pool.
//
// Holds a pidfd, which names one process for good: when its pid is given to another process, the
// watch still speaks of the first. A stopped process (SIGSTOP) is alive: it comes back, and its
// writes with it. A zombie is dead: its memory is gone. One thread at a time; fd() may be put in
// any poll set.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "common/result.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

class PeerWatch {
 public:
  // The process that has this pid now, which must be known to be the peer's: a pid that was heard
  // some time ago may belong to another process by now. With `start_time` (as StartTime gave it
  // when the peer was known to live) it is checked. NOT_FOUND: no such process, or one that started
  // at another time.
  static Result<PeerWatch> Open(pid_t pid, uint64_t start_time = 0);
  // The process at the other end of a connected Unix socket, as the kernel recorded it at connect
  // (or listen) time.
  static Result<PeerWatch> OpenSocketPeer(int socket);
  // When the process started, in clock ticks since boot: with the pid it names a process of this
  // boot.
  static Result<uint64_t> StartTime(pid_t pid);

  // A second watch of the same process.
  Result<PeerWatch> Duplicate() const;

  // True only with proof; stays true.
  bool Dead() const;
  // Readable (POLLIN) from the death on.
  int fd() const { return fd_.get(); }
  pid_t pid() const { return pid_; }

 private:
  PeerWatch(UniqueFd fd, pid_t pid) : fd_(std::move(fd)), pid_(pid) {}
  UniqueFd fd_;
  pid_t pid_ = 0;
};

// The owner's side of a lane that knows which processes have its pool mapped.
class WriterWatcher {
 public:
  virtual ~WriterWatcher() = default;
  // A watch of the connected writer with this pid (as this process sees it). NOT_FOUND when no
  // connected writer has it; a pid that a peer merely claims is no proof of anything.
  virtual Result<PeerWatch> WatchWriter(pid_t pid) = 0;
};

}  // namespace aisp
