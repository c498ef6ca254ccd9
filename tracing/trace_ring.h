// TraceRing: a router's most recent requests with their spans, running ones included, for `aisp
// trace`. Keeps `capacity`, dropping the oldest. One thread (the router's).
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "tracing/request_trace.h"

namespace aisp {

class TraceRing {
 public:
  explicit TraceRing(size_t capacity) : capacity_(capacity) {}

  void Add(std::shared_ptr<const RequestTrace> trace) {
    if (capacity_ == 0) return;
    if (traces_.size() == capacity_) traces_.pop_front();
    traces_.push_back(std::move(trace));
  }

  // By request id (the latest with that id) or hexadecimal trace id; null: unknown or dropped.
  const RequestTrace* Find(std::string_view id) const {
    for (auto it = traces_.rbegin(); it != traces_.rend(); ++it) {
      if ((*it)->request_id() == id || ToHex((*it)->trace_id()) == id) return it->get();
    }
    return nullptr;
  }
  // Newest first.
  std::vector<std::shared_ptr<const RequestTrace>> Newest(size_t limit) const {
    const size_t count = std::min(limit, traces_.size());
    return {traces_.rbegin(), traces_.rbegin() + static_cast<std::ptrdiff_t>(count)};
  }
  size_t size() const { return traces_.size(); }
  size_t capacity() const { return capacity_; }

 private:
  const size_t capacity_;
  std::deque<std::shared_ptr<const RequestTrace>> traces_;  // oldest first
};

}  // namespace aisp
