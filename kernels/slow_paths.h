// SlowPaths: the nodes that run in something slower than the kernel meant for their kind, with
// reason and count. The preparer of steps logs each by name once (model/).
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
  std::string first_node;  // the first node affected
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
  mutable std::mutex mutex_;   // guards the list; entries keep their addresses
  std::deque<Entry> entries_;  // one per pair of op and reason
};

}  // namespace aisp
