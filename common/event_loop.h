// EventLoop: the thread that owns a router and its jobs, as seen by code without I/O. net/io_loop.h
// implements it over sockets and a real clock, tests/sim over simulated time.
#pragma once

#include <functional>
#include <memory>

#include "common/clock.h"

namespace aisp {

class EventLoop {
 public:
  virtual ~EventLoop() = default;

  // Runs `fn` on the loop, in order of posting and never inside this call. Any thread.
  virtual void Post(std::function<void()> fn) = 0;

  // A scheduled call; destroying the handle cancels it.
  class Timer {
   public:
    virtual ~Timer() = default;
  };
  // Runs `fn` once at `when` unless the handle is destroyed before; kNever: never. Loop thread
  // only.
  virtual std::shared_ptr<Timer> RunAt(Instant when, std::function<void()> fn) = 0;
};

}  // namespace aisp
