// SimWorld: simulated time, one seeded random source and the processes of a simulated cluster, in
// one thread.
//
// Everything is an event with a time; equal times run in the order in which they were scheduled.
// Nothing reads a real clock, an address or a hash of a pointer, so a seed replays exactly.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/random.h"

namespace aisp {

class SimWorld {
 public:
  SimWorld(uint64_t seed, bool trace) : random(seed), trace_(trace) {}

  void At(Instant when, std::function<void()> what);
  void After(Duration delay, std::function<void()> what) {
    At(clock.Now() + delay, std::move(what));
  }
  // Runs the next event if it is not later than `end`; false (and the time is `end`) when there is
  // none.
  bool Step(Instant end);

  Instant Now() const { return clock.Now(); }
  double Uniform(double low, double high) { return low + (high - low) * random.Uniform(); }
  int64_t Between(int64_t low, int64_t high) {  // inclusive
    return low + static_cast<int64_t>(random.Below(static_cast<uint64_t>(high - low + 1)));
  }
  bool Chance(double p) { return random.Uniform() < p; }
  Duration Ms(double low, double high) { return FromMs(Uniform(low, high)); }

  // The first violated invariant; the run ends with it.
  void Fail(const std::string& what);
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }

  bool tracing() const { return trace_; }
  // One line of the event log: simulated time, who, what.
  void Trace(const std::string& who, const std::string& what);
  uint64_t events() const { return events_; }
  // Adds an observable value to the run's digest: two runs of a seed must end with the same.
  void Digest(uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001b3u; }
  uint64_t digest() const { return digest_; }

  ManualClock clock;
  SplitMix64 random;

 private:
  struct Event {
    Instant when;
    uint64_t order;
    std::function<void()> what;
    bool operator>(const Event& o) const {
      return when != o.when ? when > o.when : order > o.order;
    }
  };
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  uint64_t scheduled_ = 0;
  uint64_t events_ = 0;
  uint64_t at_this_moment_ = 0;
  uint64_t digest_ = 0xcbf29ce484222325u;
  bool trace_;
  std::string failure_;
};

// A simulated process as the others see it. What reaches a stopped process (SIGSTOP) waits and is
// handled in order when it resumes; what reaches a dead one is lost.
class SimProcess {
 public:
  SimProcess(std::string process_name, std::function<void()> after_each)
      : name(std::move(process_name)), after_each_(std::move(after_each)) {}

  // Runs `what` inside the process, then its loop.
  void Deliver(std::function<void()> what);
  void Pause() { paused_ = true; }
  void Resume();
  // Its thread is inside a long operation: arrivals wait, timers are late.
  void Block() { blocked_ = true; }
  void Unblock();
  void Kill();
  bool alive() const { return alive_; }
  bool paused() const { return paused_; }
  bool blocked() const { return alive_ && blocked_; }
  bool running() const { return alive_ && !paused_ && !blocked_; }

  const std::string name;

 private:
  void CatchUp();

  std::function<void()> after_each_;
  std::deque<std::function<void()>> backlog_;
  bool alive_ = true;
  bool paused_ = false;
  bool blocked_ = false;
};

}  // namespace aisp
