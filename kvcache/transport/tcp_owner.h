// TcpOwner: the owner's side of the tcp transport: a thread that accepts writers, copies what they
// send into the pool, and acknowledges each write.
//
// Into a pool in a GPU's memory a write goes by way of host memory, once it is there as a whole.
//
// A byte lands only under the pool's lock and only while its epoch is allowed, so when Revoke
// returns nothing of the epoch lands any more; what still arrives is read, dropped and acknowledged
// with an error. Whatever is not our protocol, has the wrong cookie, or stops in the middle of a
// write for `stall_timeout` is disconnected.
//
// A writer's place goes to who has shown the cookie. Until then a connection is a stranger's: these
// have two seconds and places of their own, and where those are taken the oldest of the address
// that has most of them goes, so that strangers keep no writer out.
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
  // Closes strangers until they are few enough again.
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
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;  // the thread's
  std::vector<std::byte> waste_;  // where dropped payload goes; the thread's
  bool accept_paused_ = false;    // the thread's
  Instant next_warning_;          // the thread's
  std::mutex mutex_;              // of the gate, and of landing bytes
  EpochGate gate_;
  std::atomic<bool> stop_{false};
  Thread thread_;
};

}  // namespace aisp
