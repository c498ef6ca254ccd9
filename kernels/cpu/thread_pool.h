// ThreadPool: a fixed set of threads, including the caller, that run one loop at a time.
//
// One caller at a time. A worker spins briefly and then sleeps, because processes may share the
// cores. With one thread there are no workers, and the caller runs the loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/threads.h"

namespace aisp {

class ThreadPool {
 public:
  // `threads`: at least 1, including the caller.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return threads_; }

  // Calls body(index, worker) for each index in [0, count), in any order; worker in [0, threads())
  // is unique among concurrent calls. Returns when all are done.
  template <typename Body>
  void For(int64_t count, const Body& body) {
    if (threads_ == 1 || count <= 1) {
      for (int64_t i = 0; i < count; ++i) body(i, 0);
      return;
    }
    Run(
        count,
        [](const void* context, int64_t i, int worker) {
          (*static_cast<const Body*>(context))(i, worker);
        },
        &body);
  }

 private:
  using Trampoline = void (*)(const void*, int64_t, int);
  void Run(int64_t count, Trampoline call, const void* context);
  void Work(int worker);
  void RunWorker(int worker);

  const int threads_;
  Trampoline call_ = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint32_t> generation_{0};
  std::atomic<int32_t> running_{0};
  std::atomic<bool> stop_{false};
  std::vector<Thread> workers_;
};

}  // namespace aisp
