#include "server/work_pool.h"

#include <fmt/format.h>

#include <utility>

namespace aisp {

WorkPool::WorkPool(const std::string& name, int threads, size_t max_queued)
    : small_(max_queued), large_(max_queued) {
  for (int i = 0; i < threads; ++i) StartThread(fmt::format("{}-{}", name, i), &small_);
  StartThread(fmt::format("{}-large", name), &large_);
}

WorkPool::~WorkPool() {
  small_.CloseAndClear();
  large_.CloseAndClear();
  for (Thread& thread : threads_) thread.Join();
}

void WorkPool::StartThread(const std::string& name, Queue* queue) {
  threads_.emplace_back(name, [queue] {
    while (auto job = queue->Pop()) (*job)();
  });
}

bool WorkPool::TrySubmit(size_t bytes, std::function<void()> job) {
  return (bytes > kLargeBytes ? large_ : small_).TryPush(std::move(job));
}

}  // namespace aisp
