// What the threads of one pull share: the sign to stop, and how often something is tried again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "common/result.h"
#include "hub/http.h"
#include "hub/options.h"

namespace aisp {

// Once stopped, it stays so. Any thread.
class StopSign {
 public:
  void Stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  // Waits so long, or until it is stopped: CANCELLED.
  Status Wait(int64_t ms);

 private:
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// The attempts at one thing. What the network or the server's load is to blame for (UNAVAILABLE,
// DEADLINE_EXCEEDED) is tried again after a doubling wait: five times in a row without progress,
// 200 times in all. One thread.
class Attempts {
 public:
  Attempts(const HubOptions& options, StopSign* stop) : options_(options), stop_(stop) {}

  // After a failure: waits, and returns without an error when it shall be tried again.
  // `retry_after_s`: as the server asked; 60 at most.
  Status Next(const Error& error, bool progressed, int64_t retry_after_s = 0);

 private:
  const HubOptions& options_;
  StopSign* const stop_;
  int total_ = 0;
  int in_a_row_ = 0;
};

// The error of an answer that is no success, in words for the operator; `what` was asked for.
Error ErrorOf(const HubReply& reply, const std::string& what, const HubOptions& options);
// Seconds of its Retry-After; 0: none, or a date.
int64_t RetryAfter(const HubReply& reply);

}  // namespace aisp
