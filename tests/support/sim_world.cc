#include "tests/support/sim_world.h"

#include <cstdio>
#include <utility>

#include "common/check.h"

namespace aisp {
namespace {

constexpr uint64_t kMaxEventsAtOneMoment = 100'000;

}  // namespace

void SimWorld::At(Instant when, std::function<void()> what) {
  AISP_CHECK(when >= clock.Now());
  queue_.push({when, scheduled_++, std::move(what)});
}

bool SimWorld::Step(Instant end) {
  if (queue_.empty() || queue_.top().when > end) {
    clock.Set(end);
    return false;
  }
  // priority_queue gives no mutable top; the event is popped right after.
  std::function<void()> what = std::move(const_cast<Event&>(queue_.top()).what);
  at_this_moment_ = queue_.top().when == clock.Now() ? at_this_moment_ + 1 : 0;
  if (at_this_moment_ > kMaxEventsAtOneMoment)
    Fail("time stands still: something schedules itself without end");
  clock.Set(queue_.top().when);
  queue_.pop();
  ++events_;
  Digest(static_cast<uint64_t>(clock.Now().ns));
  what();
  return true;
}

void SimWorld::Fail(const std::string& what) {
  Trace("FAIL", what);
  if (failure_.empty()) failure_ = what;
}

void SimWorld::Trace(const std::string& who, const std::string& what) {
  if (!trace_) return;
  std::printf("%12.6f %-10s %s\n", ToSeconds(clock.Now() - Instant{}), who.c_str(), what.c_str());
}

void SimProcess::Deliver(std::function<void()> what) {
  if (!alive_) return;
  if (!running()) {
    backlog_.push_back(std::move(what));
    return;
  }
  what();
  after_each_();
}

void SimProcess::Resume() {
  if (!alive_ || !paused_) return;
  paused_ = false;
  CatchUp();
}

void SimProcess::Unblock() {
  if (!alive_ || !blocked_) return;
  blocked_ = false;
  if (!running()) return;
  // A loop handles what has arrived before it begins the next long operation.
  for (auto waited = std::exchange(backlog_, {}); const auto& what : waited) what();
  after_each_();
}

void SimProcess::CatchUp() {
  if (!running()) return;
  after_each_();  // timers come first: what a stopped process missed has not been read yet
  while (!backlog_.empty() && running()) {
    std::function<void()> what = std::move(backlog_.front());
    backlog_.pop_front();
    what();
    after_each_();
  }
}

void SimProcess::Kill() {
  alive_ = false;
  backlog_.clear();
}

}  // namespace aisp
