// EventLog: numbered changes of the prefix index, until the owner takes them. Part of BlockManager;
// one thread.
//
// Bounded: when it is full, all pending events are dropped and their numbers stay used. A reader
// sees the gap and requests a snapshot: one pass over the index instead of unbounded memory.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kvcache/kv_cache_event.h"

namespace aisp {

class EventLog {
 public:
  EventLog(int32_t max_events, int32_t max_hashes)
      : max_events_(static_cast<size_t>(max_events)),
        max_hashes_(static_cast<size_t>(max_hashes)) {}

  void Append(KvCacheEvent event) {
    if (pending_.size() >= max_events_ || hashes_ + event.unit_hashes.size() > max_hashes_) Drop();
    hashes_ += event.unit_hashes.size();
    pending_.push_back(std::move(event));
    ++next_;
  }

  std::vector<KvCacheEvent> Take(uint64_t* first_sequence) {
    *first_sequence = next_ - pending_.size();
    hashes_ = 0;
    return std::exchange(pending_, {});
  }

  uint64_t next_sequence() const { return next_; }

 private:
  void Drop() {
    pending_.clear();
    hashes_ = 0;
  }

  const size_t max_events_;
  const size_t max_hashes_;
  std::vector<KvCacheEvent> pending_;
  size_t hashes_ = 0;
  uint64_t next_ = 0;
};

}  // namespace aisp
