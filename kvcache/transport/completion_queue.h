// CompletionQueue: the writer's side common to all transports: assigns write ids, bounds the writes
// between Write and Poll, and passes completions from a progress thread to the engine thread.
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

  // RESOURCE_EXHAUSTED: max_writes are queued, in flight or not yet polled, or those to `peer` are
  // four times the remaining capacity, so that a stuck peer leaves room for others.
  Result<WriteId> Admit(KvPeerId peer);
  void Complete(WriteCompletion completion);
  size_t Poll(std::span<WriteCompletion> out);
  void SetWaker(std::function<void()> wake);

 private:
  const size_t max_writes_;
  size_t outstanding_ = 0;  // admitted, not polled; engine thread only
  uint64_t last_id_ = 0;    // engine thread only
  // Outstanding writes by peer, and the peer of each.
  std::unordered_map<uint64_t, size_t> of_peer_;
  std::unordered_map<uint64_t, uint64_t> peer_of_;
  std::atomic<size_t> ready_{0};
  std::mutex mutex_;
  std::deque<WriteCompletion> done_;
  std::function<void()> wake_;
};

// OUT_OF_RANGE unless every copy is inside both regions.
Status CheckCopies(std::span<const BlockCopy> copies, uint64_t source_bytes, uint64_t target_bytes);

// The completion status for an owner's reply `code` to a write of this epoch.
Status OwnersVerdict(Code code, Epoch epoch);

}  // namespace aisp
