// Shared by the threads of one pull: the stop sign, and the retry policy.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "common/result.h"
#include "hub/http.h"
#include "hub/options.h"

namespace aisp {

// Once stopped, it stays stopped. Any thread.
class StopSign {
 public:
  void Stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  // Waits `ms`; CANCELLED when stopped meanwhile.
  Status Wait(int64_t ms);

 private:
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Retries of one operation. Network and server errors (UNAVAILABLE, DEADLINE_EXCEEDED) are retried
// with a doubling delay: at most five times in a row without progress, and 200 times in total. One
// thread.
class Attempts {
 public:
  Attempts(const HubOptions& options, StopSign* stop) : options_(options), stop_(stop) {}

  // After a failure: waits and returns OK if the operation should be retried, else the error.
  // `retry_after_s`: the server's request, at most 60.
  Status Next(const Error& error, bool progressed, int64_t retry_after_s = 0);

 private:
  const HubOptions& options_;
  StopSign* const stop_;
  int total_ = 0;
  int in_a_row_ = 0;
};

// The error for an unsuccessful answer, in words for operators; `what` was requested.
Error ErrorOf(const HubReply& reply, const std::string& what, const HubOptions& options);
// Seconds of Retry-After; 0: absent or a date.
int64_t RetryAfter(const HubReply& reply);

}  // namespace aisp
