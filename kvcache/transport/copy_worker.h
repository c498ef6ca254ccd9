// CopyWorker: the progress thread of transports that map a peer's pool (inproc, shm, cuda_ipc).
// Copies queued writes in order. If a device copies, the next copies start before it finishes, so
// that it never waits for this thread.
//
// Push, Rouse, Cancel and Remove: the engine thread. After work the thread spins briefly before
// sleeping: the next layer's write follows soon, and a wake costs more than copying a block.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/completion_queue.h"

namespace aisp {

// A peer's pool mapped into this process.
class CopyTarget {
 public:
  virtual ~CopyTarget() = default;
  virtual uint64_t bytes() const = 0;
  // On the progress thread. After an error some bytes may have landed, and no more will.
  virtual Status Copy(const std::byte* source, std::span<const BlockCopy> copies, Epoch epoch) = 0;
  // How many copies may be in flight. If more than one, Copy only starts a copy, and Await ends the
  // oldest that Copy started without an error.
  virtual size_t depth() const { return 1; }
  // On the progress thread, while nothing is in flight: a Copy follows soon. Starts whatever makes
  // a first copy after a pause slow.
  virtual void Warm(const std::byte* /*source*/) {}
  virtual Status Await() { return {}; }
};

class CopyWorker {
 public:
  struct Job {
    WriteId id;
    KvPeerId peer;
    Epoch epoch;
    std::vector<BlockCopy> copies;
    std::shared_ptr<CopyTarget> target;
    bool cancelled = false;
  };

  CopyWorker(const std::string& thread_name, const std::byte* source, CompletionQueue* completions);
  // Queued writes get no completion.
  ~CopyWorker();

  void Push(WriteId id, KvPeerId peer, Epoch epoch, std::span<const BlockCopy> copies,
            const std::shared_ptr<CopyTarget>& target);
  // A Push to `target` follows within microseconds: the thread wakes for it now, and warms it.
  void Rouse(const std::shared_ptr<CopyTarget>& target);
  // Whether it sleeps and nothing woke it. Any thread.
  bool Asleep();
  // Queued writes of the epoch complete in order, with CANCELLED and without writing a byte.
  void Cancel(KvPeerId peer, Epoch epoch);
  // Waits for the peer's copies in flight; its other writes complete with `why`. Nothing lands
  // afterwards.
  void Remove(KvPeerId peer, const Error& why);

 private:
  // A started copy, or the error of one that could not start.
  struct Begun {
    Job job;
    Status status;
  };

  void Run();
  Status Begin(const Job& job);
  // Warms the target of a Rouse, and spins for its Push.
  void WakeUp(std::unique_lock<std::mutex>& lock);
  // The next job; `waits`: blocks until there is one. False: none, or the worker ends.
  bool Next(bool waits, Job* job);
  // Until there is a job, at most.
  void SpinFor(std::chrono::microseconds time) const;
  void Finish(Begun begun);

  const std::byte* const source_;
  CompletionQueue* const completions_;
  std::atomic<uint32_t> queued_{0};  // polled by the spinning thread
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::deque<Job> queue_;
  std::vector<std::vector<BlockCopy>>
      spare_;                     // reused lists, so that steady writing allocates nothing
  std::deque<KvPeerId> copying_;  // peers of the copies in flight, oldest first
  bool sleeping_ = false;
  std::shared_ptr<CopyTarget> roused_;  // the target of a Rouse that no thread has seen
  bool stop_ = false;
  Thread thread_;
};

}  // namespace aisp
