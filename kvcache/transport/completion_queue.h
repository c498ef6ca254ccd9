// CompletionQueue: the writer's side that all transports share: gives out write ids, bounds how
// many writes exist between Write and Poll, and carries completions from a progress thread to the
// engine thread.
//
// Admit, Poll and SetWaker: the engine thread. Complete: any thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_map>

#include "kvcache/transport/kv_transport.h"

namespace aisp {

class CompletionQueue {
 public:
  explicit CompletionQueue(size_t max_writes) : max_writes_(max_writes) {}

  // RESOURCE_EXHAUSTED when max_writes are queued, under way or finished and not polled, or when
  // those to `peer` are four times what is left: a peer that takes nothing leaves room for others.
  Result<WriteId> Admit(KvPeerId peer);
  void Complete(WriteCompletion completion);
  size_t Poll(std::span<WriteCompletion> out);
  void SetWaker(std::function<void()> wake);

 private:
  const size_t max_writes_;
  size_t outstanding_ = 0;  // admitted, not polled; the engine thread's
  uint64_t last_id_ = 0;    // the engine thread's
  // The same by peer, and whose each of them is.
  std::unordered_map<uint64_t, size_t> of_peer_;
  std::unordered_map<uint64_t, uint64_t> peer_of_;
  std::atomic<size_t> ready_{0};
  std::mutex mutex_;
  std::deque<WriteCompletion> done_;
  std::function<void()> wake_;
};

// OUT_OF_RANGE unless every copy lies inside both regions.
Status CheckCopies(std::span<const BlockCopy> copies, uint64_t source_bytes, uint64_t target_bytes);

// What the word of an owner that copies says of a write of this epoch, as its completion has it.
Status OwnersVerdict(Code code, Epoch epoch);

}  // namespace aisp
