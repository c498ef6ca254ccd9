// Pending events in order of simulated time, and messages in transit. Plain values. One thread.
#pragma once

#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "proto/link.h"

namespace aisp::simulate {

class Worker;

struct Event {
  enum Kind : uint8_t {
    kArrival,
    kStepEnd,
    kKv,
    kJob,
    kPulled,
    kJobRefused,
    kToWorker,
    kToRouter,
    kTelemetry,
    kRoleTimer,
    kPlan
  };
  Kind kind = kArrival;
  Worker* worker = nullptr;
  Worker* other = nullptr;
  uint64_t value = 0;  // a request's index, a wire id or a message's index
  LinkId link = {};    // link of the message
  int64_t at_ns = 0;
  uint64_t order = 0;
  bool operator>(const Event& e) const {
    return at_ns != e.at_ns ? at_ns > e.at_ns : order > e.order;
  }
};

// Events of the same time come in the order in which they were added.
class EventQueue {
 public:
  void Add(Instant at, Event event) {
    event.at_ns = at.ns;
    event.order = next_order_++;
    events_.push(event);
  }
  bool empty() const { return events_.empty(); }
  const Event& Next() const { return events_.top(); }
  void Pop() { events_.pop(); }

 private:
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t next_order_ = 0;
};

// Messages in transit, by index; an index is reused once its message was taken.
template <typename Message>
class Parked {
 public:
  uint64_t Put(Message message) {
    if (free_.empty()) {
      parked_.push_back(std::move(message));
      return parked_.size() - 1;
    }
    const uint64_t place = free_.back();
    free_.pop_back();
    parked_[place] = std::move(message);
    return place;
  }
  Message Take(uint64_t place) {
    free_.push_back(place);
    return std::move(parked_[place]);
  }

 private:
  std::vector<Message> parked_;
  std::vector<uint64_t> free_;
};

}  // namespace aisp::simulate
