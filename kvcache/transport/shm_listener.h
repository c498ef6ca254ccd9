// ShmListener: the owner's side of shm: a thread that gives the pool's memfd to writers who know the cookie, and remembers
// which processes have it. Start and WatchWriter may be called from any one thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/peer_death.h"
#include "kvcache/transport/shm_socket.h"

namespace aisp {

class ShmListener {
 public:
  static Result<std::unique_ptr<ShmListener>> Start(int pool_fd, uint64_t pool_bytes,
                                                    size_t max_writers);
  ~ShmListener();

  const std::string& descriptor() const { return descriptor_; }
  Result<PeerWatch> WatchWriter(pid_t pid);

 private:
  struct Writer {
    UniqueFd socket;
    Instant hello_by;                  // kNever once it said hello
    std::unique_ptr<PeerWatch> watch;  // from its hello on; null if it cannot be watched
  };

  ShmListener(UniqueFd listen, Waker waker, UniqueFd scratch, Hash128 cookie,
              const std::string& name, int pool_fd, uint64_t pool_bytes, size_t max_writers);
  void Run();
  int PollTimeoutMs(Instant now) const;
  void Accept(Instant now);
  // False: the connection is to be closed.
  bool Serve(Writer& writer);

  const UniqueFd listen_;
  const Waker waker_;
  const UniqueFd scratch_;
  const Hash128 cookie_;
  const std::string descriptor_;
  const int pool_fd_;
  const uint64_t pool_bytes_;
  const size_t max_writers_;
  const SteadyClock clock_;
  std::mutex mutex_;
  std::vector<Writer> writers_;
  bool stop_ = false;
  bool accept_paused_ = false;  // the thread's
  Thread thread_;
};

}  // namespace aisp
