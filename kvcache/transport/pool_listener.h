// PoolListener: the owner's side of transports that map a pool: a thread that gives the pool to
// writers with the cookie and tracks which processes have it. Start and WatchWriter: any one
// thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/peer_death.h"
#include "kvcache/transport/pool_socket.h"

namespace aisp {

// What writers receive. The descriptors (-1: none) outlive the listener.
struct PoolOffer {
  std::string lane;
  Hash128 cookie;
  PoolReply reply;
  int pool_fd = -1;
  int scratch_fd = -1;
  // Only processes that can be watched get the pool; else their connection is watched (PeerWatch).
  bool processes_only = false;
};

class PoolListener {
 public:
  // Listens on a new socket with a random name; at most `max_writers` hold the pool. Errors of the
  // system.
  static Result<std::unique_ptr<PoolListener>> Start(const PoolOffer& offer, size_t max_writers);
  ~PoolListener();

  const std::string& descriptor() const { return descriptor_; }
  // As WriterWatcher. INVALID_ARGUMENT: not a token.
  Result<PeerWatch> WatchWriter(std::string_view token);

 private:
  struct Writer {
    UniqueFd socket;
    Instant hello_by;                  // kNever once it has greeted and counts as a writer
    std::unique_ptr<PeerWatch> watch;  // set by its hello
    Hash128 token;
  };

  PoolListener(UniqueFd listen, Waker waker, const PoolOffer& offer, const std::string& name,
               size_t max_writers);
  void Run();
  int PollTimeoutMs(Instant now) const;
  void Accept(Instant now);
  size_t Strangers() const;
  void CloseOldestStranger();
  void Refuse(const Writer& writer, Code code) const;
  // False: the connection is to be closed.
  bool Serve(Writer& writer);

  const UniqueFd listen_;
  const Waker waker_;
  const PoolOffer offer_;
  const std::string descriptor_;
  const size_t max_writers_;
  const SteadyClock clock_;
  std::mutex mutex_;
  std::vector<Writer> writers_;
  bool stop_ = false;
  bool accept_paused_ = false;  // listener thread only
  Thread thread_;
};

}  // namespace aisp
