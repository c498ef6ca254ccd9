// TcpWriter: the writer's side of the tcp transport: a thread that sends queued writes to all
// peers, directly from the local pool (through a host buffer for a GPU pool), and completes each
// when its owner has acknowledged it.
//
// A peer without progress for `stall_timeout` while writes are in flight has failed: all its writes
// complete with an error and its connection is closed. The same holds for one that violates the
// protocol or closes the connection.
//
// All public methods: one thread (the engine's); they only take a short lock.
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

// Which writes carry an XXH3 that the owner checks. TCP's own 16 bits miss one damaged packet in
// 65536; within one machine packets pass through its memory only, as over shm.
enum class TcpChecksums : uint8_t { kNone, kBetweenMachines, kAll };

class TcpWriter {
 public:
  struct Options {
    Duration stall_timeout = std::chrono::seconds(10);
    TcpChecksums checksums = TcpChecksums::kBetweenMachines;
  };
  // Starts the thread; `completions` outlives it. RESOURCE_EXHAUSTED: too many open files.
  static Result<std::unique_ptr<TcpWriter>> Start(const KvRegion& source,
                                                  CompletionQueue* completions,
                                                  const Options& options);
  // Writes in flight get no completion.
  ~TcpWriter();

  // `socket`: connected and greeted; `takes`: of the owner's greeting.
  void Add(KvPeerId peer, UniqueFd socket, uint32_t takes);
  // Returns after all its writes have completed with `why`.
  void Remove(KvPeerId peer, const Error& why);
  void Write(WriteId id, KvPeerId peer, Epoch epoch, std::span<const BlockCopy> copies);
  // Unsent writes of the epoch complete in order with CANCELLED.
  void Cancel(KvPeerId peer, Epoch epoch);
  // UNAVAILABLE: the peer has failed.
  Status Alive(KvPeerId peer) const;

 private:
  class Peer;
  // A caller that waits for the thread.
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
      peers_;  // engine thread only; it reads only whether they failed
  std::unordered_map<KvPeerId, std::shared_ptr<Peer>> served_;  // writer thread only
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> stop_{false};
  Thread thread_;
};

}  // namespace aisp
