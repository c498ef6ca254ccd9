// PulseThread sends Pulse's messages while the engine thread is inside a step; PulseExecutor tells
// Pulse about the steps.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "common/clock.h"
#include "common/threads.h"
#include "proto/link.h"
#include "server/forwarding_executor.h"
#include "worker/pulse.h"

namespace aisp {

// Forwards everything to another executor. The engine thread.
class PulseExecutor final : public ForwardingExecutor {
 public:
  PulseExecutor(std::unique_ptr<ServingExecutor> real, Pulse* pulse, const Clock* clock)
      : ForwardingExecutor(std::move(real)), pulse_(pulse), clock_(clock) {}
  Result<Ticket> Launch(const StepInput& input) override {
    pulse_->StepBegins(static_cast<int64_t>(input.batch.tokens.size()), clock_->Now());
    auto ticket = ForwardingExecutor::Launch(input);
    if (!ticket) pulse_->StepFailed();
    return ticket;
  }
  Result<StepResult> Collect(Ticket ticket) override {
    auto result = ForwardingExecutor::Collect(ticket);
    pulse_->StepEnds(clock_->Now());
    return result;
  }

 private:
  Pulse* const pulse_;
  const Clock* const clock_;
};

// Runs while it exists. `links` must accept Send from any thread, as net/'s do.
class PulseThread {
 public:
  PulseThread(Pulse* pulse, LinkSender<v1::WorkerMessage>* links, const Clock* clock);
  ~PulseThread();

 private:
  void Run();

  Pulse* const pulse_;
  LinkSender<v1::WorkerMessage>* const links_;
  const Clock* const clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  Thread thread_;
};

}  // namespace aisp
