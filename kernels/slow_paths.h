// SlowPaths: which nodes of a programme run in something slower than what is meant for their kind,
// why, and how often. Whoever prepares steps logs each by name once (model/).
//
// Note and Count on the thread of the Ops; Snapshot from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace aisp {

struct SlowPathCount {
  std::string op;
  std::string reason;
  std::string first_node;  // that ran so
  uint64_t count = 0;      // launches
};

class SlowPaths {
 public:
  // A handle for Count.
  size_t Note(const std::string& op, const std::string& reason, const std::string& node);
  void Count(size_t handle);
  std::vector<SlowPathCount> Snapshot() const;

 private:
  struct Entry {
    std::string op, reason, first_node;
    std::atomic<uint64_t> count = 0;
  };
  mutable std::mutex mutex_;   // of the list; entries stay where they are
  std::deque<Entry> entries_;  // one for each pair of op and reason
};

}  // namespace aisp
