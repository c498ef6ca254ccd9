// TcpOwner: the owner's side of the tcp transport: a thread that accepts writers, copies what they
// send into the pool, and acknowledges each write.
//
// A write into a GPU pool is buffered in host memory until it is complete.
//
// A byte lands only under the pool's lock and only while its epoch is allowed, so after Revoke
// nothing of the epoch lands; what still arrives is read, dropped and acknowledged with an error. A
// connection that violates the protocol, has the wrong cookie, or stops in the middle of a write
// for `stall_timeout` is closed.
//
// Only connections that have shown the cookie count as writers. Until then a connection is a
// stranger: it has two seconds and a separate limit applies. Beyond that limit the oldest of the
// address group with most strangers is closed, so that strangers keep no writer out.
//
// Allow and Revoke: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/epoch_gate.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/tcp_wire.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

class TcpOwner {
 public:
  struct Options {
    std::string bind_address = "127.0.0.1";
    uint16_t port = 0;
    Duration stall_timeout = std::chrono::seconds(10);
    size_t max_writers = 256;
    size_t max_strangers = 256;
  };
  // Listens and starts the thread. RESOURCE_EXHAUSTED: too many open files; else the socket's
  // error.
  static Result<std::unique_ptr<TcpOwner>> Start(const KvRegion& region, const Options& options);
  ~TcpOwner();

  uint16_t port() const { return port_; }
  const Hash128& cookie() const { return cookie_; }

  void Allow(Epoch epoch, std::span<const BlockCopy> allowed);
  void Revoke(Epoch epoch);

 private:
  class Connection;
  TcpOwner(const KvRegion& region, const Options& options, UniqueFd listen, uint16_t port,
           UniqueFd epoll, Waker waker);
  void Run();
  void Accept();
  void PauseAccepting(bool pause);
  size_t Writers() const;
  // Closes strangers until they are within the limit.
  void MakeRoomForStrangers();
  Connection* StrangerToClose() const;
  void Warn(const char* what);
  void CloseStalled();

  const KvRegion region_;
  const Options options_;
  const UniqueFd listen_;
  const uint16_t port_;
  const Hash128 cookie_;
  const UniqueFd epoll_;
  const Waker waker_;
  const SteadyClock clock_;
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;  // owner thread only
  std::vector<std::byte> waste_;  // sink for dropped payload; owner thread only
  bool accept_paused_ = false;    // owner thread only
  Instant next_warning_;          // owner thread only
  std::mutex mutex_;              // guards the gate and landing bytes
  EpochGate gate_;
  std::atomic<bool> stop_{false};
  Thread thread_;
};

}  // namespace aisp
