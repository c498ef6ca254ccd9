// IoLoop: the one reactor of a process. HTTP connections, timers and posted work run on its single
// thread; gRPC callbacks only post to it. The router and everything around it live on this thread,
// so they need no locks.
#pragma once

#include <functional>
#include <memory>

#include "common/clock.h"

namespace aisp {

class IoLoop {
 public:
  IoLoop();
  ~IoLoop();
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  // Runs until Stop; call from the thread that shall own everything on the loop. Once.
  void Run();
  // Any thread.
  void Stop();
  // Any thread: runs `fn` on the loop, in order of posting; never inside the call. What was posted
  // and has not run when the loop stops is dropped with the loop.
  void Post(std::function<void()> fn);
  // Loop thread: runs `fn` once at `when` (steady clock) unless the returned handle is destroyed
  // before; at kNever: never.
  class Timer;
  std::shared_ptr<Timer> RunAt(Instant when, std::function<void()> fn);
  bool OnLoopThread() const;

  // For the HTTP server only: the asio io_context behind it.
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  // Shared with the timers, which may outlive the loop.
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
