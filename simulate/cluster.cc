#include "simulate/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <queue>

#include "common/check.h"
#include "common/metrics.h"
#include "simulate/replicas.h"
#include "simulate/worker.h"

namespace aisp::simulate {
namespace {

constexpr Instant kStart{1'000'000'000};
constexpr Duration kTelemetryInterval = std::chrono::milliseconds(50);
constexpr Duration kPlanInterval = std::chrono::seconds(1);
constexpr Duration kTimeout = std::chrono::hours(2);  // what has not ended by then has failed
// Prompts are ids below this: enough that two that share nothing differ in their first unit.
constexpr int32_t kVocabulary = 1 << 30;

double WallMicros() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Of this thread: what a placement costs, whatever else the machine does meanwhile.
double CpuMicros() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

class Simulation final : public World, private LinkSender<v1::RouterMessage> {
 public:
  Simulation(const ClusterOptions& options, const std::vector<loadgen::WorkItem>& items,
             const std::vector<double>& at_s, const Objective& limits, double hopeless);
  Outcome Play();

  Instant Now() const override { return clock_.Now(); }
  void SendToRouter(Worker& from, v1::WorkerMessage message) override;
  void StepEndsAt(Worker& worker, Instant at) override {
    Schedule(at, {Event::kStepEnd, &worker, nullptr, 0});
  }
  void KvArrivesAt(Worker& decode, uint64_t wire_id, Instant at) override {
    Schedule(at, {Event::kKv, &decode, nullptr, wire_id});
  }
  void JobArrivesAt(Worker& prefill, Worker& decode, uint64_t wire_id, Instant at) override {
    Schedule(at, {Event::kJob, &prefill, &decode, wire_id});
  }
  void PulledAt(Worker& puller, Worker& decode, uint64_t wire_id, Instant at) override {
    Schedule(at, {Event::kPulled, &puller, &decode, wire_id});
  }
  void JobRefusedAt(Worker& decode, uint64_t wire_id, Instant at) override {
    Schedule(at, {Event::kJobRefused, &decode, nullptr, wire_id});
  }
  void RoleTimerAt(Worker& worker, Instant at) override {
    Schedule(at, {Event::kRoleTimer, &worker, nullptr, 0});
  }
  void Rejoin(Worker& worker) override;
  Worker* Named(const std::string& id) override { return by_name_.at(id); }
  bool SeveralRouters() const override { return routers_.size() > 1; }

 private:
  struct Event {
    enum Kind : uint8_t {
      kArrival,
      kStepEnd,
      kKv,
      kJob,
      kPulled,
      kJobRefused,
      kToWorker,
      kToRouter,
      kTelemetry,
      kRoleTimer,
      kPlan
    };
    Kind kind = kArrival;
    Worker* worker = nullptr;
    Worker* other = nullptr;
    uint64_t value = 0;  // a request's index, a wire id or a message's place
    LinkId link = {};    // on which the message was sent
    int64_t at_ns = 0;
    uint64_t order = 0;
    bool operator>(const Event& e) const {
      return at_ns != e.at_ns ? at_ns > e.at_ns : order > e.order;
    }
  };
  // One request as its client sees it.
  struct Client final : RequestObserver {
    void OnRouted(const RouteDecision& route) override {
      ++simulation->outcome_.reasons[route.reason];
      Served& served = simulation->outcome_.requests[index];
      if (route.predicted_ttft_ms <= 0) return;
      served.predicted_ttft_ms = route.predicted_ttft_ms + ToMs(simulation->frontend_);
      served.predicted_tpot_ms = route.predicted_tpot_ms;
    }
    void OnTokens(const v1::TokenEvent& event) override {
      if (tokens == 0) first = simulation->Now();
      tokens += event.tokens_size();
    }
    void OnFinish(v1::FinishReason reason, const Error& /*error*/, Duration /*hint*/) override {
      simulation->Finished(index, reason == v1::FINISH_LENGTH);
    }
    Simulation* simulation = nullptr;
    size_t index = 0;
    int64_t tokens = 0;
    Instant first;
  };

  void Schedule(Instant at, Event event) {
    event.at_ns = at.ns;
    event.order = next_order_++;
    events_.push(event);
  }
  void Send(LinkId link, v1::RouterMessage message) override;
  void Close(LinkId link) override {
    AISP_CHECK(link.value > 0);  // of a role that its worker has left
  }
  template <typename Message>
  static uint64_t Park(std::vector<Message>* parked, std::vector<uint64_t>* free, Message message);
  void AddWorkers(const ClusterOptions& options);
  // Of the worker to router 0; those to the others follow.
  LinkId NewLink(Worker* worker);
  Replica RouterOf(LinkId link) const {
    return {(link.value - 1) % routers_.size(), routers_.size()};
  }
  // The router whose timer is the next one.
  Router& NextRouter() const;
  void Register(Worker& worker);
  RouterTotals Totals() const;
  void Plan();
  void Handle(const Event& event);
  void ScheduleArrival(size_t index);
  void Arrive(size_t index);
  void Finished(size_t index, bool well);
  bool Hopeless() const;
  void Conclude();

  const ClusterOptions& options_;
  const std::vector<loadgen::WorkItem>& items_;
  const std::vector<double>& at_s_;
  const Objective limits_;
  const double hopeless_;
  ManualClock clock_;
  std::vector<std::unique_ptr<Metrics>> metrics_;  // of each router
  v1::Fingerprint fingerprint_;
  loadgen::PromptMaker prompts_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::string, Worker*> by_name_;
  std::vector<Worker*> by_link_;
  std::unique_ptr<planner::Planner> planner_;
  std::vector<std::unique_ptr<Router>> routers_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t next_order_ = 0;
  std::vector<v1::RouterMessage> to_workers_;
  std::vector<v1::WorkerMessage> to_router_;
  std::vector<uint64_t> free_to_workers_, free_to_router_;
  std::vector<std::unique_ptr<Client>> clients_;
  Outcome outcome_;
  Duration frontend_, message_;
  std::vector<size_t> finished_;  // whose client is no longer called
  size_t ended_ = 0;
  size_t missed_ = 0;
};

v1::Fingerprint FingerprintOf(const WorkerProfile& profile) {
  v1::Fingerprint f;
  f.set_protocol_version(1);
  v1::KvLayoutDesc& kv = *f.mutable_kv_layout();
  kv.set_num_layers(static_cast<uint32_t>(profile.num_layers));
  kv.set_num_kv_heads(1);
  // Only the product counts: bytes of a token in all layers.
  kv.set_head_dim(static_cast<uint32_t>(
      std::max(1.0, profile.kv_bytes_per_token / (2.0 * profile.num_layers))));
  kv.set_dtype("fp8_e4m3");
  kv.set_block_tokens(static_cast<uint32_t>(profile.block_tokens));
  return f;
}

// Of a sequence: what its pool holds.
uint32_t MostTokens(const WorkerProfile& profile) {
  return static_cast<uint32_t>(std::min<int64_t>(profile.blocks * profile.block_tokens,
                                                 std::numeric_limits<int32_t>::max()));
}

RouterOptions WithTimeout(RouterOptions options) {
  options.default_timeout = kTimeout;
  options.telemetry_interval = kTelemetryInterval;
  return options;
}

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
  clock_.Set(kStart);
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
  Schedule(kStart + kPlanInterval, {Event::kPlan});
}

LinkId Simulation::NewLink(Worker* worker) {
  const LinkId first(by_link_.size() + 1);
  by_link_.insert(by_link_.end(), routers_.size(), worker);
  for (size_t r = 0; r < routers_.size(); ++r)
    routers_[r]->OnLinkUp(LinkId(first.value + r), worker->id());
  return first;
}

Router& Simulation::NextRouter() const {
  return **std::min_element(routers_.begin(), routers_.end(), [](const auto& a, const auto& b) {
    return a->NextTimer() < b->NextTimer();
  });
}

void Simulation::Register(Worker& worker) {
  v1::WorkerMessage message;
  *message.mutable_register_() = worker.Registration(MostTokens(worker.profile()));
  SendToRouter(worker, std::move(message));
}

void Simulation::Rejoin(Worker& worker) {
  worker.set_link(NewLink(&worker));
  Register(worker);
}

// What was asked of all routers: a planner adds up what they say.
RouterTotals Simulation::Totals() const {
  RouterTotals all;
  for (const auto& router : routers_) {
    const RouterTotals& one = router->Totals();
    all.requests += one.requests;
    all.prompt_tokens += one.prompt_tokens;
    all.placed_tokens += one.placed_tokens;
    all.uncached_tokens += one.uncached_tokens;
    all.finished += one.finished;
    all.new_tokens += one.new_tokens;
  }
  return all;
}

void Simulation::Plan() {
  Schedule(Now() + kPlanInterval, {Event::kPlan});
  const planner::Plan plan = planner_->Decide(Now(), {routers_.front()->Workers(), Totals()});
  Outcome::Roles roles;
  roles.at_s = ToSeconds(Now() - kStart);
  for (const auto& worker : workers_) {
    if (worker->changing()) {
      ++roles.changing;
    } else if (worker->role() == v1::ROLE_PARKED) {
      ++roles.parked;
    } else {
      ++(worker->prefill() ? roles.prefill : roles.decode);
    }
  }
  outcome_.roles.push_back(roles);
  for (const planner::Change& change : plan.changes) {
    routers_.front()->SetWorkerRole(
        change.worker, change.wish,
        [this, id = change.worker](const Result<Router::RoleState>& begun) {
          if (begun) {
            ++outcome_.role_changes;
          } else {
            planner_->Refused(Now(), id);
          }
        });
  }
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
    *message.mutable_register_() = worker.Registration(MostTokens(profile));
    for (size_t r = 0; r < routers_.size(); ++r)
      routers_[r]->OnMessage(LinkId(worker.link().value + r), message);
    worker.OnTelemetryTimer();
    // Not all at the same moment.
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

template <typename Message>
uint64_t Simulation::Park(std::vector<Message>* parked, std::vector<uint64_t>* free,
                          Message message) {
  if (free->empty()) {
    parked->push_back(std::move(message));
    return parked->size() - 1;
  }
  const uint64_t place = free->back();
  free->pop_back();
  (*parked)[place] = std::move(message);
  return place;
}

void Simulation::Send(LinkId link, v1::RouterMessage message) {
  Worker* worker = by_link_.at(link.value - 1);
  NameForWorker(RouterOf(link), &message);
  const uint64_t place = Park(&to_workers_, &free_to_workers_, std::move(message));
  Schedule(Now() + message_, {Event::kToWorker, worker, nullptr, place});
}

void Simulation::SendToRouter(Worker& from, v1::WorkerMessage message) {
  for (uint64_t r = 0; r < routers_.size(); ++r) {
    v1::WorkerMessage heard =
        routers_.size() == 1 ? std::move(message) : HeardBy({r, routers_.size()}, message);
    if (heard.body_case() == v1::WorkerMessage::BODY_NOT_SET) continue;
    const uint64_t place = Park(&to_router_, &free_to_router_, std::move(heard));
    Schedule(Now() + message_,
             {Event::kToRouter, &from, nullptr, place, LinkId(from.link().value + r)});
  }
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
      const v1::RouterMessage message = std::move(to_workers_[event.value]);
      free_to_workers_.push_back(event.value);
      return event.worker->OnRouterMessage(message);
    }
    case Event::kToRouter: {
      v1::WorkerMessage message = std::move(to_router_[event.value]);
      free_to_router_.push_back(event.value);
      return routers_[RouterOf(event.link).index]->OnMessage(event.link, std::move(message));
    }
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

void Simulation::ScheduleArrival(size_t index) {
  if (index == items_.size()) return;
  outcome_.requests[index].arrived_s = at_s_[index];
  Schedule(kStart + FromMs(at_s_[index] * 1e3) + frontend_,
           {Event::kArrival, nullptr, nullptr, index});
}

void Simulation::Arrive(size_t index) {
  ScheduleArrival(index + 1);
  const loadgen::WorkItem& item = items_[index];
  auto client = std::make_unique<Client>();
  client->simulation = this;
  client->index = index;
  RouterRequest request;
  request.tokens = prompts_.Ids(item.parts);
  request.max_new_tokens = static_cast<uint32_t>(std::max<int64_t>(1, item.output_tokens));
  request.tenant.service_class = item.service_class;
  if (options_.objectives && !Yields(item.service_class)) request.objective = limits_;
  request.prefill = options_.prefill;
  Served& served = outcome_.requests[index];
  served.service_class = item.service_class;
  served.input_tokens = static_cast<int64_t>(request.tokens.size());
  outcome_.prompt_tokens += served.input_tokens;
  clients_[index] = std::move(client);
  Duration hint{};
  const double begin = CpuMicros();
  const auto id =
      routers_[index % routers_.size()]->Submit(std::move(request), clients_[index].get(), &hint);
  outcome_.decisions_us.push_back(static_cast<float>(CpuMicros() - begin));
  if (id) return;
  served.end = Served::End::kRefused;
  clients_[index].reset();
  ++ended_;
  ++missed_;
}

void Simulation::Finished(size_t index, bool well) {
  const Client& client = *clients_[index];
  Served& served = outcome_.requests[index];
  const Instant arrived = kStart + FromMs(served.arrived_s * 1e3);
  served.output_tokens = client.tokens;
  served.end = well ? Served::End::kDone : Served::End::kFailed;
  served.e2e_ms = ToMs(Now() - arrived);
  if (client.tokens > 0) served.ttft_ms = ToMs(client.first - arrived);
  if (client.tokens > 1)
    served.tpot_ms = ToMs(Now() - client.first) / static_cast<double>(client.tokens - 1);
  ++ended_;
  if (!served.Within(limits_)) ++missed_;
  finished_.push_back(index);
}

bool Simulation::Hopeless() const {
  return static_cast<double>(missed_) > hopeless_ * static_cast<double>(items_.size());
}

Outcome Simulation::Play() {
  const double wall = WallMicros();
  ScheduleArrival(0);
  while (ended_ < items_.size() && !Hopeless()) {
    AISP_CHECK(!events_.empty());
    const Event event = events_.top();
    Router& next = NextRouter();
    const Instant timer = next.NextTimer();
    if (timer <= Instant{event.at_ns}) {
      clock_.Set(std::max(Now(), timer));
      next.OnTimer(Now());
      continue;
    }
    events_.pop();
    clock_.Set(Instant{event.at_ns});
    Handle(event);
    for (size_t done : finished_) clients_[done].reset();
    finished_.clear();
  }
  outcome_.given_up = ended_ < items_.size();
  outcome_.seconds = ToSeconds(Now() - kStart);
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

}  // namespace

Result<Outcome> Run(const ClusterOptions& options, const std::vector<loadgen::WorkItem>& items,
                    const std::vector<double>& at_s, const Objective& limits, double hopeless) {
  int64_t most = 0;
  for (const Fleet& fleet : options.fleets)
    most = std::max(most, fleet.profile.blocks * fleet.profile.block_tokens);
  for (const loadgen::WorkItem& item : items) {
    if (!item.made_up())
      return InvalidArgument("texts cannot be simulated: use a trace or a made-up dataset");
    if (item.input_tokens + item.output_tokens + 1 < most) continue;
    return InvalidArgument(
        fmt::format("a prompt of {} tokens with an answer of {} does not fit into a KV pool of {} "
                    "tokens; use a "
                    "profile with more blocks or --length-scale below 1",
                    item.input_tokens, item.output_tokens, most));
  }
  return Simulation(options, items, at_s, limits, hopeless).Play();
}

}  // namespace aisp::simulate
