// PeerWatch: proof that another process of this host can write into a pool no more.
//
// Holds a pidfd, which names one process for good: when its pid is given to another process, the
// watch still speaks of the first. A stopped process (SIGSTOP) is alive: it comes back, and its
// writes with it. A zombie is dead: its memory is gone.
//
// Where the process is not visible (another PID namespace), the connection over which it got the
// pool proves as much for memory that it maps: its end closes after the mapping is gone, whether it
// lets go or dies. One thread at a time; fd() may be put in any poll set.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

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
  // The other end of this connection, which holds what it mapped as long as it is open. For memory
  // of the host: a device may still write for a process whose files are closed.
  static Result<PeerWatch> OfConnection(int socket);
  // When the process started, in clock ticks since boot: with the pid it names a process of this
  // boot.
  static Result<uint64_t> StartTime(pid_t pid);

  // A second watch of the same process.
  Result<PeerWatch> Duplicate() const;

  // True only with proof; stays true.
  bool Dead() const;
  // Readable (POLLIN) from the death on.
  int fd() const { return fd_.get(); }
  // 0: it is watched by its connection.
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
  // A watch of the writer that was given this token when it connected. NOT_FOUND when none was:
  // what a peer claims of itself is no proof of anything.
  virtual Result<PeerWatch> WatchWriter(std::string_view token) = 0;
};

}  // namespace aisp
