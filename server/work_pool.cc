#include "server/work_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

// Base cost of a job, in bytes of text.
constexpr size_t kJobBytes = 256;

}  // namespace

// One tenant may use all but one of the threads for long jobs.
WorkPool::WorkPool(const std::string& name, int threads, size_t max_queued)
    : name_(name),
      long_threads_(std::max(2, threads / 2)),
      small_({.waiting = max_queued}),
      large_({.waiting = max_queued}),
      long_({.waiting = max_queued, .long_of_one = long_threads_ - 1}) {
  for (int i = 0; i < threads; ++i)
    StartThread(std::to_string(i), &small_, Thread::Priority::kNormal);
  StartThread("large", &large_, Thread::Priority::kBackground);
}

WorkPool::~WorkPool() {
  for (FairQueue* const queue : {&small_, &large_, &long_}) queue->CloseAndClear();
  for (Thread& thread : threads_) thread.Join();
}

void WorkPool::StartThread(const std::string& suffix, FairQueue* queue, Thread::Priority priority) {
  threads_.emplace_back(
      fmt::format("{}-{}", name_, suffix),
      [queue] {
        while (queue->RunNext()) continue;
      },
      priority);
}

bool WorkPool::TrySubmit(size_t bytes, std::function<void()> job, const TenantShare& tenant) {
  return (bytes > kLargeBytes ? large_ : small_).TryPush(bytes + kJobBytes, std::move(job), tenant);
}

bool WorkPool::TrySubmitLong(std::function<void()> job, const TenantShare& tenant) {
  std::call_once(long_once_, [this] {
    for (int i = 0; i < long_threads_; ++i)
      StartThread(fmt::format("long{}", i), &long_, Thread::Priority::kBackground);
  });
  return long_.TryPush(0, std::move(job), tenant);
}

}  // namespace aisp
