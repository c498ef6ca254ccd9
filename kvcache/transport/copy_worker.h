// CopyWorker: the progress thread of transports that write by memcpy (inproc, shm). Copies queued
// writes in order.
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
  // Called by the progress thread; an error: some of the bytes may have landed.
  virtual Status Copy(const std::byte* source, std::span<const BlockCopy> copies, Epoch epoch) = 0;
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
  // Waits for the copy under way if it is the peer's; completes its other writes with `why`.
  // Nothing of it lands afterwards.
  void Remove(KvPeerId peer, const Error& why);

 private:
  void Run();
  bool Next(Job* job);
  void Finish(Job job, Status status);

  const std::byte* const source_;
  CompletionQueue* const completions_;
  std::atomic<uint32_t> queued_{0};  // what the spinning thread looks at
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::deque<Job> queue_;
  std::vector<std::vector<BlockCopy>>
      spare_;         // emptied lists, so that steady writing allocates nothing
  KvPeerId copying_;  // value 0: nothing
  bool sleeping_ = false;
  bool stop_ = false;
  Thread thread_;
};

}  // namespace aisp
