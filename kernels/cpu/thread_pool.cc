#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <string>

namespace aisp {
namespace {

constexpr int kSpins = 2000;  // about 20 us

void Pause() { __builtin_ia32_pause(); }

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(std::max(1, threads)) {
  for (int i = 1; i < threads_; ++i) {
    workers_.emplace_back("compute-" + std::to_string(i), [this, i] { RunWorker(i); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
}

void ThreadPool::Work(int worker) {
  for (;;) {
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return;
    call_(context_, i, worker);
  }
}

void ThreadPool::Run(int64_t count, Trampoline call, const void* context) {
  call_ = call;
  context_ = context;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  running_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  Work(0);
  int spins = 0;
  for (int32_t left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    if (++spins < kSpins) {
      Pause();
    } else {
      running_.wait(left, std::memory_order_acquire);
    }
  }
}

void ThreadPool::RunWorker(int worker) {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; spins < kSpins && generation_.load(std::memory_order_acquire) == seen;
         ++spins)
      Pause();
    generation_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    Work(worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace aisp
