#include "simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "common/check.h"

namespace aisp::simulate {
namespace {

constexpr Duration kTelemetryInterval = std::chrono::milliseconds(50);
constexpr Duration kTimeout = std::chrono::hours(2);  // requests still running by then have failed
// Prompts use ids below this: so many that unrelated prompts differ in their first unit.
constexpr int32_t kVocabulary = 1 << 30;

double WallMicros() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

v1::Fingerprint FingerprintOf(const WorkerProfile& profile) {
  v1::Fingerprint f;
  f.set_protocol_version(1);
  v1::KvLayoutDesc& kv = *f.mutable_kv_layout();
  kv.set_num_layers(static_cast<uint32_t>(profile.num_layers));
  kv.set_num_kv_heads(1);
  // Only the product matters: bytes per token in all layers.
  kv.set_head_dim(static_cast<uint32_t>(
      std::max(1.0, profile.kv_bytes_per_token / (2.0 * profile.num_layers))));
  kv.set_dtype("fp8_e4m3");
  kv.set_block_tokens(static_cast<uint32_t>(profile.block_tokens));
  return f;
}

RouterOptions WithTimeout(RouterOptions options) {
  options.default_timeout = kTimeout;
  options.telemetry_interval = kTelemetryInterval;
  // Simulated workers report only between steps, and none hangs.
  options.quiet_limit = options.silence_limit;
  return options;
}

}  // namespace

Simulation::Simulation(const ClusterOptions& options, const std::vector<loadgen::WorkItem>& items,
                       const std::vector<double>& at_s, const Objective& limits, double hopeless)
    : options_(options),
      items_(items),
      at_s_(at_s),
      limits_(limits),
      hopeless_(hopeless),
      fingerprint_(FingerprintOf(options.fleets.front().profile)),
      frontend_(FromMs(options.fleets.front().profile.frontend_ms)),
      message_(FromMs(options.fleets.front().profile.message_ms)) {
  clock_.Set(kSimulationStart);
  prompts_.vocab = kVocabulary;
  clients_.resize(items.size());
  outcome_.requests.resize(items.size());
  outcome_.decisions_us.reserve(items.size());
  LinkSender<v1::RouterMessage>* const sender = this;
  for (int r = 0; r < options.routers; ++r) {
    metrics_.push_back(std::make_unique<Metrics>());
    routers_.push_back(std::make_unique<Router>(WithTimeout(options.router), fingerprint_, &clock_,
                                                options.seed + static_cast<uint64_t>(r), sender,
                                                metrics_.back().get()));
  }
  AddWorkers(options);
  if (!options.planner) return;
  planner_ = std::make_unique<planner::Planner>(*options.planner);
  PlanLater();
}

void Simulation::AddWorkers(const ClusterOptions& options) {
  SplitMix64 random(options.seed ^ 0x57A66E12);
  const auto add = [&](const WorkerProfile& profile, bool prefill, const std::string& id) {
    workers_.push_back(std::make_unique<Worker>(id, prefill, profile, fingerprint_, LinkId(),
                                                random.Next(), this));
    Worker& worker = *workers_.back();
    worker.set_link(NewLink(&worker));
    by_name_[id] = &worker;
    v1::WorkerMessage message;
    *message.mutable_register_() = worker.Registration();
    for (size_t r = 0; r < routers_.size(); ++r)
      routers_[r]->OnMessage(LinkId(worker.link().value + r), message);
    worker.OnTelemetryTimer();
    // Offsets, so that workers do not all report at once.
    const Duration offset(
        static_cast<int64_t>(random.Below(static_cast<uint64_t>(kTelemetryInterval.count()))));
    Schedule(Now() + offset, {Event::kTelemetry, &worker, nullptr, 0});
  };
  for (size_t f = 0; f < options.fleets.size(); ++f) {
    const Fleet& fleet = options.fleets[f];
    for (int i = 0; i < fleet.prefill; ++i) add(fleet.profile, true, fmt::format("p{}-{}", f, i));
    for (int i = 0; i < fleet.decode; ++i) add(fleet.profile, false, fmt::format("d{}-{}", f, i));
  }
}

Router& Simulation::NextRouter() const {
  return **std::min_element(routers_.begin(), routers_.end(), [](const auto& a, const auto& b) {
    return a->NextTimer() < b->NextTimer();
  });
}

void Simulation::Handle(const Event& event) {
  switch (event.kind) {
    case Event::kArrival:
      return Arrive(event.value);
    case Event::kStepEnd:
      return event.worker->OnStepEnd();
    case Event::kKv:
      return event.worker->OnKv(event.value);
    case Event::kJob:
      return event.worker->OnJob(*event.other, event.value);
    case Event::kPulled:
      return event.worker->OnPulled(*event.other, event.value);
    case Event::kToWorker: {
      const v1::RouterMessage message = to_workers_.Take(event.value);
      return event.worker->OnRouterMessage(message);
    }
    case Event::kToRouter:
      return routers_[RouterOf(event.link).index]->OnMessage(event.link,
                                                             to_router_.Take(event.value));
    case Event::kJobRefused:
      return event.worker->OnJobRefused(event.value);
    case Event::kRoleTimer:
      return event.worker->OnRoleTimer();
    case Event::kPlan:
      return Plan();
    case Event::kTelemetry:
      event.worker->OnTelemetryTimer();
      return Schedule(Now() + kTelemetryInterval, {Event::kTelemetry, event.worker, nullptr, 0});
  }
}

Outcome Simulation::Play() {
  const double wall = WallMicros();
  ScheduleArrival(0);
  while (ended_ < items_.size() && !Hopeless()) {
    AISP_CHECK(!events_.empty());
    const Event event = events_.Next();
    Router& next = NextRouter();
    const Instant timer = next.NextTimer();
    if (timer <= Instant{event.at_ns}) {
      clock_.Set(std::max(Now(), timer));
      next.OnTimer(Now());
      continue;
    }
    events_.Pop();
    clock_.Set(Instant{event.at_ns});
    Handle(event);
    for (size_t done : finished_) clients_[done].reset();
    finished_.clear();
  }
  outcome_.given_up = ended_ < items_.size();
  outcome_.seconds = ToSeconds(Now() - kSimulationStart);
  outcome_.wall_seconds = (WallMicros() - wall) * 1e-6;
  Conclude();
  return std::move(outcome_);
}

void Simulation::Conclude() {
  int prefill = 0, decode = 0;
  for (const auto& worker : workers_) {
    const double part = outcome_.seconds > 0 ? ToSeconds(worker->busy()) / outcome_.seconds : 0;
    (worker->prefill() ? outcome_.prefill_busy : outcome_.decode_busy) += part;
    ++(worker->prefill() ? prefill : decode);
    outcome_.preemptions += static_cast<int64_t>(worker->preemptions());
    outcome_.computed_prompt_tokens += worker->computed_prompt_tokens();
  }
  outcome_.prefill_busy /= std::max(1, prefill);
  outcome_.decode_busy /= std::max(1, decode);
  std::sort(outcome_.decisions_us.begin(), outcome_.decisions_us.end());
}

}  // namespace aisp::simulate
