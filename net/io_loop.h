// IoLoop: the one reactor of a process. HTTP connections, timers and posted work run on its single
// thread; gRPC callbacks only post to it. The router and everything around it live on this thread,
// so they need no locks.
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

  // Runs until Stop; call from the thread that shall own everything on the loop. Once.
  void Run();
  // Any thread.
  void Stop();
  // What was posted and has not run when the loop stops is dropped with the loop.
  void Post(std::function<void()> fn) override;
  std::shared_ptr<Timer> RunAt(Instant when, std::function<void()> fn) override;
  bool OnLoopThread() const;

  // For the HTTP server only: the asio io_context behind it.
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  // Shared with the timers, which may outlive the loop.
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
