#include "kernels/slow_paths.h"

namespace aisp {

size_t SlowPaths::Note(const std::string& op, const std::string& reason, const std::string& node) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].op == op && entries_[i].reason == reason) return i;
  }
  Entry& entry = entries_.emplace_back();
  entry.op = op;
  entry.reason = reason;
  entry.first_node = node;
  return entries_.size() - 1;
}

void SlowPaths::Count(size_t handle) {
  entries_[handle].count.fetch_add(1, std::memory_order_relaxed);
}

std::vector<SlowPathCount> SlowPaths::Snapshot() const {
  const std::lock_guard lock(mutex_);
  std::vector<SlowPathCount> out;
  for (const Entry& e : entries_)
    out.push_back({e.op, e.reason, e.first_node, e.count.load(std::memory_order_relaxed)});
  return out;
}

}  // namespace aisp
