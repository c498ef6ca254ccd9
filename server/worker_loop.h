// WorkerLoop: the engine thread of a worker. It owns the role from Start to Stop and runs its loop
// (worker/worker_role.h). Work arrives as posted functions, in order; the thread sleeps only when
// there is nothing to compute. While a step runs on a device, it keeps running posted functions and
// polls for the end of the step; while a prefill worker on this host computes for it, it polls for
// notes, since a note is there 0.2 ms before the same message on a link wakes a thread. With a GPU
// it also polls for a while after work (PollAfterWork). A step that computes on this thread serves
// other workers' urgent requests between layers.
//
// Threads: Post, Wake, Stop from any thread; `role` and what it uses belong to the loop's thread,
// from the first posted function on.
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
  // `on_step` runs on the loop's thread after every collected step and every timer; for metrics.
  WorkerLoop(std::string name, const Clock* clock, std::function<void()> on_step);
  ~WorkerLoop();

  // Before Start: for so long after its last step the thread polls for posted functions instead of
  // sleeping. To wake a thread of an idle core takes 0.05 to 0.15 ms, part of a request's TTFT.
  void PollAfterWork(Duration time) { poll_after_work_ = time; }
  // Whether the thread waits for a message or timer, or is about to. Any thread.
  bool Asleep() const { return asleep_; }
  // Posting is allowed before Start; the functions run once the thread does.
  void Start(WorkerRole* role);
  void Post(std::function<void()> fn);
  // As Post, but `fn` may also run inside a step (RunInStep), ahead of functions given to Post.
  // Functions posted this way keep their order.
  void PostInStep(std::function<void()> fn);
  // Called by a step that computes on this thread: runs PostInStep's functions, and handles
  // completions of transports and tiers.
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
  // Waits for a step on a device or for a note, until `until` if there is neither, or returns early
  // when something else is to be done.
  void Poll(Instant until);
  bool HasNews();

  const std::string name_;
  const Clock* const clock_;
  const std::function<void()> on_step_;
  WorkerRole* role_ = nullptr;
  Duration poll_after_work_{};
  Instant awake_until_{INT64_MIN};
  bool starved_ = false;  // there is work that cannot be launched: wait for a message or timer

  std::mutex mutex_;
  std::condition_variable wake_;
  struct Posted {
    std::function<void()> fn;
    bool in_step;
  };
  void Add(Posted posted);
  std::vector<Posted> posted_;  // bounded by the links' limits
  // A function for RunInStep is waiting; readable without the lock.
  std::atomic<bool> in_step_{false};
  std::atomic<bool> asleep_{false};
  bool transport_ready_ = false;
  bool stop_ = false;

  std::vector<Posted> running_;
  std::thread thread_;
};

}  // namespace aisp
