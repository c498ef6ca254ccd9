// The requests of clients, and how the clients behave.
#include <algorithm>

#include <fmt/format.h>

#include "tests/sim/cluster.h"

namespace aisp {

std::vector<TokenId> SimCluster::MakePrompt() {
  const auto& family = families_[world_.random.Below(families_.size())];
  const auto longest = static_cast<int64_t>(settings_.max_context * 7 / 10);
  const auto length =
      static_cast<size_t>(world_.Chance(0.2) ? world_.Between(1, 20) : world_.Between(1, longest));
  const size_t shared =
      world_.Chance(0.2) ? length : static_cast<size_t>(world_.random.Below(length + 1));
  std::vector<TokenId> prompt(family.begin(), family.begin() + static_cast<std::ptrdiff_t>(shared));
  while (prompt.size() < length) prompt.push_back(static_cast<TokenId>(world_.random.Below(1000)));
  return prompt;
}

RouterRequest SimCluster::MakeRequest(bool storm) {
  RouterRequest request;
  request.tokens = MakePrompt();
  request.max_new_tokens =
      static_cast<uint32_t>(world_.Chance(0.1) ? world_.Between(1, 400) : world_.Between(1, 40));
  AddSampling(&request);
  AddOutputs(&request);
  AddTenant(&request);
  request.timeout = storm            ? world_.Ms(1, 400)
                    : settings_.calm ? std::chrono::seconds(300)
                                     : world_.Ms(8000, 40000);
  return request;
}

void SimCluster::AddSampling(RouterRequest* request) {
  v1::SamplingParams& sampling = request->sampling;
  sampling.set_temperature(world_.Chance(0.3) ? 0.0f : 1.0f);
  sampling.set_seed(world_.random.Next() | 1);
  if (world_.Chance(0.1)) sampling.set_frequency_penalty(0.5f);
  if (world_.Chance(0.05)) sampling.set_presence_penalty(0.5f);
  if (world_.Chance(0.05)) sampling.set_repetition_penalty(1.1f);
  sampling.set_num_logprobs(world_.Chance(0.15) ? 0 : -1);
  const int64_t stops = world_.Chance(0.5) ? world_.Between(1, 40) : 0;
  for (int64_t i = 0; i < stops; ++i)
    request->stop_token_ids.push_back(static_cast<TokenId>(world_.random.Below(1000)));
  if (world_.Chance(0.2)) request->min_new_tokens = static_cast<uint32_t>(world_.Between(1, 10));
  request->min_new_tokens = std::min(request->min_new_tokens, request->max_new_tokens);
}

// Outputs other than tokens.
void SimCluster::AddOutputs(RouterRequest* request) {
  if (world_.Chance(0.1)) {
    request->pooling = static_cast<v1::Pooling>(world_.Between(1, 3));
    request->max_new_tokens = request->min_new_tokens = 0;
  } else if (world_.Chance(0.1)) {
    request->prompt_logprobs = 0;
    if (world_.Chance(0.3)) request->max_new_tokens = request->min_new_tokens = 0;
  }
}

void SimCluster::AddTenant(RouterRequest* request) {
  request->priority = static_cast<int32_t>(world_.Chance(0.2) ? world_.Between(-1, 2) : 0);
  request->cache_scope = world_.Chance(0.2) ? "tenant" : "";
  if (settings_.tenants) {
    const int64_t tenant = world_.Between(0, 3);
    request->tenant = {fmt::format("tenant{}", tenant), static_cast<uint32_t>(1 + tenant),
                       world_.Chance(0.1) ? 1 : 0};
    coverage_.Count("request of a tenant");
  }
  // Some wait for room and yield; this draws no random number.
  if (request->tokens.size() % 4 != 0) return;
  request->tenant.service_class =
      request->tokens.size() % 8 == 0 ? ServiceClass::kBestEffort : ServiceClass::kBatch;
  coverage_.Count("request that yields");
}

SimHabits SimCluster::MakeHabits() {
  SimHabits habits;
  if (world_.Chance(settings_.stop_string_chance))
    habits.stop_string_after = static_cast<size_t>(world_.Between(1, 12));
  if (world_.Chance(settings_.slow_reader_chance)) {
    habits.reads_per_s = world_.Uniform(0.1, 100);
    habits.most_unread = static_cast<size_t>(world_.Between(1, 16));
  }
  return habits;
}

void SimCluster::Submit(RouterRequest request, const Visit& visit) {
  const std::string name = fmt::format("request{}", clients_.size());
  request.trace_id = name;
  const std::shared_ptr<RouterProcess> its = RouterFor(world_.random.Below(routers_.size()));
  const size_t number = clients_.size();
  const auto end = [raw = its.get()](RequestId id, bool completed) {
    completed ? raw->router->Complete(id) : raw->router->Cancel(id);
  };
  clients_.emplace_back(std::make_unique<SimClient>(&world_, &coverage_, name, shared_.model,
                                                    request, visit.habits, ClientGrace(), end),
                        its);
  SimClient* client = clients_.back().first.get();
  client->must_succeed = visit.must_succeed;
  RouterProcess& r = *its;
  if (r.router == nullptr) {
    client->Leave("its router is down");
    return;
  }
  world_.Trace(name,
               fmt::format("{} tokens, at most {} new, timeout {:.0f} ms", request.tokens.size(),
                           request.max_new_tokens, ToMs(request.timeout)));
  r.process->Deliver([client, router = r.router.get(), request = std::move(request)] {
    if (client->gone()) return;
    Duration retry_after{};
    client->Submitted(router->Submit(request, client, &retry_after));
  });
  if (visit.cancel_after <= Duration{}) return;
  world_.After(visit.cancel_after, [this, number] {
    if (CancelRequest(number)) coverage_.Count("client cancelled");
  });
}

bool SimCluster::CancelRequest(size_t number) {
  auto& [client, its] = clients_[number];
  if (!client->waiting() || !its->process->running()) return false;
  world_.Trace("client", "cancels request" + std::to_string(number));
  client->Leave("cancelled");
  its->process->Deliver([router = its->router.get(), id = client->id()] { router->Cancel(id); });
  return true;
}

void SimCluster::ScheduleLoad() {
  const SimSettings& s = settings_;
  for (int i = 0; i < s.prompt_families; ++i) {
    std::vector<TokenId>& family = families_.emplace_back();
    for (int32_t t = 0; t < s.max_context; ++t)
      family.push_back(static_cast<TokenId>(world_.random.Below(1000)));
  }
  // Workers get a moment to register first.
  const Duration start = std::chrono::milliseconds(600);
  for (int i = 0; i < s.requests; ++i) {
    const Duration at =
        start + Duration(static_cast<int64_t>(world_.random.Uniform() *
                                              static_cast<double>(s.arrival_span.count())));
    world_.After(at, [this] { Arrive(); });
  }
}

void SimCluster::Arrive() {
  const bool storm = world_.Chance(settings_.short_deadline_chance);
  Visit visit;
  visit.must_succeed = settings_.calm;
  if (world_.Chance(settings_.cancel_chance)) visit.cancel_after = world_.Ms(0, 600);
  visit.habits = MakeHabits();
  RouterRequest request = MakeRequest(storm);
  const auto choices = static_cast<uint32_t>(world_.Chance(0.15) ? world_.Between(2, 4) : 1);
  request.shares_tokens = choices > 1;
  for (; request.choice < choices; ++request.choice) Submit(request, visit);
}

void SimCluster::AskForPoison(SimHabits::Poison poison) {
  const bool step = poison == SimHabits::Poison::kStep;
  coverage_.Count(step ? "request whose steps fail" : "request that ends workers");
  RouterRequest request = MakeRequest(false);
  const auto length = static_cast<size_t>(world_.Between(20, settings_.max_context / 2));
  request.tokens =
      std::vector<TokenId>(length, step ? kSimStepPoisonToken : kSimProcessPoisonToken);
  if (settings_.poison_alone && settings_.requests % 2 == 1)
    request.prefill = PrefillPreference::kRemote;
  Visit visit;
  visit.habits.poison = poison;
  // Its client may leave before its effect is known.
  if (!step && world_.Chance(0.3)) {
    visit.cancel_after = world_.Ms(5, 600);
    coverage_.Count("request that ends workers is given up");
  }
  Submit(std::move(request), visit);
}

// After all faults are repaired, the cluster must serve as if nothing had happened.
void SimCluster::ScheduleProbes() {
  for (int i = 0; i < 6; ++i) {
    world_.After(std::chrono::milliseconds(100 * i), [this] {
      RouterRequest request = MakeRequest(false);
      request.timeout = std::chrono::seconds(120);
      Visit visit;
      visit.must_succeed = true;
      Submit(std::move(request), visit);
    });
  }
}

}  // namespace aisp
