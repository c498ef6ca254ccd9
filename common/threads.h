// Named threads, and a way to wake a thread that sleeps in epoll.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/result.h"

namespace aisp {

// A thread with a name (its first 15 bytes show in top and gdb). The destructor joins, so the body
// must have been told to stop before. It receives no signals: the main thread handles them.
// Move-only; only the owner's thread may use it.
class Thread {
 public:
  // kBackground: long work that must not delay other threads. When cores are short, it gets about a
  // third of a normal thread's share.
  enum class Priority : uint8_t { kNormal, kBackground };

  Thread() = default;
  Thread(const std::string& name, std::function<void()> body,
         Priority priority = Priority::kNormal);
  Thread(Thread&&) noexcept = default;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();

  bool joinable() const { return thread_.joinable(); }
  // Waits until `body` has returned; may be called once.
  void Join();

 private:
  std::thread thread_;
};

// Wakes a thread that sleeps in poll or epoll on fd(). Pending wakes are merged into one. Wake may
// be called from any thread and from a signal handler; Drain and Wait belong to the sleeping
// thread.
class Waker {
 public:
  static Result<Waker> Create();
  Waker(Waker&& other) noexcept;
  Waker& operator=(Waker&& other) noexcept;
  ~Waker();

  // Readable (POLLIN) while a wake is pending.
  int fd() const { return fd_; }
  void Wake() const;
  // Clears the pending wake; true if there was one.
  bool Drain() const;
  // Sleeps until a wake or `timeout`, then drains; true if there was a wake.
  bool Wait(Duration timeout) const;

 private:
  explicit Waker(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace aisp
