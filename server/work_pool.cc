#include "server/work_pool.h"

#include <fmt/format.h>

#include <utility>

namespace aisp {

WorkPool::WorkPool(const std::string& name, int threads, size_t max_queued) : queue_(max_queued) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back(fmt::format("{}-{}", name, i), [this] {
      while (auto job = queue_.Pop()) (*job)();
    });
  }
}

WorkPool::~WorkPool() {
  queue_.Close();
  for (Thread& thread : threads_) thread.Join();
}

bool WorkPool::TrySubmit(std::function<void()> job) { return queue_.TryPush(std::move(job)); }

}  // namespace aisp
