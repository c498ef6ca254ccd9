// TcpWriter: the writer's side of the tcp transport: a thread that sends queued writes to all
// peers, straight out of the local pool (by way of host memory where that is a GPU's), and
// completes each when its owner acknowledged it.
//
// A peer that takes nothing and acknowledges nothing for `stall_timeout` while writes are under way
// has failed: all its writes complete with an error and its connection is closed; so does one that
// breaks the protocol or the connection.
//
// All public methods: one thread (the engine's), which only takes a short lock; the thread shares
// nothing else with it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <variant>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/completion_queue.h"
#include "kvcache/transport/tcp_wire.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

class TcpWriter {
 public:
  struct Options {
    Duration stall_timeout = std::chrono::seconds(10);
    bool checksum = true;
  };
  static Result<std::unique_ptr<TcpWriter>> Start(const KvRegion& source,
                                                  CompletionQueue* completions,
                                                  const Options& options);
  // Writes that are under way end without completion.
  ~TcpWriter();

  // `socket`: connected and greeted by an owner that `takes` such flags.
  void Add(KvPeerId peer, UniqueFd socket, uint32_t takes);
  // All its writes complete with `why`, then this returns.
  void Remove(KvPeerId peer, const Error& why);
  void Write(WriteId id, KvPeerId peer, Epoch epoch, std::span<const BlockCopy> copies);
  // Writes of the epoch of which no byte was sent complete in their turn with CANCELLED.
  void Cancel(KvPeerId peer, Epoch epoch);
  // UNAVAILABLE once the peer has failed.
  Status Alive(KvPeerId peer) const;

 private:
  class Peer;
  // Somebody who waits for the thread to do something.
  struct Waiter {
    std::mutex mutex;
    std::condition_variable done_cv;
    bool done = false;
    Status status;
    void Done(Status s);
  };
  struct WriteJob {
    WriteId id;
    Epoch epoch;
    std::vector<BlockCopy> copies;
  };
  struct AddPeer {
    std::shared_ptr<Peer> peer;
  };
  struct RemovePeer {
    Error why;
    std::shared_ptr<Waiter> waiter;
  };
  struct CancelEpoch {
    Epoch epoch;
  };
  struct Command {
    KvPeerId peer;
    std::variant<AddPeer, RemovePeer, CancelEpoch, WriteJob> what;
  };

  TcpWriter(const KvRegion& source, CompletionQueue* completions, const Options& options,
            UniqueFd epoll, Waker waker);
  void Post(Command command);
  void Run();
  void Execute(Command& command);
  Instant NextDeadline() const;

  const KvRegion source_;
  CompletionQueue* const completions_;
  const Options options_;
  const UniqueFd epoll_;
  const Waker waker_;
  const SteadyClock clock_;
  std::unordered_map<KvPeerId, std::shared_ptr<Peer>>
      peers_;  // the caller's; it reads only whether they failed
  std::unordered_map<KvPeerId, std::shared_ptr<Peer>> served_;  // the thread's
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> stop_{false};
  Thread thread_;
};

}  // namespace aisp
