#include "worker/pulse.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

// A step may take this multiple of the expected time: attention grows with the context, machines
// are shared.
constexpr int kSlack = 20;
// The slowest row's time decays by this factor per step.
constexpr double kFade = 0.999;

}  // namespace

void Pulse::SetLinks(std::vector<LinkId> links, Duration interval) {
  const std::lock_guard lock(mutex_);
  links_ = std::move(links);
  interval_ = std::max<Duration>(interval, std::chrono::milliseconds(10));
}

void Pulse::StepBegins(int64_t rows, Instant now) {
  const std::lock_guard lock(mutex_);
  steps_.push_back({std::max<int64_t>(1, rows), now});
}

void Pulse::StepFailed() {
  const std::lock_guard lock(mutex_);
  if (!steps_.empty()) steps_.pop_back();
}

void Pulse::StepEnds(Instant now) {
  const std::lock_guard lock(mutex_);
  if (steps_.empty()) return;
  const Step step = steps_.front();
  steps_.erase(steps_.begin());
  ++ended_;
  // The next step was queued behind it, so it begins now.
  if (!steps_.empty()) steps_.front().begin = now;
  const double row_ns =
      static_cast<double>((now - step.begin).count()) / static_cast<double>(step.rows);
  slowest_row_ns_ = std::max(slowest_row_ns_ * kFade, row_ns);
}

Duration Pulse::Expected() const {
  if (steps_.empty()) return {};
  return Duration(static_cast<int64_t>(slowest_row_ns_ * static_cast<double>(steps_.front().rows)));
}

Duration Pulse::Limit() const {
  const Duration expected = Expected();
  if (expected == Duration{}) return options_.most_limit;
  // By division: the expected time may be too long to multiply.
  const Duration wide =
      expected > options_.most_limit / kSlack ? options_.most_limit : kSlack * expected;
  return std::clamp(wide, std::min(options_.least_limit, options_.most_limit), options_.most_limit);
}

std::optional<Pulse::Beat> Pulse::Due(Instant now) {
  const std::lock_guard lock(mutex_);
  if (steps_.empty() || links_.empty()) return std::nullopt;
  const Duration age = now - Oldest();
  if (age < interval_ || age > Limit() || now - last_beat_ < interval_) return std::nullopt;
  last_beat_ = now;
  Beat beat;
  beat.links = links_;
  v1::Heartbeat* heartbeat = beat.message.mutable_heartbeat();
  heartbeat->set_incarnation(options_.incarnation);
  heartbeat->set_steps_ended(ended_);
  heartbeat->set_step_age_ns(static_cast<uint64_t>(age.count()));
  heartbeat->set_step_expected_ns(static_cast<uint64_t>(Expected().count()));
  return beat;
}

Instant Pulse::Next(Instant now) const {
  const std::lock_guard lock(mutex_);
  if (steps_.empty()) return now + interval_;
  return std::max({Oldest() + interval_, last_beat_ + interval_, now + interval_ / 8});
}

Status Pulse::Moves(Instant now) const {
  const std::lock_guard lock(mutex_);
  if (steps_.empty()) return {};
  const Duration age = now - Oldest();
  const Duration limit = Limit();
  if (age <= limit) return {};
  return Unavailable(fmt::format(
      "a step of {} rows has run for {:.1f} s, and {:.1f} s are the most that is plausible",
      steps_.front().rows, ToSeconds(age), ToSeconds(limit)));
}

bool Pulse::InStep() const {
  const std::lock_guard lock(mutex_);
  return !steps_.empty();
}

}  // namespace aisp
