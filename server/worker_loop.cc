#include "server/worker_loop.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace aisp {

WorkerLoop::WorkerLoop(std::string name, const Clock* clock, std::function<void()> on_step)
    : name_(std::move(name)), clock_(clock), on_step_(std::move(on_step)) {}

WorkerLoop::~WorkerLoop() { Stop(); }

void WorkerLoop::Start(WorkerRole* role) {
  role_ = role;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
    Run();
  });
}

void WorkerLoop::Post(std::function<void()> fn) { Add({std::move(fn), false}); }

void WorkerLoop::PostInStep(std::function<void()> fn) { Add({std::move(fn), true}); }

void WorkerLoop::Add(Posted posted) {
  {
    std::lock_guard lock(mutex_);
    if (posted.in_step) in_step_ = true;
    posted_.push_back(std::move(posted));
  }
  wake_.notify_one();
}

void WorkerLoop::RunInStep() {
  if (!in_step_.load(std::memory_order_relaxed)) return;
  std::vector<Posted> now;
  bool transport = false;
  {
    std::lock_guard lock(mutex_);
    in_step_ = false;
    transport = std::exchange(transport_ready_, false);
    const auto first = std::stable_partition(posted_.begin(), posted_.end(),
                                             [](const Posted& posted) { return !posted.in_step; });
    now.assign(std::make_move_iterator(first), std::make_move_iterator(posted_.end()));
    posted_.erase(first, posted_.end());
  }
  for (const Posted& posted : now) posted.fn();
  if (transport) role_->OnTransport();
}

void WorkerLoop::WakeTransport() {
  {
    std::lock_guard lock(mutex_);
    transport_ready_ = in_step_ = true;
  }
  wake_.notify_one();
}

void WorkerLoop::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void WorkerLoop::Run() {
  role_->Start();
  while (RunPosted()) {
    Advance();
    SleepUntilWork();
  }
}

// Runs posted functions; false once stopped and all have run.
bool WorkerLoop::RunPosted() {
  bool transport = false;
  bool stop = false;
  {
    std::lock_guard lock(mutex_);
    std::swap(posted_, running_);
    transport = std::exchange(transport_ready_, false);
    in_step_ = false;
    stop = stop_;
  }
  for (const Posted& posted : running_) posted.fn();
  running_.clear();
  if (transport) role_->OnTransport();
  return !stop;
}

void WorkerLoop::Advance() {
  const Instant now = clock_->Now();
  bool changed = false;
  if (now >= role_->NextTimer()) {
    role_->OnTimer(now);
    changed = true;
  }
  starved_ = false;
  while (role_->CanLaunch()) {
    role_->Launch();
    if (!role_->InFlight()) {
      starved_ = true;
      break;
    }
  }
  if (role_->InFlight() && role_->StepDone()) {
    role_->Collect();
    changed = true;
  }
  if (changed && on_step_) on_step_();
}

bool WorkerLoop::HasNews() {
  std::lock_guard lock(mutex_);
  return stop_ || transport_ready_ || !posted_.empty();
}

void WorkerLoop::Poll(Instant until) {
  const Instant end = std::min(until, role_->NextTimer());
  while (!role_->InFlight() || !role_->StepDone()) {
    if (role_->HasNotes()) return role_->OnTransport();
    if (HasNews() || (end != kNever && clock_->Now() >= end)) return;
    std::this_thread::yield();
  }
}

void WorkerLoop::SleepUntilWork() {
  if (role_->CanLaunch() && !starved_) return;
  const bool busy = role_->InFlight() || role_->ExpectsSoon();
  if (busy) awake_until_ = clock_->Now() + poll_after_work_;
  if (busy || clock_->Now() < awake_until_) return Poll(busy ? kNever : awake_until_);
  const Instant timer = role_->NextTimer();
  std::unique_lock lock(mutex_);
  auto ready = [&] { return stop_ || transport_ready_ || !posted_.empty(); };
  asleep_ = true;
  if (timer == kNever) {
    wake_.wait(lock, ready);
  } else if (const Duration left = timer - clock_->Now(); left.count() > 0) {
    wake_.wait_for(lock, left, ready);
  }
  asleep_ = false;
}

}  // namespace aisp
