// Threads with names, and a way to wake one that sleeps in epoll.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/result.h"

namespace aisp {

// A thread that has a name (the first 15 bytes show in top and gdb) and is joined by its
// destructor, so whatever it runs must already have been told to stop. It takes no signals: those
// are for the main thread. Move-only; the owner's thread.
class Thread {
 public:
  // kBackground: long work that others are not to wait for. Where cores are fewer than threads that
  // want them, it gets about a third of what each other one gets.
  enum class Priority : uint8_t { kNormal, kBackground };

  Thread() = default;
  Thread(const std::string& name, std::function<void()> body,
         Priority priority = Priority::kNormal);
  Thread(Thread&&) noexcept = default;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();

  bool joinable() const { return thread_.joinable(); }
  // Waits for the end of `body`; once only.
  void Join();

 private:
  std::thread thread_;
};

// Wakes a thread that sleeps in poll or epoll on fd(). Wakes that nobody has seen yet are merged
// into one. Wake may be called from any thread and from a signal handler; Drain and Wait belong to
// the thread that sleeps.
class Waker {
 public:
  static Result<Waker> Create();
  Waker(Waker&& other) noexcept;
  Waker& operator=(Waker&& other) noexcept;
  ~Waker();

  // Readable (POLLIN) while a wake is pending.
  int fd() const { return fd_; }
  void Wake() const;
  // Forgets the pending wake; true if there was one.
  bool Drain() const;
  // Sleeps until a wake or `timeout`, and drains; true if there was a wake.
  bool Wait(Duration timeout) const;

 private:
  explicit Waker(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace aisp
