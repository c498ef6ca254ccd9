#include "server/pulse_thread.h"

#include <utility>

namespace aisp {

PulseThread::PulseThread(Pulse* pulse, LinkSender<v1::WorkerMessage>* links, const Clock* clock)
    : pulse_(pulse), links_(links), clock_(clock), thread_("pulse", [this] { Run(); }) {}

PulseThread::~PulseThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.Join();
}

void PulseThread::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Instant now = clock_->Now();
    if (auto beat = pulse_->Due(now)) {
      lock.unlock();
      for (const LinkId link : beat->links) links_->Send(link, beat->message);
      lock.lock();
      continue;
    }
    wake_.wait_for(lock, pulse_->Next(now) - now, [this] { return stop_; });
  }
}

}  // namespace aisp
