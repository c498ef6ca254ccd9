// Requests over HTTP: the router's frontend, its jobs and answers under the same faults.
#include <algorithm>

#include <fmt/format.h>

#include "tests/sim/cluster.h"

namespace aisp {
namespace {

// One HTTP request for every so many that go directly to a router.
constexpr int kOneOf = 8;

int64_t Between(SplitMix64& random, int64_t low, int64_t high) {  // both included
  return low + static_cast<int64_t>(random.Below(static_cast<uint64_t>(high - low + 1)));
}

bool Chance(SplitMix64& random, double p) { return random.Uniform() < p; }

}  // namespace

SimHttpRequest SimCluster::MakeHttpRequest() {
  SplitMix64& random = http_random_;
  SimHttpRequest request;
  const auto& family = families_[random.Below(families_.size())];
  const auto length = static_cast<size_t>(Between(random, 1, settings_.max_context * 7 / 10));
  const size_t shared = random.Below(length + 1);
  request.prompt.assign(family.begin(), family.begin() + static_cast<std::ptrdiff_t>(shared));
  while (request.prompt.size() < length)
    request.prompt.push_back(static_cast<TokenId>(random.Below(1000)));
  request.max_tokens = static_cast<uint32_t>(Between(
      random, 1, std::min<int64_t>(40, settings_.max_context - static_cast<int64_t>(length))));
  request.choices = Chance(random, 0.2) ? static_cast<uint32_t>(Between(random, 2, 4)) : 1;
  request.temperature = Chance(random, 0.3) ? 0 : 1;
  request.seed = (random.Next() >> 1) | 1;
  const int64_t stops = Chance(random, 0.4) ? Between(random, 1, 40) : 0;
  for (int64_t i = 0; i < stops; ++i)
    request.stop_token_ids.push_back(static_cast<TokenId>(random.Below(1000)));
  if (Chance(random, 0.2))
    request.min_tokens = static_cast<uint32_t>(Between(random, 1, request.max_tokens));
  request.stream = Chance(random, 0.7);
  request.stops_at_text = request.min_tokens == 0 && Chance(random, 0.3);
  const bool storm = Chance(random, settings_.short_deadline_chance);
  request.timeout = storm            ? FromMs(1 + 399 * random.Uniform())
                    : settings_.calm ? Duration(std::chrono::seconds(300))
                                     : FromMs(8000 + 32000 * random.Uniform());
  return request;
}

void SimCluster::ScheduleHttp() {
  const Duration start = std::chrono::milliseconds(600);
  for (int i = 0; i < std::max(2, settings_.requests / kOneOf); ++i) {
    const auto offset = static_cast<int64_t>(http_random_.Uniform() *
                                             static_cast<double>(settings_.arrival_span.count()));
    world_.After(start + Duration(offset), [this] {
      const SimHttpRequest request = MakeHttpRequest();
      const bool leaves = Chance(http_random_, settings_.cancel_chance);
      const Duration after = leaves ? FromMs(600 * http_random_.Uniform()) : Duration{};
      SubmitHttp(request, settings_.calm, after);
    });
  }
}

void SimCluster::ScheduleHttpProbes() {
  for (int i = 0; i < 2; ++i) {
    world_.After(std::chrono::milliseconds(150 * i), [this] {
      SimHttpRequest request = MakeHttpRequest();
      request.timeout = std::chrono::seconds(120);
      SubmitHttp(request, /*must_succeed=*/true, {});
    });
  }
}

void SimCluster::SubmitHttp(const SimHttpRequest& request, bool must_succeed,
                            Duration leave_after) {
  const std::string name = fmt::format("http{}", http_clients_.size());
  const std::shared_ptr<RouterProcess> its = RouterFor(http_random_.Below(routers_.size()));
  auto client = std::make_shared<SimHttpClient>(&world_, &coverage_, name, shared_.model, request,
                                                ClientGrace());
  client->must_succeed = must_succeed;
  http_clients_.emplace_back(client, its);
  if (its->router == nullptr) return client->Leave("its router is down");
  its->process->Deliver(
      [frontend = its->frontend.get(), exchange = client->Send()] { frontend->Handle(exchange); });
  if (leave_after <= Duration{}) return;
  world_.After(leave_after, [this, client, its] {
    if (!client->waiting() || !its->process->running()) return;
    coverage_.Count("client left over HTTP");
    world_.Trace(client->name(), "leaves");
    client->Leave("cancelled");
    its->process->Deliver([exchange = client->exchange()] {
      if (exchange != nullptr) exchange->Disconnect(HttpExchange::Gone::kClosed);
    });
  });
}

void SimCluster::DisconnectHttp(const RouterProcess& router, const std::string& why) {
  for (auto& [client, its] : http_clients_) {
    if (its.get() == &router && client->waiting()) client->Leave(why);
  }
}

void SimCluster::CheckHttp(bool at_end) {
  for (const auto& [client, its] : http_clients_) {
    client->CheckOverdue(world_.Now());
    if (at_end && client->waiting()) world_.Fail("a request over HTTP has not ended");
    if (at_end && client->must_succeed && !client->succeeded() && client->outcome() != "cancelled")
      world_.Fail(fmt::format("{} had to succeed: {}", client->name(), client->outcome()));
  }
}

}  // namespace aisp
