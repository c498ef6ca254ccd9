// An IoLoop on its own thread, for tests whose main thread is the client.
#pragma once

#include <functional>
#include <future>

#include "common/threads.h"
#include "net/io_loop.h"

namespace aisp {

class LoopThread {
 public:
  LoopThread() : thread_("test-loop", [this] { loop_.Run(); }) {
    On([] {});
  }
  ~LoopThread() { Stop(); }

  IoLoop& loop() { return loop_; }
  // Runs `fn` on the loop and waits for it.
  void On(const std::function<void()>& fn) {
    std::promise<void> done;
    loop_.Post([&] {
      fn();
      done.set_value();
    });
    done.get_future().wait();
  }
  void Stop() {
    loop_.Stop();
    if (thread_.joinable()) thread_.Join();
  }

 private:
  IoLoop loop_;
  Thread thread_;
};

}  // namespace aisp
