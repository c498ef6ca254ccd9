// IoLoop: the reactor of a process. HTTP connections, timers and posted work run on its single
// thread; gRPC callbacks only post to it. The router and everything around it live on this thread
// and need no locks.
#pragma once

#include <functional>
#include <memory>

#include "common/clock.h"
#include "common/event_loop.h"

namespace aisp {

class IoLoop final : public EventLoop {
 public:
  IoLoop();
  ~IoLoop() override;
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  // Runs until Stop, on the thread that will own everything on the loop. Call once.
  void Run();
  // Any thread.
  void Stop();
  // Functions that have not run when the loop stops are dropped with the loop.
  void Post(std::function<void()> fn) override;
  std::shared_ptr<Timer> RunAt(Instant when, std::function<void()> fn) override;
  bool OnLoopThread() const;

  // For net/ only: the Asio io_context.
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  // Shared with timers, which may outlive the loop.
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
