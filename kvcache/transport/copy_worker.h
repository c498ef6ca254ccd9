// CopyWorker: the progress thread of transports that reach a peer's pool as memory (inproc, shm,
// cuda_ipc). Copies queued writes in order; where a device copies, the next ones are begun while it
// does, so that it need not wait for this thread between two of them.
//
// Push, Cancel and Remove: the engine thread. After work it spins briefly, because the next layer's
// write follows soon and waking a sleeper costs more than copying a block; then it sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/completion_queue.h"

namespace aisp {

// A peer's pool that this process can write with memcpy.
class CopyTarget {
 public:
  virtual ~CopyTarget() = default;
  virtual uint64_t bytes() const = 0;
  // By the progress thread. An error: some of the bytes may have landed, and no more will.
  virtual Status Copy(const std::byte* source, std::span<const BlockCopy> copies, Epoch epoch) = 0;
  // How many copies may be under way: with more than one, Copy only begins one, and Await ends the
  // oldest that Copy has begun without an error.
  virtual size_t depth() const { return 1; }
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
  // Queued writes end without completion.
  ~CopyWorker();

  void Push(WriteId id, KvPeerId peer, Epoch epoch, std::span<const BlockCopy> copies,
            const std::shared_ptr<CopyTarget>& target);
  // Queued writes of the epoch complete in their turn, with CANCELLED and without a byte.
  void Cancel(KvPeerId peer, Epoch epoch);
  // Waits for the peer's copies under way; completes its other writes with `why`. Nothing of it
  // lands afterwards.
  void Remove(KvPeerId peer, const Error& why);

 private:
  // A copy that was begun, or the error of one that could not be.
  struct Begun {
    Job job;
    Status status;
  };

  void Run();
  Status Begin(const Job& job);
  // The next job; with `waits`, once there is one. False: there is none, or the worker ends.
  bool Next(bool waits, Job* job);
  void Finish(Begun begun);

  const std::byte* const source_;
  CompletionQueue* const completions_;
  std::atomic<uint32_t> queued_{0};  // what the spinning thread looks at
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::deque<Job> queue_;
  std::vector<std::vector<BlockCopy>>
      spare_;                     // emptied lists, so that steady writing allocates nothing
  std::deque<KvPeerId> copying_;  // of the copies under way, the oldest first
  bool sleeping_ = false;
  bool stop_ = false;
  Thread thread_;
};

}  // namespace aisp
