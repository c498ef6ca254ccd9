// EventLoop: the thread that owns a router and the jobs around it, as code without I/O sees it.
// net/io_loop.h runs on sockets and a real clock, tests/sim on simulated time.
#pragma once

#include <functional>
#include <memory>

#include "common/clock.h"

namespace aisp {

class EventLoop {
 public:
  virtual ~EventLoop() = default;

  // Any thread: runs `fn` on the loop, in order of posting; never inside the call.
  virtual void Post(std::function<void()> fn) = 0;

  // A call that is due later; destroying the handle cancels it.
  class Timer {
   public:
    virtual ~Timer() = default;
  };
  // Loop thread: runs `fn` once at `when` (steady clock) unless the returned handle is destroyed
  // before; at kNever: never.
  virtual std::shared_ptr<Timer> RunAt(Instant when, std::function<void()> fn) = 0;
};

}  // namespace aisp
