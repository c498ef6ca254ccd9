// WorkerLoop: the engine thread of one worker. It owns the role from Start to Stop and runs its
// loop (worker/worker_role.h): what others want done arrives as posted functions, in order; it
// sleeps only when there is nothing to compute. While a step computes on a device it goes on doing
// what is posted, and watches for the end of the step without sleeping. A step that computes on
// this thread lets in between two of its layers what another worker waits for.
//
// Threads: Post, Wake, Stop from any thread; `role` and what it uses are touched by the loop's
// thread alone, from the first posted function on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "worker/worker_role.h"

namespace aisp {

class WorkerLoop {
 public:
  // `on_step` runs on the loop's thread after every collected step and every timer, for metrics.
  WorkerLoop(std::string name, const Clock* clock, std::function<void()> on_step);
  ~WorkerLoop();

  // Posting works before Start; the functions run once the thread does.
  void Start(WorkerRole* role);
  void Post(std::function<void()> fn);
  // Likewise, and it may run inside a step: see RunInStep. There it overtakes what Post was given;
  // among themselves they stay in order.
  void PostInStep(std::function<void()> fn);
  // Called by the step that is being computed: does what may be done there, and takes completions
  // of transports and tiers.
  void RunInStep();
  // A KvTransport has completions.
  void WakeTransport();
  // Runs what was posted before, then ends and joins the thread.
  void Stop();

 private:
  void Run();
  bool RunPosted();
  void Advance();
  void SleepUntilWork();
  // A step computes on a device: ends with it, or as soon as something else is to be done.
  void AwaitStep();
  bool HasNews();

  const std::string name_;
  const Clock* const clock_;
  const std::function<void()> on_step_;
  WorkerRole* role_ = nullptr;
  bool starved_ =
      false;  // there is work, but nothing of it could be launched: wait for a message or a timer

  std::mutex mutex_;
  std::condition_variable wake_;
  struct Posted {
    std::function<void()> fn;
    bool in_step;
  };
  void Add(Posted posted);
  std::vector<Posted> posted_;  // bounded by the links' own bounds
  // Something may run inside a step, seen without the lock.
  std::atomic<bool> in_step_{false};
  bool transport_ready_ = false;
  bool stop_ = false;

  std::vector<Posted> running_;
  std::thread thread_;
};

}  // namespace aisp
